//! Windows that move over any number of dimensions, as a choice of elements that is known ahead: for each place of the
//! result, the elements under the window. Pools and convolutions of volumes, and what is rare for images, are this
//! choice and a reduction or a product behind it; it takes as much memory as all windows together.

use super::{Lowering, MOST_WINDOW, NodeInputs};
use crate::array::{Array, Data, is_float};
use crate::error::GraphError;
use crate::expression::{Binary, Instruction, Register, Unary, ValueKind};
use crate::ir::{Op, ValueId};
use crate::model::OnnxNode;
use crate::plan::{Activation, PoolKind, ReduceKind};
use base::DataType;

/// Up to so many elements under a window are put together by one expression, which has each as an input.
const FEW: usize = 8;

/// How a window moves: one number for each dimension.
pub(super) struct Sweep {
    image: Vec<usize>,
    kernel: Vec<usize>,
    strides: Vec<usize>,
    dilations: Vec<usize>,
    before: Vec<usize>,
    after: Vec<usize>,
    /// How many places it has.
    pub(super) places: Vec<usize>,
}

impl Sweep {
    /// For each place and each element of the window: which element of the image it is, or `None` outside.
    fn table(&self) -> Vec<Option<usize>> {
        self.choice(|axis, place, tap| {
            let at = place * self.strides[axis] + tap * self.dilations[axis];
            at.checked_sub(self.before[axis]).filter(|&at| at < self.image[axis])
        })
    }

    /// The same for a transposed window: which element of the image reaches a place with which element of the window.
    fn transposed_table(&self) -> Vec<Option<usize>> {
        self.choice(|axis, place, tap| {
            let from = (place + self.before[axis]).checked_sub(tap * self.dilations[axis])?;
            (from % self.strides[axis] == 0).then_some(from / self.strides[axis]).filter(|&at| at < self.image[axis])
        })
    }

    fn choice(&self, along: impl Fn(usize, usize, usize) -> Option<usize>) -> Vec<Option<usize>> {
        let each = indices(&self.kernel);
        let one = |place: &Vec<usize>, tap: &Vec<usize>| {
            (0..self.image.len())
                .try_fold(0, |at, axis| Some(at * self.image[axis] + along(axis, place[axis], tap[axis])?))
        };
        indices(&self.places).iter().flat_map(|place| each.iter().map(move |tap| one(place, tap))).collect()
    }

    /// How many elements of each window count for a mean: those inside, or those of the padding too.
    fn counts(&self, padding: bool) -> Vec<usize> {
        let along = |axis: usize, place: usize| {
            let behind = self.image[axis] + self.before[axis] + if padding { self.after[axis] } else { 0 };
            let first = if padding { 0 } else { self.before[axis] };
            let at = |tap: usize| place * self.strides[axis] + tap * self.dilations[axis];
            (0..self.kernel[axis]).filter(|&tap| (first..behind).contains(&at(tap))).count()
        };
        let count = |place: &Vec<usize>| place.iter().enumerate().map(|(axis, &at)| along(axis, at)).product();
        indices(&self.places).iter().map(count).collect()
    }

    fn window(&self) -> usize {
        self.kernel.iter().product()
    }

    fn count(&self) -> usize {
        self.places.iter().product()
    }
}

/// All indices of those dimensions, in order.
fn indices(dims: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for &dim in dims {
        all = all.iter().flat_map(|index| (0..dim).map(move |at| [&index[..], &[at]].concat())).collect();
    }
    all
}

/// The smallest number of a type.
fn least(dtype: DataType) -> f32 {
    match dtype {
        DataType::Int8 => -128.0,
        dtype if is_float(dtype) => f32::NEG_INFINITY,
        _ => 0.0,
    }
}

impl Lowering {
    pub(super) fn sweep_node(
        &mut self,
        node: &OnnxNode,
        inputs: NodeInputs<'_>,
    ) -> Result<Option<Vec<ValueId>>, GraphError> {
        let volume = |this: &Self| this.optional(inputs, 0).is_some_and(|x| this.graph.dims(x).len() == 5);
        let value = match node.operator.as_str() {
            "MaxPool" if node.outputs.iter().skip(1).any(|name| !name.is_empty()) => {
                return self.max_pool_with_indices(node, inputs).map(Some);
            }
            "MaxPool" if volume(self) => self.volume_pool(node, inputs, PoolKind::Max)?,
            "AveragePool" if volume(self) => {
                let count_include_pad = node.int("count_include_pad", 0) != 0;
                self.volume_pool(node, inputs, PoolKind::Average { count_include_pad })?
            }
            "LpPool" => self.lp_pool(node, inputs)?,
            "Conv" if volume(self) => self.volume_conv(node, inputs)?,
            "ConvTranspose" if volume(self) => self.volume_conv_transpose(node, inputs)?,
            "Col2Im" => self.col_to_im(node, inputs)?,
            _ => return Ok(None),
        };
        Ok(Some(vec![value]))
    }

    /// An attribute with one number for each of so many.
    fn each(
        &self,
        node: &OnnxNode,
        name: &str,
        count: usize,
        least: i64,
        otherwise: i64,
    ) -> Result<Vec<usize>, GraphError> {
        let list = node.ints(name).map_or_else(|| vec![otherwise; count], <[i64]>::to_vec);
        if list.len() != count || list.iter().any(|value| !(least..=MOST_WINDOW).contains(value)) {
            return Err(self.bad(format!("{name} is {list:?}")));
        }
        Ok(list.iter().map(|&value| value as usize).collect())
    }

    fn sweep(&self, node: &OnnxNode, image: &[usize], kernel: &[usize], round_up: bool) -> Result<Sweep, GraphError> {
        let rank = image.len();
        let (strides, dilations) = (self.each(node, "strides", rank, 1, 1)?, self.each(node, "dilations", rank, 1, 1)?);
        let (mut before, mut after) = (vec![0; rank], vec![0; rank]);
        let reach: Vec<_> = (0..rank).map(|axis| (kernel[axis] - 1) * dilations[axis] + 1).collect();
        match node.text("auto_pad", "NOTSET") {
            "NOTSET" | "" => {
                let pads = self.each(node, "pads", 2 * rank, 0, 0)?;
                (before, after) = (pads[..rank].to_vec(), pads[rank..].to_vec());
            }
            "VALID" => {}
            same @ ("SAME_UPPER" | "SAME_LOWER") => {
                for axis in 0..rank {
                    let wanted = image[axis].div_ceil(strides[axis]);
                    let total = ((wanted.max(1) - 1) * strides[axis] + reach[axis]).saturating_sub(image[axis]);
                    before[axis] = if same == "SAME_UPPER" { total / 2 } else { total.div_ceil(2) };
                    after[axis] = total - before[axis];
                }
            }
            other => return Err(self.bad(format!("auto_pad is {other:?}"))),
        }
        let mut places = Vec::new();
        for axis in 0..rank {
            let padded = image[axis] + before[axis] + after[axis];
            let room = padded.checked_sub(reach[axis]);
            let room =
                room.ok_or_else(|| self.bad(format!("a window of {} doesn't fit into {padded}", reach[axis])))?;
            let up = room.div_ceil(strides[axis]) + 1;
            // A window that begins in the padding behind the image has nothing to look at.
            let starts_inside = (up - 1) * strides[axis] < image[axis] + before[axis];
            places.push(if round_up && starts_inside { up } else { room / strides[axis] + 1 });
        }
        let (image, kernel) = (image.to_vec(), kernel.to_vec());
        self.checked(Sweep { image, kernel, strides, dilations, before, after, places })
    }

    /// Refuses tables that are larger than any constant.
    fn checked(&self, sweep: Sweep) -> Result<Sweep, GraphError> {
        let image = [&sweep.image[..], &sweep.kernel].concat();
        if sweep.image.contains(&0) || sweep.kernel.contains(&0) || sweep.places.contains(&0) {
            return Err(self.bad(format!("{image:?} is nothing to move over")));
        }
        self.check_constant(&[&sweep.places[..], &sweep.kernel].concat())?;
        Ok(sweep)
    }

    fn sweep_of_pool(&self, node: &OnnxNode, input: ValueId) -> Result<Sweep, GraphError> {
        let dims = self.graph.dims(input);
        if dims.len() < 3 || node.ints("kernel_shape").is_none() {
            return Err(self.bad("it has no kernel_shape, or its input is no image"));
        }
        let kernel = self.each(node, "kernel_shape", dims.len() - 2, 1, 1)?;
        self.sweep(node, &dims[2..], &kernel, node.int("ceil_mode", 0) != 0)
    }

    fn positions(&mut self, dims: &[usize], list: impl Iterator<Item = usize>) -> ValueId {
        let list = Data::Int(list.map(|at| at as i64).collect());
        self.graph.constant(Array::new(DataType::Int32, dims, list), false)
    }

    /// Elements of `[batch, channels, elements]` by a table of those dimensions.
    fn chosen(&mut self, flat: ValueId, table: &[Option<usize>], dims: [usize; 2], outside: f32) -> ValueId {
        let [batch, channels, size] = *self.dims(flat) else { unreachable!("a flat image") };
        let dtype = self.dtype(flat);
        let mut flat = flat;
        if table.iter().any(Option::is_none) {
            let op = Op::Pad { before: vec![0; 3], value: outside };
            flat = self.emit(op, &[flat], dtype, &[batch, channels, size + 1]);
        }
        let positions = self.positions(&dims, table.iter().map(|at| at.unwrap_or(size)));
        let op = Op::Gather { axis: 2, elements: false };
        self.emit(op, &[flat, positions], dtype, &[batch, channels, dims[0], dims[1]])
    }

    /// The elements under each window: `[batch, channels, elements]` becomes `[batch, channels, places, window]`.
    fn under(&mut self, flat: ValueId, table: &[Option<usize>], window: usize, outside: f32) -> ValueId {
        self.chosen(flat, table, [table.len() / window, window], outside)
    }

    /// What is kept of the elements under each window: `[batch, channels, elements]` becomes `[batch, channels,
    /// places]`.
    fn pooled(
        &mut self,
        flat: ValueId,
        table: &[Option<usize>],
        window: usize,
        kind: ReduceKind,
        outside: f32,
    ) -> Result<ValueId, GraphError> {
        let places = table.len() / window;
        // Places are neighbours.
        let turned: Vec<_> = (0..table.len()).map(|at| table[at % places * window + at / places]).collect();
        let all = self.chosen(flat, &turned, [window, places], outside);
        let (dims, dtype) = (self.dims(all), self.dtype(all));
        let narrow = [dims[0], dims[1], places];
        let function = match kind {
            ReduceKind::Max => Some(Binary::Maximum),
            ReduceKind::Sum | ReduceKind::Mean => Some(Binary::Add),
            _ => None,
        };
        let Some(function) = function.filter(|_| window <= FEW) else {
            let value = self.reduction(kind, all, &[2]);
            return Ok(self.reshape(value, &narrow));
        };
        let parts: Vec<_> = (0..window).map(|tap| self.part(all, 2, tap, 1)).collect();
        let value = self.apply(&parts, dtype, |expression, of| {
            let result = super::kind(dtype);
            let put = |sum, &next: &Register| expression.push(Instruction::Binary(function, sum, next), result);
            let sum = of[1..].iter().fold(of[0], put);
            if kind != ReduceKind::Mean {
                return sum;
            }
            let count = expression.push(Instruction::Float(window as f32), ValueKind::Float);
            expression.push(Instruction::Binary(Binary::Divide, sum, count), ValueKind::Float)
        })?;
        Ok(self.reshape(value, &narrow))
    }

    fn flat(&mut self, image: ValueId) -> ValueId {
        let dims = self.dims(image);
        self.reshape(image, &[dims[0], dims[1], dims[2..].iter().product()])
    }

    /// One for each place, in the dimensions that the places have.
    fn as_places(&mut self, value: ValueId, sweep: &Sweep) -> ValueId {
        let dims = self.dims(value);
        self.reshape(value, &[&dims[..2], &sweep.places[..]].concat())
    }

    fn volume_pool(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>, kind: PoolKind) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        let sweep = self.sweep_of_pool(node, input)?;
        let flat = self.flat(input);
        let value = match kind {
            PoolKind::Max => {
                let outside = least(self.dtype(input));
                self.pooled(flat, &sweep.table(), sweep.window(), ReduceKind::Max, outside)?
            }
            PoolKind::Average { count_include_pad } => {
                self.check_float(input)?;
                let mean = self.pooled(flat, &sweep.table(), sweep.window(), ReduceKind::Mean, 0.0)?;
                let counts = sweep.counts(count_include_pad);
                let window = sweep.window() as f32;
                if counts.iter().all(|&count| count == sweep.window()) {
                    mean
                } else {
                    let factors = counts.iter().map(|&count| window / count as f32).collect();
                    let factors = self.graph.constant(Array::floats(&[counts.len()], factors), false);
                    let factors = self.cast(factors, self.dtype(mean))?;
                    self.binary(Binary::Multiply, mean, factors)?
                }
            }
        };
        Ok(self.as_places(value, &sweep))
    }

    fn lp_pool(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        self.check_float(input)?;
        let (sweep, dtype, power) = (self.sweep_of_pool(node, input)?, self.dtype(input), node.int("p", 2));
        if power < 1 {
            return Err(self.bad(format!("p is {power}")));
        }
        let mut flat = self.flat(input);
        let kind = match power {
            1 => ReduceKind::SumOfAbsolutes,
            2 => ReduceKind::Norm,
            _ => ReduceKind::Sum,
        };
        if power > 2 {
            let absolute = self.unary(Unary::Absolute, flat)?;
            let exponent = self.scalar(dtype, power as f64);
            flat = self.binary(Binary::Power, absolute, exponent)?;
        }
        let mut value = self.pooled(flat, &sweep.table(), sweep.window(), kind, 0.0)?;
        if power > 2 {
            let exponent = self.scalar(dtype, 1.0 / power as f64);
            value = self.binary(Binary::Power, value, exponent)?;
        }
        Ok(self.as_places(value, &sweep))
    }

    /// The largest, and where it was in the whole tensor.
    fn max_pool_with_indices(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<Vec<ValueId>, GraphError> {
        let input = self.input(inputs, 0)?;
        let (dims, sweep) = (self.dims(input), self.sweep_of_pool(node, input)?);
        let (batch, channels, size) = (dims[0], dims[1], dims[2..].iter().product::<usize>());
        self.check_constant(&[batch, channels])?;
        let (table, window) = (sweep.table(), sweep.window());
        let flat = self.flat(input);
        let outside = least(self.dtype(input));
        let all = self.under(flat, &table, window, outside);
        let value = self.reduction(ReduceKind::Max, all, &[3]);
        let which = self.reduction(ReduceKind::ArgMax { last: false }, all, &[3]);
        // Columns may be counted first.
        let turned = node.int("storage_order", 0) != 0;
        let counted = |at: usize| {
            if !turned {
                return at;
            }
            let (mut rest, mut index) = (at, vec![0; sweep.image.len()]);
            for axis in (0..index.len()).rev() {
                (index[axis], rest) = (rest % sweep.image[axis], rest / sweep.image[axis]);
            }
            (0..index.len()).rev().fold(0, |at, axis| at * sweep.image[axis] + index[axis])
        };
        let named = table.iter().map(|at| counted(at.unwrap_or(0)) as i64).collect();
        let named = self.graph.constant(Array::ints(&[1, 1, sweep.count(), window], named), false);
        let named = self.expand(named, &[batch, channels, sweep.count(), window]);
        let dims = [batch, channels, sweep.count(), 1];
        let index = self.emit(Op::Gather { axis: 3, elements: true }, &[named, which], DataType::Int64, &dims);
        let starts = (0..batch * channels).map(|plane| (plane * size) as i64).collect();
        let starts = self.graph.constant(Array::ints(&[batch, channels, 1, 1], starts), false);
        let index = self.binary(Binary::Add, index, starts)?;
        Ok(vec![self.as_places(value, &sweep), self.as_places(index, &sweep)])
    }

    /// The product of what is under each window and the filters: `[batch, channels, places, window]` and `[groups,
    /// channels of a group * window, filters of a group]`.
    pub(super) fn filtered(&mut self, under: ValueId, filters: ValueId) -> ValueId {
        let [batch, channels, places, window] = *self.dims(under) else { unreachable!("what is under windows") };
        let [groups, terms, each] = *self.dims(filters) else { unreachable!("filters of groups") };
        let dtype = self.dtype(under);
        let rows = self.reshape(under, &[batch, groups, channels / groups, places, window]);
        let rows = self.transpose(rows, &[0, 1, 3, 2, 4]);
        let rows = self.reshape(rows, &[batch, groups, places, terms]);
        let op = Op::Gemm { alpha: 1.0, bias: false, residual: false, activation: Activation::None };
        let value = self.emit(op, &[rows, filters], dtype, &[batch, groups, places, each]);
        let value = self.transpose(value, &[0, 1, 3, 2]);
        self.reshape(value, &[batch, groups * each, places])
    }

    /// Adds one number for each channel.
    pub(super) fn with_bias(&mut self, value: ValueId, bias: Option<ValueId>) -> Result<ValueId, GraphError> {
        let Some(bias) = bias else { return Ok(value) };
        let channels = self.graph.dims(value)[1];
        if self.graph.dims(bias) != [channels] {
            return Err(self.bad(format!("its bias is not of {channels}")));
        }
        let bias = self.reshape(bias, &[channels, 1]);
        self.binary(Binary::Add, value, bias)
    }

    fn volume_conv(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let (input, weight) = (self.input(inputs, 0)?, self.input(inputs, 1)?);
        self.check_float(input)?;
        self.check_float(weight)?;
        let (dims, weights) = (self.dims(input), self.dims(weight));
        let groups = node.int("group", 1).clamp(1, MOST_WINDOW) as usize;
        if weights.len() != dims.len() || weights[1] * groups != dims[1] || weights[0] % groups != 0 {
            return Err(self.bad(format!("{dims:?} and weights {weights:?} don't go together")));
        }
        let sweep = self.sweep(node, &dims[2..], &weights[2..], false)?;
        let flat = self.flat(input);
        let under = self.under(flat, &sweep.table(), sweep.window(), 0.0);
        let filters = self.reshape(weight, &[groups, weights[0] / groups, weights[1] * sweep.window()]);
        let filters = self.transpose(filters, &[0, 2, 1]);
        let value = self.filtered(under, filters);
        let value = self.with_bias(value, self.optional(inputs, 2))?;
        Ok(self.as_places(value, &sweep))
    }

    fn volume_conv_transpose(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let (input, weight) = (self.input(inputs, 0)?, self.input(inputs, 1)?);
        self.check_float(input)?;
        self.check_float(weight)?;
        let (dims, weights) = (self.dims(input), self.dims(weight));
        let groups = node.int("group", 1).clamp(1, MOST_WINDOW) as usize;
        if weights.len() != dims.len() || weights[0] != dims[1] || dims[1] % groups != 0 {
            return Err(self.bad(format!("{dims:?} and weights {weights:?} don't go together")));
        }
        if node.ints("output_shape").is_some() || !matches!(node.text("auto_pad", "NOTSET"), "NOTSET" | "VALID" | "") {
            return Err(self.unsupported(" for 5 dimensions with a shape to reach"));
        }
        let (image, kernel, rank) = (dims[2..].to_vec(), weights[2..].to_vec(), dims.len() - 2);
        let (strides, dilations) = (self.each(node, "strides", rank, 1, 1)?, self.each(node, "dilations", rank, 1, 1)?);
        let (pads, extra) = (self.each(node, "pads", 2 * rank, 0, 0)?, self.each(node, "output_padding", rank, 0, 0)?);
        if image.contains(&0) || kernel.contains(&0) {
            return Err(self.bad(format!("{dims:?} and weights {weights:?} don't go together")));
        }
        let size = |axis: usize| {
            let full = (image[axis] - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1 + extra[axis];
            full.checked_sub(pads[axis] + pads[axis + rank]).ok_or_else(|| self.bad("more is cut off than there is"))
        };
        let places = (0..rank).map(size).collect::<Result<Vec<_>, _>>()?;
        let (before, after) = (pads[..rank].to_vec(), pads[rank..].to_vec());
        let sweep = self.checked(Sweep { image, kernel, strides, dilations, before, after, places })?;
        let flat = self.flat(input);
        let under = self.under(flat, &sweep.transposed_table(), sweep.window(), 0.0);
        let filters = self.reshape(weight, &[groups, dims[1] / groups, weights[1], sweep.window()]);
        let filters = self.transpose(filters, &[0, 1, 3, 2]);
        let filters = self.reshape(filters, &[groups, dims[1] / groups * sweep.window(), weights[1]]);
        let value = self.filtered(under, filters);
        let value = self.with_bias(value, self.optional(inputs, 2))?;
        Ok(self.as_places(value, &sweep))
    }

    /// Windows that are put where they were, and added where they overlap.
    fn col_to_im(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        let [batch, columns, blocks] = *self.dims(input) else {
            return Err(self.bad("its input is no list of windows"));
        };
        let sizes = |this: &Self, position: usize, what: &str| -> Result<Vec<usize>, GraphError> {
            let sizes = this.constant(inputs, position, what)?;
            let inside = sizes.to_ints().iter().all(|size| (1..=MOST_WINDOW).contains(size));
            if !inside {
                return Err(this.bad(format!("its {what} is {:?}", sizes.to_ints())));
            }
            Ok(sizes.to_ints().iter().map(|&size| size as usize).collect())
        };
        let (image, kernel) = (sizes(self, 1, "image's shape")?, sizes(self, 2, "window's shape")?);
        let rank = image.len();
        if kernel.len() != rank {
            return Err(self.bad(format!("a window of {kernel:?} over {image:?}")));
        }
        let (strides, dilations) = (self.each(node, "strides", rank, 1, 1)?, self.each(node, "dilations", rank, 1, 1)?);
        let pads = self.each(node, "pads", 2 * rank, 0, 0)?;
        let forward = self.sweep(node, &image, &kernel, false)?;
        let window = forward.window();
        if columns % window != 0 || forward.count() != blocks {
            return Err(self.bad(format!("{columns} x {blocks} are no windows of {kernel:?} over {image:?}")));
        }
        // Which window reaches a place, with which of its elements: windows are the image of the way back.
        let (before, after) = (pads[..rank].to_vec(), pads[rank..].to_vec());
        let (windows, places) = (forward.places, image.clone());
        let back = self.checked(Sweep { image: windows, kernel, strides, dilations, before, after, places })?;
        let element = |(at, block): (usize, Option<usize>)| block.map(|block| at % window * blocks + block);
        let table: Vec<_> = back.transposed_table().into_iter().enumerate().map(element).collect();
        let flat = self.reshape(input, &[batch, columns / window, window * blocks]);
        let value = self.pooled(flat, &table, window, ReduceKind::Sum, 0.0)?;
        Ok(self.as_places(value, &back))
    }
}
