//! Worlds drawn from one number each, with everything that can happen in one: a failure is its seed.

use base::{Duration, LatencyProfile, ModelId, PipelineId};
use scheduler::{Delay, ModelSpec, PipelineSpec, PolicyKind, Split, StageSpec};
use sim::{Faults, ModelSetup, Network, Noise, PipelineSetup, Setup, Slowdown, Traffic, Variety};
use std::panic::{AssertUnwindSafe, catch_unwind};
use workload::{ClosedLoop, OpenLoop, Popularity, Process, Random, RateCurve, Stream, Think};

/// What is drawn first; everything else follows from it and the seed.
#[derive(Clone, Debug)]
pub struct RandomWorld {
    /// The number that it is drawn from.
    pub seed: u64,
    /// The policy under test.
    pub policy: PolicyKind,
    /// How many models.
    pub models: u32,
    /// How many devices.
    pub devices: u32,
    /// How many models of seven pages fit on a device.
    pub fits: u32,
    /// For how long clients send.
    pub seconds: f64,
    /// Which part of what the devices could do if all batches were of 16.
    pub load: f64,
    /// The shape of the gamma distribution between arrivals.
    pub shape: f64,
    /// Whether some models are more popular than others.
    pub zipf: bool,
    /// So many clients for each model that wait for their answers; `None`: clients that don't.
    pub clients: Option<u32>,
    /// The objective; each model has half of it or up to half as much more.
    pub slo_ms: f64,
    /// So many of the models have no deadline.
    pub batch_models: u32,
    /// The scheduler's `schedule_ahead`.
    pub ahead: Duration,
    /// How many requests of a model may be queued.
    pub bound: usize,
    /// The scheduler's setting of that name.
    pub predict_admission: bool,
    /// The scheduler's setting of that name.
    pub rehearse: bool,
    /// What messages take.
    pub network: Network,
    /// How executions differ from their profile.
    pub noise: Noise,
    /// What goes wrong.
    pub faults: Faults,
    /// How requests and devices differ, and what changes.
    pub variety: Variety,
    /// How many pipelines, and how their time is split.
    pub pipelines: (u32, Split),
}

/// No world has more requests than this, by its rate.
const MOST_REQUESTS: f64 = 6_000.0;
/// The streams of random numbers.
const PLAN: u64 = 11 << 40;
const MODELS: u64 = 12 << 40;
const SLOWDOWN: u64 = 14 << 40;
const PIPELINES: u64 = 15 << 40;

/// Requests for so many models that come as they please: equally popular or by Zipf's law, in bursts of that shape.
pub(crate) fn in_bursts(models: u32, zipf: bool, shape: f64, curve: &RateCurve, seed: u64) -> Traffic {
    let popularity = if zipf { Popularity::Zipf { exponent: 1.0 } } else { Popularity::Equal };
    let stream = |(model, share)| Stream {
        model: model as u32,
        process: Process::Gamma { shape },
        curve: curve.clone(),
        share,
        starts_at: Duration::ZERO,
    };
    let streams = popularity.shares(models as usize).into_iter().enumerate().map(stream);
    Traffic { open: Some(Box::new(OpenLoop::new(streams, seed))), closed: None }
}

impl RandomWorld {
    /// The world of that number.
    pub fn draw(seed: u64) -> Self {
        let mut random = Random::new(seed, PLAN);
        let d = &mut random;
        let policy = PolicyKind::ALL[d.below(PolicyKind::ALL.len() as u32) as usize];
        let (most_models, most_devices) = match d.below(20) {
            0 => (100, 200),
            1..=3 => (40, 40),
            _ => (12, 5),
        };
        let (models, devices) = (1 + d.below(most_models), 1 + d.below(most_devices));
        let most_fit = if d.chance(0.3) { models + 4 } else { 8 };
        let fits = 1 + d.below(most_fit);
        let faulty = d.chance(0.7);
        let various = d.chance(0.8);
        Self {
            seed,
            policy,
            models,
            devices,
            fits,
            seconds: 0.3 + d.unit(),
            load: 0.1 + 2.0 * d.unit() * d.unit(),
            shape: if d.chance(0.5) { 1.0 } else { 0.1 + 2.0 * d.unit() },
            zipf: d.chance(0.5),
            clients: d.chance(0.2).then(|| 1 + d.below(10)),
            slo_ms: 4.0 + 200.0 * d.unit() * d.unit(),
            batch_models: d.below(3),
            ahead: if d.chance(0.4) { Duration::ZERO } else { Duration::from_millis(5).mul_f64(d.unit()) },
            bound: if d.chance(0.3) { 1 + d.below(300) as usize } else { 1 << 20 },
            predict_admission: d.chance(0.5),
            rehearse: d.chance(0.5),
            network: if d.chance(0.5) { network(d) } else { Network::default() },
            noise: if d.chance(0.5) { noise(d) } else { Noise::default() },
            faults: if faulty { Faults { slowdown: slowdown(seed, devices), ..faults(d) } } else { Faults::default() },
            variety: if various { variety(d) } else { Variety::default() },
            pipelines: pipelines(seed),
        }
    }

    /// What it consists of.
    pub fn setup(&self) -> Setup {
        let mut random = Random::new(self.seed, MODELS);
        let models = (0..self.models).map(|index| self.model(index, &mut random)).collect();
        let scheduler = scheduler::Config {
            policy: self.policy,
            schedule_ahead: self.ahead,
            max_queued_per_model: self.bound,
            predict_admission: self.predict_admission,
            rehearse: self.rehearse,
            split: self.pipelines.1,
            delay: Delay { control: self.network.control, per_row: self.network.data_per_request },
            ..scheduler::Config::default()
        };
        Setup {
            pipelines: (0..self.pipelines.0).map(|index| self.pipeline(index)).collect(),
            pages: self.fits * 7,
            network: self.network,
            noise: self.noise,
            faults: self.faults,
            variety: self.variety,
            max_requests: 1 << 16,
            strict: true,
            seed: self.seed,
            ..Setup::new(scheduler, models, self.devices, Duration::from_secs_f64(self.seconds))
        }
    }

    /// Batches take `beta + alpha * b`, on each faster kind of device less.
    fn model(&self, index: u32, random: &mut Random) -> ModelSetup {
        let alpha = Duration::from_micros(100).mul_f64(1.0 + 5.0 * random.unit());
        let beta = Duration::from_micros(100).mul_f64(1.0 + 30.0 * random.unit());
        let sizes: Vec<u32> = if random.chance(0.5) { (1..=16).collect() } else { vec![1, 2, 4, 8, 16] };
        let load = Duration::from_millis(8).mul_f64(0.2 + random.unit());
        let profile = |factor: f64| {
            let (alpha, beta) = (alpha.mul_f64(factor), beta.mul_f64(factor));
            LatencyProfile::linear(alpha, beta, &sizes, load.mul_f64(factor)).expect("the sizes ascend")
        };
        let urgent = index >= self.batch_models;
        // Some have less time than a batch of one takes and a load, which they can't always be given.
        let slo = urgent.then(|| Duration::from_millis_f64(self.slo_ms).mul_f64(0.5 + random.unit()));
        let elsewhere = (1..self.variety.device_kinds).map(|kind| profile(1.0 - 0.3 * f64::from(kind))).collect();
        let pages = 3 + random.below(5);
        let mut model = ModelSetup::new(ModelId(index), profile(1.0), slo);
        model.spec = ModelSpec { pages, elsewhere, ..model.spec };
        model
    }

    /// One to four stages, each of any model and behind the one before it or the one before that; the first ones may
    /// have no other before them.
    fn pipeline(&self, index: u32) -> PipelineSetup {
        let d = &mut Random::new(self.seed, PIPELINES + 1 + u64::from(index));
        let count = 1 + d.below(4);
        let mut stages: Vec<StageSpec> = Vec::new();
        let mut calls = Vec::new();
        for stage in 0..count {
            let choice = if d.chance(0.5) { vec![1] } else { vec![d.below(2), 1, 1 + d.below(4)] };
            if stage > 0 && d.chance(0.9) {
                let before = stage - 1 - d.below(stage.min(2));
                stages[before as usize].next.push(stage);
            }
            stages.push(StageSpec {
                model: ModelId(d.below(self.models)),
                next: Vec::new(),
                calls: f64::from(choice.iter().sum::<u32>()) / choice.len() as f64,
                varies: choice.iter().any(|&calls| calls != choice[0]),
                gap: if d.chance(0.5) { Duration::ZERO } else { Duration::from_micros(u64::from(d.below(2_000))) },
            });
            calls.push(choice);
        }
        let slo = Duration::from_millis_f64(self.slo_ms).mul_f64(f64::from(count) * (0.5 + d.unit()));
        let timeouts = d.chance(0.2).then(|| vec![slo / u64::from(count); count as usize]);
        let spec = PipelineSpec { pipeline: PipelineId(index), stages };
        PipelineSetup { spec, slo: d.chance(0.9).then_some(slo), calls, timeouts, group: 0 }
    }

    /// Who asks.
    pub fn traffic(&self, setup: &Setup) -> Traffic {
        if let Some(clients) = self.clients {
            let clients = (0..self.models + self.pipelines.0).map(|model| (model, clients));
            let closed = ClosedLoop::new(clients, Think::None, Duration::from_millis(1), self.seed);
            return Traffic { open: None, closed: Some(closed) };
        }
        let takes = setup.models[0].spec.profile.batches().last().map_or(1.0, |batch| batch.median.as_secs_f64());
        let rows = f64::from(self.variety.max_rows.max(1) + 1) / 2.0;
        let rate = self.load * 16.0 / takes / rows * f64::from(self.devices);
        let rate = rate.min(MOST_REQUESTS / self.seconds);
        in_bursts(self.models + self.pipelines.0, self.zipf, self.shape, &RateCurve::constant(rate), self.seed)
    }

    /// Runs it twice: what is broken, if anything is.
    pub fn run(&self) -> Result<(), String> {
        let setup = self.setup();
        let once = || {
            let run = catch_unwind(AssertUnwindSafe(|| sim::run(&setup, self.traffic(&setup))));
            let run = run.map_err(|panic| format!("panics: {}", message(&*panic)))?;
            run.map_err(|violation| violation.to_string())
        };
        let first = once()?;
        let total = first.meter.total();
        if total.sent != total.good + total.bad() + total.cancelled {
            return Err(format!("the meter's sums differ: {total:?}"));
        }
        // P7: a second run, in a fresh machine, gives the same commands.
        let second = once()?;
        if (first.fingerprint, first.events) != (second.fingerprint, second.events) {
            return Err("P7 is broken: two runs differ".into());
        }
        Ok(())
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
}

fn network(d: &mut Random) -> Network {
    let control = Duration::from_micros(u64::from(10 + d.below(1_000)));
    let jitter_sigma = if d.chance(0.5) { d.unit() } else { 0.0 };
    Network { control, data_per_request: control / 10, jitter_sigma, ..Network::default() }
}

fn noise(d: &mut Random) -> Noise {
    let sigma = 0.3 * d.unit();
    Noise { exec_sigma: sigma, load_sigma: sigma, ..Noise::default() }
}

/// A probability that is 0 half of the time.
fn rare(d: &mut Random) -> f64 {
    if d.chance(0.5) { 0.0 } else { 0.001 + 0.1 * d.unit() * d.unit() }
}

/// How often something happens, which is never half of the time.
fn seldom(d: &mut Random) -> Duration {
    if d.chance(0.5) { Duration::ZERO } else { Duration::from_millis(u64::from(50 + d.below(2_000))) }
}

fn faults(d: &mut Random) -> Faults {
    Faults {
        device_lifetime: seldom(d),
        device_downtime: Duration::from_millis(30),
        detection: Duration::from_millis(10),
        lost_action_probability: rare(d),
        late_report_probability: rare(d),
        late_report: Duration::from_millis(40),
        misprediction_probability: rare(d),
        misprediction_factor: 5.0,
        cancel_probability: rare(d),
        failed_load_probability: rare(d),
        failed_execution_probability: rare(d),
        freezes_every: seldom(d),
        frozen: Duration::from_millis(100),
        slows_every: seldom(d),
        slow: Duration::from_millis(200),
        slow_factor: 1.0 + 4.0 * d.unit(),
        slowdown: None,
    }
}

/// From numbers of its own, so that the rest of a world doesn't depend on it.
fn pipelines(seed: u64) -> (u32, Split) {
    let d = &mut Random::new(seed, PIPELINES);
    let split = Split::ALL[d.below(Split::ALL.len() as u32) as usize];
    if d.chance(0.4) { (1 + d.below(3), split) } else { (0, Split::Load) }
}

/// From numbers of its own, so that the rest of a world doesn't depend on it.
fn slowdown(seed: u64, devices: u32) -> Option<Slowdown> {
    let d = &mut Random::new(seed, SLOWDOWN);
    let (from, lasts) = (Duration::from_secs_f64(0.5 * d.unit()), Duration::from_secs_f64(0.1 + d.unit()));
    let slowdown = Slowdown { device: d.below(devices), factor: 1.0 + 5.0 * d.unit(), from, until: from + lasts };
    d.chance(0.5).then_some(slowdown)
}

fn variety(d: &mut Random) -> Variety {
    let kinds = 1 + d.below(3);
    Variety {
        max_rows: d.below(9),
        max_priority: d.below(6),
        objective_spread: if d.chance(0.5) { 2.0 * d.unit() } else { 0.0 },
        device_kinds: kinds,
        device_kind_changes_every: if kinds > 1 { seldom(d) / 4 } else { Duration::ZERO },
        model_changes_every: seldom(d) / 4,
        borrows_every: seldom(d) / 4,
        borrowed: Duration::from_millis(10),
    }
}
