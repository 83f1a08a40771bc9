//! The weights of a plan as one blob: where each lies, and its bytes.

use crate::array::Array;
use base::DataType;
use std::sync::Arc;

/// Each weight begins at a multiple of this, so that kernels may read it in the widest words that there are.
pub const ALIGNMENT: usize = 256;

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
        for entry in &self.entries {
            entry.array.store(entry.dtype, &entry.order, &mut bytes[entry.offset..]);
        }
        bytes
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
