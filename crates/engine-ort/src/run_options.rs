//! How a model's executions are run, and how one is ended from another thread.

use crate::runtime::{Runtime, RuntimeError};
use engine::Breaker;
use ort::sys;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// The options of one loaded model, whose executions run one at a time.
///
/// The runtime looks at their flag before each node of a graph, also of a loop's body. A single node isn't broken off.
pub(crate) struct RunOptions {
    runtime: &'static Runtime,
    plain: *mut sys::OrtRunOptions,
    /// For an execution after which the workspace gives back what lies unused; null where none is.
    shrinking: *mut sys::OrtRunOptions,
    broken_off: AtomicBool,
}

// SAFETY: options have no tie to the thread that made them.
unsafe impl Send for RunOptions {}
// SAFETY: the only change after they were made is that of their flag, which the runtime allows while they are in use.
unsafe impl Sync for RunOptions {}

impl RunOptions {
    pub(crate) fn new(runtime: &'static Runtime, shrinks: bool) -> Result<Self, RuntimeError> {
        let (plain, broken_off) = (make(runtime)?, AtomicBool::new(false));
        let mut options = Self { runtime, plain, shrinking: ptr::null_mut(), broken_off };
        if shrinks {
            options.shrinking = make(runtime)?;
            let (option, arena) = (c"memory.enable_memory_arena_shrinkage", c"cpu:0");
            // SAFETY: the options are live, both texts are copied.
            runtime.check(unsafe {
                (runtime.api.AddRunConfigEntry)(options.shrinking, option.as_ptr(), arena.as_ptr())
            })?;
        }
        Ok(options)
    }

    pub(crate) fn plain(&self) -> *const sys::OrtRunOptions {
        self.plain
    }

    pub(crate) fn shrinking(&self) -> *const sys::OrtRunOptions {
        self.shrinking
    }

    /// An execution begins: what broke the one before off doesn't count for it.
    pub(crate) fn begin(&self) {
        if self.is_broken_off() {
            self.each(self.runtime.api.RunOptionsUnsetTerminate);
            self.broken_off.store(false, Ordering::Relaxed);
        }
    }

    /// Whether the execution that began last was broken off.
    pub(crate) fn is_broken_off(&self) -> bool {
        self.broken_off.load(Ordering::Relaxed)
    }

    fn each(&self, change: unsafe extern "system" fn(*mut sys::OrtRunOptions) -> sys::OrtStatusPtr) {
        for raw in [self.plain, self.shrinking].into_iter().filter(|raw| !raw.is_null()) {
            // SAFETY: the options are live. To set or unset their flag never fails.
            let _ = self.runtime.check(unsafe { change(raw) });
        }
    }
}

impl Breaker for RunOptions {
    fn break_off(&self) {
        self.broken_off.store(true, Ordering::Relaxed);
        // Before the flag: whoever sees its effect sees its reason.
        fence(Ordering::SeqCst);
        self.each(self.runtime.api.RunOptionsSetTerminate);
    }
}

impl Drop for RunOptions {
    fn drop(&mut self) {
        for raw in [self.plain, self.shrinking].into_iter().filter(|raw| !raw.is_null()) {
            // SAFETY: ours, freed once.
            unsafe { (self.runtime.api.ReleaseRunOptions)(raw) }
        }
    }
}

fn make(runtime: &'static Runtime) -> Result<*mut sys::OrtRunOptions, RuntimeError> {
    let mut raw = ptr::null_mut();
    // SAFETY: the out-pointer is valid.
    runtime.check(unsafe { (runtime.api.CreateRunOptions)(&mut raw) })?;
    Ok(raw)
}
