//! What a model is computed in, where its engine has a choice: as its configuration says, or as evidence shows.
//!
//! Before it is prepared to be served, a model is prepared in its smallest size, in 32 bits and then in one precision
//! after another, and computes the same inputs: those that it is warmed up with, and some that are made up. Where two
//! precisions are near enough, what the first of these inputs takes decides. What was found is kept for the next start.
//! A model that has to be ready soon, and of which nothing is known, is compared when there is time. Later it is
//! compared again, with inputs of live requests (`live.rs`).

use crate::bring_up::{BringUp, shapes};
use crate::reshape;
use crate::rows::WHOLE;
use crate::runner::{Compute as _, DeviceRunner, HostRunner, IdleTime, RunError, expect};
use crate::samples::{Sample, Samples};
use base::{DataType, DeviceId, Duration, ModelSignature, Precision, PrecisionChoice};
use engine::precision::{self, Computed, Outputs, Tried, Verdict};
use engine::{Engine, ModelSource, Prepared, Purpose, Tensor};
use repository::{FindingKey, FindingStore, FoundModel, ModelConfig, PrecisionFinding, TriedPrecision};
use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// How many inputs are made up.
const MADE_UP: u64 = 3;
/// How often an input is run to see what it takes. The least counts: whatever disturbs a run makes it longer.
const TIMED: usize = 7;
/// What numbers of a byte are made of: they are pixels.
const BYTES: RangeInclusive<u64> = 0..=255;

/// What is wanted of precisions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PrecisionWishes {
    /// What models are computed in.
    pub choice: PrecisionChoice,
    /// How far outputs may be off where evidence decides, as a part of an output's range.
    pub bound: f64,
}

impl Default for PrecisionWishes {
    fn default() -> Self {
        Self { choice: PrecisionChoice::default(), bound: precision::DEFAULT_BOUND }
    }
}

impl PrecisionWishes {
    /// Those for a model: what its configuration says goes first.
    pub(crate) fn of(self, config: &ModelConfig) -> Self {
        Self { choice: config.precision.unwrap_or(self.choice), bound: config.precision_error.unwrap_or(self.bound) }
    }

    /// What a model is computed in of which nothing can be shown.
    fn without_evidence(self) -> Precision {
        match self.choice {
            PrecisionChoice::Named(precision) => precision,
            PrecisionChoice::Auto => Precision::Fp32,
        }
    }
}

/// Runs a model that is loaded; also says what that took.
pub(crate) type Run<'a> = Box<dyn FnMut(&Arc<[Tensor]>) -> Result<(Duration, Vec<Tensor>), RunError> + 'a>;

impl BringUp {
    /// The model with what it is computed in, and what was found out about that; nothing where there is no choice. What
    /// was found when it was brought up before isn't asked again.
    pub(crate) fn with_precision(
        &self,
        found: &FoundModel,
        source: ModelSource,
        before: Option<Verdict>,
    ) -> (ModelSource, Option<Verdict>) {
        let engine = &*self.config.engine;
        let wishes = self.config.precision.of(&found.config);
        if engine.precisions().is_empty() || source.emulated.is_some() {
            return (source, None);
        }
        // A file that can't be read is the engine's to explain.
        let key = self.precision_key(found, wishes).ok();
        let kept = self.cache_of(found).as_deref().map(FindingStore::<PrecisionFinding>::new).zip(key);
        let known = before.or_else(|| kept.as_ref().and_then(|(store, key)| from_kept(&store.load(key)?)));
        let verdict = known.or_else(|| {
            // 32 bits, or what was named, needs no comparison to begin with.
            if source.soon && wishes.choice != PrecisionChoice::Named(Precision::Fp32) {
                return None;
            }
            let load = |prepared: &dyn Prepared| self.on_a_device(prepared, None);
            let verdict = Comparison { engine, found, source: &source, load: &load }.decide(wishes, &[])?;
            // What was given up midway shows nothing.
            if self.stops() {
                return None;
            }
            if let Some((store, key)) = &kept {
                store.save(key, &to_kept(&verdict));
            }
            Some(verdict)
        });
        warn_of_error(found, wishes, verdict.as_ref());
        let precision = verdict.as_ref().map_or(wishes.without_evidence(), |verdict| verdict.chosen.precision);
        (ModelSource { precision: Some(precision), ..source }, verdict)
    }

    /// On the first device, which is the one that it is prepared for; in its idle time, or at once.
    pub(crate) fn on_a_device(&self, prepared: &dyn Prepared, idle: Option<IdleTime>) -> Result<Run<'_>, String> {
        let loaded = prepared.load_in(0, 0).map_err(|error| error.to_string())?;
        let mut runner = DeviceRunner::new(&self.controller, DeviceId(0), None, loaded);
        if let Some(idle) = idle {
            runner = runner.in_idle_time(idle);
        }
        Ok(Box::new(move |inputs| runner.timed(inputs)))
    }

    /// Corrects what is kept for the next start.
    pub(crate) fn keep_verdict(&self, found: &FoundModel, verdict: &Verdict) {
        let store = self.cache_of(found).as_deref().map(FindingStore::<PrecisionFinding>::new);
        let key = self.precision_key(found, self.config.precision.of(&found.config));
        if let Some((store, key)) = store.zip(key.ok()) {
            store.save(&key, &to_kept(verdict));
        }
    }

    fn precision_key(&self, found: &FoundModel, wishes: PrecisionWishes) -> Result<FindingKey, String> {
        let (config, samples) = (&found.config, Samples::of(found, None).describe());
        let sizes = format!(", rows {:?} {:?}, lengths {:?}", config.max_batch, config.batch_sizes, config.lengths);
        // How it is decided is part of it: what was found in other ways doesn't count.
        let wanted = format!(", {} within {}, the faster of fp16 and tf32", wishes.choice, wishes.bound);
        Ok(FindingKey {
            content: self.content(found)?,
            engine: format!("{}, {}", self.config.engine.name(), self.config.device_kind),
            inputs: samples + &shapes(config) + &sizes + &wanted,
        })
    }
}

/// The same without a server, on the first device: nothing is kept.
pub fn with_precision_alone(
    engine: &dyn Engine,
    found: &FoundModel,
    source: ModelSource,
    wishes: PrecisionWishes,
) -> (ModelSource, Option<Verdict>) {
    if engine.precisions().is_empty() {
        return (source, None);
    }
    let wishes = wishes.of(&found.config);
    let load = |prepared: &dyn Prepared| -> Result<Run<'_>, String> {
        let mut runner = HostRunner(prepared.load_in(0, 0).map_err(|error| error.to_string())?);
        Ok(Box::new(move |inputs| runner.timed(inputs)))
    };
    let verdict = Comparison { engine, found, source: &source, load: &load }.decide(wishes, &[]);
    let precision = verdict.as_ref().map_or(wishes.without_evidence(), |verdict| verdict.chosen.precision);
    (ModelSource { precision: Some(precision), ..source }, verdict)
}

/// Inputs of one execution.
pub(crate) type RunInputs = Arc<[Tensor]>;

/// A model that is compared with itself.
pub(crate) struct Comparison<'a, 'b> {
    pub(crate) engine: &'a dyn Engine,
    pub(crate) found: &'a FoundModel,
    pub(crate) source: &'a ModelSource,
    pub(crate) load: &'a dyn Fn(&dyn Prepared) -> Result<Run<'b>, String>,
}

impl Comparison<'_, '_> {
    fn prepare(&self, precision: Precision, purpose: Purpose) -> Result<Arc<dyn Prepared>, String> {
        let source = ModelSource { precision: Some(precision), purpose, ..self.source.clone() };
        let prepared = self.engine.prepare(&source).map_err(|error| error.to_string())?;
        Ok(reshape::with_shapes(prepared, &self.found.config))
    }

    fn samples(&self) -> Samples<'_> {
        Samples::of(self.found, None)
    }

    /// What it is to be computed in, with these inputs of live requests besides others. `None` where nothing can be
    /// compared: it can't be prepared, which the engine says when it is prepared to be served, or no input suits it.
    pub(crate) fn decide(&self, wishes: PrecisionWishes, live: &[RunInputs]) -> Option<Verdict> {
        let (mut inputs, mut is_prepared) = (Vec::new(), false);
        let candidates = self.engine.precisions();
        let verdict = precision::decide(wishes.choice, candidates, wishes.bound, |precision, purpose| {
            let prepared = self.prepare(precision, purpose)?;
            is_prepared = true;
            let mut run = expecting(&*prepared, (self.load)(&*prepared)?);
            if inputs.is_empty() {
                inputs = with_live(suitable(&mut run, prepared.signature(), self.samples()), live, &mut run)?;
            }
            let outputs = inputs.iter().map(|inputs| Ok(run(inputs)?.1)).collect::<Result<Outputs, RunError>>()?;
            let time = if purpose == Purpose::Trial { least(&mut run, &inputs[0])? } else { None };
            Ok(Computed { precision: prepared.precision().unwrap_or(precision), outputs, time })
        });
        let (model, version) = (&self.found.name, self.found.version);
        match verdict {
            Ok(verdict) => Some(verdict),
            Err(reason) => {
                // With live requests it is compared again, and stays what it is.
                if is_prepared && live.is_empty() {
                    let precision = wishes.without_evidence();
                    tracing::warn!(model, version, "it is computed in {precision}, compared with nothing: {reason}");
                }
                None
            }
        }
    }

    /// How far it is off in a precision, for each of these inputs of live requests, beside those that are made up;
    /// `None` where that can't be said.
    pub(crate) fn errors(&self, precision: Precision, live: &[RunInputs]) -> Result<Vec<Option<f64>>, String> {
        let outputs = |run: &mut Run<'_>| -> Result<Vec<Option<Vec<Tensor>>>, String> {
            let output = |inputs: &RunInputs| match run(inputs) {
                Ok((_, outputs)) => Ok(Some(outputs)),
                Err(RunError::Refused(_)) => Ok(None),
                Err(gone) => Err(gone.into()),
            };
            live.iter().map(output).collect()
        };
        let (right, others) = {
            let prepared = self.prepare(Precision::Fp32, Purpose::Draft)?;
            let mut run = expecting(&*prepared, (self.load)(&*prepared)?);
            let right = outputs(&mut run)?;
            let others = suitable(&mut run, prepared.signature(), self.samples()).unwrap_or_default();
            (right, others.iter().map(|inputs| Ok(run(inputs)?.1)).collect::<Result<Outputs, RunError>>()?)
        };
        let prepared = self.prepare(precision, Purpose::Trial)?;
        let found = outputs(&mut expecting(&*prepared, (self.load)(&*prepared)?))?;
        let error = |(right, found): (Option<Vec<_>>, Option<Vec<_>>)| {
            right.zip(found).and_then(|(right, found)| precision::error_beside(&others, &right, &found))
        };
        Ok(right.into_iter().zip(found).map(error).collect())
    }
}

/// The model is told of each input before it runs.
fn expecting<'a>(prepared: &'a dyn Prepared, mut run: Run<'a>) -> Run<'a> {
    Box::new(move |inputs| {
        expect(prepared, inputs);
        run(inputs)
    })
}

/// Inputs that suit a model, and those of live requests that it accepts.
fn with_live(
    suitable: Result<Vec<RunInputs>, String>,
    live: &[RunInputs],
    run: &mut Run<'_>,
) -> Result<Vec<RunInputs>, String> {
    let accepted: Vec<_> = live.iter().filter(|inputs| run(inputs).is_ok()).cloned().collect();
    match suitable {
        Ok(inputs) => Ok([inputs, accepted].concat()),
        Err(_) if !accepted.is_empty() => Ok(accepted),
        Err(reason) => Err(reason),
    }
}

/// What these inputs take at least. They have been run before: a first run pays for what is touched for the first time.
fn least(run: &mut Run<'_>, inputs: &Arc<[Tensor]>) -> Result<Option<Duration>, RunError> {
    let times = (0..TIMED).map(|_| Ok(run(inputs)?.0)).collect::<Result<Vec<_>, RunError>>()?;
    Ok(times.into_iter().min())
}

/// Inputs that the model accepts: those that somebody gave, and some that are made up.
fn suitable(run: &mut Run<'_>, signature: &ModelSignature, samples: Samples<'_>) -> Result<Vec<Arc<[Tensor]>>, String> {
    // Whatever the rows of a sample are, one of them is computed at a time.
    let max_batch = if signature.max_batch > 0 { u32::MAX } else { 0 };
    let signature = &ModelSignature { max_batch, ..signature.clone() };
    let given = samples.all(signature).into_iter().filter(|sample| matches!(sample, Sample::Warmup(_)));
    let mut inputs: Vec<_> = given.filter_map(|sample| samples.inputs(signature, 1, sample).ok()).collect();
    inputs.retain(|inputs| run(inputs).is_ok());
    for open in samples.open_sizes(signature) {
        for whole in wholes(signature) {
            let made_up = |seed: u64| samples.rows(signature, open, &whole, &[seed]);
            match run(&made_up(1)?) {
                Ok(_) => {
                    inputs.extend((1..=MADE_UP).map(made_up).collect::<Result<Vec<_>, _>>()?);
                    return Ok(inputs);
                }
                Err(RunError::Refused(_)) => {}
                Err(gone) => return Err(gone.into()),
            }
        }
    }
    if inputs.is_empty() { Err("no input was found that the model accepts".into()) } else { Ok(inputs) }
}

/// What whole numbers are made of.
fn wholes(signature: &ModelSignature) -> Vec<RangeInclusive<u64>> {
    let is_byte = |datatype: DataType| matches!(datatype, DataType::Uint8 | DataType::Int8);
    let mut whole = signature.inputs.iter().map(|spec| spec.datatype).filter(|datatype| !engine::is_real(*datatype));
    let bytes_alone = whole.clone().next().is_some() && whole.all(is_byte);
    if bytes_alone { vec![BYTES] } else { WHOLE.to_vec() }
}

/// Says that what somebody named is further off than it should be.
fn warn_of_error(found: &FoundModel, wishes: PrecisionWishes, verdict: Option<&Verdict>) {
    if let Some(warning) = verdict.and_then(|verdict| warning(wishes, verdict)) {
        tracing::warn!(model = found.name, version = found.version, "{warning}");
    }
}

pub(crate) fn warning(wishes: PrecisionWishes, verdict: &Verdict) -> Option<String> {
    let PrecisionChoice::Named(named) = wishes.choice else { return None };
    let (error, bound) = (verdict.chosen.error, wishes.bound);
    (error > bound).then(|| {
        let error = part(error);
        format!(
            "it is computed in {named}, as was asked for, and its outputs are off by {error} of their range, more than {bound}: precision auto finds what is near enough"
        )
    })
}

/// What was found, as a sentence for the configuration that clients see.
pub(crate) fn sentence(Verdict { chosen, others, no_faster }: &Verdict) -> String {
    let mut text = chosen.precision.to_string();
    if chosen.precision != Precision::Fp32 {
        let _ = write!(text, ", whose outputs are off by {} of their range", part(chosen.error));
    }
    if let Some(other) = no_faster {
        let _ = write!(text, "; near enough and no faster is {}", list(&[*other]));
    }
    if !others.is_empty() {
        let _ = write!(text, "; too far off are {}", list(others));
    }
    text
}

/// Precisions with their errors.
pub(crate) fn list(tried: &[Tried]) -> String {
    tried.iter().map(|tried| format!("{} {}", tried.precision, part(tried.error))).collect::<Vec<_>>().join(", ")
}

/// An error, with as many digits as mean something.
fn part(error: f64) -> String {
    if error.is_finite() { format!("{error:.1e}") } else { "infinitely much".into() }
}

fn to_kept(Verdict { chosen, others, no_faster }: &Verdict) -> PrecisionFinding {
    let kept = |tried: &Tried| TriedPrecision {
        precision: tried.precision.to_string(),
        error: Some(tried.error).filter(|error| error.is_finite()),
    };
    let no_faster = no_faster.as_ref().map(kept);
    PrecisionFinding { chosen: kept(chosen), others: others.iter().map(kept).collect(), no_faster }
}

/// `None` where a name isn't known.
fn from_kept(PrecisionFinding { chosen, others, no_faster }: &PrecisionFinding) -> Option<Verdict> {
    let tried = |kept: &TriedPrecision| {
        let precision = Precision::from_name(&kept.precision)?;
        Some(Tried { precision, error: kept.error.unwrap_or(f64::INFINITY) })
    };
    let no_faster = match no_faster {
        Some(kept) => Some(tried(kept)?),
        None => None,
    };
    Some(Verdict { chosen: tried(chosen)?, others: others.iter().map(tried).collect::<Option<_>>()?, no_faster })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict() -> Verdict {
        let tried = |precision, error| Tried { precision, error };
        let others = vec![tried(Precision::Fp16, f64::INFINITY), tried(Precision::Tf32, 0.16)];
        Verdict { others, ..Verdict::alone(tried(Precision::Tf32Behind(4), 1.2e-3)) }
    }

    /// Two were near enough.
    fn faster() -> Verdict {
        let tried = |precision, error| Tried { precision, error };
        Verdict { no_faster: Some(tried(Precision::Fp16, 2e-3)), ..Verdict::alone(tried(Precision::Tf32, 1e-4)) }
    }

    #[test]
    fn what_was_found_is_a_sentence() {
        assert_eq!(
            sentence(&verdict()),
            "tf32+4, whose outputs are off by 1.2e-3 of their range; too far off are fp16 infinitely much, tf32 1.6e-1"
        );
        assert_eq!(
            sentence(&faster()),
            "tf32, whose outputs are off by 1.0e-4 of their range; near enough and no faster is fp16 2.0e-3"
        );
        assert_eq!(sentence(&Verdict::alone(Tried { precision: Precision::Fp32, error: 0.0 })), "fp32");
    }

    #[test]
    fn what_was_named_and_is_too_far_off_is_warned_of() {
        let of = |choice, bound| warning(PrecisionWishes { choice, bound }, &verdict());
        let named = PrecisionChoice::Named(Precision::Tf32Behind(4));
        let said = of(named, 1e-3).unwrap();
        assert!(
            said.starts_with("it is computed in tf32+4, as was asked for, and its outputs are off by 1.2e-3"),
            "{said}"
        );
        assert_eq!((of(named, 1e-2), of(PrecisionChoice::Auto, 1e-3)), (None, None));
    }

    #[test]
    fn what_is_kept_comes_back() {
        for verdict in [verdict(), faster()] {
            assert_eq!(from_kept(&to_kept(&verdict)), Some(verdict));
        }
        let mut unknown = [to_kept(&verdict()), to_kept(&verdict()), to_kept(&faster())];
        let [chosen, others, no_faster] = &mut unknown;
        let names = [&mut chosen.chosen, &mut others.others[1], no_faster.no_faster.as_mut().unwrap()];
        names.into_iter().for_each(|kept| kept.precision = "fp8".into());
        assert_eq!(unknown.map(|kept| from_kept(&kept)), [None, None, None]);
    }

    #[test]
    fn pixels_are_bytes_and_tokens_are_small() {
        let of = |types: &[DataType]| {
            let spec = |&datatype| base::TensorSpec { name: String::new(), datatype, dims: Vec::new() };
            let inputs = types.iter().map(spec).collect();
            wholes(&ModelSignature { inputs, outputs: Vec::new(), max_batch: 0 })
        };
        assert_eq!(of(&[DataType::Uint8, DataType::Fp32]), [BYTES]);
        assert_eq!(of(&[DataType::Uint8, DataType::Int64]), WHOLE);
        assert_eq!(of(&[DataType::Fp32]), WHOLE);
    }
}
