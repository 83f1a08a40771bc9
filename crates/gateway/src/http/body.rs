//! Reading the body of a request, within bounds.

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame, Incoming};
use std::future::poll_fn;
use std::pin::Pin;
use wire::{Fault, Reason};

/// A body that is too large is read and thrown away up to this many times the limit, so that clients that only read
/// when they have written everything get their answer; beyond that the connection is closed.
const DISCARD_FACTOR: usize = 8;

/// The whole body, if it isn't larger than `limit`. With `waits` the client only sends it when asked to
/// (`Expect: 100-continue`), and a body that is too large is refused without asking.
pub(crate) async fn read(mut body: Incoming, limit: usize, waits: bool) -> Result<Bytes, Fault> {
    let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if declared > limit {
        if !waits {
            discard(&mut body, limit).await?;
        }
        return Err(too_large(limit));
    }
    let Some(first) = next(&mut body).await? else { return Ok(Bytes::new()) };
    if body.is_end_stream() && first.len() <= limit {
        return Ok(first);
    }
    let mut all = BytesMut::with_capacity(declared.max(first.len()));
    all.extend_from_slice(&first);
    while let Some(data) = next(&mut body).await? {
        if all.len() + data.len() > limit {
            drop(all);
            discard(&mut body, limit).await?;
            return Err(too_large(limit));
        }
        all.extend_from_slice(&data);
    }
    Ok(all.freeze())
}

async fn next(body: &mut Incoming) -> Result<Option<Bytes>, Fault> {
    loop {
        match poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
            None => return Ok(None),
            Some(Ok(frame)) => match Frame::into_data(frame) {
                Ok(data) => return Ok(Some(data)),
                Err(_trailers) => {}
            },
            Some(Err(error)) => return Err(Fault::bad(format!("the body could not be read: {error}"))),
        }
    }
}

async fn discard(body: &mut Incoming, limit: usize) -> Result<(), Fault> {
    let mut left = limit.saturating_mul(DISCARD_FACTOR);
    while let Some(data) = next(body).await? {
        match left.checked_sub(data.len()) {
            Some(rest) => left = rest,
            None => break,
        }
    }
    Ok(())
}

fn too_large(limit: usize) -> Fault {
    let message =
        format!("the body is larger than {limit} bytes, the most that this server takes: send less in one request");
    Fault::new(Reason::BodyTooLarge, message)
}
