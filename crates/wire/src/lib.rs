//! The Open Inference Protocol, turned into values and back; no IO.
//!
//! ```text
//!  HTTP body ──json::decode──┐                       ┌──json::encode──> HTTP body (JSON, then binary tensors)
//!                            ├──> InferRequest ... InferResponse
//!  protobuf ──grpc::decode───┘                       └──grpc::encode──> protobuf
//! ```
//!
//! Both ways in give the same [`InferRequest`], whose tensors are in the protocol's binary form whatever they came as,
//! so that everything behind this crate knows one form only. Every way of saying no is a [`Fault`], and one table
//! ([`base::Reason`]) says what that is on each protocol.

pub mod admit;
pub mod grpc;
pub mod json;
pub mod proto;
pub mod reflect;
pub mod room;

mod bounds;
mod elements;
mod fault;
mod infer;
mod numbers;
mod parameters;
mod raw;
mod sentence;

pub use elements::{TooLong, check_elements, push_string};
pub use fault::{EARLIEST_METADATA, Fault, REASON_METADATA};
pub use infer::{
    InferInput, InferRequest, InferResponse, OutputTensor, Parameters, Region, RequestedOutput, SequenceId,
    SequenceMark,
};
pub use raw::raw_request;
