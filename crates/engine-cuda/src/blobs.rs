//! Weights in host memory, kept once however many models have them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What is kept, by the hash of its content, as long as somebody uses it.
#[derive(Debug)]
pub struct Blobs<T> {
    known: Mutex<HashMap<blake3::Hash, KeptBlob<T>>>,
}

/// Where one content is kept. Locked while it is made: whoever brings the same at the same time should wait for it, not
/// make it twice, and others shouldn't wait.
type KeptBlob<T> = Arc<Mutex<Weak<T>>>;

impl<T> Default for Blobs<T> {
    fn default() -> Self {
        Self { known: Mutex::default() }
    }
}

impl<T> Blobs<T> {
    /// The one with that content: that of somebody else, or made now.
    pub fn keep<E>(&self, content: &[u8], make: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        let slot = self.slot(blake3::hash(content));
        let mut kept = lock(&slot);
        if let Some(kept) = kept.upgrade() {
            return Ok(kept);
        }
        let made = Arc::new(make()?);
        *kept = Arc::downgrade(&made);
        Ok(made)
    }

    fn slot(&self, hash: blake3::Hash) -> KeptBlob<T> {
        let mut known = lock(&self.known);
        // What nobody uses, and nobody is about to make, is forgotten.
        known.retain(|_, slot| Arc::strong_count(slot) > 1 || lock(slot).strong_count() > 0);
        Arc::clone(known.entry(hash).or_default())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        drop(again);
        blobs.keep(b"four", || Ok::<_, ()>(Vec::new())).unwrap();
        assert_eq!(lock(&blobs.known).len(), 2, "what nobody uses is forgotten: this one and `two` are left");
    }

    #[test]
    fn nobody_waits_for_another_content_and_the_same_is_made_once() {
        let (blobs, made) = (Blobs::default(), Mutex::new(0));
        let [inside, go_on] = [(); 2].map(|()| std::sync::Barrier::new(2));
        let make = || {
            *lock(&made) += 1;
            Ok::<_, ()>(b"slow".to_vec())
        };
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                let slowly = || {
                    inside.wait();
                    go_on.wait();
                    make()
                };
                blobs.keep(b"slow", slowly).unwrap()
            });
            inside.wait();
            blobs.keep(b"other", || Ok::<_, ()>(Vec::new())).unwrap();
            let second = scope.spawn(|| blobs.keep(b"slow", make).unwrap());
            go_on.wait();
            assert!(Arc::ptr_eq(&first.join().unwrap(), &second.join().unwrap()));
        });
        assert_eq!(*lock(&made), 1);
    }
}
