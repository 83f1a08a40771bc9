//! The thread of the ranker, which also brings weights onto devices.

use super::{Hub, RankerMessage, Served, ShardMessage, or_never};
use crate::core::{DeviceRecord, Expectation, Payload};
use crate::{Inner, MESSAGES_PER_TURN, fatal};
use base::{ActionId, DeviceId, Duration, ModelId, Timestamp};
use scheduler::shards::{ActionNumbers, Consequence, Delay, ExecutorNews, Grant, News, Ranker, Shard, Weights};
use scheduler::{Command, DeviceSpec, Load, ModelSpec};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use worker::{Clock, LoadOrder, Status, UnloadOrder};

pub(super) struct RankerThread {
    hub: Arc<Hub>,
    devices: Arc<Vec<DeviceRecord>>,
    inner: Weak<Inner>,
    clock: Clock,
    ranker: Ranker,
    weights: Weights,
    numbers: ActionNumbers,
    grants: Vec<Grant>,
    commands: Vec<Command>,
    consequences: Vec<Consequence>,
    models: HashMap<ModelId, Arc<Served>>,
    expectations: HashMap<ActionId, Expectation>,
    /// Unloads that weren't reported yet.
    unloads: HashMap<ActionId, DeviceId>,
    /// By device: how many loads it was given, and those that it will be given when some of them are done.
    loads: Vec<(usize, VecDeque<Load>)>,
    /// Models that are out of service and still on their way onto a device.
    leaving: Vec<ModelId>,
}

/// Loads that a device is given ahead; its queue has a bound (P9), and the number of models has another.
const LOADS_AHEAD: usize = 64;

impl RankerThread {
    pub fn new(hub: &Arc<Hub>, inner: &Arc<Inner>, devices: &Arc<Vec<DeviceRecord>>, delay: Delay) -> Self {
        let shards = u64::from(hub.shard_count());
        Self {
            hub: Arc::clone(hub),
            devices: Arc::clone(devices),
            inner: Arc::downgrade(inner),
            clock: inner.clock,
            ranker: Ranker::new(delay),
            weights: Weights::default(),
            numbers: ActionNumbers::new(shards, shards + 1),
            grants: Vec::new(),
            commands: Vec::new(),
            consequences: Vec::new(),
            models: HashMap::new(),
            expectations: HashMap::new(),
            unloads: HashMap::new(),
            loads: Vec::new(),
            leaving: Vec::new(),
        }
    }

    pub fn run(mut self) {
        let hub = Arc::clone(&self.hub);
        let lane = &hub.ranker;
        lane.receive_here();
        self.add_devices();
        let mut active_at = self.clock.now();
        while !hub.is_stopping() {
            let Some(inner) = self.inner.upgrade() else { break };
            if self.turn(&inner) {
                active_at = self.clock.now();
                continue;
            }
            drop(inner);
            let until = or_never(self.ranker.next_wakeup());
            let is_news = || {
                let posted = hub.mailboxes.iter().any(scheduler::shards::Mailboxes::is_new);
                posted || !lane.is_empty() || !hub.news.is_empty() || hub.is_stopping()
            };
            lane.rest(self.clock, active_at, until, is_news);
        }
    }

    fn add_devices(&mut self) {
        let now = self.clock.now();
        let devices = Arc::clone(&self.devices);
        self.loads.resize_with(devices.len(), Default::default);
        for (index, record) in devices.iter().enumerate() {
            let (pages, kind) = (record.device.pages().total(), record.device.kind());
            let spec = DeviceSpec { device: DeviceId(index as u32), pages, kind };
            record.metrics.pages(spec.pages, 0);
            let (numbers, commands) = (&mut self.numbers, &mut self.commands);
            self.weights.device_added(now, spec, numbers, commands, &mut self.consequences);
        }
        self.carry_out();
    }

    /// Whether there was something to do.
    fn turn(&mut self, inner: &Inner) -> bool {
        let mut active = false;
        for _ in 0..MESSAGES_PER_TURN {
            let Some(message) = self.hub.ranker.take() else { break };
            active = true;
            self.handle(inner, message);
            self.carry_out();
        }
        while let Some(news) = self.hub.news.pop() {
            active = true;
            self.ranker.news(news);
        }
        let now = self.clock.now();
        for mailboxes in &self.hub.mailboxes {
            mailboxes.collect(|announcement| {
                active = true;
                self.ranker.announce(now, announcement);
            });
        }
        if active || self.ranker.next_wakeup().is_some_and(|at| at <= now) {
            active = true;
            self.grant(now);
        }
        active
    }

    fn grant(&mut self, now: Timestamp) {
        self.ranker.decide(now, &mut self.grants);
        for grant in self.grants.drain(..) {
            let shard = Shard::of(grant.model, self.hub.shard_count()) as usize;
            if self.hub.grants[shard].push(grant).is_err() {
                fatal("an executor was granted twice at a time");
            }
            self.hub.shards[shard].wake();
        }
    }

    fn handle(&mut self, inner: &Inner, message: RankerMessage) {
        let now = self.clock.now();
        match message {
            RankerMessage::AddModel { spec, served } => self.add_model(now, &spec, served),
            RankerMessage::Drained(model) => {
                self.weights.model_removed(model, &mut self.consequences);
                self.leaving.push(model);
                self.unload_leaving(now);
            }
            RankerMessage::Report(report) => self.report(inner, now, report),
            RankerMessage::Borrow { device, expected, work } => self.borrow(now, device, expected, work),
            RankerMessage::Return(device) => self.returned(now, device),
        }
    }

    fn add_model(&mut self, now: Timestamp, spec: &ModelSpec, served: Arc<Served>) {
        let (numbers, commands) = (&mut self.numbers, &mut self.commands);
        self.weights.model_added(now, spec, numbers, commands, &mut self.consequences);
        if !self.weights.is_served(spec.model) {
            tracing::error!(
                model = served.name,
                "there is no room for it on every device just now; it will be served when others have gone"
            );
        }
        self.models.insert(spec.model, served);
    }

    fn borrow(&mut self, now: Timestamp, device: DeviceId, expected: Duration, work: Box<dyn FnOnce() + Send>) {
        self.ranker.borrow(now, device, expected);
        let there = self.devices.get(device.index()).is_some_and(|record| record.device.run_alone(work));
        if !there {
            self.returned(now, device);
        }
    }

    fn returned(&mut self, now: Timestamp, device: DeviceId) {
        if let Some(life) = self.weights.life(device) {
            self.ranker.news(News { executor: device, life, what: ExecutorNews::Ended { at: now } });
        }
    }

    /// A load is over.
    fn report(&mut self, inner: &Inner, now: Timestamp, report: worker::Report<Payload>) {
        if let Some(device) = self.unloads.remove(&report.action) {
            return self.unloaded(device, &report.status);
        }
        let Some(expectation) = self.expectations.remove(&report.action) else { return };
        if let Status::Done { started_at, .. } = report.status {
            expectation.started(&inner.metrics, started_at);
        }
        let (given, waiting) = &mut self.loads[expectation.device.index()];
        *given -= 1;
        if let Some(next) = waiting.pop_front() {
            self.load(next);
        }
        if let Some(served) = self.models.get(&expectation.model) {
            let record = &self.devices[expectation.device.index()];
            expectation.measure(record, &served.metrics, &report.status);
            if let Status::Failed(reason) | Status::Panicked(reason) = &report.status {
                expectation.note_failure(&inner.metrics, &served.name, reason);
                served.note_failure(format!("the model could not be loaded: {reason}"));
            }
        }
        let done = matches!(report.status, Status::Done { .. });
        let (numbers, commands) = (&mut self.numbers, &mut self.commands);
        self.weights.reported(now, report.action, done, numbers, commands, &mut self.consequences);
        self.unload_leaving(now);
    }

    /// A device has freed weights. Shards know no loss of a device: after a panic over it the process is started anew.
    fn unloaded(&self, device: DeviceId, status: &Status) {
        if let Status::Failed(reason) | Status::Panicked(reason) = status {
            fatal(&format!("weights could not be freed: {reason}"));
        }
        let there = &self.devices[device.index()];
        there.metrics.pages(there.device.pages().total(), there.device.pages().used());
    }

    fn unload_leaving(&mut self, now: Timestamp) {
        let (weights, numbers, commands) = (&mut self.weights, &mut self.numbers, &mut self.commands);
        let mut gone = Vec::new();
        self.leaving.retain(|&model| {
            let all = weights.unload(now, model, numbers, commands);
            if all {
                gone.push(model);
            }
            !all
        });
        self.carry_out();
        gone.iter().for_each(|model| drop(self.models.remove(model)));
    }

    fn carry_out(&mut self) {
        for command in std::mem::take(&mut self.commands) {
            match command {
                Command::Load(load) => self.load(load),
                Command::Unload(unload) => self.unload(unload.device, unload.model),
                Command::Execute(_) | Command::Preempt { .. } | Command::Finish { .. } => {
                    fatal("the ranker ordered a batch, which is a shard's to do")
                }
            }
        }
        for consequence in std::mem::take(&mut self.consequences) {
            match consequence {
                Consequence::Joined(device, life) => {
                    self.ranker.add_executor(device, life);
                    let members = self.weights.members();
                    self.hub.shards.iter().for_each(|lane| lane.send(ShardMessage::Executors(members)));
                }
                Consequence::Activated(model) => {
                    let shard = Shard::of(model, self.hub.shard_count()) as usize;
                    self.hub.shards[shard].send(ShardMessage::Activate(model));
                }
            }
        }
    }

    fn load(&mut self, load: Load) {
        let (given, waiting) = &mut self.loads[load.device.index()];
        if *given >= LOADS_AHEAD {
            waiting.push_back(load);
            return;
        }
        *given += 1;
        let served = &self.models[&load.model];
        let order = LoadOrder {
            action: load.action,
            window: load.window,
            slot: Arc::clone(&served.slots[load.device.index()]),
            prepared: Arc::clone(&served.prepared),
            pages: served.pages,
        };
        let (device, model) = (load.device, load.model);
        let (bytes, took) = (served.prepared.weight_bytes(), load.expected);
        let expectation =
            Expectation { device, model, took, done_at: None, window: load.window, rows: 0, bytes, alone: None };
        self.expectations.insert(load.action, expectation);
        if !self.devices[device.index()].device.load(order) {
            fatal("a load executor is gone, or has more loads waiting than a device takes");
        }
    }

    fn unload(&mut self, device: DeviceId, model: ModelId) {
        let served = &self.models[&model];
        let slot = Arc::clone(&served.slots[device.index()]);
        let there = &self.devices[device.index()];
        served.metrics.unloaded(there.metrics.name(), served.prepared.weight_bytes());
        let action = self.numbers.take();
        if !there.device.unload(UnloadOrder { action, slot, pages: served.pages }) {
            fatal("a load executor is gone, or has more orders waiting than a device takes");
        }
        self.unloads.insert(action, device);
    }
}
