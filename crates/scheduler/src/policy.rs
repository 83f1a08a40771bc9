//! What a batching policy must answer. It keeps the queues; everything else that it needs to know is in the ledger.

use crate::ledger::Ledger;
use crate::queue::{Candidate, Place, Queued};
use crate::slack::BatchWorkLimit;
use base::{DeviceId, ModelId, RequestId, Timestamp};
use std::collections::BTreeSet;

/// A batch that a policy wants to run now.
#[derive(Debug)]
pub(crate) struct Batch {
    pub model: ModelId,
    pub candidate: Candidate,
    pub members: Vec<RequestId>,
}

pub(crate) trait Policy: std::fmt::Debug + Send {
    fn add_model(&mut self, model: ModelId);

    fn add_device(&mut self, device: DeviceId);

    /// How many requests are queued for a model, batch work included.
    fn queued(&self, model: ModelId) -> usize;

    /// How many rows are queued for a model with a deadline.
    fn urgent_rows(&self, model: ModelId) -> u64;

    /// Whether a request with a deadline is queued for a model.
    fn has_urgent(&self, model: ModelId) -> bool;

    /// How many requests without a deadline are queued for a model.
    fn background_queued(&self, model: ModelId) -> usize;

    /// The first of the batch work queued for a model.
    fn first_background(&self, model: ModelId) -> Option<u64>;

    /// The last deadline in a model's queue.
    fn last_deadline(&self, model: ModelId) -> Option<Timestamp>;

    /// All that is queued for a model; may take time in proportion.
    fn all_queued(&self, model: ModelId) -> Vec<RequestId>;

    fn insert(&mut self, ledger: &Ledger, model: ModelId, place: Place, queued: Queued);

    /// Takes a request out of its queue; does nothing when it isn't there.
    fn remove(&mut self, model: ModelId, place: Place);

    /// A model's weights have arrived on a device.
    fn loaded(&mut self, ledger: &Ledger, model: ModelId, device: DeviceId);

    /// A model's weights are gone from a device.
    fn unloaded(&mut self, ledger: &Ledger, model: ModelId, device: DeviceId);

    /// A device turned out to be free earlier than was planned.
    fn freed(&mut self, ledger: &Ledger, device: DeviceId);

    /// The batch that should start on a device at `start_at`. The caller removes its members.
    fn next_batch(&mut self, ledger: &Ledger, device: DeviceId, start_at: Timestamp) -> Option<Batch>;

    /// Batch work that takes no longer than it may.
    fn next_background(&mut self, ledger: &Ledger, device: DeviceId, limit: BatchWorkLimit) -> Option<Batch>;

    /// Whether batch work is queued for a model that is loaded on one of these devices.
    fn background_waits(&self, devices: &BTreeSet<DeviceId>) -> bool;

    /// A request whose deadline can no longer be met, if there is one. The caller removes it.
    fn expired(&mut self, ledger: &Ledger, now: Timestamp) -> Option<RequestId>;

    /// When `expired` should be asked next.
    fn next_expiry(&self) -> Option<Timestamp>;
}
