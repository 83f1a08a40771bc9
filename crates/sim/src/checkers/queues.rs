//! P9: every queue has a bound, and reaching it is a rejection, not growth.

use super::entry;
use crate::observe::{Facts, Observation, Observer};
use crate::violation::{Broken, Violation};
use base::{ModelId, RequestId, Timestamp};
use scheduler::{Command, Event};

/// P9, for the queue of each model: requests that were submitted and neither sent to a worker nor finished.
#[derive(Debug)]
pub struct BoundedQueues {
    bound: usize,
    queued: Vec<usize>,
    waiting: Vec<Option<ModelId>>,
    /// The model whose queue went past the bound by the last submission: the answer must follow at that instant.
    over: Option<(ModelId, Timestamp)>,
}

impl BoundedQueues {
    /// With every queue empty.
    pub fn new(facts: &Facts<'_>) -> Self {
        let queued = vec![0; facts.models.len()];
        Self { bound: facts.max_queued_per_model, queued, waiting: Vec::new(), over: None }
    }

    fn leave(&mut self, request: RequestId) {
        if let Some(model) = entry(&mut self.waiting, request.slot).take() {
            self.queued[model.index()] -= 1;
        }
    }

    /// The driver told the scheduler something new: by now an overflow must have been answered.
    fn settle(&mut self, at: Timestamp) -> Result<(), Violation> {
        let Some((model, _)) = self.over.take() else { return Ok(()) };
        let (queued, bound) = (self.queued[model.index()], self.bound);
        if queued <= bound {
            return Ok(());
        }
        Err(Broken::QueueTooLong { model, queued, bound }.at(at))
    }
}

impl Observer for BoundedQueues {
    fn observe(&mut self, at: Timestamp, seen: &Observation<'_>) -> Result<(), Violation> {
        match seen {
            Observation::Told(Event::Submitted(request) | Event::StageSubmitted(request, _)) => {
                self.settle(at)?;
                // A model that isn't there has no queue.
                if let Some(queued) = self.queued.get_mut(request.model.index()) {
                    *queued += 1;
                    if *queued > self.bound {
                        self.over = Some((request.model, at));
                    }
                    *entry(&mut self.waiting, request.id.slot) = Some(request.model);
                }
            }
            Observation::Told(_) | Observation::Over => self.settle(at)?,
            Observation::Ordered(Command::Execute(execution)) => {
                execution.requests.iter().for_each(|&request| self.leave(request));
            }
            Observation::Ordered(Command::Finish { request, .. }) => self.leave(*request),
            _ => {}
        }
        Ok(())
    }
}
