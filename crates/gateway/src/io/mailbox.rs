//! Waking the connections of an io thread from another thread, many with one system call.
//!
//! Waking a task of a sleeping runtime from outside costs a write to an event file, each time. The replies to a batch
//! come right behind one another, so the wake-ups go into a queue, only the first of them wakes anybody (one task of
//! the thread), and that task wakes the others from inside, where it costs nothing.

use crossbeam_queue::SegQueue;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use tokio::sync::Notify;

/// The wake-ups of one io thread. Bounded by the requests in flight: each has one waker in it at most.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    queue: SegQueue<Waker>,
    /// Set while the mailbox's task knows that there is something in the queue.
    rung: AtomicBool,
    bell: Notify,
}

impl Mailbox {
    fn put(&self, waker: Waker) {
        self.queue.push(waker);
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.bell.notify_one();
        }
    }

    /// The mailbox's task; runs until it is dropped.
    pub(crate) async fn run(&self) {
        loop {
            self.bell.notified().await;
            // Before the queue is emptied: what is put there from now on rings again.
            self.rung.swap(false, Ordering::AcqRel);
            while let Some(waker) = self.queue.pop() {
                waker.wake();
            }
        }
    }

    /// The same future, woken through the mailbox.
    pub(crate) fn deliver<F: Future + Unpin>(self: &Arc<Self>, future: F) -> Delivered<F> {
        Delivered { future, mailbox: Arc::clone(self), wakers: None }
    }
}

/// A future that is woken through the mailbox.
pub(crate) struct Delivered<F> {
    future: F,
    mailbox: Arc<Mailbox>,
    /// The task's own, and the one that leads to it through the mailbox.
    wakers: Option<(Waker, Waker)>,
}

impl<F: Future + Unpin> Future for Delivered<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let through = match &this.wakers {
            Some((task, through)) if task.will_wake(cx.waker()) => through,
            _ => {
                let task = cx.waker().clone();
                let waker = MailboxWaker { task: task.clone(), mailbox: Arc::clone(&this.mailbox) };
                &this.wakers.insert((task, Waker::from(Arc::new(waker)))).1
            }
        };
        Pin::new(&mut this.future).poll(&mut Context::from_waker(through))
    }
}

struct MailboxWaker {
    task: Waker,
    mailbox: Arc<Mailbox>,
}

impl Wake for MailboxWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.mailbox.put(self.task.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn every_reply_arrives_whoever_sends_it() {
        let mailbox = Arc::new(Mailbox::default());
        let mailman = Arc::clone(&mailbox);
        tokio::spawn(async move { mailman.run().await });
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..1000).map(|_| oneshot::channel()).unzip();
        let waiting = receivers.into_iter().map(|receiver| tokio::spawn(mailbox.deliver(receiver)));
        let waiting: Vec<_> = waiting.collect();
        // All of them wait before the first reply is sent.
        tokio::task::yield_now().await;
        let sender = std::thread::spawn(move || {
            for (number, sender) in senders.into_iter().enumerate() {
                sender.send(number).unwrap();
            }
        });
        for (number, task) in waiting.into_iter().enumerate() {
            assert_eq!(task.await.unwrap(), Ok(number));
        }
        sender.join().unwrap();
        assert!(mailbox.queue.is_empty());
    }
}
