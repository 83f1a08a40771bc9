//! Layer normalisation that was exported as its parts.

use super::{Index, Side, as_binary, as_unary};
use crate::expression::{Binary, Unary};
use crate::ir::{Graph, GraphNode, Op, ValueId};
use crate::plan::ReduceKind;

/// `(x - mean) / sqrt(variance + epsilon)`, with factor and summand where they follow.
pub(super) fn layer_norm(graph: &mut Graph, index: &Index, position: usize) -> bool {
    let node = &graph.nodes[position];
    if let Op::LayerNorm { scale, shift, .. } = node.op {
        return if scale || shift { false } else { parameters(graph, index, position) };
    }
    let Some((input, axis, epsilon, root_mean_square)) = normalised(graph, index, node) else { return false };
    let node = &mut graph.nodes[position];
    node.op = Op::LayerNorm { axis, epsilon, root_mean_square, scale: false, shift: false };
    node.inputs = vec![input];
    true
}

fn normalised(graph: &Graph, index: &Index, node: &GraphNode) -> Option<(ValueId, usize, f32, bool)> {
    let (function, Side::Value(a), Side::Value(b)) = as_binary(node)? else { return None };
    let (top, root) = match function {
        Binary::Divide => (a, b),
        Binary::Multiply => {
            let inverse = |value| match as_unary(index.maker(graph, value)?)? {
                (Unary::Reciprocal, root) => Some(root),
                _ => None,
            };
            match (inverse(b), inverse(a)) {
                (Some(root), _) => (a, root),
                (None, Some(root)) => (b, root),
                (None, None) => return None,
            }
        }
        _ => return None,
    };
    let (Unary::SquareRoot, sum) = as_unary(index.maker(graph, root)?)? else { return None };
    let (Binary::Add, variance, Side::Number(epsilon)) = as_binary(index.maker(graph, sum)?)? else { return None };
    let (squares, axes) = mean(graph, index, variance.value()?)?;
    if square_of(graph, index, squares)? != top {
        return None;
    }
    let rank = graph.dims(top).len();
    let axis = *axes.first()?;
    if axes != (axis..rank).collect::<Vec<_>>() {
        return None;
    }
    // With the mean taken off, or without.
    if let Some((Binary::Subtract, Side::Value(x), Side::Value(m))) = as_binary(index.maker(graph, top)?)
        && mean(graph, index, m) == Some((x, axes))
    {
        return Some((x, axis, epsilon, false));
    }
    Some((top, axis, epsilon, true))
}

fn mean(graph: &Graph, index: &Index, value: ValueId) -> Option<(ValueId, Vec<usize>)> {
    match index.maker(graph, value)? {
        GraphNode { op: Op::Reduce { kind: ReduceKind::Mean, axes }, inputs, .. } => Some((inputs[0], axes.clone())),
        _ => None,
    }
}

fn square_of(graph: &Graph, index: &Index, value: ValueId) -> Option<ValueId> {
    match as_binary(index.maker(graph, value)?)? {
        (Binary::Power, Side::Value(x), Side::Number(2.0)) => Some(x),
        (Binary::Multiply, Side::Value(x), Side::Value(y)) if x == y => Some(x),
        _ => None,
    }
}

/// Takes in the factor, or the summand, of the only user.
fn parameters(graph: &mut Graph, index: &Index, position: usize) -> bool {
    let taken = take(graph, index, position, Binary::Multiply, graph.nodes[position].outputs[0]);
    let Some((user, scale)) = taken else { return false };
    let Op::LayerNorm { axis, epsilon, root_mean_square, .. } = graph.nodes[position].op else { return false };
    let mut inputs = vec![graph.nodes[position].inputs[0], scale];
    let mut last = user;
    let mut shift = false;
    if !root_mean_square
        && let Some((user, value)) = take(graph, index, position, Binary::Add, graph.nodes[user].outputs[0])
    {
        inputs.push(value);
        (last, shift) = (user, true);
    }
    let node = &mut graph.nodes[last];
    node.op = Op::LayerNorm { axis, epsilon, root_mean_square, scale: true, shift };
    node.inputs = inputs;
    true
}

/// The only user of a value, where it is that function with a constant that varies over the normalised dimensions only.
fn take(graph: &Graph, index: &Index, position: usize, function: Binary, value: ValueId) -> Option<(usize, ValueId)> {
    let user = index.only_user(value)?;
    let (found, Side::Value(a), Side::Value(b)) = as_binary(&graph.nodes[user])? else { return None };
    let other = if a == value { b } else { a };
    let Op::LayerNorm { axis, .. } = graph.nodes[position].op else { return None };
    let dims = graph.dims(value);
    let own = graph.dims(other);
    let tail = own.iter().rev().zip(dims[axis..].iter().rev()).all(|(own, dim)| own == dim || *own == 1);
    let fits = found == function
        && graph.known(other).is_some()
        && own.iter().product::<usize>() <= dims[axis..].iter().product()
        && tail
        && graph.dims(graph.nodes[user].outputs[0]) == dims;
    fits.then_some((user, other))
}
