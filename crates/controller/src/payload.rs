//! Requests between the inbox and the worker, which runs them and answers.

use crate::api::{Refusal, Reply, Submission};
use base::{Duration, Reason, RequestId, Timestamp, margins};
use scheduler::Outcome;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use telemetry::BatchTimes;
use worker::{BatchItem, Tensor};

/// A request in hand: what was submitted, under its number.
#[derive(Debug)]
pub(crate) struct Payload {
    pub id: RequestId,
    pub submitted_at: Timestamp,
    /// As it was handed over, but its model's number is that in the cell.
    pub submission: Submission,
    /// Where that is counted: it is there for others to meet until it is answered.
    pub present: Option<Present>,
}

/// One of so many requests that weren't answered yet. Not those that schedulers know: they hear of an answer later than
/// the client, which may have asked again by then.
#[derive(Debug)]
pub(crate) struct Present(Arc<AtomicU64>);

impl Present {
    /// One more, and how many there were.
    pub fn enter(all: &Arc<AtomicU64>) -> (Self, u64) {
        let before = all.fetch_add(1, Ordering::Relaxed);
        (Self(Arc::clone(all)), before)
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Payload {
    /// Answers a request that has no outputs.
    pub fn refuse(self, outcome: Outcome, failure: impl FnOnce() -> String) {
        let refusal = match outcome {
            Outcome::Rejected(rejection) => {
                let asked =
                    |planned_at: Timestamp| self.submitted_at + margins::time_for(planned_at.since(self.submitted_at));
                Refusal { earliest_at: rejection.earliest_at().map(asked), ..rejection.reason().into() }
            }
            Outcome::Failed => Refusal::failed(failure()),
            Outcome::Done | Outcome::Late | Outcome::Cancelled => Reason::DeadlineMissed.into(),
        };
        // A receiver that is gone needs no answer.
        let _ = self.submission.reply.send(Reply::Refused(refusal));
    }

    /// Answers a request that the end of the server found waiting.
    pub fn refuse_at_the_end(self) {
        let _ = self.submission.reply.send(Reply::Refused(Reason::ShuttingDown.into()));
    }
}

impl BatchItem for Payload {
    fn inputs(&self) -> &[Tensor] {
        &self.submission.inputs
    }

    fn rows(&self) -> u32 {
        self.submission.rows
    }

    fn queued_at(&self) -> Timestamp {
        self.submitted_at
    }

    fn computed(&self, times: &BatchTimes) {
        if let Some(trace) = &self.submission.trace {
            trace.computed(times);
        }
    }

    fn took(&self, time: Duration) {
        if let Some(account) = &self.submission.account {
            account.charge(time);
        }
    }

    fn deliver(mut self, outputs: Result<Vec<Tensor>, String>) {
        // Before it is answered: then it can be asked again.
        self.present = None;
        let reply = outputs.map_or_else(|why| Reply::Refused(Refusal::failed(why)), Reply::Outputs);
        // A receiver that is gone needs no answer.
        let _ = self.submission.reply.send(reply);
    }

    fn refuse_inputs(self, reason: String) {
        let _ = self.submission.reply.send(Reply::Refused(Refusal::unfit(reason)));
    }

    fn broken_off(self, reason: String) {
        let _ = self.submission.reply.send(Reply::Refused(Refusal::broken_off(reason)));
    }

    fn put_off(self, reason: String) {
        let _ = self.submission.reply.send(Reply::Refused(Refusal::not_yet(reason)));
    }
}
