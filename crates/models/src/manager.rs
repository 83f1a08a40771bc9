//! From the model repository to models in service: starts the thread that brings models up, and what tells it of
//! changes.

use crate::bring_up::{BringUp, STANDS_STILL};
use crate::control::{ControlMode, ModelControl, Order};
use crate::improve::Improved;
use crate::live::LiveCompared;
use crate::poller::Poller;
use crate::precision::PrecisionWishes;
use crate::profiler::ProfilingEffort;
use crate::publisher::Publisher;
use crate::registry::Registry;
use base::Duration;
use controller::Controller;
use engine::Engine;
use repository::{Change, Manifest, Repository, RepositorySource, Sources, Transfer};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// How often buckets are looked at, unless somebody says otherwise.
const DEFAULT_POLL: Duration = Duration::from_secs(15);

/// Whether models are ready soon and better later, unless somebody says otherwise.
pub const READY_SOON: bool = true;

/// What a manager is made with.
pub struct ManagerConfig {
    /// Where models come from.
    pub sources: Vec<RepositorySource>,
    /// Who says which of them are served.
    pub control: ControlMode,
    /// With `ControlMode::Explicit`: the models to publish at the start; `*` is all of them.
    pub publish_at_start: Vec<String>,
    /// How often to look at sources that don't tell when they change.
    pub poll: Duration,
    /// Where prepared models, profiles and downloads are kept; `None` keeps nothing.
    pub cache: Option<PathBuf>,
    /// Which files models may be made of; `None`: any.
    pub manifest: Option<Manifest>,
    /// The runtime.
    pub engine: Arc<dyn Engine>,
    /// The runtime's version and the kind of device: measurements are valid for them alone.
    pub device_kind: String,
    /// What models are computed in whose configuration says nothing.
    pub precision: PrecisionWishes,
    /// The default deadline of requests to models whose configuration gives none.
    pub default_objective: Option<Duration>,
    /// Memory that one execution may take: an input whose size a model leaves open is bounded by it.
    pub execution_bytes: u64,
    /// How much measuring is enough.
    pub effort: ProfilingEffort,
    /// For how long a model may be prepared, measured and warmed up; one that takes longer is left behind, so that
    /// others have their turn.
    pub max_preparing: Duration,
    /// With engines that prepare models soon: whether they are ready soon and better later, or as good as they get at
    /// once.
    pub ready_soon: bool,
    /// Where models are ready soon and better later: how often it is looked whether another batch size would pay.
    pub sizes_every: Duration,
    /// The same: how often it is looked whether inputs of live requests are there to compare a model with its own 32
    /// bits. Until enough agreed that is done every tenth time at most, afterwards every 3600th.
    pub compare_every: Duration,
    /// Whether answers are kept of models whose configuration asks for it.
    pub keeps_answers: bool,
    /// Told of each model as it becomes ready or fails while the server starts.
    pub progress: Box<dyn Fn(&StartProgress) + Send + Sync>,
    /// Told how far downloads are while the server starts.
    pub transfer: Box<dyn Fn(&Transfer) + Send + Sync>,
}

impl ManagerConfig {
    /// For how long a model may be prepared, unless somebody says otherwise.
    pub const MAX_PREPARING: Duration = Duration::from_secs(1800);
    /// How often it is looked whether another batch size would pay, unless somebody says otherwise.
    pub const SIZES_EVERY: Duration = Duration::from_secs(10);
    /// How often it is looked for live requests to compare, unless somebody says otherwise.
    pub const COMPARE_EVERY: Duration = Duration::from_secs(1);

    /// All models of a folder, in that runtime, with nothing kept and nobody told.
    pub fn new(repository: impl Into<PathBuf>, engine: Arc<dyn Engine>) -> Self {
        Self {
            sources: vec![RepositorySource::Folder(repository.into())],
            control: ControlMode::Both,
            publish_at_start: Vec::new(),
            poll: DEFAULT_POLL,
            cache: None,
            manifest: None,
            device_kind: engine.name().to_owned(),
            engine,
            precision: PrecisionWishes::default(),
            default_objective: None,
            execution_bytes: u64::MAX,
            effort: ProfilingEffort::default(),
            max_preparing: Self::MAX_PREPARING,
            ready_soon: READY_SOON,
            sizes_every: Self::SIZES_EVERY,
            compare_every: Self::COMPARE_EVERY,
            keeps_answers: false,
            progress: Box::new(|_| {}),
            transfer: Box::new(|_| {}),
        }
    }
}

/// How far the start is.
#[derive(Clone, Debug)]
pub struct StartProgress {
    /// Versions of models that are done, ready or not.
    pub done: usize,
    /// Versions of models in all.
    pub total: usize,
    /// The one that is worked on, or nothing at the end.
    pub current: String,
}

/// What the manager's thread is told to do.
pub(crate) enum ManagerWork {
    /// Files have changed.
    Changes(Vec<Change>),
    /// A client wants something.
    Order(Order),
    /// A model was brought up once more, with enough time or for another size, or couldn't be.
    Improved(Box<Improved>),
    /// Live requests were compared, or couldn't be.
    LiveCompared(LiveCompared),
    /// It is time to look at models that move to another cell or are about to be replaced.
    Look,
    Stop,
}

/// How the start went: nothing yet, or done, or a reason why nothing can be served.
type Started = Arc<(Mutex<Option<Result<(), String>>>, Condvar)>;

/// Keeps the catalogue in step with the repository and the wishes of clients until it is dropped.
pub struct Manager {
    work: Sender<ManagerWork>,
    thread: Option<JoinHandle<()>>,
    started: Started,
    stopping: Arc<AtomicBool>,
    sources: Arc<Sources>,
}

impl std::fmt::Debug for Manager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Manager")
    }
}

impl Manager {
    /// Looks at the repository and starts to work on what is there. Models become ready one after another.
    pub fn start(controller: Controller, registry: Registry, config: ManagerConfig) -> Result<Self, String> {
        let sources = Sources::open(&config.sources, config.cache.as_deref()).map_err(|error| error.to_string())?;
        let sources = Arc::new(sources);
        let repository = Repository::open(sources.roots()).map_err(|error| error.to_string())?;
        let (work, orders) = mpsc::channel();
        let started = Started::default();
        let stopping = Arc::new(AtomicBool::new(false));
        registry.set_control(ModelControl::new(config.control, work.clone()));
        let (notices, signal, looked_at) = (work.clone(), Arc::clone(&started), Arc::clone(&sources));
        let (control, poll) = (config.control, config.poll);
        let bring_up = BringUp::new(controller, config, Arc::clone(&stopping));
        let pulse = Arc::clone(&bring_up.pulse);
        let mut publisher = Publisher::new(bring_up, registry, repository, Arc::clone(&sources));
        let thread = std::thread::Builder::new().name("models".into()).spawn(move || {
            pulse.step(STANDS_STILL, 0);
            let watchers = publisher.start(notices).map(|watcher| {
                let polls = control.polls() && looked_at.has_buckets();
                (watcher, polls.then(|| Poller::start(looked_at, poll)))
            });
            let outcome = watchers.as_ref().map(|_| ()).map_err(Clone::clone);
            *signal.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
            signal.1.notify_all();
            loop {
                pulse.end();
                let work = next(&orders, publisher.until_look());
                pulse.step(STANDS_STILL, 0);
                match work {
                    ManagerWork::Changes(changes) => publisher.apply(changes),
                    ManagerWork::Order(order) => publisher.carry_out(order),
                    ManagerWork::Improved(improved) => publisher.replace(*improved),
                    ManagerWork::LiveCompared(compared) => publisher.learn_from(compared),
                    ManagerWork::Look => publisher.look(),
                    ManagerWork::Stop => break,
                }
            }
        });
        let thread = Some(thread.map_err(|error| format!("a thread could not be started: {error}"))?);
        Ok(Self { work, thread, started, stopping, sources })
    }

    /// Waits until everything that was in the repository at the start is ready or known to be broken.
    pub fn wait_until_started(&self) {
        let mut done = self.started.0.lock().unwrap_or_else(PoisonError::into_inner);
        while done.is_none() {
            done = self.started.1.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether that is the case; an error says why nothing can be served.
    pub fn started(&self) -> Option<Result<(), String>> {
        self.started.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What to do next: what somebody wants, or, if nobody wants anything for so long, a look at what is under way.
fn next(orders: &Receiver<ManagerWork>, pause: Option<Duration>) -> ManagerWork {
    let work = match pause {
        Some(pause) => orders.recv_timeout(pause.into()),
        None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
    };
    work.unwrap_or_else(|error| match error {
        RecvTimeoutError::Timeout => ManagerWork::Look,
        RecvTimeoutError::Disconnected => ManagerWork::Stop,
    })
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.sources.stop();
        let _ = self.work.send(ManagerWork::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
