//! The engine as the server has it: each device's work is done in a process of its own.

use crate::ApartOptions;
use crate::checks::{self, BelievedModel, TakenOutputs};
use crate::files::{FoundFiles, ModelFolders};
use crate::messages::{AllowedPaths, FromEngine, ModelFiles, ToEngine};
use crate::process::{EngineProcess, GoneProcess};
use base::ModelSignature;
use engine::{
    Breaker, DeviceTimes, Engine, EngineError, Inputs, Loaded, ModelSource, Prepared, Sink, Staged, Tensor, TensorView,
};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A buffer for outputs of this size is kept.
const KEPT_BYTES: usize = 16 << 20;

/// See the module.
pub struct ApartEngine {
    devices: Arc<ApartDevices>,
    about: String,
}

/// The processes, and what they are started with.
struct ApartDevices {
    options: ApartOptions,
    folders: ModelFolders,
    processes: Vec<Mutex<Option<Arc<EngineProcess>>>>,
    prepared: AtomicU64,
    handles: AtomicU32,
}

impl ApartEngine {
    /// Starts the first device's process, which shows whether the runtime can be used; others are started when they are
    /// needed.
    pub fn new(options: ApartOptions) -> Result<Self, EngineError> {
        let runtime = options.runtime;
        let folders = ModelFolders::new(&options.models, options.cache.as_deref()).map_err(|error| {
            let reason = format!("there is no folder for what its processes share: {error}");
            EngineError::Unavailable { runtime, reason }
        })?;
        let processes = (0..options.devices.max(1)).map(|_| Mutex::default()).collect();
        let (prepared, handles) = Default::default();
        let devices = Arc::new(ApartDevices { options, folders, processes, prepared, handles });
        let about = devices.process(0)?.about.clone();
        Ok(Self { devices, about })
    }

    /// What the runtime says of itself.
    pub fn about(&self) -> &str {
        &self.about
    }
}

impl ApartDevices {
    fn place(&self, device: u32) -> MutexGuard<'_, Option<Arc<EngineProcess>>> {
        let last = self.processes.len() - 1;
        self.processes[last.min(device as usize)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process of a device; another one if it is gone.
    fn process(&self, device: u32) -> Result<Arc<EngineProcess>, EngineError> {
        let mut place = self.place(device);
        if let Some(process) = place.as_ref().filter(|process| process.gone().is_none()) {
            return Ok(Arc::clone(process));
        }
        *place = None;
        let allowed = AllowedPaths { read: self.folders.roots(), write: Vec::new() };
        let started = Arc::new(EngineProcess::start(&self.options, format!("device {device}"), allowed)?);
        *place = Some(Arc::clone(&started));
        Ok(started)
    }
}

impl Engine for ApartEngine {
    fn name(&self) -> &'static str {
        self.devices.options.engine
    }

    fn end(&self) {
        for place in &self.devices.processes {
            drop(place.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
        self.devices.folders.remove();
    }

    /// In a process that does nothing else and may read nothing but this model.
    fn prepare(&self, source: &ModelSource) -> Result<Arc<dyn Prepared>, EngineError> {
        let devices = Arc::clone(&self.devices);
        let found = devices.folders.find(source)?;
        let files = &found.files;
        let folder = files.file.parent().map(|folder| folder.canonicalize().unwrap_or_else(|_| folder.to_owned()));
        let links = links(files);
        let read = folder.into_iter().chain(links).collect();
        let allowed = AllowedPaths { read, write: files.cache.clone().into_iter().collect() };
        let process = EngineProcess::start(&devices.options, format!("preparing {}", source.name), allowed)?;
        let answer = process.ask(&ToEngine::Prepare(files.clone()), Some(&source.given_up)).map_err(
            |GoneProcess { why, .. }| {
                EngineError::bad_model(
                    &source.file,
                    format!("{why}, while the model was prepared: the file may be damaged"),
                )
            },
        )?;
        let BelievedModel { signature, weight_bytes, takes_any_batch, defaults } =
            believed(answer, &source.file, devices.options.runtime)?;
        let id = devices.prepared.fetch_add(1, Ordering::Relaxed);
        let (source, signature) = (source.file.clone(), Arc::new(signature));
        Ok(Arc::new(ApartModel { devices, id, found, source, signature, weight_bytes, takes_any_batch, defaults }))
    }
}

/// Where files lead to that are links.
fn links(files: &ModelFiles) -> Vec<PathBuf> {
    let siblings = files.file.parent().and_then(|folder| folder.read_dir().ok());
    let paths = siblings.into_iter().flatten().flatten().map(|entry| entry.path());
    paths.filter(|path| path.is_symlink()).filter_map(|path| path.canonicalize().ok()).collect()
}

/// What is said of a model.
fn believed(answer: FromEngine, file: &std::path::Path, runtime: &'static str) -> Result<BelievedModel, EngineError> {
    match answer {
        FromEngine::Prepared(said) => checks::model(*said).map_err(|wrong| {
            EngineError::bad_model(file, format!("what the engine's process says of it is wrong: {wrong}"))
        }),
        FromEngine::Refused(failure) => Err(failure.about(file, runtime)),
        FromEngine::Ready { .. } => Err(EngineError::bad_model(file, "the engine's process answers something else")),
    }
}

/// A model that was prepared once, elsewhere. Each device's process makes it again of what was kept, with its first
/// load there.
struct ApartModel {
    devices: Arc<ApartDevices>,
    id: u64,
    found: FoundFiles,
    source: PathBuf,
    signature: Arc<ModelSignature>,
    weight_bytes: u64,
    takes_any_batch: bool,
    defaults: Vec<Option<Tensor>>,
}

impl Prepared for ApartModel {
    fn signature(&self) -> &ModelSignature {
        &self.signature
    }

    fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    fn takes_any_batch(&self) -> bool {
        self.takes_any_batch
    }

    fn load_breaker(&self, device: u32) -> Option<Arc<dyn Breaker>> {
        Some(Arc::new(EndsLoads { devices: Arc::clone(&self.devices), device }))
    }

    fn load(&self, device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        let process = self.devices.process(device)?;
        let handle = self.devices.handles.fetch_add(1, Ordering::Relaxed);
        let message = ToEngine::Load { handle, prepared: self.id, files: self.found.files.clone() };
        let answer = process.ask(&message, None).map_err(GoneProcess::into_loss)?;
        // From here on it is unloaded when this is dropped.
        let loaded = ApartLoaded { process, handle, signature: Arc::clone(&self.signature), spare: Arc::default() };
        let there = believed(answer, &self.source, self.devices.options.runtime)?;
        if there.signature != *self.signature {
            let reason = format!("{} has changed since it was prepared: load it again", self.source.display());
            return Err(EngineError::Load(reason));
        }
        Ok(Box::new(loaded))
    }

    fn defaults(&self) -> Vec<Option<Tensor>> {
        self.defaults.clone()
    }
}

impl Drop for ApartModel {
    fn drop(&mut self) {
        for place in &self.devices.processes {
            // Who starts a process meanwhile has nothing to forget.
            if let Some(process) = place.try_lock().ok().and_then(|place| place.clone()) {
                process.tell(&ToEngine::Forget { prepared: self.id });
            }
        }
    }
}

/// Ends the process of a device in which a load takes too long.
struct EndsLoads {
    devices: Arc<ApartDevices>,
    device: u32,
}

impl Breaker for EndsLoads {
    fn break_off(&self) {
        // Who starts a process meanwhile has a bound for that.
        let last = self.devices.processes.len() - 1;
        let place = self.devices.processes[last.min(self.device as usize)].try_lock();
        if let Some(process) = place.ok().and_then(|place| place.clone()) {
            process.end_overdue("a load");
        }
    }
}

/// A model in a device's process.
struct ApartLoaded {
    process: Arc<EngineProcess>,
    handle: u32,
    signature: Arc<ModelSignature>,
    spare: SpareBuffer,
}

/// Memory that one batch after another takes its outputs out with: pages that are new would take longer than copying.
type SpareBuffer = Arc<Mutex<Option<TakenOutputs>>>;

impl Loaded for ApartLoaded {
    fn there_at(&self) -> Option<Instant> {
        None
    }

    fn breaker(&self) -> Option<Arc<dyn Breaker>> {
        Some(Arc::new(EndsBatches(Arc::clone(&self.process))))
    }

    fn stage(&mut self, _inputs: &mut dyn Inputs) -> Result<Box<dyn Staged>, EngineError> {
        if let Some(gone) = self.process.gone() {
            return Err(gone.clone().into_loss());
        }
        let spare = Arc::clone(&self.spare);
        let outputs = spare.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
        let (process, handle, signature) = (Arc::clone(&self.process), self.handle, Arc::clone(&self.signature));
        Ok(Box::new(ApartBatch { process, handle, signature, outputs, spare }))
    }
}

impl Drop for ApartLoaded {
    fn drop(&mut self) {
        self.process.tell(&ToEngine::Unload { handle: self.handle });
    }
}

/// Ends what a process computes, by words or by force.
struct EndsBatches(Arc<EngineProcess>);

impl Breaker for EndsBatches {
    fn break_off(&self) {
        self.0.break_off();
    }
}

/// A batch on its way through a process. The thread that starts it waits for its end: it sleeps meanwhile, and the
/// core is the process's.
struct ApartBatch {
    process: Arc<EngineProcess>,
    handle: u32,
    signature: Arc<ModelSignature>,
    outputs: TakenOutputs,
    spare: SpareBuffer,
}

impl Staged for ApartBatch {
    fn blocks(&self) -> bool {
        true
    }

    /// Rows go straight from the requests into the region: they are brought together by the copy that they need anyway.
    fn start(&mut self, inputs: &mut dyn Inputs) -> Result<(), EngineError> {
        let inputs = inputs.in_pieces()?;
        self.process.run(self.handle, &inputs, &self.signature.outputs, &mut self.outputs)
    }

    fn is_computed(&mut self) -> Result<bool, EngineError> {
        Ok(true)
    }

    fn due_at(&self) -> Option<Instant> {
        None
    }

    fn has_arrived(&mut self) -> Result<bool, EngineError> {
        Ok(true)
    }

    fn finish(&mut self, sink: &mut Sink<'_>) -> Result<DeviceTimes, EngineError> {
        for (index, (datatype, shape, place)) in self.outputs.tensors.iter().enumerate() {
            sink(index, TensorView { datatype: *datatype, shape, data: &self.outputs.data[place.clone()] });
        }
        Ok(DeviceTimes::default())
    }
}

impl Drop for ApartBatch {
    fn drop(&mut self) {
        if self.outputs.data.capacity() <= KEPT_BYTES {
            let outputs = std::mem::take(&mut self.outputs);
            *self.spare.lock().unwrap_or_else(PoisonError::into_inner) = Some(outputs);
        }
    }
}
