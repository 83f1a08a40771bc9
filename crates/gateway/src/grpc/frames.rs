//! Reading the message of a gRPC call, within bounds, before the gRPC library sees it.
//!
//! The library would inflate it on the io thread and wait for the rest of it for ever.

use crate::body::encoding::Encoding;
use crate::body::gather::to_host;
use crate::body::hold::{COUNTED_FROM, Held};
use crate::body::payload::Payload;
use crate::io::Shared;
use crate::io::offload::offload;
use bytes::{Buf, BufMut, Bytes, BytesMut};
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
            return Err(too_large(limit));
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

/// The content of a plain message where devices read by themselves, if there is room for it; `None` leaves it as it is.
pub(crate) fn content_at_host(shared: &Shared, payload: &Payload) -> Option<Bytes> {
    // Asked first: without such memory nothing is done.
    let memory = &shared.config.host_memory;
    memory.as_ref()?;
    let mut prefix = [0; PREFIX_BYTES];
    let mut left = &mut prefix[..];
    for piece in payload.pieces() {
        let (part, behind) = left.split_at_mut(piece.len().min(left.len()));
        part.copy_from_slice(&piece[..part.len()]);
        left = behind;
    }
    let length = declared(&prefix).filter(|length| prefix[0] == 0 && payload.len() == PREFIX_BYTES + length)?;
    let mut skipped = 0;
    let content = payload.pieces().map(|piece| {
        let from = (PREFIX_BYTES - skipped).min(piece.len());
        skipped += from;
        &piece[from..]
    });
    to_host(length, content, memory)
}

/// A message without content, with its prefix.
pub(crate) fn empty() -> Payload {
    Payload::of_pieces(Bytes::from_static(&[0; PREFIX_BYTES]), Vec::new())
}

/// The messages of a stream, one after another.
///
/// Between messages a client may take its time; a message that has begun must not stand still.
pub(crate) struct Messages {
    shared: Arc<Shared>,
    incoming: Incoming,
    encoding: Option<Encoding>,
    /// What was received and isn't handed out.
    buffer: BytesMut,
    /// What counts it, if it is large.
    held: Option<Held>,
}

/// A message as it came.
pub(crate) struct Framed {
    content: Bytes,
    encoding: Option<Encoding>,
    held: Option<Held>,
    limit: usize,
}

impl Messages {
    pub(crate) fn new(shared: Arc<Shared>, incoming: Incoming, encoding: Option<Encoding>) -> Self {
        Self { shared, incoming, encoding, buffer: BytesMut::new(), held: None }
    }

    /// The next message; `None` when the client has no more. Nothing is lost if this is given up and asked again.
    pub(crate) async fn next(&mut self) -> Result<Option<Framed>, Fault> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            let data = if self.buffer.is_empty() {
                received(frame(&mut self.incoming).await)?
            } else {
                next(&self.shared, &mut self.incoming).await?.map(Received::Data)
            };
            match data {
                Some(Received::Data(data)) => self.add(&data)?,
                Some(Received::Trailers) => {}
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(Fault::bad("the stream ends inside a message")),
            }
        }
    }

    fn add(&mut self, data: &[u8]) -> Result<(), Fault> {
        self.buffer.extend_from_slice(data);
        match &mut self.held {
            Some(held) => held.add(data.len()),
            None if self.buffer.len() >= COUNTED_FROM => {
                let held = self.held.insert(Held::new(&self.shared));
                held.add(self.buffer.len())
            }
            None => Ok(()),
        }
    }

    /// The first message of what was received, if it is complete.
    fn take(&mut self) -> Result<Option<Framed>, Fault> {
        let Some(length) = declared(&self.buffer) else { return Ok(None) };
        let limit = self.shared.config.max_body_bytes;
        if length > limit {
            return Err(too_large(limit));
        }
        if self.buffer.len() < PREFIX_BYTES + length {
            return Ok(None);
        }
        let encoding = match (self.buffer[0], self.encoding) {
            (0, _) => None,
            (1, Some(encoding)) => Some(encoding),
            (flag, _) => {
                return Err(Fault::bad(format!(
                    "a message begins with the byte {flag}: 0 says that it is plain, 1 that it is compressed as grpc-encoding says"
                )));
            }
        };
        self.buffer.advance(PREFIX_BYTES);
        let content = self.buffer.split_to(length).freeze();
        let memory = if encoding.is_none() { &self.shared.config.host_memory } else { &None };
        let content = to_host(length, [&*content], memory).unwrap_or(content);
        Ok(Some(Framed { content, encoding, held: self.held.take(), limit }))
    }
}

impl Framed {
    /// The message, plain, and what counts it if it is large.
    pub(crate) async fn plain(self) -> Result<(Bytes, Option<Held>), Fault> {
        let Self { content, encoding, held, limit } = self;
        let (Some(encoding), false) = (encoding, content.is_empty()) else { return Ok((content, held)) };
        let work = move || {
            let plain = encoding.decompress(&content, limit)?;
            let mut held = held;
            if let Some(held) = &mut held {
                held.replace(plain.len())?;
            }
            Ok((plain, held))
        };
        offload(work).await
    }
}

fn too_large(limit: usize) -> Fault {
    Fault::new(
        Reason::BodyTooLarge,
        format!("the message is larger than {limit} bytes, the most that this server takes: send less in one request"),
    )
}

/// The length that a prefix says.
fn declared(piece: &[u8]) -> Option<usize> {
    let (length, _) = piece.get(1..)?.split_first_chunk::<4>()?;
    usize::try_from(u32::from_be_bytes(*length)).ok()
}

async fn next(shared: &Shared, incoming: &mut Incoming) -> Result<Option<Bytes>, Fault> {
    let patience = shared.config.body_timeout;
    loop {
        match tokio::time::timeout(patience, frame(incoming)).await {
            Ok(frame) => match received(frame)? {
                None => return Ok(None),
                Some(Received::Data(data)) => return Ok(Some(data)),
                Some(Received::Trailers) => {}
            },
            Err(_) => {
                return Err(Fault::bad(format!("the message stood still for {patience:?}: send it without pauses")));
            }
        }
    }
}

/// What came next.
enum Received {
    Data(Bytes),
    Trailers,
}

async fn frame(incoming: &mut Incoming) -> Option<hyper::Result<Frame<Bytes>>> {
    poll_fn(|cx| Pin::new(&mut *incoming).poll_frame(cx)).await
}

fn received(frame: Option<hyper::Result<Frame<Bytes>>>) -> Result<Option<Received>, Fault> {
    match frame {
        None => Ok(None),
        Some(Ok(frame)) => Ok(Some(Frame::into_data(frame).map_or(Received::Trailers, Received::Data))),
        Some(Err(error)) => Err(Fault::bad(format!("the message could not be read: {error}"))),
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
    offload(work).await
}
