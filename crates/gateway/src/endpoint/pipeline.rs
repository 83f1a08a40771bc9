//! A request for a pipeline: stages run as soon as what they take is there, and tensors go from one to the next as they
//! are.
//!
//! A tensor is a count of references to bytes: what one stage gave is what the next one takes, without a copy, and so
//! is each row of it. Only the outputs of several calls are copied, once, to stand behind one another.

use super::Whole;
use super::rows::{Joined, rows_of, split};
use crate::body::hold::{COUNTED_FROM, HeldBytes};
use crate::io::offload::offload;
use base::{Reason, TensorSpec};
use controller::{PipelineStage, Tensor};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use models::{FanOut, InputPart, KnownPipeline, PipelinePlan, PlannedWork, StagePlan};
use std::sync::Arc;
use steps::{StepError, TensorStep};
use wire::Fault;

/// A step takes one part in so many of what may be held, or as much as the largest request.
const STEPS_AT_ONCE: usize = 4;

/// All outputs of a pipeline, in the signature's order.
pub(super) async fn run(
    whole: &Whole<'_>,
    plan: &PipelinePlan,
    known: Option<&KnownPipeline>,
    inputs: Vec<Tensor>,
) -> Result<Vec<Tensor>, Fault> {
    let mut table = TensorTable::new(whole, plan, inputs);
    // Dropped with the first that fails: what is under way is taken back.
    let mut running = FuturesUnordered::new();
    loop {
        while let Some((number, stage)) = table.begin() {
            let given = table.take(stage);
            let known = known.and_then(|known| known.stage(number));
            running.push(async move {
                let began_at = whole.context.controller.now();
                let outputs = run_stage(whole, stage, known, given).await;
                if known.is_none() {
                    stage.meter.took(whole.context.controller.now().since(began_at));
                }
                (stage, outputs.map_err(|fault| of_stage(stage, fault)))
            });
        }
        let Some((stage, outputs)) = running.next().await else { break };
        table.put(stage, outputs?)?;
    }
    if let Some(known) = known {
        known.tell(plan);
    }
    table.finish()
}

/// A fault of a stage, told to whoever asked for the whole.
fn of_stage(stage: &StagePlan, fault: Fault) -> Fault {
    let message = format!("stage {:?}: {}", stage.name, fault.message);
    Fault { earliest: fault.earliest, retry_after: fault.retry_after, ..Fault::new(fault.reason, message) }
}

/// Asks a stage's member, once or for each row of something; all of the member's outputs.
async fn run_stage(
    whole: &Whole<'_>,
    stage: &StagePlan,
    known: Option<PipelineStage>,
    given: Vec<Tensor>,
) -> Result<Vec<Tensor>, Fault> {
    let member = match &stage.work {
        PlannedWork::Step(step) => return run_step(whole, step, given).await,
        PlannedWork::Member(member) => *member,
    };
    let positions = stage.inputs.iter().map(|input| input.position);
    let Some(fan_out) = stage.fan_out else {
        return whole.ask(member, known, positions.zip(given).collect()).await;
    };
    let calls = count_calls(stage, fan_out, &given)?;
    stage.meter.called(calls);
    let mut parts: Vec<Vec<(usize, Tensor)>> = (0..calls).map(|_| Vec::with_capacity(given.len())).collect();
    for (input, tensor) in stage.inputs.iter().zip(given) {
        match input.part {
            InputPart::Whole => parts.iter_mut().for_each(|part| part.push((input.position, tensor.clone()))),
            InputPart::Row | InputPart::Element => {
                let rows = split(&tensor, input.part == InputPart::Row)?;
                parts.iter_mut().zip(rows).for_each(|(part, row)| part.push((input.position, row)));
            }
        }
    }
    let ask = |(number, part)| async move { (number, whole.ask(member, known, part).await) };
    let mut running: FuturesUnordered<_> = parts.into_iter().enumerate().map(ask).collect();
    let mut answers: Vec<Vec<Tensor>> = vec![Vec::new(); calls];
    while let Some((number, outputs)) = running.next().await {
        answers[number] = outputs?;
    }
    join(&whole.signature(member)?.outputs, fan_out, answers)
}

/// Has a step done on another thread, while other requests wait for devices.
async fn run_step(whole: &Whole<'_>, step: &Arc<TensorStep>, given: Vec<Tensor>) -> Result<Vec<Tensor>, Fault> {
    let config = &whole.context.shared.config;
    let most_bytes = config.max_body_bytes.max(config.max_held_bytes / STEPS_AT_ONCE);
    let (step, bytes) = (Arc::clone(step), given.iter().map(|tensor| tensor.data.len()).sum());
    let work = move || {
        step.run(&given, most_bytes).map_err(|error| match error {
            StepError::Inputs(why) => Fault::bad(why),
            StepError::TooLarge(why) => Fault::new(Reason::BodyTooLarge, why),
            StepError::Parameters(why) => Fault::new(Reason::ExecutionFailed, why),
        })
    };
    offload(whole.owner, bytes, work).await
}

/// How many calls there are: all tensors of whose rows each is one must have as many.
fn count_calls(stage: &StagePlan, fan_out: FanOut, given: &[Tensor]) -> Result<usize, Fault> {
    let rows = stage.inputs.iter().zip(given).filter(|(input, _)| input.part != InputPart::Whole);
    let mut counts = rows.map(|(_, tensor)| rows_of(tensor));
    let first = counts.next().unwrap_or(Ok(0))?;
    for other in counts {
        let other = other?;
        if other != first {
            return Err(Fault::bad(format!("it is to be called for each of {first} rows, and for each of {other}")));
        }
    }
    if first > fan_out.max_calls as usize {
        return Err(Fault::bad(format!(
            "it would be called {first} times, more than the {} that its max_calls allows",
            fan_out.max_calls
        )));
    }
    Ok(first)
}

/// The outputs of all calls, each behind the one before it.
fn join(specs: &[TensorSpec], fan_out: FanOut, answers: Vec<Vec<Tensor>>) -> Result<Vec<Tensor>, Fault> {
    let mut joined: Vec<Joined> = specs.iter().map(|spec| Joined::new(spec, fan_out.stacks)).collect();
    for answer in answers {
        if answer.len() != joined.len() {
            return Err(Fault::new(Reason::ExecutionFailed, "a call gave fewer outputs than the model has"));
        }
        for (joined, output) in joined.iter_mut().zip(answer) {
            joined.add(output)?;
        }
    }
    Ok(joined.into_iter().map(Joined::finish).collect())
}

/// The tensors of a request, from when they are made until nobody needs them.
struct TensorTable<'a> {
    plan: &'a PipelinePlan,
    tensors: Vec<Option<Tensor>>,
    /// How many stages, and outputs of the whole, still need each.
    needed: Vec<usize>,
    /// For each stage how many of its inputs aren't there.
    missing: Vec<usize>,
    /// Which of them have begun.
    begun: Vec<bool>,
    /// What lies here between stages counts as held, from some size on.
    held: HeldBytes,
}

impl<'a> TensorTable<'a> {
    fn new(whole: &Whole<'_>, plan: &'a PipelinePlan, inputs: Vec<Tensor>) -> Self {
        let mut needed = vec![0; plan.tensors.len()];
        plan.stages.iter().flat_map(|stage| &stage.inputs).for_each(|input| needed[input.tensor] += 1);
        plan.outputs.iter().for_each(|&tensor| needed[tensor] += 1);
        let mut tensors: Vec<Option<Tensor>> = vec![None; plan.tensors.len()];
        for (&tensor, input) in plan.inputs.iter().zip(inputs) {
            tensors[tensor] = Some(input);
        }
        let missing = |stage: &StagePlan| stage.inputs.iter().filter(|input| tensors[input.tensor].is_none()).count();
        let missing = plan.stages.iter().map(missing).collect();
        let begun = vec![false; plan.stages.len()];
        Self { plan, tensors, needed, missing, begun, held: HeldBytes::new(whole.owner) }
    }

    /// A stage that can begin, if there is one.
    fn begin(&mut self) -> Option<(usize, &'a StagePlan)> {
        let number = (0..self.begun.len()).find(|&stage| !self.begun[stage] && self.missing[stage] == 0)?;
        self.begun[number] = true;
        Some((number, &self.plan.stages[number]))
    }

    /// What a stage takes; whoever is the last to need a tensor has it.
    fn take(&mut self, stage: &StagePlan) -> Vec<Tensor> {
        stage.inputs.iter().filter_map(|input| self.use_up(input.tensor)).collect()
    }

    fn use_up(&mut self, tensor: usize) -> Option<Tensor> {
        self.needed[tensor] -= 1;
        if self.needed[tensor] == 0 { self.tensors[tensor].take() } else { self.tensors[tensor].clone() }
    }

    /// What a stage gave.
    fn put(&mut self, stage: &StagePlan, mut outputs: Vec<Tensor>) -> Result<(), Fault> {
        for &(position, tensor) in &stage.outputs {
            let Some(output) = outputs.get_mut(position) else {
                let message = format!("stage {:?} gave fewer outputs than its model has", stage.name);
                return Err(Fault::new(Reason::ExecutionFailed, message));
            };
            // No output of a model is two tensors of the pipeline.
            let output = std::mem::replace(
                output,
                Tensor { datatype: output.datatype, shape: Vec::new(), data: bytes::Bytes::new() },
            );
            if self.needed[tensor] > 0 {
                self.tensors[tensor] = Some(output);
            }
            for (number, other) in self.plan.stages.iter().enumerate() {
                self.missing[number] -= other.inputs.iter().filter(|input| input.tensor == tensor).count();
            }
        }
        self.hold()
    }

    /// Counts what lies here and wasn't the client's own.
    fn hold(&mut self) -> Result<(), Fault> {
        let made = self.tensors.iter().enumerate().filter(|(tensor, _)| !self.plan.inputs.contains(tensor));
        let bytes: usize = made.filter_map(|(_, tensor)| Some(tensor.as_ref()?.data.len())).sum();
        self.held.replace(if bytes < COUNTED_FROM { 0 } else { bytes })
    }

    fn finish(mut self) -> Result<Vec<Tensor>, Fault> {
        let plan = self.plan;
        let outputs: Option<Vec<Tensor>> = plan.outputs.iter().map(|&tensor| self.use_up(tensor)).collect();
        outputs.ok_or_else(|| Fault::new(Reason::ExecutionFailed, "a stage never began: this is a bug"))
    }
}
