//! A client's connection: what it is doing, and the sweep that closes those that do nothing for too long.
//!
//! Time is counted by the sweep itself, in whole seconds, so that a connection reads no clock and sets no timer.

use crate::Config;
use crate::accept::Protocol;
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
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
/// The answer is being written.
const WRITING: u8 = 4;

/// What a gRPC client sends before anything else: 24 bytes that say what it speaks, and the head of a frame.
const GREETING_BYTES: u32 = 33;

/// What a connection is doing and since when. Written by its own thread only.
#[derive(Debug)]
pub(crate) struct Activity {
    phase: AtomicU8,
    since: AtomicU32,
    clock: Arc<Clock>,
    protocol: Protocol,
    /// What is left of a gRPC client's greeting.
    greeting_left: AtomicU32,
    /// Calls on a gRPC connection that aren't over.
    streams: AtomicU32,
}

/// What the connections of a thread count together.
#[derive(Debug, Default)]
struct Clock {
    seconds: AtomicU32,
    /// Grows with each write.
    writes: AtomicU32,
}

impl Activity {
    fn enter(&self, phase: u8) {
        self.phase.store(phase, Ordering::Relaxed);
        self.since.store(self.clock.seconds.load(Ordering::Relaxed), Ordering::Relaxed);
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

    /// A request's answer is known, and about to be written.
    pub(crate) fn answers(&self) {
        self.enter(WRITING);
    }

    /// A call begins on a gRPC connection.
    pub(crate) fn stream_begins(&self) {
        self.streams.fetch_add(1, Ordering::Relaxed);
        self.enter(BUSY);
    }

    /// A call is over on a gRPC connection.
    pub(crate) fn stream_ends(&self) {
        if self.streams.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.enter(IDLE);
        }
    }

    fn received(&self, bytes: usize) {
        if self.protocol == Protocol::Grpc {
            return self.greeted(bytes);
        }
        match self.phase() {
            IDLE => self.enter(HEAD),
            BODY => self.enter(BODY),
            // A head must be complete in time, however slowly it drips; what comes while the server is busy is the
            // next request's, and counts when that one starts.
            _ => {}
        }
    }

    /// Calls count for themselves, so only the greeting is watched.
    fn greeted(&self, bytes: usize) {
        if self.phase() == HEAD {
            let left = self.greeting_left.load(Ordering::Relaxed);
            let left = left.saturating_sub(u32::try_from(bytes).unwrap_or(u32::MAX));
            self.greeting_left.store(left, Ordering::Relaxed);
            if left == 0 {
                self.enter(IDLE);
            }
        }
    }

    /// Something was written; more of the same answer may follow.
    fn wrote(&self) {
        self.clock.writes.fetch_add(1, Ordering::Relaxed);
        if self.protocol == Protocol::Http && matches!(self.phase(), IDLE | WRITING) {
            self.enter(WRITING);
        }
    }

    /// Everything that there was to write is written.
    fn flushed(&self) {
        if self.phase() == WRITING {
            self.enter(IDLE);
        }
    }
}

/// The connections of one io thread that are watched.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    clock: Arc<Clock>,
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
    pub(crate) fn activity(&self, protocol: Protocol) -> Arc<Activity> {
        let phase = match protocol {
            Protocol::Http => IDLE,
            Protocol::Grpc => HEAD,
        };
        Arc::new(Activity {
            phase: AtomicU8::new(phase),
            since: AtomicU32::new(self.clock.seconds.load(Ordering::Relaxed)),
            clock: Arc::clone(&self.clock),
            protocol,
            greeting_left: AtomicU32::new(GREETING_BYTES),
            streams: AtomicU32::new(0),
        })
    }

    /// Whether an answer is being written.
    pub(crate) fn any_writes(&self) -> bool {
        self.open().watched.values().any(|(activity, _)| activity.phase() == WRITING)
    }

    /// How many writes there were; wraps.
    pub(crate) fn writes(&self) -> u32 {
        self.clock.writes.load(Ordering::Relaxed)
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
        let now = self.clock.seconds.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        for (activity, task) in self.open().watched.values() {
            let allowed = match activity.phase() {
                IDLE => config.idle_timeout,
                HEAD => config.header_timeout,
                BODY | WRITING => config.body_timeout,
                _ => continue,
            };
            let stood = now.wrapping_sub(activity.since.load(Ordering::Relaxed));
            if Duration::from_secs(u64::from(stood)) > allowed {
                task.abort();
            }
        }
    }
}

/// A socket that notes when something is received or written.
#[derive(Debug)]
pub(crate) struct Watched {
    stream: TcpStream,
    activity: Arc<Activity>,
}

impl Watched {
    pub(crate) fn new(stream: TcpStream, activity: Arc<Activity>) -> Self {
        Self { stream, activity }
    }

    fn note_write(&self, outcome: &Poll<io::Result<usize>>) {
        if matches!(outcome, Poll::Ready(Ok(_))) {
            self.activity.wrote();
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(cx, buf);
        if outcome.is_ready() {
            self.activity.received(buf.filled().len() - before);
        }
        outcome
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.note_write(&outcome);
        outcome
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(cx);
        if outcome.is_ready() {
            self.activity.flushed();
        }
        outcome
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
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.note_write(&outcome);
        outcome
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
        let activity = connections.activity(Protocol::Http);
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
        assert_eq!(
            seconds_until_closed(WRITING).await,
            Some(6),
            "a client that doesn't read is like one that doesn't write"
        );
        assert_eq!(seconds_until_closed(BUSY).await, None, "what the server owes an answer is not cut off");
    }

    #[tokio::test]
    async fn a_dripping_head_gains_no_time_but_a_moving_body_does() {
        let connections = Connections::default();
        let activity = connections.activity(Protocol::Http);
        let since = || activity.since.load(Ordering::Relaxed);
        activity.received(1);
        assert_eq!((activity.phase(), since()), (HEAD, 0));
        connections.sweep_once(&Config::default());
        activity.received(1);
        assert_eq!((activity.phase(), since()), (HEAD, 0));
        activity.reads_body();
        connections.sweep_once(&Config::default());
        activity.received(1);
        assert_eq!((activity.phase(), since()), (BODY, 2));
    }

    #[tokio::test]
    async fn an_answer_is_being_written_until_it_is_flushed() {
        let connections = Connections::default();
        let activity = connections.activity(Protocol::Http);
        activity.busy();
        activity.wrote();
        activity.flushed();
        assert_eq!(activity.phase(), BUSY, "what is written meanwhile is the answer before, or a request to go on");
        activity.answers();
        assert_eq!(activity.phase(), WRITING);
        activity.flushed();
        assert_eq!(activity.phase(), IDLE);
        activity.wrote();
        assert_eq!(activity.phase(), WRITING, "the rest of a large answer");
    }

    #[tokio::test]
    async fn a_grpc_connection_greets_then_has_calls_then_idles() {
        let connections = Connections::default();
        let activity = connections.activity(Protocol::Grpc);
        activity.received(GREETING_BYTES as usize - 1);
        assert_eq!(activity.phase(), HEAD);
        activity.received(1);
        assert_eq!(activity.phase(), IDLE);
        activity.stream_begins();
        activity.stream_begins();
        activity.stream_ends();
        assert_eq!(activity.phase(), BUSY);
        activity.stream_ends();
        activity.received(5);
        activity.wrote();
        assert_eq!(activity.phase(), IDLE, "pings are no calls");
    }
}
