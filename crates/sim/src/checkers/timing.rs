//! P3: nothing starts outside its window. P4: on one executor, executions never overlap.
//!
//! The workers hold both by themselves. So each is looked at twice: what the workers did, and what the scheduler
//! planned.

use super::entry;
use crate::observe::{Facts, Observation, Observer, Promises};
use crate::violation::{Broken, Violation};
use base::{ActionId, DeviceId, Duration, Timestamp, Window};
use scheduler::{ActionStatus, Command, Event, Execution, Report};
use std::collections::{HashMap, VecDeque};

/// P3. A worker starts an action in its window, and reports so. A batch that starts in its window and takes what is
/// expected is in time for each of its members, and is planned to start in it.
#[derive(Debug)]
pub struct StartInWindow {
    promises: Promises,
    /// For each slot, the deadline of the request that lives in it.
    deadlines: Vec<Timestamp>,
    /// Actions that were not reported yet.
    windows: HashMap<ActionId, (DeviceId, Window)>,
}

impl StartInWindow {
    /// Before the first order.
    pub fn new(facts: &Facts<'_>) -> Self {
        Self { promises: facts.promises, deadlines: Vec::new(), windows: HashMap::new() }
    }

    fn ordered(&mut self, execution: &Execution) -> Result<(), Broken> {
        let Execution { action, window, expected, .. } = *execution;
        self.windows.insert(action, (execution.device, window));
        if self.promises.planned && self.promises.exact {
            let start_at = execution.expected_done_at - expected;
            if !window.contains(start_at) {
                return Err(Broken::PlannedOutside { action, start_at, window });
            }
        }
        if !self.promises.exact || window.latest == Timestamp::NEVER {
            return Ok(());
        }
        for &request in &execution.requests {
            let deadline_at = *entry(&mut self.deadlines, request.slot);
            if window.latest + expected > deadline_at {
                return Err(Broken::WindowTooLong { action, latest: window.latest, expected, request, deadline_at });
            }
        }
        Ok(())
    }

    fn reported(&mut self, report: &Report) -> Result<(), Broken> {
        match (self.windows.remove(&report.action), report.status) {
            (Some((_, window)), ActionStatus::Done { started_at, .. }) => in_window(started_at, report.action, window),
            (None | Some(_), _) => Ok(()),
        }
    }
}

impl Observer for StartInWindow {
    fn observe(&mut self, at: Timestamp, seen: &Observation<'_>) -> Result<(), Violation> {
        let seen = match seen {
            Observation::Told(Event::Submitted(request) | Event::StageSubmitted(request, _)) => {
                *entry(&mut self.deadlines, request.id.slot) = request.deadline_at;
                Ok(())
            }
            Observation::Told(Event::DeviceLost(device)) => {
                self.windows.retain(|_, (on, _)| on != device);
                Ok(())
            }
            Observation::Told(Event::Reported(report)) => self.reported(report),
            Observation::Ordered(Command::Execute(execution)) => self.ordered(execution),
            Observation::Ordered(Command::Load(load)) => {
                self.windows.insert(load.action, (load.device, load.window));
                Ok(())
            }
            Observation::ExecutionStarted(execution) => in_window(at, execution.action, execution.window),
            Observation::LoadStarted { load, .. } => in_window(at, load.action, load.window),
            _ => Ok(()),
        };
        seen.map_err(|broken| broken.at(at))
    }
}

fn in_window(at: Timestamp, action: ActionId, window: Window) -> Result<(), Broken> {
    if window.contains(at) { Ok(()) } else { Err(Broken::OutsideWindow { action, window }) }
}

/// P4. A worker runs one batch at a time, and copies one model's weights at a time. A batch is planned to start when
/// all that was ordered before it on its device is planned to be over; or now, if that is overdue.
#[derive(Debug)]
pub struct OneAtATime {
    planned: bool,
    /// For each device, what its executors for batches and for loads are doing.
    running: Vec<[Option<ActionId>; 2]>,
    /// For each device, what was ordered.
    work: Vec<PlannedWork>,
    /// Where what was ordered and not reported yet is.
    devices: HashMap<ActionId, DeviceId>,
}

const EXECUTE: usize = 0;
const LOAD: usize = 1;

/// What a device was ordered to run and did not report yet.
#[derive(Clone, Debug, Default)]
struct PlannedWork {
    ordered: VecDeque<(ActionId, Timestamp, Duration)>,
    /// When all of it is planned to be over.
    free_at: Timestamp,
}

impl PlannedWork {
    fn add(&mut self, at: Timestamp, action: ActionId, expected: Duration) {
        self.free_at = self.free_at.max(at) + expected;
        self.ordered.push_back((action, at, expected));
    }

    /// One is over since then: what is behind it goes on from there.
    fn end(&mut self, ended_at: Timestamp, action: ActionId) {
        let before = self.ordered.len();
        self.ordered.retain(|&(other, ..)| other != action);
        if self.ordered.len() < before {
            self.free_at = self.ordered.iter().fold(ended_at, |at, &(_, ordered_at, takes)| at.max(ordered_at) + takes);
        }
    }
}

impl OneAtATime {
    /// With every executor idle.
    pub fn new(facts: &Facts<'_>) -> Self {
        Self {
            planned: facts.promises.planned,
            running: vec![[None; 2]; facts.devices as usize],
            work: vec![PlannedWork::default(); facts.devices as usize],
            devices: HashMap::new(),
        }
    }

    fn start(&mut self, device: DeviceId, executor: usize, action: ActionId) -> Result<(), Broken> {
        match self.running[device.index()][executor].replace(action) {
            None => Ok(()),
            Some(other) => Err(Broken::Overlap { action, device, other }),
        }
    }

    fn end(&mut self, device: DeviceId, executor: usize) -> Result<(), Broken> {
        self.running[device.index()][executor] = None;
        Ok(())
    }

    fn ordered(&mut self, at: Timestamp, execution: &Execution) -> Result<(), Broken> {
        let Execution { action, device, expected, expected_done_at, .. } = *execution;
        let Some(work) = self.work.get_mut(device.index()).filter(|_| self.planned) else { return Ok(()) };
        let (start_at, free_at) = (expected_done_at - expected, work.free_at.max(at));
        work.add(at, action, expected);
        self.devices.insert(action, device);
        if start_at < free_at { Err(Broken::PlannedOverlap { action, device, start_at, free_at }) } else { Ok(()) }
    }

    fn told(&mut self, at: Timestamp, event: &Event) {
        match event {
            Event::Reported(Report { action, status }) => {
                let ended_at = match status {
                    ActionStatus::Done { ended_at, .. } => (*ended_at).min(at),
                    ActionStatus::TooLate | ActionStatus::Preempted | ActionStatus::Failed => at,
                };
                if let Some(device) = self.devices.remove(action) {
                    self.work[device.index()].end(ended_at, *action);
                }
            }
            Event::Borrowed { device, action, expected } => self.work[device.index()].add(at, *action, *expected),
            Event::Returned { device, action } => self.work[device.index()].end(at, *action),
            Event::DeviceLost(device) => {
                self.work[device.index()] = PlannedWork::default();
                self.devices.retain(|_, on| on != device);
            }
            _ => {}
        }
    }
}

impl Observer for OneAtATime {
    fn observe(&mut self, at: Timestamp, seen: &Observation<'_>) -> Result<(), Violation> {
        let seen = match seen {
            Observation::Told(event) => {
                self.told(at, event);
                Ok(())
            }
            Observation::Ordered(Command::Execute(execution)) => self.ordered(at, execution),
            Observation::ExecutionStarted(execution) => self.start(execution.device, EXECUTE, execution.action),
            Observation::LoadStarted { load, .. } => self.start(load.device, LOAD, load.action),
            Observation::ExecutionEnded { execution, .. }
            | Observation::ExecutionFailed(execution)
            | Observation::ExecutionBrokenOff(execution) => self.end(execution.device, EXECUTE),
            Observation::LoadEnded { load, .. } | Observation::LoadFailed(load) => self.end(load.device, LOAD),
            Observation::DeviceDied(device) => {
                self.running[device.index()] = [None; 2];
                Ok(())
            }
            _ => Ok(()),
        };
        seen.map_err(|broken| broken.at(at))
    }
}
