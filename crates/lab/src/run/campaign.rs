//! Runs an experiment: every policy at every point of its sweep, on all cores.

use crate::LabError;
use crate::run::experiment::Experiment;
use crate::run::ready_point::{Peaks, ReadyPoint, with};
use crate::run::store::{self, Kept, Reuse, Store};
use crate::run::sweep::{self, Selection};
use crate::run::variant::{self, Variant};
use crate::run::{models, summary};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// A file that was read and checked.
#[derive(Debug)]
pub struct Campaign {
    /// As written, without the sweep's values.
    pub experiment: Experiment,
    /// Its `[scheduler]`.
    scheduler: toml::Table,
    entries: Vec<ReadyPoint>,
    all_points: usize,
}

/// One entry of the results.
#[derive(Clone, Debug)]
pub struct PointOutcome {
    /// The policy's name.
    pub policy: String,
    /// The sweep's values.
    pub point: Map<String, Value>,
    /// The figures, the mean over the seeds.
    pub figures: Value,
    /// How long they took to find, in seconds of one core.
    pub took_s: f64,
}

impl PointOutcome {
    /// As one JSON object.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("policy".into(), json!(self.policy));
        if !self.point.is_empty() {
            object.insert("point".into(), Value::Object(self.point.clone()));
        }
        if let Value::Object(figures) = &self.figures {
            object.extend(figures.clone());
        }
        Value::Object(object)
    }

    /// The number at a path of keys joined by dots, among the figures or the sweep's values (where `true` is 1).
    pub fn figure(&self, path: &str) -> Option<f64> {
        let number = |value: &Value| value.as_f64().or(value.as_bool().map(|yes| f64::from(u8::from(yes))));
        self.point.get(path).and_then(number).or_else(|| summary::figure(&self.figures, path))
    }
}

impl Campaign {
    /// Reads and checks a file; nothing is run.
    pub fn read(path: &Path) -> Result<Self, LabError> {
        Self::select(path, &Selection::default())
    }

    /// Reads and checks a part of a file.
    pub fn select(path: &Path, selection: &Selection) -> Result<Self, LabError> {
        let text = std::fs::read_to_string(path).map_err(|reason| LabError::Read { path: path.to_owned(), reason })?;
        Self::parse_part(&text, path, selection)
    }

    /// Checks a text that stands, or could stand, at that path.
    pub fn parse(text: &str, path: &Path) -> Result<Self, LabError> {
        Self::parse_part(text, path, &Selection::default())
    }

    fn parse_part(text: &str, path: &Path, selection: &Selection) -> Result<Self, LabError> {
        let parse = |reason| LabError::Parse { path: path.to_owned(), reason: Box::new(reason) };
        // From the text, so that messages show the line.
        let mut experiment: Experiment = toml::from_str(text).map_err(parse)?;
        let table: toml::Table = toml::from_str(text).map_err(parse)?;
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        let mut selection = selection.clone();
        selection.complete(&experiment.run);
        let scheduler = table.get("scheduler").and_then(toml::Value::as_table).cloned().unwrap_or_default();
        let points = sweep::points(table)?;
        let all_points = points.len();
        let points = selection.of(points)?;
        let entries = points.into_iter().map(|point| ReadyPoint::new(point, path, &folder));
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        models::expand(&mut experiment, &folder)?;
        Ok(Self { experiment, scheduler, entries, all_points })
    }

    /// The same with so many of its points, drawn by chance, always the same ones.
    pub(crate) fn drawn(mut self, count: usize) -> Self {
        sweep::draw(&mut self.entries, count);
        self
    }

    /// What isn't as the server has it by default.
    pub(crate) fn unlike_the_server(&self) -> Vec<String> {
        variant::unlike_the_server(&self.experiment, &self.scheduler)
    }

    /// How many points of the sweep are run.
    pub(crate) fn points(&self) -> usize {
        self.entries.len()
    }

    /// How many points the sweep has.
    pub(crate) fn all_points(&self) -> usize {
        self.all_points
    }

    /// How long each run is.
    pub(crate) fn seconds(&self) -> f64 {
        self.entries.first().map_or(0.0, ReadyPoint::seconds)
    }

    /// Above how many requests runs are cut.
    pub(crate) fn max_requests(&self) -> Option<f64> {
        self.entries.first().and_then(ReadyPoint::max_requests)
    }

    /// How many seeds there are.
    pub(crate) fn seeds(&self) -> usize {
        self.entries.first().map_or(0, ReadyPoint::seeds)
    }

    /// How many entries the results will have.
    pub fn len(&self) -> usize {
        self.entries.iter().map(|entry| entry.variants.len()).sum()
    }

    /// Whether there is nothing to run.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Runs all of it; with a bar on standard error if that is a terminal and `progress` is set.
    pub fn run(&self, progress: bool) -> Result<Vec<PointOutcome>, LabError> {
        self.run_or_reuse(progress, &Reuse::default())
    }

    /// Runs what isn't in the file of results, and adds it there.
    pub fn run_or_reuse(&self, progress: bool, reuse: &Reuse) -> Result<Vec<PointOutcome>, LabError> {
        let store = Store::open(reuse)?;
        let policies = self.entries.first().map_or(0, |entry| entry.variants.len());
        // Policy by policy, as tables are read.
        let all: Vec<(&ReadyPoint, &Variant)> = (0..policies)
            .flat_map(|policy| self.entries.iter().map(move |entry| (entry, &entry.variants[policy])))
            .collect();
        let peaks = Peaks::default();
        let jobs = all.iter().map(|(entry, variant)| Job { entry, label: &variant.label, what: variant.identity() });
        let jobs: Vec<Job<'_>> = jobs.collect();
        let mut kept = run_jobs(&jobs, &store, progress, |job| {
            let (entry, variant) = all[job];
            Ok(self.figures_to_keep(entry.run(variant, &peaks)?))
        })?;
        if self.wants("bad_at") {
            self.look_beside(&all, &mut kept, &store, progress)?;
        }
        if self.experiment.run.search.is_some() && self.wants("bound_rps") {
            self.add_bounds(&all, &mut kept, &store)?;
        }
        let outcome = |(&(entry, variant), kept): (&(&ReadyPoint, &Variant), Kept)| PointOutcome {
            policy: variant.label.clone(),
            point: entry.values.clone(),
            figures: kept.figures,
            took_s: kept.took_s,
        };
        Ok(all.iter().zip(kept).map(outcome).collect())
    }

    /// What each policy loses at parts of the highest rate that any policy carries at the same point of the sweep.
    fn look_beside(
        &self,
        all: &[(&ReadyPoint, &Variant)],
        kept: &mut [Kept],
        store: &Store,
        progress: bool,
    ) -> Result<(), LabError> {
        let mut best: HashMap<&str, f64> = HashMap::new();
        for ((entry, _), kept) in all.iter().zip(kept.iter()) {
            let found = summary::figure(&kept.figures, "found_rps").unwrap_or(0.0);
            let best = best.entry(&entry.identity).or_default();
            *best = best.max(found);
        }
        let looked_at = |index: &usize| {
            let entry = all[*index].0;
            !entry.beside_peak().is_empty() && best[entry.identity.as_str()] > 0.0
        };
        let places: Vec<usize> = (0..all.len()).filter(looked_at).collect();
        let job = |&index: &usize| {
            let (entry, variant) = all[index];
            let at = (best[entry.identity.as_str()], entry.beside_peak());
            Job { entry, label: &variant.label, what: format!("{} beside {at:?}", variant.identity()) }
        };
        let jobs: Vec<Job<'_>> = places.iter().map(job).collect();
        let found: Vec<Value> = places.iter().map(|&index| kept[index].figures.clone()).collect();
        let beside = run_jobs(&jobs, store, progress, |job| {
            let (entry, variant) = all[places[job]];
            let figures = entry.beside(variant, &found[job], best[entry.identity.as_str()])?;
            Ok(self.figures_to_keep(figures))
        })?;
        for (&index, beside) in places.iter().zip(beside) {
            kept[index] = Kept { took_s: kept[index].took_s + beside.took_s, ..beside };
        }
        Ok(())
    }

    /// What no policy can exceed at each point, and which part of it each reaches.
    fn add_bounds(&self, all: &[(&ReadyPoint, &Variant)], kept: &mut [Kept], store: &Store) -> Result<(), LabError> {
        let jobs = all.iter().map(|(entry, _)| Job { entry, label: "bound", what: "bound".into() });
        let jobs: Vec<Job<'_>> = jobs.collect();
        let bounds = run_jobs(&jobs, store, false, |job| Ok(all[job].0.bound()?.unwrap_or(Value::Null)))?;
        for (kept, bound) in kept.iter_mut().zip(bounds) {
            let figure = |figures: &Value, name: &str| summary::figure(figures, name);
            if let (Some(bound), Some(goodput)) =
                (figure(&bound.figures, "bound_rps"), figure(&kept.figures, "goodput_rps"))
            {
                let part = json!({ "of_bound": sim::ratio(goodput, bound) });
                kept.figures = with(std::mem::take(&mut kept.figures), part);
            }
            kept.figures = with(std::mem::take(&mut kept.figures), bound.figures);
        }
        Ok(())
    }

    /// What no policy can exceed, at each point of the sweep.
    pub fn bounds(&self) -> Result<Vec<PointOutcome>, LabError> {
        if self.experiment.run.search.is_none() {
            return Err(LabError::value("there is a bound only for what is searched for: give run.search"));
        }
        let bounds = parallel(self.entries.len(), |index| self.entries[index].bound());
        let outcome = |(entry, bound): (&ReadyPoint, Result<Option<Value>, LabError>)| {
            Ok(PointOutcome {
                policy: "bound".into(),
                point: entry.values.clone(),
                figures: bound?.unwrap_or(json!({})),
                took_s: 0.0,
            })
        };
        self.entries.iter().zip(bounds).map(outcome).collect()
    }

    /// Whether anybody looks at this figure: of a large sweep only those that the file names are kept.
    fn wants(&self, figure: &str) -> bool {
        let kept = &self.experiment.run.kept;
        kept.is_empty() || kept.iter().any(|name| name.split('.').next() == Some(figure))
    }

    /// Of a large sweep, only the figures that the file names.
    fn figures_to_keep(&self, figures: Value) -> Value {
        let kept = &self.experiment.run.kept;
        match figures {
            Value::Object(mut all) if !kept.is_empty() => {
                let own = ["found_rps"];
                all.retain(|key, _| {
                    own.contains(&key.as_str()) || kept.iter().any(|name| name.split('.').next() == Some(key))
                });
                Value::Object(all)
            }
            all => all,
        }
    }
}

/// Something to find out about an entry; the same of the same world is found once.
struct Job<'a> {
    entry: &'a ReadyPoint,
    label: &'a str,
    what: String,
}

/// Takes each from the store, or runs it and puts it there. Results are in the order of the jobs.
fn run_jobs(
    all: &[Job<'_>],
    store: &Store,
    progress: bool,
    run: impl Fn(usize) -> Result<Value, LabError> + Sync,
) -> Result<Vec<Kept>, LabError> {
    let keys: Vec<String> = all.iter().map(|job| store::key(&job.entry.identity, &job.what)).collect();
    let mut place: HashMap<&str, usize> = HashMap::new();
    let mut jobs: Vec<usize> = Vec::new();
    for (index, key) in keys.iter().enumerate() {
        if store.get(key).is_none() && !place.contains_key(key.as_str()) {
            place.insert(key, jobs.len());
            jobs.push(index);
        }
    }
    let bar = bar(jobs.len() as u64, progress);
    let done = parallel(jobs.len(), |job| {
        let index = jobs[job];
        let began = Instant::now();
        let kept = Kept { figures: run(index)?, took_s: began.elapsed().as_secs_f64() };
        store.put(&keys[index], all[index].label, &all[index].entry.values, &kept)?;
        bar.inc(1);
        Ok(kept)
    });
    bar.finish_and_clear();
    let done = done.into_iter().collect::<Result<Vec<Kept>, LabError>>()?;
    Ok(keys.iter().map(|key| store.get(key).unwrap_or_else(|| &done[place[key.as_str()]]).clone()).collect())
}

fn bar(jobs: u64, progress: bool) -> ProgressBar {
    let target = if progress { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("simulating {bar:40} {pos} of {len} runs, {elapsed}, about {eta} to go");
    let bar = ProgressBar::with_draw_target(Some(jobs), target);
    bar.with_style(style.expect("the template is well-formed"))
}

/// The results of all jobs, in their order. Later jobs aren't begun after one has failed.
pub fn parallel<T: Send>(jobs: usize, job: impl Fn(usize) -> Result<T, LabError> + Sync) -> Vec<Result<T, LabError>> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, Result<T, LabError>)>> = Mutex::new(Vec::with_capacity(jobs));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(jobs);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= jobs {
                        return;
                    }
                    let result = job(index);
                    if result.is_err() {
                        next.store(jobs, Ordering::Relaxed);
                    }
                    results.lock().expect("nobody panics while holding it").push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("nobody panics while holding it");
    results.sort_by_key(|&(index, _)| index);
    results.into_iter().map(|(_, result)| result).collect()
}
