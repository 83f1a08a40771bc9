//! Whether a model's first dimension is a batch: as its configuration says, or as evidence shows.

use crate::bring_up::{BringUp, own_shapes, shapes};
use crate::rows::{self, Evidence};
use crate::runner::{DeviceRunner, HostRunner};
use crate::samples::Samples;
use base::{ModelSignature, TensorSpec, USUAL_MAX_BATCH};
use engine::{Engine, ModelSource, Prepared};
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
        let decided = |batches: bool| {
            let max_batch = Some(if batches { USUAL_MAX_BATCH } else { 0 });
            self.prepare_as(&ModelSource { max_batch, ..source.clone() })
        };
        if source.max_batch.is_some() || source.emulated.is_some() {
            return Ok((self.prepare_as(source)?, None));
        }
        // A file that can't be read is the engine's to explain.
        let key = self.finding_key(found).ok();
        let kept = self.cache_of(found).as_deref().map(FindingStore::<BatchFinding>::new).zip(key);
        if let Some(finding) = kept.as_ref().and_then(|(store, key)| store.load(key)) {
            return Ok((decided(finding.batches)?, Some(finding.why)));
        }
        let (prepared, evidence) = self.guess_and_evidence(found, source)?;
        let (batches, why) = match evidence {
            None => return Ok((prepared?, None)),
            Some(Evidence::Unknown(why)) => return Ok((prepared?, Some(why))),
            Some(Evidence::Batch(why)) => (true, why),
            Some(Evidence::NoBatch(why)) => (false, why),
        };
        if let Some((store, key)) = kept {
            store.save(&key, &BatchFinding { batches, why: why.clone() });
        }
        let guessed_right = prepared.as_ref().is_ok_and(|prepared| (prepared.signature().max_batch > 0) == batches);
        Ok((if guessed_right { prepared? } else { decided(batches)? }, Some(why)))
    }

    fn prepare_as(&self, source: &ModelSource) -> Result<Arc<dyn Prepared>, String> {
        self.config.engine.prepare(source).map_err(|error| error.to_string())
    }

    /// The model as the engine guesses it, and evidence: of the engine itself, or of its reference, which is found
    /// meanwhile.
    #[expect(clippy::type_complexity, reason = "two results of one function")]
    fn guess_and_evidence(
        &self,
        found: &FoundModel,
        source: &ModelSource,
    ) -> Result<(Result<Arc<dyn Prepared>, String>, Option<Evidence>), String> {
        let Some(reference) = self.config.engine.reference() else {
            let prepared = self.prepare_as(source)?;
            let evidence = self.evidence_on_device(found, &*prepared)?;
            return Ok((Ok(prepared), evidence));
        };
        std::thread::scope(|scope| {
            let evidence = scope.spawn(|| evidence_on_host(found, source, &*reference));
            let prepared = self.prepare_as(source);
            let evidence = evidence.join().map_err(|_| "the engine panicked")??;
            Ok((prepared, evidence))
        })
    }

    /// What runs on a device show of a model's first dimension; nothing where each size is prepared.
    fn evidence_on_device(&self, found: &FoundModel, prepared: &dyn Prepared) -> Result<Option<Evidence>, String> {
        if !prepared.takes_any_batch() {
            return Ok(None);
        }
        gather_evidence(found, prepared.signature(), |signature, samples| {
            let kinds = self.controller.one_of_each_kind();
            let (division, device) = *kinds.first().ok_or("there is no device")?;
            let loaded = prepared.load_in(division, device.0).map_err(|error| error.to_string())?;
            let mut runner = DeviceRunner::new(&self.controller, device, Some(prepared), loaded);
            rows::compare(&mut runner, signature, samples)
        })
    }

    fn finding_key(&self, found: &FoundModel) -> Result<FindingKey, String> {
        Ok(FindingKey {
            content: self.content(found)?,
            engine: format!("{}, {}", self.config.engine.name(), self.config.device_kind),
            inputs: Samples::of(found, None).describe() + &shapes(&found.config),
        })
    }
}

/// What runs on this thread show of a model's first dimension. What the reference doesn't take shows nothing.
fn evidence_on_host(
    found: &FoundModel,
    source: &ModelSource,
    reference: &dyn Engine,
) -> Result<Option<Evidence>, String> {
    // Nothing is kept on disk of a model that is prepared for this alone.
    let Ok(prepared) = reference.prepare(&ModelSource { cache: None, ..source.clone() }) else { return Ok(None) };
    gather_evidence(found, prepared.signature(), |signature, samples| match prepared.load(0) {
        Ok(loaded) => rows::compare(&mut HostRunner(loaded), signature, samples),
        Err(error) => Ok(Evidence::Unknown(error.to_string())),
    })
}

/// What can be said of the first dimension of a model of that signature; nothing where the configuration gives it a
/// size. Runs the model if there is no other way.
fn gather_evidence(
    found: &FoundModel,
    own: &ModelSignature,
    run: impl FnOnce(&ModelSignature, Samples<'_>) -> Result<Evidence, String>,
) -> Result<Option<Evidence>, String> {
    let samples = Samples::of(found, None);
    let gives_first = gives_first_dimension(&found.config, own) || samples.give_first_dimension(own);
    if own.inputs.is_empty() || gives_first {
        return Ok(None);
    }
    if let Some(why) = own.without_batch() {
        return Ok(Some(Evidence::Unknown(why)));
    }
    run(&with_batch(own, &found.config), samples).map(Some)
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
