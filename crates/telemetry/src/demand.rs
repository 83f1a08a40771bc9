//! Totals of the whole process that say whether there are enough devices: what ended, what was lost for want of them,
//! how long they were busy. The same events as in the metrics by model and device, but these totals never go back when
//! a model is removed.

use base::{Duration, Reason};
use std::sync::atomic::{AtomicU64, Ordering};

/// The totals, counted.
#[derive(Debug, Default)]
pub(crate) struct DemandCounters {
    ended: AtomicU64,
    bad: AtomicU64,
    busy_nanos: AtomicU64,
}

impl DemandCounters {
    pub fn answered(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    pub fn ended(&self, reason: Reason) {
        if reason.is_shortage() {
            self.ended.fetch_add(1, Ordering::Relaxed);
            self.bad.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn busy(&self, span: Duration) {
        self.busy_nanos.fetch_add(span.as_nanos(), Ordering::Relaxed);
    }

    pub fn totals(&self) -> DemandTotals {
        DemandTotals {
            ended: self.ended.load(Ordering::Relaxed),
            bad: self.bad.load(Ordering::Relaxed),
            busy: Duration::from_nanos(self.busy_nanos.load(Ordering::Relaxed)),
        }
    }
}

/// Totals of one version of a model since it came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModelDemand {
    /// Requests that were answered, or that more devices could have answered.
    pub ended: u64,
    /// Those of them that were not answered.
    pub bad: u64,
    /// Requests that were computed.
    pub computed: u64,
    /// Device time that their batches took.
    pub busy: Duration,
}

/// Totals since the start, of all models and devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DemandTotals {
    /// Requests that were answered, or that more devices could have answered.
    pub ended: u64,
    /// Those of them that were not answered.
    pub bad: u64,
    /// Time that devices spent executing.
    pub busy: Duration,
}
