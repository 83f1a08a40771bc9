//! P4, P5 and P6 by orders and reports alone, for recordings: there is no worker to look at.

use crate::violation::Invariant;
use base::{ActionId, DeviceId, ModelId, Timestamp, Transfers};
use scheduler::{ActionStatus, Command, Event, OneAtATime};
use std::collections::{BTreeMap, HashMap};

/// What orders and reports say about each device.
#[derive(Debug)]
pub(super) struct ReportChecker {
    /// Pages of each model.
    pages_of: Vec<u32>,
    devices: HashMap<DeviceId, ReportedDevice>,
    /// Batches and loads that weren't reported.
    under_way: HashMap<ActionId, (DeviceId, ModelId, ActionKind)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ActionKind {
    Batch,
    Load,
}

#[derive(Debug)]
struct ReportedDevice {
    pages: u32,
    used: u32,
    /// Models whose load was ordered, and whether it is done.
    weights: BTreeMap<ModelId, bool>,
    batches: OneAtATime,
    loads: OneAtATime,
}

type Checked = Result<(), (Invariant, String)>;

impl ReportChecker {
    pub fn new(pages_of: Vec<u32>) -> Self {
        Self { pages_of, devices: HashMap::new(), under_way: HashMap::new() }
    }

    pub fn told(&mut self, event: &Event) -> Checked {
        match event {
            // A number is another model's once nothing is left of the one that had it.
            Event::ModelAdded(spec) => self.pages_of[spec.model.index()] = spec.pages,
            Event::DeviceAdded(spec) => {
                let (batches, loads) = Default::default();
                let device = ReportedDevice { pages: spec.pages, used: 0, weights: BTreeMap::new(), batches, loads };
                self.devices.insert(spec.device, device);
            }
            Event::DeviceLost(device) => {
                self.devices.remove(device);
                self.under_way.retain(|_, (on, ..)| on != device);
            }
            Event::Reported(report) => {
                if let Some((on, model, ActionKind::Load)) = self.under_way.remove(&report.action)
                    && let Some(device) = self.devices.get_mut(&on)
                {
                    if matches!(report.status, ActionStatus::Done { .. }) {
                        device.weights.insert(model, true);
                    } else {
                        device.weights.remove(&model);
                        device.used = device.used.saturating_sub(self.pages_of[model.index()]);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    pub fn ordered(&mut self, command: &Command) -> Checked {
        match command {
            Command::Execute(execution) => {
                let (action, on, model) = (execution.action, execution.device, execution.model);
                let loaded = self.devices.get(&on).and_then(|device| device.weights.get(&model));
                if loaded != Some(&true) {
                    return Err((Invariant::P6, format!("{action} is sent to {on}, where {model} isn't loaded")));
                }
                self.under_way.insert(action, (on, model, ActionKind::Batch));
            }
            Command::Load(load) => {
                let (action, on, model) = (load.action, load.device, load.model);
                let Some(device) = self.devices.get_mut(&on) else { return Ok(()) };
                if device.weights.insert(model, false).is_some() {
                    return Err((Invariant::P5, format!("{action} loads {model}, which {on} has already")));
                }
                device.used += self.pages_of[model.index()];
                if device.used > device.pages {
                    let (used, pages) = (device.used, device.pages);
                    return Err((
                        Invariant::P5,
                        format!("{action} loads {model}, and {used} of {pages} pages of {on} are used"),
                    ));
                }
                self.under_way.insert(action, (on, model, ActionKind::Load));
            }
            Command::Unload(unload) => {
                let (on, model) = (unload.device, unload.model);
                if let Some((action, _)) =
                    self.under_way.iter().find(|(_, what)| **what == (on, model, ActionKind::Batch))
                {
                    return Err((Invariant::P6, format!("{model} is unloaded from {on}, where {action} needs it")));
                }
                let Some(device) = self.devices.get_mut(&on) else { return Ok(()) };
                if device.weights.remove(&model) != Some(true) {
                    return Err((Invariant::P6, format!("{model} is unloaded from {on}, where it isn't loaded")));
                }
                device.used -= self.pages_of[model.index()];
            }
            Command::Preempt { .. } | Command::Finish { .. } => {}
        }
        Ok(())
    }

    /// A report says that something ran.
    pub fn ran(
        &mut self,
        on: DeviceId,
        batch: bool,
        (started_at, ended_at, transfers): (Timestamp, Timestamp, Transfers),
    ) -> Checked {
        let Some(device) = self.devices.get_mut(&on) else { return Ok(()) };
        let executor = if batch { &mut device.batches } else { &mut device.loads };
        if executor.ran(started_at, ended_at, transfers) {
            return Ok(());
        }
        Err((
            Invariant::P4,
            format!("on {on} something ran from {started_at} to {ended_at}, beside what ran before it"),
        ))
    }

    /// Orders and reports must leave as many pages free as the scheduler counts.
    pub fn settled(&self, on: DeviceId, free: Option<u32>) -> Checked {
        let Some((device, free)) = self.devices.get(&on).zip(free) else { return Ok(()) };
        let left = device.pages - device.used;
        if left == free {
            return Ok(());
        }
        Err((Invariant::P5, format!("orders leave {left} pages of {on} free, the scheduler counts {free}")))
    }
}
