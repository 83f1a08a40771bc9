//! A call over HTTP/2 from its head to the last byte of its answer: it counts as open that long.

use crate::io::IoContext;
use crate::io::connection::Activity;
use crate::io::streams::StreamKey;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::rt::Executor;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Answers are handed to the connection in pieces of this size, as fast as the client takes them. One large piece would
/// be taken at once, and the call would look as if it were over.
const PIECE_BYTES: usize = 64 << 10;

/// The connection keeps a piece until the client takes it. The call isn't over before that, unless the piece is smaller
/// than this: then it isn't worth watching.
const WATCHED_FROM: usize = 4 << 10;

/// A call that isn't over.
pub(crate) struct OpenStream {
    context: Arc<IoContext>,
    activity: Arc<Activity>,
    key: StreamKey,
}

impl OpenStream {
    pub(crate) fn new(context: &Arc<IoContext>, activity: &Arc<Activity>) -> Self {
        context.streams.fetch_add(1, Ordering::Relaxed);
        let key = activity.stream_begins();
        Self { context: Arc::clone(context), activity: Arc::clone(activity), key }
    }

    /// Whether its connection may only ask for the server's health.
    pub(crate) fn is_probe(&self) -> bool {
        self.activity.is_probe()
    }

    /// So many more bytes of the answer are for the client to take.
    fn answers(&self, bytes: usize) {
        self.activity.stream_answers(self.key, bytes);
    }
}

impl OpenStream {
    /// The connection that it is on.
    pub(crate) fn activity(&self) -> &Activity {
        &self.activity
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.activity.stream_ends(self.key);
        self.context.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs the calls of a connection, each as a task that can be ended by itself.
#[derive(Clone)]
pub(crate) struct StreamExecutor {
    activity: Arc<Activity>,
}

impl StreamExecutor {
    pub(crate) fn new(activity: &Arc<Activity>) -> Self {
        Self { activity: Arc::clone(activity) }
    }
}

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for StreamExecutor {
    /// A call is handed over right after it began.
    fn execute(&self, call: F) {
        self.activity.stream_runs(tokio::spawn(call).abort_handle());
    }
}

/// The answer to a call.
pub(crate) struct StreamBody<B> {
    /// What is left of the library's last piece.
    piece: Bytes,
    body: B,
    open: OpenStream,
    /// Pieces that the connection has.
    untaken: Untaken,
    /// What comes when they are taken: a last frame, or nothing.
    end: Option<Option<Frame<Bytes>>>,
}

impl<B> StreamBody<B> {
    pub(crate) fn new(body: B, open: OpenStream) -> Self {
        Self { piece: Bytes::new(), body, open, untaken: Untaken::None, end: None }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for StreamBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        while this.piece.is_empty() {
            if let Some(end) = this.end.take_if(|_| this.untaken.poll_taken(cx).is_ready()) {
                return Poll::Ready(end.map(Ok));
            }
            if this.end.is_some() {
                return Poll::Pending;
            }
            let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) else {
                if !this.untaken.any() {
                    this.open.activity.stream_waits(this.open.key);
                }
                return Poll::Pending;
            };
            match frame.transpose()?.map(Frame::into_data) {
                Some(Ok(data)) => this.piece = data,
                Some(Err(other)) => this.end = Some(Some(other)),
                None => this.end = Some(None),
            }
        }
        let next = this.piece.split_to(this.piece.len().min(PIECE_BYTES));
        this.open.answers(next.len());
        Poll::Ready(Some(Ok(Frame::data(this.untaken.watch(next)))))
    }

    fn is_end_stream(&self) -> bool {
        let read = self.piece.is_empty() && self.body.is_end_stream();
        read && self.end.is_none() && matches!(self.untaken, Untaken::None)
    }

    fn size_hint(&self) -> SizeHint {
        // Only asked before the first piece is taken.
        if self.piece.is_empty() { self.body.size_hint() } else { SizeHint::default() }
    }
}

/// The pieces of an answer that the connection has and the client hasn't taken.
enum Untaken {
    /// None that would be worth watching.
    None,
    /// Each of them has a sender.
    Some(mpsc::Sender<()>, mpsc::Receiver<()>),
    /// No piece follows.
    Last(mpsc::Receiver<()>),
}

impl Untaken {
    /// The same piece, watched until it is dropped.
    fn watch(&mut self, piece: Bytes) -> Bytes {
        if piece.len() < WATCHED_FROM {
            return piece;
        }
        if let Self::None = self {
            let (sender, receiver) = mpsc::channel(1);
            *self = Self::Some(sender, receiver);
        }
        match self {
            Self::Some(sender, _) => Bytes::from_owner(WatchedPiece { piece, _untaken: sender.clone() }),
            Self::None | Self::Last(_) => piece,
        }
    }

    /// Whether one of them isn't taken.
    fn any(&self) -> bool {
        match self {
            Self::None => false,
            Self::Some(sender, _) => sender.strong_count() > 1,
            Self::Last(receiver) => receiver.sender_strong_count() > 0,
        }
    }

    /// Whether all of them are taken; no other may follow.
    fn poll_taken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        *self = match std::mem::replace(self, Self::None) {
            Self::None => return Poll::Ready(()),
            Self::Some(_, receiver) | Self::Last(receiver) => Self::Last(receiver),
        };
        match self {
            Self::Last(receiver) => receiver.poll_recv(cx).map(|_| ()),
            Self::None | Self::Some(..) => Poll::Ready(()),
        }
    }
}

/// A piece of an answer.
struct WatchedPiece {
    piece: Bytes,
    _untaken: mpsc::Sender<()>,
}

impl AsRef<[u8]> for WatchedPiece {
    fn as_ref(&self) -> &[u8] {
        &self.piece
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    #[test]
    fn an_answer_is_taken_when_its_last_piece_is() {
        let mut cx = Context::from_waker(Waker::noop());
        let mut untaken = Untaken::None;
        assert_eq!(untaken.watch(Bytes::from_static(b"small")), "small");
        assert!(!untaken.any() && untaken.poll_taken(&mut cx).is_ready());
        let large = Bytes::from(vec![7; WATCHED_FROM]);
        let (first, second) = (untaken.watch(large.clone()), untaken.watch(large.clone()));
        assert_eq!((&first, &second), (&large, &large));
        assert!(untaken.any());
        assert!(untaken.poll_taken(&mut cx).is_pending());
        drop(first);
        assert!(untaken.poll_taken(&mut cx).is_pending());
        let part = second.slice(10..);
        drop(second);
        assert!(untaken.poll_taken(&mut cx).is_pending(), "a part of it is there");
        drop(part);
        assert!(untaken.poll_taken(&mut cx).is_ready());
    }
}
