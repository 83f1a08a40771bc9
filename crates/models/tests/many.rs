//! Many models on many emulated devices: what grows with both, or takes something for each device, doesn't fit.
//!
//! One test alone in its process: it counts threads.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

mod common;

use common::{ask, manage, wait, write_model};
use controller::{Controller, ControllerConfig, DeviceConfig, ExecutionLimits, Reply};
use telemetry::Metrics;

const DEVICES: u32 = 500;
const MODELS: u32 = 200;

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn five_hundred_emulated_devices_take_a_handful_of_threads_and_a_start_a_handful_of_catalogues() {
    let before = threads();
    let device = |index| DeviceConfig {
        name: format!("emulated:{index}"),
        index,
        pages: 4,
        pin: None,
        kind: 0,
        only_waits: true,
    };
    let config = ControllerConfig {
        scheduler: scheduler::Config::default(),
        max_requests: 4096,
        page_bytes: 1 << 20,
        cells: vec![(0..DEVICES).map(device).collect()],
        online_profile_share: 0.0,
        limits: ExecutionLimits::default(),
    };
    let controller = Controller::start(config, Metrics::new()).unwrap();
    let started = threads() - before;
    assert!(started <= 3, "{started} threads for the timer, the watchdog and {DEVICES} devices");

    let repository = tempfile::tempdir().unwrap();
    let text = "platform: \"emulated\" max_batch_size: 4
        parameters { key: \"emulated_latency\" value { string_value: \"alpha_ms=1,beta_ms=1,load_ms=1\" } }";
    (0..MODELS).for_each(|index| write_model(repository.path(), &format!("m{index}"), text));
    let (registry, manager) = manage(&controller, repository.path());
    let catalogues = registry.generation();
    assert!(catalogues <= 2, "{catalogues} catalogues for {MODELS} models");

    let replies: Vec<_> = (0..MODELS).map(|index| ask(&controller, &registry, &format!("m{index}"))).collect();
    controller.drive();
    for reply in replies {
        let reply = wait(reply);
        assert!(matches!(reply, Reply::Outputs(_)), "{reply:?}");
    }
    drop(manager);
    controller.stop();
}
