//! What the driver holds while it drives: the scheduler, and everything that its commands are about.

mod departure;
mod loss;
mod watch;

use crate::api::{Refusal, Reply};
use crate::rest::Rest;
use crate::sampler::{Kept, Sampler, Who};
use crate::{ControllerConfig, Inner, NewModel, fatal};
use base::{
    ActionId, ApplicationId, DeviceId, Duration, LatencyProfile, ModelId, ModelSignature, Reason, RequestId, Timestamp,
    Window, margins,
};
use departure::Departures;
use recording::{Ending, Recorder};
use scheduler::{ActionStatus, Command, Event, Execution, Measured, ModelSpec, Outcome, Rehearsed, Sample, Scheduler};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc;
use telemetry::{BatchTimes, DeviceMetrics, IntGauge, Invariant, Metrics, ModelMetrics, Trace};
use tokio::sync::oneshot;
use watch::{Watch, broken};
use worker::{BatchItem, Device, DeviceConfig, ExecuteOrder, LoadOrder, Padding, Slot, Status, Tensor, UnloadOrder};

/// News for the driver.
pub(crate) enum Message {
    Submit {
        request: scheduler::Request,
        payload: Payload,
    },
    Cancel(RequestId),
    Report(worker::OrderReport<Payload>),
    AddDevice {
        config: DeviceConfig,
        device: Device<Payload>,
        metrics: DeviceMetrics,
    },
    /// A device that was lost is there again, empty.
    DeviceBack(DeviceId),
    /// A device is another share of its GPU from now on.
    ChangeDevice {
        device: DeviceId,
        kind: u32,
    },
    AddModel {
        id: ModelId,
        pages: u32,
        model: Box<NewModel>,
        metrics: ModelMetrics,
    },
    RemoveModel(ModelId),
    /// Requests for a model are about to come: its weights should be there before.
    ExpectModel(ModelId),
    /// On how many devices are a model's weights?
    CountLoaded {
        model: ModelId,
        reply: mpsc::Sender<usize>,
    },
    /// A model is in another cell from now on.
    DepartModel {
        model: ModelId,
        /// Its number there, among those of all cells.
        to: ModelId,
    },
    Borrow {
        device: DeviceId,
        action: ActionId,
        expected: Duration,
        work: Box<dyn FnOnce() + Send>,
    },
    Return {
        device: DeviceId,
        action: ActionId,
    },
    /// A request was run once more, alone.
    Measured {
        who: Who,
        took: Result<Duration, String>,
    },
    /// A rehearsal is over.
    Rehearsed(Rehearsed),
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Message")
    }
}

impl Message {
    /// Answers whoever waits for this message to be handled.
    fn refuse(self) {
        let waiting = match self {
            Self::Submit { payload, .. } => vec![payload],
            Self::Report(report) => report.returned,
            Self::Cancel(_)
            | Self::AddDevice { .. }
            | Self::DeviceBack(_)
            | Self::ChangeDevice { .. }
            | Self::AddModel { .. }
            | Self::RemoveModel(_)
            | Self::ExpectModel(_)
            | Self::CountLoaded { .. }
            | Self::DepartModel { .. }
            | Self::Borrow { .. }
            | Self::Return { .. }
            | Self::Measured { .. }
            | Self::Rehearsed(_) => Vec::new(),
        };
        waiting.into_iter().for_each(Payload::refuse_at_the_end);
    }
}

impl std::fmt::Debug for NewModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} version {}", self.name, self.version)
    }
}

/// What a request carries besides what the scheduler knows of it.
#[derive(Debug)]
pub(crate) struct Payload {
    pub id: RequestId,
    pub model: ModelId,
    pub inputs: Vec<Tensor>,
    pub rows: u32,
    pub application: ApplicationId,
    pub size: Option<u32>,
    pub trace: Option<Arc<Trace>>,
    pub reply: oneshot::Sender<Reply>,
    pub submitted_at: Timestamp,
}

impl Payload {
    /// Answers a request that has no outputs.
    pub fn refuse(self, outcome: Outcome, failure: impl FnOnce() -> String) {
        let refusal = match outcome {
            Outcome::Rejected(rejection) => {
                let asked =
                    |planned_at: Timestamp| self.submitted_at + margins::time_for(planned_at.since(self.submitted_at));
                Refusal { earliest_at: rejection.earliest_at().map(asked), ..rejection.reason().into() }
            }
            Outcome::Failed => Refusal::failed(failure()),
            Outcome::Done | Outcome::Late | Outcome::Cancelled => Reason::DeadlineMissed.into(),
        };
        // A receiver that is gone needs no answer.
        let _ = self.reply.send(Reply::Refused(refusal));
    }

    /// Answers a request that the end of the server found waiting.
    pub fn refuse_at_the_end(self) {
        let _ = self.reply.send(Reply::Refused(Reason::ShuttingDown.into()));
    }
}

impl BatchItem for Payload {
    fn inputs(&self) -> &[Tensor] {
        &self.inputs
    }

    fn rows(&self) -> u32 {
        self.rows
    }

    fn queued_at(&self) -> Timestamp {
        self.submitted_at
    }

    fn computed(&self, times: &BatchTimes) {
        if let Some(trace) = &self.trace {
            trace.computed(times);
        }
    }

    fn deliver(self, outputs: Result<Vec<Tensor>, String>) {
        let reply = outputs.map_or_else(|why| Reply::Refused(Refusal::failed(why)), Reply::Outputs);
        // A receiver that is gone needs no answer.
        let _ = self.reply.send(reply);
    }
}

struct ModelRecord {
    prepared: Arc<dyn engine::Prepared>,
    signature: Arc<ModelSignature>,
    padding: Option<Arc<Padding>>,
    pages: u32,
    metrics: ModelMetrics,
    /// Where its weights are or are to come. Not one for each device: there may be 10,000 models and 1,000 devices.
    slots: HashMap<DeviceId, Arc<Slot>>,
    name: String,
    /// Why an action failed the last time that one did.
    failure: String,
    /// What failed and was costly isn't tried again at once.
    rest: Rest,
    /// What failed was a panic, which another device would have as well.
    panicked: bool,
    /// Requests that are queued.
    queued: usize,
}

impl ModelRecord {
    /// The place for its weights on a device.
    fn slot(&mut self, device: DeviceId) -> Arc<Slot> {
        let statistics = self.metrics.statistics();
        let slot = self.slots.entry(device).or_insert_with(|| Arc::new(Slot::new(Arc::clone(statistics))));
        Arc::clone(slot)
    }
}

#[derive(Debug)]
pub(crate) struct DeviceRecord {
    pub device: Device<Payload>,
    pub metrics: DeviceMetrics,
}

/// What was expected of an action, to compare with its report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expectation {
    pub device: DeviceId,
    pub model: ModelId,
    pub took: Duration,
    /// `None` for loads.
    pub done_at: Option<Timestamp>,
    /// When it may start.
    pub window: Window,
    pub rows: u32,
    /// Of the weights of a load.
    pub bytes: u64,
    /// The one request of the batch, if its time is wanted.
    pub alone: Option<Who>,
}

impl Expectation {
    /// Counts what became of the action.
    pub fn measure(&self, record: &DeviceRecord, model: &ModelMetrics, status: &Status) {
        let actions = if self.done_at.is_some() { record.metrics.executions() } else { record.metrics.loads() };
        match status {
            Status::Done { started_at, ended_at, transfers } => {
                let busy = ended_at.since(*started_at);
                let took = busy + transfers.before;
                actions.done(took, busy, self.took);
                if let Some(done_at) = self.done_at {
                    model.executed(self.rows, took);
                    record.metrics.moved(*transfers);
                    record.metrics.completed(*ended_at, done_at);
                } else {
                    model.loaded(record.metrics.name(), self.bytes);
                    record.metrics.pages(record.device.pages().total(), record.device.pages().used());
                }
            }
            Status::TooLate => actions.too_late(),
            Status::Failed(_) | Status::Panicked(_) => actions.failed(),
        }
    }

    /// Counts and logs a failure.
    pub fn note_failure(&self, metrics: &Metrics, model: &str, reason: &str) {
        note_violation(metrics, reason);
        let what = if self.done_at.is_some() { "an execution" } else { "a load" };
        tracing::error!(model, "{what} failed: {reason}");
    }
}

/// Counts a broken invariant that a worker's reason names.
pub(crate) fn note_violation(metrics: &Metrics, reason: &str) {
    for (name, invariant) in [("P5", Invariant::P5), ("P6", Invariant::P6)] {
        if reason.starts_with(name) {
            metrics.violated(invariant);
        }
    }
}

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
    unloads: HashMap<ActionId, DeviceId>,
    commands: Vec<Command>,
    /// By slot, of requests that are queued; those in a batch are with the worker.
    payloads: Vec<Option<Payload>>,
    models: Vec<Option<ModelRecord>>,
    devices: Vec<DeviceRecord>,
    expectations: HashMap<ActionId, Expectation>,
    /// How the devices were started, to start them anew.
    configs: Vec<DeviceConfig>,
    /// Devices whose engine has panicked, until they have given back what they were ordered.
    broken: Vec<DeviceId>,
    /// Loads of models that are left alone for a while, and until when. The scheduler takes them for loads that take long.
    held: Vec<(Timestamp, scheduler::Load)>,
    /// Models that are out of service but may still be on a device.
    removed: Vec<ModelId>,
    /// Models that went to other cells.
    departures: Departures,
    steps: u64,
    /// Which temper the scheduler has, for people.
    temper: IntGauge,
    stopped: bool,
    /// Requests that are queued.
    waiting: usize,
    sampler: Sampler,
    /// The measurement that is under way.
    measuring: Option<ActionId>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").finish_non_exhaustive()
    }
}

/// A model whose slow runs take so many times as long as its usual ones has inputs that differ, whatever its shapes say.
const VARIES: u64 = 2;

/// Whether what a model's requests take depends on them.
fn differs(signature: &ModelSignature, profile: &LatencyProfile) -> bool {
    let from = usize::from(signature.max_batch > 0);
    let open = signature.inputs.iter().any(|spec| spec.dims.iter().skip(from).any(|&dim| dim < 0));
    let one = profile.batches()[0];
    open || one.p99 > one.median * VARIES
}

/// One step in so many is timed.
const STEPS_PER_SAMPLE: u64 = 64;

impl Core {
    pub fn new(cell: usize, config: &ControllerConfig, metrics: &Metrics) -> Self {
        let (share, config) = (config.online_profile_share, config.scheduler.clone());
        let learns = config.policy.learns_inputs();
        Self {
            cell,
            temper: metrics.temper(cell),
            waiting: 0,
            sampler: Sampler::new(if learns { share } else { 0.0 }),
            measuring: None,
            recorder: None,
            watch: Watch::default(),
            ended_at: None,
            max_queued: config.max_queued_per_model,
            unloads: HashMap::new(),
            scheduler: Scheduler::new(config),
            commands: Vec::new(),
            payloads: Vec::new(),
            models: Vec::new(),
            devices: Vec::new(),
            expectations: HashMap::new(),
            configs: Vec::new(),
            broken: Vec::new(),
            held: Vec::new(),
            removed: Vec::new(),
            departures: Departures::default(),
            steps: 0,
            stopped: false,
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

    pub fn handle(&mut self, inner: &Inner, now: Timestamp, message: Message) {
        if self.stopped {
            return message.refuse();
        }
        match message {
            Message::Submit { request, payload } if self.departures.has_gone(request.model) => {
                self.send_on(inner, request, payload);
            }
            Message::Submit { request, payload } => {
                let slot = request.id.slot as usize;
                if let Some(Some(model)) = self.models.get(request.model.index()) {
                    if let Some(left) = model.rest.left(now).filter(|_| self.is_barred(request.model, model)) {
                        let seconds = left.as_secs_f64();
                        payload.refuse(Outcome::Failed, || {
                            format!("{}; it is tried again in {seconds:.1} s", model.failure)
                        });
                        return inner.give_slot_back(request.id);
                    }
                    model.metrics.statistics().waits();
                    if !self.scheduler.is_loaded(request.model) {
                        model.metrics.cold_start();
                    }
                }
                if self.payloads.len() <= slot {
                    self.payloads.resize_with(slot + 1, || None);
                }
                self.payloads[slot] = Some(payload);
                self.waiting += 1;
                self.sampler.submitted(now, request.deadline_at.since(now));
                self.watch.submitted(&inner.metrics, request.id, request.deadline_at);
                let before = self.note_queued(request.model);
                self.step(inner, now, Event::Submitted(request));
                self.check_queue(inner, request.model, before);
            }
            Message::Cancel(request) => {
                if !self.send_back(inner, request) {
                    self.step(inner, now, Event::Cancelled(request));
                }
            }
            Message::Report(report) => self.report(inner, now, report),
            Message::AddDevice { config, device, metrics } => {
                let number = DeviceId(self.devices.len() as u32);
                self.devices.push(DeviceRecord { device, metrics });
                self.configs.push(config);
                self.announce(inner, now, number);
            }
            Message::AddModel { id, pages, model, metrics } => self.add_model(inner, now, id, pages, *model, metrics),
            Message::RemoveModel(model) => self.withdraw(inner, now, model),
            Message::ExpectModel(model) => self.step(inner, now, Event::Expected(model)),
            Message::CountLoaded { model, reply } => {
                // Whoever asked may have stopped to wait.
                let _ = reply.send(self.scheduler.loaded_on(model));
            }
            Message::DepartModel { model, to } => self.departures.begin(model, to),
            Message::DeviceBack(device) => self.come_back(inner, now, device),
            Message::ChangeDevice { device, kind } => {
                // Also where it is lost at the moment: then it comes back so.
                self.configs[device.index()].kind = kind;
                self.step(inner, now, Event::DeviceChanged { device, kind });
            }
            Message::Borrow { device, action, expected, work } => {
                self.borrow(inner, now, device, (action, expected), work);
            }
            Message::Return { device, action } => self.take_back(inner, now, device, action),
            Message::Rehearsed(rehearsed) => self.step(inner, now, Event::Adopted(rehearsed)),
            Message::Measured { who, took } => {
                let expected = self.sampler.expected(who.model);
                self.sampler.spent(now, *took.as_ref().unwrap_or(&expected));
                match took {
                    Ok(took) => {
                        inner.metrics.measured_again.observe(took);
                        self.note_measured(inner, now, who, took);
                    }
                    Err(reason) => tracing::debug!("a request could not be run again: {reason}"),
                }
            }
        }
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

    /// After a request was submitted: a queue may be past its bound by what came back into it, but doesn't grow there (P9).
    fn check_queue(&self, inner: &Inner, model: ModelId, before: usize) {
        let Some(Some(record)) = self.models.get(model.index()) else { return };
        if record.queued > before && record.queued > self.max_queued {
            let what = format!("{} requests are queued for {model}, the bound is {}", record.queued, self.max_queued);
            broken(&inner.metrics, Invariant::P9, &what);
        }
    }

    /// Rehearses what the scheduler wants to have rehearsed, on a thread of its own: every few seconds at most, and only while requests are lost.
    pub fn rehearse(&mut self, inner: &Inner) {
        let Some(span) = self.scheduler.take_span().filter(|_| !self.stopped) else { return };
        let way = inner.way_into(self.cell);
        let rehearse = move || way.tell(Message::Rehearsed(span.rehearse()));
        // Without a thread nothing is learnt, and everything goes on as it is.
        if let Err(error) = std::thread::Builder::new().name("rehearsal".into()).spawn(rehearse) {
            tracing::warn!("no thread for a rehearsal: {error}");
        }
    }

    fn borrow(
        &mut self,
        inner: &Inner,
        now: Timestamp,
        device: DeviceId,
        (action, expected): (ActionId, Duration),
        work: Box<dyn FnOnce() + Send>,
    ) {
        self.step(inner, now, Event::Borrowed { device, action, expected });
        if !self.devices[device.index()].device.run_when_idle(work) {
            self.take_back(inner, now, device, action);
        }
    }

    fn take_back(&mut self, inner: &Inner, now: Timestamp, device: DeviceId, action: ActionId) {
        if self.measuring == Some(action) {
            self.measuring = None;
        }
        self.step(inner, now, Event::Returned { device, action });
    }

    /// Tells the scheduler what a request took alone.
    fn note_measured(&mut self, inner: &Inner, now: Timestamp, who: Who, took: Duration) {
        let Who { model, application, size } = who;
        if !matches!(self.models.get(model.index()), Some(Some(_))) {
            return;
        }
        self.sampler.measured(model, took);
        let samples = vec![Sample { size, alone: took }];
        self.step(inner, now, Event::Measured(Measured { model, application, samples }));
    }

    /// Runs a request once more on a device that has nothing to do, if nobody waits. Says when to look again; whenever something
    /// ends it is looked again anyway.
    fn run_kept(&mut self, inner: &Inner, now: Timestamp) -> Timestamp {
        if self.waiting > 0 || self.measuring.is_some() {
            return Timestamp::NEVER;
        }
        let (model, at) = match self.sampler.next() {
            Some((kept, at)) => (kept.who.model, at),
            None => return Timestamp::NEVER,
        };
        if at > now {
            return at;
        }
        let Some(Some(record)) = self.models.get(model.index()) else { return Timestamp::NEVER };
        let idle = |device: &DeviceId| {
            !self.broken.contains(device)
                && self.expectations.values().all(|expected| expected.device != *device)
                && record.slots.get(device).is_some_and(|slot| slot.has_weights())
        };
        let device = (0..self.devices.len() as u32).map(DeviceId).find(idle);
        let Some((device, kept)) = device.and_then(|device| Some((device, self.sampler.take()?))) else {
            return Timestamp::NEVER;
        };
        let (slot, signature) = (Arc::clone(&record.slots[&device]), Arc::clone(&record.signature));
        let (padding, clock, way) = (record.padding.clone(), inner.clock, inner.way_into(self.cell));
        let work = move || {
            let Kept { who, inputs, rows } = kept;
            let took = slot.measure(clock, &signature, padding.as_ref(), inputs, rows);
            way.put(Message::Measured { who, took });
        };
        let (action, work) = inner.lend(self.cell, device, Box::new(work));
        self.measuring = Some(action);
        let expected = self.sampler.expected(model);
        self.borrow(inner, now, device, (action, expected), work);
        Timestamp::NEVER
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
        let look_at = self.run_kept(inner, now);
        wanted(&self.scheduler).min(self.let_go(now)).min(look_at)
    }

    /// Hands over the loads that were held for long enough, and says when the next one will have been.
    fn let_go(&mut self, now: Timestamp) -> Timestamp {
        while let Some(due) = self.held.iter().position(|&(until, _)| until <= now) {
            let (_, load) = self.held.swap_remove(due);
            self.hand_over(&load);
        }
        self.held.iter().map(|&(until, _)| until).min().unwrap_or(Timestamp::NEVER)
    }

    fn add_model(
        &mut self,
        inner: &Inner,
        now: Timestamp,
        id: ModelId,
        pages: u32,
        model: NewModel,
        metrics: ModelMetrics,
    ) {
        if self.models.len() <= id.index() {
            self.models.resize_with(id.index() + 1, || None);
        }
        let NewModel { name, prepared, signature, padding, profile, elsewhere, fixed, objective, fairness, .. } = model;
        if differs(&signature, &profile) {
            self.sampler.watch(id, profile.batches()[0].p99);
        }
        let (failure, rest, panicked) = (String::new(), Rest::default(), false);
        let record = ModelRecord {
            prepared,
            signature,
            padding,
            pages,
            metrics,
            slots: HashMap::new(),
            name,
            failure,
            rest,
            panicked,
            queued: 0,
        };
        self.models[id.index()] = Some(record);
        self.step(
            inner,
            now,
            Event::ModelAdded(ModelSpec { model: id, pages, profile, elsewhere, objective, fixed, fairness }),
        );
    }

    /// Takes a model out of service.
    fn withdraw(&mut self, inner: &Inner, now: Timestamp, model: ModelId) {
        self.removed.push(model);
        self.sampler.forget(model);
        self.step(inner, now, Event::ModelRemoved(model));
    }

    fn report(&mut self, inner: &Inner, now: Timestamp, report: worker::OrderReport<Payload>) {
        if let Some(device) = self.unloads.remove(&report.action) {
            return self.unloaded(inner, now, device, report.status);
        }
        for payload in report.returned {
            if let Some(Some(model)) = self.models.get(payload.model.index()) {
                model.metrics.statistics().waits();
            }
            self.note_queued(payload.model);
            let slot = payload.id.slot as usize;
            self.payloads[slot] = Some(payload);
            self.waiting += 1;
        }
        let expectation = self.expectations.remove(&report.action);
        if let Some(expectation) = &expectation {
            self.measure(expectation, &report.status);
        }
        let device = expectation.as_ref().map(|expectation| expectation.device);
        let alone = expectation.and_then(|expectation| expectation.alone);
        let mut took = None;
        let status = match report.status {
            Status::Done { started_at, ended_at, transfers } => {
                took = Some(ended_at.since(started_at) + transfers.before);
                self.ended_at = Some(ended_at);
                if let Some(expectation) = &expectation {
                    self.watch.ran(&inner.metrics, expectation, (started_at, ended_at), transfers);
                }
                ActionStatus::Done { started_at, ended_at, transfers }
            }
            Status::TooLate if expectation.is_some_and(|expectation| self.came_back(&expectation)) => {
                return self.lose_if_empty(inner, now, device);
            }
            Status::TooLate => ActionStatus::TooLate,
            Status::Failed(reason) => {
                self.note_failure(inner, now, expectation.as_ref(), reason, false);
                ActionStatus::Failed
            }
            Status::Panicked(reason) => {
                self.note_failure(inner, now, expectation.as_ref(), reason, true);
                ActionStatus::Failed
            }
        };
        self.step(inner, now, Event::Reported(scheduler::Report { action: report.action, status }));
        self.ended_at = None;
        if let Some(device) = device {
            self.devices[device.index()].metrics.slowness(self.scheduler.slowness(device));
        }
        if let Some(expectation) = expectation.filter(|expectation| expectation.done_at.is_none()) {
            self.check_pages(inner, expectation.device);
        }
        if let (Some(who), Some(took)) = (alone, took) {
            inner.metrics.measured_served.observe(took);
            self.note_measured(inner, now, who, took);
        }
        self.lose_if_empty(inner, now, device);
    }

    /// A device has freed weights. If its engine panicked over that, what it keeps for the device may be in any state.
    fn unloaded(&mut self, inner: &Inner, now: Timestamp, device: DeviceId, status: Status) {
        let there = &self.devices[device.index()];
        there.metrics.pages(there.device.pages().total(), there.device.pages().used());
        if let Status::Failed(reason) | Status::Panicked(reason) = status {
            tracing::error!(device = self.configs[device.index()].name, "an unload failed: {reason}");
            self.retire(device);
            return self.lose_if_empty(inner, now, Some(device));
        }
        self.check_pages(inner, device);
    }

    /// With nothing under way that takes or frees pages of a device, both sides must agree on them (P5).
    fn check_pages(&self, inner: &Inner, device: DeviceId) {
        let loads = |expected: &Expectation| expected.device == device && expected.done_at.is_none();
        let under_way = self.broken.contains(&device)
            || self.unloads.values().any(|on| *on == device)
            || self.held.iter().any(|(_, load)| load.device == device)
            || self.expectations.values().any(loads);
        let Some(free) = self.scheduler.free_pages(device).filter(|_| !under_way) else { return };
        let pages = self.devices[device.index()].device.pages();
        let (here, there) = (pages.total() - free, pages.used());
        if here != there {
            let what = format!("{device} has {there} pages in use, the scheduler counts {here}");
            broken(&inner.metrics, Invariant::P5, &what);
        }
    }

    /// Whether a model that rests is refused. One whose load has failed is still served where its weights are, or will soon be.
    fn is_barred(&self, id: ModelId, model: &ModelRecord) -> bool {
        let loads = |expected: &Expectation| expected.model == id && expected.done_at.is_none();
        model.panicked || !(self.scheduler.is_loaded(id) || self.expectations.values().any(loads))
    }

    fn note_failure(
        &mut self,
        inner: &Inner,
        now: Timestamp,
        expectation: Option<&Expectation>,
        reason: String,
        panicked: bool,
    ) {
        let model = expectation.and_then(|expectation| self.models.get_mut(expectation.model.index())?.as_mut());
        match (expectation, model) {
            (Some(expectation), Some(model)) => {
                expectation.note_failure(&inner.metrics, &model.name, &reason);
                let is_load = expectation.done_at.is_none();
                model.failure = if is_load { format!("the model could not be loaded: {reason}") } else { reason };
                // A load takes room from other models, a panic takes their weights: neither may happen with every request.
                if panicked || is_load {
                    model.rest.begin(now);
                    model.panicked = panicked;
                }
            }
            (_, _) => note_violation(&inner.metrics, &reason),
        }
        if let Some(expectation) = expectation.filter(|_| panicked) {
            self.retire(expectation.device);
        }
    }

    fn measure(&self, expected: &Expectation, status: &Status) {
        let record = &self.devices[expected.device.index()];
        let Some(Some(model)) = self.models.get(expected.model.index()) else { return };
        expected.measure(record, &model.metrics, status);
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
            self.temper.set(self.scheduler.temper() as i64);
        }
        for command in commands.drain(..) {
            match command {
                Command::Execute(execution) => self.execute(inner, now, execution),
                Command::Load(load) => self.load(now, &load),
                Command::Unload(unload) => self.unload(inner, unload.device, unload.model),
                // A worker can't break an execution off: it ends as if nobody had asked, and is reported as done.
                Command::Preempt { device, action } => {
                    tracing::debug!("{action} goes on: what runs on {device} can't be broken off");
                }
                Command::Finish { request, outcome } => self.finish(inner, request, outcome),
            }
        }
        self.commands = commands;
        if sampled {
            self.watch.in_hand(&inner.metrics, self.scheduler.in_hand());
        }
        if !self.removed.is_empty() {
            self.forget_removed();
        }
    }

    /// Frees what is kept of removed models that are on no device any more.
    fn forget_removed(&mut self) {
        let (scheduler, models) = (&self.scheduler, &mut self.models);
        self.removed.retain(|&model| {
            let resident = scheduler.is_resident(model);
            if !resident {
                models[model.index()] = None;
            }
            resident
        });
    }

    /// The inputs of a request that is to be executed. One that has none has ended: the others of its batch run without it.
    fn take_payload(&mut self, inner: &Inner, id: RequestId) -> Option<Payload> {
        let payload = self.payloads.get_mut(id.slot as usize)?.take_if(|payload| payload.id == id);
        if payload.is_none() {
            broken(&inner.metrics, Invariant::P8, &format!("{id} is to be executed, but has ended before"));
        }
        payload
    }

    fn execute(&mut self, inner: &Inner, now: Timestamp, execution: Execution) {
        let Execution { action, device, model, requests, window, expected, expected_done_at, .. } = execution;
        let items: Vec<Payload> = requests.iter().filter_map(|&id| self.take_payload(inner, id)).collect();
        self.waiting -= items.len();
        let record = self.models[model.index()].as_mut().expect("the scheduler executes models that were added");
        record.queued -= items.len();
        let (mut rows, mut alone) = (0, None);
        for item in &items {
            rows += item.rows;
            record.metrics.queued(now.since(item.submitted_at));
            // Several rows take longer than one: their size says nothing of their time.
            if item.rows > 1 || !self.sampler.picks(model) {
                continue;
            }
            let who = Who { model, application: item.application, size: item.size };
            match items.len() {
                1 => alone = Some(who),
                _ => self.sampler.keep(Kept { who, inputs: item.inputs.clone(), rows: item.rows }),
            }
        }
        record.metrics.statistics().wait_no_longer(items.len());
        let order = ExecuteOrder {
            action,
            window,
            slot: record.slot(device),
            signature: Arc::clone(&record.signature),
            padding: record.padding.clone(),
            items,
        };
        let done_at = Some(expected_done_at);
        let took = expected;
        self.expectations.insert(action, Expectation { device, model, took, done_at, window, rows, bytes: 0, alone });
        if order.items.is_empty() {
            let status = Status::Failed("none of its requests is there any more".into());
            let report = worker::OrderReport { action, status, returned: Vec::new() };
            return inner.put(self.cell, Message::Report(report));
        }
        if self.devices[device.index()].device.execute(order).is_err() {
            self.fatal("an executor is gone, or has more orders than the scheduler ever leaves outstanding");
        }
    }

    fn load(&mut self, now: Timestamp, load: &scheduler::Load) {
        let record = self.models[load.model.index()].as_ref();
        match record.and_then(|record| record.rest.left(now)) {
            Some(left) => self.held.push((now + left, *load)),
            None => self.hand_over(load),
        }
    }

    fn hand_over(&mut self, load: &scheduler::Load) {
        let record = self.models[load.model.index()].as_mut().expect("the scheduler loads models that were added");
        let order = LoadOrder {
            action: load.action,
            window: load.window,
            slot: record.slot(load.device),
            prepared: Arc::clone(&record.prepared),
            pages: record.pages,
        };
        let (device, model) = (load.device, load.model);
        let bytes = record.prepared.weight_bytes();
        let (took, window) = (load.expected, load.window);
        let expectation = Expectation { device, model, took, done_at: None, window, rows: 0, bytes, alone: None };
        self.expectations.insert(load.action, expectation);
        if !self.devices[load.device.index()].device.load(order) {
            self.fatal("a load executor is gone, or has more orders than the scheduler ever leaves outstanding");
        }
    }

    fn unload(&mut self, inner: &Inner, device: DeviceId, model: ModelId) {
        let uses =
            |expected: &Expectation| expected.device == device && expected.model == model && expected.done_at.is_some();
        if self.expectations.values().any(uses) {
            broken(
                &inner.metrics,
                Invariant::P6,
                &format!("{model} is unloaded from {device}, where a batch needs it"),
            );
        }
        let record = self.models[model.index()].as_mut().expect("the scheduler unloads models that were added");
        // If it is loaded there again, that is into another place.
        let slot = record.slots.remove(&device).unwrap_or_default();
        let there = &self.devices[device.index()];
        record.metrics.unloaded(there.metrics.name(), record.prepared.weight_bytes());
        let action = inner.drivers_action();
        if !there.device.unload(UnloadOrder { action, slot, pages: record.pages }) {
            self.fatal("a load executor is gone, or has more orders than the scheduler ever leaves outstanding");
        }
        self.unloads.insert(action, device);
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
        // Requests that were executed have their answer from the worker, and no payload here.
        if let Some(payload) = self.payloads[id.slot as usize].take() {
            let model = payload.model;
            self.waiting -= 1;
            if let Some(Some(record)) = self.models.get_mut(model.index()) {
                record.metrics.statistics().wait_no_longer(1);
                record.queued -= 1;
            }
            payload.refuse(outcome, || self.failure_of(model));
        }
        inner.give_slot_back(id);
    }
}
