//! What is due when, in virtual time. Ties go in the order in which they were written down.

use base::{ActionId, DeviceId, RequestId, Timestamp};
use scheduler::{Command, Rehearsed, Report};
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// One of a device's executors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExecutorKind {
    Execute,
    Load,
}

/// Something that is due. `generation` says which generation of a device it belongs to: a device that died has
/// forgotten it.
#[derive(Debug)]
pub(crate) enum Due {
    /// A client of the closed loop sends.
    ClientSends(u32),
    /// A request reaches the controller.
    Submit(RequestId),
    /// A client goes away.
    Cancel(RequestId),
    /// One that asked for a pipeline does.
    CancelWhole(u64),
    /// A stage of a request for a pipeline begins.
    Begin { whole: u64, stage: u32 },
    /// An order reaches a worker.
    Deliver { device: DeviceId, generation: u32, order: Box<Command> },
    /// An executor wanted to be looked at.
    Look { device: DeviceId, generation: u32, executor: ExecutorKind },
    /// An executor is done.
    Ended { device: DeviceId, generation: u32, executor: ExecutorKind, action: ActionId },
    /// A report reaches the controller.
    Report { device: DeviceId, generation: u32, report: Report },
    /// A device freezes.
    Freeze(DeviceId),
    /// A device becomes slow.
    Slow(DeviceId),
    /// What a device was borrowed for is over, and the controller hears of it.
    Return { device: DeviceId, generation: u32, action: ActionId },
    /// The driver borrows some device.
    Borrow,
    /// Some device becomes one of another kind.
    ChangeKind,
    /// A model goes; the number of the change.
    RemoveModel(usize),
    /// Its successor comes.
    AddModel(usize),
    /// A device dies.
    Die(DeviceId),
    /// The controller notices that a device died.
    Notice(DeviceId),
    /// A device is back, empty.
    Revive(DeviceId),
    /// A rehearsal is over, and the controller hears of it.
    Adopt(Rehearsed),
    /// The cluster asks for advice.
    Advise,
    /// GPUs may be divided otherwise.
    Divide,
    /// A device that was asked for is there.
    Come(DeviceId),
}

#[derive(Debug, Default)]
pub(crate) struct Agenda {
    heap: BinaryHeap<Reverse<AgendaItem>>,
    written: u64,
}

#[derive(Debug)]
struct AgendaItem {
    at: Timestamp,
    order: u64,
    due: Due,
}

impl Agenda {
    pub(crate) fn add(&mut self, at: Timestamp, due: Due) {
        self.heap.push(Reverse(AgendaItem { at, order: self.written, due }));
        self.written += 1;
    }

    pub(crate) fn next_at(&self) -> Option<Timestamp> {
        self.heap.peek().map(|Reverse(item)| item.at)
    }

    pub(crate) fn take(&mut self) -> Option<Due> {
        self.heap.pop().map(|Reverse(item)| item.due)
    }
}

impl PartialEq for AgendaItem {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for AgendaItem {}

impl PartialOrd for AgendaItem {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for AgendaItem {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}
