//! Devices of several kinds, as shares of a GPU are: a model is measured on one of each, and warmed up on all.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

use base::{DataType, Duration, ModelSignature, TensorSpec};
use controller::{Controller, ControllerConfig, DeviceConfig, Effort, Manager, ManagerConfig, ModelState};
use engine::{Engine, EngineError, Loaded, ModelSource, Prepared, TensorView};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use telemetry::Metrics;

/// A model that gives its input back, and counts its executions by device and value.
#[derive(Clone)]
struct Echo {
    signature: ModelSignature,
    runs: Arc<Mutex<BTreeMap<(u32, u8), usize>>>,
}

impl Echo {
    fn new() -> Self {
        let spec = |name: &str| TensorSpec { name: name.into(), datatype: DataType::Uint8, dims: vec![-1, 1] };
        let signature = ModelSignature { inputs: vec![spec("x")], outputs: vec![spec("y")], max_batch: 1 };
        Self { signature, runs: Arc::default() }
    }

    /// On how many of the devices so a value was computed.
    fn devices(&self, value: u8) -> Vec<u32> {
        let runs = self.runs.lock().unwrap();
        runs.keys().filter(|&&(_, computed)| computed == value).map(|&(device, _)| device).collect()
    }
}

impl Engine for Echo {
    fn name(&self) -> &'static str {
        "echo"
    }
    fn prepare(&self, _source: &ModelSource) -> Result<Arc<dyn Prepared>, EngineError> {
        Ok(Arc::new(self.clone()))
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
        Ok(Box::new(OnDevice { device, echo: self.clone() }))
    }
}

struct OnDevice {
    device: u32,
    echo: Echo,
}

impl Loaded for OnDevice {
    fn execute(
        &mut self,
        inputs: &[TensorView<'_>],
        sink: &mut dyn FnMut(usize, TensorView<'_>),
    ) -> Result<(), EngineError> {
        *self.echo.runs.lock().unwrap().entry((self.device, inputs[0].data[0])).or_default() += 1;
        sink(0, TensorView { datatype: DataType::Uint8, shape: inputs[0].shape, data: inputs[0].data });
        Ok(())
    }
}

/// Brings the model up on devices of these kinds, with this folder to keep measurements in.
fn bring_up(echo: &Echo, kinds: &[u32], repository: &Path, cache: &Path) {
    let device = |(index, &kind): (usize, &u32)| DeviceConfig {
        name: format!("echo:{index}"),
        index: index as u32,
        pages: 4,
        pin: None,
        kind,
    };
    let config = ControllerConfig {
        scheduler: scheduler::Config::default(),
        max_requests: 4,
        page_bytes: 1,
        devices: kinds.iter().enumerate().map(device).collect(),
        online_profile_share: 0.0,
    };
    let controller = Controller::start(config, Metrics::new()).unwrap();
    let mut config = ManagerConfig::new(repository.to_owned(), Arc::new(echo.clone()));
    config.cache = Some(cache.to_owned());
    config.effort = Effort { runs: 3, budget: Duration::from_secs(60) };
    let manager = Manager::start(controller.clone(), config).unwrap();
    manager.wait_until_started();
    let catalogue = controller.catalogue();
    let state = &catalogue.models["echo"].default_version().unwrap().state;
    assert!(matches!(state, ModelState::Ready(_)), "it must be ready");
}

#[test]
fn a_model_is_measured_on_each_kind_of_device_and_warmed_up_on_all() {
    // Measurements are with ones, warming up is with zeros.
    let config = "max_batch_size: 1 model_warmup { name: \"zeros\" batch_size: 1 inputs { key: \"x\" value { data_type: TYPE_UINT8 dims: 1 zero_data: true } } }";
    let [repository, cache] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    std::fs::create_dir_all(repository.path().join("echo/1")).unwrap();
    std::fs::write(repository.path().join("echo/1/model.onnx"), "any").unwrap();
    std::fs::write(repository.path().join("echo/config.pbtxt"), config).unwrap();
    let first = Echo::new();
    // The slowest isn't the first one.
    bring_up(&first, &[1, 1, 0, 2], repository.path(), cache.path());
    assert_eq!((first.devices(1), first.devices(0)), (vec![0, 2, 3], vec![0, 1, 2, 3]));
    // All of it was kept.
    let second = Echo::new();
    bring_up(&second, &[1, 1, 0, 2], repository.path(), cache.path());
    assert_eq!((second.devices(1), second.devices(0)), (vec![], vec![0, 1, 2, 3]));
}
