//! Whether a model's first dimension is a batch: as its configuration says, or as evidence shows.

use crate::bring_up::{BringUp, own_shapes, shapes};
use crate::rows::{self, Evidence};
use crate::runner::DeviceRunner;
use crate::samples::Samples;
use base::{ModelSignature, TensorSpec, USUAL_MAX_BATCH};
use engine::{ModelSource, Prepared};
use repository::{BatchFinding, FindingKey, FindingStore, FoundModel, ModelConfig, TensorConfig};
use std::sync::Arc;

impl BringUp {
    /// The model as its file has it, with a batch dimension if there is one. The configuration decides, then what was
    /// found at an earlier start, then evidence.
    ///
    /// What exporters call the first dimension is a guess of the engine's, which evidence overrules either way: it is a
    /// few executions, once for each model, and a wrong guess would be wrong answers for ever. Where nothing can be
    /// shown, the guess stands.
    pub(crate) fn prepare_batch(
        &self,
        found: &FoundModel,
        source: &ModelSource,
    ) -> Result<(Arc<dyn Prepared>, Option<String>), String> {
        let prepare = |source: &ModelSource| self.config.engine.prepare(source).map_err(|error| error.to_string());
        let decided = |batches: bool| {
            let max_batch = Some(if batches { USUAL_MAX_BATCH } else { 0 });
            prepare(&ModelSource { max_batch, ..source.clone() })
        };
        if source.max_batch.is_some() || source.emulated.is_some() {
            return Ok((prepare(source)?, None));
        }
        // A file that can't be read is the engine's to explain.
        let key = self.finding_key(found).ok();
        let kept = self.config.cache.as_deref().map(FindingStore::new).zip(key);
        if let Some(finding) = kept.as_ref().and_then(|(store, key)| store.load(key)) {
            return Ok((decided(finding.batches)?, Some(finding.why)));
        }
        let prepared = prepare(source)?;
        let guess = prepared.signature().max_batch > 0;
        let (batches, why) = match self.batch_evidence(found, &*prepared)? {
            None => return Ok((prepared, None)),
            Some(Evidence::Unknown(why)) => return Ok((prepared, Some(why))),
            Some(Evidence::Batch(why)) => (true, why),
            Some(Evidence::NoBatch(why)) => (false, why),
        };
        if let Some((store, key)) = kept {
            store.save(&key, &BatchFinding { batches, why: why.clone() });
        }
        Ok((if batches == guess { prepared } else { decided(batches)? }, Some(why)))
    }

    /// What can be said of a model's first dimension; nothing where each size is prepared, or where the configuration
    /// gives it a size.
    fn batch_evidence(&self, found: &FoundModel, prepared: &dyn Prepared) -> Result<Option<Evidence>, String> {
        let own = prepared.signature();
        let samples = Samples::of(found, None);
        let gives_first = gives_first_dimension(&found.config, own) || samples.give_first_dimension(own);
        if !prepared.takes_any_batch() || own.inputs.is_empty() || gives_first {
            return Ok(None);
        }
        if let Some(why) = own.without_batch() {
            return Ok(Some(Evidence::Unknown(why)));
        }
        let kinds = self.controller.one_of_each_kind();
        let (division, device) = *kinds.first().ok_or("there is no device")?;
        let loaded = prepared.load_in(division, device.0).map_err(|error| error.to_string())?;
        let mut runner = DeviceRunner::new(&self.controller, device, prepared, loaded);
        let signature = with_batch(own, &found.config);
        rows::compare(&mut runner, &signature, samples).map(Some)
    }

    fn finding_key(&self, found: &FoundModel) -> Result<FindingKey, String> {
        Ok(FindingKey {
            content: self.content(found)?,
            engine: format!("{}, {}", self.config.engine.name(), self.config.device_kind),
            inputs: Samples::of(found, None).describe() + &shapes(&found.config),
        })
    }
}

/// Whether the configuration gives the first dimension of a tensor a size: then it isn't a batch.
fn gives_first_dimension(config: &ModelConfig, signature: &ModelSignature) -> bool {
    let listed = |listed: &[TensorConfig], specs: &[TensorSpec]| {
        listed.iter().any(|tensor| {
            let dims = tensor.reshape.as_ref().unwrap_or(&tensor.dims);
            specs.iter().any(|spec| spec.name == tensor.name && spec.dims.len() == dims.len())
        })
    };
    listed(&config.inputs, &signature.inputs) || listed(&config.outputs, &signature.outputs)
}

/// What a model would take if its first dimension were a batch, as narrow as its configuration has it.
fn with_batch(signature: &ModelSignature, config: &ModelConfig) -> ModelSignature {
    let mut signature = ModelSignature { max_batch: USUAL_MAX_BATCH, ..signature.clone() };
    let own = own_shapes(config);
    for spec in &mut signature.inputs {
        if let Some(dims) = own.get(&spec.name).filter(|dims| dims.len() + 1 == spec.dims.len()) {
            spec.dims[1..].copy_from_slice(dims);
        }
    }
    signature
}
