//! What a model is computed in is compared with 32 bits again, with what clients really send: inputs that are made up
//! need not be like theirs.
//!
//! ```text
//!  a few requests are kept ──idle, within the share──> computed in 32 bits and as served ──near──> learnt: seldom again
//!                                                             │ too far off, twice of the last 64
//!  another precision, for all inputs seen <──decided anew─────┘
//! ```
//!
//! It runs on the thread that makes models better (`improve.rs`), while that has nothing to do, and in device time that
//! nobody misses. A model that gets another precision goes the way of all that are brought up once more. A precision
//! that was named stays: what is seen of it is its error.
//!
//! **One request decides nothing.** Whoever may ask can make an input that is off in 16 bits, and to be slower for good
//! would be a high price for one in a million. Which requests are compared is left to chance as far as clients can
//! tell, so that those of a client count by their number; two of the last 64, seen at two times, are about what the
//! bound calls too many: of a hundred. Who sends that many is a client like others, for whom answers should be right;
//! what it can bring about is 32 bits at worst, in which every model begins.

use crate::bring_up::{BringUp, model_source};
use crate::precision::{Comparison, Run, RunInputs, warning};
use crate::publisher::{ModelKey, Publisher, Version};
use crate::runner::{IdleTime, RunError};
use crate::samples::rows_of;
use base::{DeviceId, Duration, ModelNumber, Precision, PrecisionChoice, Timestamp};
use bytes::Bytes;
use controller::KeptRequest;
use engine::precision::{Tried, Verdict};
use engine::{ModelSource, Prepared, Tensor};
use repository::{FoundModel, ScanEntry};
use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, VecDeque};
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// So many different requests have to agree before a model is compared seldom.
const TO_LEARN: u32 = 32;
/// Of so many of the last requests that were compared ...
const LATELY: usize = 64;
/// ... so many that are too far off are enough.
const ENOUGH: usize = 2;
/// A model is compared every so many looks until then ...
const WHILE_LEARNING: u64 = 10;
/// ... and afterwards: with a look each second, once in an hour.
const SELDOM: u64 = 3600;
/// After so many looks comes the first try after one that came to nothing; after twice as many the next, and so on.
const PUT_OFF: u64 = 60;
/// At each look requests of so many models are asked for: a look waits for the drivers of their cells.
const MODELS_AT_ONCE: usize = 8;
/// So long one run waits for a device that others use before the comparison is put off.
const PATIENCE: Duration = Duration::from_secs(10);
/// So long a comparison may take: that long clients' inputs are kept for it.
pub(crate) const LONGEST: Duration = Duration::from_secs(1800);
/// So long inputs that were too far off are kept, for the decision that follows if there are others.
const WITNESSES_FOR: Duration = Duration::from_secs(600);
/// So many of them are kept (P9) ...
const MOST_WITNESSES: usize = 16;
/// ... with so many bytes.
const MOST_WITNESS_BYTES: usize = 32 << 20;

/// Inputs of a request, and the hash that tells them from others.
type HashedInputs = (u64, RunInputs);

/// A model whose precision is compared with 32 bits.
pub(crate) struct LiveComparison {
    pub(crate) key: ModelKey,
    model: ModelNumber,
    found: FoundModel,
    precision: Precision,
    inputs: Vec<HashedInputs>,
    /// Whether others were too far off before, and those of them that are still there.
    was_off: bool,
    witnesses: Vec<RunInputs>,
    /// Set when it has to make way.
    pub(crate) given_up: Arc<AtomicBool>,
}

/// What came of it.
pub(crate) struct LiveCompared {
    key: ModelKey,
    model: ModelNumber,
    inputs: Vec<HashedInputs>,
    outcome: Result<LiveFindings, String>,
}

/// How far requests are off.
struct LiveFindings {
    /// For each; `None` where that can't be said.
    errors: Vec<Option<f64>>,
    /// What the model is to be computed in, where enough are too far off.
    decided: Option<Verdict>,
}

/// What is known of a model's requests.
struct LiveModel {
    /// Whose they are.
    prepared: Weak<dyn Prepared>,
    /// The last that were compared, and whether they were too far off.
    lately: VecDeque<(u64, bool)>,
    /// So many more have to agree.
    to_learn: u32,
    next_at: Timestamp,
    /// When its requests were asked for last.
    asked_at: Timestamp,
    /// How many requests were computed until they were asked for last.
    computed: u64,
    /// Looks until the next try, where the last one came to nothing.
    put_off: u64,
    /// It was said that a precision that was named is too far off.
    warned: bool,
}

impl LiveModel {
    fn new(prepared: &Arc<dyn Prepared>, warned: bool, next_at: Timestamp) -> Self {
        Self {
            prepared: Arc::downgrade(prepared),
            lately: VecDeque::new(),
            to_learn: TO_LEARN,
            next_at,
            asked_at: Timestamp::ZERO,
            computed: 0,
            put_off: PUT_OFF,
            warned,
        }
    }

    /// Whether these inputs were compared lately, and were near enough: then they say nothing new.
    fn knows(&self, hash: u64) -> bool {
        self.lately.contains(&(hash, false))
    }

    /// Whether so many were too far off that one more is enough.
    fn was_off(&self) -> bool {
        self.lately.iter().filter(|(_, off)| *off).count() + 1 >= ENOUGH
    }

    /// Takes in a request that was compared.
    fn note(&mut self, hash: u64, off: bool) {
        if self.lately.len() >= LATELY {
            self.lately.pop_front();
        }
        self.lately.push_back((hash, off));
        self.to_learn = if off { TO_LEARN } else { self.to_learn.saturating_sub(1) };
    }

    /// Looks until the next comparison, after one that showed something or didn't.
    fn pause(&mut self, showed: bool) -> u64 {
        let put_off = (self.put_off * 2).min(SELDOM);
        match showed {
            false => std::mem::replace(&mut self.put_off, put_off),
            true => {
                self.put_off = PUT_OFF;
                if self.to_learn > 0 { WHILE_LEARNING } else { SELDOM }
            }
        }
    }
}

/// Inputs that were too far off.
#[derive(Default)]
struct Witnesses(VecDeque<(Timestamp, ModelKey, RunInputs)>);

impl Witnesses {
    fn keep(&mut self, now: Timestamp, key: &ModelKey, input: RunInputs) {
        self.0.push_back((now, key.clone(), input));
        while self.0.len() > MOST_WITNESSES || self.bytes() > MOST_WITNESS_BYTES {
            self.0.pop_front();
        }
    }

    fn bytes(&self) -> usize {
        self.0.iter().flat_map(|(.., input)| input.iter()).map(|tensor| tensor.data.len()).sum()
    }

    fn of(&self, key: &ModelKey) -> Vec<RunInputs> {
        self.0.iter().filter(|(_, of, _)| of == key).map(|(.., input)| Arc::clone(input)).collect()
    }

    /// Lets those go that are old, and those of models that are gone.
    fn let_go(&mut self, now: Timestamp, is_there: impl Fn(&ModelKey) -> bool) {
        self.0.retain(|(since, key, _)| now.since(*since) < WITNESSES_FOR && is_there(key));
    }
}

/// See the module.
pub(crate) struct LiveComparisons {
    models: BTreeMap<ModelKey, LiveModel>,
    witnesses: Witnesses,
    looked_at: Timestamp,
    hashes: RandomState,
}

impl LiveComparisons {
    pub(crate) fn new(now: Timestamp) -> Self {
        let (models, witnesses) = (BTreeMap::new(), Witnesses::default());
        Self { models, witnesses, looked_at: now, hashes: RandomState::new() }
    }

    /// Copies of the requests that say something new: they were received in memory that others wait for.
    fn copies(&self, key: &ModelKey, kept: &[KeptRequest], batched: bool) -> Vec<HashedInputs> {
        let Some(model) = self.models.get(key) else { return Vec::new() };
        let mut all: Vec<HashedInputs> = Vec::new();
        for request in kept {
            let input: RunInputs = request.inputs.iter().map(|tensor| first_row(tensor, batched)).collect();
            let parts = input.iter().map(|tensor| (&tensor.shape, &tensor.data)).collect::<Vec<_>>();
            let hash = self.hashes.hash_one(parts);
            if !model.knows(hash) && all.iter().all(|(other, _)| *other != hash) {
                all.push((hash, input));
            }
        }
        all
    }
}

/// A copy of an input's first row; models are compared in their smallest size.
fn first_row(tensor: &Tensor, batched: bool) -> Tensor {
    let Tensor { datatype, shape, data } = tensor;
    if !batched || shape.first().is_none_or(|&rows| rows <= 1) {
        return Tensor { datatype: *datatype, shape: shape.clone(), data: Bytes::copy_from_slice(data) };
    }
    let row = rows_of(tensor).first().copied().unwrap_or_default();
    let shape = std::iter::once(1).chain(shape.iter().skip(1).copied()).collect();
    Tensor { datatype: *datatype, shape, data: Bytes::copy_from_slice(row) }
}

impl BringUp {
    /// Compares requests, and decides anew if enough are too far off.
    pub(crate) fn compare_live(self: &Arc<Self>, job: LiveComparison) -> LiveCompared {
        let LiveComparison { key, model, found, precision, inputs, was_off, witnesses, given_up } = job;
        let live: Vec<RunInputs> = inputs.iter().map(|(_, input)| Arc::clone(input)).collect();
        let outcome = self.safely(found.name.clone(), Duration::MAX, &given_up.clone(), move |bring_up| {
            bring_up.find_live(&found, precision, (&live, &witnesses, was_off), given_up)
        });
        LiveCompared { key, model, inputs, outcome }
    }

    fn find_live(
        &self,
        found: &FoundModel,
        precision: Precision,
        (live, witnesses, was_off): (&[RunInputs], &[RunInputs], bool),
        given_up: Arc<AtomicBool>,
    ) -> Result<LiveFindings, String> {
        if let Some(manifest) = &self.config.manifest {
            manifest.check(&found.folder, &found.name, found.version)?;
        }
        let until = self.controller.now() + LONGEST;
        let idle = IdleTime { until, patience: PATIENCE, given_up: Arc::clone(&given_up) };
        // Also preparing it uses the device.
        idle.begin(&self.controller, DeviceId(0))?;
        let source = ModelSource { given_up: Arc::clone(&given_up), ..model_source(found, self.cache_of(found))? };
        // What couldn't be run says nothing, whatever follows from that.
        let failed = Cell::new(false);
        let load = |prepared: &dyn Prepared| -> Result<Run<'_>, String> {
            let mut run = self.on_a_device(prepared, Some(idle.clone())).inspect_err(|_| failed.set(true))?;
            let failed = &failed;
            Ok(Box::new(move |inputs| {
                run(inputs).inspect_err(|error| match error {
                    RunError::Refused(_) => {}
                    RunError::Gone(_) => failed.set(true),
                })
            }))
        };
        let is_valid = || match failed.get() || given_up.load(Ordering::Relaxed) || self.stops() {
            true => Err("the device had no time or no room for it".to_owned()),
            false => Ok(()),
        };
        let comparison = Comparison { engine: &*self.config.engine, found, source: &source, load: &load };
        let errors = comparison.errors(precision, live)?;
        is_valid()?;
        let wishes = self.config.precision.of(&found.config);
        let off = live.iter().zip(&errors).filter(|(_, error)| error.is_some_and(|error| error > wishes.bound));
        let off: Vec<RunInputs> = off.map(|(input, _)| Arc::clone(input)).collect();
        if off.is_empty() || !was_off || wishes.choice != PrecisionChoice::Auto {
            return Ok(LiveFindings { errors, decided: None });
        }
        let decided = comparison.decide(wishes, &[witnesses, &off].concat());
        is_valid()?;
        Ok(LiveFindings { errors, decided })
    }
}

impl Publisher {
    /// When to look for live requests next; `None` where nothing is compared.
    pub(crate) fn compare_next_at(&self) -> Option<Timestamp> {
        self.improvements.as_ref().map(|_| self.live.looked_at + self.bring_up.config.compare_every)
    }

    /// Has a model compared whose time has come and whose requests were kept.
    pub(crate) fn compare_live_at(&mut self, now: Timestamp) {
        self.live.looked_at = now;
        self.know_live_models(now);
        if let Some(improvements) = &self.improvements {
            improvements.end_comparison(now, |key| self.live.models.contains_key(key));
        }
        if !self.may_bring_up_again() {
            return;
        }
        let mut due = Vec::new();
        for (key, model) in &self.live.models {
            let Some(version) = self.versions.get(key).and_then(Version::published) else { continue };
            if model.next_at <= now && version.served.metrics.demand().computed > model.computed {
                due.push((model.asked_at, key.clone()));
            }
        }
        due.sort_unstable();
        for (_, key) in due.into_iter().take(MODELS_AT_ONCE) {
            if self.look_at_requests(now, key) {
                return;
            }
        }
    }

    /// Knows which models are compared: those that are computed in something else than 32 bits, and were compared.
    fn know_live_models(&mut self, now: Timestamp) {
        let Self { live, versions, bring_up, .. } = self;
        let mut known = std::mem::take(&mut live.models);
        let first_at = now + bring_up.config.compare_every * WHILE_LEARNING;
        for (key, version) in versions.iter() {
            let Some(version) = version.published() else { continue };
            let (Some(verdict), ScanEntry::Found(found)) = (&version.known.verdict, version.files) else { continue };
            if version.prepared.precision().is_none_or(|precision| precision == Precision::Fp32) {
                continue;
            }
            let same = |model: &LiveModel| model.prepared.ptr_eq(&Arc::downgrade(version.prepared));
            let warned = verdict.chosen.error > bring_up.config.precision.of(&found.config).bound;
            let model = known.remove(key).filter(same);
            let model = model.unwrap_or_else(|| LiveModel::new(version.prepared, warned, first_at));
            live.models.insert(key.clone(), model);
        }
        live.witnesses.let_go(now, |key| live.models.contains_key(key));
    }

    /// Takes a model's requests, and has them compared. Whether there is something to do.
    fn look_at_requests(&mut self, now: Timestamp, key: ModelKey) -> bool {
        let every = self.bring_up.config.compare_every;
        let Self { live, versions, bring_up, .. } = self;
        let Some(version) = versions.get(&key).and_then(Version::published) else { return false };
        let (Some(precision), Some(verdict)) = (version.prepared.precision(), &version.known.verdict) else {
            return false;
        };
        let ScanEntry::Found(found) = version.files else { return false };
        let Some(model) = live.models.get_mut(&key) else { return false };
        if verdict.chosen.precision != precision {
            // It couldn't be brought up in what was decided.
            model.next_at = now + every * SELDOM;
            self.improve_later(key);
            self.improve_next();
            return true;
        }
        model.asked_at = now;
        let number = version.model.id;
        let kept = bring_up.controller.take_to_compare(number);
        if kept.is_empty() {
            return false;
        }
        model.computed = version.served.metrics.demand().computed;
        model.next_at = now + every * WHILE_LEARNING;
        let was_off = model.was_off();
        let inputs = live.copies(&key, &kept, version.served.signature.max_batch > 0);
        drop(kept);
        if inputs.is_empty() {
            return false;
        }
        let (found, witnesses, given_up) = (found.clone(), live.witnesses.of(&key), Arc::default());
        self.compare(LiveComparison { key, model: number, found, precision, inputs, was_off, witnesses, given_up });
        true
    }

    /// Learns from requests that were compared, and has their model brought up in another precision if need be.
    pub(crate) fn learn_from(&mut self, LiveCompared { key, model: number, inputs, outcome }: LiveCompared) {
        self.comparison_ended();
        self.take_in_compared(&key, number, inputs, outcome);
        self.improve_next();
    }

    fn take_in_compared(
        &mut self,
        key: &ModelKey,
        number: ModelNumber,
        inputs: Vec<HashedInputs>,
        outcome: Result<LiveFindings, String>,
    ) {
        let (now, every) = (self.bring_up.controller.now(), self.bring_up.config.compare_every);
        let known = self.versions.get(key).and_then(Version::published);
        // Others may have taken its place meanwhile.
        let Some(version) = known.filter(|version| version.model.id == number) else { return };
        let (ScanEntry::Found(found), Some(before)) = (version.files, &version.known.verdict) else { return };
        let (found, mut seen) = (found.clone(), before.clone());
        let Some(model) = self.live.models.get_mut(key) else { return };
        let LiveFindings { errors, decided } = outcome.unwrap_or_else(|reason| {
            tracing::debug!(model = key.0, version = key.1, "live requests couldn't be compared: {reason}");
            LiveFindings { errors: Vec::new(), decided: None }
        });
        let wishes = self.bring_up.config.precision.of(&found.config);
        let mut worst = Tried { error: 0.0, ..seen.chosen };
        for ((hash, input), error) in inputs.into_iter().zip(&errors) {
            let Some(error) = *error else { continue };
            let off = error > wishes.bound;
            worst.error = worst.error.max(error);
            model.note(hash, off);
            if off && wishes.choice == PrecisionChoice::Auto {
                self.live.witnesses.keep(now, key, input);
            }
        }
        model.next_at = now + every * model.pause(errors.iter().any(Option::is_some));
        if worst.error > seen.chosen.error {
            seen.chosen = worst;
            if !model.warned
                && let Some(warning) = warning(wishes, &seen)
            {
                model.warned = true;
                tracing::warn!(model = key.0, version = key.1, "{warning}");
            }
            self.show_verdict(key, &found, &seen);
        }
        let Some(decided) = decided else { return };
        self.live.witnesses.let_go(now, |other| other != key);
        if let Some(model) = self.live.models.get_mut(key) {
            // If it stays what it is, two more would have to show that it shouldn't.
            (model.lately, model.next_at) = (VecDeque::new(), now + every * SELDOM);
        }
        if decided.chosen.precision != worst.precision {
            self.decide_anew(key, &found, worst, decided);
        }
    }

    /// Shows what was seen of a model's precision, without anything else of it changing.
    fn show_verdict(&mut self, key: &ModelKey, found: &FoundModel, seen: &Verdict) {
        let Some(version) = self.versions.get_mut(key) else { return };
        let Some(served) = version.entry.serving() else { return };
        let served = self.bring_up.with_verdict(found, served, seen);
        version.show(key, served);
        if let Some(origin) = &mut version.origin {
            origin.known.verdict = Some(seen.clone());
        }
        self.update_catalogue();
    }

    /// A model leaves a precision for another, now and at the next start.
    fn decide_anew(&mut self, key: &ModelKey, found: &FoundModel, left: Tried, decided: Verdict) {
        let Tried { precision, error } = decided.chosen;
        tracing::warn!(
            model = key.0,
            version = key.1,
            left = %left.precision,
            error = left.error,
            "inputs of live requests are too far off in {}: it is brought up in {precision}, which is off by {error:.1e} of their range at most",
            left.precision
        );
        self.bring_up.keep_verdict(found, &decided);
        if let Some(origin) = self.versions.get_mut(key).and_then(|version| version.origin.as_mut()) {
            origin.known.verdict = Some(decided);
        }
        self.improve_later(key.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{DataType, ModelSignature};
    use engine::{EngineError, Loaded};

    struct Nothing;

    impl Prepared for Nothing {
        fn signature(&self) -> &ModelSignature {
            unreachable!("nobody asks")
        }
        fn weight_bytes(&self) -> u64 {
            0
        }
        fn load(&self, _device: u32) -> Result<Box<dyn Loaded>, EngineError> {
            Err(EngineError::Execute("nothing".into()))
        }
    }

    fn model() -> LiveModel {
        let prepared: Arc<dyn Prepared> = Arc::new(Nothing);
        LiveModel::new(&prepared, false, Timestamp::ZERO)
    }

    fn input(bytes: usize) -> RunInputs {
        [Tensor { datatype: DataType::Uint8, shape: vec![1, bytes as i64], data: vec![0; bytes].into() }].into()
    }

    #[test]
    fn a_model_that_agrees_is_compared_seldom_and_one_that_was_off_often_again() {
        let mut model = model();
        let agree = |model: &mut LiveModel, count: u32| {
            (0..count).for_each(|hash| model.note(hash.into(), false));
            model.pause(true)
        };
        assert_eq!([agree(&mut model, TO_LEARN - 1), agree(&mut model, 1)], [WHILE_LEARNING, SELDOM]);
        model.note(99, true);
        assert_eq!(model.pause(true), WHILE_LEARNING);
        assert_eq!(agree(&mut model, TO_LEARN), SELDOM);
    }

    #[test]
    fn what_comes_to_nothing_is_tried_more_and_more_seldom() {
        let mut model = model();
        let pauses: Vec<u64> = (0..8).map(|_| model.pause(false)).collect();
        assert_eq!(pauses, [60, 120, 240, 480, 960, 1920, 3600, 3600]);
        model.pause(true);
        assert_eq!(model.pause(false), PUT_OFF);
    }

    #[test]
    fn two_of_the_last_that_are_off_are_enough() {
        let mut model = model();
        model.note(1, true);
        assert!(model.was_off() && !model.knows(1), "it may be compared again");
        (2..).take(LATELY - 1).for_each(|hash| model.note(hash, false));
        assert!(model.was_off() && model.knows(2) && model.knows(LATELY as u64));
        model.note(0, false);
        assert!(!model.was_off(), "it is forgotten: one in so many isn't enough");
        model.note(70, false);
        assert!(!model.knows(2) && model.lately.len() == LATELY);
    }

    #[test]
    fn inputs_that_were_off_are_bounded_and_go_with_time_and_their_model() {
        let mut witnesses = Witnesses::default();
        let key = |name: &str| (name.to_owned(), 1);
        let at = |seconds: u64| Timestamp::ZERO + Duration::from_secs(seconds);
        (0..40).for_each(|second| witnesses.keep(at(second), &key("a"), input(10)));
        assert_eq!((witnesses.of(&key("a")).len(), witnesses.bytes()), (MOST_WITNESSES, 10 * MOST_WITNESSES));
        witnesses.keep(at(40), &key("b"), input(MOST_WITNESS_BYTES));
        assert_eq!((witnesses.of(&key("a")).len(), witnesses.of(&key("b")).len()), (0, 1));
        witnesses.keep(at(41), &key("b"), input(MOST_WITNESS_BYTES + 1));
        assert_eq!(witnesses.bytes(), 0);
        witnesses.keep(at(50), &key("a"), input(1));
        witnesses.keep(at(60), &key("b"), input(1));
        witnesses.let_go(at(649), |_| true);
        assert_eq!(witnesses.bytes(), 2);
        witnesses.let_go(at(650), |_| true);
        assert_eq!((witnesses.of(&key("a")).len(), witnesses.of(&key("b")).len()), (0, 1));
        witnesses.let_go(at(650), |_| false);
        assert_eq!(witnesses.bytes(), 0);
    }

    #[test]
    fn a_copy_is_the_first_row_where_there_are_rows() {
        let data: Bytes = (0..6).collect::<Vec<u8>>().into();
        let tensor = Tensor { datatype: DataType::Uint8, shape: vec![3, 2], data: data.clone() };
        let row = first_row(&tensor, true);
        assert_eq!((row.shape, &row.data[..]), (vec![1, 2], &[0, 1][..]));
        let whole = first_row(&tensor, false);
        assert_eq!((&whole.shape, &whole.data), (&tensor.shape, &data));
        assert_ne!(whole.data.as_ptr(), data.as_ptr(), "others wait for the memory");
        let none = first_row(&Tensor { shape: vec![3, 0], data: Bytes::new(), ..tensor }, true);
        assert_eq!((none.shape, none.data.len()), (vec![1, 0], 0));
    }
}
