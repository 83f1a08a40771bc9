//! What will this batch take? Mean, median and a quantile for each batch size of one model on one class of devices: as
//! the last batches took (`Rolling`), seeded with the profile, or, where times depend on the input, as the distribution
//! of its requests says (`Spread`).

use crate::rolling::{History, Rolling, Statistics, averaged};
use base::{Duration, LatencyProfile, Timestamp};

/// One supported batch size of a model, with what it takes.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    /// Rows.
    pub batch: u32,
    /// Whether a row takes less time in it than in every smaller size that pays. A batch is filled up to this size only
    /// then: on one CPU thread, say, a convolution net gains nothing from batching, and waiting for company would be
    /// for nothing.
    pub pays: bool,
    takes: Statistics,
    /// The least quantile of this size and the larger ones: rows fit into larger ones too.
    least_quantile: Duration,
    /// What of it runs beside other batches on a busy device, on average.
    overlap: Duration,
}

impl Class {
    /// What to plan with for so many rows: the configured quantile, with its transfers, of this size or of a larger one
    /// that takes less. Measured times needn't ascend with the size; these do.
    pub fn least_quantile(&self) -> Duration {
        self.least_quantile
    }

    /// The same of this very size.
    pub fn quantile(&self) -> Duration {
        self.takes.quantile
    }

    /// What it mostly takes, its transfers included.
    pub fn median(&self) -> Duration {
        self.takes.median
    }

    /// What it takes on average, its transfers included.
    pub fn mean(&self) -> Duration {
        self.takes.mean
    }

    /// For how long it mostly keeps a busy device from other batches: what to compare.
    pub fn busy_median(&self) -> Duration {
        self.takes.median - self.overlap
    }

    /// The same on average: what to add up.
    pub fn busy_mean(&self) -> Duration {
        self.takes.mean - self.overlap
    }

    /// What of it runs beside other batches on a busy device.
    pub fn overlap(&self) -> Duration {
        self.overlap
    }

    fn per_row(&self) -> Duration {
        self.busy_median() / u64::from(self.batch)
    }

    /// Whether it gains anything over the smaller sizes, the best of which takes so long for a row. A hundredth is
    /// noise.
    fn pays_after(&self, best: Duration) -> bool {
        self.per_row() < best - best / 100
    }
}

/// Where estimates come from.
#[derive(Clone, Debug)]
enum Source {
    /// From the last batches of each size.
    Measured {
        history: History,
        sizes: Vec<Rolling>,
        /// No size comes back towards its seed before.
        stale_at: Timestamp,
        /// Whether the profile may be wrong.
        doubted: bool,
    },
    /// From the distribution of single requests, of which the quickest take so long alone. Single batches change
    /// nothing.
    Distributed { soonest: Duration },
}

/// What one model's batches take on one class of devices.
#[derive(Clone, Debug)]
pub(crate) struct BatchTimes {
    classes: Vec<Class>,
    source: Source,
}

impl BatchTimes {
    /// Keeps what the smallest size takes, and no measurement: nobody plans with it any more.
    pub fn reduce(&mut self) {
        self.classes.truncate(1);
        self.classes.shrink_to_fit();
        if let (Source::Measured { sizes, doubted, .. }, [class]) = (&mut self.source, &self.classes[..]) {
            *sizes = vec![Rolling::seeded(class.takes, *doubted)];
        }
    }

    pub fn new(profile: &LatencyProfile, history: History) -> Self {
        let seed =
            |entry: &base::BatchLatency| Statistics { mean: entry.median, median: entry.median, quantile: entry.p99 };
        let class = |entry: &base::BatchLatency| Class {
            batch: entry.batch,
            pays: true,
            takes: seed(entry),
            least_quantile: entry.p99,
            overlap: entry.overlap,
        };
        let doubted = profile.is_doubted();
        let sizes = profile.batches().iter().map(|entry| Rolling::seeded(seed(entry), doubted)).collect();
        let mut times = Self {
            classes: profile.batches().iter().map(class).collect(),
            source: Source::Measured { history, sizes, stale_at: Timestamp::ZERO, doubted },
        };
        times.compare_sizes();
        times
    }

    /// The same sizes, as the distribution of single requests says: what each size takes and whether it pays, and what
    /// the quickest requests take alone.
    pub fn distributed(&self, sizes: &[(Statistics, bool)], soonest: Duration) -> Self {
        let mut times = Self { classes: self.classes.clone(), source: Source::Distributed { soonest } };
        times.take_over(sizes);
        times
    }

    /// Measures batches anew, beginning with what is known of each size from elsewhere.
    pub fn restart(&mut self, now: Timestamp, known: &[(Statistics, bool)]) {
        if let Source::Measured { sizes, .. } = &mut self.source {
            sizes.iter_mut().zip(known).for_each(|(rolling, &(takes, _))| rolling.restart(now, takes));
            self.take_over(known);
            self.compare_sizes();
        }
    }

    fn take_over(&mut self, sizes: &[(Statistics, bool)]) {
        self.classes.iter_mut().zip(sizes).for_each(|(class, &known)| (class.takes, class.pays) = known);
        self.note_least();
    }

    /// The supported batch sizes, ascending.
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// The smallest supported batch size that holds so many rows (the largest when none does).
    pub fn class_for(&self, rows: u32) -> &Class {
        &self.classes[self.index_of(rows).min(self.classes.len() - 1)]
    }

    /// The largest size that pays and takes no longer than this; 0 when not even the smallest one does.
    pub fn largest_within(&self, span: Duration) -> u32 {
        let within = self.classes.partition_point(|class| class.least_quantile() <= span);
        self.classes[..within].iter().rev().find(|class| class.pays).map_or(0, |class| class.batch)
    }

    /// The smallest size up to `size` that has this part of its rows per time.
    pub fn nearly_as_good(&self, size: u32, part: f64) -> u32 {
        let speed = |class: &Class| f64::from(class.batch) / class.least_quantile().as_nanos().max(1) as f64;
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
            rows => first.busy_mean() - (last.busy_mean() - first.busy_mean()) / rows * u64::from(first.batch),
        }
    }

    /// What the quickest batch takes.
    pub fn smallest(&self) -> Duration {
        match self.source {
            Source::Measured { .. } => self.classes[0].least_quantile,
            Source::Distributed { soonest } => soonest,
        }
    }

    /// Whether estimates come from a distribution.
    pub fn is_distributed(&self) -> bool {
        matches!(self.source, Source::Distributed { .. })
    }

    /// What it takes to execute so many queued rows, in batches of the sizes that pay: full ones of the largest, and
    /// the rest between the sizes that it lies between.
    pub fn time_for(&self, rows: u64) -> Duration {
        let largest = self.classes.iter().rev().find(|class| class.pays).expect("the smallest size pays");
        let full = rows / u64::from(largest.batch);
        let rest = rows % u64::from(largest.batch);
        let mut below = (0, Duration::ZERO);
        for class in self.classes.iter().filter(|class| class.pays) {
            let here = (u64::from(class.batch), class.busy_mean());
            if rest <= here.0 {
                let between = (here.1 - below.1) * (rest - below.0) / (here.0 - below.0);
                // A first row takes a whole batch of the smallest size.
                let partly = if below.0 == 0 && rest > 0 { here.1 } else { below.1 + between };
                return largest.busy_mean() * full + partly;
            }
            below = here;
        }
        largest.busy_mean() * full
    }

    pub fn max_batch(&self) -> u32 {
        self.classes[self.classes.len() - 1].batch
    }

    /// Brings estimates that nothing has confirmed lately back towards their seeds. Asked at each arrival.
    #[inline]
    pub fn age(&mut self, now: Timestamp) {
        if matches!(self.source, Source::Measured { stale_at, .. } if now >= stale_at) {
            self.age_sizes(now);
        }
    }

    #[cold]
    fn age_sizes(&mut self, now: Timestamp) {
        let Source::Measured { sizes, stale_at, doubted, .. } = &mut self.source else { return };
        *stale_at = Timestamp::NEVER;
        for (rolling, class) in sizes.iter_mut().zip(&mut self.classes) {
            rolling.age(now);
            class.takes = rolling.says();
            *stale_at = rolling.stale_at().min(*stale_at);
        }
        if *doubted {
            follow_seen(&mut self.classes, sizes);
        }
        self.compare_sizes();
    }

    /// A batch took so long, its transfers included, of which so much may run beside others.
    pub fn observe(&mut self, now: Timestamp, batch: u32, took: Duration, overlap: Duration) {
        let index = self.index_of(batch);
        let Some(class) = self.classes.get_mut(index) else { return };
        class.overlap = averaged(class.overlap, overlap);
        if let Source::Measured { history, sizes, doubted, .. } = &mut self.source {
            sizes[index].observe(now, *history, took);
            class.takes = sizes[index].says();
            if *doubted && sizes[index].has_moved() {
                follow_seen(&mut self.classes, sizes);
                self.compare_sizes();
            } else {
                self.compare_size(index);
            }
        }
    }

    /// The least that so many rows may take, by what was measured lately; nothing where too little was.
    pub fn at_best(&self, rows: u32) -> Duration {
        let index = self.index_of(rows).min(self.classes.len() - 1);
        match &self.source {
            Source::Measured { sizes, .. } => sizes[index].least_seen(),
            Source::Distributed { soonest } => *soonest,
        }
    }

    /// Takes a batch out again that was measured.
    pub fn forget(&mut self, batch: u32, took: Duration) {
        let index = self.index_of(batch);
        if let (Source::Measured { history, sizes, .. }, Some(class)) = (&mut self.source, self.classes.get_mut(index))
        {
            sizes[index].forget(*history, took);
            class.takes = sizes[index].says();
            self.compare_size(index);
        }
    }

    /// The smallest size that holds so many rows, by its place among the sizes.
    pub fn index_of(&self, rows: u32) -> usize {
        self.classes.partition_point(|class| class.batch < rows)
    }

    /// The estimates for a device on which batches take so many times as long.
    pub fn times(&self, factor: f64) -> Self {
        let mut slower = self.clone();
        slower.classes.iter_mut().for_each(|class| class.takes = class.takes.map(|takes| takes.mul_f64(factor)));
        if let Source::Measured { sizes, doubted, .. } = &mut slower.source {
            let seeds = slower.classes.iter().map(|class| Rolling::seeded(class.takes, *doubted));
            sizes.clear();
            sizes.extend(seeds);
        }
        slower.compare_sizes();
        slower
    }

    fn note_least(&mut self) {
        let mut least = Duration::MAX;
        for class in self.classes.iter_mut().rev() {
            least = least.min(class.takes.quantile);
            class.least_quantile = least;
        }
    }

    /// Works out which sizes pay, and the least quantiles.
    fn compare_sizes(&mut self) {
        self.note_least();
        // Of those that pay: where sizes lie close together each gains little over the one before, and all of them
        // much.
        let mut best = Duration::MAX;
        for class in &mut self.classes {
            class.pays = class.pays_after(best);
            if class.pays {
                best = class.per_row();
            }
        }
    }

    /// The same when only this size was measured: as far as it makes a difference, which is not far mostly.
    fn compare_size(&mut self, index: usize) {
        let mut least = self.classes.get(index + 1).map_or(Duration::MAX, |above| above.least_quantile);
        for class in self.classes[..=index].iter_mut().rev() {
            least = least.min(class.takes.quantile);
            // Smaller ones depend on this one only.
            if std::mem::replace(&mut class.least_quantile, least) == least {
                break;
            }
        }
        let (below, from) = self.classes.split_at_mut(index);
        let mut best = below.iter().rev().find(|class| class.pays).map_or(Duration::MAX, Class::per_row);
        for (above, class) in from.iter_mut().enumerate() {
            let paid = class.pays;
            class.pays = class.pays_after(best);
            if class.pays {
                best = class.per_row();
                // Larger ones depend on this one only, which takes what it took.
                if above > 0 && paid {
                    break;
                }
            }
        }
    }
}

/// Sizes of which nothing was measured are as far from their seeds as the nearest one of which something was; of two as
/// near, the smaller one.
fn follow_seen(classes: &mut [Class], sizes: &[Rolling]) {
    let mut below = None;
    for (index, class) in classes.iter_mut().enumerate() {
        if let Some(scale) = sizes[index].scale() {
            below = Some((index, scale));
            continue;
        }
        let above = || sizes[index..].iter().enumerate().find_map(|(further, size)| Some((further, size.scale()?)));
        let nearest = match (below, above()) {
            (Some((seen, scale)), Some((further, _))) if index - seen <= further => Some(scale),
            (_, Some((_, scale))) | (Some((_, scale)), None) => Some(scale),
            (None, None) => return,
        };
        if let Some(takes) = nearest.and_then(|scale| sizes[index].scaled(scale)) {
            class.takes = takes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    fn times() -> BatchTimes {
        let profile = LatencyProfile::linear(micros(10), micros(90), &[1, 2, 4], micros(500)).unwrap();
        BatchTimes::new(&profile, History { size: 4, quantile: 0.99 })
    }

    #[test]
    fn the_seed_holds_until_the_window_is_full() {
        let mut times = times();
        for _ in 0..3 {
            times.observe(Timestamp::ZERO, 1, micros(40), micros(0));
            assert_eq!(times.smallest(), micros(100));
        }
        times.observe(Timestamp::ZERO, 1, micros(40), micros(0));
        assert_eq!(times.smallest(), micros(40));
    }

    proptest::proptest! {
        #[test]
        fn comparing_around_the_measured_size_finds_what_comparing_all_finds(
            reports in proptest::collection::vec((1u32..40, 1u64..2_000, 0u64..100, proptest::bool::ANY), 1..200),
            doubted: bool,
        ) {
            let profile = LatencyProfile::linear(micros(10), micros(90), &base::dense_batch_sizes(40), micros(1));
            let profile = if doubted { profile.unwrap().doubted() } else { profile.unwrap() };
            let mut times = BatchTimes::new(&profile, History { size: 4, quantile: 0.99 });
            for (rows, took, overlap, forget) in reports {
                times.observe(Timestamp::ZERO, rows, micros(took), micros(overlap.min(took)));
                if forget {
                    times.forget(rows, micros(took));
                }
                let mut all = times.clone();
                all.compare_sizes();
                proptest::prop_assert_eq!(format!("{:?}", times.classes), format!("{:?}", all.classes));
            }
        }
    }

    #[test]
    fn a_slow_run_counts_at_once_and_is_forgotten_after_the_window() {
        let mut times = times();
        times.observe(Timestamp::ZERO, 2, micros(900), micros(0));
        assert_eq!(times.class_for(2).quantile(), micros(900));
        for _ in 0..4 {
            times.observe(Timestamp::ZERO, 2, micros(120), micros(0));
        }
        assert_eq!(times.class_for(2).quantile(), micros(120));
    }

    #[test]
    fn a_slow_run_counts_until_another_is_seen_to_be_quicker_where_a_hundred_are_looked_at() {
        let profile = LatencyProfile::linear(micros(10), micros(90), &[1], micros(1)).unwrap();
        let mut times = BatchTimes::new(&profile, History { size: 100, quantile: 0.99 });
        let mut after = |took| {
            times.observe(Timestamp::ZERO, 1, micros(took), micros(0));
            times.smallest().as_micros()
        };
        assert_eq!([4_000, 90, 3_000, 5_000].map(&mut after), [4_000, 100, 3_000, 4_000]);
    }

    #[test]
    fn a_stall_of_one_device_is_not_in_the_estimate_of_all_unless_it_comes_again() {
        let mut times = times();
        times.observe(Timestamp::ZERO, 1, Duration::from_secs(1), micros(0));
        assert_eq!((times.class_for(1).quantile(), times.class_for(1).busy_mean()), (micros(100), micros(100)));
        times.observe(Timestamp::ZERO, 1, micros(100), micros(0));
        times.observe(Timestamp::ZERO, 1, Duration::from_secs(1), micros(0));
        assert_eq!(times.class_for(1).quantile(), micros(100), "long ago");
        times.observe(Timestamp::ZERO, 1, Duration::from_secs(1), micros(0));
        assert_eq!(times.class_for(1).quantile(), Duration::from_secs(1), "it takes that long");
    }

    #[test]
    fn what_is_slow_is_noticed_though_it_is_rarely_run() {
        let profile = LatencyProfile::linear(micros(10), micros(90), &[1], micros(1)).unwrap();
        let mut times = BatchTimes::new(&profile, History { size: 100, quantile: 0.99 });
        for secs in (0..20).step_by(2) {
            let now = Timestamp::ZERO + Duration::from_secs(secs);
            times.age(now);
            times.observe(now, 1, micros(900), micros(0));
            assert_eq!(times.smallest(), micros(900));
        }
    }

    #[test]
    fn a_slow_run_does_not_make_its_size_a_bad_one() {
        let mut times = times();
        for took in [130, 130, 4_000, 130] {
            times.observe(Timestamp::ZERO, 4, micros(took), micros(0));
        }
        assert_eq!(
            (times.class_for(4).least_quantile(), times.class_for(4).busy_median()),
            (micros(4_000), micros(130))
        );
        assert!(times.class_for(4).pays);
        for _ in 0..3 {
            times.observe(Timestamp::ZERO, 4, micros(4_000), micros(0));
        }
        assert!(!times.class_for(4).pays, "several are the rule");
    }

    #[test]
    fn a_slow_run_that_nothing_follows_is_forgiven() {
        let at = |secs| Timestamp::ZERO + Duration::from_secs(secs);
        let mut times = times();
        times.observe(at(1), 1, micros(900), micros(0));
        times.age(at(1));
        assert_eq!(times.class_for(1).quantile(), micros(900));
        for secs in 2..12 {
            times.age(at(secs));
        }
        assert!(times.class_for(1).quantile() < micros(101), "{}", times.class_for(1).quantile());
    }

    #[test]
    fn rows_are_planned_with_a_larger_size_that_takes_less() {
        let mut times = times();
        times.observe(Timestamp::ZERO, 1, micros(900), micros(0));
        assert_eq!((times.smallest(), times.largest_within(micros(120))), (micros(110), 2));
        assert_eq!([1, 2, 4].map(|rows| times.class_for(rows).least_quantile()), [110, 110, 130].map(micros));
        assert_eq!(times.class_for(1).quantile(), micros(900));
    }

    #[test]
    fn a_size_without_gain_does_not_pay() {
        let entry =
            |batch, us| base::BatchLatency { batch, median: micros(us), p99: micros(us), overlap: Duration::ZERO };
        let profile =
            LatencyProfile::new(vec![entry(1, 100), entry(2, 199), entry(4, 360), entry(8, 900)], micros(1)).unwrap();
        let times = BatchTimes::new(&profile, History { size: 4, quantile: 0.99 });
        assert_eq!(times.classes().iter().map(|class| class.pays).collect::<Vec<_>>(), [true, false, true, false]);
    }

    #[test]
    fn transfers_count_for_the_deadline_and_not_for_the_device() {
        let mut times = times();
        // Batches of four take twice as long with their transfers, which makes them no worse on a busy device.
        for _ in 0..200 {
            times.observe(Timestamp::ZERO, 4, micros(260), micros(130));
        }
        let four = times.class_for(4);
        assert_eq!(four.least_quantile(), micros(260));
        assert!(
            four.busy_mean() <= micros(132) && four.busy_median() <= micros(132),
            "{} {}",
            four.busy_mean(),
            four.busy_median()
        );
        assert!(times.time_for(8) <= micros(264) && four.pays);
    }

    #[test]
    fn what_is_forgotten_is_as_if_it_had_not_been_measured() {
        let mut times = times();
        let take = |times: &mut BatchTimes, took| times.observe(Timestamp::ZERO, 1, micros(took), micros(0));
        [60, 300, 80].into_iter().for_each(|took| take(&mut times, took));
        assert_eq!(times.class_for(1).quantile(), micros(300));
        times.forget(1, micros(300));
        assert_eq!((times.class_for(1).quantile(), times.class_for(1).mean()), (micros(100), micros(70)));
        [90, 70, 310, 75].into_iter().for_each(|took| take(&mut times, took));
        assert_eq!(times.class_for(1).quantile(), micros(310));
        times.forget(1, micros(310));
        assert_eq!(times.class_for(1).quantile(), micros(90), "the history was full: the seed has no say any more");
        [61, 62, 63].into_iter().for_each(|took| take(&mut times, took));
        assert_eq!(times.class_for(1).quantile(), micros(75), "of the last four");
        [80, 300].into_iter().for_each(|took| times.observe(Timestamp::ZERO, 2, micros(took), micros(0)));
        times.age(Timestamp::ZERO + Duration::from_secs(1));
        assert_eq!(times.class_for(2).quantile(), micros(205));
        times.forget(2, micros(300));
        assert_eq!(times.class_for(2).quantile(), micros(110), "also of what it left when it was old");
    }

    #[test]
    fn estimates_of_a_slower_device_begin_as_many_times_the_kinds() {
        let slower = times().times(3.0);
        assert_eq!([1, 2, 4].map(|rows| slower.class_for(rows).quantile()), [300, 330, 390].map(micros));
        assert_eq!(slower.class_for(4).median(), micros(390));
    }

    #[test]
    fn rows_round_up_to_a_supported_size() {
        let times = times();
        assert_eq!(times.class_for(3).batch, 4);
        assert_eq!(times.class_for(9).batch, 4);
    }

    #[test]
    fn queued_rows_take_full_batches_and_a_rest() {
        let times = times();
        let times: Vec<u64> = [0, 1, 2, 3, 4, 5, 8, 11].map(|rows| times.time_for(rows).as_micros()).to_vec();
        // l(1) = 100, l(2) = 110, l(4) = 130.
        assert_eq!(times, [0, 100, 110, 120, 130, 230, 260, 380]);
    }

    #[test]
    fn sizes_that_nobody_asked_for_follow_those_that_somebody_did() {
        let profile = LatencyProfile::linear(micros(10), micros(90), &[1, 2, 4], micros(500)).unwrap();
        let doubted = |doubted| {
            let profile = if doubted { profile.clone().doubted() } else { profile.clone() };
            let mut times = BatchTimes::new(&profile, History { size: 100, quantile: 0.99 });
            (0..4).for_each(|_| times.observe(Timestamp::ZERO, 1, micros(10), micros(0)));
            [1, 2, 4].map(|rows| times.class_for(rows).median())
        };
        assert_eq!(doubted(true), [10, 11, 13].map(micros), "a tenth of what the profile says");
        assert_eq!(doubted(false), [100, 110, 130].map(micros));
    }
}
