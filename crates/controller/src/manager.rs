//! From the model repository to models in service: prepare, measure, put into the catalogue; and again when files change.

use crate::api::{Catalogue, CatalogueEntry, ModelState, ServedModel};
use crate::profiler::{self, Effort};
use crate::{Controller, NewModel};
use base::{Duration, LatencyProfile, ModelId};
use engine::{Emulation, Engine, ModelSource, Prepared};
use repository::{Change, Entry, Found, ProfileKey, ProfileStore, Repository, StoredProfile, WatchOptions, Watcher};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// What a manager is made with.
pub struct ManagerConfig {
    /// The model repository's folder.
    pub repository: PathBuf,
    /// Where prepared models and profiles are kept; `None` keeps nothing.
    pub cache: Option<PathBuf>,
    /// The runtime.
    pub engine: Arc<dyn Engine>,
    /// The runtime's version and the kind of device: measurements are valid for them alone.
    pub device_kind: String,
    /// The default deadline of requests to models whose configuration gives none.
    pub default_objective: Option<Duration>,
    /// How much measuring is enough.
    pub effort: Effort,
    /// Told of each model as it becomes ready or fails while the server starts.
    pub progress: Box<dyn Fn(&Progress) + Send>,
}

/// How far the start is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Versions of models that are done, ready or not.
    pub done: usize,
    /// Versions of models in all.
    pub total: usize,
    /// The one that is worked on next, or nothing at the end.
    pub current: String,
}

/// Keeps the catalogue in step with the repository until it is dropped.
pub struct Manager {
    work: Sender<Work>,
    thread: Option<JoinHandle<()>>,
    watcher: Option<Watcher>,
    started: Arc<(Mutex<bool>, Condvar)>,
    stopping: Arc<AtomicBool>,
}

impl std::fmt::Debug for Manager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Manager")
    }
}

enum Work {
    Changes(Vec<Change>),
    Stop,
}

impl Manager {
    /// Looks at the repository and starts to work on what is there. Models become ready one after another.
    pub fn start(controller: Controller, config: ManagerConfig) -> Result<Self, String> {
        let mut repository = Repository::open(&config.repository).map_err(|error| error.to_string())?;
        let entries = repository.scan().map_err(|error| error.to_string())?;
        if entries.is_empty() {
            let folder = config.repository.display();
            tracing::warn!("{folder} holds no model yet; put one at NAME/1/model.onnx and it will be served");
        }
        let (work, orders) = mpsc::channel();
        let started = Arc::new((Mutex::new(false), Condvar::new()));
        let stopping = Arc::new(AtomicBool::new(false));
        let mut shelf = Shelf { controller, config, versions: BTreeMap::new(), stopping: Arc::clone(&stopping) };
        let (first, signal) = (entries.clone(), Arc::clone(&started));
        let thread = std::thread::Builder::new().name("models".into()).spawn(move || {
            shelf.start(first);
            *signal.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
            signal.1.notify_all();
            while let Ok(Work::Changes(changes)) = orders.recv() {
                shelf.apply(changes);
            }
        });
        let thread = Some(thread.map_err(|error| format!("a thread could not be started: {error}"))?);
        let notices = work.clone();
        let watcher = Watcher::start(repository, entries, WatchOptions::default(), move |changes| {
            // Fails only when the manager is going down.
            let _ = notices.send(Work::Changes(changes));
        });
        let watcher = Some(watcher.map_err(|error| format!("the repository can't be watched: {error}"))?);
        Ok(Self { work, thread, watcher, started, stopping })
    }

    /// Waits until everything that was in the repository at the start is ready or known to be broken.
    pub fn wait_until_started(&self) {
        let mut done = self.started.0.lock().unwrap_or_else(PoisonError::into_inner);
        while !*done {
            done = self.started.1.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether that is the case.
    pub fn is_started(&self) -> bool {
        *self.started.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.watcher = None;
        let _ = self.work.send(Work::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A version in the catalogue, with its number if it is in service.
struct Version {
    entry: Arc<CatalogueEntry>,
    id: Option<ModelId>,
}

/// What the manager's thread works with.
struct Shelf {
    controller: Controller,
    config: ManagerConfig,
    /// By name and version; version 0 stands for a model that is broken as a whole.
    versions: BTreeMap<(String, u64), Version>,
    stopping: Arc<AtomicBool>,
}

impl Shelf {
    fn start(&mut self, entries: Vec<Entry>) {
        for entry in &entries {
            self.set(entry.name(), entry.version().unwrap_or(0), ModelState::Loading, None);
        }
        self.publish();
        let total = entries.len();
        for (done, entry) in entries.into_iter().enumerate() {
            (self.config.progress)(&Progress { done, total, current: entry.name().to_owned() });
            self.take_in(entry);
        }
        (self.config.progress)(&Progress { done: total, total, current: String::new() });
    }

    fn apply(&mut self, changes: Vec<Change>) {
        let names = |wanted: &dyn Fn(&Entry) -> bool| -> BTreeSet<String> {
            let entries = changes.iter().filter_map(|change| match change {
                Change::Added(entry) | Change::Changed(entry) => Some(entry),
                Change::Removed { .. } => None,
            });
            entries.filter(|&entry| wanted(entry)).map(|entry| entry.name().to_owned()).collect()
        };
        // A configuration that can't be read makes the whole model unreadable: versions that are served stay.
        let unreadable = names(&|entry| entry.version().is_none());
        let readable = names(&|entry| entry.version().is_some());
        for change in changes {
            match change {
                Change::Added(entry) | Change::Changed(entry) => self.change(entry),
                Change::Removed { name, version: Some(_) } if unreadable.contains(&name) => {}
                Change::Removed { name, version: Some(version) } => self.remove(&name, version),
                Change::Removed { name, version: None } => {
                    self.remove(&name, 0);
                    if !readable.contains(&name) {
                        self.versions_of(&name).into_iter().for_each(|version| self.remove(&name, version));
                    }
                }
            }
        }
    }

    fn change(&mut self, entry: Entry) {
        let (name, version) = (entry.name().to_owned(), entry.version().unwrap_or(0));
        tracing::info!(model = name, version, "a model was added or changed");
        let serves = |version: &u64| self.versions[&(name.clone(), *version)].id.is_some();
        if let (Entry::Broken(broken), None) = (&entry, entry.version())
            && self.versions_of(&name).iter().any(serves)
        {
            tracing::error!(model = name, "the change can't be served, the model stays as it was: {}", broken.reason);
            return;
        }
        // One that is served already serves until its successor is ready.
        if !self.versions.contains_key(&(name.clone(), version)) {
            self.set(&name, version, ModelState::Loading, None);
            self.publish();
        }
        self.take_in(entry);
    }

    fn remove(&mut self, name: &str, version: u64) {
        if let Some(old) = self.versions.remove(&(name.to_owned(), version)) {
            tracing::info!(model = name, version, "a model was removed");
            self.publish();
            self.retire(&old);
            self.controller.metrics().remove_model(name, version);
        }
    }

    fn versions_of(&self, name: &str) -> Vec<u64> {
        let all = (name.to_owned(), 0)..=(name.to_owned(), u64::MAX);
        self.versions.range(all).map(|((_, version), _)| *version).collect()
    }

    fn take_in(&mut self, entry: Entry) {
        if self.stopping.load(Ordering::Relaxed) {
            return;
        }
        let (name, version) = (entry.name().to_owned(), entry.version().unwrap_or(0));
        let outcome = match &entry {
            // Whatever a model file makes a runtime do, the other models go on.
            Entry::Found(found) => catch_unwind(AssertUnwindSafe(|| self.bring_up(found)))
                .unwrap_or_else(|_| Err("the runtime panicked while it was prepared: the file may be damaged".into())),
            Entry::Broken(broken) => Err(broken.reason.clone()),
        };
        let key = (name.clone(), version);
        match outcome {
            Ok((served, id)) => {
                let old = self.versions.remove(&key);
                self.set(&name, version, ModelState::Ready(served), Some(id));
                self.publish();
                if let Some(old) = old {
                    self.retire(&old);
                }
            }
            Err(reason) if self.versions.get(&key).is_some_and(|old| old.id.is_some()) => {
                tracing::error!(
                    model = name,
                    version,
                    "the change can't be served, the model stays as it was: {reason}"
                );
            }
            Err(reason) => {
                tracing::error!(model = name, version, "the model can't be served: {reason}");
                self.set(&name, version, ModelState::Broken(reason), None);
                self.publish();
            }
        }
    }

    fn retire(&self, old: &Version) {
        if let Some(id) = old.id {
            self.controller.remove_model(id);
        }
    }

    fn set(&mut self, name: &str, version: u64, state: ModelState, id: Option<ModelId>) {
        let entry = Arc::new(CatalogueEntry { name: name.to_owned(), version, state });
        self.versions.insert((name.to_owned(), version), Version { entry, id });
    }

    fn publish(&self) {
        let mut catalogue = Catalogue::default();
        let (mut loading, mut ready, mut broken) = (0, 0, 0);
        for ((name, number), version) in &self.versions {
            match version.entry.state {
                ModelState::Loading => loading += 1,
                ModelState::Ready(_) => ready += 1,
                ModelState::Broken(_) => broken += 1,
            }
            let model = catalogue.models.entry(name.clone()).or_default();
            model.versions.insert(*number, Arc::clone(&version.entry));
        }
        let metrics = self.controller.metrics();
        metrics.models_loading.set(loading);
        metrics.models_ready.set(ready);
        metrics.models_broken.set(broken);
        self.controller.set_catalogue(catalogue);
    }

    /// Prepares and measures a model and puts it into service.
    fn bring_up(&self, found: &Found) -> Result<(ServedModel, ModelId), String> {
        let config = &found.config;
        for warning in &config.warnings {
            tracing::warn!(model = found.name, "{warning}");
        }
        let emulated_sizes = config.batch_sizes(config.max_batch.unwrap_or(16));
        let emulated = config.emulated_profile(&emulated_sizes).transpose().map_err(|error| error.to_string())?;
        let weight_bytes = config.emulation.map_or(0, |emulation| emulation.weight_bytes);
        let emulated = emulated.map(|profile| Emulation { profile, weight_bytes });
        let source = ModelSource {
            name: found.name.clone(),
            file: found.file.clone(),
            cache: self.config.cache.clone(),
            max_batch: config.max_batch,
            emulated,
        };
        let prepared = self.config.engine.prepare(&source).map_err(|error| error.to_string())?;
        self.controller.room_for(prepared.weight_bytes())?;
        let mut signature = prepared.signature().clone();
        let wrong = repository::disagreements(config, &signature);
        if !wrong.is_empty() {
            return Err(wrong.join("; "));
        }
        let sizes = config.batch_sizes(signature.max_batch);
        if signature.max_batch > 0 {
            // More rows than the largest size can't be planned for.
            signature.max_batch = sizes.last().copied().unwrap_or(1);
        }
        let profile = match source.emulated {
            Some(emulation) if self.config.engine.name() == "emulated" => emulation.profile,
            _ => self.profile(found, &*prepared, &sizes)?,
        };
        let objective = config.latency_objective.or(self.config.default_objective);
        let medians: Vec<String> =
            profile.batches().iter().map(|entry| format!("{}: {}", entry.batch, entry.median)).collect();
        let (load, bytes) = (profile.load(), prepared.weight_bytes());
        tracing::info!(model = found.name, version = found.version, %load, weight_bytes = bytes, batches = medians.join(", "), "ready");
        let signature = Arc::new(signature);
        let served = |id| ServedModel {
            id,
            signature: Arc::clone(&signature),
            platform: config.platform.clone().unwrap_or_else(|| format!("{}_onnx", self.config.engine.name())),
            objective,
            metrics: self.controller.metrics().model(&found.name, found.version),
        };
        let id = self.controller.add_model(NewModel {
            name: found.name.clone(),
            version: found.version,
            signature: Arc::clone(&signature),
            prepared,
            profile,
            objective,
        });
        Ok((served(id), id))
    }

    /// The profile from an earlier start, or measured now and kept for the next.
    fn profile(&self, found: &Found, prepared: &dyn Prepared, sizes: &[u32]) -> Result<LatencyProfile, String> {
        let hash = |file| repository::content_hash(file).map_err(|error| format!("{}: {error}", found.file.display()));
        let key = ProfileKey {
            content: hash(&found.file)?,
            engine: self.config.engine.name().to_owned(),
            device: format!("{}{}", self.config.device_kind, profiler::describe(&found.config.profile_inputs)),
            machine: repository::machine(),
            batch_sizes: sizes.to_vec(),
        };
        let store = self.config.cache.as_deref().map(ProfileStore::new);
        if let Some(stored) = store.as_ref().and_then(|store| store.load(&key)) {
            return Ok(stored.profile);
        }
        let given = &found.config.profile_inputs;
        let profile = profiler::measure(&self.controller, prepared, sizes, given, self.config.effort)?;
        if let Some(store) = store {
            store.save(&key, &StoredProfile { profile: profile.clone(), weight_bytes: prepared.weight_bytes() });
        }
        Ok(profile)
    }
}
