//! The rules of `punctual`: when its batches start, and whom it gives up when not all can be met.

use crate::uneven::Aim;
use crate::windowed::Start;

/// When batches start, and whom to give up.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct BatchRule {
    /// From when on a batch may have a device.
    pub start: Start,
    /// Whether it may have one before, when waiting for company no longer pays and nobody else needs the device.
    pub patient: bool,
    pub keep: Keep,
}

/// Which requests are kept when the first one leaves time for a small batch only.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Keep {
    /// Those from which on the batch is nearly as efficient as the target size, or as efficient as devices need to keep
    /// up.
    Nearly,
    /// Those that make the largest full batch; the others stay, and may still be served (Clockwork's way).
    Full,
}

impl Default for BatchRule {
    fn default() -> Self {
        Self::USUAL
    }
}

impl BatchRule {
    /// What `punctual` begins with, and comes back to when nothing is lost.
    pub const USUAL: Self = Self::patient(Keep::Nearly);

    /// What `punctual` may become. None keeps first requests whatever that costs: where devices keep up with small
    /// batches `Nearly` keeps them too, and elsewhere that ends in losing half of all
    /// (docs/notes/003-when-a-batch-starts.md).
    pub const CHOICE: [Self; 8] = [
        Self::USUAL,
        Self::with(Start::AtOnce, Keep::Nearly),
        Self::patient(Keep::Full),
        Self::with(Start::Late, Keep::Nearly),
        Self::with(Start::After(0.1), Keep::Nearly),
        Self::with(Start::After(0.2), Keep::Nearly),
        Self::with(Start::After(0.05), Keep::Full),
        Self::with(Start::AtOnce, Keep::Full),
    ];

    const fn with(start: Start, keep: Keep) -> Self {
        Self { start, patient: false, keep }
    }

    const fn patient(keep: Keep) -> Self {
        Self { start: Start::Late, patient: true, keep }
    }

    /// Which batches are best for models whose times depend on the input. Waiting for company rarely pays there, so
    /// that they start at once with every rule, and rules differ in this.
    pub fn aim(self) -> Aim {
        match (self.start, self.keep) {
            (Start::AtOnce | Start::At(_), _) => Aim::Urgent,
            (Start::After(_), _) => Aim::First,
            (Start::Late, _) if !self.patient => Aim::Largest,
            (Start::Late, Keep::Full) => Aim::Saving,
            (Start::Late, Keep::Nearly) => Aim::Most,
        }
    }
}
