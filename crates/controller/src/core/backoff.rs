//! How long a model is left alone after something of it failed that cost others.
//!
//! A load that fails has pushed other models out of memory before; a panic costs a device all that it held. If every
//! request were another try, one model could keep all others from being served; and where there is room for all models,
//! the scheduler would try again by itself as soon as it hears of the failure. So new requests are refused and loads
//! are held back for a while.

use base::{Duration, Timestamp};

/// After the first failure.
const SHORTEST: Duration = Duration::from_millis(100);
/// After many in a row.
const LONGEST: Duration = Duration::from_secs(30);
/// Failures that are further apart aren't in a row.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// How long one model is left alone: twice as long after each failure in a row.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    /// How many in a row, and when the last one was.
    failures: u32,
    failed_at: Timestamp,
    until: Timestamp,
}

impl Backoff {
    /// Something failed after so long: others have the device for at least that time.
    pub fn begin(&mut self, now: Timestamp, took: Duration) {
        let in_a_row = self.failures > 0 && now.since(self.failed_at) < FORGOTTEN_AFTER;
        self.failures = if in_a_row { self.failures.saturating_add(1) } else { 1 };
        self.failed_at = now;
        let doublings = (self.failures - 1).min(16);
        self.until = now + (SHORTEST * (1 << doublings)).min(LONGEST).max(took);
    }

    /// How long it is still left alone; `None` when that is over.
    pub fn left(&self, now: Timestamp) -> Option<Duration> {
        (now < self.until).then(|| self.until.since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_in_a_row_doubles_it_up_to_a_bound() {
        let mut backoff = Backoff::default();
        let mut now = Timestamp::ZERO + Duration::from_secs(5);
        assert_eq!(backoff.left(now), None);
        let mut spans = Vec::new();
        for _ in 0..11 {
            backoff.begin(now, Duration::ZERO);
            let left = backoff.left(now).unwrap();
            spans.push(left.as_millis_f64());
            now += left;
            assert_eq!(backoff.left(now), None, "it is over after that time");
        }
        let expected = [100.0, 200.0, 400.0, 800.0, 1600.0, 3200.0, 6400.0, 12_800.0, 25_600.0, 30_000.0, 30_000.0];
        assert_eq!(spans, expected);
    }

    #[test]
    fn a_failure_long_after_the_last_one_is_the_first_again() {
        let mut backoff = Backoff::default();
        let start = Timestamp::ZERO + Duration::from_secs(5);
        (0..5).for_each(|_| backoff.begin(start, Duration::ZERO));
        let later = start + FORGOTTEN_AFTER;
        backoff.begin(later, Duration::ZERO);
        assert_eq!(backoff.left(later), Some(SHORTEST));
    }

    #[test]
    fn what_has_kept_a_device_from_others_leaves_it_to_them_for_as_long() {
        let (mut backoff, now) = (Backoff::default(), Timestamp::ZERO + Duration::from_secs(5));
        backoff.begin(now, LONGEST * 2);
        assert_eq!(backoff.left(now), Some(LONGEST * 2));
    }
}
