//! Our own matrix product on tensor cores (`kernels/tile.cu`): which sizes of tiles are tried for a convolution or a
//! product, and what each is told.

use super::expression::activation_code;
use super::launch::{Address, LaunchParameters, Recipe};
use crate::source::{Defines, KernelSource};
use crate::toolkit::Facts;
use graph::plan::{Activation, Conv, DataType, Gemm, Precision, Tensor, TensorPlace};

const TEXT: &str = include_str!("../kernels/tile.cu");

/// Rows and columns of a tile, warps down and across it, buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shape {
    rows: usize,
    columns: usize,
    warps_down: usize,
    warps_across: usize,
    stages: usize,
}

const fn shape(rows: usize, columns: usize, warps_down: usize, warps_across: usize, stages: usize) -> Shape {
    Shape { rows, columns, warps_down, warps_across, stages }
}

const SHAPES: &[Shape] = &[
    shape(16, 64, 1, 4, 5),
    shape(16, 128, 1, 4, 4),
    shape(32, 32, 2, 2, 5),
    shape(32, 64, 2, 2, 4),
    shape(64, 32, 2, 2, 4),
    shape(64, 64, 2, 2, 4),
    shape(64, 128, 2, 2, 3),
    shape(128, 64, 2, 2, 3),
    shape(128, 128, 2, 2, 3),
    shape(128, 128, 2, 4, 3),
    shape(256, 64, 4, 2, 3),
    shape(256, 128, 4, 2, 3),
    shape(128, 256, 2, 4, 3),
    // Two buffers are enough where k is short; more blocks fit on a multiprocessor then.
    shape(64, 32, 2, 2, 2),
    shape(64, 64, 2, 2, 2),
    shape(64, 96, 2, 2, 2),
    shape(128, 64, 4, 2, 2),
    shape(128, 96, 4, 2, 2),
];

const SPLITS: &[usize] = &[1, 2, 4, 8];

/// How the left factor is read: see `A_MODE` in `tile.cu`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FactorReading {
    Rows,
    Taps,
    Gathered,
}

/// What is multiplied, in the terms of `tile.cu`.
struct TileProblem<'a> {
    reading: FactorReading,
    half: bool,
    half_out: bool,
    a_single: bool,
    exact: bool,
    a: &'a Tensor,
    b: &'a Tensor,
    bias: Option<&'a Tensor>,
    residual: Option<&'a Tensor>,
    output: &'a Tensor,
    a_strides: [isize; 4],
    b_strides: [isize; 4],
    /// From one image to the next, one place to the next, one column to the next.
    out_strides: [isize; 3],
    residual_strides: [isize; 3],
    /// Of a, b, output and residual: from one product to the next, outer and inner; then the bias.
    outer: [isize; 4],
    inner: [isize; 4],
    bias_inner: isize,
    batch: usize,
    inner_count: usize,
    places: usize,
    m: usize,
    n: usize,
    k: usize,
    out_size: [usize; 2],
    size: [usize; 2],
    channels: usize,
    taps: [usize; 2],
    strides: [usize; 2],
    pads: [usize; 2],
    dilations: [usize; 2],
    alpha: f32,
    activation: Activation,
}

/// Every way to compute a convolution with tiles.
pub(crate) fn convolution(step: &Conv, precision: Precision, facts: &Facts) -> Vec<Recipe> {
    problem_of_conv(step, precision).map_or_else(Vec::new, |problem| recipes(&problem, facts))
}

/// Every way to compute a product with tiles.
pub(crate) fn product(step: &Gemm, precision: Precision, facts: &Facts) -> Vec<Recipe> {
    problem_of_gemm(step, precision).map_or_else(Vec::new, |problem| recipes(&problem, facts))
}

fn single_or_half(tensor: &Tensor) -> bool {
    matches!(tensor.dtype, DataType::Fp16 | DataType::Fp32)
}

/// The types that are known: factors alike (or a of f32 and b of F16), bias of either, residual like the output.
fn types_known(a: &Tensor, b: &Tensor, bias: Option<&Tensor>, residual: Option<&Tensor>, output: &Tensor) -> bool {
    single_or_half(a)
        && single_or_half(b)
        && (a.dtype == b.dtype || b.dtype == DataType::Fp16)
        && bias.is_none_or(|bias| single_or_half(bias) && bias.strides == [1])
        && residual.is_none_or(|residual| residual.dtype == output.dtype)
        && single_or_half(output)
}

/// Whether a tensor begins where a 16-byte access may.
fn aligned(tensor: &Tensor) -> bool {
    tensor.offset.is_multiple_of(16)
}

fn problem_of_conv(step: &Conv, precision: Precision) -> Option<TileProblem<'_>> {
    let (input, weight, output) = (&step.input, &step.weight, &step.output);
    if !types_known(input, weight, step.bias.as_ref(), step.residual.as_ref(), output) {
        return None;
    }
    let [out_channels, channels, taps_y, taps_x] = weight.dims[..] else { return None };
    let (a, b) = (&input.strides, &weight.strides);
    let chunk = 16 / weight.element_bytes();
    let whole = |stride: isize| stride.unsigned_abs().is_multiple_of(chunk);
    let packed = b[1] == 1
        && (taps_x == 1 || b[3] == channels as isize)
        && (taps_y == 1 || b[2] == (channels * taps_x) as isize)
        && whole(b[0]);
    let wide = input.dtype == weight.dtype
        && a[1] == 1
        && packed
        && channels.is_multiple_of(chunk)
        && [0, 2, 3].iter().all(|&axis| input.dims[axis] == 1 || whole(a[axis]))
        && aligned(input)
        && aligned(weight);
    let (height, width) = (output.dims[2], output.dims[3]);
    let unpadded = step.window.pads_before == [0, 0] && step.window.pads_after == [0, 0];
    // Rows of the left factor at equal distances: then a place is a row, and no tap has to be looked for.
    let in_line = [taps_y, taps_x] == [1, 1]
        && unpadded
        && step.window.strides == [1, 1]
        && (height == 1 || a[2] == a[3] * width as isize)
        && (input.dims[0] == 1 || a[0] == a[3] * (height * width) as isize);
    let places_in_line = |strides: &[isize]| height == 1 || strides[2] == strides[3] * width as isize;
    if !places_in_line(&output.strides)
        || !step.residual.as_ref().is_none_or(|residual| places_in_line(&residual.strides))
    {
        return None;
    }
    let of_places = |strides: &[isize]| [strides[0], strides[3], strides[1]];
    let per_group = out_channels / step.groups;
    let residual_channel = step.residual.as_ref().map_or(0, |residual| residual.strides[1]);
    Some(TileProblem {
        reading: if !wide {
            FactorReading::Gathered
        } else if in_line {
            FactorReading::Rows
        } else {
            FactorReading::Taps
        },
        half: weight.dtype == DataType::Fp16,
        half_out: output.dtype == DataType::Fp16,
        a_single: input.dtype == DataType::Fp32,
        exact: precision == Precision::F32,
        a: input,
        b: weight,
        bias: step.bias.as_ref(),
        residual: step.residual.as_ref(),
        output,
        a_strides: [a[0], a[2], a[3], a[1]],
        b_strides: [b[0], b[2], b[3], b[1]],
        out_strides: of_places(&output.strides),
        residual_strides: step.residual.as_ref().map_or([0; 3], |residual| of_places(&residual.strides)),
        outer: [0; 4],
        inner: [
            channels as isize * a[1],
            per_group as isize * b[0],
            per_group as isize * output.strides[1],
            per_group as isize * residual_channel,
        ],
        bias_inner: per_group as isize,
        batch: step.groups,
        inner_count: step.groups,
        places: height * width,
        m: output.dims[0] * height * width,
        n: per_group,
        k: channels * taps_y * taps_x,
        out_size: [height, width],
        size: [input.dims[2], input.dims[3]],
        channels,
        taps: [taps_y, taps_x],
        strides: step.window.strides,
        pads: step.window.pads_before,
        dilations: step.window.dilations,
        alpha: 1.0,
        activation: step.activation,
    })
}

fn problem_of_gemm(step: &Gemm, precision: Precision) -> Option<TileProblem<'_>> {
    let (a, b, output) = (&step.a, &step.b, &step.output);
    if !types_known(a, b, step.bias.as_ref(), step.residual.as_ref(), output) {
        return None;
    }
    let rank = output.dims.len();
    let batch = rank.checked_sub(2).filter(|&batch| batch <= 2)?;
    let (m, n, k) = (output.dims[batch], output.dims[batch + 1], a.dims[batch + 1]);
    let chunk = 16 / b.element_bytes();
    let whole = |stride: isize| stride.unsigned_abs().is_multiple_of(chunk);
    let [a_m, a_k] = [a.strides[batch], a.strides[batch + 1]];
    let [b_k, b_n] = [b.strides[batch], b.strides[batch + 1]];
    let wide = a.dtype == b.dtype
        && (a_k == 1 || k == 1)
        && (b_k == 1 || k == 1)
        && k.is_multiple_of(chunk)
        && (whole(a_m) || m == 1)
        && whole(b_n)
        && a.strides[..batch].iter().chain(&b.strides[..batch]).all(|&stride| whole(stride))
        && aligned(a)
        && aligned(b);
    let tensors = [Some(a), Some(b), Some(output), step.residual.as_ref()];
    let leading = |from_end: usize| {
        tensors.map(|tensor| match (tensor, batch.checked_sub(from_end)) {
            (Some(tensor), Some(axis)) => tensor.strides[axis],
            _ => 0,
        })
    };
    let of_places = |strides: &[isize]| [0, strides[batch], strides[batch + 1]];
    Some(TileProblem {
        reading: if wide { FactorReading::Rows } else { FactorReading::Gathered },
        half: b.dtype == DataType::Fp16,
        half_out: output.dtype == DataType::Fp16,
        a_single: a.dtype == DataType::Fp32,
        exact: precision == Precision::F32,
        a,
        b,
        bias: step.bias.as_ref(),
        residual: step.residual.as_ref(),
        output,
        a_strides: [0, 0, a_m, a_k],
        b_strides: [b_n, 0, 0, b_k],
        out_strides: of_places(&output.strides),
        residual_strides: step.residual.as_ref().map_or([0; 3], |residual| of_places(&residual.strides)),
        outer: leading(2),
        inner: leading(1),
        bias_inner: 0,
        batch: output.dims[..batch].iter().product(),
        inner_count: if batch == 0 { 1 } else { output.dims[batch - 1] },
        places: m,
        m,
        n,
        k,
        out_size: [1, m],
        size: [1, m],
        channels: k,
        taps: [1, 1],
        strides: [1, 1],
        pads: [0, 0],
        dilations: [1, 1],
        alpha: step.alpha,
        activation: step.activation,
    })
}

impl TileProblem<'_> {
    fn tile(&self, shape: Shape, facts: &Facts, splits: usize) -> Option<Recipe> {
        let gathered = self.reading == FactorReading::Gathered;
        let staged = shape.rows * (shape.columns + 4) * 4;
        let shared_bytes = (shape.stages * (shape.rows + shape.columns) * 128).max(staged) + shape.columns * 4;
        if shared_bytes > facts.shared_bytes {
            return None;
        }
        let mut defines = Defines::default();
        defines
            .add("BM", shape.rows)
            .add("BN", shape.columns)
            .add("WARPS_M", shape.warps_down)
            .add("WARPS_N", shape.warps_across)
            .add("STAGES", shape.stages)
            .add("A_MODE", self.reading as usize)
            .add("IN_F16", i32::from(self.half))
            .add("OUT_F16", i32::from(self.half_out))
            .add("A_F32", i32::from(gathered && self.a_single && self.half))
            .add("EXACT", i32::from(self.exact && !self.half))
            .add("ACTIVATION", activation_code(self.activation).0);
        Some(Recipe {
            name: format!(
                "tile {}x{} {}x{} stages {} splits {splits}",
                shape.rows, shape.columns, shape.warps_down, shape.warps_across, shape.stages
            ),
            source: KernelSource { text: TEXT, defines, entry: "tile" },
            grid: [
                self.m.div_ceil(shape.rows) as u32,
                self.n.div_ceil(shape.columns) as u32,
                (self.batch * splits) as u32,
            ],
            block: (shape.warps_down * shape.warps_across * 32) as u32,
            shared_bytes,
            cluster: splits as u32,
            parameters: self.parameters(splits),
        })
    }

    /// The fields of `Job`, in their order.
    fn parameters(&self, splits: usize) -> LaunchParameters {
        let mut job = LaunchParameters::default();
        job.begin();
        job.address(self.a.into());
        job.address(self.b.into());
        for tensor in [self.bias, self.residual] {
            match tensor {
                Some(tensor) => job.address(Address::from(tensor)),
                None => job.long(0),
            }
        }
        job.address(self.output.into());
        for stride in
            self.a_strides.into_iter().chain(self.b_strides).chain(self.out_strides).chain(self.residual_strides)
        {
            job.long(stride as i64);
        }
        for which in 0..2 {
            job.long(self.outer[which] as i64);
            job.long(self.inner[which] as i64);
        }
        for which in 2..4 {
            job.long(self.outer[which] as i64);
            job.long(self.inner[which] as i64);
        }
        job.long(self.bias_inner as i64);
        let (_, low, high) = activation_code(self.activation);
        let numbers = [self.inner_count, if self.in_line() { 0 } else { self.places }, self.m, self.n, self.k]
            .into_iter()
            .chain(self.out_size)
            .chain(self.size)
            .chain([self.channels])
            .chain(self.taps)
            .chain(self.strides)
            .chain(self.pads)
            .chain(self.dilations)
            .chain([splits]);
        for number in numbers {
            job.int(number as i32);
        }
        job.int(i32::from(self.wide_output()));
        job.int(i32::from(self.bias.is_some_and(|bias| bias.dtype == DataType::Fp16)));
        job.int(i32::from(matches!(self.b.place, TensorPlace::Weights | TensorPlace::Constants)));
        job.float(self.alpha);
        job.float(low);
        job.float(high);
        job
    }

    /// Whether rows of the result (and of what is added to it) are at equal distances.
    fn in_line(&self) -> bool {
        let fits = |strides: &[isize; 3]| strides[0] == strides[1] * self.places as isize;
        self.m == self.places || (fits(&self.out_strides) && (self.residual.is_none() || fits(&self.residual_strides)))
    }

    /// Whether results (and what is added to them) can be accessed 16 bytes at a time.
    fn wide_output(&self) -> bool {
        let pack = if self.half_out { 8 } else { 4 };
        let whole = |stride: isize| stride.unsigned_abs().is_multiple_of(pack);
        let fits = |tensor: &Tensor, strides: &[isize; 3], which: usize| {
            aligned(tensor)
                && strides[2] == 1
                && (whole(strides[0]) || self.m == self.places)
                && (whole(strides[1]) || self.places == 1)
                && whole(self.outer[which])
                && (whole(self.inner[which]) || self.batch == 1)
        };
        self.n.is_multiple_of(pack)
            && fits(self.output, &self.out_strides, 2)
            && self.residual.is_none_or(|residual| fits(residual, &self.residual_strides, 3))
    }
}

/// What the rule takes, the largest first: few shapes, so that all models share a handful of kernels, and none that
/// takes long to compile.
const BY_RULE: [Shape; 2] = [shape(64, 64, 2, 2, 4), SMALLEST];
const SMALLEST: Shape = shape(32, 32, 2, 2, 5);

/// Which of these computes a product where nothing was measured: the largest tiles that keep the device busy, and
/// otherwise the smallest, split as far as that makes sense. Within a third of the fastest of ours for most shapes.
fn by_rule(all: &[(Shape, usize, Recipe)], problem: &TileProblem<'_>, facts: &Facts) -> Option<usize> {
    let tiles = |shape: &Shape| problem.m.div_ceil(shape.rows) * problem.n.div_ceil(shape.columns) * problem.batch;
    let enough = |shape: &Shape| tiles(shape) >= 2 * facts.multiprocessors as usize;
    let wanted = BY_RULE.into_iter().find(enough).unwrap_or(SMALLEST);
    let alike = |(_, (shape, ..)): &(usize, &(Shape, usize, Recipe))| *shape == wanted;
    all.iter().enumerate().filter(alike).max_by_key(|(_, (_, splits, _))| *splits).map(|(at, _)| at)
}

/// Tiles that make sense: not far larger than the problem, and split where there are too few of them for the device.
/// The first is the one that is taken where nothing was measured.
fn recipes(problem: &TileProblem<'_>, facts: &Facts) -> Vec<Recipe> {
    let mut all: Vec<(Shape, usize, Recipe)> = Vec::new();
    let step = 128 / problem.b.element_bytes();
    for shape in SHAPES {
        let too_large = |tile: usize, size: usize| tile > 32 && tile >= 2 * size.next_power_of_two();
        if too_large(shape.rows, problem.m) || too_large(shape.columns, problem.n) {
            continue;
        }
        if shape.stages == 2 && problem.k.div_ceil(step) > 2 {
            continue;
        }
        let tiles = problem.m.div_ceil(shape.rows) * problem.n.div_ceil(shape.columns) * problem.batch;
        // Very many tiny tiles never win.
        if tiles > 64 * facts.multiprocessors as usize && shape.rows * shape.columns < 128 * 64 && SHAPES.len() > 1 {
            continue;
        }
        for &splits in SPLITS {
            let sensible = tiles * splits <= 3 * facts.multiprocessors as usize
                && problem.k.div_ceil(step) >= 2 * splits
                && facts.capability >= 90;
            if splits == 1 || sensible {
                all.extend(problem.tile(*shape, facts, splits).map(|recipe| (*shape, splits, recipe)));
            }
        }
    }
    if all.is_empty() {
        return problem.tile(shape(64, 64, 2, 2, 4), facts, 1).into_iter().collect();
    }
    if let Some(first) = by_rule(&all, problem, facts) {
        all[..=first].rotate_right(1);
    }
    all.into_iter().map(|(.., recipe)| recipe).collect()
}
