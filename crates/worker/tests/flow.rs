//! Batches on a device whose transfers overlap with its computing: in which order things happen, and what becomes of
//! those that fail.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

use base::{ActionId, DataType, Duration, ModelSignature, TensorSpec, Timestamp, Window};
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, unbounded};
use engine::{AtOnce, DeviceTimes, EngineError, Inputs, Loaded, Prepared, Sink, Staged, TensorView, at_once};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use worker::{
    BatchItem, Clock, Device, DeviceConfig, ExecuteOrder, IdleWork, LoadOrder, OrderReport, Shared, Slot, Status,
    Tensor,
};

/// Nothing here takes as long.
const LIMIT: Duration = Duration::from_secs(3600);

fn idle_work(run: impl FnOnce() + Send + 'static) -> IdleWork {
    IdleWork { run: Box::new(run), limit: LIMIT, breaker: None }
}

type Answer = Result<f32, String>;

/// A request of one number; its answer is twice that.
struct Item {
    inputs: Vec<Tensor>,
    answers: Sender<Answer>,
    clock: Clock,
    /// When the last one had its answer.
    answered_at: Arc<Mutex<Timestamp>>,
    /// How many times one of them had a device.
    charges: Arc<AtomicU32>,
}

impl BatchItem for Item {
    fn inputs(&self) -> &[Tensor] {
        &self.inputs
    }
    fn rows(&self) -> u32 {
        1
    }
    fn queued_at(&self) -> Timestamp {
        Timestamp::ZERO
    }
    fn took(&self, _time: Duration) {
        self.charges.fetch_add(1, Ordering::Relaxed);
    }
    fn deliver(self, outputs: Result<Vec<Tensor>, String>) {
        *self.answered_at.lock().unwrap() = self.clock.now();
        self.answers.send(outputs.map(|outputs| floats(&outputs[0].data)[0])).unwrap();
    }
    fn refuse_inputs(self, reason: String) {
        self.deliver(Err(format!("inputs: {reason}")));
    }
    fn put_off(self, reason: String) {
        self.deliver(Err(format!("later: {reason}")));
    }
}

fn floats(data: &[u8]) -> Vec<f32> {
    data.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// What the device did, and what the test lets it do: a batch is called by its first number.
#[derive(Clone, Default)]
struct Script {
    log: Arc<Mutex<Vec<String>>>,
    /// How far a batch may come: 1 is computed, 2 has its outputs.
    allowed: Arc<Mutex<BTreeMap<i32, u32>>>,
}

impl Script {
    fn note(&self, what: &str, batch: i32) {
        self.log.lock().unwrap().push(format!("{what} {batch}"));
    }

    fn allow(&self, batch: i32, far: u32) {
        self.allowed.lock().unwrap().insert(batch, far);
    }

    fn may(&self, batch: i32, far: u32) -> bool {
        self.allowed.lock().unwrap().get(&batch).is_some_and(|allowed| *allowed >= far)
    }

    /// Waits until the device did that.
    fn until(&self, what: &str) {
        while !self.log.lock().unwrap().iter().any(|line| line == what) {
            std::thread::yield_now();
        }
    }

    fn position(&self, what: &str) -> usize {
        self.log.lock().unwrap().iter().position(|line| line == what).unwrap()
    }
}

struct Net(Script, ModelSignature);

impl Net {
    fn batched(script: &Script, max_batch: u32) -> Self {
        let spec = |name: &str| TensorSpec { name: name.into(), datatype: DataType::Fp32, dims: vec![-1, 1] };
        let signature = ModelSignature { inputs: vec![spec("x")], outputs: vec![spec("y")], max_batch };
        Self(script.clone(), signature)
    }

    fn new(script: &Script) -> Self {
        Self::batched(script, 8)
    }
}

impl Prepared for Net {
    fn signature(&self) -> &ModelSignature {
        &self.1
    }
    fn weight_bytes(&self) -> u64 {
        1
    }
    fn load(&self, _device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        Ok(Box::new(Net::new(&self.0)))
    }
}

impl Loaded for Net {
    fn there_at(&self) -> Option<Instant> {
        None
    }

    fn stage(&mut self, inputs: &mut dyn Inputs) -> Result<Box<dyn Staged>, EngineError> {
        let input = inputs.in_pieces()?.remove(0);
        let numbers: Vec<f32> = input.pieces.iter().flat_map(|piece| floats(piece)).collect();
        assert_eq!(input.shape, [numbers.len() as i64, 1]);
        assert_eq!(input.pieces.len(), numbers.len(), "each request's own, where it is");
        let name = numbers[0] as i32;
        self.0.note("stage", name);
        if name == 13 {
            panic!("this one can't be staged");
        }
        if numbers.contains(&17.0) {
            return Err(EngineError::NotYet("17 is being prepared".into()));
        }
        if numbers.iter().any(|number| *number >= 100.0) {
            return Err(EngineError::Unfit("100 and more can't be doubled".into()));
        }
        Ok(Box::new(OnItsWay { script: self.0.clone(), name, numbers }))
    }
}

struct OnItsWay {
    script: Script,
    name: i32,
    numbers: Vec<f32>,
}

impl Staged for OnItsWay {
    fn blocks(&self) -> bool {
        false
    }
    fn start(&mut self, _inputs: &mut dyn Inputs) -> Result<(), EngineError> {
        self.script.note("start", self.name);
        Ok(())
    }
    /// Negative numbers are refused.
    fn is_computed(&mut self) -> Result<bool, EngineError> {
        let computed = self.script.may(self.name, 1);
        match self.numbers.iter().find(|number| **number < 0.0) {
            Some(bad) if computed => Err(EngineError::Execute(format!("{bad} is negative"))),
            _ => Ok(computed),
        }
    }
    fn due_at(&self) -> Option<Instant> {
        None
    }
    fn has_arrived(&mut self) -> Result<bool, EngineError> {
        Ok(self.script.may(self.name, 2))
    }
    fn finish(&mut self, sink: &mut Sink<'_>) -> Result<DeviceTimes, EngineError> {
        self.script.note("finish", self.name);
        let doubled: Vec<u8> = self.numbers.iter().flat_map(|number| (2.0 * number).to_le_bytes()).collect();
        let shape = [self.numbers.len() as i64, 1];
        sink(0, TensorView { datatype: DataType::Fp32, shape: &shape, data: &doubled });
        let (inputs, outputs) = (Duration::from_nanos(7), Duration::from_nanos(5));
        Ok(DeviceTimes { computing: None, inputs, outputs, early: inputs })
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        self.script.note("gone", self.name);
    }
}

fn config() -> DeviceConfig {
    DeviceConfig { name: "test:0".into(), index: 0, pages: 1, pin: None, kind: 0, only_waits: false }
}

/// Weights that take an hour to come.
struct Heavy(Script);

impl Prepared for Heavy {
    fn signature(&self) -> &ModelSignature {
        unreachable!("nobody gets to run it")
    }
    fn weight_bytes(&self) -> u64 {
        1
    }
    fn load(&self, _device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        self.0.note("load", 0);
        Ok(Box::new(Coming))
    }
}

struct Coming;

impl Loaded for Coming {
    fn there_at(&self) -> Option<Instant> {
        Instant::now().checked_add(std::time::Duration::from_secs(3600))
    }
    fn stage(&mut self, _inputs: &mut dyn Inputs) -> Result<Box<dyn Staged>, EngineError> {
        unreachable!("it isn't there yet")
    }
}

/// Doubles a number on the thread that asks.
struct Here(Script, Vec<f32>);

impl Prepared for Here {
    fn signature(&self) -> &ModelSignature {
        unreachable!("orders bring it")
    }
    fn weight_bytes(&self) -> u64 {
        1
    }
    fn load(&self, _device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        Ok(at_once(Here(self.0.clone(), Vec::new())))
    }
}

impl AtOnce for Here {
    fn compute(&mut self, inputs: &[TensorView<'_>]) -> Result<(), EngineError> {
        self.1 = floats(inputs[0].data);
        self.0.note("compute", self.1[0] as i32);
        Ok(())
    }
    fn hand_out(&mut self, sink: &mut Sink<'_>) -> Result<(), EngineError> {
        let doubled: Vec<u8> = self.1.iter().flat_map(|number| (2.0 * number).to_le_bytes()).collect();
        sink(0, TensorView { datatype: DataType::Fp32, shape: &[self.1.len() as i64, 1], data: &doubled });
        Ok(())
    }
}

struct Bench {
    clock: Clock,
    device: Device<Item>,
    reports: Receiver<OrderReport<Item>>,
    answers: (Sender<Answer>, Receiver<Answer>),
    slot: Arc<Slot>,
    script: Script,
    answered_at: Arc<Mutex<Timestamp>>,
    charges: Arc<AtomicU32>,
}

impl Bench {
    /// A device with threads of its own.
    fn new() -> Self {
        let (sender, reports) = unbounded();
        let clock = Clock::start();
        let device = Device::start(&config(), clock, move |report| sender.send(report).unwrap()).unwrap();
        Self::with(clock, device, reports)
    }

    /// A device on a thread that others are on, too.
    fn on(clock: Clock, shared: &Shared<Item>) -> Self {
        let (sender, reports) = unbounded();
        Self::with(clock, shared.device(&config(), move |report| sender.send(report).unwrap()), reports)
    }

    fn with(clock: Clock, device: Device<Item>, reports: Receiver<OrderReport<Item>>) -> Self {
        let (slot, script) = (Arc::new(Slot::default()), Script::default());
        let window = Window { earliest: Timestamp::ZERO, latest: Timestamp::NEVER };
        let prepared = Arc::new(Net::new(&script));
        assert!(device.load(LoadOrder {
            action: ActionId(0),
            window,
            slot: Arc::clone(&slot),
            prepared,
            pages: 1,
            limit: LIMIT
        }));
        assert!(matches!(reports.recv().unwrap().status, Status::Done { .. }));
        Self {
            clock,
            device,
            reports,
            answers: unbounded(),
            slot,
            script,
            answered_at: Arc::default(),
            charges: Arc::default(),
        }
    }

    fn order(&self, action: u64, numbers: &[f32], latest: Timestamp) {
        self.order_on(&self.slot, 8, action, numbers, latest);
    }

    /// The same on other weights, for a model that takes so many in a batch.
    fn order_on(&self, slot: &Arc<Slot>, max_batch: u32, action: u64, numbers: &[f32], latest: Timestamp) {
        let item = |number: &f32| {
            let data = Bytes::copy_from_slice(&number.to_le_bytes());
            let tensor = Tensor { datatype: DataType::Fp32, shape: vec![1, 1], data };
            let (answers, answered_at) = (self.answers.0.clone(), Arc::clone(&self.answered_at));
            let charges = Arc::clone(&self.charges);
            Item { inputs: vec![tensor], answers, clock: self.clock, answered_at, charges }
        };
        let window = Window { earliest: Timestamp::ZERO, latest };
        let (slot, signature) = (Arc::clone(slot), Arc::new(Net::batched(&self.script, max_batch).1));
        let items = numbers.iter().map(item).collect();
        let (action, padding, max_elements) = (ActionId(action), None, u64::MAX);
        let order = ExecuteOrder { action, window, slot, signature, padding, max_elements, limit: LIMIT, items };
        assert!(self.device.execute(order).is_ok());
    }

    fn report(&self) -> (u64, Status, usize) {
        let OrderReport { action, status, returned } = self.reports.recv().unwrap();
        (action.0, status, returned.len())
    }

    fn answers(&self, count: usize) -> Vec<Answer> {
        (0..count).map(|_| self.answers.1.recv().unwrap()).collect()
    }
}

#[test]
fn inputs_go_ahead_and_outputs_leave_while_another_batch_is_computed() {
    let bench = Bench::new();
    let script = &bench.script;
    bench.order(1, &[1.0, 2.0], Timestamp::NEVER);
    script.until("start 1");
    bench.order(2, &[3.0], Timestamp::NEVER);
    script.until("stage 3");
    assert!(!script.log.lock().unwrap().contains(&"start 3".to_owned()), "one is computed at a time");
    script.allow(1, 1);
    script.until("start 3");
    bench.order(3, &[4.0], Timestamp::NEVER);
    script.until("stage 4");
    assert!(bench.reports.is_empty(), "its outputs aren't there");
    script.allow(1, 2);
    let (action, status, _) = bench.report();
    let Status::Done { started_at, ended_at, transfers } = status else { panic!("{status:?}") };
    assert_eq!((action, transfers.before, transfers.overlap.as_nanos()), (1, Duration::ZERO, 12));
    assert!(started_at <= ended_at);
    assert!(script.position("gone 1") > script.position("finish 1"), "nothing holds the weights when it is reported");
    [3, 4].into_iter().for_each(|batch| script.allow(batch, 2));
    for expected in [2, 3] {
        let (action, status, _) = bench.report();
        let Status::Done { transfers, .. } = status else { panic!("{status:?}") };
        assert_eq!((action, transfers.before.as_nanos()), (expected, 7), "its inputs came during another");
    }
    assert_eq!(bench.answers(4), [Ok(2.0), Ok(4.0), Ok(6.0), Ok(8.0)]);
}

#[test]
fn a_window_that_passes_behind_another_batch_is_respected() {
    let bench = Bench::new();
    bench.order(1, &[1.0], Timestamp::NEVER);
    bench.script.until("start 1");
    let latest = bench.clock.now() + Duration::from_millis(20);
    bench.order(2, &[2.0], latest);
    while bench.clock.now() <= latest {
        std::thread::yield_now();
    }
    bench.script.allow(1, 2);
    let mut reports = [bench.report(), bench.report()];
    reports.sort_by_key(|(action, ..)| *action);
    assert!(matches!(reports[0].1, Status::Done { .. }));
    assert_eq!((&reports[1].1, reports[1].2), (&Status::TooLate, 1));
    assert!(!bench.script.log.lock().unwrap().contains(&"start 2".to_owned()));
}

#[test]
fn a_batch_that_fails_is_run_again_by_itself_for_the_sake_of_the_others_in_it() {
    let bench = Bench::new();
    bench.order(1, &[1.0, -2.0], Timestamp::NEVER);
    bench.script.until("start 1");
    // It has started: that nothing may start any more doesn't concern it.
    assert!(bench.device.retire());
    [1, -2].into_iter().for_each(|batch| bench.script.allow(batch, 2));
    let (_, status, returned) = bench.report();
    assert!(matches!(&status, Status::Failed(reason) if reason.contains("-2 is negative")), "{status:?}");
    assert_eq!(returned, 0);
    let answers = bench.answers(2);
    assert_eq!(answers[0], Ok(2.0));
    assert!(answers[1].as_ref().unwrap_err().contains("negative"));
    let log = bench.script.log.lock().unwrap();
    assert_eq!(log[..3], ["stage 1", "start 1", "gone 1"], "the device is free before it is run again");
    assert_eq!(log[3..], ["stage 1", "start 1", "finish 1", "gone 1", "stage -2", "start -2", "gone -2"]);
}

#[test]
fn a_request_that_cant_be_computed_yet_is_put_off_and_the_others_of_its_batch_are_computed() {
    let bench = Bench::new();
    bench.script.allow(1, 2);
    bench.order(1, &[1.0, 17.0], Timestamp::NEVER);
    let (_, status, _) = bench.report();
    assert!(matches!(&status, Status::Failed(reason) if reason == "17 is being prepared"), "{status:?}");
    assert_eq!(bench.answers(2), [Ok(2.0), Err("later: 17 is being prepared".into())]);
}

#[test]
fn inputs_that_the_model_cant_compute_are_refused_and_the_others_of_their_batch_are_computed() {
    let bench = Bench::new();
    bench.script.allow(1, 2);
    let unfit = |requests| Status::Unfit { reason: "100 and more can't be doubled".into(), requests };
    let refused = Err("inputs: 100 and more can't be doubled".to_owned());
    bench.order(1, &[1.0, 100.0, 101.0], Timestamp::NEVER);
    assert_eq!(bench.report().1, unfit(2));
    assert_eq!(bench.answers(3), [Ok(2.0), refused.clone(), refused.clone()]);
    bench.order(2, &[100.0], Timestamp::NEVER);
    assert_eq!(bench.report().1, unfit(1));
    assert_eq!(bench.answers(1), [refused]);
}

#[test]
fn what_fails_has_had_the_device_too() {
    let bench = Bench::new();
    bench.script.allow(1, 2);
    bench.order(1, &[1.0, 100.0], Timestamp::NEVER);
    bench.report();
    assert_eq!(bench.charges.load(Ordering::Relaxed), 4, "both together, and each by itself");
}

#[test]
fn an_order_failed_if_one_of_its_requests_did_for_another_reason_than_its_inputs() {
    let bench = Bench::new();
    bench.script.allow(-2, 2);
    for (action, numbers) in [(1, [-2.0, 100.0]), (2, [100.0, -2.0])] {
        bench.order(action, &numbers, Timestamp::NEVER);
        let (_, status, _) = bench.report();
        assert!(matches!(&status, Status::Failed(reason) if reason.contains("-2 is negative")), "{status:?}");
        bench.answers(2);
    }
}

#[test]
fn requests_that_are_not_one_batch_are_run_one_after_another_by_themselves() {
    let bench = Bench::new();
    [1, 2, 3, 4].into_iter().for_each(|batch| bench.script.allow(batch, 1));
    bench.order(1, &[1.0], Timestamp::NEVER);
    bench.script.until("start 1");
    // Without a batch dimension.
    bench.order_on(&bench.slot, 0, 2, &[2.0, 3.0], Timestamp::NEVER);
    bench.order(3, &[4.0], Timestamp::NEVER);
    [1, 2, 3, 4].into_iter().for_each(|batch| bench.script.allow(batch, 2));
    let mut ended = Timestamp::ZERO;
    for (expected, batches) in [(1, 1), (2, 2), (3, 1)] {
        let (action, status, _) = bench.report();
        let Status::Done { started_at, ended_at, transfers } = status else { panic!("{status:?}") };
        assert_eq!((action, transfers.overlap == Duration::ZERO), (expected, batches > 1));
        assert!(started_at >= ended, "P4");
        ended = ended_at;
    }
    assert_eq!(bench.answers(4), [Ok(2.0), Ok(4.0), Ok(6.0), Ok(8.0)]);
    for (before, after) in [("gone 1", "stage 2"), ("gone 2", "stage 3"), ("gone 3", "stage 4")] {
        assert!(bench.script.position(before) < bench.script.position(after), "{before}, {after}");
    }
}

#[test]
fn nothing_comes_between_the_batches_of_an_order_that_is_not_one_batch() {
    let bench = Bench::new();
    bench.order_on(&bench.slot, 0, 1, &[1.0, 2.0], Timestamp::NEVER);
    bench.script.until("start 1");
    bench.order(2, &[3.0], Timestamp::NEVER);
    [3, 2].into_iter().for_each(|batch| bench.script.allow(batch, 2));
    bench.script.allow(1, 2);
    let reports = [bench.report(), bench.report()];
    let times = reports.map(|(action, status, _)| match status {
        Status::Done { started_at, ended_at, .. } => (action, started_at, ended_at),
        _ => panic!("{status:?}"),
    });
    assert_eq!((times[0].0, times[1].0), (1, 2));
    assert!(times[1].1 >= times[0].2, "P4");
    assert!(bench.script.position("gone 2") < bench.script.position("stage 3"));
}

#[test]
fn a_batch_that_is_staged_starts_when_the_one_before_it_fails() {
    let bench = Bench::new();
    bench.order(1, &[1.0, -2.0], Timestamp::NEVER);
    bench.script.until("start 1");
    bench.order(2, &[3.0], Timestamp::NEVER);
    bench.script.until("stage 3");
    [1, -2, 3].into_iter().for_each(|batch| bench.script.allow(batch, 2));
    let mut reports = [bench.report(), bench.report()];
    reports.sort_by_key(|(action, ..)| *action);
    assert!(matches!(reports[0].1, Status::Failed(_)), "{:?}", reports[0].1);
    assert!(matches!(reports[1].1, Status::Done { .. }), "{:?}", reports[1].1);
    let mut answers = bench.answers(3);
    answers.sort_by_key(Result::is_err);
    assert_eq!(answers[..2].iter().filter(|answer| **answer == Ok(6.0)).count(), 1);
}

#[test]
fn what_this_thread_computes_has_the_device_to_itself() {
    let bench = Bench::new();
    let slot = Arc::new(Slot::default());
    let window = Window { earliest: Timestamp::ZERO, latest: Timestamp::NEVER };
    let prepared = Arc::new(Here(bench.script.clone(), Vec::new()));
    let (action, there) = (ActionId(9), Arc::clone(&slot));
    assert!(bench.device.load(LoadOrder { action, window, slot: there, prepared, pages: 0, limit: LIMIT }));
    assert!(matches!(bench.report(), (9, Status::Done { .. }, 0)));
    bench.order(1, &[1.0], Timestamp::NEVER);
    bench.script.until("start 1");
    bench.order_on(&slot, 8, 2, &[2.0, 3.0], Timestamp::NEVER);
    bench.order(3, &[4.0], Timestamp::NEVER);
    [1, 4].into_iter().for_each(|batch| bench.script.allow(batch, 2));
    let ended: Vec<u64> = (0..3).map(|_| bench.report().0).collect();
    assert_eq!((ended, bench.answers(4)), (vec![1, 2, 3], vec![Ok(2.0), Ok(4.0), Ok(6.0), Ok(8.0)]));
    // While this thread hands out answers it computes nothing else.
    bench.order_on(&slot, 8, 4, &[5.0], Timestamp::NEVER);
    let (_, status, _) = bench.report();
    let Status::Done { ended_at, .. } = status else { panic!("{status:?}") };
    assert!(ended_at >= *bench.answered_at.lock().unwrap());
    for (before, after) in [("gone 1", "compute 2"), ("compute 2", "stage 4")] {
        assert!(bench.script.position(before) < bench.script.position(after), "{before}, {after}");
    }
}

#[test]
fn a_panic_is_reported_and_the_next_batch_runs() {
    let bench = Bench::new();
    bench.order(1, &[13.0], Timestamp::NEVER);
    let (_, status, _) = bench.report();
    assert!(matches!(&status, Status::Lost { reason, .. } if reason.contains("can't be staged")), "{status:?}");
    assert!(bench.answers(1)[0].is_err());
    bench.script.allow(5, 2);
    bench.order(2, &[5.0], Timestamp::NEVER);
    assert!(matches!(bench.report().1, Status::Done { .. }));
    assert_eq!(bench.answers(1), [Ok(10.0)]);
}

#[test]
fn what_is_under_way_is_finished_when_the_device_goes() {
    let bench = Bench::new();
    bench.order(1, &[1.0], Timestamp::NEVER);
    bench.script.until("start 1");
    bench.order(2, &[2.0], Timestamp::NEVER);
    [1, 2].into_iter().for_each(|batch| bench.script.allow(batch, 2));
    drop(bench.device);
    assert_eq!(bench.answers.1.try_iter().collect::<Vec<_>>(), [Ok(2.0), Ok(4.0)]);
}

#[test]
fn what_is_to_run_when_idle_has_its_turn_though_orders_keep_coming() {
    let bench = Bench::new();
    bench.order(1, &[1.0], Timestamp::NEVER);
    bench.script.until("start 1");
    bench.order(2, &[2.0], Timestamp::NEVER);
    bench.script.until("stage 2");
    let script = bench.script.clone();
    assert!(bench.device.run_when_idle(idle_work(move || script.note("measured", 0))));
    bench.order(3, &[3.0], Timestamp::NEVER);
    [1, 2, 3].into_iter().for_each(|batch| bench.script.allow(batch, 2));
    assert_eq!(bench.answers(3), [Ok(2.0), Ok(4.0), Ok(6.0)]);
    assert!(bench.script.position("measured 0") > bench.script.position("gone 2"), "nothing was under way");
    assert!(bench.script.position("measured 0") < bench.script.position("stage 3"));
}

#[test]
fn on_a_shared_thread_a_device_goes_on_while_others_compute_and_load() {
    let clock = Clock::start();
    let shared = Shared::start(clock).unwrap();
    let (one, other) = (Bench::on(clock, &shared), Bench::on(clock, &shared));
    one.order(1, &[1.0], Timestamp::NEVER);
    one.script.until("start 1");
    let (sender, loads) = unbounded();
    let loading = shared.device(&config(), move |report: OrderReport<Item>| sender.send(report).unwrap());
    let (slot, script) = (Arc::new(Slot::default()), Script::default());
    let window = Window { earliest: Timestamp::ZERO, latest: Timestamp::NEVER };
    let prepared = Arc::new(Heavy(script.clone()));
    assert!(loading.load(LoadOrder {
        action: ActionId(9),
        window,
        slot: Arc::clone(&slot),
        prepared,
        pages: 1,
        limit: LIMIT
    }));
    script.until("load 0");
    for batch in 2..5 {
        other.script.allow(batch, 2);
        other.order(batch as u64, &[batch as f32], Timestamp::NEVER);
        assert_eq!(other.answers(1), [Ok(2.0 * batch as f32)]);
        assert!(matches!(other.report(), (action, Status::Done { .. }, 0) if action == batch as u64));
    }
    assert!(one.reports.is_empty(), "it wasn't allowed to end");
    assert!(loads.is_empty() && !slot.has_weights(), "the hour isn't over");
    one.script.allow(1, 2);
    assert!(matches!(one.report(), (1, Status::Done { .. }, 0)));
    // Dropping it would wait for the hour.
    std::mem::forget(loading);
}

#[test]
fn a_device_on_a_shared_thread_carries_out_what_it_was_given_before_it_is_gone() {
    let clock = Clock::start();
    let shared = Shared::start(clock).unwrap();
    let Bench { device, reports, slot, script, answers, .. } = {
        let bench = Bench::on(clock, &shared);
        (1..4).for_each(|batch| bench.script.allow(batch, 2));
        (1..4).for_each(|batch| bench.order(batch as u64, &[batch as f32], Timestamp::NEVER));
        bench
    };
    drop(device);
    let ended: Vec<u64> = reports.try_iter().map(|report| report.action.0).collect();
    assert_eq!(ended, [1, 2, 3]);
    assert_eq!(answers.1.try_iter().count(), 3);
    drop((slot, script));
    assert!(reports.recv().is_err(), "nothing of it is left on the thread");
    // The thread goes on for others.
    let next = Bench::on(clock, &shared);
    next.script.allow(5, 2);
    next.order(5, &[5.0], Timestamp::NEVER);
    assert_eq!(next.answers(1), [Ok(10.0)]);
}
