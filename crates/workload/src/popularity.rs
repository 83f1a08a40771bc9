//! How requests spread over models.

use serde::Deserialize;

/// Which part of the requests each model gets.
#[derive(Clone, Copy, PartialEq, Debug, Default, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Popularity {
    /// All models the same.
    #[default]
    Equal,
    /// The model of rank `k` in proportion to `1 / k^exponent`; the first model has rank 1.
    Zipf {
        /// The exponent, 0 or more.
        exponent: f64,
    },
}

impl Popularity {
    /// The share of each of that many models; they add up to 1.
    pub fn shares(self, models: usize) -> Vec<f64> {
        let weight = |rank: usize| match self {
            Self::Equal => 1.0,
            Self::Zipf { exponent } => libm::pow(rank as f64, -exponent),
        };
        let weights: Vec<f64> = (1..=models).map(weight).collect();
        let total: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / total).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_follow_the_law() {
        assert_eq!(Popularity::Equal.shares(4), [0.25; 4]);
        let zipf = Popularity::Zipf { exponent: 1.0 }.shares(1000);
        assert!((zipf.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        assert!((zipf[0] / zipf[9] - 10.0).abs() < 1e-9);
    }
}
