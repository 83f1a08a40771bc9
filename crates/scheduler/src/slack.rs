//! How long may batch work block a device? Half of the slack of the tightest request that came lately: then whoever
//! comes next finds at least the other half. Batch work that has waited may take more of it, and in the end goes in any
//! case: a little traffic with tight deadlines must not keep long batches waiting for ever beside an idle device.
//!
//! And where no device is ever idle? What has waited goes before others, as long as it takes no more than its least
//! share of the device: after a batch of so long, the device does none for others' part of the time.
//!
//! ```text
//!  ──deadlines──┤ batch work ├──────────────── deadlines ────────────────┤ batch work ├──
//!               └─ takes ────┴──────────────── takes / share ────────────┘
//! ```

use base::{Duration, Timestamp};

/// "Lately" is between one and two of these.
const EPOCH: Duration = Duration::from_secs(1);

/// Batch work that has waited so long may use all of the slack but an eighth.
const IMPATIENT: Duration = Duration::from_secs(1);
/// Batch work that has waited so long goes, whoever it keeps waiting.
pub(crate) const DESPERATE: Duration = Duration::from_secs(10);

/// How long batch work may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchWorkLimit {
    now: Timestamp,
    slack: Duration,
    /// Whether it is for what has waited alone.
    impatient: bool,
    /// Whether even what has waited for long must leave others time.
    heeds_others: bool,
}

impl BatchWorkLimit {
    /// What a request that just came may take at most.
    #[cfg(test)]
    pub fn of(limit: Duration) -> Self {
        Self { now: Timestamp::ZERO, slack: limit * 2, impatient: false, heeds_others: false }
    }

    /// For what has waited alone.
    pub fn of_the_impatient(self) -> Self {
        Self { impatient: true, ..self }
    }

    /// That leaves others time however long somebody has waited.
    pub fn of_a_moment(self) -> Self {
        Self { heeds_others: true, ..self }
    }

    /// For a request that came at that instant.
    pub fn since(&self, arrived_at: Timestamp) -> Duration {
        match self.now.since(arrived_at) {
            waited if self.impatient && waited < IMPATIENT => Duration::ZERO,
            _ if self.slack == Duration::MAX => Duration::MAX,
            waited if waited >= DESPERATE && !self.heeds_others => Duration::MAX,
            waited if waited >= IMPATIENT => self.slack - self.slack / 8,
            _ => self.slack / 2,
        }
    }
}

#[derive(Clone, Debug)]
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

    /// How long batch work may take.
    pub fn batch_work_limit(&mut self, now: Timestamp) -> BatchWorkLimit {
        self.roll(now);
        BatchWorkLimit { now, slack: self.current.min(self.previous), impatient: false, heeds_others: false }
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
        let fresh = |slack: &mut SlackWatch, millis| slack.batch_work_limit(at(millis)).since(at(millis));
        assert_eq!(fresh(&mut slack, 10), Duration::MAX);
        slack.observe(at(20), Duration::from_millis(8));
        slack.observe(at(30), Duration::from_millis(50));
        assert_eq!(fresh(&mut slack, 900), Duration::from_millis(4));
        assert_eq!(fresh(&mut slack, 1_500), Duration::from_millis(4));
        assert_eq!(fresh(&mut slack, 2_600), Duration::MAX);
    }

    #[test]
    fn who_waits_may_take_more() {
        let at = |millis| Timestamp::ZERO + Duration::from_millis(millis);
        let limit =
            BatchWorkLimit { now: at(20_000), slack: Duration::from_millis(16), impatient: false, heeds_others: false };
        assert_eq!(limit.since(at(19_500)), Duration::from_millis(8));
        assert_eq!(limit.of_the_impatient().since(at(19_500)), Duration::ZERO);
        assert_eq!(limit.of_the_impatient().since(at(18_000)), Duration::from_millis(14));
        assert_eq!(limit.since(at(18_000)), Duration::from_millis(14));
        assert_eq!(limit.since(at(10_000)), Duration::MAX);
        assert_eq!(limit.of_a_moment().since(at(10_000)), Duration::from_millis(14));
    }
}
