//! Worlds for tests.

#![allow(dead_code, reason = "each test file uses some of them")]

use base::{Duration, LatencyProfile, ModelId};
use scheduler::ModelSpec;
use sim::{Faults, Model, Network, Noise, Setup, Traffic, Variety};
use workload::{ClosedLoop, OpenLoop, Process, RateCurve, Stream, Think};

/// A model of that number, with batches of 1 to 16 that take `2 ms + 0.5 ms * b`, loaded in 8 ms into 7 pages.
pub fn model(index: u32, slo_ms: Option<u64>) -> Model {
    let profile = LatencyProfile::linear(
        Duration::from_micros(500),
        Duration::from_millis(2),
        &[1, 2, 4, 8, 16],
        Duration::from_millis(8),
    );
    let slo = slo_ms.map(Duration::from_millis);
    Model {
        spec: ModelSpec {
            model: ModelId(index),
            pages: 7,
            profile: profile.expect("the sizes ascend"),
            elsewhere: Vec::new(),
            objective: slo,
            fixed: Duration::ZERO,
            fairness: scheduler::Fairness::default(),
        },
        slo,
        rows: 1,
        group: 0,
        inputs: None,
    }
}

/// A world of those models with nothing special about it.
pub fn world(models: Vec<Model>, devices: u32, pages: u32, seconds: u64) -> Setup {
    Setup {
        scheduler: scheduler::Config::clockwork(),
        models,
        groups: vec!["all".into()],
        devices,
        pages,
        network: Network::default(),
        noise: Noise::default(),
        faults: Faults::default(),
        variety: Variety::default(),
        warmup: Duration::ZERO,
        horizon: Duration::from_secs(seconds),
        series_step: None,
        max_requests: 1 << 16,
        give_up_after_bad: None,
        checked: true,
        strict: true,
        trace_batches: 0,
        elastic: None,
        seed: 1,
    }
}

/// Gamma arrivals of that rate, spread evenly over the models.
pub fn open(setup: &Setup, rate: f64, shape: f64, seed: u64) -> Traffic {
    let models = setup.models.len() as u32;
    let curve = RateCurve::constant(rate / f64::from(models));
    let stream = |model| Stream {
        model,
        process: Process::Gamma { shape },
        curve: curve.clone(),
        share: 1.0,
        starts_at: Duration::ZERO,
    };
    Traffic { open: Some(Box::new(OpenLoop::new((0..models).map(stream), seed))), closed: None }
}

/// So many clients for each model.
pub fn closed(setup: &Setup, clients: u32) -> Traffic {
    let models = setup.models.len() as u32;
    let closed = ClosedLoop::new((0..models).map(|model| (model, clients)), Think::None, Duration::from_millis(1), 1);
    Traffic { open: None, closed: Some(closed) }
}
