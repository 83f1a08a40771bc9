//! Streams over gRPC, over real sockets, with the generated client.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Server, message, model};
use gateway::{Config, NewKey};
use prost::Message;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tonic::codec::CompressionEncoding;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::tokio_stream::{StreamExt, iter, pending};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Streaming};
use wire::proto::ModelStreamInferResponse;
use wire::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use wire::proto::infer_parameter::ParameterChoice;

async fn connect(server: &Server) -> GrpcInferenceServiceClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc())).unwrap();
    GrpcInferenceServiceClient::new(endpoint.connect().await.unwrap())
}

/// The id of the next answer, and the sentence if it is a refusal.
async fn next(answers: &mut Streaming<ModelStreamInferResponse>) -> (String, String) {
    let answer = tokio::time::timeout(common::PATIENCE, answers.next()).await.unwrap().unwrap().unwrap();
    let response = answer.infer_response.unwrap();
    let last = response.parameters["triton_final_response"].parameter_choice.clone();
    assert_eq!(last, Some(ParameterChoice::BoolParam(true)), "each request has one answer");
    assert_eq!(answer.error_message.is_empty(), response.outputs.len() == 1);
    (response.id, answer.error_message)
}

#[tokio::test]
async fn messages_are_moved_to_where_the_device_reads() {
    let (server, memory) = Server::with_device_memory();
    let one = message("quick", "a");
    let mut answers = connect(&server).await.model_stream_infer(iter([one.clone()])).await.unwrap().into_inner();
    assert_eq!(next(&mut answers).await, ("a".into(), String::new()));
    assert_eq!(memory.was_taken(&server), [one.encoded_len()]);
}

#[tokio::test]
async fn a_stream_whose_key_is_gone_ends_with_its_next_message() {
    let folder = tempfile::tempdir().unwrap();
    let [gone, stays] = ["gone", "stays"].map(|name| NewKey::make(name, &["infer".to_owned()]).unwrap());
    let file = folder.path().join("keys");
    let write = |text: String| {
        std::fs::write(folder.path().join("new"), text).unwrap();
        std::fs::rename(folder.path().join("new"), &file).unwrap();
    };
    write(format!("{}\n{}", gone.line, stays.line));
    let server =
        Server::with(Config { api_keys: Some(file.clone()), ..Config::default() }, &[("quick", model(0.1, None))]);
    let mut client = connect(&server).await;
    let mut streams = Vec::new();
    for key in [&gone, &stays] {
        let (sender, requests) = mpsc::channel(8);
        let mut request = Request::new(ReceiverStream::new(requests));
        request.metadata_mut().insert("authorization", format!("Bearer {}", key.key).parse().unwrap());
        let mut answers = client.model_stream_infer(request).await.unwrap().into_inner();
        sender.send(message("quick", "a")).await.unwrap();
        assert_eq!(next(&mut answers).await, ("a".into(), String::new()));
        streams.push((sender, answers));
    }
    write(stays.line);
    let ended = tokio::time::timeout(common::PATIENCE, async {
        loop {
            // It is looked at the file once a second.
            tokio::time::sleep(Duration::from_millis(20)).await;
            let _ = streams[0].0.send(message("quick", "b")).await;
            match streams[0].1.next().await {
                Some(Ok(answer)) => assert_eq!(answer.error_message, ""),
                Some(Err(status)) => break status,
                None => panic!("it ended without a word"),
            }
        }
    });
    let ended = ended.await.unwrap();
    assert_eq!(
        (ended.code(), ended.message()),
        (Code::Unauthenticated, "this is none of the server's keys: ask whoever runs it for one")
    );
    assert_eq!(server.metric("punctual_unrouted_requests_total{reason=\"unauthenticated\"}"), 1.0);
    assert_eq!(
        server.metric("punctual_unrouted_requests_total{reason=\"bad_input\"}"),
        0.0,
        "nothing is wrong with it"
    );
    let (sender, answers) = &mut streams[1];
    sender.send(message("quick", "c")).await.unwrap();
    assert_eq!(next(answers).await, ("c".into(), String::new()), "another key's stream goes on");
}

#[tokio::test]
async fn answers_come_as_they_are_done_and_refusals_do_not_end_the_stream() {
    let server = Server::with(Config::default(), &[("quick", model(0.1, None)), ("slow", model(300.0, None))]);
    let mut client = connect(&server).await.accept_compressed(CompressionEncoding::Gzip);
    let (sender, requests) = mpsc::channel(8);
    let mut answers = client.model_stream_infer(ReceiverStream::new(requests)).await.unwrap().into_inner();
    sender.send(message("slow", "a")).await.unwrap();
    sender.send(message("none", "b")).await.unwrap();
    let mut wrong = message("slow", "c");
    wrong.inputs[0].shape = vec![1, 11];
    sender.send(wrong).await.unwrap();
    let mut refused = [next(&mut answers).await, next(&mut answers).await];
    refused.sort();
    assert_eq!(refused[0].0, "b");
    assert!(refused[0].1.starts_with(r#"there is no model "none""#), "{refused:?}");
    assert_eq!(refused[1].0, "c");
    assert!(refused[1].1.contains("has 40 bytes, but its shape [1, 11]"), "{refused:?}");
    assert_eq!(next(&mut answers).await, ("a".into(), String::new()), "the first one took its time");
    sender.send(message("quick", "d")).await.unwrap();
    // No more requests, but the last one is answered.
    drop(sender);
    assert_eq!(next(&mut answers).await, ("d".into(), String::new()));
    assert!(answers.next().await.is_none(), "the server ends it, too");
}

#[tokio::test]
async fn more_than_may_be_in_flight_wait_and_are_answered() {
    let server = Server::with(Config::default(), &[("quick", model(0.1, None))]);
    let mut client =
        connect(&server).await.send_compressed(CompressionEncoding::Gzip).accept_compressed(CompressionEncoding::Gzip);
    let requests = iter((0..2000).map(|number| message("quick", &number.to_string())));
    let mut answers = client.model_stream_infer(requests).await.unwrap().into_inner();
    let mut ids = Vec::new();
    while let Some(answer) = answers.next().await {
        ids.push(answer.unwrap().infer_response.unwrap().id.parse::<usize>().unwrap());
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..2000).collect::<Vec<_>>());
}

#[tokio::test]
async fn who_wants_refusals_as_a_status_gets_one() {
    let server = Server::with(Config::default(), &[("quick", model(0.1, None))]);
    let mut client = connect(&server).await;
    let mut request = Request::new(iter([message("none", "a")]).chain(pending()));
    request.metadata_mut().insert("triton_grpc_error", "true".parse().unwrap());
    let mut answers = client.model_stream_infer(request).await.unwrap().into_inner();
    let status = answers.next().await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    assert!(answers.next().await.is_none());
}

#[tokio::test]
async fn messages_that_are_too_large_end_the_stream() {
    let config = Config { max_body_bytes: 10_000, ..Config::default() };
    let server = Server::with(config, &[("quick", model(0.1, None))]);
    let mut client = connect(&server).await;
    let mut large = message("quick", "a");
    large.raw_input_contents = vec![vec![0; 20_000].into()];
    let mut answers = client.model_stream_infer(iter([large]).chain(pending())).await.unwrap().into_inner();
    let status = answers.next().await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(server.controller.in_hand(), 0);
}

#[tokio::test]
async fn compressed_messages_of_a_stream_count_as_inflated() {
    let config = Config { max_body_bytes: 1 << 20, max_held_bytes: 1 << 20, ..Config::default() };
    let server = Server::with(config, &[("quick", model(0.1, None))]);
    let mut other = server.connect();
    other.send("POST /v2/models/quick/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 900001\r\n\r\n");
    other.send(vec![b' '; 900_000]);
    let mut client = connect(&server).await.send_compressed(CompressionEncoding::Gzip);
    let bomb = message("quick", &"i".repeat(900_000));
    // The other one's bytes arrive when they arrive: asked until they are there.
    let give_up_at = Instant::now() + common::PATIENCE;
    loop {
        let requests = iter([bomb.clone()]);
        let mut answers = client.model_stream_infer(requests).await.unwrap().into_inner();
        let (_, said) = next(&mut answers).await;
        if said.starts_with("the server holds requests and answers of 1048576 bytes") {
            break;
        }
        assert!(said.is_empty() && Instant::now() < give_up_at, "{said}");
    }
}

#[tokio::test]
async fn the_deadline_of_a_stream_is_that_of_its_requests_too() {
    let server = Server::with(Config::default(), &[("slow", model(60_000.0, None))]);
    let mut client = connect(&server).await;
    let mut request = Request::new(iter([message("slow", "a")]).chain(pending()));
    request.metadata_mut().insert("grpc-timeout", "20S".parse().unwrap());
    let mut answers = client.model_stream_infer(request).await.unwrap().into_inner();
    let (id, said) = next(&mut answers).await;
    assert_eq!(id, "a");
    assert!(said.contains("can't answer by the deadline"), "{said}");
}

#[tokio::test]
async fn a_stream_without_requests_does_not_hold_up_the_end() {
    let mut server = Server::with(Config::default(), &[("slow", model(300.0, None))]);
    let mut client = connect(&server).await;
    let mut answers =
        client.model_stream_infer(iter([message("slow", "a")]).chain(pending())).await.unwrap().into_inner();
    let gateway = server.gateway.take().unwrap();
    let grace = Config::default().shutdown_grace;
    tokio::time::timeout(grace - Duration::from_secs(5), tokio::task::spawn_blocking(move || gateway.shutdown()))
        .await
        .expect("the stream is ended, not waited for")
        .unwrap();
    // It may have gone before the request was read.
    let mut last = answers.next().await.unwrap();
    if last.is_ok() {
        last = answers.next().await.unwrap();
    }
    assert_eq!(last.unwrap_err().code(), Code::Unavailable);
}
