//! Bringing the pieces of a request together: in memory that a device reads by itself where there is such, so that the
//! tensors in it needn't be copied for the device any more.

use bytes::{Bytes, BytesMut};
use engine::{HostBuffer, HostMemory};
use std::sync::Arc;

/// Where devices read by themselves, if they do.
pub(crate) type OptionalHostMemory = Option<Arc<dyn HostMemory>>;

/// What has come so far.
pub(crate) enum Gathered {
    /// In memory like any other.
    Plain(BytesMut),
    /// Where the device reads.
    Host(HostBuffer),
}

impl Gathered {
    /// Nothing yet; so many bytes are expected.
    pub(crate) fn new(bytes: usize, memory: &OptionalHostMemory) -> Self {
        let host = memory.as_ref().and_then(|memory| memory.take(bytes));
        host.map_or_else(|| Self::Plain(BytesMut::with_capacity(bytes)), Self::Host)
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Plain(all) => all.len(),
            Self::Host(buffer) => buffer.as_ref().len(),
        }
    }

    /// Adds what came next.
    pub(crate) fn add(&mut self, data: &[u8]) {
        if let Self::Host(buffer) = self {
            if buffer.append(data) {
                return;
            }
            // More came than was expected.
            *self = Self::Plain(BytesMut::from(buffer.as_ref()));
        }
        if let Self::Plain(all) = self {
            all.extend_from_slice(data);
        }
    }

    pub(crate) fn freeze(self) -> Bytes {
        match self {
            Self::Plain(all) => all.freeze(),
            Self::Host(buffer) => Bytes::from_owner(buffer),
        }
    }
}

/// Brings what came in one piece there, if there is room for it; otherwise it stays as it is.
pub(crate) fn to_host(piece: Bytes, memory: &OptionalHostMemory) -> Bytes {
    match memory.as_ref().and_then(|memory| memory.take(piece.len())) {
        Some(mut buffer) => {
            if buffer.append(&piece) {
                Bytes::from_owner(buffer)
            } else {
                piece
            }
        }
        None => piece,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Room for so many bytes at a time, and what was taken of it so far.
    #[derive(Debug)]
    struct LimitedMemory {
        room: usize,
        taken: AtomicUsize,
    }

    impl HostMemory for LimitedMemory {
        fn take(&self, bytes: usize) -> Option<HostBuffer> {
            if bytes > self.room {
                return None;
            }
            self.taken.fetch_add(1, Ordering::Relaxed);
            Some(HostBuffer::new(vec![0; bytes]))
        }
    }

    fn limited(room: usize) -> (Arc<LimitedMemory>, OptionalHostMemory) {
        let limited = Arc::new(LimitedMemory { room, taken: AtomicUsize::new(0) });
        (Arc::clone(&limited), Some(limited))
    }

    fn gather(bytes: usize, memory: &OptionalHostMemory, pieces: &[&[u8]]) -> (bool, Bytes) {
        let mut gathered = Gathered::new(bytes, memory);
        pieces.iter().for_each(|piece| gathered.add(piece));
        assert_eq!(gathered.len(), pieces.concat().len());
        (matches!(gathered, Gathered::Host(_)), gathered.freeze())
    }

    #[test]
    fn the_device_s_memory_is_used_where_there_is_room() {
        let (limited, memory) = limited(6);
        assert_eq!(gather(6, &memory, &[b"abc", b"def"]), (true, Bytes::from("abcdef")));
        assert_eq!(gather(7, &memory, &[b"abc", b"defg"]), (false, Bytes::from("abcdefg")));
        assert_eq!(gather(6, &None, &[b"abc", b"def"]), (false, Bytes::from("abcdef")));
        assert_eq!(limited.taken.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn more_and_fewer_bytes_than_expected_arrive_as_well() {
        let (_, memory) = limited(6);
        assert_eq!(gather(4, &memory, &[b"abc", b"def"]), (false, Bytes::from("abcdef")));
        assert_eq!(gather(6, &memory, &[b"abc"]), (true, Bytes::from("abc")));
    }

    #[test]
    fn a_whole_piece_is_brought_there_or_stays() {
        let (_, memory) = limited(6);
        let moved = |text: &'static str, memory| {
            let piece = Bytes::from_static(text.as_bytes());
            let there = to_host(piece.clone(), memory);
            assert_eq!(there, piece);
            there.as_ptr() != piece.as_ptr()
        };
        assert!(moved("abcdef", &memory));
        assert!(!moved("abcdefg", &memory), "there is no room");
        assert!(!moved("abcdef", &None));
    }
}
