//! A live controller with emulated devices and an engine that fails and panics on demand. Everything is recorded, and
//! run again at the end: the same orders must come out.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]
#![allow(dead_code, reason = "each test needs a part of it")]

use base::{ApplicationId, DataType, Duration, LatencyProfile, ModelNumber, ModelSignature, Reason, Timestamp};
use bytes::Bytes;
use controller::{
    Controller, ControllerConfig, DeviceConfig, Divisions, ExecutionLimits, ModelRecord, PipelineStage, Refusal, Reply,
    ShareFollower, Submission, Tensor, Ticket,
};
use engine::{
    DeviceTimes, EmulatedEngine, EmulatedShares, Emulation, Engine, EngineError, Inputs, Loaded, ModelSource, Prepared,
    Sink, Staged,
};
use planner::shares::{DIVISIONS, Interference, SIZES, SLOTS};
use recording::{Header, Limits, Recorder};
use scheduler::PolicyKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;
use telemetry::Metrics;
use tokio::sync::oneshot;

pub const PAGE: u64 = 1 << 20;
pub const MODEL_PAGES: u32 = 4;
pub const LARGEST_BATCH: u32 = 2;
pub const WIDTH: u32 = 3;

/// The record of a first version, without an objective.
pub fn record_of(prepared: &dyn Prepared, name: &str, profile: LatencyProfile, metrics: &Metrics) -> Arc<ModelRecord> {
    Arc::new(ModelRecord {
        name: name.into(),
        version: 1,
        signature: Arc::new(prepared.signature().clone()),
        padding: None,
        max_elements: u64::MAX,
        profile,
        elsewhere: Vec::new(),
        fixed: Duration::ZERO,
        objective: None,
        fairness: scheduler::Fairness::default(),
        metrics: metrics.model(name, 1),
    })
}

/// What goes wrong, and what was tried.
#[derive(Default)]
pub struct Faults {
    pub execution_panics: AtomicBool,
    /// The next execution finds that its device is gone.
    pub is_gone: AtomicBool,
    /// The next execution loses its device, because of somebody else if the other is set, too.
    pub loses: AtomicBool,
    pub blameless: AtomicBool,
    /// The next load takes its device along.
    pub load_loses: AtomicBool,
    /// Executions have to wait for something.
    pub not_yet: AtomicBool,
    /// Executions are refused for their inputs.
    pub unfit: AtomicBool,
    pub load_panics: AtomicBool,
    pub load_fails: AtomicBool,
    pub unload_panics: AtomicBool,
    /// Unloads get no further.
    pub holds_unloads: AtomicBool,
    /// Loads fail on all devices but the first.
    pub load_fails_elsewhere: AtomicBool,
    pub loads: AtomicU32,
    /// Whoever drives and wants to load it gets no further ...
    pub holds_the_driver: AtomicBool,
    /// ... and is there.
    pub driver_is_held: AtomicBool,
    /// It takes the same however its device is divided.
    pub is_indivisible: AtomicBool,
}

/// An emulated model with faults.
struct Faulty {
    emulated: Arc<dyn Prepared>,
    faults: Arc<Faults>,
}

impl Prepared for Faulty {
    fn signature(&self) -> &ModelSignature {
        self.emulated.signature()
    }

    fn weight_bytes(&self) -> u64 {
        until("the driver to be let go", || {
            let held = self.faults.holds_the_driver.load(Ordering::Relaxed);
            self.faults.driver_is_held.fetch_or(held, Ordering::Relaxed);
            (!held).then_some(())
        });
        self.emulated.weight_bytes()
    }

    fn is_divisible(&self) -> bool {
        !self.faults.is_indivisible.load(Ordering::Relaxed)
    }

    fn load(&self, device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        self.faults.loads.fetch_add(1, Ordering::Relaxed);
        assert!(!self.faults.load_panics.load(Ordering::Relaxed), "a load that was told to");
        if self.faults.load_loses.swap(false, Ordering::Relaxed) {
            return Err(EngineError::Lost { reason: "its process has ended".into(), blameless: false });
        }
        let elsewhere = device > 0 && self.faults.load_fails_elsewhere.load(Ordering::Relaxed);
        if elsewhere || self.faults.load_fails.load(Ordering::Relaxed) {
            return Err(EngineError::Load("the weights are torn".into()));
        }
        let loaded = self.emulated.load(device)?;
        Ok(Box::new(FaultyOnDevice { loaded, faults: Arc::clone(&self.faults) }))
    }
}

struct FaultyOnDevice {
    loaded: Box<dyn Loaded>,
    faults: Arc<Faults>,
}

impl Drop for FaultyOnDevice {
    fn drop(&mut self) {
        until("unloads to be let go", || (!self.faults.holds_unloads.load(Ordering::Relaxed)).then_some(()));
        assert!(!self.faults.unload_panics.load(Ordering::Relaxed), "an unload that was told to");
    }
}

impl Loaded for FaultyOnDevice {
    /// At once.
    fn there_at(&self) -> Option<Instant> {
        None
    }

    fn stage(&mut self, inputs: &mut dyn Inputs) -> Result<Box<dyn Staged>, EngineError> {
        assert!(!self.faults.execution_panics.load(Ordering::Relaxed), "an execution that was told to");
        if self.faults.is_gone.swap(false, Ordering::Relaxed) {
            return Err(EngineError::Lost { reason: "its process has ended".into(), blameless: false });
        }
        if self.faults.loses.swap(false, Ordering::Relaxed) {
            return Ok(Box::new(LostBatch { blameless: self.faults.blameless.load(Ordering::Relaxed) }));
        }
        if self.faults.not_yet.load(Ordering::Relaxed) {
            return Err(EngineError::NotYet("it is being prepared".into()));
        }
        if self.faults.unfit.load(Ordering::Relaxed) {
            return Err(EngineError::Unfit("5 x 3 by 4 x 2 has no product".into()));
        }
        self.loaded.stage(inputs)
    }
}

/// An emulated engine that takes its time for another division.
struct Readying {
    engine: EmulatedEngine,
    is_ready: Arc<AtomicBool>,
}

impl Engine for Readying {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn prepare(&self, source: &ModelSource) -> Result<Arc<dyn Prepared>, EngineError> {
        self.engine.prepare(source)
    }

    fn divide(&self, device: u32, division: usize) {
        self.engine.divide(device, division);
    }

    fn is_ready_for(&self, _device: u32, _division: usize) -> bool {
        self.is_ready.load(Ordering::Relaxed)
    }
}

/// A batch whose device is lost as soon as it starts.
struct LostBatch {
    blameless: bool,
}

impl Staged for LostBatch {
    fn blocks(&self) -> bool {
        true
    }

    fn start(&mut self, _inputs: &mut dyn Inputs) -> Result<(), EngineError> {
        Err(EngineError::Lost { reason: "its process has ended".into(), blameless: self.blameless })
    }

    fn is_computed(&mut self) -> Result<bool, EngineError> {
        Ok(true)
    }

    fn due_at(&self) -> Option<Instant> {
        None
    }

    fn has_arrived(&mut self) -> Result<bool, EngineError> {
        Ok(true)
    }

    fn finish(&mut self, _sink: &mut Sink<'_>) -> Result<DeviceTimes, EngineError> {
        unreachable!("it doesn't start")
    }
}

pub struct TestServer {
    pub controller: Controller,
    metrics: Metrics,
    engine: EmulatedEngine,
    cells: u32,
    folder: tempfile::TempDir,
}

impl TestServer {
    pub fn new(policy: PolicyKind, devices: u32, pages: u32) -> Self {
        Self::with_cells(1, policy, devices, pages)
    }

    /// So many GPUs that divide themselves, and who says how.
    pub fn with_shares(cells: u32, gpus: u32, pages: u32) -> (Self, ShareFollower) {
        Self::with_shares_and_gap(cells, gpus, pages, None)
    }

    /// The same where plans count that devices idle between batches, for so many seconds until that is measured.
    pub fn with_shares_and_gap(cells: u32, gpus: u32, pages: u32, gap: Option<f64>) -> (Self, ShareFollower) {
        let part = |shares: &[u32], place: usize| f64::from(shares.get(place).copied().unwrap_or(0)) / 100.0;
        let division = |shares: &&[u32]| (0..SLOTS).map(|place| part(shares, place)).collect();
        let divisions: Vec<Vec<f64>> = DIVISIONS.iter().map(division).collect();
        let devices = gpus * SLOTS as u32;
        let kind = |share: f64| SIZES.iter().take_while(|&&size| f64::from(size) < 100.0 * share - 1e-6).count() as u32;
        let kinds =
            divisions.iter().map(|shares| (0..devices as usize).map(|device| kind(shares[device % SLOTS])).collect());
        let mut server = Self::start(cells, PolicyKind::Punctual, (devices, SLOTS as u32), pages);
        server.engine =
            EmulatedEngine::new(WIDTH).with_shares(EmulatedShares::new(devices, &divisions, Interference::H200));
        let (engine, kinds) = (Arc::new(server.engine.clone()), kinds.collect());
        server.controller.set_divisions(Divisions::new(engine, divisions, kinds));
        let follower = server.controller.follow_shares(gap).unwrap();
        (server, follower)
    }

    /// So many cores that divide themselves, and who says how. The engine is ready for all of them together when that
    /// is set.
    pub fn with_cores(cores: u32, pages: u32, is_ready: &Arc<AtomicBool>) -> (Self, ShareFollower) {
        let wide = (0..cores).map(|core| if core == 0 { 1.0 } else { 0.0 }).collect();
        let divisions = vec![vec![1.0 / f64::from(cores); cores as usize], wide];
        let kinds = vec![vec![0; cores as usize], (0..cores).map(|core| u32::from(core == 0)).collect()];
        let mut server = Self::start(1, PolicyKind::Punctual, (cores, cores), pages);
        let shares = EmulatedShares::new(cores, &divisions, Interference::NONE);
        server.engine = EmulatedEngine::new(WIDTH).with_shares(shares);
        let engine = Arc::new(Readying { engine: server.engine.clone(), is_ready: Arc::clone(is_ready) });
        server.controller.set_divisions(Divisions::new(engine, divisions, kinds));
        let follower = server.controller.follow_cores().unwrap();
        (server, follower)
    }

    /// Models come to the cells in turn, as long as none goes.
    pub fn with_cells(cells: u32, policy: PolicyKind, devices: u32, pages: u32) -> Self {
        Self::start(cells, policy, (devices, 1), pages)
    }

    /// So many devices, of which so many in a row belong together.
    fn start(cells: u32, policy: PolicyKind, (devices, together): (u32, u32), pages: u32) -> Self {
        let device = |index| DeviceConfig {
            name: format!("emulated:{index}"),
            index,
            pages,
            pin: None,
            kind: 0,
            only_waits: false,
        };
        let metrics = Metrics::new();
        let config = ControllerConfig {
            online_profile_share: 0.0,
            limits: ExecutionLimits::default(),
            // Orders ahead of time, so that a device that breaks has some to give back.
            scheduler: scheduler::Config { policy, ..scheduler::Config::clockwork() },
            max_requests: 4096,
            page_bytes: PAGE,
            cells: controller::deal((0..devices).map(device).collect(), together, cells).unwrap(),
        };
        let folder = tempfile::tempdir().unwrap();
        let (max_requests, scheduler) = (config.max_requests, config.scheduler.clone());
        let header = Header { version: "test".into(), recorded_at: 0, max_requests, config: scheduler };
        let recorder = |cell| Recorder::create(&recording(&folder, cell), &header, Limits::default()).unwrap();
        let recorders = (0..cells).map(recorder).collect();
        let controller = Controller::start_recorded(config, recorders, metrics.clone()).unwrap();
        Self { controller, metrics, engine: EmulatedEngine::new(WIDTH), cells, folder }
    }

    /// A model whose batches take 2 ms and more.
    pub fn model(&self, name: &str) -> (ModelNumber, Arc<Faults>) {
        let millis = Duration::from_millis;
        self.model_with(name, LatencyProfile::linear(millis(1), millis(1), &[1, LARGEST_BATCH], millis(1)).unwrap())
    }

    /// A model whose batches take so long on a whole device.
    pub fn model_with(&self, name: &str, profile: LatencyProfile) -> (ModelNumber, Arc<Faults>) {
        let emulation = Emulation { profile, weight_bytes: u64::from(MODEL_PAGES) * PAGE };
        let profiles = self.controller.share_sizes().into_iter().map(|share| emulation.profile_in(share)).collect();
        self.model_known_as(name, emulation, profiles)
    }

    /// The same where something else is known of it, on the smallest share first.
    pub fn model_known_as(
        &self,
        name: &str,
        emulation: Emulation,
        mut profiles: Vec<LatencyProfile>,
    ) -> (ModelNumber, Arc<Faults>) {
        let (profile, elsewhere) = (profiles.remove(0), profiles);
        let emulated = Some(emulation);
        let source = ModelSource { name: name.into(), file: name.into(), emulated, ..ModelSource::default() };
        let emulated = self.engine.prepare(&source).unwrap();
        let faults = Arc::<Faults>::default();
        let prepared = Arc::new(Faulty { emulated, faults: Arc::clone(&faults) });
        let record = Arc::into_inner(record_of(&*prepared, name, profile, &self.metrics)).unwrap();
        (self.controller.publish(Arc::new(ModelRecord { elsewhere, ..record }), prepared), faults)
    }

    /// Asks for a full batch: no policy has a reason to let it wait.
    pub fn ask(&self, model: ModelNumber) -> oneshot::Receiver<Reply> {
        self.submit(model, LARGEST_BATCH, self.controller.now() + Duration::from_secs(600)).1
    }

    /// Asks for something. The ticket is there unless the server takes nothing any more.
    pub fn submit(
        &self,
        model: ModelNumber,
        rows: u32,
        deadline_at: Timestamp,
    ) -> (Option<Ticket>, oneshot::Receiver<Reply>) {
        let handed_over = self.hand_over(model, rows, deadline_at, 0);
        self.controller.drive();
        handed_over
    }

    /// The same, without letting anybody look at it yet.
    pub fn hand_over(
        &self,
        model: ModelNumber,
        rows: u32,
        deadline_at: Timestamp,
        priority: u32,
    ) -> (Option<Ticket>, oneshot::Receiver<Reply>) {
        let (submission, answer) = submission(model, rows, deadline_at, priority);
        (self.controller.submit(submission), answer)
    }

    /// Asks for a call of a stage, of a full batch.
    pub fn ask_stage(&self, model: ModelNumber, stage: PipelineStage) -> oneshot::Receiver<Reply> {
        self.call_stage(model, stage, self.controller.now() + Duration::from_secs(600))
    }

    /// The same, with a deadline.
    pub fn call_stage(
        &self,
        model: ModelNumber,
        stage: PipelineStage,
        deadline_at: Timestamp,
    ) -> oneshot::Receiver<Reply> {
        let (submission, answer) = submission(model, LARGEST_BATCH, deadline_at, 0);
        self.controller.submit_stage(submission, stage);
        self.controller.drive();
        answer
    }

    pub fn answer(&self, model: ModelNumber) -> Reply {
        wait(self.ask(model))
    }

    /// Asks until there is a device again.
    pub fn answer_with_patience(&self, model: ModelNumber) -> Reply {
        until("a device", || {
            Some(self.answer(model))
                .filter(|reply| !matches!(reply, Reply::Refused(Refusal { reason: Reason::NoDevice, .. })))
        })
    }

    pub fn losses(&self) -> u32 {
        self.sum("punctual_device_losses_total{")
    }

    pub fn violations(&self) -> u32 {
        self.sum("punctual_invariant_violations_total{")
    }

    pub fn sum(&self, family: &str) -> u32 {
        let text = self.metrics.render();
        let lines = text.lines().filter(|line| line.starts_with(family));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u32>().unwrap()).sum()
    }
}

impl TestServer {
    /// Ends the server; what its first cell recorded.
    pub fn stop(&self) -> PathBuf {
        self.controller.stop();
        self.recording(0)
    }

    pub fn recording(&self, cell: u32) -> PathBuf {
        recording(&self.folder, cell)
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop();
        if std::thread::panicking() {
            return;
        }
        for cell in 0..self.cells {
            let replay = sim::replay(&self.recording(cell), &mut |_, _| {}).unwrap();
            assert!(replay.is_good(), "{replay:#?}");
            assert_eq!(replay.end.unwrap().ending, recording::Ending::Stopped);
            assert_eq!(replay.end.unwrap().fingerprint, replay.fingerprint);
        }
    }
}

fn submission(
    model: ModelNumber,
    rows: u32,
    deadline_at: Timestamp,
    priority: u32,
) -> (Submission, oneshot::Receiver<Reply>) {
    let (reply, answer) = oneshot::channel();
    let data = Bytes::from(vec![0; (rows * WIDTH) as usize * 4]);
    let shape = vec![i64::from(rows), i64::from(WIDTH)];
    let inputs = vec![Tensor { datatype: DataType::Fp32, shape, data }];
    let application = ApplicationId::DEFAULT;
    let (size, trace, account) = (None, None, None);
    (Submission { model, inputs, rows, deadline_at, priority, application, size, trace, account, reply }, answer)
}

fn recording(folder: &tempfile::TempDir, cell: u32) -> PathBuf {
    folder.path().join(format!("events.cell{cell}"))
}

pub fn wait(answer: oneshot::Receiver<Reply>) -> Reply {
    answer.blocking_recv().expect("every request gets an answer (P1)")
}

/// Looks again and again until there is something, for two minutes at most: what never comes fails a test and doesn't
/// hang it.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(120);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(std::time::Instant::now() < patience, "waited for {what}");
        std::thread::yield_now();
    }
}
