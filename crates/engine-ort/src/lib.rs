//! ONNX Runtime on CPU cores.
