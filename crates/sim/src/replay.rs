//! Runs a recording again: the same events through a fresh scheduler, with the checkers watching.
//!
//! The workers are not modelled. What they did is in their reports, so the checkers see a batch start and end when its
//! report is told; those that need the workers' own view (P4, P5, P6) are replaced by [`by_reports::ReportChecker`],
//! which has only orders and reports to go by. What isn't checked: that every request has an outcome at the end,
//! because a server that is stopped refuses what is queued without its scheduler.

mod by_reports;

use crate::checkers::{BoundedQueues, Contract, ExactlyOneOutcome, RefusedNeverExecuted, StartInWindow, SuccessInTime};
use crate::meter::{AT_ONCE, RefusalCounts};
use crate::observe::{Facts, Observation, Observer, Promises};
use crate::quantiles::Quantiles;
use crate::violation::{Broken, Invariant, Violation};
use base::{ActionId, BatchLatency, DeviceId, Duration, LatencyProfile, ModelId, RequestId, Timestamp};
use by_reports::ReportChecker;
use recording::{End, Header, Recording, RecordingError, Step};
use scheduler::{ActionStatus, Command, Event, Execution, Fairness, Fingerprint, Load, ModelSpec, Outcome, Scheduler};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// What a replay found.
#[derive(Debug)]
pub struct Replay {
    /// What was recorded.
    pub header: Header,
    /// How the recording ended; `None` if the file doesn't say.
    pub end: Option<End>,
    /// Bytes of the file.
    pub bytes: u64,
    /// From the first event to the last one.
    pub lasted: Duration,
    /// How many events were run again.
    pub events: u64,
    /// What happened in them.
    pub tally: ReplayTally,
    /// The fingerprint of all commands that came out.
    pub fingerprint: u64,
    /// Where the scheduler ordered something else than when it was recorded (P7). The replay ends there.
    pub difference: Option<Difference>,
    /// The first time that each invariant was broken.
    pub broken: Vec<FoundViolation>,
    /// Where the scheduler panicked. The replay ends there.
    pub panic: Option<Panic>,
}

impl Replay {
    /// Whether the same came out, and every invariant held.
    pub fn is_good(&self) -> bool {
        self.difference.is_none() && self.broken.is_empty() && self.panic.is_none()
    }
}

/// What happened in a recording.
#[derive(Clone, Debug, Default)]
pub struct ReplayTally {
    /// Requests that were submitted.
    pub requests: u64,
    /// In time.
    pub done: u64,
    /// Executed, but not in time.
    pub late: u64,
    /// Their execution failed.
    pub failed: u64,
    /// Their client went away.
    pub cancelled: u64,
    /// Refused, by reason (see [`crate::by_reason`]).
    pub refused: RefusalCounts,
    /// Of those, within a millisecond of the instant at which the scheduler was told of the request.
    pub refused_at_once: u64,
    /// Of those, while at least half of the time was left that the request had then.
    pub refused_early: u64,
    /// From that instant to the refusal.
    pub refusal: Quantiles,
    /// Had no outcome when the recording ended.
    pub in_hand: u64,
    /// Batches that were ordered.
    pub batches: u64,
    /// Requests in them.
    pub batched: u64,
    /// Loads that were ordered.
    pub loads: u64,
    /// Unloads that were ordered.
    pub unloads: u64,
    /// Models that came.
    pub models: u64,
    /// Devices that came, again or for the first time.
    pub devices: u64,
    /// Devices that were lost.
    pub losses: u64,
    /// Since when each request without an outcome is known, and until when it wants its answer.
    waiting: HashMap<RequestId, (Timestamp, Timestamp)>,
}

/// A step at which the scheduler ordered something else than when it was recorded.
#[derive(Clone, Debug)]
pub struct Difference {
    /// Which event, counted from 1.
    pub event: u64,
    /// When it was.
    pub at: Timestamp,
    /// What the scheduler was told.
    pub told: String,
    /// What it ordered now.
    pub ordered: Vec<String>,
}

/// An invariant that was broken, and where.
#[derive(Clone, Debug)]
pub struct FoundViolation {
    /// At which event, counted from 1.
    pub event: u64,
    /// What was broken.
    pub violation: Violation,
}

/// An assertion of the scheduler that didn't hold.
#[derive(Clone, Debug)]
pub struct Panic {
    /// At which event, counted from 1.
    pub event: u64,
    /// What the scheduler was told.
    pub told: String,
    /// What the assertion says.
    pub message: String,
    /// Whether it didn't come back from it in the server either.
    pub recorded: bool,
}

/// How far a replay is: bytes read of all bytes; the file is read twice.
pub type ReplayProgress<'a> = &'a mut dyn FnMut(u64, u64);

/// Reads the file through, then runs it again.
pub fn replay(path: &Path, progress: ReplayProgress<'_>) -> Result<Replay, RecordingError> {
    let bytes = std::fs::metadata(path)?.len();
    let survey = Survey::of(path, bytes, progress)?;
    let mut recording = Recording::open(path)?;
    let mut run = ReplayRun::new(recording.header(), &survey);
    let mut steps = 0;
    while let Some(step) = recording.next().transpose()? {
        steps += 1;
        if steps % STEPS_PER_LOOK == 0 {
            progress(bytes + recording.bytes_read(), 2 * bytes);
        }
        if !run.step(step) {
            break;
        }
    }
    let header = recording.header().clone();
    Ok(run.result(header, survey.end, bytes))
}

const STEPS_PER_LOOK: u64 = 1 << 12;

/// What the checkers want to know before the first event.
struct Survey {
    models: Vec<ModelSpec>,
    devices: u32,
    end: Option<End>,
}

impl Survey {
    fn of(path: &Path, bytes: u64, progress: ReplayProgress<'_>) -> Result<Self, RecordingError> {
        let mut recording = Recording::open(path)?;
        let (mut models, mut devices, mut steps): (Vec<ModelSpec>, u32, u64) = (Vec::new(), 0, 0);
        while let Some(step) = recording.next().transpose()? {
            steps += 1;
            if steps % STEPS_PER_LOOK == 0 {
                progress(recording.bytes_read(), 2 * bytes);
            }
            match step.event {
                Event::DeviceAdded(spec) => devices = devices.max(spec.device.0 + 1),
                Event::ModelAdded(spec) => {
                    let index = spec.model.index();
                    while models.len() <= index {
                        models.push(absent(ModelId(models.len() as u32)));
                    }
                    models[index] = spec;
                }
                _ => {}
            }
        }
        Ok(Self { models, devices, end: recording.end() })
    }
}

/// Stands for a model whose number was never seen.
fn absent(model: ModelId) -> ModelSpec {
    let [median, p99, overlap] = [Duration::ZERO; 3];
    let one = BatchLatency { batch: 1, median, p99, overlap };
    let profile = LatencyProfile::new(vec![one], Duration::ZERO).expect("one batch size is a profile");
    ModelSpec {
        model,
        pages: 0,
        profile,
        elsewhere: Vec::new(),
        objective: None,
        fixed: Duration::ZERO,
        fairness: Fairness::default(),
    }
}

/// What was ordered and not reported yet.
enum Order {
    Execute(Execution),
    Load(Load),
}

impl Order {
    fn device(&self) -> DeviceId {
        match self {
            Self::Execute(execution) => execution.device,
            Self::Load(load) => load.device,
        }
    }
}

struct ReplayRun {
    scheduler: Scheduler,
    commands: Vec<Command>,
    /// Each until it finds its invariant broken: what it remembers means nothing any more then.
    checkers: Vec<Box<dyn Observer>>,
    by_reports: Option<ReportChecker>,
    orders: HashMap<ActionId, Order>,
    fingerprint: Fingerprint,
    /// The event at hand, counted from 1.
    event: u64,
    first_at: Option<Timestamp>,
    last_at: Timestamp,
    tally: ReplayTally,
    difference: Option<Difference>,
    broken: Vec<FoundViolation>,
    panic: Option<Panic>,
}

impl ReplayRun {
    fn new(header: &Header, survey: &Survey) -> Self {
        let facts = Facts {
            models: &survey.models,
            devices: survey.devices,
            pages: u32::MAX,
            max_queued_per_model: header.config.max_queued_per_model,
            promises: Promises::default(),
            delay: header.config.delay,
            heard_within: Duration::ZERO,
        };
        Self {
            scheduler: Scheduler::new(header.config.clone()),
            commands: Vec::new(),
            checkers: vec![
                Box::new(Contract::new(&facts)),
                Box::new(ExactlyOneOutcome::default()),
                Box::new(SuccessInTime::default()),
                Box::new(StartInWindow::new(&facts)),
                Box::new(RefusedNeverExecuted::default()),
                Box::new(BoundedQueues::new(&facts)),
            ],
            by_reports: Some(ReportChecker::new(survey.models.iter().map(|model| model.pages).collect())),
            orders: HashMap::new(),
            fingerprint: Fingerprint::default(),
            event: 0,
            first_at: None,
            last_at: Timestamp::ZERO,
            tally: ReplayTally::default(),
            difference: None,
            broken: Vec::new(),
            panic: None,
        }
    }

    /// Tells the scheduler once more; whether to go on.
    fn step(&mut self, Step { now, event, check }: Step) -> bool {
        self.event += 1;
        self.first_at.get_or_insert(now);
        self.last_at = now;
        self.tally.told(now, &event);
        let reported_on = self.see_report(&event);
        self.see(now, &Observation::Told(&event));
        self.note(now, |checker| checker.told(&event));
        if let Event::DeviceLost(device) = event {
            self.orders.retain(|_, order| order.device() != device);
        }
        let mut commands = std::mem::take(&mut self.commands);
        let (scheduler, out) = (&mut self.scheduler, &mut commands);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| scheduler.step(now, event.clone(), out))) {
            let (told, message) = (format!("{event:?}"), said(&*panic));
            self.panic = Some(Panic { event: self.event, told, message, recorded: check.is_none() });
            return false;
        }
        for command in &commands {
            self.fingerprint.add(now, command);
            self.tally.ordered(now, command);
            self.see(now, &Observation::Ordered(command));
            self.note(now, |checker| checker.ordered(command));
        }
        if check.is_some_and(|check| check != recording::format::check(self.fingerprint)) {
            let ordered = commands.iter().map(|command| format!("{command:?}")).collect();
            self.difference = Some(Difference { event: self.event, at: now, told: format!("{event:?}"), ordered });
            return false;
        }
        for command in commands.drain(..) {
            match command {
                Command::Execute(execution) => {
                    self.orders.insert(execution.action, Order::Execute(execution));
                }
                Command::Load(load) => {
                    self.orders.insert(load.action, Order::Load(load));
                }
                Command::Unload(_) | Command::Preempt { .. } | Command::Finish { .. } => {}
            }
        }
        self.commands = commands;
        if let Some(device) = reported_on {
            let free = self.scheduler.free_pages(device);
            self.note(now, |checker| checker.settled(device, free));
        }
        true
    }

    /// Shows the checkers what a report says that a worker did; which device it is about.
    fn see_report(&mut self, event: &Event) -> Option<DeviceId> {
        let Event::Reported(report) = event else { return None };
        let order = self.orders.remove(&report.action)?;
        if let ActionStatus::Done { started_at, ended_at, transfers } = report.status {
            let ran = (started_at, ended_at, transfers);
            match &order {
                Order::Execute(execution) => {
                    self.see(started_at, &Observation::ExecutionStarted(execution));
                    self.see(ended_at, &Observation::ExecutionEnded { execution, started_at });
                    self.note(ended_at, |checker| checker.ran(execution.device, true, ran));
                }
                Order::Load(load) => {
                    self.see(started_at, &Observation::LoadStarted { load, pages_used: 0 });
                    self.see(ended_at, &Observation::LoadEnded { load, started_at });
                    self.note(ended_at, |checker| checker.ran(load.device, false, ran));
                }
            }
        }
        Some(order.device())
    }

    fn see(&mut self, at: Timestamp, seen: &Observation<'_>) {
        let (event, broken) = (self.event, &mut self.broken);
        self.checkers.retain_mut(|checker| match checker.observe(at, seen) {
            Ok(()) => true,
            Err(violation) => {
                broken.push(FoundViolation { event, violation });
                false
            }
        });
    }

    fn note(&mut self, at: Timestamp, look: impl FnOnce(&mut ReportChecker) -> Result<(), (Invariant, String)>) {
        let Some(Err((invariant, message))) = self.by_reports.as_mut().map(look) else { return };
        self.by_reports = None;
        let violation = Violation { at, broken: Broken::Recorded { invariant, message } };
        self.broken.push(FoundViolation { event: self.event, violation });
    }

    fn result(mut self, header: Header, end: Option<End>, bytes: u64) -> Replay {
        self.tally.in_hand = self.scheduler.in_hand() as u64;
        Replay {
            header,
            end,
            bytes,
            lasted: self.last_at.since(self.first_at.unwrap_or(self.last_at)),
            events: self.event,
            tally: self.tally,
            fingerprint: self.fingerprint.value(),
            difference: self.difference,
            broken: self.broken,
            panic: self.panic,
        }
    }
}

impl ReplayTally {
    fn told(&mut self, now: Timestamp, event: &Event) {
        match event {
            Event::Submitted(request) | Event::StageSubmitted(request, _) => {
                self.requests += 1;
                self.waiting.insert(request.id, (now, request.deadline_at));
            }
            Event::ModelAdded(_) => self.models += 1,
            Event::DeviceAdded(_) => self.devices += 1,
            Event::DeviceLost(_) => self.losses += 1,
            Event::DeviceChanged { .. }
            | Event::ModelRemoved(_)
            | Event::Cancelled(_)
            | Event::Reported(_)
            | Event::Borrowed { .. }
            | Event::Returned { .. }
            | Event::Measured(_)
            | Event::Adopted(_)
            | Event::Expected(_)
            | Event::PipelineAdded(_)
            | Event::PipelineRemoved(_)
            | Event::Allotted(_)
            | Event::WokeUp => {}
        }
    }

    fn ordered(&mut self, now: Timestamp, command: &Command) {
        match command {
            Command::Execute(execution) => {
                self.batches += 1;
                self.batched += execution.requests.len() as u64;
            }
            Command::Load(_) => self.loads += 1,
            Command::Unload(_) => self.unloads += 1,
            Command::Preempt { .. } => {}
            Command::Finish { request, outcome } => {
                let known = self.waiting.remove(request);
                match outcome {
                    Outcome::Done => self.done += 1,
                    Outcome::Late => self.late += 1,
                    Outcome::Failed => self.failed += 1,
                    Outcome::Cancelled => self.cancelled += 1,
                    Outcome::Rejected(rejection) => {
                        self.refused[rejection.reason() as usize] += 1;
                        known.into_iter().for_each(|(since, deadline_at)| self.was_refused(since, deadline_at, now));
                    }
                }
            }
        }
    }

    fn was_refused(&mut self, since: Timestamp, deadline_at: Timestamp, now: Timestamp) {
        let took = now.since(since);
        self.refused_at_once += u64::from(took <= AT_ONCE);
        self.refused_early += u64::from(deadline_at.since(now) * 2 >= deadline_at.since(since));
        self.refusal.record(took);
    }
}

/// A panic as a sentence.
fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::ApplicationId;
    use scheduler::{Rejection, Request};

    #[test]
    fn refusals_are_timed_from_when_the_scheduler_was_told() {
        let at = |millis: f64| Timestamp::ZERO + Duration::from_millis_f64(millis);
        let number = |slot: u32| RequestId { slot, generation: 0 };
        let mut tally = ReplayTally::default();
        // Told at 10 ms, with 100 ms to go; refused so long after that.
        for (id, after) in [(1, 0.0), (2, 0.9), (3, 20.0), (4, 80.0)] {
            let request = Request {
                id: number(id),
                model: ModelId(0),
                deadline_at: at(110.0),
                priority: 0,
                rows: 1,
                application: ApplicationId::DEFAULT,
                size: None,
            };
            tally.told(at(10.0), &Event::Submitted(request));
            let outcome = Outcome::Rejected(Rejection::QueueFull);
            tally.ordered(at(10.0 + after), &Command::Finish { request: number(id), outcome });
        }
        assert_eq!((tally.refused.iter().sum::<u64>(), tally.refused_at_once, tally.refused_early), (4, 2, 3));
        assert_eq!((tally.refusal.max(), tally.waiting.len()), (Duration::from_millis(80), 0));
    }
}
