//! Finds the fastest kernel of each step, on the device, in graphs as it will run.

use super::launch::{Launch, Memory};
use super::{ALIGNMENT, Effort, Ready, Wanted, dnn, dnn_rank, lt};
use crate::choices::Choices;
use crate::streams::instantiate;
use crate::toolkit::{Error, Toolkit, check};
use cudarc::driver::sys as driver;
use graph::Plan;
use graph::plan::{Precision, Step};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Launches in a graph that is timed.
const LAUNCHES: usize = 8;

/// A candidate that takes this much longer than the best so far isn't measured a second time.
const HOPELESS: f32 = 1.25;

/// Measures every step that isn't in the choices yet, and keeps the results.
pub(super) fn choose(
    toolkit: &Toolkit,
    plan: &Plan,
    wanted: &[Wanted],
    effort: Effort,
    stream: driver::CUstream,
) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    let open: Vec<usize> = {
        let choices = toolkit.choices().lock().expect("nobody panics while holding it");
        (0..wanted.len())
            .filter(|&at| {
                wanted[at].is_choice()
                    && choices.get(&wanted[at].signature).is_none()
                    && seen.insert(&wanted[at].signature)
            })
            .collect()
    };
    if open.is_empty() {
        return Ok(());
    }
    let all = candidates(toolkit, plan, wanted, &open, effort)?;
    let field = Field::new(plan, scratch_bytes(&all), stream)?;
    for (at, candidates) in all {
        let mut best: Option<(f32, String, Ready)> = None;
        for (name, ready) in candidates {
            let limit = best.as_ref().map_or(f32::INFINITY, |(best, ..)| *best);
            // A candidate that can't be captured or launched is no candidate.
            match field.time(&ready, limit) {
                Ok(microseconds) if microseconds < limit => best = Some((microseconds, name, ready)),
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, name, "a candidate failed"),
            }
        }
        let Some((microseconds, name, ready)) = best else { continue };
        tracing::debug!(signature = wanted[at].signature, name, microseconds, "chosen");
        toolkit.choices().lock().expect("nobody panics while holding it").set(
            &wanted[at].signature,
            &name,
            microseconds,
        );
        if let Ready::Convolution(convolution) = ready {
            let mut engines = toolkit.engines.lock().expect("nobody panics while holding it");
            engines.insert(wanted[at].signature.clone(), convolution.engine);
        }
    }
    Ok(())
}

/// For each of some steps, every kernel with its name.
type Candidates = Vec<(usize, Vec<(String, Ready)>)>;

fn candidates(
    toolkit: &Toolkit,
    plan: &Plan,
    wanted: &[Wanted],
    open: &[usize],
    effort: Effort,
) -> Result<Candidates, Error> {
    // Candidates are timed several in a row, so that a library's product comes behind an activation.
    let activation = |at: usize| wanted[at].activation.clone();
    let sources: Vec<_> = open
        .iter()
        .flat_map(|&at| wanted[at].recipes.iter().cloned().chain(activation(at).filter(|_| effort.products)))
        .map(|recipe| recipe.source)
        .collect();
    toolkit.compile_all(&sources)?;
    let convolutions = proposals(toolkit, plan, open, effort)?;
    let mut all = Vec::new();
    for (&at, convolutions) in open.iter().zip(convolutions) {
        let mut candidates = Vec::new();
        for recipe in &wanted[at].recipes {
            candidates.push((recipe.name.clone(), Ready::Own(Launch::new(toolkit, recipe.clone())?)));
        }
        if effort.products {
            let behind = activation(at).map(|recipe| Launch::new(toolkit, recipe)).transpose()?;
            for product in lt::candidates(toolkit, &plan.steps[at], plan.precision)? {
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

fn scratch_bytes(all: &Candidates) -> usize {
    all.iter().flat_map(|(_, candidates)| candidates.iter().map(|(_, ready)| ready.scratch_bytes())).max().unwrap_or(0)
}

/// What a candidate of a step took, and what it computed.
pub struct Trial {
    /// Which step of the plan.
    pub step: usize,
    /// The candidate's name.
    pub name: String,
    /// What it took, or why it failed.
    pub microseconds: Result<f32, Error>,
    /// The plan's outputs after it ran.
    pub outputs: Vec<Vec<u8>>,
}

/// Runs every candidate of every step on these inputs, each after outputs are cleared: to check and to compare kernels.
pub fn survey(
    toolkit: &Toolkit,
    plan: &Plan,
    effort: Effort,
    stream: driver::CUstream,
    inputs: &[Vec<u8>],
    mut each: impl FnMut(Trial),
) -> Result<(), Error> {
    let wanted = Wanted::all(plan, toolkit.facts())?;
    let open: Vec<usize> = (0..wanted.len()).collect();
    let all = candidates(toolkit, plan, &wanted, &open, effort)?;
    let field = Field::new(plan, scratch_bytes(&all), stream)?;
    for (&address, bytes) in field.inputs.iter().zip(inputs) {
        // SAFETY: the memory is as large as the plan's input.
        check("cuMemcpyHtoD", unsafe { driver::cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()) })?;
    }
    for (step, candidates) in all {
        for (name, ready) in candidates {
            let mut outputs: Vec<Vec<u8>> = plan.outputs.iter().map(|port| vec![0; bytes_of(port)]).collect();
            let clear = |value: u8| {
                for (&address, bytes) in field.outputs.iter().zip(&outputs) {
                    // SAFETY: the memory is as large as the plan's output.
                    check("cuMemsetD8", unsafe { driver::cuMemsetD8_v2(address, value, bytes.len()) })?;
                }
                Ok::<_, Error>(())
            };
            clear(0xff)?;
            let microseconds = field.time(&ready, f32::INFINITY);
            field.read(&mut outputs)?;
            each(Trial { step, name, microseconds, outputs });
        }
    }
    Ok(())
}

fn bytes_of(port: &graph::plan::Port) -> usize {
    port.dims.iter().product::<usize>() * port.dtype.size().unwrap_or(1)
}

/// cuDNN's proposals for each of those steps. F32 it would round to TF32.
fn proposals(toolkit: &Toolkit, plan: &Plan, open: &[usize], effort: Effort) -> Result<Vec<Vec<dnn::Engine>>, Error> {
    if effort.proposals == 0 || plan.precision == Precision::F32 {
        return Ok(open.iter().map(|_| Vec::new()).collect());
    }
    let wishes: Vec<_> = open.iter().map(|&at| (at, effort.proposals, None)).collect();
    engines(toolkit, plan, &wishes)
}

/// Makes the engines of convolutions that were chosen in an earlier run, so that they are there when a program is put together.
pub(super) fn remember(toolkit: &Toolkit, plan: &Plan, wanted: &[Wanted], choices: &Choices) -> Result<(), Error> {
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
    let made = engines(toolkit, plan, &wishes)?;
    let mut known = toolkit.engines.lock().expect("nobody panics while holding it");
    for ((at, ..), engine) in wishes.into_iter().zip(made) {
        known.extend(engine.into_iter().map(|engine| (wanted[at].signature.clone(), Arc::new(engine))));
    }
    Ok(())
}

/// Engines for steps: how many are wanted of which, or the one of a name. Most have to be compiled, so every core takes part, each with a handle of its own.
fn engines(
    toolkit: &Toolkit,
    plan: &Plan,
    wishes: &[(usize, usize, Option<&str>)],
) -> Result<Vec<Vec<dnn::Engine>>, Error> {
    let results: Vec<Mutex<Vec<dnn::Engine>>> = wishes.iter().map(|_| Mutex::default()).collect();
    let mut context = std::ptr::null_mut();
    // SAFETY: the pointer is to a live variable.
    check("cuCtxGetCurrent", unsafe { driver::cuCtxGetCurrent(&raw mut context) })?;
    let context = context as usize;
    let next = AtomicUsize::new(0);
    let handles = toolkit.dnn_handles()?;
    std::thread::scope(|scope| {
        for &handle in handles.iter().take(wishes.len()) {
            let (next, results) = (&next, &results);
            let handle = handle as usize;
            scope.spawn(move || {
                // SAFETY: the context is that of the thread that waits for this one.
                unsafe { driver::cuCtxSetCurrent(context as driver::CUcontext) };
                while let Some((at, &(index, most, only))) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, wishes.get(at)?)))
                {
                    let Step::Conv(conv) = &plan.steps[index] else { continue };
                    match dnn::candidates(handle as _, conv, most, only) {
                        Ok(found) => *results[at].lock().expect("nobody panics while holding it") = found,
                        Err(error) => tracing::debug!(%error, "cuDNN doesn't take a convolution"),
                    }
                }
            });
        }
    });
    Ok(results.into_iter().map(|result| result.into_inner().expect("nobody panics while holding it")).collect())
}

/// Memory like that of a real execution, and what times need.
struct Field {
    stream: driver::CUstream,
    allocations: Vec<driver::CUdeviceptr>,
    weights: driver::CUdeviceptr,
    constants: driver::CUdeviceptr,
    workspace: driver::CUdeviceptr,
    scratch: driver::CUdeviceptr,
    inputs: Vec<driver::CUdeviceptr>,
    outputs: Vec<driver::CUdeviceptr>,
    begin: driver::CUevent,
    end: driver::CUevent,
}

impl Field {
    fn new(plan: &Plan, scratch_bytes: usize, stream: driver::CUstream) -> Result<Self, Error> {
        let mut allocations = Vec::new();
        let mut take = |bytes: usize| {
            let mut address = 0;
            let bytes = bytes.max(1).next_multiple_of(ALIGNMENT);
            // SAFETY: the pointer is to a live variable, and what is set is what was allocated. The pattern is a small number in all types.
            unsafe {
                check("cuMemAlloc", driver::cuMemAlloc_v2(&raw mut address, bytes))?;
                check("cuMemsetD16", driver::cuMemsetD16_v2(address, 0x2c00, bytes / 2))?;
            }
            allocations.push(address);
            Ok::<_, Error>(address)
        };
        let weights = take(plan.weights.len())?;
        let constants = take(plan.constants.len())?;
        let workspace = take(plan.workspace_bytes)?;
        let scratch = take(scratch_bytes)?;
        let inputs = plan.inputs.iter().map(|input| take(bytes_of(input))).collect::<Result<_, _>>()?;
        let outputs = plan.outputs.iter().map(|output| take(bytes_of(output))).collect::<Result<_, _>>()?;
        let (mut begin, mut end) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the pointers are to live variables.
        unsafe {
            check("cuEventCreate", driver::cuEventCreate(&raw mut begin, 0))?;
            check("cuEventCreate", driver::cuEventCreate(&raw mut end, 0))?;
        }
        Ok(Self { stream, allocations, weights, constants, workspace, scratch, inputs, outputs, begin, end })
    }

    fn memory(&self) -> Memory<'_> {
        let &Self { weights, constants, workspace, scratch, .. } = self;
        Memory { weights, constants, workspace, scratch, inputs: &self.inputs, outputs: &self.outputs }
    }

    /// What is in the outputs once all that was launched is done.
    fn read(&self, outputs: &mut [Vec<u8>]) -> Result<(), Error> {
        // SAFETY: each buffer is as large as the plan's output.
        unsafe {
            check("cuStreamSynchronize", driver::cuStreamSynchronize(self.stream))?;
            for (&address, bytes) in self.outputs.iter().zip(outputs) {
                check("cuMemcpyDtoH", driver::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, bytes.len()))?;
            }
        }
        Ok(())
    }

    /// Microseconds of one launch. Hopeless ones are timed less carefully.
    fn time(&self, ready: &Ready, limit: f32) -> Result<f32, Error> {
        // Once outside of a graph: libraries load their code then.
        ready.enqueue(self.stream, &self.memory())?;
        let graph =
            Graph::capture(self.stream, || (0..LAUNCHES).try_for_each(|_| ready.enqueue(self.stream, &self.memory())))?;
        let first = self.replay(&graph)?;
        let mut best = self.replay(&graph)?.min(first);
        if best < limit * HOPELESS {
            for _ in 0..3 {
                best = best.min(self.replay(&graph)?);
            }
        }
        Ok(best)
    }

    fn replay(&self, graph: &Graph) -> Result<f32, Error> {
        let mut milliseconds = 0.0;
        // SAFETY: events and graph are alive; the variable is.
        unsafe {
            check("cuEventRecord", driver::cuEventRecord(self.begin, self.stream))?;
            check("cuGraphLaunch", driver::cuGraphLaunch(graph.0, self.stream))?;
            check("cuEventRecord", driver::cuEventRecord(self.end, self.stream))?;
            check("cuEventSynchronize", driver::cuEventSynchronize(self.end))?;
            check("cuEventElapsedTime", driver::cuEventElapsedTime_v2(&raw mut milliseconds, self.begin, self.end))?;
        }
        Ok(milliseconds * 1e3 / LAUNCHES as f32)
    }
}

impl Drop for Field {
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
struct Graph(driver::CUgraphExec);

impl Graph {
    fn capture(stream: driver::CUstream, enqueue: impl FnOnce() -> Result<(), Error>) -> Result<Self, Error> {
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
            let failed = |refused| Error::Call { call: "cuGraphInstantiate", status: format!("{refused}") };
            Ok(Self(made.map_err(failed)?))
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made in `capture`; its launches were waited for.
        unsafe { driver::cuGraphExecDestroy(self.0) };
    }
}
