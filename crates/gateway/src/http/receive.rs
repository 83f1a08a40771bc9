//! Reading the body of a request, within bounds.

use crate::body::gather::{Gathered, OptionalHostMemory, to_host};
use crate::body::hold::HeldBytes;
use crate::io::ServerState;
use base::Reason;
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use wire::Fault;

/// What is left of a refused body is read and thrown away up to this many times the limit, so that clients that only
/// read when they have written everything get their answer; beyond that the connection is closed.
const DISCARD_FACTOR: usize = 8;

/// The body of a request, as far as it isn't read.
pub(crate) struct RequestBody {
    incoming: Incoming,
    /// The client only sends the body when it is asked to (`Expect: 100-continue`), which reading does.
    waits: bool,
    /// How long it may stand still, where nobody else watches.
    patience: Option<Duration>,
}

impl RequestBody {
    pub(crate) fn new(incoming: Incoming, waits: bool, patience: Option<Duration>) -> Self {
        Self { incoming, waits, patience }
    }

    /// The whole body, if it isn't larger than the server takes, and what counts it if it is large. Tensors for a
    /// device are best in its memory.
    pub(crate) async fn read(
        &mut self,
        shared: &Arc<ServerState>,
        memory: &OptionalHostMemory,
    ) -> Result<(Bytes, Option<HeldBytes>), Fault> {
        let limit = shared.config.max_body_bytes;
        let expected = self.incoming.size_hint();
        let declared = usize::try_from(expected.lower()).unwrap_or(usize::MAX);
        // Whoever doesn't say how long it is could take any amount.
        let memory = if expected.exact().is_some() { memory } else { &None };
        if declared > limit {
            return Err(too_large(limit));
        }
        let Some(first) = self.next().await? else { return Ok((Bytes::new(), None)) };
        if first.len() > limit {
            return Err(too_large(limit));
        }
        if self.incoming.is_end_stream() {
            // In one piece: it is copied only where that spares the executor a copy.
            let held = HeldBytes::of(shared, first.len())?;
            return Ok((to_host(first, memory), held));
        }
        let mut held = HeldBytes::new(shared);
        held.add(first.len())?;
        let mut all = Gathered::new(declared.max(first.len()), memory);
        all.add(&first);
        while let Some(data) = self.next().await? {
            if all.len() + data.len() > limit {
                return Err(too_large(limit));
            }
            held.add(data.len())?;
            all.add(&data);
        }
        Ok((all.freeze(), Some(held)))
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        self.waits = false;
        loop {
            let frame = poll_fn(|cx| Pin::new(&mut self.incoming).poll_frame(cx));
            let frame = match self.patience {
                None => frame.await,
                Some(patience) => tokio::time::timeout(patience, frame).await.map_err(|_| {
                    Fault::bad(format!("the body stood still for {patience:?}: send it without pauses"))
                })?,
            };
            match frame {
                None => return Ok(None),
                Some(Ok(frame)) => match Frame::into_data(frame) {
                    Ok(data) => return Ok(Some(data)),
                    Err(_trailers) => {}
                },
                Some(Err(error)) => return Err(Fault::bad(format!("the body could not be read: {error}"))),
            }
        }
    }

    /// Throws away what is left, unless the client waits to be asked for it.
    pub(crate) async fn discard(&mut self, limit: usize) {
        if self.waits {
            return;
        }
        let mut left = limit.saturating_mul(DISCARD_FACTOR);
        while !self.incoming.is_end_stream()
            && let Ok(Some(data)) = self.next().await
        {
            match left.checked_sub(data.len()) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    }
}

fn too_large(limit: usize) -> Fault {
    let message =
        format!("the body is larger than {limit} bytes, the most that this server takes: send less in one request");
    Fault::new(Reason::BodyTooLarge, message)
}
