//! A batch on its way through a share of a GPU: inputs in, the graph, outputs out, on three streams.
//!
//! ```text
//!  input stream    fetch 2 ────┐                fetch 3
//!  exec stream     graph 1 ────┴─> lay in, graph 2 ─────────>
//!  output stream   copy 0                copy 1
//! ```
//!
//! A graph's inputs and outputs have fixed addresses, which all batches of a share have in common. So inputs that arrive while another batch runs go to a slot of
//! their own first, and are laid in by a kernel, at the device's own speed, right before the graph; large outputs leave by way of the slot, too. Where
//! nothing runs, inputs go straight to their addresses.

use crate::driver::{Address, Pinned, Refused};
use crate::engine::OnDevice;
use crate::executor::Executor;
use crate::fetch::{Piece, Waiting};
use crate::memory::{Memory, Region, Weights};
use crate::model::Model;
use crate::shares::Partition;
use crate::sizes::{Layout, Side, Size};
use crate::streams::{Event, Stream};
use base::Duration;
use engine::{EngineError, Input, Moved, Staged, TensorView};
use std::sync::Arc;

/// A long input that isn't in pinned memory is copied there in pieces of this size, so that the device fetches one while the next is copied.
const PIECE_BYTES: usize = 256 << 10;
/// Outputs up to this size are copied out right behind the graph: they take 5 us. Larger ones leave beside the next batch.
const SMALL_OUTPUTS: usize = 256 << 10;
/// Addresses of one slot: more than any batch needs.
const MOST_BYTES: usize = 64 << 30;

/// What a batch has for itself while it is under way.
pub(crate) struct Slot {
    /// Its inputs and outputs in host memory, laid out as on the device.
    pinned: Pinned,
    /// The same on the device, while others use the graphs' own addresses.
    region: Region,
    /// Of its inputs.
    waiting: Waiting,
    spare: Vec<u8>,
    set_out: Event,
    staged: Event,
    began: Event,
    computed: Event,
    ended: Event,
}

impl Slot {
    pub(crate) fn new(partition: &Arc<Partition>, memory: &Arc<Memory>) -> Result<Self, String> {
        let event = || Event::new(partition).map_err(|refused| refused.to_string());
        Ok(Self {
            pinned: Pinned::new(partition.gpu(), 0).map_err(|refused| refused.to_string())?,
            region: Region::new(memory, MOST_BYTES)?,
            waiting: Waiting::default(),
            spare: Vec::new(),
            set_out: event()?,
            staged: event()?,
            began: event()?,
            computed: event()?,
            ended: event()?,
        })
    }

    /// Makes sure that so many bytes fit into it. Nothing on the device uses it.
    pub(crate) fn grow(&mut self, partition: &Partition, bytes: usize) -> Result<(), String> {
        self.region.grow(bytes)?;
        if self.pinned.len() < bytes {
            self.pinned = Pinned::new(partition.gpu(), bytes).map_err(|refused| {
                format!("no {bytes} bytes of pinned host memory for inputs and outputs: {refused}")
            })?;
        }
        Ok(())
    }
}

/// See the module. Dropping it waits until the device is done with it.
pub(crate) struct Batch {
    executor: Arc<Executor>,
    model: Arc<Model>,
    on: Arc<OnDevice>,
    /// There until it is finished: what the graph reads stays mapped.
    weights: Option<Arc<Weights>>,
    /// There until its outputs are handed out.
    slot: Option<Slot>,
    /// Which graph.
    which: usize,
    own: Size,
    prepared: Size,
    layout: Layout,
    /// Its inputs went straight to their addresses: nothing else was under way.
    direct: bool,
    /// It is among the executor's batches that aren't computed yet.
    ahead: bool,
    #[allow(dead_code, reason = "held while the device reads them")]
    inputs: Vec<Input>,
}

impl Batch {
    /// Lets the inputs, each in pieces, set out.
    ///
    /// # Safety
    /// The pieces stay as they are until this is finished or dropped; the sizes are those of the model's graph of that number.
    pub(crate) unsafe fn stage(
        (executor, model, on): (&Arc<Executor>, &Arc<Model>, &Arc<OnDevice>),
        weights: Arc<Weights>,
        (which, own): (usize, Size),
        pieces: &[&[&[u8]]],
    ) -> Result<Self, String> {
        executor.partition().enter().map_err(|refused| refused.to_string())?;
        let slot = executor.take_slot()?;
        let prepared = model.sizes.prepared[which];
        let mut batch = Self {
            executor: Arc::clone(executor),
            model: Arc::clone(model),
            on: Arc::clone(on),
            weights: Some(weights),
            slot: Some(slot),
            which,
            own,
            prepared,
            layout: model.sizes.layout(prepared),
            direct: executor.come(),
            ahead: true,
            inputs: Vec::new(),
        };
        // SAFETY: the caller's promise. After a failure, dropping the batch waits for what is under way.
        unsafe { batch.set_out(pieces).map_err(|refused| refused.to_string())? };
        Ok(batch)
    }

    /// Keeps the inputs for as long as they may be read.
    pub(crate) fn hold(&mut self, inputs: Vec<Input>) {
        self.inputs = inputs;
    }

    unsafe fn set_out(&mut self, pieces: &[&[&[u8]]]) -> Result<(), Refused> {
        let Self { executor, model, own, prepared, layout, direct, .. } = self;
        let slot = self.slot.as_mut().expect("it is there until the batch is finished");
        let (stream, base) =
            if *direct { (&executor.exec, executor.buffers_at) } else { (&executor.input, slot.region.address()) };
        let mut way = Way { executor, slot, stream, base };
        way.slot.waiting.clear();
        way.slot.set_out.record(stream)?;
        for ((side, pieces), &offset) in model.sizes.inputs.iter().zip(pieces).zip(&layout.inputs) {
            // SAFETY: the caller's promise; nobody else uses the slot, and the graphs' addresses are used in the order of their stream.
            unsafe { way.bring(side, pieces, offset, (*own, *prepared))? };
        }
        // SAFETY: as above.
        unsafe { way.go()? };
        way.slot.staged.record(stream)
    }

    /// Lets the device compute it, and its outputs come back.
    pub(crate) fn launch(&mut self) -> Result<(), Refused> {
        let Self { executor, model, own, prepared, layout, .. } = self;
        let slot = self.slot.as_mut().expect("it is there until the batch is finished");
        let Executor { exec, output, buffers_at, fetcher, .. } = &**executor;
        executor.partition().enter()?;
        let region = slot.region.address();
        if !self.direct {
            exec.wait_for(&slot.staged)?;
            for (side, &offset) in model.sizes.inputs.iter().zip(&layout.inputs) {
                slot.waiting.push(moved(region, *buffers_at, offset, side.bytes(side.part(*prepared, own.batch))));
                if slot.waiting.is_full() {
                    // SAFETY: both are this device's, as large as the layout; nobody writes the slot any more, and the other is used in the order of its stream.
                    unsafe { fetcher.launch(exec, &mut slot.waiting)? };
                }
            }
            // SAFETY: as above.
            unsafe { fetcher.launch(exec, &mut slot.waiting)? };
        }
        slot.began.record(exec)?;
        // SAFETY: the graph was recorded by this executor for that size, and the weights that it names are held.
        unsafe { self.on.graphs[self.which].launch(exec)? };
        let outputs = model.sizes.outputs.iter().zip(&layout.outputs);
        let outputs = outputs.map(|(side, &offset)| (offset, side.bytes(side.part(*prepared, own.batch))));
        if outputs.clone().map(|(_, bytes)| bytes).sum::<usize>() <= SMALL_OUTPUTS {
            slot.computed.record(exec)?;
            for (offset, bytes) in outputs {
                // SAFETY: the slot is as large as the layout; nobody reads it before `ended`.
                unsafe { exec.copy_out(&slot.pinned, offset, *buffers_at + offset as u64, bytes)? };
            }
            return slot.ended.record(exec);
        }
        for (offset, bytes) in outputs.clone() {
            slot.waiting.push(moved(*buffers_at, region, offset, bytes));
            if slot.waiting.is_full() {
                // SAFETY: as for the inputs.
                unsafe { fetcher.launch(exec, &mut slot.waiting)? };
            }
        }
        // SAFETY: as for the inputs.
        unsafe { fetcher.launch(exec, &mut slot.waiting)? };
        slot.computed.record(exec)?;
        output.wait_for(&slot.computed)?;
        for (offset, bytes) in outputs {
            // SAFETY: as above.
            unsafe { output.copy_out(&slot.pinned, offset, region + offset as u64, bytes)? };
        }
        slot.ended.record(output)
    }

    /// Waits until its outputs are there.
    pub(crate) fn wait(&self) -> Result<(), Refused> {
        self.slot.as_ref().map_or(Ok(()), |slot| slot.ended.wait())
    }

    /// Hands out its outputs, which are there. What the graph took, and what its transfers took.
    pub(crate) fn collect(
        &mut self,
        sink: &mut dyn FnMut(usize, TensorView<'_>),
    ) -> Result<(Duration, Moved), Refused> {
        self.is_past();
        let slot = self.slot.as_mut().expect("a batch is finished once");
        let span = |until: &Event, since: &Event| {
            until.micros_since(since).map(|micros| Duration::from_nanos((micros.max(0.0) * 1e3) as u64))
        };
        let took = span(&slot.computed, &slot.began)?;
        let moved =
            Moved { inputs: span(&slot.staged, &slot.set_out)?, outputs: span(&slot.ended, &slot.computed)? };
        let Slot { pinned, spare, .. } = slot;
        for (index, (side, offset)) in self.model.sizes.outputs.iter().zip(&self.layout.outputs).enumerate() {
            let data = side.take_out(&pinned[*offset..], self.prepared, self.own, spare);
            let shape: Vec<i64> = side.dims(self.own).iter().map(|dim| *dim as i64).collect();
            sink(index, TensorView { datatype: side.datatype, shape: &shape, data });
        }
        self.weights = None;
        self.executor.return_slot(self.slot.take());
        Ok((took, moved))
    }

    /// It is computed, or will never be: the next one needn't wait for it.
    fn is_past(&mut self) {
        if std::mem::take(&mut self.ahead) {
            self.executor.go();
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.is_past();
        if let Some(slot) = self.slot.take() {
            // It was broken off: what was enqueued still reads and writes the slot, the inputs and the weights.
            let Executor { input, exec, output, .. } = &*self.executor;
            let _ = self.executor.partition().enter();
            for stream in [input, exec, output] {
                if let Err(refused) = stream.wait() {
                    tracing::error!("a batch could not be waited for: {refused}");
                }
            }
            self.executor.return_slot(Some(slot));
        }
    }
}

impl Staged for Batch {
    fn start(&mut self) -> Result<(), EngineError> {
        self.launch().map_err(failed)
    }

    fn is_computed(&mut self) -> Result<bool, EngineError> {
        let computed = self.slot.as_ref().map_or(Ok(true), |slot| slot.computed.is_past()).map_err(failed)?;
        if computed {
            self.is_past();
        }
        Ok(computed)
    }

    fn has_arrived(&mut self) -> Result<bool, EngineError> {
        self.slot.as_ref().map_or(Ok(true), |slot| slot.ended.is_past()).map_err(failed)
    }

    fn finish(&mut self, sink: &mut dyn FnMut(usize, TensorView<'_>)) -> Result<Moved, EngineError> {
        self.wait().map_err(failed)?;
        self.collect(sink).map(|(_, moved)| moved).map_err(failed)
    }
}

fn failed(refused: Refused) -> EngineError {
    EngineError::Execute(refused.to_string())
}

/// Bytes at an offset of one buffer on the device that go to the same offset of another.
fn moved(from: Address, to: Address, offset: usize, bytes: usize) -> Piece {
    Piece::new(std::ptr::without_provenance((from + offset as u64) as usize), to + offset as u64, bytes)
}

/// How the inputs of a batch come to the device.
struct Way<'a> {
    executor: &'a Executor,
    slot: &'a mut Slot,
    stream: &'a Stream,
    /// Where the layout begins that they go to.
    base: Address,
}

impl Way<'_> {
    /// Lets the pieces of an input be fetched: from where they are if that is in the pool, otherwise by way of the slot's pinned memory, where the device
    /// fetches the first while later ones are still being copied. What waits in the end is for the caller to let go.
    ///
    /// # Safety
    /// The pieces stay as they are, and nobody else uses the slot, until the stream is past this; the layout fits into both buffers.
    unsafe fn bring(
        &mut self,
        side: &Side,
        pieces: &[&[u8]],
        offset: usize,
        (own, prepared): (Size, Size),
    ) -> Result<(), Refused> {
        let filled_up = own.length != prepared.length;
        // Of one row, in the batch and in its piece.
        let [row, own_row] = [prepared, own].map(|size| side.bytes(side.part(size, 1)).max(1));
        // In both buffers, which are laid out alike.
        let mut at = offset;
        for piece in pieces {
            if filled_up {
                let rows = side.part(own, piece.len() / own_row);
                side.lay_in(piece, rows, &mut self.slot.pinned[at..], prepared);
                // SAFETY: the caller's promise.
                at += unsafe { self.enqueue(None, at, rows.batch * row)? };
                continue;
            }
            if self.executor.pool.as_ref().is_some_and(|pool| pool.contains(piece)) {
                // SAFETY: the caller's promise; the pool's buffers are whole words.
                at += unsafe { self.enqueue(Some(piece), at, piece.len())? };
                continue;
            }
            for bytes in piece.chunks(PIECE_BYTES) {
                if self.slot.waiting.bytes() >= PIECE_BYTES {
                    // SAFETY: the caller's promise.
                    unsafe { self.go()? };
                }
                self.slot.pinned[at..][..bytes.len()].copy_from_slice(bytes);
                // SAFETY: the caller's promise.
                at += unsafe { self.enqueue(None, at, bytes.len())? };
            }
        }
        Ok(())
    }

    /// Puts bytes among those that wait: of a piece, or else those in pinned memory at the place where they belong on the device. Says how many.
    ///
    /// # Safety
    /// As for `bring`.
    unsafe fn enqueue(&mut self, piece: Option<&[u8]>, at: usize, bytes: usize) -> Result<usize, Refused> {
        if self.slot.waiting.is_full() {
            // SAFETY: the caller's promise.
            unsafe { self.go()? };
        }
        let from = piece.map_or_else(|| self.slot.pinned[at..at + bytes].as_ptr(), <[u8]>::as_ptr);
        self.slot.waiting.push(Piece::new(from, self.base + at as u64, bytes));
        Ok(bytes)
    }

    /// Lets the device fetch what waits.
    ///
    /// # Safety
    /// As for `bring`.
    unsafe fn go(&mut self) -> Result<(), Refused> {
        // SAFETY: the caller's promise.
        unsafe { self.executor.fetcher.launch(self.stream, &mut self.slot.waiting) }
    }
}
