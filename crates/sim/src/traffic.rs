//! From an experiment's workload to arrivals.

use crate::Error;
use crate::experiment::{ArrivalsConfig, Experiment, ModelConfig};
use crate::resolve::{millis, not_negative, positive, seconds};
use crate::setup::{Setup, Traffic};
use base::{Duration, LatencyProfile};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use workload::{
    ClosedLoop, FunctionTrace, OpenLoop, Process, RateCurve, RequestTrace, StandIn, Stream, Think, TraceError,
};

/// What a refused client waits where messages take no time.
const DEFAULT_BACKOFF: Duration = Duration::from_millis(1);

/// A workload whose files are read and whose values are checked; runs are made of it at any rate.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    groups: Vec<Group>,
    /// The share of each model, for those without a rate of their own.
    shares: Vec<f64>,
    recorded: Option<Recorded>,
    /// The rate that the file gives.
    pub(crate) rate: Option<f64>,
    minutes: u32,
}

#[derive(Clone, Debug)]
struct Group {
    first: u32,
    count: u32,
    arrivals: ArrivalsConfig,
    own: Option<OwnRate>,
    backoff: Duration,
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
    pub(crate) fn new(experiment: &Experiment, folder: &Path) -> Result<Self, Error> {
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
            groups.push(Group { first, count: model.count, arrivals, own: own_rate(model)?, backoff });
            first += model.count;
        }
        let sharing: usize =
            groups.iter().filter(|group| group.shares_the_rate()).map(|group| group.count as usize).sum();
        Ok(Self {
            shares: config.popularity.shares(sharing),
            recorded: recorded(&config.arrivals, folder)?,
            rate: config.rate_rps.map(|rate| positive("workload.rate_rps", rate)).transpose()?,
            minutes: (experiment.run.seconds / 60.0).ceil() as u32,
            groups,
        })
    }

    /// Whether the workload's rate matters to anybody.
    pub(crate) fn has_rate(&self) -> bool {
        self.groups.iter().any(Group::shares_the_rate) && !matches!(self.recorded, Some(Recorded::Regular(..)))
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
                let model = &setup.models[model as usize];
                per_request += shares.next().unwrap_or(&0.0) * cheapest(&model.spec.profile, model.slo, model.rows);
            }
        }
        f64::from(setup.devices) / per_request.max(1e-12)
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
            let Some(process) = group.process() else { continue };
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
        self.own.is_none() && !matches!(self.arrivals, ArrivalsConfig::Closed { .. })
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

fn check_arrivals(arrivals: &ArrivalsConfig) -> Result<(), Error> {
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

fn own_rate(model: &ModelConfig) -> Result<Option<OwnRate>, Error> {
    let key = |name: &str| format!("{name} of model {:?}", model.name);
    let count = f64::from(model.count.max(1));
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
            let steps: Result<Vec<_>, Error> = steps.iter().map(step).collect();
            (RateCurve::steps(steps?), Duration::ZERO, Duration::ZERO)
        }
        _ => {
            let message =
                format!("model {:?} must have one of rate_rps, rate_steps, or rate_rps with activation", model.name);
            return Err(Error::Value(message));
        }
    };
    Ok(Some(OwnRate { curve, first, every }))
}

fn recorded(arrivals: &ArrivalsConfig, folder: &Path) -> Result<Option<Recorded>, Error> {
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

fn read_trace(path: PathBuf) -> Result<Recorded, Error> {
    let open = || std::fs::File::open(&path).map(BufReader::new);
    let read = |source| Error::Read { path: path.clone(), source };
    let broken = |source| Error::Trace { path: path.clone(), source };
    match RequestTrace::read(open().map_err(read)?) {
        Ok(trace) => Ok(Recorded::Requests(Arc::new(trace))),
        Err(TraceError::Header { .. }) => {
            let trace = FunctionTrace::read(open().map_err(read)?).map_err(broken)?;
            Ok(Recorded::Functions(Arc::new(trace)))
        }
        Err(source) => Err(broken(source)),
    }
}

/// Seconds of device time for one request in the best batch that can make the objective.
fn cheapest(profile: &LatencyProfile, slo: Option<Duration>, rows: u32) -> f64 {
    let usable =
        profile.batches().iter().filter(|entry| entry.batch >= rows && slo.is_none_or(|slo| entry.median <= slo));
    let each = usable.map(|entry| entry.median.as_secs_f64() / f64::from(entry.batch / rows));
    each.fold(f64::INFINITY, f64::min)
}
