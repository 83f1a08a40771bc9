//! Placement against every assignment there is, on problems that are small enough for that.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use expect_test::expect;
use planner::placement::{
    ModelToPlace, Placement, PlacementEffort, PlacementError, PlacementProblem, SolverEnding, Stage, place,
};
use proptest::prelude::*;
use std::time::Duration;

const MB: u64 = 1_000_000;

/// As long as it takes: what is found must not depend on how fast this machine is.
fn patient() -> PlacementEffort {
    PlacementEffort { time_limit: Duration::from_secs(3600), ..PlacementEffort::default() }
}

fn model(rate_rps: f64, mb: u64) -> ModelToPlace {
    let name = format!("m{rate_rps}");
    ModelToPlace { name, rate_rps, static_bytes: mb * MB, dynamic_bytes: 0, previous: None, change_cost: 1.0 }
}

fn placed(problem: &PlacementProblem) -> Placement {
    place(problem, &patient(), &mut |_| {}).unwrap()
}

fn refused(problem: &PlacementProblem) -> String {
    match place(problem, &patient(), &mut |_| {}).unwrap_err() {
        PlacementError::Invalid(sentence) => format!("invalid: {sentence}"),
        PlacementError::Impossible(sentence) => format!("impossible: {sentence}"),
        PlacementError::NotFound(sentence) => format!("not found: {sentence}"),
    }
}

/// The left side of (10), written down once more.
fn cost(problem: &PlacementProblem, part_of: &[usize]) -> f64 {
    let mut cost = 0.0;
    for (model, &part) in problem.models.iter().zip(part_of) {
        for j in 0..problem.parts {
            let (x, before) = (part == j, model.previous == Some(j));
            cost += if x == before { 0.0 } else { model.change_cost };
        }
    }
    cost
}

/// Whether (4), (5) and (10) hold, and the objective; written down once more.
fn judge(problem: &PlacementProblem, part_of: &[usize]) -> Option<f64> {
    let sum = |of: &dyn Fn(&ModelToPlace) -> f64| -> Vec<f64> {
        (0..problem.parts)
            .map(|j| problem.models.iter().zip(part_of).filter(|(_, p)| **p == j).map(|(m, _)| of(m)).sum())
            .collect()
    };
    let rates = sum(&|m| m.rate_rps);
    let bytes = sum(&|m| m.static_bytes as f64);
    let dynamic = |j: usize| {
        let here = problem.models.iter().zip(part_of).filter(|(_, p)| **p == j);
        here.map(|(m, _)| m.dynamic_bytes).max().unwrap_or(0) as f64
    };
    let cost = cost(problem, part_of);
    let holds = rates.iter().all(|&r| problem.max_rate_rps.is_none_or(|most| r <= most * (1.0 + 1e-9)))
        && (0..problem.parts).all(|j| problem.max_bytes.is_none_or(|most| bytes[j] + dynamic(j) <= most as f64))
        && problem.max_change_cost.is_none_or(|most| cost <= most * (1.0 + 1e-9));
    let deviation = |values: &[f64]| {
        let average = values.iter().sum::<f64>() / values.len() as f64;
        let farthest = values.iter().map(|value| (value - average).abs()).fold(0.0, f64::max);
        if average > 0.0 { farthest / average } else { 0.0 }
    };
    let everything: f64 = problem.models.iter().map(|m| 2.0 * m.change_cost).sum();
    let moves: f64 = cost - problem.models.iter().filter(|m| m.previous.is_none()).map(|m| m.change_cost).sum::<f64>();
    let change = if everything > 0.0 { problem.change_weight * moves / everything } else { 0.0 };
    holds.then(|| deviation(&rates) + problem.memory_weight * deviation(&bytes) + change)
}

/// The lowest objective of all assignments.
fn optimum(problem: &PlacementProblem) -> Option<f64> {
    let count = problem.parts.pow(problem.models.len() as u32);
    let assignment = |mut number: usize| -> Vec<usize> {
        let mut digit = || {
            let part = number % problem.parts;
            number /= problem.parts;
            part
        };
        problem.models.iter().map(|_| digit()).collect()
    };
    (0..count).filter_map(|number| judge(problem, &assignment(number))).min_by(f64::total_cmp)
}

#[test]
fn a_perfect_partition_is_found_and_proven() {
    let rates = [7.0, 6.0, 5.0, 4.0, 3.0, 3.0, 2.0];
    let models = rates.iter().map(|&rate| model(rate, rate as u64 * 10)).collect();
    let placement = placed(&PlacementProblem { models, parts: 3, ..PlacementProblem::default() });
    assert_eq!(placement.parts.iter().map(|part| part.rate_rps).collect::<Vec<_>>(), [10.0; 3]);
    assert_eq!((placement.score.rate_imbalance, placement.score.memory_imbalance), (0.0, 0.0));
    assert_eq!((placement.ending, placement.score.objective), (SolverEnding::Optimal, 0.0));
}

#[test]
fn the_weight_decides_between_rate_and_memory() {
    // Rates want 1+4 | 2+3, memory wants 1+2 | 3+4.
    let models: Vec<ModelToPlace> = [(1.0, 9), (2.0, 1), (3.0, 6), (4.0, 4)].map(|(rate, mb)| model(rate, mb)).into();
    let pairs = |memory_weight| {
        let placement = placed(&PlacementProblem {
            models: models.clone(),
            parts: 2,
            memory_weight,
            ..PlacementProblem::default()
        });
        (0..4).filter(|&m| placement.part_of[m] == placement.part_of[0]).collect::<Vec<_>>()
    };
    assert_eq!((pairs(0.1), pairs(10.0)), (vec![0, 3], vec![0, 1]));
}

#[test]
fn the_solver_alone_finds_it_too() {
    let rates = [7.0, 6.0, 5.0, 4.0, 3.0, 3.0, 2.0];
    let models = rates.iter().map(|&rate| model(rate, rate as u64 * 10)).collect();
    let problem = PlacementProblem { models, parts: 3, ..PlacementProblem::default() };
    let alone = place(&problem, &PlacementEffort { start: false, polish: false, ..patient() }, &mut |_| {}).unwrap();
    let solver = alone.stages.iter().find(|report| report.stage == Stage::Solver).unwrap();
    assert!(solver.score.unwrap().objective < 1e-6, "{solver:?}");
    assert!(!alone.stages.iter().any(|report| report.stage == Stage::Polish));
}

#[test]
fn without_time_for_the_solver_the_start_counts_and_the_result_says_so() {
    let models = (0..40).map(|i| model(f64::from(i * 37 % 41 + 1), u64::from(i * 11_u32 % 17 + 1))).collect();
    let problem = PlacementProblem { models, parts: 4, max_rate_rps: Some(230.0), ..PlacementProblem::default() };
    let hasty = PlacementEffort { time_limit: Duration::ZERO, ..PlacementEffort::default() };
    let placement = place(&problem, &hasty, &mut |_| {}).unwrap();
    assert_eq!((placement.ending, placement.from), (SolverEnding::Nothing, Stage::Start));
    assert!((judge(&problem, &placement.part_of).unwrap() - placement.score.objective).abs() < 1e-9);
    let score = |stage| placement.stages.iter().find(|report| report.stage == stage).unwrap().score;
    assert!(score(Stage::Start).unwrap().objective < score(Stage::Greedy).unwrap().objective);
    assert_eq!(score(Stage::Solver), None);
}

#[test]
fn nothing_moves_when_nothing_changed() {
    let rates = [7.0, 6.0, 5.0, 4.0, 3.0, 3.0, 2.0];
    let models: Vec<ModelToPlace> = rates.iter().map(|&rate| model(rate, rate as u64)).collect();
    let mut problem = PlacementProblem { models, parts: 3, ..PlacementProblem::default() };
    let first = placed(&problem);
    for (model, &part) in problem.models.iter_mut().zip(&first.part_of) {
        model.previous = Some(part);
    }
    let second = placed(&problem);
    assert_eq!((second.part_of, second.score.change_cost), (first.part_of, 0.0));
}

#[test]
fn balance_costs_as_few_changes_as_it_can() {
    // 6 | 2 becomes 4 | 4 by moving 2, or by moving 1 and 1; or by exchanging everything.
    let mut models: Vec<ModelToPlace> = [4.0, 2.0, 1.0, 1.0].map(|rate| model(rate, 1)).into();
    for (model, previous) in models.iter_mut().zip([0, 0, 1, 1]) {
        (model.previous, model.static_bytes) = (Some(previous), 0);
    }
    let mut problem = PlacementProblem { models, parts: 2, ..PlacementProblem::default() };
    let placement = placed(&problem);
    assert_eq!((placement.part_of, placement.score.change_cost), (vec![0, 1, 1, 1], 2.0));
    // An unload and a load cost 2: with less than that, all stay.
    problem.max_change_cost = Some(1.9);
    let placement = placed(&problem);
    assert_eq!((placement.part_of, placement.score.change_cost), (vec![0, 0, 1, 1], 0.0));
}

#[test]
fn dynamic_memory_is_counted_once_for_a_part() {
    // 10 + 10 + max(8, 8) fits into 28, and 10 + 10 + 8 + 8 would not.
    let mut models = vec![model(1.0, 10); 4];
    for model in &mut models {
        model.dynamic_bytes = 8 * MB;
    }
    let fits =
        PlacementProblem { models: models.clone(), parts: 2, max_bytes: Some(28 * MB), ..PlacementProblem::default() };
    assert_eq!(placed(&fits).parts[0].dynamic_bytes, 8 * MB);
    // One that needs 9 pushes its part over; one part must then hold three.
    models[0].dynamic_bytes = 9 * MB;
    expect!["impossible: no assignment keeps all bounds: the bound of 28.0 MB for a device can't hold together with the others; raise it or use more parts"]
        .assert_eq(&refused(&PlacementProblem { models, ..fits }));
}

#[test]
fn impossible_problems_say_which_bound() {
    let models = vec![model(10.0, 100), model(30.0, 100), model(25.0, 50)];
    let problem = PlacementProblem { models, parts: 2, ..PlacementProblem::default() };
    let with = |change: &dyn Fn(&mut PlacementProblem)| {
        let mut changed = problem.clone();
        change(&mut changed);
        refused(&changed)
    };
    expect![[r#"impossible: model "m30" alone has 30 r/s, but a part takes at most 20: raise that bound"#]]
        .assert_eq(&with(&|p| p.max_rate_rps = Some(20.0)));
    expect!["impossible: the models have 65.0 r/s together, but 2 parts of at most 32 r/s take 64.0: more parts or a higher bound are needed"]
        .assert_eq(&with(&|p| p.max_rate_rps = Some(32.0)));
    expect!["impossible: no assignment keeps all bounds: the bound of 34 r/s for a part can't hold together with the others; raise it or use more parts"]
        .assert_eq(&with(&|p| p.max_rate_rps = Some(34.0)));
    expect![[r#"impossible: model "m10" alone takes 100.0 MB (0.0 MB of it while it runs), but a device has 90.0 MB: it fits on none"#]]
        .assert_eq(&with(&|p| p.max_bytes = Some(90 * MB)));
    expect!["impossible: the models take 250.0 MB together, and one of them 0.0 MB more while it runs, but 2 parts of 120.0 MB have 240.0 MB: more parts or more memory are needed"]
        .assert_eq(&with(&|p| p.max_bytes = Some(120 * MB)));
    expect!["impossible: loading the 3 models that are nowhere yet costs 3, but changes may cost at most 2: raise that bound"]
        .assert_eq(&with(&|p| p.max_change_cost = Some(2.0)));
    expect!["impossible: 3 models have more than half of the 45 r/s that a part takes, so that no two of them share one, but there are only 2 parts"]
        .assert_eq(&with(&|p| {
            p.max_rate_rps = Some(45.0);
            p.models[0].rate_rps = 24.0;
        }));
}

#[test]
fn input_that_makes_no_sense_is_a_sentence() {
    let problem = PlacementProblem { models: vec![model(1.0, 1)], parts: 2, ..PlacementProblem::default() };
    let with = |change: &dyn Fn(&mut PlacementProblem)| {
        let mut changed = problem.clone();
        change(&mut changed);
        refused(&changed)
    };
    expect!["invalid: there is no model to place: list at least one"].assert_eq(&with(&|p| p.models.clear()));
    expect!["invalid: there are 0 parts: at least 1 is needed"].assert_eq(&with(&|p| p.parts = 0));
    expect![[r#"invalid: the rate of model "m1" is NaN: it must be a number that isn't negative"#]]
        .assert_eq(&with(&|p| p.models[0].rate_rps = f64::NAN));
    expect![[r#"invalid: model "m1" is in part 2 now, but there are only 2 parts, numbered from 0"#]]
        .assert_eq(&with(&|p| p.models[0].previous = Some(2)));
    expect!["invalid: the models' memory is more than can be counted in bytes"]
        .assert_eq(&with(&|p| (p.models[0].static_bytes, p.models[0].dynamic_bytes) = (u64::MAX, 1)));
}

fn small_problem() -> impl Strategy<Value = PlacementProblem> {
    let models = prop::collection::vec((0_u32..40, 1_u64..30, 0_u64..10, 0_u32..5, prop::option::of(0_usize..3)), 1..7);
    let bounds = (prop::option::of(20_u32..120), prop::option::of(20_u64..120), prop::option::of(0_u32..30));
    (models, 1_usize..4, bounds, any::<bool>(), 0_u32..4).prop_map(
        |(models, parts, (rate, mb, cost), moves, weight)| {
            let model =
                |(number, (rate, mb, dynamic, cost, previous)): (usize, (u32, u64, u64, u32, Option<usize>))| {
                    ModelToPlace {
                        name: format!("m{number}"),
                        rate_rps: f64::from(rate),
                        static_bytes: mb * MB,
                        dynamic_bytes: dynamic * MB,
                        previous: previous.filter(|&part| moves && part < parts),
                        change_cost: f64::from(cost),
                    }
                };
            PlacementProblem {
                models: models.into_iter().enumerate().map(model).collect(),
                parts,
                max_rate_rps: rate.map(f64::from),
                max_bytes: mb.map(|mb| mb * MB),
                memory_weight: f64::from(weight) / 2.0,
                max_change_cost: cost.map(f64::from),
                ..PlacementProblem::default()
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn small_problems_are_solved_as_well_as_they_can_be(problem in small_problem()) {
        match (place(&problem, &patient(), &mut |_| {}), optimum(&problem)) {
            (Ok(placement), Some(best)) => {
                let objective = judge(&problem, &placement.part_of);
                prop_assert!(objective.is_some(), "a bound is broken: {placement:?}");
                prop_assert!((objective.unwrap() - placement.score.objective).abs() < 1e-9);
                prop_assert!((cost(&problem, &placement.part_of) - placement.score.change_cost).abs() < 1e-9);
                // The solver stops within 1e-6 of the best.
                prop_assert!(placement.score.objective <= best + 2e-6, "{} instead of {best}", placement.score.objective);
                prop_assert_eq!(placement.ending, SolverEnding::Optimal);
            }
            (Err(PlacementError::Impossible(_)), None) => {}
            (found, best) => prop_assert!(false, "{found:?}, but the best is {best:?}"),
        }
    }

    #[test]
    fn without_a_solver_bounds_hold_too(problem in small_problem()) {
        let hasty = PlacementEffort { time_limit: Duration::ZERO, ..PlacementEffort::default() };
        match place(&problem, &hasty, &mut |_| {}) {
            Ok(placement) => prop_assert!(judge(&problem, &placement.part_of).is_some(), "{placement:?}"),
            Err(PlacementError::NotFound(_)) => {}
            Err(error) => prop_assert!(optimum(&problem).is_none(), "{error}"),
        }
    }
}
