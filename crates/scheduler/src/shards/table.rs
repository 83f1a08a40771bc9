//! What a batch of each number of rows takes: a table, so that the hot path adds and compares and nothing else.

use base::{Duration, LatencyProfile};

/// `l(b)` for every number of rows up to the largest batch.
#[derive(Clone, Debug)]
pub struct LatencyTable {
    /// By rows, from 0 up.
    spans: Vec<Duration>,
}

impl LatencyTable {
    /// What the profile's batches take 99 times of 100. Numbers of rows between two supported sizes take what the next size
    /// takes.
    pub fn new(profile: &LatencyProfile) -> Self {
        let mut spans = vec![Duration::ZERO];
        for entry in profile.batches() {
            spans.resize(entry.batch as usize + 1, entry.p99);
        }
        Self { spans }
    }

    /// The largest batch.
    #[inline]
    pub fn max_rows(&self) -> u32 {
        self.spans.len() as u32 - 1
    }

    /// What so many rows take; longer than everything for more than the largest batch.
    #[inline]
    pub fn of(&self, rows: u32) -> Duration {
        self.spans.get(rows as usize).copied().unwrap_or(Duration::MAX)
    }

    /// Sets what the batch sizes above `above` up to `batch` take.
    pub fn set(&mut self, above: u32, batch: u32, span: Duration) {
        let end = (batch as usize + 1).min(self.spans.len());
        if let Some(spans) = self.spans.get_mut(above as usize + 1..end) {
            spans.fill(span);
        }
    }

    /// The largest number of rows up to `limit` that `fits` holds for; it must hold for all smaller ones then. 0 if it holds
    /// for none.
    #[inline]
    pub fn most(&self, limit: u32, mut fits: impl FnMut(u32, Duration) -> bool) -> u32 {
        // Mostly all of what is queued fits, or all that a batch can hold.
        let (mut low, mut high) = (0, limit.min(self.max_rows()));
        if high > 0 && fits(high, self.spans[high as usize]) {
            return high;
        }
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if fits(middle, self.spans[middle as usize]) {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_between_take_what_the_next_takes() {
        let micros = Duration::from_micros;
        let profile = LatencyProfile::linear(micros(10), micros(90), &[1, 2, 4], micros(1)).unwrap();
        let mut table = LatencyTable::new(&profile);
        let all = |table: &LatencyTable| (0..6).map(|rows| table.of(rows).as_micros()).collect::<Vec<_>>();
        assert_eq!(all(&table), [0, 100, 110, 130, 130, u64::MAX / 1_000]);
        table.set(2, 4, micros(150));
        assert_eq!(all(&table), [0, 100, 110, 150, 150, u64::MAX / 1_000]);
        let most = |limit, within| table.most(limit, |_, span| span <= micros(within));
        assert_eq!([most(9, 200), most(4, 149), most(1, 149), most(9, 100), most(9, 99)], [4, 2, 1, 1, 0]);
    }
}
