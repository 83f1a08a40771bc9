//! Instants by number, of models or devices: which comes first, and who comes before a given instant. Each number
//! stands there at most once, and its instant can be changed in place.

use base::Timestamp;

/// Children of each node: four entries are one line of the cache.
const ARITY: usize = 4;
/// Room for positions that `firsts` has still to compare.
const OPEN: usize = 32;
/// The position of a number that isn't there.
const ABSENT: u32 = u32::MAX;

type HeapEntry = (Timestamp, u32);

/// An index heap: the earliest first, equal ones by number. Every change is O(log n); nothing is allocated once the
/// tables have grown to the largest number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heap {
    entries: Vec<HeapEntry>,
    /// Where each number stands in `entries`.
    positions: Vec<u32>,
}

impl Heap {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn contains(&self, number: usize) -> bool {
        self.positions.get(number).is_some_and(|&position| position != ABSENT)
    }

    pub fn first(&self) -> Option<(Timestamp, usize)> {
        self.entries.first().map(|&(at, number)| (at, number as usize))
    }

    /// Puts a number in with that instant, or gives it that instant if it is in already.
    pub fn set(&mut self, number: usize, at: Timestamp) {
        if self.positions.len() <= number {
            self.positions.resize(number + 1, ABSENT);
        }
        let entry = (at, number as u32);
        let position = self.positions[number];
        if position == ABSENT {
            self.entries.push(entry);
            return self.rise(self.entries.len() - 1, entry);
        }
        let position = position as usize;
        if at < self.entries[position].0 {
            self.rise(position, entry);
        } else {
            self.sink(position, entry);
        }
    }

    /// Takes a number out; whether it was in.
    pub fn remove(&mut self, number: usize) -> bool {
        let Some(position) = self.positions.get_mut(number) else { return false };
        let position = std::mem::replace(position, ABSENT);
        if position == ABSENT {
            return false;
        }
        self.fill(position as usize);
        true
    }

    /// Goes through what is there up to an instant, in no particular order, until `enough` says so; whether it did.
    pub fn any_until(&self, at: Timestamp, mut enough: impl FnMut(Timestamp, usize) -> bool) -> bool {
        self.first().is_some_and(|(first_at, _)| first_at <= at) && self.walk(0, at, &mut enough)
    }

    /// The same from a position on that is in time. Others aren't called for: most of those that are looked at are too
    /// late.
    fn walk(&self, position: usize, at: Timestamp, enough: &mut impl FnMut(Timestamp, usize) -> bool) -> bool {
        let (here, number) = self.entries[position];
        let mut in_time = self.children(position).filter(|&child| self.entries[child].0 <= at);
        enough(here, number as usize) || in_time.any(|child| self.walk(child, at, enough))
    }

    /// The first `N`, in their order.
    pub fn firsts<const N: usize>(&self) -> impl Iterator<Item = (Timestamp, usize)> + use<N> {
        const { assert!(N * ARITY < OPEN, "there must be room for the children of those that are taken") };
        let mut found: [Option<HeapEntry>; N] = [None; N];
        // The next one is among those whose parents were taken.
        let (mut open, mut count) = ([0; OPEN], self.len().min(1));
        for found in &mut found {
            let Some(next) = (0..count).min_by_key(|&index| self.entries[open[index]]) else { break };
            let position = open[next];
            *found = Some(self.entries[position]);
            count -= 1;
            open[next] = open[count];
            for child in self.children(position) {
                open[count] = child;
                count += 1;
            }
        }
        found.into_iter().flatten().map(|(at, number)| (at, number as usize))
    }

    fn children(&self, position: usize) -> std::ops::Range<usize> {
        let first = position * ARITY + 1;
        first..(first + ARITY).min(self.entries.len())
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

    fn rise(&mut self, mut position: usize, entry: HeapEntry) {
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

    fn sink(&mut self, mut position: usize, entry: HeapEntry) {
        while let Some(least) = self.children(position).min_by_key(|&child| self.entries[child]) {
            if self.entries[least] >= entry {
                break;
            }
            self.place(position, self.entries[least]);
            position = least;
        }
        self.place(position, entry);
    }

    fn place(&mut self, position: usize, entry: HeapEntry) {
        self.entries[position] = entry;
        self.positions[entry.1 as usize] = position as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Duration;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn at(nanos: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_nanos(nanos)
    }

    proptest! {
        #[test]
        fn agrees_with_an_ordered_set(changes in prop::collection::vec((0..40usize, prop::option::of(0..50u64)), 0..300)) {
            let mut heap = Heap::default();
            let mut keys = [None; 40];
            for (number, key) in changes {
                let was_in = keys[number].is_some();
                match key {
                    Some(key) => heap.set(number, at(key)),
                    None => prop_assert_eq!(heap.remove(number), was_in),
                }
                keys[number] = key;
                let set: BTreeSet<(Timestamp, usize)> =
                    (0..40).filter_map(|number| Some((at(keys[number]?), number))).collect();
                prop_assert_eq!(heap.first(), set.first().copied());
                prop_assert_eq!(heap.len(), set.len());
                prop_assert!(heap.firsts::<4>().eq(set.iter().copied().take(4)));
                let mut until = BTreeSet::new();
                prop_assert!(!heap.any_until(at(20), |at, number| !until.insert((at, number))));
                prop_assert!(until.iter().eq(set.range(..=(at(20), usize::MAX))));
                prop_assert_eq!(heap.any_until(at(20), |_, number| number < 5), until.iter().any(|entry| entry.1 < 5));
            }
        }
    }
}
