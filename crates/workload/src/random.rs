//! Random numbers that are the same on every platform.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{RngCore, SeedableRng};

/// A stream of random numbers: 16 bytes of state, so that every model and every client can have its own.
#[derive(Clone, Debug)]
pub struct Random(Pcg64Mcg);

impl Random {
    /// The stream of that number under that seed. Streams of one seed are independent of each other.
    pub fn new(seed: u64, stream: u64) -> Self {
        // Two rounds of mixing: neighbouring seeds and neighbouring streams are the usual case.
        Self(Pcg64Mcg::seed_from_u64(mix(mix(seed).wrapping_add(stream))))
    }

    /// Uniform in `[0, 1)`, in steps of 2^-53.
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform below `bound`; 0 when `bound` is 0. The bias is below 2^-32 for every bound that fits `u32`.
    pub fn below(&mut self, bound: u32) -> u32 {
        let wide = u128::from(self.0.next_u64()) * u128::from(bound);
        (wide >> 64) as u32
    }

    /// True with that probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        // No draw for the usual 0: switching a fault off doesn't shift the numbers of the others.
        probability > 0.0 && self.unit() < probability
    }

    /// Exponential with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -libm::log(1.0 - self.unit())
    }

    /// Normal with mean 0 and deviation 1, by the polar method.
    pub fn normal(&mut self) -> f64 {
        loop {
            let (x, y) = (2.0 * self.unit() - 1.0, 2.0 * self.unit() - 1.0);
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                return x * libm::sqrt(-2.0 * libm::log(square) / square);
            }
        }
    }

    /// Lognormal with median 1: `exp(sigma * normal)`.
    pub fn lognormal(&mut self, sigma: f64) -> f64 {
        if sigma == 0.0 { 1.0 } else { libm::exp(sigma * self.normal()) }
    }

    /// Gamma with that shape and scale 1, so with mean `shape`. Marsaglia and Tsang's squeeze; shapes below 1 through
    /// `gamma(shape + 1) * u^(1/shape)`.
    pub fn gamma(&mut self, shape: f64) -> f64 {
        if shape == 1.0 {
            return self.exponential();
        }
        if shape < 1.0 {
            let boost = libm::pow(1.0 - self.unit(), 1.0 / shape);
            return self.gamma(shape + 1.0) * boost;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / libm::sqrt(9.0 * d);
        loop {
            let x = self.normal();
            let root = 1.0 + c * x;
            if root <= 0.0 {
                continue;
            }
            let v = root * root * root;
            let u = 1.0 - self.unit();
            if libm::log(u) < 0.5 * x * x + d - d * v + d * libm::log(v) {
                return d * v;
            }
        }
    }

    /// Poisson with that mean: by counting below 30, by the rounded normal above (the error is below the noise there).
    pub fn poisson(&mut self, mean: f64) -> u32 {
        if mean <= 0.0 {
            return 0;
        }
        if mean > 30.0 {
            return (mean + libm::sqrt(mean) * self.normal()).round().max(0.0) as u32;
        }
        let (limit, mut product, mut count) = (libm::exp(-mean), 1.0 - self.unit(), 0);
        while product > limit {
            product *= 1.0 - self.unit();
            count += 1;
        }
        count
    }
}

/// The finalizer of SplitMix64.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(mut draw: impl FnMut(&mut Random) -> f64) -> (f64, f64) {
        let mut random = Random::new(3, 1);
        let values: Vec<f64> = (0..200_000).map(|_| draw(&mut random)).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        (mean, values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64)
    }

    #[track_caller]
    fn close(got: (f64, f64), wanted: (f64, f64)) {
        assert!((got.0 - wanted.0).abs() < 0.02 * wanted.1.sqrt().max(0.1), "mean {} for {}", got.0, wanted.0);
        assert!((got.1 - wanted.1).abs() < 0.05 * wanted.1, "variance {} for {}", got.1, wanted.1);
    }

    #[test]
    fn means_and_variances_are_those_of_the_distributions() {
        close(moments(Random::unit), (0.5, 1.0 / 12.0));
        close(moments(Random::exponential), (1.0, 1.0));
        close(moments(Random::normal), (0.0, 1.0));
        for shape in [0.1, 0.5, 1.0, 2.5, 9.0] {
            close(moments(|random| random.gamma(shape)), (shape, shape));
        }
        for mean in [0.3, 4.0, 29.0, 400.0] {
            close(moments(|random| f64::from(random.poisson(mean))), (mean, mean));
        }
    }

    #[test]
    fn streams_differ_and_repeat() {
        let first = |seed, stream| Random::new(seed, stream).unit();
        assert_eq!(first(1, 1), first(1, 1));
        let mut all: Vec<f64> = (0..20).flat_map(|seed| (0..20).map(move |stream| first(seed, stream))).collect();
        all.sort_by(f64::total_cmp);
        all.dedup();
        assert_eq!(all.len(), 400);
    }

    #[test]
    fn the_numbers_never_change() {
        // A change here moves every recorded experiment: it must be meant.
        let mut random = Random::new(42, 0);
        let drawn = [random.unit(), random.exponential(), random.normal(), random.gamma(0.5), random.gamma(3.0)];
        expect_test::expect![
            "[0.9468578941476408, 1.2869173666537206, 1.6454536111962503, 0.03147251837907699, 1.781447303757897]"
        ]
        .assert_eq(&format!("{drawn:?}"));
    }
}
