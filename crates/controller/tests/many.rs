//! Many models on many emulated devices: what grows with both, or takes something for each device, doesn't fit.
//!
//! One test alone in its process: it counts threads.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

use base::{ApplicationId, DataType, Timestamp};
use bytes::Bytes;
use controller::{Controller, ControllerConfig, DeviceConfig, Manager, ManagerConfig, Reply, Submission, Tensor};
use engine::EmulatedEngine;
use std::sync::Arc;
use telemetry::Metrics;
use tokio::sync::oneshot;

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
    };
    let controller = Controller::start(config, Metrics::new()).unwrap();
    let started = threads() - before;
    assert!(started <= 2, "{started} threads for the timer and {DEVICES} devices");

    let repository = tempfile::tempdir().unwrap();
    let text = "platform: \"emulated\" max_batch_size: 4
        parameters { key: \"emulated_latency\" value { string_value: \"alpha_ms=1,beta_ms=1,load_ms=1\" } }";
    for index in 0..MODELS {
        let folder = repository.path().join(format!("m{index}"));
        std::fs::create_dir_all(folder.join("1")).unwrap();
        std::fs::write(folder.join("config.pbtxt"), text).unwrap();
    }
    let settings = ManagerConfig::new(repository.path(), Arc::new(EmulatedEngine::default()));
    let manager = Manager::start(controller.clone(), settings).unwrap();
    manager.wait_until_started();
    let catalogues = controller.catalogue_generation();
    assert!(catalogues <= 2, "{catalogues} catalogues for {MODELS} models");

    let replies: Vec<_> = (0..MODELS).map(|index| ask(&controller, &format!("m{index}"))).collect();
    controller.drive();
    for reply in replies {
        let reply = reply.blocking_recv().expect("every request gets an answer (P1)");
        assert!(matches!(reply, Reply::Outputs(_)), "{reply:?}");
    }
    drop(manager);
    controller.stop();
}

fn ask(controller: &Controller, model: &str) -> oneshot::Receiver<Reply> {
    let (reply, receiver) = oneshot::channel();
    let catalogue = controller.catalogue();
    let served = catalogue.models[model].default_version().unwrap().serving().unwrap();
    let width = served.signature.inputs[0].dims[1];
    let data = Bytes::from(vec![0; width as usize * 4]);
    controller.submit(Submission {
        model: served.id,
        inputs: vec![Tensor { datatype: DataType::Fp32, shape: vec![1, width], data }],
        rows: 1,
        deadline_at: Timestamp::NEVER,
        priority: 0,
        application: ApplicationId::DEFAULT,
        size: None,
        trace: None,
        reply,
    });
    receiver
}
