//! Which devices are slower than their kind?
//!
//! Devices of one kind have their estimates in common, so that one that is too hot, or bad, or shared with somebody,
//! would make all of them look slow. So each run is compared with what is usual in its kind for that model and size. A
//! device whose runs take longer most of the time is so many *steps* slower than its kind: it has estimates of its own
//! from then on (`Ledger`), and others no longer plan with it.
//!
//! ```text
//!  step        0          1          2          3
//!         ├──────────┼──────────┼──────────┼──────────┤  took / usual
//!         1        1.12       1.40       1.75       2.18
//! ```

use base::{Duration, ModelId, Timestamp, margins};

/// Each step is so many times as slow as the one before. What is slower by less than half a step stays in its kind's
/// estimates, which are longer by as much; with smaller steps chance looks like slowness.
const RATIO: f64 = 1.25;
/// The last step stands for all that is slower: 18 times, when nothing can be done in time anyway.
const LAST: u32 = 13;
/// Devices are judged after so many runs.
const RUNS: usize = 16;
/// All but so many of them must say that it is slower, or quicker: runs that stall say nothing of a device. By chance
/// they do so once in 5,700 times where times deviate by 20 %, and once in 670 with 30 %; the next 16 say otherwise.
const EXCEPTIONS: usize = 4;
/// One that takes more than the second times as long is known as slow after so many runs in a row: each of them may
/// make others wait that are planned with it. Not where runs are shorter than what a busy machine takes of a thread's
/// time: four that it interrupted say nothing of a CPU's core, and sixteen come soon.
const CLEARLY: (usize, f64) = (4, 2.0);
/// It must be quicker by this much more than a step begins, so that it doesn't go to and fro.
const REST: f64 = 0.95;
/// A slow device that nothing can be run on in time isn't measured. After so much time it is tried again with one
/// batch, which is lost if it is still slow.
const TRIAL: Duration = Duration::from_secs(10);

/// What a device did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ran {
    pub model: ModelId,
    pub batch: u32,
    pub took: Duration,
    /// What is usual for it in the device's kind.
    pub usual: Duration,
}

impl Ran {
    fn ratio(&self) -> f64 {
        self.took.as_nanos() as f64 / self.usual.as_nanos().max(1) as f64
    }
}

/// How slow a device is beside its kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slowness {
    step: u32,
    /// What it did lately: since it was last judged, and as much before that. It may have become slow in between.
    runs: Vec<Ran>,
    /// How many times as long as usual it took when it was last judged, in the middle.
    middle: Option<f64>,
    /// When it ran something last, or came to its step.
    ran_at: Timestamp,
    /// Whether its next run decides whether it is still slow.
    on_trial: bool,
}

impl Slowness {
    /// How many steps slower than its kind.
    pub fn step(&self) -> u32 {
        self.step
    }

    pub fn middle(&self) -> Option<f64> {
        self.middle
    }

    /// What it did lately that took longer than usual.
    pub fn long_runs(&self) -> impl Iterator<Item = &Ran> {
        self.runs.iter().filter(|ran| steps(ran.ratio()) > 0)
    }

    /// The number of a model that ran here is another's from now on.
    pub fn forget(&mut self, model: ModelId) {
        self.runs.retain(|ran| ran.model != model);
    }

    /// Notes a run; whether it is time to judge.
    pub fn note(&mut self, now: Timestamp, ran: Ran) -> bool {
        self.ran_at = now;
        if self.runs.len() == 2 * RUNS {
            self.runs.drain(..RUNS);
        }
        self.runs.push(ran);
        self.on_trial || self.runs.len().is_multiple_of(RUNS) || (self.step == 0 && self.clearly() > CLEARLY.1)
    }

    /// How many times as long as usual it took at least, in its last few runs.
    fn clearly(&self) -> f64 {
        let ratio = |ran: &Ran| if ran.usual < margins::LATE_WAKEUP { 1.0 } else { ran.ratio() };
        let last = self.runs.iter().rev().take(CLEARLY.0).map(ratio);
        if self.runs.len() < CLEARLY.0 { 1.0 } else { last.fold(f64::INFINITY, f64::min) }
    }

    /// Whether what others do makes a difference: it is slow, or looks so.
    pub fn is_suspect(&self) -> bool {
        let slower = self.runs.iter().rev().take(RUNS).filter(|ran| steps(ran.ratio()) > 0).count();
        self.step > 0 || self.on_trial || slower >= RUNS - EXCEPTIONS || self.clearly() > CLEARLY.1
    }

    /// How many steps slower than its kind it is by what it did, where the others take so many times of what is usual.
    pub fn judge(&mut self, others: f64) -> u32 {
        let others = others.max(1.0);
        if std::mem::take(&mut self.on_trial) {
            let last = self.runs.last().map_or(1.0, Ran::ratio);
            self.middle = Some(last);
            return steps(last / others);
        }
        let clearly = self.clearly();
        if clearly > CLEARLY.1 * others {
            self.middle = Some(clearly);
            return self.step.max(steps(clearly / others));
        }
        if !self.runs.len().is_multiple_of(RUNS) {
            return self.step;
        }
        let mut ratios = [1.0; RUNS];
        ratios.iter_mut().zip(self.runs.iter().rev()).for_each(|(ratio, ran)| *ratio = ran.ratio());
        ratios.sort_unstable_by(f64::total_cmp);
        self.middle = Some(ratios[RUNS / 2]);
        let (least, most) = (steps(ratios[EXCEPTIONS] / others), steps(ratios[RUNS - 1 - EXCEPTIONS] / others / REST));
        self.step.clamp(least, most.max(least))
    }

    /// It is so many steps slower from now on.
    pub fn set(&mut self, now: Timestamp, step: u32) {
        (self.step, self.ran_at) = (step, now);
        self.runs.clear();
    }

    /// When it should be tried again, if it is slow and does nothing.
    pub fn trial_at(&self) -> Timestamp {
        if self.step == 0 { Timestamp::NEVER } else { self.ran_at + TRIAL }
    }

    /// Takes it for as quick as its kind until its next run.
    pub fn try_again(&mut self, now: Timestamp) {
        self.set(now, 0);
        self.on_trial = true;
    }
}

/// The step of what takes so many times as long.
fn steps(ratio: f64) -> u32 {
    (libm::log(ratio.max(1.0)) / libm::log(RATIO) + 0.5).min(f64::from(LAST)) as u32
}

/// How many times as long things take at most that many steps slower.
pub(crate) fn factor(step: u32) -> f64 {
    if step == 0 { 1.0 } else { libm::pow(RATIO, f64::from(step) + 0.5) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run that takes so many hundredths of what is usual.
    fn ran(hundredths: u64) -> Ran {
        ran_usually(Duration::from_millis(10), hundredths)
    }

    fn ran_usually(usual: Duration, hundredths: u64) -> Ran {
        Ran { model: ModelId(0), batch: 1, took: usual * hundredths / 100, usual }
    }

    /// The step after these runs, each of which is so many hundredths of what is usual.
    fn judged(slowness: &mut Slowness, took: impl Iterator<Item = u64>) -> u32 {
        judged_runs(slowness, took.map(ran))
    }

    fn judged_runs(slowness: &mut Slowness, runs: impl Iterator<Item = Ran>) -> u32 {
        for ran in runs {
            if slowness.note(Timestamp::ZERO, ran) {
                let step = slowness.judge(1.0);
                slowness.set(Timestamp::ZERO, step);
            }
        }
        slowness.step()
    }

    #[test]
    fn a_device_is_slow_when_nearly_all_of_its_runs_are() {
        let mut slowness = Slowness::default();
        assert_eq!(judged(&mut slowness, (0..16).map(|run| if run % 3 > 0 { 170 } else { 100 })), 0);
        assert_eq!(judged(&mut slowness, (0..16).map(|run| if run % 4 > 0 { 170 } else { 100 })), 2);
        assert!((1.7..1.8).contains(&factor(2)), "{}", factor(2));
    }

    #[test]
    fn a_device_that_is_much_slower_is_known_after_a_few_runs_in_a_row() {
        let mut slowness = Slowness::default();
        assert_eq!(judged(&mut slowness, [300, 300, 300, 100, 300, 300, 300].into_iter()), 0);
        assert_eq!(judged(&mut slowness, [310].into_iter()), 5);
        assert!((2.9..3.6).contains(&factor(5)), "{}", factor(5));
    }

    #[test]
    fn a_few_short_runs_that_were_interrupted_do_not_make_a_device_slow() {
        let short = |hundredths| ran_usually(Duration::from_micros(10), hundredths);
        let mut slowness = Slowness::default();
        let interrupted = (0..160).map(|run| short(if run % 16 < 11 { 20_000 } else { 100 }));
        assert_eq!(judged_runs(&mut slowness, interrupted), 0);
        assert_eq!(judged_runs(&mut slowness, (0..16).map(|_| short(310))), 5, "sixteen of them do");
    }

    #[test]
    fn stalls_do_not_make_a_device_slow() {
        assert_eq!(judged(&mut Slowness::default(), (0..160).map(|run| if run % 5 == 0 { 1_000_000 } else { 105 })), 0);
    }

    #[test]
    fn a_device_that_recovers_is_quick_again() {
        let mut slowness = Slowness::default();
        assert_eq!(judged(&mut slowness, [300; 16].into_iter()), 5);
        assert_eq!(judged(&mut slowness, [180; 32].into_iter()), 3);
        assert_eq!(judged(&mut slowness, [101; 32].into_iter()), 0);
    }

    #[test]
    fn what_lies_between_two_steps_stays_where_it_is() {
        let mut slowness = Slowness::default();
        let between = |run: u64| if run.is_multiple_of(2) { 138 } else { 141 };
        assert_eq!(judged(&mut slowness, (0..16).map(between)), 1);
        assert_eq!(judged(&mut slowness, [150; 16].into_iter()), 2);
        assert_eq!(judged(&mut slowness, (0..160).map(between)), 2);
    }

    #[test]
    fn one_run_decides_whether_a_device_on_trial_is_still_slow() {
        let mut slowness = Slowness::default();
        judged(&mut slowness, [300; 16].into_iter());
        assert_eq!(slowness.trial_at(), Timestamp::ZERO + TRIAL);
        slowness.try_again(Timestamp::ZERO);
        assert_eq!((slowness.step(), slowness.trial_at()), (0, Timestamp::NEVER));
        assert_eq!(judged(&mut slowness, [310].into_iter()), 5);
        slowness.try_again(Timestamp::ZERO);
        assert_eq!(judged(&mut slowness, [101].into_iter()), 0);
    }

    #[test]
    fn a_kind_that_takes_longer_than_was_measured_has_no_slow_devices() {
        let mut slowness = Slowness::default();
        (0..16).for_each(|_| _ = slowness.note(Timestamp::ZERO, ran(200)));
        assert_eq!((slowness.judge(2.0), slowness.judge(1.0)), (0, 3));
    }
}
