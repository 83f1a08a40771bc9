//! Answers over HTTP/2 and gRPC that a client asks for and doesn't take.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use bytes::Bytes;
use common::{PATIENCE, Server, message, model, post, rows};
use gateway::Config;
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::time::timeout;

const ID_BYTES: usize = 900_000;
const HELD: &str = "punctual_io_held_bytes ";

/// Waits until something holds, while clients go on.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let give_up_at = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < give_up_at, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A body in one piece.
struct Whole(Option<Bytes>);

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|piece| Ok(Frame::data(piece))))
    }
}

/// A client that takes so many bytes of each answer unless it reads them.
async fn connect(address: SocketAddr, window: u32) -> SendRequest<Whole> {
    let stream = TcpStream::connect(address).await.unwrap();
    let mut builder = Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(window).initial_connection_window_size(10 << 20);
    let (client, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A request over either protocol whose answer is as large as its id.
fn request(over_grpc: bool, id: &str) -> Request<Whole> {
    if over_grpc {
        let content = message("quick", id).encode_to_vec();
        let frame = [&[0][..], &(content.len() as u32).to_be_bytes(), &content].concat();
        let request = Request::post("http://x/inference.GRPCInferenceService/ModelInfer");
        request.header("content-type", "application/grpc").body(Whole(Some(frame.into()))).unwrap()
    } else {
        let body = rows(1, "").replace(r#""id":"i""#, &format!(r#""id":"{id}""#));
        Request::post("http://x/v2/models/quick/infer").body(Whole(Some(body.into()))).unwrap()
    }
}

fn address(server: &Server, over_grpc: bool) -> SocketAddr {
    if over_grpc { server.grpc() } else { server.http() }
}

/// All of an answer, or nothing if it is cut off.
async fn rest(answer: Response<Incoming>) -> Option<usize> {
    let (mut body, mut bytes) = (answer.into_body(), 0);
    while let Some(frame) = timeout(PATIENCE, poll_fn(|cx| Pin::new(&mut body).poll_frame(cx))).await.unwrap() {
        bytes += frame.ok()?.data_ref().map_or(0, Bytes::len);
    }
    Some(bytes)
}

#[tokio::test]
async fn an_answer_that_stands_still_is_cut_off_and_other_calls_go_on() {
    let config = Config { body_timeout: Duration::from_secs(1), ..Config::default() };
    let server = Server::with(config, &[("quick", model(0.1, None))]);
    for over_grpc in [false, true] {
        // Nothing of it is taken, all but the last piece, all but the last bytes of that.
        for window in [0, ID_BYTES as u32 - 10_000, ID_BYTES as u32] {
            let mut client = connect(address(&server, over_grpc), window).await;
            let answer = client.send_request(request(over_grpc, &"i".repeat(ID_BYTES))).await.unwrap();
            let other = client.send_request(request(over_grpc, "i")).await.unwrap();
            assert!(window == 0 || rest(other).await.is_some_and(|bytes| bytes > 0));
            until("it is given up", || server.metric(HELD) == 0.0).await;
            assert_eq!(rest(answer).await, None, "over_grpc: {over_grpc}, window {window}");
            assert!(client.ready().await.is_ok(), "the connection is there");
        }
    }
}

#[tokio::test]
async fn answers_that_nobody_takes_are_counted() {
    let config = Config { max_body_bytes: 1 << 20, max_held_bytes: 1 << 20, ..Config::default() };
    let server = Server::with(config, &[("quick", model(0.1, None))]);
    let large = post("/v2/models/quick/infer", &[], rows(1, &format!(r#""x":"{}""#, "x".repeat(ID_BYTES))));
    for over_grpc in [false, true] {
        let mut client = connect(address(&server, over_grpc), 0).await;
        let answer = client.send_request(request(over_grpc, &"i".repeat(ID_BYTES))).await.unwrap();
        assert!(server.metric(HELD) > ID_BYTES as f64);
        let refused = server.ask(&large);
        assert_eq!((refused.status, refused.refusal().1.as_str()), (503, "queue_full"));
        drop((client, answer));
        until("there is room again", || server.ask(&large).status == 200).await;
    }
}

#[tokio::test]
async fn an_answer_that_nobody_takes_does_not_hold_up_the_end() {
    let long = Duration::from_secs(600);
    let config = Config { body_timeout: long, body_total: long, shutdown_grace: long, ..Config::default() };
    let mut server = Server::with(config, &[("quick", model(0.1, None))]);
    let mut clients = Vec::new();
    for over_grpc in [false, true] {
        let mut client = connect(address(&server, over_grpc), 0).await;
        let answer = client.send_request(request(over_grpc, &"i".repeat(ID_BYTES))).await.unwrap();
        clients.push((client, answer));
    }
    let gateway = server.gateway.take().unwrap();
    let ended = tokio::task::spawn_blocking(move || gateway.shutdown());
    timeout(PATIENCE, ended).await.expect("nobody takes what it would wait for").unwrap();
}
