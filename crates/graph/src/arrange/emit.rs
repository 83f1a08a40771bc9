//! The steps of each kind of node.

use super::layout::is_view;
use super::{Arrangement, normalise_ones};
use crate::array::within_half;
use crate::error::GraphError;
use crate::expression::{Expression, Instruction};
use crate::ir::{GraphNode, Op, ValueId, broadcast_strides};
use crate::plan::*;

/// Products of fewer rows each leave most of a kernel idle, so that a copy that makes one product of them pays.
const FEW_ROWS: usize = 32;

impl Arrangement<'_> {
    pub(super) fn node(&mut self, node: &GraphNode) -> Result<(), GraphError> {
        if is_view(&node.op) {
            self.view(node);
            return Ok(());
        }
        if let Op::Concat { axis } = node.op {
            self.concat(node, axis);
            return Ok(());
        }
        let step = match &node.op {
            Op::Conv { window, groups, bias, residual, activation } => {
                self.conv(node, *window, *groups, (*bias, *residual), *activation)
            }
            Op::Gemm { alpha, bias, residual, activation } => {
                let mut rest = node.inputs[2..].iter().copied();
                let bias = bias.then(|| rest.next().expect("a bias"));
                let residual = residual.then(|| rest.next().expect("a residual"));
                self.gemm(node, *alpha, bias, residual, *activation)?
            }
            Op::Attention { scale, mask } => self.attention(node, *scale, *mask),
            Op::Pool { kind, window } => {
                let (input, output) = self.images(node);
                Step::Pool(Pool { input, output, kind: *kind, window: *window })
            }
            Op::Resize { kind, coordinates, scales } => {
                let (input, output) = self.images(node);
                let (kind, coordinates, scales) = (*kind, *coordinates, *scales);
                Step::Resize(Resize { input, output, kind, coordinates, scales })
            }
            Op::Reduce { kind, axes } => {
                let (input, output) = (self.operand(node.inputs[0]), self.result(node.outputs[0]));
                Step::Reduce(Reduce { input, output, kind: *kind, axes: axes.clone() })
            }
            Op::Softmax { axis, log } => {
                let (input, output) = (self.operand(node.inputs[0]), self.result(node.outputs[0]));
                Step::Softmax(Softmax { input, output, axis: *axis, log: *log })
            }
            Op::LayerNorm { axis, epsilon, root_mean_square, scale, shift } => {
                let (input, output, [scale, shift]) = self.normalised(node, [*scale, *shift]);
                let (axis, epsilon, root_mean_square) = (*axis, *epsilon, *root_mean_square);
                Step::LayerNorm(LayerNorm { input, scale, shift, output, axis, epsilon, root_mean_square })
            }
            Op::Lrn { size, alpha, beta, bias } => {
                let (input, output) = (self.operand(node.inputs[0]), self.result(node.outputs[0]));
                Step::Lrn(Lrn { input, output, size: *size, alpha: *alpha, beta: *beta, bias: *bias })
            }
            Op::Elementwise(expression) => self.elementwise(node, expression.clone()),
            Op::Gather { axis, elements } => {
                let (data, indices) = (self.operand(node.inputs[0]), self.tensor(node.inputs[1]));
                let output = self.result(node.outputs[0]);
                Step::Gather(Gather { data, indices, output, axis: *axis, elements: *elements })
            }
            Op::TopK { axis, largest } => {
                let input = self.operand(node.inputs[0]);
                let (values, indices) = (self.result(node.outputs[0]), self.result(node.outputs[1]));
                Step::TopK(TopK { input, values, indices, axis: *axis, largest: *largest })
            }
            Op::Scatter { axis, kind } => {
                let [data, updates] = [0, 2].map(|position| self.operand(node.inputs[position]));
                let (indices, output) = (self.tensor(node.inputs[1]), self.result(node.outputs[0]));
                Step::Scatter(Scatter { data, indices, updates, output, axis: *axis, kind: *kind })
            }
            Op::IntegerConv { window, groups, zero } => {
                let (input, weight) = (self.image(node.inputs[0]), self.image(node.inputs[1]));
                let zero = zero.then(|| self.tensor(node.inputs[2]));
                let mut output = self.result(node.outputs[0]);
                normalise_ones(&mut output, &super::layout::image_order(self.options));
                Step::IntegerConv(IntegerConv { input, weight, zero, output, window: *window, groups: *groups })
            }
            Op::Pad { before, value } => self.pad(node, before, *value),
            Op::Transpose(_) | Op::Reshape | Op::Slice { .. } | Op::Expand | Op::Concat { .. } => {
                unreachable!("above")
            }
        };
        self.push(step);
        Ok(())
    }

    /// An image and what becomes of it.
    fn images(&mut self, node: &GraphNode) -> (Tensor, Tensor) {
        let input = self.image(node.inputs[0]);
        let mut output = self.result(node.outputs[0]);
        normalise_ones(&mut output, &super::layout::image_order(self.options));
        (input, output)
    }

    fn conv(
        &mut self,
        node: &GraphNode,
        window: Window,
        groups: usize,
        (bias, residual): (bool, bool),
        activation: Activation,
    ) -> Step {
        let mut rest = node.inputs[2..].iter().copied();
        let input = self.image(node.inputs[0]);
        let weight = self.filter(node.inputs[1]);
        let bias = bias.then(|| rest.next().expect("a bias")).map(|value| self.operand(value));
        let residual = residual.then(|| rest.next().expect("a residual")).map(|value| self.image(value));
        let mut output = self.result(node.outputs[0]);
        normalise_ones(&mut output, &super::layout::image_order(self.options));
        Step::Conv(Conv { input, weight, bias, residual, output, window, groups, activation })
    }

    fn attention(&mut self, node: &GraphNode, scale: f32, mask: bool) -> Step {
        let [query, key, value] = [0, 1, 2].map(|position| self.rows(node.inputs[position]));
        let output = self.result(node.outputs[0]);
        let dims = [output.dims[0], output.dims[1], query.dims[2], key.dims[2]];
        let mask = mask.then(|| self.operand(node.inputs[3])).map(|mask| broadcast_to(mask, &dims));
        let lead = |tensor: Tensor| {
            let dims = [output.dims[0], output.dims[1], tensor.dims[2], tensor.dims[3]];
            broadcast_to(tensor, &dims)
        };
        let (query, key, value) = (lead(query), lead(key), lead(value));
        Step::Attention(Attention { query, key, value, mask, output, scale })
    }

    /// What is normalised, what becomes of it, and whichever of scale and shift are there, as large as it.
    fn normalised(&mut self, node: &GraphNode, present: [bool; 2]) -> (Tensor, Tensor, [Option<Tensor>; 2]) {
        let mut rest = node.inputs[1..].iter().copied();
        let input = self.operand(node.inputs[0]);
        let factors =
            present.map(|there| there.then(|| rest.next().expect("is there")).map(|value| self.operand(value)));
        let output = self.result(node.outputs[0]);
        let factors = factors.map(|value| value.map(|value| broadcast_to(value, &output.dims)));
        (input, output, factors)
    }

    fn elementwise(&mut self, node: &GraphNode, mut expression: Expression) -> Step {
        let inputs: Vec<_> = node.inputs.iter().map(|&input| self.tensor(input)).collect();
        let output = self.result(node.outputs[0]);
        let inputs = inputs.into_iter().map(|input| broadcast_to(input, &output.dims)).collect();
        if self.options.precision == Precision::F16 {
            expression.instructions.iter_mut().for_each(bound);
        }
        Step::Elementwise(Elementwise { inputs, output, expression })
    }

    /// Fills the output, and copies the input into its middle.
    fn pad(&mut self, node: &GraphNode, before: &[usize], value: f32) -> Step {
        let input = self.tensor(node.inputs[0]);
        let output = self.result(node.outputs[0]);
        self.push(Step::Fill(Fill { output: output.clone(), value }));
        let moved: usize =
            before.iter().zip(&output.strides).map(|(&before, &stride)| before * stride.unsigned_abs()).sum();
        let offset = output.offset + moved * output.element_bytes();
        Step::Copy(Copy { output: Tensor { dims: input.dims.clone(), offset, ..output }, input })
    }

    /// Copies those parts that aren't there yet.
    fn concat(&mut self, node: &GraphNode, axis: usize) {
        let output = node.outputs[0];
        let whole = self.result(output);
        let mut start = 0;
        for &input in &node.inputs {
            let size = self.graph.dims(input)[axis];
            let offset = whole.offset + start * whole.strides[axis].unsigned_abs() * whole.element_bytes();
            let part = Tensor { dims: self.graph.dims(input).to_vec(), offset, ..whole.clone() };
            let from = self.tensor(input);
            if (from.place, from.offset, &from.strides) != (part.place, part.offset, &part.strides) {
                self.push(Step::Copy(Copy { input: from, output: part }));
            }
            start += size;
        }
    }

    /// A factor of a product: one of its last two dimensions is closest together.
    fn factor(&mut self, value: ValueId) -> Tensor {
        let mut tensor = self.operand(value);
        let rank = tensor.dims.len();
        let (row, column) = (rank - 2, rank - 1);
        if tensor.dims[column] == 1 && tensor.strides[row] != 1 {
            tensor.strides[column] = 1;
        }
        if tensor.dims[row] == 1 && tensor.strides[column] != 1 {
            tensor.strides[row] = 1;
        }
        if tensor.dims[row] == 1 && tensor.strides[column] == 1 {
            tensor.strides[row] = tensor.dims[column] as isize;
        }
        let lines = [(row, column), (column, row)];
        let fits = lines
            .iter()
            .any(|&(long, short)| tensor.strides[short] == 1 && tensor.strides[long] >= tensor.dims[short] as isize);
        if fits {
            return tensor;
        }
        let order: Vec<_> = (0..rank).collect();
        self.copied(value, &order)
    }

    /// The right side of a product. Of weights, what is multiplied with one row lies behind one another: that is how
    /// tensor cores take it.
    fn right_factor(&mut self, value: ValueId) -> Tensor {
        let rank = self.graph.dims(value).len();
        if self.graph.known(value).is_none() || self.stored[value].is_some() || rank < 2 {
            return self.factor(value);
        }
        let mut order: Vec<_> = (0..rank).collect();
        order.swap(rank - 2, rank - 1);
        self.constant(value, &order)
    }

    fn gemm(
        &mut self,
        node: &GraphNode,
        alpha: f32,
        bias: Option<ValueId>,
        residual: Option<ValueId>,
        activation: Activation,
    ) -> Result<Step, GraphError> {
        let (a, b) = (self.factor(node.inputs[0]), self.right_factor(node.inputs[1]));
        let bias = bias.map(|bias| self.operand(bias));
        let residual = residual.map(|residual| self.rows(residual));
        let output = self.result(node.outputs[0]);
        let batch = output.dims.len() - 2;
        let wide = |tensor: Tensor| {
            let own = tensor.dims.len() - 2;
            let dims: Vec<_> = output.dims[..batch].iter().chain(&tensor.dims[own..]).copied().collect();
            broadcast_to(tensor, &dims)
        };
        let (mut a, mut b, mut output, mut residual) = (wide(a), wide(b), output.clone(), residual);
        // The same right side for all of the batch: its rows are rows of one product.
        let shared = b.strides[..batch].iter().zip(&b.dims).all(|(&stride, &dim)| stride == 0 || dim == 1);
        let few = output.dims[batch] < FEW_ROWS && output.dims[..batch].iter().product::<usize>() > 1;
        if shared && few && merge_front(&a, batch + 1).is_none() && merge_front(&output, batch + 1).is_some() {
            // Steps of a few rows each, as recurrent layers have them, turned.
            let order: Vec<_> = (0..self.graph.dims(node.inputs[0]).len()).collect();
            a = wide(self.copied(node.inputs[0], &order));
        }
        if shared {
            let merged: Option<Vec<_>> = [Some(&a), Some(&output), residual.as_ref()]
                .into_iter()
                .flatten()
                .map(|tensor| merge_front(tensor, batch + 1))
                .collect();
            if let Some(merged) = merged {
                let mut merged = merged.into_iter();
                a = merged.next().expect("the left side");
                output = merged.next().expect("the result");
                residual = residual.and(merged.next());
                b = Tensor { dims: b.dims[batch..].to_vec(), strides: b.strides[batch..].to_vec(), ..b };
            }
        }
        while output.dims.len() > 2 {
            let batch = output.dims.len() - 2;
            let mut all: Vec<&mut Tensor> = [&mut a, &mut b, &mut output].into_iter().chain(&mut residual).collect();
            if let Some(axis) = (0..batch).find(|&axis| all[0].dims[axis] == 1) {
                all.iter_mut().for_each(|tensor| drop_axis(tensor, axis));
            } else if let Some(axis) = (1..batch).find(|&axis| all.iter().all(|tensor| merges(tensor, axis))) {
                all.iter_mut().for_each(|tensor| merge_axis(tensor, axis));
            } else {
                break;
            }
        }
        if output.dims.len() > 4 {
            let why = format!(" for products of {} dimensions", output.dims.len());
            return Err(GraphError::Unsupported { operator: "MatMul".into(), node: node.name.clone(), why });
        }
        Ok(Step::Gemm(Gemm { a, b, bias, residual, output, alpha, activation }))
    }
}

/// Numbers that a half can't hold become the largest that it can, as in constants.
fn bound(instruction: &mut Instruction) {
    if let Instruction::Float(number) = instruction {
        *number = within_half(*number);
    }
}

/// Reads a tensor with more dimensions.
fn broadcast_to(tensor: Tensor, dims: &[usize]) -> Tensor {
    Tensor { strides: broadcast_strides(&tensor.dims, &tensor.strides, dims), dims: dims.to_vec(), ..tensor }
}

/// Whether a dimension and the one before are one walk through memory.
fn merges(tensor: &Tensor, axis: usize) -> bool {
    tensor.strides[axis - 1] == tensor.strides[axis] * tensor.dims[axis] as isize
}

fn merge_axis(tensor: &mut Tensor, axis: usize) {
    tensor.dims[axis] *= tensor.dims[axis - 1];
    drop_axis(tensor, axis - 1);
}

fn drop_axis(tensor: &mut Tensor, axis: usize) {
    tensor.dims.remove(axis);
    tensor.strides.remove(axis);
}

/// The first dimensions as one, if that is possible.
fn merge_front(tensor: &Tensor, count: usize) -> Option<Tensor> {
    let size: usize = tensor.dims[..count].iter().product();
    let mut strides = super::layout::reshaped(&tensor.dims[..count], &tensor.strides[..count], &[size])?;
    if size == 1 {
        strides[0] = tensor.dims[count..].iter().product::<usize>() as isize;
    }
    strides.extend(&tensor.strides[count..]);
    let dims = std::iter::once(size).chain(tensor.dims[count..].iter().copied()).collect();
    Some(Tensor { dims, strides, ..tensor.clone() })
}
