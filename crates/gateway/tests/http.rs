//! The protocol over HTTP, over real sockets.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Client, Server, get, model, post, rows};
use expect_test::expect;
use flate2::Compression;
use flate2::read::{GzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use gateway::Config;
use std::io::{Read, Write};

const INFER: &str = "/v2/models/quick/infer";
/// 130 bytes.
const LONG_NAME: &str = "0123456789012345678901234567890123456789012345678901234567890123401234567890123456789012345678901234567890123456789012345678901234";

#[test]
fn the_six_calls() {
    let server = Server::start();
    let mut client = server.connect();
    let mut ask = |request: Vec<u8>| {
        client.send(request);
        client.answer()
    };
    assert_eq!(ask(get("/v2/health/live").into()).status, 200);
    assert_eq!(ask(get("/v2/health/ready").into()).status, 200);
    assert_eq!(ask(get("/v2/models/quick/ready").into()).status, 200);
    assert_eq!(ask(get("/v2/models/quick/versions/1/ready").into()).status, 200);
    expect![[r#"{"name":"punctual","version":"0.1.0","extensions":["binary_tensor_data","classification","logging","model_configuration","model_repository","model_repository(unload_dependents)","parameters","schedule_policy","sequence","statistics","trace"]}"#]]
        .assert_eq(ask(get("/v2").into()).text());
    expect![[r#"{"name":"quick","versions":["1"],"platform":"emulated","inputs":[{"name":"input","datatype":"FP32","shape":[-1,10]}],"outputs":[{"name":"output","datatype":"FP32","shape":[-1,10]}]}"#]]
        .assert_eq(ask(get("/v2/models/quick").into()).text());
    let answer = ask(post("/v2/models/quick/versions/1/infer", &[], rows(1, "")));
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    expect![[r#"{"model_name":"quick","model_version":"1","id":"i","outputs":[{"name":"output","datatype":"FP32","shape":[1,10],"data":[0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0]}]}"#]]
        .assert_eq(answer.text());
    assert_eq!(server.metric(r#"punctual_requests_total{model="quick",outcome="success",reason="",version="1"}"#), 1.0);
}

#[test]
fn paths_and_methods_that_are_not_there() {
    let server = Server::start();
    let refused = |request: Vec<u8>| {
        let answer = server.ask(request);
        let (status, reason, sentence) = answer.refusal();
        format!("{status} {reason}: {sentence}")
    };
    expect![[r#"404 not_found: there is no "/v2/health/ready/" here: leave out the slash at its end"#]]
        .assert_eq(&refused(get("/v2/health/ready/").into()));
    expect!["405 method_not_allowed: /v2/repository/index is asked with POST, not GET"]
        .assert_eq(&refused(get("/v2/repository/index").into()));
    expect!["405 method_not_allowed: /v2/models/quick/infer is asked with POST, not GET"]
        .assert_eq(&refused(get(INFER).into()));
    expect!["405 method_not_allowed: /v2/health/live is asked with GET, not POST"].assert_eq(&refused(post(
        "/v2/health/live",
        &[],
        "",
    )));
    expect![[r#"404 model_not_found: there is no model "fast": this server has quick, slow, strict"#]]
        .assert_eq(&refused(post("/v2/models/fast/infer", &[], rows(1, ""))));
    expect![[r#"404 model_not_found: there is no version "2" of model "quick": there is 1"#]]
        .assert_eq(&refused(post("/v2/models/quick/versions/2/infer", &[], rows(1, ""))));
    expect![[r#"404 model_not_found: there is no version "one" of model "quick": there is 1"#]]
        .assert_eq(&refused(get("/v2/models/quick/versions/one").into()));
    assert_eq!(server.ask(get(INFER)).header("allow"), Some("POST"));
}

#[test]
fn bad_input_is_a_sentence_and_the_connection_goes_on() {
    let server = Server::start();
    let mut client = server.connect();
    let mut refused = |headers: &[(&str, &str)], body: &str| {
        client.send(post(INFER, headers, body));
        let (status, reason, sentence) = client.answer().refusal();
        format!("{status} {reason}: {sentence}")
    };
    expect![
        "400 bad_input: the request is not what the protocol asks for: EOF while parsing a value at line 1 column 0"
    ]
    .assert_eq(&refused(&[], ""));
    expect![[r#"400 bad_input: input "input" has 9 rows, but the model takes 1 to 8 in one request"#]]
        .assert_eq(&refused(&[], &rows(9, "")));
    expect![[r#"400 bad_input: the header inference-header-content-length is "ten": it must be a whole number"#]]
        .assert_eq(&refused(&[("inference-header-content-length", "ten")], "{}"));
    expect!["400 bad_input: the body has 2 bytes, but Inference-Header-Content-Length says that 3 of them are JSON"]
        .assert_eq(&refused(&[("inference-header-content-length", "3")], "{}"));
    expect![[r#"415 unsupported_encoding: the Content-Encoding "br" isn't known here: use gzip, deflate or none"#]]
        .assert_eq(&refused(&[("content-encoding", "br")], "{}"));
    expect!["400 bad_input: the body is not valid gzip: invalid gzip header"]
        .assert_eq(&refused(&[("content-encoding", "gzip")], "{\"inputs\":[]}"));
    client.send(post(INFER, &[], rows(2, "")));
    assert_eq!(client.answer().status, 200);
    let bad =
        server.metric(r#"punctual_requests_total{model="quick",outcome="refused",reason="bad_input",version="1"}"#);
    assert_eq!(bad, 6.0);
}

/// The client waits with its connection open, so that nothing but the answer can end its wait.
#[test]
fn an_answer_is_sent_though_bytes_follow_the_request() {
    let server = Server::start();
    let whole = post(INFER, &[], rows(1, ""));
    let (start, rest) = whole.split_at(whole.len() / 2);
    let head = &whole[..20];
    for follows in [&b"\r\n"[..], b"\n", head, start] {
        let mut client = server.connect();
        client.send([&whole[..], follows].concat());
        assert_eq!(client.answer().status, 200, "followed by {:?}", String::from_utf8_lossy(follows));
    }
    let mut client = server.connect();
    client.send([&whole[..], start].concat());
    assert_eq!(client.answer().status, 200);
    client.send(rest);
    assert_eq!(client.answer().status, 200, "what was sent of the next one counts");
    client.send([&whole[..], b"\r\n"].concat());
    assert_eq!(client.answer().status, 200);
    client.send(&whole);
    assert_eq!(client.answer().status, 200, "an empty line before a request is none");
    client.send([&whole[..], &whole, &whole].concat());
    (0..3).for_each(|_| assert_eq!(client.answer().status, 200));
}

#[test]
fn what_is_no_request_is_refused_with_a_status_also_behind_one() {
    let server = Server::start();
    let good = post(INFER, &[], rows(1, ""));
    let long_line = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(70_000));
    let long_head = format!("GET /v2 HTTP/1.1\r\nhost: a\r\n{}\r\n", "x: y\r\n".repeat(200));
    for (bad, status) in [("GET /v2 HTTP/1.1\r\nno header\r\n\r\n", 400), (&*long_line, 414), (&*long_head, 431)] {
        let mut client = server.connect();
        client.send(bad);
        assert_eq!(client.answer().status, status, "{}", &bad[..30]);
        let mut client = server.connect();
        client.send([&good[..], bad.as_bytes()].concat());
        assert_eq!(client.answer().status, 200, "before {}", &bad[..30]);
        assert_eq!(client.answer().status, status, "behind a good one: {}", &bad[..30]);
    }
}

#[test]
fn binary_tensors_both_ways() {
    let server = Server::start();
    let json = r#"{"inputs":[{"name":"input","shape":[1,10],"datatype":"FP32","parameters":{"binary_data_size":40}}],"parameters":{"binary_data_output":true}}"#;
    let body = [json.as_bytes(), &[0; 40]].concat();
    let answer = server.ask(post(INFER, &[("Inference-Header-Content-Length", &json.len().to_string())], body));
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/octet-stream")));
    let length: usize = answer.header("inference-header-content-length").unwrap().parse().unwrap();
    expect![[r#"{"model_name":"quick","model_version":"1","outputs":[{"name":"output","datatype":"FP32","shape":[1,10],"parameters":{"binary_data_size":40}}]}"#]]
        .assert_eq(std::str::from_utf8(&answer.body[..length]).unwrap());
    assert_eq!(answer.body[length..], [0; 40]);
}

#[test]
fn binary_tensors_are_received_where_the_device_reads() {
    let (server, memory) = Server::with_device_memory();
    let json = r#"{"inputs":[{"name":"input","shape":[1,10],"datatype":"FP32","parameters":{"binary_data_size":40}}]}"#;
    let length = json.len().to_string();
    let headers = [("Inference-Header-Content-Length", length.as_str())];
    let body = [json.as_bytes(), &[0; 40]].concat();
    // In one piece, and in two.
    assert_eq!(server.ask(post(INFER, &headers, &body)).status, 200);
    assert_eq!(memory.was_taken(&server), [body.len()]);
    let request = post(INFER, &headers, &body);
    let (first, second) = request.split_at(request.len() - 7);
    let mut client = server.connect();
    client.send(first);
    server.until("the first piece is there", |_| memory.out.load(std::sync::atomic::Ordering::Relaxed) == 1);
    client.send(second);
    assert_eq!(client.answer().status, 200);
    assert_eq!(memory.was_taken(&server), [body.len()]);
    // The one input without a head.
    assert_eq!(server.ask(post(INFER, &[("Inference-Header-Content-Length", "0")], [0; 40])).status, 200);
    assert_eq!(memory.was_taken(&server), [40]);
    // A client that goes away in the middle leaves nothing behind.
    let mut client = server.connect();
    client.send(first);
    server.until("the first piece is there", |_| memory.out.load(std::sync::atomic::Ordering::Relaxed) == 1);
    drop(client);
    assert_eq!(memory.was_taken(&server), [body.len()]);
}

#[test]
fn what_is_no_tensor_yet_is_not_received_there() {
    let (server, memory) = Server::with_device_memory();
    assert_eq!(server.ask(post(INFER, &[], rows(1, ""))).status, 200);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(rows(8, "").as_bytes()).unwrap();
    let length = rows(8, "").len().to_string();
    let headers = [("content-encoding", "gzip"), ("Inference-Header-Content-Length", &length)];
    assert_eq!(server.ask(post(INFER, &headers, gzip.finish().unwrap())).status, 200);
    // Nor what doesn't say how long it is.
    let mut client = server.connect();
    client.send(format!(
        "POST {INFER} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nInference-Header-Content-Length: 0\r\n\r\n"
    ));
    client.send([b"28\r\n".as_slice(), &[0; 40], b"\r\n0\r\n\r\n"].concat());
    assert_eq!(client.answer().status, 200);
    assert_eq!(memory.was_taken(&server), [0usize; 0]);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = Server::start();
    let mut client = server.connect();
    let mut requests = Vec::new();
    for count in 1..=8 {
        requests.extend(post(INFER, &[], rows(count, "")));
    }
    client.send(requests);
    for count in 1..=8 {
        assert_eq!(client.answer().json()["outputs"][0]["shape"][0], count);
    }
}

#[test]
fn chunked_and_awaited_bodies() {
    let server = Server::start();
    let body = rows(1, "");
    let (left, right) = body.split_at(30);
    let mut client = server.connect();
    client.send(format!("POST {INFER} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"));
    client.send(format!("{:x}\r\n{left}\r\n", left.len()));
    client.send(format!("{:x}\r\n{right}\r\n0\r\n\r\n", right.len()));
    assert_eq!(client.answer().status, 200);
    client.send(format!(
        "POST {INFER} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    ));
    assert_eq!(client.answer().status, 100);
    client.send(body);
    assert_eq!(client.answer().status, 200);
}

#[test]
fn compression_both_ways() {
    let server = Server::start();
    let body = rows(8, "");
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(body.as_bytes()).unwrap();
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
    zlib.write_all(body.as_bytes()).unwrap();
    let plain = server.ask(post(INFER, &[], rows(8, "")));
    assert_eq!(plain.header("content-encoding"), None);

    let headers = [("content-encoding", "gzip"), ("accept-encoding", "gzip")];
    let answer = server.ask(post(INFER, &headers, gzip.finish().unwrap()));
    assert_eq!((answer.status, answer.header("content-encoding")), (200, None), "a small answer is not worth it");
    assert_eq!(answer.body, plain.body);
    let answer = server.ask(post(INFER, &[("content-encoding", "deflate")], zlib.finish().unwrap()));
    assert_eq!(answer.body, plain.body);

    // An id makes the answer as large as one likes.
    let long = body.replace(r#""id":"i""#, &format!(r#""id":"{}""#, "i".repeat(5000)));
    let plain = server.ask(post(INFER, &[], &long)).body;
    let answer = server.ask(post(INFER, &[("accept-encoding", "gzip")], &long));
    assert_eq!(answer.header("content-encoding"), Some("gzip"));
    let mut unpacked = Vec::new();
    GzDecoder::new(&answer.body[..]).read_to_end(&mut unpacked).unwrap();
    assert_eq!(unpacked, plain);
    let answer = server.ask(post(INFER, &[("accept-encoding", "deflate")], &long));
    let mut unpacked = Vec::new();
    ZlibDecoder::new(&answer.body[..]).read_to_end(&mut unpacked).unwrap();
    assert_eq!(unpacked, plain);
}

#[test]
fn large_requests_are_read_on_another_thread() {
    let server = Server::start();
    let spaces = " ".repeat(100_000);
    let body = rows(2, "").replace("[2,10]", &format!("[2,{spaces}10]"));
    let small = server.ask(post(INFER, &[], rows(2, ""))).body;
    let mut client = server.connect();
    client.send(post(INFER, &[], &body));
    assert_eq!(client.answer().body, small);
    client.send(post(INFER, &[], &body[..body.len() - 1]));
    let (status, reason, sentence) = client.answer().refusal();
    assert_eq!((status, reason.as_str()), (400, "bad_input"));
    assert!(sentence.contains("EOF while parsing"), "{sentence}");
}

#[test]
fn a_server_is_not_ready_before_it_is_told_so() {
    let server = Server::start();
    let free = Some(std::net::SocketAddr::from(([127, 0, 0, 1], 0)));
    let config = Config { http: free, grpc: None, metrics: None, ..Config::default() };
    let young =
        gateway::Gateway::start(config, server.controller.clone(), server.registry.clone(), server.metrics.clone())
            .unwrap();
    let ready = || {
        let mut client = Client::connect(young.http_address().unwrap());
        client.send(get("/v2/health/ready"));
        client.answer().status
    };
    assert_eq!(ready(), 503);
    young.set_ready();
    assert_eq!(ready(), 200);
    young.shutdown();
}

#[test]
fn liveness_ends_with_a_sentence_while_a_thread_stands_still() {
    let server = Server::start();
    let pulse = server.controller.watch_thread("test");
    assert_eq!(server.ask(get("/livez")).status, 200);
    pulse.step(base::Duration::from_millis(100), 0);
    server.until("a thread that stands still", |server| server.controller.stuck().is_some());
    for path in ["/livez", "/healthz", "/v2/health/live"] {
        let (status, reason, sentence) = server.ask(get(path)).refusal();
        assert_eq!((status, reason.as_str()), (503, "not_live"), "{path}");
        assert!(sentence.starts_with("thread test has stood still for "), "{sentence}");
    }
    assert_eq!(server.ask(get("/readyz")).status, 503);
    pulse.end();
    server.until("a thread that moves", |server| server.controller.stuck().is_none());
    assert_eq!((server.ask(get("/livez")).status, server.ask(get("/readyz")).status), (200, 200));
}

#[test]
fn a_body_that_is_too_large_is_answered_without_being_kept() {
    let config = Config { max_body_bytes: 10_000, ..Config::default() };
    let server = Server::with(config, &[("quick", model(0.1, None))]);
    let sentence = "the body is larger than 10000 bytes, the most that this server takes: send less in one request";
    let refused = (413, "body_too_large".to_owned(), sentence.to_owned());
    let mut client = server.connect();
    client.send(post(INFER, &[], vec![b' '; 50_000]));
    assert_eq!(client.answer().refusal(), refused);
    client.send(post(INFER, &[], rows(1, "")));
    assert_eq!(client.answer().status, 200, "what was thrown away leaves the connection usable");

    let mut client = server.connect();
    client.send(format!("POST {INFER} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"));
    for _ in 0..20 {
        client.send(format!("3e8\r\n{}\r\n", " ".repeat(1000)));
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.answer().refusal(), refused);

    let mut client = server.connect();
    client.send(format!("POST {INFER} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 50000\r\n\r\n"));
    assert_eq!(client.answer().refusal(), refused, "a client that waits is told before it sends");

    let mut client = server.connect();
    client.send(format!("POST {INFER} HTTP/1.1\r\nhost: x\r\ncontent-length: 9000000000\r\n\r\n"));
    // A client that never stops is cut off, and this loop ends.
    while client.try_send(vec![b' '; 10_000]).is_ok() {}
    assert_eq!(server.ask(post(INFER, &[], rows(1, ""))).status, 200);
}

#[test]
fn a_bomb_is_too_large() {
    let config = Config { max_body_bytes: 10_000, ..Config::default() };
    let server = Server::with(config, &[("quick", model(0.1, None))]);
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    bomb.write_all(&vec![b' '; 2_000_000]).unwrap();
    let bomb = bomb.finish().unwrap();
    assert!(bomb.len() < 10_000);
    let answer = server.ask(post(INFER, &[("content-encoding", "gzip")], bomb));
    assert_eq!(answer.refusal().1, "body_too_large");
}

#[test]
fn heads_that_are_not_http() {
    let server = Server::start();
    let mut client = server.connect();
    client.send("POST /v2 HTTP/1.1\r\ncontent-length: -1\r\n\r\n");
    assert_eq!(client.answer().status, 400);
    let mut client = server.connect();
    client.send("nonsense\r\n\r\n");
    assert_eq!(client.answer().status, 400);
    assert!(client.is_closed(), "nobody knows where the next request would begin");
    let mut client = server.connect();
    client.send("GET /v2 HTTP/1.1\r\n");
    // A head that never ends is cut off, and this loop ends.
    while client.try_send(format!("x: {}\r\n", "y".repeat(10_000))).is_ok() {}
    assert_eq!(server.ask(get("/v2/health/live")).status, 200);
}

#[test]
fn metrics_have_their_own_port() {
    let server = Server::start();
    let mut client = Client::connect(server.metrics_port());
    client.send(get("/metrics"));
    let answer = client.answer();
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(answer.text().contains("\npunctual_models{state=\"ready\"} 3\n"), "{}", answer.text());
    client.send(get("/"));
    assert_eq!(
        client.answer().refusal().2,
        "there is no \"/\" here: the metrics are at /metrics, the advice on the number of devices at /scaling, the shares of GPUs at /shares"
    );
}

#[test]
fn refusals_of_large_bodies_arrive_whatever_is_wrong() {
    let server = Server::start();
    let large = vec![b' '; 8 << 20];
    for (path, headers, status, reason) in [
        ("/v2/models/none/infer", [("x", "y")], 404, "model_not_found"),
        ("/v2/models/quick/versions/7/infer", [("x", "y")], 404, "model_not_found"),
        ("/v2/nothing", [("x", "y")], 404, "not_found"),
        ("/v2/models/quick", [("x", "y")], 405, "method_not_allowed"),
        (INFER, [("punctual-timeout-us", "soon")], 400, "bad_input"),
        (INFER, [("punctual-application", LONG_NAME)], 400, "bad_input"),
        (INFER, [("content-encoding", "br")], 415, "unsupported_encoding"),
    ] {
        let mut client = server.connect();
        // Writes everything before it reads anything, as most clients do.
        client.send(post(path, &headers, &large));
        let (found, why, _) = client.answer().refusal();
        assert_eq!((found, why.as_str()), (status, reason), "{path} {headers:?}");
        client.send(post(INFER, &[], rows(1, "")));
        assert_eq!(client.answer().status, 200, "the connection goes on");
    }
    let mut client = server.connect();
    client.send(
        "POST /v2/models/none/infer HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 50000\r\n\r\n",
    );
    assert_eq!(client.answer().status, 404, "a client that waits isn't asked for what nobody wants");
}

#[test]
fn large_bodies_are_bounded_together() {
    let config = Config { max_body_bytes: 1 << 20, max_held_bytes: 1 << 20, ..Config::default() };
    let server = Server::with(config, &[("quick", model(0.1, None))]);
    let spaced = rows(1, "").replace("[1,10]", &format!("[1,{}10]", " ".repeat(600_000)));
    let held = |server: &Server| server.metric("punctual_io_held_bytes ");
    // An answer may be here before what its request held is given back: the next one would find no room.
    let room = || server.until("nothing is held any more", |server| held(server) == 0.0);
    let mut first = server.connect();
    let whole = post(INFER, &[], &spaced);
    first.send(&whole[..whole.len() - 1]);
    // Its bytes are on their way, and nobody else may be asked until they are there: it would be refused itself.
    server.until("the first is held", |server| held(server) >= 600_000.0);
    let answer = server.ask(post(INFER, &[], &spaced));
    assert_eq!((answer.status, answer.refusal().1.as_str()), (503, "queue_full"));
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(server.ask(post(INFER, &[], rows(1, ""))).status, 200, "small ones are taken all the same");
    first.send(&whole[whole.len() - 1..]);
    assert_eq!(first.answer().status, 200);
    room();
    assert_eq!(server.ask(post(INFER, &[], &spaced)).status, 200, "there is room again");
    room();
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    bomb.write_all(spaced.as_bytes()).unwrap();
    let bomb = bomb.finish().unwrap();
    assert_eq!(server.ask(post(INFER, &[("content-encoding", "gzip")], &bomb)).status, 200);
    room();
    first.send(&whole[..whole.len() - 1]);
    server.until("the first is held once more", |server| held(server) >= 600_000.0);
    let answer = server.ask(post(INFER, &[("content-encoding", "gzip")], &bomb));
    assert_eq!(answer.status, 503, "what is inflated counts as inflated");
}

#[test]
fn compressed_loads_count_as_inflated() {
    let config = Config { max_body_bytes: 1 << 20, max_held_bytes: 1 << 20, ..Config::default() };
    let server = Server::with(config, &[("quick", model(0.1, None))]);
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    bomb.write_all(format!("{{{}}}", " ".repeat(900_000)).as_bytes()).unwrap();
    let bomb = bomb.finish().unwrap();
    let load = || server.ask(post("/v2/repository/models/none/load", &[("content-encoding", "gzip")], &bomb));
    assert_ne!(load().status, 503, "alone it fits");
    // Its answer may be here before what it held is given back, and `first` would find no room.
    let held = |server: &Server| server.metric("punctual_io_held_bytes ");
    server.until("the load holds nothing any more", |server| held(server) == 0.0);
    let mut first = server.connect();
    first.send("POST /v2/models/quick/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 900001\r\n\r\n");
    first.send(vec![b' '; 900_000]);
    server.until("the first is held", |server| held(server) >= 900_000.0);
    let (status, reason, _) = load().refusal();
    assert_eq!((status, reason.as_str()), (503, "queue_full"), "what is inflated counts as inflated");
}
