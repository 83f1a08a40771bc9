//! Clients that ask again as soon as they are told no: devices are busy, and answer as many as they can, however little
//! time there is.

#![allow(clippy::unwrap_used, reason = "a test that finds something else than it expects should stop")]

use lab::Selection;
use lab::simulate::{SimulateOptions, simulate};
use serde_json::Value;
use std::path::Path;

/// A little more than one device carries, by the project's own experiment. The book of turns counted what one batch was
/// late for each batch behind it: what it promised was ever further away, all were refused, and the device idled for a
/// quarter of the time.
#[test]
fn a_device_does_not_idle_while_clients_that_ask_again_are_refused() {
    let experiment = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/closed-loop.toml"));
    let selection = Selection {
        policies: vec!["punctual".into(), "eager".into()],
        only: [("slo_ms".into(), vec![11.5.into(), 16.5.into()])].into(),
        seconds: Some(4.0),
        seeds: vec![1],
        ..Selection::default()
    };
    let results = results(experiment, selection);
    assert_eq!(results.len(), 4);
    for result in results {
        let (busy, goodput) = (result["utilization"].as_f64().unwrap(), result["goodput_rps"].as_f64().unwrap());
        assert!(busy > 0.95 && goodput > 13_000.0, "{result}");
    }
}

fn results(experiment: &Path, selection: Selection) -> Vec<Value> {
    let options = SimulateOptions { json: true, selection, ..SimulateOptions::default() };
    let printed = simulate(experiment, &options).unwrap();
    serde_json::from_str::<Value>(&printed).unwrap()["results"].as_array().unwrap().clone()
}

/// 320 clients with 1.3 times what one row takes, on devices that carry a twentieth of them. What is kept for delays of
/// turns is most of what batches have to grow in. Both ways of admission lose 95 %, so that comparing losses kept
/// turns, which answered three quarters of what `clockwork` does.
#[test]
fn where_nearly_all_are_refused_as_many_are_answered_as_without_turns() {
    let folder = tempfile::tempdir().unwrap();
    let experiment = folder.path().join("experiment.toml");
    let text = r#"
[[model]]
name = "tight"
count = 5
latency = { alpha_ms = 0.1, beta_ms = 5 }
slo_ms = 6.5
[devices]
count = 4
[workload]
arrivals = { process = "closed", clients = 64, think_ms = 3, backoff_ms = 5 }
[noise]
exec_sigma = 0.05
[run]
policies = ["punctual", "clockwork"]
seconds = 4
warmup_seconds = 2
seeds = [1]
"#;
    std::fs::write(&experiment, text).unwrap();
    let answered = |result: &Value| result["goodput_rps"].as_f64().unwrap();
    let [ours, clockwork] = &results(&experiment, Selection::default())[..] else { panic!("two results") };
    assert!(answered(ours) > answered(clockwork), "{ours}\n{clockwork}");
}
