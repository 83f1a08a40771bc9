//! Requests whose time depends on their input: who sends how long ones.

use base::Duration;
use std::sync::Arc;
use workload::Random;

/// So many draws say what mean and 99th percentile are.
const DRAWS: usize = 100_000;
/// The number of the stream of random numbers for that.
const FACTS: u64 = 5 << 40;
/// The 99th percentile of the normal distribution.
const NORMAL_P99: f64 = 2.326_347_874;
/// No request takes less than this part of the mean.
const LEAST: f64 = 0.02;
/// Hints are whole numbers: about so many steps for the mean.
const HINT_STEPS: f64 = 1_000.0;

/// How long the requests of one model take alone.
#[derive(Clone, Debug)]
pub struct InputDistribution {
    /// With the sum of the weights up to each.
    applications: Vec<(f64, TimeDistribution)>,
    /// The deviation of the logarithm of size hints from what requests take; `None` without hints.
    hint_sigma: Option<f64>,
    /// What requests take on average, in milliseconds.
    mean_ms: f64,
    p99_ms: f64,
}

/// How the times of one application are distributed, in milliseconds.
#[derive(Clone, Debug)]
pub enum TimeDistribution {
    /// Normally.
    Normal {
        /// The mean.
        mean: f64,
        /// The deviation.
        sigma: f64,
    },
    /// With normally distributed logarithms.
    Lognormal {
        /// The median.
        median: f64,
        /// The deviation of the logarithm.
        sigma: f64,
    },
    /// One after the other: what each takes, and its hint.
    Recorded(Arc<[(f64, u32)]>),
}

impl TimeDistribution {
    /// The lognormal distribution with that mean and 99th percentile: `ln(p99 / mean) = 2.326 sigma - sigma^2 / 2`.
    /// There is one where the percentile is 1 to about 14 times the mean.
    pub fn lognormal(mean: f64, p99: f64) -> Option<Self> {
        let under_root = NORMAL_P99 * NORMAL_P99 - 2.0 * libm::log(p99 / mean);
        if p99 < mean || under_root < 0.0 {
            return None;
        }
        let sigma = NORMAL_P99 - libm::sqrt(under_root);
        Some(Self::Lognormal { median: mean / libm::exp(sigma * sigma / 2.0), sigma })
    }
}

/// What is drawn for one request.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DrawnInput {
    /// Who sends it.
    pub application: u32,
    /// What it takes alone.
    pub alone: Duration,
    /// Its size hint.
    pub size: Option<u32>,
}

impl InputDistribution {
    /// Requests of applications, each with how often it asks relative to the others. `hint_sigma` is the deviation of
    /// the logarithm of size hints from what requests take; `None`: they have no hints.
    pub fn new(applications: Vec<(f64, TimeDistribution)>, hint_sigma: Option<f64>) -> Self {
        let mut sum = 0.0;
        let summed = applications.into_iter().map(|(weight, times)| {
            sum += weight;
            (sum, times)
        });
        let mut inputs = Self { applications: summed.collect(), hint_sigma, mean_ms: 1.0, p99_ms: 1.0 };
        // Nothing is cut off yet while the mean isn't known.
        let mut drawn: Vec<f64> = inputs.sample(DRAWS, FACTS).iter().map(|input| input.alone.as_millis_f64()).collect();
        drawn.sort_by(f64::total_cmp);
        inputs.mean_ms = drawn.iter().sum::<f64>() / drawn.len() as f64;
        inputs.p99_ms = drawn[drawn.len() * 99 / 100];
        inputs
    }

    /// The same with a 99th percentile that is known, not drawn.
    #[must_use]
    pub fn with_p99_ms(self, p99_ms: f64) -> Self {
        Self { p99_ms, ..self }
    }

    /// What requests take on average, in milliseconds.
    pub fn mean_ms(&self) -> f64 {
        self.mean_ms
    }

    /// What 99 of 100 don't exceed, in milliseconds.
    pub fn p99_ms(&self) -> f64 {
        self.p99_ms
    }

    /// Some requests, as a profiler would have seen before.
    pub fn sample(&self, count: usize, stream: u64) -> Vec<DrawnInput> {
        let mut random = Random::new(0, stream);
        (0..count).map(|number| self.draw(number as u64, &mut random)).collect()
    }

    /// The next request; `number` counts those of its model.
    pub(crate) fn draw(&self, number: u64, random: &mut Random) -> DrawnInput {
        let total = self.applications.last().map_or(1.0, |(sum, _)| *sum);
        // With one application nothing is drawn.
        let point = if self.applications.len() > 1 { random.unit() * total } else { 0.0 };
        let application = self.applications.partition_point(|(sum, _)| *sum <= point).min(self.applications.len() - 1);
        let (alone_ms, size) = match &self.applications[application].1 {
            TimeDistribution::Normal { mean, sigma } => (mean + sigma * random.normal(), None),
            TimeDistribution::Lognormal { median, sigma } => (median * random.lognormal(*sigma), None),
            TimeDistribution::Recorded(all) => {
                let (alone, size) = all[number as usize % all.len()];
                (alone, Some(size))
            }
        };
        let alone_ms = alone_ms.max(LEAST * self.mean_ms).max(1e-3);
        let hint = |sigma: f64| {
            let seen = alone_ms * random.lognormal(sigma);
            size.unwrap_or((seen / self.mean_ms * HINT_STEPS).max(1.0) as u32)
        };
        DrawnInput {
            application: application as u32,
            alone: Duration::from_millis_f64(alone_ms),
            size: self.hint_sigma.map(hint),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn near(got: f64, wanted: f64) {
        assert!((got - wanted).abs() < 0.02 * wanted, "{got} for {wanted}");
    }

    #[test]
    fn applications_ask_as_often_as_their_weights_say() {
        let normal = |mean, sigma| TimeDistribution::Normal { mean, sigma };
        let inputs = InputDistribution::new(vec![(3.0, normal(50.0, 5.0)), (1.0, normal(150.0, 20.0))], Some(0.0));
        near(inputs.mean_ms(), 75.0);
        // One in 25 of the longer ones: 1.751 deviations above their mean.
        near(inputs.p99_ms(), 150.0 + 20.0 * 1.751);
        let drawn = inputs.sample(10_000, 1);
        let of = |application| drawn.iter().filter(move |input| input.application == application);
        near(of(0).count() as f64, 7_500.0);
        near(of(1).map(|input| input.alone.as_millis_f64()).sum::<f64>() / of(1).count() as f64, 150.0);
        assert!(drawn.iter().all(|input| {
            let size = f64::from(input.size.unwrap());
            (size / 1_000.0 * 75.0 - input.alone.as_millis_f64()).abs() < 1.0
        }));
    }

    #[test]
    fn a_mean_and_a_percentile_are_met() {
        for (mean, p99) in [(683.15, 2667.54), (200.39, 242.27), (3.24, 5.56)] {
            let inputs = InputDistribution::new(vec![(1.0, TimeDistribution::lognormal(mean, p99).unwrap())], None);
            near(inputs.mean_ms(), mean);
            near(inputs.p99_ms(), p99);
            assert!(inputs.sample(10, 1).iter().all(|input| input.size.is_none()));
        }
        assert!(TimeDistribution::lognormal(10.0, 5.0).is_none() && TimeDistribution::lognormal(1.0, 15.0).is_none());
    }
}
