//! Batches one after another on a device whose transfers run beside its computing: while one is computed, the inputs of the next are on
//! their way, and so are the outputs of the one before.
//!
//! One thread does it all, in turns. It asks instead of waiting, since it has to look for orders, too; what it asks is whether an event on the device has
//! happened. A batch starts when the one before is computed, not earlier, so that its window is checked when it starts. Batches of engines
//! that don't work so are carried out alone, one after another.

use super::{ExecuteOrder, Executor, Failure, Report, Status, guarded};
use crate::batch::{self, BatchItem};
use base::{Timestamp, Transfers};
use engine::{EngineError, Staged};

/// A batch on its way through the device.
struct UnderWay<I> {
    order: ExecuteOrder<I>,
    staged: Box<dyn Staged>,
    staged_at: Timestamp,
    /// Another one was before it: it started when that one was computed, not when its inputs set out.
    behind: bool,
    started_at: Timestamp,
    computed_at: Timestamp,
}

/// The batches under way, at most one in each place.
pub(super) struct Flow<I> {
    staged: Option<UnderWay<I>>,
    running: Option<UnderWay<I>>,
    arriving: Option<UnderWay<I>>,
    /// Could not be staged, or failed: is carried out by itself once nothing else is under way.
    alone: Option<ExecuteOrder<I>>,
}

impl<I> Default for Flow<I> {
    fn default() -> Self {
        Self { staged: None, running: None, arriving: None, alone: None }
    }
}

impl<I> Flow<I> {
    fn is_empty(&self) -> bool {
        self.staged.is_none() && self.running.is_none() && self.arriving.is_none()
    }
}

impl<I: BatchItem> Executor<I> {
    /// Does what can be done now, and says when there will be more: never, unless an order comes.
    pub(super) fn turn(&mut self, report: &impl Fn(Report<I>)) -> Timestamp {
        self.look();
        let mut flow = std::mem::take(&mut self.flow);
        let flowed = !flow.is_empty();
        // What is to run alone waits for the end of what is under way, and what comes waits for it.
        let room = flow.staged.is_none() && flow.alone.is_none() && (self.alone.is_empty() || !flowed);
        if let Some(order) = room.then(|| self.due()).flatten() {
            self.stage(order, &mut flow, report);
        }
        if flow.running.is_none() {
            self.start(&mut flow, report);
        }
        if flow.arriving.is_none() {
            match has(&mut flow.running, |batch| batch.is_computed()) {
                Ok(false) => {}
                Ok(true) => {
                    flow.arriving = flow.running.take();
                    // The device waits for the next one: that goes first.
                    self.start(&mut flow, report);
                    let now = self.clock.now();
                    flow.arriving.iter_mut().for_each(|computed| computed.computed_at = now);
                }
                Err(failure) => settle(flow.running.take(), failure, &mut flow, report),
            }
        }
        match has(&mut flow.arriving, |batch| batch.has_arrived()) {
            Ok(false) => {}
            Ok(true) => self.finish(&mut flow, report),
            Err(failure) => settle(flow.arriving.take(), failure, &mut flow, report),
        }
        self.flow = flow;
        if self.flow.is_empty() && self.do_one_alone(flowed, report) {
            return Timestamp::ZERO;
        }
        self.wants_at()
    }

    /// With nothing under way: does something that has to be done alone, if there is something.
    fn do_one_alone(&mut self, flowed: bool, report: &impl Fn(Report<I>)) -> bool {
        // Orders go first, but those that came behind it while others were under way have waited for it.
        let idle = self.heap.is_empty() && self.flow.alone.is_none();
        if let Some(work) = (flowed || idle).then(|| self.alone.pop_front()).flatten() {
            // Whoever sent it learns of a panic by the end of its channel.
            let _ = guarded(|| {
                work();
                Ok(())
            });
            return true;
        }
        let Some(order) = self.flow.alone.take() else { return false };
        self.carry_out(order, report);
        true
    }

    /// When there will be something to do, if nothing comes before.
    fn wants_at(&self) -> Timestamp {
        let Flow { staged, running, arriving, .. } = &self.flow;
        // Where an engine doesn't know when something will be done, it is asked again and again.
        let known_at = |batch: &UnderWay<I>| match batch.staged.due_at() {
            Some(instant) => self.clock.at(instant),
            None => Timestamp::ZERO,
        };
        let done_at = [running, arriving].into_iter().flatten().map(known_at).min().unwrap_or(Timestamp::NEVER);
        let room = staged.is_none() && self.flow.alone.is_none() && (self.alone.is_empty() || self.flow.is_empty());
        let next_at = self
            .heap
            .peek()
            .filter(|_| room)
            .map_or(Timestamp::NEVER, |first| if self.retired { Timestamp::ZERO } else { first.0.window.earliest });
        done_at.min(next_at)
    }

    /// Whether nothing is left to do and nothing will come.
    pub(super) fn has_ended(&self) -> bool {
        self.closed && self.heap.is_empty() && self.alone.is_empty() && self.flow.is_empty()
    }

    /// Lets the inputs of an order go to the device.
    fn stage(&mut self, mut order: ExecuteOrder<I>, flow: &mut Flow<I>, report: &impl Fn(Report<I>)) {
        let staged_at = self.clock.now();
        if staged_at > order.window.latest || self.retired {
            return report(Report { action: order.action, status: Status::TooLate, returned: order.items });
        }
        let cache = &mut self.cache;
        let staged = guarded(|| {
            let ExecuteOrder { slot, signature, padding, items, .. } = &mut order;
            let mut weights = slot.weights().map_err(Failure::Refused)?;
            // Whatever is wrong is said by who carries it out alone.
            let Some(loaded) = weights.as_mut() else { return Ok(None) };
            Ok(batch::stage(loaded.as_mut(), signature, padding.as_deref(), cache, items))
        });
        match staged {
            Ok(Some(Ok(staged))) => {
                let (behind, started_at, computed_at) = (flow.running.is_some(), staged_at, staged_at);
                flow.staged = Some(UnderWay { order, staged, staged_at, behind, started_at, computed_at });
            }
            Ok(None | Some(Err(_))) => flow.alone = Some(order),
            Err(Failure::Refused(reason)) => fail(order, Status::Failed(reason), report),
            Err(Failure::Panic(reason)) => fail(order, Status::Panicked(reason), report),
        }
    }

    /// Starts what is staged, if it is still in its window.
    fn start(&mut self, flow: &mut Flow<I>, report: &impl Fn(Report<I>)) {
        let Some(mut next) = flow.staged.take() else { return };
        if next.behind {
            self.look();
            next.started_at = self.clock.now();
        }
        if next.started_at > next.order.window.latest || self.retired {
            let UnderWay { order, staged, .. } = next;
            let_go(staged);
            return report(Report { action: order.action, status: Status::TooLate, returned: order.items });
        }
        match guarded(|| next.staged.start().map_err(refused)) {
            Ok(()) => flow.running = Some(next),
            Err(failure) => settle(Some(next), failure, flow, report),
        }
    }

    /// Hands out what has arrived.
    fn finish(&mut self, flow: &mut Flow<I>, report: &impl Fn(Report<I>)) {
        let Some(mut arrived) = flow.arriving.take() else { return };
        let UnderWay { order, staged, staged_at, started_at, computed_at, .. } = &mut arrived;
        let ExecuteOrder { slot, signature, padding, items, .. } = order;
        let single = items.len() == 1;
        let (clock, times) = (self.clock, (*started_at, *computed_at));
        let done = guarded(|| {
            let counted = (clock, &*slot.statistics);
            batch::finish(&mut **staged, signature, padding.as_deref(), counted, times, items).map_err(refused)
        });
        match done {
            Ok((moved, ended_at)) => {
                let before = moved.early.min(started_at.since(*staged_at));
                let transfers = Transfers { before, beside: moved.inputs + moved.outputs };
                let status = Status::Done { started_at: *started_at, ended_at, transfers };
                self.linger_after(single, ended_at.since(*started_at), ended_at);
                let UnderWay { order, staged, .. } = arrived;
                // Before the report: what follows it may be an unload.
                let_go(staged);
                report(Report { action: order.action, status, returned: Vec::new() });
            }
            Err(failure) => settle(Some(arrived), failure, flow, report),
        }
    }
}

/// Whether the batch in a place has come so far.
fn has<I>(
    place: &mut Option<UnderWay<I>>,
    ask: impl FnOnce(&mut dyn Staged) -> Result<bool, EngineError>,
) -> Result<bool, Failure> {
    place.as_mut().map_or(Ok(false), |batch| guarded(|| ask(&mut *batch.staged).map_err(refused)))
}

/// Waits for the end of a batch that is broken off, or frees what one had that is over.
fn let_go(staged: Box<dyn Staged>) {
    let gone = guarded(|| {
        drop(staged);
        Ok(())
    });
    if let Err(Failure::Panic(reason) | Failure::Refused(reason)) = gone {
        tracing::error!("a batch could not be let go: {reason}");
    }
}

fn refused(error: EngineError) -> Failure {
    Failure::Refused(error.to_string())
}

/// A batch that was under way failed: it is carried out again, alone, where each of its requests gets its own reason.
fn settle<I: BatchItem>(
    under_way: Option<UnderWay<I>>,
    failure: Failure,
    flow: &mut Flow<I>,
    report: &impl Fn(Report<I>),
) {
    let Some(UnderWay { order, staged, .. }) = under_way else { return };
    let_go(staged);
    match failure {
        Failure::Refused(_) if flow.alone.is_none() => flow.alone = Some(order),
        Failure::Refused(reason) => fail(order, Status::Failed(reason), report),
        Failure::Panic(reason) => fail(order, Status::Panicked(reason), report),
    }
}

/// Gives the requests of an order their reason.
fn fail<I: BatchItem>(mut order: ExecuteOrder<I>, status: Status, report: &impl Fn(Report<I>)) {
    let (Status::Failed(reason) | Status::Panicked(reason)) = &status else { unreachable!("only failures come here") };
    order.items.drain(..).for_each(|item| item.deliver(Err(reason.clone())));
    report(Report { action: order.action, status, returned: Vec::new() });
}
