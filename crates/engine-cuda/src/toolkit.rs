//! NVIDIA's libraries, found at run time, so that everything builds and starts on a machine without a GPU; and the
//! compiler of our own kernels, with its cache.

use crate::choices::Choices;
use crate::program::Engine;
use crate::source::KernelSource;
use cudarc::cublaslt::sys as lt;
use cudarc::cudnn::sys as dnn;
use cudarc::driver::sys as driver;
use cudarc::nvrtc::sys as nvrtc;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Why something on the device didn't work.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// A library isn't there.
    #[error("{0} is missing: {1}")]
    Missing(&'static str, &'static str),
    /// The driver or a library refused a call.
    #[error("{call} failed: {status}")]
    Call {
        /// Which call.
        call: &'static str,
        /// What it answered.
        status: String,
    },
    /// A kernel of ours doesn't compile: always a mistake of ours.
    #[error("a kernel doesn't compile, please report it: {log}")]
    Compile {
        /// What the compiler said.
        log: String,
    },
    /// A step of a plan has no kernel.
    #[error("step {index} ({name}) can't run on a GPU: {why}; serve the model on a cpu device instead")]
    Unsupported {
        /// Which step of the plan.
        index: usize,
        /// The model's node.
        name: String,
        /// What about it.
        why: String,
    },
    /// Nobody wants the result any more.
    #[error("it was given up, because the server goes down")]
    GivenUp,
    /// The cache can't be written.
    #[error("the cache in {path} can't be used: {source}")]
    Cache {
        /// Its folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Turns a status of the driver into a result.
pub(crate) fn check(call: &'static str, status: driver::CUresult) -> Result<(), CudaError> {
    if status == driver::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(CudaError::Call { call, status: format!("{status:?}") })
}

/// The same for cuDNN.
pub(crate) fn check_dnn(call: &'static str, status: dnn::cudnnStatus_t) -> Result<(), CudaError> {
    if status == dnn::cudnnStatus_t::CUDNN_STATUS_SUCCESS {
        return Ok(());
    }
    Err(CudaError::Call { call, status: format!("{status:?}") })
}

/// The same for cuBLASLt.
pub(crate) fn check_lt(call: &'static str, status: lt::cublasStatus_t) -> Result<(), CudaError> {
    if status == lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    Err(CudaError::Call { call, status: format!("{status:?}") })
}

/// The same for NVRTC.
fn check_nvrtc(call: &'static str, status: nvrtc::nvrtcResult) -> Result<(), CudaError> {
    if status == nvrtc::nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    Err(CudaError::Call { call, status: format!("{status:?}") })
}

/// Which of the libraries isn't there, if one isn't. To be asked before anything else: the bindings panic at the first
/// call into a library that is missing.
pub fn missing() -> Option<CudaError> {
    // SAFETY: each only tries to open a library and closes it again.
    unsafe {
        if !driver::is_culib_present() {
            return Some(CudaError::Missing("libcuda.so", "install NVIDIA's driver, or serve on a cpu device"));
        }
        if !nvrtc::is_culib_present() {
            return Some(CudaError::Missing(
                "libnvrtc.so",
                "install the CUDA toolkit 13 (package cuda-nvrtc), or serve on a cpu device",
            ));
        }
        if !lt::is_culib_present() {
            return Some(CudaError::Missing(
                "libcublasLt.so",
                "install the CUDA toolkit 13 (package libcublas), or serve on a cpu device",
            ));
        }
        if !dnn::is_culib_present() {
            return Some(CudaError::Missing("libcudnn.so", "install cuDNN 9 for CUDA 13, or serve on a cpu device"));
        }
    }
    None
}

/// What kernels are chosen by: facts about a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// As the driver calls it.
    pub name: String,
    /// 90 for Hopper.
    pub capability: u32,
    /// How many multiprocessors.
    pub multiprocessors: u32,
    /// Shared memory that a block can get.
    pub shared_bytes: usize,
    /// Of the driver and the libraries, in one line.
    pub versions: String,
}

impl Facts {
    /// What NVRTC is asked to compile for. The `a` allows instructions that only this very architecture has.
    pub fn architecture(&self) -> String {
        format!("sm_{}{}", self.capability, if self.capability == 90 { "a" } else { "" })
    }

    /// A measurement counts on the same device with the same libraries alone.
    pub fn key(&self) -> String {
        format!("{} {}x {}", self.name, self.multiprocessors, self.versions)
    }
}

/// The folder of cuDNN's plans in a cache.
const PLANS: &str = "plans";

/// A compiled kernel. It isn't bound to a context: it runs in whichever the stream belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel(pub(crate) driver::CUkernel);

// SAFETY: a kernel's handle is a plain name; the driver may be called with it from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// cuBLASLt, closed with its owner.
pub(crate) struct LtHandle(pub(crate) lt::cublasLtHandle_t);

impl LtHandle {
    fn new() -> Result<Self, CudaError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is to a live variable.
        check_lt("cublasLtCreate", unsafe { lt::cublasLtCreate(&raw mut handle) })?;
        Ok(Self(handle))
    }
}

impl Drop for LtHandle {
    fn drop(&mut self) {
        // SAFETY: it was created, and nothing that uses it outlives the toolkit.
        unsafe { lt::cublasLtDestroy(self.0) };
    }
}

/// A handle of cuDNN's, closed with its last owner. One thread uses it at a time: making a plan, or enqueueing one.
pub(crate) struct DnnHandle(Mutex<dnn::cudnnHandle_t>);

// SAFETY: it is used under its lock.
unsafe impl Send for DnnHandle {}
// SAFETY: as above.
unsafe impl Sync for DnnHandle {}

impl DnnHandle {
    fn new() -> Result<Arc<Self>, CudaError> {
        let mut handle = null_mut();
        // SAFETY: the pointer is to a live variable.
        check_dnn("cudnnCreate", unsafe { dnn::cudnnCreate(&raw mut handle) })?;
        Ok(Arc::new(Self(Mutex::new(handle))))
    }

    /// The handle, for this thread alone.
    pub(crate) fn lock(&self) -> MutexGuard<'_, dnn::cudnnHandle_t> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DnnHandle {
    fn drop(&mut self) {
        // SAFETY: it was created, and nothing that uses it is left.
        unsafe { dnn::cudnnDestroy(*self.lock()) };
    }
}

/// The libraries, opened, for one device.
pub struct Toolkit {
    facts: Facts,
    device: driver::CUdevice,
    compiler: String,
    cache: PathBuf,
    kernels: Mutex<HashMap<String, Kernel>>,
    choices: Mutex<Choices>,
    /// There are choices that aren't in the file.
    unsaved: AtomicBool,
    /// What is being compiled: no kernel twice, and no more at a time than there are cores.
    compiling: Mutex<HashSet<String>>,
    compiled: Condvar,
    pub(crate) lt: LtHandle,
    /// Engines of convolutions that were chosen, by signature.
    pub(crate) engines: Mutex<HashMap<String, Arc<Engine>>>,
    /// For threads that make plans at the same time.
    dnn: Mutex<Vec<Arc<DnnHandle>>>,
}

// SAFETY: cuBLASLt's handle may be used from any thread.
unsafe impl Send for Toolkit {}
// SAFETY: as above.
unsafe impl Sync for Toolkit {}

impl Toolkit {
    /// Opens everything for the device whose context is current on this thread. What is compiled and measured is kept
    /// in the folder `cache`.
    pub fn open(cache: &Path) -> Result<Self, CudaError> {
        if let Some(error) = missing() {
            return Err(error);
        }
        let usable = |source| CudaError::Cache { path: cache.to_owned(), source };
        for kept in ["cubin", PLANS] {
            std::fs::create_dir_all(cache.join(kept)).map_err(usable)?;
        }
        let mut device = 0;
        // SAFETY: the library is there, and the pointer is to a live variable.
        check("cuCtxGetDevice", unsafe { driver::cuCtxGetDevice(&raw mut device) })?;
        let (facts, compiler) = look_at(device)?;
        let lt_handle = LtHandle::new()?;
        let choices = Choices::read(&cache.join("choices"), &facts.key());
        Ok(Self {
            facts,
            device,
            compiler,
            cache: cache.to_owned(),
            kernels: Mutex::default(),
            choices: Mutex::new(choices),
            unsaved: AtomicBool::new(false),
            compiling: Mutex::default(),
            compiled: Condvar::new(),
            lt: lt_handle,
            engines: Mutex::default(),
            dnn: Mutex::default(),
        })
    }

    /// What the device is like.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The measurements so far.
    pub fn choices(&self) -> &Mutex<Choices> {
        &self.choices
    }

    /// Takes a measurement in.
    pub(crate) fn choose(&self, signature: &str, candidate: &str, microseconds: f32) {
        self.choices.lock().expect("nobody panics while holding it").set(signature, candidate, microseconds);
        self.unsaved.store(true, Ordering::Release);
    }

    /// Keeps the measurements for the next start.
    pub fn save_choices(&self) -> Result<(), CudaError> {
        if !self.unsaved.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let path = self.cache.join("choices");
        let choices = self.choices.lock().expect("nobody panics while holding it");
        choices.write(&path).map_err(|source| CudaError::Cache { path, source })
    }

    /// Compiles what isn't compiled yet, on all cores, so that `kernel` finds everything; or gives up.
    pub(crate) fn compile_all(&self, sources: &[KernelSource], given_up: &AtomicBool) -> Result<(), CudaError> {
        let mut missing: Vec<&KernelSource> =
            sources.iter().filter(|source| !self.cubin_path(source).exists()).collect();
        missing.sort();
        missing.dedup();
        let next = std::sync::atomic::AtomicUsize::new(0);
        let threads = cores().min(missing.len());
        let results = Mutex::new(Ok(()));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some(source) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if given_up.load(Ordering::Relaxed) {
                            *results.lock().expect("nobody panics while holding it") = Err(CudaError::GivenUp);
                            return;
                        }
                        if let Err(error) = self.compile_once(source) {
                            *results.lock().expect("nobody panics while holding it") = Err(error);
                        }
                    }
                });
            }
        });
        results.into_inner().expect("nobody panics while holding it")
    }

    /// The kernel of a source, from memory, the cache on disk or the compiler.
    pub(crate) fn kernel(&self, source: &KernelSource) -> Result<Kernel, CudaError> {
        let key = source.key(&self.facts.architecture(), &self.compiler);
        if let Some(&kernel) = self.kernels.lock().expect("nobody panics while holding it").get(&key) {
            return Ok(kernel);
        }
        let cubin = match std::fs::read(self.cubin_path(source)) {
            Ok(cubin) => cubin,
            Err(_) => self.compile(source)?,
        };
        let kernel = load(&cubin, source.entry)?;
        self.kernels.lock().expect("nobody panics while holding it").insert(key, kernel);
        Ok(kernel)
    }

    /// Lets a kernel have more shared memory than every device has.
    pub(crate) fn allow_shared(&self, kernel: Kernel, bytes: usize) -> Result<(), CudaError> {
        let attribute = driver::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the kernel came from the driver and is never unloaded.
        check("cuKernelSetAttribute", unsafe {
            driver::cuKernelSetAttribute(attribute, bytes as i32, kernel.0, self.device)
        })
    }

    /// So many of cuDNN's handles, but no more than there are cores (at most 16). Plans refer to theirs.
    pub(crate) fn dnn_handles(&self, count: usize) -> Result<Vec<Arc<DnnHandle>>, CudaError> {
        let count = count.min(cores()).min(16);
        let mut handles = self.dnn.lock().expect("nobody panics while holding it");
        while handles.len() < count {
            handles.push(DnnHandle::new()?);
        }
        Ok(handles[..count].to_vec())
    }

    /// The file of a plan of cuDNN's for a step.
    pub(crate) fn plan_path(&self, signature: &str, name: &str) -> PathBuf {
        let key = blake3::hash(format!("{}\n{signature}\n{name}", self.facts.key()).as_bytes());
        self.cache.join(PLANS).join(&key.to_hex()[..32])
    }

    /// Compiles a source that isn't compiled yet, or waits for whoever does.
    fn compile_once(&self, source: &KernelSource) -> Result<(), CudaError> {
        let key = source.key(&self.facts.architecture(), &self.compiler);
        let compiling = || self.compiling.lock().expect("nobody panics while holding it");
        let busy = |all: &mut HashSet<String>| all.contains(&key) || all.len() >= cores();
        let mut all = self.compiled.wait_while(compiling(), busy).expect("nobody panics while holding it");
        if self.cubin_path(source).exists() {
            return Ok(());
        }
        all.insert(key.clone());
        drop(all);
        let outcome = self.compile(source);
        compiling().remove(&key);
        self.compiled.notify_all();
        outcome.map(|_| ())
    }

    fn cubin_path(&self, source: &KernelSource) -> PathBuf {
        self.cache.join("cubin").join(source.key(&self.facts.architecture(), &self.compiler))
    }

    fn compile(&self, source: &KernelSource) -> Result<Vec<u8>, CudaError> {
        let cubin = compile(&source.full_text(), &KernelSource::options(&self.facts.architecture()))?;
        let path = self.cubin_path(source);
        write_whole(&path, &cubin).map_err(|source| CudaError::Cache { path, source })?;
        Ok(cubin)
    }
}

impl Drop for Toolkit {
    fn drop(&mut self) {
        // Before their handles.
        self.engines.get_mut().expect("nobody panics while holding it").clear();
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Writes a file whole or not at all: others may read the same cache.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let unfinished = path.with_extension(format!("{}-{:?}", std::process::id(), std::thread::current().id()));
    std::fs::write(&unfinished, bytes).and_then(|()| std::fs::rename(&unfinished, path))
}

fn look_at(device: driver::CUdevice) -> Result<(Facts, String), CudaError> {
    use driver::CUdevice_attribute as Attribute;
    let attribute = |which| {
        let mut value = 0;
        // SAFETY: the pointer is to a live variable.
        check("cuDeviceGetAttribute", unsafe { driver::cuDeviceGetAttribute(&raw mut value, which, device) })
            .map(|()| value)
    };
    let mut name = [0; 128];
    // SAFETY: the buffer is as long as is said.
    check("cuDeviceGetName", unsafe { driver::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, device) })?;
    // SAFETY: the driver ends the name with a zero within the buffer.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let (mut driver_version, mut major, mut minor) = (0, 0, 0);
    // SAFETY: the pointers are to live variables; the other two read a number.
    let (lt_version, dnn_version) = unsafe {
        check("cuDriverGetVersion", driver::cuDriverGetVersion(&raw mut driver_version))?;
        check_nvrtc("nvrtcVersion", nvrtc::nvrtcVersion(&raw mut major, &raw mut minor))?;
        (lt::cublasLtGetVersion(), dnn::cudnnGetVersion())
    };
    let compiler = format!("nvrtc {major}.{minor}");
    let facts = Facts {
        name,
        capability: (attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? * 10
            + attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?) as u32,
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        shared_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize,
        versions: format!("driver {driver_version}, {compiler}, cublaslt {lt_version}, cudnn {dnn_version}"),
    };
    Ok((facts, compiler))
}

/// A program of NVRTC's, gone with its owner.
struct NvrtcProgram(nvrtc::nvrtcProgram);

impl NvrtcProgram {
    fn new(text: &CStr) -> Result<Self, CudaError> {
        let mut program = null_mut();
        let null = std::ptr::null();
        // SAFETY: the text and the variable live; there are no headers.
        let status =
            unsafe { nvrtc::nvrtcCreateProgram(&raw mut program, text.as_ptr(), c"step.cu".as_ptr(), 0, null, null) };
        check_nvrtc("nvrtcCreateProgram", status).map(|()| Self(program))
    }

    /// What a pair of calls gives: how many bytes, then the bytes.
    fn bytes(
        &self,
        call: &'static str,
        size: unsafe fn(nvrtc::nvrtcProgram, *mut usize) -> nvrtc::nvrtcResult,
        fill: unsafe fn(nvrtc::nvrtcProgram, *mut c_char) -> nvrtc::nvrtcResult,
    ) -> Result<Vec<u8>, CudaError> {
        let mut count = 0;
        // SAFETY: the program and the variable live.
        check_nvrtc(call, unsafe { size(self.0, &raw mut count) })?;
        let mut bytes = vec![0u8; count];
        // SAFETY: the buffer is as long as was asked for.
        check_nvrtc(call, unsafe { fill(self.0, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }
}

impl Drop for NvrtcProgram {
    fn drop(&mut self) {
        // SAFETY: it was created, and nobody else has it.
        unsafe { nvrtc::nvrtcDestroyProgram(&raw mut self.0) };
    }
}

/// NVRTC: source in, machine code out.
fn compile(text: &str, options: &[String]) -> Result<Vec<u8>, CudaError> {
    let text = CString::new(text).expect("our sources have no zero bytes");
    let options: Vec<CString> =
        options.iter().map(|option| CString::new(option.as_str()).expect("no zero bytes")).collect();
    let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
    let program = NvrtcProgram::new(&text)?;
    // SAFETY: the program lives, and as many options as is said.
    let status = unsafe { nvrtc::nvrtcCompileProgram(program.0, options.len() as i32, options.as_ptr()) };
    if status == nvrtc::nvrtcResult::NVRTC_SUCCESS {
        return program.bytes("nvrtcGetCUBIN", nvrtc::nvrtcGetCUBINSize, nvrtc::nvrtcGetCUBIN);
    }
    let log = program.bytes("nvrtcGetProgramLog", nvrtc::nvrtcGetProgramLogSize, nvrtc::nvrtcGetProgramLog);
    let log = log.map_or_else(|error| error.to_string(), |log| String::from_utf8_lossy(&log).into_owned());
    Err(CudaError::Compile { log: format!("{status:?}: {log}") })
}

/// Has the compiler load what it needs at its first use, which takes a while.
pub(crate) fn warm_compiler() {
    let _ = compile("extern \"C\" __global__ void step() {}", &KernelSource::options("sm_90a"));
}

fn load(cubin: &[u8], entry: &str) -> Result<Kernel, CudaError> {
    let entry = CString::new(entry).expect("no zero bytes");
    let (mut library, mut kernel) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the code is a whole cubin, which the driver copies; the library is kept for the life of the process, as
    // its kernels may be in graphs.
    unsafe {
        let code = cubin.as_ptr().cast();
        let loaded =
            driver::cuLibraryLoadData(&raw mut library, code, null_mut(), null_mut(), 0, null_mut(), null_mut(), 0);
        check("cuLibraryLoadData", loaded)?;
        check("cuLibraryGetKernel", driver::cuLibraryGetKernel(&raw mut kernel, library, entry.as_ptr()))?;
    }
    Ok(Kernel(kernel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_one_sentence() {
        let sentence = CudaError::Missing("libcuda.so", "install NVIDIA's driver").to_string();
        assert_eq!(sentence, "libcuda.so is missing: install NVIDIA's driver");
    }
}
