//! What one model's actions take, on every device there is.
//!
//! Devices of one kind take the same for the same, and have their estimates in common. A device that is slower than its
//! kind has them in common with those that are as slow. Where times depend on the input, they come from a distribution,
//! on all devices alike.

use crate::batch_times::BatchTimes;
use crate::event::{Measured, ModelSpec, Request};
use crate::ledger::Speed;
use crate::rolling::{History, Rolling, Statistics};
use crate::slowness;
use crate::spread::{self, Spread};
use crate::table::grown;
use base::{ApplicationId, Duration, Timestamp};

/// Which quantile of a batch's time is planned with, where it depends on the input.
const PLANNED: f64 = 0.5;

#[derive(Clone, Debug)]
pub(crate) struct Estimates {
    /// On devices of the slowest kind that is there: what to plan with where it isn't decided yet which device it will
    /// be. Of all devices, where times depend on the input.
    planned: BatchTimes,
    /// That kind.
    slowest: u32,
    /// On devices of the other kinds, as far as it was measured or ran there; by kind.
    elsewhere: Vec<Option<BatchTimes>>,
    /// On devices that are slower than their kind and hold it, or held it.
    slower: Vec<(Speed, BatchTimes)>,
    /// What was planned with before times were seen to depend on the input, while they do.
    before: Option<Box<BatchTimes>>,
    /// How its requests differ, where the policy wants to know.
    spread: Option<Spread>,
    history: History,
    load: Rolling,
    /// Whether profiles may be wrong.
    doubted: bool,
}

impl Estimates {
    /// Those of a model of which nothing is known but its profiles; whether it is to be found out how its requests
    /// differ.
    pub fn new(spec: &ModelSpec, history: History, differs: bool) -> Self {
        let planned = BatchTimes::new(&spec.profile, history);
        let others = spec.elsewhere.iter().map(|profile| Some(BatchTimes::new(profile, history)));
        let (load, doubted) = (spec.profile.load(), spec.profile.is_doubted());
        Self {
            spread: differs.then(|| Spread::new(&planned, spec.fixed)),
            planned,
            slowest: 0,
            elsewhere: std::iter::once(None).chain(others).collect(),
            slower: Vec::new(),
            before: None,
            history,
            load: Rolling::seeded(Statistics { mean: load, median: load, quantile: load }, doubted),
            doubted,
        }
    }

    /// Lets go of what was learnt of a model that is gone: its number may wait for another for long.
    pub fn let_go(&mut self) {
        if !self.planned.is_distributed() {
            self.planned.reduce();
            self.spread = None;
        }
        (self.elsewhere, self.slower, self.before) = (Vec::new(), Vec::new(), None);
    }

    /// What to plan with where it isn't decided yet which device it will be.
    pub fn planned(&self) -> &BatchTimes {
        &self.planned
    }

    /// The kind of device that is planned with.
    pub fn planned_kind(&self) -> u32 {
        self.slowest
    }

    /// What batches take on devices of a kind.
    pub fn on(&self, kind: u32) -> &BatchTimes {
        if kind == self.slowest || self.planned.is_distributed() {
            return &self.planned;
        }
        self.elsewhere.get(kind as usize).and_then(Option::as_ref).unwrap_or(&self.planned)
    }

    /// The same, for what is measured there. Where nothing was before, it begins as the slowest kind's.
    pub fn on_mut(&mut self, kind: u32) -> &mut BatchTimes {
        if kind == self.slowest || self.planned.is_distributed() {
            return &mut self.planned;
        }
        let planned = &self.planned;
        grown(&mut self.elsewhere, kind as usize).get_or_insert_with(|| planned.clone())
    }

    /// What batches take on devices of that speed.
    pub fn at(&self, speed: Speed) -> &BatchTimes {
        let apart = self.slower.iter().find(|(other, _)| *other == speed).filter(|_| !self.planned.is_distributed());
        apart.map_or_else(|| self.on(speed.kind), |(_, times)| times)
    }

    /// The same, for what is measured there.
    pub fn at_mut(&mut self, speed: Speed) -> &mut BatchTimes {
        match self.slower.iter().position(|(other, _)| *other == speed) {
            Some(index) if !self.planned.is_distributed() => &mut self.slower[index].1,
            _ => self.on_mut(speed.kind),
        }
    }

    /// Has estimates for devices of that speed, if it is a slow one: at first the kind's, as many times as long.
    pub fn begin_at(&mut self, speed: Speed) {
        let known = self.slower.iter().any(|(other, _)| *other == speed);
        if speed.step > 0 && !known {
            let times = self.on(speed.kind).times(slowness::factor(speed.step));
            self.slower.push((speed, times));
        }
    }

    /// Forgets devices of other speeds.
    pub fn keep_only(&mut self, speeds: &[Speed]) {
        self.slower.retain(|(speed, _)| speeds.contains(speed));
    }

    /// The longest that a batch takes in its own size, on devices of these kinds: what was measured needn't agree with
    /// which kind is said to be the slowest. Who waits relies on this: a larger size that seems to take less may turn
    /// out to be as slow, when it is too late. Devices that are slower than their kind don't count, nor kinds on which
    /// its first request, of so many rows, would take more time than it has: nobody waits for them (`LastChances`).
    pub fn longest(&self, kinds: &[u32], rows: u32, (first, within): (u32, Duration)) -> Duration {
        let takes = |kind: u32| self.on(kind).class_for(rows).quantile();
        if kinds.len() <= 1 {
            return takes(kinds.first().copied().unwrap_or(self.slowest));
        }
        let in_time = |kind: &u32| self.on(*kind).class_for(first).least_quantile() <= within;
        let able = kinds.iter().copied().filter(in_time).map(takes).max();
        able.or_else(|| kinds.iter().copied().map(takes).min()).unwrap_or_else(|| takes(self.slowest))
    }

    /// Another kind is the slowest that is there.
    pub fn plan_with(&mut self, kind: u32) {
        if kind == self.slowest || self.planned.is_distributed() {
            return;
        }
        let times = grown(&mut self.elsewhere, kind as usize).take().unwrap_or_else(|| self.planned.clone());
        let before = std::mem::replace(&mut self.planned, times);
        *grown(&mut self.elsewhere, self.slowest as usize) = Some(before);
        self.slowest = kind;
    }

    /// Brings estimates that nothing has confirmed lately back towards their seeds.
    pub fn age(&mut self, now: Timestamp) {
        self.load.age(now);
        self.planned.age(now);
        self.elsewhere.iter_mut().flatten().for_each(|times| times.age(now));
        self.slower.iter_mut().for_each(|(_, times)| times.age(now));
    }

    /// What a load takes, on every device.
    pub fn load(&self) -> Duration {
        self.load.says().quantile
    }

    pub fn observe_load(&mut self, now: Timestamp, took: Duration) {
        self.load.observe(now, self.history, took);
    }

    // ---- where times depend on the input ----

    /// How requests differ, if they do.
    pub fn distribution(&self) -> Option<&Spread> {
        self.spread.as_ref().filter(|_| self.planned.is_distributed())
    }

    /// What a request of that kind and so many rows mostly takes alone, where times depend on the input.
    pub fn alone(&self, rows: u32, kind: u32) -> Option<Duration> {
        let spread = self.distribution()?;
        Some(spread.time(self.planned.index_of(rows), spread.kind(kind).work.quantile(PLANNED)))
    }

    /// The least that it may take alone on devices of that speed, as far as batches have shown; `None` where the
    /// profile is known to be right.
    pub fn at_best(&self, speed: Speed, request: &Request, hinted: bool) -> Option<Duration> {
        self.doubted.then(|| match self.distribution() {
            Some(spread) => spread.at_best(self.planned.index_of(request.rows), request, hinted),
            None => self.at(speed).at_best(request.rows),
        })
    }

    /// Which requests of its model one is like.
    pub fn kind_of(&self, request: &Request, hinted: bool) -> u32 {
        self.spread.as_ref().map_or(spread::ANY, |spread| spread.kind_of(request, hinted))
    }

    /// A request came.
    pub fn arrived(&mut self, application: ApplicationId) {
        if let Some(spread) = &mut self.spread {
            spread.arrived(application);
        }
    }

    /// Takes measurements of single requests in; whether that changes what is planned with. From devices of that kind
    /// on, if times no longer depend on the input.
    pub fn measured(&mut self, now: Timestamp, measured: &Measured, slowest: u32) -> bool {
        let Some(spread) = self.spread.as_mut() else { return false };
        if !spread.measured(measured) {
            return false;
        }
        if spread.is_dynamic() {
            let (sizes, soonest) = spread.estimates(PLANNED);
            let distributed = self.planned.distributed(&sizes, soonest);
            let before = std::mem::replace(&mut self.planned, distributed);
            if !before.is_distributed() {
                self.before = Some(Box::new(before));
            }
            return true;
        }
        let Some(before) = self.before.take() else { return false };
        // What batches of other inputs took says nothing: what the requests of late would take is what to begin with.
        self.planned = *before;
        self.planned.restart(now, &spread.estimates(PLANNED).0);
        // Devices may have changed in between, when their kinds made no difference.
        self.plan_with(slowest);
        let speeds: Vec<Speed> = self.slower.drain(..).map(|(speed, _)| speed).collect();
        speeds.into_iter().for_each(|speed| self.begin_at(speed));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Fairness, Sample};
    use base::{LatencyProfile, ModelId};

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(millis)
    }

    /// `l(b) = 10 b + 90` us.
    fn spec() -> ModelSpec {
        ModelSpec {
            model: ModelId(0),
            pages: 1,
            profile: LatencyProfile::linear(micros(10), micros(90), &[1, 2, 4], micros(500)).unwrap(),
            elsewhere: Vec::new(),
            objective: None,
            fixed: Duration::ZERO,
            fairness: Fairness::default(),
        }
    }

    fn estimates() -> Estimates {
        Estimates::new(&spec(), History { size: 4, quantile: 0.99 }, true)
    }

    /// A soak that loaded a model anew every second kept 3 KB of each.
    #[test]
    fn a_model_that_is_gone_leaves_no_estimates_behind() {
        let mut scheduler = crate::Scheduler::new(crate::Config::default());
        let mut out = Vec::new();
        scheduler.step(at(0), crate::Event::ModelAdded(spec()), &mut out);
        assert_eq!(scheduler.ledger.model(ModelId(0)).estimates.planned().classes().len(), 3);
        scheduler.step(at(1), crate::Event::ModelRemoved(ModelId(0)), &mut out);
        assert_eq!(scheduler.ledger.model(ModelId(0)).estimates.planned().classes().len(), 1);
    }

    fn two_rows(estimates: &Estimates, kind: u32) -> Duration {
        estimates.on(kind).class_for(2).quantile()
    }

    /// Single requests that take one of these, in turn.
    fn measure(estimates: &mut Estimates, takes: [u64; 2], count: usize) {
        let samples = takes.iter().cycle().take(count).map(|&us| Sample { alone: micros(us), size: None }).collect();
        estimates.measured(at(1), &Measured { model: ModelId(0), application: ApplicationId(0), samples }, 0);
    }

    #[test]
    fn each_kind_of_device_has_its_own() {
        let mut estimates = estimates();
        assert_eq!(two_rows(&estimates, 3), micros(110), "nothing is known of it");
        for _ in 0..4 {
            estimates.on_mut(2).observe(Timestamp::ZERO, 2, micros(40), Duration::ZERO);
            estimates.on_mut(0).observe(Timestamp::ZERO, 2, micros(120), Duration::ZERO);
        }
        assert_eq!([0, 1, 2, 3].map(|kind| two_rows(&estimates, kind)), [120, 120, 40, 120].map(micros));
        let longest = |kinds: &[u32]| estimates.longest(kinds, 2, (1, Duration::MAX));
        assert_eq!([longest(&[]), longest(&[0, 2]), longest(&[2])], [120, 120, 40].map(micros));
        estimates.plan_with(2);
        assert_eq!([0, 1, 2, 3].map(|kind| two_rows(&estimates, kind)), [120, 40, 40, 40].map(micros));
        estimates.plan_with(0);
        assert_eq!([0, 1, 2, 3].map(|kind| two_rows(&estimates, kind)), [120, 120, 40, 120].map(micros));
    }

    #[test]
    fn where_times_depend_on_the_input_the_distribution_says_them_for_all_devices() {
        let mut estimates = estimates();
        let slow = Speed { kind: 0, step: 4 };
        estimates.begin_at(slow);
        estimates.on_mut(2).observe(at(0), 2, micros(900), Duration::ZERO);
        measure(&mut estimates, [100, 1_000], 256);
        assert!(estimates.distribution().is_some());
        let two = two_rows(&estimates, 0);
        assert!(two > micros(900), "mostly one of two is long: {two}");
        assert_eq!([two_rows(&estimates, 2), estimates.at(slow).class_for(2).quantile()], [two; 2]);
        estimates.at_mut(slow).observe(at(1), 2, micros(5), Duration::ZERO);
        assert_eq!(two_rows(&estimates, 0), two, "a single batch says nothing");
    }

    #[test]
    fn when_times_stop_to_depend_on_the_input_nothing_of_before_is_left() {
        let mut estimates = estimates();
        let slow = Speed { kind: 0, step: 4 };
        estimates.begin_at(slow);
        // Batches that took long, long ago.
        for _ in 0..4 {
            estimates.on_mut(0).observe(at(0), 1, micros(40_000), Duration::ZERO);
        }
        measure(&mut estimates, [100, 1_000], 256);
        assert!(estimates.distribution().is_some());
        measure(&mut estimates, [200, 200], 1_024);
        assert!(estimates.distribution().is_none());
        let one = estimates.planned().class_for(1);
        for takes in [one.mean(), one.median(), one.quantile()] {
            assert!(takes > micros(190) && takes < micros(210), "{takes}");
        }
        assert!(estimates.at(slow).class_for(1).quantile() > micros(300), "a slow device is slow again");
        for _ in 0..4 {
            estimates.on_mut(0).observe(at(1), 1, micros(50), Duration::ZERO);
        }
        assert_eq!(estimates.planned().class_for(1).quantile(), micros(50), "batches are measured again");
    }
}
