//! Policies that choose when a batch may start, then give ready batches to devices in the order of their urgency.
//!
//! Each model has one candidate: the batch that its queue makes now. It grows until it is *ready*; from then on it goes
//! to the first device that is free, the candidate that must start soonest first. A device that is free takes the
//! lowest number, so that devices with high numbers stay idle when there is little to do (Symphony, sections 3.1 and
//! 3.2).
//!
//! `Matching` keeps the candidates and finds devices for them. `Windowed` is `deferred`, `eager` and `timeout`, which
//! differ in when a candidate is ready (`Start`). `punctual` stands on the same `Matching`, in a file of its own.
//!
//! Facts only mark their model; candidates are computed once for each event, when they are asked for.

use crate::batch_times::BatchTimes;
use crate::config::{Config, Delay, Gather, PolicyKind};
use crate::heap::Heap;
use crate::last_chances::LastChances;
use crate::ledger::Model;
use crate::policy::{Batch, Fact, Next, Policy, View};
use crate::pressure::Pressure;
use crate::queue::{Candidate, Opening, Queued};
use crate::ready_models::ReadyModels;
use crate::table::{Marked, anew, grown};
use crate::usage::Usage;
use base::{DeviceId, Duration, ModelId, RequestId, Timestamp};

/// Below this part of bad requests times are good.
const GOOD_TIMES: f64 = 0.001;
/// A candidate that a device should be free for in time is ready so many times before it must start as a device becomes
/// free on average: at the last instant all of them may be busy. With 4, 6 and 8 times the worst model of the A100's
/// zoo loses 1.2, 0.8 and 0.6 % at 97 % of what is possible, with none 2.5 %; single models need none of it.
pub(crate) const LEAD: f64 = 8.0;

/// Of a short objective no more than one part in so many is kept for a wakeup that is late.
const LATE_SHARE: u64 = 16;

/// From when on a batch may have a device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Start {
    /// As soon as there is a request.
    AtOnce,
    /// After this part of its first request's objective.
    After(f64),
    /// When one more request would no longer fit.
    Late,
    /// Then: when the calls are there that come together with its first one.
    At(Timestamp),
}

/// Ready candidates go by whether they aren't entitled to go first, then by when they have their turn, or must start
/// where there are no turns.
type Rank = (bool, Timestamp);

/// Where a model's candidate is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Standing {
    /// There is none.
    #[default]
    None,
    /// In `growing`.
    Growing { ready_at: Timestamp, latest: Timestamp },
    /// In `ready`.
    Ready(Rank),
}

/// A candidate that may still grow, before it is known which device it will be for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outlook<'a> {
    pub model: ModelId,
    pub there: &'a Model,
    pub deadline_at: Timestamp,
    pub first: Queued,
    pub rows: u32,
    /// What it would take, and with one more row.
    pub takes: Duration,
    pub with_one_more: Duration,
    /// How long its order and its inputs are on their way.
    pub delay: Duration,
    /// When it must start.
    pub latest: Timestamp,
}

impl Outlook<'_> {
    /// What its first request has.
    pub fn objective(&self) -> Duration {
        self.deadline_at.since(self.first.arrived_at)
    }
}

#[derive(Clone, Debug, Default)]
struct MatchedModel {
    standing: Standing,
    /// Whether it goes before others.
    entitled: bool,
    /// Where it is let in by turns: the size of its batches, and when it has its turn.
    turn_rows: Option<u32>,
    turn_at: Option<Timestamp>,
    /// By how much it may start later than that.
    turn_delay: Duration,
}

/// The candidates of all models, and the devices for those that are ready.
#[derive(Clone, Debug, Default)]
pub(crate) struct Matching {
    /// Whether batches are left to grow in good times, so that devices stay idle.
    thrift: bool,
    delay: Delay,
    /// See [`Config::late_wakeup`].
    late_wakeup: Duration,
    models: Vec<MatchedModel>,
    /// Models whose candidate must be computed.
    changed: Marked,
    /// Models whose candidate is ready, by when it must start.
    ready: ReadyModels<Rank>,
    /// The hungry devices of which none can run a ready candidate, by their revision; `None` once a candidate or a
    /// place has come.
    stuck: Option<u64>,
    /// Candidates that are left to grow, by when they are ready.
    pub growing: Heap,
    /// How often one of them stopped to grow, or was found to be ready later, or an execution ended: another number
    /// whenever there may be fewer of them before some instant, or more devices.
    pub relieved: u64,
    /// When devices that nobody plans with could serve what is queued at the latest.
    last_chances: LastChances,
    usage: Usage,
    pub pressure: Pressure,
    /// What a batch takes on average.
    batch_time: Duration,
}

impl Matching {
    pub fn new(config: &Config) -> Self {
        let &Config { thrift, delay, late_wakeup, .. } = config;
        Self { thrift, delay, late_wakeup, ..Self::default() }
    }

    /// Takes a fact in. Inlined: a request makes several, and each would be looked at twice.
    #[inline(always)]
    pub fn learn(&mut self, view: &View<'_>, fact: Fact) {
        match fact {
            Fact::ModelAdded(model) => self.add_model(model),
            Fact::Queued { model, place, again, .. } if place.deadline_at != Timestamp::NEVER => {
                // Who comes back takes no turn.
                if !again {
                    self.models[model.index()].turn_at = view.shares.turn_at(model);
                }
                self.changed.add(model);
            }
            Fact::Dequeued(model, place) if place.deadline_at != Timestamp::NEVER => self.changed.add(model),
            Fact::Loaded(model, _) => {
                self.changed.add(model);
                self.stuck = None;
            }
            Fact::Unloaded(model, _) | Fact::Gathered(model) => self.changed.add(model),
            Fact::Started(started) => {
                // Nobody plans with a device that is slow.
                if !view.ledger.slow.contains(started.device) {
                    self.batch_time = (self.batch_time * 15 + started.expected) / 16;
                    self.usage.started(started.model, started.expected);
                }
                self.models[started.model.index()].turn_at = view.shares.turn_at(started.model);
            }
            // What its batches are expected to take has changed, and with it when they must start.
            Fact::Ended(ended) => {
                self.changed.add(ended.model);
                self.relieved += 1;
            }
            Fact::DeviceFreed(_) => self.relieved += 1,
            Fact::Settled { in_time } => self.pressure.note(view.now, in_time),
            Fact::Shared => (0..self.models.len()).for_each(|model| self.entitle(view, ModelId(model as u32))),
            _ => {}
        }
    }

    /// A model has come, which may have the number of one that is gone.
    pub fn add_model(&mut self, model: ModelId) {
        self.usage.add_model(model);
        grown(&mut self.models, model.index());
        self.stand(model, Standing::None);
        anew(&mut self.models, model.index());
    }

    /// Every candidate must be computed. Some numbers no model has had yet.
    pub fn mark_all(&mut self, view: &View<'_>) {
        let there = |&model: &usize| view.ledger.models.get(model).is_some_and(Option::is_some);
        (0..self.models.len()).filter(there).for_each(|model| self.changed.add(ModelId(model as u32)));
    }

    fn entitle(&mut self, view: &View<'_>, model: ModelId) {
        let (shares, entry) = (view.shares, &mut self.models[model.index()]);
        let entitled = shares.is_entitled(model);
        entry.turn_delay = shares.delays(model);
        (entry.turn_rows, entry.turn_at) = (shares.batch_of(model), shares.turn_at(model));
        if std::mem::replace(&mut entry.entitled, entitled) != entitled {
            self.changed.add(model);
        }
    }

    /// How many of the devices a model uses when all are busy.
    pub fn devices_used(&self, view: &View<'_>, model: ModelId) -> f64 {
        self.usage.devices_of(model, view.ledger.quick_count(), self.models.len())
    }

    /// The rows that a batch of a model would have if its batches followed each other evenly on the devices that it
    /// uses (Symphony, section 3.3, equation 1).
    pub fn target(&self, view: &View<'_>, times: &BatchTimes, model: ModelId, objective: Duration) -> u32 {
        if let Some(rows) = self.models[model.index()].turn_rows {
            return rows;
        }
        let devices = self.devices_used(view, model);
        times.largest_within(objective.mul_f64(devices / (devices + 1.0))).max(1)
    }

    /// In how much time enough devices become free for a candidate that all others may come before.
    pub fn lead(&self, view: &View<'_>, model: ModelId) -> Duration {
        (self.batch_time / view.places_of(model) as u64).mul_f64(LEAD)
    }

    /// Whether devices are left idle for larger batches later.
    pub fn spares(&self) -> bool {
        self.thrift && self.pressure.bad() < GOOD_TIMES
    }

    // ---- when a candidate is ready ----

    /// A model whose candidate must be computed.
    pub fn next_changed(&mut self, view: &View<'_>) -> Option<ModelId> {
        let model = self.changed.pop()?;
        if !view.ledger.is_uniform() {
            self.last_chances.update(view.ledger, view.queues, self.delay, model, view.now);
            // What came may be for a device that has no time for the others.
            self.stuck = None;
        }
        Some(model)
    }

    /// When something is to be done for a candidate if nothing happens before.
    pub fn next_at(&self) -> Option<Timestamp> {
        let ready = self.growing.first().map(|(at, _)| at);
        [ready, self.last_chances.next_at()].into_iter().flatten().min()
    }

    /// A growing candidate that time has made ready.
    pub fn next_ripe(&self, now: Timestamp) -> Option<(ModelId, Standing)> {
        let (_, index) = self.growing.first().filter(|&(ready_at, _)| ready_at <= now)?;
        let Standing::Growing { latest, .. } = self.models[index].standing else {
            unreachable!("only growing candidates are among the growing")
        };
        let model = ModelId(index as u32);
        Some((model, self.ready(model, latest)))
    }

    /// What a model's queue makes now; where it is if that can't grow. Inlined, as `in_turn` is: computed anew with
    /// every request.
    #[inline(always)]
    pub fn outlook<'a>(&self, view: &View<'a>, model: ModelId) -> Result<Outlook<'a>, Standing> {
        let queue = view.queues.of(model);
        let (deadline_at, first) = queue.first().ok_or(Standing::None)?;
        if view.queues.devices_of(model).is_empty() {
            return Err(Standing::None);
        }
        let there = view.ledger.model(model);
        let queued = u32::try_from(queue.rows()).unwrap_or(u32::MAX);
        let most = there.estimates.planned().best_batch().max(first.rows);
        let rows = queued.min(most);
        let first_within = (first.rows, deadline_at.since(view.now + self.delay.of(first.rows)));
        let takes = view.ledger.longest(there, rows, first_within);
        let (delay, latest) = (self.delay.of(rows), deadline_at - takes);
        // Not all of them fit, or no more would: it gets no better.
        if rows >= most || view.now + delay > latest {
            return Err(self.ready(model, latest));
        }
        let with_one_more = view.ledger.longest(there, rows + 1, first_within);
        Ok(Outlook { model, there, deadline_at, first, rows, takes, with_one_more, delay, latest })
    }

    /// When a candidate is ready that starts so.
    pub fn ready_at(&self, now: Timestamp, outlook: &Outlook<'_>, start: Start) -> Timestamp {
        let &Outlook { deadline_at, first, rows, takes, with_one_more, delay, latest, .. } = outlook;
        let ready_at = match start {
            Start::AtOnce if !self.spares() => now,
            Start::At(instant) => instant,
            Start::After(part) => first.arrived_at + outlook.objective().mul_f64(part) - delay,
            // A larger batch that seems to take less: what is known of this size is of a bad moment. Waiting would end
            // behind `latest`; running it shows what it takes.
            Start::AtOnce | Start::Late if with_one_more < takes => now,
            Start::AtOnce | Start::Late => deadline_at - with_one_more - self.delay.of(rows + 1),
        };
        // Who is woken at its last instant has missed it.
        let late = self.late_wakeup.min(outlook.objective() / LATE_SHARE);
        ready_at.min(latest - delay - late)
    }

    /// Where a candidate is that would be ready then: with shares of device time perhaps earlier. At its turn a device
    /// is kept for it, and waits for company no longer than until the second instant.
    #[inline(always)]
    pub fn in_turn(&self, view: &View<'_>, outlook: &Outlook<'_>, ready_at: Timestamp, until: Timestamp) -> Standing {
        let &Outlook { model, delay, latest, .. } = outlook;
        let entry = &self.models[model.index()];
        let ready_at = if entry.entitled {
            // Who goes first is ready so early that a device will be free in time.
            ready_at.min(latest - delay - self.lead(view, model))
        } else if let Some(turn_at) = entry.turn_at {
            ready_at.min(turn_at.max(until.min(latest - entry.turn_delay)) - delay)
        } else {
            ready_at
        };
        if ready_at <= view.now { self.ready(model, latest) } else { Standing::Growing { ready_at, latest } }
    }

    /// A candidate that is ready.
    pub fn ready(&self, model: ModelId, latest: Timestamp) -> Standing {
        let entry = &self.models[model.index()];
        Standing::Ready((!entry.entitled, entry.turn_at.unwrap_or(latest)))
    }

    /// Puts a model's candidate where it belongs; whether that is elsewhere than before.
    #[inline]
    pub fn stand(&mut self, model: ModelId, standing: Standing) -> bool {
        let index = model.index();
        let before = std::mem::replace(&mut self.models[index].standing, standing);
        if before == standing {
            return false;
        }
        match standing {
            Standing::Growing { ready_at, .. } => {
                self.relieved += u64::from(matches!(before, Standing::Growing { ready_at: at, .. } if at < ready_at));
                self.growing.set(index, ready_at);
            }
            Standing::None | Standing::Ready(_) => self.relieved += u64::from(self.growing.remove(index)),
        }
        match (before, standing) {
            (_, Standing::Ready(rank)) => {
                self.ready.set(model, Some(rank));
                self.stuck = None;
            }
            (Standing::Ready(_), _) => self.ready.set(model, None),
            _ => {}
        }
        true
    }

    // ---- devices for those that are ready ----

    /// The device for the most urgent ready candidate that a hungry one can run: of those that are free when an order
    /// that leaves now arrives the lowest number, else the one that is free soonest.
    pub fn device_for_ready(&mut self, view: &View<'_>) -> Option<DeviceId> {
        if self.ready.is_empty() || self.stuck == Some(view.hungry.revision()) {
            return None;
        }
        let uniform = view.ledger.is_uniform();
        let found = if uniform { self.ready.first_pair(view.queues, view.hungry) } else { self.first_able_pair(view) };
        let Some((model, first)) = found else {
            self.stuck = Some(view.hungry.revision());
            return None;
        };
        if !uniform {
            return Some(first);
        }
        let free_at = |device: DeviceId| view.ledger.device(device).exec.start_at(view.now);
        let in_time = view.now + self.delay.control;
        if free_at(first) <= in_time {
            return Some(first);
        }
        let able = || view.queues.devices_of(model).common(view.hungry);
        able()
            .find(|&device| free_at(device) <= in_time)
            .or_else(|| able().min_by_key(|&device| (free_at(device), device)))
    }

    /// Where devices differ: the most urgent ready candidate that a hungry one has time for, and of these the one that
    /// is free first, is no slower than its kind, and has the lowest number.
    fn first_able_pair(&self, view: &View<'_>) -> Option<(ModelId, DeviceId)> {
        let in_time = view.now + self.delay.control;
        let free_at = |device: DeviceId| view.ledger.device(device).exec.start_at(view.now).max(in_time);
        self.ready.models().find_map(|model| {
            let able = view.queues.devices_of(model).common(view.hungry).filter(|&it| self.is_able(view, model, it));
            let device = able.min_by_key(|&device| (free_at(device), view.ledger.slow.contains(device), device))?;
            Some((model, device))
        })
    }

    /// Whether a device has time for a batch of a model.
    fn is_able(&self, view: &View<'_>, model: ModelId, device: DeviceId) -> bool {
        let there = view.ledger.model(model);
        // Where times depend on the input, they are the same on all devices.
        if there.estimates.distribution().is_some() {
            return true;
        }
        let free_at = view.ledger.device(device).exec.surely_at(view.now);
        let opening = Opening { free_at, now: view.now, delay: self.delay };
        let (queue, times) = (view.queues.of(model), view.ledger.times(model, device));
        queue.window(times, opening, 0, &mut Vec::new(), &mut Vec::new()).is_some()
    }

    /// A growing candidate whose last chance on a device that idles is now.
    pub fn at_last_chance(&mut self, view: &View<'_>) -> Option<(ModelId, DeviceId)> {
        if view.ledger.is_uniform() {
            self.last_chances.clear();
            return None;
        }
        let mut chances = std::mem::take(&mut self.last_chances);
        let able = |model, device| self.is_able(view, model, device);
        let found = chances.next((view.ledger, view.queues, self.delay), view.now, view.hungry, able);
        self.last_chances = chances;
        found
    }

    /// The most urgent ready candidate that a device has time for, and when it should start.
    pub fn first_on(&self, view: &View<'_>, device: DeviceId) -> Option<(Timestamp, ModelId)> {
        let able = |&(_, model): &(Rank, ModelId)| view.ledger.is_uniform() || self.is_able(view, model, device);
        self.ready.on(view.queues, device).find(able).map(|((_, key), model)| (key, model))
    }

    /// The batch that a candidate has become on a device, if it is still the most urgent one.
    pub fn confirm(
        &mut self,
        (view, device): (&View<'_>, DeviceId),
        (key, model): (Timestamp, ModelId),
        candidate: Option<Candidate>,
    ) -> Option<Candidate> {
        // How long a device that differs could still wait says nothing of the others.
        let differs = view.ledger.slow.contains(device) || view.ledger.has_kinds();
        let at_once = self.models[model.index()].turn_at.is_some() || differs;
        let standing = match candidate {
            Some(candidate) if candidate.latest <= key || at_once => {
                return Some(candidate);
            }
            // It has shrunk since, and can wait longer than was thought.
            Some(candidate) => self.ready(model, candidate.latest),
            // Nothing is in time; its requests expire.
            None => Standing::None,
        };
        self.stand(model, standing);
        None
    }
}

/// `deferred`, `eager` and `timeout`.
#[derive(Clone, Debug)]
pub(crate) struct Windowed {
    start: Start,
    /// Whether first requests are given up for batches of the target size, where they had to wait for a device.
    keeps_target: bool,
    matching: Matching,
    members: Vec<Queued>,
    skipped: Vec<RequestId>,
}

impl Windowed {
    pub fn new(config: &Config) -> Self {
        let start = match config.policy {
            PolicyKind::Eager => Start::AtOnce,
            PolicyKind::Timeout => Start::After(config.timeout),
            _ => Start::Late,
        };
        let keeps_target = start == Start::Late && config.gather == Gather::KeepTarget;
        let matching = Matching::new(config);
        Self { start, keeps_target, matching, members: Vec::new(), skipped: Vec::new() }
    }

    /// Brings the candidates of marked models up to date, and notices those that time has made ready.
    fn settle(&mut self, view: &View<'_>) {
        while let Some(model) = self.matching.next_changed(view) {
            let standing = self.standing(view, model);
            self.matching.stand(model, standing);
        }
        while let Some((model, standing)) = self.matching.next_ripe(view.now) {
            self.matching.stand(model, standing);
        }
    }

    /// What has become of a model's candidate.
    fn standing(&self, view: &View<'_>, model: ModelId) -> Standing {
        match self.matching.outlook(view, model) {
            Ok(outlook) => {
                let ready_at = self.matching.ready_at(view.now, &outlook, self.start);
                self.matching.in_turn(view, &outlook, ready_at, view.now)
            }
            Err(standing) => standing,
        }
    }

    /// From how many rows on a batch is large enough for its first request to be kept.
    fn floor(&self, view: &View<'_>, times: &BatchTimes, model: ModelId) -> u32 {
        // With another device at hand nobody has to be given up: what no longer fits goes there.
        if !self.keeps_target || view.ledger.quick_count() > view.ledger.busy.len() + 1 {
            return 0;
        }
        let first = view.queues.of(model).first();
        first.map_or(0, |(deadline_at, first)| {
            self.matching.target(view, times, model, deadline_at.since(first.arrived_at))
        })
    }
}

impl Policy for Windowed {
    fn learn(&mut self, view: &View<'_>, fact: Fact) {
        self.matching.learn(view, fact);
    }

    fn next(&mut self, view: &View<'_>) -> Option<Next> {
        self.settle(view);
        if let Some(device) = self.matching.device_for_ready(view) {
            return Some(Next::Feed(device));
        }
        let (model, device) = self.matching.at_last_chance(view)?;
        self.matching.stand(model, self.matching.ready(model, view.now));
        Some(Next::Feed(device))
    }

    fn next_at(&self) -> Option<Timestamp> {
        self.matching.next_at()
    }

    fn next_batch(&mut self, view: &View<'_>, device: DeviceId, opening: Opening) -> Option<Batch> {
        self.settle(view);
        loop {
            let (key, model) = self.matching.first_on(view, device)?;
            let times = view.ledger.times(model, device);
            let floor = if view.gives_up_nobody(device) { 0 } else { self.floor(view, times, model) };
            let queue = view.queues.of(model);
            let candidate = queue.window(times, opening, floor, &mut self.members, &mut self.skipped);
            if let Some(candidate) = self.matching.confirm((view, device), (key, model), candidate) {
                return Some(Batch::without(model, candidate, &self.members, &self.skipped));
            }
        }
    }
}
