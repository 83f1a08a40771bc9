//! Attention and rotary embeddings. Attention becomes products, masks and a softmax; fusion makes one step of the plain
//! case again.

use super::elementwise::Floats;
use super::{Lowering, NodeInputs};
use crate::array::{Array, is_float};
use crate::error::GraphError;
use crate::expression::{Binary, Instruction, Unary, ValueKind};
use crate::ir::{Op, ValueId, broadcast};
use crate::model::OnnxNode;
use crate::plan::Activation;
use base::DataType;

/// What attention needs, with heads in a dimension of their own: `[batch, heads, length, width]`.
pub(super) struct Heads {
    pub(super) query: ValueId,
    pub(super) key: ValueId,
    pub(super) value: ValueId,
    /// Added to the scores.
    pub(super) masks: Vec<ValueId>,
    /// `None` for one over the root of the width.
    pub(super) scale: Option<f32>,
    /// 0 for none.
    pub(super) softcap: f32,
}

/// What attention gives: the result as `[batch, heads, length, width]`, and the scores after each stage, as
/// `qk_matmul_output_mode` counts them.
pub(super) struct Attended {
    pub(super) result: ValueId,
    stages: [ValueId; 4],
}

impl Attended {
    /// What each value counts.
    pub(super) fn weights(&self) -> ValueId {
        self.stages[3]
    }
}

impl Lowering {
    pub(super) fn attention_node(
        &mut self,
        node: &OnnxNode,
        inputs: NodeInputs<'_>,
    ) -> Result<Option<Vec<ValueId>>, GraphError> {
        match node.operator.as_str() {
            "Attention" => self.attention(node, inputs).map(Some),
            "RotaryEmbedding" => self.rotary(node, inputs).map(|value| Some(vec![value])),
            _ => Ok(None),
        }
    }

    fn attention(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<Vec<ValueId>, GraphError> {
        let [query, key, value] = [self.input(inputs, 0)?, self.input(inputs, 1)?, self.input(inputs, 2)?];
        self.check_float(query)?;
        let flat = self.graph.dims(query).len() == 3;
        let query = self.with_heads(query, node.int("q_num_heads", 0))?;
        let key = self.with_heads(key, node.int("kv_num_heads", 0))?;
        let value = self.with_heads(value, node.int("kv_num_heads", 0))?;
        let (past, key, value) = self.with_past(inputs, key, value)?;
        let (dims, total) = (self.dims(query), self.dims(key)[2]);
        let mut masks = Vec::new();
        if let Some(mask) = self.optional(inputs, 3) {
            masks.push(self.score_mask(mask, total, self.dtype(query))?);
        }
        if node.int("is_causal", 0) != 0 {
            masks.push(self.causal_mask(dims[2], total, past, self.dtype(query))?);
        }
        if let Some(lengths) = self.optional(inputs, 6) {
            masks.push(self.length_mask(lengths, dims[0], total, self.dtype(query))?);
        }
        let scale = node.has("scale").then(|| node.float("scale", 1.0));
        let softcap = node.float("softcap", 0.0);
        let attended = self.attend(Heads { query, key, value, masks, scale, softcap })?;
        let mode = usize::try_from(node.int("qk_matmul_output_mode", 0)).ok().filter(|&mode| mode < 4);
        let mode = mode.ok_or_else(|| self.bad("qk_matmul_output_mode is none of 0, 1, 2 and 3"))?;
        let result = if flat { self.without_heads(attended.result) } else { attended.result };
        Ok(vec![result, key, value, attended.stages[mode]])
    }

    /// `[batch, length, heads * width]` as `[batch, heads, length, width]`; what has four dimensions has them already.
    pub(super) fn with_heads(&mut self, value: ValueId, heads: i64) -> Result<ValueId, GraphError> {
        let dims = self.dims(value);
        let wanted = usize::try_from(heads).unwrap_or(0);
        match dims[..] {
            [batch, length, width] if wanted > 0 && width % wanted == 0 => {
                let apart = self.reshape(value, &[batch, length, wanted, width / wanted]);
                Ok(self.transpose(apart, &[0, 2, 1, 3]))
            }
            [_, _, _, _] => Ok(value),
            _ => Err(self.bad(format!("{dims:?} can't be divided among {heads} heads"))),
        }
    }

    /// The way back.
    pub(super) fn without_heads(&mut self, value: ValueId) -> ValueId {
        let [batch, heads, length, width] = *self.dims(value) else { unreachable!("with heads") };
        let turned = self.transpose(value, &[0, 2, 1, 3]);
        self.reshape(turned, &[batch, length, heads * width])
    }

    /// Keys and values with those before them, and how many these are.
    fn with_past(
        &mut self,
        inputs: NodeInputs<'_>,
        key: ValueId,
        value: ValueId,
    ) -> Result<(usize, ValueId, ValueId), GraphError> {
        let (Some(past_key), Some(past_value)) = (self.optional(inputs, 4), self.optional(inputs, 5)) else {
            if self.optional(inputs, 4).or(self.optional(inputs, 5)).is_some() {
                return Err(self.bad("of past keys and values it has one and not the other"));
            }
            return Ok((0, key, value));
        };
        let past = self.graph.dims(past_key).get(2).copied().unwrap_or(0);
        Ok((past, self.join(&[past_key, key], 2)?, self.join(&[past_value, value], 2)?))
    }

    /// A mask of bools or floats as one that is added; beyond its end everything is masked.
    pub(super) fn score_mask(&mut self, mask: ValueId, total: usize, dtype: DataType) -> Result<ValueId, GraphError> {
        let own = self.dtype(mask);
        let mask = match own {
            DataType::Bool => self.hidden_unless(mask, dtype)?,
            own if is_float(own) => self.cast(mask, dtype)?,
            own => return Err(self.unsupported(&format!(" with a mask of {own}"))),
        };
        let mut dims = self.dims(mask);
        let last = dims.last().copied().filter(|&last| last <= total || last == 1);
        let last = last.ok_or_else(|| self.bad(format!("a mask of {dims:?} is for more than {total} positions")))?;
        if last == total || last == 1 {
            return Ok(mask);
        }
        let rank = dims.len();
        dims[rank - 1] = total;
        let before = vec![0; rank];
        let op = Op::Pad { before, value: f32::NEG_INFINITY };
        Ok(self.with_fixed(false, |this| this.emit(op, &[mask], dtype, &dims)))
    }

    /// Nothing where a condition holds, elsewhere minus infinity.
    pub(super) fn hidden_unless(&mut self, condition: ValueId, dtype: DataType) -> Result<ValueId, GraphError> {
        self.apply(&[condition], dtype, |expression, of| {
            let shown = expression.push(Instruction::Float(0.0), ValueKind::Float);
            let hidden = expression.push(Instruction::Float(f32::NEG_INFINITY), ValueKind::Float);
            expression.push(Instruction::Select(of[0], shown, hidden), ValueKind::Float)
        })
    }

    /// Each position sees itself and what is before it; `past` positions are before the first.
    pub(super) fn causal_mask(
        &mut self,
        length: usize,
        total: usize,
        past: usize,
        dtype: DataType,
    ) -> Result<ValueId, GraphError> {
        let count = |from: usize, to: usize| (from as i64..to as i64).collect::<Vec<_>>();
        let rows = self.graph.constant(Array::ints(&[length, 1], count(past, past + length)), false);
        let columns = self.graph.constant(Array::ints(&[1, total], count(0, total)), false);
        let seen = self.compare(Binary::LessOrEqual, columns, rows)?;
        self.hidden_unless(seen, dtype)
    }

    /// Of each of the batch, so many positions count.
    pub(super) fn length_mask(
        &mut self,
        lengths: ValueId,
        batch: usize,
        total: usize,
        dtype: DataType,
    ) -> Result<ValueId, GraphError> {
        if self.graph.dims(lengths) != [batch] {
            return Err(self.bad(format!("it has lengths for {:?}, not for {batch}", self.dims(lengths))));
        }
        let lengths = self.cast(lengths, DataType::Int64)?;
        let lengths = self.reshape(lengths, &[batch, 1, 1, 1]);
        let positions = self.graph.constant(Array::ints(&[1, 1, 1, total], (0..total as i64).collect()), false);
        let seen = self.compare(Binary::Less, positions, lengths)?;
        self.hidden_unless(seen, dtype)
    }

    pub(super) fn compare(&mut self, function: Binary, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.apply(&[a, b], DataType::Bool, |expression, of| {
            expression.push(Instruction::Binary(function, of[0], of[1]), ValueKind::Bool)
        })
    }

    /// `softmax(softcap(scale * query @ key^T + masks)) @ value`
    pub(super) fn attend(&mut self, heads: Heads) -> Result<Attended, GraphError> {
        let (query, dtype) = (heads.query, self.dtype(heads.query));
        let (own, other, result) = (self.dims(query), self.dims(heads.key), self.dims(heads.value));
        let fits = own.len() == 4
            && other.len() == 4
            && result.len() == 4
            && own[3] == other[3]
            && own[0] == other[0]
            && other[..3] == result[..3]
            && other[1] > 0
            && own[1] % other[1] == 0;
        if !fits {
            return Err(self.bad(format!("{own:?}, {other:?} and {result:?} don't go together")));
        }
        let key = self.repeat_heads(heads.key, own[1]);
        let value = self.repeat_heads(heads.value, own[1]);
        let turned = self.transpose(key, &[0, 1, 3, 2]);
        let scale = heads.scale.unwrap_or(1.0 / (own[3] as f32).sqrt());
        let product = |alpha| Op::Gemm { alpha, bias: false, residual: false, activation: Activation::None };
        let score_dims = [own[0], own[1], own[2], other[2]];
        let scores = self.emit(product(scale), &[query, turned], dtype, &score_dims);
        let mut masked = scores;
        if let Some(mask) = self.sum_of(&heads.masks)? {
            let wide = self.dims(mask);
            if broadcast(&wide, &score_dims).as_deref() != Some(&score_dims[..]) {
                return Err(self.bad(format!("a mask of {wide:?} is not for scores of {score_dims:?}")));
            }
            let mask = self.cast(mask, dtype)?;
            masked = self.binary(Binary::Add, scores, mask)?;
        }
        let capped = if heads.softcap > 0.0 { self.capped(masked, heads.softcap)? } else { masked };
        let weights = self.emit(Op::Softmax { axis: 3, log: false }, &[capped], dtype, &score_dims);
        let dims = [own[0], own[1], own[2], result[3]];
        let result = self.emit(product(1.0), &[weights, value], dtype, &dims);
        Ok(Attended { result, stages: [scores, masked, capped, weights] })
    }

    fn sum_of(&mut self, values: &[ValueId]) -> Result<Option<ValueId>, GraphError> {
        let Some((&first, rest)) = values.split_first() else { return Ok(None) };
        rest.iter().try_fold(first, |sum, &next| self.binary(Binary::Add, sum, next)).map(Some)
    }

    /// Heads that several of the query share, once for each of those.
    fn repeat_heads(&mut self, value: ValueId, heads: usize) -> ValueId {
        let [batch, own, length, width] = *self.dims(value) else { unreachable!("with heads") };
        if own == heads {
            return value;
        }
        let apart = self.reshape(value, &[batch, own, 1, length, width]);
        let wide = self.expand(apart, &[batch, own, heads / own, length, width]);
        self.reshape(wide, &[batch, heads, length, width])
    }

    /// `cap * tanh(x / cap)`
    fn capped(&mut self, value: ValueId, cap: f32) -> Result<ValueId, GraphError> {
        let dtype = self.dtype(value);
        self.apply(&[value], dtype, |expression, of| {
            let mut floats = Floats(expression);
            let part = floats.with(Binary::Divide, of[0], cap);
            let bounded = floats.unary(Unary::Tanh, part);
            floats.with(Binary::Multiply, bounded, cap)
        })
    }

    /// Pairs of features are turned by an angle that depends on the position.
    fn rotary(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let caches = [self.input(inputs, 1)?, self.input(inputs, 2)?];
        let positions = self.optional(inputs, 3);
        self.rotated(node, self.input(inputs, 0)?, caches, positions)
    }

    pub(super) fn rotated(
        &mut self,
        node: &OnnxNode,
        input: ValueId,
        caches: [ValueId; 2],
        positions: Option<ValueId>,
    ) -> Result<ValueId, GraphError> {
        self.check_float(input)?;
        let original = self.dims(input);
        let flat = original.len() == 3;
        let value = self.with_heads(input, node.int("num_heads", 0))?;
        let [batch, heads, length, width] = *self.dims(value) else { unreachable!("with heads") };
        let turned = match usize::try_from(node.int("rotary_embedding_dim", 0)) {
            Ok(0) => width,
            Ok(some) if some <= width => some,
            _ => return Err(self.bad(format!("its rotary_embedding_dim is not within {width}"))),
        };
        if turned % 2 != 0 {
            return Err(self.bad(format!("{turned} features are no pairs")));
        }
        let half = turned / 2;
        let mut angles = Vec::new();
        for cache in caches {
            let picked = match positions {
                Some(positions) => self.pick(cache, positions, 0)?,
                None => cache,
            };
            let dims = self.dims(picked);
            if dims != [batch, length, half] {
                return Err(self.bad(format!("its angles are {dims:?}, not {:?}", [batch, length, half])));
            }
            angles.push(self.reshape(picked, &[batch, 1, length, half]));
        }
        let interleaved = node.int("interleaved", 0) != 0;
        let step = if interleaved { 2 } else { 1 };
        let dims = [batch, heads, length, half];
        let part = |this: &mut Self, start: usize| this.slice(value, &[0, 0, 0, start], &[1, 1, 1, step], &dims);
        let (first, second) = (part(self, 0), part(self, if interleaved { 1 } else { half }));
        let real = self.turned_by(first, second, angles[0], angles[1], Binary::Subtract)?;
        let imaginary = self.turned_by(second, first, angles[0], angles[1], Binary::Add)?;
        let mut parts = if interleaved {
            let apart = [batch, heads, length, half, 1];
            let pair = [self.reshape(real, &apart), self.reshape(imaginary, &apart)];
            let pairs = self.join(&pair, 4)?;
            vec![self.reshape(pairs, &[batch, heads, length, turned])]
        } else {
            vec![real, imaginary]
        };
        if turned < width {
            parts.push(self.part(value, 3, turned, width - turned));
        }
        let result = self.join(&parts, 3)?;
        Ok(if flat { self.without_heads(result) } else { result })
    }

    /// `cos * a ± sin * b`
    fn turned_by(
        &mut self,
        a: ValueId,
        b: ValueId,
        cos: ValueId,
        sin: ValueId,
        sign: Binary,
    ) -> Result<ValueId, GraphError> {
        let dtype = self.dtype(a);
        self.apply(&[a, b, cos, sin], dtype, |expression, of| {
            let mut floats = Floats(expression);
            let kept = floats.binary(Binary::Multiply, of[0], of[2]);
            let other = floats.binary(Binary::Multiply, of[1], of[3]);
            floats.binary(sign, kept, other)
        })
    }
}
