//! Work that would keep an io thread, and with it every other connection, for long: done on another thread.
//!
//! A megabyte of JSON takes milliseconds to read or write. The io thread's runtime has one thread for such work. What
//! waits for it is bounded by the requests in flight: it isn't done if nobody waits for it any more.

use base::Reason;
use tokio::task::JoinHandle;
use wire::Fault;

/// JSON from this size on is read on another thread: the handover costs about as much as reading a tenth of it.
pub(crate) const OFFLOAD_READ_BYTES: usize = 64 << 10;
/// Tensors from this size on are written as JSON, or compressed, on another thread.
pub(crate) const OFFLOAD_WRITE_BYTES: usize = 32 << 10;

/// Does the work on the io thread's other thread.
pub(crate) async fn offload<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let mut work = AbortOnDrop(tokio::task::spawn_blocking(work));
    // Fails only if the work panics, which is a bug: the request gets an answer all the same.
    let done = (&mut work.0).await;
    done.unwrap_or_else(|_| Err(Fault::new(Reason::ExecutionFailed, "the request's conversion failed; this is a bug")))
}

/// Work that isn't begun, and whose memory is given back, if this is dropped before it is its turn.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc;

    #[test]
    fn work_that_nobody_waits_for_is_not_done() {
        crate::server::block_on(async {
            let (go, gate) = mpsc::channel::<()>();
            let first = tokio::spawn(offload(move || Ok(gate.recv().is_ok())));
            tokio::task::yield_now().await;
            let memory = Arc::new(());
            let theirs = Arc::clone(&memory);
            let second = tokio::spawn(offload(move || -> Result<(), Fault> { panic!("done for nobody: {theirs:?}") }));
            tokio::task::yield_now().await;
            second.abort();
            assert!(second.await.unwrap_err().is_cancelled());
            go.send(()).unwrap();
            assert_eq!(first.await.unwrap(), Ok(true));
            assert_eq!(offload(|| Ok(3)).await, Ok(3), "it comes after the second one, whose turn is over then");
            assert_eq!(Arc::strong_count(&memory), 1);
        });
    }
}
