//! A model as programs: read, planned for every size, its kernels chosen. Models of equal content share one.

use crate::blobs::Blobs;
use crate::driver::{Gpu, Pinned};
use crate::executor::CudaExecutor;
use crate::program::{Effort, Program};
use crate::sizes::{Extent, Form, MAX_OPEN, PreparedSizes, Side, Size, exact_extents, output_extents, output_spec};
use base::Precision;
use bytes::Bytes;
use engine::{FileHashes, ModelSource, Purpose};
use graph::cut::Cut;
use graph::model::Dimension;
use graph::weights::PlanWeights;
use graph::{Options, Plan};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Batch sizes of models whose configuration names none.
const BATCH_SIZES: [u32; 5] = [1, 2, 4, 8, 16];
/// Lengths of models that have a mask, and whose configuration names none.
const LENGTHS: [u32; 3] = [32, 128, 512];
/// What open dimensions of other models are tried with, in this order, until one can be planned.
const TRIED: [usize; 9] = [16, 64, 1, 32, 128, 224, 512, 4_096, 16_384];

/// How often it is said how far a model's preparation is.
const SAID_EVERY: Duration = Duration::from_secs(3);

/// See the module.
pub(crate) struct CudaModel {
    /// What it was prepared for.
    pub(crate) sizes: PreparedSizes,
    /// Where its file is cut, if this is its head alone.
    pub(crate) cut: Option<Arc<Cut>>,
    /// How other sizes of it are planned.
    planner: SizePlanner,
    /// Whether the size of the start is a guess: what open dimensions will be isn't known.
    pub(crate) guessed: bool,
    /// Its weights.
    pub(crate) blob: Arc<Pinned>,
    /// How many bytes they are.
    pub(crate) weight_bytes: usize,
    /// What it is computed in.
    pub(crate) precision: Precision,
    /// Whether kernels of it are by rule, and worth measuring.
    pub(crate) provisional: bool,
    /// By executor.
    pub(crate) programs: Vec<Programs>,
}

/// The programs of one executor, by size.
pub(crate) struct Programs {
    pub(crate) list: Vec<Program>,
    executor: Arc<CudaExecutor>,
}

impl Drop for Programs {
    fn drop(&mut self) {
        // What they hold on the device is freed in the context in which it was made.
        let _ = self.executor.partition().enter();
    }
}

/// What models are known by.
#[derive(Default)]
pub(crate) struct Hashes(FileHashes);

impl Hashes {
    /// What makes a model what it is: its file, others of its folder, which may hold weights, and what is wanted of it.
    pub(crate) fn key(&self, source: &ModelSource, precision: Precision) -> Result<Vec<u8>, String> {
        let own = self.0.of(&source.file).map_err(|error| error.to_string())?;
        let folder = source.file.parent().and_then(|folder| std::fs::read_dir(folder).ok());
        let mut others: Vec<String> = folder
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.path() != source.file)
            .filter_map(|entry| {
                let about = entry.metadata().ok().filter(std::fs::Metadata::is_file)?;
                Some(format!("{:?} {} {:?}", entry.file_name(), about.len(), about.modified().ok()))
            })
            .collect();
        others.sort();
        let wishes = format!(
            "{own} {precision} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {others:?}",
            source.purpose,
            source.soon,
            source.max_batch,
            source.batch_sizes,
            source.shapes,
            source.lengths,
            source.examples
        );
        Ok(wishes.into_bytes())
    }
}

impl CudaModel {
    /// Prepares a model for every executor. Takes seconds to minutes, most of them for measuring kernels that nobody
    /// measured before; or a moment, where it has to be there soon.
    pub(crate) fn prepare(
        gpu: &Arc<Gpu>,
        executors: &[Arc<CudaExecutor>],
        blobs: &Blobs<Pinned>,
        source: &ModelSource,
        (precision, may_cut): (Precision, bool),
    ) -> Result<Self, String> {
        let (bytes, content) = read(&source.file)?;
        let Planned { file, wanted, plans, cut } = Planned::of(&bytes, source, precision, may_cut)?;
        drop(bytes);
        let sizes = wanted.describe(&file, &plans, precision)?;
        let weights = &plans[0].1.weights;
        let layout = weights.layout_hash();
        if plans.iter().any(|(_, plan)| plan.weights.layout_hash() != layout) {
            return Err("its weights are not the same for all batch sizes: serve it on a CPU device".into());
        }
        let weight_bytes = weights.len();
        // What is compared is compared on the first device.
        let executors =
            if source.purpose == Purpose::Service { executors } else { &executors[..executors.len().min(1)] };
        // A size that was only guessed isn't worth measuring kernels for.
        let guessed = wanted.sizes.is_empty();
        let least = guessed || source.soon || source.purpose == Purpose::Draft;
        let blob = std::thread::scope(|scope| {
            let known: Vec<&Plan> = plans.iter().map(|(_, plan)| plan).collect();
            let compile = move || executors.iter().try_for_each(|executor| executor.compile_ahead(&known));
            let compiling = least.then(|| scope.spawn(compile));
            let blob = pinned(gpu, blobs, weights)?;
            let compiled = compiling.map(|compiling| compiling.join().map_err(|_| "the compiler panicked".to_owned()));
            compiled.transpose()?.transpose()?;
            Ok::<_, String>(blob)
        })?;
        let (mut done, all, mut said_at) = (0, executors.len() * plans.len(), Instant::now());
        let mut built = || {
            done += 1;
            if done < all && said_at.elapsed() >= SAID_EVERY {
                said_at = Instant::now();
                tracing::info!(model = source.name, "choosing kernels: {done} of {all} graphs");
            }
        };
        let effort = if least { Effort::least() } else { Effort::default() };
        let plans: Vec<&Plan> = plans.iter().map(|(_, plan)| plan).collect();
        let effort = BuildEffort { effort, given_up: &source.given_up };
        let programs = executors
            .iter()
            .map(|executor| programs(executor, &plans, &sizes.prepared, effort, &mut built))
            .collect::<Result<Vec<Programs>, _>>()?;
        let provisional = !guessed && programs.iter().flat_map(|programs| &programs.list).any(Program::is_by_rule);
        let planner = SizePlanner { wanted, layout, precision, file: source.file.clone(), content, cut: cut.clone() };
        // One with fewer products than should be exact has all of them exact.
        let precision = if plans[0].is_exact() { Precision::Fp32 } else { precision };
        Ok(Self { sizes, cut, planner, guessed, blob, weight_bytes, precision, provisional, programs })
    }

    /// What its file has.
    pub(crate) fn content(&self) -> blake3::Hash {
        self.planner.content
    }

    /// Its file's bytes, which are still those that it was prepared from.
    pub(crate) fn bytes(&self) -> Result<Bytes, String> {
        self.planner.bytes()
    }

    /// Prepares one more size on these executors, without measuring: others use them meanwhile.
    pub(crate) fn prepare_size(
        &self,
        executors: &[Arc<CudaExecutor>],
        size: Size,
    ) -> Result<(Arc<Form>, Vec<Programs>), String> {
        let (form, plan) = self.planner.plan(size, self.sizes.general.as_ref())?;
        let forms = [Arc::new(form)];
        let effort = BuildEffort { effort: Effort::least(), given_up: &AtomicBool::new(false) };
        let programs = executors
            .iter()
            .map(|executor| programs(executor, &[&plan], &forms, effort, &mut || ()))
            .collect::<Result<_, _>>()?;
        let [form] = forms;
        Ok((form, programs))
    }
}

/// What of a model the device computes, and its plans of the start.
struct Planned {
    file: graph::OnnxModel,
    wanted: Preparation,
    plans: Vec<(Size, Plan)>,
    /// Where its file is cut, if this is the head alone.
    cut: Option<Arc<Cut>>,
}

impl Planned {
    /// Of a file with these bytes: the whole model, otherwise its head if there may be a tail.
    fn of(bytes: &Bytes, source: &ModelSource, precision: Precision, may_cut: bool) -> Result<Self, String> {
        let file = decode(bytes, &source.file)?;
        let whole =
            Preparation::new(&file, source).and_then(|wanted| Ok((wanted.plan_first(&file, precision)?, wanted)));
        match whole {
            Ok((plans, wanted)) => Ok(Self { file, wanted, plans, cut: None }),
            Err(reason) if may_cut => match Self::head(bytes, &file, source, precision) {
                Ok(Some(head)) => Ok(head),
                Ok(None) => Err(reason),
                Err(why) => Err(format!("{reason}; nor can it be cut there: {why}")),
            },
            Err(reason) => Err(reason),
        }
    }

    /// The head of a model; `None` where there is none that is worth a device.
    fn head(
        bytes: &Bytes,
        file: &graph::OnnxModel,
        source: &ModelSource,
        precision: Precision,
    ) -> Result<Option<Self>, String> {
        // Names of dimensions don't say whether rows stay apart in a tail.
        let source = &ModelSource { max_batch: source.max_batch.or(Some(0)), ..source.clone() };
        // What is wrong with the whole has been said.
        let Ok(whole) = Preparation::new(file, source) else { return Ok(None) };
        let sizes = if whole.sizes.is_empty() { &whole.examples } else { &whole.sizes[..1] };
        let cut = |size: &Size| graph::cut(bytes, file, &whole.options(file, *size, Precision::Fp32)).ok().flatten();
        let Some(cut) = sizes.iter().find_map(cut) else { return Ok(None) };
        let head = cut.head(bytes).map_err(|error| error.to_string())?;
        let file = decode(&head, &source.file)?;
        let mut wanted = Preparation::new(&file, source)?;
        if wanted.fills.contains(&true) {
            // What crosses may be a length, or made of all positions: the head would give those of what is filled up.
            return Err("it has a mask, so that shorter inputs are filled up".into());
        }
        if wanted.sizes.is_empty() && wanted.leaves_rows_open() {
            // What is open is how many: one is the size that most requests have.
            wanted.sizes = vec![Size::alike(1, wanted.open, 1)];
        }
        let plans = wanted.plan_first(&file, precision)?;
        if wanted.batched {
            wanted.check_rows(&file, plans[0].0)?;
        }
        Ok(Some(Self { file, wanted, plans, cut: Some(Arc::new(cut)) }))
    }
}

/// Plans sizes of a model of which nobody knew when it was prepared.
struct SizePlanner {
    wanted: Preparation,
    /// Where weights lie, in every plan.
    layout: blake3::Hash,
    precision: Precision,
    file: PathBuf,
    content: blake3::Hash,
    cut: Option<Arc<Cut>>,
}

impl SizePlanner {
    /// What the file has. It isn't kept in memory: it has all weights.
    fn bytes(&self) -> Result<Bytes, String> {
        let (bytes, content) = read(&self.file)?;
        if content != self.content {
            return Err("its file has changed since the model was prepared".into());
        }
        Ok(bytes)
    }

    fn plan(&self, size: Size, general: Option<&Arc<[Side]>>) -> Result<(Form, Plan), String> {
        let mut bytes = self.bytes()?;
        if let Some(cut) = &self.cut {
            bytes = cut.head(&bytes).map_err(|error| error.to_string())?;
        }
        let plan = self.wanted.plan(&decode(&bytes, &self.file)?, size, self.precision)?;
        if plan.weights.layout_hash() != self.layout {
            return Err("its weights are others in this shape".into());
        }
        Ok((self.wanted.form(size, &plan, general), plan))
    }
}

/// Weights in memory from which the device reads.
fn pinned(gpu: &Arc<Gpu>, blobs: &Blobs<Pinned>, weights: &PlanWeights) -> Result<Arc<Pinned>, String> {
    let weights = weights.to_bytes();
    blobs.keep(&weights, || {
        let mut blob = Pinned::new(gpu, weights.len()).map_err(|refused| {
            format!("no {} bytes of pinned host memory for its weights: {refused}", weights.len())
        })?;
        blob[..weights.len()].copy_from_slice(&weights);
        Ok(blob)
    })
}

/// What a file has, and its hash.
fn read(file: &Path) -> Result<(Bytes, blake3::Hash), String> {
    let bytes = std::fs::read(file).map_err(|error| format!("it can't be read: {error}"))?;
    let content = blake3::hash(&bytes);
    Ok((bytes.into(), content))
}

/// A model with these bytes, whose other files are beside that one.
fn decode(bytes: &[u8], file: &Path) -> Result<graph::OnnxModel, String> {
    graph::OnnxModel::decode(bytes, file.parent()).map_err(|error| error.to_string())
}

/// How much trouble is taken with programs, and until when.
#[derive(Clone, Copy)]
struct BuildEffort<'a> {
    effort: Effort,
    given_up: &'a AtomicBool,
}

/// A program for each size on one executor. Calls back after each.
fn programs(
    executor: &Arc<CudaExecutor>,
    plans: &[&Plan],
    forms: &[Arc<Form>],
    BuildEffort { effort, given_up }: BuildEffort<'_>,
    built: &mut impl FnMut(),
) -> Result<Programs, String> {
    let mut programs = Programs { list: Vec::new(), executor: Arc::clone(executor) };
    for plan in plans {
        programs.list.push(executor.build(plan, effort, given_up)?);
        built();
    }
    let workspace = programs.list.iter().map(Program::workspace_bytes).max().unwrap_or(0);
    let buffers = forms.iter().map(|form| form.layout.bytes).max().unwrap_or(0);
    executor.make_room(workspace, buffers)?;
    Ok(programs)
}

/// The dimensions that a model leaves open besides the batch, each by its name.
struct OpenDimensions {
    names: Vec<String>,
    /// Whether all are one, whatever they are called.
    alike: bool,
    /// Whether those without a name are one.
    unnamed_alike: bool,
}

impl OpenDimensions {
    /// The number of the dimension of that name.
    fn number(&mut self, name: &str) -> Result<usize, String> {
        let same = |known: &String| self.alike || known == name && (self.unnamed_alike || !name.is_empty());
        if let Some(known) = self.names.iter().position(same) {
            return Ok(known);
        }
        if self.names.len() == MAX_OPEN {
            return Err(format!("it leaves more than {MAX_OPEN} dimensions open besides the batch"));
        }
        self.names.push(name.to_owned());
        Ok(self.names.len() - 1)
    }
}

/// What is to be prepared of a model.
struct Preparation {
    inputs: Arc<[Side]>,
    /// Those of the start; none where open dimensions are anything.
    sizes: Vec<Size>,
    /// What open dimensions might be.
    examples: Vec<Size>,
    batches: Vec<usize>,
    batched: bool,
    open: usize,
    fills: [bool; MAX_OPEN],
}

impl Preparation {
    fn new(file: &graph::OnnxModel, source: &ModelSource) -> Result<Self, String> {
        let apart = Self::with(file, source, false)?;
        // A mask and what it speaks of have one length, whatever exporters call it in each.
        if apart.fills.contains(&true) && apart.open > 1 && !apart.may_differ(file) {
            return Self::with(file, source, true);
        }
        Ok(apart)
    }

    /// `alike`: all open dimensions are one.
    fn with(file: &graph::OnnxModel, source: &ModelSource, alike: bool) -> Result<Self, String> {
        let batched = batched(file, source.max_batch)?;
        let is_mask = |name: &str| name.contains("mask");
        let unnamed_alike = file.inputs().iter().any(|input| is_mask(&input.name));
        let mut open = OpenDimensions { names: Vec::new(), alike, unnamed_alike };
        let mut side = |input: &graph::model::ModelInput| {
            let given = source.shapes.get(&input.name);
            let from = usize::from(batched);
            // Runtimes don't ask that what has one name twice in a shape is equally large, and clients' images aren't.
            // In masks it is: one length.
            let stands_twice = |name: &String| {
                let alike = |dim: &&Dimension| matches!(dim, Dimension::Open(other) if other == name);
                !is_mask(&input.name) && input.dims.iter().skip(from).filter(alike).count() > 1
            };
            let extent = |(axis, dim): (usize, &Dimension)| match dim {
                Dimension::Fixed(dim) => Ok(Extent::Fixed(*dim)),
                Dimension::Open(_) if batched && axis == 0 => Ok(Extent::Batch),
                Dimension::Open(name) => match given.and_then(|dims| dims.get(axis.checked_sub(from)?)) {
                    Some(&dim) if dim >= 0 => Ok(Extent::Fixed(dim as usize)),
                    _ if stands_twice(name) => open.number("").map(Extent::Open),
                    _ => open.number(name).map(Extent::Open),
                },
            };
            let extents = input.dims.iter().enumerate().map(extent).collect::<Result<_, String>>()?;
            Ok(Side { name: input.name.clone(), datatype: input.dtype, extents })
        };
        let inputs = file.inputs().iter().map(&mut side).collect::<Result<Arc<[Side]>, String>>()?;
        if let Some(side) = inputs.iter().find(|side| side.datatype.size().is_none()) {
            return Err(format!("input {} has strings, which no GPU computes with", side.name));
        }
        let mut fills = [false; MAX_OPEN];
        for extent in inputs.iter().filter(|side| is_mask(&side.name)).flat_map(|side| &side.extents) {
            if let Extent::Open(which) = extent {
                fills[*which] = true;
            }
        }
        let open = open.names.len();
        let lengths: Vec<usize> = match source.lengths.as_slice() {
            _ if open == 0 => vec![0],
            [] if fills.contains(&true) => LENGTHS.iter().map(|length| *length as usize).collect(),
            given => given.iter().map(|length| *length as usize).collect(),
        };
        let most = source.max_batch.unwrap_or(BATCH_SIZES[BATCH_SIZES.len() - 1]).max(1);
        let batches = if source.batch_sizes.is_empty() { &BATCH_SIZES[..] } else { &source.batch_sizes };
        let batches: Vec<usize> = if batched {
            batches.iter().filter(|size| **size <= most).map(|size| *size as usize).collect()
        } else {
            vec![1]
        };
        let mut sizes: Vec<Size> = lengths
            .iter()
            .flat_map(|&length| batches.iter().map(move |&batch| Size::alike(batch, open, length)))
            .collect();
        if source.purpose != Purpose::Service {
            sizes.truncate(1);
        }
        let first = batches.first().copied().unwrap_or(1);
        let given = source.examples.iter().filter_map(|example| example_size(&inputs, example, first, batched));
        let examples = given.chain(tried(&inputs, first, open)).collect();
        Ok(Self { inputs, sizes, examples, batches, batched, open, fills })
    }

    /// Whether the model can be planned with open dimensions that aren't alike.
    fn may_differ(&self, file: &graph::OnnxModel) -> bool {
        let mut size = Size::alike(1, self.open, LENGTHS[0] as usize);
        size.open.iter_mut().take(self.open).enumerate().for_each(|(which, value)| *value += 8 * which);
        self.plan(file, size, Precision::Fp32).is_ok()
    }

    /// The plans of the start: for all sizes that are known, else for the first that can be planned.
    fn plan_first(&self, file: &graph::OnnxModel, precision: Precision) -> Result<Vec<(Size, Plan)>, String> {
        let plan = |size: &Size| self.plan(file, *size, precision).map(|plan| (*size, plan));
        if !self.sizes.is_empty() {
            return self.sizes.iter().map(plan).collect();
        }
        let mut refused = None;
        for size in &self.examples {
            match plan(size) {
                Ok(plan) => return Ok(vec![plan]),
                Err(reason) => refused = refused.or(Some(reason)),
            }
        }
        Err(refused.unwrap_or_default())
    }

    /// Whether nothing is open but what stands first in inputs.
    fn leaves_rows_open(&self) -> bool {
        let behind = |side: &Side| side.extents.iter().skip(1).any(|extent| matches!(extent, Extent::Open(_)));
        self.open > 0 && !self.inputs.iter().any(behind)
    }

    /// Refuses a model of which not every output has a row for each row of the batch: a batch is computed with more
    /// rows than it has, and whoever takes the outputs must see those that it has.
    fn check_rows(&self, file: &graph::OnnxModel, size: Size) -> Result<(), String> {
        let [one, two] = [1, 2].map(|batch| self.plan(file, Size { batch, open: size.open }, Precision::Fp32));
        let (one, two) = (one?.outputs, two?.outputs);
        let follows = |(one, two): &(graph::plan::Port, graph::plan::Port)| {
            one.dims.first() == Some(&1) && two.dims.first() == Some(&2) && one.dims[1..] == two.dims[1..]
        };
        match one.into_iter().zip(two).find(|ports| !follows(ports)) {
            Some((port, _)) => Err(format!("what is behind takes {}, which has no row for each of a batch", port.name)),
            None => Ok(()),
        }
    }

    fn plan(&self, file: &graph::OnnxModel, size: Size, precision: Precision) -> Result<Plan, String> {
        graph::compile(file, &self.options(file, size, precision)).map_err(|error| error.to_string())
    }

    /// What a plan is made for.
    fn options(&self, file: &graph::OnnxModel, size: Size, precision: Precision) -> Options {
        let (precision, exact_products) = match precision {
            Precision::Fp32 => (graph::Precision::F32, 0),
            Precision::Tf32 => (graph::Precision::Tf32, 0),
            Precision::Tf32Behind(count) => (graph::Precision::Tf32, count as usize),
            Precision::Fp16 => (graph::Precision::F16, 0),
        };
        let mut options = Options { exact_products, ..Options::new(size.batch, precision) };
        for (side, input) in self.inputs.iter().zip(file.inputs()) {
            for (axis, (dim, declared)) in side.dims(size).into_iter().zip(&input.dims).enumerate() {
                if matches!(declared, Dimension::Open(_)) {
                    options.sizes.insert(format!("{}:{axis}", side.name), dim);
                }
            }
        }
        options
    }

    /// The inputs and outputs with what their dimensions mean.
    fn describe(
        &self,
        file: &graph::OnnxModel,
        plans: &[(Size, Plan)],
        precision: Precision,
    ) -> Result<PreparedSizes, String> {
        let dims = |plan: &Plan| plan.outputs.iter().map(|port| port.dims.clone()).collect::<Vec<_>>();
        let mut sizes: Vec<Size> = plans.iter().map(|(size, _)| *size).collect();
        let mut seen: Vec<Vec<Vec<usize>>> = plans.iter().map(|(_, plan)| dims(plan)).collect();
        for (size, plan) in self.further_plans(file, &sizes, precision)? {
            sizes.push(size);
            seen.push(dims(&plan));
        }
        let ports = &plans[0].1.outputs;
        let general = match self.fills.contains(&true) {
            false => None,
            true => {
                let extents = output_extents(&sizes, &seen, self.open, self.batched)?;
                let side = |(port, extents): (&graph::plan::Port, Vec<Extent>)| side(port, extents);
                Some(ports.iter().zip(extents).map(side).collect::<Arc<[Side]>>())
            }
        };
        let spec = |(output, port): (usize, &graph::plan::Port)| {
            let all: Vec<&[usize]> = seen.iter().map(|dims| &dims[output][..]).collect();
            output_spec(&port.name, port.dtype, &all, self.batched)
        };
        let outputs = match &general {
            Some(general) => general.iter().map(Side::spec).collect(),
            None => ports.iter().enumerate().map(spec).collect(),
        };
        let form = |(size, plan): &(Size, Plan)| Arc::new(self.form(*size, plan, general.as_ref()));
        let prepared: Vec<Arc<Form>> = plans.iter().map(form).collect();
        debug_assert!(prepared.is_sorted_by_key(|form| form.size), "sizes are asked for in ascending order");
        let (inputs, batches) = (Arc::clone(&self.inputs), self.batches.clone());
        let Self { open, fills, batched, .. } = *self;
        Ok(PreparedSizes { inputs, outputs, general, prepared, fills, open, batched, batches })
    }

    /// Plans that show what outputs follow, where those of these sizes don't: alike, they don't show which of several
    /// dimensions it is, and one alone doesn't show that it is any.
    fn further_plans(
        &self,
        file: &graph::OnnxModel,
        sizes: &[Size],
        precision: Precision,
    ) -> Result<Vec<(Size, Plan)>, String> {
        let one_value = sizes.iter().all(|size| size.open == sizes[0].open);
        let fills_up = self.fills.contains(&true);
        let which = if one_value || (fills_up && self.open > 1) { 0..self.open } else { 0..0 };
        let plan = |doubled: std::ops::Range<usize>| {
            let mut size = sizes[0];
            size.open[doubled].iter_mut().for_each(|value| *value *= 2);
            self.plan(file, size, precision).map(|plan| (size, plan))
        };
        let each = which.clone().map(|which| plan(which..which + 1));
        if fills_up {
            return each.collect();
        }
        // Dimensions that can't be doubled by themselves may be together.
        Ok(each.chain((!which.is_empty()).then(|| plan(which.clone()))).flatten().collect())
    }

    /// The model in one size.
    fn form(&self, size: Size, plan: &Plan, general: Option<&Arc<[Side]>>) -> Form {
        let exact = |port: &graph::plan::Port| side(port, exact_extents(&port.dims, size, self.batched));
        let outputs = general.map_or_else(|| plan.outputs.iter().map(exact).collect(), Arc::clone);
        Form::new(size, Arc::clone(&self.inputs), outputs)
    }
}

/// What open dimensions of these inputs are tried with. Those that stand first are 1: they may be rows, and make what
/// an execution takes grow like rows. At last, all are alike.
fn tried(inputs: &[Side], batch: usize, open: usize) -> Vec<Size> {
    let mut is_first = [false; MAX_OPEN];
    for side in inputs.iter().filter(|side| side.extents.len() > 1) {
        if let Extent::Open(which) = side.extents[0] {
            is_first[which] = true;
        }
    }
    let alike = TRIED.iter().map(|&value| Size::alike(batch, open, value));
    let one_row = alike.clone().map(|mut size| {
        size.open.iter_mut().zip(is_first).filter(|(_, is_first)| *is_first).for_each(|(value, _)| *value = 1);
        size
    });
    let mut sizes: Vec<Size> = one_row.chain(alike).collect();
    let mut seen = std::collections::BTreeSet::new();
    sizes.retain(|size| seen.insert(*size));
    sizes
}

fn side(port: &graph::plan::Port, extents: Vec<Extent>) -> Side {
    Side { name: port.name.clone(), datatype: port.dtype, extents }
}

/// The size that inputs of these dimensions have, which are without the batch where there is one. `None` where they
/// don't say it.
fn example_size(inputs: &[Side], example: &BTreeMap<String, Vec<i64>>, batch: usize, batched: bool) -> Option<Size> {
    let (mut size, mut said) = (Size::alike(batch, 0, 0), [false; MAX_OPEN]);
    let from = usize::from(batched);
    for side in inputs {
        for (axis, extent) in side.extents.iter().enumerate() {
            let given = example.get(&side.name).filter(|dims| dims.len() + from == side.extents.len());
            if let (Extent::Open(which), Some(dims)) = (extent, given) {
                size.open[*which] = usize::try_from(dims[axis - from]).ok()?;
                said[*which] = true;
            }
        }
    }
    let open = inputs.iter().flat_map(|side| &side.extents);
    let all = open.filter_map(|extent| if let Extent::Open(which) = extent { Some(*which) } else { None });
    all.into_iter().all(|which| said[which]).then_some(size)
}

/// Whether the first dimension is a batch: every input's is open, and all that have a name have the same one.
fn batched(file: &graph::OnnxModel, configured: Option<u32>) -> Result<bool, String> {
    let name = |input: &graph::model::ModelInput| match input.dims.first() {
        Some(Dimension::Open(name)) => Some(name.clone()),
        Some(Dimension::Fixed(_)) | None => None,
    };
    let fixed = file.inputs().iter().find(|input| name(input).is_none());
    match (configured, fixed) {
        (Some(0), _) => Ok(false),
        (Some(wanted), Some(input)) => Err(format!(
            "max_batch_size is {wanted}, but the first dimension of input {} is not open: set max_batch_size to 0, or export the model with a dynamic first dimension",
            input.name
        )),
        (Some(_), None) => Ok(!file.inputs().is_empty()),
        (None, Some(_)) => Ok(false),
        (None, None) => {
            let mut names: Vec<String> =
                file.inputs().iter().filter_map(name).filter(|name| !name.is_empty()).collect();
            names.dedup();
            Ok(!file.inputs().is_empty() && names.len() <= 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::cases::detectors::{detector, where_not_zero};
    use onnx::Message;

    /// One field of a protobuf message: bytes.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        assert!(bytes.len() < 128, "one byte holds the length");
        [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
    }

    /// One field of a protobuf message: a small number.
    fn number(field: u8, value: u8) -> Vec<u8> {
        vec![field << 3, value]
    }

    /// `name: float tensor` with these dimensions: digits are fixed, words are open.
    fn value(name: &str, dims: &[&str]) -> Vec<u8> {
        let dim = |dim: &&str| match dim.parse() {
            Ok(size) => field(1, &number(1, size)),
            Err(_) => field(1, &field(2, dim.as_bytes())),
        };
        let shape: Vec<u8> = dims.iter().flat_map(dim).collect();
        let tensor = [number(1, 1), field(2, &shape)].concat();
        [field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat()
    }

    /// A model that gives `relu` of its first input.
    fn model(inputs: &[(&str, &[&str])]) -> graph::OnnxModel {
        graph::OnnxModel::decode(&encoded(inputs), None).unwrap()
    }

    fn encoded(inputs: &[(&str, &[&str])]) -> Vec<u8> {
        encoded_graph(inputs, "Relu", 1)
    }

    /// A model of one operator that takes so many of the inputs.
    fn graph_of(inputs: &[(&str, &[&str])], operator: &str, taken: usize) -> graph::OnnxModel {
        graph::OnnxModel::decode(&encoded_graph(inputs, operator, taken), None).unwrap()
    }

    fn encoded_graph(inputs: &[(&str, &[&str])], operator: &str, taken: usize) -> Vec<u8> {
        let mut node: Vec<u8> = inputs[..taken].iter().flat_map(|(name, _)| field(1, name.as_bytes())).collect();
        node.extend([field(2, b"y"), field(4, operator.as_bytes())].concat());
        let mut graph = field(1, &node);
        inputs.iter().for_each(|(name, dims)| graph.extend(field(11, &value(name, dims))));
        graph.extend(field(12, &value("y", inputs[0].1)));
        // The graph may be longer than a length of one byte.
        let mut bytes = vec![7 << 3 | 2, (graph.len() % 128) as u8 | 128, (graph.len() / 128) as u8];
        bytes.extend(graph);
        bytes.extend(field(8, &number(2, 17)));
        bytes
    }

    fn wanted(file: &graph::OnnxModel, source: &ModelSource) -> Result<PreparedSizes, String> {
        let wanted = Preparation::new(file, source)?;
        let plans = wanted.plan_first(file, Precision::Fp32)?;
        wanted.describe(file, &plans, Precision::Fp32)
    }

    fn prepared(sizes: &PreparedSizes) -> Vec<(usize, &[usize])> {
        sizes.prepared.iter().map(|form| (form.size.batch, &form.size.open[..sizes.open])).collect()
    }

    #[test]
    fn an_image_model_has_its_batches() {
        let file = model(&[("x", &["batch", "3", "8"])]);
        let sizes =
            wanted(&file, &ModelSource { max_batch: Some(4), batch_sizes: vec![1, 4, 8], ..ModelSource::default() })
                .unwrap();
        assert_eq!(prepared(&sizes), [(1, &[][..]), (4, &[])]);
        let signature = sizes.signature();
        assert_eq!((signature.max_batch, &signature.outputs[0].dims), (4, &vec![-1, 3, 8]));
        let unsaid = wanted(&file, &ModelSource::default()).unwrap();
        assert_eq!(unsaid.signature().max_batch, 16);
        let unbatched =
            wanted(&file, &ModelSource { max_batch: Some(0), lengths: vec![2], ..ModelSource::default() }).unwrap();
        assert_eq!((unbatched.signature().max_batch, prepared(&unbatched)), (0, vec![(1, &[2][..])]));
    }

    #[test]
    fn what_is_compared_has_the_smallest_size_alone() {
        let file = model(&[("mask", &["batch", "sequence"])]);
        for purpose in [Purpose::Trial, Purpose::Draft] {
            let source =
                ModelSource { purpose, batch_sizes: vec![2, 4], lengths: vec![16, 32], ..ModelSource::default() };
            let sizes = wanted(&file, &source).unwrap();
            assert_eq!((prepared(&sizes), sizes.fills[0]), (vec![(2, &[16][..])], true));
            assert_eq!(sizes.find(Size::alike(1, 1, 9)), Some(0), "a shorter row is filled up");
        }
    }

    #[test]
    fn precisions_are_plans() {
        let file = model(&[("x", &["batch", "3"])]);
        let wanted = Preparation::new(&file, &ModelSource::default()).unwrap();
        let plan = |precision| {
            let plan = wanted.plan(&file, wanted.sizes[0], precision).unwrap();
            (plan.precision, plan.exact_products)
        };
        assert_eq!(plan(Precision::Fp32), (graph::Precision::F32, 0));
        assert_eq!(plan(Precision::Tf32), (graph::Precision::Tf32, 0));
        assert_eq!(plan(Precision::Tf32Behind(7)), (graph::Precision::Tf32, 7));
        assert_eq!(plan(Precision::Fp16), (graph::Precision::F16, 0));
    }

    #[test]
    fn open_lengths_are_given_or_masked() {
        let file = model(&[("ids", &["batch", "sequence"])]);
        let given = ModelSource { batch_sizes: vec![1, 2], lengths: vec![16, 32], ..ModelSource::default() };
        let sizes = wanted(&file, &given).unwrap();
        assert_eq!((sizes.prepared.len(), sizes.fills[0]), (4, false));
        assert_eq!(sizes.signature().outputs[0].dims, [-1, -1]);
        assert_eq!(sizes.prepared[0].outputs[0].extents, [Extent::Batch, Extent::Fixed(16)]);
        let narrowed = ModelSource { shapes: [("ids".to_owned(), vec![24])].into(), ..ModelSource::default() };
        assert_eq!(wanted(&file, &narrowed).unwrap().inputs[0].extents, [Extent::Batch, Extent::Fixed(24)]);
        let masked = model(&[("ids", &["batch", "sequence"]), ("attention_mask", &["batch", "sequence"])]);
        let one = ModelSource { batch_sizes: vec![1], lengths: vec![16], ..ModelSource::default() };
        let sizes = wanted(&masked, &one).unwrap();
        assert_eq!((prepared(&sizes), sizes.fills[0]), (vec![(1, &[16][..])], true));
        assert_eq!(sizes.prepared[0].outputs[0].extents, [Extent::Batch, Extent::Open(0)], "also with one length");
    }

    #[test]
    fn open_dimensions_are_known_by_their_names() {
        let file = model(&[("image", &["batch", "3", "height", "width"]), ("depth", &["batch", "height"])]);
        let sizes = wanted(&file, &ModelSource::default()).unwrap();
        let open = |which| Extent::Open(which);
        assert_eq!(sizes.inputs[0].extents, [Extent::Batch, Extent::Fixed(3), open(0), open(1)]);
        assert_eq!(sizes.inputs[1].extents, [Extent::Batch, open(0)]);
        assert_eq!(prepared(&sizes), [(1, &[16, 16][..])], "a guess, to begin with");
        assert_eq!(sizes.signature().outputs[0].dims, [-1, 3, -1, -1]);
        assert_eq!(sizes.of(&[&[2, 3, 8, 9], &[2, 8]]).unwrap().open[..2], [8, 9]);
        assert!(sizes.of(&[&[2, 3, 8, 9], &[2, 9]]).is_err());
        // Without a batch, what stands first is one row to begin with.
        let unbatched = wanted(&file, &ModelSource { max_batch: Some(0), ..ModelSource::default() }).unwrap();
        assert_eq!(prepared(&unbatched), [(1, &[1, 16, 16][..])]);
        assert_eq!(unbatched.signature().outputs[0].dims, [-1, 3, -1, -1]);
        // Dimensions that go together are doubled together.
        let pair = graph_of(&[("a", &["left", "3"]), ("b", &["right", "3"])], "Add", 2);
        let sum = wanted(&pair, &ModelSource { max_batch: Some(0), ..ModelSource::default() }).unwrap();
        assert_eq!((sum.open, sum.signature().outputs[0].dims.clone()), (2, vec![-1, 3]));
        // Those without a name are what they are.
        let unnamed = wanted(&model(&[("x", &["batch", "", ""])]), &ModelSource::default()).unwrap();
        assert_eq!(unnamed.inputs[0].extents, [Extent::Batch, open(0), open(1)]);
        // So are those with a name that says nothing, or that stands twice in one shape: each was refused with the
        // shape of an image that isn't square.
        for twice in ["?", "size"] {
            let image = wanted(&model(&[("image", &["batch", "3", twice, twice])]), &ModelSource::default()).unwrap();
            assert_eq!(image.of(&[&[1, 3, 48, 192]]).unwrap().open[..2], [48, 192], "{twice}");
        }
        // With a mask they are one length, as everybody means it.
        let masked = model(&[("ids", &["batch", ""]), ("mask", &["batch", ""])]);
        assert_eq!(wanted(&masked, &ModelSource::default()).unwrap().open, 1);
    }

    #[test]
    fn a_mask_fills_up_what_it_speaks_of() {
        let file = model(&[("ids", &["batch", "left", "right"]), ("mask", &["batch", "left"])]);
        let sizes = wanted(&file, &ModelSource::default()).unwrap();
        assert_eq!(sizes.fills[..2], [true, false]);
        let extents = &sizes.prepared[0].outputs[0].extents;
        assert_eq!(extents[..], [Extent::Batch, Extent::Open(0), Extent::Open(1)]);
    }

    #[test]
    fn examples_of_the_configuration_go_first() {
        let file = model(&[("image", &["batch", "3", "height", "width"])]);
        let examples = vec![[("image".to_owned(), vec![3, 32, 48])].into()];
        let sizes = wanted(&file, &ModelSource { examples, ..ModelSource::default() }).unwrap();
        assert_eq!(prepared(&sizes), [(1, &[32, 48][..])]);
    }

    #[test]
    fn a_size_that_a_request_brings_is_planned_as_those_of_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.onnx");
        std::fs::write(&file, encoded(&[("image", &["batch", "3", "height", "width"])])).unwrap();
        let (bytes, content) = read(&file).unwrap();
        let model = decode(&bytes, &file).unwrap();
        let wanted = Preparation::new(&model, &ModelSource::default()).unwrap();
        let plans = wanted.plan_first(&model, Precision::Fp32).unwrap();
        let sizes = wanted.describe(&model, &plans, Precision::Fp32).unwrap();
        let layout = plans[0].1.weights.layout_hash();
        let (precision, cut) = (Precision::Fp32, None);
        let planner = SizePlanner { wanted, layout, precision, file: file.clone(), content, cut };
        let size = sizes.size_for(sizes.of(&[&[3, 3, 5, 7]]).unwrap());
        let (form, plan) = planner.plan(size, None).unwrap();
        assert_eq!(sizes.shapes(form.size), "image [4, 3, 5, 7]");
        assert_eq!(plan.outputs[0].dims, [4, 3, 5, 7]);
        assert_eq!(form.outputs[0].extents[0], Extent::Batch, "fewer rows may come");
        std::fs::write(&file, encoded(&[("image", &["batch", "4", "height", "width"])])).unwrap();
        assert!(planner.plan(size, None).unwrap_err().contains("has changed"));
    }

    fn in_two(bytes: &Bytes, max_batch: Option<u32>, may_cut: bool) -> Result<Planned, String> {
        Planned::of(bytes, &ModelSource { max_batch, ..ModelSource::default() }, Precision::Fp32, may_cut)
    }

    #[test]
    fn a_detector_is_planned_as_far_as_it_can_be() {
        let fixed = detector(["1", "3", "16", "16"], 0.5);
        let planned = in_two(&fixed, None, true).unwrap();
        let given: Vec<_> = planned.plans[0].1.outputs.iter().map(|port| port.name.as_str()).collect();
        assert_eq!((given, planned.wanted.batched), (vec!["scores", "mean", "boxes"], false));
        let refused = in_two(&fixed, None, false).err().unwrap();
        assert!(
            refused.starts_with("operator NonMaxSuppression of node"),
            "as ever, where nobody has the tail: {refused}"
        );
        let contradicted = in_two(&fixed, Some(4), true).err().unwrap();
        assert!(!contradicted.contains("cut") && contradicted.starts_with("max_batch_size is 4"), "{contradicted}");
        // Names don't say whether rows stay apart, and one row isn't a guess.
        let open = in_two(&detector(["N", "3", "16", "16"], 0.5), None, true).unwrap();
        assert_eq!((open.wanted.batched, open.wanted.open, open.wanted.sizes.len()), (false, 1, 1));
        let sides = in_two(&detector(["1", "3", "height", "width"], 0.5), None, true).unwrap();
        assert!(sides.wanted.sizes.is_empty(), "a guess");
    }

    /// A batch of three rows is computed as one of four: a number of elements would be that of four.
    #[test]
    fn a_head_of_a_batch_gives_nothing_but_rows() {
        let rows = in_two(&detector(["N", "3", "16", "16"], 0.5), Some(4), true).unwrap();
        assert_eq!((rows.wanted.batched, rows.plans.len()), (true, 3));
        let refused = in_two(&where_not_zero(["N", "3", "16", "16"]), Some(4), true).err().unwrap();
        assert!(refused.ends_with("what is behind takes count, which has no row for each of a batch"), "{refused}");
        assert!(in_two(&where_not_zero(["N", "3", "16", "16"]), Some(0), true).is_ok());
    }

    #[test]
    fn a_head_whose_inputs_would_be_filled_up_isnt_cut_off() {
        let whole = detector(["1", "3", "height", "width"], 0.5);
        assert!(in_two(&whole, None, true).is_ok());
        let mut model = onnx::ModelProto::decode(whole).unwrap();
        let graph = model.graph.as_mut().unwrap();
        graph.inputs[0].name = "mask".into();
        graph.nodes[0].inputs[0] = "mask".into();
        let refused = in_two(&model.encode_to_vec().into(), None, true).err().unwrap();
        assert!(
            refused.ends_with("nor can it be cut there: it has a mask, so that shorter inputs are filled up"),
            "{refused}"
        );
    }

    #[test]
    fn further_sizes_of_a_head_are_planned_from_the_whole_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.onnx");
        std::fs::write(&file, detector(["1", "3", "height", "width"], 0.5)).unwrap();
        let (bytes, content) = read(&file).unwrap();
        let Planned { file: head, wanted, plans, cut } =
            Planned::of(&bytes, &ModelSource::default(), Precision::Fp32, true).unwrap();
        let layout = plans[0].1.weights.layout_hash();
        let sizes = wanted.describe(&head, &plans, Precision::Fp32).unwrap();
        let planner = SizePlanner { wanted, layout, precision: Precision::Fp32, file, content, cut };
        let (_, plan) = planner.plan(sizes.size_for(sizes.of(&[&[1, 3, 48, 32]]).unwrap()), None).unwrap();
        assert_eq!(plan.outputs[0].dims, [1, 2, 24 * 16]);
    }

    #[test]
    fn a_fixed_batch_is_no_batch() {
        let file = model(&[("x", &["1", "8"])]);
        assert_eq!(wanted(&file, &ModelSource::default()).unwrap().signature().max_batch, 0);
        let refused = wanted(&file, &ModelSource { max_batch: Some(8), ..ModelSource::default() }).unwrap_err();
        assert!(refused.contains("first dimension of input x is not open"), "{refused}");
    }

    #[test]
    fn equal_files_with_equal_wishes_are_one_model() {
        let hashes = Hashes::default();
        let key = |folder: &Path, batch_sizes: Vec<u32>| {
            let source = ModelSource { file: folder.join("model.onnx"), batch_sizes, ..ModelSource::default() };
            hashes.key(&source, Precision::Tf32).unwrap()
        };
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        folders.iter().for_each(|folder| std::fs::write(folder.path().join("model.onnx"), "same").unwrap());
        let [a, b] = [folders[0].path(), folders[1].path()];
        assert_eq!(key(a, vec![1]), key(b, vec![1]));
        assert_ne!(key(a, vec![1]), key(a, vec![1, 2]));
        std::fs::write(b.join("weights.bin"), "other").unwrap();
        assert_ne!(key(a, vec![1]), key(b, vec![1]), "weights may lie in another file");
        let before = key(a, vec![1]);
        std::fs::write(a.join("model.onnx"), "different").unwrap();
        assert_ne!(before, key(a, vec![1]));
    }
}
