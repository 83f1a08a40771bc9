//! The metrics' port: `/metrics`, in Prometheus' text format.

use crate::http::payload::{Payload, plain};
use crate::server::block_on;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::TcpListener as StdListener;
use std::time::Duration;
use telemetry::Metrics;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use wire::{Fault, Reason};

const TEXT_FORMAT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// Connections of scrapers at one time; the oldest ones finish before more are taken.
const MAX_SCRAPERS: usize = 64;

/// The metrics' thread; returns when the server goes down.
pub(crate) fn serve_metrics(listener: StdListener, metrics: Metrics, mut closing: watch::Receiver<bool>) {
    block_on(async move {
        let Ok(listener) = TcpListener::from_std(listener) else { return };
        let mut scrapers = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                _ = closing.wait_for(|&closing| closing) => return,
                Some(_) = scrapers.join_next() => {}
                accepted = listener.accept(), if scrapers.len() < MAX_SCRAPERS => {
                    let Ok((stream, _)) = accepted else {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                        continue;
                    };
                    let metrics = metrics.clone();
                    let service = service_fn(move |request| {
                        let answer = answer(&metrics, &request);
                        async { Ok::<_, Infallible>(answer) }
                    });
                    let timer = TokioTimer::new();
                    let connection = http1::Builder::new().timer(timer).serve_connection(TokioIo::new(stream), service);
                    scrapers.spawn(async move {
                        // How a connection ends is the client's affair.
                        let _ = connection.await;
                    });
                }
            }
        }
    });
}

/// Answers one request.
fn answer(metrics: &Metrics, request: &Request<Incoming>) -> Response<Payload> {
    if request.uri().path() != "/metrics" {
        let message = format!("there is no {:?} here: the metrics are at /metrics", request.uri().path());
        return plain::fault(&Fault::new(Reason::NotFound, message));
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let message = format!("/metrics is read with GET, not {}", request.method());
        return plain::fault(&Fault::new(Reason::MethodNotAllowed, message));
    }
    let mut response = Response::new(Payload::from(metrics.render()));
    response.headers_mut().insert(CONTENT_TYPE, TEXT_FORMAT);
    response
}
