//! What it costs if every batch is ready early, so that it finds a device.
//!
//! Who is ready early goes without those that would have come until it must start. For one model among many that is a
//! small price, and a device that it finds in time is worth it. If all pay it, and a batch costs nearly the same
//! whatever its size, devices fall behind: then the next batches start late and are smaller still.

use base::Duration;

/// What is so many batches old counts for a third.
const MEMORY: f64 = 256.0;

/// What rows take in batches that are ready early, over what they take in those that aren't: the mean over device time.
#[derive(Clone, Debug, Default)]
pub(crate) struct EarlyCost {
    seconds: f64,
    strained: f64,
}

impl EarlyCost {
    /// A batch starts that takes so long; early, each of its rows takes so many times what it takes otherwise.
    pub fn started(&mut self, expected: Duration, strain: f64) {
        let (kept, seconds) = (1.0 - 1.0 / MEMORY, expected.as_secs_f64());
        self.seconds = self.seconds * kept + seconds;
        self.strained = self.strained * kept + seconds * strain;
    }

    /// By how many times all work is more if all batches are ready early.
    pub fn strain(&self) -> f64 {
        if self.seconds > 0.0 { self.strained / self.seconds } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_batches_count_for_more_and_old_ones_for_less() {
        let mut cost = EarlyCost::default();
        assert_eq!(cost.strain(), 1.0, "nothing is known");
        cost.started(Duration::from_millis(30), 1.0);
        cost.started(Duration::from_millis(10), 3.0);
        assert!((cost.strain() - 1.5).abs() < 0.01, "{}", cost.strain());
        (0..2_000).for_each(|_| cost.started(Duration::from_millis(1), 2.0));
        assert!((cost.strain() - 2.0).abs() < 0.01, "{}", cost.strain());
    }
}
