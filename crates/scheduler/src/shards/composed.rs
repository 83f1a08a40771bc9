//! Shards and ranker in one thread, behind the contract of the scheduler.

use super::desk::{ActionNumbers, Desk};
use super::message::{ExecutorNews, Grant, News};
use super::ranker::Ranker;
use super::shard::{Shard, ShardConfig};
use super::weights::{Consequence, Weights};
use crate::{ActionStatus, Command, Event, Outcome, Rejection, Report, Request, WakeReason};
use base::{DeviceId, ModelId, RequestId, Timestamp};

/// The settings of shards and ranker together.
#[derive(Clone, Copy, Debug)]
pub struct ShardedConfig {
    /// How many shards; at least one.
    pub shards: u32,
    /// Those of each shard.
    pub shard: ShardConfig,
    /// How many past measurements an estimate looks at.
    pub profile_window: usize,
    /// Which quantile of them it takes.
    pub profile_quantile: f64,
}

impl Default for ShardedConfig {
    fn default() -> Self {
        Self { shards: 1, shard: ShardConfig::default(), profile_window: 10, profile_quantile: 0.99 }
    }
}

/// Any number of shards and the ranker as one pure machine, with the contract of [`crate::Scheduler`]: deferred batching on
/// devices that each hold all models.
///
/// What differs from the scheduler:
/// - Weights are loaded on every device at the start and stay. A device without room for all models gets none and takes no
///   part; a model that doesn't fit beside the others on the devices that there are is refused as
///   [`Rejection::ModelUnavailable`]. With no device at all that could take part, requests are refused with
///   [`Rejection::NoDevice`].
/// - Priorities aren't looked at: within a model the earliest deadline goes first.
/// - Requests without a deadline are planned as if they had [`super::BATCH_WORK_PATIENCE`], and refused when that wasn't enough.
/// - A request is refused at once only if it couldn't be met on an idle device; else when its time has run out.
#[derive(Debug)]
pub struct Sharded {
    desks: Vec<Desk>,
    ranker: Ranker,
    weights: Weights,
    numbers: ActionNumbers,
    /// Which shard has a request, by the driver's slot.
    owners: Vec<u32>,
    /// Models that are no longer served and still have weights somewhere.
    leaving: Vec<ModelId>,
    grants: Vec<Grant>,
    consequences: Vec<Consequence>,
    now: Timestamp,
}

impl Sharded {
    /// Without devices and models.
    pub fn new(config: ShardedConfig) -> Self {
        let shards = config.shards.max(1);
        let desk = |index| Desk::new(config.shard, index, shards, config.profile_window, config.profile_quantile);
        Self {
            desks: (0..shards).map(desk).collect(),
            ranker: Ranker::new(config.shard.delay),
            weights: Weights::default(),
            numbers: ActionNumbers::new(0, 1),
            owners: Vec::new(),
            leaving: Vec::new(),
            grants: Vec::new(),
            consequences: Vec::new(),
            now: Timestamp::ZERO,
        }
    }

    fn desk(&mut self, model: ModelId) -> &mut Desk {
        let shards = self.desks.len() as u32;
        &mut self.desks[Shard::of(model, shards) as usize]
    }

    /// Takes in one fact and appends the orders that follow from it.
    pub fn step(&mut self, now: Timestamp, event: Event, out: &mut Vec<Command>) {
        self.now = self.now.max(now);
        let now = self.now;
        match event {
            Event::DeviceAdded(spec) => {
                self.weights.device_added(now, spec, &mut self.numbers, out, &mut self.consequences);
            }
            Event::DeviceLost(device) => self.device_lost(device, out),
            Event::ModelAdded(spec) => {
                self.desk(spec.model).add_model(&spec);
                self.weights.model_added(now, &spec, &mut self.numbers, out, &mut self.consequences);
            }
            Event::ModelRemoved(model) => {
                self.desk(model).remove_model(now, model, out);
                self.weights.model_removed(model, &mut self.consequences);
                self.leaving.push(model);
            }
            Event::Submitted(request) => self.submitted(request, out),
            Event::Cancelled(id) => self.cancelled(id, out),
            Event::Reported(report) => self.reported(report, out),
            Event::Borrowed { device, expected, .. } => self.ranker.borrow(now, device, expected),
            Event::Returned { device, .. } => {
                if let Some(life) = self.weights.life(device) {
                    self.ranker.news(News { executor: device, life, what: ExecutorNews::Ended { at: now } });
                }
            }
            // Shards plan with plain estimates, the same for all devices.
            Event::DeviceChanged { .. } | Event::Measured(_) | Event::Adopted(_) | Event::WokeUp => {}
        }
        self.settle(out);
    }

    fn device_lost(&mut self, device: DeviceId, out: &mut Vec<Command>) {
        self.ranker.lose_executor(device);
        self.weights.device_lost(device, &mut self.consequences);
        for desk in &mut self.desks {
            desk.device_lost(self.now, device, &mut self.numbers, out);
            desk.set_executors(self.weights.members());
        }
    }

    fn submitted(&mut self, request: Request, out: &mut Vec<Command>) {
        let refusal = if !self.weights.is_served(request.model) {
            Some(Rejection::ModelUnavailable)
        } else if !self.weights.has_devices() {
            Some(Rejection::NoDevice)
        } else {
            None
        };
        if let Some(rejection) = refusal {
            out.push(Command::Finish { request: request.id, outcome: Outcome::Rejected(rejection) });
            return;
        }
        let slot = request.id.slot as usize;
        if self.owners.len() <= slot {
            self.owners.resize(slot + 1, 0);
        }
        let owner = Shard::of(request.model, self.desks.len() as u32);
        self.owners[slot] = owner;
        self.desks[owner as usize].submitted(self.now, request, &mut self.numbers, out);
    }

    fn cancelled(&mut self, id: RequestId, out: &mut Vec<Command>) {
        if let Some(&owner) = self.owners.get(id.slot as usize) {
            self.desks[owner as usize].cancelled(self.now, id, &mut self.numbers, out);
        }
    }

    fn reported(&mut self, report: Report, out: &mut Vec<Command>) {
        let done = matches!(report.status, ActionStatus::Done { .. });
        let (now, then) = (self.now, &mut self.consequences);
        if self.weights.reported(now, report.action, done, &mut self.numbers, out, then) {
            return;
        }
        for desk in &mut self.desks {
            if desk.reported(now, report, &mut self.numbers, out) {
                return;
            }
        }
    }

    /// Passes on what they have to say to each other, until nobody has anything more.
    fn settle(&mut self, out: &mut Vec<Command>) {
        let now = self.now;
        for consequence in std::mem::take(&mut self.consequences) {
            match consequence {
                Consequence::Joined(device, life) => {
                    self.ranker.add_executor(device, life);
                    let members = self.weights.members();
                    self.desks.iter_mut().for_each(|desk| desk.set_executors(members));
                }
                Consequence::Activated(model) => {
                    let shards = self.desks.len() as u32;
                    let desk = &mut self.desks[Shard::of(model, shards) as usize];
                    desk.activate(now, model, true, &mut self.numbers, out);
                }
            }
        }
        for desk in &mut self.desks {
            if desk.next_wakeup().is_some_and(|at| at <= now) {
                desk.wake(now, &mut self.numbers, out);
            }
        }
        loop {
            for desk in &mut self.desks {
                let outbox = desk.outbox();
                outbox.news.drain(..).for_each(|news| self.ranker.news(news));
                outbox.announcements.drain(..).for_each(|news| self.ranker.announce(now, news));
            }
            let mut grants = std::mem::take(&mut self.grants);
            self.ranker.decide(now, &mut grants);
            let over = grants.is_empty();
            for grant in grants.drain(..) {
                let shards = self.desks.len() as u32;
                let desk = &mut self.desks[Shard::of(grant.model, shards) as usize];
                desk.granted(now, grant, &mut self.numbers, out);
            }
            self.grants = grants;
            if over {
                break;
            }
        }
        self.unload_leaving(out);
    }

    /// Unloads models that are no longer served, once nothing of them is under way.
    fn unload_leaving(&mut self, out: &mut Vec<Command>) {
        let shards = self.desks.len() as u32;
        let (now, desks, weights, numbers) = (self.now, &self.desks, &mut self.weights, &mut self.numbers);
        self.leaving.retain(|&model| {
            let idle = desks[Shard::of(model, shards) as usize].is_idle(model);
            !(idle && weights.unload(now, model, numbers, out))
        });
    }

    /// When to call `step` with [`Event::WokeUp`] if nothing else happens before, and why.
    pub fn next_wakeup(&self) -> Option<(Timestamp, WakeReason)> {
        let shards = self.desks.iter().filter_map(Desk::next_wakeup).map(|at| (at, WakeReason::RequestExpires));
        let ranker = self.ranker.next_wakeup().map(|at| (at, WakeReason::ExecutorHungry));
        shards.chain(ranker).min()
    }

    /// How many requests are in hand, queued or running.
    pub fn in_hand(&self) -> usize {
        self.desks.iter().map(Desk::in_hand).sum()
    }

    /// Free pages of a device, by this machine's count (P5); `None` when it isn't there.
    pub fn free_pages(&self, device: DeviceId) -> Option<u32> {
        self.weights.free_pages(device)
    }

    /// Whether a model's weights are on some device.
    pub fn is_loaded(&self, model: ModelId) -> bool {
        self.weights.is_loaded(model)
    }
}
