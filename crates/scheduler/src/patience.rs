//! How long is it worth waiting for company? Learnt from the gaps between a model's requests.
//!
//! A device that could run a batch of `b` now gains, by waiting a little longer, a chance that one more request joins;
//! that saves the fixed cost of a batch, spread over the batch that the request would otherwise have started. It loses
//! the time that it stands still. Waiting pays while
//!
//! ```text
//! (chance of company per unit of time) * (fixed cost of a batch) > b
//! ```
//!
//! The chance depends on how long it has been silent. In a steady stream it is always the same. In bursts it is high
//! just after a request and falls with the silence: then the rule waits for the burst to end, and no longer. The chance
//! is the best one over all horizons within the objective, as in Gittins' index, so that regular arrivals are waited
//! for too.

use base::{Duration, Timestamp};

/// Gaps are counted in four bins for each doubling, from a microsecond to some seconds.
const BINS: usize = 96;
const FIRST_OCTAVE: u32 = 10;
/// The table is computed anew after so many gaps, or after one in so many of those that are known, if that is more: of
/// a dense stream little is new.
const REFRESH: u32 = 32;
const NEW: u32 = 8;
/// With fewer gaps than this nothing is known, and nobody is waited for: most models of a platform are rare.
const KNOWN: u32 = 16;
/// With so many gaps, all counts are halved: what was counts for less and less.
const FORGET: u32 = 2_000;

#[derive(Clone, Debug)]
pub(crate) struct Patience {
    last_at: Option<Timestamp>,
    counts: Box<[u32; BINS]>,
    total: u32,
    stale: u32,
    chance: Option<Box<Chance>>,
}

/// For a silence as long as the bin: the best chance of company for each nanosecond of waiting.
#[derive(Clone, Debug)]
struct Chance {
    after: [f64; BINS],
    /// The least up to each bin.
    least: [f64; BINS],
}

impl Default for Patience {
    fn default() -> Self {
        Self { last_at: None, counts: Box::new([0; BINS]), total: 0, stale: 0, chance: None }
    }
}

fn bin(gap: Duration) -> usize {
    let nanos = gap.as_nanos().max(1 << FIRST_OCTAVE);
    let octave = nanos.ilog2();
    let quarter = (nanos >> (octave - 2)) & 3;
    (((octave - FIRST_OCTAVE) * 4) as usize + quarter as usize).min(BINS - 1)
}

/// Where a bin begins, in nanoseconds; the last number is where the last one ends.
const BEGIN: [u64; BINS + 1] = {
    let mut begin = [0; BINS + 1];
    let mut bin = 1;
    while bin <= BINS {
        let octave = FIRST_OCTAVE + (bin / 4) as u32;
        begin[bin] = (1 << octave) + (bin as u64 % 4) * (1 << (octave - 2));
        bin += 1;
    }
    begin
};

impl Patience {
    /// A request came; nobody waits longer than its objective.
    pub fn arrived(&mut self, at: Timestamp, objective: Duration) {
        let Some(last_at) = self.last_at.replace(at) else { return };
        self.counts[bin(at.since(last_at))] += 1;
        self.total += 1;
        self.stale += 1;
        if self.total >= FORGET {
            self.total = 0;
            for count in self.counts.iter_mut() {
                *count /= 2;
                self.total += *count;
            }
        }
        let due = if self.chance.is_none() { KNOWN } else { REFRESH.max(self.total / NEW) };
        if self.stale >= due {
            self.stale = 0;
            self.refresh(objective);
        }
    }

    pub fn last_at(&self) -> Option<Timestamp> {
        self.last_at
    }

    fn refresh(&mut self, objective: Duration) {
        let horizon = objective.as_nanos();
        let mut longer = [0_u32; BINS + 1];
        for bin in (0..BINS).rev() {
            longer[bin] = longer[bin + 1] + self.counts[bin];
        }
        // Waiting up to the end of a bin without gaps gains nothing over waiting up to its beginning.
        let (mut ends, mut count) = ([0_usize; BINS], 0);
        for bin in 0..BINS {
            if self.counts[bin] > 0 {
                ends[count] = bin + 1;
                count += 1;
            }
        }
        let mut ends = &ends[..count];
        let mut chance = [0.0; BINS];
        for from in 0..BINS {
            if longer[from] == 0 {
                // Never silent for so long: as after the longest silence that was.
                chance[from] = if from > 0 { chance[from - 1] } else { 0.0 };
                continue;
            }
            let mut best = 0.0_f64;
            while ends.first().is_some_and(|&to| to <= from) {
                ends = &ends[1..];
            }
            for &to in ends {
                let wait = BEGIN[to] - BEGIN[from];
                if wait > horizon && to > from + 1 {
                    break;
                }
                let joined = 1.0 - f64::from(longer[to]) / f64::from(longer[from]);
                best = best.max(joined / wait as f64);
            }
            chance[from] = best;
        }
        let mut least = chance;
        (1..BINS).for_each(|bin| least[bin] = least[bin].min(least[bin - 1]));
        self.chance = Some(Box::new(Chance { after: chance, least }));
    }

    /// The chance of company for each nanosecond of waiting after such a silence.
    pub fn chance_after(&self, silence: Duration) -> f64 {
        self.chance.as_ref().map_or(0.0, |chance| chance.after[bin(silence)])
    }

    /// How long after the last request a batch of that size should start if a device has nothing else to do.
    pub fn wait(&self, rows: u32, fixed: Duration) -> Duration {
        let fixed = fixed.as_nanos().max(1);
        match &self.chance {
            None => Duration::ZERO,
            Some(chance) => {
                let enough = f64::from(rows) / fixed as f64;
                match chance.least.partition_point(|&chance| chance >= enough) {
                    BINS => Duration::from_secs(3_600),
                    bin => Duration::from_nanos(BEGIN[bin]),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learnt(gaps: impl Iterator<Item = u64>) -> Patience {
        let mut patience = Patience::default();
        let mut now = Timestamp::ZERO;
        patience.arrived(now, Duration::from_millis(50));
        for gap in gaps {
            now += Duration::from_micros(gap);
            patience.arrived(now, Duration::from_millis(50));
        }
        patience
    }

    const FIXED: Duration = Duration::from_millis(10);

    #[test]
    fn bins_begin_where_they_should() {
        for nanos in [1, 1024, 1279, 1280, 5_000, 1_000_000, 123_456_789] {
            let bin = bin(Duration::from_nanos(nanos));
            assert!(BEGIN[bin] <= nanos && (nanos < BEGIN[bin + 1] || bin == 0), "{nanos} in {bin}");
        }
    }

    #[test]
    fn a_dense_stream_is_waited_for_until_the_batch_is_large() {
        // One each millisecond: a batch of 10 ms fixed cost should have 10 rows.
        let patience = learnt((0..200).map(|_| 1_000));
        assert!(patience.wait(8, FIXED) > Duration::from_millis(1));
        assert_eq!(patience.wait(16, FIXED), Duration::ZERO);
    }

    #[test]
    fn a_burst_is_waited_for_as_long_as_it_may_last() {
        // Bursts of ten, 100 us apart, then a second of silence.
        let patience = learnt((0..400).map(|index| if index % 10 == 9 { 1_000_000 } else { 100 }));
        let wait = patience.wait(1, FIXED);
        assert!(wait > Duration::from_micros(80) && wait < Duration::from_millis(1), "{wait:?}");
        // Even a large batch waits for what is nearly certain to come, but not after the burst.
        assert!(patience.wait(64, FIXED) <= wait);
    }

    #[test]
    fn rare_requests_wait_for_nobody() {
        let patience = learnt((0..100).map(|_| 2_000_000));
        assert_eq!(patience.wait(1, FIXED), Duration::ZERO);
    }

    #[test]
    fn the_first_requests_of_a_rare_model_wait_for_nobody() {
        assert_eq!(Patience::default().wait(1, FIXED), Duration::ZERO);
        assert_eq!(learnt((0..10).map(|_| 1_000)).wait(1, FIXED), Duration::ZERO);
    }
}
