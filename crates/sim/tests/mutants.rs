//! Schedulers that break a promise, driven like the real one: the checkers must catch each, end to end.

#![allow(clippy::unwrap_used, reason = "a test that finds something else than it expects should stop")]

mod common;

use base::{DeviceId, RequestId, Timestamp};
use common::{model, open, world};
use scheduler::{Command, Event, Outcome, Scheduler, Unload};
use sim::{Machine, Nobody, Setup};

/// The real scheduler with its orders tampered with.
struct Mutant<F> {
    scheduler: Scheduler,
    tamper: F,
}

impl<F: FnMut(Timestamp, &mut Vec<Command>)> Machine for Mutant<F> {
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
fn caught(tamper: impl FnMut(Timestamp, &mut Vec<Command>)) -> &'static str {
    let setup = setup();
    let machine = Mutant { scheduler: Scheduler::new(setup.scheduler.clone()), tamper };
    let run = sim::run_with(&setup, open(&setup, 1_500.0, 1.0, 1), machine, &mut Nobody);
    run.err().map_or("nothing", |violation| violation.invariant)
}

#[test]
fn the_real_scheduler_is_innocent() {
    assert_eq!(caught(|_, _| {}), "nothing");
}

#[test]
fn a_forgotten_outcome_is_p1() {
    let mut count = 0;
    let forget = |_, out: &mut Vec<Command>| {
        out.retain(|command| {
            count += usize::from(matches!(command, Command::Finish { .. }));
            count != 100
        });
    };
    assert_eq!(caught(forget), "P1");
}

#[test]
fn a_second_outcome_is_p1() {
    let repeat = |_, out: &mut Vec<Command>| {
        if let Some(last @ Command::Finish { .. }) = out.last().cloned() {
            out.push(last);
        }
    };
    assert_eq!(caught(repeat), "P1");
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
    assert_eq!(caught(embellish), "P2");
}

#[test]
fn a_forgotten_unload_is_p5() {
    assert_eq!(caught(|_, out| out.retain(|command| !matches!(command, Command::Unload(_)))), "P5");
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
    assert_eq!(caught(rob), "P6");
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
    assert!(["P8", "contract"].contains(&caught(revive)));
}

#[test]
fn a_scheduler_that_never_refuses_a_full_queue_is_p9() {
    let mut setup = setup();
    setup.scheduler.max_queued_per_model = 4;
    // The driver's bound is 4, the scheduler believes in another.
    let believed = scheduler::Config { max_queued_per_model: 1 << 20, ..setup.scheduler.clone() };
    let machine = Mutant { scheduler: Scheduler::new(believed), tamper: |_, _: &mut Vec<Command>| {} };
    let run = sim::run_with(&setup, open(&setup, 20_000.0, 1.0, 1), machine, &mut Nobody);
    assert_eq!(run.unwrap_err().invariant, "P9");
}

#[test]
fn a_scheduler_that_asks_to_be_woken_for_ever_is_stopped() {
    struct Restless;
    impl Machine for Restless {
        fn step(&mut self, _: Timestamp, _: Event, _: &mut Vec<Command>) {}
        fn next_wakeup(&self) -> Option<Timestamp> {
            Some(Timestamp::ZERO)
        }
        fn free_pages(&self, _: DeviceId) -> Option<u32> {
            None
        }
    }
    let setup = setup();
    let run = sim::run_with(&setup, open(&setup, 10.0, 1.0, 1), Restless, &mut Nobody);
    assert!(run.unwrap_err().to_string().contains("woken"), "a livelock is named");
}

#[test]
fn chance_in_a_scheduler_shows_in_its_fingerprint() {
    // P7: two runs of the same world, one of them with a single different estimate.
    let run = |differs: bool| {
        let setup = setup();
        let mut differs = differs;
        let tamper = move |_, out: &mut Vec<Command>| {
            for command in out {
                if let Command::Execute(execution) = command
                    && std::mem::take(&mut differs)
                {
                    execution.expected += base::Duration::from_nanos(1);
                }
            }
        };
        let machine = Mutant { scheduler: Scheduler::new(setup.scheduler.clone()), tamper };
        sim::run_with(&setup, open(&setup, 1_500.0, 1.0, 1), machine, &mut Nobody).unwrap().fingerprint
    };
    assert_eq!(run(false), run(false));
    assert_ne!(run(false), run(true));
}
