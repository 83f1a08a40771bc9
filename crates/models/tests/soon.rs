//! With an engine that prepares models soon, they are ready by rule, and replaced by better ones when these are there.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

mod common;

use base::{DataType, ModelSignature, Precision, TensorSpec};
use common::{folders, submit, until, wait};
use controller::{Controller, ControllerConfig, DeviceConfig, Reply, Tensor};
use engine::{AtOnce, Engine, EngineError, Loaded, ModelSource, Prepared, Purpose, Sink, TensorView, at_once};
use models::{Manager, ManagerConfig, ProfilingEffort, Registry, ServedModel};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use telemetry::Metrics;

/// What the engine was asked for, and what it may do.
#[derive(Default)]
struct Workshop {
    /// Every preparation: in what, for what, and whether soon.
    prepared: Vec<(Precision, Purpose, bool)>,
    /// Files whose kernels were measured.
    measured: BTreeSet<String>,
    /// Preparations that take their time wait for this.
    open: bool,
    /// Preparations of models that should be ready soon wait until so many are under way.
    together: usize,
    under_way: usize,
    /// Taking one's time fails.
    fails: bool,
}

/// An engine whose models add 1 to a number, and 10 if they were prepared by rule. Half precision is off by nothing.
#[derive(Clone, Default)]
struct Hasty(Arc<(Mutex<Workshop>, Condvar)>, Arc<()>);

impl Hasty {
    fn new(workshop: Workshop) -> Self {
        Self(Arc::new((Mutex::new(workshop), Condvar::new())), Arc::default())
    }

    fn change(&self, change: impl FnOnce(&mut Workshop)) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }

    fn take_prepared(&self) -> Vec<(Precision, Purpose, bool)> {
        std::mem::take(&mut self.0.0.lock().unwrap().prepared)
    }

    /// Waits as the workshop says. Whether the model's kernels are by rule.
    fn work(&self, source: &ModelSource) -> Result<bool, EngineError> {
        let mut workshop = self.0.0.lock().unwrap();
        workshop.prepared.push((source.precision.unwrap(), source.purpose, source.soon));
        if source.soon {
            workshop.under_way += 1;
            self.0.1.notify_all();
            drop(self.0.1.wait_while(workshop, |workshop| workshop.under_way < workshop.together).unwrap());
            return Ok(!self.0.0.lock().unwrap().measured.contains(&source.name));
        }
        while !workshop.open && source.purpose != Purpose::Draft {
            if source.given_up.load(Ordering::Relaxed) {
                return Err(EngineError::bad_model(&source.file, "it was given up"));
            }
            let short = std::time::Duration::from_millis(5);
            workshop = self.0.1.wait_timeout(workshop, short).unwrap().0;
        }
        match workshop.fails {
            true => Err(EngineError::bad_model(&source.file, "no kernel could be measured")),
            false => {
                workshop.measured.insert(source.name.clone());
                Ok(false)
            }
        }
    }
}

impl Engine for Hasty {
    fn name(&self) -> &'static str {
        "hasty"
    }
    fn prepare(&self, source: &ModelSource) -> Result<Arc<dyn Prepared>, EngineError> {
        let (by_rule, precision) = (self.work(source)?, source.precision.unwrap());
        Ok(Arc::new(Net { by_rule, precision, _counted: Arc::clone(&self.1) }))
    }
    fn prepares_soon(&self) -> bool {
        true
    }
    fn precisions(&self) -> &[Precision] {
        &[Precision::Fp16, Precision::Fp32]
    }
}

struct Net {
    by_rule: bool,
    precision: Precision,
    _counted: Arc<()>,
}

impl Prepared for Net {
    fn signature(&self) -> &ModelSignature {
        static SIGNATURE: std::sync::OnceLock<ModelSignature> = std::sync::OnceLock::new();
        SIGNATURE.get_or_init(|| {
            let spec = |name: &str| TensorSpec { name: name.into(), datatype: DataType::Fp32, dims: vec![-1, 1] };
            ModelSignature { inputs: vec![spec("x")], outputs: vec![spec("y")], max_batch: 4 }
        })
    }
    fn weight_bytes(&self) -> u64 {
        1
    }
    fn precision(&self) -> Option<Precision> {
        Some(self.precision)
    }
    fn is_provisional(&self) -> bool {
        self.by_rule
    }
    fn load(&self, _device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        Ok(at_once(OnDevice { by_rule: self.by_rule, output: None }))
    }
}

struct OnDevice {
    by_rule: bool,
    output: Option<Tensor>,
}

impl AtOnce for OnDevice {
    fn compute(&mut self, inputs: &[TensorView<'_>]) -> Result<(), EngineError> {
        let TensorView { datatype, shape, data } = inputs[0];
        let added = if self.by_rule { 11.0 } else { 1.0 };
        let add = |number: &[u8]| (f32::from_le_bytes(number.try_into().unwrap()) + added).to_le_bytes();
        let data: Vec<u8> = data.chunks(4).flat_map(add).collect();
        self.output = Some(Tensor { datatype, shape: shape.to_vec(), data: data.into() });
        Ok(())
    }
    fn hand_out(&mut self, sink: &mut Sink<'_>) -> Result<(), EngineError> {
        self.output.iter().for_each(|output| sink(0, output.view()));
        Ok(())
    }
}

struct Server {
    controller: Controller,
    registry: Registry,
    manager: Option<Manager>,
}

impl Server {
    fn start(engine: &Hasty, repository: &Path, cache: &Path) -> Self {
        Self::start_with(engine, repository, cache, true)
    }

    fn start_with(engine: &Hasty, repository: &Path, cache: &Path, ready_soon: bool) -> Self {
        let device = DeviceConfig { name: "net:0".into(), index: 0, pages: 8, pin: None, kind: 0, only_waits: false };
        let config = ControllerConfig {
            scheduler: scheduler::Config::default(),
            max_requests: 64,
            page_bytes: 1 << 20,
            cells: vec![vec![device]],
            online_profile_share: 0.0,
            limits: controller::ExecutionLimits::default(),
        };
        let controller = Controller::start(config, Metrics::new()).unwrap();
        let mut config = ManagerConfig::new(repository.to_owned(), Arc::new(engine.clone()));
        (config.cache, config.ready_soon) = (Some(cache.to_owned()), ready_soon);
        config.max_preparing = LIMIT;
        config.effort = ProfilingEffort { runs: 3, budget: base::Duration::ZERO };
        let registry = Registry::default();
        let manager = Manager::start(controller.clone(), registry.clone(), config).unwrap();
        manager.wait_until_started();
        Self { controller, registry, manager: Some(manager) }
    }

    fn served(&self) -> ServedModel {
        let catalogue = self.registry.catalogue();
        let entry = catalogue.models["net"].default_version().unwrap();
        entry.serving().unwrap_or_else(|| panic!("{:?}", entry.state())).clone()
    }

    fn computed_in(&self) -> String {
        let said = self.served().config.parameters.get("computed_in").map(|said| said.string_value.clone());
        said.unwrap_or_default()
    }

    /// What the model of that number makes of 0.
    fn ask(&self, served: &ServedModel) -> f32 {
        let input = Tensor { datatype: DataType::Fp32, shape: vec![1, 1], data: vec![0; 4].into() };
        let (_, answer) = submit(&self.controller, served.model().unwrap().id, input);
        self.controller.drive();
        match wait(answer) {
            Reply::Outputs(outputs) => f32::from_le_bytes(outputs[0].data[..].try_into().unwrap()),
            refused => panic!("{refused:?}"),
        }
    }

    fn broken_invariants(&self) -> Vec<String> {
        let text = self.controller.metrics().render();
        let violations = text.lines().filter(|line| line.starts_with("punctual_invariant_violations_total{"));
        violations.filter(|line| !line.ends_with(" 0")).map(str::to_owned).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.manager.take());
        self.controller.stop();
    }
}

/// For how long a model may be prepared.
const LIMIT: base::Duration = base::Duration::from_secs(5);

const SOON: (Precision, Purpose, bool) = (Precision::Fp32, Purpose::Service, true);

#[test]
fn a_model_is_ready_by_rule_in_32_bits_and_replaced_without_a_request_lost() {
    let [repository, cache] = folders("");
    let engine = Hasty::default();
    let server = Server::start(&engine, repository.path(), cache.path());
    let first = server.served();
    assert_eq!((server.ask(&first), server.computed_in().as_str()), (11.0, ""));
    assert_eq!(engine.take_prepared()[0], SOON);
    engine.change(|workshop| workshop.open = true);
    // Requests for the old number come all the time.
    until("the better one", || server.ask(&first) == 1.0);
    let second = server.served();
    assert_ne!(first.model().unwrap().id, second.model().unwrap().id);
    assert_eq!((server.ask(&second), server.ask(&first)), (1.0, 1.0), "who looked it up before is sent on");
    assert_eq!(server.computed_in(), "fp16, whose outputs are off by 0.0e0 of their range");
    let prepared = engine.take_prepared();
    assert_eq!(prepared.last(), Some(&(Precision::Fp16, Purpose::Service, false)), "{prepared:?}");
    // The test's engine and the server's, and the one model that is left.
    until("the first one to be freed", || Arc::strong_count(&engine.1) == 3);
    assert_eq!(server.broken_invariants(), [""; 0]);
}

#[test]
fn what_is_known_of_a_model_is_taken_at_the_next_start_and_nothing_is_improved() {
    let [repository, cache] = folders("");
    let engine = Hasty::new(Workshop { open: true, ..Workshop::default() });
    let server = Server::start(&engine, repository.path(), cache.path());
    let first = server.served();
    until("the better one", || server.ask(&first) == 1.0);
    drop(server);
    engine.take_prepared();
    let server = Server::start(&engine, repository.path(), cache.path());
    assert_eq!(server.ask(&server.served()), 1.0);
    assert!(server.computed_in().starts_with("fp16"));
    drop(server);
    assert_eq!(engine.take_prepared(), [(Precision::Fp16, Purpose::Service, true)]);
}

#[test]
fn what_cant_be_improved_stays_as_it_was() {
    let [repository, cache] = folders("");
    let engine = Hasty::new(Workshop { open: true, fails: true, ..Workshop::default() });
    let server = Server::start(&engine, repository.path(), cache.path());
    let first = server.served();
    until("an attempt", || engine.0.0.lock().unwrap().prepared.contains(&(Precision::Fp32, Purpose::Service, false)));
    assert_eq!(server.ask(&first), 11.0);
    drop(server);
}

#[test]
fn a_named_precision_is_obeyed_from_the_first_request_on() {
    let [repository, cache] = folders("parameters { key: \"precision\" value { string_value: \"fp16\" } }");
    let engine = Hasty::default();
    let server = Server::start(&engine, repository.path(), cache.path());
    assert_eq!(engine.take_prepared()[0], (Precision::Fp16, Purpose::Service, true));
    assert_eq!(server.ask(&server.served()), 11.0);
}

#[test]
fn who_wants_it_has_everything_measured_before_a_model_is_ready() {
    let [repository, cache] = folders("");
    let engine = Hasty::new(Workshop { open: true, ..Workshop::default() });
    let server = Server::start_with(&engine, repository.path(), cache.path(), false);
    assert_eq!(server.ask(&server.served()), 1.0);
    assert!(engine.take_prepared().iter().all(|(.., soon)| !soon));
}

#[test]
fn what_waits_for_idle_time_may_wait_longer_than_a_model_may_be_prepared() {
    let [repository, cache] = folders("");
    let engine = Hasty::default();
    let server = Server::start(&engine, repository.path(), cache.path());
    let first = server.served();
    until("a trial", || engine.0.0.lock().unwrap().prepared.contains(&(Precision::Fp16, Purpose::Trial, false)));
    std::thread::sleep((LIMIT + LIMIT / 2).into());
    engine.change(|workshop| workshop.open = true);
    until("the better one", || server.ask(&first) == 1.0);
}

#[test]
fn several_models_are_brought_up_at_a_time() {
    let [repository, cache] = folders("");
    std::fs::create_dir_all(repository.path().join("other/1")).unwrap();
    std::fs::write(repository.path().join("other/1/model.onnx"), "another").unwrap();
    // The first waits for the second: one after the other would take for ever.
    let engine = Hasty::new(Workshop { together: 2, ..Workshop::default() });
    let server = Server::start(&engine, repository.path(), cache.path());
    assert_eq!(server.ask(&server.served()), 11.0);
}

#[test]
fn a_server_that_goes_down_does_not_wait_for_what_takes_its_time() {
    let [repository, cache] = folders("");
    let engine = Hasty::default();
    let server = Server::start(&engine, repository.path(), cache.path());
    until("a trial", || engine.0.0.lock().unwrap().prepared.contains(&(Precision::Fp16, Purpose::Trial, false)));
    drop(server);
    let kept = std::fs::read_dir(cache.path().join("precisions")).map_or(0, Iterator::count);
    assert_eq!(kept, 0, "what was given up shows nothing of a precision");
}
