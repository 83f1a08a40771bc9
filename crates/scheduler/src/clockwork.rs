//! Clockwork's choice of batches (appendix B), without walking its queue of strategies.
//!
//! The paper keeps one strategy for each request and batch size in one queue, ordered by required start, and walks it,
//! skipping what isn't loaded, too big, too small or too late. For one model and one start only one strategy survives
//! those rules: `ModelQueue::candidate`. So each device keeps its loaded models in the order of that strategy's required
//! start, and asks the first one only. The start moves on, which changes the strategy, but only ever to a later required
//! start: what the list holds is a lower bound, and is corrected when the model comes to the front.

use crate::ledger::Ledger;
use crate::policy::{Batch, Policy};
use crate::queue::{ModelQueue, Place, Queued};
use crate::slack::BatchWorkLimit;
use base::{DeviceId, Duration, ModelId, RequestId, Timestamp};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// How many models are asked for batch work that is short enough.
const BACKGROUND_SEARCH: usize = 32;

#[derive(Debug, Default)]
struct ModelEntry {
    queue: ModelQueue,
    /// The devices on which it is loaded, each with its key in that device's list if it is there.
    devices: Vec<(DeviceId, Option<Timestamp>)>,
    /// If set, the model is in the list of every device in `devices`, with keys not above this.
    ceiling: Option<Timestamp>,
    /// The key under which it stands in `expiries`.
    armed_at: Option<Timestamp>,
    /// The key under which its batch work stands in the devices' lists.
    background_key: Option<u64>,
}

#[derive(Debug, Default)]
struct DeviceEntry {
    /// Loaded models with urgent requests, by a lower bound of their required start.
    candidates: BTreeSet<(Timestamp, ModelId)>,
    /// Models with urgent requests none of which is in time here, as long as the device isn't free earlier than planned.
    parked: Vec<ModelId>,
    /// Loaded models with batch work, the oldest first.
    background: BTreeSet<(u64, ModelId)>,
}

#[derive(Debug, Default)]
pub(crate) struct Clockwork {
    models: Vec<ModelEntry>,
    devices: Vec<DeviceEntry>,
    expiries: BinaryHeap<Reverse<(Timestamp, ModelId)>>,
    members: Vec<Queued>,
    /// How many models have batch work.
    background_models: usize,
}

impl Clockwork {
    /// Puts a model into the lists of the devices where its key is missing or too high.
    fn list(&mut self, ledger: &Ledger, model: ModelId) {
        let entry = &mut self.models[model.index()];
        let Some(bound) = entry.queue.lower_bound(&ledger.model(model).latency) else { return };
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

    /// Makes the devices' lists of batch work agree with the model's queue.
    fn list_background(&mut self, model: ModelId) {
        let entry = &mut self.models[model.index()];
        let first = entry.queue.first_background();
        if first == entry.background_key {
            return;
        }
        let old = std::mem::replace(&mut entry.background_key, first);
        self.background_models += usize::from(first.is_some());
        self.background_models -= usize::from(old.is_some());
        for (device, _) in &entry.devices {
            let background = &mut self.devices[device.index()].background;
            if let Some(old) = old {
                background.remove(&(old, model));
            }
            if let Some(first) = first {
                background.insert((first, model));
            }
        }
    }

    /// When the first request of a model can no longer be met: with the weights somewhere or on their way, when not even
    /// the smallest batch would be in time; else when a load before it wouldn't be either.
    fn expiry(&self, ledger: &Ledger, model: ModelId) -> Option<(Timestamp, Queued)> {
        let (deadline_at, queued) = self.models[model.index()].queue.first()?;
        let there = ledger.model(model);
        let load = if there.residency.is_empty() { there.latency.load() } else { Duration::ZERO };
        Some((deadline_at - there.latency.smallest() - load, queued))
    }

    fn arm(&mut self, ledger: &Ledger, model: ModelId) {
        let Some((at, _)) = self.expiry(ledger, model) else { return };
        let armed_at = &mut self.models[model.index()].armed_at;
        if armed_at.is_none_or(|armed_at| at < armed_at) {
            *armed_at = Some(at);
            self.expiries.push(Reverse((at, model)));
        }
    }

    fn batch(&self, model: ModelId, candidate: crate::queue::Candidate) -> Batch {
        Batch { model, candidate, members: self.members.iter().map(|member| member.id).collect() }
    }
}

impl Policy for Clockwork {
    fn add_model(&mut self, model: ModelId) {
        if self.models.len() <= model.index() {
            self.models.resize_with(model.index() + 1, ModelEntry::default);
        }
    }

    fn add_device(&mut self, device: DeviceId) {
        if self.devices.len() <= device.index() {
            self.devices.resize_with(device.index() + 1, DeviceEntry::default);
        }
        self.devices[device.index()] = DeviceEntry::default();
    }

    fn queued(&self, model: ModelId) -> usize {
        self.models[model.index()].queue.len()
    }

    fn urgent_rows(&self, model: ModelId) -> u64 {
        self.models[model.index()].queue.rows()
    }

    fn has_urgent(&self, model: ModelId) -> bool {
        !self.models[model.index()].queue.is_empty()
    }

    fn background_queued(&self, model: ModelId) -> usize {
        self.models[model.index()].queue.background_len()
    }

    fn first_background(&self, model: ModelId) -> Option<u64> {
        self.models[model.index()].queue.first_background()
    }

    fn last_deadline(&self, model: ModelId) -> Option<Timestamp> {
        self.models[model.index()].queue.last_deadline()
    }

    fn all_queued(&self, model: ModelId) -> Vec<RequestId> {
        self.models[model.index()].queue.ids()
    }

    fn insert(&mut self, ledger: &Ledger, model: ModelId, place: Place, queued: Queued) {
        self.models[model.index()].queue.insert(place, queued);
        if place.deadline_at == Timestamp::NEVER {
            self.list_background(model);
        } else {
            self.list(ledger, model);
            self.arm(ledger, model);
        }
    }

    fn remove(&mut self, model: ModelId, place: Place) {
        // Keys stay: they are lower bounds, and taking a request away only raises the true ones.
        self.models[model.index()].queue.remove(place);
        if place.deadline_at == Timestamp::NEVER {
            self.list_background(model);
        }
    }

    fn loaded(&mut self, ledger: &Ledger, model: ModelId, device: DeviceId) {
        let entry = &mut self.models[model.index()];
        if let Err(index) = entry.devices.binary_search_by_key(&device, |&(device, _)| device) {
            entry.devices.insert(index, (device, None));
            entry.ceiling = None;
            if let Some(first) = entry.background_key {
                self.devices[device.index()].background.insert((first, model));
            }
        }
        self.list(ledger, model);
    }

    fn unloaded(&mut self, ledger: &Ledger, model: ModelId, device: DeviceId) {
        self.rekey(model, device, None);
        let entry = &mut self.models[model.index()];
        if let Some(first) = entry.background_key {
            self.devices[device.index()].background.remove(&(first, model));
        }
        entry.devices.retain(|&(there, _)| there != device);
        // Without its weights a request expires earlier.
        entry.armed_at = None;
        self.arm(ledger, model);
    }

    fn freed(&mut self, ledger: &Ledger, device: DeviceId) {
        while let Some(model) = self.devices[device.index()].parked.pop() {
            if ledger.model(model).is_loaded_on(device) {
                self.models[model.index()].ceiling = None;
                self.list(ledger, model);
            }
        }
    }

    fn next_batch(&mut self, ledger: &Ledger, device: DeviceId, start_at: Timestamp) -> Option<Batch> {
        loop {
            let &(key, model) = self.devices[device.index()].candidates.first()?;
            let latency = &ledger.model(model).latency;
            let queue = &self.models[model.index()].queue;
            match queue.candidate(latency, start_at, &mut self.members) {
                Some(candidate) if candidate.latest <= key => return Some(self.batch(model, candidate)),
                Some(candidate) => self.rekey(model, device, Some(candidate.latest)),
                None => {
                    let parked = !queue.is_empty();
                    self.rekey(model, device, None);
                    if parked {
                        self.devices[device.index()].parked.push(model);
                    }
                }
            }
        }
    }

    fn next_background(&mut self, ledger: &Ledger, device: DeviceId, limit: BatchWorkLimit) -> Option<Batch> {
        for &(_, model) in self.devices[device.index()].background.iter().take(BACKGROUND_SEARCH) {
            let queue = &self.models[model.index()].queue;
            if let Some(candidate) = queue.background_candidate(&ledger.model(model).latency, limit, &mut self.members)
            {
                return Some(self.batch(model, candidate));
            }
        }
        None
    }

    fn background_waits(&self, devices: &BTreeSet<DeviceId>) -> bool {
        let waits = |device: &DeviceId| !self.devices[device.index()].background.is_empty();
        self.background_models > 0 && devices.iter().any(waits)
    }

    fn expired(&mut self, ledger: &Ledger, now: Timestamp) -> Option<RequestId> {
        while let Some(&Reverse((at, model))) = self.expiries.peek() {
            if at >= now {
                break;
            }
            if self.models[model.index()].armed_at != Some(at) {
                self.expiries.pop();
                continue;
            }
            match self.expiry(ledger, model) {
                // Stays armed: the next call looks at the next request of this model.
                Some((expires_at, queued)) if expires_at < now => return Some(queued.id),
                Some(_) | None => {
                    self.expiries.pop();
                    self.models[model.index()].armed_at = None;
                    self.arm(ledger, model);
                }
            }
        }
        None
    }

    fn next_expiry(&self) -> Option<Timestamp> {
        // One past: a request may start at the very last instant.
        self.expiries.peek().map(|&Reverse((at, _))| at + Duration::from_nanos(1))
    }
}
