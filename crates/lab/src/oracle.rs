//! The oracle: in a world where nothing goes wrong, `punctual` is hardly worse than the best of its rivals.

use crate::worlds::in_bursts;
use base::{Duration, LatencyProfile, ModelId};
use scheduler::PolicyKind;
use sim::{ModelSetup, Setup, Traffic};
use std::fmt;
use workload::{Random, RateCurve};

/// Who it is compared with.
pub const RIVALS: [PolicyKind; 4] =
    [PolicyKind::Deferred, PolicyKind::Clockwork, PolicyKind::Eager, PolicyKind::Timeout];
/// Its bad part is at most so many times the best rival's ...
const FACTOR: f64 = 1.5;
/// ... and so much more.
const MORE: f64 = 0.005;

/// A run has about so many requests at first, and lasts no longer.
const MOST_REQUESTS: f64 = 20_000.0;
const MOST_SECONDS: f64 = 60.0;
/// Shorter ones show nothing of what is learnt from seconds.
const LEAST_SECONDS: f64 = 5.0;
const MOST_RATE: f64 = 100_000.0;
/// The stream of random numbers.
const PLAN: u64 = 13 << 40;

/// A world, drawn from one number.
#[derive(Clone, Debug)]
pub struct CalmWorld {
    /// The number that it is drawn from.
    pub seed: u64,
    /// How many models, all with the same latencies and objective.
    pub models: u32,
    /// How many devices.
    pub devices: u32,
    /// What each row of a batch takes,
    pub alpha: Duration,
    /// beside this for the batch.
    pub beta: Duration,
    /// Batch sizes are powers of two; otherwise all up to 64.
    pub powers: bool,
    /// The objective.
    pub slo: Duration,
    /// The shape of the gamma distribution between arrivals.
    pub shape: f64,
    /// Whether some models are more popular than others.
    pub zipf: bool,
    /// The rate as a part of [`CalmWorld::peak`].
    pub load: f64,
    /// The load of the second half, as a part of the first one's.
    pub step: Option<f64>,
    /// The scheduler's `schedule_ahead`.
    pub ahead: Duration,
}

impl CalmWorld {
    /// The world of that number.
    pub fn draw(seed: u64) -> Self {
        let mut random = Random::new(seed, PLAN);
        let d = &mut random;
        // As many small numbers as large ones.
        let log = |d: &mut Random, from: f64, to: f64| from * libm::pow(to / from, d.unit());
        // One world in four is large and near its peak, where what is learnt matters most.
        let large = seed % 4 == 3;
        let (models, devices, load) = if large {
            (20 + d.below(21), 40 + d.below(111), 0.85 + 0.2 * d.unit())
        } else {
            (log(d, 1.0, 41.0) as u32, log(d, 1.0, 151.0) as u32, 0.5 + 0.7 * d.unit())
        };
        let ratio = log(d, 0.3, 30.0);
        let one = Duration::from_millis_f64(log(d, 1.0, 20.0));
        let alpha = one.mul_f64(1.0 / (1.0 + ratio));
        let beta = one - alpha;
        let slo = (alpha * 4 + beta).mul_f64(1.5 + 3.5 * d.unit());
        let world = Self {
            seed,
            models,
            devices,
            alpha,
            beta,
            powers: d.chance(0.5),
            slo,
            shape: [0.1, 0.2, 1.0][d.below(3) as usize],
            zipf: d.chance(0.5),
            load,
            step: d.chance(0.5).then(|| 0.6 + 0.8 * d.unit()),
            ahead: if d.chance(0.5) { Duration::ZERO } else { Duration::from_millis(5).mul_f64(d.unit()) },
        };
        // Where that is too much at once, everything takes longer: the load stays.
        let factor = (world.rate() / MOST_RATE).max(1.0);
        world.slower(factor)
    }

    fn slower(self, factor: f64) -> Self {
        let slower = |span: Duration| span.mul_f64(factor);
        Self { alpha: slower(self.alpha), beta: slower(self.beta), slo: slower(self.slo), ..self }
    }

    fn sizes(&self) -> Vec<u32> {
        if self.powers { vec![1, 2, 4, 8, 16, 32, 64] } else { (1..=64).collect() }
    }

    fn takes(&self, batch: u32) -> Duration {
        self.alpha * u64::from(batch) + self.beta
    }

    /// What the devices can do if batches follow each other evenly (Symphony, section 3.3): with N devices for a model,
    /// the largest batch with `l(b) <= slo * N / (N + 1)`. Each model has its part of the devices.
    pub fn peak(&self) -> f64 {
        let devices = (f64::from(self.devices) / f64::from(self.models)).max(1.0);
        let within = self.slo.mul_f64(devices / (devices + 1.0));
        let batch = self.sizes().into_iter().filter(|&batch| self.takes(batch) <= within).max().unwrap_or(1);
        f64::from(self.devices * batch) / self.takes(batch).as_secs_f64()
    }

    /// Requests a second in the first half.
    pub fn rate(&self) -> f64 {
        self.load * self.peak()
    }

    /// For how long clients send.
    pub fn seconds(&self) -> f64 {
        (MOST_REQUESTS / self.rate()).clamp(LEAST_SECONDS, MOST_SECONDS)
    }

    /// What it consists of, under a policy.
    pub fn setup(&self, policy: PolicyKind) -> Setup {
        let sizes = self.sizes();
        let profile = LatencyProfile::linear(self.alpha, self.beta, &sizes, Duration::from_millis(5));
        let profile = profile.expect("the sizes ascend");
        let model = |index| {
            let mut model = ModelSetup::new(ModelId(index), profile.clone(), Some(self.slo));
            model.spec.pages = 1;
            model
        };
        let scheduler = scheduler::Config {
            policy,
            schedule_ahead: self.ahead,
            profile_window: 100,
            ..scheduler::Config::default()
        };
        // Loads take their time, which is nobody's fault.
        let warmup = Duration::from_millis(500);
        let horizon = warmup + Duration::from_secs_f64(self.seconds());
        Setup {
            pages: self.models,
            warmup,
            max_requests: 1 << 18,
            checked: false,
            seed: self.seed,
            ..Setup::new(scheduler, (0..self.models).map(model).collect(), self.devices, horizon)
        }
    }

    /// Who asks.
    pub fn traffic(&self) -> Traffic {
        let rate = self.rate();
        let steps = [
            (Duration::ZERO, rate),
            (Duration::from_secs_f64(0.5 + self.seconds() / 2.0), rate * self.step.unwrap_or(1.0)),
        ];
        in_bursts(self.models, self.zipf, self.shape, &RateCurve::steps(steps), self.seed)
    }

    /// The bad part of the requests under a policy, and how many there were.
    pub fn bad(&self, policy: PolicyKind) -> (f64, u64) {
        let run = sim::run(&self.setup(policy), self.traffic()).expect("nothing is broken");
        let total = run.meter.total();
        (total.bad() as f64 / total.sent.max(1) as f64, total.sent)
    }

    /// Runs it under `punctual` and each rival.
    pub fn judge(self) -> Judgement {
        let (punctual, requests) = self.bad(PolicyKind::Punctual);
        let rivals = RIVALS.map(|policy| self.bad(policy).0);
        Judgement { world: self, requests, punctual, rivals }
    }
}

/// How `punctual` did.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// Where.
    pub world: CalmWorld,
    /// How many requests there were.
    pub requests: u64,
    /// The bad part of them under `punctual`,
    pub punctual: f64,
    /// and under each of [`RIVALS`].
    pub rivals: [f64; 4],
}

impl Judgement {
    /// What the columns of its text are.
    pub const HEADER: &str = "  seed models devices beta/alpha  slo/l(4) shape zipf sizes   load  step    rate r/s  ahead ms requests | bad %: punctual deferred clockwork  eager timeout";

    /// The least that a rival loses.
    pub fn best(&self) -> f64 {
        self.rivals.iter().copied().fold(1.0, f64::min)
    }

    /// Whether `punctual` loses hardly more.
    pub fn holds(&self) -> bool {
        self.punctual <= FACTOR * self.best() + MORE
    }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let world = &self.world;
        let ratio = world.beta.as_secs_f64() / world.alpha.as_secs_f64();
        let tightness = world.slo.as_secs_f64() / world.takes(4).as_secs_f64();
        let step = world.step.map_or("-".into(), |step| format!("{step:.2}"));
        let sizes = if world.powers { "2^n" } else { "all" };
        write!(
            f,
            "{:6} {:6} {:7} {ratio:10.1} {tightness:9.2} {:5} {:>4} {sizes:>5} {:6.2} {step:>5} {:11.0} {:9.2} {:8} |        {:8.2}",
            world.seed,
            world.models,
            world.devices,
            world.shape,
            if world.zipf { "yes" } else { "no" },
            world.load,
            world.rate(),
            world.ahead.as_millis_f64(),
            self.requests,
            100.0 * self.punctual
        )?;
        for (bad, width) in self.rivals.iter().zip([9, 10, 7, 8]) {
            write!(f, "{:width$.2}", 100.0 * bad)?;
        }
        Ok(())
    }
}
