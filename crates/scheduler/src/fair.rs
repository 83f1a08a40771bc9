//! Who may have how much when devices are short: the device time that models ask for, and max-min shares of it.
//!
//! A model's demand is the rate of its rows times what a row takes in batches of the size that this rate and its objective
//! allow. While all demands together fit, nobody is limited. When they don't, time is shared out as water is poured: whoever
//! wants less than the level gets all of it, the others get the level. The batches of a limited model make debts of device time
//! that are paid back at the level; its next batch has its turn when they are paid. A request that would come too late with it is
//! refused at once, and told when it could be answered (DESIGN: fair before full). That debts are made by batches, not by requests, matters:
//! requests are let in when their batch's turn is near, all of them, so that it is large.
//!
//! ```text
//!  demand   ▏█    ▏                     how much there is to share: `ease` x devices
//!           ▏█    ▏    level ┄┄█┄┄┄┄┄   `ease` falls when a request that was let in is given up later,
//!           ▏█ ▄ ▂▏         ▄ █ ▂       and rises while fewer than 1 % are
//!            a b c           b a c
//! ```

use crate::latency::Latency;
use base::{Duration, ModelId, Timestamp};

/// Shares are computed anew after so much time.
const PERIOD: Duration = Duration::from_millis(20);
/// Rates follow what comes with this time constant, in periods.
const MEMORY: f64 = 10.0;
/// Of those that were let in, this part may be given up later.
const GIVEN_UP: f64 = 0.01;
/// What one request that is given up takes from the ease.
const STEP: f64 = 0.002;
/// The bounds of the ease: part of all device time.
const EASE: std::ops::RangeInclusive<f64> = 0.3..=1.15;
/// Devices are short from when they are busy for this part of the time, whatever the demand seems to be; if they are less so while requests are refused, more can be let in.
const BUSY: f64 = 0.9;
/// How much more can be let in then, after each period.
const RELIEF: f64 = 0.01;
/// They are no longer short when the demand is below this part of what there is.
const ENOUGH: f64 = 0.9;
/// The part of its objective that a model's largest batches may take.
const STAGGERED: f64 = 0.8;
/// A model is entitled to go first while it asks for less than this part of the level.
const MODEST: f64 = 0.5;

#[derive(Clone, Debug, Default)]
struct Share {
    /// Rows that came in this period.
    came: f64,
    /// Rows a second, lately.
    rate: f64,
    /// Seconds that its requests have, lately.
    objective: f64,
    /// Seconds of a device for a row.
    cost: f64,
    /// Whether it asks for more than the level.
    limited: bool,
    modest: bool,
    listed: bool,
    /// Seconds of a device that it had beyond its share, as of `since`; negative where it had less.
    debt: f64,
    since: Timestamp,
    /// What its last batch took.
    last: f64,
}

impl Share {
    /// Brings the debt up to date: it is paid back at the level. What a model didn't use is kept for it up to one batch.
    fn debt(&mut self, now: Timestamp, level: f64) -> f64 {
        let paid = level * now.since(self.since).as_secs_f64();
        (self.debt, self.since) = ((self.debt - paid).max(-self.last), now);
        self.debt
    }
}

/// The shares of all models.
#[derive(Clone, Debug)]
pub(crate) struct Shares {
    models: Vec<Share>,
    /// Models that asked lately.
    active: Vec<ModelId>,
    /// Seconds of devices in each second for each model that wants more; `None` while there is enough for all.
    level: Option<f64>,
    ease: f64,
    period_ends_at: Timestamp,
    order: Vec<(f64, ModelId)>,
}

impl Default for Shares {
    fn default() -> Self {
        Self {
            models: Vec::new(),
            active: Vec::new(),
            level: None,
            ease: 1.0,
            period_ends_at: Timestamp::ZERO,
            order: Vec::new(),
        }
    }
}

impl Shares {
    pub fn add_model(&mut self, model: ModelId) {
        if self.models.len() <= model.index() {
            self.models.resize_with(model.index() + 1, Share::default);
        }
    }

    /// Whether devices are short.
    pub fn is_short(&self) -> bool {
        self.level.is_some()
    }

    /// Whether a model goes before others, because it asks for much less than its share while devices are short.
    pub fn is_entitled(&self, model: ModelId) -> bool {
        self.level.is_some() && self.models[model.index()].modest
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

    /// When a request that comes now would be done, if its model has to wait for its turn; `None` where it hasn't. So many rows of it
    /// are queued.
    pub fn turn(
        &mut self,
        now: Timestamp,
        model: ModelId,
        latency: &Latency,
        (queued, rows): (u64, u32),
    ) -> Option<Timestamp> {
        let share = &mut self.models[model.index()];
        let level = self.level.filter(|_| share.limited)?;
        let start_at = now + Duration::from_secs_f64(share.debt(now, level).max(0.0) / level);
        let most = u64::from(latency.largest_within(Duration::from_secs_f64(share.objective * STAGGERED))).max(1);
        let (before, beside) = (queued / most, (queued % most) as u32);
        let full = latency.class_for(most as u32).typical().as_secs_f64();
        let wait = Duration::from_secs_f64(before as f64 * full / level);
        Some(start_at + wait + latency.class_for(beside + rows).expected())
    }

    /// A batch of a model was ordered that takes so long.
    pub fn started(&mut self, now: Timestamp, model: ModelId, expected: Duration) {
        if let Some(level) = self.level {
            let share = &mut self.models[model.index()];
            share.debt = share.debt(now, level) + expected.as_secs_f64();
            share.last = expected.as_secs_f64();
        }
    }

    /// A request that was let in had its end: in time, or given up.
    pub fn settled(&mut self, in_time: bool) {
        if self.level.is_some() {
            let change = if in_time { STEP * GIVEN_UP } else { -STEP };
            self.ease = (self.ease + change).clamp(*EASE.start(), *EASE.end());
        }
    }

    /// Whether it is time to compute the shares.
    pub fn is_due(&self, now: Timestamp) -> bool {
        now >= self.period_ends_at && !self.active.is_empty()
    }

    /// Computes the shares anew. `devices` is how many there are, `busy` the part of them that was busy lately.
    pub fn compute<'a>(
        &mut self,
        now: Timestamp,
        devices: f64,
        busy: f64,
        latency_of: impl Fn(ModelId) -> Option<&'a Latency>,
    ) {
        let periods = (now.since(self.period_ends_at) + PERIOD).as_secs_f64() / PERIOD.as_secs_f64();
        self.period_ends_at = now + PERIOD;
        let (mut total, level_before) = (0.0, self.level);
        self.order.clear();
        let mut active = std::mem::take(&mut self.active);
        active.retain(|&model| {
            let share = &mut self.models[model.index()];
            let kept = (1.0 - 1.0 / MEMORY).powf(periods.min(1e3));
            let rate = std::mem::take(&mut share.came) / (periods * PERIOD.as_secs_f64());
            share.rate = rate + (share.rate - rate) * kept;
            share.listed = share.rate > 1e-3;
            let Some(latency) = latency_of(model).filter(|_| share.listed) else {
                *share = Share::default();
                return false;
            };
            // What it is let do, not what it asks for, makes its batches.
            let allowed = level_before.filter(|_| share.limited).map_or(f64::INFINITY, |level| level / share.cost);
            share.cost = cost(latency, share.rate.min(allowed), share.objective, devices);
            let demand = share.rate * share.cost;
            total += demand;
            self.order.push((demand, model));
            true
        });
        self.active = active;
        let there = self.ease * devices;
        let short = if self.level.is_some() { total > ENOUGH * there } else { total > there && busy >= BUSY };
        self.level = short.then(|| pour(&mut self.order, there));
        if self.level.is_none() {
            self.ease += (1.0 - self.ease) * RELIEF;
        } else if busy < BUSY {
            self.ease = (self.ease + RELIEF).min(*EASE.end());
        }
        for &(demand, model) in &self.order {
            let share = &mut self.models[model.index()];
            let limited = self.level.is_some_and(|level| demand > level);
            if limited && !share.limited {
                (share.debt, share.since) = (0.0, now);
            }
            share.limited = limited;
            share.modest = self.level.is_some_and(|level| demand < MODEST * level);
        }
    }
}

/// The level at which so much is used up; the largest demand where there is more than that.
fn pour(demands: &mut [(f64, ModelId)], there: f64) -> f64 {
    demands.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut left, mut count) = (there, demands.len() as f64);
    for &(demand, _) in &*demands {
        if demand >= left / count {
            break;
        }
        left -= demand;
        count -= 1.0;
    }
    left / count
}

/// Seconds of a device for a row of a model with that rate and objective, in seconds, if its batches are as large as its first
/// request can wait for.
fn cost(latency: &Latency, rate: f64, objective: f64, devices: f64) -> f64 {
    let mut best = f64::INFINITY;
    for class in latency.classes().iter().filter(|class| class.pays) {
        let takes = class.expected().as_secs_f64();
        let rows = f64::from(class.batch);
        let gathered = rows <= 1.0 + rate * (objective - takes) && takes * (1.0 + 1.0 / devices) <= objective;
        if best.is_finite() && !gathered {
            break;
        }
        best = class.typical().as_secs_f64() / rows;
    }
    best.max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Window;
    use base::LatencyProfile;

    const QUIET: ModelId = ModelId(0);
    const FLOOD: ModelId = ModelId(1);

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(millis)
    }

    /// l(b) = b + 5 ms.
    fn latency() -> Latency {
        let sizes: Vec<u32> = (1..=32).collect();
        let (alpha, beta) = (Duration::from_millis(1), Duration::from_millis(5));
        let profile = LatencyProfile::linear(alpha, beta, &sizes, Duration::from_millis(1)).unwrap();
        Latency::new(&profile, Window { size: 10, quantile: 0.99 })
    }

    /// A quiet model and one that is flooded, for a second on four devices.
    fn flooded() -> Shares {
        let latency = latency();
        let mut shares = Shares::default();
        shares.add_model(QUIET);
        shares.add_model(FLOOD);
        for millis in 0..1_000 {
            if millis % 25 == 0 {
                shares.came(QUIET, 1, Duration::from_millis(25));
            }
            shares.came(FLOOD, 10, Duration::from_millis(25));
            if shares.is_due(at(millis)) {
                shares.compute(at(millis), 4.0, 1.0, |_| Some(&latency));
            }
        }
        shares
    }

    #[test]
    fn who_asks_for_little_is_not_limited_beside_a_flood() {
        let mut shares = flooded();
        assert!(shares.is_short() && shares.is_entitled(QUIET) && !shares.is_entitled(FLOOD));
        let latency = latency();
        for _ in 0..10 {
            shares.started(at(1_000), QUIET, Duration::from_millis(6));
            shares.started(at(1_000), FLOOD, Duration::from_millis(15));
        }
        assert_eq!(shares.turn(at(1_000), QUIET, &latency, (0, 1)), None);
        assert!(shares.turn(at(1_000), FLOOD, &latency, (0, 1)).unwrap() > at(1_040));
    }

    #[test]
    fn whoever_is_refused_is_told_when_its_share_is_there() {
        let mut shares = flooded();
        let latency = latency();
        (0..8).for_each(|_| shares.started(at(1_000), FLOOD, Duration::from_millis(15)));
        let done_at = shares.turn(at(1_000), FLOOD, &latency, (0, 1)).unwrap();
        assert!(done_at > at(1_030));
        let turn_at = done_at - Duration::from_millis(6);
        assert_eq!(shares.turn(turn_at, FLOOD, &latency, (0, 1)), Some(done_at));
        assert!(shares.turn(turn_at, FLOOD, &latency, (100, 1)).unwrap() > done_at + Duration::from_millis(20));
    }

    #[test]
    fn with_enough_for_all_nobody_is_limited() {
        let latency = latency();
        let mut shares = flooded();
        for millis in 1_000..3_000 {
            shares.came(FLOOD, 1, Duration::from_millis(25));
            if shares.is_due(at(millis)) {
                shares.compute(at(millis), 4.0, 0.6, |_| Some(&latency));
            }
        }
        assert!(!shares.is_short());
        assert_eq!(shares.turn(at(3_000), FLOOD, &latency, (100, 1)), None);
    }

    #[test]
    fn those_that_were_let_in_and_given_up_make_room_scarcer() {
        let mut shares = flooded();
        let before = shares.ease;
        (0..100).for_each(|_| shares.settled(false));
        assert!(shares.ease < before - 0.1);
        (0..9_000).for_each(|_| shares.settled(true));
        assert!(shares.ease < before, "one in a hundred would keep it where it is: {}", shares.ease);
    }

    #[test]
    fn water_is_poured_until_it_is_used_up() {
        let mut demands = [(5.0, ModelId(0)), (0.5, ModelId(1)), (3.0, ModelId(2))];
        assert_eq!(pour(&mut demands, 4.5), 2.0);
        assert_eq!(pour(&mut [(5.0, ModelId(0))], 4.0), 4.0);
    }
}
