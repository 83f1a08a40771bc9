//! Every kernel that may be chosen, against the reference: for checks, not for serving.

use super::measure::{TrialMemory, candidates, scratch_bytes};
use super::{Effort, Ready, StepCandidates, agree};
use crate::quiet::{NEVER, Nobody};
use crate::toolkit::{CudaError, Toolkit};
use cudarc::driver::sys as driver;
use graph::Plan;
use graph::plan::Step;
use graph::reference::{Reference, ReferenceMemory};
use std::collections::BTreeSet;

/// What a candidate of a step took, and how right it was.
pub struct Trial {
    /// Which step of the plan.
    pub step: usize,
    /// Whether it is ours.
    pub own: bool,
    /// The candidate's name.
    pub name: String,
    /// What it took, or why it failed.
    pub microseconds: Result<f32, CudaError>,
    /// The largest difference from the reference, over the largest of its numbers.
    pub error: f64,
    /// By what part its numbers are too small, on average.
    pub shrunk: f64,
    /// Whether it wrote where it shouldn't have.
    pub strayed: bool,
}

/// Executes the plan with the reference, and every candidate of every step on the device, on the memory that the
/// reference has then. Of steps with the same kernels and shapes, the first is computed. Returns whether weights and
/// inputs are still what they were.
pub fn survey(
    toolkit: &Toolkit,
    plan: &Plan,
    effort: Effort,
    stream: driver::CUstream,
    inputs: &[&[u8]],
    mut each: impl FnMut(Trial),
) -> Result<bool, CudaError> {
    let wanted = StepCandidates::all(plan, toolkit.facts())?;
    let mut seen = BTreeSet::new();
    let kernels =
        |wanted: &StepCandidates| wanted.recipes.iter().map(|recipe| recipe.source.clone()).collect::<Vec<_>>();
    let mut is_new = |wanted: &StepCandidates| seen.insert((wanted.signature.clone(), kernels(wanted)));
    let open: Vec<usize> = (0..wanted.len()).filter(|&at| is_new(&wanted[at])).collect();
    let all = candidates(toolkit, plan, &wanted, &open, effort, &NEVER)?;
    let field = TrialMemory::new(plan, scratch_bytes(&all), stream)?;
    let mut reference = Reference::new(plan);
    reference.begin(inputs);
    field.put_constant(plan, reference.memory())?;
    let mut done = 0;
    for (at, candidates) in all {
        (done..at).for_each(|at| reference.step(at));
        let before = reference.memory().clone();
        reference.step(at);
        done = at + 1;
        let step = &plan.steps[at];
        for (name, ready) in candidates {
            field.put_written(&before)?;
            // No step writes over what it reads, so that launching it several times changes nothing.
            let microseconds = field.time(&ready, f32::INFINITY, &Nobody);
            let mut got = before.clone();
            field.read_written(&mut got)?;
            let (error, shrunk, strayed) = compare(plan, step, got, reference.memory());
            each(Trial { step: at, own: matches!(ready, Ready::Own(_)), name, microseconds, error, shrunk, strayed });
        }
    }
    field.is_constant(plan, reference.memory())
}

/// How far what the step wrote is from what it should have written; whether anything else changed.
pub(super) fn compare(
    plan: &Plan,
    step: &Step,
    mut got: ReferenceMemory,
    expected: &ReferenceMemory,
) -> (f64, f64, bool) {
    let (mut error, mut shrunk) = (0.0f64, 0.0f64);
    for tensor in step.writes() {
        let (right, found) = (expected.load(plan, tensor), got.load(plan, tensor));
        let (numbers, found) = (right.to_floats(), found.to_floats());
        error = error.max(agree::apart(&numbers, &found));
        shrunk = shrunk.max(agree::shrunk(&numbers, &found));
        got.store(tensor, &right);
    }
    (error, shrunk, got.workspace != expected.workspace || got.outputs != expected.outputs)
}
