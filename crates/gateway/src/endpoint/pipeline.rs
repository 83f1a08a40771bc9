//! A request for a pipeline: stages run as soon as what they take is there, and tensors go from one to the next as they
//! are.
//!
//! A tensor is a count of references to bytes: what one stage gave is what the next one takes, without a copy, and so
//! is each row of it. Only the outputs of several calls are copied, once, to stand behind one another.

use super::rows::{Joined, fill_up, filled_bytes, lengths, rows_of, shorten, split};
use super::{Whole, take_tensor};
use crate::body::hold::{COUNTED_FROM, HeldBytes};
use crate::io::offload::offload;
use crate::regions::OFFLOAD_COPY_BYTES;
use base::{Reason, TensorSpec, Timestamp};
use controller::{Controller, PipelineStage, Tensor};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use models::{FanOut, InputPart, KnownPipeline, PipelinePlan, PlannedWork, StageInput, StagePlan};
use std::sync::Arc;
use steps::{StepError, TensorStep};
use telemetry::{BatchTimes, Trace};
use wire::Fault;

/// A step takes one part in so many of what may be held, or as much as the largest request.
const STEPS_AT_ONCE: usize = 4;
/// So many calls of a stage are under way at a time. Each takes some kilobytes and some microseconds of the thread that
/// begins it, which serves others, too; no device has batches as large.
const CALLS_AT_ONCE: usize = 512;
/// Of a step in a trace, where models have a version: theirs begin with 1.
const STEP_VERSION: u64 = 0;

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
            let known = known.and_then(|known| known.stage(number)).map(|stage| stage.of_whole(whole.arrived_at));
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
        PlannedWork::Step(step) => return run_step(whole, &stage.name, step, given).await,
        PlannedWork::Member(member) => *member,
    };
    let positions = stage.inputs.iter().map(|input| input.position);
    let Some(fan_out) = stage.fan_out else {
        return whole.ask(member, known, positions.zip(given).collect()).await;
    };
    let calls = count_calls(stage, fan_out, &given)?;
    stage.meter.called(calls);
    // What is copied for calls, and what they gave, counts as held until they are joined.
    let mut held = Held::new(whole);
    if stage.inputs.iter().any(|input| input.part == InputPart::Length) {
        held.add(bytes_of(&given))?;
    }
    let parts = deal_out(whole, stage, calls, given).await?;
    let ask = |(number, part)| async move { (number, whole.ask(member, known, part).await) };
    let mut left = parts.into_iter().enumerate().map(ask);
    let mut running: FuturesUnordered<_> = left.by_ref().take(CALLS_AT_ONCE).collect();
    let mut answers: Vec<Vec<Tensor>> = vec![Vec::new(); calls];
    let mut answered = 0;
    while let Some((number, outputs)) = running.next().await {
        answers[number] = outputs?;
        held.add(bytes_of(&answers[number]))?;
        running.extend(left.next());
        answered += 1;
        if answered % CALLS_AT_ONCE == 0 {
            // Answers that are kept are there at once: others have their turn all the same.
            tokio::task::yield_now().await;
        }
    }
    let specs = whole.signature(member)?.outputs.clone();
    if answers.iter().any(|answer| answer.len() != specs.len()) {
        return Err(Fault::new(Reason::ExecutionFailed, "a call gave fewer outputs than the model has"));
    }
    let copied = if calls > 1 { joined_bytes(whole, fan_out, &answers, specs.len())? } else { 0 };
    held.add(copied)?;
    by_size(whole, copied, move || join(&specs, fan_out, answers)).await
}

/// Bytes of one stage's calls, which count as held from some size on.
struct Held {
    bytes: usize,
    counted: HeldBytes,
}

impl Held {
    fn new(whole: &Whole<'_>) -> Self {
        Self { bytes: 0, counted: HeldBytes::new(whole.owner) }
    }

    fn add(&mut self, bytes: usize) -> Result<(), Fault> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes < COUNTED_FROM { Ok(()) } else { self.counted.replace(self.bytes) }
    }
}

/// What the outputs of all calls take behind one another.
fn joined_bytes(whole: &Whole<'_>, fan_out: FanOut, answers: &[Vec<Tensor>], outputs: usize) -> Result<usize, Fault> {
    if !fan_out.fills {
        return Ok(bytes_of(answers.iter().flatten()));
    }
    let of_output = |position: usize| answers.iter().map(|answer| &answer[position]).collect::<Vec<_>>();
    let mut sizes = (0..outputs).map(|position| filled_bytes(&of_output(position), fan_out.stacks));
    let sum = sizes.try_fold(0_usize, |sum, bytes| sum.checked_add(bytes?));
    let most = most_bytes(whole);
    sum.filter(|&bytes| bytes <= most).ok_or_else(|| {
        let why = format!("what its calls gave is too large when it is filled up: {most} bytes are the most");
        Fault::new(Reason::BodyTooLarge, why)
    })
}

/// What each call is given: inputs by their position.
type CallInputs = Vec<(usize, Tensor)>;

/// What each call of a stage is given. Rows lie where the tensor does, unless they are shortened.
async fn deal_out(
    whole: &Whole<'_>,
    stage: &StagePlan,
    calls: usize,
    given: Vec<Tensor>,
) -> Result<Vec<CallInputs>, Fault> {
    let inputs = stage.inputs.clone();
    let is_copied = inputs.iter().any(|input| input.part == InputPart::Length);
    let copied = if is_copied { bytes_of(&given) } else { 0 };
    by_size(whole, copied, move || {
        let mut parts: Vec<CallInputs> = (0..calls).map(|_| Vec::with_capacity(given.len())).collect();
        for (input, tensor) in inputs.iter().zip(given) {
            deal_out_input(*input, &tensor, &mut parts)?;
        }
        Ok(parts)
    })
    .await
}

fn deal_out_input(input: StageInput, tensor: &Tensor, parts: &mut [CallInputs]) -> Result<(), Fault> {
    match input.part {
        InputPart::Whole => parts.iter_mut().for_each(|part| part.push((input.position, tensor.clone()))),
        InputPart::Row | InputPart::Element => {
            let rows = split(tensor, input.part == InputPart::Row)?;
            parts.iter_mut().zip(rows).for_each(|(part, row)| part.push((input.position, row)));
        }
        // It comes behind the input that it is about.
        InputPart::Length => {
            for (part, length) in parts.iter_mut().zip(lengths(tensor)) {
                let row = part.iter_mut().find(|(position, _)| *position == input.position);
                row.map_or(Ok(()), |(_, row)| shorten(row, length))?;
            }
        }
    }
    Ok(())
}

/// Does work that copies so many bytes: here, or on another thread if that takes long.
async fn by_size<T: Send + 'static>(
    whole: &Whole<'_>,
    bytes: usize,
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    if bytes < OFFLOAD_COPY_BYTES { work() } else { offload(whole.owner, bytes, work).await }
}

fn bytes_of<'t>(tensors: impl IntoIterator<Item = &'t Tensor>) -> usize {
    tensors.into_iter().map(|tensor| tensor.data.len()).sum()
}

/// What a stage may make between two others.
fn most_bytes(whole: &Whole<'_>) -> usize {
    let config = &whole.context.shared.config;
    config.max_body_bytes.max(config.max_held_bytes / STEPS_AT_ONCE)
}

/// Has a step done on another thread, while other requests wait for devices.
async fn run_step(
    whole: &Whole<'_>,
    name: &str,
    step: &Arc<TensorStep>,
    given: Vec<Tensor>,
) -> Result<Vec<Tensor>, Fault> {
    let (step, bytes, most_bytes) = (Arc::clone(step), bytes_of(&given), most_bytes(whole));
    let trace = StepTrace::begin(whole, name);
    let work = move || {
        let _trace = trace.map(StepTrace::work);
        step.run(&given, most_bytes).map_err(|error| match error {
            StepError::Inputs(why) => Fault::bad(why),
            StepError::TooLarge(why) => Fault::new(Reason::BodyTooLarge, why),
            StepError::Parameters(why) => Fault::new(Reason::ExecutionFailed, why),
        })
    };
    offload(whole.owner, bytes, work).await
}

/// A step of a request that is traced. Dropped, the step is over.
struct StepTrace {
    trace: Arc<Trace>,
    controller: Controller,
    asked_at: Timestamp,
    started_at: Option<Timestamp>,
}

impl StepTrace {
    fn begin(whole: &Whole<'_>, name: &str) -> Option<Self> {
        let trace = whole.trace.as_ref()?.part(name, STEP_VERSION);
        let controller = whole.context.controller.clone();
        let asked_at = controller.now();
        trace.queued(asked_at);
        Some(Self { trace, controller, asked_at, started_at: None })
    }

    /// A thread turns to it.
    fn work(mut self) -> Self {
        self.started_at = Some(self.controller.now());
        self
    }
}

impl Drop for StepTrace {
    fn drop(&mut self) {
        let ended_at = self.controller.now();
        if let Some(started_at) = self.started_at {
            let times = BatchTimes { started_at, gathered_at: started_at, computed_at: ended_at, ended_at };
            self.trace.computed(&times);
        }
        self.trace.end(self.asked_at, ended_at);
    }
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
fn join(specs: &[TensorSpec], fan_out: FanOut, mut answers: Vec<Vec<Tensor>>) -> Result<Vec<Tensor>, Fault> {
    let join = |(position, spec): (usize, &TensorSpec)| {
        let mut outputs: Vec<Tensor> = answers.iter_mut().map(|answer| take_tensor(&mut answer[position])).collect();
        if fan_out.fills {
            fill_up(&mut outputs, fan_out.stacks);
        }
        let mut joined = Joined::new(spec, fan_out.stacks);
        outputs.into_iter().try_for_each(|output| joined.add(output))?;
        Ok(joined.finish())
    };
    specs.iter().enumerate().map(join).collect()
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
            let output = take_tensor(output);
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
