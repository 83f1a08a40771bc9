//! Keeps the runtime from reporting to its makers.

use std::{env, fs};

/// From 1.29 on, the runtime reads it when it is loaded. What its interface has to switch reports off
/// (`DisableTelemetryEvents`) comes later than the first of them.
const VARIABLE: &str = "ORT_DISABLE_TELEMETRY";

/// Says in the environment that the runtime must not report. Call it first in `main`: it does nothing once there is a
/// second thread, which could be reading the environment, nor where somebody has set the variable.
pub fn refuse() {
    let threads = fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    if threads == 1 && env::var_os(VARIABLE).is_none() {
        // SAFETY: there is one thread, which is here: nobody reads or changes the environment meanwhile.
        unsafe { env::set_var(VARIABLE, "1") };
    }
}
