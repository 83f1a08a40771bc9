//! Reading the body of a request, within bounds.

use crate::Config;
use crate::body::gather::{Gathered, OptionalHostMemory, to_host};
use crate::body::hold::HeldBytes;
use crate::body::pace::Pace;
use crate::io::clients::Owner;
use base::Reason;
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use wire::Fault;

/// What is left of a refused body is read and thrown away up to this many times the limit, so that clients that only
/// read when they have written everything get their answer; beyond that the connection is closed.
const DISCARD_FACTOR: usize = 8;

/// The body of a request, as far as it isn't read.
pub(crate) struct RequestBody {
    incoming: Incoming,
    /// The client only sends the body when it is asked to (`Expect: 100-continue`), which reading does.
    waits: bool,
    /// How fast it comes, where nobody else watches.
    pace: Option<Pace>,
}

impl RequestBody {
    pub(crate) fn new(incoming: Incoming, waits: bool, pace: Option<Pace>) -> Self {
        Self { incoming, waits, pace }
    }

    /// The whole body, if it isn't larger than the server takes, and what counts it if it is large. Tensors for a
    /// device are best in its memory.
    pub(crate) async fn read(
        &mut self,
        owner: &Arc<Owner>,
        memory: &OptionalHostMemory,
    ) -> Result<(Bytes, Option<HeldBytes>), Fault> {
        let config = &owner.shared.config;
        let limit = config.max_body_bytes;
        let expected = self.incoming.size_hint();
        let declared = usize::try_from(expected.lower()).unwrap_or(usize::MAX);
        // Whoever doesn't say how long it is could take any amount.
        let memory = if expected.exact().is_some() { memory } else { &None };
        if declared > limit {
            return Err(too_large(limit));
        }
        let Some(first) = self.next(config).await? else { return Ok((Bytes::new(), None)) };
        if first.len() > limit {
            return Err(too_large(limit));
        }
        if self.incoming.is_end_stream() {
            // In one piece: it is copied only where that spares the executor a copy.
            let held = HeldBytes::of(owner, first.len())?;
            return Ok((to_host(first, memory), held));
        }
        let mut held = HeldBytes::new(owner);
        held.add(first.len())?;
        let mut all = Gathered::new(declared.max(first.len()), memory);
        all.add(&first)?;
        while let Some(data) = self.next(config).await? {
            if all.len() + data.len() > limit {
                return Err(too_large(limit));
            }
            held.add(data.len())?;
            all.add(&data)?;
        }
        Ok((all.freeze(), Some(held)))
    }

    async fn next(&mut self, config: &Config) -> Result<Option<Bytes>, Fault> {
        self.waits = false;
        loop {
            let frame = poll_fn(|cx| Pin::new(&mut self.incoming).poll_frame(cx));
            let frame = match &mut self.pace {
                None => frame.await,
                Some(pace) => pace.next(config, "body", frame).await?,
            };
            match frame {
                None => return Ok(None),
                Some(Ok(frame)) => match Frame::into_data(frame) {
                    Ok(data) => {
                        self.pace.iter_mut().for_each(|pace| pace.came(data.len()));
                        return Ok(Some(data));
                    }
                    Err(_trailers) => {}
                },
                Some(Err(error)) => return Err(Fault::bad(format!("the body could not be read: {error}"))),
            }
        }
    }

    /// Throws away what is left, unless the client waits to be asked for it.
    pub(crate) async fn discard(&mut self, config: &Config) {
        if self.waits {
            return;
        }
        let mut left = config.max_body_bytes.saturating_mul(DISCARD_FACTOR);
        while !self.incoming.is_end_stream()
            && let Ok(Some(data)) = self.next(config).await
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
