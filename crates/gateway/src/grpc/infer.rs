//! Inference: what a call's headers and message say becomes a request, its answer a frame.

use super::Encodings;
use super::answer::{OneMessage, messages};
use super::frames::{self, Framed, Messages};
use crate::body::encoding::Encoding;
use crate::body::hold::HeldBytes;
use crate::call::{Call, CallHeaders, count_unrouted};
use crate::headers::{APPLICATION, TIMEOUT_US, text};
use crate::io::IoContext;
use crate::io::clients::Owner;
use crate::rights::Caller;
use base::{ApplicationId, Duration, Timestamp};
use bytes::Bytes;
use hyper::Response;
use hyper::header::HeaderMap;
use prost::Message;
use std::sync::Arc;
use telemetry::Transport;
use wire::proto::{ModelInferRequest, ModelInferResponse};
use wire::{Fault, InferResponse, admit, grpc};

/// `ModelInfer`: one request, one answer.
pub(super) async fn answer(
    (context, owner): (&IoContext, &Arc<Owner>),
    caller: &Caller,
    headers: &HeaderMap,
    mut incoming: Messages,
    encodings: Encodings,
    arrived_at: Timestamp,
) -> Result<Response<tonic::body::Body>, Fault> {
    let message = incoming.only().await.inspect_err(|fault| count_unrouted(context, fault))?;
    let (request, held) = read(context, message).await?;
    may_ask(context, caller, &request)?;
    let head = head(context, headers);
    let owner = caller.owner(owner);
    let frame = run((context, owner), (&request, held), head, encodings.answer, arrived_at, |answer| answer).await?;
    Ok(messages(OneMessage::new(frame), encodings.answer))
}

/// Reads a request, and what counts it if it is large.
pub(super) async fn read(
    context: &IoContext,
    message: Framed,
) -> Result<(ModelInferRequest, Option<HeldBytes>), Fault> {
    let read = async {
        let (content, held) = message.plain().await?;
        Ok((admit::read(content)?, held))
    };
    read.await.inspect_err(|fault| count_unrouted(context, fault))
}

/// Refuses whoever may not ask the model that a request names.
pub(super) fn may_ask(context: &IoContext, caller: &Caller, request: &ModelInferRequest) -> Result<(), Fault> {
    context.gate.may_ask(caller, &request.model_name).inspect_err(|fault| count_unrouted(context, fault))
}

/// Asks the model. The answer is made into a message by `wrap`, is in its frame, and is held instead of the request.
pub(super) async fn run<M: Message + 'static>(
    (context, owner): (&IoContext, &Arc<Owner>),
    (request, held): (&ModelInferRequest, Option<HeldBytes>),
    head: Result<CallHeaders, Fault>,
    encoding: Option<Encoding>,
    arrived_at: Timestamp,
    wrap: fn(ModelInferResponse) -> M,
) -> Result<Bytes, Fault> {
    let named = (&*request.model_name, &*request.model_version);
    let mut call = Call::begin(context, owner, named, Transport::Grpc, arrived_at)?;
    let outcome = match head.and_then(|head| Ok((head, grpc::decode(request)?))) {
        Ok((head, request)) => {
            let encode = move |response: InferResponse<'_>| frames::write(&wrap(grpc::encode(response)), encoding);
            let frame = call.run(request, head, encoding.is_some(), encode).await;
            frame.and_then(|frame| frames::held(frame, held, owner))
        }
        Err(fault) => Err(fault),
    };
    call.end(outcome)
}

/// What a call's headers say: the smaller of gRPC's own deadline and that of the header that HTTP has too, and who
/// sends it.
fn head(context: &IoContext, headers: &HeaderMap) -> Result<CallHeaders, Fault> {
    let limit = call_deadline(headers).into_iter().chain(header_deadline(headers)).min();
    Ok(CallHeaders { limit, application: application(context, headers)? })
}

/// Who sends a call's requests, unless they say so themselves.
pub(super) fn application(context: &IoContext, headers: &HeaderMap) -> Result<ApplicationId, Fault> {
    context.shared.applications.of(text(headers, &APPLICATION)?)
}

/// gRPC's own deadline, which is the whole call's.
pub(super) fn call_deadline(headers: &HeaderMap) -> Option<Duration> {
    headers.get("grpc-timeout").and_then(|value| value.to_str().ok()).and_then(grpc::timeout)
}

/// The deadline in the header that HTTP has too, which is each request's.
pub(super) fn header_deadline(headers: &HeaderMap) -> Option<Duration> {
    let micros = headers.get(TIMEOUT_US).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    micros.filter(|&micros| micros > 0).map(Duration::from_micros)
}
