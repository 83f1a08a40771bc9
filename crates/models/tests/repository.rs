//! Models are published as their files come, and withdrawn as they go.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

mod common;

use common::{ask, manage, until, wait, write_model};
use controller::{Controller, ControllerConfig, DeviceConfig, Reply};
use models::ModelState;
use telemetry::Metrics;

const EMULATED: &str = "platform: \"emulated\" max_batch_size: 8
    parameters { key: \"emulated_latency\" value { string_value: \"alpha_ms=1,beta_ms=1,load_ms=1\" } }";

fn start() -> Controller {
    let device = DeviceConfig { name: "emulated:0".into(), index: 0, pages: 100, pin: None, kind: 0, only_waits: true };
    let config = ControllerConfig {
        scheduler: scheduler::Config::default(),
        max_requests: 64,
        page_bytes: 1 << 20,
        cells: vec![vec![device]],
        online_profile_share: 0.0,
    };
    Controller::start(config, Metrics::new()).unwrap()
}

#[test]
fn broken_models_are_named_and_the_others_go_on() {
    let repository = tempfile::tempdir().unwrap();
    write_model(repository.path(), "good", EMULATED);
    write_model(repository.path(), "unreadable", "max_batch_size: many");
    write_model(repository.path(), "nothing", "platform: \"emulated\"");
    let controller = start();
    let (registry, _manager) = manage(&controller, repository.path());
    let catalogue = registry.catalogue();
    for name in ["unreadable", "nothing"] {
        let entry = catalogue.models[name].default_version().unwrap();
        let ModelState::Broken(reason) = entry.state() else { panic!("{name} is not broken") };
        assert!(reason.len() > 20, "{name}: {reason}");
    }
    let answer = ask(&controller, &registry, "good");
    controller.drive();
    assert!(matches!(wait(answer), Reply::Outputs(_)));
}

#[test]
fn models_come_and_go_while_serving() {
    let repository = tempfile::tempdir().unwrap();
    write_model(repository.path(), "first", EMULATED);
    let controller = start();
    let (registry, _manager) = manage(&controller, repository.path());
    write_model(repository.path(), "second", EMULATED);
    let ready = |name: &str| {
        let catalogue = registry.catalogue();
        catalogue.models.get(name).and_then(|model| model.default_version()?.serving()).is_some()
    };
    until("the new model", || ready("second"));
    let answer = ask(&controller, &registry, "second");
    controller.drive();
    assert!(matches!(wait(answer), Reply::Outputs(_)));
    std::fs::remove_dir_all(repository.path().join("first")).unwrap();
    until("the end of the removed model", || !registry.catalogue().models.contains_key("first"));
    assert!(ready("second"));
}
