//! Policies that choose when a batch may start, then give ready batches to devices in the order of their urgency.
//!
//! Each model has one candidate: the batch that its queue makes now. It grows until it is *ready*, which is where the
//! policies differ (their `Temper`); from then on it goes to the first device that is free, the candidate that must start
//! soonest first. A device that is free takes the lowest number, so that devices with high numbers stay idle when there is
//! little to do (Symphony, sections 3.1 and 3.2).
//!
//! `punctual` adds three things. A growing candidate may start early on a device that nobody else will need before it is
//! ready, once waiting for company no longer pays (`Patience`); with `thrift` only in bad times, because in good times fewer
//! and larger batches keep devices free. When a candidate had to wait for a device, so that its first requests leave no time
//! for a large batch, they are given up for as much efficiency as the times demand and devices need to keep up (`Demand`). And it
//! changes its temper when another one would lose fewer requests (`rehearsal.rs`).
//!
//! Queues only mark their model; candidates are computed once for each event, when they are asked for.

use crate::bits::DeviceSet;
use crate::board::Board;
use crate::config::{Config, Delay, PolicyKind};
use crate::demand::Demand;
use crate::fair::Shares;
use crate::heap::Heap;
use crate::last_chances::LastChances;
use crate::latency::Latency;
use crate::ledger::Ledger;
use crate::patience::Patience;
use crate::policy::{Batch, Ended, Policy, Started};
use crate::pressure::Pressure;
use crate::queue::{Candidate, Opening, Place, Queued};
use crate::queues::Queues;
use crate::spread::Spread;
use crate::temper::{Keep, Start, Temper};
use crate::uneven::Uneven;
use crate::usage::Usage;
use base::{ActionId, DeviceId, Duration, ModelId, RequestId, Timestamp};

/// Below this part of bad requests times are good, and batches are left to grow.
const GOOD_TIMES: f64 = 0.001;
/// From this part on, first requests are given up for the best batch size rather than for most of its efficiency.
const HARD_TIMES: f64 = 0.03;
/// How much of the best efficiency is kept before.
const EFFICIENCY: f64 = 0.9;
/// No more of it than devices need to keep up, and a tenth more than that, so that what is late is made up for.
const KEEPS_UP: f64 = 1.1;
/// How far ahead it is counted who will need a device.
const FORESIGHT: usize = 64;
/// Where there are more devices than candidates, batches start early only as far as devices would be busy for no more than
/// this part of the time with what comes if all batches were so small. What comes, not what devices did lately: small batches make themselves usual, and devices that are full of them stay
/// full.
const FULL_HOUSE: f64 = 0.93;
/// Batches that aren't full are ready early, so that they find a device, only as far as devices would be busy for no more than this part of the time if all had so much room left.
const FULLER_HOUSE: f64 = 1.15;
/// How fast the use of devices is followed.
const LATELY: Duration = Duration::from_millis(50);
/// How many candidates are looked at for an early start.
const EARLY_SEARCH: usize = 4;
/// A patient candidate is ready so many times before it must start as a device becomes free on average: at the last instant all of them may be busy. With 4, 6 and 8 times the worst
/// model of the A100's zoo loses 1.2, 0.8 and 0.6 % at 97 % of what is possible, with none 2.5 %; single models need none of it.
const LEAD: f64 = 8.0;
/// But no earlier than by this part of the objective.
const MOST_LEAD: f64 = 0.25;

/// Ready candidates go by whether they aren't entitled to go first, then by when they have their turn, or must start where there are no turns.
type Rank = (bool, Timestamp);

/// Where a model's candidate is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Standing {
    /// There is none.
    #[default]
    None,
    /// In `growing`, and if it may start early from some time on, in `early` or `willing`.
    Growing {
        ready_at: Timestamp,
        latest: Timestamp,
        early_at: Option<Timestamp>,
        full_at: Timestamp,
        tight: bool,
        strain: u32,
    },
    /// In the lists of ready ones.
    Ready(Rank),
}

#[derive(Clone, Debug, Default)]
struct ModelEntry {
    standing: Standing,
    /// Whether it is in `changed`.
    changed: bool,
    /// Whether it goes before others.
    entitled: bool,
    /// Where it is let in by turns: the size of its batches, and when it has its turn.
    turn_rows: Option<u32>,
    turn_at: Option<Timestamp>,
    /// By how much it may start later than that.
    turn_delay: Duration,
    patience: Patience,
}

#[derive(Clone, Debug)]
pub(crate) struct Windowed {
    temper: Temper,
    /// Whether gaps between requests and the use of devices are followed, which patience needs.
    learns: bool,
    thrift: bool,
    delay: Delay,
    queues: Queues,
    models: Vec<ModelEntry>,
    /// For each device the last action that it was given, while it runs something.
    busy_with: Vec<Option<ActionId>>,
    /// Models whose candidate must be computed.
    changed: Vec<ModelId>,
    /// Those that aren't slower than their kind.
    device_count: usize,
    /// The others: batches don't count on them.
    slow: DeviceSet,
    /// When these could serve what is queued at the latest.
    last_chances: LastChances,
    /// Models whose candidate is ready, by when it must start.
    ready: Board<Rank>,
    /// The hungry devices of which none can run a ready candidate, by their revision; `None` once a candidate or a place has come.
    stuck: Option<u64>,
    /// Candidates that are left to grow, by when they are ready.
    growing: Heap,
    /// Those of them that may start early from some time on.
    early: Heap,
    /// Those that may now, by when they must start.
    willing: Heap,
    /// Devices that run something, by when they will be free.
    busy: Heap,
    /// The part of the devices that was busy lately.
    in_use: f64,
    in_use_at: Timestamp,
    usage: Usage,
    demand: Demand,
    pressure: Pressure,
    /// What a batch takes on average.
    batch_time: Duration,
    uneven: Uneven,
    members: Vec<Queued>,
    skipped: Vec<RequestId>,
}

impl Windowed {
    pub fn new(config: &Config, temper: Temper) -> Self {
        Self {
            temper,
            learns: config.policy == PolicyKind::Punctual,
            thrift: config.thrift,
            delay: config.delay,
            queues: Queues::with_lead(config.delay.of(1)),
            models: Vec::new(),
            busy_with: Vec::new(),
            changed: Vec::new(),
            device_count: 0,
            slow: DeviceSet::default(),
            last_chances: LastChances::default(),
            ready: Board::default(),
            stuck: None,
            growing: Heap::default(),
            early: Heap::default(),
            willing: Heap::default(),
            busy: Heap::default(),
            in_use: 0.0,
            in_use_at: Timestamp::ZERO,
            usage: Usage::default(),
            demand: Demand::default(),
            pressure: Pressure::default(),
            batch_time: Duration::ZERO,
            uneven: Uneven::default(),
            members: Vec::new(),
            skipped: Vec::new(),
        }
    }

    fn mark(&mut self, model: ModelId) {
        let entry = &mut self.models[model.index()];
        if !std::mem::replace(&mut entry.changed, true) {
            self.changed.push(model);
        }
    }

    /// The rows that a batch of a model would have if its batches followed each other evenly on the devices that it uses
    /// (Symphony, section 3.3, equation 1).
    fn target(&self, latency: &Latency, model: ModelId, first: &Queued, deadline_at: Timestamp) -> u32 {
        if let Some(rows) = self.models[model.index()].turn_rows {
            return rows;
        }
        let devices = self.usage.devices_of(model, self.device_count, self.models.len());
        let objective = deadline_at.since(first.arrived_at);
        latency.largest_within(objective.mul_f64(devices / (devices + 1.0))).max(1)
    }

    /// On how many devices a model is that aren't slower than their kind, at least one.
    fn places_of(&self, model: ModelId) -> usize {
        let devices = self.queues.devices_of(model);
        (devices.len() - self.slow.common(devices).count()).max(1)
    }

    /// In how much time enough devices become free for a candidate that all others may come before.
    fn lead(&self, model: ModelId) -> Duration {
        (self.batch_time / self.places_of(model) as u64).mul_f64(LEAD)
    }

    /// The part of the devices that other models use: a model alone finds the device that its last batch leaves, or the next one.
    fn used_by_others(&self, model: ModelId) -> f64 {
        let own = self.usage.devices_of(model, self.device_count, self.models.len());
        (1.0 - own / self.device_count.max(1) as f64).max(1.0 / LEAD)
    }

    /// A request came. Models that are on some devices only count as if these were all: rather too much is asked than too little.
    fn note_demand(&mut self, latency: &Latency, model: ModelId, deadline_at: Timestamp, queued: &Queued) {
        let target = self.target(latency, model, queued, deadline_at);
        let row = latency.class_for(target).expected().as_secs_f64() / f64::from(target);
        let devices = self.places_of(model);
        self.demand.came(queued.arrived_at, row * f64::from(queued.rows) / devices as f64);
    }

    /// For which part of the time devices would be busy with batches of the best size, once that is known. Who is overdue does nothing for it.
    fn load(&self) -> Option<f64> {
        let mut overdue = 0;
        self.busy.any_until(self.in_use_at, |at, _| {
            overdue += usize::from(at < self.in_use_at);
            false
        });
        let there = self.device_count.saturating_sub(overdue).max(1);
        self.demand.load().map(|load| load * self.device_count as f64 / there as f64)
    }

    /// From how many rows on a batch is large enough for its first request to be kept.
    fn floor(&self, latency: &Latency, model: ModelId, first: &Queued, deadline_at: Timestamp) -> u32 {
        // With another device at hand nobody has to be given up: what no longer fits goes there.
        if self.device_count > self.busy.len() + 1 {
            return 0;
        }
        match self.temper.keep {
            Keep::Nearly => {
                let target = self.target(latency, model, first, deadline_at);
                let hardship = (self.pressure.bad() / HARD_TIMES).min(1.0);
                let nearly = EFFICIENCY + (1.0 - EFFICIENCY) * hardship;
                // Before anything is known devices count as short.
                latency.nearly_as_good(target, nearly.min(KEEPS_UP * self.load().unwrap_or(1.0)))
            }
            Keep::Target => self.target(latency, model, first, deadline_at),
            Keep::First | Keep::Full => 0,
        }
    }

    /// Whether devices are left idle for larger batches later.
    fn spares(&self) -> bool {
        self.thrift && self.pressure.bad() < GOOD_TIMES
    }

    /// Brings the candidates of marked models up to date, and notices those that time has made ready.
    fn settle(&mut self, ledger: &Ledger, now: Timestamp) {
        let part = now.since(self.in_use_at).as_nanos() as f64 / LATELY.as_nanos() as f64;
        self.in_use += part.min(1.0) * (self.busy.len() as f64 / self.device_count.max(1) as f64 - self.in_use);
        self.in_use_at = now;
        while let Some(model) = self.changed.pop() {
            self.models[model.index()].changed = false;
            let standing = self.standing(ledger, model, now);
            self.stand(model, standing);
            self.last_chances.update(ledger, &self.queues, self.delay, model, now);
            if !ledger.is_uniform() {
                // What came may be for a device that has no time for the others.
                self.stuck = None;
            }
        }
        while let Some((_, index)) = self.growing.first().filter(|&(ready_at, _)| ready_at <= now) {
            let Standing::Growing { latest, .. } = self.models[index].standing else {
                unreachable!("only growing candidates are among the growing")
            };
            let model = ModelId(index as u32);
            self.stand(model, self.ready(model, latest));
        }
        while let Some((_, index)) = self.early.first().filter(|&(early_at, _)| early_at <= now) {
            self.early.remove(index);
            if let Standing::Growing { latest, .. } = self.models[index].standing {
                self.willing.set(index, latest);
            }
        }
    }

    /// What has become of a model's candidate.
    fn standing(&self, ledger: &Ledger, model: ModelId, now: Timestamp) -> Standing {
        let queue = self.queues.of(model);
        let Some((deadline_at, first)) = queue.first() else { return Standing::None };
        if self.queues.devices_of(model).is_empty() {
            return Standing::None;
        }
        let there = ledger.model(model);
        let latency = &there.latency;
        let differ = there.spread.as_ref().is_some_and(Spread::is_dynamic);
        let start = if differ { self.temper.where_times_differ().0 } else { self.temper.start };
        let queued = u32::try_from(queue.rows()).unwrap_or(u32::MAX);
        let most = latency.best_batch().max(first.rows);
        let rows = queued.min(most);
        let first_within = (first.rows, deadline_at.since(now + self.delay.of(first.rows)));
        let takes = ledger.longest(there, rows, first_within);
        let delay = self.delay.of(rows);
        let latest = deadline_at - takes;
        // Not all of them fit, or no more would: it gets no better.
        if rows >= most || now + delay > latest {
            return self.ready(model, latest);
        }
        let with_one_more = ledger.longest(there, rows + 1, first_within);
        let ready_at = match start {
            Start::AtOnce if !self.spares() => now,
            Start::After(part) => first.arrived_at + deadline_at.since(first.arrived_at).mul_f64(part) - delay,
            // A larger batch that seems to take less: what is known of this size is of a bad moment. Waiting would end behind `latest`; running it shows what it takes.
            Start::AtOnce | Start::Patient | Start::Late if with_one_more < takes => now,
            Start::AtOnce | Start::Patient | Start::Late => deadline_at - with_one_more - self.delay.of(rows + 1),
        };
        let ready_at = ready_at.min(latest - delay);
        let entry = &self.models[model.index()];
        let patience = &entry.patience;
        let wait = patience.wait(rows, latency.fixed());
        let early_from = (patience.last_at().unwrap_or(now) + wait).max(now);
        // What a row would take, in thousandths of what one takes in the best batch.
        let target = self.target(latency, model, &first, deadline_at);
        let best = latency.class_for(target).expected().as_nanos() as f64 / f64::from(target);
        let strain = (1e3 * takes.as_nanos() as f64 / f64::from(rows) / best.max(1.0)) as u32;
        let lead = self.lead(model);
        // Rows that its size has room for are run for nothing.
        let room = f64::from(latency.class_for(rows).batch) / f64::from(rows);
        let ready_at = if start == Start::Patient && self.demand.load().unwrap_or(0.0) * room <= FULLER_HOUSE {
            let most = deadline_at.since(first.arrived_at).mul_f64(MOST_LEAD);
            ready_at.min(latest - delay - lead.mul_f64(self.used_by_others(model)).min(most))
        } else {
            ready_at
        };
        // Who goes first is ready so early that a device will be free in time.
        let ready_at = if entry.entitled {
            ready_at.min(latest - delay - lead)
        } else if let Some(turn_at) = entry.turn_at {
            // At its turn a device is kept for it, which waits for company only as long as that pays.
            ready_at.min(turn_at.max(early_from.min(latest - entry.turn_delay)) - delay)
        } else {
            ready_at
        };
        if ready_at <= now {
            return self.ready(model, latest);
        }
        let (mut early_at, mut full_at) = (None, ready_at);
        if start == Start::Patient {
            // Each request that comes makes it ready earlier, by what one more row takes.
            let pull = patience.chance_after(wait) * (with_one_more - takes).as_nanos() as f64;
            full_at = early_from + ready_at.since(early_from).mul_f64(1.0 / (1.0 + pull));
            early_at = Some(early_from);
        }
        // A device that starts now would be back too late for a request that comes next.
        let tight = takes + latency.smallest() > deadline_at.since(first.arrived_at);
        Standing::Growing {
            ready_at,
            latest,
            early_at: early_at.filter(|&early_at| early_at < ready_at),
            full_at,
            tight,
            strain,
        }
    }

    /// A candidate that is ready.
    fn ready(&self, model: ModelId, latest: Timestamp) -> Standing {
        let entry = &self.models[model.index()];
        Standing::Ready((!entry.entitled, entry.turn_at.unwrap_or(latest)))
    }

    /// Puts a model's candidate where it belongs.
    fn stand(&mut self, model: ModelId, standing: Standing) {
        let index = model.index();
        let before = std::mem::replace(&mut self.models[index].standing, standing);
        if before == standing {
            return;
        }
        let (early_at, growing) = match standing {
            Standing::Growing { ready_at, early_at, .. } => (early_at, Some(ready_at)),
            Standing::None | Standing::Ready(_) => (None, None),
        };
        if let Standing::Growing { early_at: Some(_), .. } = before
            && (early_at.is_none() || !self.early.contains(index))
        {
            let _ = self.early.remove(index) || self.willing.remove(index);
        }
        match growing {
            Some(ready_at) => self.growing.set(index, ready_at),
            None => _ = self.growing.remove(index),
        }
        if let Some(early_at) = early_at {
            self.early.set(index, early_at);
        }
        match (before, standing) {
            (_, Standing::Ready(rank)) => {
                self.ready.set(model, Some(rank));
                self.stuck = None;
            }
            (Standing::Ready(_), _) => self.ready.set(model, None),
            _ => {}
        }
    }

    /// A growing candidate that should start at once on an idle device, because waiting doesn't pay and nobody else will
    /// need the device until it is ready.
    fn early(&self, hungry: &DeviceSet) -> Option<(ModelId, Timestamp, DeviceId)> {
        if self.willing.is_empty() || hungry.is_empty() || self.spares() {
            return None;
        }
        // With many more candidates than devices a batch that waits finds no device later, and starting is better.
        let roomy = 4 * self.growing.len() < 3 * self.device_count;
        let free = hungry.len() - self.slow.common(hungry).count();
        // Mostly the first one tells; the others are looked for only then.
        let may = |&(_, index): &(Timestamp, usize)| self.may_start_early(index, (hungry, free), roomy);
        let found = self.willing.first().filter(may);
        let found = found.or_else(|| self.willing.firsts::<EARLY_SEARCH>().skip(1).find(may));
        let (latest, model) = found.map(|(latest, index)| (latest, ModelId(index as u32)))?;
        let device = self.quick_device(model, hungry)?;
        Some((model, latest, device))
    }

    /// A hungry device that holds a model and isn't slower than its kind.
    fn quick_device(&self, model: ModelId, hungry: &DeviceSet) -> Option<DeviceId> {
        self.queues.devices_of(model).common(hungry).find(|&device| !self.slow.contains(device))
    }

    /// Whether a growing candidate has a hungry device that nobody else will need.
    fn may_start_early(&self, index: usize, (hungry, free): (&DeviceSet, usize), roomy: bool) -> bool {
        let Standing::Growing { ready_at, full_at, tight, strain, .. } = self.models[index].standing else {
            return false;
        };
        if roomy && self.load().unwrap_or(0.0) * f64::from(strain) > 1e3 * FULL_HOUSE {
            return false;
        }
        // It is itself among those that will need a device soon. Where objectives are tight, one more device is kept for
        // whoever comes next.
        let most = self.growing.len() + usize::from(tight);
        (free >= most.min(FORESIGHT + 1) || self.enough((hungry, free), ready_at, full_at, tight))
            && self.quick_device(ModelId(index as u32), hungry).is_some()
    }

    /// Whether devices that are hungry now, or free before a candidate is likely to be full, are enough for all that will be ready before it would be.
    fn enough(
        &self,
        (hungry, free): (&DeviceSet, usize),
        ready_at: Timestamp,
        full_at: Timestamp,
        tight: bool,
    ) -> bool {
        let mut soon = 0;
        self.growing.any_until(ready_at, |_, _| {
            soon += 1;
            soon == FORESIGHT
        });
        let mut missing = (soon + usize::from(tight)).saturating_sub(free);
        // Nobody knows when a device that is overdue will be free; those that are fed ahead are among the hungry already.
        missing == 0
            || self.busy.any_until(full_at, |at, device| {
                missing -= usize::from(at >= self.in_use_at && !hungry.contains(DeviceId(device as u32)));
                missing == 0
            })
    }

    /// The device for the most urgent ready candidate that a hungry one can run: of those that are free when an order that leaves now arrives the
    /// lowest number, else the one that is free soonest.
    fn device_for_ready(&mut self, ledger: &Ledger, now: Timestamp, hungry: &DeviceSet) -> Option<DeviceId> {
        if self.ready.is_empty() || self.stuck == Some(hungry.revision()) {
            return None;
        }
        let found = if ledger.is_uniform() {
            self.ready.first_pair(&self.queues, hungry)
        } else {
            self.first_able_pair(ledger, now, hungry)
        };
        let Some((model, first)) = found else {
            self.stuck = Some(hungry.revision());
            return None;
        };
        if !ledger.is_uniform() {
            return Some(first);
        }
        let free_at = |device: DeviceId| ledger.device(device).exec.start_at(now);
        let in_time = now + self.delay.control;
        if free_at(first) <= in_time {
            return Some(first);
        }
        let able = || self.queues.devices_of(model).common(hungry);
        able()
            .find(|&device| free_at(device) <= in_time)
            .or_else(|| able().min_by_key(|&device| (free_at(device), device)))
    }
}

impl Windowed {
    /// Where devices differ: the most urgent ready candidate that a hungry one has time for, and of these the one that is free first, is no slower than its kind, and has the lowest number.
    fn first_able_pair(&self, ledger: &Ledger, now: Timestamp, hungry: &DeviceSet) -> Option<(ModelId, DeviceId)> {
        let in_time = now + self.delay.control;
        let free_at = |device: DeviceId| ledger.device(device).exec.start_at(now).max(in_time);
        self.ready.models().find_map(|model| {
            let able = self.queues.devices_of(model).common(hungry).filter(|&it| self.is_able(ledger, now, model, it));
            let device = able.min_by_key(|&device| (free_at(device), self.slow.contains(device), device))?;
            Some((model, device))
        })
    }

    /// Whether a device has time for a batch of a model.
    fn is_able(&self, ledger: &Ledger, now: Timestamp, model: ModelId, device: DeviceId) -> bool {
        let free_at = ledger.device(device).exec.surely_at(now);
        let opening = Opening { free_at, now, delay: self.delay };
        let (mut members, mut skipped) = (Vec::new(), Vec::new());
        // Where times depend on the input, they are the same on all devices.
        ledger.model(model).spread.as_ref().is_some_and(Spread::is_dynamic)
            || self.form(ledger, (model, device), opening, &mut members, &mut skipped).is_some()
    }

    /// A growing candidate whose last chance on a device that idles is now.
    fn at_last_chance(
        &mut self,
        ledger: &Ledger,
        now: Timestamp,
        hungry: &DeviceSet,
    ) -> Option<(ModelId, Timestamp, DeviceId)> {
        let mut chances = std::mem::take(&mut self.last_chances);
        let able = |model, device| self.is_able(ledger, now, model, device);
        let found = chances.next((ledger, &self.queues, self.delay), now, hungry, able);
        self.last_chances = chances;
        found.map(|(model, device)| (model, now, device))
    }

    /// The most urgent ready candidate that a device has time for.
    fn first_ready(&self, ledger: &Ledger, device: DeviceId, now: Timestamp) -> Option<(Rank, ModelId)> {
        let able = |&(_, model): &(Rank, ModelId)| ledger.is_uniform() || self.is_able(ledger, now, model, device);
        self.ready.on(&self.queues, device).find(able)
    }

    /// The batch of a model that a device would run.
    fn form(
        &self,
        ledger: &Ledger,
        (model, device): (ModelId, DeviceId),
        opening: Opening,
        members: &mut Vec<Queued>,
        skipped: &mut Vec<RequestId>,
    ) -> Option<Candidate> {
        let (latency, queue) = (ledger.latency(model, device), self.queues.of(model));
        let (deadline_at, first) = queue.first()?;
        if self.temper.keep == Keep::Full {
            skipped.clear();
            return queue.candidate(latency, opening, members);
        }
        // Nobody is given up for a device that is slow: those that it has no time for others may have.
        let slow = self.slow.contains(device);
        let floor = if slow { 0 } else { self.floor(latency, model, &first, deadline_at) };
        queue.window(latency, opening, floor, members, skipped)
    }
}

impl Policy for Windowed {
    fn queues(&self) -> &Queues {
        &self.queues
    }

    fn queues_mut(&mut self) -> &mut Queues {
        &mut self.queues
    }

    fn add_model(&mut self, model: ModelId) {
        self.queues.add_model(model);
        self.usage.add_model(model);
        self.ready.add_model(model);
        if self.models.len() <= model.index() {
            self.models.resize_with(model.index() + 1, ModelEntry::default);
        }
    }

    fn add_device(&mut self, device: DeviceId) {
        self.queues.add_device(device);
        self.device_count += 1;
        if self.busy_with.len() <= device.index() {
            self.busy_with.resize(device.index() + 1, None);
        }
    }

    fn lost(&mut self, device: DeviceId) {
        self.device_count -= usize::from(!self.slow.contains(device));
        self.slow.remove(device);
        self.busy_with[device.index()] = None;
        self.busy.remove(device.index());
    }

    fn set_slow(&mut self, device: DeviceId, slow: bool) {
        match (slow, self.slow.contains(device)) {
            (true, false) => {
                self.slow.insert(device);
                self.busy.remove(device.index());
                self.device_count -= 1;
            }
            (false, true) => {
                self.slow.remove(device);
                self.device_count += 1;
            }
            (true, true) | (false, false) => {}
        }
    }

    fn insert(&mut self, ledger: &Ledger, model: ModelId, place: Place, queued: Queued) {
        self.queues.insert(ledger, model, place, queued);
        if place.deadline_at == Timestamp::NEVER {
            return;
        }
        if self.learns {
            let patience = &mut self.models[model.index()].patience;
            // Requests whose batch came to nothing come back with the time of their first arrival.
            if patience.last_at().is_none_or(|last_at| last_at <= queued.arrived_at) {
                patience.arrived(queued.arrived_at, place.deadline_at.since(queued.arrived_at));
                self.note_demand(&ledger.model(model).latency, model, place.deadline_at, &queued);
            }
        }
        self.mark(model);
    }

    fn remove(&mut self, model: ModelId, place: Place) {
        self.queues.remove(model, place);
        if place.deadline_at != Timestamp::NEVER {
            self.mark(model);
        }
    }

    fn loaded(&mut self, _ledger: &Ledger, model: ModelId, device: DeviceId) {
        self.mark(model);
        self.stuck = None;
        self.queues.loaded(model, device);
    }

    fn unloaded(&mut self, ledger: &Ledger, model: ModelId, device: DeviceId) {
        self.mark(model);
        self.queues.unloaded(ledger, model, device);
    }

    fn next_batch(&mut self, ledger: &Ledger, device: DeviceId, opening: Opening) -> Option<Batch> {
        self.settle(ledger, opening.now);
        loop {
            let ((_, key), model) = self.first_ready(ledger, device, opening.now)?;
            let there = ledger.model(model);
            let latency = ledger.latency(model, device);
            let queue = self.queues.of(model);
            if !queue.has_urgent() {
                self.stand(model, Standing::None);
                continue;
            }
            if let Some(spread) = there.spread.as_ref().filter(|spread| spread.is_dynamic()) {
                let start_at = opening.with(1);
                let aim = self.temper.where_times_differ().1;
                match self.uneven.form((latency, spread), queue, start_at, aim, &mut self.members) {
                    Some(candidate) => return Some(crate::queues::batch(model, candidate, &self.members)),
                    None => {
                        self.stand(model, Standing::None);
                        continue;
                    }
                }
            }
            let (mut members, mut skipped) = (std::mem::take(&mut self.members), std::mem::take(&mut self.skipped));
            let candidate = self.form(ledger, (model, device), opening, &mut members, &mut skipped);
            (self.members, self.skipped) = (members, skipped);
            // How long a device that differs could still wait says nothing of the others.
            let differs = self.slow.contains(device) || ledger.has_kinds();
            let at_once = self.models[model.index()].turn_at.is_some() || differs;
            match candidate {
                Some(candidate) if candidate.latest <= key || at_once => {
                    return Some(Batch {
                        model,
                        candidate,
                        members: self.members.iter().map(|member| member.id).collect(),
                        dropped: self.skipped.clone(),
                    });
                }
                // It has shrunk since, and can wait longer than was thought.
                Some(candidate) => self.stand(model, self.ready(model, candidate.latest)),
                // Nothing is in time; its requests expire.
                None => self.stand(model, Standing::None),
            }
        }
    }

    fn matches(&self) -> bool {
        true
    }

    fn ripe(&mut self, ledger: &Ledger, now: Timestamp, hungry: &DeviceSet) -> Option<DeviceId> {
        self.settle(ledger, now);
        if let Some(device) = self.device_for_ready(ledger, now, hungry) {
            return Some(device);
        }
        let (model, latest, device) = self.at_last_chance(ledger, now, hungry).or_else(|| self.early(hungry))?;
        self.stand(model, self.ready(model, latest));
        Some(device)
    }

    fn next_ripe(&self) -> Option<Timestamp> {
        let ready = self.growing.first().map(|(at, _)| at);
        let early = self.early.first().map(|(at, _)| at);
        [ready, early, self.last_chances.next_at()].into_iter().flatten().min()
    }

    fn in_use(&self) -> Option<f64> {
        Some(self.in_use)
    }

    fn entitle(&mut self, shares: &Shares) {
        for index in 0..self.models.len() {
            let model = ModelId(index as u32);
            let entitled = shares.is_entitled(model);
            self.models[index].turn_delay = shares.delays(model);
            (self.models[index].turn_rows, self.models[index].turn_at) =
                (shares.batch_of(model), shares.turn_at(model));
            if std::mem::replace(&mut self.models[index].entitled, entitled) != entitled {
                self.mark(model);
            }
        }
    }

    fn turn(&mut self, model: ModelId, at: Option<Timestamp>) {
        self.models[model.index()].turn_at = at;
    }

    fn started(&mut self, started: Started) {
        self.busy_with[started.device.index()] = Some(started.action);
        if self.slow.contains(started.device) {
            return;
        }
        self.batch_time = (self.batch_time * 15 + started.expected) / 16;
        self.usage.started(started.model, started.expected);
        self.busy.set(started.device.index(), started.done_at);
    }

    fn ended(&mut self, ended: Ended) {
        // What its batches are expected to take has changed, and with it when they must start.
        self.mark(ended.model);
        // One that was ordered ahead may still be behind it.
        if self.busy_with[ended.device.index()].take_if(|last| *last == ended.action).is_some() {
            self.busy.remove(ended.device.index());
        }
    }

    fn copy(&self) -> Option<Box<dyn Policy>> {
        Some(Box::new(self.clone()))
    }

    fn adopt(&mut self, temper: Temper) {
        self.temper = temper;
        (0..self.models.len()).for_each(|model| self.mark(ModelId(model as u32)));
    }

    /// Shares of device time say who is refused at once (`fair.rs`).
    fn predicts(&self) -> bool {
        false
    }

    fn settled(&mut self, now: Timestamp, _model: ModelId, in_time: bool) {
        self.pressure.note(now, in_time);
    }
}
