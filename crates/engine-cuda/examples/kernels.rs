//! Runs every candidate kernel of some steps on a GPU, compares each with the reference, and prints what it took.
//!
//! `kernels CACHE [TEXT]`: steps that are hard or frequent, or those of them that have TEXT in their description; one line for each candidate; exits with an error if one is wrong. `kernels CACHE PRECISION BATCHES MODEL.onnx [NAME=SIZE ...]`:
//! the steps of a model instead, for instance `kernels cache f16 1,4 lenet.onnx`, on memory as it is when they are reached. `kernels FOLDER sources [MODEL.onnx ...]` needs no GPU:
//! it writes what would be compiled, for these cases and for models.

#![allow(unsafe_code, reason = "the driver's calls")]

use anyhow::Context;
use base::DataType;
use engine_cuda::driver::Gpu;
use engine_cuda::program::{Effort, Trial, survey, uniform};
use engine_cuda::toolkit::{Facts, Toolkit};
use graph::Plan;
use graph::array::{Array, is_float};
use graph::model::Dimension;
use graph::plan::{
    Activation, Attention, Conv, Gemm, Place, Pool, PoolKind, Port, Precision, Step, Tensor, Window, channels_last,
    row_major,
};
use graph::weights::Weights;
use std::collections::BTreeMap;
use std::path::Path;

/// Bytes before and behind outputs.
const ROOM: usize = 256;
/// The name of an input that is a mask.
const MASK: &str = "mask";

/// A step whose tensors are inputs and one output of a plan of its own.
struct Case {
    what: String,
    precision: Precision,
    step: Step,
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (cache, plans) = match arguments[..] {
        [_, folder, "sources", ..] => return write_sources(Path::new(folder)),
        [_, cache] | [_, cache, _] => {
            let text = arguments.get(2).copied().unwrap_or_default();
            (cache, cases().iter().filter(|case| case.what.contains(text)).map(plan_of).collect())
        }
        [_, cache, precision, batches, model, ref sizes @ ..] => (cache, plans_of(model, precision, batches, sizes)?),
        _ => anyhow::bail!("usage: kernels CACHE [TEXT | PRECISION BATCHES MODEL.onnx [NAME=SIZE ...]]"),
    };
    let gpu = Gpu::open(0).map_err(anyhow::Error::msg)?;
    gpu.enter()?;
    let toolkit = Toolkit::open(Path::new(cache))?;
    println!("{}", toolkit.facts().key());
    let mut stream = std::ptr::null_mut();
    // SAFETY: the pointer is to a live variable.
    unsafe { cudarc::driver::sys::cuStreamCreate(&raw mut stream, 1) };
    let (mut tried, mut wrong) = (0, 0);
    for plan in plans {
        let inputs: Vec<Vec<u8>> = plan.inputs.iter().zip(1..).map(|(port, seed)| random(port, seed)).collect();
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let mut trials: BTreeMap<usize, Vec<Trial>> = BTreeMap::new();
        let effort = Effort { proposals: 4, products: true };
        let untouched = survey(&toolkit, &plan, effort, stream, &inputs, |trial| {
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
    Ok(())
}

/// Prints what a step's candidates took, the fastest first. Returns how many are wrong.
fn print(plan: &Plan, step: usize, mut trials: Vec<Trial>) -> usize {
    let tolerance = match plan.precision {
        Precision::F16 => 4e-3,
        Precision::Tf32 => 2e-3,
        Precision::F32 => 1e-5,
    };
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
fn plans_of(file: &str, precision: &str, batches: &str, sizes: &[&str]) -> anyhow::Result<Vec<Plan>> {
    let model = graph::Model::read(Path::new(file))?;
    let precision = Precision::from_name(precision).context("precision: f32, tf32 or f16")?;
    let plan = |batch: &str| {
        let mut options = graph::Options::new(batch.parse().context("batches")?, precision);
        for size in sizes {
            let (name, value) = size.split_once('=').context("sizes are NAME=SIZE")?;
            options.sizes.insert(name.to_owned(), value.parse()?);
        }
        Ok(graph::compile(&model, &options)?)
    };
    batches.split(',').map(plan).collect()
}

/// Numbers between -0.5 and 0.5; for integers, few and small ones.
fn random(port: &Port, seed: u64) -> Vec<u8> {
    let mut next = uniform(seed);
    let mut data: Vec<f32> = (0..port.dims.iter().product()).map(|_| next()).collect();
    if port.name == MASK {
        // Rows that are masked altogether, and rows that are up to beyond the first keys.
        let masked = data.len() / 3;
        data[..masked].fill(f32::NEG_INFINITY);
    }
    let array = match is_float(port.dtype) {
        true => Array::floats(&port.dims, data),
        false => Array::ints(&port.dims, data.iter().map(|x| (x * 10.0) as i64 + 5).collect()),
    };
    let mut bytes = vec![0; array.elements() * port.dtype.size().unwrap_or(1)];
    array.store_strided(port.dtype, &row_major(&port.dims), 0, &mut bytes);
    bytes
}

/// For NVRTC on a machine without a GPU: each source with its options in the first line.
fn write_sources(folder: &Path) -> anyhow::Result<()> {
    let facts = Facts {
        name: "NVIDIA H200".into(),
        capability: 90,
        multiprocessors: 132,
        shared_bytes: 232_448,
        versions: String::new(),
    };
    std::fs::create_dir_all(folder)?;
    let mut plans: Vec<Plan> = cases().iter().map(plan_of).collect();
    for path in std::env::args().skip(3) {
        let model = graph::Model::read(Path::new(&path))?;
        for precision in [Precision::F16, Precision::Tf32] {
            let open = |input: &graph::model::Input| matches!(input.dims.first(), Some(Dimension::Open(_)));
            let batch = if model.inputs().iter().any(open) { 2 } else { 1 };
            let mut options = graph::Options::new(batch, precision);
            options.sizes.insert("input:1".to_owned(), 128);
            let plan = graph::compile(&model, &options)?;
            std::fs::write(folder.with_extension(format!("{precision:?}.plan")), plan.to_string())?;
            plans.push(plan);
        }
    }
    for plan in plans {
        for source in engine_cuda::program::sources(&plan, &facts)? {
            let text = format!("// {}\n{}", source.defines.join(" "), source.full_text());
            std::fs::write(folder.join(source.key(&facts.architecture(), "")), text)?;
        }
    }
    Ok(())
}

fn tensor(dtype: DataType, dims: &[usize], strides: Vec<isize>, place: Place) -> Tensor {
    Tensor { dtype, dims: dims.to_vec(), strides, place, offset: 0 }
}

fn of(precision: Precision) -> DataType {
    if precision == Precision::F16 { DataType::Fp16 } else { DataType::Fp32 }
}

#[allow(clippy::too_many_arguments, reason = "a table of shapes")]
fn conv(
    precision: Precision,
    batch: usize,
    channels: usize,
    size: usize,
    out: usize,
    kernel: usize,
    stride: usize,
    groups: usize,
    residual: bool,
) -> Case {
    let kind = of(precision);
    let pad = kernel / 2;
    let out_size = (size + 2 * pad - kernel) / stride + 1;
    let (dims, out_dims, weight) =
        ([batch, channels, size, size], [batch, out, out_size, out_size], [out, channels / groups, kernel, kernel]);
    let step = Conv {
        input: tensor(kind, &dims, channels_last(&dims), Place::Input(0)),
        weight: tensor(kind, &weight, channels_last(&weight), Place::Input(1)),
        bias: Some(tensor(kind, &[out], vec![1], Place::Input(2))),
        residual: residual.then(|| tensor(kind, &out_dims, channels_last(&out_dims), Place::Input(3))),
        output: tensor(kind, &out_dims, channels_last(&out_dims), Place::Output(0)),
        window: Window {
            kernel: [kernel; 2],
            strides: [stride; 2],
            dilations: [1; 2],
            pads_before: [pad; 2],
            pads_after: [pad; 2],
        },
        groups,
        activation: if groups == channels && groups > 1 {
            Activation::Clip { low: 0.0, high: 6.0 }
        } else {
            Activation::Relu
        },
    };
    let what = format!(
        "conv {precision:?} {batch}x{channels}x{size}x{size} -> {out} k{kernel} s{stride} g{groups}{}",
        if residual { " +r" } else { "" }
    );
    Case { what, precision, step: Step::Conv(step) }
}

/// The same convolution of an image of even size, padded as TensorFlow does it: none above and to the left, one below and to the right.
fn padded_behind(case: Case) -> Case {
    let Step::Conv(conv) = case.step else { unreachable!("of a convolution") };
    let window = Window { pads_before: [0; 2], pads_after: [1; 2], ..conv.window };
    let out = |axis: usize| (conv.input.dims[axis] + 1 - window.kernel[axis - 2]) / window.strides[axis - 2] + 1;
    assert_eq!(conv.output.dims[2..], [out(2), out(3)], "the size stays the same");
    let what = format!("{} padded behind", case.what);
    Case { what, precision: case.precision, step: Step::Conv(Conv { window, ..conv }) }
}

/// The same into a part of wider pixels, as in a concatenation.
fn interleaved(case: Case) -> Case {
    let Step::Conv(mut conv) = case.step else { unreachable!("of a convolution") };
    let [_, channels, height, width] = conv.output.dims[..] else { unreachable!("four dimensions") };
    let wide = channels_last(&[1, channels + 32, height, width]);
    conv.output.strides = vec![wide[0], 1, wide[2], wide[3]];
    Case { what: format!("{} into wider pixels", case.what), precision: case.precision, step: Step::Conv(conv) }
}

/// The same with another activation.
fn activated(case: Case, activation: Activation) -> Case {
    let Step::Conv(conv) = case.step else { unreachable!("of a convolution") };
    let what = format!("{} {activation:?}", case.what);
    Case { what, precision: case.precision, step: Step::Conv(Conv { activation, ..conv }) }
}

fn gemm(
    precision: Precision,
    batch: &[usize],
    m: usize,
    k: usize,
    n: usize,
    turned: bool,
    activation: Activation,
) -> Case {
    let kind = of(precision);
    let with = |rows: usize, columns: usize| [batch, &[rows, columns]].concat();
    let b = with(k, n);
    let b_strides = if turned {
        let mut strides = row_major(&with(n, k));
        let rank = strides.len();
        strides.swap(rank - 1, rank - 2);
        strides
    } else {
        row_major(&b)
    };
    let step = Gemm {
        a: tensor(kind, &with(m, k), row_major(&with(m, k)), Place::Input(0)),
        b: tensor(kind, &b, b_strides, Place::Input(1)),
        bias: batch.is_empty().then(|| tensor(kind, &[n], vec![1], Place::Input(2))),
        residual: None,
        output: tensor(kind, &with(m, n), row_major(&with(m, n)), Place::Output(0)),
        alpha: 0.5,
        activation,
    };
    Case {
        what: format!("gemm {precision:?} {batch:?} {m}x{k}x{n} turned {turned} {activation:?}"),
        precision,
        step: Step::Gemm(step),
    }
}

fn attention(precision: Precision, batch: usize, heads: usize, length: usize, width: usize, masked: bool) -> Case {
    let kind = of(precision);
    let dims = [batch, heads, length, width];
    // Heads lie beside one another, as a projection leaves them.
    let beside = vec![(length * heads * width) as isize, width as isize, (heads * width) as isize, 1];
    let at = |place| tensor(kind, &dims, beside.clone(), place);
    let step = Attention {
        query: at(Place::Input(0)),
        key: at(Place::Input(1)),
        value: at(Place::Input(2)),
        mask: masked.then(|| {
            tensor(DataType::Fp32, &[batch, heads, length, length], vec![length as isize, 0, 0, 1], Place::Input(3))
        }),
        output: at(Place::Output(0)),
        scale: 1.0 / (width as f32).sqrt(),
    };
    Case {
        what: format!("attention {precision:?} {batch}x{heads}x{length}x{width} masked {masked}"),
        precision,
        step: Step::Attention(step),
    }
}

fn pool(precision: Precision) -> Case {
    let (kind, dims, out) = (of(precision), [2, 64, 17, 17], [2, 64, 9, 9]);
    let step = Pool {
        input: tensor(kind, &dims, channels_last(&dims), Place::Input(0)),
        output: tensor(kind, &out, channels_last(&out), Place::Output(0)),
        kind: PoolKind::Max,
        window: Window { kernel: [3; 2], strides: [2; 2], dilations: [1; 2], pads_before: [1; 2], pads_after: [1; 2] },
    };
    Case { what: format!("pool {precision:?}"), precision, step: Step::Pool(step) }
}

fn cases() -> Vec<Case> {
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
        // Activations that cuBLASLt's epilogue doesn't have: with a bias (the product above), without one, and in convolutions of one tap.
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

/// A plan of the step alone: its tensors are inputs and an output, each as large as what it may touch, the output with room before and behind it, where it may not write.
fn plan_of(case: &Case) -> Plan {
    let port = |tensor: &Tensor, more: usize| Port {
        name: String::new(),
        dtype: tensor.dtype,
        dims: vec![(tensor.span().end + more) / tensor.element_bytes()],
    };
    let mut step = case.step.clone();
    for tensor in step.tensors_mut() {
        tensor.offset += if matches!(tensor.place, Place::Output(_)) { ROOM } else { 0 };
    }
    let mut reads: Vec<&Tensor> = step.reads();
    reads.sort_by_key(|tensor| tensor.place);
    let mut inputs: Vec<Port> = reads.iter().map(|tensor| port(tensor, 0)).collect();
    if let Step::Attention(attention) = &step {
        let mask = inputs.iter_mut().skip(3).take(usize::from(attention.mask.is_some()));
        mask.for_each(|port| port.name = MASK.to_owned());
    }
    Plan {
        precision: case.precision,
        inputs,
        outputs: step.writes().iter().map(|tensor| port(tensor, ROOM)).collect(),
        steps: vec![step.clone()],
        names: vec![case.what.clone()],
        weights: Weights::default(),
        constants: Vec::new(),
        workspace_bytes: 0,
    }
}
