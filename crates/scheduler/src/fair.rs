//! Who may have how much when devices are short: the device time that models ask for, max-min shares of it, and turns
//! on the devices.
//!
//! A model's demand is the rate of its rows times what a row takes in batches of the size that this rate and its
//! objective allow. While all demands together fit, nobody is limited. When they don't, time is shared out as water is
//! poured: whoever wants less than its share gets all of it, the others get the level times their weight, and at least
//! their floor (DESIGN: fair before full).
//!
//! ```text
//!  demand   ▏█    ▏
//!           ▏█    ▏    level ┄┄█┄┄┄┄┄
//!           ▏█ ▄ ▂▏         ▄ █ ▂
//!            a b c           b a c
//! ```
//!
//! A limited model is let in by *turns*. The first request of a batch takes the next time on a device that nobody was
//! promised, if the batch that is best for its model would be done by its deadline when it starts there; those that
//! come until then join it. Whoever finds no such time is refused at once, and told when it could be answered. So a
//! batch has all the time to fill that its deadline leaves, its device is there when it is full, and no device waits.
//!
//! ```text
//!  book, a line for each device   ▕▓▓ runs ▓▓▕░░ turn of a ░░▕░ turn of b ░▕ next: asked for by c
//!                                now                        └── c waits ──┴── l(b) ──┤ at most c's deadline
//! ```
//!
//! Batches make debts of device time, which are paid back at a little more than the model's share; who has more than a
//! burst's has no turn before they are paid.
//!
//! What models ask for is known roughly: bursts are run in larger batches than their mean rate lets expect. So devices
//! count as short only when a good part of all requests is really lost, and no longer when few are, or devices are
//! idle. And turns are given only where they answer about as many as letting everybody in would, which is rehearsed
//! (`rehearsal.rs`); who goes first, goes first in any case.

use crate::batch_times::{BatchTimes, Class};
use crate::event::Fairness;
use crate::table::grown;
use base::{DeviceId, Duration, ModelId, Timestamp};
use std::collections::{BTreeSet, VecDeque};

/// Shares are computed anew after so much time.
const PERIOD: Duration = Duration::from_millis(20);
/// Rates follow what comes with this time constant, in periods. A shorter one takes chance for change: a model's best
/// batch size, and who is limited, would change all the time.
const MEMORY: f64 = 40.0;
/// What comes in a period is more than chance if it is so many deviations from what was expected; then rates follow
/// faster. Not at once: bursts are no floods.
const SURPRISE: f64 = 4.0;
const SHORT_MEMORY: f64 = 10.0;
/// Of those that were let in, this part may be given up later: 1 % with what it takes to learn it.
const GIVEN_UP: f64 = 0.006;
/// What one request that is given up adds to the part of its objective that is kept for delays.
const STEP: f64 = 0.0005;
/// The most that is kept for delays: with more, only small batches would be let in.
const MOST_KEPT: f64 = 0.3;
/// How much of it is forgotten after each period in which devices aren't short.
const FORGET: f64 = 0.01;
/// Devices are short when so many times of what there is are asked for: with less, who lets everybody in answers more.
const SHORT: f64 = 1.05;
/// And while they are busy for this part of the time, whatever the demand seems to be ...
const BUSY: f64 = 0.9;
/// ... and this part of the requests is lost, lately; no longer when it is less than the second. Below, who lets
/// everybody in answers more.
const LOSSES: (f64, f64) = (0.1, 0.05);
/// Until it was rehearsed whether turns answer enough, they are given where so many are lost: a burst loses fewer, and
/// there turns may lose three times as many as letting everybody in.
const SURELY: f64 = 0.2;
/// "Lately": what is so many seconds old counts for a third. With fewer requests than the second nothing is known.
const LATELY: f64 = 1.0;
const KNOWN: f64 = 20.0;
/// Debts of what a model's share is in so many seconds are a burst's, and don't count.
const BURST: f64 = 0.25;
/// Debts are paid back so much faster than at the share. It is devices that limit: if debts did, turns would be taken
/// late, and their batches would have less time to fill.
const HASTE: f64 = 1.1;
/// A model is entitled to go first while it asks for less than this part of its share, and let in by turns from there
/// on: what it asks for is known to a tenth or two only, and turns harm nobody who stays below the share.
const MODEST: f64 = 0.5;
/// A request with less than this part of the time that its model's requests usually have can't wait for their usual
/// batch.
const HURRIED: f64 = 0.9;

/// Floors of all models together are at most this part of all device time: what is left is for the others.
const FLOORS: f64 = 0.9;
/// The level is found to one part in a billion.
const HALVINGS: u32 = 30;

/// Time on a device that is promised to a batch.
#[derive(Clone, Copy, Debug)]
struct Turn {
    start_at: Timestamp,
    takes: Duration,
    line: usize,
}

/// A device as the book has it.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Line {
    device: DeviceId,
    /// When what it was given is expected to be done.
    busy_until: Timestamp,
    /// What is promised behind that.
    promised: Duration,
}

impl Line {
    /// The first time that nobody was promised, if it is busy until then.
    fn next_at(&self) -> Timestamp {
        self.busy_until + self.promised
    }
}

/// What devices were promised. Batches start earlier or later than planned, and on other devices; the book never adds
/// up by how much, but follows what devices really do: what was promised begins when that ends, and not before now.
#[derive(Clone, Debug, Default)]
struct Book {
    lines: Vec<Line>,
    /// Where the line of each device is.
    line_of: Vec<Option<usize>>,
    order: BTreeSet<(Timestamp, usize)>,
}

impl Book {
    /// Begins anew with these devices, and when they are free.
    fn begin(&mut self, free_at: &[(DeviceId, Timestamp)]) {
        let line = |&(device, busy_until)| Line { device, busy_until, promised: Duration::ZERO };
        self.lines = free_at.iter().map(line).collect();
        self.order = self.lines.iter().map(Line::next_at).zip(0..).collect();
        self.line_of.clear();
        for (index, line) in self.lines.iter().enumerate() {
            *grown(&mut self.line_of, line.device.index()) = Some(index);
        }
    }

    /// Whether its lines are those devices.
    fn is_of(&self, free_at: &[(DeviceId, Timestamp)]) -> bool {
        self.lines.len() == free_at.len() && free_at.iter().all(|&(device, _)| self.line_of(device).is_some())
    }

    fn line_of(&self, device: DeviceId) -> Option<usize> {
        self.line_of.get(device.index()).copied().flatten()
    }

    /// Nothing where the line is gone: devices can be lost between two looks at them, all of them even.
    fn change(&mut self, index: usize, change: impl FnOnce(&mut Line)) {
        let Some(line) = self.lines.get_mut(index) else { return };
        self.order.remove(&(line.next_at(), index));
        change(line);
        self.order.insert((line.next_at(), index));
    }

    /// The first time that nobody was promised. Who idles though something is promised there is later than it was
    /// thought to be.
    fn next(&mut self, now: Timestamp) -> (Timestamp, usize) {
        while let Some(&(next_at, first)) = self.order.first() {
            let line = self.lines[first];
            if line.busy_until >= now {
                return (next_at, first);
            }
            if line.promised == Duration::ZERO {
                return (now, first);
            }
            self.change(first, |line| line.busy_until = now);
        }
        (now, 0)
    }

    fn take(&mut self, now: Timestamp, takes: Duration) -> Turn {
        let (start_at, line) = self.next(now);
        self.change(line, |line| {
            line.busy_until = line.busy_until.max(now);
            line.promised += takes;
        });
        Turn { start_at, takes, line }
    }

    /// Nobody needs a turn any more.
    fn give_back(&mut self, turn: Turn) {
        self.change(turn.line, |line| line.promised -= turn.takes);
    }

    /// A batch starts on a device that is expected to be done with it then. If that isn't the one on which it has its
    /// turn, they are exchanged: what was promised on this one will run on the other.
    fn start(&mut self, device: DeviceId, until: Timestamp, turn: Option<Turn>) {
        turn.into_iter().for_each(|turn| self.give_back(turn));
        let Some(line) = self.line_of(device) else { return };
        turn.into_iter().for_each(|turn| self.exchange(line, turn.line));
        let line = turn.map_or(line, |turn| turn.line);
        self.change(line, |line| line.busy_until = until);
    }

    /// Exchanges the devices of two lines.
    fn exchange(&mut self, one: usize, other: usize) {
        let (Some(&a), Some(&b)) = (self.lines.get(one), self.lines.get(other)) else { return };
        for (index, from) in [(one, b), (other, a)] {
            self.change(index, |line| (line.device, line.busy_until) = (from.device, from.busy_until));
            self.line_of[from.device.index()] = Some(index);
        }
    }

    /// When a device will really be free.
    fn look(&mut self, device: DeviceId, free_at: Timestamp) {
        if let Some(index) = self.line_of(device) {
            self.change(index, |line| line.busy_until = free_at);
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Share {
    fairness: Fairness,
    /// Rows that came in this period.
    came: f64,
    /// Rows a second, lately.
    rate: f64,
    /// Seconds that its requests have, lately.
    objective: f64,
    /// Seconds of a device for a row, in batches of the size for which that is least.
    cost: f64,
    batch: u32,
    /// Seconds of devices in each second that it may have.
    allowed: f64,
    /// Since when it is let in by turns; `None` while it asks for less than its share.
    limited_at: Option<Timestamp>,
    modest: bool,
    listed: bool,
    /// Seconds of a device that it had beyond its share, as of `since`.
    debt: f64,
    since: Timestamp,
    /// Of its batches to come, the first one first.
    turns: VecDeque<Turn>,
}

impl Share {
    /// When its debts are paid.
    fn paid_at(&self) -> Timestamp {
        self.since + Duration::from_secs_f64((self.debt / self.allowed - BURST).max(0.0) / HASTE)
    }

    fn borrow(&mut self, now: Timestamp, takes: Duration) {
        let paid = HASTE * self.allowed * now.since(self.since).as_secs_f64();
        (self.debt, self.since) = ((self.debt - paid).max(0.0) + takes.as_secs_f64(), now);
    }

    /// What came in the last periods is added to the rate.
    fn follow(&mut self, periods: f64) {
        let span = periods * PERIOD.as_secs_f64();
        let (came, expected) = (std::mem::take(&mut self.came), self.rate * span);
        let surprising = (came - expected).abs() > SURPRISE * (1.0 + expected.sqrt());
        let memory = if surprising { SHORT_MEMORY } else { MEMORY };
        let kept = (1.0 - 1.0 / memory).powf(periods.min(1e3));
        self.rate = came / span + (self.rate - came / span) * kept;
        self.listed = self.rate > 1e-3;
    }

    /// The size of batch that a request with so much time can wait for.
    fn class_within<'a>(&self, times: &'a BatchTimes, rows: u32, time: Duration) -> &'a Class {
        let usual = times.class_for(self.batch.max(rows));
        let part = time.as_secs_f64() / self.objective;
        if part >= HURRIED {
            return usual;
        }
        times.class_for(times.largest_within(usual.least_quantile().mul_f64(part)).max(rows))
    }
}

/// The shares of all models.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares {
    models: Vec<Share>,
    /// Models that asked lately.
    active: Vec<ModelId>,
    /// Whether devices are short.
    short: bool,
    /// The part of its objective by which a batch of a limited model may start later than it was promised. It follows
    /// what becomes of those that were let in, so that fewer than 1 % are given up.
    kept: f64,
    book: Book,
    /// The turn of batch work that has waited.
    batch_work: Option<Turn>,
    /// Whether turns are given.
    turns: bool,
    period_ends_at: Timestamp,
    order: Vec<ShareDemand>,
    /// Requests that had their end lately, and those of them that were lost.
    ended: f64,
    lost: f64,
    /// The part of the time for which devices were busy, since they are short.
    busy: f64,
    /// Whether nobody has turns, because too few would be answered; and whether that was rehearsed.
    open: bool,
    rehearsed: bool,
}

/// What a model asks for.
#[derive(Clone, Copy, Debug)]
struct ShareDemand {
    model: ModelId,
    wants: f64,
    fairness: Fairness,
}

impl Shares {
    pub fn add_model(&mut self, model: ModelId, fairness: Fairness) {
        let share = grown(&mut self.models, model.index());
        share.turns.drain(..).for_each(|turn| self.book.give_back(turn));
        // Who had its number before may still be in the list.
        *share = Share { fairness, listed: share.listed, ..Share::default() };
    }

    /// Whether devices are short.
    pub fn is_short(&self) -> bool {
        self.short
    }

    /// Whether a model goes before others, because it asks for much less than its share while devices are short.
    pub fn is_entitled(&self, model: ModelId) -> bool {
        self.models[model.index()].modest && self.short
    }

    /// Seconds of a device for a row of each model in the largest batches that its objective allows.
    pub fn costs<'a>(&self, times_of: impl Fn(ModelId) -> Option<&'a BatchTimes>) -> Vec<f64> {
        let models = (0..).map(ModelId).zip(&self.models);
        let cost = |times, share: &Share| cheapest(times, f64::MAX, share.objective, 0.0).0;
        models.map(|(model, share)| times_of(model).map_or(0.0, |times| cost(times, share))).collect()
    }

    /// The size of the batches that a limited model is let in for.
    pub fn batch_of(&self, model: ModelId) -> Option<u32> {
        let share = &self.models[model.index()];
        share.limited_at.map(|_| share.batch)
    }

    /// By how much a batch of a model may start later than it was promised.
    pub fn delays(&self, model: ModelId) -> Duration {
        Duration::from_secs_f64(self.kept * self.models[model.index()].objective)
    }

    /// When a limited model has its next turn, if it was promised one.
    pub fn turn_at(&self, model: ModelId) -> Option<Timestamp> {
        self.models[model.index()].turns.front().map(|turn| turn.start_at)
    }

    /// A request came, with so much time.
    pub fn came(&mut self, model: ModelId, rows: u32, objective: Duration) {
        let share = &mut self.models[model.index()];
        let objective = objective.as_secs_f64();
        share.objective += (objective - share.objective) * if share.rate + share.came == 0.0 { 1.0 } else { 0.05 };
        share.came += f64::from(rows);
        if !std::mem::replace(&mut share.listed, true) {
            self.active.push(model);
        }
    }

    /// When a request that comes now with so much time would be done, if its model is let in by turns; `None` where it
    /// isn't. So many rows of it are queued.
    pub fn done_at(
        &mut self,
        now: Timestamp,
        model: ModelId,
        times: &BatchTimes,
        (queued, rows): (u64, u32),
        time: Duration,
    ) -> Option<Timestamp> {
        let share = &self.models[model.index()];
        share.limited_at?;
        // The turn in which its last row has room: the first may join one where the others need another.
        let last = (queued + u64::from(rows)).saturating_sub(1) / u64::from(share.batch);
        let start_at = match share.turns.get(last as usize) {
            Some(turn) => turn.start_at,
            None => self.book.next(now).0.max(share.paid_at()),
        };
        Some(start_at.max(now) + self.delays(model) + share.class_within(times, rows, time).least_quantile())
    }

    /// So many rows of a limited model are queued now: it has as many turns as they need. Those that a batch left
    /// behind take turns again, behind the others: nobody is promised what they may need.
    pub fn queued(&mut self, now: Timestamp, model: ModelId, times: &BatchTimes, rows: u64) {
        let share = &mut self.models[model.index()];
        if share.limited_at.is_none() {
            return;
        }
        let needed = rows.div_ceil(u64::from(share.batch)) as usize;
        while share.turns.len() > needed {
            share.turns.pop_back().into_iter().for_each(|turn| self.book.give_back(turn));
        }
        while share.turns.len() < needed {
            share.turns.push_back(self.book.take(now, times.class_for(share.batch).busy_mean()));
        }
    }

    /// A batch of a model was ordered that takes so long, and its device is expected to be done then.
    pub fn started(&mut self, now: Timestamp, model: ModelId, device: DeviceId, (takes, until): (Duration, Timestamp)) {
        if self.short {
            let share = &mut self.models[model.index()];
            share.borrow(now, takes);
            let turn = share.turns.pop_front();
            if self.turns {
                self.book.start(device, until, turn);
            }
        }
    }

    /// The same of batch work, which has its turn, if it was promised one, and makes no debts.
    pub fn batch_work_started(&mut self, device: DeviceId, until: Timestamp) {
        if self.turns {
            self.book.start(device, until, self.batch_work.take());
        }
    }

    /// From when on batch work that has waited may take a device for so long: where others have turns it has one, too,
    /// behind those that were promised.
    pub fn batch_work_from(&mut self, now: Timestamp, takes: Duration) -> Timestamp {
        if !self.turns {
            return now;
        }
        self.batch_work.get_or_insert_with(|| self.book.take(now, takes)).start_at
    }

    /// No batch work waits: its turn is given back.
    pub fn no_batch_work(&mut self) {
        if let Some(turn) = self.batch_work.take() {
            self.book.give_back(turn);
        }
    }

    /// Whether everybody is let in though devices are short.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Lets everybody in from now on, or not, as rehearsals have it.
    pub fn set_open(&mut self, open: bool) {
        (self.open, self.rehearsed) = (open, true);
    }

    /// A request was refused when it came.
    pub fn refused(&mut self) {
        self.ended += 1.0;
        self.lost += 1.0;
    }

    /// A request that was let in had its end: in time, or given up. Only those that were let in by turns show what is
    /// to be kept for delays.
    pub fn settled(&mut self, model: ModelId, arrived_at: Timestamp, in_time: bool) {
        self.ended += 1.0;
        self.lost += f64::from(u8::from(!in_time));
        if self.models[model.index()].limited_at.is_some_and(|limited_at| arrived_at >= limited_at) {
            let change = if in_time { -STEP * GIVEN_UP } else { STEP };
            self.kept = (self.kept + change).clamp(0.0, MOST_KEPT);
        }
    }

    /// Whether it is time to compute the shares.
    pub fn is_due(&self, now: Timestamp) -> bool {
        now >= self.period_ends_at && !self.active.is_empty()
    }

    /// Computes the shares anew. `free_at` says for each device when it is free, `busy` which part of them was busy
    /// lately.
    pub fn compute<'a>(
        &mut self,
        now: Timestamp,
        free_at: &[(DeviceId, Timestamp)],
        busy: f64,
        times_of: impl Fn(ModelId) -> Option<&'a BatchTimes>,
    ) {
        let devices = free_at.len() as f64;
        let passed = (now.since(self.period_ends_at) + PERIOD).as_secs_f64();
        let total = self.ask(now, passed / PERIOD.as_secs_f64(), times_of);
        self.short = self.runs_short(total / devices.max(1.0), busy, passed);
        if !self.short {
            self.kept *= 1.0 - FORGET;
        }
        let turns = self.short && !self.open;
        let had_turns = std::mem::replace(&mut self.turns, turns);
        if turns && (!had_turns || !self.book.is_of(free_at)) {
            self.active.iter().for_each(|model| self.models[model.index()].turns.clear());
            self.batch_work = None;
            self.book.begin(free_at);
        } else if turns {
            free_at.iter().for_each(|&(device, free_at)| self.book.look(device, free_at));
        }
        let level = if self.short { pour(&self.order, devices) } else { f64::INFINITY };
        for demand in &self.order {
            let share = &mut self.models[demand.model.index()];
            share.allowed = demand.fairness.allows(level, devices);
            share.modest = demand.wants < MODEST * share.allowed;
            if share.modest || self.open {
                share.limited_at = None;
                share.turns.drain(..).for_each(|turn| self.book.give_back(turn));
            } else if share.limited_at.is_none() {
                (share.debt, share.since, share.limited_at) = (0.0, now, Some(now));
            }
        }
    }

    /// Whether devices are short now, where so many times their time is asked for and so much time has passed.
    fn runs_short(&mut self, asked: f64, busy: f64, passed: f64) -> bool {
        let new = (passed / LATELY).min(1.0);
        self.ended *= 1.0 - new;
        self.lost *= 1.0 - new;
        let lost = if self.ended < KNOWN { 0.0 } else { self.lost / self.ended };
        if !self.rehearsed {
            // Once there are turns, they stay while devices are short: with them fewer may be lost.
            self.open = lost < SURELY && (self.open || !self.short);
        }
        if self.short {
            self.busy += (busy - self.busy) * new;
            return asked > 1.0 && lost > LOSSES.1 && self.busy > BUSY;
        }
        self.busy = 1.0;
        asked > SHORT && lost >= LOSSES.0 && busy >= BUSY
    }

    /// Brings the demands up to date, and adds them up.
    fn ask<'a>(&mut self, now: Timestamp, periods: f64, times_of: impl Fn(ModelId) -> Option<&'a BatchTimes>) -> f64 {
        self.period_ends_at = now + PERIOD;
        self.order.clear();
        let Self { models, active, order, book, kept, .. } = self;
        active.retain(|&model| {
            let share = &mut models[model.index()];
            share.follow(periods);
            let Some(times) = times_of(model).filter(|_| share.listed) else {
                share.turns.drain(..).for_each(|turn| book.give_back(turn));
                *share = Share { fairness: share.fairness, ..Share::default() };
                return false;
            };
            (share.cost, share.batch) = cheapest(times, share.rate, share.objective, *kept);
            order.push(ShareDemand { model, wants: share.rate * share.cost, fairness: share.fairness });
            true
        });
        let floors: f64 = order.iter().map(|demand| demand.fairness.floor).sum();
        order.iter_mut().for_each(|demand| demand.fairness.floor *= (FLOORS / floors.max(FLOORS)).min(1.0));
        order.iter().map(|demand| demand.wants).sum()
    }
}

impl Fairness {
    /// What a model may have at a level.
    fn allows(self, level: f64, devices: f64) -> f64 {
        (self.weight * level).max(self.floor * devices)
    }
}

/// The level at which so much is used up, by halving: where floors are above it, it has no simpler form.
fn pour(demands: &[ShareDemand], there: f64) -> f64 {
    let used =
        |level: f64| demands.iter().map(|demand| demand.wants.min(demand.fairness.allows(level, there))).sum::<f64>();
    let (mut low, mut high) =
        (0.0, demands.iter().map(|demand| demand.wants / demand.fairness.weight).fold(0.0, f64::max));
    for _ in 0..HALVINGS {
        let level = 0.5 * (low + high);
        if used(level) < there {
            low = level;
        } else {
            high = level;
        }
    }
    high
}

/// Seconds of a device for a row of a model with that rate and objective, in seconds, and the size of its batches, if
/// they are filled for as long as a first request can wait.
fn cheapest(times: &BatchTimes, rate: f64, objective: f64, kept: f64) -> (f64, u32) {
    let mut best = (f64::INFINITY, 1);
    for class in times.classes().iter().filter(|class| class.pays) {
        let takes = class.least_quantile().as_secs_f64();
        if best.0.is_finite() && takes > objective {
            break;
        }
        let gathered = 1.0 + rate * (objective * (1.0 - kept) - takes).max(0.0);
        let cost = class.busy_mean().as_secs_f64() / gathered.min(f64::from(class.batch));
        if cost < best.0 {
            best = (cost, class.batch);
        }
    }
    (best.0.max(1e-9), best.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rolling::History;
    use base::LatencyProfile;

    const QUIET: ModelId = ModelId(0);
    const FLOOD: ModelId = ModelId(1);
    const OBJECTIVE: Duration = Duration::from_millis(25);

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(millis)
    }

    /// Four devices, and when they are free.
    fn free(at: [Timestamp; 4]) -> [(DeviceId, Timestamp); 4] {
        let mut number = 0..;
        at.map(|at| (DeviceId(number.next().expect("numbers don't end")), at))
    }

    /// l(b) = b + 5 ms.
    fn times() -> BatchTimes {
        let sizes: Vec<u32> = (1..=32).collect();
        let (alpha, beta) = (Duration::from_millis(1), Duration::from_millis(5));
        let profile = LatencyProfile::linear(alpha, beta, &sizes, Duration::from_millis(1)).unwrap();
        BatchTimes::new(&profile, History { size: 10, quantile: 0.99 })
    }

    /// Two models that are asked so many times in each of these milliseconds, on four devices.
    fn ask(shares: &mut Shares, millis: std::ops::Range<u64>, quiet: impl Fn(u64) -> u32, flood: u32, busy: f64) {
        let times = times();
        for millis in millis {
            let came = [(QUIET, quiet(millis)), (FLOOD, flood)];
            came.into_iter()
                .filter(|(_, rows)| *rows > 0)
                .for_each(|(model, rows)| shares.came(model, rows, OBJECTIVE));
            // Where all devices are busy some are lost.
            if busy == 1.0 {
                shares.refused();
            }
            if shares.is_due(at(millis)) {
                shares.compute(at(millis), &free([at(millis); 4]), busy, |_| Some(&times));
            }
        }
    }

    /// A quiet model and one that is flooded, for a second on four devices.
    fn flooded() -> Shares {
        let mut shares = Shares::default();
        [QUIET, FLOOD].into_iter().for_each(|model| shares.add_model(model, Fairness::default()));
        ask(&mut shares, 0..1_000, |millis| u32::from(millis % 25 == 0), 10, 1.0);
        shares
    }

    /// Lets requests of the flooded model in while they would be in time, and says how many that were and when the next
    /// one would be done.
    fn fill(shares: &mut Shares, now: Timestamp) -> (u64, Timestamp) {
        let times = times();
        let mut queued = 0;
        loop {
            let done_at = shares.done_at(now, FLOOD, &times, (queued, 1), OBJECTIVE).unwrap();
            if done_at > now + OBJECTIVE {
                return (queued, done_at);
            }
            queued += 1;
            shares.queued(now, FLOOD, &times, queued);
        }
    }

    #[test]
    fn who_asks_for_little_is_not_limited_beside_a_flood() {
        let mut shares = flooded();
        assert!(shares.is_short() && shares.is_entitled(QUIET) && !shares.is_entitled(FLOOD));
        assert_eq!(shares.done_at(at(1_000), QUIET, &times(), (0, 1), OBJECTIVE), None);
        assert!(shares.done_at(at(1_000), FLOOD, &times(), (0, 1), OBJECTIVE).is_some());
    }

    #[test]
    fn whoever_is_let_in_has_time_on_a_device_and_full_batches() {
        let mut shares = flooded();
        let batch = u64::from(shares.batch_of(FLOOD).unwrap());
        assert!(batch > 10, "{batch}");
        let (queued, done_at) = fill(&mut shares, at(1_000));
        assert_eq!(queued, 4 * batch, "a full batch for each device");
        assert!(done_at > at(1_025));
        assert_eq!(
            shares.turn_at(FLOOD),
            Some(shares.models[1].turns[3].start_at),
            "all devices are free at the same time"
        );
    }

    #[test]
    fn whoever_is_refused_is_told_when_its_turn_is() {
        let mut shares = flooded();
        let (_, done_at) = fill(&mut shares, at(1_000));
        let takes = times().class_for(shares.batch_of(FLOOD).unwrap()).least_quantile();
        for device in 0..4 {
            shares.started(at(1_000), FLOOD, DeviceId(device), (takes, at(1_000) + takes));
        }
        let next_at = shares.done_at(at(1_000), FLOOD, &times(), (0, 1), OBJECTIVE).unwrap();
        assert!(next_at.max(done_at).since(next_at.min(done_at)) < Duration::from_millis(1), "{next_at:?} {done_at:?}");
        let late = next_at - OBJECTIVE;
        assert_eq!(shares.done_at(late, FLOOD, &times(), (0, 1), OBJECTIVE), Some(next_at), "it can come back then");
    }

    #[test]
    fn turns_that_nobody_needs_are_given_back() {
        let mut shares = flooded();
        assert_eq!(shares.book.next(at(1_000)).0, at(1_000));
        fill(&mut shares, at(1_000));
        assert!(shares.book.next(at(1_000)).0 > at(1_020));
        shares.queued(at(1_000), FLOOD, &times(), 0);
        assert_eq!((shares.book.next(at(1_000)).0, shares.turn_at(FLOOD)), (at(1_000), None));
    }

    /// A device that stopped for 3 ms starts all that it was promised for 3 ms late. Counted for each batch, the next
    /// promise was ever further away than the device was free, which idled while all were refused.
    #[test]
    fn what_one_batch_is_late_is_counted_once_and_not_for_each_that_waits_behind_it() {
        let (device, takes) = (DeviceId(0), Duration::from_millis(5));
        let mut book = Book::default();
        book.begin(&[(device, at(0))]);
        let promised: Vec<Turn> = (0..3).map(|_| book.take(at(0), takes)).collect();
        assert_eq!(promised.iter().map(|turn| turn.start_at).collect::<Vec<_>>(), [at(0), at(5), at(10)]);
        let mut free_at = at(3);
        for turn in promised {
            let now = free_at;
            assert_eq!(book.next(now).0, at(18));
            free_at += takes;
            book.start(device, free_at, Some(turn));
        }
        assert_eq!(book.next(free_at).0, at(18));
        assert_eq!(book.next(at(20)).0, at(20), "it idled since");
    }

    /// The turn was left in the book, so that the device of its line was promised to nobody for ever.
    #[test]
    fn a_batch_on_a_device_that_the_book_does_not_know_gives_its_turn_back() {
        let takes = Duration::from_millis(5);
        let mut book = Book::default();
        book.begin(&[(DeviceId(0), at(0))]);
        let turn = book.take(at(0), takes);
        book.start(DeviceId(7), at(5), Some(turn));
        assert_eq!(book.next(at(0)).0, at(0));
    }

    /// Each look at the next turn took all of them out of the order and put them in again.
    #[test]
    fn devices_that_idle_and_were_promised_to_nobody_are_left_in_their_order() {
        let mut book = Book::default();
        book.begin(&(0..100).map(|device| (DeviceId(device), at(0))).collect::<Vec<_>>());
        let before = book.order.clone();
        assert_eq!(book.next(at(50)).0, at(50));
        assert_eq!(book.order, before);
        let turn = book.take(at(50), Duration::from_millis(5));
        assert_eq!((turn.start_at, book.next(at(50)).0), (at(50), at(50)), "the others idle still");
    }

    /// It joined the turn in which its first row had room, and took a turn for the others that nobody had asked for:
    /// far behind its deadline, and in the way of those that could be met.
    #[test]
    fn a_request_of_several_rows_is_let_in_only_if_the_turn_of_its_last_row_is_in_time() {
        let mut shares = flooded();
        let (queued, _) = fill(&mut shares, at(1_000));
        let mut in_time = |rows| {
            shares.done_at(at(1_000), FLOOD, &times(), (queued - 1, rows), OBJECTIVE).unwrap() <= at(1_000) + OBJECTIVE
        };
        assert!(in_time(1), "the last turn has room for one more");
        assert!(!in_time(2));
    }

    #[test]
    fn a_request_in_a_hurry_is_let_in_for_a_smaller_batch() {
        let mut shares = flooded();
        let hurried = Duration::from_millis(12);
        let done_at = shares.done_at(at(1_000), FLOOD, &times(), (0, 1), hurried).unwrap();
        assert!(done_at <= at(1_012), "{done_at:?}");
        assert!(shares.done_at(at(1_000), FLOOD, &times(), (0, 1), OBJECTIVE).unwrap() > at(1_012));
    }

    #[test]
    fn with_enough_for_all_nobody_is_limited() {
        let mut shares = flooded();
        ask(&mut shares, 1_000..5_000, |_| 0, 1, 0.6);
        assert!(!shares.is_short());
        assert_eq!(shares.done_at(at(5_000), FLOOD, &times(), (100, 1), OBJECTIVE), None);
    }

    #[test]
    fn devices_are_not_short_while_nobody_is_lost_whatever_the_demand_seems_to_be() {
        let mut shares = Shares::default();
        shares.add_model(FLOOD, Fairness::default());
        ask(&mut shares, 0..1_000, |_| 0, 10, 0.99);
        assert!(!shares.is_short(), "bursts are run in larger batches than their mean rate lets expect");
        ask(&mut shares, 1_000..1_200, |_| 0, 10, 1.0);
        assert!(shares.is_short());
        ask(&mut shares, 1_200..1_800, |_| 0, 10, 0.5);
        assert!(!shares.is_short(), "devices are idle, so that it must be turns that lose");
    }

    #[test]
    fn batches_are_planned_as_large_as_what_comes_fills_them() {
        // 18 take 23 of 25 ms, and in the 2 that are left 20 come. That four devices can't follow each other so evenly
        // that everybody finds one is no reason to plan with 15.
        assert_eq!(cheapest(&times(), 1e4, 25e-3, 0.0).1, 18);
        assert_eq!(flooded().batch_of(FLOOD), Some(18));
    }

    #[test]
    fn debts_of_a_burst_do_not_count() {
        let mut shares = flooded();
        let share = &mut shares.models[FLOOD.index()];
        let seconds = |part: f64| Duration::from_secs_f64(part * BURST * share.allowed);
        let (half, twice) = (seconds(0.5), seconds(2.0));
        share.borrow(at(1_000), half);
        assert!(share.paid_at() <= at(1_000));
        share.borrow(at(1_000), twice);
        assert!(share.paid_at() > at(1_000));
    }

    #[test]
    fn a_burst_gives_nobody_turns_until_it_was_rehearsed_what_they_cost() {
        let mut shares = Shares::default();
        shares.add_model(FLOOD, Fairness::default());
        let lose = |shares: &mut Shares, millis: std::ops::Range<u64>, one_in| {
            for now in millis.clone() {
                (0..100).for_each(|k| {
                    if k % one_in == 0 { shares.refused() } else { shares.settled(FLOOD, at(now), true) }
                });
            }
            ask(shares, millis, |_| 0, 10, 0.99);
        };
        lose(&mut shares, 0..1_000, 7);
        assert!(shares.is_short() && shares.is_open(), "one in seven");
        lose(&mut shares, 1_000..2_000, 3);
        assert!(shares.is_short() && !shares.is_open(), "one in three");
        lose(&mut shares, 2_000..4_000, 7);
        assert!(shares.is_short() && !shares.is_open(), "turns lose fewer, and stay");
        shares.set_open(true);
        lose(&mut shares, 4_000..5_000, 3);
        assert!(shares.is_open(), "rehearsals know better");
    }

    #[test]
    fn the_book_begins_when_turns_do_and_not_when_devices_ran_short() {
        let mut shares = flooded();
        shares.set_open(true);
        ask(&mut shares, 1_000..1_100, |_| 0, 10, 1.0);
        shares.set_open(false);
        let free_at = free([at(1_130), at(1_140), at(1_150), at(1_160)]);
        let times = times();
        shares.compute(at(1_120), &free_at, 1.0, |_| Some(&times));
        let lines = shares.book.lines.iter().map(|line| (line.device, line.busy_until));
        assert!(lines.eq(free_at), "a turn is promised on a device that will be free");
    }

    #[test]
    fn where_everybody_is_let_in_nobody_has_turns_and_the_quiet_still_go_first() {
        let mut shares = flooded();
        shares.set_open(true);
        ask(&mut shares, 1_000..1_100, |millis| u32::from(millis % 25 == 0), 10, 1.0);
        assert!(shares.is_short() && shares.is_entitled(QUIET) && shares.is_open());
        assert_eq!(shares.done_at(at(1_100), FLOOD, &times(), (100, 1), OBJECTIVE), None);
    }

    #[test]
    fn a_flood_is_noticed_in_a_tenth_of_a_second() {
        let mut shares = Shares::default();
        [QUIET, FLOOD].into_iter().for_each(|model| shares.add_model(model, Fairness::default()));
        ask(&mut shares, 0..1_000, |millis| u32::from(millis % 25 == 0), 1, 0.6);
        assert!(!shares.is_short());
        ask(&mut shares, 1_000..1_101, |millis| u32::from(millis % 25 == 0), 10, 1.0);
        assert!(shares.is_short() && shares.batch_of(FLOOD).is_some());
    }

    #[test]
    fn those_that_were_let_in_and_given_up_leave_more_time_for_delays() {
        let mut shares = flooded();
        let before = shares.done_at(at(1_000), FLOOD, &times(), (0, 1), OBJECTIVE).unwrap();
        (0..100).for_each(|_| shares.settled(FLOOD, at(0), false));
        assert_eq!(shares.kept, 0.0, "they came before anyone was limited");
        (0..100).for_each(|_| shares.settled(FLOOD, at(999), false));
        assert!(shares.done_at(at(1_000), FLOOD, &times(), (0, 1), OBJECTIVE).unwrap() > before);
        let answered = (100.0 / GIVEN_UP) as usize - 100;
        (0..answered).for_each(|_| shares.settled(FLOOD, at(999), true));
        assert!(shares.kept > 0.0 && shares.kept < STEP * 2.0, "so many are as it should be: {}", shares.kept);
    }

    fn level(demands: &[(f64, f64, f64)], there: f64) -> f64 {
        let demand =
            |&(wants, weight, floor)| ShareDemand { model: QUIET, wants, fairness: Fairness { weight, floor } };
        pour(&demands.iter().map(demand).collect::<Vec<_>>(), there)
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6
    }

    #[test]
    fn water_is_poured_until_it_is_used_up() {
        assert!(near(level(&[(5.0, 1.0, 0.0), (0.5, 1.0, 0.0), (3.0, 1.0, 0.0)], 4.5), 2.0));
        assert!(near(level(&[(5.0, 1.0, 0.0)], 4.0), 4.0));
    }

    #[test]
    fn who_has_twice_the_weight_gets_twice_the_level() {
        assert!(near(level(&[(9.0, 2.0, 0.0), (9.0, 1.0, 0.0)], 6.0), 2.0));
        assert!(near(level(&[(1.0, 2.0, 0.0), (9.0, 1.0, 0.0)], 6.0), 5.0), "what it doesn't want is the others'");
    }

    #[test]
    fn a_floor_is_there_in_any_case_and_taken_from_the_others() {
        assert!(near(level(&[(9.0, 1.0, 0.5), (9.0, 1.0, 0.0), (9.0, 1.0, 0.0)], 6.0), 1.5));
        assert!(
            near(level(&[(9.0, 1.0, 0.1), (9.0, 1.0, 0.0), (9.0, 1.0, 0.0)], 6.0), 2.0),
            "a share above the floor is as it was"
        );
        assert!(near(level(&[(1.0, 1.0, 0.5), (9.0, 1.0, 0.0)], 6.0), 5.0), "what it doesn't want is the others'");
    }
}
