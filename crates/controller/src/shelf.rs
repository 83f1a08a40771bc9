//! The models that are there, in which state, and why: what the manager's thread works with.
//!
//! Two parties have a say. The repository's files say what there is; clients say, with loads and unloads, what of it is
//! served, and may bring files and configurations of their own. What a client said holds until a client says otherwise:
//!
//! ```text
//!             unload                        load with files or a configuration, or any load with `explicit`
//!  Follow ──────────────> Unloaded            ─────────────────────────────> Frozen
//!  changes are taken in   changes are listed        changes are ignored
//! ```

use crate::NewModel;
use crate::api::{Catalogue, CatalogueEntry, ModelState};
use crate::bring_up::BringUp;
use crate::control::{ControlError, ControlMode, LoadOrder, Order, OrderKind};
use crate::manager::Progress;
use crate::moves::Moves;
use base::{Duration, ModelId};
use repository::{Change, ModelConfig, Repository, ScanEntry, Sources, WantedModels, WatchOptions, Watcher};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Component, Path};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use tempfile::TempDir;

/// What the manager's thread is told to do.
pub(crate) enum Work {
    /// Files have changed.
    Changes(Vec<Change>),
    /// A client wants something.
    Order(Order),
    /// It is time to look whether a model should go to another cell.
    Balance,
    Stop,
}

/// A version that can be asked.
pub(crate) struct InService {
    pub(crate) id: ModelId,
    /// The files that it was made from.
    source: ScanEntry,
    /// What is needed to bring it into another cell, where there is one.
    pub(crate) again: Option<NewModel>,
}

/// A version in the catalogue.
pub(crate) struct Version {
    pub(crate) entry: Arc<CatalogueEntry>,
    /// If it is in service.
    pub(crate) service: Option<InService>,
}

impl Version {
    fn is_loading(&self) -> bool {
        matches!(self.entry.state(), ModelState::Loading)
    }
}

/// What holds for a model, by its name.
#[derive(Default)]
enum Wish {
    /// Served as the repository has it, whenever that changes.
    #[default]
    Follow,
    /// Served as it was loaded; files that came with the load are here.
    Frozen(#[allow(dead_code, reason = "the folder is removed when this is dropped")] Option<TempDir>),
    /// Not served.
    Unloaded,
}

pub(crate) struct Shelf {
    pub(crate) bring_up: BringUp,
    repository: Repository,
    sources: Arc<Sources>,
    /// By name and version; version 0 stands for a model that is broken as a whole.
    pub(crate) versions: BTreeMap<(String, u64), Version>,
    /// Those that differ from what the mode says.
    wishes: BTreeMap<String, Wish>,
    /// Which models should be in which cell, where there are several.
    pub(crate) moves: Option<Moves>,
}

impl Shelf {
    pub(crate) fn new(bring_up: BringUp, repository: Repository, sources: Arc<Sources>) -> Self {
        let moves = (bring_up.controller.cells() > 1).then(|| Moves::new(bring_up.controller.now()));
        Self { bring_up, repository, sources, versions: BTreeMap::new(), wishes: BTreeMap::new(), moves }
    }

    fn mode(&self) -> ControlMode {
        self.bring_up.config.control
    }

    /// Whether changes of a model's files are taken in.
    fn follows(&self, name: &str) -> bool {
        match self.wishes.get(name) {
            Some(wish) => matches!(wish, Wish::Follow),
            None => self.mode() != ControlMode::Explicit,
        }
    }

    fn is_unloaded(&self, name: &str) -> bool {
        match self.wishes.get(name) {
            Some(wish) => matches!(wish, Wish::Unloaded),
            None => self.mode() == ControlMode::Explicit,
        }
    }

    /// Brings up what is there, and starts to watch it where the mode says so.
    pub(crate) fn start(&mut self, notices: Sender<Work>) -> Result<Option<Watcher>, String> {
        let config = &self.bring_up.config;
        let all = config.load_models.iter().any(|name| name == "*");
        let names: BTreeSet<String> = config.load_models.iter().filter(|name| *name != "*").cloned().collect();
        let wanted =
            if self.mode() == ControlMode::Explicit && !all { WantedModels::Only(names) } else { WantedModels::All };
        if let Err(error) = self.sources.sync(&wanted, Duration::ZERO, &config.transfer) {
            if !self.sources.has_copies() {
                return Err(error.to_string());
            }
            tracing::warn!("{error}; what was copied before is served");
        }
        let entries = self.repository.scan().map_err(|error| error.to_string())?;
        if entries.is_empty() {
            let places: Vec<String> = config.sources.iter().map(ToString::to_string).collect();
            let places = places.join(" and ");
            tracing::warn!("{places} holds no model yet; put one at NAME/1/model.onnx and it will be served");
        }
        let explicit = self.mode() == ControlMode::Explicit;
        let loaded = |entry: &ScanEntry| !explicit || wanted.includes(entry.name());
        self.bring_up_all(entries.iter().filter(|entry| loaded(entry)).cloned().collect(), &entries);
        if let (true, WantedModels::Only(names)) = (explicit, &wanted) {
            for name in names {
                if !self.versions_of(name).is_empty() {
                    continue;
                }
                let reason = "--load-model names it, but it isn't in the model repository".to_owned();
                tracing::error!(model = name, "the model can't be served: {reason}");
                self.set(CatalogueEntry::settled(name, 0, ModelState::Broken(reason)));
            }
            self.publish();
        }
        if self.mode() == ControlMode::None {
            return Ok(None);
        }
        let watched = Repository::open(self.repository.roots()).map_err(|error| error.to_string())?;
        let watcher = Watcher::start(watched, entries, WatchOptions::default(), move |changes| {
            // Fails only when the manager is going down.
            let _ = notices.send(Work::Changes(changes));
        });
        watcher.map(Some).map_err(|error| format!("the repository can't be watched: {error}"))
    }

    fn bring_up_all(&mut self, wanted: Vec<ScanEntry>, all: &[ScanEntry]) {
        for entry in all {
            self.set_unloaded(entry, "not loaded");
        }
        for entry in &wanted {
            self.set_loading(entry);
            if self.mode() == ControlMode::Explicit {
                self.wishes.insert(entry.name().to_owned(), Wish::Frozen(None));
            }
        }
        self.publish();
        let total = wanted.len();
        for (done, entry) in wanted.into_iter().enumerate() {
            (self.bring_up.config.progress)(&Progress { done, total, current: entry.name().to_owned() });
            let _ = self.take_in(entry);
        }
        (self.bring_up.config.progress)(&Progress { done: total, total, current: String::new() });
    }

    /// Takes in what has changed in the repository.
    pub(crate) fn apply(&mut self, changes: Vec<Change>) {
        let (followed, others): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|change| self.follows(name_of(change)));
        self.list(others);
        let names = |wanted: &dyn Fn(&ScanEntry) -> bool| -> BTreeSet<String> {
            let entries = followed.iter().filter_map(|change| match change {
                Change::Added(entry) | Change::Changed(entry) => Some(entry),
                Change::Removed { .. } => None,
            });
            entries.filter(|&entry| wanted(entry)).map(|entry| entry.name().to_owned()).collect()
        };
        // A configuration that can't be read makes the whole model unreadable: versions that are served stay.
        let unreadable = names(&|entry| entry.version().is_none());
        let readable = names(&|entry| entry.version().is_some());
        // All that is new is listed at once: each catalogue is made of all models.
        let new: Vec<&ScanEntry> = (followed.iter())
            .filter_map(|change| match change {
                Change::Added(entry) if !self.versions.contains_key(&key_of(entry)) => Some(entry),
                Change::Added(_) | Change::Changed(_) | Change::Removed { .. } => None,
            })
            .filter(|entry| entry.version().is_some())
            .collect();
        if !new.is_empty() {
            new.into_iter().for_each(|entry| self.set_loading(entry));
            self.publish();
        }
        for change in followed {
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

    /// Keeps the list of models that aren't served up to date.
    fn list(&mut self, changes: Vec<Change>) {
        let mut changed = false;
        for change in changes {
            if !self.is_unloaded(name_of(&change)) {
                continue;
            }
            changed = true;
            match change {
                Change::Added(entry) | Change::Changed(entry) => self.set_unloaded(&entry, "not loaded"),
                Change::Removed { name, version } => drop(self.versions.remove(&(name, version.unwrap_or(0)))),
            }
        }
        if changed {
            self.publish();
        }
    }

    fn change(&mut self, entry: ScanEntry) {
        let (name, version) = (entry.name().to_owned(), entry.version().unwrap_or(0));
        if self.serves(&entry) {
            return;
        }
        tracing::info!(model = name, version, "a model was added or changed");
        let serves = |version: &u64| self.versions[&(name.clone(), *version)].service.is_some();
        if let (ScanEntry::Broken(broken), None) = (&entry, entry.version())
            && self.versions_of(&name).iter().any(serves)
        {
            tracing::error!(model = name, "the change can't be served, the model stays as it was: {}", broken.reason);
            return;
        }
        self.list_loading(&entry);
        let _ = self.take_in(entry);
    }

    /// One that is served already serves until its successor is ready, and one that is loading is listed.
    fn list_loading(&mut self, entry: &ScanEntry) {
        let known = self.versions.get(&key_of(entry));
        if known.is_none_or(|version| version.service.is_none() && !version.is_loading()) {
            self.set_loading(entry);
            self.publish();
        }
    }

    /// Whether exactly this is in service.
    fn serves(&self, entry: &ScanEntry) -> bool {
        let known = self.versions.get(&key_of(entry)).and_then(|version| version.service.as_ref());
        known.is_some_and(|service| service.source == *entry)
    }

    fn remove(&mut self, name: &str, version: u64) {
        if let Some(old) = self.versions.remove(&(name.to_owned(), version)) {
            tracing::info!(model = name, version, "a model was removed");
            self.publish();
            self.retire(&old);
            self.bring_up.controller.metrics().remove_model(name, version);
        }
    }

    fn versions_of(&self, name: &str) -> Vec<u64> {
        let all = (name.to_owned(), 0)..=(name.to_owned(), u64::MAX);
        self.versions.range(all).map(|((_, version), _)| *version).collect()
    }

    /// Brings a version up and puts it into the catalogue; what is served stays if that fails.
    fn take_in(&mut self, entry: ScanEntry) -> Result<(), String> {
        if self.bring_up.stops() {
            return Err("the server is going down".into());
        }
        let (name, version) = (entry.name().to_owned(), entry.version().unwrap_or(0));
        let outcome = match &entry {
            // Whatever a model file makes a runtime do, the other models go on.
            ScanEntry::Found(found) => catch_unwind(AssertUnwindSafe(|| self.bring_up.run(found)))
                .unwrap_or_else(|_| Err("the runtime panicked while it was prepared: the file may be damaged".into())),
            ScanEntry::Broken(broken) => Err(broken.reason.clone()),
        };
        let key = (name.clone(), version);
        match outcome {
            Ok((served, again)) => {
                let service = InService { id: served.id, source: entry, again };
                if let Some(old) = self.settle(key, ModelState::Ready(served), Some(service)) {
                    self.retire(&old);
                }
                Ok(())
            }
            Err(reason) if self.versions.get(&key).is_some_and(|old| old.service.is_some()) => {
                tracing::error!(
                    model = name,
                    version,
                    "the change can't be served, the model stays as it was: {reason}"
                );
                Err(reason)
            }
            Err(reason) => {
                tracing::error!(model = name, version, "the model can't be served: {reason}");
                self.settle(key, ModelState::Broken(reason.clone()), None);
                Err(reason)
            }
        }
    }

    fn retire(&self, old: &Version) {
        if let Some(service) = &old.service {
            self.bring_up.controller.remove_model(service.id);
        }
    }

    /// Says what became of a version: in place if it is listed as loading, else in a new catalogue. Gives what was there in its stead.
    fn settle(&mut self, key: (String, u64), state: ModelState, service: Option<InService>) -> Option<Version> {
        let metrics = self.bring_up.controller.metrics();
        if let Some(listed) = self.versions.get_mut(&key).filter(|version| version.is_loading()) {
            listed.entry.settle(state).expect("only this thread settles entries, and it was loading");
            let counted = if service.is_some() { &metrics.models_ready } else { &metrics.models_broken };
            listed.service = service;
            metrics.models_loading.dec();
            counted.inc();
            return None;
        }
        let entry = Arc::new(CatalogueEntry::settled(&key.0, key.1, state));
        let old = self.versions.insert(key, Version { entry, service });
        self.publish();
        old
    }

    fn set(&mut self, entry: CatalogueEntry) {
        let key = (entry.name.clone(), entry.version);
        self.versions.insert(key, Version { entry: Arc::new(entry), service: None });
    }

    fn set_loading(&mut self, entry: &ScanEntry) {
        let (name, version) = key_of(entry);
        self.set(CatalogueEntry::loading(&name, version));
    }

    fn set_unloaded(&mut self, entry: &ScanEntry, why: &str) {
        let (name, version) = key_of(entry);
        self.set(CatalogueEntry::settled(&name, version, ModelState::Unloaded(why.to_owned())));
    }

    pub(crate) fn publish(&self) {
        let mut catalogue = Catalogue::default();
        let (mut loading, mut ready, mut broken) = (0, 0, 0);
        for ((name, number), version) in &self.versions {
            match version.entry.state() {
                ModelState::Loading => loading += 1,
                ModelState::Ready(_) => ready += 1,
                ModelState::Broken(_) => broken += 1,
                ModelState::Unloaded(_) => {}
            }
            let model = catalogue.models.entry(name.clone()).or_default();
            model.versions.insert(*number, Arc::clone(&version.entry));
        }
        let metrics = self.bring_up.controller.metrics();
        metrics.models_loading.set(loading);
        metrics.models_ready.set(ready);
        metrics.models_broken.set(broken);
        self.bring_up.controller.set_catalogue(catalogue);
    }

    // ---- what clients want ------------------------------------------------------------------------------------------

    /// Does what a client wants and tells it what came of it.
    pub(crate) fn carry_out(&mut self, order: Order) {
        let outcome = if self.bring_up.stops() {
            Err(ControlError::ShuttingDown)
        } else {
            match order.wish {
                OrderKind::Load(order) => self.load(order),
                OrderKind::Unload(model) => self.unload(&model),
            }
        };
        // The client may be gone; what it wanted is done all the same.
        let _ = order.reply.send(outcome);
    }

    fn load(&mut self, order: LoadOrder) -> Result<(), ControlError> {
        let LoadOrder { model, config, files } = order;
        let given = match &config {
            Some(text) => Some(Arc::new(override_config(text, &model)?)),
            None => None,
        };
        let frozen = given.is_some() || self.mode() == ControlMode::Explicit;
        let (entries, folder) = if files.is_empty() {
            self.sync_for(&model)?;
            (self.repository.scan_one(&model, given.as_ref()), None)
        } else {
            let folder = write_files(&model, &files, given.as_ref())?;
            (scan_folder(&folder, &model, given.as_ref())?, Some(folder))
        };
        if entries.is_empty() {
            return Err(ControlError::NotFound(model));
        }
        tracing::info!(model, files = files.len(), configured = config.is_some(), "a client loads a model");
        let kept: BTreeSet<u64> = entries.iter().map(|entry| entry.version().unwrap_or(0)).collect();
        let mut reasons = Vec::new();
        for entry in entries {
            if self.serves(&entry) {
                continue;
            }
            self.list_loading(&entry);
            if let Err(reason) = self.take_in(entry) {
                reasons.push(reason);
            }
        }
        if !reasons.is_empty() {
            if folder.is_some() {
                self.forget_sent(&model);
            }
            return Err(ControlError::Failed { model, reason: reasons.join("; ") });
        }
        for version in self.versions_of(&model).into_iter().filter(|version| !kept.contains(version)) {
            self.remove(&model, version);
        }
        self.wishes.insert(model, if frozen { Wish::Frozen(folder) } else { Wish::Follow });
        Ok(())
    }

    /// Forgets what a client sent and what can't be served: only what the repository has is listed.
    fn forget_sent(&mut self, model: &str) {
        for version in self.versions_of(model) {
            let key = (model.to_owned(), version);
            if self.versions.get(&key).is_some_and(|version| version.service.is_none()) {
                self.versions.remove(&key);
            }
        }
        for entry in &self.repository.scan_one(model, None) {
            if !self.versions.contains_key(&(model.to_owned(), entry.version().unwrap_or(0))) {
                self.set_unloaded(entry, "not loaded");
            }
        }
        self.publish();
    }

    /// Copies the model from its bucket, if it is in one.
    fn sync_for(&self, model: &str) -> Result<(), ControlError> {
        let wanted = if self.mode() == ControlMode::Explicit {
            let served =
                self.versions.iter().filter(|(_, version)| version.service.is_some()).map(|((name, _), _)| name);
            WantedModels::Only(served.cloned().chain([model.to_owned()]).collect())
        } else {
            WantedModels::All
        };
        self.sources
            .sync(&wanted, Duration::ZERO, &|_| {})
            .map_err(|error| ControlError::Failed { model: model.to_owned(), reason: error.to_string() })
    }

    fn unload(&mut self, model: &str) -> Result<(), ControlError> {
        let versions = self.versions_of(model);
        if versions.is_empty() {
            return Err(ControlError::NotFound(model.to_owned()));
        }
        tracing::info!(model, "a client unloads a model");
        let old: Vec<(u64, Version)> = versions
            .into_iter()
            .filter_map(|version| Some((version, self.versions.remove(&(model.to_owned(), version))?)))
            .collect();
        // What is only there because a client sent it isn't there any more.
        for entry in &self.repository.scan_one(model, None) {
            self.set_unloaded(entry, "unloaded");
        }
        self.publish();
        for (version, old) in &old {
            self.retire(old);
            self.bring_up.controller.metrics().remove_model(model, *version);
        }
        self.wishes.insert(model.to_owned(), Wish::Unloaded);
        Ok(())
    }
}

/// Where a version is on the shelf.
fn key_of(entry: &ScanEntry) -> (String, u64) {
    (entry.name().to_owned(), entry.version().unwrap_or(0))
}

fn name_of(change: &Change) -> &str {
    match change {
        Change::Added(entry) | Change::Changed(entry) => entry.name(),
        Change::Removed { name, .. } => name,
    }
}

fn override_config(text: &str, model: &str) -> Result<ModelConfig, ControlError> {
    let origin = Path::new("the request's `config`");
    ModelConfig::parse_json(text, origin, model).map_err(|error| ControlError::Bad(error.to_string()))
}

/// Puts the files that a client sent into a folder of their own.
fn write_files(
    model: &str,
    files: &[(String, bytes::Bytes)],
    config: Option<&Arc<ModelConfig>>,
) -> Result<TempDir, ControlError> {
    if config.is_none() {
        let reason = "files were sent without a configuration: send one with the parameter `config`, {} at least";
        return Err(ControlError::Bad(reason.to_owned()));
    }
    if !repository::is_model_name(model) {
        return Err(ControlError::Bad(format!("{model:?} can't be a model's name: it must be the name of a folder")));
    }
    let failed = |error: std::io::Error| ControlError::Failed {
        model: model.to_owned(),
        reason: format!("its files could not be written: {error}"),
    };
    let folder = tempfile::Builder::new().prefix("punctual-").tempdir().map_err(failed)?;
    for (path, content) in files {
        let inside = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
        if path.is_empty() || !inside || path.contains('\0') {
            let reason = format!("the file {path:?} isn't in the model's folder: name it as in file:1/model.onnx");
            return Err(ControlError::Bad(reason));
        }
        let target = folder.path().join(model).join(path);
        let parent = target.parent().unwrap_or(folder.path());
        std::fs::create_dir_all(parent).and_then(|()| std::fs::write(&target, content)).map_err(failed)?;
    }
    Ok(folder)
}

fn scan_folder(
    folder: &TempDir,
    model: &str,
    config: Option<&Arc<ModelConfig>>,
) -> Result<Vec<ScanEntry>, ControlError> {
    let repository = Repository::open([folder.path()]);
    let mut repository =
        repository.map_err(|error| ControlError::Failed { model: model.to_owned(), reason: error.to_string() })?;
    Ok(repository.scan_one(model, config))
}
