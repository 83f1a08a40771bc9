//! What happens in a simulated world, as checkers and meters see it.

use base::{ActionId, DeviceId, ModelId, Timestamp};
use scheduler::{Command, Event, Execution, Load, ModelSpec};

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

/// Something that must never happen, did.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{invariant} is broken at {at}: {message}")]
pub struct Violation {
    /// Which invariant of the design: `P1` to `P9`, or `contract` for the promises in the scheduler's documentation.
    pub invariant: &'static str,
    /// When.
    pub at: Timestamp,
    /// What happened.
    pub message: String,
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
}
