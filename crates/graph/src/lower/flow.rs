//! Graphs within the graph: `If`, `Loop` and `Scan`. Rounds are made one by one, so their number has to be known.

use super::{Lowering, NodeInputs, kind};
use crate::array::{Array, Data, is_float};
use crate::error::GraphError;
use crate::expression::Instruction;
use crate::ir::{Op, ValueId};
use crate::model::{OnnxNode, Scope};
use base::DataType;
use std::collections::HashSet;
use std::sync::Arc;

/// So many nodes of a loop's graph count as one step: fewer than a step of a recurrent layer has, because these are
/// fused one by one, which takes time that grows with the square of their number.
const NODES_OF_A_STEP: usize = 2;

/// What a scan walks along: the tensor, its dimension, and whether it begins at the end.
struct Walk {
    value: ValueId,
    axis: usize,
    reverse: bool,
}

impl Lowering {
    pub(super) fn flow_node(
        &mut self,
        node: &OnnxNode,
        inputs: NodeInputs<'_>,
    ) -> Result<Option<Vec<ValueId>>, GraphError> {
        match node.operator.as_str() {
            "If" => self.branch(node, inputs).map(Some),
            "Loop" => self.rounds(node, inputs).map(Some),
            "Scan" if self.opset < 9 => self.scan_of_batches(node, inputs).map(Some),
            "Scan" => self.scan(node, inputs).map(Some),
            _ => Ok(None),
        }
    }

    /// A graph of a node; `fixed`, and what messages name, are as before.
    fn within(&mut self, scope: &Scope) -> Result<Vec<ValueId>, GraphError> {
        let before = (self.operator.clone(), self.node.clone(), self.fixed);
        self.scope(scope)?;
        (self.operator, self.node, self.fixed) = before;
        scope.outputs.iter().map(|name| self.named(name)).collect()
    }

    fn body(&self, node: &OnnxNode, name: &str) -> Result<Arc<Scope>, GraphError> {
        Ok(node.graph(name).ok_or_else(|| self.bad(format!("it has no {name}")))?.clone())
    }

    /// A condition that is known picks one of two graphs. Otherwise both are computed, and one of each two results is
    /// picked: graphs do nothing but compute.
    fn branch(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<Vec<ValueId>, GraphError> {
        let condition = self.input(inputs, 0)?;
        if self.dtype(condition) != DataType::Bool || self.graph.dims(condition).iter().product::<usize>() != 1 {
            return Err(self.bad("its condition is not one bool"));
        }
        let branches = [self.body(node, "then_branch")?, self.body(node, "else_branch")?];
        if let Some(known) = self.graph.known(condition) {
            let first = known.to_ints().first() != Some(&0);
            return self.within(&branches[usize::from(!first)]);
        }
        let condition = self.reshape(condition, &[]);
        let (then, otherwise) = (self.within(&branches[0])?, self.within(&branches[1])?);
        if then.len() != otherwise.len() {
            return Err(self.bad("its graphs give different numbers of results"));
        }
        then.into_iter().zip(otherwise).map(|(a, b)| self.either(condition, a, b)).collect()
    }

    fn either(&mut self, condition: ValueId, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        let dtype = self.dtype(a);
        if self.graph.dims(a) != self.graph.dims(b) || dtype != self.dtype(b) {
            return Err(self.unsupported(" with a computed condition and results of different shapes or types"));
        }
        let kind = kind(dtype);
        self.apply(&[condition, a, b], dtype, |expression, of| {
            expression.push(Instruction::Select(of[0], of[1], of[2]), kind)
        })
    }

    fn rounds(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<Vec<ValueId>, GraphError> {
        let body = self.body(node, "body")?;
        let most = self.integers(inputs, 0, "number of rounds")?.and_then(|most| most.first().copied());
        let goes_on = self.integers(inputs, 1, "condition")?;
        let mut goes_on = goes_on.is_none_or(|condition| condition.first() != Some(&0));
        let carried = (2..inputs.len()).map(|position| self.input(inputs, position)).collect::<Result<Vec<_>, _>>()?;
        if body.inputs.len() != 2 + carried.len() || body.outputs.len() < 1 + carried.len() {
            return Err(self.bad("its graph takes or gives another number of values than it carries"));
        }
        let mut carried: Vec<_> = carried.into_iter().map(|value| self.for_these_sizes(value)).collect();
        let body = self.without_constants(&body)?;
        let mut rows: Vec<Vec<ValueId>> = vec![Vec::new(); body.outputs.len() - 1 - carried.len()];
        let mut round = 0;
        while goes_on && most.is_none_or(|most| round < most) {
            self.unroll(body.nodes.len().div_ceil(NODES_OF_A_STEP).max(1))?;
            let number = self.graph.constant(Array::ints(&[], vec![round]), false);
            let condition = Array::new(DataType::Bool, &[], Data::Int(vec![1]));
            let condition = self.graph.constant(condition, false);
            self.bind(&body, [number, condition].into_iter().chain(carried.iter().copied()));
            let results = self.within(&body)?;
            let condition = self.graph.known(results[0]).map(|known| known.to_ints().first() != Some(&0));
            goes_on = condition.ok_or_else(|| self.unsupported(" with a computed condition"))?;
            let (next, kept) = results[1..].split_at(carried.len());
            carried.copy_from_slice(next);
            self.keep(&mut rows, kept, |_| 0)?;
            round += 1;
        }
        carried.extend(self.joined(&rows, |_| 0)?);
        Ok(carried)
    }

    /// Values for the inputs of a graph.
    fn bind(&mut self, body: &Scope, values: impl Iterator<Item = ValueId>) {
        self.names.extend(body.inputs.iter().cloned().zip(values));
    }

    /// Keeps one round's part of each result that is put together of all rounds.
    fn keep(
        &mut self,
        rows: &mut [Vec<ValueId>],
        values: &[ValueId],
        axis: impl Fn(usize) -> i64,
    ) -> Result<(), GraphError> {
        for (number, (rows, &value)) in rows.iter_mut().zip(values).enumerate() {
            let mut dims = self.dims(value);
            let axis = self.axis(axis(number), dims.len() + 1)?;
            dims.insert(axis, 1);
            rows.push(self.reshape(value, &dims));
        }
        Ok(())
    }

    fn joined(&mut self, rows: &[Vec<ValueId>], axis: impl Fn(usize) -> i64) -> Result<Vec<ValueId>, GraphError> {
        let mut all = Vec::new();
        for (number, rows) in rows.iter().enumerate() {
            let first = *rows.first().ok_or_else(|| self.unsupported(" with no rounds"))?;
            let axis = self.axis(axis(number), self.graph.dims(first).len())?;
            all.push(self.join(rows, axis)?);
        }
        Ok(all)
    }

    /// A constant that stands for a value of one round: there may be more rounds for other sizes, and what is computed of
    /// it must not be among the weights, which are the same for all.
    fn for_these_sizes(&mut self, value: ValueId) -> ValueId {
        match self.graph.known(value).cloned() {
            Some(array) if self.is_weight(value) && is_float(array.dtype) => {
                let dims = self.dims(value);
                self.emit_node(Op::Reshape, &[value], &[(array.dtype, &dims)])[0]
            }
            Some(array) => self.graph.shared_constant(&array, false),
            None => value,
        }
    }

    /// Computes what is the same in all rounds, and leaves the rest of a graph.
    fn without_constants(&mut self, body: &Scope) -> Result<Scope, GraphError> {
        if body.nodes.iter().any(OnnxNode::has_graph) {
            return Err(self.unsupported(" with a graph within its graph"));
        }
        let mut changing: HashSet<&str> = body.inputs.iter().map(String::as_str).collect();
        let (mut same, mut rest) = (Vec::new(), Vec::new());
        for node in &body.nodes {
            if node.inputs.iter().any(|name| changing.contains(name.as_str())) {
                changing.extend(node.outputs.iter().map(String::as_str));
                rest.push(node.clone());
            } else {
                same.push(node.clone());
            }
        }
        self.within(&Scope { nodes: same, constants: body.constants.clone(), ..Scope::default() })?;
        Ok(Scope { nodes: rest, constants: Vec::new(), ..body.clone() })
    }

    fn scan(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<Vec<ValueId>, GraphError> {
        let (states, walked) = self.scan_inputs(node, inputs)?;
        let directions = node.ints("scan_input_directions").unwrap_or(&[]);
        let axes = node.ints("scan_input_axes").unwrap_or(&[]);
        let mut walks = Vec::new();
        for (number, &value) in walked.iter().enumerate() {
            let axis = self.axis(axes.get(number).copied().unwrap_or(0), self.graph.dims(value).len())?;
            walks.push(Walk { value, axis, reverse: directions.get(number) == Some(&1) });
        }
        let body = self.body(node, "body")?;
        let body = self.without_constants(&body)?;
        let of = |name: &str| node.ints(name).unwrap_or(&[]).to_vec();
        let (axes, directions) = (of("scan_output_axes"), of("scan_output_directions"));
        let axis = |number: usize| axes.get(number).copied().unwrap_or(0);
        self.scanned(&body, states, &walks, &axis, &directions)
    }

    /// The states that a scan begins with, and what it walks along.
    fn scan_inputs(&self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<(Vec<ValueId>, Vec<ValueId>), GraphError> {
        let all = (0..inputs.len()).map(|position| self.input(inputs, position)).collect::<Result<Vec<_>, _>>()?;
        let count = usize::try_from(node.int("num_scan_inputs", 0)).unwrap_or(0);
        match all.len().checked_sub(count).filter(|_| count > 0) {
            Some(states) => Ok((all[..states].to_vec(), all[states..].to_vec())),
            None => Err(self.bad(format!("{count} of its {} inputs are scanned", all.len()))),
        }
    }

    fn scanned(
        &mut self,
        body: &Scope,
        states: Vec<ValueId>,
        walks: &[Walk],
        axis: &dyn Fn(usize) -> i64,
        directions: &[i64],
    ) -> Result<Vec<ValueId>, GraphError> {
        let length = self.dims(walks[0].value)[walks[0].axis];
        let same = walks.iter().all(|walk| self.graph.dims(walk.value)[walk.axis] == length);
        let count = states.len();
        if !same || body.inputs.len() != count + walks.len() || body.outputs.len() < count {
            return Err(self.bad("its inputs are not equally long, or not what its graph takes and gives"));
        }
        self.unroll(length.saturating_mul(body.nodes.len().div_ceil(NODES_OF_A_STEP).max(1)))?;
        let mut states: Vec<_> = states.into_iter().map(|value| self.for_these_sizes(value)).collect();
        let mut rows: Vec<Vec<ValueId>> = vec![Vec::new(); body.outputs.len() - count];
        for round in 0..length {
            let parts: Vec<_> = walks.iter().map(|walk| self.part_of(walk, round, length)).collect();
            self.bind(body, states.iter().copied().chain(parts));
            let results = self.within(body)?;
            states.copy_from_slice(&results[..count]);
            self.keep(&mut rows, &results[count..], axis)?;
        }
        for (number, rows) in rows.iter_mut().enumerate() {
            if directions.get(number) == Some(&1) {
                rows.reverse();
            }
        }
        states.extend(self.joined(&rows, axis)?);
        Ok(states)
    }

    fn part_of(&mut self, walk: &Walk, round: usize, length: usize) -> ValueId {
        let at = if walk.reverse { length - 1 - round } else { round };
        let part = self.part(walk.value, walk.axis, at, 1);
        let mut dims = self.dims(part);
        dims.remove(walk.axis);
        let part = self.reshape(part, &dims);
        self.for_these_sizes(part)
    }

    /// Before version 9 everything has a batch in front, and each of it is scanned by itself.
    fn scan_of_batches(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<Vec<ValueId>, GraphError> {
        if self.optional(inputs, 0).is_some() {
            return Err(self.unsupported(" with lengths"));
        }
        let (states, walked) = self.scan_inputs(node, inputs.get(1..).unwrap_or(&[]))?;
        let first_dim = |value: &ValueId| self.graph.dims(*value).first().copied();
        let batch = first_dim(&walked[0]).unwrap_or(0);
        let all = || states.iter().chain(&walked);
        if batch == 0
            || !all().all(|value| first_dim(value) == Some(batch))
            || walked.iter().any(|&value| self.graph.dims(value).len() < 2)
        {
            return Err(self.bad("its inputs have no batch in common"));
        }
        let directions = node.ints("directions").unwrap_or(&[]).to_vec();
        let body = self.body(node, "body")?;
        let body = self.without_constants(&body)?;
        let mut rows: Vec<Vec<ValueId>> = vec![Vec::new(); body.outputs.len()];
        for row in 0..batch {
            let walk_row = |value| Walk { value, axis: 0, reverse: false };
            let of = |this: &mut Self, value: ValueId| this.part_of(&walk_row(value), row, batch);
            let own = states.iter().map(|&state| of(self, state)).collect();
            let mut walks = Vec::new();
            for (number, &value) in walked.iter().enumerate() {
                let value = of(self, value);
                walks.push(Walk { value, axis: 0, reverse: directions.get(number) == Some(&1) });
            }
            let results = self.scanned(&body, own, &walks, &|_| 0, &[])?;
            self.keep(&mut rows, &results, |_| 0)?;
        }
        self.joined(&rows, |_| 0)
    }
}
