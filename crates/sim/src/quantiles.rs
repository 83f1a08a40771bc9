//! Quantiles of spans of time, to three digits.

use base::Duration;
use hdrhistogram::Histogram;
use serde::Serialize;

/// Spans that were recorded. Nothing is allocated before the first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quantiles {
    histogram: Option<Box<Histogram<u32>>>,
    max: Duration,
    sum: f64,
}

impl Quantiles {
    /// Adds one.
    pub fn record(&mut self, span: Duration) {
        let histogram = self.histogram.get_or_insert_with(|| {
            // Nanoseconds, because errors of predictions are small; up to an hour, longer counts as that.
            Box::new(Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("the bounds are in range"))
        });
        histogram.saturating_record(span.as_nanos());
        self.max = self.max.max(span);
        self.sum += span.as_secs_f64();
    }

    /// Adds all of another's.
    pub fn merge(&mut self, other: &Self) {
        self.max = self.max.max(other.max);
        self.sum += other.sum;
        match (&mut self.histogram, &other.histogram) {
            (Some(own), Some(other)) => own.add(other.as_ref()).expect("both have the same bounds"),
            (own @ None, Some(other)) => *own = Some(other.clone()),
            (_, None) => {}
        }
    }

    /// Forgets all of them, keeping the memory.
    pub fn clear(&mut self) {
        if let Some(histogram) = &mut self.histogram {
            histogram.reset();
        }
        (self.max, self.sum) = (Duration::ZERO, 0.0);
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.histogram.as_ref().map_or(0, |histogram| histogram.len())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The span that this part of them does not exceed; zero when there is none.
    pub fn at(&self, quantile: f64) -> Duration {
        let Some(histogram) = &self.histogram else { return Duration::ZERO };
        if histogram.is_empty() {
            Duration::ZERO
        } else {
            Duration::from_nanos(histogram.value_at_quantile(quantile)).min(self.max)
        }
    }

    /// The longest.
    pub fn max(&self) -> Duration {
        self.max
    }

    /// The mean; zero when there is none.
    pub fn mean(&self) -> Duration {
        if self.is_empty() { Duration::ZERO } else { Duration::from_secs_f64(self.sum / self.len() as f64) }
    }

    /// The usual quantiles in milliseconds.
    pub fn summary(&self) -> QuantileSummary {
        let at = |quantile| self.at(quantile).as_millis_f64();
        QuantileSummary {
            count: self.len(),
            mean_ms: self.mean().as_millis_f64(),
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            p9999_ms: at(0.9999),
            p99999_ms: at(0.99999),
            max_ms: self.max.as_millis_f64(),
        }
    }
}

/// One in so many is above the quantile of that name in a [`QuantileSummary`].
pub const ONE_IN: [(f64, &str); 6] = [
    (2.0, "p50_ms"),
    (10.0, "p90_ms"),
    (100.0, "p99_ms"),
    (1_000.0, "p999_ms"),
    (10_000.0, "p9999_ms"),
    (100_000.0, "p99999_ms"),
];

/// The usual quantiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct QuantileSummary {
    /// How many.
    pub count: u64,
    /// The mean.
    pub mean_ms: f64,
    /// Half of them take no longer.
    pub p50_ms: f64,
    /// 9 of 10 take no longer.
    pub p90_ms: f64,
    /// 99 of 100 take no longer.
    pub p99_ms: f64,
    /// 999 of 1,000 take no longer.
    pub p999_ms: f64,
    /// 9,999 of 10,000 take no longer.
    pub p9999_ms: f64,
    /// 99,999 of 100,000 take no longer.
    pub p99999_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_three_digits() {
        let mut quantiles = Quantiles::default();
        assert_eq!(quantiles.at(0.5), Duration::ZERO);
        (1..=1000).for_each(|millis| quantiles.record(Duration::from_millis(millis)));
        let summary = quantiles.summary();
        assert!((summary.p50_ms / 500.0 - 1.0).abs() < 2e-3, "{summary:?}");
        assert!((summary.p99_ms / 990.0 - 1.0).abs() < 2e-3, "{summary:?}");
        assert_eq!((summary.max_ms, summary.count), (1000.0, 1000));
        assert!((summary.mean_ms - 500.5).abs() < 1e-6);
    }
}
