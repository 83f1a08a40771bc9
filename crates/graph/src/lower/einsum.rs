//! Sums of products of indexed tensors, by Einstein's convention: `bij,bjk->bik`.

use super::{Lowering, NodeInputs, kind};
use crate::array::{Array, Data};
use crate::error::GraphError;
use crate::expression::{Binary, Instruction};
use crate::ir::{Op, ValueId};
use crate::model::OnnxNode;
use crate::plan::{Activation, ReduceKind};
use base::DataType;
use std::collections::BTreeMap;

/// The name of a dimension: a letter, or the place that it has in an ellipsis, counted from its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Ellipsis(std::cmp::Reverse<usize>),
    Letter(char),
}

/// A tensor whose dimensions have names, each another.
#[derive(Clone)]
struct Labelled {
    value: ValueId,
    labels: Vec<Label>,
}

impl Lowering {
    pub(super) fn einsum_node(
        &mut self,
        node: &OnnxNode,
        inputs: NodeInputs<'_>,
    ) -> Result<Option<Vec<ValueId>>, GraphError> {
        if node.operator != "Einsum" {
            return Ok(None);
        }
        let (terms, result) = self.equation(node, inputs)?;
        let mut left: Option<Labelled> = None;
        for number in 0..terms.len() {
            let needed: Vec<Label> =
                result.iter().chain(terms[number + 1..].iter().flat_map(|term| &term.labels)).copied().collect();
            let term = terms[number].clone();
            left = Some(match left {
                None => term,
                Some(left) => self.multiplied(left, term, &needed)?,
            });
        }
        let left = left.ok_or_else(|| self.bad("it has no inputs"))?;
        let left = self.summed(left, &result);
        Ok(Some(vec![self.ordered(&left, &result)]))
    }

    /// The inputs with names for their dimensions, and the dimensions of the result.
    fn equation(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<(Vec<Labelled>, Vec<Label>), GraphError> {
        let text: String = node.text("equation", "").chars().filter(|letter| !letter.is_whitespace()).collect();
        let (before, after) = match text.split_once("->") {
            Some((before, after)) => (before, Some(after)),
            None => (text.as_str(), None),
        };
        let parts: Vec<_> = before.split(',').collect();
        if parts.len() != inputs.len() {
            return Err(self.bad(format!("{text:?} is not for {} inputs", inputs.len())));
        }
        let (mut terms, mut counts) = (Vec::new(), BTreeMap::<Label, usize>::new());
        for (position, part) in parts.into_iter().enumerate() {
            let value = self.input(inputs, position)?;
            let labels = self.labels(part, self.graph.dims(value).len())?;
            labels.iter().for_each(|&label| *counts.entry(label).or_default() += 1);
            terms.push(self.diagonal(Labelled { value, labels })?);
        }
        self.check_sizes(&terms)?;
        let result = match after {
            Some(after) => {
                let ellipsis = counts.keys().filter(|label| matches!(label, Label::Ellipsis(_))).count();
                let letters = after.replace("...", "").chars().count();
                self.labels(after, letters + if after.contains("...") { ellipsis } else { 0 })?
            }
            // Those that occur once, in the order of the alphabet, behind an ellipsis.
            None => counts
                .iter()
                .filter(|(label, count)| matches!(label, Label::Ellipsis(_)) || **count == 1)
                .map(|(&label, _)| label)
                .collect(),
        };
        let known = |label: &Label| counts.contains_key(label);
        if !result.iter().all(known) || (1..result.len()).any(|at| result[..at].contains(&result[at])) {
            return Err(self.bad(format!("{text:?} has a result that its inputs don't give")));
        }
        Ok((terms, result))
    }

    /// The names in one part of an equation, for so many dimensions.
    fn labels(&self, part: &str, rank: usize) -> Result<Vec<Label>, GraphError> {
        let (before, after) = part.split_once("...").unwrap_or((part, ""));
        let letters = before.len() + after.len();
        let letter = |text: &str| text.chars().map(Label::Letter).collect::<Vec<_>>();
        let fits = before.chars().chain(after.chars()).all(|letter| letter.is_ascii_alphabetic());
        match rank.checked_sub(letters).filter(|&rest| fits && (rest == 0 || part.contains("..."))) {
            Some(rest) => {
                let ellipsis = (0..rest).rev().map(|place| Label::Ellipsis(std::cmp::Reverse(place)));
                Ok(letter(before).into_iter().chain(ellipsis).chain(letter(after)).collect())
            }
            None => Err(self.bad(format!("{part:?} does not name {rank} dimensions"))),
        }
    }

    /// Refuses dimensions of one name and different sizes; those of size 1 go with all.
    fn check_sizes(&self, terms: &[Labelled]) -> Result<(), GraphError> {
        let mut sizes = BTreeMap::new();
        for term in terms {
            for (&label, &size) in term.labels.iter().zip(self.graph.dims(term.value)) {
                let known = sizes.entry(label).or_insert(size);
                if *known == 1 {
                    *known = size;
                }
                if size != 1 && size != *known {
                    return Err(self.bad(format!("dimensions of {size} and of {known} have the same name")));
                }
            }
        }
        Ok(())
    }

    /// Of two dimensions with the same name, the elements at equal positions.
    fn diagonal(&mut self, mut term: Labelled) -> Result<Labelled, GraphError> {
        loop {
            let rank = term.labels.len();
            let twice = (0..rank).find_map(|at| {
                let first = term.labels[..at].iter().position(|&label| label == term.labels[at])?;
                Some((first, at))
            });
            let Some((first, second)) = twice else { return Ok(term) };
            let (dims, dtype) = (self.dims(term.value), self.dtype(term.value));
            if dims[first] != dims[second] {
                return Err(self.bad(format!("a diagonal of {dims:?}")));
            }
            let size = dims[first];
            self.check_constant(&[size, size])?;
            let mut wide = vec![1; rank];
            (wide[first], wide[second]) = (size, size);
            let mask = (0..size * size).map(|at| i64::from(at / size == at % size)).collect();
            let mask = self.graph.constant(Array::new(DataType::Bool, &wide, Data::Int(mask)), false);
            let (zero, kind) = (self.scalar(dtype, 0.0), kind(dtype));
            let value = self.apply(&[mask, term.value, zero], dtype, |expression, of| {
                expression.push(Instruction::Select(of[0], of[1], of[2]), kind)
            })?;
            let value = self.reduction(ReduceKind::Sum, value, &[second]);
            let mut dims = self.dims(value);
            dims.remove(second);
            term.labels.remove(second);
            term.value = self.reshape(value, &dims);
        }
    }

    /// Without the dimensions that nobody needs: their sum.
    fn summed(&mut self, term: Labelled, needed: &[Label]) -> Labelled {
        let axes: Vec<_> = (0..term.labels.len()).filter(|&axis| !needed.contains(&term.labels[axis])).collect();
        if axes.is_empty() {
            return term;
        }
        let sum = self.reduction(ReduceKind::Sum, term.value, &axes);
        let labels: Vec<_> = term.labels.iter().copied().filter(|label| needed.contains(label)).collect();
        let dims = self.dims(sum);
        let dims: Vec<_> = (0..dims.len()).filter(|axis| !axes.contains(axis)).map(|axis| dims[axis]).collect();
        Labelled { value: self.reshape(sum, &dims), labels }
    }

    /// With its dimensions in that order; those that it doesn't have are of size 1.
    fn ordered(&mut self, term: &Labelled, order: &[Label]) -> ValueId {
        let place = |label: &Label| term.labels.iter().position(|own| own == label);
        let turned: Vec<_> = order.iter().filter_map(place).collect();
        let value = self.transpose(term.value, &turned);
        let from = self.dims(term.value);
        let dims: Vec<_> = order.iter().map(|label| place(label).map_or(1, |axis| from[axis])).collect();
        self.reshape(value, &dims)
    }

    /// The product of two, summed over what only they have and nobody needs: a product of matrices, or of elements
    /// where nothing is summed.
    fn multiplied(&mut self, a: Labelled, b: Labelled, needed: &[Label]) -> Result<Labelled, GraphError> {
        let keep = |own: &Labelled, other: &Labelled| -> Vec<Label> {
            own.labels.iter().copied().filter(|label| needed.contains(label) || other.labels.contains(label)).collect()
        };
        let (keep_a, keep_b) = (keep(&a, &b), keep(&b, &a));
        let (a, b) = (self.summed(a, &keep_a), self.summed(b, &keep_b));
        let a = self.widened(a, &b);
        let b = self.widened(b, &a);
        let both = |label: &&Label| b.labels.contains(label);
        let batch: Vec<_> = a.labels.iter().filter(both).filter(|label| needed.contains(label)).copied().collect();
        let inner: Vec<_> = a.labels.iter().filter(both).filter(|label| !needed.contains(label)).copied().collect();
        let rows: Vec<_> = a.labels.iter().filter(|label| !b.labels.contains(label)).copied().collect();
        let columns: Vec<_> = b.labels.iter().filter(|label| !a.labels.contains(label)).copied().collect();
        let labels = [&batch[..], &rows, &columns].concat();
        if inner.is_empty() {
            let (a, b) = (self.ordered(&a, &labels), self.ordered(&b, &labels));
            return Ok(Labelled { value: self.binary(Binary::Multiply, a, b)?, labels });
        }
        self.check_float(a.value)?;
        if self.dtype(a.value) != self.dtype(b.value) {
            return Err(self.bad(format!("its inputs are {} and {}", self.dtype(a.value), self.dtype(b.value))));
        }
        let size = |this: &Self, of: &Labelled, labels: &[Label]| -> Vec<usize> {
            let at = |label: &Label| of.labels.iter().position(|own| own == label).expect("its own");
            labels.iter().map(|label| this.graph.dims(of.value)[at(label)]).collect()
        };
        let [batch_dims, row_dims, inner_dims] = [&batch, &rows, &inner].map(|labels| size(self, &a, labels));
        let column_dims = size(self, &b, &columns);
        let count = |dims: &[usize]| dims.iter().product::<usize>();
        let first = self.ordered(&a, &[&batch[..], &rows, &inner].concat());
        let second = self.ordered(&b, &[&batch[..], &inner, &columns].concat());
        let first = self.reshape(first, &[count(&batch_dims), count(&row_dims), count(&inner_dims)]);
        let second = self.reshape(second, &[count(&batch_dims), count(&inner_dims), count(&column_dims)]);
        let op = Op::Gemm { alpha: 1.0, bias: false, residual: false, activation: Activation::None };
        let dims = [count(&batch_dims), count(&row_dims), count(&column_dims)];
        let dtype = self.dtype(first);
        let product = self.emit(op, &[first, second], dtype, &dims);
        let value = self.reshape(product, &[batch_dims, row_dims, column_dims].concat());
        Ok(Labelled { value, labels })
    }

    /// As large as the other where it has one element and the other more.
    fn widened(&mut self, term: Labelled, other: &Labelled) -> Labelled {
        let mut dims = self.dims(term.value);
        for (axis, label) in term.labels.iter().enumerate() {
            if let Some(place) = other.labels.iter().position(|own| own == label)
                && dims[axis] == 1
            {
                dims[axis] = self.graph.dims(other.value)[place];
            }
        }
        // The other's size may be another for other sizes of the inputs.
        let fixed = self.fixed && self.graph.is_fixed(other.value);
        Labelled { value: self.with_fixed(fixed, |this| this.expand(term.value, &dims)), labels: term.labels }
    }
}
