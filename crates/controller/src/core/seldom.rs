//! A line of the log that clients can cause as often as they like: there is one in a while, which says how many were
//! left out.

use base::{Duration, Timestamp};

/// From one line to the next.
const EVERY: Duration = Duration::from_secs(10);

/// When there is the next line, and what it has to say of those that weren't written.
#[derive(Clone, Copy, Debug, Default)]
pub struct SeldomLine {
    next_at: Timestamp,
    left_out: u64,
}

impl SeldomLine {
    /// So many more to tell of. If it is time for a line, which tells of one: how many were left out.
    pub fn add(&mut self, now: Timestamp, count: u32) -> Option<u64> {
        self.left_out = self.left_out.saturating_add(count.into());
        if now < self.next_at {
            return None;
        }
        self.next_at = now + EVERY;
        Some(std::mem::take(&mut self.left_out).saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_line_in_ten_seconds_and_no_request_of_it_is_forgotten() {
        let (mut line, mut lines, mut told) = (SeldomLine::default(), 0, 0);
        // Three in each millisecond, for a minute.
        for millis in 0..=60_000 {
            if let Some(left_out) = line.add(Timestamp::ZERO + Duration::from_millis(millis), 3) {
                lines += 1;
                told += left_out + 1;
            }
        }
        assert_eq!((lines, told), (7, 3 * 60_001));
    }

    #[test]
    fn a_single_one_leaves_nothing_out() {
        let mut line = SeldomLine::default();
        assert_eq!(line.add(Timestamp::ZERO, 1), Some(0));
        assert_eq!(line.add(Timestamp::ZERO + EVERY, 1), Some(0));
    }
}
