//! The two threads of a device, with engines that do what a test needs: double the numbers, panic, or wait.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

use base::{ActionId, DataType, Duration, ModelSignature, TensorSpec, Timestamp, Window};
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, unbounded};
use engine::{AtOnce, EngineError, Loaded, Prepared, Sink, TensorView, at_once};
use std::sync::Arc;
use telemetry::{Spans, Statistics};
use worker::{
    BatchItem, Clock, Device, DeviceConfig, ExecuteOrder, IdleWork, LoadOrder, OrderReport, Slot, Status, Tensor,
    UnloadOrder,
};

/// Nothing here takes as long.
const LIMIT: Duration = Duration::from_secs(3600);

fn idle_work(run: impl FnOnce() + Send + 'static) -> IdleWork {
    IdleWork { run: Box::new(run), limit: LIMIT, breaker: None }
}

/// A request whose outputs go to the test.
struct Item {
    inputs: Vec<Tensor>,
    rows: u32,
    answers: Sender<Answer>,
    number: u32,
}

impl BatchItem for Item {
    fn inputs(&self) -> &[Tensor] {
        &self.inputs
    }
    fn rows(&self) -> u32 {
        self.rows
    }
    fn queued_at(&self) -> Timestamp {
        Timestamp::ZERO
    }
    fn deliver(self, outputs: Result<Vec<Tensor>, String>) {
        self.answers.send((self.number, outputs)).unwrap();
    }
}

/// What the engine of a test does with a batch.
#[derive(Clone, Copy)]
enum Behaviour {
    /// Doubles each number.
    Double,
    /// Gives back the strings.
    Echo,
    /// Gives one row, whatever it was given.
    OneRow,
    /// Doubles each number, but refuses a batch that holds a negative one.
    Picky,
    Panic,
    PanicAtLoad,
    /// Doubles each number; its weights can't be freed.
    PanicAtUnload,
}

struct Net {
    behaviour: Behaviour,
    signature: ModelSignature,
    on_device: bool,
    /// What was computed last.
    outputs: Vec<Tensor>,
}

impl Net {
    fn new(behaviour: Behaviour) -> Self {
        let signature = ModelSignature {
            inputs: vec![TensorSpec { name: "x".into(), datatype: DataType::Fp32, dims: vec![-1, -1] }],
            outputs: vec![TensorSpec { name: "y".into(), datatype: DataType::Fp32, dims: vec![-1, -1] }],
            max_batch: 8,
        };
        Self { behaviour, signature, on_device: false, outputs: Vec::new() }
    }
}

impl Prepared for Net {
    fn signature(&self) -> &ModelSignature {
        &self.signature
    }
    fn weight_bytes(&self) -> u64 {
        1
    }
    fn load(&self, _device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        if matches!(self.behaviour, Behaviour::PanicAtLoad) {
            panic!("this engine can't load");
        }
        let mut net = Net::new(self.behaviour);
        net.on_device = true;
        Ok(at_once(net))
    }
}

impl AtOnce for Net {
    fn compute(&mut self, inputs: &[TensorView<'_>]) -> Result<(), EngineError> {
        let TensorView { datatype, shape, data } = inputs[0];
        let output = |shape: &[i64], data: Vec<u8>| Tensor { datatype, shape: shape.to_vec(), data: data.into() };
        let output = match self.behaviour {
            Behaviour::Picky if floats(data).iter().any(|x| *x < 0.0) => {
                return Err(EngineError::Execute("negative".into()));
            }
            Behaviour::Double | Behaviour::Picky | Behaviour::PanicAtUnload => {
                output(shape, floats(data).iter().flat_map(|x| (x * 2.0).to_le_bytes()).collect())
            }
            Behaviour::Echo => output(shape, data.to_vec()),
            Behaviour::OneRow => output(&[1, 1], 1f32.to_le_bytes().to_vec()),
            Behaviour::Panic | Behaviour::PanicAtLoad => panic!("this engine panics"),
        };
        self.outputs = vec![output];
        Ok(())
    }

    fn hand_out(&mut self, sink: &mut Sink<'_>) -> Result<(), EngineError> {
        self.outputs.drain(..).enumerate().for_each(|(position, output)| sink(position, output.view()));
        Ok(())
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // The one in host memory has nothing to free.
        if matches!(self.behaviour, Behaviour::PanicAtUnload) && self.on_device {
            panic!("this engine can't unload");
        }
    }
}

fn floats(data: &[u8]) -> Vec<f32> {
    data.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

type Answer = (u32, Result<Vec<Tensor>, String>);

struct Bench {
    clock: Clock,
    device: Device<Item>,
    reports: Receiver<OrderReport<Item>>,
    answers: (Sender<Answer>, Receiver<Answer>),
    next: u64,
    statistics: Arc<Statistics>,
}

impl Bench {
    fn new(pages: u32) -> Self {
        let (sender, reports) = unbounded();
        let clock = Clock::start();
        let config = DeviceConfig { name: "test:0".into(), index: 0, pages, pin: None, kind: 0, only_waits: false };
        let report = move |report| sender.send(report).unwrap();
        let device = Device::start(&config, clock, report).unwrap();
        Self { clock, device, reports, answers: unbounded(), next: 0, statistics: Arc::default() }
    }

    fn load(&mut self, behaviour: Behaviour, pages: u32) -> (Arc<Slot>, Status) {
        let slot = Arc::new(Slot::new(Arc::clone(&self.statistics)));
        self.next += 1;
        let order = LoadOrder {
            action: ActionId(self.next),
            window: Window { earliest: Timestamp::ZERO, latest: Timestamp::NEVER },
            slot: Arc::clone(&slot),
            prepared: Arc::new(Net::new(behaviour)),
            pages,
            limit: LIMIT,
        };
        assert!(self.device.load(order));
        (slot, self.reports.recv().unwrap().status)
    }

    fn unload(&mut self, slot: Arc<Slot>, pages: u32) -> Status {
        self.next += 1;
        let action = ActionId(self.next);
        assert!(self.device.unload(UnloadOrder { action, slot, pages, limit: LIMIT }));
        let report = self.reports.recv().unwrap();
        assert_eq!(report.action, action);
        report.status
    }

    fn item(&self, number: u32, shape: &[i64], data: Vec<u8>, datatype: DataType) -> Item {
        let tensor = Tensor { datatype, shape: shape.to_vec(), data: Bytes::from(data) };
        Item { inputs: vec![tensor], rows: shape[0] as u32, answers: self.answers.0.clone(), number }
    }

    fn numbers(&self, number: u32, shape: &[i64], values: &[f32]) -> Item {
        self.item(number, shape, values.iter().flat_map(|value| value.to_le_bytes()).collect(), DataType::Fp32)
    }

    fn execute(&mut self, slot: &Arc<Slot>, items: Vec<Item>, window: Window) -> OrderReport<Item> {
        self.next += 1;
        let signature = Arc::new(Net::new(Behaviour::Double).signature.clone());
        let (action, slot, padding) = (ActionId(self.next), Arc::clone(slot), None);
        let order =
            ExecuteOrder { action, window, slot, signature, padding, max_elements: u64::MAX, limit: LIMIT, items };
        assert!(self.device.execute(order).is_ok());
        self.reports.recv().unwrap()
    }

    fn now_or_never(&self) -> Window {
        Window { earliest: Timestamp::ZERO, latest: Timestamp::NEVER }
    }

    fn answer(&self) -> Answer {
        self.answers.1.recv().unwrap()
    }
}

#[test]
fn rows_of_several_requests_are_computed_together_and_go_back_to_their_owners() {
    let mut bench = Bench::new(4);
    let (slot, status) = bench.load(Behaviour::Double, 1);
    assert!(matches!(status, Status::Done { .. }), "{status:?}");
    let items = vec![
        bench.numbers(0, &[1, 2], &[1.0, 2.0]),
        // Another width: can't be in the same batch, is computed all the same.
        bench.numbers(2, &[1, 3], &[7.0, 8.0, 9.0]),
        bench.numbers(1, &[2, 2], &[3.0, 4.0, 5.0, 6.0]),
    ];
    let window = bench.now_or_never();
    let report = bench.execute(&slot, items, window);
    assert!(matches!(report.status, Status::Done { .. }), "{:?}", report.status);
    for (number, shape, values) in [
        (0, vec![1, 2], vec![2.0, 4.0]),
        (1, vec![2, 2], vec![6.0, 8.0, 10.0, 12.0]),
        (2, vec![1, 3], vec![14.0, 16.0, 18.0]),
    ] {
        let (got, outputs) = bench.answer();
        let outputs = outputs.unwrap();
        assert_eq!((got, &outputs[0].shape, floats(&outputs[0].data)), (number, &shape, values));
    }
}

#[test]
fn what_is_computed_is_counted_before_the_answers_leave() {
    let mut bench = Bench::new(4);
    let statistics = Arc::<Statistics>::default();
    bench.statistics = Arc::clone(&statistics);
    let (slot, _) = bench.load(Behaviour::Picky, 1);
    let window = bench.now_or_never();
    // Two of one shape, one of another.
    let items = vec![
        bench.numbers(0, &[1, 2], &[1.0, 2.0]),
        bench.numbers(1, &[1, 3], &[7.0, 8.0, 9.0]),
        bench.numbers(2, &[2, 2], &[3.0, 4.0, 5.0, 6.0]),
    ];
    let Status::Done { started_at, ended_at, .. } = bench.execute(&slot, items, window).status else {
        panic!("it works")
    };
    let totals = statistics.totals(Spans::default(), Spans::default());
    assert_eq!((totals.queue.count, totals.inferences, totals.executions), (3, 4, 2));
    let sizes: Vec<_> = totals.batches.iter().map(|batch| (batch.rows, batch.infer.count)).collect();
    assert_eq!(sizes, [(1, 1), (3, 1)]);
    // The requests of this test wait since the clock's zero.
    assert!(totals.queue.total >= started_at.since(Timestamp::ZERO) * 3);
    let batches = totals.batches.iter().map(|batch| batch.input.total + batch.infer.total + batch.output.total);
    let computed = batches.fold(Duration::ZERO, |sum, span| sum + span);
    assert!(computed <= ended_at.since(started_at), "{computed} is more than there was");
    assert!(totals.infer.total > Duration::ZERO);

    // One that fails makes its batch fail; the others are computed again, one by one, and it isn't counted.
    let items = (0..4).map(|number| bench.numbers(number, &[1, 1], &[1.0 - number as f32 % 3.0])).collect();
    bench.execute(&slot, items, window);
    let after = statistics.totals(Spans::default(), Spans::default());
    assert_eq!((after.queue.count, after.inferences, after.executions), (6, 7, 5));
}

#[test]
fn strings_are_split_by_their_lengths() {
    let mut bench = Bench::new(4);
    let (slot, _) = bench.load(Behaviour::Echo, 1);
    let text = |words: &[&str]| -> Vec<u8> {
        words.iter().flat_map(|word| [&(word.len() as u32).to_le_bytes(), word.as_bytes()].concat()).collect()
    };
    let (first, second) = (text(&["a", "bcd"]), text(&["", "efghi"]));
    let items = vec![
        bench.item(0, &[1, 2], first.clone(), DataType::Bytes),
        bench.item(1, &[1, 2], second.clone(), DataType::Bytes),
    ];
    let window = bench.now_or_never();
    bench.execute(&slot, items, window);
    assert_eq!(bench.answer().1.unwrap()[0].data, first);
    assert_eq!(bench.answer().1.unwrap()[0].data, second);
}

#[test]
fn past_its_window_nothing_starts_and_the_requests_come_back() {
    let mut bench = Bench::new(4);
    let (slot, _) = bench.load(Behaviour::Double, 1);
    let items = vec![bench.numbers(7, &[1, 1], &[1.0])];
    let passed = Window { earliest: Timestamp::ZERO, latest: bench.clock.now() - Duration::from_nanos(1) };
    let report = bench.execute(&slot, items, passed);
    assert_eq!(report.status, Status::TooLate);
    assert_eq!(report.returned.len(), 1);
    assert!(bench.answers.1.is_empty());
}

#[test]
fn nothing_starts_before_its_window() {
    let mut bench = Bench::new(4);
    let (slot, _) = bench.load(Behaviour::Double, 1);
    let earliest = bench.clock.now() + Duration::from_millis(30);
    let items = vec![bench.numbers(0, &[1, 1], &[1.0])];
    let report = bench.execute(&slot, items, Window { earliest, latest: Timestamp::NEVER });
    let Status::Done { started_at, .. } = report.status else { panic!("{:?}", report.status) };
    assert!(started_at >= earliest, "{started_at} is before {earliest}");
}

#[test]
fn a_panic_fails_the_batch_and_the_thread_goes_on() {
    let mut bench = Bench::new(4);
    let (bad, _) = bench.load(Behaviour::Panic, 1);
    let (good, _) = bench.load(Behaviour::Double, 1);
    let window = bench.now_or_never();
    let items = vec![bench.numbers(0, &[1, 1], &[1.0])];
    let report = bench.execute(&bad, items, window);
    assert!(
        matches!(&report.status, Status::Lost { reason, .. } if reason == "the engine panicked: this engine panics")
    );
    assert_eq!(bench.answer(), (0, Err("the engine panicked: this engine panics".into())));
    let items = vec![bench.numbers(1, &[1, 1], &[4.0])];
    assert!(matches!(bench.execute(&good, items, window).status, Status::Done { .. }));
    assert_eq!(floats(&bench.answer().1.unwrap()[0].data), [8.0]);
}

#[test]
fn a_panic_while_loading_or_unloading_gives_the_pages_back_and_the_thread_goes_on() {
    let mut bench = Bench::new(4);
    let (_, status) = bench.load(Behaviour::PanicAtLoad, 3);
    assert!(matches!(&status, Status::Lost { reason, .. } if reason == "the engine panicked: this engine can't load"));
    assert_eq!(bench.device.pages().used(), 0);
    let (slot, status) = bench.load(Behaviour::PanicAtUnload, 3);
    assert!(matches!(status, Status::Done { .. }), "{status:?}");
    let unloaded = bench.unload(slot, 3);
    assert!(
        matches!(&unloaded, Status::Lost { reason, .. } if reason == "the engine panicked: this engine can't unload")
    );
    assert_eq!(bench.device.pages().used(), 0);
    let (_, status) = bench.load(Behaviour::Double, 4);
    assert!(matches!(status, Status::Done { .. }), "{status:?}");
}

#[test]
fn a_retired_device_gives_every_order_back_also_those_whose_time_has_not_come() {
    let mut bench = Bench::new(4);
    let (slot, _) = bench.load(Behaviour::Double, 1);
    let later = Window { earliest: bench.clock.now() + Duration::from_secs(3600), latest: Timestamp::NEVER };
    let signature = Arc::new(Net::new(Behaviour::Double).signature.clone());
    let items = vec![bench.numbers(0, &[1, 1], &[1.0])];
    let (action, window, padding, max_elements) = (ActionId(100), later, None, u64::MAX);
    let order =
        ExecuteOrder { action, window, slot: Arc::clone(&slot), signature, padding, max_elements, limit: LIMIT, items };
    assert!(bench.device.execute(order).is_ok());
    assert!(bench.device.retire());
    let waiting = bench.reports.recv().unwrap();
    assert_eq!((waiting.action, waiting.status, waiting.returned.len()), (ActionId(100), Status::TooLate, 1));
    let items = vec![bench.numbers(1, &[1, 1], &[1.0])];
    let now_or_never = bench.now_or_never();
    let ordered = bench.execute(&slot, items, now_or_never);
    assert_eq!((ordered.status, ordered.returned.len()), (Status::TooLate, 1));
    assert!(bench.answers.1.is_empty());
}

#[test]
fn an_output_of_another_size_than_the_batch_goes_to_nobody_else() {
    let mut bench = Bench::new(4);
    let (slot, _) = bench.load(Behaviour::OneRow, 1);
    let window = bench.now_or_never();
    // As a batch its one row can't be shared out; one by one it is what the model gives.
    let items = vec![bench.numbers(0, &[1, 1], &[1.0]), bench.numbers(1, &[1, 1], &[1.0])];
    bench.execute(&slot, items, window);
    for number in 0..2 {
        let (got, outputs) = bench.answer();
        assert_eq!((got, &outputs.unwrap()[0].shape[..]), (number, &[1, 1][..]));
    }
}

#[test]
fn a_request_that_makes_its_batch_fail_fails_alone() {
    let mut bench = Bench::new(4);
    let (slot, _) = bench.load(Behaviour::Picky, 1);
    let window = bench.now_or_never();
    let items = (0..4).map(|number| bench.numbers(number, &[1, 1], &[1.0 - number as f32 % 3.0])).collect();
    let report = bench.execute(&slot, items, window);
    assert!(matches!(report.status, Status::Failed(_)), "its time is no measurement: {:?}", report.status);
    let mut answers: Vec<_> = (0..4).map(|_| bench.answer()).collect();
    answers.sort_by_key(|answer| answer.0);
    let failed: Vec<u32> = answers.iter().filter(|answer| answer.1.is_err()).map(|answer| answer.0).collect();
    assert_eq!(failed, [2]);
    let items = vec![bench.numbers(0, &[1, 1], &[-1.0])];
    assert!(matches!(bench.execute(&slot, items, window).status, Status::Failed(_)));
}

#[test]
fn loads_take_pages_and_unloads_give_them_back() {
    let mut bench = Bench::new(4);
    let (slot, _) = bench.load(Behaviour::Double, 3);
    let (_, status) = bench.load(Behaviour::Double, 2);
    assert!(matches!(status, Status::Failed(reason) if reason.contains("P5")));
    assert_eq!(bench.device.pages().used(), 3);
    let (action, there) = (ActionId(900), Arc::clone(&slot));
    assert!(bench.device.unload(UnloadOrder { action, slot: there, pages: 3, limit: LIMIT }));
    let (_, status) = bench.load(Behaviour::Double, 4);
    assert!(matches!(status, Status::Done { .. }), "{status:?} of the unload");
    let status = bench.reports.recv().unwrap().status;
    assert!(matches!(status, Status::Done { .. }), "an unload is done before the load that was ordered after it");
    let window = bench.now_or_never();
    let items = vec![bench.numbers(0, &[1, 1], &[1.0])];
    let report = bench.execute(&slot, items, window);
    assert!(matches!(report.status, Status::Failed(reason) if reason.contains("P6")), "weights that were unloaded");
    assert!(bench.answer().1.is_err());
}

#[test]
fn a_pinned_executor_runs_on_its_core_alone() {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let last = (0..rustix::thread::CpuSet::MAX_CPU).rfind(|&core| allowed.is_set(core)).unwrap();
    let config = DeviceConfig { name: "test:0".into(), index: 0, pages: 1, pin: Some(0), kind: 0, only_waits: false };
    let device = Device::<Item>::start(&config, Clock::start(), |_| {}).unwrap();
    let (sender, receiver) = unbounded();
    assert!(
        device.run_when_idle(idle_work(move || sender.send(rustix::thread::sched_getaffinity(None).unwrap()).unwrap()))
    );
    let pinned = receiver.recv().unwrap();
    assert!(pinned.is_set(last));
    assert_eq!(pinned.count(), 1);
}
