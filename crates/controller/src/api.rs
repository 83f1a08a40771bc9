//! What the gateway sees of the controller: a catalogue of models, and a way to ask.

use crate::queueing::Queueing;
use base::{ApplicationId, Duration, ModelId, ModelSignature, Reason, RequestId, Timestamp};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use tokio::sync::oneshot;
use worker::Tensor;

/// A request on its way from the gateway to the controller. The gateway has checked names, types and shapes.
#[derive(Debug)]
pub struct Submission {
    /// Which model.
    pub model: ModelId,
    /// In the signature's order, one for each input.
    pub inputs: Vec<Tensor>,
    /// Rows of the batch dimension; 1 where the model has none.
    pub rows: u32,
    /// When the answer must be there; `Timestamp::NEVER` for batch work.
    pub deadline_at: Timestamp,
    /// As in Triton; 0 is the default level.
    pub priority: u32,
    /// Who sent it.
    pub application: ApplicationId,
    /// How large it is, in elements of a row, where its model leaves that open.
    pub size: Option<u32>,
    /// Where the request's steps are noted, if it is traced.
    pub trace: Option<Arc<telemetry::Trace>>,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Reply>,
}

/// The answer to a request.
#[derive(Debug)]
pub enum Reply {
    /// All outputs, in the signature's order.
    Outputs(Vec<Tensor>),
    /// No outputs, and why.
    Refused(Refusal),
}

/// Why there are no outputs, and what is known beyond the reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// For machines.
    pub reason: Reason,
    /// The earliest deadline that could have been met, where it is known.
    pub earliest_at: Option<Timestamp>,
    /// What the engine said, where it could not compute.
    pub why: String,
}

impl Refusal {
    /// The engine could not compute it, and said why.
    pub(crate) fn failed(why: String) -> Self {
        Self { why, ..Reason::ExecutionFailed.into() }
    }
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Self { reason, earliest_at: None, why: String::new() }
    }
}

/// Every model that the server knows, by name and version. Changes make a new one, with one exception: an entry that is loading is
/// settled where it is, so that a start with n models doesn't make n catalogues of n models.
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
    /// Empty while it is loading.
    settled: OnceLock<ModelState>,
}

/// How far a model is on its way to being served.
#[derive(Debug)]
pub enum ModelState {
    /// Being prepared or profiled.
    Loading,
    /// Ready.
    Ready(ServedModel),
    /// Can't be served, and why.
    Broken(String),
    /// In the repository, but not served: nobody has loaded it, or somebody has unloaded it. Which of them.
    Unloaded(String),
}

static LOADING: ModelState = ModelState::Loading;

impl CatalogueEntry {
    /// One that is being prepared.
    pub(crate) fn loading(name: &str, version: u64) -> Self {
        Self { name: name.to_owned(), version, settled: OnceLock::new() }
    }

    /// One of which it is known what became of it.
    pub(crate) fn settled(name: &str, version: u64, state: ModelState) -> Self {
        Self { name: name.to_owned(), version, settled: OnceLock::from(state) }
    }

    /// Says what became of one that is loading, to everybody who has it. Gives the state back if that was known before.
    pub(crate) fn settle(&self, state: ModelState) -> Result<(), ModelState> {
        self.settled.set(state)
    }

    /// How far it is.
    pub fn state(&self) -> &ModelState {
        self.settled.get().unwrap_or(&LOADING)
    }

    /// What is needed to ask it, when it is ready.
    pub fn serving(&self) -> Option<&ServedModel> {
        match self.state() {
            ModelState::Ready(served) => Some(served),
            ModelState::Loading | ModelState::Broken(_) | ModelState::Unloaded(_) => None,
        }
    }
}

/// A model that can be asked.
#[derive(Clone, Debug)]
pub struct ServedModel {
    /// Its number.
    pub id: ModelId,
    /// What it takes and gives.
    pub signature: Arc<ModelSignature>,
    /// Triton's name for the kind of model, for instance `onnxruntime_onnx`.
    pub platform: String,
    /// Its configuration, with everything filled in that was left out.
    pub config: Arc<wire::proto::ModelConfig>,
    /// The names of the classes of each output, in the signature's order; empty where there are none.
    pub labels: Vec<Vec<String>>,
    /// What its configuration says of requests that wait, if anything.
    pub queueing: Option<Arc<Queueing>>,
    /// The default deadline of a request, counted from its arrival; `None`: batch work unless the request says otherwise.
    pub objective: Option<Duration>,
    /// Its metrics, resolved once.
    pub metrics: telemetry::ModelMetrics,
}

/// A request that was handed over: what the gateway needs to take it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(crate) id: RequestId,
    pub(crate) cell: usize,
}
