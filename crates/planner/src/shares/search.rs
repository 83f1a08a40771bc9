//! The fewest GPUs that carry everything, exactly.
//!
//! Few models can share anything: of nine there are 512 sets. For each set and each size of share it is found out
//! whether its models can take turns there, in cycles of some lengths. What a set tolerates from the other share, and
//! what it does to it, are a number each (`interference.rs`), so that whether two sets can share a GPU is two
//! comparisons. Then GPUs are filled one after another, and all sets of models that so many GPUs can carry are known:
//!
//! ```text
//!  sets in a share ──> pairs of sets on a GPU ──> sets on 1, 2, 3, ... GPUs ──> the first that holds all models
//! ```
//!
//! A model that is asked for more than a GPU can do has GPUs of its own until the rest fits. Where everything doesn't
//! fit, the models with the most to do are tried in halves. Where there are many models, each GPU is filled as well as
//! the next few of them allow.

use super::cycle::{Sharing, batch_in};
use super::{DIVISIONS, PlannedGpu, PlannedShare, SharePlan, SharedModel, WHOLE};

/// Lengths of cycles that are tried beside those in which a batch is just full, each longer than the one before by the
/// same factor; and where it may take as long as it likes.
const CYCLES: usize = 256;
const MORE_CYCLES: usize = 2_048;
/// So many models or halves of them are looked at together: each more doubles the sets.
const TOGETHER: usize = 10;
/// Halves are tried of so many models, those with the most to do first: more of them find hardly more plans.
const HALVED: usize = 3;

/// A model, or a part of its requests.
type Item = (usize, f64);
/// A set of items, a bit for each.
type ItemSet = usize;

/// The plan with the fewest GPUs; `None` where those that there are don't carry everything.
pub fn search(sharing: &Sharing<'_>) -> Option<SharePlan> {
    search_with(sharing, CYCLES, HALVED)
}

/// The same, with all lengths of cycles and halves of any models, whatever time it takes: what others are measured by.
pub fn ideal(sharing: &Sharing<'_>) -> Option<SharePlan> {
    search_with(sharing, MORE_CYCLES, usize::MAX)
}

/// The plan before, as long as it still carries what is asked and fewer GPUs wouldn't: a plan that changes with every
/// rate costs more than it gains. `None` where the GPUs that there are don't carry everything.
pub fn search_again(sharing: &Sharing<'_>, before: &SharePlan) -> Option<SharePlan> {
    let kept = keep(sharing, before);
    match (search(sharing), kept) {
        (Some(found), Some(kept)) if kept.gpus.len() <= found.gpus.len() => Some(kept),
        (found, kept) => found.or(kept),
    }
}

/// The same shares with the rates of now, in the same proportions.
fn keep(sharing: &Sharing<'_>, before: &SharePlan) -> Option<SharePlan> {
    let now = |model: usize| sharing.models[model].rate / before.rate_of(model);
    let gpus = before.gpus.iter().map(|gpu| {
        let shares = gpu.shares.iter().map(|share| {
            let turns = share.turns.iter().filter(|turn| sharing.models[turn.model].rate > 0.0);
            let members: Vec<Item> = turns.map(|turn| (turn.model, turn.rate * now(turn.model))).collect();
            match members.is_empty() {
                true => Some(PlannedShare { percent: share.percent, ..PlannedShare::default() }),
                false => sharing.cycle(share.percent, &members, None),
            }
        });
        sharing.together(&PlannedGpu { shares: shares.collect::<Option<_>>()? })
    });
    let plan = SharePlan { gpus: gpus.collect::<Option<_>>()? };
    plan.carries(sharing.models).then_some(plan)
}

fn search_with(sharing: &Sharing<'_>, cycles: usize, halved: usize) -> Option<SharePlan> {
    let mut plan = SharePlan::default();
    let mut items = Vec::new();
    for (model, SharedModel { mut rate, .. }) in sharing.models.iter().cloned().enumerate() {
        let most = sharing.affordable(model, WHOLE);
        while rate > most {
            plan.gpus.push(PlannedGpu { shares: vec![sharing.cycle(WHOLE, &[(model, most)], None)?] });
            rate -= most;
            if plan.gpus.len() > sharing.gpus {
                return None;
            }
        }
        if rate > 0.0 {
            items.push((model, rate));
        }
    }
    let left = sharing.gpus - plan.gpus.len();
    let rest = if items.len() > TOGETHER {
        fill_one_by_one(sharing, items, left, cycles)?
    } else {
        fill_exactly(sharing, items, left, cycles, halved)?
    };
    plan.gpus.extend(rest);
    Some(plan)
}

fn fill_exactly(
    sharing: &Sharing<'_>,
    mut items: Vec<Item>,
    gpus: usize,
    cycles: usize,
    halved: usize,
) -> Option<Vec<PlannedGpu>> {
    // What has the most to do comes first: it is halved first, too.
    items.sort_by(|one, other| load(sharing, *other).total_cmp(&load(sharing, *one)));
    if let Some(found) = Sets::new(sharing, &items, cycles).fill(gpus) {
        return Some(found);
    }
    let loads: f64 = items.iter().map(|&item| load(sharing, item)).sum();
    if loads > gpus as f64 {
        return None;
    }
    let count = items.len().min(halved);
    let single = (0..count).map(|first| vec![first]);
    let pairs = (0..count).flat_map(|first| (0..first).map(move |second| vec![second, first]));
    // Two at a time take twice as long and find hardly more.
    let pairs = pairs.filter(|_| halved == usize::MAX);
    single.chain(pairs).filter(|choice| items.len() + choice.len() <= TOGETHER + 1).find_map(|choice| {
        let mut parts = items.clone();
        for &index in &choice {
            parts[index].1 /= 2.0;
            parts.push(parts[index]);
        }
        Sets::new(sharing, &parts, cycles).fill(gpus)
    })
}

/// Each GPU in turn has the set with the most to do of the next few items.
fn fill_one_by_one(sharing: &Sharing<'_>, mut items: Vec<Item>, gpus: usize, cycles: usize) -> Option<Vec<PlannedGpu>> {
    items.sort_by(|one, other| load(sharing, *other).total_cmp(&load(sharing, *one)));
    let mut filled = Vec::new();
    while !items.is_empty() {
        if filled.len() == gpus {
            return None;
        }
        // The largest ones, and the smallest to fill what they leave.
        let (large, small) = (TOGETHER / 2, TOGETHER - TOGETHER / 2);
        let looked_at: Vec<usize> =
            (0..items.len()).filter(|&index| index < large || index + small >= items.len()).collect();
        let window: Vec<Item> = looked_at.iter().map(|&index| items[index]).collect();
        let sets = Sets::new(sharing, &window, cycles);
        let weight = |set: ItemSet| members(&window, set).iter().map(|&item| load(sharing, item)).sum::<f64>();
        let best = (1..sets.on_one.len()).filter(|&set| set & 1 == 1 && sets.on_one[set].is_some());
        let best = best.max_by(|&one, &other| weight(one).total_cmp(&weight(other)))?;
        filled.push(sets.plan(best)?);
        for index in (0..window.len()).rev().filter(|index| best >> index & 1 == 1) {
            items.remove(looked_at[index]);
        }
    }
    Some(filled)
}

/// The part of a GPU's time that an item needs at least.
fn load(sharing: &Sharing<'_>, (model, rate): Item) -> f64 {
    rate / sharing.affordable(model, WHOLE)
}

fn members(items: &[Item], set: ItemSet) -> Vec<Item> {
    items.iter().enumerate().filter(|(index, _)| set >> index & 1 == 1).map(|(_, item)| *item).collect()
}

/// How a set of items takes turns in a share.
#[derive(Clone, Copy, Debug)]
struct TurnTaking {
    cycle: f64,
    /// The most pressure, as a logarithm, beside which it is still in time; and what it does to others.
    tolerates: f64,
    presses: f64,
}

/// How a set of items is divided on a GPU.
#[derive(Clone, Copy, Debug)]
struct Divided {
    division: usize,
    /// What is in the first share; the rest is in the second.
    first: ItemSet,
}

/// What one item is in one share, for each length of cycle.
struct InCycles {
    takes: Vec<f32>,
    /// With its own sensitivity.
    suffers: Vec<f32>,
    /// How many times that it has time for.
    slack: Vec<f32>,
    presses: Vec<f32>,
}

struct Sets<'a> {
    sharing: &'a Sharing<'a>,
    items: &'a [Item],
    shares: Vec<u32>,
    /// For each share the sets that can take turns in it.
    in_share: Vec<Vec<Option<TurnTaking>>>,
    /// The sets that one GPU carries.
    on_one: Vec<Option<Divided>>,
}

impl<'a> Sets<'a> {
    fn new(sharing: &'a Sharing<'a>, items: &'a [Item], cycles: usize) -> Self {
        let mut shares: Vec<u32> = DIVISIONS.iter().flat_map(|division| division.iter().copied()).collect();
        shares.sort_unstable();
        shares.dedup();
        let cycles = lengths(sharing, items, cycles);
        // From the largest share down: what can't take turns there can't in a smaller one.
        let mut in_share: Vec<Vec<Option<TurnTaking>>> = Vec::new();
        for &share in shares.iter().rev() {
            let larger = in_share.last().map(Vec::as_slice);
            let found = take_turns(sharing, items, share, &cycles, larger);
            in_share.push(found);
        }
        in_share.reverse();
        let mut sets = Self { sharing, items, shares, in_share, on_one: vec![None; 1 << items.len()] };
        sets.divide();
        sets
    }

    fn of(&self, share: u32) -> &[Option<TurnTaking>] {
        let index = self.shares.binary_search(&share).expect("every share of a division is listed");
        &self.in_share[index]
    }

    /// Finds the sets that one GPU carries, and how it is divided for each.
    fn divide(&mut self) {
        let mut on_one = std::mem::take(&mut self.on_one);
        for (division, shares) in DIVISIONS.iter().enumerate() {
            let listed = |share: u32| -> Vec<(ItemSet, TurnTaking)> {
                let sets = self.of(share).iter().enumerate();
                sets.filter_map(|(set, turns)| Some((set, (*turns)?))).collect()
            };
            match shares {
                [share] => listed(*share).into_iter().for_each(|(set, _)| {
                    on_one[set].get_or_insert(Divided { division, first: set });
                }),
                [share, other] => {
                    let others = listed(*other);
                    for (first, turns) in listed(*share) {
                        let beside = others.iter().filter(|(second, _)| first & second == 0);
                        for (second, others) in beside {
                            let set = first | second;
                            let in_time = turns.tolerates >= others.presses && others.tolerates >= turns.presses;
                            if in_time && on_one[set].is_none() {
                                on_one[set] = Some(Divided { division, first });
                            }
                        }
                    }
                }
                _ => {}
            }
        }
        self.on_one = on_one;
    }

    /// The GPUs that carry all items, so many at most.
    fn fill(&self, gpus: usize) -> Option<Vec<PlannedGpu>> {
        let all = self.on_one.len() - 1;
        let carried: Vec<ItemSet> = (1..=all).filter(|&set| self.on_one[set].is_some()).collect();
        // For each set that so many GPUs carry, what the last of them has.
        let mut last = vec![None; all + 1];
        let mut reached: Vec<ItemSet> = vec![0];
        let mut count = 0;
        while last[all].is_none() && all > 0 {
            if count == gpus || reached.is_empty() {
                return None;
            }
            count += 1;
            let mut next = Vec::new();
            for &set in &reached {
                // The next GPU has the first item that none has yet: the order of GPUs doesn't matter.
                let first = 1 << (!set).trailing_zeros();
                for &more in carried.iter().filter(|&&more| more & first != 0 && more & set == 0) {
                    if last[set | more].is_none() {
                        last[set | more] = Some(more);
                        next.push(set | more);
                    }
                }
            }
            reached = next;
        }
        let mut filled = Vec::new();
        let mut left = all;
        while left > 0 {
            let more = last[left]?;
            filled.push(self.plan(more)?);
            left &= !more;
        }
        filled.reverse();
        Some(filled)
    }

    /// How one GPU carries a set.
    fn plan(&self, set: ItemSet) -> Option<PlannedGpu> {
        let Divided { division, first } = self.on_one[set]?;
        let parts = [first, set & !first];
        let shares = DIVISIONS[division].iter().zip(parts).map(|(&percent, part)| {
            let turns = self.of(percent)[part]?;
            match part {
                0 => Some(PlannedShare { percent, ..PlannedShare::default() }),
                _ => self.sharing.turns(percent, turns.cycle, &members(self.items, part), None),
            }
        });
        self.sharing.together(&PlannedGpu { shares: shares.collect::<Option<_>>()? })
    }
}

/// Lengths of cycles to try: those in which a batch is just full, since a longer one means a larger batch and a shorter
/// one less time for the same; and some between them.
fn lengths(sharing: &Sharing<'_>, items: &[Item], more: usize) -> Vec<f64> {
    let objectives = items.iter().map(|&(model, _)| sharing.models[model].objective);
    let shortest = items.iter().map(|&(model, _)| sharing.models[model].times.of(WHOLE, 1));
    let (from, to) = (shortest.fold(f64::INFINITY, f64::min), objectives.fold(0.0, f64::max));
    let step = (to / from).powf(1.0 / more as f64);
    let mut cycles: Vec<f64> = (0..more).map(|index| from * step.powi(index as i32)).collect();
    for &(model, rate) in items {
        let full = (1..=sharing.models[model].times.largest_batch()).map(|batch| f64::from(batch) / rate);
        cycles.extend(full.filter(|&cycle| cycle > from && cycle < to));
    }
    cycles.sort_by(f64::total_cmp);
    // What is hardly longer isn't looked at.
    cycles.dedup_by(|next, kept| *next < *kept * (1.0 + 1e-6));
    cycles
}

/// For each set of items how they take turns in a share, if they can, and can in a larger share.
fn take_turns(
    sharing: &Sharing<'_>,
    items: &[Item],
    share: u32,
    cycles: &[f64],
    larger: Option<&[Option<TurnTaking>]>,
) -> Vec<Option<TurnTaking>> {
    // Who slows nobody down does so little: slow-downs are never below 1.
    let gentlest = gentlest(sharing, items);
    let alone: Vec<InCycles> = items.iter().map(|&item| in_cycles(sharing, item, share, cycles, gentlest)).collect();
    let nobody = TurnTaking { cycle: 0.0, tolerates: f64::INFINITY, presses: f64::NEG_INFINITY };
    let mut found: Vec<Option<TurnTaking>> = vec![Some(nobody)];
    let width = cycles.len();
    let lengths: Vec<f32> = cycles.iter().map(|&cycle| cycle as f32).collect();
    // For each set and each length: what all batches take, what they take with their sensitivity, and the least slack.
    let mut sums = vec![0.0_f32; (3 * width) << items.len()];
    sums[2 * width..3 * width].fill(f32::INFINITY);
    for set in 1_usize..1 << items.len() {
        let (newest, before) = (set.ilog2() as usize, set & !(1 << set.ilog2()));
        // A part of a set that can take turns can, too.
        if found[before].is_none() || larger.is_some_and(|larger| larger[set].is_none()) {
            found.push(None);
            continue;
        }
        let (known, new) = sums.split_at_mut(3 * width * set);
        let known = &known[3 * width * before..][..3 * width];
        let (takes, rest) = new[..3 * width].split_at_mut(width);
        let (suffers, slack) = rest.split_at_mut(width);
        let item = &alone[newest];
        let (mut best, mut most) = (None, 0.0);
        for index in 0..width {
            takes[index] = known[index] + item.takes[index];
            suffers[index] = known[width + index] + item.suffers[index];
            slack[index] = known[2 * width + index].min(item.slack[index]);
            let tolerates = slack[index].min(lengths[index] / suffers[index]);
            if takes[index] <= lengths[index] && tolerates > most {
                (best, most) = (Some(index), tolerates);
            }
        }
        found.push(best.map(|index| {
            let members = (0..items.len()).filter(|item| set >> item & 1 == 1);
            let presses = members.map(|item| alone[item].presses[index]).fold(f32::NEG_INFINITY, f32::max);
            TurnTaking { cycle: cycles[index], tolerates: f64::from(most).ln(), presses: presses.into() }
        }));
    }
    found
}

/// The least pressure of any batch of these items.
fn gentlest(sharing: &Sharing<'_>, items: &[Item]) -> f64 {
    let corners = items.iter().flat_map(|&(model, _)| {
        let sizes = [1, sharing.models[model].times.largest_batch()];
        let shares = DIVISIONS.iter().flat_map(|division| division.iter().copied());
        shares.flat_map(move |share| sizes.map(|size| (model, size, share)))
    });
    let pressures =
        corners.map(|(model, size, share)| sharing.interference.pressure(sharing.batch(model, size, share)));
    pressures.fold(f64::INFINITY, f64::min)
}

fn in_cycles(sharing: &Sharing<'_>, (model, rate): Item, share: u32, cycles: &[f64], gentlest: f64) -> InCycles {
    let SharedModel { objective, times, .. } = &sharing.models[model];
    let never = f32::INFINITY;
    let count = cycles.len();
    let mut found = InCycles {
        takes: vec![never; count],
        suffers: vec![never; count],
        slack: vec![0.0; count],
        presses: vec![never; count],
    };
    let mut known = (0, 0.0, 0.0, 0.0);
    for (index, &cycle) in cycles.iter().enumerate() {
        let size = batch_in(cycle, rate);
        if size > times.largest_batch() || cycle >= *objective {
            break;
        }
        if known.0 != size {
            let batch = sharing.batch(model, size, share);
            let sensitivity = sharing.interference.sensitivity(batch).max(-gentlest);
            known = (size, times.of(share, size), sensitivity, sharing.interference.pressure(batch));
        }
        let (_, takes, sensitivity, presses) = known;
        if cycle + takes > *objective {
            continue;
        }
        found.takes[index] = takes as f32;
        found.suffers[index] = (takes * sensitivity.exp()) as f32;
        found.slack[index] = ((objective - cycle) / (takes * sensitivity.exp())) as f32;
        found.presses[index] = presses as f32;
    }
    found
}
