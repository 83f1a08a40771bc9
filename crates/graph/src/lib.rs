//! From an ONNX file to a plan: the steps of a model for a fixed batch, with every tensor in its place.
//!
//! ```text
//!  file ──Model::read──> Model ──compile(options)──> Plan ──> kernels, or `reference`
//!                                    │
//!                    lower ──> fuse ──> arrange (places, strides, steps)
//! ```
//!
//! Nothing here knows of a device. A plan says what is to be computed, on which memory and in which order; equal models
//! and equal options give equal plans. [`plan`] is the contract with those who execute it.

mod arrange;
pub mod array;
pub mod cases;
mod compile;
pub mod cut;
mod display;
mod error;
mod evaluate;
pub mod expression;
mod fuse;
mod ir;
mod lower;
mod memory;
pub mod model;
pub mod options;
pub mod plan;
pub mod reference;
#[cfg(test)]
mod sample;
pub mod weights;

pub use compile::compile;
pub use cut::cut;
pub use error::GraphError;
pub use model::OnnxModel;
pub use options::{ImageLayout, Options};
pub use plan::{Plan, Precision};
