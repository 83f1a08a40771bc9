//! What engines are tried on, in their tests and in `engine-lab`: single steps, and ONNX's own tests of nodes.

pub mod detectors;
pub mod nodes;
pub mod steps;
