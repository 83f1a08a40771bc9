//! A device: what executes on it and what loads onto it, each with a thread of its own or both on one that devices
//! share.

mod flow;
mod loader;
mod shared;

pub use shared::Shared;

use crate::batch::{self, BatchItem, Gathering, Group, IoCache};
use crate::pin;
use crate::{Clock, Padding, Pages, Pulse};
use base::{ActionId, Duration, ModelSignature, Timestamp, Transfers, Window};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, unbounded};
use engine::{Breaker, Loaded, Prepared, Tensor};
use flow::Flow;
use loader::Loader;
use shared::Membership;
use std::collections::{BinaryHeap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::JoinHandle;
use telemetry::Statistics;

/// Orders that may wait for one executor (P9). The scheduler keeps far fewer outstanding.
const MAX_ORDERS: usize = 4096;

/// Where requests come one after another, the next one is close behind: for so long an executor looks for it before it
/// sleeps. Waking a sleeping thread on an idle core takes longer than a small model's batch (25 us and more on a
/// virtual machine, where an idle core is given back to the host).
const LINGER: Duration = Duration::from_micros(50);

const NOT_LOADED: &str = "P6: the weights are not loaded";

/// What a device is made with.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// For thread names and messages, for instance `cpu:0`.
    pub name: String,
    /// Its number for the engine.
    pub index: u32,
    /// Pages for weights.
    pub pages: u32,
    /// Bind the EXEC thread to this one of the cores, counted from the last; `None` leaves it to the system.
    pub pin: Option<usize>,
    /// Devices of one kind take the same for the same batch; 0 is the slowest.
    pub kind: u32,
    /// Its engine never computes, but says when something will be done: it shares one thread with others ([`Shared`]).
    pub only_waits: bool,
}

/// Where a model's weights are while they are on a device. One for each model and device.
#[derive(Default)]
pub struct Slot {
    loaded: Mutex<Option<Box<dyn Loaded>>>,
    statistics: Arc<Statistics>,
}

impl Slot {
    /// A place without weights; what is computed there is counted with the others of the model.
    pub fn new(statistics: Arc<Statistics>) -> Self {
        Self { loaded: Mutex::default(), statistics }
    }

    /// Whether weights are here and nobody is at them.
    pub fn has_weights(&self) -> bool {
        self.weights().is_ok_and(|weights| weights.is_some())
    }

    /// What breaks executions on the weights off that are here, if something can.
    pub fn breaker(&self) -> Option<Arc<dyn Breaker>> {
        self.weights().ok()?.as_ref()?.breaker()
    }

    /// Runs one request on the weights that are here, as a batch of its own is run, and says what that took. Nobody
    /// gets its outputs, and it isn't counted. For [`Device::run_when_idle`].
    pub fn measure(
        &self,
        clock: Clock,
        signature: &ModelSignature,
        padding: Option<&Arc<Padding>>,
        max_elements: u64,
        inputs: Vec<Tensor>,
        rows: u32,
    ) -> Result<Duration, String> {
        let mut weights = self.weights()?;
        let loaded = weights.as_mut().ok_or(NOT_LOADED)?;
        let (mut cache, mut items) = (IoCache::default(), [MeasuredRequest { inputs, rows }]);
        let started_at = clock.now();
        let group = Group::form(&mut items, signature, padding, max_elements).unwrap_or(Group::ONE);
        let mut inputs = Gathering::new(&items, &group, &mut cache, clock);
        let started = loaded.stage(&mut inputs).and_then(|mut staged| staged.start(&mut inputs).map(|()| staged));
        let finished =
            started.and_then(|mut staged| batch::take_outputs(&mut *staged, signature, &items, &group, &mut cache));
        finished.map(|_| clock.now().since(started_at)).map_err(|error| error.to_string())
    }

    /// The weights, without waiting: the scheduler never changes what is in use (P6).
    fn weights(&self) -> Result<MutexGuard<'_, Option<Box<dyn Loaded>>>, String> {
        match self.loaded.try_lock() {
            Ok(weights) => Ok(weights),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err("P6: the weights are being changed while they are used".into()),
        }
    }
}

/// A request that is run for its time alone.
struct MeasuredRequest {
    inputs: Vec<Tensor>,
    rows: u32,
}

impl BatchItem for MeasuredRequest {
    fn inputs(&self) -> &[Tensor] {
        &self.inputs
    }

    fn rows(&self) -> u32 {
        self.rows
    }

    fn queued_at(&self) -> Timestamp {
        Timestamp::ZERO
    }

    fn deliver(self, _outputs: Result<Vec<Tensor>, String>) {}
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Slot")
    }
}

/// Run a batch.
#[derive(Debug)]
pub struct ExecuteOrder<I> {
    /// The number that the report names.
    pub action: ActionId,
    /// When it may start.
    pub window: Window,
    /// The weights.
    pub slot: Arc<Slot>,
    /// What the model takes and gives.
    pub signature: Arc<ModelSignature>,
    /// How requests of different lengths are made to fit into one batch, where the model allows that.
    pub padding: Option<Arc<Padding>>,
    /// How many elements an input whose size is open may have in one batch: requests that would have more together are
    /// several batches.
    pub max_elements: u64,
    /// How long a batch of it may take. Longer ones are broken off where the engine can, and their requests fail.
    pub limit: Duration,
    /// The requests, at least one.
    pub items: Vec<I>,
}

/// Bring weights onto the device.
pub struct LoadOrder {
    /// The number that the report names.
    pub action: ActionId,
    /// When it may start.
    pub window: Window,
    /// Where the weights go.
    pub slot: Arc<Slot>,
    /// Where they come from.
    pub prepared: Arc<dyn Prepared>,
    /// Pages that they take.
    pub pages: u32,
    /// How long it may take.
    pub limit: Duration,
}

/// Free weights.
#[derive(Debug)]
pub struct UnloadOrder {
    /// The number that the report names.
    pub action: ActionId,
    /// Where they are.
    pub slot: Arc<Slot>,
    /// Pages that they took.
    pub pages: u32,
    /// How long it may take.
    pub limit: Duration,
}

/// Something that isn't an order, for an executor that has none.
pub struct IdleWork {
    /// What is run, on the executor's thread.
    pub run: Box<dyn FnOnce() + Send>,
    /// How long it may take.
    pub limit: Duration,
    /// What breaks it off, if something can.
    pub breaker: Option<Arc<dyn Breaker>>,
}

/// What became of an order.
#[derive(Debug)]
pub struct OrderReport<I> {
    /// Which one.
    pub action: ActionId,
    /// What became of it.
    pub status: Status,
    /// The requests of a batch that was not started.
    pub returned: Vec<I>,
}

/// What became of an order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Status {
    /// Done; started inside its window.
    Done {
        /// When it started.
        started_at: Timestamp,
        /// When it ended.
        ended_at: Timestamp,
        /// A batch's transfers, where they may overlap with other batches.
        transfers: Transfers,
    },
    /// Not started: its window had passed, or the device had been retired.
    TooLate,
    /// Failed, and why.
    Failed(String),
    /// The model could not compute the inputs of some of its requests. The others have their answers.
    Unfit {
        /// What the engine said of the last of them.
        reason: String,
        /// How many requests these are.
        requests: u32,
    },
    /// It took longer than its limit and was broken off. Its requests have failed.
    BrokenOff {
        /// The sentence that they got.
        reason: String,
        /// What it took.
        took: Duration,
    },
    /// It hangs, and nothing can be done about it. Never reported by a device: whoever watches it says so.
    Hangs(String),
    /// The engine panicked, or said that the device is gone. Whatever it keeps for this device may be in any state or
    /// nowhere, so that the driver does well to [retire](Device::retire) it. Its requests have failed, unless they come
    /// back: then nothing was done with them.
    Lost {
        /// What it said.
        reason: String,
        /// What of the device's time was gone; `None` if that isn't put down to this order.
        took: Option<Duration>,
    },
}

enum LoadMessage {
    Load(LoadOrder),
    Unload(UnloadOrder),
}

enum ExecuteMessage<I> {
    Execute(ExecuteOrder<I>),
    /// Something that runs when no order is there, with the device to itself: a measurement.
    WhenIdle(IdleWork),
    /// Start nothing any more.
    Retire,
}

/// A device with its executor and its loader. Dropping it lets both finish what they were given, and ends them.
#[derive(Debug)]
pub struct Device<I> {
    execute: Option<Sender<ExecuteMessage<I>>>,
    load: Option<Sender<LoadMessage>>,
    pages: Arc<Pages>,
    /// Of what executes and of what loads.
    pulses: [Arc<Pulse>; 2],
    kind: u32,
    /// Where it is on a thread that devices share.
    membership: Option<Membership<I>>,
    /// Its own threads, where it isn't.
    threads: Vec<JoinHandle<()>>,
}

impl<I: BatchItem> Device<I> {
    /// Starts a device with two threads of its own. Each end of an order is given to `report`, on the thread that
    /// carried it out.
    pub fn start(
        config: &DeviceConfig,
        clock: Clock,
        report: impl Fn(OrderReport<I>) + Clone + Send + 'static,
    ) -> std::io::Result<Self> {
        let (mut device, executor, loader) = Self::parts(config, clock);
        let named = |role: &str| std::thread::Builder::new().name(format!("{role} {}", config.name));
        let (pin, name, load_report) = (config.pin, config.name.clone(), report.clone());
        device.threads = vec![
            named("exec").spawn(move || {
                if let Some(position) = pin {
                    match pin::pin_from_last(position) {
                        Ok(core) => tracing::info!(device = name, core, "executor is pinned"),
                        Err(reason) => {
                            tracing::warn!(device = name, "executor is not pinned, its times will vary more: {reason}");
                        }
                    }
                }
                executor.run(&report);
            })?,
            named("load").spawn(move || loader.run(&load_report))?,
        ];
        Ok(device)
    }

    /// A device whose executor and loader nobody runs yet.
    fn parts(config: &DeviceConfig, clock: Clock) -> (Self, DeviceExecutor<I>, Loader) {
        let (execute, execute_orders) = unbounded();
        let (load, load_orders) = unbounded();
        let pages = Arc::new(Pages::new(config.pages));
        let pulses: [Arc<Pulse>; 2] = Default::default();
        let executor = DeviceExecutor {
            clock,
            orders: execute_orders,
            closed: false,
            heap: BinaryHeap::new(),
            idle_work: VecDeque::new(),
            flow: Flow::default(),
            cache: IoCache::default(),
            pulse: Arc::clone(&pulses[0]),
            lingers_until: Timestamp::ZERO,
            retired: false,
        };
        let loader = Loader::new(clock, load_orders, Arc::clone(&pages), Arc::clone(&pulses[1]), config.index);
        let (execute, load) = (Some(execute), Some(load));
        let device = Self { execute, load, pages, pulses, kind: config.kind, membership: None, threads: Vec::new() };
        (device, executor, loader)
    }

    fn send_execute(&self, message: ExecuteMessage<I>) -> Result<(), ExecuteMessage<I>> {
        let sender = self.execute.as_ref().expect("only dropping takes the senders");
        send(sender, message)?;
        self.ring();
        Ok(())
    }

    fn send_load(&self, message: LoadMessage) -> bool {
        let sender = self.load.as_ref().expect("only dropping takes the senders");
        let sent = send(sender, message).is_ok();
        self.ring();
        sent
    }

    /// Hands over a batch. `Err` gives it back when the executor is gone or its queue full.
    pub fn execute(&self, order: ExecuteOrder<I>) -> Result<(), ExecuteOrder<I>> {
        self.send_execute(ExecuteMessage::Execute(order)).map_err(|message| match message {
            ExecuteMessage::Execute(order) => order,
            ExecuteMessage::WhenIdle(_) | ExecuteMessage::Retire => unreachable!("what was sent comes back"),
        })
    }

    /// Runs something on the executor's thread when no order is there to be carried out. `false`: the executor is gone
    /// or its queue full, and it won't run.
    pub fn run_when_idle(&self, work: IdleWork) -> bool {
        self.send_execute(ExecuteMessage::WhenIdle(work)).is_ok()
    }

    /// Lets the executor start nothing any more: what runs is finished, batches that wait come back as too late, and so
    /// do those that are ordered from now on. `false`: the executor is gone or its queue full.
    pub fn retire(&self) -> bool {
        self.send_execute(ExecuteMessage::Retire).is_ok()
    }

    /// Hands over a load. `false`: the executor is gone or its queue full, and nothing will be reported.
    pub fn load(&self, order: LoadOrder) -> bool {
        self.send_load(LoadMessage::Load(order))
    }

    /// Hands over an unload; LOAD and UNLOAD are obeyed in the order in which they were given. `false`: the executor is
    /// gone or its queue full, and nothing will be reported.
    pub fn unload(&self, order: UnloadOrder) -> bool {
        self.send_load(LoadMessage::Unload(order))
    }

    /// Of which kind it is.
    pub fn kind(&self) -> u32 {
        self.kind
    }

    /// Of its threads, for whoever watches them: what executes, and what loads.
    pub fn pulses(&self) -> &[Arc<Pulse>; 2] {
        &self.pulses
    }

    /// Gives up a device of which a thread hangs: nothing is waited for. If the thread ever comes back, it starts
    /// nothing any more.
    pub fn leave_behind(mut self) {
        self.retire();
        self.threads.clear();
    }

    /// The worker's own count of pages.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }
}

impl<I> Device<I> {
    /// Tells a thread that devices share that there is something for this one.
    fn ring(&self) {
        if let Some(membership) = &self.membership {
            membership.ring();
        }
    }
}

impl<I> Drop for Device<I> {
    fn drop(&mut self) {
        self.execute = None;
        self.load = None;
        self.ring();
        if let Some(membership) = self.membership.take() {
            membership.wait_for_the_end();
        }
        for thread in self.threads.drain(..) {
            // The last handle may be dropped on one of these threads itself, which can't wait for its own end.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

/// Hands a message over, unless there are too many already.
fn send<T>(sender: &Sender<T>, message: T) -> Result<(), T> {
    if sender.len() >= MAX_ORDERS {
        return Err(message);
    }
    sender.send(message).map_err(|error| error.0)
}

/// What carries out batches, in turns that don't wait: whoever runs it does that in between.
struct DeviceExecutor<I> {
    clock: Clock,
    orders: Receiver<ExecuteMessage<I>>,
    /// No more orders will come.
    closed: bool,
    heap: BinaryHeap<ByEarliest<I>>,
    /// What runs when no order is there.
    idle_work: VecDeque<IdleWork>,
    flow: Flow<I>,
    cache: IoCache,
    /// For whoever watches this thread.
    pulse: Arc<Pulse>,
    /// Until then it looks for orders without sleeping.
    lingers_until: Timestamp,
    /// Orders are given back.
    retired: bool,
}

struct ByEarliest<I>(ExecuteOrder<I>);

impl<I> ByEarliest<I> {
    fn key(&self) -> (Timestamp, ActionId) {
        (self.0.window.earliest, self.0.action)
    }
}

impl<I> PartialEq for ByEarliest<I> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl<I> Eq for ByEarliest<I> {}
impl<I> PartialOrd for ByEarliest<I> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<I> Ord for ByEarliest<I> {
    /// Reversed: the heap gives the largest first, we want the earliest.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.key().cmp(&self.key())
    }
}

impl<I: BatchItem> DeviceExecutor<I> {
    /// Runs it on a thread of its own, until no more orders come and all are carried out.
    fn run(mut self, report: &impl Fn(OrderReport<I>)) {
        loop {
            let wants_at = self.turn(report);
            let now = self.clock.now();
            if wants_at <= now {
                continue;
            }
            if wants_at == Timestamp::NEVER {
                if self.lingers_until != Timestamp::ZERO && now < self.lingers_until {
                    std::thread::yield_now();
                    continue;
                }
                let Ok(message) = self.orders.recv() else { return };
                self.take(message);
                continue;
            }
            let wait = wants_at.since(now);
            match self.orders.recv_timeout(wait.into()) {
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => {}
                // No more orders will come, but those that are here are carried out in their time.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(wait.into()),
            }
        }
    }

    /// With longer batches a wake-up doesn't show, and with fuller ones the next order is there already.
    fn linger_after(&mut self, single: bool, took: Duration, ended_at: Timestamp) {
        let short = single && took < LINGER;
        self.lingers_until = if short { ended_at + LINGER } else { Timestamp::ZERO };
    }

    /// An order whose time has come, if there is one.
    fn due(&mut self) -> Option<ExecuteOrder<I>> {
        let first = self.heap.peek()?;
        let due = self.retired || first.0.window.earliest <= self.clock.now();
        if due { self.heap.pop().map(|first| first.0) } else { None }
    }

    /// Takes in what has come.
    fn look(&mut self) {
        loop {
            match self.orders.try_recv() {
                Ok(message) => self.take(message),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.closed = true;
                    return;
                }
            }
        }
    }

    fn take(&mut self, message: ExecuteMessage<I>) {
        match message {
            ExecuteMessage::Execute(order) => self.heap.push(ByEarliest(order)),
            ExecuteMessage::WhenIdle(work) => self.idle_work.push_back(work),
            ExecuteMessage::Retire => self.retired = true,
        }
    }
}

/// What the engine does here may panic.
fn guarded<T>(work: impl FnOnce() -> Result<T, BatchFailure>) -> Result<T, BatchFailure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(BatchFailure::Panic(said(&*panic))))
}

/// Why a batch has no outputs.
enum BatchFailure {
    /// The engine said so.
    Refused(String),
    /// It said that it can't compute these inputs.
    Unfit(String),
    /// It said that it can't yet.
    NotYet(String),
    /// It took too long and was broken off.
    BrokenOff,
    /// The engine panicked.
    Panic(String),
    /// It said that the device is gone, and whether what ran there had nothing to do with it.
    Lost { reason: String, blameless: bool },
}

/// A panic as a sentence.
fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the engine panicked: {}", text.unwrap_or("no message"))
}
