//! Work that would keep an io thread, and with it every other connection, for long: done beside it.
//!
//! A megabyte of JSON takes milliseconds to read or write. The io thread's runtime has one thread for such work; what
//! waits for it is bounded by the requests in flight.

use wire::{Fault, Reason};

/// JSON or compressed bytes from this size on are read beside the io thread: the handover costs about as much as reading a
/// tenth of it.
pub(crate) const READ_BESIDE: usize = 64 << 10;
/// Tensors from this size on are written as JSON, or compressed, beside the io thread.
pub(crate) const WRITE_BESIDE: usize = 32 << 10;

/// Does the work on the thread beside this one.
pub(crate) async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    // Fails only if the work panics, which is a bug: the request gets an answer all the same.
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Fault::new(Reason::ExecutionFailed, "the request's conversion failed; this is a bug")))
}
