//! Every checker can fail: each is shown a run that breaks its invariant and nothing else, and must name it.

mod common;

use base::{ActionId, ApplicationId, DeviceId, Duration, ModelId, RequestId, Timestamp, Transfers, Window};
use common::model;
use scheduler::{
    ActionStatus, Command, DeviceSpec, Event, Execution, Load, ModelSpec, Outcome, Rejection, Report, Request, Unload,
};
use sim::checkers::Checkers;
use sim::{Facts, Observation, Observer, Refusal, Violation};

const DEVICE: DeviceId = DeviceId(0);
const DEADLINE_MS: u64 = 50;

/// A log being written, with all checkers watching. Times are milliseconds.
struct Log {
    checkers: Checkers,
    broken: Option<Violation>,
}

impl Log {
    /// Two models of 7 pages and a device of 10, so only one fits; queues of at most 2.
    fn new() -> Self {
        let specs: Vec<ModelSpec> = (0..2).map(|index| model(index, Some(DEADLINE_MS)).spec).collect();
        let facts = Facts { models: &specs, devices: 1, pages: 10, max_queued_per_model: 2 };
        let log = Self { checkers: Checkers::new(&facts), broken: None };
        log.told(0, Event::DeviceAdded(DeviceSpec { device: DEVICE, pages: 10, kind: 0 }))
    }

    fn see(mut self, millis: u64, seen: &Observation<'_>) -> Self {
        if self.broken.is_none() {
            self.broken = self.checkers.observe(at(millis), seen).err();
        }
        self
    }

    fn told(self, millis: u64, event: Event) -> Self {
        self.see(millis, &Observation::Told(&event))
    }

    fn ordered(self, millis: u64, command: Command) -> Self {
        self.see(millis, &Observation::Ordered(&command))
    }

    fn submitted(self, millis: u64, slot: u32) -> Self {
        let deadline_at = at(millis + DEADLINE_MS);
        let request = Request {
            id: id(slot),
            model: ModelId(0),
            deadline_at,
            priority: 0,
            rows: 1,
            application: ApplicationId::DEFAULT,
            size: None,
        };
        self.told(millis, Event::Submitted(request))
    }

    fn finished(self, millis: u64, slot: u32, outcome: Outcome) -> Self {
        self.ordered(millis, Command::Finish { request: id(slot), outcome })
    }

    /// The model is ordered, copied and reported by 10 ms.
    fn loaded(self, action: u64, model: u32) -> Self {
        let load = load(action, model);
        let done = ActionStatus::Done { started_at: at(0), ended_at: at(8), transfers: Transfers::default() };
        self.ordered(0, Command::Load(load))
            .see(0, &Observation::LoadStarted { load: &load, pages_used: 7 })
            .see(8, &Observation::LoadEnded { load: &load, started_at: at(0) })
            .told(8, Event::Reported(Report { action: ActionId(action), status: done }))
    }

    fn executed(self, started: u64, ended: u64, execution: &Execution) -> Self {
        let (started_at, ended_at) = (at(started), at(ended));
        let report = Report {
            action: execution.action,
            status: ActionStatus::Done { started_at, ended_at, transfers: Transfers::default() },
        };
        self.ordered(started, Command::Execute(execution.clone()))
            .see(started, &Observation::ExecutionStarted(execution))
            .see(ended, &Observation::ExecutionEnded { execution, started_at })
            .told(ended, Event::Reported(report))
    }

    #[track_caller]
    fn breaks(self, invariant: &str, words: &str) {
        let broken = self.broken.expect("something is broken");
        assert_eq!(broken.invariant, invariant, "{broken}");
        assert!(broken.message.contains(words), "{broken}");
        assert!(broken.to_string().starts_with(invariant), "{broken}");
    }
}

fn at(millis: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_millis(millis)
}

fn id(slot: u32) -> RequestId {
    RequestId { slot, generation: 0 }
}

fn load(action: u64, model: u32) -> Load {
    let window = Window { earliest: at(0), latest: at(100) };
    Load { action: ActionId(action), device: DEVICE, model: ModelId(model), window, expected: Duration::from_millis(8) }
}

fn execution(action: u64, slots: &[u32]) -> Execution {
    Execution {
        action: ActionId(action),
        device: DEVICE,
        model: ModelId(0),
        batch: 2,
        requests: slots.iter().copied().map(id).collect(),
        window: Window { earliest: at(10), latest: at(40) },
        expected: Duration::from_millis(3),
        expected_done_at: at(43),
    }
}

const OVERLOADED: Outcome = Outcome::Rejected(Rejection::Overloaded { earliest_at: Timestamp::ZERO });

#[test]
fn a_good_run_breaks_nothing() {
    let log = Log::new()
        .loaded(1, 0)
        .submitted(9, 0)
        .submitted(9, 1)
        .executed(10, 13, &execution(2, &[0, 1]))
        .finished(13, 0, Outcome::Done)
        .finished(13, 1, Outcome::Done)
        .see(13, &Observation::Settled { device: DEVICE, pages_used: 7, controller_used: Some(7) })
        .ordered(14, Command::Unload(Unload { device: DEVICE, model: ModelId(0) }))
        .see(14, &Observation::Unloaded { device: DEVICE, model: ModelId(0), pages_used: 0 })
        .see(14, &Observation::Settled { device: DEVICE, pages_used: 0, controller_used: Some(0) })
        .see(15, &Observation::Over);
    assert_eq!(log.broken, None);
}

#[test]
fn p1_every_request_gets_exactly_one_outcome() {
    let twice = Log::new().submitted(0, 0).finished(1, 0, OVERLOADED).finished(2, 0, OVERLOADED);
    twice.breaks("P1", "it is not alive");
    Log::new().finished(1, 0, OVERLOADED).breaks("P1", "never submitted");
    Log::new().submitted(0, 0).see(99, &Observation::Over).breaks("P1", "1 requests have no outcome");
    Log::new().submitted(0, 0).submitted(1, 0).breaks("P1", "its slot is taken");
}

#[test]
fn p2_no_success_after_its_deadline() {
    let late =
        Log::new().loaded(1, 0).submitted(9, 0).executed(10, 60, &execution(2, &[0])).finished(60, 0, Outcome::Done);
    late.breaks("P2", "its deadline was");
    let never = Log::new().submitted(9, 0).finished(10, 0, Outcome::Done);
    never.breaks("P2", "no execution of it has ended");
}

#[test]
fn p3_nothing_starts_outside_its_window() {
    for started in [9, 41] {
        let log = Log::new().loaded(1, 0).submitted(9, 0).executed(started, 45, &execution(2, &[0]));
        log.breaks("P3", "outside its window");
    }
    let late = load(1, 0);
    let log =
        Log::new().ordered(0, Command::Load(late)).see(101, &Observation::LoadStarted { load: &late, pages_used: 7 });
    log.breaks("P3", "a1 starts outside");
}

#[test]
fn p4_executions_never_overlap() {
    let (first, second) = (execution(2, &[0]), execution(3, &[1]));
    let log = Log::new()
        .loaded(1, 0)
        .submitted(9, 0)
        .submitted(9, 1)
        .ordered(10, Command::Execute(first.clone()))
        .ordered(10, Command::Execute(second.clone()))
        .see(10, &Observation::ExecutionStarted(&first))
        .see(11, &Observation::ExecutionStarted(&second));
    log.breaks("P4", "a3 starts on d0 while a2 is still running");
}

#[test]
fn p5_pages_are_counted_the_same_on_both_sides() {
    Log::new().loaded(1, 0).ordered(9, Command::Load(load(2, 1))).breaks("P5", "14 of 10 pages");
    let other = Observation::Settled { device: DEVICE, pages_used: 0, controller_used: None };
    Log::new().loaded(1, 0).see(9, &other).breaks("P5", "the orders add up to 7");
    let other = Observation::Settled { device: DEVICE, pages_used: 7, controller_used: Some(0) };
    Log::new().loaded(1, 0).see(9, &other).breaks("P5", "the controller counts 0");
    let unload = Command::Unload(Unload { device: DEVICE, model: ModelId(0) });
    Log::new().ordered(0, unload).breaks("P5", "never taken");
    let full = load(1, 0);
    Log::new().see(0, &Observation::LoadStarted { load: &full, pages_used: 11 }).breaks("P5", "11 of 10 pages");
    for (why, words) in [(Refusal::NoPages, "no room"), (Refusal::AlreadyLoaded, "has already")] {
        Log::new().see(0, &Observation::Refused { device: DEVICE, action: ActionId(1), why }).breaks("P5", words);
    }
}

#[test]
fn p6_weights_are_there_while_they_are_used() {
    let batch = execution(2, &[0]);
    Log::new().submitted(9, 0).executed(10, 13, &batch).breaks("P6", "m0 is not loaded on d0");
    let log = Log::new()
        .loaded(1, 0)
        .submitted(9, 0)
        .ordered(10, Command::Execute(batch.clone()))
        .see(10, &Observation::ExecutionStarted(&batch))
        .see(11, &Observation::Unloaded { device: DEVICE, model: ModelId(0), pages_used: 0 });
    log.breaks("P6", "while a batch of it is running");
    let refused = Observation::Refused { device: DEVICE, action: ActionId(1), why: Refusal::NoWeights };
    Log::new().see(0, &refused).breaks("P6", "its weights are not there");
    let lost = Log::new().loaded(1, 0).see(9, &Observation::DeviceDied(DEVICE)).submitted(9, 0);
    lost.executed(10, 13, &execution(2, &[0])).breaks("P6", "not loaded");
}

#[test]
fn p8_what_was_refused_or_cancelled_is_never_executed() {
    let batch = execution(2, &[0]);
    let log = Log::new().loaded(1, 0).submitted(9, 0).executed(10, 13, &batch).finished(13, 0, OVERLOADED);
    log.breaks("P8", "after it was executed");
    let log = Log::new().loaded(1, 0).submitted(9, 0).told(9, Event::Cancelled(id(0))).executed(10, 13, &batch);
    log.breaks("P8", "it was cancelled before");
}

#[test]
fn p9_queues_have_a_bound() {
    let full = Log::new().submitted(0, 0).submitted(0, 1).submitted(0, 2);
    assert_eq!(full.broken, None, "the answer may still come");
    full.told(1, Event::WokeUp).breaks("P9", "3 requests are queued for m0, the bound is 2");
    let refused = Log::new().submitted(0, 0).submitted(0, 1).submitted(0, 2);
    let refused = refused.finished(0, 2, Outcome::Rejected(Rejection::QueueFull)).told(1, Event::WokeUp);
    assert_eq!(refused.broken, None);
}

#[test]
fn promises_of_the_scheduler_are_kept() {
    let ready = || Log::new().loaded(1, 0).submitted(9, 0).submitted(9, 1);
    let order = |log: Log, execution: Execution| log.ordered(10, Command::Execute(execution));
    order(ready(), execution(1, &[0])).breaks("contract", "does not come after");
    order(ready(), execution(2, &[])).breaks("contract", "executes nothing");
    order(ready(), Execution { batch: 3, ..execution(2, &[0]) }).breaks("contract", "batch size 3");
    order(ready(), Execution { batch: 1, ..execution(2, &[0, 1]) }).breaks("contract", "2 rows in a batch of 1");
    order(ready(), Execution { model: ModelId(1), ..execution(2, &[0]) }).breaks("contract", "it asked for m0");
    order(ready(), Execution { device: DeviceId(4), ..execution(2, &[0]) }).breaks("contract", "isn't there");
    let inside_out = Window { earliest: at(9), latest: at(8) };
    order(ready(), Execution { window: inside_out, ..execution(2, &[0]) }).breaks("contract", "never");
    order(order(ready(), execution(2, &[0])), execution(3, &[0, 1])).breaks("contract", "already in a2");
    order(ready(), execution(2, &[7])).breaks("contract", "not alive");
    ready().told(9, Event::DeviceLost(DEVICE)).ordered(9, Command::Load(load(2, 1))).breaks("contract", "isn't there");
}
