//! The promises in the scheduler's documentation that aren't invariants of the whole system.

use super::entry;
use crate::observe::{Facts, Observation, Observer};
use crate::violation::{Broken, Violation};
use base::{ActionId, DeviceId, ModelId, RequestId, Timestamp};
use scheduler::{Command, Event, Execution, ModelSpec};
use std::collections::HashMap;

/// Actions are numbered in order; a batch has a supported size, is not empty, and its requests are alive, of its model,
/// fit into it and are in no other batch; orders go to devices that are there; windows aren't inside out; only models
/// that are served are loaded.
#[derive(Debug)]
pub struct Contract {
    sizes: Vec<Vec<u32>>,
    there: Vec<bool>,
    /// For each model, whether it is served.
    served: Vec<bool>,
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

/// The batch sizes of a model.
fn sizes(spec: &ModelSpec) -> Vec<u32> {
    spec.profile.batches().iter().map(|entry| entry.batch).collect()
}

impl Contract {
    /// Before the first device.
    pub fn new(facts: &Facts<'_>) -> Self {
        Self {
            sizes: facts.models.iter().map(sizes).collect(),
            there: vec![false; facts.devices as usize],
            served: vec![false; facts.models.len()],
            last: None,
            requests: Vec::new(),
            outstanding: HashMap::new(),
        }
    }

    fn ordered(&mut self, command: &Command) -> Result<(), Broken> {
        let (action, device, window) = match command {
            Command::Execute(execution) => (execution.action, execution.device, execution.window),
            Command::Load(load) => (load.action, load.device, load.window),
            Command::Unload(unload) => return self.device_is_there(unload.device),
            Command::Preempt { device, action } => {
                return match self.outstanding.get(action) {
                    Some(on) if on == device => Ok(()),
                    _ => Err(Broken::NothingToBreakOff { action: *action, device: *device }),
                };
            }
            Command::Finish { request, .. } => {
                *entry(&mut self.requests, request.slot) = None;
                return Ok(());
            }
        };
        if self.last.replace(action) >= Some(action) {
            return Err(Broken::NotNumbered { action });
        }
        if window.earliest > window.latest {
            return Err(Broken::InsideOut { action, window });
        }
        self.device_is_there(device)?;
        match command {
            Command::Execute(execution) => self.batch(execution),
            Command::Load(load) if !self.served[load.model.index()] => {
                Err(Broken::LoadsRemoved { action, model: load.model })
            }
            _ => Ok(()),
        }
    }

    fn device_is_there(&self, device: DeviceId) -> Result<(), Broken> {
        if self.there.get(device.index()) == Some(&true) { Ok(()) } else { Err(Broken::NoSuchDevice { device }) }
    }

    fn batch(&mut self, execution: &Execution) -> Result<(), Broken> {
        let Execution { action, model, batch, ref requests, .. } = *execution;
        if requests.is_empty() {
            return Err(Broken::EmptyBatch { action });
        }
        if !self.sizes[model.index()].contains(&batch) {
            return Err(Broken::UnknownSize { action, model, batch });
        }
        let mut rows = 0;
        for request in requests {
            rows += self.member(*request, action, model)?;
        }
        self.outstanding.insert(action, execution.device);
        if rows > batch { Err(Broken::TooManyRows { action, rows, batch }) } else { Ok(()) }
    }

    /// The rows of a request that joins a batch.
    fn member(&mut self, request: RequestId, action: ActionId, model: ModelId) -> Result<u32, Broken> {
        let alive = entry(&mut self.requests, request.slot).as_mut();
        let alive = alive.filter(|alive| alive.generation == request.generation);
        let Some(alive) = alive else { return Err(Broken::DeadMember { action, request }) };
        if alive.model != model {
            return Err(Broken::OtherModel { action, request, model, asked: alive.model });
        }
        let rows = alive.rows;
        match alive.sent_in.replace(action) {
            Some(other) if other == action || self.outstanding.contains_key(&other) => {
                Err(Broken::InTwoBatches { action, request, other })
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
            Observation::Told(Event::ModelAdded(spec)) => {
                self.served[spec.model.index()] = true;
                // A number is another model's once nothing is left of the one that had it.
                self.sizes[spec.model.index()] = sizes(spec);
            }
            Observation::Told(Event::ModelRemoved(model)) => self.served[model.index()] = false,
            Observation::Told(Event::Submitted(request) | Event::StageSubmitted(request, _)) => {
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
                return self.ordered(command).map_err(|broken| broken.at(at));
            }
            _ => {}
        }
        Ok(())
    }
}
