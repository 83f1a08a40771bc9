//! Where buffers lie in the workspace: those that are needed at the same time never overlap.
//!
//! Largest first, each at the lowest place that is free from its first use to its last. That is within a few percent of
//! the best for networks, and it is deterministic.

use crate::weights::ALIGNMENT;

/// A piece of workspace and the steps during which it is needed, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Buffer {
    pub(crate) bytes: usize,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

/// The offset of each buffer, and the size of the whole.
pub(crate) fn place(buffers: &[Buffer]) -> (Vec<usize>, usize) {
    let mut order: Vec<_> = (0..buffers.len()).collect();
    order.sort_by_key(|&index| (std::cmp::Reverse(buffers[index].bytes), buffers[index].first, index));
    let mut offsets = vec![0; buffers.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut total = 0;
    for index in order {
        let buffer = buffers[index];
        let meets = |&&other: &&usize| buffers[other].first <= buffer.last && buffer.first <= buffers[other].last;
        let mut taken: Vec<_> =
            placed.iter().filter(meets).map(|&other| (offsets[other], buffers[other].bytes)).collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (start, bytes) in taken {
            if offset + buffer.bytes <= start {
                break;
            }
            offset = offset.max((start + bytes).next_multiple_of(ALIGNMENT));
        }
        offsets[index] = offset;
        total = total.max(offset + buffer.bytes);
        placed.push(index);
    }
    (offsets, total.next_multiple_of(ALIGNMENT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn buffers_that_live_together_do_not_overlap(
            list in prop::collection::vec((1usize..5000, 0usize..30, 0usize..10), 0..40)
        ) {
            let buffers: Vec<_> =
                list.iter().map(|&(bytes, first, length)| Buffer { bytes, first, last: first + length }).collect();
            let (offsets, total) = place(&buffers);
            for (a, one) in buffers.iter().enumerate() {
                prop_assert!(offsets[a] + one.bytes <= total);
                prop_assert_eq!(offsets[a] % ALIGNMENT, 0);
                for (b, other) in buffers.iter().enumerate().skip(a + 1) {
                    let together = one.first <= other.last && other.first <= one.last;
                    let apart = offsets[a] + one.bytes <= offsets[b] || offsets[b] + other.bytes <= offsets[a];
                    prop_assert!(!together || apart);
                }
            }
        }
    }

    #[test]
    fn a_chain_needs_two_places() {
        let chain: Vec<_> = (0..10).map(|step| Buffer { bytes: 1024, first: step, last: step + 1 }).collect();
        assert_eq!(place(&chain).1, 2048);
    }
}
