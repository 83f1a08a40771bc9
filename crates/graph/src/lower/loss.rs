//! Losses: how likely a model found the right class.

use super::{Lowering, NodeInputs};
use crate::error::GraphError;
use crate::expression::{Binary, Instruction, Unary, ValueKind};
use crate::ir::{Op, ValueId};
use crate::model::OnnxNode;
use crate::plan::ReduceKind;
use base::DataType;

impl Lowering {
    pub(super) fn loss_node(
        &mut self,
        node: &OnnxNode,
        inputs: NodeInputs<'_>,
    ) -> Result<Option<Vec<ValueId>>, GraphError> {
        let softmax = match node.operator.as_str() {
            "NegativeLogLikelihoodLoss" => false,
            "SoftmaxCrossEntropyLoss" => true,
            _ => return Ok(None),
        };
        let scores = self.input(inputs, 0)?;
        self.check_float(scores)?;
        let (dims, dtype) = (self.dims(scores), self.dtype(scores));
        if dims.len() < 2 {
            return Err(self.bad(format!("{dims:?} has no classes")));
        }
        if !softmax {
            return self.likelihood(node, inputs, scores).map(|loss| Some(vec![loss]));
        }
        let logs = self.emit(Op::Softmax { axis: 1, log: true }, &[scores], dtype, &dims);
        Ok(Some(vec![self.likelihood(node, inputs, logs)?, logs]))
    }

    /// Minus the logarithm of the right class's probability, weighted, and all of them as one number if so asked.
    fn likelihood(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>, logs: ValueId) -> Result<ValueId, GraphError> {
        let (target, weight) = (self.input(inputs, 1)?, self.optional(inputs, 2));
        let (dims, dtype, shape) = (self.dims(logs), self.dtype(logs), self.dims(target));
        let one: Vec<_> = [&dims[..1], &[1], &dims[2..]].concat();
        if shape != [&dims[..1], &dims[2..]].concat() {
            return Err(self.bad(format!("classes of {shape:?} are not for {dims:?}")));
        }
        let classes = self.cast(target, DataType::Int64)?;
        let indices = self.reshape(classes, &one);
        let picked = self.emit(Op::Gather { axis: 1, elements: true }, &[logs, indices], dtype, &one);
        let picked = self.reshape(picked, &shape);
        let ignored = node.has("ignore_index").then(|| node.int("ignore_index", 0));
        let factors = match (weight, ignored) {
            (None, None) => None,
            (None, Some(_)) => Some(self.scalar(dtype, 1.0)),
            (Some(weight), _) if self.graph.dims(weight) == [dims[1]] => Some(self.pick(weight, classes, 0)?),
            (Some(weight), _) => {
                return Err(self.bad(format!("{:?} is no weight for {} classes", self.dims(weight), dims[1])));
            }
        };
        let factors = match (factors, ignored) {
            (Some(factors), Some(ignored)) => Some(self.zero_where(classes, ignored, factors)?),
            (factors, _) => factors,
        };
        let mut loss = self.unary(Unary::Negate, picked)?;
        if let Some(ignored) = ignored {
            // What is ignored may be anything, also what isn't a number.
            loss = self.zero_where(classes, ignored, loss)?;
        }
        if let Some(factors) = factors {
            loss = self.binary(Binary::Multiply, loss, factors)?;
        }
        let axes: Vec<_> = (0..shape.len()).collect();
        let all = match node.text("reduction", "mean") {
            "none" => return Ok(loss),
            "sum" => self.reduction(ReduceKind::Sum, loss, &axes),
            "mean" => {
                let mean = self.reduction(ReduceKind::Mean, loss, &axes);
                match factors {
                    // Both as means: sums might be more than a half can hold.
                    Some(factors) => {
                        let whole = self.reduction(ReduceKind::Mean, factors, &axes);
                        self.binary(Binary::Divide, mean, whole)?
                    }
                    None => mean,
                }
            }
            other => return Err(self.bad(format!("reduction is {other:?}"))),
        };
        Ok(self.reshape(all, &[]))
    }

    /// 0 for the class that is ignored.
    fn zero_where(&mut self, classes: ValueId, ignored: i64, otherwise: ValueId) -> Result<ValueId, GraphError> {
        let dtype = self.dtype(otherwise);
        self.apply(&[classes, otherwise], dtype, |expression, of| {
            let ignored = expression.push(Instruction::Int(ignored), ValueKind::Int);
            let same = expression.push(Instruction::Binary(Binary::Equal, of[0], ignored), ValueKind::Bool);
            let zero = expression.push(Instruction::Float(0.0), ValueKind::Float);
            expression.push(Instruction::Select(same, zero, of[1]), ValueKind::Float)
        })
    }
}
