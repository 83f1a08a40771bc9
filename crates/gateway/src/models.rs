//! Finding the model that a request names, in a copy of the catalogue that this thread keeps until it is stale.

use base::Reason;
use models::{Catalogue, CatalogueEntry, ModelControl, ModelState, ModelVersions, Registry, ServedModel};
use std::sync::{Arc, Mutex, PoisonError};
use wire::Fault;
use wire::json::ModelMetadata;

/// How many names a refusal lists.
const NAMES_SHOWN: usize = 8;

/// One thread's view of the models.
pub(crate) struct Models {
    registry: Registry,
    /// Only this thread locks it: the lock is never contended.
    cached: Mutex<(u64, Arc<Catalogue>)>,
}

impl Models {
    pub(crate) fn new(registry: Registry) -> Self {
        let generation = registry.generation();
        let cached = Mutex::new((generation, registry.catalogue()));
        Self { registry, cached }
    }

    /// Where clients' orders go; `None` while the server starts.
    pub(crate) fn control(&self) -> Option<&ModelControl> {
        self.registry.control()
    }

    /// A look at all models.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&Catalogue) -> T) -> T {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        // Read before the catalogue: a change in between is seen next time.
        let generation = self.registry.generation();
        if cached.0 != generation {
            *cached = (generation, self.registry.catalogue());
        }
        look(&cached.1)
    }

    /// The version of the model that is meant; `version` is empty for the default one.
    pub(crate) fn find(&self, name: &str, version: &str) -> Result<Arc<CatalogueEntry>, Fault> {
        self.with(|catalogue| {
            let versions = catalogue.models.get(name).ok_or_else(|| unknown_model(name, catalogue))?;
            if version.is_empty() {
                return versions.default_version().cloned().ok_or_else(|| unknown_model(name, catalogue));
            }
            let number = version.parse::<u64>().ok();
            number
                .and_then(|number| versions.versions.get(&number))
                .cloned()
                .ok_or_else(|| unknown_version(name, version, versions))
        })
    }

    /// Every version of every model that can be asked, by name and version.
    pub(crate) fn all_ready(&self) -> Vec<Arc<CatalogueEntry>> {
        self.with(|catalogue| {
            let versions = catalogue.models.values().flat_map(|model| model.versions.values());
            versions.filter(|entry| entry.serving().is_some()).cloned().collect()
        })
    }

    /// The numbers of the versions of a model that can be asked, ascending.
    fn ready_versions(&self, name: &str) -> Vec<u64> {
        self.with(|catalogue| {
            let versions = catalogue.models.get(name).into_iter().flat_map(|versions| versions.versions.values());
            versions.filter(|entry| entry.serving().is_some()).map(|entry| entry.version).collect()
        })
    }

    /// What a model takes and gives, handed to `write`.
    pub(crate) fn describe<T>(
        &self,
        name: &str,
        version: &str,
        write: impl FnOnce(ModelMetadata<'_>) -> T,
    ) -> Result<T, Fault> {
        let entry = self.find(name, version)?;
        let served = serving(&entry)?;
        Ok(write(ModelMetadata {
            name: &entry.name,
            versions: self.ready_versions(name),
            platform: &served.config.platform,
            signature: &served.signature,
        }))
    }
}

/// What is needed to ask a model, or the sentence that says why it can't be asked.
pub(crate) fn serving(entry: &CatalogueEntry) -> Result<&ServedModel, Fault> {
    let (name, version) = (&entry.name, entry.version);
    match entry.state() {
        ModelState::Ready(served) => Ok(served),
        ModelState::Preparing => Err(Fault::new(
            Reason::ModelLoading,
            format!("version {version} of model {name:?} is being prepared: try again in a moment"),
        )),
        ModelState::Broken(why) => {
            Err(Fault::new(Reason::ModelBroken, format!("version {version} of model {name:?} can't be served: {why}")))
        }
        ModelState::Waiting(why) => {
            Err(Fault::new(Reason::ModelUnavailable, format!("the endpoint {name:?} isn't ready: {why}")))
        }
        ModelState::Unpublished(why) => Err(Fault::new(
            Reason::ModelUnavailable,
            format!("model {name:?} is {why}: load it with POST /v2/repository/models/{name}/load"),
        )),
    }
}

fn unknown_model(name: &str, catalogue: &Catalogue) -> Fault {
    let known: Vec<&str> = catalogue.models.keys().map(String::as_str).take(NAMES_SHOWN).collect();
    let more = if catalogue.models.len() > NAMES_SHOWN { ", ..." } else { "" };
    let has = if known.is_empty() { "none".to_owned() } else { format!("{}{more}", known.join(", ")) };
    Fault::new(Reason::ModelNotFound, format!("there is no model {name:?}: this server has {has}"))
}

fn unknown_version(name: &str, version: &str, versions: &ModelVersions) -> Fault {
    let known: Vec<String> = versions.versions.keys().map(u64::to_string).collect();
    let message = format!("there is no version {version:?} of model {name:?}: there is {}", known.join(", "));
    Fault::new(Reason::ModelNotFound, message)
}
