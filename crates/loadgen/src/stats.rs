//! What is counted while load is generated.

use base::Duration;
use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// What became of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RequestOutcome {
    /// Outputs.
    Success,
    /// The server said that it can't or won't in time (HTTP 503 and 504, UNAVAILABLE, DEADLINE_EXCEEDED,
    /// RESOURCE_EXHAUSTED), with its reason.
    Refused(String),
    /// Anything else that isn't outputs, with the server's reason or ours.
    Error(String),
}

/// When things happened to one request, counted from the start of the run.
#[derive(Clone, Copy, Debug)]
pub struct RequestTimes {
    /// When it should have been sent.
    pub intended: Duration,
    /// When it was.
    pub sent: Duration,
    /// When the answer was there.
    pub answered: Duration,
}

/// The longest latency that is told apart from longer ones: an hour.
const MAX_NANOS: u64 = 3_600_000_000_000;

/// A refusal counts as at once if it is there so soon after its request was sent.
const AT_ONCE: Duration = Duration::from_millis(1);

/// The counts of one class.
#[derive(Clone, Debug)]
pub struct Stats {
    deadline: Option<Duration>,
    pub sent: u64,
    pub successes: u64,
    /// Successes by the deadline, counted from the intended send.
    pub good: u64,
    /// Successes after the deadline, counted from the intended send.
    pub late: u64,
    /// Successes after the deadline, counted from the actual send: what the server is to blame for.
    pub late_from_send: u64,
    /// Refusals after the deadline, counted from the intended send.
    pub refused_late: u64,
    /// Refusals after the deadline, counted from the actual send.
    pub refused_late_from_send: u64,
    /// Refusals with at least half of the deadline left, counted from the intended send.
    pub refused_early: u64,
    /// Refusals within a millisecond, counted from the actual send.
    pub refused_at_once: u64,
    pub refused: BTreeMap<String, u64>,
    pub errors: BTreeMap<String, u64>,
    /// Latencies in nanoseconds.
    pub success_latency: Histogram<u64>,
    pub refusal_latency: Histogram<u64>,
    pub send_lag: Histogram<u64>,
}

impl Stats {
    pub fn new(deadline: Option<Duration>) -> Self {
        let histogram =
            || Histogram::new_with_max(MAX_NANOS, 3).expect("3 digits are within the bounds of the library");
        Self {
            deadline,
            sent: 0,
            successes: 0,
            good: 0,
            late: 0,
            late_from_send: 0,
            refused_late: 0,
            refused_late_from_send: 0,
            refused_early: 0,
            refused_at_once: 0,
            refused: BTreeMap::new(),
            errors: BTreeMap::new(),
            success_latency: histogram(),
            refusal_latency: histogram(),
            send_lag: histogram(),
        }
    }

    /// Counts a request that is over.
    pub fn record(&mut self, times: RequestTimes, outcome: &RequestOutcome) {
        let latency = times.answered - times.intended;
        let from_send = times.answered - times.sent;
        self.send_lag.saturating_record((times.sent - times.intended).as_nanos());
        let is_after = |span: Duration| self.deadline.is_some_and(|deadline| span > deadline);
        match outcome {
            RequestOutcome::Success => {
                self.successes += 1;
                self.late += u64::from(is_after(latency));
                self.good += u64::from(!is_after(latency));
                self.late_from_send += u64::from(is_after(from_send));
                self.success_latency.saturating_record(latency.as_nanos());
            }
            RequestOutcome::Refused(reason) => {
                self.refused_late += u64::from(is_after(latency));
                self.refused_late_from_send += u64::from(is_after(from_send));
                self.refused_early += u64::from(self.deadline.is_some_and(|deadline| latency <= deadline / 2));
                self.refused_at_once += u64::from(from_send <= AT_ONCE);
                count(&mut self.refused, reason);
                self.refusal_latency.saturating_record(latency.as_nanos());
            }
            RequestOutcome::Error(reason) => count(&mut self.errors, reason),
        }
    }

    /// Requests that were refused.
    pub fn refusals(&self) -> u64 {
        self.refused.values().sum()
    }

    /// Requests that failed otherwise.
    pub fn failures(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Requests that are still without an answer.
    pub fn open(&self) -> u64 {
        self.sent - self.successes - self.refusals() - self.failures()
    }

    /// Adds the counts of another class.
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.successes += other.successes;
        self.good += other.good;
        self.late += other.late;
        self.late_from_send += other.late_from_send;
        self.refused_late += other.refused_late;
        self.refused_late_from_send += other.refused_late_from_send;
        self.refused_early += other.refused_early;
        self.refused_at_once += other.refused_at_once;
        for (to, from) in [(&mut self.refused, &other.refused), (&mut self.errors, &other.errors)] {
            for (reason, count) in from {
                *to.entry(reason.clone()).or_default() += count;
            }
        }
        let pairs = [
            (&mut self.success_latency, &other.success_latency),
            (&mut self.refusal_latency, &other.refusal_latency),
            (&mut self.send_lag, &other.send_lag),
        ];
        for (to, from) in pairs {
            to.add(from).expect("both have the same bounds");
        }
    }
}

/// Counts without allocating for a reason that was seen before.
fn count(counts: &mut BTreeMap<String, u64>, reason: &str) {
    match counts.get_mut(reason) {
        Some(count) => *count += 1,
        None => drop(counts.insert(reason.to_owned(), 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(intended: u64, sent: u64, answered: u64) -> RequestTimes {
        let at = Duration::from_millis;
        RequestTimes { intended: at(intended), sent: at(sent), answered: at(answered) }
    }

    #[test]
    fn the_clock_starts_at_the_intended_send() {
        let mut stats = Stats::new(Some(Duration::from_millis(10)));
        stats.sent = 6;
        stats.record(times(0, 0, 10), &RequestOutcome::Success);
        stats.record(times(0, 8, 12), &RequestOutcome::Success);
        stats.record(times(0, 0, 12), &RequestOutcome::Success);
        stats.record(times(0, 4, 5), &RequestOutcome::Refused("overloaded".into()));
        stats.record(times(0, 3, 12), &RequestOutcome::Refused("overloaded".into()));
        assert_eq!((stats.good, stats.late, stats.late_from_send), (1, 2, 1));
        assert_eq!((stats.refused_early, stats.refused_late, stats.refused_late_from_send), (1, 1, 0));
        assert_eq!((stats.refused_at_once, stats.refusals(), stats.open()), (1, 2, 1));
        assert!(stats.success_latency.max() >= 12_000_000);
        assert!(stats.send_lag.max() >= 8_000_000);
    }

    #[test]
    fn without_a_deadline_every_success_is_good() {
        let mut stats = Stats::new(None);
        stats.sent = 2;
        stats.record(times(0, 0, 100_000), &RequestOutcome::Success);
        stats.record(times(0, 0, 1), &RequestOutcome::Error("connection".into()));
        assert_eq!((stats.good, stats.late, stats.failures()), (1, 0, 1));
    }
}
