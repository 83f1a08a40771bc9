//! A number for a log of commands: equal logs have equal numbers (P7).

use crate::{Command, Outcome, Rejection};
use base::Timestamp;

/// The running fingerprint of a log of commands, each with the instant at which it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fingerprint(u64);

impl Default for Fingerprint {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fingerprint {
    /// Adds one command.
    pub fn add(&mut self, at: Timestamp, command: &Command) {
        self.word(at.as_nanos());
        match command {
            Command::Execute(execution) => {
                self.word(1 | u64::from(execution.batch) << 8);
                self.word(execution.action.0);
                self.word(u64::from(execution.device.0) << 32 | u64::from(execution.model.0));
                for request in &execution.requests {
                    self.word(u64::from(request.slot) << 32 | u64::from(request.generation));
                }
                self.word(execution.window.earliest.as_nanos());
                self.word(execution.window.latest.as_nanos());
                self.word(execution.expected.as_nanos());
                self.word(execution.expected_done_at.as_nanos());
            }
            Command::Load(load) => {
                self.word(2);
                self.word(load.action.0);
                self.word(u64::from(load.device.0) << 32 | u64::from(load.model.0));
                self.word(load.window.earliest.as_nanos());
                self.word(load.window.latest.as_nanos());
                self.word(load.expected.as_nanos());
            }
            Command::Unload(unload) => {
                self.word(3);
                self.word(u64::from(unload.device.0) << 32 | u64::from(unload.model.0));
            }
            Command::Preempt { device, action } => {
                self.word(5);
                self.word(action.0);
                self.word(u64::from(device.0));
            }
            Command::Finish { request, outcome } => {
                let (kind, detail) = outcome_words(*outcome);
                self.word(4 | kind << 8);
                self.word(u64::from(request.slot) << 32 | u64::from(request.generation));
                self.word(detail);
            }
        }
    }

    /// The number.
    pub fn value(self) -> u64 {
        self.0
    }

    fn word(&mut self, word: u64) {
        // Multiplying spreads a difference upwards, the rotation brings it back down.
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

fn outcome_words(outcome: Outcome) -> (u64, u64) {
    match outcome {
        Outcome::Done => (0, 0),
        Outcome::Late => (1, 0),
        Outcome::Failed => (2, 0),
        Outcome::Cancelled => (3, 0),
        Outcome::Rejected(Rejection::DeadlineUnreachable { earliest_at }) => (4, earliest_at.as_nanos()),
        Outcome::Rejected(Rejection::Overloaded { earliest_at }) => (5, earliest_at.as_nanos()),
        Outcome::Rejected(Rejection::QueueFull) => (6, 0),
        Outcome::Rejected(Rejection::ModelUnavailable) => (7, 0),
        Outcome::Rejected(Rejection::NoDevice) => (8, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::RequestId;

    #[test]
    fn any_difference_shows() {
        let request = RequestId { slot: 1, generation: 0 };
        let commands = [
            (Timestamp::ZERO, Command::Finish { request, outcome: Outcome::Done }),
            (Timestamp::from_nanos(1), Command::Finish { request, outcome: Outcome::Done }),
            (Timestamp::ZERO, Command::Finish { request, outcome: Outcome::Late }),
            (
                Timestamp::ZERO,
                Command::Finish { request: RequestId { slot: 1, generation: 1 }, outcome: Outcome::Done },
            ),
        ];
        let mut values: Vec<u64> = commands
            .iter()
            .map(|(at, command)| {
                let mut fingerprint = Fingerprint::default();
                fingerprint.add(*at, command);
                fingerprint.value()
            })
            .collect();
        values.sort_unstable();
        values.dedup();
        assert_eq!(values.len(), commands.len());
    }
}
