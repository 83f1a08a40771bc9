//! Publishes and withdraws models: which versions are there, in which state, and why. The manager's thread works with
//! it.
//!
//! Two parties have a say. The repository's files say what there is; clients say which of it is published, and may
//! bring files and configurations of their own. What a client said holds until a client says otherwise:
//!
//! ```text
//!            withdraw                    publish with files or a configuration, or any publish with `explicit`
//!  Follow ──────────────> Withdrawn           ─────────────────────────────> Frozen
//!  changes are taken in   changes are listed        changes are ignored
//! ```

mod clients;

use crate::balance::Moves;
use crate::bring_up::{BringUp, BroughtUp, KnownBefore, TimeGiven};
use crate::catalogue::{Catalogue, CatalogueEntry, ModelState, PublishedModel, ServedModel};
use crate::control::ControlMode;
use crate::endpoints::Selections;
use crate::improve::Improvements;
use crate::live::LiveComparisons;
use crate::manager::{ManagerWork, StartProgress};
use crate::progress::StartLines;
use crate::registry::Registry;
use crate::resize::Resizing;
use crate::uploads::{self, Upload};
use base::Duration;
use engine::Prepared;
use repository::{Change, FoundModel, Repository, ScanEntry, Sources, WantedModels, WatchOptions, Watcher};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};

/// A version of a model, by its name and number.
pub(crate) type ModelKey = (String, u64);

/// What only the publisher has of a version that can be asked.
pub(crate) struct Origin {
    /// The files that it was made from.
    pub(crate) files: ScanEntry,
    /// Its weights, in host memory, to bring it into another cell; an endpoint has none.
    pub(crate) prepared: Option<Arc<dyn Prepared>>,
    /// What needn't be found out again.
    pub(crate) known: KnownBefore,
}

/// A model that can be asked, and what only the publisher has of it.
pub(crate) struct PublishedVersion<'a> {
    pub(crate) served: &'a ServedModel,
    pub(crate) model: &'a PublishedModel,
    pub(crate) files: &'a ScanEntry,
    pub(crate) prepared: &'a Arc<dyn Prepared>,
    pub(crate) known: &'a KnownBefore,
}

/// A version in the catalogue.
pub(crate) struct Version {
    pub(crate) entry: Arc<CatalogueEntry>,
    /// If it can be asked, or is an endpoint.
    pub(crate) origin: Option<Origin>,
}

impl Version {
    fn is_preparing(&self) -> bool {
        matches!(self.entry.state(), ModelState::Preparing)
    }

    pub(crate) fn is_published(&self) -> bool {
        self.entry.serving().is_some()
    }

    /// What clients and the publisher have of it, if it is a model that can be asked.
    pub(crate) fn published(&self) -> Option<PublishedVersion<'_>> {
        let served = self.entry.serving()?;
        let Origin { files, prepared, known } = self.origin.as_ref()?;
        Some(PublishedVersion { served, model: served.model()?, files, prepared: prepared.as_ref()?, known })
    }

    /// Clients have this of it from the next catalogue on.
    pub(crate) fn show(&mut self, key: &ModelKey, served: ServedModel) {
        self.entry = Arc::new(CatalogueEntry::settled(&key.0, key.1, ModelState::Ready(served)));
    }

    /// The files of an endpoint, if it is one that is to be served.
    pub(crate) fn endpoint(&self) -> Option<&FoundModel> {
        as_endpoint(&self.origin.as_ref()?.files)
    }
}

/// What holds for a model, by its name.
#[derive(Default)]
enum Wish {
    /// Published as the repository has it, whenever that changes.
    #[default]
    Follow,
    /// Published as a client wanted it; files that it sent are here.
    Frozen(#[allow(dead_code, reason = "the folder is removed when this is dropped")] Option<Upload>),
    /// Not published.
    Withdrawn,
}

/// See the module.
pub(crate) struct Publisher {
    pub(crate) bring_up: Arc<BringUp>,
    pub(crate) registry: Registry,
    repository: Repository,
    sources: Arc<Sources>,
    /// By name and version; version 0 stands for a model that is broken as a whole.
    pub(crate) versions: BTreeMap<ModelKey, Version>,
    /// What endpoints have learnt.
    pub(crate) selections: Selections,
    /// Those that differ from what the mode says.
    wishes: BTreeMap<String, Wish>,
    /// Which models should be in which cell, where there are several.
    pub(crate) moves: Option<Moves>,
    /// Which models would be faster with time, where the engine prepares them soon.
    pub(crate) improvements: Option<Improvements>,
    /// What is known of the rows of batches.
    pub(crate) resizing: Resizing,
    /// What is known of live requests in the precision that they are computed in.
    pub(crate) live: LiveComparisons,
}

impl Publisher {
    pub(crate) fn new(bring_up: BringUp, registry: Registry, repository: Repository, sources: Arc<Sources>) -> Self {
        let moves = (bring_up.controller.cells() > 1).then(|| Moves::new(bring_up.controller.now()));
        let (bring_up, versions) = (Arc::new(bring_up), BTreeMap::new());
        let selections = Selections::new(bring_up.config.cache.clone());
        let now = bring_up.controller.now();
        let (resizing, live) = (Resizing::new(now), LiveComparisons::new(now));
        Self {
            bring_up,
            registry,
            repository,
            sources,
            versions,
            selections,
            wishes: BTreeMap::new(),
            moves,
            improvements: None,
            resizing,
            live,
        }
    }

    /// How long to wait for the next look at what is under way; `None` where nothing is.
    pub(crate) fn until_look(&self) -> Option<Duration> {
        let all = [self.balance_next_at(), self.replace_next_at(), self.resize_next_at(), self.compare_next_at()];
        let next_at = all.into_iter().flatten().min()?;
        Some(next_at.since(self.bring_up.controller.now()))
    }

    /// Goes on with models that move, and with those that are replaced or should be.
    pub(crate) fn look(&mut self) {
        let now = self.bring_up.controller.now();
        if self.balance_next_at().is_some_and(|at| at <= now) {
            self.balance_at(now);
        }
        self.go_on_replacing(now);
        if self.resize_next_at().is_some_and(|at| at <= now) {
            self.resize_at(now);
        }
        if self.compare_next_at().is_some_and(|at| at <= now) {
            self.compare_live_at(now);
        }
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

    fn is_withdrawn(&self, name: &str) -> bool {
        match self.wishes.get(name) {
            Some(wish) => matches!(wish, Wish::Withdrawn),
            None => self.mode() == ControlMode::Explicit,
        }
    }

    /// Publishes what is there, and starts to watch it where the mode says so.
    pub(crate) fn start(&mut self, notices: Sender<ManagerWork>) -> Result<Option<Watcher>, String> {
        uploads::remove_left_over();
        self.improvements = Improvements::start(&self.bring_up, &notices)?;
        let wanted = self.wanted_at_start();
        let entries = self.scan(&wanted)?;
        let explicit = self.mode() == ControlMode::Explicit;
        let asked = asked_by_endpoints(&entries, |name| wanted.includes(name));
        let published = |entry: &ScanEntry| !explicit || wanted.includes(entry.name()) || asked.contains(entry.name());
        self.bring_up_all(entries.iter().filter(|entry| published(entry)).cloned().collect(), &entries);
        if let WantedModels::Only(names) = &wanted {
            self.list_missing(names);
        }
        if self.mode() == ControlMode::None {
            return Ok(None);
        }
        let watched = Repository::open(self.repository.roots()).map_err(|error| error.to_string())?;
        let watcher = Watcher::start(watched, entries, WatchOptions::default(), move |changes| {
            // Fails only when the manager is going down.
            let _ = notices.send(ManagerWork::Changes(changes));
        });
        watcher.map(Some).map_err(|error| format!("the repository can't be watched: {error}"))
    }

    /// What the start needs of the sources.
    fn wanted_at_start(&self) -> WantedModels {
        let names = &self.bring_up.config.publish_at_start;
        if self.mode() != ControlMode::Explicit || names.iter().any(|name| name == "*") {
            return WantedModels::All;
        }
        WantedModels::Only(names.iter().cloned().collect())
    }

    /// Copies what is in buckets, and lists what is there.
    fn scan(&mut self, wanted: &WantedModels) -> Result<Vec<ScanEntry>, String> {
        let config = &self.bring_up.config;
        if let Err(error) = self.sources.sync(wanted, Duration::ZERO, &config.transfer) {
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
        Ok(entries)
    }

    /// Lists the models that were asked for at the start and aren't there.
    fn list_missing(&mut self, names: &BTreeSet<String>) {
        for name in names {
            if !self.versions_of(name).is_empty() {
                continue;
            }
            let reason = "--load-model names it, but it isn't in the model repository".to_owned();
            tracing::error!(model = name, "the model can't be served: {reason}");
            self.set(CatalogueEntry::settled(name, 0, ModelState::Broken(reason)));
        }
        self.update_catalogue();
    }

    fn bring_up_all(&mut self, wanted: Vec<ScanEntry>, all: &[ScanEntry]) {
        for entry in all {
            self.set_unpublished(entry, "not loaded");
        }
        for entry in &wanted {
            match as_endpoint(entry) {
                None => self.set_preparing(entry),
                Some(found) => {
                    let preparing = CatalogueEntry::preparing(&found.name, found.version);
                    self.insert_endpoint(key_of(entry), preparing, entry.clone());
                }
            }
            if self.mode() == ControlMode::Explicit {
                self.wishes.insert(entry.name().to_owned(), Wish::Frozen(None));
            }
        }
        self.update_catalogue();
        self.bring_up_together(wanted.into_iter().filter(|entry| as_endpoint(entry).is_none()).collect());
        self.improve_next();
    }

    /// Brings models up, as many at a time as the engine can, and settles each as soon as it is there.
    fn bring_up_together(&mut self, wanted: Vec<ScanEntry>) {
        let (total, bring_up) = (wanted.len(), Arc::clone(&self.bring_up));
        let (lines, wanted) = (StartLines::new(total), Mutex::new(wanted.into_iter()));
        let next = || wanted.lock().unwrap_or_else(PoisonError::into_inner).next().filter(|_| !bring_up.stops());
        let tell = |done: usize, current: String| (bring_up.config.progress)(&StartProgress { done, total, current });
        let (sender, outcomes) = mpsc::channel();
        let work = |outcomes: Sender<_>| {
            while let Some(entry) = next() {
                lines.begin(entry.name());
                let outcome = bring_up.run_safely(&entry, TimeGiven::Little, KnownBefore::default());
                lines.end(entry.name());
                // Somebody listens until all have ended.
                let _ = outcomes.send((entry, outcome));
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..bring_up.at_once().min(total) {
                let outcomes = sender.clone();
                scope.spawn(|| work(outcomes));
            }
            drop(sender);
            tell(0, String::new());
            for (done, (entry, outcome)) in outcomes.into_iter().enumerate() {
                tell(done + 1, entry.name().to_owned());
                let _ = self.settle_outcome(entry, outcome);
            }
        });
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
            new.into_iter().for_each(|entry| self.set_preparing(entry));
            self.update_catalogue();
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
            if !self.is_withdrawn(name_of(&change)) {
                continue;
            }
            changed = true;
            match change {
                Change::Added(entry) | Change::Changed(entry) => self.set_unpublished(&entry, "not loaded"),
                Change::Removed { name, version } => drop(self.versions.remove(&(name, version.unwrap_or(0)))),
            }
        }
        if changed {
            self.update_catalogue();
        }
    }

    fn change(&mut self, entry: ScanEntry) {
        let (name, version) = (entry.name().to_owned(), entry.version().unwrap_or(0));
        if self.serves(&entry) {
            return;
        }
        tracing::info!(model = name, version, "a model was added or changed");
        let serves = |version: &u64| self.versions[&(name.clone(), *version)].is_published();
        if let (ScanEntry::Broken(broken), None) = (&entry, entry.version())
            && self.versions_of(&name).iter().any(serves)
        {
            tracing::error!(model = name, "the change can't be served, the model stays as it was: {}", broken.reason);
            return;
        }
        self.list_preparing(&entry);
        let _ = self.take_in(entry);
    }

    /// One that is published already serves until its successor is ready, and one that is being prepared is listed.
    fn list_preparing(&mut self, entry: &ScanEntry) {
        let known = self.versions.get(&key_of(entry));
        if known.is_none_or(|version| !version.is_published() && !version.is_preparing()) {
            self.set_preparing(entry);
            self.update_catalogue();
        }
    }

    /// Whether exactly this is published.
    fn serves(&self, entry: &ScanEntry) -> bool {
        let known = self.versions.get(&key_of(entry)).and_then(|version| version.origin.as_ref());
        known.is_some_and(|origin| origin.files == *entry) && self.versions[&key_of(entry)].is_published()
    }

    fn remove(&mut self, name: &str, version: u64) {
        if let Some(old) = self.versions.remove(&(name.to_owned(), version)) {
            tracing::info!(model = name, version, "a model was removed");
            self.update_catalogue();
            self.withdraw(&old);
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
        if let Some(found) = as_endpoint(&entry) {
            return self.take_in_endpoint(found);
        }
        let outcome = self.bring_up.run_safely(&entry, TimeGiven::Little, KnownBefore::default());
        let settled = self.settle_outcome(entry, outcome);
        self.improve_next();
        settled
    }

    /// Publishes a version that was brought up, or says why it can't be.
    fn settle_outcome(&mut self, entry: ScanEntry, outcome: Result<BroughtUp, String>) -> Result<(), String> {
        let key @ (name, version) = &key_of(&entry);
        let (key, version) = (key.clone(), *version);
        match (outcome, &entry) {
            (Ok(brought_up), ScanEntry::Found(found)) => {
                let served = self.bring_up.publish(found, &brought_up);
                self.bring_up.announce(found, &brought_up);
                if brought_up.is_provisional {
                    self.improve_later(key.clone());
                }
                let known = brought_up.known();
                let origin = Origin { files: entry, prepared: Some(brought_up.prepared), known };
                if let Some(old) = self.settle(key, ModelState::Ready(served), Some(origin)) {
                    self.withdraw(&old);
                }
                Ok(())
            }
            (Ok(_), ScanEntry::Broken(_)) => unreachable!("what is broken isn't brought up"),
            (Err(reason), _) if self.versions.get(&key).is_some_and(Version::is_published) => {
                tracing::error!(
                    model = name,
                    version,
                    "the change can't be served, the model stays as it was: {reason}"
                );
                Err(reason)
            }
            (Err(reason), _) => {
                tracing::error!(model = name, version, "the model can't be served: {reason}");
                self.settle(key, ModelState::Broken(reason.clone()), None);
                Err(reason)
            }
        }
    }

    /// What was published isn't asked any more.
    pub(crate) fn withdraw(&self, old: &Version) {
        if let Some(model) = old.entry.serving().and_then(ServedModel::model) {
            self.bring_up.controller.withdraw(model.id);
        }
    }

    /// Lists an endpoint; gives what was there in its stead.
    pub(crate) fn insert_endpoint(
        &mut self,
        key: ModelKey,
        entry: CatalogueEntry,
        files: ScanEntry,
    ) -> Option<Version> {
        let origin = Some(Origin { files, prepared: None, known: KnownBefore::default() });
        self.versions.insert(key, Version { entry: Arc::new(entry), origin })
    }

    /// Says what became of a version: in place if it is listed as being prepared, else in a new catalogue. Gives what
    /// was there in its stead.
    fn settle(&mut self, key: ModelKey, state: ModelState, origin: Option<Origin>) -> Option<Version> {
        let metrics = self.bring_up.controller.metrics();
        if let Some(listed) = self.versions.get_mut(&key).filter(|version| version.is_preparing()) {
            listed.entry.settle(state).expect("only this thread settles entries, and it was being prepared");
            let counted = if origin.is_some() { &metrics.models_ready } else { &metrics.models_broken };
            listed.origin = origin;
            metrics.models_loading.dec();
            counted.inc();
            // Endpoints that waited for it are ready now, or can't be.
            if self.refresh_endpoints() {
                self.update_catalogue();
            }
            return None;
        }
        let entry = Arc::new(CatalogueEntry::settled(&key.0, key.1, state));
        let old = self.versions.insert(key, Version { entry, origin });
        self.update_catalogue();
        old
    }

    fn set(&mut self, entry: CatalogueEntry) {
        let key = (entry.name.clone(), entry.version);
        self.versions.insert(key, Version { entry: Arc::new(entry), origin: None });
    }

    fn set_preparing(&mut self, entry: &ScanEntry) {
        let (name, version) = key_of(entry);
        self.set(CatalogueEntry::preparing(&name, version));
    }

    fn set_unpublished(&mut self, entry: &ScanEntry, why: &str) {
        let (name, version) = key_of(entry);
        self.set(CatalogueEntry::settled(&name, version, ModelState::Unpublished(why.to_owned())));
    }

    /// Shows everybody what is there.
    pub(crate) fn update_catalogue(&mut self) {
        self.refresh_endpoints();
        let mut catalogue = Catalogue::default();
        let (mut preparing, mut ready, mut broken) = (0, 0, 0);
        for ((name, number), version) in &self.versions {
            match version.entry.state() {
                ModelState::Preparing => preparing += 1,
                ModelState::Ready(_) => ready += 1,
                ModelState::Broken(_) | ModelState::Waiting(_) => broken += 1,
                ModelState::Unpublished(_) => {}
            }
            let model = catalogue.models.entry(name.clone()).or_default();
            model.versions.insert(*number, Arc::clone(&version.entry));
        }
        let metrics = self.bring_up.controller.metrics();
        metrics.models_loading.set(preparing);
        metrics.models_ready.set(ready);
        metrics.models_broken.set(broken);
        self.registry.set_catalogue(catalogue);
    }
}

fn key_of(entry: &ScanEntry) -> ModelKey {
    (entry.name().to_owned(), entry.version().unwrap_or(0))
}

/// An endpoint's files.
fn as_endpoint(entry: &ScanEntry) -> Option<&FoundModel> {
    match entry {
        ScanEntry::Found(found) if found.config.endpoint.is_some() => Some(found),
        ScanEntry::Found(_) | ScanEntry::Broken(_) => None,
    }
}

/// The names of all that endpoints ask, whatever is between, beginning with those that are wanted.
fn asked_by_endpoints(entries: &[ScanEntry], wanted: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let kind =
        |name: &str| entries.iter().filter_map(as_endpoint).find(|found| found.name == name)?.config.endpoint.clone();
    let mut asked = BTreeSet::new();
    let mut left: Vec<String> =
        entries.iter().filter_map(as_endpoint).map(|found| found.name.clone()).filter(|name| wanted(name)).collect();
    while let Some(name) = left.pop() {
        for member in kind(&name).iter().flat_map(|kind| kind.members()) {
            if asked.insert(member.model.clone()) {
                left.push(member.model);
            }
        }
    }
    asked
}

fn name_of(change: &Change) -> &str {
    match change {
        Change::Added(entry) | Change::Changed(entry) => entry.name(),
        Change::Removed { name, .. } => name,
    }
}
