//! Devices that only some models may use: a plan says who computes in which share of a GPU.
//!
//! Weights that are on a device where their model may no longer run are *parked*: their pages stay taken until somebody
//! needs them, and the model is there again at once when it may run there again.

use crate::Scheduler;
use crate::event::{Allotment, Command};
use base::DeviceId;
use std::collections::BTreeSet;

impl Scheduler {
    pub(crate) fn allotted(&mut self, allotments: Vec<Allotment>, out: &mut Vec<Command>) {
        let mut changed = Vec::new();
        for Allotment { device, models } in allotments {
            let Some(Some(there)) = self.ledger.devices.get_mut(device.index()) else { continue };
            let models = models.map(BTreeSet::from_iter);
            if there.allotted == models {
                continue;
            }
            self.ledger.allotted += usize::from(models.is_some());
            self.ledger.allotted -= usize::from(there.allotted.is_some());
            there.allotted = models;
            changed.push(device);
        }
        if changed.is_empty() {
            return;
        }
        // Who comes first: a model that moves is nowhere at no time.
        changed.iter().for_each(|&device| self.unpark(device));
        changed.iter().for_each(|&device| self.park(device));
        self.ledger.note_allotted();
        for &device in &changed {
            // Beside others it may be as quick as its kind.
            self.slowed(device, 0);
            self.set_hungry(device);
        }
        self.note_kinds();
        // What is planned with, and who is there for whom, is something else for all.
        for device in self.ledger.device_ids().collect::<Vec<_>>() {
            self.list_anew(device);
        }
        self.update_models(out);
        self.planner.reconsider();
        self.touched.extend(changed);
    }

    /// Models that may run on a device again do so with the weights that they have there.
    fn unpark(&mut self, device: DeviceId) {
        let there = self.ledger.device(device);
        let models = there.by_last_use.iter().map(|&(_, model)| model).chain(there.loading.iter().copied());
        for model in models.filter(|&model| there.takes(model)).collect::<Vec<_>>() {
            let entry = self.ledger.model_mut(model);
            let Some(index) = entry.parked.iter().position(|there| there.device == device) else { continue };
            let residency = entry.parked.swap_remove(index);
            entry.insert_residency(residency);
            self.ledger.note_held(model, device);
            if residency.loading_until.is_none() {
                self.loaded(model, device);
            }
        }
    }

    /// Models that may no longer run on a device leave their weights there.
    fn park(&mut self, device: DeviceId) {
        let there = self.ledger.device(device);
        let models = there.by_last_use.iter().map(|&(_, model)| model).chain(there.loading.iter().copied());
        for model in models.filter(|&model| !there.takes(model)).collect::<Vec<_>>() {
            let entry = self.ledger.model_mut(model);
            if entry.residency_on(device).is_none() {
                continue;
            }
            let Some(mut residency) = entry.take_residency(device) else { continue };
            let allocation = std::mem::take(&mut residency.allocation);
            entry.parked.push(residency);
            self.ledger.device_mut(device).allocated -= allocation;
            self.ledger.forget_held(model);
            self.unloaded(model, device);
        }
    }
}
