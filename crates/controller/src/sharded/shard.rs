//! The thread of one model shard.

use super::{Hub, RankerMessage, Served, ShardMessage, or_never};
use crate::core::{DeviceRecord, Expectation, Payload, note_violation};
use crate::{Inner, MESSAGES_PER_TURN, fatal};
use base::{ActionId, ModelId, RequestId, Timestamp};
use scheduler::shards::{ActionNumbers, Desk, ShardConfig};
use scheduler::{ActionStatus, Command, Execution, Outcome};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, Weak};
use worker::{Clock, ExecuteOrder, Status};

/// One step in so many is timed.
const STEPS_PER_SAMPLE: u64 = 64;

pub(super) struct ShardThread {
    hub: Arc<Hub>,
    devices: Arc<Vec<DeviceRecord>>,
    inner: Weak<Inner>,
    clock: Clock,
    index: usize,
    desk: Desk,
    numbers: ActionNumbers,
    commands: Vec<Command>,
    /// By slot, of requests that are queued here; those in a batch are with the worker.
    payloads: Vec<Option<Payload>>,
    models: HashMap<ModelId, Arc<Served>>,
    expectations: HashMap<ActionId, Expectation>,
    /// Models that are out of service but not yet idle.
    leaving: Vec<ModelId>,
    steps: u64,
}

impl ShardThread {
    pub fn new(
        hub: &Arc<Hub>,
        inner: &Arc<Inner>,
        devices: &Arc<Vec<DeviceRecord>>,
        index: u32,
        settings: ShardConfig,
        config: &scheduler::Config,
    ) -> Self {
        let shards = hub.shard_count();
        Self {
            hub: Arc::clone(hub),
            devices: Arc::clone(devices),
            inner: Arc::downgrade(inner),
            clock: inner.clock,
            index: index as usize,
            desk: Desk::new(settings, index, shards, config.profile_window, config.profile_quantile),
            numbers: ActionNumbers::new(u64::from(index), u64::from(shards) + 1),
            commands: Vec::new(),
            payloads: Vec::new(),
            models: HashMap::new(),
            expectations: HashMap::new(),
            leaving: Vec::new(),
            steps: 0,
        }
    }

    pub fn run(mut self) {
        let hub = Arc::clone(&self.hub);
        let lane = &hub.shards[self.index];
        lane.receive_here();
        let mut active_at = self.clock.now();
        while !hub.is_stopping() {
            let Some(inner) = self.inner.upgrade() else { break };
            if self.turn(&inner) {
                active_at = self.clock.now();
                continue;
            }
            drop(inner);
            let until = or_never(self.desk.next_wakeup());
            let is_news = || !lane.is_empty() || !hub.grants[self.index].is_empty() || hub.is_stopping();
            lane.rest(self.clock, active_at, until, is_news);
        }
        self.payloads.into_iter().flatten().for_each(Payload::refuse_at_the_end);
    }

    /// Whether there was something to do.
    fn turn(&mut self, inner: &Inner) -> bool {
        let mut active = false;
        for _ in 0..MESSAGES_PER_TURN {
            let Some(message) = self.hub.shards[self.index].take() else { break };
            active = true;
            let now = self.clock.now();
            self.handle(inner, now, message);
            self.carry_out(inner, now);
        }
        while let Some(grant) = self.hub.grants[self.index].pop() {
            active = true;
            let now = self.clock.now();
            self.desk.granted(now, grant, &mut self.numbers, &mut self.commands);
            self.carry_out(inner, now);
        }
        let now = self.clock.now();
        if self.desk.next_wakeup().is_some_and(|at| at <= now) {
            active = true;
            self.desk.wake(now, &mut self.numbers, &mut self.commands);
            self.carry_out(inner, now);
        }
        self.pass_on();
        active
    }

    fn handle(&mut self, inner: &Inner, now: Timestamp, message: ShardMessage) {
        let (numbers, commands) = (&mut self.numbers, &mut self.commands);
        match message {
            ShardMessage::Submit { request, payload } => {
                let slot = request.id.slot as usize;
                if self.payloads.len() <= slot {
                    self.payloads.resize_with(slot + 1, || None);
                }
                self.payloads[slot] = Some(payload);
                if let Some(served) = self.models.get(&request.model) {
                    served.metrics.statistics().waits();
                    if !self.desk.is_active(request.model) {
                        served.metrics.cold_start();
                    }
                }
                self.desk.submitted(now, request, numbers, commands);
                self.steps += 1;
                if self.steps.is_multiple_of(STEPS_PER_SAMPLE) {
                    inner.metrics.scheduler_step.observe(self.clock.now().since(now));
                }
            }
            ShardMessage::Cancel(id) => self.desk.cancelled(now, id, numbers, commands),
            ShardMessage::Report(report) => self.report(inner, now, report),
            ShardMessage::AddModel { spec, served } => {
                self.desk.add_model(&spec);
                self.models.insert(spec.model, served);
            }
            ShardMessage::Activate(model) => self.desk.activate(now, model, true, numbers, commands),
            ShardMessage::RemoveModel(model) => {
                self.desk.remove_model(now, model, commands);
                self.leaving.push(model);
            }
            ShardMessage::Executors(executors) => self.desk.set_executors(executors),
        }
    }

    fn report(&mut self, inner: &Inner, now: Timestamp, report: worker::Report<Payload>) {
        for payload in report.returned {
            if let Some(served) = self.models.get(&payload.model) {
                served.metrics.statistics().waits();
            }
            let slot = payload.id.slot as usize;
            self.payloads[slot] = Some(payload);
        }
        let expectation = self.expectations.remove(&report.action);
        let served = expectation.and_then(|expectation| self.models.get(&expectation.model));
        if let (Some(expectation), Some(served)) = (&expectation, served) {
            expectation.measure(&self.devices[expectation.device.index()], &served.metrics, &report.status);
        }
        let status = match report.status {
            Status::Done { started_at, ended_at, transfers } => {
                if let Some(expectation) = &expectation {
                    expectation.started(&inner.metrics, started_at);
                }
                ActionStatus::Done { started_at, ended_at, transfers }
            }
            Status::TooLate => ActionStatus::TooLate,
            Status::Failed(reason) | Status::Panicked(reason) => {
                match (expectation, served) {
                    (Some(expectation), Some(served)) => {
                        expectation.note_failure(&inner.metrics, &served.name, &reason);
                        served.note_failure(reason);
                    }
                    (_, _) => note_violation(&inner.metrics, &reason),
                }
                ActionStatus::Failed
            }
        };
        let report = scheduler::Report { action: report.action, status };
        self.desk.reported(now, report, &mut self.numbers, &mut self.commands);
    }

    fn carry_out(&mut self, inner: &Inner, now: Timestamp) {
        let mut commands = std::mem::take(&mut self.commands);
        for command in commands.drain(..) {
            match command {
                Command::Execute(execution) => self.execute(now, execution),
                Command::Finish { request, outcome } => self.finish(inner, request, outcome),
                Command::Load(_) | Command::Unload(_) | Command::Preempt { .. } => {
                    fatal("a shard ordered what isn't its to do")
                }
            }
        }
        self.commands = commands;
    }

    /// Tells the ranker what is for it.
    fn pass_on(&mut self) {
        let outbox = self.desk.outbox();
        let anything = !outbox.announcements.is_empty() || !outbox.news.is_empty();
        for news in outbox.news.drain(..) {
            if self.hub.news.push(news).is_err() {
                fatal("executors have more news than the ranker ever leaves open");
            }
        }
        let mailboxes = &self.hub.mailboxes[self.index];
        outbox.announcements.drain(..).for_each(|announcement| mailboxes.post(announcement));
        if anything {
            self.hub.ranker.wake();
        }
        let (desk, models, ranker) = (&self.desk, &mut self.models, &self.hub.ranker);
        self.leaving.retain(|&model| {
            let idle = desk.is_idle(model);
            if idle {
                models.remove(&model);
                ranker.send(RankerMessage::Drained(model));
            }
            !idle
        });
    }

    fn execute(&mut self, now: Timestamp, execution: Execution) {
        let Execution { action, device, model, requests, window, expected, expected_done_at, .. } = execution;
        let served = &self.models[&model];
        let take = |id: &RequestId| self.payloads[id.slot as usize].take().expect("queued requests have a payload");
        let items: Vec<Payload> = requests.iter().map(take).collect();
        let mut rows = 0;
        for item in &items {
            rows += item.rows;
            served.metrics.queued(now.since(item.submitted_at));
        }
        served.metrics.statistics().wait_no_longer(items.len());
        let slot = Arc::clone(&served.slots[device.index()]);
        let (signature, padding) = (Arc::clone(&served.signature), served.padding.clone());
        let order = ExecuteOrder { action, window, slot, signature, padding, items };
        let done_at = Some(expected_done_at);
        self.expectations.insert(
            action,
            Expectation { device, model, took: expected, done_at, window, rows, bytes: 0, alone: None },
        );
        if self.devices[device.index()].device.execute(order).is_err() {
            fatal("an executor is gone, or has more orders than the ranker ever leaves outstanding");
        }
    }

    fn finish(&mut self, inner: &Inner, id: RequestId, outcome: Outcome) {
        // Requests that were executed have their answer from the worker, and no payload here.
        if let Some(payload) = self.payloads[id.slot as usize].take() {
            let served = self.models.get(&payload.model);
            served.iter().for_each(|served| served.metrics.statistics().wait_no_longer(1));
            payload.refuse(outcome, || {
                let known = served.map(|served| served.failure.lock().unwrap_or_else(PoisonError::into_inner).clone());
                known.filter(|reason| !reason.is_empty()).unwrap_or_else(|| "the device that it was on is gone".into())
            });
        }
        inner.give_slot_back(id);
    }
}
