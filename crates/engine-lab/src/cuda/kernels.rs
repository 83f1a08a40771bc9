//! Candidate kernels, step by step: on a GPU compared with the reference and timed, and without one as sources.

use super::exec::options;
use anyhow::Context;
use engine_cuda::tools::{CudaStream, Effort, Facts, Gpu, Partition, Toolkit, Trial, Turn, sources, survey};
use graph::Plan;
use graph::cases::steps::{
    StepCase, activated, attention, conv, gemm, interleaved, padded_behind, plan_of, pool, random_input, tolerance,
};
use graph::model::Dimension;
use graph::plan::{Activation, Precision};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use workload::Random;

/// Which steps: those that are hard or frequent, or a model's, on memory as it is when they are reached. Prints one
/// line for each candidate; fails if one is wrong.
#[derive(clap::Args)]
pub(crate) struct KernelsArgs {
    /// Where compiled kernels are kept.
    cache: PathBuf,
    /// Only steps that have this in their description.
    #[arg(default_value = "")]
    text: String,
    /// The steps of this ONNX file instead.
    #[arg(long, conflicts_with = "text")]
    model: Option<PathBuf>,
    /// f32, tf32 or f16.
    #[arg(long, default_value = "f16")]
    precision: String,
    /// Batch sizes.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    batches: Vec<usize>,
    /// What open dimensions are: NAME=SIZE.
    #[arg(long = "size")]
    sizes: Vec<String>,
}

/// Where sources go, and of which models besides the cases.
#[derive(clap::Args)]
pub(crate) struct SourcesArgs {
    /// One file for each.
    folder: PathBuf,
    /// ONNX files.
    models: Vec<PathBuf>,
}

pub(crate) fn run(args: &KernelsArgs) -> anyhow::Result<Value> {
    let plans = match &args.model {
        Some(model) => plans_of(model, args)?,
        None => cases().iter().filter(|case| case.what.contains(&args.text)).map(plan_of).collect(),
    };
    let gpu = Gpu::open(0).map_err(anyhow::Error::msg)?;
    gpu.enter()?;
    let toolkit = Toolkit::open(&args.cache)?;
    println!("{}", toolkit.facts().key());
    let stream = CudaStream::new(&Partition::whole(&gpu), Turn::Second)?;
    let (mut tried, mut wrong) = (0, 0);
    for plan in plans {
        let input = |(port, seed)| random_input(port, uniform(seed));
        let inputs: Vec<Vec<u8>> = plan.inputs.iter().zip(1..).map(input).collect();
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let mut trials: BTreeMap<usize, Vec<Trial>> = BTreeMap::new();
        let effort = Effort::default();
        let untouched = survey(&toolkit, &plan, effort, stream.raw(), &inputs, |trial| {
            trials.entry(trial.step).or_default().push(trial);
        })?;
        anyhow::ensure!(untouched, "weights or inputs were overwritten by one of {:?}", plan.names);
        for (step, trials) in trials {
            tried += trials.len();
            wrong += print(&plan, step, trials);
        }
    }
    anyhow::ensure!(wrong == 0, "{wrong} of {tried} candidates are wrong");
    println!("{tried} candidates, none wrong");
    Ok(json!({ "tried": tried, "wrong": wrong }))
}

/// Numbers between -0.5 and 0.5, always the same.
fn uniform(seed: u64) -> impl FnMut() -> f32 {
    let mut random = Random::new(seed, 0);
    move || (random.unit() - 0.5) as f32
}

/// Prints what a step's candidates took, the fastest first. Returns how many are wrong.
fn print(plan: &Plan, step: usize, mut trials: Vec<Trial>) -> usize {
    let tolerance = tolerance(plan.precision);
    let time = |trial: &Trial| trial.microseconds.as_ref().map_or(f32::INFINITY, |time| *time);
    trials.sort_by(|a, b| time(a).total_cmp(&time(b)));
    println!("{step} {} {:?} {}", plan.steps[step].kind(), plan.precision, plan.names[step]);
    let mut wrong = 0;
    for Trial { own, name, microseconds, error, shrunk, strayed, .. } in trials {
        match microseconds {
            Ok(time) => {
                let judged = if error > tolerance || strayed { "  WRONG" } else { "" };
                let strayed = if strayed { ", and wrote elsewhere" } else { "" };
                wrong += usize::from(!judged.is_empty());
                println!("  {time:8.2} us  error {error:.1e}{judged}{strayed}  shrunk by {shrunk:7.0e}  {name}");
            }
            // Of a library's it isn't known before.
            Err(why) => {
                wrong += usize::from(own);
                println!("  failed: {name}: {why}");
            }
        }
    }
    wrong
}

/// A model's plans.
fn plans_of(file: &Path, args: &KernelsArgs) -> anyhow::Result<Vec<Plan>> {
    let model = graph::OnnxModel::read(file)?;
    let precision = Precision::from_name(&args.precision).context("precision: f32, tf32 or f16")?;
    let plan = |&batch: &usize| Ok(graph::compile(&model, &options(batch, precision, &args.sizes)?)?);
    args.batches.iter().map(plan).collect()
}

/// For NVRTC on a machine without a GPU.
pub(crate) fn write_sources(args: &SourcesArgs) -> anyhow::Result<()> {
    let folder = &args.folder;
    let facts = Facts {
        name: "NVIDIA H200".into(),
        capability: 90,
        multiprocessors: 132,
        shared_bytes: 232_448,
        versions: String::new(),
    };
    std::fs::create_dir_all(folder)?;
    let mut plans: Vec<Plan> = cases().iter().map(plan_of).collect();
    for path in &args.models {
        let model = graph::OnnxModel::read(path)?;
        for precision in [Precision::F16, Precision::Tf32] {
            let open = |input: &graph::model::ModelInput| matches!(input.dims.first(), Some(Dimension::Open(_)));
            let batch = if model.inputs().iter().any(open) { 2 } else { 1 };
            let mut options = graph::Options::new(batch, precision);
            options.sizes.insert("input:1".to_owned(), 128);
            let plan = graph::compile(&model, &options)?;
            std::fs::write(folder.with_extension(format!("{precision:?}.plan")), plan.to_string())?;
            plans.push(plan);
        }
    }
    for plan in plans {
        for source in sources(&plan, &facts)? {
            std::fs::write(folder.join(source.key(&facts.architecture(), "")), source.full_text())?;
        }
    }
    Ok(())
}

fn cases() -> Vec<StepCase> {
    use Precision::{F16, F32, Tf32};
    let mut all = Vec::new();
    for precision in [F16, Tf32, F32] {
        all.push(conv(precision, 1, 3, 224, 64, 7, 2, 1, false));
        all.push(conv(precision, 1, 64, 56, 64, 3, 1, 1, false));
        all.push(conv(precision, 1, 256, 14, 1024, 1, 1, 1, true));
        all.push(conv(precision, 1, 512, 7, 512, 3, 1, 1, false));
        all.push(conv(precision, 2, 128, 28, 128, 3, 2, 1, true));
        all.push(conv(precision, 2, 64, 15, 64, 3, 1, 16, false));
        all.push(interleaved(conv(precision, 2, 48, 15, 40, 3, 1, 1, false)));
        all.push(interleaved(conv(precision, 2, 64, 15, 24, 1, 1, 1, false)));
        all.push(conv(precision, 3, 96, 29, 96, 3, 2, 96, false));
        all.push(padded_behind(conv(precision, 1, 3, 224, 32, 3, 2, 1, false)));
        all.push(padded_behind(conv(precision, 2, 64, 28, 128, 3, 2, 1, true)));
        all.push(padded_behind(conv(precision, 2, 144, 56, 144, 3, 2, 144, false)));
        all.push(gemm(precision, &[], 5, 512, 1000, true, Activation::None));
        all.push(gemm(precision, &[], 128, 768, 3072, false, Activation::Gelu));
        all.push(gemm(precision, &[6], 50, 64, 72, true, Activation::None));
        // Activations that cuBLASLt's epilogue doesn't have: with a bias (the product above), without one, and in
        // convolutions of one tap.
        all.push(gemm(precision, &[6], 50, 64, 72, true, Activation::Gelu));
        all.push(activated(conv(precision, 2, 64, 14, 384, 1, 1, 1, false), Activation::Clip { low: 0.0, high: 6.0 }));
        all.push(activated(conv(precision, 2, 96, 13, 100, 1, 1, 1, true), Activation::Silu));
        all.push(attention(precision, 2, 3, 77, 64, true));
        all.push(attention(precision, 1, 2, 70, 32, false));
        all.push(attention(precision, 1, 2, 33, 128, true));
        all.push(attention(precision, 8, 12, 128, 64, true));
        all.push(pool(precision));
    }
    all.push(conv(F16, 8, 64, 56, 64, 3, 1, 1, false));
    all.push(conv(F16, 8, 256, 14, 256, 3, 1, 1, false));
    all.push(conv(F16, 8, 256, 56, 64, 1, 1, 1, false));
    all.push(conv(F16, 8, 144, 56, 144, 3, 1, 144, false));
    all.push(gemm(F16, &[], 4096, 768, 3072, false, Activation::Gelu));
    all
}
