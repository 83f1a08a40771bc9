//! Functions of one element behind a convolution or product.
//!
//! Exporters spell Gelu, HardSwish and others in many ways. What a chain of operators computes is told by its values:
//! it is evaluated at many points, and is the activation that has the same values there.

use super::Index;
use crate::expression::{Expression, Instruction, ValueKind};
use crate::ir::{Graph, Op};
use crate::plan::Activation;

/// Makes the only user of a product its activation.
pub(super) fn activation(graph: &mut Graph, index: &Index, position: usize) -> bool {
    let node = &graph.nodes[position];
    let Op::Elementwise(expression) = &node.op else { return false };
    let &[input] = node.inputs.as_slice() else { return false };
    let Some(maker) = index.makers[input] else { return false };
    let plain = matches!(
        graph.nodes[maker].op,
        Op::Conv { activation: Activation::None, .. } | Op::Gemm { activation: Activation::None, .. }
    );
    let alone = index.only_user(input) == Some(position) && graph.dims(input) == graph.dims(node.outputs[0]);
    if !plain || !alone {
        return false;
    }
    let Some(found) = recognise(expression) else { return false };
    let mut node = graph.nodes[maker].clone();
    if let Op::Conv { activation, .. } | Op::Gemm { activation, .. } = &mut node.op {
        *activation = found;
    }
    let last = &mut graph.nodes[position];
    (last.op, last.inputs) = (node.op, node.inputs);
    true
}

/// The activation that an expression of one float is.
pub(crate) fn recognise(expression: &Expression) -> Option<Activation> {
    if expression.kinds[0] != ValueKind::Float || expression.kind() != ValueKind::Float {
        return None;
    }
    let inputs = expression.instructions.iter().zip(&expression.kinds);
    if !inputs
        .filter(|(instruction, _)| matches!(instruction, Instruction::Input(_)))
        .all(|(_, kind)| *kind == ValueKind::Float)
    {
        return None;
    }
    let at = |x: f32| expression.at(x);
    let small = 0.125;
    let (low, high) = (at(-1e30), at(1e30));
    let candidates = [
        Activation::Relu,
        Activation::Clip { low, high },
        Activation::LeakyRelu { slope: -at(-1.0) },
        Activation::Sigmoid,
        Activation::Silu,
        Activation::HardSwish,
        // The usual slopes, exactly; others as well as they can be measured.
        Activation::HardSigmoid { alpha: 1.0 / 6.0, beta: 0.5 },
        Activation::HardSigmoid { alpha: 0.2, beta: 0.5 },
        Activation::HardSigmoid { alpha: (at(small) - at(0.0)) / small, beta: at(0.0) },
        Activation::Tanh,
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::Mish,
    ];
    let near = (-64..=64).map(|step| step as f32 * 0.1875);
    let points: Vec<_> = near.chain([1e-3, 20.0, 100.0, 1e4, 1e30].into_iter().flat_map(|x| [x, -x])).collect();
    let equal = |candidate: &Activation| {
        points.iter().all(|&x| {
            let (a, b) = (at(x), candidate.apply(x));
            (a - b).abs() <= 1e-5 + 1e-5 * b.abs()
        })
    };
    candidates.into_iter().find(equal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::{Binary, Unary};

    /// Builds an expression of `x` in the way of a stack.
    fn expression(build: impl FnOnce(&mut Expression, usize)) -> Expression {
        let mut expression = Expression::default();
        let x = expression.push(Instruction::Input(0), ValueKind::Float);
        build(&mut expression, x);
        expression
    }

    fn with(expression: &mut Expression, function: Binary, a: usize, number: f32) -> usize {
        let number = expression.push(Instruction::Float(number), ValueKind::Float);
        expression.push(Instruction::Binary(function, a, number), ValueKind::Float)
    }

    #[test]
    fn spellings_of_gelu_are_found() {
        // As older exporters write it: x * 0.5 * (1 + erf(x / sqrt(2))).
        let erf = expression(|e, x| {
            let inner = with(e, Binary::Divide, x, std::f32::consts::SQRT_2);
            let gate = e.push(Instruction::Unary(Unary::Erf, inner), ValueKind::Float);
            let gate = with(e, Binary::Add, gate, 1.0);
            let half = with(e, Binary::Multiply, x, 0.5);
            e.push(Instruction::Binary(Binary::Multiply, half, gate), ValueKind::Float);
        });
        assert_eq!(recognise(&erf), Some(Activation::Gelu));
        // As GPT-2 has it.
        let tanh = expression(|e, x| {
            let cube = with(e, Binary::Power, x, 3.0);
            let cube = with(e, Binary::Multiply, cube, 0.044_715);
            let inner = e.push(Instruction::Binary(Binary::Add, x, cube), ValueKind::Float);
            let inner = with(e, Binary::Multiply, inner, 0.797_884_6);
            let gate = e.push(Instruction::Unary(Unary::Tanh, inner), ValueKind::Float);
            let gate = with(e, Binary::Add, gate, 1.0);
            let half = with(e, Binary::Multiply, x, 0.5);
            e.push(Instruction::Binary(Binary::Multiply, half, gate), ValueKind::Float);
        });
        assert_eq!(recognise(&tanh), Some(Activation::GeluTanh));
    }

    #[test]
    fn clips_keep_their_bounds() {
        let relu6 = expression(|e, x| {
            let low = with(e, Binary::Maximum, x, 0.0);
            with(e, Binary::Minimum, low, 6.0);
        });
        assert_eq!(recognise(&relu6), Some(Activation::Clip { low: 0.0, high: 6.0 }));
        let swish = expression(|e, x| {
            let line = with(e, Binary::Add, x, 3.0);
            let low = with(e, Binary::Maximum, line, 0.0);
            let gate = with(e, Binary::Minimum, low, 6.0);
            let gated = e.push(Instruction::Binary(Binary::Multiply, x, gate), ValueKind::Float);
            with(e, Binary::Divide, gated, 6.0);
        });
        assert_eq!(recognise(&swish), Some(Activation::HardSwish));
    }

    #[test]
    fn what_is_no_activation_is_left_alone() {
        let quick = expression(|e, x| {
            let inner = with(e, Binary::Multiply, x, 1.702);
            let gate = e.push(Instruction::Unary(Unary::Sigmoid, inner), ValueKind::Float);
            e.push(Instruction::Binary(Binary::Multiply, x, gate), ValueKind::Float);
        });
        assert_eq!(recognise(&quick), None);
        let bounded = expression(|e, x| {
            let low = with(e, Binary::Maximum, x, 0.0);
            with(e, Binary::Minimum, low, 1000.0);
        });
        assert_eq!(recognise(&bounded), Some(Activation::Clip { low: 0.0, high: 1000.0 }));
    }
}
