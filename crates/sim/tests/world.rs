//! The modelled world itself: delays, bounds, noise, closed loops, what is counted.

#![allow(clippy::unwrap_used, reason = "a test that finds something else than it expects should stop")]

mod common;

use base::{Duration, Reason};
use common::{closed, model, open, world};
use sim::{Elastic, Faults, Network, Noise, Traffic};
use workload::{Arrival, OpenLoop, Process, RateCurve, Stream};

fn at_millis(millis: &[u64]) -> Traffic {
    let arrivals: Vec<Arrival> =
        millis.iter().map(|&millis| Arrival { offset: Duration::from_millis(millis), model: 0 }).collect();
    Traffic { open: Some(Box::new(arrivals.into_iter())), closed: None }
}

#[test]
fn messages_and_inputs_take_their_time() {
    let mut setup = world(vec![model(0, Some(100))], 1, 7, 1);
    setup.network = Network {
        control: Duration::from_millis(1),
        data_per_request: Duration::from_micros(500),
        ..Network::default()
    };
    let run = sim::run(&setup, at_millis(&[0, 500])).unwrap();
    let total = run.meter.total();
    assert_eq!(total.good, 2);
    // Warm: there, order, input, 2.5 ms of execution, back.
    let warm = total.latency.at(0.5).as_millis_f64();
    assert!((warm - (1.0 + 1.0 + 0.5 + 2.5 + 1.0)).abs() < 0.02, "{warm}");
    // Cold: the order to load, 8 ms, and the report come on top.
    let cold = total.latency.max().as_millis_f64();
    assert!((cold - (6.0 + 1.0 + 8.0 + 1.0)).abs() < 0.02, "{cold}");
    assert_eq!((total.cold, total.cold_good), (1, 1));
}

#[test]
fn a_device_idles_after_each_batch_until_the_server_has_heard_of_it_and_answers_are_not_later() {
    let run = |gap: u64, clients: u32| {
        let mut setup = world(vec![model(0, Some(100))], 1, 7, 10);
        setup.scheduler = scheduler::Config::default();
        setup.network.gap = Duration::from_millis(gap);
        (sim::run(&setup, closed(&setup, clients)).unwrap().meter, setup)
    };
    // 4 clients in one batch of 4 ms, or 2.5 ms for each alone: what a device does beside that is idle.
    let rate = |gap: u64| run(gap, 4).0.total().good as f64 / 10.0;
    let (without, with) = (rate(0), rate(4));
    assert!(with < 0.62 * without, "{with} with gaps of 4 ms, {without} without");
    let (meter, mut setup) = run(1, 4);
    assert!(meter.utilization() < 0.85, "{}", meter.utilization());
    let warm = |setup: &sim::Setup| sim::run(setup, at_millis(&[0, 500])).unwrap().meter.total().latency.at(0.5);
    let before = warm(&setup);
    setup.network.gap = Duration::ZERO;
    assert_eq!(warm(&setup), before, "nobody waits who comes alone");
}

#[test]
fn an_order_that_leaves_ahead_is_there_before_the_gap() {
    let busy = |gap: u64, policy: scheduler::PolicyKind| {
        let mut setup = world(vec![model(0, Some(100))], 1, 7, 5);
        setup.scheduler.policy = policy;
        setup.scheduler.schedule_ahead = Duration::from_millis(10);
        setup.network.gap = Duration::from_millis(gap);
        sim::run(&setup, open(&setup, 2_000.0, 1.0, 1)).unwrap().meter.utilization()
    };
    let (ahead, late) = (scheduler::PolicyKind::Clockwork, scheduler::PolicyKind::Eager);
    assert!(busy(1, ahead) > 0.97, "{}", busy(1, ahead));
    assert!(busy(1, late) < 0.9, "{}", busy(1, late));
}

#[test]
fn no_policy_breaks_an_invariant_where_it_hears_late_that_batches_have_ended() {
    for (seed, &policy) in (1..).zip(scheduler::PolicyKind::ALL) {
        for gap in [1, 170, 20_000, 3_000_000] {
            let mut setup = world(vec![model(0, Some(30)), model(1, Some(12)), model(2, None)], 2, 14, 4);
            setup.scheduler = scheduler::Config { policy, ..scheduler::Config::default() };
            setup.seed = seed;
            setup.network.gap = Duration::from_micros(gap);
            setup.faults = Faults {
                device_lifetime: Duration::from_secs(2),
                device_downtime: Duration::from_millis(200),
                detection: Duration::from_millis(50),
                lost_action_probability: 0.01,
                failed_execution_probability: 0.02,
                cancel_probability: 0.02,
                ..Faults::default()
            };
            setup.strict = false;
            let run = sim::run(&setup, open(&setup, 300.0, 1.0, seed));
            assert!(run.is_ok(), "{policy:?} with {gap} us: {:?}", run.err());
        }
    }
}

#[test]
fn a_deadline_that_the_network_eats_is_not_met() {
    let mut setup = world(vec![model(0, Some(14))], 1, 7, 1);
    let good = |setup: &sim::Setup| sim::run(setup, at_millis(&[0, 500])).unwrap().meter.total().good;
    assert_eq!(good(&setup), 2, "8 ms to load, 2.5 ms to execute");
    setup.network.control = Duration::from_millis(3);
    assert_eq!(good(&setup), 1, "no time to load for the first, but it shows that somebody wants the model");
    setup.network.control = Duration::from_millis(4);
    assert_eq!(good(&setup), 0, "three messages of 4 ms leave nothing, also with the weights there");
}

#[test]
fn the_table_of_requests_has_a_bound_too() {
    let mut setup = world(vec![model(0, Some(100))], 1, 7, 1);
    setup.max_requests = 3;
    let run = sim::run(&setup, at_millis(&[0; 10])).unwrap();
    let total = run.meter.total();
    assert_eq!((total.sent, total.good, total.refused[Reason::QueueFull as usize]), (10, 3, 7));
}

#[test]
fn a_hopeless_run_is_given_up_early() {
    let mut setup = world(vec![model(0, Some(20))], 1, 7, 100);
    setup.give_up_after_bad = Some(50);
    let run = sim::run(&setup, open(&setup, 50_000.0, 1.0, 1)).unwrap();
    assert!(run.gave_up);
    assert!(run.meter.total().sent < 10_000);
}

#[test]
fn closed_loops_keep_their_clients_busy_and_time_moves() {
    // 4 clients of one model: one at a time takes 2.5 ms each, all in one batch 4 ms.
    let setup = world(vec![model(0, Some(100))], 1, 7, 10);
    let run = sim::run(&setup, closed(&setup, 4)).unwrap();
    let rate = run.meter.total().good as f64 / 10.0;
    assert!((400.0..=1_000.0).contains(&rate), "{rate}");
    assert!(run.meter.utilization() > 0.99, "somebody always waits: {}", run.meter.utilization());
    // An objective that can't be met: every client asks once a millisecond, for ever refused.
    let setup = world(vec![model(0, Some(1))], 1, 7, 1);
    let run = sim::run(&setup, closed(&setup, 4)).unwrap();
    let total = run.meter.total();
    assert_eq!((total.good, total.sent), (0, 4_000));
}

#[test]
fn what_is_sent_before_the_measurement_does_not_count() {
    let mut setup = world(vec![model(0, Some(100))], 1, 7, 2);
    setup.warmup = Duration::from_secs(1);
    let total = sim::run(&setup, at_millis(&[0, 500, 999, 1_000, 1_500, 2_500])).unwrap().meter.total();
    assert_eq!((total.sent, total.good, total.cold), (2, 2, 0), "nor what comes after the horizon");
}

#[test]
fn noise_shows_in_the_errors_of_predictions() {
    let mut setup = world(vec![model(0, Some(100))], 1, 7, 20);
    let errors = |setup: &sim::Setup| {
        let meter = sim::run(setup, open(setup, 200.0, 1.0, 1)).unwrap().meter;
        (meter.exec_error.under.at(0.99).max(meter.exec_error.over.at(0.99)), meter.exec_error.under.len())
    };
    assert_eq!(errors(&setup), (Duration::ZERO, 0), "without noise every prediction is exact");
    setup.noise = Noise { exec_sigma: 0.05, ..Noise::default() };
    let (p99, under) = errors(&setup);
    assert!(p99 > Duration::from_micros(100) && under > 0, "{p99}, {under}");
    setup.noise = Noise { spike_probability: 0.01, spike: Duration::from_millis(5), ..Noise::default() };
    let meter = sim::run(&setup, open(&setup, 200.0, 1.0, 1)).unwrap().meter;
    assert_eq!(meter.exec_error.under.max(), Duration::from_millis(5));
}

#[test]
fn clients_that_go_away_are_counted_apart() {
    let mut setup = world(vec![model(0, Some(100))], 1, 7, 5);
    setup.faults = Faults { cancel_probability: 0.5, ..Faults::default() };
    let total = sim::run(&setup, open(&setup, 600.0, 1.0, 1)).unwrap().meter.total();
    assert!(total.cancelled > 50, "{total:?}");
    assert_eq!(total.sent, total.good + total.cancelled + total.bad());
}

#[test]
fn a_device_that_dies_comes_back_empty() {
    let mut setup = world(vec![model(0, Some(100))], 1, 7, 20);
    setup.faults = Faults {
        device_lifetime: Duration::from_secs(2),
        device_downtime: Duration::from_millis(200),
        detection: Duration::from_millis(50),
        ..Faults::default()
    };
    let meter = sim::run(&setup, open(&setup, 100.0, 1.0, 1)).unwrap().meter;
    let total = meter.total();
    assert!(meter.loads > 3, "each time it is loaded again: {}", meter.loads);
    assert!(total.bad_fraction() > 0.02 && total.bad_fraction() < 0.4, "{total:?}");
}

#[test]
fn devices_follow_the_load() {
    let mut setup = world(vec![model(0, Some(100))], 1, 7, 400);
    setup.elastic =
        Some(Elastic { min_devices: 1, max_devices: 8, every: Duration::from_secs(1), start: Duration::from_secs(2) });
    setup.series_step = Some(Duration::from_secs(10));
    // One device carries 16 rows in 10 ms, so 1,600 r/s.
    let curve = RateCurve::steps([
        (Duration::ZERO, 500.0),
        (Duration::from_secs(60), 5_000.0),
        (Duration::from_secs(200), 500.0),
    ]);
    let stream = Stream { model: 0, process: Process::Poisson, curve, share: 1.0, starts_at: Duration::ZERO };
    let traffic = Traffic { open: Some(Box::new(OpenLoop::new([stream], 1))), closed: None };
    let meter = sim::run(&setup, traffic).unwrap().meter;
    let devices: Vec<f64> = meter.series.as_ref().unwrap().devices().iter().map(|point| point.devices).collect();
    assert_eq!(devices[3], 1.0, "{devices:?}");
    assert!(devices[18] >= 3.5, "more when more is asked: {devices:?}");
    assert!(devices[39] <= devices[18] / 2.0, "fewer when less is asked: {devices:?}");
    let bad = meter.series.as_ref().unwrap().group(0);
    assert!(bad[15..20].iter().all(|point| point.bad < 0.02), "once they are there all is well");
    assert!(meter.mean_devices() > 1.5 && meter.mean_devices() < 7.0);
    let whole: f64 = devices.iter().sum::<f64>() * 10.0;
    assert!((whole / meter.device_seconds() - 1.0).abs() < 1e-6, "{whole} s");
}

#[test]
fn the_first_batches_can_be_looked_at() {
    let mut setup = world(vec![model(0, Some(100))], 1, 7, 1);
    setup.trace_batches = 2;
    let trace = sim::run(&setup, at_millis(&[0, 100, 200, 300])).unwrap().meter.trace;
    let batches: Vec<(u32, f64, f64)> =
        trace.batches.iter().map(|batch| (batch.rows, batch.started_ms, batch.ended_ms)).collect();
    assert_eq!(batches, [(1, 8.0, 10.5), (1, 100.0, 102.5)]);
    setup.models[0].slo = Some(Duration::from_millis(1));
    let trace = sim::run(&setup, at_millis(&[0, 100, 200, 300])).unwrap().meter.trace;
    assert_eq!(trace.bad_sent_ms, [0.0, 100.0]);
}

#[test]
fn results_do_not_depend_on_whether_they_are_checked() {
    let mut setup = world(vec![model(0, Some(20)), model(1, Some(40))], 2, 14, 5);
    let fingerprint = |setup: &sim::Setup| sim::run(setup, open(setup, 800.0, 0.5, 3)).unwrap().fingerprint;
    let checked = fingerprint(&setup);
    setup.checked = false;
    assert_eq!(fingerprint(&setup), checked);
}
