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
use crate::io::accept::{Protocol, too_many};
use crate::io::clients::Owner;
use crate::io::connection::Activity;
use crate::io::open_stream::{OpenStream, StreamBody};
use crate::rights::{Asked, AskedOn};
use answer::{ACCEPT_ENCODING, ENCODING};
use base::Timestamp;
use frames::Messages;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::http::request::Parts;
use hyper::{Request, Response};
use standard::{Standard, StandardServices, TimedBody};
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
        let standard = StandardServices::new(&context);
        Self { context, standard }
    }

    /// What the thread's connections share.
    pub(crate) fn context(&self) -> &Arc<IoContext> {
        &self.context
    }

    /// Answers one call.
    pub(crate) async fn answer(
        &self,
        open: OpenStream,
        owner: &Arc<Owner>,
        request: Request<Incoming>,
    ) -> Result<Response<StreamBody<Body>>, Infallible> {
        let arrived_at = self.context.controller.now();
        let path = request.uri().path();
        let response = match self.standard.of(path) {
            _ if open.is_probe() && !standard::is_probe(path) => {
                answer::refusal(too_many(&self.context.shared.config, Protocol::Grpc))
            }
            Some(Standard { handler, patience, deed }) => {
                let (protocol, activity) = (Protocol::Grpc, open.activity());
                let connection = Some(AskedOn { activity, owner });
                let asked = Asked { protocol, uri: request.uri(), headers: request.headers(), connection };
                match self.context.admit(asked, deed) {
                    Ok(_) => handler(request.map(|body| TimedBody::new(body, patience))).await?,
                    Err(fault) => answer::refusal(fault),
                }
            }
            None => {
                let (head, incoming) = request.into_parts();
                self.call(owner, &head, open.activity(), incoming, arrived_at).await.unwrap_or_else(answer::refusal)
            }
        };
        Ok(response.map(|body| StreamBody::new(body, open)))
    }

    /// Answers one call of the protocol.
    async fn call(
        &self,
        owner: &Arc<Owner>,
        head: &Parts,
        activity: &Activity,
        incoming: Incoming,
        arrived_at: Timestamp,
    ) -> Result<Response<Body>, Fault> {
        let (context, headers) = (&self.context, &head.headers);
        let asked = Asked::new(Protocol::Grpc, head, Some(AskedOn { activity, owner }));
        let encodings = Encodings::of(headers).inspect_err(|fault| count_unrouted(context, fault))?;
        let messages = |owner, memory| Messages::new(owner, incoming, encodings.request, memory);
        // Only inference has tensors, which devices read.
        let memory = &context.shared.config.host_memory;
        let admit = || context.gate.admit_infer(asked).inspect_err(|fault| count_unrouted(context, fault));
        match head.uri.path().strip_prefix(SERVICE).unwrap_or_default() {
            "ModelInfer" => {
                let caller = admit()?;
                let messages = messages(caller.owner(owner), memory);
                infer::answer((context, owner), &caller, headers, messages, encodings, arrived_at).await
            }
            "ModelStreamInfer" => {
                let caller = admit()?;
                let messages = messages(caller.owner(owner), memory);
                stream_infer::answer((context, owner), caller, headers, messages, encodings, arrived_at)
            }
            // In a box: what is rare must not make every call larger.
            name => {
                let caller = context.gate.caller(asked);
                let owner = caller.owner(owner);
                Box::pin(calls::answer((context, owner), asked, name, messages(owner, &None), encodings)).await
            }
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
