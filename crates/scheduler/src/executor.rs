//! What one executor of a device is doing, and until when. It runs what it was given one after another (P4).

use base::{ActionId, Duration, Timestamp, margins};
use std::collections::VecDeque;

/// Never more actions than this are outstanding on one executor (P9), however short they are.
const MAX_OUTSTANDING: usize = 1024;

/// How early an executor gets its orders.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lead {
    /// So long before it is free.
    pub ahead: Duration,
    /// What a report takes to come back.
    pub way: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    action: ActionId,
    /// For how long it keeps the executor from others.
    keeps: Duration,
    /// When its order has come, with what it needs.
    arrives_at: Timestamp,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Executor {
    outstanding: VecDeque<Outstanding>,
    /// What transfers beside other actions took lately; zero where there are none.
    overlap: Duration,
    /// When everything outstanding is expected to be done. In the past when reports are overdue.
    free_at: Timestamp,
    /// The same for the first of it.
    first_done_at: Timestamp,
}

impl Executor {
    /// When a new action could start.
    pub fn start_at(&self, now: Timestamp) -> Timestamp {
        if self.outstanding.is_empty() { now } else { self.free_at.max(now) }
    }

    /// When to count on a new action's start: orders that leave ahead, for the sake of transfers, start when others
    /// end, which is never known exactly, and one that is planned to the microsecond would often find its window
    /// closed.
    pub fn surely_at(&self, now: Timestamp) -> Timestamp {
        let waits = !self.is_idle() && self.overlap > Duration::ZERO;
        self.start_at(now) + if waits { margins::UNSURE } else { Duration::ZERO }
    }

    pub fn is_idle(&self) -> bool {
        self.outstanding.is_empty()
    }

    /// How long before it is free it wants the next action: `ahead`, and for as long as transfers take.
    fn ahead(&self, ahead: Duration) -> Duration {
        if self.overlap == Duration::ZERO { ahead } else { ahead + self.overlap + margins::ORDER_WAY }
    }

    /// Whether it should have ended something by now and hasn't, reports being `way` under way. Nobody knows when it
    /// will go on, so that it is given nothing more: a stalled executor would swallow batch after batch.
    pub fn is_overdue(&self, now: Timestamp, way: Duration) -> bool {
        !self.is_idle() && now > self.first_done_at + way
    }

    /// Whether it should be given more, so that it has `lead.ahead` to do.
    pub fn is_hungry(&self, now: Timestamp, lead: Lead) -> bool {
        let short = self.free_at < now + self.ahead(lead.ahead) && self.outstanding.len() < MAX_OUTSTANDING;
        self.is_idle() || (short && !self.is_overdue(now, lead.way))
    }

    /// When `is_hungry` turns true if nothing is reported before.
    pub fn hungry_at(&self, now: Timestamp, lead: Lead) -> Timestamp {
        let ahead = self.ahead(lead.ahead);
        // One past, because the comparison is strict.
        let at = self.free_at - ahead + Duration::from_nanos(1);
        if ahead == Duration::ZERO || self.outstanding.len() >= MAX_OUTSTANDING || at <= now {
            Timestamp::NEVER
        } else {
            at
        }
    }

    /// Takes an action in whose order will be there at `arrives_at`, and says when it is expected to be done. What of
    /// it runs beside others keeps nobody waiting, unless it is the only one.
    pub fn push(
        &mut self,
        arrives_at: Timestamp,
        action: ActionId,
        expected: Duration,
        overlap: Duration,
    ) -> Timestamp {
        let keeps = expected - overlap;
        let takes = if self.is_idle() { expected } else { keeps };
        self.free_at = self.start_at(arrives_at) + takes;
        if self.is_idle() {
            self.first_done_at = self.free_at;
        }
        self.outstanding.push_back(Outstanding { action, keeps, arrives_at });
        self.free_at
    }

    /// So much of an action that is over could run beside others.
    pub fn note_overlap(&mut self, overlap: Duration) {
        self.overlap = (self.overlap * 3 + overlap) / 4;
    }

    /// An action is over since then. What is behind it started there, if it was ordered by then.
    pub fn finish(&mut self, ended_at: Timestamp, action: ActionId) {
        let Some(position) = self.outstanding.iter().position(|other| other.action == action) else { return };
        self.outstanding.remove(position);
        self.free_at = ended_at;
        for (index, next) in self.outstanding.iter().enumerate() {
            self.free_at = self.free_at.max(next.arrives_at) + next.keeps;
            if index == 0 {
                self.first_done_at = self.free_at;
            }
        }
    }

    /// When each outstanding action is expected to end, if what is overdue ends now.
    pub fn ends(&self, now: Timestamp) -> impl Iterator<Item = (ActionId, Timestamp)> {
        let mut at = self.first_done_at.max(now);
        self.outstanding.iter().enumerate().map(move |(index, next)| {
            if index > 0 {
                at = at.max(next.arrives_at) + next.keeps;
            }
            (next.action, at)
        })
    }

    pub fn outstanding(&self) -> impl Iterator<Item = ActionId> {
        self.outstanding.iter().map(|other| other.action)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_micros(micros)
    }

    fn lead(ahead: u64, way: u64) -> Lead {
        Lead { ahead: Duration::from_micros(ahead), way: Duration::from_micros(way) }
    }

    #[test]
    fn work_queues_up_and_an_early_end_pulls_the_rest_forward() {
        let mut executor = Executor::default();
        assert_eq!(executor.push(at(10), ActionId(1), Duration::from_micros(100), Duration::ZERO), at(110));
        assert_eq!(executor.push(at(20), ActionId(2), Duration::from_micros(50), Duration::ZERO), at(160));
        executor.finish(at(80), ActionId(1));
        assert_eq!(executor.start_at(at(80)), at(130));
        executor.finish(at(120), ActionId(2));
        assert!(executor.is_idle());
        assert_eq!(executor.start_at(at(500)), at(500));
    }

    #[test]
    fn what_was_ordered_before_the_end_was_heard_of_started_when_it_was_ordered() {
        let mut executor = Executor::default();
        executor.push(at(0), ActionId(1), Duration::from_micros(10), Duration::ZERO);
        executor.push(at(8), ActionId(2), Duration::from_micros(5), Duration::ZERO);
        executor.finish(at(5), ActionId(1));
        assert_eq!(executor.start_at(at(9)), at(13));
    }

    #[test]
    fn hunger_comes_when_less_than_the_lookahead_is_left() {
        let ahead = lead(50, 0);
        let mut executor = Executor::default();
        executor.push(at(0), ActionId(1), Duration::from_micros(100), Duration::ZERO);
        assert!(!executor.is_hungry(at(50), ahead));
        let hungry_at = executor.hungry_at(at(0), ahead);
        assert!(executor.is_hungry(hungry_at, ahead));
        assert!(!executor.is_hungry(hungry_at - Duration::from_nanos(1), ahead));
    }

    #[test]
    fn an_executor_that_is_overdue_is_given_nothing_until_it_reports() {
        let ahead = lead(50, 20);
        let mut executor = Executor::default();
        executor.push(at(0), ActionId(1), Duration::from_micros(100), Duration::ZERO);
        assert!(executor.is_hungry(at(120), ahead), "its report may be under way");
        assert!(!executor.is_hungry(at(121), ahead));
        assert_eq!(executor.hungry_at(at(121), ahead), Timestamp::NEVER, "time alone doesn't help");
        executor.push(at(121), ActionId(2), Duration::from_micros(30), Duration::ZERO);
        executor.finish(at(500), ActionId(1));
        assert!(executor.is_hungry(at(500), ahead));
        assert!(!executor.is_hungry(at(551), ahead), "the next one is overdue, too");
    }

    #[test]
    fn transfers_are_hidden_behind_what_runs() {
        let micros = Duration::from_micros;
        let mut executor = Executor::default();
        assert_eq!(executor.push(at(0), ActionId(1), micros(500), micros(100)), at(500), "nothing to hide behind");
        assert_eq!(executor.hungry_at(at(0), lead(0, 0)), Timestamp::NEVER, "nothing is known of transfers yet");
        (0..20).for_each(|_| executor.note_overlap(micros(100)));
        let hungry_at = executor.hungry_at(at(0), lead(0, 0));
        assert!(hungry_at > at(149) && hungry_at < at(152), "{hungry_at:?}");
        assert_eq!((executor.start_at(at(160)), executor.surely_at(at(160))), (at(500), at(600)));
        assert_eq!(executor.push(at(160), ActionId(2), micros(300), micros(100)), at(700));
        executor.finish(at(490), ActionId(1));
        assert_eq!(executor.start_at(at(490)), at(690));
    }
}
