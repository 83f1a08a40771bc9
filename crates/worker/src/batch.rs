//! From the tensors of many requests to one batch, and back.

use crate::Clock;
use crate::padding::{Filled, Padding, copy_out};
use base::{Duration, ModelSignature, TensorSpec, Timestamp};
use bytes::Bytes;
use engine::{Compute, DeviceTimes, EngineError, Input, Inputs, Staged, Tensor, TensorView};
use std::sync::Arc;
use telemetry::{BatchTimes, Statistics};

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
    /// How many bytes of each buffer are the batch.
    lengths: Vec<usize>,
    /// Of each item, between the engine and their delivery.
    outputs: Vec<Vec<Tensor>>,
}

/// The items of an order that are one batch: the first ones.
pub(crate) struct Group {
    pub count: usize,
    /// What they are filled up to, where they are.
    pub filled: Option<Filled>,
}

impl Group {
    /// The first item, exactly as it is.
    pub const ONE: Self = Self { count: 1, filled: None };

    /// Brings the items that can share a batch with the first one to the front: their shapes differ in nothing but the
    /// rows and what may be filled up. `Err`: so many could, but it couldn't be told which part of an output is whose.
    pub fn form<I: BatchItem>(
        items: &mut [I],
        signature: &ModelSignature,
        padding: Option<&Arc<Padding>>,
    ) -> Result<Self, usize> {
        let count = bring_group_forward(items, signature, padding.map(|padding| &**padding));
        let filled = padding.map_or(Ok(None), |padding| padding.of(&items[..count])).map_err(|_| count)?;
        Ok(Self { count, filled })
    }
}

/// The inputs of a batch, in the form that the engine asks for.
pub(crate) struct Gathering<'a, I> {
    items: &'a [I],
    filled: Option<&'a Filled>,
    cache: &'a mut IoCache,
    clock: Clock,
    /// When they were brought together, if they were.
    pub gathered_at: Option<Timestamp>,
}

impl<'a, I: BatchItem> Gathering<'a, I> {
    /// Of the first items, which are that group.
    pub fn new(items: &'a [I], group: &'a Group, cache: &'a mut IoCache, clock: Clock) -> Self {
        Self { items: &items[..group.count], filled: group.filled.as_ref(), cache, clock, gathered_at: None }
    }

    fn first(&self) -> &'a [Tensor] {
        self.items[0].inputs()
    }
}

impl<I: BatchItem> Inputs for Gathering<'_, I> {
    fn in_one_piece(&mut self, compute: &mut Compute<'_>) -> Result<(), EngineError> {
        match (self.items, self.filled) {
            // One request: its own bytes are the batch.
            ([item], None) => return item.inputs().in_one_piece(compute),
            (items, None) => self.cache.gather(items),
            (items, Some(filled)) => self.cache.gather_filled(items, filled),
        }
        self.gathered_at = Some(self.clock.now());
        let views = self.first().iter().enumerate().map(|(index, tensor)| self.cache.view(index, tensor));
        compute(&views.collect::<Vec<_>>())
    }

    fn in_pieces(&mut self) -> Vec<Input> {
        let (items, rows) = (self.items, rows_of(self.items));
        if let Some(filled) = self.filled {
            self.cache.gather_filled(items, filled);
        }
        let input = |(index, tensor): (usize, &Tensor)| {
            let datatype = tensor.datatype;
            if self.filled.is_some() {
                let view = self.cache.view(index, tensor);
                return Input { datatype, shape: view.shape.to_vec(), pieces: vec![Bytes::copy_from_slice(view.data)] };
            }
            let mut shape = tensor.shape.clone();
            if let ([_, _, ..], Some(batch)) = (items, shape.first_mut()) {
                *batch = i64::from(rows);
            }
            Input { datatype, shape, pieces: items.iter().map(|item| item.inputs()[index].data.clone()).collect() }
        };
        self.first().iter().enumerate().map(input).collect()
    }
}

/// Takes the outputs of a batch from the engine, cut into those of its items.
pub(crate) fn take_outputs<I: BatchItem>(
    staged: &mut dyn Staged,
    signature: &ModelSignature,
    items: &[I],
    group: &Group,
    cache: &mut IoCache,
) -> Result<DeviceTimes, EngineError> {
    let items = &items[..group.count];
    let outputs = &mut cache.outputs;
    outputs.clear();
    outputs.resize_with(items.len(), Vec::new);
    let mut wrong = None;
    let times = staged.finish(&mut |position, view| {
        let done = match &group.filled {
            Some(filled) => split_filled(view, items, signature.outputs.get(position), filled, outputs),
            None => split(view, items, outputs),
        };
        wrong = done.err().or(wrong.take());
    })?;
    wrong.map_or(Ok(times), |reason| Err(EngineError::Execute(reason)))
}

/// Hands the items of a batch what was taken for them, taking them out of the list. They are counted before: whoever
/// has an answer finds it counted.
pub(crate) fn deliver<I: BatchItem>(
    items: &mut Vec<I>,
    count: usize,
    times: &BatchTimes,
    statistics: &Statistics,
    cache: &mut IoCache,
) {
    count_in(statistics, &items[..count], times);
    items.drain(..count).zip(cache.outputs.drain(..)).for_each(|(item, outputs)| item.deliver(Ok(outputs)));
}

fn count_in<I: BatchItem>(statistics: &Statistics, items: &[I], times: &BatchTimes) {
    let (mut rows, mut queued) = (0, Duration::ZERO);
    for item in items {
        rows += item.rows();
        queued += times.started_at.since(item.queued_at());
        item.computed(times);
    }
    statistics.computed(items.len() as u64, rows, queued, times);
}

/// Brings the items that can share a batch with the first one to the front, and counts them.
fn bring_group_forward<I: BatchItem>(items: &mut [I], signature: &ModelSignature, padding: Option<&Padding>) -> usize {
    let batched = signature.max_batch > 0;
    let mut count = 1;
    for index in 1..items.len() {
        let (first, other) = (items[0].inputs(), items[index].inputs());
        let joins = match padding {
            Some(padding) => padding.joins(first, other),
            None => same_shapes(first, other),
        };
        if batched && joins {
            items.swap(count, index);
            count += 1;
        }
    }
    count
}

fn same_shapes(a: &[Tensor], b: &[Tensor]) -> bool {
    let rest = |shape: &[i64]| shape.len().min(1);
    let same = |a: &[i64], b: &[i64]| a.len() == b.len() && a[rest(a)..] == b[rest(b)..];
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(&a.shape, &b.shape))
}

fn rows_of<I: BatchItem>(items: &[I]) -> u32 {
    items.iter().map(BatchItem::rows).sum()
}

impl IoCache {
    /// Puts the rows of all items behind one another.
    fn gather<I: BatchItem>(&mut self, items: &[I]) {
        let rows = rows_of(items);
        for (index, first) in items[0].inputs().iter().enumerate() {
            let bytes = items.iter().map(|item| item.inputs()[index].data.len()).sum();
            let mut rest = self.make_room(index, bytes, &first.shape, rows);
            for item in items {
                let data = &item.inputs()[index].data;
                let (place, behind) = rest.split_at_mut(data.len());
                place.copy_from_slice(data);
                rest = behind;
            }
        }
    }

    /// Puts the rows of all items behind one another, each filled up.
    fn gather_filled<I: BatchItem>(&mut self, items: &[I], filled: &Filled) {
        let rows = rows_of(items);
        for (index, first) in items[0].inputs().iter().enumerate() {
            let shape = &filled.shapes[index];
            // Strings aren't filled up: they have no size of an element, and the sizes that they have.
            let row = first.datatype.size().map(|size| size * shape[1..].iter().product::<i64>() as usize);
            let length = |item: &I| match row {
                Some(row) => row * item.rows() as usize,
                None => item.inputs()[index].data.len(),
            };
            let bytes = items.iter().map(length).sum();
            let mut rest = self.make_room(index, bytes, shape, rows);
            for item in items {
                let (place, behind) = rest.split_at_mut(length(item));
                filled.place(index, &item.inputs()[index], place);
                rest = behind;
            }
        }
    }

    /// The buffer of an input, that long, for a batch of that many rows of that shape.
    fn make_room(&mut self, index: usize, bytes: usize, of_one: &[i64], rows: u32) -> &mut [u8] {
        let count = self.inputs.len().max(index + 1);
        self.inputs.resize_with(count, Vec::new);
        self.shapes.resize_with(count, Vec::new);
        self.lengths.resize(count, 0);
        self.lengths[index] = bytes;
        let shape = &mut self.shapes[index];
        shape.clear();
        shape.extend_from_slice(of_one);
        if let Some(batch) = shape.first_mut() {
            *batch = i64::from(rows);
        }
        let buffer = &mut self.inputs[index];
        if buffer.len() * 8 < bytes {
            buffer.resize(bytes.div_ceil(8), 0);
        }
        &mut as_bytes_mut(buffer)[..bytes]
    }

    /// What was gathered for an input.
    fn view(&self, index: usize, tensor: &Tensor) -> TensorView<'_> {
        let data = &as_bytes(&self.inputs[index])[..self.lengths[index]];
        TensorView { datatype: tensor.datatype, shape: &self.shapes[index], data }
    }
}

/// Cuts one output of the batch into the items' parts. One copy out of the engine's memory, shared by all items.
fn split<I: BatchItem>(view: TensorView<'_>, items: &[I], outputs: &mut [Vec<Tensor>]) -> Result<(), String> {
    let data = Bytes::copy_from_slice(view.data);
    let tensor = |shape: Vec<i64>, data: Bytes| Tensor { datatype: view.datatype, shape, data };
    if let [output] = outputs {
        output.push(tensor(view.shape.to_vec(), data));
        return Ok(());
    }
    let rows = rows_of(items);
    check_rows(&view, rows)?;
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

/// Cuts one output of a batch that was filled up into the items' parts, each as long as its inputs were.
fn split_filled<I: BatchItem>(
    view: TensorView<'_>,
    items: &[I],
    spec: Option<&TensorSpec>,
    filled: &Filled,
    outputs: &mut [Vec<Tensor>],
) -> Result<(), String> {
    let spec = spec.ok_or("the engine gave more outputs than the model's signature has")?;
    let rows = rows_of(items);
    check_rows(&view, rows)?;
    let bounds = RowBounds::new(&view, rows)?;
    let (mut row, mut from) = (0, 0);
    for (position, (item, output)) in items.iter().zip(outputs).enumerate() {
        row += item.rows() as usize;
        let until = bounds.end_of(row);
        let part = &view.data[from..until];
        let shape = filled.cut_shape(position, item.rows(), spec, view.shape)?;
        let mut data = Vec::with_capacity(part.len());
        if shape[1..] == view.shape[1..] {
            data.extend_from_slice(part);
        } else {
            let whole: Vec<i64> = shape[..1].iter().chain(&view.shape[1..]).copied().collect();
            copy_out(part, &whole, &shape, &mut data);
        }
        output.push(Tensor { datatype: view.datatype, shape, data: Bytes::from(data) });
        from = until;
    }
    Ok(())
}

fn check_rows(view: &TensorView<'_>, rows: u32) -> Result<(), String> {
    if view.shape.first() == Some(&i64::from(rows)) {
        return Ok(());
    }
    let shape = view.shape;
    Err(format!(
        "an output of a batch of {rows} rows has the shape {shape:?}: its first dimension should be {rows}; set max_batch_size to 0 if the model has no batch dimension"
    ))
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
