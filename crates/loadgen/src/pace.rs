//! Waiting until an instant, to a few microseconds.
//!
//! The event loop's own timer counts whole milliseconds, which is longer than many answers take. The kernel's timer
//! that can be waited for like a socket has no such grid.

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;

/// A timer for one task.
#[derive(Debug)]
pub struct Pacer {
    timer: AsyncFd<OwnedFd>,
}

impl Pacer {
    /// A timer on the present event loop.
    pub fn new() -> io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        // Its replacement asks for a promise in an unsafe block: that the value never names another descriptor. This
        // one owns its descriptor for as long as it lives.
        #[expect(deprecated, reason = "the safe way; what the other one guards against can't happen here")]
        let timer = AsyncFd::new(timer)?;
        Ok(Self { timer })
    }

    /// Waits until that instant; never returns before it.
    pub async fn until(&self, at: Instant) -> io::Result<()> {
        loop {
            let left = at.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return Ok(());
            }
            self.set(left)?;
            let mut ready = self.timer.readable().await?;
            let mut count = [0u8; 8];
            // A timer that was set anew isn't readable any more; both ways the clock decides.
            let _ = ready.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut count)?));
        }
    }

    fn set(&self, span: Duration) -> io::Result<()> {
        let value = Timespec {
            tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(span.subsec_nanos()),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_wakes_early_and_can_be_used_again() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let pacer = Pacer::new().unwrap();
            for micros in [0, 50, 700, 3_000, 1] {
                let at = Instant::now() + Duration::from_micros(micros);
                pacer.until(at).await.unwrap();
                assert!(Instant::now() >= at);
            }
        });
    }
}
