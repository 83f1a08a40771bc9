//! Devices that come, go, change, and turn out to be slower than others of their kind.

use crate::event::{Command, DeviceSpec};
use crate::ledger::{Action, Device};
use crate::policy::Fact;
use crate::table::grown;
use crate::{Scheduler, slowness};
use base::{ActionId, DeviceId, ModelId};

impl Scheduler {
    pub(crate) fn device_added(&mut self, spec: DeviceSpec) {
        let there = grown(&mut self.ledger.devices, spec.device.index());
        assert!(there.is_none(), "{} was added while it is there", spec.device);
        *there = Some(Device::new(spec.pages, spec.kind, self.ledger.next_epoch));
        self.ledger.next_epoch += 1;
        self.ledger.device_count += 1;
        self.ledger.note_devices();
        self.queues.add_device(spec.device);
        self.tell(Fact::DeviceAdded(spec.device));
        self.note_kinds();
        self.planner.reconsider();
        self.hungry.insert(spec.device);
        self.ledger.load_idle.insert(spec.device);
        // A model that was on every device no longer is.
        for index in 0..self.ledger.models.len() {
            if self.ledger.models[index].is_some() {
                self.planner.update(self.now, &mut self.ledger, &self.queues, ModelId(index as u32));
            }
        }
    }

    /// What is outstanding there stays as it was planned: it is over in a moment.
    pub(crate) fn device_changed(&mut self, device: DeviceId, kind: u32) {
        let Some(Some(there)) = self.ledger.devices.get_mut(device.index()) else { return };
        there.kind = kind;
        self.slowed(device, 0);
        if !self.note_kinds() {
            self.list_anew(device);
        }
        self.planner.reconsider();
        self.touched.push(device);
    }

    /// A device is so many steps slower than its kind from now on.
    pub(crate) fn slowed(&mut self, device: DeviceId, step: u32) {
        self.ledger.set_step(self.now, device, step);
        self.list_anew(device);
        self.touched.push(device);
    }

    /// Finds out whether devices are still slow that did nothing for long.
    pub(crate) fn try_slow_devices(&mut self) {
        if self.now < self.ledger.next_trial_at || self.ledger.slow.is_empty() || !self.learns {
            return;
        }
        let now = self.now;
        let due = |device: &DeviceId| self.ledger.device(*device).slowness.trial_at() <= now;
        for device in self.ledger.slow.iter().filter(due).collect::<Vec<_>>() {
            self.slowed(device, 0);
            self.ledger.device_mut(device).slowness.try_again(now);
        }
        self.ledger.note_trials();
    }

    /// How many times as long as on others of its kind batches are expected to take on a device, at most: 1 where it
    /// isn't known to be slower.
    pub fn slowness(&self, device: DeviceId) -> f64 {
        let there = self.ledger.devices.get(device.index()).and_then(Option::as_ref);
        there.map_or(1.0, |there| slowness::factor(there.slowness.step()))
    }

    /// Notes which kind of device is the slowest now. Whether that is another one.
    pub(crate) fn note_kinds(&mut self) -> bool {
        // Nobody is slow alone.
        for device in self.ledger.slow.iter().collect::<Vec<_>>() {
            if self.ledger.is_alone(device) {
                self.slowed(device, 0);
            }
        }
        let changed = self.ledger.note_kinds();
        if changed {
            let devices = (0..self.ledger.devices.len()).filter(|&device| self.ledger.devices[device].is_some());
            devices.collect::<Vec<_>>().into_iter().for_each(|device| self.list_anew(DeviceId(device as u32)));
        }
        changed
    }

    /// Lets the policy compute anew what it keeps of the models on a device: what they take there is something else.
    pub(crate) fn list_anew(&mut self, device: DeviceId) {
        let there = self.ledger.device(device);
        let loaded = there.by_last_use.iter().map(|&(_, model)| model);
        for model in loaded.filter(|&model| there.takes(model)).collect::<Vec<_>>() {
            self.unloaded(model, device);
            self.loaded(model, device);
        }
    }

    pub(crate) fn device_lost(&mut self, device: DeviceId, out: &mut Vec<Command>) {
        let Some(Some(there)) = self.ledger.devices.get(device.index()) else { return };
        let actions: Vec<ActionId> = there.exec.outstanding().chain(there.load.outstanding()).collect();
        let mut stranded = Vec::new();
        for action in actions {
            if let Some(Action::Execute { model, requests, .. }) = self.ledger.actions.remove(&action) {
                stranded.extend(requests);
                let entry = self.ledger.model_mut(model);
                entry.weights_on_mut(device).expect("weights in use stay (P6)").in_use -= 1;
                if entry.trials.are_of(action) {
                    entry.trials.ended(self.now, false);
                }
            }
        }
        let there = self.ledger.device(device);
        let models = there.by_last_use.iter().map(|&(_, model)| model).chain(there.loading.iter().copied());
        for model in models.collect::<Vec<_>>() {
            self.ledger.evict(model, device);
            self.unloaded(model, device);
        }
        if let Some(at) = self.ledger.device(device).hungry_at {
            self.hungry_at.remove(&(at, device));
        }
        let had_models = self.ledger.device(device).allotted.is_some();
        self.ledger.allotted -= usize::from(had_models);
        self.ledger.devices[device.index()] = None;
        if had_models {
            self.ledger.note_allotted();
        }
        self.ledger.device_count -= 1;
        self.ledger.slow.remove(device);
        self.ledger.note_devices();
        self.planner.reconsider();
        self.hungry.remove(device);
        self.ledger.load_idle.remove(device);
        self.ledger.busy.remove(device.index());
        self.tell(Fact::DeviceLost(device));
        self.note_kinds();
        for request in stranded {
            if let Some(entry) = self.requests.get_mut(request) {
                entry.stranded = true;
            }
            self.requeue(request, out);
        }
        self.update_models(out);
    }

    /// After devices were lost, or have other models: what is queued for removed models that can run nowhere is
    /// refused, and loads are planned anew for the others.
    pub(crate) fn update_models(&mut self, out: &mut Vec<Command>) {
        for index in 0..self.ledger.models.len() {
            let Some(model) = &self.ledger.models[index] else { continue };
            if model.removed && model.residency.is_empty() {
                self.refuse_removed(ModelId(index as u32), out);
            }
            self.planner.update(self.now, &mut self.ledger, &self.queues, ModelId(index as u32));
        }
    }
}
