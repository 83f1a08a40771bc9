//! Executions that never end, in the real runtime: they are broken off, and everybody else is served.
#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

mod common;
#[path = "../../engine-ort/tests/common/rounds.rs"]
mod rounds;

use base::{DataType, Duration, ModelSignature, Reason};
use common::{submit, until, wait};
use controller::{Controller, ControllerConfig, DeviceConfig, ExecutionLimits, Refusal, Reply, Tensor, Ticket};
use engine::{Engine, EngineError, Inputs, Loaded, ModelSource, Prepared, Staged};
use engine_ort::{OrtEngine, OrtOptions};
use models::{Manager, ManagerConfig, ModelState, ProfilingEffort, Registry};
use rounds::{ENDLESS, Round};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use telemetry::Metrics;
use tokio::sync::oneshot;

/// Far more than a few rounds take on any machine, and nothing against 2^62.
const LIMIT: Duration = Duration::from_secs(3);

/// So that models whose rounds the input gives are measured with none.
const NO_ROUNDS: &str = r#"
max_batch_size: 0
model_warmup { name: "none" inputs { key: "rounds" value { data_type: TYPE_INT64 dims: 1 zero_data: true } } }
"#;

const EFFORT: ProfilingEffort = ProfilingEffort { runs: 3, budget: Duration::from_millis(10) };

fn config(limits: ExecutionLimits) -> ControllerConfig {
    let device = DeviceConfig { name: "cpu:0".into(), index: 0, pages: 100, pin: None, kind: 0, only_waits: false };
    ControllerConfig {
        scheduler: scheduler::Config::default(),
        max_requests: 64,
        page_bytes: 1 << 20,
        cells: vec![vec![device]],
        online_profile_share: 0.0,
        limits,
    }
}

struct Server {
    controller: Controller,
    registry: Registry,
    metrics: Metrics,
    manager: Option<Manager>,
    repository: tempfile::TempDir,
}

impl Server {
    /// Serves models, by name, on one device.
    fn start(models: &[(&str, Option<i64>, Round)]) -> Self {
        Self::start_with(models, ExecutionLimits { most: LIMIT, ..ExecutionLimits::default() })
    }

    fn start_with(models: &[(&str, Option<i64>, Round)], limits: ExecutionLimits) -> Self {
        let repository = tempfile::tempdir().unwrap();
        models.iter().for_each(|(name, rounds, round)| write(repository.path(), name, *rounds, *round));
        let metrics = Metrics::new();
        let controller = Controller::start(config(limits), metrics.clone()).unwrap();
        let registry = Registry::default();
        let engine = Arc::new(OrtEngine::new(&OrtOptions::default()).unwrap());
        let config = ManagerConfig { effort: EFFORT, ..ManagerConfig::new(repository.path().to_owned(), engine) };
        let manager = Manager::start(controller.clone(), registry.clone(), config).unwrap();
        manager.wait_until_started();
        Self { controller, registry, metrics, manager: Some(manager), repository }
    }

    /// A request without a deadline.
    fn submit(&self, model: &str, rounds: i64) -> (Option<Ticket>, oneshot::Receiver<Reply>) {
        let catalogue = self.registry.catalogue();
        let served = catalogue.models[model].default_version().unwrap().serving().unwrap();
        let (datatype, data) = (served.signature.inputs[0].datatype, rounds.to_le_bytes());
        let data = if datatype == DataType::Int64 { data.to_vec() } else { vec![0; 4] };
        let submitted = submit(
            &self.controller,
            served.model().unwrap().id,
            Tensor { datatype, shape: vec![1], data: data.into() },
        );
        self.controller.drive();
        submitted
    }

    fn ask(&self, model: &str, rounds: i64) -> Reply {
        wait(self.submit(model, rounds).1)
    }

    /// Asks until there is a device again.
    fn ask_with_patience(&self, model: &str, rounds: i64) -> Reply {
        loop {
            match self.ask(model, rounds) {
                Reply::Refused(Refusal { reason: Reason::NoDevice, .. }) => std::thread::yield_now(),
                reply => return reply,
            }
        }
    }

    fn losses(&self) -> bool {
        let text = self.metrics.render();
        text.lines().any(|line| line.starts_with("punctual_device_losses_total{") && !line.ends_with(" 0"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.manager.take());
        self.controller.stop();
    }
}

fn write(repository: &Path, name: &str, rounds: Option<i64>, round: Round) {
    let folder = repository.join(name);
    std::fs::create_dir_all(folder.join("1")).unwrap();
    std::fs::write(folder.join("1/model.onnx"), rounds::model(rounds, round)).unwrap();
    if rounds.is_none() {
        std::fs::write(folder.join("config.pbtxt"), NO_ROUNDS).unwrap();
    }
}

fn sum(reply: &Reply) -> f32 {
    let Reply::Outputs(outputs) = reply else { panic!("{reply:?}") };
    f32::from_le_bytes(outputs[0].data[..].try_into().unwrap())
}

#[test]
fn a_model_that_hangs_while_it_is_measured_is_broken_and_the_others_are_served() {
    let server = Server::start(&[
        ("before", None, Round::Adds),
        ("endless", Some(ENDLESS), Round::Adds),
        ("later", Some(5), Round::Adds),
    ]);
    let catalogue = server.registry.catalogue();
    let ModelState::Broken(reason) = catalogue.models["endless"].versions[&1].state() else { panic!("it is served") };
    assert_eq!(reason, "a run takes longer than 3000ms, the limit of --max-execution-ms, and was broken off");
    assert_eq!((sum(&server.ask("before", 4)), sum(&server.ask("later", 0))), (4.0, 5.0));
    // Also one that comes while the others are served.
    write(server.repository.path(), "new", Some(ENDLESS), Round::Adds);
    until("the new one to be known", || server.registry.catalogue().models.contains_key("new"));
    let is_broken = || {
        let catalogue = server.registry.catalogue();
        matches!(catalogue.models["new"].versions[&1].state(), ModelState::Broken(_))
    };
    until("the new one to be broken", || {
        assert_eq!(sum(&server.ask("before", 4)), 4.0);
        is_broken()
    });
    assert!(!server.losses(), "the device goes on");
}

#[test]
fn an_execution_that_hangs_is_broken_off_its_model_rests_and_the_others_go_on() {
    let server = Server::start(&[("hangs", None, Round::Adds), ("other", None, Round::Adds)]);
    assert_eq!(sum(&server.ask("hangs", 3)), 3.0);
    let reply = server.ask("hangs", ENDLESS);
    let Reply::Refused(Refusal { reason, why, .. }) = &reply else { panic!("{reply:?}") };
    assert_eq!((*reason, why.as_str()), (Reason::BrokenOff, "it took longer than 3000ms, which is more than it may"));
    // It rests for as long as it kept the device from others, once the driver knows.
    until("its rest", || match server.ask("hangs", 3) {
        Reply::Outputs(_) => false,
        Reply::Refused(Refusal { reason, why, .. }) => {
            assert!(reason == Reason::ExecutionFailed && why.contains("it is tried again in"), "{reason}: {why}");
            true
        }
    });
    assert_eq!(sum(&server.ask("other", 7)), 7.0);
    until("its rest to be over", || matches!(server.ask("hangs", 3), Reply::Outputs(_)));
    assert!(!server.losses(), "the device goes on");
}

#[test]
fn what_nothing_breaks_off_costs_its_device_which_comes_back_and_serves_the_others() {
    let server = Server::start(&[("stuck", None, Round::Nothing), ("other", None, Round::Adds)]);
    let (ticket, _answer) = server.submit("stuck", ENDLESS);
    let mut lost = None;
    until("the request to be lost", || {
        lost = server.controller.is_lost(ticket.unwrap());
        lost.is_some()
    });
    let Refusal { reason, why, .. } = lost.unwrap();
    assert_eq!(reason, Reason::ExecutionFailed);
    assert!(why.starts_with("an execution hangs on cpu:0: it has taken "), "{why}");
    assert_eq!(sum(&server.ask_with_patience("other", 7)), 7.0);
    assert!(server.losses());
    until("all slots to be free", || server.controller.in_hand() == 0);
    assert_eq!(server.controller.stuck(), None);
}

#[test]
fn a_model_that_nothing_breaks_off_while_it_is_measured_is_broken_and_the_others_are_served() {
    let server = Server::start(&[("other", None, Round::Adds), ("stuck", Some(ENDLESS), Round::Nothing)]);
    let catalogue = server.registry.catalogue();
    let ModelState::Broken(reason) = catalogue.models["stuck"].versions[&1].state() else { panic!("it is served") };
    assert_eq!(reason, "a run takes longer than 3000ms, the limit of --max-execution-ms, and can't be broken off");
    assert_eq!(sum(&server.ask_with_patience("other", 7)), 7.0);
}

#[test]
fn a_device_that_hangs_and_cant_be_started_anew_ends_liveness() {
    let limits = ExecutionLimits { most: LIMIT, comes_back: false };
    let server = Server::start_with(&[("stuck", None, Round::Nothing)], limits);
    assert_eq!(server.controller.stuck(), None);
    let (_, _answer) = server.submit("stuck", ENDLESS);
    until("the end of liveness", || server.controller.stuck().is_some());
    assert_eq!(server.controller.stuck().unwrap(), "device cpu:0 is lost and can't be started anew");
    let reply = server.ask("stuck", 1);
    assert!(matches!(reply, Reply::Refused(_)), "{reply:?}");
}

/// An engine that hangs while it prepares the models whose name says so.
struct HangsAtPreparing(OrtEngine);

impl Engine for HangsAtPreparing {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn prepare(&self, source: &ModelSource) -> Result<Arc<dyn Prepared>, EngineError> {
        while source.name.starts_with("hangs") {
            std::thread::park();
        }
        while source.name.starts_with("gives-up") {
            std::thread::sleep(std::time::Duration::from_millis(10));
            if source.given_up.load(Ordering::Relaxed) {
                return Err(EngineError::bad_model(&source.file, "it was given up"));
            }
        }
        self.0.prepare(source)
    }
}

#[test]
fn a_model_that_hangs_while_it_is_prepared_is_left_behind_and_the_others_are_served() {
    let repository = tempfile::tempdir().unwrap();
    for name in ["before", "gives-up", "hangs-1", "hangs-2", "later"] {
        write(repository.path(), name, Some(5), Round::Adds);
    }
    let controller = Controller::start(config(ExecutionLimits::default()), Metrics::new()).unwrap();
    let engine = Arc::new(HangsAtPreparing(OrtEngine::new(&OrtOptions::default()).unwrap()));
    let config = ManagerConfig::new(repository.path().to_owned(), engine);
    let config = ManagerConfig { effort: EFFORT, max_preparing: LIMIT, ..config };
    let registry = Registry::default();
    let manager = Manager::start(controller.clone(), registry.clone(), config).unwrap();
    manager.wait_until_started();
    let is_served = |name: &str| registry.catalogue().models[name].versions[&1].serving().is_some();
    assert!(is_served("before") && is_served("later"));
    let catalogue = registry.catalogue();
    let ModelState::Broken(reason) = catalogue.models["hangs-1"].versions[&1].state() else { panic!("it is served") };
    assert_eq!(reason, "it takes longer than 3000ms, the limit of --max-preparing-s, to prepare it: it is left behind");
    let ModelState::Broken(reason) = catalogue.models["gives-up"].versions[&1].state() else { panic!("it is served") };
    assert_eq!(reason, "it takes longer than 3000ms, the limit of --max-preparing-s, to prepare it: it was ended");
    assert_eq!(controller.stuck(), None, "others can be prepared");
    for name in ["hangs-3", "hangs-4"] {
        write(repository.path(), name, Some(5), Round::Adds);
    }
    until("the end of liveness", || controller.stuck().is_some());
    let stuck = controller.stuck().unwrap();
    assert_eq!(stuck, "models hang while they are prepared: hangs-1, hangs-2, hangs-3, hangs-4");
    drop(manager);
    controller.stop();
}

/// An engine that loses its device so often.
struct Loses(OrtEngine, Arc<AtomicU32>);

struct LosesModel(Arc<dyn Prepared>, Arc<AtomicU32>);

struct LosesBatches(Box<dyn Loaded>, Arc<AtomicU32>);

impl Engine for Loses {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn prepare(&self, source: &ModelSource) -> Result<Arc<dyn Prepared>, EngineError> {
        Ok(Arc::new(LosesModel(self.0.prepare(source)?, Arc::clone(&self.1))))
    }
}

impl Prepared for LosesModel {
    fn signature(&self) -> &ModelSignature {
        self.0.signature()
    }

    fn weight_bytes(&self) -> u64 {
        self.0.weight_bytes()
    }

    fn load(&self, device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        Ok(Box::new(LosesBatches(self.0.load(device)?, Arc::clone(&self.1))))
    }
}

impl Loaded for LosesBatches {
    fn there_at(&self) -> Option<std::time::Instant> {
        None
    }

    fn stage(&mut self, inputs: &mut dyn Inputs) -> Result<Box<dyn Staged>, EngineError> {
        let left = self.1.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        match left {
            Ok(_) => Err(EngineError::Lost { reason: "its process has ended".into(), blameless: false }),
            Err(_) => self.0.stage(inputs),
        }
    }
}

#[test]
fn a_model_that_is_measured_while_its_device_is_lost_has_one_more_try() {
    for (losses, reason) in [(1, None), (2, Some("the device was lost: its process has ended"))] {
        let repository = tempfile::tempdir().unwrap();
        write(repository.path(), "measured", Some(5), Round::Adds);
        let controller = Controller::start(config(ExecutionLimits::default()), Metrics::new()).unwrap();
        let engine = Loses(OrtEngine::new(&OrtOptions::default()).unwrap(), Arc::new(AtomicU32::new(losses)));
        let config = ManagerConfig::new(repository.path().to_owned(), Arc::new(engine));
        let registry = Registry::default();
        let config = ManagerConfig { effort: EFFORT, ..config };
        let manager = Manager::start(controller.clone(), registry.clone(), config).unwrap();
        manager.wait_until_started();
        let found = match registry.catalogue().models["measured"].versions[&1].state() {
            ModelState::Broken(reason) => Some(reason.clone()),
            _ => None,
        };
        assert_eq!(found.as_deref(), reason, "after {losses} losses");
        drop(manager);
        controller.stop();
    }
}
