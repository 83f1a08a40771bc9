//! What follows when an engine panics on a device: the device is lost, and started anew.
//!
//! The panic itself was caught, and its batch has failed. But what the engine keeps for the device may be in any state,
//! so that nothing of it is used any more once the driver knows:
//!
//! ```text
//!  panic ──> retire ──> orders come back ──> DeviceLost ──> the old threads end, weights are freed ──> DeviceAdded, empty
//!                                                │
//!                                                └──> the scheduler plans its requests elsewhere, or anew
//! ```

use super::Core;
use super::books::Expectation;
use crate::Inner;
use crate::messages::CellMessage;
use base::{DeviceId, Timestamp};
use scheduler::{DeviceSpec, Event};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

impl Core {
    /// Tells the scheduler of a device that is there and empty.
    pub(super) fn announce(&mut self, inner: &Inner, now: Timestamp, device: DeviceId) {
        let driven = &self.devices[device.index()];
        let kind = self.configs[device.index()].kind;
        let spec = DeviceSpec { device, pages: driven.device.pages().total(), kind };
        driven.metrics.pages(spec.pages, 0);
        self.step(inner, now, Event::DeviceAdded(spec));
    }

    /// Gives up a device whose engine has panicked, in a batch, a load or an unload. It is lost when it has given back
    /// what it was ordered: the scheduler may give these requests to others at once, and must find their inputs here.
    pub(super) fn retire(&mut self, device: DeviceId) {
        if self.broken.contains(&device) {
            return;
        }
        if !self.devices[device.index()].device.retire() {
            self.fatal("an executor is gone, or has more orders than the scheduler ever leaves outstanding");
        }
        self.broken.push(device);
    }

    /// Whether this is a batch that a broken device gave back. The scheduler isn't told: it would order it there again.
    pub(super) fn came_back(&self, expectation: &Expectation) -> bool {
        expectation.done_at.is_some() && self.broken.contains(&expectation.device)
    }

    /// Loses a broken device as soon as it has no batch any more.
    pub(super) fn lose_if_empty(&mut self, inner: &Inner, now: Timestamp, device: Option<DeviceId>) {
        let Some(position) = self.broken.iter().position(|&broken| Some(broken) == device) else { return };
        let device = self.broken[position];
        let has_batches = |expected: &Expectation| expected.device == device && expected.done_at.is_some();
        if !self.expectations.values().any(has_batches) {
            self.broken.swap_remove(position);
            self.lose(inner, now, device);
        }
    }

    fn lose(&mut self, inner: &Inner, now: Timestamp, device: DeviceId) {
        // Its loads: nobody waits for their reports any more.
        self.expectations.retain(|_, expected| expected.device != device);
        self.unloads.retain(|_, on| *on != device);
        self.held.retain(|(_, load)| load.device != device);
        self.watch.forget(device);
        inner.cells[self.cell].devices.fetch_sub(1, Ordering::Relaxed);
        let (driven, config) = (&mut self.devices[device.index()], &self.configs[device.index()]);
        driven.metrics.lost();
        driven.metrics.pages(driven.device.pages().total(), 0);
        let name = config.name.clone();
        tracing::error!(
            device = name,
            "the device is lost: its engine panicked; what it held is loaded anew where it is needed"
        );
        let weights: Vec<_> =
            self.models.iter_mut().flatten().filter_map(|model| model.slots.remove(&device)).collect();
        let old = match inner.start_device(self.cell, config) {
            Ok(fresh) => Some(std::mem::replace(&mut driven.device, fresh)),
            Err(error) => {
                tracing::error!(device = name, "the device stays away: its threads could not be started: {error}");
                None
            }
        };
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
        inner.cells[self.cell].devices.fetch_add(1, Ordering::Relaxed);
        tracing::info!(device = self.configs[device.index()].name, "the device is back, empty");
        self.announce(inner, now, device);
    }
}
