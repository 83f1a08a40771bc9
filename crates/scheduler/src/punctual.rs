//! `punctual`: deferred where waiting pays, eager where it doesn't.
//!
//! It adds three things to the candidates and devices of `Matching` (`windowed.rs`). A growing candidate may start
//! early on a device that nobody else will need before it is ready, once waiting for company no longer pays
//! (`Patience`); with `thrift` only in bad times, because in good times fewer and larger batches keep devices free.
//! When a candidate had to wait for a device, so that its first requests leave no time for a large batch, they are
//! given up for as much efficiency as the times demand and devices need to keep up (`Demand`). And it changes its rule
//! when another one would lose fewer requests (`rehearsal.rs`).
//!
//! Where a model's times depend on the input, its batches start at once, and `Uneven` says who goes together.

use crate::batch_rule::{BatchRule, Keep};
use crate::batch_times::{BatchTimes, Class};
use crate::config::Config;
use crate::demand::Demand;
use crate::early_cost::EarlyCost;
use crate::heap::Heap;
use crate::patience::Patience;
use crate::pipelines::CallPlace;
use crate::policy::{Batch, Fact, Next, Policy, Started, View};
use crate::queue::{Candidate, Opening, Place, Queued};
use crate::table::{anew, grown};
use crate::uneven::Uneven;
use crate::windowed::{LEAD, Matching, Outlook, Standing, Start};
use base::{DeviceId, Duration, ModelId, RequestId, Timestamp};
use std::ops::Range;

/// From this part of bad requests on, first requests are given up for the best batch size rather than for most of its
/// efficiency.
const HARD_TIMES: f64 = 0.03;
/// How much of the best efficiency is kept before.
const EFFICIENCY: f64 = 0.9;
/// No more of it than devices need to keep up, and a tenth more than that, so that what is late is made up for.
const KEEPS_UP: f64 = 1.1;
/// How far ahead it is counted who will need a device.
const FORESIGHT: usize = 16;
/// Where there are more devices than candidates, batches start early only as far as devices would be busy for no more
/// than this part of the time with what comes if all batches were so small. What comes, not what devices did lately:
/// small batches make themselves usual, and devices that are full of them stay full.
const FULL_HOUSE: f64 = 0.93;
/// Devices that would be busy for less than this part of the time with what comes, in batches of the best size, mostly
/// idle.
const MOSTLY_IDLE: f64 = 0.5;
/// Batches are ready early, so that they find a device, only as far as devices would be busy for no more than this part
/// of the time if all had so much room left, or so many rows fewer.
const FULLER_HOUSE: f64 = 1.15;
/// Finer differences than this change nothing.
const LOAD_STEPS: f64 = 128.0;
/// How many candidates are looked at for an early start.
const EARLY_SEARCH: usize = 4;
/// A patient candidate is ready no earlier than by this part of the objective before it must start.
const MOST_LEAD: f64 = 0.25;

/// What a growing candidate that may start early is judged by.
#[derive(Clone, Copy, PartialEq, Debug)]
struct EarlyStart {
    /// From when on it may.
    early_at: Timestamp,
    ready_at: Timestamp,
    latest: Timestamp,
    /// When it is likely to be ready with those that come.
    full_at: Timestamp,
    /// Whether a device that starts it now would be back too late for a request that comes next.
    tight: bool,
    /// Whether its requests came one by one: calls of a pipeline are a burst themselves.
    alone: bool,
    /// What a row would take, in thousandths of what one takes in the best batch.
    strain: u32,
}

#[derive(Clone, Debug, Default)]
struct PunctualModel {
    patience: Patience,
    /// What its last request had.
    objective: Duration,
    /// While its candidate is in `early` or `willing`.
    early_start: Option<EarlyStart>,
    /// In which state of the devices it couldn't start early.
    refused_in: Option<DeviceState>,
}

/// What an early start of a candidate that stays as it is depends on. While this is the same, who couldn't start early
/// still can't.
#[derive(Clone, Copy, PartialEq, Debug)]
struct DeviceState {
    /// Counts devices that are hungry again.
    hungry: u64,
    /// Counts whatever relieves devices.
    relieved: u64,
    /// For which part of the time devices would be busy with batches of the best size, in steps of one in
    /// [`LOAD_STEPS`], once that is known.
    load: Option<u32>,
    /// How many devices aren't slower than their kind.
    quick: usize,
    /// Whether there are many more candidates than devices.
    crowded: bool,
}

impl DeviceState {
    fn load(self) -> f64 {
        f64::from(self.load.unwrap_or(0)) / LOAD_STEPS
    }

    fn mostly_idle(self) -> bool {
        self.load.is_some() && self.load() < MOSTLY_IDLE
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Punctual {
    rule: BatchRule,
    matching: Matching,
    models: Vec<PunctualModel>,
    /// Growing candidates that may start early from some time on.
    early: Heap,
    /// Those that may now, by when they must start.
    willing: Heap,
    /// In which state of the devices none of these that are looked at could.
    nobody_in: Option<DeviceState>,
    demand: Demand,
    early_cost: EarlyCost,
    uneven: Uneven,
    members: Vec<Queued>,
    skipped: Vec<RequestId>,
}

impl Punctual {
    pub fn new(config: &Config) -> Self {
        Self { matching: Matching::new(config), ..Self::default() }
    }

    // ---- what comes ----

    /// A request with a deadline is queued. Not inlined: the registers that it needs would be saved for every fact.
    #[inline(never)]
    fn came(&mut self, view: &View<'_>, model: ModelId, place: Place, queued: &Queued) {
        let patience = &mut self.models[model.index()].patience;
        let objective = place.deadline_at.since(queued.arrived_at);
        // Requests whose batch came to nothing come back with the time of their first arrival.
        if patience.last_at().is_some_and(|last_at| last_at > queued.arrived_at) {
            return;
        }
        patience.arrived(queued.arrived_at, objective);
        self.models[model.index()].objective = objective;
        let times = view.ledger.model(model).estimates.planned();
        let target = self.matching.target(view, times, model, objective);
        let row = times.class_for(target).least_quantile().as_secs_f64() / f64::from(target);
        // Models that are on some devices only count as if these were all: rather too much is asked than too little.
        let devices = view.places_of(model);
        self.demand.came(queued.arrived_at, row * f64::from(queued.rows) / devices as f64);
    }

    /// For which part of the time devices would be busy with batches of the best size, once that is known. Who is
    /// overdue does nothing for it.
    fn load(&self, view: &View<'_>) -> Option<f64> {
        let (devices, mut overdue) = (view.ledger.quick_count(), 0);
        view.ledger.busy.any_until(view.now, |at, _| {
            overdue += usize::from(at < view.now);
            false
        });
        let there = devices.saturating_sub(overdue).max(1);
        self.demand.load().map(|load| load * devices as f64 / there as f64)
    }

    // ---- when a candidate is ready, and from when on it may start early ----

    /// Brings the candidates of marked models up to date, and notices those that time has made ready, or willing to
    /// start early.
    fn settle(&mut self, view: &View<'_>) {
        while let Some(model) = self.matching.next_changed(view) {
            let (standing, early_start) = self.standing(view, model);
            self.stand(model, standing, early_start);
        }
        while let Some((model, standing)) = self.matching.next_ripe(view.now) {
            self.stand(model, standing, None);
        }
        while let Some((_, index)) = self.early.first().filter(|&(early_at, _)| early_at <= view.now) {
            self.early.remove(index);
            let early_start = self.models[index].early_start.expect("who may start early says why");
            self.willing.set(index, early_start.latest);
            self.nobody_in = None;
        }
    }

    /// What has become of a model's candidate.
    fn standing(&self, view: &View<'_>, model: ModelId) -> (Standing, Option<EarlyStart>) {
        let outlook = match self.matching.outlook(view, model) {
            Ok(outlook) => outlook,
            Err(standing) => return (standing, None),
        };
        let call = view.pipelines.call(outlook.first.id);
        let differ = outlook.there.estimates.distribution().is_some();
        let (start, patient) = match call {
            _ if differ => (Start::AtOnce, false),
            Some(CallPlace { follows: true, .. }) => {
                (Start::At(view.pipelines.gathered_at(view.now, &outlook.first, outlook.takes)), false)
            }
            _ => (self.rule.start, self.rule.patient),
        };
        let mut ready_at = self.matching.ready_at(view.now, &outlook, start);
        if patient {
            ready_at = ready_at.min(self.ready_before(view, &outlook));
        }
        let patience = &self.models[model.index()].patience;
        let wait = patience.wait(outlook.rows, outlook.there.estimates.planned().fixed());
        let early_at = (patience.last_at().unwrap_or(view.now) + wait).max(view.now);
        let standing = self.matching.in_turn(view, &outlook, ready_at, early_at);
        let early_start = match standing {
            Standing::Growing { ready_at, .. } if patient && early_at < ready_at => {
                Some(self.early_start(view, (&outlook, call), wait, early_at..ready_at))
            }
            Standing::None | Standing::Growing { .. } | Standing::Ready(_) => None,
        };
        (standing, early_start)
    }

    /// What speaks for an early start of a candidate, that may from such a silence on.
    fn early_start(
        &self,
        view: &View<'_>,
        (outlook, call): (&Outlook<'_>, Option<CallPlace>),
        silence: Duration,
        early: Range<Timestamp>,
    ) -> EarlyStart {
        let Range { start: early_at, end: ready_at } = early;
        let &Outlook { model, there, rows, takes, with_one_more, latest, .. } = outlook;
        // Each request that comes makes it ready earlier, by what one more row takes.
        let chance = self.models[model.index()].patience.chance_after(silence);
        let pull = chance * (with_one_more - takes).as_nanos() as f64;
        let full_at = early_at + ready_at.since(early_at).mul_f64(1.0 / (1.0 + pull));
        // Calls that go on leave their devices to those that follow, and not to whoever comes next.
        let goes_on = call.is_some_and(|call| call.goes_on);
        let tight = !goes_on && takes + there.estimates.planned().smallest() > outlook.objective();
        let target = self.matching.target(view, there.estimates.planned(), model, outlook.objective());
        let best = there.estimates.planned().class_for(target).least_quantile().as_nanos() as f64 / f64::from(target);
        let strain = (1e3 * takes.as_nanos() as f64 / f64::from(rows) / best.max(1.0)) as u32;
        EarlyStart { early_at, ready_at, latest, full_at, tight, alone: call.is_none(), strain }
    }

    /// When a patient candidate is ready so that it finds a device: as much earlier than it must start as others may
    /// come before it. Rows that its size has room for are run for nothing, which devices must have time for.
    fn ready_before(&self, view: &View<'_>, outlook: &Outlook<'_>) -> Timestamp {
        let &Outlook { model, there, rows, .. } = outlook;
        let room = f64::from(there.estimates.planned().class_for(rows).batch) / f64::from(rows);
        if self.demand.load().unwrap_or(0.0) * room > FULLER_HOUSE || !self.early_pays() {
            return Timestamp::NEVER;
        }
        outlook.latest - outlook.delay - self.lead(view, model, outlook.objective())
    }

    /// By how much earlier than it must start a candidate is ready.
    fn lead(&self, view: &View<'_>, model: ModelId, objective: Duration) -> Duration {
        let lead = self.matching.lead(view, model).mul_f64(self.used_by_others(view, model));
        lead.min(objective.mul_f64(MOST_LEAD))
    }

    /// A batch starts: learns what rows would take if all batches were ready so early, over what they take otherwise.
    fn started(&mut self, view: &View<'_>, started: &Started) {
        let PunctualModel { patience, objective, .. } = &self.models[started.model.index()];
        let times = view.ledger.model(started.model).estimates.planned();
        let lead = self.lead(view, started.model, *objective);
        let come = (patience.chance_after(Duration::ZERO) * lead.as_nanos() as f64) as u32;
        let (less, more) = if self.early_pays() {
            let target = self.matching.target(view, times, started.model, *objective);
            (started.rows, (started.rows + come).min(target).max(started.rows))
        } else {
            (started.rows.saturating_sub(come).max(1), started.rows)
        };
        let each = |rows: u32| times.class_for(rows).least_quantile().as_nanos() as f64 / f64::from(rows);
        self.early_cost.started(started.expected, each(less) / each(more).max(1.0));
    }

    /// Whether devices have time for what it costs if all batches are ready early.
    fn early_pays(&self) -> bool {
        self.demand.load().unwrap_or(0.0) * self.early_cost.strain() <= FULLER_HOUSE
    }

    /// The part of the devices that other models use: a model alone finds the device that its last batch leaves, or the
    /// next one, unless devices are busy all the time. Where they mostly idle, a burst is better gathered than met
    /// half.
    fn used_by_others(&self, view: &View<'_>, model: ModelId) -> f64 {
        let own = self.matching.devices_used(view, model);
        let busy = (2.0 * self.demand.load().unwrap_or(0.0) - 1.0).clamp(0.0, 1.0);
        (1.0 - own / view.ledger.quick_count().max(1) as f64).max(busy / LEAD)
    }

    /// Puts a model's candidate where it belongs.
    fn stand(&mut self, model: ModelId, standing: Standing, early_start: Option<EarlyStart>) {
        let index = model.index();
        let before = std::mem::replace(&mut self.models[index].early_start, early_start);
        if !self.matching.stand(model, standing) && before == early_start {
            return;
        }
        if before.is_some() && (early_start.is_none() || !self.early.contains(index)) {
            let _ = self.early.remove(index) || self.willing.remove(index);
            (self.models[index].refused_in, self.nobody_in) = (None, None);
        }
        if let Some(early_start) = early_start {
            self.early.set(index, early_start.early_at);
        }
    }

    // ---- early starts ----

    /// A growing candidate that should start at once on an idle device, because waiting doesn't pay and nobody else
    /// will need the device until it is ready.
    fn early(&mut self, view: &View<'_>) -> Option<(ModelId, Timestamp, DeviceId)> {
        if self.willing.is_empty() || view.hungry.is_empty() || self.matching.spares() {
            return None;
        }
        let state = self.device_state(view);
        if self.nobody_in == Some(state) {
            return None;
        }
        let mut nobody = true;
        for (latest, index) in self.willing.firsts::<EARLY_SEARCH>() {
            if self.may_start_early(view, index, state) {
                let model = ModelId(index as u32);
                return Some((model, latest, quick_device(view, model)?));
            }
            nobody &= self.models[index].refused_in == Some(state);
        }
        self.nobody_in = nobody.then_some(state);
        None
    }

    fn device_state(&self, view: &View<'_>) -> DeviceState {
        let quick = view.ledger.quick_count();
        DeviceState {
            hungry: view.hungry.revision(),
            relieved: self.matching.relieved,
            load: self.load(view).map(|load| (load * LOAD_STEPS) as u32),
            quick,
            // With many more candidates than devices a batch that waits finds no device later, and starting is better.
            crowded: 4 * self.matching.growing.len() >= 3 * quick,
        }
    }

    /// Whether a growing candidate has a hungry device that nobody else will need.
    fn may_start_early(&mut self, view: &View<'_>, index: usize, state: DeviceState) -> bool {
        let PunctualModel { early_start: Some(early_start), refused_in, .. } = self.models[index] else { return false };
        let may = || quick_device(view, ModelId(index as u32)).is_some() && self.have_time(view, &early_start, state);
        if refused_in == Some(state) {
            debug_assert!(!may(), "an early start was missed");
            return false;
        }
        let may = may();
        self.models[index].refused_in = (!may).then_some(state);
        may
    }

    /// Whether devices have time for a batch as small as a candidate is, and are enough for those that come before it
    /// is full.
    fn have_time(&self, view: &View<'_>, early_start: &EarlyStart, state: DeviceState) -> bool {
        if !state.crowded && state.load() * f64::from(early_start.strain) > 1e3 * FULL_HOUSE {
            return false;
        }
        // Where objectives are tight, one more device is kept for whoever comes next, and where devices mostly idle:
        // that costs nothing, and a burst needs it.
        let kept = usize::from(early_start.tight || (early_start.alone && state.quick > 1 && state.mostly_idle()));
        // It is itself among those that will need a device soon.
        let needed = (self.matching.growing.len() + kept).min(FORESIGHT + 1);
        view.quick_hungry() >= needed || self.enough(view, early_start, kept)
    }

    /// Whether devices that are hungry now, or free before a candidate is likely to be full, are enough for all that
    /// will be ready before it would be.
    fn enough(&self, view: &View<'_>, early_start: &EarlyStart, kept: usize) -> bool {
        let mut soon = 0;
        self.matching.growing.any_until(early_start.ready_at, |_, _| {
            soon += 1;
            soon == FORESIGHT
        });
        let mut missing = (soon + kept).saturating_sub(view.quick_hungry());
        // Nobody knows when a device that is overdue will be free; those that are fed ahead are among the hungry
        // already.
        missing == 0
            || view.ledger.busy.any_until(early_start.full_at, |at, device| {
                missing -= usize::from(at >= view.now && !view.hungry.contains(DeviceId(device as u32)));
                missing == 0
            })
    }

    // ---- whom to give up ----

    /// The batch that a ready candidate has become on a device that has time for it.
    fn form(&mut self, view: &View<'_>, (model, device): (ModelId, DeviceId), opening: Opening) -> Option<Candidate> {
        let (queue, times) = (view.queues.of(model), view.ledger.times(model, device));
        if self.rule.keep == Keep::Full {
            self.skipped.clear();
            return queue.candidate(times, opening, &mut self.members);
        }
        let floor = if view.gives_up_nobody(device) { 0 } else { self.floor(view, times, model) };
        queue.window(times, opening, floor, &mut self.members, &mut self.skipped)
    }

    /// For which part of the time that they have left devices would be busy with a model's queued requests, in batches
    /// of that size.
    fn burst(&self, view: &View<'_>, model: ModelId, best: &Class) -> f64 {
        let queue = view.queues.of(model);
        let left = queue.last_deadline().map_or(Duration::ZERO, |deadline_at| deadline_at.since(view.now));
        let batches = queue.rows() as f64 / f64::from(best.batch);
        let devices = self.matching.devices_used(view, model).max(1.0);
        batches * best.busy_mean().as_secs_f64() / devices / left.as_secs_f64().max(1e-9)
    }

    /// From how many rows on a batch is large enough for its first request to be kept.
    fn floor(&self, view: &View<'_>, times: &BatchTimes, model: ModelId) -> u32 {
        // With another device at hand nobody has to be given up: what no longer fits goes there.
        if view.ledger.quick_count() > view.ledger.busy.len() + 1 {
            return 0;
        }
        let Some((deadline_at, first)) = view.queues.of(model).first() else { return 0 };
        let target = self.matching.target(view, times, model, deadline_at.since(first.arrived_at));
        let hardship = (self.matching.pressure.bad() / HARD_TIMES).min(1.0);
        let nearly = EFFICIENCY + (1.0 - EFFICIENCY) * hardship;
        // Before anything is known devices count as short, and in a burst they are, whatever they mostly are.
        let load = self.load(view).unwrap_or(1.0).max(self.burst(view, model, times.class_for(target)));
        times.nearly_as_good(target, nearly.min(KEEPS_UP * load))
    }
}

/// A hungry device that holds a model and isn't slower than its kind.
fn quick_device(view: &View<'_>, model: ModelId) -> Option<DeviceId> {
    view.queues.devices_of(model).common(view.hungry).find(|&device| !view.ledger.slow.contains(device))
}

impl Policy for Punctual {
    fn learn(&mut self, view: &View<'_>, fact: Fact) {
        match fact {
            Fact::ModelAdded(model) => {
                self.matching.add_model(model);
                grown(&mut self.models, model.index());
                self.stand(model, Standing::None, None);
                anew(&mut self.models, model.index());
                return;
            }
            Fact::Loaded(model, _) => (self.models[model.index()].refused_in, self.nobody_in) = (None, None),
            Fact::Queued { model, place, queued, .. } if place.deadline_at != Timestamp::NEVER => {
                self.came(view, model, place, &queued);
            }
            Fact::Started(started) if !view.ledger.slow.contains(started.device) => self.started(view, &started),
            Fact::Adopted(rule) => {
                self.rule = rule;
                self.matching.mark_all(view);
            }
            _ => {}
        }
        self.matching.learn(view, fact);
    }

    fn next(&mut self, view: &View<'_>) -> Option<Next> {
        self.settle(view);
        if let Some(device) = self.matching.device_for_ready(view) {
            return Some(Next::Feed(device));
        }
        let at_last_chance = self.matching.at_last_chance(view).map(|(model, device)| (model, view.now, device));
        let (model, latest, device) = at_last_chance.or_else(|| self.early(view))?;
        self.stand(model, self.matching.ready(model, latest), None);
        Some(Next::Feed(device))
    }

    fn next_at(&self) -> Option<Timestamp> {
        let early = self.early.first().map(|(at, _)| at);
        [self.matching.next_at(), early].into_iter().flatten().min()
    }

    fn next_batch(&mut self, view: &View<'_>, device: DeviceId, opening: Opening) -> Option<Batch> {
        self.settle(view);
        loop {
            let (key, model) = self.matching.first_on(view, device)?;
            let times = view.ledger.times(model, device);
            let spread = view.ledger.model(model).estimates.distribution();
            if let Some(spread) = spread {
                let (queue, start_at, aim) = (view.queues.of(model), opening.with(1), self.rule.aim());
                match self.uneven.form((times, spread), queue, start_at, aim, &mut self.members) {
                    Some(candidate) => return Some(Batch::of(model, candidate, &self.members)),
                    None => _ = self.matching.stand(model, Standing::None),
                }
                continue;
            }
            let candidate = self.form(view, (model, device), opening);
            if let Some(candidate) = self.matching.confirm((view, device), (key, model), candidate) {
                return Some(Batch::without(model, candidate, &self.members, &self.skipped));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_the_load_is_known_devices_do_not_count_as_idle() {
        let state = |load| DeviceState { hungry: 0, relieved: 0, load, quick: 2, crowded: false };
        assert!(!state(None).mostly_idle(), "nobody is kept waiting for a burst that nobody knows of");
        assert!(state(Some(10)).mostly_idle() && !state(Some(100)).mostly_idle());
    }

    #[test]
    fn a_lost_device_is_another_state() {
        let state = |quick| DeviceState { hungry: 0, relieved: 0, load: None, quick, crowded: true };
        assert_ne!(state(2), state(1), "who was refused for the device that is gone may start early");
    }
}
