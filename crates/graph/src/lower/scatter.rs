//! Operators that write elements to positions that their inputs say.

use super::{Lowering, NodeInputs};
use crate::array::Array;
use crate::error::GraphError;
use crate::expression::{Binary, Instruction, ValueKind};
use crate::ir::{Op, ValueId};
use crate::model::OnnxNode;
use crate::plan::ScatterKind;
use base::DataType;

/// Each element of the result looks through all that may be written to it: beyond so many looks in all it would take
/// longer than a model should.
const MOST_LOOKS: usize = 1 << 34;

impl Lowering {
    pub(super) fn scatter_node(
        &mut self,
        node: &OnnxNode,
        inputs: NodeInputs<'_>,
    ) -> Result<Option<Vec<ValueId>>, GraphError> {
        let value = match node.operator.as_str() {
            "ScatterElements" | "Scatter" => {
                let data = self.input(inputs, 0)?;
                let axis = self.axis(node.int("axis", 0), self.graph.dims(data).len())?;
                let kind = self.scatter_kind(node)?;
                self.scattered(data, self.input(inputs, 1)?, self.input(inputs, 2)?, axis, kind)?
            }
            "ScatterND" => self.scatter_nd(node, inputs)?,
            "TensorScatter" => self.tensor_scatter(node, inputs)?,
            "MaxUnpool" => self.max_unpool(node, inputs)?,
            _ => return Ok(None),
        };
        Ok(Some(vec![value]))
    }

    fn scatter_kind(&self, node: &OnnxNode) -> Result<ScatterKind, GraphError> {
        Ok(match node.text("reduction", "none") {
            "none" => ScatterKind::Replace,
            "add" => ScatterKind::Add,
            "mul" => ScatterKind::Multiply,
            "max" => ScatterKind::Maximum,
            "min" => ScatterKind::Minimum,
            other => return Err(self.bad(format!("reduction is {other:?}"))),
        })
    }

    fn scattered(
        &mut self,
        data: ValueId,
        indices: ValueId,
        updates: ValueId,
        axis: usize,
        kind: ScatterKind,
    ) -> Result<ValueId, GraphError> {
        let (dims, own, dtype) = (self.dims(data), self.dims(indices), self.dtype(data));
        let inside = own.len() == dims.len() && (0..own.len()).all(|other| other == axis || own[other] <= dims[other]);
        if !inside || own != self.dims(updates) || self.dtype(updates) != dtype {
            return Err(self.bad(format!("{dims:?}, indices {own:?} and {:?} don't go together", self.dims(updates))));
        }
        if own.contains(&0) {
            return Ok(data);
        }
        if dims.iter().product::<usize>().saturating_mul(own[axis]) > MOST_LOOKS {
            return Err(self.unsupported(&format!(" of {} into {dims:?}", own[axis])));
        }
        Ok(self.emit(Op::Scatter { axis, kind }, &[data, indices, updates], dtype, &dims))
    }

    /// The indices of the leading dimensions become one.
    fn scatter_nd(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let (data, indices, updates) = (self.input(inputs, 0)?, self.input(inputs, 1)?, self.input(inputs, 2)?);
        let (dims, picked) = (self.dims(data), self.dims(indices));
        let Some((&depth, lead)) = picked.split_last() else { return Err(self.bad("its indices are a scalar")) };
        if depth == 0 || depth > dims.len() || self.dims(updates) != [lead, &dims[depth..]].concat() {
            let own = self.dims(updates);
            return Err(self.bad(format!("{dims:?}, indices {picked:?} and {own:?} don't go together")));
        }
        let kind = self.scatter_kind(node)?;
        let count = lead.iter().product::<usize>();
        let inner = dims[depth..].iter().product::<usize>();
        let flat = self.flat_index(indices, &dims[..depth])?;
        let rows = self.reshape(data, &[dims[..depth].iter().product(), inner]);
        let updates = self.reshape(updates, &[count, inner]);
        if kind == ScatterKind::Replace
            && let Some(known) = self.graph.known(flat).cloned()
            && self.dtype(rows) == self.dtype(updates)
        {
            let value = self.replaced(rows, &known.to_ints(), updates)?;
            return Ok(self.reshape(value, &dims));
        }
        let flat = self.reshape(flat, &[count, 1]);
        let flat = self.expand(flat, &[count, inner]);
        let value = self.scattered(rows, flat, updates, 0, kind)?;
        Ok(self.reshape(value, &dims))
    }

    /// Rows that are replaced where that is known: a choice among them all.
    fn replaced(&mut self, rows: ValueId, at: &[i64], updates: ValueId) -> Result<ValueId, GraphError> {
        let (dims, count, dtype) = (self.dims(rows), at.len(), self.dtype(rows));
        self.check_constant(&dims[..1])?;
        let mut choice: Vec<_> = (0..dims[0] as i64).collect();
        for (from, &to) in at.iter().enumerate() {
            let to = usize::try_from(to).ok().filter(|&to| to < dims[0]);
            choice[to.ok_or_else(|| self.bad(format!("its indices are outside of {}", dims[0])))?] =
                (dims[0] + from) as i64;
        }
        if count == 0 {
            return Ok(rows);
        }
        let all = self.emit(Op::Concat { axis: 0 }, &[rows, updates], dtype, &[dims[0] + count, dims[1]]);
        let choice = self.graph.constant(Array::ints(&[dims[0]], choice), false);
        Ok(self.emit(Op::Gather { axis: 0, elements: false }, &[all, choice], dtype, &dims))
    }

    /// New positions of a cache, from a place on that each row of the batch has.
    fn tensor_scatter(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let (data, updates) = (self.input(inputs, 0)?, self.input(inputs, 1)?);
        let (dims, own) = (self.dims(data), self.dims(updates));
        let axis = self.axis(node.int("axis", -2), dims.len())?;
        if axis == 0 || own.len() != dims.len() || own[axis] > dims[axis] {
            return Err(self.bad(format!("{dims:?} and {own:?} don't go together")));
        }
        let mut shape = vec![1; dims.len()];
        shape[axis] = own[axis];
        let steps = Array::ints(&shape, (0..own[axis] as i64).collect());
        let mut indices = self.graph.constant(steps, false);
        if let Some(first) = self.optional(inputs, 2) {
            let mut shape = vec![1; dims.len()];
            shape[0] = dims[0];
            if self.graph.dims(first) != [dims[0]] {
                return Err(self.bad("it has not one place for each row of the batch"));
            }
            let first = self.reshape(first, &shape);
            let first = self.cast(first, DataType::Int64)?;
            indices = self.binary(Binary::Add, indices, first)?;
        }
        match node.text("mode", "linear") {
            "linear" => {}
            "circular" => {
                let size = self.scalar(DataType::Int64, dims[axis] as f64);
                indices = self.binary(Binary::Modulo, indices, size)?;
            }
            other => return Err(self.bad(format!("mode is {other:?}"))),
        }
        let indices = self.expand(indices, &own);
        self.scattered(data, indices, updates, axis, ScatterKind::Replace)
    }

    /// Zeros but where a pool had found its largest.
    fn max_unpool(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let (x, indices) = (self.input(inputs, 0)?, self.input(inputs, 1)?);
        let (dims, dtype) = (self.dims(x), self.dtype(x));
        let rank = dims.len().saturating_sub(2);
        let list = |name: &str, otherwise: i64, count: usize| {
            let list = node.ints(name).map_or_else(|| vec![otherwise; count], <[i64]>::to_vec);
            let fits = list.len() == count && list.iter().all(|value| (0..=super::MOST_WINDOW).contains(value));
            if fits { Ok(list) } else { Err(self.bad(format!("{name} is {list:?}"))) }
        };
        let kernel = list("kernel_shape", 1, rank)?;
        let (strides, pads) = (list("strides", 1, rank)?, list("pads", 0, 2 * rank)?);
        let size = |axis: usize| {
            let size = (dims[axis + 2] as i64 - 1) * strides[axis] + kernel[axis] - pads[axis] - pads[axis + rank];
            usize::try_from(size).map_err(|_| self.bad("more is cut off than there is"))
        };
        let mut whole = dims[..2.min(dims.len())].to_vec();
        for axis in 0..rank {
            whole.push(size(axis)?);
        }
        let count = dims.iter().product::<usize>();
        self.check_constant(&whole)?;
        let empty = self.filled(dtype, &[whole.iter().product()], 0.0);
        let (x, indices) = (self.reshape(x, &[count]), self.reshape(indices, &[count]));
        let value = self.scattered(empty, indices, x, 0, ScatterKind::Replace)?;
        let value = self.reshape(value, &whole);
        let Some(wanted) = self.integers(inputs, 2, "shape")? else { return Ok(value) };
        let wanted: Vec<_> = wanted.iter().map(|&size| size.max(0) as usize).collect();
        if wanted.len() != whole.len() || wanted.iter().zip(&whole).any(|(wanted, size)| wanted < size) {
            return Err(self.unsupported(&format!(" of {whole:?} as {wanted:?}")));
        }
        Ok(self.emit(Op::Pad { before: vec![0; wanted.len()], value: 0.0 }, &[value], dtype, &wanted))
    }

    /// Positions in several dimensions as one in all of them together.
    pub(super) fn flat_index(&mut self, indices: ValueId, sizes: &[usize]) -> Result<ValueId, GraphError> {
        let picked = self.dims(indices);
        let axis = picked.len() - 1;
        let index_type = self.dtype(indices);
        let mut flat: Option<ValueId> = None;
        for (position, &size) in sizes.iter().enumerate() {
            let one = self.part(indices, axis, position, 1);
            let one = self.reshape(one, &picked[..axis]);
            let count = self.scalar(index_type, size as f64);
            let counted = self.apply(&[one, count], index_type, |expression, of| {
                let zero = expression.push(Instruction::Int(0), ValueKind::Int);
                let negative = expression.push(Instruction::Binary(Binary::Less, of[0], zero), ValueKind::Bool);
                let moved = expression.push(Instruction::Binary(Binary::Add, of[0], of[1]), ValueKind::Int);
                expression.push(Instruction::Select(negative, moved, of[0]), ValueKind::Int)
            })?;
            flat = Some(match flat {
                None => counted,
                Some(before) => {
                    let before = self.binary(Binary::Multiply, before, count)?;
                    self.binary(Binary::Add, before, counted)?
                }
            });
        }
        flat.ok_or_else(|| self.bad("its indices have no depth"))
    }
}
