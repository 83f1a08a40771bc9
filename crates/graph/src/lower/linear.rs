//! Matrix products, and what transformers have around them.

use super::elementwise::Floats;
use super::{FOLD_ELEMENTS, Lowering, NodeInputs};
use crate::array::is_float;
use crate::error::GraphError;
use crate::expression::{Binary, Unary};
use crate::ir::{Op, ValueId, broadcast};
use crate::model::OnnxNode;
use crate::plan::{Activation, ReduceKind};
use base::DataType;

const PLAIN: Op = Op::Gemm { alpha: 1.0, bias: false, residual: false, activation: Activation::None };

impl Lowering {
    pub(super) fn linear_node(
        &mut self,
        node: &OnnxNode,
        inputs: NodeInputs<'_>,
    ) -> Result<Option<Vec<ValueId>>, GraphError> {
        let value = match node.operator.as_str() {
            "MatMul" => self.matmul(inputs)?,
            "Gemm" => self.gemm(node, inputs)?,
            "Softmax" | "LogSoftmax" => self.softmax(node, inputs)?,
            "LayerNormalization" | "RMSNormalization" | "SimplifiedLayerNormalization" => {
                return self.layer_norm(node, inputs).map(Some);
            }
            _ => return Ok(None),
        };
        Ok(Some(vec![value]))
    }

    pub(super) fn matmul(&mut self, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let (mut a, mut b) = (self.input(inputs, 0)?, self.input(inputs, 1)?);
        let (rank_a, rank_b) = (self.graph.dims(a).len(), self.graph.dims(b).len());
        if rank_a == 0 || rank_b == 0 {
            return Err(self.bad("a scalar is no matrix"));
        }
        if rank_a == 1 {
            a = self.reshape(a, &[1, self.dims(a)[0]]);
        }
        if rank_b == 1 {
            b = self.reshape(b, &[self.dims(b)[0], 1]);
        }
        let mut dims = self.product(a, b)?;
        let dtype = self.dtype(a);
        let value = self.emit(PLAIN, &[a, b], dtype, &dims);
        // Without the dimensions that were added.
        if rank_b == 1 {
            dims.pop();
        }
        if rank_a == 1 {
            dims.remove(dims.len() - if rank_b == 1 { 1 } else { 2 });
        }
        Ok(self.reshape(value, &dims))
    }

    /// The shape of a product.
    pub(super) fn product(&self, a: ValueId, b: ValueId) -> Result<Vec<usize>, GraphError> {
        let (left, right) = (self.graph.dims(a), self.graph.dims(b));
        let (split_a, split_b) = (left.len() - 2, right.len() - 2);
        let batch = broadcast(&left[..split_a], &right[..split_b]).filter(|_| left[split_a + 1] == right[split_b]);
        let mut dims = batch.ok_or_else(|| self.bad(format!("{left:?} and {right:?} don't go together")))?;
        dims.extend([left[split_a], right[split_b + 1]]);
        Ok(dims)
    }

    pub(super) fn gemm(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let (mut a, mut b) = (self.input(inputs, 0)?, self.input(inputs, 1)?);
        if self.graph.dims(a).len() != 2 || self.graph.dims(b).len() != 2 {
            return Err(self.bad("its inputs are no matrices"));
        }
        if node.int("transA", 0) != 0 {
            a = self.turn(a);
        }
        if node.int("transB", 0) != 0 {
            b = self.turn(b);
        }
        let (dims, dtype) = (self.product(a, b)?, self.dtype(a));
        let (alpha, beta) = (node.float("alpha", 1.0), node.float("beta", 1.0));
        let mut summand = self.optional(inputs, 2).filter(|_| beta != 0.0);
        if let Some(value) = summand.filter(|_| beta != 1.0) {
            let beta = self.scalar(dtype, f64::from(beta));
            summand = Some(self.binary(Binary::Multiply, value, beta)?);
        }
        let bias = summand.filter(|&value| {
            let own = self.graph.dims(value);
            own.last() == Some(&dims[1]) && own.iter().product::<usize>() == dims[1] && is_float(dtype)
        });
        let op = Op::Gemm { alpha, bias: bias.is_some(), residual: false, activation: Activation::None };
        if let Some(bias) = bias {
            let bias = self.reshape(bias, &[dims[1]]);
            return Ok(self.emit(op, &[a, b, bias], dtype, &dims));
        }
        let value = self.emit(op, &[a, b], dtype, &dims);
        match summand {
            Some(summand) => self.binary(Binary::Add, value, summand),
            None => Ok(value),
        }
    }

    /// The transposed matrix. Large constants stay as they are, and are read the other way round.
    pub(super) fn turn(&mut self, matrix: ValueId) -> ValueId {
        let [rows, columns] = *self.dims(matrix) else { unreachable!("a matrix") };
        if self.graph.known(matrix).is_none() || rows * columns < FOLD_ELEMENTS {
            return self.transpose(matrix, &[1, 0]);
        }
        let dtype = self.dtype(matrix);
        self.emit_node(Op::Transpose(vec![1, 0]), &[matrix], &[(dtype, &[columns, rows])])[0]
    }

    fn softmax(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        self.check_float(input)?;
        let (dims, dtype) = (self.dims(input), self.dtype(input));
        let log = node.operator == "LogSoftmax";
        let axis = self.axis(node.int("axis", if self.opset < 13 { 1 } else { -1 }), dims.len())?;
        if self.opset >= 13 || axis + 1 == dims.len() {
            return Ok(self.emit(Op::Softmax { axis, log }, &[input], dtype, &dims));
        }
        // Before, it was over all dimensions from that one on.
        let flat = [dims[..axis].iter().product(), dims[axis..].iter().product()];
        let value = self.reshape(input, &flat);
        let value = self.emit(Op::Softmax { axis: 1, log }, &[value], dtype, &flat);
        Ok(self.reshape(value, &dims))
    }

    fn layer_norm(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<Vec<ValueId>, GraphError> {
        let simplified = node.operator != "LayerNormalization";
        let input = self.input(inputs, 0)?;
        let (dims, dtype, epsilon) = (self.dims(input), self.dtype(input), node.float("epsilon", 1e-5));
        let axis = self.axis(node.int("axis", -1), dims.len())?;
        let (scale, shift) = (self.optional(inputs, 1), self.optional(inputs, 2));
        let mut results = vec![self.normalised_from(input, axis, epsilon, scale, shift, simplified)?];
        if node.outputs.iter().skip(1).any(|name| !name.is_empty()) {
            if simplified {
                return Err(self.unsupported(" with the deviation as an output"));
            }
            let dtype = if node.int("stash_type", 1) == 1 { DataType::Fp32 } else { dtype };
            let input = self.cast(input, dtype)?;
            results.extend(self.mean_and_deviation(input, axis, epsilon)?);
        }
        Ok(results)
    }

    /// Normalised over the dimensions from `axis` on; without the mean if it is simplified.
    pub(super) fn normalised_from(
        &mut self,
        input: ValueId,
        axis: usize,
        epsilon: f32,
        scale: Option<ValueId>,
        shift: Option<ValueId>,
        root_mean_square: bool,
    ) -> Result<ValueId, GraphError> {
        self.check_float(input)?;
        let (dims, dtype) = (self.dims(input), self.dtype(input));
        let all: Vec<_> = [input].into_iter().chain(scale).chain(shift).collect();
        for &value in &all[1..] {
            let own = self.graph.dims(value);
            if broadcast(own, &dims).as_ref() != Some(&dims) {
                return Err(self.bad(format!("{own:?} and {dims:?} don't go together")));
            }
        }
        let op = Op::LayerNorm { axis, epsilon, root_mean_square, scale: scale.is_some(), shift: shift.is_some() };
        Ok(self.emit(op, &all, dtype, &dims))
    }

    /// The mean over the dimensions from `axis` on, and one over the deviation from it.
    fn mean_and_deviation(&mut self, input: ValueId, axis: usize, epsilon: f32) -> Result<[ValueId; 2], GraphError> {
        let (dims, dtype) = (self.dims(input), self.dtype(input));
        let axes: Vec<_> = (axis..dims.len()).collect();
        let mean = self.reduction(ReduceKind::Mean, input, &axes);
        let centred = self.binary(Binary::Subtract, input, mean)?;
        // Squares by themselves might be more than a half can hold.
        let length = self.reduction(ReduceKind::Norm, centred, &axes);
        let count = dims[axis..].iter().product::<usize>() as f32;
        let inverse = self.apply(&[length], dtype, |expression, of| {
            let mut floats = Floats(expression);
            let square = floats.binary(Binary::Multiply, of[0], of[0]);
            let variance = floats.with(Binary::Divide, square, count);
            let variance = floats.with(Binary::Add, variance, epsilon);
            let deviation = floats.unary(Unary::SquareRoot, variance);
            floats.unary(Unary::Reciprocal, deviation)
        })?;
        Ok([mean, inverse])
    }
}
