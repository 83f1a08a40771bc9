//! Assignments without a solver: greedy, and exchanges of models between two parts for as long as they gain.

use super::PlacementProblem;
use super::assignment::{Assignment, Load, Scale, bytes_excess, change, change_excess, rate_excess};
use std::time::Instant;

/// So many exchanges are looked at in one improvement: a second or two, and the same on every machine that isn't so
/// busy that time runs out before.
const MOST_LOOKS: u64 = 100_000_000;
/// Two models against one are tried only between parts whose combinations are fewer than this.
const MOST_TRIPLES: usize = 1_000_000;
/// A gain smaller than this isn't one.
const LEAST_GAIN: f64 = 1e-12;
/// What moving everything counts against a sum of squares of 1, while bounded cost is being spent: first only on
/// exchanges that bring much for their cost, then on others.
const PRICES: [f64; 8] = [4.0, 1.0, 0.25, 0.06, 0.015, 0.004, 0.001, 0.0];

/// Models that are somewhere stay there; the others go, largest first, where the part's load stays lowest.
pub(super) fn greedy(problem: &PlacementProblem) -> Assignment<'_> {
    let scale = Scale::of(problem);
    let rate = |model: usize| share(problem.models[model].rate_rps, scale.rate);
    let bytes = |model: usize| share(problem.models[model].static_bytes as f64, scale.bytes);
    let mut part_of: Vec<usize> = problem.models.iter().map(|model| model.previous.unwrap_or(0)).collect();
    let mut loads = vec![(0.0, 0.0, 0_u64, 0_u64, 0.0); problem.parts];
    let put = |loads: &mut Vec<(f64, f64, u64, u64, f64)>, model: usize, part: usize| {
        let (load, it) = (&mut loads[part], &problem.models[model]);
        load.0 += rate(model);
        load.1 += bytes(model);
        load.2 += it.static_bytes;
        load.3 = load.3.max(it.dynamic_bytes);
        load.4 += it.rate_rps;
    };
    for (model, it) in problem.models.iter().enumerate() {
        if let Some(part) = it.previous {
            put(&mut loads, model, part);
        }
    }
    let mut homeless: Vec<usize> =
        (0..problem.models.len()).filter(|&m| problem.models[m].previous.is_none()).collect();
    homeless.sort_by(|&a, &b| (rate(b) + bytes(b)).total_cmp(&(rate(a) + bytes(a))).then(a.cmp(&b)));
    for model in homeless {
        let it = &problem.models[model];
        let cost = |&(rates, shares, held, dynamic, rps): &(f64, f64, u64, u64, f64)| {
            let excess = rate_excess(problem, rps + it.rate_rps)
                + bytes_excess(problem, held.saturating_add(it.static_bytes), dynamic.max(it.dynamic_bytes));
            (excess, (rates + rate(model)).max(shares + bytes(model)))
        };
        let better = |a: &(f64, f64), b: &(f64, f64)| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1));
        let part = (0..problem.parts).min_by(|&a, &b| better(&cost(&loads[a]), &cost(&loads[b])).then(a.cmp(&b)));
        let part = part.expect("there is at least one part");
        put(&mut loads, model, part);
        part_of[model] = part;
    }
    Assignment::new(problem, part_of)
}

fn share(value: f64, average: f64) -> f64 {
    if average > 0.0 { value / average } else { 0.0 }
}

/// Exchanges models for as long as that gains: first until the sum of squares is low, which every exchange can improve,
/// then until the objective is, which only exchanges with the farthest parts can.
pub(super) fn improve(mut assignment: Assignment<'_>, give_up_at: Instant) -> Assignment<'_> {
    let problem = assignment.problem();
    let mut budget = SearchBudget { looks: 0, give_up_at };
    if problem.has_previous() {
        for price in PRICES {
            descend(&mut assignment, Aim::Squares { price }, &mut budget);
        }
    } else {
        descend(&mut assignment, Aim::Squares { price: 0.0 }, &mut budget);
    }
    descend(&mut assignment, Aim::Objective, &mut budget);
    assignment
}

/// What an improvement may spend.
struct SearchBudget {
    looks: u64,
    give_up_at: Instant,
}

impl SearchBudget {
    fn is_empty(&self) -> bool {
        self.looks >= MOST_LOOKS || Instant::now() >= self.give_up_at
    }
}

/// What counts after the bounds.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Aim {
    /// The sum of squared deviations of all parts, plus the cost of changes at a price.
    Squares { price: f64 },
    /// The objective of the program; the squares where that is equal.
    Objective,
}

impl Aim {
    /// Two models against one are worth trying: they are many, and what one against one can do is done before.
    fn is_fine(self) -> bool {
        match self {
            Self::Squares { price } => price == 0.0,
            Self::Objective => true,
        }
    }
}

/// Goes over all pairs of parts until none of them gains any more. A pair that gained nothing is looked at again when
/// one of its parts has changed, and once more at the end: what another part has become may let it gain after all.
fn descend(assignment: &mut Assignment<'_>, aim: Aim, budget: &mut SearchBudget) {
    let parts = assignment.problem().parts;
    let mut changed_at = vec![1_u64; parts];
    let mut looked_at = vec![0_u64; parts * parts];
    let (mut now, mut last_round) = (1, false);
    loop {
        let mut gained = false;
        for a in 0..parts {
            for b in a + 1..parts {
                if !last_round && looked_at[a * parts + b] >= changed_at[a].max(changed_at[b]) {
                    continue;
                }
                while !budget.is_empty() {
                    let Some(best) = best_exchange(assignment, a, b, aim, &mut budget.looks) else { break };
                    assignment.exchange(a, b, best.from_a.models(), best.from_b.models());
                    gained = true;
                    now += 1;
                    (changed_at[a], changed_at[b]) = (now, now);
                }
                looked_at[a * parts + b] = now;
            }
        }
        if budget.is_empty() || (!gained && last_round) {
            return;
        }
        last_round = !gained;
    }
}

/// Up to two models.
#[derive(Clone, Copy, Debug)]
struct UpToTwo {
    models: [usize; 2],
    count: usize,
}

impl UpToTwo {
    fn models(&self) -> &[usize] {
        &self.models[..self.count]
    }
}

#[derive(Clone, Copy, Debug)]
struct Exchange {
    from_a: UpToTwo,
    from_b: UpToTwo,
}

/// What is compared: excess over the bounds, then the aim, then the squares.
type ExchangeValue = (f64, f64, f64);

fn is_less(new: ExchangeValue, old: ExchangeValue) -> bool {
    let clearly = |new: f64, old: f64| new < old - LEAST_GAIN;
    let equal = |new: f64, old: f64| (new - old).abs() <= LEAST_GAIN;
    clearly(new.0, old.0)
        || equal(new.0, old.0) && (clearly(new.1, old.1) || equal(new.1, old.1) && clearly(new.2, old.2))
}

/// All that a pair's keys share: the other parts, and the weights.
struct Pair<'a> {
    problem: &'a PlacementProblem,
    scale: Scale,
    aim: Aim,
    loads: [Load; 2],
    /// The farthest of the other parts.
    others: (f64, f64),
    cost: f64,
}

impl Pair<'_> {
    fn key(&self, gives: [&[usize]; 2], parts: [usize; 2]) -> ExchangeValue {
        let (mut excess, mut squares) = (0.0, 0.0);
        let (mut rate_far, mut bytes_far) = self.others;
        let weight = self.problem.memory_weight;
        let mut cost = self.cost;
        for side in 0..2 {
            let (load, gone, come) = (&self.loads[side], gives[side], gives[1 - side]);
            let (mut rate, mut bytes, mut dynamic) = (load.rate, load.bytes, load.dynamic_without(gone));
            for &model in come {
                let it = &self.problem.models[model];
                rate += it.rate_rps;
                bytes += it.static_bytes;
                dynamic = dynamic.max(it.dynamic_bytes);
                cost += change(self.problem, model, parts[side]) - change(self.problem, model, parts[1 - side]);
            }
            for &model in gone {
                rate -= self.problem.models[model].rate_rps;
                bytes -= self.problem.models[model].static_bytes;
            }
            excess += rate_excess(self.problem, rate) + bytes_excess(self.problem, bytes, dynamic);
            let rate_off = if self.scale.rate > 0.0 { (rate / self.scale.rate - 1.0).abs() } else { 0.0 };
            let bytes_off = if self.scale.bytes > 0.0 { (bytes as f64 / self.scale.bytes - 1.0).abs() } else { 0.0 };
            squares += rate_off * rate_off + weight * weight * bytes_off * bytes_off;
            rate_far = rate_far.max(rate_off);
            bytes_far = bytes_far.max(bytes_off);
        }
        excess += change_excess(self.problem, cost);
        match self.aim {
            Aim::Squares { price } => (excess, squares + price * self.scale.cost * cost, 0.0),
            Aim::Objective => (excess, rate_far + weight * bytes_far + self.scale.change_weight * cost, squares),
        }
    }
}

/// The exchange between two parts that gains most, if one gains.
fn best_exchange(assignment: &Assignment<'_>, a: usize, b: usize, aim: Aim, looks: &mut u64) -> Option<Exchange> {
    let problem = assignment.problem();
    let scale = Scale::of(problem);
    let loads = assignment.loads();
    let far = |load: &Load| {
        let off = |value: f64, average: f64| if average > 0.0 { (value / average - 1.0).abs() } else { 0.0 };
        (off(load.rate, scale.rate), off(load.bytes as f64, scale.bytes))
    };
    let others =
        loads.iter().enumerate().filter(|(part, _)| *part != a && *part != b).fold((0.0, 0.0), |most, (_, load)| {
            let (rate, bytes) = far(load);
            (f64::max(most.0, rate), f64::max(most.1, bytes))
        });
    let pair = Pair { problem, scale, aim, loads: [loads[a], loads[b]], others, cost: assignment.change_cost() };
    let mut best = (pair.key([&[], &[]], [a, b]), None);
    let mut look = |from_a: UpToTwo, from_b: UpToTwo| {
        *looks += 1;
        let key = pair.key([from_a.models(), from_b.models()], [a, b]);
        if is_less(key, best.0) {
            best = (key, Some(Exchange { from_a, from_b }));
        }
    };
    let (in_a, in_b) = (assignment.members(a), assignment.members(b));
    let nothing = UpToTwo { models: [0; 2], count: 0 };
    let one = |model: usize| UpToTwo { models: [model, 0], count: 1 };
    for &model in in_a {
        look(one(model), nothing);
        for &other in in_b {
            look(one(model), one(other));
        }
    }
    for &model in in_b {
        look(nothing, one(model));
    }
    let triples = in_a.len() * in_b.len() * (in_a.len() + in_b.len()) / 2;
    if aim.is_fine() && triples <= MOST_TRIPLES {
        for (position, &first) in in_a.iter().enumerate() {
            for &second in &in_a[position + 1..] {
                for &other in in_b {
                    look(UpToTwo { models: [first, second], count: 2 }, one(other));
                }
            }
        }
        for (position, &first) in in_b.iter().enumerate() {
            for &second in &in_b[position + 1..] {
                for &other in in_a {
                    look(one(other), UpToTwo { models: [first, second], count: 2 });
                }
            }
        }
    }
    best.1
}
