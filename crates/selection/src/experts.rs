//! Weights of experts that losses move: Exp3 and Exp4 with implicit exploration and fixed share.
//!
//! The rule is that of Neu, "Explore no more" (2015; EXP3-SIX, EXP4-IX). A loss `l` of an answer that was chosen with
//! the probability `p` counts as `l / (p + explore)`: a little less than it should on average, and never much more, so
//! that no uniform draws are needed to keep it bounded. Then a part of all weight is dealt out evenly (Herbster and
//! Warmuth's fixed share, which is also what Exp3.S does): an expert that was bad for a million requests is at `share /
//! n` of the weight, from where it comes back in about `ln(n / share) / rate` requests. Without it the weight of others
//! would go to nothing beside one that never errs, and it would be left as slowly as it came.
//!
//! Weights are kept as logarithms, the highest of them 0 and none below [`LEAST`]: nothing overflows, however many
//! losses come.

/// The least logarithm of a weight, where there is no share that keeps it higher.
const LEAST: f64 = -40.0;
/// An expert's rate of errors moves by this part of the way to each new loss: a memory of about fifty.
const ERRORS_BY: f64 = 0.02;
/// What is said of an expert before the first loss.
const FIRST_ERROR: f64 = 0.5;
/// The version of the saved form.
const FORMAT: u8 = 1;

/// How losses move weights.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Learning {
    /// How much one loss moves a weight's logarithm.
    pub rate: f64,
    /// The part of all weight that is dealt out evenly with each loss.
    pub share: f64,
}

impl Learning {
    /// What is taken where nothing else is said: the laboratory's page shows these beside others.
    pub const DEFAULT: Self = Self { rate: 0.1, share: 0.00001 };

    /// What is added to probabilities before losses are divided by them. The paper has half of the rate, for its bound;
    /// who errs less than others is then asked more than twice as often as pays (the laboratory's page).
    pub fn explore(&self) -> f64 {
        self.rate / 10.0
    }
}

/// The weights of some experts, and where it is needed how often each errs.
#[derive(Clone, PartialEq, Debug)]
pub struct Experts {
    logs: Vec<f64>,
    errors: Vec<f64>,
}

/// Why a saved state can't be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RestoreProblem {
    /// It was written by another version of this program.
    Format,
    /// It has another number of experts.
    Count,
    /// Its bytes make no sense.
    Broken,
}

impl Experts {
    /// So many with the same weight, and so many of whose errors are counted.
    pub fn even(experts: usize, counted: usize) -> Self {
        Self { logs: vec![0.0; experts], errors: vec![FIRST_ERROR; counted] }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.logs.len()
    }

    /// Each expert's part of all weight.
    pub fn parts(&self) -> Vec<f64> {
        let mut parts: Vec<f64> = self.logs.iter().map(|&log| libm::exp(log)).collect();
        let sum: f64 = parts.iter().sum();
        parts.iter_mut().for_each(|part| *part /= sum);
        parts
    }

    /// How often each of those errs that are counted, lately.
    pub fn errors(&self) -> &[f64] {
        &self.errors
    }

    /// Moves weights by what each expert lost; one for whom nothing is said lost nothing. Losses may be more than 1
    /// where they stand for those that nobody saw; one that isn't a number from 0 up isn't counted.
    pub fn charge(&mut self, learning: Learning, losses: impl IntoIterator<Item = (usize, f64)>) {
        for (expert, loss) in losses {
            if let Some(log) = self.logs.get_mut(expert)
                && loss.is_finite()
                && loss > 0.0
            {
                *log -= learning.rate * loss;
            }
        }
        let highest = self.logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut weights: Vec<f64> = self.logs.iter().map(|&log| libm::exp(log - highest)).collect();
        let even = weights.iter().sum::<f64>() / weights.len() as f64;
        weights.iter_mut().for_each(|weight| *weight += learning.share * (even - *weight));
        let highest = weights.iter().copied().fold(0.0, f64::max);
        for (log, weight) in self.logs.iter_mut().zip(weights) {
            *log = libm::log(weight / highest).max(LEAST);
        }
    }

    /// Counts what an expert lost, in `[0, 1]`.
    pub fn count_error(&mut self, expert: usize, loss: f64) {
        if let Some(error) = self.errors.get_mut(expert)
            && (0.0..=1.0).contains(&loss)
        {
            *error += ERRORS_BY * (loss - *error);
        }
    }

    /// The state in few bytes: a version, two counts, and four bytes for each number.
    pub fn save(&self) -> Vec<u8> {
        let numbers = self.logs.iter().chain(&self.errors).flat_map(|&number| (number as f32).to_le_bytes());
        [FORMAT, self.logs.len() as u8, self.errors.len() as u8].into_iter().chain(numbers).collect()
    }

    /// What was saved, if it has as many experts and as many that are counted as this.
    pub fn restore(&self, saved: &[u8]) -> Result<Self, RestoreProblem> {
        let [format, logs, errors, numbers @ ..] = saved else { return Err(RestoreProblem::Broken) };
        if *format != FORMAT {
            return Err(RestoreProblem::Format);
        }
        if (usize::from(*logs), usize::from(*errors)) != (self.logs.len(), self.errors.len()) {
            return Err(RestoreProblem::Count);
        }
        let (numbers, rest) = numbers.as_chunks();
        if !rest.is_empty() || numbers.len() != self.logs.len() + self.errors.len() {
            return Err(RestoreProblem::Broken);
        }
        let numbers: Vec<f64> = numbers.iter().map(|&number| f32::from_le_bytes(number).into()).collect();
        let (logs, errors) = numbers.split_at(self.logs.len());
        let highest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let makes_sense = highest == 0.0
            && logs.iter().all(|log| (LEAST..=0.0).contains(log))
            && errors.iter().all(|error| (0.0..=1.0).contains(error));
        if !makes_sense {
            return Err(RestoreProblem::Broken);
        }
        Ok(Self { logs: logs.into(), errors: errors.into() })
    }

    /// The same for other experts: `from[i]` is who expert `i` was; who is new starts where all are even.
    pub fn renumbered(&self, from: &[Option<usize>], counted: usize) -> Self {
        let parts = self.parts();
        let even = 1.0 / from.len().max(1) as f64;
        let part = |old: &Option<usize>| old.and_then(|old| parts.get(old).copied()).unwrap_or(even);
        let parts: Vec<f64> = from.iter().map(part).collect();
        let highest = parts.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let logs = parts.iter().map(|part| libm::log(part / highest).max(LEAST)).collect();
        let error = |old: &Option<usize>| old.and_then(|old| self.errors.get(old).copied()).unwrap_or(FIRST_ERROR);
        Self { logs, errors: from.iter().take(counted).map(error).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use workload::Random;

    const LEARNING: Learning = Learning::DEFAULT;

    /// Requests until the expert that was good for so long and then turned bad has less than half of the weight.
    fn requests_to_leave(learning: Learning, good_for: u32) -> u32 {
        let mut experts = Experts::even(2, 0);
        let mut random = Random::new(5, 1);
        let mut feed = |experts: &mut Experts, losses: [f64; 2]| {
            let parts = experts.parts();
            let chosen = usize::from(random.unit() >= parts[0]);
            let loss = f64::from(u8::from(random.unit() < losses[chosen]));
            experts.charge(learning, [(chosen, loss / (parts[chosen] + learning.explore()))]);
        };
        (0..good_for).for_each(|_| feed(&mut experts, [0.0, 0.5]));
        let mut requests = 0;
        while experts.parts()[0] >= 0.5 && requests < 1_000_000 {
            feed(&mut experts, [0.9, 0.1]);
            requests += 1;
        }
        requests
    }

    #[test]
    fn who_turns_bad_is_left_however_long_it_was_good() {
        let (short, long) = (requests_to_leave(LEARNING, 2_000), requests_to_leave(LEARNING, 200_000));
        assert!(short < 250 && long < 250, "{short} and {long} requests");
        // That is what the share is for.
        let without = requests_to_leave(Learning { share: 0.0, ..LEARNING }, 200_000);
        assert!(without > 2 * long, "{without} requests");
    }

    #[test]
    fn millions_of_losses_leave_numbers_that_are_numbers() {
        let mut experts = Experts::even(3, 3);
        for round in 0..3_000_000_u32 {
            let expert = (round % 3) as usize;
            experts.charge(LEARNING, [(expert, [0.0, 20.0, 1e300][expert])]);
            experts.count_error(expert, 1.0);
        }
        let parts = experts.parts();
        assert!(parts.iter().all(|part| part.is_finite() && *part > 0.0), "{parts:?}");
        assert!(parts[0] > 0.98 && (parts.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{parts:?}");
        assert!(parts[1] > 0.5 * LEARNING.share / 3.0, "the share keeps it: {parts:?}");
        experts.charge(Learning { share: 0.0, rate: 1.0 }, [(2, 1e308)]);
        assert!(experts.parts()[2] > 0.0, "the floor keeps it");
    }

    #[test]
    fn what_is_no_loss_moves_nothing() {
        let mut experts = Experts::even(2, 2);
        experts.charge(LEARNING, [(0, f64::NAN), (1, f64::INFINITY), (0, -3.0), (9, 1.0)]);
        experts.count_error(0, f64::NAN);
        experts.count_error(1, 2.0);
        assert_eq!(experts, Experts::even(2, 2));
    }

    #[test]
    fn members_that_stay_keep_their_weights() {
        let mut experts = Experts::even(3, 2);
        (0..200).for_each(|_| experts.charge(LEARNING, [(0, 1.0), (1, 1.0)]));
        experts.count_error(1, 1.0);
        // The third was the best, and is the first of three now; the second is new.
        let moved = experts.renumbered(&[Some(2), None, Some(1)], 3);
        let (before, after) = (experts.parts(), moved.parts());
        assert!(after[0] > after[1] && after[1] > after[2], "{after:?}");
        assert!((after[2] / after[0] - before[1] / before[2]).abs() < 1e-9);
        assert_eq!(moved.errors()[2], experts.errors()[1]);
    }

    proptest! {
        #[test]
        fn weights_stay_weights(steps in prop::collection::vec((0usize..4, 0.0..50.0f64, 0.0001..1.0f64, 0.0..0.5f64), 0..200)) {
            let mut experts = Experts::even(4, 4);
            for (expert, loss, rate, share) in steps {
                let before = experts.parts();
                experts.charge(Learning { rate, share }, [(expert, loss)]);
                let after = experts.parts();
                prop_assert!((after.iter().sum::<f64>() - 1.0).abs() < 1e-9);
                prop_assert!(after.iter().all(|&part| part > 0.0 && part >= share / 4.0 * 0.999));
                // A loss never makes its expert's weight larger, but for what is dealt out.
                prop_assert!(after[expert] <= before[expert].max(0.25) + 1e-9);
            }
            let back = Experts::even(4, 4).restore(&experts.save()).unwrap();
            for (left, right) in back.parts().iter().zip(experts.parts()) {
                prop_assert!((left - right).abs() < 1e-4);
            }
        }

        #[test]
        fn any_bytes_are_a_state_or_a_problem(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(experts) = Experts::even(2, 1).restore(&bytes) {
                prop_assert!(experts.parts().iter().all(|part| part.is_finite()));
            }
        }
    }

    #[test]
    fn states_of_others_are_refused() {
        let saved = Experts::even(2, 1).save();
        assert_eq!(saved.len(), 3 + 3 * 4);
        assert_eq!(Experts::even(2, 0).restore(&saved), Err(RestoreProblem::Count));
        assert_eq!(Experts::even(2, 1).restore(&saved[..saved.len() - 1]), Err(RestoreProblem::Broken));
        assert_eq!(Experts::even(2, 1).restore(&[]), Err(RestoreProblem::Broken));
        let mut other = saved.clone();
        other[0] = 9;
        assert_eq!(Experts::even(2, 1).restore(&other), Err(RestoreProblem::Format));
        let mut broken = saved;
        broken[3..7].copy_from_slice(&f32::NAN.to_le_bytes());
        assert_eq!(Experts::even(2, 1).restore(&broken), Err(RestoreProblem::Broken));
    }
}
