//! The Open Inference Protocol: JSON, binary tensors and protobuf.
