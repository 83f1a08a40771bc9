//! The scheduler's commands become orders to devices.

use super::Core;
use super::books::Expectation;
use super::watch::broken;
use crate::messages::CellMessage;
use crate::payload::Payload;
use crate::sampler::{KeptRequest, RequestTraits};
use crate::{Inner, Submission};
use base::{DeviceId, Duration, ModelId, RequestId, Timestamp};
use scheduler::Execution;
use std::sync::Arc;
use telemetry::Invariant;
use worker::{ExecuteOrder, LoadOrder, Status, UnloadOrder};

fn traits(submission: &Submission) -> RequestTraits {
    let Submission { model, application, size, .. } = submission;
    RequestTraits { model: *model, application: *application, size: *size }
}

/// A request, to be run again. Its inputs aren't copied.
fn kept(item: &Payload, now: Timestamp) -> KeptRequest {
    let Submission { inputs, rows, .. } = &item.submission;
    KeptRequest { traits: traits(&item.submission), kept_at: now, inputs: inputs.clone(), rows: *rows }
}

impl Core {
    /// The inputs of a request that is to be executed. One that has none has ended: the others of its batch run without
    /// it.
    fn take_payload(&mut self, inner: &Inner, id: RequestId) -> Option<Payload> {
        let payload = self.payloads.get_mut(id.slot as usize)?.take_if(|payload| payload.id == id);
        if payload.is_none() {
            broken(&inner.metrics, Invariant::P8, &format!("{id} is to be executed, but has ended before"));
        }
        payload
    }

    pub(super) fn execute(&mut self, inner: &Inner, now: Timestamp, execution: Execution) {
        let Execution { action, device, model, requests, window, expected, expected_done_at, .. } = execution;
        let items: Vec<Payload> = requests.iter().filter_map(|&id| self.take_payload(inner, id)).collect();
        self.waiting -= items.len();
        let driven = self.models[model.index()].as_mut().expect("the scheduler executes models that were added");
        driven.queued -= items.len();
        let (mut rows, mut bytes, mut alone) = (0, 0, None);
        if let Some(item) = items.first().filter(|_| self.sampler.compares(model)) {
            self.sampler.keep_to_compare(kept(item, now));
        }
        for item in &items {
            rows += item.submission.rows;
            bytes += item.submission.inputs.iter().map(|input| input.data.len() as u64).sum::<u64>();
            driven.record.metrics.queued(now.since(item.submitted_at));
            // Several rows take longer than one: their size says nothing of their time.
            if item.submission.rows > 1 || !self.sampler.picks(model) {
                continue;
            }
            match items.len() {
                1 => alone = Some(traits(&item.submission)),
                _ => self.sampler.keep(kept(item, now)),
            }
        }
        driven.record.metrics.statistics().wait_no_longer(items.len());
        let order = ExecuteOrder {
            action,
            window,
            slot: driven.slot(device),
            signature: Arc::clone(&driven.record.signature),
            padding: driven.record.padding.clone(),
            max_elements: driven.record.max_elements,
            limit: inner.limits.of_batch(expected, driven.uneven),
            items,
        };
        let (took, done_at) = (expected, Some(expected_done_at));
        let kind = self.configs[device.index()].kind;
        self.expectations
            .insert(action, Expectation { device, kind, model, took, done_at, window, rows, bytes, alone });
        if order.items.is_empty() {
            let status = Status::Failed("none of its requests is there any more".into());
            let report = worker::OrderReport { action, status, returned: Vec::new() };
            return inner.put(self.cell, CellMessage::Report(report));
        }
        if self.devices[device.index()].device.execute(order).is_err() {
            self.fatal("an executor is gone, or has more orders than the scheduler ever leaves outstanding");
        }
    }

    pub(super) fn load(&mut self, inner: &Inner, now: Timestamp, load: &scheduler::Load) {
        let driven = self.models[load.model.index()].as_ref();
        match driven.and_then(|driven| driven.backoff.left(now)) {
            Some(left) => self.held.push((now + left, *load)),
            None => self.hand_over(inner, load),
        }
    }

    fn hand_over(&mut self, inner: &Inner, load: &scheduler::Load) {
        let driven = self.models[load.model.index()].as_mut().expect("the scheduler loads models that were added");
        let order = LoadOrder {
            action: load.action,
            window: load.window,
            slot: driven.slot(load.device),
            prepared: Arc::clone(&driven.prepared),
            pages: driven.pages,
            limit: inner.limits.of_load(load.expected),
        };
        let (device, model) = (load.device, load.model);
        let bytes = driven.prepared.weight_bytes();
        let (took, window, kind) = (load.expected, load.window, self.configs[device.index()].kind);
        let expectation = Expectation { device, kind, model, took, done_at: None, window, rows: 0, bytes, alone: None };
        self.expectations.insert(load.action, expectation);
        if !self.devices[load.device.index()].device.load(order) {
            self.fatal("a load executor is gone, or has more orders than the scheduler ever leaves outstanding");
        }
    }

    /// Hands over the loads that were held for long enough, and says when the next one will have been.
    pub(super) fn let_go(&mut self, inner: &Inner, now: Timestamp) -> Timestamp {
        while let Some(due) = self.held.iter().position(|&(until, _)| until <= now) {
            let (_, load) = self.held.swap_remove(due);
            self.hand_over(inner, &load);
        }
        self.held.iter().map(|&(until, _)| until).min().unwrap_or(Timestamp::NEVER)
    }

    pub(super) fn unload(&mut self, inner: &Inner, device: DeviceId, model: ModelId) {
        let uses =
            |expected: &Expectation| expected.device == device && expected.model == model && expected.done_at.is_some();
        if self.expectations.values().any(uses) {
            broken(
                &inner.metrics,
                Invariant::P6,
                &format!("{model} is unloaded from {device}, where a batch needs it"),
            );
        }
        let driven = self.models[model.index()].as_mut().expect("the scheduler unloads models that were added");
        // If it is loaded there again, that is into another place.
        let slot = driven.slots.remove(&device).unwrap_or_default();
        let there = &self.devices[device.index()];
        driven.record.metrics.unloaded(there.metrics.name(), driven.prepared.weight_bytes());
        let action = inner.drivers_action();
        let order = UnloadOrder { action, slot, pages: driven.pages, limit: inner.limits.of_load(Duration::ZERO) };
        if !there.device.unload(order) {
            self.fatal("a load executor is gone, or has more orders than the scheduler ever leaves outstanding");
        }
        self.unloads.insert(action, device);
    }
}
