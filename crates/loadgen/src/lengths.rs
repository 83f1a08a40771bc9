//! How long the inputs of a class are, where its models leave that open.

use crate::plan::PlanError;
use workload::Random;

/// So many requests of different lengths are prepared for each model; each one sent is any of them.
pub(crate) const VARIANTS: u32 = 256;

/// The lengths of a class.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Lengths {
    /// All the same.
    Constant(u32),
    /// Each from the first to the last as likely.
    Uniform {
        /// The shortest.
        low: u32,
        /// The longest.
        high: u32,
    },
    /// Many short ones, few long ones: the logarithm is normal.
    Lognormal {
        /// Half of them are shorter.
        median: f64,
        /// The standard deviation of the logarithm.
        sigma: f64,
        /// Shorter ones become this.
        low: u32,
        /// Longer ones become this.
        high: u32,
    },
}

impl Lengths {
    /// From `12`, `uniform:4:256` or `lognormal:24:0.6:4:256` (median, sigma, shortest, longest).
    pub(crate) fn parse(text: &str) -> Result<Self, PlanError> {
        let parts: Vec<&str> = text.split(':').map(str::trim).collect();
        let whole = |text: &str| text.parse::<u32>().ok().filter(|length| (1..1 << 20).contains(length));
        let range = |low: &str, high: &str| Some((whole(low)?, whole(high)?)).filter(|(low, high)| low <= high);
        let real = |text: &str| text.parse::<f64>().ok().filter(|value| (1e-3..1e6).contains(value));
        let parsed = match parts[..] {
            [length] => whole(length).map(Self::Constant),
            ["uniform", low, high] => range(low, high).map(|(low, high)| Self::Uniform { low, high }),
            ["lognormal", median, sigma, low, high] => range(low, high).and_then(|(low, high)| {
                Some(Self::Lognormal { median: real(median)?, sigma: real(sigma)?, low, high })
            }),
            _ => None,
        };
        parsed.ok_or_else(|| {
            PlanError::value(format!(
                "lengths can't be {text:?}: write one, as in 64, or uniform:4:256, or lognormal:24:0.6:4:256 (median, sigma, shortest, longest)"
            ))
        })
    }

    /// How many requests are prepared for each model.
    pub(crate) fn variants(self) -> u32 {
        if matches!(self, Self::Constant(_)) { 1 } else { VARIANTS }
    }

    /// The length of one of the requests that are prepared.
    pub(crate) fn of(self, variant: u32, random: &mut Random) -> i64 {
        match self {
            Self::Constant(length) => i64::from(length),
            // One in each of as many parts as there are requests: fewer than by chance are needed to look the same.
            Self::Uniform { low, high } => {
                let part = (f64::from(variant) + 0.5) / f64::from(VARIANTS);
                i64::from(low) + (f64::from(high - low + 1) * part) as i64
            }
            Self::Lognormal { median, sigma, low, high } => {
                let length = median * (sigma * random.normal()).exp();
                (length.round() as i64).clamp(i64::from(low), i64::from(high))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<i64> {
        let lengths = Lengths::parse(text).unwrap();
        let mut random = Random::new(1, 1);
        let mut all: Vec<i64> = (0..lengths.variants()).map(|variant| lengths.of(variant, &mut random)).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn lengths_are_spread_as_asked() {
        assert_eq!(all("64"), [64]);
        let uniform = all("uniform:1:4");
        assert!((1..=4).all(|length| uniform.iter().filter(|&&other| other == length).count() == 64));
        let lognormal = all("lognormal:24:0.6:4:100");
        let at = |part: f64| lognormal[(part * 256.0) as usize];
        assert!((20..=28).contains(&at(0.5)), "{}", at(0.5));
        assert!((38..=52).contains(&at(0.84)), "{}", at(0.84));
        assert!(lognormal[0] >= 4 && lognormal[255] <= 100);
        for wrong in ["", "0", "many", "uniform:4", "uniform:5:4", "lognormal:24:0:4:8", "normal:1:2"] {
            assert!(Lengths::parse(wrong).unwrap_err().to_string().contains("lengths can't be"), "{wrong}");
        }
    }
}
