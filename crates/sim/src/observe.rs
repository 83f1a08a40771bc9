//! What happens in a simulated world, as checkers and meters see it.

use base::{ActionId, DeviceId, Duration, ModelId, Timestamp};
use scheduler::{Command, Delay, Event, Execution, Load, ModelSpec};

use crate::violation::Violation;

/// One thing that happened. Borrowed: observers copy what they need.
#[derive(Clone, Copy, Debug)]
pub enum Observation<'a> {
    /// The scheduler was told this.
    Told(&'a Event),
    /// The scheduler ordered this.
    Ordered(&'a Command),
    /// A worker started a batch.
    ExecutionStarted(&'a Execution),
    /// A worker finished a batch.
    ExecutionEnded {
        /// The batch.
        execution: &'a Execution,
        /// When it had started.
        started_at: Timestamp,
    },
    /// A batch ran and came to nothing.
    ExecutionFailed(&'a Execution),
    /// A worker broke a running batch off, as it was told: nothing of it counts.
    ExecutionBrokenOff(&'a Execution),
    /// A worker started to copy weights; it has taken the pages.
    LoadStarted {
        /// The order.
        load: &'a Load,
        /// Pages in use on the device now.
        pages_used: u32,
    },
    /// The weights are there.
    LoadEnded {
        /// The order.
        load: &'a Load,
        /// When the copy had started.
        started_at: Timestamp,
    },
    /// The copy came to nothing; the pages are free again.
    LoadFailed(&'a Load),
    /// A worker forgot weights and has the pages back.
    Unloaded {
        /// Where.
        device: DeviceId,
        /// Which weights.
        model: ModelId,
        /// Pages in use on the device now.
        pages_used: u32,
    },
    /// A worker did not start an action.
    Refused {
        /// Where.
        device: DeviceId,
        /// Which action.
        action: ActionId,
        /// Why.
        why: Refusal,
    },
    /// Nothing is under way for this device, neither on it nor to it nor from it.
    Settled {
        /// Which.
        device: DeviceId,
        /// Pages in use on it, as the worker counts.
        pages_used: u32,
        /// Pages in use on it as the controller counts, where it says.
        controller_used: Option<u32>,
    },
    /// The scheduler takes batches to take so many times as long on a device as on others of its kind, at most, from
    /// now on.
    Slowed {
        /// Which.
        device: DeviceId,
        /// 1 where it isn't slower.
        factor: f64,
    },
    /// A client asked for a pipeline.
    WholeSent {
        /// The number of the request.
        whole: u64,
        /// When it must have its answer.
        deadline_at: Timestamp,
    },
    /// It has its outcome.
    WholeEnded {
        /// The number of the request.
        whole: u64,
        /// When it had its answer, where that is a success.
        good_at: Option<Timestamp>,
    },
    /// A device died, with all that was on it.
    DeviceDied(DeviceId),
    /// The run is over.
    Over,
}

/// Why a worker did not start an action.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Its window had passed.
    TooLate,
    /// The weights were not there.
    NoWeights,
    /// There were not enough free pages.
    NoPages,
    /// The weights were there already, or on their way.
    AlreadyLoaded,
}

/// Somebody who watches a run.
pub trait Observer {
    /// Sees one thing that happened; an error ends the run.
    fn observe(&mut self, at: Timestamp, seen: &Observation<'_>) -> Result<(), Violation>;
}

/// What observers may know about the world before it starts.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The models.
    pub models: &'a [ModelSpec],
    /// How many devices there are.
    pub devices: u32,
    /// Pages of each.
    pub pages: u32,
    /// How many requests may be queued for one model.
    pub max_queued_per_model: usize,
    /// What the policy that decides promises.
    pub promises: Promises,
    /// How long the scheduler takes an order and its inputs to be on their way.
    pub delay: Delay,
    /// How long after something happened on a worker the scheduler has heard of it at the latest, faults and all.
    pub heard_within: Duration,
}

/// What a policy promises beyond what all do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Promises {
    /// A batch that starts in its window and takes what is expected is in time for all of its members (P3).
    pub exact: bool,
    /// The times of `Execution` say when a batch starts and ends, all work before it considered (P3, P4).
    pub planned: bool,
    /// No request is given up while a device could have run it (P10).
    pub idle_devices: bool,
}
