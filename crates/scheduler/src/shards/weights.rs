//! Which weights are where, for shards: every model on every device (a sub-cluster of Symphony's section 4.4).
//!
//! A device takes part when it holds all models that are served; a model is served when all devices that take part hold it.
//! So whatever the ranker brings together can run (P6). A device that hasn't room for all of them takes no part; a model that
//! doesn't fit beside the others isn't served.

use super::desk::ActionNumbers;
use crate::{Command, DeviceSpec, Load, ModelSpec, Unload};
use base::{ActionId, DeviceId, Duration, ModelId, Timestamp, Window};
use std::collections::BTreeMap;

/// A load that failed is tried again after this, then after twice as long, and so on.
const FIRST_RETRY: Duration = Duration::from_millis(10);
/// But at least so often.
const LAST_RETRY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Absent,
    Loading,
    Loaded,
}

#[derive(Debug)]
struct Device {
    life: u32,
    free_pages: u32,
    /// Whether it holds, or will hold, all models that are served.
    used: bool,
    /// Whether it takes part.
    member: bool,
    /// By model.
    places: Vec<Place>,
}

#[derive(Debug)]
struct Model {
    pages: u32,
    load: Duration,
    /// Whether there was room for it.
    fits: bool,
    active: bool,
    removed: bool,
}

/// What follows for ranker and shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Consequence {
    /// A device takes part.
    Joined(DeviceId, u32),
    /// A model is served from now on.
    Activated(ModelId),
}

/// The weights of all models on all devices, a pure machine: devices, models and reports of loads come in; loads, unloads and
/// [`Consequence`]s come out.
#[derive(Debug, Default)]
pub struct Weights {
    devices: Vec<Option<Device>>,
    models: Vec<Option<Model>>,
    /// Loads under way, with how often each failed before.
    loads: BTreeMap<ActionId, (DeviceId, ModelId, u32)>,
    lives: u32,
    members: u32,
}

impl Weights {
    /// How many devices take part.
    pub fn members(&self) -> u32 {
        self.members
    }

    /// Whether some device holds the models, or is about to.
    pub fn has_devices(&self) -> bool {
        self.devices.iter().flatten().any(|device| device.used)
    }

    /// Whether a model may be asked for: it is there, and there was room for it.
    pub fn is_served(&self, model: ModelId) -> bool {
        self.model(model).is_some_and(|entry| entry.fits && !entry.removed)
    }

    /// Which of those that had this number a device is; `None` when it isn't there.
    pub fn life(&self, device: DeviceId) -> Option<u32> {
        Some(self.devices.get(device.index())?.as_ref()?.life)
    }

    /// Free pages of a device (P5); `None` when it isn't there.
    pub fn free_pages(&self, device: DeviceId) -> Option<u32> {
        Some(self.devices.get(device.index())?.as_ref()?.free_pages)
    }

    /// Whether a model's weights are on some device.
    pub fn is_loaded(&self, model: ModelId) -> bool {
        self.devices.iter().flatten().any(|device| device.places.get(model.index()) == Some(&Place::Loaded))
    }

    fn model(&self, model: ModelId) -> Option<&Model> {
        self.models.get(model.index())?.as_ref()
    }

    // ---- facts ----

    /// A device is there, empty.
    pub fn device_added(
        &mut self,
        now: Timestamp,
        spec: DeviceSpec,
        numbers: &mut ActionNumbers,
        out: &mut Vec<Command>,
        then: &mut Vec<Consequence>,
    ) {
        let index = spec.device.index();
        if self.devices.len() <= index {
            self.devices.resize_with(index + 1, || None);
        }
        assert!(self.devices[index].is_none(), "{} was added while it is there", spec.device);
        let wanted: u64 = self.models.iter().flatten().filter(|model| model.wanted()).map(|m| u64::from(m.pages)).sum();
        self.devices[index] = Some(Device {
            life: self.lives,
            free_pages: spec.pages,
            used: wanted <= u64::from(spec.pages),
            member: false,
            places: vec![Place::Absent; self.models.len()],
        });
        self.lives += 1;
        for model in 0..self.models.len() {
            self.load(now, spec.device, ModelId(model as u32), 0, numbers, out);
        }
        self.join(spec.device, then);
    }

    /// A device is gone.
    pub fn device_lost(&mut self, device: DeviceId, then: &mut Vec<Consequence>) {
        let Some(there) = self.devices.get_mut(device.index()).and_then(Option::take) else { return };
        self.members -= u32::from(there.member);
        self.loads.retain(|_, (on, _, _)| *on != device);
        // It may have been the last that a model waited for.
        self.activate(then);
    }

    /// A model is to be served.
    pub fn model_added(
        &mut self,
        now: Timestamp,
        spec: &ModelSpec,
        numbers: &mut ActionNumbers,
        out: &mut Vec<Command>,
        then: &mut Vec<Consequence>,
    ) {
        let index = spec.model.index();
        if self.models.len() <= index {
            self.models.resize_with(index + 1, || None);
        }
        assert!(self.models[index].is_none(), "{} was added twice", spec.model);
        let fits = self.devices.iter().flatten().all(|device| !device.used || device.free_pages >= spec.pages);
        let (pages, load) = (spec.pages, spec.profile.load());
        self.models[index] = Some(Model { pages, load, fits, active: false, removed: false });
        for device in 0..self.devices.len() {
            self.load(now, DeviceId(device as u32), spec.model, 0, numbers, out);
        }
        self.activate(then);
    }

    /// Ends the service of a model; its weights go when `unload` is called.
    pub fn model_removed(&mut self, model: ModelId, then: &mut Vec<Consequence>) {
        let Some(Some(entry)) = self.models.get_mut(model.index()) else { return };
        entry.removed = true;
        for device in 0..self.devices.len() {
            self.join(DeviceId(device as u32), then);
        }
    }

    /// Forgets the weights of a removed model; whether none are on their way any more. Models that there was no room for are
    /// loaded if there is now.
    pub fn unload(
        &mut self,
        now: Timestamp,
        model: ModelId,
        numbers: &mut ActionNumbers,
        out: &mut Vec<Command>,
    ) -> bool {
        let Some(Some(entry)) = self.models.get_mut(model.index()) else { return true };
        entry.active = false;
        let mut all = true;
        for (index, device) in self.devices.iter_mut().enumerate() {
            let Some(device) = device else { continue };
            match device.places.get(model.index()) {
                Some(Place::Loaded) => {
                    device.places[model.index()] = Place::Absent;
                    device.free_pages += entry.pages;
                    out.push(Command::Unload(Unload { device: DeviceId(index as u32), model }));
                }
                Some(Place::Loading) => all = false,
                Some(Place::Absent) | None => {}
            }
        }
        self.make_room(now, numbers, out);
        all
    }

    fn make_room(&mut self, now: Timestamp, numbers: &mut ActionNumbers, out: &mut Vec<Command>) {
        for index in 0..self.models.len() {
            let Some(entry) = &mut self.models[index] else { continue };
            if entry.fits || entry.removed {
                continue;
            }
            let pages = entry.pages;
            entry.fits = self.devices.iter().flatten().all(|device| !device.used || device.free_pages >= pages);
            for device in 0..self.devices.len() {
                self.load(now, DeviceId(device as u32), ModelId(index as u32), 0, numbers, out);
            }
        }
    }

    /// A load ended; whether that was one.
    pub fn reported(
        &mut self,
        now: Timestamp,
        action: ActionId,
        done: bool,
        numbers: &mut ActionNumbers,
        out: &mut Vec<Command>,
        then: &mut Vec<Consequence>,
    ) -> bool {
        let Some((device, model, failures)) = self.loads.remove(&action) else { return false };
        let there = self.devices[device.index()].as_mut().expect("loads of lost devices are forgotten");
        let entry = self.models[model.index()].as_ref().expect("models stay in the table");
        if done {
            there.places[model.index()] = Place::Loaded;
        } else {
            there.places[model.index()] = Place::Absent;
            there.free_pages += entry.pages;
            self.load(now, device, model, failures + 1, numbers, out);
        }
        self.join(device, then);
        self.activate(then);
        true
    }

    // ---- decisions ----

    fn load(
        &mut self,
        now: Timestamp,
        device: DeviceId,
        model: ModelId,
        failures: u32,
        numbers: &mut ActionNumbers,
        out: &mut Vec<Command>,
    ) {
        let Some(Some(there)) = self.devices.get_mut(device.index()) else { return };
        let Some(Some(entry)) = self.models.get(model.index()) else { return };
        if there.places.len() <= model.index() {
            there.places.resize(model.index() + 1, Place::Absent);
        }
        if !there.used || !entry.wanted() || there.places[model.index()] != Place::Absent {
            return;
        }
        there.places[model.index()] = Place::Loading;
        there.free_pages -= entry.pages;
        let pause = match failures {
            0 => Duration::ZERO,
            n => (FIRST_RETRY * (1 << (n - 1).min(20))).min(LAST_RETRY),
        };
        let action = numbers.take();
        self.loads.insert(action, (device, model, failures));
        let window = Window { earliest: now + pause, latest: Timestamp::NEVER };
        out.push(Command::Load(Load { action, device, model, window, expected: entry.load }));
    }

    /// Lets a device take part if it holds all that it should.
    fn join(&mut self, device: DeviceId, then: &mut Vec<Consequence>) {
        let Some(Some(there)) = self.devices.get_mut(device.index()) else { return };
        let missing = |(index, model): (usize, &Option<Model>)| {
            model.as_ref().is_some_and(Model::wanted) && there.places.get(index) != Some(&Place::Loaded)
        };
        if there.used && !there.member && !self.models.iter().enumerate().any(missing) {
            there.member = true;
            self.members += 1;
            then.push(Consequence::Joined(device, there.life));
            self.activate(then);
        }
    }

    /// Lets models be served that all devices which take part hold.
    fn activate(&mut self, then: &mut Vec<Consequence>) {
        if self.members == 0 {
            return;
        }
        for index in 0..self.models.len() {
            let Some(entry) = &mut self.models[index] else { continue };
            if entry.active || !entry.wanted() {
                continue;
            }
            let holds = |device: &Device| !device.member || device.places.get(index) == Some(&Place::Loaded);
            if self.devices.iter().flatten().all(holds) {
                entry.active = true;
                then.push(Consequence::Activated(ModelId(index as u32)));
            }
        }
    }
}

impl Model {
    fn wanted(&self) -> bool {
        self.fits && !self.removed
    }
}
