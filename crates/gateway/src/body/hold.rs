//! The bytes of requests and answers that the process holds at one time, and their bound.
//!
//! Bodies that come whole and small aren't counted: they are bounded by the number of requests. What comes in pieces or
//! is inflated is counted from its first byte.

use crate::body::encoding::Encoding;
use crate::io::ServerState;
use crate::io::clients::Owner;
use crate::io::shortage::MemoryStep;
use base::Reason;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use wire::Fault;

/// Bodies below this size are not counted.
pub(crate) const COUNTED_FROM: usize = 64 << 10;

/// Answers below this size are not counted.
pub(crate) const ANSWERS_COUNTED_FROM: usize = 16 << 10;

/// Bytes of one request, or of its answer, that count as held until this is dropped.
pub(crate) struct HeldBytes {
    owner: Arc<Owner>,
    bytes: usize,
}

impl HeldBytes {
    pub(crate) fn new(owner: &Arc<Owner>) -> Self {
        Self { owner: Arc::clone(owner), bytes: 0 }
    }

    /// Holds a body that came whole, if it is large.
    pub(crate) fn of(owner: &Arc<Owner>, bytes: usize) -> Result<Option<Self>, Fault> {
        if bytes < COUNTED_FROM {
            return Ok(None);
        }
        let mut held = Self::new(owner);
        held.add(bytes)?;
        Ok(Some(held))
    }

    /// Holds more, or refuses to when the process holds too much or memory is short.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), Fault> {
        if self.shared().memory.step() >= MemoryStep::NoBodies {
            return Err(Fault::new(Reason::QueueFull, "the server is short of memory: send less, or try again later"));
        }
        self.count(bytes)
    }

    /// Holds more, or refuses to when the process holds too much.
    fn count(&mut self, bytes: usize) -> Result<(), Fault> {
        // Never less than one request may have: it could never be taken.
        let config = &self.owner.shared.config;
        let limit = config.max_held_bytes.max(config.max_body_bytes);
        let others = self.take(bytes)?;
        if others.saturating_add(bytes) <= limit {
            return Ok(());
        }
        Err(Fault::new(
            Reason::QueueFull,
            format!(
                "the server holds requests and answers of {limit} bytes, the most that it takes at one time: try again later"
            ),
        ))
    }

    /// Counts more, unless it is too much for one client; says what was counted before.
    fn take(&mut self, bytes: usize) -> Result<usize, Fault> {
        self.bytes += bytes;
        self.shared().metrics.held_bytes.add(bytes as i64);
        let before = self.shared().held_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.owner.hold(bytes)?;
        Ok(before)
    }

    fn shared(&self) -> &ServerState {
        &self.owner.shared
    }

    /// Holds an answer instead of its request, until the last of its pieces is dropped, if it is large. It may be
    /// larger than the bound where nothing else is held: it could never be given otherwise.
    pub(crate) fn answer(request: Option<Self>, owner: &Arc<Owner>, pieces: &mut [&mut Bytes]) -> Result<(), Fault> {
        drop(request);
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        if bytes < ANSWERS_COUNTED_FROM {
            return Ok(());
        }
        let mut held = Self::new(owner);
        if owner.shared.held_bytes.load(Ordering::Relaxed) == 0 {
            held.take(bytes)?;
        } else {
            held.count(bytes)?;
        }
        let held = Arc::new(held);
        for piece in pieces {
            let bytes = std::mem::take(*piece);
            **piece = Bytes::from_owner(HeldPiece { bytes, _held: Arc::clone(&held) });
        }
        Ok(())
    }

    /// A body as it was before compression. Both are held until it is whole, and it alone from then on.
    pub(crate) fn inflate(&mut self, encoding: Encoding, body: &[u8]) -> Result<Bytes, Fault> {
        let limit = self.shared().config.max_body_bytes;
        let plain = encoding.decompress(body, limit, |bytes| self.add(bytes))?;
        self.replace(plain.len())?;
        Ok(plain)
    }

    /// Gives back what was counted and holds this much instead.
    pub(crate) fn replace(&mut self, bytes: usize) -> Result<(), Fault> {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.add(more),
            None => {
                self.give_back(self.bytes - bytes);
                Ok(())
            }
        }
    }

    fn give_back(&mut self, bytes: usize) {
        self.shared().held_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.shared().metrics.held_bytes.sub(bytes as i64);
        self.owner.give_back(bytes);
        self.bytes -= bytes;
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

/// A piece of an answer that is held.
struct HeldPiece {
    bytes: Bytes,
    _held: Arc<HeldBytes>,
}

impl AsRef<[u8]> for HeldPiece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn owner(max_held_bytes: usize) -> Arc<Owner> {
        Owner::alone(Config { max_body_bytes: 10, max_held_bytes, ..Config::default() })
    }

    #[test]
    fn an_answer_is_held_until_the_last_of_it_is_gone() {
        let owner = owner(200_000);
        let held = || owner.shared.held_bytes.load(Ordering::Relaxed);
        let answer = |length: usize| {
            let mut request = HeldBytes::new(&owner);
            request.take(1000).unwrap();
            let mut piece = Bytes::from(vec![7; length]);
            HeldBytes::answer(Some(request), &owner, &mut [&mut piece]).map(|()| piece)
        };
        let small = answer(100).unwrap();
        assert_eq!((held(), small.len()), (0, 100));
        let mut large = answer(300_000).unwrap();
        assert_eq!(held(), 300_000, "alone it may be larger than the bound");
        assert_eq!(answer(100_000).unwrap_err().reason, Reason::QueueFull);
        let part = large.split_to(1);
        drop(large);
        assert_eq!(held(), 300_000, "a part keeps the whole");
        drop(part);
        assert_eq!(held(), 0);
        let both = (answer(100_000).unwrap(), answer(100_000).unwrap());
        assert_eq!((held(), both.0.len()), (200_000, 100_000));
    }

    #[test]
    fn large_bodies_are_refused_while_memory_is_short_and_answers_are_given() {
        let owner = owner(1 << 20);
        owner.shared.memory.take(MemoryStep::NoBodies);
        let refused = HeldBytes::of(&owner, COUNTED_FROM).map(|_| ()).unwrap_err();
        assert_eq!(refused.to_string(), "the server is short of memory: send less, or try again later");
        assert!(HeldBytes::of(&owner, COUNTED_FROM - 1).is_ok(), "small ones are taken");
        let mut answer = Bytes::from(vec![7; 100_000]);
        HeldBytes::answer(None, &owner, &mut [&mut answer]).unwrap();
        owner.shared.memory.take(MemoryStep::Calm);
        assert!(HeldBytes::of(&owner, COUNTED_FROM).is_ok());
    }

    #[test]
    fn what_is_held_is_bounded_and_given_back() {
        let owner = owner(100);
        let mut first = HeldBytes::new(&owner);
        let mut second = HeldBytes::new(&owner);
        first.add(60).unwrap();
        first.replace(90).unwrap();
        second.add(10).unwrap();
        let refused = second.add(1).unwrap_err();
        assert_eq!(refused.reason, Reason::QueueFull);
        drop(second);
        first.add(10).unwrap();
        drop(first);
        assert_eq!(owner.shared.held_bytes.load(Ordering::Relaxed), 0);
    }
}
