//! What will this batch take? A rolling quantile of the last measurements (Clockwork, section 5.3), for each batch size of
//! each model, seeded with the profile.

use base::{Duration, LatencyProfile, Timestamp};
use std::sync::Arc;

/// The last few measurements of one kind of action, with what is asked of them kept ready.
#[derive(Clone, Debug)]
struct Rolling {
    /// Shared between a scheduler and its imagined ones, which don't measure.
    seen: Arc<Seen>,
    quantile: Duration,
    /// The middle one: what to compare sizes by. A thread that lost its core once must not make a size look bad for long.
    median: Duration,
    /// What one takes on average lately; follows at once, so that sums of many are right.
    mean: Duration,
    /// Mean (and median) and quantile at the start.
    seed: (Duration, Duration),
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
/// What looks too slow isn't run, and what isn't run isn't measured: without a measurement for so long, an estimate that is
/// above its seed comes half of the way back to it.
const STALE: Duration = Duration::from_secs(1);
/// What takes more than so many times as long as planned says something of the device at that moment, and nothing of the model: it counts only if the next one of its size takes as
/// long.
const STALL: u64 = 50;

/// How estimates are drawn from measurements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub size: usize,
    pub quantile: f64,
}

impl Window {
    /// The place of the quantile among so many measurements, the shortest first.
    fn place_in(self, count: usize) -> usize {
        let rank = (self.size as f64 * self.quantile).ceil() as usize;
        let slower = self.size - rank.clamp(1, self.size);
        count.saturating_sub(slower + 1)
    }
}

impl Rolling {
    fn seeded(mean: Duration, quantile: Duration) -> Self {
        Self {
            seen: Arc::default(),
            quantile,
            median: mean,
            mean,
            seed: (mean, quantile),
            unseen: quantile,
            seen_at: Timestamp::ZERO,
            stalled: false,
        }
    }

    /// Whether the estimate was due to come back towards its seed. Asked for every size at each arrival.
    #[inline]
    fn age(&mut self, now: Timestamp) -> bool {
        let stale = now.since(self.seen_at) >= STALE;
        if stale {
            self.seen = Arc::default();
            // Differences stop at zero: an estimate below its seed stays.
            self.mean -= (self.mean - self.seed.0) / 2;
            self.median -= (self.median - self.seed.0) / 2;
            self.quantile -= (self.quantile - self.seed.1) / 2;
            self.unseen = self.quantile;
            self.seen_at = now;
        }
        stale
    }

    /// Two searches and one short move in memory; nothing is allocated once the window is full.
    fn observe(&mut self, now: Timestamp, window: Window, took: Duration) {
        self.seen_at = now;
        let stalled = took > self.quantile.max(self.unseen) * STALL;
        if std::mem::replace(&mut self.stalled, stalled) != stalled && stalled {
            return;
        }
        self.mean = (self.mean * (MEAN_SHARE - 1) + took) / MEAN_SHARE;
        Arc::make_mut(&mut self.seen).take(window.size, took);
        let Seen { recent, sorted, .. } = &*self.seen;
        let below = window.place_in(sorted.len());
        self.quantile = sorted[below];
        // Until the window is full the seed keeps its say: one fast first run must not make the plan rash. A slow one counts until others say that it was an exception: so
        // many slower ones as the quantile leaves out.
        if recent.len() < window.size {
            self.quantile = self.quantile.max(self.unseen);
            return;
        }
        let half = window.size / 2;
        // Nothing is usual that is above the quantile.
        self.median = sorted[half.min(below)];
    }

    /// Takes a measurement out again, as if it had not been made: it says nothing of what this is about. What became of it when the estimate aged goes, too.
    fn forget(&mut self, window: Window, took: Duration) {
        let full = self.seen.recent.len() == window.size;
        let known = Arc::make_mut(&mut self.seen).forget(took);
        let sorted = &self.seen.sorted;
        self.unseen = self.unseen.min(self.seed.1);
        let Some(&quantile) = sorted.get(window.place_in(sorted.len())) else {
            (self.mean, self.median, self.quantile) = (self.seed.0, self.seed.0, self.unseen);
            return;
        };
        // What a full window said doesn't become the seed's say again.
        if full && known {
            (self.unseen, self.median) = (quantile, sorted[sorted.len() / 2]);
        }
        self.mean = sorted.iter().fold(Duration::ZERO, |sum, &it| sum + it) / sorted.len() as u64;
        self.quantile = if full { quantile } else { quantile.max(self.unseen) };
    }

    /// The estimate for what takes so many times as long.
    fn times(&self, factor: f64) -> Self {
        let median = self.median.mul_f64(factor);
        Self { median, ..Self::seeded(self.mean.mul_f64(factor), self.quantile.mul_f64(factor)) }
    }
}

/// One supported batch size of a model, with what it is expected to take.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    /// Rows.
    pub batch: u32,
    rolling: Rolling,
    /// The least that this size or a larger one is expected to take: rows fit into larger ones too.
    least: Duration,
    /// What of it runs beside other batches on a busy device, on average.
    beside: Duration,
    /// Whether a row takes less time in it than in every smaller size that pays. A batch is filled up to this size only then: on one
    /// CPU thread, say, a convolution net gains nothing from batching, and waiting for company would be for nothing.
    pub pays: bool,
}

impl Class {
    /// What to plan with for so many rows: the configured quantile, with its transfers, of this size or of a larger one that takes less. Measured times
    /// needn't ascend with the size; these do.
    pub fn expected(&self) -> Duration {
        self.least
    }

    /// The same of this very size.
    pub fn itself(&self) -> Duration {
        self.rolling.quantile
    }

    /// For how long it mostly keeps a busy device from other batches: what to compare.
    pub fn usual(&self) -> Duration {
        self.rolling.median - self.beside
    }

    /// The same on average: what to add up.
    pub fn typical(&self) -> Duration {
        self.rolling.mean - self.beside
    }

    /// What it mostly takes, its transfers included.
    pub fn middle(&self) -> Duration {
        self.rolling.median
    }

    /// What it takes on average, its transfers included.
    pub fn whole(&self) -> Duration {
        self.rolling.mean
    }

    /// What of it runs beside other batches on a busy device.
    pub fn beside(&self) -> Duration {
        self.beside
    }
}

/// What one model's actions take.
#[derive(Clone, Debug)]
pub(crate) struct Latency {
    window: Window,
    classes: Vec<Class>,
    load: Rolling,
    /// What the quickest request takes, where times depend on the input: then estimates come from a distribution, and
    /// single batches change nothing.
    soonest: Option<Duration>,
}

impl Latency {
    pub fn new(profile: &LatencyProfile, window: Window) -> Self {
        let classes = profile
            .batches()
            .iter()
            .map(|entry| Class {
                batch: entry.batch,
                rolling: Rolling::seeded(entry.median, entry.p99),
                least: entry.p99,
                beside: entry.beside,
                pays: true,
            })
            .collect();
        let load = Rolling::seeded(profile.load(), profile.load());
        let mut latency = Self { window, classes, load, soonest: None };
        latency.update_pays();
        latency
    }

    /// The supported batch sizes, ascending.
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// The smallest supported batch size that holds so many rows (the largest when none does).
    pub fn class_for(&self, rows: u32) -> &Class {
        let index = self.classes.partition_point(|class| class.batch < rows);
        &self.classes[index.min(self.classes.len() - 1)]
    }

    /// The largest size that pays and takes no longer than this; 0 when not even the smallest one does.
    pub fn largest_within(&self, span: Duration) -> u32 {
        let within = self.classes.partition_point(|class| class.expected() <= span);
        self.classes[..within].iter().rev().find(|class| class.pays).map_or(0, |class| class.batch)
    }

    /// The smallest size up to `size` that has this part of its rows per time.
    pub fn nearly_as_good(&self, size: u32, part: f64) -> u32 {
        let speed = |class: &Class| f64::from(class.batch) / class.expected().as_nanos().max(1) as f64;
        let enough = part * speed(self.class_for(size));
        self.classes
            .iter()
            .find(|class| class.batch >= size || speed(class) >= enough)
            .map_or(size, |class| class.batch)
    }

    /// The largest size that pays.
    pub fn best_batch(&self) -> u32 {
        self.classes.iter().rev().find(|class| class.pays).expect("the smallest size pays").batch
    }

    /// What a batch takes however small it is, if its time were a line over its size.
    pub fn fixed(&self) -> Duration {
        let (first, last) = (&self.classes[0], &self.classes[self.classes.len() - 1]);
        match u64::from(last.batch - first.batch) {
            0 => Duration::ZERO,
            rows => first.typical() - (last.typical() - first.typical()) / rows * u64::from(first.batch),
        }
    }

    /// What the quickest batch takes.
    pub fn smallest(&self) -> Duration {
        self.soonest.unwrap_or(self.classes[0].expected())
    }

    /// Whether estimates come from a distribution.
    pub fn is_followed(&self) -> bool {
        self.soonest.is_some()
    }

    /// Takes the estimates of a distribution over, mean and quantile of each size; or goes back to measuring batches.
    pub fn follow(&mut self, estimates: Option<(Vec<(Duration, Duration)>, Duration)>) {
        self.soonest = estimates.as_ref().map(|(_, soonest)| *soonest);
        if let Some((estimates, _)) = estimates {
            for (class, (mean, quantile)) in self.classes.iter_mut().zip(estimates) {
                (class.rolling.mean, class.rolling.quantile) = (mean, quantile.max(mean));
                class.rolling.seen = Arc::default();
            }
            self.update_pays();
        }
    }

    /// What a load takes.
    pub fn load(&self) -> Duration {
        self.load.quantile
    }

    /// What it takes to execute so many queued rows, in batches of the sizes that pay: full ones of the largest, and the
    /// rest between the sizes that it lies between.
    pub fn time_for(&self, rows: u64) -> Duration {
        let largest = self.classes.iter().rev().find(|class| class.pays).expect("the smallest size pays");
        let full = rows / u64::from(largest.batch);
        let rest = rows % u64::from(largest.batch);
        let mut below = (0, Duration::ZERO);
        for class in self.classes.iter().filter(|class| class.pays) {
            let here = (u64::from(class.batch), class.typical());
            if rest <= here.0 {
                let between = (here.1 - below.1) * (rest - below.0) / (here.0 - below.0);
                // A first row takes a whole batch of the smallest size.
                let partly = if below.0 == 0 && rest > 0 { here.1 } else { below.1 + between };
                return largest.typical() * full + partly;
            }
            below = here;
        }
        largest.typical() * full
    }

    pub fn max_batch(&self) -> u32 {
        self.classes[self.classes.len() - 1].batch
    }

    /// Brings estimates that nothing has confirmed lately back towards their seeds.
    pub fn age(&mut self, now: Timestamp) {
        self.load.age(now);
        if self.soonest.is_some() {
            return;
        }
        let stale = self.classes.iter_mut().filter_map(|class| class.rolling.age(now).then_some(())).count();
        if stale > 0 {
            self.update_pays();
        }
    }

    /// A batch took so long, its transfers included, of which so much may run beside others.
    pub fn observe_batch(&mut self, now: Timestamp, batch: u32, took: Duration, beside: Duration) {
        let index = self.classes.partition_point(|class| class.batch < batch);
        let Some(class) = self.classes.get_mut(index) else { return };
        class.beside = (class.beside * (MEAN_SHARE - 1) + beside) / MEAN_SHARE;
        if self.soonest.is_none() {
            class.rolling.observe(now, self.window, took);
            self.update_pays();
        }
    }

    /// Takes a batch out again that was measured.
    pub fn forget_batch(&mut self, batch: u32, took: Duration) {
        let index = self.classes.partition_point(|class| class.batch < batch);
        if let Some(class) = self.classes.get_mut(index).filter(|_| self.soonest.is_none()) {
            class.rolling.forget(self.window, took);
            self.update_pays();
        }
    }

    /// The estimates for a device on which batches take so many times as long.
    pub fn times(&self, factor: f64) -> Self {
        let mut slower = self.clone();
        slower.classes.iter_mut().for_each(|class| class.rolling = class.rolling.times(factor));
        slower.update_pays();
        slower
    }

    /// Loads take what they took with the other estimates: they are the same for all kinds of devices.
    pub fn load_as(&mut self, other: &Self) {
        self.load.clone_from(&other.load);
    }

    pub fn observe_load(&mut self, now: Timestamp, took: Duration) {
        self.load.observe(now, self.window, took);
    }

    fn update_pays(&mut self) {
        let mut least = Duration::MAX;
        for class in self.classes.iter_mut().rev() {
            least = least.min(class.rolling.quantile);
            class.least = least;
        }
        // Of those that pay: where sizes lie close together each gains little over the one before, and all of them much.
        let mut best = Duration::MAX;
        for class in &mut self.classes {
            let per_row = class.usual() / u64::from(class.batch);
            // A hundredth is noise.
            class.pays = per_row < best - best / 100;
            if class.pays {
                best = per_row;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    fn latency() -> Latency {
        let profile = LatencyProfile::linear(micros(10), micros(90), &[1, 2, 4], micros(500)).unwrap();
        Latency::new(&profile, Window { size: 4, quantile: 0.99 })
    }

    #[test]
    fn the_seed_holds_until_the_window_is_full() {
        let mut latency = latency();
        for _ in 0..3 {
            latency.observe_batch(Timestamp::ZERO, 1, micros(40), micros(0));
            assert_eq!(latency.smallest(), micros(100));
        }
        latency.observe_batch(Timestamp::ZERO, 1, micros(40), micros(0));
        assert_eq!(latency.smallest(), micros(40));
    }

    #[test]
    fn estimates_are_those_of_the_last_measurements_in_their_order() {
        let (mut state, mut last) = (1_u64, Vec::new());
        for (size, quantile) in [(1, 0.5), (2, 0.99), (7, 0.3), (10, 0.9), (100, 0.99)] {
            let mut rolling = Rolling::seeded(micros(5), micros(5));
            last.clear();
            for _ in 0..5 * size {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                last.push(micros((state >> 33) % 20));
                rolling.observe(Timestamp::ZERO, Window { size, quantile }, last[last.len() - 1]);
                if last.len() < size {
                    continue;
                }
                let mut sorted = last[last.len() - size..].to_vec();
                sorted.sort_unstable();
                let rank = (size as f64 * quantile).ceil() as usize;
                assert_eq!(rolling.quantile, sorted[rank - 1], "{size} {quantile}");
                assert_eq!(rolling.median, sorted[(size / 2).min(rank - 1)], "{size} {quantile}");
            }
        }
    }

    #[test]
    fn a_slow_run_counts_at_once_and_is_forgotten_after_the_window() {
        let mut latency = latency();
        latency.observe_batch(Timestamp::ZERO, 2, micros(900), micros(0));
        assert_eq!(latency.class_for(2).itself(), micros(900));
        for _ in 0..4 {
            latency.observe_batch(Timestamp::ZERO, 2, micros(120), micros(0));
        }
        assert_eq!(latency.class_for(2).itself(), micros(120));
    }

    #[test]
    fn a_slow_run_counts_until_another_is_seen_to_be_quicker_where_a_hundred_are_looked_at() {
        let profile = LatencyProfile::linear(micros(10), micros(90), &[1], micros(1)).unwrap();
        let mut latency = Latency::new(&profile, Window { size: 100, quantile: 0.99 });
        let mut after = |took| {
            latency.observe_batch(Timestamp::ZERO, 1, micros(took), micros(0));
            latency.smallest().as_micros()
        };
        assert_eq!([4_000, 90, 3_000, 5_000].map(&mut after), [4_000, 100, 3_000, 4_000]);
    }

    #[test]
    fn a_stall_of_one_device_is_not_in_the_estimate_of_all_unless_it_comes_again() {
        let mut latency = latency();
        latency.observe_batch(Timestamp::ZERO, 1, Duration::from_secs(1), micros(0));
        assert_eq!((latency.class_for(1).itself(), latency.class_for(1).typical()), (micros(100), micros(100)));
        latency.observe_batch(Timestamp::ZERO, 1, micros(100), micros(0));
        latency.observe_batch(Timestamp::ZERO, 1, Duration::from_secs(1), micros(0));
        assert_eq!(latency.class_for(1).itself(), micros(100), "long ago");
        latency.observe_batch(Timestamp::ZERO, 1, Duration::from_secs(1), micros(0));
        assert_eq!(latency.class_for(1).itself(), Duration::from_secs(1), "it takes that long");
    }

    #[test]
    fn what_is_slow_is_noticed_though_it_is_rarely_run() {
        let profile = LatencyProfile::linear(micros(10), micros(90), &[1], micros(1)).unwrap();
        let mut latency = Latency::new(&profile, Window { size: 100, quantile: 0.99 });
        for secs in (0..20).step_by(2) {
            let now = Timestamp::ZERO + Duration::from_secs(secs);
            latency.age(now);
            latency.observe_batch(now, 1, micros(900), micros(0));
            assert_eq!(latency.smallest(), micros(900));
        }
    }

    #[test]
    fn a_slow_run_does_not_make_its_size_a_bad_one() {
        let mut latency = latency();
        for took in [130, 130, 4_000, 130] {
            latency.observe_batch(Timestamp::ZERO, 4, micros(took), micros(0));
        }
        assert_eq!((latency.class_for(4).expected(), latency.class_for(4).usual()), (micros(4_000), micros(130)));
        assert!(latency.class_for(4).pays);
        for _ in 0..3 {
            latency.observe_batch(Timestamp::ZERO, 4, micros(4_000), micros(0));
        }
        assert!(!latency.class_for(4).pays, "several are the rule");
    }

    #[test]
    fn a_slow_run_that_nothing_follows_is_forgiven() {
        let at = |secs| Timestamp::ZERO + Duration::from_secs(secs);
        let mut latency = latency();
        latency.observe_batch(at(1), 1, micros(900), micros(0));
        latency.age(at(1));
        assert_eq!(latency.class_for(1).itself(), micros(900));
        for secs in 2..12 {
            latency.age(at(secs));
        }
        assert!(latency.class_for(1).itself() < micros(101), "{}", latency.class_for(1).itself());
    }

    #[test]
    fn rows_are_planned_with_a_larger_size_that_takes_less() {
        let mut latency = latency();
        latency.observe_batch(Timestamp::ZERO, 1, micros(900), micros(0));
        assert_eq!((latency.smallest(), latency.largest_within(micros(120))), (micros(110), 2));
        assert_eq!([1, 2, 4].map(|rows| latency.class_for(rows).expected()), [110, 110, 130].map(micros));
        assert_eq!(latency.class_for(1).itself(), micros(900));
    }

    #[test]
    fn a_size_without_gain_does_not_pay() {
        let entry =
            |batch, us| base::BatchLatency { batch, median: micros(us), p99: micros(us), beside: Duration::ZERO };
        let profile =
            LatencyProfile::new(vec![entry(1, 100), entry(2, 199), entry(4, 360), entry(8, 900)], micros(1)).unwrap();
        let latency = Latency::new(&profile, Window { size: 4, quantile: 0.99 });
        assert_eq!(latency.classes().iter().map(|class| class.pays).collect::<Vec<_>>(), [true, false, true, false]);
    }

    #[test]
    fn transfers_count_for_the_deadline_and_not_for_the_device() {
        let mut latency = latency();
        // Batches of four take twice as long with their transfers, which makes them no worse on a busy device.
        for _ in 0..200 {
            latency.observe_batch(Timestamp::ZERO, 4, micros(260), micros(130));
        }
        let four = latency.class_for(4);
        assert_eq!(four.expected(), micros(260));
        assert!(four.typical() <= micros(132) && four.usual() <= micros(132), "{} {}", four.typical(), four.usual());
        assert!(latency.time_for(8) <= micros(264) && four.pays);
    }

    #[test]
    fn what_is_forgotten_is_as_if_it_had_not_been_measured() {
        let mut latency = latency();
        let take = |latency: &mut Latency, took| latency.observe_batch(Timestamp::ZERO, 1, micros(took), micros(0));
        [60, 300, 80].into_iter().for_each(|took| take(&mut latency, took));
        assert_eq!(latency.class_for(1).itself(), micros(300));
        latency.forget_batch(1, micros(300));
        assert_eq!((latency.class_for(1).itself(), latency.class_for(1).whole()), (micros(100), micros(70)));
        [90, 70, 310, 75].into_iter().for_each(|took| take(&mut latency, took));
        assert_eq!(latency.class_for(1).itself(), micros(310));
        latency.forget_batch(1, micros(310));
        assert_eq!(latency.class_for(1).itself(), micros(90), "the window was full: the seed has no say any more");
        [61, 62, 63].into_iter().for_each(|took| take(&mut latency, took));
        assert_eq!(latency.class_for(1).itself(), micros(75), "of the last four");
        [80, 300].into_iter().for_each(|took| latency.observe_batch(Timestamp::ZERO, 2, micros(took), micros(0)));
        latency.age(Timestamp::ZERO + STALE);
        assert_eq!(latency.class_for(2).itself(), micros(205));
        latency.forget_batch(2, micros(300));
        assert_eq!(latency.class_for(2).itself(), micros(110), "also of what it left when it was old");
    }

    #[test]
    fn estimates_of_a_slower_device_begin_as_many_times_the_kinds() {
        let slower = latency().times(3.0);
        assert_eq!([1, 2, 4].map(|rows| slower.class_for(rows).itself()), [300, 330, 390].map(micros));
        assert_eq!(slower.class_for(4).middle(), micros(390));
    }

    #[test]
    fn rows_round_up_to_a_supported_size() {
        let latency = latency();
        assert_eq!(latency.class_for(3).batch, 4);
        assert_eq!(latency.class_for(9).batch, 4);
    }

    #[test]
    fn queued_rows_take_full_batches_and_a_rest() {
        let latency = latency();
        let times: Vec<u64> = [0, 1, 2, 3, 4, 5, 8, 11].map(|rows| latency.time_for(rows).as_micros()).to_vec();
        // l(1) = 100, l(2) = 110, l(4) = 130.
        assert_eq!(times, [0, 100, 110, 120, 130, 230, 260, 380]);
    }
}
