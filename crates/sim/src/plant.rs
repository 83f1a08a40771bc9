//! The workers' side of a simulated world: devices, the way to them and back, and what goes wrong there.

use crate::agenda::{Agenda, Due, Executor};
use crate::clients::Clients;
use crate::device::{Device, Durations, ExecuteStep, Executing, LoadStep};
use crate::observe::{Observation, Observer, Refusal, Violation};
use crate::world::Watch;
use crate::{Faults, Network, Noise, Setup};
use base::{ActionId, DeviceId, Duration, ModelId, RequestId, Timestamp, Transfers};
use scheduler::{ActionStatus, Command, ModelSpec, Report};
use workload::Random;

pub(crate) struct Plant {
    sites: Vec<Site>,
    /// For each model, on how many devices it is loaded.
    residents: Vec<u32>,
    durations: Durations,
    /// For each slot of a request whose time depends on its input, what it takes alone.
    alone: Vec<Duration>,
    network: Network,
    noise: Noise,
    faults: Faults,
    horizon_at: Timestamp,
    random: Random,
}

/// A device with what the driver knows about it.
struct Site {
    device: Device,
    /// Whether it belongs to the cluster; one that doesn't is neither alive nor missed.
    present: bool,
    alive: bool,
    /// Counts deaths and returns: what was under way in an earlier life is void.
    life: u32,
    /// Reports from lives before this one are no longer listened to.
    heard_from: u32,
    /// Orders that were neither reported nor, for unloads, obeyed.
    under_way: u32,
    /// When each executor will be looked at.
    look_at: [Option<Timestamp>; 2],
}

impl Plant {
    pub(crate) fn new(setup: &Setup, specs: &[ModelSpec]) -> Self {
        let pages_of: Vec<u32> = specs.iter().map(|spec| spec.pages).collect();
        let site = |device| Site {
            device: Device::new(DeviceId(device), setup.pages, pages_of.clone()),
            present: device < setup.devices,
            alive: device < setup.devices,
            life: 0,
            heard_from: 0,
            under_way: 0,
            look_at: [None; 2],
        };
        Self {
            sites: (0..setup.most_devices()).map(site).collect(),
            residents: vec![0; specs.len()],
            durations: Durations::new(specs),
            alone: Vec::new(),
            network: setup.network,
            noise: setup.noise,
            faults: setup.faults,
            horizon_at: Timestamp::ZERO + setup.horizon,
            random: Random::new(setup.seed, 2 << 40),
        }
    }

    pub(crate) fn begin(&mut self, agenda: &mut Agenda) {
        for index in 0..self.sites.len() {
            self.plan_death(DeviceId(index as u32), Timestamp::ZERO, agenda);
        }
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
        self.sites.iter().all(|site| !site.present || (site.alive && site.under_way == 0))
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
                let (device, life) = (*device, self.sites[device.index()].life);
                if self.network.control > Duration::ZERO {
                    agenda.add(now + self.network.control, Due::Deliver { device, life, order: Box::new(order) });
                    return Ok(());
                }
                return self.deliver(device, life, order, agenda, watch);
            }
            Command::Finish { .. } => return Ok(()),
        };
        let site = &mut self.sites[device.index()];
        site.under_way += 1;
        if let Some((action, latest, expected)) = lossy
            && now < self.horizon_at
            && self.random.chance(self.faults.lost_action_probability)
        {
            // The driver waits until the action would have been over, then calls it failed.
            let over_at = if latest == Timestamp::NEVER { now } else { latest.max(now) } + expected;
            let report = Report { action, status: ActionStatus::Failed };
            agenda.add(over_at + self.faults.detection, Due::Report { device, life: site.life, report });
            return Ok(());
        }
        let life = site.life;
        if self.network.control > Duration::ZERO {
            agenda.add(now + self.network.control, Due::Deliver { device, life, order: Box::new(order) });
            return Ok(());
        }
        self.deliver(device, life, order, agenda, watch)
    }

    /// An order has come to its worker.
    pub(crate) fn deliver<O: Observer>(
        &mut self,
        device: DeviceId,
        life: u32,
        order: Command,
        agenda: &mut Agenda,
        watch: &mut Watch<'_, O>,
    ) -> Result<(), Violation> {
        let site = &mut self.sites[device.index()];
        if !site.alive || site.life != life {
            return Ok(());
        }
        let executor = match order {
            Command::Execute(execution) => {
                let fetch = self.network.data_per_request * execution.requests.len() as u64;
                site.device.accept_execution(execution, watch.now + fetch);
                Executor::Execute
            }
            Command::Load(load) => {
                site.device.accept_load(load);
                Executor::Load
            }
            Command::Unload(unload) => {
                site.device.accept_unload(unload.model);
                Executor::Load
            }
            Command::Preempt { action, .. } => {
                if let Some((execution, started_at)) = site.device.break_off(action) {
                    if let Some(started_at) = started_at {
                        watch.see(&Observation::ExecutionBrokenOff(&execution))?;
                        watch.meter.broken_off(started_at, watch.now);
                    }
                    let report = Report { action, status: ActionStatus::Preempted };
                    self.report(device, report, watch.now, agenda);
                }
                Executor::Execute
            }
            Command::Finish { .. } => return Ok(()),
        };
        self.look(device, life, executor, agenda, watch)
    }

    /// Looks at an executor until it has nothing more to do at this instant.
    pub(crate) fn look<O: Observer>(
        &mut self,
        device: DeviceId,
        life: u32,
        executor: Executor,
        agenda: &mut Agenda,
        watch: &mut Watch<'_, O>,
    ) -> Result<(), Violation> {
        let site = &mut self.sites[device.index()];
        if !site.alive || site.life != life {
            return Ok(());
        }
        let look_at = &mut site.look_at[executor as usize];
        if look_at.is_some_and(|at| at <= watch.now) {
            *look_at = None;
        }
        let wait = match executor {
            Executor::Execute => self.look_at_batches(device, agenda, watch)?,
            Executor::Load => self.look_at_loads(device, agenda, watch)?,
        };
        let look_at = &mut self.sites[device.index()].look_at[executor as usize];
        if let Some(at) = wait
            && look_at.is_none_or(|planned| at < planned)
        {
            *look_at = Some(at);
            agenda.add(at, Due::Look { device, life, executor });
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
            let site = &mut self.sites[device.index()];
            match site.device.step_execute(watch.now) {
                ExecuteStep::Wait(at) => return Ok(at),
                ExecuteStep::Started(Executing { execution, waited, .. }) => {
                    watch.see(&Observation::ExecutionStarted(execution))?;
                    let (action, model, batch, life) = (execution.action, execution.model, execution.batch, site.life);
                    let alone = |request: &RequestId| self.alone.get(request.slot as usize).copied();
                    let longest = execution.requests.iter().filter_map(alone).max().filter(|&it| it > Duration::ZERO);
                    let median = match longest {
                        Some(longest) => self.durations.padded(model, batch, longest),
                        None => self.durations.execution(model, batch),
                    };
                    let hidden = self.durations.transfers(model, batch, *waited).before;
                    let takes = self.execution_takes(median, watch.now) - hidden;
                    let executor = Executor::Execute;
                    agenda.add(watch.now + takes, Due::Ended { device, life, executor, action });
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
            let site = &mut self.sites[device.index()];
            let life = site.life;
            match site.device.step_load(watch.now) {
                LoadStep::Wait(at) => return Ok(at),
                LoadStep::Started(load, pages_used) => {
                    watch.see(&Observation::LoadStarted { load: &load, pages_used })?;
                    let takes = self.load_takes(load.model);
                    let (executor, action) = (Executor::Load, load.action);
                    agenda.add(watch.now + takes, Due::Ended { device, life, executor, action });
                }
                LoadStep::Refused(load, why) => self.refuse(device, load.action, why, agenda, watch)?,
                LoadStep::Unloaded { model, pages_used, was_loaded } => {
                    if was_loaded {
                        self.residents[model.index()] -= 1;
                    }
                    self.sites[device.index()].under_way -= 1;
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
        life: u32,
        (executor, action): (Executor, ActionId),
        clients: &mut Clients,
        agenda: &mut Agenda,
        watch: &mut Watch<'_, O>,
    ) -> Result<(), Violation> {
        let now = watch.now;
        let site = &mut self.sites[device.index()];
        if !site.alive || site.life != life {
            return Ok(());
        }
        // What was broken off doesn't end any more.
        if executor == Executor::Execute && site.device.executing() != Some(action) {
            return Ok(());
        }
        let (action, started_at, transfers) = match executor {
            Executor::Execute => {
                let Executing { execution, started_at, waited } = site.device.end_execution();
                let transfers = self.durations.transfers(execution.model, execution.batch, waited);
                watch.see(&Observation::ExecutionEnded { execution: &execution, started_at })?;
                let rows = clients.executed(&execution, now);
                watch.meter.executed(&execution, rows, started_at, now);
                (execution.action, started_at, transfers)
            }
            Executor::Load => {
                let (load, started_at) = site.device.end_load();
                self.residents[load.model.index()] += 1;
                watch.see(&Observation::LoadEnded { load: &load, started_at })?;
                watch.meter.loaded(&load, started_at, now);
                (load.action, started_at, Transfers::default())
            }
        };
        let status = ActionStatus::Done { started_at, ended_at: now, transfers };
        self.report(device, Report { action, status }, now, agenda);
        self.look(device, life, executor, agenda, watch)
    }

    fn report(&mut self, device: DeviceId, report: Report, now: Timestamp, agenda: &mut Agenda) {
        let mut at = now + self.network.control;
        if now < self.horizon_at && self.random.chance(self.faults.late_report_probability) {
            at += self.faults.late_report.mul_f64(self.random.unit());
        }
        agenda.add(at, Due::Report { device, life: self.sites[device.index()].life, report });
    }

    /// Whether a report counts; if it does, one thing less is under way.
    pub(crate) fn accepts_report(&mut self, device: DeviceId, life: u32) -> bool {
        let site = &mut self.sites[device.index()];
        let accepted = life >= site.heard_from;
        if accepted {
            site.under_way -= 1;
        }
        accepted
    }

    /// The pages in use on a device for which nothing is under way.
    pub(crate) fn settled_pages(&self, device: DeviceId) -> Option<u32> {
        let site = &self.sites[device.index()];
        (site.under_way == 0 && site.alive).then(|| site.device.pages_used())
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
        let site = &mut self.sites[device.index()];
        site.alive = false;
        site.life += 1;
        site.look_at = [None; 2];
        for (model, residents) in self.residents.iter_mut().enumerate() {
            *residents -= u32::from(site.device.loaded(ModelId(model as u32)));
        }
        site.device.reset();
    }

    /// A device leaves the cluster, if nothing is under way for it.
    pub(crate) fn leave<O: Observer>(&mut self, device: DeviceId, watch: &mut Watch<'_, O>) -> Result<bool, Violation> {
        let site = &self.sites[device.index()];
        if !site.alive || site.under_way > 0 {
            return Ok(false);
        }
        self.clear(device);
        self.noticed(device);
        self.sites[device.index()].present = false;
        watch.see(&Observation::DeviceDied(device))?;
        Ok(true)
    }

    /// A device joins the cluster, empty.
    pub(crate) fn join(&mut self, device: DeviceId) {
        let site = &mut self.sites[device.index()];
        site.present = true;
        site.alive = true;
        site.life += 1;
    }

    /// The driver takes the connection for dead: nothing more is heard on it.
    pub(crate) fn noticed(&mut self, device: DeviceId) {
        let site = &mut self.sites[device.index()];
        site.heard_from = site.life + 1;
        site.under_way = 0;
    }

    pub(crate) fn revive(&mut self, device: DeviceId, agenda: &mut Agenda, now: Timestamp) {
        let site = &mut self.sites[device.index()];
        site.alive = true;
        site.life += 1;
        self.plan_death(device, now, agenda);
    }

    fn execution_takes(&mut self, median: Duration, now: Timestamp) -> Duration {
        let mut takes = median.mul_f64(self.random.lognormal(self.noise.exec_sigma)) + self.spike();
        if now < self.horizon_at && self.random.chance(self.faults.misprediction_probability) {
            takes = takes.mul_f64(self.faults.misprediction_factor);
        }
        takes
    }

    fn load_takes(&mut self, model: ModelId) -> Duration {
        self.durations.load(model).mul_f64(self.random.lognormal(self.noise.load_sigma)) + self.spike()
    }

    fn spike(&mut self) -> Duration {
        if self.random.chance(self.noise.spike_probability) { self.noise.spike } else { Duration::ZERO }
    }
}
