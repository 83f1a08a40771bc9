//! GPUs that are divided, from file to figures.

#![allow(clippy::unwrap_used, reason = "a test that finds something else than it expects should stop")]

use lab::Campaign;
use std::path::Path;

/// A model with very little time beside one with long batches, and who divides the GPUs.
const WORLD: &str = r#"
[[model]]
name = "lenet"
slo_of_l8 = 3.0
[[model]]
name = "vgg16"
slo_of_l8 = 3.0
[devices]
count = 2
[shares]
times = { file = "data/h200_shares.csv" }
pairs = { file = "data/h200_pairs.csv" }
[workload]
rate_rps = 14000
[policy.pools]
kind = "punctual"
shares = "pools"
[policy.halves]
kind = "punctual"
shares = "halves"
[run]
policies = ["punctual", "pools", "halves"]
seconds = 1.0
warmup_seconds = 0.3
"#;

fn campaign(text: &str) -> Result<Campaign, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/test.toml");
    Campaign::parse(text, &path).map_err(|error| error.to_string())
}

fn bad(text: &str) -> Vec<(String, f64)> {
    let outcomes = campaign(text).unwrap().run(false).unwrap();
    outcomes.iter().map(|outcome| (outcome.policy.clone(), outcome.figure("bad").unwrap())).collect()
}

#[test]
fn who_has_little_time_is_served_in_a_share_of_its_own() {
    let bad = bad(WORLD);
    let of = |policy: &str| bad.iter().find(|(name, _)| name == policy).unwrap().1;
    assert!(of("pools") < 0.01 && of("punctual") > 2.0 * of("pools"), "{bad:?}");
}

#[test]
fn batches_side_by_side_take_longer_where_that_was_measured() {
    let busy = |text: &str| {
        let outcomes = campaign(text).unwrap().run(false).unwrap();
        outcomes[0].figure("utilization").unwrap()
    };
    let halves = WORLD.replace("[\"punctual\", \"pools\", \"halves\"]", "[\"halves\"]").replace("14000", "4000");
    let alone = halves.replace("pairs = { file = \"data/h200_pairs.csv\" }\n", "");
    let (beside, alone) = (busy(&halves), busy(&alone));
    assert!(beside > 1.01 * alone, "{beside} beside each other, {alone} alone");
}

#[test]
fn gpus_follow_the_rate() {
    let text = WORLD
        .replace("[\"punctual\", \"pools\", \"halves\"]", "[\"pools\"]")
        .replace("[workload]\nrate_rps = 14000\n", "")
        .replace("slo_of_l8 = 3.0", "slo_of_l8 = 3.0\nrate_steps = [[0, 300], [8, 4000]]")
        .replace("count = 2", "count = 3")
        .replace("pairs =", "every_s = 1\npairs =")
        .replace("seconds = 1.0", "seconds = 20.0")
        .replace("warmup_seconds = 0.3", "warmup_seconds = 0.5");
    let outcomes = campaign(&text).unwrap().run(false).unwrap();
    let figure = |name: &str| outcomes[0].figure(name).unwrap();
    let (devices, bad) = (figure("mean_devices"), figure("bad"));
    assert!((1.0..2.9).contains(&devices) && bad < 0.02, "{devices} GPUs on average, {bad} bad");
}

#[test]
fn mistakes_are_sentences() {
    let said = |from: &str, to: &str| campaign(&WORLD.replace(from, to)).unwrap_err();
    assert!(
        said("\"pools\"\n[policy.halves]", "\"all\"\n[policy.halves]")
            .starts_with("policy.pools.shares is \"all\": give one of squishy,")
    );
    assert!(
        said("name = \"vgg16\"", "name = \"vgg17\"")
            .starts_with("the table of [shares] has no model \"vgg17\": it has ")
    );
    let without = WORLD.replace(
        "[shares]\ntimes = { file = \"data/h200_shares.csv\" }\npairs = { file = \"data/h200_pairs.csv\" }\n",
        "",
    );
    let without = without.replace("slo_of_l8 = 3.0", "latency = { alpha_ms = 1, beta_ms = 1 }\nslo_ms = 10");
    assert!(campaign(&without).unwrap_err().starts_with("policy.pools has shares: say in [shares] what"));
}
