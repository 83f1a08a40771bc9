//! Random worlds with random faults: no invariant is ever broken, everything ends, and the same seed gives the same
//! run.
//!
//! A world is one number (`lab::worlds`). `cargo run --release -p lab -- worlds 10000` tries thousands of others,
//! `... world SEED` shows one.

use base::Timestamp;
use lab::worlds::RandomWorld;
use scheduler::{ActionStatus, Event, PolicyKind, Scheduler};
use sim::{Observation, Observer, Violation};
use std::collections::BTreeSet;

/// So many are tried each time.
const WORLDS: u64 = 400;

/// Worlds in which something was broken once: among them a window inside out (90), a rehearsal that never ended (164),
/// batch work that was forgotten with a device (238), a kind of devices that was slower than the one planned with
/// (502092), inputs that nobody sent (503098), a size slower than a larger one (505539), a load refused for ever
/// (503098), the inputs that a whole batch would hold counted for a request of three rows (1000708), an overdue device
/// asked in the place of an idle one (1004019), a queue of a model that is still to come (7700387), a request given up
/// for a larger batch on a device that had idled for others (7701353), a number that no model has had yet (7701388).
const REGRESSIONS: &[u64] = &[
    3, 5, 10, 11, 15, 16, 28, 49, 53, 55, 71, 78, 79, 87, 90, 97, 99, 109, 164, 173, 182, 190, 195, 199, 208, 219, 225,
    229, 238, 280, 283, 305, 308, 356, 372, 501310, 502075, 502092, 502131, 503098, 504746, 505539, 506730, 901727,
    1000509, 1000708, 1001342, 1001656, 1004019, 1006527, 1011018, 7700387, 7700836, 7701353, 7703355, 7701388,
];

#[track_caller]
fn holds(seed: u64) {
    let world = RandomWorld::draw(seed);
    if let Err(broken) = world.run() {
        panic!("seed {seed}: {broken}\n{world:#?}");
    }
}

#[test]
fn invariants_hold_whatever_goes_wrong() {
    (0..WORLDS).for_each(holds);
}

#[test]
fn what_was_repaired_stays_so() {
    // With the default policy, too, whichever found it.
    for &seed in REGRESSIONS {
        holds(seed);
        let world = RandomWorld { policy: PolicyKind::Punctual, ..RandomWorld::draw(seed) };
        if let Err(broken) = world.run() {
            panic!("seed {seed}: {broken}\n{world:#?}");
        }
    }
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
            Observation::Told(Event::StageSubmitted(_, at)) if at.stage == 3 => "a fourth stage",
            Observation::WholeEnded { good_at: Some(_), .. } => "a pipeline answers",
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
        let world = RandomWorld::draw(seed);
        let setup = world.setup();
        // What is broken is for the other tests.
        let _ = sim::run_with(&setup, world.traffic(&setup), Scheduler::new(setup.scheduler.clone()), &mut happens);
    }
    assert_eq!(happens.0.len(), 15, "{:?}", happens.0);
}
