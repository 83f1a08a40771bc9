//! Every decision, as one pure state machine: no clock, no IO, no threads, no randomness, no logging.
//!
//! # The contract
//!
//! - The driver calls [`Scheduler::step`] with each fact as it learns of it, and carries out the commands that are
//!   appended. `now` never goes back.
//! - The driver calls `step` with [`Event::WokeUp`] at [`Scheduler::next_wakeup`], if nothing else happens before.
//!   Being woken early or late is harmless, except that late decisions are late.
//! - Every submitted request gets exactly one [`Command::Finish`] (P1), after which its slot is the driver's again.
//! - Every `Execute` and `Load` gets exactly one [`Event::Reported`], unless its device is lost before; reports of
//!   actions of a lost device are ignored.
//! - Equal sequences of `(now, event)` give equal sequences of commands (P7).
//!
//! # The cost
//!
//! With n requests queued, M models, G devices, R of them holding the model at hand, and B batch sizes up to b: an
//! arrival takes O(log n + log M); a report takes O(log M + B (log n + b)) for each batch that it lets go, and looks at
//! G / R ready candidates on average until it finds one that its device holds. Planning a load looks at 64 devices at
//! most, rivals that plan for each device at R.

mod admission;
mod allotment;
mod backlog;
mod batch_rule;
mod batch_times;
mod bits;
mod clipper;
mod clockwork;
mod config;
mod decisions;
mod demand;
mod devices;
mod distribution;
mod early_cost;
mod estimates;
mod event;
mod executor;
mod facts;
mod fair;
mod fingerprint;
mod followers;
mod heap;
pub mod hull;
mod last_chances;
mod ledger;
mod nexus;
mod one_at_a_time;
mod orloj;
mod patience;
mod pipelines;
mod policy;
mod pressure;
mod punctual;
mod queue;
mod queues;
mod ready_models;
mod rehearsal;
mod requests;
mod residency;
mod rolling;
mod shepherd;
mod slack;
mod slowness;
mod spread;
mod table;
mod trials;
mod uneven;
mod usage;
mod windowed;

pub use config::{Config, Delay, Gather, PolicyKind, Split};
pub use event::{
    ActionStatus, Allotment, Command, DeviceSpec, Event, Execution, Fairness, Load, Measured, ModelSpec, Outcome,
    PipelineSpec, PipelineStage, Rehearsed, Rejection, Report, Request, Sample, StageSpec, Unload,
};
pub use fingerprint::Fingerprint;
pub use one_at_a_time::OneAtATime;
pub use rehearsal::Span;

use base::{DeviceId, Duration, ModelId, Timestamp};
use bits::DeviceSet;
use clipper::Clipper;
use clockwork::Clockwork;
use executor::Lead;
use fair::Shares;
use ledger::Ledger;
use nexus::Nexus;
use orloj::Orloj;
use pipelines::Pipelines;
use policy::{Batch, Fact, Next, Policy, View};
use punctual::Punctual;
use queue::{Opening, Place};
use queues::Queues;
use rehearsal::Rehearsals;
use requests::Requests;
use residency::Planner;
use shepherd::Shepherd;
use slack::SlackWatch;
use std::collections::BTreeSet;
use windowed::Windowed;

/// Levels of urgency within one model; higher numbers count as this one.
const MAX_PRIORITY: u32 = 16;
/// The level of requests that name no priority: behind all that name one.
const DEFAULT_PRIORITY: u32 = MAX_PRIORITY + 1;

/// Why the scheduler wants to be woken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum WakeReason {
    /// A queued request can no longer make its deadline and must be refused.
    RequestExpires,
    /// An executor has less work ahead of it than it should have.
    ExecutorHungry,
    /// A batch that was left to grow has become ready.
    BatchReady,
    /// Batch work waits for a quiet moment, which may have come.
    BatchWorkWaits,
}

/// The pure machine. The crate's documentation states the contract.
#[derive(Debug)]
pub struct Scheduler {
    config: Config,
    ledger: Ledger,
    requests: Requests,
    pipelines: Pipelines,
    queues: Queues,
    policy: Box<dyn Policy>,
    /// What `punctual` learns its rule from.
    rehearsals: Option<Rehearsals>,
    planner: Planner,
    slack: SlackWatch,
    /// Who may have how much when devices are short.
    shares: Shares,
    /// How early devices get their batches.
    lead: Lead,
    /// Devices that should be given more work.
    hungry: DeviceSet,
    /// When devices will be hungry without a report.
    hungry_at: BTreeSet<(Timestamp, DeviceId)>,
    /// Until when devices are kept for calls that are about to come, the last of them.
    kept_until: Timestamp,
    /// Devices that the event at hand may have changed something for.
    touched: Vec<DeviceId>,
    /// From when on batch work that has waited goes before what has deadlines, somewhere.
    batch_work_at: Timestamp,
    /// While other requests are in hand, none that seems impossible is tried before.
    try_at: Timestamp,
    sequence: u64,
    now: Timestamp,
    /// Whether measurements change the estimates; not in imagination.
    learns: bool,
}

impl Scheduler {
    /// A scheduler with no device and no model.
    pub fn new(config: Config) -> Self {
        let kind = config.policy;
        let policy: Box<dyn Policy> = match kind {
            PolicyKind::Clockwork => Box::<Clockwork>::default(),
            PolicyKind::Nexus => Box::<Nexus>::default(),
            PolicyKind::Shepherd => Box::new(Shepherd::new(&config)),
            PolicyKind::Clipper => Box::new(Clipper::new(&config)),
            PolicyKind::Orloj => Box::new(Orloj::new(&config)),
            PolicyKind::Deferred | PolicyKind::Eager | PolicyKind::Timeout => Box::new(Windowed::new(&config)),
            PolicyKind::Punctual => Box::new(Punctual::new(&config)),
        };
        let ahead = if kind.matches() { config.delay.control } else { config.schedule_ahead };
        let way = if kind.counts_the_way() { config.delay.of(1) } else { Duration::ZERO };
        let planner = Planner::new(config.batch_work_share > 0.0);
        let rehearses = kind == PolicyKind::Punctual && config.rehearse;
        Self {
            lead: Lead { ahead, way: config.delay.control },
            shares: Shares::default(),
            config,
            ledger: Ledger::default(),
            requests: Requests::default(),
            pipelines: Pipelines::default(),
            queues: Queues::with_lead(way),
            policy,
            rehearsals: rehearses.then(Rehearsals::new),
            learns: true,
            planner,
            slack: SlackWatch::default(),
            hungry: DeviceSet::default(),
            hungry_at: BTreeSet::new(),
            kept_until: Timestamp::ZERO,
            touched: Vec::new(),
            batch_work_at: Timestamp::ZERO,
            try_at: Timestamp::ZERO,
            sequence: 0,
            now: Timestamp::ZERO,
        }
    }

    /// Takes in one fact and appends the orders that follow from it.
    pub fn step(&mut self, now: Timestamp, event: Event, out: &mut Vec<Command>) {
        if let Event::Measured(measured) = &event
            && !self.measured(measured)
        {
            return;
        }
        self.now = self.now.max(now);
        // Before the event changes who is busy: until now it was as the last step left it.
        self.ledger.note_use(self.now);
        self.note_hunger();
        self.try_slow_devices();
        self.expire(out);
        match event {
            Event::DeviceAdded(spec) => self.device_added(spec),
            Event::DeviceLost(device) => self.device_lost(device, out),
            Event::DeviceChanged { device, kind } => self.device_changed(device, kind),
            Event::ModelAdded(spec) => self.model_added(spec),
            Event::ModelRemoved(model) => self.model_removed(model, out),
            Event::Expected(model) => self.expected(model),
            Event::Submitted(request) => self.submitted(request, out),
            Event::Cancelled(request) => self.cancelled(request, out),
            Event::Reported(report) => self.reported(report, out),
            Event::Borrowed { device, action, expected } => self.borrowed(device, action, expected),
            Event::Returned { device, action } => self.returned(device, action),
            Event::Adopted(rehearsed) => self.adopted(&rehearsed),
            Event::Measured(_) => {}
            Event::PipelineAdded(spec) => self.pipelines.add(spec),
            Event::PipelineRemoved(pipeline) => self.pipelines.remove(pipeline),
            Event::StageSubmitted(request, stage) => self.stage_submitted(request, stage, out),
            Event::Allotted(allotments) => self.allotted(allotments, out),
            Event::WokeUp if !self.config.policy.matches() || self.queues.has_background() => {
                self.touched.extend(self.hungry.iter());
                // The last one is fed first: the lowest number.
                self.touched.reverse();
            }
            Event::WokeUp => {}
        }
        self.decide(out);
    }

    /// When to call `step` with [`Event::WokeUp`] if nothing else happens before, and why.
    pub fn next_wakeup(&self) -> Option<(Timestamp, WakeReason)> {
        let expires = self.queues.next_expiry().map(|at| (at, WakeReason::RequestExpires));
        let hungry = self.hungry_at.first().map(|&(at, _)| (at, WakeReason::ExecutorHungry));
        let load = self.planner.next_wakeup();
        let load = load.map(|at| (at, WakeReason::ExecutorHungry));
        let quiet = self.slack.batch_work_waits_until().map(|at| (at, WakeReason::BatchWorkWaits));
        let ready = self.policy.next_at().map(|at| (at, WakeReason::BatchReady));
        [expires, hungry, load, quiet, ready].into_iter().flatten().min()
    }

    /// How many requests are in hand, queued or running.
    pub fn in_hand(&self) -> usize {
        self.requests.len()
    }

    /// Free pages of a device, by the scheduler's count (P5); `None` when it isn't there.
    pub fn free_pages(&self, device: DeviceId) -> Option<u32> {
        Some(self.ledger.devices.get(device.index())?.as_ref()?.free_pages)
    }

    /// Whether a model's weights are on some device, or on their way.
    pub fn is_resident(&self, model: ModelId) -> bool {
        let entry = self.ledger.models.get(model.index()).and_then(Option::as_ref);
        entry.is_some_and(|entry| !entry.residency.is_empty())
    }

    /// Whether nothing is left of a model that was removed: nothing is queued for it, runs, or is on a device. Its
    /// number may be given to another from then on.
    pub fn left_nothing(&self, model: ModelId) -> bool {
        let entry = self.ledger.models.get(model.index()).and_then(Option::as_ref);
        entry.is_some_and(|entry| entry.removed && entry.is_nowhere() && self.queues.of(model).len() == 0)
    }

    /// Whether a model's weights are on some device.
    pub fn is_loaded(&self, model: ModelId) -> bool {
        let entry = self.ledger.models.get(model.index()).and_then(Option::as_ref);
        entry.is_some_and(|entry| entry.loaded_devices().next().is_some())
    }

    /// On how many devices a model's weights are.
    pub fn loaded_on(&self, model: ModelId) -> usize {
        let entry = self.ledger.models.get(model.index()).and_then(Option::as_ref);
        entry.map_or(0, |entry| entry.loaded_devices().count())
    }

    // ---- the policy ----

    /// The policy, and what it may look at.
    fn consult(&mut self) -> (View<'_>, &mut dyn Policy) {
        let Self { now, ledger, queues, hungry, shares, pipelines, policy, .. } = self;
        (View { now: *now, ledger, queues, hungry, shares, pipelines }, &mut **policy)
    }

    fn tell(&mut self, fact: Fact) {
        let (view, policy) = self.consult();
        policy.learn(&view, fact);
    }

    fn next(&mut self) -> Option<Next> {
        let (view, policy) = self.consult();
        policy.next(&view)
    }

    fn next_batch(&mut self, device: DeviceId, opening: Opening) -> Option<Batch> {
        let (view, policy) = self.consult();
        policy.next_batch(&view, device, opening)
    }

    fn take_out(&mut self, model: ModelId, place: Place) {
        self.queues.remove(model, place);
        self.tell(Fact::Dequeued(model, place));
    }

    fn loaded(&mut self, model: ModelId, device: DeviceId) {
        self.queues.loaded(model, device);
        self.tell(Fact::Loaded(model, device));
    }

    fn unloaded(&mut self, model: ModelId, device: DeviceId) {
        self.queues.unloaded(&self.ledger, model, device);
        self.tell(Fact::Unloaded(model, device));
    }

    /// A request with a deadline that was let in has its outcome.
    fn settled(&mut self, model: ModelId, arrived_at: Timestamp, in_time: bool) {
        self.tell(Fact::Settled { in_time });
        self.shares.settled(model, arrived_at, in_time);
        self.note_settled(in_time);
    }

    // ---- hunger ----

    /// Brings a device's place in `hungry` and `hungry_at` up to date.
    fn set_hungry(&mut self, device: DeviceId) {
        let there = self.ledger.devices[device.index()].as_mut().expect("only devices that are there get work");
        let is_kept = there.exec.is_idle() && there.kept_until > self.now;
        let is_hungry = there.exec.is_hungry(self.now, self.lead) && !there.is_closed() && !is_kept;
        let at = if is_kept { there.kept_until } else { there.exec.hungry_at(self.now, self.lead) };
        let wanted = (!is_hungry && at != Timestamp::NEVER).then_some(at);
        let before = std::mem::replace(&mut there.hungry_at, wanted);
        if before != wanted {
            if let Some(before) = before {
                self.hungry_at.remove(&(before, device));
            }
            if let Some(wanted) = wanted {
                self.hungry_at.insert((wanted, device));
            }
        }
        if is_hungry {
            self.hungry.insert(device);
        } else {
            self.hungry.remove(device);
        }
    }

    /// Finds the devices that time alone has made hungry.
    fn note_hunger(&mut self) {
        while let Some(&(at, device)) = self.hungry_at.first() {
            if at > self.now {
                break;
            }
            self.hungry_at.remove(&(at, device));
            let there = self.ledger.device_mut(device);
            there.hungry_at = None;
            if !there.is_closed() {
                self.hungry.insert(device);
                self.touched.push(device);
            }
        }
    }
}
