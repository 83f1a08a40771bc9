//! The invariants of the design, each watched by an observer of its own that knows nothing of the scheduler's insides.
//!
//! P7 is not here: it is about two runs, so it is [`crate::Fingerprint`] and the tests that compare.

mod chances;
mod contract;
mod outcomes;
mod pages;
mod queues;
mod residency;
mod timing;
mod wholes;

pub use chances::{IdleDevicesServe, OutcomeInTime};
pub use contract::Contract;
pub use outcomes::{ExactlyOneOutcome, RefusedNeverExecuted, SuccessInTime};
pub use pages::PageCount;
pub use queues::BoundedQueues;
pub use residency::WeightsInPlace;
pub use timing::{OneAtATime, StartInWindow};
pub use wholes::WholesEndOnce;

use crate::observe::{Facts, Observation, Observer};
use crate::violation::Violation;
use base::Timestamp;

/// All of them, always on.
#[derive(Debug)]
pub struct Checkers {
    contract: Contract,
    p1: ExactlyOneOutcome,
    p2: SuccessInTime,
    p3: StartInWindow,
    p4: OneAtATime,
    p5: PageCount,
    p6: WeightsInPlace,
    p8: RefusedNeverExecuted,
    p9: BoundedQueues,
    p10: IdleDevicesServe,
    p11: OutcomeInTime,
    wholes: WholesEndOnce,
}

impl Checkers {
    /// Checkers for a world that is about to start.
    pub fn new(facts: &Facts<'_>) -> Self {
        Self {
            contract: Contract::new(facts),
            p1: ExactlyOneOutcome::default(),
            p2: SuccessInTime::default(),
            p3: StartInWindow::new(facts),
            p4: OneAtATime::new(facts),
            p5: PageCount::new(facts),
            p6: WeightsInPlace::new(facts),
            p8: RefusedNeverExecuted::default(),
            p9: BoundedQueues::new(facts),
            p10: IdleDevicesServe::new(facts),
            p11: OutcomeInTime::new(facts),
            wholes: WholesEndOnce::default(),
        }
    }
}

impl Observer for Checkers {
    fn observe(&mut self, at: Timestamp, seen: &Observation<'_>) -> Result<(), Violation> {
        self.contract.observe(at, seen)?;
        self.p1.observe(at, seen)?;
        self.p2.observe(at, seen)?;
        self.p3.observe(at, seen)?;
        self.p4.observe(at, seen)?;
        self.p5.observe(at, seen)?;
        self.p6.observe(at, seen)?;
        self.p8.observe(at, seen)?;
        self.p9.observe(at, seen)?;
        self.p10.observe(at, seen)?;
        self.p11.observe(at, seen)?;
        self.wholes.observe(at, seen)
    }
}

/// A table with an entry for each slot, grown as slots appear (their number is bounded by the driver).
pub(crate) fn entry<T: Clone + Default>(table: &mut Vec<T>, slot: u32) -> &mut T {
    let index = slot as usize;
    if index >= table.len() {
        table.resize(index + 1, T::default());
    }
    &mut table[index]
}
