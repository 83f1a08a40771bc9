//! From the tensors of many requests to one batch, and back.

use crate::Clock;
use crate::padding::{Filled, Padding, copy_out};
use base::{DataType, Duration, ModelSignature, TensorSpec, Timestamp};
use bytes::Bytes;
use engine::{EngineError, Input, Loaded, Moved, Parts, Staged, TensorView};
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
    /// How many bytes of each buffer are the batch.
    lengths: Vec<usize>,
}

/// What a batch is run with.
pub(crate) struct Bench<'a> {
    pub loaded: &'a mut dyn Loaded,
    pub signature: &'a ModelSignature,
    pub padding: Option<&'a Padding>,
    pub cache: &'a mut IoCache,
    pub clock: Clock,
    pub statistics: &'a Statistics,
}

/// Runs the items and hands each its outputs or its failure, taking it out of the list. Items whose shapes differ in more
/// than the rows and what may be filled up can't share a batch; they run one group after another. A group that fails is run
/// again one by one, exactly as the requests are: what one request made fail must not fail the others. Fails if anything did: then its time says nothing about its size, though
/// others have their answers. If it panics, the items that are left have none yet.
pub(crate) fn run<I: BatchItem>(bench: &mut Bench<'_>, now: Timestamp, items: &mut Vec<I>) -> Result<(), String> {
    let mut failure = None;
    let mut alone = 0usize;
    let mut started_at = now;
    while !items.is_empty() {
        let again = alone > 0;
        let group = if again { 1 } else { bring_group_forward(items, bench.signature, bench.padding) };
        alone = alone.saturating_sub(1);
        let padding = bench.padding.filter(|_| !again);
        let filled = match padding.map_or(Ok(None), |padding| padding.of(&items[..group])) {
            Ok(filled) => filled,
            Err(_) => {
                alone = group;
                continue;
            }
        };
        match run_group(bench, started_at, &items[..group], filled.as_ref()) {
            Ok((outputs, times)) => {
                // Before the answers leave: whoever has one finds it counted.
                count(bench.statistics, &items[..group], &times);
                items.drain(..group).zip(outputs).for_each(|(item, outputs)| item.deliver(Ok(outputs)));
                started_at = times.ended_at;
            }
            Err(error) => {
                let reason = error.to_string();
                if group > 1 || filled.is_some() {
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

fn run_group<I: BatchItem>(
    bench: &mut Bench<'_>,
    started_at: Timestamp,
    items: &[I],
    filled: Option<&Filled<'_>>,
) -> Result<(Vec<Vec<Tensor>>, BatchTimes), EngineError> {
    let Bench { loaded, cache, clock, signature, .. } = bench;
    let first = items[0].inputs();
    let rows = rows_of(items);
    let mut gathered_at = started_at;
    let mut splitter = Splitter::new(items, signature, filled);
    let mut computed_at = None;
    let mut sink = |position: usize, view: TensorView<'_>| {
        computed_at.get_or_insert_with(|| clock.now());
        splitter.take(position, view);
    };
    match (items, filled) {
        // One request: its own bytes are the batch.
        ([_], None) => loaded.execute(&first.iter().map(Tensor::view).collect::<Vec<_>>(), &mut sink)?,
        (_, None) if loaded.takes_parts() => cache.execute_parts(*loaded, items, rows, &mut sink)?,
        (_, filled) => {
            match filled {
                Some(filled) => cache.gather_filled(items, rows, filled),
                None => cache.gather(items, rows),
            }
            gathered_at = clock.now();
            loaded.execute(&cache.views(first), &mut sink)?;
        }
    }
    let outputs = splitter.outputs()?;
    let ended_at = clock.now();
    let computed_at = computed_at.unwrap_or(ended_at);
    Ok((outputs, BatchTimes { started_at, gathered_at, computed_at, ended_at }))
}

/// Cuts the outputs of a batch into those of its items.
struct Splitter<'a, I> {
    items: &'a [I],
    signature: &'a ModelSignature,
    filled: Option<&'a Filled<'a>>,
    outputs: Vec<Vec<Tensor>>,
    wrong: Option<String>,
}

impl<'a, I: BatchItem> Splitter<'a, I> {
    fn new(items: &'a [I], signature: &'a ModelSignature, filled: Option<&'a Filled<'a>>) -> Self {
        Self { items, signature, filled, outputs: items.iter().map(|_| Vec::new()).collect(), wrong: None }
    }

    fn take(&mut self, position: usize, view: TensorView<'_>) {
        let done = match self.filled {
            Some(filled) => {
                let spec = self.signature.outputs.get(position);
                split_filled(view, self.items, spec, filled, &mut self.outputs)
            }
            None => split(view, self.items, rows_of(self.items), &mut self.outputs),
        };
        self.wrong = done.err().or(self.wrong.take());
    }

    fn outputs(self) -> Result<Vec<Vec<Tensor>>, EngineError> {
        match self.wrong {
            Some(reason) => Err(EngineError::Execute(reason)),
            None => Ok(self.outputs),
        }
    }
}

fn rows_of<I: BatchItem>(items: &[I]) -> u32 {
    items.iter().map(BatchItem::rows).sum()
}

/// Begins to bring the inputs of the items to the device. `None` where the engine doesn't do that, or where they aren't one batch.
pub(crate) fn stage<I: BatchItem>(
    loaded: &mut dyn Loaded,
    signature: &ModelSignature,
    padding: Option<&Padding>,
    cache: &mut IoCache,
    items: &mut [I],
) -> Option<Result<Box<dyn Staged>, EngineError>> {
    if !loaded.stages() || bring_group_forward(items, signature, padding) < items.len() {
        return None;
    }
    let filled = padding.map_or(Ok(None), |padding| padding.of(items)).ok()?;
    let (first, rows) = (items.first()?.inputs(), rows_of(items));
    if let Some(filled) = &filled {
        cache.gather_filled(items, rows, filled);
    }
    let input = |(index, tensor): (usize, &Tensor)| {
        let datatype = tensor.datatype;
        if filled.is_some() {
            let view = cache.view(index, tensor);
            return Input { datatype, shape: view.shape.to_vec(), pieces: vec![Bytes::copy_from_slice(view.data)] };
        }
        let mut shape = tensor.shape.clone();
        if let ([_, _, ..], Some(batch)) = (&*items, shape.first_mut()) {
            *batch = i64::from(rows);
        }
        Input { datatype, shape, pieces: items.iter().map(|item| item.inputs()[index].data.clone()).collect() }
    };
    let inputs = first.iter().enumerate().map(input).collect();
    Some(loaded.stage(inputs))
}

/// Hands the items of a staged batch whose outputs are there what is theirs, taking them out of the list.
pub(crate) fn finish<I: BatchItem>(
    staged: &mut dyn Staged,
    signature: &ModelSignature,
    padding: Option<&Padding>,
    (clock, statistics): (Clock, &Statistics),
    (started_at, computed_at): (Timestamp, Timestamp),
    items: &mut Vec<I>,
) -> Result<(Moved, Timestamp), EngineError> {
    let filled = padding.map_or(Ok(None), |padding| padding.of(items)).map_err(EngineError::Execute)?;
    let mut splitter = Splitter::new(items, signature, filled.as_ref());
    let moved = staged.finish(&mut |position, view| splitter.take(position, view))?;
    let outputs = splitter.outputs()?;
    let ended_at = clock.now();
    count(statistics, items, &BatchTimes { started_at, gathered_at: started_at, computed_at, ended_at });
    items.drain(..).zip(outputs).for_each(|(item, outputs)| item.deliver(Ok(outputs)));
    Ok((moved, ended_at))
}

impl IoCache {
    /// Runs several items with their rows where they are.
    fn execute_parts<I: BatchItem>(
        &mut self,
        loaded: &mut dyn Loaded,
        items: &[I],
        rows: u32,
        sink: &mut dyn FnMut(usize, TensorView<'_>),
    ) -> Result<(), EngineError> {
        let first = items[0].inputs();
        first.iter().enumerate().for_each(|(index, tensor)| self.shape(index, &tensor.shape, rows));
        let pieces = |index: usize| items.iter().map(|item| &*item.inputs()[index].data).collect::<Vec<&[u8]>>();
        let pieces: Vec<Vec<&[u8]>> = (0..first.len()).map(pieces).collect();
        let inputs = first.iter().zip(&pieces).zip(&self.shapes);
        let inputs: Vec<Parts<'_>> =
            inputs.map(|((tensor, pieces), shape)| Parts { datatype: tensor.datatype, shape, pieces }).collect();
        loaded.execute_parts(&inputs, sink)
    }

    /// Puts the rows of all items behind one another.
    fn gather<I: BatchItem>(&mut self, items: &[I], rows: u32) {
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
    fn gather_filled<I: BatchItem>(&mut self, items: &[I], rows: u32, filled: &Filled<'_>) {
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

    /// The shape of an input of all items together.
    fn shape(&mut self, index: usize, of_one: &[i64], rows: u32) {
        self.shapes.resize_with(self.shapes.len().max(index + 1), Vec::new);
        let shape = &mut self.shapes[index];
        shape.clear();
        shape.extend_from_slice(of_one);
        if let Some(batch) = shape.first_mut() {
            *batch = i64::from(rows);
        }
    }

    /// The buffer of an input, that long, for a batch of that many rows of that shape.
    fn make_room(&mut self, index: usize, bytes: usize, of_one: &[i64], rows: u32) -> &mut [u8] {
        self.shape(index, of_one, rows);
        let count = self.inputs.len().max(index + 1);
        self.inputs.resize_with(count, Vec::new);
        self.lengths.resize(count, 0);
        self.lengths[index] = bytes;
        let buffer = &mut self.inputs[index];
        if buffer.len() * 8 < bytes {
            buffer.resize(bytes.div_ceil(8), 0);
        }
        &mut as_bytes_mut(buffer)[..bytes]
    }

    /// What was gathered for these inputs.
    fn views(&self, inputs: &[Tensor]) -> Vec<TensorView<'_>> {
        inputs.iter().enumerate().map(|(index, tensor)| self.view(index, tensor)).collect()
    }

    /// What was gathered for one of them.
    fn view(&self, index: usize, tensor: &Tensor) -> TensorView<'_> {
        let data = &as_bytes(&self.inputs[index])[..self.lengths[index]];
        TensorView { datatype: tensor.datatype, shape: &self.shapes[index], data }
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
    filled: &Filled<'_>,
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
