//! Operators on images: convolutions, pools, normalisations across channels, other sizes.

use super::{Lowering, NodeInputs};
use crate::array::Array;
use crate::error::GraphError;
use crate::expression::{Binary, Unary};
use crate::ir::{Op, ValueId};
use crate::model::OnnxNode;
use crate::plan::{Activation, Coordinates, PoolKind, ReduceKind, ResizeKind, Rounding, Window};
use base::DataType;

/// No window of a network is larger, moves further or reaches further; beyond, sizes would overflow.
pub(crate) const MOST_WINDOW: i64 = 1 << 20;

impl Lowering {
    pub(super) fn image_node(
        &mut self,
        node: &OnnxNode,
        inputs: NodeInputs<'_>,
    ) -> Result<Option<Vec<ValueId>>, GraphError> {
        let value = match node.operator.as_str() {
            "Conv" => self.conv(node, inputs)?,
            "ConvTranspose" => self.conv_transpose(node, inputs)?,
            "MaxPool" => self.pool(node, inputs, PoolKind::Max)?,
            "AveragePool" => {
                let count_include_pad = node.int("count_include_pad", 0) != 0;
                self.pool(node, inputs, PoolKind::Average { count_include_pad })?
            }
            "GlobalAveragePool" => self.global_pool(inputs, ReduceKind::Mean)?,
            "GlobalMaxPool" => self.global_pool(inputs, ReduceKind::Max)?,
            "BatchNormalization" => self.batch_norm(node, inputs)?,
            "InstanceNormalization" => self.group_norm(node, inputs, true)?,
            "GroupNormalization" => self.group_norm(node, inputs, false)?,
            "LRN" => self.lrn(node, inputs)?,
            "Resize" | "Upsample" => self.resize(node, inputs)?,
            "DepthToSpace" => self.depth_to_space(node, inputs)?,
            "SpaceToDepth" => self.space_to_depth(node, inputs)?,
            _ => return Ok(None),
        };
        Ok(Some(vec![value]))
    }

    /// Gives a line one row, so that it is an image.
    pub(super) fn as_image(&mut self, value: ValueId) -> Result<(ValueId, bool), GraphError> {
        let dims = self.dims(value);
        match *dims {
            [_, _, _, _] => Ok((value, false)),
            [n, c, length] => Ok((self.reshape(value, &[n, c, 1, length]), true)),
            _ => Err(self.unsupported(&format!(" for {} dimensions", dims.len()))),
        }
    }

    /// Takes the row away again.
    pub(super) fn without_row(&mut self, value: ValueId, line: bool) -> ValueId {
        match *self.dims(value) {
            [n, c, _, length] if line => self.reshape(value, &[n, c, length]),
            _ => value,
        }
    }

    /// An attribute with one number for each of rows and columns.
    fn pair(&self, node: &OnnxNode, name: &str, line: bool) -> Result<[usize; 2], GraphError> {
        let pair = match node.ints(name) {
            None => Some([1, 1]),
            Some(&[columns]) if line => Some([1, columns]),
            Some(&[rows, columns]) if !line => Some([rows, columns]),
            Some(_) => None,
        };
        let pair = pair.filter(|pair| pair.iter().all(|&value| value > 0 && value <= MOST_WINDOW));
        let pair = pair.ok_or_else(|| self.bad(format!("{name} is {:?}", node.ints(name))))?;
        Ok(pair.map(|value| value as usize))
    }

    pub(super) fn window(
        &self,
        node: &OnnxNode,
        image: &[usize],
        kernel: [usize; 2],
        line: bool,
    ) -> Result<Window, GraphError> {
        let strides = self.pair(node, "strides", line)?;
        let dilations = self.pair(node, "dilations", line)?;
        let (mut before, mut after) = ([0; 2], [0; 2]);
        let reach = |axis: usize| (kernel[axis] - 1) * dilations[axis] + 1;
        match node.text("auto_pad", "NOTSET") {
            "NOTSET" | "" => {
                let pads = node.ints("pads").unwrap_or(&[]);
                if pads.iter().any(|&pad| !(0..=MOST_WINDOW).contains(&pad)) {
                    return Err(self.unsupported(&format!(" with the padding {pads:?}")));
                }
                match (pads, line) {
                    ([], _) => {}
                    (&[left, right], true) => (before[1], after[1]) = (left as usize, right as usize),
                    (&[top, left, bottom, right], false) => {
                        (before, after) = ([top as usize, left as usize], [bottom as usize, right as usize]);
                    }
                    _ => return Err(self.bad(format!("pads is {pads:?}"))),
                }
            }
            "VALID" => {}
            same @ ("SAME_UPPER" | "SAME_LOWER") => {
                for axis in 0..2 {
                    let wanted = image[axis].div_ceil(strides[axis]);
                    let total = ((wanted.max(1) - 1) * strides[axis] + reach(axis)).saturating_sub(image[axis]);
                    before[axis] = if same == "SAME_UPPER" { total / 2 } else { total.div_ceil(2) };
                    after[axis] = total - before[axis];
                }
            }
            other => return Err(self.bad(format!("auto_pad is {other:?}"))),
        }
        Ok(Window { kernel, strides, dilations, pads_before: before, pads_after: after })
    }

    /// The size of what a window leaves.
    pub(super) fn moved(&self, window: &Window, image: &[usize], round_up: bool) -> Result<[usize; 2], GraphError> {
        let mut sizes = [0; 2];
        for axis in 0..2 {
            let reach = (window.kernel[axis] - 1) * window.dilations[axis] + 1;
            let padded = image[axis] + window.pads_before[axis] + window.pads_after[axis];
            let room = padded.checked_sub(reach);
            let room = room.ok_or_else(|| self.bad(format!("a window of {reach} doesn't fit into {padded}")))?;
            sizes[axis] = room / window.strides[axis] + 1;
            if round_up {
                let up = room.div_ceil(window.strides[axis]) + 1;
                // A window that begins in the padding behind the image has nothing to look at.
                let starts_inside = (up - 1) * window.strides[axis] < image[axis] + window.pads_before[axis];
                sizes[axis] = if starts_inside { up } else { up - 1 };
            }
        }
        Ok(sizes)
    }

    fn conv(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let (input, line) = self.as_image(self.input(inputs, 0)?)?;
        let (weight, _) = self.as_image(self.input(inputs, 1)?)?;
        self.check_float(input)?;
        self.check_float(weight)?;
        let (dims, weights) = (self.dims(input), self.dims(weight));
        let groups = usize::try_from(node.int("group", 1)).ok().filter(|&groups| groups > 0);
        let groups =
            groups.filter(|&groups| weights[1].checked_mul(groups) == Some(dims[1]) && weights[0] % groups == 0);
        let groups = groups.filter(|_| !dims.contains(&0) && !weights.contains(&0));
        let groups = groups.ok_or_else(|| self.bad(format!("{dims:?} and weights {weights:?} don't go together")))?;
        let window = self.window(node, &dims[2..], [weights[2], weights[3]], line)?;
        let [rows, columns] = self.moved(&window, &dims[2..], false)?;
        let mut all = vec![input, weight];
        all.extend(self.optional(inputs, 2));
        let op = Op::Conv { window, groups, bias: all.len() == 3, residual: false, activation: Activation::None };
        let dtype = self.dtype(input);
        let value = self.emit(op, &all, dtype, &[dims[0], weights[0], rows, columns]);
        Ok(self.without_row(value, line))
    }

    /// Spreads the image by the strides, with zeros between, and lets a turned kernel move over it. Where kernels don't
    /// overlap it is a matrix product instead, whose columns are put side by side.
    fn conv_transpose(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let (input, line) = self.as_image(self.input(inputs, 0)?)?;
        let (weight, _) = self.as_image(self.input(inputs, 1)?)?;
        self.check_float(input)?;
        self.check_float(weight)?;
        let (dims, weights) = (self.dims(input), self.dims(weight));
        let groups = node.int("group", 1).clamp(1, MOST_WINDOW) as usize;
        if weights[0] != dims[1] || dims[1] % groups != 0 || dims.contains(&0) || weights.contains(&0) {
            return Err(self.bad(format!("{dims:?} and weights {weights:?} don't go together")));
        }
        let (channels, dtype) = (weights[1] * groups, self.dtype(input));
        let kernel = [weights[2], weights[3]];
        let strides = self.pair(node, "strides", line)?;
        let dilations = self.pair(node, "dilations", line)?;
        let mut extra = match node.ints("output_padding") {
            None => [0, 0],
            Some(&[columns]) if line => [0, columns.clamp(0, MOST_WINDOW) as usize],
            Some(&[rows, columns]) if !line => [rows, columns].map(|extra| extra.clamp(0, MOST_WINDOW) as usize),
            Some(other) => return Err(self.bad(format!("output_padding is {other:?}"))),
        };
        let reached = |axis: usize| (dims[axis + 2] - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1;
        let full = [reached(0) + extra[0], reached(1) + extra[1]];
        let [before, after, more] = self.transposed_pads(node, line, full, [dims[2], dims[3]], strides)?;
        extra = [extra[0] + more[0], extra[1] + more[1]];
        let full = |axis: usize| reached(axis) + extra[axis];
        let size = |axis: usize| {
            let size = full(axis).checked_sub(before[axis] + after[axis]);
            size.ok_or_else(|| self.bad("more is cut off than there is"))
        };
        let (rows, columns) = (size(0)?, size(1)?);
        let value = if kernel == strides
            && dilations == [1, 1]
            && groups == 1
            && extra == [0; 2]
            && before == [0; 2]
            && after == [0; 2]
        {
            self.side_by_side(input, weight)
        } else {
            let spread = self.spread(input, strides);
            // Kernels turned by half, with input and output channels changed places within each group.
            let turned = self.turned(weight, groups);
            let reach = |axis: usize| (kernel[axis] - 1) * dilations[axis];
            let (spread, window) =
                self.around(spread, kernel, dilations, [reach(0), reach(1)], before, after, extra)?;
            let op = Op::Conv { window, groups, bias: false, residual: false, activation: Activation::None };
            self.emit(op, &[spread, turned], dtype, &[dims[0], channels, rows, columns])
        };
        let value = match self.optional(inputs, 2) {
            Some(bias) => {
                let bias = self.reshape(bias, &[channels, 1, 1]);
                self.binary(Binary::Add, value, bias)?
            }
            None => value,
        };
        Ok(self.without_row(value, line))
    }

    /// What is cut off before and behind, and what is missing behind.
    fn transposed_pads(
        &self,
        node: &OnnxNode,
        line: bool,
        full: [usize; 2],
        image: [usize; 2],
        strides: [usize; 2],
    ) -> Result<[[usize; 2]; 3], GraphError> {
        let spatial = |values: &[i64]| match *values {
            [columns] if line => Some([image[0], columns.max(0) as usize]),
            [rows, columns] if !line => Some([rows.max(0) as usize, columns.max(0) as usize]),
            [_, _, columns] if line => Some([image[0], columns.max(0) as usize]),
            [_, _, rows, columns] => Some([rows.max(0) as usize, columns.max(0) as usize]),
            _ => None,
        };
        let auto = node.text("auto_pad", "NOTSET");
        let wanted = match node.ints("output_shape") {
            Some(shape) => Some(spatial(shape).ok_or_else(|| self.bad(format!("output_shape is {shape:?}")))?),
            None if auto.starts_with("SAME") => Some([image[0] * strides[0], image[1] * strides[1]]),
            None => None,
        };
        if let Some(wanted) = wanted {
            let (mut before, mut after, mut more) = ([0; 2], [0; 2], [0; 2]);
            for axis in 0..2 {
                if wanted[axis] >= full[axis] + strides[axis] {
                    return Err(self.unsupported(" with an output larger than the input reaches"));
                }
                let total = full[axis].saturating_sub(wanted[axis]);
                before[axis] = if auto == "SAME_UPPER" { total / 2 } else { total.div_ceil(2) };
                after[axis] = total - before[axis];
                more[axis] = wanted[axis].saturating_sub(full[axis]);
            }
            return Ok([before, after, more]);
        }
        match (node.ints("pads").unwrap_or(&[]), line) {
            ([], _) => Ok([[0; 2]; 3]),
            (&[left, right], true) if [left, right].iter().all(|pad| (0..=MOST_WINDOW).contains(pad)) => {
                Ok([[0, left as usize], [0, right as usize], [0; 2]])
            }
            (&[top, left, bottom, right], false)
                if [top, left, bottom, right].iter().all(|pad| (0..=MOST_WINDOW).contains(pad)) =>
            {
                Ok([[top as usize, left as usize], [bottom as usize, right as usize], [0; 2]])
            }
            (pads, _) => Err(self.bad(format!("pads is {pads:?}"))),
        }
    }

    /// A transposed convolution whose kernels lie side by side: each pixel becomes a block.
    fn side_by_side(&mut self, input: ValueId, weight: ValueId) -> ValueId {
        let (dims, weights, dtype) = (self.dims(input), self.dims(weight), self.dtype(input));
        let [batch, channels, rows, columns] = *dims else { unreachable!("an image") };
        let [_, out, height, width] = *weights else { unreachable!("kernels") };
        let pixels = self.transpose(input, &[0, 2, 3, 1]);
        let pixels = self.reshape(pixels, &[batch * rows * columns, channels]);
        // Channels closest together, as they will lie.
        let matrix = self.transpose(weight, &[0, 2, 3, 1]);
        let matrix = self.reshape(matrix, &[channels, height * width * out]);
        let op = Op::Gemm { alpha: 1.0, bias: false, residual: false, activation: Activation::None };
        let blocks = self.emit(op, &[pixels, matrix], dtype, &[batch * rows * columns, height * width * out]);
        let blocks = self.reshape(blocks, &[batch, rows, columns, height, width, out]);
        let blocks = self.transpose(blocks, &[0, 1, 3, 2, 4, 5]);
        let blocks = self.reshape(blocks, &[batch, rows * height, columns * width, out]);
        self.transpose(blocks, &[0, 3, 1, 2])
    }

    /// Puts zeros between rows and columns.
    fn spread(&mut self, input: ValueId, strides: [usize; 2]) -> ValueId {
        let [batch, channels, rows, columns] = *self.dims(input) else { unreachable!("an image") };
        if strides == [1, 1] {
            return input;
        }
        let dtype = self.dtype(input);
        let apart = self.reshape(input, &[batch, channels, rows, 1, columns, 1]);
        let padded = [batch, channels, rows, strides[0], columns, strides[1]];
        let apart = self.emit(Op::Pad { before: vec![0; 6], value: 0.0 }, &[apart], dtype, &padded);
        let wide = self.reshape(apart, &[batch, channels, rows * strides[0], columns * strides[1]]);
        let dims = [batch, channels, (rows - 1) * strides[0] + 1, (columns - 1) * strides[1] + 1];
        self.slice(wide, &[0; 4], &[1; 4], &dims)
    }

    fn turned(&mut self, weight: ValueId, groups: usize) -> ValueId {
        let [from, to, height, width] = *self.dims(weight) else { unreachable!("kernels") };
        let turned = self.slice_turned(weight);
        let grouped = self.reshape(turned, &[groups, from / groups, to, height, width]);
        let swapped = self.transpose(grouped, &[0, 2, 1, 3, 4]);
        self.reshape(swapped, &[groups * to, from / groups, height, width])
    }

    fn slice_turned(&mut self, weight: ValueId) -> ValueId {
        let dims = self.dims(weight);
        let dtype = self.dtype(weight);
        let op = Op::Slice { starts: vec![0, 0, dims[2] - 1, dims[3] - 1], steps: vec![1, 1, -1, -1] };
        self.emit(op, &[weight], dtype, &dims)
    }

    /// The window that moves over a spread image; padding that would be negative is cut off the image instead.
    #[allow(clippy::too_many_arguments, reason = "each is a side of the image")]
    fn around(
        &mut self,
        image: ValueId,
        kernel: [usize; 2],
        dilations: [usize; 2],
        reach: [usize; 2],
        cut_before: [usize; 2],
        cut_after: [usize; 2],
        extra: [usize; 2],
    ) -> Result<(ValueId, Window), GraphError> {
        let mut dims = self.dims(image);
        let mut starts = vec![0; 4];
        let (mut before, mut after) = ([0; 2], [0; 2]);
        for axis in 0..2 {
            let need_after = (reach[axis] + extra[axis]) as isize - cut_after[axis] as isize;
            let need_before = reach[axis] as isize - cut_before[axis] as isize;
            before[axis] = need_before.max(0) as usize;
            after[axis] = need_after.max(0) as usize;
            starts[axis + 2] = (-need_before).max(0) as usize;
            let left = dims[axis + 2].checked_sub(starts[axis + 2] + (-need_after).max(0) as usize);
            dims[axis + 2] = left.ok_or_else(|| self.bad("more is cut off than there is"))?;
        }
        let image = self.slice(image, &starts, &[1; 4], &dims);
        Ok((image, Window { kernel, strides: [1, 1], dilations, pads_before: before, pads_after: after }))
    }

    pub(super) fn pool(
        &mut self,
        node: &OnnxNode,
        inputs: NodeInputs<'_>,
        kind: PoolKind,
    ) -> Result<ValueId, GraphError> {
        let (input, line) = self.as_image(self.input(inputs, 0)?)?;
        let (dims, dtype) = (self.dims(input), self.dtype(input));
        if node.ints("kernel_shape").is_none() {
            return Err(self.bad("it has no kernel_shape"));
        }
        let kernel = self.pair(node, "kernel_shape", line)?;
        let window = self.window(node, &dims[2..], kernel, line)?;
        let [rows, columns] = self.moved(&window, &dims[2..], node.int("ceil_mode", 0) != 0)?;
        let value = if window.kernel == [dims[2], dims[3]]
            && window.pads_before == [0; 2]
            && window.pads_after == [0; 2]
            && window.dilations == [1; 2]
            && [rows, columns] == [1, 1]
        {
            // A window as large as the image.
            let kind = if kind == PoolKind::Max { ReduceKind::Max } else { ReduceKind::Mean };
            self.emit(Op::Reduce { kind, axes: vec![2, 3] }, &[input], dtype, &[dims[0], dims[1], 1, 1])
        } else {
            self.emit(Op::Pool { kind, window }, &[input], dtype, &[dims[0], dims[1], rows, columns])
        };
        Ok(self.without_row(value, line))
    }

    pub(super) fn global_pool(&mut self, inputs: NodeInputs<'_>, kind: ReduceKind) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        let mut dims = self.dims(input);
        let axes: Vec<_> = (2..dims.len()).collect();
        axes.iter().for_each(|&axis| dims[axis] = 1);
        let dtype = self.dtype(input);
        Ok(self.emit(Op::Reduce { kind, axes }, &[input], dtype, &dims))
    }

    /// Factor and summand for each channel, as two nodes that the convolution before can take in.
    fn batch_norm(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        if node.int("training_mode", 0) != 0 || node.outputs.iter().skip(1).any(|name| !name.is_empty()) {
            return Err(self.unsupported(" in training mode"));
        }
        let input = self.input(inputs, 0)?;
        let rank = self.graph.dims(input).len();
        let channels = self.graph.dims(input).get(1).copied().unwrap_or(1);
        let dtype = self.dtype(input);
        let mut parameter = [0; 4];
        for (position, parameter) in parameter.iter_mut().enumerate() {
            let value = self.input(inputs, position + 1)?;
            let mut dims = vec![channels];
            dims.resize(rank.saturating_sub(1).max(1), 1);
            if self.graph.dims(value) != [channels] {
                return Err(self.bad(format!("input {} has not {channels} elements", position + 1)));
            }
            let value = self.reshape(value, &dims);
            *parameter = self.cast(value, dtype)?;
        }
        let [scale, shift, mean, variance] = parameter;
        let epsilon = self.scalar(dtype, f64::from(node.float("epsilon", 1e-5)));
        let variance = self.binary(Binary::Add, variance, epsilon)?;
        let deviation = self.unary(Unary::SquareRoot, variance)?;
        let factor = self.binary(Binary::Divide, scale, deviation)?;
        let moved = self.binary(Binary::Multiply, mean, factor)?;
        let summand = self.binary(Binary::Subtract, shift, moved)?;
        let scaled = self.binary(Binary::Multiply, input, factor)?;
        self.binary(Binary::Add, scaled, summand)
    }

    /// Normalises each group of channels of each image; then factor and summand.
    fn group_norm(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>, instance: bool) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        let (dims, dtype) = (self.dims(input), self.dtype(input));
        if dims.len() < 3 || dims.contains(&0) {
            return Err(self.bad(format!("{dims:?} is no image")));
        }
        self.check_float(input)?;
        let groups = if instance { dims[1] } else { node.int("num_groups", 1).max(1) as usize };
        if dims[1] % groups != 0 {
            return Err(self.bad(format!("{dims:?} has no {groups} groups of channels")));
        }
        let grouped = [dims[0], groups, dims[1..].iter().product::<usize>() / groups];
        let flat = self.reshape(input, &grouped);
        let epsilon = node.float("epsilon", 1e-5);
        let op = Op::LayerNorm { axis: 2, epsilon, root_mean_square: false, scale: false, shift: false };
        let normal = self.emit(op, &[flat], dtype, &grouped);
        let mut value = self.reshape(normal, &dims);
        for (position, function) in [(1, Binary::Multiply), (2, Binary::Add)] {
            let parameter = self.input(inputs, position)?;
            let count = self.graph.dims(parameter).iter().product::<usize>();
            let parameter = if count == dims[1] {
                parameter
            } else if count == groups {
                // The operator's first version has one for each group.
                let each = self.reshape(parameter, &[groups, 1]);
                let each = self.expand(each, &[groups, dims[1] / groups]);
                self.reshape(each, &[dims[1]])
            } else {
                return Err(self.bad(format!("input {position} has {count} elements")));
            };
            let mut shape = vec![dims[1]];
            shape.resize(dims.len() - 1, 1);
            let parameter = self.reshape(parameter, &shape);
            value = self.binary(function, value, parameter)?;
        }
        Ok(value)
    }

    fn lrn(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        self.check_float(input)?;
        let (dims, dtype) = (self.dims(input), self.dtype(input));
        let size = usize::try_from(node.int("size", 0)).ok().filter(|&size| size > 0 && dims.len() >= 2);
        let size = size.ok_or_else(|| self.bad("it has no size"))?;
        let [alpha, beta, bias] =
            [("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)].map(|(name, value)| node.float(name, value));
        Ok(self.emit(Op::Lrn { size, alpha, beta, bias }, &[input], dtype, &dims))
    }

    fn resize(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let old = node.operator == "Upsample" || self.opset < 11;
        let original = self.input(inputs, 0)?;
        let rank = self.graph.dims(original).len();
        let (scales, sizes) = if old {
            match node.floats("scales") {
                Some(scales) => (Some(scales.to_vec()), None),
                None => (Some(self.constant(inputs, 1, "scale")?.to_floats().into_owned()), None),
            }
        } else {
            let scales = self.optional(inputs, 2).map(|_| self.constant(inputs, 2, "scale")).transpose()?;
            let scales = scales.map(|scales| scales.to_floats().into_owned()).filter(|scales| !scales.is_empty());
            (scales, self.integers(inputs, 3, "size")?.filter(|sizes| !sizes.is_empty()))
        };
        let dims = self.dims(original);
        // Dimensions that aren't named stay as they are.
        let axes = match node.ints("axes") {
            Some(axes) => axes.iter().map(|&axis| self.axis(axis, rank)).collect::<Result<Vec<_>, _>>()?,
            None => (0..rank).collect(),
        };
        let (mut scale, mut to) = (vec![1.0; rank], dims.clone());
        for (position, &axis) in axes.iter().enumerate() {
            if let Some(sizes) = &sizes {
                let size = sizes.get(position).and_then(|&size| usize::try_from(size).ok());
                to[axis] = size.ok_or_else(|| self.bad(format!("sizes is {sizes:?}")))?;
                scale[axis] = to[axis] as f32 / dims[axis] as f32;
            } else if let Some(scales) = &scales {
                scale[axis] = *scales.get(position).ok_or_else(|| self.bad(format!("scales is {scales:?}")))?;
                to[axis] = (dims[axis] as f32 * scale[axis]).floor() as usize;
            } else {
                return Err(self.bad("it has neither scales nor sizes"));
            }
        }
        if sizes.is_some() {
            self.keep_aspect(node, &dims, &axes, &mut scale, &mut to)?;
        }
        let crops = node.text("coordinate_transformation_mode", "") == "tf_crop_and_resize";
        if !crops && dims == to && scale.iter().all(|&scale| scale == 1.0) {
            return Ok(original);
        }
        if crops || node.int("antialias", 0) != 0 || !(3..=4).contains(&rank) || dims[..2] != to[..2] {
            return self.resize_by_tables(node, inputs, &axes, &scale, &to);
        }
        let (input, line) = self.as_image(original)?;
        let (mut image, dtype) = (self.dims(input), self.dtype(input));
        let last: Vec<_> = scale[2..].to_vec();
        let scales = if line { [1.0, last[0]] } else { [last[0], last[1]] };
        image[3] = to[rank - 1];
        image[2] = if line { 1 } else { to[2] };
        let (kind, coordinates) = self.resize_kind(node, old)?;
        let value = self.emit(Op::Resize { kind, coordinates, scales }, &[input], dtype, &image);
        Ok(self.without_row(value, line))
    }

    /// One scale for all dimensions, where the shape of what is shown is to stay the same.
    fn keep_aspect(
        &self,
        node: &OnnxNode,
        dims: &[usize],
        axes: &[usize],
        scale: &mut [f32],
        to: &mut [usize],
    ) -> Result<(), GraphError> {
        let all = axes.iter().map(|&axis| scale[axis]);
        let one = match node.text("keep_aspect_ratio_policy", "stretch") {
            "stretch" => return Ok(()),
            "not_larger" => all.fold(f32::INFINITY, f32::min),
            "not_smaller" => all.fold(0.0, f32::max),
            other => return Err(self.bad(format!("keep_aspect_ratio_policy is {other:?}"))),
        };
        for &axis in axes {
            scale[axis] = one;
            to[axis] = (one * dims[axis] as f32 + 0.5).floor() as usize;
        }
        Ok(())
    }

    pub(super) fn resize_kind(&self, node: &OnnxNode, old: bool) -> Result<(ResizeKind, Coordinates), GraphError> {
        let rounding = match node.text("nearest_mode", if old { "floor" } else { "round_prefer_floor" }) {
            "floor" => Rounding::Floor,
            "ceil" => Rounding::Ceil,
            "round_prefer_floor" => Rounding::RoundPreferFloor,
            "round_prefer_ceil" => Rounding::RoundPreferCeil,
            other => return Err(self.bad(format!("nearest_mode is {other:?}"))),
        };
        let kind = match node.text("mode", "nearest") {
            "nearest" => ResizeKind::Nearest(rounding),
            "linear" | "bilinear" => ResizeKind::Linear,
            "cubic" => ResizeKind::Cubic {
                coefficient: node.float("cubic_coeff_a", -0.75),
                exclude_outside: node.int("exclude_outside", 0) != 0,
            },
            other => return Err(self.bad(format!("mode is {other:?}"))),
        };
        let named = node.text("coordinate_transformation_mode", if old { "asymmetric" } else { "half_pixel" });
        let coordinates = match named {
            "half_pixel" => Coordinates::HalfPixel,
            "pytorch_half_pixel" => Coordinates::PytorchHalfPixel,
            "asymmetric" => Coordinates::Asymmetric,
            "align_corners" => Coordinates::AlignCorners,
            "half_pixel_symmetric" => Coordinates::HalfPixelSymmetric,
            other => return Err(self.unsupported(&format!(" with the coordinates {other}"))),
        };
        Ok((kind, coordinates))
    }

    fn depth_to_space(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        let block = node.int("blocksize", 1).clamp(1, MOST_WINDOW) as usize;
        let [n, c, h, w] = *self.dims(input) else { return Err(self.unsupported(" for other than images")) };
        if c % (block * block) != 0 {
            return Err(self.bad(format!("{c} channels are no blocks of {block}")));
        }
        let each = c / (block * block);
        let (apart, order) = match node.text("mode", "DCR") {
            "CRD" => ([n, each, block, block, h, w], [0, 1, 4, 2, 5, 3]),
            _ => ([n, block, block, each, h, w], [0, 3, 4, 1, 5, 2]),
        };
        let apart = self.reshape(input, &apart);
        let turned = self.transpose(apart, &order);
        Ok(self.reshape(turned, &[n, each, h * block, w * block]))
    }

    fn space_to_depth(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        let block = node.int("blocksize", 1).clamp(1, MOST_WINDOW) as usize;
        let [n, c, h, w] = *self.dims(input) else { return Err(self.unsupported(" for other than images")) };
        if h % block != 0 || w % block != 0 {
            return Err(self.bad(format!("{h} x {w} are no blocks of {block}")));
        }
        let apart = self.reshape(input, &[n, c, h / block, block, w / block, block]);
        let turned = self.transpose(apart, &[0, 3, 5, 1, 2, 4]);
        Ok(self.reshape(turned, &[n, c * block * block, h / block, w / block]))
    }

    /// One value everywhere.
    pub(super) fn filled(&mut self, dtype: DataType, dims: &[usize], value: f64) -> ValueId {
        let scalar = self.add_constant(Array::filled(dtype, &vec![1; dims.len()], value));
        self.expand(scalar, dims)
    }
}
