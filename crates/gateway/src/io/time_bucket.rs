//! The device time that a client may use: a bucket that fills at a share of all devices' time, and that is charged with
//! what the client's requests took.
//!
//! ```text
//!  share x devices ──> [ left, for a second at most ] ──> what executions took; may fall below zero, and is owed then
//! ```
//!
//! What a request takes is known when it is computed. Those that are under way count with what the client's requests
//! took before, so that many at once don't pass where few would.

use base::{Duration, Timestamp};

/// What isn't used is kept for so long: a client that asked nothing may use its share of a second at once.
const KEPT_SECONDS: f64 = 1.0;
/// How much the latest requests say of what the next ones take: what is older than ten of them counts for little.
const NEWS: f64 = 0.1;

/// The device time that a client may use now.
#[derive(Debug, Default)]
pub(crate) struct TimeBucket {
    /// In seconds; below zero where it is owed.
    left: f64,
    /// When it was filled last, and what was charged by then.
    seen: Option<(Timestamp, Duration, u64)>,
    /// What a request takes, in seconds, by those that were computed.
    mean: f64,
}

impl TimeBucket {
    /// Lets a request begin beside so many others of the client, or says in how long it may. The bucket fills by so
    /// many seconds of devices in each second; `charged` is what was ever charged, and for how many executions.
    pub(crate) fn take(
        &mut self,
        fill: f64,
        (charged, executions): (Duration, u64),
        others: usize,
        now: Timestamp,
    ) -> Result<(), Duration> {
        let most = fill * KEPT_SECONDS;
        // Requests whose bodies took long come with an arrival of before: no span fills it twice.
        let now = self.seen.map_or(now, |(at, ..)| now.max(at));
        match self.seen {
            None => self.left = most,
            Some((at, before, counted)) => {
                let used = (charged - before).as_secs_f64();
                // What was used was used while it was filled.
                self.left = (self.left - used + now.since(at).as_secs_f64() * fill).min(most);
                let computed = executions.saturating_sub(counted);
                if computed > 0 {
                    let weight = 1.0 - (1.0 - NEWS).powf(computed as f64);
                    self.mean += weight * (used / computed as f64 - self.mean);
                }
            }
        }
        self.seen = Some((now, charged, executions));
        let expected = others as f64 * self.mean;
        match self.left > expected {
            true => Ok(()),
            // Where it fits exactly it would be refused again: a microsecond more.
            false => Err(Duration::from_secs_f64((expected - self.left) / fill) + Duration::from_micros(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client of two devices' time, of which it may have a quarter: half a second in each second.
    struct Client {
        bucket: TimeBucket,
        charged: Duration,
        executions: u64,
    }

    impl Client {
        fn new() -> Self {
            let mut client = Self { bucket: TimeBucket::default(), charged: Duration::ZERO, executions: 0 };
            assert_eq!(client.asks(0, 0), Ok(()));
            client
        }

        fn took(&mut self, millis: u64) {
            self.charged += Duration::from_millis(millis);
            self.executions += 1;
        }

        fn asks(&mut self, others: usize, at_ms: u64) -> Result<(), u64> {
            let now = Timestamp::ZERO + Duration::from_millis(at_ms);
            let taken = self.bucket.take(0.5, (self.charged, self.executions), others, now);
            taken.map_err(|wait| wait.as_millis_f64() as u64)
        }
    }

    #[test]
    fn a_share_is_kept_over_time_and_what_was_used_too_much_is_owed() {
        let mut client = Client::new();
        client.took(300);
        assert_eq!(client.asks(0, 0), Ok(()));
        client.took(1200);
        assert_eq!(client.asks(0, 0), Err(2000), "a second is owed, of which half a second comes in each");
        assert_eq!(client.asks(0, 1000), Err(1000));
        assert_eq!(client.asks(0, 2001), Ok(()));
    }

    #[test]
    fn arrivals_of_before_fill_nothing_twice() {
        let mut client = Client::new();
        client.took(1_500);
        assert_eq!(client.asks(0, 1_000), Err(1_000));
        for _ in 0..10 {
            assert_eq!(client.asks(0, 0), Err(1_000), "its body took a second to come");
            assert_eq!(client.asks(0, 1_000), Err(1_000));
        }
    }

    #[test]
    fn what_isnt_used_is_kept_for_a_second() {
        let mut client = Client::new();
        assert_eq!(client.asks(0, 100_000), Ok(()));
        client.took(499);
        assert_eq!(client.asks(0, 100_000), Ok(()));
        client.took(2);
        assert_eq!(client.asks(0, 100_000), Err(2));
    }

    #[test]
    fn those_under_way_count_with_what_others_took() {
        let mut client = Client::new();
        (0..100).for_each(|_| client.took(100));
        // All of it was owed, and paid.
        assert_eq!(client.asks(0, 60_000), Ok(()));
        assert_eq!(client.asks(4, 60_000), Ok(()));
        assert!(client.asks(6, 60_000).is_err(), "six of 100 ms are more than half a second");
    }
}
