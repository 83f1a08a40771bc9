//! Memory that the server and the process of an engine share: what tensors travel in.
//!
//! ```text
//!  | order, answer, who sleeps | order's text | answer's text | inputs ... | outputs ...                |
//!  0                           4 KiB          36 KiB          128 KiB      behind the inputs
//! ```
//!
//! The server makes it, of a fixed size, and seals that: nobody can cut off what the other has mapped. The process may
//! write anywhere at any time, so that the server copies everything out before it looks at it. One of both waits while
//! the other works: a word of each side says whose turn it is, and wakes the other where it sleeps.

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::thread::futex::{self, Timespec};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Where texts and data are.
const ORDER_AT: usize = 4 << 10;
const ANSWER_AT: usize = 36 << 10;
pub(crate) const DATA_AT: usize = 128 << 10;
/// What a text may have: a thousand tensors.
const TEXT_BYTES: usize = 32 << 10;
/// Every element type may lie there, and vectors are read best from there.
const ALIGNMENT: usize = 64;

/// The order's word when the next order is in another region.
pub(crate) const MOVED: u32 = u32::MAX;
/// The answer's word when no answer will come.
pub(crate) const GONE: u32 = u32::MAX;

/// Where orders come one after another, the next one is close behind: for so long it is looked for before a thread
/// sleeps. As the worker does with orders, and for its reason: to wake a thread takes longer than a small batch.
const LINGER: Duration = Duration::from_micros(50);
/// It is tried after waits of up to so many times that: most of such a one was for waking both threads.
const WORTH_IT: u32 = 4;
/// A sleeping thread looks by itself after so long: nothing depends on it.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// See the module.
pub(crate) struct SharedRegion {
    map: MmapRaw,
    descriptor: OwnedFd,
}

/// One side's word, and whether the other sleeps until it changes.
pub(crate) struct SharedWord<'a> {
    word: &'a AtomicU32,
    sleeps: &'a AtomicU32,
}

impl SharedRegion {
    /// A new one, whose memory is there: a page that can't be had would end who touches it.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let descriptor = rustix::fs::memfd_create("punctual", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&descriptor, bytes as u64)?;
        rustix::fs::fallocate(&descriptor, FallocateFlags::empty(), 0, bytes as u64)?;
        rustix::fs::fcntl_add_seals(&descriptor, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::map(descriptor, bytes)
    }

    /// The one that somebody else has made.
    pub(crate) fn open(descriptor: OwnedFd) -> io::Result<Self> {
        let bytes = usize::try_from(rustix::fs::fstat(&descriptor)?.st_size).map_err(io::Error::other)?;
        if bytes < DATA_AT {
            return Err(io::Error::other("a region is too small"));
        }
        Self::map(descriptor, bytes)
    }

    fn map(descriptor: OwnedFd, bytes: usize) -> io::Result<Self> {
        let map = MmapOptions::new().len(bytes).map_raw(&descriptor)?;
        Ok(Self { map, descriptor })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.map.len()
    }

    /// The server's.
    pub(crate) fn order(&self) -> SharedWord<'_> {
        SharedWord { word: self.word(0), sleeps: self.word(1) }
    }

    /// The process's.
    pub(crate) fn answer(&self) -> SharedWord<'_> {
        SharedWord { word: self.word(2), sleeps: self.word(3) }
    }

    pub(crate) fn set_order(&self, text: &[u8]) -> bool {
        self.set_text(ORDER_AT, 4, text)
    }

    pub(crate) fn order_text(&self) -> Option<Vec<u8>> {
        self.text(ORDER_AT, 4)
    }

    pub(crate) fn set_answer(&self, text: &[u8]) -> bool {
        self.set_text(ANSWER_AT, 5, text)
    }

    pub(crate) fn answer_text(&self) -> Option<Vec<u8>> {
        self.text(ANSWER_AT, 5)
    }

    /// A word, each in a line of the cache of its own.
    fn word(&self, number: usize) -> &AtomicU32 {
        // SAFETY: it is in the region, which is mapped for as long as `self` is there and can't be cut, and aligned;
        // all access to it is atomic, on both sides.
        unsafe { AtomicU32::from_ptr(self.map.as_mut_ptr().add(number * ALIGNMENT).cast()) }
    }

    fn set_text(&self, at: usize, length: usize, text: &[u8]) -> bool {
        if text.len() > TEXT_BYTES {
            return false;
        }
        self.word(length).store(text.len() as u32, Ordering::Relaxed);
        self.write(at, text)
    }

    fn text(&self, at: usize, length: usize) -> Option<Vec<u8>> {
        let length = self.word(length).load(Ordering::Relaxed) as usize;
        let mut text = Vec::new();
        (length <= TEXT_BYTES && self.read(at, length, &mut text)).then_some(text)
    }

    /// Whether so many bytes at that place are in the region.
    fn holds(&self, at: usize, length: usize) -> bool {
        at.checked_add(length).is_some_and(|end| end <= self.bytes())
    }

    /// Puts bytes into it. `false` if they don't fit.
    #[must_use]
    pub(crate) fn write(&self, at: usize, data: &[u8]) -> bool {
        if !self.holds(at, data.len()) {
            return false;
        }
        // SAFETY: the place is in the region, which isn't `data`: nobody has a reference into it on this side.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.map.as_mut_ptr().add(at), data.len()) };
        true
    }

    /// Adds a copy of bytes of it. `false` if there aren't so many, or there is no memory for them.
    #[must_use]
    pub(crate) fn read(&self, at: usize, length: usize, into: &mut Vec<u8>) -> bool {
        if !self.holds(at, length) || into.try_reserve(length).is_err() {
            return false;
        }
        // SAFETY: the place is in the region, and there is room for so many bytes. The other side may write at the same
        // time: what is copied is any bytes then, which whoever asked for them takes them for.
        unsafe {
            let end = into.as_mut_ptr().add(into.len());
            std::ptr::copy_nonoverlapping(self.map.as_ptr().add(at), end, length);
            into.set_len(into.len() + length);
        }
        true
    }

    /// What lies there, for the side that is told so by one that it trusts.
    pub(crate) fn view(&self, at: u64, length: u64) -> Option<&[u8]> {
        let (at, length) = (usize::try_from(at).ok()?, usize::try_from(length).ok()?);
        // SAFETY: it is in the region; only the server writes there, and not before it has the answer.
        self.holds(at, length).then(|| unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(at), length) })
    }
}

/// Where the next tensor may begin.
pub(crate) fn aligned(at: usize) -> Option<usize> {
    at.checked_next_multiple_of(ALIGNMENT)
}

impl SharedWord<'_> {
    /// Lets the other side see a value, and wakes it.
    pub(crate) fn give(&self, value: u32) {
        self.word.store(value, Ordering::SeqCst);
        if self.sleeps.load(Ordering::SeqCst) != 0 {
            // Fails only for addresses that aren't mapped.
            let _ = futex::wake(self.word, futex::Flags::empty(), u32::MAX);
        }
    }

    pub(crate) fn seen(&self) -> u32 {
        self.word.load(Ordering::SeqCst)
    }

    /// Waits until it is another value; nothing where nobody will change it. Without sleeping at first, if `lingers`.
    /// Notes whether the wait was so short that this would have paid.
    pub(crate) fn wait(&self, seen: u32, lingers: &mut bool, ended: impl Fn() -> bool) -> Option<u32> {
        let began = Instant::now();
        let changed = |value: u32| (value != seen).then_some(value);
        while *lingers && began.elapsed() < LINGER {
            if let Some(value) = changed(self.seen()) {
                return Some(value);
            }
            std::thread::yield_now();
        }
        self.sleeps.store(1, Ordering::SeqCst);
        let value = loop {
            if let Some(value) = changed(self.seen()) {
                break Some(value);
            }
            if ended() {
                break None;
            }
            // It has changed meanwhile, a signal came, or it is time to look: all the same.
            let _ = futex::wait(self.word, futex::Flags::empty(), seen, Some(&LOOK));
        };
        self.sleeps.store(0, Ordering::SeqCst);
        *lingers = began.elapsed() < LINGER * WORTH_IT;
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_cant_be_cut_or_grown_by_whoever_has_it() {
        let region = SharedRegion::new(1 << 20).unwrap();
        let other = region.descriptor().try_clone_to_owned().unwrap();
        assert!(rustix::fs::ftruncate(&other, 0).is_err());
        assert!(rustix::fs::ftruncate(&other, 2 << 20).is_err());
        assert!(rustix::fs::fcntl_add_seals(&other, SealFlags::WRITE).is_err());
        assert_eq!(SharedRegion::open(other).unwrap().bytes(), 1 << 20);
    }

    #[test]
    fn what_is_beyond_its_end_is_neither_read_nor_written() {
        let region = SharedRegion::new(DATA_AT + 8).unwrap();
        let mut out = Vec::new();
        assert!(region.write(DATA_AT, &[7; 8]) && region.read(DATA_AT, 8, &mut out));
        assert_eq!(out, [7; 8]);
        assert!(!region.write(DATA_AT + 1, &[7; 8]) && !region.read(DATA_AT + 1, 8, &mut out));
        assert!(!region.read(usize::MAX, 8, &mut out) && !region.read(0, usize::MAX, &mut out));
        assert!(region.view(u64::MAX, 1).is_none() && region.view(0, u64::MAX).is_none());
        assert!(!region.set_answer(&vec![0; TEXT_BYTES + 1]));
        region.word(5).store(u32::MAX, Ordering::Relaxed);
        assert_eq!(region.answer_text(), None);
    }

    #[test]
    fn a_turn_that_is_given_wakes_who_waits_also_through_another_mapping() {
        let here = SharedRegion::new(1 << 20).unwrap();
        let there = SharedRegion::open(here.descriptor().try_clone_to_owned().unwrap()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 0..1000 {
                    assert_eq!(there.order().wait(turn, &mut false, || false), Some(turn + 1));
                    there.answer().give(turn + 1);
                }
            });
            for turn in 0..1000 {
                here.order().give(turn + 1);
                assert_eq!(here.answer().wait(turn, &mut true, || false), Some(turn + 1));
            }
        });
        assert_eq!(here.order().wait(1000, &mut false, || true), None);
    }
}
