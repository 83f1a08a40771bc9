//! Buffers whose size follows from what a client says: memory that isn't there is a refusal.

use crate::Fault;
use base::Reason;

/// An empty buffer with room for so many bytes, if there is memory for them.
pub fn room(bytes: usize) -> Result<Vec<u8>, Fault> {
    let mut buffer = Vec::new();
    make_room(&mut buffer, bytes)?;
    Ok(buffer)
}

/// Makes room for so many bytes more, if there is memory for them.
pub fn make_room(buffer: &mut Vec<u8>, bytes: usize) -> Result<(), Fault> {
    buffer.try_reserve_exact(bytes).map_err(|_| {
        let message = format!("the server has no memory for {bytes} bytes: send less, or try again later");
        Fault::new(Reason::QueueFull, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_there_is_a_refusal() {
        assert!(room(3).unwrap().capacity() >= 3);
        let refused = room(usize::MAX).unwrap_err();
        assert_eq!(refused.reason, Reason::QueueFull);
        assert!(refused.to_string().starts_with("the server has no memory for 18446744073709551615 bytes"));
    }
}
