//! The contract between the worker and a runtime: describe, prepare, load, execute, unload.
//!
//! ```text
//!  file ──prepare──> Prepared (host memory, made once) ──load──> Loaded (device memory) ──execute──> outputs
//!                        ▲                                          │
//!                        └──────────────── drop = unload ───────────┘
//! ```
//!
//! `prepare` may take seconds and is done off the hot path; everything that can be done ahead is done there and its
//! result is kept on disk. `load` must be short and predictable. `execute` runs one batch at a time on one device.

mod emulated;
mod hashes;
mod host;
mod staged;

pub use emulated::EmulatedEngine;
pub use hashes::FileHashes;
pub use host::{HostBuffer, HostMemory, HostRoom};
pub use staged::{Input, Moved, Staged};

use base::{DataType, Duration, LatencyProfile, ModelSignature, Precision};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// A runtime. One value serves all of its devices.
pub trait Engine: Send + Sync {
    /// Short name for messages and metrics, for instance `onnxruntime`.
    fn name(&self) -> &'static str;

    /// Does once what can be done ahead of a load: reads the file, checks it, optimises it, keeps the result in host
    /// memory and in the cache folder.
    fn prepare(&self, source: &ModelSource) -> Result<Arc<dyn Prepared>, EngineError>;

    /// Divides what its devices are shares of otherwise, where it was opened with several divisions; the first is there at the start. What begins from now on is computed
    /// in the new shares, what has begun ends where it is, and weights stay: it takes no time.
    fn divide(&self, _division: usize) {}

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
    /// Where results of preparation may be kept, keyed by content; `None` keeps nothing.
    pub cache: Option<PathBuf>,
    /// The largest batch that the configuration allows; `None` leaves it to the engine, 0 forbids batching.
    pub max_batch: Option<u32>,
    /// For engines that prepare each batch size: those that will be executed, ascending. Empty leaves it to the engine.
    pub batch_sizes: Vec<u32>,
    /// For engines that prepare each shape: the dimensions of inputs where the configuration narrows them, without the batch.
    pub shapes: BTreeMap<String, Vec<i64>>,
    /// For engines that prepare each shape: what dimensions that are still open will be. Empty leaves it to the engine.
    pub lengths: Vec<u32>,
    /// For engines that have a choice: what floats are computed in.
    pub precision: Option<Precision>,
    /// For engines that don't compute: what to pretend.
    pub emulated: Option<Emulation>,
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

    /// Copies the weights onto a device. Blocks until they are there, unless [`Loaded::there_at`] says when they will be.
    fn load(&self, device: u32) -> Result<Box<dyn Loaded>, EngineError>;

    /// The same for measurements: batches are computed as in that division, whichever there is ([`Engine::divide`]).
    fn load_in(&self, _division: usize, device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        self.load(device)
    }
}

/// A model on a device. Dropping it frees what it holds there.
pub trait Loaded: Send {
    /// From when on the weights are there, where the engine only says so instead of waiting for them.
    fn there_at(&self) -> Option<Instant> {
        None
    }

    /// Runs one batch and hands each output to `sink`, by its position in the signature. Inputs come in the signature's
    /// order, one tensor each, the rows of all requests of the batch behind one another.
    fn execute(
        &mut self,
        inputs: &[TensorView<'_>],
        sink: &mut dyn FnMut(usize, TensorView<'_>),
    ) -> Result<(), EngineError>;

    /// Whether [`Loaded::execute_parts`] may be called.
    fn takes_parts(&self) -> bool {
        false
    }

    /// As `execute`, for a batch whose rows are still apart: the engine brings them together itself, right where it wants them.
    fn execute_parts(
        &mut self,
        _inputs: &[Parts<'_>],
        _sink: &mut dyn FnMut(usize, TensorView<'_>),
    ) -> Result<(), EngineError> {
        Err(EngineError::Execute("this engine takes tensors in one piece".into()))
    }

    /// What the last batch took by the device's own clock, copies to and from it left out, if it has one.
    fn device_time(&self) -> Option<Duration> {
        None
    }

    /// What the transfers of the last batch took, where they can run beside other batches.
    fn moved(&self) -> Option<Moved> {
        None
    }

    /// Whether [`Loaded::stage`] may be called.
    fn stages(&self) -> bool {
        false
    }

    /// Begins to bring the inputs of a batch to the device, beside whatever that computes. A few batches may be staged at a time; they are started in
    /// the order in which they were staged.
    fn stage(&mut self, _inputs: Vec<Input>) -> Result<Box<dyn Staged>, EngineError> {
        Err(EngineError::Execute("this engine takes batches one at a time".into()))
    }
}

/// A tensor in somebody else's memory: row-major, little-endian, as the protocol's binary form (elements of `Bytes` are
/// a 4-byte length and the bytes).
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Element type.
    pub datatype: DataType,
    /// Dimensions, all known.
    pub shape: &'a [i64],
    /// The elements.
    pub data: &'a [u8],
}

/// A tensor in several pieces of somebody else's memory: those of one request each, with some of its rows.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// Element type.
    pub datatype: DataType,
    /// Dimensions of the whole, all known.
    pub shape: &'a [i64],
    /// The elements, in their order; a row is in one piece.
    pub pieces: &'a [&'a [u8]],
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
