//! The shares of GPUs on the metrics' port, over real sockets.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Client, Server, get, post};
use controller::Divisions;
use engine::EmulatedEngine;
use std::sync::Arc;

#[test]
fn shares_are_read_and_changed() {
    let server = Server::start();
    let mut client = Client::connect(server.metrics_port());
    let mut ask = |request: Vec<u8>| {
        client.send(request);
        client.answer()
    };
    assert_eq!(ask(get("/shares").into()).text(), "{\"shares\":null,\"possible\":[]}\n");
    let (status, _, sentence) = ask(post("/shares/0.5,0.5", &[], "")).refusal();
    assert!(status == 400 && sentence.contains("--devices"), "{sentence}");

    let shares = vec![vec![1.0], vec![0.5]];
    let engine = Arc::new(EmulatedEngine::default());
    server.controller.set_divisions(Divisions::new(engine, shares, vec![vec![1], vec![0]]));
    assert_eq!(ask(get("/shares").into()).text(), "{\"shares\":[1],\"possible\":[[1],[0.5]]}\n");
    assert_eq!(ask(post("/shares/0.5", &[], "")).text(), "{\"shares\":[0.5],\"possible\":[[1],[0.5]]}\n");
    assert_eq!(ask(get("/shares").into()).json()["shares"][0], 0.5);
    assert_eq!(ask(post("/shares/0%2E5", &[], "")).status, 200);
    assert_eq!(
        ask(post("/shares/half", &[], "")).refusal().2,
        "\"half\" are no shares: write them as in POST /shares/0.25,0.75"
    );
    assert_eq!(ask(post("/shares/0.7", &[], "")).refusal().2, "shares 0.7 were not prepared: there are 1 and 0.5");
}
