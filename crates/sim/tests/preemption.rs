//! Batches that are broken off: what is lost, and what isn't.

#![allow(clippy::unwrap_used, reason = "a test that finds something else than it expects should stop")]

mod common;

use base::{ActionId, DeviceId, Duration, Timestamp};
use common::{model, open, world};
use scheduler::{Command, Event, PolicyKind, Scheduler};
use sim::{DrivenScheduler, Invariant, Meter, NoObserver, Setup, Traffic};
use workload::Arrival;

/// `shepherd` on one device that holds its model after 8 ms.
fn shepherd(control_us: u64) -> Setup {
    let mut setup = world(vec![model(0, Some(50))], 1, 7, 1);
    setup.scheduler.policy = PolicyKind::Shepherd;
    setup.scheduler.schedule_ahead = Duration::ZERO;
    setup.network.control = Duration::from_micros(control_us);
    setup.trace_batches = 10;
    setup
}

fn run(setup: &Setup, arrivals_ms: &[f64]) -> Meter {
    let arrival = |&millis: &f64| Arrival { offset: Duration::from_millis_f64(millis), model: 0 };
    let arrivals: Vec<Arrival> = arrivals_ms.iter().map(arrival).collect();
    sim::run(setup, Traffic { open: Some(Box::new(arrivals.into_iter())), closed: None }).unwrap().meter
}

#[test]
fn time_that_was_lost_counts_as_busy_and_the_requests_run_again() {
    // A batch of one runs from 8 to 9 ms; then it and three more are four, which take 4 ms.
    let meter = run(&shepherd(0), &[0.0, 9.0, 9.0, 9.0]);
    assert_eq!((meter.broken_off, meter.batches, meter.rows), (1, 1, 4));
    assert_eq!(meter.exec_busy, Duration::from_millis(5));
    assert_eq!((meter.trace.batches[0].started_ms, meter.trace.batches[0].ended_ms), (9.0, 13.0));
    assert_eq!(meter.total().good, 4);
}

#[test]
fn the_order_to_break_off_takes_its_time() {
    // The batch runs from 12 to 14.5 ms. The device is told at 14 ms; at 15 ms the controller knows, and sends the new
    // one.
    let meter = run(&shepherd(1_000), &[0.0, 12.0, 12.0, 12.0]);
    assert_eq!((meter.broken_off, meter.batches, meter.rows), (1, 1, 4));
    assert_eq!(meter.trace.batches[0].started_ms, 16.0);
    assert_eq!(meter.exec_busy, Duration::from_millis(6));
    // Here the batch is over when the order comes, and was served.
    let meter = run(&shepherd(1_000), &[0.0, 12.6, 12.6, 12.6]);
    assert_eq!((meter.broken_off, meter.batches, meter.rows), (0, 2, 4));
    assert_eq!(meter.total().good, 4);
}

/// The real scheduler, and somebody who breaks batches off behind its back.
struct Meddler<F> {
    scheduler: Scheduler,
    meddle: F,
}

impl<F: FnMut(Option<ActionId>, &mut Vec<Command>)> DrivenScheduler for Meddler<F> {
    fn step(&mut self, now: Timestamp, event: Event, out: &mut Vec<Command>) {
        let over = match &event {
            Event::Reported(report) => Some(report.action),
            _ => None,
        };
        self.scheduler.step(now, event, out);
        (self.meddle)(over, out);
    }

    fn next_wakeup(&self) -> Option<Timestamp> {
        self.scheduler.next_wakeup().map(|(at, _)| at)
    }

    fn free_pages(&self, device: DeviceId) -> Option<u32> {
        self.scheduler.free_pages(device)
    }
}

fn meddled(meddle: impl FnMut(Option<ActionId>, &mut Vec<Command>)) -> Result<Meter, Invariant> {
    let setup = world((0..10).map(|index| model(index, Some(60))).collect(), 2, 28, 2);
    let machine = Meddler { scheduler: Scheduler::new(setup.scheduler.clone()), meddle };
    let run = sim::run_with(&setup, open(&setup, 1_500.0, 1.0, 1), machine, &mut NoObserver);
    run.map(|run| run.meter).map_err(|violation| violation.invariant())
}

#[test]
fn invariants_hold_when_batches_are_broken_off_at_any_time() {
    // At each tenth event the oldest batch under way is broken off, once: it has begun, or waits behind another.
    let mut under_way: Vec<(DeviceId, ActionId)> = Vec::new();
    let mut events = 0;
    let meter = meddled(|over, out| {
        under_way.retain(|&(_, action)| Some(action) != over);
        under_way.extend(out.iter().filter_map(|command| match command {
            Command::Execute(execution) => Some((execution.device, execution.action)),
            _ => None,
        }));
        events += 1;
        if events % 10 == 0 && !under_way.is_empty() {
            let (device, action) = under_way.remove(0);
            out.push(Command::Preempt { device, action });
        }
    });
    let meter = meter.unwrap();
    assert!(meter.broken_off > 50, "{}", meter.broken_off);
    assert!(meter.batches > 200, "{}", meter.batches);
}

#[test]
fn breaking_off_what_is_not_under_way_is_against_the_contract() {
    let mut done = false;
    let verdict = meddled(|_, out| {
        if !std::mem::replace(&mut done, true) {
            out.push(Command::Preempt { device: DeviceId(0), action: ActionId(999_999) });
        }
    });
    assert_eq!(verdict.err(), Some(Invariant::Contract));
}
