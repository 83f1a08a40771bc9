//! How long one model's requests take, where that depends on the input.
//!
//! A request takes its *work* and the batch's fixed part: alone `c0 + work`, in a batch of k requests padded to the
//! longest `c0 + c1(k) * max work` (Orloj, equations 3 to 5, where `c1(k)` is a line through 0). `c1` comes from the
//! profile, which was measured with one input. The work is learnt from measurements of single requests: a histogram
//! over the last 512 for each application, and one for each bucket of size hints where there are any. When the newer
//! half of a window no longer looks like the older one, the older one is forgotten.
//!
//! What is asked often is worked out when measurements come, not when requests do.

use crate::batch_times::BatchTimes;
use crate::distribution::{BINS, Distribution, Piece, bin_of};
use crate::event::{Measured, Request};
use crate::rolling::Statistics;
use base::{ApplicationId, Duration};
use std::collections::{BTreeMap, VecDeque};

/// How many measurements a histogram looks back.
const WINDOW: usize = 512;
/// The halves of a window are compared after so many new ones, from this many on.
const COMPARE_EVERY: u32 = 64;
/// Kolmogorov and Smirnov's distance, over the root of `(n + m) / (n * m)`, beyond which two samples are of one
/// distribution with a probability of 1 in 1,000 only.
const DRIFT: f64 = 1.95;
/// More applications than this are counted as the default one.
const MAX_APPLICATIONS: usize = 64;
/// Size hints are put into buckets, so many for each power of two.
const BUCKETS_PER_OCTAVE: u64 = 8;
/// So many measurements make a bucket worth more than its application.
const ENOUGH: usize = 3;
/// The tables are made anew after so many measurements.
const RENEW_EVERY: u32 = 64;
/// A model is dynamic when its slow requests take this much longer than its quick ones, and static again below the
/// second.
const DYNAMIC: f64 = 1.25;
const STATIC: f64 = 1.15;
const QUICK: f64 = 0.02;
const SLOW: f64 = 0.98;
/// In how many pieces `orloj` scores.
const PIECES: usize = 8;
/// Shares of applications count the last so many requests more than those before.
const SHARES_OVER: f64 = 4096.0;

/// The kind of requests of which nothing is known but the model.
pub(crate) const ANY: u32 = 0;

/// The last measurements of one kind.
#[derive(Clone, Debug)]
struct Recent {
    bins: VecDeque<u16>,
    fresh: u32,
}

impl Recent {
    fn new() -> Self {
        Self { bins: VecDeque::new(), fresh: 0 }
    }

    fn add(&mut self, nanos: u64) {
        if self.bins.len() == WINDOW {
            self.bins.pop_front();
        }
        self.bins.push_back(bin_of(nanos));
        self.fresh += 1;
        if self.fresh >= COMPARE_EVERY && self.bins.len() >= 2 * COMPARE_EVERY as usize {
            self.fresh = 0;
            let half = self.bins.len() / 2;
            if self.has_drifted(half) {
                self.bins.drain(..half);
            }
        }
    }

    fn has_drifted(&self, half: usize) -> bool {
        let (older, newer) = (self.counts(0..half), self.counts(half..self.bins.len()));
        let (n, m) = (half as f64, (self.bins.len() - half) as f64);
        let (mut below, mut above, mut distance) = (0.0, 0.0, 0.0_f64);
        for (old, new) in older.iter().zip(&newer) {
            below += f64::from(*old) / n;
            above += f64::from(*new) / m;
            distance = distance.max((below - above).abs());
        }
        distance > DRIFT * ((n + m) / (n * m)).sqrt()
    }

    fn counts(&self, range: std::ops::Range<usize>) -> [u32; BINS] {
        let mut counts = [0; BINS];
        self.bins.range(range).for_each(|&bin| counts[usize::from(bin)] += 1);
        counts
    }

    fn distribution(&self) -> Option<Distribution> {
        Distribution::of_counts(&self.counts(0..self.bins.len()))
    }
}

/// What `orloj` plans with for a request of some kind in a batch of some size: the time of the whole batch.
#[derive(Clone, Debug)]
pub(crate) struct BatchTime {
    pub mean: Duration,
    /// In nanoseconds.
    pub pieces: Vec<Piece>,
}

/// Requests that can't be told apart.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    recent: Recent,
    /// How many of them came lately.
    arrivals: f64,
    /// The work of one.
    pub work: Distribution,
    /// Its mean.
    pub mean: f64,
    /// The mean of the largest of 1, 2, 4, ... of them.
    largest: Vec<f64>,
    /// For each batch size, the time of a batch that it is in, if the others are as usual.
    batches: Vec<BatchTime>,
}

impl Kind {
    fn new() -> Self {
        let work = Distribution::point(1);
        Self { recent: Recent::new(), arrivals: 0.0, mean: 1.0, work, largest: Vec::new(), batches: Vec::new() }
    }

    /// The mean of the largest work of so many.
    pub fn largest(&self, count: u32) -> f64 {
        let index = (32 - count.max(1).saturating_sub(1).leading_zeros()) as usize;
        self.largest.get(index).or(self.largest.last()).copied().unwrap_or(self.mean)
    }
}

/// One batch size: its rows, how many times one request's work it takes, and whether that is less for each row than in
/// every smaller size that pays. Where it isn't, whoever is in such a batch would be done as soon or sooner one after
/// another.
#[derive(Clone, Copy, Debug)]
struct Size {
    rows: u32,
    times: f64,
    pays: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Spread {
    /// What a batch takes however small it is, in nanoseconds.
    fixed: f64,
    sizes: Vec<Size>,
    /// The first one is `ANY`.
    kinds: Vec<Kind>,
    applications: BTreeMap<ApplicationId, u32>,
    hints: BTreeMap<u64, u32>,
    fresh: u32,
    dynamic: bool,
}

impl Spread {
    /// Nothing is known but the profile, and what a batch takes whatever its inputs are.
    pub fn new(times: &BatchTimes, fixed: Duration) -> Self {
        let fixed = fixed.as_nanos() as f64;
        let one = (times.classes()[0].busy_mean().as_nanos() as f64 - fixed).max(1.0);
        let least = f64::from(times.classes()[0].batch);
        let size = |class: &crate::batch_times::Class| Size {
            rows: class.batch,
            times: ((class.busy_mean().as_nanos() as f64 - fixed) / one * least).max(1.0),
            pays: true,
        };
        let mut kind = Kind::new();
        kind.work = Distribution::point(one as u64);
        let sizes = times.classes().iter().map(size).collect();
        let mut spread = Self {
            fixed,
            sizes,
            kinds: vec![kind],
            applications: BTreeMap::new(),
            hints: BTreeMap::new(),
            fresh: 0,
            dynamic: false,
        };
        spread.update_pays();
        spread
    }

    /// Whether the time depends on the input.
    pub fn is_dynamic(&self) -> bool {
        self.dynamic
    }

    /// Takes measurements in; whether estimates have changed.
    pub fn measured(&mut self, measured: &Measured) -> bool {
        let application = self.application(measured.application);
        for sample in &measured.samples {
            let work = (sample.alone.as_nanos() as f64 - self.fixed).max(1.0) as u64;
            self.kinds[application as usize].recent.add(work);
            if let Some(size) = sample.size {
                let next = self.kinds.len() as u32;
                let kind = *self.hints.entry(bucket(size)).or_insert(next);
                if kind == next {
                    self.kinds.push(Kind::new());
                }
                self.kinds[kind as usize].recent.add(work);
            }
        }
        self.fresh += measured.samples.len() as u32;
        let known: usize = self.applications.values().map(|&kind| self.kinds[kind as usize].recent.bins.len()).sum();
        // Often at first, when each one says much.
        let renews = self.fresh >= RENEW_EVERY.min(1 + known as u32 / 4);
        if renews {
            self.renew();
        }
        renews
    }

    fn application(&mut self, application: ApplicationId) -> u32 {
        let full = self.applications.len() >= MAX_APPLICATIONS;
        let application =
            if full && !self.applications.contains_key(&application) { ApplicationId::DEFAULT } else { application };
        let next = self.kinds.len() as u32;
        let kind = *self.applications.entry(application).or_insert(next);
        if kind == next {
            self.kinds.push(Kind::new());
            let last = self.kinds.len() - 1;
            self.learn(last, &self.kinds[ANY as usize].work.clone());
        }
        kind
    }

    /// What is known of a request: its bucket if its size is known and looked at, else its application.
    pub fn kind_of(&self, request: &Request, hinted: bool) -> u32 {
        let application = self.applications.get(&request.application).copied().unwrap_or(ANY);
        let Some(size) = request.size.filter(|_| hinted && !self.hints.is_empty()) else { return application };
        let bucket = bucket(size);
        let enough = |kind: &u32| self.kinds[*kind as usize].recent.bins.len() >= ENOUGH;
        // The nearest bucket of which enough is known, of two as near the longer one.
        let above = self.hints.range(bucket..).find(|(_, kind)| enough(kind));
        let below = self.hints.range(..bucket).rev().find(|(_, kind)| enough(kind));
        match (below, above) {
            (Some((low, kind)), Some((high, _))) if bucket - low < high - bucket => *kind,
            (_, Some((_, kind))) => *kind,
            (Some((_, kind)), None) => *kind,
            (None, None) => application,
        }
    }

    /// A request came.
    pub fn arrived(&mut self, application: ApplicationId) {
        if let Some(&kind) = self.applications.get(&application) {
            self.kinds[kind as usize].arrivals += 1.0;
            if self.kinds[kind as usize].arrivals > SHARES_OVER {
                self.kinds.iter_mut().for_each(|kind| kind.arrivals /= 2.0);
            }
        }
    }

    pub fn kind(&self, kind: u32) -> &Kind {
        &self.kinds[kind as usize]
    }

    fn update_pays(&mut self) {
        let work = self.kinds[ANY as usize].work.mean();
        let mut best = f64::INFINITY;
        for size in &mut self.sizes {
            let per_row = (self.fixed + size.times * work) / f64::from(size.rows);
            // A hundredth is noise. Of those that pay: where sizes lie close together each gains little over the one
            // before, and all of them much.
            size.pays = per_row < 0.99 * best;
            if size.pays {
                best = per_row;
            }
        }
    }

    /// What a batch of that size takes whose longest request has this much work.
    pub fn time(&self, class: usize, work: f64) -> Duration {
        Duration::from_nanos((self.fixed + self.sizes[class].times * work) as u64)
    }

    /// The least that a request may take alone, by what others of its very size, or else of its application, took;
    /// nothing where too few did.
    pub fn at_best(&self, class: usize, request: &Request, hinted: bool) -> Duration {
        let sized = request.size.filter(|_| hinted && !self.hints.is_empty());
        let kind = match sized {
            Some(size) => self.hints.get(&bucket(size)),
            None => self.applications.get(&request.application),
        };
        let known = kind.map(|&kind| &self.kinds[kind as usize]).filter(|kind| kind.recent.bins.len() >= ENOUGH);
        known.map_or(Duration::ZERO, |kind| self.time(class, kind.work.quantile(QUICK)))
    }

    /// How much work each request of a batch may have at most if it is to take no longer than that.
    pub fn work_within(&self, class: usize, span: Duration) -> f64 {
        (span.as_nanos() as f64 - self.fixed) / self.sizes[class].times
    }

    /// What a batch of that size takes, for a request of that kind among others as usual.
    pub fn batch_time(&self, kind: u32, class: usize) -> &BatchTime {
        &self.kinds[kind as usize].batches[class]
    }

    /// What each batch size takes, whoever is in it, with the given quantile, or the mean where that is more; whether
    /// it is worth it, even if all in it are alike; and what the quickest request takes alone.
    pub fn estimates(&self, quantile: f64) -> (Vec<(Statistics, bool)>, Duration) {
        let any = &self.kinds[ANY as usize].work;
        let estimate = |(class, size): (usize, &Size)| {
            let largest = Distribution::maximum(&[(any, size.rows)]);
            let takes = |work: f64| self.time(class, work);
            let (mean, median) = (takes(largest.mean()), takes(largest.quantile(0.5)));
            (Statistics { mean, median, quantile: takes(largest.quantile(quantile)).max(mean) }, size.pays)
        };
        (self.sizes.iter().enumerate().map(estimate).collect(), self.time(0, any.quantile(QUICK)))
    }

    /// Makes everything that is asked often.
    fn renew(&mut self) {
        self.fresh = 0;
        let learnt: Vec<(usize, Option<Distribution>)> =
            self.kinds.iter().enumerate().skip(1).map(|(index, kind)| (index, kind.recent.distribution())).collect();
        for (index, work) in learnt {
            if let Some(work) = work {
                self.kinds[index].work = work;
            }
        }
        let known: Vec<(&Distribution, f64)> = self
            .applications
            .values()
            .map(|&kind| &self.kinds[kind as usize])
            .filter(|kind| !kind.recent.bins.is_empty())
            .map(|kind| (&kind.work, kind.arrivals + 1.0))
            .collect();
        if let Some(any) = Distribution::mixture(&known) {
            let alone = |part: f64| self.fixed + any.quantile(part);
            self.dynamic = alone(SLOW) > alone(QUICK) * if self.dynamic { STATIC } else { DYNAMIC };
            self.kinds[ANY as usize].work = any;
        }
        self.update_pays();
        let any = self.kinds[ANY as usize].work.clone();
        (0..self.kinds.len()).for_each(|index| self.learn(index, &any));
    }

    /// The tables of one kind.
    fn learn(&mut self, index: usize, any: &Distribution) {
        let (fixed, sizes) = (self.fixed, &self.sizes);
        let kind = &mut self.kinds[index];
        kind.mean = kind.work.mean();
        let most = sizes.last().map_or(1, |size| size.rows);
        let powers = (0..32).map(|power| 1_u32 << power).take_while(|&count| count < 2 * most);
        kind.largest = powers.map(|count| Distribution::maximum(&[(&kind.work, count)]).mean()).collect();
        let batch = |size: &Size| {
            let largest = Distribution::maximum(&[(&kind.work, 1), (any, size.rows - 1)]);
            let time = |work: f64| fixed + size.times * work;
            let piece = |piece: Piece| Piece { from: time(piece.from), to: time(piece.to), part: piece.part };
            BatchTime {
                mean: Duration::from_nanos(time(largest.mean()) as u64),
                pieces: largest.pieces(PIECES).into_iter().map(piece).collect(),
            }
        };
        kind.batches = sizes.iter().map(batch).collect();
    }
}

/// The bucket of a size hint.
fn bucket(size: u32) -> u64 {
    // Eight in each octave, of the 32 that bins have.
    u64::from(bin_of(u64::from(size).max(1) << 8)) / (32 / BUCKETS_PER_OCTAVE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Sample;
    use crate::rolling::History;
    use base::{LatencyProfile, ModelId, RequestId, Timestamp};

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// `l(b) = 8 b + 2` ms for the input that the profile was measured with.
    fn spread() -> Spread {
        let profile = LatencyProfile::linear(millis(8), millis(2), &[1, 2, 4], millis(1)).unwrap();
        Spread::new(&BatchTimes::new(&profile, History { size: 10, quantile: 0.99 }), millis(2))
    }

    fn measure(spread: &mut Spread, application: u32, samples: impl Iterator<Item = (u64, Option<u32>)>) {
        let sample = |(alone, size)| Sample { alone: millis(alone), size };
        let samples = samples.map(sample).collect();
        spread.measured(&Measured { model: ModelId(0), application: ApplicationId(application), samples });
    }

    fn request(application: u32, size: Option<u32>) -> Request {
        Request {
            id: RequestId { slot: 0, generation: 0 },
            model: ModelId(0),
            deadline_at: Timestamp::NEVER,
            priority: 0,
            rows: 1,
            application: ApplicationId(application),
            size,
        }
    }

    #[test]
    fn sizes_that_lie_close_together_pay_as_those_far_apart_do() {
        let pays = |sizes: &[u32]| {
            let profile = LatencyProfile::linear(millis(1), millis(10), sizes, millis(1)).unwrap();
            let spread = Spread::new(&BatchTimes::new(&profile, History { size: 10, quantile: 0.99 }), Duration::ZERO);
            sizes
                .iter()
                .enumerate()
                .filter(|&(class, _)| spread.sizes[class].pays)
                .map(|(_, size)| *size)
                .collect::<Vec<_>>()
        };
        assert_eq!(pays(&[1, 8, 64]), [1, 8, 64]);
        // 64 gain two thousandths over 63, and a fortieth over 54.
        let close = pays(&(1..=64).collect::<Vec<_>>());
        assert!(close.last().is_some_and(|&largest| largest > 60), "{close:?}");
    }

    #[track_caller]
    fn near(got: Duration, wanted: u64) {
        let (got, wanted) = (got.as_millis_f64(), wanted as f64);
        assert!((got - wanted).abs() < 0.03 * wanted, "{got} for {wanted}");
    }

    #[test]
    fn measurements_that_agree_leave_it_static() {
        let mut spread = spread();
        assert!(!spread.is_dynamic());
        measure(&mut spread, 0, (0..200).map(|_| (10, None)));
        assert!(!spread.is_dynamic());
        for (class, takes) in [(0, 10), (1, 18), (2, 34)] {
            near(spread.batch_time(ANY, class).mean, takes);
        }
    }

    #[test]
    fn applications_are_told_apart() {
        let mut spread = spread();
        measure(&mut spread, 1, (0..200).map(|_| (10, None)));
        measure(&mut spread, 2, (0..200).map(|_| (42, None)));
        assert!(spread.is_dynamic());
        let kind = |application| spread.kind_of(&request(application, None), true);
        near(spread.batch_time(kind(1), 0).mean, 10);
        near(spread.batch_time(kind(2), 0).mean, 42);
        // Who has no name is one of both.
        near(spread.batch_time(kind(3), 0).mean, 26);
        // With a usual request beside it: half of them are long.
        near(spread.batch_time(kind(1), 1).mean, (18 + 82) / 2);
        near(spread.batch_time(kind(2), 1).mean, 82);
        let (estimates, soonest) = spread.estimates(0.99);
        near(estimates[1].0.mean, 18 / 4 + 82 * 3 / 4);
        near(estimates[1].0.quantile, 82);
        near(soonest, 10);
    }

    #[test]
    fn a_size_says_more_than_an_application() {
        let mut spread = spread();
        // In an order without order: else it would look like drift.
        measure(&mut spread, 0, (1..=400_u32).map(|n| n * 37 % 401).map(|n| (u64::from(2 + n), Some(n))));
        let takes = |size, hinted| spread.batch_time(spread.kind_of(&request(0, size), hinted), 0).mean.as_millis_f64();
        for size in [50, 100, 200, 390] {
            let got = takes(Some(size), true);
            assert!((got - f64::from(size) - 2.0).abs() < 0.1 * f64::from(size), "{got} for {size}");
        }
        near(Duration::from_millis_f64(takes(None, true)), 202);
        near(Duration::from_millis_f64(takes(Some(100), false)), 202);
        // Larger than all: as the largest.
        assert!((300.0..420.0).contains(&takes(Some(100_000), true)));
    }

    #[test]
    fn the_window_forgets_and_drift_forgets_sooner() {
        let mut spread = spread();
        measure(&mut spread, 0, (0..512).map(|n| (10 + n % 20, None)));
        measure(&mut spread, 0, (0..192).map(|n| (100 + n % 20, None)));
        // A quarter of a window is enough to be sure.
        near(spread.batch_time(ANY, 0).mean, 110);
    }

    #[test]
    fn nothing_speaks_against_a_size_that_nobody_sent_before() {
        let mut spread = spread();
        measure(&mut spread, 0, (0..20).map(|_| (100, Some(1000))));
        let at_best = |size, hinted| spread.at_best(0, &request(0, size), hinted);
        assert_eq!(at_best(Some(10), true), Duration::ZERO, "a hundredth of what was measured");
        assert!(at_best(Some(1000), true) > millis(90));
        assert!(at_best(Some(10), false) > millis(90), "sizes say nothing");
        assert_eq!(spread.at_best(0, &request(1, None), true), Duration::ZERO, "of whom nothing is known");
    }
}
