//! Whether few enough requests went bad, of each model or of all together.
//!
//! Counted over all models together, whoever refuses the dearest model wins: a third of its requests are one per cent
//! of all. So each single model must lose at most `max_bad`, unless a file asks for the sum (as papers do).
//!
//! A model with `n` requests that loses exactly `max_bad` of them by chance has `n max_bad` bad ones on average, with a
//! deviation of `sqrt(n max_bad (1 - max_bad))`. Of 37 such models one would be above the average in nearly every run,
//! so that the rate found would depend on how many models there are and how long the run is. So a model counts as
//! losing too much only if it is more than [`CHANCE`] deviations above, which happens to one of 160. What all lose
//! together has no such allowance: where each loses at most `max_bad`, so do all, and their number is large.

use crate::run::experiment::MaxBadOf;
use sim::{Count, RunResult, ratio};

/// So many deviations above the average are left to chance.
const CHANCE: f64 = 2.5;

/// What became of the requests of several runs together.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Verdict {
    /// The part of all requests that went bad.
    pub(crate) bad: f64,
    /// How many those are.
    pub(crate) events: u64,
    /// The part of the requests that went bad for the model that lost the largest part.
    pub(crate) worst: f64,
    /// The part that is compared with `max_bad`.
    pub(crate) judged: f64,
    /// Whether a run was given up before its end.
    pub(crate) gave_up: bool,
}

impl Verdict {
    /// Of runs of one world with different seeds.
    pub(crate) fn of(runs: &[RunResult], max_bad: f64, whose: MaxBadOf) -> Self {
        let mut models: Vec<Count> = Vec::new();
        for run in runs {
            models.resize(run.meter.models.len(), Count::default());
            models.iter_mut().zip(&run.meter.models).for_each(|(all, one)| all.add(*one));
        }
        Self { gave_up: runs.iter().any(|run| run.gave_up), ..Self::of_models(&models, max_bad, whose) }
    }

    fn of_models(models: &[Count], max_bad: f64, whose: MaxBadOf) -> Self {
        let mut all = Count::default();
        models.iter().for_each(|model| all.add(*model));
        let bad = all.bad_part();
        let each = models.iter().map(|model| beyond_chance(*model, max_bad)).fold(0.0, f64::max);
        Self {
            bad,
            events: all.bad,
            worst: models.iter().map(|model| model.bad_part()).fold(0.0, f64::max),
            judged: if whose == MaxBadOf::Each { bad.max(each) } else { bad },
            gave_up: false,
        }
    }

    /// Whether few enough were bad.
    pub(crate) fn passes(&self, max_bad: f64) -> bool {
        !self.gave_up && self.judged <= max_bad
    }
}

/// The part of a model's requests that went bad, less what chance may have added.
fn beyond_chance(model: Count, max_bad: f64) -> f64 {
    let ended = model.ended as f64;
    let deviation = (ended * max_bad * (1.0 - max_bad)).sqrt();
    ratio(model.bad as f64 - CHANCE * deviation, ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(models: &[(u64, u64)], whose: MaxBadOf) -> Verdict {
        let models: Vec<Count> = models.iter().map(|&(ended, bad)| Count { ended, bad }).collect();
        Verdict::of_models(&models, 0.01, whose)
    }

    #[test]
    fn one_model_that_is_refused_is_seen() {
        let sacrificed = [(10_000, 0), (10_000, 0), (400, 150)];
        assert!(of(&sacrificed, MaxBadOf::All).passes(0.01));
        let each = of(&sacrificed, MaxBadOf::Each);
        assert!(!each.passes(0.01) && each.worst == 0.375 && each.bad < 0.01, "{each:?}");
    }

    #[test]
    fn chance_is_forgiven_to_one_but_not_to_all() {
        // 10,000 requests: 100 bad ones, with a deviation of 10.
        assert!(of(&[(10_000, 124), (10_000, 60)], MaxBadOf::Each).passes(0.01));
        assert!(!of(&[(10_000, 126), (10_000, 60)], MaxBadOf::Each).passes(0.01));
        assert!(!of(&[(10_000, 110), (10_000, 110)], MaxBadOf::Each).passes(0.01), "all together have no allowance");
        assert!(of(&[(3, 1), (10_000, 60)], MaxBadOf::Each).judged > 0.01, "one of three is more than chance");
        assert_eq!(of(&[], MaxBadOf::Each), Verdict::default());
    }
}
