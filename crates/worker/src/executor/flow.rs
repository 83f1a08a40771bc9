//! How a device carries out its orders, one batch after another: while one is computed, the inputs of the next are on
//! their way, and so are the outputs of the one before.
//!
//! One thread does it all, in turns. It asks instead of waiting, since it has to look for orders, too; what it asks is
//! whether an event on the device has happened. A batch starts when the one before is computed, not earlier, so that
//! its window is checked when it starts. A batch that is computed on this thread has the device to itself, and so has
//! an order whose requests aren't one batch.

use super::{BatchFailure, DeviceExecutor, ExecuteOrder, IdleWork, NOT_LOADED, OrderReport, Status, guarded};
use crate::batch::{self, BatchItem, Gathering, Group};
use base::{Duration, Timestamp, Transfers};
use engine::{DeviceTimes, EngineError, Staged};
use std::collections::VecDeque;
use telemetry::BatchTimes;

/// An order, as far as it has come. Requests that have their answer are no longer in it.
struct OpenOrder<I> {
    order: ExecuteOrder<I>,
    /// So many of its requests, the first ones, are run one by one, exactly as they are: what one made fail must not
    /// fail the others.
    one_by_one: usize,
    /// When its first batch started. From then on it is carried out to the end.
    began_at: Option<Timestamp>,
    failures: Failures,
}

/// What failed of an order. Then its time says nothing about its size, though others of its requests have their
/// answers.
#[derive(Default)]
struct Failures {
    /// What the engine said, of what weighs most: what isn't the inputs' fault.
    reason: Option<String>,
    /// Requests whose inputs the model can't compute.
    unfit: u32,
    /// Requests that have no answer for another reason.
    others: u32,
}

impl Failures {
    /// A batch failed, whose requests are run again one by one.
    fn together(&mut self, reason: String) {
        self.reason.get_or_insert(reason);
    }

    /// A request failed that was alone in its batch.
    fn alone(&mut self, reason: String, unfit: bool) {
        *(if unfit { &mut self.unfit } else { &mut self.others }) += 1;
        if !unfit || self.others == 0 {
            self.reason = Some(reason);
        }
    }

    /// What became of the order, unless nothing failed.
    fn status(self) -> Option<Status> {
        let reason = self.reason?;
        let unfit = self.unfit > 0 && self.others == 0;
        Some(if unfit { Status::Unfit { reason, requests: self.unfit } } else { Status::Failed(reason) })
    }
}

impl<I: BatchItem> OpenOrder<I> {
    fn new(order: ExecuteOrder<I>) -> Self {
        Self { order, one_by_one: 0, began_at: None, failures: Failures::default() }
    }

    /// Its next batch.
    fn next_group(&mut self) -> Group {
        let ExecuteOrder { items, signature, padding, max_elements, .. } = &mut self.order;
        if self.one_by_one == 0 {
            match Group::form(items, signature, padding.as_ref(), *max_elements) {
                Ok(group) => return group,
                Err(count) => self.one_by_one = count,
            }
        }
        Group::ONE
    }

    /// Whether it may be started, or go on.
    fn may_start(&self, now: Timestamp, retired: bool) -> bool {
        self.began_at.is_some() || (now <= self.order.window.latest && !retired)
    }
}

/// A batch on its way through the device.
struct BatchUnderWay<I> {
    work: OpenOrder<I>,
    group: Group,
    staged: Box<dyn Staged>,
    staged_at: Timestamp,
    /// Another one was before it: it started when that one was computed, not when its inputs set out.
    behind: bool,
    times: BatchTimes,
}

/// What is under way: at most one batch in each place, and orders.
pub(super) struct Flow<I> {
    staged: Option<BatchUnderWay<I>>,
    running: Option<BatchUnderWay<I>>,
    arriving: Option<BatchUnderWay<I>>,
    /// Orders whose next batch must have the device to itself: at most one that waits for that, and those of which a
    /// batch failed.
    exclusive: VecDeque<OpenOrder<I>>,
}

impl<I> Default for Flow<I> {
    fn default() -> Self {
        Self { staged: None, running: None, arriving: None, exclusive: VecDeque::new() }
    }
}

impl<I> Flow<I> {
    /// Whether no batch is under way.
    fn is_idle(&self) -> bool {
        self.staged.is_none() && self.running.is_none() && self.arriving.is_none()
    }

    fn is_empty(&self) -> bool {
        self.is_idle() && self.exclusive.is_empty()
    }

    /// Whether a batch is under way that is only a part of its order: the rest follows it at once.
    fn is_partial(&self) -> bool {
        let mut under_way = [&self.staged, &self.running, &self.arriving].into_iter().flatten();
        under_way.any(|batch| batch.group.count < batch.work.order.items.len())
    }
}

impl<I: BatchItem> DeviceExecutor<I> {
    /// Does what can be done now, and says when there will be more: never, unless an order comes.
    pub(super) fn turn(&mut self, report: &impl Fn(OrderReport<I>)) -> Timestamp {
        self.look();
        let flowed = !self.flow.is_empty();
        if let Some(work) = self.next_work() {
            self.stage(work, report);
        }
        if self.flow.running.is_none() {
            self.start(report);
        }
        if self.flow.arriving.is_none() {
            match has(&mut self.flow.running, |batch| batch.is_computed()) {
                Ok(false) => {}
                Ok(true) => {
                    self.flow.arriving = self.flow.running.take();
                    // The device waits for the next one: that goes first.
                    self.start(report);
                    let now = self.clock.now();
                    self.flow.arriving.iter_mut().for_each(|computed| computed.times.computed_at = now);
                }
                Err(failure) => {
                    let failed = self.flow.running.take();
                    self.break_off(failed, failure, report);
                }
            }
        }
        match has(&mut self.flow.arriving, |batch| batch.has_arrived()) {
            Ok(false) => {}
            Ok(true) => self.finish(report),
            Err(failure) => {
                let failed = self.flow.arriving.take();
                self.break_off(failed, failure, report);
            }
        }
        if self.flow.is_idle() {
            self.pulse.end();
        }
        if self.flow.is_empty() && self.run_idle_work(flowed) {
            return Timestamp::ZERO;
        }
        self.wants_at()
    }

    /// What is to be staged now, if something is. What must have the device to itself waits for the end of what is
    /// under way, and what comes waits for it.
    fn next_work(&mut self) -> Option<OpenOrder<I>> {
        if self.flow.is_idle() && !self.flow.exclusive.is_empty() {
            return self.flow.exclusive.pop_front();
        }
        if self.has_room() { self.due().map(OpenOrder::new) } else { None }
    }

    /// Whether the next order may be staged.
    fn has_room(&self) -> bool {
        let waits = self.flow.staged.is_some() || !self.flow.exclusive.is_empty() || self.flow.is_partial();
        !waits && (self.idle_work.is_empty() || self.flow.is_idle())
    }

    /// With nothing under way: runs something that isn't an order, if there is something.
    fn run_idle_work(&mut self, flowed: bool) -> bool {
        // Orders go first, but those that came behind it while others were under way have waited for it.
        let work = if flowed || self.heap.is_empty() { self.idle_work.pop_front() } else { None };
        let Some(IdleWork { run, limit, breaker }) = work else { return false };
        self.pulse.begin(limit, 0, breaker);
        // Whoever sent it learns of a panic by the end of its channel.
        let _ = guarded(|| {
            run();
            Ok(())
        });
        self.pulse.end();
        true
    }

    /// When there will be something to do, if nothing comes before.
    fn wants_at(&self) -> Timestamp {
        // The batch before what is staged failed: nothing else would wake this thread.
        let may_start = self.flow.staged.is_some() && self.flow.running.is_none();
        if may_start || (self.flow.is_idle() && !self.flow.exclusive.is_empty()) {
            return Timestamp::ZERO;
        }
        // Where an engine doesn't know when something will be done, it is asked again and again.
        let known_at = |batch: &BatchUnderWay<I>| match batch.staged.due_at() {
            Some(instant) => self.clock.at(instant),
            None => Timestamp::ZERO,
        };
        let under_way = [&self.flow.running, &self.flow.arriving].into_iter().flatten();
        let done_at = under_way.map(known_at).min().unwrap_or(Timestamp::NEVER);
        let next_at = self
            .heap
            .peek()
            .filter(|_| self.has_room())
            .map_or(Timestamp::NEVER, |first| if self.retired { Timestamp::ZERO } else { first.0.window.earliest });
        done_at.min(next_at)
    }

    /// Whether nothing is left to do and nothing will come.
    pub(super) fn has_ended(&self) -> bool {
        self.closed && self.heap.is_empty() && self.idle_work.is_empty() && self.flow.is_empty()
    }

    /// Lets the inputs of an order's next batch go to the device.
    fn stage(&mut self, mut work: OpenOrder<I>, report: &impl Fn(OrderReport<I>)) {
        let staged_at = self.clock.now();
        if !work.may_start(staged_at, self.retired) {
            return give_back(work, report);
        }
        let (idle, cache, clock, pulse) = (self.flow.is_idle(), &mut self.cache, self.clock, &self.pulse);
        let mut group = Group::ONE;
        let staged = guarded(|| {
            group = work.next_group();
            let ExecuteOrder { action, slot, items, limit, .. } = &work.order;
            if !idle && group.count < items.len() {
                return Ok(None);
            }
            let mut weights = slot.weights().map_err(BatchFailure::Refused)?;
            let loaded = weights.as_mut().ok_or_else(|| BatchFailure::Refused(NOT_LOADED.into()))?;
            pulse.begin(*limit, action.0, loaded.breaker());
            let staged = loaded.stage(&mut Gathering::new(items, &group, cache, clock)).map_err(refused)?;
            Ok(Some(staged).filter(|staged| idle || !staged.blocks()))
        });
        match staged {
            Ok(Some(staged)) => {
                let (behind, started_at) = (self.flow.running.is_some(), staged_at);
                let [gathered_at, computed_at, ended_at] = [staged_at; 3];
                let times = BatchTimes { started_at, gathered_at, computed_at, ended_at };
                self.flow.staged = Some(BatchUnderWay { work, group, staged, staged_at, behind, times });
            }
            Ok(None) => self.flow.exclusive.push_front(work),
            // It had gone before: whoever gets them next finds them as they were.
            Err(BatchFailure::Lost { reason, .. }) if work.began_at.is_none() => {
                let status = Status::Lost { reason, took: None };
                report(OrderReport { action: work.order.action, status, returned: work.order.items });
            }
            // It may have been for want of room.
            Err(
                BatchFailure::Refused(_) | BatchFailure::Unfit(_) | BatchFailure::NotYet(_) | BatchFailure::BrokenOff,
            ) if !idle => {
                self.flow.exclusive.push_front(work);
            }
            Err(failure) => self.settle(work, &group, staged_at, failure, report),
        }
    }

    /// Starts what is staged, if it is still in its window.
    fn start(&mut self, report: &impl Fn(OrderReport<I>)) {
        let Some(mut next) = self.flow.staged.take() else { return };
        let BatchUnderWay { work, group, staged, behind, times, .. } = &mut next;
        if *behind {
            self.look();
            times.started_at = self.clock.now();
        }
        if !work.may_start(times.started_at, self.retired) {
            let BatchUnderWay { work, staged, .. } = next;
            let_go(staged);
            return give_back(work, report);
        }
        let mut inputs = Gathering::new(&work.order.items, group, &mut self.cache, self.clock);
        self.pulse.step(work.order.limit, work.order.action.0);
        let started = guarded(|| staged.start(&mut inputs).map_err(refused));
        times.gathered_at = inputs.gathered_at.unwrap_or(times.started_at);
        match started {
            Ok(()) => self.flow.running = Some(next),
            Err(failure) => self.break_off(Some(next), failure, report),
        }
    }

    /// Ends what has arrived.
    fn finish(&mut self, report: &impl Fn(OrderReport<I>)) {
        let Some(mut arrived) = self.flow.arriving.take() else { return };
        let took = match self.hand_out(&mut arrived) {
            Ok(took) => took,
            Err(failure) => return self.break_off(Some(arrived), failure, report),
        };
        let BatchUnderWay {
            mut work, group, staged, staged_at, times: BatchTimes { started_at, ended_at, .. }, ..
        } = arrived;
        let ended_at = match &self.flow.running {
            // Where this thread is the device, it has handed out answers instead of computing.
            _ if staged.blocks() => self.clock.now(),
            // Where no outputs were on their way, the device was done with it when the next one started (P4).
            Some(next) if took.outputs == Duration::ZERO => ended_at.min(next.times.started_at),
            _ => ended_at,
        };
        // Before the report: what follows it may be an unload.
        let_go(staged);
        self.linger_after(group.count == 1, ended_at.since(started_at), ended_at);
        // What overlaps with others is only of use where an order is one batch.
        let transfers = match work.began_at {
            None => {
                Transfers { before: took.early.min(started_at.since(staged_at)), overlap: took.inputs + took.outputs }
            }
            Some(_) => Transfers::default(),
        };
        work.one_by_one = work.one_by_one.saturating_sub(1);
        self.go_on(work, (started_at, ended_at), transfers, report);
    }

    /// Gives each request of a batch that has arrived its outputs.
    fn hand_out(&mut self, arrived: &mut BatchUnderWay<I>) -> Result<DeviceTimes, BatchFailure> {
        let BatchUnderWay { work, group, staged, times, .. } = arrived;
        let ExecuteOrder { slot, signature, items, .. } = &mut work.order;
        let (cache, clock) = (&mut self.cache, self.clock);
        guarded(|| {
            let took = batch::take_outputs(&mut **staged, signature, items, group, cache).map_err(refused)?;
            times.ended_at = clock.now();
            batch::deliver(items, group.count, times, &slot.statistics, cache);
            Ok(took)
        })
    }

    /// A batch that was under way failed.
    fn break_off(
        &mut self,
        under_way: Option<BatchUnderWay<I>>,
        failure: BatchFailure,
        report: &impl Fn(OrderReport<I>),
    ) {
        let Some(BatchUnderWay { work, group, staged, times, .. }) = under_way else { return };
        let_go(staged);
        self.settle(work, &group, times.started_at, failure, report);
    }

    /// The requests of a batch that failed are run again one by one; one that was alone has its reason.
    fn settle(
        &mut self,
        mut work: OpenOrder<I>,
        group: &Group,
        started_at: Timestamp,
        failure: BatchFailure,
        report: &impl Fn(OrderReport<I>),
    ) {
        batch::charge(work.order.items.get(..group.count).unwrap_or_default(), self.clock.now().since(started_at));
        match failure {
            BatchFailure::Panic(reason) | BatchFailure::Lost { reason, blameless: false } => {
                return fail(work.order, reason, Some(self.clock.now().since(started_at)), report);
            }
            BatchFailure::Lost { reason, blameless: true } => return fail(work.order, reason, None, report),
            BatchFailure::BrokenOff => return fail_overdue(work.order, self.clock.now().since(started_at), report),
            BatchFailure::Refused(_) | BatchFailure::Unfit(_) | BatchFailure::NotYet(_) => {}
        }
        if group.count > 1 || group.filled.is_some() {
            work.one_by_one = group.count;
            work.failures.together(failure.into_reason());
        } else {
            work.one_by_one = work.one_by_one.saturating_sub(1);
            let unfit = matches!(failure, BatchFailure::Unfit(_));
            work.order.items.drain(..1).for_each(|item| failure.tell(item));
            work.failures.alone(failure.into_reason(), unfit);
        }
        self.go_on(work, (started_at, started_at), Transfers::default(), report);
    }

    /// A batch of an order is over: so is the order, or the next one follows.
    fn go_on(
        &mut self,
        mut work: OpenOrder<I>,
        (started_at, ended_at): (Timestamp, Timestamp),
        transfers: Transfers,
        report: &impl Fn(OrderReport<I>),
    ) {
        let started_at = *work.began_at.get_or_insert(started_at);
        if !work.order.items.is_empty() {
            return self.flow.exclusive.push_front(work);
        }
        let status = work.failures.status().unwrap_or(Status::Done { started_at, ended_at, transfers });
        report(OrderReport { action: work.order.action, status, returned: Vec::new() });
    }
}

/// Whether the batch in a place has come so far.
fn has<I>(
    place: &mut Option<BatchUnderWay<I>>,
    ask: impl FnOnce(&mut dyn Staged) -> Result<bool, EngineError>,
) -> Result<bool, BatchFailure> {
    place.as_mut().map_or(Ok(false), |batch| guarded(|| ask(&mut *batch.staged).map_err(refused)))
}

/// Waits for the end of a batch that is broken off, or frees what one had that is over.
fn let_go(staged: Box<dyn Staged>) {
    let gone = guarded(|| {
        drop(staged);
        Ok(())
    });
    if let Err(failure) = gone {
        tracing::error!("a batch could not be let go: {}", failure.into_reason());
    }
}

impl BatchFailure {
    fn into_reason(self) -> String {
        match self {
            Self::Refused(reason)
            | Self::Unfit(reason)
            | Self::NotYet(reason)
            | Self::Panic(reason)
            | Self::Lost { reason, .. } => reason,
            Self::BrokenOff => EngineError::BrokenOff.to_string(),
        }
    }

    /// Tells a request why it has no outputs.
    fn tell<I: BatchItem>(&self, item: I) {
        match self {
            Self::Unfit(reason) => item.refuse_inputs(reason.clone()),
            Self::NotYet(reason) => item.put_off(reason.clone()),
            Self::Refused(reason) | Self::Panic(reason) | Self::Lost { reason, .. } => {
                item.deliver(Err(reason.clone()));
            }
            Self::BrokenOff => item.broken_off(EngineError::BrokenOff.to_string()),
        }
    }
}

fn refused(error: EngineError) -> BatchFailure {
    match error {
        EngineError::NotYet(reason) => BatchFailure::NotYet(reason),
        EngineError::Unfit(reason) => BatchFailure::Unfit(reason),
        EngineError::BrokenOff => BatchFailure::BrokenOff,
        error @ EngineError::Lost { blameless, .. } => BatchFailure::Lost { reason: error.to_string(), blameless },
        error => BatchFailure::Refused(error.to_string()),
    }
}

/// Gives an order back that didn't start in its window.
fn give_back<I>(work: OpenOrder<I>, report: &impl Fn(OrderReport<I>)) {
    let ExecuteOrder { action, items, .. } = work.order;
    report(OrderReport { action, status: Status::TooLate, returned: items });
}

/// Gives the requests of an order whose engine panicked, or whose device is gone, their reason.
fn fail<I: BatchItem>(
    mut order: ExecuteOrder<I>,
    reason: String,
    took: Option<Duration>,
    report: &impl Fn(OrderReport<I>),
) {
    order.items.drain(..).for_each(|item| item.deliver(Err(reason.clone())));
    report(OrderReport { action: order.action, status: Status::Lost { reason, took }, returned: Vec::new() });
}

/// Gives the requests of an order that was broken off their reason. They aren't run again: one that takes as long would
/// keep the device from others once more.
fn fail_overdue<I: BatchItem>(mut order: ExecuteOrder<I>, took: Duration, report: &impl Fn(OrderReport<I>)) {
    let reason = format!("it took longer than {}, which is more than it may", order.limit);
    order.items.drain(..).for_each(|item| item.broken_off(reason.clone()));
    report(OrderReport { action: order.action, status: Status::BrokenOff { reason, took }, returned: Vec::new() });
}
