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
mod backlog;
mod batch_rule;
mod batch_times;
mod bits;
mod clipper;
mod clockwork;
mod config;
mod demand;
mod devices;
mod distribution;
mod early_cost;
mod estimates;
mod event;
mod executor;
mod fair;
mod fingerprint;
mod heap;
pub mod hull;
mod last_chances;
mod ledger;
mod nexus;
mod one_at_a_time;
mod orloj;
mod patience;
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
mod uneven;
mod usage;
mod windowed;

pub use config::{Config, Delay, Gather, PolicyKind};
pub use event::{
    ActionStatus, Command, DeviceSpec, Event, Execution, Fairness, Load, Measured, ModelSpec, Outcome, Rehearsed,
    Rejection, Report, Request, Sample, Unload,
};
pub use fingerprint::Fingerprint;
pub use one_at_a_time::OneAtATime;
pub use rehearsal::Span;

use base::{ActionId, DeviceId, Duration, ModelId, RequestId, Timestamp, Window};
use bits::DeviceSet;
use clipper::Clipper;
use clockwork::Clockwork;
use estimates::Estimates;
use executor::{Executor, Lead};
use fair::Shares;
use ledger::{Action, Ledger, Model, Speed};
use nexus::Nexus;
use orloj::Orloj;
use policy::{Batch, Ended, Fact, Next, Policy, Started, View};
use punctual::Punctual;
use queue::{Opening, Place, Queued};
use queues::Queues;
use rehearsal::Rehearsals;
use requests::{RequestInHand, Requests, State};
use residency::Planner;
use rolling::History;
use shepherd::Shepherd;
use slack::SlackWatch;
use std::collections::BTreeSet;
use table::grown;
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
    /// Devices that the event at hand may have changed something for.
    touched: Vec<DeviceId>,
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
        let rehearses = kind == PolicyKind::Punctual && config.rehearse;
        Self {
            lead: Lead { ahead, way: config.delay.control },
            shares: Shares::default(),
            config,
            ledger: Ledger::default(),
            requests: Requests::default(),
            queues: Queues::with_lead(way),
            policy,
            rehearsals: rehearses.then(Rehearsals::new),
            learns: true,
            planner: Planner::default(),
            slack: SlackWatch::default(),
            hungry: DeviceSet::default(),
            hungry_at: BTreeSet::new(),
            touched: Vec::new(),
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
        let Self { now, ledger, queues, hungry, shares, policy, .. } = self;
        (View { now: *now, ledger, queues, hungry, shares }, &mut **policy)
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

    // ---- facts ----

    /// No weights are loaded any more for a removed model: where it is nowhere, what is queued for it can't be served.
    fn refuse_removed(&mut self, model: ModelId, out: &mut Vec<Command>) {
        for request in self.queues.of(model).ids() {
            self.finish_queued(request, Outcome::Rejected(Rejection::ModelUnavailable), out);
        }
    }

    fn model_added(&mut self, spec: ModelSpec) {
        assert!(grown(&mut self.ledger.models, spec.model.index()).is_none(), "{} was added twice", spec.model);
        let history = History { size: self.config.profile_window.max(1), quantile: self.config.profile_quantile };
        let mut estimates = Estimates::new(&spec, history, self.config.policy.learns_inputs());
        estimates.plan_with(self.ledger.slowest);
        let model = Model {
            pages: spec.pages,
            estimates,
            held: Vec::new(),
            objective: spec.objective,
            residency: Vec::new(),
            demand: Duration::ZERO,
            missed: Duration::ZERO,
            missed_since: self.now,
            planned_demand: Duration::ZERO,
            load_priority: 0,
            last_urgent_at: None,
            removed: false,
        };
        self.ledger.models[spec.model.index()] = Some(model);
        self.ledger.all_pages += u64::from(spec.pages);
        self.ledger.model_count += 1;
        self.queues.add_model(spec.model);
        self.shares.add_model(spec.model, spec.fairness);
        self.planner.add_model(spec.model);
        self.tell(Fact::ModelAdded(spec.model));
    }

    /// Takes measurements of single requests in; whether that may change a decision.
    fn measured(&mut self, measured: &Measured) -> bool {
        let slowest = self.ledger.slowest;
        let Some(Some(entry)) = self.ledger.models.get_mut(measured.model.index()) else { return false };
        let changed = entry.estimates.measured(self.now, measured, slowest);
        if let Some(rehearsals) = &mut self.rehearsals {
            rehearsals.uneven |= entry.estimates.distribution().is_some();
        }
        changed
    }

    fn model_removed(&mut self, model: ModelId, out: &mut Vec<Command>) {
        let Some(Some(entry)) = self.ledger.models.get_mut(model.index()) else { return };
        if std::mem::replace(&mut entry.removed, true) {
            return;
        }
        self.ledger.all_pages -= u64::from(entry.pages);
        self.ledger.model_count -= 1;
        // Where its weights are, what is queued is still served; no weights are loaded for it any more.
        if self.ledger.model(model).residency.is_empty() {
            self.refuse_removed(model, out);
        }
        self.unload_removed(model, out);
        self.planner.update(self.now, &mut self.ledger, &self.queues, model);
    }

    /// Requests for a model are about to come: it counts as missed, and as asked for.
    fn expected(&mut self, model: ModelId) {
        let Some(Some(entry)) = self.ledger.models.get_mut(model.index()) else { return };
        (entry.missed, entry.missed_since) = (entry.estimates.planned().time_for(1), self.now);
        entry.last_urgent_at = Some(self.now);
        self.planner.update(self.now, &mut self.ledger, &self.queues, model);
    }

    /// Frees what a removed model holds, where nothing of it is under way.
    fn unload_removed(&mut self, model: ModelId, out: &mut Vec<Command>) {
        let entry = self.ledger.model(model);
        if !entry.removed || self.queues.of(model).len() > 0 {
            return;
        }
        let idle = entry.residency.iter().filter(|there| there.in_use == 0 && there.loading_until.is_none());
        for device in idle.map(|there| there.device).collect::<Vec<_>>() {
            self.planner.unload(self.now, &mut self.ledger, &mut self.queues, model, device, out);
            self.tell(Fact::Unloaded(model, device));
        }
    }

    fn submitted(&mut self, request: Request, out: &mut Vec<Command>) {
        self.sequence += 1;
        self.write_down(&request);
        self.share_out();
        self.prepare_for(&request);
        match self.admit(&request) {
            Err(rejection) => {
                if matches!(rejection, Rejection::Overloaded { .. }) {
                    self.shares.refused();
                    self.note_settled(false);
                }
                self.note_missed(&request, rejection);
                out.push(Command::Finish { request: request.id, outcome: Outcome::Rejected(rejection) });
            }
            Ok(device) => self.enqueue(request, device),
        }
    }

    fn enqueue(&mut self, request: Request, device: Option<DeviceId>) {
        let priority = if request.priority == 0 { DEFAULT_PRIORITY } else { request.priority.min(MAX_PRIORITY) };
        let place = Place { priority, deadline_at: request.deadline_at, sequence: self.sequence };
        let urgent = request.deadline_at != Timestamp::NEVER;
        let added = self.added_work(self.ledger.model(request.model), &request);
        let work = if urgent { added } else { Duration::ZERO };
        let entry = self.ledger.model_mut(request.model);
        if urgent {
            entry.last_urgent_at = Some(self.now);
            entry.demand += work;
        }
        let booking = device.map(|device| {
            let takes = self.added_to(self.ledger.times(request.model, device), &request);
            let there = self.ledger.device_mut(device);
            let work = if urgent { takes } else { Duration::ZERO };
            (device, there.generation, there.backlog.book(self.now, request.deadline_at, work))
        });
        self.ledger.model_mut(request.model).estimates.arrived(request.application);
        let arrived_at = self.now;
        let state = State::Queued;
        self.requests.insert(RequestInHand { request, place, arrived_at, state, work, booking, stranded: false });
        let queued = Queued { id: request.id, rows: request.rows, arrived_at, kind: self.kind_of(&request) };
        let before = self.queues.of(request.model).rows();
        self.queues.insert(&self.ledger, request.model, place, queued);
        if urgent {
            self.shares.entered(self.now, request.model, self.ledger.model(request.model).estimates.planned(), before);
        }
        self.tell(Fact::Queued { model: request.model, place, queued, again: false });
        self.planner.update(self.now, &mut self.ledger, &self.queues, request.model);
        if !urgent || !self.config.policy.matches() {
            self.touch_hungry(request.model);
        }
    }

    fn kind_of(&self, request: &Request) -> u32 {
        let hinted = self.config.policy == PolicyKind::Punctual && self.config.size_hints;
        self.ledger.model(request.model).estimates.kind_of(request, hinted)
    }

    /// Marks the hungry device that should look at a model's queue: of those that hold it, the one that is free first.
    fn touch_hungry(&mut self, model: ModelId) {
        let exec = |device: DeviceId| &self.ledger.device(device).exec;
        let free_at = |device: DeviceId| exec(device).start_at(self.now);
        // Time alone makes a device overdue, which `hungry` hears of only when it is looked at: it would be marked in
        // vain, in the place of an idle one. So would one that is marked already, where the requests of a lost device
        // come back one after another.
        let takes = |device: &DeviceId| exec(*device).is_hungry(self.now, self.lead) && !self.touched.contains(device);
        let holding = || self.queues.devices_of(model).common(&self.hungry).filter(takes);
        let uniform = self.ledger.is_uniform();
        let free = holding().find(|&device| uniform && free_at(device) <= self.now);
        let smallest = |device: DeviceId| self.ledger.times(model, device).smallest();
        // Where devices differ, the quickest: others may have no time for it.
        let quickest = |device: DeviceId| (free_at(device).max(self.now), smallest(device), device);
        self.touched.extend(free.or_else(|| holding().min_by_key(|&device| quickest(device))));
    }

    fn cancelled(&mut self, id: RequestId, out: &mut Vec<Command>) {
        match self.requests.get_mut(id) {
            Some(entry) if entry.state == State::Queued => self.finish_queued(id, Outcome::Cancelled, out),
            Some(entry) => entry.state = State::Abandoned,
            None => {}
        }
    }

    fn reported(&mut self, report: Report, out: &mut Vec<Command>) {
        match self.ledger.actions.remove(&report.action) {
            Some(Action::Execute { device, speed, model, batch, requests }) => {
                self.executed(report, (device, speed), model, batch, &requests, out);
            }
            Some(Action::Load { device, model }) => self.load_reported(report, device, model, out),
            None => {}
        }
    }

    fn borrowed(&mut self, device: DeviceId, action: ActionId, expected: Duration) {
        if let Some(Some(there)) = self.ledger.devices.get_mut(device.index()) {
            there.exec.push(self.now, action, expected, Duration::ZERO);
            self.set_hungry(device);
        }
    }

    fn returned(&mut self, device: DeviceId, action: ActionId) {
        if let Some(Some(there)) = self.ledger.devices.get_mut(device.index()) {
            there.exec.finish(self.now, action);
            self.tell(Fact::DeviceFreed(device));
            self.set_hungry(device);
            self.touched.push(device);
        }
    }

    fn executed(
        &mut self,
        report: Report,
        (device, speed): (DeviceId, Speed),
        model: ModelId,
        batch: u32,
        requests: &[RequestId],
        out: &mut Vec<Command>,
    ) {
        let there = self.ledger.device_mut(device);
        let planned_at = there.exec.start_at(self.now);
        there.exec.finish(report.ended_at(self.now), report.action);
        let freed = there.exec.start_at(self.now) < planned_at;
        // Nobody knows as which kind a device computed a batch meanwhile that it was changed.
        let learns = self.learns && there.speed() == speed;
        let entry = self.ledger.model_mut(model);
        entry.residency_on_mut(device).expect("weights in use stay (P6)").in_use -= 1;
        let mut step = None;
        if let ActionStatus::Done { started_at, ended_at, transfers } = report.status {
            let took = ended_at.since(started_at) + transfers.before;
            if learns {
                step = self.ledger.learn(ended_at, device, model, (batch, took, transfers.overlap));
            }
            self.ledger.device_mut(device).exec.note_overlap(transfers.overlap);
        }
        let mut in_time = true;
        for &request in requests {
            match report.status {
                ActionStatus::Done { ended_at, .. } => in_time &= self.finish_executed(request, ended_at, out),
                ActionStatus::TooLate | ActionStatus::Preempted => self.requeue(request, out),
                ActionStatus::Failed => self.finish_running(request, Outcome::Failed, out),
            }
        }
        self.ledger.batch_ended(device, report.action);
        self.tell(Fact::Ended(Ended { device, action: report.action, model, in_time }));
        if let Some(step) = step {
            self.slowed(device, step);
        }
        // What was in use may make room now.
        if !self.ledger.everything_fits() {
            self.planner.reconsider();
        }
        if freed {
            self.tell(Fact::DeviceFreed(device));
        }
        self.unload_removed(model, out);
        self.set_hungry(device);
        self.touched.push(device);
    }

    /// Ends a request whose batch has run; whether that was in time.
    fn finish_executed(&mut self, id: RequestId, ended_at: Timestamp, out: &mut Vec<Command>) -> bool {
        let Some(entry) = self.requests.get(id) else { return true };
        let in_time = ended_at <= entry.request.deadline_at;
        if entry.request.deadline_at != Timestamp::NEVER {
            let (model, arrived_at) = (entry.request.model, entry.arrived_at);
            self.settled(model, arrived_at, in_time);
        }
        self.finish_running(id, if in_time { Outcome::Done } else { Outcome::Late }, out);
        in_time
    }

    fn finish_running(&mut self, id: RequestId, outcome: Outcome, out: &mut Vec<Command>) {
        let Some(entry) = self.requests.remove(id) else { return };
        let outcome = if entry.state == State::Abandoned { Outcome::Cancelled } else { entry.possible(outcome) };
        out.push(Command::Finish { request: id, outcome });
    }

    /// A request whose batch didn't run, or ran on a device that was lost, goes back into its queue if it can still be
    /// in time.
    fn requeue(&mut self, id: RequestId, out: &mut Vec<Command>) {
        let Some(entry) = self.requests.get_mut(id) else { return };
        if entry.state == State::Abandoned {
            return self.finish_running(id, Outcome::Cancelled, out);
        }
        let (request, place, work, arrived_at) = (entry.request, entry.place, entry.work, entry.arrived_at);
        let model = self.ledger.model(request.model);
        if model.removed {
            return self.finish_running(id, Outcome::Rejected(Rejection::ModelUnavailable), out);
        }
        let cold = if model.residency.is_empty() { model.estimates.load() } else { Duration::ZERO };
        let takes = self.ledger.quickest(self.ledger.model(request.model), request.rows);
        let earliest_at = self.now + cold + takes;
        if earliest_at > request.deadline_at {
            return self.finish_running(id, Outcome::Rejected(Rejection::Overloaded { earliest_at }), out);
        }
        entry.state = State::Queued;
        self.ledger.model_mut(request.model).demand += work;
        let queued = Queued { id, rows: request.rows, arrived_at, kind: self.kind_of(&request) };
        self.queues.insert(&self.ledger, request.model, place, queued);
        self.tell(Fact::Queued { model: request.model, place, queued, again: true });
        self.planner.update(self.now, &mut self.ledger, &self.queues, request.model);
        if request.deadline_at == Timestamp::NEVER || !self.config.policy.matches() {
            self.touch_hungry(request.model);
        }
    }

    fn load_reported(&mut self, report: Report, device: DeviceId, model: ModelId, out: &mut Vec<Command>) {
        let there = self.ledger.device_mut(device);
        there.load.finish(report.ended_at(self.now), report.action);
        let idle = there.load.is_idle();
        there.loading.remove(&model);
        if idle {
            self.ledger.load_idle.insert(device);
        }
        self.planner.reconsider();
        let learns = self.learns;
        let entry = self.ledger.model_mut(model);
        match report.status {
            ActionStatus::Done { started_at, ended_at, .. } => {
                if learns {
                    entry.estimates.observe_load(ended_at, ended_at.since(started_at));
                }
                let residency = entry.residency_on_mut(device).expect("a model that is loading is resident");
                residency.loading_until = None;
                let last_used_at = residency.last_used_at;
                self.ledger.device_mut(device).by_last_use.insert((last_used_at, model));
                self.ledger.touch(self.now, model, device);
                self.loaded(model, device);
                self.unload_removed(model, out);
                self.touched.push(device);
            }
            ActionStatus::TooLate | ActionStatus::Preempted | ActionStatus::Failed => {
                self.ledger.evict(model, device);
                self.unloaded(model, device);
                // Trying again would fail again, and take the others' time.
                let hopeless = report.status == ActionStatus::Failed || self.ledger.model(model).removed;
                if hopeless && self.ledger.model(model).residency.is_empty() {
                    for request in self.queues.of(model).ids() {
                        self.finish_queued(request, Outcome::Failed, out);
                    }
                }
                self.planner.update(self.now, &mut self.ledger, &self.queues, model);
            }
        }
    }

    // ---- decisions ----

    fn decide(&mut self, out: &mut Vec<Command>) {
        self.ledger.note_use(self.now);
        // Before the devices are fed: a model that is always busy is free for a moment now, and may have to go.
        if self.planner.is_due(self.now) {
            self.plan_loads(out);
        }
        let matches = self.config.policy.matches();
        if matches {
            self.follow(out);
        }
        while let Some(device) = self.touched.pop() {
            if self.hungry.contains(device) {
                self.feed(device, out);
            }
        }
        if !matches {
            self.follow(out);
        }
        // What was unloaded just now may have changed who can run what.
        if self.planner.is_due(self.now) && self.plan_loads(out) && !self.config.policy.breaks_off() {
            self.follow(out);
        }
        self.slack.set_batch_work_waits(self.now, self.batch_work_waits());
    }

    /// Orders what should be loaded and unloaded; whether there was something.
    fn plan_loads(&mut self, out: &mut Vec<Command>) -> bool {
        let before = out.len();
        let lead = Lead { ahead: self.config.schedule_ahead, way: self.lead.way };
        self.planner.decide(self.now, lead, &mut self.ledger, &mut self.queues, out);
        for order in &out[before..] {
            if let &Command::Unload(Unload { device, model }) = order {
                self.tell(Fact::Unloaded(model, device));
            }
        }
        out.len() > before
    }

    /// Does what the policy wants of its own accord: starts batches that are ready, or breaks one off.
    fn follow(&mut self, out: &mut Vec<Command>) {
        while let Some(next) = self.next() {
            match next {
                Next::Feed(device) => self.give(device, out),
                Next::BreakOff(device, action) => return out.push(Command::Preempt { device, action }),
            }
        }
    }

    /// Gives a device the batch that is ready for it, if it still has time for one.
    fn give(&mut self, device: DeviceId, out: &mut Vec<Command>) {
        let exec = &self.ledger.device(device).exec;
        let opening = self.opening(exec);
        if exec.is_hungry(self.now, self.lead)
            && let Some(batch) = self.next_batch(device, opening)
        {
            self.execute(device, batch, out);
        }
        self.set_hungry(device);
    }

    fn opening(&self, exec: &Executor) -> Opening {
        Opening { free_at: exec.surely_at(self.now), now: self.now, delay: self.config.delay }
    }

    /// Gives a device batches until it has enough ahead or nothing is in time. Where the policy names the devices for
    /// urgent batches, only batch work.
    fn feed(&mut self, device: DeviceId, out: &mut Vec<Command>) {
        let matched = self.config.policy.matches();
        loop {
            let exec = &self.ledger.device(device).exec;
            if !exec.is_hungry(self.now, self.lead) {
                break;
            }
            let (opening, idle) = (self.opening(exec), exec.is_idle());
            if !matched && let Some(batch) = self.next_batch(device, opening) {
                self.execute(device, batch, out);
            } else if idle {
                // Batch work isn't queued ahead: whoever comes next should wait for one batch of it at most.
                let limit = self.slack.batch_work_limit(self.now);
                let Some(batch) = self.queues.next_background(&self.ledger, device, limit) else { break };
                self.execute(device, batch, out);
                break;
            } else {
                break;
            }
        }
        self.set_hungry(device);
    }

    fn execute(&mut self, device: DeviceId, batch: Batch, out: &mut Vec<Command>) {
        let Batch { model, candidate, members, dropped } = batch;
        for id in dropped {
            self.give_up(id, out);
        }
        let mut rows = 0;
        for &id in &members {
            let entry = self.requests.get_mut(id).expect("queued requests are in hand");
            assert_eq!(entry.state, State::Queued, "P1: {id} is to be executed twice");
            entry.state = State::Running;
            let place = entry.place;
            rows += entry.request.rows;
            self.take_out(model, place);
            self.release(id);
        }
        let action = self.ledger.next_action();
        let now = self.now;
        self.ledger.touch(now, model, device);
        let class = &self.ledger.times(model, device).classes()[candidate.class];
        let (batch, overlap, keeps) = (class.batch, class.overlap(), class.busy_mean());
        let entry = self.ledger.model_mut(model);
        let residency = entry.residency_on_mut(device).expect("batches run where the weights are (P6)");
        assert!(residency.loading_until.is_none(), "P6: {model} is still loading on {device}");
        residency.in_use += 1;
        let arrives_at = now + self.config.delay.of(rows);
        let expected_done_at =
            self.ledger.device_mut(device).exec.push(arrives_at, action, candidate.expected, overlap);
        self.ledger.batch_started(device, action, expected_done_at);
        // Shares are of what devices give that aren't slow.
        if !self.ledger.slow.contains(device) {
            self.shares.started(now, model, keeps);
        }
        self.shares.left(model, self.queues.of(model).len());
        self.tell(Fact::Started(Started { device, action, model, rows, expected: candidate.expected }));
        self.planner.update(self.now, &mut self.ledger, &self.queues, model);
        let speed = self.ledger.device(device).speed();
        self.ledger.actions.insert(action, Action::Execute { device, speed, model, batch, requests: members.clone() });
        out.push(Command::Execute(Execution {
            action,
            device,
            model,
            batch,
            requests: members,
            window: Window { earliest: now, latest: candidate.latest },
            expected: candidate.expected,
            expected_done_at,
        }));
    }

    /// Takes a request that leaves the queue off the books.
    fn release(&mut self, id: RequestId) {
        let entry = self.requests.get_mut(id).expect("queued requests are in hand");
        let (model, work) = (entry.request.model, entry.work);
        if let Some((device, generation, booking)) = entry.booking.take()
            && let Some(Some(there)) = self.ledger.devices.get_mut(device.index())
            && there.generation == generation
        {
            there.backlog.release(booking);
        }
        self.ledger.model_mut(model).demand -= work;
    }

    /// Ends a request that is still queued.
    fn finish_queued(&mut self, id: RequestId, outcome: Outcome, out: &mut Vec<Command>) {
        let entry = *self.requests.get(id).expect("queued requests are in hand");
        self.take_out(entry.request.model, entry.place);
        self.shares.left(entry.request.model, self.queues.of(entry.request.model).len());
        self.release(id);
        self.requests.remove(id);
        self.planner.update(self.now, &mut self.ledger, &self.queues, entry.request.model);
        out.push(Command::Finish { request: id, outcome: entry.possible(outcome) });
        self.unload_removed(entry.request.model, out);
    }

    /// Refuses what can no longer be in time.
    fn expire(&mut self, out: &mut Vec<Command>) {
        while let Some(id) = self.queues.expired(&self.ledger, self.now) {
            self.give_up(id, out);
        }
    }

    /// Refuses a queued request for which there is no time.
    fn give_up(&mut self, id: RequestId, out: &mut Vec<Command>) {
        let &RequestInHand { request, arrived_at, .. } = self.requests.get(id).expect("queued requests are in hand");
        let rejection = Rejection::Overloaded { earliest_at: self.earliest_after_queue(&request) };
        self.settled(request.model, arrived_at, false);
        self.finish_queued(id, Outcome::Rejected(rejection), out);
    }

    /// Batch work is queued where a device is idle: only the wish to stay available keeps it waiting.
    fn batch_work_waits(&self) -> bool {
        self.queues.background_waits(&self.hungry)
    }

    // ---- hunger ----

    /// Brings a device's place in `hungry` and `hungry_at` up to date.
    fn set_hungry(&mut self, device: DeviceId) {
        let there = self.ledger.devices[device.index()].as_mut().expect("only devices that are there get work");
        let (is_hungry, at) = (there.exec.is_hungry(self.now, self.lead), there.exec.hungry_at(self.now, self.lead));
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
            self.ledger.device_mut(device).hungry_at = None;
            self.hungry.insert(device);
            self.touched.push(device);
        }
    }
}
