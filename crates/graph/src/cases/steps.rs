//! Steps to try kernels on, each in a plan of its own, and numbers for them.

use crate::Plan;
use crate::array::{Array, is_float};
use crate::plan::{
    Activation, Attention, Conv, Gemm, Pool, PoolKind, Port, Precision, Step, Tensor, TensorPlace, Window,
    channels_last, row_major,
};
use crate::weights::PlanWeights;
use base::DataType;

/// Bytes before and behind outputs.
const ROOM: usize = 256;
/// The name of an input that is a mask.
const MASK: &str = "mask";

/// A step whose tensors are inputs and one output of a plan of its own.
pub struct StepCase {
    /// For people.
    pub what: String,
    /// What it is computed in.
    pub precision: Precision,
    /// The step.
    pub step: Step,
}

/// How far a right kernel may be off, over the largest number.
pub fn tolerance(precision: Precision) -> f64 {
    match precision {
        Precision::F16 => 4e-3,
        Precision::Tf32 => 2e-3,
        Precision::F32 => 1e-5,
    }
}

/// Numbers between -0.5 and 0.5; for integers, few and small ones.
pub fn random_input(port: &Port, mut next: impl FnMut() -> f32) -> Vec<u8> {
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

fn tensor(dtype: DataType, dims: &[usize], strides: Vec<isize>, place: TensorPlace) -> Tensor {
    Tensor { dtype, dims: dims.to_vec(), strides, place, offset: 0 }
}

fn of(precision: Precision) -> DataType {
    if precision == Precision::F16 { DataType::Fp16 } else { DataType::Fp32 }
}

/// A convolution of square images, padded to keep their size, with a bias and an activation.
#[allow(clippy::too_many_arguments, reason = "a table of shapes")]
pub fn conv(
    precision: Precision,
    batch: usize,
    channels: usize,
    size: usize,
    out: usize,
    kernel: usize,
    stride: usize,
    groups: usize,
    residual: bool,
) -> StepCase {
    let kind = of(precision);
    let pad = kernel / 2;
    let out_size = (size + 2 * pad - kernel) / stride + 1;
    let (dims, out_dims, weight) =
        ([batch, channels, size, size], [batch, out, out_size, out_size], [out, channels / groups, kernel, kernel]);
    let step = Conv {
        input: tensor(kind, &dims, channels_last(&dims), TensorPlace::Input(0)),
        weight: tensor(kind, &weight, channels_last(&weight), TensorPlace::Input(1)),
        bias: Some(tensor(kind, &[out], vec![1], TensorPlace::Input(2))),
        residual: residual.then(|| tensor(kind, &out_dims, channels_last(&out_dims), TensorPlace::Input(3))),
        output: tensor(kind, &out_dims, channels_last(&out_dims), TensorPlace::Output(0)),
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
    StepCase { what, precision, step: Step::Conv(step) }
}

/// The same convolution of an image of even size, padded as TensorFlow does it: none above and to the left, one below
/// and to the right.
pub fn padded_behind(case: StepCase) -> StepCase {
    let Step::Conv(conv) = case.step else { unreachable!("of a convolution") };
    let window = Window { pads_before: [0; 2], pads_after: [1; 2], ..conv.window };
    let out = |axis: usize| (conv.input.dims[axis] + 1 - window.kernel[axis - 2]) / window.strides[axis - 2] + 1;
    assert_eq!(conv.output.dims[2..], [out(2), out(3)], "the size stays the same");
    let what = format!("{} padded behind", case.what);
    StepCase { what, precision: case.precision, step: Step::Conv(Conv { window, ..conv }) }
}

/// The same into a part of wider pixels, as in a concatenation.
pub fn interleaved(case: StepCase) -> StepCase {
    let Step::Conv(mut conv) = case.step else { unreachable!("of a convolution") };
    let [_, channels, height, width] = conv.output.dims[..] else { unreachable!("four dimensions") };
    let wide = channels_last(&[1, channels + 32, height, width]);
    conv.output.strides = vec![wide[0], 1, wide[2], wide[3]];
    StepCase { what: format!("{} into wider pixels", case.what), precision: case.precision, step: Step::Conv(conv) }
}

/// The same with another activation.
pub fn activated(case: StepCase, activation: Activation) -> StepCase {
    let Step::Conv(conv) = case.step else { unreachable!("of a convolution") };
    let what = format!("{} {activation:?}", case.what);
    StepCase { what, precision: case.precision, step: Step::Conv(Conv { activation, ..conv }) }
}

/// Products of matrices, with a bias where there is one of them; the right factor may be turned.
pub fn gemm(
    precision: Precision,
    batch: &[usize],
    m: usize,
    k: usize,
    n: usize,
    turned: bool,
    activation: Activation,
) -> StepCase {
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
        a: tensor(kind, &with(m, k), row_major(&with(m, k)), TensorPlace::Input(0)),
        b: tensor(kind, &b, b_strides, TensorPlace::Input(1)),
        bias: batch.is_empty().then(|| tensor(kind, &[n], vec![1], TensorPlace::Input(2))),
        residual: None,
        output: tensor(kind, &with(m, n), row_major(&with(m, n)), TensorPlace::Output(0)),
        alpha: 0.5,
        activation,
    };
    StepCase {
        what: format!("gemm {precision:?} {batch:?} {m}x{k}x{n} turned {turned} {activation:?}"),
        precision,
        step: Step::Gemm(step),
    }
}

/// Attention, perhaps with a mask.
pub fn attention(
    precision: Precision,
    batch: usize,
    heads: usize,
    length: usize,
    width: usize,
    masked: bool,
) -> StepCase {
    let kind = of(precision);
    let dims = [batch, heads, length, width];
    // Heads lie next to one another, as a projection leaves them.
    let interleaved = vec![(length * heads * width) as isize, width as isize, (heads * width) as isize, 1];
    let at = |place| tensor(kind, &dims, interleaved.clone(), place);
    let step = Attention {
        query: at(TensorPlace::Input(0)),
        key: at(TensorPlace::Input(1)),
        value: at(TensorPlace::Input(2)),
        mask: masked.then(|| {
            tensor(
                DataType::Fp32,
                &[batch, heads, length, length],
                vec![length as isize, 0, 0, 1],
                TensorPlace::Input(3),
            )
        }),
        output: at(TensorPlace::Output(0)),
        scale: 1.0 / (width as f32).sqrt(),
    };
    StepCase {
        what: format!("attention {precision:?} {batch}x{heads}x{length}x{width} masked {masked}"),
        precision,
        step: Step::Attention(step),
    }
}

/// A pool over the largest of three by three.
pub fn pool(precision: Precision) -> StepCase {
    let (kind, dims, out) = (of(precision), [2, 64, 17, 17], [2, 64, 9, 9]);
    let step = Pool {
        input: tensor(kind, &dims, channels_last(&dims), TensorPlace::Input(0)),
        output: tensor(kind, &out, channels_last(&out), TensorPlace::Output(0)),
        kind: PoolKind::Max,
        window: Window { kernel: [3; 2], strides: [2; 2], dilations: [1; 2], pads_before: [1; 2], pads_after: [1; 2] },
    };
    StepCase { what: format!("pool {precision:?}"), precision, step: Step::Pool(step) }
}

/// A plan of the step alone: its tensors are inputs and an output, each as large as what it may touch, the output with
/// room before and behind it, where it may not write.
pub fn plan_of(case: &StepCase) -> Plan {
    let port = |tensor: &Tensor, more: usize| Port {
        name: String::new(),
        dtype: tensor.dtype,
        dims: vec![(tensor.span().end + more) / tensor.element_bytes()],
    };
    let mut step = case.step.clone();
    for tensor in step.tensors_mut() {
        tensor.offset += if matches!(tensor.place, TensorPlace::Output(_)) { ROOM } else { 0 };
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
        exact_products: 0,
        inputs,
        outputs: step.writes().iter().map(|tensor| port(tensor, ROOM)).collect(),
        steps: vec![step.clone()],
        names: vec![case.what.clone()],
        weights: PlanWeights::default(),
        constants: Vec::new(),
        workspace_bytes: 0,
    }
}
