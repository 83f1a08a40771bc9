//! How long a million simulated requests take: 100 models on 16 devices, three quarters busy, all checkers on.

use base::{Duration, LatencyProfile, ModelId};
use scheduler::Config;
use sim::{ModelSetup, Noise, Setup, Traffic};
use std::time::Instant;
use workload::{OpenLoop, Process, RateCurve, Stream};

const MODELS: u32 = 100;
const REQUESTS: f64 = 1e6;
const RATE: f64 = 16_000.0;

pub(crate) fn run() {
    let setup = setup();
    let curve = RateCurve::constant(RATE);
    let stream = |model| Stream {
        model,
        process: Process::Poisson,
        curve: curve.clone(),
        share: 1.0 / f64::from(MODELS),
        starts_at: Duration::ZERO,
    };
    let traffic = Traffic { open: Some(Box::new(OpenLoop::new((0..MODELS).map(stream), 1))), closed: None };
    let began = Instant::now();
    let run = sim::run(&setup, traffic).expect("no invariant is broken");
    let took = began.elapsed().as_secs_f64();
    let total = run.meter.total();
    println!(
        "{} requests, {} events in {took:.2} s: {:.0} requests/s, {:.0} events/s; bad {:.4}, batch {:.2}, utilization {:.2}",
        total.sent,
        run.events,
        total.sent as f64 / took,
        run.events as f64 / took,
        total.bad_fraction(),
        run.meter.mean_batch(),
        run.meter.utilization(),
    );
}

fn setup() -> Setup {
    let profile = LatencyProfile::linear(
        Duration::from_micros(300),
        Duration::from_micros(2_000),
        &[1, 2, 4, 8, 16],
        Duration::from_millis(8),
    )
    .expect("the sizes ascend");
    let slo = Duration::from_millis(50);
    let model = |index| {
        let mut model = ModelSetup::new(ModelId(index), profile.clone(), Some(slo));
        model.spec.pages = 7;
        model
    };
    let horizon = Duration::from_secs_f64(REQUESTS / RATE);
    Setup {
        pages: 1_000,
        noise: Noise { exec_sigma: 0.01, ..Noise::default() },
        max_requests: 1 << 20,
        ..Setup::new(Config::clockwork(), (0..MODELS).map(model).collect(), 16, horizon)
    }
}
