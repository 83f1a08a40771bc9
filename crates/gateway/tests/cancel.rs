//! Who goes away takes the request along, on every protocol: it is never executed.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Client, Server, message, model, post, rows};
use gateway::Config;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use wire::proto::grpc_inference_service_client::GrpcInferenceServiceClient;

const BUSY: &str = "/v2/models/busy/infer";
const EXECUTIONS: &str = r#"punctual_actions_total{action="execution",device="emulated:0",result="done"}"#;
const CANCELLED: &str = r#"punctual_requests_total{model="busy",outcome="cancelled",reason="cancelled",version="1"}"#;

async fn grpc(server: &Server) -> GrpcInferenceServiceClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc())).unwrap();
    GrpcInferenceServiceClient::new(endpoint.connect().await.unwrap())
}

/// A client of HTTP/2 on the HTTP port, which begins with it unasked.
async fn http2(server: &Server) -> http2::SendRequest<String> {
    let stream = TcpStream::connect(server.http()).await.unwrap();
    let (client, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    client
}

fn http2_request(body: String) -> hyper::Request<String> {
    hyper::Request::post(format!("http://x{BUSY}")).body(body).unwrap()
}

/// Waits without keeping the runtime from its work.
async fn until(server: &Server, what: &str, holds: impl Fn(&Server) -> bool) {
    let give_up_at = tokio::time::Instant::now() + common::PATIENCE;
    while !holds(server) {
        assert!(tokio::time::Instant::now() < give_up_at, "{what}: not in time\n{}", server.metrics.render());
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn what_nobody_waits_for_is_not_executed() {
    // One execution keeps the only device for so long that everything below happens meanwhile.
    let server = Server::with(Config::default(), &[("busy", model(3000.0, None))]);
    let before = server.metric(EXECUTIONS);
    let mut first = server.connect();
    // Eight rows are a whole batch: nothing can join it.
    first.send(post(BUSY, &[], rows(8, "")));
    until(&server, "the first one is in hand", |server| server.controller.in_hand() == 1).await;

    let mut http1 = Client::connect(server.http());
    http1.send(post(BUSY, &[], rows(1, "")));
    let mut http2_client = http2(&server).await;
    let http2_call = tokio::spawn(http2_client.send_request(http2_request(rows(1, ""))));
    let mut unary = grpc(&server).await;
    let grpc_call = tokio::spawn(async move { unary.model_infer(message("busy", "")).await });
    let mut streaming = grpc(&server).await;
    let (requests, queue) = mpsc::channel(2);
    let stream = streaming.model_stream_infer(ReceiverStream::new(queue)).await.unwrap();
    for _ in 0..2 {
        requests.send(message("busy", "")).await.unwrap();
    }
    until(&server, "all of them wait", |server| server.controller.in_hand() == 6).await;

    drop(http1);
    // The connection stays; only the call is given up.
    http2_call.abort();
    grpc_call.abort();
    // A stream is given up when neither end of it is held any more.
    drop((stream, requests));
    until(&server, "all of them are cancelled", |server| server.metric(CANCELLED) == 5.0).await;
    // And not because the device was free again: the first one is still there.
    until(&server, "all of them are out of the plan", |server| server.controller.in_hand() <= 1).await;
    assert_eq!(server.controller.in_hand(), 1);

    assert_eq!(tokio::task::spawn_blocking(move || first.answer()).await.unwrap().status, 200);
    until(&server, "nothing is in hand", |server| server.controller.in_hand() == 0).await;
    until(&server, "the execution is counted", |server| server.metric(EXECUTIONS) > before).await;
    assert_eq!(server.metric(EXECUTIONS) - before, 1.0, "the first one, and none of the others");
    assert!(http2_client.is_ready(), "other calls on the connection go on");
}
