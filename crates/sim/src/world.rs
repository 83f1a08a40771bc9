//! Virtual time: drives a scheduler from one thing that is due to the next, with modelled clients, network and workers.

use crate::agenda::{Agenda, Due};
use crate::changes::WorldChanges;
use crate::checkers::Checkers;
use crate::clients::Clients;
use crate::elastic::Cluster;
use crate::meter::Meter;
use crate::observe::{Facts, Observation, Observer, Promises};
use crate::shares::{self, CHANGE, SharedGpus};
use crate::violation::{Broken, Violation};
use crate::workers::Workers;
use crate::{Fingerprint, Network, Setup, Traffic};
use base::{DeviceId, Duration, ModelId, Timestamp};
use planner::shares::SLOTS;
use planner::shares::follow::{Follower, Following};
use scheduler::{Command, DeviceSpec, Event, ModelSpec, PolicyKind, Scheduler, Span};

/// How long after the last request everything must have ended: longer than any objective, report or downtime.
const PATIENCE: Duration = Duration::from_secs(3_600);
/// How often in a row a scheduler may ask to be woken at the instant that it is.
const MAX_WAKEUPS_AT_ONCE: u32 = 1_000;
/// At most so many models are asked for once more after the faults.
const MAX_PROBES: usize = 100;

/// What the simulator drives. [`Scheduler`] is one; tests have others that break promises.
pub trait DrivenScheduler {
    /// Takes in one fact and appends the orders that follow from it.
    fn step(&mut self, now: Timestamp, event: Event, out: &mut Vec<Command>);
    /// When to tell it that time has passed if nothing else happens before.
    fn next_wakeup(&self) -> Option<Timestamp>;
    /// Its count of a device's free pages, where it has one (P5).
    fn free_pages(&self, device: DeviceId) -> Option<u32>;
    /// How many times as long as on others of its kind it takes batches to run on a device, at most (P10).
    fn slowness(&self, _device: DeviceId) -> f64 {
        1.0
    }
    /// What it wants to have rehearsed.
    fn take_span(&mut self) -> Option<Box<Span>> {
        None
    }
}

/// What rehearsing a request takes, in virtual time.
const REHEARSED_IN: Duration = Duration::from_micros(2);

/// What the scheduler promises with those settings, beyond what all policies do.
fn promises_of(setup: &Setup) -> Promises {
    let (exact, idle_devices) = match setup.scheduler.policy {
        PolicyKind::Punctual | PolicyKind::Clockwork | PolicyKind::Eager | PolicyKind::Timeout => (true, true),
        // Symphony's gives a first request up for a larger batch, also on a device that waited for it.
        PolicyKind::Deferred | PolicyKind::Nexus | PolicyKind::Shepherd => (true, false),
        PolicyKind::Clipper | PolicyKind::Orloj => (false, false),
    };
    let alike = setup.models.iter().all(|model| model.inputs.is_none());
    let overlap = |model: &crate::ModelSetup| model.spec.profile.batches().iter().any(|it| it.overlap > Duration::ZERO);
    let idle_devices = idle_devices && alike && setup.strict;
    Promises { exact: exact && alike, planned: !setup.models.iter().any(overlap), idle_devices }
}

/// How long after something happened on a worker the scheduler has heard of it at the latest.
fn heard_within(setup: &Setup) -> Duration {
    let way = if setup.network.jitter_sigma > 0.0 { Network::LONGEST } else { 1.0 };
    setup.network.control.mul_f64(way) + setup.network.gap + setup.faults.detection + setup.faults.late_report
}

impl DrivenScheduler for Scheduler {
    fn step(&mut self, now: Timestamp, event: Event, out: &mut Vec<Command>) {
        Self::step(self, now, event, out);
    }

    fn next_wakeup(&self) -> Option<Timestamp> {
        Self::next_wakeup(self).map(|(at, _)| at)
    }

    fn free_pages(&self, device: DeviceId) -> Option<u32> {
        Self::free_pages(self, device)
    }

    fn slowness(&self, device: DeviceId) -> f64 {
        Self::slowness(self, device)
    }

    fn take_span(&mut self) -> Option<Box<Span>> {
        Self::take_span(self)
    }
}

/// An observer that doesn't look.
#[derive(Debug)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn observe(&mut self, _at: Timestamp, _seen: &Observation<'_>) -> Result<(), Violation> {
        Ok(())
    }
}

/// What a run leaves behind.
#[derive(Debug)]
pub struct RunResult {
    /// The measurements.
    pub meter: Meter,
    /// The fingerprint of all commands (P7).
    pub fingerprint: u64,
    /// How many events the scheduler was told.
    pub events: u64,
    /// Whether the run was given up because too many requests went bad.
    pub gave_up: bool,
}

/// Runs a world with the real scheduler to its end.
pub fn run(setup: &Setup, traffic: Traffic) -> Result<RunResult, Violation> {
    run_with(setup, traffic, Scheduler::new(setup.scheduler.clone()), &mut NoObserver)
}

/// Runs a world with any scheduler, watched by one more observer.
pub fn run_with<M: DrivenScheduler, O: Observer>(
    setup: &Setup,
    traffic: Traffic,
    machine: M,
    observer: &mut O,
) -> Result<RunResult, Violation> {
    let (changes, larger) = WorldChanges::new(setup);
    let setup = &larger;
    let specs: Vec<ModelSpec> = setup.models.iter().map(|model| model.spec.clone()).collect();
    let facts = Facts {
        models: &specs,
        devices: setup.most_devices(),
        pages: setup.pages,
        max_queued_per_model: setup.scheduler.max_queued_per_model,
        promises: promises_of(setup),
        delay: setup.scheduler.delay,
        heard_within: heard_within(setup),
    };
    let checkers = setup.checked.then(|| Checkers::new(&facts));
    let watch = Watch { checkers, observer, meter: Meter::new(setup), now: Timestamp::ZERO };
    let mut world = World {
        setup,
        horizon_at: Timestamp::ZERO + setup.horizon,
        now: Timestamp::ZERO,
        machine,
        orders: Vec::new(),
        agenda: Agenda::default(),
        clients: Clients::new(setup, traffic),
        workers: Workers::new(setup, &specs),
        cluster: Cluster::new(setup),
        follower: setup.shared.as_ref().and_then(|shared| Some(shared.follow.as_ref()?.0.clone())),
        arrived: vec![0; setup.models.len()],
        changes,
        watch,
        fingerprint: Fingerprint::default(),
        slowness: vec![1.0; setup.most_devices() as usize],
        events: 0,
        wakeups_at_once: 0,
        probed: false,
    };
    world.begin(&specs)?;
    let gave_up = world.go_on()?;
    let mut meter = world.watch.meter;
    if let Some(series) = &mut meter.series {
        series.close();
    }
    Ok(RunResult { meter, fingerprint: world.fingerprint.value(), events: world.events, gave_up })
}

/// Everybody who looks on.
pub(crate) struct Watch<'a, O> {
    checkers: Option<Checkers>,
    observer: &'a mut O,
    pub(crate) meter: Meter,
    pub(crate) now: Timestamp,
}

impl<O: Observer> Watch<'_, O> {
    pub(crate) fn see(&mut self, seen: &Observation<'_>) -> Result<(), Violation> {
        // The observer first: a log of a broken run ends with what broke it.
        self.observer.observe(self.now, seen)?;
        match &mut self.checkers {
            Some(checkers) => checkers.observe(self.now, seen),
            None => Ok(()),
        }
    }
}

struct World<'a, M, O> {
    setup: &'a Setup,
    horizon_at: Timestamp,
    now: Timestamp,
    machine: M,
    orders: Vec<Command>,
    agenda: Agenda,
    clients: Clients,
    workers: Workers,
    cluster: Option<Cluster>,
    /// Who divides GPUs otherwise, and how many requests came for each model since that was last looked at.
    follower: Option<Follower>,
    arrived: Vec<u64>,
    changes: WorldChanges,
    watch: Watch<'a, O>,
    fingerprint: Fingerprint,
    /// For each device, how slow the scheduler takes it to be.
    slowness: Vec<f64>,
    events: u64,
    wakeups_at_once: u32,
    probed: bool,
}

/// What comes next.
enum NextStep {
    Due,
    Arrival,
    Wakeup,
}

impl<M: DrivenScheduler, O: Observer> World<'_, M, O> {
    fn begin(&mut self, specs: &[ModelSpec]) -> Result<(), Violation> {
        for spec in &specs[..self.changes.streams()] {
            self.tell(Event::ModelAdded(spec.clone()))?;
        }
        for device in 0..self.setup.devices {
            self.tell(self.device_added(DeviceId(device)))?;
        }
        if let Some(shared) = &self.setup.shared {
            self.tell(Event::Allotted(shares::allotments(&shared.arrangement)))?;
            self.watch.meter.set_devices(self.now, shared.arrangement.used() as u32);
            if let Some((_, every)) = &shared.follow {
                self.agenda.add(Timestamp::ZERO + *every, Due::Divide);
            }
        }
        self.announce()?;
        for measured in self.clients.profiled() {
            self.tell(Event::Measured(measured))?;
        }
        self.clients.begin(&mut self.agenda);
        self.workers.begin(&mut self.agenda);
        self.changes.begin(&mut self.agenda);
        if let Some(cluster) = &self.cluster {
            self.agenda.add(Timestamp::ZERO + cluster.config().every, Due::Advise);
        }
        Ok(())
    }

    /// Goes on to the end; whether the run was given up before.
    fn go_on(&mut self) -> Result<bool, Violation> {
        while let Some((at, next)) = self.next() {
            if at > self.now {
                self.wakeups_at_once = 0;
            }
            self.now = at;
            self.watch.now = at;
            match next {
                NextStep::Due => self.due()?,
                NextStep::Arrival => self.arrival()?,
                NextStep::Wakeup => self.wake_up()?,
            }
            for news in self.clients.wholes.take_news() {
                self.watch.see(&news)?;
            }
            for measured in self.clients.measured() {
                self.tell(Event::Measured(measured))?;
            }
            if self.setup.give_up_after_bad.is_some_and(|limit| self.watch.meter.bad() > limit) {
                return Ok(true);
            }
            if at >= self.horizon_at && self.is_over(at)? {
                break;
            }
        }
        self.watch.see(&Observation::Over)?;
        Ok(false)
    }

    /// After the last request: whether everything has ended, and every model was served once more after the faults.
    fn is_over(&mut self, at: Timestamp) -> Result<bool, Violation> {
        let idle = self.clients.living() == 0 && self.workers.is_idle() && !self.clients.more_before(self.horizon_at);
        if !idle {
            return Ok(at > self.horizon_at + PATIENCE);
        }
        if !self.setup.faults.any() || std::mem::replace(&mut self.probed, true) {
            return Ok(true);
        }
        for stream in 0..self.changes.streams().min(MAX_PROBES) {
            let model = self.changes.current(stream as u32);
            if let Some(request) = self.clients.probe(self.now, model as usize) {
                self.tell(Event::Submitted(request))?;
            }
        }
        Ok(false)
    }

    fn next(&mut self) -> Option<(Timestamp, NextStep)> {
        let due = self.agenda.next_at().map(|at| (at, NextStep::Due));
        let arrival = self.clients.next_arrival_at(self.horizon_at).map(|at| (at, NextStep::Arrival));
        let wakeup = self.machine.next_wakeup().map(|at| (at.max(self.now), NextStep::Wakeup));
        // The first of those that are earliest: what happens comes before what is thought about it.
        let earlier = |a: Option<(Timestamp, NextStep)>, b: Option<(Timestamp, NextStep)>| match (a, b) {
            (Some(a), Some(b)) => Some(if b.0 < a.0 { b } else { a }),
            (a, b) => a.or(b),
        };
        earlier(earlier(due, arrival), wakeup).filter(|&(at, _)| at < Timestamp::NEVER)
    }

    fn wake_up(&mut self) -> Result<(), Violation> {
        self.wakeups_at_once += 1;
        if self.wakeups_at_once > MAX_WAKEUPS_AT_ONCE {
            return Err(Broken::WakesAtOnce.at(self.now));
        }
        self.tell(Event::WokeUp)
    }

    fn arrival(&mut self) -> Result<(), Violation> {
        let Some(arrival) = self.clients.take_arrival() else { return Ok(()) };
        self.send(arrival.model, None)
    }

    /// Tells which models make pipelines now.
    fn announce(&mut self) -> Result<(), Violation> {
        for index in 0..self.setup.pipelines.len() {
            if self.setup.pipelines[index].timeouts.is_none() {
                let mut spec = self.setup.pipelines[index].spec.clone();
                for stage in &mut spec.stages {
                    stage.model = ModelId(self.changes.current(stage.model.0));
                }
                self.tell(Event::PipelineAdded(spec))?;
            }
        }
        Ok(())
    }

    /// A stage of a request for a pipeline begins.
    fn begin_stage(&mut self, whole: u64, stage: u32, way: Duration) -> Result<(), Violation> {
        let (changes, agenda, meter) = (&self.changes, &mut self.agenda, &mut self.watch.meter);
        let model_of = |model: ModelId| changes.current(model.0);
        let calls = self.clients.begin_stage(self.now, (whole, stage), model_of, agenda, meter);
        for &id in &calls {
            self.workers.expect(id, Duration::ZERO);
        }
        for id in calls {
            if way > Duration::ZERO {
                self.agenda.add(self.now + way, Due::Submit(id));
            } else {
                self.submit(id)?;
            }
        }
        Ok(())
    }

    /// A client sends a request.
    fn send(&mut self, model: u32, client: Option<u32>) -> Result<(), Violation> {
        if let Some(pipeline) = (model as usize).checked_sub(self.changes.streams()) {
            let (agenda, meter) = (&mut self.agenda, &mut self.watch.meter);
            let (whole, stages) = self.clients.send_whole(self.now, (pipeline, client), agenda, meter);
            let way = self.setup.network.control;
            return stages.into_iter().try_for_each(|stage| self.begin_stage(whole, stage, way));
        }
        let model = self.changes.current(model);
        let cold = self.workers.is_cold(model);
        let sent = self.clients.send(self.now, model, client, cold, &mut self.agenda, &mut self.watch.meter);
        if let Some(id) = sent {
            self.workers.expect(id, self.clients.input(id).map_or(Duration::ZERO, |input| input.alone));
        }
        match sent {
            None => {}
            Some(id) if self.setup.network.control > Duration::ZERO => {
                self.agenda.add(self.now + self.setup.network.control, Due::Submit(id));
            }
            Some(id) => self.submit(id)?,
        }
        Ok(())
    }

    fn submit(&mut self, id: base::RequestId) -> Result<(), Violation> {
        match self.clients.submission(id, &mut self.watch.meter) {
            Some(event) => self.tell(event),
            None => Ok(()),
        }
    }

    fn due(&mut self) -> Result<(), Violation> {
        let Some(due) = self.agenda.take() else { return Ok(()) };
        match due {
            Due::ClientSends(client) if self.now < self.horizon_at => {
                self.send(self.clients.model_of(client), Some(client))
            }
            Due::ClientSends(_) => Ok(()),
            Due::Submit(id) => self.submit(id),
            Due::Cancel(id) => match self.clients.request(id) {
                Some(_) => self.tell(Event::Cancelled(id)),
                None => Ok(()),
            },
            Due::CancelWhole(whole) => {
                self.clients.cancel_whole(self.now, whole, &mut self.agenda, &mut self.watch.meter);
                Ok(())
            }
            Due::Begin { whole, stage } => self.begin_stage(whole, stage, Duration::ZERO),
            Due::Deliver { device, generation, order } => {
                self.workers.deliver(device, generation, *order, &mut self.agenda, &mut self.watch)
            }
            Due::Look { device, generation, executor } => {
                self.workers.look(device, generation, executor, &mut self.agenda, &mut self.watch)
            }
            Due::Ended { device, generation, executor, action } => {
                let clients = &mut self.clients;
                self.workers.ended(device, generation, (executor, action), clients, &mut self.agenda, &mut self.watch)
            }
            Due::Report { device, generation, report } => {
                if self.workers.accepts_report(device, generation) {
                    self.tell(Event::Reported(report))?;
                    self.settle(device)?;
                    self.let_go(device)?;
                }
                Ok(())
            }
            Due::Return { device, generation, action } => {
                if self.workers.accepts_report(device, generation) {
                    self.tell(Event::Returned { device, action })?;
                    self.settle(device)?;
                }
                Ok(())
            }
            Due::Borrow => self.borrow(),
            Due::ChangeKind => self.change_kind(),
            Due::RemoveModel(swap) => {
                let model = self.changes.remove(swap, &mut self.agenda);
                self.tell(Event::ModelRemoved(model))
            }
            Due::AddModel(swap) => {
                let model = self.changes.add(swap);
                self.tell(Event::ModelAdded(self.setup.models[model as usize].spec.clone()))?;
                self.announce()
            }
            Due::Freeze(device) => {
                self.workers.freeze(device, self.now, &mut self.agenda);
                Ok(())
            }
            Due::Slow(device) => {
                self.workers.slow(device, self.now, &mut self.agenda);
                Ok(())
            }
            Due::Adopt(rehearsed) => self.tell(Event::Adopted(rehearsed)),
            Due::Advise => self.advise(),
            Due::Divide => self.divide(),
            Due::Come(device) => {
                self.workers.join(device);
                if let Some(cluster) = &mut self.cluster {
                    cluster.came(device);
                    self.watch.meter.set_devices(self.now, cluster.len());
                }
                self.tell(self.device_added(device))
            }
            Due::Die(device) => self.workers.die(device, &mut self.agenda, &mut self.watch),
            Due::Notice(device) => {
                self.workers.noticed(device);
                self.tell(Event::DeviceLost(device))
            }
            Due::Revive(device) => {
                self.workers.revive(device, &mut self.agenda, self.now);
                self.tell(self.device_added(device))
            }
        }
    }

    fn device_added(&self, device: DeviceId) -> Event {
        Event::DeviceAdded(DeviceSpec { device, pages: self.setup.pages, kind: self.workers.kind(device) })
    }

    /// The driver borrows some device that is there.
    fn borrow(&mut self) -> Result<(), Violation> {
        self.changes.plan_borrow(self.now, &mut self.agenda);
        let devices = self.workers.alive();
        if devices.is_empty() {
            return Ok(());
        }
        let device = devices[self.changes.pick(devices.len())];
        let (action, expected, takes) = self.changes.borrow();
        // The driver has put it behind the batches before it tells.
        self.workers.lend(device, (action, takes), &mut self.agenda, &mut self.watch)?;
        self.tell(Event::Borrowed { device, action, expected })
    }

    /// Some device that is there becomes one of another kind.
    fn change_kind(&mut self) -> Result<(), Violation> {
        self.changes.plan_kind(self.now, &mut self.agenda);
        let devices = self.workers.alive();
        if devices.is_empty() {
            return Ok(());
        }
        let device = devices[self.changes.pick(devices.len())];
        let kind = self.changes.pick(self.setup.kinds() as usize) as u32;
        self.workers.set_kind(device, kind);
        self.tell(Event::DeviceChanged { device, kind })
    }

    /// Asks the planner for advice and follows it.
    fn advise(&mut self) -> Result<(), Violation> {
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        let change = cluster.advise(self.now, &self.watch.meter);
        self.watch.meter.advised(self.now, change.advised);
        for device in change.ask_for {
            self.agenda.add(self.now + cluster.config().start, Due::Come(device));
        }
        if self.now + cluster.config().every < self.horizon_at {
            self.agenda.add(self.now + cluster.config().every, Due::Advise);
        }
        for device in cluster.leaving() {
            self.let_go(device)?;
        }
        Ok(())
    }

    /// Divides GPUs otherwise, if rates have changed so that it is worth it.
    fn divide(&mut self) -> Result<(), Violation> {
        let (Some(follower), Some(shared)) = (&mut self.follower, &self.setup.shared) else { return Ok(()) };
        let Some((_, every)) = shared.follow.as_ref().filter(|(_, every)| self.now + *every < self.horizon_at) else {
            return Ok(());
        };
        self.agenda.add(self.now + *every, Due::Divide);
        let before = follower.arrangement().clone();
        let counts = std::mem::replace(&mut self.arrived, vec![0; self.setup.models.len()]);
        let Following::Changed(arrangement) = follower.step(every.as_secs_f64(), &counts) else { return Ok(()) };
        for gpu in arrangement.divided_otherwise(&before) {
            for (place, slot) in arrangement.gpus[gpu].iter().enumerate() {
                let (device, kind) = (DeviceId((gpu * SLOTS + place) as u32), SharedGpus::kind(slot.percent));
                self.workers.set_kind(device, kind);
                self.tell(Event::DeviceChanged { device, kind })?;
                let action = self.changes.next_action();
                self.workers.lend(device, (action, CHANGE), &mut self.agenda, &mut self.watch)?;
                self.tell(Event::Borrowed { device, action, expected: CHANGE })?;
            }
        }
        self.tell(Event::Allotted(shares::allotments(&arrangement)))?;
        self.watch.meter.set_devices(self.now, arrangement.used() as u32);
        Ok(())
    }

    /// Lets a device go that should, if nothing is under way for it.
    fn let_go(&mut self, device: DeviceId) -> Result<(), Violation> {
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        if !cluster.is_leaving(device) || !self.workers.leave(device, &mut self.watch)? {
            return Ok(());
        }
        cluster.went(device);
        self.watch.meter.set_devices(self.now, cluster.len());
        self.tell(Event::DeviceLost(device))
    }

    /// With nothing under way for a device, both sides must agree on its pages.
    fn settle(&mut self, device: DeviceId) -> Result<(), Violation> {
        let Some(pages_used) = self.workers.settled_pages(device) else { return Ok(()) };
        let controller_used = self.machine.free_pages(device).map(|free| self.setup.pages - free);
        self.watch.see(&Observation::Settled { device, pages_used, controller_used })
    }

    /// Tells the scheduler something, and obeys.
    fn tell(&mut self, event: Event) -> Result<(), Violation> {
        self.events += 1;
        if let (Some(_), Some(request)) = (&self.follower, event.submitted()) {
            self.arrived[request.model.index()] += 1;
        }
        self.watch.see(&Observation::Told(&event))?;
        let mut orders = std::mem::take(&mut self.orders);
        self.machine.step(self.now, event, &mut orders);
        self.note_slowness()?;
        for order in orders.drain(..) {
            self.obey(order)?;
        }
        self.orders = orders;
        if let Some(span) = self.machine.take_span() {
            let over_at = self.now + REHEARSED_IN * span.work() as u64;
            self.agenda.add(over_at, Due::Adopt(span.rehearse()));
        }
        Ok(())
    }

    /// Shows which devices the scheduler takes for slower than their kind, where somebody looks at it.
    fn note_slowness(&mut self) -> Result<(), Violation> {
        let watched = if self.setup.checked && self.setup.strict { self.slowness.len() } else { 0 };
        for index in 0..watched {
            let device = DeviceId(index as u32);
            let factor = self.machine.slowness(device);
            if std::mem::replace(&mut self.slowness[index], factor) != factor {
                self.watch.see(&Observation::Slowed { device, factor })?;
            }
        }
        Ok(())
    }

    fn obey(&mut self, order: Command) -> Result<(), Violation> {
        self.fingerprint.add(self.now, &order);
        self.watch.see(&Observation::Ordered(&order))?;
        match order {
            Command::Finish { request, outcome } => {
                self.clients.finish(self.now, request, outcome, &mut self.agenda, &mut self.watch.meter)
            }
            order => self.workers.order(order, self.now, &mut self.agenda, &mut self.watch),
        }
    }
}
