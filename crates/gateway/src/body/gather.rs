//! Bringing the pieces of a request together: in memory that a device reads by itself where there is such, so that the
//! tensors in it needn't be copied for the device any more.

use bytes::Bytes;
use engine::{HostBuffer, HostMemory};
use std::sync::Arc;
use wire::Fault;
use wire::room::make_room;

/// Room that is made on a client's word alone: enough for usual requests at once. More is made as bytes come, since a
/// word costs a client nothing.
const FIRST_ROOM: usize = 1 << 20;

/// Where devices read by themselves, if they do.
pub(crate) type OptionalHostMemory = Option<Arc<dyn HostMemory>>;

/// What has come so far.
pub(crate) enum Gathered {
    /// In memory like any other.
    Plain {
        /// The bytes.
        all: Vec<u8>,
        /// How many are expected.
        expected: usize,
    },
    /// Where the device reads.
    Host(HostBuffer),
}

impl Gathered {
    /// Nothing yet; so many bytes are expected.
    pub(crate) fn new(bytes: usize, memory: &OptionalHostMemory) -> Self {
        let host = memory.as_ref().and_then(|memory| memory.take(bytes));
        host.map_or(Self::Plain { all: Vec::new(), expected: bytes }, Self::Host)
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Plain { all, .. } => all.len(),
            Self::Host(buffer) => buffer.as_ref().len(),
        }
    }

    /// Adds what came next, if there is memory for it.
    pub(crate) fn add(&mut self, data: &[u8]) -> Result<(), Fault> {
        if let Self::Host(buffer) = self {
            if buffer.append(data) {
                return Ok(());
            }
            // More came than was expected.
            *self = Self::Plain { all: buffer.as_ref().to_vec(), expected: 0 };
        }
        if let Self::Plain { all, expected } = self {
            if all.capacity() - all.len() < data.len() {
                // As much again as has come, so that few copies are made, but never more than is expected.
                let more = expected.saturating_sub(all.len()).min(all.len().max(FIRST_ROOM)).max(data.len());
                make_room(all, more)?;
            }
            all.extend_from_slice(data);
        }
        Ok(())
    }

    pub(crate) fn freeze(self) -> Bytes {
        match self {
            Self::Plain { all, .. } => Bytes::from(all),
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
        pieces.iter().for_each(|piece| gathered.add(piece).unwrap());
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

    fn capacity(gathered: &Gathered) -> usize {
        match gathered {
            Gathered::Plain { all, .. } => all.capacity(),
            Gathered::Host(_) => unreachable!("there is no such memory"),
        }
    }

    #[test]
    fn a_promise_of_64_mib_takes_no_room_before_its_bytes_come() {
        let (promised, piece) = (64 << 20, vec![7; 300_000]);
        let mut gathered = Gathered::new(promised, &None);
        gathered.add(b"x").unwrap();
        assert!(capacity(&gathered) <= FIRST_ROOM);
        while gathered.len() + piece.len() <= promised {
            gathered.add(&piece).unwrap();
            let most = (2 * gathered.len()).clamp(FIRST_ROOM, promised);
            assert!(capacity(&gathered) <= most, "{} for {}", capacity(&gathered), gathered.len());
        }
        let missing = promised - gathered.len();
        gathered.add(&piece[..missing]).unwrap();
        let all = gathered.freeze();
        assert!(all.len() == promised && all[0] == b'x' && all[1..].iter().all(|&byte| byte == 7));
    }

    #[test]
    fn pieces_of_one_byte_take_no_more_room_than_large_ones() {
        let mut gathered = Gathered::new(4 << 20, &None);
        (0..3 << 20).for_each(|_| gathered.add(b"x").unwrap());
        assert!(capacity(&gathered) <= 4 << 20, "{}", capacity(&gathered));
    }

    #[test]
    fn room_for_a_usual_request_is_made_once() {
        let mut gathered = Gathered::new(602_112, &None);
        gathered.add(b"x").unwrap();
        let Gathered::Plain { all, .. } = &gathered else { unreachable!("there is no such memory") };
        let before = all.as_ptr();
        (0..6).for_each(|_| gathered.add(&[7; 100_000]).unwrap());
        gathered.add(&[7; 2111]).unwrap();
        let all = gathered.freeze();
        assert_eq!((all.as_ptr(), all.len()), (before, 602_112));
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
