//! What a [`Scheduler`] does with what it is told: it records facts and gives outcomes, and leaves decisions to
//! `decisions.rs`.

use crate::config::PolicyKind;
use crate::estimates::Estimates;
use crate::event::{ActionStatus, Command, Measured, ModelSpec, Outcome, Rejection, Report, Request};
use crate::ledger::{Action, Model, Speed};
use crate::policy::{Ended, Fact};
use crate::queue::{Place, Queued};
use crate::rehearsal::Rehearsals;
use crate::requests::{RequestInHand, State};
use crate::rolling::History;
use crate::table::grown;
use crate::trials::Trials;
use crate::{DEFAULT_PRIORITY, MAX_PRIORITY, Scheduler};
use base::{ActionId, DeviceId, Duration, ModelId, RequestId, Timestamp};

impl Scheduler {
    /// No weights are loaded any more for a removed model: where it is nowhere, what is queued for it can't be served.
    pub(crate) fn refuse_removed(&mut self, model: ModelId, out: &mut Vec<Command>) {
        for request in self.queues.of(model).ids() {
            self.finish_queued(request, Outcome::Rejected(Rejection::ModelUnavailable), out);
        }
    }

    pub(crate) fn model_added(&mut self, spec: ModelSpec) {
        if grown(&mut self.ledger.models, spec.model.index()).is_some() {
            self.forget_model(spec.model);
        }
        let history = History { size: self.config.profile_window.max(1), quantile: self.config.profile_quantile };
        let mut estimates = Estimates::new(&spec, history, self.config.policy.learns_inputs());
        estimates.plan_with(self.ledger.slowest);
        let model = Model {
            pages: spec.pages,
            estimates,
            held: Vec::new(),
            objective: spec.objective,
            residency: Vec::new(),
            parked: Vec::new(),
            barred: 0,
            kinds: Vec::new(),
            demand: Duration::ZERO,
            missed: Duration::ZERO,
            missed_since: self.now,
            planned_demand: Duration::ZERO,
            load_priority: 0,
            last_urgent_at: None,
            trials: Trials::default(),
            removed: false,
        };
        self.ledger.models[spec.model.index()] = Some(model);
        self.ledger.all_pages += u64::from(spec.pages);
        self.ledger.model_count += 1;
        self.queues.add_model(spec.model);
        self.shares.add_model(spec.model, spec.fairness);
        self.planner.add_model(spec.model);
        if self.ledger.allotted > 0 {
            self.ledger.note_allotted();
        }
        self.tell(Fact::ModelAdded(spec.model));
    }

    /// Another model has the number of one that is gone from now on. What is kept by model is made anew where models
    /// are added; here goes what is kept elsewhere.
    fn forget_model(&mut self, model: ModelId) {
        assert!(self.left_nothing(model), "{model} was added twice");
        self.ledger.devices.iter_mut().flatten().for_each(|device| device.forget(model));
        self.pipelines.forget_model(model);
        self.rehearsals.iter_mut().for_each(Rehearsals::break_off);
    }

    /// Takes measurements of single requests in; whether that may change a decision.
    pub(crate) fn measured(&mut self, measured: &Measured) -> bool {
        let slowest = self.ledger.slowest;
        let restricted = self.ledger.allotted > 0;
        let Some(Some(entry)) = self.ledger.models.get_mut(measured.model.index()) else { return false };
        let slowest = if restricted { entry.kinds.first().copied().unwrap_or(slowest) } else { slowest };
        let changed = entry.estimates.measured(self.now, measured, slowest);
        if let Some(rehearsals) = &mut self.rehearsals {
            rehearsals.uneven |= entry.estimates.distribution().is_some();
        }
        changed
    }

    pub(crate) fn model_removed(&mut self, model: ModelId, out: &mut Vec<Command>) {
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
    pub(crate) fn expected(&mut self, model: ModelId) {
        let Some(Some(entry)) = self.ledger.models.get_mut(model.index()) else { return };
        (entry.missed, entry.missed_since) = (entry.estimates.planned().time_for(1), self.now);
        entry.last_urgent_at = Some(self.now);
        self.planner.update(self.now, &mut self.ledger, &self.queues, model);
    }

    /// Frees what a removed model holds, where nothing of it is under way.
    pub(crate) fn unload_removed(&mut self, model: ModelId, out: &mut Vec<Command>) {
        let entry = self.ledger.model(model);
        if !entry.removed || self.queues.of(model).len() > 0 {
            return;
        }
        let idle = entry.weights().filter(|there| there.in_use == 0 && there.loading_until.is_none());
        for device in idle.map(|there| there.device).collect::<Vec<_>>() {
            self.planner.unload(self.now, &mut self.ledger, &mut self.queues, model, device, out);
            self.tell(Fact::Unloaded(model, device));
        }
        let entry = self.ledger.model_mut(model);
        if entry.is_nowhere() {
            entry.estimates.let_go();
        }
    }

    pub(crate) fn submitted(&mut self, request: Request, out: &mut Vec<Command>) {
        self.sequence += 1;
        self.write_down(&request);
        self.share_out();
        self.prepare_for(&request);
        match self.admit(&request) {
            Err(Rejection::DeadlineUnreachable { .. }) if let Some(device) = self.device_to_try(&request) => {
                self.try_alone(request, device, out);
            }
            Err(rejection) => self.refuse(&request, rejection, out),
            Ok(device) => self.enqueue(request, device),
        }
    }

    /// Refuses a request that has just come.
    pub(crate) fn refuse(&mut self, request: &Request, rejection: Rejection, out: &mut Vec<Command>) {
        if matches!(rejection, Rejection::Overloaded { .. }) {
            self.shares.refused();
            self.note_settled(false);
        }
        self.note_missed(request, rejection);
        out.push(Command::Finish { request: request.id, outcome: Outcome::Rejected(rejection) });
    }

    pub(crate) fn enqueue(&mut self, request: Request, device: Option<DeviceId>) {
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
        self.queues.insert(&self.ledger, request.model, place, queued);
        self.note_queued(request.model);
        self.tell(Fact::Queued { model: request.model, place, queued, again: false });
        self.planner.update(self.now, &mut self.ledger, &self.queues, request.model);
        if !urgent || !self.config.policy.matches() {
            self.touch_hungry(request.model);
        }
    }

    pub(crate) fn kind_of(&self, request: &Request) -> u32 {
        self.ledger.model(request.model).estimates.kind_of(request, self.heeds_hints())
    }

    /// Whether requests are told apart by their sizes.
    pub(crate) fn heeds_hints(&self) -> bool {
        self.config.policy == PolicyKind::Punctual && self.config.size_hints
    }

    /// Marks the hungry device that should look at a model's queue: of those that hold it, the one that is free first.
    pub(crate) fn touch_hungry(&mut self, model: ModelId) {
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

    pub(crate) fn cancelled(&mut self, id: RequestId, out: &mut Vec<Command>) {
        match self.requests.get_mut(id) {
            Some(entry) if entry.state == State::Queued => self.finish_queued(id, Outcome::Cancelled, out),
            Some(entry) => entry.state = State::Abandoned,
            None => {}
        }
    }

    pub(crate) fn reported(&mut self, report: Report, out: &mut Vec<Command>) {
        match self.ledger.actions.remove(&report.action) {
            Some(Action::Execute { device, speed, model, batch, requests }) => {
                self.executed(report, (device, speed), model, batch, &requests, out);
            }
            Some(Action::Load { device, model }) => self.load_reported(report, device, model, out),
            None => {}
        }
    }

    pub(crate) fn borrowed(&mut self, device: DeviceId, action: ActionId, expected: Duration) {
        if let Some(Some(there)) = self.ledger.devices.get_mut(device.index()) {
            there.exec.push(self.now, action, expected, Duration::ZERO);
            there.idle_since = Timestamp::NEVER;
            self.set_hungry(device);
        }
    }

    pub(crate) fn returned(&mut self, device: DeviceId, action: ActionId) {
        if let Some(Some(there)) = self.ledger.devices.get_mut(device.index()) {
            there.exec.finish(self.now, action);
            there.note_idle(self.now);
            self.tell(Fact::DeviceFreed(device));
            self.set_hungry(device);
            self.touched.push(device);
        }
    }

    pub(crate) fn executed(
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
        there.note_idle(self.now);
        let freed = there.exec.start_at(self.now) < planned_at;
        // Nobody knows as which kind a device computed a batch meanwhile that it was changed.
        let learns = self.learns && there.speed() == speed;
        let entry = self.ledger.model_mut(model);
        entry.weights_on_mut(device).expect("weights in use stay (P6)").in_use -= 1;
        let mut step = None;
        if let ActionStatus::Done { started_at, ended_at, transfers } = report.status {
            let took = ended_at.since(started_at) + transfers.before;
            if learns {
                step = self.ledger.learn(ended_at, device, model, (batch, took, transfers.overlap));
            }
            self.ledger.device_mut(device).exec.note_overlap(transfers.overlap);
            self.await_followers(device, (ended_at, took), requests);
        }
        let mut in_time = true;
        let tried = self.ledger.model(model).trials.are_of(report.action);
        for &request in requests {
            match report.status {
                ActionStatus::Done { ended_at, .. } => in_time &= self.finish_executed(request, ended_at, tried, out),
                ActionStatus::TooLate | ActionStatus::Preempted => self.requeue(request, out),
                ActionStatus::Failed => self.finish_running(request, Outcome::Failed, out),
            }
        }
        if tried {
            let done = matches!(report.status, ActionStatus::Done { .. });
            self.ledger.model_mut(model).trials.ended(self.now, done && in_time);
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

    /// Ends a request whose batch has run; whether that was in time. One that was only tried says nothing of how well
    /// others are served.
    pub(crate) fn finish_executed(
        &mut self,
        id: RequestId,
        ended_at: Timestamp,
        tried: bool,
        out: &mut Vec<Command>,
    ) -> bool {
        let Some(entry) = self.requests.get(id) else { return true };
        let in_time = ended_at <= self.done_by(&entry.request);
        if entry.request.deadline_at != Timestamp::NEVER && !tried {
            let (model, arrived_at) = (entry.request.model, entry.arrived_at);
            self.settled(model, arrived_at, in_time);
        }
        if !in_time {
            self.pipelines.lost(id);
        }
        self.finish_running(id, if in_time { Outcome::Done } else { Outcome::Late }, out);
        in_time
    }

    pub(crate) fn finish_running(&mut self, id: RequestId, outcome: Outcome, out: &mut Vec<Command>) {
        let Some(entry) = self.requests.remove(id) else { return };
        self.pipelines.forget(id);
        let outcome = if entry.state == State::Abandoned { Outcome::Cancelled } else { entry.possible(outcome) };
        out.push(Command::Finish { request: id, outcome });
    }

    /// A request whose batch didn't run, or ran on a device that was lost, goes back into its queue if it can still be
    /// in time.
    pub(crate) fn requeue(&mut self, id: RequestId, out: &mut Vec<Command>) {
        let Some(&RequestInHand { mut request, mut place, work, arrived_at, state, .. }) = self.requests.get(id) else {
            return;
        };
        if state == State::Abandoned {
            return self.finish_running(id, Outcome::Cancelled, out);
        }
        let model = self.ledger.model(request.model);
        if model.removed {
            return self.finish_running(id, Outcome::Rejected(Rejection::ModelUnavailable), out);
        }
        let cold = if model.residency.is_empty() { model.estimates.load() } else { Duration::ZERO };
        let earliest_at = self.now + cold + self.alone(&request);
        if earliest_at > request.deadline_at {
            let Some(deadline_at) = self.later_deadline(&request) else {
                let rejection = Rejection::Overloaded { earliest_at: earliest_at + self.rest_of(id) };
                self.pipelines.lost(id);
                return self.finish_running(id, Outcome::Rejected(rejection), out);
            };
            (request.deadline_at, place.deadline_at) = (deadline_at, deadline_at);
        }
        let entry = self.requests.get_mut(id).expect("it is in hand");
        (entry.request, entry.place, entry.state) = (request, place, State::Queued);
        self.ledger.model_mut(request.model).demand += work;
        let queued = Queued { id, rows: request.rows, arrived_at, kind: self.kind_of(&request) };
        self.queues.insert(&self.ledger, request.model, place, queued);
        if request.deadline_at != Timestamp::NEVER {
            self.note_queued(request.model);
        }
        self.tell(Fact::Queued { model: request.model, place, queued, again: true });
        self.planner.update(self.now, &mut self.ledger, &self.queues, request.model);
        if request.deadline_at == Timestamp::NEVER || !self.config.policy.matches() {
            self.touch_hungry(request.model);
        }
    }

    pub(crate) fn load_reported(&mut self, report: Report, device: DeviceId, model: ModelId, out: &mut Vec<Command>) {
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
                let residency = entry.weights_on_mut(device).expect("a model that is loading is resident");
                residency.loading_until = None;
                let last_used_at = residency.last_used_at;
                self.ledger.device_mut(device).by_last_use.insert((last_used_at, model));
                if self.ledger.device(device).takes(model) {
                    self.ledger.touch(self.now, model, device);
                    self.loaded(model, device);
                }
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
}
