//! The promises in the scheduler's documentation that aren't invariants of the whole system.

use super::entry;
use crate::observe::{Facts, Observation, Observer, Violation};
use base::{ActionId, DeviceId, ModelId, RequestId, Timestamp};
use scheduler::{Command, Event, Execution};
use std::collections::HashMap;

/// Actions are numbered in order; a batch has a supported size, is not empty, and its requests are alive, of its model, fit
/// into it and are in no other batch; orders go to devices that are there; windows aren't inside out.
#[derive(Debug)]
pub struct Contract {
    sizes: Vec<Vec<u32>>,
    there: Vec<bool>,
    last: Option<ActionId>,
    requests: Vec<Option<Alive>>,
    /// Batches that were not reported yet.
    outstanding: HashMap<ActionId, DeviceId>,
}

#[derive(Clone, Debug)]
struct Alive {
    generation: u32,
    model: ModelId,
    rows: u32,
    /// The last batch that it was sent with.
    sent_in: Option<ActionId>,
}

impl Contract {
    /// Before the first device.
    pub fn new(facts: &Facts<'_>) -> Self {
        let sizes = |spec: &scheduler::ModelSpec| spec.profile.batches().iter().map(|entry| entry.batch).collect();
        Self {
            sizes: facts.models.iter().map(sizes).collect(),
            there: vec![false; facts.devices as usize],
            last: None,
            requests: Vec::new(),
            outstanding: HashMap::new(),
        }
    }

    fn ordered(&mut self, command: &Command) -> Result<(), String> {
        let (action, device, window) = match command {
            Command::Execute(execution) => (execution.action, execution.device, execution.window),
            Command::Load(load) => (load.action, load.device, load.window),
            Command::Unload(unload) => return self.device_is_there(unload.device.index(), "an unload"),
            Command::Preempt { device, action } => {
                return match self.outstanding.get(action) {
                    Some(on) if on == device => Ok(()),
                    _ => Err(format!("{action} is to be broken off on {device}, but it isn't under way there")),
                };
            }
            Command::Finish { request, .. } => {
                *entry(&mut self.requests, request.slot) = None;
                return Ok(());
            }
        };
        if self.last.replace(action) >= Some(action) {
            return Err(format!("{action} does not come after the action before it"));
        }
        if window.earliest > window.latest {
            return Err(format!("{action} may start from {} to {}: never", window.earliest, window.latest));
        }
        self.device_is_there(device.index(), "an action")?;
        if let Command::Execute(execution) = command { self.batch(execution) } else { Ok(()) }
    }

    fn device_is_there(&self, device: usize, what: &str) -> Result<(), String> {
        if self.there.get(device) == Some(&true) {
            Ok(())
        } else {
            Err(format!("{what} goes to d{device}, which isn't there"))
        }
    }

    fn batch(&mut self, execution: &Execution) -> Result<(), String> {
        let Execution { action, model, batch, requests, .. } = execution;
        if requests.is_empty() {
            return Err(format!("{action} executes nothing"));
        }
        if !self.sizes[model.index()].contains(batch) {
            return Err(format!("{action} has batch size {batch}, which {model} does not support"));
        }
        let mut rows = 0;
        for request in requests {
            rows += self.member(*request, *action, *model)?;
        }
        self.outstanding.insert(*action, execution.device);
        if rows > *batch { Err(format!("{action} has {rows} rows in a batch of {batch}")) } else { Ok(()) }
    }

    /// The rows of a request that joins a batch.
    fn member(&mut self, request: RequestId, action: ActionId, model: ModelId) -> Result<u32, String> {
        let alive = entry(&mut self.requests, request.slot).as_mut();
        let alive = alive.filter(|alive| alive.generation == request.generation);
        let Some(alive) = alive else { return Err(format!("{action} executes {request}, which is not alive")) };
        if alive.model != model {
            return Err(format!("{action} executes {request} on {model}, but it asked for {}", alive.model));
        }
        let rows = alive.rows;
        match alive.sent_in.replace(action) {
            Some(other) if other == action || self.outstanding.contains_key(&other) => {
                Err(format!("{action} executes {request}, which is already in {other}"))
            }
            Some(_) | None => Ok(rows),
        }
    }
}

impl Observer for Contract {
    fn observe(&mut self, at: Timestamp, seen: &Observation<'_>) -> Result<(), Violation> {
        match seen {
            Observation::Told(Event::DeviceAdded(spec)) => self.there[spec.device.index()] = true,
            Observation::Told(Event::DeviceLost(device)) => {
                self.there[device.index()] = false;
                self.outstanding.retain(|_, on| on != device);
            }
            Observation::Told(Event::Submitted(request)) => {
                let alive = Alive {
                    generation: request.id.generation,
                    model: request.model,
                    rows: request.rows,
                    sent_in: None,
                };
                *entry(&mut self.requests, request.id.slot) = Some(alive);
            }
            Observation::Told(Event::Reported(report)) => drop(self.outstanding.remove(&report.action)),
            Observation::Ordered(command) => {
                return self.ordered(command).map_err(|message| Violation { invariant: "contract", at, message });
            }
            _ => {}
        }
        Ok(())
    }
}
