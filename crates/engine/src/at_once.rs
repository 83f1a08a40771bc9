//! Models that are computed on the thread that asks for it: a batch of theirs is computed when it has started.

use crate::{Breaker, DeviceTimes, EngineError, Inputs, Loaded, Sink, Staged, TensorView};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A model that computes one batch at a time, on the caller's thread.
pub trait AtOnce: Send + 'static {
    /// Computes a batch and keeps its outputs, until they are handed out or the next one is computed.
    fn compute(&mut self, inputs: &[TensorView<'_>]) -> Result<(), EngineError>;

    /// Hands each output of the batch that was computed last to `sink`.
    fn hand_out(&mut self, sink: &mut Sink<'_>) -> Result<(), EngineError>;

    /// What breaks its executions off, where the engine can.
    fn breaker(&self) -> Option<Arc<dyn Breaker>> {
        None
    }
}

/// The model, for whoever runs batches in stages.
pub fn at_once(model: impl AtOnce) -> Box<dyn Loaded> {
    let breaker = model.breaker();
    Box::new(LoadedAtOnce { model: SharedModel(Arc::new(Mutex::new(model))), breaker })
}

/// The model on its device.
struct LoadedAtOnce<M> {
    model: SharedModel<M>,
    breaker: Option<Arc<dyn Breaker>>,
}

/// The model, and each batch of it. Nobody waits for the lock: one batch is under way at a time.
struct SharedModel<M>(Arc<Mutex<M>>);

impl<M> SharedModel<M> {
    fn model(&self) -> MutexGuard<'_, M> {
        // A panic in the middle of a batch leaves a model that takes the next one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M: AtOnce> Loaded for LoadedAtOnce<M> {
    fn there_at(&self) -> Option<Instant> {
        None
    }

    fn breaker(&self) -> Option<Arc<dyn Breaker>> {
        self.breaker.clone()
    }

    fn stage(&mut self, _inputs: &mut dyn Inputs) -> Result<Box<dyn Staged>, EngineError> {
        Ok(Box::new(SharedModel(Arc::clone(&self.model.0))))
    }
}

impl<M: AtOnce> Staged for SharedModel<M> {
    fn blocks(&self) -> bool {
        true
    }

    fn start(&mut self, inputs: &mut dyn Inputs) -> Result<(), EngineError> {
        inputs.in_one_piece(&mut |views| self.model().compute(views))
    }

    fn is_computed(&mut self) -> Result<bool, EngineError> {
        Ok(true)
    }

    fn due_at(&self) -> Option<Instant> {
        None
    }

    fn has_arrived(&mut self) -> Result<bool, EngineError> {
        Ok(true)
    }

    fn finish(&mut self, sink: &mut Sink<'_>) -> Result<DeviceTimes, EngineError> {
        self.model().hand_out(sink)?;
        Ok(DeviceTimes::default())
    }
}
