//! The last few measurements of one kind of action, and what they say: a rolling quantile (Clockwork, section 5.3), the
//! median and the mean.

use base::{Duration, Timestamp};
use std::sync::Arc;

/// What measurements say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Statistics {
    /// What one takes on average lately; follows at once, so that sums of many are right.
    pub mean: Duration,
    /// What to compare sizes by. A thread that lost its core once must not make a size look bad for long.
    pub median: Duration,
    /// What to plan with: the configured quantile.
    pub quantile: Duration,
}

impl Statistics {
    /// Each statistic, changed in the same way.
    pub fn map(self, change: impl Fn(Duration) -> Duration) -> Self {
        Self { mean: change(self.mean), median: change(self.median), quantile: change(self.quantile) }
    }

    /// Half of the way back to a seed. Differences stop at zero: what is below its seed stays.
    fn back_to(self, seed: Self) -> Self {
        let back = |now: Duration, seed: Duration| now - (now - seed) / 2;
        Self {
            mean: back(self.mean, seed.mean),
            median: back(self.median, seed.median),
            quantile: back(self.quantile, seed.quantile),
        }
    }
}

/// The last few measurements of one kind of action, with what is asked of them kept ready.
#[derive(Clone, Debug)]
pub(crate) struct Rolling {
    /// Shared between a scheduler and its imagined ones, which don't measure.
    seen: Arc<Seen>,
    says: Statistics,
    /// What was said before anything was measured.
    seed: Statistics,
    /// What is planned with at least until the window is full.
    unseen: Duration,
    /// Whether the seed may be wrong.
    doubted: bool,
    /// Its scale when others last followed it.
    followed: f64,
    /// When the last measurement came, or the estimate was last brought nearer to its seed.
    seen_at: Timestamp,
    /// Whether the last measurement was a stall.
    stalled: bool,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    /// In the order in which they came, oldest at `next` once the window is full.
    recent: Vec<Duration>,
    next: usize,
    /// The same, the shortest first.
    sorted: Vec<Duration>,
}

impl Seen {
    fn take(&mut self, size: usize, took: Duration) {
        let to = self.sorted.partition_point(|&known| known < took);
        if self.recent.len() < size {
            self.recent.push(took);
            self.sorted.insert(to, took);
            return;
        }
        let oldest = std::mem::replace(&mut self.recent[self.next], took);
        self.next = if self.next + 1 == size { 0 } else { self.next + 1 };
        let from = self.sorted.partition_point(|&known| known < oldest);
        // What lies between the two moves by one, into the oldest one's place.
        if from < to {
            self.sorted.copy_within(from + 1..to, from);
            self.sorted[to - 1] = took;
        } else {
            self.sorted.copy_within(to..from, to + 1);
            self.sorted[to] = took;
        }
    }

    /// Takes one out again; whether it was there.
    fn forget(&mut self, took: Duration) -> bool {
        let Some(place) = self.recent.iter().position(|&known| known == took) else { return false };
        // What comes next is put at the end again, behind the newest.
        let newest = self.next;
        self.recent.rotate_left(newest);
        let place = (place + self.recent.len() - newest) % self.recent.len();
        self.recent.remove(place);
        self.next = 0;
        let from = self.sorted.partition_point(|&known| known < took);
        self.sorted.remove(from);
        true
    }
}

/// An average gives the newest measurement this share: one in so many.
const MEAN_SHARE: u64 = 16;

/// An average with one more measurement in it.
pub(crate) fn averaged(mean: Duration, took: Duration) -> Duration {
    (mean * (MEAN_SHARE - 1) + took) / MEAN_SHARE
}

/// What looks too slow isn't run, and what isn't run isn't measured: without a measurement for so long, an estimate
/// that is above its seed comes half of the way back to it.
const STALE: Duration = Duration::from_secs(1);
/// What takes more than so many times as long as planned says something of the device at that moment, and nothing of
/// the model: it counts only if the next one of its size takes as long.
const STALL: u64 = 50;

/// After so many measurements a doubted seed has no say beyond twice the longest of them; with `n` of them beyond
/// `1 + DOUBT / n` times. A deadline of three times what a model takes is within reach after four.
const DOUBT: u64 = 8;
/// So many measurements have a median that is worth more than a doubted seed's.
const FEW: usize = 4;

/// How estimates are drawn from measurements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct History {
    pub size: usize,
    pub quantile: f64,
}

impl History {
    /// The place of the quantile among so many measurements, the shortest first.
    fn place_in(self, count: usize) -> usize {
        let rank = (self.size as f64 * self.quantile).ceil() as usize;
        let slower = self.size - rank.clamp(1, self.size);
        count.saturating_sub(slower + 1)
    }
}

impl Rolling {
    /// Before anything is measured; whether what is known may be wrong.
    pub fn seeded(seed: Statistics, doubted: bool) -> Self {
        let (seen, seen_at) = (Arc::default(), Timestamp::ZERO);
        Self { seen, says: seed, seed, unseen: seed.quantile, doubted, followed: 0.0, seen_at, stalled: false }
    }

    pub fn says(&self) -> Statistics {
        self.says
    }

    /// What it may take at best: as little as it took lately, and anything while little is known.
    pub fn least_seen(&self) -> Duration {
        let enough = self.seen.sorted.len() >= DOUBT as usize;
        self.seen.sorted.first().filter(|_| enough).copied().unwrap_or(Duration::ZERO)
    }

    /// How many times as long as its seed says it mostly takes, once a few measurements say so.
    pub fn scale(&self) -> Option<f64> {
        let known = self.doubted && self.seen.sorted.len() >= FEW;
        known.then(|| self.says.median.as_nanos() as f64 / self.seed.median.as_nanos().max(1) as f64)
    }

    /// Whether its scale has changed since this last said so. A hundredth is noise.
    pub fn has_moved(&mut self) -> bool {
        let moved = self.scale().filter(|scale| (scale - self.followed).abs() > self.followed / 100.0);
        self.followed = moved.unwrap_or(self.followed);
        moved.is_some()
    }

    /// What its seed would say if everything took so many times as long, where nothing was measured.
    pub fn scaled(&self, scale: f64) -> Option<Statistics> {
        self.seen.sorted.is_empty().then(|| self.seed.map(|takes| takes.mul_f64(scale)))
    }

    /// When it comes back towards its seed, if nothing is measured before.
    pub fn stale_at(&self) -> Timestamp {
        self.seen_at + STALE
    }

    /// Brings what nothing has confirmed lately back towards its seed.
    pub fn age(&mut self, now: Timestamp) {
        if now < self.stale_at() {
            return;
        }
        if self.doubted && self.says.quantile <= self.seed.quantile {
            self.seen_at = now;
        } else {
            self.restart(now, self.says.back_to(self.seed));
        }
    }

    /// Begins anew with what is known from elsewhere; the seed stays what it was.
    pub fn restart(&mut self, now: Timestamp, known: Statistics) {
        (self.seen, self.says, self.unseen, self.seen_at) = (Arc::default(), known, known.quantile, now);
    }

    /// Two searches and one short move in memory; nothing is allocated once the window is full.
    pub fn observe(&mut self, now: Timestamp, history: History, took: Duration) {
        self.seen_at = now;
        let stalled = took > self.says.quantile.max(self.unseen) * STALL;
        if std::mem::replace(&mut self.stalled, stalled) != stalled && stalled {
            return;
        }
        self.says.mean = averaged(self.says.mean, took);
        Arc::make_mut(&mut self.seen).take(history.size, took);
        let Seen { recent, sorted, .. } = &*self.seen;
        let below = history.place_in(sorted.len());
        self.says.quantile = sorted[below];
        // Until the window is full the seed keeps its say: one fast first run must not make the plan rash. A slow one
        // counts until others say that it was an exception: so many slower ones as the quantile leaves out.
        if recent.len() < history.size {
            if self.doubted {
                let longest = sorted[sorted.len() - 1];
                let credible = longest + longest * DOUBT / recent.len() as u64;
                self.unseen = self.unseen.min(credible);
                self.says.mean = self.says.mean.min(credible);
                let few = recent.len() < FEW;
                self.says.median = if few { self.says.median.min(credible) } else { sorted[recent.len() / 2] };
            }
            self.says.quantile = self.says.quantile.max(self.unseen);
            return;
        }
        let half = history.size / 2;
        // Nothing is usual that is above the quantile.
        self.says.median = sorted[half.min(below)];
    }

    /// Takes a measurement out again, as if it had not been made: it says nothing of what this is about. What became of
    /// it when the estimate aged goes, too.
    pub fn forget(&mut self, history: History, took: Duration) {
        let full = self.seen.recent.len() == history.size;
        let known = Arc::make_mut(&mut self.seen).forget(took);
        let sorted = &self.seen.sorted;
        self.unseen = self.unseen.min(self.seed.quantile);
        let Some(&quantile) = sorted.get(history.place_in(sorted.len())) else {
            self.says = Statistics { quantile: self.unseen, ..self.seed };
            return;
        };
        // What a full window said doesn't become the seed's say again.
        if full && known {
            (self.unseen, self.says.median) = (quantile, sorted[sorted.len() / 2]);
        }
        self.says.mean = sorted.iter().fold(Duration::ZERO, |sum, &it| sum + it) / sorted.len() as u64;
        self.says.quantile = if full { quantile } else { quantile.max(self.unseen) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use workload::Random;

    fn micros(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    #[test]
    fn estimates_are_those_of_the_last_measurements_in_their_order() {
        let (mut random, mut last) = (Random::new(1, 0), Vec::new());
        for (size, quantile) in [(1, 0.5), (2, 0.99), (7, 0.3), (10, 0.9), (100, 0.99)] {
            let mut rolling =
                Rolling::seeded(Statistics { mean: micros(5), median: micros(5), quantile: micros(5) }, false);
            last.clear();
            for _ in 0..5 * size {
                last.push(micros(u64::from(random.below(20))));
                rolling.observe(Timestamp::ZERO, History { size, quantile }, last[last.len() - 1]);
                if last.len() < size {
                    continue;
                }
                let mut sorted = last[last.len() - size..].to_vec();
                sorted.sort_unstable();
                let rank = (size as f64 * quantile).ceil() as usize;
                assert_eq!(rolling.says.quantile, sorted[rank - 1], "{size} {quantile}");
                assert_eq!(rolling.says.median, sorted[(size / 2).min(rank - 1)], "{size} {quantile}");
            }
        }
    }

    #[test]
    fn a_doubted_seed_gives_way_to_a_few_measurements_and_a_sure_one_does_not() {
        let seed = Statistics { mean: micros(66), median: micros(60), quantile: micros(90) };
        let history = History { size: 100, quantile: 0.99 };
        let after = |doubted, count: u64| {
            let mut rolling = Rolling::seeded(seed, doubted);
            (0..count).for_each(|_| rolling.observe(Timestamp::ZERO, history, micros(4)));
            rolling.says().quantile
        };
        assert_eq!([0, 1, 4, 8, 16].map(|count| after(true, count)), [90, 36, 12, 8, 6].map(micros));
        assert_eq!([0, 8, 99].map(|count| after(false, count)), [micros(90); 3]);
    }

    #[test]
    fn what_rare_requests_took_is_not_forgotten_between_them() {
        let seed = Statistics { mean: micros(66), median: micros(60), quantile: micros(90) };
        let (mut rolling, mut now) = (Rolling::seeded(seed, true), Timestamp::ZERO);
        for _ in 0..4 {
            now += STALE * 3;
            rolling.age(now);
            rolling.observe(now, History { size: 100, quantile: 0.99 }, micros(4));
        }
        assert_eq!((rolling.says().quantile, rolling.says().median), (micros(12), micros(4)));
        // What took long is forgotten, as ever.
        (0..2).for_each(|_| rolling.observe(now, History { size: 100, quantile: 0.99 }, micros(400)));
        assert_eq!(rolling.says().quantile, micros(400));
        (0..20).for_each(|_| {
            now += STALE;
            rolling.age(now);
        });
        assert!(rolling.says().quantile <= micros(91), "{}", rolling.says().quantile);
    }
}
