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

/// LeNet with 2 ms beside VGG-16 and BERT, as on an H200 that was left whole.
fn hurry() -> String {
    include_str!("shares-hurry.toml")
        .replace("../../../experiments/data", "data")
        .replace("seconds = 10", "seconds = 3")
}

/// The planner had shared small shares between LeNet and long batches: a third of its requests were lost, more than on
/// the whole GPU.
#[test]
fn who_is_in_a_hurry_is_lost_behind_long_batches_and_not_in_a_share_of_its_own() {
    let outcomes = campaign(&hurry()).unwrap().run(false).unwrap();
    let lost = |policy: &str, case: &str, model: &str| {
        let found = outcomes.iter().find(|it| it.policy == policy && it.point["case"] == case);
        found.unwrap().figure(&format!("models.{model}.bad")).unwrap()
    };
    for case in ["0.7", "0.85", "1.0"] {
        let lost = |policy: &str| ["lenet", "vgg16", "bert"].map(|model| lost(policy, case, model));
        let (whole, halves, pools) = (lost("punctual"), lost("halves"), lost("pools"));
        assert!(pools.iter().all(|lost| *lost < 0.01), "{case}: {pools:?}");
        assert!(whole[0] > 0.04 && whole[0] > 2.0 * halves[0], "{case}: {whole:?} whole, {halves:?} in halves");
    }
}

#[test]
fn gaps_between_batches_make_them_larger_and_have_a_size() {
    let batch = |gap: &str| {
        let text = hurry().split("[[case]]").next().unwrap().replace("gap_us = 170", gap);
        let text = text.replace("name = \"lenet\"", "name = \"lenet\"\nslo_ms = 50\nrate_rps = 4000");
        campaign(&text).unwrap().run(false).unwrap()[0].figure("mean_batch").unwrap()
    };
    let (with, without) = (batch("gap_us = 170"), batch("gap_us = 0"));
    assert!(with > 1.2 * without, "{with} with gaps, {without} without");
    assert!(campaign(&hurry().replace("gap_us = 170", "gap_us = -1")).unwrap_err().contains("network.gap_us"));
}
