//! What ends an execution from outside.

/// Breaks off what a model computes, from another thread.
pub trait Breaker: Send + Sync {
    /// Lets the execution that is under way end soon, with [`crate::EngineError::BrokenOff`]. One that begins later
    /// isn't broken off.
    fn break_off(&self);
}
