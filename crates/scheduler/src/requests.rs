//! The requests that the scheduler has in hand, by slot.

use crate::backlog::Booking;
use crate::event::{Outcome, Request};
use crate::queue::Place;
use crate::table::grown;
use base::{DeviceId, Duration, RequestId, Timestamp};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Queued,
    /// In a batch that was sent.
    Running,
    /// As `Running`, but the client has gone.
    Abandoned,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestInHand {
    pub request: Request,
    pub place: Place,
    pub arrived_at: Timestamp,
    pub state: State,
    /// What it adds to its model's demand while it is queued.
    pub work: Duration,
    /// Where that is booked, so that later requests know of it: the device, and which of those that had its number.
    pub booking: Option<(DeviceId, u32, Booking)>,
    /// Its batch was on a device that was lost: it may have been executed, so that it can fail but no longer be
    /// rejected (P8).
    pub stranded: bool,
}

impl RequestInHand {
    /// The outcome that a wanted one comes down to.
    pub fn possible(&self, outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::Rejected(_) if self.stranded => Outcome::Failed,
            other => other,
        }
    }
}

/// Slots are the driver's, dense and bounded; so is this table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    slots: Vec<Option<RequestInHand>>,
    len: usize,
}

impl Requests {
    pub fn insert(&mut self, entry: RequestInHand) {
        let slot = entry.request.id.slot as usize;
        let before = grown(&mut self.slots, slot).replace(entry);
        assert!(before.is_none(), "P1: {} was submitted while its slot is in use", entry.request.id);
        self.len += 1;
    }

    pub fn get(&self, id: RequestId) -> Option<&RequestInHand> {
        self.slots.get(id.slot as usize)?.as_ref().filter(|entry| entry.request.id == id)
    }

    pub fn get_mut(&mut self, id: RequestId) -> Option<&mut RequestInHand> {
        self.slots.get_mut(id.slot as usize)?.as_mut().filter(|entry| entry.request.id == id)
    }

    pub fn remove(&mut self, id: RequestId) -> Option<RequestInHand> {
        self.get(id)?;
        self.len -= 1;
        self.slots[id.slot as usize].take()
    }

    /// How many slots were ever in use at once.
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    pub fn len(&self) -> usize {
        self.len
    }
}
