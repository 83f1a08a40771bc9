//! The queues of all models, and where each is loaded, with what all policies have in common: batch work, and requests
//! whose time has run out. The skeleton changes them; policies look at them.

use crate::bits::{Bits, DeviceSet};
use crate::ledger::Ledger;
use crate::policy::Batch;
use crate::queue::{ModelQueue, Place, Queued};
use crate::ready_models::ReadyModels;
use crate::slack::BatchWorkLimit;
use crate::table::{anew, grown};
use base::{DeviceId, Duration, ModelId, RequestId, Timestamp};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How many models are asked for batch work that is short enough.
const BACKGROUND_SEARCH: usize = 32;

#[derive(Clone, Debug, Default)]
struct ModelInHand {
    queue: ModelQueue,
    /// The devices on which it is loaded.
    devices: DeviceSet,
    /// The key under which it stands in `expiries`.
    armed_at: Option<Timestamp>,
    /// The key under which its batch work stands in `background`.
    background_key: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Queues {
    models: Vec<ModelInHand>,
    /// For each device the models that are loaded there.
    held: Vec<Bits>,
    /// Models with batch work, the oldest first.
    background: ReadyModels<u64>,
    expiries: BinaryHeap<Reverse<(Timestamp, ModelId)>>,
    /// What starting a batch takes on the way to its device, which a request must still have time for.
    lead: Duration,
    members: Vec<Queued>,
}

impl Queues {
    pub fn with_lead(lead: Duration) -> Self {
        Self { lead, ..Self::default() }
    }

    pub fn add_model(&mut self, model: ModelId) {
        assert!(self.models.get(model.index()).is_none_or(|before| before.queue.len() == 0), "{model} has a queue");
        // What is in `expiries` of who had the number before is passed over there: its time is nobody's.
        anew(&mut self.models, model.index());
    }

    /// Nothing is loaded there.
    pub fn add_device(&mut self, device: DeviceId) {
        grown(&mut self.held, device.index());
    }

    pub fn of(&self, model: ModelId) -> &ModelQueue {
        &self.models[model.index()].queue
    }

    /// The devices on which a model is loaded.
    pub fn devices_of(&self, model: ModelId) -> &DeviceSet {
        &self.models[model.index()].devices
    }

    /// Whether a model is loaded on a device.
    pub fn holds(&self, device: DeviceId, model: ModelId) -> bool {
        self.held[device.index()].contains(model.index())
    }

    pub fn insert(&mut self, ledger: &Ledger, model: ModelId, place: Place, queued: Queued) {
        self.models[model.index()].queue.insert(place, queued);
        if place.deadline_at == Timestamp::NEVER {
            self.list_background(model);
        } else {
            self.arm(ledger, model);
        }
    }

    pub fn remove(&mut self, model: ModelId, place: Place) {
        self.models[model.index()].queue.remove(place);
        if place.deadline_at == Timestamp::NEVER {
            self.list_background(model);
        }
    }

    pub fn loaded(&mut self, model: ModelId, device: DeviceId) {
        self.models[model.index()].devices.insert(device);
        self.held[device.index()].insert(model.index());
    }

    pub fn unloaded(&mut self, ledger: &Ledger, model: ModelId, device: DeviceId) {
        let entry = &mut self.models[model.index()];
        entry.devices.remove(device);
        self.held[device.index()].remove(model.index());
        // Without its weights a request expires earlier.
        entry.armed_at = None;
        self.arm(ledger, model);
    }

    // ---- batch work ----

    /// Makes the list of batch work agree with the model's queue.
    fn list_background(&mut self, model: ModelId) {
        let entry = &mut self.models[model.index()];
        let first = entry.queue.first_background();
        if std::mem::replace(&mut entry.background_key, first) != first {
            self.background.set(model, first);
        }
    }

    /// Batch work that takes no longer than it may.
    pub fn next_background(&mut self, ledger: &Ledger, device: DeviceId, limit: BatchWorkLimit) -> Option<Batch> {
        let mut members = std::mem::take(&mut self.members);
        let batch = self.background.on(self, device).take(BACKGROUND_SEARCH).find_map(|(_, model)| {
            let times = ledger.times(model, device);
            let candidate = self.of(model).background_candidate(times, limit, &mut members)?;
            Some(Batch::of(model, candidate, &members))
        });
        self.members = members;
        batch
    }

    /// Whether batch work is queued for any model.
    pub fn has_background(&self) -> bool {
        !self.background.is_empty()
    }

    /// Whether batch work is queued for a model that is loaded on one of these devices.
    pub fn background_waits(&self, devices: &DeviceSet) -> bool {
        self.background.first_pair(self, devices).is_some()
    }

    // ---- requests whose time has run out ----

    /// When the first request of a model can no longer be met: with the weights somewhere or on their way, when not
    /// even the smallest batch would be in time; else when a load before it wouldn't be either.
    fn expiry(&self, ledger: &Ledger, model: ModelId) -> Option<(Timestamp, Queued)> {
        let (deadline_at, queued) = self.models[model.index()].queue.first()?;
        let there = ledger.model(model);
        let load = if there.residency.is_empty() { there.estimates.load() } else { Duration::ZERO };
        Some((deadline_at - ledger.smallest(there) - load - self.lead, queued))
    }

    fn arm(&mut self, ledger: &Ledger, model: ModelId) {
        let Some((at, _)) = self.expiry(ledger, model) else { return };
        let armed_at = &mut self.models[model.index()].armed_at;
        if armed_at.is_none_or(|armed_at| at < armed_at) {
            *armed_at = Some(at);
            self.expiries.push(Reverse((at, model)));
        }
    }

    /// A request whose deadline can no longer be met, if there is one. The caller removes it.
    pub fn expired(&mut self, ledger: &Ledger, now: Timestamp) -> Option<RequestId> {
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

    /// When `expired` should be asked next.
    pub fn next_expiry(&self) -> Option<Timestamp> {
        // One past: a request may start at the very last instant.
        self.expiries.peek().map(|&Reverse((at, _))| at + Duration::from_nanos(1))
    }
}
