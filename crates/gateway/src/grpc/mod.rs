//! The protocol over gRPC: a call is a path, its messages come in frames.

mod answer;
mod calls;
mod frames;
mod infer;
mod standard;
mod stream_infer;

use crate::body::encoding::Encoding;
use crate::call::count_unrouted;
use crate::headers::text;
use crate::io::IoContext;
use crate::io::connection::Activity;
use crate::io::open_stream::{OpenStream, StreamBody};
use answer::{ACCEPT_ENCODING, ENCODING};
use base::Timestamp;
use frames::Messages;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::http::request::Parts;
use hyper::{Request, Response};
use standard::StandardServices;
use std::convert::Infallible;
use std::sync::Arc;
use tonic::body::Body;
use wire::Fault;

/// What the paths of the protocol's calls begin with.
const SERVICE: &str = "/inference.GRPCInferenceService/";

/// The services of one io thread.
pub(crate) struct GrpcServer {
    context: Arc<IoContext>,
    standard: StandardServices,
}

impl GrpcServer {
    pub(crate) fn new(context: Arc<IoContext>) -> Self {
        let standard = StandardServices::new(&context.shared);
        Self { context, standard }
    }

    /// Answers one call.
    pub(crate) async fn answer(
        &self,
        activity: &Arc<Activity>,
        request: Request<Incoming>,
    ) -> Result<Response<StreamBody<Body>>, Infallible> {
        let arrived_at = self.context.controller.now();
        let open = OpenStream::new(&self.context, activity);
        let response = match self.standard.of(request.uri().path()) {
            Some(handler) => handler(request).await?,
            None => {
                let (head, incoming) = request.into_parts();
                self.call(&head, incoming, arrived_at).await.unwrap_or_else(answer::refusal)
            }
        };
        Ok(response.map(|body| StreamBody::new(body, open)))
    }

    /// Answers one call of the protocol.
    async fn call(
        &self,
        Parts { uri, headers, .. }: &Parts,
        incoming: Incoming,
        arrived_at: Timestamp,
    ) -> Result<Response<Body>, Fault> {
        let context = &self.context;
        let encodings = Encodings::of(headers).inspect_err(|fault| count_unrouted(context, fault))?;
        let messages = |memory| Messages::new(&context.shared, incoming, encodings.request, memory);
        // Only inference has tensors, which devices read.
        let memory = &context.shared.config.host_memory;
        match uri.path().strip_prefix(SERVICE).unwrap_or_default() {
            "ModelInfer" => infer::answer(context, headers, messages(memory), encodings, arrived_at).await,
            "ModelStreamInfer" => stream_infer::answer(context, headers, messages(memory), encodings, arrived_at),
            // In a box: what is rare must not make every call larger.
            name => Box::pin(calls::answer(context, name, messages(&None), encodings)).await,
        }
    }
}

/// How the messages of a call are compressed, and those of its answer.
#[derive(Clone, Copy)]
struct Encodings {
    request: Option<Encoding>,
    answer: Option<Encoding>,
}

impl Encodings {
    /// Plain calls get plain answers, compressed ones compressed answers. (Most clients say that they accept
    /// compression whether they want it or not, and it costs more than it saves here.)
    fn of(headers: &HeaderMap) -> Result<Self, Fault> {
        let request = Encoding::of_request(ENCODING.as_str(), text(headers, &ENCODING)?)?;
        let answer = match request {
            None => None,
            Some(encoding) => {
                let mut accepted = text(headers, &ACCEPT_ENCODING)?.split(',');
                accepted.any(|name| name.trim() == encoding.name()).then_some(encoding)
            }
        };
        Ok(Self { request, answer })
    }
}
