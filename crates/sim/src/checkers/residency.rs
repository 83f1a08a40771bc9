//! P6: an execution only starts on weights that are fully loaded, and weights in use are never unloaded.

use crate::observe::{Facts, Observation, Observer, Refusal};
use crate::violation::{Broken, Violation};
use base::{ModelId, Timestamp};

/// P6.
#[derive(Debug)]
pub struct WeightsInPlace {
    devices: Vec<DeviceWeights>,
}

#[derive(Clone, Debug)]
struct DeviceWeights {
    /// For each model, whether it is fully loaded.
    loaded: Vec<bool>,
    running: Option<ModelId>,
}

impl WeightsInPlace {
    /// With every device empty.
    pub fn new(facts: &Facts<'_>) -> Self {
        let empty = DeviceWeights { loaded: vec![false; facts.models.len()], running: None };
        Self { devices: vec![empty; facts.devices as usize] }
    }
}

impl Observer for WeightsInPlace {
    fn observe(&mut self, at: Timestamp, seen: &Observation<'_>) -> Result<(), Violation> {
        let fail = |broken: Broken| Err(broken.at(at));
        match seen {
            Observation::LoadEnded { load, .. } => self.devices[load.device.index()].loaded[load.model.index()] = true,
            Observation::Unloaded { device, model, .. } => {
                let weights = &mut self.devices[device.index()];
                if weights.running == Some(*model) {
                    return fail(Broken::UnloadedInUse { device: *device, model: *model });
                }
                weights.loaded[model.index()] = false;
            }
            Observation::ExecutionStarted(execution) => {
                let weights = &mut self.devices[execution.device.index()];
                if !weights.loaded[execution.model.index()] {
                    let (action, model, device) = (execution.action, execution.model, execution.device);
                    return fail(Broken::NotLoaded { action, device, model });
                }
                weights.running = Some(execution.model);
            }
            Observation::ExecutionEnded { execution, .. } => self.devices[execution.device.index()].running = None,
            Observation::ExecutionBrokenOff(execution) | Observation::ExecutionFailed(execution) => {
                self.devices[execution.device.index()].running = None;
            }
            Observation::Refused { device, action, why: Refusal::NoWeights } => {
                return fail(Broken::SentWithoutWeights { action: *action, device: *device });
            }
            Observation::DeviceDied(device) => {
                let weights = &mut self.devices[device.index()];
                weights.running = None;
                weights.loaded.fill(false);
            }
            _ => {}
        }
        Ok(())
    }
}
