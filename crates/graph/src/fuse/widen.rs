//! Products of matrices that were flattened before and are spread out again behind: as products of more dimensions,
//! what follows them is next to them.

use super::{Index, computed};
use crate::ir::{Graph, GraphNode, Op};

/// `reshape(a @ b)` to more rows of the same length becomes `reshape(a) @ b`.
pub(super) fn widen(graph: &mut Graph, index: &Index, position: usize) -> bool {
    let node = &graph.nodes[position];
    if node.op != Op::Reshape || index.only_user(node.inputs[0]) != Some(position) {
        return false;
    }
    let Some(maker) = index.maker(graph, node.inputs[0]) else { return false };
    let Op::Gemm { residual: false, .. } = maker.op else { return false };
    let (flat, wide) = (graph.dims(node.inputs[0]), graph.dims(node.outputs[0]).to_vec());
    if flat.len() != 2 || wide.len() < 3 || wide.last() != flat.last() || graph.dims(maker.inputs[1]).len() != 2 {
        return false;
    }
    let product = maker.clone();
    let mut dims = wide;
    *dims.last_mut().expect("columns") = graph.dims(product.inputs[0])[1];
    // What was flattened for the product needs no reshape at all.
    let before = index.maker(graph, product.inputs[0]).filter(|before| before.op == Op::Reshape);
    let original = before.map(|before| before.inputs[0]).filter(|&value| graph.dims(value) == dims);
    let left = original.unwrap_or_else(|| {
        let value = computed(graph, product.inputs[0], &dims);
        let (name, inputs) = (product.name.clone(), vec![product.inputs[0]]);
        graph.nodes.insert(position, GraphNode { name, op: Op::Reshape, inputs, outputs: vec![value] });
        value
    });
    let position = position + usize::from(original.is_none());
    let node = &mut graph.nodes[position];
    (node.op, node.inputs) = (product.op, product.inputs);
    node.inputs[0] = left;
    true
}
