//! Which physical memory is free: a count of pages that the scheduler can rely on, since only loads and unloads change
//! it.
//!
//! The driver's price for mapping is by piece, not by byte (on an H200: 30 us for access and 20 us for unmapping, 2 MB
//! or 500 MB alike), so that a model's weights are one piece, a slab. A model that comes where another of its size went
//! takes that one's slab; otherwise slabs that nobody uses are given back to the driver and one of the right size is
//! made of them. No page is lost to fragments: pages of different slabs needn't be neighbours.

use std::collections::BTreeMap;

/// A number of pages, in slabs of different sizes that are named by `H`.
#[derive(Debug)]
pub struct Slabs<H> {
    /// By their size in pages.
    free: BTreeMap<u32, Vec<H>>,
    /// Pages that belong to us and to no slab.
    loose: u32,
    free_pages: u32,
}

/// Where the pages for a load come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SlabSource<H> {
    /// A slab of the right size.
    Slab(H),
    /// A new one, once these were given back to the driver.
    Make {
        /// Those, with their sizes.
        after: Vec<(u32, H)>,
    },
}

impl<H> Slabs<H> {
    /// So many pages, all free, in no slab yet.
    pub fn new(pages: u32) -> Self {
        Self { free: BTreeMap::new(), loose: pages, free_pages: pages }
    }

    /// Free pages.
    pub fn free_pages(&self) -> u32 {
        self.free_pages
    }

    /// Takes pages; `None` if there aren't enough, and nothing is taken.
    pub fn take(&mut self, pages: u32) -> Option<SlabSource<H>> {
        self.free_pages = self.free_pages.checked_sub(pages)?;
        if let Some(slab) = self.pop(pages) {
            return Some(SlabSource::Slab(slab));
        }
        let mut after = Vec::new();
        while self.loose < pages {
            // The smallest that is enough, or else the largest: few are given back, and large ones stay whole.
            let wanted = pages - self.loose;
            let size = self.free.range(wanted..).next().or_else(|| self.free.iter().next_back()).map(|(size, _)| *size);
            let size = size.expect("P5: the free pages are loose or in free slabs");
            let slab = self.pop(size).expect("sizes without slabs are removed");
            self.loose += size;
            after.push((size, slab));
        }
        self.loose -= pages;
        Some(SlabSource::Make { after })
    }

    fn pop(&mut self, pages: u32) -> Option<H> {
        let slabs = self.free.get_mut(&pages)?;
        let slab = slabs.pop();
        if slabs.is_empty() {
            self.free.remove(&pages);
        }
        slab
    }

    /// Gives a slab back.
    pub fn give_back(&mut self, pages: u32, slab: H) {
        self.free_pages += pages;
        self.free.entry(pages).or_default().push(slab);
    }

    /// So many pages more, in no slab: new ones, or such as were taken and no slab could be made of.
    pub fn add(&mut self, pages: u32) {
        self.free_pages += pages;
        self.loose += pages;
    }

    /// All free slabs, to be given back to the driver.
    pub fn drain(&mut self) -> impl Iterator<Item = H> {
        std::mem::take(&mut self.free).into_values().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_same_size_comes_back_as_it_is() {
        let mut slabs = Slabs::new(10);
        assert_eq!(slabs.take(4), Some(SlabSource::Make { after: vec![] }));
        assert_eq!(slabs.take(7), None);
        slabs.give_back(4, 'a');
        assert_eq!(slabs.take(4), Some(SlabSource::Slab('a')));
        assert_eq!(slabs.free_pages(), 6);
    }

    #[test]
    fn other_sizes_are_made_of_few_slabs() {
        let mut slabs = Slabs::new(16);
        assert_eq!((0..3).map(|_| slabs.take(4)).filter(Option::is_some).count(), 3);
        ['a', 'b', 'c'].into_iter().for_each(|slab| slabs.give_back(4, slab));
        // Four are loose, one slab makes eight.
        assert_eq!(slabs.take(7), Some(SlabSource::Make { after: vec![(4, 'c')] }));
        assert_eq!(slabs.take(9), Some(SlabSource::Make { after: vec![(4, 'b'), (4, 'a')] }));
        assert_eq!(slabs.free_pages(), 0);
    }

    proptest! {
        /// Every load that the count allows can be had, and no page is there twice.
        #[test]
        fn pages_are_never_lost(steps in proptest::collection::vec((1u32..40, any::<prop::sample::Index>(), any::<bool>()), 1..200)) {
            let mut slabs = Slabs::new(100);
            let mut made: BTreeMap<u32, u32> = BTreeMap::new();
            let (mut used, mut next): (Vec<(u32, u32)>, u32) = (Vec::new(), 0);
            for (pages, which, give) in steps {
                if give && !used.is_empty() {
                    let (pages, slab) = used.swap_remove(which.index(used.len()));
                    slabs.give_back(pages, slab);
                    continue;
                }
                let free = slabs.free_pages();
                match slabs.take(pages) {
                    None => prop_assert!(free < pages),
                    Some(SlabSource::Slab(slab)) => used.push((pages, slab)),
                    Some(SlabSource::Make { after }) => {
                        for (pages, slab) in after {
                            prop_assert_eq!(made.remove(&slab), Some(pages));
                        }
                        next += 1;
                        made.insert(next, pages);
                        used.push((pages, next));
                    }
                }
                prop_assert!(made.values().sum::<u32>() <= 100);
                prop_assert_eq!(used.iter().map(|(pages, _)| pages).sum::<u32>() + slabs.free_pages(), 100);
            }
        }
    }
}
