//! What one client may have of the server.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Server, get, message, model, post, rows};
use gateway::{ClientLimits, Config, NewKey};
use tonic::{Code, Request};
use wire::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use wire::proto::{ModelReadyRequest, ServerLiveRequest};

const INFER: &str = "/v2/models/quick/infer";

fn limited(limits: ClientLimits) -> Server {
    let config = Config { client_limits: Some(limits), max_body_bytes: 1 << 20, ..Config::default() };
    Server::with(config, &[("quick", model(0.1, None))])
}

#[tokio::test]
async fn requests_of_one_client_in_flight_are_limited_on_both_protocols() {
    let server = limited(ClientLimits { requests: Some(1), ..ClientLimits::default() });
    let infer = post(INFER, &[], rows(1, ""));
    let mut first = server.connect();
    first.send(&infer[..infer.len() - 1]);
    server.until("it is in flight", |server| server.metric("punctual_requests_in_flight") == 1.0);
    let (status, reason, sentence) = server.ask(&infer).refusal();
    assert_eq!((status, reason.as_str()), (429, "client_limit"));
    assert_eq!(
        sentence,
        "this client has 1 requests in flight, the most that one client may have: wait for answers first"
    );
    assert_eq!(server.ask(get("/livez")).status, 200, "probes are answered");
    assert_eq!(server.ask(get("/v2/models/stats")).status, 429);
    let mut client = GrpcInferenceServiceClient::connect(format!("http://{}", server.grpc())).await.unwrap();
    let refused = client.model_infer(message("quick", "i")).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::ResourceExhausted, &*sentence));
    let ready = ModelReadyRequest { name: "quick".into(), ..Default::default() };
    assert_eq!(client.model_ready(ready).await.unwrap_err().code(), Code::ResourceExhausted);
    client.server_live(ServerLiveRequest {}).await.unwrap();
    first.send(&infer[infer.len() - 1..]);
    assert_eq!(first.answer().status, 200);
    assert_eq!(server.ask(&infer).status, 200, "there is room again");
    client.model_infer(message("quick", "i")).await.unwrap();
}

/// A server that asks for keys, and the headers of two of them that may ask for inference and metadata.
fn keyed(limits: ClientLimits) -> (Server, [String; 2], tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let keys = ["web", "bulk"].map(|name| NewKey::make(name, &["infer".to_owned(), "read".to_owned()]).unwrap());
    let file = folder.path().join("keys");
    std::fs::write(&file, keys.each_ref().map(|key| key.line.clone()).join("\n")).unwrap();
    let config = Config { client_limits: Some(limits), api_keys: Some(file), ..Config::default() };
    (Server::with(config, &[("quick", model(0.1, None))]), keys.map(|key| format!("Bearer {}", key.key)), folder)
}

#[tokio::test]
async fn what_comes_with_a_key_counts_for_the_key_and_not_for_the_address() {
    let limits = ClientLimits { requests: Some(1), ..ClientLimits::default() };
    let (server, [web, bulk], _folder) = keyed(limits);
    let infer = |key: &str| post(INFER, &[("authorization", key)], rows(1, ""));
    let whole = infer(&web);
    let mut first = server.connect();
    first.send(&whole[..whole.len() - 1]);
    server.until("it is in flight", |server| server.metric("punctual_requests_in_flight") == 1.0);
    let (status, reason, sentence) = server.ask(infer(&web)).refusal();
    assert_eq!((status, reason.as_str()), (429, "client_limit"));
    assert_eq!(
        sentence,
        "the key \"web\" has 1 requests in flight, the most that one client may have: wait for answers first"
    );
    assert_eq!(server.ask(infer(&bulk)).status, 200, "another key at the same address");
    let stats = format!("GET /v2/models/stats HTTP/1.1\r\nhost: localhost\r\nauthorization: {web}\r\n\r\n");
    assert_eq!(server.ask(stats).status, 429, "other calls count for the key, too");
    let mut client = GrpcInferenceServiceClient::connect(format!("http://{}", server.grpc())).await.unwrap();
    fn with<T>(message: T, key: &str) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", key.parse().unwrap());
        request
    }
    let refused = client.model_infer(with(message("quick", "i"), &web)).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::ResourceExhausted, &*sentence));
    client.model_infer(with(message("quick", "i"), &bulk)).await.unwrap();
    let ready = || ModelReadyRequest { name: "quick".into(), ..Default::default() };
    assert_eq!(client.model_ready(with(ready(), &web)).await.unwrap_err().code(), Code::ResourceExhausted);
    client.model_ready(with(ready(), &bulk)).await.unwrap();
    first.send(&whole[whole.len() - 1..]);
    assert_eq!(first.answer().status, 200);
    assert_eq!(server.ask(infer(&web)).status, 200, "there is room again");
}

#[test]
fn a_client_that_used_its_share_of_device_time_is_told_when_to_come_again() {
    // A microsecond in each second: the first request owes hundreds of them.
    let limits = ClientLimits { device_share: Some(1e-6), ..ClientLimits::default() };
    let (server, [web, bulk], _folder) = keyed(limits);
    let infer = |key: &str| post(INFER, &[("authorization", key)], rows(1, ""));
    assert_eq!(server.ask(infer(&web)).status, 200);
    let answer = server.ask(infer(&web));
    let (status, reason, sentence) = answer.refusal();
    assert_eq!((status, reason.as_str()), (429, "client_limit"));
    let said = "the key \"web\" has used its share of the devices' time, 0.000001 of it, the most that one client may: come again in ";
    assert!(sentence.starts_with(said), "{sentence}");
    // A row takes 0.11 ms at least.
    assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() >= 100, "{answer:?}");
    let stats = format!("GET /v2/models/stats HTTP/1.1\r\nhost: localhost\r\nauthorization: {web}\r\n\r\n");
    assert_eq!(server.ask(stats).status, 200, "what isn't computed is answered");
    assert_eq!(server.ask(infer(&bulk)).status, 200, "other clients have their own");
}

#[test]
fn the_rate_of_one_client_is_limited() {
    // One at the start, and the next one in three hours.
    let server = limited(ClientLimits { rate: Some(0.0001), ..ClientLimits::default() });
    let infer = post(INFER, &[], rows(1, ""));
    assert_eq!(server.ask(&infer).status, 200);
    let answer = server.ask(&infer);
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")));
    assert!(answer.refusal().2.starts_with("this client sends more than 0.0001 requests a second"));
}

#[test]
fn the_bytes_that_one_client_holds_are_limited() {
    let server = limited(ClientLimits { held_bytes: Some(1 << 20), ..ClientLimits::default() });
    let spaced = rows(1, "").replace("[1,10]", &format!("[1,{}10]", " ".repeat(600_000)));
    let whole = post(INFER, &[], &spaced);
    let mut first = server.connect();
    first.send(&whole[..whole.len() - 1]);
    // Nobody else may be asked until its bytes are there: it would be refused itself.
    let held = |server: &Server| server.metric("punctual_io_held_bytes ");
    server.until("the first is held", |server| held(server) >= 600_000.0);
    let answer = server.ask(&whole);
    assert_eq!(answer.status, 429);
    assert!(answer.refusal().2.contains("1048576 bytes for this client"), "{answer:?}");
    first.send(&whole[whole.len() - 1..]);
    assert_eq!(first.answer().status, 200);
    // Its answer may be here before what it held is given back.
    server.until("nothing is held any more", |server| held(server) == 0.0);
    assert_eq!(server.ask(&whole).status, 200, "there is room again");
}

#[test]
fn without_memory_connections_may_only_probe_and_those_that_idle_are_closed() {
    let config = Config { memory_limit: Some(1), ..Config::default() };
    let server = Server::with(config, &[("quick", model(0.1, None))]);
    server.until("it is noticed", |server| server.metric("punctual_memory_step") == 4.0);
    assert_eq!(server.ask(get("/livez")).status, 200);
    let (status, reason, _) = server.ask(post(INFER, &[], rows(1, ""))).refusal();
    assert_eq!((status, reason.as_str()), (503, "too_many_connections"));
    let mut idle = server.connect();
    idle.send(get("/livez"));
    assert_eq!(idle.answer().status, 200);
    assert!(idle.is_closed());
    assert!(server.metric("punctual_memory_used_bytes") > 1.0);
}
