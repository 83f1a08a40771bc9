//! Every checker can fail: each is shown a run that breaks its invariant and nothing else, and must name it.

mod common;

use base::{ActionId, ApplicationId, DeviceId, Duration, ModelId, RequestId, Timestamp, Transfers, Window};
use common::model;
use scheduler::{
    ActionStatus, Command, Delay, DeviceSpec, Event, Execution, Load, ModelSpec, Outcome, Rejection, Report, Request,
    Unload,
};
use sim::checkers::Checkers;
use sim::{Facts, Invariant, Observation, Observer, Promises, Refusal, Violation};

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
        let facts = Facts {
            models: &specs,
            devices: 1,
            pages: 10,
            max_queued_per_model: 2,
            promises: Promises { exact: true, planned: true, idle_devices: true },
            delay: Delay::default(),
            heard_within: Duration::from_millis(5),
        };
        let log = Self { checkers: Checkers::new(&facts), broken: None };
        let log = specs.into_iter().fold(log, |log, spec| log.told(0, Event::ModelAdded(spec)));
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
        self.ordered(10, Command::Execute(execution.clone()))
            .see(started, &Observation::ExecutionStarted(execution))
            .see(ended, &Observation::ExecutionEnded { execution, started_at })
            .told(ended, Event::Reported(report))
    }

    #[track_caller]
    fn breaks(self, invariant: Invariant, words: &str) {
        let broken = self.broken.expect("something is broken");
        assert_eq!(broken.invariant(), invariant, "{broken}");
        let sentence = broken.to_string();
        assert!(sentence.starts_with(&invariant.to_string()) && sentence.contains(words), "{broken}");
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
        expected_done_at: at(13),
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
    twice.breaks(Invariant::P1, "it is not alive");
    Log::new().finished(1, 0, OVERLOADED).breaks(Invariant::P1, "never submitted");
    Log::new().submitted(0, 0).see(99, &Observation::Over).breaks(Invariant::P1, "1 requests have no outcome");
    Log::new().submitted(0, 0).submitted(1, 0).breaks(Invariant::P1, "its slot is taken");
}

#[test]
fn p2_no_success_after_its_deadline() {
    let late =
        Log::new().loaded(1, 0).submitted(9, 0).executed(10, 60, &execution(2, &[0])).finished(60, 0, Outcome::Done);
    late.breaks(Invariant::P2, "its deadline was");
    let never = Log::new().submitted(9, 0).finished(10, 0, Outcome::Done);
    never.breaks(Invariant::P2, "no execution of it has ended");
}

#[test]
fn p3_nothing_starts_outside_its_window() {
    for started in [9, 41] {
        let log = Log::new().loaded(1, 0).submitted(9, 0).executed(started, 45, &execution(2, &[0]));
        log.breaks(Invariant::P3, "outside its window");
    }
    let late = load(1, 0);
    let log =
        Log::new().ordered(0, Command::Load(late)).see(101, &Observation::LoadStarted { load: &late, pages_used: 7 });
    log.breaks(Invariant::P3, "a1 starts outside");
    let order = |execution| Log::new().loaded(1, 0).submitted(9, 0).ordered(10, Command::Execute(execution));
    let long = Window { earliest: at(10), latest: at(57) };
    order(Execution { window: long, ..execution(2, &[0]) }).breaks(Invariant::P3, "r0.0 must be done at @59ms");
    order(Execution { expected_done_at: at(44), ..execution(2, &[0]) })
        .breaks(Invariant::P3, "planned to start at @41ms");
    let started_at = at(9);
    let status = ActionStatus::Done { started_at, ended_at: at(14), transfers: Transfers::default() };
    let log = order(execution(2, &[0])).told(14, Event::Reported(Report { action: ActionId(2), status }));
    log.breaks(Invariant::P3, "a2 starts outside");
}

#[test]
fn p4_executions_never_overlap() {
    let (first, overlapping) = (execution(2, &[0]), execution(3, &[1]));
    let second = Execution { expected_done_at: at(16), ..overlapping.clone() };
    let log = || Log::new().loaded(1, 0).submitted(9, 0).submitted(9, 1).ordered(10, Command::Execute(first.clone()));
    let running = log()
        .ordered(10, Command::Execute(second.clone()))
        .see(10, &Observation::ExecutionStarted(&first))
        .see(11, &Observation::ExecutionStarted(&second));
    running.breaks(Invariant::P4, "a3 starts on d0 while a2 is still running");
    // Whatever the worker makes of it.
    log().ordered(10, Command::Execute(overlapping.clone())).breaks(Invariant::P4, "what was ordered before ends at");
    let report = Report {
        action: ActionId(2),
        status: ActionStatus::Done { started_at: at(10), ended_at: at(12), transfers: Transfers::default() },
    };
    let early = Execution { expected_done_at: at(15), ..overlapping.clone() };
    let log = log().told(12, Event::Reported(report)).ordered(12, Command::Execute(early));
    assert_eq!(log.broken, None, "it is over earlier than was planned");
    let borrowed = Event::Borrowed { device: DEVICE, action: ActionId::DRIVERS, expected: Duration::from_millis(9) };
    let lent = Log::new().loaded(1, 0).submitted(9, 1).told(9, borrowed);
    lent.ordered(10, Command::Execute(overlapping)).breaks(Invariant::P4, "what was ordered before ends at @18ms");
}

#[test]
fn p5_pages_are_counted_the_same_on_both_sides() {
    Log::new().loaded(1, 0).ordered(9, Command::Load(load(2, 1))).breaks(Invariant::P5, "14 of 10 pages");
    let other = Observation::Settled { device: DEVICE, pages_used: 0, controller_used: None };
    Log::new().loaded(1, 0).see(9, &other).breaks(Invariant::P5, "the orders add up to 7");
    let other = Observation::Settled { device: DEVICE, pages_used: 7, controller_used: Some(0) };
    Log::new().loaded(1, 0).see(9, &other).breaks(Invariant::P5, "the controller counts 0");
    let unload = Command::Unload(Unload { device: DEVICE, model: ModelId(0) });
    Log::new().ordered(0, unload).breaks(Invariant::P5, "never taken");
    let full = load(1, 0);
    Log::new()
        .see(0, &Observation::LoadStarted { load: &full, pages_used: 11 })
        .breaks(Invariant::P5, "11 of 10 pages");
    for (why, words) in [(Refusal::NoPages, "no room"), (Refusal::AlreadyLoaded, "has already")] {
        Log::new()
            .see(0, &Observation::Refused { device: DEVICE, action: ActionId(1), why })
            .breaks(Invariant::P5, words);
    }
}

#[test]
fn p6_weights_are_there_while_they_are_used() {
    let batch = execution(2, &[0]);
    Log::new().submitted(9, 0).executed(10, 13, &batch).breaks(Invariant::P6, "m0 is not loaded on d0");
    let log = Log::new()
        .loaded(1, 0)
        .submitted(9, 0)
        .ordered(10, Command::Execute(batch.clone()))
        .see(10, &Observation::ExecutionStarted(&batch))
        .see(11, &Observation::Unloaded { device: DEVICE, model: ModelId(0), pages_used: 0 });
    log.breaks(Invariant::P6, "while a batch of it is running");
    let refused = Observation::Refused { device: DEVICE, action: ActionId(1), why: Refusal::NoWeights };
    Log::new().see(0, &refused).breaks(Invariant::P6, "its weights are not there");
    let lost = Log::new().loaded(1, 0).see(9, &Observation::DeviceDied(DEVICE)).submitted(9, 0);
    lost.executed(10, 13, &execution(2, &[0])).breaks(Invariant::P6, "not loaded");
}

#[test]
fn p8_what_was_refused_or_cancelled_is_never_executed() {
    let batch = execution(2, &[0]);
    let log = Log::new().loaded(1, 0).submitted(9, 0).executed(10, 13, &batch).finished(13, 0, OVERLOADED);
    log.breaks(Invariant::P8, "after it was executed");
    let log = Log::new().loaded(1, 0).submitted(9, 0).told(9, Event::Cancelled(id(0))).executed(10, 13, &batch);
    log.breaks(Invariant::P8, "it was cancelled before");
    let ordered = || Log::new().loaded(1, 0).submitted(9, 0).ordered(10, Command::Execute(batch.clone()));
    ordered().finished(10, 0, OVERLOADED).breaks(Invariant::P8, "while it is in a2");
    let lost = ordered().told(12, Event::DeviceLost(DEVICE)).finished(12, 0, OVERLOADED);
    lost.breaks(Invariant::P8, "after it was executed");
    let late = Event::Reported(Report { action: ActionId(2), status: ActionStatus::TooLate });
    let refused = ordered().told(41, late).finished(57, 0, Outcome::Rejected(Rejection::NoDevice));
    assert_eq!(refused.broken, None, "it was never begun");
}

#[test]
fn p2_a_success_is_of_the_request_that_ran() {
    let batch = execution(2, &[0]);
    let other = RequestId { slot: 0, generation: 1 };
    let request = Request {
        id: other,
        model: ModelId(0),
        deadline_at: at(60),
        priority: 0,
        rows: 1,
        application: ApplicationId::DEFAULT,
        size: None,
    };
    let log = Log::new().loaded(1, 0).submitted(9, 0).ordered(10, Command::Execute(batch.clone()));
    let log = log.see(10, &Observation::ExecutionStarted(&batch)).finished(11, 0, Outcome::Failed);
    let log = log.told(12, Event::Submitted(request));
    let log = log.see(13, &Observation::ExecutionEnded { execution: &batch, started_at: at(10) });
    let done = Command::Finish { request: other, outcome: Outcome::Done };
    log.ordered(13, done).breaks(Invariant::P2, "no execution of it has ended");
}

#[test]
fn p10_a_device_that_is_known_as_slow_has_an_earlier_last_chance() {
    let slow = |factor| Log::new().loaded(1, 0).see(8, &Observation::Slowed { device: DEVICE, factor }).submitted(9, 0);
    // l(1) is 2.5 ms: 50 ms on it.
    assert!(slow(20.0).finished(57, 0, OVERLOADED).broken.is_none(), "it was known to take too long when it came");
    slow(4.0).finished(57, 0, OVERLOADED).breaks(Invariant::P10, "its last chance was @49ms");
    let meanwhile = slow(1.0).see(50, &Observation::Slowed { device: DEVICE, factor: 4.0 });
    assert!(meanwhile.finished(57, 0, OVERLOADED).broken.is_none(), "its last chance was over when it became slow");
}

#[test]
fn p10_no_request_is_given_up_beside_an_idle_device() {
    // A batch of one takes 2.5 ms, so that 56.5 ms is the last chance.
    let waiting = || Log::new().loaded(1, 0).submitted(9, 0);
    waiting().finished(57, 0, OVERLOADED).breaks(Invariant::P10, "its last chance was @56.5ms");
    waiting().finished(30, 0, OVERLOADED).breaks(Invariant::P10, "d0 holds the model");
    let good = |log: Log, why: &str| assert_eq!(log.finished(57, 0, OVERLOADED).broken, None, "{why}");
    good(Log::new().submitted(9, 0), "nobody holds its model");
    let full = waiting().finished(30, 0, Outcome::Rejected(Rejection::QueueFull));
    assert_eq!(full.broken, None, "it is not for want of time");
    let lent = Event::Borrowed { device: DEVICE, action: ActionId::DRIVERS, expected: Duration::from_millis(40) };
    let returned = Event::Returned { device: DEVICE, action: ActionId::DRIVERS };
    good(waiting().told(20, lent.clone()), "the device isn't idle");
    good(waiting().told(20, lent.clone()).told(57, returned.clone()), "it is idle too late");
    let early = waiting().told(20, lent).told(50, returned).finished(57, 0, OVERLOADED);
    early.breaks(Invariant::P10, "idle since @50ms");
    let unload = Command::Unload(Unload { device: DEVICE, model: ModelId(0) });
    good(waiting().ordered(40, unload), "its weights are gone");
    // A batch of two that took 30 ms instead of 3: one may take 25 ms, so that its last chance was at 34 ms.
    let slow = waiting().submitted(9, 1).executed(10, 40, &execution(2, &[1])).finished(40, 1, Outcome::Done);
    good(slow, "what is believed has changed since its last chance");
    good(waiting().told(57, Event::DeviceChanged { device: DEVICE, kind: 0 }), "devices have");
}

#[test]
fn p11_no_outcome_comes_long_after_the_deadline() {
    let late = Log::new().submitted(9, 0).finished(60, 0, OVERLOADED);
    late.breaks(Invariant::P11, "1000us after @59ms");
    let batch = execution(2, &[0]);
    let running = || {
        let log = Log::new().loaded(1, 0).submitted(9, 0).ordered(10, Command::Execute(batch.clone()));
        log.see(12, &Observation::ExecutionStarted(&batch))
    };
    let ended = running().see(70, &Observation::ExecutionEnded { execution: &batch, started_at: at(12) });
    assert_eq!(ended.finished(75, 0, Outcome::Late).broken, None, "the report was on its way");
    let ended = running().see(70, &Observation::ExecutionEnded { execution: &batch, started_at: at(12) });
    ended.finished(76, 0, Outcome::Late).breaks(Invariant::P11, "1000us after @75ms");
    assert_eq!(running().finished(90, 0, Outcome::Cancelled).broken, None, "it isn't over");
    let died = running().see(61, &Observation::DeviceDied(DEVICE)).finished(67, 0, Outcome::Failed);
    died.breaks(Invariant::P11, "1000us after @66ms");
}

#[test]
fn a_model_that_was_removed_is_not_loaded() {
    let log = Log::new().told(1, Event::ModelRemoved(ModelId(1))).ordered(2, Command::Load(load(1, 1)));
    log.breaks(Invariant::Contract, "m1, which was removed");
}

#[test]
fn p9_queues_have_a_bound() {
    let full = Log::new().submitted(0, 0).submitted(0, 1).submitted(0, 2);
    assert_eq!(full.broken, None, "the answer may still come");
    full.told(1, Event::WokeUp).breaks(Invariant::P9, "3 requests are queued for m0, the bound is 2");
    let refused = Log::new().submitted(0, 0).submitted(0, 1).submitted(0, 2);
    let refused = refused.finished(0, 2, Outcome::Rejected(Rejection::QueueFull)).told(1, Event::WokeUp);
    assert_eq!(refused.broken, None);
}

#[test]
fn promises_of_the_scheduler_are_kept() {
    let ready = || Log::new().loaded(1, 0).submitted(9, 0).submitted(9, 1);
    let order = |log: Log, execution: Execution| log.ordered(10, Command::Execute(execution));
    order(ready(), execution(1, &[0])).breaks(Invariant::Contract, "does not come after");
    order(ready(), execution(2, &[])).breaks(Invariant::Contract, "executes nothing");
    order(ready(), Execution { batch: 3, ..execution(2, &[0]) }).breaks(Invariant::Contract, "batch size 3");
    order(ready(), Execution { batch: 1, ..execution(2, &[0, 1]) })
        .breaks(Invariant::Contract, "2 rows in a batch of 1");
    order(ready(), Execution { model: ModelId(1), ..execution(2, &[0]) })
        .breaks(Invariant::Contract, "it asked for m0");
    order(ready(), Execution { device: DeviceId(4), ..execution(2, &[0]) }).breaks(Invariant::Contract, "isn't there");
    let inside_out = Window { earliest: at(9), latest: at(8) };
    order(ready(), Execution { window: inside_out, ..execution(2, &[0]) }).breaks(Invariant::Contract, "never");
    order(order(ready(), execution(2, &[0])), execution(3, &[0, 1])).breaks(Invariant::Contract, "already in a2");
    order(ready(), execution(2, &[7])).breaks(Invariant::Contract, "not alive");
    ready()
        .told(9, Event::DeviceLost(DEVICE))
        .ordered(9, Command::Load(load(2, 1)))
        .breaks(Invariant::Contract, "isn't there");
}
