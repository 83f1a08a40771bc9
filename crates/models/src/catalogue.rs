//! Every model that the server knows, and how far each is: what the gateway looks a request's model up in.

use crate::endpoints::Endpoint;
use crate::queueing::QueueLimits;
use crate::sequences::SequenceRules;
use base::{Duration, ModelNumber, ModelSignature};
use controller::{ModelRecord, Tensor};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use telemetry::ModelMetrics;

/// Every model that the server knows, by name and version. Changes make a new one, with one exception: an entry that is
/// being prepared is settled where it is, so that a start with n models doesn't make n catalogues of n models.
#[derive(Debug, Default)]
pub struct Catalogue {
    /// By name.
    pub models: BTreeMap<String, ModelVersions>,
}

/// The versions of one model.
#[derive(Debug, Default, Clone)]
pub struct ModelVersions {
    /// By version number; a request that names none means the highest ready one.
    pub versions: BTreeMap<u64, Arc<CatalogueEntry>>,
}

impl ModelVersions {
    /// The entry that a request without a version means: the highest ready one, or the highest if none is ready.
    pub fn default_version(&self) -> Option<&Arc<CatalogueEntry>> {
        self.versions.values().rev().find(|entry| entry.serving().is_some()).or(self.versions.values().next_back())
    }
}

/// One version of one model.
#[derive(Debug)]
pub struct CatalogueEntry {
    /// The model's name.
    pub name: String,
    /// The version: the name of its folder.
    pub version: u64,
    /// Empty while it is being prepared.
    settled: OnceLock<ModelState>,
}

/// How far a model is on its way to being served.
#[derive(Debug)]
pub enum ModelState {
    /// Being prepared or profiled.
    Preparing,
    /// Ready.
    Ready(ServedModel),
    /// Can't be served, and why.
    Broken(String),
    /// In the repository, but not published: nobody has asked for it, or somebody has withdrawn it. Which of them, in
    /// the words of clients, who load and unload models.
    Unpublished(String),
    /// An endpoint while a model that it needs can't be asked: which, and why.
    Waiting(String),
}

static PREPARING: ModelState = ModelState::Preparing;

impl CatalogueEntry {
    /// One that is being prepared.
    pub(crate) fn preparing(name: &str, version: u64) -> Self {
        Self { name: name.to_owned(), version, settled: OnceLock::new() }
    }

    /// One of which it is known what became of it.
    pub(crate) fn settled(name: &str, version: u64, state: ModelState) -> Self {
        Self { name: name.to_owned(), version, settled: OnceLock::from(state) }
    }

    /// One in that state.
    pub(crate) fn of_state(name: &str, version: u64, state: ModelState) -> Self {
        match state {
            ModelState::Preparing => Self::preparing(name, version),
            state => Self::settled(name, version, state),
        }
    }

    /// Says what became of one that was being prepared, to everybody who has it. Gives the state back if that was known
    /// before.
    #[allow(clippy::result_large_err, reason = "whoever settles a second time panics with it")]
    pub(crate) fn settle(&self, state: ModelState) -> Result<(), ModelState> {
        self.settled.set(state)
    }

    /// How far it is.
    pub fn state(&self) -> &ModelState {
        self.settled.get().unwrap_or(&PREPARING)
    }

    /// What is needed to ask it, when it is ready.
    pub fn serving(&self) -> Option<&ServedModel> {
        match self.state() {
            ModelState::Ready(served) => Some(served),
            ModelState::Preparing | ModelState::Broken(_) | ModelState::Unpublished(_) | ModelState::Waiting(_) => None,
        }
    }
}

/// What can be asked: what it takes and gives, what clients are told besides, and who answers.
#[derive(Clone, Debug)]
pub struct ServedModel {
    /// Who answers.
    pub by: AnsweredBy,
    /// What it takes and gives.
    pub signature: Arc<ModelSignature>,
    /// How many elements an input whose size it leaves open may have, in one request.
    pub max_elements: u64,
    /// The default deadline of a request, counted from its arrival; `None`: batch work unless the request says
    /// otherwise.
    pub objective: Option<Duration>,
    /// Its metrics, resolved once.
    pub metrics: ModelMetrics,
    /// Its configuration, with everything filled in that was left out.
    pub config: Arc<wire::proto::ModelConfig>,
    /// The names of the classes of each output, in the signature's order; empty where there are none.
    pub labels: Arc<[Vec<String>]>,
    /// What inputs are where a request leaves them out, in the signature's order; empty: none may be left out.
    pub defaults: Arc<[Option<Tensor>]>,
    /// What its configuration says of requests that wait, if anything.
    pub queue_limits: Option<Arc<QueueLimits>>,
    /// What holds for sequences of requests, where it is asked in sequences.
    pub sequences: Option<Arc<SequenceRules>>,
    /// The number under which its answers are kept, if they are. Each model that is brought up has one of its own: what
    /// a version answered before its files were changed is never found for it afterwards.
    pub kept_under: Option<u64>,
}

/// Who answers what can be asked.
#[derive(Clone, Debug)]
pub enum AnsweredBy {
    /// A model.
    Model(PublishedModel),
    /// Several, together.
    Endpoint(Arc<Endpoint>),
}

/// A model that the controller knows.
#[derive(Clone, Debug)]
pub struct PublishedModel {
    /// The number to ask it by.
    pub id: ModelNumber,
    /// What is known of it. The controller has the same.
    pub record: Arc<ModelRecord>,
}

impl ServedModel {
    /// The model, if it is one.
    pub fn model(&self) -> Option<&PublishedModel> {
        match &self.by {
            AnsweredBy::Model(model) => Some(model),
            AnsweredBy::Endpoint(_) => None,
        }
    }
}
