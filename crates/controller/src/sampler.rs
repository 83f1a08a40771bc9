//! Which requests are run once more, and when: for the online profiler, which learns what they take alone, and for
//! whoever compares what a model answers in the precision that it is computed in with what it answers in 32 bits.
//!
//! What a request takes depends on its input where a model leaves sizes open. A batch only shows what its longest
//! request takes, so some of the requests that are served are kept, and run alone on a device that has nothing to do.
//! One that was served alone needs no second run: its execution is the measurement.
//!
//! ```text
//!  served in a batch ──one in 8──> kept ──idle, within the share, no deadline near──> run alone ──> Event::Measured
//!  served alone ──────one in 8───────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Those to be compared are asked for by model, and taken from here to be run on models that nobody else uses:
//!
//! ```text
//!  asked for ──> the first of each batch is kept, a few of them ──> taken, or let go after a while
//! ```
//!
//! **Never at the cost of a deadline:** nothing waits when one begins, and whoever comes while it runs still has time
//! for it and for itself, by the shortest of the latest deadlines; or nobody has come for ten times as long as it
//! takes.

use base::{ApplicationId, Duration, ModelId, ModelNumber, Timestamp};
use std::collections::{BTreeMap, VecDeque};
use worker::Tensor;

/// Requests that are kept (P9); a further one replaces the oldest.
const MAX_KEPT: usize = 64;
/// What their inputs may take.
const MAX_KEPT_BYTES: usize = 16 << 20;
/// One request in so many of a model is measured ...
const EVERY: u32 = 8;
/// ... and all of the first, because each says much then.
const FIRST: u32 = 64;
/// If nobody has asked for so many times a measurement, nobody will the next moment.
const QUIET: u64 = 10;
/// Deadlines are looked at over so many requests, twice.
const RECENT: u32 = 256;
/// So many requests of a model are kept to be compared.
const TO_COMPARE: u32 = 4;
/// Those of so many models (P9); a further one takes the place of another.
const MODELS_TO_COMPARE: usize = 64;
/// For so long they are kept here: they lie in memory for which other requests wait.
const KEPT_FOR: Duration = Duration::from_secs(30);
/// After so long it is looked again whether nothing waits.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// So slowly the longest run of a model is forgotten: a part of it in so many, with each run.
const FORGETS: u64 = 64;

/// What is known of a request besides its inputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RequestTraits {
    /// Its model's number in the cell.
    pub model: ModelNumber,
    pub application: ApplicationId,
    pub size: Option<u32>,
}

/// A request that is to be run again.
#[derive(Debug)]
pub struct KeptRequest {
    pub(crate) traits: RequestTraits,
    pub(crate) kept_at: Timestamp,
    /// In the signature's order, where they were received.
    pub inputs: Vec<Tensor>,
    /// Rows of the batch dimension; 1 where the model has none.
    pub rows: u32,
}

impl KeptRequest {
    fn bytes(&self) -> usize {
        self.inputs.iter().map(|input| input.data.len()).sum()
    }
}

/// Why something that nobody asked for doesn't run now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotYet {
    /// Somebody might wait for it: it may be asked again then.
    Busy(Timestamp),
    /// The share of the device's time for such work is used up until then.
    Spent(Timestamp),
    /// There is no such share.
    Never,
}

/// Requests that are kept, the oldest first.
#[derive(Debug, Default)]
struct KeptRequests {
    all: VecDeque<KeptRequest>,
    bytes: usize,
}

impl KeptRequests {
    /// One more, in the place of the oldest if there are too many (P9).
    fn keep(&mut self, kept: KeptRequest) {
        let bytes = kept.bytes();
        if bytes > MAX_KEPT_BYTES {
            return;
        }
        while self.all.len() >= MAX_KEPT || self.bytes + bytes > MAX_KEPT_BYTES {
            self.take_first();
        }
        self.bytes += bytes;
        self.all.push_back(kept);
    }

    fn take_first(&mut self) -> Option<KeptRequest> {
        let first = self.all.pop_front()?;
        self.bytes -= first.bytes();
        Some(first)
    }

    /// Takes those of a model.
    fn take_of(&mut self, model: ModelId) -> Vec<KeptRequest> {
        let (taken, left) = std::mem::take(&mut self.all).into_iter().partition(|kept| kept.traits.model.id() == model);
        self.all = left;
        self.bytes = self.all.iter().map(KeptRequest::bytes).sum();
        Vec::from(taken)
    }
}

/// A model whose requests differ.
#[derive(Debug)]
struct WatchedModel {
    served: u32,
    /// The longest of the latest runs alone.
    slowest: Duration,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Sampler {
    /// The share of a device's time that measuring may take; 0: none is measured.
    share: f64,
    watched: BTreeMap<ModelId, WatchedModel>,
    kept: KeptRequests,
    /// Models whose requests are asked for, and how many of each there may still be.
    compared: BTreeMap<ModelId, u32>,
    to_compare: KeptRequests,
    /// The share is used up until then.
    free_at: Timestamp,
    submitted_at: Timestamp,
    /// The shortest time that a request had, of those before and of these.
    tightest: [Duration; 2],
    submitted: u32,
}

impl Sampler {
    pub fn new(share: f64) -> Self {
        Self {
            share,
            watched: BTreeMap::new(),
            kept: KeptRequests::default(),
            compared: BTreeMap::new(),
            to_compare: KeptRequests::default(),
            free_at: Timestamp::ZERO,
            submitted_at: Timestamp::ZERO,
            tightest: [Duration::MAX; 2],
            submitted: 0,
        }
    }

    /// From now on requests of that model are measured. `alone` is what one is known to take.
    pub fn watch(&mut self, model: ModelId, alone: Duration) {
        if self.share > 0.0 {
            self.watched.insert(model, WatchedModel { served: 0, slowest: alone });
        }
    }

    /// The model is gone.
    pub fn forget(&mut self, model: ModelId) {
        if self.watched.remove(&model).is_some() {
            drop(self.kept.take_of(model));
        }
        self.compared.remove(&model);
        drop(self.to_compare.take_of(model));
    }

    /// Takes the requests of a model that were kept to be compared. Where there is none, the next ones are kept.
    pub fn take_to_compare(&mut self, now: Timestamp, model: ModelId) -> Vec<KeptRequest> {
        self.let_go(now);
        let taken = self.to_compare.take_of(model);
        if !taken.is_empty() {
            self.compared.remove(&model);
        } else if self.share > 0.0 {
            self.compared.insert(model, TO_COMPARE);
            if self.compared.len() > MODELS_TO_COMPARE {
                let another = self.compared.keys().find(|other| **other != model).copied();
                another.map(|another| self.compared.remove(&another));
            }
        }
        taken
    }

    /// Whether requests of a model are to be compared.
    pub fn compares(&self, model: ModelId) -> bool {
        self.compared.get(&model).is_some_and(|&left| left > 0)
    }

    /// Keeps a request to be compared.
    pub fn keep_to_compare(&mut self, kept: KeptRequest) {
        if let Some(left) = self.compared.get_mut(&kept.traits.model.id()) {
            *left = left.saturating_sub(1);
            self.to_compare.keep(kept);
        }
    }

    /// Lets requests go that nobody took to compare them; when there is one to let go next.
    pub fn let_go(&mut self, now: Timestamp) -> Timestamp {
        while let Some(first) = self.to_compare.all.front() {
            let until = first.kept_at + KEPT_FOR;
            if until > now {
                return until;
            }
            self.to_compare.take_first();
        }
        Timestamp::NEVER
    }

    /// A request came that has that long.
    pub fn submitted(&mut self, now: Timestamp, budget: Duration) {
        if self.share == 0.0 {
            return;
        }
        self.submitted_at = now;
        self.submitted += 1;
        if self.submitted.is_multiple_of(RECENT) {
            self.tightest = [self.tightest[1], Duration::MAX];
        }
        self.tightest[1] = self.tightest[1].min(budget);
    }

    /// A request is served: whether it is one of those that are measured.
    pub fn picks(&mut self, model: ModelId) -> bool {
        let Some(watched) = self.watched.get_mut(&model) else { return false };
        watched.served = watched.served.wrapping_add(1);
        watched.served <= FIRST || watched.served.is_multiple_of(EVERY)
    }

    /// Keeps a request for later.
    pub fn keep(&mut self, kept: KeptRequest) {
        self.kept.keep(kept);
    }

    /// The one to run next, and from when on that may be if nothing waits then.
    pub fn next(&self) -> Option<(&KeptRequest, Timestamp)> {
        let first = self.kept.all.front()?;
        Some((first, self.may_run_at(self.expected(first.traits.model.id()))))
    }

    /// From when on something may run that takes so long, if nothing waits then.
    pub fn may_run_at(&self, takes: Duration) -> Timestamp {
        let quiet_at = self.submitted_at + takes * QUIET;
        let has_time = self.tightest[0].min(self.tightest[1]) >= takes * 2;
        if has_time { self.free_at } else { self.free_at.max(quiet_at) }
    }

    /// Whether something may run that takes so long; not if something waits.
    pub fn may_run(&self, now: Timestamp, takes: Duration, waits: bool) -> Result<(), NotYet> {
        if self.share == 0.0 {
            return Err(NotYet::Never);
        }
        if self.free_at > now {
            return Err(NotYet::Spent(self.free_at));
        }
        let at = self.may_run_at(takes);
        if waits || at > now { Err(NotYet::Busy(at.max(now + LOOK_AGAIN))) } else { Ok(()) }
    }

    /// It is run.
    pub fn take(&mut self) -> Option<KeptRequest> {
        self.kept.take_first()
    }

    /// What a run of that model may take.
    pub fn expected(&self, model: ModelId) -> Duration {
        self.watched.get(&model).map_or(Duration::ZERO, |watched| watched.slowest)
    }

    /// A request was run alone, when it was served or once more.
    pub fn measured(&mut self, model: ModelId, took: Duration) {
        if let Some(watched) = self.watched.get_mut(&model) {
            watched.slowest = took.max(watched.slowest - watched.slowest / FORGETS);
        }
    }

    /// A device was busy for that long with a measurement, until now.
    pub fn spent(&mut self, now: Timestamp, took: Duration) {
        let pause = took.as_secs_f64() * (1.0 / self.share.clamp(1e-6, 1.0) - 1.0);
        self.free_at = now + Duration::from_secs_f64(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::DataType;
    use bytes::Bytes;

    const MODEL: ModelId = ModelId(3);
    const NUMBER: ModelNumber = ModelNumber { slot: 3, generation: 0 };

    fn kept(size: u32, bytes: usize) -> KeptRequest {
        let data = Bytes::from(vec![0; bytes]);
        let inputs = vec![Tensor { datatype: DataType::Uint8, shape: vec![1, bytes as i64], data }];
        KeptRequest {
            traits: RequestTraits { model: NUMBER, application: ApplicationId::DEFAULT, size: Some(size) },
            kept_at: Timestamp::ZERO,
            inputs,
            rows: 1,
        }
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(millis)
    }

    fn sampler(share: f64) -> Sampler {
        let mut sampler = Sampler::new(share);
        sampler.watch(MODEL, millis(10));
        sampler
    }

    #[test]
    fn all_of_the_first_and_then_a_part_are_picked_of_watched_models_only() {
        let mut some = sampler(0.01);
        assert_eq!((0..864).filter(|_| some.picks(MODEL)).count(), 64 + 100);
        assert!(!some.picks(ModelId(4)));
        let mut none = sampler(0.0);
        assert!(!none.picks(MODEL));
        some.forget(MODEL);
        assert!(!some.picks(MODEL));
    }

    #[test]
    fn what_is_kept_is_bounded_in_number_and_size() {
        let mut sampler = sampler(0.01);
        (0..100).for_each(|size| sampler.keep(kept(size, 10)));
        assert_eq!((sampler.kept.all.len(), sampler.kept.bytes), (MAX_KEPT, 10 * MAX_KEPT));
        assert_eq!(sampler.next().unwrap().0.traits.size, Some(36), "the oldest went");
        sampler.keep(kept(0, MAX_KEPT_BYTES + 1));
        assert_eq!(sampler.kept.all.len(), MAX_KEPT);
        sampler.keep(kept(0, MAX_KEPT_BYTES));
        assert_eq!((sampler.kept.all.len(), sampler.kept.bytes), (1, MAX_KEPT_BYTES));
        sampler.forget(MODEL);
        assert_eq!((sampler.kept.all.len(), sampler.kept.bytes), (0, 0));
    }

    #[test]
    fn requests_to_be_compared_are_a_few_of_those_that_are_asked_for() {
        let mut sampler = sampler(0.01);
        let offer = |sampler: &mut Sampler, count: u32| {
            for size in 0..count {
                if sampler.compares(MODEL) {
                    sampler.keep_to_compare(kept(size, 10));
                }
            }
        };
        let sizes = |taken: Vec<KeptRequest>| taken.iter().map(|kept| kept.traits.size.unwrap()).collect::<Vec<_>>();
        offer(&mut sampler, 9);
        assert_eq!(sizes(sampler.take_to_compare(at(0), MODEL)), [0; 0], "nobody had asked");
        offer(&mut sampler, 9);
        assert_eq!(sizes(sampler.take_to_compare(at(1), MODEL)), [0, 1, 2, 3]);
        assert!(!sampler.compares(MODEL), "once");
        // What is kept for its time stays.
        sampler.keep(kept(7, 10));
        sampler.take_to_compare(at(2), MODEL);
        offer(&mut sampler, 1);
        assert_eq!((sampler.kept.all.len(), sampler.to_compare.bytes), (1, 10));
        sampler.forget(MODEL);
        assert!(!sampler.compares(MODEL) && sampler.to_compare.bytes == 0);
        sampler.keep_to_compare(kept(0, 10));
        assert_eq!(sampler.to_compare.bytes, 0, "it may come after its model went");
    }

    #[test]
    fn requests_to_be_compared_that_nobody_takes_are_let_go() {
        let mut sampler = sampler(0.01);
        sampler.take_to_compare(at(0), MODEL);
        sampler.keep_to_compare(kept(0, 10));
        let until = Timestamp::ZERO + KEPT_FOR;
        assert_eq!((sampler.let_go(at(0)), sampler.to_compare.bytes), (until, 10));
        assert_eq!((sampler.let_go(until), sampler.to_compare.bytes), (Timestamp::NEVER, 0));
        assert!(sampler.take_to_compare(until, MODEL).is_empty() && sampler.compares(MODEL), "others are asked for");
    }

    #[test]
    fn models_whose_requests_are_to_be_compared_are_bounded() {
        let mut sampler = sampler(0.01);
        (0..MODELS_TO_COMPARE as u32 + 1).for_each(|model| _ = sampler.take_to_compare(at(0), ModelId(model)));
        assert!(!sampler.compares(ModelId(0)) && sampler.compares(ModelId(MODELS_TO_COMPARE as u32)));
        assert!(sampler.compares(ModelId(1)) && sampler.compared.len() == MODELS_TO_COMPARE);
        sampler.take_to_compare(at(0), ModelId(0));
        assert!(sampler.compares(ModelId(0)) && sampler.compared.len() == MODELS_TO_COMPARE);
        let mut none = Sampler::new(0.0);
        none.take_to_compare(at(0), MODEL);
        assert!(!none.compares(MODEL), "without a share nothing is kept");
    }

    #[test]
    fn what_nobody_asked_for_runs_where_nobody_waits_within_the_share() {
        let mut sampler = sampler(0.1);
        assert_eq!(sampler.may_run(at(100), millis(50), false), Ok(()));
        assert_eq!(sampler.may_run(at(100), millis(50), true), Err(NotYet::Busy(at(120))));
        sampler.submitted(at(100), millis(99));
        assert_eq!(sampler.may_run(at(100), millis(50), false), Err(NotYet::Busy(at(600))), "a deadline is near");
        sampler.spent(at(100), millis(5));
        assert_eq!(sampler.may_run(at(100), millis(50), true), Err(NotYet::Spent(at(145))));
        assert_eq!(Sampler::new(0.0).may_run(at(100), millis(1), false), Err(NotYet::Never));
    }

    #[test]
    fn measuring_takes_its_share_and_no_more() {
        let mut sampler = sampler(0.1);
        sampler.keep(kept(1, 1));
        assert_eq!(sampler.next().unwrap().1, Timestamp::ZERO);
        // 5 ms of 50.
        sampler.spent(at(100), millis(5));
        assert_eq!(sampler.next().unwrap().1, at(145));
    }

    #[test]
    fn where_deadlines_are_short_it_waits_until_nobody_asks() {
        let mut sampler = sampler(1.0);
        sampler.keep(kept(1, 1));
        sampler.submitted(at(1000), millis(20));
        assert_eq!(sampler.next().unwrap().1, Timestamp::ZERO, "time for the measurement and for another request");
        sampler.submitted(at(1001), millis(19));
        assert_eq!(sampler.next().unwrap().1, at(1101));
        // A longer run is known: it needs more time, and a longer quiet.
        sampler.measured(MODEL, millis(30));
        assert_eq!(sampler.next().unwrap().1, at(1301));
        // What was tight is forgotten.
        (0..2 * RECENT).for_each(|_| sampler.submitted(at(2000), Duration::MAX));
        assert_eq!(sampler.next().unwrap().1, Timestamp::ZERO);
    }
}
