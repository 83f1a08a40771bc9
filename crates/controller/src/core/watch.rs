//! The invariants that the driver can see for itself, cheaply, while it drives: it counts and logs what it finds
//! broken.
//!
//! | | what is looked at |
//! |---|---|
//! | P1 | a request that ends twice, or was never there; one step in some dozens, that the scheduler has as many in hand as the driver |
//! | P2 | a success whose execution ended after the deadline, or without an execution |
//! | P3 | a report whose start is outside the order's window |
//! | P4 | reports of one executor that can't both be true |
//! | P5 | a worker without room for a load; with nothing under way, other numbers of pages here and there |
//! | P6 | a worker without the weights of a batch; an unload of weights that a batch is ordered for |
//! | P8 | a request in a batch that has ended before |
//! | P9 | a model's queue that has grown past its bound |
//!
//! P7 is about two runs: `punctual replay` looks at it.

use super::books::Expectation;
use base::{DeviceId, RequestId, Timestamp, Transfers};
use scheduler::{OneAtATime, Outcome};
use telemetry::{Invariant, Metrics};

/// What the driver remembers of requests and executors to see whether the invariants hold.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// By slot.
    requests: Vec<WatchedRequest>,
    living: usize,
    /// By device: batches, loads.
    executors: Vec<[OneAtATime; 2]>,
    /// Requests were lost, or came from nowhere: that is counted once.
    miscounted: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct WatchedRequest {
    generation: u32,
    lives: bool,
    deadline_at: Timestamp,
}

/// Counts and logs a broken invariant.
pub(super) fn broken(metrics: &Metrics, invariant: Invariant, what: &str) {
    metrics.violated(invariant);
    tracing::error!("{invariant:?} is broken: {what}; please report this, with a recording (--record) if there is one");
}

impl Watch {
    /// The scheduler is about to be told of a request.
    pub fn submitted(&mut self, metrics: &Metrics, id: RequestId, deadline_at: Timestamp) {
        let slot = id.slot as usize;
        if self.requests.len() <= slot {
            self.requests.resize(slot + 1, WatchedRequest::default());
        }
        let before = std::mem::replace(
            &mut self.requests[slot],
            WatchedRequest { generation: id.generation, lives: true, deadline_at },
        );
        if before.lives {
            broken(metrics, Invariant::P1, &format!("{id} has the slot of a request that has no outcome"));
        } else {
            self.living += 1;
        }
    }

    /// The scheduler says how a request ended; `ended_at` is when the execution did whose report it was just told.
    /// Whether the request was there: otherwise nothing may follow from it.
    pub fn finished(
        &mut self,
        metrics: &Metrics,
        id: RequestId,
        outcome: Outcome,
        ended_at: Option<Timestamp>,
    ) -> bool {
        let request = self.requests.get_mut(id.slot as usize);
        let request = request.filter(|request| request.lives && request.generation == id.generation);
        let Some(request) = request else {
            broken(metrics, Invariant::P1, &format!("{id} ends as {outcome:?}, but isn't there: it has ended before"));
            return false;
        };
        request.lives = false;
        self.living -= 1;
        if outcome == Outcome::Done && ended_at.is_none_or(|at| at > request.deadline_at) {
            let deadline_at = request.deadline_at;
            let what =
                format!("{id} is called a success, but its execution ended at {ended_at:?}, after {deadline_at}");
            broken(metrics, Invariant::P2, &what);
        }
        true
    }

    /// Compares the driver's count of requests with the scheduler's.
    pub fn in_hand(&mut self, metrics: &Metrics, scheduler: usize) {
        if scheduler != self.living && !std::mem::replace(&mut self.miscounted, true) {
            let living = self.living;
            broken(
                metrics,
                Invariant::P1,
                &format!("{living} requests have no outcome, the scheduler has {scheduler}"),
            );
        }
    }

    /// A report says that an action ran.
    pub fn ran(
        &mut self,
        metrics: &Metrics,
        expectation: &Expectation,
        (started_at, ended_at): (Timestamp, Timestamp),
        transfers: Transfers,
    ) {
        expectation.started(metrics, started_at);
        let device = expectation.device;
        if self.executors.len() <= device.index() {
            self.executors.resize(device.index() + 1, Default::default());
        }
        let executor = &mut self.executors[device.index()][usize::from(expectation.done_at.is_none())];
        if !executor.ran(started_at, ended_at, transfers) {
            let what = format!("on {device} something ran from {started_at} to {ended_at}, beside what ran before it");
            broken(metrics, Invariant::P4, &what);
        }
    }

    /// A device was started anew.
    pub fn forget(&mut self, device: DeviceId) {
        if let Some(executors) = self.executors.get_mut(device.index()) {
            *executors = Default::default();
        }
    }
}

impl Expectation {
    /// Looks whether the action started in its window.
    pub fn started(&self, metrics: &Metrics, started_at: Timestamp) {
        if !self.window.contains(started_at) {
            let (earliest, latest) = (self.window.earliest, self.window.latest);
            let what = format!("an action of {} started at {started_at}, not in {earliest} to {latest}", self.device);
            broken(metrics, Invariant::P3, &what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Duration, ModelId, Window};

    const ID: RequestId = RequestId { slot: 3, generation: 1 };

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    /// Which invariants were counted, how often.
    fn counted(metrics: &Metrics) -> Vec<(String, u32)> {
        let text = metrics.render();
        let lines = text.lines().filter_map(|line| {
            let (name, count) =
                line.strip_prefix("punctual_invariant_violations_total{invariant=\"")?.split_once("\"} ")?;
            Some((name.to_owned(), count.parse().unwrap()))
        });
        lines.filter(|&(_, count)| count > 0).collect()
    }

    #[test]
    fn a_request_that_ends_twice_and_one_that_never_was() {
        let (metrics, mut watch) = (Metrics::new(), Watch::default());
        watch.submitted(&metrics, ID, at(9));
        assert!(watch.finished(&metrics, ID, Outcome::Done, Some(at(9))));
        assert_eq!(counted(&metrics), []);
        assert!(!watch.finished(&metrics, ID, Outcome::Late, None));
        assert!(!watch.finished(&metrics, RequestId { slot: 99, generation: 0 }, Outcome::Failed, None));
        assert_eq!(counted(&metrics), [("P1".into(), 2)]);
    }

    #[test]
    fn a_request_that_nobody_has_is_counted_once() {
        let (metrics, mut watch) = (Metrics::new(), Watch::default());
        watch.submitted(&metrics, ID, at(9));
        watch.in_hand(&metrics, 1);
        assert_eq!(counted(&metrics), []);
        watch.in_hand(&metrics, 0);
        watch.in_hand(&metrics, 0);
        assert_eq!(counted(&metrics), [("P1".into(), 1)]);
        watch.submitted(&metrics, RequestId { generation: 2, ..ID }, at(9));
        assert_eq!(counted(&metrics), [("P1".into(), 2)], "its slot was given away");
    }

    #[test]
    fn a_success_after_the_deadline_or_without_an_execution() {
        let (metrics, mut watch) = (Metrics::new(), Watch::default());
        for (ended_at, violations) in [(Some(at(9)), 0), (Some(at(10)), 1), (None, 2)] {
            watch.submitted(&metrics, ID, at(9));
            assert!(watch.finished(&metrics, ID, Outcome::Done, ended_at));
            let expected: Vec<(String, u32)> =
                (violations > 0).then(|| ("P2".into(), violations)).into_iter().collect();
            assert_eq!(counted(&metrics), expected);
        }
    }

    #[test]
    fn a_start_outside_of_its_window_and_two_batches_at_a_time() {
        let (metrics, mut watch) = (Metrics::new(), Watch::default());
        let batch = Expectation {
            device: DeviceId(1),
            kind: 0,
            model: ModelId(0),
            took: Duration::ZERO,
            done_at: Some(at(20)),
            window: Window { earliest: at(5), latest: at(15) },
            rows: 1,
            bytes: 0,
            alone: None,
        };
        let load = Expectation { done_at: None, ..batch };
        watch.ran(&metrics, &batch, (at(5), at(10)), Transfers::default());
        watch.ran(&metrics, &load, (at(6), at(12)), Transfers::default());
        watch.ran(&metrics, &batch, (at(15), at(30)), Transfers::default());
        assert_eq!(counted(&metrics), []);
        watch.ran(&metrics, &batch, (at(31), at(32)), Transfers::default());
        assert_eq!(counted(&metrics), [("P3".into(), 1)]);
        watch.ran(&metrics, &batch, (at(14), at(40)), Transfers::default());
        assert_eq!(counted(&metrics), [("P3".into(), 1), ("P4".into(), 1)]);
        watch.forget(DeviceId(1));
        watch.ran(&metrics, &batch, (at(13), at(14)), Transfers::default());
        assert_eq!(counted(&metrics), [("P3".into(), 1), ("P4".into(), 1)]);
    }
}
