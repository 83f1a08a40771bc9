//! Binding a thread to a core, where the system allows.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that this process may use.
pub(crate) fn allowed_cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}

/// Binds the calling thread to the given one of the allowed cores, counted from the last. Says why when it can't.
pub fn pin_from_last(position: usize) -> Result<usize, String> {
    let cores = allowed_cores();
    let Some(&core) = cores.iter().rev().nth(position) else {
        return Err(format!("there are only {} cores", cores.len()));
    };
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).map_err(|error| format!("core {core}: {error}"))?;
    Ok(core)
}
