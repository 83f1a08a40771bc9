//! A set of small numbers that knows its least one: a tree of 64-bit words, in which a bit above says that the word below
//! isn't empty.

/// O(log_64 n) for everything: three words for 262,144 numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct BitTree {
    /// The numbers themselves first, the root last.
    levels: Vec<Vec<u64>>,
}

impl BitTree {
    /// Makes room for the numbers below `count`; what is in stays in.
    pub fn reserve(&mut self, count: usize) {
        let mut words = count.div_ceil(64).max(1);
        let mut level = 0;
        loop {
            if level == self.levels.len() {
                // The root of before, if there was one, is the first word of the level below.
                let root = level > 0 && self.levels[level - 1][0] != 0;
                self.levels.push(vec![u64::from(root)]);
            }
            if self.levels[level].len() < words {
                self.levels[level].resize(words, 0);
            }
            if words == 1 {
                break;
            }
            words = words.div_ceil(64);
            level += 1;
        }
    }

    pub fn insert(&mut self, number: u32) {
        let mut index = number as usize;
        for level in &mut self.levels {
            let word = &mut level[index / 64];
            let was_empty = *word == 0;
            *word |= 1 << (index % 64);
            if !was_empty {
                break;
            }
            index /= 64;
        }
    }

    pub fn remove(&mut self, number: u32) {
        let mut index = number as usize;
        for level in &mut self.levels {
            let Some(word) = level.get_mut(index / 64) else { return };
            *word &= !(1 << (index % 64));
            if *word != 0 {
                break;
            }
            index /= 64;
        }
    }

    pub fn first(&self) -> Option<u32> {
        let root = *self.levels.last()?.first()?;
        if root == 0 {
            return None;
        }
        let mut index = 0;
        for level in self.levels.iter().rev() {
            index = index * 64 + level[index].trailing_zeros() as usize;
        }
        Some(index as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn agrees_with_an_ordered_set(
            start in 1..5_000usize,
            changes in prop::collection::vec((0..10_000u32, any::<bool>()), 0..300),
        ) {
            let mut bits = BitTree::default();
            bits.reserve(start);
            let mut set = BTreeSet::new();
            for (number, put) in changes {
                if put {
                    bits.reserve(number as usize + 1);
                    bits.insert(number);
                    set.insert(number);
                } else {
                    bits.remove(number);
                    set.remove(&number);
                }
                prop_assert_eq!(bits.first(), set.first().copied());
            }
        }
    }
}
