//! Notices executions that are much larger than a model's usual ones, whose memory should not be kept.
//!
//! Sessions share one arena, which keeps what it once took, so that executions find memory that is warm. For a model
//! that leaves dimensions open, a single huge request would so take memory for ever. The executions that this file
//! points out are asked to give back what lies unused when they end; they take a little longer, since the next ones
//! find the memory cold, but with a size that comes often they stop: then it is the usual one.
//!
//! ```text
//!  size    1  1  1  50  1  1  1  1       50 50 50 50 50 50  ...  1  1  1  ...  1  1
//!  shrink           x   x                x  x  x  x  x                        x
//!                   │   └─ the outputs of the last one lay there still        └─ long enough ago
//!                   └─ much larger than usual
//! ```

/// How many times the usual size is large.
const LARGE: u64 = 4;
/// Over about how many executions the usual size is averaged.
const SPAN: u64 = 16;

/// What was seen of one model.
#[derive(Debug, Default)]
pub(crate) struct SeenSizes {
    /// `SPAN` times the moving average.
    sum: u64,
    /// The largest since memory was last given back.
    peak: u64,
    /// `sum` before the last one.
    sum_before: u64,
}

impl SeenSizes {
    /// Takes note of an execution with that many bytes of input for a row. Whether it should give memory back.
    pub(crate) fn see(&mut self, bytes: u64) -> bool {
        // Far more than any memory, and far from overflowing.
        let bytes = bytes.min(u64::MAX / (4 * LARGE * SPAN));
        self.sum_before = self.sum;
        if self.sum == 0 {
            self.sum = SPAN * bytes;
        }
        let large = self.sum / SPAN * LARGE;
        self.sum = self.sum - self.sum / SPAN + bytes;
        self.peak = self.peak.max(bytes);
        let shrink = self.peak > large;
        if shrink && bytes <= large {
            self.peak = bytes;
        }
        shrink
    }

    /// The last one failed: what the model can't compute is never usual, however often it comes.
    pub(crate) fn failed(&mut self) {
        self.sum = self.sum_before;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of these executions give memory back.
    fn shrinking(sizes: impl IntoIterator<Item = u64>) -> Vec<usize> {
        let mut seen = SeenSizes::default();
        sizes.into_iter().enumerate().filter_map(|(at, size)| seen.see(size).then_some(at)).collect()
    }

    fn times(size: u64, count: usize) -> impl Iterator<Item = u64> {
        std::iter::repeat_n(size, count)
    }

    #[test]
    fn usual_sizes_keep_their_memory() {
        assert_eq!(shrinking(times(1000, 100)), []);
        assert_eq!(shrinking((0..100).map(|at| 1000 + 1000 * (at % 4))), []);
        assert_eq!(shrinking(times(0, 100)), []);
    }

    #[test]
    fn a_huge_one_gives_its_memory_back_and_so_does_the_next() {
        let sizes = times(1000, 20).chain([50_000]).chain(times(1000, 100));
        assert_eq!(shrinking(sizes), [20, 21]);
        let sizes = times(1000, 20).chain([u64::MAX]).chain(times(1000, 10));
        assert_eq!(shrinking(sizes), [20, 21]);
    }

    #[test]
    fn what_is_huge_again_and_again_becomes_usual() {
        let found = shrinking(times(1000, 20).chain(times(50_000, 100)));
        assert_eq!(found, [20, 21, 22, 23, 24]);
    }

    #[test]
    fn what_fails_again_and_again_gives_its_memory_back_each_time() {
        let mut seen = SeenSizes::default();
        assert!(times(1000, 20).all(|size| !seen.see(size)));
        for _ in 0..100 {
            assert!(seen.see(50_000));
            seen.failed();
        }
        assert!(seen.see(1000), "the outputs of the last one");
        assert!(times(1000, 20).all(|size| !seen.see(size)));
    }

    #[test]
    fn a_huge_one_at_first_is_noticed_later() {
        let found = shrinking([50_000].into_iter().chain(times(1000, 100)));
        assert_eq!(found.len(), 1, "{found:?}");
    }
}
