//! Operators that move elements, pick them, or are about shapes.

use super::{Lowering, NodeInputs, kind};
use crate::array::{Array, Data};
use crate::error::GraphError;
use crate::expression::{Binary, Instruction, ValueKind};
use crate::ir::{Op, ValueId, broadcast};
use crate::model::OnnxNode;
use base::DataType;

/// Padding of more than this is a mistake, and sizes with it would overflow.
const MOST_PADDING: u64 = 1 << 32;

impl Lowering {
    pub(super) fn shape_node(
        &mut self,
        node: &OnnxNode,
        inputs: NodeInputs<'_>,
    ) -> Result<Option<Vec<ValueId>>, GraphError> {
        let value = match node.operator.as_str() {
            "Constant" => self.constant_node(node)?,
            "ConstantOfShape" => self.constant_of_shape(node, inputs)?,
            "Shape" => self.shape_of(node, inputs)?,
            "Size" => {
                let count = self.graph.dims(self.input(inputs, 0)?).iter().product::<usize>();
                self.graph.constant(Array::ints(&[], vec![count as i64]), false)
            }
            "Range" => self.range(inputs)?,
            "Reshape" => self.reshape_node(node, inputs)?,
            "Flatten" => {
                let input = self.input(inputs, 0)?;
                let dims = self.dims(input);
                let axis = node.int("axis", 1);
                let axis = if axis == dims.len() as i64 { dims.len() } else { self.axis(axis, dims.len())? };
                self.reshape(input, &[dims[..axis].iter().product(), dims[axis..].iter().product()])
            }
            "Squeeze" => self.squeeze(node, inputs)?,
            "Unsqueeze" => self.unsqueeze(node, inputs)?,
            "Transpose" => {
                let input = self.input(inputs, 0)?;
                let rank = self.graph.dims(input).len();
                let order = match node.ints("perm") {
                    Some(order) => order.iter().map(|&axis| self.axis(axis, rank)).collect::<Result<Vec<_>, _>>()?,
                    None => (0..rank).rev().collect(),
                };
                let mut sorted = order.clone();
                sorted.sort_unstable();
                if sorted != (0..rank).collect::<Vec<_>>() {
                    return Err(self.bad(format!("{order:?} is no order of {rank} dimensions")));
                }
                self.transpose(input, &order)
            }
            "Concat" => self.concat(node, inputs)?,
            "Split" => return self.split(node, inputs).map(Some),
            "Slice" => self.slice_node(node, inputs)?,
            "Expand" => {
                let input = self.input(inputs, 0)?;
                let wanted =
                    self.constant(inputs, 1, "shape")?.to_ints().iter().map(|&dim| dim as usize).collect::<Vec<_>>();
                let dims = broadcast(self.graph.dims(input), &wanted);
                let dims = dims.ok_or_else(|| self.bad(format!("it can't become {wanted:?}")))?;
                self.expand(input, &dims)
            }
            "Tile" => self.tile(inputs)?,
            "Gather" => self.gather(node, inputs)?,
            "GatherElements" => {
                let (data, indices) = (self.input(inputs, 0)?, self.input(inputs, 1)?);
                let axis = self.axis(node.int("axis", 0), self.graph.dims(data).len())?;
                let (dims, dtype) = (self.dims(indices), self.dtype(data));
                self.emit(Op::Gather { axis, elements: true }, &[data, indices], dtype, &dims)
            }
            "GatherND" => self.gather_nd(node, inputs)?,
            "CenterCropPad" => self.center_crop_pad(node, inputs)?,
            "ReverseSequence" => self.reverse_sequence(node, inputs)?,
            "Compress" => self.compress(node, inputs)?,
            "Pad" => self.pad(node, inputs)?,
            "OneHot" => self.one_hot(node, inputs)?,
            "Trilu" => self.triangle(node, inputs)?,
            "EyeLike" => self.eye(node, inputs)?,
            "NonZero" => self.non_zero(inputs)?,
            _ => return Ok(None),
        };
        Ok(Some(vec![value]))
    }

    fn constant_node(&mut self, node: &OnnxNode) -> Result<ValueId, GraphError> {
        if let Some(tensor) = node.tensor("value") {
            return Ok(self.graph.shared_constant(tensor, true));
        }
        let array = if node.has("value_float") {
            Array::floats(&[], vec![node.float("value_float", 0.0)])
        } else if node.has("value_int") {
            Array::ints(&[], vec![node.int("value_int", 0)])
        } else if let Some(values) = node.floats("value_floats") {
            Array::floats(&[values.len()], values.to_vec())
        } else if let Some(values) = node.ints("value_ints") {
            Array::ints(&[values.len()], values.to_vec())
        } else if node.texts("value_strings").is_some() || node.has("value_string") {
            return Err(self.unsupported(" for strings"));
        } else {
            return Err(self.unsupported(" in this form"));
        };
        Ok(self.graph.constant(array, true))
    }

    fn constant_of_shape(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let dims = self.constant(inputs, 0, "shape")?;
        let dims: Vec<_> = dims.to_ints().iter().map(|&dim| dim.max(0) as usize).collect();
        let (dtype, value) = match node.tensor("value") {
            Some(tensor) => (tensor.dtype, tensor.scalar().ok_or_else(|| self.bad("its value is not one element"))?),
            None => (DataType::Fp32, 0.0),
        };
        Ok(self.filled(dtype, &dims, value))
    }

    /// Known, but another for other sizes.
    fn shape_of(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let dims = self.dims(self.input(inputs, 0)?);
        let rank = dims.len() as i64;
        let bound = |value: i64| (if value < 0 { value + rank } else { value }).clamp(0, rank) as usize;
        let (start, end) = (bound(node.int("start", 0)), bound(node.int("end", rank)));
        let part: Vec<_> = dims[start..end.max(start)].iter().map(|&dim| dim as i64).collect();
        Ok(self.graph.constant(Array::ints(&[part.len()], part), false))
    }

    fn range(&mut self, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let parts =
            [self.constant(inputs, 0, "start")?, self.constant(inputs, 1, "limit")?, self.constant(inputs, 2, "step")?];
        let dtype = parts[0].dtype;
        if parts.iter().any(|part| part.elements() != 1) {
            return Err(self.bad("its start, limit and step are not one number each"));
        }
        let data = match &parts[0].data {
            Data::Float(_) => {
                let [start, limit, step] = parts.map(|part| part.to_floats()[0]);
                let count = ((limit - start) / step).ceil().max(0.0) as usize;
                self.check_constant(&[count])?;
                Data::Float((0..count).map(|index| start + index as f32 * step).collect())
            }
            Data::Int(_) => {
                let [start, limit, step] = parts.map(|part| part.to_ints()[0]);
                if step == 0 {
                    return Err(self.bad("its step is 0"));
                }
                self.check_constant(&[
                    usize::try_from((i128::from(limit) - i128::from(start)) / i128::from(step)).unwrap_or(0)
                ])?;
                let up = std::iter::successors(Some(start), |&at| at.checked_add(step));
                Data::Int(up.take_while(|&at| if step > 0 { at < limit } else { at > limit }).collect())
            }
        };
        let count = match &data {
            Data::Float(data) => data.len(),
            Data::Int(data) => data.len(),
        };
        Ok(self.add_constant(Array::new(dtype, &[count], data)))
    }

    fn reshape_node(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        let wanted = match node.ints("shape") {
            Some(shape) => shape.to_vec(),
            None => self.constant(inputs, 1, "shape")?.to_ints().into_owned(),
        };
        let from = self.dims(input);
        let keep_zero = node.int("allowzero", 0) != 0;
        let known = |(axis, &dim): (usize, &i64)| match dim {
            0 if !keep_zero => from.get(axis).copied(),
            -1 => Some(1),
            dim => usize::try_from(dim).ok(),
        };
        let dims: Option<Vec<_>> = wanted.iter().enumerate().map(known).collect();
        let bad = || self.bad(format!("{from:?} can't become {wanted:?}"));
        let mut dims = dims.ok_or_else(bad)?;
        let rest = dims.iter().try_fold(1usize, |count, &dim| count.checked_mul(dim)).ok_or_else(bad)?;
        let count = from.iter().product::<usize>();
        if let Some(open) = wanted.iter().position(|&dim| dim == -1) {
            dims[open] = count.checked_div(rest).unwrap_or(0);
        }
        if dims.iter().try_fold(1usize, |count, &dim| count.checked_mul(dim)) != Some(count) {
            return Err(bad());
        }
        Ok(self.reshape(input, &dims))
    }

    fn axes(&self, node: &OnnxNode, inputs: NodeInputs<'_>, rank: usize) -> Result<Option<Vec<usize>>, GraphError> {
        let axes = match node.ints("axes") {
            Some(axes) => Some(axes.to_vec()),
            None => self.integers(inputs, 1, "dimension")?,
        };
        axes.map(|axes| axes.iter().map(|&axis| self.axis(axis, rank)).collect()).transpose()
    }

    fn squeeze(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        let dims = self.dims(input);
        let axes = self.axes(node, inputs, dims.len())?;
        let gone = |axis: usize| axes.as_ref().map_or(dims[axis] == 1, |axes| axes.contains(&axis));
        let kept: Vec<_> = (0..dims.len()).filter(|&axis| !gone(axis)).map(|axis| dims[axis]).collect();
        if kept.iter().product::<usize>() != dims.iter().product::<usize>() {
            return Err(self.bad(format!("{dims:?} has other sizes than 1 there")));
        }
        Ok(self.reshape(input, &kept))
    }

    fn unsqueeze(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        let dims = self.dims(input);
        let count = match node.ints("axes") {
            Some(axes) => axes.len(),
            None => self.constant(inputs, 1, "dimension")?.elements(),
        };
        let rank = dims.len() + count;
        let axes = self.axes(node, inputs, rank)?.unwrap_or_default();
        let mut rest = dims.iter().copied();
        let wide: Vec<_> =
            (0..rank).map(|axis| if axes.contains(&axis) { 1 } else { rest.next().unwrap_or(1) }).collect();
        Ok(self.reshape(input, &wide))
    }

    fn concat(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let parts = inputs.iter().flatten().copied().collect::<Vec<_>>();
        let first = *parts.first().ok_or_else(|| self.bad("it has no inputs"))?;
        let axis = self.axis(node.int("axis", 1), self.graph.dims(first).len())?;
        self.join(&parts, axis)
    }

    /// Tensors behind one another along a dimension; there is at least one.
    pub(super) fn join(&mut self, parts: &[ValueId], axis: usize) -> Result<ValueId, GraphError> {
        let first = parts[0];
        let (mut dims, dtype) = (self.dims(first), self.dtype(first));
        for &part in &parts[1..] {
            let own = self.dims(part);
            let fits =
                own.len() == dims.len() && (0..own.len()).all(|other| other == axis || own[other] == dims[other]);
            if !fits || self.dtype(part) != dtype {
                return Err(self.bad(format!("{own:?} and {dims:?} don't go together")));
            }
            dims[axis] += own[axis];
        }
        // What has no elements only stands in the way.
        let parts: Vec<_> = parts.iter().copied().filter(|&part| self.graph.dims(part)[axis] > 0).collect();
        match parts[..] {
            [] => Ok(first),
            [only] => Ok(only),
            _ => Ok(self.emit(Op::Concat { axis }, &parts, dtype, &dims)),
        }
    }

    fn split(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<Vec<ValueId>, GraphError> {
        let input = self.input(inputs, 0)?;
        let dims = self.dims(input);
        let axis = self.axis(node.int("axis", 0), dims.len())?;
        let sizes = match node.ints("split") {
            Some(sizes) => Some(sizes.to_vec()),
            None => self.integers(inputs, 1, "size")?,
        };
        let sizes: Vec<_> = match sizes {
            Some(sizes) => sizes.iter().map(|&size| size.max(0) as usize).collect(),
            None => {
                // Equal parts; the last may be smaller.
                let count = node.int("num_outputs", node.outputs.len() as i64).max(1) as usize;
                let each = dims[axis].div_ceil(count);
                (0..count).map(|part| each.min(dims[axis].saturating_sub(part * each))).collect()
            }
        };
        if sizes.iter().sum::<usize>() != dims[axis] {
            return Err(self.bad(format!("{sizes:?} are not the {} along dimension {axis}", dims[axis])));
        }
        let mut start = 0;
        let mut part = |size: usize| {
            start += size;
            self.part(input, axis, start - size, size)
        };
        Ok(sizes.into_iter().map(&mut part).collect())
    }

    fn slice_node(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        let mut dims = self.dims(input);
        let rank = dims.len();
        let (starts, ends, axes, steps) = match (node.ints("starts"), node.ints("ends")) {
            (Some(starts), Some(ends)) => {
                (starts.to_vec(), ends.to_vec(), node.ints("axes").map(<[i64]>::to_vec), None)
            }
            _ => {
                let starts = self.constant(inputs, 1, "start")?.to_ints().into_owned();
                let ends = self.constant(inputs, 2, "end")?.to_ints().into_owned();
                (starts, ends, self.integers(inputs, 3, "dimension")?, self.integers(inputs, 4, "step")?)
            }
        };
        let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
        let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
        if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
            return Err(self.bad("starts, ends, axes and steps are not equally long"));
        }
        let (mut from, mut by) = (vec![0; rank], vec![1; rank]);
        for (position, &axis) in axes.iter().enumerate() {
            let axis = self.axis(axis, rank)?;
            let (size, step) = (dims[axis] as i64, steps[position]);
            if step == 0 {
                return Err(self.bad("a step is 0"));
            }
            let counted = |bound: i64| if bound < 0 { bound.saturating_add(size) } else { bound };
            let (start, end) = if step > 0 {
                (counted(starts[position]).clamp(0, size), counted(ends[position]).clamp(0, size))
            } else {
                (counted(starts[position]).clamp(0, (size - 1).max(0)), counted(ends[position]).clamp(-1, size - 1))
            };
            let count = if step > 0 { (end - start).max(0) as u64 } else { (start - end).max(0) as u64 };
            dims[axis] = count.div_ceil(step.unsigned_abs()) as usize;
            // Of one element, the way to the next means nothing.
            (from[axis], by[axis]) = (start as usize, if dims[axis] > 1 { step as isize } else { 1 });
        }
        Ok(self.slice(input, &from, &by, &dims))
    }

    fn tile(&mut self, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        let dims = self.dims(input);
        let repeats = self.constant(inputs, 1, "number of repeats")?;
        let repeats: Vec<_> = repeats.to_ints().iter().map(|&count| count.max(0) as usize).collect();
        if repeats.len() != dims.len() {
            return Err(self.bad(format!("{repeats:?} for {} dimensions", dims.len())));
        }
        let apart: Vec<_> = dims.iter().flat_map(|&dim| [1, dim]).collect();
        let wide: Vec<_> = dims.iter().zip(&repeats).flat_map(|(&dim, &count)| [count, dim]).collect();
        let merged: Vec<_> = dims.iter().zip(&repeats).map(|(&dim, &count)| dim.saturating_mul(count)).collect();
        let apart = self.reshape(input, &apart);
        let wide = self.expand(apart, &wide);
        Ok(self.reshape(wide, &merged))
    }

    fn gather(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let (data, indices) = (self.input(inputs, 0)?, self.input(inputs, 1)?);
        let axis = self.axis(node.int("axis", 0), self.graph.dims(data).len())?;
        self.pick(data, indices, axis)
    }

    /// Slices by their positions; neighbours, or one that is repeated, are only parts of the data.
    pub(super) fn pick(&mut self, data: ValueId, indices: ValueId, axis: usize) -> Result<ValueId, GraphError> {
        let (from, picked, dtype) = (self.dims(data), self.dims(indices), self.dtype(data));
        if axis >= from.len() {
            return Err(self.bad("it picks from a scalar"));
        }
        let around = |middle: &[usize]| [&from[..axis], middle, &from[axis + 1..]].concat();
        let dims = around(&picked);
        let Some(known) = self.graph.known(indices).cloned() else {
            return Ok(self.emit(Op::Gather { axis, elements: false }, &[data, indices], dtype, &dims));
        };
        let size = from[axis] as i64;
        let known: Vec<_> = known.to_ints().iter().map(|&index| if index < 0 { index + size } else { index }).collect();
        if known.iter().any(|&index| !(0..size).contains(&index)) {
            return Err(self.bad(format!("its indices are outside of {size}")));
        }
        if !known.is_empty() && known.windows(2).all(|pair| pair[1] == pair[0] + 1) {
            let part = self.part(data, axis, known[0] as usize, known.len());
            return Ok(self.reshape(part, &dims));
        }
        if !known.is_empty() && known.iter().all(|&index| index == known[0]) {
            let part = self.part(data, axis, known[0] as usize, 1);
            let part = self.reshape(part, &around(&vec![1; picked.len()]));
            return Ok(self.expand(part, &dims));
        }
        Ok(self.emit(Op::Gather { axis, elements: false }, &[data, indices], dtype, &dims))
    }

    /// The indices of the leading dimensions become one; those of a batch are one more of them.
    fn gather_nd(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let (data, indices) = (self.input(inputs, 0)?, self.input(inputs, 1)?);
        let (from, picked) = (self.dims(data), self.dims(indices));
        let Some((&depth, lead)) = picked.split_last() else { return Err(self.bad("its indices are a scalar")) };
        let batch = usize::try_from(node.int("batch_dims", 0)).unwrap_or(usize::MAX);
        if batch > lead.len()
            || depth == 0
            || from.len() < batch.saturating_add(depth)
            || from[..batch] != lead[..batch]
        {
            return Err(self.bad(format!("{from:?} and indices {picked:?} don't go together")));
        }
        let sizes = &from[batch..batch + depth];
        let mut flat = self.flat_index(indices, sizes)?;
        if batch > 0 {
            let rows = lead[..batch].iter().product::<usize>();
            self.check_constant(&[rows])?;
            let each = sizes.iter().product::<usize>();
            let mut shape = lead[..batch].to_vec();
            shape.resize(lead.len(), 1);
            let dtype = self.dtype(flat);
            let starts = Data::Int((0..rows).map(|row| (row * each) as i64).collect());
            let starts = self.graph.constant(Array::new(dtype, &shape, starts), false);
            flat = self.binary(Binary::Add, flat, starts)?;
        }
        let mut merged = vec![from[..batch + depth].iter().product()];
        merged.extend(&from[batch + depth..]);
        let data = self.reshape(data, &merged);
        self.pick(data, flat, 0)
    }

    /// The middle of a tensor, or a tensor in the middle of zeros.
    fn center_crop_pad(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        let (mut dims, dtype) = (self.dims(input), self.dtype(input));
        let rank = dims.len();
        let wanted = self.constant(inputs, 1, "shape")?.to_ints().into_owned();
        let axes = match node.ints("axes") {
            Some(axes) => axes.iter().map(|&axis| self.axis(axis, rank)).collect::<Result<Vec<_>, _>>()?,
            None => (0..rank).collect(),
        };
        if axes.len() != wanted.len() {
            return Err(self.bad(format!("{wanted:?} for {} dimensions", axes.len())));
        }
        let (mut starts, mut before, mut padded) = (vec![0; rank], vec![0; rank], dims.clone());
        for (&axis, &size) in axes.iter().zip(&wanted) {
            let size = usize::try_from(size).map_err(|_| self.bad(format!("its shape is {wanted:?}")))?;
            starts[axis] = dims[axis].saturating_sub(size) / 2;
            before[axis] = size.saturating_sub(dims[axis]) / 2;
            (dims[axis], padded[axis]) = (dims[axis].min(size), size);
        }
        let middle = self.slice(input, &starts, &vec![1; rank], &dims);
        if padded == dims {
            return Ok(middle);
        }
        Ok(self.emit(Op::Pad { before, value: 0.0 }, &[middle], dtype, &padded))
    }

    /// The first elements of each sequence the other way round, as many as it has.
    fn reverse_sequence(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let (input, lengths) = (self.input(inputs, 0)?, self.input(inputs, 1)?);
        let (dims, dtype) = (self.dims(input), self.dtype(input));
        let rank = dims.len();
        let (time, batch) = (self.axis(node.int("time_axis", 0), rank)?, self.axis(node.int("batch_axis", 1), rank)?);
        if time == batch || self.graph.dims(lengths) != [dims[batch]] {
            return Err(self.bad(format!("it has not one length for each of dimension {batch} of {dims:?}")));
        }
        let shape = |axis: usize| (0..rank).map(|other| if other == axis { dims[axis] } else { 1 }).collect::<Vec<_>>();
        self.check_constant(&[dims[time]])?;
        let steps = Array::ints(&shape(time), (0..dims[time] as i64).collect());
        let steps = self.graph.constant(steps, false);
        let lengths = self.reshape(lengths, &shape(batch));
        let lengths = self.cast(lengths, DataType::Int64)?;
        let indices = self.apply(&[steps, lengths], DataType::Int64, |expression, of| {
            let inside = expression.push(Instruction::Binary(Binary::Less, of[0], of[1]), ValueKind::Bool);
            let left = expression.push(Instruction::Binary(Binary::Subtract, of[1], of[0]), ValueKind::Int);
            let one = expression.push(Instruction::Int(1), ValueKind::Int);
            let turned = expression.push(Instruction::Binary(Binary::Subtract, left, one), ValueKind::Int);
            expression.push(Instruction::Select(inside, turned, of[0]), ValueKind::Int)
        })?;
        let indices = self.expand(indices, &dims);
        Ok(self.emit(Op::Gather { axis: time, elements: true }, &[input, indices], dtype, &dims))
    }

    /// Only by a condition that is known: otherwise the result's shape would depend on the input.
    fn compress(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let mut input = self.input(inputs, 0)?;
        let condition = self.constant(inputs, 1, "condition")?;
        if !node.has("axis") {
            let count = self.graph.dims(input).iter().product();
            input = self.reshape(input, &[count]);
        }
        let axis = self.axis(node.int("axis", 0), self.graph.dims(input).len())?;
        let condition = condition.to_ints();
        let kept: Vec<_> = (0..condition.len() as i64).filter(|&at| condition[at as usize] != 0).collect();
        let kept = self.add_constant(Array::ints(&[kept.len()], kept));
        self.pick(input, kept, axis)
    }

    fn pad(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        let (dims, dtype) = (self.dims(input), self.dtype(input));
        let rank = dims.len();
        let pads = match node.ints("pads").or(node.ints("paddings")) {
            Some(pads) => pads.to_vec(),
            None => self.constant(inputs, 1, "padding")?.to_ints().into_owned(),
        };
        let axes = match self.integers(inputs, 3, "dimension")? {
            Some(axes) => axes.iter().map(|&axis| self.axis(axis, rank)).collect::<Result<Vec<_>, _>>()?,
            None => (0..rank).collect(),
        };
        if pads.len() != 2 * axes.len() {
            return Err(self.bad(format!("{pads:?} for {} dimensions", axes.len())));
        }
        let (mut before, mut after) = (vec![0; rank], vec![0; rank]);
        for (position, &axis) in axes.iter().enumerate() {
            (before[axis], after[axis]) = (pads[position], pads[position + axes.len()]);
        }
        if before.iter().chain(&after).any(|pad| pad.unsigned_abs() > MOST_PADDING) {
            return Err(self.bad(format!("its padding is {pads:?}")));
        }
        // What is negative is cut off first.
        let cut = |pad: i64| (-pad).max(0) as usize;
        let starts: Vec<_> = before.iter().map(|&pad| cut(pad)).collect();
        let inner: Option<Vec<_>> =
            (0..rank).map(|axis| dims[axis].checked_sub(cut(before[axis]) + cut(after[axis]))).collect();
        let inner = inner.ok_or_else(|| self.bad("more is cut off than there is"))?;
        let input = self.slice(input, &starts, &vec![1; rank], &inner);
        let (before, after): (Vec<_>, Vec<_>) =
            (0..rank).map(|axis| (before[axis].max(0) as usize, after[axis].max(0) as usize)).unzip();
        let padded: Vec<_> = (0..rank).map(|axis| inner[axis] + before[axis] + after[axis]).collect();
        if padded == inner {
            return Ok(input);
        }
        match node.text("mode", "constant") {
            "constant" => {
                let value = match self.optional(inputs, 2) {
                    Some(_) => self.constant(inputs, 2, "value")?.scalar().unwrap_or(0.0) as f32,
                    None => node.float("value", 0.0),
                };
                Ok(self.emit(Op::Pad { before, value }, &[input], dtype, &padded))
            }
            mode => self.pad_with_itself(input, mode, &before, &padded),
        }
    }

    /// Padding that repeats the tensor is a choice of its elements.
    fn pad_with_itself(
        &mut self,
        input: ValueId,
        mode: &str,
        before: &[usize],
        padded: &[usize],
    ) -> Result<ValueId, GraphError> {
        let mut value = input;
        for axis in 0..padded.len() {
            let mut dims = self.dims(value);
            let size = dims[axis] as i64;
            if dims[axis] == padded[axis] {
                continue;
            }
            let pick = |at: usize| {
                let at = at as i64 - before[axis] as i64;
                match mode {
                    "edge" => Some(at.clamp(0, size - 1)),
                    "wrap" => Some(at.rem_euclid(size)),
                    "reflect" => {
                        let period = (2 * (size - 1)).max(1);
                        let at = at.rem_euclid(period);
                        Some(if at < size { at } else { period - at })
                    }
                    _ => None,
                }
            };
            self.check_constant(&padded[axis..=axis])?;
            if size == 0 {
                return Err(self.bad("there is nothing to pad with"));
            }
            let indices: Option<Vec<_>> = (0..padded[axis]).map(pick).collect();
            let indices = indices.ok_or_else(|| self.bad(format!("mode is {mode:?}")))?;
            let indices = self.add_constant(Array::ints(&[padded[axis]], indices));
            dims[axis] = padded[axis];
            let dtype = self.dtype(value);
            value = self.emit(Op::Gather { axis, elements: false }, &[value, indices], dtype, &dims);
        }
        Ok(value)
    }

    fn one_hot(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let indices = self.input(inputs, 0)?;
        let depth = self.constant(inputs, 1, "depth")?.to_ints().first().copied().unwrap_or(0).max(0);
        let values = self.input(inputs, 2)?;
        if self.graph.dims(values) != [2] {
            return Err(self.bad("its values are not two"));
        }
        self.check_constant(&[depth as usize])?;
        let mut dims = self.dims(indices);
        let axis = self.axis(node.int("axis", -1), dims.len() + 1)?;
        dims.insert(axis, 1);
        let indices = self.cast(indices, DataType::Int64)?;
        let indices = self.reshape(indices, &dims);
        let mut shape = vec![1; dims.len()];
        shape[axis] = depth as usize;
        let positions = self.add_constant(Array::ints(&shape, (0..depth).collect()));
        let size = self.scalar(DataType::Int64, depth as f64);
        let (off, on) = (self.part(values, 0, 0, 1), self.part(values, 0, 1, 1));
        let dtype = self.dtype(values);
        let kind = kind(dtype);
        self.apply(&[indices, positions, size, on, off], dtype, |expression, of| {
            // An index may count from the end.
            let other = expression.push(Instruction::Binary(Binary::Subtract, of[1], of[2]), ValueKind::Int);
            let same = expression.push(Instruction::Binary(Binary::Equal, of[0], of[1]), ValueKind::Bool);
            let from_end = expression.push(Instruction::Binary(Binary::Equal, of[0], other), ValueKind::Bool);
            let hit = expression.push(Instruction::Binary(Binary::Or, same, from_end), ValueKind::Bool);
            expression.push(Instruction::Select(hit, of[3], of[4]), kind)
        })
    }

    fn triangle(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        let dims = self.dims(input);
        let [.., rows, columns] = dims[..] else { return Err(self.bad("its input is no matrix")) };
        let shift = match self.optional(inputs, 1) {
            Some(_) => self.constant(inputs, 1, "diagonal")?.to_ints().first().copied().unwrap_or(0),
            None => 0,
        };
        self.check_constant(&[rows, columns])?;
        let upper = node.int("upper", 1) != 0;
        let inside = |row: usize, column: usize| {
            let distance = column as i64 - row as i64;
            if upper { distance >= shift } else { distance <= shift }
        };
        let mask = (0..rows * columns).map(|at| i64::from(inside(at / columns.max(1), at % columns.max(1)))).collect();
        let mask = self.graph.constant(Array::new(DataType::Bool, &[rows, columns], Data::Int(mask)), false);
        let dtype = self.dtype(input);
        let (zero, kind) = (self.scalar(dtype, 0.0), kind(dtype));
        self.apply(&[mask, input, zero], dtype, |expression, of| {
            expression.push(Instruction::Select(of[0], of[1], of[2]), kind)
        })
    }

    fn eye(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        let [rows, columns] = *self.dims(input) else { return Err(self.bad("its input is no matrix")) };
        let dtype = match node.int("dtype", 0) {
            0 => self.dtype(input),
            number => crate::model::element(number as i32)?,
        };
        self.check_constant(&[rows, columns])?;
        let shift = node.int("k", 0);
        let mut array = Array::filled(dtype, &[rows, columns], 0.0);
        for row in 0..rows {
            let column = row as i64 + shift;
            if (0..columns as i64).contains(&column) {
                match &mut array.data {
                    Data::Float(data) => data[row * columns + column as usize] = 1.0,
                    Data::Int(data) => data[row * columns + column as usize] = 1,
                }
            }
        }
        Ok(self.graph.constant(array, false))
    }

    /// Only of constants: otherwise the result's shape would depend on the input.
    fn non_zero(&mut self, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let array = self.constant(inputs, 0, "input")?;
        let strides = crate::plan::row_major(&array.dims);
        let found: Vec<_> =
            array.to_floats().iter().enumerate().filter(|(_, value)| **value != 0.0).map(|(at, _)| at).collect();
        let coordinate = |axis: usize, at: usize| (at / strides[axis] as usize % array.dims[axis]) as i64;
        let data = (0..array.dims.len()).flat_map(|axis| found.iter().map(move |&at| (axis, at)));
        let data = data.map(|(axis, at)| coordinate(axis, at)).collect();
        Ok(self.add_constant(Array::ints(&[array.dims.len(), found.len()], data)))
    }
}
