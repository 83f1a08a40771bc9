//! The protobuf messages and the client, generated from `proto/inference.proto`.

#![allow(missing_docs, clippy::all, clippy::cast_lossless, clippy::semicolon_if_nothing_returned)]

tonic::include_proto!("inference");

/// The description of all of them: a `FileDescriptorSet`, with the comments.
pub const DESCRIPTION: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/inference.bin"));
