//! Streams, events, and graphs that are recorded once and launched many times.

use crate::driver::{Address, DriverError, Pinned, call, check};
use crate::shares::Partition;
use cudarc::driver::sys;
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::Arc;

/// Whose blocks are scheduled first where several streams have some.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Inputs: few blocks, which mostly wait for the bus. Behind others they would wait for all of a graph, whose
    /// kernels always have blocks waiting, since each is set up while the one before runs.
    First,
    /// Graphs.
    Second,
    /// Everything else.
    Last,
}

/// Work on one partition of a device, in the order in which it was given.
pub struct CudaStream {
    partition: Arc<Partition>,
    raw: sys::CUstream,
}

// SAFETY: the driver's calls with a stream may come from any thread.
unsafe impl Send for CudaStream {}
// SAFETY: as above.
unsafe impl Sync for CudaStream {}

impl CudaStream {
    /// A stream of a partition, which waits for no other.
    pub fn new(partition: &Arc<Partition>, turn: Turn) -> Result<Self, DriverError> {
        partition.enter()?;
        let mut raw = null_mut();
        // SAFETY: the context is the partition's, which the stream keeps alive; one handle is written.
        unsafe {
            let (mut least, mut greatest) = (0, 0);
            call!(cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest))?;
            // The greatest is the lowest number.
            let priority = match turn {
                Turn::First => greatest,
                Turn::Second => (greatest + 1).min(least),
                Turn::Last => least,
            };
            let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
            match partition.green() {
                Some(green) => call!(cuGreenCtxStreamCreate(&raw mut raw, green, flags, priority))?,
                None => call!(cuStreamCreateWithPriority(&raw mut raw, flags, priority))?,
            }
        }
        Ok(Self { partition: Arc::clone(partition), raw })
    }

    /// The partition that it runs on.
    pub fn partition(&self) -> &Arc<Partition> {
        &self.partition
    }

    /// The driver's name for it.
    pub fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Copies to the device, some time after this returns.
    ///
    /// # Safety
    /// `to` has room for `bytes`; the memory at `from` stays as it is until the stream has come past this.
    pub unsafe fn copy_in(&self, to: Address, from: *const u8, bytes: usize) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        unsafe { call!(cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, self.raw)) }
    }

    /// Copies from the device into pinned memory, some time after this returns.
    ///
    /// # Safety
    /// `from` holds `bytes`, which are at most those of `to`; nobody reads or frees it until the stream has come past
    /// this.
    pub unsafe fn copy_out(&self, to: &Pinned, offset: usize, from: Address, bytes: usize) -> Result<(), DriverError> {
        assert!(offset + bytes <= to.len(), "copies stay inside their buffer");
        // SAFETY: inside the buffer by the assertion; the rest is the caller's promise.
        unsafe { call!(cuMemcpyDtoHAsync_v2(to.start().add(offset).cast(), from, bytes, self.raw)) }
    }

    /// What is put into it from now on begins when another stream has come to that event.
    pub fn wait_for(&self, event: &Event) -> Result<(), DriverError> {
        // SAFETY: both are alive and of one context.
        unsafe { call!(cuStreamWaitEvent(self.raw, event.raw, 0)) }
    }

    /// Waits until everything is done.
    pub fn wait(&self) -> Result<(), DriverError> {
        // SAFETY: the stream is alive.
        unsafe { call!(cuStreamSynchronize(self.raw)) }
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        let _ = self.partition.enter();
        // SAFETY: made once, destroyed once; what is under way is finished by the driver.
        unsafe { sys::cuStreamDestroy_v2(self.raw) };
    }
}

/// A moment in a stream.
pub struct Event {
    raw: sys::CUevent,
}

// SAFETY: the driver's calls with an event may come from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event that takes the time. Belongs to the partition's context.
    pub fn new(partition: &Partition) -> Result<Self, DriverError> {
        partition.enter()?;
        let mut raw = null_mut();
        // SAFETY: one handle is written.
        unsafe { call!(cuEventCreate(&raw mut raw, sys::CUevent_flags_enum::CU_EVENT_DEFAULT as u32))? };
        Ok(Self { raw })
    }

    /// Lets the stream take the time here.
    pub fn record(&self, stream: &CudaStream) -> Result<(), DriverError> {
        // SAFETY: both are alive and of one context.
        unsafe { call!(cuEventRecord(self.raw, stream.raw)) }
    }

    /// Waits until the stream has come here. The thread keeps its core.
    pub fn wait(&self) -> Result<(), DriverError> {
        // SAFETY: the event is alive.
        unsafe { call!(cuEventSynchronize(self.raw)) }
    }

    /// Whether the stream has come here. Doesn't wait.
    pub fn is_past(&self) -> Result<bool, DriverError> {
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Microseconds from an earlier event to this one; both have happened.
    pub fn micros_since(&self, earlier: &Self) -> Result<f64, DriverError> {
        let mut millis = 0f32;
        // SAFETY: both are alive; one number is written.
        unsafe { call!(cuEventElapsedTime_v2(&raw mut millis, earlier.raw, self.raw))? };
        Ok(f64::from(millis) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once.
        unsafe { sys::cuEventDestroy_v2(self.raw) };
    }
}

/// Work that was recorded once. Every address in it is fixed.
pub struct CudaGraph {
    raw: sys::CUgraphExec,
}

// SAFETY: the driver's calls with a graph may come from any thread; launches of one graph are ordered by the caller.
unsafe impl Send for CudaGraph {}
// SAFETY: as above.
unsafe impl Sync for CudaGraph {}

impl CudaGraph {
    /// Records what `enqueue` puts into the stream, without running it.
    pub fn record<E: From<DriverError>>(
        stream: &CudaStream,
        enqueue: impl FnOnce(&CudaStream) -> Result<(), E>,
    ) -> Result<Self, E> {
        stream.partition.enter()?;
        // Other threads go on allocating and copying, which is none of this recording's business.
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is alive; what is begun is ended below, whatever `enqueue` says.
        unsafe { call!(cuStreamBeginCapture_v2(stream.raw, mode))? };
        let enqueued = enqueue(stream);
        let mut graph = null_mut();
        // SAFETY: ends what was begun; one handle is written.
        let ended = unsafe { call!(cuStreamEndCapture(stream.raw, &raw mut graph)) };
        let recorded = enqueued.and_then(|()| ended.map_err(E::from)).and_then(|()| {
            // SAFETY: the graph is whole, and nobody else has it; the executable one is uploaded so that the first
            // launch is like the others.
            unsafe {
                let made = Self { raw: instantiate(graph)? };
                call!(cuGraphUpload(made.raw, stream.raw))?;
                Ok(made)
            }
        });
        if !graph.is_null() {
            // SAFETY: the executable graph doesn't need it any more.
            unsafe { sys::cuGraphDestroy(graph) };
        }
        recorded
    }

    /// Puts the recorded work into the stream.
    ///
    /// # Safety
    /// All memory that was named while it was recorded is there.
    pub unsafe fn launch(&self, stream: &CudaStream) -> Result<(), DriverError> {
        // SAFETY: graph and stream are alive; the rest is the caller's promise.
        unsafe { call!(cuGraphLaunch(self.raw, stream.raw)) }
    }
}

/// Makes an executable graph of one that was captured.
///
/// # Safety
/// The graph is whole, and nobody else has it.
pub unsafe fn instantiate(graph: sys::CUgraph) -> Result<sys::CUgraphExec, DriverError> {
    let mut raw = null_mut();
    // SAFETY: the caller's promise; one handle is written.
    unsafe {
        keep_libraries_waiting(graph)?;
        call!(cuGraphInstantiateWithFlags(&raw mut raw, graph, 0))?;
    }
    Ok(raw)
}

/// Our kernels, by the names of their functions. They wait for the kernel before them by themselves.
const OURS: [&CStr; 4] = [c"tile", c"step", c"attention", c"fetch"];

/// Lets no library's kernel begin before the kernel before it is done. Some of cuDNN's allow an early beginning and
/// don't wait for their input then, which goes well until other work on the device makes the kernel before take longer.
///
/// # Safety
/// The graph is whole, and nobody else has it.
unsafe fn keep_libraries_waiting(graph: sys::CUgraph) -> Result<(), DriverError> {
    let mut count = 0;
    // SAFETY: the first call only counts; arrays are as long as it said.
    let (from, to, how) = unsafe {
        call!(cuGraphGetEdges_v2(graph, null_mut(), null_mut(), null_mut(), &raw mut count))?;
        if count == 0 {
            return Ok(());
        }
        let (mut from, mut to) = (vec![null_mut(); count], vec![null_mut(); count]);
        let mut how = vec![FULL_EDGE; count];
        call!(cuGraphGetEdges_v2(graph, from.as_mut_ptr(), to.as_mut_ptr(), how.as_mut_ptr(), &raw mut count))?;
        (from, to, how)
    };
    for ((from, to), how) in from.iter().zip(&to).zip(&how) {
        // SAFETY: the nodes are of this graph, and so is the edge.
        unsafe {
            if *how != FULL_EDGE && !is_ours(*to)? {
                call!(cuGraphRemoveDependencies_v2(graph, from, to, how, 1))?;
                let full = FULL_EDGE;
                call!(cuGraphAddDependencies_v2(graph, from, to, &raw const full, 1))?;
            }
        }
    }
    Ok(())
}

/// What follows begins when what is before is done.
const FULL_EDGE: sys::CUgraphEdgeData = sys::CUgraphEdgeData { from_port: 0, to_port: 0, type_: 0, reserved: [0; 5] };

/// # Safety
/// The node is alive.
unsafe fn is_ours(node: sys::CUgraphNode) -> Result<bool, DriverError> {
    // SAFETY: parameters are handles and numbers, for which all zeros is valid; names live as long as their kernels.
    unsafe {
        let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
        call!(cuGraphNodeGetType(node, &raw mut kind))?;
        if kind != sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL {
            return Ok(false);
        }
        let mut parameters: sys::CUDA_KERNEL_NODE_PARAMS = std::mem::zeroed();
        call!(cuGraphKernelNodeGetParams_v2(node, &raw mut parameters))?;
        let mut name = std::ptr::null();
        if parameters.func.is_null() {
            call!(cuKernelGetName(&raw mut name, parameters.kern))?;
        } else {
            call!(cuFuncGetName(&raw mut name, parameters.func))?;
        }
        Ok(!name.is_null() && OURS.contains(&CStr::from_ptr(name)))
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once.
        unsafe { sys::cuGraphExecDestroy(self.raw) };
    }
}
