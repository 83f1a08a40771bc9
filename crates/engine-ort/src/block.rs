//! The weights of a model behind one another in host memory, each aligned for the widest vector loads.

use memmap2::{Mmap, MmapMut};
use std::io;
use std::ops::Deref;

/// A cache line, and the widest vector register: a weight that starts on it is never loaded across two lines.
const ALIGNMENT: usize = 64;

/// See the module.
pub(crate) enum Block {
    /// Memory of our own.
    Owned(MmapMut),
    /// Part of a copy of a file of the cache: read from it again when the system needs the memory for something else.
    Mapped {
        /// The copy.
        map: Mmap,
        /// Where the block starts in it.
        start: usize,
    },
}

impl Block {
    /// Memory for that many bytes, in large pages where the system has them: fewer of the processor's table lookups.
    pub(crate) fn memory(length: usize) -> io::Result<MmapMut> {
        let map = MmapMut::map_anon(length.max(1))?;
        #[cfg(target_os = "linux")]
        if let Err(error) = map.advise(memmap2::Advice::HugePage) {
            tracing::debug!("no large pages for weights: {error}");
        }
        Ok(map)
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Owned(map) => map,
            Self::Mapped { map, start } => &map[*start..],
        }
    }
}

/// Where each weight of those lengths goes, and how long the block is.
pub(crate) fn places(lengths: impl Iterator<Item = usize>) -> (Vec<usize>, usize) {
    let mut end = 0usize;
    let places = lengths
        .map(|length| {
            let place = end.next_multiple_of(ALIGNMENT);
            end = place + length;
            place
        })
        .collect();
    (places, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_weight_starts_on_a_cache_line() {
        assert_eq!(places([1, 64, 65, 0].into_iter()), (vec![0, 64, 128, 256], 256));
        assert_eq!(places(std::iter::empty()), (vec![], 0));
        let block = Block::memory(100).unwrap();
        assert_eq!(block.as_ptr() as usize % 4096, 0);
        assert!(block.len() >= 100);
    }
}
