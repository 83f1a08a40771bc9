//! Sets of small numbers, of devices mostly: which are free, which hold a model. Words of 64 bits, and a bit above for
//! each word that isn't empty, so that the least number in one set, or in two at once, is found in a few steps whatever
//! their size.

use base::DeviceId;

#[derive(Clone, Debug, Default)]
pub(crate) struct Bits {
    words: Vec<u64>,
    /// One bit for each word.
    filled: Vec<u64>,
    len: usize,
    /// How often something was put in.
    revision: u64,
}

/// The positions of the bits that are set, the lowest first.
fn positions(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let position = (word != 0).then(|| word.trailing_zeros() as usize);
        word &= word.wrapping_sub(1);
        position
    })
}

impl Bits {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Another number whenever something was put in.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    pub fn contains(&self, number: usize) -> bool {
        self.words.get(number / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    pub fn insert(&mut self, number: usize) {
        let word = number / 64;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
            self.filled.resize(word / 64 + 1, 0);
        }
        if !self.contains(number) {
            self.words[word] |= 1 << (number % 64);
            self.filled[word / 64] |= 1 << (word % 64);
            self.len += 1;
            self.revision += 1;
        }
    }

    pub fn remove(&mut self, number: usize) {
        if self.contains(number) {
            let word = number / 64;
            self.words[word] &= !(1 << (number % 64));
            self.filled[word / 64] &= !(u64::from(self.words[word] == 0) << (word % 64));
            self.len -= 1;
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = usize> {
        let words = self
            .filled
            .iter()
            .enumerate()
            .flat_map(|(index, &filled)| positions(filled).map(move |bit| 64 * index + bit));
        words.flat_map(|word| positions(self.words[word]).map(move |bit| 64 * word + bit))
    }

    /// What is in this one and not in the other, from a number on, then from the lowest on.
    pub fn without<'a>(&'a self, other: &'a Self, first: usize) -> impl Iterator<Item = usize> + use<'a> {
        let first = if first < 64 * self.words.len() { first } else { 0 };
        let left = move |word: usize| self.words[word] & !other.words.get(word).copied().unwrap_or(0);
        let (from, high) = (first / 64, u64::MAX << (first % 64));
        // The first word is in two parts: what is behind the number comes first, what is before it last.
        let behind = (from..self.words.len()).map(move |word| (word, if word == from { high } else { u64::MAX }));
        let before = (0..=from).map(move |word| (word, if word == from { !high } else { u64::MAX }));
        let words = behind.chain(before).take_while(|_| !self.is_empty());
        words.flat_map(move |(word, mask)| positions(left(word) & mask).map(move |bit| 64 * word + bit))
    }

    /// What is in both, the lowest first.
    pub fn common<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = usize> + use<'a> {
        let filled = self.filled.iter().zip(&other.filled).enumerate();
        let words = filled.flat_map(|(index, (&a, &b))| positions(a & b).map(move |bit| 64 * index + bit));
        words.flat_map(|word| positions(self.words[word] & other.words[word]).map(move |bit| 64 * word + bit))
    }
}

/// A set of devices.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceSet(Bits);

impl DeviceSet {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Another number whenever a device was put in.
    pub fn revision(&self) -> u64 {
        self.0.revision()
    }

    pub fn contains(&self, device: DeviceId) -> bool {
        self.0.contains(device.index())
    }

    pub fn insert(&mut self, device: DeviceId) {
        self.0.insert(device.index());
    }

    pub fn remove(&mut self, device: DeviceId) {
        self.0.remove(device.index());
    }

    /// By number.
    pub fn iter(&self) -> impl Iterator<Item = DeviceId> {
        self.0.iter().map(|index| DeviceId(index as u32))
    }

    /// Those in both, by number.
    pub fn common<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = DeviceId> + use<'a> {
        self.0.common(&other.0).map(|index| DeviceId(index as u32))
    }

    /// Those in this one and not in the other, from a number on, then the others.
    pub fn without<'a>(&'a self, other: &'a Self, first: u32) -> impl Iterator<Item = DeviceId> + use<'a> {
        self.0.without(&other.0, first as usize).map(|index| DeviceId(index as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn agrees_with_ordered_sets(changes in prop::collection::vec((0..10_000usize, any::<bool>(), any::<bool>()), 0..300)) {
            let mut bits = [Bits::default(), Bits::default()];
            let mut sets = [BTreeSet::new(), BTreeSet::new()];
            for (number, which, put) in changes {
                // Dense enough for numbers to meet.
                let (which, number) = (usize::from(which), number % 200 + 64 * (number / 9_000) * 100);
                if put {
                    bits[which].insert(number);
                    sets[which].insert(number);
                } else {
                    bits[which].remove(number);
                    sets[which].remove(&number);
                }
                prop_assert_eq!(bits[which].len(), sets[which].len());
                prop_assert_eq!(bits[which].contains(number), put);
                prop_assert!(bits[which].iter().eq(sets[which].iter().copied()));
                prop_assert!(bits[0].common(&bits[1]).eq(sets[0].intersection(&sets[1]).copied()));
            }
        }
    }

    #[test]
    fn who_is_left_over_is_found_from_the_middle_on() {
        let [mut free, mut holding] = [DeviceSet::default(), DeviceSet::default()];
        [1, 65, 70, 300].into_iter().for_each(|device| free.insert(DeviceId(device)));
        holding.insert(DeviceId(70));
        let left = |first| free.without(&holding, first).map(|device| device.0).collect::<Vec<_>>();
        assert_eq!(left(66), [300, 1, 65]);
        assert_eq!(left(65), [65, 300, 1]);
        assert_eq!(left(1_000), [1, 65, 300]);
        assert!(DeviceSet::default().without(&holding, 7).next().is_none());
    }
}
