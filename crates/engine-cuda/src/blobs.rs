//! Weights in host memory, kept once however many models have them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// What is kept, by the hash of its content, as long as somebody uses it.
#[derive(Debug)]
pub struct Blobs<T> {
    known: Mutex<HashMap<blake3::Hash, Weak<T>>>,
}

impl<T> Default for Blobs<T> {
    fn default() -> Self {
        Self { known: Mutex::default() }
    }
}

impl<T> Blobs<T> {
    /// The one with that content: that of somebody else, or made now.
    pub fn keep<E>(&self, content: &[u8], make: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        let hash = blake3::hash(content);
        // Held while it is made: whoever brings the same at the same time should wait for it, not make it twice.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = known.get(&hash).and_then(Weak::upgrade) {
            return Ok(kept);
        }
        let made = Arc::new(make()?);
        known.retain(|_, kept| kept.strong_count() > 0);
        known.insert(hash, Arc::downgrade(&made));
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_content_is_kept_once_and_no_longer_than_it_is_used() {
        let blobs = Blobs::default();
        let keep = |content: &[u8]| blobs.keep(content, || Ok::<_, ()>(content.to_vec())).unwrap();
        let (a, b, c) = (keep(b"one"), keep(b"one"), keep(b"two"));
        assert!(Arc::ptr_eq(&a, &b));
        assert!(!Arc::ptr_eq(&a, &c));
        drop((a, b));
        let again = blobs.keep(b"one", || Ok::<_, ()>(b"made again".to_vec())).unwrap();
        assert_eq!(*again, b"made again");
        assert_eq!(blobs.keep(b"three", || Err("no memory")), Err("no memory"));
    }
}
