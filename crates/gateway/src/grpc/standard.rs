//! The services that gRPC tools expect of any server: health (`grpc.health.v1`) and reflection (`v1` and `v1alpha`).

use crate::io::{IoContext, Readiness};
use crate::rights::Deed;
use bytes::Bytes;
use controller::Controller;
use hyper::body::{Body as HttpBody, Frame, Incoming};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Sleep;
use tonic::body::Body;
use tonic::codegen::{BoxStream, Service, http, tokio_stream::Stream};
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{FILE_DESCRIPTOR_SET, HealthCheckRequest, HealthCheckResponse};
use tonic_reflection::server::Builder;
use wire::proto::DESCRIPTION;

/// Names that health knows: the server as a whole, and the protocol's service.
const SERVICES: [&str; 2] = ["", "inference.GRPCInferenceService"];

/// The most that a message to one of these services may have.
const MAX_MESSAGE_BYTES: usize = 64 << 10;

type ServiceFuture = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;
type Handler = Box<dyn Fn(http::Request<TimedBody>) -> ServiceFuture + Send + Sync>;

/// The calls that ask whether the server lives.
pub(super) fn is_probe(path: &str) -> bool {
    let calls = ["ServerLive", "ServerReady"];
    path == "/grpc.health.v1.Health/Check"
        || path.strip_prefix(super::SERVICE).is_some_and(|call| calls.contains(&call))
}

/// One of the services.
pub(super) struct Standard<'s> {
    /// Who answers calls to it.
    pub(super) handler: &'s Handler,
    /// How long their messages may take in all.
    pub(super) patience: Duration,
    /// What they do.
    pub(super) deed: Deed,
}

/// The services.
pub(super) struct StandardServices {
    /// How long a client may take to say what it asks, and how long a call of reflection may take.
    body_timeout: Duration,
    idle_timeout: Duration,
    health: Handler,
    reflection: Handler,
    old_reflection: Handler,
}

fn handler<S>(service: S) -> Handler
where
    S: Service<http::Request<TimedBody>, Response = http::Response<Body>, Error = Infallible>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    Box::new(move |request| Box::pin(service.clone().call(request)))
}

impl StandardServices {
    pub(super) fn new(context: &Arc<IoContext>) -> Self {
        let readiness = context.shared.readiness.subscribe();
        let health = HealthServer::new(HealthCalls { readiness, controller: context.controller.clone() });
        let described = || {
            Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTION)
                .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        };
        let (new, old) = (described().build_v1(), described().build_v1alpha());
        let valid = "the descriptions that the build made are whole";
        Self {
            body_timeout: context.shared.config.body_timeout,
            idle_timeout: context.shared.config.idle_timeout,
            health: handler(health.max_decoding_message_size(MAX_MESSAGE_BYTES)),
            reflection: handler(new.expect(valid).max_decoding_message_size(MAX_MESSAGE_BYTES)),
            old_reflection: handler(old.expect(valid).max_decoding_message_size(MAX_MESSAGE_BYTES)),
        }
    }

    /// Who answers calls to that path, if it is one of these services.
    pub(super) fn of(&self, path: &str) -> Option<Standard<'_>> {
        let (service, _call) = path.strip_prefix("/grpc.")?.split_once('/')?;
        let (handler, patience, deed) = match service {
            "health.v1.Health" => (&self.health, self.body_timeout, Deed::AskHealth),
            "reflection.v1.ServerReflection" => (&self.reflection, self.idle_timeout, Deed::ReadMetadata),
            "reflection.v1alpha.ServerReflection" => (&self.old_reflection, self.idle_timeout, Deed::ReadMetadata),
            _ => return None,
        };
        Some(Standard { handler, patience, deed })
    }
}

/// The messages of a call, which must be there in time.
pub(super) struct TimedBody {
    incoming: Incoming,
    patience: Duration,
    over: Pin<Box<Sleep>>,
}

impl TimedBody {
    pub(super) fn new(incoming: Incoming, patience: Duration) -> Self {
        Self { incoming, patience, over: Box::pin(tokio::time::sleep(patience)) }
    }
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(|error| Status::cancelled(error.to_string()))));
        }
        ready!(self.over.as_mut().poll(cx));
        let sentence = format!("the call isn't complete after {:?}: send it without pauses", self.patience);
        Poll::Ready(Some(Err(Status::invalid_argument(sentence))))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }
}

fn health(readiness: Readiness) -> HealthCheckResponse {
    let status = if readiness == Readiness::Ready { ServingStatus::Serving } else { ServingStatus::NotServing };
    HealthCheckResponse { status: status.into() }
}

struct HealthCalls {
    readiness: watch::Receiver<Readiness>,
    controller: Controller,
}

#[async_trait]
impl Health for HealthCalls {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let service = &request.get_ref().service;
        if !SERVICES.contains(&service.as_str()) {
            return Err(Status::not_found(format!(
                "there is no service {service:?}: ask for \"\" or {:?}",
                SERVICES[1]
            )));
        }
        let stuck = self.controller.stuck().is_some();
        let readiness = if stuck { Readiness::Stuck } else { *self.readiness.borrow() };
        Ok(Response::new(health(readiness)))
    }

    type WatchStream = BoxStream<HealthCheckResponse>;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let known = SERVICES.contains(&request.get_ref().service.as_str());
        Ok(Response::new(Box::pin(HealthStream::new(self.readiness.clone(), known))))
    }
}

/// What a watcher is told: how it is, then each change; the end when the server goes down.
struct HealthStream {
    /// Waits for the next thing to say.
    next: Pin<Box<dyn Future<Output = NextHealth> + Send>>,
}

/// Something to say and what is left to watch then; `None`: that was all.
type NextHealth = Option<(HealthCheckResponse, Watching)>;

/// What is left to watch.
struct Watching {
    readiness: watch::Receiver<Readiness>,
    known: bool,
    told: Option<Readiness>,
}

impl Watching {
    /// The next thing to say.
    async fn next(mut self) -> NextHealth {
        if self.told == Some(Readiness::Closing) {
            return None;
        }
        let told = self.told;
        if !self.known && told.is_some() {
            // Nothing makes an unknown service known.
            let _ = self.readiness.wait_for(|&now| now == Readiness::Closing).await;
            return None;
        }
        let new = *self.readiness.wait_for(|&now| Some(now) != told).await.ok()?;
        let unknown = HealthCheckResponse { status: ServingStatus::ServiceUnknown.into() };
        let answer = if self.known { health(new) } else { unknown };
        self.told = Some(new);
        Some((answer, self))
    }
}

impl HealthStream {
    fn new(readiness: watch::Receiver<Readiness>, known: bool) -> Self {
        Self { next: Box::pin(Watching { readiness, known, told: None }.next()) }
    }
}

impl Stream for HealthStream {
    type Item = Result<HealthCheckResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(self.next.as_mut().poll(cx));
        Poll::Ready(next.map(|(answer, watching)| {
            self.next = Box::pin(watching.next());
            Ok(answer)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ServingStatus::{NotServing, ServiceUnknown, Serving};
    use std::task::Waker;

    /// What a watcher is told by and by, while the server starts, serves and goes down.
    fn told(known: bool) -> Vec<Option<ServingStatus>> {
        let (tell, readiness) = watch::channel(Readiness::Starting);
        let mut changes = HealthStream::new(readiness, known);
        let mut look = || match Pin::new(&mut changes).poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => vec![answer.map(|answer| answer.unwrap().status())],
            Poll::Pending => Vec::new(),
        };
        let mut told = [look(), look()].concat();
        for readiness in [Readiness::Ready, Readiness::Stuck, Readiness::Ready, Readiness::Closing] {
            tell.send_replace(readiness);
            told.extend(look());
        }
        told.extend(if told.last() == Some(&None) { Vec::new() } else { look() });
        told
    }

    #[test]
    fn a_watcher_is_told_of_each_change_and_the_end() {
        let (yes, no) = (Some(Serving), Some(NotServing));
        assert_eq!(told(true), [no, yes, no, yes, no, None]);
        assert_eq!(told(false), [Some(ServiceUnknown), None]);
    }
}
