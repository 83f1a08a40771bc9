//! Every decision, as one pure state machine.

mod event;

pub use event::{
    ActionStatus, Command, DeviceSpec, Event, Execution, Load, ModelSpec, Outcome, Rejection, Report, Request, Unload,
};

use base::{Duration, Timestamp};

/// The settings of a scheduler.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which batching policy decides.
    pub policy: PolicyKind,
    /// How much work each executor is given ahead (Clockwork, appendix B: 5 ms).
    pub schedule_ahead: Duration,
    /// How many past measurements an estimate looks at (Clockwork, section 5.3: 10).
    pub profile_window: usize,
    /// Which quantile of them it takes (Clockwork, section 6.5: 0.99).
    pub profile_quantile: f64,
    /// How many requests may be queued for one model (P9).
    pub max_queued_per_model: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: PolicyKind::Clockwork,
            schedule_ahead: Duration::from_millis(5),
            profile_window: 10,
            profile_quantile: 0.99,
            max_queued_per_model: 1 << 20,
        }
    }
}

/// The batching policies, by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicyKind {
    /// Clockwork's (appendix B).
    Clockwork,
}

impl PolicyKind {
    /// All of them.
    pub const ALL: &'static [Self] = &[Self::Clockwork];

    /// The name that users write.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clockwork => "clockwork",
        }
    }

    /// The policy of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

/// Why the scheduler wants to be woken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum WakeReason {
    /// A queued request can no longer make its deadline and must be refused.
    RequestExpires,
    /// An executor has less work ahead of it than it should have.
    ExecutorHungry,
}

/// The pure machine. See the crate's documentation for the contract.
#[derive(Debug)]
pub struct Scheduler {}

impl Scheduler {
    /// A scheduler with no device and no model.
    pub fn new(_config: Config) -> Self {
        Self {}
    }

    /// Takes in one fact and appends the orders that follow from it. `now` never goes back.
    pub fn step(&mut self, _now: Timestamp, _event: Event, _out: &mut Vec<Command>) {}

    /// When to call `step` with `Event::WokeUp` if nothing else happens before, and why.
    pub fn next_wakeup(&self) -> Option<(Timestamp, WakeReason)> {
        None
    }
}
