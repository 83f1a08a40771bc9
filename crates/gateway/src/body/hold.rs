//! The bytes of requests that the process holds at one time, and their bound.
//!
//! Only large bodies are counted: small ones are bounded by the number of connections.

use crate::io::ServerState;
use base::Reason;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use wire::Fault;

/// Bodies below this size are not counted.
pub(crate) const COUNTED_FROM: usize = 64 << 10;

/// Bytes of one request that count as held until this is dropped.
pub(crate) struct HeldBytes {
    shared: Arc<ServerState>,
    bytes: usize,
}

impl HeldBytes {
    pub(crate) fn new(shared: &Arc<ServerState>) -> Self {
        Self { shared: Arc::clone(shared), bytes: 0 }
    }

    /// Holds a body that came whole, if it is large.
    pub(crate) fn of(shared: &Arc<ServerState>, bytes: usize) -> Result<Option<Self>, Fault> {
        if bytes < COUNTED_FROM {
            return Ok(None);
        }
        let mut held = Self::new(shared);
        held.add(bytes)?;
        Ok(Some(held))
    }

    /// Holds more, or refuses to when the process holds too much.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), Fault> {
        // Never less than one request may have: it could never be taken.
        let limit = self.shared.config.max_held_bytes.max(self.shared.config.max_body_bytes);
        let held = self.shared.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        if held.saturating_add(bytes) <= limit {
            return Ok(());
        }
        Err(Fault::new(
            Reason::QueueFull,
            format!("the server holds requests of {limit} bytes, the most that it takes at one time: try again later"),
        ))
    }

    /// Gives back what was counted and holds this much instead: the body was inflated.
    pub(crate) fn replace(&mut self, bytes: usize) -> Result<(), Fault> {
        self.give_back();
        self.add(bytes)
    }

    fn give_back(&mut self) {
        self.shared.held_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = 0;
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use telemetry::Metrics;

    #[test]
    fn what_is_held_is_bounded_and_given_back() {
        let config = Config { max_body_bytes: 10, max_held_bytes: 100, ..Config::default() };
        let shared = Arc::new(ServerState::new(config, Metrics::new(), telemetry::Tracer::default()));
        let mut first = HeldBytes::new(&shared);
        let mut second = HeldBytes::new(&shared);
        first.add(60).unwrap();
        first.replace(90).unwrap();
        second.add(10).unwrap();
        let refused = second.add(1).unwrap_err();
        assert_eq!(refused.reason, Reason::QueueFull);
        drop(second);
        first.add(10).unwrap();
        drop(first);
        assert_eq!(shared.held_bytes.load(Ordering::Relaxed), 0);
    }
}
