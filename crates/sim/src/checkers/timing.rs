//! P3: nothing starts outside its window. P4: on one executor, executions never overlap.

use crate::observe::{Facts, Observation, Observer, Violation};
use base::{ActionId, DeviceId, Timestamp, Window};

/// P3.
#[derive(Debug)]
pub struct StartInWindow;

impl Observer for StartInWindow {
    fn observe(&mut self, at: Timestamp, seen: &Observation<'_>) -> Result<(), Violation> {
        match seen {
            Observation::ExecutionStarted(execution) => in_window(at, execution.action, execution.window),
            Observation::LoadStarted { load, .. } => in_window(at, load.action, load.window),
            _ => Ok(()),
        }
    }
}

fn in_window(at: Timestamp, action: ActionId, window: Window) -> Result<(), Violation> {
    if window.contains(at) {
        return Ok(());
    }
    let message = format!("{action} starts outside its window from {} to {}", window.earliest, window.latest);
    Err(Violation { invariant: "P3", at, message })
}

/// P4.
#[derive(Debug)]
pub struct OneAtATime {
    /// For each device, what its executors for batches and for loads are doing.
    running: Vec<[Option<ActionId>; 2]>,
}

const EXECUTE: usize = 0;
const LOAD: usize = 1;

impl OneAtATime {
    /// With every executor idle.
    pub fn new(facts: &Facts<'_>) -> Self {
        Self { running: vec![[None; 2]; facts.devices as usize] }
    }

    fn start(&mut self, at: Timestamp, device: DeviceId, executor: usize, action: ActionId) -> Result<(), Violation> {
        match self.running[device.index()][executor].replace(action) {
            None => Ok(()),
            Some(other) => {
                let message = format!("{action} starts on {device} while {other} is still running there");
                Err(Violation { invariant: "P4", at, message })
            }
        }
    }
}

impl Observer for OneAtATime {
    fn observe(&mut self, at: Timestamp, seen: &Observation<'_>) -> Result<(), Violation> {
        match seen {
            Observation::ExecutionStarted(execution) => self.start(at, execution.device, EXECUTE, execution.action)?,
            Observation::LoadStarted { load, .. } => self.start(at, load.device, LOAD, load.action)?,
            Observation::ExecutionEnded { execution, .. } => self.running[execution.device.index()][EXECUTE] = None,
            Observation::ExecutionBrokenOff(execution) => self.running[execution.device.index()][EXECUTE] = None,
            Observation::LoadEnded { load, .. } => self.running[load.device.index()][LOAD] = None,
            Observation::DeviceDied(device) => self.running[device.index()] = [None; 2],
            _ => {}
        }
        Ok(())
    }
}
