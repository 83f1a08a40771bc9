//! The metrics' port, on which nothing is changed: `/metrics`, in Prometheus' text format; `/scaling`, the advice on
//! the number of devices as JSON; `/shares`, how GPUs are divided.

use super::shares;
use crate::admin::scaling::{Scaling, json};
use crate::body::payload::{Payload, plain};
use crate::io::ServerState;
use crate::io::accept::Protocol;
use crate::io::connection::{Connections, WatchedStream};
use crate::io::tls::{Tls, TlsPort};
use crate::rights::Gate;
use crate::server::block_on;
use base::Reason;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use wire::Fault;

const TEXT_FORMAT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// How often it looks whether there are enough devices.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// Connections of scrapers at one time; one more takes the place of the one that has stood still for longest.
const MAX_SCRAPERS: usize = 64;

/// The metrics' thread; returns when the server goes down.
pub(crate) fn serve_metrics(
    listener: StdListener,
    scaling: Scaling,
    shared: Arc<ServerState>,
    mut closing: watch::Receiver<bool>,
) {
    block_on(async move {
        let Ok(listener) = TcpListener::from_std(listener) else { return };
        let mut scrapers = JoinSet::new();
        let connections = Arc::new(Connections::default());
        let mut background = JoinSet::new();
        let swept = Arc::clone(&connections);
        let shown = Arc::new((scaling, Gate::new(Arc::clone(&shared.rules))));
        let tls = shared.tls.clone();
        background.spawn(async move { swept.sweep(&shared).await });
        let mut samples = tokio::time::interval(SAMPLE_EVERY);
        samples.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = closing.wait_for(|&closing| closing) => return,
                _ = samples.tick() => {
                    shown.0.advise();
                }
                Some(_) = scrapers.join_next() => {}
                accepted = listener.accept() => {
                    let Ok((stream, _)) = accepted else {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                        continue;
                    };
                    if scrapers.len() >= MAX_SCRAPERS {
                        connections.close_stillest();
                    }
                    serve(&mut scrapers, &connections, stream, tls.clone(), Arc::clone(&shown));
                }
            }
        }
    });
}

/// Serves one connection as a task, which the sweep ends if the client stands still.
fn serve(
    scrapers: &mut JoinSet<()>,
    connections: &Arc<Connections>,
    stream: TcpStream,
    tls: Option<Arc<Tls>>,
    shown: Arc<(Scaling, Gate)>,
) {
    let activity = connections.activity(Protocol::Http);
    let registration = connections.register();
    let key = registration.key();
    let io = WatchedStream::new(Arc::new(stream), Arc::clone(&activity));
    let answering = Arc::clone(&activity);
    let service = service_fn(move |request| {
        answering.answers();
        let answer = answer(&shown.0, &shown.1, &request);
        async { Ok::<_, Infallible>(answer) }
    });
    let task = scrapers.spawn(async move {
        // How a connection ends is the client's affair.
        let http = http1::Builder::new();
        match tls {
            None => drop(http.serve_connection(TokioIo::new(io), service).await),
            Some(tls) => {
                if let Some(io) = tls.accept(TlsPort::Metrics, io).await {
                    let _ = http.serve_connection(TokioIo::new(io), service).await;
                }
            }
        }
        drop(registration);
    });
    connections.watch(key, activity, task);
}

/// Answers one request.
fn answer(scaling: &Scaling, gate: &Gate, request: &Request<Incoming>) -> Response<Payload> {
    let path = request.uri().path();
    if !["/metrics", "/scaling", "/shares"].contains(&path) {
        let message = format!(
            "there is no {path:?} here: the metrics are at /metrics, the advice on the number of devices at /scaling, the shares of GPUs at /shares"
        );
        return plain::fault(&Fault::new(Reason::NotFound, message));
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let message = format!("{path} is read with GET, not {}", request.method());
        return plain::fault(&Fault::new(Reason::MethodNotAllowed, message));
    }
    if let Err(fault) = gate.may_read(request.headers()) {
        return plain::fault(&fault);
    }
    match path {
        "/scaling" => respond(json(&scaling.advise()), JSON),
        "/shares" => respond(shares::json(scaling.controller()), JSON),
        _ => respond(scaling.metrics().render(), TEXT_FORMAT),
    }
}

fn respond(text: impl Into<Payload>, format: HeaderValue) -> Response<Payload> {
    let mut response = Response::new(text.into());
    response.headers_mut().insert(CONTENT_TYPE, format);
    response
}
