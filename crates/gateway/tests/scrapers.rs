//! The metrics' port, with clients that don't read what they ask for.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Client, Server, get, model};
use gateway::Config;
use std::time::Duration;

/// As many connections as the port takes, each of which asks for more than the system buffers and reads nothing.
fn deaf_clients(server: &Server) -> Vec<Client> {
    let many = get("/metrics").repeat(2000);
    let deaf = || {
        let mut client = Client::connect(server.metrics_port());
        client.send(&many);
        client
    };
    (0..64).map(|_| deaf()).collect()
}

#[test]
fn scrapers_that_do_not_read_do_not_block_the_others() {
    let long = Duration::from_secs(600);
    let config = Config { header_timeout: long, body_timeout: long, ..Config::default() };
    let server = Server::with(config, &[("quick", model(0.1, None))]);
    let _deaf = deaf_clients(&server);
    let silent: Vec<_> = (0..64).map(|_| Client::connect(server.metrics_port())).collect();
    for path in ["/metrics", "/scaling"] {
        let mut client = Client::connect(server.metrics_port());
        client.send(get(path));
        assert_eq!(client.answer().status, 200);
    }
    drop(silent);
}

#[test]
fn a_scraper_that_does_not_read_is_cut_off() {
    let config = Config { body_timeout: Duration::from_secs(1), ..Config::default() };
    let server = Server::with(config, &[("quick", model(0.1, None))]);
    let mut client = Client::connect(server.metrics_port());
    // Fails once the server has closed the connection, which it does though there is always more to read.
    let asks = get("/metrics").repeat(1000);
    let cut_off = (0..10_000).any(|_| client.try_send(&asks).is_err());
    assert!(cut_off);
}
