//! P10: no request is given up while a device could have run it. P11: no outcome comes long after its deadline.

use super::entry;
use crate::observe::{Facts, Observation, Observer};
use crate::violation::{Broken, Violation};
use base::{ActionId, DeviceId, Duration, ModelId, RequestId, Timestamp};
use scheduler::{ActionStatus, Allotment, Command, Delay, Event, Execution, ModelSpec, Outcome, Rejection, Report};
use std::collections::{BTreeSet, HashMap};

/// P10. A request that was queued is not refused for want of time (`Overloaded`, `DeadlineUnreachable`) if there is a
/// device that, all of it as the scheduler was told,
///
/// - is there, may run the request's model, and holds it: its load was reported, and no unload was ordered since;
/// - is idle: every batch that was ordered there was reported, and what the driver borrowed it for was returned;
/// - and has been both since before the request's *last chance*, and until the refusal.
///
/// The last chance is `deadline - l(rows) - delay(rows)`, with the longest `l(rows)` that the scheduler can believe in:
/// the profile on the slowest kind of device, times the largest factor by which any batch of the model that was
/// reported took longer than that. It counts only if the request was queued before it, and if that factor and the kinds
/// of devices have been the same since: a scheduler that defers a batch by design, until one more request wouldn't fit,
/// can be overtaken by what it learns meanwhile.
///
/// A device that the scheduler knows as slower than its kind has a last chance of its own, earlier by as much as it is
/// slower: what was measured of one model there holds for all, so that the scheduler believes things of a model there
/// that no batch of it has shown. Other devices' last chances are not earlier for that.
///
/// ```text
///  queued ──┐      last chance                 refused
///           ▼          ▼                          ▼
/// ──────────┬──────────┬───────── l(rows) ────────┼──┤ deadline
///      ▲ the device is idle, with the weights ... ▲
/// ```
///
/// What this leaves to policies: a first request may be given up for a larger batch at the instant at which a device
/// becomes free, because that device wasn't idle before. Batch work has no deadline and isn't refused for time.
/// Requests of a model that is removed, and those that a full queue turns away, aren't refused for time either.
/// Policies that bind models to devices (`nexus`), take one queue after another (`shepherd`, `clipper`) or plan with
/// chances (`orloj`, and every policy where times depend on the input) don't promise it ([`crate::observe::Promises`]).
#[derive(Debug)]
pub struct IdleDevicesServe {
    promised: bool,
    delay: Delay,
    models: Vec<Believed>,
    devices: Vec<DeviceHistory>,
    idle: BTreeSet<DeviceId>,
    requests: Vec<Option<WaitingRequest>>,
    outstanding: HashMap<ActionId, Outstanding>,
    loading: HashMap<ActionId, (DeviceId, ModelId)>,
    /// When a device of another kind came, or one changed.
    kinds_at: Timestamp,
}

/// What a scheduler can believe of a model's batches.
#[derive(Debug)]
struct Believed {
    /// For each batch size, what it takes on the slowest kind of device.
    takes: Vec<(u32, Duration)>,
    /// The largest factor by which one took longer.
    stretch: f64,
    /// Since when that is so.
    since: Timestamp,
}

impl Believed {
    fn new(spec: &ModelSpec) -> Self {
        let takes = |(index, entry): (usize, &base::BatchLatency)| {
            let elsewhere = spec.elsewhere.iter().filter_map(|profile| profile.batches().get(index));
            (entry.batch, elsewhere.map(|other| other.p99).fold(entry.p99, Duration::max))
        };
        let takes = spec.profile.batches().iter().enumerate().map(takes).collect();
        Self { takes, stretch: 1.0, since: Timestamp::ZERO }
    }

    fn takes(&self, rows: u32) -> Duration {
        let index = self.takes.partition_point(|&(size, _)| size < rows).min(self.takes.len() - 1);
        self.takes[index].1
    }

    fn learn(&mut self, at: Timestamp, batch: u32, took: Duration) {
        let stretch = took.as_nanos() as f64 / self.takes(batch).as_nanos().max(1) as f64;
        if stretch > self.stretch {
            (self.stretch, self.since) = (stretch, at);
        }
    }

    fn longest(&self, rows: u32) -> Duration {
        self.takes(rows).mul_f64(self.stretch)
    }
}

#[derive(Clone, Debug)]
struct DeviceHistory {
    outstanding: u32,
    idle_since: Timestamp,
    /// How many times as long as on others of its kind batches take, and since when that is thought.
    slowness: (f64, Timestamp),
    /// For each model, since when it is there.
    held_since: Vec<Option<Timestamp>>,
    /// Only these models may run there.
    allotted: Option<BTreeSet<ModelId>>,
}

#[derive(Clone, Copy, Debug)]
struct WaitingRequest {
    generation: u32,
    model: ModelId,
    rows: u32,
    deadline_at: Timestamp,
    queued_at: Timestamp,
}

#[derive(Debug)]
struct Outstanding {
    device: DeviceId,
    model: ModelId,
    batch: u32,
    requests: Vec<RequestId>,
}

impl IdleDevicesServe {
    /// Before the first device.
    pub fn new(facts: &Facts<'_>) -> Self {
        let models = facts.models.len();
        let seen = DeviceHistory {
            outstanding: 0,
            idle_since: Timestamp::ZERO,
            slowness: (1.0, Timestamp::ZERO),
            held_since: vec![None; models],
            allotted: None,
        };
        Self {
            promised: facts.promises.idle_devices,
            delay: facts.delay,
            models: facts.models.iter().map(Believed::new).collect(),
            devices: vec![seen; facts.devices as usize],
            idle: BTreeSet::new(),
            requests: Vec::new(),
            outstanding: HashMap::new(),
            loading: HashMap::new(),
            kinds_at: Timestamp::ZERO,
        }
    }

    fn begin(&mut self, device: DeviceId) {
        self.devices[device.index()].outstanding += 1;
        self.idle.remove(&device);
    }

    fn end(&mut self, at: Timestamp, device: DeviceId) {
        let seen = &mut self.devices[device.index()];
        seen.outstanding = seen.outstanding.saturating_sub(1);
        if seen.outstanding == 0 {
            seen.idle_since = at;
            self.idle.insert(device);
        }
    }

    fn told(&mut self, at: Timestamp, event: &Event) {
        match event {
            Event::DeviceAdded(spec) => {
                let seen = &mut self.devices[spec.device.index()];
                *seen = DeviceHistory {
                    outstanding: 0,
                    idle_since: at,
                    slowness: (1.0, at),
                    held_since: vec![None; self.models.len()],
                    allotted: None,
                };
                self.idle.insert(spec.device);
                self.kinds_at = at;
            }
            Event::DeviceLost(device) => {
                self.idle.remove(device);
                self.outstanding.retain(|_, it| it.device != *device);
                self.loading.retain(|_, (on, _)| on != device);
                self.kinds_at = at;
            }
            Event::DeviceChanged { .. } => self.kinds_at = at,
            Event::Submitted(request) => {
                *entry(&mut self.requests, request.id.slot) = Some(WaitingRequest {
                    generation: request.id.generation,
                    model: request.model,
                    rows: request.rows,
                    deadline_at: request.deadline_at,
                    queued_at: at,
                });
            }
            Event::Reported(report) => self.reported(at, report),
            Event::Borrowed { device, .. } => self.begin(*device),
            Event::Returned { device, .. } => self.end(at, *device),
            Event::ModelAdded(spec) => self.models[spec.model.index()] = Believed::new(spec),
            Event::ModelRemoved(_) | Event::Cancelled(_) => {}
            Event::Measured(_) | Event::Adopted(_) | Event::Expected(_) | Event::WokeUp => {}
            Event::PipelineAdded(_) | Event::PipelineRemoved(_) => {}
            Event::Allotted(allotments) => self.allotted(at, allotments),
            // What the stages behind it need isn't known here.
            Event::StageSubmitted(request, _) => *entry(&mut self.requests, request.id.slot) = None,
        }
    }

    /// Who may run somewhere only from now on was there only from now on, and what is planned with may be another kind.
    fn allotted(&mut self, at: Timestamp, allotments: &[Allotment]) {
        self.kinds_at = at;
        for Allotment { device, models } in allotments {
            let Some(seen) = self.devices.get_mut(device.index()) else { continue };
            seen.allotted = models.as_ref().map(|models| models.iter().copied().collect());
        }
    }

    fn reported(&mut self, at: Timestamp, report: &Report) {
        let took = match report.status {
            ActionStatus::Done { started_at, ended_at, transfers } => {
                Some(ended_at.since(started_at) + transfers.before)
            }
            ActionStatus::TooLate | ActionStatus::Preempted | ActionStatus::Failed => None,
        };
        if let Some((device, model)) = self.loading.remove(&report.action) {
            self.devices[device.index()].held_since[model.index()] = took.map(|_| at);
        }
        let Some(Outstanding { device, model, batch, requests }) = self.outstanding.remove(&report.action) else {
            return;
        };
        self.end(at, device);
        if let Some(took) = took {
            self.models[model.index()].learn(at, batch, took);
        }
        // Those that did not run are queued again.
        for request in requests {
            let waiting = entry(&mut self.requests, request.slot).as_mut();
            if let Some(waiting) = waiting.filter(|waiting| waiting.generation == request.generation) {
                waiting.queued_at = at;
            }
        }
    }

    fn ordered(&mut self, execution: &Execution) {
        self.begin(execution.device);
        let Execution { device, model, batch, .. } = *execution;
        let requests = execution.requests.clone();
        self.outstanding.insert(execution.action, Outstanding { device, model, batch, requests });
    }

    fn refused(&mut self, at: Timestamp, request: RequestId) -> Result<(), Broken> {
        let Some(waiting) = *entry(&mut self.requests, request.slot) else { return Ok(()) };
        let WaitingRequest { model, rows, deadline_at, queued_at, .. } = waiting;
        let Some(believed) = self.models.get(model.index()) else { return Ok(()) };
        let knew = believed.since.max(self.kinds_at).max(queued_at);
        for &device in &self.idle {
            let seen = &self.devices[device.index()];
            let Some(held_since) = seen.held_since[model.index()] else { continue };
            if seen.allotted.as_ref().is_some_and(|models| !models.contains(&model)) {
                continue;
            }
            let (factor, since) = seen.slowness;
            let takes = believed.longest(rows).mul_f64(factor);
            let last_chance_at = (deadline_at - takes - self.delay.of(rows)).min(at);
            let idle_since = seen.idle_since.max(held_since);
            if idle_since.max(knew).max(since) < last_chance_at {
                return Err(Broken::IdleWhileExpired { request, model, device, idle_since, last_chance_at });
            }
        }
        Ok(())
    }
}

impl Observer for IdleDevicesServe {
    fn observe(&mut self, at: Timestamp, seen: &Observation<'_>) -> Result<(), Violation> {
        if !self.promised {
            return Ok(());
        }
        match seen {
            Observation::Told(event) => self.told(at, event),
            Observation::Ordered(Command::Execute(execution)) => self.ordered(execution),
            Observation::Ordered(Command::Load(load)) => {
                self.loading.insert(load.action, (load.device, load.model));
            }
            Observation::Ordered(Command::Unload(unload)) => {
                self.devices[unload.device.index()].held_since[unload.model.index()] = None;
            }
            Observation::Ordered(Command::Finish {
                request,
                outcome: Outcome::Rejected(Rejection::Overloaded { .. } | Rejection::DeadlineUnreachable { .. }),
            }) => self.refused(at, *request).map_err(|broken| broken.at(at))?,
            Observation::Slowed { device, factor } => self.devices[device.index()].slowness = (*factor, at),
            _ => {}
        }
        Ok(())
    }
}

/// P11. A request that was in no batch has its outcome by its deadline. One that was has it by its deadline or by the
/// end of its last batch on the worker, whichever is later, and what the scheduler then needs to hear of it: the
/// report's way, a late report, the time to detect that a device or an order was lost ([`Facts::heard_within`]).
///
/// A batch that takes longer than was expected, or stands on a frozen device, is not over: nothing detects these.
#[derive(Debug)]
pub struct OutcomeInTime {
    heard_within: Duration,
    requests: Vec<Option<DueOutcome>>,
    /// Batches that aren't over on their workers.
    running: HashMap<ActionId, (DeviceId, Vec<RequestId>)>,
}

#[derive(Clone, Copy, Debug)]
struct DueOutcome {
    generation: u32,
    /// When the outcome is due.
    at: Timestamp,
    in_batch: bool,
}

impl OutcomeInTime {
    /// Before the first request.
    pub fn new(facts: &Facts<'_>) -> Self {
        Self { heard_within: facts.heard_within, requests: Vec::new(), running: HashMap::new() }
    }

    fn due(&mut self, request: RequestId) -> Option<&mut DueOutcome> {
        entry(&mut self.requests, request.slot).as_mut().filter(|due| due.generation == request.generation)
    }

    fn ordered(&mut self, at: Timestamp, execution: &Execution) {
        let heard_within = self.heard_within;
        // If the order is lost, the driver waits until it would have been over.
        let latest = execution.window.latest;
        let lost_at = if latest == Timestamp::NEVER { at } else { latest.max(at) } + execution.expected + heard_within;
        for &request in &execution.requests {
            if let Some(due) = self.due(request) {
                (due.at, due.in_batch) = (due.at.max(lost_at), true);
            }
        }
        self.running.insert(execution.action, (execution.device, execution.requests.clone()));
    }

    fn over(&mut self, at: Timestamp, action: ActionId) {
        let Some((_, requests)) = self.running.remove(&action) else { return };
        let known_at = at + self.heard_within;
        for request in requests {
            if let Some(due) = self.due(request) {
                (due.at, due.in_batch) = (due.at.max(known_at), false);
            }
        }
    }
}

impl Observer for OutcomeInTime {
    fn observe(&mut self, at: Timestamp, seen: &Observation<'_>) -> Result<(), Violation> {
        match seen {
            Observation::Told(Event::Submitted(request) | Event::StageSubmitted(request, _)) => {
                let due =
                    DueOutcome { generation: request.id.generation, at: request.deadline_at.max(at), in_batch: false };
                *entry(&mut self.requests, request.id.slot) = Some(due);
            }
            Observation::Ordered(Command::Execute(execution)) => self.ordered(at, execution),
            Observation::ExecutionEnded { execution, .. }
            | Observation::ExecutionFailed(execution)
            | Observation::ExecutionBrokenOff(execution) => self.over(at, execution.action),
            Observation::Refused { action, .. } => self.over(at, *action),
            // Also what never came there.
            Observation::Told(Event::Reported(report)) => self.over(at, report.action),
            Observation::DeviceDied(device) | Observation::Told(Event::DeviceLost(device)) => {
                let on_it = self.running.iter().filter(|(_, (on, _))| on == device).map(|(&action, _)| action);
                for action in on_it.collect::<Vec<_>>() {
                    self.over(at, action);
                }
            }
            Observation::Ordered(Command::Finish { request, outcome }) => {
                if let Some(&mut DueOutcome { at: due_at, in_batch: false, .. }) = self.due(*request)
                    && at > due_at
                {
                    let late = at.since(due_at);
                    return Err(Broken::OutcomeTooLate { request: *request, outcome: *outcome, due_at, late }.at(at));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
