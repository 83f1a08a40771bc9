//! Models on a GPU as they will be served: one CUDA graph for each batch size.

use anyhow::{Context, ensure};
use base::DataType;
use cudarc::driver::sys as driver;
use engine_cuda::tools::{Effort, Gpu, Program, Toolkit, instantiate};
use graph::plan::{Port, Precision};
use graph::{Options, Plan};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Replays before the clock counts, and those that count.
const WARM: usize = 30;
const TIMED: usize = 200;

/// Which model, and how. In the model's folder lie `resnet50.input0.bin` and so on (rows of the largest batch, in the
/// model's types) and `resnet50.output0.bin` (f32). Prints one line of JSON for each batch size, and writes
/// `resnet50.F16.1.kernels` with the kernel of each step.
#[derive(clap::Args)]
pub(crate) struct ExecArgs {
    /// Where compiled kernels and measurements are kept.
    cache: PathBuf,
    /// f32, tf32 or f16.
    precision: String,
    /// Batch sizes, with commas between them.
    batches: String,
    /// How many of cuDNN's proposals are tried; with a `-` behind the number, none of cuBLASLt's are.
    proposals: String,
    /// The ONNX file.
    model: PathBuf,
    /// What open dimensions are: NAME=SIZE.
    sizes: Vec<String>,
}

/// Options for a batch, with what open dimensions are.
pub(crate) fn options(batch: usize, precision: Precision, sizes: &[String]) -> anyhow::Result<Options> {
    let mut options = Options::new(batch, precision);
    for size in sizes {
        let (name, value) = size.rsplit_once('=').context("sizes are NAME=SIZE")?;
        options.sizes.insert(name.to_owned(), value.parse()?);
    }
    Ok(options)
}

pub(crate) fn run(args: &ExecArgs) -> anyhow::Result<Value> {
    let precision = Precision::from_name(&args.precision).context("precision: f32, tf32 or f16")?;
    let batches = args.batches.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>().context("batches")?;
    let effort = Effort {
        proposals: args.proposals.trim_end_matches('-').parse().context("proposals")?,
        products: !args.proposals.ends_with('-'),
        ..Effort::default()
    };
    let gpu = Gpu::open(0).map_err(anyhow::Error::msg)?;
    gpu.enter()?;
    let toolkit = Arc::new(Toolkit::open(&args.cache)?);
    let path = &args.model;
    let began = Instant::now();
    let parsed = graph::OnnxModel::read(path)?;
    let read_s = began.elapsed().as_secs_f64();
    let mut weights: Option<(blake3::Hash, Bytes)> = None;
    let mut all = Vec::new();
    for batch in batches {
        let began = Instant::now();
        let plan = graph::compile(&parsed, &options(batch, precision, &args.sizes)?)?;
        let plan_s = began.elapsed().as_secs_f64();
        let layout = plan.weights.layout_hash();
        if weights.as_ref().is_none_or(|(old, _)| *old != layout) {
            ensure!(weights.is_none(), "weights lie differently for another batch size");
            weights = Some((layout, Bytes::of(&plan.weights.to_bytes())?));
        }
        let blob = &weights.as_ref().expect("just set").1;
        let began = Instant::now();
        let recorded = Recorded::new(&toolkit, &plan, effort, blob, path)?;
        let build_s = began.elapsed().as_secs_f64();
        let error = recorded.error(&plan, path)?;
        let (median, p99) = recorded.times()?;
        // Once more behind many others: what was right by chance isn't then.
        let error = recorded.error(&plan, path)?.max(error);
        toolkit.save_choices()?;
        let line = json!({
            "model": stem(path),
            "precision": format!("{precision:?}"),
            "batch": batch,
            "ms": median,
            "p99": p99,
            "error": error,
            "steps": recorded.program.len(),
            "read_s": read_s,
            "plan_s": plan_s,
            "build_s": build_s,
            "weights": plan.weights.len(),
            "workspace": recorded.program.workspace_bytes(),
        });
        println!("{line}");
        all.push(line);
        let kernels = format!("{}.{precision:?}.{batch}.kernels", stem(path));
        std::fs::write(path.with_file_name(kernels), recorded.program.describe())?;
    }
    Ok(all.into())
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn next_to(path: &Path, what: &str, number: usize) -> PathBuf {
    path.with_file_name(format!("{}.{what}{number}.bin", stem(path)))
}

fn bytes_of(port: &Port) -> usize {
    port.dims.iter().product::<usize>() * port.dtype.size().unwrap_or(1)
}

fn check(call: &str, status: driver::CUresult) -> anyhow::Result<()> {
    ensure!(status == driver::CUresult::CUDA_SUCCESS, "{call} failed: {status:?}");
    Ok(())
}

/// Memory of the device.
struct Bytes(driver::CUdeviceptr);

impl Bytes {
    fn new(bytes: usize) -> anyhow::Result<Self> {
        let mut address = 0;
        // SAFETY: the pointer is to a live variable.
        check("cuMemAlloc", unsafe { driver::cuMemAlloc_v2(&raw mut address, bytes.max(256)) })?;
        Ok(Self(address))
    }

    fn of(content: &[u8]) -> anyhow::Result<Self> {
        let bytes = Self::new(content.len())?;
        // SAFETY: the allocation is as long as what is copied.
        check("cuMemcpyHtoD", unsafe { driver::cuMemcpyHtoD_v2(bytes.0, content.as_ptr().cast(), content.len()) })?;
        Ok(bytes)
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; the stream was waited for.
        unsafe { driver::cuMemFree_v2(self.0) };
    }
}

/// A program that is recorded in a graph, with its memory.
struct Recorded {
    program: Program,
    stream: driver::CUstream,
    graph: driver::CUgraphExec,
    outputs: Vec<Bytes>,
    _kept: Vec<Bytes>,
}

impl Recorded {
    fn new(toolkit: &Arc<Toolkit>, plan: &Plan, effort: Effort, weights: &Bytes, path: &Path) -> anyhow::Result<Self> {
        let (mut stream, mut graph) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the pointer is to a live variable.
        check("cuStreamCreate", unsafe { driver::cuStreamCreate(&raw mut stream, 1) })?;
        let program = Program::build(toolkit, plan, effort, stream)?;
        let workspace = Bytes::new(program.workspace_bytes())?;
        let mut inputs = Vec::new();
        for (number, port) in plan.inputs.iter().enumerate() {
            let file = next_to(path, "input", number);
            let content = std::fs::read(&file).with_context(|| file.display().to_string())?;
            ensure!(content.len() >= bytes_of(port), "{} is shorter than {:?}", file.display(), port.dims);
            inputs.push(Bytes::of(&content[..bytes_of(port)])?);
        }
        let outputs: Vec<Bytes> =
            plan.outputs.iter().map(|port| Bytes::new(bytes_of(port))).collect::<Result<_, _>>()?;
        let at = |all: &[Bytes]| all.iter().map(|bytes| bytes.0).collect::<Vec<_>>();
        let (from, to) = (at(&inputs), at(&outputs));
        // SAFETY: all memory is as large as the plan says and lives as long as the graph; pointers are to live
        // variables.
        let instance = unsafe {
            // Once outside of a graph: libraries load their code then.
            program.enqueue(stream, weights.0, workspace.0, &from, &to)?;
            check("cuStreamSynchronize", driver::cuStreamSynchronize(stream))?;
            let mode = driver::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            check("cuStreamBeginCapture", driver::cuStreamBeginCapture_v2(stream, mode))?;
            program.enqueue(stream, weights.0, workspace.0, &from, &to)?;
            check("cuStreamEndCapture", driver::cuStreamEndCapture(stream, &raw mut graph))?;
            instantiate(graph)?
        };
        inputs.push(workspace);
        Ok(Self { program, stream, graph: instance, outputs, _kept: inputs })
    }

    fn launch(&self) -> anyhow::Result<()> {
        // SAFETY: the graph and all that it touches live as long as this.
        check("cuGraphLaunch", unsafe { driver::cuGraphLaunch(self.graph, self.stream) })
    }

    /// The largest difference from the saved outputs, over the largest of them.
    fn error(&self, plan: &Plan, path: &Path) -> anyhow::Result<f64> {
        self.launch()?;
        // SAFETY: the stream lives.
        check("cuStreamSynchronize", unsafe { driver::cuStreamSynchronize(self.stream) })?;
        let mut worst = 0.0f64;
        for (number, (port, output)) in plan.outputs.iter().zip(&self.outputs).enumerate() {
            ensure!(port.dtype == DataType::Fp32, "outputs are compared as FP32, {:?} is {}", port.name, port.dtype);
            let mut got = vec![0u8; bytes_of(port)];
            // SAFETY: the buffer is as long as the output.
            check("cuMemcpyDtoH", unsafe { driver::cuMemcpyDtoH_v2(got.as_mut_ptr().cast(), output.0, got.len()) })?;
            let file = next_to(path, "output", number);
            let expected = std::fs::read(&file).with_context(|| file.display().to_string())?;
            ensure!(expected.len() >= got.len(), "{} is shorter than {:?}", file.display(), port.dims);
            let floats = |bytes: &[u8]| -> Vec<f64> {
                bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect()
            };
            let (got, expected) = (floats(&got), floats(&expected[..got.len()]));
            let scale = expected.iter().fold(1e-12f64, |most, x| most.max(x.abs()));
            for (got, expected) in got.iter().zip(&expected) {
                let difference = (got - expected).abs() / scale;
                worst = if difference.is_nan() { f64::INFINITY } else { worst.max(difference) };
            }
        }
        // JSON has no infinity; readers make one of what they can't hold.
        Ok(worst.min(f64::MAX))
    }

    /// The median and the 99th percentile of single executions, in milliseconds of the device's clock.
    fn times(&self) -> anyhow::Result<(f32, f32)> {
        let mut events = Vec::new();
        for _ in 0..2 * TIMED {
            let mut event = std::ptr::null_mut();
            // SAFETY: the pointer is to a live variable.
            check("cuEventCreate", unsafe { driver::cuEventCreate(&raw mut event, 0) })?;
            events.push(event);
        }
        for _ in 0..WARM {
            self.launch()?;
        }
        let mut times = Vec::new();
        // SAFETY: events and the stream live.
        unsafe {
            check("cuStreamSynchronize", driver::cuStreamSynchronize(self.stream))?;
            for pair in events.chunks_exact(2) {
                check("cuEventRecord", driver::cuEventRecord(pair[0], self.stream))?;
                self.launch()?;
                check("cuEventRecord", driver::cuEventRecord(pair[1], self.stream))?;
                check("cuStreamSynchronize", driver::cuStreamSynchronize(self.stream))?;
            }
            for pair in events.chunks_exact(2) {
                let mut milliseconds = 0.0;
                check("cuEventElapsedTime", driver::cuEventElapsedTime_v2(&raw mut milliseconds, pair[0], pair[1]))?;
                times.push(milliseconds);
            }
            for event in events {
                driver::cuEventDestroy_v2(event);
            }
        }
        times.sort_by(f32::total_cmp);
        Ok((times[TIMED / 2], times[TIMED * 99 / 100]))
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        // SAFETY: made in `new`; the stream is waited for first.
        unsafe {
            driver::cuStreamSynchronize(self.stream);
            driver::cuGraphExecDestroy(self.graph);
            driver::cuStreamDestroy_v2(self.stream);
        }
    }
}
