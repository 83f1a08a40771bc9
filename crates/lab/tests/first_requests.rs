//! Whom `punctual` gives up, without rehearsals: nobody for a larger batch where small ones keep up, as `eager`; first
//! requests where they don't, as `deferred`.

#![allow(clippy::unwrap_used, reason = "a test that finds something else than it expects should stop")]

use lab::Campaign;
use std::path::Path;

/// The bad parts under `punctual` without rehearsals, `eager` and `deferred`.
fn bad(world: &str) -> [f64; 3] {
    let text = format!(
        "{world}
        [scheduler]
        predict_admission = false
        [policy.usual]
        kind = \"punctual\"
        rehearse = false
        "
    );
    let outcomes = Campaign::parse(&text, Path::new("world.toml")).unwrap().run(false).unwrap();
    ["usual", "eager", "deferred"].map(|policy| {
        let outcome = outcomes.iter().find(|outcome| outcome.policy == policy).unwrap();
        outcome.figure("bad").unwrap()
    })
}

#[test]
fn where_small_batches_keep_up_first_requests_are_kept() {
    let [usual, eager, deferred] = bad("
        [[model]]
        name = \"weak\"
        latency = { alpha_ms = 4.751, beta_ms = 2.046 }
        slo_of_l4 = 3
        batch_sizes = \"all\"
        max_batch = 128
        [devices]
        count = 2
        [workload]
        arrivals = { process = \"gamma\", shape = 0.2 }
        rate_rps = 250
        [run]
        policies = [\"usual\", \"eager\", \"deferred\"]
        seconds = 100
    ");
    assert!(usual < 1.15 * eager && usual < 0.5 * deferred, "{usual} {eager} {deferred}");
}

#[test]
fn where_only_large_batches_keep_up_first_requests_are_given_up() {
    let [usual, eager, deferred] = bad("
        [[model]]
        name = \"medium\"
        latency = { alpha_ms = 2.05, beta_ms = 5.378 }
        count = 8
        slo_of_l4 = 2
        batch_sizes = \"all\"
        max_batch = 128
        [devices]
        count = 32
        [workload]
        rate_rps = 11300
        [run]
        policies = [\"usual\", \"eager\", \"deferred\"]
        seconds = 4
    ");
    assert!(usual < 1.5 * deferred && usual < 0.1 * eager, "{usual} {eager} {deferred}");
}

#[test]
fn where_devices_stall_those_that_are_left_are_what_must_keep_up() {
    let [usual, eager, deferred] = bad("
        [[model]]
        name = \"resnet50\"
        latency = { alpha_ms = 1.053, beta_ms = 5.072 }
        slo_ms = 25
        batch_sizes = \"all\"
        max_batch = 64
        [devices]
        count = 8
        [workload]
        rate_rps = 2740
        [faults]
        misprediction_probability = 0.0002
        misprediction_factor = 1000
        [run]
        policies = [\"usual\", \"eager\", \"deferred\"]
        seconds = 60
        seeds = [1]
    ");
    assert!(usual < deferred && usual < 0.5 * eager, "{usual} {eager} {deferred}");
}
