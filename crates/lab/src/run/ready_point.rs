//! One point of a sweep: its world, its workload, and what each policy comes to in it, by a search or by plain runs.

use crate::LabError;
use crate::run::experiment::{Experiment, Search};
use crate::run::search::{self, Collapse, Goal, RateResult, RunEffort};
use crate::run::shares::SharedWorld;
use crate::run::sweep::Point;
use crate::run::traffic::Workload;
use crate::run::variant::Variant;
use crate::run::verdict::Verdict;
use crate::run::{bound, models, resolve, summary};
use base::Duration;
use serde_json::{Map, Value, json};
use sim::{RunResult, Setup};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// A short run of a search sees about so many requests,
const GLANCE_REQUESTS: f64 = 20_000.0;
/// and lasts at least so many objectives, and a second.
const GLANCE_OBJECTIVES: f64 = 20.0;
/// The next longer run of a search is this part of all runs at full effort.
const LOOK_PART: f64 = 1.0 / 12.0;
/// A rung of the ladder must be cheaper than the last by this factor to be worth it.
const WORTH_IT: f64 = 3.0;
/// More bad requests than `max_bad` of what is expected, by this factor and this many, end a run: it can't pass any
/// more.
const HOPELESS: (f64, f64) = (1.03, 20.0);
/// No run is cut below this because of its requests.
const LEAST_SECONDS: f64 = 5.0;
/// Where every rate that was looked at beside the peak is too much, these parts of it are tried.
const FAR_BELOW: [f64; 5] = [0.5, 0.4, 0.3, 0.2, 0.1];
/// Two shares compute no more than so many times what a whole GPU does.
const SHARES_GAIN: f64 = planner::shares::SLOTS as f64;
/// More devices than this are a mistake, or the rate can't be carried.
const MAX_DEVICES: u32 = 100_000;

/// Rates that searches found, for points that differ only in how many times of it is asked for.
#[derive(Debug, Default)]
pub(crate) struct Peaks(Mutex<HashMap<String, Arc<Mutex<Option<Peak>>>>>);

/// What a search found.
#[derive(Clone, Copy, Debug)]
struct Peak {
    rate: f64,
    goodput: f64,
}

/// What one rate came to.
struct MeasuredRate {
    rate: f64,
    verdict: Verdict,
    runs: Vec<RunResult>,
}

/// One point of the sweep, ready to run.
#[derive(Debug)]
pub(crate) struct ReadyPoint {
    experiment: Experiment,
    workload: Workload,
    /// What is known of shares, where policies divide the devices.
    shared: Option<SharedWorld>,
    folder: PathBuf,
    /// The policies with their settings at this point.
    pub(crate) variants: Vec<Variant>,
    /// The values of the sweep's keys.
    pub(crate) values: Map<String, Value>,
    /// Everything that results depend on, but for the policy and the sources.
    pub(crate) identity: String,
    /// The same without what happens after the search.
    identity_of_peak: String,
}

impl ReadyPoint {
    pub(crate) fn new(point: Point, path: &Path, folder: &Path) -> Result<Self, LabError> {
        let parse = |reason| LabError::Parse { path: path.to_owned(), reason: Box::new(reason) };
        let identity_of_peak = identity(&without_times_peak(&point.file), folder);
        let identity = identity(&point.file, folder);
        let scheduler = point.file.get("scheduler").cloned();
        let mut experiment: Experiment = point.file.try_into().map_err(parse)?;
        let variant = |label: &String| Variant::new(label, &experiment, scheduler.as_ref());
        let variants = experiment.run.policies.iter().map(variant).collect::<Result<Vec<_>, _>>()?;
        models::expand(&mut experiment, folder)?;
        let workload = Workload::new(&experiment, folder)?;
        let shared = SharedWorld::read(&experiment, folder)?;
        for variant in &variants {
            resolve::setup(&experiment, folder, variant, 0)?;
        }
        check_rate(&experiment, &workload)?;
        let values = point.values.into_iter().map(|(key, value)| (key, shown(&value))).collect();
        Ok(Self {
            experiment,
            workload,
            shared,
            folder: folder.to_owned(),
            variants,
            values,
            identity,
            identity_of_peak,
        })
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.experiment.run.seconds
    }

    pub(crate) fn max_requests(&self) -> Option<f64> {
        self.experiment.run.max_requests
    }

    pub(crate) fn seeds(&self) -> usize {
        self.experiment.run.seeds.len()
    }

    /// The figures of one policy, the mean over the seeds.
    pub(crate) fn run(&self, variant: &Variant, peaks: &Peaks) -> Result<Value, LabError> {
        if let (Some(Search::Goodput), Some(times)) = (self.experiment.run.search, self.experiment.run.times_peak) {
            return self.run_at(times, variant, peaks);
        }
        let setup = resolve::setup(&self.experiment, &self.folder, variant, 0)?;
        let (runs, devices) = match self.experiment.run.search {
            None => {
                let rate = self.workload.plain_rate(&setup);
                (self.plain(setup.clone(), variant, rate)?, Some(setup.devices))
            }
            Some(Search::Goodput) => {
                let (rate, runs) = self.search_rate(setup.clone(), variant)?;
                let found = json!({ "found_rps": rate });
                return Ok(with(self.figures(&runs, &setup, Some(setup.devices)), found));
            }
            Some(Search::Devices) => self.search_devices(setup.clone(), variant)?,
        };
        Ok(self.figures(&runs, &setup, devices))
    }

    /// The parts of the best rate at which each policy is looked at once the search is over; none where it isn't one
    /// for a rate.
    pub(crate) fn beside_peak(&self) -> &[f64] {
        match (self.experiment.run.search, self.experiment.run.times_peak) {
            (Some(Search::Goodput), None) => &self.experiment.run.beside_peak,
            _ => &[],
        }
    }

    /// What a policy that was found to carry `found` loses at parts of `best`, the highest rate that any policy
    /// carries. A search looks at rates near the boundary and believes that lower ones are easier. Where that isn't so,
    /// the policy carries no more than the highest rate below which everything that was measured holds, and these are
    /// its figures.
    pub(crate) fn beside(&self, variant: &Variant, figures: &Value, best: f64) -> Result<Value, LabError> {
        let mut setup = resolve::setup(&self.experiment, &self.folder, variant, 0)?;
        let found = summary::figure(figures, "found_rps").unwrap_or(0.0);
        let mut parts = self.beside_peak().to_vec();
        parts.sort_by(f64::total_cmp);
        let mut bad_at = Map::new();
        let mut points: Vec<MeasuredRate> = Vec::with_capacity(parts.len());
        for part in parts {
            let point = self.measure(&mut setup, variant, best * part)?;
            bad_at.insert(part.to_string(), json!(point.verdict.bad));
            points.push(point);
        }
        let seen: Vec<(f64, f64)> = points.iter().map(|point| (point.rate, point.verdict.judged)).collect();
        let collapse = search::collapse(found, self.experiment.run.max_bad, &seen);
        let beside = json!({ "bad_at": bad_at, "best_rps": best });
        let Some(Collapse { collapses_at, holds }) = collapse else { return Ok(with(figures.clone(), beside)) };
        let mut holds = holds.map(|index| points.swap_remove(index));
        for part in FAR_BELOW.into_iter().filter(|part| best * part < collapses_at) {
            if holds.is_some() {
                break;
            }
            let point = self.measure(&mut setup, variant, best * part)?;
            let few = !search::is_too_much(point.verdict.judged, self.experiment.run.max_bad);
            holds = Some(point).filter(|_| few);
        }
        let runs = match holds {
            Some(point) => point.runs,
            None => vec![self.once(&setup, variant, 0.0)?],
        };
        let lower = self.figures(&runs, &setup, Some(setup.devices));
        Ok(with(with(lower, beside), json!({ "found_rps": found, "collapses_at": collapses_at })))
    }

    /// All seeds at one rate, for as long as a search's last runs last.
    fn measure(&self, setup: &mut Setup, variant: &Variant, rate: f64) -> Result<MeasuredRate, LabError> {
        let (seconds, _) = self.span(setup, rate, RunEffort::Full);
        setup.horizon = Duration::from_secs_f64(self.experiment.run.warmup_seconds + seconds);
        let runs = self.plain(setup.clone(), variant, rate)?;
        Ok(MeasuredRate { rate, verdict: self.verdict(&runs), runs })
    }

    fn verdict(&self, runs: &[RunResult]) -> Verdict {
        Verdict::of(runs, self.experiment.run.max_bad, self.experiment.run.max_bad_of)
    }

    /// What no policy can exceed: `bound_rps`, or `bound_devices` where devices are searched for.
    pub(crate) fn bound(&self) -> Result<Option<Value>, LabError> {
        let (run, Some(first)) = (&self.experiment.run, self.variants.first()) else { return Ok(None) };
        // Shares of a device do more together than the whole does.
        if self.shared.is_some() {
            return Ok(None);
        }
        let setup = resolve::setup(&self.experiment, &self.folder, first, 0)?;
        let bound = bound::Bound::new(&setup, &self.workload, run.max_bad, run.max_bad_of);
        Ok(bound.and_then(|bound| match run.search? {
            Search::Goodput => Some(json!({ "bound_rps": bound.highest_rate() * (1.0 - run.max_bad) })),
            Search::Devices => Some(json!({ "bound_devices": bound.devices(self.workload.rate?).ceil() })),
        }))
    }

    /// Every seed at so many times the rate that a search finds, and how that compares with the peak.
    fn run_at(&self, times: f64, variant: &Variant, peaks: &Peaks) -> Result<Value, LabError> {
        let setup = resolve::setup(&self.experiment, &self.folder, variant, 0)?;
        let key = format!("{} {}", self.identity_of_peak, variant.identity());
        let place = peaks.0.lock().expect("nobody panics while holding it").entry(key).or_default().clone();
        // Held while it is searched for: who needs the same peak waits.
        let mut known = place.lock().expect("nobody panics while holding it");
        let peak = match *known {
            Some(peak) => peak,
            None => {
                let (rate, runs) = self.search_rate(setup.clone(), variant)?;
                let goodput = summary::figure(&self.figures(&runs, &setup, None), "goodput_rps").unwrap_or(0.0);
                *known.insert(Peak { rate, goodput })
            }
        };
        drop(known);
        let runs = self.plain(setup.clone(), variant, peak.rate * times)?;
        let all = self.figures(&runs, &setup, Some(setup.devices));
        let figure = |name: &str| summary::figure(&all, name).unwrap_or(0.0);
        let (goodput, idle) = (figure("goodput_rps"), 1.0 - figure("utilization"));
        let ideal = (1.0 - times).max(0.0);
        let more = json!({
            "peak_rps": peak.goodput,
            "goodput_of_peak": sim::ratio(goodput, peak.goodput),
            "idle": idle,
            "idle_off": (idle - ideal).abs(),
        });
        Ok(with(all, more))
    }

    /// Every seed at one rate.
    fn plain(&self, mut setup: Setup, variant: &Variant, rate: f64) -> Result<Vec<RunResult>, LabError> {
        let mut run = |&seed: &u64| {
            setup.seed = seed;
            self.once(&setup, variant, rate)
        };
        self.experiment.run.seeds.iter().map(&mut run).collect()
    }

    fn once(&self, setup: &Setup, variant: &Variant, rate: f64) -> Result<RunResult, LabError> {
        let divided = match (&self.shared, variant.shares) {
            (Some(shared), Some(way)) => {
                let rates = self.workload.model_rates(rate, setup);
                Some(shared.divide(setup, &self.experiment, way, &rates)?)
            }
            _ => None,
        };
        let setup = divided.as_ref().unwrap_or(setup);
        sim::run(setup, self.workload.traffic(rate, setup.seed)).map_err(|violation| LabError::Violation {
            policy: variant.label.clone(),
            seed: setup.seed,
            violation,
        })
    }

    /// The highest rate with at most `max_bad`, and the runs at it.
    fn search_rate(&self, mut setup: Setup, variant: &Variant) -> Result<(f64, Vec<RunResult>), LabError> {
        let run = &self.experiment.run;
        // Above this even perfect batches leave more than `max_bad` behind; 5 % for the luck of a short run.
        let shares = if variant.shares.is_some() { SHARES_GAIN } else { 1.0 };
        let ceiling = shares * self.workload.capacity(&setup) / (1.0 - run.max_bad).max(0.01) * 1.05;
        let goal = Goal { max_bad: run.max_bad, tolerance: run.tolerance, ceiling };
        let mut best: Option<(f64, Vec<RunResult>)> = None;
        search::highest_rate(goal, &self.ladder(&setup, ceiling), |effort, rate| {
            let (seen, runs) = self.attempt(&mut setup, variant, rate, effort)?;
            if effort == RunEffort::Full && seen.passes && best.as_ref().is_none_or(|(so_far, _)| rate > *so_far) {
                best = Some((rate, runs));
            }
            Ok(seen)
        })?;
        match best {
            Some(best) => Ok(best),
            // Even a trickle goes bad: the figures of a run in which nothing was asked.
            None => Ok((0.0, vec![self.once(&setup, variant, 0.0)?])),
        }
    }

    /// The runs with the fewest devices that carry the rate, and how many those are.
    fn search_devices(&self, mut setup: Setup, variant: &Variant) -> Result<(Vec<RunResult>, Option<u32>), LabError> {
        let rate = self.workload.rate.unwrap_or(0.0);
        let each = self.workload.capacity(&setup) / f64::from(setup.devices);
        // With fewer, even perfect batches leave too much behind.
        let least = (rate * (1.0 - self.experiment.run.max_bad) / each).ceil().max(1.0);
        let most = ((least * 100.0) as u32).min(MAX_DEVICES);
        let mut best: Option<(u32, Vec<RunResult>)> = None;
        search::fewest_devices((least * 1.1) as u32, most, |effort, devices| {
            setup.devices = devices;
            let (seen, runs) = self.attempt(&mut setup, variant, rate, effort)?;
            if effort == RunEffort::Full && seen.passes && best.as_ref().is_none_or(|(so_far, _)| devices < *so_far) {
                best = Some((devices, runs));
            }
            Ok(seen)
        })?;
        match best {
            Some((devices, runs)) => Ok((runs, Some(devices))),
            None => Ok((vec![self.once(&setup, variant, 0.0)?], None)),
        }
    }

    /// The rungs that are much cheaper than those after them, where rates are at most `rate`.
    fn ladder(&self, setup: &Setup, rate: f64) -> Vec<RunEffort> {
        let cost = |effort| {
            let (seconds, seeds) = self.span(setup, rate, effort);
            seconds * seeds as f64
        };
        let mut ladder = vec![RunEffort::Full];
        for effort in [RunEffort::Look, RunEffort::Glance] {
            if cost(effort) * WORTH_IT <= cost(ladder[0]) {
                ladder.insert(0, effort);
            }
        }
        ladder
    }

    /// How many seconds are measured after the warm-up, and how many seeds.
    fn span(&self, setup: &Setup, rate: f64, effort: RunEffort) -> (f64, usize) {
        let run = &self.experiment.run;
        let (mut whole, seeds) = (run.seconds - run.warmup_seconds, run.seeds.len());
        if let Some(events) = run.bad_events {
            let longest = run.max_seconds.unwrap_or(run.seconds) - run.warmup_seconds;
            whole = (events / (rate * run.max_bad * seeds as f64).max(1e-9)).max(LEAST_SECONDS).min(longest);
        }
        if let Some(most) = run.max_requests {
            whole = whole.min((most / rate.max(1e-9)).max(LEAST_SECONDS));
        }
        let objectives = setup.models.iter().map(|model| model.slo);
        let objectives = objectives.chain(setup.pipelines.iter().map(|pipeline| pipeline.slo));
        let longest = objectives.flatten().max().unwrap_or_default().as_secs_f64();
        let glance = (GLANCE_REQUESTS / rate.max(1e-9)).max(GLANCE_OBJECTIVES * longest).max(1.0).min(whole);
        match effort {
            RunEffort::Glance => (glance, 1),
            RunEffort::Look => ((whole * seeds as f64 * LOOK_PART).max(4.0 * glance).min(whole), 1),
            RunEffort::Full => (whole, seeds),
        }
    }

    /// Runs at one rate until it is clear that it can't pass, or to the end.
    fn attempt(
        &self,
        setup: &mut Setup,
        variant: &Variant,
        rate: f64,
        effort: RunEffort,
    ) -> Result<(RateResult, Vec<RunResult>), LabError> {
        let run = &self.experiment.run;
        let (seconds, seeds) = self.span(setup, rate, effort);
        setup.horizon = Duration::from_secs_f64(run.warmup_seconds + seconds);
        let allowed = (run.max_bad * rate * seconds * seeds as f64 * HOPELESS.0 + HOPELESS.1) as u64;
        let mut runs: Vec<RunResult> = Vec::new();
        for (index, &seed) in run.seeds[..seeds].iter().enumerate() {
            setup.seed = seed;
            setup.checked = effort == RunEffort::Full && index == 0;
            let so_far: u64 = runs.iter().map(|run| run.meter.total().bad()).sum();
            setup.give_up_after_bad = Some(allowed.saturating_sub(so_far));
            runs.push(self.once(setup, variant, rate)?);
            if runs[index].gave_up {
                break;
            }
        }
        let verdict = self.verdict(&runs);
        Ok((RateResult { bad: verdict.judged, passes: verdict.passes(run.max_bad) }, runs))
    }

    /// The figures of the runs of one rate, the mean over the seeds.
    fn figures(&self, runs: &[RunResult], setup: &Setup, devices: Option<u32>) -> Value {
        let each: Vec<Value> = runs.iter().map(|run| summary::of_run(run, setup)).collect();
        let verdict = self.verdict(runs);
        let mut figures =
            with(summary::mean(&each), json!({ "bad": verdict.bad, "bad_events": verdict.events, "devices": devices }));
        if setup.models.len() > 1 {
            figures = with(figures, json!({ "worst_bad": verdict.worst }));
        }
        match runs.first().and_then(summary::trace) {
            Some(trace) => with(figures, json!({ "trace": trace })),
            None => figures,
        }
    }
}

/// Adds figures to others; equal names are replaced.
pub(crate) fn with(mut figures: Value, more: Value) -> Value {
    if let (Value::Object(figures), Value::Object(more)) = (&mut figures, more) {
        figures.extend(more);
    }
    figures
}

fn without_times_peak(file: &toml::Table) -> toml::Table {
    let mut file = file.clone();
    if let Some(toml::Value::Table(run)) = file.get_mut("run") {
        run.remove("times_peak");
    }
    file
}

fn check_rate(experiment: &Experiment, workload: &Workload) -> Result<(), LabError> {
    let has_rate = workload.knows_rate();
    if let Some(times) = experiment.run.times_peak {
        resolve::not_negative("run.times_peak", times)?;
        if experiment.run.search != Some(Search::Goodput) {
            return Err(LabError::value("run.times_peak needs run.search = \"goodput\": what would it be times of?"));
        }
    }
    match experiment.run.search {
        None if workload.has_rate() && !has_rate => {
            Err(LabError::value("there is no rate: give workload.rate_rps, workload.load, or run.search = \"goodput\""))
        }
        Some(_) if !workload.has_rate() => {
            let message = "run.search has no rate to vary: every model has a rate or clients of its own";
            Err(LabError::value(message))
        }
        Some(Search::Devices) if workload.rate.is_none() => {
            Err(LabError::value("run.search = \"devices\" needs the rate to carry: give workload.rate_rps"))
        }
        Some(_) if experiment.elastic.is_some() => {
            Err(LabError::value("a search needs a fixed cluster: leave out [elastic] or run.search"))
        }
        _ => Ok(()),
    }
}

/// A value of the sweep as it is shown: a table by its name.
fn shown(value: &toml::Value) -> Value {
    match value.get("name") {
        Some(name) => json!(name),
        None => json!(value),
    }
}

/// The world as text: the file without what is only shown, and the contents of the files that it names.
fn identity(file: &toml::Table, folder: &Path) -> String {
    let mut world = file.clone();
    for shown in ["about", "plot", "claim", "compare", "policy"] {
        world.remove(shown);
    }
    if let Some(toml::Value::Table(run)) = world.get_mut("run") {
        for other in ["policies", "only", "sample", "kept", "columns", "beside_peak"] {
            run.remove(other);
        }
    }
    let mut text = world.to_string();
    let mut paths = Vec::new();
    named_files(&toml::Value::Table(world), &mut paths);
    for path in paths {
        let hash = blake3::hash(&std::fs::read(folder.join(&path)).unwrap_or_default());
        text.push_str(&format!("\n{path} {hash}"));
    }
    text
}

fn named_files(value: &toml::Value, paths: &mut Vec<String>) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                match value {
                    toml::Value::String(path) if key == "file" || key == "table" => paths.push(path.clone()),
                    value => named_files(value, paths),
                }
            }
        }
        toml::Value::Array(values) => values.iter().for_each(|value| named_files(value, paths)),
        _ => {}
    }
}
