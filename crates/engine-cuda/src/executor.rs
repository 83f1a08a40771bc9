//! One share of one GPU: where batches run, one at a time, and what they run with.

use crate::driver::{Address, Pinned, Refused, call};
use crate::memory::{Memory, Region};
use crate::program::{Effort, Program};
use crate::shares::Partition;
use crate::sizes::{Layout, Side, Size, Sizes};
use crate::streams::{Event, Graph, Stream};
use crate::toolkit::{Kernel, Source, Toolkit};
use base::Duration;
use engine::{Parts, TensorView};
use graph::Plan;
use std::ffi::c_void;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Addresses for the workspace and for the buffers of an executor: more than any model needs.
const MOST_WORKING_BYTES: usize = 64 << 30;
/// A long input is copied to pinned memory in pieces of this size, so that the device fetches one while the next is copied.
const PIECE_BYTES: usize = 256 << 10;

/// Inputs are fetched by a kernel that reads host memory, not by the copy engine: that one finishes what a LOAD gave it before it turns to
/// another stream, and an input would wait for all of the weights. Read past the caches, since the host writes there again and again.
const FETCH: &str = r#"
extern "C" __global__ void fetch(const uint4* from, uint4* to, unsigned long long count) {
    unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        to[i] = __ldcv(from + i);
}
"#;
/// Threads in a block of it; each takes 16 bytes at a time.
const FETCH_THREADS: usize = 256;
/// Blocks of it at most: enough bytes on their way to fill the bus.
const FETCH_BLOCKS: usize = 64;

/// See the module.
pub(crate) struct Executor {
    partition: Arc<Partition>,
    memory: Arc<Memory>,
    toolkit: Arc<Toolkit>,
    fetch: Kernel,
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
    spare: Vec<u8>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these locks is whole after every statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Executor {
    /// An executor on a partition. What is compiled and measured is kept in the folder.
    pub(crate) fn new(partition: &Arc<Partition>, memory: &Arc<Memory>, cache: &Path) -> Result<Arc<Self>, String> {
        let refused = |refused: Refused| refused.to_string();
        partition.enter().map_err(refused)?;
        let toolkit = Arc::new(Toolkit::open(cache).map_err(|error| error.to_string())?);
        let source = Source { text: FETCH.to_owned(), defines: Vec::new(), entry: "fetch" };
        let fetch = toolkit.kernel(&source).map_err(|error| error.to_string())?;
        let bench = Bench {
            stream: Stream::new(partition, true).map_err(refused)?,
            began: Event::new(partition).map_err(refused)?,
            computed: Event::new(partition).map_err(refused)?,
            ended: Event::new(partition).map_err(refused)?,
            pinned: Pinned::new(partition.gpu(), 0).map_err(refused)?,
            spare: Vec::new(),
        };
        let workspace = Region::new(memory, MOST_WORKING_BYTES)?;
        let buffers = Region::new(memory, MOST_WORKING_BYTES)?;
        Ok(Arc::new(Self {
            partition: Arc::clone(partition),
            memory: Arc::clone(memory),
            toolkit,
            fetch,
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
        let Bench { stream, began, computed, ended, pinned, .. } = bench;
        for ((side, input), &offset) in sizes.inputs.iter().zip(inputs).zip(&layout.inputs) {
            // SAFETY: the caller's promise.
            unsafe { self.stage(stream, pinned, side, input.pieces, offset, (own, prepared))? };
        }
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
    /// Brings the pieces of an input together in pinned memory, where the device fetches the first while the later ones are still being copied.
    ///
    /// # Safety
    /// As for `run`: nobody else uses this executor's buffers until the stream is waited for.
    unsafe fn stage(
        &self,
        stream: &Stream,
        pinned: &mut Pinned,
        side: &Side,
        pieces: &[&[u8]],
        offset: usize,
        (own, prepared): (Size, Size),
    ) -> Result<(), Refused> {
        let filled_up = own.length != prepared.length;
        // Of one row, in the batch and in its piece.
        let [row, own_row] = [prepared, own].map(|size| side.bytes(side.part(size, 1)).max(1));
        let (mut filled, mut fetched) = (0, 0);
        for piece in pieces {
            if filled_up {
                let rows = side.part(own, piece.len() / own_row);
                side.lay_in(piece, rows, &mut pinned[offset + filled..], prepared);
                filled += rows.batch * row;
                continue;
            }
            for bytes in piece.chunks(PIECE_BYTES) {
                pinned[offset + filled..][..bytes.len()].copy_from_slice(bytes);
                filled += bytes.len();
                let until = filled / 16 * 16;
                if until - fetched >= PIECE_BYTES {
                    let (to, from) = (self.buffers_at + (offset + fetched) as u64, offset + fetched);
                    // SAFETY: `make_room` made both large enough; nobody writes there before the stream is waited for.
                    unsafe { self.fetch(stream, to, pinned.start().add(from), until - fetched)? };
                    fetched = until;
                }
            }
        }
        if fetched < filled {
            let (to, from) = (self.buffers_at + (offset + fetched) as u64, offset + fetched);
            // SAFETY: as above.
            unsafe { self.fetch(stream, to, pinned.start().add(from), filled - fetched)? };
        }
        Ok(())
    }

    /// Lets the device fetch bytes from pinned memory, up to 15 more than asked for, some time after this returns.
    ///
    /// # Safety
    /// Both sides have these bytes, at multiples of 16, and stay as they are until the stream has come past this.
    unsafe fn fetch(&self, stream: &Stream, to: Address, from: *const u8, bytes: usize) -> Result<(), Refused> {
        let count = bytes.div_ceil(16);
        let blocks = count.div_ceil(FETCH_THREADS).clamp(1, FETCH_BLOCKS) as u32;
        let (mut from, mut to, mut count) = (from as Address, to, count as u64);
        let mut parameters = [(&raw mut from).cast::<c_void>(), (&raw mut to).cast(), (&raw mut count).cast()];
        // SAFETY: the parameters are the kernel's, which the driver copies; pinned memory has one address for both sides; the rest is the
        // caller's promise.
        unsafe {
            call!(cuLaunchKernel(
                self.fetch.0.cast(),
                blocks,
                1,
                1,
                FETCH_THREADS as u32,
                1,
                1,
                0,
                stream.raw(),
                parameters.as_mut_ptr(),
                null_mut(),
            ))
        }
    }
}

/// Why nothing was recorded.
struct Failure(String);

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Self(refused.to_string())
    }
}
