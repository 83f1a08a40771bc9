//! The contract between the worker and a runtime: describe, prepare, load, execute, unload.
//!
//! ```text
//!  file ──prepare──> Prepared (host memory, made once) ──load──> Loaded (device memory) ──stage──> Staged ──> outputs
//!                        ▲                                          │
//!                        └──────────────── drop = unload ───────────┘
//! ```
//!
//! `prepare` may take seconds and is done off the hot path; everything that can be done ahead is done there and its
//! result is kept on disk. `load` must be short and predictable. `stage` is the one way to run a batch; [`execute`]
//! waits for it, and [`at_once`] makes it of a model that computes on the thread that asks.

mod at_once;
mod breaker;
mod emulated;
mod emulated_shares;
mod hashes;
pub mod heap;
mod host;
mod inputs;
mod made_up;
mod numbers;
pub mod precision;
mod staged;

pub use at_once::{AtOnce, at_once};
pub use breaker::Breaker;
pub use emulated::EmulatedEngine;
pub use emulated_shares::EmulatedShares;
pub use hashes::FileHashes;
pub use host::{HostBuffer, HostMemory, HostRoom};
pub use inputs::{Compute, Input, Inputs, Tensor, TensorView};
pub use made_up::by_chance;
pub use numbers::{distance, is_real, numbers};
pub use staged::{DeviceTimes, Sink, Staged, execute};

use base::{LatencyProfile, ModelSignature, Precision};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// A runtime. One value serves all of its devices.
pub trait Engine: Send + Sync {
    /// Short name for messages and metrics, for instance `onnxruntime`.
    fn name(&self) -> &'static str;

    /// Does once what can be done ahead of a load: reads the file, checks it, optimises it, keeps the result in host
    /// memory and in the cache folder.
    fn prepare(&self, source: &ModelSource) -> Result<Arc<dyn Prepared>, EngineError>;

    /// What models can be computed in, first what is expected to be the fastest; none where there is no choice. TF32
    /// behind so many products stands for up to so many.
    fn precisions(&self) -> &[Precision] {
        &[]
    }

    /// Whether it prepares models soon where that is wanted ([`ModelSource::soon`]), several at a time, and better when
    /// it is given time.
    fn prepares_soon(&self) -> bool {
        false
    }

    /// An engine that computes the same models on the host, in any shape, where this one prepares each: what only runs
    /// of a model show is found out there.
    fn reference(&self) -> Option<Arc<dyn Engine>> {
        None
    }

    /// Makes a device the share that it is in another prepared division of its GPU; an engine starts with the first.
    /// Running batches finish in the old share, later ones run in the new share, and weights stay where they are: it
    /// takes no time.
    fn divide(&self, _device: u32, _division: usize) {}

    /// Gets what is loaded onto a device ready for another prepared division, beside what runs there. Whether it is;
    /// asked again until it is.
    fn is_ready_for(&self, _device: u32, _division: usize) -> bool {
        true
    }

    /// The server ends, and nothing is computed any more: removes what would outlive the process.
    fn end(&self) {}

    /// Memory from which its devices read inputs by themselves, if it has some: requests are best received there.
    fn host_memory(&self) -> Option<Arc<dyn HostMemory>> {
        None
    }
}

/// Where a model comes from and what its configuration says of it.
#[derive(Clone, Debug, Default)]
pub struct ModelSource {
    /// The model's name, for messages.
    pub name: String,
    /// The file.
    pub file: PathBuf,
    /// For engines of the host's cores: what is prepared instead of what the file holds. It is a part of it, so that
    /// what it keeps in other files lies beside the file. `None`: the file's own content.
    pub part: Option<Bytes>,
    /// Where results of preparation may be kept, keyed by content; `None` keeps nothing.
    pub cache: Option<PathBuf>,
    /// The largest batch that the configuration allows; `None` leaves it to the engine, 0 forbids batching.
    pub max_batch: Option<u32>,
    /// For engines that prepare each batch size: those that will be executed, ascending. Empty leaves it to the engine.
    pub batch_sizes: Vec<u32>,
    /// For engines that prepare each shape: the dimensions of inputs where the configuration narrows them, without the
    /// batch.
    pub shapes: BTreeMap<String, Vec<i64>>,
    /// For engines that prepare each shape: what dimensions that are still open will be. Empty leaves it to the engine.
    pub lengths: Vec<u32>,
    /// For engines that prepare each shape: dimensions of inputs that requests may have, without the batch. What the
    /// configuration measures or warms the model up with.
    pub examples: Vec<BTreeMap<String, Vec<i64>>>,
    /// For engines that prepare each shape: how many are kept at a time of those that requests bring. `None` leaves it
    /// to the engine.
    pub shapes_at_most: Option<u32>,
    /// For engines that have a choice: what floats are computed in; `None` is 32 bits.
    pub precision: Option<Precision>,
    /// For engines that prepare each size: what it is prepared for.
    pub purpose: Purpose,
    /// For engines that measure what computes a model best: take what is known and what rules say instead, so that it
    /// is ready soon. [`Prepared::is_provisional`] says whether more time would make it faster.
    pub soon: bool,
    /// Set when nobody wants it any more: preparations that take long give up then.
    pub given_up: Arc<AtomicBool>,
    /// For engines that don't compute: what to pretend.
    pub emulated: Option<Emulation>,
}

/// What a model is prepared for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Purpose {
    /// To be served.
    #[default]
    Service,
    /// To be compared, on the first device alone and in its smallest size, computed as it would be served. Where an
    /// engine hands models on to another, it doesn't hand on this.
    Trial,
    /// The same, but soon, and computed slowly: how far it is off is what counts.
    Draft,
}

/// What an emulated device pretends about a model.
#[derive(Clone, Debug)]
pub struct Emulation {
    /// What batches and loads take.
    pub profile: LatencyProfile,
    /// What the weights take on a device.
    pub weight_bytes: u64,
}

/// A model in host memory, ready to be loaded any number of times.
pub trait Prepared: Send + Sync {
    /// What it takes and gives.
    fn signature(&self) -> &ModelSignature;

    /// What its weights take on a device.
    fn weight_bytes(&self) -> u64;

    /// What its floats are computed in, where that can be chosen.
    fn precision(&self) -> Option<Precision> {
        None
    }

    /// Whether it was prepared soon, and would be faster if it was prepared with time.
    fn is_provisional(&self) -> bool {
        false
    }

    /// Whether batches of any number of rows can be computed, each at what it takes; otherwise those sizes that were
    /// prepared are, and what lies between them is filled up to the next.
    fn takes_any_batch(&self) -> bool {
        false
    }

    /// Whether shapes are prepared as requests bring them, and the first is a guess: more of them than one row aren't
    /// worth preparing before anybody asks.
    fn guesses_shapes(&self) -> bool {
        false
    }

    /// Tells that inputs of these shapes will be run, so that an engine that prepares each shape computes them as it
    /// later will. Takes its time; nothing that is served waits for it.
    fn expect(&self, _shapes: &[&[i64]]) {}

    /// Copies the weights onto a device. Blocks until they are there, unless [`Loaded::there_at`] says when they will
    /// be.
    fn load(&self, device: u32) -> Result<Box<dyn Loaded>, EngineError>;

    /// What breaks a load onto that device off, where the engine can.
    fn load_breaker(&self, _device: u32) -> Option<Arc<dyn Breaker>> {
        None
    }

    /// The same for measurements: batches are computed as in that division, whichever there is ([`Engine::divide`]).
    fn load_in(&self, _division: usize, device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        self.load(device)
    }

    /// Whether its batches may take another time where its device is divided otherwise ([`Engine::divide`]).
    fn is_divisible(&self) -> bool {
        true
    }

    /// Why the host's cores compute it, on the thread of the device, where the engine's own devices can't.
    fn not_on_device(&self) -> Option<&str> {
        None
    }

    /// What of it the host's cores compute, on the thread of the device, behind what the engine's own device computes;
    /// a sentence.
    fn end_on_host(&self) -> Option<&str> {
        None
    }

    /// What inputs are where a request leaves them out, in the order of the inputs; an empty list: none may be left
    /// out.
    fn defaults(&self) -> Vec<Option<Tensor>> {
        Vec::new()
    }
}

/// A model on a device. Dropping it frees what it holds there.
pub trait Loaded: Send {
    /// From when on the weights are there, where the engine only says so instead of waiting for them.
    fn there_at(&self) -> Option<Instant>;

    /// What breaks its executions off, where the engine can.
    fn breaker(&self) -> Option<Arc<dyn Breaker>> {
        None
    }

    /// Begins to bring the inputs of a batch to the device, while that computes others. A few batches may be staged at
    /// a time; they are started in the order in which they were staged.
    fn stage(&mut self, inputs: &mut dyn Inputs) -> Result<Box<dyn Staged>, EngineError>;
}

/// Why an engine could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The runtime's library can't be used.
    #[error("{runtime} is not available: {reason}")]
    Unavailable {
        /// Which runtime.
        runtime: &'static str,
        /// What is missing and how to get it.
        reason: String,
    },
    /// The model can't be read or isn't supported.
    #[error("{}: {reason}", file.display())]
    BadModel {
        /// Which file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The weights could not be brought onto the device.
    #[error("load failed: {0}")]
    Load(String),
    /// The batch could not be computed.
    #[error("execution failed: {0}")]
    Execute(String),
    /// The model can't compute these inputs: others it can.
    #[error("{0}")]
    Unfit(String),
    /// The batch took longer than it may, and a [`Breaker`] ended it.
    #[error("it took too long and was broken off")]
    BrokenOff,
    /// The device is gone, with all that was on it: what ran there didn't end. Whoever drives it starts it anew.
    #[error("the device was lost: {reason}")]
    Lost {
        /// How that is known.
        reason: String,
        /// Whether what ran there had nothing to do with it.
        blameless: bool,
    },
    /// The batch can't be computed yet, but soon.
    #[error("{0}")]
    NotYet(String),
    /// A file could not be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
}

impl EngineError {
    /// A model file that can't be used.
    pub fn bad_model(file: &Path, reason: impl Into<String>) -> Self {
        Self::BadModel { file: file.to_owned(), reason: reason.into() }
    }

    /// A file that can't be read or written.
    pub fn io(path: &Path, error: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), error }
    }
}
