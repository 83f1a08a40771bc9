//! One share of one GPU: where batches run, one at a time, and what they run with.

use crate::driver::{Address, Pinned, Refused};
use crate::fetch::{Fetcher, Piece, Waiting};
use crate::memory::{Memory, Region};
use crate::pool::Pool;
use crate::program::{Effort, Program};
use crate::shares::Partition;
use crate::sizes::{Layout, Side, Size, Sizes};
use crate::streams::{Event, Graph, Stream};
use crate::toolkit::Toolkit;
use base::Duration;
use engine::{Parts, TensorView};
use graph::Plan;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Addresses for the workspace and for the buffers of an executor: more than any model needs.
const MOST_WORKING_BYTES: usize = 64 << 30;
/// A long input that isn't in pinned memory is copied there in pieces of this size, so that the device fetches one while the next is copied.
const PIECE_BYTES: usize = 256 << 10;

/// See the module.
pub(crate) struct Executor {
    partition: Arc<Partition>,
    memory: Arc<Memory>,
    toolkit: Arc<Toolkit>,
    fetcher: Fetcher,
    /// Where inputs may lie that the device fetches right from there.
    pool: Option<Pool<Pinned>>,
    /// LOAD copies here.
    pub(crate) load: Stream,
    /// Recording and measuring happen here, so that what is served isn't held up by more than they take of the device.
    build: Mutex<Stream>,
    /// For all models of this executor, since one batch runs at a time. Only grows, when a model is prepared.
    workspace: Mutex<Region>,
    buffers: Mutex<Region>,
    workspace_at: Address,
    buffers_at: Address,
    bench: Mutex<Bench>,
}

/// What the batch that runs uses.
struct Bench {
    stream: Stream,
    began: Event,
    computed: Event,
    ended: Event,
    /// The inputs and outputs of a batch in host memory, laid out as on the device.
    pinned: Pinned,
    /// Of its inputs.
    waiting: Waiting,
    spare: Vec<u8>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these locks is whole after every statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Executor {
    /// An executor on a partition. What is compiled and measured is kept in the folder.
    pub(crate) fn new(
        partition: &Arc<Partition>,
        memory: &Arc<Memory>,
        pool: Option<&Pool<Pinned>>,
        cache: &Path,
    ) -> Result<Arc<Self>, String> {
        let refused = |refused: Refused| refused.to_string();
        partition.enter().map_err(refused)?;
        let toolkit = Arc::new(Toolkit::open(cache).map_err(|error| error.to_string())?);
        let fetcher = Fetcher::new(&toolkit).map_err(|error| error.to_string())?;
        let bench = Bench {
            stream: Stream::new(partition, true).map_err(refused)?,
            began: Event::new(partition).map_err(refused)?,
            computed: Event::new(partition).map_err(refused)?,
            ended: Event::new(partition).map_err(refused)?,
            pinned: Pinned::new(partition.gpu(), 0).map_err(refused)?,
            waiting: Waiting::default(),
            spare: Vec::new(),
        };
        let workspace = Region::new(memory, MOST_WORKING_BYTES)?;
        let buffers = Region::new(memory, MOST_WORKING_BYTES)?;
        Ok(Arc::new(Self {
            partition: Arc::clone(partition),
            memory: Arc::clone(memory),
            toolkit,
            fetcher,
            pool: pool.cloned(),
            load: Stream::new(partition, false).map_err(refused)?,
            build: Mutex::new(Stream::new(partition, false).map_err(refused)?),
            workspace_at: workspace.address(),
            buffers_at: buffers.address(),
            workspace: Mutex::new(workspace),
            buffers: Mutex::new(buffers),
            bench: Mutex::new(bench),
        }))
    }

    pub(crate) fn partition(&self) -> &Arc<Partition> {
        &self.partition
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The device and the libraries that measurements are valid for.
    pub(crate) fn facts(&self) -> String {
        format!("{}, {} multiprocessors of it", self.toolkit.facts().key(), self.partition.multiprocessors())
    }

    /// Chooses kernels for a plan.
    pub(crate) fn build(&self, plan: &Plan, effort: Effort) -> Result<Program, String> {
        let stream = lock(&self.build);
        self.partition.enter().map_err(|refused| refused.to_string())?;
        let built = Program::build(&self.toolkit, plan, effort, stream.raw()).map_err(|error| error.to_string())?;
        if let Err(error) = self.toolkit.save_choices() {
            tracing::warn!(
                "which kernels are fastest can't be kept, they are measured again at the next start: {error}"
            );
        }
        Ok(built)
    }

    /// Makes sure that there is so much workspace, and so much for inputs and outputs.
    pub(crate) fn make_room(&self, workspace: usize, buffers: usize) -> Result<(), String> {
        lock(&self.workspace).grow(workspace)?;
        lock(&self.buffers).grow(buffers)?;
        if lock(&self.bench).pinned.len() < buffers {
            let larger = Pinned::new(self.partition.gpu(), buffers).map_err(|refused| {
                format!("no {buffers} bytes of pinned host memory for inputs and outputs: {refused}")
            })?;
            // A batch that runs has the lock until nothing on the device uses the old one any more.
            let old = std::mem::replace(&mut lock(&self.bench).pinned, larger);
            drop(old);
        }
        Ok(())
    }

    /// Records a program with all its addresses: the weights' are those of the model, everything else is this executor's.
    pub(crate) fn record(&self, program: &Program, layout: &Layout, weights: Address) -> Result<Graph, String> {
        let at = |offsets: &[usize]| offsets.iter().map(|offset| self.buffers_at + *offset as u64).collect::<Vec<_>>();
        let (inputs, outputs) = (at(&layout.inputs), at(&layout.outputs));
        let stream = lock(&self.build);
        let enqueue = |stream: &Stream| {
            // SAFETY: `make_room` was called for this program, and regions never shrink or move; the weights' addresses
            // belong to the model, whose graphs are only launched while its weights are mapped there (P6).
            let enqueued = unsafe { program.enqueue(stream.raw(), weights, self.workspace_at, &inputs, &outputs) };
            enqueued.map_err(|error| Failure(error.to_string()))
        };
        let recorded = Graph::record(&stream, enqueue).map_err(|failure| failure.0)?;
        stream.wait().map_err(|refused| refused.to_string())?;
        Ok(recorded)
    }

    /// Runs one batch: inputs in, the graph, outputs out. Says what the graph took on the device.
    ///
    /// # Safety
    /// The graph was recorded by this executor for that size, and the weights that it names are on the device until this returns.
    pub(crate) unsafe fn run(
        &self,
        graph: &Graph,
        sizes: &Sizes,
        (own, prepared): (Size, Size),
        inputs: &[Parts<'_>],
        sink: &mut dyn FnMut(usize, TensorView<'_>),
    ) -> Result<Duration, String> {
        let mut bench = lock(&self.bench);
        let layout = sizes.layout(prepared);
        self.partition.enter().map_err(|refused| refused.to_string())?;
        // SAFETY: the caller's promise.
        let ran = unsafe { self.launch(&mut bench, graph, sizes, &layout, (own, prepared), inputs) };
        // Also after a failure: the pinned memory must be nobody's when the next batch comes.
        let waited = bench.stream.wait();
        ran.and(waited).map_err(|refused| refused.to_string())?;
        let took = bench.computed.micros_since(&bench.began).map_err(|refused| refused.to_string())?;
        let Bench { pinned, spare, .. } = &mut *bench;
        for (index, (side, offset)) in sizes.outputs.iter().zip(&layout.outputs).enumerate() {
            let data = side.take_out(&pinned[*offset..], prepared, own, spare);
            let shape: Vec<i64> = side.dims(own).iter().map(|dim| *dim as i64).collect();
            sink(index, TensorView { datatype: side.datatype, shape: &shape, data });
        }
        Ok(Duration::from_nanos((took * 1e3) as u64))
    }

    /// Puts copies and graph into the stream and waits for the end.
    ///
    /// # Safety
    /// As for `run`.
    unsafe fn launch(
        &self,
        bench: &mut Bench,
        graph: &Graph,
        sizes: &Sizes,
        layout: &Layout,
        (own, prepared): (Size, Size),
        inputs: &[Parts<'_>],
    ) -> Result<(), Refused> {
        // What a batch left that failed is nobody's any more.
        bench.waiting.clear();
        for ((side, input), &offset) in sizes.inputs.iter().zip(inputs).zip(&layout.inputs) {
            // SAFETY: the caller's promise.
            unsafe { self.stage(bench, side, input.pieces, offset, (own, prepared))? };
        }
        // SAFETY: as `stage` says.
        unsafe { self.fetcher.launch(&bench.stream, &mut bench.waiting)? };
        let Bench { stream, began, computed, ended, pinned, .. } = bench;
        began.record(stream)?;
        // SAFETY: the caller's promise.
        unsafe { graph.launch(stream)? };
        computed.record(stream)?;
        for (side, &offset) in sizes.outputs.iter().zip(&layout.outputs) {
            let bytes = side.bytes(side.part(prepared, own.batch));
            // SAFETY: as for the inputs; nobody reads it before the stream is waited for.
            unsafe { stream.copy_out(pinned, offset, self.buffers_at + offset as u64, bytes)? };
        }
        ended.record(stream)?;
        ended.wait()
    }
}

impl Executor {
    /// Has the pieces of an input fetched: from where they are if that is in the pool, otherwise by way of this executor's pinned memory, where the device
    /// fetches the first while later ones are still being copied. What waits in the end is for the caller to launch.
    ///
    /// # Safety
    /// As for `run`: the pieces stay as they are, and nobody else uses this executor's buffers, until the stream is waited for.
    unsafe fn stage(
        &self,
        bench: &mut Bench,
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
                side.lay_in(piece, rows, &mut bench.pinned[at..], prepared);
                // SAFETY: `make_room` made both buffers large enough for the whole layout.
                at += unsafe { self.enqueue(bench, None, at, rows.batch * row)? };
                continue;
            }
            if self.pool.as_ref().is_some_and(|pool| pool.contains(piece)) {
                // SAFETY: as above; the pool's buffers are whole words.
                at += unsafe { self.enqueue(bench, Some(piece), at, piece.len())? };
                continue;
            }
            for bytes in piece.chunks(PIECE_BYTES) {
                if bench.waiting.bytes() >= PIECE_BYTES {
                    // SAFETY: as above.
                    unsafe { self.fetcher.launch(&bench.stream, &mut bench.waiting)? };
                }
                bench.pinned[at..][..bytes.len()].copy_from_slice(bytes);
                // SAFETY: as above.
                at += unsafe { self.enqueue(bench, None, at, bytes.len())? };
            }
        }
        Ok(())
    }

    /// Puts bytes among those that wait: of a piece, or else those in pinned memory at the place where they belong on the device. Says how many.
    ///
    /// # Safety
    /// As for `stage`.
    unsafe fn enqueue(
        &self,
        bench: &mut Bench,
        piece: Option<&[u8]>,
        at: usize,
        bytes: usize,
    ) -> Result<usize, Refused> {
        if bench.waiting.is_full() {
            // SAFETY: the caller's promise.
            unsafe { self.fetcher.launch(&bench.stream, &mut bench.waiting)? };
        }
        let from = piece.map_or_else(|| bench.pinned[at..at + bytes].as_ptr(), <[u8]>::as_ptr);
        bench.waiting.push(Piece::new(from, self.buffers_at + at as u64, bytes));
        Ok(bytes)
    }
}

/// Why nothing was recorded.
struct Failure(String);

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Self(refused.to_string())
    }
}
