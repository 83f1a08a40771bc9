//! A model as programs: read, planned for every size, its kernels chosen. Models of equal content share one.

use crate::blobs::Blobs;
use crate::driver::{Gpu, Pinned};
use crate::executor::CudaExecutor;
use crate::program::{Effort, Program};
use crate::sizes::{Extent, PreparedSizes, Side, Size, output_extents};
use base::Precision;
use engine::{FileHashes, ModelSource, Purpose};
use graph::model::Dimension;
use graph::{Options, Plan};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Batch sizes of models whose configuration names none.
const BATCH_SIZES: [u32; 5] = [1, 2, 4, 8, 16];
/// Lengths of models that have a mask, and whose configuration names none.
const LENGTHS: [u32; 3] = [32, 128, 512];

/// How often it is said how far a model's preparation is.
const SAID_EVERY: Duration = Duration::from_secs(3);

/// See the module.
pub(crate) struct CudaModel {
    /// What it was prepared for.
    pub(crate) sizes: PreparedSizes,
    /// Its weights.
    pub(crate) blob: Arc<Pinned>,
    /// How many bytes they are.
    pub(crate) weight_bytes: usize,
    /// What it is computed in.
    pub(crate) precision: Precision,
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
            "{own} {precision} {:?} {:?} {:?} {:?} {:?} {others:?}",
            source.purpose, source.max_batch, source.batch_sizes, source.shapes, source.lengths
        );
        Ok(wishes.into_bytes())
    }
}

impl CudaModel {
    /// Prepares a model for every executor. Takes seconds to minutes, most of them for measuring kernels that nobody
    /// measured before.
    pub(crate) fn prepare(
        gpu: &Arc<Gpu>,
        executors: &[Arc<CudaExecutor>],
        blobs: &Blobs<Pinned>,
        source: &ModelSource,
        precision: Precision,
    ) -> Result<Self, String> {
        let file = graph::OnnxModel::read(&source.file).map_err(|error| error.to_string())?;
        let wanted = Preparation::new(&file, source)?;
        let plans =
            wanted.sizes.iter().map(|size| wanted.plan(&file, *size, precision)).collect::<Result<Vec<_>, _>>()?;
        let sizes = wanted.describe(&file, &plans, precision)?;
        let weights = &plans[0].weights;
        let layout = weights.layout_hash();
        if plans.iter().any(|plan| plan.weights.layout_hash() != layout) {
            return Err("its weights are not the same for all batch sizes: serve it on a CPU device".into());
        }
        let (weights, weight_bytes) = (weights.to_bytes(), weights.len());
        let blob = blobs.keep(&weights, || {
            let mut blob = Pinned::new(gpu, weights.len()).map_err(|refused| {
                format!("no {} bytes of pinned host memory for its weights: {refused}", weights.len())
            })?;
            blob[..weights.len()].copy_from_slice(&weights);
            Ok::<_, String>(blob)
        })?;
        // What is compared is compared on the first device.
        let executors =
            if source.purpose == Purpose::Service { executors } else { &executors[..executors.len().min(1)] };
        let (mut done, all, mut said_at) = (0, executors.len() * plans.len(), Instant::now());
        let mut built = || {
            done += 1;
            if done < all && said_at.elapsed() >= SAID_EVERY {
                said_at = Instant::now();
                tracing::info!(model = source.name, "choosing kernels: {done} of {all} graphs");
            }
        };
        let effort = if source.purpose == Purpose::Draft { Effort::least() } else { Effort::default() };
        let programs = executors
            .iter()
            .map(|executor| programs(executor, &plans, &sizes, effort, &mut built))
            .collect::<Result<_, _>>()?;
        // One with fewer products than should be exact has all of them exact.
        let precision = if plans[0].is_exact() { Precision::Fp32 } else { precision };
        Ok(Self { sizes, blob, weight_bytes, precision, programs })
    }
}

/// A program for each size on one executor. Calls back after each.
fn programs(
    executor: &Arc<CudaExecutor>,
    plans: &[Plan],
    sizes: &PreparedSizes,
    effort: Effort,
    built: &mut impl FnMut(),
) -> Result<Programs, String> {
    let mut programs = Programs { list: Vec::new(), executor: Arc::clone(executor) };
    for plan in plans {
        programs.list.push(executor.build(plan, effort)?);
        built();
    }
    let workspace = programs.list.iter().map(Program::workspace_bytes).max().unwrap_or(0);
    let buffers = sizes.prepared.iter().map(|size| sizes.layout(*size).bytes).max().unwrap_or(0);
    executor.make_room(workspace, buffers)?;
    Ok(programs)
}

/// What is to be prepared of a model.
struct Preparation {
    inputs: Vec<Side>,
    sizes: Vec<Size>,
    batched: bool,
    fills_up: bool,
}

impl Preparation {
    fn new(file: &graph::OnnxModel, source: &ModelSource) -> Result<Self, String> {
        let batched = batched(file, source.max_batch)?;
        let side = |input: &graph::model::ModelInput| {
            let given = source.shapes.get(&input.name);
            let from = usize::from(batched);
            let extent = |(axis, dim): (usize, &Dimension)| match dim {
                Dimension::Fixed(dim) => Extent::Fixed(*dim),
                Dimension::Open(_) if batched && axis == 0 => Extent::Batch,
                Dimension::Open(_) => match given.and_then(|dims| dims.get(axis.checked_sub(from)?)) {
                    Some(&dim) if dim >= 0 => Extent::Fixed(dim as usize),
                    _ => Extent::Length,
                },
            };
            let extents = input.dims.iter().enumerate().map(extent).collect();
            Side { name: input.name.clone(), datatype: input.dtype, extents }
        };
        let inputs: Vec<Side> = file.inputs().iter().map(side).collect();
        if let Some(side) = inputs.iter().find(|side| side.datatype.size().is_none()) {
            return Err(format!("input {} has strings, which no GPU computes with", side.name));
        }
        let fills_up = inputs.iter().any(|side| side.name.contains("mask"));
        let open = inputs.iter().any(|side| side.extents.contains(&Extent::Length));
        let lengths: Vec<usize> = match source.lengths.as_slice() {
            _ if !open => vec![0],
            [] if fills_up => LENGTHS.iter().map(|length| *length as usize).collect(),
            [] => {
                return Err("it has open dimensions besides the batch: give their sizes with the dims of config.pbtxt or the parameter sequence_lengths, as in \"32,128\"".into());
            }
            given => given.iter().map(|length| *length as usize).collect(),
        };
        let most = source.max_batch.unwrap_or(BATCH_SIZES[BATCH_SIZES.len() - 1]).max(1);
        let batches = if source.batch_sizes.is_empty() { &BATCH_SIZES[..] } else { &source.batch_sizes };
        let batches: Vec<usize> = if batched {
            batches.iter().filter(|size| **size <= most).map(|size| *size as usize).collect()
        } else {
            vec![1]
        };
        let mut sizes: Vec<Size> =
            lengths.iter().flat_map(|&length| batches.iter().map(move |&batch| Size { length, batch })).collect();
        if source.purpose != Purpose::Service {
            sizes.truncate(1);
        }
        Ok(Self { inputs, sizes, batched, fills_up: fills_up && open })
    }

    fn plan(&self, file: &graph::OnnxModel, size: Size, precision: Precision) -> Result<Plan, String> {
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
                    if axis == 0 {
                        // Whatever stands first is the batch for the planner, also where we have none.
                        options.batch = dim;
                    } else {
                        options.sizes.insert(format!("{}:{axis}", side.name), dim);
                    }
                }
            }
        }
        graph::compile(file, &options).map_err(|error| error.to_string())
    }

    /// The inputs and outputs with what their dimensions mean.
    fn describe(&self, file: &graph::OnnxModel, plans: &[Plan], precision: Precision) -> Result<PreparedSizes, String> {
        let dims = |plan: &Plan| plan.outputs.iter().map(|port| port.dims.clone()).collect::<Vec<_>>();
        let (mut sizes, mut seen) = (self.sizes.clone(), plans.iter().map(dims).collect::<Vec<_>>());
        if self.fills_up && sizes.iter().all(|size| size.length == sizes[0].length) {
            // One length alone doesn't show which dimensions follow it.
            let other = Size { length: 2 * sizes[0].length, ..sizes[0] };
            seen.push(dims(&self.plan(file, other, precision)?));
            sizes.push(other);
        }
        let extents = output_extents(&sizes, &seen, self.batched)?;
        let output = |(port, extents): (&graph::plan::Port, Vec<Extent>)| Side {
            name: port.name.clone(),
            datatype: port.dtype,
            extents,
        };
        let outputs = plans[0].outputs.iter().zip(extents).map(output).collect();
        let Self { inputs, sizes: prepared, batched, fills_up } = self;
        let mut prepared = prepared.clone();
        prepared.sort_unstable();
        debug_assert_eq!(&prepared, &self.sizes, "sizes are asked for in ascending order");
        Ok(PreparedSizes { inputs: inputs.clone(), outputs, prepared, fills_up: *fills_up, batched: *batched })
    }
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
    use std::path::Path;

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
        let node = [field(1, inputs[0].0.as_bytes()), field(2, b"y"), field(4, b"Relu")].concat();
        let mut graph = field(1, &node);
        inputs.iter().for_each(|(name, dims)| graph.extend(field(11, &value(name, dims))));
        graph.extend(field(12, &value("y", inputs[0].1)));
        // The graph may be longer than a length of one byte.
        let mut bytes = vec![7 << 3 | 2, (graph.len() % 128) as u8 | 128, (graph.len() / 128) as u8];
        bytes.extend(graph);
        bytes.extend(field(8, &number(2, 17)));
        graph::OnnxModel::decode(&bytes, None).unwrap()
    }

    fn wanted(file: &graph::OnnxModel, source: &ModelSource) -> Result<PreparedSizes, String> {
        let wanted = Preparation::new(file, source)?;
        let plan = |size: &Size| wanted.plan(file, *size, Precision::Fp32);
        let plans = wanted.sizes.iter().map(plan).collect::<Result<Vec<_>, _>>()?;
        wanted.describe(file, &plans, Precision::Fp32)
    }

    #[test]
    fn an_image_model_has_its_batches() {
        let file = model(&[("x", &["batch", "3", "8"])]);
        let sizes =
            wanted(&file, &ModelSource { max_batch: Some(4), batch_sizes: vec![1, 4, 8], ..ModelSource::default() })
                .unwrap();
        assert_eq!(sizes.prepared, [1, 4].map(|batch| Size { length: 0, batch }));
        let signature = sizes.signature();
        assert_eq!((signature.max_batch, &signature.outputs[0].dims), (4, &vec![-1, 3, 8]));
        let unsaid = wanted(&file, &ModelSource::default()).unwrap();
        assert_eq!(unsaid.signature().max_batch, 16);
        let unbatched =
            wanted(&file, &ModelSource { max_batch: Some(0), lengths: vec![2], ..ModelSource::default() }).unwrap();
        assert_eq!((unbatched.signature().max_batch, unbatched.prepared), (0, vec![Size { length: 2, batch: 1 }]));
    }

    #[test]
    fn what_is_compared_has_the_smallest_size_alone() {
        let file = model(&[("mask", &["batch", "sequence"])]);
        for purpose in [Purpose::Trial, Purpose::Draft] {
            let source =
                ModelSource { purpose, batch_sizes: vec![2, 4], lengths: vec![16, 32], ..ModelSource::default() };
            let sizes = wanted(&file, &source).unwrap();
            assert_eq!((sizes.prepared.clone(), sizes.fills_up), (vec![Size { length: 16, batch: 2 }], true));
            assert_eq!(sizes.find(Size { length: 9, batch: 1 }), Ok(0), "a shorter row is filled up");
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
        assert!(wanted(&file, &ModelSource::default()).unwrap_err().contains("sequence_lengths"));
        let given = ModelSource { batch_sizes: vec![1, 2], lengths: vec![16, 32], ..ModelSource::default() };
        let sizes = wanted(&file, &given).unwrap();
        assert_eq!((sizes.prepared.len(), sizes.fills_up), (4, false));
        assert_eq!(sizes.outputs[0].extents, [Extent::Batch, Extent::Length]);
        let narrowed = ModelSource { shapes: [("ids".to_owned(), vec![24])].into(), ..ModelSource::default() };
        assert_eq!(wanted(&file, &narrowed).unwrap().inputs[0].extents, [Extent::Batch, Extent::Fixed(24)]);
        let masked = model(&[("ids", &["batch", "sequence"]), ("attention_mask", &["batch", "sequence"])]);
        let one = ModelSource { batch_sizes: vec![1], lengths: vec![16], ..ModelSource::default() };
        let sizes = wanted(&masked, &one).unwrap();
        assert_eq!((sizes.prepared, sizes.fills_up), (vec![Size { length: 16, batch: 1 }], true));
        assert_eq!(sizes.outputs[0].extents, [Extent::Batch, Extent::Length], "also with one length");
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
