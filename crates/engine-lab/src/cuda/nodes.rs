//! ONNX's own node tests on a GPU through the engine, as models are served. Most of the time goes into compiling
//! kernels, so several processes divide the tests among them.

use anyhow::Context;
use base::Precision;
use engine::{Engine, ModelSource, Tensor};
use engine_cuda::engine::{CudaEngine, CudaOptions};
use graph::array::Array;
use graph::cases::nodes::{Values, bytes, contested, difference, names};
use graph::plan::row_major;
use graph::{OnnxModel, Options, compile};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Which tests. What the planner refuses is counted and left alone; what is wrong or fails is printed, and makes the
/// exit status 1.
#[derive(clap::Args)]
pub(crate) struct NodesArgs {
    /// What `scripts/onnx-node-cases.py` wrote.
    folder: PathBuf,
    /// fp32, tf32 or fp16.
    #[arg(default_value = "fp32")]
    precision: String,
    /// How many processes.
    #[arg(default_value_t = 12)]
    processes: usize,
    /// Which of them this is.
    #[arg(hide = true)]
    part: Option<usize>,
}

pub(crate) fn run(args: &NodesArgs) -> anyhow::Result<Value> {
    let precision = Precision::from_name(&args.precision).context("precision: fp32, tf32 or fp16")?;
    match args.part {
        Some(part) => compute(&args.folder, precision, part, args.processes).map(|()| Value::Null),
        None => divide(args),
    }
}

/// Starts the processes, and adds up what they say.
fn divide(args: &NodesArgs) -> anyhow::Result<Value> {
    let own = std::env::current_exe()?;
    let start = |part: usize| {
        let mut command = Command::new(&own);
        command.arg("nodes").arg(&args.folder).arg(&args.precision);
        command.args([args.processes, part].map(|number| number.to_string())).stdout(Stdio::piped()).spawn()
    };
    let started = (0..args.processes).map(start).collect::<Result<Vec<_>, _>>()?;
    let mut totals = [0usize; 4];
    for process in started {
        let output = process.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let (lines, counts) = text.trim_end().rsplit_once('\n').unwrap_or(("", text.trim_end()));
        let counts = counts.split(' ').map(str::parse).collect::<Result<Vec<usize>, _>>();
        let counts = counts.with_context(|| format!("a process ended with {}: {text}", output.status))?;
        totals.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
        if !lines.is_empty() {
            println!("{lines}");
        }
    }
    let [right, wrong, refused, contested] = totals;
    println!("{right} right, {wrong} wrong, {refused} refused by the planner, {contested} contested");
    anyhow::ensure!(wrong == 0, "{wrong} tests of {} are wrong", right + wrong);
    Ok(json!({ "right": right, "wrong": wrong, "refused": refused, "contested": contested }))
}

/// Computes each `of`th test from the `part`th on. The last line has the numbers of those that are right, wrong,
/// refused and contested: those that contradict the operator's definition, from which what is right differs.
fn compute(folder: &Path, precision: Precision, part: usize, of: usize) -> anyhow::Result<()> {
    let options = CudaOptions { memory_bytes: Some(256 << 20), pinned_bytes: 0, ..CudaOptions::default() };
    let engine = CudaEngine::new(&options)?;
    let [mut right, mut wrong, mut refused, mut differs] = [0; 4];
    for name in names(folder)?.iter().skip(part).step_by(of) {
        match (outcome(&engine, precision, folder, name), contested(name)) {
            (Ok(false), _) => refused += 1,
            (Ok(true), None) => right += 1,
            (Err(_), Some(_)) => differs += 1,
            (Ok(true), Some(why)) => {
                wrong += 1;
                println!("{name} is computed as expected, though {why}");
            }
            (Err(error), None) => {
                wrong += 1;
                println!("{name}: {error:#}");
            }
        }
    }
    println!("{right} {wrong} {refused} {differs}");
    Ok(())
}

/// Whether a test could be computed; an error if it went wrong.
fn outcome(engine: &CudaEngine, precision: Precision, folder: &Path, name: &str) -> anyhow::Result<bool> {
    let file = folder.join(format!("{name}.onnx"));
    let planned = OnnxModel::read(&file).and_then(|model| compile(&model, &Options::new(1, graph::Precision::F32)));
    let (Ok(_), Ok(values)) = (planned, Values::read(folder, name)) else { return Ok(false) };
    // Nothing in these models is a batch.
    let (max_batch, precision) = (Some(0), Some(precision));
    let source = ModelSource { name: name.to_owned(), file, max_batch, precision, ..ModelSource::default() };
    let prepared = engine.prepare(&source)?;
    let mut loaded = prepared.load(0)?;
    let count = prepared.signature().inputs.len();
    let input = |number| {
        let array = values.get("input", number);
        let shape = array.dims.iter().map(|&dim| dim as i64).collect();
        Tensor { datatype: array.dtype, shape, data: bytes(array).into() }
    };
    let inputs: Vec<Tensor> = (0..count).map(input).collect();
    let mut differences = Vec::new();
    engine::execute(&mut *loaded, &mut &*inputs, &mut |number, view| {
        let dims: Vec<usize> = view.shape.iter().map(|&dim| dim as usize).collect();
        let found = Array::load(view.datatype, &dims, &row_major(&dims), 0, view.data);
        let difference = difference(&found, values.get("output", number));
        differences.extend(difference.map(|difference| format!("output {number}: {difference}")));
    })?;
    anyhow::ensure!(differences.is_empty(), "{}", differences.join("; "));
    Ok(true)
}
