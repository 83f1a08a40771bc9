//! The online profiler's choices: which requests are run once more, alone, and when.
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
pub(crate) struct KeptRequest {
    pub traits: RequestTraits,
    pub inputs: Vec<Tensor>,
    pub rows: u32,
}

impl KeptRequest {
    fn bytes(&self) -> usize {
        self.inputs.iter().map(|input| input.data.len()).sum()
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
    kept: VecDeque<KeptRequest>,
    kept_bytes: usize,
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
            kept: VecDeque::new(),
            kept_bytes: 0,
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
            self.kept.retain(|kept| kept.traits.model.id() != model);
            self.kept_bytes = self.kept.iter().map(KeptRequest::bytes).sum();
        }
    }

    /// A request came that has that long.
    pub fn submitted(&mut self, now: Timestamp, budget: Duration) {
        if self.watched.is_empty() {
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
        let bytes = kept.bytes();
        if bytes > MAX_KEPT_BYTES {
            return;
        }
        while self.kept.len() >= MAX_KEPT || self.kept_bytes + bytes > MAX_KEPT_BYTES {
            self.drop_first();
        }
        self.kept_bytes += bytes;
        self.kept.push_back(kept);
    }

    fn drop_first(&mut self) -> Option<KeptRequest> {
        let first = self.kept.pop_front()?;
        self.kept_bytes -= first.bytes();
        Some(first)
    }

    /// The one to run next, and from when on that may be if nothing waits then.
    pub fn next(&self) -> Option<(&KeptRequest, Timestamp)> {
        let first = self.kept.front()?;
        let takes = self.expected(first.traits.model.id());
        let quiet_at = self.submitted_at + takes * QUIET;
        let has_time = self.tightest[0].min(self.tightest[1]) >= takes * 2;
        Some((first, if has_time { self.free_at } else { self.free_at.max(quiet_at) }))
    }

    /// It is run.
    pub fn take(&mut self) -> Option<KeptRequest> {
        self.drop_first()
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
        assert_eq!((sampler.kept.len(), sampler.kept_bytes), (MAX_KEPT, 10 * MAX_KEPT));
        assert_eq!(sampler.next().unwrap().0.traits.size, Some(36), "the oldest went");
        sampler.keep(kept(0, MAX_KEPT_BYTES + 1));
        assert_eq!(sampler.kept.len(), MAX_KEPT);
        sampler.keep(kept(0, MAX_KEPT_BYTES));
        assert_eq!((sampler.kept.len(), sampler.kept_bytes), (1, MAX_KEPT_BYTES));
        sampler.forget(MODEL);
        assert_eq!((sampler.kept.len(), sampler.kept_bytes), (0, 0));
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
