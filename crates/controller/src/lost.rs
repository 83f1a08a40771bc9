//! Requests that went with a thread that hangs: it has their inputs and the way to whoever asked, so that they are told
//! from outside.

use crate::{Controller, Refusal, Ticket};
use base::RequestId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use tokio::sync::watch;

/// Why each of them is lost. Few: as many as a device was ordered when it was given up.
#[derive(Debug, Default)]
pub(crate) struct LostRequests {
    why: Mutex<HashMap<RequestId, String>>,
    /// How many there are: where there are none, which is nearly always, nobody takes the lock.
    count: AtomicUsize,
    /// Changes when there are more.
    changes: watch::Sender<u64>,
}

impl LostRequests {
    pub fn add(&self, request: RequestId, why: String) {
        let mut lost = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        lost.insert(request, why);
        self.count.store(lost.len(), Ordering::SeqCst);
    }

    fn take(&self, request: RequestId) -> Option<String> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut lost = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        let why = lost.remove(&request);
        self.count.store(lost.len(), Ordering::SeqCst);
        why
    }

    /// Tells those who wait.
    pub fn tell(&self) {
        self.changes.send_modify(|times| *times += 1);
    }
}

impl Controller {
    /// Changes whenever requests are lost with a thread that hangs.
    pub fn losses(&self) -> watch::Receiver<u64> {
        self.inner.lost.changes.subscribe()
    }

    /// Whether a request is lost with a thread that hangs, and what is to be said of that. No reply will come.
    pub fn is_lost(&self, ticket: Ticket) -> Option<Refusal> {
        self.inner.lost.take(ticket.id).map(Refusal::failed)
    }
}
