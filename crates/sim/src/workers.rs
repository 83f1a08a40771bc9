//! The workers' side of a simulated world: devices, the way to them and back, and what goes wrong there.

use crate::agenda::{Agenda, Due, ExecutorKind};
use crate::clients::Clients;
use crate::device::{Durations, ExecuteStep, Executing, LoadStep, SimulatedDevice, is_drivers};
use crate::observe::{Observation, Observer, Refusal};
use crate::shares::{self, SharedGpus, neighbours};
use crate::violation::Violation;
use crate::world::Watch;
use crate::{Faults, Network, Noise, Setup};
use base::{ActionId, DeviceId, Duration, ModelId, RequestId, Timestamp, Transfers, Window};
use planner::shares::SideBySide;
use scheduler::{ActionStatus, Command, Execution, ModelSpec, Report};
use std::sync::Arc;
use workload::Random;

pub(crate) struct Workers {
    workers: Vec<Worker>,
    /// For each model, on how many devices it is loaded.
    residents: Vec<u32>,
    /// For each kind of device.
    durations: Vec<Durations>,
    /// For each slot of a request whose time depends on its input, what it takes alone.
    alone: Vec<Duration>,
    network: Network,
    noise: Noise,
    faults: Faults,
    shared: Option<Arc<SharedGpus>>,
    horizon_at: Timestamp,
    random: Random,
    /// For what came to the simulator later: what it draws doesn't shift the numbers of the rest.
    extra_random: Random,
}

/// A device with what the driver knows about it.
struct Worker {
    device: SimulatedDevice,
    /// Whether it belongs to the cluster; one that doesn't is neither alive nor missed.
    present: bool,
    alive: bool,
    /// Counts deaths and returns: what was under way in an earlier generation is void.
    generation: u32,
    /// Reports from generations before this one are no longer listened to.
    heard_from: u32,
    /// Orders that were neither reported nor, for unloads, obeyed.
    under_way: u32,
    /// When each executor will be looked at.
    look_at: [Option<Timestamp>; 2],
    kind: u32,
    /// From when to when it does nothing.
    frozen: (Timestamp, Timestamp),
    slow_until: Timestamp,
    /// How far its batch is, where others run beside it.
    beside: Option<SideBySide>,
    /// When the last message to it and the last one from it are there.
    last_message_at: [Timestamp; 2],
}

/// The ways of messages.
const TO: usize = 0;
const FROM: usize = 1;

/// The number of the stream of random numbers.
const EXTRA_RANDOM: u64 = 6 << 40;

impl Workers {
    pub(crate) fn new(setup: &Setup, specs: &[ModelSpec]) -> Self {
        let pages_of: Vec<u32> = specs.iter().map(|spec| spec.pages).collect();
        let kinds = setup.kinds();
        let mut kind_of: Vec<u32> = (0..setup.most_devices()).map(|device| device % kinds).collect();
        if let Some(shared) = &setup.shared {
            kind_of.iter_mut().zip(shares::kinds(&shared.arrangement)).for_each(|(kind, share)| *kind = share);
        }
        let worker = |device: u32| Worker {
            device: SimulatedDevice::new(DeviceId(device), setup.pages, pages_of.clone()),
            present: device < setup.devices,
            alive: device < setup.devices,
            generation: 0,
            heard_from: 0,
            under_way: 0,
            look_at: [None; 2],
            kind: kind_of[device as usize],
            frozen: (Timestamp::ZERO, Timestamp::ZERO),
            slow_until: Timestamp::ZERO,
            beside: None,
            last_message_at: [Timestamp::ZERO; 2],
        };
        Self {
            workers: (0..setup.most_devices()).map(worker).collect(),
            residents: vec![0; specs.len()],
            durations: (0..kinds).map(|kind| Durations::new(specs, kind as usize)).collect(),
            alone: Vec::new(),
            network: setup.network,
            noise: setup.noise,
            faults: setup.faults,
            shared: setup.shared.clone(),
            horizon_at: Timestamp::ZERO + setup.horizon,
            random: Random::new(setup.seed, 2 << 40),
            extra_random: Random::new(setup.seed, EXTRA_RANDOM),
        }
    }

    pub(crate) fn begin(&mut self, agenda: &mut Agenda) {
        for index in 0..self.workers.len() {
            let device = DeviceId(index as u32);
            self.plan_death(device, Timestamp::ZERO, agenda);
            self.plan(self.faults.freezes_every, Timestamp::ZERO, Due::Freeze(device), agenda);
            self.plan(self.faults.slows_every, Timestamp::ZERO, Due::Slow(device), agenda);
        }
    }

    /// Plans the next of something that happens so often on average, before the horizon.
    fn plan(&mut self, every: Duration, now: Timestamp, due: Due, agenda: &mut Agenda) {
        if every > Duration::ZERO {
            let at = now + every.mul_f64(self.extra_random.exponential());
            if at < self.horizon_at {
                agenda.add(at, due);
            }
        }
    }

    /// A device stops, to go on later.
    pub(crate) fn freeze(&mut self, device: DeviceId, now: Timestamp, agenda: &mut Agenda) {
        let until = now + self.faults.frozen.mul_f64(self.extra_random.unit());
        let worker = &mut self.workers[device.index()];
        if worker.alive && worker.frozen.1 <= now {
            worker.frozen = (now, until);
        }
        self.plan(self.faults.freezes_every, until, Due::Freeze(device), agenda);
    }

    /// A device becomes slow for a while.
    pub(crate) fn slow(&mut self, device: DeviceId, now: Timestamp, agenda: &mut Agenda) {
        let until = now + self.faults.slow.mul_f64(self.extra_random.unit());
        self.workers[device.index()].slow_until = until;
        self.plan(self.faults.slows_every, until, Due::Slow(device), agenda);
    }

    /// The devices that are there and alive.
    pub(crate) fn alive(&self) -> Vec<DeviceId> {
        let workers = self.workers.iter().filter(|worker| worker.present && worker.alive);
        workers.map(|worker| worker.device.id).collect()
    }

    pub(crate) fn kind(&self, device: DeviceId) -> u32 {
        self.workers[device.index()].kind
    }

    pub(crate) fn set_kind(&mut self, device: DeviceId, kind: u32) {
        self.workers[device.index()].kind = kind;
    }

    /// The driver borrows a device for so long: behind what was ordered.
    pub(crate) fn lend<O: Observer>(
        &mut self,
        device: DeviceId,
        (action, takes): (ActionId, Duration),
        agenda: &mut Agenda,
        watch: &mut Watch<'_, O>,
    ) -> Result<(), Violation> {
        self.workers[device.index()].under_way += 1;
        let window = Window { earliest: watch.now, latest: Timestamp::NEVER };
        let (model, requests, expected_done_at) = (ModelId(0), Vec::new(), watch.now);
        let work = Execution { action, device, model, batch: 0, requests, window, expected: takes, expected_done_at };
        self.send(device, Command::Execute(work), watch.now, agenda, watch)
    }

    /// An order goes on its way.
    fn send<O: Observer>(
        &mut self,
        device: DeviceId,
        order: Command,
        now: Timestamp,
        agenda: &mut Agenda,
        watch: &mut Watch<'_, O>,
    ) -> Result<(), Violation> {
        let generation = self.workers[device.index()].generation;
        if self.network.control > Duration::ZERO {
            let at = self.message(device, TO, now);
            agenda.add(at, Due::Deliver { device, generation, order: Box::new(order) });
            return Ok(());
        }
        self.deliver(device, generation, order, agenda, watch)
    }

    /// When a message that leaves now is there.
    fn message(&mut self, device: DeviceId, way: usize, now: Timestamp) -> Timestamp {
        if self.network.jitter_sigma == 0.0 {
            return now + self.network.control;
        }
        let factor = self.extra_random.lognormal(self.network.jitter_sigma).min(Network::LONGEST);
        let last = &mut self.workers[device.index()].last_message_at[way];
        *last = (*last).max(now + self.network.control.mul_f64(factor));
        *last
    }

    /// Until when a device that is frozen lets everything wait, and since when.
    fn frozen(&self, device: DeviceId, generation: u32, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
        let worker = &self.workers[device.index()];
        (worker.alive && worker.generation == generation && now < worker.frozen.1).then_some(worker.frozen)
    }

    fn plan_death(&mut self, device: DeviceId, now: Timestamp, agenda: &mut Agenda) {
        if self.faults.device_lifetime > Duration::ZERO {
            let at = now + self.faults.device_lifetime.mul_f64(self.random.exponential());
            if at < self.horizon_at {
                agenda.add(at, Due::Die(device));
            }
        }
    }

    /// A request that takes so long alone is on its way.
    pub(crate) fn expect(&mut self, request: RequestId, alone: Duration) {
        let slot = request.slot as usize;
        if self.alone.len() <= slot {
            self.alone.resize(slot + 1, Duration::ZERO);
        }
        self.alone[slot] = alone;
    }

    pub(crate) fn is_cold(&self, model: u32) -> bool {
        self.residents[model as usize] == 0
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.workers.iter().all(|worker| !worker.present || (worker.alive && worker.under_way == 0))
    }

    /// The scheduler ordered something: it goes on its way.
    pub(crate) fn order<O: Observer>(
        &mut self,
        order: Command,
        now: Timestamp,
        agenda: &mut Agenda,
        watch: &mut Watch<'_, O>,
    ) -> Result<(), Violation> {
        let (device, lossy) = match &order {
            Command::Execute(execution) => {
                (execution.device, Some((execution.action, execution.window.latest, execution.expected)))
            }
            Command::Load(load) => (load.device, Some((load.action, load.window.latest, load.expected))),
            Command::Unload(unload) => (unload.device, None),
            // Not reported itself: the execution is, whatever became of it.
            Command::Preempt { device, .. } => {
                return self.send(*device, order, now, agenda, watch);
            }
            Command::Finish { .. } => return Ok(()),
        };
        let worker = &mut self.workers[device.index()];
        worker.under_way += 1;
        if let Some((action, latest, expected)) = lossy
            && now < self.horizon_at
            && self.random.chance(self.faults.lost_action_probability)
        {
            // The driver waits until the action would have been over, then calls it failed.
            let over_at = if latest == Timestamp::NEVER { now } else { latest.max(now) } + expected;
            let report = Report { action, status: ActionStatus::Failed };
            agenda.add(over_at + self.faults.detection, Due::Report { device, generation: worker.generation, report });
            return Ok(());
        }
        self.send(device, order, now, agenda, watch)
    }

    /// An order has come to its worker.
    pub(crate) fn deliver<O: Observer>(
        &mut self,
        device: DeviceId,
        generation: u32,
        order: Command,
        agenda: &mut Agenda,
        watch: &mut Watch<'_, O>,
    ) -> Result<(), Violation> {
        if let Some((_, until)) = self.frozen(device, generation, watch.now) {
            agenda.add(until, Due::Deliver { device, generation, order: Box::new(order) });
            return Ok(());
        }
        let worker = &mut self.workers[device.index()];
        if !worker.alive || worker.generation != generation {
            return Ok(());
        }
        let executor = match order {
            Command::Execute(execution) => {
                let fetch = self.network.data_per_request * execution.requests.len() as u64;
                worker.device.accept_execution(execution, watch.now + fetch);
                ExecutorKind::Execute
            }
            Command::Load(load) => {
                worker.device.accept_load(load);
                ExecutorKind::Load
            }
            Command::Unload(unload) => {
                worker.device.accept_unload(unload.model);
                ExecutorKind::Load
            }
            Command::Preempt { action, .. } => {
                if let Some((execution, started_at)) = worker.device.break_off(action) {
                    if started_at.is_some() {
                        self.leaves_neighbours(device, watch.now, agenda);
                    }
                    if let Some(started_at) = started_at {
                        watch.see(&Observation::ExecutionBrokenOff(&execution))?;
                        watch.meter.broken_off(started_at, watch.now);
                    }
                    let report = Report { action, status: ActionStatus::Preempted };
                    self.report(device, report, watch.now, agenda);
                }
                ExecutorKind::Execute
            }
            Command::Finish { .. } => return Ok(()),
        };
        self.look(device, generation, executor, agenda, watch)
    }

    /// Looks at an executor until it has nothing more to do at this instant.
    pub(crate) fn look<O: Observer>(
        &mut self,
        device: DeviceId,
        generation: u32,
        executor: ExecutorKind,
        agenda: &mut Agenda,
        watch: &mut Watch<'_, O>,
    ) -> Result<(), Violation> {
        if let Some((_, until)) = self.frozen(device, generation, watch.now) {
            agenda.add(until, Due::Look { device, generation, executor });
            return Ok(());
        }
        let worker = &mut self.workers[device.index()];
        if !worker.alive || worker.generation != generation {
            return Ok(());
        }
        let look_at = &mut worker.look_at[executor as usize];
        if look_at.is_some_and(|at| at <= watch.now) {
            *look_at = None;
        }
        let wait = match executor {
            ExecutorKind::Execute => self.look_at_batches(device, agenda, watch)?,
            ExecutorKind::Load => self.look_at_loads(device, agenda, watch)?,
        };
        let look_at = &mut self.workers[device.index()].look_at[executor as usize];
        if let Some(at) = wait
            && look_at.is_none_or(|planned| at < planned)
        {
            *look_at = Some(at);
            agenda.add(at, Due::Look { device, generation, executor });
        }
        Ok(())
    }

    fn look_at_batches<O: Observer>(
        &mut self,
        device: DeviceId,
        agenda: &mut Agenda,
        watch: &mut Watch<'_, O>,
    ) -> Result<Option<Timestamp>, Violation> {
        loop {
            let worker = &mut self.workers[device.index()];
            match worker.device.step_execute(watch.now) {
                ExecuteStep::Wait(at) => return Ok(at),
                ExecuteStep::Started(Executing { execution, .. }) if is_drivers(execution) => {
                    let (action, executor, generation) = (execution.action, ExecutorKind::Execute, worker.generation);
                    agenda.add(watch.now + execution.expected, Due::Ended { device, generation, executor, action });
                }
                ExecuteStep::Started(Executing { execution, start }) => {
                    watch.see(&Observation::ExecutionStarted(execution))?;
                    let (action, model, batch, generation) =
                        (execution.action, execution.model, execution.batch, worker.generation);
                    let alone = |request: &RequestId| self.alone.get(request.slot as usize).copied();
                    let longest = execution.requests.iter().filter_map(alone).max().filter(|&it| it > Duration::ZERO);
                    let durations = &self.durations[worker.kind as usize];
                    let median = match longest {
                        Some(longest) => durations.padded(model, batch, longest),
                        None => durations.execution(model, batch),
                    };
                    let hidden = durations.transfers(model, batch, *start).before;
                    let slowness = slowness(worker, &self.faults, watch.now);
                    let takes = self.execution_takes(median, watch.now).mul_f64(slowness) - hidden;
                    if let Some(shared) = self.shared.clone() {
                        let kind = self.workers[device.index()].kind;
                        let begun = shared.begin(watch.now, model, batch, kind, takes);
                        self.workers[device.index()].beside = Some(begun);
                        self.slow_each_other(device, watch.now, agenda);
                        continue;
                    }
                    let executor = ExecutorKind::Execute;
                    agenda.add(watch.now + takes, Due::Ended { device, generation, executor, action });
                }
                ExecuteStep::Refused(execution, why) => self.refuse(device, execution.action, why, agenda, watch)?,
            }
        }
    }

    fn look_at_loads<O: Observer>(
        &mut self,
        device: DeviceId,
        agenda: &mut Agenda,
        watch: &mut Watch<'_, O>,
    ) -> Result<Option<Timestamp>, Violation> {
        loop {
            let worker = &mut self.workers[device.index()];
            let generation = worker.generation;
            match worker.device.step_load(watch.now) {
                LoadStep::Wait(at) => return Ok(at),
                LoadStep::Started(load, pages_used) => {
                    watch.see(&Observation::LoadStarted { load: &load, pages_used })?;
                    let (kind, slowness) = (worker.kind, slowness(worker, &self.faults, watch.now));
                    let takes = self.load_takes(load.model, kind).mul_f64(slowness);
                    let (executor, action) = (ExecutorKind::Load, load.action);
                    agenda.add(watch.now + takes, Due::Ended { device, generation, executor, action });
                }
                LoadStep::Refused(load, why) => self.refuse(device, load.action, why, agenda, watch)?,
                LoadStep::Unloaded { model, pages_used, was_loaded } => {
                    if was_loaded {
                        self.residents[model.index()] -= 1;
                    }
                    self.workers[device.index()].under_way -= 1;
                    watch.see(&Observation::Unloaded { device, model, pages_used })?;
                }
            }
        }
    }

    fn refuse<O: Observer>(
        &mut self,
        device: DeviceId,
        action: ActionId,
        why: Refusal,
        agenda: &mut Agenda,
        watch: &mut Watch<'_, O>,
    ) -> Result<(), Violation> {
        watch.see(&Observation::Refused { device, action, why })?;
        let status = match why {
            Refusal::TooLate => ActionStatus::TooLate,
            Refusal::NoWeights | Refusal::NoPages | Refusal::AlreadyLoaded => ActionStatus::Failed,
        };
        self.report(device, Report { action, status }, watch.now, agenda);
        Ok(())
    }

    /// An executor is done with what it was doing.
    pub(crate) fn ended<O: Observer>(
        &mut self,
        device: DeviceId,
        generation: u32,
        (executor, action): (ExecutorKind, ActionId),
        clients: &mut Clients,
        agenda: &mut Agenda,
        watch: &mut Watch<'_, O>,
    ) -> Result<(), Violation> {
        let now = watch.now;
        if let Some((since, until)) = self.frozen(device, generation, now) {
            // What was left of it when it froze is still to be done.
            agenda.add(until + now.since(since), Due::Ended { device, generation, executor, action });
            return Ok(());
        }
        let batch_of = |worker: &Worker| executor == ExecutorKind::Execute && worker.device.executing() == Some(action);
        if let Some(beside) = self.workers[device.index()].beside.filter(|_| batch_of(&self.workers[device.index()])) {
            // Planned before something began beside it.
            if now < beside.ends_at() {
                return Ok(());
            }
            self.leaves_neighbours(device, now, agenda);
        }
        let failed = self.comes_to_nothing(executor, now);
        let worker = &mut self.workers[device.index()];
        if !worker.alive || worker.generation != generation {
            return Ok(());
        }
        // What was broken off doesn't end any more.
        if executor == ExecutorKind::Execute && worker.device.executing() != Some(action) {
            return Ok(());
        }
        if action >= ActionId::DRIVERS {
            worker.device.end_execution();
            let at = self.message(device, FROM, now);
            agenda.add(at, Due::Return { device, generation, action });
            return self.look(device, generation, executor, agenda, watch);
        }
        if failed {
            match executor {
                ExecutorKind::Execute => {
                    watch.see(&Observation::ExecutionFailed(&worker.device.end_execution().execution))?;
                }
                ExecutorKind::Load => watch.see(&Observation::LoadFailed(&worker.device.fail_load()))?,
            }
            self.report_end(device, executor, Report { action, status: ActionStatus::Failed }, now, agenda);
            return self.look(device, generation, executor, agenda, watch);
        }
        let (action, started_at, transfers) = match executor {
            ExecutorKind::Execute => {
                let Executing { execution, start } = worker.device.end_execution();
                let started_at = start.at;
                let transfers = self.durations[worker.kind as usize].transfers(execution.model, execution.batch, start);
                watch.see(&Observation::ExecutionEnded { execution: &execution, started_at })?;
                let rows = clients.executed(&execution, started_at, now);
                watch.meter.executed(&execution, rows, started_at, now);
                (execution.action, started_at, transfers)
            }
            ExecutorKind::Load => {
                let (load, started_at) = worker.device.end_load();
                self.residents[load.model.index()] += 1;
                watch.see(&Observation::LoadEnded { load: &load, started_at })?;
                watch.meter.loaded(&load, started_at, now);
                (load.action, started_at, Transfers::default())
            }
        };
        let status = ActionStatus::Done { started_at, ended_at: now, transfers };
        self.report_end(device, executor, Report { action, status }, now, agenda);
        self.look(device, generation, executor, agenda, watch)
    }

    /// What runs in the shares of a device's GPU runs beside each other from now on.
    fn slow_each_other(&mut self, device: DeviceId, now: Timestamp, agenda: &mut Agenda) {
        for one in neighbours(device).chain([device]).collect::<Vec<_>>() {
            let pressures: Vec<f64> =
                neighbours(one).filter_map(|other| Some(self.workers.get(other.index())?.beside?.pressure())).collect();
            let Some(worker) = self.workers.get_mut(one.index()) else { continue };
            let (Some(beside), Some(action)) = (&mut worker.beside, worker.device.executing()) else { continue };
            beside.beside(now, pressures.into_iter());
            let (generation, executor) = (worker.generation, ExecutorKind::Execute);
            agenda.add(beside.ends_at(), Due::Ended { device: one, generation, executor, action });
        }
    }

    /// A device's batch is over: those beside it are quicker.
    fn leaves_neighbours(&mut self, device: DeviceId, now: Timestamp, agenda: &mut Agenda) {
        if self.workers[device.index()].beside.take().is_some() {
            self.slow_each_other(device, now, agenda);
        }
    }

    /// The controller hears of batches that ended later than of anything else.
    fn report_end(
        &mut self,
        device: DeviceId,
        executor: ExecutorKind,
        report: Report,
        now: Timestamp,
        agenda: &mut Agenda,
    ) {
        let gap = if executor == ExecutorKind::Execute { self.network.gap } else { Duration::ZERO };
        self.report(device, report, now + gap, agenda);
    }

    fn report(&mut self, device: DeviceId, report: Report, now: Timestamp, agenda: &mut Agenda) {
        let mut at = self.message(device, FROM, now);
        if now < self.horizon_at && self.random.chance(self.faults.late_report_probability) {
            at += self.faults.late_report.mul_f64(self.random.unit());
        }
        agenda.add(at, Due::Report { device, generation: self.workers[device.index()].generation, report });
    }

    /// Whether a report counts; if it does, one thing less is under way.
    pub(crate) fn accepts_report(&mut self, device: DeviceId, generation: u32) -> bool {
        let worker = &mut self.workers[device.index()];
        let accepted = generation >= worker.heard_from;
        if accepted {
            worker.under_way -= 1;
        }
        accepted
    }

    /// The pages in use on a device for which nothing is under way.
    pub(crate) fn settled_pages(&self, device: DeviceId) -> Option<u32> {
        let worker = &self.workers[device.index()];
        (worker.under_way == 0 && worker.alive).then(|| worker.device.pages_used())
    }

    pub(crate) fn die<O: Observer>(
        &mut self,
        device: DeviceId,
        agenda: &mut Agenda,
        watch: &mut Watch<'_, O>,
    ) -> Result<(), Violation> {
        self.clear(device);
        let noticed_at = watch.now + self.faults.detection;
        agenda.add(noticed_at, Due::Notice(device));
        agenda.add(noticed_at.max(watch.now + self.faults.device_downtime), Due::Revive(device));
        watch.see(&Observation::DeviceDied(device))
    }

    /// A device is no longer alive, and forgets everything.
    fn clear(&mut self, device: DeviceId) {
        let worker = &mut self.workers[device.index()];
        worker.alive = false;
        worker.generation += 1;
        worker.look_at = [None; 2];
        worker.frozen = (Timestamp::ZERO, Timestamp::ZERO);
        worker.beside = None;
        for (model, residents) in self.residents.iter_mut().enumerate() {
            *residents -= u32::from(worker.device.loaded(ModelId(model as u32)));
        }
        worker.device.reset();
    }

    /// A device leaves the cluster, if nothing is under way for it.
    pub(crate) fn leave<O: Observer>(&mut self, device: DeviceId, watch: &mut Watch<'_, O>) -> Result<bool, Violation> {
        let worker = &self.workers[device.index()];
        if !worker.alive || worker.under_way > 0 {
            return Ok(false);
        }
        self.clear(device);
        self.noticed(device);
        self.workers[device.index()].present = false;
        watch.see(&Observation::DeviceDied(device))?;
        Ok(true)
    }

    /// A device joins the cluster, empty.
    pub(crate) fn join(&mut self, device: DeviceId) {
        let worker = &mut self.workers[device.index()];
        worker.present = true;
        worker.alive = true;
        worker.generation += 1;
    }

    /// The driver takes the connection for dead: nothing more is heard on it.
    pub(crate) fn noticed(&mut self, device: DeviceId) {
        let worker = &mut self.workers[device.index()];
        worker.heard_from = worker.generation + 1;
        worker.under_way = 0;
    }

    pub(crate) fn revive(&mut self, device: DeviceId, agenda: &mut Agenda, now: Timestamp) {
        let worker = &mut self.workers[device.index()];
        worker.alive = true;
        worker.generation += 1;
        self.plan_death(device, now, agenda);
    }

    fn execution_takes(&mut self, median: Duration, now: Timestamp) -> Duration {
        let mut takes = median.mul_f64(self.random.lognormal(self.noise.exec_sigma)) + self.spike();
        if now < self.horizon_at && self.random.chance(self.faults.misprediction_probability) {
            takes = takes.mul_f64(self.faults.misprediction_factor);
        }
        takes
    }

    /// Whether what an executor has just done is in vain.
    fn comes_to_nothing(&mut self, executor: ExecutorKind, now: Timestamp) -> bool {
        let probability = match executor {
            ExecutorKind::Execute => self.faults.failed_execution_probability,
            ExecutorKind::Load => self.faults.failed_load_probability,
        };
        now < self.horizon_at && self.extra_random.chance(probability)
    }

    fn load_takes(&mut self, model: ModelId, kind: u32) -> Duration {
        self.durations[kind as usize].load(model).mul_f64(self.random.lognormal(self.noise.load_sigma)) + self.spike()
    }

    fn spike(&mut self) -> Duration {
        if self.random.chance(self.noise.spike_probability) { self.noise.spike } else { Duration::ZERO }
    }
}

/// How many times as long everything takes on a device now.
fn slowness(worker: &Worker, faults: &Faults, now: Timestamp) -> f64 {
    let briefly = if now < worker.slow_until { faults.slow_factor.max(1.0) } else { 1.0 };
    let since = now.since(Timestamp::ZERO);
    briefly * faults.slowdown.map_or(1.0, |slowdown| slowdown.of(worker.device.id.0, since))
}
