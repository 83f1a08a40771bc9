//! From an experiment's workload to arrivals.

use crate::LabError;
use crate::run::experiment::{ArrivalsConfig, Experiment, ModelConfig, RateWave};
use crate::run::resolve::{millis, not_negative, positive, seconds};
use base::{Duration, LatencyProfile};
use scheduler::StageSpec;
use sim::{ModelSetup, PipelineSetup, Setup, Traffic};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use workload::{
    ClosedLoop, FunctionTrace, OpenLoop, Process, RateCurve, RequestTrace, StandIn, Stream, Think, TraceError,
};

/// What a refused client waits where messages take no time.
const DEFAULT_BACKOFF: Duration = Duration::from_millis(1);
/// A wave is drawn in so many steps for each period, for so many periods.
const WAVE_STEPS: f64 = 60.0;
const WAVES: u32 = 100;

/// A workload whose files are read and whose values are checked; runs are made of it at any rate.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    groups: Vec<Group>,
    /// The share of each model, for those without a rate of their own.
    shares: Vec<f64>,
    recorded: Option<Recorded>,
    /// The rate that the file gives.
    pub(crate) rate: Option<f64>,
    /// The rate instead, as a multiple of what the devices could answer one by one.
    load: Option<f64>,
    minutes: u32,
}

#[derive(Clone, Debug)]
struct Group {
    first: u32,
    count: u32,
    arrivals: ArrivalsConfig,
    own: Option<OwnRate>,
    backoff: Duration,
    /// Models that only pipelines ask for.
    only_stages: bool,
}

/// A rate that doesn't come from the workload's.
#[derive(Clone, Debug)]
struct OwnRate {
    /// The rate of one model of the group.
    curve: RateCurve,
    /// Models start one after the other, if they do.
    first: Duration,
    every: Duration,
}

#[derive(Clone, Debug)]
enum Recorded {
    Requests(Arc<RequestTrace>),
    Functions(Arc<FunctionTrace>),
    StandIn(u32),
    /// The gap between two requests of a model, and the numbers of those that don't come.
    Regular(Duration, Arc<[u64]>),
}

impl Workload {
    pub(crate) fn new(experiment: &Experiment, folder: &Path) -> Result<Self, LabError> {
        let config = &experiment.workload;
        if let workload::Popularity::Zipf { exponent } = config.popularity {
            not_negative("workload.popularity.exponent", exponent)?;
        }
        let backoff = Duration::from_millis_f64(experiment.network.control_us / 500.0).max(DEFAULT_BACKOFF);
        let mut groups = Vec::new();
        let mut first = 0;
        for model in &experiment.models {
            let arrivals = model.arrivals.clone().unwrap_or_else(|| config.arrivals.clone());
            check_arrivals(&arrivals)?;
            let own = own_rate(model)?;
            let only_stages = own.is_none() && !experiment.pipelines.is_empty();
            groups.push(Group { first, count: model.count, arrivals, own, backoff, only_stages });
            first += model.count;
        }
        for _ in &experiment.pipelines {
            let arrivals = config.arrivals.clone();
            check_arrivals(&arrivals)?;
            groups.push(Group { first, count: 1, arrivals, own: None, backoff, only_stages: false });
            first += 1;
        }
        let sharing: usize =
            groups.iter().filter(|group| group.shares_the_rate()).map(|group| group.count as usize).sum();
        let asked: f64 = experiment.pipelines.iter().map(|pipeline| pipeline.share).sum();
        let shares = match experiment.pipelines.is_empty() {
            true => config.popularity.shares(sharing),
            false => experiment.pipelines.iter().map(|pipeline| pipeline.share / asked).collect(),
        };
        Ok(Self {
            shares,
            recorded: recorded(&config.arrivals, folder)?,
            rate: config.rate_rps.map(|rate| positive("workload.rate_rps", rate)).transpose()?,
            load: config.load.map(|load| positive("workload.load", load)).transpose()?,
            minutes: (experiment.run.max_seconds.unwrap_or(0.0).max(experiment.run.seconds) / 60.0).ceil() as u32,
            groups,
        })
    }

    /// Whether the workload's rate matters to anybody.
    pub(crate) fn has_rate(&self) -> bool {
        self.groups.iter().any(Group::shares_the_rate) && !matches!(self.recorded, Some(Recorded::Regular(..)))
    }

    /// Whether every model has a share of the workload's rate, and its clients wait for nobody.
    pub(crate) fn all_share_the_rate(&self) -> bool {
        self.has_rate() && self.groups.iter().all(Group::shares_the_rate)
    }

    /// The share of the rate of each model that has one, where that isn't a record's.
    pub(crate) fn shares(&self) -> Option<&[f64]> {
        self.recorded.is_none().then_some(&self.shares)
    }

    /// The rate at which a trace was recorded.
    pub(crate) fn recorded_rate(&self) -> Option<f64> {
        match self.recorded.as_ref()? {
            Recorded::Requests(trace) => Some(trace.rate()),
            Recorded::Functions(trace) => Some(trace.rate()),
            Recorded::StandIn(_) => None,
            Recorded::Regular(every, _) => Some(self.shares.len() as f64 / every.as_secs_f64()),
        }
    }

    /// The highest rate that the devices could serve in time if every batch were full: no search need look above.
    pub(crate) fn capacity(&self, setup: &Setup) -> f64 {
        let mut shares = self.shares.iter();
        let mut per_request = 0.0;
        for group in self.groups.iter().filter(|group| group.shares_the_rate()) {
            for model in group.first..group.first + group.count {
                let share = shares.next().unwrap_or(&0.0);
                per_request += share
                    * match (model as usize).checked_sub(setup.models.len()) {
                        None => {
                            let model = &setup.models[model as usize];
                            cheapest(&model.spec.profile, model.slo, model.rows)
                        }
                        Some(pipeline) => cheapest_whole(setup, &setup.pipelines[pipeline]),
                    };
            }
        }
        f64::from(setup.devices) / per_request.max(1e-12)
    }

    /// The rate of a plain run.
    pub(crate) fn plain_rate(&self, setup: &Setup) -> f64 {
        let alone = |model: &ModelSetup| match &model.inputs {
            Some(inputs) => inputs.mean_ms() / 1e3,
            None => model.spec.profile.batches()[0].median.as_secs_f64(),
        };
        let mut shares = self.shares.iter();
        let sharing = self.groups.iter().filter(|group| group.shares_the_rate());
        let models = sharing.flat_map(|group| group.first..group.first + group.count);
        let of_model = |model: u32| match (model as usize).checked_sub(setup.models.len()) {
            None => alone(&setup.models[model as usize]),
            Some(pipeline) => {
                let stages = setup.pipelines[pipeline].spec.stages.iter();
                stages.map(|stage| stage.calls * alone(&setup.models[stage.model.index()])).sum()
            }
        };
        let each: f64 = models.map(|model| shares.next().unwrap_or(&0.0) * of_model(model)).sum();
        let loaded = self.load.map(|load| load * f64::from(setup.devices) / each.max(1e-12));
        loaded.or(self.rate).or(self.recorded_rate()).unwrap_or(0.0)
    }

    /// How often each model is asked for, in the end, at that rate; at the beginning, where that changes.
    pub(crate) fn model_rates(&self, rate: f64, setup: &Setup) -> Vec<f64> {
        let mut rates = vec![0.0; setup.models.len()];
        let mut shares = self.shares.iter();
        for group in &self.groups {
            for model in group.first..group.first + group.count {
                let each = match &group.own {
                    Some(own) => own.curve.rate(Duration::ZERO),
                    None if group.shares_the_rate() => rate * shares.next().unwrap_or(&0.0),
                    None => 0.0,
                };
                match (model as usize).checked_sub(setup.models.len()) {
                    None => rates[model as usize] += each,
                    Some(pipeline) => {
                        for stage in &setup.pipelines[pipeline].spec.stages {
                            rates[stage.model.index()] += each * stage.calls;
                        }
                    }
                }
            }
        }
        rates
    }

    /// Whether a plain run knows how often requests come.
    pub(crate) fn knows_rate(&self) -> bool {
        self.load.is_some() || self.rate.is_some() || self.recorded_rate().is_some()
    }

    /// The arrivals at that rate for all models that share it.
    pub(crate) fn traffic(&self, rate: f64, seed: u64) -> Traffic {
        let open: Option<Box<dyn Iterator<Item = workload::Arrival> + Send>> = match &self.recorded {
            Some(Recorded::Requests(trace)) => Some(Box::new(trace.replay(&self.shares, trace.rate() / rate, seed))),
            Some(Recorded::Functions(trace)) => Some(functions(trace.clone(), self.shares.len() as u32, rate, seed)),
            Some(Recorded::StandIn(count)) => {
                let day = StandIn { functions: *count, minutes: self.minutes, rate, seed };
                Some(functions(Arc::new(day.generate()), self.shares.len() as u32, rate, seed))
            }
            Some(Recorded::Regular(every, skip)) => Some(regular(*every, skip.clone(), self.shares.len() as u32)),
            None => self.streams(rate, seed),
        };
        Traffic { open, closed: self.closed(seed) }
    }

    fn streams(&self, rate: f64, seed: u64) -> Option<Box<dyn Iterator<Item = workload::Arrival> + Send>> {
        let shared = RateCurve::constant(rate);
        let mut shares = self.shares.iter();
        let mut streams = Vec::new();
        for group in &self.groups {
            let Some(process) = group.process().filter(|_| !group.only_stages) else { continue };
            for index in 0..group.count {
                let model = group.first + index;
                streams.push(match &group.own {
                    Some(own) => Stream {
                        model,
                        process,
                        curve: own.curve.clone(),
                        share: 1.0,
                        starts_at: own.first + own.every * u64::from(index),
                    },
                    None => Stream {
                        model,
                        process,
                        curve: shared.clone(),
                        share: shares.next().copied().unwrap_or(0.0),
                        starts_at: Duration::ZERO,
                    },
                });
            }
        }
        if streams.is_empty() { None } else { Some(Box::new(OpenLoop::new(streams, seed))) }
    }

    fn closed(&self, seed: u64) -> Option<ClosedLoop> {
        let mut clients = Vec::new();
        let mut manner = None;
        for group in &self.groups {
            if let ArrivalsConfig::Closed { clients: each, think_ms, backoff_ms } = group.arrivals {
                clients.extend((0..group.count).map(|index| (group.first + index, each)));
                let think =
                    if think_ms > 0.0 { Think::Exponential(Duration::from_millis_f64(think_ms)) } else { Think::None };
                let backoff = backoff_ms.map_or(group.backoff, Duration::from_millis_f64);
                manner = Some((think, backoff.max(Duration::from_nanos(1))));
            }
        }
        manner.map(|(think, backoff)| ClosedLoop::new(clients, think, backoff, seed))
    }
}

impl Group {
    fn process(&self) -> Option<Process> {
        match self.arrivals {
            ArrivalsConfig::Uniform {} => Some(Process::Uniform),
            ArrivalsConfig::Poisson {} => Some(Process::Poisson),
            ArrivalsConfig::Gamma { shape } => Some(Process::Gamma { shape }),
            ArrivalsConfig::Closed { .. }
            | ArrivalsConfig::Regular { .. }
            | ArrivalsConfig::Trace { .. }
            | ArrivalsConfig::StandIn { .. } => None,
        }
    }

    fn shares_the_rate(&self) -> bool {
        self.own.is_none() && !self.only_stages && !matches!(self.arrivals, ArrivalsConfig::Closed { .. })
    }
}

/// Every model's request `i`, counted from 1, at `(i - 1) * every`, except those to skip.
fn regular(every: Duration, skip: Arc<[u64]>, models: u32) -> Box<dyn Iterator<Item = workload::Arrival> + Send> {
    let numbers = (1u64..).filter(move |number| !skip.contains(number));
    Box::new(numbers.flat_map(move |number| {
        (0..models).map(move |model| workload::Arrival { offset: every * (number - 1), model })
    }))
}

fn functions(
    trace: Arc<FunctionTrace>,
    models: u32,
    rate: f64,
    seed: u64,
) -> Box<dyn Iterator<Item = workload::Arrival> + Send> {
    let factor = rate / trace.rate().max(1e-12);
    Box::new(trace.replay(models, factor, seed))
}

fn check_arrivals(arrivals: &ArrivalsConfig) -> Result<(), LabError> {
    match arrivals {
        ArrivalsConfig::Gamma { shape } => drop(positive("arrivals.shape", *shape)?),
        ArrivalsConfig::Closed { clients, think_ms, backoff_ms } => {
            positive("arrivals.clients", f64::from(*clients))?;
            not_negative("arrivals.think_ms", *think_ms)?;
            backoff_ms.map(|backoff| millis("arrivals.backoff_ms", backoff)).transpose()?;
        }
        ArrivalsConfig::StandIn { functions } => drop(positive("arrivals.functions", f64::from(*functions))?),
        ArrivalsConfig::Regular { every_ms, .. } => drop(positive("arrivals.every_ms", *every_ms)?),
        ArrivalsConfig::Uniform {} | ArrivalsConfig::Poisson {} | ArrivalsConfig::Trace { .. } => {}
    }
    Ok(())
}

fn own_rate(model: &ModelConfig) -> Result<Option<OwnRate>, LabError> {
    let key = |name: &str| format!("{name} of model {:?}", model.name);
    let count = f64::from(model.count.max(1));
    if let Some(wave) = &model.rate_wave {
        if model.rate_rps.is_some() || model.rate_steps.is_some() || model.activation.is_some() {
            return Err(LabError::value(format!(
                "model {:?} must have rate_wave or another rate, not both",
                model.name
            )));
        }
        let curve = wave_curve(wave, model, key)?;
        return Ok(Some(OwnRate { curve, first: Duration::ZERO, every: Duration::ZERO }));
    }
    let (curve, first, every) = match (model.rate_rps, &model.rate_steps, model.activation) {
        (None, None, None) => return Ok(None),
        (Some(rate), None, Some(activation)) => {
            let rate = not_negative(&key("rate_rps"), rate)?;
            let first = seconds(&key("activation.first_s"), activation.first_s)?;
            let every = seconds(&key("activation.every_s"), activation.every_s)?;
            (RateCurve::spread(rate, model.count, first, every), first, every)
        }
        (Some(rate), None, None) => {
            let rate = not_negative(&key("rate_rps"), rate)?;
            (RateCurve::constant(rate / count), Duration::ZERO, Duration::ZERO)
        }
        (None, Some(steps), None) => {
            let step = |&(at, rate): &(f64, f64)| {
                Ok((seconds(&key("rate_steps"), at)?, not_negative(&key("rate_steps"), rate)? / count))
            };
            let steps: Result<Vec<_>, LabError> = steps.iter().map(step).collect();
            (RateCurve::steps(steps?), Duration::ZERO, Duration::ZERO)
        }
        _ => {
            let message =
                format!("model {:?} must have one of rate_rps, rate_steps, or rate_rps with activation", model.name);
            return Err(LabError::Value(message));
        }
    };
    Ok(Some(OwnRate { curve, first, every }))
}

/// A wave as steps, for as long as anybody would simulate.
fn wave_curve(wave: &RateWave, model: &ModelConfig, key: impl Fn(&str) -> String) -> Result<RateCurve, LabError> {
    let mean = not_negative(&key("rate_wave.mean_rps"), wave.mean_rps)?;
    let period = positive(&key("rate_wave.period_s"), wave.period_s)?;
    if !(0.0..=1.0).contains(&wave.swing) {
        return Err(LabError::value(format!("{} is {}: give 0 to 1", key("rate_wave.swing"), wave.swing)));
    }
    let (row, rows) = model.row;
    let low = not_negative(&key("rate_wave.low_s"), wave.low_s)?
        + not_negative(&key("rate_wave.spread"), wave.spread)? * period * row as f64 / rows.max(1) as f64;
    let each = mean / (rows.max(1) as f64 * f64::from(model.count.max(1)));
    let step = period / WAVE_STEPS;
    let rate = |at: f64| each * (1.0 - wave.swing * libm::cos((at - low) / period * std::f64::consts::TAU));
    let steps = (0..WAVES * WAVE_STEPS as u32).map(|index| f64::from(index) * step);
    Ok(RateCurve::steps(steps.map(|at| (Duration::from_secs_f64(at), rate(at + step / 2.0)))))
}

fn recorded(arrivals: &ArrivalsConfig, folder: &Path) -> Result<Option<Recorded>, LabError> {
    match arrivals {
        ArrivalsConfig::StandIn { functions } => Ok(Some(Recorded::StandIn(*functions))),
        ArrivalsConfig::Trace { file } => read_trace(folder.join(file)).map(Some),
        ArrivalsConfig::Regular { every_ms, skip } => {
            let every = Duration::from_millis_f64(*every_ms).max(Duration::from_nanos(1));
            Ok(Some(Recorded::Regular(every, skip.as_slice().into())))
        }
        ArrivalsConfig::Uniform {}
        | ArrivalsConfig::Poisson {}
        | ArrivalsConfig::Gamma { .. }
        | ArrivalsConfig::Closed { .. } => Ok(None),
    }
}

fn read_trace(path: PathBuf) -> Result<Recorded, LabError> {
    let open = || std::fs::File::open(&path).map(BufReader::new);
    let read = |reason| LabError::Read { path: path.clone(), reason };
    let broken = |reason| LabError::Trace { path: path.clone(), reason };
    match RequestTrace::read(open().map_err(read)?) {
        Ok(trace) => Ok(Recorded::Requests(Arc::new(trace))),
        Err(TraceError::Header { .. }) => {
            let trace = FunctionTrace::read(open().map_err(read)?).map_err(broken)?;
            Ok(Recorded::Functions(Arc::new(trace)))
        }
        Err(source) => Err(broken(source)),
    }
}

/// Seconds of device time for one request for a pipeline, if every stage had all of its time.
fn cheapest_whole(setup: &Setup, pipeline: &PipelineSetup) -> f64 {
    let each =
        |stage: &StageSpec| stage.calls * cheapest(&setup.models[stage.model.index()].spec.profile, pipeline.slo, 1);
    pipeline.spec.stages.iter().map(each).sum()
}

/// Seconds of device time for one request in the best batch that can make the objective.
fn cheapest(profile: &LatencyProfile, slo: Option<Duration>, rows: u32) -> f64 {
    let usable =
        profile.batches().iter().filter(|entry| entry.batch >= rows && slo.is_none_or(|slo| entry.median <= slo));
    let each = usable.map(|entry| entry.median.as_secs_f64() / f64::from(entry.batch / rows));
    each.fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(models: &str) -> Result<Workload, String> {
        let text = format!("{models}\n[devices]\n[run]\npolicies = [\"clockwork\"]\nseconds = 100\n");
        let mut experiment: Experiment = toml::from_str(&text).unwrap();
        crate::run::models::expand(&mut experiment, Path::new("")).map_err(|error| error.to_string())?;
        Workload::new(&experiment, Path::new("")).map_err(|error| error.to_string())
    }

    const MODEL: &str = "[[model]]\nname = \"a\"\nlatency = { alpha_ms = 1, beta_ms = 1 }\n";

    #[test]
    fn regular_requests_come_as_they_are_numbered() {
        let model = format!("{MODEL}count = 2\n[workload]\n");
        let workload = workload(&format!("{model}arrivals = {{ process = \"regular\", every_ms = 0.75, skip = [2] }}"));
        let arrivals: Vec<(u64, u32)> = workload
            .unwrap()
            .traffic(1.0, 1)
            .open
            .unwrap()
            .take(6)
            .map(|arrival| (arrival.offset.as_nanos() / 1000, arrival.model))
            .collect();
        assert_eq!(arrivals, [(0, 0), (0, 1), (1500, 0), (1500, 1), (2250, 0), (2250, 1)]);
    }

    #[test]
    fn waves_rise_and_fall() {
        let wave = "rate_wave = { mean_rps = 1000, swing = 0.8, period_s = 40 }";
        let arrivals = workload(&format!("{MODEL}{wave}")).unwrap().traffic(0.0, 1).open.unwrap();
        let mut seconds = [0u32; 80];
        for arrival in arrivals.take_while(|arrival| arrival.offset < Duration::from_secs(80)) {
            seconds[(arrival.offset.as_nanos() / 1_000_000_000) as usize] += 1;
        }
        assert!((100..320).contains(&seconds[0]) && (100..320).contains(&seconds[40]), "low: {seconds:?}");
        assert!((1650..1950).contains(&seconds[20]), "high: {seconds:?}");
        assert!((f64::from(seconds.iter().sum::<u32>()) / 80_000.0 - 1.0).abs() < 0.02);
        let wrong = workload(&format!("{MODEL}{wave}\nrate_rps = 5")).unwrap_err();
        assert!(wrong.contains("must have rate_wave or another rate"), "{wrong}");
    }
}
