//! Shards and ranker in the modelled world: every invariant, whatever goes wrong, and the goodput of the paper's table 2.

#![allow(clippy::unwrap_used, reason = "a test that finds something else than it expects should stop")]

mod common;

use base::{Duration, LatencyProfile, ModelId};
use common::{closed, model, open, world};
use proptest::prelude::*;
use scheduler::ModelSpec;
use scheduler::shards::{Delay, Gathering, ShardConfig, Sharded, ShardedConfig};
use sim::{Faults, Model, Network, Nobody, Noise, Run, Setup, Traffic, Violation};

fn run(setup: &Setup, traffic: Traffic, shards: u32, gathering: Gathering) -> Result<Run, Violation> {
    let delay = Delay { control: setup.network.control, data_per_row: setup.network.data_per_request };
    let max_queued_per_model = setup.scheduler.max_queued_per_model;
    let shard = ShardConfig { delay, gathering, max_queued_per_model, ..ShardConfig::default() };
    let config = ShardedConfig {
        shards,
        shard,
        profile_window: setup.scheduler.profile_window,
        profile_quantile: setup.scheduler.profile_quantile,
    };
    sim::run_with(setup, traffic, Sharded::new(config), &mut Nobody)
}

/// Table 2: ResNet50 on eight devices, 25 ms, Poisson; from 1 s on, when the weights are in place.
fn resnet50() -> Setup {
    let span = Duration::from_millis_f64;
    let sizes: Vec<u32> = (1..=32).collect();
    let profile = LatencyProfile::linear(span(1.053), span(5.072), &sizes, span(10.0)).unwrap();
    let slo = Some(Duration::from_millis(25));
    let spec = ModelSpec {
        model: ModelId(0),
        pages: 1,
        profile,
        elsewhere: Vec::new(),
        objective: slo,
        fixed: Duration::ZERO,
        fairness: scheduler::Fairness::default(),
    };
    let mut setup = world(vec![Model { spec, slo, rows: 1, group: 0, inputs: None }], 8, 1, 21);
    setup.warmup = Duration::from_secs(1);
    setup
}

#[test]
fn the_goodput_of_table_2_does_not_depend_on_the_number_of_shards() {
    let setup = resnet50();
    let bad = |rate, shards| {
        let run = run(&setup, open(&setup, rate, 1.0, 1), shards, Gathering::TargetSize).unwrap();
        run.meter.total().bad_fraction()
    };
    for shards in [1, 2, 5] {
        let (below, above) = (bad(5_250.0, shards), bad(5_700.0, shards));
        assert!(below <= 0.01, "{shards} shards lose {below} of the requests at 5,250 r/s");
        assert!(above > 0.01, "{shards} shards lose only {above} at 5,700 r/s: the world is too easy");
    }
}

#[test]
fn twenty_models_of_one_profile_share_the_devices() {
    let bad = |shards, gathering| {
        let models = (0..20).map(|index| model(index, Some(60))).collect();
        let mut setup = world(models, 8, 20 * 7, 6);
        setup.warmup = Duration::from_secs(1);
        // 16 in 10 ms: 12,800 a second at best.
        let run = run(&setup, open(&setup, 9_000.0, 1.0, 3), shards, gathering).unwrap();
        (run.meter.total().bad_fraction(), run.fingerprint)
    };
    let (one, decisions) = bad(1, Gathering::HeadFirst);
    assert!(one < 0.01, "{one}");
    assert_eq!(bad(4, Gathering::HeadFirst).0, one, "more shards serve the same requests");
    assert_eq!(bad(1, Gathering::HeadFirst).1, decisions, "P7");
    let (target, _) = bad(3, Gathering::TargetSize);
    assert!(target < 0.01, "{target}");
}

/// A world drawn from a few numbers.
#[derive(Clone, Debug)]
struct Plan {
    models: u32,
    devices: u32,
    spare_pages: u32,
    load: f64,
    shape: f64,
    slo_ms: u64,
    batch_models: u32,
    clients: Option<u32>,
    control_us: u64,
    noise: f64,
    bound: usize,
    shards: u32,
    target: bool,
    faults: [f64; 4],
    lifetime_ms: u64,
    seed: u64,
}

fn plan() -> impl Strategy<Value = Plan> {
    let rare = || prop_oneof![Just(0.0), 0.001..0.2];
    let world = (1..12u32, 1..5u32, 0..20u32, 0.1..3.0f64, prop_oneof![Just(1.0), 0.1..4.0f64], 4..200u64);
    let clients = (0..3u32, prop_oneof![Just(None), (1..20u32).prop_map(Some)]);
    let rest = (prop_oneof![Just(0u64), 10..2_000u64], prop_oneof![Just(0.0), 0.0..0.3], 1..300usize);
    let machine = (1..6u32, any::<bool>());
    let faults = ([rare(), rare(), rare(), rare()], prop_oneof![Just(0u64), 50..2_000u64]);
    (world, clients, rest, machine, faults, any::<u64>()).prop_map(
        |(
            (models, devices, spare_pages, load, shape, slo_ms),
            (batch_models, clients),
            rest,
            machine,
            faults,
            seed,
        )| {
            let (control_us, noise, bound) = rest;
            let (shards, target) = machine;
            let (faults, lifetime_ms) = faults;
            Plan {
                models,
                devices,
                spare_pages,
                load,
                shape,
                slo_ms,
                batch_models,
                clients,
                control_us,
                noise,
                bound,
                shards,
                target,
                faults,
                lifetime_ms,
                seed,
            }
        },
    )
}

impl Plan {
    fn setup(&self) -> Setup {
        let slo = |index| (index >= self.batch_models).then_some(self.slo_ms);
        let models = (0..self.models).map(|index| model(index, slo(index))).collect();
        let mut setup = world(models, self.devices, self.models * 7 + self.spare_pages, 1);
        setup.scheduler.max_queued_per_model = self.bound;
        setup.network = Network {
            control: Duration::from_micros(self.control_us),
            data_per_request: Duration::from_micros(self.control_us / 10),
            ..Network::default()
        };
        setup.noise = Noise { exec_sigma: self.noise, load_sigma: self.noise, ..Noise::default() };
        let [lost, late, mispredicted, cancelled] = self.faults;
        setup.faults = Faults {
            device_lifetime: Duration::from_millis(self.lifetime_ms),
            device_downtime: Duration::from_millis(30),
            detection: Duration::from_millis(10),
            lost_action_probability: lost,
            late_report_probability: late,
            late_report: Duration::from_millis(40),
            misprediction_probability: mispredicted,
            misprediction_factor: 5.0,
            cancel_probability: cancelled,
            ..Faults::default()
        };
        setup.seed = self.seed;
        setup
    }

    fn run(&self) -> Result<Run, Violation> {
        let setup = self.setup();
        // Batches of 16 take 10 ms: 1,600 requests a second is all that one device can do.
        let traffic = match self.clients {
            Some(clients) => closed(&setup, clients),
            None => open(&setup, self.load * 1_600.0 * f64::from(self.devices), self.shape, self.seed),
        };
        let gathering = if self.target { Gathering::TargetSize } else { Gathering::HeadFirst };
        run(&setup, traffic, self.shards, gathering)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_whatever_goes_wrong(plan in plan()) {
        let first = plan.run();
        prop_assert!(first.is_ok(), "{}", first.unwrap_err());
        let first = first.unwrap();
        let total = first.meter.total();
        prop_assert_eq!(total.sent, total.good + total.bad() + total.cancelled);
        // P7: a second run, in a fresh machine, gives the same commands.
        let second = plan.run().unwrap();
        prop_assert_eq!(first.fingerprint, second.fingerprint);
    }
}
