//! The protocol over HTTP.

mod calls;
mod openapi;
mod receive;
mod route;

use crate::body::encoding::Encoding;
use crate::body::hold::HeldBytes;
use crate::body::pace::Pace;
use crate::body::payload::{Payload, plain};
use crate::call::{Call, CallHeaders, count_unrouted};
use crate::extensions::{SERVER_NAME, SERVER_VERSION, extensions};
use crate::headers::{APPLICATION, TIMEOUT_US, text};
use crate::io::IoContext;
use crate::io::accept::{Protocol, too_many};
use crate::io::clients::Owner;
use crate::io::connection::Activity;
use crate::io::offload::{OFFLOAD_READ_BYTES, offload};
use crate::models::serving;
use crate::rights::{Asked, AskedOn, Author};
use base::{Duration, Reason};
use hyper::body::Incoming;
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, EXPECT, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response};
use receive::RequestBody;
use route::{ModelCall, Route};
use std::sync::Arc;
use telemetry::Transport;
use wire::{Fault, InferResponse, json, raw_request};

/// How many bytes of a body are JSON; binary tensors follow them.
const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// Answers below this size fit one packet: compressing them saves nothing.
const COMPRESS_FROM: usize = 1_400;

/// Answers one request.
pub(crate) async fn answer(
    context: &IoContext,
    activity: &Activity,
    owner: &Arc<Owner>,
    request: Request<Incoming>,
) -> Response<Payload> {
    let arrived_at = context.controller.now();
    activity.reads_body();
    let (head, body) = request.into_parts();
    // Where calls share a connection the sweep can't tell which of them stands still.
    let pace = activity.is_multiplexed().then(Pace::default);
    let mut body = RequestBody::new(body, head.headers.contains_key(EXPECT), pace);
    let path = head.uri.path();
    let outcome = match Route::of(path) {
        None => Err(Fault::new(Reason::NotFound, route::unknown(path))),
        Some(route) if !allowed(&route, &head.method) => {
            let preflight = context.gate.rules.browsers.preflight(&head, route.methods());
            Ok(preflight.unwrap_or_else(|| plain::method_not_allowed(path, &head.method, route.methods())))
        }
        Some(route) if activity.is_probe() && !matches!(route, Route::ServerLive | Route::ServerReady) => {
            Err(too_many(&context.shared.config, Protocol::Http))
        }
        Some(Route::Model { name, version, call: ModelCall::Infer }) => {
            let gate = &context.gate;
            let admitted = gate.admit_infer(Asked::new(Protocol::Http, &head, Some(AskedOn { activity, owner })));
            let admitted = admitted.and_then(|caller| gate.may_ask(&caller, &name).map(|()| caller));
            match admitted.inspect_err(|fault| count_unrouted(context, fault)) {
                Ok(caller) => {
                    let owner = caller.owner(owner);
                    match Call::begin(context, owner, (&name, &version), Transport::Http, arrived_at) {
                        Ok(mut call) => {
                            let outcome = infer(context, (activity, owner), &mut call, &head.headers, &mut body).await;
                            call.end(outcome)
                        }
                        Err(fault) => Err(fault),
                    }
                }
                Err(fault) => Err(fault),
            }
        }
        // In a box: what is rare must not make every call larger.
        Some(route) => Box::pin(other(context, (activity, owner), &route, &head, &mut body)).await,
    };
    let mut response = outcome.unwrap_or_else(|fault| plain::fault(&fault));
    context.gate.rules.browsers.show(&head.headers, &mut response);
    if !response.status().is_success() {
        body.discard(&context.shared.config).await;
    }
    activity.answers();
    response
}

/// Answers one request that isn't inference.
async fn other(
    context: &IoContext,
    (activity, owner): (&Activity, &Arc<Owner>),
    route: &Route<'_>,
    head: &Parts,
    body: &mut RequestBody,
) -> Result<Response<Payload>, Fault> {
    let author = match route.deed(&head.method) {
        Some(deed) => context.admit(Asked::new(Protocol::Http, head, Some(AskedOn { activity, owner })), deed)?,
        None => Author::default(),
    };
    let owner = author.caller.owner(owner);
    match route {
        Route::Model { name, version, call: ModelCall::Ready } => {
            context.models.describe(name, version, |_| plain::empty())
        }
        Route::Model { name, version, call: ModelCall::Metadata } => {
            context.models.describe(name, version, |metadata| plain::json(json::model_metadata(&metadata)))
        }
        Route::ServerMetadata => {
            let extensions = extensions(&context.shared.config);
            Ok(plain::json(json::server_metadata(SERVER_NAME, SERVER_VERSION, &extensions)))
        }
        Route::ServerLive => match context.controller.stuck() {
            None => Ok(plain::empty()),
            Some(sentence) => Err(Fault::new(Reason::NotLive, sentence)),
        },
        Route::OpenApi => Ok(openapi::answer()),
        Route::ServerReady if context.ready() => Ok(plain::empty()),
        Route::ServerReady => Err(Fault::new(Reason::NotReady, "the server doesn't take requests now")),
        _ => calls::answer(context, (activity, owner), &author, route, head, body).await,
    }
}

fn allowed(route: &Route<'_>, method: &Method) -> bool {
    let method = if method == Method::HEAD { "GET" } else { method.as_str() };
    route.methods().split(", ").any(|allowed| allowed == method)
}

async fn infer(
    context: &IoContext,
    (activity, owner): (&Activity, &Arc<Owner>),
    call: &mut Call<'_>,
    headers: &HeaderMap,
    body: &mut RequestBody,
) -> Result<Response<Payload>, Fault> {
    let json_length = number(headers, &JSON_LENGTH)?;
    let timeout = number(headers, &TIMEOUT_US)?;
    let application = context.shared.applications.of(text(headers, &APPLICATION)?)?;
    let encoding = Encoding::of_request("Content-Encoding", text(headers, &CONTENT_ENCODING)?)?;
    let accepted = Encoding::for_response(text(headers, &ACCEPT_ENCODING)?);
    // Only what is a tensor already goes to the device as it is.
    let is_binary = encoding.is_none() && json_length.is_some();
    let memory = if is_binary { &context.shared.config.host_memory } else { &None };
    let (body, held) = body.read(owner, memory).await?;
    activity.busy();
    // No head at all: the body is the one input.
    let raw = json_length == Some(0);
    // What is compressed may be a thousand times as large as it looks.
    let (request, held) = if encoding.is_none() && raw {
        (raw_request(call.signature(), body)?, held)
    } else if encoding.is_none() && json_length.unwrap_or(body.len()) < OFFLOAD_READ_BYTES {
        (json::decode(&body, json_length)?, held)
    } else {
        let mut held = held.unwrap_or_else(|| HeldBytes::new(owner));
        let (entry, bytes) = (call.entry(), body.len());
        let read = move || {
            let plain = match encoding {
                None => body,
                Some(encoding) => held.inflate(encoding, &body)?,
            };
            held.replace(plain.len())?;
            let request = match raw {
                true => raw_request(&serving(&entry)?.signature, plain)?,
                false => json::decode(&plain, json_length)?.into_owned(),
            };
            // Numbers may take more room than their text.
            held.replace(request.inputs.iter().map(|input| input.data.len()).sum::<usize>() + request.id.len())?;
            Ok((request, Some(held)))
        };
        offload(owner, bytes, read).await?
    };
    let limit = timeout.filter(|&micros| micros > 0).map(|micros| Duration::from_micros(micros as u64));
    let encode = move |response: InferResponse<'_>| Ok(respond(json::encode(&response)?, accepted));
    let answer = call.run(request, CallHeaders { limit, application }, accepted.is_some(), encode).await?;
    let (head, payload) = answer.into_parts();
    Ok(Response::from_parts(head, payload.held(held, owner)?))
}

fn respond(encoded: json::Encoded, accepted: Option<Encoding>) -> Response<Payload> {
    let json::Encoded { json, binary } = encoded;
    let (json_length, has_binary) = (json.len(), !binary.is_empty());
    let mut response = compressed(Payload::new(json, binary), accepted);
    if has_binary {
        response.headers_mut().insert(CONTENT_TYPE, OCTETS);
        response.headers_mut().insert(JSON_LENGTH, HeaderValue::from(json_length));
    }
    response
}

/// JSON, compressed if the client takes that and it is worth it.
fn compressed(payload: Payload, accepted: Option<Encoding>) -> Response<Payload> {
    let Some(encoding) = accepted.filter(|_| payload.len() >= COMPRESS_FROM) else { return plain::json(payload) };
    let mut response =
        plain::json(encoding.compress(Vec::new(), payload.pieces().map(|piece| &piece[..]), payload.len()));
    response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static(encoding.name()));
    response
}

fn number(headers: &HeaderMap, name: &HeaderName) -> Result<Option<usize>, Fault> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    number.map(Some).ok_or_else(|| Fault::bad(format!("the header {name} is {value:?}: it must be a whole number")))
}
