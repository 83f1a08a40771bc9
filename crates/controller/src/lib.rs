//! The live driver of the scheduler: devices on one side, whoever asks on the other.
//!
//! # Who runs the scheduler
//!
//! Nobody in particular. Whoever has news (a gateway thread with requests, an executor with a report, the timer) puts
//! it into the inbox and tries to become the driver. One succeeds and works the inbox off; the others go on at once,
//! their news is seen by the one that drives. So nobody ever waits for a lock, an executor that finishes a batch gets
//! its next one without a change of threads, and there is no controller thread to wake on the way of a request.
//!
//! ```text
//!  gateway threads ─┐                      ┌─> executors ── outputs ──> gateway threads
//!  executors ───────┼─> inbox ─> scheduler ┤
//!  timer ───────────┘     (one at a time)  └─> refusals ─────────────> gateway threads
//! ```
//!
//! That is one cell, and usually there is one. More of them share nothing but the slots of requests, and each may be
//! driven by another thread: n cells use n cores. A device is in one cell, and so is a model, which is moved when its
//! cell is short.

mod api;
mod cell;
mod core;
mod cores;
mod dealing;
mod divisions;
mod following;
mod lost;
mod messages;
mod model;
mod moves;
mod payload;
mod pipelines;
mod sampler;
mod timer;
mod watchdog;

pub use self::core::SeldomLine;
pub use api::{Refusal, Reply, Submission, Ticket, TimeAccount};
pub use dealing::deal;
pub use divisions::{Division, Divisions};
pub use following::{AutoShares, ShareFollower, SharePlace};
pub use messages::Borrowing;
pub use model::ModelRecord;
pub use pipelines::{AnnouncedPipeline, PipelineStage};
pub use sampler::{KeptRequest, NotYet};
pub use watchdog::{ExecutionLimits, STANDS_STILL};
pub use worker::{DeviceConfig, Padding, Pulse, Tensor};

use crate::cell::{Cell, GiveBack, InboxSender};
use crate::dealing::{ModelNeeds, Occupancy};
use crate::lost::LostRequests;
use crate::messages::{CellMessage, StageCall};
use crate::payload::Payload;
use crate::pipelines::PipelineNumbers;
use base::{ActionId, DeviceId, Duration, ModelNumber, Reason, RequestId, Timestamp, margins};
use crossbeam_queue::{ArrayQueue, SegQueue};
use engine::{Breaker, Prepared};
use recording::Recorder;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use telemetry::Metrics;
use timer::Timer;
use watchdog::Watchdog;
use worker::{Clock, IdleWork};

/// What a controller is made with.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// The schedulers' settings.
    pub scheduler: scheduler::Config,
    /// How many requests may be in hand at once (P9).
    pub max_requests: u32,
    /// Bytes of a page of weights.
    pub page_bytes: u64,
    /// The devices of each cell, in the order of their numbers. There is at least one; [`deal`] makes more.
    pub cells: Vec<Vec<DeviceConfig>>,
    /// The share of a device's time in which requests are run again, alone, to learn what they take; 0: none.
    pub online_profile_share: f64,
    /// For how long a batch may be computed.
    pub limits: ExecutionLimits,
}

/// A handle on the controller; cheap to clone, never waits.
#[derive(Clone, Debug)]
pub struct Controller {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    myself: Weak<Inner>,
    clock: Clock,
    metrics: Metrics,
    page_bytes: u64,
    cells: Box<[Cell]>,
    /// Where models are.
    occupancy: Mutex<Occupancy>,
    /// Numbers of models of which nothing is left, for others.
    left: SegQueue<ModelNumber>,
    /// Slots that were used before and are free again.
    free: ArrayQueue<RequestId>,
    /// Slots from here on were never used: a quiet server touches few of them.
    fresh: AtomicU32,
    max_requests: u32,
    in_hand: AtomicU32,
    /// The kind of each device at the start.
    kinds: Vec<u32>,
    /// What each device is called.
    names: Vec<String>,
    /// Pages that each device has for weights, the first one's.
    device_pages: u32,
    /// Where shares may change.
    divisions: OnceLock<Divisions>,
    shutting_down: AtomicBool,
    drivers_actions: AtomicU64,
    limits: ExecutionLimits,
    watchdog: Watchdog,
    lost: LostRequests,
    pipelines: PipelineNumbers,
}

impl Controller {
    /// Starts the devices and the timer. There is no model yet.
    pub fn start(config: ControllerConfig, metrics: Metrics) -> std::io::Result<Self> {
        Self::start_recorded(config, Vec::new(), metrics)
    }

    /// The same, and keeps everything that the schedulers are told: there is a recorder for each cell, or none. They
    /// are for a server with this configuration, and for nothing else.
    pub fn start_recorded(
        config: ControllerConfig,
        recorders: Vec<Recorder>,
        metrics: Metrics,
    ) -> std::io::Result<Self> {
        let inner = Inner::new(&config, metrics);
        for (cell, recorder) in inner.cells.iter().zip(recorders) {
            cell.core.lock().unwrap_or_else(PoisonError::into_inner).record(recorder);
        }
        for (number, devices) in config.cells.into_iter().enumerate() {
            for config in devices {
                let device = inner.start_device(number, &config)?;
                let metrics = inner.metrics.device(&config.name);
                inner.put(number, CellMessage::AddDevice { config, device, metrics });
            }
            Timer::start(inner.inbox_of(number))?;
            inner.watchdog.add_pulse(format!("that drives cell {number}"), &inner.cells[number].pulse);
        }
        Watchdog::start(Weak::clone(&inner.myself))?;
        let controller = Self { inner };
        controller.drive();
        Ok(controller)
    }

    /// The server's clock.
    pub fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    /// The process's metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Hands a request over. It is looked at when somebody next calls `drive`. `None`: it can't be taken, and the
    /// refusal is on its way through the reply channel.
    pub fn submit(&self, submission: Submission) -> Option<Ticket> {
        let now = self.now();
        let (cell, request, payload) = self.take(submission, now, now)?;
        let id = request.id;
        self.inner.put(cell, CellMessage::Submit { request, payload });
        Some(Ticket { id, cell: cell as u32 })
    }

    /// The same for a call of a stage of a pipeline that was announced; its deadline is that of the whole. Schedulers
    /// take calls with one deadline for calls of one request: all of a stage have one.
    pub fn submit_stage(&self, submission: Submission, stage: PipelineStage) -> Option<Ticket> {
        let PipelineStage { stage, asked_at } = stage;
        let (cell, request, payload) = self.take(submission, self.now(), asked_at)?;
        let id = request.id;
        self.inner.put(cell, CellMessage::SubmitStage(Box::new(StageCall { request, payload, stage })));
        Some(Ticket { id, cell: cell as u32 })
    }

    /// Takes a slot for a request, and says which cell it is for; `None` where it is refused. How long before its
    /// deadline plans aim goes by the time that was left when it was asked for.
    fn take(
        &self,
        submission: Submission,
        now: Timestamp,
        asked_at: Timestamp,
    ) -> Option<(usize, scheduler::Request, Payload)> {
        let refuse = |submission: Submission, reason: Reason| {
            // A receiver that is gone needs no answer.
            let _ = submission.reply.send(Reply::Refused(reason.into()));
            None
        };
        if self.inner.shutting_down.load(Ordering::Relaxed) {
            return refuse(submission, Reason::ShuttingDown);
        }
        let Some(id) = self.inner.take_slot() else { return refuse(submission, Reason::QueueFull) };
        self.inner.in_hand.fetch_add(1, Ordering::Relaxed);
        let (cell, model) = self.inner.home(submission.model);
        let submission = Submission { model, ..submission };
        if let Some(trace) = &submission.trace {
            trace.queued(now);
        }
        let Submission { rows, deadline_at, priority, application, size, .. } = submission;
        let deadline_at = deadline_at - margins::plan_before(deadline_at.since(asked_at));
        let request = scheduler::Request { id, model: model.id(), deadline_at, priority, rows, application, size };
        Some((cell, request, Payload { id, submitted_at: now, submission, present: None }))
    }

    /// The client went away: takes the request out of the plan if it isn't executing. Also looked at by `drive`.
    pub fn cancel(&self, ticket: Ticket) {
        self.inner.put(ticket.cell as usize, CellMessage::Cancel(ticket.id));
    }

    /// Lets the schedulers look at everything that was handed over. Never waits: if another thread is at it, that
    /// thread sees this thread's news too.
    pub fn drive(&self) {
        self.inner.drive();
    }

    /// How many pages that many bytes of weights take.
    pub fn pages(&self, bytes: u64) -> u32 {
        u32::try_from(bytes.div_ceil(self.inner.page_bytes)).unwrap_or(u32::MAX).max(1)
    }

    /// Publishes a model, whose weights are in host memory. It may be asked from now on, by the number that it gets.
    pub fn publish(&self, record: Arc<ModelRecord>, prepared: Arc<dyn Prepared>) -> ModelNumber {
        let needs = self.needs(&record, &*prepared);
        let number = self.inner.occupancy().add(needs);
        self.tell_of(number, needs, record, prepared);
        number
    }

    fn needs(&self, record: &ModelRecord, prepared: &dyn Prepared) -> ModelNeeds {
        ModelNeeds::new(self.pages(prepared.weight_bytes()), &record.profile)
    }

    /// Tells a model's cell of it.
    fn tell_of(&self, number: ModelNumber, needs: ModelNeeds, record: Arc<ModelRecord>, prepared: Arc<dyn Prepared>) {
        let (cell, number) = self.inner.home(number);
        self.inner.put(cell, CellMessage::Publish { number, pages: needs.pages, record, prepared });
        self.drive();
    }

    /// Withdraws a model: what is queued for it is refused, what runs is finished.
    pub fn withdraw(&self, number: ModelNumber) {
        self.inner.occupancy().remove(number);
        let (cell, number) = self.inner.home(number);
        self.inner.put(cell, CellMessage::Withdraw(number));
        self.drive();
    }

    /// Runs something alone on a device when it has no order to carry out, with the scheduler's knowledge. It doesn't
    /// run if the server is going down. Beyond the limit of executions it is broken off, if something can.
    pub fn borrow_device(
        &self,
        device: DeviceId,
        expected: Duration,
        breaker: Option<Arc<dyn Breaker>>,
        work: Box<dyn FnOnce() + Send>,
    ) {
        let (cell, device) = self.inner.cell_of(device);
        let (action, work) = self.inner.lend(cell, device, breaker, work);
        self.inner.put(cell, CellMessage::Borrow { device, action, expected, work });
        self.drive();
    }

    /// What is to run alone on a device, for [`Self::borrow_if_idle`].
    pub fn borrowing(
        &self,
        device: DeviceId,
        expected: Duration,
        breaker: Option<Arc<dyn Breaker>>,
        work: Box<dyn FnOnce() + Send>,
    ) -> Borrowing {
        let (cell, device) = self.inner.cell_of(device);
        let (action, work) = self.inner.lend(cell, device, breaker, work);
        Borrowing { cell, device, action, expected, work }
    }

    /// Runs it as [`Self::borrow_device`] does, but only if nobody notices: nothing waits, the device has nothing to
    /// do, no deadline is near, and the share of its time for such work isn't used up. Otherwise it comes back, with
    /// the reason. Waits for whoever drives the device's cell.
    pub fn borrow_if_idle(&self, borrowing: Borrowing) -> Result<(), (Borrowing, NotYet)> {
        let (refused, answer) = mpsc::channel();
        self.inner.put(borrowing.cell, CellMessage::BorrowIfIdle { borrowing, refused });
        self.drive();
        // Nobody answers where it runs, and when the server goes down.
        answer.recv().map_or(Ok(()), Err)
    }

    /// Takes the requests of a model that were kept to be compared. If none was kept, the next ones are: a few, for
    /// half a minute at most. Waits for whoever drives the model's cell.
    pub fn take_to_compare(&self, number: ModelNumber) -> Vec<KeptRequest> {
        let (cell, model) = self.inner.home(number);
        let (reply, answer) = mpsc::channel();
        self.inner.put(cell, CellMessage::TakeToCompare { model, reply });
        self.drive();
        // Nobody answers when the server goes down.
        answer.recv().unwrap_or_default()
    }

    /// How often a device was given up, because a thread of it hangs. What runs there when that happens is never heard
    /// of again.
    pub fn times_given_up(&self, device: DeviceId) -> u32 {
        let (cell, device) = self.inner.cell_of(device);
        self.inner.cells[cell].given_up[device.index()].load(Ordering::Relaxed)
    }

    /// For how long a batch may be computed.
    pub fn limits(&self) -> &ExecutionLimits {
        &self.inner.limits
    }

    /// Watches a thread for which others wait: as long as it has the pulse it must move or rest.
    pub fn watch_thread(&self, name: impl Into<String>) -> Arc<Pulse> {
        self.inner.watchdog.add_thread(name.into())
    }

    /// What everybody waits for and stands still, if something does: a sentence.
    pub fn stuck(&self) -> Option<String> {
        self.inner.watchdog.stuck(self.now())
    }

    /// Says that something stands still for as long as the process lives.
    pub fn stays_stuck(&self, sentence: String) {
        self.inner.watchdog.stays_stuck(sentence);
    }

    /// What is under way, in words, for whoever ends the process without it.
    pub fn under_way(&self) -> Vec<String> {
        self.inner.watchdog.under_way()
    }

    /// Refuses new requests from now on.
    pub fn refuse_new(&self) {
        self.inner.shutting_down.store(true, Ordering::Relaxed);
    }

    /// How many devices there are.
    pub fn devices(&self) -> u32 {
        self.inner.cells.iter().map(|cell| cell.devices.load(Ordering::Relaxed)).sum()
    }

    /// How many of them a model may run on.
    pub fn devices_of(&self, model: ModelNumber) -> u32 {
        self.inner.cells[self.inner.home(model).0].devices.load(Ordering::Relaxed)
    }

    /// How many requests are in hand.
    pub fn in_hand(&self) -> u32 {
        self.inner.in_hand.load(Ordering::Relaxed)
    }

    /// Ends the devices: what they were given is carried out first, what is queued is refused.
    pub fn stop(&self) {
        self.refuse_new();
        let stop = |cell: &Cell| {
            cell.timer.stop();
            cell.core.lock().unwrap_or_else(PoisonError::into_inner).stop()
        };
        let devices: Vec<_> = self.inner.cells.iter().map(stop).collect();
        // Outside the locks: the executors' last reports want to drive.
        drop(devices);
        self.drive();
    }
}

impl Inner {
    fn new(config: &ControllerConfig, metrics: Metrics) -> Arc<Self> {
        Arc::new_cyclic(|myself| Self {
            myself: Weak::clone(myself),
            clock: Clock::start(),
            page_bytes: config.page_bytes,
            cells: Cell::all(config, &metrics),
            metrics,
            occupancy: Mutex::new(Occupancy::new(&config.cells)),
            left: SegQueue::new(),
            free: ArrayQueue::new(config.max_requests.max(1) as usize),
            fresh: AtomicU32::new(0),
            max_requests: config.max_requests.max(1),
            in_hand: AtomicU32::new(0),
            kinds: config.cells.iter().flatten().map(|device| device.kind).collect(),
            names: config.cells.iter().flatten().map(|device| device.name.clone()).collect(),
            device_pages: config.cells.iter().flatten().next().map_or(0, |device| device.pages),
            divisions: OnceLock::new(),
            shutting_down: AtomicBool::new(false),
            drivers_actions: AtomicU64::new(0),
            limits: config.limits.clone(),
            watchdog: Watchdog::default(),
            lost: LostRequests::default(),
            pipelines: PipelineNumbers::default(),
        })
    }

    fn start_device(&self, cell: usize, config: &DeviceConfig) -> std::io::Result<worker::Device<Payload>> {
        let inbox = self.inbox_of(cell);
        let report = move |report| inbox.tell(CellMessage::Report(report));
        if !config.only_waits {
            return worker::Device::start(config, self.clock, report);
        }
        let shared = &self.cells[cell].shared;
        if shared.get().is_none() {
            // Devices are started one after another, the first of them at the start: nobody else does this now.
            let _ = shared.set(worker::Shared::start(self.clock)?);
        }
        let shared = shared.get().expect("it was set just now");
        Ok(shared.device(config, report))
    }

    fn inbox_of(&self, cell: usize) -> InboxSender {
        InboxSender { inner: self.myself.clone(), cell }
    }

    /// Hands news over. It is looked at when somebody next drives the cell.
    fn put(&self, cell: usize, message: CellMessage) {
        self.cells[cell].inbox.push(message);
    }

    /// Where models are, with the numbers that are free again. Whoever drives never waits here, but puts those into
    /// `left`.
    fn occupancy(&self) -> MutexGuard<'_, Occupancy> {
        let mut occupancy = self.occupancy.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| self.left.pop()).for_each(|number| occupancy.give_back(number));
        occupancy
    }

    /// Nothing is left of a model of that cell: its number may be another's, as of another generation.
    fn give_number_back(&self, cell: usize, number: ModelNumber) {
        let again = ModelNumber { generation: number.generation.wrapping_add(1), ..number };
        self.left.push(dealing::among_all(self.cells.len(), cell, again));
    }

    /// Which cell a model is in, and its number there.
    fn home(&self, model: ModelNumber) -> (usize, ModelNumber) {
        dealing::home(self.cells.len(), model)
    }

    /// Which cell a device is in, and its number there.
    fn cell_of(&self, device: DeviceId) -> (usize, DeviceId) {
        let cell = self.cells.partition_point(|cell| cell.first_device <= device.0) - 1;
        (cell, DeviceId(device.0 - self.cells[cell].first_device))
    }

    fn drive(&self) {
        if let [one] = &*self.cells {
            return one.drive(self);
        }
        // A turn for each that has news, and then around again: much of it for one must not keep the others waiting.
        while self.cells.iter().fold(false, |more, cell| (!cell.inbox.is_empty() && cell.turn(self)) | more) {}
    }

    /// Work that gives the device back when it is done, and the number for it.
    fn lend(
        &self,
        cell: usize,
        device: DeviceId,
        breaker: Option<Arc<dyn Breaker>>,
        work: Box<dyn FnOnce() + Send>,
    ) -> (ActionId, IdleWork) {
        let (action, inbox) = (self.drivers_action(), self.inbox_of(cell));
        let run = move || {
            // Also after a panic, which the executor catches, the device must be given back.
            let _giving_back = GiveBack { inbox, device, action };
            work();
        };
        (action, IdleWork { run: Box::new(run), limit: self.limits.most, breaker })
    }

    /// A number for something that the scheduler gave none to.
    fn drivers_action(&self) -> ActionId {
        ActionId(ActionId::DRIVERS.0 + self.drivers_actions.fetch_add(1, Ordering::Relaxed))
    }

    fn take_slot(&self) -> Option<RequestId> {
        if let Some(id) = self.free.pop() {
            return Some(id);
        }
        let below = |slot: u32| (slot < self.max_requests).then_some(slot + 1);
        let slot = self.fresh.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below).ok()?;
        Some(RequestId { slot, generation: 0 })
    }

    fn give_slot_back(&self, id: RequestId) {
        self.in_hand.fetch_sub(1, Ordering::Relaxed);
        let again = RequestId { slot: id.slot, generation: id.generation.wrapping_add(1) };
        let pushed = self.free.push(again);
        assert!(pushed.is_ok(), "P1: more slots were given back than there are");
    }
}

/// Ends the process: an invariant is broken, and a supervisor that starts it anew does better than a wrong answer.
pub fn fatal(reason: &str) -> ! {
    tracing::error!("{reason}; the process ends here so that no wrong plan is carried out");
    telemetry::logs::flush();
    std::process::exit(70);
}
