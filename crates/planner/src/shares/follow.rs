//! Plans that follow the rates: what was counted in, another arrangement out, where it is worth a change. Pure: the
//! driver counts and says how much time has passed.
//!
//! ```text
//!  counts ──> rate of each model, with how sure it is ──> pools for what it may well be ──> is a change worth it?
//! ```
//!
//! A plan is for the mean and so many deviations of what is known of it: a burst is inside, a rise isn't. A GPU that is
//! divided otherwise costs requests, so that a division stays while it carries what may come. Only that it would save a
//! GPU, or that whole GPUs would do, is a reason to change one that does; and only if that was so for a while.

use super::cycle::Sharing;
use super::pools::{Pools, pools};
use super::{Arrangement, Interference, SharedModel};

/// What following is told.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FollowConfig {
    /// GPUs at least.
    pub least_gpus: usize,
    /// GPUs at most.
    pub most_gpus: usize,
    /// Seconds over which rates are followed: what is older counts for a third.
    pub over: f64,
    /// How many deviations above the mean are planned for.
    pub deviations: f64,
    /// How much of what is predicted to be carried is planned with.
    pub fill: f64,
    /// Seconds for which a cheaper plan must have been better before it is changed to.
    pub patience: f64,
    /// Seconds between two changes of how GPUs are divided, at least.
    pub rest: f64,
    /// Seconds in which a device computes nothing after each batch ([`Sharing::gap`]).
    pub gap: f64,
}

impl Default for FollowConfig {
    fn default() -> Self {
        Self {
            least_gpus: 1,
            most_gpus: 1,
            over: 10.0,
            deviations: 3.0,
            fill: 0.75,
            patience: 15.0,
            rest: 0.0,
            gap: 0.0,
        }
    }
}

/// What is known of a model's rate.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Followed {
    mean: f64,
    /// Of what was counted in a second, around the mean.
    variance: f64,
    known: bool,
}

impl Followed {
    /// In so many seconds so many came; `weight` is that of this count.
    fn count(&mut self, count: u64, seconds: f64, weight: f64) {
        let rate = count as f64 / seconds;
        if !std::mem::replace(&mut self.known, true) {
            // A first count is as sure as chance lets it be.
            *self = Self { mean: rate, variance: rate / seconds, known: true };
            return;
        }
        let off = rate - self.mean;
        self.mean += weight * off;
        self.variance = (1.0 - weight) * (self.variance + weight * off * off);
    }

    /// What it may well be. A model that is hardly asked for has less than a request in a while.
    fn upper(&self, deviations: f64) -> f64 {
        let upper = self.mean + deviations * self.variance.max(0.0).sqrt();
        if upper < 1e-3 { 0.0 } else { upper }
    }
}

/// How GPUs are divided, and what is known of the rates.
#[derive(Clone, Debug)]
pub struct Follower {
    config: FollowConfig,
    /// Their rates are those that were planned for last.
    models: Vec<SharedModel>,
    interference: Interference,
    rates: Vec<Followed>,
    pools: Pools,
    arrangement: Arrangement,
    /// For how many seconds a cheaper plan has been better.
    better_for: f64,
    /// How many seconds ago GPUs were divided otherwise.
    rested: f64,
    /// The best plan at the last look, whether it was changed to or not.
    wanted: Pools,
}

/// What a step came to.
#[derive(Clone, PartialEq, Debug)]
pub enum Following {
    /// Nothing changes.
    Same,
    /// This is how it is from now on.
    Changed(Arrangement),
}

impl Follower {
    /// Begins with what the models are thought to be asked for.
    pub fn new(config: FollowConfig, models: Vec<SharedModel>, interference: Interference) -> Self {
        let rates = vec![Followed::default(); models.len()];
        let pools = fewest(&config, &models, &interference);
        let (arrangement, wanted) = (pools.arrangement_on(config.most_gpus), pools.clone());
        let (better_for, rested) = (0.0, f64::INFINITY);
        Self { config, models, interference, rates, pools, arrangement, better_for, rested, wanted }
    }

    /// How it is.
    pub fn arrangement(&self) -> &Arrangement {
        &self.arrangement
    }

    /// The plan behind it.
    pub fn pools(&self) -> &Pools {
        &self.pools
    }

    /// The best plan at the last look, whether it was worth a change or not.
    pub fn wanted(&self) -> &Pools {
        &self.wanted
    }

    /// What was planned for last, in the order of the models.
    pub fn models(&self) -> &[SharedModel] {
        &self.models
    }

    /// Devices compute nothing for so many seconds after each batch ([`Sharing::gap`]), as is known by now.
    pub fn set_gap(&mut self, gap: f64) {
        self.config.gap = gap;
    }

    /// Goes on with these models. Each was at a place in the list before, from where it has its rate, or is new: then
    /// it may run everywhere until somebody has asked for it.
    pub fn set_models(&mut self, models: Vec<(SharedModel, Option<usize>)>) {
        let is_same = |(place, (_, before)): (usize, &(SharedModel, Option<usize>))| *before == Some(place);
        let same = models.len() == self.models.len() && models.iter().enumerate().all(is_same);
        let rate = |before: Option<usize>| before.and_then(|before| self.rates.get(before)).copied();
        self.rates = models.iter().map(|(_, before)| rate(*before).unwrap_or_default()).collect();
        let rates = self.rates.iter().map(|followed| followed.upper(self.config.deviations));
        self.models = models.into_iter().zip(rates).map(|((model, _), rate)| SharedModel { rate, ..model }).collect();
        if !same {
            let sharing = self.sharing();
            let pools = self.pools.with_rates(&sharing);
            self.change_to(pools);
        }
    }

    /// In so many seconds so many requests came for each model.
    pub fn step(&mut self, seconds: f64, counts: &[u64]) -> Following {
        if seconds <= 0.0 {
            return Following::Same;
        }
        self.rested += seconds;
        let weight = 1.0 - (-seconds / self.config.over).exp();
        let counted = self.models.iter_mut().zip(&mut self.rates).zip(counts);
        for ((model, followed), &count) in counted {
            followed.count(count, seconds, weight);
            model.rate = followed.upper(self.config.deviations);
        }
        if self.models.iter().all(|model| model.rate == 0.0) {
            return Following::Same;
        }
        let wanted = fewest(&self.config, &self.models, &self.interference);
        self.wanted = wanted.clone();
        let sharing = self.sharing();
        let now = self.pools.with_rates(&sharing);
        let fits = now.carries * self.config.fill >= 1.0;
        let cheaper = wanted.gpus < now.gpus || (now.divided > 0 && wanted.divided == 0 && wanted.gpus == now.gpus);
        self.better_for = if fits && cheaper { self.better_for + seconds } else { 0.0 };
        let gains = wanted.carries > now.carries || wanted.gpus > now.gpus;
        // Where it fits nowhere, what carries more is still worth a change, if it is by more than chance.
        let short = !fits && gains && (wanted.gpus != now.gpus || wanted.carries > GAIN * now.carries);
        let next = if short || self.better_for >= self.config.patience { wanted } else { now.clone() };
        let next = if next.is_divided_as(&now) || self.rested >= self.config.rest { next } else { now };
        self.change_to(next)
    }

    /// What there is now, on the GPUs that are used.
    fn sharing(&self) -> Sharing<'_> {
        let Self { models, interference, config, pools, .. } = self;
        Sharing { models, gpus: pools.gpus, interference, gap: config.gap }
    }

    fn change_to(&mut self, next: Pools) -> Following {
        if (next.gpus, next.divided) != (self.pools.gpus, self.pools.divided) {
            self.better_for = 0.0;
        }
        if !next.is_divided_as(&self.pools) {
            self.rested = 0.0;
        }
        let arrangement = next.arrangement_on(self.config.most_gpus);
        self.pools = next;
        if arrangement == self.arrangement {
            return Following::Same;
        }
        self.arrangement = arrangement.clone();
        Following::Changed(arrangement)
    }
}

/// A plan for too much is changed to one that carries so many times as much.
const GAIN: f64 = 1.05;

/// The fewest GPUs that carry the rates with room for chance; all where none do.
fn fewest(config: &FollowConfig, models: &[SharedModel], interference: &Interference) -> Pools {
    let on = |gpus: usize| pools(&Sharing { models, gpus, interference, gap: config.gap });
    let most = config.most_gpus.max(1);
    let enough = (config.least_gpus.clamp(1, most)..most).map(on).find(|pools| pools.carries * config.fill >= 1.0);
    enough.unwrap_or_else(|| on(most))
}

#[cfg(test)]
mod tests {
    use super::super::{ShareTimes, Slot};
    use super::*;

    /// A batch of b takes 0.1 b + 0.9 ms on a whole GPU, and as much longer in a share as that is smaller, but for the
    /// part that a small batch doesn't need.
    fn model(name: &str, rate: f64, objective: f64) -> SharedModel {
        let of = |share: u32, batch: u32| (0.9 + 0.1 * f64::from(batch) * 100.0 / f64::from(share)) / 1e3;
        let points = [20, 40, 50, 60, 80, 100].into_iter();
        let points = points.flat_map(|share| [1, 8, 32].map(|batch| (share, batch, of(share, batch))));
        SharedModel { name: name.to_owned(), rate, objective, times: ShareTimes::new(points, 1e6).unwrap() }
    }

    fn follower(rate: f64) -> Follower {
        let config = FollowConfig { most_gpus: 4, ..FollowConfig::default() };
        Follower::new(config, vec![model("a", rate, 0.02), model("b", rate, 0.02)], Interference::NONE)
    }

    fn steps(follower: &mut Follower, count: usize, rate: u64) -> usize {
        (0..count).filter(|_| follower.step(2.0, &[2 * rate; 2]) != Following::Same).count()
    }

    #[test]
    fn a_rate_that_stays_changes_nothing() {
        let mut follower = follower(1_000.0);
        steps(&mut follower, 10, 1_000);
        assert_eq!(steps(&mut follower, 100, 1_000), 0);
        assert_eq!(follower.arrangement().used(), 1);
    }

    #[test]
    fn gpus_come_with_the_rate_and_go_some_time_after_it() {
        let mut follower = follower(1_000.0);
        steps(&mut follower, 10, 20_000);
        let many = follower.arrangement().used();
        assert!(many > 1, "{follower:?}");
        steps(&mut follower, 40, 1_000);
        assert_eq!(follower.arrangement().used(), 1);
    }

    #[test]
    fn gpus_are_given_back_only_after_a_while() {
        let until_one = |patience: f64| {
            let mut follower = follower(20_000.0);
            follower.config.patience = patience;
            steps(&mut follower, 10, 20_000);
            assert!(follower.arrangement().used() > 1);
            (0..200).take_while(|_| follower.step(2.0, &[2_000; 2]) == Following::Same).count()
        };
        let (at_once, later) = (until_one(0.0), until_one(30.0));
        assert!(later >= at_once + 13, "{at_once} and {later} steps of 2 s");
    }

    #[test]
    fn a_burst_does_not_break_a_plan_that_has_room_for_it() {
        let mut follower = follower(4_000.0);
        for step in 0..60 {
            follower.step(2.0, &[if step % 3 == 0 { 10_000 } else { 7_000 }; 2]);
        }
        let before = follower.arrangement().clone();
        assert_eq!(follower.step(2.0, &[10_500; 2]), Following::Same);
        assert_eq!(*follower.arrangement(), before);
    }

    #[test]
    fn nobody_who_asks_and_no_time_change_nothing() {
        let mut follower = follower(1_000.0);
        assert_eq!(follower.step(0.0, &[1_000_000; 2]), Following::Same);
        steps(&mut follower, 5, 1_000);
        let mut quiet = follower.clone();
        assert_eq!(steps(&mut quiet, 200, 0), 0);
    }

    #[test]
    fn models_come_and_go_and_those_that_stay_keep_their_rates() {
        let mut follower = follower(4_000.0);
        steps(&mut follower, 10, 4_000);
        let before = follower.models()[1].rate;
        follower.set_models(vec![(model("b", 0.0, 0.02), Some(1)), (model("c", 0.0, 0.02), None)]);
        let rates: Vec<f64> = follower.models().iter().map(|model| model.rate).collect();
        assert_eq!(rates, [before, 0.0]);
        // Whoever is new may run in every share that there is.
        let used: Vec<&Slot> = follower.arrangement().slots().filter(|slot| slot.percent > 0).collect();
        assert!(!used.is_empty() && used.iter().all(|slot| slot.models.contains(&1)), "{used:?}");
        follower.set_models(Vec::new());
        assert!(follower.arrangement().slots().all(|slot| slot.models.is_empty()));
        assert_eq!(follower.step(2.0, &[]), Following::Same);
    }

    #[test]
    fn who_cannot_be_in_time_anywhere_may_still_run() {
        let config = FollowConfig { most_gpus: 2, least_gpus: 2, ..FollowConfig::default() };
        let models = vec![model("a", 100.0, 0.02), model("hopeless", 100.0, 1e-4)];
        let follower = Follower::new(config, models, Interference::NONE);
        assert!(follower.arrangement().slots().any(|slot| slot.models.contains(&1)), "{follower:?}");
    }

    #[test]
    fn gpus_are_not_divided_otherwise_again_before_they_have_rested() {
        let changes = |rest: f64| {
            let quick = FollowConfig { over: 1.0, deviations: 0.0, patience: 0.0, ..FollowConfig::default() };
            let config = FollowConfig { most_gpus: 4, rest, ..quick };
            let mut follower = Follower::new(config, vec![model("a", 1_000.0, 0.02)], Interference::NONE);
            let mut last = follower.pools().clone();
            let step = |step: u64| {
                follower.step(2.0, &[if (step / 10).is_multiple_of(2) { 60_000 } else { 100 }]);
                let before = std::mem::replace(&mut last, follower.pools().clone());
                !before.is_divided_as(follower.pools())
            };
            (0..100).map(step).filter(|changed| *changed).count()
        };
        let (often, seldom) = (changes(0.0), changes(50.0));
        assert!(seldom < often && seldom <= 4, "{often} and {seldom} in 200 s");
    }

    #[test]
    fn gpus_rest_also_while_nobody_asks() {
        let mut follower = follower(0.0);
        follower.rested = 0.0;
        steps(&mut follower, 5, 0);
        assert_eq!(follower.rested, 10.0);
    }

    #[test]
    fn what_was_counted_first_is_as_sure_as_chance_lets_it_be() {
        let mut followed = Followed::default();
        followed.count(400, 4.0, 0.3);
        assert_eq!((followed.mean, followed.variance), (100.0, 25.0));
        assert_eq!(followed.upper(2.0), 110.0);
        followed.count(400, 4.0, 0.5);
        assert_eq!((followed.mean, followed.variance), (100.0, 12.5), "surer");
        followed.count(800, 4.0, 0.5);
        assert_eq!((followed.mean, followed.variance), (150.0, 0.5 * (12.5 + 5_000.0)));
    }
}
