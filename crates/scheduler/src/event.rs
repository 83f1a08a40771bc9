//! What goes into the scheduler and what comes out of it.

use base::{
    ActionId, ApplicationId, DeviceId, Duration, LatencyProfile, ModelId, PipelineId, Reason, RequestId, Timestamp,
    Transfers, Window,
};

/// A fact that the driver reports to the scheduler.
#[derive(Clone, PartialEq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Event {
    /// A device is there, empty.
    DeviceAdded(DeviceSpec),
    /// A device is gone with everything that was loaded or running on it.
    DeviceLost(DeviceId),
    /// A device is of another kind from now on, with everything that is on it: the GPU that it is a share of was
    /// divided otherwise.
    DeviceChanged {
        /// Which device.
        device: DeviceId,
        /// See [`DeviceSpec::kind`].
        kind: u32,
    },
    /// A model may be asked for from now on.
    ModelAdded(ModelSpec),
    /// A model is no longer served. What is queued for it is still served where its weights are, and rejected if they
    /// are nowhere; then they are unloaded.
    ModelRemoved(ModelId),
    /// A client asks.
    Submitted(Request),
    /// A client no longer waits.
    Cancelled(RequestId),
    /// A worker is done with an action, one way or another.
    Reported(Report),
    /// The driver runs something of its own between the batches of a device (a measurement), behind what was ordered.
    Borrowed {
        /// Which device.
        device: DeviceId,
        /// The driver's own number for it, from `ActionId::DRIVERS` up.
        action: ActionId,
        /// What it is expected to take.
        expected: Duration,
    },
    /// That is over.
    Returned {
        /// Which device.
        device: DeviceId,
        /// The number.
        action: ActionId,
    },
    /// Requests that were run alone, for the distribution of what they take. Only policies that plan with distributions
    /// look at it; for a model whose requests all take the same it changes nothing.
    Measured(Measured),
    /// What became of the requests of a span with each rule ([`Scheduler::take_span`](crate::Scheduler::take_span)).
    Adopted(Rehearsed),
    /// Nothing but the passing of time: `next_wakeup` has come.
    WokeUp,
    /// Requests for a model are about to come, from where it is served now: its weights are loaded as if some had come.
    Expected(ModelId),
    /// A pipeline is so from now on, whether it was there before or not.
    PipelineAdded(PipelineSpec),
    /// Nobody asks for a pipeline any more: stages of it that come are refused, those in hand go on.
    PipelineRemoved(PipelineId),
    /// A client's request for a pipeline has come to a stage: as `Submitted`, but `deadline_at` is that of the whole.
    /// The scheduler decides how much of it the stage may use (`Config::split`), and refuses what can't be met by then.
    /// Where one of several calls is lost, the driver cancels the others.
    StageSubmitted(Request, PipelineStage),
    /// Which models run on these devices from now on; on others it stays as it is. What was ordered is still done, and
    /// weights stay until their pages are needed: a plan says who computes in which share of a GPU.
    Allotted(Vec<Allotment>),
}

/// Who may use a device.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Allotment {
    /// Which device.
    pub device: DeviceId,
    /// Only these models; `None`: all that there are and will be.
    pub models: Option<Vec<ModelId>>,
}

impl Event {
    /// The request that has come, where one has.
    pub fn submitted(&self) -> Option<&Request> {
        match self {
            Self::Submitted(request) | Self::StageSubmitted(request, _) => Some(request),
            _ => None,
        }
    }
}

/// A graph of models that answers as one, within one deadline.
#[derive(Clone, PartialEq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PipelineSpec<M = ModelId> {
    /// Its number; the driver counts up from 0, and gives it to another once this one was removed.
    pub pipeline: PipelineId,
    /// Its stages, each before those that follow it.
    pub stages: Vec<StageSpec<M>>,
}

/// One model of a pipeline, whose driver may have other numbers for models than the scheduler.
#[derive(Clone, PartialEq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StageSpec<M = ModelId> {
    /// Which model.
    pub model: M,
    /// The stages that begin once all calls of this one, and of the others that they follow, are done. Their numbers
    /// are above this one's.
    pub next: Vec<u32>,
    /// How many calls it makes for each request on average, above 0.
    pub calls: f64,
    /// Whether the data decides how many they are; otherwise it is always that number.
    pub varies: bool,
    /// What the driver does between the end of its last call and the first ones of the next stages, or the answer
    /// (decoding, cropping): the scheduler leaves time for it.
    pub gap: Duration,
}

impl<M> PipelineSpec<M> {
    /// The same with other numbers for its models, if each of them has one.
    pub fn with_models<N>(self, number: impl Fn(M) -> Option<N>) -> Option<PipelineSpec<N>> {
        let stage = |StageSpec { model, next, calls, varies, gap }| {
            Some(StageSpec { model: number(model)?, next, calls, varies, gap })
        };
        let stages = self.stages.into_iter().map(stage).collect::<Option<_>>()?;
        Some(PipelineSpec { pipeline: self.pipeline, stages })
    }
}

/// A stage of a pipeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PipelineStage {
    /// Which pipeline.
    pub pipeline: PipelineId,
    /// Which of its stages, from 0.
    pub stage: u32,
}

/// How many requests each rule would have lost.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Rehearsed {
    /// How many came.
    pub requests: u32,
    /// In how much time.
    pub lasted: Duration,
    /// How many were lost, for each rule, and last for the one in force with everybody let in, or not if everybody was.
    pub lost: Vec<u32>,
    /// The device time that they are worth: what their rows take in the largest batches that their objectives allow.
    pub worth: Duration,
    /// What those are worth that each rule would have answered, in the same order.
    pub answered: Vec<Duration>,
}

/// What requests of one application took when they were run alone.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Measured {
    /// Which model.
    pub model: ModelId,
    /// Whose requests.
    pub application: ApplicationId,
    /// The measurements, in the order in which they were made.
    pub samples: Vec<Sample>,
}

/// One request that was run alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Sample {
    /// Its size hint, where it had one.
    pub size: Option<u32>,
    /// What it took.
    pub alone: Duration,
}

/// A device as the scheduler sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DeviceSpec {
    /// Its number; the driver counts up from 0.
    pub device: DeviceId,
    /// Pages for weights, all free at first.
    pub pages: u32,
    /// Devices of one kind take the same for the same; kinds are numbered from the slowest, 0, whether such a device is
    /// there or not. Where it isn't decided yet which device it will be, the slowest that is there is planned with. One
    /// that turns out to be slower than its kind is planned with by itself.
    pub kind: u32,
}

/// A model as the scheduler sees it.
#[derive(Clone, PartialEq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ModelSpec {
    /// Its number; the driver counts up from 0, and gives it to another once nothing is left of this one.
    pub model: ModelId,
    /// Pages that its weights take on a device.
    pub pages: u32,
    /// What its batches and its load were measured to take on a device of kind 0: the estimates' seed.
    pub profile: LatencyProfile,
    /// The same for the other kinds of devices, from kind 1 on. Where one is missing, that of the slowest that is there
    /// stands for it until batches ran on it.
    pub elsewhere: Vec<LatencyProfile>,
    /// The latency objective that most of its requests have, if any: the horizon in which its demand should be served.
    pub objective: Option<Duration>,
    /// What a batch takes whatever its inputs are; the rest of its time is in proportion to its longest input. Only
    /// matters where inputs differ.
    pub fixed: Duration,
    /// What it may have beside other models when devices are short.
    #[cfg_attr(feature = "serde", serde(default))]
    pub fairness: Fairness,
}

/// What a model may have beside others when devices are short.
#[derive(Clone, Copy, PartialEq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Fairness {
    /// How many times the time of a model with weight 1; above 0.
    pub weight: f64,
    /// The part of all device time that it gets in any case if it asks for it, from 0 to 1. Floors of more than nine
    /// tenths together are made smaller in proportion.
    pub floor: f64,
}

impl Default for Fairness {
    fn default() -> Self {
        Self { weight: 1.0, floor: 0.0 }
    }
}

/// A request, without its tensors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Request {
    /// Its number, unique while it lives.
    pub id: RequestId,
    /// Which model it asks for.
    pub model: ModelId,
    /// When the answer must be there; `Timestamp::NEVER` for batch work.
    pub deadline_at: Timestamp,
    /// As in Triton: 1 is the most urgent; within one model, lower numbers go first. From 16 up all count the same; 0,
    /// no priority, comes behind.
    pub priority: u32,
    /// Rows of the batch dimension, at least 1, at most the model's largest batch size.
    pub rows: u32,
    /// Who sent it: what it takes may depend on that.
    pub application: ApplicationId,
    /// How large its input is, in whatever the driver can see without running the model (a sequence's length, an
    /// image's pixels); `None` where that says nothing. Only compared with other requests of the same model.
    pub size: Option<u32>,
}

/// How an action ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Report {
    /// Which action.
    pub action: ActionId,
    /// What became of it.
    pub status: ActionStatus,
}

impl Report {
    /// Since when the executor has been free for what is behind the action: reports take their time, which goes on
    /// meanwhile.
    pub(crate) fn ended_at(&self, now: Timestamp) -> Timestamp {
        match self.status {
            ActionStatus::Done { ended_at, .. } => ended_at.min(now),
            ActionStatus::TooLate | ActionStatus::Preempted | ActionStatus::Failed => now,
        }
    }
}

/// What became of an action. Times are the driver's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ActionStatus {
    /// Done.
    Done {
        /// When it started, inside its window (P3).
        started_at: Timestamp,
        /// When it ended.
        ended_at: Timestamp,
        /// A batch's transfers, where they may run beside other batches.
        transfers: Transfers,
    },
    /// Not started, because its window had passed.
    TooLate,
    /// Broken off, or not begun, because the scheduler said so.
    Preempted,
    /// Started and failed, or could not start for a reason other than time.
    Failed,
}

/// An order to the driver.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// Run a batch.
    Execute(Execution),
    /// Copy a model's weights onto a device.
    Load(Load),
    /// Forget a model's weights on a device. Takes no time worth planning, always succeeds, isn't reported.
    Unload(Unload),
    /// Break an execution off that is running or about to: its requests are needed elsewhere. It is reported as
    /// [`ActionStatus::Preempted`], or as done if it was.
    Preempt {
        /// Where.
        device: DeviceId,
        /// Which.
        action: ActionId,
    },
    /// A request is over: its only outcome (P1). The slot is the driver's again.
    Finish {
        /// Which request.
        request: RequestId,
        /// How it ended.
        outcome: Outcome,
    },
}

/// A batch to run.
#[derive(Clone, PartialEq, Debug)]
pub struct Execution {
    /// The number that the report must name.
    pub action: ActionId,
    /// Where.
    pub device: DeviceId,
    /// Which weights; they are loaded there (P6).
    pub model: ModelId,
    /// The supported batch size that was planned with; the rows of all requests together are not more.
    pub batch: u32,
    /// Whose inputs, in this order.
    pub requests: Vec<RequestId>,
    /// When it may start.
    pub window: Window,
    /// What it is expected to take.
    pub expected: Duration,
    /// When it is expected to be done, all earlier work on that device considered.
    pub expected_done_at: Timestamp,
}

/// Weights to load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// The number that the report must name.
    pub action: ActionId,
    /// Where.
    pub device: DeviceId,
    /// Which weights.
    pub model: ModelId,
    /// When it may start.
    pub window: Window,
    /// What it is expected to take.
    pub expected: Duration,
}

/// Weights to forget. The worker obeys LOAD and UNLOAD of one device in the order in which they were given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unload {
    /// Where.
    pub device: DeviceId,
    /// Which weights.
    pub model: ModelId,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Executed, and done by its deadline.
    Done,
    /// Executed, but done after its deadline: the client has an answer already, and it isn't a success (P2).
    Late,
    /// Never executed (P8).
    Rejected(Rejection),
    /// Its execution failed.
    Failed,
    /// The client went away.
    Cancelled,
}

/// Why a request was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rejection {
    /// Even with nothing else to do the answer would come too late.
    DeadlineUnreachable {
        /// The earliest deadline that could have been met.
        earliest_at: Timestamp,
    },
    /// Others are ahead of it, and behind them it would come too late.
    Overloaded {
        /// The earliest deadline that could have been met.
        earliest_at: Timestamp,
    },
    /// The model's queue has reached its bound (P9).
    QueueFull,
    /// The model isn't served, or no longer.
    ModelUnavailable,
    /// There is no device to run it on.
    NoDevice,
}

impl Rejection {
    /// The same for who needs so much more time afterwards.
    pub(crate) fn later_by(self, rest: Duration) -> Self {
        match self {
            Self::DeadlineUnreachable { earliest_at } => Self::DeadlineUnreachable { earliest_at: earliest_at + rest },
            Self::Overloaded { earliest_at } => Self::Overloaded { earliest_at: earliest_at + rest },
            other => other,
        }
    }

    /// Its name.
    pub const fn reason(self) -> Reason {
        match self {
            Self::DeadlineUnreachable { .. } => Reason::DeadlineUnreachable,
            Self::Overloaded { .. } => Reason::Overloaded,
            Self::QueueFull => Reason::QueueFull,
            Self::ModelUnavailable => Reason::ModelUnavailable,
            Self::NoDevice => Reason::NoDevice,
        }
    }

    /// The earliest deadline that could have been met, where there is one.
    pub fn earliest_at(self) -> Option<Timestamp> {
        match self {
            Self::DeadlineUnreachable { earliest_at } | Self::Overloaded { earliest_at } => {
                Some(earliest_at).filter(|&at| at != Timestamp::NEVER)
            }
            Self::QueueFull | Self::ModelUnavailable | Self::NoDevice => None,
        }
    }
}
