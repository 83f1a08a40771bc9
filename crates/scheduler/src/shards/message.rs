//! What model shards and the ranker tell each other.

use base::{DeviceId, Duration, ModelId, Timestamp};

/// What it takes until a batch can start after it was ordered: `control + data_per_row * size` (Symphony, appendix D).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Delay {
    /// The order's way to the worker, and what else doesn't depend on the size.
    pub control: Duration,
    /// Fetching the input of one row.
    pub data_per_row: Duration,
}

impl Delay {
    /// The delay of a batch of that size.
    #[inline]
    pub fn of(self, size: u32) -> Duration {
        self.control + self.data_per_row * u64::from(size)
    }
}

/// The batch that a model would run next.
///
/// ```text
///             exec_at                 rank                     latest      deadline
///  ──queue──────┬───── schedulable ─────┬───── fewer fit ─────────┬── l(1) ───┤
///               d - l(b+1)              d - l(b)                  d - l(1)    d
/// ```
///
/// All of it follows from the first deadline and the size, and so doesn't change with the time: a shard has something to
/// say only when its queue changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Rows in the batch.
    pub size: u32,
    /// From when on it should start: the frontrun moment, when nobody who comes later can join any more. The origin for a
    /// batch that is full.
    pub exec_at: Timestamp,
    /// After this nothing of it can start in time.
    pub latest: Timestamp,
    /// Its place among those that wait for an executor, the least first. For deferred batching the moment after which the
    /// batch would have to shrink.
    pub rank: Timestamp,
}

/// A shard tells the ranker of a model's newest candidate, or that it has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announcement {
    /// Which model.
    pub model: ModelId,
    /// How many grants of this model the shard had seen. What was said before a grant arrived is about requests that the
    /// grant may have taken, and doesn't count.
    pub grants_seen: u32,
    /// The batch.
    pub candidate: Option<Candidate>,
}

/// The ranker gives an executor to a model, for one batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// Which model.
    pub model: ModelId,
    /// Which executor.
    pub executor: DeviceId,
    /// Which of those that had this number (executors come and go).
    pub life: u32,
    /// When it is expected to be free.
    pub free_at: Timestamp,
}

/// A shard, or the driver, tells the ranker what became of an executor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct News {
    /// Which executor.
    pub executor: DeviceId,
    /// Which of those that had this number.
    pub life: u32,
    /// What became of it.
    pub what: ExecutorNews,
}

/// What became of an executor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExecutorNews {
    /// It was given a batch.
    Busy {
        /// When that should be over.
        until: Timestamp,
        /// What it takes.
        expected: Duration,
    },
    /// A grant found nothing to run.
    Unused {
        /// When the executor is expected to be free, as it was when it was granted.
        free_at: Timestamp,
    },
    /// A batch is over, one way or another.
    Ended {
        /// When it was.
        at: Timestamp,
    },
}
