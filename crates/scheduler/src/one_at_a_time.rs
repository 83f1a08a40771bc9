//! Whether what one executor reports can be true (P4), for whoever sees its reports but not the executor.

use base::{Timestamp, Transfers};

/// What an executor reported last.
///
/// Batches follow each other. Where transfers run beside other batches, the outputs of one are still on their way when
/// the next one starts, but have arrived when the one behind that does:
///
/// ```text
///  k      ├── computed ──┤─ outputs ─┤
///  k + 1                 ├───── computed ─────┤─ outputs ─┤
///  k + 2                              ^       ├── computed ...
///                              k has ended
/// ```
#[derive(Clone, Copy, Default, Debug)]
pub struct OneAtATime {
    started_at: Timestamp,
    ended_at: Timestamp,
    /// When the one before the last ended.
    before_at: Timestamp,
    /// Whether the last one had transfers.
    moved: bool,
}

impl OneAtATime {
    /// Takes a report in, in the order in which the executor sends them. Whether it can be true.
    pub fn ran(&mut self, started_at: Timestamp, ended_at: Timestamp, transfers: Transfers) -> bool {
        let moved = transfers != Transfers::default();
        let free_at = if moved || self.moved { self.before_at.max(self.started_at) } else { self.ended_at };
        *self = Self { started_at, ended_at, before_at: self.ended_at, moved };
        started_at >= free_at && ended_at >= started_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Duration;

    fn verdicts(runs: &[(u64, u64, u64)]) -> Vec<bool> {
        let at = Timestamp::from_nanos;
        let mut executor = OneAtATime::default();
        let transfers = |overlap| Transfers { before: Duration::ZERO, overlap: Duration::from_nanos(overlap) };
        runs.iter().map(|&(start, end, overlap)| executor.ran(at(start), at(end), transfers(overlap))).collect()
    }

    #[test]
    fn batches_follow_each_other() {
        assert_eq!(verdicts(&[(1, 5, 0), (5, 9, 0), (8, 12, 0)]), [true, true, false]);
        assert_eq!(verdicts(&[(7, 5, 0)]), [false]);
    }

    #[test]
    fn outputs_may_be_on_their_way_when_the_next_one_starts_but_not_when_the_one_behind_does() {
        assert_eq!(verdicts(&[(1, 6, 2), (4, 10, 2), (7, 12, 2)]), [true, true, true]);
        assert_eq!(verdicts(&[(1, 6, 2), (4, 10, 2), (5, 12, 2)]), [true, true, false]);
        assert_eq!(verdicts(&[(4, 6, 2), (3, 10, 2)]), [true, false]);
    }
}
