//! A rate that changes with time, in steps.

use base::Duration;
use std::sync::Arc;

/// Requests per second over time, constant between steps. Cheap to clone: thousands of models may share one.
#[derive(Clone, Debug, PartialEq)]
pub struct RateCurve(Arc<[RateStep]>);

#[derive(Clone, Copy, Debug, PartialEq)]
struct RateStep {
    from_secs: f64,
    rate: f64,
}

impl RateCurve {
    /// The same rate at all times.
    pub fn constant(rate: f64) -> Self {
        Self::steps([(Duration::ZERO, rate)])
    }

    /// Each rate from its instant on; 0 before the first. Instants in any order, rates that aren't positive count as 0.
    pub fn steps(steps: impl IntoIterator<Item = (Duration, f64)>) -> Self {
        let clean = |rate: f64| if rate > 0.0 { rate } else { 0.0 };
        let mut steps: Vec<RateStep> = steps
            .into_iter()
            .map(|(from, rate)| RateStep { from_secs: from.as_secs_f64(), rate: clean(rate) })
            .collect();
        steps.sort_by(|a, b| a.from_secs.total_cmp(&b.from_secs));
        Self(steps.into())
    }

    /// The share of each of a growing number of models in one total rate (Clockwork, section 6.2): from `first` on, one
    /// more model becomes active every `every`, up to `models`, and `total` is spread evenly over the active ones.
    pub fn spread(total: f64, models: u32, first: Duration, every: Duration) -> Self {
        Self::steps((0..models).map(|index| (first + every * u64::from(index), total / f64::from(index + 1))))
    }

    /// The rate at that instant.
    pub fn rate(&self, at: Duration) -> f64 {
        self.cursor(at.as_secs_f64()).checked_sub(1).map_or(0.0, |index| self.0[index].rate)
    }

    /// How many steps have begun at that instant.
    pub(crate) fn cursor(&self, at_secs: f64) -> usize {
        self.0.partition_point(|step| step.from_secs <= at_secs)
    }

    /// Moves `at_secs` on until the area under the curve is `expected` arrivals; `cursor` is the number of steps begun,
    /// and follows. `None` when the area never gets there.
    pub(crate) fn advance(&self, cursor: &mut usize, at_secs: f64, expected: f64) -> Option<f64> {
        let (mut at_secs, mut left) = (at_secs, expected);
        loop {
            let rate = cursor.checked_sub(1).map_or(0.0, |index| self.0[index].rate);
            let Some(next) = self.0.get(*cursor) else {
                return (rate > 0.0).then(|| at_secs + left / rate);
            };
            let area = rate * (next.from_secs - at_secs);
            if left < area {
                return Some(at_secs + left / rate);
            }
            left -= area;
            at_secs = next.from_secs;
            *cursor += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_area_is_walked_across_steps() {
        let curve = RateCurve::steps([
            (Duration::from_secs(1), 10.0),
            (Duration::from_secs(2), 0.0),
            (Duration::from_secs(5), 2.0),
        ]);
        let mut cursor = 0;
        assert_eq!(curve.advance(&mut cursor, 0.0, 5.0), Some(1.5));
        assert_eq!(curve.advance(&mut cursor, 1.5, 6.0), Some(5.5));
        assert_eq!(curve.rate(Duration::from_secs(3)), 0.0);
        let stops = RateCurve::steps([(Duration::ZERO, 1.0), (Duration::from_secs(1), 0.0)]);
        assert_eq!(stops.advance(&mut 0, 0.0, 2.0), None);
    }

    #[test]
    fn spreading_keeps_the_total() {
        let curve = RateCurve::spread(1000.0, 3600, Duration::from_secs(900), Duration::from_secs(1));
        assert_eq!(curve.rate(Duration::from_secs(899)), 0.0);
        for seconds in [0u32, 1, 200, 3599, 5000] {
            let active = (seconds + 1).min(3600);
            let rate = curve.rate(Duration::from_secs(900 + u64::from(seconds)));
            assert!((rate * f64::from(active) - 1000.0).abs() < 1e-9, "{rate} at {seconds}");
        }
    }
}
