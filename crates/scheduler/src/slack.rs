//! How long may batch work block a device? Half of the slack of the tightest request that came lately: then whoever comes
//! next finds at least the other half.

use base::{Duration, Timestamp};

/// "Lately" is between one and two of these.
const EPOCH: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct SlackWatch {
    epoch_ends_at: Timestamp,
    /// The least slack seen in this epoch and in the one before.
    current: Duration,
    previous: Duration,
    batch_work_waits: bool,
}

impl Default for SlackWatch {
    fn default() -> Self {
        Self {
            epoch_ends_at: Timestamp::ZERO,
            current: Duration::MAX,
            previous: Duration::MAX,
            batch_work_waits: false,
        }
    }
}

impl SlackWatch {
    fn roll(&mut self, now: Timestamp) {
        if now < self.epoch_ends_at {
            return;
        }
        let skipped = now >= self.epoch_ends_at + EPOCH;
        self.previous = if skipped { Duration::MAX } else { self.current };
        self.current = Duration::MAX;
        self.epoch_ends_at = now + EPOCH;
    }

    /// A request came whose deadline left it so much time beyond its own execution.
    pub fn observe(&mut self, now: Timestamp, slack: Duration) {
        self.roll(now);
        self.current = self.current.min(slack);
    }

    /// The longest that batch work may take.
    pub fn batch_work_limit(&mut self, now: Timestamp) -> Duration {
        self.roll(now);
        let least = self.current.min(self.previous);
        if least == Duration::MAX { least } else { least / 2 }
    }

    pub fn set_batch_work_waits(&mut self, now: Timestamp, waits: bool) {
        self.batch_work_waits = waits;
        if waits {
            self.roll(now);
        }
    }

    /// When batch work that waits now should be looked at again.
    pub fn batch_work_waits_until(&self) -> Option<Timestamp> {
        self.batch_work_waits.then_some(self.epoch_ends_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_the_tightest_for_one_to_two_epochs() {
        let at = |millis| Timestamp::ZERO + Duration::from_millis(millis);
        let mut slack = SlackWatch::default();
        assert_eq!(slack.batch_work_limit(at(10)), Duration::MAX);
        slack.observe(at(20), Duration::from_millis(8));
        slack.observe(at(30), Duration::from_millis(50));
        assert_eq!(slack.batch_work_limit(at(900)), Duration::from_millis(4));
        assert_eq!(slack.batch_work_limit(at(1_500)), Duration::from_millis(4));
        assert_eq!(slack.batch_work_limit(at(2_600)), Duration::MAX);
    }
}
