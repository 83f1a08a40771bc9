//! Deadlines, overload, clients that go away, and the end of the server, over real sockets.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Client, PATIENCE, Server, get, model, post, rows};
use gateway::Config;
use std::time::{Duration, Instant};

const SLOW: &str = "/v2/models/slow/infer";
const STRICT: &str = "/v2/models/strict/infer";

fn ended(reason: &str, model: &str) -> String {
    let outcome = if reason == "cancelled" { "cancelled" } else { "refused" };
    format!(r#"punctual_requests_total{{model="{model}",outcome="{outcome}",reason="{reason}",version="1"}}"#)
}

#[test]
fn a_deadline_that_cannot_be_met_is_refused_with_the_earliest_that_could() {
    let server = Server::start();
    let by_parameter = server.ask(post(SLOW, &[], rows(1, r#""timeout":50000"#)));
    let by_header = server.ask(post(SLOW, &[("Punctual-Timeout-Us", "50000")], rows(1, "")));
    let smallest = server.ask(post(SLOW, &[("punctual-timeout-us", "50000")], rows(1, r#""timeout":60000000"#)));
    for answer in [by_parameter, by_header, smallest] {
        let (status, reason, sentence) = answer.refusal();
        assert_eq!((status, reason.as_str()), (504, "deadline_unreachable"));
        assert!(sentence.contains("allow it more time"), "{sentence}");
        let earliest = answer.json()["earliest_deadline_us"].as_u64().unwrap();
        assert!(earliest >= 200_000, "a batch takes 200 ms, so {earliest} us can't be");
    }
    assert_eq!(server.metric(&ended("deadline_unreachable", "slow")), 3.0);
    assert_eq!(server.ask(post(SLOW, &[], rows(1, r#""timeout":20000000"#))).status, 200);
    assert_eq!(server.ask(post(SLOW, &[], rows(1, r#""timeout":0"#))).status, 200, "0 is no timeout, as in Triton");
}

#[test]
fn a_models_objective_is_the_default_deadline() {
    let models = [("strict", model(300.0, Some(100)))];
    let server = Server::with(Config::default(), &models);
    assert_eq!(server.ask(post(STRICT, &[], rows(1, ""))).refusal().1, "deadline_unreachable");
    let more = server.ask(post(STRICT, &[], rows(1, r#""timeout":60000000"#)));
    assert_eq!(more.refusal().1, "deadline_unreachable", "the smallest counts, so a request can't ask for more");
}

#[test]
fn what_is_behind_others_is_refused_as_overload_with_retry_after() {
    let server = Server::start();
    // Six batches of 8 rows, 200 ms each: five can't be done within a second, however fast this machine is. On a slow
    // one fewer are, perhaps none: then they are asked again.
    let (mut done, mut overloaded) = (0, 0);
    let give_up_at = Instant::now() + PATIENCE;
    while done == 0 || overloaded == 0 {
        assert!(Instant::now() < give_up_at, "{done} were done and {overloaded} refused as overload");
        let mut clients: Vec<Client> = (0..6).map(|_| server.connect()).collect();
        for client in &mut clients {
            client.send(post(SLOW, &[], rows(8, r#""timeout":1000000"#)));
        }
        let answers: Vec<_> = clients.iter_mut().map(Client::answer).collect();
        let in_time = answers.iter().filter(|answer| answer.status == 200).count();
        assert!(in_time <= 4, "{in_time} of 6 were done within a second");
        done += in_time;
        for refused in answers.iter().filter(|answer| answer.status != 200) {
            let (status, reason, _) = refused.refusal();
            match reason.as_str() {
                "overloaded" => {
                    overloaded += 1;
                    assert_eq!((status, refused.header("retry-after")), (503, Some("1")));
                    assert!(refused.json()["earliest_deadline_us"].as_u64().unwrap() > 1_000_000);
                }
                "deadline_missed" => assert_eq!(status, 504),
                other => panic!("{status} {other}"),
            }
        }
    }
}

#[test]
fn a_client_that_goes_away_takes_its_request_along() {
    let server = Server::start();
    let mut first = server.connect();
    first.send(post(SLOW, &[], rows(8, "")));
    server.until("the first one is in hand", |server| server.controller.in_hand() == 1);
    let mut second = server.connect();
    second.send(post(SLOW, &[], rows(8, "")));
    server.until("the second one is in hand", |server| server.controller.in_hand() == 2);
    drop(second);
    server.until("the second one is cancelled", |server| server.metric(&ended("cancelled", "slow")) == 1.0);
    assert_eq!(first.answer().status, 200);
    server.until("nothing is in hand", |server| server.controller.in_hand() == 0);
    // The second one was never executed: one batch of eight is all there was.
    assert_eq!(server.metric(r#"punctual_batch_rows_sum{model="slow",version="1"}"#), 8.0);
    assert_eq!(server.metric("punctual_requests_in_flight"), 0.0);
}

#[test]
fn a_pipelining_client_that_goes_away_is_noticed_when_its_turn_comes() {
    let server = Server::start();
    let mut client = server.connect();
    client.send([post(SLOW, &[], rows(8, "")), post(SLOW, &[], rows(8, ""))].concat());
    server.until("the first one is in hand", |server| server.controller.in_hand() == 1);
    drop(client);
    server.until("nothing is in hand", |server| server.controller.in_hand() == 0);
    server.until("the connection is closed", |server| {
        server.metric(r#"punctual_io_connections{protocol="http"}"#) == 0.0
    });
}

#[test]
fn thousands_of_idle_connections_disturb_nobody() {
    let server = Server::start();
    let idle: Vec<Client> = (0..3000).map(|_| server.connect()).collect();
    server.until("all are open", |server| server.metric(r#"punctual_io_connections{protocol="http"}"#) == 3000.0);
    assert_eq!(server.ask(post(STRICT, &[], rows(1, ""))).status, 200);
    drop(idle);
    server.until("all are closed", |server| server.metric(r#"punctual_io_connections{protocol="http"}"#) == 0.0);
}

#[test]
fn one_connection_too_many_is_told_so() {
    let config = Config { max_connections: 2, probe_connections: 0, ..Config::default() };
    let server = Server::with(config, &[("quick", model(0.1, None))]);
    let mut open = [server.connect(), server.connect()];
    for client in &mut open {
        client.send(get("/v2/health/live"));
        assert_eq!(client.answer().status, 200);
    }
    let mut third = server.connect();
    let (status, reason, sentence) = third.answer().refusal();
    assert_eq!((status, reason.as_str()), (503, "too_many_connections"));
    assert_eq!(sentence, "the server has 2 connections over HTTP, the most that it takes: try again later");
    assert!(third.is_closed());
    drop(open);
    server.until("there is room again", |server| server.metric(r#"punctual_io_connections{protocol="http"}"#) == 0.0);
    assert_eq!(server.ask(get("/v2/health/live")).status, 200);
}

#[test]
fn probes_are_answered_when_all_connections_are_taken() {
    let config = Config { max_connections: 2, ..Config::default() };
    let server = Server::with(config, &[("quick", model(0.1, None))]);
    let infer = post("/v2/models/quick/infer", &[], rows(1, ""));
    let mut busy = [server.connect(), server.connect()];
    for client in &mut busy {
        client.send(&infer[..infer.len() - 1]);
    }
    server.until("both are busy", |server| server.metric("punctual_requests_in_flight") == 2.0);
    let mut third = server.connect();
    for path in ["/livez", "/readyz", "/v2/health/live"] {
        third.send(get(path));
        assert_eq!(third.answer().status, 200, "{path}");
    }
    third.send(&infer);
    let refusal = third.answer().refusal();
    assert_eq!((refusal.0, refusal.1.as_str()), (503, "too_many_connections"));
    for client in &mut busy {
        client.send(&infer[infer.len() - 1..]);
        assert_eq!(client.answer().status, 200);
    }
}

#[test]
fn a_connection_that_idles_makes_room_for_another() {
    let config = Config { max_connections: 2, ..Config::default() };
    let server = Server::with(config, &[("quick", model(0.1, None))]);
    let infer = post("/v2/models/quick/infer", &[], rows(1, ""));
    let mut idle = [server.connect(), server.connect()];
    for client in &mut idle {
        client.send(get("/livez"));
        assert_eq!(client.answer().status, 200);
    }
    // They idle for too short a time first.
    server.until("there is room", |server| server.ask(&infer).status == 200);
    assert!(idle[0].is_closed());
}

#[test]
fn one_client_does_not_get_all_connections() {
    let config = Config { max_client_connections: 2, ..Config::default() };
    let server = Server::with(config, &[("quick", model(0.1, None))]);
    let open = [server.connect(), Client::connect(server.grpc())];
    let mut third = server.connect();
    let (status, reason, sentence) = third.answer().refusal();
    assert_eq!((status, reason.as_str()), (429, "client_limit"));
    assert_eq!(sentence, "this client has 2 connections, the most that one client may have: use fewer, or close some");
    drop(open);
    server.until("there is room again", |server| {
        let mut client = server.connect();
        client.try_send(get("/livez")).is_ok() && client.answer().status == 200
    });
}

#[test]
fn a_body_of_a_byte_now_and_then_is_closed() {
    let config = Config { body_timeout: Duration::from_secs(1), least_rate: 1000, ..Config::default() };
    let server = Server::with(config, &[("quick", model(0.1, None))]);
    let mut client = server.connect();
    client.send("POST /v2/models/quick/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n");
    let closed = (0..150).any(|_| {
        std::thread::sleep(Duration::from_millis(200));
        client.try_send(" ").is_err()
    });
    assert!(closed, "it moves, but too slowly");
}

#[test]
fn connections_that_stand_still_are_closed() {
    let config = Config {
        header_timeout: Duration::from_secs(1),
        body_timeout: Duration::from_secs(1),
        idle_timeout: Duration::from_secs(1),
        ..Config::default()
    };
    let server = Server::with(config, &[("quick", model(0.1, None))]);
    let mut idle = server.connect();
    let mut half_a_head = server.connect();
    half_a_head.send("POST /v2/mod");
    let mut half_a_body = server.connect();
    let whole = post("/v2/models/quick/infer", &[], rows(1, ""));
    half_a_body.send(&whole[..whole.len() - 10]);
    for client in [&mut idle, &mut half_a_head, &mut half_a_body] {
        assert!(client.is_closed());
    }
    // It is counted a moment after the connection is closed.
    server.until("the half body was a request", |server| server.metric(&ended("cancelled", "quick")) == 1.0);
}

#[test]
fn shutdown_answers_what_is_in_flight() {
    let mut server = Server::start();
    let mut busy = server.connect();
    busy.send(post(SLOW, &[], rows(8, "")));
    let mut idle = server.connect();
    idle.send(get("/v2/health/ready"));
    assert_eq!(idle.answer().status, 200);
    server.until("it is in hand", |server| server.controller.in_hand() == 1);
    let address = server.http();
    let gateway = server.gateway.take().unwrap();
    gateway.drain();
    idle.send(get("/v2/health/ready"));
    let (status, reason, _) = idle.answer().refusal();
    assert_eq!((status, reason.as_str()), (503, "not_ready"), "readiness turns first, and connections stay");
    gateway.shutdown();
    let answer = busy.answer();
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    assert!(busy.is_closed() && idle.is_closed());
    assert!(std::net::TcpStream::connect(address).is_err(), "nobody listens any more");
}

/// Long enough for a shutdown that doesn't wait to be over.
const A_WHILE: Duration = Duration::from_secs(1);

#[test]
fn shutdown_waits_for_answers_that_are_being_written() {
    let mut server = Server::start();
    // The id comes back, so the answer is as large as one likes: more than sockets hold.
    let body = rows(1, "").replace(r#""id":"i""#, &format!(r#""id":"{}""#, "i".repeat(20_000_000)));
    let mut client = server.connect();
    client.send(post("/v2/models/quick/infer", &[], body));
    assert_eq!(client.byte(), b'H');
    let gateway = server.gateway.take().unwrap();
    let shutdown = std::thread::spawn(move || gateway.shutdown());
    std::thread::sleep(A_WHILE);
    assert!(!shutdown.is_finished());
    let answer = client.answer();
    assert_eq!((answer.status, answer.json()["id"].as_str().unwrap().len()), (200, 20_000_000));
    shutdown.join().unwrap();
}

#[test]
fn grpc_connections_that_stand_still_are_closed() {
    let config = Config {
        header_timeout: Duration::from_secs(1),
        body_timeout: Duration::from_secs(1),
        idle_timeout: Duration::from_secs(1),
        ..Config::default()
    };
    let server = Server::with(config, &[("quick", model(0.1, None))]);
    const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
    let path = b"/inference.GRPCInferenceService/ModelInfer";
    let fields = [&[0x83, 0x86, 0x04, path.len() as u8], &path[..], b"\x0f\x10\x10application/grpc"].concat();
    let call = [GREETING, &[0, 0, fields.len() as u8, 1, 4, 0, 0, 0, 1], &fields].concat();
    for sent in [b"".as_slice(), b"PRI * HTTP/2.0\r\n", GREETING, &call] {
        let mut client = Client::connect(server.grpc());
        client.send(sent);
        let said = client.rest();
        // The head of a frame that is the whole answer to the first call.
        let answered = said.windows(6).any(|part| part == [1, 5, 0, 0, 0, 1]);
        assert_eq!(answered, sent == call, "a call without its message is told so: {said:?}");
    }
    server.until("all are closed", |server| server.metric(r#"punctual_io_connections{protocol="grpc"}"#) == 0.0);
}

#[test]
fn grpc_connections_take_no_room_from_http() {
    let config = Config { max_connections: 1, probe_connections: 0, ..Config::default() };
    let server = Server::with(config, &[("quick", model(0.1, None))]);
    let _first = Client::connect(server.grpc());
    server.until("it is open", |server| server.metric(r#"punctual_io_connections{protocol="grpc"}"#) == 1.0);
    assert!(Client::connect(server.grpc()).is_closed());
    assert_eq!(server.ask(get("/v2/health/live")).status, 200);
}

#[test]
fn a_port_in_use_is_a_sentence() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start();
    let config = Config { http: taken.local_addr().ok(), grpc: None, metrics: None, ..Config::default() };
    let error =
        gateway::Gateway::start(config, server.controller.clone(), server.registry.clone(), server.metrics.clone())
            .unwrap_err()
            .to_string();
    assert!(error.contains("for http: "), "{error}");
    assert!(error.ends_with("; another process has the port: end it or choose another with --http-port"), "{error}");
}
