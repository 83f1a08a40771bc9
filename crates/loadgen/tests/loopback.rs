//! The generator against real servers on this machine. Nothing here depends on how fast the machine is: delays that are
//! injected are lower bounds, and counts are compared with what the server counted.

#![expect(clippy::unwrap_used, reason = "a test server that can't go on should say so")]

use base::Duration;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use loadgen::{ClassPlan, LoadError, LoadPlan, LoadReport, Loop, Protocol};
use prost::Message as _;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use workload::Process;

// ---- servers -------------------------------------------------------------------------------------------------------

/// What a server answers, and after which delay.
#[derive(Clone, Copy)]
struct ScriptedAnswer {
    status: u16,
    reason: &'static str,
    delay_ms: u64,
    /// It comes once so many requests were under way at once.
    company: u64,
    close: bool,
}

const OK: ScriptedAnswer = ScriptedAnswer { status: 200, reason: "", delay_ms: 0, company: 0, close: false };

fn refuse(status: u16, reason: &'static str) -> ScriptedAnswer {
    ScriptedAnswer { status, reason, ..OK }
}

#[derive(Default)]
struct Seen {
    requests: AtomicU64,
    under_way: AtomicU64,
    most_under_way: AtomicU64,
    bytes: AtomicU64,
}

impl Seen {
    fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    fn begin(&self) -> u64 {
        let now = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_under_way.fetch_max(now, Ordering::SeqCst);
        self.requests.fetch_add(1, Ordering::SeqCst)
    }

    fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs a server on its own thread; `serve` gets each connection.
fn listen<F, S>(serve: F) -> SocketAddr
where
    F: Fn(TcpStream) -> S + Send + 'static,
    S: Future<Output = ()> + Send + 'static,
{
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                tokio::spawn(serve(stream));
            }
        });
    });
    address
}

const METADATA: &str = r#"{"name":"m","versions":["1"],"platform":"onnxruntime_onnx",
    "inputs":[{"name":"x","datatype":"FP32","shape":[-1,10]}],
    "outputs":[{"name":"y","datatype":"FP32","shape":[-1,10]}]}"#;

/// A server that answers the n-th request as `answer(n)` says.
fn http_server(answer: impl Fn(u64) -> ScriptedAnswer + Send + Sync + Copy + 'static) -> (SocketAddr, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let counted = seen.clone();
    let address = listen(move |stream| {
        let seen = counted.clone();
        async move {
            let service = service_fn(move |request| http_answer(request, seen.clone(), answer));
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        }
    });
    (address, seen)
}

async fn http_answer(
    request: Request<Incoming>,
    seen: Arc<Seen>,
    answer: impl Fn(u64) -> ScriptedAnswer,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.method() == hyper::Method::GET {
        return Ok(match request.uri().path() {
            "/v2/models/m" => Response::new(METADATA.into()),
            _ => Response::builder().status(404).body(r#"{"error":"no such model"}"#.into()).unwrap(),
        });
    }
    assert_eq!(request.uri().path(), "/v2/models/m/infer");
    let answer = answer(seen.begin());
    let body = request.into_body().collect().await.unwrap().to_bytes();
    seen.bytes.fetch_add(body.len() as u64, Ordering::SeqCst);
    tokio::time::sleep(std::time::Duration::from_millis(answer.delay_ms)).await;
    while seen.most_under_way.load(Ordering::SeqCst) < answer.company {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    seen.end();
    let mut response = Response::builder().status(answer.status);
    if answer.close {
        response = response.header("connection", "close");
    }
    let body = if answer.status == 200 {
        // Longer than one read of the client.
        "x".repeat(40_000)
    } else {
        format!(r#"{{"error":"no","reason":"{}"}}"#, answer.reason)
    };
    Ok(response.body(body.into()).unwrap())
}

/// The same over gRPC, on HTTP/2 by hand: a 5-byte prefix before the message, the status in the trailers.
fn grpc_server(answer: impl Fn(u64) -> ScriptedAnswer + Send + Sync + Copy + 'static) -> (SocketAddr, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let counted = seen.clone();
    let address = listen(move |stream| {
        let seen = counted.clone();
        async move {
            let service = service_fn(move |request| grpc_answer(request, seen.clone(), answer));
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        }
    });
    (address, seen)
}

type GrpcBody = http_body_util::combinators::BoxBody<Bytes, Infallible>;

async fn grpc_answer(
    request: Request<Incoming>,
    seen: Arc<Seen>,
    answer: impl Fn(u64) -> ScriptedAnswer,
) -> Result<Response<GrpcBody>, Infallible> {
    use wire::proto::model_metadata_response::TensorMetadata;
    let is_metadata = request.uri().path() == "/inference.GRPCInferenceService/ModelMetadata";
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let (message, answer) = if is_metadata {
        let input = TensorMetadata { name: "x".into(), datatype: "FP32".into(), shape: vec![-1, 10] };
        let metadata = wire::proto::ModelMetadataResponse { inputs: vec![input], ..Default::default() };
        (metadata.encode_to_vec(), OK)
    } else {
        let request = wire::proto::ModelInferRequest::decode(&body[5..]).unwrap();
        assert_eq!(wire::grpc::decode(&request).unwrap().inputs[0].shape, [3, 10]);
        let answer = answer(seen.begin());
        tokio::time::sleep(std::time::Duration::from_millis(answer.delay_ms)).await;
        seen.end();
        (wire::proto::ModelInferResponse::default().encode_to_vec(), answer)
    };
    let mut framed = vec![0];
    framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
    framed.extend_from_slice(&message);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", answer.status.to_string().replace("200", "0").parse().unwrap());
    let mut frames = vec![];
    if answer.status == 200 {
        frames.push(Ok(Frame::data(Bytes::from(framed))));
    } else {
        trailers.insert(wire::REASON_METADATA, answer.reason.parse().unwrap());
    }
    frames.push(Ok(Frame::trailers(trailers)));
    let body = Frames(frames.into()).boxed();
    Ok(Response::builder().header("content-type", "application/grpc").body(body).unwrap())
}

/// Frames that are all there already.
struct Frames(std::collections::VecDeque<Result<Frame<Bytes>, Infallible>>);

impl hyper::body::Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        std::task::Poll::Ready(self.0.pop_front())
    }
}

// ---- plans ---------------------------------------------------------------------------------------------------------

fn class(name: &str, pattern: Loop, deadline_ms: Option<u64>) -> ClassPlan {
    ClassPlan {
        name: name.into(),
        models: vec![("m".into(), 1.0)],
        pattern,
        deadline: deadline_ms.map(Duration::from_millis),
        batch: 3,
        priority: 0,
        application: None,
        lengths: None,
    }
}

fn open(rate: f64) -> Loop {
    Loop::Open { rate, process: Process::Uniform, from: Duration::ZERO, join_every: None }
}

fn closed(clients: u32) -> Loop {
    Loop::Closed { clients, backoff: Duration::from_micros(100) }
}

fn plan(address: SocketAddr, protocol: Protocol, millis: u64, classes: Vec<ClassPlan>) -> LoadPlan {
    LoadPlan {
        address,
        host: address.to_string(),
        protocol,
        encryption: None,
        key: None,
        duration: Duration::from_millis(millis),
        warmup: Duration::ZERO,
        // Far longer than anything here takes: every answer is waited for.
        drain: Duration::from_secs(60),
        connections: 64,
        grpc_connections: 4,
        busy_poll: false,
        seed: 1,
        shapes: vec![],
        values: vec![],
        progress: false,
        classes,
    }
}

fn run(plan: &LoadPlan) -> LoadReport {
    loadgen::run(plan, std::future::pending()).unwrap()
}

/// The requests that a timetable at an even rate has: all of them are sent, late or not, so that their number doesn't
/// depend on the machine.
fn due(rate: f64, millis: u64) -> u64 {
    (rate * millis as f64 / 1000.0) as u64
}

/// Ends a run once the server has seen so many requests; after two minutes without them it fails.
async fn enough(seen: &Seen, requests: u64) {
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while seen.requests() < requests {
        assert!(std::time::Instant::now() < patience, "waited for {requests} requests, {} came", seen.requests());
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

// ---- tests ---------------------------------------------------------------------------------------------------------

#[test]
fn every_request_of_the_timetable_is_sent_and_every_answer_counted() {
    for protocol in [Protocol::HttpJson, Protocol::HttpBinary] {
        let (address, seen) = http_server(|n| match n % 4 {
            0 => refuse(503, "overloaded"),
            1 => refuse(504, "deadline_unreachable"),
            2 => refuse(400, "bad_input"),
            _ => OK,
        });
        let report = run(&plan(address, protocol, 500, vec![class("c", open(400.0), None)])).total;
        assert_eq!(report.requests, due(400.0, 500));
        assert_eq!(report.requests, seen.requests());
        let count = |from: u64| (0..report.requests).filter(|n| n % 4 == from).count() as u64;
        assert_eq!((report.successes, report.good, report.unanswered), (count(3), count(3), 0));
        assert_eq!(report.refused_by_reason["overloaded"], count(0));
        assert_eq!(report.refused_by_reason["deadline_unreachable"], count(1));
        assert_eq!(report.errors_by_reason["bad_input"], count(2));
        assert_eq!((report.latency_ms.count, report.refusal_ms.count), (count(3), count(0) + count(1)));
    }
}

#[test]
fn latency_counts_from_the_intended_send_also_when_the_connection_is_busy() {
    // The first answer takes 500 ms, and there is one connection only: what was due meanwhile waits, on the clock.
    let (address, _) = http_server(|n| ScriptedAnswer { delay_ms: if n == 0 { 500 } else { 0 }, ..OK });
    let mut plan = plan(address, Protocol::HttpBinary, 1000, vec![class("c", open(100.0), None)]);
    plan.connections = 1;
    let report = run(&plan).total;
    assert_eq!(report.requests, due(100.0, 1000));
    assert_eq!(report.successes, report.requests);
    assert!(report.latency_ms.max >= 499.0, "{:?}", report.latency_ms);
    // A quarter of the requests was due in the first half of that delay.
    assert!(report.latency_ms.p90 >= 250.0, "{:?}", report.latency_ms);
    assert!(report.send_lag_ms.p90 >= 240.0, "{:?}", report.send_lag_ms);
}

#[test]
fn answers_after_the_deadline_are_late_whatever_they_say() {
    let (address, _) =
        http_server(|n| ScriptedAnswer { delay_ms: 60, ..if n % 2 == 0 { OK } else { refuse(503, "overloaded") } });
    let report = run(&plan(address, Protocol::HttpJson, 200, vec![class("c", open(100.0), Some(30))])).total;
    assert_eq!((report.good, report.goodput_rps), (0, 0.0));
    assert_eq!((report.late, report.late_from_send), (report.successes, report.successes));
    assert_eq!((report.refused_late, report.refused_late_from_send), (report.refused, report.refused));
    assert_eq!(report.refused_early_fraction, Some(0.0));
    assert!(report.successes > 0 && report.refused > 0);

    let (address, _) = http_server(|_| refuse(504, "deadline_unreachable"));
    let report = run(&plan(address, Protocol::HttpJson, 100, vec![class("c", open(100.0), Some(1_000_000))])).total;
    assert_eq!((report.refused_early_fraction, report.refused_late), (Some(1.0), 0));
}

#[test]
fn a_closed_loop_keeps_its_number_of_clients_busy() {
    // With fewer than three clients nobody would be answered.
    let (address, seen) = http_server(|_| ScriptedAnswer { company: 3, delay_ms: 1, ..OK });
    let plan = plan(address, Protocol::HttpBinary, 3_600_000, vec![class("bulk", closed(3), None)]);
    let report = loadgen::run(&plan, enough(&seen, 30)).unwrap().total;
    assert_eq!(seen.most_under_way.load(Ordering::SeqCst), 3);
    assert!(report.successes > 0 && report.unanswered <= 3, "{report}");
    assert_eq!(report.requests, report.successes + report.unanswered);
}

#[test]
fn classes_run_at_once() {
    // The three clients of one class are answered once the other has sent something.
    let (address, seen) = http_server(|_| ScriptedAnswer { company: 4, delay_ms: 1, ..OK });
    let classes = vec![class("bulk", closed(3), None), class("fast", open(50.0), None)];
    let report = loadgen::run(&plan(address, Protocol::HttpBinary, 3_600_000, classes), enough(&seen, 40)).unwrap();
    let [bulk, fast] = &report.classes[..] else { panic!() };
    assert!(bulk.successes > 0 && fast.requests > 0, "{bulk} {fast}");
    assert_eq!(report.total.requests, bulk.requests + fast.requests);
    assert!((bulk.goodput_rows_per_second - 3.0 * bulk.goodput_rps).abs() < 1e-6);
}

#[test]
fn a_closed_connection_is_opened_again() {
    let (address, seen) = http_server(|_| ScriptedAnswer { close: true, ..OK });
    let report = run(&plan(address, Protocol::HttpBinary, 200, vec![class("c", open(200.0), None)])).total;
    assert_eq!((report.successes, report.errors), (seen.requests(), 0));
}

#[test]
fn a_server_that_hangs_up_gives_errors_not_a_hang() {
    let address = listen(|mut stream| async move {
        let mut buffer = vec![0; 65536];
        let count = stream.read(&mut buffer).await.unwrap_or(0);
        if buffer[..count].starts_with(b"GET") {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", METADATA.len());
            let _ = stream.write_all((head + METADATA).as_bytes()).await;
        }
    });
    let report = run(&plan(address, Protocol::HttpBinary, 100, vec![class("c", open(200.0), None)])).total;
    assert!(report.requests > 0);
    assert_eq!(report.errors_by_reason["connection_lost"], report.requests);
}

#[test]
fn grpc_counts_the_same() {
    let (address, seen) = grpc_server(|n| match n % 4 {
        0 => refuse(14, "overloaded"),
        1 => refuse(4, "deadline_unreachable"),
        2 => refuse(3, "bad_input"),
        _ => OK,
    });
    let report = run(&plan(address, Protocol::Grpc, 400, vec![class("c", open(200.0), Some(60_000))])).total;
    assert_eq!(report.requests, due(200.0, 400));
    assert_eq!(report.requests, seen.requests());
    let count = |from: u64| (0..report.requests).filter(|n| n % 4 == from).count() as u64;
    assert_eq!((report.good, report.unanswered), (count(3), 0));
    assert_eq!(report.refused_by_reason["overloaded"], count(0));
    assert_eq!(report.refused_by_reason["deadline_unreachable"], count(1));
    assert_eq!(report.errors_by_reason["bad_input"], count(2));
}

#[test]
fn stopping_gives_the_result_so_far() {
    let (address, seen) = http_server(|n| ScriptedAnswer { delay_ms: if n < 5 { 0 } else { 3_600_000 }, ..OK });
    let plan = plan(address, Protocol::HttpBinary, 3_600_000, vec![class("c", open(200.0), None)]);
    let report = loadgen::run(&plan, enough(&seen, 8)).unwrap();
    assert!(report.interrupted);
    let total = &report.total;
    assert!(total.successes <= 5 && total.unanswered >= 3, "{total}");
    assert_eq!(total.requests, total.successes + total.unanswered);
    assert!(report.seconds < 3600.0);
}

#[test]
fn requests_of_the_warm_up_are_not_counted() {
    let (address, seen) = http_server(|_| OK);
    let mut plan = plan(address, Protocol::HttpBinary, 400, vec![class("c", open(200.0), None)]);
    plan.warmup = Duration::from_millis(200);
    let report = run(&plan);
    assert_eq!(seen.requests(), due(200.0, 400));
    assert_eq!(report.total.requests, due(200.0, 200));
    assert!((report.seconds - 0.2).abs() < 1e-9);
}

#[test]
fn what_cant_be_asked_is_a_sentence() {
    let (address, _) = http_server(|_| OK);
    let mut wrong = plan(address, Protocol::HttpBinary, 100, vec![class("c", open(1.0), None)]);
    wrong.classes[0].models[0].0 = "other".into();
    let error = |plan: &LoadPlan| match loadgen::run(plan, std::future::pending()) {
        Err(error @ LoadError::Target(_)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(error(&wrong), r#"model "other" can't be asked: HTTP 404: {"error":"no such model"}"#);
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for protocol in [Protocol::HttpJson, Protocol::Grpc] {
        let message = error(&plan(nobody, protocol, 100, vec![class("c", open(1.0), None)]));
        assert!(message.contains("doesn't answer") && message.contains("is the server up?"), "{message}");
    }
}
