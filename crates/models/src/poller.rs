//! A thread that copies what has changed in buckets, from time to time.

use base::Duration;
use repository::{Sources, WantedModels};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;

/// A model whose objects change within this time is being written.
const SETTLING: Duration = Duration::from_secs(1);

/// Looks at buckets until it is dropped.
pub(crate) struct Poller {
    stop: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Poller {
    pub(crate) fn start(sources: Arc<Sources>, interval: Duration) -> Self {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new().name("sources".into()).spawn(move || {
            let mut failed = false;
            while stopped.recv_timeout(interval.into()) == Err(RecvTimeoutError::Timeout) {
                match sources.sync(&WantedModels::All, SETTLING, &|_| {}) {
                    Ok(()) if failed => {
                        failed = false;
                        tracing::info!("all buckets can be read again");
                    }
                    Ok(()) => {}
                    // Said once, not with every look.
                    Err(error) if !failed => {
                        failed = true;
                        tracing::warn!("{error}; what was copied before stays");
                    }
                    Err(_) => {}
                }
            }
        });
        if let Err(error) = &thread {
            tracing::error!("changes in buckets won't be noticed: a thread could not be started: {error}");
        }
        Self { stop, thread: thread.ok() }
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        let _ = self.stop.send(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
