//! The answers to gRPC calls: messages in their frames, then the status; or the status alone.

use crate::body::encoding::Encoding;
use base::Reason;
use bytes::Bytes;
use hyper::Response;
use hyper::body::{Body, Frame};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::Status;
use wire::Fault;

/// How the messages of a call, or of its answer, are compressed.
pub(super) const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
/// How the messages of an answer, or of further calls, may be compressed.
pub(super) const ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
/// What a client may use instead of an encoding that isn't known here.
const KNOWN_ENCODINGS: HeaderValue = HeaderValue::from_static("gzip,deflate,identity");

/// An answer with messages that are compressed in this way.
pub(super) fn messages<B>(body: B, encoding: Option<Encoding>) -> Response<tonic::body::Body>
where
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let mut response = Response::new(tonic::body::Body::new(body));
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    if let Some(encoding) = encoding {
        response.headers_mut().insert(ENCODING, HeaderValue::from_static(encoding.name()));
    }
    response
}

/// A refusal: a status without messages.
pub(super) fn refusal(fault: Fault) -> Response<tonic::body::Body> {
    let reason = fault.reason;
    let mut response = Status::from(fault).into_http();
    if reason == Reason::UnsupportedEncoding {
        response.headers_mut().insert(ACCEPT_ENCODING, KNOWN_ENCODINGS);
    }
    response
}

/// A status as it stands behind the messages of an answer.
pub(super) fn trailers(status: &Status) -> Frame<Bytes> {
    let mut trailers = HeaderMap::with_capacity(4);
    // Fails only for a message that no header can hold, and messages are encoded for that. The code is there then.
    let _ = status.add_header(&mut trailers);
    Frame::trailers(trailers)
}

/// One message in its frame, then the status that all went well.
pub(super) struct OneMessage {
    frame: Option<Bytes>,
    ended: bool,
}

impl OneMessage {
    pub(super) fn new(frame: Bytes) -> Self {
        Self { frame: Some(frame), ended: false }
    }
}

impl Body for OneMessage {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(frame) = self.frame.take() {
            return Poll::Ready(Some(Ok(Frame::data(frame))));
        }
        let ended = std::mem::replace(&mut self.ended, true);
        Poll::Ready((!ended).then(|| Ok(trailers(&Status::ok("")))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}
