//! Admission by prediction: can this request be served in time, behind what is due before it?

use crate::batch_times::BatchTimes;
use crate::ledger::{Device, Model, Residency};
use crate::policy::Fact;
use crate::{Rejection, Request, Scheduler};
use base::{DeviceId, Duration, ModelId, Timestamp};

/// Of a model's devices, how many an arrival looks at.
const PROBES: usize = 4;
/// The queue is taken to last longer by one in so many parts than its average says.
const BACKLOG_RESERVE: u64 = 16;
/// Work that is due later than this doesn't count in what is said to those who were refused.
const PATIENCE: Duration = Duration::from_secs(1);

impl Scheduler {
    /// Brings what a request is judged by up to date: its model's estimates, and the slack that batch work must leave.
    pub(crate) fn prepare_for(&mut self, request: &Request) {
        let Some(Some(entry)) = self.ledger.models.get_mut(request.model.index()) else { return };
        entry.estimates.age(self.now);
        let takes = self.alone(request);
        if request.deadline_at != Timestamp::NEVER && self.now + takes <= request.deadline_at {
            self.shares.came(request.model, request.rows, request.deadline_at.since(self.now));
            // Also if it is refused: the next one like it should find the device free.
            self.slack.observe(self.now, request.deadline_at.since(self.now) - takes);
        }
    }

    /// Computes anew who may have how much, now and then.
    pub(crate) fn share_out(&mut self) {
        if !self.config.predict_admission || !self.config.policy.heeds_shares() || !self.shares.is_due(self.now) {
            return;
        }
        let Self { shares, ledger, now, .. } = self;
        let short = shares.is_short();
        // Turns are planned for devices that aren't slow, and are there for somebody.
        let quick = |device: &&Device| device.slowness.step() == 0 && !device.is_closed();
        let numbered = |(number, device): (usize, &'_ Option<Device>)| {
            let device = device.as_ref().filter(quick)?;
            Some((DeviceId(number as u32), device.exec.start_at(*now)))
        };
        let free_at: Vec<(DeviceId, Timestamp)> = ledger.devices.iter().enumerate().filter_map(numbered).collect();
        shares.compute(*now, &free_at, ledger.in_use, |model| ledger.planned(model));
        if short || shares.is_short() {
            self.tell(Fact::Shared);
        }
    }

    /// Seconds of a device for a row of each model in the largest batches that its objective allows.
    pub(crate) fn costs(&self) -> Vec<f64> {
        self.shares.costs(|model| self.ledger.planned(model))
    }

    /// The queue of a model has changed, and with it what it needs of devices.
    pub(crate) fn note_queued(&mut self, model: ModelId) {
        let times = self.ledger.model(model).estimates.planned();
        self.shares.queued(self.now, model, times, self.queues.of(model).rows());
    }

    /// A refused request shows what should be loaded, if another load would have helped it.
    pub(crate) fn note_missed(&mut self, request: &Request, rejection: Rejection) {
        match rejection {
            Rejection::DeadlineUnreachable { .. } | Rejection::Overloaded { .. } => {}
            Rejection::QueueFull | Rejection::ModelUnavailable | Rejection::NoDevice => return,
        }
        let takes = self.alone(request);
        let untried = self.may_be_tried(request);
        let entry = self.ledger.model_mut(request.model);
        if self.now + takes <= request.deadline_at || (untried && entry.residency.is_empty()) {
            entry.missed += entry.estimates.planned().time_for(u64::from(request.rows));
            self.planner.update(self.now, &mut self.ledger, &self.queues, request.model);
        }
    }

    /// Admission by prediction: whether a request can be served in time, and on which device its work should be booked.
    pub(crate) fn admit(&mut self, request: &Request) -> Result<Option<DeviceId>, Rejection> {
        let now = self.now;
        let entry = self.ledger.models.get(request.model.index()).and_then(Option::as_ref);
        let entry = entry.filter(|entry| !entry.removed).ok_or(Rejection::ModelUnavailable)?;
        if request.rows > entry.estimates.planned().max_batch() {
            return Err(Rejection::ModelUnavailable);
        }
        if self.queues.of(request.model).len() >= self.config.max_queued_per_model {
            return Err(Rejection::QueueFull);
        }
        let barred = entry.barred > 0 && entry.barred >= self.ledger.device_count;
        if barred || self.ledger.device_ids().all(|device| self.ledger.device(device).pages < entry.pages) {
            return Err(Rejection::NoDevice);
        }
        if request.deadline_at == Timestamp::NEVER {
            return Ok(None);
        }
        let takes = self.alone(request);
        let cold = entry.residency.is_empty();
        let alone_at = now + takes + if cold { entry.estimates.load() } else { Duration::ZERO };
        if alone_at > request.deadline_at {
            return Err(Rejection::DeadlineUnreachable { earliest_at: alone_at });
        }
        let (queued, time) = (self.queues.of(request.model).rows(), request.deadline_at.since(now));
        let done_at = self.shares.done_at(now, request.model, entry.estimates.planned(), (queued, request.rows), time);
        if let Some(earliest_at) = done_at.filter(|&done_at| done_at > request.deadline_at) {
            return Err(Rejection::Overloaded { earliest_at });
        }
        if !self.config.predict_admission || self.config.policy.heeds_shares() {
            // Whatever becomes of what is queued: what is running is certain.
            let done_at = self.first_done(request).filter(|_| self.config.predict_admission);
            if let Some(earliest_at) = done_at.filter(|&at| at > request.deadline_at) {
                return Err(Rejection::Overloaded { earliest_at });
            }
            return Ok(entry.residency.first().map(|residency| residency.device));
        }
        let (device, start_at) = if cold {
            let wait = self.planner.load_wait(&self.ledger, request.model, now);
            (None, now + wait + entry.estimates.load())
        } else {
            let (device, start_at) = self.least_busy(entry, request.rows, request.deadline_at);
            (Some(device), start_at)
        };
        let times = device.map_or(entry.estimates.planned(), |device| self.ledger.times(request.model, device));
        let class = times.class_for(request.rows);
        // Behind others of its model it only makes their batch larger; what it takes beyond the average stays its own
        // risk.
        let risk = class.least_quantile() - class.busy_mean();
        let earliest_at = start_at + self.added_to(times, request) + risk;
        if earliest_at > request.deadline_at {
            return Err(Rejection::Overloaded { earliest_at });
        }
        Ok(device)
    }

    /// What a request takes alone on the quickest device where its model is or will soon be: with less time it can't be
    /// served.
    pub(crate) fn alone(&self, request: &Request) -> Duration {
        let known = self.alone_by_kind(request);
        known.unwrap_or_else(|| self.ledger.quickest(self.ledger.model(request.model), request.rows))
    }

    /// What others like it mostly took alone, where times depend on the input.
    fn alone_by_kind(&self, request: &Request) -> Option<Duration> {
        let estimates = &self.ledger.model(request.model).estimates;
        estimates.distribution()?;
        estimates.alone(request.rows, self.kind_of(request))
    }

    /// When the first of its model's devices would have done a request behind what was ordered; `None` where the model
    /// has none, or too many to look at.
    fn first_done(&self, request: &Request) -> Option<Timestamp> {
        let model = self.ledger.model(request.model);
        if model.residency.len() > PROBES {
            return None;
        }
        let alone = self.alone_by_kind(request);
        let done_at = |there: &Residency| {
            let device = self.ledger.device(there.device);
            let by_size = || model.estimates.at(device.speed()).class_for(request.rows).least_quantile();
            device.exec.start_at(self.now) + alone.unwrap_or_else(by_size)
        };
        model.residency.iter().map(done_at).min()
    }

    /// What a request adds to the time that its model's queue takes.
    pub(crate) fn added_work(&self, model: &Model, request: &Request) -> Duration {
        self.added_to(model.estimates.planned(), request)
    }

    /// The same on devices that take what `times` says.
    pub(crate) fn added_to(&self, times: &BatchTimes, request: &Request) -> Duration {
        let queued = self.queues.of(request.model).rows();
        times.time_for(queued + u64::from(request.rows)) - times.time_for(queued)
    }

    /// Of a few of the devices that hold a model, the one where a request could be done first behind what is due before
    /// it, and when it could start there.
    fn least_busy(&self, model: &Model, rows: u32, deadline_at: Timestamp) -> (DeviceId, Timestamp) {
        let count = model.residency.len();
        let first = if count <= PROBES { 0 } else { self.sequence as usize * PROBES % count };
        let probed = (0..count.min(PROBES)).map(|offset| {
            let residency = &model.residency[(first + offset) % count];
            let device = self.ledger.device(residency.device);
            let free_at = device.exec.start_at(self.now).max(residency.loading_until.unwrap_or(self.now));
            let before = device.backlog.due_by(self.now, deadline_at);
            // A little more than the sum: at the edge, one request fewer costs nothing, one more is refused late.
            let start_at = free_at + before + before / BACKLOG_RESERVE;
            (start_at + model.estimates.at(device.speed()).class_for(rows).least_quantile(), start_at, residency.device)
        });
        let (_, start_at, device) = probed.min().expect("a model that isn't cold is on a device");
        (device, start_at)
    }

    /// When a request would be done if it came now and had all the time that it needs.
    pub(crate) fn earliest_after_queue(&self, request: &Request) -> Timestamp {
        let entry = self.ledger.model(request.model);
        if entry.residency.is_empty() {
            let load_at = self.now + self.planner.load_wait(&self.ledger, request.model, self.now);
            return load_at + entry.estimates.load() + self.alone(request);
        }
        let (device, start_at) = self.least_busy(entry, request.rows, self.now + PATIENCE);
        start_at + self.ledger.times(request.model, device).class_for(request.rows).least_quantile()
    }
}
