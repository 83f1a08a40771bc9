//! Messages in the frames of gRPC, byte by byte: what clients may send, and what they get.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use bytes::Bytes;
use common::{Server, message, model};
use gateway::Config;
use hyper::body::{Body, Frame};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{HeaderMap, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use wire::proto::ModelInferResponse;

const SERVICE: &str = "/inference.GRPCInferenceService/";

/// Pieces, each a frame of HTTP/2, and then the end, or nothing more.
struct Pieces {
    left: VecDeque<Bytes>,
    ends: bool,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.left.pop_front() {
            Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            None if self.ends => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

/// What came back.
#[derive(Debug)]
struct Answer {
    head: HeaderMap,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
}

impl Answer {
    fn status(&self, name: &str) -> &str {
        let status = self.trailers.as_ref().unwrap_or(&self.head);
        status.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Code, reason and sentence of a refusal, which has no message.
    fn refusal(&self) -> (&str, &str, String) {
        assert!(self.body.is_empty() && self.trailers.is_none(), "{self:?}");
        let sentence = percent_encoding::percent_decode_str(self.status("grpc-message")).decode_utf8().unwrap();
        (self.status("grpc-status"), self.status("punctual-reason"), sentence.into_owned())
    }
}

async fn connect(server: &Server) -> SendRequest<Pieces> {
    let stream = TcpStream::connect(server.grpc()).await.unwrap();
    let (client, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn ask(client: &mut SendRequest<Pieces>, call: &str, headers: &[(&str, &str)], body: Pieces) -> Answer {
    ask_path(client, &format!("{SERVICE}{call}"), headers, body).await
}

async fn ask_path(client: &mut SendRequest<Pieces>, path: &str, headers: &[(&str, &str)], body: Pieces) -> Answer {
    let mut request = Request::post(format!("http://x{path}")).header("content-type", "application/grpc");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = client.send_request(request.body(body).unwrap()).await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    let (head, mut incoming) = answer.into_parts();
    let (mut body, mut trailers) = (Vec::new(), None);
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut incoming).poll_frame(cx)).await {
        match frame.unwrap().into_data() {
            Ok(data) => body.extend_from_slice(&data),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    Answer { head: head.headers, body, trailers }
}

fn whole(bytes: &[u8]) -> Pieces {
    Pieces { left: [Bytes::copy_from_slice(bytes)].into(), ends: true }
}

fn frame(flag: u8, content: &[u8]) -> Vec<u8> {
    [&[flag], &(content.len() as u32).to_be_bytes()[..], content].concat()
}

fn request(id: &str) -> Vec<u8> {
    message("quick", id).encode_to_vec()
}

fn server(config: Config) -> Server {
    Server::with(config, &[("quick", model(0.1, None))])
}

#[tokio::test]
async fn an_answer_is_a_head_a_frame_and_a_status() {
    let server = server(Config::default());
    let mut client = connect(&server).await;
    let answer = ask(&mut client, "ModelInfer", &[], whole(&frame(0, &request("a")))).await;
    assert_eq!(answer.head["content-type"], "application/grpc");
    assert!(!answer.head.contains_key("grpc-status") && !answer.head.contains_key("content-length"), "{answer:?}");
    assert_eq!(answer.trailers.as_ref().unwrap().len(), 1, "{answer:?}");
    assert_eq!(answer.status("grpc-status"), "0");
    let content = &answer.body[5..];
    assert_eq!(answer.body, frame(0, content));
    assert_eq!(ModelInferResponse::decode(content).unwrap().id, "a");
}

#[tokio::test]
async fn a_message_may_come_in_any_pieces() {
    let server = server(Config::default());
    let mut client = connect(&server).await;
    let message = frame(0, &request("a"));
    let expected = ask(&mut client, "ModelInfer", &[], whole(&message)).await.body;
    let in_pieces = |sizes: &[usize]| {
        let mut rest = Bytes::from(message.clone());
        let mut left: VecDeque<Bytes> = sizes.iter().map(|&size| rest.split_to(size)).collect();
        left.extend((!rest.is_empty()).then_some(rest));
        Pieces { left, ends: true }
    };
    for sizes in [&[1][..], &[3, 4], &[5], &[4, 0, 1, 10], &[message.len()], &vec![1; message.len()]] {
        let answer = ask(&mut client, "ModelInfer", &[], in_pieces(sizes)).await;
        assert_eq!(answer.body, expected, "{sizes:?}");
    }
    // Two messages of a stream in pieces that belong to both.
    let two = [message.clone(), frame(0, &request("b"))].concat();
    for cut in [1, message.len() - 1, message.len(), message.len() + 2, message.len() + 7] {
        let (first, second) = two.split_at(cut);
        let left = [first, second].map(Bytes::copy_from_slice).into();
        let answer = ask(&mut client, "ModelStreamInfer", &[], Pieces { left, ends: true }).await;
        assert_eq!(answer.status("grpc-status"), "0", "{answer:?}");
        let (mut rest, mut frames) = (&answer.body[..], 0);
        while let Some((prefix, behind)) = rest.split_first_chunk::<5>() {
            rest = &behind[u32::from_be_bytes(prefix[1..].try_into().unwrap()) as usize..];
            frames += 1;
        }
        assert_eq!(frames, 2, "cut at {cut}");
    }
}

#[tokio::test]
async fn what_is_not_one_message_is_refused_and_counted() {
    let server = server(Config::default());
    let mut client = connect(&server).await;
    let message = frame(0, &request("a"));
    let wrong: [(&str, Vec<u8>, &str); 6] = [
        ("ModelInfer", Vec::new(), "the call has no message: it takes one"),
        ("ServerLive", Vec::new(), "the call has no message: it takes one"),
        ("ModelInfer", message.repeat(2), "the call has several messages: it takes one"),
        ("ModelInfer", message[..20].to_vec(), "the stream ends inside a message"),
        ("ModelInfer", message[..3].to_vec(), "the stream ends inside a message"),
        (
            "ModelInfer",
            frame(1, b"x"),
            "a message begins with the byte 1: 0 says that it is plain, 1 that it is compressed as grpc-encoding says",
        ),
    ];
    for (call, body, sentence) in &wrong {
        let answer = ask(&mut client, call, &[], whole(body)).await;
        assert_eq!(answer.refusal(), ("3", "bad_input", (*sentence).to_owned()));
    }
    let noise = ask(&mut client, "ServerReady", &[], whole(&frame(0, &[0xff; 9]))).await;
    assert!(noise.refusal().2.starts_with("the message can't be read: "), "{noise:?}");
    let counted = r#"punctual_unrouted_requests_total{reason="bad_input"}"#;
    assert_eq!(server.metric(counted), wrong.len() as f64 + 1.0, "{}", server.metrics.render());
}

#[tokio::test]
async fn calls_and_encodings_that_are_not_there() {
    let server = server(Config::default());
    let mut client = connect(&server).await;
    let none = ask(&mut client, "ModelDream", &[], whole(&frame(0, b""))).await;
    let sentence = "there is no such call here: this server has those of inference.GRPCInferenceService";
    assert_eq!(none.refusal(), ("12", "not_found", sentence.to_owned()));
    // Whatever comes with it: a client that never ends such a call needn't wait, and what it sends isn't read.
    for (bytes, ends) in [(&b""[..], false), (&frame(7, b"x"), true), (&[0, 255, 255, 255, 255], false)] {
        let left = [Bytes::copy_from_slice(bytes)].into();
        let none = ask(&mut client, "ModelDream", &[], Pieces { left, ends }).await;
        assert_eq!(none.refusal(), ("12", "not_found", sentence.to_owned()), "with {bytes:?}");
    }
    for call in ["ModelInfer", "ModelStreamInfer", "ServerLive"] {
        let answer = ask(&mut client, call, &[("grpc-encoding", "br")], whole(&frame(1, b"x"))).await;
        let sentence = "the grpc-encoding \"br\" isn't known here: use gzip, deflate or none";
        assert_eq!(answer.refusal(), ("12", "unsupported_encoding", sentence.to_owned()));
        assert_eq!(answer.head["grpc-accept-encoding"], "gzip,deflate,identity");
    }
    let identity = [("grpc-encoding", "identity"), ("grpc-accept-encoding", "gzip")];
    let answer = ask(&mut client, "ServerLive", &identity, whole(&frame(0, b""))).await;
    assert_eq!((answer.body, answer.head.get("grpc-encoding")), (frame(0, &[8, 1]), None));
}

#[tokio::test]
async fn a_message_that_stands_still_is_refused_and_a_stream_may_pause() {
    let config = Config { body_timeout: Duration::from_millis(300), ..Config::default() };
    let server = server(config);
    let mut client = connect(&server).await;
    let message = frame(0, &request("a"));
    // Neither a part of a message, nor a whole one without the end of the call.
    for sent in [0, 20, message.len()] {
        let left = [Bytes::copy_from_slice(&message[..sent])].into();
        let answer = ask(&mut client, "ModelInfer", &[], Pieces { left, ends: false }).await;
        let sentence = "the message stood still for 300ms: send it without pauses";
        assert_eq!(answer.refusal(), ("3", "bad_input", sentence.to_owned()), "after {sent} bytes");
    }
    let left = [Bytes::from(message.clone()), Bytes::copy_from_slice(&message[..20])].into();
    let answer = ask(&mut client, "ModelStreamInfer", &[], Pieces { left, ends: false }).await;
    assert_eq!((answer.status("grpc-status"), answer.body.is_empty()), ("3", false), "{answer:?}");
}

#[tokio::test]
async fn half_a_health_check_and_streams_that_idle_are_ended() {
    let short = Duration::from_millis(300);
    let server = server(Config { body_timeout: short, idle_timeout: short, ..Config::default() });
    let mut client = connect(&server).await;
    let check = frame(0, &[10, 1, b'x']);
    for (path, status) in [
        ("/grpc.health.v1.Health/Check", "3"),
        ("/grpc.health.v1.Health/Watch", "3"),
        // It ends as if the client had ended it.
        ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "0"),
        ("/inference.GRPCInferenceService/ModelStreamInfer", "3"),
    ] {
        for sent in [0, 7] {
            let left = [Bytes::copy_from_slice(&check[..sent])].into();
            let asked = ask_path(&mut client, path, &[], Pieces { left, ends: false });
            let answer = tokio::time::timeout(common::PATIENCE, asked).await.expect(path);
            assert_eq!(answer.status("grpc-status"), status, "{path}: {answer:?}");
        }
    }
}

#[tokio::test]
async fn small_messages_that_never_end_are_counted_too() {
    let config = Config { max_body_bytes: 1 << 20, max_held_bytes: 1 << 20, ..Config::default() };
    let server = server(config);
    let client = connect(&server).await;
    let message = frame(0, &[0; 60_000]);
    let mut calls = JoinSet::new();
    for _ in 0..40 {
        let (mut client, message) = (client.clone(), Bytes::from(message.clone()));
        let left = [message.slice(..30_000), message.slice(30_000..59_000)].into();
        calls.spawn(async move { ask(&mut client, "ModelInfer", &[], Pieces { left, ends: false }).await });
    }
    let refused = tokio::time::timeout(common::PATIENCE, calls.join_next()).await.unwrap().unwrap().unwrap();
    assert_eq!((refused.refusal().0, refused.refusal().1), ("14", "queue_full"));
}

/// A call that is in the description but isn't answered would only be noticed by who makes it.
#[tokio::test]
async fn every_call_of_the_description_is_there() {
    let server = server(Config::default());
    let mut client = connect(&server).await;
    let service = wire::reflect::descriptors().get_service_by_name("inference.GRPCInferenceService").unwrap();
    assert_eq!(service.methods().len(), 20);
    for method in service.methods() {
        let answer = ask(&mut client, method.name(), &[], whole(&frame(0, b""))).await;
        assert_ne!(answer.status("punctual-reason"), "not_found", "{}", method.name());
    }
}
