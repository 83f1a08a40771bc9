//! The weights of a plan as one blob: where each lies, and its bytes.

use crate::array::Array;
use base::DataType;
use std::sync::{Arc, Mutex, PoisonError};

/// Each weight begins at a multiple of this, so that kernels may read it in the widest words that there are.
pub const ALIGNMENT: usize = 256;

/// So many threads make the bytes of a large blob, from so many bytes on.
const THREADS: usize = 4;
const WORTH_THREADS: usize = 4 << 20;

/// The layout of a blob. The bytes are made from it on demand: plans of many batch sizes share one blob, so most are
/// never asked for theirs.
#[derive(Clone, Debug, Default)]
pub struct PlanWeights {
    entries: Vec<WeightEntry>,
    bytes: usize,
}

/// One weight: folded, with its elements in the order in which they will lie.
#[derive(Clone, Debug)]
pub(crate) struct WeightEntry {
    pub(crate) offset: usize,
    pub(crate) dtype: DataType,
    /// What it is, row-major.
    pub(crate) array: Arc<Array>,
    /// The order of its dimensions in the blob, the last closest together.
    pub(crate) order: Vec<usize>,
}

impl PlanWeights {
    /// The size of the blob.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// How many tensors it holds.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Adds a weight, or finds the same one; says where it lies.
    pub fn place(&mut self, array: &Arc<Array>, dtype: DataType, order: &[usize]) -> usize {
        let same = |entry: &&WeightEntry| {
            Arc::ptr_eq(&entry.array, array) && entry.dtype == dtype && entry.order.as_slice() == order
        };
        if let Some(entry) = self.entries.iter().find(same) {
            return entry.offset;
        }
        let offset = self.bytes;
        self.bytes = (offset + array.elements() * element_bytes(dtype)).next_multiple_of(ALIGNMENT);
        self.entries.push(WeightEntry { offset, dtype, array: array.clone(), order: order.to_vec() });
        offset
    }

    /// The blob.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        let jobs = Mutex::new(self.parts(&mut bytes).into_iter());
        let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || {
            while let Some((entry, to)) = next() {
                entry.array.store(entry.dtype, &entry.order, to);
            }
        };
        std::thread::scope(|scope| {
            let others = if self.bytes < WORTH_THREADS { 0 } else { THREADS - 1 };
            (0..others).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        bytes
    }

    /// Each weight with its part of the blob.
    fn parts<'a>(&self, mut bytes: &'a mut [u8]) -> Vec<(&WeightEntry, &'a mut [u8])> {
        let (mut parts, mut begin) = (Vec::new(), 0);
        for entry in &self.entries {
            let length = entry.array.elements() * element_bytes(entry.dtype);
            let (_, rest) = bytes.split_at_mut(entry.offset - begin);
            let (own, rest) = rest.split_at_mut(length);
            parts.push((entry, own));
            (bytes, begin) = (rest, entry.offset + length);
        }
        parts
    }

    /// Changes with what lies where, not with the values.
    pub fn layout_hash(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for entry in &self.entries {
            hasher.update(
                format!("{} {} {:?} {:?};", entry.offset, entry.dtype, entry.array.dims, entry.order).as_bytes(),
            );
        }
        hasher.finalize()
    }
}

pub(crate) fn element_bytes(dtype: DataType) -> usize {
    dtype.size().expect("no tensor of a plan has strings")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_weight_is_in_its_place_however_many_threads_there_are() {
        let mut weights = PlanWeights::default();
        let large: Vec<f32> = (0..WORTH_THREADS / 4).map(|value| value as f32).collect();
        let arrays = [Array::floats(&[3], vec![1.0, 2.0, 3.0]), Array::floats(&[WORTH_THREADS / 4], large)];
        let arrays = arrays.map(Arc::new);
        let at = [0, 1, 0].map(|which: usize| weights.place(&arrays[which], DataType::Fp32, &[0]));
        assert_eq!(at, [0, ALIGNMENT, 0]);
        let bytes = weights.to_bytes();
        assert_eq!((bytes.len(), weights.count()), (ALIGNMENT + WORTH_THREADS, 2));
        let float = |at: usize| f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((float(8), float(12), float(ALIGNMENT + 4 * 777)), (3.0, 0.0, 777.0));
    }
}
