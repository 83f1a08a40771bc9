//! Shares that several models use together: some GPUs are divided, all in the same way, and each model runs in all
//! shares of the sizes that are worth it.
//!
//! A plan of single shares (`search.rs`) promises that everybody is in time whatever happens in a cycle, and pays for
//! it: a model that is bound to one share can't use another one that idles. The scheduler needs no such promise. What
//! it can use is *pools*: whole GPUs, small shares, large shares. Each model costs so much of a pool's time for each of
//! its requests, in the largest batches that are in time there, beside the others. The most that can be carried is a
//! linear program, and its dual is small: a price for each pool.
//!
//! ```text
//!  carries = 1 / max over prices p of  sum over models of  rate * min over pools of  p * cost
//! ```
//!
//! At the best prices every model runs where it is cheapest; where two pools cost it nearly the same, in both.
//!
//! A batch costs its device more time than it computes: until the next one is there, the device does nothing
//! ([`Sharing::gap`]). In shares the others compute meanwhile:
//!
//! ```text
//!  whole   ▕▓▓ a ▓▓▕   ▕▒ b ▒▕   ▕▓▓ a ▓▓▕   ▕▒ b ▒▕
//!  halves  ▕▓▓▓▓▓ a ▓▓▓▓▓▕   ▕▒▒ b ▒▒▕   ▕▓▓▓▓▓ a ▓▓
//!          ▒▒ b ▒▒▕   ▕▓▓▓▓▓ a ▓▓▓▓▓▕   ▕▒▒ b ▒▒▕
//! ```
//!
//! Nothing is broken off, and nobody keeps batches short for others: the scheduler runs the batches that suit each
//! model. So who has little time and finds long batches before him is lost, unless devices idle, or the *urgent* are
//! kept apart: the models with the shortest objectives may have the small shares to themselves.

use super::cycle::Sharing;
use super::{Arrangement, BatchInShare, DIVISIONS, SLOTS, SharedModel, Slot, WHOLE};

/// The part of its objective that a batch may take: before it starts, its requests gather, and wait for others'
/// batches. On one device no more than half: the next one gathers while it runs.
const PART: f64 = 0.6;
/// Shares are used where they carry so many times what whole GPUs do: predictions are off by a few percent, and what is
/// whole is quicker for whoever comes alone.
const WORTH: f64 = 1.05;
/// A model may run in pools that cost it up to so many times what the cheapest does.
const NEARLY: f64 = 1.1;
/// A model may be beside others while it would find all its devices with longer batches than it can wait for in no more
/// than this part of the time, if these were always busy: they aren't, and batches are often shorter.
const LOST: f64 = 0.05;
/// Batches stay shorter than they might be only where little waits: devices that carry what they do in short
/// batches for no more than this part of the time do so by themselves. Simulated, whole GPUs carry 0.76 to 0.84 of
/// that.
const SHORT: f64 = 0.8;
/// Steps of each of two nested searches for prices: each leaves two thirds, so that prices are right to 0.4 %.
const STEPS: usize = 14;
/// Whole GPUs, and the shares of the others by their place.
const POOLS: usize = 1 + SLOTS;

/// How GPUs are divided for everybody together.
#[derive(Clone, PartialEq, Debug)]
pub struct Pools {
    /// The shares of the divided GPUs, in percent; empty where none is.
    pub division: &'static [u32],
    /// How many GPUs are divided.
    pub divided: usize,
    /// How many are there.
    pub gpus: usize,
    /// How many times of the rates they are predicted to carry,
    pub carries: f64,
    /// how many times whole GPUs would,
    pub whole: f64,
    /// and how many times the best shares would; 0 where there are none.
    pub shares: f64,
    /// How many models with the shortest objectives have the small shares to themselves.
    pub urgent: usize,
    /// For each model, whether it may run in each pool.
    may: Vec<[bool; POOLS]>,
}

/// The pools that carry the most; whole GPUs where shares don't pay.
pub fn pools(sharing: &Sharing<'_>) -> Pools {
    let whole = Costs::new(sharing, &[]).pools(0, 0);
    let divisions = DIVISIONS.iter().filter(|division| division.len() == SLOTS);
    let mut best = None;
    for &division in divisions {
        let costs = Costs::new(sharing, division);
        for divided in 1..=sharing.gpus {
            let found = (0..costs.by_objective.len()).map(|urgent| costs.pools(divided, urgent));
            best = found.chain(best).max_by(|one, other| one.carries.total_cmp(&other.carries));
        }
    }
    let (carried, shares) = (whole.carries, best.as_ref().map_or(0.0, |best| best.carries));
    let best = best.filter(|best| best.carries > WORTH * carried).unwrap_or(whole);
    Pools { whole: carried, shares, ..best }
}

/// Which batches models run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BatchLength {
    /// Those that suit each of them.
    Own,
    /// So short ones that everybody who has less time can wait for them.
    Short,
}

/// What batches of the models are like in each pool.
struct InPools {
    /// Seconds of a device for each request; infinite where none is in time.
    costs: Vec<[f64; POOLS]>,
    /// Seconds that a batch takes.
    lengths: Vec<[f64; POOLS]>,
    /// Devices.
    capacity: [f64; POOLS],
}

impl InPools {
    fn none(models: usize, capacity: [f64; POOLS]) -> Self {
        Self { costs: vec![[f64::INFINITY; POOLS]; models], lengths: vec![[0.0; POOLS]; models], capacity }
    }
}

/// What batches take in the shares of a division, beside the others.
struct Costs<'a> {
    sharing: &'a Sharing<'a>,
    division: &'static [u32],
    /// For each model and pool, what batches take, by size from 1 on, never less than smaller ones.
    takes: Vec<[Vec<f64>; POOLS]>,
    /// Models that are asked for, the shortest objective first.
    by_objective: Vec<usize>,
}

impl<'a> Costs<'a> {
    fn new(sharing: &'a Sharing<'a>, division: &'static [u32]) -> Self {
        let size = |pool: usize| match pool.checked_sub(1) {
            None => Some(WHOLE),
            Some(place) => division.get(place).copied(),
        };
        // What runs beside it is any of the others, as often as it is asked for.
        let beside = |pool: usize| division.get(SLOTS - pool.min(SLOTS)).filter(|_| pool > 0);
        let pressures: [Option<f64>; POOLS] =
            std::array::from_fn(|pool| beside(pool).map(|&size| pressure(sharing, size)));
        let of = |model: &SharedModel| -> [Vec<f64>; POOLS] {
            std::array::from_fn(|pool| {
                let Some(share) = size(pool) else { return Vec::new() };
                let mut longest = 0.0_f64;
                let mut takes = |batch: u32| {
                    let batch = BatchInShare { times: &model.times, batch, share };
                    let slowdown = |pressure: f64| (sharing.interference.sensitivity(batch) + pressure).exp().max(1.0);
                    let slowdown = pressures[pool].map_or(1.0, slowdown);
                    longest = longest.max(model.times.of(share, batch.batch) * slowdown + sharing.gap);
                    longest
                };
                (1..=model.times.largest_batch()).map(&mut takes).collect()
            })
        };
        let asked = |model: &usize| sharing.models[*model].rate > 0.0;
        let mut by_objective: Vec<usize> = (0..sharing.models.len()).filter(asked).collect();
        let objective = |model: usize| sharing.models[model].objective;
        by_objective.sort_by(|&one, &other| objective(one).total_cmp(&objective(other)));
        Self { sharing, division, takes: sharing.models.iter().map(of).collect(), by_objective }
    }

    /// So many GPUs divided, with the small shares for so many urgent models alone; for everybody where that is none.
    fn pools(&self, divided: usize, urgent: usize) -> Pools {
        let gpus = self.sharing.gpus;
        let capacity: [f64; POOLS] =
            std::array::from_fn(|pool| if pool == 0 { gpus - divided } else { divided } as f64);
        let (urgent, others) = self.by_objective.split_at(urgent);
        let run = |batches: BatchLength| -> Pools {
            let mut in_pools = InPools::none(self.takes.len(), capacity);
            for (members, among) in [(urgent, [false, true, false]), (others, [true, urgent.is_empty(), true])] {
                let able = |pool: &usize| among[*pool] && capacity[*pool] > 0.0;
                self.share_pools(members, &(0..POOLS).filter(able).collect::<Vec<_>>(), batches, &mut in_pools);
            }
            let (carries, prices) = best_prices(self.sharing, &in_pools.costs, capacity);
            let may: Vec<_> = (0..self.takes.len()).map(|model| self.may(model, &in_pools, prices)).collect();
            let busy = match batches {
                BatchLength::Own => {
                    self.by_objective.iter().map(|&model| self.busy_for(model, &in_pools, &may)).fold(1.0, f64::min)
                }
                BatchLength::Short => SHORT,
            };
            let (whole, shares) = (busy * carries, 0.0);
            Pools { division: self.division, divided, gpus, carries: whole, whole, shares, urgent: urgent.len(), may }
        };
        let (own, short) = (run(BatchLength::Own), run(BatchLength::Short));
        if short.carries > own.carries { short } else { own }
    }

    /// What batches of these models are like that have these pools together.
    fn share_pools(&self, members: &[usize], pools: &[usize], batches: BatchLength, in_pools: &mut InPools) {
        let devices: f64 = pools.iter().map(|&pool| in_pools.capacity[pool]).sum();
        let mut shortest_wait = f64::INFINITY;
        for &model in members {
            let objective = self.sharing.models[model].objective;
            let alone = pools.iter().map(|&pool| self.takes[model][pool][0]).fold(f64::INFINITY, f64::min);
            // Those before it have less time.
            let longest = if batches == BatchLength::Short { shortest_wait } else { f64::INFINITY };
            let most = longest.min(PART.min(devices / (devices + 1.0)) * objective);
            // Before the scheduler knows where a batch will run, it plans it for the smallest of the shares.
            let in_time = |&pool: &usize| self.takes[model][pool].partition_point(|&takes| takes <= most);
            let able = || pools.iter().filter(|pool| in_time(pool) > 0);
            let in_time = able().map(in_time).min().unwrap_or(0);
            for &pool in able() {
                let takes = &self.takes[model][pool];
                let each = takes[..in_time].iter().zip(1..).map(|(&takes, batch)| (takes / f64::from(batch), takes));
                let best = each.min_by(|one, other| one.0.total_cmp(&other.0));
                (in_pools.costs[model][pool], in_pools.lengths[model][pool]) = best.unwrap_or((f64::INFINITY, 0.0));
            }
            // One of so many devices is free after a part of what a batch takes.
            shortest_wait = shortest_wait.min(devices * (objective - alone));
        }
    }

    /// In which pools a model runs at these prices.
    fn may(&self, model: usize, in_pools: &InPools, prices: [f64; POOLS]) -> [bool; POOLS] {
        let InPools { costs, capacity, .. } = in_pools;
        let paid: [f64; POOLS] = std::array::from_fn(|pool| prices[pool] * costs[model][pool]);
        let least = paid.iter().copied().fold(f64::INFINITY, f64::min);
        // Whoever nobody asks for, or can't be in time anywhere, may run wherever something is.
        let unknown = self.sharing.models[model].rate == 0.0 || least == f64::INFINITY;
        std::array::from_fn(|pool| match unknown {
            true => capacity[pool] > 0.0,
            false => paid[pool].is_finite() && paid[pool] <= NEARLY * least,
        })
    }

    /// For which part of the time the devices that a model may use may be busy with others' batches, so that it finds
    /// one of them in time.
    fn busy_for(&self, model: usize, in_pools: &InPools, may: &[[bool; POOLS]]) -> f64 {
        let InPools { costs, lengths, capacity } = in_pools;
        let runs_in = |model: usize, pool: usize| may[model][pool] && costs[model][pool].is_finite();
        let (mut lost, mut devices) = (1.0_f64, 0.0);
        for pool in (0..POOLS).filter(|&pool| capacity[pool] > 0.0 && runs_in(model, pool)) {
            let wait = self.sharing.models[model].objective - self.takes[model][pool][0];
            let (mut all, mut behind) = (0.0, 0.0);
            for &other in self.by_objective.iter().filter(|&&other| runs_in(other, pool)) {
                let work = self.sharing.models[other].rate * costs[other][pool];
                all += work;
                // Of a batch that is found, as much is left as chance has it. Who finds its own model's joins the next.
                if other != model {
                    behind += work * (1.0 - wait / lengths[other][pool]).max(0.0);
                }
            }
            lost *= (behind / all).powf(capacity[pool]);
            devices += capacity[pool];
        }
        if lost <= LOST || devices == 0.0 { 1.0 } else { (LOST / lost).powf(1.0 / devices) }
    }
}

impl Pools {
    /// Whether GPUs are divided as in the other.
    pub fn is_divided_as(&self, other: &Self) -> bool {
        let shape = |pools: &Self| (pools.gpus, pools.divided, if pools.divided > 0 { pools.division } else { &[] });
        shape(self) == shape(other)
    }

    /// The same shares with the rates of now.
    pub fn with_rates(&self, sharing: &Sharing<'_>) -> Self {
        let costs = Costs::new(sharing, self.division);
        // Somebody may have stopped to ask.
        costs.pools(self.divided, self.urgent.min(costs.by_objective.len().saturating_sub(1)))
    }

    /// The same on more GPUs, of which only so many are used.
    pub fn arrangement_on(&self, gpus: usize) -> Arrangement {
        let mut arrangement = self.arrangement();
        arrangement.gpus.resize_with(gpus.max(self.gpus), Default::default);
        arrangement
    }

    /// On the GPUs: which of them is divided, and who may run where.
    pub fn arrangement(&self) -> Arrangement {
        let slot = |percent: u32, pool: usize| {
            let models = self.may.iter().enumerate().filter(|(_, may)| may[pool]).map(|(model, _)| model);
            Slot { percent, models: models.collect() }
        };
        let gpu = |gpu: usize| match gpu < self.divided {
            true => std::array::from_fn(|place| slot(self.division[place], place + 1)),
            false => [slot(WHOLE, 0), Slot::default()],
        };
        Arrangement { gpus: (0..self.gpus).map(gpu).collect() }
    }
}

/// What the batches of all models in shares of that size do to others, on average by what they have to do.
fn pressure(sharing: &Sharing<'_>, percent: u32) -> f64 {
    let (mut sum, mut weights) = (0.0, 0.0);
    for model in sharing.models.iter().filter(|model| model.rate > 0.0) {
        let batch = (model.times.largest_batch() / 2).max(1);
        let weight = model.rate * model.times.of(percent, batch) / f64::from(batch);
        sum += weight * sharing.interference.pressure(BatchInShare { times: &model.times, batch, share: percent });
        weights += weight;
    }
    if weights > 0.0 { sum / weights } else { 0.0 }
}

/// The prices at which everything costs most, and how many times of the rates that carries: a concave function of two
/// variables, since only the ratios of three prices matter.
fn best_prices(sharing: &Sharing<'_>, costs: &[[f64; POOLS]], capacity: [f64; POOLS]) -> (f64, [f64; POOLS]) {
    let there: Vec<usize> = (0..POOLS).filter(|&pool| capacity[pool] > 0.0).collect();
    // Parts of all money that each pool's capacity is worth.
    let prices = |parts: [f64; POOLS]| -> [f64; POOLS] {
        std::array::from_fn(|pool| if capacity[pool] > 0.0 { parts[pool] / capacity[pool] } else { f64::INFINITY })
    };
    let value = |parts: [f64; POOLS]| -> f64 {
        let prices = prices(parts);
        let models = sharing.models.iter().zip(costs).filter(|(model, _)| model.rate > 0.0);
        models
            .map(|(model, costs)| {
                let paid = there.iter().map(|&pool| prices[pool] * costs[pool]);
                model.rate * paid.filter(|paid| !paid.is_nan()).fold(f64::INFINITY, f64::min)
            })
            .sum()
    };
    let split = |first: f64, second: f64| -> [f64; POOLS] {
        let mut parts = [0.0; POOLS];
        match there[..] {
            [one] => parts[one] = 1.0,
            [one, other] => (parts[one], parts[other]) = (first, 1.0 - first),
            _ => parts = [first, (1.0 - first) * second, (1.0 - first) * (1.0 - second)],
        }
        parts
    };
    let inner = |first: f64| -> (f64, f64) {
        if there.len() < POOLS {
            (value(split(first, 0.0)), 0.0)
        } else {
            highest(|second| (value(split(first, second)), second))
        }
    };
    let parts = match there.len() {
        1 => split(1.0, 0.0),
        _ => {
            let (_, first) = highest(|first| (inner(first).0, first));
            split(first, inner(first).1)
        }
    };
    let worth = value(parts);
    (if worth > 0.0 { 1.0 / worth } else { 0.0 }, prices(parts))
}

/// Where a concave function of 0 to 1 is highest: a third goes in each step.
fn highest(of: impl Fn(f64) -> (f64, f64)) -> (f64, f64) {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..STEPS {
        let (left, right) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        if of(left).0 < of(right).0 { low = left } else { high = right }
    }
    of((low + high) / 2.0)
}
