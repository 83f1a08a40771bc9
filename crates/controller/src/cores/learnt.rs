//! What a model's batches took lately in either division, as many times as its profile says.
//!
//! The scheduler's own estimates aren't compared. Where nothing runs they come back to what was measured at first, so
//! that a machine that is slower than then would seem to gain nothing as soon as cores are together; and where times
//! depend on the input, they are the same for all kinds of devices. Here, what was seen of a division stays until it is
//! seen again, and only requests of about the same size are compared.

use std::collections::{BTreeMap, VecDeque};

/// Batches of a division and a size that count, the last ones.
const RECENT: usize = 32;
/// So many have a median that is worth more than what was known before.
const FEW: usize = 5;
/// Seconds after which a third of the sizes that were asked for is left; what nobody asks for has a little say.
const OVER: f64 = 8.0;
const LEAST_WEIGHT: f64 = 1e-6;

/// Narrow and wide.
pub(crate) const DIVISIONS: usize = 2;

/// A batch that ran.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct TimedRun {
    pub division: usize,
    /// Of its inputs.
    pub bytes: u64,
    /// What it took, as many times as the profile says.
    pub times: f64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Learnt {
    /// By the power of two that the inputs have.
    sizes: BTreeMap<u32, SizeRuns>,
    /// The division whose next run doesn't count: it pays for what it touches for the first time.
    skips: Option<usize>,
}

#[derive(Debug, Default)]
struct SizeRuns {
    /// How often it was asked for lately.
    weight: f64,
    seen: [RecentRuns; DIVISIONS],
}

/// What was seen of a size in one division.
#[derive(Debug, Default)]
struct RecentRuns {
    /// Before it was last in force.
    before: Option<f64>,
    recent: VecDeque<f64>,
}

impl RecentRuns {
    fn add(&mut self, times: f64) {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(times);
    }

    fn says(&self) -> Option<f64> {
        if self.recent.len() < FEW {
            return self.before;
        }
        let mut sorted: Vec<f64> = self.recent.iter().copied().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        Some(sorted[sorted.len() / 2])
    }

    /// What runs from now on outweighs what ran before. Too few runs to say something stay: others may follow.
    fn begin(&mut self) {
        self.before = self.says();
        if self.recent.len() >= FEW {
            self.recent.clear();
        }
    }
}

impl Learnt {
    /// A division is in force from now on.
    pub fn begin(&mut self, division: usize) {
        self.skips = Some(division);
        self.sizes.values_mut().for_each(|size| size.seen[division].begin());
    }

    /// So many seconds are over.
    pub fn fade(&mut self, seconds: f64) {
        let part = (-seconds / OVER).exp();
        self.sizes.values_mut().for_each(|size| size.weight = (size.weight * part).max(LEAST_WEIGHT));
    }

    pub fn add(&mut self, run: &TimedRun) {
        if self.skips.take_if(|division| *division == run.division).is_some() {
            return;
        }
        let size = self.sizes.entry(run.bytes.checked_ilog2().unwrap_or(0)).or_default();
        size.weight += 1.0;
        size.seen[run.division].add(run.times);
    }

    /// How many times as long as its profile says what is asked for takes, narrow and wide. What wasn't seen wide is as
    /// far off as narrow. What wasn't seen narrow isn't taken to be slow there: it goes back and is seen.
    pub fn says(&self) -> [f64; DIVISIONS] {
        let known = self.sizes.values().filter_map(|size| {
            let [narrow, wide] = [0, 1].map(|division: usize| size.seen[division].says());
            let unseen = || wide.map(|wide| wide.min(1.0));
            Some((size.weight, [narrow.or_else(unseen)?, wide.or(narrow)?]))
        });
        let (mut all, mut sums) = (0.0, [0.0; DIVISIONS]);
        for (weight, times) in known {
            all += weight;
            sums.iter_mut().zip(times).for_each(|(sum, times)| *sum += weight * times);
        }
        if all > 0.0 { sums.map(|sum| sum / all) } else { [1.0; DIVISIONS] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(learnt: &mut Learnt, division: usize, bytes: u64, times: &[f64]) {
        times.iter().for_each(|&times| learnt.add(&TimedRun { division, bytes, times }));
    }

    #[test]
    fn a_few_runs_outweigh_the_profile_and_what_was_not_seen_is_as_far_off() {
        let mut learnt = Learnt::default();
        run(&mut learnt, 0, 8, &[0.5; 4]);
        assert_eq!(learnt.says(), [1.0, 1.0]);
        run(&mut learnt, 0, 8, &[9.0]);
        assert_eq!(learnt.says(), [0.5, 0.5], "one that stalled is an exception");
        learnt.begin(1);
        run(&mut learnt, 1, 8, &[7.0, 0.25, 0.25, 0.25, 0.25]);
        assert_eq!(learnt.says(), [0.5, 0.5], "the first run says little");
        run(&mut learnt, 1, 8, &[0.25]);
        assert_eq!(learnt.says(), [0.5, 0.25]);
    }

    #[test]
    fn what_was_seen_stays_until_it_is_seen_again_and_then_a_few_runs_say_otherwise() {
        let mut learnt = Learnt::default();
        learnt.begin(1);
        run(&mut learnt, 1, 8, &[2.0; 33]);
        assert_eq!(learnt.says(), [1.0, 2.0], "what came while cores were together may gain less than was measured");
        learnt.begin(0);
        learnt.fade(100_000.0);
        run(&mut learnt, 0, 8, &[1.0; 6]);
        assert_eq!(learnt.says(), [1.0, 2.0]);
        learnt.begin(1);
        run(&mut learnt, 1, 8, &[0.5; 5]);
        assert_eq!(learnt.says(), [1.0, 2.0], "the first doesn't count");
        run(&mut learnt, 1, 8, &[0.5]);
        assert_eq!(learnt.says(), [1.0, 0.5]);
    }

    #[test]
    fn rare_runs_add_up_over_several_times() {
        let mut learnt = Learnt::default();
        for _ in 0..2 {
            learnt.begin(1);
            run(&mut learnt, 1, 8, &[0.5; 4]);
            learnt.begin(0);
        }
        assert_eq!(learnt.says(), [0.5, 0.5]);
    }

    #[test]
    fn only_requests_of_a_size_are_compared() {
        let mut learnt = Learnt::default();
        // Mostly short ones narrow, mostly long ones wide: either is half as long wide.
        for (bytes, times, narrow, wide) in [(64, 0.1, 20, 6), (4096, 2.0, 6, 20)] {
            learnt.begin(0);
            run(&mut learnt, 0, bytes, &vec![times; narrow]);
            learnt.begin(1);
            run(&mut learnt, 1, bytes, &vec![times / 2.0; wide]);
        }
        let [narrow, wide] = learnt.says();
        assert!((narrow / wide - 2.0).abs() < 1e-9, "{narrow} {wide}");
        // What nobody asks for any more has no say.
        learnt.fade(60.0);
        run(&mut learnt, 1, 64, &[0.05; 3]);
        assert!(learnt.says()[0] < 0.15, "{:?}", learnt.says());
    }
}
