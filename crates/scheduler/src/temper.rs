//! The tempers of a windowed policy: when its batches start, and whom it gives up when not all can be met.

use crate::config::{Config, Gather, PolicyKind};
use crate::uneven::Aim;

/// When batches start, and whom to give up.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Temper {
    pub start: Start,
    pub keep: Keep,
}

/// From when on a batch may have a device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Start {
    /// As soon as there is a request.
    AtOnce,
    /// After this part of its first request's objective.
    After(f64),
    /// When waiting for company no longer pays and nobody else needs the device; at the latest as `Late`.
    Patient,
    /// When one more request would no longer fit.
    Late,
}

/// Which requests are kept when the first one leaves time for a small batch only.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Keep {
    /// The first one, always.
    First,
    /// Those from which on the batch is nearly as efficient as the target size, or as efficient as devices need to keep up.
    Nearly,
    /// Those from which on the batch has the target size.
    Target,
    /// Those that make the largest full batch; the others stay, and may still be served (Clockwork's way).
    Full,
}

impl Temper {
    /// What `punctual` begins with, and comes back to when nothing is lost.
    pub const USUAL: Self = Self { start: Start::Patient, keep: Keep::Nearly };

    /// What `punctual` may become. None keeps first requests whatever that costs: where devices keep up with small batches `Nearly` keeps
    /// them too, and elsewhere that ends in losing half of all (note 013).
    pub const CHOICE: [Self; 8] = [
        Self::USUAL,
        Self { start: Start::AtOnce, keep: Keep::Nearly },
        Self { start: Start::Patient, keep: Keep::Full },
        Self { start: Start::Late, keep: Keep::Nearly },
        Self { start: Start::After(0.1), keep: Keep::Nearly },
        Self { start: Start::After(0.2), keep: Keep::Nearly },
        Self { start: Start::After(0.05), keep: Keep::Full },
        Self { start: Start::AtOnce, keep: Keep::Full },
    ];

    /// What the temper means for models whose times depend on the input: when their batches start, and which are best. Waiting
    /// for company rarely pays there, so that the tempers differ in the second.
    pub fn where_times_differ(self) -> (Start, Aim) {
        match (self.start, self.keep) {
            (Start::AtOnce, _) => (Start::AtOnce, Aim::Urgent),
            (Start::Late, _) => (Start::AtOnce, Aim::Largest),
            (Start::After(_), _) => (Start::AtOnce, Aim::First),
            (Start::Patient, Keep::Full) => (Start::AtOnce, Aim::Saving),
            (Start::Patient, Keep::First | Keep::Nearly | Keep::Target) => (Start::AtOnce, Aim::Most),
        }
    }

    /// The temper of a configured policy.
    pub fn of(config: &Config) -> Self {
        match config.policy {
            PolicyKind::Eager => Self { start: Start::AtOnce, keep: Keep::First },
            PolicyKind::Timeout => Self { start: Start::After(config.timeout), keep: Keep::First },
            PolicyKind::Deferred => {
                let keep = if config.gather == Gather::KeepTarget { Keep::Target } else { Keep::First };
                Self { start: Start::Late, keep }
            }
            _ => Self::USUAL,
        }
    }
}
