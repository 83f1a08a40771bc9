//! Random worlds with random faults: no invariant is ever broken, everything ends, and the same seed gives the same run.
//!
//! A world is one number (`common/worlds.rs`). `cargo run --release -p sim --example worlds -- 10000` tries thousands of others,
//! `... worlds log SEED` shows one.

#[path = "common/worlds.rs"]
mod worlds;

use base::Timestamp;
use scheduler::{ActionStatus, Event, Scheduler};
use sim::{Observation, Observer, Violation};
use std::collections::BTreeSet;
use worlds::Plan;

/// So many are tried each time.
const WORLDS: u64 = 400;

/// Worlds in which something was broken once.
const REGRESSIONS: &[u64] = &[];

/// Worlds in which something is still broken, and what: left out until it is repaired, then regressions.
const OPEN: &[(u64, &str)] = &[
    (3, "P10, deferred: a batch of a size that once took long is nowhere in time, and a smaller one isn't tried"),
    (10, "P10, deferred"),
    (16, "P10, timeout: its fixed wait ends behind the last chance"),
    (71, "P10, timeout"),
    (87, "P10, deferred: given up for a device that is busy, beside an idle one (schedule_ahead)"),
    (90, "contract, clockwork: a window that ends before it begins: a smaller size seems to take longer"),
    (99, "P10, deferred"),
    (173, "P10, deferred"),
    (182, "P10, deferred"),
    (190, "P10, timeout"),
    (195, "P10, punctual"),
    (199, "P10, punctual"),
    (208, "P10, clockwork: a request with more rows in front of it keeps one from starting that would be in time"),
    (219, "P10, deferred"),
    (225, "P10, clockwork"),
    (229, "P10, timeout"),
    (238, "P1, nexus: batch work of a removed model is forgotten when the last device with its weights is lost"),
    (280, "P10, deferred"),
    (283, "P10, timeout"),
    (305, "P10, deferred"),
    (308, "contract, shepherd"),
    (356, "P10, deferred"),
    (372, "P10, deferred"),
];

#[track_caller]
fn holds(seed: u64) {
    let plan = Plan::draw(seed);
    if let Err(broken) = plan.run() {
        panic!("seed {seed}: {broken}\n{plan:#?}");
    }
}

#[test]
fn invariants_hold_whatever_goes_wrong() {
    (0..WORLDS).filter(|seed| !OPEN.iter().any(|(open, _)| open == seed)).for_each(holds);
}

#[test]
fn what_was_repaired_stays_so() {
    REGRESSIONS.iter().copied().for_each(holds);
}

/// What happens in a world.
#[derive(Default)]
struct Happens(BTreeSet<&'static str>);

impl Observer for Happens {
    fn observe(&mut self, _at: Timestamp, seen: &Observation<'_>) -> Result<(), Violation> {
        let what = match seen {
            Observation::Told(Event::DeviceLost(_)) => "a device is lost",
            Observation::Told(Event::DeviceChanged { .. }) => "a device changes",
            Observation::Told(Event::DeviceAdded(spec)) if spec.kind == 2 => "a device of the third kind",
            Observation::Told(Event::ModelRemoved(_)) => "a model is removed",
            Observation::Told(Event::Cancelled(_)) => "a client goes away",
            Observation::Told(Event::Borrowed { .. }) => "a device is borrowed",
            Observation::Told(Event::Returned { .. }) => "and returned",
            Observation::Told(Event::Submitted(request)) if request.priority == 5 => "a low priority",
            Observation::Told(Event::Submitted(request)) if request.rows == 8 => "many rows",
            Observation::Told(Event::Reported(report)) if report.status == ActionStatus::TooLate => "too late",
            Observation::Told(Event::Reported(report)) if report.status == ActionStatus::Preempted => "broken off",
            Observation::ExecutionFailed(_) => "a batch fails",
            Observation::LoadFailed(_) => "a load fails",
            _ => return Ok(()),
        };
        self.0.insert(what);
        Ok(())
    }
}

#[test]
fn everything_happens() {
    let mut happens = Happens::default();
    for seed in 0..80 {
        let plan = Plan::draw(seed);
        let setup = plan.setup();
        // What is broken is for the other tests.
        let _ = sim::run_with(&setup, plan.traffic(&setup), Scheduler::new(setup.scheduler.clone()), &mut happens);
    }
    assert_eq!(happens.0.len(), 13, "{:?}", happens.0);
}
