//! Input that can't be placed, in sentences: which bound can't hold, and by how much.

use super::assignment::{Assignment, TOLERANCE};
use super::{PlacementError, PlacementProblem, SolverEnding, milp, search};
use std::time::{Duration, Instant};

/// The solver gets this long to find out which bound is to blame.
const BLAME_TIME: Duration = Duration::from_secs(2);

/// Says what is wrong with a problem that can be seen to be wrong without solving it.
pub(super) fn check(problem: &PlacementProblem) -> Result<(), PlacementError> {
    sane(problem).map_err(PlacementError::Invalid)?;
    possible(problem).map_err(PlacementError::Impossible)
}

fn sane(problem: &PlacementProblem) -> Result<(), String> {
    if problem.models.is_empty() {
        return Err("there is no model to place: list at least one".into());
    }
    if problem.parts == 0 {
        return Err("there are 0 parts: at least 1 is needed".into());
    }
    let number = |what: &str, value: f64| {
        let fine = value.is_finite() && value >= 0.0;
        if fine { Ok(()) } else { Err(format!("{what} is {value}: it must be a number that isn't negative")) }
    };
    number("the weight of memory", problem.memory_weight)?;
    number("the weight of changes", problem.change_weight)?;
    problem.max_rate_rps.map_or(Ok(()), |most| number("the highest rate of a part", most))?;
    problem.max_change_cost.map_or(Ok(()), |most| number("the highest cost of changes", most))?;
    let mut memory = 0_u64;
    for model in &problem.models {
        number(&format!("the rate of model {:?}", model.name), model.rate_rps)?;
        number(&format!("the cost of changing model {:?}", model.name), model.change_cost)?;
        if let Some(part) = model.previous.filter(|&part| part >= problem.parts) {
            return Err(format!(
                "model {:?} is in part {part} now, but there are only {} parts, numbered from 0",
                model.name, problem.parts
            ));
        }
        let sum = memory.checked_add(model.static_bytes).and_then(|sum| sum.checked_add(model.dynamic_bytes));
        memory = sum.ok_or_else(|| "the models' memory is more than can be counted in bytes".to_owned())?;
    }
    Ok(())
}

fn possible(problem: &PlacementProblem) -> Result<(), String> {
    let parts = problem.parts;
    if let Some(most) = problem.max_rate_rps {
        let limit = most * (1.0 + TOLERANCE);
        if let Some(model) = problem.models.iter().find(|model| model.rate_rps > limit) {
            let (name, rate) = (&model.name, model.rate_rps);
            return Err(format!(
                "model {name:?} alone has {rate} r/s, but a part takes at most {most}: raise that bound"
            ));
        }
        let all: f64 = problem.models.iter().map(|model| model.rate_rps).sum();
        if all > limit * parts as f64 {
            return Err(format!(
                "the models have {all:.1} r/s together, but {parts} parts of at most {most} r/s take {:.1}: more parts or a higher bound are needed",
                most * parts as f64
            ));
        }
        let halves = problem.models.iter().filter(|model| model.rate_rps > limit / 2.0).count();
        if halves > parts {
            return Err(format!(
                "{halves} models have more than half of the {most} r/s that a part takes, so that no two of them share one, but there are only {parts} parts"
            ));
        }
    }
    if let Some(most) = problem.max_bytes {
        if let Some(model) = problem.models.iter().find(|model| model.static_bytes + model.dynamic_bytes > most) {
            return Err(format!(
                "model {:?} alone takes {} ({} of it while it runs), but a device has {}: it fits on none",
                model.name,
                mb(model.static_bytes + model.dynamic_bytes),
                mb(model.dynamic_bytes),
                mb(most)
            ));
        }
        let all: u64 = problem.models.iter().map(|model| model.static_bytes).sum();
        let running = problem.models.iter().map(|model| model.dynamic_bytes).max().unwrap_or(0);
        let room = most.saturating_mul(parts as u64);
        if all + running > room {
            return Err(format!(
                "the models take {} together, and one of them {} more while it runs, but {parts} parts of {} have {}: more parts or more memory are needed",
                mb(all),
                mb(running),
                mb(most),
                mb(room)
            ));
        }
        let halves = problem.models.iter().filter(|model| model.static_bytes > most / 2).count();
        if halves > parts {
            return Err(format!(
                "{halves} models take more than half of a device's {}, so that no two of them share one, but there are only {parts} parts",
                mb(most)
            ));
        }
    }
    if let Some(most) = problem.max_change_cost {
        let new = problem.models.iter().filter(|model| model.previous.is_none());
        let (count, loads) = new.fold((0, 0.0), |(count, cost), model| (count + 1, cost + model.change_cost));
        if loads > most * (1.0 + TOLERANCE) {
            return Err(format!(
                "loading the {count} models that are nowhere yet costs {loads}, but changes may cost at most {most}: raise that bound"
            ));
        }
    }
    Ok(())
}

/// The solver showed that nothing keeps all bounds: which one would have to go?
pub(super) fn culprit(problem: &PlacementProblem) -> PlacementError {
    let without = |name: String, relaxed: PlacementProblem| {
        let start = search::improve(search::greedy(&relaxed), Instant::now() + BLAME_TIME);
        let there_is =
            start.keeps_bounds() || milp::solve(&relaxed, None, false, BLAME_TIME).ending != SolverEnding::Nothing;
        there_is.then_some(name)
    };
    let mut blamed = Vec::new();
    if let Some(most) = problem.max_rate_rps {
        let name = format!("the bound of {most} r/s for a part");
        blamed.extend(without(name, PlacementProblem { max_rate_rps: None, ..problem.clone() }));
    }
    if let Some(most) = problem.max_bytes {
        let name = format!("the bound of {} for a device", mb(most));
        blamed.extend(without(name, PlacementProblem { max_bytes: None, ..problem.clone() }));
    }
    if let Some(most) = problem.max_change_cost {
        let name = format!("the bound of {most} for the cost of changes");
        blamed.extend(without(name, PlacementProblem { max_change_cost: None, ..problem.clone() }));
    }
    PlacementError::Impossible(match blamed.as_slice() {
        [] => "no assignment keeps the bounds, and raising one of them alone isn't enough: use more parts".into(),
        names => format!(
            "no assignment keeps all bounds: {} can't hold together with the others; raise {} or use more parts",
            names.join(", or "),
            if names.len() == 1 { "it" } else { "one of them" }
        ),
    })
}

/// Time ran out with nothing.
pub(super) fn not_found(nearest: Option<&Assignment<'_>>, took: Duration) -> PlacementError {
    let excess = nearest.map(Assignment::excess).unwrap_or_default();
    let mut missed = Vec::new();
    for (what, by) in [("rate", excess.rate), ("memory", excess.bytes), ("cost of changes", excess.change)] {
        if by > 0.0 {
            missed.push(format!("the bound on {what} by {:.2} %", by * 100.0));
        }
    }
    PlacementError::NotFound(format!(
        "no assignment that keeps all bounds was found in {:.1} s; the nearest one exceeds {}: allow more time, raise that bound or use more parts",
        took.as_secs_f64(),
        missed.join(" and ")
    ))
}

/// Megabytes, as in the files that problems are read from.
fn mb(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
