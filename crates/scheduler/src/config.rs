//! The settings of a scheduler.

use base::Duration;

/// The settings of a scheduler. The defaults are Clockwork's, for workers behind a network.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which batching policy decides.
    pub policy: PolicyKind,
    /// How much work each executor is given ahead (Clockwork, appendix B: 5 ms). It hides the way from the report of one
    /// action to the order of the next; where that way is a function call, less is better, because what was ordered
    /// can't be batched any more.
    pub schedule_ahead: Duration,
    /// How many past measurements an estimate looks at (Clockwork, section 5.3: 10).
    pub profile_window: usize,
    /// Which quantile of them it takes (Clockwork, section 6.5: 0.99).
    pub profile_quantile: f64,
    /// How many requests may be queued for one model (P9).
    pub max_queued_per_model: usize,
    /// Whether a request is refused at once when the work that is due before it leaves no time for it. Without, it is
    /// refused when its time has run out, as in the paper.
    pub predict_admission: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: PolicyKind::Clockwork,
            schedule_ahead: Duration::from_millis(5),
            profile_window: 10,
            profile_quantile: 0.99,
            max_queued_per_model: 1 << 20,
            predict_admission: true,
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
