//! A batch on its way through a device. Transfers overlap with the computing of others: the inputs of one go to the
//! device while the one before is computed.
//!
//! ```text
//!              stage          start               is_computed        has_arrived   finish
//!  batch 1     inputs ───────> computed ──────────────> outputs ───────────>
//!  batch 2              inputs ──── waits ────> computed ──────────────────────> outputs
//! ```

use crate::{EngineError, Inputs, Loaded, TensorView};
use base::Duration;
use std::time::Instant;

/// Takes each output of a batch, by its position in the signature.
pub type Sink<'a> = dyn FnMut(usize, TensorView<'_>) + 'a;

/// What a batch took by the device's own clock, where it has one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DeviceTimes {
    /// Computing it, transfers left out.
    pub computing: Option<Duration>,
    /// Its inputs' way to the device, which can overlap with other batches.
    pub inputs: Duration,
    /// Its outputs' way from the device, which can be, too.
    pub outputs: Duration,
    /// What of the inputs' time was over before the device turned to this batch.
    pub early: Duration,
}

/// A batch whose inputs are on their way to the device or there. Dropping it breaks it off, and waits until the device
/// is done with it.
pub trait Staged: Send {
    /// Whether `start` computes the batch on the thread that calls it. Nothing else is under way on the device then.
    fn blocks(&self) -> bool;

    /// Lets the device compute it, after everything that was started before. Called once, with the inputs that it was
    /// staged with.
    fn start(&mut self, inputs: &mut dyn Inputs) -> Result<(), EngineError>;

    /// Whether it is computed, so that the next one may start. Doesn't wait.
    fn is_computed(&mut self) -> Result<bool, EngineError>;

    /// When it will be computed and its outputs will be there, where the engine knows: nobody needs to ask before.
    fn due_at(&self) -> Option<Instant>;

    /// Whether its outputs are there. Doesn't wait.
    fn has_arrived(&mut self) -> Result<bool, EngineError>;

    /// Hands each output to `sink`, and lets go of the weights. Waits for them where they aren't there yet.
    fn finish(&mut self, sink: &mut Sink<'_>) -> Result<DeviceTimes, EngineError>;
}

/// Runs one batch with the device to itself, and waits for its outputs: for measurements.
pub fn execute(
    loaded: &mut dyn Loaded,
    inputs: &mut dyn Inputs,
    sink: &mut Sink<'_>,
) -> Result<DeviceTimes, EngineError> {
    let mut staged = loaded.stage(inputs)?;
    staged.start(inputs)?;
    staged.finish(sink)
}
