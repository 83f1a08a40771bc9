//! Finds the fastest kernel of each step, on the device, in graphs as it will run.

use super::agree::{Agreement, agree, own_elements};
use super::launch::{Launch, ProgramMemory};
use super::{ALIGNMENT, Effort, Ready, StepCandidates, dnn, dnn_rank, lt, uniform};
use crate::choices::Choices;
use crate::quiet::{NEVER, Others, launches_at_once, undisturbed};
use crate::streams::instantiate;
use crate::toolkit::{CudaError, DnnHandle, Toolkit, check, write_whole};
use cudarc::driver::sys as driver;
use graph::Plan;
use graph::array::Array;
use graph::plan::{DataType, Precision, Step, TensorPlace};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Launches in a graph that is timed, at most.
const LAUNCHES: usize = 8;

/// A candidate that takes this much longer than the best so far isn't measured a second time.
const HOPELESS: f32 = 1.25;

/// How many random numbers there are before they repeat: a prime.
const NUMBERS: usize = 1_000_003;

/// How many bytes of a tensor are compared, in how many pieces where it has more.
const LOOKED_AT: usize = 1 << 20;
const PIECES: usize = 8;

/// Measures every step that isn't in the choices yet, and keeps the results.
pub(super) fn choose(
    toolkit: &Toolkit,
    plan: &Plan,
    wanted: &[StepCandidates],
    effort: Effort,
    stream: driver::CUstream,
    others: &dyn Others,
) -> Result<(), CudaError> {
    let mut seen = BTreeSet::new();
    let open: Vec<usize> = {
        let choices = toolkit.choices().lock().expect("nobody panics while holding it");
        (0..wanted.len())
            .filter(|&at| {
                wanted[at].is_choice(effort)
                    && choices.get(&wanted[at].signature).is_none()
                    && seen.insert(&wanted[at].signature)
            })
            .collect()
    };
    if open.is_empty() {
        return Ok(());
    }
    let all = candidates(toolkit, plan, wanted, &open, effort, others.given_up())?;
    others.wait_until_quiet()?;
    let field = TrialMemory::new(plan, scratch_bytes(&all), stream)?;
    for (at, candidates) in all {
        let (mut timed, mut limit) = (Vec::new(), f32::INFINITY);
        for (name, ready) in candidates {
            // A candidate that can't be captured or launched is no candidate.
            match field.time(&ready, limit, others) {
                Err(CudaError::GivenUp) => return Err(CudaError::GivenUp),
                Ok(microseconds) => {
                    limit = limit.min(microseconds);
                    timed.push((microseconds, name, ready));
                }
                Err(error) => tracing::debug!(%error, name, "a candidate failed"),
            }
        }
        timed.sort_by(|a, b| a.0.total_cmp(&b.0));
        others.wait_until_quiet()?;
        let right = right(&field, plan, at, &timed)?;
        let Some((microseconds, name, ready)) = right.map(|which| timed.swap_remove(which)) else { continue };
        tracing::debug!(signature = wanted[at].signature, name, microseconds, "chosen");
        toolkit.choose(&wanted[at].signature, &name, microseconds);
        if let Ready::Convolution(convolution) = ready {
            keep(toolkit, &wanted[at].signature, &convolution.engine);
            let mut engines = toolkit.engines.lock().expect("nobody panics while holding it");
            engines.insert(wanted[at].signature.clone(), convolution.engine);
        }
    }
    Ok(())
}

/// The first of these candidates of a step that is ours or agrees with ours.
fn right(
    field: &TrialMemory,
    plan: &Plan,
    at: usize,
    candidates: &[(f32, String, Ready)],
) -> Result<Option<usize>, CudaError> {
    let step = &plan.steps[at];
    let Some((_, _, own)) = candidates.iter().find(|(_, _, ready)| matches!(ready, Ready::Own(_))) else {
        return Ok((!candidates.is_empty()).then_some(0));
    };
    let mut ours = None;
    for (which, (_, name, ready)) in candidates.iter().enumerate() {
        if matches!(ready, Ready::Own(_)) {
            return Ok(Some(which));
        }
        let ours = match &mut ours {
            Some(ours) => ours,
            none => none.insert(field.results(own, step)?),
        };
        let theirs = match field.results(ready, step) {
            Ok(theirs) => theirs,
            Err(error) => {
                tracing::debug!(%error, name, "a candidate failed");
                continue;
            }
        };
        match agree(plan.precision_of(at), ours, &theirs) {
            Agreement::Agree => return Ok(Some(which)),
            Agreement::Differ(by) => {
                let step = plan.names.get(at);
                tracing::warn!(name, by, step, "a library computes something else than our kernels: it isn't used");
            }
            Agreement::CutOff(by) => {
                tracing::debug!(name, by, step = plan.names.get(at), "a library cuts off instead of rounding");
            }
        }
    }
    Ok(None)
}

/// For each of some steps, every kernel with its name.
pub(super) type Candidates = Vec<(usize, Vec<(String, Ready)>)>;

pub(super) fn candidates(
    toolkit: &Toolkit,
    plan: &Plan,
    wanted: &[StepCandidates],
    open: &[usize],
    effort: Effort,
    given_up: &AtomicBool,
) -> Result<Candidates, CudaError> {
    // Candidates are timed several in a row, so that a library's product comes behind an activation.
    let activation = |at: usize| wanted[at].activation.clone();
    let sources: Vec<_> = open
        .iter()
        .flat_map(|&at| wanted[at].recipes.iter().cloned().chain(activation(at).filter(|_| effort.products)))
        .map(|recipe| recipe.source)
        .collect();
    toolkit.compile_all(&sources, given_up)?;
    let convolutions = proposals(toolkit, plan, open, effort, given_up)?;
    let mut all = Vec::new();
    for (&at, convolutions) in open.iter().zip(convolutions) {
        let mut candidates = Vec::new();
        for recipe in &wanted[at].recipes {
            candidates.push((recipe.name.clone(), Ready::Own(Launch::new(toolkit, recipe.clone())?)));
        }
        if effort.products {
            let behind = activation(at).map(|recipe| Launch::new(toolkit, recipe)).transpose()?;
            for product in lt::candidates(toolkit, &plan.steps[at], plan.precision_of(at))? {
                candidates.push((product.name.clone(), Ready::Product(Box::new(product), behind.clone())));
            }
        }
        if let Step::Conv(conv) = &plan.steps[at] {
            let ready = |engine: dnn::Engine| {
                (engine.name.clone(), Ready::Convolution(dnn::Convolution::new(Arc::new(engine), conv)))
            };
            candidates.extend(convolutions.into_iter().map(ready));
        }
        all.push((at, candidates));
    }
    Ok(all)
}

pub(super) fn scratch_bytes(all: &Candidates) -> usize {
    all.iter().flat_map(|(_, candidates)| candidates.iter().map(|(_, ready)| ready.scratch_bytes())).max().unwrap_or(0)
}

fn bytes_of(port: &graph::plan::Port) -> usize {
    port.dims.iter().product::<usize>() * port.dtype.size().unwrap_or(1)
}

/// cuDNN's proposals for each of those steps. F32 it would round to TF32.
fn proposals(
    toolkit: &Toolkit,
    plan: &Plan,
    open: &[usize],
    effort: Effort,
    given_up: &AtomicBool,
) -> Result<Vec<Vec<dnn::Engine>>, CudaError> {
    let takes = |at: usize| effort.proposals > 0 && plan.precision_of(at) != Precision::F32;
    let wishes: Vec<_> = open.iter().filter(|&&at| takes(at)).map(|&at| (at, effort.proposals, None)).collect();
    if wishes.is_empty() {
        return Ok(open.iter().map(|_| Vec::new()).collect());
    }
    let make = |handle: &Arc<DnnHandle>, (at, most, only): EngineWish<'_>| of_step(handle, plan, at, most, only);
    let mut made = engines(toolkit, &wishes, given_up, &make)?.into_iter();
    Ok(open.iter().map(|&at| if takes(at) { made.next().unwrap_or_default() } else { Vec::new() }).collect())
}

/// Makes the engines of convolutions that were chosen in an earlier run, so that they are there when a program is put
/// together.
pub(super) fn remember(
    toolkit: &Toolkit,
    plan: &Plan,
    wanted: &[StepCandidates],
    choices: &Choices,
) -> Result<(), CudaError> {
    let mut wishes = Vec::new();
    let mut seen = BTreeSet::new();
    {
        let known = toolkit.engines.lock().expect("nobody panics while holding it");
        for (at, wanted) in wanted.iter().enumerate() {
            let Some(choice) = choices.get(&wanted.signature).filter(|choice| choice.candidate.starts_with("cudnn"))
            else {
                continue;
            };
            if !known.contains_key(&wanted.signature) && seen.insert(&wanted.signature) {
                wishes.push((at, dnn_rank(&choice.candidate) + 1, Some(choice.candidate.as_str())));
            }
        }
    }
    if wishes.is_empty() {
        return Ok(());
    }
    let restored = |handle: &Arc<DnnHandle>, signature: &str, name: &str| {
        let text = std::fs::read(toolkit.plan_path(signature, name)).ok()?;
        let engine = dnn::Engine::from_text(handle, name, &text);
        engine.inspect_err(|error| tracing::debug!(%error, name, "a kept plan of cuDNN's can't be used")).ok()
    };
    let make = |handle: &Arc<DnnHandle>, (at, most, only): EngineWish<'_>| {
        let signature = &wanted[at].signature;
        if let Some(engine) = only.and_then(|name| restored(handle, signature, name)) {
            return vec![engine];
        }
        let made = of_step(handle, plan, at, most, only);
        made.iter().for_each(|engine| keep(toolkit, signature, engine));
        made
    };
    let made = engines(toolkit, &wishes, &NEVER, &make)?;
    let mut known = toolkit.engines.lock().expect("nobody panics while holding it");
    for ((at, ..), engine) in wishes.into_iter().zip(made) {
        known.extend(engine.into_iter().map(|engine| (wanted[at].signature.clone(), Arc::new(engine))));
    }
    Ok(())
}

/// How many engines are wanted for which step, or the one of a name.
type EngineWish<'a> = (usize, usize, Option<&'a str>);

/// Keeps a plan for the next start. What can't be kept is made again.
fn keep(toolkit: &Toolkit, signature: &str, engine: &dnn::Engine) {
    let path = toolkit.plan_path(signature, &engine.name);
    let kept = engine.to_text().map_err(|error| error.to_string());
    let kept = kept.and_then(|text| write_whole(&path, &text).map_err(|error| error.to_string()));
    if let Err(error) = kept {
        tracing::debug!(error, name = engine.name, "a plan of cuDNN's can't be kept");
    }
}

/// What cuDNN has for a step.
fn of_step(handle: &Arc<DnnHandle>, plan: &Plan, at: usize, most: usize, only: Option<&str>) -> Vec<dnn::Engine> {
    let Step::Conv(conv) = &plan.steps[at] else { return Vec::new() };
    dnn::candidates(handle, conv, most, only).unwrap_or_else(|error| {
        tracing::debug!(%error, "cuDNN doesn't take a convolution");
        Vec::new()
    })
}

/// Engines for wishes. Most have to be compiled, so every core takes part, each with a handle of its own.
fn engines(
    toolkit: &Toolkit,
    wishes: &[EngineWish<'_>],
    given_up: &AtomicBool,
    make: &(dyn Fn(&Arc<DnnHandle>, EngineWish<'_>) -> Vec<dnn::Engine> + Sync),
) -> Result<Vec<Vec<dnn::Engine>>, CudaError> {
    let results: Vec<Mutex<Vec<dnn::Engine>>> = wishes.iter().map(|_| Mutex::default()).collect();
    let mut context = std::ptr::null_mut();
    // SAFETY: the pointer is to a live variable.
    check("cuCtxGetCurrent", unsafe { driver::cuCtxGetCurrent(&raw mut context) })?;
    let context = context as usize;
    let next = AtomicUsize::new(0);
    let handles = toolkit.dnn_handles(wishes.len())?;
    std::thread::scope(|scope| {
        for handle in &handles {
            let (next, results) = (&next, &results);
            scope.spawn(move || {
                // SAFETY: the context is that of the thread that waits for this one.
                unsafe { driver::cuCtxSetCurrent(context as driver::CUcontext) };
                while let Some((at, &wish)) = Some(next.fetch_add(1, Ordering::Relaxed))
                    .filter(|_| !given_up.load(Ordering::Relaxed))
                    .and_then(|at| Some((at, wishes.get(at)?)))
                {
                    *results[at].lock().expect("nobody panics while holding it") = make(handle, wish);
                }
            });
        }
    });
    if given_up.load(Ordering::Relaxed) {
        return Err(CudaError::GivenUp);
    }
    Ok(results.into_iter().map(|result| result.into_inner().expect("nobody panics while holding it")).collect())
}

/// Random numbers between -0.5 and 0.5 in the type that a plan computes in. So many that no tensor's rows are alike.
fn numbers(precision: Precision) -> Vec<u8> {
    let mut next = uniform(1);
    let dtype = if precision == Precision::F16 { DataType::Fp16 } else { DataType::Fp32 };
    let array = Array::floats(&[NUMBERS], (0..NUMBERS).map(|_| next()).collect());
    let mut bytes = vec![0; NUMBERS * dtype.size().unwrap_or(1)];
    array.store_strided(dtype, &[1], 0, &mut bytes);
    bytes
}

/// A piece of the device's memory.
#[derive(Clone, Copy)]
struct Part {
    address: driver::CUdeviceptr,
    bytes: usize,
    /// At which byte of the random numbers it begins when it is filled.
    from: usize,
}

/// Memory like that of a real execution, and what times need.
pub(super) struct TrialMemory {
    stream: driver::CUstream,
    allocations: Vec<driver::CUdeviceptr>,
    weights: driver::CUdeviceptr,
    constants: driver::CUdeviceptr,
    workspace: driver::CUdeviceptr,
    scratch: driver::CUdeviceptr,
    inputs: Vec<driver::CUdeviceptr>,
    outputs: Vec<driver::CUdeviceptr>,
    /// The workspace and the outputs.
    written: Vec<Part>,
    /// Random numbers.
    pattern: Part,
    begin: driver::CUevent,
    end: driver::CUevent,
}

impl TrialMemory {
    pub(super) fn new(plan: &Plan, scratch_bytes: usize, stream: driver::CUstream) -> Result<Self, CudaError> {
        let mut allocations = Vec::new();
        let numbers = numbers(plan.precision);
        let size = numbers.len() / NUMBERS;
        let mut take = |bytes: usize, first: usize| {
            let mut address = 0;
            let bytes = bytes.max(1).next_multiple_of(ALIGNMENT);
            // SAFETY: the pointer is to a live variable.
            check("cuMemAlloc", unsafe { driver::cuMemAlloc_v2(&raw mut address, bytes) })?;
            allocations.push(address);
            Ok::<_, CudaError>(Part { address, bytes, from: first % NUMBERS * size })
        };
        let pattern = take(numbers.len(), 0)?;
        // They begin at different numbers: rows that were multiplied with themselves would be far larger than the rest.
        let weights = take(plan.weights.len(), 333_331)?;
        let constants = take(plan.constants.len(), 200_002)?;
        let workspace = take(plan.workspace_bytes, 0)?;
        let scratch = take(scratch_bytes, 0)?;
        let inputs = plan.inputs.iter().map(|input| take(bytes_of(input), 400_004)).collect::<Result<Vec<_>, _>>()?;
        let outputs =
            plan.outputs.iter().map(|output| take(bytes_of(output), 600_006)).collect::<Result<Vec<_>, _>>()?;
        let (mut begin, mut end) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the pointers are to live variables.
        unsafe {
            check("cuEventCreate", driver::cuEventCreate(&raw mut begin, 0))?;
            check("cuEventCreate", driver::cuEventCreate(&raw mut end, 0))?;
        }
        let addresses = |all: &[Part]| all.iter().map(|part| part.address).collect();
        let field = Self {
            stream,
            allocations,
            weights: weights.address,
            constants: constants.address,
            workspace: workspace.address,
            scratch: scratch.address,
            inputs: addresses(&inputs),
            outputs: addresses(&outputs),
            written: [&[workspace], &outputs[..]].concat(),
            pattern: Part { bytes: numbers.len(), ..pattern },
            begin,
            end,
        };
        field.put(field.pattern.address, &numbers)?;
        field.fill(&[&[weights, constants, scratch], &inputs[..], &field.written].concat())?;
        Ok(field)
    }

    pub(super) fn memory(&self) -> ProgramMemory<'_> {
        let &Self { weights, constants, workspace, scratch, .. } = self;
        ProgramMemory { weights, constants, workspace, scratch, inputs: &self.inputs, outputs: &self.outputs }
    }

    /// Fills memory with random numbers, always the same.
    fn fill(&self, parts: &[Part]) -> Result<(), CudaError> {
        for part in parts {
            let (mut done, mut from) = (0, part.from);
            while done < part.bytes {
                let count = (self.pattern.bytes - from).min(part.bytes - done);
                // SAFETY: both are allocated, and as long as is said.
                check("cuMemcpyDtoDAsync", unsafe {
                    let (to, from) = (part.address + done as u64, self.pattern.address + from as u64);
                    driver::cuMemcpyDtoDAsync_v2(to, from, count, self.stream)
                })?;
                (done, from) = (done + count, 0);
            }
        }
        // SAFETY: the stream lives.
        check("cuStreamSynchronize", unsafe { driver::cuStreamSynchronize(self.stream) })
    }

    /// What a kernel makes of random numbers: all elements that its step writes, or some of them where they are many.
    fn results(&self, ready: &Ready, step: &Step) -> Result<Vec<f32>, CudaError> {
        self.fill(&self.written)?;
        ready.enqueue(self.stream, &self.memory())?;
        // SAFETY: the stream lives.
        check("cuStreamSynchronize", unsafe { driver::cuStreamSynchronize(self.stream) })?;
        let mut results = Vec::new();
        for tensor in step.writes() {
            let base = match tensor.place {
                TensorPlace::Output(position) => self.outputs[position],
                _ => self.workspace,
            };
            let (span, size) = (tensor.span(), tensor.element_bytes());
            let pieces = if span.len() > LOOKED_AT { PIECES } else { 1 };
            let length = span.len().min(LOOKED_AT) / pieces / size * size;
            for piece in 0..pieces {
                let start = span.start + (span.len() - length) / size * piece / (pieces - 1).max(1) * size;
                let mut bytes = vec![0u8; length];
                // SAFETY: that much of the tensor is there, and in the buffer.
                check("cuMemcpyDtoH", unsafe {
                    driver::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), base + start as u64, length)
                })?;
                let first = (start - span.start) / size;
                let (own, of) = own_elements(tensor);
                let all = Array::load(tensor.dtype, &[length / size], &[1], 0, &bytes);
                let numbers = all.to_floats();
                let inside = numbers.iter().enumerate().filter(|(at, _)| (first + at) % of < own);
                results.extend(inside.map(|(_, number)| *number));
            }
        }
        Ok(results)
    }

    /// Puts there what no step writes.
    pub(super) fn put_constant(
        &self,
        plan: &Plan,
        memory: &graph::reference::ReferenceMemory,
    ) -> Result<(), CudaError> {
        self.put(self.weights, &memory.weights)?;
        self.put(self.constants, &plan.constants)?;
        self.inputs.iter().zip(&memory.inputs).try_for_each(|(&address, bytes)| self.put(address, bytes))
    }

    /// Puts there what steps write.
    pub(super) fn put_written(&self, memory: &graph::reference::ReferenceMemory) -> Result<(), CudaError> {
        let parts = std::iter::once(&memory.workspace).chain(&memory.outputs);
        self.written.iter().zip(parts).try_for_each(|(part, bytes)| self.put(part.address, bytes))
    }

    /// Whether what no step may write is still what was put there.
    pub(super) fn is_constant(
        &self,
        plan: &Plan,
        memory: &graph::reference::ReferenceMemory,
    ) -> Result<bool, CudaError> {
        let inputs = self.inputs.iter().copied().zip(memory.inputs.iter().map(|input| &input[..]));
        let rest = [(self.weights, &memory.weights[..]), (self.constants, &plan.constants[..])];
        let mut same = true;
        for (address, bytes) in inputs.chain(rest).filter(|(_, bytes)| !bytes.is_empty()) {
            let mut found = vec![0u8; bytes.len()];
            // SAFETY: the buffer is as large as what is copied into it.
            check("cuMemcpyDtoH", unsafe { driver::cuMemcpyDtoH_v2(found.as_mut_ptr().cast(), address, found.len()) })?;
            same &= found == bytes;
        }
        Ok(same)
    }

    /// What steps have written, once all that was launched is done.
    pub(super) fn read_written(&self, into: &mut graph::reference::ReferenceMemory) -> Result<(), CudaError> {
        // SAFETY: each buffer is as large as what is copied into it.
        unsafe {
            check("cuStreamSynchronize", driver::cuStreamSynchronize(self.stream))?;
            let parts = std::iter::once(&mut into.workspace).chain(&mut into.outputs);
            for (&Part { address, .. }, bytes) in self.written.iter().zip(parts).filter(|(_, bytes)| !bytes.is_empty())
            {
                check("cuMemcpyDtoH", driver::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, bytes.len()))?;
            }
        }
        Ok(())
    }

    fn put(&self, address: driver::CUdeviceptr, bytes: &[u8]) -> Result<(), CudaError> {
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the memory is as large as the plan says, and so are the bytes, which are there until it is done. In
        // the stream, because that doesn't wait for others.
        unsafe {
            check(
                "cuMemcpyHtoDAsync",
                driver::cuMemcpyHtoDAsync_v2(address, bytes.as_ptr().cast(), bytes.len(), self.stream),
            )?;
            check("cuStreamSynchronize", driver::cuStreamSynchronize(self.stream))
        }
    }

    /// Microseconds of one launch. Hopeless ones are timed less carefully.
    pub(super) fn time(&self, ready: &Ready, limit: f32, others: &dyn Others) -> Result<f32, CudaError> {
        let enqueue = || ready.enqueue(self.stream, &self.memory());
        others.wait_until_quiet()?;
        // Once outside of a graph: libraries load their code then.
        enqueue()?;
        let launches = launches_at_once(Duration::from_secs_f32(self.elapsed(enqueue)? / 1e3), LAUNCHES);
        let graph = ReplayedGraph::capture(self.stream, || (0..launches).try_for_each(|_| enqueue()))?;
        // SAFETY: the graph and the stream are alive.
        let replay = || check("cuGraphLaunch", unsafe { driver::cuGraphLaunch(graph.0, self.stream) });
        let one = || Ok(undisturbed(others, || self.elapsed(replay))? * 1e3 / launches as f32);
        let first = one()?;
        let mut best = one()?.min(first);
        if best < limit * HOPELESS {
            for _ in 0..3 {
                best = best.min(one()?);
            }
        }
        Ok(best)
    }

    /// Milliseconds that something takes on the device.
    fn elapsed(&self, enqueue: impl FnOnce() -> Result<(), CudaError>) -> Result<f32, CudaError> {
        let mut milliseconds = 0.0;
        // SAFETY: the stream and the events are alive; the variable is.
        unsafe {
            check("cuEventRecord", driver::cuEventRecord(self.begin, self.stream))?;
            enqueue()?;
            check("cuEventRecord", driver::cuEventRecord(self.end, self.stream))?;
            check("cuEventSynchronize", driver::cuEventSynchronize(self.end))?;
            check("cuEventElapsedTime", driver::cuEventElapsedTime_v2(&raw mut milliseconds, self.begin, self.end))?;
        }
        Ok(milliseconds)
    }
}

impl Drop for TrialMemory {
    fn drop(&mut self) {
        // SAFETY: all were made in `new`, and the stream is waited for first.
        unsafe {
            driver::cuStreamSynchronize(self.stream);
            driver::cuEventDestroy_v2(self.begin);
            driver::cuEventDestroy_v2(self.end);
            for &address in &self.allocations {
                driver::cuMemFree_v2(address);
            }
        }
    }
}

/// A graph that can be launched.
struct ReplayedGraph(driver::CUgraphExec);

impl ReplayedGraph {
    fn capture(stream: driver::CUstream, enqueue: impl FnOnce() -> Result<(), CudaError>) -> Result<Self, CudaError> {
        let mode = driver::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is alive, pointers are to live variables; the graph isn't needed once it is instantiated.
        unsafe {
            check("cuStreamBeginCapture", driver::cuStreamBeginCapture_v2(stream, mode))?;
            let enqueued = enqueue();
            let ended = check("cuStreamEndCapture", driver::cuStreamEndCapture(stream, &raw mut graph));
            enqueued.and(ended)?;
            let made = instantiate(graph);
            driver::cuGraphDestroy(graph);
            let failed = |refused| CudaError::Call { call: "cuGraphInstantiate", status: format!("{refused}") };
            Ok(Self(made.map_err(failed)?))
        }
    }
}

impl Drop for ReplayedGraph {
    fn drop(&mut self) {
        // SAFETY: made in `capture`; its launches were waited for.
        unsafe { driver::cuGraphExecDestroy(self.0) };
    }
}
