//! One share of one GPU: where batches run, one at a time, and what they run with.

use crate::batch::BatchSlot;
use crate::driver::{Address, DriverError, Pinned};
use crate::fetch::Fetcher;
use crate::memory::{DeviceMemory, Region};
use crate::pool::Pool;
use crate::program::{Effort, Program};
use crate::quiet::{Others, QUIET, SeenBatches};
use crate::shares::Partition;
use crate::sizes::BufferLayout;
use crate::streams::{CudaGraph, CudaStream, Turn};
use crate::toolkit::{CudaError, Toolkit};
use graph::Plan;
use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Addresses of an executor, as parts of the GPU's memory: for the workspace, and for each set of inputs and outputs.
/// Each share of a GPU takes as many, in every division, and models need the rest.
const WORKSPACE_PART: u64 = 2;
const BUFFERS_PART: u64 = 16;
/// Batches under way at a time: one whose inputs come, one that is computed, one whose outputs leave.
const SLOTS: usize = 3;

/// See the module.
pub(crate) struct CudaExecutor {
    // Before the streams, which hold the context that its events belong to.
    /// Those that no batch has.
    slots: Mutex<Vec<BatchSlot>>,
    returned: Condvar,
    partition: Arc<Partition>,
    memory: Arc<DeviceMemory>,
    toolkit: Arc<Toolkit>,
    pub(crate) fetcher: Fetcher,
    /// Where inputs may lie that the device fetches right from there.
    pub(crate) pool: Option<Pool<Pinned>>,
    /// Graphs run here, one after another; whoever uses their inputs and outputs does it in this order.
    pub(crate) exec: CudaStream,
    /// Inputs come here while a graph runs.
    pub(crate) input: CudaStream,
    /// Large outputs leave here while the next graph runs.
    pub(crate) output: CudaStream,
    /// LOAD copies here.
    pub(crate) load: CudaStream,
    /// Recording happens here, so that what is served isn't held up by more than it takes of the device.
    build: Mutex<CudaStream>,
    /// Measuring happens here: who records shouldn't wait for it.
    measure: Mutex<CudaStream>,
    /// For all models of this executor, since one batch runs at a time. Only grows, when a model is prepared.
    workspace: Mutex<Region>,
    buffers: Mutex<Region>,
    workspace_at: Address,
    pub(crate) buffers_at: Address,
    /// Batches that are under way and not computed yet; and, from bit 32 on, how many have come so far.
    ahead: AtomicU64,
    /// The inputs of a batch lie at the graphs' own addresses, and its graph isn't launched yet.
    claimed: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these locks is whole after every statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CudaExecutor {
    /// An executor on a partition. What is compiled and measured is kept in the folder.
    pub(crate) fn new(
        partition: &Arc<Partition>,
        memory: &Arc<DeviceMemory>,
        pool: Option<&Pool<Pinned>>,
        cache: &Path,
    ) -> Result<Arc<Self>, String> {
        let refused = |refused: DriverError| refused.to_string();
        partition.enter().map_err(refused)?;
        let toolkit = Arc::new(Toolkit::open(cache).map_err(|error| error.to_string())?);
        let fetcher = Fetcher::new(&toolkit).map_err(|error| error.to_string())?;
        let stream = |turn| CudaStream::new(partition, turn).map_err(refused);
        let part = |of: u64| (partition.gpu().memory_bytes / of) as usize;
        let workspace = Region::new(memory, part(WORKSPACE_PART))?;
        let buffers = Region::new(memory, part(BUFFERS_PART))?;
        let slot = || BatchSlot::new(partition, memory, part(BUFFERS_PART));
        Ok(Arc::new(Self {
            partition: Arc::clone(partition),
            memory: Arc::clone(memory),
            toolkit,
            fetcher,
            pool: pool.cloned(),
            exec: stream(Turn::Second)?,
            input: stream(Turn::First)?,
            output: stream(Turn::Last)?,
            load: stream(Turn::Last)?,
            build: Mutex::new(stream(Turn::Last)?),
            measure: Mutex::new(stream(Turn::Last)?),
            workspace_at: workspace.address(),
            buffers_at: buffers.address(),
            workspace: Mutex::new(workspace),
            buffers: Mutex::new(buffers),
            slots: Mutex::new((0..SLOTS).map(|_| slot()).collect::<Result<_, _>>()?),
            returned: Condvar::new(),
            ahead: AtomicU64::new(0),
            claimed: AtomicBool::new(false),
        }))
    }

    pub(crate) fn partition(&self) -> &Arc<Partition> {
        &self.partition
    }

    pub(crate) fn memory(&self) -> &Arc<DeviceMemory> {
        &self.memory
    }

    /// The device and the libraries that measurements are valid for.
    pub(crate) fn facts(&self) -> String {
        format!("{}, {} multiprocessors of it", self.toolkit.facts().key(), self.partition.multiprocessors())
    }

    /// Compiles what is known of the kernels of these plans.
    pub(crate) fn compile_ahead(&self, plans: &[&Plan]) -> Result<(), String> {
        Program::compile_ahead(&self.toolkit, plans).map_err(|error| error.to_string())
    }

    /// Chooses kernels for a plan. What is measured is measured while no batch is under way, until it is given up.
    pub(crate) fn build(&self, plan: &Plan, effort: Effort, given_up: &AtomicBool) -> Result<Program, String> {
        let stream = lock(if effort.measures { &self.measure } else { &self.build });
        self.partition.enter().map_err(|refused| refused.to_string())?;
        let batches = Batches { ahead: &self.ahead, given_up, seen: Cell::default() };
        let built = Program::build_beside(&self.toolkit, plan, effort, stream.raw(), &batches);
        let built = built.map_err(|error| error.to_string())?;
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
        let mut slots = lock(&self.slots);
        loop {
            // One at a time, and those that a batch has when they come back: batches go on with the others.
            match slots.iter().position(|slot| slot.bytes() < buffers) {
                Some(small) => {
                    let mut slot = slots.swap_remove(small);
                    drop(slots);
                    let grown = slot.grow(&self.partition, buffers);
                    self.return_slot(Some(slot));
                    grown?;
                    slots = lock(&self.slots);
                }
                None if slots.len() == SLOTS => return Ok(()),
                None => slots = self.returned.wait(slots).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// A slot for a batch. Waits where all are taken.
    pub(crate) fn take_slot(&self) -> BatchSlot {
        let mut slots = lock(&self.slots);
        loop {
            match slots.pop() {
                Some(slot) => return slot,
                None => slots = self.returned.wait(slots).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Nothing on the device uses it any more.
    pub(crate) fn return_slot(&self, slot: Option<BatchSlot>) {
        lock(&self.slots).extend(slot);
        self.returned.notify_all();
    }

    /// A batch comes. Whether it is the only one that isn't computed: then the graphs' own addresses are its, until it
    /// is launched.
    pub(crate) fn come(&self) -> bool {
        let ahead = self.ahead.fetch_add(ONE_MORE, Ordering::AcqRel);
        under_way(ahead) == 0 && !self.claimed.swap(true, Ordering::AcqRel)
    }

    /// The batch whose inputs lie at the graphs' own addresses is launched, or gone.
    pub(crate) fn release(&self) {
        self.claimed.store(false, Ordering::Release);
    }

    /// Waits until nobody's inputs lie at the graphs' own addresses that aren't launched: a moment, where batches come
    /// from several threads, and never where they come from one.
    pub(crate) fn wait_for_release(&self) {
        while self.claimed.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    /// A batch that came is computed, or gone.
    pub(crate) fn go(&self) {
        self.ahead.fetch_sub(1, Ordering::AcqRel);
    }

    /// Records a program with all its addresses: the weights' are those of the model, everything else is this
    /// executor's.
    pub(crate) fn record(
        &self,
        program: &Program,
        layout: &BufferLayout,
        weights: Address,
    ) -> Result<CudaGraph, String> {
        let at = |offsets: &[usize]| offsets.iter().map(|offset| self.buffers_at + *offset as u64).collect::<Vec<_>>();
        let (inputs, outputs) = (at(&layout.inputs), at(&layout.outputs));
        let stream = lock(&self.build);
        let enqueue = |stream: &CudaStream| {
            // SAFETY: `make_room` was called for this program, and regions never shrink or move; the weights' addresses
            // belong to the model, whose graphs are only launched while its weights are mapped there (P6).
            let enqueued = unsafe { program.enqueue(stream.raw(), weights, self.workspace_at, &inputs, &outputs) };
            enqueued.map_err(|error| RecordFailure(error.to_string()))
        };
        let recorded = CudaGraph::record(&stream, enqueue).map_err(|failure| failure.0)?;
        stream.wait().map_err(|refused| refused.to_string())?;
        Ok(recorded)
    }
}

/// One batch more that is under way, and that has come.
const ONE_MORE: u64 = 1 << 32 | 1;

/// How many batches are under way.
fn under_way(ahead: u64) -> u32 {
    ahead as u32
}

/// How many batches have come.
fn have_come(ahead: u64) -> u32 {
    (ahead >> 32) as u32
}

/// The batches of an executor, for whoever measures beside them.
struct Batches<'a> {
    ahead: &'a AtomicU64,
    given_up: &'a AtomicBool,
    seen: Cell<SeenBatches>,
}

impl Others for Batches<'_> {
    fn wait_until_quiet(&self) -> Result<(), CudaError> {
        loop {
            if self.given_up.load(Ordering::Relaxed) {
                return Err(CudaError::GivenUp);
            }
            let (ahead, mut seen) = (self.ahead.load(Ordering::Acquire), self.seen.get());
            let quiet = seen.look(have_come(ahead), under_way(ahead) > 0, Instant::now());
            self.seen.set(seen);
            if quiet {
                return Ok(());
            }
            std::thread::sleep(QUIET / 4);
        }
    }

    fn came(&self) -> u32 {
        have_come(self.ahead.load(Ordering::Acquire))
    }

    fn given_up(&self) -> &AtomicBool {
        self.given_up
    }
}

/// Why nothing was recorded.
struct RecordFailure(String);

impl From<DriverError> for RecordFailure {
    fn from(refused: DriverError) -> Self {
        Self(refused.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_counted_as_they_come_and_go() {
        let (ahead, given_up) = (AtomicU64::new(0), AtomicBool::new(false));
        let batches = Batches { ahead: &ahead, given_up: &given_up, seen: Cell::default() };
        assert!(batches.wait_until_quiet().is_ok(), "nobody has come");
        ahead.fetch_add(ONE_MORE, Ordering::AcqRel);
        ahead.fetch_add(ONE_MORE, Ordering::AcqRel);
        ahead.fetch_sub(1, Ordering::AcqRel);
        let now = ahead.load(Ordering::Acquire);
        assert_eq!((under_way(now), have_come(now), batches.came()), (1, 2, 2));
        given_up.store(true, Ordering::Relaxed);
        assert!(matches!(batches.wait_until_quiet(), Err(CudaError::GivenUp)), "though one is under way");
        // After 2^32 batches those that are under way are still right.
        let many = AtomicU64::new(u64::MAX << 32 | 3);
        many.fetch_add(ONE_MORE, Ordering::AcqRel);
        assert_eq!((under_way(many.load(Ordering::Acquire)), have_come(many.load(Ordering::Acquire))), (4, 0));
    }
}
