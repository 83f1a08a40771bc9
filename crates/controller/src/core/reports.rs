//! What devices report: the books follow it, and the scheduler is told.

use super::Core;
use super::books::{DrivenModel, Expectation, note_violation};
use super::loss::Loss;
use super::watch::broken;
use crate::Inner;
use crate::payload::Payload;
use base::{DeviceId, Duration, ModelId, Timestamp};
use scheduler::{ActionStatus, Event};
use telemetry::Invariant;
use worker::Status;

/// What a failure has cost others.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cost {
    /// Nothing, unless it is a load.
    Nothing,
    /// The time of a device.
    Time(Duration),
    /// A device, and all weights on it; and so much of its time.
    Device(Duration),
}

impl Core {
    pub(super) fn report(&mut self, inner: &Inner, now: Timestamp, report: worker::OrderReport<Payload>) {
        if let Some(device) = self.unloads.remove(&report.action) {
            return self.unloaded(inner, now, device, report.status);
        }
        // A device that was lost, or given up, has sent it: its requests have their outcome, and what is said of loads
        // is of no interest any more.
        let Some(expectation) = self.expectations.remove(&report.action) else { return };
        let untouched = !report.returned.is_empty();
        for payload in report.returned {
            if let Some(Some(model)) = self.models.get(payload.submission.model.id().index()) {
                model.record.metrics.statistics().waits();
            }
            self.note_queued(payload.submission.model.id());
            let slot = payload.id.slot as usize;
            self.payloads[slot] = Some(payload);
            self.waiting += 1;
        }
        self.measure(&expectation, &report.status);
        let (device, mut took) = (expectation.device, None);
        let status = match report.status {
            Status::Done { started_at, ended_at, transfers } => {
                let span = ended_at.since(started_at) + transfers.before;
                took = Some(span);
                self.note_ran(now, &expectation, (started_at, ended_at), transfers);
                self.ended_at = Some(ended_at);
                self.watch.ran(&inner.metrics, &expectation, (started_at, ended_at), transfers);
                ActionStatus::Done { started_at, ended_at, transfers }
            }
            Status::TooLate if self.came_back(&expectation) => {
                return self.lose_if_empty(inner, now, device);
            }
            Status::TooLate => ActionStatus::TooLate,
            Status::Failed(reason) => {
                self.note_failure(inner, now, &expectation, reason, Cost::Nothing);
                ActionStatus::Failed
            }
            Status::BrokenOff { reason, took } => {
                self.note_failure(inner, now, &expectation, reason, Cost::Time(took));
                ActionStatus::Failed
            }
            Status::Hangs(reason) => {
                self.note_failure(inner, now, &expectation, reason, Cost::Device(Duration::ZERO));
                ActionStatus::Failed
            }
            Status::Unfit { reason, requests } => {
                let model = self.models.get_mut(expectation.model.index()).and_then(Option::as_mut);
                model.into_iter().for_each(|model| model.note_unfit(now, &reason, requests));
                ActionStatus::Failed
            }
            // It had gone before, and these are nobody's fault: they run elsewhere, or when it is back.
            Status::Lost { reason, .. } if untouched => {
                self.retire(device, Loss::Broken, reason);
                return self.lose_if_empty(inner, now, device);
            }
            Status::Lost { reason, took } => {
                let cost = took.map_or(Cost::Nothing, Cost::Device);
                self.note_failure(inner, now, &expectation, reason.clone(), cost);
                self.retire(device, Loss::Broken, reason);
                ActionStatus::Failed
            }
        };
        self.step(inner, now, Event::Reported(scheduler::Report { action: report.action, status }));
        self.ended_at = None;
        self.devices[device.index()].metrics.slowness(self.scheduler.slowness(device));
        if expectation.done_at.is_none() {
            self.check_pages(inner, device);
        }
        if let (Some(traits), Some(took)) = (expectation.alone, took) {
            inner.metrics.measured_served.observe(took);
            self.note_measured(inner, now, traits, took);
        }
        self.lose_if_empty(inner, now, device);
    }

    /// A device has freed weights. If its engine panicked over that, what it keeps for the device may be in any state.
    fn unloaded(&mut self, inner: &Inner, now: Timestamp, device: DeviceId, status: Status) {
        let there = &self.devices[device.index()];
        there.metrics.pages(there.device.pages().total(), there.device.pages().used());
        if let Status::Failed(reason) | Status::Lost { reason, .. } = status {
            tracing::error!(device = self.configs[device.index()].name, "an unload failed: {reason}");
            self.retire(device, Loss::Broken, reason);
            return self.lose_if_empty(inner, now, device);
        }
        self.check_pages(inner, device);
    }

    /// With nothing under way that takes or frees pages of a device, both sides must agree on them (P5).
    fn check_pages(&self, inner: &Inner, device: DeviceId) {
        let loads = |expected: &Expectation| expected.device == device && expected.done_at.is_none();
        let under_way = self.is_broken(device)
            || self.unloads.values().any(|on| *on == device)
            || self.held.iter().any(|(_, load)| load.device == device)
            || self.expectations.values().any(loads);
        let Some(free) = self.scheduler.free_pages(device).filter(|_| !under_way) else { return };
        let pages = self.devices[device.index()].device.pages();
        let (here, there) = (pages.total() - free, pages.used());
        if here != there {
            let what = format!("{device} has {there} pages in use, the scheduler counts {here}");
            broken(&inner.metrics, Invariant::P5, &what);
        }
    }

    /// Whether a model that is left alone for a while is refused. One whose load has failed is still served where its
    /// weights are, or will soon be.
    pub(super) fn is_barred(&self, id: ModelId, model: &DrivenModel) -> bool {
        let loads = |expected: &Expectation| expected.model == id && expected.done_at.is_none();
        model.rests || !(self.scheduler.is_loaded(id) || self.expectations.values().any(loads))
    }

    pub(super) fn note_failure(
        &mut self,
        inner: &Inner,
        now: Timestamp,
        expectation: &Expectation,
        reason: String,
        cost: Cost,
    ) {
        let Some(model) = self.models.get_mut(expectation.model.index()).and_then(Option::as_mut) else {
            return note_violation(&inner.metrics, &reason);
        };
        expectation.note_failure(&inner.metrics, &model.record.name, &reason);
        let is_load = expectation.done_at.is_none();
        model.failure = if is_load { format!("the model could not be loaded: {reason}") } else { reason };
        // A load takes room from other models, a panic takes their weights, what hangs takes their time: none of them
        // may happen with every request.
        let rests_for = match cost {
            Cost::Nothing => is_load.then_some(Duration::ZERO),
            Cost::Time(took) | Cost::Device(took) => Some(took),
        };
        if let Some(least) = rests_for {
            model.backoff.begin(now, least);
            model.rests = !matches!(cost, Cost::Nothing);
        }
    }

    fn measure(&self, expected: &Expectation, status: &Status) {
        let device = &self.devices[expected.device.index()];
        let Some(Some(model)) = self.models.get(expected.model.index()) else { return };
        expected.measure(device, &model.record.metrics, status);
    }
}
