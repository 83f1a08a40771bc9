//! One task in each io thread that lets the scheduler look at what the thread's connections handed over.

use controller::Controller;
use tokio::sync::Notify;

/// Wakes the driver task.
///
/// The runtime's queue is first in, first out: the tasks that were ready when the first of them submitted run before the
/// driver does, so their requests are handed over together.
#[derive(Debug, Default)]
pub(crate) struct Driver {
    news: Notify,
}

impl Driver {
    /// There is something to look at.
    pub(crate) fn wake(&self) {
        self.news.notify_one();
    }

    /// The driver task; runs until it is dropped.
    pub(crate) async fn run(&self, controller: &Controller) {
        loop {
            self.news.notified().await;
            controller.drive();
        }
    }
}
