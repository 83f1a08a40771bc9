//! A client's connection: what it is doing, and the sweep that closes those that do nothing for too long.
//!
//! Time is counted by the sweep itself, in whole seconds, so that a connection reads no clock and sets no timer.

use crate::Config;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

/// Nothing asked.
const IDLE: u8 = 0;
/// Some bytes of a request's head are there.
const HEAD: u8 = 1;
/// The body is being read.
const BODY: u8 = 2;
/// The request is the server's to answer.
const BUSY: u8 = 3;

/// What a connection is doing and since when. Written by its own thread only.
#[derive(Debug)]
pub(crate) struct Activity {
    phase: AtomicU8,
    since: AtomicU32,
    clock: Arc<AtomicU32>,
}

impl Activity {
    fn enter(&self, phase: u8) {
        self.phase.store(phase, Ordering::Relaxed);
        self.since.store(self.clock.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn phase(&self) -> u8 {
        self.phase.load(Ordering::Relaxed)
    }

    /// A request's head is complete.
    pub(crate) fn reads_body(&self) {
        self.enter(BODY);
    }

    /// A request's body is complete.
    pub(crate) fn busy(&self) {
        self.enter(BUSY);
    }

    /// A request is answered.
    pub(crate) fn idle(&self) {
        self.enter(IDLE);
    }

    fn received(&self) {
        match self.phase() {
            IDLE => self.enter(HEAD),
            BODY => self.enter(BODY),
            // A head must be complete in time, however slowly it drips; what comes while the server is busy is the
            // next request's, and counts when that one starts.
            _ => {}
        }
    }
}

/// The connections of one io thread that are watched.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    clock: Arc<AtomicU32>,
    /// Only this thread locks it.
    open: Mutex<OpenConnections>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    next_key: u64,
    watched: HashMap<u64, (Arc<Activity>, AbortHandle)>,
}

/// A connection's place among those that are watched.
#[derive(Debug)]
pub(crate) struct Registration {
    connections: Arc<Connections>,
    key: u64,
}

impl Registration {
    /// Its number.
    pub(crate) fn key(&self) -> u64 {
        self.key
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.connections.open().watched.remove(&self.key);
    }
}

impl Connections {
    /// A new connection's activity.
    pub(crate) fn activity(&self) -> Arc<Activity> {
        let since = AtomicU32::new(self.clock.load(Ordering::Relaxed));
        Arc::new(Activity { phase: AtomicU8::new(IDLE), since, clock: Arc::clone(&self.clock) })
    }

    /// A place for a connection that is about to start; given up when the registration is dropped, however it ends.
    pub(crate) fn register(self: &Arc<Self>) -> Registration {
        let mut open = self.open();
        open.next_key += 1;
        Registration { connections: Arc::clone(self), key: open.next_key }
    }

    /// Watches a connection whose task has not run yet.
    pub(crate) fn watch(&self, key: u64, activity: Arc<Activity>, task: AbortHandle) {
        self.open().watched.insert(key, (activity, task));
    }

    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the seconds, and closes connections that stood still for too long. Runs until it is dropped.
    pub(crate) async fn sweep(&self, config: &Config) {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            second.tick().await;
            self.sweep_once(config);
        }
    }

    fn sweep_once(&self, config: &Config) {
        let now = self.clock.fetch_add(1, Ordering::Relaxed) + 1;
        for (activity, task) in self.open().watched.values() {
            let allowed = match activity.phase() {
                IDLE => config.idle_timeout,
                HEAD => config.header_timeout,
                BODY => config.body_timeout,
                _ => continue,
            };
            let stood = now.wrapping_sub(activity.since.load(Ordering::Relaxed));
            if Duration::from_secs(u64::from(stood)) > allowed {
                task.abort();
            }
        }
    }
}

/// A socket that notes when something was received.
#[derive(Debug)]
pub(crate) struct Watched {
    stream: TokioIo<TcpStream>,
    activity: Arc<Activity>,
}

impl Watched {
    pub(crate) fn new(stream: TcpStream, activity: Arc<Activity>) -> Self {
        Self { stream: TokioIo::new(stream), activity }
    }
}

impl Read for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_read(cx, buf);
        if outcome.is_ready() {
            self.activity.received();
        }
        outcome
    }
}

impl Write for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection that enters `phase`, then stands still; how many seconds until it is closed?
    async fn seconds_until_closed(phase: u8) -> Option<u32> {
        let config = Config {
            header_timeout: Duration::from_secs(3),
            body_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(7),
            ..Config::default()
        };
        let connections = Connections::default();
        let activity = connections.activity();
        activity.enter(phase);
        let task = tokio::spawn(std::future::pending::<()>());
        connections.watch(1, activity, task.abort_handle());
        for second in 1..=20 {
            connections.sweep_once(&config);
            tokio::task::yield_now().await;
            if task.is_finished() {
                return Some(second);
            }
        }
        task.abort();
        None
    }

    #[tokio::test]
    async fn each_phase_has_its_patience() {
        assert_eq!(seconds_until_closed(HEAD).await, Some(4));
        assert_eq!(seconds_until_closed(BODY).await, Some(6));
        assert_eq!(seconds_until_closed(IDLE).await, Some(8));
        assert_eq!(seconds_until_closed(BUSY).await, None, "what the server owes an answer is not cut off");
    }

    #[tokio::test]
    async fn a_dripping_head_gains_no_time_but_a_moving_body_does() {
        let connections = Connections::default();
        let activity = connections.activity();
        let since = || activity.since.load(Ordering::Relaxed);
        activity.received();
        assert_eq!((activity.phase(), since()), (HEAD, 0));
        connections.sweep_once(&Config::default());
        activity.received();
        assert_eq!((activity.phase(), since()), (HEAD, 0));
        activity.reads_body();
        connections.sweep_once(&Config::default());
        activity.received();
        assert_eq!((activity.phase(), since()), (BODY, 2));
    }
}
