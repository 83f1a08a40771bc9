//! Runs an experiment: every policy, every point of its sweep, every seed, on all cores.

use crate::experiment::{Experiment, Search};
use crate::setup::Setup;
use crate::sweep::{self, Point};
use crate::traffic::Workload;
use crate::world::{self, Run};
use crate::{Error, resolve, summary};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use scheduler::PolicyKind;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A search gives a rate up once so many times `max_bad` went bad.
const HOPELESS: f64 = 2.0;
/// The part of the upper bound at which a search begins.
const FIRST_GUESS: f64 = 0.85;

/// A file that was read and checked.
#[derive(Debug)]
pub struct Campaign {
    /// As written, without the sweep's values.
    pub experiment: Experiment,
    points: Vec<Ready>,
    policies: Vec<PolicyKind>,
}

/// One point of the sweep.
#[derive(Debug)]
struct Ready {
    experiment: Experiment,
    workload: Workload,
    values: Map<String, Value>,
    folder: PathBuf,
}

/// One entry of the results.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The policy's name.
    pub policy: String,
    /// The sweep's values.
    pub point: Map<String, Value>,
    /// The figures, the mean over the seeds.
    pub figures: Value,
}

impl Outcome {
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
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::parse(&text, path)
    }

    /// Checks a text that stands, or could stand, at that path.
    pub fn parse(text: &str, path: &Path) -> Result<Self, Error> {
        let parse = |source| Error::Parse { path: path.to_owned(), source: Box::new(source) };
        // From the text, so that messages show the line.
        let experiment: Experiment = toml::from_str(text).map_err(parse)?;
        let table: toml::Table = toml::from_str(text).map_err(parse)?;
        let policies =
            experiment.run.policies.iter().map(|name| resolve::policy(name)).collect::<Result<Vec<_>, _>>()?;
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        let points = sweep::points(table)?.into_iter().map(|point| Ready::new(point, path, &folder, &policies));
        Ok(Self { points: points.collect::<Result<Vec<_>, _>>()?, experiment, policies })
    }

    /// Runs all of it; with a bar on standard error if that is a terminal and `progress` is set.
    pub fn run(&self, progress: bool) -> Result<Vec<Outcome>, Error> {
        let seeds = &self.experiment.run.seeds;
        let jobs = self.policies.len() * self.points.len() * seeds.len();
        let bar = bar(jobs as u64, progress);
        let done = parallel(jobs, |job| {
            let (entry, seed) = (job / seeds.len(), seeds[job % seeds.len()]);
            let (policy, point) = (self.policies[entry / self.points.len()], &self.points[entry % self.points.len()]);
            let figures = point.run(policy, seed);
            bar.inc(1);
            figures
        });
        bar.finish_and_clear();
        let figures = done.into_iter().collect::<Result<Vec<Value>, Error>>()?;
        let entry = |(index, figures): (usize, &[Value])| Outcome {
            policy: self.policies[index / self.points.len()].name().to_owned(),
            point: self.points[index % self.points.len()].values.clone(),
            figures: summary::mean(figures),
        };
        Ok(figures.chunks(seeds.len()).enumerate().map(entry).collect())
    }
}

fn bar(jobs: u64, progress: bool) -> ProgressBar {
    let target = if progress { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("simulating {bar:40} {pos} of {len} runs, {elapsed}, about {eta} to go");
    let bar = ProgressBar::with_draw_target(Some(jobs), target);
    bar.with_style(style.expect("the template is well-formed"))
}

/// The results of all jobs, in their order. Later jobs aren't begun after one has failed.
fn parallel<T: Send>(jobs: usize, job: impl Fn(usize) -> Result<T, Error> + Sync) -> Vec<Result<T, Error>> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, Result<T, Error>)>> = Mutex::new(Vec::with_capacity(jobs));
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

impl Ready {
    fn new(point: Point, path: &Path, folder: &Path, policies: &[PolicyKind]) -> Result<Self, Error> {
        let parse = |source| Error::Parse { path: path.to_owned(), source: Box::new(source) };
        let experiment: Experiment = point.file.try_into().map_err(parse)?;
        let workload = Workload::new(&experiment, folder)?;
        resolve::setup(&experiment, folder, policies[0], 0)?;
        if workload.has_rate()
            && experiment.run.search.is_none()
            && workload.rate.or(workload.recorded_rate()).is_none()
        {
            return Err(Error::value("there is no rate: give workload.rate_rps, or run.search = \"goodput\""));
        }
        if experiment.run.search.is_some() && !workload.has_rate() {
            let message = "run.search has no rate to vary: every model has a rate or clients of its own";
            return Err(Error::value(message));
        }
        let values = point.values.into_iter().map(|(key, value)| (key, json!(value))).collect();
        Ok(Self { experiment, workload, values, folder: folder.to_owned() })
    }

    fn run(&self, policy: PolicyKind, seed: u64) -> Result<Value, Error> {
        let setup = resolve::setup(&self.experiment, &self.folder, policy, seed)?;
        let run = match self.experiment.run.search {
            Some(Search::Goodput) => self.search(setup.clone(), policy, seed)?,
            None => {
                let rate = self.workload.rate.or(self.workload.recorded_rate()).unwrap_or(0.0);
                Some(self.once(&setup, policy, rate, seed)?)
            }
        };
        match run {
            Some(run) => Ok(summary::of_run(&run, &setup.groups)),
            // Even a trickle goes bad: the figures of a run in which nothing was asked.
            None => Ok(summary::of_run(&self.once(&setup, policy, 0.0, seed)?, &setup.groups)),
        }
    }

    fn once(&self, setup: &Setup, policy: PolicyKind, rate: f64, seed: u64) -> Result<Run, Error> {
        world::run(setup, self.workload.traffic(rate, seed)).map_err(|violation| Error::Violation {
            policy: policy.name().to_owned(),
            seed,
            violation,
        })
    }

    /// The run at the highest rate with at most `max_bad`, found by halving the interval below the analytic bound.
    fn search(&self, mut setup: Setup, policy: PolicyKind, seed: u64) -> Result<Option<Run>, Error> {
        let run = &self.experiment.run;
        let (mut low, mut best) = (0.0, None);
        // Above this even perfect batches leave more than `max_bad` behind; 5 % for the luck of a short run.
        let mut high = self.workload.capacity(&setup) / (1.0 - run.max_bad).max(0.01) * 1.05;
        let mut rate = high * FIRST_GUESS;
        while high - low > run.tolerance * high {
            setup.give_up_after_bad = Some((HOPELESS * run.max_bad * rate * run.seconds) as u64 + 100);
            let tried = self.once(&setup, policy, rate, seed)?;
            if !tried.gave_up && tried.meter.total().bad_fraction() <= run.max_bad {
                low = rate;
                best = Some(tried);
            } else {
                high = rate;
            }
            if best.is_none() && high < 1e-3 {
                break;
            }
            rate = (low + high) / 2.0;
        }
        Ok(best)
    }
}
