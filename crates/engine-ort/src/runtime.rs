//! The loaded library: its table of functions, the one environment that a process may have, and the memory it works in.

use crate::OrtOptions;
use crate::library::{not_loaded, unavailable};
use engine::EngineError;
use ort::AsPointer;
use ort::environment::{Environment, GlobalThreadPoolOptions};
use ort::logging::LogLevel;
use ort::sys;
use std::ffi::CStr;
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

/// See the module. There is one for each process, and it lives as long as the process.
pub(crate) struct Runtime {
    pub(crate) api: &'static sys::OrtApi,
    pub(crate) environment: Environment,
    /// Says of a tensor that it lies in plain host memory.
    pub(crate) host: *const sys::OrtMemoryInfo,
    /// For names that the runtime hands out.
    pub(crate) allocator: *mut sys::OrtAllocator,
    /// Whether sessions share a pool of threads; otherwise each execution stays on the thread that asks for it.
    pub(crate) pooled: bool,
    /// Whether there is a pool for sessions that are asked to use it, where the others don't.
    pub(crate) has_wide: bool,
    /// For the key of the cache.
    pub(crate) build: &'static str,
}

// SAFETY: the pointers are to objects that the runtime documents as safe to use from any thread, and that are never
// freed.
unsafe impl Send for Runtime {}
// SAFETY: as above; nothing here is changed after it was made.
unsafe impl Sync for Runtime {}

/// What a call into the runtime returned instead of success.
#[derive(Debug)]
pub(crate) struct RuntimeError(pub(crate) String);

/// What is said where a copy finds no memory.
pub(crate) fn no_memory(bytes: usize) -> RuntimeError {
    RuntimeError(format!("a tensor of {bytes} bytes finds no memory"))
}

impl Runtime {
    /// The process's runtime; the first call loads the library of that path, with these options; later calls ignore
    /// both.
    pub(crate) fn get(path: &Path, options: &OrtOptions) -> Result<&'static Self, EngineError> {
        static LOADED: Mutex<Option<&'static Runtime>> = Mutex::new(None);
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = *loaded {
            return Ok(runtime);
        }
        let runtime: &'static Self = Box::leak(Box::new(Self::load(path, options)?));
        *loaded = Some(runtime);
        Ok(runtime)
    }

    fn load(path: &Path, options: &OrtOptions) -> Result<Self, EngineError> {
        let failed = |what: &dyn std::fmt::Display| unavailable(format!("{}: {what}", path.display()));
        let mut builder = ort::init_from(path).map_err(|error| not_loaded(path, &error))?;
        let pooled = options.threads > 1;
        let has_wide = !pooled && options.wide_threads > 1;
        if pooled || has_wide {
            let threads = if pooled { options.threads } else { options.wide_threads };
            builder = builder.with_global_thread_pool(pool(threads).map_err(|error| failed(&error))?);
        }
        let environment = builder
            .with_name("punctual")
            .with_telemetry(false)
            // What goes wrong is also returned, and becomes a sentence of ours there.
            .with_logger(Arc::new(|_, _, _, at, message| tracing::debug!(target: "onnxruntime", at, "{message}")))
            .build()
            .map_err(|error| failed(&error))?;
        environment.set_log_level(LogLevel::Error);
        let api = ort::api();
        let (mut host, mut allocator) = (ptr::null_mut(), ptr::null_mut());
        let kind = sys::OrtAllocatorType::OrtDeviceAllocator;
        // SAFETY: all out-pointers are valid for the calls.
        let made = unsafe {
            check(api, (api.CreateCpuMemoryInfo)(kind, sys::OrtMemType::OrtMemTypeDefault, &mut host))
                .and_then(|()| check(api, (api.GetAllocatorWithDefaultOptions)(&mut allocator)))
        };
        made.map_err(|refused| failed(&refused.0))?;
        let runtime = Self { api, environment, host, allocator, pooled, has_wide, build: ort::info() };
        runtime.share_workspace(options.workspace_bytes).map_err(|refused| failed(&refused.0))?;
        Ok(runtime)
    }

    /// One arena for what all sessions compute with, so that a session that was just made finds memory that is warm:
    /// with an arena each, MobileNetV2's first execution takes 35 % longer than the next ones.
    fn share_workspace(&self, most_bytes: u64) -> Result<(), RuntimeError> {
        let mut config = ptr::null_mut();
        let mut info = ptr::null_mut();
        let kind = sys::OrtAllocatorType::OrtArenaAllocator;
        // Bytes, of which 0 is no bound; grow by what is asked for; default sizes of the first and of unused pieces. By
        // powers of two the last regions are as large as all before, little of them is ever free as a whole, and what
        // hostile inputs once took comes in steps of a quarter of a gigabyte and stays.
        let most_bytes = usize::try_from(most_bytes).ok().filter(|&bytes| bytes < isize::MAX as usize).unwrap_or(0);
        // SAFETY: all out-pointers are valid; the runtime copies the configuration and the description.
        unsafe {
            self.check((self.api.CreateArenaCfg)(most_bytes, 1, -1, -1, &mut config))?;
            let registered = self
                .check((self.api.CreateCpuMemoryInfo)(kind, sys::OrtMemType::OrtMemTypeDefault, &mut info))
                .and_then(|()| self.check((self.api.CreateAndRegisterAllocator)(self.raw_environment(), info, config)));
            (self.api.ReleaseArenaCfg)(config);
            if !info.is_null() {
                (self.api.ReleaseMemoryInfo)(info);
            }
            registered
        }
    }

    pub(crate) fn raw_environment(&self) -> *mut sys::OrtEnv {
        self.environment.ptr().cast_mut()
    }

    pub(crate) fn check(&self, status: sys::OrtStatusPtr) -> Result<(), RuntimeError> {
        check(self.api, status)
    }

    /// The same for an execution's status, which has a code, too.
    pub(crate) fn check_execution(&self, status: sys::OrtStatusPtr) -> Result<(), (sys::OrtErrorCode, RuntimeError)> {
        let code = if status.0.is_null() {
            sys::OrtErrorCode::ORT_OK
        } else {
            // SAFETY: a status that isn't null is ours, and freed below.
            unsafe { (self.api.GetErrorCode)(status.0) }
        };
        self.check(status).map_err(|refused| (code, refused))
    }
}

/// One pool for all sessions: with one each, hundreds of models would be hundreds of pools.
fn pool(threads: u16) -> ort::Result<GlobalThreadPoolOptions> {
    let options = GlobalThreadPoolOptions::default();
    options.with_intra_threads(threads.into())?.with_inter_threads(1)?.with_spin_control(false)
}

/// Takes a status and gives its message, without the prefixes that name the runtime's source files.
fn check(api: &sys::OrtApi, status: sys::OrtStatusPtr) -> Result<(), RuntimeError> {
    if status.0.is_null() {
        return Ok(());
    }
    // SAFETY: a status that isn't null is ours, its message is a C string that lives as long as it, and it is freed
    // once.
    let message = unsafe {
        let message = CStr::from_ptr((api.GetErrorMessage)(status.0)).to_string_lossy().into_owned();
        (api.ReleaseStatus)(status.0);
        message
    };
    Err(RuntimeError(readable(&message)))
}

/// One line, without the source position with which the runtime opens some of its messages.
fn readable(message: &str) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match after_position(&line) {
        Some(rest) if !rest.is_empty() => rest.to_owned(),
        _ => line,
    }
}

/// What follows "/path/file.cc:123 type Some::function(arguments) ", if the line opens like this.
fn after_position(line: &str) -> Option<&str> {
    let (_, function) = line.strip_prefix('/')?.split_once(".cc:")?;
    let mut open = 0;
    let end = function.find(|c: char| {
        match c {
            '(' => open += 1,
            ')' => open -= 1,
            _ => {}
        }
        c == ')' && open == 0
    })?;
    let rest = function[end + 1..].trim_start();
    Some(rest.strip_prefix("const ").unwrap_or(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_positions_are_left_out() {
        for (message, expected) in [
            ("/a/b.cc:12 void A::f(const B&, void (*)(int)) It is\n bad: 3.", "It is bad: 3."),
            ("/a/b.cc:12 int A::f() const x was false", "x was false"),
            ("/a/b.cc:12 int A::f()", "/a/b.cc:12 int A::f()"),
            ("bad (a.cc:1) model", "bad (a.cc:1) model"),
        ] {
            assert_eq!(readable(message), expected);
        }
    }
}
