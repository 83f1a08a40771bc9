//! Batches whose transfers run beside the computing of others: the inputs of one go to the device while the one before is computed.
//!
//! ```text
//!              stage          start               is_computed        has_arrived   finish
//!  batch 1     inputs ───────> computed ──────────────> outputs ───────────>
//!  batch 2              inputs ──── waits ────> computed ──────────────────────> outputs
//! ```

use crate::{EngineError, TensorView};
use base::{DataType, Duration};
use bytes::Bytes;
use std::time::Instant;

/// An input in several pieces, which the engine may keep for as long as the device needs them.
#[derive(Clone, Debug)]
pub struct Input {
    /// Element type.
    pub datatype: DataType,
    /// Dimensions of the whole, all known.
    pub shape: Vec<i64>,
    /// The elements, in their order; a row is in one piece.
    pub pieces: Vec<Bytes>,
}

/// What the transfers of a batch took.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Moved {
    /// To the device.
    pub inputs: Duration,
    /// From the device.
    pub outputs: Duration,
    /// What of the inputs' time was over before the device turned to this batch.
    pub early: Duration,
}

/// A batch whose inputs are on their way to the device or there. Dropping it breaks it off, and waits until the device is done with it.
pub trait Staged: Send {
    /// Lets the device compute it, after everything that was started before. Called once.
    fn start(&mut self) -> Result<(), EngineError>;

    /// Whether it is computed, so that the next one may start. Doesn't wait.
    fn is_computed(&mut self) -> Result<bool, EngineError>;

    /// When it will be computed and its outputs will be there, where the engine knows: nobody needs to ask before.
    fn due_at(&self) -> Option<Instant> {
        None
    }

    /// Whether its outputs are there. Doesn't wait.
    fn has_arrived(&mut self) -> Result<bool, EngineError>;

    /// Hands each output to `sink`, as [`Loaded::execute`](crate::Loaded::execute) does, once they are there, and lets go of the weights.
    fn finish(&mut self, sink: &mut dyn FnMut(usize, TensorView<'_>)) -> Result<Moved, EngineError>;
}
