//! Runs every candidate kernel of some steps on a GPU, compares each with plain loops on the CPU, and prints what it took.
//!
//! `kernels CACHE`: one line for each step and candidate; exits with an error if one is wrong. `kernels FOLDER sources [MODEL.onnx ...]` needs no GPU: it writes
//! what would be compiled, for these cases and for models.

#![allow(unsafe_code, reason = "the driver's calls")]

use base::DataType;
use engine_cuda::driver::Gpu;
use engine_cuda::program::{Effort, survey};
use engine_cuda::toolkit::{Facts, Toolkit};
use graph::Plan;
use graph::model::Dimension;
use graph::plan::{
    Activation, Attention, Conv, Gemm, Place, Pool, PoolKind, Port, Precision, Step, Tensor, Window, channels_last,
    row_major,
};
use graph::weights::Weights;
use half::f16;
use std::path::Path;

/// A step whose tensors are inputs and one output of a plan of its own.
struct Case {
    what: String,
    precision: Precision,
    step: Step,
}

fn main() -> anyhow::Result<()> {
    if let Some(folder) = std::env::args().nth(1).filter(|_| std::env::args().nth(2).as_deref() == Some("sources")) {
        return write_sources(Path::new(&folder));
    }
    let cache = std::env::args().nth(1).unwrap_or_else(|| "kernels-cache".to_owned());
    let gpu = Gpu::open(0).map_err(anyhow::Error::msg)?;
    gpu.enter()?;
    let toolkit = Toolkit::open(Path::new(&cache))?;
    println!("{}", toolkit.facts().key());
    let mut stream = std::ptr::null_mut();
    // SAFETY: the pointer is to a live variable.
    unsafe { cudarc::driver::sys::cuStreamCreate(&raw mut stream, 1) };
    let mut wrong = 0;
    for case in cases() {
        let (plan, inputs) = plan_of(&case);
        let expected = reference(&case.step, &inputs);
        let tolerance = if case.precision == Precision::F16 {
            4e-3
        } else if case.precision == Precision::Tf32 {
            2e-3
        } else {
            1e-5
        };
        let bytes: Vec<Vec<u8>> =
            plan.inputs.iter().zip(&inputs).map(|(port, values)| encode(port.dtype, values)).collect();
        let mut lines = Vec::new();
        let mut best = (f32::INFINITY, String::new());
        survey(&toolkit, &plan, Effort { proposals: 4, products: true }, stream, &bytes, |trial| {
            let got = decode(plan.outputs[0].dtype, &trial.outputs[0]);
            let scale = expected.iter().fold(1e-6f64, |most, x| most.max(x.abs()));
            let mut error = 0.0f64;
            for (got, expected) in got.iter().zip(&expected).filter(|(_, expected)| !expected.is_nan()) {
                let difference = (f64::from(*got) - expected).abs() / scale;
                error = if difference.is_nan() { f64::INFINITY } else { error.max(difference) };
            }
            match trial.microseconds {
                Ok(time) => {
                    let bad = error > tolerance;
                    wrong += u32::from(bad);
                    if time < best.0 && !bad {
                        best = (time, trial.name.clone());
                    }
                    lines.push(format!(
                        "  {time:8.2} us  error {error:.1e}{}  {}",
                        if bad { " WRONG" } else { "" },
                        trial.name
                    ));
                }
                Err(why) => lines.push(format!("  failed: {}: {why}", trial.name)),
            }
        })?;
        println!("{}: best {:.2} us {}", case.what, best.0, best.1);
        lines.sort();
        lines.iter().for_each(|line| println!("{line}"));
    }
    anyhow::ensure!(wrong == 0, "{wrong} candidates are wrong");
    Ok(())
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
    let mut plans: Vec<Plan> = cases().iter().map(|case| plan_of(case).0).collect();
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
        all.push(pool(precision));
    }
    all.push(conv(F16, 8, 64, 56, 64, 3, 1, 1, false));
    all.push(conv(F16, 8, 256, 14, 256, 3, 1, 1, false));
    all.push(conv(F16, 8, 256, 56, 64, 1, 1, 1, false));
    all.push(conv(F16, 8, 144, 56, 144, 3, 1, 144, false));
    all.push(attention(F16, 8, 12, 128, 64, true));
    all.push(gemm(F16, &[], 4096, 768, 3072, false, Activation::Gelu));
    all
}

/// A plan of the step alone: its tensors are inputs and an output, each as large as what it may touch.
fn plan_of(case: &Case) -> (Plan, Vec<Vec<f32>>) {
    let port = |tensor: &Tensor| Port {
        name: String::new(),
        dtype: tensor.dtype,
        dims: vec![tensor.span().end / tensor.element_bytes()],
    };
    let mut reads: Vec<&Tensor> = case.step.reads();
    reads.sort_by_key(|tensor| tensor.place);
    let inputs: Vec<Port> = reads.iter().map(|tensor| port(tensor)).collect();
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 40) as f32 / (1 << 24) as f32) - 0.5
    };
    let values = inputs
        .iter()
        .map(|port| {
            (0..port.dims[0])
                .map(|_| next())
                .map(|x| if port.dtype == DataType::Fp16 { f16::from_f32(x).to_f32() } else { x })
                .collect()
        })
        .collect();
    let plan = Plan {
        precision: case.precision,
        inputs,
        outputs: case.step.writes().iter().map(|tensor| port(tensor)).collect(),
        steps: vec![case.step.clone()],
        names: vec![case.what.clone()],
        weights: Weights::default(),
        constants: Vec::new(),
        workspace_bytes: 0,
    };
    (plan, values)
}

fn encode(dtype: DataType, values: &[f32]) -> Vec<u8> {
    match dtype {
        DataType::Fp16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

fn decode(dtype: DataType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        DataType::Fp16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        _ => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
    }
}

/// Reads an element of a tensor of four dimensions (or fewer, with leading zeros left out).
fn at(tensor: &Tensor, inputs: &[Vec<f32>], index: &[usize]) -> f64 {
    let Place::Input(which) = tensor.place else { unreachable!("cases read inputs alone") };
    f64::from(inputs[which][place(tensor, index)])
}

fn place(tensor: &Tensor, index: &[usize]) -> usize {
    index.iter().zip(&tensor.strides).map(|(i, stride)| *i as isize * stride).sum::<isize>() as usize
}

fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Relu => x.max(0.0),
        Activation::Clip { low, high } => x.clamp(f64::from(low), f64::from(high)),
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => {
            // erf after Abramowitz and Stegun 7.1.26, exact to 1.5e-7.
            let z = x.abs() / std::f64::consts::SQRT_2;
            let t = 1.0 / (1.0 + 0.3275911 * z);
            let poly =
                t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
            let erf = (1.0 - poly * (-z * z).exp()).copysign(x);
            0.5 * x * (1.0 + erf)
        }
        Activation::None => x,
        other => unreachable!("no case of {other:?}"),
    }
}

/// Calls back for indices of those dimensions: for all of them, or spread over them where all would take long.
fn each(dims: &[usize], work: usize, mut body: impl FnMut(&[usize])) {
    let mut index = vec![0; dims.len()];
    let every = (dims.iter().product::<usize>() * work / 4_000_000).max(1) | 1;
    for number in 0..dims.iter().product() {
        if number % every == 0 {
            body(&index);
        }
        for axis in (0..dims.len()).rev() {
            index[axis] += 1;
            if index[axis] < dims[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
}

/// The output by plain loops; NaN where it wasn't computed.
fn reference(step: &Step, inputs: &[Vec<f32>]) -> Vec<f64> {
    let written = step.writes()[0];
    let mut out = vec![f64::NAN; written.span().end / written.element_bytes()];
    match step {
        Step::Conv(conv) => each(&conv.output.dims, conv.weight.elements() / conv.weight.dims[0], |index| {
            let (n, o, y, x) = (index[0], index[1], index[2], index[3]);
            let per = conv.weight.dims[1];
            let from = o / (conv.output.dims[1] / conv.groups) * per;
            let mut sum = conv.bias.as_ref().map_or(0.0, |bias| at(bias, inputs, &[o]));
            for i in 0..conv.weight.dims[2] {
                for j in 0..conv.weight.dims[3] {
                    let (a, b) = (y * conv.window.strides[0] + i, x * conv.window.strides[1] + j);
                    let (Some(a), Some(b)) =
                        (a.checked_sub(conv.window.pads_before[0]), b.checked_sub(conv.window.pads_before[1]))
                    else {
                        continue;
                    };
                    if a >= conv.input.dims[2] || b >= conv.input.dims[3] {
                        continue;
                    }
                    for c in 0..per {
                        sum += at(&conv.input, inputs, &[n, from + c, a, b]) * at(&conv.weight, inputs, &[o, c, i, j]);
                    }
                }
            }
            sum += conv.residual.as_ref().map_or(0.0, |residual| at(residual, inputs, index));
            out[place(&conv.output, index)] = activate(conv.activation, sum);
        }),
        Step::Gemm(gemm) => each(&gemm.output.dims, gemm.a.dims[gemm.a.dims.len() - 1], |index| {
            let (batch, last) = index.split_at(index.len() - 2);
            let k = *gemm.a.dims.last().expect("two dimensions");
            let sum: f64 = (0..k)
                .map(|k| {
                    at(&gemm.a, inputs, &[batch, &[last[0], k]].concat())
                        * at(&gemm.b, inputs, &[batch, &[k, last[1]]].concat())
                })
                .sum();
            let bias = gemm.bias.as_ref().map_or(0.0, |bias| at(bias, inputs, &[last[1]]));
            out[place(&gemm.output, index)] = activate(gemm.activation, sum * f64::from(gemm.alpha) + bias);
        }),
        Step::Attention(attention) => each(&attention.query.dims[..3], attention.key.dims[2] * 128, |row| {
            let scores: Vec<f64> = (0..attention.key.dims[2])
                .map(|j| {
                    let dot: f64 = (0..attention.query.dims[3])
                        .map(|d| {
                            at(&attention.query, inputs, &[row[0], row[1], row[2], d])
                                * at(&attention.key, inputs, &[row[0], row[1], j, d])
                        })
                        .sum();
                    let mask =
                        attention.mask.as_ref().map_or(0.0, |mask| at(mask, inputs, &[row[0], row[1], row[2], j]));
                    (dot * f64::from(attention.scale) + mask).exp()
                })
                .collect();
            let sum: f64 = scores.iter().sum();
            for d in 0..attention.value.dims[3] {
                let value: f64 = scores
                    .iter()
                    .enumerate()
                    .map(|(j, score)| score * at(&attention.value, inputs, &[row[0], row[1], j, d]))
                    .sum();
                out[place(&attention.output, &[row[0], row[1], row[2], d])] = value / sum;
            }
        }),
        Step::Pool(pool) => each(&pool.output.dims, 9, |index| {
            let mut most = f64::NEG_INFINITY;
            for i in 0..3 {
                for j in 0..3 {
                    let (a, b) = ((index[2] * 2 + i).wrapping_sub(1), (index[3] * 2 + j).wrapping_sub(1));
                    if a < pool.input.dims[2] && b < pool.input.dims[3] {
                        most = most.max(at(&pool.input, inputs, &[index[0], index[1], a, b]));
                    }
                }
            }
            out[place(&pool.output, index)] = most;
        }),
        _ => unreachable!("no case of it"),
    }
    out
}
