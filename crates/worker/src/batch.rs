//! From the tensors of many requests to one batch, and back.

use crate::Clock;
use base::{DataType, Duration, ModelSignature, Timestamp};
use bytes::Bytes;
use engine::{EngineError, Loaded, Parts, TensorView};
use telemetry::{BatchTimes, Statistics};

/// A tensor with its own bytes, in the protocol's binary form (row-major, little-endian; elements of `Bytes` are a 4-byte
/// length and the bytes).
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Element type.
    pub datatype: DataType,
    /// Dimensions, all known.
    pub shape: Vec<i64>,
    /// The elements. Cheap to clone and to slice.
    pub data: Bytes,
}

impl Tensor {
    fn view(&self) -> TensorView<'_> {
        TensorView { datatype: self.datatype, shape: &self.shape, data: &self.data }
    }
}

/// One request of a batch, as far as the worker needs it.
pub trait BatchItem: Send + 'static {
    /// In the signature's order, one for each input, shapes checked.
    fn inputs(&self) -> &[Tensor];

    /// Rows of the batch dimension.
    fn rows(&self) -> u32;

    /// When it began to wait for a device.
    fn queued_at(&self) -> Timestamp;

    /// Told when its batch was computed, before it is given its outputs.
    fn computed(&self, _times: &BatchTimes) {}

    /// Takes the outputs, in the signature's order, or the reason why there are none.
    fn deliver(self, outputs: Result<Vec<Tensor>, String>);
}

/// Memory that one executor uses again and again: nothing is allocated for inputs once the largest batch has been seen.
#[derive(Debug, Default)]
pub(crate) struct IoCache {
    /// One buffer for each input. Words, so that every element type is aligned.
    inputs: Vec<Vec<u64>>,
    shapes: Vec<Vec<i64>>,
}

/// What a batch is run with.
pub(crate) struct Bench<'a> {
    pub loaded: &'a mut dyn Loaded,
    pub signature: &'a ModelSignature,
    pub cache: &'a mut IoCache,
    pub clock: Clock,
    pub statistics: &'a Statistics,
}

/// Runs the items and hands each its outputs or its failure, taking it out of the list. Items whose shapes differ in more
/// than the rows can't share a batch; they run one group after another. A group that fails is run again one by one: what
/// one request made fail must not fail the others. Fails if anything did: then its time says nothing about its size, though
/// others have their answers. If it panics, the items that are left have none yet.
pub(crate) fn run<I: BatchItem>(bench: &mut Bench<'_>, now: Timestamp, items: &mut Vec<I>) -> Result<(), String> {
    let mut failure = None;
    let mut alone = 0usize;
    let mut started_at = now;
    while !items.is_empty() {
        let group = if alone > 0 { 1 } else { bring_group_forward(items, bench.signature.max_batch > 0) };
        alone = alone.saturating_sub(1);
        match run_group(bench, started_at, &items[..group]) {
            Ok((outputs, times)) => {
                // Before the answers leave: whoever has one finds it counted.
                count(bench.statistics, &items[..group], &times);
                items.drain(..group).zip(outputs).for_each(|(item, outputs)| item.deliver(Ok(outputs)));
                started_at = times.ended_at;
            }
            Err(error) => {
                let reason = error.to_string();
                if group > 1 {
                    alone = group;
                } else {
                    items.drain(..1).for_each(|item| item.deliver(Err(reason.clone())));
                }
                failure = Some(reason);
                started_at = bench.clock.now();
            }
        }
    }
    failure.map_or(Ok(()), Err)
}

fn count<I: BatchItem>(statistics: &Statistics, items: &[I], times: &BatchTimes) {
    let (mut rows, mut queued) = (0, Duration::ZERO);
    for item in items {
        rows += item.rows();
        queued += times.started_at.since(item.queued_at());
        item.computed(times);
    }
    statistics.computed(items.len() as u64, rows, queued, times);
}

/// Brings the items that can share a batch with the first one to the front, and counts them.
fn bring_group_forward<I: BatchItem>(items: &mut [I], batched: bool) -> usize {
    let mut count = 1;
    for index in 1..items.len() {
        if same_shapes(&items[0], &items[index], batched) {
            items.swap(count, index);
            count += 1;
        }
    }
    count
}

fn same_shapes<I: BatchItem>(a: &I, b: &I, batched: bool) -> bool {
    let rest = |shape: &[i64]| shape.len().min(1);
    batched
        && a.inputs().len() == b.inputs().len()
        && a.inputs()
            .iter()
            .zip(b.inputs())
            .all(|(a, b)| a.shape.len() == b.shape.len() && a.shape[rest(&a.shape)..] == b.shape[rest(&b.shape)..])
}

fn run_group<I: BatchItem>(
    bench: &mut Bench<'_>,
    started_at: Timestamp,
    items: &[I],
) -> Result<(Vec<Vec<Tensor>>, BatchTimes), EngineError> {
    let Bench { loaded, cache, clock, .. } = bench;
    let first = items[0].inputs();
    let rows: u32 = items.iter().map(BatchItem::rows).sum();
    let mut gathered_at = started_at;
    let mut outputs: Vec<Vec<Tensor>> = items.iter().map(|_| Vec::new()).collect();
    let mut split_error = None;
    let mut computed_at = None;
    let mut sink = |_, view: TensorView<'_>| {
        computed_at.get_or_insert_with(|| clock.now());
        if let Err(reason) = split(view, items, rows, &mut outputs) {
            split_error = Some(reason);
        }
    };
    match items {
        // One request: its own bytes are the batch.
        [_] => loaded.execute(&first.iter().map(Tensor::view).collect::<Vec<_>>(), &mut sink)?,
        _ if loaded.takes_parts() => cache.execute_parts(*loaded, items, rows, &mut sink)?,
        _ => {
            cache.gather(items, rows);
            gathered_at = clock.now();
            loaded.execute(&cache.views(items), &mut sink)?;
        }
    }
    match split_error {
        Some(reason) => Err(EngineError::Execute(reason)),
        None => {
            let ended_at = clock.now();
            let computed_at = computed_at.unwrap_or(ended_at);
            Ok((outputs, BatchTimes { started_at, gathered_at, computed_at, ended_at }))
        }
    }
}

impl IoCache {
    /// The shapes of the inputs of all items together.
    fn shape<I: BatchItem>(&mut self, items: &[I], rows: u32) {
        let inputs = items[0].inputs();
        self.shapes.resize_with(inputs.len().max(self.shapes.len()), Vec::new);
        for (shape, input) in self.shapes.iter_mut().zip(inputs) {
            shape.clear();
            shape.extend_from_slice(&input.shape);
            if let Some(batch) = shape.first_mut() {
                *batch = i64::from(rows);
            }
        }
    }

    /// Runs several items with their rows where they are.
    fn execute_parts<I: BatchItem>(
        &mut self,
        loaded: &mut dyn Loaded,
        items: &[I],
        rows: u32,
        sink: &mut dyn FnMut(usize, TensorView<'_>),
    ) -> Result<(), EngineError> {
        self.shape(items, rows);
        let first = items[0].inputs();
        let pieces = |index: usize| items.iter().map(|item| &*item.inputs()[index].data).collect::<Vec<&[u8]>>();
        let pieces: Vec<Vec<&[u8]>> = (0..first.len()).map(pieces).collect();
        let inputs = first.iter().zip(&pieces).zip(&self.shapes);
        let inputs: Vec<Parts<'_>> =
            inputs.map(|((tensor, pieces), shape)| Parts { datatype: tensor.datatype, shape, pieces }).collect();
        loaded.execute_parts(&inputs, sink)
    }

    /// Puts the rows of all items behind one another.
    fn gather<I: BatchItem>(&mut self, items: &[I], rows: u32) {
        self.shape(items, rows);
        let count = items[0].inputs().len();
        self.inputs.resize_with(count.max(self.inputs.len()), Vec::new);
        for index in 0..count {
            let bytes: usize = items.iter().map(|item| item.inputs()[index].data.len()).sum();
            let buffer = &mut self.inputs[index];
            if buffer.len() * 8 < bytes {
                buffer.resize(bytes.div_ceil(8), 0);
            }
            let mut rest = as_bytes_mut(buffer);
            for item in items {
                let data = &item.inputs()[index].data;
                let (place, behind) = rest.split_at_mut(data.len());
                place.copy_from_slice(data);
                rest = behind;
            }
        }
    }

    /// What was gathered.
    fn views<I: BatchItem>(&self, items: &[I]) -> Vec<TensorView<'_>> {
        let view = |(index, tensor): (usize, &Tensor)| {
            let bytes: usize = items.iter().map(|item| item.inputs()[index].data.len()).sum();
            let data = &as_bytes(&self.inputs[index])[..bytes];
            TensorView { datatype: tensor.datatype, shape: &self.shapes[index], data }
        };
        items[0].inputs().iter().enumerate().map(view).collect()
    }
}

/// Cuts one output of the batch into the items' parts. One copy out of the engine's memory, shared by all items.
fn split<I: BatchItem>(
    view: TensorView<'_>,
    items: &[I],
    rows: u32,
    outputs: &mut [Vec<Tensor>],
) -> Result<(), String> {
    let data = Bytes::copy_from_slice(view.data);
    let tensor = |shape: Vec<i64>, data: Bytes| Tensor { datatype: view.datatype, shape, data };
    if let [output] = outputs {
        output.push(tensor(view.shape.to_vec(), data));
        return Ok(());
    }
    if view.shape.first() != Some(&i64::from(rows)) {
        let shape = view.shape;
        return Err(format!(
            "an output of a batch of {rows} rows has the shape {shape:?}: its first dimension should be {rows}; set max_batch_size to 0 if the model has no batch dimension"
        ));
    }
    let mut from = 0;
    let bounds = RowBounds::new(&view, rows)?;
    let mut row = 0;
    for (item, output) in items.iter().zip(outputs) {
        row += item.rows() as usize;
        let until = bounds.end_of(row);
        let mut shape = view.shape.to_vec();
        shape[0] = i64::from(item.rows());
        output.push(tensor(shape, data.slice(from..until)));
        from = until;
    }
    Ok(())
}

/// Where the rows of an output end.
enum RowBounds {
    Fixed(usize),
    /// For strings, whose rows differ in length: the end of each row.
    Walked(Vec<usize>),
}

impl RowBounds {
    fn new(view: &TensorView<'_>, rows: u32) -> Result<Self, String> {
        let rows = rows as usize;
        if view.datatype.size().is_some() {
            return Ok(Self::Fixed(view.data.len() / rows.max(1)));
        }
        let elements = base::element_count(&view.shape[1..]).ok_or("an output's shape is out of range")?;
        let mut ends = Vec::with_capacity(rows);
        let mut at = 0;
        for _ in 0..rows {
            for _ in 0..elements {
                let length = view.data.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
                let length = u32::from_le_bytes(length.ok_or("an output of strings is shorter than its shape says")?);
                at += 4 + length as usize;
            }
            if at > view.data.len() {
                return Err("an output of strings is shorter than its lengths say".into());
            }
            ends.push(at);
        }
        Ok(Self::Walked(ends))
    }

    fn end_of(&self, rows: usize) -> usize {
        match self {
            Self::Fixed(bytes) => rows * bytes,
            Self::Walked(ends) => ends[rows - 1],
        }
    }
}

fn as_bytes(words: &[u64]) -> &[u8] {
    bytemuck::cast_slice(words)
}

fn as_bytes_mut(words: &mut [u64]) -> &mut [u8] {
    bytemuck::cast_slice_mut(words)
}
