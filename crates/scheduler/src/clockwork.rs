//! Clockwork's choice of batches (appendix B), without walking its queue of strategies.
//!
//! The paper keeps one strategy for each request and batch size in one queue, ordered by required start, and walks it,
//! skipping what isn't loaded, too big, too small or too late. For one model and one start only one strategy survives
//! those rules: `ModelQueue::candidate`. So each device keeps its loaded models in the order of that strategy's
//! required start, and asks the first one only. The start moves on, which changes the strategy, but only ever to a
//! later required start: what the list holds is a lower bound, and is corrected when the model comes to the front.

use crate::policy::{Batch, Fact, Policy, View};
use crate::queue::{Opening, Queued};
use crate::table::anew;
use base::{DeviceId, ModelId, Timestamp};
use std::collections::BTreeSet;

#[derive(Clone, Debug, Default)]
struct ClockworkModel {
    /// The devices on which it is loaded, each with its key in that device's list if it is there.
    devices: Vec<(DeviceId, Option<Timestamp>)>,
    /// If set, the model is in the list of every device in `devices`, with keys not above this.
    ceiling: Option<Timestamp>,
}

#[derive(Clone, Debug, Default)]
struct ClockworkDevice {
    /// Loaded models with urgent requests, by a lower bound of their required start.
    candidates: BTreeSet<(Timestamp, ModelId)>,
    /// Models with urgent requests none of which is in time here, as long as the device isn't free earlier than
    /// planned.
    parked: Vec<ModelId>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Clockwork {
    models: Vec<ClockworkModel>,
    devices: Vec<ClockworkDevice>,
    members: Vec<Queued>,
}

impl Clockwork {
    /// Puts a model into the lists of the devices where its key is missing or too high.
    fn list(&mut self, view: &View<'_>, model: ModelId) {
        let entry = &mut self.models[model.index()];
        let Some(bound) = view.queues.of(model).lower_bound(view.ledger.model(model).estimates.planned()) else {
            return;
        };
        if entry.ceiling.is_some_and(|ceiling| ceiling <= bound) {
            return;
        }
        for (device, key) in &mut entry.devices {
            if key.is_none_or(|key| key > bound) {
                let candidates = &mut self.devices[device.index()].candidates;
                if let Some(old) = key.replace(bound) {
                    candidates.remove(&(old, model));
                }
                candidates.insert((bound, model));
            }
        }
        entry.ceiling = Some(bound);
    }

    /// Changes or removes a model's key in one device's list.
    fn rekey(&mut self, model: ModelId, device: DeviceId, new: Option<Timestamp>) {
        let entry = &mut self.models[model.index()];
        let Ok(index) = entry.devices.binary_search_by_key(&device, |&(device, _)| device) else { return };
        let candidates = &mut self.devices[device.index()].candidates;
        if let Some(old) = std::mem::replace(&mut entry.devices[index].1, new) {
            candidates.remove(&(old, model));
        }
        if let Some(new) = new {
            candidates.insert((new, model));
        }
        entry.ceiling = match (entry.ceiling, new) {
            (Some(ceiling), Some(new)) => Some(ceiling.max(new)),
            _ => None,
        };
    }

    fn loaded(&mut self, view: &View<'_>, model: ModelId, device: DeviceId) {
        let entry = &mut self.models[model.index()];
        if let Err(index) = entry.devices.binary_search_by_key(&device, |&(device, _)| device) {
            entry.devices.insert(index, (device, None));
            entry.ceiling = None;
        }
        self.list(view, model);
    }

    fn freed(&mut self, view: &View<'_>, device: DeviceId) {
        while let Some(model) = self.devices[device.index()].parked.pop() {
            if view.ledger.model(model).is_loaded_on(device) {
                self.models[model.index()].ceiling = None;
                self.list(view, model);
            }
        }
    }
}

impl Policy for Clockwork {
    fn learn(&mut self, view: &View<'_>, fact: Fact) {
        match fact {
            Fact::ModelAdded(model) => _ = anew(&mut self.models, model.index()),
            Fact::DeviceAdded(device) => _ = anew(&mut self.devices, device.index()),
            // When one leaves, keys stay: they are lower bounds, and taking a request away only raises the true ones.
            Fact::Queued { model, place, .. } if place.deadline_at != Timestamp::NEVER => self.list(view, model),
            Fact::Loaded(model, device) => self.loaded(view, model, device),
            Fact::Unloaded(model, device) => {
                self.rekey(model, device, None);
                self.models[model.index()].devices.retain(|&(there, _)| there != device);
            }
            Fact::DeviceFreed(device) => self.freed(view, device),
            _ => {}
        }
    }

    fn next_batch(&mut self, view: &View<'_>, device: DeviceId, opening: Opening) -> Option<Batch> {
        loop {
            let &(key, model) = self.devices[device.index()].candidates.first()?;
            let queue = view.queues.of(model);
            match queue.candidate(view.ledger.times(model, device), opening, &mut self.members) {
                Some(candidate) if candidate.latest <= key => {
                    return Some(Batch::of(model, candidate, &self.members));
                }
                Some(candidate) => self.rekey(model, device, Some(candidate.latest)),
                None => {
                    self.rekey(model, device, None);
                    if queue.has_urgent() {
                        self.devices[device.index()].parked.push(model);
                    }
                }
            }
        }
    }
}
