//! All that one run of the simulator needs to know.

use crate::inputs::InputDistribution;
use crate::shares::SharedGpus;
use base::{Duration, LatencyProfile, ModelId};
use scheduler::{Fairness, ModelSpec, PipelineSpec};
use workload::{Arrival, ClosedLoop};

/// A world before its first instant.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The scheduler's settings.
    pub scheduler: scheduler::Config,
    /// The models; the id of each is its position.
    pub models: Vec<ModelSetup>,
    /// The pipelines; the id of each is its position. In the traffic they come behind the models: an arrival for
    /// "model" `models.len() + i` is one for pipeline `i`.
    pub pipelines: Vec<PipelineSetup>,
    /// The names under which models are counted together.
    pub groups: Vec<String>,
    /// How many devices.
    pub devices: u32,
    /// Pages of each.
    pub pages: u32,
    /// What messages take.
    pub network: Network,
    /// How executions differ from their profile.
    pub noise: Noise,
    /// What goes wrong.
    pub faults: Faults,
    /// How requests and devices differ, and what changes on the way.
    pub variety: Variety,
    /// Requests that are sent before this count for nothing.
    pub warmup: Duration,
    /// No request is sent after this.
    pub horizon: Duration,
    /// The step of the time series, where one is wanted.
    pub series_step: Option<Duration>,
    /// How many requests may be alive at once (P9); more are refused by the driver.
    pub max_requests: u32,
    /// End the run once so many of the requests that count went bad: a search knows enough by then.
    pub give_up_after_bad: Option<u64>,
    /// Whether the invariants are checked. Only the short runs of a search do without.
    pub checked: bool,
    /// Whether P10 is among them, which no policy keeps in every corner yet.
    pub strict: bool,
    /// Keep the first so many batches, to be looked at.
    pub trace_batches: usize,
    /// Devices come and go as the planner advises; absent: those that there are stay.
    pub elastic: Option<Elastic>,
    /// Devices are shares of GPUs, `devices` of them in all; absent: each is one for itself.
    pub shared: Option<std::sync::Arc<SharedGpus>>,
    /// The seed of everything random but the arrivals.
    pub seed: u64,
}

impl Setup {
    /// A world with nothing special about it: one page on each device, no noise, no faults, every invariant but P10
    /// checked.
    pub fn new(scheduler: scheduler::Config, models: Vec<ModelSetup>, devices: u32, horizon: Duration) -> Self {
        Self {
            scheduler,
            models,
            pipelines: Vec::new(),
            groups: vec!["all".into()],
            devices,
            pages: 1,
            network: Network::default(),
            noise: Noise::default(),
            faults: Faults::default(),
            variety: Variety::default(),
            warmup: Duration::ZERO,
            horizon,
            series_step: None,
            max_requests: scheduler::Config::DEFAULT_MAX_REQUESTS,
            give_up_after_bad: None,
            checked: true,
            strict: false,
            trace_batches: 0,
            elastic: None,
            shared: None,
            seed: 1,
        }
    }

    /// How many kinds of devices there are.
    pub(crate) fn kinds(&self) -> u32 {
        if self.shared.is_some() { planner::shares::SIZES.len() as u32 } else { self.variety.device_kinds.max(1) }
    }

    /// How many devices there can be at once.
    pub fn most_devices(&self) -> u32 {
        self.elastic.map_or(self.devices, |elastic| elastic.max_devices.max(self.devices))
    }
}

/// How a cluster follows the planner's advice.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Elastic {
    /// At least so many devices.
    pub min_devices: u32,
    /// At most so many.
    pub max_devices: u32,
    /// How often the advice is asked for.
    pub every: Duration,
    /// How long after it a device that was asked for is there.
    pub start: Duration,
}

/// A model of the world.
#[derive(Clone, Debug)]
pub struct ModelSetup {
    /// What the scheduler is told.
    pub spec: ModelSpec,
    /// How long each request has; `None` for batch work.
    pub slo: Option<Duration>,
    /// Rows of each request.
    pub rows: u32,
    /// Where it is counted.
    pub group: usize,
    /// How its requests differ, where they do.
    pub inputs: Option<InputDistribution>,
}

impl ModelSetup {
    /// A model with nothing special about it: requests of one row, weights that take no memory.
    pub fn new(model: ModelId, profile: LatencyProfile, slo: Option<Duration>) -> Self {
        let spec = ModelSpec {
            model,
            pages: 0,
            profile,
            elsewhere: Vec::new(),
            objective: slo,
            fixed: Duration::ZERO,
            fairness: Fairness::default(),
        };
        Self { spec, slo, rows: 1, group: 0, inputs: None }
    }
}

/// A pipeline of the world. Its requests have one row; what else varies about requests doesn't about these.
#[derive(Clone, Debug)]
pub struct PipelineSetup {
    /// What the scheduler is told.
    pub spec: PipelineSpec,
    /// How long each request has from end to end; `None` for batch work.
    pub slo: Option<Duration>,
    /// How many calls each stage makes: any of these, equally often. `StageSpec::calls` is for the scheduler.
    pub calls: Vec<Vec<u32>>,
    /// Each stage is sent as a request for its model, with so much time, and the scheduler hears of no pipeline: what a
    /// client does that has but time-outs for each model.
    pub timeouts: Option<Vec<Duration>>,
    /// Where it is counted.
    pub group: usize,
}

/// What messages take.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Network {
    /// Every message, one way: request to controller, action to worker, report to controller, answer to client.
    pub control: Duration,
    /// Fetching the input of one request, after the action has come to the worker.
    pub data_per_request: Duration,
    /// How much later than `control` after a batch's end the controller hears of it and decides. Its device computes
    /// nothing meanwhile, unless the next order has left before; no policy knows of it. Answers aren't later.
    pub gap: Duration,
    /// Deviation of the logarithm of what an order or a report takes. `control` is the median, 12 times that the most
    /// (Symphony, section 4.3: TCP's tail); messages of one device stay in order.
    pub jitter_sigma: f64,
}

impl Network {
    /// No message takes more than so many times the median.
    pub const LONGEST: f64 = 12.0;
}

/// How executions differ from their profile. The median stays the profile's.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Noise {
    /// Deviation of the logarithm of an execution's time.
    pub exec_sigma: f64,
    /// Deviation of the logarithm of a load's time.
    pub load_sigma: f64,
    /// How often an action takes `spike` longer.
    pub spike_probability: f64,
    /// How much longer.
    pub spike: Duration,
}

/// What goes wrong, until the horizon; after it everything works, and everything must finish.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Faults {
    /// How long a device lives on average; zero for ever.
    pub device_lifetime: Duration,
    /// How long a lost device stays away, at least until its loss is noticed.
    pub device_downtime: Duration,
    /// How long it takes to notice that a device or an action is lost.
    pub detection: Duration,
    /// How often an action never arrives; the driver notices and reports a failure.
    pub lost_action_probability: f64,
    /// How often a report comes late.
    pub late_report_probability: f64,
    /// At most how late.
    pub late_report: Duration,
    /// How often an execution takes `misprediction_factor` times as long.
    pub misprediction_probability: f64,
    /// How much longer.
    pub misprediction_factor: f64,
    /// How often a client goes away before its deadline.
    pub cancel_probability: f64,
    /// How often a load comes to nothing.
    pub failed_load_probability: f64,
    /// How often a batch that ran comes to nothing.
    pub failed_execution_probability: f64,
    /// How long it takes on average until a device freezes; zero: never.
    pub freezes_every: Duration,
    /// How long a frozen device does nothing and says nothing, before it goes on where it was.
    pub frozen: Duration,
    /// How long it takes on average until a device becomes slow; zero: never.
    pub slows_every: Duration,
    /// For how long it is.
    pub slow: Duration,
    /// How much longer everything takes meanwhile.
    pub slow_factor: f64,
    /// A device that is slower than its kind for longer.
    pub slowdown: Option<Slowdown>,
}

/// One device takes longer for everything than others of its kind do: too hot, a bad card, somebody else on it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Slowdown {
    /// Which device.
    pub device: u32,
    /// How many times as long.
    pub factor: f64,
    /// From when on.
    pub from: Duration,
    /// Until when.
    pub until: Duration,
}

impl Slowdown {
    /// How many times as long everything takes on a device so long after the beginning.
    pub fn of(&self, device: u32, since: Duration) -> f64 {
        let slow = device == self.device && since >= self.from && since < self.until;
        if slow { self.factor.max(1.0) } else { 1.0 }
    }
}

impl Faults {
    /// Whether anything goes wrong at all.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}

/// How requests and devices differ, and what changes until the horizon.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Variety {
    /// Each request has 1 to so many rows; 0: its model's.
    pub max_rows: u32,
    /// Each request has a priority from 0 to this.
    pub max_priority: u32,
    /// Each request has its model's objective, times 1 up to 1 more than this.
    pub objective_spread: f64,
    /// So many kinds of devices, in turn; 0 and 1: all are the same.
    pub device_kinds: u32,
    /// How often a device becomes one of another kind, on average; zero: never.
    pub device_kind_changes_every: Duration,
    /// How often a model is removed, and soon after another one with another number takes its place; zero: never.
    pub model_changes_every: Duration,
    /// How often the driver borrows a device, on average; zero: never.
    pub borrows_every: Duration,
    /// For how long.
    pub borrowed: Duration,
}

/// Who asks.
#[derive(Default)]
pub struct Traffic {
    /// Clients that don't wait for answers.
    pub open: Option<Box<dyn Iterator<Item = Arrival> + Send>>,
    /// Clients that do.
    pub closed: Option<ClosedLoop>,
}
