//! Experiments as files: what works, what comes out, and what is said about what doesn't.

#![allow(clippy::unwrap_used, reason = "a test that finds something else than it expects should stop")]

use expect_test::{Expect, expect};
use lab::Campaign;
use lab::simulate::{PageOptions, SimulateOptions, simulate, write_page};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The example of the design, as it stands there.
const DESIGN: &str = include_str!("design.toml");

fn run_json(text: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("experiment.toml");
    std::fs::write(&path, text).unwrap();
    let printed = simulate(&path, &SimulateOptions { json: true, ..SimulateOptions::default() }).unwrap();
    let object: Value = serde_json::from_str(&printed).unwrap();
    object["results"].as_array().unwrap().clone()
}

fn number(result: &Value, key: &str) -> f64 {
    result[key].as_f64().unwrap_or_else(|| panic!("no {key} in {result}"))
}

#[test]
fn the_designs_example_works_as_it_stands() {
    let text = DESIGN.replace("seconds = 60", "seconds = 5");
    let results = run_json(&text);
    let policies: Vec<&str> = results.iter().filter_map(|result| result["policy"].as_str()).collect();
    assert_eq!(policies, ["deferred", "eager", "punctual"]);
    for result in &results {
        let (rate, goodput, bad) = (number(result, "rate_rps"), number(result, "goodput_rps"), number(result, "bad"));
        // Eager scheduling falls off a cliff: nothing is bad until nearly all is.
        let just_below = bad > 0.002 || result["policy"] == "eager";
        assert!(bad <= 0.01 && just_below, "the search ends just below max_bad: {bad}");
        assert!((goodput / rate - (1.0 - bad)).abs() < 1e-3, "{goodput} of {rate}");
        for key in [
            "mean_batch",
            "utilization",
            "p50_ms",
            "p99_ms",
            "p999_ms",
            "p9999_ms",
            "max_ms",
            "load_utilization",
            "cold",
            "devices",
        ] {
            assert!(number(result, key) >= 0.0);
        }
        assert!(number(result, "p9999_ms") <= 25.0);
    }
}

const SMALL: &str = r#"
[[model]]
name = "a"
latency = { batch_ms = { 1 = 2, 2 = 3, 4 = 5 } }
slo_ms = 20
count = 3
[devices]
count = 1
[workload]
rate_rps = 100
[run]
policies = ["clockwork"]
seconds = 2
"#;

#[test]
fn sweeps_give_an_entry_for_each_point() {
    let results = run_json(&format!("{SMALL}[sweep]\nrate_rps = [50, 100, 200]\n\"devices.count\" = [1, 2]\n"));
    let points: Vec<(i64, f64)> = results
        .iter()
        .map(|result| {
            (result["point"]["devices.count"].as_i64().unwrap(), result["point"]["rate_rps"].as_f64().unwrap())
        })
        .collect();
    assert_eq!(points, [(1, 50.0), (1, 100.0), (1, 200.0), (2, 50.0), (2, 100.0), (2, 200.0)]);
    for (result, (_, rate)) in results.iter().zip(points) {
        assert!((number(result, "rate_rps") / rate - 1.0).abs() < 0.3, "{result}");
    }
}

#[test]
fn every_kind_of_arrival_runs() {
    let trace = tempfile::tempdir().unwrap();
    let requests = trace.path().join("requests.csv");
    std::fs::write(
        &requests,
        "TIMESTAMP,x\n2023-11-16 18:15:46.6805900,1\n2023-11-16 18:15:46.7,1\n2023-11-16 18:15:47.2,1\n",
    )
    .unwrap();
    let functions = trace.path().join("functions.csv");
    std::fs::write(&functions, "HashOwner,HashApp,HashFunction,Trigger,1,2\na,b,c,http,600,0\nd,e,f,http,60,0\n")
        .unwrap();
    for (arrivals, at_least) in [
        ("{ process = \"uniform\" }".to_owned(), 190.0),
        ("{ process = \"poisson\" }".to_owned(), 150.0),
        ("{ process = \"gamma\", shape = 0.5 }".to_owned(), 120.0),
        ("{ process = \"closed\", clients = 2, think_ms = 5 }".to_owned(), 200.0),
        (format!("{{ process = \"trace\", file = {:?} }}", requests), 100.0),
        (format!("{{ process = \"trace\", file = {:?} }}", functions), 5.0),
        ("{ process = \"stand_in\", functions = 50 }".to_owned(), 5.0),
    ] {
        let text = SMALL.replace("[workload]", &format!("[workload]\narrivals = {arrivals}"));
        let results = run_json(&text);
        assert!(number(&results[0], "sent") >= at_least, "{arrivals}: {}", results[0]);
        assert!(number(&results[0], "good") > 0.0, "{arrivals}: {}", results[0]);
    }
}

#[test]
fn groups_and_time_series_are_told_apart() {
    let text = format!(
        "{}series_seconds = 0.5\n[[model]]\nname = \"b\"\nlatency = {{ alpha_ms = 1, beta_ms = 1 }}\nrate_steps = [[0, 10], [1, 50]]\n",
        SMALL
    );
    let results = run_json(&text);
    let result = &results[0];
    assert!(number(&result["models"]["b"], "sent") > 20.0);
    assert_eq!(result["series"]["a"].as_array().unwrap().len(), 4);
    let rates: Vec<f64> =
        result["series"]["b"].as_array().unwrap().iter().map(|point| number(point, "rate_rps")).collect();
    assert!(rates[0] + rates[1] < rates[2] + rates[3], "{rates:?}");
    assert!(result["series"]["devices"][0]["utilization"].as_f64().unwrap() > 0.0);
}

#[test]
fn faults_end_and_everything_finishes() {
    let faults = "[faults]\ndevice_lifetime_s = 0.5\ndevice_downtime_s = 0.05\ndetection_ms = 10\nlate_report_probability = 0.1\nlate_report_ms = 5\n";
    let results = run_json(&format!("{}{faults}", SMALL.replace("count = 1", "count = 2")));
    assert!(number(&results[0], "good") > 50.0);
}

#[test]
fn people_get_a_table_and_plots() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("experiment.toml");
    let plot = "[sweep]\nrate_rps = [50, 100]\n[[plot]]\nname = \"p\"\ntitle = \"T\"\nx = \"rate_rps\"\nx_label = \"rate\"\ny = [\"p99_ms\"]\ny_label = \"ms\"\n";
    std::fs::write(&path, format!("{SMALL}{plot}")).unwrap();
    let options = SimulateOptions { svg_dir: Some(folder.path().join("plots")), ..SimulateOptions::default() };
    let text = simulate(&path, &options).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("policy") && lines[0].contains("goodput/s"), "{text}");
    assert_eq!(lines.len(), 3, "{text}");
    let svg = std::fs::read_to_string(folder.path().join("plots/p.svg")).unwrap();
    assert!(svg.contains("<polyline") && svg.contains(">rate<"));
}

fn complaint(text: &str) -> String {
    Campaign::parse(text, Path::new("e.toml")).unwrap_err().to_string()
}

fn says(text: &str, expected: Expect) {
    expected.assert_eq(&complaint(text));
}

#[test]
fn what_is_wrong_is_said_in_a_sentence() {
    let unknown = complaint(&DESIGN.replace("\"eager\"", "\"lazy\""));
    assert!(unknown.starts_with("unknown policy \"lazy\" in run.policies: known are "), "{unknown}");
    says(
        &SMALL.replace("rate_rps = 100", ""),
        expect![[r#"there is no rate: give workload.rate_rps, workload.load, or run.search = "goodput""#]],
    );
    says(&SMALL.replace("seconds = 2", "seconds = 0"), expect!["run.seconds is 0: give a number above 0"]);
    says(
        &SMALL.replace("{ batch_ms = { 1 = 2, 2 = 3, 4 = 5 } }", "{ alpha_ms = 1 }"),
        expect![[
            r#"the latency of model "a" must be a line { alpha_ms, beta_ms }, a table { batch_ms }, or { file, row }"#
        ]],
    );
    says(&SMALL.replace("1 = 2,", "one = 2,"), expect![[r#""one" in batch_ms of model "a" is not a batch size"#]]);
    says(
        &SMALL.replace("1 = 2,", "1 = -2,"),
        expect![[r#"the latency of model "a" at batch size 1 is -2: give a number above 0"#]],
    );
    says(
        &SMALL.replace("count = 3", "count = 3\nweights_mb = 100").replace("count = 1", "count = 1\nmemory_mb = 50"),
        expect![[r#"model "a" needs 7 pages, a device has 3: raise devices.memory_mb"#]],
    );
    says(&SMALL.replace("slo_ms = 20", "slo_ms = -1"), expect![[r#"slo_ms of model "a" is -1: give 0 or more"#]]);
    says(&format!("{SMALL}[faults]\ncancel_probability = 2\n"), expect!["faults.cancel_probability is 2: give 0 to 1"]);
    assert!(
        complaint(&SMALL.replace("[devices]", "[devices]\nnumber = 3"))
            .contains("unknown field `number`, expected one of `count`")
    );
    assert!(
        complaint(&SMALL.replace("[workload]", "[workload]\narrivals = { process = \"chaos\" }"))
            .contains("unknown variant `chaos`")
    );
    assert!(
        complaint(&SMALL.replace("[workload]", "[workload]\narrivals = { process = \"trace\", file = \"no.csv\" }"))
            .contains("no.csv can't be read")
    );
}

#[test]
fn every_experiment_of_the_project_can_be_read_and_has_a_section() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/experiments/README.md")).unwrap();
    let mut count = 0;
    for entry in std::fs::read_dir(root.join("experiments")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            Campaign::read(&path).unwrap();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            assert!(page.contains(&format!("`experiments/{name}`")), "the page lacks {name}: make experiments");
            count += 1;
        }
    }
    assert!(count >= 3);
}

#[test]
fn the_page_of_experiments_is_as_the_program_writes_it() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/experiments/README.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("README.md"), &page).unwrap();
    let options = PageOptions {
        experiments: root.join("experiments"),
        folder: folder.path().to_owned(),
        head: true,
        ..PageOptions::default()
    };
    let written = std::fs::read_to_string(write_page(&options).unwrap()).unwrap();
    // Which sections were older than the code depends on when the page was written.
    let without_age = |page: &str| {
        let of_age = |line: &&str| line.starts_with("Older than the code") || line.starts_with("All sections are of");
        page.lines().filter(|line| !of_age(line)).map(|line| format!("{line}\n")).collect::<String>()
    };
    let command = "`cargo run -p lab -- simulate experiments --page docs/experiments --head` writes its head anew";
    assert!(without_age(&written) == without_age(&page), "somebody has typed into the page: {command}");
}
