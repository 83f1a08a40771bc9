//! The scheduler on many cores: model shards and the ranker in threads of their own, instead of the one scheduler.
//!
//! ```text
//!  gateway threads ─> shard threads ── newest candidates, news of executors ─> ranker thread ─> loads
//!  executors ───────>      │        <──────────────── grants ────────────────
//!                          └─> batches to the executors
//! ```
//!
//! Each shard's thread has the requests of its models from beginning to end: it queues them, sends their batches to the
//! executors, hears what became of them and answers. The ranker's thread sees no request. It hands out executors, and brings
//! every model's weights onto every device, which is what lets it hand out any.
//!
//! **Invariant:** no thread waits for another: candidates overwrite each other, all else goes through queues that are bounded by
//! the requests in hand or the number of executors.

mod lane;
mod ranker;
mod shard;

use crate::core::{DeviceRecord, Payload};
use crate::{Inner, NewModel};
use base::{ActionId, DeviceId, Duration, ModelId, ModelSignature, RequestId, Timestamp};
use crossbeam_queue::ArrayQueue;
use lane::Lane;
use scheduler::ModelSpec;
use scheduler::shards::{Delay, Grant, Mailboxes, News, Shard, ShardConfig};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use telemetry::ModelMetrics;
use worker::{Padding, Slot};

/// Models that can be served at once with shards: each has a mailbox, made at the start.
const MAX_MODELS: u32 = 1 << 16;
/// From an order to the start of its batch: the executor's thread must wake up, on a machine that may be busy.
const ORDER_DELAY: Duration = Duration::from_micros(200);
/// What an executor may have to say before the ranker looks: a grant's outcome, two ends, and as much again.
const NEWS_PER_EXECUTOR: usize = 8;

/// How a controller is spread over threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spread {
    /// Threads for requests, each with some of the models; at least one. One more thread hands out the executors.
    pub shards: u32,
    /// Bind the threads to cores, counted from the last, from this one on; `None` leaves it to the system.
    pub pin: Option<usize>,
}

/// A model, as both threads that deal with it see it.
struct Served {
    name: String,
    prepared: Arc<dyn engine::Prepared>,
    signature: Arc<ModelSignature>,
    padding: Option<Arc<Padding>>,
    pages: u32,
    metrics: ModelMetrics,
    /// By device.
    slots: Vec<Arc<Slot>>,
    /// Why an action failed the last time that one did.
    failure: Mutex<String>,
}

impl Served {
    fn note_failure(&self, reason: String) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }
}

/// News for a shard.
enum ShardMessage {
    Submit { request: scheduler::Request, payload: Payload },
    Cancel(RequestId),
    Report(worker::Report<Payload>),
    AddModel { spec: ModelSpec, served: Arc<Served> },
    Activate(ModelId),
    RemoveModel(ModelId),
    Executors(u32),
}

/// News for the ranker.
enum RankerMessage {
    AddModel {
        spec: ModelSpec,
        served: Arc<Served>,
    },
    /// A model was removed, and nothing of it is under way.
    Drained(ModelId),
    Report(worker::Report<Payload>),
    Borrow {
        device: DeviceId,
        expected: Duration,
        work: Box<dyn FnOnce() + Send>,
    },
    Return(DeviceId),
}

impl std::fmt::Debug for ShardMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ShardMessage")
    }
}

impl std::fmt::Debug for RankerMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RankerMessage")
    }
}

/// What joins the threads.
#[derive(Debug)]
pub(crate) struct Hub {
    shards: Vec<Lane<ShardMessage>>,
    ranker: Lane<RankerMessage>,
    mailboxes: Vec<Mailboxes>,
    /// By shard.
    grants: Vec<ArrayQueue<Grant>>,
    news: ArrayQueue<News>,
    /// The threads have them too, and end before they do.
    devices: Mutex<Option<Arc<Vec<DeviceRecord>>>>,
    device_count: usize,
    /// Which shard has a request, by slot.
    owners: Box<[AtomicU32]>,
    /// Pages of the smallest device.
    device_pages: u32,
    /// Pages of the models in service.
    pages_of: Mutex<HashMap<ModelId, u32>>,
    stopping: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Hub {
    pub fn new(spread: Spread, device_pages: &[u32], max_requests: u32) -> Self {
        let shards = spread.shards.max(1);
        let executors = device_pages.len().max(1);
        Self {
            shards: (0..shards).map(|_| Lane::new()).collect(),
            ranker: Lane::new(),
            mailboxes: (0..shards).map(|shard| Mailboxes::new(shard, shards, MAX_MODELS)).collect(),
            grants: (0..shards).map(|_| ArrayQueue::new(executors)).collect(),
            news: ArrayQueue::new(NEWS_PER_EXECUTOR * executors),
            devices: Mutex::default(),
            device_count: device_pages.len(),
            owners: (0..max_requests).map(|_| AtomicU32::new(0)).collect(),
            device_pages: device_pages.iter().copied().min().unwrap_or(0),
            pages_of: Mutex::default(),
            stopping: AtomicBool::new(false),
            threads: Mutex::default(),
        }
    }

    fn shard_count(&self) -> u32 {
        self.shards.len() as u32
    }

    /// Starts the threads, with devices that report to this hub.
    pub fn start(
        self: &Arc<Self>,
        inner: &Arc<Inner>,
        spread: Spread,
        config: &scheduler::Config,
        devices: Vec<DeviceRecord>,
    ) -> std::io::Result<()> {
        let devices = Arc::new(devices);
        *self.devices.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&devices));
        let settings = ShardConfig {
            delay: Delay { control: ORDER_DELAY, data_per_row: Duration::ZERO },
            max_queued_per_model: config.max_queued_per_model,
            ..ShardConfig::default()
        };
        let mut threads = Vec::new();
        let named = |name: String| std::thread::Builder::new().name(name);
        for index in 0..self.shard_count() {
            let thread = shard::ShardThread::new(self, inner, &devices, index, settings, config);
            let pin = spread.pin.map(|first| first + 1 + index as usize);
            threads.push(named(format!("shard {index}")).spawn(move || pinned(pin, "shard", || thread.run()))?);
        }
        let thread = ranker::RankerThread::new(self, inner, &devices, settings.delay);
        threads.push(named("ranker".into()).spawn(move || pinned(spread.pin, "ranker", || thread.run()))?);
        *self.threads.lock().unwrap_or_else(PoisonError::into_inner) = threads;
        Ok(())
    }

    pub fn submit(&self, request: scheduler::Request, payload: Payload) {
        let owner = Shard::of(request.model, self.shard_count());
        self.owners[request.id.slot as usize].store(owner, Ordering::Relaxed);
        self.shards[owner as usize].put(ShardMessage::Submit { request, payload });
    }

    pub fn cancel(&self, id: RequestId) {
        let owner = self.owners[id.slot as usize].load(Ordering::Relaxed);
        self.shards[owner as usize].put(ShardMessage::Cancel(id));
    }

    /// Wakes the shards that have something to look at.
    pub fn drive(&self) {
        self.shards.iter().filter(|lane| !lane.is_empty()).for_each(Lane::wake);
    }

    /// The number of an action says whose it is.
    pub fn report(&self, report: worker::Report<Payload>) {
        match self.shards.get(self.owner_of(report.action)) {
            Some(lane) => lane.send(ShardMessage::Report(report)),
            None => self.ranker.send(RankerMessage::Report(report)),
        }
    }

    fn owner_of(&self, action: ActionId) -> usize {
        (action.0 % (u64::from(self.shard_count()) + 1)) as usize
    }

    /// Whether one more model of that many pages fits beside the others, on every device.
    pub fn room_for(&self, pages: u32) -> Result<(), String> {
        let taken: u64 = self.pages_of().values().map(|&pages| u64::from(pages)).sum();
        let total = u64::from(self.device_pages);
        if taken + u64::from(pages) <= total {
            return Ok(());
        }
        Err(format!(
            "its weights take {pages} pages, {} of {total} are left on a device: with --shards every device holds all models; \
             give the devices more memory (--device-memory), or serve without --shards",
            total.saturating_sub(taken)
        ))
    }

    fn pages_of(&self) -> std::sync::MutexGuard<'_, HashMap<ModelId, u32>> {
        self.pages_of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add_model(&self, id: ModelId, pages: u32, model: NewModel, metrics: ModelMetrics) {
        if id.0 >= MAX_MODELS {
            tracing::error!(
                model = model.name,
                "not served: with --shards at most {MAX_MODELS} models can ever be added"
            );
            return;
        }
        self.pages_of().insert(id, pages);
        let NewModel { name, prepared, signature, padding, profile, elsewhere, fixed, objective, fairness, .. } = model;
        let slots = (0..self.device_count).map(|_| Arc::new(Slot::new(Arc::clone(metrics.statistics())))).collect();
        let failure = Mutex::default();
        let served = Arc::new(Served { name, prepared, signature, padding, pages, metrics, slots, failure });
        let spec = ModelSpec { model: id, pages, profile, elsewhere, objective, fixed, fairness };
        // The shard first: the ranker's word that the weights are there must find the model known.
        let lane = &self.shards[Shard::of(id, self.shard_count()) as usize];
        lane.send(ShardMessage::AddModel { spec: spec.clone(), served: Arc::clone(&served) });
        self.ranker.send(RankerMessage::AddModel { spec, served });
    }

    pub fn remove_model(&self, id: ModelId) {
        self.pages_of().remove(&id);
        self.shards[Shard::of(id, self.shard_count()) as usize].send(ShardMessage::RemoveModel(id));
    }

    pub fn borrow_device(&self, device: DeviceId, expected: Duration, work: Box<dyn FnOnce() + Send>) {
        self.ranker.send(RankerMessage::Borrow { device, expected, work });
    }

    pub fn give_back(&self, device: DeviceId) {
        self.ranker.send(RankerMessage::Return(device));
    }

    /// Tells the threads to end.
    fn end(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.shards.iter().for_each(Lane::wake);
        self.ranker.wake();
    }

    /// Ends the threads, then the devices: what these were given is carried out first, what is queued is refused.
    pub fn stop(&self) {
        self.end();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            if thread.thread().id() != std::thread::current().id() {
                // A thread that panicked has ended the process.
                let _ = thread.join();
            }
        }
        let devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(devices);
        // Also what executors gave back in the end.
        self.refuse_left();
    }

    /// Answers whoever waits in an inbox that nobody looks into any more.
    fn refuse_left(&self) {
        for lane in &self.shards {
            while let Some(message) = lane.take() {
                match message {
                    ShardMessage::Submit { payload, .. } => payload.refuse_at_the_end(),
                    ShardMessage::Report(report) => report.returned.into_iter().for_each(Payload::refuse_at_the_end),
                    ShardMessage::Cancel(_)
                    | ShardMessage::AddModel { .. }
                    | ShardMessage::Activate(_)
                    | ShardMessage::RemoveModel(_)
                    | ShardMessage::Executors(_) => {}
                }
            }
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}

/// The controller's own hold on the hub: without it the threads end.
#[derive(Debug)]
pub(crate) struct Hold(pub Arc<Hub>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Runs a thread's work, on a core of its own where wanted and allowed.
fn pinned(position: Option<usize>, role: &str, work: impl FnOnce()) {
    if let Some(position) = position {
        match worker::pin_from_last(position) {
            Ok(core) => tracing::info!(role, core, "a scheduling thread is pinned"),
            Err(reason) => tracing::warn!(role, "a scheduling thread is not pinned: {reason}"),
        }
    }
    // A panic broke an invariant; going on without this thread would leave requests unanswered.
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        crate::fatal("a scheduling thread broke one of its invariants");
    }
}

/// When a thread that has nothing to do should look again.
fn or_never(at: Option<Timestamp>) -> Timestamp {
    at.unwrap_or(Timestamp::NEVER)
}
