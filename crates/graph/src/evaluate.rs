//! What each kind of node computes, in plain loops over row-major arrays: for constants that are folded, and for the
//! reference executor. Floats are 32 bits, sums of products too.

use crate::array::{Array, Data, Positions, is_float};
use crate::expression::{Binary, Expression, Instruction, Unary, ValueKind};
use crate::ir::{Op, broadcast_strides};
use crate::plan::{
    Activation, Coordinates, PoolKind, ReduceKind, ResizeKind, Rounding, ScatterKind, Window, row_major,
};
use base::DataType;
use std::borrow::Cow;

/// The type and dimensions of a result.
pub(crate) type Shape<'a> = (DataType, &'a [usize]);

/// Computes a node. `results` says what its outputs are.
pub(crate) fn evaluate(op: &Op, inputs: &[&Array], results: &[Shape<'_>]) -> Vec<Array> {
    let (dtype, dims) = results[0];
    let floats = |data: Vec<f32>| vec![Array::new(dtype, dims, Data::Float(data))];
    match op {
        Op::Conv { window, groups, bias, residual, activation } => {
            let mut rest = inputs[2..].iter();
            let bias = bias.then(|| rest.next().expect("a bias").to_floats());
            let residual = residual.then(|| rest.next().expect("a residual").to_floats());
            let mut data = conv(inputs[0], inputs[1], window, *groups, dims);
            finish(&mut data, bias.as_deref(), dims[1], dims[2..].iter().product(), residual.as_deref(), *activation);
            floats(data)
        }
        Op::Gemm { alpha, bias, residual, activation } => {
            let mut rest = inputs[2..].iter();
            let bias = bias.then(|| rest.next().expect("a bias").to_floats());
            let residual = residual.then(|| rest.next().expect("a residual").to_floats());
            let mut data = gemm(inputs[0], inputs[1], *alpha, dims);
            finish(&mut data, bias.as_deref(), *dims.last().expect("columns"), 1, residual.as_deref(), *activation);
            numbers(dtype, dims, data)
        }
        Op::Attention { scale, mask } => floats(attention(inputs, *scale, *mask, dims)),
        Op::Pool { kind, window } => numbers(dtype, dims, pool(inputs[0], *kind, window, dims)),
        Op::Reduce { kind, axes } => vec![reduce(inputs[0], *kind, axes, dtype, dims)],
        Op::Softmax { axis, log } => floats(softmax(inputs[0], *axis, *log)),
        Op::LayerNorm { axis, epsilon, root_mean_square, scale, shift } => {
            let mut rest = inputs[1..].iter();
            let scale = scale.then(|| broadcast_to(rest.next().expect("a scale"), dims));
            let shift = shift.then(|| broadcast_to(rest.next().expect("a shift"), dims));
            floats(layer_norm(inputs[0], *axis, *epsilon, *root_mean_square, scale.as_deref(), shift.as_deref()))
        }
        Op::Lrn { size, alpha, beta, bias } => floats(lrn(inputs[0], *size, *alpha, *beta, *bias)),
        Op::Elementwise(expression) => vec![elementwise(expression, inputs, dtype, dims)],
        Op::Gather { axis, elements } => vec![gather(inputs[0], inputs[1], *axis, *elements, dims)],
        Op::Resize { kind, coordinates, scales } => {
            numbers(dtype, dims, resize(inputs[0], *kind, *coordinates, *scales, dims))
        }
        Op::TopK { axis, largest } => top_k(inputs[0], *axis, *largest, results),
        Op::Scatter { axis, kind } => vec![scatter(inputs[0], inputs[1], inputs[2], *axis, *kind)],
        Op::IntegerConv { window, groups, zero } => {
            let zero = zero.then(|| inputs[2].to_ints()[0]).unwrap_or(0);
            let data = integer_conv(inputs[0], inputs[1], zero, window, *groups, dims);
            vec![Array::new(dtype, dims, Data::Int(data))]
        }
        Op::Transpose(order) => {
            let strides = row_major(&inputs[0].dims);
            vec![inputs[0].view(dims, &order.iter().map(|&axis| strides[axis]).collect::<Vec<_>>(), 0)]
        }
        Op::Reshape => vec![inputs[0].reshaped(dims)],
        Op::Slice { starts, steps } => {
            let strides = row_major(&inputs[0].dims);
            let offset = starts.iter().zip(&strides).map(|(&start, &stride)| start * stride as usize).sum();
            let strides: Vec<_> = strides.iter().zip(steps).map(|(stride, step)| stride * step).collect();
            vec![inputs[0].view(dims, &strides, offset)]
        }
        Op::Expand => vec![broadcast_to(inputs[0], dims).into_owned()],
        Op::Concat { axis } => vec![concat(inputs, *axis, dtype, dims)],
        Op::Pad { before, value } => vec![pad(inputs[0], before, *value, dims)],
    }
}

/// Floats, or their nearest integers where that is what is asked for.
fn numbers(dtype: DataType, dims: &[usize], data: Vec<f32>) -> Vec<Array> {
    let data = if is_float(dtype) {
        Data::Float(data)
    } else {
        Data::Int(data.into_iter().map(|value| value as i64).collect())
    };
    vec![Array::new(dtype, dims, data)]
}

fn broadcast_to<'a>(array: &'a Array, dims: &[usize]) -> Cow<'a, Array> {
    if array.dims == dims {
        return Cow::Borrowed(array);
    }
    Cow::Owned(array.view(dims, &broadcast_strides(&array.dims, &row_major(&array.dims), dims), 0))
}

/// What comes behind a product: bias, residual, activation.
fn finish(
    data: &mut [f32],
    bias: Option<&[f32]>,
    channels: usize,
    each: usize,
    residual: Option<&[f32]>,
    activation: Activation,
) {
    for (index, value) in data.iter_mut().enumerate() {
        let bias = bias.map_or(0.0, |bias| bias[index / each % channels]);
        let residual = residual.map_or(0.0, |residual| residual[index]);
        *value = activation.apply(*value + bias + residual);
    }
}

impl Activation {
    /// Its value at `x`.
    pub fn apply(self, x: f32) -> f32 {
        let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
        match self {
            Self::None => x,
            Self::Relu => x.max(0.0),
            Self::Clip { low, high } => x.max(low).min(high),
            Self::LeakyRelu { slope } => {
                if x < 0.0 {
                    slope * x
                } else {
                    x
                }
            }
            Self::Sigmoid => sigmoid(x),
            Self::Silu => x * sigmoid(x),
            Self::HardSigmoid { alpha, beta } => (alpha * x + beta).clamp(0.0, 1.0),
            Self::HardSwish => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
            Self::Tanh => x.tanh(),
            Self::Gelu => 0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2)),
            Self::GeluTanh => {
                let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
            Self::Mish => x * x.exp().ln_1p().tanh(),
        }
    }
}

/// For each position of the output: the range of the kernel that lies within the input.
fn inside(at: usize, axis: usize, window: &Window, size: usize) -> impl Iterator<Item = (usize, usize)> {
    let start = at * window.strides[axis];
    let (dilation, before) = (window.dilations[axis], window.pads_before[axis]);
    let taps = (0..window.kernel[axis]).map(move |tap| (tap, start + tap * dilation));
    taps.filter_map(move |(tap, at)| Some((tap, at.checked_sub(before)?))).filter(move |&(_, at)| at < size)
}

fn conv(input: &Array, weight: &Array, window: &Window, groups: usize, dims: &[usize]) -> Vec<f32> {
    let (x, w) = (input.to_floats(), weight.to_floats());
    let [batch, channels, rows, columns] = *dims else { panic!("an image") };
    let (height, width) = (input.dims[2], input.dims[3]);
    let per_group = weight.dims[1];
    let taps = window.kernel[0] * window.kernel[1];
    let mut out = vec![0.0; batch * channels * rows * columns];
    let plane = rows * columns;
    for n in 0..batch {
        for o in 0..channels {
            let to = &mut out[(n * channels + o) * plane..][..plane];
            let first = o / (channels / groups) * per_group;
            for c in 0..per_group {
                let from = &x[(n * input.dims[1] + first + c) * height * width..][..height * width];
                let kernel = &w[(o * per_group + c) * taps..][..taps];
                for row in 0..rows {
                    for (ky, y) in inside(row, 0, window, height) {
                        let (from, to) = (&from[y * width..][..width], &mut to[row * columns..][..columns]);
                        for kx in 0..window.kernel[1] {
                            let factor = kernel[ky * window.kernel[1] + kx];
                            add_row(
                                to,
                                from,
                                factor,
                                kx * window.dilations[1],
                                window.pads_before[1],
                                window.strides[1],
                            );
                        }
                    }
                }
            }
        }
    }
    out
}

fn integer_conv(input: &Array, weight: &Array, zero: i64, window: &Window, groups: usize, dims: &[usize]) -> Vec<i64> {
    let (x, w) = (input.to_ints(), weight.to_ints());
    let [batch, channels, rows, columns] = *dims else { panic!("an image") };
    let (height, width) = (input.dims[2], input.dims[3]);
    let per_group = weight.dims[1];
    let mut out = Vec::with_capacity(batch * channels * rows * columns);
    for at in Positions::new(dims, &row_major(dims), 0) {
        let (n, o) = (at / (channels * rows * columns), at / (rows * columns) % channels);
        let (row, column) = (at / columns % rows, at % columns);
        let first = o / (channels / groups) * per_group;
        let mut sum = 0i64;
        for c in 0..per_group {
            let from = &x[(n * input.dims[1] + first + c) * height * width..][..height * width];
            let kernel = &w[(o * per_group + c) * window.kernel[0] * window.kernel[1]..];
            for (ky, y) in inside(row, 0, window, height) {
                for (kx, x) in inside(column, 1, window, width) {
                    sum += (from[y * width + x] - zero) * kernel[ky * window.kernel[1] + kx];
                }
            }
        }
        out.push(wrap(sum, 32, true));
    }
    out
}

/// `to[i] += factor * from[i * stride + shift - before]` where that is inside.
fn add_row(to: &mut [f32], from: &[f32], factor: f32, shift: usize, before: usize, stride: usize) {
    let first = before.saturating_sub(shift).div_ceil(stride);
    let Some(last) = (from.len() + before).checked_sub(shift + 1) else { return };
    let end = (last / stride + 1).min(to.len());
    if first >= end {
        return;
    }
    let begin = first * stride + shift - before;
    if stride == 1 {
        to[first..end].iter_mut().zip(&from[begin..]).for_each(|(to, from)| *to += factor * from);
    } else {
        to[first..end].iter_mut().zip(from[begin..].iter().step_by(stride)).for_each(|(to, from)| *to += factor * from);
    }
}

fn gemm(a: &Array, b: &Array, alpha: f32, dims: &[usize]) -> Vec<f32> {
    let (m, n) = (dims[dims.len() - 2], dims[dims.len() - 1]);
    let k = *a.dims.last().expect("a matrix");
    let batch = &dims[..dims.len() - 2];
    let offsets = |array: &Array| {
        let lead = array.dims.len() - 2;
        let strides = broadcast_strides(&array.dims[..lead], &row_major(&array.dims)[..lead], batch);
        Positions::new(batch, &strides, 0)
    };
    let (x, y) = (a.to_floats(), b.to_floats());
    let mut out = vec![0.0; batch.iter().product::<usize>() * m * n];
    for ((to, from_a), from_b) in out.chunks_mut((m * n).max(1)).zip(offsets(a)).zip(offsets(b)) {
        product(&x[from_a..][..m * k], &y[from_b..][..k * n], to, k, n);
    }
    out.iter_mut().for_each(|value| *value *= alpha);
    out
}

fn product(a: &[f32], b: &[f32], to: &mut [f32], k: usize, n: usize) {
    if k == 0 || n == 0 {
        return;
    }
    for (to, a) in to.chunks_mut(n).zip(a.chunks(k)) {
        for (&factor, b) in a.iter().zip(b.chunks(n)) {
            to.iter_mut().zip(b).for_each(|(to, b)| *to += factor * b);
        }
    }
}

fn attention(inputs: &[&Array], scale: f32, mask: bool, dims: &[usize]) -> Vec<f32> {
    let [query, key, value] = [inputs[0], inputs[1], inputs[2]];
    let (length, other) = (query.dims[2], key.dims[2]);
    let scores = [dims[0], dims[1], length, other];
    let turned = [key.dims[0], key.dims[1], key.dims[3], key.dims[2]];
    let strides = row_major(&key.dims);
    let turned = key.view(&turned, &[strides[0], strides[1], strides[3], strides[2]], 0);
    let mut product = gemm(query, &turned, scale, &scores);
    if mask {
        let mask = broadcast_to(inputs[3], &scores);
        product.iter_mut().zip(mask.to_floats().iter()).for_each(|(score, mask)| *score += mask);
    }
    let mut weights = softmax(&Array::floats(&scores, product), 3, false);
    // Where everything is masked there is nothing to look at.
    weights.iter_mut().filter(|weight| weight.is_nan()).for_each(|weight| *weight = 0.0);
    gemm(&Array::floats(&scores, weights), value, 1.0, dims)
}

fn pool(input: &Array, kind: PoolKind, window: &Window, dims: &[usize]) -> Vec<f32> {
    let x = input.to_floats();
    let [batch, channels, rows, columns] = *dims else { panic!("an image") };
    let (height, width) = (input.dims[2], input.dims[3]);
    let mut out = Vec::with_capacity(batch * channels * rows * columns);
    for plane in x.chunks(height * width) {
        for row in 0..rows {
            for column in 0..columns {
                let taps = inside(row, 0, window, height)
                    .flat_map(|(_, y)| inside(column, 1, window, width).map(move |(_, x)| (y, x)));
                let values = taps.map(|(y, x)| plane[y * width + x]);
                out.push(match kind {
                    PoolKind::Max => values.fold(f32::NEG_INFINITY, f32::max),
                    PoolKind::Average { count_include_pad } => {
                        let (count, sum) = values.fold((0, 0.0), |(count, sum), value| (count + 1, sum + value));
                        sum / if count_include_pad {
                            padded(row, 0, window, height) * padded(column, 1, window, width)
                        } else {
                            count
                        } as f32
                    }
                });
            }
        }
    }
    out
}

/// How many positions of a window lie within input and padding.
fn padded(at: usize, axis: usize, window: &Window, size: usize) -> usize {
    let end = size + window.pads_before[axis] + window.pads_after[axis];
    let start = at * window.strides[axis];
    (0..window.kernel[axis]).filter(|tap| start + tap * window.dilations[axis] < end).count()
}

fn reduce(input: &Array, kind: ReduceKind, axes: &[usize], dtype: DataType, dims: &[usize]) -> Array {
    // Outputs in their order; for each, the walk over what is reduced.
    let strides = row_major(&input.dims);
    let outer = Positions::new(dims, &strides, 0);
    let inner_dims: Vec<_> = axes.iter().map(|&axis| input.dims[axis]).collect();
    let inner_strides: Vec<_> = axes.iter().map(|&axis| strides[axis]).collect();
    let walk = |start| Positions::new(&inner_dims, &inner_strides, start);
    let count = inner_dims.iter().product::<usize>();
    let position = |greater: &dyn Fn(usize, usize) -> bool, last: bool| {
        let best = |start: usize| {
            let better = |best: (usize, usize), next: (usize, usize)| {
                let wins = greater(next.1, best.1) || (last && !greater(best.1, next.1));
                if wins { next } else { best }
            };
            walk(start).enumerate().reduce(better).map_or(0, |(index, _)| index as i64)
        };
        Array::new(dtype, dims, Data::Int(Positions::new(dims, &strides, 0).map(best).collect()))
    };
    match (&input.data, kind) {
        (Data::Float(x), ReduceKind::ArgMax { last }) => position(&|a, b| x[a] > x[b], last),
        (Data::Float(x), ReduceKind::ArgMin { last }) => position(&|a, b| x[a] < x[b], last),
        (Data::Int(x), ReduceKind::ArgMax { last }) => position(&|a, b| x[a] > x[b], last),
        (Data::Int(x), ReduceKind::ArgMin { last }) => position(&|a, b| x[a] < x[b], last),
        (Data::Float(x), kind) => {
            let one = |start: usize| {
                let values = walk(start).map(|at| x[at]);
                match kind {
                    ReduceKind::Sum => values.sum(),
                    ReduceKind::Mean => values.sum::<f32>() / count as f32,
                    ReduceKind::Max => values.fold(f32::NEG_INFINITY, f32::max),
                    ReduceKind::Min => values.fold(f32::INFINITY, f32::min),
                    ReduceKind::Product => values.product(),
                    ReduceKind::SumOfSquares => values.map(|value| value * value).sum(),
                    ReduceKind::Norm => values.map(|value| value * value).sum::<f32>().sqrt(),
                    ReduceKind::SumOfAbsolutes => values.map(f32::abs).sum(),
                    ReduceKind::ArgMax { .. } | ReduceKind::ArgMin { .. } => unreachable!("above"),
                }
            };
            Array::new(dtype, dims, Data::Float(outer.map(one).collect()))
        }
        (Data::Int(x), kind) => {
            let one = |start: usize| {
                let values = walk(start).map(|at| x[at]);
                match kind {
                    ReduceKind::Sum => values.sum(),
                    ReduceKind::Mean => values.sum::<i64>() / count.max(1) as i64,
                    ReduceKind::Max => values.max().unwrap_or(i64::MIN),
                    ReduceKind::Min => values.min().unwrap_or(i64::MAX),
                    ReduceKind::Product => values.product(),
                    ReduceKind::SumOfSquares => values.map(|value| value * value).sum(),
                    ReduceKind::Norm => (values.map(|value| value * value).sum::<i64>() as f32).sqrt() as i64,
                    ReduceKind::SumOfAbsolutes => values.map(i64::abs).sum(),
                    ReduceKind::ArgMax { .. } | ReduceKind::ArgMin { .. } => unreachable!("above"),
                }
            };
            Array::new(dtype, dims, Data::Int(outer.map(one).collect()))
        }
    }
}

/// Calls `f` with the positions of each line along a dimension.
fn lines(dims: &[usize], axis: usize, mut f: impl FnMut(&[usize])) {
    let strides = row_major(dims);
    let mut outer = dims.to_vec();
    outer[axis] = 1;
    let mut line = vec![0; dims[axis]];
    for start in Positions::new(&outer, &strides, 0) {
        line.iter_mut().enumerate().for_each(|(index, at)| *at = start + index * strides[axis] as usize);
        f(&line);
    }
}

fn softmax(input: &Array, axis: usize, log: bool) -> Vec<f32> {
    let x = input.to_floats();
    let mut out = vec![0.0; x.len()];
    lines(&input.dims, axis, |line| {
        let most = line.iter().map(|&at| x[at]).fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = line.iter().map(|&at| (x[at] - most).exp()).sum();
        for &at in line {
            out[at] = if log { x[at] - most - sum.ln() } else { (x[at] - most).exp() / sum };
        }
    });
    out
}

fn layer_norm(
    input: &Array,
    axis: usize,
    epsilon: f32,
    root_mean_square: bool,
    scale: Option<&Array>,
    shift: Option<&Array>,
) -> Vec<f32> {
    let x = input.to_floats();
    let (scale, shift) = (scale.map(Array::to_floats), shift.map(Array::to_floats));
    let size = input.dims[axis..].iter().product::<usize>().max(1);
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks(size) {
        let mean = if root_mean_square { 0.0 } else { row.iter().sum::<f32>() / size as f32 };
        let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / size as f32;
        let factor = 1.0 / (variance + epsilon).sqrt();
        for x in row {
            let at = out.len();
            let scaled = (x - mean) * factor * scale.as_ref().map_or(1.0, |scale| scale[at]);
            out.push(scaled + shift.as_ref().map_or(0.0, |shift| shift[at]));
        }
    }
    out
}

fn lrn(input: &Array, size: usize, alpha: f32, beta: f32, bias: f32) -> Vec<f32> {
    let x = input.to_floats();
    let mut out = vec![0.0; x.len()];
    lines(&input.dims, 1, |line| {
        for (channel, &at) in line.iter().enumerate() {
            let from = channel.saturating_sub((size - 1) / 2);
            let to = (channel + size / 2 + 1).min(line.len());
            let sum: f32 = line[from..to].iter().map(|&at| x[at] * x[at]).sum();
            out[at] = x[at] / (bias + alpha / size as f32 * sum).powf(beta);
        }
    });
    out
}

fn gather(data: &Array, indices: &Array, axis: usize, elements: bool, dims: &[usize]) -> Array {
    let size = data.dims[axis] as i64;
    let clamp = |index: i64| (if index < 0 { index + size } else { index }).clamp(0, (size - 1).max(0)) as usize;
    let indices: Vec<_> = indices.to_ints().iter().map(|&index| clamp(index)).collect();
    let strides = row_major(&data.dims);
    let positions: Vec<usize> = if elements {
        let mut others = strides.clone();
        others[axis] = 0;
        Positions::new(dims, &others, 0).zip(&indices).map(|(at, index)| at + index * strides[axis] as usize).collect()
    } else {
        let inner = data.dims[axis + 1..].iter().product::<usize>();
        let outer = data.dims[..axis].iter().product::<usize>();
        let row = |outer: usize, index: usize| (outer * data.dims[axis] + index) * inner;
        let each = |outer: usize| indices.iter().flat_map(move |&index| row(outer, index)..row(outer, index) + inner);
        (0..outer).flat_map(each).collect()
    };
    let data_of = match &data.data {
        Data::Float(x) => Data::Float(positions.into_iter().map(|at| x[at]).collect()),
        Data::Int(x) => Data::Int(positions.into_iter().map(|at| x[at]).collect()),
    };
    Array::new(data.dtype, dims, data_of)
}

fn scatter(data: &Array, indices: &Array, updates: &Array, axis: usize, kind: ScatterKind) -> Array {
    let (size, strides) = (data.dims[axis] as i64, row_major(&data.dims));
    let mut others = strides.clone();
    others[axis] = 0;
    let function = match kind {
        ScatterKind::Replace => None,
        ScatterKind::Add => Some(Binary::Add),
        ScatterKind::Multiply => Some(Binary::Multiply),
        ScatterKind::Maximum => Some(Binary::Maximum),
        ScatterKind::Minimum => Some(Binary::Minimum),
    };
    let mut result = data.clone();
    let to = Positions::new(&indices.dims, &others, 0);
    for (from, (at, &index)) in to.zip(indices.to_ints().iter()).enumerate() {
        let index = if index < 0 { index + size } else { index };
        if !(0..size).contains(&index) {
            continue;
        }
        let to = at + index as usize * strides[axis] as usize;
        match (&mut result.data, &updates.data) {
            (Data::Float(all), Data::Float(new)) => {
                all[to] = match function.map(|function| binary_float(function, all[to], new[from])) {
                    Some(Scalar::Float(value)) => value,
                    _ => new[from],
                };
            }
            (Data::Int(all), Data::Int(new)) => {
                all[to] = function.map_or(new[from], |function| binary_int(function, all[to], new[from]));
            }
            _ => panic!("elements of one kind"),
        }
    }
    result
}

fn concat(inputs: &[&Array], axis: usize, dtype: DataType, dims: &[usize]) -> Array {
    let mut out = Array::filled(dtype, dims, 0.0);
    let strides = row_major(dims);
    let mut start = 0;
    for input in inputs {
        let positions = Positions::new(&input.dims, &strides, start * strides[axis] as usize);
        start += input.dims[axis];
        write(&mut out, input, positions);
    }
    out
}

fn pad(input: &Array, before: &[usize], value: f32, dims: &[usize]) -> Array {
    let mut out = Array::filled(input.dtype, dims, f64::from(value));
    let strides = row_major(dims);
    let start = before.iter().zip(&strides).map(|(&before, &stride)| before * stride as usize).sum();
    write(&mut out, input, Positions::new(&input.dims, &strides, start));
    out
}

fn write(out: &mut Array, input: &Array, positions: Positions) {
    match (&mut out.data, &input.data) {
        (Data::Float(to), Data::Float(from)) => positions.zip(from).for_each(|(at, &value)| to[at] = value),
        (Data::Int(to), Data::Int(from)) => positions.zip(from).for_each(|(at, &value)| to[at] = value),
        _ => panic!("elements of one kind"),
    }
}

/// Where a pixel of the output lies in the input.
fn source(at: usize, scale: f32, from: usize, to: usize, coordinates: Coordinates) -> f32 {
    let x = at as f32;
    match coordinates {
        Coordinates::HalfPixel => (x + 0.5) / scale - 0.5,
        Coordinates::PytorchHalfPixel => {
            if to > 1 {
                (x + 0.5) / scale - 0.5
            } else {
                0.0
            }
        }
        Coordinates::Asymmetric => x / scale,
        Coordinates::AlignCorners => {
            if to > 1 {
                x * (from - 1) as f32 / (scale * from as f32 - 1.0)
            } else {
                0.0
            }
        }
        Coordinates::HalfPixelSymmetric => {
            let adjustment = to as f32 / (scale * from as f32);
            let center = from as f32 / 2.0;
            center * (1.0 - adjustment) + (x + 0.5) / scale - 0.5
        }
    }
}

/// Which pixels of a line count how much for one of the output.
pub(crate) fn taps(
    at: usize,
    scale: f32,
    from: usize,
    to: usize,
    kind: ResizeKind,
    coordinates: Coordinates,
) -> Vec<(usize, f32)> {
    let x = source(at, scale, from, to, coordinates);
    let clamp = |index: f32| index.clamp(0.0, (from - 1) as f32) as usize;
    match kind {
        ResizeKind::Nearest(rounding) => {
            let index = match rounding {
                Rounding::Floor => x.floor(),
                Rounding::Ceil => x.ceil(),
                Rounding::RoundPreferFloor => (x - 0.5).ceil(),
                Rounding::RoundPreferCeil => (x + 0.5).floor(),
            };
            vec![(clamp(index), 1.0)]
        }
        ResizeKind::Linear => {
            let x = x.clamp(0.0, (from - 1) as f32);
            let low = x.floor();
            vec![(clamp(low), 1.0 - (x - low)), (clamp(low + 1.0), x - low)]
        }
        ResizeKind::Cubic { coefficient: a, exclude_outside } => {
            let low = x.floor();
            let weight = |distance: f32| {
                let d = distance.abs();
                if d <= 1.0 {
                    ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
                } else {
                    ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a
                }
            };
            let at = [-1.0, 0.0, 1.0, 2.0].map(|step| low + step);
            let outside = |index: f32| exclude_outside && (index < 0.0 || index >= from as f32);
            let mut taps =
                at.map(|index| (clamp(index), if outside(index) { 0.0 } else { weight(x - index) })).to_vec();
            if exclude_outside {
                let sum: f32 = taps.iter().map(|tap| tap.1).sum();
                taps.iter_mut().for_each(|tap| tap.1 /= sum);
            }
            taps
        }
    }
}

fn resize(input: &Array, kind: ResizeKind, coordinates: Coordinates, scales: [f32; 2], dims: &[usize]) -> Vec<f32> {
    let x = input.to_floats();
    let (height, width) = (input.dims[2], input.dims[3]);
    let along = |axis: usize| {
        let (from, to) = (input.dims[axis], dims[axis]);
        (0..to).map(|at| taps(at, scales[axis - 2], from, to, kind, coordinates)).collect::<Vec<_>>()
    };
    let (rows, columns) = (along(2), along(3));
    let mut out = Vec::with_capacity(dims.iter().product());
    for plane in x.chunks(height * width) {
        for row in &rows {
            for column in &columns {
                let line = |y: usize| column.iter().map(|&(x, weight)| plane[y * width + x] * weight).sum::<f32>();
                out.push(row.iter().map(|&(y, weight)| line(y) * weight).sum());
            }
        }
    }
    out
}

fn top_k(input: &Array, axis: usize, largest: bool, results: &[Shape<'_>]) -> Vec<Array> {
    let x: Vec<f64> = match &input.data {
        Data::Float(x) => x.iter().map(|&value| f64::from(value)).collect(),
        Data::Int(x) => x.iter().map(|&value| value as f64).collect(),
    };
    let dims = results[0].1;
    let count = dims.iter().product();
    let (mut positions, mut indices) = (vec![0; count], vec![0; count]);
    let mut starts = Vec::new();
    lines(dims, axis, |line| starts.push(line.to_vec()));
    let mut starts = starts.into_iter();
    lines(&input.dims, axis, |line| {
        let mut order: Vec<_> = (0..line.len()).collect();
        order.sort_by(|&a, &b| {
            let (a, b) = (x[line[a]], x[line[b]]);
            if largest { b.total_cmp(&a) } else { a.total_cmp(&b) }
        });
        for (&to, &from) in starts.next().expect("a line for each").iter().zip(&order) {
            positions[to] = line[from];
            indices[to] = from as i64;
        }
    });
    let values = match &input.data {
        Data::Float(x) => Data::Float(positions.iter().map(|&at| x[at]).collect()),
        Data::Int(x) => Data::Int(positions.iter().map(|&at| x[at]).collect()),
    };
    vec![Array::new(results[0].0, dims, values), Array::new(results[1].0, dims, Data::Int(indices))]
}

/// What a register holds for one element.
#[derive(Clone, Copy)]
enum Scalar {
    Float(f32),
    Int(i64),
}

fn elementwise(expression: &Expression, inputs: &[&Array], dtype: DataType, dims: &[usize]) -> Array {
    let inputs: Vec<_> = inputs.iter().map(|input| broadcast_to(input, dims)).collect();
    let count = dims.iter().product();
    let mut registers = Vec::with_capacity(expression.instructions.len());
    let mut one = |index: usize| {
        let load = |input: usize| match &inputs[input].data {
            Data::Float(data) => Scalar::Float(data[index]),
            Data::Int(data) => Scalar::Int(data[index]),
        };
        run(expression, load, &mut registers)
    };
    let as_float = |scalar| match scalar {
        Scalar::Float(value) => value,
        Scalar::Int(value) => value as f32,
    };
    let as_int = |scalar| match scalar {
        Scalar::Float(value) if dtype == DataType::Bool => i64::from(value != 0.0),
        Scalar::Float(value) => value as i64,
        Scalar::Int(value) if dtype == DataType::Bool => i64::from(value != 0),
        Scalar::Int(value) => value,
    };
    let data = if is_float(dtype) {
        Data::Float((0..count).map(|index| as_float(one(index))).collect())
    } else {
        Data::Int((0..count).map(|index| as_int(one(index))).collect())
    };
    Array::new(dtype, dims, data)
}

impl Expression {
    /// Its value where the only input has that one; for functions of one float.
    pub fn at(&self, x: f32) -> f32 {
        match run(self, |_| Scalar::Float(x), &mut Vec::new()) {
            Scalar::Float(value) => value,
            Scalar::Int(value) => value as f32,
        }
    }
}

fn run(expression: &Expression, load: impl Fn(usize) -> Scalar, registers: &mut Vec<Scalar>) -> Scalar {
    registers.clear();
    for instruction in &expression.instructions {
        let result = match *instruction {
            Instruction::Input(input) => load(input),
            Instruction::Float(value) => Scalar::Float(value),
            Instruction::Int(value) => Scalar::Int(value),
            Instruction::Bool(value) => Scalar::Int(i64::from(value)),
            Instruction::Unary(function, of) => unary(function, registers[of]),
            Instruction::Binary(function, a, b) => match (registers[a], registers[b]) {
                (Scalar::Float(a), Scalar::Float(b)) => binary_float(function, a, b),
                (Scalar::Int(a), Scalar::Int(b)) => Scalar::Int(binary_int(function, a, b)),
                _ => panic!("operands of one kind"),
            },
            Instruction::Select(condition, a, b) => match registers[condition] {
                Scalar::Int(0) => registers[b],
                _ => registers[a],
            },
            Instruction::Cast(kind, of) => cast(kind, registers[of]),
            Instruction::Wrap { bits, signed, of } => match registers[of] {
                Scalar::Int(value) => Scalar::Int(wrap(value, bits, signed)),
                Scalar::Float(_) => panic!("only integers wrap"),
            },
        };
        registers.push(result);
    }
    *registers.last().expect("an expression has a result")
}

fn wrap(value: i64, bits: u8, signed: bool) -> i64 {
    let shift = 64 - u32::from(bits);
    if signed { value << shift >> shift } else { ((value as u64) << shift >> shift) as i64 }
}

fn cast(kind: ValueKind, scalar: Scalar) -> Scalar {
    match (kind, scalar) {
        (ValueKind::Float, Scalar::Int(value)) => Scalar::Float(value as f32),
        (ValueKind::Int, Scalar::Float(value)) => Scalar::Int(value as i64),
        (ValueKind::Bool, Scalar::Float(value)) => Scalar::Int(i64::from(value != 0.0)),
        (ValueKind::Bool, Scalar::Int(value)) => Scalar::Int(i64::from(value != 0)),
        (ValueKind::Float | ValueKind::Int, same) => same,
    }
}

fn unary(function: Unary, of: Scalar) -> Scalar {
    let x = match of {
        Scalar::Float(x) => x,
        Scalar::Int(x) => {
            return match function {
                Unary::Negate => Scalar::Int(x.wrapping_neg()),
                Unary::Absolute => Scalar::Int(x.wrapping_abs()),
                Unary::Sign => Scalar::Int(x.signum()),
                Unary::Not => Scalar::Int(i64::from(x == 0)),
                _ => panic!("{function:?} is not of integers"),
            };
        }
    };
    Scalar::Float(match function {
        Unary::Negate => -x,
        Unary::Absolute => x.abs(),
        Unary::Sign => {
            if x == 0.0 || x.is_nan() {
                x
            } else {
                x.signum()
            }
        }
        Unary::Reciprocal => 1.0 / x,
        Unary::SquareRoot => x.sqrt(),
        Unary::Exp => x.exp(),
        Unary::Log => x.ln(),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tan => x.tan(),
        Unary::Asin => x.asin(),
        Unary::Acos => x.acos(),
        Unary::Atan => x.atan(),
        Unary::Sinh => x.sinh(),
        Unary::Cosh => x.cosh(),
        Unary::Asinh => x.asinh(),
        Unary::Acosh => x.acosh(),
        Unary::Atanh => x.atanh(),
        Unary::Tanh => x.tanh(),
        Unary::Erf => libm::erff(x),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::IsNan => return Scalar::Int(i64::from(x.is_nan())),
        Unary::IsInfinite => return Scalar::Int(i64::from(x.is_infinite())),
        Unary::Not => panic!("only bools are inverted"),
    })
}

fn binary_float(function: Binary, a: f32, b: f32) -> Scalar {
    let bool = |value: bool| Scalar::Int(i64::from(value));
    Scalar::Float(match function {
        Binary::Add => a + b,
        Binary::Subtract => a - b,
        Binary::Multiply => a * b,
        Binary::Divide => a / b,
        Binary::Modulo => a - b * (a / b).floor(),
        Binary::Remainder => a % b,
        Binary::Power => a.powf(b),
        Binary::Minimum => {
            if a.is_nan() || b.is_nan() {
                f32::NAN
            } else {
                a.min(b)
            }
        }
        Binary::Maximum => {
            if a.is_nan() || b.is_nan() {
                f32::NAN
            } else {
                a.max(b)
            }
        }
        Binary::Equal => return bool(a == b),
        Binary::Less => return bool(a < b),
        Binary::LessOrEqual => return bool(a <= b),
        Binary::Greater => return bool(a > b),
        Binary::GreaterOrEqual => return bool(a >= b),
        Binary::And | Binary::Or | Binary::Xor | Binary::ShiftLeft | Binary::ShiftRight => {
            panic!("{function:?} is of bits")
        }
    })
}

fn binary_int(function: Binary, a: i64, b: i64) -> i64 {
    match function {
        Binary::Add => a.wrapping_add(b),
        Binary::Subtract => a.wrapping_sub(b),
        Binary::Multiply => a.wrapping_mul(b),
        Binary::Divide => a.checked_div(b).unwrap_or(0),
        Binary::Modulo => {
            let rest = a.checked_rem(b).unwrap_or(0);
            if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }
        }
        Binary::Remainder => a.checked_rem(b).unwrap_or(0),
        Binary::Power => (a as f64).powf(b as f64) as i64,
        Binary::Minimum => a.min(b),
        Binary::Maximum => a.max(b),
        Binary::Equal => i64::from(a == b),
        Binary::Less => i64::from(a < b),
        Binary::LessOrEqual => i64::from(a <= b),
        Binary::Greater => i64::from(a > b),
        Binary::GreaterOrEqual => i64::from(a >= b),
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::ShiftLeft => u32::try_from(b).ok().and_then(|by| a.checked_shl(by)).unwrap_or(0),
        Binary::ShiftRight => u32::try_from(b).ok().and_then(|by| (a as u64).checked_shr(by)).unwrap_or(0) as i64,
    }
}
