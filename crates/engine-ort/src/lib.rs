//! ONNX Runtime on CPU cores.
//!
//! ```text
//!  model.onnx ──optimise──> skeleton (the graph, some KB) + block (the weights, aligned) ──> file in the cache
//!                                      │                         │
//!                                      └───────── load ──────────┴──> session ──execute──> outputs
//! ```
//!
//! A session is made from the skeleton and lent the weights where they lie: for convolutions, nothing that grows with
//! the weights is read, copied or optimised. Matrix products want their weights packed, which does grow with them: the
//! sessions of a model share what is packed, the last unload frees it, and the original weights lie in a copy of the
//! cache's file, which the system keeps in memory as long as there is room. Sessions of models that are smaller than a
//! page are kept after an unload.
#![allow(unsafe_code, reason = "the runtime is a C library; each block says why it is sound")]

mod blame;
mod block;
mod cache;
mod end;
mod external;
mod library;
mod loaded;
mod model;
mod optimise;
mod optional;
mod run_options;
mod runtime;
mod session;
mod signature;
mod sizes;
mod strings;
mod telemetry;
mod weights;
mod wide;

pub use cache::{CachedParts, cached_parts};
pub use end::end_process;
pub use library::{find as find_library, load_ahead};
pub use telemetry::refuse as refuse_telemetry;

use base::ModelSignature;
use engine::{Engine, EngineError, Loaded, ModelSource, Prepared, Tensor, heap};
use external::External;
use loaded::OrtLoaded;
use model::OrtModel;
use runtime::{Runtime, RuntimeError};
use session::Session;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;
use wide::{Wide, WidePlace};

/// What may be chosen about the engine.
#[derive(Clone, Debug)]
pub struct OrtOptions {
    /// The shared library; `None` looks for it (see [`find_library`]).
    pub library: Option<PathBuf>,
    /// Threads for one execution; 0 and 1 keep it on the thread that asks for it.
    pub threads: u16,
    /// Threads for one execution on the first device while the cores are divided so that it has all of them (division
    /// 1); 0 and 1: they never are.
    pub wide_threads: u16,
    /// What all executions may take together, packed weights included; an execution that would take more fails. The
    /// first engine decides.
    pub workspace_bytes: u64,
}

impl Default for OrtOptions {
    fn default() -> Self {
        Self { library: None, threads: 1, wide_threads: 1, workspace_bytes: u64::MAX }
    }
}

/// The engine. There may be several, but they share one library, its threads and its workspace: those of the first.
pub struct OrtEngine {
    runtime: &'static Runtime,
    /// Models by content, as long as somebody uses them.
    models: Mutex<HashMap<blake3::Hash, Weak<OrtModel>>>,
    /// What the first device is when it has all cores; nothing where it never does.
    wide: Option<Arc<Wide>>,
}

impl OrtEngine {
    /// Loads the library.
    pub fn new(options: &OrtOptions) -> Result<Self, EngineError> {
        let path = match &options.library {
            Some(path) => library::in_full(path)?,
            None => find_library()?,
        };
        let runtime = Runtime::get(&path, options)?;
        let wide = (runtime.has_wide && options.wide_threads > 1).then(|| Arc::new(Wide::new(runtime)));
        Ok(Self { runtime, models: Mutex::default(), wide })
    }

    /// What the library says of itself: version, commit, flags.
    pub fn build(&self) -> &'static str {
        self.runtime.build
    }

    /// The runtime's environment, for measurements that compare with sessions made the plain way.
    pub fn environment(&self) -> &ort::environment::Environment {
        &self.runtime.environment
    }

    fn model(&self, source: &ModelSource) -> Result<Arc<OrtModel>, EngineError> {
        let (file, cache) = (&source.file, source.cache.as_deref());
        let bytes = match &source.part {
            Some(part) => part.clone(),
            None => external::read(file).map_err(|error| EngineError::io(file, error))?,
        };
        if bytes.is_empty() {
            return Err(EngineError::bad_model(file, "the file is empty: expected an ONNX model"));
        }
        let external = External::of(file, &bytes)?;
        let (bytes, optional) = optional::find(bytes, &source.shapes);
        let key = optimise::key(self.runtime, &bytes, &external);
        let known = || self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(model) = known().get(&key).and_then(Weak::upgrade) {
            return Ok(model);
        }
        let cached = cache.map(|folder| cache::path(folder, &key));
        let new = cached.as_ref().is_some_and(|path| !path.exists());
        let model = OrtModel::prepare(self.runtime, file, bytes, &external, cached.as_deref())?;
        let model = Arc::new(model.with_optional(optional));
        heap::give_back();
        let mut known = known();
        known.retain(|_, model| model.strong_count() > 0);
        known.insert(key, Arc::downgrade(&model));
        if let Some(folder) = cache.filter(|_| new) {
            let in_use = known.keys().map(|key| cache::path(folder, key)).collect();
            drop(known);
            cache::prune(folder, &in_use, SystemTime::now());
        }
        Ok(model)
    }
}

impl Engine for OrtEngine {
    fn name(&self) -> &'static str {
        "onnxruntime"
    }

    fn prepare(&self, source: &ModelSource) -> Result<Arc<dyn Prepared>, EngineError> {
        let model = self.model(source)?;
        model.ports.warn_of_left_out(&source.name);
        let signature =
            model.ports.signature(source.max_batch).map_err(|reason| EngineError::bad_model(&source.file, reason))?;
        Ok(Arc::new(OrtPrepared { runtime: self.runtime, model, signature, wide: self.wide.clone() }))
    }

    fn divide(&self, device: u32, division: usize) {
        if let Some(wide) = self.wide.as_ref().filter(|_| device == wide::DEVICE) {
            wide.divide(division);
        }
    }

    fn is_ready_for(&self, device: u32, division: usize) -> bool {
        let wide = self.wide.as_ref().filter(|_| device == wide::DEVICE && division == wide::DIVISION);
        wide.is_none_or(Wide::is_ready)
    }
}

struct OrtPrepared {
    runtime: &'static Runtime,
    model: Arc<OrtModel>,
    signature: ModelSignature,
    wide: Option<Arc<Wide>>,
}

impl OrtPrepared {
    fn loaded(&self, session: Session, wide: Option<WidePlace>) -> Result<Box<dyn Loaded>, RuntimeError> {
        let batched = self.signature.max_batch > 0;
        let loaded = OrtLoaded::new(self.runtime, Arc::clone(&self.model), (session, wide), batched)?;
        Ok(engine::at_once(loaded))
    }
}

impl Prepared for OrtPrepared {
    fn signature(&self) -> &ModelSignature {
        &self.signature
    }

    fn weight_bytes(&self) -> u64 {
        self.model.weight_bytes
    }

    fn takes_any_batch(&self) -> bool {
        true
    }

    fn load(&self, device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        let session = self.model.session(self.runtime).map_err(|refused| EngineError::Load(refused.0))?;
        let wide = self.wide.as_ref().filter(|_| device == wide::DEVICE).map(|wide| wide.place(&self.model));
        self.loaded(session, wide).map_err(|refused| EngineError::Load(refused.0))
    }

    fn load_in(&self, division: usize, _device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        let is_wide = self.wide.is_some() && division == wide::DIVISION;
        let wide = if is_wide { self.model.wide_session(self.runtime) } else { None };
        let session = wide.unwrap_or_else(|| self.model.session(self.runtime));
        let loaded = session.and_then(|session| self.loaded(session, None));
        loaded.map_err(|refused| EngineError::Load(refused.0))
    }

    fn is_divisible(&self) -> bool {
        self.wide.is_some() && self.model.may_be_wide()
    }

    fn defaults(&self) -> Vec<Option<Tensor>> {
        self.model.defaults.clone()
    }
}
