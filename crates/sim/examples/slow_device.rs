//! What one slow device of eight costs: `cargo run --release -p sim --example slow_device`.

#![allow(clippy::print_stdout, reason = "a command")]

#[path = "../tests/common/mod.rs"]
mod common;

use base::{Duration, LatencyProfile};
use common::{model, open, world};
use scheduler::{Config, PolicyKind};
use sim::{Faults, Noise, Setup, Slowdown};

fn setup(policy: PolicyKind, devices: u32, slowdown: Option<Slowdown>, sigma: f64, slo: u64) -> Setup {
    let sizes: Vec<u32> = (1..=64).collect();
    let (alpha, beta) = (Duration::from_millis(1), Duration::from_millis(5));
    let models = (0..10).map(|index| {
        let mut model = model(index, Some(slo));
        model.spec.profile = LatencyProfile::linear(alpha, beta, &sizes, Duration::ZERO).expect("the sizes ascend");
        model.spec.pages = 0;
        model
    });
    let mut setup = world(models.collect(), devices, 1, 20);
    setup.scheduler = Config { policy, ..Config::default() };
    setup.noise = Noise { exec_sigma: sigma, ..Noise::default() };
    setup.faults = Faults { slowdown, ..Faults::default() };
    setup.warmup = Duration::from_secs(1);
    setup.strict = false;
    setup
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let slo: u64 = words.first().and_then(|word| word.parse().ok()).unwrap_or(25);
    let sigma: f64 = words.get(1).and_then(|word| word.parse().ok()).unwrap_or(0.0);
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
                let setup = setup(policy, devices, (factor > 1.0).then(|| slow(factor)), sigma, slo);
                let run = sim::run(&setup, open(&setup, rate, 1.0, 1)).expect("nothing breaks");
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
