//! Emulated models from a repository, and requests for them.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]
#![allow(dead_code, reason = "each test needs a part of it")]

use base::{ApplicationId, DataType, Duration, ModelNumber, Timestamp};
use bytes::Bytes;
use controller::{Controller, ControllerConfig, DeviceConfig, ExecutionLimits, Reply, Submission, Tensor, Ticket};
use engine::{DeviceTimes, EmulatedEngine, Engine, EngineError, Inputs, Loaded, Sink, Staged};
use models::{Manager, ManagerConfig, ProfilingEffort, Registry, ServedModel};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use telemetry::Metrics;
use tokio::sync::oneshot;

pub fn write_model(repository: &Path, name: &str, config: &str) {
    std::fs::create_dir_all(repository.join(name).join("1")).unwrap();
    std::fs::write(repository.join(name).join("config.pbtxt"), config).unwrap();
}

/// Publishes what is in a repository, until the manager is dropped.
pub fn manage(controller: &Controller, repository: &Path) -> (Registry, Manager) {
    let registry = Registry::default();
    let config = ManagerConfig::new(repository.to_owned(), Arc::new(EmulatedEngine::default()));
    let manager = Manager::start(controller.clone(), registry.clone(), config).unwrap();
    manager.wait_until_started();
    (registry, manager)
}

/// A request of one row of the right width, without a deadline.
pub fn ask(controller: &Controller, registry: &Registry, model: &str) -> oneshot::Receiver<Reply> {
    let catalogue = registry.catalogue();
    let served = catalogue.models[model].default_version().unwrap().serving().unwrap();
    let width = served.signature.inputs[0].dims[1];
    let data = Bytes::from(vec![0; width as usize * 4]);
    submit(controller, served.model().unwrap().id, Tensor { datatype: DataType::Fp32, shape: vec![1, width], data }).1
}

/// A request of one row with this input, without a deadline.
pub fn submit(
    controller: &Controller,
    model: ModelNumber,
    input: Tensor,
) -> (Option<Ticket>, oneshot::Receiver<Reply>) {
    let (reply, receiver) = oneshot::channel();
    let ticket = controller.submit(Submission {
        model,
        inputs: vec![input],
        rows: 1,
        deadline_at: Timestamp::NEVER,
        priority: 0,
        application: ApplicationId::DEFAULT,
        size: None,
        trace: None,
        account: None,
        reply,
    });
    (ticket, receiver)
}

pub fn wait(answer: oneshot::Receiver<Reply>) -> Reply {
    answer.blocking_recv().expect("every request gets an answer (P1)")
}

/// Looks again and again, for two minutes at most: what never comes fails a test and doesn't hang it.
pub fn until(what: &str, mut look: impl FnMut() -> bool) {
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while !look() {
        assert!(std::time::Instant::now() < patience, "waited for {what}");
        std::thread::yield_now();
    }
}

/// The model `net` of a repository, brought up, and the metrics then.
pub fn bring_up_with(
    effort: ProfilingEffort,
    engine: Arc<dyn Engine>,
    repository: &Path,
    cache: &Path,
) -> (ServedModel, String) {
    let device = DeviceConfig { name: "net:0".into(), index: 0, pages: 4, pin: None, kind: 0, only_waits: false };
    let config = ControllerConfig {
        scheduler: scheduler::Config::default(),
        max_requests: 4,
        page_bytes: 1 << 20,
        cells: vec![vec![device]],
        online_profile_share: 0.0,
        limits: ExecutionLimits::default(),
    };
    let controller = Controller::start(config, Metrics::new()).unwrap();
    let mut config = ManagerConfig::new(repository.to_owned(), engine);
    config.cache = Some(cache.to_owned());
    config.effort = effort;
    let registry = Registry::default();
    let manager = Manager::start(controller.clone(), registry.clone(), config).unwrap();
    manager.wait_until_started();
    let catalogue = registry.catalogue();
    let entry = catalogue.models["net"].default_version().unwrap();
    let served = entry.serving().unwrap_or_else(|| panic!("{:?}", entry.state())).clone();
    let metrics = controller.metrics().render();
    drop(manager);
    controller.stop();
    (served, metrics)
}

/// A repository with a model of this configuration, and a folder for what is found.
pub fn folders(config: &str) -> [tempfile::TempDir; 2] {
    let [repository, cache] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    std::fs::create_dir_all(repository.path().join("net/1")).unwrap();
    std::fs::write(repository.path().join("net/1/model.onnx"), "any").unwrap();
    std::fs::write(repository.path().join("net/config.pbtxt"), config).unwrap();
    [repository, cache]
}

/// A model, or a batch of it, on a device with a clock of its own.
struct Clocked<T> {
    inner: T,
    takes: Duration,
}

/// A model of which each execution takes so long, by its device's clock.
pub fn clocked(inner: Box<dyn Loaded>, takes: Duration) -> Box<dyn Loaded> {
    Box::new(Clocked { inner, takes })
}

impl Loaded for Clocked<Box<dyn Loaded>> {
    fn there_at(&self) -> Option<Instant> {
        self.inner.there_at()
    }
    fn stage(&mut self, inputs: &mut dyn Inputs) -> Result<Box<dyn Staged>, EngineError> {
        Ok(Box::new(Clocked { inner: self.inner.stage(inputs)?, takes: self.takes }))
    }
}

impl Staged for Clocked<Box<dyn Staged>> {
    fn blocks(&self) -> bool {
        self.inner.blocks()
    }
    fn start(&mut self, inputs: &mut dyn Inputs) -> Result<(), EngineError> {
        self.inner.start(inputs)
    }
    fn is_computed(&mut self) -> Result<bool, EngineError> {
        self.inner.is_computed()
    }
    fn due_at(&self) -> Option<Instant> {
        self.inner.due_at()
    }
    fn has_arrived(&mut self) -> Result<bool, EngineError> {
        self.inner.has_arrived()
    }
    fn finish(&mut self, sink: &mut Sink<'_>) -> Result<DeviceTimes, EngineError> {
        Ok(DeviceTimes { computing: Some(self.takes), ..self.inner.finish(sink)? })
    }
}
