//! Products of the same left side, as those for query, key and value: one product with the right sides concatenated.

use super::{Index, computed};
use crate::array::{Array, Data, is_float};
use crate::ir::{Graph, GraphNode, Op, ValueId};
use std::sync::Arc;

/// Makes one product of all that multiply the same with constants of the same height.
pub(super) fn siblings(graph: &mut Graph, index: &Index, position: usize) -> bool {
    let Some((left, height)) = candidate(graph, &graph.nodes[position]) else { return false };
    let alike = |&other: &usize| {
        other != usize::MAX
            && graph.nodes[other].op == graph.nodes[position].op
            && candidate(graph, &graph.nodes[other]) == Some((left, height))
    };
    let mut all: Vec<_> = index.uses[left].iter().copied().filter(alike).collect();
    all.sort_unstable();
    all.dedup();
    if all.len() < 2 || all[0] != position {
        return false;
    }
    let op = graph.nodes[position].op.clone();
    let widths: Vec<_> = all.iter().map(|&one| graph.dims(graph.nodes[one].inputs[1])[1]).collect();
    let mut inputs = vec![left];
    for input in 1..graph.nodes[position].inputs.len() {
        let parts: Vec<_> = all.iter().map(|&one| graph.nodes[one].inputs[input]).collect();
        inputs.push(concatenated(graph, &parts));
    }
    let first = graph.nodes[position].outputs[0];
    let mut dims = graph.dims(first).to_vec();
    let last = dims.len() - 1;
    dims[last] = widths.iter().sum();
    let whole = computed(graph, first, &dims);
    let mut start = 0;
    for (&one, width) in all.iter().zip(widths) {
        let mut starts = vec![0; dims.len()];
        starts[last] = start;
        start += width;
        let node = &mut graph.nodes[one];
        (node.op, node.inputs) = (Op::Slice { starts, steps: vec![1; dims.len()] }, vec![whole]);
    }
    let name = graph.nodes[position].name.clone();
    graph.nodes.insert(position, GraphNode { name, op, inputs, outputs: vec![whole] });
    true
}

/// The left side and the height of the right side, where that is a constant matrix and so is the bias.
fn candidate(graph: &Graph, node: &GraphNode) -> Option<(ValueId, usize)> {
    let Op::Gemm { residual: false, .. } = node.op else { return None };
    let (left, right) = (node.inputs[0], node.inputs[1]);
    let constant = node.inputs[1..].iter().all(|&input| graph.is_fixed(input));
    let fits = constant && graph.dims(right).len() == 2 && is_float(graph.values[right].dtype) && left != right;
    fits.then(|| (left, graph.dims(right)[0]))
}

/// Constants, one behind another along their last dimension.
fn concatenated(graph: &mut Graph, parts: &[ValueId]) -> ValueId {
    let arrays: Vec<Arc<Array>> = parts.iter().map(|&part| graph.known(part).expect("a constant").clone()).collect();
    let mut dims = arrays[0].dims.clone();
    let last = dims.len() - 1;
    dims[last] = arrays.iter().map(|array| array.dims[last]).sum();
    let floats: Vec<_> = arrays.iter().map(|array| array.to_floats()).collect();
    let rows = dims[..last].iter().product();
    let mut data = Vec::with_capacity(dims.iter().product());
    for row in 0..rows {
        for (array, floats) in arrays.iter().zip(&floats) {
            let width = array.dims[last];
            data.extend_from_slice(&floats[row * width..][..width]);
        }
    }
    graph.constant(Array::new(arrays[0].dtype, &dims, Data::Float(data)), true)
}
