//! Host memory that a device reads by itself: what is received there needn't be copied for it.

use std::fmt;

/// A supply of such memory. Shared by all threads that receive requests; none of them ever waits for it.
pub trait HostMemory: Send + Sync + fmt::Debug {
    /// Room for so many bytes. `None` if there is none left, or where it doesn't pay: any other memory does as well,
    /// the engine copies out of it.
    fn take(&self, bytes: usize) -> Option<HostBuffer>;
}

/// The memory behind a buffer. Dropping it gives it back.
pub trait HostRoom: AsRef<[u8]> + AsMut<[u8]> + Send {}

impl<T: AsRef<[u8]> + AsMut<[u8]> + Send> HostRoom for T {}

/// Room that is filled from its beginning, and then only read: `Bytes::from_owner` shares it without a copy.
pub struct HostBuffer {
    room: Box<dyn HostRoom>,
    filled: usize,
}

impl HostBuffer {
    /// Nothing is in it yet, whatever the room holds.
    pub fn new(room: impl HostRoom + 'static) -> Self {
        Self { room: Box::new(room), filled: 0 }
    }

    /// Puts bytes behind those that are there. `false` if they don't fit: then none of them is.
    #[must_use]
    pub fn append(&mut self, bytes: &[u8]) -> bool {
        let room = self.room.as_mut().as_mut();
        let place = room.get_mut(self.filled..).and_then(|rest| rest.get_mut(..bytes.len()));
        let Some(place) = place else { return false };
        place.copy_from_slice(bytes);
        self.filled += bytes.len();
        true
    }
}

impl AsRef<[u8]> for HostBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.room.as_ref().as_ref()[..self.filled]
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer({} bytes)", self.filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_put_in_is_seen() {
        let mut buffer = HostBuffer::new(vec![9; 5]);
        assert!(buffer.append(b"ab") && buffer.append(b"") && buffer.append(b"c"));
        assert!(!buffer.append(b"def"), "two more fit");
        assert_eq!(buffer.as_ref(), b"abc");
        assert!(buffer.append(b"de") && !buffer.append(b"f"));
        assert_eq!(buffer.as_ref(), b"abcde");
    }
}
