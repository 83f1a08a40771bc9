//! `punctual plan-shares`: how GPUs are divided into shares, and which models run in which share.

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use planner::shares::search::search;
use planner::shares::{Interference, Measurements, PlannedShare, SharePlan, SharedModel, Sharing, rivals};
use serde::Deserialize;
use serde_json::json;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Letters of a line that shows a whole GPU.
const PICTURE: usize = 50;

/// What `plan-shares` may be told.
#[derive(Args, Debug)]
pub struct PlanSharesOptions {
    /// The file with the models, their rates and where their times are.
    file: PathBuf,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct File {
    gpus: usize,
    times: PathBuf,
    pairs: Option<PathBuf>,
    #[serde(default)]
    model: Vec<ModelLine>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct ModelLine {
    name: String,
    measured_as: Option<String>,
    rate_rps: f64,
    objective_ms: f64,
}

/// Reads, plans, prints.
pub fn run(options: &PlanSharesOptions) -> Result<()> {
    let path = &options.file;
    let named = || path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(named)?;
    let file: File = toml::from_str(&text).with_context(named)?;
    let gpus = file.gpus;
    let (models, interference) = problem(file, path.parent().unwrap_or(Path::new(""))).with_context(named)?;
    let sharing = Sharing { models: &models, gpus, interference: &interference, gap: 0.0 };
    let Some(plan) = search(&sharing) else {
        let enough = (gpus + 1..=4 * gpus).find(|&gpus| search(&Sharing { gpus, ..sharing }).is_some());
        let hint = enough.map_or("nor do four times as many".to_owned(), |enough| format!("{enough} would"));
        bail!("{}: {gpus} GPUs don't carry these rates within their objectives; {hint}", named());
    };
    let whole = rivals::squishy(&Sharing { gpus: usize::MAX, ..sharing }, planner::shares::WHOLE);
    let whole = whole.map(|plan| plan.gpus.len());
    print!("{}", if options.json { to_json(&models, &plan, whole) } else { to_text(&models, &plan, whole) });
    Ok(())
}

fn problem(file: File, folder: &Path) -> Result<(Vec<SharedModel>, Interference)> {
    let read = |path: &Path| {
        let path = folder.join(path);
        std::fs::read_to_string(&path).with_context(|| path.display().to_string())
    };
    let pairs = file.pairs.as_deref().map(read).transpose()?.unwrap_or_default();
    let measured = Measurements::read(&read(&file.times)?, &pairs).map_err(|error| anyhow!(error))?;
    if file.gpus == 0 {
        bail!("gpus is 0: give how many there are");
    }
    let models = file.model.into_iter().map(|line| {
        let ModelLine { name, measured_as, rate_rps: rate, objective_ms } = line;
        let known = measured_as.as_deref().unwrap_or(&name);
        let times = measured.models.get(known).cloned().with_context(|| {
            let names: Vec<&str> = measured.models.keys().map(String::as_str).collect();
            format!("there are no times of model {known:?}: there are those of {}", names.join(", "))
        })?;
        if !rate.is_finite() || rate < 0.0 {
            bail!("rate_rps of model {name:?} is {rate}: give requests a second");
        }
        if !objective_ms.is_finite() || objective_ms <= 0.0 {
            bail!("objective_ms of model {name:?} is {objective_ms}: give the time that a request has");
        }
        Ok(SharedModel { name, rate, objective: objective_ms / 1e3, times })
    });
    Ok((models.collect::<Result<_>>()?, measured.interference()))
}

/// A picture of each GPU and what its shares do.
fn to_text(models: &[SharedModel], plan: &SharePlan, whole: Option<usize>) -> String {
    let mut text = String::new();
    let mut say = |line: String| writeln!(text, "{line}").expect("writing to a string doesn't fail");
    for (index, gpu) in plan.gpus.iter().enumerate() {
        let bars: Vec<String> = gpu.shares.iter().map(bar).collect();
        say(format!("gpu {index} |{}|", bars.join("|")));
        for share in gpu.shares.iter().filter(|share| !share.turns.is_empty()) {
            let (percent, cycle, busy) = (share.percent, share.cycle * 1e3, share.busy() * 100.0);
            say(format!("  {percent} %: a cycle of {cycle:.2} ms, busy for {busy:.0} %"));
            for turn in &share.turns {
                let SharedModel { name, objective, .. } = &models[turn.model];
                let (takes, latest) = (turn.takes * 1e3, (share.cycle + turn.takes) * 1e3);
                say(format!(
                    "    {name}: {:.0} r/s in batches of up to {}, {takes:.2} ms each; answered after {latest:.2} of {:.2} ms at most",
                    turn.rate,
                    turn.batch,
                    objective * 1e3
                ));
            }
        }
    }
    let divided = plan.gpus.iter().filter(|gpu| gpu.shares.len() > 1).count();
    say(format!("\n{} GPUs are needed, {divided} of them divided.", plan.gpus.len()));
    match whole {
        Some(whole) if whole > plan.gpus.len() => say(format!("Without shares it would take {whole}.")),
        Some(whole) => say(format!("Shares don't pay here: {whole} are enough without them, too.")),
        None => say("Without shares some model's objective can't be met at all.".to_owned()),
    }
    text
}

/// As long as the share is large; the part in which it computes is filled.
fn bar(share: &PlannedShare) -> String {
    let length = PICTURE * share.percent as usize / 100;
    let filled = (length as f64 * share.busy()).round() as usize;
    (0..length).map(|index| if index < filled { '#' } else { '.' }).collect()
}

fn to_json(models: &[SharedModel], plan: &SharePlan, whole: Option<usize>) -> String {
    let share = |share: &PlannedShare| {
        let turns = share.turns.iter().map(|turn| {
            json!({
                "model": models[turn.model].name,
                "rate_rps": turn.rate,
                "batch": turn.batch,
                "takes_ms": turn.takes * 1e3,
            })
        });
        let turns: Vec<_> = turns.collect();
        json!({ "percent": share.percent, "cycle_ms": share.cycle * 1e3, "busy": share.busy(), "models": turns })
    };
    let gpus = plan.gpus.iter().map(|gpu| json!({ "shares": gpu.shares.iter().map(share).collect::<Vec<_>>() }));
    let gpus: Vec<_> = gpus.collect();
    format!("{:#}\n", json!({ "gpus": gpus, "gpus_without_shares": whole }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: &str = "model,batch,pct,weight_bytes,p50_ms
small,1,20,1000,1.0
small,8,20,1000,2.0
small,1,100,1000,0.9
small,8,100,1000,1.5
large,1,80,1000000,4.0
large,8,80,1000000,9.0
large,1,100,1000000,3.9
large,8,100,1000000,8.8
";

    /// What the file says, with the table of times beside it.
    fn said(model_lines: &str) -> Result<String> {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("times.csv"), TIMES)?;
        let file: File = toml::from_str(&format!("gpus = 1\ntimes = \"times.csv\"\n{model_lines}"))?;
        let gpus = file.gpus;
        let (models, interference) = problem(file, folder.path())?;
        let plan =
            search(&Sharing { models: &models, gpus, interference: &interference, gap: 0.0 }).context("no plan")?;
        Ok(to_text(&models, &plan, Some(2)))
    }

    #[test]
    fn a_small_model_and_a_large_one_share_a_gpu_that_neither_could_share_in_turns() {
        let text = said(
            "[[model]]\nname = \"fast\"\nmeasured_as = \"small\"\nrate_rps = 1500\nobjective_ms = 5\n\
             [[model]]\nname = \"large\"\nrate_rps = 500\nobjective_ms = 25\n",
        );
        let text = text.unwrap();
        assert!(text.matches(" %: a cycle of ").count() == 2 && text.contains("    fast: 1500 r/s"), "{text}");
        assert!(text.ends_with("1 GPUs are needed, 1 of them divided.\nWithout shares it would take 2.\n"), "{text}");
    }

    #[test]
    fn what_is_wrong_in_the_file_is_a_sentence() {
        let wrong = |lines: &str| format!("{:#}", said(lines).unwrap_err());
        let unknown = wrong("[[model]]\nname = \"other\"\nrate_rps = 1\nobjective_ms = 5\n");
        assert_eq!(unknown, "there are no times of model \"other\": there are those of large, small");
        let rate = wrong("[[model]]\nname = \"small\"\nrate_rps = -1\nobjective_ms = 5\n");
        assert_eq!(rate, "rate_rps of model \"small\" is -1: give requests a second");
        let objective = wrong("[[model]]\nname = \"small\"\nrate_rps = 1\nobjective_ms = 0\n");
        assert_eq!(objective, "objective_ms of model \"small\" is 0: give the time that a request has");
    }
}
