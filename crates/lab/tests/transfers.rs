//! Devices whose transfers run beside the computing of other batches, in whole worlds.

#![allow(clippy::unwrap_used, reason = "a test that finds something else than it expects should stop")]

use lab::simulate::{SimulateOptions, simulate};
use serde_json::Value;

/// Which part of the requests is in time, and how busy the device is, for each policy: batches of eight take 3 ms, of
/// which `beside` may run beside others.
fn run(overlap: f64, rate: u32) -> Vec<(String, f64)> {
    let folder = tempfile::tempdir().unwrap();
    let table = format!(
        "model,b1_ms,b1_beside_ms,b4_ms,b4_beside_ms,b8_ms,b8_beside_ms\na,1,{},2,{},3,{overlap}\n",
        overlap / 3.0,
        overlap / 1.5
    );
    std::fs::write(folder.path().join("table.csv"), table).unwrap();
    let text = format!(
        "[[model]]
         name = \"a\"
         latency = {{ file = \"table.csv\" }}
         slo_ms = 30
         [devices]
         count = 1
         [workload]
         rate_rps = {rate}
         [scheduler]
         schedule_ahead_ms = 0
         [run]
         seconds = 10
         warmup_seconds = 2
         policies = [\"punctual\", \"clockwork\", \"deferred\", \"eager\"]"
    );
    let path = folder.path().join("experiment.toml");
    std::fs::write(&path, text).unwrap();
    // The checkers of P1 to P9 look on.
    let printed = simulate(&path, &SimulateOptions { json: true, ..SimulateOptions::default() }).unwrap();
    let results = serde_json::from_str::<Value>(&printed).unwrap();
    let results = results["results"].as_array().unwrap();
    let of = |result: &Value| (result["policy"].as_str().unwrap().to_owned(), result["satisfied"].as_f64().unwrap());
    results.iter().map(of).collect()
}

#[test]
fn what_runs_beside_other_batches_is_capacity_for_every_policy() {
    // One after another, 2,667/s are the limit; with a third of each batch beside others it is 4,000/s.
    for (policy, satisfied) in run(0.0, 3600) {
        assert!(satisfied < 0.78, "{policy}: {satisfied}");
    }
    for (policy, satisfied) in run(1.0, 3600) {
        assert!(satisfied > 0.99, "{policy}: {satisfied}");
    }
    // More than that isn't there.
    for (policy, satisfied) in run(1.0, 5200) {
        assert!(satisfied < 0.79, "{policy}: {satisfied}");
    }
}
