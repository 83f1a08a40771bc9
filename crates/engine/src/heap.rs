//! Memory that was freed and is still the process's.
#![allow(unsafe_code, reason = "the C library is asked; the block says why it is sound")]

/// Gives freed memory back to the system. The session that a preparation makes packs all of a model's weights and frees
/// them again; small blocks that stay keep the C library from returning that by itself, so that 500 models of 10 MB
/// would hold 5 GB for nothing. A cache that was emptied is the same. Takes a moment and stops other threads'
/// allocations for it: not for the hot path.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn give_back() {
    // SAFETY: takes no pointers; the C library locks its own structures.
    unsafe { libc::malloc_trim(0) };
}

/// Other C libraries return freed memory by themselves, or never.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn give_back() {}
