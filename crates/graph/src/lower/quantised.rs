//! Numbers in few bits, each with a scale and a zero point: products of them are those of integers, exact in 32 bits;
//! everything else goes through floats of 32 bits, rounded half to even and brought into the range of the type.

use super::{Lowering, NodeInputs};
use crate::array::{Array, Data};
use crate::error::GraphError;
use crate::expression::{Binary, Expression, Instruction, Register, Unary, ValueKind};
use crate::ir::{Op, ValueId};
use crate::model::{OnnxNode, element};
use crate::plan::{PoolKind, ReduceKind, Window};
use base::DataType;

/// The smallest and the largest number of a type that values are quantised to.
fn range(dtype: DataType) -> Option<(f32, f32)> {
    Some(match dtype {
        DataType::Int8 => (-128.0, 127.0),
        DataType::Uint8 => (0.0, 255.0),
        DataType::Int16 => (-32_768.0, 32_767.0),
        DataType::Uint16 => (0.0, 65_535.0),
        _ => return None,
    })
}

/// Appends `round(x) + zero`, brought into the range, as an integer.
fn rounded(expression: &mut Expression, x: Register, zero: Option<Register>, (low, high): (f32, f32)) -> Register {
    let float = ValueKind::Float;
    let mut x = expression.push(Instruction::Unary(Unary::Round, x), float);
    if let Some(zero) = zero {
        let zero = expression.push(Instruction::Cast(float, zero), float);
        x = expression.push(Instruction::Binary(Binary::Add, x, zero), float);
    }
    let low = expression.push(Instruction::Float(low), float);
    let high = expression.push(Instruction::Float(high), float);
    x = expression.push(Instruction::Binary(Binary::Maximum, x, low), float);
    x = expression.push(Instruction::Binary(Binary::Minimum, x, high), float);
    expression.push(Instruction::Cast(ValueKind::Int, x), ValueKind::Int)
}

/// Appends `x` where positive, otherwise `slope * x`.
fn leaky(expression: &mut Expression, x: Register, slope: f32) -> Register {
    let nothing = expression.push(Instruction::Float(0.0), ValueKind::Float);
    let slope = expression.push(Instruction::Float(slope), ValueKind::Float);
    let below = expression.push(Instruction::Binary(Binary::Less, x, nothing), ValueKind::Bool);
    let scaled = expression.push(Instruction::Binary(Binary::Multiply, x, slope), ValueKind::Float);
    expression.push(Instruction::Select(below, scaled, x), ValueKind::Float)
}

/// A tensor in few bits: the numbers, their scale, and which of them stands for 0.
#[derive(Clone, Copy)]
struct Quantised {
    value: ValueId,
    scale: ValueId,
    zero: Option<ValueId>,
}

impl Lowering {
    pub(super) fn quantised_node(
        &mut self,
        node: &OnnxNode,
        inputs: NodeInputs<'_>,
    ) -> Result<Option<Vec<ValueId>>, GraphError> {
        let operator = node.operator.strip_prefix("com.microsoft.").unwrap_or(&node.operator);
        let value = match operator {
            "QuantizeLinear" => self.quantize_linear(node, inputs)?,
            "DequantizeLinear" => self.dequantize_linear(node, inputs)?,
            "DynamicQuantizeLinear" => {
                let x = self.input(inputs, 0)?;
                let dynamic = self.dynamic(x)?;
                return Ok(Some(vec![dynamic.value, dynamic.scale, dynamic.zero.expect("it has one")]));
            }
            "MatMulInteger" => {
                let (a, b) = (self.input(inputs, 0)?, self.input(inputs, 1)?);
                self.integer_product(a, self.optional(inputs, 2), b, self.optional(inputs, 3))?
            }
            "ConvInteger" => {
                let (x, w) = (self.input(inputs, 0)?, self.input(inputs, 1)?);
                self.integer_conv(node, x, self.optional(inputs, 2), w, self.optional(inputs, 3))?
            }
            "QLinearMatMul" => self.qlinear_matmul(inputs)?,
            "QLinearConv" => self.qlinear_conv(node, inputs)?,
            _ if operator.len() < node.operator.len() => return self.quantised_contribution(node, operator, inputs),
            _ => return Ok(None),
        };
        Ok(Some(vec![value]))
    }

    /// Those that only ONNX Runtime has.
    fn quantised_contribution(
        &mut self,
        node: &OnnxNode,
        operator: &str,
        inputs: NodeInputs<'_>,
    ) -> Result<Option<Vec<ValueId>>, GraphError> {
        let value = match operator {
            "QLinearAdd" | "QLinearMul" => {
                let (a, b) = (self.quantised(inputs, 0)?, self.quantised(inputs, 3)?);
                let (a, b) = (self.floats(a)?, self.floats(b)?);
                let function = if operator == "QLinearAdd" { Binary::Add } else { Binary::Multiply };
                let result = self.binary(function, a, b)?;
                self.quantise_as(result, inputs, 6, self.input(inputs, 0)?)?
            }
            "QLinearSigmoid" => {
                let x = self.quantised(inputs, 0)?;
                let x = self.floats(x)?;
                let result = self.unary(Unary::Sigmoid, x)?;
                self.quantise_as(result, inputs, 3, self.input(inputs, 0)?)?
            }
            "QLinearLeakyRelu" => {
                let x = self.quantised(inputs, 0)?;
                let x = self.floats(x)?;
                let slope = node.float("alpha", 0.01);
                let result = self.apply(&[x], DataType::Fp32, |expression, x| leaky(expression, x[0], slope))?;
                self.quantise_as(result, inputs, 3, self.input(inputs, 0)?)?
            }
            "QLinearAveragePool" | "QLinearGlobalAveragePool" if node.int("channels_last", 0) != 0 => {
                return Err(self.unsupported(" with channels last"));
            }
            "QLinearAveragePool" => {
                let x = self.quantised(inputs, 0)?;
                let x = self.floats(x)?;
                let count_include_pad = node.int("count_include_pad", 0) != 0;
                let mean = self.pool(node, &[Some(x)], PoolKind::Average { count_include_pad })?;
                self.quantise_as(mean, inputs, 3, self.input(inputs, 0)?)?
            }
            "QLinearGlobalAveragePool" => {
                let x = self.quantised(inputs, 0)?;
                let x = self.floats(x)?;
                let mean = self.global_pool(&[Some(x)], ReduceKind::Mean)?;
                self.quantise_as(mean, inputs, 3, self.input(inputs, 0)?)?
            }
            "QLinearConcat" => self.qlinear_concat(node, inputs)?,
            "QGemm" => self.qgemm(node, inputs)?,
            "DynamicQuantizeMatMul" => {
                let a = self.input(inputs, 0)?;
                let a = self.dynamic(a)?;
                let b = Quantised {
                    value: self.input(inputs, 1)?,
                    scale: self.input(inputs, 2)?,
                    zero: self.optional(inputs, 3),
                };
                self.product_to_float(a, b, self.optional(inputs, 4))?
            }
            "MatMulIntegerToFloat" => {
                let at = |value, scale, zero| -> Result<Quantised, GraphError> {
                    Ok(Quantised {
                        value: self.input(inputs, value)?,
                        scale: self.input(inputs, scale)?,
                        zero: self.optional(inputs, zero),
                    })
                };
                let (a, b) = (at(0, 2, 4)?, at(1, 3, 5)?);
                self.product_to_float(a, b, self.optional(inputs, 6))?
            }
            _ => return Ok(None),
        };
        Ok(Some(vec![value]))
    }

    /// A tensor, its scale and its zero point, in this order.
    fn quantised(&self, inputs: NodeInputs<'_>, first: usize) -> Result<Quantised, GraphError> {
        let (value, scale) = (self.input(inputs, first)?, self.input(inputs, first + 1)?);
        Ok(Quantised { value, scale, zero: self.optional(inputs, first + 2) })
    }

    /// Refuses what isn't of 8 bits.
    fn check_bytes(&self, value: ValueId) -> Result<(), GraphError> {
        match self.dtype(value) {
            DataType::Int8 | DataType::Uint8 => Ok(()),
            other => Err(self.unsupported(&format!(" for {other}"))),
        }
    }

    /// A scale or a zero point, shaped to be broadcast to a tensor: one for all, one for each index of a dimension, or
    /// one for each block along it.
    fn spread_along(
        &mut self,
        parameter: ValueId,
        of: &[usize],
        axis: i64,
        block: usize,
    ) -> Result<ValueId, GraphError> {
        let own = self.dims(parameter);
        if own.iter().product::<usize>() == 1 && block == 0 {
            return Ok(self.reshape(parameter, &[]));
        }
        let axis = self.axis(axis, of.len())?;
        if block == 0 {
            if own != [of[axis]] {
                return Err(self.bad(format!("{own:?} is not one for each of dimension {axis} of {of:?}")));
            }
            let mut dims = vec![of[axis]];
            dims.resize(of.len() - axis, 1);
            return Ok(self.reshape(parameter, &dims));
        }
        let fits = own.len() == of.len()
            && (0..of.len()).all(|other| other == axis || own[other] == of[other])
            && own[axis] == of[axis].div_ceil(block);
        if !fits {
            return Err(self.bad(format!("{own:?} is not one for each block of {block} of {of:?}")));
        }
        let mut wide = own.clone();
        wide.insert(axis + 1, 1);
        let each = self.reshape(parameter, &wide);
        wide[axis + 1] = block;
        let each = self.expand(each, &wide);
        let mut merged = own;
        merged[axis] *= block;
        let each = self.reshape(each, &merged);
        Ok(self.part(each, axis, 0, of[axis]))
    }

    fn block_size(&self, node: &OnnxNode) -> Result<usize, GraphError> {
        let block = node.int("block_size", 0);
        usize::try_from(block).map_err(|_| self.bad(format!("block_size is {block}")))
    }

    fn quantize_linear(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let x = self.input(inputs, 0)?;
        let dims = self.dims(x);
        let (axis, block) = (node.int("axis", 1), self.block_size(node)?);
        let scale = self.spread_along(self.input(inputs, 1)?, &dims, axis, block)?;
        let dtype = match (self.optional(inputs, 2), node.int("output_dtype", 0)) {
            (Some(zero), _) => self.dtype(zero),
            (None, 0) => DataType::Uint8,
            (None, number) => element(number as i32)?,
        };
        let zero = self.optional(inputs, 2).map(|zero| self.spread_along(zero, &dims, axis, block)).transpose()?;
        self.quantise(x, scale, zero, dtype)
    }

    /// `saturate(round(x / scale) + zero)`
    fn quantise(
        &mut self,
        x: ValueId,
        scale: ValueId,
        zero: Option<ValueId>,
        dtype: DataType,
    ) -> Result<ValueId, GraphError> {
        let range = range(dtype).ok_or_else(|| self.unsupported(&format!(" to {dtype}")))?;
        let x = self.cast(x, DataType::Fp32)?;
        let mut all = vec![x, scale];
        all.extend(zero);
        self.apply(&all, dtype, |expression, of| {
            let x = expression.push(Instruction::Binary(Binary::Divide, of[0], of[1]), ValueKind::Float);
            rounded(expression, x, of.get(2).copied(), range)
        })
    }

    /// The same with scale and zero point from that input on. Without a zero point it is of the type of `like`.
    fn quantise_as(
        &mut self,
        x: ValueId,
        inputs: NodeInputs<'_>,
        first: usize,
        like: ValueId,
    ) -> Result<ValueId, GraphError> {
        let (scale, zero) = (self.input(inputs, first)?, self.optional(inputs, first + 1));
        let dtype = self.dtype(zero.unwrap_or(like));
        let scale = self.reshape(scale, &[]);
        let zero = zero.map(|zero| self.reshape(zero, &[]));
        self.quantise(x, scale, zero, dtype)
    }

    fn dequantize_linear(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let mut x = self.quantised(inputs, 0)?;
        let dims = self.dims(x.value);
        let (axis, block) = (node.int("axis", 1), self.block_size(node)?);
        let dtype = match node.int("output_dtype", 0) {
            0 => self.dtype(x.scale),
            number => element(number as i32)?,
        };
        x.scale = self.spread_along(x.scale, &dims, axis, block)?;
        x.zero = x.zero.map(|zero| self.spread_along(zero, &dims, axis, block)).transpose()?;
        self.dequantise(x, dtype)
    }

    /// `(x - zero) * scale`; scale and zero point can be broadcast to the numbers.
    fn dequantise(&mut self, x: Quantised, dtype: DataType) -> Result<ValueId, GraphError> {
        if super::kind(self.dtype(x.value)) != ValueKind::Int {
            return Err(self.unsupported(&format!(" for {}", self.dtype(x.value))));
        }
        let mut all = vec![x.value, x.scale];
        all.extend(x.zero);
        self.apply(&all, dtype, |expression, of| {
            let mut x = of[0];
            if let Some(&zero) = of.get(2) {
                x = expression.push(Instruction::Binary(Binary::Subtract, x, zero), ValueKind::Int);
            }
            let x = expression.push(Instruction::Cast(ValueKind::Float, x), ValueKind::Float);
            expression.push(Instruction::Binary(Binary::Multiply, x, of[1]), ValueKind::Float)
        })
    }

    /// The floats of a tensor that has one scale.
    fn floats(&mut self, x: Quantised) -> Result<ValueId, GraphError> {
        self.check_bytes(x.value)?;
        let scale = self.reshape(x.scale, &[]);
        let zero = x.zero.map(|zero| self.reshape(zero, &[]));
        self.dequantise(Quantised { value: x.value, scale, zero }, DataType::Fp32)
    }

    /// The largest or smallest of all. Lines first, and then of these: of many lines many blocks have one each.
    fn extreme(&mut self, kind: ReduceKind, x: ValueId) -> ValueId {
        let rank = self.graph.dims(x).len();
        let lines: Vec<_> = (rank.saturating_sub(1).min(2)..rank).collect();
        let rest: Vec<_> = (0..rank.saturating_sub(1).min(2)).collect();
        let of_lines = self.reduction(kind, x, &lines);
        let of_all = if rest.is_empty() { of_lines } else { self.reduction(kind, of_lines, &rest) };
        self.reshape(of_all, &[])
    }

    /// In 8 bits without a sign, with the scale that its own range gives; 0 is always in it.
    fn dynamic(&mut self, x: ValueId) -> Result<Quantised, GraphError> {
        self.check_float(x)?;
        let [most, least] = [ReduceKind::Max, ReduceKind::Min].map(|kind| self.extreme(kind, x));
        let float = ValueKind::Float;
        let bounds = |expression: &mut Expression, of: &[Register]| {
            let nothing = expression.push(Instruction::Float(0.0), float);
            let most = expression.push(Instruction::Binary(Binary::Maximum, of[0], nothing), float);
            let least = expression.push(Instruction::Binary(Binary::Minimum, of[1], nothing), float);
            (most, least)
        };
        let scale = self.apply(&[most, least], DataType::Fp32, |expression, of| {
            let (most, least) = bounds(expression, of);
            let reach = expression.push(Instruction::Binary(Binary::Subtract, most, least), float);
            let steps = expression.push(Instruction::Float(255.0), float);
            let scale = expression.push(Instruction::Binary(Binary::Divide, reach, steps), float);
            // Where all are 0, any scale does, but not 0 itself.
            let one = expression.push(Instruction::Float(1.0), float);
            let same = expression.push(Instruction::Binary(Binary::Equal, most, least), ValueKind::Bool);
            expression.push(Instruction::Select(same, one, scale), float)
        })?;
        let zero = self.apply(&[most, least, scale], DataType::Uint8, |expression, of| {
            let (_, least) = bounds(expression, of);
            let below = expression.push(Instruction::Binary(Binary::Divide, least, of[2]), float);
            let below = expression.push(Instruction::Unary(Unary::Negate, below), float);
            rounded(expression, below, None, (0.0, 255.0))
        })?;
        let value = self.quantise(x, scale, Some(zero), DataType::Uint8)?;
        Ok(Quantised { value, scale, zero: Some(zero) })
    }

    /// `value - zero`: as it is where zero is 0, in 8 bits where it is known to fit, else in 16.
    fn centred(&mut self, value: ValueId, zero: Option<ValueId>) -> Result<ValueId, GraphError> {
        self.check_bytes(value)?;
        let Some(zero) = zero.filter(|&zero| !self.is_zero(zero)) else { return Ok(value) };
        let centred = self.apply(&[value, zero], DataType::Int16, |expression, of| {
            expression.push(Instruction::Binary(Binary::Subtract, of[0], of[1]), ValueKind::Int)
        })?;
        let fits = self.graph.known(centred).filter(|array| array.to_ints().iter().all(|x| (-128..128).contains(x)));
        let Some(narrow) = fits.map(|array| Array::new(DataType::Int8, &array.dims, array.data.clone())) else {
            return Ok(centred);
        };
        let fixed = self.graph.is_fixed(centred);
        Ok(self.graph.constant(narrow, fixed))
    }

    /// Whether it is known to be 0 everywhere.
    fn is_zero(&self, value: ValueId) -> bool {
        self.graph.known(value).is_some_and(|array| match &array.data {
            Data::Int(data) => data.iter().all(|&x| x == 0),
            Data::Float(_) => false,
        })
    }

    /// The convolution of an image with one zero point and of filters that have none.
    fn integer_step(
        &mut self,
        x: ValueId,
        zero: Option<ValueId>,
        w: ValueId,
        window: Window,
        groups: usize,
        dims: &[usize],
    ) -> Result<ValueId, GraphError> {
        let mut zero = zero.filter(|&zero| !self.is_zero(zero));
        if let Some(one) = zero
            && (self.dtype(one) != self.dtype(x) || self.graph.dims(one).iter().product::<usize>() != 1)
        {
            return Err(self.bad("its zero point is not one of the type of its input"));
        }
        self.check_bytes(x)?;
        let mut all = vec![x, w];
        zero = zero.map(|zero| self.reshape(zero, &[]));
        all.extend(zero);
        Ok(self.emit(Op::IntegerConv { window, groups, zero: zero.is_some() }, &all, DataType::Int32, dims))
    }

    fn integer_conv(
        &mut self,
        node: &OnnxNode,
        x: ValueId,
        x_zero: Option<ValueId>,
        w: ValueId,
        w_zero: Option<ValueId>,
    ) -> Result<ValueId, GraphError> {
        let (x, line) = self.as_image(x)?;
        let (w, _) = self.as_image(w)?;
        let (dims, weights) = (self.dims(x), self.dims(w));
        let groups = usize::try_from(node.int("group", 1)).ok().filter(|&groups| groups > 0);
        let groups =
            groups.filter(|&groups| weights[1].checked_mul(groups) == Some(dims[1]) && weights[0] % groups == 0);
        let groups = groups.filter(|_| !dims.contains(&0) && !weights.contains(&0));
        let groups = groups.ok_or_else(|| self.bad(format!("{dims:?} and weights {weights:?} don't go together")))?;
        let w_zero = w_zero.map(|zero| self.spread_along(zero, &weights, 0, 0)).transpose()?;
        let w = self.centred(w, w_zero)?;
        let window = self.window(node, &dims[2..], [weights[2], weights[3]], line)?;
        let [rows, columns] = self.moved(&window, &dims[2..], false)?;
        let value = self.integer_step(x, x_zero, w, window, groups, &[dims[0], weights[0], rows, columns])?;
        Ok(self.without_row(value, line))
    }

    /// A zero point or a scale of the left factor: one, one for each row, or as many dimensions as the factor.
    fn of_rows(&mut self, parameter: ValueId) -> ValueId {
        match *self.dims(parameter) {
            [1] => self.reshape(parameter, &[]),
            [rows] => self.reshape(parameter, &[rows, 1]),
            _ => parameter,
        }
    }

    /// The product of two integer matrices, or of stacks of them, as convolutions with a window of one element.
    fn integer_product(
        &mut self,
        a: ValueId,
        a_zero: Option<ValueId>,
        b: ValueId,
        b_zero: Option<ValueId>,
    ) -> Result<ValueId, GraphError> {
        let (rank_a, rank_b) = (self.graph.dims(a).len(), self.graph.dims(b).len());
        if rank_a < 2 || rank_b < 2 {
            return Err(self.unsupported(" for vectors"));
        }
        self.check_bytes(a)?;
        let mut b = self.centred(b, b_zero)?;
        // One zero point of the left factor is subtracted on the way.
        let single = a_zero.filter(|&zero| self.graph.dims(zero).iter().product::<usize>() == 1);
        let mut a = match (single, a_zero) {
            (None, Some(zero)) => {
                let zero = self.of_rows(zero);
                self.centred(a, Some(zero))?
            }
            _ => a,
        };
        let dims = self.product(a, b)?;
        if dims.contains(&0) || self.graph.dims(a).contains(&0) {
            return Err(self.unsupported(" without elements"));
        }
        let (lead, rows, terms, columns) =
            (dims.len() - 2, dims[dims.len() - 2], self.dims(a)[rank_a - 1], dims[dims.len() - 1]);
        let shared = self.graph.dims(b)[..rank_b - 2].iter().all(|&dim| dim == 1);
        let stacks = if shared { 1 } else { dims[..lead].iter().product::<usize>() };
        let rows = dims[..lead].iter().product::<usize>() / stacks * rows;
        if !shared {
            let with = |last: [usize; 2]| [&dims[..lead], &last].concat();
            a = self.expand(a, &with([dims[lead], terms]));
            b = self.expand(b, &with([terms, columns]));
        }
        let a = self.reshape(a, &[stacks, rows, terms]);
        let a = self.transpose(a, &[0, 2, 1]);
        let a = self.reshape(a, &[1, stacks * terms, rows, 1]);
        let b = self.reshape(b, &[stacks, terms, columns]);
        let b = self.transpose(b, &[0, 2, 1]);
        let b = self.reshape(b, &[stacks * columns, terms, 1, 1]);
        let window =
            Window { kernel: [1; 2], strides: [1; 2], dilations: [1; 2], pads_before: [0; 2], pads_after: [0; 2] };
        let zero = single.filter(|_| matches!(self.dtype(a), DataType::Int8 | DataType::Uint8));
        let value = if self.dtype(a) == DataType::Int16 {
            let op = Op::IntegerConv { window, groups: stacks, zero: false };
            self.emit(op, &[a, b], DataType::Int32, &[1, stacks * columns, rows, 1])
        } else {
            self.integer_step(a, zero, b, window, stacks, &[1, stacks * columns, rows, 1])?
        };
        let value = self.reshape(value, &[stacks, columns, rows]);
        let value = self.transpose(value, &[0, 2, 1]);
        Ok(self.reshape(value, &dims))
    }

    /// `saturate(round(sum * factor) + zero)`: what becomes of an exact sum.
    fn rescaled(
        &mut self,
        sum: ValueId,
        factor: ValueId,
        zero: Option<ValueId>,
        dtype: DataType,
    ) -> Result<ValueId, GraphError> {
        let range = range(dtype).ok_or_else(|| self.unsupported(&format!(" to {dtype}")))?;
        let mut all = vec![sum, factor];
        all.extend(zero);
        self.apply(&all, dtype, |expression, of| {
            let x = expression.push(Instruction::Cast(ValueKind::Float, of[0]), ValueKind::Float);
            let x = expression.push(Instruction::Binary(Binary::Multiply, x, of[1]), ValueKind::Float);
            rounded(expression, x, of.get(2).copied(), range)
        })
    }

    /// `a * b / c` of scales, in 32 bits.
    fn factor(&mut self, a: ValueId, b: ValueId, c: ValueId) -> Result<ValueId, GraphError> {
        let float = ValueKind::Float;
        self.apply(&[a, b, c], DataType::Fp32, |expression, of| {
            let product = expression.push(Instruction::Binary(Binary::Multiply, of[0], of[1]), float);
            expression.push(Instruction::Binary(Binary::Divide, product, of[2]), float)
        })
    }

    fn qlinear_matmul(&mut self, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let (a, b, y) = (self.quantised(inputs, 0)?, self.quantised(inputs, 3)?, self.input(inputs, 6)?);
        let sum = self.integer_product(a.value, a.zero, b.value, b.zero)?;
        let a_scale = self.of_rows(a.scale);
        let y_scale = self.of_rows(y);
        let factor = self.factor(a_scale, b.scale, y_scale)?;
        let zero = self.input(inputs, 7)?;
        let dtype = self.dtype(zero);
        let zero = self.of_rows(zero);
        self.rescaled(sum, factor, Some(zero), dtype)
    }

    fn qlinear_conv(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let (x, w, y) = (self.quantised(inputs, 0)?, self.quantised(inputs, 3)?, self.input(inputs, 6)?);
        let zero = self.input(inputs, 7)?;
        let mut sum = self.integer_conv(node, x.value, x.zero, w.value, w.zero)?;
        let dims = self.dims(sum);
        if let Some(bias) = self.optional(inputs, 8) {
            let bias = self.spread_along(bias, &dims, 1, 0)?;
            sum = self.binary(Binary::Add, sum, bias)?;
        }
        let x_scale = self.spread_along(x.scale, &dims, 1, 0)?;
        let w_scale = self.spread_along(w.scale, &dims, 1, 0)?;
        let y_scale = self.spread_along(y, &dims, 1, 0)?;
        let factor = self.factor(x_scale, w_scale, y_scale)?;
        let dtype = self.dtype(zero);
        let zero = self.spread_along(zero, &dims, 1, 0)?;
        self.rescaled(sum, factor, Some(zero), dtype)
    }

    fn product_to_float(&mut self, a: Quantised, b: Quantised, bias: Option<ValueId>) -> Result<ValueId, GraphError> {
        let sum = self.integer_product(a.value, a.zero, b.value, b.zero)?;
        let dtype = self.dtype(b.scale);
        let a_scale = self.of_rows(a.scale);
        let mut all = vec![sum, a_scale, b.scale];
        all.extend(bias);
        self.apply(&all, dtype, |expression, of| {
            let float = ValueKind::Float;
            let x = expression.push(Instruction::Cast(float, of[0]), float);
            let scale = expression.push(Instruction::Binary(Binary::Multiply, of[1], of[2]), float);
            let x = expression.push(Instruction::Binary(Binary::Multiply, x, scale), float);
            match of.get(3) {
                Some(&bias) => expression.push(Instruction::Binary(Binary::Add, x, bias), float),
                None => x,
            }
        })
    }

    fn qgemm(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let (mut a, mut b) = (self.quantised(inputs, 0)?, self.quantised(inputs, 3)?);
        if self.graph.dims(a.value).len() != 2 || self.graph.dims(b.value).len() != 2 {
            return Err(self.bad("its inputs are no matrices"));
        }
        if node.int("transA", 0) != 0 {
            a.value = self.turn(a.value);
        }
        if node.int("transB", 0) != 0 {
            b.value = self.turn(b.value);
        }
        let mut sum = self.integer_product(a.value, a.zero, b.value, b.zero)?;
        if let Some(summand) = self.optional(inputs, 6) {
            sum = self.binary(Binary::Add, sum, summand)?;
        }
        let alpha = self.scalar(DataType::Fp32, f64::from(node.float("alpha", 1.0)));
        let one = self.scalar(DataType::Fp32, 1.0);
        let a_scale = self.factor(a.scale, alpha, one)?;
        let Some(y_scale) = self.optional(inputs, 7) else {
            let factor = self.factor(a_scale, b.scale, one)?;
            let sum = self.cast(sum, DataType::Fp32)?;
            return self.binary(Binary::Multiply, sum, factor);
        };
        let factor = self.factor(a_scale, b.scale, y_scale)?;
        let zero = self.optional(inputs, 8);
        let dtype = zero.map_or(self.dtype(a.value), |zero| self.dtype(zero));
        self.rescaled(sum, factor, zero, dtype)
    }

    fn qlinear_concat(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let mut parts = Vec::new();
        let first = self.input(inputs, 2)?;
        let rank = self.graph.dims(first).len();
        let axis = self.axis(node.int("axis", 1), rank)?;
        let mut dims = self.dims(first);
        dims[axis] = 0;
        for position in (2..inputs.len()).step_by(3) {
            let part = self.quantised(inputs, position)?;
            let own = self.dims(part.value);
            let mut joined = own.clone();
            if own.len() == rank {
                joined[axis] = dims[axis];
            }
            if joined != dims {
                return Err(self.bad(format!("{own:?} and {dims:?} don't go together")));
            }
            dims[axis] += own[axis];
            let floats = self.floats(part)?;
            parts.push(self.quantise_as(floats, inputs, 0, part.value)?);
        }
        if let [only] = parts[..] {
            return Ok(only);
        }
        let dtype = self.dtype(parts[0]);
        Ok(self.emit(Op::Concat { axis }, &parts, dtype, &dims))
    }
}
