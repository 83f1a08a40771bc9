//! The live controller with an engine that panics on demand: whoever asks gets an answer, and the others go on.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

use base::{ApplicationId, DataType, Duration, LatencyProfile, ModelId, ModelSignature};
use bytes::Bytes;
use controller::{Controller, ControllerConfig, DeviceConfig, NewModel, Refusal, Reply, Submission, Tensor};
use engine::{EmulatedEngine, Emulation, Engine, EngineError, Loaded, ModelSource, Prepared, TensorView};
use scheduler::PolicyKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use telemetry::Metrics;
use tokio::sync::oneshot;

const PAGE: u64 = 1 << 20;
const MODEL_PAGES: u32 = 4;
const LARGEST_BATCH: u32 = 2;
const WIDTH: u32 = 3;

/// What goes wrong, and what was tried.
#[derive(Default)]
struct Faults {
    execution_panics: AtomicBool,
    load_panics: AtomicBool,
    load_fails: AtomicBool,
    /// Loads fail on all devices but the first.
    load_fails_elsewhere: AtomicBool,
    loads: AtomicU32,
}

/// An emulated model with faults.
struct Faulty {
    emulated: Arc<dyn Prepared>,
    faults: Arc<Faults>,
}

impl Prepared for Faulty {
    fn signature(&self) -> &ModelSignature {
        self.emulated.signature()
    }

    fn weight_bytes(&self) -> u64 {
        self.emulated.weight_bytes()
    }

    fn load(&self, device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        self.faults.loads.fetch_add(1, Ordering::Relaxed);
        assert!(!self.faults.load_panics.load(Ordering::Relaxed), "a load that was told to");
        let elsewhere = device > 0 && self.faults.load_fails_elsewhere.load(Ordering::Relaxed);
        if elsewhere || self.faults.load_fails.load(Ordering::Relaxed) {
            return Err(EngineError::Load("the weights are torn".into()));
        }
        let loaded = self.emulated.load(device)?;
        Ok(Box::new(FaultyOnDevice { loaded, faults: Arc::clone(&self.faults) }))
    }
}

struct FaultyOnDevice {
    loaded: Box<dyn Loaded>,
    faults: Arc<Faults>,
}

impl Loaded for FaultyOnDevice {
    fn execute(
        &mut self,
        inputs: &[TensorView<'_>],
        sink: &mut dyn FnMut(usize, TensorView<'_>),
    ) -> Result<(), EngineError> {
        assert!(!self.faults.execution_panics.load(Ordering::Relaxed), "an execution that was told to");
        self.loaded.execute(inputs, sink)
    }
}

struct Bench {
    controller: Controller,
    metrics: Metrics,
}

impl Bench {
    fn new(policy: PolicyKind, devices: u32, pages: u32) -> Self {
        let device = |index| DeviceConfig { name: format!("emulated:{index}"), index, pages, pin: None, kind: 0 };
        let metrics = Metrics::new();
        let config = ControllerConfig {
            online_profile_share: 0.0,
            // Orders ahead of time, so that a device that breaks has some to give back.
            scheduler: scheduler::Config { policy, ..scheduler::Config::clockwork() },
            max_requests: 4096,
            page_bytes: PAGE,
            devices: (0..devices).map(device).collect(),
        };
        Self { controller: Controller::start(config, metrics.clone()).unwrap(), metrics }
    }

    /// A model whose batches take 2 ms and more.
    fn model(&self, name: &str) -> (ModelId, Arc<Faults>) {
        let millis = Duration::from_millis;
        let profile = LatencyProfile::linear(millis(1), millis(1), &[1, LARGEST_BATCH], millis(1)).unwrap();
        let emulated = Some(Emulation { profile: profile.clone(), weight_bytes: u64::from(MODEL_PAGES) * PAGE });
        let source = ModelSource { name: name.into(), file: name.into(), emulated, ..ModelSource::default() };
        let emulated = EmulatedEngine::new(WIDTH).prepare(&source).unwrap();
        let faults = Arc::<Faults>::default();
        let prepared = Arc::new(Faulty { emulated, faults: Arc::clone(&faults) });
        let signature = Arc::new(prepared.signature().clone());
        let name = name.into();
        let (fixed, objective, padding) = (Duration::ZERO, None, None);
        let model = NewModel {
            name,
            version: 1,
            prepared,
            signature,
            padding,
            profile,
            elsewhere: Vec::new(),
            fixed,
            objective,
        };
        (self.controller.add_model(model), faults)
    }

    /// Asks for a full batch: no policy has a reason to let it wait.
    fn ask(&self, model: ModelId) -> oneshot::Receiver<Reply> {
        let (reply, answer) = oneshot::channel();
        let data = Bytes::from(vec![0; (LARGEST_BATCH * WIDTH) as usize * 4]);
        let shape = vec![i64::from(LARGEST_BATCH), i64::from(WIDTH)];
        let inputs = vec![Tensor { datatype: DataType::Fp32, shape, data }];
        let deadline_at = self.controller.now() + Duration::from_secs(600);
        self.controller.submit(Submission {
            model,
            inputs,
            rows: LARGEST_BATCH,
            deadline_at,
            priority: 0,
            application: ApplicationId::DEFAULT,
            size: None,
            trace: None,
            reply,
        });
        self.controller.drive();
        answer
    }

    fn answer(&self, model: ModelId) -> Reply {
        wait(self.ask(model))
    }

    /// Asks until there is a device again.
    fn answer_with_patience(&self, model: ModelId) -> Reply {
        until("a device", || {
            Some(self.answer(model)).filter(|reply| !matches!(reply, Reply::Refused(Refusal::NoDevice)))
        })
    }

    fn losses(&self) -> u32 {
        let text = self.metrics.render();
        let lines = text.lines().filter(|line| line.starts_with("punctual_device_losses_total{"));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u32>().unwrap()).sum()
    }
}

fn wait(answer: oneshot::Receiver<Reply>) -> Reply {
    answer.blocking_recv().expect("every request gets an answer (P1)")
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(120);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(std::time::Instant::now() < patience, "waited for {what}");
        std::thread::yield_now();
    }
}

fn is_failure(reply: &Reply, text: &str) -> bool {
    matches!(reply, Reply::Refused(Refusal::ExecutionFailed(reason)) if reason.contains(text))
}

#[test]
fn after_a_panic_the_device_is_started_anew_and_serves_the_others_whatever_the_policy() {
    for &policy in PolicyKind::ALL {
        let bench = Bench::new(policy, 1, 3 * MODEL_PAGES);
        let (good, good_faults) = bench.model("good");
        let (bad, bad_faults) = bench.model("bad");
        assert!(matches!(bench.answer(good), Reply::Outputs(_)), "{policy:?}");
        bad_faults.execution_panics.store(true, Ordering::Relaxed);
        let failed = bench.answer(bad);
        assert!(is_failure(&failed, "the engine panicked: an execution that was told to"), "{policy:?}: {failed:?}");
        until("the loss", || (bench.losses() > 0).then_some(()));
        let again = bench.answer_with_patience(good);
        assert!(matches!(again, Reply::Outputs(_)), "{policy:?}: {again:?}");
        assert_eq!(good_faults.loads.load(Ordering::Relaxed), 2, "{policy:?}: its weights were loaded anew");
        assert_eq!((bench.losses(), bench.controller.devices()), (1, 1), "{policy:?}");
    }
}

#[test]
fn the_other_device_takes_over_what_the_broken_one_was_given() {
    let bench = Bench::new(PolicyKind::Punctual, 2, 3 * MODEL_PAGES);
    let (good, _) = bench.model("good");
    let (bad, bad_faults) = bench.model("bad");
    bad_faults.execution_panics.store(true, Ordering::Relaxed);
    let mut answers: Vec<_> = (0..100).map(|_| bench.ask(good)).collect();
    let failed = bench.ask(bad);
    answers.extend((0..100).map(|_| bench.ask(good)));
    let failed = wait(failed);
    assert!(is_failure(&failed, "panicked"), "{failed:?}");
    for answer in answers {
        let reply = wait(answer);
        assert!(matches!(reply, Reply::Outputs(_)), "{reply:?}");
    }
    until("all slots to be free", || (bench.controller.in_hand() == 0).then_some(()));
    until("the device to be back", || (bench.controller.devices() == 2).then_some(()));
    assert_eq!(bench.losses(), 1);
}

#[test]
fn a_panic_while_loading_loses_the_device_too() {
    let bench = Bench::new(PolicyKind::Punctual, 1, 3 * MODEL_PAGES);
    let (good, _) = bench.model("good");
    let (bad, bad_faults) = bench.model("bad");
    assert!(matches!(bench.answer(good), Reply::Outputs(_)));
    bad_faults.load_panics.store(true, Ordering::Relaxed);
    let failed = bench.answer(bad);
    assert!(
        is_failure(&failed, "the model could not be loaded: the engine panicked: a load that was told to"),
        "{failed:?}"
    );
    until("the loss", || (bench.losses() > 0).then_some(()));
    assert!(matches!(bench.answer_with_patience(good), Reply::Outputs(_)));
    // What was wrong is over: the model is tried again, and served.
    bad_faults.load_panics.store(false, Ordering::Relaxed);
    until("the model to be served", || matches!(bench.answer(bad), Reply::Outputs(_)).then_some(()));
}

#[test]
fn where_all_fit_a_load_that_fails_is_not_tried_again_at_once() {
    let bench = Bench::new(PolicyKind::Punctual, 1, 3 * MODEL_PAGES);
    let (good, _) = bench.model("good");
    let (bad, bad_faults) = bench.model("bad");
    bad_faults.load_fails.store(true, Ordering::Relaxed);
    assert!(is_failure(&bench.answer(bad), "torn"));
    for _ in 0..50 {
        assert!(matches!(bench.answer(good), Reply::Outputs(_)));
    }
    let tried = bad_faults.loads.load(Ordering::Relaxed);
    assert!((1..=12).contains(&tried), "{tried} tries");
    // Without anybody asking for it, the model is loaded when that is possible: it was asked for, and there is room.
    bad_faults.load_fails.store(false, Ordering::Relaxed);
    until("another try", || (bad_faults.loads.load(Ordering::Relaxed) > tried).then_some(()));
    until("the model to be served", || matches!(bench.answer(bad), Reply::Outputs(_)).then_some(()));
}

#[test]
fn a_model_that_is_loaded_on_one_device_is_served_there_while_it_cannot_be_loaded_on_another() {
    let bench = Bench::new(PolicyKind::Punctual, 2, MODEL_PAGES);
    let (model, faults) = bench.model("model");
    faults.load_fails_elsewhere.store(true, Ordering::Relaxed);
    for _ in 0..50 {
        let reply = bench.answer(model);
        assert!(matches!(reply, Reply::Outputs(_)), "{reply:?}");
    }
    assert!(faults.loads.load(Ordering::Relaxed) > 1, "the other device was tried");
}

#[test]
fn a_model_that_cannot_be_loaded_does_not_push_others_out_with_every_request() {
    // Room for one of the two.
    let bench = Bench::new(PolicyKind::Punctual, 1, MODEL_PAGES);
    let (good, good_faults) = bench.model("good");
    let (bad, bad_faults) = bench.model("bad");
    bad_faults.load_fails.store(true, Ordering::Relaxed);
    for _ in 0..50 {
        let failed = bench.answer(bad);
        assert!(is_failure(&failed, "the model could not be loaded: load failed: the weights are torn"), "{failed:?}");
        assert!(matches!(bench.answer(good), Reply::Outputs(_)));
    }
    // Each try is twice as long after the one before: the twelfth would be more than three minutes after the first.
    let (tried, reloaded) = (bad_faults.loads.load(Ordering::Relaxed), good_faults.loads.load(Ordering::Relaxed));
    assert!((1..=12).contains(&tried), "{tried} tries");
    assert!(reloaded <= tried + 1, "{reloaded} loads of the other one");
    assert_eq!(bench.losses(), 0, "a load that fails in an orderly way is no reason to give up a device");
    // It is refused with the reason while it rests, and served when it can be.
    bad_faults.load_fails.store(false, Ordering::Relaxed);
    until("the model to be served", || matches!(bench.answer(bad), Reply::Outputs(_)).then_some(()));
}
