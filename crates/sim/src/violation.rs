//! What can be found broken: one variant for each way in which a promise is, with the facts, which read as a sentence.

use base::{ActionId, DeviceId, Duration, ModelId, RequestId, Timestamp, Window};
use scheduler::{Outcome, Rejection};
use std::fmt;

/// Something that must never happen, did.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{} is broken at {at}: {broken}", broken.invariant())]
pub struct Violation {
    /// When.
    pub at: Timestamp,
    /// What happened.
    pub broken: Broken,
}

impl Violation {
    /// Which promise it is about.
    pub fn invariant(&self) -> Invariant {
        self.broken.invariant()
    }
}

/// The promises: the numbered ones of ARCHITECTURE.md, and those of the scheduler's documentation. P7 is about two
/// runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "ARCHITECTURE.md says what each is")]
pub enum Invariant {
    Contract,
    P1,
    P2,
    P3,
    P4,
    P5,
    P6,
    P8,
    P9,
    P10,
    P11,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contract => f.write_str("contract"),
            other => write!(f, "{other:?}"),
        }
    }
}

/// A promise that was broken.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum Broken {
    // ---- the scheduler's contract ----
    #[error("the scheduler asks again and again to be woken at this instant")]
    WakesAtOnce,
    #[error("all faults are over, but a request for {model} ends as {outcome:?}")]
    NotServedAgain { model: ModelId, outcome: Outcome },
    #[error("{action} does not come after the action before it")]
    NotNumbered { action: ActionId },
    #[error("{action} may start from {} to {}: never", window.earliest, window.latest)]
    InsideOut { action: ActionId, window: Window },
    #[error("an order goes to {device}, which isn't there")]
    NoSuchDevice { device: DeviceId },
    #[error("{action} is to be broken off on {device}, but it isn't under way there")]
    NothingToBreakOff { action: ActionId, device: DeviceId },
    #[error("{action} executes nothing")]
    EmptyBatch { action: ActionId },
    #[error("{action} has batch size {batch}, which {model} does not support")]
    UnknownSize { action: ActionId, model: ModelId, batch: u32 },
    #[error("{action} has {rows} rows in a batch of {batch}")]
    TooManyRows { action: ActionId, rows: u32, batch: u32 },
    #[error("{action} executes {request}, which is not alive")]
    DeadMember { action: ActionId, request: RequestId },
    #[error("{action} executes {request} on {model}, but it asked for {asked}")]
    OtherModel { action: ActionId, request: RequestId, model: ModelId, asked: ModelId },
    #[error("{action} executes {request}, which is already in {other}")]
    InTwoBatches { action: ActionId, request: RequestId, other: ActionId },
    #[error("{action} loads {model}, which was removed or never added")]
    LoadsRemoved { action: ActionId, model: ModelId },

    // ---- P1 ----
    #[error("{request} is submitted while its slot is taken")]
    SlotTaken { request: RequestId },
    #[error("{request} ends as {outcome:?}, but it is not alive: it was never submitted or has ended before")]
    NotAlive { request: RequestId, outcome: Outcome },
    #[error("{count} requests have no outcome, the first of them {first}")]
    NoOutcome { count: usize, first: RequestId },

    #[error("request {whole} for a pipeline ends, but it was never sent or has ended before")]
    WholeNotAlive { whole: u64 },
    #[error("{count} requests for pipelines have no outcome, the first of them {first}")]
    WholeWithoutOutcome { count: usize, first: u64 },

    // ---- P2 ----
    #[error(
        "request {whole} for a pipeline is called a success: it is answered at {answered_at}, its deadline was {deadline_at}"
    )]
    WholeTooLate { whole: u64, answered_at: Timestamp, deadline_at: Timestamp },
    #[error("{request} is called a success, but no execution of it has ended")]
    NeverExecuted { request: RequestId },
    #[error("{request} is called a success: it ended at {ended_at}, its deadline was {deadline_at}")]
    SuccessTooLate { request: RequestId, ended_at: Timestamp, deadline_at: Timestamp },

    // ---- P3 ----
    #[error("{action} starts outside its window from {} to {}", window.earliest, window.latest)]
    OutsideWindow { action: ActionId, window: Window },
    #[error("{action} may start until {latest} and takes {expected}, but {request} must be done at {deadline_at}")]
    WindowTooLong {
        action: ActionId,
        latest: Timestamp,
        expected: Duration,
        request: RequestId,
        deadline_at: Timestamp,
    },
    #[error("{action} is planned to start at {start_at}, outside its window from {} to {}", window.earliest, window.latest)]
    PlannedOutside { action: ActionId, start_at: Timestamp, window: Window },

    // ---- P4 ----
    #[error("{action} starts on {device} while {other} is still running there")]
    Overlap { action: ActionId, device: DeviceId, other: ActionId },
    #[error("{action} is planned to start on {device} at {start_at}, but what was ordered before ends at {free_at}")]
    PlannedOverlap { action: ActionId, device: DeviceId, start_at: Timestamp, free_at: Timestamp },

    // ---- P5 ----
    #[error("{action} loads {model} so that {used} of {pages} pages are in use")]
    TooManyPages { action: ActionId, model: ModelId, used: u32, pages: u32 },
    #[error("unloading {model} from {device} frees pages that were never taken")]
    NeverTaken { device: DeviceId, model: ModelId },
    #[error("{device} has {used} of {pages} pages in use")]
    DeviceOverfull { device: DeviceId, used: u32, pages: u32 },
    #[error("{device} has no room for {action}: the controller's count is wrong")]
    NoRoom { device: DeviceId, action: ActionId },
    #[error("{action} loads weights that {device} has already")]
    LoadedTwice { device: DeviceId, action: ActionId },
    #[error("{device} has {used} pages in use, the orders add up to {ordered}")]
    OrdersDiffer { device: DeviceId, used: u32, ordered: u32 },
    #[error("{device} has {used} pages in use, the controller counts {counted}")]
    CountsDiffer { device: DeviceId, used: u32, counted: u32 },

    // ---- P6 ----
    #[error("{model} is unloaded from {device} while a batch of it is running there")]
    UnloadedInUse { device: DeviceId, model: ModelId },
    #[error("{action} starts, but {model} is not loaded on {device}")]
    NotLoaded { action: ActionId, device: DeviceId, model: ModelId },
    #[error("{action} was sent to {device}, but its weights are not there when it may start")]
    SentWithoutWeights { action: ActionId, device: DeviceId },

    // ---- P8 ----
    #[error("{request} is executed by {action}, but it was cancelled before")]
    ExecutedCancelled { request: RequestId, action: ActionId },
    #[error("{request} is executed by {action}, but it has ended before")]
    ExecutedEnded { request: RequestId, action: ActionId },
    #[error("{request} is rejected ({reason:?}) after it was executed")]
    RejectedExecuted { request: RequestId, reason: Rejection },
    #[error("{request} is rejected ({reason:?}) while it is in {action}, which may be running")]
    RejectedInBatch { request: RequestId, reason: Rejection, action: ActionId },

    // ---- P9 ----
    #[error("{queued} requests are queued for {model}, the bound is {bound}")]
    QueueTooLong { model: ModelId, queued: usize, bound: usize },

    // ---- P10 ----
    #[error(
        "{request} for {model} is given up, but {device} holds the model and has been idle since {idle_since}, and its last chance was {last_chance_at}"
    )]
    IdleWhileExpired {
        request: RequestId,
        model: ModelId,
        device: DeviceId,
        idle_since: Timestamp,
        last_chance_at: Timestamp,
    },

    // ---- P11 ----
    #[error("{request} ends as {outcome:?}, {late} after {due_at}, when that was known at the latest")]
    OutcomeTooLate { request: RequestId, outcome: Outcome, due_at: Timestamp, late: Duration },

    // ---- what a recording's orders and reports show alone ----
    #[error("{message}")]
    Recorded { invariant: Invariant, message: String },
}

impl Broken {
    /// Which promise it is about.
    pub fn invariant(&self) -> Invariant {
        match self {
            Self::WakesAtOnce
            | Self::NotServedAgain { .. }
            | Self::NotNumbered { .. }
            | Self::InsideOut { .. }
            | Self::NoSuchDevice { .. }
            | Self::NothingToBreakOff { .. }
            | Self::EmptyBatch { .. }
            | Self::UnknownSize { .. }
            | Self::TooManyRows { .. }
            | Self::DeadMember { .. }
            | Self::OtherModel { .. }
            | Self::InTwoBatches { .. }
            | Self::LoadsRemoved { .. } => Invariant::Contract,
            Self::SlotTaken { .. }
            | Self::NotAlive { .. }
            | Self::NoOutcome { .. }
            | Self::WholeNotAlive { .. }
            | Self::WholeWithoutOutcome { .. } => Invariant::P1,
            Self::NeverExecuted { .. } | Self::SuccessTooLate { .. } | Self::WholeTooLate { .. } => Invariant::P2,
            Self::OutsideWindow { .. } | Self::WindowTooLong { .. } | Self::PlannedOutside { .. } => Invariant::P3,
            Self::Overlap { .. } | Self::PlannedOverlap { .. } => Invariant::P4,
            Self::TooManyPages { .. }
            | Self::NeverTaken { .. }
            | Self::DeviceOverfull { .. }
            | Self::NoRoom { .. }
            | Self::LoadedTwice { .. }
            | Self::OrdersDiffer { .. }
            | Self::CountsDiffer { .. } => Invariant::P5,
            Self::UnloadedInUse { .. } | Self::NotLoaded { .. } | Self::SentWithoutWeights { .. } => Invariant::P6,
            Self::ExecutedCancelled { .. }
            | Self::ExecutedEnded { .. }
            | Self::RejectedExecuted { .. }
            | Self::RejectedInBatch { .. } => Invariant::P8,
            Self::QueueTooLong { .. } => Invariant::P9,
            Self::IdleWhileExpired { .. } => Invariant::P10,
            Self::OutcomeTooLate { .. } => Invariant::P11,
            Self::Recorded { invariant, .. } => *invariant,
        }
    }

    /// The violation that it is at an instant.
    pub fn at(self, at: Timestamp) -> Violation {
        Violation { at, broken: self }
    }
}
