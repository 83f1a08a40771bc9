//! Scheduling on many cores: model shards and one ranker, as pure machines (Symphony, section 4.2 and appendix D).
//!
//! ```text
//!  requests ──> shard 0 ──┐  newest candidate of each model,     ┌── executors, candidates
//!  requests ──> shard 1 ──┼─ what became of executors ──> ranker ┤
//!  requests ──> shard n ──┘ <──────────── grants ─────────       └── timers
//!                  │
//!                  └──> batches to the workers
//! ```
//!
//! A [`Shard`] owns the queues of some models. It sees every request, and offers for each model the batch that it would run
//! next. The [`Ranker`] owns the executors. It sees batches, not requests, and grants executors to models. Neither
//! waits for the other: a grant finds the queue as it is when it arrives, and the batch is formed then.
//!
//! [`Sharded`] joins them in one thread behind the contract of [`crate::Scheduler`]; the live controller runs them in
//! threads, joined by [`Mailboxes`] in which only the newest candidate of a model counts.
//!
//! **Invariant:** an executor is in one hand only: the ranker's, or, between a grant and the news of it, that of the shard that
//! it was granted to.

mod bits;
mod composed;
mod desk;
mod heap;
mod mailbox;
mod message;
mod queue;
mod ranker;
mod shard;
mod table;
mod weights;

pub use composed::{Sharded, ShardedConfig};
pub use desk::{ActionNumbers, BATCH_WORK_PATIENCE, Desk};
pub use mailbox::Mailboxes;
pub use message::{Announcement, Candidate, Delay, ExecutorNews, Grant, News};
pub use queue::Waiting;
pub use ranker::Ranker;
pub use shard::{Batch, Gathering, Outbox, Shard, ShardConfig};
pub use table::LatencyTable;
pub use weights::{Consequence, Weights};
