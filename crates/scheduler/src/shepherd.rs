//! Shepherd's online algorithm, Flex, as Symphony describes it (section 2.2): eager, one candidate for each model, the
//! largest one first; a much larger candidate breaks a running batch off.
//!
//! A candidate is the largest batch that a model's queue makes in time. First requests that leave no time for it are
//! passed over and stay queued; with `gather = "head_first"` the batch begins with the first request and holds as many
//! as that one has time for. Time only makes it smaller, so that what `ready` says is an upper bound, and is corrected
//! when the model comes to the front.
//!
//! When every device is busy and the largest candidate is at least three times the smallest running batch, that batch
//! is broken off; its requests go back to their queue. The candidate is promised the device: those who come back don't
//! make it smaller, though their deadlines are nearer.

use crate::config::{Config, Delay, Gather};
use crate::policy::{Batch, Ended, Fact, Next, Policy, Started, View};
use crate::queue::{Opening, Queued};
use crate::ready_models::ReadyModels;
use crate::table::{Marked, grown};
use base::{ActionId, DeviceId, ModelId, RequestId, Timestamp};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// How many times larger than a running batch a candidate must be to break it off (Shepherd's lambda).
const PREEMPTION: u32 = 3;

/// Larger candidates first, then those that must start sooner.
type Rank = (Reverse<u32>, Timestamp);

/// A device that was or is being cleared for a model's candidate.
#[derive(Clone, Copy, Debug)]
struct Promise {
    device: DeviceId,
    /// What is broken off.
    action: ActionId,
    model: ModelId,
    /// Rows of the candidate.
    rows: u32,
}

#[derive(Clone, Debug, Default)]
struct ShepherdDevice {
    /// Batches under way, with their rows.
    batches: Vec<(ActionId, u32)>,
    /// What it was cleared for.
    cleared_for: Option<(ModelId, u32)>,
    /// It was cleared for nothing: whatever it runs next isn't broken off, so that this can't go on for ever.
    spared: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Shepherd {
    /// Whether every batch begins with its model's first request.
    head_first: bool,
    delay: Delay,
    ready: ReadyModels<Rank>,
    devices: Vec<ShepherdDevice>,
    /// Models whose candidate has changed.
    changed: Marked,
    /// Batches under way that may be broken off, the smallest first.
    running: BTreeSet<(u32, ActionId, DeviceId)>,
    busy_devices: usize,
    /// Batches that are being broken off.
    promises: Vec<Promise>,
    members: Vec<Queued>,
    others: Vec<Queued>,
    skipped: Vec<RequestId>,
}

impl Shepherd {
    pub fn new(config: &Config) -> Self {
        Self { head_first: config.gather == Gather::HeadFirst, delay: config.delay, ..Self::default() }
    }

    fn settle(&mut self, view: &View<'_>) {
        while let Some(model) = self.changed.pop() {
            let rank = self.estimate(view, model);
            self.ready.set(model, rank);
        }
    }

    /// A model's rank if its candidate started now, or a better one.
    fn estimate(&self, view: &View<'_>, model: ModelId) -> Option<Rank> {
        let queue = view.queues.of(model);
        let (deadline_at, first) = queue.first()?;
        let times = view.ledger.model(model).estimates.planned();
        let fits = if self.head_first { times.largest_within(deadline_at.since(view.now)) } else { times.best_batch() };
        let fits = fits.max(first.rows);
        let rows = fits.min(u32::try_from(queue.rows()).unwrap_or(u32::MAX));
        Some((Reverse(rows), deadline_at - times.class_for(rows).least_quantile()))
    }

    /// A model's candidate for an opening, with its rows. `floor` is what a device was cleared for: for so many
    /// rows first requests are passed over in any case.
    fn candidate(&mut self, view: &View<'_>, model: ModelId, opening: Opening, floor: u32) -> Option<(Batch, u32)> {
        let (Reverse(rows), _) = self.estimate(view, model)?;
        let queue = view.queues.of(model);
        let times = view.ledger.model(model).estimates.planned();
        let candidate = queue.window(times, opening, floor, &mut self.members, &mut self.skipped)?;
        let held = rows_of(&self.members);
        if !self.head_first
            && held < rows
            && let Some(candidate) = queue.candidate(times, opening, &mut self.others)
            && rows_of(&self.others) > held
        {
            return Some((Batch::of(model, candidate, &self.others), rows_of(&self.others)));
        }
        Some((Batch::of(model, candidate, &self.members), held))
    }

    fn lost(&mut self, device: DeviceId) {
        let entry = std::mem::take(&mut self.devices[device.index()]);
        self.busy_devices -= usize::from(!entry.batches.is_empty());
        for (action, rows) in entry.batches {
            self.running.remove(&(rows, action, device));
        }
        self.promises.retain(|promise| promise.device != device);
    }

    fn started(&mut self, started: Started) {
        let entry = &mut self.devices[started.device.index()];
        self.busy_devices += usize::from(entry.batches.is_empty());
        entry.batches.push((started.action, started.rows));
        if !std::mem::take(&mut entry.spared) {
            self.running.insert((started.rows, started.action, started.device));
        }
    }

    fn ended(&mut self, ended: Ended) {
        let entry = &mut self.devices[ended.device.index()];
        let Some(index) = entry.batches.iter().position(|&(action, _)| action == ended.action) else { return };
        let (action, rows) = entry.batches.swap_remove(index);
        self.busy_devices -= usize::from(entry.batches.is_empty());
        self.running.remove(&(rows, action, ended.device));
        if let Some(index) = self.promises.iter().position(|promise| promise.action == action) {
            let promise = self.promises.swap_remove(index);
            entry.cleared_for = Some((promise.model, promise.rows));
        }
    }
}

fn rows_of(members: &[Queued]) -> u32 {
    members.iter().map(|member| member.rows).sum()
}

impl Policy for Shepherd {
    fn learn(&mut self, _view: &View<'_>, fact: Fact) {
        match fact {
            Fact::DeviceAdded(device) => _ = grown(&mut self.devices, device.index()),
            Fact::DeviceLost(device) => self.lost(device),
            Fact::Queued { model, .. }
            | Fact::Dequeued(model, _)
            | Fact::Loaded(model, _)
            | Fact::Unloaded(model, _) => self.changed.add(model),
            Fact::Started(started) => self.started(started),
            Fact::Ended(ended) => self.ended(ended),
            _ => {}
        }
    }

    fn next(&mut self, view: &View<'_>) -> Option<Next> {
        if self.busy_devices < view.ledger.device_count {
            return None;
        }
        self.settle(view);
        let &(smallest, action, device) = self.running.first()?;
        loop {
            let (rank, model) = self.ready.first(view.queues, device)?;
            let (Reverse(rows), _) = rank;
            // One at a time for each model: what it is promised may be all that it needs.
            if rows < PREEMPTION * smallest || self.promises.iter().any(|promise| promise.model == model) {
                return None;
            }
            let opening = Opening { free_at: view.now, now: view.now, delay: self.delay };
            let closer = self.candidate(view, model, opening, 0);
            let closer = closer.map(|(batch, rows)| (Reverse(rows), batch.candidate.latest));
            if closer.is_some_and(|closer| closer <= rank) {
                self.running.remove(&(smallest, action, device));
                self.promises.push(Promise { device, action, model, rows });
                return Some(Next::BreakOff(device, action));
            }
            self.ready.set(model, closer);
        }
    }

    fn next_batch(&mut self, view: &View<'_>, device: DeviceId, opening: Opening) -> Option<Batch> {
        self.settle(view);
        if let Some((model, floor)) = self.devices[device.index()].cleared_for.take() {
            let here = view.ledger.model(model).is_loaded_on(device);
            match self.candidate(view, model, opening, floor).filter(|&(_, rows)| here && rows >= floor) {
                Some((batch, _)) => return Some(batch),
                None => self.devices[device.index()].spared = true,
            }
        }
        loop {
            let (rank, model) = self.ready.first(view.queues, device)?;
            match self.candidate(view, model, opening, 0) {
                Some((batch, rows)) => {
                    let closer = (Reverse(rows), batch.candidate.latest);
                    if closer <= rank {
                        return Some(batch);
                    }
                    // It has shrunk since.
                    self.ready.set(model, Some(closer));
                }
                // Nothing is in time; its requests expire.
                None => self.ready.set(model, None),
            }
        }
    }
}
