//! Many requests and answers in one gRPC call.
//!
//! ```text
//!  messages ──> reader task ──a task for each request, at most MAX_IN_FLIGHT──> answers, as they are done
//! ```
//!
//! Requests of one stream are requests like any other: they are planned apart, and answered in the order in which they are
//! done. Whoever drops the answers (the client cancelled, or is gone) drops the reader, and that takes all of them back.

use crate::call::{Call, Head, metric_reason};
use crate::grpc::frames::{Framed, Messages};
use crate::grpc::{application, call_deadline, header_deadline};
use crate::io::IoContext;
use base::{ApplicationId, Duration, Timestamp};
use prost::Message;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::codegen::tokio_stream::Stream;
use tonic::{Request, Status};
use wire::codec::Admit;
use wire::proto::infer_parameter::ParameterChoice;
use wire::proto::{InferParameter, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};
use wire::{Fault, Reason, grpc};

/// Requests of one stream that are in flight; more wait at the client (P9).
const MAX_IN_FLIGHT: usize = 256;
/// Answers that are done and wait to be written.
const MAX_ANSWERS: usize = 16;
/// Says of an answer that no other follows to the same request.
const FINAL: &str = "triton_final_response";
/// A client that sends this with `true` wants a refusal to end the stream, with its status.
const STATUS_HEADER: &str = "triton_grpc_error";

/// The messages of a stream on their way through the generated code, which can only clone them.
#[derive(Clone)]
pub(crate) struct Source(Arc<Mutex<Option<Messages>>>);

impl Source {
    pub(crate) fn new(messages: Messages) -> Self {
        Self(Arc::new(Mutex::new(Some(messages))))
    }

    fn take(&self) -> Option<Messages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

type Answer = Result<ModelStreamInferResponse, Status>;

/// The answers of a stream. Dropped, what isn't answered is taken back.
pub(crate) struct Answers {
    answers: mpsc::Receiver<Answer>,
    _reader: JoinSet<()>,
}

impl Stream for Answers {
    type Item = Answer;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Answer>> {
        self.answers.poll_recv(cx)
    }
}

/// `ModelStreamInfer`. The call's message is not in `request`: it is read from the [`Source`] beside it.
pub(crate) fn answer<T>(
    context: &Arc<IoContext>,
    request: &Request<T>,
    arrived_at: Timestamp,
) -> Result<Answers, Status> {
    let messages = request.extensions().get::<Source>().and_then(Source::take);
    let messages = messages.ok_or_else(|| Fault::new(Reason::NotFound, "there is no stream"))?;
    let headers = request.metadata().as_ref();
    let ends_with_status =
        headers.get(STATUS_HEADER).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"));
    let (sender, answers) = mpsc::channel(MAX_ANSWERS);
    let reader = Reader {
        context: Arc::clone(context),
        limit: header_deadline(headers),
        application: application(context, headers)?,
        ends_at: call_deadline(headers).map(|span| arrived_at + span),
        ends_with_status,
        answers: sender,
    };
    let mut task = JoinSet::new();
    task.spawn(reader.run(messages));
    Ok(Answers { answers, _reader: task })
}

/// What every request of a stream needs.
#[derive(Clone)]
struct Reader {
    context: Arc<IoContext>,
    /// The deadline of each request, from its arrival.
    limit: Option<Duration>,
    /// Who sends them, unless they say so themselves.
    application: ApplicationId,
    /// When the whole stream ends, if the client said so.
    ends_at: Option<Timestamp>,
    ends_with_status: bool,
    answers: mpsc::Sender<Answer>,
}

impl Reader {
    async fn run(self, mut messages: Messages) {
        let mut calls = JoinSet::new();
        let mut closing = self.context.closing.clone();
        let end = loop {
            tokio::select! {
                biased;
                Some(done) = calls.join_next() => if done.is_err() {
                    // It has no answer, so nobody may wait for one.
                    break Some(Fault::new(Reason::ExecutionFailed, "a request of the stream failed; this is a bug"));
                },
                message = messages.next(), if calls.len() < MAX_IN_FLIGHT => match message {
                    Ok(Some(message)) => {
                        let arrived_at = self.context.controller.now();
                        calls.spawn(self.clone().call(message, arrived_at));
                    }
                    Ok(None) => break None,
                    Err(fault) => {
                        self.context.shared.metrics.unrouted(metric_reason(fault.reason));
                        break Some(fault);
                    }
                },
                // What is in flight is answered; the client has to go elsewhere with the rest.
                _ = closing.wait_for(|&closing| closing) => {
                    break Some(Fault::new(Reason::ShuttingDown, "the server is going down"));
                }
            }
        };
        while calls.join_next().await.is_some() {}
        if let Some(fault) = end {
            // Fails only if nobody waits for it.
            let _ = self.answers.send(Err(fault.into())).await;
        }
    }

    /// One request of the stream.
    async fn call(self, message: Framed, arrived_at: Timestamp) {
        let mut id = String::new();
        let answer = match self.infer(message, arrived_at, &mut id).await {
            Ok(response) => {
                Ok(ModelStreamInferResponse { error_message: String::new(), infer_response: Some(response) })
            }
            Err(fault) if self.ends_with_status => Err(fault.into()),
            Err(fault) => Ok(ModelStreamInferResponse {
                error_message: fault.message.into_owned(),
                infer_response: Some(ModelInferResponse { id, ..ModelInferResponse::default() }),
            }),
        };
        let answer = answer.map(|mut answer| {
            if let Some(response) = &mut answer.infer_response {
                let yes = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
                response.parameters.insert(FINAL.to_owned(), yes);
            }
            answer
        });
        // Fails only if nobody waits for it.
        let _ = self.answers.send(answer).await;
    }

    async fn infer(
        &self,
        message: Framed,
        arrived_at: Timestamp,
        id: &mut String,
    ) -> Result<ModelInferResponse, Fault> {
        let context = &self.context;
        let read = async || {
            let (content, held) = message.plain().await?;
            ModelInferRequest::admit(&content)?;
            let message = ModelInferRequest::decode(content)
                .map_err(|error| Fault::bad(format!("the message can't be read: {error}")))?;
            Ok::<_, Fault>((message, held))
        };
        let (message, _held) =
            read().await.inspect_err(|fault| context.shared.metrics.unrouted(metric_reason(fault.reason)))?;
        id.clone_from(&message.id);
        let left = self.ends_at.map(|ends_at| ends_at.since(arrived_at));
        let head = Head { limit: self.limit.into_iter().chain(left).min(), application: self.application };
        let mut call = Call::begin(context, &message.model_name, &message.model_version, arrived_at)?;
        let outcome = match grpc::decode(&message) {
            Ok(request) => call.run(request, head, false, |response| Ok(grpc::encode(response))).await,
            Err(fault) => Err(fault),
        };
        call.end(outcome)
    }
}
