//! One task in each io thread that lets the scheduler look at what the thread's connections handed over.

use base::Duration;
use controller::Controller;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::Notify;

/// Where requests come one after another, the io thread looks for the answer and for the next request for so long
/// before it sleeps: on an idle core, waking it takes longer than all of the work on a small model.
const LINGER: Duration = Duration::from_micros(100);

/// Wakes the driver task.
///
/// The runtime's queue is first in, first out: the tasks that were ready when the first of them submitted run before
/// the driver does, so their requests are handed over together.
#[derive(Debug, Default)]
pub(crate) struct Driver {
    news: Notify,
    /// Set with each piece of news: the driver may be awake already.
    pending: AtomicBool,
}

impl Driver {
    /// There is something to look at.
    pub(crate) fn wake(&self) {
        self.pending.store(true, Ordering::Relaxed);
        self.news.notify_one();
    }

    /// The driver task; runs until it is dropped. `calls` counts the thread's requests in flight.
    pub(crate) async fn run(&self, controller: &Controller, calls: &AtomicUsize) {
        loop {
            self.news.notified().await;
            self.pending.store(false, Ordering::Relaxed);
            controller.drive();
            self.linger(controller, calls).await;
        }
    }

    /// Stays awake for a moment, unless several requests are in flight: then there is always something to do.
    async fn linger(&self, controller: &Controller, calls: &AtomicUsize) {
        let mut until = controller.now() + LINGER;
        while calls.load(Ordering::Relaxed) <= 1 && controller.now() < until {
            // First whoever else wants this core, then whatever this thread's sockets and mailbox have.
            std::thread::yield_now();
            tokio::task::yield_now().await;
            if self.pending.swap(false, Ordering::Relaxed) {
                controller.drive();
                until = controller.now() + LINGER;
            }
        }
    }
}
