//! Reading the message of a gRPC call, within bounds, before the gRPC library sees it.
//!
//! The library would inflate it on the io thread and wait for the rest of it for ever.

use crate::beside::beside;
use crate::hold::{COUNTED_FROM, Held};
use crate::http::encoding::Encoding;
use crate::http::payload::Payload;
use crate::shard::Shared;
use bytes::{BufMut, Bytes, BytesMut};
use hyper::body::{Body, Frame, Incoming};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use wire::{Fault, Reason};

/// In front of each message: whether it is compressed (1 byte) and its length (4 bytes, big-endian).
const PREFIX_BYTES: usize = 5;

/// The call's message with its prefix, plain, in the pieces in which it came, and what counts it if it is large.
pub(crate) async fn read(
    shared: &Arc<Shared>,
    mut incoming: Incoming,
    encoding: Option<Encoding>,
) -> Result<(Payload, Option<Held>), Fault> {
    let limit = shared.config.max_body_bytes;
    let Some(first) = next(shared, &mut incoming).await? else { return Ok((Payload::default(), None)) };
    let mut bytes = first.len();
    let mut held = (bytes >= COUNTED_FROM || !incoming.is_end_stream()).then(|| Held::new(shared));
    if let Some(held) = &mut held {
        held.add(bytes)?;
    }
    let mut rest = Vec::new();
    // A length that is too large is the library's to refuse: it needs no more than the prefix for that.
    while declared(&first).is_none_or(|length| length <= limit) {
        let Some(data) = next(shared, &mut incoming).await? else { break };
        bytes += data.len();
        if bytes > limit.saturating_add(PREFIX_BYTES) {
            return Err(Fault::new(
                Reason::BodyTooLarge,
                format!(
                    "the message is larger than {limit} bytes, the most that this server takes: send less in one request"
                ),
            ));
        }
        if let Some(held) = &mut held {
            held.add(data.len())?;
        }
        rest.push(data);
    }
    let payload = Payload::of_pieces(first, rest);
    match encoding {
        Some(encoding) => inflate(payload, encoding, limit, held.unwrap_or_else(|| Held::new(shared))).await,
        None => Ok((payload, held)),
    }
}

/// The length that a prefix says.
fn declared(piece: &[u8]) -> Option<usize> {
    let (length, _) = piece.get(1..)?.split_first_chunk::<4>()?;
    usize::try_from(u32::from_be_bytes(*length)).ok()
}

async fn next(shared: &Shared, incoming: &mut Incoming) -> Result<Option<Bytes>, Fault> {
    let patience = shared.config.body_timeout;
    loop {
        let frame = poll_fn(|cx| Pin::new(&mut *incoming).poll_frame(cx));
        match tokio::time::timeout(patience, frame).await {
            Ok(None) => return Ok(None),
            Ok(Some(Ok(frame))) => match Frame::into_data(frame) {
                Ok(data) => return Ok(Some(data)),
                Err(_trailers) => {}
            },
            Ok(Some(Err(error))) => return Err(Fault::bad(format!("the message could not be read: {error}"))),
            Err(_) => {
                return Err(Fault::bad(format!("the message stood still for {patience:?}: send it without pauses")));
            }
        }
    }
}

/// The same message, not compressed. What isn't a whole compressed message is left to the library, which refuses it.
async fn inflate(
    payload: Payload,
    encoding: Encoding,
    limit: usize,
    mut held: Held,
) -> Result<(Payload, Option<Held>), Fault> {
    let work = move || {
        let whole = payload.joined();
        let compressed = match (whole.split_first_chunk::<PREFIX_BYTES>(), declared(&whole)) {
            (Some(([1, ..], rest)), Some(length)) => rest.get(..length),
            _ => None,
        };
        let Some(compressed) = compressed else { return Ok((Payload::of_pieces(whole, Vec::new()), Some(held))) };
        let plain = encoding.decompress(compressed, limit)?;
        held.replace(plain.len())?;
        let length = u32::try_from(plain.len()).map_err(|_| {
            Fault::new(Reason::BodyTooLarge, "the message is larger than 4 GiB once it is decompressed")
        })?;
        let mut prefix = BytesMut::with_capacity(PREFIX_BYTES);
        prefix.put_u8(0);
        prefix.put_u32(length);
        Ok((Payload::of_pieces(prefix.freeze(), vec![plain]), Some(held)))
    };
    beside(work).await
}
