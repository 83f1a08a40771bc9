//! P1: every request gets exactly one outcome. P2: no success after its deadline. P8: what was refused was never executed.

use super::entry;
use crate::observe::{Observation, Observer, Violation};
use base::{RequestId, Timestamp};
use scheduler::{Command, Event, Outcome};

/// P1.
#[derive(Debug, Default)]
pub struct ExactlyOneOutcome {
    /// For each slot, the generation of the request that lives in it.
    living: Vec<Option<u32>>,
    count: usize,
}

impl Observer for ExactlyOneOutcome {
    fn observe(&mut self, at: Timestamp, seen: &Observation<'_>) -> Result<(), Violation> {
        let fail = |message| Err(Violation { invariant: "P1", at, message });
        match seen {
            Observation::Told(Event::Submitted(request)) => {
                let living = entry(&mut self.living, request.id.slot);
                if living.is_some() {
                    return fail(format!("{} is submitted while its slot is taken", request.id));
                }
                *living = Some(request.id.generation);
                self.count += 1;
            }
            Observation::Ordered(Command::Finish { request, outcome }) => {
                let living = entry(&mut self.living, request.slot);
                if *living != Some(request.generation) {
                    return fail(format!(
                        "{request} ends as {outcome:?}, but it is not alive: it was never submitted or has ended before"
                    ));
                }
                *living = None;
                self.count -= 1;
            }
            Observation::Over if self.count > 0 => {
                let first = self.living.iter().enumerate().find_map(|(slot, generation)| {
                    generation.map(|generation| RequestId { slot: slot as u32, generation })
                });
                let count = self.count;
                return fail(format!("{count} requests have no outcome, the first of them {first:?}"));
            }
            _ => {}
        }
        Ok(())
    }
}

#[derive(Clone, Debug, Default)]
struct Timed {
    deadline_at: Timestamp,
    ended_at: Option<Timestamp>,
}

/// P2.
#[derive(Debug, Default)]
pub struct SuccessInTime {
    requests: Vec<Timed>,
}

impl Observer for SuccessInTime {
    fn observe(&mut self, at: Timestamp, seen: &Observation<'_>) -> Result<(), Violation> {
        let fail = |message| Err(Violation { invariant: "P2", at, message });
        match seen {
            Observation::Told(Event::Submitted(request)) => {
                *entry(&mut self.requests, request.id.slot) =
                    Timed { deadline_at: request.deadline_at, ended_at: None };
            }
            Observation::ExecutionEnded { execution, .. } => {
                for request in &execution.requests {
                    entry(&mut self.requests, request.slot).ended_at = Some(at);
                }
            }
            Observation::Ordered(Command::Finish { request, outcome: Outcome::Done }) => {
                let timed = entry(&mut self.requests, request.slot);
                let deadline_at = timed.deadline_at;
                match timed.ended_at {
                    None => return fail(format!("{request} is called a success, but no execution of it has ended")),
                    Some(ended_at) if ended_at > deadline_at => {
                        return fail(format!(
                            "{request} is called a success: it ended at {ended_at}, its deadline was {deadline_at}"
                        ));
                    }
                    Some(_) => {}
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[derive(Clone, Debug, Default)]
struct Progress {
    generation: u32,
    ordered: bool,
    started: bool,
    cancelled_unordered: bool,
    over: bool,
}

/// P8.
#[derive(Debug, Default)]
pub struct RefusedNeverExecuted {
    requests: Vec<Progress>,
}

impl Observer for RefusedNeverExecuted {
    fn observe(&mut self, at: Timestamp, seen: &Observation<'_>) -> Result<(), Violation> {
        let fail = |message| Err(Violation { invariant: "P8", at, message });
        match seen {
            Observation::Told(Event::Submitted(request)) => {
                let fresh = Progress { generation: request.id.generation, ..Progress::default() };
                *entry(&mut self.requests, request.id.slot) = fresh;
            }
            Observation::Told(Event::Cancelled(request)) => {
                let progress = entry(&mut self.requests, request.slot);
                // A client may go away when its request is over, and its slot somebody else's.
                if progress.generation == request.generation {
                    progress.cancelled_unordered = !progress.ordered;
                }
            }
            Observation::Ordered(Command::Execute(execution)) => {
                for request in &execution.requests {
                    let progress = entry(&mut self.requests, request.slot);
                    if progress.cancelled_unordered {
                        return fail(format!(
                            "{request} is executed by {}, but it was cancelled before",
                            execution.action
                        ));
                    }
                    if progress.over || progress.generation != request.generation {
                        return fail(format!("{request} is executed by {}, but it has ended before", execution.action));
                    }
                    progress.ordered = true;
                }
            }
            Observation::ExecutionStarted(execution) => {
                for request in &execution.requests {
                    let progress = entry(&mut self.requests, request.slot);
                    if progress.generation == request.generation {
                        progress.started = true;
                    }
                }
            }
            // What was broken off is as if it had never begun.
            Observation::ExecutionBrokenOff(execution) => {
                for request in &execution.requests {
                    let progress = entry(&mut self.requests, request.slot);
                    if progress.generation == request.generation {
                        progress.started = false;
                    }
                }
            }
            Observation::Ordered(Command::Finish { request, outcome }) => {
                let progress = entry(&mut self.requests, request.slot);
                progress.over = true;
                if let (Outcome::Rejected(reason), true) = (outcome, progress.started) {
                    return fail(format!("{request} is rejected ({reason:?}) after it was executed"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
