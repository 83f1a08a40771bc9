//! The services that gRPC tools expect of any server: health (`grpc.health.v1`) and reflection (`v1` and `v1alpha`).

use crate::io::{Readiness, ServerState};
use hyper::body::Incoming;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::watch;
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
type Handler = Box<dyn Fn(http::Request<Incoming>) -> ServiceFuture + Send + Sync>;

/// The services.
pub(super) struct StandardServices {
    health: Handler,
    reflection: Handler,
    old_reflection: Handler,
}

fn handler<S>(service: S) -> Handler
where
    S: Service<http::Request<Incoming>, Response = http::Response<Body>, Error = Infallible>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    Box::new(move |request| Box::pin(service.clone().call(request)))
}

impl StandardServices {
    pub(super) fn new(shared: &Arc<ServerState>) -> Self {
        let health = HealthServer::new(HealthCalls { readiness: shared.readiness.subscribe() });
        let described = || {
            Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTION)
                .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        };
        let (new, old) = (described().build_v1(), described().build_v1alpha());
        let valid = "the descriptions that the build made are whole";
        Self {
            health: handler(health.max_decoding_message_size(MAX_MESSAGE_BYTES)),
            reflection: handler(new.expect(valid).max_decoding_message_size(MAX_MESSAGE_BYTES)),
            old_reflection: handler(old.expect(valid).max_decoding_message_size(MAX_MESSAGE_BYTES)),
        }
    }

    /// Who answers calls to that path, if it is one of these services.
    pub(super) fn of(&self, path: &str) -> Option<&Handler> {
        let (service, _call) = path.strip_prefix("/grpc.")?.split_once('/')?;
        match service {
            "health.v1.Health" => Some(&self.health),
            "reflection.v1.ServerReflection" => Some(&self.reflection),
            "reflection.v1alpha.ServerReflection" => Some(&self.old_reflection),
            _ => None,
        }
    }
}

fn health(readiness: Readiness) -> HealthCheckResponse {
    let status = if readiness == Readiness::Ready { ServingStatus::Serving } else { ServingStatus::NotServing };
    HealthCheckResponse { status: status.into() }
}

struct HealthCalls {
    readiness: watch::Receiver<Readiness>,
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
        let readiness = *self.readiness.borrow();
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

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<Option<Self::Item>> {
        let next = std::task::ready!(self.next.as_mut().poll(cx));
        std::task::Poll::Ready(next.map(|(answer, watching)| {
            self.next = Box::pin(watching.next());
            Ok(answer)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ServingStatus::{NotServing, ServiceUnknown, Serving};
    use std::task::{Context, Poll, Waker};

    /// What a watcher is told by and by, while the server starts, serves and goes down.
    fn told(known: bool) -> Vec<Option<ServingStatus>> {
        let (tell, readiness) = watch::channel(Readiness::Starting);
        let mut changes = HealthStream::new(readiness, known);
        let mut look = || match Pin::new(&mut changes).poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => vec![answer.map(|answer| answer.unwrap().status())],
            Poll::Pending => Vec::new(),
        };
        let mut told = [look(), look()].concat();
        for readiness in [Readiness::Ready, Readiness::Closing] {
            tell.send_replace(readiness);
            told.extend(look());
        }
        told.extend(if told.last() == Some(&None) { Vec::new() } else { look() });
        told
    }

    #[test]
    fn a_watcher_is_told_of_each_change_and_the_end() {
        assert_eq!(told(true), [Some(NotServing), Some(Serving), Some(NotServing), None]);
        assert_eq!(told(false), [Some(ServiceUnknown), None]);
    }
}
