//! A call over HTTP/2 from its head to the last byte of its answer: it counts as open that long.

use crate::io::IoContext;
use crate::io::connection::Activity;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

/// Answers are handed to the connection in pieces of this size, as fast as the client takes them. One large piece would
/// be taken at once, and the call would look as if it were over.
const PIECE_BYTES: usize = 64 << 10;

/// A call that isn't over.
pub(crate) struct OpenStream {
    context: Arc<IoContext>,
    activity: Arc<Activity>,
}

impl OpenStream {
    pub(crate) fn new(context: &Arc<IoContext>, activity: &Arc<Activity>) -> Self {
        context.streams.fetch_add(1, Ordering::Relaxed);
        activity.stream_begins();
        Self { context: Arc::clone(context), activity: Arc::clone(activity) }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.activity.stream_ends();
        self.context.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The answer to a call.
pub(crate) struct StreamBody<B> {
    /// What is left of the library's last piece.
    piece: Bytes,
    body: B,
    _open: OpenStream,
}

impl<B> StreamBody<B> {
    pub(crate) fn new(body: B, open: OpenStream) -> Self {
        Self { piece: Bytes::new(), body, _open: open }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for StreamBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        if this.piece.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(cx)).transpose()?.map(Frame::into_data) {
                Some(Ok(data)) => this.piece = data,
                Some(Err(other)) => return Poll::Ready(Some(Ok(other))),
                None => return Poll::Ready(None),
            }
        }
        let next = this.piece.split_to(this.piece.len().min(PIECE_BYTES));
        Poll::Ready(Some(Ok(Frame::data(next))))
    }

    fn is_end_stream(&self) -> bool {
        self.piece.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // Only asked before the first piece is taken.
        if self.piece.is_empty() { self.body.size_hint() } else { SizeHint::default() }
    }
}
