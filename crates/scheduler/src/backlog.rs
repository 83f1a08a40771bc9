//! How much queued work is due before an instant? For admission: work that is due later doesn't stand in the way.
//!
//! ```text
//!  fine:   512 buckets of  2.1 ms   ├┼┼┼┼┼┼┼┤            due within 1.07 s
//!  coarse: 512 buckets of  134 ms   ├──┼──┼──┼──┤        due within 68 s
//!  far:    one number                           ├─────   due later
//! ```
//!
//! Each ring is a Fenwick tree over the bits of the deadline, so that adding, removing and asking take 9 steps each,
//! whatever the number of requests.

use base::{Duration, Timestamp};

const BUCKETS: usize = 512;
const FINE_SHIFT: u32 = 21;
const COARSE_SHIFT: u32 = 27;

#[derive(Clone, Debug)]
struct Ring {
    /// log2 of the nanoseconds of a bucket.
    shift: u32,
    /// Fenwick tree, 1-based.
    tree: Box<[u64; BUCKETS + 1]>,
    total: u64,
}

impl Ring {
    fn new(shift: u32) -> Self {
        Self { shift, tree: Box::new([0; BUCKETS + 1]), total: 0 }
    }

    fn bucket(&self, at: Timestamp) -> usize {
        (at.as_nanos() >> self.shift) as usize % BUCKETS
    }

    fn holds(&self, now: Timestamp, due_at: Timestamp) -> bool {
        (due_at.as_nanos() >> self.shift) - (now.as_nanos() >> self.shift) < BUCKETS as u64
    }

    fn add(&mut self, due_at: Timestamp, work: u64) {
        self.total += work;
        self.change(due_at, |value| *value += work);
    }

    fn remove(&mut self, due_at: Timestamp, work: u64) {
        self.total -= work;
        self.change(due_at, |value| *value -= work);
    }

    fn change(&mut self, due_at: Timestamp, change: impl Fn(&mut u64)) {
        let mut index = self.bucket(due_at) + 1;
        while index <= BUCKETS {
            change(&mut self.tree[index]);
            index += index & index.wrapping_neg();
        }
    }

    /// The sum of the buckets `0..end`.
    fn prefix(&self, end: usize) -> u64 {
        let mut index = end;
        let mut sum = 0;
        while index > 0 {
            sum += self.tree[index];
            index &= index - 1;
        }
        sum
    }

    /// The work in the buckets from `now`'s to `until`'s, that one included or not. Both within one turn of the ring.
    fn between(&self, now: Timestamp, until: Timestamp, inclusive: bool) -> u64 {
        if self.total == 0 {
            return 0;
        }
        let (first, last) = (self.bucket(now), self.bucket(until) + usize::from(inclusive));
        if first < last || (first == last && !inclusive) {
            self.prefix(last) - self.prefix(first)
        } else {
            self.total - self.prefix(first) + self.prefix(last)
        }
    }
}

/// Where a request's work was booked, to take it out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Booking {
    ring: Place,
    due_at: Timestamp,
    work: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Fine,
    Coarse,
    Far,
}

/// The queued work of one device by deadline.
#[derive(Clone, Debug)]
pub(crate) struct Backlog {
    fine: Ring,
    coarse: Ring,
    far: u64,
}

impl Backlog {
    pub fn new() -> Self {
        Self { fine: Ring::new(FINE_SHIFT), coarse: Ring::new(COARSE_SHIFT), far: 0 }
    }

    pub fn book(&mut self, now: Timestamp, due_at: Timestamp, work: Duration) -> Booking {
        let due_at = due_at.max(now);
        let ring = if self.fine.holds(now, due_at) {
            self.fine.add(due_at, work.as_nanos());
            Place::Fine
        } else if self.coarse.holds(now, due_at) {
            self.coarse.add(due_at, work.as_nanos());
            Place::Coarse
        } else {
            self.far += work.as_nanos();
            Place::Far
        };
        Booking { ring, due_at, work }
    }

    pub fn release(&mut self, booking: Booking) {
        match booking.ring {
            Place::Fine => self.fine.remove(booking.due_at, booking.work.as_nanos()),
            Place::Coarse => self.coarse.remove(booking.due_at, booking.work.as_nanos()),
            Place::Far => self.far -= booking.work.as_nanos(),
        }
    }

    /// The queued work that is due by that instant, to within a bucket.
    pub fn due_by(&self, now: Timestamp, until: Timestamp) -> Duration {
        let until = until.max(now);
        let nanos = if self.fine.holds(now, until) {
            self.fine.between(now, until, true) + self.coarse.between(now, until, false)
        } else if self.coarse.holds(now, until) {
            self.fine.total + self.coarse.between(now, until, true)
        } else {
            self.fine.total + self.coarse.total + self.far
        };
        Duration::from_nanos(nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a plain list: the sum may be off by what lies in the buckets around the instant that was asked for.
        #[test]
        fn agrees_with_a_list_to_within_a_bucket(
            start in 0u64..10_000_000_000_000,
            entries in proptest::collection::vec((0u64..120_000_000_000, 1u64..5_000_000, any::<bool>()), 1..80),
            asked in 0u64..100_000_000_000,
        ) {
            let now = Timestamp::from_nanos(start);
            let mut backlog = Backlog::new();
            let mut list = Vec::new();
            for &(offset, work, keep) in &entries {
                let due_at = now + Duration::from_nanos(offset);
                let booking = backlog.book(now, due_at, Duration::from_nanos(work));
                if keep { list.push((offset, work)); } else { backlog.release(booking); }
            }
            let got = backlog.due_by(now, now + Duration::from_nanos(asked)).as_nanos();
            let sum = |limit: u64| list.iter().filter(|&&(offset, _)| offset <= limit).map(|&(_, work)| work).sum::<u64>();
            let slack = 1u64 << (COARSE_SHIFT + 1);
            let above = if asked + slack > 60_000_000_000 { u64::MAX } else { asked + slack };
            prop_assert!(got >= sum(asked.saturating_sub(slack)), "{} < {}", got, sum(asked.saturating_sub(slack)));
            prop_assert!(got <= sum(above), "{} > {}", got, sum(above));
        }
    }

    #[test]
    fn equal_deadlines_count_each_other_at_any_distance() {
        let now = Timestamp::from_nanos(77_000_000_000);
        for millis in [1, 30, 900, 5_000, 100_000] {
            let due_at = now + Duration::from_millis(millis);
            let mut backlog = Backlog::new();
            backlog.book(now, due_at, Duration::from_micros(250));
            assert_eq!(backlog.due_by(now, due_at), Duration::from_micros(250), "{millis} ms");
        }
    }
}
