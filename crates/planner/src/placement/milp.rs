//! The program of appendix A, written for the solver.
//!
//! Rates and memory go in as shares of their averages: the solver's tolerances (1e-6) are absolute. Three things make
//! the program smaller without changing its best solutions:
//!
//! - The parts are alike unless models are somewhere already, so that each solution would have its `l!` twins. The k-th
//!   largest model may only be in the first k parts.
//! - `y_ij = |x_ij - x'_ij|` in (10) needs no variables: `x'` is given, so it is `x_ij` or `1 - x_ij`; and with (8) the
//!   sum over the parts is `2c (1 - x_ij)` for the part that the model is in now. One variable for each model instead
//!   of one for each model and part.
//! - The largest dynamic memory of a part is a variable `D_j >= d_i x_ij`, one row for each model and part. Anything
//!   better than a known assignment of objective `v` has at most `(1 + v/w) S` of static memory in each part, so that
//!   only models with `d_i > S_max - (1 + v/w) S` can break (5) there; the rows of the others are left out.

use super::assignment::{Assignment, Scale};
use super::{PlacementProblem, SolverEnding};
use good_lp::solvers::SolutionStatus;
use good_lp::solvers::highs::HighsParallelType;
use good_lp::{
    Expression, ResolutionError, Solution, SolverModel, Variable, WithTimeLimit, constraint, highs, variable, variables,
};
use std::time::Duration;

/// What the solver gave.
pub(super) struct Solved<'p> {
    pub assignment: Option<Assignment<'p>>,
    pub ending: SolverEnding,
    /// It showed that no assignment keeps the bounds.
    pub impossible: bool,
}

/// Less time than this isn't worth handing over.
const LEAST_TIME: Duration = Duration::from_millis(1);

/// Solves the program. `known` is an assignment that keeps the bounds; it shortens the program, and is what the solver
/// starts from if `hand_over`.
pub(super) fn solve<'p>(
    problem: &'p PlacementProblem,
    known: Option<&Assignment<'p>>,
    hand_over: bool,
    time_limit: Duration,
) -> Solved<'p> {
    let nothing = |impossible| Solved { assignment: None, ending: SolverEnding::Nothing, impossible };
    if time_limit < LEAST_TIME {
        return nothing(false);
    }
    let ranks = ranks(problem);
    let start = known.filter(|_| hand_over).map(|known| relabelled(problem, known.part_of(), &ranks));
    let program = Program::write(problem, known, start.as_deref(), &ranks);
    match program.model.with_time_limit(time_limit.as_secs_f64()).solve() {
        Ok(solution) => {
            let ending = match solution.status() {
                // The relative gap is 0, so that a gap it ended with is the absolute one of 1e-6.
                SolutionStatus::Optimal | SolutionStatus::GapLimit => SolverEnding::Optimal,
                SolutionStatus::TimeLimit => SolverEnding::TimeLimit,
            };
            match read(problem, &program.x, &solution) {
                Some(assignment) => Solved { assignment: Some(assignment), ending, impossible: false },
                None => nothing(false),
            }
        }
        Err(error) => nothing(matches!(error, ResolutionError::Infeasible)),
    }
}

/// The parts of a solution; `None` if there is none in it, as when time ran out before the first.
fn read<'p>(
    problem: &'p PlacementProblem,
    x: &[Vec<Option<Variable>>],
    solution: &impl Solution,
) -> Option<Assignment<'p>> {
    let part = |row: &Vec<Option<Variable>>| row.iter().position(|x| x.is_some_and(|x| solution.value(x) > 0.5));
    let part_of: Vec<usize> = x.iter().map(part).collect::<Option<_>>()?;
    Some(Assignment::new(problem, part_of))
}

/// Each model's place in the order of size; all the same where models are somewhere already, and parts are not alike.
fn ranks(problem: &PlacementProblem) -> Vec<usize> {
    let mut ranks = vec![problem.parts; problem.models.len()];
    if problem.has_previous() {
        return ranks;
    }
    let scale = Scale::of(problem);
    let size = |index: usize| {
        let model = &problem.models[index];
        model.rate_rps / scale.rate.max(f64::MIN_POSITIVE)
            + model.static_bytes as f64 / scale.bytes.max(f64::MIN_POSITIVE)
    };
    let mut order: Vec<usize> = (0..problem.models.len()).collect();
    order.sort_by(|&a, &b| size(b).total_cmp(&size(a)).then(a.cmp(&b)));
    for (rank, model) in order.into_iter().enumerate() {
        ranks[model] = rank;
    }
    ranks
}

/// The same assignment with its parts numbered in the order of their largest models.
fn relabelled(problem: &PlacementProblem, part_of: &[usize], ranks: &[usize]) -> Vec<usize> {
    if problem.has_previous() {
        return part_of.to_vec();
    }
    let mut order: Vec<usize> = (0..part_of.len()).collect();
    order.sort_by_key(|&model| ranks[model]);
    let mut names = vec![None; problem.parts];
    let mut next = 0;
    for model in order {
        names[part_of[model]].get_or_insert_with(|| {
            next += 1;
            next - 1
        });
    }
    part_of.iter().map(|&part| names[part].expect("every part of a model was named")).collect()
}

struct Program {
    model: good_lp::solvers::highs::HighsProblem,
    /// By model and part; `None` where the model can't be.
    x: Vec<Vec<Option<Variable>>>,
}

impl Program {
    fn write(
        problem: &PlacementProblem,
        known: Option<&Assignment<'_>>,
        start: Option<&[usize]>,
        ranks: &[usize],
    ) -> Self {
        let scale = Scale::of(problem);
        let begin = start.map(|part_of| Assignment::new(problem, part_of.to_vec()));
        let mut all = variables!();
        let mut x = Vec::with_capacity(problem.models.len());
        for (model, &rank) in ranks.iter().enumerate() {
            let mut at = |part: usize| {
                let it = variable().binary();
                let it = start.map_or(it.clone(), |start| it.initial(f64::from(start[model] == part)));
                (part <= rank).then(|| all.add(it))
            };
            x.push((0..problem.parts).map(&mut at).collect::<Vec<_>>());
        }
        let score = begin.as_ref().map(Assignment::score);
        let mut with = |value: Option<f64>| {
            let it = variable().min(0.0);
            all.add(value.map_or(it.clone(), |value| it.initial(value)))
        };
        let rate_off = with(score.map(|score| score.rate_deviation));
        let bytes_off = with(score.map(|score| score.memory_deviation));
        let dynamic: Vec<Variable> = (0..problem.parts)
            .map(|part| {
                with(begin.as_ref().map(|begin| begin.loads()[part].dynamic_without(&[]) as f64 / scale.bytes.max(1.0)))
            })
            .collect();

        let mut objective = Expression::with_capacity(2 + problem.models.len());
        objective.add_mul(1.0, rate_off);
        objective.add_mul(problem.memory_weight, bytes_off);
        // What staying saves: by (8), moving a model costs `2c (1 - x)` with the `x` of the part that it is in.
        let mut stays = Expression::with_capacity(problem.models.len());
        for (model, row) in problem.models.iter().zip(&x) {
            let Some(x) = model.previous.and_then(|part| row[part]) else { continue };
            stays.add_mul(2.0 * model.change_cost * scale.cost, x);
            objective.add_mul(-2.0 * model.change_cost * scale.change_weight, x);
        }
        // One thread and a fixed seed (the default): the same way to the same solution.
        let solver =
            |problem| highs(problem).set_parallel(HighsParallelType::Off).set_threads(1).set_option("mip_rel_gap", 0.0);
        let mut model = all.minimise(objective).using(solver);

        for row in &x {
            let mut sum = Expression::with_capacity(problem.parts);
            for x in row.iter().flatten() {
                sum.add_mul(1.0, *x);
            }
            model.add_constraint(sum.eq(1.0)); // (8)
        }
        if let Some(most) = problem.max_change_cost {
            let moves: f64 = problem.models.iter().filter(|m| m.previous.is_some()).map(|m| 2.0 * m.change_cost).sum();
            model.add_constraint(stays.geq((scale.loads + moves - most) * scale.cost)); // (10)
        }
        let needs_row = rows_for_dynamic(problem, known, &scale);
        for part in 0..problem.parts {
            let mut rate = Expression::with_capacity(problem.models.len() + 1);
            let mut bytes = Expression::with_capacity(problem.models.len() + 1);
            for (index, row) in x.iter().enumerate() {
                let Some(x) = row[part] else { continue };
                rate.add_mul(problem.models[index].rate_rps / scale.rate.max(f64::MIN_POSITIVE), x);
                bytes.add_mul(problem.models[index].static_bytes as f64 / scale.bytes.max(1.0), x);
                if needs_row[index] {
                    let share = problem.models[index].dynamic_bytes as f64 / scale.bytes.max(1.0);
                    model.add_constraint(constraint!(share * x <= dynamic[part])); // of (5)
                }
            }
            if let Some(most) = problem.max_rate_rps {
                model.add_constraint(rate.clone().leq(most / scale.rate.max(f64::MIN_POSITIVE))); // (4)
            }
            if let Some(most) = problem.max_bytes {
                let all = bytes.clone() + dynamic[part];
                model.add_constraint(all.leq(most as f64 / scale.bytes.max(1.0))); // (5)
            }
            if scale.rate > 0.0 {
                model.add_constraint((rate.clone() - rate_off).leq(1.0)); // (6)
                model.add_constraint((rate + rate_off).geq(1.0));
            }
            if scale.bytes > 0.0 {
                model.add_constraint((bytes.clone() - bytes_off).leq(1.0)); // (7)
                model.add_constraint((bytes + bytes_off).geq(1.0));
            }
        }
        Self { model, x }
    }
}

/// Which models can break (5) in an assignment that is better than the known one.
fn rows_for_dynamic(problem: &PlacementProblem, known: Option<&Assignment<'_>>, scale: &Scale) -> Vec<bool> {
    let Some(most) = problem.max_bytes else { return vec![false; problem.models.len()] };
    let fullest = known
        .filter(|_| problem.memory_weight > 0.0)
        .map(|known| (1.0 + known.score().objective / problem.memory_weight) * scale.bytes);
    let harmless = fullest.map_or(0.0, |fullest| most as f64 - fullest);
    problem.models.iter().map(|model| model.dynamic_bytes > 0 && model.dynamic_bytes as f64 > harmless).collect()
}
