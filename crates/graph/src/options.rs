//! What a plan is made for.

use crate::plan::Precision;
use std::collections::BTreeMap;

/// The sizes and choices of one plan.
#[derive(Clone, Debug)]
pub struct Options {
    /// The batch: the first dimension of inputs, where the model leaves it open.
    pub batch: usize,
    /// The other open dimensions by their names in the model (`sequence`), or by input and position (`input_ids:1`).
    pub sizes: BTreeMap<String, usize>,
    /// What floats are kept in.
    pub precision: Precision,
    /// In TF32: how many of the first convolutions and products are multiplied in 32 bits all the same.
    pub exact_products: usize,
    /// How images lie in memory.
    pub layout: ImageLayout,
    /// Whether neighbouring operators become one step. Off in tests, which compare.
    pub fuse: bool,
    /// Whether convolutions and products may read the model's inputs as they are and write its outputs in their own
    /// types, instead of a copy before and behind: for kernels that can.
    pub convert_in_steps: bool,
    /// Whether the parts of a concatenation are written where they belong by those who make them.
    pub concat_in_place: bool,
}

/// How images lie in memory between the steps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ImageLayout {
    /// Channels closest together.
    ChannelsLast,
    /// As ONNX has it: columns closest together.
    ChannelsFirst,
}

impl Options {
    /// For that batch, with everything else as it is best.
    pub fn new(batch: usize, precision: Precision) -> Self {
        let (sizes, layout) = (BTreeMap::new(), ImageLayout::ChannelsLast);
        let (exact_products, fuse, convert_in_steps, concat_in_place) = (0, true, false, true);
        Self { batch, sizes, precision, exact_products, layout, fuse, convert_in_steps, concat_in_place }
    }
}
