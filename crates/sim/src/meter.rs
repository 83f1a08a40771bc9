//! What a run measures.

use crate::quantiles::{QuantileSummary, Quantiles};
use crate::series::Series;
use base::{Duration, Reason, Timestamp};
use scheduler::{Execution, Load, Outcome};
use serde::Serialize;

/// Requests that were refused, by the position of the reason in `Reason::ALL`.
pub type RefusalCounts = [u64; Reason::ALL.len()];

/// The reasons for which requests were refused, and how many were.
pub fn by_reason(refused: RefusalCounts) -> impl Iterator<Item = (&'static str, u64)> {
    Reason::ALL.map(Reason::name).into_iter().zip(refused).filter(|&(_, count)| count > 0)
}

/// How a request ended, as a client sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RequestEnding {
    Good,
    Late,
    Failed,
    Cancelled,
    Refused(Reason),
}

impl RequestEnding {
    pub(crate) fn of(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => Self::Good,
            Outcome::Late => Self::Late,
            Outcome::Failed => Self::Failed,
            Outcome::Cancelled => Self::Cancelled,
            Outcome::Rejected(rejection) => Self::Refused(rejection.reason()),
        }
    }
}

/// A request that is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) model: usize,
    pub(crate) group: usize,
    pub(crate) sent_at: Timestamp,
    pub(crate) deadline_at: Timestamp,
    /// When the client has its answer.
    pub(crate) answered_at: Timestamp,
    /// When the outputs were there, where it was executed, in time or not.
    pub(crate) executed_at: Option<Timestamp>,
    pub(crate) cold: bool,
    pub(crate) ending: RequestEnding,
    /// Device time that was spent on it, where it was for a pipeline.
    pub(crate) work: Duration,
}

/// How many requests of one model are over, and how many of them went bad. Those whose client went away don't count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Good or bad.
    pub ended: u64,
    /// Bad.
    pub bad: u64,
}

impl Count {
    /// Counts another run's as well.
    pub fn add(&mut self, other: Self) {
        self.ended += other.ended;
        self.bad += other.bad;
    }

    /// The part that went bad.
    pub fn bad_part(self) -> f64 {
        ratio(self.bad as f64, self.ended as f64)
    }
}

/// A refusal counts as at once if it comes so soon after its request.
pub(crate) const AT_ONCE: Duration = Duration::from_millis(1);

/// Counts of one group of models.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Requests that were sent.
    pub sent: u64,
    /// Answered in time.
    pub good: u64,
    /// Executed, but too late.
    pub late: u64,
    /// Their execution failed.
    pub failed: u64,
    /// Their client went away.
    pub cancelled: u64,
    /// Refused, by reason (see [`by_reason`]).
    pub refused: RefusalCounts,
    /// Refused while at least half of their time was left.
    pub refused_early: u64,
    /// Refused within a millisecond.
    pub refused_at_once: u64,
    /// Sent while no device had the model loaded.
    pub cold: u64,
    /// Answered in time although they were cold.
    pub cold_good: u64,
    /// What the good ones took.
    pub latency: Quantiles,
    /// What the slowest of all that were executed took, late ones included.
    pub slowest: Duration,
    /// Device time that was spent on requests for pipelines.
    pub work: Duration,
    /// The part of it that was for requests that went bad.
    pub wasted: Duration,
}

impl Tally {
    /// Requests that were refused.
    pub fn refusals(&self) -> u64 {
        self.refused.iter().sum()
    }

    /// Requests that did not get what they asked for in time. A client that went away doesn't count either way.
    pub fn bad(&self) -> u64 {
        self.late + self.failed + self.refusals()
    }

    /// The part of the requests that went bad.
    pub fn bad_fraction(&self) -> f64 {
        ratio(self.bad() as f64, (self.good + self.bad()) as f64)
    }

    fn add(&mut self, ended: &Ended) {
        self.slowest = self.slowest.max(ended.executed_at.unwrap_or(ended.sent_at).since(ended.sent_at));
        self.work += ended.work;
        if !matches!(ended.ending, RequestEnding::Good | RequestEnding::Cancelled) {
            self.wasted += ended.work;
        }
        match ended.ending {
            RequestEnding::Good => {
                self.good += 1;
                self.cold_good += u64::from(ended.cold);
                self.latency.record(ended.answered_at.since(ended.sent_at));
            }
            RequestEnding::Late => self.late += 1,
            RequestEnding::Failed => self.failed += 1,
            RequestEnding::Cancelled => self.cancelled += 1,
            RequestEnding::Refused(reason) => {
                self.refused[reason as usize] += 1;
                let left = ended.deadline_at.since(ended.answered_at);
                self.refused_early += u64::from(left * 2 >= ended.deadline_at.since(ended.sent_at));
                self.refused_at_once += u64::from(ended.answered_at.since(ended.sent_at) <= AT_ONCE);
            }
        }
    }

    /// Counts another group's requests as one's own.
    pub fn merge(&mut self, other: &Self) {
        self.sent += other.sent;
        self.good += other.good;
        self.late += other.late;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
        self.refused_early += other.refused_early;
        self.refused_at_once += other.refused_at_once;
        self.cold += other.cold;
        self.cold_good += other.cold_good;
        self.refused.iter_mut().zip(other.refused).for_each(|(own, other)| *own += other);
        self.latency.merge(&other.latency);
        self.slowest = self.slowest.max(other.slowest);
        self.work += other.work;
        self.wasted += other.wasted;
    }
}

/// How far off predictions were.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Errors {
    /// Faster than predicted.
    pub over: Quantiles,
    /// Slower than predicted.
    pub under: Quantiles,
}

impl Errors {
    fn record(&mut self, predicted: u64, actual: u64) {
        if actual > predicted {
            self.under.record(Duration::from_nanos(actual - predicted));
        } else {
            self.over.record(Duration::from_nanos(predicted - actual));
        }
    }

    /// Both sides in numbers.
    pub fn summary(&self) -> ErrorSummary {
        let [over, under] = [&self.over, &self.under].map(Quantiles::summary);
        ErrorSummary { over, under, under_part: ratio(under.count as f64, (over.count + under.count) as f64) }
    }
}

/// [`Errors`] in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ErrorSummary {
    /// Faster than predicted.
    pub over: QuantileSummary,
    /// Slower than predicted.
    pub under: QuantileSummary,
    /// The part that was slower.
    pub under_part: f64,
}

/// The measurements of one run.
#[derive(Clone, Debug)]
pub struct Meter {
    counted_from: Timestamp,
    counted_to: Timestamp,
    /// Devices that are there, since when, and the seconds of all of them before that.
    devices: u32,
    devices_since: Timestamp,
    device_seconds: f64,
    /// Requests that are over and time that executors were busy, whether they count or not.
    ended_in_all: u64,
    bad_in_all: u64,
    busy_in_all: Duration,
    /// For each group of models.
    pub groups: Vec<Tally>,
    /// For each single model, and for each pipeline behind them.
    pub models: Vec<Count>,
    /// Batches and the rows in them.
    pub batches: u64,
    /// See `batches`.
    pub rows: u64,
    /// Batches that were broken off.
    pub broken_off: u64,
    /// Loads that were done.
    pub loads: u64,
    /// Time that executors for batches were busy.
    pub exec_busy: Duration,
    /// Time that executors for loads were busy.
    pub load_busy: Duration,
    /// What executions took against what was expected.
    pub exec_error: Errors,
    /// What loads took against what was expected.
    pub load_error: Errors,
    /// When executions ended against when that was expected.
    pub completion_error: Errors,
    /// The same over time, where it was asked for.
    pub series: Option<Series>,
    /// The first batches and the first bad requests, as many as were asked for.
    pub trace: Trace,
    trace_limit: usize,
    bad: u64,
}

/// What a run did first, to be looked at.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Trace {
    /// The batches, in the order of their ends.
    pub batches: Vec<TracedBatch>,
    /// When the requests that went bad were sent.
    pub bad_sent_ms: Vec<f64>,
}

/// One batch.
#[derive(Clone, Debug, Serialize)]
pub struct TracedBatch {
    /// Where it ran.
    pub device: u32,
    /// Which model.
    pub model: u32,
    /// How many rows.
    pub rows: u32,
    /// When it started.
    pub started_ms: f64,
    /// When it ended.
    pub ended_ms: f64,
}

impl Meter {
    pub(crate) fn new(setup: &crate::Setup) -> Self {
        let [groups, models] = [setup.groups.len(), setup.models.len() + setup.pipelines.len()];
        let series = setup.series_step.map(|step| Series::new(step, setup.horizon, groups, models, setup.devices));
        Self {
            counted_from: Timestamp::ZERO + setup.warmup,
            counted_to: Timestamp::ZERO + setup.horizon,
            devices: setup.devices,
            devices_since: Timestamp::ZERO,
            device_seconds: 0.0,
            ended_in_all: 0,
            bad_in_all: 0,
            busy_in_all: Duration::ZERO,
            groups: vec![Tally::default(); setup.groups.len()],
            models: vec![Count::default(); models],
            batches: 0,
            rows: 0,
            broken_off: 0,
            loads: 0,
            exec_busy: Duration::ZERO,
            load_busy: Duration::ZERO,
            exec_error: Errors::default(),
            load_error: Errors::default(),
            completion_error: Errors::default(),
            series,
            trace: Trace::default(),
            trace_limit: setup.trace_batches,
            bad: 0,
        }
    }

    /// How many of the requests that count went bad so far.
    pub fn bad(&self) -> u64 {
        self.bad
    }

    /// How long was measured.
    pub fn span(&self) -> Duration {
        self.counted_to.since(self.counted_from)
    }

    /// All groups together.
    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        self.groups.iter().for_each(|group| total.merge(group));
        total
    }

    /// The part of the time in which executors for batches were busy.
    pub fn utilization(&self) -> f64 {
        self.busy_part(self.exec_busy)
    }

    /// The part of the time in which executors for loads were busy.
    pub fn load_utilization(&self) -> f64 {
        self.busy_part(self.load_busy)
    }

    /// Rows in the average batch.
    pub fn mean_batch(&self) -> f64 {
        ratio(self.rows as f64, self.batches as f64)
    }

    fn busy_part(&self, busy: Duration) -> f64 {
        ratio(busy.as_secs_f64(), self.device_seconds())
    }

    /// The seconds that devices were there, all together.
    pub fn device_seconds(&self) -> f64 {
        self.device_seconds + self.there_since(self.counted_to)
    }

    /// How many devices were there on average.
    pub fn mean_devices(&self) -> f64 {
        ratio(self.device_seconds(), self.span().as_secs_f64())
    }

    fn there_since(&self, until: Timestamp) -> f64 {
        self.overlap(self.devices_since, until).as_secs_f64() * f64::from(self.devices)
    }

    /// From now on there are so many devices.
    pub(crate) fn set_devices(&mut self, at: Timestamp, devices: u32) {
        self.device_seconds += self.there_since(at);
        (self.devices, self.devices_since) = (devices, at);
        if let Some(series) = &mut self.series {
            series.set_devices(at, devices);
        }
    }

    /// So many more or fewer devices were advised.
    pub(crate) fn advised(&mut self, at: Timestamp, change: f64) {
        if let Some(series) = &mut self.series {
            series.advised(at, change);
        }
    }

    /// Requests that are over, those of them that went bad, and time that executors were busy, from the start.
    pub(crate) fn totals(&self) -> (u64, u64, Duration) {
        (self.ended_in_all, self.bad_in_all, self.busy_in_all)
    }

    fn counts(&self, at: Timestamp) -> bool {
        self.counted_from <= at && at < self.counted_to
    }

    pub(crate) fn sent(&mut self, at: Timestamp, model: usize, group: usize, cold: bool) {
        if self.counts(at) {
            self.groups[group].sent += 1;
            self.groups[group].cold += u64::from(cold);
        }
        if let Some(series) = &mut self.series {
            series.sent(at, model, group, cold);
        }
    }

    pub(crate) fn ended(&mut self, ended: &Ended) {
        let bad = !matches!(ended.ending, RequestEnding::Good | RequestEnding::Cancelled);
        self.ended_in_all += u64::from(ended.ending != RequestEnding::Cancelled);
        self.bad_in_all += u64::from(bad);
        if self.counts(ended.sent_at) {
            self.bad += u64::from(bad);
            self.groups[ended.group].add(ended);
            if ended.ending != RequestEnding::Cancelled {
                self.models[ended.model].add(Count { ended: 1, bad: u64::from(bad) });
            }
        }
        if bad && self.trace.bad_sent_ms.len() < self.trace_limit {
            self.trace.bad_sent_ms.push(ended.sent_at.since(Timestamp::ZERO).as_millis_f64());
        }
        if let Some(series) = &mut self.series {
            series.ended(ended);
        }
    }

    pub(crate) fn executed(&mut self, execution: &Execution, rows: u32, started_at: Timestamp, ended_at: Timestamp) {
        if self.counts(started_at) {
            self.batches += 1;
            self.rows += u64::from(rows);
            self.exec_error.record(execution.expected.as_nanos(), ended_at.since(started_at).as_nanos());
            self.completion_error.record(execution.expected_done_at.as_nanos(), ended_at.as_nanos());
        }
        self.exec_busy += self.overlap(started_at, ended_at);
        self.busy_in_all += ended_at.since(started_at);
        if self.trace.batches.len() < self.trace_limit {
            self.trace.batches.push(TracedBatch {
                device: execution.device.0,
                model: execution.model.0,
                rows,
                started_ms: started_at.since(Timestamp::ZERO).as_millis_f64(),
                ended_ms: ended_at.since(Timestamp::ZERO).as_millis_f64(),
            });
        }
        if let Some(series) = &mut self.series {
            series.executed(rows, started_at, ended_at);
        }
    }

    /// A batch was broken off: the time is gone, nothing else.
    pub(crate) fn broken_off(&mut self, started_at: Timestamp, at: Timestamp) {
        self.broken_off += u64::from(self.counts(at));
        self.exec_busy += self.overlap(started_at, at);
        self.busy_in_all += at.since(started_at);
        if let Some(series) = &mut self.series {
            series.broken_off(started_at, at);
        }
    }

    pub(crate) fn loaded(&mut self, load: &Load, started_at: Timestamp, ended_at: Timestamp) {
        if self.counts(started_at) {
            self.loads += 1;
            self.load_error.record(load.expected.as_nanos(), ended_at.since(started_at).as_nanos());
        }
        self.load_busy += self.overlap(started_at, ended_at);
        if let Some(series) = &mut self.series {
            series.loaded(started_at, ended_at);
        }
    }

    fn overlap(&self, started_at: Timestamp, ended_at: Timestamp) -> Duration {
        ended_at.min(self.counted_to).since(started_at.max(self.counted_from))
    }
}

/// Which part of a whole it is; of nothing, none.
pub fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_predictions_have_two_sides() {
        let mut errors = Errors::default();
        [(100, 130), (100, 70), (100, 90), (100, 100)].iter().for_each(|&(predicted, actual)| {
            errors.record(predicted * 1_000_000, actual * 1_000_000);
        });
        let summary = errors.summary();
        assert_eq!((summary.under.count, summary.over.count, summary.under_part), (1, 3, 0.25));
        assert_eq!((summary.under.max_ms, summary.over.max_ms), (30.0, 30.0));
        assert!((summary.over.p50_ms - 10.0).abs() < 0.02, "what was exact is no underprediction: {summary:?}");
        assert_eq!(Errors::default().summary().under_part, 0.0);
    }
}
