//! What one slow device of eight costs, under three policies at two loads.

use base::{Duration, LatencyProfile, ModelId};
use scheduler::{Config, PolicyKind};
use sim::{Faults, ModelSetup, Noise, Setup, Slowdown, Traffic};
use workload::{OpenLoop, Process, RateCurve, Stream};

const MODELS: u32 = 10;

#[derive(clap::Args)]
pub(crate) struct SlowDeviceArgs {
    /// The objective.
    #[arg(default_value_t = 25, value_name = "MS")]
    slo: u64,
    /// The deviation of the logarithm of what batches take.
    #[arg(default_value_t = 0.0)]
    sigma: f64,
}

fn setup(policy: PolicyKind, devices: u32, slowdown: Option<Slowdown>, args: &SlowDeviceArgs) -> Setup {
    let sizes: Vec<u32> = (1..=64).collect();
    let (alpha, beta) = (Duration::from_millis(1), Duration::from_millis(5));
    let profile = LatencyProfile::linear(alpha, beta, &sizes, Duration::ZERO).expect("the sizes ascend");
    let model = |index| ModelSetup::new(ModelId(index), profile.clone(), Some(Duration::from_millis(args.slo)));
    let scheduler = Config { policy, ..Config::default() };
    Setup {
        noise: Noise { exec_sigma: args.sigma, ..Noise::default() },
        faults: Faults { slowdown, ..Faults::default() },
        warmup: Duration::from_secs(1),
        ..Setup::new(scheduler, (0..MODELS).map(model).collect(), devices, Duration::from_secs(20))
    }
}

/// Poisson arrivals of that rate, spread evenly over the models.
fn traffic(rate: f64) -> Traffic {
    let curve = RateCurve::constant(rate / f64::from(MODELS));
    let stream = |model| Stream {
        model,
        process: Process::Gamma { shape: 1.0 },
        curve: curve.clone(),
        share: 1.0,
        starts_at: Duration::ZERO,
    };
    Traffic { open: Some(Box::new(OpenLoop::new((0..MODELS).map(stream), 1))), closed: None }
}

pub(crate) fn run(args: &SlowDeviceArgs) {
    let SlowDeviceArgs { slo, sigma } = *args;
    // 8 devices, batches of what fits half of the objective.
    let batch = (slo / 2).saturating_sub(5).max(1) as f64;
    let peak = 8.0 * batch / ((batch + 5.0) * 1e-3);
    println!("objective {slo} ms, noise {sigma}, peak {peak:.0} r/s");
    for policy in [PolicyKind::Punctual, PolicyKind::Deferred, PolicyKind::Clockwork] {
        for part in [0.5, 0.8] {
            let rate = part * peak;
            let bad = |devices, factor: f64| {
                let slow =
                    |factor| Slowdown { device: 3, factor, from: Duration::ZERO, until: Duration::from_secs(99) };
                let setup = setup(policy, devices, (factor > 1.0).then(|| slow(factor)), args);
                let run = sim::run(&setup, traffic(rate)).expect("nothing breaks");
                let total = run.meter.total();
                100.0 * total.bad() as f64 / total.sent as f64
            };
            let cells =
                [(8, 1.0), (7, 1.0), (8, 1.5), (8, 3.0), (8, 6.0)].map(|(devices, factor)| bad(devices, factor));
            let [all, seven, half, three, six] = cells;
            println!(
                "{:9} {part:.1}: 8 healthy {all:7.3} %  7 healthy {seven:7.3} %  one x1.5 {half:7.3} %  one x3 {three:7.3} %  one x6 {six:7.3} %",
                policy.name()
            );
        }
    }
}
