//! Many requests and answers in one gRPC call.

use crate::shard::Shard;
use std::sync::Arc;
use tonic::codegen::BoxStream;
use tonic::{Status, Streaming};
use wire::proto::{ModelInferRequest, ModelStreamInferResponse};
use wire::{Fault, Reason};

/// The answers of a stream.
pub(crate) type Answers = BoxStream<ModelStreamInferResponse>;

/// `ModelStreamInfer`.
pub(crate) fn stream_infer(_shard: &Arc<Shard>, _requests: Streaming<ModelInferRequest>) -> Result<Answers, Status> {
    Err(Fault::new(Reason::NotFound, "streams aren't there yet: use ModelInfer").into())
}
