//! The end of a process in which the runtime may still compute.

/// Ends the process at once with that code. What libraries do at a process's end isn't done: it would take apart what
/// executions that hang are using, or wait for them.
pub fn end_process(code: i32) -> ! {
    // SAFETY: it takes a number, and doesn't come back.
    unsafe { libc::_exit(code) }
}
