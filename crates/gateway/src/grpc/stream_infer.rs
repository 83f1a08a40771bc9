//! Many requests and answers in one gRPC call.
//!
//! ```text
//!  messages ──> reader task ──a task for each request, at most MAX_IN_FLIGHT──> answers, as they are done
//! ```
//!
//! Requests of one stream are requests like any other: they are planned apart, and answered in the order in which they
//! are done. Whoever drops the answers (the client cancelled, or is gone) drops the reader, and that takes all of them
//! back.

use super::Encodings;
use super::answer::{messages, trailers};
use super::frames::{self, Framed, Messages};
use super::infer::{self, application, call_deadline, header_deadline};
use crate::body::encoding::Encoding;
use crate::call::{CallHeaders, count_unrouted};
use crate::io::IoContext;
use crate::io::clients::Owner;
use crate::rights::Caller;
use base::{ApplicationId, Duration, Reason, Timestamp};
use bytes::Bytes;
use hyper::Response;
use hyper::body::{Body, Frame};
use hyper::header::HeaderMap;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::Status;
use wire::Fault;
use wire::proto::infer_parameter::ParameterChoice;
use wire::proto::{InferParameter, ModelInferResponse, ModelStreamInferResponse};

/// Requests of one stream that are in flight; more wait at the client (P9).
const MAX_IN_FLIGHT: usize = 256;
/// Answers that are done and wait to be written.
const MAX_ANSWERS: usize = 16;
/// Says of an answer that no other follows to the same request.
const FINAL: &str = "triton_final_response";
/// A client that sends this with `true` wants a refusal to end the stream, with its status.
const STATUS_HEADER: &str = "triton_grpc_error";
/// Answers that are done are written together up to this size.
const JOINED_BYTES: usize = 32 << 10;

/// An answer in its frame, or why the stream ends.
type FramedAnswer = Result<Bytes, Fault>;

/// The answers of a stream. Dropped, what isn't answered is taken back.
struct Answers {
    answers: mpsc::Receiver<FramedAnswer>,
    /// One that is too large to be written together with others.
    large: Option<Bytes>,
    end: End,
    _reader: JoinSet<()>,
}

/// How far the end of a stream is.
enum End {
    /// There may be further answers.
    Open,
    /// This is to be said.
    Known(Status),
    /// It was said.
    Said,
}

impl Answers {
    /// The answers that are done.
    fn poll_joined(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        if let Some(large) = self.large.take() {
            return Poll::Ready(large);
        }
        let mut joined = Vec::new();
        while joined.len() < JOINED_BYTES && matches!(self.end, End::Open) {
            match self.answers.poll_recv(cx) {
                Poll::Pending if joined.is_empty() => return Poll::Pending,
                Poll::Pending => break,
                Poll::Ready(Some(Ok(frame))) if frame.len() >= JOINED_BYTES => {
                    if joined.is_empty() {
                        return Poll::Ready(frame);
                    }
                    self.large = Some(frame);
                    break;
                }
                Poll::Ready(Some(Ok(frame))) if joined.is_empty() => joined = frame.into(),
                Poll::Ready(Some(Ok(frame))) => joined.extend_from_slice(&frame),
                Poll::Ready(Some(Err(fault))) => self.end = End::Known(fault.into()),
                Poll::Ready(None) => self.end = End::Known(Status::ok("")),
            }
        }
        Poll::Ready(joined.into())
    }
}

impl Body for Answers {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let joined = ready!(self.poll_joined(cx));
        if !joined.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(joined))));
        }
        match std::mem::replace(&mut self.end, End::Said) {
            End::Known(status) => Poll::Ready(Some(Ok(trailers(&status)))),
            End::Open | End::Said => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.end, End::Said)
    }
}

/// `ModelStreamInfer`: requests and answers until the client has no more.
pub(super) fn answer(
    (context, owner): (&Arc<IoContext>, &Arc<Owner>),
    caller: Caller,
    headers: &HeaderMap,
    incoming: Messages,
    encodings: Encodings,
    arrived_at: Timestamp,
) -> Result<Response<tonic::body::Body>, Fault> {
    let ends_with_status =
        headers.get(STATUS_HEADER).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"));
    let (sender, answers) = mpsc::channel(MAX_ANSWERS);
    let reader = Reader {
        context: Arc::clone(context),
        owner: Arc::clone(caller.owner(owner)),
        caller,
        limit: header_deadline(headers),
        application: application(context, headers)?,
        ends_at: call_deadline(headers).map(|span| arrived_at + span),
        ends_with_status,
        encoding: encodings.answer,
        answers: sender,
    };
    let mut task = JoinSet::new();
    task.spawn(reader.run(incoming));
    Ok(messages(Answers { answers, large: None, end: End::Open, _reader: task }, encodings.answer))
}

/// What every request of a stream needs.
#[derive(Clone)]
struct Reader {
    context: Arc<IoContext>,
    owner: Arc<Owner>,
    /// Who sends them: keys may change while the stream is open.
    caller: Caller,
    /// The deadline of each request, from its arrival.
    limit: Option<Duration>,
    /// Who sends them, unless they say so themselves.
    application: ApplicationId,
    /// When the whole stream ends, if the client said so.
    ends_at: Option<Timestamp>,
    ends_with_status: bool,
    /// How answers are compressed.
    encoding: Option<Encoding>,
    answers: mpsc::Sender<FramedAnswer>,
}

impl Reader {
    async fn run(self, mut messages: Messages) {
        let mut calls = JoinSet::new();
        let mut closing = self.context.closing.clone();
        let patience = self.context.shared.config.idle_timeout;
        // Looked at when it is over, and not with each request: a stream may idle for twice that.
        let mut idle = pin!(tokio::time::sleep(patience));
        let mut was_asked = false;
        let end = loop {
            tokio::select! {
                biased;
                Some(done) = calls.join_next() => if done.is_err() {
                    // It has no answer, so nobody may wait for one.
                    break Some(Fault::new(Reason::ExecutionFailed, "a request of the stream failed; this is a bug"));
                },
                message = messages.next(), if calls.len() < MAX_IN_FLIGHT => match message {
                    Ok(Some(message)) => {
                        was_asked = true;
                        let arrived_at = self.context.controller.now();
                        calls.spawn(self.clone().call(message, arrived_at));
                    }
                    Ok(None) => break None,
                    Err(fault) => {
                        count_unrouted(&self.context, &fault);
                        break Some(fault);
                    }
                },
                () = &mut idle => {
                    if !was_asked && calls.is_empty() {
                        break Some(Fault::bad(format!("the stream had no request for {patience:?}: open it when there is one")));
                    }
                    was_asked = false;
                    idle.as_mut().reset(tokio::time::Instant::now() + patience);
                }
                // What is in flight is answered; the client has to go elsewhere with the rest.
                _ = closing.wait_for(|&closing| closing) => {
                    break Some(Fault::new(Reason::ShuttingDown, "the server is going down"));
                }
            }
        };
        while calls.join_next().await.is_some() {}
        if let Some(fault) = end {
            // Fails only if nobody waits for it.
            let _ = self.answers.send(Err(fault)).await;
        }
    }

    /// One request of the stream.
    async fn call(self, message: Framed, arrived_at: Timestamp) {
        let answer = match self.infer(message, arrived_at).await {
            Ok(frame) => Ok(frame),
            // Whose key is gone has no stream any more.
            Err((_, fault)) if self.ends_with_status || fault.reason == Reason::Unauthenticated => Err(fault),
            Err((id, fault)) => frames::write(&refused(id, fault), self.encoding).map(Bytes::from),
        };
        // Fails only if nobody waits for it.
        let _ = self.answers.send(answer).await;
    }

    /// The answer to a request; or the request's id and why there is none.
    async fn infer(&self, message: Framed, arrived_at: Timestamp) -> Result<Bytes, (String, Fault)> {
        let context = &self.context;
        let (request, held) = infer::read(context, message).await.map_err(|fault| (String::new(), fault))?;
        if let Err(fault) = infer::may_ask(context, &self.caller, &request) {
            return Err((request.id, fault));
        }
        let left = self.ends_at.map(|ends_at| ends_at.since(arrived_at));
        let head = CallHeaders { limit: self.limit.into_iter().chain(left).min(), application: self.application };
        let answer =
            infer::run((context, &self.owner), (&request, held), Ok(head), self.encoding, arrived_at, answered).await;
        answer.map_err(|fault| (request.id, fault))
    }
}

/// The answer to a request of a stream.
fn answered(mut response: ModelInferResponse) -> ModelStreamInferResponse {
    let yes = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
    response.parameters.insert(FINAL.to_owned(), yes);
    ModelStreamInferResponse { error_message: String::new(), infer_response: Some(response) }
}

/// The refusal of a request of a stream, which goes on.
fn refused(id: String, fault: Fault) -> ModelStreamInferResponse {
    let answer = answered(ModelInferResponse { id, ..ModelInferResponse::default() });
    ModelStreamInferResponse { error_message: fault.message.into_owned(), ..answer }
}
