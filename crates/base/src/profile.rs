//! What a model's batches are known to take: the seed of every estimate.

use crate::Duration;
use core::fmt;

/// What one batch size takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BatchLatency {
    /// Rows in the batch.
    pub batch: u32,
    /// What it takes half of the time.
    pub median: Duration,
    /// What it takes 99 times of 100.
    pub p99: Duration,
    /// What of it may run beside the batch before it and the one behind it: transfers, on devices that have them.
    pub overlap: Duration,
}

/// The transfers of one batch, to a device and from it, where they may run beside other batches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Transfers {
    /// What was done before its start, while another batch ran.
    pub before: Duration,
    /// What could have been done beside other batches, whether it was or not.
    pub overlap: Duration,
}

/// The largest batch of a model that could take any, where nobody says how many it should.
pub const USUAL_MAX_BATCH: u32 = 16;

/// The batch sizes that are prepared where nobody says which: powers of two, and the largest. What lies between is
/// filled up to the next size.
pub fn usual_batch_sizes(largest: u32) -> Vec<u32> {
    (0..u32::BITS).map(|power| 1u32 << power).take_while(|&size| size < largest).chain([largest]).collect()
}

/// The same for devices that compute a batch of any size: each is at most an eighth above the one before, so that
/// little is lost by cutting a batch down to one of them. The powers of two are among them.
pub fn dense_batch_sizes(largest: u32) -> Vec<u32> {
    let step = |size: &u32| size.checked_add((1 << size.ilog2() >> 3).max(1));
    std::iter::successors(Some(1), step).take_while(|&size| size < largest).chain([largest]).collect()
}

/// What each supported batch size of a model takes, and what loading its weights takes. Sizes ascend strictly, times
/// never descend.
///
/// A profile that was measured is [doubted](Self::doubted): the machine may have been busy, and inputs of nobody's may
/// say little of what clients send. What batches take then outweighs it soon.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(try_from = "Table"))]
pub struct LatencyProfile {
    batches: Vec<BatchLatency>,
    load: Duration,
    doubted: bool,
}

/// A profile as it is written down: what is read is a profile only if it is a table that could be one.
#[cfg(feature = "serde")]
#[derive(serde::Deserialize)]
struct Table {
    batches: Vec<BatchLatency>,
    load: Duration,
    #[serde(default)]
    doubted: bool,
}

#[cfg(feature = "serde")]
impl TryFrom<Table> for LatencyProfile {
    type Error = ProfileError;
    fn try_from(table: Table) -> Result<Self, ProfileError> {
        Ok(Self { doubted: table.doubted, ..Self::new(table.batches, table.load)? })
    }
}

/// Why a table of latencies isn't a profile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProfileError {
    /// There is no batch size at all.
    Empty,
    /// A batch of no rows.
    ZeroBatch,
    /// The same batch size twice.
    Repeated(u32),
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the profile has no batch size: give the latency of at least batch size 1"),
            Self::ZeroBatch => f.write_str("the profile has a batch size of 0: sizes start at 1"),
            Self::Repeated(batch) => write!(f, "the profile gives batch size {batch} twice: give it once"),
        }
    }
}

impl core::error::Error for ProfileError {}

impl LatencyProfile {
    /// A profile from measurements in any order. A larger batch that measured faster than a smaller one is noise: its
    /// times are raised to the smaller one's, so that estimates never descend.
    pub fn new(mut batches: Vec<BatchLatency>, load: Duration) -> Result<Self, ProfileError> {
        batches.sort_by_key(|entry| entry.batch);
        match batches.first() {
            None => return Err(ProfileError::Empty),
            Some(first) if first.batch == 0 => return Err(ProfileError::ZeroBatch),
            Some(_) => {}
        }
        if let Some(pair) = batches.windows(2).find(|pair| pair[0].batch == pair[1].batch) {
            return Err(ProfileError::Repeated(pair[0].batch));
        }
        let (mut median, mut p99) = (Duration::ZERO, Duration::ZERO);
        for entry in &mut batches {
            median = median.max(entry.median);
            p99 = p99.max(entry.p99).max(median);
            *entry = BatchLatency { median, p99, overlap: entry.overlap.min(median), ..*entry };
        }
        Ok(Self { batches, load, doubted: false })
    }

    /// The profile `alpha * b + beta` at the given batch sizes (Symphony, section 2), without noise.
    pub fn linear(alpha: Duration, beta: Duration, sizes: &[u32], load: Duration) -> Result<Self, ProfileError> {
        let at = |&batch: &u32| {
            let span = alpha * u64::from(batch) + beta;
            BatchLatency { batch, median: span, p99: span, overlap: Duration::ZERO }
        };
        Self::new(sizes.iter().map(at).collect(), load)
    }

    /// The same with transfers that take so much for each row, and may run beside other batches.
    pub fn with_transfers(mut self, for_each_row: Duration) -> Self {
        for entry in &mut self.batches {
            entry.overlap = (for_each_row * u64::from(entry.batch)).min(entry.median);
        }
        self
    }

    /// The same, known from a few measurements only.
    pub fn doubted(self) -> Self {
        Self { doubted: true, ..self }
    }

    /// Whether it is known from a few measurements only.
    pub fn is_doubted(&self) -> bool {
        self.doubted
    }

    /// The supported batch sizes with their times, ascending.
    pub fn batches(&self) -> &[BatchLatency] {
        &self.batches
    }

    /// The largest supported batch size.
    pub fn max_batch(&self) -> u32 {
        self.batches[self.batches.len() - 1].batch
    }

    /// What loading the weights takes.
    pub fn load(&self) -> Duration {
        self.load
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(batch: u32, micros: u64) -> BatchLatency {
        let [median, p99] = [micros, micros + 1].map(Duration::from_micros);
        BatchLatency { batch, median, p99, overlap: Duration::ZERO }
    }

    #[test]
    fn a_profile_is_sorted_and_never_descends() {
        let profile = LatencyProfile::new(vec![entry(4, 90), entry(1, 50), entry(2, 40)], Duration::ZERO).unwrap();
        let medians: Vec<_> = profile.batches().iter().map(|b| (b.batch, b.median.as_micros())).collect();
        assert_eq!(medians, [(1, 50), (2, 50), (4, 90)]);
        assert_eq!(profile.max_batch(), 4);
    }

    #[test]
    fn sizes_for_any_batch_are_close_to_one_another() {
        assert_eq!(dense_batch_sizes(1), [1]);
        assert_eq!(dense_batch_sizes(21), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 21]);
        let sizes = dense_batch_sizes(4096);
        assert!(sizes.windows(2).all(|pair| pair[0] < pair[1] && pair[1] <= pair[0] + (pair[0] / 8).max(1)));
        assert!(usual_batch_sizes(4096).iter().all(|size| sizes.contains(size)) && sizes.len() < 100);
    }

    #[test]
    fn bad_tables_say_what_is_wrong() {
        assert_eq!(LatencyProfile::new(vec![], Duration::ZERO), Err(ProfileError::Empty));
        assert_eq!(LatencyProfile::new(vec![entry(0, 1)], Duration::ZERO), Err(ProfileError::ZeroBatch));
        assert_eq!(
            LatencyProfile::new(vec![entry(2, 1), entry(2, 1)], Duration::ZERO).unwrap_err().to_string(),
            "the profile gives batch size 2 twice: give it once"
        );
    }
}
