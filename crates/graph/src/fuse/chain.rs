//! Element-wise nodes behind one another become one expression.

use super::Index;
use crate::expression::{Expression, Instruction};
use crate::ir::{Graph, Op, ValueId};

/// Longer expressions would need more registers than a thread should have.
const INSTRUCTIONS: usize = 64;
/// More inputs would be more pointers than pay.
const INPUTS: usize = 8;

/// Puts the maker of an input into the node, where nobody else needs it and it has as many elements.
pub(super) fn chain(graph: &mut Graph, index: &Index, position: usize) -> bool {
    let node = &graph.nodes[position];
    let Op::Elementwise(expression) = &node.op else { return false };
    let dims = graph.dims(node.outputs[0]);
    for &input in &node.inputs {
        let Some(maker) = index.makers[input] else { continue };
        let Op::Elementwise(inner) = &graph.nodes[maker].op else { continue };
        if index.only_user(input) != Some(position) || graph.dims(input) != dims {
            continue;
        }
        let (merged, inputs) = merge((inner, &graph.nodes[maker].inputs), (expression, &node.inputs), input);
        if merged.instructions.len() > INSTRUCTIONS || inputs.len() > INPUTS {
            continue;
        }
        let node = &mut graph.nodes[position];
        (node.op, node.inputs) = (Op::Elementwise(merged), inputs);
        return true;
    }
    false
}

/// An expression and the values that are its inputs.
type Over<'a> = (&'a Expression, &'a [ValueId]);

/// `outer` with `inner` in the place of `value`.
fn merge(inner: Over<'_>, outer: Over<'_>, value: ValueId) -> (Expression, Vec<ValueId>) {
    let (mut merged, mut inputs) = (Expression::default(), Vec::new());
    let first = append(&mut merged, &mut inputs, inner, None);
    append(&mut merged, &mut inputs, outer, Some((value, first)));
    (merged, inputs)
}

/// Copies an expression, with one of its inputs already computed; says where its result is.
fn append(
    to: &mut Expression,
    inputs: &mut Vec<ValueId>,
    (expression, values): Over<'_>,
    computed: Option<(ValueId, usize)>,
) -> usize {
    let mut moved = Vec::with_capacity(expression.instructions.len());
    for (&instruction, &kind) in expression.instructions.iter().zip(&expression.kinds) {
        let at = |register: usize| moved[register];
        let instruction = match instruction {
            Instruction::Input(position) => match computed {
                Some((value, register)) if value == values[position] => {
                    moved.push(register);
                    continue;
                }
                _ => Instruction::Input(position_of(inputs, values[position])),
            },
            Instruction::Unary(function, of) => Instruction::Unary(function, at(of)),
            Instruction::Binary(function, a, b) => Instruction::Binary(function, at(a), at(b)),
            Instruction::Select(condition, a, b) => Instruction::Select(at(condition), at(a), at(b)),
            Instruction::Cast(kind, of) => Instruction::Cast(kind, at(of)),
            Instruction::Wrap { bits, signed, of } => Instruction::Wrap { bits, signed, of: at(of) },
            Instruction::Float(_) | Instruction::Int(_) | Instruction::Bool(_) => instruction,
        };
        // What is there already isn't computed again.
        let known = to
            .instructions
            .iter()
            .zip(&to.kinds)
            .position(|(other, other_kind)| (other, other_kind) == (&instruction, &kind));
        moved.push(known.unwrap_or_else(|| to.push(instruction, kind)));
    }
    let last = *moved.last().expect("an expression has a result");
    if computed.is_some() && last + 1 != to.instructions.len() {
        // The result must be the last.
        let kind = to.kinds[last];
        return to.push(Instruction::Cast(kind, last), kind);
    }
    last
}

fn position_of(inputs: &mut Vec<ValueId>, value: ValueId) -> usize {
    inputs.iter().position(|&other| other == value).unwrap_or_else(|| {
        inputs.push(value);
        inputs.len() - 1
    })
}
