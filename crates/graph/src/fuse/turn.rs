//! Transposes between two reshapes that only flatten and spread out again what stays where it is.

use super::Index;
use crate::ir::{Graph, Op};

/// `[a, b, m, n]` to `[a * b, m, n]`, transposed to `[a * b, n, m]`, to `[a, b, n, m]`: one transpose of the original,
/// which is a matter of strides whatever those are.
pub(super) fn turn(graph: &mut Graph, index: &Index, position: usize) -> bool {
    let Some((value, order)) = turned(graph, index, position) else { return false };
    let node = &mut graph.nodes[position];
    (node.op, node.inputs) = (Op::Transpose(order), vec![value]);
    true
}

fn turned(graph: &Graph, index: &Index, position: usize) -> Option<(usize, Vec<usize>)> {
    let last = &graph.nodes[position];
    let middle = index.maker(graph, last.inputs[0])?;
    let Op::Transpose(order) = &middle.op else { return None };
    let first = index.maker(graph, middle.inputs[0])?;
    if last.op != Op::Reshape || first.op != Op::Reshape || order[0] != 0 {
        return None;
    }
    let (from, flat, to) = (graph.dims(first.inputs[0]), graph.dims(middle.inputs[0]), graph.dims(last.outputs[0]));
    // How many dimensions are flattened into the first.
    let lead = from.len().checked_sub(flat.len() - 1)?;
    let moved: Vec<_> = (0..lead).chain(order[1..].iter().map(|axis| axis + lead - 1)).collect();
    let fits = lead >= 1
        && from[lead..] == flat[1..]
        && from.len() == to.len()
        && moved.iter().zip(to).all(|(&axis, &size)| from[axis] == size);
    fits.then(|| (first.inputs[0], moved))
}
