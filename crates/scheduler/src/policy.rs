//! What a batching policy is told, what it may look at, and what it answers. The skeleton (`Scheduler`) keeps all
//! books: queues, places and shares are brought up to date before a policy is told.

use crate::batch_rule::BatchRule;
use crate::bits::DeviceSet;
use crate::fair::Shares;
use crate::ledger::Ledger;
use crate::pipelines::Pipelines;
use crate::queue::{Candidate, Opening, Place, Queued};
use crate::queues::Queues;
use base::{ActionId, DeviceId, Duration, ModelId, RequestId, Timestamp};

/// All that a policy may look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub now: Timestamp,
    pub ledger: &'a Ledger,
    pub queues: &'a Queues,
    /// Devices with time to spare.
    pub hungry: &'a DeviceSet,
    pub shares: &'a Shares,
    pub pipelines: &'a Pipelines,
}

impl View<'_> {
    /// On how many devices a model is that aren't slower than their kind, at least one.
    pub fn places_of(&self, model: ModelId) -> usize {
        let devices = self.queues.devices_of(model);
        (devices.len() - self.ledger.slow.common(devices).count()).max(1)
    }

    /// Whether nobody is given up for a larger batch on a device: one that is slow, because those that it has no time
    /// for others may have; and one that has idled, because it had time for them (P10).
    pub fn gives_up_nobody(&self, device: DeviceId) -> bool {
        self.ledger.slow.contains(device) || self.ledger.device(device).idle_since < self.now
    }

    /// How many devices have time to spare and aren't slower than their kind.
    pub fn quick_hungry(&self) -> usize {
        let slow = &self.ledger.slow;
        self.hungry.len() - if slow.is_empty() { 0 } else { slow.common(self.hungry).count() }
    }
}

/// What has happened. Each policy takes from it what it cares about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fact {
    ModelAdded(ModelId),
    /// Nothing is loaded there.
    DeviceAdded(DeviceId),
    /// A device is gone with everything that was on it; `Unloaded` was told before.
    DeviceLost(DeviceId),
    /// A device turned out to be free earlier than was planned.
    DeviceFreed(DeviceId),
    /// A model's weights have arrived on a device.
    Loaded(ModelId, DeviceId),
    /// A model's weights are gone from a device, or will never come.
    Unloaded(ModelId, DeviceId),
    /// A request is in its model's queue; whether it comes back there, because its batch came to nothing.
    Queued {
        model: ModelId,
        place: Place,
        queued: Queued,
        again: bool,
    },
    /// The calls of a model that come together are all in its queue.
    Gathered(ModelId),
    /// A request no longer is in its model's queue: it runs, or had its end.
    Dequeued(ModelId, Place),
    /// An execution was ordered, and its model's turn is over.
    Started(Started),
    /// An execution is over.
    Ended(Ended),
    /// A request with a deadline has its outcome.
    Settled {
        in_time: bool,
    },
    /// Shares of device time were computed anew, and with them who goes first and who is let in by turns.
    Shared,
    /// Another rule is in force (`rehearsal.rs`).
    Adopted(BatchRule),
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

/// A batch that a policy wants to run now.
#[derive(Debug)]
pub(crate) struct Batch {
    pub model: ModelId,
    pub candidate: Candidate,
    pub members: Vec<RequestId>,
    /// Requests that are given up for it: with them it would have been smaller.
    pub dropped: Vec<RequestId>,
}

impl Batch {
    /// One for which nothing is given up.
    pub fn of(model: ModelId, candidate: Candidate, members: &[Queued]) -> Self {
        Self::without(model, candidate, members, &[])
    }

    /// One for which these are given up.
    pub fn without(model: ModelId, candidate: Candidate, members: &[Queued], dropped: &[RequestId]) -> Self {
        let members = members.iter().map(|member| member.id).collect();
        Self { model, candidate, members, dropped: dropped.to_vec() }
    }
}

/// What a policy wants to be done of its own accord.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    /// A device with time to spare should be fed, because a batch is ready that it can run. `next_batch` is asked for
    /// it.
    Feed(DeviceId),
    /// A running batch should be broken off for a better one. Its requests are queued again.
    BreakOff(DeviceId, ActionId),
}

/// A maker of candidates. What is the same for all policies of a kind is on `PolicyKind`.
pub(crate) trait Policy: std::fmt::Debug + Send + Copied {
    /// Takes a fact in. Decides nothing.
    fn learn(&mut self, view: &View<'_>, fact: Fact);

    /// What is to be done next; asked until there is nothing more, at each event.
    fn next(&mut self, _view: &View<'_>) -> Option<Next> {
        None
    }

    /// When `next` should be asked if nothing happens before.
    fn next_at(&self) -> Option<Timestamp> {
        None
    }

    /// The batch that should start on a device. The skeleton takes its members out of their queue.
    fn next_batch(&mut self, view: &View<'_>, device: DeviceId, opening: Opening) -> Option<Batch>;
}

/// Copies of policies, for rehearsals.
pub(crate) trait Copied {
    fn copy(&self) -> Box<dyn Policy>;
}

impl<P: Policy + Clone + 'static> Copied for P {
    fn copy(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}
