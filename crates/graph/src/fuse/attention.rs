//! Attention: `softmax(scale * query @ key^T + mask) @ value`.

use super::affine::unscaled;
use super::{Index, Side, as_binary, as_unary, computed};
use crate::expression::{Binary, Expression, Instruction, Unary, ValueKind};
use crate::ir::{Graph, GraphNode, Op, ValueId, broadcast};
use crate::plan::Activation;
use std::collections::BTreeSet;

/// What stands between the two products.
struct Scores {
    query: ValueId,
    /// Already transposed.
    key: ValueId,
    scale: f32,
    masks: Vec<Mask>,
}

enum Mask {
    Added(ValueId),
    /// Where a condition is `keep`, scores stay; elsewhere they are that number.
    Selected {
        condition: ValueId,
        keep: bool,
        number: f32,
    },
}

/// A number that is as good as minus infinity before a softmax.
const MASKED: f32 = -1e4;

/// How many operators there may be between the product and the softmax.
const DEPTH: usize = 6;

pub(super) fn attention(graph: &mut Graph, index: &Index, position: usize) -> bool {
    let node = &graph.nodes[position];
    let Op::Softmax { axis, log: false } = node.op else { return false };
    let rank = graph.dims(node.outputs[0]).len();
    if axis + 1 != rank || !(3..=4).contains(&rank) {
        return false;
    }
    let weights = guarded(graph, index, node.outputs[0]).unwrap_or(node.outputs[0]);
    let Some(last) = index.only_user(weights) else { return false };
    let second = &graph.nodes[last];
    let plain = Op::Gemm { alpha: 1.0, bias: false, residual: false, activation: Activation::None };
    if second.op != plain || second.inputs[0] != weights || second.inputs[1] == weights {
        return false;
    }
    let value = second.inputs[1];
    let Some(scores) = scores(graph, index, node.inputs[0], position) else { return false };
    if graph.dims(scores.query).len() != rank || graph.dims(scores.key).len() != rank || graph.dims(value).len() != rank
    {
        return false;
    }
    build(graph, last, value, &scores, rank);
    true
}

/// The result of a softmax with zeros in the place of what is not a number: attention has them there anyway.
fn guarded(graph: &Graph, index: &Index, weights: ValueId) -> Option<ValueId> {
    let users: BTreeSet<_> = index.uses[weights].iter().copied().collect();
    let [first, last] = users.into_iter().collect::<Vec<_>>()[..] else { return None };
    let (test, choice) = (graph.nodes.get(first)?, graph.nodes.get(last)?);
    if as_unary(test)? != (Unary::IsNan, weights) || index.only_user(test.outputs[0])? != last {
        return None;
    }
    let Op::Elementwise(expression) = &choice.op else { return None };
    match expression.instructions[..] {
        [
            Instruction::Input(condition),
            Instruction::Float(0.0),
            Instruction::Input(of),
            Instruction::Select(0, 1, 2),
        ] if choice.inputs[condition] == test.outputs[0] && choice.inputs[of] == weights => Some(choice.outputs[0]),
        _ => None,
    }
}

/// Goes back from the softmax to the first product.
fn scores(graph: &Graph, index: &Index, input: ValueId, softmax: usize) -> Option<Scores> {
    let (mut value, mut user) = (input, softmax);
    let (mut scale, mut masks) = (1.0, Vec::new());
    let dims = graph.dims(input).to_vec();
    loop {
        if index.only_user(value)? != user || graph.dims(value) != dims {
            return None;
        }
        let position = index.makers[value]?;
        let node = &graph.nodes[position];
        if let Op::Gemm { alpha, bias: false, residual: false, activation: Activation::None } = node.op {
            let side =
                |side: usize| unscaled(graph, index, node.inputs[side], position).unwrap_or((node.inputs[side], 1.0));
            let ((query, first), (key, second)) = (side(0), side(1));
            return Some(Scores { query, key, scale: scale * alpha * first * second, masks });
        }
        value = if let Some((of, factor)) = unscaled(graph, index, value, user) {
            scale *= factor;
            of
        } else {
            // A mask that is added before the scores are scaled would have to be scaled too.
            if scale != 1.0 {
                return None;
            }
            let (of, mask) = masked(graph, index, node, &dims)?;
            masks.push(mask);
            of
        };
        user = position;
    }
}

/// A node that masks scores: which scores, and how.
fn masked(graph: &Graph, index: &Index, node: &GraphNode, dims: &[usize]) -> Option<(ValueId, Mask)> {
    if let Some((Binary::Add, Side::Value(a), Side::Value(b))) = as_binary(node) {
        let computed = |value: ValueId| {
            graph.dims(value) == dims
                && index.only_user(value).is_some()
                && index
                    .maker(graph, value)
                    .is_some_and(|maker| matches!(maker.op, Op::Gemm { .. } | Op::Elementwise(_)))
        };
        let from_product = |value: ValueId| computed(value) && leads_to_product(graph, index, value, DEPTH);
        return match (from_product(a), from_product(b)) {
            (true, _) => Some((a, Mask::Added(b))),
            (false, true) => Some((b, Mask::Added(a))),
            (false, false) => None,
        };
    }
    let Op::Elementwise(expression) = &node.op else { return None };
    let [first, second, third, Instruction::Select(0, 1, 2)] = expression.instructions[..] else { return None };
    let Instruction::Input(condition) = first else { return None };
    let condition = node.inputs[condition];
    match (second, third) {
        (Instruction::Input(kept), Instruction::Float(number)) if number <= MASKED => {
            Some((node.inputs[kept], Mask::Selected { condition, keep: true, number }))
        }
        (Instruction::Float(number), Instruction::Input(kept)) if number <= MASKED => {
            Some((node.inputs[kept], Mask::Selected { condition, keep: false, number }))
        }
        _ => None,
    }
}

/// Whether a value is a product, scaled or masked: not a mask itself.
fn leads_to_product(graph: &Graph, index: &Index, value: ValueId, depth: usize) -> bool {
    match index.maker(graph, value).filter(|_| depth > 0) {
        Some(GraphNode { op: Op::Gemm { .. }, .. }) => true,
        Some(GraphNode { op: Op::Elementwise(_), inputs, .. }) => {
            inputs.iter().any(|&input| leads_to_product(graph, index, input, depth - 1))
        }
        _ => false,
    }
}

/// Nodes that will stand where one stood.
struct Builder<'a> {
    graph: &'a mut Graph,
    name: String,
    nodes: Vec<GraphNode>,
}

impl Builder<'_> {
    /// Adds a node whose result has the type of its first input.
    fn add(&mut self, op: Op, inputs: Vec<ValueId>, dims: &[usize]) -> ValueId {
        let output = computed(self.graph, inputs[0], dims);
        self.nodes.push(GraphNode { name: self.name.clone(), op, inputs, outputs: vec![output] });
        output
    }

    /// Gives heads a dimension of their own.
    fn with_heads(&mut self, value: ValueId) -> ValueId {
        match *self.graph.dims(value) {
            [batch, rows, columns] => self.add(Op::Reshape, vec![value], &[batch, 1, rows, columns]),
            _ => value,
        }
    }

    /// A mask that is added.
    fn mask(&mut self, mask: &Mask, like: ValueId) -> ValueId {
        match *mask {
            Mask::Added(mask) => mask,
            Mask::Selected { condition, keep, number } => {
                let mut expression = Expression::default();
                let first = expression.push(Instruction::Input(0), ValueKind::Bool);
                let zero = expression.push(Instruction::Float(0.0), ValueKind::Float);
                let number = expression.push(Instruction::Float(number), ValueKind::Float);
                let (a, b) = if keep { (zero, number) } else { (number, zero) };
                expression.push(Instruction::Select(first, a, b), ValueKind::Float);
                let dims = self.graph.dims(condition).to_vec();
                let mask = self.add(Op::Elementwise(expression), vec![condition], &dims);
                self.graph.values[mask].dtype = self.graph.values[like].dtype;
                mask
            }
        }
    }

    fn sum(&mut self, a: ValueId, b: ValueId) -> ValueId {
        let mut expression = Expression::default();
        let first = expression.push(Instruction::Input(0), ValueKind::Float);
        let second = expression.push(Instruction::Input(1), ValueKind::Float);
        expression.push(Instruction::Binary(Binary::Add, first, second), ValueKind::Float);
        let dims = broadcast(self.graph.dims(a), self.graph.dims(b)).expect("both go with the scores");
        self.add(Op::Elementwise(expression), vec![a, b], &dims)
    }
}

/// Puts the new node in the place of the second product, with what it needs before it.
fn build(graph: &mut Graph, last: usize, value: ValueId, scores: &Scores, rank: usize) {
    let (name, output) = (graph.nodes[last].name.clone(), graph.nodes[last].outputs[0]);
    let mut builder = Builder { graph, name: name.clone(), nodes: Vec::new() };
    let masks: Vec<_> = scores.masks.iter().map(|mask| builder.mask(mask, scores.query)).collect();
    let mask = masks.into_iter().reduce(|a, b| builder.sum(a, b));
    let turned: Vec<_> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
    let dims: Vec<_> = turned.iter().map(|&axis| builder.graph.dims(scores.key)[axis]).collect();
    let key = builder.add(Op::Transpose(turned), vec![scores.key], &dims);
    let mut inputs: Vec<_> = [scores.query, key, value].into_iter().map(|value| builder.with_heads(value)).collect();
    // Without heads, a mask of three dimensions has the batch first.
    inputs.extend(mask.map(|mask| if rank == 3 { builder.with_heads(mask) } else { mask }));
    let op = Op::Attention { scale: scores.scale, mask: mask.is_some() };
    if let [batch, rows, columns] = *builder.graph.dims(output) {
        let wide = builder.add(op, inputs, &[batch, 1, rows, columns]);
        builder.nodes.push(GraphNode { name, op: Op::Reshape, inputs: vec![wide], outputs: vec![output] });
    } else {
        builder.nodes.push(GraphNode { name, op, inputs, outputs: vec![output] });
    }
    let nodes = builder.nodes;
    graph.nodes.splice(last..=last, nodes);
}
