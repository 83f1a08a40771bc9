//! One member by weighted chance: from a number that the caller draws, or from a key, so that who has it stays.

/// Members by their parts of all requests.
#[derive(Clone, PartialEq, Debug)]
pub struct Split {
    /// Each member's part, added to those before it; the last is 1.
    bounds: Vec<f64>,
}

impl Split {
    /// With these weights, of which none is negative and one is more than 0.
    pub fn new(weights: impl IntoIterator<Item = f64>) -> Self {
        let mut bounds: Vec<f64> = weights.into_iter().collect();
        let all: f64 = bounds.iter().sum();
        let mut sum = 0.0;
        for bound in &mut bounds {
            sum += *bound;
            *bound = sum / all;
        }
        Self { bounds }
    }

    /// The member for a number in `[0, 1)`. One with weight 0 is never chosen.
    pub fn choose(&self, unit: f64) -> usize {
        // Rounding can leave the last bound below the highest number: the last member with a weight has it.
        let last = self.bounds.partition_point(|&bound| bound < self.bounds.last().copied().unwrap_or(1.0));
        self.bounds.partition_point(|&bound| bound <= unit).min(last)
    }
}

/// A key's number in `[0, 1)`, in steps of 2^-53: the same for the same key in every process. `salt` is the endpoint's:
/// who is in one canary isn't therefore in all.
pub fn unit_of(key: u128, salt: u64) -> f64 {
    let mut mixed = (key as u64) ^ ((key >> 64) as u64).rotate_left(32) ^ salt;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use workload::Random;

    #[test]
    fn parts_are_those_of_the_weights() {
        let split = Split::new([90.0, 0.0, 10.0]);
        let mut random = Random::new(1, 1);
        let mut by_chance = [0; 3];
        let mut by_key = [0; 3];
        for key in 0..100_000_u128 {
            by_chance[split.choose(random.unit())] += 1;
            by_key[split.choose(unit_of(key, 7))] += 1;
        }
        for counts in [by_chance, by_key] {
            assert!((f64::from(counts[2]) - 10_000.0).abs() < 500.0 && counts[1] == 0, "{counts:?}");
        }
    }

    #[test]
    fn who_is_in_one_canary_is_not_in_all() {
        let both = (0..10_000_u128).filter(|&key| unit_of(key, 1) < 0.1 && unit_of(key, 2) < 0.1).count();
        assert!((60..150).contains(&both), "{both} of 10,000 are in two tenths");
    }

    #[test]
    fn a_larger_canary_keeps_those_of_the_smaller() {
        let (small, large) = (Split::new([5.0, 95.0]), Split::new([20.0, 80.0]));
        for key in 0..10_000_u128 {
            let unit = unit_of(key, 3);
            assert!(small.choose(unit) == 1 || large.choose(unit) == 0, "{key}");
        }
    }

    proptest! {
        #[test]
        fn nobody_without_weight_is_chosen(weights in prop::collection::vec(prop_oneof![Just(0.0), 1e-300..1e300f64], 1..20), unit in 0.0..1.0f64) {
            prop_assume!(weights.iter().any(|&weight| weight > 0.0));
            let chosen = Split::new(weights.clone()).choose(unit);
            prop_assert!(weights[chosen] > 0.0, "{chosen} of {weights:?}");
            let last = Split::new(weights.clone()).choose(1.0 - f64::EPSILON);
            prop_assert!(weights[last] > 0.0);
        }
    }
}
