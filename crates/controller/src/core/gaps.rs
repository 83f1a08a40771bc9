//! How long devices idle between two batches of which the second one waited: while the server hears of the first one's
//! end and decides, and the next order is on its way.
//!
//! ```text
//!  device   ▕▓▓ batch ▓▓▕┄┄┄┄┄┄ gap ┄┄┄┄┄┄▕▓▓ next ▓▓▕
//!  server        ended_at └─> hears, orders the next ─┘ started_at
//! ```
//!
//! A batch that was ordered later wasn't there yet: then the device idled for want of work.

use base::{DeviceId, Duration, Timestamp, Transfers};

/// So many gaps are kept between two looks.
const MOST_GAPS: usize = 256;

/// A batch's end, and when the driver was told of it.
#[derive(Clone, Copy, Debug)]
struct HeardEnd {
    ended_at: Timestamp,
    heard_at: Timestamp,
}

/// A batch that ran, as its report has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RanBatch {
    pub ordered_at: Timestamp,
    pub started_at: Timestamp,
    pub ended_at: Timestamp,
    pub transfers: Transfers,
}

/// What devices idled between batches lately.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    /// By device.
    last: Vec<Option<HeardEnd>>,
    /// Those since the last look.
    lately: Vec<Duration>,
}

impl Gaps {
    /// The driver hears now that a batch ran.
    pub fn ran(&mut self, now: Timestamp, device: DeviceId, batch: RanBatch) {
        if self.last.len() <= device.index() {
            self.last.resize(device.index() + 1, None);
        }
        let heard = HeardEnd { ended_at: batch.ended_at, heard_at: now };
        let Some(before) = self.last[device.index()].replace(heard) else { return };
        let waited = batch.ordered_at <= before.heard_at;
        if waited && self.lately.len() < MOST_GAPS {
            // What of it was brought over before counts as the batch's own time.
            self.lately.push(batch.started_at.since(before.ended_at) - batch.transfers.before);
        }
    }

    /// The gaps since the last look.
    pub fn take(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.lately)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_micros(micros)
    }

    fn batch(ordered: u64, started: u64, ended: u64) -> RanBatch {
        let transfers = Transfers::default();
        RanBatch { ordered_at: at(ordered), started_at: at(started), ended_at: at(ended), transfers }
    }

    fn gaps(batches: &[(u64, u32, RanBatch)]) -> Vec<u64> {
        let mut gaps = Gaps::default();
        batches.iter().for_each(|&(heard, device, batch)| gaps.ran(at(heard), DeviceId(device), batch));
        gaps.take().into_iter().map(Duration::as_micros).collect()
    }

    #[test]
    fn a_gap_is_between_batches_of_which_the_next_one_waited() {
        let first = (120, 0, batch(0, 10, 100));
        assert_eq!(gaps(&[first, (420, 0, batch(120, 150, 400))]), [50], "ordered when the end was heard of");
        assert_eq!(gaps(&[first, (420, 0, batch(90, 101, 400))]), [1], "ordered ahead");
        assert_eq!(gaps(&[first, (420, 0, batch(121, 150, 400))]), [0; 0], "nobody had asked for it");
        assert_eq!(gaps(&[first, (420, 1, batch(120, 150, 400))]), [0; 0], "another device");
        let brought = Transfers { before: Duration::from_micros(30), overlap: Duration::from_micros(30) };
        let brought = RanBatch { transfers: brought, ..batch(120, 150, 400) };
        assert_eq!(gaps(&[first, (420, 0, brought)]), [20], "that is the batch's own time");
    }

    #[test]
    fn gaps_are_kept_until_somebody_looks_and_no_more_than_so_many() {
        // Each is ordered when the end of the one before is heard of, 10 us after it, and starts 10 us later.
        let one = |index: u64| (100 * index + 190, 0, batch(100 * index + 90, 100 * index + 100, 100 * index + 180));
        assert_eq!(gaps(&(0..1_000).map(one).collect::<Vec<_>>()), [20; MOST_GAPS]);
        let mut gaps = Gaps::default();
        gaps.ran(at(120), DeviceId(7), batch(0, 10, 100));
        gaps.ran(at(420), DeviceId(7), batch(120, 150, 400));
        assert_eq!((gaps.take().len(), gaps.take().len()), (1, 0));
    }
}
