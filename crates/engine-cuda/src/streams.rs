//! Streams, events, and graphs that are recorded once and launched many times.

use crate::driver::{Address, Pinned, Refused, call, check};
use crate::shares::Partition;
use cudarc::driver::sys;
use std::ptr::null_mut;
use std::sync::Arc;

/// Work on one partition of a device, in the order in which it was given.
pub struct Stream {
    partition: Arc<Partition>,
    raw: sys::CUstream,
}

// SAFETY: the driver's calls with a stream may come from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream of a partition, which waits for no other. A `preferred` one's blocks are scheduled first.
    pub fn new(partition: &Arc<Partition>, preferred: bool) -> Result<Self, Refused> {
        partition.enter()?;
        let mut raw = null_mut();
        // SAFETY: the context is the partition's, which the stream keeps alive; one handle is written.
        unsafe {
            let (mut least, mut greatest) = (0, 0);
            call!(cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest))?;
            let priority = if preferred { greatest } else { least };
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
    pub unsafe fn copy_in(&self, to: Address, from: *const u8, bytes: usize) -> Result<(), Refused> {
        // SAFETY: the caller's promise.
        unsafe { call!(cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, self.raw)) }
    }

    /// Copies from the device into pinned memory, some time after this returns.
    ///
    /// # Safety
    /// `from` holds `bytes`, which are at most those of `to`; nobody reads or frees it until the stream has come past this.
    pub unsafe fn copy_out(&self, to: &Pinned, offset: usize, from: Address, bytes: usize) -> Result<(), Refused> {
        assert!(offset + bytes <= to.len(), "copies stay inside their buffer");
        // SAFETY: inside the buffer by the assertion; the rest is the caller's promise.
        unsafe { call!(cuMemcpyDtoHAsync_v2(to.start().add(offset).cast(), from, bytes, self.raw)) }
    }

    /// What is put into it from now on begins when another stream has come to that event.
    pub fn wait_for(&self, event: &Event) -> Result<(), Refused> {
        // SAFETY: both are alive and of one context.
        unsafe { call!(cuStreamWaitEvent(self.raw, event.raw, 0)) }
    }

    /// Waits until everything is done.
    pub fn wait(&self) -> Result<(), Refused> {
        // SAFETY: the stream is alive.
        unsafe { call!(cuStreamSynchronize(self.raw)) }
    }
}

impl Drop for Stream {
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
    pub fn new(partition: &Partition) -> Result<Self, Refused> {
        partition.enter()?;
        let mut raw = null_mut();
        // SAFETY: one handle is written.
        unsafe { call!(cuEventCreate(&raw mut raw, sys::CUevent_flags_enum::CU_EVENT_DEFAULT as u32))? };
        Ok(Self { raw })
    }

    /// Lets the stream take the time here.
    pub fn record(&self, stream: &Stream) -> Result<(), Refused> {
        // SAFETY: both are alive and of one context.
        unsafe { call!(cuEventRecord(self.raw, stream.raw)) }
    }

    /// Waits until the stream has come here. The thread keeps its core.
    pub fn wait(&self) -> Result<(), Refused> {
        // SAFETY: the event is alive.
        unsafe { call!(cuEventSynchronize(self.raw)) }
    }

    /// Whether the stream has come here. Doesn't wait.
    pub fn is_past(&self) -> Result<bool, Refused> {
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Microseconds from an earlier event to this one; both have happened.
    pub fn micros_since(&self, earlier: &Self) -> Result<f64, Refused> {
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
pub struct Graph {
    raw: sys::CUgraphExec,
}

// SAFETY: the driver's calls with a graph may come from any thread; launches of one graph are ordered by the caller.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

impl Graph {
    /// Records what `enqueue` puts into the stream, without running it.
    pub fn record<E: From<Refused>>(
        stream: &Stream,
        enqueue: impl FnOnce(&Stream) -> Result<(), E>,
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
            let mut raw = null_mut();
            // SAFETY: the graph is whole; the executable one is uploaded so that the first launch is like the others.
            unsafe {
                call!(cuGraphInstantiateWithFlags(&raw mut raw, graph, 0))?;
                let made = Self { raw };
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
    pub unsafe fn launch(&self, stream: &Stream) -> Result<(), Refused> {
        // SAFETY: graph and stream are alive; the rest is the caller's promise.
        unsafe { call!(cuGraphLaunch(self.raw, stream.raw)) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once.
        unsafe { sys::cuGraphExecDestroy(self.raw) };
    }
}
