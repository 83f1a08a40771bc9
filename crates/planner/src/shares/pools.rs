//! Shares that several models use together: some GPUs are divided, all in the same way, and each model runs in all
//! shares of the sizes that are worth it.
//!
//! A plan of single shares (`search.rs`) promises that everybody is in time whatever happens in a cycle, and pays for it:
//! a model that is bound to one share can't use another one that idles. The scheduler needs no such promise. What it
//! can use is *pools*: whole GPUs, small shares, large shares. Each model costs so much of a pool's time for each of its
//! requests, in the largest batches that are in time there, beside the others. The most that can be carried is a linear
//! program, and its dual is small: a price for each pool.
//!
//! ```text
//!  carries = 1 / max over prices p of  sum over models of  rate * min over pools of  p * cost
//! ```
//!
//! At the best prices every model runs where it is cheapest; where two pools cost it nearly the same, in both.

use super::cycle::Sharing;
use super::{Arrangement, BatchInShare, DIVISIONS, SLOTS, SharedModel, Slot, WHOLE};

/// The part of its objective that a batch may take: before it starts, its requests gather, and wait for others' batches.
const PART: f64 = 0.6;
/// Shares are used where they carry so many times what whole GPUs do: predictions are off by a few percent, and what is
/// whole is quicker for whoever comes alone.
const WORTH: f64 = 1.05;
/// A model may run in pools that cost it up to so many times what the cheapest does.
const NEARLY: f64 = 1.1;
/// Steps of each of two nested searches for prices: a third is left of what each leaves.
const STEPS: usize = 24;
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
    /// and how many times whole GPUs would.
    pub whole: f64,
    /// For each model, whether it may run in each pool.
    may: Vec<[bool; POOLS]>,
}

/// The pools that carry the most; whole GPUs where shares don't pay.
pub fn pools(sharing: &Sharing<'_>) -> Pools {
    let whole = Pools::of(sharing, &[], 0);
    let divisions = DIVISIONS.iter().filter(|division| division.len() == SLOTS);
    let choices = divisions.flat_map(|&division| (1..=sharing.gpus).map(move |divided| (division, divided)));
    let best = choices.map(|(division, divided)| Pools::of(sharing, division, divided));
    let best = best.max_by(|one, other| one.carries.total_cmp(&other.carries));
    let carried = whole.carries;
    let best = best.filter(|best| best.carries > WORTH * carried).unwrap_or(whole);
    Pools { whole: carried, ..best }
}

impl Pools {
    fn of(sharing: &Sharing<'_>, division: &'static [u32], divided: usize) -> Self {
        let sizes: [Option<u32>; POOLS] = std::array::from_fn(|pool| match pool.checked_sub(1) {
            None => (divided < sharing.gpus).then_some(WHOLE),
            Some(place) => division.get(place).copied(),
        });
        let capacity: [f64; POOLS] =
            std::array::from_fn(|pool| if pool == 0 { sharing.gpus - divided } else { divided } as f64);
        // What runs beside it is any of the others, as often as it is asked for.
        let pressures = [0, 1].map(|place| division.get(1 - place).map(|&size| pressure(sharing, size)));
        let costs: Vec<[f64; POOLS]> = (0..sharing.models.len())
            .map(|model| {
                std::array::from_fn(|pool| {
                    let beside = pool.checked_sub(1).and_then(|place| pressures[place]);
                    sizes[pool].map_or(f64::INFINITY, |size| cost(sharing, model, size, beside))
                })
            })
            .collect();
        let (carries, prices) = best_prices(sharing, &costs, capacity);
        let may = costs.iter().map(|costs| {
            let paid: [f64; POOLS] = std::array::from_fn(|pool| prices[pool] * costs[pool]);
            let least = paid.iter().copied().fold(f64::INFINITY, f64::min);
            paid.map(|paid| paid.is_finite() && paid <= NEARLY * least)
        });
        Self { division, divided, gpus: sharing.gpus, carries, whole: carries, may: may.collect() }
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

/// What a request of a model costs of a share's time, in the largest batches that are in time.
fn cost(sharing: &Sharing<'_>, model: usize, percent: u32, beside: Option<f64>) -> f64 {
    let SharedModel { objective, times, .. } = &sharing.models[model];
    let takes = |batch: u32| {
        let sensitivity = |()| sharing.interference.sensitivity(BatchInShare { times, batch, share: percent });
        let slowdown = beside.map_or(1.0, |pressure| (sensitivity(()) + pressure).exp().max(1.0));
        times.of(percent, batch) * slowdown
    };
    let sizes = (1..=times.largest_batch()).map(|batch| (batch, takes(batch)));
    let in_time = sizes.filter(|(_, takes)| *takes <= PART * objective);
    in_time.map(|(batch, takes)| takes / f64::from(batch)).fold(f64::INFINITY, f64::min)
}

/// What the batches of all models in shares of that size do to others, on average by what they have to do.
fn pressure(sharing: &Sharing<'_>, percent: u32) -> f64 {
    let (mut sum, mut weights) = (0.0, 0.0);
    for (index, model) in sharing.models.iter().enumerate().filter(|(_, model)| model.rate > 0.0) {
        let cost = cost(sharing, index, percent, None);
        if cost.is_finite() {
            let batch = (model.times.largest_batch() / 2).max(1);
            let weight = model.rate * cost;
            sum += weight * sharing.interference.pressure(BatchInShare { times: &model.times, batch, share: percent });
            weights += weight;
        }
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
        if there.len() < POOLS { (value(split(first, 0.0)), 0.0) } else { highest(|second| (value(split(first, second)), second)) }
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
