//! Models are published as their files come, and withdrawn as they go.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

mod common;

use common::{ask, manage, until, wait, write_model};
use controller::{Controller, ControllerConfig, DeviceConfig, ExecutionLimits, Reply};
use models::{ModelState, PublishOrder, Registry};
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
        limits: ExecutionLimits::default(),
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

/// What a client hears that loads a model as the repository has it.
fn load(registry: &Registry, model: &str) -> Result<(), String> {
    let order = PublishOrder { model: model.to_owned(), ..PublishOrder::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(registry.control().unwrap().publish(order)).map_err(|error| error.to_string())
}

#[test]
fn a_load_serves_the_versions_that_are_there_of_those_that_the_policy_names() {
    let repository = tempfile::tempdir().unwrap();
    let controller = start();
    let (registry, _manager) = manage(&controller, repository.path());
    let named = |versions: &str| format!("{EMULATED} version_policy {{ specific {{ versions: [ {versions} ] }} }}");
    write_model(repository.path(), "net", &named("1, 7"));
    assert_eq!(load(&registry, "net"), Ok(()));
    let catalogue = registry.catalogue();
    let versions = &catalogue.models["net"].versions;
    assert!(versions[&1].serving().is_some());
    let ModelState::Broken(reason) = versions[&7].state() else { panic!("{:?}", versions[&7]) };
    assert!(reason.starts_with("version_policy names version 7, but there is no "), "{reason}");
    write_model(repository.path(), "none", &named("7, 9"));
    let refused = load(&registry, "none").unwrap_err();
    assert!(refused.contains("names version 7") && refused.contains("names version 9"), "{refused}");
}
