//! What evidence showed of a precision is put to the test by live requests, in idle time.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

mod common;

use base::{DataType, DeviceId, Duration, ModelSignature, Precision, TensorSpec};
use common::{clocked, folders, submit, until, wait};
use controller::{Controller, ControllerConfig, DeviceConfig, ExecutionLimits, NotYet, Reply, Tensor};
use engine::{AtOnce, Engine, EngineError, Loaded, ModelSource, Prepared, Purpose, Sink, TensorView, at_once};
use models::{Manager, ManagerConfig, ProfilingEffort, Registry, ServedModel};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use telemetry::Metrics;
use tokio::sync::oneshot;

/// What the engine was asked for, and what it may do.
#[derive(Default)]
struct Workshop {
    /// Every preparation: of which model, in what, for what.
    prepared: Vec<(String, Precision, Purpose)>,
    /// Preparations in 32 bits that are to be compared wait, until they are given up.
    drafts_wait: bool,
    /// What is prepared in this for that can't be loaded.
    no_room_for: Option<(Precision, Purpose)>,
    /// Executions of a row that begins with [`HELD`] wait, and whether one does.
    holds: bool,
    held: bool,
}

/// An engine whose models are right in 16 bits up to a thousand, in TF32 up to a million, and else off by 0.3.
#[derive(Clone, Default)]
struct Bounded(Arc<(Mutex<Workshop>, Condvar)>);

impl Bounded {
    fn change(&self, change: impl FnOnce(&mut Workshop)) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }

    fn take_prepared(&self) -> Vec<(String, Precision, Purpose)> {
        std::mem::take(&mut self.0.0.lock().unwrap().prepared)
    }

    /// How often something was prepared so far.
    fn count(&self, model: &str, precision: Precision, purpose: Purpose) -> usize {
        let wanted = (model.to_owned(), precision, purpose);
        self.0.0.lock().unwrap().prepared.iter().filter(|prepared| **prepared == wanted).count()
    }
}

impl Engine for Bounded {
    fn name(&self) -> &'static str {
        "bounded"
    }
    fn prepare(&self, source: &ModelSource) -> Result<Arc<dyn Prepared>, EngineError> {
        let precision = source.precision.unwrap();
        let mut workshop = self.0.0.lock().unwrap();
        workshop.prepared.push((source.name.clone(), precision, source.purpose));
        while workshop.drafts_wait && source.purpose == Purpose::Draft {
            if source.given_up.load(Ordering::Relaxed) {
                return Err(EngineError::bad_model(&source.file, "it was given up"));
            }
            let short = std::time::Duration::from_millis(5);
            workshop = self.0.1.wait_timeout(workshop, short).unwrap().0;
        }
        let no_room = workshop.no_room_for == Some((precision, source.purpose));
        Ok(Arc::new(Net { engine: self.clone(), precision, no_room }))
    }
    fn prepares_soon(&self) -> bool {
        true
    }
    fn precisions(&self) -> &[Precision] {
        &[Precision::Fp16, Precision::Tf32, Precision::Fp32]
    }
}

struct Net {
    engine: Bounded,
    precision: Precision,
    no_room: bool,
}

impl Prepared for Net {
    fn signature(&self) -> &ModelSignature {
        static SIGNATURE: std::sync::OnceLock<ModelSignature> = std::sync::OnceLock::new();
        SIGNATURE.get_or_init(|| {
            let spec = |name: &str| TensorSpec { name: name.into(), datatype: DataType::Fp32, dims: vec![-1, 2] };
            ModelSignature { inputs: vec![spec("x")], outputs: vec![spec("y")], max_batch: 4 }
        })
    }
    fn weight_bytes(&self) -> u64 {
        1
    }
    fn precision(&self) -> Option<Precision> {
        Some(self.precision)
    }
    fn load(&self, _device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        match self.no_room {
            true => Err(EngineError::Execute("there is no room".into())),
            // Neither precision is faster.
            false => {
                let (engine, precision) = (self.engine.clone(), self.precision);
                Ok(clocked(at_once(OnDevice { engine, precision, output: None }), Duration::from_millis(1)))
            }
        }
    }
}

/// What a row begins with that may have to wait.
const HELD: f32 = -1.0;

struct OnDevice {
    engine: Bounded,
    precision: Precision,
    output: Option<Tensor>,
}

impl AtOnce for OnDevice {
    /// Each row becomes a 1, and 0 or what it is off by.
    fn compute(&mut self, inputs: &[TensorView<'_>]) -> Result<(), EngineError> {
        let TensorView { datatype, shape, data } = inputs[0];
        if data[..4] == HELD.to_le_bytes() {
            self.engine.change(|workshop| workshop.held = workshop.holds);
            let (workshop, changed) = &*self.engine.0;
            drop(changed.wait_while(workshop.lock().unwrap(), |workshop| workshop.holds).unwrap());
        }
        let most = match self.precision {
            Precision::Fp16 => 1e3,
            Precision::Tf32 | Precision::Tf32Behind(_) => 1e6,
            Precision::Fp32 => f32::INFINITY,
        };
        let row = |row: &[u8]| {
            let first = f32::from_le_bytes(row[..4].try_into().unwrap());
            [1.0, if first > most { 0.3 } else { 0.0 }]
        };
        let data: Vec<u8> = data.chunks(8).flat_map(row).flat_map(f32::to_le_bytes).collect();
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
    /// One whose devices may be used for comparisons whenever they idle.
    fn start(engine: &Bounded, repository: &Path, cache: &Path) -> Self {
        Self::start_with(engine, repository, cache, 1.0)
    }

    fn start_with(engine: &Bounded, repository: &Path, cache: &Path, online_profile_share: f64) -> Self {
        let device = DeviceConfig { name: "net:0".into(), index: 0, pages: 8, pin: None, kind: 0, only_waits: false };
        let config = ControllerConfig {
            scheduler: scheduler::Config::default(),
            max_requests: 64,
            page_bytes: 1 << 20,
            cells: vec![vec![device]],
            online_profile_share,
            limits: ExecutionLimits::default(),
        };
        let controller = Controller::start(config, Metrics::new()).unwrap();
        let mut config = ManagerConfig::new(repository.to_owned(), Arc::new(engine.clone()));
        config.cache = Some(cache.to_owned());
        config.effort = ProfilingEffort { runs: 3, budget: Duration::ZERO };
        config.compare_every = Duration::from_millis(2);
        let registry = Registry::default();
        let manager = Manager::start(controller.clone(), registry.clone(), config).unwrap();
        manager.wait_until_started();
        Self { controller, registry, manager: Some(manager) }
    }

    /// Once all models are computed in what evidence shows before anybody has asked.
    fn start_and_compare(engine: &Bounded, repository: &Path, cache: &Path) -> Self {
        Self::start(engine, repository, cache).compared(engine)
    }

    fn compared(self, engine: &Bounded) -> Self {
        let models: Vec<String> = self.registry.catalogue().models.keys().cloned().collect();
        until("the comparisons", || models.iter().all(|model| self.computed_in(model).starts_with("fp16")));
        engine.take_prepared();
        self
    }

    fn served(&self, model: &str) -> ServedModel {
        let catalogue = self.registry.catalogue();
        let entry = catalogue.models[model].default_version().unwrap();
        entry.serving().unwrap_or_else(|| panic!("{:?}", entry.state())).clone()
    }

    fn computed_in(&self, model: &str) -> String {
        let said = self.served(model).config.parameters.get("computed_in").map(|said| said.string_value.clone());
        said.unwrap_or_default()
    }

    fn submit(&self, served: &ServedModel, row: [f32; 2]) -> oneshot::Receiver<Reply> {
        let data: Vec<u8> = row.into_iter().flat_map(f32::to_le_bytes).collect();
        let input = Tensor { datatype: DataType::Fp32, shape: vec![1, 2], data: data.into() };
        let (_, answer) = submit(&self.controller, served.model().unwrap().id, input);
        self.controller.drive();
        answer
    }

    /// How far a request is off. None is ever refused.
    fn ask(&self, served: &ServedModel, row: [f32; 2]) -> f32 {
        match wait(self.submit(served, row)) {
            Reply::Outputs(outputs) => f32::from_le_bytes(outputs[0].data[4..].try_into().unwrap()),
            refused => panic!("{refused:?}"),
        }
    }

    fn metric(&self) -> Vec<String> {
        let text = self.controller.metrics().render();
        let lines = text.lines().filter(|line| line.starts_with("punctual_model_precision_error{"));
        lines.map(str::to_owned).collect()
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

/// Rows that differ from one another, and are nearly of that size.
fn rows(size: f32) -> impl FnMut() -> [f32; 2] {
    let mut count = 0.0;
    move || {
        count += 1.0;
        [size + size * count / 1e4, count]
    }
}

const FP16: &str = "fp16, whose outputs are off by 0.0e0 of their range; near enough and no faster is tf32 0.0e0";

fn series(precision: &str, error: &str) -> Vec<String> {
    vec![format!(r#"punctual_model_precision_error{{model="net",precision="{precision}",version="1"}} {error}"#)]
}

#[test]
fn a_model_whose_live_requests_are_off_gets_the_next_precision_and_no_request_is_refused() {
    let [repository, cache] = folders("");
    let engine = Bounded::default();
    let server = Server::start_and_compare(&engine, repository.path(), cache.path());
    assert_eq!((server.computed_in("net").as_str(), server.metric()), (FP16, series("fp16", "0")));
    let (first, mut loud) = (server.served("net"), rows(2e3));
    assert_eq!(server.ask(&first, loud()), 0.3);
    // Requests for the old number come all the time.
    until("the right answers", || server.ask(&first, loud()) == 0.0);
    let said = "tf32, whose outputs are off by 0.0e0 of their range; too far off are fp16 3.0e-1";
    until("the catalogue", || server.computed_in("net") == said);
    assert_ne!(first.model().unwrap().id, server.served("net").model().unwrap().id);
    assert_eq!(server.metric(), series("tf32", "0"));
    assert_eq!(server.broken_invariants(), [""; 0]);
    drop(server);
    engine.take_prepared();
    let server = Server::start(&engine, repository.path(), cache.path());
    assert_eq!((server.computed_in("net").as_str(), server.ask(&server.served("net"), loud())), (said, 0.0));
    drop(server);
    let prepared = engine.take_prepared();
    assert_eq!(prepared[0], ("net".into(), Precision::Tf32, Purpose::Service), "the next start begins right");
}

#[test]
fn where_no_other_precision_holds_it_is_32_bits() {
    let [repository, cache] = folders("");
    let engine = Bounded::default();
    let server = Server::start_and_compare(&engine, repository.path(), cache.path());
    let (first, mut huge) = (server.served("net"), rows(2e6));
    until("the right answers", || server.ask(&first, huge()) == 0.0);
    until("the catalogue", || server.computed_in("net") == "fp32; too far off are fp16 3.0e-1, tf32 3.0e-1");
    engine.take_prepared();
    // The last of what was under way: there is nothing to compare from now on.
    std::thread::sleep(std::time::Duration::from_millis(50));
    (0..200).for_each(|_| assert_eq!(server.ask(&server.served("net"), huge()), 0.0));
    assert_eq!(engine.take_prepared(), []);
}

#[test]
fn one_request_that_is_off_is_seen_and_moves_nothing_before_there_is_another() {
    let [repository, cache] = folders("");
    let engine = Bounded::default();
    let server = Server::start_and_compare(&engine, repository.path(), cache.path());
    let (net, mut usual, mut loud) = (server.served("net"), rows(1.0), rows(2e3));
    let seen = "fp16, whose outputs are off by 3.0e-1 of their range; near enough and no faster is tf32 0.0e0";
    // None comes while one is compared.
    until("what one is off by", || {
        server.ask(&net, loud());
        let before = engine.count("net", Precision::Fp32, Purpose::Draft);
        (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            if engine.count("net", Precision::Fp32, Purpose::Draft) > before {
                until("its end", || server.computed_in("net") == seen);
            }
            server.computed_in("net") == seen
        })
    });
    assert_eq!(server.metric(), series("fp16", "0.30000001192092896"));
    let compared = engine.count("net", Precision::Fp32, Purpose::Draft);
    until("five more comparisons", || {
        server.ask(&net, usual());
        engine.count("net", Precision::Fp32, Purpose::Draft) >= compared + 5
    });
    assert_eq!((server.computed_in("net").as_str(), engine.count("net", Precision::Tf32, Purpose::Trial)), (seen, 0));
    assert_eq!(server.served("net").model().unwrap().id, net.model().unwrap().id);
    until("the right answers", || server.ask(&net, loud()) == 0.0);
}

#[test]
fn a_precision_that_was_named_stays_and_its_error_is_shown() {
    let [repository, cache] = folders("parameters { key: \"precision\" value { string_value: \"fp16\" } }");
    let engine = Bounded::default();
    let server = Server::start_and_compare(&engine, repository.path(), cache.path());
    let (net, mut loud) = (server.served("net"), rows(2e3));
    until("the error", || {
        assert_eq!(server.ask(&net, loud()), 0.3);
        server.computed_in("net") == "fp16, whose outputs are off by 3.0e-1 of their range"
    });
    let compared = engine.count("net", Precision::Fp32, Purpose::Draft);
    until("further comparisons", || {
        server.ask(&net, loud());
        engine.count("net", Precision::Fp32, Purpose::Draft) >= compared + 3
    });
    let prepared = engine.take_prepared();
    let others = prepared.iter().filter(|(_, precision, purpose)| match purpose {
        Purpose::Draft => *precision != Precision::Fp32,
        Purpose::Trial => *precision != Precision::Fp16,
        Purpose::Service => true,
    });
    assert_eq!(others.count(), 0, "{prepared:?}");
    assert_eq!(server.served("net").model().unwrap().id, net.model().unwrap().id);
    assert!(server.metric()[0].contains(r#"precision="fp16""#), "{:?}", server.metric());
}

/// Live requests are off, and there is no room for what is prepared in this for that, when they are compared or when it
/// is decided anew.
fn without_room_for(precision: Precision, purpose: Purpose) {
    let [repository, cache] = folders("");
    let engine = Bounded::default();
    let server = Server::start_and_compare(&engine, repository.path(), cache.path());
    engine.change(|workshop| workshop.no_room_for = Some((precision, purpose)));
    let (net, mut loud) = (server.served("net"), rows(2e3));
    until("two attempts", || {
        assert_eq!(server.ask(&net, loud()), 0.3);
        engine.count("net", precision, purpose) == 2
    });
    assert!(server.computed_in("net").starts_with("fp16"));
    assert_eq!(server.served("net").model().unwrap().id, net.model().unwrap().id);
    engine.change(|workshop| workshop.no_room_for = None);
    until("the right answers", || server.ask(&net, loud()) == 0.0);
    until("the catalogue", || server.computed_in("net").starts_with("tf32"));
}

#[test]
fn without_room_for_the_comparison_nothing_is_decided() {
    without_room_for(Precision::Fp32, Purpose::Draft);
}

#[test]
fn a_precision_for_which_there_is_no_room_now_is_not_passed_over() {
    without_room_for(Precision::Tf32, Purpose::Trial);
}

#[test]
fn a_device_that_computes_is_not_lent_for_what_nobody_waits_for() {
    let [repository, cache] = folders("");
    let engine = Bounded::default();
    let server = Server::start_and_compare(&engine, repository.path(), cache.path());
    engine.change(|workshop| workshop.holds = true);
    let answer = server.submit(&server.served("net"), [HELD, 0.0]);
    until("it to run", || engine.0.0.lock().unwrap().held);
    let lend = || {
        let borrowing = server.controller.borrowing(DeviceId(0), Duration::from_millis(1), None, Box::new(|| {}));
        server.controller.borrow_if_idle(borrowing).map_err(|(_, not_yet)| not_yet)
    };
    let while_it_computes = lend();
    engine.change(|workshop| workshop.holds = false);
    assert!(matches!(wait(answer), Reply::Outputs(_)));
    assert!(matches!(while_it_computes, Err(NotYet::Busy(_))), "{while_it_computes:?}");
    until("an idle device", || lend().is_ok());
}

#[test]
fn without_a_share_of_the_devices_time_nothing_is_compared() {
    let [repository, cache] = folders("");
    let engine = Bounded::default();
    let server = Server::start_with(&engine, repository.path(), cache.path(), 0.0).compared(&engine);
    let (net, mut loud) = (server.served("net"), rows(2e3));
    // Twenty times as long as others need to be compared.
    for _ in 0..400 {
        assert_eq!(server.ask(&net, loud()), 0.3);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!((engine.take_prepared(), server.computed_in("net").as_str()), (vec![], FP16));
}

#[test]
fn a_comparison_ends_with_its_model_and_another_model_has_its_turn() {
    let [repository, cache] = folders("");
    common::write_model(repository.path(), "other", "");
    std::fs::write(repository.path().join("other/1/model.onnx"), "another").unwrap();
    let engine = Bounded::default();
    let server = Server::start_and_compare(&engine, repository.path(), cache.path());
    engine.change(|workshop| workshop.drafts_wait = true);
    let (net, other, mut loud) = (server.served("net"), server.served("other"), rows(2e3));
    until("a comparison", || {
        server.ask(&net, loud());
        engine.count("net", Precision::Fp32, Purpose::Draft) == 1
    });
    std::fs::remove_dir_all(repository.path().join("net")).unwrap();
    until("the other's", || {
        server.ask(&other, loud());
        engine.count("other", Precision::Fp32, Purpose::Draft) == 1
    });
    engine.change(|workshop| workshop.drafts_wait = false);
    until("its right answers", || server.ask(&other, loud()) == 0.0);
    assert!(!server.registry.catalogue().models.contains_key("net"));
}

#[test]
fn a_comparison_makes_way_for_a_model_that_would_be_faster_with_time() {
    let [repository, cache] = folders("");
    let engine = Bounded::default();
    let server = Server::start_and_compare(&engine, repository.path(), cache.path());
    engine.change(|workshop| workshop.drafts_wait = true);
    let (net, mut usual) = (server.served("net"), rows(1.0));
    until("a comparison", || {
        server.ask(&net, usual());
        engine.count("net", Precision::Fp32, Purpose::Draft) == 1
    });
    common::write_model(repository.path(), "other", "");
    std::fs::write(repository.path().join("other/1/model.onnx"), "another").unwrap();
    until("the other's turn", || engine.count("other", Precision::Fp32, Purpose::Draft) == 1);
}

#[test]
fn a_server_that_goes_down_does_not_wait_for_a_comparison() {
    let [repository, cache] = folders("");
    let engine = Bounded::default();
    let server = Server::start_and_compare(&engine, repository.path(), cache.path());
    engine.change(|workshop| workshop.drafts_wait = true);
    let (net, mut loud) = (server.served("net"), rows(2e3));
    until("a comparison", || {
        server.ask(&net, loud());
        engine.count("net", Precision::Fp32, Purpose::Draft) == 1
    });
    drop(server);
    let server = Server::start(&engine, repository.path(), cache.path());
    assert_eq!(server.computed_in("net"), FP16, "what was given up shows nothing");
}
