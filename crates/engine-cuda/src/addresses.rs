//! Which part of the reservation belongs to whom: pure arithmetic over pages.

use std::collections::BTreeMap;

/// A range of page numbers, parts of which are taken. First fit; neighbours that are free again become one.
#[derive(Debug)]
pub struct AddressPlan {
    /// Length of each free stretch by its start.
    free: BTreeMap<u64, u64>,
}

impl AddressPlan {
    /// All of `0..pages` is free.
    pub fn new(pages: u64) -> Self {
        Self { free: BTreeMap::from([(0, pages)]) }
    }

    /// Takes that many pages in a row; `None` if there is no such stretch.
    pub fn take(&mut self, pages: u64) -> Option<u64> {
        let (start, length) =
            self.free.iter().map(|(start, length)| (*start, *length)).find(|(_, length)| *length >= pages)?;
        self.free.remove(&start);
        if length > pages {
            self.free.insert(start + pages, length - pages);
        }
        Some(start)
    }

    /// Gives a stretch back that was taken.
    pub fn give_back(&mut self, start: u64, pages: u64) {
        let (mut start, mut pages) = (start, pages);
        if let Some((before, length)) = self.free.range(..start).next_back().map(|(start, length)| (*start, *length)) {
            assert!(before + length <= start, "pages {start} and on are given back twice");
            if before + length == start {
                self.free.remove(&before);
                (start, pages) = (before, length + pages);
            }
        }
        if let Some((next, length)) = self.free.range(start..).next().map(|(start, length)| (*start, *length)) {
            assert!(start + pages <= next, "pages {next} and on are given back twice");
            if start + pages == next {
                self.free.remove(&next);
                pages += length;
            }
        }
        self.free.insert(start, pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_become_one() {
        let mut plan = AddressPlan::new(10);
        let (a, b, c) = (plan.take(3).unwrap(), plan.take(3).unwrap(), plan.take(4).unwrap());
        assert_eq!((a, b, c, plan.take(1)), (0, 3, 6, None));
        plan.give_back(a, 3);
        plan.give_back(c, 4);
        assert_eq!(plan.take(5), None);
        plan.give_back(b, 3);
        assert_eq!(plan.take(10), Some(0));
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn nothing_is_given_back_twice() {
        let mut plan = AddressPlan::new(10);
        let a = plan.take(3).unwrap();
        plan.give_back(a, 3);
        plan.give_back(a, 3);
    }

    proptest! {
        /// Whatever is taken and given back, no two that are taken overlap, and in the end all is one again.
        #[test]
        fn nothing_overlaps(steps in proptest::collection::vec((1u64..20, any::<prop::sample::Index>(), any::<bool>()), 1..100)) {
            let mut plan = AddressPlan::new(128);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (pages, which, give) in steps {
                if give && !taken.is_empty() {
                    let (start, pages) = taken.swap_remove(which.index(taken.len()));
                    plan.give_back(start, pages);
                } else if let Some(start) = plan.take(pages) {
                    prop_assert!(start + pages <= 128);
                    prop_assert!(taken.iter().all(|(other, length)| start + pages <= *other || other + length <= start));
                    taken.push((start, pages));
                }
            }
            taken.drain(..).for_each(|(start, pages)| plan.give_back(start, pages));
            prop_assert_eq!(plan.take(128), Some(0));
        }
    }
}
