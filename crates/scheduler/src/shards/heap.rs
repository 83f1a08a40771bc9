//! A priority queue over small numbers, each at most once in it, whose keys can be changed in place.

/// Children of each node: four entries are one line of the cache.
const ARITY: usize = 4;
/// The position of a number that isn't in the queue.
const ABSENT: u32 = u32::MAX;

/// An index heap: the least key first, equal keys by number. Every change is O(log n); nothing is allocated once the tables
/// have grown to the largest number.
#[derive(Clone, Debug, Default)]
pub(crate) struct IndexHeap {
    entries: Vec<(u64, u32)>,
    /// Where each number stands in `entries`.
    positions: Vec<u32>,
}

impl IndexHeap {
    /// Makes room for the numbers below `count`.
    pub fn reserve(&mut self, count: usize) {
        if self.positions.len() < count {
            self.positions.resize(count, ABSENT);
            self.entries.reserve(count - self.entries.len());
        }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    #[inline]
    pub fn first(&self) -> Option<(u64, u32)> {
        self.entries.first().copied()
    }

    /// Puts a number in with that key, or gives it that key if it is in already.
    #[inline]
    pub fn set(&mut self, number: u32, key: u64) {
        if self.positions.len() <= number as usize {
            self.reserve(number as usize + 1);
        }
        let position = self.positions[number as usize];
        if position == ABSENT {
            self.entries.push((key, number));
            self.rise(self.entries.len() - 1, (key, number));
            return;
        }
        let position = position as usize;
        let before = self.entries[position].0;
        if key < before {
            self.rise(position, (key, number));
        } else if key > before {
            self.sink(position, (key, number));
        }
    }

    /// Takes a number out; does nothing when it isn't in.
    #[inline]
    pub fn remove(&mut self, number: u32) {
        let Some(position) = self.positions.get_mut(number as usize) else { return };
        let position = std::mem::replace(position, ABSENT);
        if position != ABSENT {
            self.fill(position as usize);
        }
    }

    /// Closes the gap at a position with the last entry.
    fn fill(&mut self, position: usize) {
        let last = self.entries.pop().expect("a number with a position has an entry");
        if position == self.entries.len() {
            return;
        }
        if position > 0 && last < self.entries[(position - 1) / ARITY] {
            self.rise(position, last);
        } else {
            self.sink(position, last);
        }
    }

    fn rise(&mut self, mut position: usize, entry: (u64, u32)) {
        while position > 0 {
            let parent = (position - 1) / ARITY;
            if self.entries[parent] <= entry {
                break;
            }
            self.place(position, self.entries[parent]);
            position = parent;
        }
        self.place(position, entry);
    }

    fn sink(&mut self, mut position: usize, entry: (u64, u32)) {
        loop {
            let first = position * ARITY + 1;
            let end = (first + ARITY).min(self.entries.len());
            if first >= end {
                break;
            }
            let mut least = first;
            for child in first + 1..end {
                if self.entries[child] < self.entries[least] {
                    least = child;
                }
            }
            if self.entries[least] >= entry {
                break;
            }
            self.place(position, self.entries[least]);
            position = least;
        }
        self.place(position, entry);
    }

    #[inline]
    fn place(&mut self, position: usize, entry: (u64, u32)) {
        self.entries[position] = entry;
        self.positions[entry.1 as usize] = position as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn agrees_with_an_ordered_set(changes in prop::collection::vec((0..40u32, prop::option::of(0..50u64)), 0..400)) {
            let mut heap = IndexHeap::default();
            let mut keys = [None; 40];
            for (number, key) in changes {
                match key {
                    Some(key) => heap.set(number, key),
                    None => heap.remove(number),
                }
                keys[number as usize] = key;
                let set: BTreeSet<(u64, u32)> =
                    (0..40).filter_map(|number| Some((keys[number as usize]?, number))).collect();
                prop_assert_eq!(heap.first(), set.first().copied());
                prop_assert_eq!(heap.is_empty(), set.is_empty());
            }
            let mut rest: Vec<(u64, u32)> = (0..40).filter_map(|n| Some((keys[n as usize]?, n))).collect();
            rest.sort_unstable();
            let popped: Vec<(u64, u32)> = std::iter::from_fn(|| {
                let first = heap.first()?;
                heap.remove(first.1);
                Some(first)
            })
            .collect();
            prop_assert_eq!(popped, rest);
        }
    }
}
