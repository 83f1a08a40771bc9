//! P5: pages in use never exceed the device's, and the controller's count equals the worker's when nothing is in flight.

use crate::observe::{Facts, Observation, Observer, Refusal, Violation};
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

    fn ordered(&mut self, command: &Command) -> Result<(), String> {
        match command {
            Command::Load(load) => {
                self.loading.insert(load.action, (load.device, load.model));
                let used = &mut self.ordered[load.device.index()];
                *used += self.pages_of[load.model.index()];
                if *used > self.pages {
                    let (used, pages) = (*used, self.pages);
                    return Err(format!(
                        "{} loads {} so that {used} of {pages} pages are in use",
                        load.action, load.model
                    ));
                }
            }
            Command::Unload(unload) => {
                let used = &mut self.ordered[unload.device.index()];
                let freed = self.pages_of[unload.model.index()];
                *used = used.checked_sub(freed).ok_or_else(|| {
                    format!("unloading {} from {} frees pages that were never taken", unload.model, unload.device)
                })?;
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
        let fail = |message| Err(Violation { invariant: "P5", at, message });
        match seen {
            Observation::Told(event) => self.told(event),
            Observation::Ordered(command) => return self.ordered(command).or_else(fail),
            Observation::LoadStarted { load, pages_used } if *pages_used > self.pages => {
                return fail(format!("{} has {pages_used} of {} pages in use", load.device, self.pages));
            }
            Observation::Refused { device, action, why: Refusal::NoPages } => {
                return fail(format!("{device} has no room for {action}: the controller's count is wrong"));
            }
            Observation::Refused { device, action, why: Refusal::AlreadyLoaded } => {
                return fail(format!("{action} loads weights that {device} has already"));
            }
            Observation::Settled { device, pages_used, controller_used } => {
                let ordered = self.ordered[device.index()];
                if ordered != *pages_used {
                    return fail(format!("{device} has {pages_used} pages in use, the orders add up to {ordered}"));
                }
                if let Some(counted) = controller_used.filter(|counted| counted != pages_used) {
                    return fail(format!("{device} has {pages_used} pages in use, the controller counts {counted}"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
