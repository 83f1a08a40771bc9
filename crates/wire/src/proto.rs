//! The protobuf messages, the server's trait and the client, generated from `proto/inference.proto`.

#![allow(missing_docs, clippy::all, clippy::cast_lossless, clippy::semicolon_if_nothing_returned)]

tonic::include_proto!("inference");
