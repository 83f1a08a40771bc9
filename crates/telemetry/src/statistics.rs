//! What was computed with a model and where the time went, counted for Triton's statistics and for the metrics under
//! its names.
//!
//! Executors count each batch once, gateways each answer once; both with a few relaxed additions, without a lock and,
//! but for the first batch of a new size, without an allocation. Reading sums up what is there: numbers that are read
//! while others count may be apart by a batch.

use base::{Duration, Timestamp};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Batches of up to this many rows are told apart by size; larger ones count with it.
pub const LARGEST_TOLD_APART: u32 = (1 << SIZE_CLASSES) - 1;

/// Sizes are kept in classes: class k has the sizes from 2^k to 2^(k+1) - 1, and takes memory once one of them was
/// seen.
const SIZE_CLASSES: usize = 16;

/// The instants of one execution of a batch.
///
/// ```text
///  started_at      gathered_at      computed_at      ended_at
///  ──┬── gather inputs ──┬── compute ──┬── copy outputs ──┤
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchTimes {
    /// The executor turned to it.
    pub started_at: Timestamp,
    /// The inputs of all requests lie behind one another.
    pub gathered_at: Timestamp,
    /// It was seen that the engine has computed it.
    pub computed_at: Timestamp,
    /// The outputs are split, and ready to be delivered.
    pub ended_at: Timestamp,
}

impl BatchTimes {
    /// The span for gathering the inputs.
    pub fn input(&self) -> Duration {
        self.gathered_at.since(self.started_at)
    }

    /// The span in which the engine computed.
    pub fn infer(&self) -> Duration {
        self.computed_at.since(self.gathered_at)
    }

    /// The span for copying and splitting the outputs.
    pub fn output(&self) -> Duration {
        self.ended_at.since(self.computed_at)
    }
}

/// The counters of one version of a model that executors write, and of its answers that are kept.
#[derive(Debug, Default)]
pub struct Statistics {
    work: BatchCounters,
    answers: AnswerCounters,
    /// Requests that wait to be handed to a device.
    pending: AtomicI64,
    batches: [OnceLock<Box<[BatchCell]>>; SIZE_CLASSES],
    /// Bytes of weights, by device. Only loads and unloads write it.
    resident: Mutex<BTreeMap<String, u64>>,
}

/// What each batch adds to. Apart from other memory, so that executors don't disturb whoever reads beside it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct BatchCounters {
    requests: AtomicU64,
    rows: AtomicU64,
    executions: AtomicU64,
    /// Each of these four is a sum over requests: a batch counts once for each of its requests.
    queue_nanos: AtomicU64,
    input_nanos: AtomicU64,
    infer_nanos: AtomicU64,
    output_nanos: AtomicU64,
    last_started_nanos: AtomicU64,
}

/// What requests of a model whose answers are kept add to.
#[derive(Debug, Default)]
struct AnswerCounters {
    /// Whether its answers are kept, or ever were.
    kept: AtomicBool,
    hits: AtomicU64,
    hit_nanos: AtomicU64,
    misses: AtomicU64,
    miss_nanos: AtomicU64,
}

/// Batches of one size.
#[derive(Debug, Default)]
struct BatchCell {
    count: AtomicU64,
    input_nanos: AtomicU64,
    infer_nanos: AtomicU64,
    output_nanos: AtomicU64,
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Statistics {
    /// A batch of that many requests and rows was computed; `queued` is how long its requests had waited, all together.
    pub fn computed(&self, requests: u64, rows: u32, queued: Duration, times: &BatchTimes) {
        let (input, infer, output) = (times.input().as_nanos(), times.infer().as_nanos(), times.output().as_nanos());
        let work = &self.work;
        add(&work.requests, requests);
        add(&work.rows, rows.into());
        add(&work.executions, 1);
        add(&work.queue_nanos, queued.as_nanos());
        add(&work.input_nanos, input * requests);
        add(&work.infer_nanos, infer * requests);
        add(&work.output_nanos, output * requests);
        work.last_started_nanos.store(times.started_at.as_nanos(), Ordering::Relaxed);
        let cell = self.cell(rows);
        add(&cell.count, 1);
        add(&cell.input_nanos, input);
        add(&cell.infer_nanos, infer);
        add(&cell.output_nanos, output);
    }

    /// A request of that many rows, which came then, was answered by other models: they count what was computed.
    pub fn answered_by_others(&self, rows: u32, at: Timestamp) {
        add(&self.work.rows, rows.into());
        add(&self.work.executions, 1);
        self.work.last_started_nanos.store(at.as_nanos(), Ordering::Relaxed);
    }

    fn cell(&self, rows: u32) -> &BatchCell {
        let rows = rows.clamp(1, LARGEST_TOLD_APART);
        let class = rows.ilog2();
        let cells =
            self.batches[class as usize].get_or_init(|| (0..1 << class).map(|_| BatchCell::default()).collect());
        &cells[(rows - (1 << class)) as usize]
    }

    /// The model's answers are kept from now on.
    pub(crate) fn keeps_answers(&self) {
        self.answers.kept.store(true, Ordering::Relaxed);
    }

    /// Whether the model's answers are kept, or ever were.
    pub(crate) fn are_answers_kept(&self) -> bool {
        self.answers.kept.load(Ordering::Relaxed)
    }

    /// An answer that was kept was found for a request, which took so long.
    pub fn hit(&self, took: Duration) {
        add(&self.answers.hits, 1);
        add(&self.answers.hit_nanos, took.as_nanos());
    }

    /// None was found, which took so long.
    pub fn missed(&self, took: Duration) {
        add(&self.answers.misses, 1);
        add(&self.answers.miss_nanos, took.as_nanos());
    }

    /// The answer to a request for which none was found is kept, which took so long.
    pub fn kept(&self, took: Duration) {
        add(&self.answers.miss_nanos, took.as_nanos());
    }

    /// A request waits to be handed to a device.
    pub fn waits(&self) {
        self.pending.fetch_add(1, Ordering::Relaxed);
    }

    /// So many requests wait no longer: a device has them, or they are over.
    pub fn wait_no_longer(&self, requests: usize) {
        self.pending.fetch_sub(requests as i64, Ordering::Relaxed);
    }

    /// So many bytes of weights came onto that device.
    pub fn came(&self, device: &str, bytes: u64) {
        let mut resident = self.resident.lock().unwrap_or_else(PoisonError::into_inner);
        *resident.entry(device.to_owned()).or_default() += bytes;
    }

    /// So many bytes of weights are no longer on that device. A model that was changed may still be there in its new
    /// form.
    pub fn went(&self, device: &str, bytes: u64) {
        let mut resident = self.resident.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = resident.get_mut(device) {
            *there = there.saturating_sub(bytes);
        }
    }

    /// Requests that wait to be handed to a device.
    pub(crate) fn pending(&self) -> i64 {
        self.pending.load(Ordering::Relaxed).max(0)
    }

    /// Requests that were computed.
    pub(crate) fn requests(&self) -> u64 {
        get(&self.work.requests)
    }

    /// What was counted, with what the gateways counted.
    pub fn totals(&self, success: Spans, fail: Spans) -> ModelTotals {
        let work = &self.work;
        let count = get(&work.requests);
        let spans = |nanos: &AtomicU64| Spans { count, total: Duration::from_nanos(get(nanos)) };
        let last = get(&work.last_started_nanos);
        ModelTotals {
            last_inference_at: (last > 0).then(|| Timestamp::from_nanos(last)),
            inferences: get(&work.rows),
            executions: get(&work.executions),
            success,
            fail,
            queue: spans(&work.queue_nanos),
            input: spans(&work.input_nanos),
            infer: spans(&work.infer_nanos),
            output: spans(&work.output_nanos),
            cache_hit: Spans {
                count: get(&self.answers.hits),
                total: Duration::from_nanos(get(&self.answers.hit_nanos)),
            },
            cache_miss: Spans {
                count: get(&self.answers.misses),
                total: Duration::from_nanos(get(&self.answers.miss_nanos)),
            },
            batches: self.batch_totals(),
            resident: {
                let resident = self.resident.lock().unwrap_or_else(PoisonError::into_inner);
                resident
                    .iter()
                    .filter(|(_, bytes)| **bytes > 0)
                    .map(|(device, &bytes)| (device.clone(), bytes))
                    .collect()
            },
        }
    }

    fn batch_totals(&self) -> Vec<BatchTotals> {
        let sizes = self.batches.iter().enumerate().filter_map(|(class, cells)| Some((1u32 << class, cells.get()?)));
        let cells = sizes.flat_map(|(first, cells)| (first..).zip(cells));
        let seen = cells.filter(|(_, cell)| get(&cell.count) > 0);
        seen.map(|(rows, cell)| {
            let count = get(&cell.count);
            let spans = |nanos: &AtomicU64| Spans { count, total: Duration::from_nanos(get(nanos)) };
            let (input, infer) = (spans(&cell.input_nanos), spans(&cell.infer_nanos));
            BatchTotals { rows, input, infer, output: spans(&cell.output_nanos) }
        })
        .collect()
    }
}

/// How often something happened, and what it took together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spans {
    /// How often.
    pub count: u64,
    /// What it took, all together.
    pub total: Duration,
}

/// What was counted for one version of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelTotals {
    /// When the last batch was started.
    pub last_inference_at: Option<Timestamp>,
    /// Rows that were computed.
    pub inferences: u64,
    /// Batches that were computed.
    pub executions: u64,
    /// Requests that were answered with outputs, from their arrival to the answer.
    pub success: Spans,
    /// Requests that got none, from their arrival to the refusal.
    pub fail: Spans,
    /// Requests that were computed: their time until a device turned to them.
    pub queue: Spans,
    /// Requests that were computed: the time in which the inputs of their batches were gathered.
    pub input: Spans,
    /// Requests that were computed: the time in which the engine computed.
    pub infer: Spans,
    /// Requests that were computed: the time in which the outputs of their batches were copied and split.
    pub output: Spans,
    /// Requests for which an answer was kept: the time to find it.
    pub cache_hit: Spans,
    /// Requests for which none was kept: the time to find that, and to keep theirs.
    pub cache_miss: Spans,
    /// Batches, by rows, ascending; sizes that were seen only.
    pub batches: Vec<BatchTotals>,
    /// Bytes of weights, by the devices on which they are.
    pub resident: Vec<(String, u64)>,
}

/// Batches of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchTotals {
    /// Rows of each.
    pub rows: u32,
    /// What gathering their inputs took.
    pub input: Spans,
    /// What computing them took.
    pub infer: Spans,
    /// What copying and splitting their outputs took.
    pub output: Spans,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(started: u64, spans: [u64; 3]) -> BatchTimes {
        let at = Timestamp::from_nanos;
        let [input, infer, output] = spans;
        BatchTimes {
            started_at: at(started),
            gathered_at: at(started + input),
            computed_at: at(started + input + infer),
            ended_at: at(started + input + infer + output),
        }
    }

    fn spans(count: u64, nanos: u64) -> Spans {
        Spans { count, total: Duration::from_nanos(nanos) }
    }

    #[test]
    fn a_batch_counts_once_for_each_request_and_once_for_its_size() {
        let statistics = Statistics::default();
        statistics.computed(2, 5, Duration::from_nanos(30), &times(100, [1, 10, 3]));
        statistics.computed(1, 1, Duration::from_nanos(4), &times(200, [0, 7, 2]));
        let totals = statistics.totals(Spans::default(), Spans::default());
        assert_eq!((totals.inferences, totals.executions), (6, 2));
        assert_eq!(totals.last_inference_at, Some(Timestamp::from_nanos(200)));
        assert_eq!(totals.queue, spans(3, 34));
        assert_eq!((totals.input, totals.infer, totals.output), (spans(3, 2), spans(3, 27), spans(3, 8)));
        let batch = |rows, [input, infer, output]: [u64; 3]| BatchTotals {
            rows,
            input: spans(1, input),
            infer: spans(1, infer),
            output: spans(1, output),
        };
        assert_eq!(totals.batches, [batch(1, [0, 7, 2]), batch(5, [1, 10, 3])]);
    }

    #[test]
    fn every_size_has_its_own_cell_up_to_the_largest() {
        let statistics = Statistics::default();
        let sizes = [1, 2, 3, 4, 7, 8, 255, 256, 65_534, 65_535];
        for rows in sizes {
            statistics.computed(1, rows, Duration::ZERO, &times(1, [0; 3]));
        }
        statistics.computed(1, 1_000_000, Duration::ZERO, &times(1, [0; 3]));
        let totals = statistics.totals(Spans::default(), Spans::default());
        assert_eq!(totals.batches.iter().map(|batch| batch.rows).collect::<Vec<_>>(), sizes);
        assert_eq!(totals.batches.last().map(|batch| batch.infer.count), Some(2));
    }

    #[test]
    fn what_is_found_and_what_is_not_are_counted_apart() {
        let statistics = Statistics::default();
        statistics.hit(Duration::from_nanos(5));
        statistics.missed(Duration::from_nanos(7));
        statistics.missed(Duration::from_nanos(1));
        statistics.kept(Duration::from_nanos(20));
        let totals = statistics.totals(Spans::default(), Spans::default());
        assert_eq!((totals.cache_hit, totals.cache_miss), (spans(1, 5), spans(2, 28)));
    }

    #[test]
    fn weights_are_where_they_came_and_did_not_go() {
        let statistics = Statistics::default();
        statistics.came("cpu:0", 5);
        statistics.came("cpu:1", 5);
        statistics.came("cpu:1", 7);
        statistics.went("cpu:0", 5);
        statistics.went("cpu:1", 5);
        let totals = statistics.totals(Spans::default(), Spans::default());
        assert_eq!(totals.resident, [("cpu:1".to_owned(), 7)]);
    }
}
