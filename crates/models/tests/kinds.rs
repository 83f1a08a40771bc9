//! Devices of several kinds, as shares of a GPU are: a model is measured on one of each, and warmed up on all. Shares
//! may change while it is served.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

mod common;

use base::{DataType, Duration, LatencyProfile, ModelSignature, TensorSpec};
use bytes::Bytes;
use common::{submit, until};
use controller::{Controller, ControllerConfig, DeviceConfig, Divisions, ExecutionLimits, Reply, Tensor, deal};
use engine::{AtOnce, Engine, EngineError, Loaded, ModelSource, Prepared, Sink, TensorView, at_once};
use models::{Manager, ManagerConfig, ModelState, ProfilingEffort, Registry};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use telemetry::Metrics;

/// Stands for the value of all measurements.
const MEASURED: u8 = 255;

/// A model that gives its input back, and notes where which values were computed: by division, device and value.
#[derive(Clone)]
struct Echo {
    signature: ModelSignature,
    runs: Arc<Mutex<BTreeSet<(usize, u32, u8)>>>,
    division: Arc<AtomicUsize>,
}

impl Echo {
    fn new() -> Self {
        let spec = |name: &str| TensorSpec { name: name.into(), datatype: DataType::Uint8, dims: vec![-1, 1] };
        let signature = ModelSignature { inputs: vec![spec("x")], outputs: vec![spec("y")], max_batch: 1 };
        Self { signature, runs: Arc::default(), division: Arc::default() }
    }

    /// Where a value was computed.
    fn places(&self, value: u8) -> Vec<(usize, u32)> {
        let runs = self.runs.lock().unwrap();
        runs.iter()
            .filter(|&&(_, _, computed)| computed == value)
            .map(|&(division, device, _)| (division, device))
            .collect()
    }
}

impl Engine for Echo {
    fn name(&self) -> &'static str {
        "echo"
    }
    fn prepare(&self, _source: &ModelSource) -> Result<Arc<dyn Prepared>, EngineError> {
        Ok(Arc::new(self.clone()))
    }
    fn divide(&self, _device: u32, division: usize) {
        self.division.store(division, Ordering::Relaxed);
    }
}

impl Prepared for Echo {
    fn signature(&self) -> &ModelSignature {
        &self.signature
    }
    fn weight_bytes(&self) -> u64 {
        1
    }
    fn load(&self, device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        Ok(at_once(OnDevice { fixed: None, device, echo: self.clone(), output: None }))
    }
    fn load_in(&self, division: usize, device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        Ok(at_once(OnDevice { fixed: Some(division), device, echo: self.clone(), output: None }))
    }
}

struct OnDevice {
    fixed: Option<usize>,
    device: u32,
    echo: Echo,
    output: Option<Tensor>,
}

impl AtOnce for OnDevice {
    fn compute(&mut self, inputs: &[TensorView<'_>]) -> Result<(), EngineError> {
        let division = self.fixed.unwrap_or_else(|| self.echo.division.load(Ordering::Relaxed));
        // Measurements alone are for a certain division.
        let value = if self.fixed.is_some() { MEASURED } else { inputs[0].data[0] };
        self.echo.runs.lock().unwrap().insert((division, self.device, value));
        let TensorView { datatype, shape, data } = inputs[0];
        self.output = Some(Tensor { datatype, shape: shape.to_vec(), data: data.to_vec().into() });
        Ok(())
    }
    fn hand_out(&mut self, sink: &mut Sink<'_>) -> Result<(), EngineError> {
        self.output.iter().for_each(|output| sink(0, output.view()));
        Ok(())
    }
}

/// Brings the model up on devices of these kinds, by division of which each has as many, in so many cells, with this
/// folder to keep measurements in.
fn bring_up(
    echo: &Echo,
    kinds: &[&[u32]],
    cells: u32,
    repository: &Path,
    cache: &Path,
) -> (Controller, Registry, Manager) {
    let device = |(index, &kind): (usize, &u32)| DeviceConfig {
        name: format!("echo:{index}"),
        index: index as u32,
        pages: 4,
        pin: None,
        kind,
        only_waits: false,
    };
    let config = ControllerConfig {
        scheduler: scheduler::Config::clockwork(),
        max_requests: 4,
        page_bytes: 1,
        cells: deal(kinds[0].iter().enumerate().map(device).collect(), 1, cells).unwrap(),
        online_profile_share: 0.0,
        limits: ExecutionLimits::default(),
    };
    let controller = Controller::start(config, Metrics::new()).unwrap();
    if kinds.len() > 1 {
        let shares = kinds.iter().map(|kinds| kinds.iter().map(|&kind| f64::from(kind + 1) / 10.0).collect()).collect();
        let kinds = kinds.iter().map(|kinds| kinds.to_vec()).collect();
        controller.set_divisions(Divisions::new(Arc::new(echo.clone()), shares, kinds));
    }
    let mut config = ManagerConfig::new(repository.to_owned(), Arc::new(echo.clone()));
    config.cache = Some(cache.to_owned());
    config.effort = ProfilingEffort { runs: 3, budget: Duration::from_secs(60) };
    let registry = Registry::default();
    let manager = Manager::start(controller.clone(), registry.clone(), config).unwrap();
    manager.wait_until_started();
    let catalogue = registry.catalogue();
    let state = catalogue.models["echo"].default_version().unwrap().state();
    assert!(matches!(state, ModelState::Ready(_)), "it must be ready");
    (controller, registry, manager)
}

/// A repository with the model, which is warmed up with zeros, and a folder for measurements.
fn folders() -> [tempfile::TempDir; 2] {
    let config = "max_batch_size: 1 model_warmup { name: \"zeros\" batch_size: 1 inputs { key: \"x\" value { data_type: TYPE_UINT8 dims: 1 zero_data: true } } }";
    let [repository, cache] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    std::fs::create_dir_all(repository.path().join("echo/1")).unwrap();
    std::fs::write(repository.path().join("echo/1/model.onnx"), "any").unwrap();
    std::fs::write(repository.path().join("echo/config.pbtxt"), config).unwrap();
    [repository, cache]
}

fn all_of(division: usize, devices: &[u32]) -> Vec<(usize, u32)> {
    devices.iter().map(|&device| (division, device)).collect()
}

#[test]
fn a_model_is_measured_on_each_kind_of_device_and_warmed_up_on_all() {
    for cells in [1, 3] {
        let [repository, cache] = folders();
        let first = Echo::new();
        // The slowest isn't the first one.
        bring_up(&first, &[&[1, 1, 0, 2]], cells, repository.path(), cache.path());
        assert_eq!((first.places(MEASURED), first.places(0)), (all_of(0, &[0, 2, 3]), all_of(0, &[0, 1, 2, 3])));
        // All of it was kept.
        let second = Echo::new();
        let (_controller, registry, _manager) =
            bring_up(&second, &[&[1, 1, 0, 2]], cells, repository.path(), cache.path());
        assert_eq!((second.places(MEASURED), second.places(0)), (vec![], all_of(0, &[0, 1, 2, 3])));
        // What was measured may be wrong, on any kind.
        let catalogue = registry.catalogue();
        let served = catalogue.models["echo"].default_version().unwrap().serving().unwrap();
        let record = &served.model().unwrap().record;
        assert!(record.elsewhere.iter().chain([&record.profile]).all(LatencyProfile::is_doubted));
        assert_eq!(record.elsewhere.len(), 2);
    }
}

#[test]
fn shares_change_while_a_model_is_served() {
    for cells in [1, 2] {
        change_shares(cells);
    }
}

fn change_shares(cells: u32) {
    let [repository, cache] = folders();
    let echo = Echo::new();
    let (controller, registry, _manager) = bring_up(&echo, &[&[1, 1], &[0, 2]], cells, repository.path(), cache.path());
    // The sizes that are only in the second division are measured there.
    assert_eq!(echo.places(MEASURED), [(0, 0), (1, 0), (1, 1)]);
    let ask = |value: u8| {
        let model =
            registry.catalogue().models["echo"].default_version().unwrap().serving().unwrap().model().unwrap().id;
        let input = Tensor { datatype: DataType::Uint8, shape: vec![1, 1], data: Bytes::from(vec![value]) };
        let (_, answer) = submit(&controller, model, input);
        controller.drive();
        let Reply::Outputs(outputs) = answer.blocking_recv().unwrap() else { panic!("{value} was refused") };
        assert_eq!(outputs[0].data[..], [value]);
    };
    let divisions = |value: u8| echo.places(value).iter().map(|place| place.0).collect::<Vec<_>>();
    ask(10);
    controller.divide(&[0.1, 0.3]).unwrap();
    ask(11);
    controller.divide(&[0.2, 0.2]).unwrap();
    ask(12);
    assert_eq!([10, 11, 12].map(divisions), [[0], [1], [0]]);
    let division = controller.division().unwrap();
    assert_eq!((division.shares, division.possible.len()), (Some(vec![0.2, 0.2]), 2));
    let refused = controller.divide(&[0.5, 0.5]).unwrap_err();
    assert_eq!(refused, "shares 0.5,0.5 were not prepared: there are 0.2,0.2 and 0.1,0.3");
}

#[test]
fn where_nothing_was_prepared_nothing_can_be_changed() {
    let [repository, cache] = folders();
    let (controller, _registry, _manager) = bring_up(&Echo::new(), &[&[0]], 1, repository.path(), cache.path());
    assert_eq!(controller.division(), None);
    assert!(controller.divide(&[1.0]).unwrap_err().contains("--devices"));
}

#[test]
fn whoever_still_has_an_old_catalogue_does_not_keep_the_weights() {
    let [repository, cache] = folders();
    let echo = Echo::new();
    let (_controller, registry, _manager) = bring_up(&echo, &[&[0]], 1, repository.path(), cache.path());
    let old = registry.catalogue();
    std::fs::remove_dir_all(repository.path().join("echo")).unwrap();
    // This one, and the engine.
    until("all to let go of the weights", || Arc::strong_count(&echo.runs) == 2);
    assert!(old.models["echo"].default_version().unwrap().serving().is_some());
    assert!(registry.catalogue().models.is_empty());
}
