//! Which models share a part of the cluster: the mixed integer program of Symphony's appendix A, solved within a time
//! limit.
//!
//! Every device of a part holds all models of that part, so that any of them can run any batch. Models `i` have a
//! request rate `r`, static memory `s` (weights) and dynamic memory `d` (while running); `x_ij` says that model `i` is
//! in part `j`.
//!
//! ```text
//!  minimise    dR/R + w dS/S                          (3)   R, S: averages over the parts
//!  such that   sum r_i x_ij                <= R_max   (4)   one dispatcher's capacity
//!              sum s_i x_ij + max d_i x_ij <= S_max   (5)   one device's memory
//!              |sum r_i x_ij - R|          <= dR      (6)
//!              |sum s_i x_ij - S|          <= dS      (7)
//!              sum_j x_ij = 1, x_ij in {0, 1}         (8, 9)
//!              sum c_i |x_ij - x'_ij|      <= C_max   (10)  x': where models are now
//! ```
//!
//! Three stages, each reported with what it reached: a **start** (greedy, improved by exchanges of models between
//! parts), the **solver** on the whole program with that start, and a **polish** of the solver's assignment by the same
//! exchanges. The best one that keeps every bound counts. The start and the polish are bounded by work, and by time
//! only on a machine that is very slow: given a solver that finishes, equal problems have equal results.

mod assignment;
mod bounds;
mod milp;
mod search;

pub use assignment::{PartLoad, Score};

use assignment::Assignment;
use std::time::{Duration, Instant};

/// A model to place.
#[derive(Clone, PartialEq, Debug)]
pub struct ModelToPlace {
    /// For messages.
    pub name: String,
    /// Requests per second, `r`.
    pub rate_rps: f64,
    /// Memory that it takes on every device of its part, `s`.
    pub static_bytes: u64,
    /// Memory that it takes while it runs, `d`; on a device one model runs at a time.
    pub dynamic_bytes: u64,
    /// The part that it is in now, if it is anywhere.
    pub previous: Option<usize>,
    /// What loading it into a part or unloading it from one costs, `c`. A move is both.
    pub change_cost: f64,
}

/// What to solve.
#[derive(Clone, PartialEq, Debug)]
pub struct PlacementProblem {
    /// The models.
    pub models: Vec<ModelToPlace>,
    /// How many parts.
    pub parts: usize,
    /// The highest rate of a part, `R_max`.
    pub max_rate_rps: Option<f64>,
    /// The memory of each device, `S_max`.
    pub max_bytes: Option<u64>,
    /// How much an uneven memory counts against an uneven rate, both as shares of their averages (`w` of the paper,
    /// times `R/S`, so that it needs no units).
    pub memory_weight: f64,
    /// The most that changes may cost in all, `C_max`.
    pub max_change_cost: Option<f64>,
    /// How much imbalance is accepted to save the cost of moving everything. 0 is the paper's objective, which changes
    /// as much as (10) lets it for the slightest gain.
    pub change_weight: f64,
}

impl Default for PlacementProblem {
    fn default() -> Self {
        Self {
            models: Vec::new(),
            parts: 1,
            max_rate_rps: None,
            max_bytes: None,
            memory_weight: 1.0,
            max_change_cost: None,
            change_weight: 0.001,
        }
    }
}

/// How hard to try.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PlacementEffort {
    /// For the start and the solver; the polish takes up to two seconds more. The solver looks at its clock only now
    /// and then: of 20 runs with 800 models, most overran by less than a second and one by twelve.
    pub time_limit: Duration,
    /// Improve the greedy assignment by exchanges, and let the solver start from it.
    pub start: bool,
    /// Improve what the solver found by exchanges.
    pub polish: bool,
}

impl Default for PlacementEffort {
    fn default() -> Self {
        Self { time_limit: Duration::from_secs(10), start: true, polish: true }
    }
}

/// One stage of the search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Each model, largest first, where it fits best; models that are somewhere stay there.
    Greedy,
    /// Exchanges of models between parts.
    Start,
    /// The mixed integer program.
    Solver,
    /// Exchanges on what the solver found.
    Polish,
}

impl Stage {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Greedy => "greedy",
            Self::Start => "start",
            Self::Solver => "solver",
            Self::Polish => "polish",
        }
    }
}

/// What a stage reached.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StageReport {
    /// Which.
    pub stage: Stage,
    /// Its assignment; `None` if it has none that keeps the bounds.
    pub score: Option<Score>,
    /// How long it took.
    pub took: Duration,
}

/// How the solver ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SolverEnding {
    /// With a proof that nothing is better (than its own objective, to the solver's tolerance of 1e-6).
    Optimal,
    /// When its time was over, with an assignment.
    TimeLimit,
    /// Without an assignment: the result is the start's.
    Nothing,
}

/// Where each model goes.
#[derive(Clone, PartialEq, Debug)]
pub struct Placement {
    /// By model.
    pub part_of: Vec<usize>,
    /// What the parts hold.
    pub parts: Vec<PartLoad>,
    /// How good it is.
    pub score: Score,
    /// How the solver ended.
    pub ending: SolverEnding,
    /// The stage that this assignment is from.
    pub from: Stage,
    /// What each stage reached.
    pub stages: Vec<StageReport>,
}

/// Why there is no placement.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum PlacementError {
    /// A number makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// A bound can't hold.
    #[error("{0}")]
    Impossible(String),
    /// None was found; that there is none wasn't shown.
    #[error("{0}")]
    NotFound(String),
}

/// Exchanges get this long at least, also where the time limit is shorter; they usually need less.
const LEAST_SEARCH: Duration = Duration::from_secs(2);

/// Places the models. `progress` is told of each stage when it begins.
pub fn place(
    problem: &PlacementProblem,
    effort: &PlacementEffort,
    progress: &mut dyn FnMut(Stage),
) -> Result<Placement, PlacementError> {
    let began = Instant::now();
    bounds::check(problem)?;
    let mut run = StagedRun { problem, stages: Vec::new(), best: None };
    let greedy = run.stage(Stage::Greedy, progress, || Some(search::greedy(problem)));
    let half_time = began + (effort.time_limit / 2).max(LEAST_SEARCH);
    let start = if effort.start {
        run.stage(Stage::Start, progress, || greedy.map(|greedy| search::improve(greedy, half_time)))
    } else {
        greedy
    };
    let feasible = start.as_ref().filter(|start| start.keeps_bounds());
    let mut ending = SolverEnding::Nothing;
    let mut impossible = false;
    let solved = run.stage(Stage::Solver, progress, || {
        let left = effort.time_limit.saturating_sub(began.elapsed());
        let solved = milp::solve(problem, feasible, effort.start, left);
        (ending, impossible) = (solved.ending, solved.impossible);
        solved.assignment
    });
    if effort.polish && solved.is_some() {
        run.stage(Stage::Polish, progress, || {
            solved.map(|solved| search::improve(solved, Instant::now() + LEAST_SEARCH))
        });
    }
    if let Some((from, best)) = run.best {
        let (score, parts, part_of) = (best.score(), best.parts(), best.part_of().to_vec());
        return Ok(Placement { part_of, parts, score, ending, from, stages: run.stages });
    }
    Err(if impossible { bounds::culprit(problem) } else { bounds::not_found(start.as_ref(), began.elapsed()) })
}

struct StagedRun<'p> {
    problem: &'p PlacementProblem,
    stages: Vec<StageReport>,
    best: Option<(Stage, Assignment<'p>)>,
}

impl<'p> StagedRun<'p> {
    /// Runs one stage, writes down what it reached, and keeps it if it is the best so far.
    fn stage(
        &mut self,
        stage: Stage,
        progress: &mut dyn FnMut(Stage),
        work: impl FnOnce() -> Option<Assignment<'p>>,
    ) -> Option<Assignment<'p>> {
        progress(stage);
        let began = Instant::now();
        let found = work();
        let kept = found.as_ref().filter(|found| found.keeps_bounds());
        self.stages.push(StageReport { stage, score: kept.map(Assignment::score), took: began.elapsed() });
        if let Some(kept) = kept
            && self.best.as_ref().is_none_or(|(_, best)| kept.score().objective < best.score().objective)
        {
            self.best = Some((stage, kept.clone()));
        }
        debug_assert!(found.as_ref().is_none_or(|found| found.part_of().len() == self.problem.models.len()));
        found
    }
}
