//! HTTP/2 on the HTTP port, for clients that begin with it without asking.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use bytes::Bytes;
use common::{Server, get, model, post, rows};
use gateway::Config;
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;

const INFER: &str = "/v2/models/quick/infer";

async fn connect<B: Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Send + Unpin + 'static>(
    server: &Server,
) -> SendRequest<B> {
    let stream = TcpStream::connect(server.http()).await.unwrap();
    let (client, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    client
}

fn request<B>(path: &str, body: B) -> Request<B> {
    Request::post(format!("http://x{path}")).body(body).unwrap()
}

async fn text(answer: Response<Incoming>) -> String {
    let mut body = answer.into_body();
    let mut all = Vec::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        all.extend_from_slice(&frame.unwrap().into_data().unwrap());
    }
    String::from_utf8(all).unwrap()
}

#[tokio::test]
async fn many_calls_on_one_connection() {
    let server = Server::with(Config::default(), &[("quick", model(0.1, None))]);
    let mut client = connect::<String>(&server).await;
    let calls: Vec<_> = (0..50).map(|_| client.send_request(request(INFER, rows(2, "")))).collect();
    for call in calls {
        let answer = call.await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.version()), (200, Version::HTTP_2));
        assert!(text(answer).await.starts_with(r#"{"model_name":"quick","model_version":"1","id":"i","outputs":[{"#));
    }
    let refused = client.send_request(request(INFER, "{}".into())).await.unwrap();
    assert_eq!(refused.status().as_u16(), 400);
    assert!(text(refused).await.contains("missing field `inputs`"));
    let live = Request::get("http://x/v2/health/live").body(String::new()).unwrap();
    assert_eq!(client.send_request(live).await.unwrap().status().as_u16(), 200);
    assert_eq!(server.metric(r#"punctual_io_connections{protocol="http"}"#), 1.0);
}

#[tokio::test]
async fn answers_of_megabytes() {
    let server = Server::with(Config::default(), &[("quick", model(0.1, None))]);
    let mut client = connect::<String>(&server).await;
    // The id comes back, so the answer is as large as one likes.
    let body = rows(1, "").replace(r#""id":"i""#, &format!(r#""id":"{}""#, "i".repeat(10_000_000)));
    let calls: Vec<_> = (0..3).map(|_| client.send_request(request(INFER, body.clone()))).collect();
    for call in calls {
        let answer = text(call.await.unwrap()).await;
        assert!(answer.len() > 10_000_000 && answer.ends_with("]}]}"), "{}", answer.len());
    }
}

/// Some of a body, and then nothing.
struct Stalled(Option<Bytes>);

impl Body for Stalled {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.take().map_or(Poll::Pending, |piece| Poll::Ready(Some(Ok(Frame::data(piece)))))
    }
}

#[tokio::test]
async fn a_body_that_stands_still_is_refused_and_the_others_go_on() {
    let config = Config { body_timeout: Duration::from_millis(300), ..Config::default() };
    let server = Server::with(config, &[("quick", model(0.1, None))]);
    let mut client = connect::<Stalled>(&server).await;
    let answer = client.send_request(request(INFER, Stalled(Some(Bytes::from_static(b"{\"inp"))))).await.unwrap();
    assert_eq!(answer.status().as_u16(), 400);
    assert!(text(answer).await.contains("the body stood still for 300ms"));
    assert!(client.ready().await.is_ok());
}

/// A byte now and then, for ever.
struct Drip(Pin<Box<tokio::time::Sleep>>);

impl Drip {
    fn pause() -> Pin<Box<tokio::time::Sleep>> {
        Box::pin(tokio::time::sleep(Duration::from_millis(50)))
    }
}

impl Body for Drip {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        std::task::ready!(self.0.as_mut().poll(cx));
        self.0 = Self::pause();
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[0])))))
    }
}

#[tokio::test]
async fn a_body_of_a_byte_now_and_then_is_refused() {
    let config = Config { body_timeout: Duration::from_secs(1), least_rate: 1000, ..Config::default() };
    let server = Server::with(config, &[("quick", model(0.1, None))]);
    let mut client = connect::<Drip>(&server).await;
    let answer = client.send_request(request(INFER, Drip(Drip::pause()))).await.unwrap();
    assert_eq!(answer.status().as_u16(), 400);
    let said = text(answer).await;
    assert!(said.contains("the body comes too slowly: send at least 1000 bytes a second"), "{said}");
}

#[tokio::test]
async fn connections_that_say_nothing_more_are_closed() {
    let config =
        Config { header_timeout: Duration::from_secs(1), idle_timeout: Duration::from_secs(1), ..Config::default() };
    let server = Server::with(config, &[("quick", model(0.1, None))]);
    let closed = tokio::task::spawn_blocking(move || {
        for start in ["PRI", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "PR", "PRI * HTTP/1.1\r\n\r\n"] {
            let mut client = server.connect();
            client.send(start);
            client.rest();
        }
        server.until("all are closed", |server| server.metric(r#"punctual_io_connections{protocol="http"}"#) == 0.0);
    });
    closed.await.unwrap();
}

#[tokio::test]
async fn what_only_begins_like_it_is_http_1() {
    let server = Server::with(Config::default(), &[("quick", model(0.1, None))]);
    let mut client = server.connect();
    let whole = post(INFER, &[], rows(1, ""));
    // A byte, then the rest: POST begins like PRI.
    client.send(&whole[..1]);
    client.send(&whole[1..]);
    let (first, second) = tokio::task::spawn_blocking(move || {
        let first = client.answer();
        client.send(get("/v2/health/live"));
        (first, client.answer())
    })
    .await
    .unwrap();
    assert_eq!((first.status, second.status), (200, 200));
}
