//! A runtime that computes nothing and takes as long as a profile says. For devices that nobody has.

use crate::{Engine, EngineError, Loaded, ModelSource, Prepared, TensorView};
use std::sync::Arc;

/// See the module. Outputs are zeros of the right shape.
#[derive(Debug, Default)]
pub struct EmulatedEngine {}

impl Engine for EmulatedEngine {
    fn name(&self) -> &'static str {
        "emulated"
    }

    fn prepare(&self, source: &ModelSource) -> Result<Arc<dyn Prepared>, EngineError> {
        Err(EngineError::bad_model(&source.file, "the emulated engine is being written"))
    }
}
#[allow(unused)]
fn unused(_: &dyn Loaded, _: &TensorView<'_>) {}
