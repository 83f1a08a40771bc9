//! Makes one node of several: what a kernel can do at once isn't written to memory in between.
//!
//! Each pass looks for one pattern. A fused node stands where the last of its parts stood, so that everything it reads
//! has been computed.

mod activation;
mod affine;
mod attention;
mod chain;
mod normal;
mod pad;
mod siblings;
mod turn;
mod widen;

use crate::expression::{Binary, Expression, Instruction, Unary};
use crate::ir::{Content, Graph, GraphNode, Op, Uses, ValueId};
use std::collections::HashMap;

/// All passes, in an order in which none hides from the next what it looks for.
pub(crate) fn fuse(graph: &mut Graph) {
    merge_equals(graph);
    graph.remove_unused();
    let passes = [
        pad::pad,
        widen::widen,
        turn::turn,
        normal::layer_norm,
        attention::attention,
        affine::affine,
        affine::residual,
        chain::chain,
        activation::activation,
        // Only now: before, it would take a factor away from an activation.
        affine::scale,
        siblings::siblings,
    ];
    for pass in passes {
        repeat(graph, pass);
    }
    // Each attention made its own of the mask that all layers have.
    merge_equals(graph);
}

/// Who makes and who uses each value.
pub(crate) struct Index {
    uses: Uses,
    makers: Vec<Option<usize>>,
}

impl Index {
    fn new(graph: &Graph) -> Self {
        Self { uses: graph.uses(), makers: graph.makers() }
    }

    /// The position of the only node that uses a value, however often it does.
    fn only_user(&self, value: ValueId) -> Option<usize> {
        let (&first, rest) = self.uses[value].split_first()?;
        (first != usize::MAX && rest.iter().all(|&other| other == first)).then_some(first)
    }

    fn maker<'a>(&self, graph: &'a Graph, value: ValueId) -> Option<&'a GraphNode> {
        self.makers[value].map(|position| &graph.nodes[position])
    }
}

/// Tries a pass at each node until it changes nothing any more.
fn repeat(graph: &mut Graph, pass: fn(&mut Graph, &Index, usize) -> bool) {
    let mut index = Index::new(graph);
    let mut position = 0;
    while position < graph.nodes.len() {
        let before = graph.nodes.len();
        if pass(graph, &index, position) {
            graph.remove_unused();
            index = Index::new(graph);
            // Nodes before this one may be gone, or new.
            position = (position + graph.nodes.len()).saturating_sub(before.max(graph.nodes.len()) + 1);
        } else {
            position += 1;
        }
    }
}

/// Two nodes that compute the same from the same are one.
fn merge_equals(graph: &mut Graph) {
    let mut seen: HashMap<String, Vec<ValueId>> = HashMap::new();
    let mut same: HashMap<ValueId, ValueId> = HashMap::new();
    for node in &mut graph.nodes {
        for input in &mut node.inputs {
            *input = same.get(input).copied().unwrap_or(*input);
        }
        let first = node.outputs[0];
        let shape = (&graph.values[first].dtype, &graph.values[first].dims);
        let key = format!("{:?} {:?} {shape:?}", node.op, node.inputs);
        match seen.get(&key) {
            Some(outputs) => same.extend(node.outputs.iter().copied().zip(outputs.iter().copied())),
            None => {
                seen.insert(key, node.outputs.clone());
            }
        }
    }
    for (_, value) in &mut graph.outputs {
        *value = same.get(value).copied().unwrap_or(*value);
    }
}

/// One side of a function of two.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Side {
    Value(ValueId),
    Number(f32),
}

impl Side {
    fn value(self) -> Option<ValueId> {
        match self {
            Self::Value(value) => Some(value),
            Self::Number(_) => None,
        }
    }
}

fn side(node: &GraphNode, expression: &Expression, register: usize) -> Option<Side> {
    match expression.instructions[register] {
        Instruction::Input(position) => Some(Side::Value(node.inputs[position])),
        Instruction::Float(number) => Some(Side::Number(number)),
        _ => None,
    }
}

/// A node that is one function of two.
fn as_binary(node: &GraphNode) -> Option<(Binary, Side, Side)> {
    let Op::Elementwise(expression) = &node.op else { return None };
    match expression.instructions[..] {
        [_, _, Instruction::Binary(function, a, b)] => {
            Some((function, side(node, expression, a)?, side(node, expression, b)?))
        }
        _ => None,
    }
}

/// A node that is one function of one value.
fn as_unary(node: &GraphNode) -> Option<(Unary, ValueId)> {
    let Op::Elementwise(expression) = &node.op else { return None };
    match expression.instructions[..] {
        [Instruction::Input(position), Instruction::Unary(function, _)] => Some((function, node.inputs[position])),
        _ => None,
    }
}

/// A new value that the next node computes.
fn computed(graph: &mut Graph, like: ValueId, dims: &[usize]) -> ValueId {
    let dtype = graph.values[like].dtype;
    graph.add(dtype, dims, Content::Computed)
}
