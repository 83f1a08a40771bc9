//! From an ONNX file to a plan: the steps of a model for a fixed batch, with every tensor in its place.
//!
//! ```text
//!  file ──Model::read──> Model ──compile(options)──> Plan ──> kernels, or `reference`
//! ```
//!
//! Nothing here knows of a device. A plan says what is to be computed, on which memory and in which order; equal models and
//! equal options give equal plans. [`plan`] is the contract with those who execute it.

pub mod array;
pub mod expression;
pub mod options;
pub mod plan;
pub mod weights;

pub use options::{Layout, Options};
pub use plan::{Plan, Precision};
