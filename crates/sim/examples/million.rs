//! How long a million simulated requests take: 100 models on 16 devices, three quarters busy, all checkers on.
//!
//! ```text
//! cargo run --release -p sim --example million
//! ```

use base::{Duration, LatencyProfile, ModelId};
use scheduler::ModelSpec;
use sim::{Faults, Model, Network, Noise, Setup, Traffic, Variety};
use std::time::Instant;
use workload::{OpenLoop, Process, RateCurve, Stream};

const MODELS: u32 = 100;
const REQUESTS: f64 = 1e6;
const RATE: f64 = 16_000.0;

fn main() {
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
    let model = |index| Model {
        spec: ModelSpec {
            model: ModelId(index),
            pages: 7,
            profile: profile.clone(),
            elsewhere: Vec::new(),
            objective: Some(slo),
            fixed: Duration::ZERO,
            fairness: scheduler::Fairness::default(),
        },
        slo: Some(slo),
        rows: 1,
        group: 0,
        inputs: None,
    };
    Setup {
        scheduler: scheduler::Config::clockwork(),
        models: (0..MODELS).map(model).collect(),
        groups: vec!["all".into()],
        devices: 16,
        pages: 1_000,
        network: Network::default(),
        noise: Noise { exec_sigma: 0.01, ..Noise::default() },
        faults: Faults::default(),
        variety: Variety::default(),
        warmup: Duration::ZERO,
        horizon: Duration::from_secs_f64(REQUESTS / RATE),
        series_step: None,
        max_requests: 1 << 20,
        give_up_after_bad: None,
        checked: true,
        strict: false,
        trace_batches: 0,
        elastic: None,
        seed: 1,
    }
}
