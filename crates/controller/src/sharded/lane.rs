//! The way of messages to one thread, and how that thread waits for them.

use base::{Duration, Timestamp};
use crossbeam_queue::SegQueue;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::Thread;
use worker::Clock;

/// After its last message a thread looks for the next for so long before it sleeps: waking it takes about as long.
const LINGER: Duration = Duration::from_micros(50);
/// A sleeping thread wakes up to this much late; the last bit before an instant is spent awake.
const WAKES_LATE: Duration = Duration::from_micros(120);
/// The longest sleep: a controller that was dropped is noticed then at the latest.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Anybody sends, one thread receives.
#[derive(Debug)]
pub(super) struct Lane<M> {
    inbox: SegQueue<M>,
    sleeps: AtomicBool,
    thread: OnceLock<Thread>,
}

impl<M> Lane<M> {
    pub fn new() -> Self {
        Self { inbox: SegQueue::new(), sleeps: AtomicBool::new(false), thread: OnceLock::new() }
    }

    /// To be called by the thread that receives, before it does.
    pub fn receive_here(&self) {
        let _ = self.thread.set(std::thread::current());
    }

    /// Sends without waking the thread.
    pub fn put(&self, message: M) {
        self.inbox.push(message);
    }

    pub fn send(&self, message: M) {
        self.put(message);
        self.wake();
    }

    pub fn take(&self) -> Option<M> {
        self.inbox.pop()
    }

    pub fn is_empty(&self) -> bool {
        self.inbox.is_empty()
    }

    /// Wakes the thread if it sleeps. What it should see was written before.
    pub fn wake(&self) {
        // The news must be there before the thread is found awake, and the thread must be known to sleep before it finds no
        // news: else it would sleep through it.
        fence(Ordering::SeqCst);
        if self.sleeps.load(Ordering::Relaxed)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Waits for news, or until shortly before `until`; returns early at times. `active_at` is when there was something to do
    /// the last time.
    pub fn rest(&self, clock: Clock, active_at: Timestamp, until: Timestamp, is_news: impl Fn() -> bool) {
        let now = clock.now();
        let span = (until - WAKES_LATE).since(now).min(LONGEST_SLEEP);
        if now < active_at + LINGER || span == Duration::ZERO {
            std::thread::yield_now();
            return;
        }
        self.sleeps.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !is_news() {
            std::thread::park_timeout(span.into());
        }
        self.sleeps.store(false, Ordering::Relaxed);
    }
}
