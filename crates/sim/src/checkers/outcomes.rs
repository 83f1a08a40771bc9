//! P1: every request gets exactly one outcome. P2: no success after its deadline. P8: what was refused was never
//! executed.

use super::entry;
use crate::observe::{Observation, Observer};
use crate::violation::{Broken, Violation};
use base::{ActionId, DeviceId, RequestId, Timestamp};
use scheduler::{ActionStatus, Command, Event, Execution, Outcome, Report};
use std::collections::HashMap;

/// P1.
#[derive(Debug, Default)]
pub struct ExactlyOneOutcome {
    /// For each slot, the generation of the request that lives in it.
    living: Vec<Option<u32>>,
    count: usize,
}

impl Observer for ExactlyOneOutcome {
    fn observe(&mut self, at: Timestamp, seen: &Observation<'_>) -> Result<(), Violation> {
        match seen {
            Observation::Told(Event::Submitted(request) | Event::StageSubmitted(request, _)) => {
                let living = entry(&mut self.living, request.id.slot);
                if living.is_some() {
                    return Err(Broken::SlotTaken { request: request.id }.at(at));
                }
                *living = Some(request.id.generation);
                self.count += 1;
            }
            Observation::Ordered(Command::Finish { request, outcome }) => {
                let living = entry(&mut self.living, request.slot);
                if *living != Some(request.generation) {
                    return Err(Broken::NotAlive { request: *request, outcome: *outcome }.at(at));
                }
                *living = None;
                self.count -= 1;
            }
            Observation::Over => {
                let first = self.living.iter().enumerate().find_map(|(slot, generation)| {
                    generation.map(|generation| RequestId { slot: slot as u32, generation })
                });
                if let Some(first) = first {
                    return Err(Broken::NoOutcome { count: self.count, first }.at(at));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
struct Timed {
    generation: u32,
    deadline_at: Timestamp,
    ended_at: Option<Timestamp>,
}

/// P2.
#[derive(Debug, Default)]
pub struct SuccessInTime {
    requests: Vec<Option<Timed>>,
}

impl SuccessInTime {
    fn timed(&mut self, request: RequestId) -> Option<&mut Timed> {
        entry(&mut self.requests, request.slot).as_mut().filter(|timed| timed.generation == request.generation)
    }
}

impl Observer for SuccessInTime {
    fn observe(&mut self, at: Timestamp, seen: &Observation<'_>) -> Result<(), Violation> {
        match seen {
            Observation::Told(Event::Submitted(request) | Event::StageSubmitted(request, _)) => {
                let (generation, deadline_at) = (request.id.generation, request.deadline_at);
                *entry(&mut self.requests, request.id.slot) = Some(Timed { generation, deadline_at, ended_at: None });
            }
            Observation::ExecutionEnded { execution, .. } => {
                for &request in &execution.requests {
                    if let Some(timed) = self.timed(request) {
                        timed.ended_at = Some(at);
                    }
                }
            }
            Observation::Ordered(Command::Finish { request, outcome: Outcome::Done }) => {
                let ended = self.timed(*request).and_then(|timed| Some((timed.ended_at?, timed.deadline_at)));
                match ended {
                    None => return Err(Broken::NeverExecuted { request: *request }.at(at)),
                    Some((ended_at, deadline_at)) if ended_at > deadline_at => {
                        return Err(Broken::SuccessTooLate { request: *request, ended_at, deadline_at }.at(at));
                    }
                    Some(_) => {}
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// How far a request has come, as the scheduler knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum RequestProgress {
    /// Queued, or not there any more.
    #[default]
    Waits,
    /// In a batch of which nothing was heard yet.
    InBatch(ActionId),
    /// Its batch ran, or may have: it failed, or its device was lost.
    Executed,
}

#[derive(Clone, Copy, Debug, Default)]
struct Followed {
    generation: u32,
    progress: RequestProgress,
    cancelled_before: bool,
    over: bool,
}

/// P8. What counts is what was ordered and what the scheduler was told of it: what is in a batch that may be running
/// can't be rejected, also if the worker would not have started it.
#[derive(Debug, Default)]
pub struct RefusedNeverExecuted {
    requests: Vec<Followed>,
    /// Batches of which nothing was heard yet.
    outstanding: HashMap<ActionId, (DeviceId, Vec<RequestId>)>,
}

impl RefusedNeverExecuted {
    fn followed(&mut self, request: RequestId) -> Option<&mut Followed> {
        Some(entry(&mut self.requests, request.slot)).filter(|followed| followed.generation == request.generation)
    }

    fn ordered(&mut self, execution: &Execution) -> Result<(), Broken> {
        let action = execution.action;
        for &request in &execution.requests {
            match self.followed(request) {
                Some(followed) if followed.cancelled_before => {
                    return Err(Broken::ExecutedCancelled { request, action });
                }
                Some(followed) if !followed.over => followed.progress = RequestProgress::InBatch(action),
                Some(_) | None => return Err(Broken::ExecutedEnded { request, action }),
            }
        }
        self.outstanding.insert(action, (execution.device, execution.requests.clone()));
        Ok(())
    }

    fn heard(&mut self, requests: &[RequestId], progress: RequestProgress) {
        for &request in requests {
            if let Some(followed) = self.followed(request) {
                followed.progress = progress;
            }
        }
    }

    fn reported(&mut self, report: &Report) {
        let Some((_, requests)) = self.outstanding.remove(&report.action) else { return };
        let progress = match report.status {
            ActionStatus::Done { .. } | ActionStatus::Failed => RequestProgress::Executed,
            // As if it had never been ordered.
            ActionStatus::TooLate | ActionStatus::Preempted => RequestProgress::Waits,
        };
        self.heard(&requests, progress);
    }

    fn lost(&mut self, device: DeviceId) {
        let on_it: Vec<_> = self.outstanding.extract_if(|_, (on, _)| *on == device).collect();
        on_it.iter().for_each(|(_, (_, requests))| self.heard(requests, RequestProgress::Executed));
    }

    fn finished(&mut self, request: RequestId, outcome: Outcome) -> Result<(), Broken> {
        let Some(followed) = self.followed(request) else { return Ok(()) };
        followed.over = true;
        match (outcome, followed.progress) {
            (Outcome::Rejected(reason), RequestProgress::Executed) => Err(Broken::RejectedExecuted { request, reason }),
            (Outcome::Rejected(reason), RequestProgress::InBatch(action)) => {
                Err(Broken::RejectedInBatch { request, reason, action })
            }
            _ => Ok(()),
        }
    }
}

impl Observer for RefusedNeverExecuted {
    fn observe(&mut self, at: Timestamp, seen: &Observation<'_>) -> Result<(), Violation> {
        let seen = match seen {
            Observation::Told(Event::Submitted(request) | Event::StageSubmitted(request, _)) => {
                let fresh = Followed { generation: request.id.generation, ..Followed::default() };
                *entry(&mut self.requests, request.id.slot) = fresh;
                Ok(())
            }
            Observation::Told(Event::Cancelled(request)) => {
                if let Some(followed) = self.followed(*request) {
                    followed.cancelled_before = followed.progress == RequestProgress::Waits;
                }
                Ok(())
            }
            Observation::Told(Event::Reported(report)) => {
                self.reported(report);
                Ok(())
            }
            Observation::Told(Event::DeviceLost(device)) => {
                self.lost(*device);
                Ok(())
            }
            Observation::Ordered(Command::Execute(execution)) => self.ordered(execution),
            Observation::Ordered(Command::Finish { request, outcome }) => self.finished(*request, *outcome),
            _ => Ok(()),
        };
        seen.map_err(|broken| broken.at(at))
    }
}
