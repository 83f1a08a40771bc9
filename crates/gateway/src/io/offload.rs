//! Work that would keep an io thread, and with it every other connection, for long: done on another thread.
//!
//! A megabyte of JSON takes milliseconds to read or write, and what is compressed may be a thousand times as large as
//! it looks. Each io thread's runtime has one thread for such work. Which job is next follows from what each client has
//! had. What waits is bounded by the requests in flight: it isn't done if nobody waits for it any more.

use crate::io::clients::Owner;
use crate::io::fair_queue::{FairQueue, Payer};
use base::Reason;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::oneshot;
use wire::Fault;

/// JSON from this size on is read on another thread: the handover costs about as much as reading a tenth of it.
pub(crate) const OFFLOAD_READ_BYTES: usize = 64 << 10;
/// Tensors from this size on are written as JSON, or compressed, on another thread.
pub(crate) const OFFLOAD_WRITE_BYTES: usize = 32 << 10;

type Work = Box<dyn FnOnce() + Send>;

/// The work of all io threads that waits.
#[derive(Default)]
pub(crate) struct Offload {
    waiting: Mutex<FairQueue<Work>>,
}

impl Offload {
    fn waiting(&self) -> MutexGuard<'_, FairQueue<Work>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the job whose turn it is, if there is one.
    fn work(&self) {
        let Some((payer, work)) = self.waiting().pop() else { return };
        let paid = Paid { offload: self, payer, began_at: Instant::now() };
        work();
        drop(paid);
    }
}

/// Counts what a job took, also if it panics.
struct Paid<'a> {
    offload: &'a Offload,
    payer: Payer,
    began_at: Instant,
}

impl Drop for Paid<'_> {
    fn drop(&mut self) {
        let spent = u64::try_from(self.began_at.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.offload.waiting().pay(self.payer, spent);
    }
}

/// Does work of about so many bytes for a client on another thread.
pub(crate) async fn offload<T: Send + 'static>(
    owner: &Arc<Owner>,
    bytes: usize,
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let (reply, answer) = oneshot::channel();
    // Whoever waits may be gone.
    let work = Box::new(move || drop(reply.send(work())));
    let offload = &owner.shared.offload;
    let ticket = offload.waiting().push(owner.payer(), bytes, work);
    let _waits = TakeBackOnDrop { owner, ticket };
    // As many turns as jobs; which of them is done in which turn is seen then.
    let turn = Arc::clone(&owner.shared);
    tokio::task::spawn_blocking(move || turn.offload.work());
    // Fails only if the work panics, which is a bug: the request gets an answer all the same.
    answer
        .await
        .unwrap_or_else(|_| Err(Fault::new(Reason::ExecutionFailed, "the request's conversion failed; this is a bug")))
}

/// Work that isn't begun, and whose memory is given back, if this is dropped before it is its turn.
struct TakeBackOnDrop<'a> {
    owner: &'a Owner,
    ticket: u64,
}

impl Drop for TakeBackOnDrop<'_> {
    fn drop(&mut self) {
        let work = self.owner.shared.offload.waiting().take_back(self.owner.payer(), self.ticket);
        // What it holds is given back without the lock.
        drop(work);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn work_that_nobody_waits_for_is_not_done() {
        let owner = Owner::alone(crate::Config::default());
        let offload = |work| {
            let owner = Arc::clone(&owner);
            async move { super::offload(&owner, 1, work).await }
        };
        type Boxed = Box<dyn FnOnce() -> Result<bool, Fault> + Send>;
        let boxed = |work: Boxed| work;
        crate::server::block_on(async {
            let (go, gate) = mpsc::channel::<()>();
            let first = tokio::spawn(offload(boxed(Box::new(move || Ok(gate.recv().is_ok())))));
            tokio::task::yield_now().await;
            let memory = Arc::new(());
            let theirs = Arc::clone(&memory);
            let second = tokio::spawn(offload(boxed(Box::new(move || panic!("done for nobody: {theirs:?}")))));
            tokio::task::yield_now().await;
            second.abort();
            assert!(second.await.unwrap_err().is_cancelled());
            assert_eq!(Arc::strong_count(&memory), 1, "its memory is given back before its turn comes");
            go.send(()).unwrap();
            assert_eq!(first.await.unwrap(), Ok(true));
            assert_eq!(offload(boxed(Box::new(|| Ok(false)))).await, Ok(false));
            let broken = offload(boxed(Box::new(|| panic!("a bug")))).await.unwrap_err();
            assert_eq!(broken.reason, Reason::ExecutionFailed);
            assert_eq!(offload(boxed(Box::new(|| Ok(true)))).await, Ok(true), "the others go on");
        });
    }

    #[test]
    fn a_small_job_of_another_connection_does_not_wait_behind_bombs() {
        let bomber = Owner::alone(crate::Config::default());
        let good = Owner::another(&bomber);
        crate::server::block_on(async {
            let (go, gate) = mpsc::channel::<()>();
            let running = Arc::clone(&bomber);
            let running = tokio::spawn(async move { offload(&running, 1, move || Ok(gate.recv().is_ok())).await });
            tokio::task::yield_now().await;
            let order = Arc::new(Mutex::new(Vec::new()));
            let note = |who: &'static str, owner: &Arc<Owner>, bytes| {
                let (order, owner) = (Arc::clone(&order), Arc::clone(owner));
                tokio::spawn(async move {
                    let work = move || {
                        order.lock().unwrap().push(who);
                        Ok(())
                    };
                    offload(&owner, bytes, work).await
                })
            };
            let jobs: Vec<_> = (0..16).map(|_| note("bomb", &bomber, 1)).chain([note("good", &good, 100)]).collect();
            tokio::task::yield_now().await;
            go.send(()).unwrap();
            running.await.unwrap().unwrap();
            for job in jobs {
                job.await.unwrap().unwrap();
            }
            assert_eq!(order.lock().unwrap()[0], "good");
        });
    }
}
