//! What follows when an engine panics on a device, loses it, or hangs there: the device is lost, and started anew.
//!
//! The panic itself was caught, or the engine has said that the device is gone, and its batch has failed. But what the
//! engine keeps for the device may be in any state, so that nothing of it is used any more once the driver knows:
//!
//! ```text
//!  panic ──> retire ──> orders come back ──> DeviceLost ──> the old threads end, weights are freed ──> DeviceAdded, empty
//!                                                │
//!                                                └──> the scheduler plans its requests elsewhere, or anew
//! ```
//!
//! A thread that hangs gives nothing back. It is left behind with all that it was ordered, whose requests fail, and
//! others take its place, which give back what the scheduler orders until it knows:
//!
//! ```text
//!  hangs ──> other threads, retired ──> what it was ordered fails ──> DeviceLost ──> other threads ──> DeviceAdded, empty
//! ```

use super::Core;
use super::books::Expectation;
use crate::Inner;
use crate::messages::CellMessage;
use base::{ActionId, DeviceId, Timestamp};
use scheduler::{DeviceSpec, Event};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use worker::{OrderReport, Pulse, Status};

/// So many threads of a device are left behind; then it stays away. Each of them may keep a core busy for good.
const MOST_LEFT_BEHIND: u32 = 4;

/// Why a device can't go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Loss {
    /// Its engine panicked, or said that it is gone.
    Broken,
    /// A thread of it hangs.
    Hangs,
}

/// A device that can't go on.
#[derive(Debug)]
pub(super) struct BrokenDevice {
    device: DeviceId,
    loss: Loss,
    why: String,
}

impl Core {
    /// Tells the scheduler of a device that is there and empty.
    pub(super) fn announce(&mut self, inner: &Inner, now: Timestamp, device: DeviceId) {
        let driven = &self.devices[device.index()];
        let kind = self.configs[device.index()].kind;
        let spec = DeviceSpec { device, pages: driven.device.pages().total(), kind };
        driven.metrics.pages(spec.pages, 0);
        self.step(inner, now, Event::DeviceAdded(spec));
    }

    /// Whether a device can't go on.
    pub(super) fn is_broken(&self, device: DeviceId) -> bool {
        self.broken.iter().any(|broken| broken.device == device)
    }

    /// Gives up a device whose engine has panicked or lost it, in a batch, a load or an unload. It is lost when it has
    /// given back what it was ordered: the scheduler may give these requests to others at once, and must find their
    /// inputs here.
    pub(super) fn retire(&mut self, device: DeviceId, loss: Loss, why: String) {
        if self.is_broken(device) {
            return;
        }
        if !self.devices[device.index()].device.retire() {
            self.fatal("an executor is gone, or has more orders than the scheduler ever leaves outstanding");
        }
        self.broken.push(BrokenDevice { device, loss, why });
    }

    /// Lets the threads of a device be watched, unless its engine never computes.
    pub(super) fn have_watched(&self, inner: &Inner, device: DeviceId) {
        let (driven, config) = (&self.devices[device.index()], &self.configs[device.index()]);
        if !config.only_waits {
            inner.watchdog.add_device(self.cell, device, &config.name, driven.device.pulses());
        }
    }

    /// Goes on without a thread of a device that hangs, and without all that the device was ordered.
    pub(super) fn leave_behind(
        &mut self,
        inner: &Inner,
        now: Timestamp,
        device: DeviceId,
        pulse: &Arc<Pulse>,
        why: &str,
    ) {
        let there = &self.devices[device.index()].device;
        // It may have been started anew meanwhile.
        if !there.pulses().iter().any(|own| Arc::ptr_eq(own, pulse)) {
            return;
        }
        tracing::error!(device = self.configs[device.index()].name, "{why}; its thread is left behind");
        let others = match inner.start_device(self.cell, &self.configs[device.index()]) {
            Ok(others) => others,
            Err(error) => self.fatal(&format!("{why}, and no other threads could be started: {error}")),
        };
        std::mem::replace(&mut self.devices[device.index()].device, others).leave_behind();
        inner.cells[self.cell].given_up[device.index()].fetch_add(1, Ordering::Relaxed);
        self.broken.retain(|broken| broken.device != device);
        self.retire(device, Loss::Hangs, "a thread of it hangs".into());
        self.measuring = None;
        let hangs = ActionId(pulse.subject());
        let ordered: Vec<ActionId> = (self.expectations.iter())
            .filter(|(action, expected)| expected.device == device && (expected.done_at.is_some() || **action == hangs))
            .map(|(action, _)| *action)
            .collect();
        for action in ordered {
            let status = if action == hangs { Status::Hangs(why.to_owned()) } else { Status::Failed(why.to_owned()) };
            self.lost = Some(why.to_owned());
            self.report(inner, now, OrderReport { action, status, returned: Vec::new() });
            self.lost = None;
        }
        inner.lost.tell();
        self.lose_if_empty(inner, now, device);
    }

    /// Whether this is a batch that a broken device gave back. The scheduler isn't told: it would order it there again.
    pub(super) fn came_back(&self, expectation: &Expectation) -> bool {
        expectation.done_at.is_some() && self.is_broken(expectation.device)
    }

    /// Loses a broken device as soon as it has no batch any more.
    pub(super) fn lose_if_empty(&mut self, inner: &Inner, now: Timestamp, device: DeviceId) {
        let Some(position) = self.broken.iter().position(|broken| broken.device == device) else { return };
        let has_batches = |expected: &Expectation| expected.device == device && expected.done_at.is_some();
        if !self.expectations.values().any(has_batches) {
            let broken = self.broken.swap_remove(position);
            self.lose(inner, now, broken);
        }
    }

    fn lose(&mut self, inner: &Inner, now: Timestamp, BrokenDevice { device, loss, why }: BrokenDevice) {
        // Its loads: nobody waits for their reports any more.
        self.expectations.retain(|_, expected| expected.device != device);
        self.unloads.retain(|_, on| *on != device);
        self.held.retain(|(_, load)| load.device != device);
        self.watch.forget(device);
        self.away.insert(device);
        self.count_devices(inner);
        // Before it is lost: who could run there alone has others when his requests look for one.
        self.allot(inner, now);
        let (driven, config) = (&mut self.devices[device.index()], &self.configs[device.index()]);
        driven.metrics.lost();
        driven.metrics.pages(driven.device.pages().total(), 0);
        let name = config.name.clone();
        tracing::error!(device = name, "the device is lost: {why}; what it held is loaded anew where it is needed");
        let left_behind = inner.cells[self.cell].given_up[device.index()].load(Ordering::Relaxed);
        let comes_back = loss == Loss::Broken || inner.limits.comes_back && left_behind < MOST_LEFT_BEHIND;
        let weights: Vec<_> =
            self.models.iter_mut().flatten().filter_map(|model| model.slots.remove(&device)).collect();
        let old = match comes_back.then(|| inner.start_device(self.cell, config)) {
            Some(Ok(fresh)) => Some(std::mem::replace(&mut driven.device, fresh)),
            Some(Err(error)) => {
                tracing::error!(device = name, "the device stays away: its threads could not be started: {error}");
                None
            }
            None => None,
        };
        if old.is_none() {
            inner.watchdog.stays_stuck(format!("device {name} is lost and can't be started anew"));
        }
        self.step(inner, now, Event::DeviceLost(device));
        let inbox = inner.inbox_of(self.cell);
        // Not here: to free memory takes time, and the end of the old threads may take longer.
        let cleanup = std::thread::Builder::new().name(format!("free {name}")).spawn(move || {
            let comes_back = old.is_some();
            drop(old);
            for slot in weights {
                // What panicked once may do so again.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(slot)));
            }
            if comes_back {
                inbox.tell(CellMessage::DeviceBack(device));
            }
        });
        if let Err(error) = cleanup {
            tracing::error!("the lost device stays away: a thread could not be started: {error}");
        }
    }

    /// A lost device was started anew.
    pub(super) fn come_back(&mut self, inner: &Inner, now: Timestamp, device: DeviceId) {
        self.away.remove(&device);
        self.count_devices(inner);
        self.have_watched(inner, device);
        tracing::info!(device = self.configs[device.index()].name, "the device is back, empty");
        self.announce(inner, now, device);
        self.allot(inner, now);
    }
}
