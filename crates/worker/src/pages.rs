//! The worker's count of pages. The scheduler keeps its own; that both agree is P5.

use std::sync::atomic::{AtomicU32, Ordering};

/// A number of pages, some of them taken.
#[derive(Debug)]
pub struct Pages {
    total: u32,
    used: AtomicU32,
}

impl Pages {
    /// All free.
    pub fn new(total: u32) -> Self {
        Self { total, used: AtomicU32::new(0) }
    }

    /// All pages.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Pages in use.
    pub fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes pages; `false` when there aren't enough, and none is taken.
    pub fn take(&self, count: u32) -> bool {
        let fits = |used: u32| used.checked_add(count).filter(|&after| after <= self.total);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Gives pages back.
    pub fn give_back(&self, count: u32) {
        let before = self.used.fetch_sub(count, Ordering::Relaxed);
        assert!(before >= count, "P5: {count} pages given back of {before} in use");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_more_than_there_are() {
        let pages = Pages::new(10);
        assert!(pages.take(6));
        assert!(!pages.take(5));
        assert!(pages.take(4));
        pages.give_back(6);
        assert_eq!((pages.used(), pages.total()), (4, 10));
    }
}
