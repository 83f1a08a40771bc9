//! Clients that ask again as soon as they are told no: the device is busy however little time they have.

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
    let options = SimulateOptions { json: true, selection, ..SimulateOptions::default() };
    let printed = simulate(experiment, &options).unwrap();
    let results: Value = serde_json::from_str(&printed).unwrap();
    let results = results["results"].as_array().unwrap();
    assert_eq!(results.len(), 4);
    for result in results {
        let (busy, goodput) = (result["utilization"].as_f64().unwrap(), result["goodput_rps"].as_f64().unwrap());
        assert!(busy > 0.95 && goodput > 13_000.0, "{result}");
    }
}
