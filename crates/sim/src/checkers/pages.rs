//! P5: pages in use never exceed the device's, and the scheduler's count equals the worker's when nothing is in flight.

use crate::observe::{Facts, Observation, Observer, Refusal};
use crate::violation::{Broken, Violation};
use base::{ActionId, DeviceId, ModelId, Timestamp};
use scheduler::{ActionStatus, Command, Event};
use std::collections::HashMap;

/// P5. Counts what the orders add up to, and compares with what the workers have.
#[derive(Debug)]
pub struct PageCount {
    pages_of: Vec<u32>,
    pages: u32,
    /// For each device, the pages that the orders so far leave in use.
    ordered: Vec<u32>,
    /// Loads that were not reported yet.
    loading: HashMap<ActionId, (DeviceId, ModelId)>,
}

impl PageCount {
    /// With every device empty.
    pub fn new(facts: &Facts<'_>) -> Self {
        Self {
            pages_of: facts.models.iter().map(|model| model.pages).collect(),
            pages: facts.pages,
            ordered: vec![0; facts.devices as usize],
            loading: HashMap::new(),
        }
    }

    fn ordered(&mut self, command: &Command) -> Result<(), Broken> {
        match command {
            Command::Load(load) => {
                self.loading.insert(load.action, (load.device, load.model));
                let used = &mut self.ordered[load.device.index()];
                *used += self.pages_of[load.model.index()];
                if *used > self.pages {
                    let (used, pages) = (*used, self.pages);
                    return Err(Broken::TooManyPages { action: load.action, model: load.model, used, pages });
                }
            }
            Command::Unload(unload) => {
                let used = &mut self.ordered[unload.device.index()];
                let freed = self.pages_of[unload.model.index()];
                let never = Broken::NeverTaken { device: unload.device, model: unload.model };
                *used = used.checked_sub(freed).ok_or(never)?;
            }
            Command::Execute(_) | Command::Preempt { .. } | Command::Finish { .. } => {}
        }
        Ok(())
    }

    fn told(&mut self, event: &Event) {
        match event {
            Event::Reported(report) => {
                let Some((device, model)) = self.loading.remove(&report.action) else { return };
                if !matches!(report.status, ActionStatus::Done { .. }) {
                    let used = &mut self.ordered[device.index()];
                    *used = used.saturating_sub(self.pages_of[model.index()]);
                }
            }
            // A number is another model's once nothing is left of the one that had it.
            Event::ModelAdded(spec) => self.pages_of[spec.model.index()] = spec.pages,
            Event::DeviceLost(device) => {
                self.ordered[device.index()] = 0;
                self.loading.retain(|_, (on, _)| on != device);
            }
            _ => {}
        }
    }
}

impl Observer for PageCount {
    fn observe(&mut self, at: Timestamp, seen: &Observation<'_>) -> Result<(), Violation> {
        let fail = |broken: Broken| Err(broken.at(at));
        match seen {
            Observation::Told(event) => self.told(event),
            Observation::Ordered(command) => return self.ordered(command).or_else(fail),
            Observation::LoadStarted { load, pages_used } if *pages_used > self.pages => {
                return fail(Broken::DeviceOverfull { device: load.device, used: *pages_used, pages: self.pages });
            }
            Observation::Refused { device, action, why: Refusal::NoPages } => {
                return fail(Broken::NoRoom { device: *device, action: *action });
            }
            Observation::Refused { device, action, why: Refusal::AlreadyLoaded } => {
                return fail(Broken::LoadedTwice { device: *device, action: *action });
            }
            Observation::Settled { device, pages_used, controller_used } => {
                let (device, used, ordered) = (*device, *pages_used, self.ordered[device.index()]);
                if ordered != used {
                    return fail(Broken::OrdersDiffer { device, used, ordered });
                }
                if let Some(counted) = controller_used.filter(|&counted| counted != used) {
                    return fail(Broken::CountsDiffer { device, used, counted });
                }
            }
            _ => {}
        }
        Ok(())
    }
}
