//! The fewest GPUs that carry everything, exactly.
//!
//! Few models can share anything: of nine there are 512 sets. For each set and each size of share the cycle is found in
//! which the set tolerates most from the other share. Between two lengths at which somebody's batch grows by one
//! request all batches stay as they are; there a longer cycle leaves more time for all batches and less for each
//! request, and what is tolerated is highest where both are as scarce:
//!
//! ```text
//!  tolerates      ╱╲         all batches: cycle / (what they take)           rises
//!               ╱    ╲       one request: (objective - cycle) / (its batch)  falls
//!             ╱        ╲
//!           ──┴────┴─────┴──> cycle; at each mark a batch grows
//! ```
//!
//! What a set tolerates from the other share, and what it does to it, are a number each (`interference.rs`), so that
//! whether two sets can share a GPU is two comparisons. Whoever has a place keeps it when others leave, so that only
//! the largest sets on a GPU matter when GPUs are filled:
//!
//! ```text
//!  sets in a share ──> pairs of sets on a GPU ──> the largest of these ──> how many of them hold all models
//! ```
//!
//! A model that is asked for more than a GPU can do has GPUs of its own until the rest fits. Where everything doesn't
//! fit, but all models but one do, that one is tried in two parts. Where there are many models, each GPU is filled as
//! well as the next few of them allow.

use super::cycle::{Sharing, batch_in};
use super::{DIVISIONS, PlannedGpu, PlannedShare, SIZES, SLOTS, SharePlan, SharedModel, WHOLE};

/// So many models or halves of them are looked at together: each more doubles the sets.
const TOGETHER: usize = 10;
/// How often models are cut in two; and with all the time in the world. Each more takes twenty times as long.
const CUTS: usize = 1;
const MORE_CUTS: usize = 2;
/// What of a model's requests one part has where it is cut.
const PARTS: [f64; 5] = [0.5, 0.6, 0.7, 0.8, 0.9];
/// What is longer by less than this part is as long.
const SAME: f64 = 1e-6;

/// A model, or a part of its requests.
type Item = (usize, f64);
/// A set of items, a bit for each.
type ItemSet = usize;

/// The plan with the fewest GPUs; `None` where those that there are don't carry everything.
pub fn search(sharing: &Sharing<'_>) -> Option<SharePlan> {
    search_with(sharing, CUTS)
}

/// The same with more cuts, whatever time it takes: what others are measured by.
pub fn ideal(sharing: &Sharing<'_>) -> Option<SharePlan> {
    search_with(sharing, MORE_CUTS)
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

fn search_with(sharing: &Sharing<'_>, cuts: usize) -> Option<SharePlan> {
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
    // What has the most to do comes first.
    items.sort_by(|one, other| load(sharing, *other).total_cmp(&load(sharing, *one)));
    let left = sharing.gpus - plan.gpus.len();
    let batches = Batches::new(sharing, &items);
    let rest = if items.len() > TOGETHER {
        fill_one_by_one(sharing, &batches, items, left)?
    } else {
        fill_exactly(sharing, &batches, &items, left, cuts)?
    };
    plan.gpus.extend(rest);
    Some(plan)
}

fn fill_exactly(
    sharing: &Sharing<'_>,
    batches: &Batches,
    items: &[Item],
    gpus: usize,
    cuts: usize,
) -> Option<Vec<PlannedGpu>> {
    let sets = Sets::new(sharing, batches, items);
    let all = sets.all();
    if sets.needs[all] <= gpus {
        return sets.fill(all);
    }
    // The others must have a place.
    let able = |index: &usize| sets.needs[all & !(1 << index)] <= gpus;
    let able: Vec<usize> = (0..items.len()).filter(|index| items.len() <= TOGETHER && able(index)).collect();
    // As few cuts as can be.
    (0..cuts).find_map(|more| {
        let mut choices = able.iter().flat_map(|&index| PARTS.map(|part| (index, part)));
        choices.find_map(|(index, part)| {
            let mut cut = items.to_vec();
            let (model, rate) = cut[index];
            cut[index].1 = rate * part;
            cut.push((model, rate * (1.0 - part)));
            fill_exactly(sharing, batches, &cut, gpus, more)
        })
    })
}

/// Each GPU in turn has the set with the most to do of the next few items.
fn fill_one_by_one(
    sharing: &Sharing<'_>,
    batches: &Batches,
    mut items: Vec<Item>,
    gpus: usize,
) -> Option<Vec<PlannedGpu>> {
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
        let sets = Sets::new(sharing, batches, &window);
        let weight = |set: ItemSet| members(&window, set).iter().map(|&item| load(sharing, item)).sum::<f64>();
        let best = (1..=sets.all()).filter(|&set| set & 1 == 1 && sets.needs[set] == 1);
        let best = best.max_by(|&one, &other| weight(one).total_cmp(&weight(other)))?;
        filled.extend(sets.fill(best)?);
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

/// A batch in a share.
#[derive(Clone, Copy, Debug)]
struct Batch {
    /// Seconds, alone and with the gap; and the least of any batch from this size on.
    takes: f64,
    least: f64,
    /// Seconds, with its own sensitivity and without the gap.
    suffers: f64,
    /// What it does to others, as a logarithm.
    presses: f64,
}

/// What the batches of all models are, for each size of share, by size from 1 on.
struct Batches(Vec<[Vec<Batch>; SIZES.len()]>);

impl Batches {
    fn new(sharing: &Sharing<'_>, items: &[Item]) -> Self {
        let mut all: Vec<[Vec<Batch>; SIZES.len()]> = sharing.models.iter().map(|_| Default::default()).collect();
        // Who slows nobody down does so little: slow-downs are never below 1.
        let mut gentlest = f64::INFINITY;
        for &(model, rate) in items {
            let SharedModel { objective, times, .. } = &sharing.models[model];
            let most = batch_in(*objective, rate).min(times.largest_batch());
            for (share, batches) in SIZES.into_iter().zip(&mut all[model]) {
                for size in 1..=most {
                    let takes = times.of(share, size) + sharing.gap;
                    let [mut sensitivity, mut presses] = [f64::INFINITY; 2];
                    // A cycle is as long as the batch at least.
                    if 2.0 * takes <= *objective {
                        let batch = sharing.batch(model, size, share);
                        sensitivity = sharing.interference.sensitivity(batch);
                        presses = sharing.interference.pressure(batch);
                        gentlest = gentlest.min(presses);
                    }
                    batches.push(Batch { takes, least: takes, suffers: sensitivity, presses });
                }
            }
        }
        for batches in all.iter_mut().flatten() {
            let mut least = f64::INFINITY;
            for batch in batches.iter_mut().rev() {
                least = least.min(batch.takes);
                batch.least = least;
                batch.suffers = (batch.takes - sharing.gap) * batch.suffers.max(-gentlest).exp();
            }
        }
        Self(all)
    }
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
    /// What is in each share, and maybe more.
    parts: [ItemSet; SLOTS],
    /// The share's cycles, in seconds.
    cycles: [f64; SLOTS],
}

struct Sets<'a> {
    sharing: &'a Sharing<'a>,
    items: &'a [Item],
    /// For each size of share and each set how it can take turns there: of two ways the one that tolerates more also
    /// does more to others.
    in_share: Vec<Vec<Vec<TurnTaking>>>,
    /// The sets that one GPU carries.
    on_one: Vec<Option<Divided>>,
    /// For each set how many GPUs it needs, and what the last of them has.
    needs: Vec<usize>,
    last: Vec<ItemSet>,
}

impl<'a> Sets<'a> {
    fn new(sharing: &'a Sharing<'a>, batches: &Batches, items: &'a [Item]) -> Self {
        // From the largest share down: what can't take turns there can't in a smaller one.
        let mut in_share: Vec<Vec<Vec<TurnTaking>>> = Vec::new();
        for index in (0..SIZES.len()).rev() {
            let of = |&(model, rate): &Item| Turns {
                rate,
                objective: sharing.models[model].objective,
                gap: sharing.gap,
                batches: &batches.0[model][index],
                size: 1,
            };
            let alone: Vec<Turns<'_>> = items.iter().map(of).collect();
            in_share.push(take_turns(&alone, in_share.last().map(Vec::as_slice)));
        }
        in_share.reverse();
        let count = 1 << items.len();
        let mut sets = Self {
            sharing,
            items,
            in_share,
            on_one: vec![None; count],
            needs: vec![usize::MAX; count],
            last: vec![0; count],
        };
        sets.divide();
        sets.count();
        sets
    }

    /// All items.
    fn all(&self) -> ItemSet {
        self.on_one.len() - 1
    }

    fn of(&self, share: u32) -> &[Vec<TurnTaking>] {
        let index = SIZES.binary_search(&share).expect("every share of a division is a size");
        &self.in_share[index]
    }

    /// Finds the sets that one GPU carries, and how it is divided for each.
    fn divide(&mut self) {
        let mut on_one = std::mem::take(&mut self.on_one);
        for (division, shares) in DIVISIONS.iter().enumerate() {
            let listed = |share: u32| -> Vec<(ItemSet, TurnTaking)> {
                let sets = self.of(share).iter().enumerate();
                sets.flat_map(|(set, turns)| turns.iter().map(move |turns| (set, *turns))).collect()
            };
            match shares {
                [share] => listed(*share).into_iter().for_each(|(set, turns)| {
                    on_one[set].get_or_insert(Divided { division, parts: [set, 0], cycles: [turns.cycle, 0.0] });
                }),
                [share, other] => {
                    let others = listed(*other);
                    for (first, turns) in listed(*share) {
                        let beside = others.iter().filter(|(second, _)| first & second == 0);
                        for &(second, others) in beside {
                            let in_time = turns.tolerates >= others.presses && others.tolerates >= turns.presses;
                            if in_time {
                                let divided =
                                    Divided { division, parts: [first, second], cycles: [turns.cycle, others.cycle] };
                                on_one[first | second].get_or_insert(divided);
                            }
                        }
                    }
                }
                _ => {}
            }
        }
        // A part of what has a place has the same.
        for set in (1..on_one.len()).rev() {
            if on_one[set].is_none() {
                on_one[set] = self.with_one_more(set).find_map(|larger| on_one[larger]);
            }
        }
        self.on_one = on_one;
    }

    /// The sets with one more item.
    fn with_one_more(&self, set: ItemSet) -> impl Iterator<Item = ItemSet> + use<> {
        (0..self.items.len()).map(move |index| set | 1 << index).filter(move |&larger| larger != set)
    }

    /// Finds how many GPUs each set needs.
    fn count(&mut self) {
        let is_largest = |&set: &ItemSet| {
            self.on_one[set].is_some() && self.with_one_more(set).all(|larger| self.on_one[larger].is_none())
        };
        let largest: Vec<ItemSet> = (1..self.on_one.len()).filter(is_largest).collect();
        self.needs[0] = 0;
        for set in 1..self.needs.len() {
            // The last GPU has the first item: the order of GPUs doesn't matter.
            let first = set & set.wrapping_neg();
            for &has in largest.iter().filter(|&&has| has & first != 0) {
                let needs = self.needs[set & !has].saturating_add(1);
                if needs < self.needs[set] {
                    (self.needs[set], self.last[set]) = (needs, set & has);
                }
            }
        }
    }

    /// The GPUs that carry a set.
    fn fill(&self, set: ItemSet) -> Option<Vec<PlannedGpu>> {
        let mut filled = Vec::new();
        let mut left = set;
        while left > 0 {
            filled.push(self.plan(self.last[left])?);
            left &= !self.last[left];
        }
        Some(filled)
    }

    /// How one GPU carries a set.
    fn plan(&self, set: ItemSet) -> Option<PlannedGpu> {
        let Divided { division, parts, cycles } = self.on_one[set]?;
        let shares =
            DIVISIONS[division].iter().zip(parts).zip(cycles).map(|((&percent, part), cycle)| match part & set {
                0 => Some(PlannedShare { percent, ..PlannedShare::default() }),
                part => self.sharing.turns(percent, cycle, &members(self.items, part), None),
            });
        self.sharing.together(&PlannedGpu { shares: shares.collect::<Option<_>>()? })
    }
}

/// An item that takes turns in a share.
#[derive(Clone, Copy)]
struct Turns<'a> {
    rate: f64,
    objective: f64,
    gap: f64,
    batches: &'a [Batch],
    /// Of its batches in the cycles that are looked at.
    size: u32,
}

impl Turns<'_> {
    fn batch(&self) -> &Batch {
        &self.batches[self.size as usize - 1]
    }

    /// What a request has for a cycle and the computing of its batch.
    fn has(&self) -> f64 {
        self.objective - self.gap
    }

    /// The longest cycle with batches of this size.
    fn longest(&self) -> f64 {
        f64::from(self.size) / self.rate
    }
}

/// For each set of items how they take turns in a share, if they can, and can in a larger share.
fn take_turns(items: &[Turns<'_>], larger: Option<&[Vec<TurnTaking>]>) -> Vec<Vec<TurnTaking>> {
    let nobody = TurnTaking { cycle: 0.0, tolerates: f64::INFINITY, presses: f64::NEG_INFINITY };
    let mut found: Vec<Vec<TurnTaking>> = vec![vec![nobody]];
    let mut members = Vec::with_capacity(items.len());
    for set in 1_usize..1 << items.len() {
        // A part of a set that can take turns can, too.
        let before = set & !(1 << set.ilog2());
        let able = !found[before].is_empty() && larger.is_none_or(|larger| !larger[set].is_empty());
        members.clear();
        members.extend(items.iter().enumerate().filter(|(index, _)| able && set >> index & 1 == 1).map(|(_, it)| *it));
        found.push(if able { best_cycles(&mut members) } else { Vec::new() });
    }
    found
}

/// The cycle in which items tolerate most, if there is one in which they are in time alone.
fn best_cycles(members: &mut [Turns<'_>]) -> Vec<TurnTaking> {
    let shortest = members.iter().map(|it| it.objective).fold(f64::INFINITY, f64::min);
    let mut best: Vec<TurnTaking> = Vec::new();
    let mut from = 0.0_f64;
    loop {
        // No cycle is shorter than all batches; in a longer one they are as large or larger.
        loop {
            let least: f64 = members.iter().map(|it| it.batch().least).sum();
            from = from.max(least);
            if from >= shortest {
                return best;
            }
            let mut same = true;
            for it in members.iter_mut() {
                let size = batch_in(from, it.rate).max(it.size);
                if size as usize > it.batches.len() {
                    return best;
                }
                same &= size == it.size;
                it.size = size;
            }
            if same {
                break;
            }
        }
        let to = members.iter().map(Turns::longest).fold(f64::INFINITY, f64::min);
        let takes: f64 = members.iter().map(|it| it.batch().takes).sum();
        let latest = members.iter().map(|it| it.objective - it.batch().takes).fold(to, f64::min);
        if from.max(takes) <= latest {
            let suffers: f64 = members.iter().map(|it| it.batch().suffers).sum();
            let gaps: f64 = members.iter().map(|it| it.gap).sum();
            let balanced = members.iter().map(|it| {
                let own = it.batch().suffers;
                (it.has() * suffers + gaps * own) / (suffers + own)
            });
            let cycle = balanced.fold(f64::INFINITY, f64::min).clamp(from.max(takes), latest);
            let slack = members.iter().map(|it| (it.has() - cycle) / it.batch().suffers);
            let tolerates = slack.fold((cycle - gaps) / suffers, f64::min).ln();
            let presses = members.iter().map(|it| it.batch().presses).fold(f64::NEG_INFINITY, f64::max);
            if !best.iter().any(|other| other.tolerates >= tolerates && other.presses <= presses) {
                best.retain(|other| other.tolerates > tolerates || other.presses < presses);
                best.push(TurnTaking { cycle, tolerates, presses });
            }
        }
        // A little more, so that somebody's batch is larger.
        from = to * (1.0 + SAME);
    }
}
