//! The operators of `com.microsoft` that ONNX Runtime's optimiser and exporters write: what they fuse is taken apart,
//! and fused anew.

use super::attention::Heads;
use super::recurrent::GateFunction;
use super::{Lowering, NodeInputs, elementwise::Floats};
use crate::array::Array;
use crate::error::GraphError;
use crate::expression::{Binary, Instruction, ValueKind};
use crate::ir::{Op, ValueId};
use crate::model::OnnxNode;
use crate::plan::{Activation, ReduceKind};
use base::DataType;

const DOMAIN: &str = "com.microsoft.";

/// What a mask of these operators adds where it hides, unless they say otherwise.
const HIDDEN: f32 = -10_000.0;

impl Lowering {
    pub(super) fn microsoft_node(
        &mut self,
        node: &OnnxNode,
        inputs: NodeInputs<'_>,
    ) -> Result<Option<Vec<ValueId>>, GraphError> {
        let Some(operator) = node.operator.strip_prefix(DOMAIN) else { return Ok(None) };
        let value = match operator {
            "Gelu" => return self.standard("Gelu", node, inputs),
            "BiasGelu" => {
                let sum = self.binary(Binary::Add, self.input(inputs, 0)?, self.input(inputs, 1)?)?;
                return self.standard("Gelu", node, &[Some(sum)]);
            }
            "FastGelu" => self.fast_gelu(inputs)?,
            "QuickGelu" => self.quick_gelu(node, inputs)?,
            "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization" => {
                return self.skip_layer_norm(node, inputs, operator != "SkipLayerNormalization").map(Some);
            }
            "EmbedLayerNormalization" => return self.embedding(node, inputs).map(Some),
            "Attention" => return self.projected_attention(node, inputs).map(Some),
            "MultiHeadAttention" => return self.multi_head_attention(node, inputs).map(Some),
            "RotaryEmbedding" => self.rotary_with_positions(node, inputs)?,
            "FusedMatMul" => self.fused_matmul(node, inputs)?,
            "FusedGemm" => self.fused_gemm(node, inputs)?,
            "FusedConv" => self.fused_conv(node, inputs)?,
            _ => return Ok(None),
        };
        Ok(Some(vec![value]))
    }

    /// The same node as ONNX's own operator of that name.
    fn standard(
        &mut self,
        operator: &str,
        node: &OnnxNode,
        inputs: NodeInputs<'_>,
    ) -> Result<Option<Vec<ValueId>>, GraphError> {
        let mut node = node.clone();
        operator.clone_into(&mut node.operator);
        self.node(&node, inputs).map(Some)
    }

    /// By the hyperbolic tangent; with a bias, perhaps.
    fn fast_gelu(&mut self, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let mut x = self.input(inputs, 0)?;
        if let Some(bias) = self.optional(inputs, 1) {
            x = self.binary(Binary::Add, x, bias)?;
        }
        self.check_float(x)?;
        let dtype = self.dtype(x);
        self.apply(&[x], dtype, |expression, of| Floats(expression).gelu_tanh(of[0]))
    }

    fn quick_gelu(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let x = self.input(inputs, 0)?;
        self.check_float(x)?;
        let (dtype, alpha) = (self.dtype(x), node.float("alpha", 1.702));
        self.apply(&[x], dtype, |expression, of| Floats(expression).swish(of[0], alpha))
    }

    /// The sum of the inputs, normalised, and where it is asked for the sum itself.
    fn skip_layer_norm(
        &mut self,
        node: &OnnxNode,
        inputs: NodeInputs<'_>,
        simplified: bool,
    ) -> Result<Vec<ValueId>, GraphError> {
        if node.outputs.iter().take(3).skip(1).any(|name| !name.is_empty()) {
            return Err(self.unsupported(" with mean and deviation as outputs"));
        }
        let (input, skip, scale) = (self.input(inputs, 0)?, self.input(inputs, 1)?, self.input(inputs, 2)?);
        let (shift, bias) = if simplified { (None, 3) } else { (self.optional(inputs, 3), 4) };
        let mut sum = self.binary(Binary::Add, input, skip)?;
        if let Some(bias) = self.optional(inputs, bias) {
            sum = self.binary(Binary::Add, sum, bias)?;
        }
        let (dims, wanted) = (self.dims(sum), self.dims(input));
        if dims != wanted || dims.is_empty() {
            return Err(self.bad(format!("the sum is {dims:?}, not {wanted:?}")));
        }
        let epsilon = node.float("epsilon", 1e-12);
        let result = self.normalised_from(sum, dims.len() - 1, epsilon, Some(scale), shift, simplified)?;
        Ok(vec![result, sum, sum, sum])
    }

    /// Words, positions and segments as vectors, their sum, and that normalised.
    fn embedding(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<Vec<ValueId>, GraphError> {
        let ids = self.input(inputs, 0)?;
        let [batch, length] = *self.dims(ids) else { return Err(self.bad("its ids are no rows")) };
        let mut sum = self.pick(self.input(inputs, 2)?, ids, 0)?;
        let places = self.input(inputs, 3)?;
        let places = match self.optional(inputs, 8) {
            Some(positions) => self.pick(places, positions, 0)?,
            None if self.graph.dims(places).first().is_some_and(|&most| most >= length) => {
                self.with_fixed(false, |this| this.part(places, 0, 0, length))
            }
            None => return Err(self.bad(format!("it has no positions for {length} words"))),
        };
        sum = self.binary(Binary::Add, sum, places)?;
        if let Some(segments) = self.optional(inputs, 1) {
            let segments = self.pick(self.input(inputs, 4)?, segments, 0)?;
            sum = self.binary(Binary::Add, sum, segments)?;
        }
        let (scale, shift, dims) = (self.input(inputs, 5)?, self.input(inputs, 6)?, self.dims(sum));
        if dims.len() != 3 || dims[..2] != [batch, length] {
            return Err(self.bad(format!("words, positions and segments of {batch} x {length} add up to {dims:?}")));
        }
        let epsilon = node.float("epsilon", 1e-12);
        let result = self.normalised_from(sum, 2, epsilon, Some(scale), Some(shift), false)?;
        let counted = match self.optional(inputs, 7) {
            Some(mask) => self.count_of_ones(mask, batch)?,
            None => self.with_fixed(false, |this| this.filled(DataType::Int32, &[batch], 0.0)),
        };
        Ok(vec![result, counted, sum])
    }

    /// How many of each row are 1.
    fn count_of_ones(&mut self, mask: ValueId, batch: usize) -> Result<ValueId, GraphError> {
        if self.graph.dims(mask).len() != 2 {
            return Err(self.bad("its mask is no rows"));
        }
        let ones = self.apply(&[mask], DataType::Int32, |expression, of| {
            let one = expression.push(Instruction::Int(1), ValueKind::Int);
            let same = expression.push(Instruction::Binary(Binary::Equal, of[0], one), ValueKind::Bool);
            expression.push(Instruction::Cast(ValueKind::Int, same), ValueKind::Int)
        })?;
        let sum = self.reduction(ReduceKind::Sum, ones, &[1]);
        Ok(self.reshape(sum, &[batch]))
    }

    /// Attention with the projections before it, all three as one product.
    fn projected_attention(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<Vec<ValueId>, GraphError> {
        for (position, what) in [(4, "past keys and values"), (6, "a buffer of past ones")] {
            if self.optional(inputs, position).is_some() {
                return Err(self.unsupported(&format!(" with {what}")));
            }
        }
        if node.int("do_rotary", 0) != 0 {
            return Err(self.unsupported(" with rotary embeddings"));
        }
        if node.outputs.iter().skip(1).any(|name| !name.is_empty()) {
            return Err(self.unsupported(" with present keys and values as outputs"));
        }
        let (input, factor) = (self.input(inputs, 0)?, self.input(inputs, 1)?);
        self.check_float(input)?;
        let (dims, own) = (self.dims(input), self.dims(factor));
        let ([_, _, width], [rows, columns]) = (&dims[..], &own[..]) else {
            return Err(self.bad(format!("its input is {dims:?} and its weights are {own:?}")));
        };
        let sizes = match node.ints("qkv_hidden_sizes") {
            Some(sizes) => sizes.iter().map(|&size| usize::try_from(size).unwrap_or(0)).collect(),
            None => vec![columns / 3; 3],
        };
        if sizes.len() != 3 || sizes.iter().sum::<usize>() != *columns || rows != width {
            return Err(self.bad(format!("weights of {own:?} are not for {dims:?} and {sizes:?}")));
        }
        let bias = self.optional(inputs, 2);
        if bias.is_some_and(|bias| self.graph.dims(bias) != [*columns]) {
            return Err(self.bad(format!("its bias is not of {columns}")));
        }
        let op = Op::Gemm { alpha: 1.0, bias: bias.is_some(), residual: false, activation: Activation::None };
        let all: Vec<_> = [input, factor].into_iter().chain(bias).collect();
        let dtype = self.dtype(input);
        let product = self.emit(op, &all, dtype, &[dims[0], dims[1], *columns]);
        let mut start = 0;
        let mut parts = Vec::new();
        for size in sizes {
            let part = self.part(product, 2, start, size);
            parts.push(self.with_heads(part, node.int("num_heads", 0))?);
            start += size;
        }
        let masks = self.masks(node, (self.optional(inputs, 3), self.optional(inputs, 5)), &dims, dims[1], 0)?;
        let heads = Heads { query: parts[0], key: parts[1], value: parts[2], masks, scale: scale(node), softcap: 0.0 };
        let attended = self.attend(heads)?;
        Ok(vec![self.without_heads(attended.result)])
    }

    fn multi_head_attention(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<Vec<ValueId>, GraphError> {
        for (position, what) in [(8, "a buffer of past keys and values"), (9, "beams")] {
            if self.optional(inputs, position).is_some() {
                return Err(self.unsupported(&format!(" with {what}")));
            }
        }
        let query = self.input(inputs, 0)?;
        self.check_float(query)?;
        let dims = self.dims(query);
        let (Some(key), Some(value)) = (self.optional(inputs, 1), self.optional(inputs, 2)) else {
            return Err(self.unsupported(" with queries, keys and values in one tensor"));
        };
        if [query, key, value].iter().any(|&value| self.graph.dims(value).len() != 3) {
            return Err(self.unsupported(" with keys and values of other than three dimensions"));
        }
        let [query, key, value] = self.with_biases([query, key, value], self.optional(inputs, 3))?;
        let heads = node.int("num_heads", 0);
        let query = self.with_heads(query, heads)?;
        let (key, value) = (self.with_heads(key, heads)?, self.with_heads(value, heads)?);
        if self.optional(inputs, 6).is_some() && node.outputs.iter().take(3).filter(|name| !name.is_empty()).count() < 3
        {
            // ONNX Runtime ignores the past then.
            return Err(self.unsupported(" with past keys and values, but no present ones as outputs"));
        }
        let (past, key, value) = match (self.optional(inputs, 6), self.optional(inputs, 7)) {
            (Some(past_key), Some(past_value)) => {
                let past = self.graph.dims(past_key).get(2).copied().unwrap_or(0);
                (past, self.join(&[past_key, key], 2)?, self.join(&[past_value, value], 2)?)
            }
            (None, None) => (0, key, value),
            _ => return Err(self.bad("of past keys and values it has one and not the other")),
        };
        let total = self.dims(key)[2];
        let masks = self.masks(node, (self.optional(inputs, 4), self.optional(inputs, 5)), &dims, total, past)?;
        let attended = self.attend(Heads { query, key, value, masks, scale: scale(node), softcap: 0.0 })?;
        let result = self.without_heads(attended.result);
        Ok(vec![result, key, value, attended.weights()])
    }

    /// Queries, keys and values with the biases that come in one tensor.
    fn with_biases(&mut self, values: [ValueId; 3], bias: Option<ValueId>) -> Result<[ValueId; 3], GraphError> {
        let Some(bias) = bias else { return Ok(values) };
        let widths = values.map(|value| self.dims(value)[2]);
        if self.graph.dims(bias) != [widths.iter().sum::<usize>()] {
            return Err(self.bad(format!("a bias of {:?} is not for {widths:?}", self.dims(bias))));
        }
        let (mut start, mut sums) = (0, values);
        for (sum, width) in sums.iter_mut().zip(widths) {
            let part = self.part(bias, 0, start, width);
            *sum = self.binary(Binary::Add, *sum, part)?;
            start += width;
        }
        Ok(sums)
    }

    /// What is added to the scores: a mask of positions, a bias, and what comes later in time.
    fn masks(
        &mut self,
        node: &OnnxNode,
        (mask, bias): (Option<ValueId>, Option<ValueId>),
        query: &[usize],
        total: usize,
        past: usize,
    ) -> Result<Vec<ValueId>, GraphError> {
        let (batch, length, hidden) = (query[0], query[1], node.float("mask_filter_value", HIDDEN));
        let mut masks = Vec::new();
        if let Some(mask) = mask {
            let own = self.dims(mask);
            let positions = match own[..] {
                [rows] if rows == batch => {
                    let positions = Array::ints(&[1, 1, 1, total], (0..total as i64).collect());
                    let positions = self.graph.constant(positions, false);
                    let lengths = self.cast(mask, DataType::Int64)?;
                    let lengths = self.reshape(lengths, &[batch, 1, 1, 1]);
                    self.compare(Binary::Less, positions, lengths)?
                }
                [rows, columns] if [rows, columns] == [batch, total] => {
                    let kept = self.cast(mask, DataType::Bool)?;
                    self.reshape(kept, &[batch, 1, 1, total])
                }
                [_, _, _] if own == [batch, length, total] => {
                    let kept = self.cast(mask, DataType::Bool)?;
                    self.reshape(kept, &[batch, 1, length, total])
                }
                _ => return Err(self.unsupported(&format!(" with a mask of {own:?}"))),
            };
            masks.push(self.hidden_by(positions, hidden)?);
        }
        masks.extend(bias);
        if node.int("unidirectional", 0) != 0 {
            masks.push(self.causal_mask(length, total, past, DataType::Fp32)?);
        }
        masks.into_iter().map(|mask| self.cast(mask, DataType::Fp32)).collect()
    }

    /// Nothing where a condition holds, elsewhere that number.
    fn hidden_by(&mut self, condition: ValueId, number: f32) -> Result<ValueId, GraphError> {
        self.apply(&[condition], DataType::Fp32, |expression, of| {
            let shown = expression.push(Instruction::Float(0.0), ValueKind::Float);
            let hidden = expression.push(Instruction::Float(number), ValueKind::Float);
            expression.push(Instruction::Select(of[0], shown, hidden), ValueKind::Float)
        })
    }

    /// Positions come before the angles, and may be one number: that of the first word.
    fn rotary_with_positions(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        if node.int("is_packed_batching", 0) != 0 || node.float("scale", 1.0) != 1.0 {
            return Err(self.unsupported(" with batches of different lengths or a scale"));
        }
        let (input, positions) = (self.input(inputs, 0)?, self.input(inputs, 1)?);
        let caches = [self.input(inputs, 2)?, self.input(inputs, 3)?];
        if self.graph.dims(positions).len() != 2 {
            return Err(self.unsupported(" with one position for all"));
        }
        if self.graph.dims(input).len() == 3 && node.int("num_heads", 0) == 0 {
            return Err(self.unsupported(" without the number of heads"));
        }
        self.rotated(node, input, caches, Some(positions))
    }

    fn fused_matmul(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        if node.int("transBatchA", 0) != 0 || node.int("transBatchB", 0) != 0 {
            return Err(self.unsupported(" with batches that are turned"));
        }
        let mut sides = [self.input(inputs, 0)?, self.input(inputs, 1)?];
        self.check_float(sides[0])?;
        for (side, name) in sides.iter_mut().zip(["transA", "transB"]) {
            let rank = self.graph.dims(*side).len();
            // Vectors stay as they are.
            if node.int(name, 0) != 0 && rank >= 2 {
                let order: Vec<_> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
                *side = self.transpose(*side, &order);
            }
        }
        let product = self.matmul(&sides.map(Some))?;
        match node.float("alpha", 1.0) {
            1.0 => Ok(product),
            alpha => {
                let alpha = self.scalar(self.dtype(product), f64::from(alpha));
                self.binary(Binary::Multiply, product, alpha)
            }
        }
    }

    fn fused_gemm(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let product = self.gemm(node, inputs)?;
        let given = |name: &str| node.has(name).then(|| node.float(name, 0.0));
        let numbers: Vec<_> =
            [given("activation_alpha"), given("activation_beta")].into_iter().map_while(|x| x).collect();
        self.activated(product, node.text("activation", ""), &numbers)
    }

    /// A convolution, perhaps with something added, and a function of it.
    fn fused_conv(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let own = &inputs[..inputs.len().min(3)];
        let mut value = self.standard("Conv", node, own)?.expect("a convolution")[0];
        if let Some(summand) = self.optional(inputs, 3) {
            value = self.binary(Binary::Add, value, summand)?;
        }
        let numbers = node.floats("activation_params").unwrap_or(&[]).to_vec();
        self.activated(value, node.text("activation", ""), &numbers)
    }

    /// A function of that name, with the numbers that it takes.
    fn activated(&mut self, value: ValueId, name: &str, numbers: &[f32]) -> Result<ValueId, GraphError> {
        let function = match (name, numbers) {
            ("", _) => return Ok(value),
            ("Relu", _) => GateFunction::Relu,
            ("Tanh", _) => GateFunction::Tanh,
            ("Sigmoid", _) => GateFunction::Sigmoid,
            ("LeakyRelu", &[slope, ..]) => GateFunction::LeakyRelu(slope),
            ("HardSigmoid", &[alpha, beta, ..]) => GateFunction::HardSigmoid(alpha, beta),
            ("Clip", &[low, high, ..]) => GateFunction::Clip(low, high),
            _ => return Err(self.unsupported(&format!(" with the activation {name} of {numbers:?}"))),
        };
        self.check_float(value)?;
        let dtype = self.dtype(value);
        self.apply(&[value], dtype, |expression, of| function.write(&mut Floats(expression), of[0]))
    }
}

/// The factor of scores, where it isn't the usual one.
fn scale(node: &OnnxNode) -> Option<f32> {
    Some(node.float("scale", 0.0)).filter(|&scale| scale != 0.0)
}
