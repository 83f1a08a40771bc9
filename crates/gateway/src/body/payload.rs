//! The body of an answer: a few pieces, of known length, without copies.

use crate::body::hold::{ANSWERS_COUNTED_FROM, HeldBytes};
use crate::io::clients::Owner;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use wire::Fault;

/// The pieces of a body that are still to be sent.
#[derive(Debug, Default)]
pub(crate) struct Payload {
    first: Bytes,
    rest: std::vec::IntoIter<Bytes>,
}

/// Binary tensors up to this size are copied behind the JSON, which is cheaper than a write of their own.
const COPY_LIMIT: usize = 16 << 10;

/// The connection is given pieces of this size at most: over HTTP/1.1 it copies each of them at once.
const PIECE_BYTES: usize = 512 << 10;

impl Payload {
    /// JSON and what follows it.
    pub(crate) fn new(mut json: Vec<u8>, binary: Vec<Bytes>) -> Self {
        if binary.iter().map(Bytes::len).sum::<usize>() <= COPY_LIMIT {
            binary.iter().for_each(|piece| json.extend_from_slice(piece));
            return Self::from(json);
        }
        Self { first: Bytes::from(json), rest: binary.into_iter() }
    }

    /// Counts it as held instead of its request, until it is written, if it is large.
    pub(crate) fn held(mut self, request: Option<HeldBytes>, owner: &Arc<Owner>) -> Result<Self, Fault> {
        if self.len() < ANSWERS_COUNTED_FROM {
            return Ok(self);
        }
        let mut rest: Vec<_> = std::mem::take(&mut self.rest).collect();
        let mut pieces: Vec<_> = std::iter::once(&mut self.first).chain(&mut rest).collect();
        HeldBytes::answer(request, owner, &mut pieces)?;
        self.rest = rest.into_iter();
        Ok(self)
    }

    /// The bytes that are left.
    pub(crate) fn len(&self) -> usize {
        self.first.len() + self.rest.as_slice().iter().map(Bytes::len).sum::<usize>()
    }

    /// The pieces that are left.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &Bytes> {
        std::iter::once(&self.first).chain(self.rest.as_slice())
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self { first: bytes, rest: Vec::new().into_iter() }
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self::from(Bytes::from(bytes))
    }
}

impl From<String> for Payload {
    fn from(text: String) -> Self {
        Self::from(text.into_bytes())
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        while this.first.is_empty() {
            let Some(next) = this.rest.next() else { return Poll::Ready(None) };
            this.first = next;
        }
        let piece = this.first.split_to(this.first.len().min(PIECE_BYTES));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.len() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.len() as u64)
    }
}

/// Answers that need nothing but themselves.
pub(crate) mod plain {
    use super::Payload;
    use base::Reason;
    use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
    use hyper::{Response, StatusCode};
    use wire::Fault;

    const JSON: HeaderValue = HeaderValue::from_static("application/json");

    /// JSON with status 200.
    pub(crate) fn json(body: impl Into<Payload>) -> Response<Payload> {
        let mut response = Response::new(body.into());
        response.headers_mut().insert(CONTENT_TYPE, JSON);
        response
    }

    /// No body, status 200.
    pub(crate) fn empty() -> Response<Payload> {
        Response::new(Payload::default())
    }

    /// A refusal, with its status and its sentence.
    pub(crate) fn fault(fault: &Fault) -> Response<Payload> {
        let mut response = json(fault.to_json());
        *response.status_mut() =
            StatusCode::from_u16(fault.reason.http_status()).expect("the table of reasons has valid statuses");
        if let Some(seconds) = fault.retry_after_seconds() {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if fault.reason == Reason::Unauthenticated {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }

    /// The refusal of a method, with the one that is allowed.
    pub(crate) fn method_not_allowed(path: &str, given: &hyper::Method, allowed: &'static str) -> Response<Payload> {
        let message = format!("{path} is asked with {allowed}, not {given}");
        let mut response = fault(&Fault::new(Reason::MethodNotAllowed, message));
        response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(mut payload: Payload) -> Vec<Bytes> {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut frames = Vec::new();
        while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut payload).poll_frame(&mut cx) {
            frames.push(frame.into_data().unwrap());
        }
        assert!(payload.is_end_stream());
        frames
    }

    #[test]
    fn small_tensors_are_joined_and_large_ones_are_not_copied() {
        let small = Payload::new(b"{}".to_vec(), vec![Bytes::from_static(b"ab"), Bytes::from_static(b"c")]);
        assert_eq!(small.size_hint().exact(), Some(5));
        assert_eq!(frames(small), [Bytes::from_static(b"{}abc")]);
        let tensor = Bytes::from(vec![7; COPY_LIMIT + 1]);
        let large = Payload::new(b"{}".to_vec(), vec![Bytes::new(), tensor.clone()]);
        assert_eq!(large.size_hint().exact(), Some(tensor.len() as u64 + 2));
        let frames = frames(large);
        assert_eq!(frames.len(), 2, "empty pieces are no frames");
        assert_eq!(frames[1].as_ptr(), tensor.as_ptr());
    }
}
