//! What was measured: quantiles for people, and the same as JSON for whoever writes a page of it.

use crate::Attempt;
use serde_json::{Value, json};
use std::time::Instant;

/// SpanQuantiles of what was measured, in microseconds.
pub(crate) struct SpanQuantiles(Vec<f64>);

impl SpanQuantiles {
    pub(crate) fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self(times)
    }

    pub(crate) fn at(&self, quantile: f64) -> f64 {
        self.0[((self.0.len() as f64 * quantile) as usize).min(self.0.len() - 1)]
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "count": self.count(),
            "p50_us": self.at(0.5),
            "p99_us": self.at(0.99),
            "p999_us": self.at(0.999),
            "p9999_us": self.at(0.9999),
            "max_us": self.at(1.0),
        })
    }
}

impl std::fmt::Display for SpanQuantiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ratio = |quantile| self.at(quantile) / self.at(0.5);
        write!(
            f,
            "p50 {:9.1} us, p99 {:9.1}, p99.9/p50 {:.3}, p99.99/p50 {:.3}, max/p50 {:.2}",
            self.at(0.5),
            self.at(0.99),
            ratio(0.999),
            ratio(0.9999),
            ratio(1.0)
        )
    }
}

/// The same runs by the device's clock and by ours.
pub(crate) struct Clocks {
    pub(crate) device: SpanQuantiles,
    pub(crate) wall: SpanQuantiles,
}

impl Clocks {
    /// Both in two lines.
    pub(crate) fn print(&self, what: &str) {
        println!("{what}, device: {}\n{what}, wall:   {}", self.device, self.wall);
    }

    pub(crate) fn json(&self) -> Value {
        json!({ "device": self.device.json(), "wall": self.wall.json() })
    }
}

/// Microseconds since then.
pub(crate) fn micros(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}

/// What some repetitions of something took that measures itself.
pub(crate) fn repeat(count: usize, mut work: impl FnMut() -> Attempt<f64>) -> Attempt<SpanQuantiles> {
    (0..count).map(|_| work()).collect::<Attempt<Vec<f64>>>().map(SpanQuantiles::of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_sorted_times() {
        let times = SpanQuantiles::of((1..=100).rev().map(f64::from).collect());
        assert_eq!((times.at(0.0), times.at(0.5), times.at(0.99), times.at(1.0)), (1.0, 51.0, 100.0, 100.0));
        assert_eq!(times.json()["p99_us"], 100.0);
    }
}
