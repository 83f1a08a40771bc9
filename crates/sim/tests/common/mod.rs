//! Worlds for tests.

#![allow(dead_code, reason = "each test file uses some of them")]

use base::{Duration, LatencyProfile, ModelId};
use sim::{ModelSetup, Setup, Traffic};
use workload::{ClosedLoop, OpenLoop, Process, RateCurve, Stream, Think};

/// A model of that number, with batches of 1 to 16 that take `2 ms + 0.5 ms * b`, loaded in 8 ms into 7 pages.
pub fn model(index: u32, slo_ms: Option<u64>) -> ModelSetup {
    let profile = LatencyProfile::linear(
        Duration::from_micros(500),
        Duration::from_millis(2),
        &[1, 2, 4, 8, 16],
        Duration::from_millis(8),
    );
    let slo = slo_ms.map(Duration::from_millis);
    let mut model = ModelSetup::new(ModelId(index), profile.expect("the sizes ascend"), slo);
    model.spec.pages = 7;
    model
}

/// A world of those models with nothing special about it, in which P10 is checked, too.
pub fn world(models: Vec<ModelSetup>, devices: u32, pages: u32, seconds: u64) -> Setup {
    let plain = Setup::new(scheduler::Config::clockwork(), models, devices, Duration::from_secs(seconds));
    Setup { pages, max_requests: 1 << 16, strict: true, ..plain }
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
