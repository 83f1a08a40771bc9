//! The advice on the number of devices, over real sockets.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use base::Duration;
use common::{Client, Server, get, model, post, rows};
use gateway::Config;
use planner::advice::AdvisorConfig;

fn ask(server: &Server) -> serde_json::Value {
    let mut client = Client::connect(server.metrics_port());
    client.send(get("/scaling"));
    let answer = client.answer();
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    answer.json()
}

fn server(scaling: AdvisorConfig) -> Server {
    Server::with(Config { scaling, ..Config::default() }, &[("slow", model(200.0, None))])
}

#[test]
fn lost_requests_ask_for_devices() {
    // Two samples are enough, and all of an hour is looked at: what is said doesn't depend on how long this test takes.
    let config = AdvisorConfig {
        window: Duration::from_secs(3600),
        settle: Duration::from_nanos(1),
        min_bad: 1,
        ..AdvisorConfig::default()
    };
    let server = server(config);
    let before = ask(&server);
    assert_eq!((before["advice"].as_str(), before["devices"].as_u64()), (Some("enough"), Some(1)), "{before}");
    assert_eq!((before["requests"].as_u64(), before["wanted"].as_u64()), (Some(0), Some(1)), "{before}");

    // Six batches of 200 ms on one device: at least two are not done within a second.
    let mut clients: Vec<Client> = (0..6).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send(post("/v2/models/slow/infer", &[], rows(8, r#""timeout":1000000"#)));
    }
    let answers: Vec<_> = clients.iter_mut().map(Client::answer).collect();
    // What can't be met at all isn't a matter of devices.
    server.ask(post("/v2/models/slow/infer", &[], rows(1, r#""timeout":1000"#)));
    let done = answers.iter().filter(|answer| answer.status == 200).count() as u64;
    let lost = answers.iter().filter(|a| a.status != 200 && a.refusal().1 != "deadline_unreachable").count() as u64;
    assert!(lost >= 1, "{answers:?}");

    let after = ask(&server);
    assert_eq!((after["requests"].as_u64(), after["bad"].as_u64()), (Some(done + lost), Some(lost)), "{after}");
    let rate = lost as f64 / (done + lost) as f64;
    assert_eq!(after["advice"].as_str(), Some("add"), "{after}");
    // One device: r / (1 - r) is the lost ones for each done one; nothing done counts as a tenth.
    let more = if rate > 0.9 { 9 } else { lost.div_ceil(done) };
    assert_eq!((after["change"].as_u64(), after["wanted"].as_u64()), (Some(more), Some(1 + more)), "{after}");
    assert!(after["sentence"].as_str().unwrap().starts_with(&format!("add {more} to the 1 devices: ")), "{after}");
    assert_eq!(server.metric("punctual_scaling_devices_wanted"), 1.0 + more as f64);
    assert_eq!(server.metric("punctual_devices"), 1.0);
    assert!((server.metric("punctual_scaling_bad_ratio") - rate).abs() < 1e-9);
}

#[test]
fn idle_devices_may_go() {
    let config = AdvisorConfig {
        window: Duration::from_millis(20),
        settle: Duration::from_millis(1),
        min_devices: 0,
        ..AdvisorConfig::default()
    };
    let server = server(config);
    server.until("the advice to remove the idle device", |server| ask(server)["advice"] == "remove");
    let advice = ask(&server);
    assert_eq!((advice["change"].as_i64(), advice["idle_fraction"].as_f64()), (Some(-1), Some(1.0)), "{advice}");
}

#[test]
fn it_is_only_read() {
    let server = server(AdvisorConfig::default());
    let mut client = Client::connect(server.metrics_port());
    client.send(post("/scaling", &[], ""));
    let (status, reason, sentence) = client.answer().refusal();
    assert_eq!((status, reason.as_str()), (405, "method_not_allowed"));
    assert_eq!(sentence, "/scaling is read with GET, not POST");
}

#[test]
fn advice_is_given_without_anybody_asking() {
    let server = server(AdvisorConfig::default());
    server.until("the number of devices in the metrics", |server| server.metric("punctual_devices") == 1.0);
}
