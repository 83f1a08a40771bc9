//! Models whose time depends on the input, in whole worlds.

#![allow(clippy::unwrap_used, reason = "a test that finds something else than it expects should stop")]

use lab::simulate::{SimulateOptions, simulate};
use scheduler::PolicyKind;
use serde_json::Value;

fn run(text: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("experiment.toml");
    std::fs::write(&path, text).unwrap();
    let printed = simulate(&path, &SimulateOptions { json: true, ..SimulateOptions::default() }).unwrap();
    serde_json::from_str::<Value>(&printed).unwrap()["results"].as_array().unwrap().clone()
}

fn satisfied(results: &[Value], policy: &str) -> f64 {
    results.iter().find(|result| result["policy"] == policy).unwrap()["satisfied"].as_f64().unwrap()
}

fn policies() -> String {
    let names: Vec<String> = PolicyKind::ALL.iter().map(|kind| format!("{:?}", kind.name())).collect();
    names.join(", ")
}

/// Two sorts of requests, more of them than one device can answer one by one.
fn two_sorts(seconds: u32) -> String {
    format!(
        "[[model]]
         name = \"a\"
         latency = {{ row_part = 0.25 }}
         times = {{ modes_ms = [5, 15], sigma_ms = [1], hint_sigma = 0.05 }}
         slo_of_p99 = 2
         batch_sizes = [1, 2, 4, 8]
         [devices]
         count = 1
         [workload]
         load = 1.5
         [scheduler]
         schedule_ahead_ms = 0
         predict_admission = false
         [policy.unseeing]
         kind = \"punctual\"
         size_hints = false
         [run]
         seconds = {seconds}
         policies = [{}, \"unseeing\"]",
        policies()
    )
}

#[test]
fn who_plans_with_distributions_meets_more_deadlines() {
    // The checkers of P1 to P9 look on.
    let results = run(&two_sorts(40));
    let of = |policy: &str| satisfied(&results, policy);
    assert!(of("orloj") > of("clockwork") + 0.05, "{} and {}", of("orloj"), of("clockwork"));
    for policy in ["punctual", "unseeing"] {
        assert!(of(policy) > of("orloj") + 0.01, "{} and {}", of(policy), of("orloj"));
        assert!(PolicyKind::ALL.iter().all(|rival| of(policy) >= of(rival.name()) - 0.01));
    }
}

/// A model that turns out to be static is served exactly as one of which that was known: not one figure differs, for no
/// policy.
#[test]
fn measurements_that_agree_change_nothing() {
    let world = |times: &str| {
        format!(
            "[[model]]
             name = \"a\"
             latency = {{ alpha_ms = 2.5, beta_ms = 7.5 }}
             {times}
             slo_ms = 40
             batch_sizes = [1, 2, 4, 8]
             [devices]
             count = 2
             [workload]
             rate_rps = 400
             [run]
             seconds = 10
             policies = [{}]",
            policies()
        )
    };
    let (known, found_out) = (run(&world("")), run(&world("times = { modes_ms = [10], hint_sigma = 0 }")));
    for (known, found_out) in known.into_iter().zip(found_out) {
        let without_events = |mut result: Value| {
            // The measurements themselves are events.
            result.as_object_mut().unwrap().remove("events");
            result
        };
        assert_eq!(without_events(known), without_events(found_out));
    }
}

#[test]
fn an_experiment_that_makes_no_sense_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let message = |model: &str| {
        let path = folder.path().join("experiment.toml");
        let text = format!("[[model]]\nname = \"a\"\n{model}\n[devices]\n[run]\npolicies = [\"orloj\"]\nseconds = 1\n");
        std::fs::write(&path, text).unwrap();
        simulate(&path, &SimulateOptions::default()).unwrap_err().to_string()
    };
    assert!(message("latency = { row_part = 0.5 }").contains("row_part of model \"a\" needs times"));
    let both = "latency = { alpha_ms = 1, beta_ms = 1 }\nslo_ms = 4\nslo_of_p99 = 2";
    assert!(message(both).contains("must have one objective"));
    assert!(message("latency = { alpha_ms = 1, beta_ms = 1 }\ntimes = {}").contains("must have modes_ms"));
    assert!(message("latency = { alpha_ms = 1, beta_ms = 1 }").contains("give workload.rate_rps, workload.load"));
}
