//! A batch on its way through a share of a GPU: inputs in, the graph, outputs out, on three streams.
//!
//! ```text
//!  input stream    fetch 2 ────┐                fetch 3
//!  exec stream     graph 1 ────┴─> lay in, graph 2 ─────────>
//!  output stream   copy 0                copy 1
//! ```
//!
//! A graph's inputs and outputs have fixed addresses, which all batches of a share have in common. So inputs that
//! arrive while another batch runs go to a slot of their own first, and are laid in by a kernel, at the device's own
//! speed, right before the graph; large outputs leave by way of the slot, too. Where nothing runs, inputs go straight
//! to their addresses.

use crate::driver::{Address, DriverError, Pinned};
use crate::engine::SizedGraph;
use crate::executor::CudaExecutor;
use crate::fetch::{Fetcher, Piece, WaitingPieces};
use crate::memory::{DeviceMemory, LoadedWeights, Region};
use crate::shares::Partition;
use crate::sizes::{Form, Side, Size};
use crate::streams::{CudaStream, Event};
use base::Duration;
use engine::{DeviceTimes, EngineError, Input, Inputs, Sink, Staged, TensorView};
use std::sync::Arc;
use std::time::Instant;

/// A long input that isn't in pinned memory is copied there in pieces of this size, so that the device fetches one
/// while the next is copied.
const PIECE_BYTES: usize = 256 << 10;
/// Outputs up to this size are copied out right behind the graph: they take 5 us. Larger ones leave while the next
/// batch is computed.
const SMALL_OUTPUTS: usize = 256 << 10;

/// What a batch has for itself while it is under way.
pub(crate) struct BatchSlot {
    /// Its inputs and outputs in host memory, laid out as on the device.
    pinned: Pinned,
    /// The same on the device, while others use the graphs' own addresses.
    region: Region,
    /// Of its inputs.
    waiting: WaitingPieces,
    spare: Vec<u8>,
    /// Pieces of inputs that are fetched when the batch is launched.
    late: Vec<Piece>,
    set_out: Event,
    staged: Event,
    reached: Event,
    began: Event,
    computed: Event,
    ended: Event,
}

impl BatchSlot {
    /// A slot for batches whose inputs and outputs have at most so many bytes together.
    pub(crate) fn new(partition: &Arc<Partition>, memory: &Arc<DeviceMemory>, at_most: usize) -> Result<Self, String> {
        let event = || Event::new(partition).map_err(|refused| refused.to_string());
        Ok(Self {
            pinned: Pinned::new(partition.gpu(), 0).map_err(|refused| refused.to_string())?,
            region: Region::new(memory, at_most)?,
            waiting: WaitingPieces::default(),
            spare: Vec::new(),
            late: Vec::new(),
            set_out: event()?,
            staged: event()?,
            reached: event()?,
            began: event()?,
            computed: event()?,
            ended: event()?,
        })
    }

    /// How many bytes fit into it.
    pub(crate) fn bytes(&self) -> usize {
        self.pinned.len().min(self.region.bytes())
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
pub(crate) struct CudaBatch {
    executor: Arc<CudaExecutor>,
    graph: Arc<SizedGraph>,
    /// There until it is finished: what the graph reads stays mapped.
    weights: Option<Arc<LoadedWeights>>,
    /// There until its outputs are handed out.
    slot: Option<BatchSlot>,
    own: Size,
    way: Way,
    /// It is among the executor's batches that aren't computed yet.
    ahead: bool,
    #[allow(dead_code, reason = "held while the device reads them")]
    inputs: Vec<Input>,
}

impl CudaBatch {
    /// Lets the inputs, each in pieces, set out.
    ///
    /// # Safety
    /// The pieces stay as they are until this is finished or dropped; they are of that size, which fits into the
    /// graph's; the graph is the executor's, and of the model of these weights.
    pub(crate) unsafe fn stage(
        executor: &Arc<CudaExecutor>,
        weights: Arc<LoadedWeights>,
        (graph, own): (Arc<SizedGraph>, Size),
        pieces: &[Vec<&[u8]>],
    ) -> Result<Self, String> {
        let slot = executor.take_slot();
        let way = match executor.come() {
            true => Way::Direct,
            false if executor.memory().is_loading() => Way::Late,
            false => Way::Overlapping,
        };
        let mut batch = Self {
            executor: Arc::clone(executor),
            graph,
            weights: Some(weights),
            slot: Some(slot),
            own,
            way,
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

    unsafe fn set_out(&mut self, pieces: &[Vec<&[u8]>]) -> Result<(), DriverError> {
        let Self { executor, graph, own, way, .. } = self;
        let Form { size: prepared, inputs, layout, .. } = &*graph.form;
        executor.partition().enter()?;
        let slot = self.slot.as_mut().expect("it is there until the batch is finished");
        let (stream, base) = match way {
            Way::Direct | Way::Late | Way::Launched => (&executor.exec, executor.buffers_at),
            Way::Overlapping => (&executor.input, slot.region.address()),
        };
        let mut way = Carrier { executor, slot, stream, base, way: *way };
        way.slot.waiting.clear();
        way.slot.late.clear();
        if way.way != Way::Late {
            way.slot.set_out.record(stream)?;
        }
        for ((side, pieces), &offset) in inputs.iter().zip(pieces).zip(&layout.inputs) {
            // SAFETY: the caller's promise; nobody else uses the slot, and the graphs' addresses are used in the order
            // of their stream.
            unsafe { way.bring(side, pieces, offset, (*own, *prepared))? };
        }
        // SAFETY: as above.
        unsafe { way.go()? };
        if way.way != Way::Late {
            way.slot.staged.record(stream)?;
        }
        Ok(())
    }

    /// Lets the device compute it, and its outputs come back.
    fn launch(&mut self) -> Result<(), DriverError> {
        self.executor.partition().enter()?;
        self.lay_in()?;
        let slot = self.slot.as_ref().expect("it is there until the batch is finished");
        let exec = &self.executor.exec;
        slot.began.record(exec)?;
        // SAFETY: the graph was recorded by this executor for that size, and the weights that it names are held.
        unsafe { self.graph.graph.launch(exec)? };
        self.release();
        self.send_back()
    }

    /// Brings the inputs to where the graph finds them, if they aren't there.
    fn lay_in(&mut self) -> Result<(), DriverError> {
        let Self { executor, graph, own, way, .. } = self;
        let Form { size: prepared, inputs, layout, .. } = &*graph.form;
        let slot = self.slot.as_mut().expect("it is there until the batch is finished");
        let CudaExecutor { exec, buffers_at, fetcher, .. } = &**executor;
        if *way != Way::Direct {
            executor.wait_for_release();
        }
        slot.reached.record(exec)?;
        match way {
            Way::Direct | Way::Launched => Ok(()),
            Way::Late => {
                slot.set_out.record(exec)?;
                for piece in slot.late.drain(..) {
                    if slot.waiting.is_full() {
                        // SAFETY: the pieces are held; the graphs' addresses are used in the order of their stream.
                        unsafe { fetcher.launch(exec, &mut slot.waiting)? };
                    }
                    slot.waiting.push(piece);
                }
                // SAFETY: as above.
                unsafe { fetcher.launch(exec, &mut slot.waiting)? };
                slot.staged.record(exec)
            }
            Way::Overlapping => {
                exec.wait_for(&slot.staged)?;
                let inputs = inputs.iter().zip(&layout.inputs);
                let inputs = inputs.map(|(side, &offset)| (offset, side.bytes(side.part(*prepared, own.batch))));
                // SAFETY: both are this device's, as large as the layout; nobody writes the slot any more, and the
                // other is used in the order of its stream.
                unsafe { shift(fetcher, exec, &mut slot.waiting, (slot.region.address(), *buffers_at), inputs) }
            }
        }
    }

    /// Lets the outputs come to host memory.
    fn send_back(&mut self) -> Result<(), DriverError> {
        let Self { executor, graph, own, .. } = self;
        let Form { size: prepared, outputs, layout, .. } = &*graph.form;
        let slot = self.slot.as_mut().expect("it is there until the batch is finished");
        let CudaExecutor { exec, output, buffers_at, fetcher, .. } = &**executor;
        let outputs = outputs.iter().zip(&layout.outputs);
        let outputs = outputs.map(|(side, &offset)| (offset, side.bytes(side.part(*prepared, own.batch))));
        let small = outputs.clone().map(|(_, bytes)| bytes).sum::<usize>() <= SMALL_OUTPUTS;
        let (stream, base) = if small { (exec, *buffers_at) } else { (output, slot.region.address()) };
        if !small {
            let places = (*buffers_at, slot.region.address());
            // SAFETY: as for the inputs.
            unsafe { shift(fetcher, exec, &mut slot.waiting, places, outputs.clone())? };
        }
        slot.computed.record(exec)?;
        if !small {
            output.wait_for(&slot.computed)?;
        }
        for (offset, bytes) in outputs {
            // SAFETY: the slot is as large as the layout; nobody reads it before `ended`.
            unsafe { stream.copy_out(&slot.pinned, offset, base + offset as u64, bytes)? };
        }
        slot.ended.record(stream)
    }

    /// Waits until its outputs are there.
    fn wait(&self) -> Result<(), DriverError> {
        self.slot.as_ref().map_or(Ok(()), |slot| slot.ended.wait())
    }

    /// Hands out its outputs, which are there.
    fn collect(&mut self, sink: &mut Sink<'_>) -> Result<DeviceTimes, DriverError> {
        self.is_past();
        let slot = self.slot.as_mut().expect("a batch is finished once");
        let span = |until: &Event, since: &Event| {
            until.micros_since(since).map(|micros| Duration::from_nanos((micros.max(0.0) * 1e3) as u64))
        };
        let computing = Some(span(&slot.computed, &slot.began)?);
        let (inputs, outputs) = (span(&slot.staged, &slot.set_out)?, span(&slot.ended, &slot.computed)?);
        let early = match self.way {
            Way::Overlapping => span(&slot.reached, &slot.set_out)?.min(inputs),
            Way::Direct | Way::Late | Way::Launched => Duration::ZERO,
        };
        let BatchSlot { pinned, spare, .. } = slot;
        let Form { size: prepared, outputs: sides, layout, .. } = &*self.graph.form;
        for (index, (side, offset)) in sides.iter().zip(&layout.outputs).enumerate() {
            let data = side.take_out(&pinned[*offset..], *prepared, self.own, spare);
            let shape: Vec<i64> = side.dims(self.own).iter().map(|dim| *dim as i64).collect();
            sink(index, TensorView { datatype: side.datatype, shape: &shape, data });
        }
        self.weights = None;
        self.executor.return_slot(self.slot.take());
        Ok(DeviceTimes { computing, inputs, outputs, early })
    }

    /// Its inputs needn't stay any more where graphs find them.
    fn release(&mut self) {
        if self.way == Way::Direct {
            self.way = Way::Launched;
            self.executor.release();
        }
    }

    /// It is computed, or will never be: the next one needn't wait for it.
    fn is_past(&mut self) {
        if std::mem::take(&mut self.ahead) {
            self.executor.go();
        }
    }
}

impl Drop for CudaBatch {
    fn drop(&mut self) {
        self.release();
        self.is_past();
        if let Some(slot) = self.slot.take() {
            // It was broken off: what was enqueued still reads and writes the slot, the inputs and the weights.
            let CudaExecutor { input, exec, output, .. } = &*self.executor;
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

impl Staged for CudaBatch {
    fn blocks(&self) -> bool {
        false
    }

    fn start(&mut self, _inputs: &mut dyn Inputs) -> Result<(), EngineError> {
        self.launch().map_err(failed)
    }

    fn is_computed(&mut self) -> Result<bool, EngineError> {
        let computed = self.slot.as_ref().map_or(Ok(true), |slot| slot.computed.is_past()).map_err(failed)?;
        if computed {
            self.is_past();
        }
        Ok(computed)
    }

    fn due_at(&self) -> Option<Instant> {
        None
    }

    fn has_arrived(&mut self) -> Result<bool, EngineError> {
        self.slot.as_ref().map_or(Ok(true), |slot| slot.ended.is_past()).map_err(failed)
    }

    fn finish(&mut self, sink: &mut Sink<'_>) -> Result<DeviceTimes, EngineError> {
        self.wait().and_then(|()| self.collect(sink)).map_err(failed)
    }
}

fn failed(refused: DriverError) -> EngineError {
    EngineError::Execute(refused.to_string())
}

/// Moves bytes at these offsets of one buffer on the device to the same offsets of another.
///
/// # Safety
/// Both are as large; nobody writes the first or touches the second until the stream is past this.
unsafe fn shift(
    fetcher: &Fetcher,
    stream: &CudaStream,
    waiting: &mut WaitingPieces,
    (from, to): (Address, Address),
    pieces: impl Iterator<Item = (usize, usize)>,
) -> Result<(), DriverError> {
    for (offset, bytes) in pieces {
        if waiting.is_full() {
            // SAFETY: the caller's promise.
            unsafe { fetcher.launch_near(stream, waiting)? };
        }
        let place = |base: Address| base + offset as u64;
        waiting.push(Piece::new(std::ptr::without_provenance(place(from) as usize), place(to), bytes));
    }
    // SAFETY: the caller's promise.
    unsafe { fetcher.launch_near(stream, waiting) }
}

/// When and where to the inputs of a batch go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// At once, to the graphs' own addresses: nothing else is under way.
    Direct,
    /// At once, to the slot, by the copy engine, while a graph runs. Not by a kernel: even one on a few multiprocessors
    /// doubles the time of a kernel whose blocks fill the device exactly once.
    Overlapping,
    /// When the batch before is computed, to the graphs' own addresses: weights are being copied, and the copy engine
    /// turns to nothing else before they are there.
    Late,
    /// As `Direct`; its graph is launched.
    Launched,
}

/// Brings the inputs of a batch to the device.
struct Carrier<'a> {
    executor: &'a CudaExecutor,
    slot: &'a mut BatchSlot,
    stream: &'a CudaStream,
    /// Where the layout begins that they go to.
    base: Address,
    way: Way,
}

impl Carrier<'_> {
    /// Lets the pieces of an input be fetched: from where they are if that is in the pool, otherwise by way of the
    /// slot's pinned memory, where the device fetches the first while later ones are still being copied. What waits in
    /// the end is for the caller to let go.
    ///
    /// # Safety
    /// The pieces stay as they are, and nobody else uses the slot, until the stream is past this; the layout fits into
    /// both buffers.
    unsafe fn bring(
        &mut self,
        side: &Side,
        pieces: &[&[u8]],
        offset: usize,
        (own, prepared): (Size, Size),
    ) -> Result<(), DriverError> {
        let filled_up = own.open != prepared.open;
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

    /// Puts bytes among those that wait: of a piece, or else those in pinned memory at the place where they belong on
    /// the device. Says how many.
    ///
    /// # Safety
    /// As for `bring`.
    unsafe fn enqueue(&mut self, piece: Option<&[u8]>, at: usize, bytes: usize) -> Result<usize, DriverError> {
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
    unsafe fn go(&mut self) -> Result<(), DriverError> {
        let Self { executor: CudaExecutor { fetcher, .. }, slot, stream, .. } = self;
        match self.way {
            // SAFETY: the caller's promise.
            Way::Direct | Way::Launched => unsafe { fetcher.launch(stream, &mut slot.waiting) },
            Way::Overlapping => slot.waiting.drain().try_for_each(|piece| {
                // SAFETY: the caller's promise.
                unsafe { stream.copy_in(piece.to(), piece.from(), piece.bytes()) }
            }),
            Way::Late => {
                slot.late.extend(slot.waiting.drain());
                Ok(())
            }
        }
    }
}
