//! What a batching policy must answer. Its queues are kept in `Queues`; everything else that it needs to know is in the
//! ledger.

use crate::bits::DeviceSet;
use crate::fair::Shares;
use crate::ledger::Ledger;
use crate::queue::{Candidate, Opening, Place, Queued};
use crate::queues::Queues;
use crate::temper::Temper;
use base::{ActionId, DeviceId, Duration, ModelId, RequestId, Timestamp};

/// A batch that a policy wants to run now.
#[derive(Debug)]
pub(crate) struct Batch {
    pub model: ModelId,
    pub candidate: Candidate,
    pub members: Vec<RequestId>,
    /// Requests that are given up for it: with them it would have been smaller.
    pub dropped: Vec<RequestId>,
}

/// An execution that has begun or is about to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Started {
    pub device: DeviceId,
    pub action: ActionId,
    pub model: ModelId,
    /// Rows of its requests.
    pub rows: u32,
    /// What it is expected to take.
    pub expected: Duration,
    /// When it is expected to be over.
    pub done_at: Timestamp,
}

/// An execution that is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub device: DeviceId,
    pub action: ActionId,
    pub model: ModelId,
    /// Whether all its requests with a deadline were in time.
    pub in_time: bool,
}

pub(crate) trait Policy: std::fmt::Debug + Send {
    fn queues(&self) -> &Queues;

    fn queues_mut(&mut self) -> &mut Queues;

    fn add_model(&mut self, model: ModelId);

    fn add_device(&mut self, device: DeviceId);

    fn insert(&mut self, ledger: &Ledger, model: ModelId, place: Place, queued: Queued);

    /// Takes a request out of its queue; does nothing when it isn't there.
    fn remove(&mut self, model: ModelId, place: Place);

    /// A model's weights have arrived on a device.
    fn loaded(&mut self, ledger: &Ledger, model: ModelId, device: DeviceId);

    /// A model's weights are gone from a device.
    fn unloaded(&mut self, ledger: &Ledger, model: ModelId, device: DeviceId);

    /// A device is gone with everything that was on it; `unloaded` was told before.
    fn lost(&mut self, _device: DeviceId) {}

    /// A device is slower than its kind from now on, or no longer.
    fn set_slow(&mut self, _device: DeviceId, _slow: bool) {}

    /// A device turned out to be free earlier than was planned.
    fn freed(&mut self, _ledger: &Ledger, _device: DeviceId) {}

    /// The batch that should start on a device. The caller removes its members.
    fn next_batch(&mut self, ledger: &Ledger, device: DeviceId, opening: Opening) -> Option<Batch>;

    /// A device with time to spare that should be fed now, because a batch has become ready that it can run. Each call is
    /// followed by `next_batch` for that device.
    fn ripe(&mut self, _ledger: &Ledger, _now: Timestamp, _hungry: &DeviceSet) -> Option<DeviceId> {
        None
    }

    /// Whether `ripe` names every device that should be given a batch with deadlines: then no other is asked for one.
    fn matches(&self) -> bool {
        false
    }

    /// When `ripe` should be asked next if nothing happens before.
    fn next_ripe(&self) -> Option<Timestamp> {
        None
    }

    /// An execution was ordered.
    fn started(&mut self, _started: Started) {}

    /// An execution is over.
    fn ended(&mut self, _ended: Ended) {}

    /// A request with a deadline has its outcome: in time, or not.
    fn settled(&mut self, _now: Timestamp, _model: ModelId, _in_time: bool) {}

    /// Whether requests should be refused at once that the work before them seems to leave no time for.
    fn predicts(&self) -> bool {
        true
    }

    /// The part of the devices that was busy lately, where the policy lets shares of device time be given out.
    fn in_use(&self) -> Option<f64> {
        None
    }

    /// Shares of device time have changed, and with them which models go first.
    fn entitle(&mut self, _shares: &Shares) {}

    /// When a model has its turn, if it has to wait for it.
    fn turn(&mut self, _model: ModelId, _at: Option<Timestamp>) {}

    /// A copy for rehearsals, where there are any.
    fn copy(&self) -> Option<Box<dyn Policy>> {
        None
    }

    /// Has another temper from now on.
    fn adopt(&mut self, _temper: Temper) {}

    /// A running batch that should be broken off for a better one. Its requests are queued again.
    fn preempts(&mut self, _ledger: &Ledger, _now: Timestamp) -> Option<(DeviceId, ActionId)> {
        None
    }
}
