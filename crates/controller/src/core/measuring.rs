//! Devices that are lent for something that the scheduler didn't order: what is measured runs there alone.

use super::Core;
use crate::Inner;
use crate::messages::{Borrowing, CellMessage};
use crate::sampler::{KeptRequest, NotYet, RequestTraits};
use base::{ActionId, DeviceId, Duration, Timestamp};
use scheduler::{Event, Measured, Sample};
use std::sync::{Arc, mpsc};
use worker::IdleWork;

/// Something that runs where nobody waits.
pub(super) struct IdleRun {
    action: ActionId,
    /// Since when a device is lent for it, if it doesn't say itself what it took.
    lent_at: Option<Timestamp>,
}

impl Core {
    pub(super) fn borrow(
        &mut self,
        inner: &Inner,
        now: Timestamp,
        device: DeviceId,
        (action, expected): (ActionId, Duration),
        work: IdleWork,
    ) {
        self.step(inner, now, Event::Borrowed { device, action, expected });
        if !self.devices[device.index()].device.run_when_idle(work) {
            self.take_back(inner, now, device, action);
        }
    }

    pub(super) fn take_back(&mut self, inner: &Inner, now: Timestamp, device: DeviceId, action: ActionId) {
        if let Some(IdleRun { lent_at, .. }) = self.measuring.take_if(|run| run.action == action) {
            lent_at.into_iter().for_each(|since| self.sampler.spent(now, now.since(since)));
        }
        self.step(inner, now, Event::Returned { device, action });
    }

    /// Lends a device if nothing waits, it has nothing to do, no deadline is near, and the share of its time isn't used
    /// up; else says when to ask again.
    pub(super) fn borrow_if_idle(
        &mut self,
        inner: &Inner,
        now: Timestamp,
        borrowing: Borrowing,
        refused: &mpsc::Sender<(Borrowing, NotYet)>,
    ) {
        let waits = self.waiting > 0 || self.measuring.is_some() || !self.is_idle(borrowing.device);
        if let Err(not_yet) = self.sampler.may_run(now, borrowing.expected, waits) {
            // Whoever asked may have stopped to wait.
            let _ = refused.send((borrowing, not_yet));
            return;
        }
        let Borrowing { device, action, expected, work, .. } = borrowing;
        self.measuring = Some(IdleRun { action, lent_at: Some(now) });
        self.borrow(inner, now, device, (action, expected), work);
    }

    /// Whether a device is there and has no order to carry out.
    fn is_idle(&self, device: DeviceId) -> bool {
        !self.is_broken(device) && self.expectations.values().all(|expected| expected.device != device)
    }

    /// Tells the scheduler what a request took alone.
    pub(super) fn note_measured(&mut self, inner: &Inner, now: Timestamp, traits: RequestTraits, took: Duration) {
        let RequestTraits { model, application, size } = traits;
        if self.there(model).is_none() {
            return;
        }
        let model = model.id();
        self.sampler.measured(model, took);
        let samples = vec![Sample { size, alone: took }];
        self.step(inner, now, Event::Measured(Measured { model, application, samples }));
    }

    /// Runs a request once more on a device that has nothing to do, if nobody waits. Says when to look again; whenever
    /// something ends it is looked again anyway.
    pub(super) fn run_kept(&mut self, inner: &Inner, now: Timestamp) -> Timestamp {
        if self.waiting > 0 || self.measuring.is_some() {
            return Timestamp::NEVER;
        }
        let (number, at) = match self.sampler.next() {
            Some((kept, at)) => (kept.traits.model, at),
            None => return Timestamp::NEVER,
        };
        if at > now {
            return at;
        }
        let Some(model) = self.there(number) else { return Timestamp::NEVER };
        let idle =
            |device: &DeviceId| self.is_idle(*device) && model.slots.get(device).is_some_and(|slot| slot.has_weights());
        let device = (0..self.devices.len() as u32).map(DeviceId).find(idle);
        let Some(device) = device else { return Timestamp::NEVER };
        let (slot, signature) = (Arc::clone(&model.slots[&device]), Arc::clone(&model.record.signature));
        let (padding, max_elements) = (model.record.padding.clone(), model.record.max_elements);
        let Some(kept) = self.sampler.take() else { return Timestamp::NEVER };
        let breaker = slot.breaker();
        let (clock, inbox) = (inner.clock, inner.inbox_of(self.cell));
        let work = move || {
            let KeptRequest { traits, inputs, rows, .. } = kept;
            let took = slot.measure(clock, &signature, padding.as_ref(), max_elements, inputs, rows);
            inbox.put(CellMessage::Measured { traits, took });
        };
        let (action, work) = inner.lend(self.cell, device, breaker, Box::new(work));
        self.measuring = Some(IdleRun { action, lent_at: None });
        let expected = self.sampler.expected(number.id());
        self.borrow(inner, now, device, (action, expected), work);
        Timestamp::NEVER
    }

    /// A request was run once more, alone.
    pub(super) fn ran_again(
        &mut self,
        inner: &Inner,
        now: Timestamp,
        traits: RequestTraits,
        took: Result<Duration, String>,
    ) {
        let expected = self.sampler.expected(traits.model.id());
        self.sampler.spent(now, *took.as_ref().unwrap_or(&expected));
        match took {
            Ok(took) => {
                inner.metrics.measured_again.observe(took);
                self.note_measured(inner, now, traits, took);
            }
            Err(reason) => tracing::debug!("a request could not be run again: {reason}"),
        }
    }
}
