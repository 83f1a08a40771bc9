//! What follows a convolution or product and can be part of it: factors, summands, residuals.

use super::{Index, Side, as_binary};
use crate::array::{Array, is_float};
use crate::expression::Binary;
use crate::ir::{Graph, GraphNode, Op, ValueId};
use crate::plan::Activation;

/// A factor of one side of a product is a factor of the product.
pub(super) fn scale(graph: &mut Graph, index: &Index, position: usize) -> bool {
    let node = &graph.nodes[position];
    let Op::Gemm { alpha, .. } = node.op else { return false };
    for side in 0..2 {
        if let Some((unscaled, factor)) = unscaled(graph, index, node.inputs[side], position) {
            let node = &mut graph.nodes[position];
            node.inputs[side] = unscaled;
            if let Op::Gemm { alpha: own, .. } = &mut node.op {
                *own = alpha * factor;
            }
            return true;
        }
    }
    false
}

/// A value that is another times a number.
pub(super) fn unscaled(graph: &Graph, index: &Index, value: ValueId, user: usize) -> Option<(ValueId, f32)> {
    if index.only_user(value)? != user {
        return None;
    }
    let (of, factor) = match as_binary(index.maker(graph, value)?)? {
        (Binary::Multiply, Side::Value(of), Side::Number(factor)) => (of, factor),
        (Binary::Multiply, Side::Number(factor), Side::Value(of)) => (of, factor),
        (Binary::Divide, Side::Value(of), Side::Number(divisor)) => (of, 1.0 / divisor),
        _ => return None,
    };
    (graph.dims(of) == graph.dims(value)).then_some((of, factor))
}

/// What a convolution or product gives: its position, if nothing else uses it and nothing is behind it yet.
fn product(graph: &Graph, index: &Index, value: ValueId, user: usize) -> Option<usize> {
    let position = index.makers[value]?;
    let plain = match graph.nodes[position].op {
        Op::Conv { residual, activation, .. } | Op::Gemm { residual, activation, .. } => {
            !residual && activation == Activation::None
        }
        _ => false,
    };
    (plain && index.only_user(value) == Some(user) && is_float(graph.values[value].dtype)).then_some(position)
}

/// Constant factors go into the weights, constant summands into the bias.
pub(super) fn affine(graph: &mut Graph, index: &Index, position: usize) -> bool {
    let Some((function, a, b)) = as_binary(&graph.nodes[position]) else { return false };
    let sides = [(a, b), (b, a)];
    let found = sides.into_iter().enumerate().find_map(|(order, (one, other))| {
        let maker = product(graph, index, one.value()?, position)?;
        (graph.dims(one.value()?) == graph.dims(graph.nodes[position].outputs[0])).then_some((order, maker, other))
    });
    let Some((order, maker, other)) = found else { return false };
    let Some(numbers) = numbers(graph, &graph.nodes[maker], other) else { return false };
    let (factors, summands) = match (function, order) {
        (Binary::Multiply, _) => (Some(numbers), None),
        (Binary::Divide, 0) => (Some(numbers.into_iter().map(|number| 1.0 / number).collect()), None),
        (Binary::Add, _) => (None, Some(numbers)),
        (Binary::Subtract, 0) => (None, Some(numbers.into_iter().map(|number| -number).collect())),
        _ => return false,
    };
    let fixed = other.value().is_none_or(|value| graph.is_fixed(value));
    let Some(node) = adjusted(graph, &graph.nodes[maker].clone(), factors, summands, fixed) else { return false };
    let last = &mut graph.nodes[position];
    (last.op, last.inputs) = (node.op, node.inputs);
    true
}

/// How many columns or channels a product has.
fn channels(graph: &Graph, node: &GraphNode) -> usize {
    let dims = graph.dims(node.outputs[0]);
    if matches!(node.op, Op::Conv { .. }) { dims[1] } else { dims[dims.len() - 1] }
}

/// A constant with one number for each channel.
fn numbers(graph: &Graph, node: &GraphNode, side: Side) -> Option<Vec<f32>> {
    let channels = channels(graph, node);
    let value = match side {
        Side::Number(number) => return Some(vec![number; channels]),
        Side::Value(value) => value,
    };
    let (array, dims) = (graph.known(value)?, graph.dims(value));
    // Where the channels are, counted from the end.
    let place = if matches!(node.op, Op::Conv { .. }) { 3 } else { 1 };
    let by_channel = array.elements() == channels && dims.len() >= place && dims[dims.len() - place] == channels;
    by_channel.then(|| array.to_floats().into_owned())
}

/// The product with its weights and bias changed.
fn adjusted(
    graph: &mut Graph,
    node: &GraphNode,
    factors: Option<Vec<f32>>,
    summands: Option<Vec<f32>>,
    fixed: bool,
) -> Option<GraphNode> {
    let mut node = node.clone();
    let channels = channels(graph, &node);
    let (Op::Conv { bias, .. } | Op::Gemm { bias, .. }) = node.op else { return None };
    let mut numbers = match bias {
        true => graph.known(node.inputs[2])?.to_floats().into_owned(),
        false => vec![0.0; channels],
    };
    let fixed = fixed && (!bias || graph.is_fixed(node.inputs[2]));
    let mut has_bias = bias;
    if let Some(factors) = factors {
        let same = factors.iter().all(|&factor| factor == factors[0]);
        match &mut node.op {
            Op::Gemm { alpha, .. } if same => *alpha *= factors[0],
            _ => node.inputs[1] = scaled_weights(graph, &node, &factors)?,
        }
        numbers.iter_mut().zip(&factors).for_each(|(number, factor)| *number *= factor);
    }
    if let Some(summands) = summands {
        numbers.iter_mut().zip(&summands).for_each(|(number, summand)| *number += summand);
        has_bias = true;
    }
    if has_bias {
        let value = graph.constant(Array::floats(&[channels], numbers), fixed);
        node.inputs.truncate(2);
        node.inputs.push(value);
    }
    if let Op::Conv { bias, .. } | Op::Gemm { bias, .. } = &mut node.op {
        *bias = has_bias;
    }
    Some(node)
}

fn scaled_weights(graph: &mut Graph, node: &GraphNode, factors: &[f32]) -> Option<ValueId> {
    let array = graph.known(node.inputs[1])?;
    let fixed = graph.is_fixed(node.inputs[1]);
    let mut weights = array.to_floats().into_owned();
    let dims = array.dims.clone();
    if matches!(node.op, Op::Conv { .. }) {
        let each = weights.len() / factors.len().max(1);
        let scale = |(part, factor): (&mut [f32], &f32)| part.iter_mut().for_each(|weight| *weight *= factor);
        weights.chunks_mut(each.max(1)).zip(factors).for_each(scale);
    } else {
        let scale = |row: &mut [f32]| row.iter_mut().zip(factors).for_each(|(weight, factor)| *weight *= factor);
        weights.chunks_mut(factors.len().max(1)).for_each(scale);
    }
    Some(graph.constant(Array::floats(&dims, weights), fixed))
}

/// The sum of a product and something of the same shape.
pub(super) fn residual(graph: &mut Graph, index: &Index, position: usize) -> bool {
    let Some((Binary::Add, Side::Value(a), Side::Value(b))) = as_binary(&graph.nodes[position]) else { return false };
    let output = graph.nodes[position].outputs[0];
    let same = graph.dims(a) == graph.dims(output) && graph.dims(b) == graph.dims(output) && a != b;
    if !same {
        return false;
    }
    // Of two products, the one that is computed last.
    let candidates = [(a, b), (b, a)].map(|(own, other)| (product(graph, index, own, position), other));
    let Some((Some(maker), other)) = candidates.into_iter().max_by_key(|&(maker, _)| maker) else { return false };
    let mut node = graph.nodes[maker].clone();
    if let Op::Conv { residual, .. } | Op::Gemm { residual, .. } = &mut node.op {
        *residual = true;
    }
    node.inputs.push(other);
    let last = &mut graph.nodes[position];
    (last.op, last.inputs) = (node.op, node.inputs);
    true
}
