//! The runtime's objects, each freed once: sessions, their options, values, the store of packed weights.

use crate::runtime::{Runtime, RuntimeError};
use ort::sys;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

/// A path as the runtime takes it.
fn c_path(path: &Path) -> Result<CString, RuntimeError> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| RuntimeError(format!("{} contains a zero byte", path.display())))
}

/// How a session is to be made.
pub(crate) struct SessionOptions {
    runtime: &'static Runtime,
    is_wide: bool,
    raw: *mut sys::OrtSessionOptions,
}

// SAFETY: the options are only read once they are made, and the runtime reads them without changing them.
unsafe impl Send for SessionOptions {}
// SAFETY: as above.
unsafe impl Sync for SessionOptions {}

impl SessionOptions {
    /// What all sessions have in common: one execution at a time, on the caller's thread or with the shared pool, no
    /// spinning, the shared workspace.
    pub(crate) fn new(runtime: &'static Runtime) -> Result<Self, RuntimeError> {
        Self::with_pool(runtime, runtime.pooled)
    }

    /// The same, with the shared pool or without it.
    pub(crate) fn with_pool(runtime: &'static Runtime, pooled: bool) -> Result<Self, RuntimeError> {
        let mut raw = ptr::null_mut();
        let api = runtime.api;
        // SAFETY: the out-pointer is valid; then `raw` is a live object that is freed by `drop`.
        let options = unsafe {
            runtime.check((api.CreateSessionOptions)(&mut raw))?;
            let options = Self { runtime, is_wide: pooled && !runtime.pooled, raw };
            if pooled {
                runtime.check((api.DisablePerSessionThreads)(raw))?;
            } else {
                runtime.check((api.SetIntraOpNumThreads)(raw, 1))?;
                runtime.check((api.SetInterOpNumThreads)(raw, 1))?;
            }
            runtime.check((api.SetSessionExecutionMode)(raw, sys::ExecutionMode::ORT_SEQUENTIAL))?;
            options
        };
        options.set(c"session.intra_op.allow_spinning", c"0")?;
        options.set(c"session.use_env_allocators", c"1")?;
        Ok(options)
    }

    /// Whether sessions use the shared pool of threads where others don't.
    pub(crate) fn is_wide(&self) -> bool {
        self.is_wide
    }

    pub(crate) fn set(&self, key: &CStr, value: &CStr) -> Result<(), RuntimeError> {
        // SAFETY: both are C strings, copied by the callee.
        self.runtime.check(unsafe { (self.runtime.api.AddSessionConfigEntry)(self.raw, key.as_ptr(), value.as_ptr()) })
    }

    /// Whether to optimise the graph. One that was optimised already must not be.
    pub(crate) fn optimise(&self, wanted: bool) -> Result<(), RuntimeError> {
        let level = if wanted {
            sys::GraphOptimizationLevel::ORT_ENABLE_ALL
        } else {
            sys::GraphOptimizationLevel::ORT_DISABLE_ALL
        };
        // SAFETY: `raw` is live.
        self.runtime.check(unsafe { (self.runtime.api.SetSessionGraphOptimizationLevel)(self.raw, level) })
    }

    /// Where weights are that the model keeps in files of their own: next to its own file.
    pub(crate) fn weights_next_to(&self, file: &Path) -> Result<(), RuntimeError> {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        self.set(c"session.model_external_initializers_file_folder_path", &c_path(folder)?)
    }

    /// Where the optimised model is written, its larger weights into a file of that name next to it.
    pub(crate) fn write_optimised(&self, model: &Path, weights: &CStr) -> Result<(), RuntimeError> {
        let path = c_path(model)?;
        // SAFETY: the path is a C string, copied by the callee.
        self.runtime.check(unsafe { (self.runtime.api.SetOptimizedModelFilePath)(self.raw, path.as_ptr()) })?;
        self.set(c"session.optimized_model_external_initializers_file_name", weights)?;
        self.set(c"session.optimized_model_external_initializers_min_size_in_bytes", c"1024")
    }

    /// Supplies the weight of that name.
    ///
    /// # Safety
    /// The value must outlive these options and every session made with them.
    pub(crate) unsafe fn supply(&self, name: &CStr, value: &SessionTensor) -> Result<(), RuntimeError> {
        // SAFETY: the name is copied; the value lives long enough, says the caller.
        self.runtime.check(unsafe { (self.runtime.api.AddInitializer)(self.raw, name.as_ptr(), value.raw) })
    }
}

impl Drop for SessionOptions {
    fn drop(&mut self) {
        // SAFETY: made by the runtime, freed once.
        unsafe { (self.runtime.api.ReleaseSessionOptions)(self.raw) }
    }
}

/// A tensor.
pub(crate) struct SessionTensor {
    runtime: &'static Runtime,
    pub(crate) raw: *mut sys::OrtValue,
}

// SAFETY: a value has no tie to the thread that made it, and a shared one is only read.
unsafe impl Send for SessionTensor {}
// SAFETY: as above.
unsafe impl Sync for SessionTensor {}

impl SessionTensor {
    /// A tensor over somebody else's memory.
    ///
    /// # Safety
    /// `length` bytes at `data` must be readable while the value lives, must be what `dims` and `element` say, and
    /// nobody may write to them.
    pub(crate) unsafe fn over(
        runtime: &'static Runtime,
        data: *const u8,
        length: usize,
        dims: &[i64],
        element: sys::ONNXTensorElementDataType,
    ) -> Result<Self, RuntimeError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the caller answers for the memory; the dimensions are copied. Inputs and weights are never written
        // to, although the parameter isn't const.
        let status = unsafe {
            let data = data.cast_mut().cast();
            let create = runtime.api.CreateTensorWithDataAsOrtValue;
            create(runtime.host, data, length, dims.as_ptr(), dims.len(), element, &mut raw)
        };
        runtime.check(status)?;
        Ok(Self { runtime, raw })
    }

    /// A tensor of empty strings.
    pub(crate) fn strings(runtime: &'static Runtime, dims: &[i64]) -> Result<Self, RuntimeError> {
        let mut raw = ptr::null_mut();
        let element = sys::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING;
        // SAFETY: the dimensions are copied; the out-pointer is valid.
        let status = unsafe {
            (runtime.api.CreateTensorAsOrtValue)(runtime.allocator, dims.as_ptr(), dims.len(), element, &mut raw)
        };
        runtime.check(status)?;
        Ok(Self { runtime, raw })
    }

    /// Takes over what the runtime made.
    ///
    /// # Safety
    /// `raw` must be a live value that nobody else frees.
    pub(crate) unsafe fn owned(runtime: &'static Runtime, raw: *mut sys::OrtValue) -> Self {
        Self { runtime, raw }
    }
}

impl Drop for SessionTensor {
    fn drop(&mut self) {
        // SAFETY: ours, freed once.
        unsafe { (self.runtime.api.ReleaseValue)(self.raw) }
    }
}

/// Packed weights, once for all sessions that were made with it.
pub(crate) struct PackedWeights {
    runtime: &'static Runtime,
    raw: *mut sys::OrtPrepackedWeightsContainer,
}

// SAFETY: the runtime locks the container itself.
unsafe impl Send for PackedWeights {}
// SAFETY: as above.
unsafe impl Sync for PackedWeights {}

impl PackedWeights {
    pub(crate) fn new(runtime: &'static Runtime) -> Result<Self, RuntimeError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the out-pointer is valid.
        runtime.check(unsafe { (runtime.api.CreatePrepackedWeightsContainer)(&mut raw) })?;
        Ok(Self { runtime, raw })
    }
}

impl Drop for PackedWeights {
    fn drop(&mut self) {
        // SAFETY: ours, freed once, after the sessions that use it: each holds it.
        unsafe { (self.runtime.api.ReleasePrepackedWeightsContainer)(self.raw) }
    }
}

/// A model that can be run.
pub(crate) struct Session {
    pub(crate) runtime: &'static Runtime,
    /// Whether it uses the shared pool of threads where others don't.
    pub(crate) is_wide: bool,
    pub(crate) raw: *mut sys::OrtSession,
    #[allow(dead_code, reason = "the session uses them")]
    packed: Option<Arc<PackedWeights>>,
}

// SAFETY: a session may be used from any thread.
unsafe impl Send for Session {}
// SAFETY: as above; running one is safe from many threads.
unsafe impl Sync for Session {}

impl Session {
    /// From a file's bytes, which are copied as far as they are needed later.
    pub(crate) fn from_bytes(
        runtime: &'static Runtime,
        bytes: &[u8],
        options: &SessionOptions,
        packed: Option<Arc<PackedWeights>>,
    ) -> Result<Self, RuntimeError> {
        let (mut raw, environment) = (ptr::null_mut(), runtime.raw_environment());
        let (data, length) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: bytes and options are live for the call, the container outlives the session, the out-pointer is
        // valid.
        let status = unsafe {
            match &packed {
                None => (runtime.api.CreateSessionFromArray)(environment, data, length, options.raw, &mut raw),
                Some(packed) => {
                    let create = runtime.api.CreateSessionFromArrayWithPrepackedWeightsContainer;
                    create(environment, data, length, options.raw, packed.raw, &mut raw)
                }
            }
        };
        runtime.check(status)?;
        Ok(Self { runtime, is_wide: options.is_wide, raw, packed })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: ours, freed once.
        unsafe { (self.runtime.api.ReleaseSession)(self.raw) }
    }
}
