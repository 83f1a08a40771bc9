//! Answers that are kept: bounded in bytes, the most wanted ones stay.
//!
//! Nobody waits for a lock here. What a request asks for it only tries; where another thread is at it just now (to put
//! an answer there takes about a microsecond), the request is computed as if nothing was kept.

use super::key::{AnswerKey, KeyHash};
use bytes::Bytes;
use controller::Tensor;
use quick_cache::sync::Cache;
use quick_cache::{Lifecycle, OptionsBuilder, Weighter};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// All outputs of a model for some inputs, in the signature's order.
pub(crate) type KeptAnswer = Arc<[Tensor]>;

/// What an answer takes beside its tensors: its key twice (in the table, and remembered for a while after it had to
/// go), its place in the table, and the head of the list of its tensors.
const ENTRY_BYTES: usize = 2 * size_of::<AnswerKey>() + 96;
/// What a tensor takes beside its shape and its bytes: itself, the heads of its two allocations, and what counts who
/// shares its bytes.
const TENSOR_BYTES: usize = size_of::<Tensor>() + 32 + 40;
/// Answers are expected to be about as large as this; if they aren't, more or fewer of those that had to go are
/// remembered.
const USUAL_ANSWER_BYTES: u64 = 4 << 10;
/// No answer is larger than one part of the cache: a part has room for the largest body that is usually taken.
const PART_BYTES: u64 = 64 << 20;
/// More parts than this don't make io threads meet more seldom.
const MOST_PARTS: u64 = 16;
/// So many hundredths of a part are for answers that stay, which is the default of `quick_cache`: no answer may have
/// more.
const LARGEST_HUNDREDTHS: u64 = 97;
/// So often a part is tried that another thread has: about as long as it has it.
const TRIES: u32 = 64;

/// See the module.
pub(crate) struct KeptAnswers {
    cache: Cache<AnswerKey, KeptAnswer, AnswerWeight, KeyHash, Evictions>,
    /// The most that one of them may take.
    largest: u64,
    evictions: Arc<AtomicU64>,
}

/// What an answer takes, with all that belongs to it.
#[derive(Clone)]
struct AnswerWeight;

impl AnswerWeight {
    fn of(answer: &[Tensor]) -> u64 {
        let tensor = |tensor: &Tensor| TENSOR_BYTES + size_of_val(&*tensor.shape) + tensor.data.len();
        (answer.iter().map(tensor).sum::<usize>() + ENTRY_BYTES) as u64
    }
}

impl Weighter<AnswerKey, KeptAnswer> for AnswerWeight {
    fn weight(&self, _: &AnswerKey, answer: &KeptAnswer) -> u64 {
        Self::of(answer)
    }
}

/// Counts what has to go, and frees it when nobody can wait for it any more.
#[derive(Clone)]
struct Evictions(Arc<AtomicU64>);

impl Lifecycle<AnswerKey, KeptAnswer> for Evictions {
    type RequestState = Vec<KeptAnswer>;

    fn begin_request(&self) -> Vec<KeptAnswer> {
        Vec::new()
    }

    fn on_evict(&self, gone: &mut Vec<KeptAnswer>, _: AnswerKey, answer: KeptAnswer) {
        gone.push(answer);
    }

    fn end_request(&self, gone: Vec<KeptAnswer>) {
        self.0.fetch_add(gone.len() as u64, Ordering::Relaxed);
    }
}

impl KeptAnswers {
    /// With room for so many bytes.
    pub(crate) fn new(bytes: u64) -> Self {
        let parts = (bytes / PART_BYTES).clamp(1, MOST_PARTS);
        // Not rounded up: the sum of the parts must not be more than was asked for.
        let parts = 1 << parts.ilog2();
        let items = usize::try_from(bytes / USUAL_ANSWER_BYTES).unwrap_or(usize::MAX).max(1);
        let options = OptionsBuilder::new()
            .weight_capacity(bytes / parts * parts)
            .hot_allocation(LARGEST_HUNDREDTHS as f64 / 100.0)
            .estimated_items_capacity(items)
            .shards(parts as usize)
            .build()
            .expect("both of what is needed were given");
        let evictions = Arc::<AtomicU64>::default();
        let lifecycle = Evictions(Arc::clone(&evictions));
        let cache = Cache::with_options(options, AnswerWeight, KeyHash::default(), lifecycle);
        let largest = (u128::from(cache.shard_capacity()) * u128::from(LARGEST_HUNDREDTHS) / 100) as u64;
        Self { cache, largest, evictions }
    }

    /// The answer that is kept under a key.
    pub(crate) fn get(&self, key: &AnswerKey) -> Option<KeptAnswer> {
        tried(|| self.cache.try_get(key).ok()).flatten()
    }

    /// Whether an answer can be kept at all.
    pub(crate) fn has_room(&self, answer: &[Tensor]) -> bool {
        AnswerWeight::of(answer) <= self.largest
    }

    /// Keeps an answer, if it is wanted more than those that would have to go.
    pub(crate) fn put(&self, key: AnswerKey, answer: &KeptAnswer) {
        // If it doesn't succeed the next one will.
        let _ = tried(|| self.cache.try_insert(key, Arc::clone(answer)).ok());
    }

    /// Drops the answers of models that `is_served` doesn't know, one after another.
    pub(crate) fn retain(&self, is_served: impl Fn(u64) -> bool) {
        let gone = self.cache.iter().filter(|(key, _)| !is_served(key.kept_under));
        for (key, _) in gone {
            self.cache.remove(&key);
        }
    }

    /// Drops all of them, one after another; says whether there were any.
    pub(crate) fn empty(&self) -> bool {
        self.cache.drain().count() > 0
    }

    /// What they take.
    pub(crate) fn bytes(&self) -> u64 {
        self.cache.weight()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.cache.len()
    }

    /// How many had to go since this was asked last.
    pub(crate) fn take_evictions(&self) -> u64 {
        self.evictions.swap(0, Ordering::Relaxed)
    }
}

/// Tries something until it succeeds, but not for long.
fn tried<T>(mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    (0..TRIES).find_map(|round| {
        if round > 0 {
            std::hint::spin_loop();
        }
        attempt()
    })
}

/// Outputs in memory of their own. As they come from an execution they are parts of what a whole batch gave, or lie in
/// a device's memory: a kept part would keep all of it.
pub(crate) fn copied(outputs: &[Tensor]) -> KeptAnswer {
    let copy = |tensor: &Tensor| Tensor { data: Bytes::copy_from_slice(&tensor.data), ..tensor.clone() };
    outputs.iter().map(copy).collect()
}

#[cfg(test)]
mod tests {
    use super::super::key::KeyMaker;
    use super::*;
    use base::DataType;

    fn tensor(bytes: usize) -> Tensor {
        Tensor { datatype: DataType::Uint8, shape: vec![bytes as i64], data: vec![7; bytes].into() }
    }

    fn keys(maker: &KeyMaker, kept_under: u64, numbers: std::ops::Range<u32>) -> Vec<AnswerKey> {
        let input = |number: u32| Tensor { data: number.to_le_bytes().to_vec().into(), ..tensor(4) };
        numbers.map(|number| maker.key(kept_under, &[input(number)])).collect()
    }

    #[test]
    fn all_that_is_kept_is_within_the_bound_and_what_had_to_go_is_counted() {
        let (maker, kept) = (KeyMaker::new().unwrap(), KeptAnswers::new(1 << 20));
        for key in keys(&maker, 0, 0..5000) {
            kept.put(key, &copied(&[tensor(1000), tensor(10)]));
            assert!(kept.bytes() <= 1 << 20);
        }
        let each = AnswerWeight::of(&[tensor(1000), tensor(10)]);
        assert!(each > 1010 + 16 + 2 * size_of::<Tensor>() as u64, "more than its bytes: {each}");
        assert_eq!(kept.bytes(), kept.len() as u64 * each);
        assert!(kept.len() as u64 > (1 << 20) / each * 9 / 10, "{} are kept", kept.len());
        assert_eq!(kept.take_evictions() + kept.len() as u64, 5000);
        assert_eq!(kept.take_evictions(), 0);
    }

    #[test]
    fn what_is_larger_than_all_room_is_not_kept_and_nothing_goes_for_it() {
        let (maker, kept) = (KeyMaker::new().unwrap(), KeptAnswers::new(100_000));
        let keys = keys(&maker, 0, 0..2);
        kept.put(keys[0], &copied(&[tensor(1000)]));
        assert!(!kept.has_room(&[tensor(100_000)]) && kept.has_room(&[tensor(50_000)]));
        kept.put(keys[1], &copied(&[tensor(100_000)]));
        assert!(kept.get(&keys[0]).is_some() && kept.get(&keys[1]).is_none());
    }

    #[test]
    fn what_is_asked_for_again_and_again_stays_when_others_come_once() {
        let (maker, kept) = (KeyMaker::new().unwrap(), KeptAnswers::new(1 << 20));
        let wanted = keys(&maker, 0, 0..100);
        for key in &wanted {
            kept.put(*key, &copied(&[tensor(1000)]));
        }
        for once in keys(&maker, 0, 1000..20_000) {
            for key in &wanted[..3] {
                assert!(kept.get(key).is_some());
            }
            kept.put(once, &copied(&[tensor(1000)]));
        }
    }

    #[test]
    fn a_models_answers_go_with_it_and_the_others_stay() {
        let (maker, kept) = (KeyMaker::new().unwrap(), KeptAnswers::new(1 << 20));
        let all = [keys(&maker, 1, 0..100), keys(&maker, 2, 0..100)];
        for key in all.iter().flatten() {
            kept.put(*key, &copied(&[tensor(100)]));
        }
        kept.retain(|number| number == 2);
        assert_eq!((kept.len(), kept.get(&all[0][0]).is_some(), kept.get(&all[1][0]).is_some()), (100, false, true));
        assert!(kept.empty() && !kept.empty());
        assert_eq!((kept.len(), kept.bytes()), (0, 0));
    }

    #[test]
    fn what_is_kept_is_no_part_of_a_batch() {
        let batch = Bytes::from(vec![7; 1 << 20]);
        let part = Tensor { data: batch.slice(..100), ..tensor(100) };
        let kept = copied(std::slice::from_ref(&part));
        drop(part);
        assert!(batch.is_unique(), "nothing holds the batch");
        assert_eq!(kept[0].data.len(), 100);
    }
}
