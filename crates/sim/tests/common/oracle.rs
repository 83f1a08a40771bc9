//! The oracle: in a world where nothing goes wrong, `punctual` is hardly worse than the best of its rivals.

#![allow(dead_code, reason = "tests and the example each use some of it")]

use base::{Duration, LatencyProfile, ModelId};
use scheduler::{ModelSpec, PolicyKind};
use sim::{Faults, Model, Network, Noise, Setup, Traffic, Variety};
use std::fmt;
use workload::{OpenLoop, Popularity, Process, Random, RateCurve, Stream};

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
pub struct Plan {
    pub seed: u64,
    pub models: u32,
    pub devices: u32,
    pub alpha: Duration,
    pub beta: Duration,
    pub powers: bool,
    pub slo: Duration,
    pub shape: f64,
    pub zipf: bool,
    pub load: f64,
    /// The load of the second half, as a part of the first one's.
    pub step: Option<f64>,
    pub ahead: Duration,
}

impl Plan {
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
        let plan = Self {
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
        let factor = (plan.rate() / MOST_RATE).max(1.0);
        plan.slower(factor)
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

    /// What the devices can do if batches follow each other evenly (Symphony, section 3.3): with N devices for a model, the
    /// largest batch with `l(b) <= slo * N / (N + 1)`. Each model has its part of the devices.
    pub fn peak(&self) -> f64 {
        let devices = (f64::from(self.devices) / f64::from(self.models)).max(1.0);
        let within = self.slo.mul_f64(devices / (devices + 1.0));
        let batch = self.sizes().into_iter().filter(|&batch| self.takes(batch) <= within).max().unwrap_or(1);
        f64::from(self.devices * batch) / self.takes(batch).as_secs_f64()
    }

    pub fn rate(&self) -> f64 {
        self.load * self.peak()
    }

    pub fn seconds(&self) -> f64 {
        (MOST_REQUESTS / self.rate()).clamp(LEAST_SECONDS, MOST_SECONDS)
    }

    pub fn setup(&self, policy: PolicyKind) -> Setup {
        let sizes = self.sizes();
        let profile = LatencyProfile::linear(self.alpha, self.beta, &sizes, Duration::from_millis(5));
        let profile = profile.expect("the sizes ascend");
        let model = |index| Model {
            spec: ModelSpec {
                model: ModelId(index),
                pages: 1,
                profile: profile.clone(),
                elsewhere: Vec::new(),
                objective: Some(self.slo),
                fixed: Duration::ZERO,
                fairness: scheduler::Fairness::default(),
            },
            slo: Some(self.slo),
            rows: 1,
            group: 0,
            inputs: None,
        };
        Setup {
            scheduler: scheduler::Config {
                policy,
                schedule_ahead: self.ahead,
                profile_window: 100,
                ..scheduler::Config::default()
            },
            models: (0..self.models).map(model).collect(),
            groups: vec!["all".into()],
            devices: self.devices,
            pages: self.models,
            network: Network::default(),
            noise: Noise::default(),
            faults: Faults::default(),
            variety: Variety::default(),
            // Loads take their time, which is nobody's fault.
            warmup: Duration::from_millis(500),
            horizon: Duration::from_millis(500) + Duration::from_secs_f64(self.seconds()),
            series_step: None,
            max_requests: 1 << 18,
            give_up_after_bad: None,
            checked: false,
            strict: false,
            trace_batches: 0,
            elastic: None,
            seed: self.seed,
        }
    }

    pub fn traffic(&self) -> Traffic {
        let rate = self.rate();
        let steps = [
            (Duration::ZERO, rate),
            (Duration::from_secs_f64(0.5 + self.seconds() / 2.0), rate * self.step.unwrap_or(1.0)),
        ];
        let curve = RateCurve::steps(steps);
        let popularity = if self.zipf { Popularity::Zipf { exponent: 1.0 } } else { Popularity::Equal };
        let shares = popularity.shares(self.models as usize);
        let stream = |(model, share)| Stream {
            model: model as u32,
            process: Process::Gamma { shape: self.shape },
            curve: curve.clone(),
            share,
            starts_at: Duration::ZERO,
        };
        let streams = shares.into_iter().enumerate().map(stream);
        Traffic { open: Some(Box::new(OpenLoop::new(streams, self.seed))), closed: None }
    }

    /// The bad part of the requests under a policy, and how many there were.
    pub fn bad(&self, policy: PolicyKind) -> (f64, u64) {
        let run = sim::run(&self.setup(policy), self.traffic()).expect("nothing is broken");
        let total = run.meter.total();
        (total.bad() as f64 / total.sent.max(1) as f64, total.sent)
    }

    pub fn judge(self) -> Verdict {
        let (punctual, requests) = self.bad(PolicyKind::Punctual);
        let rivals = RIVALS.map(|policy| self.bad(policy).0);
        Verdict { plan: self, requests, punctual, rivals }
    }
}

/// How `punctual` did.
#[derive(Clone, Debug)]
pub struct Verdict {
    pub plan: Plan,
    pub requests: u64,
    pub punctual: f64,
    pub rivals: [f64; 4],
}

impl Verdict {
    pub const HEADER: &str = "  seed models devices beta/alpha  slo/l(4) shape zipf sizes   load  step    rate r/s  ahead ms requests | bad %: punctual deferred clockwork  eager timeout";

    pub fn best(&self) -> f64 {
        self.rivals.iter().copied().fold(1.0, f64::min)
    }

    pub fn holds(&self) -> bool {
        self.punctual <= FACTOR * self.best() + MORE
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = &self.plan;
        let ratio = plan.beta.as_secs_f64() / plan.alpha.as_secs_f64();
        let tightness = plan.slo.as_secs_f64() / plan.takes(4).as_secs_f64();
        let step = plan.step.map_or("-".into(), |step| format!("{step:.2}"));
        let sizes = if plan.powers { "2^n" } else { "all" };
        write!(
            f,
            "{:6} {:6} {:7} {ratio:10.1} {tightness:9.2} {:5} {:>4} {sizes:>5} {:6.2} {step:>5} {:11.0} {:9.2} {:8} |        {:8.2}",
            plan.seed,
            plan.models,
            plan.devices,
            plan.shape,
            if plan.zipf { "yes" } else { "no" },
            plan.load,
            plan.rate(),
            plan.ahead.as_millis_f64(),
            self.requests,
            100.0 * self.punctual
        )?;
        for (bad, width) in self.rivals.iter().zip([9, 10, 7, 8]) {
            write!(f, "{:width$.2}", 100.0 * bad)?;
        }
        Ok(())
    }
}
