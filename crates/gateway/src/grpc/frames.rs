//! The messages of gRPC calls in their frames: read within bounds, and written.
//!
//! ```text
//!  ┌─ compressed? ─┬─ length, big-endian ─┬─ content ─ ─ ─
//!  │    1 byte     │       4 bytes        │
//! ```

use crate::body::encoding::Encoding;
use crate::body::gather::{Gathered, OptionalHostMemory, to_host};
use crate::body::hold::HeldBytes;
use crate::body::pace::Pace;
use crate::io::clients::Owner;
use crate::io::offload::offload;
use base::Reason;
use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame, Incoming};
use prost::Message;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use wire::Fault;
use wire::room::room;

/// What is in front of each message's content.
const PREFIX_BYTES: usize = 5;

/// The messages of a call, one after another.
pub(super) struct Messages {
    owner: Arc<Owner>,
    incoming: Incoming,
    /// How messages that say that they are compressed are.
    encoding: Option<Encoding>,
    /// Where messages are best, unless they are compressed.
    memory: OptionalHostMemory,
    /// What was received and isn't part of a message yet.
    received: Bytes,
    begun: Option<PartialMessage>,
    /// How fast the message comes that is next.
    pace: Pace,
}

/// A message of which a part is missing.
struct PartialMessage {
    encoding: Option<Encoding>,
    length: usize,
    content: Gathered,
    held: HeldBytes,
}

/// A message as it came.
pub(super) struct Framed {
    owner: Arc<Owner>,
    content: Bytes,
    encoding: Option<Encoding>,
    memory: OptionalHostMemory,
    /// What counts it, if it is large.
    held: Option<HeldBytes>,
}

impl Messages {
    /// Those of a request's body. Tensors for a device are best in its memory.
    pub(super) fn new(
        owner: &Arc<Owner>,
        incoming: Incoming,
        encoding: Option<Encoding>,
        memory: &OptionalHostMemory,
    ) -> Self {
        let (owner, memory) = (Arc::clone(owner), memory.clone());
        Self { owner, incoming, encoding, memory, received: Bytes::new(), begun: None, pace: Pace::default() }
    }

    /// The next message; `None` when the client has no more. Nothing is lost if this is given up and asked again.
    ///
    /// Between messages a client may take its time; a message that has begun must not stand still.
    pub(super) async fn next(&mut self) -> Result<Option<Framed>, Fault> {
        self.read(true).await
    }

    /// The message of a call that has one, once the client said that it sends no more. It must not stand still.
    pub(super) async fn only(&mut self) -> Result<Framed, Fault> {
        let message = self.read(false).await?.ok_or_else(|| Fault::bad("the call has no message: it takes one"))?;
        match self.read(false).await? {
            None => Ok(message),
            Some(_) => Err(Fault::bad("the call has several messages: it takes one")),
        }
    }

    async fn read(&mut self, pauses: bool) -> Result<Option<Framed>, Fault> {
        loop {
            if let Some(message) = self.take()? {
                self.pace = Pace::default();
                return Ok(Some(message));
            }
            let between = self.begun.is_none() && self.received.is_empty();
            let piece = if pauses && between { piece(&mut self.incoming).await } else { self.piece_in_time().await };
            match piece? {
                Some(piece) if self.received.is_empty() => self.received = piece,
                // Only a prefix can be cut in two here.
                Some(piece) => self.received = [&self.received[..], &piece].concat().into(),
                None if between => return Ok(None),
                None => return Err(Fault::bad("the stream ends inside a message")),
            }
        }
    }

    /// The first message of what was received, if it is complete.
    fn take(&mut self) -> Result<Option<Framed>, Fault> {
        let mut begun = match self.begun.take() {
            Some(begun) => begun,
            None => {
                let Some(&prefix) = self.received.first_chunk() else { return Ok(None) };
                let (encoding, length) = self.prefix(prefix)?;
                self.received.advance(PREFIX_BYTES);
                let memory = if encoding.is_none() { &self.memory } else { &None };
                if self.received.len() >= length {
                    // In one piece: it is copied only where that spares the executor a copy.
                    let held = HeldBytes::of(&self.owner, length)?;
                    let content = to_host(self.received.split_to(length), memory);
                    return Ok(Some(self.framed(content, encoding, held)));
                }
                PartialMessage {
                    encoding,
                    length,
                    content: Gathered::new(length, memory),
                    held: HeldBytes::new(&self.owner),
                }
            }
        };
        let missing = begun.length - begun.content.len();
        let piece = self.received.split_to(self.received.len().min(missing));
        begun.content.add(&piece)?;
        begun.held.add(piece.len())?;
        if begun.content.len() < begun.length {
            self.begun = Some(begun);
            return Ok(None);
        }
        Ok(Some(self.framed(begun.content.freeze(), begun.encoding, Some(begun.held))))
    }

    /// What a prefix says: how the message is compressed, and its length.
    fn prefix(&self, [flag, length @ ..]: [u8; PREFIX_BYTES]) -> Result<(Option<Encoding>, usize), Fault> {
        let limit = self.owner.shared.config.max_body_bytes;
        let length = u32::from_be_bytes(length) as usize;
        if length > limit {
            return Err(too_large(limit));
        }
        match (flag, self.encoding) {
            (0, _) => Ok((None, length)),
            (1, Some(encoding)) => Ok((Some(encoding), length)),
            _ => Err(Fault::bad(format!(
                "a message begins with the byte {flag}: 0 says that it is plain, 1 that it is compressed as grpc-encoding says"
            ))),
        }
    }

    fn framed(&self, content: Bytes, encoding: Option<Encoding>, held: Option<HeldBytes>) -> Framed {
        Framed { owner: Arc::clone(&self.owner), content, encoding, memory: self.memory.clone(), held }
    }

    /// What comes next, if it comes in time.
    async fn piece_in_time(&mut self) -> Result<Option<Bytes>, Fault> {
        if self.incoming.is_end_stream() {
            return Ok(None);
        }
        let piece = self.pace.next(&self.owner.shared.config, "message", piece(&mut self.incoming)).await??;
        self.pace.came(piece.as_ref().map_or(0, Bytes::len));
        Ok(piece)
    }
}

/// What comes next.
async fn piece(incoming: &mut Incoming) -> Result<Option<Bytes>, Fault> {
    loop {
        let frame = poll_fn(|cx| Pin::new(&mut *incoming).poll_frame(cx)).await;
        match frame.map(|frame| frame.map(Frame::into_data)) {
            None => return Ok(None),
            Some(Ok(Ok(data))) => return Ok(Some(data)),
            Some(Ok(Err(_trailers))) => {}
            Some(Err(error)) => return Err(Fault::bad(format!("the message could not be read: {error}"))),
        }
    }
}

impl Framed {
    /// The message's content, plain, and what counts it if it is large.
    pub(super) async fn plain(self) -> Result<(Bytes, Option<HeldBytes>), Fault> {
        let Self { owner, content, encoding, memory, held } = self;
        let (Some(encoding), false) = (encoding, content.is_empty()) else { return Ok((content, held)) };
        // What is compressed may be a thousand times as large as it looks, and many may wait for their turn.
        let mut held = held.unwrap_or_else(|| HeldBytes::new(&owner));
        held.replace(content.len())?;
        let bytes = content.len();
        let inflate = move || Ok((to_host(held.inflate(encoding, &content)?, &memory), Some(held)));
        offload(&owner, bytes, inflate).await
    }
}

fn too_large(limit: usize) -> Fault {
    Fault::new(
        Reason::BodyTooLarge,
        format!("the message is larger than {limit} bytes, the most that this server takes: send less in one request"),
    )
}

/// An answer in its frame, which counts as held instead of its request until it is written, if it is large.
pub(super) fn held(frame: Vec<u8>, request: Option<HeldBytes>, owner: &Arc<Owner>) -> Result<Bytes, Fault> {
    let mut frame = Bytes::from(frame);
    HeldBytes::answer(request, owner, &mut [&mut frame])?;
    Ok(frame)
}

/// A message in its frame, compressed if that is wanted.
pub(super) fn write(message: &impl Message, encoding: Option<Encoding>) -> Result<Vec<u8>, Fault> {
    let mut frame = match encoding {
        None => {
            let mut frame = room(PREFIX_BYTES + message.encoded_len())?;
            frame.resize(PREFIX_BYTES, 0);
            message.encode(&mut frame).expect("a Vec grows");
            frame
        }
        Some(encoding) => {
            let plain = message.encode_to_vec();
            encoding.compress(vec![0; PREFIX_BYTES], [&plain[..]], plain.len())
        }
    };
    let length = u32::try_from(frame.len() - PREFIX_BYTES).map_err(|_| {
        Fault::new(Reason::ExecutionFailed, "the answer is larger than 4 GiB, the most that gRPC can carry")
    })?;
    frame[0] = u8::from(encoding.is_some());
    frame[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
    Ok(frame)
}
