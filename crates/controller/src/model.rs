//! The one record of a model: built once, and shared by whoever asks it and whoever runs it.

use base::{Duration, LatencyProfile, ModelSignature};
use scheduler::Fairness;
use std::sync::Arc;
use telemetry::ModelMetrics;
use worker::Padding;

/// What is known of a model that is prepared and measured. Its weights aren't in it: whoever still looks at an old
/// catalogue must not keep them in memory.
#[derive(Debug)]
pub struct ModelRecord {
    /// For messages.
    pub name: String,
    /// Its version.
    pub version: u64,
    /// What it takes and gives.
    pub signature: Arc<ModelSignature>,
    /// How requests of different lengths share a batch, where they do.
    pub padding: Option<Arc<Padding>>,
    /// How many elements an input whose size it leaves open may have, in one request and in one batch.
    pub max_elements: u64,
    /// What it was measured to take, on a device of the slowest kind.
    pub profile: LatencyProfile,
    /// The same on the other kinds of devices, from kind 1 on.
    pub elsewhere: Vec<LatencyProfile>,
    /// What a batch takes whatever its inputs are, where it leaves their sizes open.
    pub fixed: Duration,
    /// The default deadline of a request, counted from its arrival; `None`: batch work unless the request says
    /// otherwise.
    pub objective: Option<Duration>,
    /// What it may have beside other models when devices are short.
    pub fairness: Fairness,
    /// Its metrics, resolved once.
    pub metrics: ModelMetrics,
}

/// A model whose slow runs take so many times as long as its usual ones has inputs that differ, whatever its shapes
/// say.
const VARIES: u64 = 2;

impl ModelRecord {
    /// Whether what its requests take depends on them.
    pub(crate) fn has_uneven_requests(&self) -> bool {
        let open = self.signature.inputs.iter().any(|spec| spec.is_open(self.signature.max_batch));
        let one = self.profile.batches()[0];
        open || one.p99 > one.median * VARIES
    }
}
