//! A batch of more rows than any graph of its shape has so far: computed in parts, one after another.
//!
//! The thread that starts it waits for each part, so that nothing else is under way meanwhile. It lasts until a graph
//! for so many rows is prepared; the CPU would take far longer.

use crate::engine::{SizedGraph, set_out};
use crate::executor::CudaExecutor;
use crate::memory::LoadedWeights;
use crate::sizes::{Extent, Form, Size};
use bytes::Bytes;
use engine::{DeviceTimes, EngineError, Input, Inputs, Sink, Staged, Tensor};
use std::sync::Arc;
use std::time::Instant;

/// See the module.
pub(crate) struct BatchInParts {
    executor: Arc<CudaExecutor>,
    /// There until it is finished: what the graph reads stays mapped.
    weights: Option<Arc<LoadedWeights>>,
    graph: Arc<SizedGraph>,
    own: Size,
    inputs: Vec<Input>,
    outputs: Vec<Tensor>,
}

impl BatchInParts {
    /// A batch of that size, which but for its rows fits into the graph; `None` where its rows can't be told apart.
    pub(crate) fn new(
        executor: &Arc<CudaExecutor>,
        weights: Arc<LoadedWeights>,
        (graph, own): (Arc<SizedGraph>, Size),
        inputs: Vec<Input>,
    ) -> Option<Self> {
        let (executor, weights) = (Arc::clone(executor), Some(weights));
        rows_come_first(&graph.form).then_some(Self { executor, weights, graph, own, inputs, outputs: Vec::new() })
    }

    fn compute(&mut self, inputs: &mut dyn Inputs) -> Result<(), EngineError> {
        let weights = self.weights.as_ref().expect("a batch is started once, before it is finished");
        let (most, rows) = (self.graph.form.size.batch, self.own.batch);
        for first in (0..rows).step_by(most) {
            let count = most.min(rows - first);
            let part = self.inputs.iter().map(|input| rows_of(input, first, count)).collect();
            let sized = (Arc::clone(&self.graph), Size { batch: count, ..self.own });
            let mut batch = set_out(&self.executor, Arc::clone(weights), sized, part).map_err(EngineError::Execute)?;
            batch.start(inputs)?;
            let outputs = &mut self.outputs;
            batch.finish(&mut |position, view| append(outputs, position, view))?;
        }
        Ok(())
    }
}

/// Whether a batch in that form can be cut into rows.
fn rows_come_first(form: &Form) -> bool {
    form.inputs.iter().chain(&*form.outputs).all(|side| side.extents.first() == Some(&Extent::Batch))
}

/// So many rows of an input, from that one on.
fn rows_of(input: &Input, first: usize, count: usize) -> Input {
    let rows = input.shape.first().map_or(1, |&rows| rows.max(1) as usize);
    let row_bytes = input.bytes() / rows;
    let mut shape = input.shape.clone();
    shape.iter_mut().take(1).for_each(|rows| *rows = count as i64);
    let (from, to) = (first * row_bytes, (first + count) * row_bytes);
    let mut at = 0;
    let mut pieces = Vec::new();
    for piece in &input.pieces {
        let (begin, end) = (from.clamp(at, at + piece.len()), to.clamp(at, at + piece.len()));
        if begin < end {
            pieces.push(piece.slice(begin - at..end - at));
        }
        at += piece.len();
    }
    Input { datatype: input.datatype, shape, pieces }
}

/// Puts the rows of an output behind those that are there.
fn append(outputs: &mut Vec<Tensor>, position: usize, view: engine::TensorView<'_>) {
    match outputs.get_mut(position) {
        Some(output) => {
            output.shape[0] += view.shape[0];
            output.data = [&output.data[..], view.data].concat().into();
        }
        None => {
            let data = Bytes::copy_from_slice(view.data);
            outputs.push(Tensor { datatype: view.datatype, shape: view.shape.to_vec(), data });
        }
    }
}

impl Staged for BatchInParts {
    fn blocks(&self) -> bool {
        true
    }

    fn start(&mut self, inputs: &mut dyn Inputs) -> Result<(), EngineError> {
        self.compute(inputs)
    }

    fn is_computed(&mut self) -> Result<bool, EngineError> {
        Ok(true)
    }

    fn due_at(&self) -> Option<Instant> {
        None
    }

    fn has_arrived(&mut self) -> Result<bool, EngineError> {
        Ok(true)
    }

    fn finish(&mut self, sink: &mut Sink<'_>) -> Result<DeviceTimes, EngineError> {
        self.outputs.drain(..).enumerate().for_each(|(position, output)| sink(position, output.view()));
        self.weights = None;
        Ok(DeviceTimes::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::DataType;

    #[test]
    fn rows_are_cut_wherever_requests_begin() {
        let pieces: Vec<Bytes> = [&[1u8, 2, 3, 4][..], &[5, 6], &[7, 8, 9, 10]].map(Bytes::from_static).into();
        let input = Input { datatype: DataType::Uint8, shape: vec![5, 2], pieces };
        let mut outputs = Vec::new();
        for (first, count, expected) in [(0, 2, vec![1, 2, 3, 4]), (2, 2, vec![5, 6, 7, 8]), (4, 1, vec![9, 10])] {
            let part = rows_of(&input, first, count);
            assert_eq!((part.shape.as_slice(), part.bytes()), (&[count as i64, 2][..], 2 * count));
            let data = part.pieces.concat();
            assert_eq!(data, expected);
            append(&mut outputs, 0, engine::TensorView { datatype: DataType::Uint8, shape: &part.shape, data: &data });
        }
        let [whole] = &outputs[..] else { panic!("one output") };
        assert_eq!((whole.shape.as_slice(), &whole.data[..]), (&[5, 2][..], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10][..]));
    }
}
