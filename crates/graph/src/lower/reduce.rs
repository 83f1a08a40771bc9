//! Operators that make one element of many: sums, means, positions, the largest ones.

use super::elementwise::Floats;
use super::{Lowering, NodeInputs, kind};
use crate::array::{Array, Data};
use crate::error::GraphError;
use crate::expression::{Binary, Instruction, Unary, ValueKind};
use crate::ir::{Op, ValueId};
use crate::model::OnnxNode;
use crate::plan::ReduceKind;
use base::DataType;

impl Lowering {
    pub(super) fn reduce_node(
        &mut self,
        node: &OnnxNode,
        inputs: NodeInputs<'_>,
    ) -> Result<Option<Vec<ValueId>>, GraphError> {
        let last = node.int("select_last_index", 0) != 0;
        let value = match node.operator.as_str() {
            "ReduceSum" => self.reduced(node, inputs, |this, x, axes| Ok(this.reduction(ReduceKind::Sum, x, axes)))?,
            "ReduceMean" => {
                self.reduced(node, inputs, |this, x, axes| Ok(this.reduction(ReduceKind::Mean, x, axes)))?
            }
            "ReduceMax" => self.reduced(node, inputs, |this, x, axes| Ok(this.reduction(ReduceKind::Max, x, axes)))?,
            "ReduceMin" => self.reduced(node, inputs, |this, x, axes| Ok(this.reduction(ReduceKind::Min, x, axes)))?,
            "ReduceProd" => {
                self.reduced(node, inputs, |this, x, axes| Ok(this.reduction(ReduceKind::Product, x, axes)))?
            }
            "ReduceSumSquare" => {
                self.reduced(node, inputs, |this, x, axes| Ok(this.reduction(ReduceKind::SumOfSquares, x, axes)))?
            }
            "ReduceL1" => {
                self.reduced(node, inputs, |this, x, axes| Ok(this.reduction(ReduceKind::SumOfAbsolutes, x, axes)))?
            }
            "ReduceL2" => self.reduced(node, inputs, |this, x, axes| Ok(this.reduction(ReduceKind::Norm, x, axes)))?,
            "ReduceLogSum" => self.reduced(node, inputs, |this, x, axes| {
                let sum = this.reduction(ReduceKind::Sum, x, axes);
                this.unary(Unary::Log, sum)
            })?,
            "ReduceLogSumExp" => self.reduced(node, inputs, |this, x, axes| {
                let most = this.reduction(ReduceKind::Max, x, axes);
                let below = this.binary(Binary::Subtract, x, most)?;
                let exp = this.unary(Unary::Exp, below)?;
                let sum = this.reduction(ReduceKind::Sum, exp, axes);
                let log = this.unary(Unary::Log, sum)?;
                this.binary(Binary::Add, log, most)
            })?,
            "ArgMax" => self.position(node, inputs, ReduceKind::ArgMax { last })?,
            "ArgMin" => self.position(node, inputs, ReduceKind::ArgMin { last })?,
            "Hardmax" => self.hardmax(node, inputs)?,
            "Det" => self.determinant(inputs)?,
            "TopK" => return self.top_k(node, inputs).map(Some),
            "CumSum" => self.cumulative(node, inputs)?,
            "LpNormalization" => self.normalised(node, inputs)?,
            "MeanVarianceNormalization" => self.mean_variance(node, inputs)?,
            _ => return Ok(None),
        };
        Ok(Some(vec![value]))
    }

    /// A reduction that keeps its dimensions, with a size of 1.
    pub(super) fn reduction(&mut self, kind: ReduceKind, value: ValueId, axes: &[usize]) -> ValueId {
        let mut dims = self.dims(value);
        axes.iter().for_each(|&axis| dims[axis] = 1);
        let dtype = match kind {
            ReduceKind::ArgMax { .. } | ReduceKind::ArgMin { .. } => DataType::Int64,
            _ => self.dtype(value),
        };
        self.emit(Op::Reduce { kind, axes: axes.to_vec() }, &[value], dtype, &dims)
    }

    fn reduced(
        &mut self,
        node: &OnnxNode,
        inputs: NodeInputs<'_>,
        reduce: impl FnOnce(&mut Self, ValueId, &[usize]) -> Result<ValueId, GraphError>,
    ) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        let rank = self.graph.dims(input).len();
        let axes = match node.ints("axes") {
            Some(axes) => Some(axes.to_vec()),
            None => self.integers(inputs, 1, "dimension")?,
        };
        let axes = axes.filter(|axes| !axes.is_empty());
        if axes.is_none() && node.int("noop_with_empty_axes", 0) != 0 {
            // What is done to single elements is still done.
            let same = self.dims(input);
            let wide: Vec<_> = std::iter::once(1).chain(same.iter().copied()).collect();
            let value = self.reshape(input, &wide);
            let value = reduce(self, value, &[0])?;
            return Ok(self.reshape(value, &same));
        }
        let mut axes = match axes {
            Some(axes) => axes.iter().map(|&axis| self.axis(axis, rank)).collect::<Result<Vec<_>, _>>()?,
            None => (0..rank).collect(),
        };
        axes.sort_unstable();
        axes.dedup();
        if axes.last().is_some_and(|&axis| axis >= rank) {
            axes.clear();
        }
        let value = reduce(self, input, &axes)?;
        Ok(self.kept(node, value, &axes))
    }

    /// Without the reduced dimensions, unless they are to be kept.
    fn kept(&mut self, node: &OnnxNode, value: ValueId, axes: &[usize]) -> ValueId {
        if node.int("keepdims", 1) != 0 {
            return value;
        }
        let dims = self.dims(value);
        let dims: Vec<_> = (0..dims.len()).filter(|axis| !axes.contains(axis)).map(|axis| dims[axis]).collect();
        self.reshape(value, &dims)
    }

    fn position(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>, kind: ReduceKind) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        let axis = self.axis(node.int("axis", 0), self.graph.dims(input).len())?;
        let value = self.reduction(kind, input, &[axis]);
        Ok(self.kept(node, value, &[axis]))
    }

    /// 1 where the largest is, of equals the first, and 0 elsewhere.
    fn hardmax(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        self.check_float(input)?;
        let (dims, dtype) = (self.dims(input), self.dtype(input));
        let mut axis = self.axis(node.int("axis", if self.opset < 13 { 1 } else { -1 }), dims.len())?;
        let (mut value, mut wide) = (input, dims.clone());
        if self.opset < 13 {
            // Before, it was over all dimensions from that one on.
            wide = vec![dims[..axis].iter().product(), dims[axis..].iter().product()];
            value = self.reshape(input, &wide);
            axis = 1;
        }
        self.check_constant(&wide[axis..=axis])?;
        let most = self.reduction(ReduceKind::ArgMax { last: false }, value, &[axis]);
        let mut shape = vec![1; wide.len()];
        shape[axis] = wide[axis];
        let positions = Array::ints(&shape, (0..wide[axis] as i64).collect());
        let positions = self.graph.constant(positions, false);
        let value = self.apply(&[most, positions], dtype, |expression, of| {
            let same = expression.push(Instruction::Binary(Binary::Equal, of[0], of[1]), ValueKind::Bool);
            expression.push(Instruction::Cast(ValueKind::Float, same), ValueKind::Float)
        })?;
        Ok(self.reshape(value, &dims))
    }

    /// Of matrices of up to three rows.
    fn determinant(&mut self, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        self.check_float(input)?;
        let dims = self.dims(input);
        let [lead @ .., rows, columns] = &dims[..] else { return Err(self.bad("its input is no matrix")) };
        if rows != columns || *rows == 0 || *rows > 3 {
            return Err(self.unsupported(&format!(" for matrices of {rows} x {columns}")));
        }
        let count = rows * columns;
        let flat = self.reshape(input, &[lead, &[count]].concat());
        let elements: Vec<_> = (0..count)
            .map(|at| {
                let element = self.part(flat, lead.len(), at, 1);
                self.reshape(element, lead)
            })
            .collect();
        let dtype = self.dtype(input);
        self.apply(&elements, dtype, |expression, of| {
            let mut floats = Floats(expression);
            match *of {
                [a] => a,
                [a, b, c, d] => floats.crossed(a, d, b, c),
                [a, b, c, d, e, f, g, h, i] => {
                    let [first, second, third] =
                        [(e, i, f, h), (d, i, f, g), (d, h, e, g)].map(|(a, b, c, d)| floats.crossed(a, b, c, d));
                    let [first, second, third] =
                        [(a, first), (b, second), (c, third)].map(|(a, b)| floats.binary(Binary::Multiply, a, b));
                    let sum = floats.binary(Binary::Subtract, first, second);
                    floats.binary(Binary::Add, sum, third)
                }
                _ => unreachable!("up to three rows"),
            }
        })
    }

    fn top_k(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<Vec<ValueId>, GraphError> {
        let input = self.input(inputs, 0)?;
        let (mut dims, dtype) = (self.dims(input), self.dtype(input));
        let axis = self.axis(node.int("axis", -1), dims.len())?;
        let count = match node.int("k", 0) {
            0 => self.constant(inputs, 1, "count")?.to_ints().first().copied().unwrap_or(0),
            count => count,
        };
        let count = usize::try_from(count).ok().filter(|&count| count <= dims[axis]);
        dims[axis] = count.ok_or_else(|| self.bad(format!("there are no so many along dimension {axis}")))?;
        let op = Op::TopK { axis, largest: node.int("largest", 1) != 0 };
        Ok(self.emit_all(op, &[input], &[(dtype, &dims), (DataType::Int64, &dims)]))
    }

    /// Each element becomes a row in which only those up to it count; then the rows are summed.
    fn cumulative(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        let (dims, dtype) = (self.dims(input), self.dtype(input));
        let axis = self.constant(inputs, 1, "dimension")?.to_ints().first().copied().unwrap_or(0);
        let axis = self.axis(axis, dims.len())?;
        let (exclusive, reverse) = (node.int("exclusive", 0) != 0, node.int("reverse", 0) != 0);
        let size = dims[axis];
        self.check_constant(&[size, size])?;
        let counts = |to: usize, from: usize| {
            let (to, from) = if reverse { (from, to) } else { (to, from) };
            from < to || (from == to && !exclusive)
        };
        let mask = (0..size * size).map(|index| i64::from(counts(index / size, index % size))).collect();
        let mask = self.graph.constant(Array::new(DataType::Bool, &[size, size], Data::Int(mask)), false);
        let mut order: Vec<_> = (0..dims.len()).filter(|&other| other != axis).collect();
        order.push(axis);
        let turned = self.transpose(input, &order);
        let mut wide = self.dims(turned);
        wide.insert(dims.len() - 1, 1);
        let turned = self.reshape(turned, &wide);
        let zero = self.scalar(dtype, 0.0);
        let kind = kind(dtype);
        let rows = self.apply(&[mask, turned, zero], dtype, |expression, of| {
            expression.push(Instruction::Select(of[0], of[1], of[2]), kind)
        })?;
        let sums = self.reduction(ReduceKind::Sum, rows, &[dims.len()]);
        let narrow: Vec<_> = order.iter().map(|&axis| dims[axis]).collect();
        let sums = self.reshape(sums, &narrow);
        let mut back = vec![0; order.len()];
        order.iter().enumerate().for_each(|(position, &axis)| back[axis] = position);
        Ok(self.transpose(sums, &back))
    }

    fn normalised(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        let axis = self.axis(node.int("axis", -1), self.graph.dims(input).len())?;
        let kind = if node.int("p", 2) == 1 { ReduceKind::SumOfAbsolutes } else { ReduceKind::Norm };
        let norm = self.reduction(kind, input, &[axis]);
        self.binary(Binary::Divide, input, norm)
    }

    fn mean_variance(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        let (rank, dtype) = (self.graph.dims(input).len(), self.dtype(input));
        let axes = node.ints("axes").unwrap_or(&[0, 2, 3]).iter().map(|&axis| self.axis(axis, rank));
        let axes = axes.collect::<Result<Vec<_>, _>>()?;
        let mean = self.reduction(ReduceKind::Mean, input, &axes);
        let centred = self.binary(Binary::Subtract, input, mean)?;
        let squares = self.binary(Binary::Multiply, centred, centred)?;
        let variance = self.reduction(ReduceKind::Mean, squares, &axes);
        let deviation = self.unary(Unary::SquareRoot, variance)?;
        // As the operator's definition has it.
        let epsilon = self.scalar(dtype, 1e-9);
        let deviation = self.binary(Binary::Add, deviation, epsilon)?;
        self.binary(Binary::Divide, centred, deviation)
    }
}
