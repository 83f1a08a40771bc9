//! Kernels that do nothing but wait or scale, and graphs of them: what the runtime is measured with.

use crate::Attempt;
use crate::figures::{Clocks, SpanQuantiles, micros};
use cudarc::driver::sys;
use engine_cuda::tools::{Address, CudaGraph, CudaStream, DriverError, Event, check};
use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::time::Instant;

const TEXT: &str = include_str!("probe.cu");

/// The compiled kernels of `probe.cu`.
pub(crate) struct Probe {
    spin: sys::CUkernel,
    scale: sys::CUkernel,
}

// SAFETY: the handles are names; the driver's calls with them may come from any thread.
unsafe impl Sync for Probe {}

impl Probe {
    pub(crate) fn compile() -> Attempt<Self> {
        let options = cudarc::nvrtc::CompileOptions { arch: Some("compute_90"), ..Default::default() };
        let ptx = CString::new(cudarc::nvrtc::compile_ptx_with_opts(TEXT, options)?.to_src())?;
        let mut library = null_mut();
        // SAFETY: the text ends with a zero; no options; the library is never unloaded.
        unsafe {
            let loaded = sys::cuLibraryLoadData(
                &raw mut library,
                ptx.as_ptr().cast(),
                null_mut(),
                null_mut(),
                0,
                null_mut(),
                null_mut(),
                0,
            );
            check("cuLibraryLoadData", loaded)?;
            let kernel = |name: &std::ffi::CStr| {
                let mut kernel = null_mut();
                check("cuLibraryGetKernel", sys::cuLibraryGetKernel(&raw mut kernel, library, name.as_ptr()))
                    .map(|()| kernel)
            };
            Ok(Self { spin: kernel(c"spin")?, scale: kernel(c"scale")? })
        }
    }

    pub(crate) fn spin(&self, stream: &CudaStream, blocks: u32, cycles: u64, seen: Address) -> Result<(), DriverError> {
        launch(
            self.spin,
            stream,
            blocks,
            &mut [(&raw const cycles).cast_mut().cast(), (&raw const seen).cast_mut().cast()],
        )
    }

    pub(crate) fn scale(
        &self,
        stream: &CudaStream,
        weights: Address,
        input: Address,
        output: Address,
        count: u32,
    ) -> Result<(), DriverError> {
        let [a, b, c] = [&raw const weights, &raw const input, &raw const output].map(|value| value.cast_mut().cast());
        launch(self.scale, stream, 132, &mut [a, b, c, (&raw const count).cast_mut().cast()])
    }
}

fn launch(
    kernel: sys::CUkernel,
    stream: &CudaStream,
    blocks: u32,
    parameters: &mut [*mut c_void],
) -> Result<(), DriverError> {
    // SAFETY: the parameters are those of the kernel, which the callers above know; the driver copies them.
    unsafe {
        let started = sys::cuLaunchKernel(
            kernel.cast(),
            blocks,
            1,
            1,
            128,
            1,
            1,
            0,
            stream.raw(),
            parameters.as_mut_ptr(),
            null_mut(),
        );
        check("cuLaunchKernel", started)
    }
}

pub(crate) const NODES: u32 = 50;

/// A graph of 50 short kernels, about half a millisecond in all.
pub(crate) fn spinning(
    probe: &Probe,
    stream: &CudaStream,
    blocks: u32,
    seen: Address,
) -> Result<CudaGraph, DriverError> {
    CudaGraph::record(stream, |stream| (0..NODES).try_for_each(|_| probe.spin(stream, blocks, 16_000, seen)))
}

/// Replays a graph: what each took by the device's clock and by ours.
pub(crate) fn replay(graph: &CudaGraph, stream: &CudaStream, count: usize) -> Attempt<Clocks> {
    let events = [Event::new(stream.partition())?, Event::new(stream.partition())?];
    let (mut device, mut wall) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for _ in 0..count {
        let start = Instant::now();
        events[0].record(stream)?;
        // SAFETY: what the graph names lives longer than this function.
        unsafe { graph.launch(stream)? };
        events[1].record(stream)?;
        events[1].wait()?;
        wall.push(micros(start));
        device.push(events[1].micros_since(&events[0])?);
    }
    Ok(Clocks { device: SpanQuantiles::of(device), wall: SpanQuantiles::of(wall) })
}
