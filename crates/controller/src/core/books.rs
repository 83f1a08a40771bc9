//! What the driver keeps of models, devices and actions under way.

use super::backoff::Backoff;
use super::places::Asked;
use super::seldom::SeldomLine;
use crate::ModelRecord;
use crate::payload::Payload;
use crate::sampler::RequestTraits;
use base::{DeviceId, Duration, ModelId, Timestamp, Window};
use engine::Prepared;
use std::collections::BTreeMap;
use std::sync::Arc;
use telemetry::{DeviceMetrics, Invariant, Metrics, ModelMetrics};
use worker::{Device, Slot, Status};

/// A model as its cell's driver has it.
pub(super) struct DrivenModel {
    /// How many models had its slot before.
    pub generation: u32,
    pub record: Arc<ModelRecord>,
    /// Its weights, in host memory.
    pub prepared: Arc<dyn Prepared>,
    pub pages: u32,
    /// Where its weights are or are to come. Not one for each device: there may be 10,000 models and 1,000 devices.
    pub slots: BTreeMap<DeviceId, Arc<Slot>>,
    /// Why an action failed the last time that one did.
    pub failure: String,
    /// What failed and was costly isn't tried again at once.
    pub backoff: Backoff,
    /// What failed would do so on another device as well: no request is taken while it is left alone.
    pub rests: bool,
    /// What its requests take differs, so that a batch that takes long may be a large one.
    pub uneven: bool,
    /// When the log has a line of inputs that it can't compute.
    pub unfit_line: SeldomLine,
    /// Requests that are queued.
    pub queued: usize,
    /// What came for it lately, where plans follow that.
    pub asked: Asked,
}

impl DrivenModel {
    /// One that is on no device.
    pub fn new(generation: u32, record: Arc<ModelRecord>, prepared: Arc<dyn Prepared>, pages: u32) -> Self {
        Self {
            generation,
            uneven: record.has_uneven_requests(),
            record,
            prepared,
            pages,
            slots: BTreeMap::new(),
            failure: String::new(),
            backoff: Backoff::default(),
            rests: false,
            unfit_line: SeldomLine::default(),
            queued: 0,
            asked: Asked::default(),
        }
    }

    /// Requests had inputs that it can't compute. That is their clients' mistake, which the log has in small doses.
    pub fn note_unfit(&mut self, now: Timestamp, reason: &str, requests: u32) {
        if let Some(left_out) = self.unfit_line.add(now, requests) {
            let model = &*self.record.name;
            tracing::warn!(model, left_out, "it can't compute the inputs of a request: {reason}");
        }
    }

    /// The place for its weights on a device.
    pub fn slot(&mut self, device: DeviceId) -> Arc<Slot> {
        let statistics = self.record.metrics.statistics();
        let slot = self.slots.entry(device).or_insert_with(|| Arc::new(Slot::new(Arc::clone(statistics))));
        Arc::clone(slot)
    }
}

#[derive(Debug)]
pub(super) struct DrivenDevice {
    pub device: Device<Payload>,
    pub metrics: DeviceMetrics,
}

/// What was expected of an action, to compare with its report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expectation {
    pub device: DeviceId,
    /// What the device was when it was ordered.
    pub kind: u32,
    pub model: ModelId,
    pub took: Duration,
    /// `None` for loads.
    pub done_at: Option<Timestamp>,
    /// When it may start.
    pub window: Window,
    pub rows: u32,
    /// Of a batch's inputs, or of the weights of a load.
    pub bytes: u64,
    /// Of the batch's one request, if its time is wanted.
    pub alone: Option<RequestTraits>,
}

impl Expectation {
    /// Counts what became of the action.
    pub fn measure(&self, driven: &DrivenDevice, model: &ModelMetrics, status: &Status) {
        let actions = if self.done_at.is_some() { driven.metrics.executions() } else { driven.metrics.loads() };
        match status {
            Status::Done { started_at, ended_at, transfers } => {
                let busy = ended_at.since(*started_at);
                let took = busy + transfers.before;
                actions.done(took, busy, self.took);
                if let Some(done_at) = self.done_at {
                    model.executed(self.rows, took);
                    driven.metrics.moved(*transfers);
                    driven.metrics.completed(*ended_at, done_at);
                } else {
                    model.loaded(driven.metrics.name(), self.bytes);
                    driven.metrics.pages(driven.device.pages().total(), driven.device.pages().used());
                }
            }
            Status::TooLate => actions.too_late(),
            Status::Failed(_)
            | Status::Unfit { .. }
            | Status::BrokenOff { .. }
            | Status::Hangs(_)
            | Status::Lost { .. } => actions.failed(),
        }
    }

    /// Counts and logs a failure.
    pub fn note_failure(&self, metrics: &Metrics, model: &str, reason: &str) {
        note_violation(metrics, reason);
        let what = if self.done_at.is_some() { "an execution" } else { "a load" };
        tracing::error!(model, "{what} failed: {reason}");
    }
}

/// Counts a broken invariant that a worker's reason names.
pub(super) fn note_violation(metrics: &Metrics, reason: &str) {
    for (name, invariant) in [("P5", Invariant::P5), ("P6", Invariant::P6)] {
        if reason.starts_with(name) {
            metrics.violated(invariant);
        }
    }
}
