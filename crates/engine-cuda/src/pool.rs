//! Pinned memory into which requests are received, so that nobody has to copy their tensors for the device.
//!
//! One reservation, made at the start, in units that are taken and given back by single atomic operations on a bitmap:
//! io threads take, whoever drops the last reference gives back, and nobody waits for anybody.

use crate::driver::Pinned;
use engine::{HostBuffer, HostMemory};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is taken is a multiple of this. Also the reason why the device may read whole words of 16 bytes at both ends of
/// a buffer.
const UNIT_BYTES: usize = 64 << 10;
/// For fewer bytes, copying is cheaper than a unit.
const SMALLEST_BYTES: usize = 16 << 10;
/// One buffer gets at most this part of all, so that one large request doesn't make the others be copied.
const LARGEST_PART: usize = 8;

/// Memory that a pool hands out in parts.
///
/// # Safety
/// The bytes are there, initialised and in one place as long as the value lives, and only whoever got a part from the
/// pool touches them.
pub unsafe trait Reservation: Send + Sync + 'static {
    /// Where it begins, at a multiple of 16.
    fn start(&self) -> *mut u8;
    /// How many bytes there are.
    fn bytes(&self) -> usize;
}

// SAFETY: pinned memory is zeroed, stays where it is until it is dropped, and the pool is its only owner.
unsafe impl Reservation for Pinned {
    fn start(&self) -> *mut u8 {
        Pinned::start(self)
    }

    fn bytes(&self) -> usize {
        self.len()
    }
}

/// See the module. Clones are of the same pool.
pub struct Pool<M> {
    all: Arc<All<M>>,
}

struct All<M> {
    memory: M,
    units: Units,
}

impl<M> Clone for Pool<M> {
    fn clone(&self) -> Self {
        Self { all: Arc::clone(&self.all) }
    }
}

impl<M: Reservation> Pool<M> {
    /// Hands out parts of that memory. What is no whole unit at its end stays unused.
    pub fn new(memory: M) -> Self {
        let units = Units::new(memory.bytes() / UNIT_BYTES);
        Self { all: Arc::new(All { memory, units }) }
    }

    /// Whether all of these bytes are in a part that was handed out.
    pub fn contains(&self, bytes: &[u8]) -> bool {
        let (all, own) = (self.range(), bytes.as_ptr_range());
        all.start <= own.start.addr() && own.end.addr() <= all.end
    }

    fn range(&self) -> Range<usize> {
        let start = self.all.memory.start().addr();
        start..start + self.all.memory.bytes()
    }
}

impl<M: Reservation> HostMemory for Pool<M> {
    fn take(&self, bytes: usize) -> Option<HostBuffer> {
        if !(SMALLEST_BYTES..=self.all.memory.bytes() / LARGEST_PART).contains(&bytes) {
            return None;
        }
        let units = bytes.div_ceil(UNIT_BYTES);
        let first = self.all.units.take(units)?;
        Some(HostBuffer::new(Part { all: Arc::clone(&self.all), first, units, bytes }))
    }
}

impl<M> fmt::Debug for Pool<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} units of {UNIT_BYTES} bytes)", self.all.units.count)
    }
}

/// Units that belong to one buffer until it is dropped.
struct Part<M: Reservation> {
    all: Arc<All<M>>,
    first: usize,
    units: usize,
    bytes: usize,
}

impl<M: Reservation> Part<M> {
    fn start(&self) -> *mut u8 {
        // SAFETY: the units are inside the reservation.
        unsafe { self.all.memory.start().add(self.first * UNIT_BYTES) }
    }
}

impl<M: Reservation> AsRef<[u8]> for Part<M> {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the bytes are initialised, inside the units, and nobody else's until this is dropped.
        unsafe { std::slice::from_raw_parts(self.start(), self.bytes) }
    }
}

impl<M: Reservation> AsMut<[u8]> for Part<M> {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the reference to this is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.bytes) }
    }
}

impl<M: Reservation> Drop for Part<M> {
    fn drop(&mut self) {
        self.all.units.give_back(self.first, self.units);
    }
}

/// Units by number, those that are taken with their bits set. Low numbers are taken first: what was in use a moment ago
/// is still in the caches.
struct Units {
    count: usize,
    words: Box<[AtomicU64]>,
}

impl Units {
    /// All of `0..count` are free.
    fn new(count: usize) -> Self {
        // The last word's bits behind the end are nobody's to take.
        let word =
            |index: usize| count.checked_sub(index * 64).filter(|rest| *rest < 64).map_or(0, |rest| u64::MAX << rest);
        let words = (0..count.div_ceil(64)).map(|index| AtomicU64::new(word(index))).collect();
        Self { count, words }
    }

    /// Takes that many in a row: inside one word, or from the beginning of one where a word isn't enough.
    fn take(&self, count: usize) -> Option<usize> {
        if count > 64 {
            return (0..self.words.len()).map(|word| word * 64).find(|&first| self.take_at(first, count));
        }
        let take = |taken| Some(taken | ones(count) << free_run(taken, count)?);
        let in_word = |(index, word): (usize, &AtomicU64)| {
            let before = word.fetch_update(Ordering::Acquire, Ordering::Relaxed, take).ok()?;
            free_run(before, count).map(|position| index * 64 + position as usize)
        };
        self.words.iter().enumerate().find_map(in_word)
    }

    /// Takes exactly these, or none of them.
    fn take_at(&self, first: usize, count: usize) -> bool {
        if first + count > self.count {
            return false;
        }
        for (done, (word, mask)) in masks(first, count).enumerate() {
            let take = |taken: u64| (taken & mask == 0).then_some(taken | mask);
            if self.words[word].fetch_update(Ordering::Acquire, Ordering::Relaxed, take).is_err() {
                masks(first, count).take(done).for_each(|(word, mask)| self.clear(word, mask));
                return false;
            }
        }
        true
    }

    fn give_back(&self, first: usize, count: usize) {
        masks(first, count).for_each(|(word, mask)| self.clear(word, mask));
    }

    fn clear(&self, word: usize, mask: u64) {
        // Whoever takes them next comes after everything that was done with them.
        let before = self.words[word].fetch_and(!mask, Ordering::Release);
        assert!(before & mask == mask, "units are given back once, by whoever took them");
    }
}

/// So many ones, 1 to 64.
fn ones(count: usize) -> u64 {
    u64::MAX >> (64 - count)
}

/// Where the first run of so many zeros begins, 1 to 64.
fn free_run(taken: u64, count: usize) -> Option<u32> {
    // A bit that stays is the first of `found` free ones.
    let (mut free, mut found) = (!taken, 1);
    while found < count {
        let more = found.min(count - found);
        free &= free >> more;
        found += more;
    }
    (free != 0).then(|| free.trailing_zeros())
}

/// The words in which units lie, and which of their bits they are.
fn masks(first: usize, count: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = first + count;
    (first / 64..end.div_ceil(64)).map(move |word| {
        let (from, until) = (first.max(word * 64), end.min(word * 64 + 64));
        (word, ones(until - from) << (from - word * 64))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Plain memory in place of pinned memory.
    struct Plain {
        start: *mut u128,
        bytes: usize,
    }

    // SAFETY: the pointer is to memory that this owns.
    unsafe impl Send for Plain {}
    // SAFETY: as above.
    unsafe impl Sync for Plain {}

    impl Plain {
        fn new(bytes: usize) -> Self {
            let words = vec![0u128; bytes / 16].into_boxed_slice();
            Self { start: Box::into_raw(words).cast(), bytes }
        }
    }

    impl Drop for Plain {
        fn drop(&mut self) {
            // SAFETY: made by `into_raw` with that many words.
            drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.start, self.bytes / 16)) });
        }
    }

    // SAFETY: zeroed memory that stays where it is until it is dropped.
    unsafe impl Reservation for Plain {
        fn start(&self) -> *mut u8 {
            self.start.cast()
        }

        fn bytes(&self) -> usize {
            self.bytes
        }
    }

    fn pool(units: usize) -> Pool<Plain> {
        Pool::new(Plain::new(units * UNIT_BYTES))
    }

    #[test]
    fn too_few_and_too_many_bytes_are_left_to_others() {
        let pool = pool(16);
        assert!(pool.take(SMALLEST_BYTES - 1).is_none());
        assert!(pool.take(2 * UNIT_BYTES + 1).is_none());
        let held: Vec<_> = (0..8).map(|_| pool.take(2 * UNIT_BYTES).expect("there is room for eight")).collect();
        assert!(pool.take(SMALLEST_BYTES).is_none(), "nothing is left");
        drop(held);
        assert!(pool.take(SMALLEST_BYTES).is_some());
    }

    #[test]
    fn the_pool_knows_its_own() {
        let pool = pool(16);
        let mut buffer = pool.take(UNIT_BYTES).unwrap();
        assert!(buffer.append(b"abc"));
        assert!(pool.contains(buffer.as_ref()) && pool.contains(&buffer.as_ref()[1..]));
        assert!(!pool.contains(b"abc") && !self::pool(16).contains(buffer.as_ref()));
        assert_eq!(buffer.as_ref().as_ptr().addr() % 16, 0);
    }

    #[test]
    fn runs_are_found_wherever_they_are() {
        assert_eq!(free_run(0, 64), Some(0));
        assert_eq!(free_run(1, 64), None);
        assert_eq!(free_run(u64::MAX, 1), None);
        assert_eq!(free_run(!(0b111 << 61), 3), Some(61));
        assert_eq!(free_run(!(0b111 << 61), 4), None);
        assert_eq!(free_run(0b1001_0110, 2), Some(5));
    }

    #[test]
    fn larger_ones_than_a_word_are_whole_or_not_at_all() {
        let units = Units::new(200);
        let small = units.take(3).unwrap();
        assert_eq!((small, units.take(130)), (0, Some(64)));
        assert_eq!(units.take(65), None);
        assert_eq!((units.take(61), units.take(6), units.take(1)), (Some(3), Some(194), None));
        units.give_back(64, 130);
        assert_eq!(units.take(136), None, "the last six are taken");
        assert_eq!(units.take(130), Some(64));
    }

    #[test]
    #[should_panic(expected = "given back once")]
    fn nothing_is_given_back_twice() {
        let units = Units::new(64);
        let first = units.take(5).unwrap();
        units.give_back(first, 5);
        units.give_back(first, 5);
    }

    /// Threads fill what they take with their own number, and find it there until they give it back.
    #[test]
    fn threads_never_share_a_part() {
        let pool = pool(70);
        std::thread::scope(|scope| {
            for number in 1..=4u8 {
                let pool = &pool;
                scope.spawn(move || {
                    let mut held = Vec::new();
                    for round in 0..300usize {
                        let bytes =
                            SMALLEST_BYTES + (round * 7919 * usize::from(number)) % (8 * UNIT_BYTES - SMALLEST_BYTES);
                        if let Some(mut buffer) = pool.take(bytes) {
                            assert!(buffer.append(&vec![number; bytes]));
                            held.push(buffer);
                        }
                        if held.len() > 4 || round % 5 == 0 {
                            held.drain(..held.len().min(2)).for_each(|buffer: HostBuffer| {
                                assert!(buffer.as_ref().iter().all(|byte| *byte == number));
                            });
                        }
                    }
                });
            }
        });
        assert_eq!((0..70).filter(|_| pool.all.units.take(1).is_some()).count(), 70, "everything came back");
    }

    proptest! {
        /// Whatever is taken and given back, no two that are taken overlap, `None` is said only where there is no room,
        /// and in the end everything is free.
        #[test]
        fn nothing_overlaps(total in 1usize..300, steps in proptest::collection::vec((1usize..150, any::<prop::sample::Index>(), any::<bool>()), 1..100)) {
            let units = Units::new(total);
            let mut taken: Vec<(usize, usize)> = Vec::new();
            for (count, which, give) in steps {
                if give && !taken.is_empty() {
                    let (first, count) = taken.swap_remove(which.index(taken.len()));
                    units.give_back(first, count);
                    continue;
                }
                let free = |unit: usize| unit < total && taken.iter().all(|(first, count)| !(*first..first + count).contains(&unit));
                let fits = |first: usize| (first..first + count).all(free);
                let places = (0..total).filter(|first| if count > 64 { first % 64 == 0 } else { first % 64 + count <= 64 });
                let expected = places.into_iter().find(|first| fits(*first));
                prop_assert_eq!(units.take(count), expected);
                taken.extend(expected.map(|first| (first, count)));
            }
            taken.drain(..).for_each(|(first, count)| units.give_back(first, count));
            let left = units.words.iter().map(|word| word.load(Ordering::Relaxed).count_zeros() as usize).sum::<usize>();
            prop_assert_eq!(left, total);
        }
    }
}
