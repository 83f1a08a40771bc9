//! Searches, cases, kept results and pages, from file to output.

#![allow(clippy::unwrap_used, reason = "a test that finds something else than it expects should stop")]

use lab::simulate::{PageOptions, SimulateOptions, simulate, write_page};
use lab::{Campaign, Reuse, Selection};
use serde_json::Value;
use std::path::Path;

/// One model on one device: 8 in 10 ms, so at most 800 r/s.
const WORLD: &str = r#"
[[model]]
name = "a"
latency = { alpha_ms = 1, beta_ms = 2 }
slo_ms = 30
batch_sizes = "all"
max_batch = 8
[devices]
count = 1
[scheduler]
profile_window = 10
"#;

const SEARCH: &str = "[run]\npolicies = [\"clockwork\"]\nseconds = 8\nseeds = [1, 2]\nsearch = \"goodput\"\n";

fn results(text: &str, options: &SimulateOptions) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("experiment.toml");
    std::fs::write(&path, text).unwrap();
    let printed = simulate(&path, &SimulateOptions { json: true, ..options.clone() }).unwrap();
    serde_json::from_str::<Value>(&printed).unwrap()["results"].as_array().unwrap().clone()
}

fn number(result: &Value, key: &str) -> f64 {
    result[key].as_f64().unwrap_or_else(|| panic!("no {key} in {result}"))
}

/// The part of bad requests of both seeds at a fixed rate.
fn bad_at(rate: f64) -> f64 {
    let fixed = SEARCH.replace("search = \"goodput\"\n", "");
    let text = format!("{WORLD}[workload]\nrate_rps = {rate}\n{fixed}");
    number(&results(&text, &SimulateOptions::default())[0], "bad")
}

#[test]
fn what_a_search_finds_passes_and_little_more_does_not() {
    let result = &results(&format!("{WORLD}{SEARCH}"), &SimulateOptions::default())[0];
    let bad = number(result, "bad");
    assert!(bad <= 0.01, "{bad}");
    // The rate that was asked for is a little off the rate that was sent; both seeds together, so is the fraction.
    let asked = number(result, "rate_rps");
    let (below, above) = (bad_at(asked * 0.98), bad_at(asked * 1.02));
    assert!(below <= 0.01 && above > 0.01, "{below} and {above} around {asked}");
}

#[test]
fn a_search_also_looks_beside_the_peak_and_at_the_bound() {
    let policies = SEARCH.replace("[\"clockwork\"]", "[\"clockwork\", \"timeout\"]");
    let results = results(&format!("{WORLD}{policies}"), &SimulateOptions::default());
    let best = results.iter().map(|result| number(result, "found_rps")).fold(0.0, f64::max);
    for result in &results {
        assert_eq!(number(result, "best_rps"), best, "all are looked at near the same rate");
        let parts: Vec<f64> = ["0.6", "0.8", "0.9", "0.95", "1.05"].map(|part| number(&result["bad_at"], part)).into();
        assert!(parts[0] <= 0.01 && parts[4] > parts[0], "{parts:?}");
        assert!(result["collapses_at"].is_null(), "{result}");
        let bound = number(result, "bound_rps");
        assert!(number(result, "goodput_rps") <= bound * 1.01 && bound <= 800.0 * 1.01, "{bound}");
    }
    let none = &self::results(&format!("{WORLD}{SEARCH}beside_peak = []\n"), &SimulateOptions::default())[0];
    assert!(none["bad_at"].is_null() && none["found_rps"] == results[0]["found_rps"]);
    let bounds =
        self::results(&format!("{WORLD}{SEARCH}"), &SimulateOptions { bound: true, ..SimulateOptions::default() });
    assert_eq!(bounds[0]["bound_rps"], none["bound_rps"]);
}

#[test]
fn a_search_can_ask_for_enough_bad_requests() {
    let search = SEARCH.replace("seconds = 8", "seconds = 8\nbad_events = 200\nmax_seconds = 60\nbeside_peak = []");
    let result = &results(&format!("{WORLD}{search}"), &SimulateOptions::default())[0];
    // 200 of 1 % of both seeds together.
    let sent = number(result, "sent") * 2.0;
    assert!((sent * 0.01 / 200.0 - 1.0).abs() < 0.1, "{sent} requests");
    assert!(number(result, "bad_events") > 100.0);
}

#[test]
fn each_model_counts() {
    // The second model is ten times as dear as the first, and asked for a twentieth as often.
    let dear = "[[model]]\nname = \"dear\"\nlatency = { alpha_ms = 10, beta_ms = 20 }\nslo_ms = 70\ncount = 1\nmax_batch = 4\n";
    let shares = "[workload]\npopularity = { kind = \"zipf\", exponent = 4 }\n";
    let of = |whose: &str| {
        let text = format!("{WORLD}{dear}{shares}{SEARCH}max_bad_of = \"{whose}\"\nbeside_peak = []\n");
        results(&text, &SimulateOptions::default()).swap_remove(0)
    };
    let (each, all) = (of("each"), of("all"));
    assert!(number(&each, "found_rps") <= number(&all, "found_rps"));
    assert!(number(&each, "worst_bad") < 0.05 && number(&each, "bad") <= 0.01, "{each}");
    assert!(number(&each, "bound_rps") <= number(&all, "bound_rps") * 1.001);
}

#[test]
fn the_fewest_devices_are_found() {
    let text = format!("{WORLD}[workload]\nrate_rps = 3000\n{}", SEARCH.replace("goodput", "devices"));
    let result = &results(&text, &SimulateOptions::default())[0];
    let found = number(result, "devices");
    assert!((4.0..=8.0).contains(&found), "3,000 r/s at 800 for each: {found}");
    assert!(number(result, "bad") <= 0.01);
    let one_less = text.replace("search = \"devices\"\n", "").replace("count = 1", &format!("count = {}", found - 1.0));
    assert!(number(&results(&one_less, &SimulateOptions::default())[0], "bad") > 0.01);
}

#[test]
fn loads_are_multiples_of_the_peak() {
    let text = format!("{WORLD}{SEARCH}times_peak = 1\n[sweep]\n\"run.times_peak\" = [0.5, 1, 4]\n");
    let results = results(&text, &SimulateOptions::default());
    let peak = number(&results[0], "peak_rps");
    assert!(results.iter().all(|result| number(result, "peak_rps") == peak), "searched for once");
    for (result, times) in results.iter().zip([0.5, 1.0, 4.0]) {
        let offered = number(result, "rate_rps") / peak;
        assert!((offered / times - 1.0).abs() < 0.05, "{offered} instead of {times}");
    }
    assert!((number(&results[1], "goodput_of_peak") - 1.0).abs() < 1e-9, "the very same runs");
    let idle = number(&results[0], "idle");
    assert!((number(&results[0], "idle_off") - (idle - 0.5).abs()).abs() < 1e-9);
}

#[test]
fn an_interrupted_sweep_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("experiment.toml");
    let plain = "[workload]\nrate_rps = 300\n[run]\npolicies = [\"clockwork\", \"again\"]\nseconds = 2\n";
    let policy = "[policy.again]\nkind = \"clockwork\"\n";
    std::fs::write(&path, format!("{WORLD}{plain}{policy}[sweep]\nslo_ms = [15, 20, 30]\n")).unwrap();
    let reuse = Reuse { file: Some(folder.path().join("results.jsonl")), again: Vec::new() };
    let lines = || std::fs::read_to_string(folder.path().join("results.jsonl")).unwrap().lines().count();
    let only = [("slo_ms".to_owned(), vec![20.0.into()])].into();
    let part = Campaign::select(&path, &Selection { only, ..Selection::default() }).unwrap();
    let first = part.run_or_reuse(false, &reuse).unwrap();
    assert_eq!((first.len(), lines()), (2, 1), "the same world and settings under another name are run once");
    let all = Campaign::read(&path).unwrap().run_or_reuse(false, &reuse).unwrap();
    assert_eq!((all.len(), lines()), (6, 3), "what was there isn't run again");
    let found = all.iter().find(|outcome| outcome.policy == "clockwork" && outcome.figure("slo_ms") == Some(20.0));
    assert_eq!(found.unwrap().figures, first[0].figures);
    assert_eq!(all[0].figures, all[3].figures);
}

#[test]
fn cases_and_comparisons_reach_the_output() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("experiment.toml");
    let cases = "[[case]]\nname = \"slow\"\nset = { \"model.latency.alpha_ms\" = 2 }\n[[case]]\nname = \"fast\"\nset = { \"model.latency.alpha_ms\" = 1 }\n";
    let policies = "[policy.patient]\nkind = \"clockwork\"\nschedule_ahead_ms = 3\n";
    let compare = "[[compare]]\nid = \"c\"\ntitle = \"one over the other\"\nof = \"patient\"\nto = \"clockwork\"\nby = [\"case\"]\nat_least = [0.9]\n";
    let claim =
        "[[claim]]\nsays = \"about the same\"\nvalue = \"compare.c.mean\"\nwant = 1\nholds = { within = 0.2 }\n";
    let run = "[workload]\nrate_rps = 300\n[run]\npolicies = [\"clockwork\", \"patient\"]\nseconds = 2\n";
    std::fs::write(&path, format!("{WORLD}{run}{cases}{policies}{compare}{claim}")).unwrap();
    let text = simulate(&path, &SimulateOptions::default()).unwrap();
    for part in ["slow", "... case fast", "geometric mean", "at least 0.9", "about the same"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert!(text.lines().any(|line| line.starts_with("about the same") && line.ends_with("yes")), "{text}");
}

#[test]
fn clusters_can_follow_the_load() {
    let text =
        WORLD.replace("name = \"a\"", "name = \"a\"\nrate_wave = { mean_rps = 1500, swing = 0.9, period_s = 200 }");
    let elastic = "[elastic]\nmax_devices = 9\nevery_s = 1\nstart_s = 1\n[run]\npolicies = [\"clockwork\"]\nseconds = 200\nseries_seconds = 10\n";
    let result = &results(&format!("{text}{elastic}"), &SimulateOptions::default())[0];
    let devices: Vec<f64> =
        result["series"]["devices"].as_array().unwrap().iter().map(|point| number(point, "devices")).collect();
    assert!(devices[0] == 1.0 && devices[10] >= 3.0, "{devices:?}");
    assert!(number(result, "mean_devices") > 1.0);
}

fn options(experiments: &Path, folder: &Path, all: bool) -> PageOptions {
    PageOptions {
        experiments: experiments.to_owned(),
        folder: folder.to_owned(),
        cache: Some(folder.join("cache")),
        all,
        commit: "commit 1234".into(),
        ..PageOptions::default()
    }
}

fn page(experiments: &Path, folder: &Path, all: bool) -> String {
    std::fs::read_to_string(write_page(&options(experiments, folder, all)).unwrap()).unwrap()
}

#[test]
fn large_sweeps_are_drawn_from_what_was_kept() {
    let (experiments, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let run = "[workload]\nrate_rps = 300\n[run]\npolicies = [\"clockwork\"]\nseconds = 2\nkept = [\"goodput_rps\"]\n";
    let plot = "[[plot]]\nname = \"p\"\ntitle = \"T\"\nx = \"slo_ms\"\nx_label = \"ms\"\ny = [\"goodput_rps\"]\n";
    let claim =
        "[[claim]]\nsays = \"much\"\nvalue = \"goodput_rps\"\nat = { slo_ms = 20 }\nwant = 200\nholds = \"at_least\"\n";
    let text = format!("{WORLD}{run}[sweep]\nslo_ms = [15, 20]\n{plot}{claim}");
    std::fs::write(experiments.path().join("large.toml"), text).unwrap();
    let before = page(experiments.path(), folder.path(), false);
    assert!(before.contains("Not run yet: `make experiments-all`") && !before.contains("![T]"), "{before}");
    let run = page(experiments.path(), folder.path(), true);
    assert!(run.contains("at commit 1234") && run.contains("| yes |"), "{run}");
    let kept = page(experiments.path(), folder.path(), false);
    assert_eq!(kept, run, "without running it again");
    assert!(kept.contains("\n| commit 1234 | `large` |\n"), "{kept}");
    let svg = std::fs::read_to_string(folder.path().join("p.svg")).unwrap();
    assert!(svg.contains("<polyline"), "{svg}");
}

#[test]
fn kept_results_of_older_sources_stand_while_a_sample_of_them_does() {
    let (experiments, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let run = "[workload]\nrate_rps = 300\n[run]\npolicies = [\"clockwork\"]\nseconds = 2\nkept = [\"goodput_rps\"]\n";
    let slos: Vec<String> = (15..55).map(|slo| slo.to_string()).collect();
    let sweep = format!("[sweep]\nslo_ms = [{}]\n", slos.join(", "));
    std::fs::write(experiments.path().join("large.toml"), format!("{WORLD}{run}{sweep}")).unwrap();
    page(experiments.path(), folder.path(), true);
    let file = folder.path().join("results/large.csv");
    let found = std::fs::read_to_string(&file).unwrap();
    let sources = found.lines().next().unwrap().rsplit(' ').next().unwrap().to_owned();
    let older = found.replace(&sources, "0000000000000000");
    let confirm = |kept: &str| {
        std::fs::write(&file, kept).unwrap();
        std::fs::remove_dir_all(folder.path().join("cache")).unwrap();
        let options = PageOptions {
            confirm: Some(4),
            commit: "commit 5678".into(),
            ..options(experiments.path(), folder.path(), true)
        };
        let text = std::fs::read_to_string(write_page(&options).unwrap()).unwrap();
        let runs = std::fs::read_to_string(folder.path().join("cache/large.jsonl")).unwrap().lines().count();
        (text, runs)
    };
    let (text, runs) = confirm(&older);
    assert_eq!(runs, 4);
    assert!(text.contains("4 of these results, at 4 points drawn by chance, were run again at commit 5678"), "{text}");
    assert!(text.contains("\n| commit 1234, confirmed by a sample at commit 5678 | `large` |\n"), "{text}");
    assert!(text.contains("All sections are of the code with which this page was written."), "{text}");
    let other = older
        .lines()
        .map(|line| if line.starts_with("clockwork") { format!("{line}9\n") } else { format!("{line}\n") });
    let (text, runs) = confirm(&other.collect::<String>());
    assert_eq!(runs, 40, "a sample that comes out otherwise says nothing of the others");
    assert!(text.contains("\n| commit 5678 | `large` |\n"), "{text}");
}

#[test]
fn sections_that_are_not_asked_for_stay_and_their_age_is_said() {
    let (experiments, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let run = "[workload]\nrate_rps = 300\n[run]\npolicies = [\"clockwork\"]\nseconds = 2\n";
    for name in ["one", "two"] {
        let text = format!("[about]\ntitle = \"Number {name}\"\n{WORLD}{run}");
        std::fs::write(experiments.path().join(format!("{name}.toml")), text).unwrap();
    }
    let options = |parts: &[&str]| PageOptions {
        experiments: experiments.path().to_owned(),
        folder: folder.path().to_owned(),
        parts: parts.iter().map(|part| (*part).to_owned()).collect(),
        commit: "commit 1234".into(),
        ..PageOptions::default()
    };
    let page = |parts: &[&str]| std::fs::read_to_string(write_page(&options(parts)).unwrap()).unwrap();
    let first = page(&["two"]);
    let one =
        first.split("\n## ").find(|section| section.starts_with("Number one\n\n`experiments/one.toml`\n")).unwrap();
    assert!(first.contains("not run yet: one.\n") && one.contains("\nNot run yet: `make experiments`"), "{first}");
    assert!(first.contains("\n| commit 1234 | `two` |\n") && first.contains("\n| not run yet | `one` |\n"), "{first}");
    assert!(first.contains("Of commit 1234.") && first.contains("| clockwork |"), "{first}");
    let both = page(&["one"]);
    assert_eq!(both.matches("| clockwork |").count(), 2, "{both}");
    assert!(both.contains("All sections are of the code with which this page was written."), "{both}");
    // A section of other sources is still there, and named.
    let path = folder.path().join("README.md");
    let (before, number) = both.split_once("## Number two").unwrap();
    let number = number.replace("<!-- sources ", "<!-- sources 00000000");
    std::fs::write(&path, format!("{before}## Number two{number}")).unwrap();
    let aged = page(&["one"]);
    assert!(aged.contains("\nOlder than the code when this page was written, or not run yet: two.\n"), "{aged}");
    let older =
        aged.replace("Of commit 1234. <!-- sources 00000000", "Of commit 123 and changes. <!-- sources 00000000");
    std::fs::write(&path, &older).unwrap();
    let head = write_page(&PageOptions { head: true, ..options(&[]) }).unwrap();
    let head = std::fs::read_to_string(head).unwrap();
    assert!(
        head.contains("\n| commit 1234 | `one` |\n") && head.contains("\n| commit 123 and changes | `two` |\n"),
        "{head}"
    );
    assert_eq!(head.split_once("\n## ").unwrap().1, older.split_once("\n## ").unwrap().1, "nothing is run");
    assert_eq!(page(&[]), both);
    let unknown = write_page(&options(&["three"])).unwrap_err().to_string();
    assert!(unknown.contains("has no three.toml"), "{unknown}");
}

#[test]
fn what_makes_no_sense_is_said() {
    let complaint = |text: &str| Campaign::parse(text, Path::new("e.toml")).unwrap_err().to_string();
    let rate = "[workload]\nrate_rps = 300\n";
    let run = "[run]\npolicies = [\"clockwork\"]\nseconds = 2\n";
    assert!(complaint(&format!("{WORLD}{rate}{run}times_peak = 2\n")).starts_with("run.times_peak needs"));
    assert!(complaint(&format!("{WORLD}{}", SEARCH.replace("goodput", "devices"))).contains("give workload.rate_rps"));
    let elastic = "[elastic]\nmax_devices = 0\nevery_s = 1\n";
    assert!(complaint(&format!("{WORLD}{rate}{elastic}{run}")).starts_with("elastic.min_devices is 1"));
    let elastic = "[elastic]\nmax_devices = 3\nevery_s = 1\n";
    assert!(complaint(&format!("{WORLD}{elastic}{SEARCH}")).starts_with("a search needs a fixed cluster"));
    let both = WORLD.replace("slo_ms = 30", "slo_ms = 30\nslo_of_l4 = 2");
    assert!(complaint(&format!("{both}{rate}{run}")).contains("must have one of slo_ms"));
    let table = WORLD.replace("slo_ms = 30", "slo_ms = 30\ntable = \"no.csv\"");
    assert!(complaint(&format!("{table}{rate}{run}")).contains("latency or table, not both"));
}
