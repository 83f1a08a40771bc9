//! Emulated models from a repository, and requests for them.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

use base::{ApplicationId, DataType, Duration, Timestamp};
use bytes::Bytes;
use controller::{Controller, Manager, ManagerConfig, Reply, Submission, Tensor};
use engine::EmulatedEngine;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::oneshot;

pub fn write_model(repository: &Path, name: &str, config: &str) {
    std::fs::create_dir_all(repository.join(name).join("1")).unwrap();
    std::fs::write(repository.join(name).join("config.pbtxt"), config).unwrap();
}

pub fn manage(controller: &Controller, repository: &Path) -> Manager {
    let manager = Manager::start(
        controller.clone(),
        ManagerConfig::new(repository.to_owned(), Arc::new(EmulatedEngine::default())),
    )
    .unwrap();
    manager.wait_until_started();
    manager
}

/// A request of one row of the right width.
pub fn ask(controller: &Controller, model: &str, within: Option<Duration>) -> oneshot::Receiver<Reply> {
    let (reply, receiver) = oneshot::channel();
    let catalogue = controller.catalogue();
    let served = catalogue.models[model].default_version().unwrap().serving().unwrap();
    let width = served.signature.inputs[0].dims[1];
    let data = Bytes::from(vec![0; width as usize * 4]);
    controller.submit(Submission {
        model: served.id,
        inputs: vec![Tensor { datatype: DataType::Fp32, shape: vec![1, width], data }],
        rows: 1,
        deadline_at: within.map_or(Timestamp::NEVER, |span| controller.now() + span),
        priority: 0,
        application: ApplicationId::DEFAULT,
        size: None,
        trace: None,
        reply,
    });
    receiver
}
