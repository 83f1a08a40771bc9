//! Random worlds with random faults: no invariant is ever broken, everything ends, and the same seed gives the same run.

#![allow(clippy::unwrap_used, reason = "a test that finds something else than it expects should stop")]

mod common;

use base::Duration;
use common::{closed, model, open, world};
use proptest::prelude::*;
use scheduler::{Delay, PolicyKind};
use sim::{Faults, Network, Noise, Setup, Traffic};

/// A world drawn from a few numbers. Small devices, so that weights come and go all the time.
#[derive(Clone, Debug)]
struct Plan {
    policy: PolicyKind,
    models: u32,
    devices: u32,
    fits: u32,
    load: f64,
    shape: f64,
    slo_ms: u64,
    batch_models: u32,
    clients: Option<u32>,
    control_us: u64,
    noise: f64,
    bound: usize,
    predict_admission: bool,
    faults: FaultPlan,
    seed: u64,
}

#[derive(Clone, Debug)]
struct FaultPlan {
    lifetime_ms: u64,
    lost: f64,
    late: f64,
    mispredicted: f64,
    cancelled: f64,
}

fn fault_plan() -> impl Strategy<Value = FaultPlan> {
    let rare = || prop_oneof![Just(0.0), 0.001..0.2];
    (prop_oneof![Just(0u64), 50..2_000u64], rare(), rare(), rare(), rare()).prop_map(
        |(lifetime_ms, lost, late, mispredicted, cancelled)| FaultPlan {
            lifetime_ms,
            lost,
            late,
            mispredicted,
            cancelled,
        },
    )
}

fn plan() -> impl Strategy<Value = Plan> {
    let world = (1..12u32, 1..5u32, 1..8u32, 0.1..3.0f64, prop_oneof![Just(1.0), 0.1..4.0f64], 4..200u64);
    let clients = (0..3u32, prop_oneof![Just(None), (1..20u32).prop_map(Some)]);
    let rest = (prop_oneof![Just(0u64), 10..2_000u64], prop_oneof![Just(0.0), 0.0..0.3], 1..300usize, any::<bool>());
    let policy = proptest::sample::select(PolicyKind::ALL);
    (world, clients, rest, fault_plan(), (any::<u64>(), policy)).prop_map(
        |((models, devices, fits, load, shape, slo_ms), (batch_models, clients), rest, faults, (seed, policy))| {
            let (control_us, noise, bound, predict_admission) = rest;
            Plan {
                policy,
                models,
                devices,
                fits,
                load,
                shape,
                slo_ms,
                batch_models,
                clients,
                control_us,
                noise,
                bound,
                predict_admission,
                faults,
                seed,
            }
        },
    )
}

impl Plan {
    fn setup(&self) -> Setup {
        let slo = |index| (index >= self.batch_models).then_some(self.slo_ms);
        let models = (0..self.models).map(|index| model(index, slo(index))).collect();
        let mut setup = world(models, self.devices, self.fits * 7, 1);
        setup.scheduler.policy = self.policy;
        setup.scheduler.max_queued_per_model = self.bound;
        setup.scheduler.predict_admission = self.predict_admission;
        setup.network = Network {
            control: Duration::from_micros(self.control_us),
            data_per_request: Duration::from_micros(self.control_us / 10),
        };
        let Network { control, data_per_request: per_row } = setup.network;
        setup.scheduler.delay = Delay { control, per_row };
        setup.noise = Noise { exec_sigma: self.noise, load_sigma: self.noise, ..Noise::default() };
        setup.faults = Faults {
            device_lifetime: Duration::from_millis(self.faults.lifetime_ms),
            device_downtime: Duration::from_millis(30),
            detection: Duration::from_millis(10),
            lost_action_probability: self.faults.lost,
            late_report_probability: self.faults.late,
            late_report: Duration::from_millis(40),
            misprediction_probability: self.faults.mispredicted,
            misprediction_factor: 5.0,
            cancel_probability: self.faults.cancelled,
        };
        setup.seed = self.seed;
        setup
    }

    fn traffic(&self, setup: &Setup) -> Traffic {
        // Batches of 16 take 10 ms: 1,600 requests a second is all that one device can do.
        match self.clients {
            Some(clients) => closed(setup, clients),
            None => open(setup, self.load * 1_600.0 * f64::from(self.devices), self.shape, self.seed),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_whatever_goes_wrong(plan in plan()) {
        let setup = plan.setup();
        let first = sim::run(&setup, plan.traffic(&setup));
        prop_assert!(first.is_ok(), "{}", first.unwrap_err());
        let first = first.unwrap();
        let total = first.meter.total();
        prop_assert_eq!(total.sent, total.good + total.bad() + total.cancelled);
        // P7: a second run, in a fresh machine, gives the same commands.
        let second = sim::run(&setup, plan.traffic(&setup)).unwrap();
        prop_assert_eq!(first.fingerprint, second.fingerprint);
        prop_assert_eq!(first.events, second.events);
    }
}
