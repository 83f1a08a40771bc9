//! The settings of a scheduler.

use base::Duration;

/// The settings of a scheduler. [`Config::default`] is what `punctual serve` and `punctual simulate` run with unless
/// they are told otherwise; this is the one place where those values are written.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Config {
    /// Which batching policy decides.
    pub policy: PolicyKind,
    /// How much work each executor is given ahead (Clockwork, appendix B: 5 ms). It hides the way from the report of
    /// one action to the order of the next; where that way is a function call, less is better, because what was ordered
    /// can't be batched any more.
    pub schedule_ahead: Duration,
    /// How many past measurements an estimate looks at (Clockwork, section 5.3: 10, of which the 99th percentile is the
    /// largest).
    pub profile_window: usize,
    /// Which quantile of them it takes (Clockwork, section 6.5: 0.99).
    pub profile_quantile: f64,
    /// How many requests may be queued for one model (P9).
    pub max_queued_per_model: usize,
    /// Whether a request is refused at once when the work that is due before it leaves no time for it. Without, it is
    /// refused when its time has run out, as in the paper.
    pub predict_admission: bool,
    /// How long an order and the inputs of its requests are on their way to a device.
    pub delay: Delay,
    /// How late the driver's wakeups may be: a batch that is left to grow is ready so much before it must start (a
    /// sixteenth of its first request's objective at most).
    pub late_wakeup: Duration,
    /// How `deferred` and `shepherd` gather a batch.
    pub gather: Gather,
    /// How long `timeout` lets a batch grow, as a part of its first request's objective.
    pub timeout: f64,
    /// Whether `punctual` leaves devices idle in good times, as `deferred` does, for larger batches later: then the
    /// time that devices are idle says how many of them aren't needed. Otherwise whoever asks is answered as soon as
    /// waiting for company doesn't pay.
    pub thrift: bool,
    /// Whether `punctual` finds out by rehearsal when batches should start and whom to give up. Otherwise it keeps the
    /// rule that is good for most.
    pub rehearse: bool,
    /// How long `clipper` lets a batch wait for company when it could be larger.
    pub batch_delay: Duration,
    /// The rate of the delay that `orloj` expects a request to have if it isn't taken now, per millisecond (Orloj,
    /// section 4.4: 1e-4).
    pub anticipated_delay: f64,
    /// Whether `punctual` looks at the sizes of requests, where they have one.
    pub size_hints: bool,
    /// The part of a device's time that batch work gets at least, where it waits and others have deadlines. With 0 it
    /// runs in time that nobody else needs, and waits for as long as there is none.
    pub batch_work_share: f64,
    /// How what is left of a pipeline's time is split over its stages.
    pub split: Split,
}

impl Config {
    /// Requests that a driver has alive at once unless it is told otherwise; more are refused (P9).
    pub const DEFAULT_MAX_REQUESTS: u32 = 1 << 16;

    /// As Clockwork's authors ran theirs, for workers behind a network: 5 ms of work ahead, estimates from 10
    /// executions.
    pub fn clockwork() -> Self {
        Self {
            policy: PolicyKind::Clockwork,
            schedule_ahead: Duration::from_millis(5),
            profile_window: 10,
            ..Self::default()
        }
    }

    /// One model's queue must not take all the slots of a driver's requests from the others.
    pub fn queue_of(max_requests: u32) -> usize {
        (max_requests / 2).max(1) as usize
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: PolicyKind::Punctual,
            // In one process the way from a report to the next order is a function call, so that nothing needs to be
            // ordered ahead; what isn't ordered yet can still be batched.
            schedule_ahead: Duration::ZERO,
            profile_window: 100,
            profile_quantile: 0.99,
            max_queued_per_model: Self::queue_of(Self::DEFAULT_MAX_REQUESTS),
            predict_admission: true,
            delay: Delay::default(),
            // In virtual time nothing is late.
            late_wakeup: Duration::ZERO,
            gather: Gather::KeepTarget,
            timeout: 0.2,
            thrift: false,
            rehearse: true,
            batch_delay: Duration::from_millis(1),
            anticipated_delay: 1e-4,
            size_hints: true,
            // Clients of Triton that name no deadline move, and who names one hardly notices.
            batch_work_share: 0.05,
            split: Split::Load,
        }
    }
}

/// `control + per_row * rows`: how long before its start a batch must be ordered (Symphony, appendix D).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Delay {
    /// The order's way.
    pub control: Duration,
    /// What each row's input adds.
    pub per_row: Duration,
}

impl Delay {
    /// For a batch of so many rows.
    pub fn of(self, rows: u32) -> Duration {
        self.control + self.per_row * u64::from(rows)
    }
}

/// Which requests make a batch when not all are in time (Symphony, section 3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Gather {
    /// From the first request on, as many as the first one has time for.
    HeadFirst,
    /// The same, but when that is less than the target size, first requests are given up for a larger batch. The target
    /// is what would run if batches of one model followed each other evenly on the devices.
    KeepTarget,
}

/// How what is left of a pipeline's time is split over the stage that a request has come to and those that follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Split {
    /// The same for each. A request that can't be met within its part is refused.
    Equal,
    /// In proportion to what a call takes alone. A request that can't be met within its part is refused.
    Profile,
    /// By what larger batches of each are worth at the rate at which requests come; and who finds no device within its
    /// part has what the other stages don't need.
    Load,
}

impl Split {
    /// All of them.
    pub const ALL: &'static [Self] = &[Self::Equal, Self::Profile, Self::Load];

    /// The name that users write.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Profile => "profile",
            Self::Load => "load",
        }
    }
}

/// The batching policies, by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum PolicyKind {
    /// Clockwork's (appendix B).
    Clockwork,
    /// Symphony's: a batch starts when one more request would no longer fit (section 3).
    Deferred,
    /// A batch starts as soon as a device is free, the most urgent first.
    Eager,
    /// A batch starts when it is full or its first request has waited for a fixed time.
    Timeout,
    /// Nexus': models are packed onto devices from time to time (squishy bin packing); each device serves its own in
    /// turn.
    Nexus,
    /// Shepherd's: as soon as a device is free, the largest first; a much larger batch breaks a running one off (Flex).
    Shepherd,
    /// Clipper's: the largest batch size of each model follows whether batches were in time.
    Clipper,
    /// Orloj's: planned with distributions; the best of a queue by a score that changes with time.
    Orloj,
    /// Ours: deferred where waiting pays, eager where it doesn't.
    Punctual,
}

impl PolicyKind {
    /// Whether it plans with what single requests take, where that depends on the input.
    pub fn learns_inputs(self) -> bool {
        matches!(self, Self::Punctual | Self::Orloj)
    }

    /// Whether it brings ready batches and devices together itself, so that no device is asked for a batch with
    /// deadlines that it hasn't named. An order then leaves as late as its way allows: what isn't ordered can still
    /// grow, or make room.
    pub(crate) fn matches(self) -> bool {
        matches!(self, Self::Deferred | Self::Eager | Self::Timeout | Self::Punctual)
    }

    /// Whether shares of device time say who is refused when devices are short (`fair.rs`), which needs a policy that
    /// heeds them. With the others, requests are refused at once that the work before them seems to leave no time for.
    pub(crate) fn heeds_shares(self) -> bool {
        self.matches()
    }

    /// Whether it breaks running batches off: one for each event at most, and before what was unloaded makes it look
    /// again.
    pub(crate) fn breaks_off(self) -> bool {
        matches!(self, Self::Shepherd)
    }

    /// Whether a queued request needs time for the way to a device, too. In Clockwork's paper it is given up only when
    /// it couldn't be in time where it runs.
    pub(crate) fn counts_the_way(self) -> bool {
        !matches!(self, Self::Clockwork)
    }

    /// All of them.
    pub const ALL: &'static [Self] = &[
        Self::Punctual,
        Self::Clockwork,
        Self::Deferred,
        Self::Eager,
        Self::Timeout,
        Self::Nexus,
        Self::Shepherd,
        Self::Clipper,
        Self::Orloj,
    ];

    /// The name that users write.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clockwork => "clockwork",
            Self::Deferred => "deferred",
            Self::Eager => "eager",
            Self::Timeout => "timeout",
            Self::Nexus => "nexus",
            Self::Shepherd => "shepherd",
            Self::Clipper => "clipper",
            Self::Orloj => "orloj",
            Self::Punctual => "punctual",
        }
    }

    /// The policy of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}
