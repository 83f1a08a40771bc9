//! How hard is it at the moment? The part of the requests that were not in time lately.

use base::{Duration, Timestamp};

/// Counts lose one part in two hundred at each step: what is ten seconds old counts for a third.
const STEP: Duration = Duration::from_millis(50);
const KEEP: f64 = 0.995;
/// After so many steps without a request nothing is left.
const GONE: u64 = 4_000;

#[derive(Clone, Debug, Default)]
pub(crate) struct Pressure {
    step: u64,
    bad: f64,
    all: f64,
}

impl Pressure {
    fn forget(&mut self, now: Timestamp) {
        let step = now.as_nanos() / STEP.as_nanos();
        let steps = (step - self.step).min(GONE);
        self.step = step;
        for _ in 0..steps {
            self.bad *= KEEP;
            self.all *= KEEP;
        }
    }

    pub fn note(&mut self, now: Timestamp, in_time: bool) {
        self.forget(now);
        self.all += 1.0;
        self.bad += f64::from(u8::from(!in_time));
    }

    /// The part that was not in time.
    pub fn bad(&self) -> f64 {
        self.bad / self.all.max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_times_are_remembered_for_a_while() {
        let mut pressure = Pressure::default();
        let at = |millis| Timestamp::ZERO + Duration::from_millis(millis);
        for millis in 0..100 {
            pressure.note(at(millis), millis % 2 == 0);
        }
        assert!((pressure.bad() - 0.5).abs() < 0.02, "{}", pressure.bad());
        for millis in 100..1_000 {
            pressure.note(at(millis), true);
        }
        assert!((0.03..0.06).contains(&pressure.bad()), "{}", pressure.bad());
        for millis in 0..100 {
            pressure.note(at(200_000 + millis), true);
        }
        assert!(pressure.bad() < 1e-6, "{}", pressure.bad());
    }
}
