//! From a model's files to a published model: prepare, check against the configuration, measure, warm up.
//!
//! With an engine that prepares models soon, a model is brought up twice: at first with what is known and what rules
//! say, so that it can be asked within a moment, and once more with all the time that comparing and measuring takes.

use crate::catalogue::{AnsweredBy, PublishedModel, ServedModel};
use crate::endpoints::Endpoint;
use crate::manager::ManagerConfig;
use crate::profiler::{Measured, ProfilingEffort};
use crate::queueing::QueueLimits;
use crate::samples::{MAX_INPUT_BYTES, Samples};
use crate::sequences::SequenceRules;
use crate::{elements, precision, profiler, reshape, uploads, warmup};
use base::{DeviceId, Duration, LatencyProfile, ModelNumber, ModelSignature, Precision, TensorSpec};
use controller::{Controller, ModelRecord, Padding, Pulse};
use engine::precision::Verdict;
use engine::{Emulation, FileHashes, ModelSource, Prepared, Purpose};
use repository::{FoundModel, Known, ModelConfig, ProfileKey, ProfileStore, ScanEntry, StoredProfile, TensorConfig};
use scheduler::Fairness;
use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead as _, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// A list of labels longer than this is something else.
const MAX_LABEL_BYTES: u64 = 64 << 20;
/// What a dimension that the model leaves open counts as.
const OPEN_SIZE: u64 = 64;
/// For so long the thread that waits for models may be at one piece of work, of which each model and each download has
/// its own bound.
pub(crate) const STANDS_STILL: Duration = Duration::from_secs(24 * 3600);
/// How often it is looked whether a model takes too long.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// So long a server that goes down waits for what is being prepared.
const WHILE_STOPPING: Duration = Duration::from_secs(20);
/// So long a preparation may take to end that was told so, with engines that can end it.
const WHILE_GIVING_UP: Duration = Duration::from_secs(5);
/// So many threads that hang are left behind; then nothing more is prepared. Each may keep a core busy for good.
const MOST_LEFT_BEHIND: usize = 4;

/// So many models are brought up at once at most, by engines that prepare them soon: each has its file in memory.
const AT_ONCE: usize = 6;

/// What is said of a model that wants its answers kept.
const NO_CACHE: &str =
    "response_cache has no effect: the server keeps no answers; start it with --cache-config local,size=BYTES";

/// How much time there is to bring a model up, with engines that make use of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TimeGiven {
    /// It should be ready soon: what isn't known is left to rules, and it is computed in 32 bits, which is right.
    Little,
    /// Precisions are compared, and what computes it is measured.
    Enough,
}

/// What is known of a model from when it was brought up before.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownBefore {
    /// Batch sizes besides the usual ones; `None`: those that were kept at an earlier start.
    pub(crate) added: Option<Vec<u32>>,
    /// What it is computed in.
    pub(crate) verdict: Option<Verdict>,
}

/// A model that was brought up, and may be published.
pub(crate) struct BroughtUp {
    pub(crate) record: Arc<ModelRecord>,
    pub(crate) prepared: Arc<dyn Prepared>,
    labels: Arc<[Vec<String>]>,
    sequences: Option<Arc<SequenceRules>>,
    findings: Findings,
    /// The batch sizes that it has besides the usual ones.
    pub(crate) added: Vec<u32>,
    /// Whether more time would make it faster.
    pub(crate) is_provisional: bool,
}

impl BroughtUp {
    /// What is known of it when it is brought up the next time.
    pub(crate) fn known(&self) -> KnownBefore {
        KnownBefore { added: Some(self.added.clone()), verdict: self.findings.verdict.clone() }
    }
}

/// What models are brought up with.
pub(crate) struct BringUp {
    pub(crate) controller: Controller,
    pub(crate) config: ManagerConfig,
    stopping: Arc<AtomicBool>,
    /// Of the thread that waits for models, one after another.
    pub(crate) pulse: Arc<Pulse>,
    /// What was said of configurations: each sentence is said once.
    said: Mutex<HashSet<String>>,
    hashes: FileHashes,
    /// How many models had their answers kept so far.
    kept_under: AtomicU64,
    /// Threads that took too long, and the models that they were to prepare.
    left_behind: Mutex<Vec<(String, JoinHandle<()>)>>,
}

impl BringUp {
    pub(crate) fn new(controller: Controller, config: ManagerConfig, stopping: Arc<AtomicBool>) -> Self {
        Self {
            pulse: controller.watch_thread("models"),
            controller,
            config,
            stopping,
            said: Mutex::default(),
            hashes: FileHashes::default(),
            kept_under: AtomicU64::new(0),
            left_behind: Mutex::default(),
        }
    }

    /// Whether the server goes down: nothing new is begun then.
    pub(crate) fn stops(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Where results of preparing a model are kept.
    pub(crate) fn cache_of(&self, found: &FoundModel) -> Option<PathBuf> {
        uploads::cache_of(found, self.config.cache.as_deref())
    }

    fn say_once(&self, model: &str, warnings: &[String]) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        for warning in warnings {
            if said.insert(format!("{model} {warning}")) {
                tracing::warn!(model, "{warning}");
            }
        }
    }

    /// How many models are brought up at a time.
    pub(crate) fn at_once(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if self.prepares_soon() { (cores / 2).clamp(2, AT_ONCE) } else { 1 }
    }

    /// Whether models are ready soon and better later.
    pub(crate) fn prepares_soon(&self) -> bool {
        self.config.ready_soon && self.config.engine.prepares_soon()
    }

    /// The same as `run`, whatever is in the repository: what a model's file makes a runtime do doesn't end the thread.
    /// It is done on a thread of its own, which is left behind if it hangs, so that other models have their turn.
    pub(crate) fn run_safely(
        self: &Arc<Self>,
        entry: &ScanEntry,
        time: TimeGiven,
        known: KnownBefore,
    ) -> Result<BroughtUp, String> {
        let found = match entry {
            ScanEntry::Found(found) => found.clone(),
            ScanEntry::Broken(broken) => return Err(broken.reason.clone()),
        };
        // What is done while a device idles waits until it does: for ever, if it must.
        let limit = if time == TimeGiven::Little { self.config.max_preparing } else { Duration::MAX };
        let name = found.name.clone();
        let given_up = Arc::<AtomicBool>::default();
        self.safely(name, limit, &given_up.clone(), move |bring_up| bring_up.run(&found, time, known, given_up))
    }

    /// The same for anything that is done with a model and may take so long. It is told to give up when it isn't
    /// wanted any more.
    pub(crate) fn safely<T: Send + 'static>(
        self: &Arc<Self>,
        name: String,
        limit: Duration,
        given_up: &AtomicBool,
        work: impl FnOnce(&Self) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let hanging = self.hanging();
        if hanging.len() >= MOST_LEFT_BEHIND {
            let hanging = hanging.join(", ");
            return Err(format!("too many others hang while they are prepared ({hanging}): start the server anew"));
        }
        let (sender, outcome) = mpsc::channel();
        let bring_up = Arc::clone(self);
        let thread = std::thread::Builder::new().name("prepare".into()).spawn(move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| work(&bring_up)))
                .unwrap_or_else(|_| Err("the runtime panicked while it was prepared: the file may be damaged".into()));
            // Whoever waited for it may have given it up.
            let _ = sender.send(outcome);
        });
        let thread = thread.map_err(|error| format!("a thread could not be started: {error}"))?;
        if let Some(outcome) = self.wait_for(&outcome, limit, given_up) {
            return outcome;
        }
        given_up.store(true, Ordering::Relaxed);
        // Whatever it says, it took too long.
        match outcome.recv_timeout(WHILE_GIVING_UP.into()) {
            Ok(_) => Err(format!("{}: it was ended", self.overdue())),
            Err(_) => Err(self.leave_behind(name, thread)),
        }
    }

    /// What a thread has made; nothing if it takes too long. It is told to give up where the server goes down. Only
    /// time in which this one is awake counts: a process that was stopped as a whole has nothing to reproach its
    /// threads with.
    fn wait_for<T>(
        &self,
        outcome: &Receiver<Result<T, String>>,
        mut limit: Duration,
        given_up: &AtomicBool,
    ) -> Option<Result<T, String>> {
        let (mut waited, mut is_stopping) = (Duration::ZERO, false);
        while waited <= limit {
            if !is_stopping && self.stops() {
                (is_stopping, limit) = (true, limit.min(waited + WHILE_STOPPING));
                given_up.store(true, Ordering::Relaxed);
            }
            let began = Instant::now();
            match outcome.recv_timeout(LOOK_EVERY.into()) {
                Ok(outcome) => return Some(outcome),
                Err(RecvTimeoutError::Timeout) => waited += Duration::from(began.elapsed()).min(LOOK_EVERY * 2),
                Err(RecvTimeoutError::Disconnected) => return Some(Err("its thread ended without a word".into())),
            }
        }
        None
    }

    /// Goes on without a thread that takes too long for a model; a sentence that says so.
    fn leave_behind(&self, model: String, thread: JoinHandle<()>) -> String {
        self.left_behind.lock().unwrap_or_else(PoisonError::into_inner).push((model, thread));
        let hanging = self.hanging();
        if hanging.len() >= MOST_LEFT_BEHIND {
            self.controller.stays_stuck(format!("models hang while they are prepared: {}", hanging.join(", ")));
        }
        format!("{}: it is left behind", self.overdue())
    }

    /// What is said of a preparation that takes too long.
    fn overdue(&self) -> String {
        let limit = self.config.max_preparing;
        format!("it takes longer than {limit}, the limit of --max-preparing-s, to prepare it")
    }

    /// The models whose threads were left behind and still run.
    fn hanging(&self) -> Vec<String> {
        let mut left = self.left_behind.lock().unwrap_or_else(PoisonError::into_inner);
        left.retain(|(_, thread)| !thread.is_finished());
        left.iter().map(|(model, _)| model.clone()).collect()
    }

    /// Prepares and measures a model.
    fn run(
        &self,
        found: &FoundModel,
        time: TimeGiven,
        known: KnownBefore,
        given_up: Arc<AtomicBool>,
    ) -> Result<BroughtUp, String> {
        let added = known.added.unwrap_or_else(|| self.kept_sizes(found));
        let found = &with_sizes(found, &added);
        let config = &found.config;
        self.say_once(&found.name, &config.warnings);
        if let Some(manifest) = &self.config.manifest {
            manifest.check(&found.folder, &found.name, found.version)?;
        }
        let soon = time == TimeGiven::Little && self.prepares_soon();
        let source = ModelSource { soon, given_up, ..model_source(found, self.cache_of(found))? };
        let (source, verdict) = self.with_precision(found, source, known.verdict);
        // Where it had to be soon, and nothing was known.
        let is_open = soon && verdict.is_none() && source.precision.is_some();
        let (prepared, batching) = self.prepare(found, &source)?;
        // What another engine computes has nothing to do with what was compared.
        let verdict = verdict.filter(|_| prepared.precision().is_some());
        let findings = Findings { batching, verdict };
        let mut signature = prepared.signature().clone();
        let sizes = measurable(batch_sizes(config, &*prepared), &signature, config);
        if signature.max_batch > 0 {
            // More rows than the largest size can't be planned for.
            signature.max_batch = sizes.last().copied().unwrap_or(1);
        }
        self.say_once(&found.name, &not_optional(config, &*prepared));
        let padding = match config.padding.is_empty() {
            true => None,
            false => Some(Arc::new(Padding::new(&signature, &config.padding, &config.lengths)?)),
        };
        let max_elements = elements::most(&signature, config.max_elements, self.config.execution_bytes);
        if config.max_elements.is_some() && max_elements == u64::MAX {
            let ignored = "parameter `max_elements` is ignored: the model leaves no size open";
            self.say_once(&found.name, &[ignored.to_owned()]);
        }
        let (profile, elsewhere, fixed) = match source.emulated {
            Some(emulation) if self.config.engine.name() == "emulated" => {
                let mut shares = self.controller.share_sizes().into_iter().map(|share| emulation.profile_in(share));
                let slowest = shares.next().unwrap_or_else(|| emulation.profile.clone());
                (slowest, shares.collect(), Duration::ZERO)
            }
            _ => self.profiles(found, &*prepared, &sizes)?,
        };
        warmup::run(&self.controller, &*prepared, found)?;
        let labels = labels(found, &signature)?;
        let sequences = match &config.sequences {
            None => None,
            Some(rules) => {
                // What an emulated device pretends may have no file.
                let content = self.content(found).unwrap_or_default();
                Some(Arc::new(SequenceRules::new(found, rules, &signature, content)?))
            }
        };
        let is_provisional = prepared.is_provisional() || is_open && prepared.precision().is_some();
        if let Some(reason) = prepared.not_on_device() {
            log_not_on_device(found, &profile, reason);
        }
        if let Some(end) = prepared.end_on_host() {
            log_end_on_host(found, &profile, end);
        }
        let record = ModelRecord {
            name: found.name.clone(),
            version: found.version,
            signature: Arc::new(signature),
            padding,
            max_elements,
            profile,
            elsewhere,
            fixed,
            objective: config.latency_objective.or(self.config.default_objective),
            fairness: fairness(config),
            metrics: self.controller.metrics().model(&found.name, found.version),
        };
        Ok(BroughtUp { record: Arc::new(record), prepared, labels, sequences, findings, added, is_provisional })
    }

    /// The model in host memory, with the shapes that its configuration shows to clients; and why its first dimension
    /// is a batch or isn't, where that was found out.
    fn prepare(&self, found: &FoundModel, source: &ModelSource) -> Result<(Arc<dyn Prepared>, Option<String>), String> {
        let (prepared, batching) = self.prepare_batch(found, source)?;
        let wrong = repository::disagreements(&found.config, prepared.signature());
        match wrong.is_empty() {
            true => Ok((reshape::with_shapes(prepared, &found.config), batching)),
            false => Err(wrong.join("; ")),
        }
    }

    /// Hash of the model's file.
    pub(crate) fn content(&self, found: &FoundModel) -> Result<String, String> {
        let hash = self.hashes.of(&found.file).map_err(|error| format!("{}: {error}", found.file.display()))?;
        Ok(hash.to_hex().to_string())
    }

    /// Tells the controller of a model.
    pub(crate) fn publish(&self, found: &FoundModel, brought_up: &BroughtUp) -> ServedModel {
        let (record, prepared) = (Arc::clone(&brought_up.record), Arc::clone(&brought_up.prepared));
        let id = self.controller.publish(record, prepared);
        self.served(found, brought_up, id)
    }

    /// A model that the controller knows by that number. What clients are told of it depends on the devices that it may
    /// run on.
    pub(crate) fn served(&self, found: &FoundModel, brought_up: &BroughtUp, id: ModelNumber) -> ServedModel {
        let BroughtUp { record: model, prepared, labels, sequences, findings, .. } = brought_up;
        let devices = self.controller.devices_of(id);
        let longest = model.profile.batches().last().map_or(Duration::ZERO, |batch| batch.p99);
        let config = Arc::new(self.complete(found, (&model.signature, devices), findings, prepared.end_on_host()));
        let queue_limits = queue_limits(&found.config, longest, model.signature.max_batch, devices);
        let (signature, metrics) = (Arc::clone(&model.signature), model.metrics.clone());
        let (max_elements, objective) = (model.max_elements, model.objective);
        let by = AnsweredBy::Model(PublishedModel { id, record: Arc::clone(model) });
        let (labels, defaults, kept_under) = (Arc::clone(labels), prepared.defaults().into(), self.kept_under(found));
        ServedModel {
            by,
            signature,
            max_elements,
            objective,
            metrics,
            config,
            labels,
            defaults,
            queue_limits,
            sequences: sequences.clone(),
            kept_under,
        }
    }

    /// Whether the files of an endpoint are trusted; says what of them is ignored.
    pub(crate) fn check_endpoint(&self, found: &FoundModel) -> Result<(), String> {
        self.say_once(&found.name, &found.config.warnings);
        match &self.config.manifest {
            Some(manifest) => manifest.check(&found.folder, &found.name, found.version),
            None => Ok(()),
        }
    }

    /// An endpoint that can be asked.
    pub(crate) fn serve_endpoint(
        &self,
        found: &FoundModel,
        signature: ModelSignature,
        endpoint: Endpoint,
    ) -> Result<ServedModel, String> {
        self.controller.metrics().asks_others(&found.name, found.version);
        Ok(ServedModel {
            config: Arc::new(repository::complete_endpoint(&found.config, &found.name, &signature)),
            labels: labels(found, &signature)?,
            signature: Arc::new(signature),
            by: AnsweredBy::Endpoint(Arc::new(endpoint)),
            // Its members have bounds of their own.
            max_elements: u64::MAX,
            objective: found.config.latency_objective.or(self.config.default_objective),
            metrics: self.controller.metrics().model(&found.name, found.version),
            defaults: Arc::default(),
            queue_limits: None,
            sequences: None,
            kept_under: self.kept_under(found),
        })
    }

    /// The number under which a model's answers are kept, if they are to be: one that no other has, also if it was
    /// brought up from the same files. An endpoint has another one whenever it is planned, and so with each change of
    /// what it asks.
    fn kept_under(&self, found: &FoundModel) -> Option<u64> {
        if !found.config.response_cache {
            return None;
        }
        if !self.config.keeps_answers {
            self.say_once(&found.name, &[NO_CACHE.to_owned()]);
            return None;
        }
        self.controller.metrics().keeps_answers(&found.name, found.version);
        Some(self.kept_under.fetch_add(1, Ordering::Relaxed))
    }

    /// A model whose clients are told of another verdict, which its metric has too.
    pub(crate) fn with_verdict(&self, found: &FoundModel, served: &ServedModel, verdict: &Verdict) -> ServedModel {
        let Verdict { chosen, .. } = verdict;
        let (metrics, precision) = (self.controller.metrics(), chosen.precision.to_string());
        metrics.computed_in(&found.name, found.version, &precision, chosen.error);
        let mut config = wire::proto::ModelConfig::clone(&served.config);
        repository::note_precision(&mut config, &precision::sentence(verdict));
        ServedModel { config: Arc::new(config), ..served.clone() }
    }

    /// Says what was found out about a model that is served from now on.
    pub(crate) fn announce(&self, found: &FoundModel, brought_up: &BroughtUp) {
        log_ready(found, brought_up);
        if let Some(Verdict { chosen, .. }) = &brought_up.findings.verdict {
            let (metrics, precision) = (self.controller.metrics(), chosen.precision.to_string());
            metrics.computed_in(&found.name, found.version, &precision, chosen.error);
        }
    }

    /// The configuration as clients see it, with everything filled in, of a model on so many devices.
    fn complete(
        &self,
        found: &FoundModel,
        (signature, devices): (&ModelSignature, u32),
        findings: &Findings,
        end_on_host: Option<&str>,
    ) -> wire::proto::ModelConfig {
        let file_name = found.file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let engine = self.config.engine.name();
        let computed_in = findings.verdict.as_ref().map(precision::sentence);
        let (batching, computed_in) = (findings.batching.as_deref(), computed_in.as_deref());
        let (name, file_name) = (&found.name, &file_name);
        let known = Known { name, engine, signature, devices, file_name, batching, computed_in, end_on_host };
        repository::complete(&found.config, &known)
    }

    /// Of the slowest kind of devices and of the others; and what a batch takes whatever its inputs are, on the
    /// slowest.
    fn profiles(
        &self,
        found: &FoundModel,
        prepared: &dyn Prepared,
        sizes: &[u32],
    ) -> Result<(LatencyProfile, Vec<LatencyProfile>, Duration), String> {
        let kinds = self.controller.one_of_each_kind();
        let several = kinds.len() > 1;
        let measure = |place, effort| {
            let (profile, fixed) = self.profile(found, prepared, (sizes, effort), place, several)?;
            Ok::<_, String>((profile.doubted(), fixed))
        };
        let [slowest, others @ ..] = &kinds[..] else { return Err("there is no device".into()) };
        let (first, rest) = if self.controller.divides_cores() {
            self.config.effort.for_cores()
        } else {
            (self.config.effort, self.config.effort)
        };
        let (profile, fixed) = measure(*slowest, first)?;
        let others = others.iter().map(|place| measure(*place, rest).map(|(profile, _)| profile));
        Ok((profile, others.collect::<Result<_, _>>()?, fixed))
    }

    /// A device's profile from an earlier start, or measured now and kept for the next; and what a batch takes whatever
    /// its inputs are.
    fn profile(
        &self,
        found: &FoundModel,
        prepared: &dyn Prepared,
        (sizes, effort): (&[u32], ProfilingEffort),
        place: (usize, DeviceId),
        one_of_several: bool,
    ) -> Result<(LatencyProfile, Duration), String> {
        let memory = self.config.engine.host_memory();
        let samples = Samples::of(found, memory.as_deref());
        let key = ProfileKey {
            content: self.content(found)?,
            engine: self.config.engine.name().to_owned(),
            device: format!(
                "{}{}{}{}{}{}{}{}{}",
                self.config.device_kind,
                if prepared.is_provisional() { ", prepared soon" } else { "" },
                if prepared.not_on_device().is_some() { ", computed on the host" } else { "" },
                if prepared.end_on_host().is_some() { ", its end on the host" } else { "" },
                if one_of_several { format!(", {} in division {}", place.1, place.0) } else { String::new() },
                if memory.is_some() { ", received in its memory" } else { "" },
                samples.describe(),
                shapes(&found.config),
                choices(&found.config, prepared.precision())
            ),
            machine: repository::machine(),
            batch_sizes: sizes.to_vec(),
        };
        let store = self.cache_of(found).as_deref().map(ProfileStore::new);
        if let Some(stored) = store.as_ref().and_then(|store| store.load(&key)) {
            return Ok((stored.profile, stored.fixed));
        }
        let measured = match prepared.guesses_shapes() {
            true => vec![1],
            false => found.config.batch_sizes(prepared.signature().max_batch),
        };
        let Measured { profile, fixed, unmeasured } =
            profiler::measure(&self.controller, place, prepared, (sizes, &measured), samples, effort)?;
        match (unmeasured, store.filter(|_| self.controller.is_quiet_for(place.0))) {
            (Some(reason), _) => {
                let (model, version) = (&found.name, found.version);
                tracing::warn!(model, version, "it is served unmeasured, and its times are a guess at first: {reason}");
            }
            (None, Some(store)) => {
                let weight_bytes = prepared.weight_bytes();
                store.save(&key, &StoredProfile { profile: profile.clone(), fixed, weight_bytes });
            }
            (None, None) => {}
        }
        Ok((profile, fixed))
    }
}

/// What was found out about a model by running it.
struct Findings {
    /// Why its first dimension is a batch or isn't.
    batching: Option<String>,
    /// What it is computed in.
    verdict: Option<Verdict>,
}

fn log_ready(found: &FoundModel, BroughtUp { record, prepared, findings, added, is_provisional, .. }: &BroughtUp) {
    let (profile, weight_bytes) = (&record.profile, prepared.weight_bytes());
    let told = [base::usual_batch_sizes(profile.max_batch()), added.clone()].concat();
    let medians: Vec<String> = profile
        .batches()
        .iter()
        .filter(|entry| told.contains(&entry.batch))
        .map(|entry| format!("{}: {}", entry.batch, entry.median))
        .collect();
    let (model, version, load, batches) = (&found.name, found.version, profile.load(), medians.join(", "));
    let (batch_dimension, verdict) = (findings.batching.as_deref(), findings.verdict.as_ref());
    let precision = verdict.map(|verdict| verdict.chosen.precision).or_else(|| prepared.precision());
    let precision = precision.map(|precision| precision.to_string());
    let better_later = is_provisional.then_some(true);
    let precision_error = verdict.map(|verdict| verdict.chosen.error);
    let too_far_off = verdict.filter(|verdict| !verdict.others.is_empty());
    let too_far_off = too_far_off.map(|verdict| precision::list(&verdict.others));
    let no_faster = verdict.and_then(|verdict| verdict.no_faster).map(|tried| precision::list(&[tried]));
    tracing::info!(
        model,
        version,
        %load,
        weight_bytes,
        batches,
        batch_dimension,
        precision,
        precision_error,
        no_faster,
        too_far_off,
        better_later,
        "ready"
    );
}

/// What it costs that the host computes a model.
fn log_not_on_device(found: &FoundModel, profile: &LatencyProfile, reason: &str) {
    let row = profile.batches().first().map_or(Duration::ZERO, |entry| entry.median);
    tracing::warn!(
        model = found.name,
        version = found.version,
        "it is computed on the CPU, not on the device: {reason}; a row takes {row} of the host's cores, and the device computes nothing else meanwhile"
    );
}

/// What it costs that the host computes a model's end.
fn log_end_on_host(found: &FoundModel, profile: &LatencyProfile, end: &str) {
    let row = profile.batches().first().map_or(Duration::ZERO, |entry| entry.median);
    tracing::info!(
        model = found.name,
        version = found.version,
        "its end is computed on the CPU, in the same execution: {end}; a row takes {row} in all, and the device computes nothing else meanwhile"
    );
}

/// A model with batch sizes besides the usual ones.
fn with_sizes(found: &FoundModel, added: &[u32]) -> FoundModel {
    let mut config = ModelConfig::clone(&found.config);
    config.preferred_batch_sizes.extend(added);
    FoundModel { config: Arc::new(config), ..found.clone() }
}

/// The sizes of batches that are executed.
fn batch_sizes(config: &ModelConfig, prepared: &dyn Prepared) -> Vec<u32> {
    let max_batch = prepared.signature().max_batch;
    if prepared.takes_any_batch() { config.any_batch_sizes(max_batch) } else { config.batch_sizes(max_batch) }
}

/// What holds for requests that wait for a model whose largest batch takes so long, on so many devices.
fn queue_limits(config: &ModelConfig, longest: Duration, max_batch: u32, devices: u32) -> Option<Arc<QueueLimits>> {
    let at_once = max_batch.max(1).saturating_mul(devices);
    config.queueing.as_ref().map(|rules| Arc::new(QueueLimits::new(rules, longest, at_once)))
}

/// What an engine is told of a model.
pub fn model_source(found: &FoundModel, cache: Option<PathBuf>) -> Result<ModelSource, String> {
    let config = &found.config;
    let emulated_sizes = config.any_batch_sizes(config.max_batch.unwrap_or(base::USUAL_MAX_BATCH));
    let emulated = config.emulated_profile(&emulated_sizes).transpose().map_err(|error| error.to_string())?;
    let weight_bytes = config.emulation.map_or(0, |emulation| emulation.weight_bytes);
    Ok(ModelSource {
        name: found.name.clone(),
        file: found.file.clone(),
        part: None,
        cache,
        max_batch: config.max_batch,
        // Of any size: the engine leaves out what the model doesn't take.
        batch_sizes: config.batch_sizes(config.max_batch.unwrap_or(u32::MAX)),
        shapes: own_shapes(config),
        lengths: config.lengths.clone(),
        examples: examples(config),
        shapes_at_most: config.max_shapes,
        precision: None,
        purpose: Purpose::Service,
        soon: false,
        given_up: Arc::default(),
        emulated: emulated.map(|profile| Emulation { profile, weight_bytes }),
    })
}

/// What the configuration runs a model with before it is ready: as many dimensions as it says.
fn examples(config: &ModelConfig) -> Vec<BTreeMap<String, Vec<i64>>> {
    let given = config.profile_inputs.iter().filter_map(|(name, input)| Some((name.clone(), input.dims.clone()?)));
    let given: BTreeMap<_, _> = given.collect();
    let warmup = config.warmup.iter().map(|sample| {
        sample.inputs.iter().map(|(name, input)| (name.clone(), input.dims.clone())).collect::<BTreeMap<_, _>>()
    });
    Some(given).filter(|given| !given.is_empty()).into_iter().chain(warmup).collect()
}

/// What measurements depend on besides the model: the shapes that the configuration narrows.
pub(crate) fn shapes(config: &ModelConfig) -> String {
    config.inputs.iter().map(|input| format!(", {} {:?}", input.name, input.dims)).collect()
}

/// What measurements depend on besides the model, for engines that have a choice: what it is computed in, and the
/// lengths that it is prepared for.
fn choices(config: &ModelConfig, precision: Option<Precision>) -> String {
    let precision = precision.map_or_else(String::new, |precision| format!(", {precision}"));
    let lengths = if config.lengths.is_empty() { String::new() } else { format!(", lengths {:?}", config.lengths) };
    precision + &lengths
}

fn fairness(config: &ModelConfig) -> Fairness {
    let usual = Fairness::default();
    Fairness { weight: config.fair_weight.unwrap_or(usual.weight), floor: config.fair_floor.unwrap_or(usual.floor) }
}

/// The dimensions of inputs as the model itself has them, where the configuration says so.
pub(crate) fn own_shapes(config: &ModelConfig) -> BTreeMap<String, Vec<i64>> {
    let own = |input: &TensorConfig| (input.name.clone(), input.reshape.clone().unwrap_or_else(|| input.dims.clone()));
    config.inputs.iter().map(own).collect()
}

/// The names of each output's classes, where the configuration says which file has them.
fn labels(found: &FoundModel, signature: &ModelSignature) -> Result<Arc<[Vec<String>]>, String> {
    let of_output = |spec: &TensorSpec| {
        let config = found.config.outputs.iter().find(|config| config.name == spec.name);
        let Some(name) = config.and_then(|config| config.labels.as_ref()) else { return Ok(Vec::new()) };
        let file = found.folder.join(name);
        let failed = |error: std::io::Error| {
            format!("label_filename of output {:?}: {} can't be read: {error}", spec.name, file.display())
        };
        let length = std::fs::metadata(&file).map_err(failed)?.len();
        if length > MAX_LABEL_BYTES {
            return Err(format!("{} has {length} bytes: labels have at most {MAX_LABEL_BYTES}", file.display()));
        }
        let lines = BufReader::new(std::fs::File::open(&file).map_err(failed)?).lines();
        lines.collect::<Result<Vec<_>, _>>().map_err(failed)
    };
    signature.outputs.iter().map(of_output).collect()
}

/// What there is to say of inputs that are configured as optional and aren't.
fn not_optional(config: &ModelConfig, prepared: &dyn Prepared) -> Vec<String> {
    let (inputs, defaults) = (&prepared.signature().inputs, prepared.defaults());
    let has_default =
        |name: &str| inputs.iter().zip(&defaults).any(|(spec, value)| spec.name == name && value.is_some());
    let wrong = config.written.input.iter().filter(|input| input.optional && !has_default(&input.name));
    wrong.map(|input| format!("input {:?} isn't optional: the model has no value for it", input.name)).collect()
}

/// Those of a model's batch sizes whose inputs can be made up to measure them; 1 in any case. Requests are smaller than
/// the inputs of the others.
fn measurable(mut sizes: Vec<u32>, signature: &ModelSignature, config: &ModelConfig) -> Vec<u32> {
    let row_bytes = |spec: &base::TensorSpec| {
        let given = config.profile_inputs.get(&spec.name).and_then(|given| given.dims.as_deref());
        let own = spec.dims.get(usize::from(signature.max_batch > 0)..).unwrap_or_default();
        let size = |&dim: &i64| u64::try_from(dim).unwrap_or(OPEN_SIZE);
        let elements = given.unwrap_or(own).iter().map(size).fold(1, u64::saturating_mul);
        elements.saturating_mul(spec.datatype.size().unwrap_or(1) as u64)
    };
    let largest_row = signature.inputs.iter().map(row_bytes).max().unwrap_or(0);
    sizes.retain(|&size| size == 1 || largest_row.saturating_mul(size.into()) <= MAX_INPUT_BYTES as u64);
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{DataType, TensorSpec};

    #[test]
    fn a_large_max_batch_size_is_taken_as_far_as_it_can_be_measured() {
        let sizes = |dims: &[i64], text: &str| {
            let spec = TensorSpec { name: "x".into(), datatype: DataType::Fp32, dims: dims.to_vec() };
            let signature = ModelSignature { inputs: vec![spec], outputs: Vec::new(), max_batch: 65_536 };
            let config = ModelConfig::parse(&format!("max_batch_size: 65536 {text}"), "config.pbtxt".as_ref(), "m");
            let config = config.unwrap();
            measurable(config.batch_sizes(65_536), &signature, &config).last().copied()
        };
        assert_eq!(sizes(&[-1, 13], ""), Some(65_536));
        assert_eq!(sizes(&[-1, 3, 224, 224], ""), Some(256));
        assert_eq!(sizes(&[-1, 1 << 40], ""), Some(1));
        let given = "parameters { key: \"profile_inputs\" value { string_value: \"x=1024\" } }";
        assert_eq!(sizes(&[-1, -1], given), Some(65_536));
    }
}
