//! What the driver holds while it drives: the scheduler, and everything that its commands are about.

mod backoff;
mod books;
mod departure;
mod gaps;
mod loss;
mod measuring;
mod orders;
mod pipelines;
pub(crate) mod places;
mod reports;
mod seldom;
mod watch;

use crate::messages::{CellMessage, StageCall};
use crate::payload::Payload;
use crate::sampler::Sampler;
use crate::{ControllerConfig, Inner, ModelRecord, Submission, fatal};
use base::{ActionId, DeviceId, ModelId, ModelNumber, RequestId, Timestamp};
use books::{DrivenDevice, DrivenModel, Expectation};
use departure::Departures;
use engine::Prepared;
use loss::BrokenDevice;
use measuring::IdleRun;
use pipelines::ToldPipelines;
use places::Places;
use recording::{Ending, Recorder};
use scheduler::{Command, Event, ModelSpec, Outcome, PipelineStage, Rejection, Request, Scheduler};
pub use seldom::SeldomLine;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use telemetry::{IntGauge, Invariant, Metrics};
use watch::{Watch, broken};
use worker::DeviceConfig;

pub(crate) struct Core {
    /// The number of the cell.
    cell: usize,
    scheduler: Scheduler,
    /// Keeps what the scheduler is told, where that is wanted.
    recorder: Option<Recorder>,
    watch: Watch,
    /// When the execution ended whose report the scheduler is being told.
    ended_at: Option<Timestamp>,
    /// How many requests may be queued for one model (P9).
    max_queued: usize,
    /// Unloads that weren't reported yet.
    unloads: BTreeMap<ActionId, DeviceId>,
    commands: Vec<Command>,
    /// By slot, of requests that are queued; those in a batch are with the worker.
    payloads: Vec<Option<Payload>>,
    models: Vec<Option<DrivenModel>>,
    devices: Vec<DrivenDevice>,
    /// Few, and most are asked for in the order in which they came: a tree takes less than a hash.
    expectations: BTreeMap<ActionId, Expectation>,
    /// How the devices were started, to start them anew.
    configs: Vec<DeviceConfig>,
    /// Devices that can't go on, until they have given back what they were ordered.
    broken: Vec<BrokenDevice>,
    /// Devices that are lost and not back yet.
    away: BTreeSet<DeviceId>,
    /// Which models may run where, if a plan says so.
    places: Places,
    /// Loads of models that are left alone for a while, and until when. The scheduler takes them for loads that take
    /// long.
    held: Vec<(Timestamp, scheduler::Load)>,
    /// Models that are withdrawn but may still be on a device.
    withdrawn: Vec<ModelId>,
    /// Models that went to other cells.
    departures: Departures,
    pipelines: ToldPipelines,
    steps: u64,
    /// Which rule the scheduler has, for people.
    rule: IntGauge,
    stopped: bool,
    /// Why requests that end now are lost with a thread that hangs.
    lost: Option<String>,
    /// Requests that are queued.
    waiting: usize,
    /// Whether the scheduler learns what single requests take.
    learns: bool,
    sampler: Sampler,
    /// What runs in idle time.
    measuring: Option<IdleRun>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").finish_non_exhaustive()
    }
}

/// One step in so many is timed.
const STEPS_PER_SAMPLE: u64 = 64;

impl Core {
    pub fn new(cell: usize, config: &ControllerConfig, metrics: &Metrics) -> Self {
        let (share, config) = (config.online_profile_share, config.scheduler.clone());
        Self {
            cell,
            rule: metrics.rule(cell),
            waiting: 0,
            learns: config.policy.learns_inputs(),
            sampler: Sampler::new(share),
            measuring: None,
            recorder: None,
            watch: Watch::default(),
            ended_at: None,
            max_queued: config.max_queued_per_model,
            unloads: BTreeMap::new(),
            scheduler: Scheduler::new(config),
            commands: Vec::new(),
            payloads: Vec::new(),
            models: Vec::new(),
            devices: Vec::new(),
            expectations: BTreeMap::new(),
            configs: Vec::new(),
            broken: Vec::new(),
            away: BTreeSet::new(),
            places: Places::default(),
            held: Vec::new(),
            withdrawn: Vec::new(),
            departures: Departures::default(),
            pipelines: ToldPipelines::new(),
            steps: 0,
            stopped: false,
            lost: None,
        }
    }

    /// Keeps what the scheduler is told from now on. Nothing was told yet.
    pub fn record(&mut self, recorder: Recorder) {
        self.recorder = Some(recorder);
    }

    /// Ends the process, with the recording on the disk.
    pub fn fatal(&mut self, reason: &str) -> ! {
        if let Some(mut recorder) = self.recorder.take() {
            recorder.end(Ending::Broken);
        }
        fatal(reason)
    }

    /// Ends all planning: what is still queued is refused, later news is ignored. What was handed to the executors is
    /// carried out while the devices, which are given back, are dropped.
    pub fn stop(&mut self) -> Vec<impl Sized + use<>> {
        self.stopped = true;
        // Dropping it writes the rest.
        self.recorder = None;
        self.payloads.iter_mut().filter_map(Option::take).for_each(Payload::refuse_at_the_end);
        std::mem::take(&mut self.devices)
    }

    pub fn handle(&mut self, inner: &Inner, now: Timestamp, message: CellMessage) {
        if self.stopped {
            return message.refuse();
        }
        match message {
            CellMessage::Submit { request, payload } if self.departures.has_gone(payload.submission.model) => {
                self.send_on(inner, request, payload);
            }
            CellMessage::Submit { request, payload } => self.submit(inner, now, request, payload, None),
            CellMessage::SubmitStage(call) => self.submit_stage(inner, now, *call),
            CellMessage::Announce(spec) => self.announce_pipeline(inner, now, spec),
            CellMessage::ForgetPipeline(pipeline) => self.forget_pipeline(inner, now, pipeline),
            CellMessage::Cancel(request) => {
                if !self.send_back(inner, request) {
                    self.step(inner, now, Event::Cancelled(request));
                }
            }
            CellMessage::Report(report) => self.report(inner, now, report),
            CellMessage::AddDevice { config, device, metrics } => {
                let number = DeviceId(self.devices.len() as u32);
                self.devices.push(DrivenDevice { device, metrics });
                self.configs.push(config);
                self.have_watched(inner, number);
                self.announce(inner, now, number);
            }
            CellMessage::Publish { number, pages, record, prepared } => {
                self.publish(inner, now, number, pages, record, prepared);
            }
            CellMessage::Withdraw(model) => self.withdraw(inner, now, model),
            CellMessage::Expect(model) if self.there(model).is_none() => {}
            CellMessage::Expect(model) => self.step(inner, now, Event::Expected(model.id())),
            CellMessage::CountLoaded { model, reply } => {
                let loaded = self.there(model).map_or(0, |_| self.scheduler.loaded_on(model.id()));
                // Whoever asked may have stopped to wait.
                let _ = reply.send(loaded);
            }
            CellMessage::Depart { model, to } => {
                self.departures.begin(model, to);
                self.succeed_in_pipelines(inner, now, model);
            }
            CellMessage::Hangs { device, pulse, why } => self.leave_behind(inner, now, device, &pulse, &why),
            CellMessage::DeviceBack(device) => self.come_back(inner, now, device),
            CellMessage::ChangeDevice { device, kind } => self.change_device(inner, now, device, kind),
            CellMessage::Arrange(plan) => self.arrange(inner, now, *plan),
            CellMessage::CountAsked(reply) => {
                // Whoever asked may have stopped to wait.
                let _ = reply.send(self.take_asked(inner.page_bytes));
            }
            CellMessage::Borrow { device, action, expected, work } => {
                self.borrow(inner, now, device, (action, expected), work);
            }
            CellMessage::BorrowIfIdle { borrowing, refused } => self.borrow_if_idle(inner, now, borrowing, &refused),
            CellMessage::TakeToCompare { model, reply } => {
                let kept = self.there(model).is_some().then(|| self.sampler.take_to_compare(now, model.id()));
                // Whoever asked may have stopped to wait.
                let _ = reply.send(kept.unwrap_or_default());
            }
            CellMessage::Return { device, action } => self.take_back(inner, now, device, action),
            CellMessage::Rehearsed(rehearsed) => self.step(inner, now, Event::Adopted(rehearsed)),
            CellMessage::Measured { traits, took } => self.ran_again(inner, now, traits, took),
        }
    }

    /// A call of a stage, which is a request like any other where its model went to another cell. A successor may have
    /// one itself.
    fn submit_stage(&mut self, inner: &Inner, now: Timestamp, call: StageCall) {
        let StageCall { request, payload, stage } = call;
        match self.departures.successor(inner, payload.submission.model) {
            None => self.submit(inner, now, request, payload, Some(stage)),
            Some((cell, model)) if cell == self.cell => {
                let submission = Submission { model, ..payload.submission };
                let payload = Payload { submission, ..payload };
                let request = Request { model: model.id(), ..request };
                self.submit_stage(inner, now, StageCall { request, payload, stage });
            }
            Some(_) => self.send_on(inner, request, payload),
        }
    }

    /// A model that is asked for by that number; `None` if it is gone, whoever has its slot now.
    fn there(&self, number: ModelNumber) -> Option<&DrivenModel> {
        let model = self.models.get(number.id().index())?.as_ref()?;
        (model.generation == number.generation).then_some(model)
    }

    fn submit(
        &mut self,
        inner: &Inner,
        now: Timestamp,
        request: Request,
        payload: Payload,
        stage: Option<PipelineStage>,
    ) {
        let slot = request.id.slot as usize;
        let Some(model) = self.there(payload.submission.model) else {
            // It was looked up before its model went.
            payload.refuse(Outcome::Rejected(Rejection::ModelUnavailable), String::new);
            return inner.give_slot_back(request.id);
        };
        if let Some(left) = model.backoff.left(now).filter(|_| self.is_barred(request.model, model)) {
            let seconds = left.as_secs_f64();
            payload.refuse(Outcome::Failed, || format!("{}; it is tried again in {seconds:.1} s", model.failure));
            return inner.give_slot_back(request.id);
        }
        let metrics = &model.record.metrics;
        metrics.statistics().waits();
        if !self.scheduler.is_loaded(request.model) {
            metrics.cold_start();
        }
        if self.payloads.len() <= slot {
            self.payloads.resize_with(slot + 1, || None);
        }
        self.payloads[slot] = Some(payload);
        self.waiting += 1;
        self.sampler.submitted(now, request.deadline_at.since(now));
        self.watch.submitted(&inner.metrics, request.id, request.deadline_at);
        if self.places.are_planned() {
            let has = (request.deadline_at != Timestamp::NEVER).then(|| request.deadline_at.since(now));
            let present = self.note_asked(request.model, request.rows, has);
            if let Some(Some(payload)) = self.payloads.get_mut(slot) {
                payload.present = Some(present);
            }
        }
        let before = self.note_queued(request.model);
        self.step(
            inner,
            now,
            match stage {
                None => Event::Submitted(request),
                Some(stage) => Event::StageSubmitted(request, stage),
            },
        );
        self.check_queue(inner, request.model, before);
    }

    /// One more request is queued for a model; how many there were before.
    fn note_queued(&mut self, model: ModelId) -> usize {
        match self.models.get_mut(model.index()) {
            Some(Some(model)) => {
                model.queued += 1;
                model.queued - 1
            }
            Some(None) | None => 0,
        }
    }

    /// After a request was submitted: a queue may be past its bound by what came back into it, but doesn't grow there
    /// (P9).
    fn check_queue(&self, inner: &Inner, model: ModelId, before: usize) {
        let Some(Some(driven)) = self.models.get(model.index()) else { return };
        if driven.queued > before && driven.queued > self.max_queued {
            let what = format!("{} requests are queued for {model}, the bound is {}", driven.queued, self.max_queued);
            broken(&inner.metrics, Invariant::P9, &what);
        }
    }

    /// Rehearses what the scheduler wants to have rehearsed, on a thread of its own: every few seconds at most, and
    /// only while requests are lost.
    pub fn rehearse(&mut self, inner: &Inner) {
        let Some(span) = self.scheduler.take_span().filter(|_| !self.stopped) else { return };
        let inbox = inner.inbox_of(self.cell);
        let rehearse = move || inbox.tell(CellMessage::Rehearsed(span.rehearse()));
        // Without a thread nothing is learnt, and everything goes on as it is.
        if let Err(error) = std::thread::Builder::new().name("rehearsal".into()).spawn(rehearse) {
            tracing::warn!("no thread for a rehearsal: {error}");
        }
    }

    /// Wakes the scheduler if its time has come, and says when it wants to be woken next.
    pub fn wake_if_due(&mut self, inner: &Inner, now: Timestamp) -> Timestamp {
        if self.stopped {
            return Timestamp::NEVER;
        }
        let wanted = |scheduler: &Scheduler| scheduler.next_wakeup().map_or(Timestamp::NEVER, |(at, _)| at);
        if wanted(&self.scheduler) <= now {
            self.step(inner, now, Event::WokeUp);
        }
        // Also after what has just expired.
        self.let_depart(inner, now);
        let look_at = self.run_kept(inner, now).min(self.sampler.let_go(now));
        wanted(&self.scheduler).min(self.let_go(inner, now)).min(look_at)
    }

    /// A model may be asked from now on.
    fn publish(
        &mut self,
        inner: &Inner,
        now: Timestamp,
        number: ModelNumber,
        pages: u32,
        record: Arc<ModelRecord>,
        prepared: Arc<dyn Prepared>,
    ) {
        let id = number.id();
        if self.models.len() <= id.index() {
            self.models.resize_with(id.index() + 1, || None);
        }
        if self.learns && record.has_uneven_requests() {
            self.sampler.watch(id, record.profile.batches()[0].p99);
        }
        let spec = ModelSpec {
            model: id,
            pages,
            profile: record.profile.clone(),
            elsewhere: record.elsewhere.clone(),
            objective: record.objective,
            fixed: record.fixed,
            fairness: record.fairness,
        };
        self.models[id.index()] = Some(DrivenModel::new(number.generation, record, prepared, pages));
        self.step(inner, now, Event::ModelAdded(spec));
        self.allot(inner, now);
    }

    /// A model may not be asked any more.
    fn withdraw(&mut self, inner: &Inner, now: Timestamp, number: ModelNumber) {
        let model = number.id();
        // Once: its number is given back once.
        if self.there(number).is_none() || self.withdrawn.contains(&model) {
            return;
        }
        self.withdrawn.push(model);
        self.sampler.forget(model);
        self.step(inner, now, Event::ModelRemoved(model));
    }

    fn step(&mut self, inner: &Inner, now: Timestamp, event: Event) {
        let mut commands = std::mem::take(&mut self.commands);
        match &mut self.recorder {
            None => self.scheduler.step(now, event, &mut commands),
            Some(recorder) => {
                recorder.told(now, &event);
                self.scheduler.step(now, event, &mut commands);
                recorder.ordered(now, &commands);
            }
        }
        self.steps += 1;
        let sampled = self.steps.is_multiple_of(STEPS_PER_SAMPLE);
        if sampled {
            inner.metrics.scheduler_step.observe(inner.clock.now().since(now));
            self.rule.set(self.scheduler.rule() as i64);
        }
        for command in commands.drain(..) {
            match command {
                Command::Execute(execution) => self.execute(inner, now, execution),
                Command::Load(load) => self.load(inner, now, &load),
                Command::Unload(unload) => self.unload(inner, unload.device, unload.model),
                // What runs ends as if nobody had asked, and is reported as done.
                Command::Preempt { device, action } => {
                    tracing::debug!("{action} goes on: what runs on {device} isn't broken off for others");
                }
                Command::Finish { request, outcome } => self.finish(inner, request, outcome),
            }
        }
        self.commands = commands;
        if sampled {
            self.watch.in_hand(&inner.metrics, self.scheduler.in_hand());
        }
        if !self.withdrawn.is_empty() {
            self.forget_withdrawn(inner);
        }
    }

    /// Frees what is kept of withdrawn models of which nothing is left, and their numbers.
    fn forget_withdrawn(&mut self, inner: &Inner) {
        let Self { scheduler, models, withdrawn, cell, places, .. } = self;
        withdrawn.retain(|&model| {
            if !scheduler.left_nothing(model) {
                return true;
            }
            places.forget(model);
            if let Some(DrivenModel { generation, .. }) = models[model.index()].take() {
                inner.give_number_back(*cell, ModelNumber { slot: model.0, generation });
            }
            false
        });
    }

    /// Why a request that was never executed failed.
    fn failure_of(&self, model: ModelId) -> String {
        let known = self.models.get(model.index()).and_then(Option::as_ref).map(|model| &model.failure);
        match known {
            Some(reason) if !reason.is_empty() => reason.clone(),
            _ => "the device that it was on is gone".into(),
        }
    }

    fn finish(&mut self, inner: &Inner, id: RequestId, outcome: Outcome) {
        if !self.watch.finished(&inner.metrics, id, outcome, self.ended_at) {
            return;
        }
        self.note_outcome(outcome);
        // Requests that were executed have their answer from the worker, and no payload here.
        if let Some(payload) = self.payloads[id.slot as usize].take() {
            let model = payload.submission.model.id();
            self.waiting -= 1;
            if let Some(Some(driven)) = self.models.get_mut(model.index()) {
                driven.record.metrics.statistics().wait_no_longer(1);
                driven.queued -= 1;
            }
            payload.refuse(outcome, || self.failure_of(model));
        } else if let Some(why) = &self.lost {
            inner.lost.add(id, why.clone());
        }
        inner.give_slot_back(id);
    }
}
