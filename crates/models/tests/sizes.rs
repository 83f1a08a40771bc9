//! With an engine that prepares each batch size, a model gets those that its traffic uses.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

mod common;

use base::{ApplicationId, DataType, Duration, ModelSignature, Precision, TensorSpec, Timestamp};
use common::{folders, until, wait};
use controller::{Controller, ControllerConfig, DeviceConfig, Reply, Submission, Tensor};
use engine::{AtOnce, Engine, EngineError, Loaded, ModelSource, Prepared, Purpose, Sink, TensorView, at_once};
use models::{Manager, ManagerConfig, ProfilingEffort, Registry, ServedModel};
use std::path::Path;
use std::sync::{Arc, Mutex};
use telemetry::Metrics;
use tokio::sync::oneshot;

/// What a row of a graph takes: much beside what waking a thread takes on a busy machine.
const ROW: std::time::Duration = std::time::Duration::from_micros(500);
/// So many times as long takes a row of a graph that turned out to be slow.
const SLOW: u32 = 20;

/// What the engine was asked for, and what it may do.
#[derive(Default)]
struct Workshop {
    /// Every preparation: in what, for what, and for which sizes.
    prepared: Vec<(Precision, Purpose, Vec<u32>)>,
    /// Models with these rows can't be prepared.
    fails_with: Option<u32>,
    /// Graphs of other sizes than the usual ones are slow.
    slow: bool,
}

/// An engine with a graph for each size. What its models say of a row is the size of the graph that computed it.
#[derive(Clone, Default)]
struct Graphs(Arc<Mutex<Workshop>>);

impl Graphs {
    fn take_prepared(&self) -> Vec<(Precision, Purpose, Vec<u32>)> {
        std::mem::take(&mut self.0.lock().unwrap().prepared)
    }

    /// Others may have followed. What models are computed in wasn't compared again for any of them.
    fn assert_prepared_for_12_first(&self) {
        let prepared = self.take_prepared();
        assert_eq!(prepared[0].2, WITH_12, "{prepared:?}");
        let (precision, purpose) = (Precision::Fp16, Purpose::Service);
        assert!(prepared.iter().all(|prepared| (prepared.0, prepared.1) == (precision, purpose)), "{prepared:?}");
    }
}

impl Engine for Graphs {
    fn name(&self) -> &'static str {
        "graphs"
    }
    fn prepare(&self, source: &ModelSource) -> Result<Arc<dyn Prepared>, EngineError> {
        let (precision, mut sizes) = (source.precision.unwrap(), source.batch_sizes.clone());
        sizes.retain(|&rows| rows <= MOST_ROWS);
        let mut workshop = self.0.lock().unwrap();
        workshop.prepared.push((precision, source.purpose, sizes.clone()));
        match workshop.fails_with.filter(|rows| sizes.contains(rows)) {
            Some(rows) => Err(EngineError::bad_model(&source.file, format!("there is no kernel for {rows} rows"))),
            None => Ok(Arc::new(Net { precision, sizes, slow: workshop.slow })),
        }
    }
    fn prepares_soon(&self) -> bool {
        true
    }
    fn precisions(&self) -> &[Precision] {
        &[Precision::Fp16, Precision::Fp32]
    }
}

const MOST_ROWS: u32 = 16;

struct Net {
    precision: Precision,
    sizes: Vec<u32>,
    slow: bool,
}

impl Prepared for Net {
    fn signature(&self) -> &ModelSignature {
        static SIGNATURE: std::sync::OnceLock<ModelSignature> = std::sync::OnceLock::new();
        SIGNATURE.get_or_init(|| {
            let spec = |name: &str| TensorSpec { name: name.into(), datatype: DataType::Fp32, dims: vec![-1, 1] };
            ModelSignature { inputs: vec![spec("x")], outputs: vec![spec("y")], max_batch: MOST_ROWS }
        })
    }
    fn weight_bytes(&self) -> u64 {
        1
    }
    fn precision(&self) -> Option<Precision> {
        Some(self.precision)
    }
    fn load(&self, _device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        Ok(at_once(OnDevice { sizes: self.sizes.clone(), slow: self.slow, output: None }))
    }
}

struct OnDevice {
    sizes: Vec<u32>,
    slow: bool,
    output: Option<Tensor>,
}

impl AtOnce for OnDevice {
    fn compute(&mut self, inputs: &[TensorView<'_>]) -> Result<(), EngineError> {
        let TensorView { datatype, shape, .. } = inputs[0];
        let rows = shape[0] as u32;
        let graph = *self.sizes.iter().find(|&&size| size >= rows).unwrap();
        std::thread::sleep(ROW * graph * if self.slow && !USUAL.contains(&graph) { SLOW } else { 1 });
        let data: Vec<u8> = (0..rows).flat_map(|_| (graph as f32).to_le_bytes()).collect();
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
    fn start(engine: &Graphs, repository: &Path, cache: Option<&Path>) -> Self {
        Self::start_with(engine, repository, cache, (Duration::ZERO, 8))
    }

    /// Where measuring may take no time, all times follow from those of one row.
    fn start_with(engine: &Graphs, repository: &Path, cache: Option<&Path>, (budget, pages): (Duration, u32)) -> Self {
        let device = DeviceConfig { name: "net:0".into(), index: 0, pages, pin: None, kind: 0, only_waits: false };
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
        config.cache = cache.map(Path::to_owned);
        config.effort = ProfilingEffort { runs: 9, budget };
        config.sizes_every = Duration::from_secs(1);
        let registry = Registry::default();
        let manager = Manager::start(controller.clone(), registry.clone(), config).unwrap();
        manager.wait_until_started();
        Self { controller, registry, manager: Some(manager) }
    }

    /// Once it is computed in what evidence shows.
    fn start_and_improve(engine: &Graphs, repository: &Path, cache: Option<&Path>) -> Self {
        let server = Self::start(engine, repository, cache);
        let models: Vec<String> = server.registry.catalogue().models.keys().cloned().collect();
        let is_compared = |model: &String| {
            let said = server.served(model).config.parameters.get("computed_in").cloned();
            said.is_some_and(|said| said.string_value.starts_with("fp16"))
        };
        until("the comparisons", || models.iter().all(is_compared));
        engine.take_prepared();
        server
    }

    fn served(&self, model: &str) -> ServedModel {
        let catalogue = self.registry.catalogue();
        let entry = catalogue.models[model].default_version().unwrap();
        entry.serving().unwrap_or_else(|| panic!("{:?}", entry.state())).clone()
    }

    /// The sizes that the model's batches are planned with.
    fn planned(&self, model: &str) -> Vec<u32> {
        let served = self.served(model);
        served.model().unwrap().record.profile.batches().iter().map(|entry| entry.batch).collect()
    }

    /// The size of the graph that computes so many rows.
    fn ask(&self, served: &ServedModel, rows: u32) -> u32 {
        let data = vec![0; rows as usize * 4].into();
        let input = Tensor { datatype: DataType::Fp32, shape: vec![rows.into(), 1], data };
        let (reply, answer) = oneshot::channel();
        self.controller.submit(Submission {
            model: served.model().unwrap().id,
            inputs: vec![input],
            rows,
            deadline_at: Timestamp::NEVER,
            priority: 0,
            application: ApplicationId::DEFAULT,
            size: None,
            trace: None,
            account: None,
            reply,
        });
        self.controller.drive();
        match wait(answer) {
            Reply::Outputs(outputs) => f32::from_le_bytes(outputs[0].data[..4].try_into().unwrap()) as u32,
            refused => panic!("{refused:?}"),
        }
    }

    /// Asks for 9 to 12 rows, again and again, until something is so.
    fn ask_until(&self, served: &ServedModel, what: &str, mut look: impl FnMut() -> bool) {
        until(what, || {
            (9..=12).for_each(|rows| _ = self.ask(served, rows));
            look()
        });
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

const CONFIG: &str = "max_batch_size: 16";
const USUAL: [u32; 5] = [1, 2, 4, 8, 16];
const WITH_12: [u32; 6] = [1, 2, 4, 8, 12, 16];

#[test]
fn a_size_that_traffic_uses_is_prepared_and_planned_with_and_no_request_is_lost() {
    let [repository, cache] = folders(CONFIG);
    let engine = Graphs::default();
    let server = Server::start_and_improve(&engine, repository.path(), Some(cache.path()));
    let first = server.served("net");
    assert_eq!((server.ask(&first, 9), server.planned("net")), (16, USUAL.to_vec()));
    // Requests for the old number come all the time.
    server.ask_until(&first, "the size", || server.ask(&first, 12) == 12);
    assert!(server.planned("net").contains(&12), "{:?}", server.planned("net"));
    assert_ne!(first.model().unwrap().id, server.served("net").model().unwrap().id);
    assert_eq!([8, 12, 16].map(|rows| server.ask(&first, rows)), [8, 12, 16]);
    engine.assert_prepared_for_12_first();
    assert_eq!(server.broken_invariants(), [""; 0]);
}

#[test]
fn a_size_that_was_added_is_there_at_the_next_start() {
    let [repository, cache] = folders(CONFIG);
    let engine = Graphs::default();
    let server = Server::start_and_improve(&engine, repository.path(), Some(cache.path()));
    let first = server.served("net");
    server.ask_until(&first, "the size", || server.planned("net").contains(&12));
    drop(server);
    engine.take_prepared();
    let server = Server::start(&engine, repository.path(), Some(cache.path()));
    assert_eq!(server.ask(&server.served("net"), 12), 12);
    let prepared = engine.take_prepared();
    assert!(prepared.len() == 1 && prepared[0].2.contains(&12), "{prepared:?}");
}

#[test]
fn without_a_cache_what_a_model_is_computed_in_is_not_compared_again_for_a_size() {
    let [repository, _] = folders(CONFIG);
    let engine = Graphs::default();
    let server = Server::start_and_improve(&engine, repository.path(), None);
    let first = server.served("net");
    server.ask_until(&first, "the size", || server.planned("net").contains(&12));
    engine.assert_prepared_for_12_first();
}

#[test]
fn a_model_that_can_not_be_prepared_for_a_size_stays_as_it_was_and_that_is_not_tried_again() {
    let [repository, cache] = folders(CONFIG);
    let engine = Graphs::default();
    let server = Server::start_and_improve(&engine, repository.path(), Some(cache.path()));
    engine.0.lock().unwrap().fails_with = Some(12);
    let first = server.served("net");
    server.ask_until(&first, "the next best size", || server.planned("net").contains(&11));
    assert_eq!(server.ask(&first, 12), 16);
    let tried = engine.take_prepared();
    assert_eq!(tried.iter().filter(|(.., sizes)| sizes.contains(&12)).count(), 1, "{tried:?}");
}

#[test]
fn a_size_that_turns_out_to_be_slow_is_not_taken() {
    let [repository, cache] = folders(CONFIG);
    let engine = Graphs(Arc::new(Mutex::new(Workshop { slow: true, ..Workshop::default() })));
    let server = Server::start_with(&engine, repository.path(), Some(cache.path()), (Duration::from_secs(5), 8));
    let first = server.served("net");
    // Which ones is up to what was measured. When the second is tried, the first isn't taken.
    let tried = || engine.0.lock().unwrap().prepared.iter().filter(|(.., sizes)| sizes[..] != USUAL).count();
    server.ask_until(&first, "two attempts", || tried() == 2);
    assert_eq!((server.planned("net"), server.ask(&first, 12)), (USUAL.to_vec(), 16));
}

#[test]
fn a_model_that_has_no_room_beside_itself_gets_a_size_too() {
    let [repository, cache] = folders(CONFIG);
    let engine = Graphs::default();
    let server = Server::start_with(&engine, repository.path(), Some(cache.path()), (Duration::ZERO, 1));
    let first = server.served("net");
    server.ask_until(&first, "the size", || server.ask(&first, 12) == 12);
    assert!(server.planned("net").contains(&12), "{:?}", server.planned("net"));
    assert_eq!(server.broken_invariants(), [""; 0]);
}

#[test]
fn sizes_that_a_configuration_names_stay() {
    let [repository, cache] = folders(CONFIG);
    let named = "max_batch_size: 16 parameters { key: \"batch_sizes\" value { string_value: \"1,2,4,8,16\" } }";
    common::write_model(repository.path(), "other", named);
    std::fs::write(repository.path().join("other/1/model.onnx"), "another").unwrap();
    let engine = Graphs::default();
    let server = Server::start_and_improve(&engine, repository.path(), Some(cache.path()));
    let (net, other) = (server.served("net"), server.served("other"));
    server.ask_until(&net, "the size of the one that may have it", || {
        // More is asked of it: it would be the first.
        (8..=12).for_each(|rows| _ = server.ask(&other, rows));
        server.planned("net").contains(&12)
    });
    let number = |served: &ServedModel| served.model().unwrap().id;
    assert_eq!((number(&server.served("other")), server.planned("other")), (number(&other), USUAL.to_vec()));
}
