//! What one executor of a device is doing, and until when. It runs what it was given one after another (P4).

use base::{ActionId, Duration, Timestamp};
use std::collections::VecDeque;

/// Never more actions than this are outstanding on one executor (P9), however short they are.
const MAX_OUTSTANDING: usize = 1024;

/// Where the next batch's transfers are to be hidden behind the one that runs, its order leaves so much earlier than they take: for its way, and
/// because actions mostly end earlier than was planned with.
const WAY: Duration = Duration::from_micros(250);

/// How exactly the end of an action is known while it runs.
const UNSURE: Duration = Duration::from_micros(100);

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    action: ActionId,
    /// For how long it keeps the executor from others.
    keeps: Duration,
    ordered_at: Timestamp,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Executor {
    outstanding: VecDeque<Outstanding>,
    /// What transfers beside other actions took lately; zero where there are none.
    beside: Duration,
    /// When everything outstanding is expected to be done. In the past when reports are overdue.
    free_at: Timestamp,
}

impl Executor {
    /// When a new action could start.
    pub fn start_at(&self, now: Timestamp) -> Timestamp {
        if self.outstanding.is_empty() { now } else { self.free_at.max(now) }
    }

    /// When to count on a new action's start: orders that leave ahead, for the sake of transfers, start when others end, which is never known exactly, and one that is
    /// planned to the microsecond would often find its window closed.
    pub fn surely_at(&self, now: Timestamp) -> Timestamp {
        let waits = !self.is_idle() && self.beside > Duration::ZERO;
        self.start_at(now) + if waits { UNSURE } else { Duration::ZERO }
    }

    pub fn is_idle(&self) -> bool {
        self.outstanding.is_empty()
    }

    /// How long before it is free it wants the next action: `ahead`, and for as long as transfers take.
    fn ahead(&self, ahead: Duration) -> Duration {
        if self.beside == Duration::ZERO { ahead } else { ahead + self.beside + WAY }
    }

    /// Whether it should be given more, so that it has `ahead` to do.
    pub fn is_hungry(&self, now: Timestamp, ahead: Duration) -> bool {
        self.is_idle() || (self.free_at < now + self.ahead(ahead) && self.outstanding.len() < MAX_OUTSTANDING)
    }

    /// When `is_hungry` turns true if nothing is reported before.
    pub fn hungry_at(&self, ahead: Duration) -> Timestamp {
        let ahead = self.ahead(ahead);
        if ahead == Duration::ZERO || self.outstanding.len() >= MAX_OUTSTANDING {
            Timestamp::NEVER
        } else {
            // One past, because the comparison is strict.
            self.free_at - ahead + Duration::from_nanos(1)
        }
    }

    /// Takes an action in and says when it is expected to be done. What of it runs beside others keeps nobody waiting, unless it is the only one.
    pub fn push(&mut self, now: Timestamp, action: ActionId, expected: Duration, beside: Duration) -> Timestamp {
        let keeps = expected - beside;
        let takes = if self.is_idle() { expected } else { keeps };
        self.free_at = self.start_at(now) + takes;
        self.outstanding.push_back(Outstanding { action, keeps, ordered_at: now });
        self.free_at
    }

    /// So much of an action that is over could run beside others.
    pub fn note_beside(&mut self, beside: Duration) {
        self.beside = (self.beside * 3 + beside) / 4;
    }

    /// An action is over since then. What is behind it started there, if it was ordered by then.
    pub fn finish(&mut self, ended_at: Timestamp, action: ActionId) {
        let Some(position) = self.outstanding.iter().position(|other| other.action == action) else { return };
        self.outstanding.remove(position);
        self.free_at = self.outstanding.iter().fold(ended_at, |at, next| at.max(next.ordered_at) + next.keeps);
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
        let ahead = Duration::from_micros(50);
        let mut executor = Executor::default();
        executor.push(at(0), ActionId(1), Duration::from_micros(100), Duration::ZERO);
        assert!(!executor.is_hungry(at(50), ahead));
        let hungry_at = executor.hungry_at(ahead);
        assert!(executor.is_hungry(hungry_at, ahead));
        assert!(!executor.is_hungry(hungry_at - Duration::from_nanos(1), ahead));
    }

    #[test]
    fn transfers_are_hidden_behind_what_runs() {
        let micros = Duration::from_micros;
        let mut executor = Executor::default();
        assert_eq!(executor.push(at(0), ActionId(1), micros(500), micros(100)), at(500), "nothing to hide behind");
        assert_eq!(executor.hungry_at(Duration::ZERO), Timestamp::NEVER, "nothing is known of transfers yet");
        (0..20).for_each(|_| executor.note_beside(micros(100)));
        let hungry_at = executor.hungry_at(Duration::ZERO);
        assert!(hungry_at > at(149) && hungry_at < at(152), "{hungry_at:?}");
        assert_eq!((executor.start_at(at(160)), executor.surely_at(at(160))), (at(500), at(600)));
        assert_eq!(executor.push(at(160), ActionId(2), micros(300), micros(100)), at(700));
        executor.finish(at(490), ActionId(1));
        assert_eq!(executor.start_at(at(490)), at(690));
    }
}
