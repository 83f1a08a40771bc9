//! What a plan is made of: tensors with fixed places, and steps that read and write them.
//!
//! A plan is for one batch size (and one value of each other symbolic dimension) and one precision. Everything is
//! known: shapes, strides, where each tensor lies. Who executes it decides only how.
//!
//! ```text
//!  Input(i) ──Copy──> Workspace ──Conv──> Workspace ── … ──Gemm──> Workspace ──Copy──> Output(i)
//!                                  ▲ Weights                ▲ Weights
//! ```

use crate::expression::Expression;
use crate::weights::PlanWeights;
pub use base::DataType;

/// A model for fixed sizes: the steps in their order, and what they need.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The precision that was asked for.
    pub precision: Precision,
    /// In TF32: how many of the first convolutions and products are multiplied in 32 bits all the same.
    pub exact_products: usize,
    /// What comes in, in the model's order, row-major, in the model's own types.
    pub inputs: Vec<Port>,
    /// What goes out, the same.
    pub outputs: Vec<Port>,
    /// What is done, in this order.
    pub steps: Vec<Step>,
    /// For each step the name of the model's node from which it came, for messages.
    pub names: Vec<String>,
    /// The weights as one blob: the same for all batch sizes and sequence lengths of a model and a precision.
    pub weights: PlanWeights,
    /// Constants that depend on the sizes (masks, positions): small, and belong to this plan alone. Often empty.
    pub constants: Vec<u8>,
    /// How much workspace the steps need. What it holds before and after an execution means nothing.
    pub workspace_bytes: usize,
}

impl Plan {
    /// What a step is computed in. What it reads and writes is the same in TF32 and in 32 bits.
    pub fn precision_of(&self, step: usize) -> Precision {
        let products = |steps: &[Step]| steps.iter().filter(|step| step.is_product()).count();
        let exact = self.precision == Precision::Tf32
            && self.exact_products > 0
            && self.steps[step].is_product()
            && products(&self.steps[..step]) < self.exact_products;
        if exact { Precision::F32 } else { self.precision }
    }

    /// Whether everything is kept and multiplied in 32 bits.
    pub fn is_exact(&self) -> bool {
        let exact = |step: usize| !self.steps[step].is_product() || self.precision_of(step) == Precision::F32;
        self.precision != Precision::F16 && (0..self.steps.len()).all(exact)
    }
}

/// An input or output of a plan.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Port {
    /// Its name in the model.
    pub name: String,
    /// The model's element type.
    pub dtype: DataType,
    /// Its dimensions, the batch included.
    pub dims: Vec<usize>,
}

/// What floats are computed and kept in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Precision {
    /// Kept in 32 bits, multiplied in 32 bits.
    F32,
    /// Kept in 32 bits; factors of convolutions and matrix products may be rounded to 10 bits of mantissa.
    Tf32,
    /// Kept in 16 bits, accumulated in 32 bits.
    F16,
}

impl Precision {
    /// The one of that name: `f32`, `tf32` or `f16`.
    pub fn from_name(name: &str) -> Option<Self> {
        [("f32", Self::F32), ("tf32", Self::Tf32), ("f16", Self::F16)]
            .into_iter()
            .find(|known| known.0 == name)
            .map(|known| known.1)
    }
}

/// The memory that a tensor is in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum TensorPlace {
    /// The blob of weights, [`Plan::weights`].
    Weights,
    /// [`Plan::constants`].
    Constants,
    /// The workspace.
    Workspace,
    /// The input of that position.
    Input(usize),
    /// The output of that position. Later steps may read it.
    Output(usize),
}

/// A strided view of memory. Broadcast dimensions have stride 0.
///
/// Dimensions are always in ONNX's order (an image is batch, channel, row, column); how it lies in memory is said by
/// the strides alone: with channels last the channel's stride is 1.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Tensor {
    /// What its elements are. Bools are bytes, 0 or 1.
    pub dtype: DataType,
    /// Its dimensions. Empty for a scalar.
    pub dims: Vec<usize>,
    /// Distance in elements from one index to the next, for each dimension. Negative where a slice goes backwards.
    pub strides: Vec<isize>,
    /// The memory.
    pub place: TensorPlace,
    /// Where its first element is in that memory, in bytes.
    pub offset: usize,
}

/// What happens to a result before it is stored.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Activation {
    /// Nothing.
    None,
    /// `max(x, 0)`
    Relu,
    /// `min(max(x, low), high)`; Relu6 is `0, 6`.
    Clip {
        /// The smallest result.
        low: f32,
        /// The largest.
        high: f32,
    },
    /// `x` where positive, otherwise `slope * x`.
    LeakyRelu {
        /// The factor of negative values.
        slope: f32,
    },
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// `x * sigmoid(x)`, also called swish.
    Silu,
    /// `min(max(alpha * x + beta, 0), 1)`
    HardSigmoid {
        /// The slope.
        alpha: f32,
        /// The value at 0.
        beta: f32,
    },
    /// `x * min(max(x / 6 + 1/2, 0), 1)`
    HardSwish,
    /// `tanh(x)`
    Tanh,
    /// `x / 2 * (1 + erf(x / sqrt(2)))`
    Gelu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`
    GeluTanh,
    /// `x * tanh(ln(1 + exp(x)))`
    Mish,
}

/// How a window moves over an image. Rows first, columns second; one-dimensional ones have one row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Window {
    /// Its height and width.
    pub kernel: [usize; 2],
    /// How far it moves.
    pub strides: [usize; 2],
    /// How far its elements are apart.
    pub dilations: [usize; 2],
    /// Padding above and to the left.
    pub pads_before: [usize; 2],
    /// Padding below and to the right. Where a pool rounds up, its last window may reach behind it.
    pub pads_after: [usize; 2],
}

/// `activation(convolution(input, weight) + bias + residual)`
#[derive(Clone, PartialEq, Debug)]
pub struct Conv {
    /// Batch, channels, rows, columns.
    pub input: Tensor,
    /// Output channels, input channels of a group, rows, columns.
    pub weight: Tensor,
    /// One for each output channel: one dimension.
    pub bias: Option<Tensor>,
    /// Shaped as the output.
    pub residual: Option<Tensor>,
    /// Batch, channels, rows, columns. May be a slice of the channels of something wider.
    pub output: Tensor,
    /// How the kernel moves.
    pub window: Window,
    /// 1 for a plain convolution; the number of channels for a depthwise one.
    pub groups: usize,
    /// Applied last.
    pub activation: Activation,
}

/// `activation(alpha * a @ b + bias + residual)`, for each index of the leading dimensions.
#[derive(Clone, PartialEq, Debug)]
pub struct Gemm {
    /// `[batch.., m, k]`; the batch dimensions (none to two) are merged where that is possible.
    pub a: Tensor,
    /// `[batch.., k, n]`; stride 0 where it is the same for all of the batch.
    pub b: Tensor,
    /// `[n]`.
    pub bias: Option<Tensor>,
    /// Shaped as the output.
    pub residual: Option<Tensor>,
    /// `[batch.., m, n]`
    pub output: Tensor,
    /// Factor of the product.
    pub alpha: f32,
    /// Applied last.
    pub activation: Activation,
}

/// `softmax(scale * query @ key^T + mask) @ value`, for each batch and head. Rows whose scores are all minus infinity
/// are 0.
#[derive(Clone, PartialEq, Debug)]
pub struct Attention {
    /// `[batch, heads, length, width]`
    pub query: Tensor,
    /// `[batch, heads, other length, width]`
    pub key: Tensor,
    /// `[batch, heads, other length, value width]`
    pub value: Tensor,
    /// Added before the softmax; broadcast to `[batch, heads, length, other length]` by strides of 0.
    pub mask: Option<Tensor>,
    /// `[batch, heads, length, value width]`; usually strided so that the heads of a position are neighbours.
    pub output: Tensor,
    /// Factor of the product.
    pub scale: f32,
}

/// What a pool keeps of a window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PoolKind {
    /// The largest.
    Max,
    /// The mean.
    Average {
        /// Whether padding counts as zeros; else the mean is over what is inside the image.
        count_include_pad: bool,
    },
}

/// A pool over rows and columns.
#[derive(Clone, PartialEq, Debug)]
pub struct Pool {
    /// Batch, channels, rows, columns.
    pub input: Tensor,
    /// The same.
    pub output: Tensor,
    /// Max or mean.
    pub kind: PoolKind,
    /// How the window moves.
    pub window: Window,
}

/// What a reduction keeps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReduceKind {
    /// The sum.
    Sum,
    /// The mean.
    Mean,
    /// The largest.
    Max,
    /// The smallest.
    Min,
    /// The product.
    Product,
    /// The sum of the squares.
    SumOfSquares,
    /// The root of the sum of the squares. The sum itself is more than a half can hold where the root isn't (SSD300's
    /// features).
    Norm,
    /// The sum of the absolute values.
    SumOfAbsolutes,
    /// The position of the largest along the one axis; the output is of 64-bit integers.
    ArgMax {
        /// Of equals, the last instead of the first.
        last: bool,
    },
    /// The position of the smallest.
    ArgMin {
        /// Of equals, the last instead of the first.
        last: bool,
    },
}

/// A reduction over some dimensions. Global average pooling is a mean over rows and columns.
#[derive(Clone, PartialEq, Debug)]
pub struct Reduce {
    /// What is reduced.
    pub input: Tensor,
    /// Of the same rank, with 1 for each dimension that is reduced.
    pub output: Tensor,
    /// What is kept.
    pub kind: ReduceKind,
    /// Which dimensions, ascending.
    pub axes: Vec<usize>,
}

/// A softmax along one dimension.
#[derive(Clone, PartialEq, Debug)]
pub struct Softmax {
    /// What comes in.
    pub input: Tensor,
    /// What goes out.
    pub output: Tensor,
    /// The dimension.
    pub axis: usize,
    /// Its logarithm instead.
    pub log: bool,
}

/// `(x - mean) / sqrt(variance + epsilon) * scale + shift` over the dimensions from `axis` on.
#[derive(Clone, PartialEq, Debug)]
pub struct LayerNorm {
    /// What comes in.
    pub input: Tensor,
    /// Broadcast to the shape of the input.
    pub scale: Option<Tensor>,
    /// Broadcast to the shape of the input.
    pub shift: Option<Tensor>,
    /// What goes out.
    pub output: Tensor,
    /// The first dimension over which is normalised.
    pub axis: usize,
    /// Keeps the root from 0.
    pub epsilon: f32,
    /// Without the mean: `x / sqrt(mean(x^2) + epsilon) * scale`.
    pub root_mean_square: bool,
}

/// Local response normalisation across channels, as AlexNet and GoogLeNet have it:
/// `x / (bias + alpha / size * sum of squares of the channels around)^beta`.
#[derive(Clone, PartialEq, Debug)]
pub struct Lrn {
    /// Batch, channels, and more.
    pub input: Tensor,
    /// The same.
    pub output: Tensor,
    /// Channels in the sum: from `c - floor((size - 1) / 2)` to `c + ceil((size - 1) / 2)`.
    pub size: usize,
    /// Factor of the sum.
    pub alpha: f32,
    /// The exponent.
    pub beta: f32,
    /// Keeps the base from 0.
    pub bias: f32,
}

/// One expression for each element of the output.
#[derive(Clone, PartialEq, Debug)]
pub struct Elementwise {
    /// All of the output's dimensions, broadcast by strides of 0. Types may differ.
    pub inputs: Vec<Tensor>,
    /// Where the result goes; converted to its type when it is stored.
    pub output: Tensor,
    /// What is computed.
    pub expression: Expression,
}

/// Picks slices of `data` by position.
#[derive(Clone, PartialEq, Debug)]
pub struct Gather {
    /// What is picked from.
    pub data: Tensor,
    /// Integers; negative ones count from the end. What is out of range is clamped into it, so that no input can read
    /// what isn't the model's.
    pub indices: Tensor,
    /// `data`'s dimensions with `axis` replaced by those of `indices`; with `elements`, those of `indices`.
    pub output: Tensor,
    /// The dimension of `data` that is picked from.
    pub axis: usize,
    /// One index for each element (`GatherElements`) instead of one for each slice (`Gather`).
    pub elements: bool,
}

/// Copies element by element between equal dimensions, converting the type. Transposes, slices, concatenation,
/// expansion: all of them are strides.
#[derive(Clone, PartialEq, Debug)]
pub struct Copy {
    /// From.
    pub input: Tensor,
    /// To.
    pub output: Tensor,
}

/// Writes one value everywhere.
#[derive(Clone, PartialEq, Debug)]
pub struct Fill {
    /// To.
    pub output: Tensor,
    /// What; converted to the output's type.
    pub value: f32,
}

/// How an image is made larger or smaller.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ResizeKind {
    /// The nearest pixel.
    Nearest(Rounding),
    /// Between the four around.
    Linear,
    /// Between the sixteen around, with that coefficient (usually -0.75).
    Cubic {
        /// The coefficient.
        coefficient: f32,
        /// Leave out what is outside, and scale the rest up.
        exclude_outside: bool,
    },
}

/// Which pixel is the nearest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rounding {
    /// Down.
    Floor,
    /// Up.
    Ceil,
    /// To the nearest, halves down.
    RoundPreferFloor,
    /// To the nearest, halves up.
    RoundPreferCeil,
}

/// Where a pixel of the output lies in the input.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Coordinates {
    /// `(x + 0.5) / scale - 0.5`
    HalfPixel,
    /// The same, but 0 where the output has one pixel.
    PytorchHalfPixel,
    /// `x / scale`
    Asymmetric,
    /// `x * (input - 1) / (scale * input - 1)`, 0 where the output has one pixel.
    AlignCorners,
    /// Half pixels around the middle of the input.
    HalfPixelSymmetric,
}

/// Makes an image larger or smaller.
#[derive(Clone, PartialEq, Debug)]
pub struct Resize {
    /// Batch, channels, rows, columns.
    pub input: Tensor,
    /// The same.
    pub output: Tensor,
    /// How.
    pub kind: ResizeKind,
    /// Where pixels lie.
    pub coordinates: Coordinates,
    /// Output over input of rows and columns, as the model says it (not always the quotient of the dimensions).
    pub scales: [f32; 2],
}

/// The largest or smallest elements along one dimension, and where they were. Of equals, the first comes first.
#[derive(Clone, PartialEq, Debug)]
pub struct TopK {
    /// What comes in.
    pub input: Tensor,
    /// The elements, sorted; `k` is its size along `axis`.
    pub values: Tensor,
    /// Their positions, as 64-bit integers.
    pub indices: Tensor,
    /// The dimension.
    pub axis: usize,
    /// The largest, else the smallest.
    pub largest: bool,
}

/// What becomes of an element that others are written to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ScatterKind {
    /// The last one of them.
    Replace,
    /// The sum of it and all of them.
    Add,
    /// The product.
    Multiply,
    /// The largest.
    Maximum,
    /// The smallest.
    Minimum,
}

/// `data` with some of its elements replaced, or put together with others: the opposite of a [`Gather`] of elements.
#[derive(Clone, PartialEq, Debug)]
pub struct Scatter {
    /// What is written over.
    pub data: Tensor,
    /// For each of `updates`, where along `axis` it goes; elsewhere it goes where it is itself. Negative ones count
    /// from the end. What is out of range goes nowhere.
    pub indices: Tensor,
    /// Of the dimensions of `indices`, none of which is larger than that of `data`, but along `axis`.
    pub updates: Tensor,
    /// As large as `data`.
    pub output: Tensor,
    /// The dimension.
    pub axis: usize,
    /// How.
    pub kind: ScatterKind,
}

/// `convolution(input - zero, weight)` of integers, with sums in 32 bits that wrap: exact, whatever the precision of
/// the plan. Padding is 0 behind the subtraction. A product of matrices is one with a window of one element.
#[derive(Clone, PartialEq, Debug)]
pub struct IntegerConv {
    /// Batch, channels, rows, columns, of 8 or 16 bits.
    pub input: Tensor,
    /// Output channels, input channels of a group, rows, columns, of 8 or 16 bits.
    pub weight: Tensor,
    /// The one number of the input's type that stands for 0; without it, 0 does.
    pub zero: Option<Tensor>,
    /// Batch, channels, rows, columns, of 32 bits.
    pub output: Tensor,
    /// How the kernel moves.
    pub window: Window,
    /// As those of a [`Conv`].
    pub groups: usize,
}

/// One thing to do.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs, reason = "each is its struct")]
pub enum Step {
    Conv(Conv),
    Gemm(Gemm),
    Attention(Attention),
    Pool(Pool),
    Reduce(Reduce),
    Softmax(Softmax),
    LayerNorm(LayerNorm),
    Lrn(Lrn),
    Elementwise(Elementwise),
    Gather(Gather),
    Copy(Copy),
    Fill(Fill),
    Resize(Resize),
    TopK(TopK),
    Scatter(Scatter),
    IntegerConv(IntegerConv),
}

impl Step {
    /// Its short name.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Conv(_) => "conv",
            Self::Gemm(_) => "gemm",
            Self::Attention(_) => "attention",
            Self::Pool(_) => "pool",
            Self::Reduce(_) => "reduce",
            Self::Softmax(_) => "softmax",
            Self::LayerNorm(_) => "layernorm",
            Self::Lrn(_) => "lrn",
            Self::Elementwise(_) => "elementwise",
            Self::Gather(_) => "gather",
            Self::Copy(_) => "copy",
            Self::Fill(_) => "fill",
            Self::Resize(_) => "resize",
            Self::TopK(_) => "topk",
            Self::Scatter(_) => "scatter",
            Self::IntegerConv(_) => "integerconv",
        }
    }

    /// Whether numbers are multiplied and added up in it, with factors that TF32 rounds.
    pub fn is_product(&self) -> bool {
        matches!(self, Self::Conv(_) | Self::Gemm(_) | Self::Attention(_))
    }

    /// What it reads, in the order of its fields.
    pub fn reads(&self) -> Vec<&Tensor> {
        match self {
            Self::Conv(s) => [&s.input, &s.weight].into_iter().chain(&s.bias).chain(&s.residual).collect(),
            Self::Gemm(s) => [&s.a, &s.b].into_iter().chain(&s.bias).chain(&s.residual).collect(),
            Self::Attention(s) => [&s.query, &s.key, &s.value].into_iter().chain(&s.mask).collect(),
            Self::Pool(s) => vec![&s.input],
            Self::Reduce(s) => vec![&s.input],
            Self::Softmax(s) => vec![&s.input],
            Self::LayerNorm(s) => [&s.input].into_iter().chain(&s.scale).chain(&s.shift).collect(),
            Self::Lrn(s) => vec![&s.input],
            Self::Elementwise(s) => s.inputs.iter().collect(),
            Self::Gather(s) => vec![&s.data, &s.indices],
            Self::Copy(s) => vec![&s.input],
            Self::Fill(_) => Vec::new(),
            Self::Resize(s) => vec![&s.input],
            Self::TopK(s) => vec![&s.input],
            Self::Scatter(s) => vec![&s.data, &s.indices, &s.updates],
            Self::IntegerConv(s) => [&s.input, &s.weight].into_iter().chain(&s.zero).collect(),
        }
    }

    /// What it writes.
    pub fn writes(&self) -> Vec<&Tensor> {
        match self {
            Self::Conv(s) => vec![&s.output],
            Self::Gemm(s) => vec![&s.output],
            Self::Attention(s) => vec![&s.output],
            Self::Pool(s) => vec![&s.output],
            Self::Reduce(s) => vec![&s.output],
            Self::Softmax(s) => vec![&s.output],
            Self::LayerNorm(s) => vec![&s.output],
            Self::Lrn(s) => vec![&s.output],
            Self::Elementwise(s) => vec![&s.output],
            Self::Gather(s) => vec![&s.output],
            Self::Copy(s) => vec![&s.output],
            Self::Fill(s) => vec![&s.output],
            Self::Resize(s) => vec![&s.output],
            Self::TopK(s) => vec![&s.values, &s.indices],
            Self::Scatter(s) => vec![&s.output],
            Self::IntegerConv(s) => vec![&s.output],
        }
    }

    /// The same for everyone who has to change where tensors lie.
    pub fn tensors_mut(&mut self) -> Vec<&mut Tensor> {
        match self {
            Self::Conv(s) => {
                let optional = s.bias.iter_mut().chain(&mut s.residual);
                [&mut s.input, &mut s.weight, &mut s.output].into_iter().chain(optional).collect()
            }
            Self::Gemm(s) => {
                let optional = s.bias.iter_mut().chain(&mut s.residual);
                [&mut s.a, &mut s.b, &mut s.output].into_iter().chain(optional).collect()
            }
            Self::Attention(s) => {
                [&mut s.query, &mut s.key, &mut s.value, &mut s.output].into_iter().chain(&mut s.mask).collect()
            }
            Self::Pool(s) => vec![&mut s.input, &mut s.output],
            Self::Reduce(s) => vec![&mut s.input, &mut s.output],
            Self::Softmax(s) => vec![&mut s.input, &mut s.output],
            Self::LayerNorm(s) => {
                [&mut s.input, &mut s.output].into_iter().chain(&mut s.scale).chain(&mut s.shift).collect()
            }
            Self::Lrn(s) => vec![&mut s.input, &mut s.output],
            Self::Elementwise(s) => s.inputs.iter_mut().chain([&mut s.output]).collect(),
            Self::Gather(s) => vec![&mut s.data, &mut s.indices, &mut s.output],
            Self::Copy(s) => vec![&mut s.input, &mut s.output],
            Self::Fill(s) => vec![&mut s.output],
            Self::Resize(s) => vec![&mut s.input, &mut s.output],
            Self::TopK(s) => vec![&mut s.input, &mut s.values, &mut s.indices],
            Self::Scatter(s) => vec![&mut s.data, &mut s.indices, &mut s.updates, &mut s.output],
            Self::IntegerConv(s) => {
                [&mut s.input, &mut s.weight, &mut s.output].into_iter().chain(&mut s.zero).collect()
            }
        }
    }
}

impl Tensor {
    /// How many elements it has, broadcast ones included.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Bytes of one element.
    pub fn element_bytes(&self) -> usize {
        self.dtype.size().expect("no tensor of a plan has strings")
    }

    /// The bytes of its memory that it may touch, from the first to behind the last.
    pub fn span(&self) -> std::ops::Range<usize> {
        if self.elements() == 0 {
            return self.offset..self.offset;
        }
        let (mut low, mut high) = (0isize, 0isize);
        for (&dim, &stride) in self.dims.iter().zip(&self.strides) {
            let reach = (dim as isize - 1) * stride;
            if reach < 0 { low += reach } else { high += reach }
        }
        let size = self.element_bytes() as isize;
        let at = |elements: isize| usize::try_from(self.offset as isize + elements * size).expect("within its memory");
        at(low)..at(high + 1)
    }

    /// Whether its elements lie behind one another in the order of its dimensions.
    pub fn is_row_major(&self) -> bool {
        let mut expected = 1;
        self.dims.iter().zip(&self.strides).rev().all(|(&dim, &stride)| {
            let holds = dim == 1 || stride == expected;
            expected *= dim as isize;
            holds
        })
    }
}

/// Strides of a tensor whose elements lie behind one another, the last of `order` closest together.
pub fn strides_in_order(dims: &[usize], order: &[usize]) -> Vec<isize> {
    let (mut strides, mut next) = (vec![0; dims.len()], 1isize);
    for &axis in order.iter().rev() {
        strides[axis] = next;
        next *= dims[axis].max(1) as isize;
    }
    strides
}

/// Strides of a row-major tensor.
pub fn row_major(dims: &[usize]) -> Vec<isize> {
    strides_in_order(dims, &(0..dims.len()).collect::<Vec<_>>())
}

/// Strides of an image with its channels closest together.
pub fn channels_last(dims: &[usize]) -> Vec<isize> {
    assert_eq!(dims.len(), 4, "an image has a batch, channels, rows and columns");
    strides_in_order(dims, &[0, 2, 3, 1])
}
