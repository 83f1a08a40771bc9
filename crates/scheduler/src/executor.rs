//! What one executor of a device is doing, and until when. It runs what it was given one after another (P4).

use base::{ActionId, Duration, Timestamp};
use std::collections::VecDeque;

/// Never more actions than this are outstanding on one executor (P9), however short they are.
const MAX_OUTSTANDING: usize = 1024;

#[derive(Clone, Debug, Default)]
pub(crate) struct Executor {
    outstanding: VecDeque<(ActionId, Duration)>,
    /// When everything outstanding is expected to be done. In the past when reports are overdue.
    free_at: Timestamp,
}

impl Executor {
    /// When a new action could start.
    pub fn start_at(&self, now: Timestamp) -> Timestamp {
        if self.outstanding.is_empty() { now } else { self.free_at.max(now) }
    }

    pub fn is_idle(&self) -> bool {
        self.outstanding.is_empty()
    }

    /// Whether it should be given more, so that it has `ahead` to do.
    pub fn is_hungry(&self, now: Timestamp, ahead: Duration) -> bool {
        self.is_idle() || (self.free_at < now + ahead && self.outstanding.len() < MAX_OUTSTANDING)
    }

    /// When `is_hungry` turns true if nothing is reported before.
    pub fn hungry_at(&self, ahead: Duration) -> Timestamp {
        if ahead == Duration::ZERO || self.outstanding.len() >= MAX_OUTSTANDING {
            Timestamp::NEVER
        } else {
            // One past, because the comparison is strict.
            self.free_at - ahead + Duration::from_nanos(1)
        }
    }

    /// Takes an action in and says when it is expected to be done.
    pub fn push(&mut self, now: Timestamp, action: ActionId, expected: Duration) -> Timestamp {
        self.free_at = self.start_at(now) + expected;
        self.outstanding.push_back((action, expected));
        self.free_at
    }

    /// An action is over. What is behind it starts now.
    pub fn finish(&mut self, now: Timestamp, action: ActionId) {
        let Some(position) = self.outstanding.iter().position(|&(id, _)| id == action) else { return };
        self.outstanding.remove(position);
        self.free_at = now + self.outstanding.iter().map(|&(_, expected)| expected).sum();
    }

    pub fn outstanding(&self) -> impl Iterator<Item = ActionId> {
        self.outstanding.iter().map(|&(action, _)| action)
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
        assert_eq!(executor.push(at(10), ActionId(1), Duration::from_micros(100)), at(110));
        assert_eq!(executor.push(at(20), ActionId(2), Duration::from_micros(50)), at(160));
        executor.finish(at(80), ActionId(1));
        assert_eq!(executor.start_at(at(80)), at(130));
        executor.finish(at(120), ActionId(2));
        assert!(executor.is_idle());
        assert_eq!(executor.start_at(at(500)), at(500));
    }

    #[test]
    fn hunger_comes_when_less_than_the_lookahead_is_left() {
        let ahead = Duration::from_micros(50);
        let mut executor = Executor::default();
        executor.push(at(0), ActionId(1), Duration::from_micros(100));
        assert!(!executor.is_hungry(at(50), ahead));
        let hungry_at = executor.hungry_at(ahead);
        assert!(executor.is_hungry(hungry_at, ahead));
        assert!(!executor.is_hungry(hungry_at - Duration::from_nanos(1), ahead));
    }
}
