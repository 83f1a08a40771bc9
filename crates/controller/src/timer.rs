//! The thread that drives when nobody else does and the scheduler wants to be woken.

use crate::cell::InboxSender;
use base::Timestamp;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;

/// How long to wait for the one that drives just now.
const DRIVEN_PAUSE: base::Duration = base::Duration::from_micros(50);

/// It sleeps until the earliest instant that was ever set and not yet slept through. A wish for a later instant doesn't
/// wake it: waking a thread costs more than one look too many.
#[derive(Debug)]
pub(crate) struct Timer {
    /// When the scheduler wants to be woken, in nanoseconds.
    wanted_at: AtomicU64,
    /// Until when the thread sleeps.
    sleeps_until: AtomicU64,
    thread: OnceLock<Thread>,
    stopped: AtomicBool,
}

impl Default for Timer {
    fn default() -> Self {
        let never = || AtomicU64::new(Timestamp::NEVER.as_nanos());
        Self { wanted_at: never(), sleeps_until: never(), thread: OnceLock::new(), stopped: AtomicBool::new(false) }
    }
}

impl Timer {
    pub fn start(of: InboxSender) -> std::io::Result<()> {
        let inbox = of.clone();
        let handle = std::thread::Builder::new().name("timer".into()).spawn(move || {
            while let Some(inner) = inbox.inner.upgrade() {
                let cell = &inner.cells[inbox.cell];
                let timer = &cell.timer;
                if timer.stopped.load(Ordering::Relaxed) {
                    return;
                }
                let wanted_at = timer.wanted_at.load(Ordering::SeqCst);
                let now = inner.clock.now();
                if wanted_at <= now.as_nanos() {
                    cell.drive(&inner);
                    // Whoever else is driving sets the next instant; until then there is nothing to do here.
                    if timer.wanted_at.load(Ordering::SeqCst) == wanted_at {
                        std::thread::park_timeout(DRIVEN_PAUSE.into());
                    }
                    continue;
                }
                timer.sleeps_until.store(wanted_at, Ordering::SeqCst);
                // Between the two, an earlier wish may have come that saw the old `sleeps_until`.
                let still = timer.wanted_at.load(Ordering::SeqCst) == wanted_at;
                // An hour at most, so that a controller that was dropped is noticed.
                let sleep = Timestamp::from_nanos(wanted_at).since(now).min(base::Duration::from_secs(3600));
                drop(inner);
                if still {
                    std::thread::park_timeout(sleep.into());
                }
            }
        })?;
        if let Some(inner) = of.inner.upgrade() {
            let _ = inner.cells[of.cell].timer.thread.set(handle.thread().clone());
        }
        Ok(())
    }

    pub fn set(&self, wanted_at: Timestamp) {
        self.wanted_at.store(wanted_at.as_nanos(), Ordering::SeqCst);
        if wanted_at.as_nanos() < self.sleeps_until.load(Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Whether it should have let somebody drive by now.
    pub fn is_late(&self, now: Timestamp) -> bool {
        self.wanted_at.load(Ordering::Relaxed) < now.as_nanos() && !self.stopped.load(Ordering::Relaxed)
    }

    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}
