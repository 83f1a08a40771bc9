//! The protocol over gRPC, over real sockets, with the generated client.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use bytes::BufMut;
use common::{Server, model};
use gateway::Config;
use prost::Message;
use std::collections::BTreeMap;
use std::time::Duration;
use tonic::codec::{Codec, CompressionEncoding, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::{ProstCodec, ProstDecoder};
use wire::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use wire::proto::infer_parameter::ParameterChoice;
use wire::proto::model_infer_request::InferInputTensor;
use wire::proto::{
    InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse, ModelMetadataRequest,
    ModelReadyRequest, ServerLiveRequest, ServerMetadataRequest, ServerReadyRequest,
};

type Client = GrpcInferenceServiceClient<Channel>;

async fn connect(server: &Server) -> Client {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc())).unwrap();
    GrpcInferenceServiceClient::new(endpoint.connect().await.unwrap())
}

fn request(model: &str, rows: i64) -> ModelInferRequest {
    let input = InferInputTensor {
        name: "input".into(),
        datatype: "FP32".into(),
        shape: vec![rows, 10],
        parameters: BTreeMap::new(),
        contents: None,
    };
    ModelInferRequest {
        model_name: model.into(),
        id: "i".into(),
        inputs: vec![input],
        raw_input_contents: vec![vec![0; rows as usize * 40].into()],
        ..Default::default()
    }
}

fn with_timeout(mut request: ModelInferRequest, micros: i64) -> ModelInferRequest {
    let parameter = InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(micros)) };
    request.parameters.insert("timeout".into(), parameter);
    request
}

fn reason(status: &Status) -> &str {
    status.metadata().get("punctual-reason").map_or("", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn liveness_over_grpc_ends_while_a_thread_stands_still() {
    let server = Server::start();
    let mut client = connect(&server).await;
    let pulse = server.controller.watch_thread("test");
    pulse.step(base::Duration::from_millis(100), 0);
    server.until("a thread that stands still", |server| server.controller.stuck().is_some());
    assert!(!client.server_live(ServerLiveRequest {}).await.unwrap().into_inner().live);
    assert!(!client.server_ready(ServerReadyRequest {}).await.unwrap().into_inner().ready);
    pulse.end();
    server.until("a thread that moves", |server| server.controller.stuck().is_none());
    assert!(client.server_live(ServerLiveRequest {}).await.unwrap().into_inner().live);
}

#[tokio::test]
async fn the_six_calls() {
    let server = Server::start();
    let mut client = connect(&server).await;
    assert!(client.server_live(ServerLiveRequest {}).await.unwrap().into_inner().live);
    assert!(client.server_ready(ServerReadyRequest {}).await.unwrap().into_inner().ready);
    let metadata = client.server_metadata(ServerMetadataRequest {}).await.unwrap().into_inner();
    assert_eq!(metadata.name, "punctual");
    assert!(metadata.extensions.contains(&"classification".to_owned()));
    for (name, version, ready) in
        [("quick", "", true), ("quick", "1", true), ("quick", "9", false), ("none", "", false)]
    {
        let request = ModelReadyRequest { name: name.into(), version: version.into() };
        assert_eq!(client.model_ready(request).await.unwrap().into_inner().ready, ready, "{name} {version}");
    }
    let asked = ModelMetadataRequest { name: "quick".into(), version: String::new() };
    let metadata = client.model_metadata(asked).await.unwrap().into_inner();
    assert_eq!((metadata.platform.as_str(), metadata.inputs[0].shape.clone()), ("emulated", vec![-1, 10]));
    let answer = client.model_infer(request("quick", 3)).await.unwrap().into_inner();
    assert_eq!((answer.model_version.as_str(), answer.id.as_str()), ("1", "i"));
    assert_eq!(answer.outputs[0].shape, [3, 10]);
    assert_eq!(answer.raw_output_contents, [vec![0; 120]]);

    let mut typed = request("quick", 1);
    typed.raw_input_contents.clear();
    typed.inputs[0].contents = Some(InferTensorContents { fp32_contents: vec![0.0; 10], ..Default::default() });
    assert_eq!(client.model_infer(typed).await.unwrap().into_inner().raw_output_contents[0].len(), 40);
}

/// The answer is the same wherever the message lies, and so is every refusal.
#[tokio::test]
async fn messages_are_moved_to_where_the_device_reads() {
    let ((server, memory), plain) = (Server::with_device_memory(), Server::start());
    let (mut client, mut other) = (connect(&server).await, connect(&plain).await);
    let one = request("quick", 3);
    let answer = client.model_infer(one.clone()).await.unwrap().into_inner();
    assert_eq!(answer, other.model_infer(one.clone()).await.unwrap().into_inner());
    assert_eq!(memory.was_taken(&server), [one.encoded_len()]);
    let mut short = request("quick", 1);
    short.raw_input_contents[0].truncate(39);
    let mut many = request("quick", 1);
    many.inputs = vec![many.inputs[0].clone(); 5000];
    for wrong in [short, request("quick", 9), many] {
        let refused = client.model_infer(wrong.clone()).await.unwrap_err();
        let expected = other.model_infer(wrong.clone()).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (expected.code(), expected.message()));
        assert_eq!(reason(&refused), reason(&expected));
        assert_eq!(memory.was_taken(&server), [wrong.encoded_len()]);
    }
    // What is compressed as well, once it isn't any more.
    let mut gzip = connect(&server).await.send_compressed(CompressionEncoding::Gzip);
    assert_eq!(gzip.model_infer(one.clone()).await.unwrap().into_inner(), answer);
    assert_eq!(memory.was_taken(&server), [one.encoded_len()]);
    assert!(client.server_live(ServerLiveRequest {}).await.unwrap().into_inner().live);
    assert_eq!(memory.was_taken(&server), [0usize; 0], "other calls have no tensors");
}

#[tokio::test]
async fn refusals_have_a_code_a_reason_and_a_sentence() {
    let server = Server::start();
    let mut client = connect(&server).await;
    let mut refused = async |request: ModelInferRequest| {
        let status = client.model_infer(request).await.unwrap_err();
        (status.code(), reason(&status).to_owned(), status.message().to_owned())
    };
    let (code, reason, sentence) = refused(request("none", 1)).await;
    assert_eq!((code, reason.as_str()), (Code::NotFound, "model_not_found"));
    assert_eq!(sentence, "there is no model \"none\": this server has quick, slow, strict");
    let (code, reason, sentence) = refused(request(&"no".repeat(20_000), 1)).await;
    assert_eq!((code, reason.as_str()), (Code::NotFound, "model_not_found"), "the name doesn't come back as a header");
    assert!(sentence.ends_with("nono...\": this server has quick, slow, strict"), "{sentence}");
    let mut short = request("quick", 1);
    short.raw_input_contents[0].truncate(39);
    let (code, reason, sentence) = refused(short).await;
    assert_eq!((code, reason.as_str()), (Code::InvalidArgument, "bad_input"));
    assert_eq!(sentence, "input \"input\" has 39 bytes, but its shape [1, 10] of FP32 takes 40 bytes");
    let (code, reason, _) = refused(request("quick", 9)).await;
    assert_eq!((code, reason.as_str()), (Code::InvalidArgument, "bad_input"));
    let mut other = request("quick", 1);
    other.model_version = "7".into();
    assert_eq!(refused(other).await.1, "model_not_found");
}

#[tokio::test]
async fn deadlines_by_parameter_by_grpc_and_by_header() {
    let server = Server::start();
    let mut client = connect(&server).await;
    let by_parameter = Request::new(with_timeout(request("slow", 1), 50_000));
    // The header itself, because the client's own timer would answer before the server can.
    let mut by_grpc = Request::new(request("slow", 1));
    by_grpc.metadata_mut().insert("grpc-timeout", "50000u".parse().unwrap());
    let mut by_header = Request::new(with_timeout(request("slow", 1), 60_000_000));
    by_header.metadata_mut().insert("punctual-timeout-us", "50000".parse().unwrap());
    for request in [by_parameter, by_grpc, by_header] {
        let status = client.model_infer(request).await.unwrap_err();
        assert_eq!((status.code(), reason(&status)), (Code::DeadlineExceeded, "deadline_unreachable"));
        let earliest = status.metadata().get("punctual-earliest-deadline-us").unwrap().to_str().unwrap();
        assert!(earliest.parse::<u64>().unwrap() >= 200_000, "{earliest}");
    }
}

#[tokio::test]
async fn a_cancelled_call_is_taken_out_of_the_plan() {
    let server = Server::start();
    let client = connect(&server).await;
    let mut first_client = client.clone();
    let first = tokio::spawn(async move { first_client.model_infer(request("slow", 8)).await });
    wait(&server, "the first one is in hand", |server| server.controller.in_hand() == 1).await;
    let mut second_client = client.clone();
    let second = tokio::spawn(async move { second_client.model_infer(request("slow", 8)).await });
    wait(&server, "the second one is in hand", |server| server.controller.in_hand() == 2).await;
    second.abort();
    let cancelled = r#"punctual_requests_total{model="slow",outcome="cancelled",reason="cancelled",version="1"}"#;
    wait(&server, "the second one is cancelled", |server| server.metric(cancelled) == 1.0).await;
    first.await.unwrap().unwrap();
    wait(&server, "nothing is in hand", |server| server.controller.in_hand() == 0).await;
    assert_eq!(server.metric(r#"punctual_batch_rows_sum{model="slow",version="1"}"#), 8.0);
}

async fn wait(server: &Server, what: &str, holds: impl Fn(&Server) -> bool) {
    // The client's own tasks must run on meanwhile.
    for _ in 0..15_000 {
        if holds(server) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("{what}: never\n{}", server.metrics.render());
}

#[tokio::test]
async fn compression_both_ways() {
    let server = Server::start();
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Deflate] {
        let mut client = connect(&server).await.send_compressed(encoding).accept_compressed(encoding);
        let answer = client.model_infer(request("quick", 8)).await.unwrap();
        assert_eq!(answer.get_ref().raw_output_contents, [vec![0; 320]]);
        let name = answer.metadata().get("grpc-encoding").map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(name.as_deref(), Some(encoding.to_string().as_str()), "compressed requests get compressed answers");
    }
    let mut client = connect(&server).await.accept_compressed(CompressionEncoding::Gzip);
    let answer = client.model_infer(request("quick", 8)).await.unwrap();
    assert_eq!(answer.metadata().get("grpc-encoding"), None, "plain requests get plain answers");
}

#[tokio::test]
async fn messages_that_are_too_large_or_unknown() {
    let config = Config { max_body_bytes: 10_000, ..Config::default() };
    let server = Server::with(config, &[("quick", model(0.1, None))]);
    let mut client = connect(&server).await;
    let mut large = request("quick", 1);
    large.raw_input_contents[0] = vec![0; 50_000].into();
    let status = client.model_infer(large).await.unwrap_err();
    assert_eq!((status.code(), reason(&status)), (Code::ResourceExhausted, "body_too_large"));
    assert_eq!(
        status.message(),
        "the message is larger than 10000 bytes, the most that this server takes: send less in one request"
    );
    client.model_infer(request("quick", 1)).await.unwrap();
}

/// A message as it is, without a look at what it says.
#[derive(Default)]
struct AsItIs;

impl Codec for AsItIs {
    type Encode = Vec<u8>;
    type Decode = ModelInferResponse;
    type Encoder = Self;
    type Decoder = ProstDecoder<ModelInferResponse>;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::default()
    }
}

impl Encoder for AsItIs {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, message: Vec<u8>, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buf.put_slice(&message);
        Ok(())
    }
}

async fn infer_bytes(server: &Server, message: Vec<u8>) -> Result<(), Status> {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc())).unwrap();
    let mut client = tonic::client::Grpc::new(endpoint.connect().await.unwrap());
    client.ready().await.unwrap();
    let path = PathAndQuery::from_static("/inference.GRPCInferenceService/ModelInfer");
    client.unary(Request::new(message), path, AsItIs).await.map(drop)
}

#[tokio::test]
async fn a_megabyte_of_empty_inputs_is_refused_before_it_is_read() {
    let server = Server::start();
    let bomb = [&b"\x0a\x05quick"[..], &[0x2a, 0].repeat(500_000)].concat();
    let status = infer_bytes(&server, bomb).await.unwrap_err();
    assert_eq!((status.code(), reason(&status)), (Code::InvalidArgument, "bad_input"));
    assert!(status.message().starts_with("the request has more than 4096 inputs, "), "{}", status.message());
    let status = infer_bytes(&server, vec![0xff; 20]).await.unwrap_err();
    assert_eq!((status.code(), reason(&status)), (Code::InvalidArgument, "bad_input"));
    connect(&server).await.model_infer(request("quick", 1)).await.unwrap();
}

#[tokio::test]
async fn shutdown_waits_for_answers_that_are_being_written() {
    let mut server = Server::start();
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc())).unwrap();
    let mut client = tonic::client::Grpc::new(endpoint.connect().await.unwrap()).max_decoding_message_size(usize::MAX);
    client.ready().await.unwrap();
    let path = PathAndQuery::from_static("/inference.GRPCInferenceService/ModelInfer");
    let mut large = request("quick", 1);
    large.id = "i".repeat(20_000_000);
    // As a stream, so that the client reads no further than it is told to.
    let codec = ProstCodec::<ModelInferRequest, ModelInferResponse>::default();
    let mut answer = client.server_streaming(Request::new(large), path, codec).await.unwrap().into_inner();
    let gateway = server.gateway.take().unwrap();
    let shutdown = tokio::task::spawn_blocking(move || gateway.shutdown());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!shutdown.is_finished());
    assert_eq!(answer.message().await.unwrap().unwrap().id.len(), 20_000_000);
    shutdown.await.unwrap();
}

#[tokio::test]
async fn large_messages_are_bounded_together() {
    let config = Config { max_body_bytes: 1 << 20, max_held_bytes: 1 << 20, ..Config::default() };
    let server = Server::with(config, &[("slow", model(200.0, None)), ("quick", model(0.1, None))]);
    let client = connect(&server).await;
    let large = |model| {
        let mut large = request(model, 8);
        large.id = "i".repeat(600_000);
        large
    };
    let mut first_client = client.clone();
    let first = tokio::spawn(async move { first_client.model_infer(large("slow")).await });
    wait(&server, "the first one is in hand", |server| server.controller.in_hand() == 1).await;
    let mut client = client.send_compressed(CompressionEncoding::Gzip);
    let status = client.model_infer(large("quick")).await.unwrap_err();
    assert_eq!((status.code(), reason(&status)), (Code::Unavailable, "queue_full"), "counted as inflated");
    client.model_infer(request("quick", 1)).await.unwrap();
    first.await.unwrap().unwrap();
    client.model_infer(large("quick")).await.unwrap();
}
