//! P1 and P2 for requests that several models answer as one: each gets exactly one outcome, and no success after its
//! deadline. Their calls are requests, for which everything holds.

use crate::observe::{Observation, Observer};
use crate::violation::{Broken, Violation};
use base::Timestamp;
use std::collections::BTreeMap;

/// P1 and P2, for requests for pipelines.
#[derive(Debug, Default)]
pub struct WholesEndOnce {
    /// Those without an outcome, with their deadlines.
    living: BTreeMap<u64, Timestamp>,
}

impl Observer for WholesEndOnce {
    fn observe(&mut self, at: Timestamp, seen: &Observation<'_>) -> Result<(), Violation> {
        match *seen {
            Observation::WholeSent { whole, deadline_at } => drop(self.living.insert(whole, deadline_at)),
            Observation::WholeEnded { whole, good_at } => match (self.living.remove(&whole), good_at) {
                (None, _) => return Err(Broken::WholeNotAlive { whole }.at(at)),
                (Some(deadline_at), Some(answered_at)) if answered_at > deadline_at => {
                    return Err(Broken::WholeTooLate { whole, answered_at, deadline_at }.at(at));
                }
                (Some(_), _) => {}
            },
            Observation::Over => {
                if let Some((&first, _)) = self.living.first_key_value() {
                    return Err(Broken::WholeWithoutOutcome { count: self.living.len(), first }.at(at));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
