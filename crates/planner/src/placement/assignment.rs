//! An assignment of models to parts, with the sums that its bounds and its objective are made of.

use super::PlacementProblem;

/// Sums of rates are compared with this tolerance, relative to the bound: they are added up in different orders.
pub(super) const TOLERANCE: f64 = 1e-9;

/// What a part holds.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct PartLoad {
    /// How many models.
    pub models: usize,
    /// Their requests per second.
    pub rate_rps: f64,
    /// Their static memory.
    pub static_bytes: u64,
    /// The largest dynamic memory of one of them.
    pub dynamic_bytes: u64,
}

/// How good an assignment is; smaller is better.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Score {
    /// The farthest that a part's rate is from the average, as a share of it: `dR/R`.
    pub rate_deviation: f64,
    /// The farthest that a part's static memory is from the average, as a share of it: `dS/S`.
    pub memory_deviation: f64,
    /// The imbalance factor of rates: (max - min) / average over the parts.
    pub rate_imbalance: f64,
    /// The imbalance factor of static memory.
    pub memory_imbalance: f64,
    /// What the changes cost: the left side of (10).
    pub change_cost: f64,
    /// What is minimised: the deviations, weighted, and a little for the changes.
    pub objective: f64,
}

/// The imbalance factor: (max - min) / average.
fn imbalance(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let (count, sum) = values.clone().fold((0.0, 0.0), |(count, sum), value| (count + 1.0, sum + value));
    let highest = values.clone().fold(f64::NEG_INFINITY, f64::max);
    let lowest = values.fold(f64::INFINITY, f64::min);
    if sum > 0.0 { (highest - lowest) / (sum / count) } else { 0.0 }
}

/// Each model in a part.
#[derive(Clone, Debug)]
pub(super) struct Assignment<'p> {
    problem: &'p PlacementProblem,
    part_of: Vec<usize>,
    members: Vec<Vec<usize>>,
    loads: Vec<Load>,
    change_cost: f64,
}

/// What a part holds, as the search needs it.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Load {
    pub rate: f64,
    pub bytes: u64,
    /// The largest dynamic memories, largest first: one more than an exchange takes out of a part.
    pub dynamic: [(u64, usize); 3],
}

impl Load {
    /// The largest dynamic memory when these models are gone.
    pub fn dynamic_without(&self, gone: &[usize]) -> u64 {
        self.dynamic.iter().find(|(_, model)| !gone.contains(model)).map_or(0, |&(bytes, _)| bytes)
    }
}

/// No model.
const NOBODY: usize = usize::MAX;

impl<'p> Assignment<'p> {
    pub fn new(problem: &'p PlacementProblem, part_of: Vec<usize>) -> Self {
        let mut members = vec![Vec::new(); problem.parts];
        for (model, &part) in part_of.iter().enumerate() {
            members[part].push(model);
        }
        let mut made =
            Self { problem, part_of, members, loads: vec![Load::default(); problem.parts], change_cost: 0.0 };
        for part in 0..problem.parts {
            made.add_up(part);
        }
        made.change_cost = made.all_changes();
        made
    }

    pub fn problem(&self) -> &'p PlacementProblem {
        self.problem
    }

    pub fn part_of(&self) -> &[usize] {
        &self.part_of
    }

    pub fn members(&self, part: usize) -> &[usize] {
        &self.members[part]
    }

    pub fn loads(&self) -> &[Load] {
        &self.loads
    }

    pub fn change_cost(&self) -> f64 {
        self.change_cost
    }

    fn all_changes(&self) -> f64 {
        self.part_of.iter().enumerate().map(|(model, &part)| change(self.problem, model, part)).sum()
    }

    /// Sums a part up from its members, always in the same order: nothing drifts.
    fn add_up(&mut self, part: usize) {
        let mut load = Load { dynamic: [(0, NOBODY); 3], ..Load::default() };
        self.members[part].sort_unstable();
        for &index in &self.members[part] {
            let model = &self.problem.models[index];
            load.rate += model.rate_rps;
            load.bytes += model.static_bytes;
            let mut new = (model.dynamic_bytes, index);
            for kept in &mut load.dynamic {
                if new.0 > kept.0 || kept.1 == NOBODY {
                    std::mem::swap(kept, &mut new);
                }
            }
        }
        self.loads[part] = load;
    }

    /// Puts `from_a`, which is in part `a`, into `b`, and `from_b` the other way.
    pub fn exchange(&mut self, a: usize, b: usize, from_a: &[usize], from_b: &[usize]) {
        for (models, from, to) in [(from_a, a, b), (from_b, b, a)] {
            self.members[from].retain(|model| !models.contains(model));
            self.members[to].extend_from_slice(models);
            for &model in models {
                self.part_of[model] = to;
            }
        }
        self.add_up(a);
        self.add_up(b);
        self.change_cost = self.all_changes();
    }

    pub fn parts(&self) -> Vec<PartLoad> {
        let part = |(load, members): (&Load, &Vec<usize>)| PartLoad {
            models: members.len(),
            rate_rps: load.rate,
            static_bytes: load.bytes,
            dynamic_bytes: load.dynamic_without(&[]),
        };
        self.loads.iter().zip(&self.members).map(part).collect()
    }

    pub fn score(&self) -> Score {
        let scale = Scale::of(self.problem);
        let farthest = |of: fn(&Load, &Scale) -> f64| {
            self.loads.iter().map(|load| (of(load, &scale) - 1.0).abs()).fold(0.0, f64::max)
        };
        let rate_deviation = if scale.rate > 0.0 { farthest(|load, scale| load.rate / scale.rate) } else { 0.0 };
        let memory_deviation =
            if scale.bytes > 0.0 { farthest(|load, scale| load.bytes as f64 / scale.bytes) } else { 0.0 };
        let objective = rate_deviation
            + self.problem.memory_weight * memory_deviation
            + scale.change_weight * (self.change_cost - scale.loads);
        Score {
            rate_deviation,
            memory_deviation,
            rate_imbalance: imbalance(self.loads.iter().map(|load| load.rate)),
            memory_imbalance: imbalance(self.loads.iter().map(|load| load.bytes as f64)),
            change_cost: self.change_cost,
            objective,
        }
    }

    /// How far the bounds are exceeded in all, as shares of them; 0 if they hold.
    pub fn excess(&self) -> Excess {
        let mut excess = Excess::default();
        for load in &self.loads {
            excess.rate += rate_excess(self.problem, load.rate);
            excess.bytes += bytes_excess(self.problem, load.bytes, load.dynamic_without(&[]));
        }
        excess.change = change_excess(self.problem, self.change_cost);
        excess
    }

    pub fn keeps_bounds(&self) -> bool {
        self.excess().total() == 0.0
    }
}

/// By how much bounds are exceeded, as shares of them.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct Excess {
    pub rate: f64,
    pub bytes: f64,
    pub change: f64,
}

impl Excess {
    pub fn total(&self) -> f64 {
        self.rate + self.bytes + self.change
    }
}

/// By how much (4) is exceeded.
pub(super) fn rate_excess(problem: &PlacementProblem, rate: f64) -> f64 {
    over(rate, problem.max_rate_rps)
}

/// By how much (5) is exceeded.
pub(super) fn bytes_excess(problem: &PlacementProblem, bytes: u64, dynamic: u64) -> f64 {
    let Some(most) = problem.max_bytes else { return 0.0 };
    let all = bytes.saturating_add(dynamic);
    if all <= most { 0.0 } else { (all - most) as f64 / (most as f64).max(1.0) }
}

/// By how much (10) is exceeded.
pub(super) fn change_excess(problem: &PlacementProblem, cost: f64) -> f64 {
    over(cost, problem.max_change_cost)
}

fn over(value: f64, most: Option<f64>) -> f64 {
    let Some(most) = most else { return 0.0 };
    if value <= most * (1.0 + TOLERANCE) + f64::MIN_POSITIVE { 0.0 } else { (value - most) / most.max(1e-9) }
}

/// What having a model in that part costs: nothing where it is, a load if it is new, else an unload and a load.
pub(super) fn change(problem: &PlacementProblem, model: usize, part: usize) -> f64 {
    let model = &problem.models[model];
    match model.previous {
        Some(previous) if previous == part => 0.0,
        Some(_) => 2.0 * model.change_cost,
        None => model.change_cost,
    }
}

impl PlacementProblem {
    /// Models are somewhere already.
    pub(super) fn has_previous(&self) -> bool {
        self.models.iter().any(|model| model.previous.is_some())
    }
}

/// Averages over the parts, which everything is a share of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pub rate: f64,
    pub bytes: f64,
    /// One unit of cost as a share of what moving everything costs.
    pub cost: f64,
    /// What one unit of cost counts in the objective.
    pub change_weight: f64,
    /// What loading the new models costs wherever they go; it doesn't count in the objective.
    pub loads: f64,
}

impl Scale {
    pub fn of(problem: &PlacementProblem) -> Self {
        let parts = problem.parts as f64;
        let everything: f64 = problem.models.iter().map(|model| 2.0 * model.change_cost).sum();
        let cost = if everything > 0.0 { 1.0 / everything } else { 0.0 };
        Self {
            rate: problem.models.iter().map(|model| model.rate_rps).sum::<f64>() / parts,
            bytes: problem.models.iter().map(|model| model.static_bytes as f64).sum::<f64>() / parts,
            loads: problem.models.iter().filter(|m| m.previous.is_none()).map(|m| m.change_cost).sum(),
            cost,
            change_weight: problem.change_weight * cost,
        }
    }
}
