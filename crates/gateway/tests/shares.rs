//! The shares of GPUs, over real sockets.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Client, Server, get, post};
use controller::Divisions;
use engine::EmulatedEngine;
use std::sync::Arc;

const PATH: &str = "/v2/shares";

#[test]
fn shares_are_read_and_changed() {
    let server = Server::start();
    let ask = |request: &[u8]| server.ask(request);
    let change = |body: &str| server.ask(post(PATH, &[], body));
    assert_eq!(ask(get(PATH).as_bytes()).text(), "{\"shares\":null,\"possible\":[]}\n");
    let (status, _, sentence) = change(r#"{"shares": [0.5, 0.5]}"#).refusal();
    assert!(status == 400 && sentence.contains("--devices"), "{sentence}");

    let shares = vec![vec![1.0], vec![0.5]];
    let engine = Arc::new(EmulatedEngine::default());
    server.controller.set_divisions(Divisions::new(engine, shares, vec![vec![1], vec![0]]));
    assert_eq!(ask(get(PATH).as_bytes()).text(), "{\"shares\":[1.0],\"possible\":[[1.0],[0.5]]}\n");
    let changed = change(r#"{"shares": [0.5]}"#);
    assert_eq!(changed.header("content-type"), Some("application/json"));
    assert_eq!(changed.text(), "{\"shares\":[0.5],\"possible\":[[1.0],[0.5]]}\n");
    assert_eq!(ask(get(PATH).as_bytes()).json()["shares"][0], 0.5);
    for wrong in ["half", "", "[[0.5]]", r#"{"shares": 0.5}"#, r#"{"shares": [1], "more": 0}"#] {
        let (status, reason, sentence) = change(wrong).refusal();
        assert_eq!((status, reason.as_str()), (400, "bad_input"), "{wrong}");
        assert!(sentence.starts_with("the request is not what the protocol asks for: "), "{sentence}");
    }
    assert_eq!(change(r#"{"shares": [0.7]}"#).refusal().2, "shares 0.7 were not prepared: there are 1 and 0.5");
}

#[test]
fn the_metrics_port_only_reads() {
    let server = Server::start();
    let shares = vec![vec![1.0], vec![0.5]];
    let engine = Arc::new(EmulatedEngine::default());
    server.controller.set_divisions(Divisions::new(engine, shares, vec![vec![1], vec![0]]));
    let mut client = Client::connect(server.metrics_port());
    let mut ask = |request: Vec<u8>| {
        client.send(request);
        client.answer()
    };
    let body = r#"{"shares": [0.5]}"#;
    for (path, status) in [("/shares", 405), ("/shares/0.5", 404), (PATH, 404)] {
        assert_eq!(ask(post(path, &[], body)).status, status, "{path}");
    }
    assert_eq!(ask(get("/shares").into()).json()["shares"][0], 1.0);
}
