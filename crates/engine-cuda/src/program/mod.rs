//! A plan as kernels: for each step the fastest of those that can compute it on this device.
//!
//! ```text
//!  Plan ──candidates──> kernels of ours, cuBLASLt, cuDNN ──measured once, kept in Choices──> Program ──enqueue──> a stream that is captured
//! ```
//!
//! Everything is compiled, measured and sized when a program is built. `enqueue` allocates nothing, waits for nothing
//! and always does the same.

mod agree;
mod attention;
mod dnn;
mod expression;
mod index;
mod launch;
mod lt;
mod measure;
#[cfg(test)]
mod on_cpu;
mod rows;
mod survey;
#[cfg(test)]
mod tests;
mod tile;
mod window;

pub(crate) use dnn::Engine;
pub use survey::{Trial, survey};

use crate::quiet::{NEVER, Nobody, Others};
use crate::source::KernelSource;
use crate::toolkit::{CudaError, Facts, Toolkit, check};
use cudarc::driver::sys as driver;
use graph::Plan;
use graph::plan::{Precision, Step, Tensor};
use launch::{Launch, ProgramMemory, Recipe};
use std::fmt::Write;
use std::sync::Arc;
use workload::Random;

/// Scratch memory is aligned to this.
const ALIGNMENT: usize = 256;

/// A plan, ready to be enqueued.
pub struct Program {
    steps: Vec<Ready>,
    names: Vec<String>,
    constants: Constants,
    workspace_bytes: usize,
    scratch_bytes: usize,
    by_rule: bool,
    // Last, so that what cuDNN made goes before its handles.
    toolkit: Arc<Toolkit>,
}

/// A step with its kernel.
enum Ready {
    Own(Launch),
    /// cuBLASLt's product; behind it the activation, where its epilogue doesn't have it.
    Product(Box<lt::Product>, Option<Launch>),
    Convolution(dnn::Convolution),
}

impl Ready {
    fn enqueue(&self, stream: driver::CUstream, memory: &ProgramMemory<'_>) -> Result<(), CudaError> {
        match self {
            Self::Own(launch) => launch.enqueue(stream, memory),
            Self::Product(product, activation) => {
                product.enqueue(stream, memory)?;
                activation.as_ref().map_or(Ok(()), |activation| activation.enqueue(stream, memory))
            }
            Self::Convolution(convolution) => convolution.enqueue(stream, memory),
        }
    }

    fn scratch_bytes(&self) -> usize {
        match self {
            Self::Own(_) => 0,
            Self::Product(product, _) => product.workspace_bytes,
            Self::Convolution(convolution) => convolution.engine.workspace_bytes,
        }
    }
}

/// Numbers between -0.5 and 0.5, always the same.
fn uniform(seed: u64) -> impl FnMut() -> f32 {
    let mut random = Random::new(seed, 0);
    move || (random.unit() - 0.5) as f32
}

/// How much trouble is taken to find the fastest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effort {
    /// How many of cuDNN's proposals are tried for a convolution; each may have to be compiled.
    pub proposals: usize,
    /// Whether cuBLASLt is tried.
    pub products: bool,
    /// Whether steps that nobody measured are measured. Otherwise the first kernel of ours is taken, where there is
    /// one: that is right, soon there, and slower.
    pub measures: bool,
}

impl Default for Effort {
    fn default() -> Self {
        Self { proposals: 4, products: true, measures: true }
    }
}

impl Effort {
    /// For what has to be there soon, or is computed a few times.
    pub(crate) fn least() -> Self {
        Self { measures: false, ..Self::default() }
    }
}

impl Program {
    /// Makes a program of a plan. `stream` is used to measure; the device must be otherwise idle then. What was
    /// measured before (on this device, with these libraries) isn't measured again.
    pub fn build(
        toolkit: &Arc<Toolkit>,
        plan: &Plan,
        effort: Effort,
        stream: driver::CUstream,
    ) -> Result<Self, CudaError> {
        Self::build_beside(toolkit, plan, effort, stream, &Nobody)
    }

    /// The same on a device that others use: it is measured while they don't.
    pub(crate) fn build_beside(
        toolkit: &Arc<Toolkit>,
        plan: &Plan,
        effort: Effort,
        stream: driver::CUstream,
        others: &dyn Others,
    ) -> Result<Self, CudaError> {
        let wanted = StepCandidates::all(plan, toolkit.facts())?;
        measure::choose(toolkit, plan, &wanted, effort, stream, others)?;
        let choices = toolkit.choices().lock().expect("nobody panics while holding it").clone();
        let chosen = |wanted: &StepCandidates| choices.get(&wanted.signature).map(|choice| choice.candidate.clone());
        let kernels: Vec<Kernels> = wanted.iter().map(|wanted| wanted.kernels(chosen(wanted))).collect();
        let own = kernels.iter().filter_map(|kernels| kernels.own.as_ref());
        toolkit.compile_all(&own.map(|recipe| recipe.source.clone()).collect::<Vec<_>>(), others.given_up())?;
        measure::remember(toolkit, plan, &wanted, &choices)?;
        let mut steps = Vec::new();
        for (index, ((wanted, step), kernels)) in wanted.iter().zip(&plan.steps).zip(kernels).enumerate() {
            let own = kernels.own.map(|recipe| Launch::new(toolkit, recipe)).transpose()?;
            let ready = match kernels.library {
                Some(chosen) => library(toolkit, step, plan.precision_of(index), &wanted.signature, &chosen, own)?,
                None => own.map(Ready::Own),
            };
            let unsupported = || CudaError::Unsupported {
                index,
                name: plan.names.get(index).cloned().unwrap_or_default(),
                why: format!("nothing computes this {}", step.kind()),
            };
            steps.push(ready.ok_or_else(unsupported)?);
        }
        let scratch_bytes = steps.iter().map(Ready::scratch_bytes).max().unwrap_or(0);
        let is_by_rule = |wanted: &StepCandidates| wanted.is_choice(Effort::default()) && chosen(wanted).is_none();
        let by_rule = !effort.measures && wanted.iter().any(is_by_rule);
        Ok(Self {
            by_rule,
            names: wanted.iter().map(|wanted| wanted.signature.clone()).collect(),
            steps,
            constants: Constants::new(&plan.constants)?,
            workspace_bytes: plan.workspace_bytes.next_multiple_of(ALIGNMENT),
            scratch_bytes,
            toolkit: toolkit.clone(),
        })
    }

    /// How large the workspace has to be: the plan's, and behind it what libraries want.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace_bytes + self.scratch_bytes
    }

    /// Whether a kernel of it was chosen by rule, where measuring might find a faster one.
    pub(crate) fn is_by_rule(&self) -> bool {
        self.by_rule
    }

    /// Compiles the kernels of ours that were chosen for these plans or are by rule, all at once and on all cores.
    pub(crate) fn compile_ahead(toolkit: &Toolkit, plans: &[&Plan]) -> Result<(), CudaError> {
        let choices = toolkit.choices().lock().expect("nobody panics while holding it").clone();
        let mut sources = Vec::new();
        for plan in plans {
            for wanted in StepCandidates::all(plan, toolkit.facts())? {
                let chosen = choices.get(&wanted.signature).map(|choice| choice.candidate.clone());
                sources.extend(wanted.kernels(chosen).own.map(|recipe| recipe.source));
            }
        }
        toolkit.compile_all(&sources, &NEVER)
    }

    /// How many steps it is. Most are one kernel, some two.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether it does nothing.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// What each step is, and which kernel computes it: for people who look for time.
    pub fn describe(&self) -> String {
        let choices = self.toolkit.choices().lock().expect("nobody panics while holding it");
        let mut text = String::new();
        for (ready, name) in self.steps.iter().zip(&self.names) {
            let kernel = match (choices.get(name), ready) {
                (Some(choice), _) => format!("{} {:.2} us", choice.candidate, choice.microseconds),
                (None, Ready::Own(_)) => "the only one".to_owned(),
                (None, _) => "a library".to_owned(),
            };
            let _ = writeln!(text, "{name}: {kernel}");
        }
        text
    }

    /// Enqueues all kernels. `workspace` is [`Program::workspace_bytes`] long; what isn't enqueued yet is neither read
    /// nor written.
    ///
    /// # Safety
    ///
    /// All addresses are of memory of this device, as large as the plan says, and stay so until the stream is done (or,
    /// where it is captured, until the graph isn't launched any more).
    pub unsafe fn enqueue(
        &self,
        stream: driver::CUstream,
        weights: driver::CUdeviceptr,
        workspace: driver::CUdeviceptr,
        inputs: &[driver::CUdeviceptr],
        outputs: &[driver::CUdeviceptr],
    ) -> Result<(), CudaError> {
        let scratch = workspace + self.workspace_bytes as u64;
        let memory = ProgramMemory { weights, constants: self.constants.0, workspace, scratch, inputs, outputs };
        self.steps.iter().try_for_each(|step| step.enqueue(stream, &memory))
    }
}

/// Small data of a plan on the device.
struct Constants(driver::CUdeviceptr);

impl Constants {
    fn new(bytes: &[u8]) -> Result<Self, CudaError> {
        let mut address = 0;
        if !bytes.is_empty() {
            // SAFETY: the pointer is to a live variable, and the allocation is as long as what is copied.
            unsafe {
                check("cuMemAlloc", driver::cuMemAlloc_v2(&raw mut address, bytes.len()))?;
                check("cuMemcpyHtoD", driver::cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()))?;
            }
        }
        Ok(Self(address))
    }
}

impl Drop for Constants {
    fn drop(&mut self) {
        if self.0 != 0 {
            // SAFETY: allocated in `new`; nobody launches a graph of a program that is gone.
            unsafe { driver::cuMemFree_v2(self.0) };
        }
    }
}

/// The kernels that were chosen for a step: a library's, one of ours, or both, the library's first.
#[derive(Clone, Debug)]
struct Kernels {
    library: Option<String>,
    own: Option<Recipe>,
}

/// The library's kernel of that name for a step, with what comes behind it.
fn library(
    toolkit: &Toolkit,
    step: &Step,
    precision: Precision,
    signature: &str,
    chosen: &str,
    behind: Option<Launch>,
) -> Result<Option<Ready>, CudaError> {
    if chosen.starts_with("cublaslt") {
        let found = lt::candidates(toolkit, step, precision)?.into_iter().find(|candidate| candidate.name == chosen);
        return Ok(found.map(|product| Ready::Product(Box::new(product), behind)));
    }
    let Step::Conv(conv) = step else { return Ok(None) };
    let engine = toolkit.engines.lock().expect("nobody panics while holding it").get(signature).cloned();
    Ok(engine.map(|engine| Ready::Convolution(dnn::Convolution::new(engine, conv))))
}

fn dnn_rank(name: &str) -> usize {
    name.strip_prefix("cudnn ").and_then(|rank| rank.parse().ok()).unwrap_or(0)
}

/// A step, and every kernel of ours that computes it.
struct StepCandidates {
    signature: String,
    recipes: Vec<Recipe>,
    /// Ours behind cuBLASLt's product, where that doesn't have the activation.
    activation: Option<Recipe>,
    /// Whether libraries compute it too.
    libraries: bool,
}

impl StepCandidates {
    fn all(plan: &Plan, facts: &Facts) -> Result<Vec<Self>, CudaError> {
        plan.steps
            .iter()
            .enumerate()
            .map(|(index, step)| {
                let name = plan.names.get(index).cloned().unwrap_or_default();
                let precision = plan.precision_of(index);
                recipes(step, precision, facts)
                    .map(|recipes| Self {
                        signature: signature(step, precision),
                        recipes,
                        activation: lt::split(step)
                            .and_then(|(product, left)| Some(expression::activation(&product.output, left?))),
                        libraries: matches!(step, Step::Conv(_) | Step::Gemm(_)),
                    })
                    .map_err(|why| CudaError::Unsupported { index, name, why })
            })
            .collect()
    }

    /// Whether there is anything to choose, with that much trouble.
    fn is_choice(&self, effort: Effort) -> bool {
        match effort.measures {
            true => self.libraries || self.recipes.len() > 1,
            false => self.recipes.is_empty(),
        }
    }

    /// Ours, if the chosen one is ours; the only one, if nothing has to be chosen; else a library's.
    fn kernels(&self, chosen: Option<String>) -> Kernels {
        let own = match &chosen {
            Some(chosen) => self.recipes.iter().find(|recipe| recipe.name == *chosen),
            None => self.recipes.first(),
        };
        if let Some(own) = own {
            return Kernels { library: None, own: Some(own.clone()) };
        }
        let behind = chosen.as_ref().is_some_and(|name| name.ends_with(lt::THEN_ACTIVATION));
        Kernels { library: chosen, own: self.activation.clone().filter(|_| behind) }
    }
}

/// Every source that a plan's kernels of ours may be compiled from on such a device: for checking them where there is
/// none.
pub fn sources(plan: &Plan, facts: &Facts) -> Result<Vec<KernelSource>, CudaError> {
    let of_step = |wanted: StepCandidates| wanted.recipes.into_iter().chain(wanted.activation);
    Ok(StepCandidates::all(plan, facts)?.into_iter().flat_map(of_step).map(|recipe| recipe.source).collect())
}

/// The kernels of ours for a step, or why there are none.
fn recipes(step: &Step, precision: Precision, facts: &Facts) -> Result<Vec<Recipe>, String> {
    if step.writes().iter().any(|tensor| tensor.elements() > u32::MAX as usize / 2) {
        return Err("a tensor has more than 2^31 elements".to_owned());
    }
    Ok(match step {
        Step::Conv(conv) => {
            let mut all = Vec::new();
            if window::is_depthwise(conv) {
                all.extend([1, 2, 4].map(|columns| window::depthwise(conv, columns)));
            } else {
                all.extend(tile::convolution(conv, precision, facts));
            }
            all
        }
        Step::Gemm(gemm) => tile::product(gemm, precision, facts),
        Step::Attention(step) => attention::attention(step, precision, facts)?,
        Step::Pool(step) => vec![window::pool(step)],
        Step::Reduce(step) => vec![rows::reduce(step)],
        Step::Softmax(step) => vec![rows::softmax(step)],
        Step::LayerNorm(step) => vec![rows::layer_norm(step)],
        Step::Lrn(step) => vec![window::lrn(step)],
        Step::Elementwise(step) => vec![expression::elementwise(step)],
        Step::Gather(step) => vec![window::gather(step)],
        Step::Copy(step) => vec![expression::copy(step)],
        Step::Fill(step) => vec![expression::fill(step)],
        Step::Resize(step) => vec![window::resize(step)],
        Step::TopK(step) => vec![rows::top_k(step)],
        Step::Scatter(step) => vec![window::scatter(step)],
        Step::IntegerConv(step) => window::integer_conv(step),
    })
}

/// What a measurement is kept under: everything that a kernel's speed depends on, but not where tensors lie.
fn signature(step: &Step, precision: Precision) -> String {
    let tensor = |tensor: &Tensor| {
        let far = tensor.offset.trailing_zeros().min(4);
        format!(" {}{:?}/{:?}@{far}", tensor.dtype, tensor.dims, tensor.strides)
    };
    let mut text = format!("{} {precision:?}", step.kind());
    for read in step.reads() {
        text += &tensor(read);
    }
    for written in step.writes() {
        text += &format!(" ->{}", tensor(written));
    }
    match step {
        Step::Conv(conv) => {
            let present = (conv.bias.is_some(), conv.residual.is_some());
            let _ = write!(text, " {:?} groups {} {:?} {present:?}", conv.window, conv.groups, conv.activation);
        }
        Step::Gemm(gemm) => {
            let present = (gemm.bias.is_some(), gemm.residual.is_some());
            let _ = write!(text, " {} {:?} {present:?}", gemm.alpha, gemm.activation);
        }
        Step::IntegerConv(conv) => {
            let _ = write!(text, " {:?} groups {}", conv.window, conv.groups);
        }
        Step::Attention(attention) => {
            let _ = write!(text, " {} {}", attention.scale, attention.mask.is_some());
        }
        _ => {}
    }
    text
}
