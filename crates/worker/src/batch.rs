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

    /// Told of its part of the time for which its batch had the device, whatever came of it: as many rows as it has.
    fn took(&self, _time: Duration) {}

    /// Takes the outputs, in the signature's order, or the reason why there are none.
    fn deliver(self, outputs: Result<Vec<Tensor>, String>);

    /// Takes the reason why the model can't compute its inputs, though it can compute others.
    fn refuse_inputs(self, reason: String)
    where
        Self: Sized,
    {
        self.deliver(Err(reason));
    }

    /// Takes the reason why its batch was broken off.
    fn broken_off(self, reason: String)
    where
        Self: Sized,
    {
        self.deliver(Err(reason));
    }

    /// Takes the reason why it can't be computed yet, though it can soon.
    fn put_off(self, reason: String)
    where
        Self: Sized,
    {
        self.deliver(Err(reason));
    }
}

/// A buffer of so many words (16 MiB) is kept, whatever batches need by now; a larger one is given back when a batch
/// needs less than a quarter of it.
const KEPT_WORDS: usize = 2 << 20;

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
    /// rows and what may be filled up, and together they have no more than `max_elements`. `Err`: so many could, but it
    /// couldn't be told which part of an output is whose.
    pub fn form<I: BatchItem>(
        items: &mut [I],
        signature: &ModelSignature,
        padding: Option<&Arc<Padding>>,
        max_elements: u64,
    ) -> Result<Self, usize> {
        if items.len() == 1 && padding.is_none() {
            return Ok(Self::ONE);
        }
        let mut growing = GrowingBatch::new(&items[0], signature, padding.map(|padding| &**padding), max_elements);
        if growing.is_too_large() {
            return Ok(Self::ONE);
        }
        let count = bring_group_forward(items, &mut growing);
        let filled = padding.map_or(Ok(None), |padding| padding.of(&items[..count])).map_err(|_| count)?;
        Ok(Self { count, filled })
    }
}

/// A batch while its requests are found: what each of its inputs is filled up to must stay within a bound. Lengths of
/// two dimensions that come from two requests multiply: 500,000 x 1 and 1 x 500,000 would be 250,000,000,000 elements.
struct GrowingBatch<'a> {
    signature: &'a ModelSignature,
    padding: Option<&'a Padding>,
    max_elements: u64,
    rows: u64,
    /// Of each input, the longest that each dimension is; nothing where there is no bound.
    longest: Vec<Vec<i64>>,
}

impl<'a> GrowingBatch<'a> {
    fn new<I: BatchItem>(
        first: &I,
        signature: &'a ModelSignature,
        padding: Option<&'a Padding>,
        max_elements: u64,
    ) -> Self {
        let bounded = if max_elements < u64::MAX { first.inputs() } else { &[] };
        let longest = bounded.iter().map(|tensor| tensor.shape.clone()).collect();
        Self { signature, padding, max_elements, rows: first.rows().into(), longest }
    }

    /// Whether it is beyond the bound already, filled up: then the first one runs exactly as it is.
    fn is_too_large(&self) -> bool {
        self.padding.is_some() && self.elements(&[], 0) > self.max_elements
    }

    /// Takes a request in, if it suits those that are in it.
    fn takes<I: BatchItem>(&mut self, first: &[Tensor], item: &I) -> bool {
        let inputs = item.inputs();
        let joins = match self.padding {
            Some(padding) => padding.joins(first, inputs),
            None => same_shapes(first, inputs),
        };
        if self.signature.max_batch == 0 || !joins || self.elements(inputs, item.rows()) > self.max_elements {
            return false;
        }
        self.rows += u64::from(item.rows());
        for (longest, tensor) in self.longest.iter_mut().zip(inputs) {
            longest.iter_mut().zip(&tensor.shape).for_each(|(longest, &length)| *longest = length.max(*longest));
        }
        true
    }

    /// The elements of the largest input whose size is open, together with those of one more request.
    fn elements(&self, more: &[Tensor], more_rows: u32) -> u64 {
        let rows = self.rows.saturating_add(more_rows.into());
        let length = |index: usize, axis: usize| {
            let own = self.longest[index][axis];
            let longest = more.get(index).map_or(own, |tensor| own.max(tensor.shape[axis]));
            self.padding.map_or(longest, |padding| padding.filled_length(index, axis, longest))
        };
        let of_input = |(index, spec): (usize, &TensorSpec)| {
            let axes = 1..self.longest.get(index).filter(|_| spec.is_open(self.signature.max_batch))?.len();
            let lengths = axes.map(|axis| u64::try_from(length(index, axis)).unwrap_or(0));
            Some(lengths.fold(rows, u64::saturating_mul))
        };
        self.signature.inputs.iter().enumerate().filter_map(of_input).max().unwrap_or(0)
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
            (items, None) => self.cache.gather(items)?,
            (items, Some(filled)) => self.cache.gather_filled(items, filled)?,
        }
        self.gathered_at = Some(self.clock.now());
        let views = self.first().iter().enumerate().map(|(index, tensor)| self.cache.view(index, tensor));
        compute(&views.collect::<Vec<_>>())
    }

    fn in_pieces(&mut self) -> Result<Vec<Input>, EngineError> {
        let (items, rows) = (self.items, rows_of(self.items));
        if let Some(filled) = self.filled {
            self.cache.gather_filled(items, filled)?;
        }
        let input = |(index, tensor): (usize, &Tensor)| {
            let datatype = tensor.datatype;
            if self.filled.is_some() {
                let view = self.cache.view(index, tensor);
                let pieces = vec![copied(view.data).map_err(EngineError::Execute)?];
                return Ok(Input { datatype, shape: view.shape.to_vec(), pieces });
            }
            let mut shape = tensor.shape.clone();
            if let ([_, _, ..], Some(batch)) = (items, shape.first_mut()) {
                *batch = i64::from(rows);
            }
            Ok(Input { datatype, shape, pieces: items.iter().map(|item| item.inputs()[index].data.clone()).collect() })
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
    charge(items, times.ended_at.since(times.started_at));
}

/// Divides the time for which a batch had the device among its items, by rows.
pub(crate) fn charge<I: BatchItem>(items: &[I], took: Duration) {
    let rows: u64 = items.iter().map(|item| u64::from(item.rows())).sum();
    // An item may have no rows; nobody pays twice for that.
    let each = took / rows.max(1);
    items.iter().for_each(|item| item.took(each * u64::from(item.rows())));
}

/// Brings the items that can share a batch with the first one to the front, and counts them.
fn bring_group_forward<I: BatchItem>(items: &mut [I], growing: &mut GrowingBatch<'_>) -> usize {
    let mut count = 1;
    for index in 1..items.len() {
        if growing.takes(items[0].inputs(), &items[index]) {
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
    fn gather<I: BatchItem>(&mut self, items: &[I]) -> Result<(), EngineError> {
        let rows = rows_of(items);
        for (index, first) in items[0].inputs().iter().enumerate() {
            let bytes = items.iter().map(|item| item.inputs()[index].data.len()).sum();
            let mut rest = self.make_room(index, bytes, &first.shape, rows)?;
            for item in items {
                let data = &item.inputs()[index].data;
                let (place, behind) = rest.split_at_mut(data.len());
                place.copy_from_slice(data);
                rest = behind;
            }
        }
        Ok(())
    }

    /// Puts the rows of all items behind one another, each filled up.
    fn gather_filled<I: BatchItem>(&mut self, items: &[I], filled: &Filled) -> Result<(), EngineError> {
        let rows = rows_of(items);
        for (index, first) in items[0].inputs().iter().enumerate() {
            let shape = &filled.shapes[index];
            // Strings aren't filled up: they have no size of an element, and the sizes that they have.
            let row = first.datatype.size().map(|size| row_bytes(shape, size, rows)).transpose()?;
            let length = |item: &I| match row {
                Some(row) => row * item.rows() as usize,
                None => item.inputs()[index].data.len(),
            };
            let bytes = items.iter().map(length).sum();
            let mut rest = self.make_room(index, bytes, shape, rows)?;
            for item in items {
                let (place, behind) = rest.split_at_mut(length(item));
                filled.place(index, &item.inputs()[index], place);
                rest = behind;
            }
        }
        Ok(())
    }

    /// The buffer of an input, that long, for a batch of that many rows of that shape.
    fn make_room(&mut self, index: usize, bytes: usize, of_one: &[i64], rows: u32) -> Result<&mut [u8], EngineError> {
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
        let (buffer, words) = (&mut self.inputs[index], bytes.div_ceil(8));
        if buffer.len() > KEPT_WORDS && buffer.len() / 4 > words {
            *buffer = Vec::new();
        }
        if buffer.len() < words {
            let room = buffer.try_reserve_exact(words - buffer.len());
            room.map_err(|_| EngineError::Execute(no_memory(shape, bytes)))?;
            buffer.resize(words, 0);
        }
        Ok(&mut as_bytes_mut(buffer)[..bytes])
    }

    /// What was gathered for an input.
    fn view(&self, index: usize, tensor: &Tensor) -> TensorView<'_> {
        let data = &as_bytes(&self.inputs[index])[..self.lengths[index]];
        TensorView { datatype: tensor.datatype, shape: &self.shapes[index], data }
    }
}

/// The bytes of a row of that shape, of which so many must fit into what memory can hold at all.
fn row_bytes(shape: &[i64], element_bytes: usize, rows: u32) -> Result<usize, EngineError> {
    let row = base::element_count(&shape[1..]).and_then(|elements| elements.checked_mul(element_bytes));
    let fits = row.filter(|row| row.checked_mul(rows as usize).is_some());
    fits.ok_or_else(|| EngineError::Execute(no_memory(shape, usize::MAX)))
}

fn no_memory(shape: &[i64], bytes: usize) -> String {
    format!("a batch whose inputs have the shape {shape:?} needs {bytes} bytes for one of them, which can't be had")
}

/// Bytes in memory of their own, if there is memory for them.
fn copied(data: &[u8]) -> Result<Bytes, String> {
    let mut own = Vec::new();
    let room = own.try_reserve_exact(data.len());
    room.map_err(|_| format!("a tensor of {} bytes finds no memory", data.len()))?;
    own.extend_from_slice(data);
    Ok(Bytes::from(own))
}

/// Cuts one output of the batch into the items' parts. One copy out of the engine's memory, shared by all items.
fn split<I: BatchItem>(view: TensorView<'_>, items: &[I], outputs: &mut [Vec<Tensor>]) -> Result<(), String> {
    let data = copied(view.data)?;
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
        let data = if shape[1..] == view.shape[1..] {
            copied(part)?
        } else {
            let whole: Vec<i64> = shape[..1].iter().chain(&view.shape[1..]).copied().collect();
            cut_out(part, &whole, &shape)?
        };
        output.push(Tensor { datatype: view.datatype, shape, data });
        from = until;
    }
    Ok(())
}

/// The corner of a tensor that a smaller one of as many dimensions takes.
fn cut_out(from: &[u8], shape: &[i64], smaller: &[i64]) -> Result<Bytes, String> {
    let elements = |shape: &[i64]| base::element_count(shape).filter(|&count| count > 0);
    let bytes = elements(shape).zip(elements(smaller)).map_or(0, |(all, part)| from.len() / all * part);
    let mut data = Vec::new();
    data.try_reserve_exact(bytes).map_err(|_| format!("a tensor of {bytes} bytes finds no memory"))?;
    copy_out(from, shape, smaller, &mut data);
    Ok(Bytes::from(data))
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

#[cfg(test)]
mod tests {
    use super::*;
    use base::DataType;
    use std::cell::Cell;

    struct Item(Vec<Tensor>, Cell<Duration>);

    impl BatchItem for Item {
        fn inputs(&self) -> &[Tensor] {
            &self.0
        }

        fn rows(&self) -> u32 {
            self.0[0].shape[0] as u32
        }

        fn queued_at(&self) -> Timestamp {
            Timestamp::ZERO
        }

        fn took(&self, time: Duration) {
            self.1.set(time);
        }

        fn deliver(self, _outputs: Result<Vec<Tensor>, String>) {}
    }

    /// Requests of one input. Whether they are one batch depends on their shapes alone: they have no bytes.
    fn items(shapes: &[[i64; 3]]) -> Vec<Item> {
        let tensor = |shape: &[i64; 3]| Tensor { datatype: DataType::Fp32, shape: shape.to_vec(), data: Bytes::new() };
        shapes.iter().map(|shape| Item(vec![tensor(shape)], Cell::default())).collect()
    }

    fn signature() -> ModelSignature {
        let spec = |name: &str| TensorSpec { name: name.into(), datatype: DataType::Fp32, dims: vec![-1; 3] };
        ModelSignature { inputs: vec![spec("x")], outputs: vec![spec("y")], max_batch: 16 }
    }

    fn padding(buckets: &[u32]) -> Arc<Padding> {
        Arc::new(Padding::new(&signature(), &[("x".to_owned(), 0.0)].into(), buckets).unwrap())
    }

    /// How many requests are the first batch, and whether it is filled up.
    fn first_batch(shapes: &[[i64; 3]], padding: Option<&Arc<Padding>>, max_elements: u64) -> (usize, bool) {
        let group = Group::form(&mut items(shapes), &signature(), padding, max_elements).unwrap();
        (group.count, group.filled.is_some())
    }

    #[test]
    fn the_time_of_a_batch_is_divided_by_rows() {
        let items = items(&[[1, 1, 1], [3, 1, 1], [0, 1, 1]]);
        charge(&items, Duration::from_millis(8));
        let took: Vec<f64> = items.iter().map(|item| item.1.get().as_millis_f64()).collect();
        assert_eq!(took, [2.0, 6.0, 0.0]);
        charge::<Item>(&[], Duration::from_millis(8));
    }

    #[test]
    fn lengths_of_two_requests_that_multiply_beyond_the_bound_are_two_batches() {
        let (padding, bound) = (padding(&[]), 1 << 30);
        assert_eq!(first_batch(&[[1, 500_000, 1], [1, 1, 500_001]], Some(&padding), bound), (1, false));
        assert_eq!(first_batch(&[[1, i64::MAX, 1], [1, 1, i64::MAX - 1]], Some(&padding), bound), (1, false));
        assert_eq!(first_batch(&[[1, 500, 1], [1, 1, 501]], Some(&padding), bound), (2, true));
        let mut three = items(&[[1, 500_000, 1], [1, 1, 500_001], [1, 400_000, 1]]);
        let group = Group::form(&mut three, &signature(), Some(&padding), bound).unwrap();
        assert_eq!((group.count, &three[1].0[0].shape[..]), (2, &[1, 400_000, 1][..]), "who suits goes with the first");
    }

    #[test]
    fn a_batch_has_no_more_elements_than_a_request_may_have() {
        let like = [[2, 10, 10]; 5];
        assert_eq!(first_batch(&like, None, 699), (3, false));
        assert_eq!(first_batch(&like, None, u64::MAX), (5, false));
        assert_eq!(first_batch(&[[1, 10, 12], [1, 10, 9], [1, 10, 8]], Some(&padding(&[])), 299), (2, true));
    }

    #[test]
    fn a_bucket_beyond_the_bound_is_left_alone() {
        let shape = [[1, 10, 11]];
        assert_eq!(first_batch(&shape, Some(&padding(&[64])), 1000), (1, false));
        assert_eq!(first_batch(&[[1, 10, 64]], Some(&padding(&[32, 64])), 2048), (1, true));
    }

    #[test]
    fn a_batch_that_no_memory_can_hold_is_a_sentence() {
        let huge = items(&[[1, 1 << 40, 1], [1, 1, 1 << 41]]);
        let filled = padding(&[]).of(&huge).unwrap().unwrap();
        let said = IoCache::default().gather_filled(&huge, &filled).unwrap_err().to_string();
        assert!(said.contains("which can't be had"), "{said}");
        let huge = items(&[[1, 1 << 30, 1], [1, 1, 1 << 31]]);
        let filled = padding(&[]).of(&huge).unwrap().unwrap();
        let said = IoCache::default().gather_filled(&huge, &filled).unwrap_err().to_string();
        assert!(said.contains("which can't be had"), "{said}");
    }

    #[test]
    fn what_a_large_batch_was_gathered_in_is_not_kept() {
        let mut cache = IoCache::default();
        let words = |cache: &mut IoCache, bytes: usize| {
            cache.make_room(0, bytes, &[1, 1], 1).unwrap();
            cache.inputs[0].capacity()
        };
        let large = 8 * (KEPT_WORDS + 1);
        assert_eq!(words(&mut cache, large), KEPT_WORDS + 1);
        assert_eq!(words(&mut cache, large / 2), KEPT_WORDS + 1, "nearly as large ones use it");
        assert_eq!(words(&mut cache, 80), 10);
        assert_eq!(words(&mut cache, large / 2), KEPT_WORDS / 2 + 1);
        assert_eq!(words(&mut cache, 80), KEPT_WORDS / 2 + 1, "a usual size is kept");
    }
}
