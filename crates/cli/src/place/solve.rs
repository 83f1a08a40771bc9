//! From a file to a problem, to its placement, to tables or JSON.

use super::PlaceOptions;
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use planner::placement::{ModelToPlace, Placement, PlacementEffort, PlacementProblem, SolverEnding, place};
use serde::Deserialize;
use serde_json::json;
use std::collections::HashSet;
use std::fmt::Write;
use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

/// Megabytes, as in experiments.
const MB: f64 = 1e6;

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct File {
    parts: usize,
    max_rate_rps: Option<f64>,
    memory_mb: Option<f64>,
    memory_weight: Option<f64>,
    max_change_cost: Option<f64>,
    change_weight: Option<f64>,
    seconds: Option<f64>,
    #[serde(default)]
    model: Vec<ModelLine>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct ModelLine {
    name: String,
    rate_rps: f64,
    weights_mb: f64,
    #[serde(default)]
    working_mb: f64,
    part: Option<usize>,
    change_cost: Option<f64>,
}

/// Reads, solves, prints.
pub(super) fn run(options: &PlaceOptions) -> Result<()> {
    let path = &options.file;
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let file: File = toml::from_str(&text).with_context(|| path.display().to_string())?;
    let seconds = options.seconds.or(file.seconds).unwrap_or(10.0);
    let Ok(time_limit) = Duration::try_from_secs_f64(seconds) else {
        bail!("{seconds} seconds: the time to look must be a number that isn't negative");
    };
    let problem = problem(file).with_context(|| path.display().to_string())?;
    let placement = solve(&problem, time_limit, path)?;
    print!("{}", if options.json { to_json(&problem, &placement) } else { to_text(&problem, &placement) });
    Ok(())
}

fn bytes(what: &str, megabytes: f64) -> Result<u64> {
    if !(0.0..=1e12).contains(&megabytes) {
        bail!("{what} is {megabytes} MB: it must be a number between 0 and 1e12");
    }
    Ok((megabytes * MB).round() as u64)
}

fn problem(file: File) -> Result<PlacementProblem> {
    let mut names = HashSet::new();
    let mut models = Vec::with_capacity(file.model.len());
    for entry in file.model {
        let ModelLine { name, rate_rps, weights_mb, working_mb, part, change_cost } = entry;
        if !names.insert(name.clone()) {
            bail!("model {name:?} is listed twice: give each its own name");
        }
        let static_bytes = bytes(&format!("weights_mb of model {name:?}"), weights_mb)?;
        let dynamic_bytes = bytes(&format!("working_mb of model {name:?}"), working_mb)?;
        // What a load takes grows with the weights, so that they are its cost unless another is given.
        let change_cost = change_cost.unwrap_or(weights_mb);
        models.push(ModelToPlace { name, rate_rps, static_bytes, dynamic_bytes, previous: part, change_cost });
    }
    let defaults = PlacementProblem::default();
    Ok(PlacementProblem {
        models,
        parts: file.parts,
        max_rate_rps: file.max_rate_rps,
        max_bytes: file.memory_mb.map(|megabytes| bytes("memory_mb", megabytes)).transpose()?,
        memory_weight: file.memory_weight.unwrap_or(defaults.memory_weight),
        max_change_cost: file.max_change_cost,
        change_weight: file.change_weight.unwrap_or(defaults.change_weight),
    })
}

fn solve(problem: &PlacementProblem, time_limit: Duration, path: &Path) -> Result<Placement> {
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
    bar.set_style(style.expect("the template is well formed"));
    bar.enable_steady_tick(Duration::from_millis(100));
    let effort = PlacementEffort { time_limit, ..PlacementEffort::default() };
    let found = place(problem, &effort, &mut |stage| {
        let size = format!("{} models, {} parts", problem.models.len(), problem.parts);
        bar.set_message(format!("placing {size}: {} (at most {:.0} s)", stage.name(), time_limit.as_secs_f64()));
    });
    bar.finish_and_clear();
    found.with_context(|| path.display().to_string())
}

/// How sure the result is, in words.
fn certainty(placement: &Placement) -> &'static str {
    match placement.ending {
        SolverEnding::Optimal => "no assignment is better",
        SolverEnding::TimeLimit => "the best found in the time; there may be better ones",
        SolverEnding::Nothing => "the solver found nothing in the time; this is from exchanges of models alone",
    }
}

fn to_text(problem: &PlacementProblem, placement: &Placement) -> String {
    let mut text =
        format!("{:>5} {:>7} {:>12} {:>12} {:>12}\n", "part", "models", "rate r/s", "weights MB", "working MB");
    let mut line = |part: usize, models: usize, rate: f64, weights: u64, working: u64| {
        let (weights, working) = (weights as f64 / MB, working as f64 / MB);
        writeln!(text, "{part:>5} {models:>7} {rate:>12.1} {weights:>12.1} {working:>12.1}")
    };
    for (part, load) in placement.parts.iter().enumerate() {
        line(part, load.models, load.rate_rps, load.static_bytes, load.dynamic_bytes)
            .expect("writing to a string doesn't fail");
    }
    let score = &placement.score;
    let names = problem.models.iter().map(|model| model.name.len()).max().unwrap_or(0).max(5);
    let mut say = |sentence: String| {
        text.push_str(&sentence);
        text.push('\n');
    };
    say(format!(
        "\nimbalance, (max - min) / average: {:.3} % of the rate, {:.3} % of the weights; {}",
        score.rate_imbalance * 100.0,
        score.memory_imbalance * 100.0,
        certainty(placement)
    ));
    let moved = |model: &&(&ModelToPlace, usize)| model.0.previous.is_some_and(|previous| previous != model.1);
    let placed: Vec<(&ModelToPlace, usize)> = problem.models.iter().zip(placement.part_of.iter().copied()).collect();
    if problem.models.iter().any(|model| model.previous.is_some()) {
        let moves = placed.iter().filter(moved).count();
        say(format!("{moves} models move; loads and unloads cost {:.1}", score.change_cost));
    }
    say(format!("\n{:<names$} {:>5}", "model", "part"));
    for (model, part) in placed {
        let note = match model.previous {
            Some(previous) if previous != part => format!("  from {previous}"),
            _ => String::new(),
        };
        say(format!("{:<names$} {part:>5}{note}", model.name));
    }
    text
}

fn to_json(problem: &PlacementProblem, placement: &Placement) -> String {
    let models: Vec<_> = problem
        .models
        .iter()
        .zip(&placement.part_of)
        .map(|(model, part)| json!({ "name": model.name, "part": part, "previous": model.previous }))
        .collect();
    let parts: Vec<_> = placement
        .parts
        .iter()
        .map(|part| {
            json!({
                "models": part.models,
                "rate_rps": part.rate_rps,
                "weights_mb": part.static_bytes as f64 / MB,
                "working_mb": part.dynamic_bytes as f64 / MB,
            })
        })
        .collect();
    let stages: Vec<_> = placement
        .stages
        .iter()
        .map(|report| {
            json!({
                "stage": report.stage.name(),
                "objective": report.score.map(|score| score.objective),
                "seconds": report.took.as_secs_f64(),
            })
        })
        .collect();
    let result = json!({
        "models": models,
        "parts": parts,
        "rate_imbalance": placement.score.rate_imbalance,
        "memory_imbalance": placement.score.memory_imbalance,
        "change_cost": placement.score.change_cost,
        "optimal": placement.ending == SolverEnding::Optimal,
        "fallback": placement.ending == SolverEnding::Nothing,
        "from": placement.from.name(),
        "stages": stages,
    });
    format!("{result}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<PlacementProblem> {
        problem(toml::from_str(text)?)
    }

    const EXAMPLE: &str = r#"
        parts = 2
        memory_mb = 200
        max_change_cost = 300
        [[model]]
        name = "a"
        rate_rps = 100
        weights_mb = 50
        working_mb = 20.5
        part = 1
        [[model]]
        name = "b"
        rate_rps = 100
        weights_mb = 50
        part = 1
        change_cost = 7
    "#;

    #[test]
    fn a_file_becomes_a_problem_and_a_table() {
        let problem = read(EXAMPLE).unwrap();
        assert_eq!((problem.models[0].change_cost, problem.models[1].change_cost), (50.0, 7.0));
        assert_eq!((problem.models[0].dynamic_bytes, problem.max_bytes), (20_500_000, Some(200_000_000)));
        let placement = solve(&problem, Duration::from_secs(600), Path::new("x")).unwrap();
        expect_test::expect![[r#"
             part  models     rate r/s   weights MB   working MB
                0       1        100.0         50.0          0.0
                1       1        100.0         50.0         20.5

            imbalance, (max - min) / average: 0.000 % of the rate, 0.000 % of the weights; no assignment is better
            1 models move; loads and unloads cost 14.0

            model  part
            a         1
            b         0  from 1
        "#]]
        .assert_eq(&to_text(&problem, &placement));
        let machine: serde_json::Value = serde_json::from_str(&to_json(&problem, &placement)).unwrap();
        assert_eq!((&machine["models"][1]["part"], &machine["optimal"]), (&json!(0), &json!(true)));
    }

    #[test]
    fn mistakes_in_a_file_are_sentences() {
        let refused = |from: &str, to: &str| format!("{:#}", read(&EXAMPLE.replacen(from, to, 1)).unwrap_err());
        assert_eq!(refused("\"b\"", "\"a\""), "model \"a\" is listed twice: give each its own name");
        let negative = "weights_mb of model \"a\" is -1 MB: it must be a number between 0 and 1e12";
        assert_eq!(refused("weights_mb = 50", "weights_mb = -1"), negative);
        let unknown = refused("memory_mb", "memory_gb");
        assert!(unknown.contains("memory_gb"), "{unknown}");
    }
}
