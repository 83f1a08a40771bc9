//! How many devices does each model use?

use crate::table::grown;
use base::{Duration, ModelId};

/// All times are halved when their sum reaches this many times what one batch takes on average: what was counts for
/// less.
const MEMORY: u64 = 4_096;

/// Device time that the batches of each model took lately.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    times: Vec<Duration>,
    total: Duration,
    batches: u64,
}

impl Usage {
    pub fn add_model(&mut self, model: ModelId) {
        let before = std::mem::take(grown(&mut self.times, model.index()));
        self.total -= before;
    }

    pub fn started(&mut self, model: ModelId, expected: Duration) {
        self.times[model.index()] += expected;
        self.total += expected;
        self.batches += 1;
        if self.batches >= MEMORY.max(self.times.len() as u64 * 16) {
            self.batches /= 2;
            self.total = Duration::ZERO;
            for time in &mut self.times {
                *time = *time / 2;
                self.total += *time;
            }
        }
    }

    /// How many of the devices a model uses on average when all are busy, at least one.
    pub fn devices_of(&self, model: ModelId, devices: usize, models: usize) -> f64 {
        let share = match self.total.as_nanos() {
            0 => 1.0 / models.max(1) as f64,
            total => self.times[model.index()].as_nanos() as f64 / total as f64,
        };
        (devices as f64 * share).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_shared_by_the_time_that_models_take() {
        let mut usage = Usage::default();
        let (a, b) = (ModelId(0), ModelId(1));
        usage.add_model(a);
        usage.add_model(b);
        assert_eq!(usage.devices_of(a, 8, 2), 4.0, "nothing is known");
        for _ in 0..10_000 {
            usage.started(a, Duration::from_millis(30));
            usage.started(b, Duration::from_millis(10));
        }
        assert!((usage.devices_of(a, 8, 2) - 6.0).abs() < 0.1);
        for _ in 0..20_000 {
            usage.started(b, Duration::from_millis(10));
        }
        assert_eq!(usage.devices_of(a, 8, 2), 1.0, "long ago");
    }
}
