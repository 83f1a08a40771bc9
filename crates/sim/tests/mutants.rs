//! Schedulers that break a promise, driven like the real one: the checkers must catch each, end to end.

#![allow(clippy::unwrap_used, reason = "a test that finds something else than it expects should stop")]

mod common;

use base::{DeviceId, Duration, RequestId, Timestamp};
use common::{model, open, world};
use scheduler::{Command, Event, Outcome, PolicyKind, Rejection, Scheduler, Unload};
use sim::{DrivenScheduler, Invariant, NoObserver, Setup};
use std::collections::VecDeque;

/// The real scheduler with its orders tampered with.
struct Mutant<F> {
    scheduler: Scheduler,
    tamper: F,
}

impl<F: FnMut(Timestamp, &mut Vec<Command>)> DrivenScheduler for Mutant<F> {
    fn step(&mut self, now: Timestamp, event: Event, out: &mut Vec<Command>) {
        self.scheduler.step(now, event, out);
        (self.tamper)(now, out);
    }

    fn next_wakeup(&self) -> Option<Timestamp> {
        self.scheduler.next_wakeup().map(|(at, _)| at)
    }

    fn free_pages(&self, device: DeviceId) -> Option<u32> {
        self.scheduler.free_pages(device)
    }
}

/// Ten models on two devices that hold four each, a little too much to do.
fn setup() -> Setup {
    world((0..10).map(|index| model(index, Some(60))).collect(), 2, 28, 2)
}

/// What the checkers say about a scheduler whose orders are tampered with.
fn caught(tamper: impl FnMut(Timestamp, &mut Vec<Command>)) -> Option<Invariant> {
    let setup = setup();
    let machine = Mutant { scheduler: Scheduler::new(setup.scheduler.clone()), tamper };
    let run = sim::run_with(&setup, open(&setup, 1_500.0, 1.0, 1), machine, &mut NoObserver);
    run.err().map(|violation| violation.invariant())
}

#[test]
fn the_real_scheduler_is_innocent() {
    assert_eq!(caught(|_, _| {}), None);
}

#[test]
fn a_forgotten_outcome_is_p1() {
    let mut count = 0;
    let forget = |_, out: &mut Vec<Command>| {
        out.retain(|command| {
            let finish = matches!(command, Command::Finish { .. });
            count += usize::from(finish);
            !finish || count != 100
        });
    };
    assert_eq!(caught(forget), Some(Invariant::P1));
}

#[test]
fn a_second_outcome_is_p1() {
    let repeat = |_, out: &mut Vec<Command>| {
        if let Some(last @ Command::Finish { .. }) = out.last().cloned() {
            out.push(last);
        }
    };
    assert_eq!(caught(repeat), Some(Invariant::P1));
}

#[test]
fn a_refusal_sold_as_success_is_p2() {
    let embellish = |_, out: &mut Vec<Command>| {
        for command in out {
            if let Command::Finish { outcome: outcome @ Outcome::Rejected(_), .. } = command {
                *outcome = Outcome::Done;
            }
        }
    };
    assert_eq!(caught(embellish), Some(Invariant::P2));
}

#[test]
fn a_forgotten_unload_is_p5() {
    assert_eq!(caught(|_, out| out.retain(|command| !matches!(command, Command::Unload(_)))), Some(Invariant::P5));
}

#[test]
fn weights_taken_from_under_a_batch_are_p6() {
    let mut done = false;
    let rob = |_, out: &mut Vec<Command>| {
        let target = out.iter().find_map(|command| match command {
            Command::Execute(execution) => Some((execution.device, execution.model)),
            _ => None,
        });
        if let (Some((device, model)), false) = (target, done) {
            done = true;
            out.push(Command::Unload(Unload { device, model }));
        }
    };
    assert_eq!(caught(rob), Some(Invariant::P6));
}

#[test]
fn a_request_executed_after_its_refusal_is_p8() {
    let mut refused: Option<RequestId> = None;
    let revive = |_, out: &mut Vec<Command>| {
        for command in out {
            match command {
                Command::Finish { request, outcome: Outcome::Rejected(_) } => refused = Some(*request),
                Command::Execute(execution) => {
                    if let Some(request) = refused {
                        execution.requests[0] = request;
                    }
                }
                _ => {}
            }
        }
    };
    // The dead request is also none of the batch's own: whichever promise is looked at first is named.
    assert!([Some(Invariant::P8), Some(Invariant::Contract)].contains(&caught(revive)));
}

/// Tampers with each execution.
fn executions(
    mut tamper: impl FnMut(Timestamp, &mut scheduler::Execution),
) -> impl FnMut(Timestamp, &mut Vec<Command>) {
    move |now, out| {
        for command in out {
            if let Command::Execute(execution) = command {
                tamper(now, execution);
            }
        }
    }
}

#[test]
fn a_window_that_is_open_for_too_long_is_p3() {
    let late = executions(|_, execution| execution.window.latest += Duration::from_nanos(1));
    assert_eq!(caught(late), Some(Invariant::P3));
}

#[test]
fn a_batch_that_is_expected_too_early_is_p3() {
    // It starts before its order has left.
    let early =
        executions(|now, execution| execution.expected_done_at = now + execution.expected - Duration::from_nanos(1));
    assert_eq!(caught(early), Some(Invariant::P3));
}

#[test]
fn batches_that_are_planned_at_the_same_time_are_p4() {
    // The scheduler gives work ahead: the second batch of a device starts when the first is over.
    let at_once = executions(|now, execution| execution.expected_done_at = now + execution.expected);
    assert_eq!(caught(at_once), Some(Invariant::P4));
}

#[test]
fn a_refusal_of_what_is_in_a_batch_is_p8() {
    let refuse = |_, out: &mut Vec<Command>| {
        let first = out.iter().find_map(|command| match command {
            Command::Execute(execution) => execution.requests.first().copied(),
            _ => None,
        });
        let outcome = Outcome::Rejected(Rejection::QueueFull);
        out.extend(first.map(|request| Command::Finish { request, outcome }));
    };
    assert_eq!(caught(refuse), Some(Invariant::P8));
}

#[test]
fn a_cancelled_request_that_is_executed_is_p8() {
    /// Doesn't hear of those who went away.
    struct Deaf(Scheduler);
    impl DrivenScheduler for Deaf {
        fn step(&mut self, now: Timestamp, event: Event, out: &mut Vec<Command>) {
            let event = if let Event::Cancelled(_) = event { Event::WokeUp } else { event };
            self.0.step(now, event, out);
        }
        fn next_wakeup(&self) -> Option<Timestamp> {
            self.0.next_wakeup().map(|(at, _)| at)
        }
        fn free_pages(&self, device: DeviceId) -> Option<u32> {
            self.0.free_pages(device)
        }
    }
    let mut setup = setup();
    setup.faults.cancel_probability = 0.3;
    let machine = Deaf(Scheduler::new(setup.scheduler.clone()));
    let run = sim::run_with(&setup, open(&setup, 1_500.0, 1.0, 1), machine, &mut NoObserver);
    assert_eq!(run.unwrap_err().invariant(), Invariant::P8);
}

#[test]
fn a_scheduler_that_oversleeps_is_p10() {
    /// Wakes up late.
    struct Sleepy(Scheduler);
    impl DrivenScheduler for Sleepy {
        fn step(&mut self, now: Timestamp, event: Event, out: &mut Vec<Command>) {
            self.0.step(now, event, out);
        }
        fn next_wakeup(&self) -> Option<Timestamp> {
            self.0.next_wakeup().map(|(at, _)| at + Duration::from_millis(3))
        }
        fn free_pages(&self, device: DeviceId) -> Option<u32> {
            self.0.free_pages(device)
        }
    }
    let mut setup = world((0..2).map(|index| model(index, Some(60))).collect(), 2, 28, 2);
    // Starts when it is woken, just before it would be too late.
    setup.scheduler.policy = PolicyKind::Timeout;
    setup.scheduler.timeout = 0.95;
    let machine = Sleepy(Scheduler::new(setup.scheduler.clone()));
    let run = sim::run_with(&setup, open(&setup, 20.0, 1.0, 1), machine, &mut NoObserver);
    assert_eq!(run.err().map(|violation| violation.invariant()), Some(Invariant::P10));
}

#[test]
fn a_refusal_that_is_kept_back_is_p11() {
    /// Says no when it is long known.
    struct Shy {
        scheduler: Scheduler,
        kept: VecDeque<(Timestamp, Command)>,
    }
    impl DrivenScheduler for Shy {
        fn step(&mut self, now: Timestamp, event: Event, out: &mut Vec<Command>) {
            while self.kept.front().is_some_and(|&(at, _)| at <= now) {
                out.extend(self.kept.pop_front().map(|(_, command)| command));
            }
            let mut orders = Vec::new();
            self.scheduler.step(now, event, &mut orders);
            for order in orders {
                match order {
                    Command::Finish { outcome: Outcome::Rejected(_), .. } => {
                        self.kept.push_back((now + Duration::from_millis(70), order));
                    }
                    other => out.push(other),
                }
            }
        }
        fn next_wakeup(&self) -> Option<Timestamp> {
            let kept = self.kept.front().map(|&(at, _)| at);
            [self.scheduler.next_wakeup().map(|(at, _)| at), kept].into_iter().flatten().min()
        }
        fn free_pages(&self, device: DeviceId) -> Option<u32> {
            self.scheduler.free_pages(device)
        }
    }
    let setup = setup();
    let machine = Shy { scheduler: Scheduler::new(setup.scheduler.clone()), kept: VecDeque::new() };
    let run = sim::run_with(&setup, open(&setup, 1_500.0, 1.0, 1), machine, &mut NoObserver);
    let invariant = run.unwrap_err().invariant();
    assert_eq!(invariant, Invariant::P11);
}

#[test]
fn a_scheduler_that_never_refuses_a_full_queue_is_p9() {
    let mut setup = setup();
    setup.scheduler.max_queued_per_model = 4;
    // The driver's bound is 4, the scheduler believes in another.
    let believed = scheduler::Config { max_queued_per_model: 1 << 20, ..setup.scheduler.clone() };
    let machine = Mutant { scheduler: Scheduler::new(believed), tamper: |_, _: &mut Vec<Command>| {} };
    let run = sim::run_with(&setup, open(&setup, 20_000.0, 1.0, 1), machine, &mut NoObserver);
    assert_eq!(run.unwrap_err().invariant(), Invariant::P9);
}

#[test]
fn a_scheduler_that_asks_to_be_woken_for_ever_is_stopped() {
    struct WakesAtOnce;
    impl DrivenScheduler for WakesAtOnce {
        fn step(&mut self, _: Timestamp, _: Event, _: &mut Vec<Command>) {}
        fn next_wakeup(&self) -> Option<Timestamp> {
            Some(Timestamp::ZERO)
        }
        fn free_pages(&self, _: DeviceId) -> Option<u32> {
            None
        }
    }
    let setup = setup();
    let run = sim::run_with(&setup, open(&setup, 10.0, 1.0, 1), WakesAtOnce, &mut NoObserver);
    assert!(run.unwrap_err().to_string().contains("woken"), "a livelock is named");
}

#[test]
fn chance_in_a_scheduler_shows_in_its_fingerprint() {
    // P7: two runs of the same world, one of them with a single window a little shorter.
    let run = |differs: bool| {
        let setup = setup();
        let mut differs = differs;
        let tamper = move |_, out: &mut Vec<Command>| {
            for command in out {
                if let Command::Execute(execution) = command
                    && std::mem::take(&mut differs)
                {
                    execution.window.latest = execution.window.latest - Duration::from_nanos(1);
                }
            }
        };
        let machine = Mutant { scheduler: Scheduler::new(setup.scheduler.clone()), tamper };
        sim::run_with(&setup, open(&setup, 1_500.0, 1.0, 1), machine, &mut NoObserver).unwrap().fingerprint
    };
    assert_eq!(run(false), run(false));
    assert_ne!(run(false), run(true));
}
