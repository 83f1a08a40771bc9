//! What a run measures over time, in steps of equal length.

use crate::meter::{Ended, RequestEnding, ratio};
use crate::quantiles::Quantiles;
use base::{Duration, Timestamp};
use serde::Serialize;

/// The measurements of a run over time.
#[derive(Clone, Debug)]
pub struct Series {
    step: Duration,
    /// Devices that are there, and since when.
    devices: u32,
    devices_since: Timestamp,
    horizon_at: Timestamp,
    steps: Vec<DeviceTotals>,
    groups: Vec<Vec<ClientTotals>>,
    /// The latencies of the present step, for each group.
    latencies: Vec<Quantiles>,
    /// For each model, the number of the last step in which it was asked for while it wasn't loaded, counted from 1.
    cold_in: Vec<usize>,
    present: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct DeviceTotals {
    exec_busy: Duration,
    load_busy: Duration,
    batches: u64,
    rows: u64,
    /// Time that devices were there, all together.
    there: Duration,
    advised: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct ClientTotals {
    sent: u64,
    cold: u64,
    cold_models: u64,
    good: u64,
    bad: u64,
    mean: Duration,
    p50: Duration,
    p99: Duration,
    max: Duration,
}

impl ClientTotals {
    /// A latency in milliseconds; there is none where nothing was answered in time.
    fn shown(&self, latency: Duration) -> Option<f64> {
        (self.good > 0).then(|| latency.as_millis_f64())
    }
}

/// One step of the series of all models.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DevicesPoint {
    /// Where the step begins, in seconds from the start.
    pub at_s: f64,
    /// The part of the step in which executors for batches were busy.
    pub utilization: f64,
    /// The part of the step in which executors for loads were busy.
    pub load_utilization: f64,
    /// Rows in the average batch.
    pub mean_batch: f64,
    /// How many devices were there on average.
    pub devices: f64,
    /// How many more (or fewer, below 0) were advised, where somebody asks for advice.
    pub advised: f64,
}

/// One step of the series of a group of models.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClientPoint {
    /// Where the step begins, in seconds from the start.
    pub at_s: f64,
    /// Requests per second that were sent in it.
    pub rate_rps: f64,
    /// Requests per second that were answered in time in it.
    pub goodput_rps: f64,
    /// Requests per second that went bad in it.
    pub bad_rps: f64,
    /// The part of those that ended in it that went bad.
    pub bad: f64,
    /// The part of the requests that were sent while their model was not loaded anywhere.
    pub cold: f64,
    /// Those, per second.
    pub cold_rps: f64,
    /// How many different models they asked for.
    pub cold_models: f64,
    /// What the good ones took on average; none, nothing.
    pub mean_ms: Option<f64>,
    /// What half of the good ones did not exceed.
    pub p50_ms: Option<f64>,
    /// What 99 of 100 good ones did not exceed.
    pub p99_ms: Option<f64>,
    /// What the slowest good one took.
    pub max_ms: Option<f64>,
}

impl Series {
    pub(crate) fn new(step: Duration, horizon: Duration, groups: usize, models: usize, devices: u32) -> Self {
        let step = step.max(Duration::from_nanos(1));
        let steps = horizon.as_nanos().div_ceil(step.as_nanos()) as usize;
        Self {
            step,
            devices,
            devices_since: Timestamp::ZERO,
            horizon_at: Timestamp::ZERO + horizon,
            steps: vec![DeviceTotals::default(); steps],
            groups: vec![vec![ClientTotals::default(); steps]; groups],
            latencies: vec![Quantiles::default(); groups],
            cold_in: vec![0; models],
            present: 0,
        }
    }

    /// The step that an instant falls into; `None` after the horizon. Closes the steps before it.
    fn enter(&mut self, at: Timestamp) -> Option<usize> {
        let index = (at.as_nanos() / self.step.as_nanos()) as usize;
        if index > self.present {
            self.close();
            self.present = index;
        }
        (index < self.steps.len()).then_some(index)
    }

    /// Writes down the latencies of the present step.
    pub(crate) fn close(&mut self) {
        if self.present + 1 >= self.steps.len() {
            let (horizon_at, devices) = (self.horizon_at, self.devices);
            self.set_devices(horizon_at, devices);
        }
        for (group, latencies) in self.groups.iter_mut().zip(&mut self.latencies) {
            if let Some(clients) = group.get_mut(self.present) {
                clients.mean = latencies.mean();
                clients.p50 = latencies.at(0.5);
                clients.p99 = latencies.at(0.99);
                clients.max = latencies.max();
            }
            latencies.clear();
        }
    }

    pub(crate) fn sent(&mut self, at: Timestamp, model: usize, group: usize, cold: bool) {
        let Some(index) = self.enter(at) else { return };
        let clients = &mut self.groups[group][index];
        clients.sent += 1;
        if cold {
            clients.cold += 1;
            clients.cold_models += u64::from(self.cold_in[model] != index + 1);
            self.cold_in[model] = index + 1;
        }
    }

    pub(crate) fn ended(&mut self, ended: &Ended) {
        let Some(index) = self.enter(ended.answered_at) else { return };
        let clients = &mut self.groups[ended.group][index];
        match ended.ending {
            RequestEnding::Good => {
                clients.good += 1;
                self.latencies[ended.group].record(ended.answered_at.since(ended.sent_at));
            }
            RequestEnding::Late | RequestEnding::Failed | RequestEnding::Refused(_) => clients.bad += 1,
            RequestEnding::Cancelled => {}
        }
    }

    pub(crate) fn executed(&mut self, rows: u32, started_at: Timestamp, ended_at: Timestamp) {
        if let Some(index) = self.enter(ended_at) {
            self.steps[index].batches += 1;
            self.steps[index].rows += u64::from(rows);
        }
        self.spread(started_at, ended_at, |totals| &mut totals.exec_busy);
    }

    pub(crate) fn broken_off(&mut self, started_at: Timestamp, at: Timestamp) {
        self.spread(started_at, at, |totals| &mut totals.exec_busy);
    }

    pub(crate) fn loaded(&mut self, started_at: Timestamp, ended_at: Timestamp) {
        self.spread(started_at, ended_at, |totals| &mut totals.load_busy);
    }

    fn spread(
        &mut self,
        started_at: Timestamp,
        ended_at: Timestamp,
        field: impl Fn(&mut DeviceTotals) -> &mut Duration,
    ) {
        let mut at = started_at;
        while at < ended_at {
            let index = at.as_nanos() / self.step.as_nanos();
            let until = ended_at.min(Timestamp::ZERO + self.step * (index + 1));
            let Some(totals) = self.steps.get_mut(index as usize) else { return };
            *field(totals) += until.since(at);
            at = until;
        }
    }

    /// From now on there are so many devices.
    pub(crate) fn set_devices(&mut self, at: Timestamp, devices: u32) {
        let (since, before) = (self.devices_since, self.devices);
        self.count_devices(since, at.min(self.horizon_at), before);
        (self.devices, self.devices_since) = (devices, at);
    }

    fn count_devices(&mut self, from: Timestamp, to: Timestamp, devices: u32) {
        let mut at = from;
        while at < to {
            let index = at.as_nanos() / self.step.as_nanos();
            let until = to.min(Timestamp::ZERO + self.step * (index + 1));
            let Some(totals) = self.steps.get_mut(index as usize) else { return };
            totals.there += until.since(at) * u64::from(devices);
            at = until;
        }
    }

    /// So many more or fewer devices were advised.
    pub(crate) fn advised(&mut self, at: Timestamp, change: f64) {
        if let Some(index) = self.enter(at) {
            let advised = &mut self.steps[index].advised;
            *advised = if change.abs() > advised.abs() { change } else { *advised };
        }
    }

    fn at_s(&self, index: usize) -> f64 {
        (self.step * index as u64).as_secs_f64()
    }

    /// The devices over time.
    pub fn devices(&self) -> Vec<DevicesPoint> {
        let point = |(index, totals): (usize, &DeviceTotals)| {
            let whole = totals.there.as_secs_f64();
            DevicesPoint {
                at_s: self.at_s(index),
                utilization: ratio(totals.exec_busy.as_secs_f64(), whole),
                load_utilization: ratio(totals.load_busy.as_secs_f64(), whole),
                mean_batch: ratio(totals.rows as f64, totals.batches as f64),
                devices: ratio(whole, self.step.as_secs_f64()),
                advised: totals.advised,
            }
        };
        self.steps.iter().enumerate().map(point).collect()
    }

    /// All groups' requests over time, without latencies.
    pub fn all(&self) -> Vec<ClientPoint> {
        let mut all: Vec<ClientPoint> = Vec::new();
        for group in 0..self.groups.len() {
            for (index, point) in self.group(group).into_iter().enumerate() {
                match all.get_mut(index) {
                    None => {
                        all.push(ClientPoint { mean_ms: None, p50_ms: None, p99_ms: None, max_ms: None, ..point });
                    }
                    Some(sum) => {
                        sum.cold =
                            ratio(sum.cold * sum.rate_rps + point.cold * point.rate_rps, sum.rate_rps + point.rate_rps);
                        sum.cold_rps += point.cold_rps;
                        sum.cold_models += point.cold_models;
                        sum.rate_rps += point.rate_rps;
                        sum.goodput_rps += point.goodput_rps;
                        sum.bad_rps += point.bad_rps;
                        sum.bad = ratio(sum.bad_rps, sum.bad_rps + sum.goodput_rps);
                    }
                }
            }
        }
        all
    }

    /// A group's requests over time.
    pub fn group(&self, group: usize) -> Vec<ClientPoint> {
        let seconds = self.step.as_secs_f64();
        let point = |(index, clients): (usize, &ClientTotals)| ClientPoint {
            at_s: self.at_s(index),
            rate_rps: clients.sent as f64 / seconds,
            goodput_rps: clients.good as f64 / seconds,
            bad_rps: clients.bad as f64 / seconds,
            bad: ratio(clients.bad as f64, (clients.good + clients.bad) as f64),
            cold: ratio(clients.cold as f64, clients.sent as f64),
            cold_rps: clients.cold as f64 / seconds,
            cold_models: clients.cold_models as f64,
            mean_ms: clients.shown(clients.mean),
            p50_ms: clients.shown(clients.p50),
            p99_ms: clients.shown(clients.p99),
            max_ms: clients.shown(clients.max),
        };
        self.groups[group].iter().enumerate().map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn work_is_split_over_the_steps_that_it_touches() {
        let mut series = Series::new(Duration::from_secs(1), Duration::from_secs(3), 1, 1, 1);
        series.executed(4, at(800), at(2100));
        series.set_devices(at(3000), 1);
        let points: Vec<_> = series.devices().iter().map(|point| (point.utilization, point.mean_batch)).collect();
        assert_eq!(points, [(0.2, 0.0), (1.0, 0.0), (0.1, 4.0)]);
    }

    #[test]
    fn devices_that_come_and_go_are_counted_for_their_time() {
        let mut series = Series::new(Duration::from_secs(1), Duration::from_secs(3), 1, 1, 4);
        series.set_devices(at(500), 8);
        series.advised(at(1200), 3.0);
        series.advised(at(1400), -1.0);
        series.executed(1, at(0), at(500));
        series.sent(at(2500), 0, 0, false);
        series.close();
        let points: Vec<_> = series.devices().iter().map(|point| (point.devices, point.advised)).collect();
        assert_eq!(points, [(6.0, 0.0), (8.0, 3.0), (8.0, 0.0)]);
        assert!((series.devices()[0].utilization - 0.5 / 6.0).abs() < 1e-9);
    }

    #[test]
    fn requests_count_where_they_are_sent_and_where_they_end() {
        let mut series = Series::new(Duration::from_secs(1), Duration::from_secs(2), 1, 1, 1);
        series.sent(at(900), 0, 0, true);
        let ended = |answered_at, ending| Ended {
            model: 0,
            group: 0,
            sent_at: at(900),
            deadline_at: at(1500),
            answered_at,
            executed_at: Some(answered_at),
            cold: true,
            ending,
            work: Duration::ZERO,
        };
        series.ended(&ended(at(1400), RequestEnding::Good));
        series.ended(&ended(at(2400), RequestEnding::Late));
        series.close();
        let points = series.group(0);
        assert_eq!((points[0].rate_rps, points[0].cold, points[0].goodput_rps), (1.0, 1.0, 0.0));
        assert_eq!((points[1].goodput_rps, points[1].max_ms, points[1].bad_rps), (1.0, Some(500.0), 0.0));
    }

    #[test]
    fn a_model_is_cold_once_in_each_step() {
        let mut series = Series::new(Duration::from_secs(1), Duration::from_secs(3), 1, 2, 1);
        let requests =
            [(100, 0, true), (200, 0, true), (300, 1, true), (400, 1, false), (1500, 0, true), (2500, 0, false)];
        requests.iter().for_each(|&(millis, model, cold)| series.sent(at(millis), model, 0, cold));
        series.close();
        let points: Vec<_> = series.group(0).iter().map(|point| (point.cold_models, point.cold_rps)).collect();
        assert_eq!(points, [(2.0, 3.0), (1.0, 1.0), (0.0, 0.0)]);
        assert_eq!(series.all()[0].cold_models, 2.0);
    }
}
