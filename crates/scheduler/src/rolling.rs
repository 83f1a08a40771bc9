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
    pub fn seeded(seed: Statistics) -> Self {
        Self { seen: Arc::default(), says: seed, seed, unseen: seed.quantile, seen_at: Timestamp::ZERO, stalled: false }
    }

    pub fn says(&self) -> Statistics {
        self.says
    }

    /// When it comes back towards its seed, if nothing is measured before.
    pub fn stale_at(&self) -> Timestamp {
        self.seen_at + STALE
    }

    /// Brings what nothing has confirmed lately back towards its seed.
    pub fn age(&mut self, now: Timestamp) {
        if now >= self.stale_at() {
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
            let mut rolling = Rolling::seeded(Statistics { mean: micros(5), median: micros(5), quantile: micros(5) });
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
}
