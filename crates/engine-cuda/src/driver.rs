//! The driver's calls that we use: errors become sentences, handles free themselves.

use cudarc::driver::sys;
use std::ffi::{CStr, c_void};
use std::fmt;
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// An address on the device.
pub type Address = sys::CUdeviceptr;

/// A call that the driver refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DriverError {
    call: &'static str,
    code: sys::CUresult,
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = null();
        // SAFETY: the call writes one pointer to a text that lives as long as the library, or leaves it null.
        let known = unsafe { sys::cuGetErrorString(self.code, &raw mut text) } == sys::CUresult::CUDA_SUCCESS;
        if known && !text.is_null() {
            // SAFETY: as above; the text ends with a zero.
            let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
            return write!(f, "{} failed: {text} ({})", self.call, self.code as u32);
        }
        write!(f, "{} failed with {:?}", self.call, self.code)
    }
}

impl std::error::Error for DriverError {}

/// `Ok` if the driver did what it was asked.
pub fn check(call: &'static str, code: sys::CUresult) -> Result<(), DriverError> {
    match code {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(DriverError { call, code }),
    }
}

/// Calls a function of the driver by its name and checks what it says. The caller writes why it is sound.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        $crate::driver::check(stringify!($name), cudarc::driver::sys::$name($($argument),*))
    };
}
pub(crate) use call;

/// A GPU with its primary context, held as long as this lives.
pub struct Gpu {
    ordinal: i32,
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// What the driver calls it, for instance `NVIDIA H200`.
    pub name: String,
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// All of its memory.
    pub memory_bytes: u64,
    /// The driver's version, for instance `13.0`.
    pub driver: String,
}

// SAFETY: the handles are names; the driver's calls with them may come from any thread.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// How many there are; none without a driver, and none where the driver doesn't start.
    pub fn count() -> u32 {
        let mut count = 0;
        // SAFETY: looks for the library by its names; the output is of the type that the call writes.
        let counted = unsafe {
            sys::is_culib_present() && call!(cuInit(0)).and_then(|()| call!(cuDeviceGetCount(&raw mut count))).is_ok()
        };
        if counted { u32::try_from(count).unwrap_or(0) } else { 0 }
    }

    /// Opens the GPU of that number. A sentence if there is no driver or no such GPU.
    pub fn open(ordinal: u32) -> Result<Arc<Self>, String> {
        // SAFETY: looks for the library by its names, nothing else.
        if !unsafe { sys::is_culib_present() } {
            return Err("the CUDA driver (libcuda.so.1) is not on this machine: install NVIDIA's driver, or use --devices cpu:N".into());
        }
        let refused = |refused: DriverError| format!("cuda:{ordinal}: {refused}");
        // SAFETY: outputs are of the types that the calls write; `name` is told its length.
        unsafe {
            call!(cuInit(0)).map_err(refused)?;
            let (mut count, mut version) = (0, 0);
            call!(cuDeviceGetCount(&raw mut count)).map_err(refused)?;
            call!(cuDriverGetVersion(&raw mut version)).map_err(refused)?;
            let ordinal = i32::try_from(ordinal).ok().filter(|ordinal| *ordinal < count);
            let ordinal =
                ordinal.ok_or_else(|| format!("there is no such GPU: the driver knows {count}, numbered from 0"))?;
            let mut device = 0;
            call!(cuDeviceGet(&raw mut device, ordinal)).map_err(refused)?;
            let mut name = [0; 128];
            call!(cuDeviceGetName(name.as_mut_ptr(), 128, device)).map_err(refused)?;
            let mut memory = 0;
            call!(cuDeviceTotalMem_v2(&raw mut memory, device)).map_err(refused)?;
            let mut multiprocessors = 0;
            let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
            call!(cuDeviceGetAttribute(&raw mut multiprocessors, attribute, device)).map_err(refused)?;
            let mut context = null_mut();
            call!(cuDevicePrimaryCtxRetain(&raw mut context, device)).map_err(refused)?;
            Ok(Arc::new(Self {
                ordinal,
                device,
                context,
                name: CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned(),
                multiprocessors: multiprocessors.unsigned_abs(),
                memory_bytes: memory as u64,
                driver: format!("{}.{}", version / 1000, version % 1000 / 10),
            }))
        }
    }

    /// Its number.
    pub fn ordinal(&self) -> u32 {
        self.ordinal.unsigned_abs()
    }

    /// The driver's name for it.
    pub fn raw(&self) -> sys::CUdevice {
        self.device
    }

    /// The primary context.
    pub fn context(&self) -> sys::CUcontext {
        self.context
    }

    /// Makes this GPU's primary context the thread's.
    pub fn enter(&self) -> Result<(), DriverError> {
        // SAFETY: the context is retained as long as `self` lives.
        unsafe { call!(cuCtxSetCurrent(self.context)) }
    }

    /// Memory that nobody has taken, in bytes. The thread must have entered.
    pub fn free_bytes(&self) -> Result<u64, DriverError> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: two sizes are written.
        unsafe { call!(cuMemGetInfo_v2(&raw mut free, &raw mut total))? };
        Ok(free as u64)
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuda:{} ({})", self.ordinal, self.name)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: retained once, released once.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// Host memory that the device can copy from and to without the CPU.
pub struct Pinned {
    gpu: Arc<Gpu>,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}
// SAFETY: shared references only read.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Takes that many bytes, zeroed; at least one.
    pub fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self, DriverError> {
        gpu.enter()?;
        let bytes = bytes.max(1);
        let mut start: *mut c_void = null_mut();
        // SAFETY: one pointer is written; the memory behind it is ours until it is freed, and is zeroed before anybody
        // reads it.
        unsafe {
            call!(cuMemHostAlloc(&raw mut start, bytes, sys::CU_MEMHOSTALLOC_PORTABLE))?;
            start.cast::<u8>().write_bytes(0, bytes);
        }
        Ok(Self { gpu: Arc::clone(gpu), start: start.cast(), bytes })
    }

    /// Where it begins, for copies that are under way while nobody holds a reference.
    pub fn start(&self) -> *mut u8 {
        self.start
    }
}

impl std::ops::Deref for Pinned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: so many bytes are there, and were written.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl std::ops::DerefMut for Pinned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the reference is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.gpu.enter();
        // SAFETY: taken with cuMemHostAlloc, freed once. Whoever copies from it waits for the copy first.
        unsafe { sys::cuMemFreeHost(self.start.cast()) };
    }
}
