//! The live controller with emulated devices, which take the time that a profile says and no more of the machine.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

mod common;
mod served;

use base::{ApplicationId, DataType, Duration, LatencyProfile, Reason};
use bytes::Bytes;
use controller::{
    Controller, ControllerConfig, DeviceConfig, ModelState, NewModel, Refusal, Reply, Submission, Tensor,
};
use engine::{EmulatedEngine, Emulation, Engine, ModelSource};
use std::sync::Arc;
use telemetry::Metrics;
use tokio::sync::oneshot;

use common::{until, wait};
use served::{ask, manage, write_model};

const PAGE: u64 = 1 << 20;

fn start(pages: u32, max_requests: u32) -> Controller {
    let scheduler = scheduler::Config { schedule_ahead: Duration::ZERO, ..scheduler::Config::clockwork() };
    let cells =
        vec![vec![DeviceConfig { name: "emulated:0".into(), index: 0, pages, pin: None, kind: 0, only_waits: true }]];
    Controller::start(
        ControllerConfig { scheduler, max_requests, page_bytes: PAGE, cells, online_profile_share: 1.0 },
        Metrics::new(),
    )
    .unwrap()
}

/// A model of 5 MB whose batches take `alpha * b + beta` ms.
fn emulated(alpha: u32, beta: u32) -> String {
    format!(
        "platform: \"emulated\" max_batch_size: 8
         parameters {{ key: \"emulated_latency\" value {{ string_value: \"alpha_ms={alpha},beta_ms={beta},load_ms=1\" }} }}
         parameters {{ key: \"weights_mb\" value {{ string_value: \"5\" }} }}"
    )
}

#[test]
fn answers_come_back_and_slots_are_free_again() {
    let repository = tempfile::tempdir().unwrap();
    write_model(repository.path(), "net", &emulated(1, 1));
    let controller = start(100, 64);
    let _manager = manage(&controller, repository.path());
    let answers: Vec<_> = (0..20).map(|_| ask(&controller, "net", Some(Duration::from_secs(60)))).collect();
    controller.drive();
    for answer in answers {
        let Reply::Outputs(outputs) = wait(answer) else { panic!("refused") };
        assert_eq!(outputs[0].shape[0], 1);
    }
    until("all slots to be free", || (controller.in_hand() == 0).then_some(()));
}

#[test]
fn inputs_come_while_the_batch_before_is_computed() {
    let repository = tempfile::tempdir().unwrap();
    let latency = "alpha_ms=5,beta_ms=20,load_ms=1,transfer_ms=3";
    let config = emulated(1, 1).replace("alpha_ms=1,beta_ms=1,load_ms=1", latency);
    assert!(config.contains(latency));
    write_model(repository.path(), "net", &config);
    let controller = start(100, 1024);
    let _manager = manage(&controller, repository.path());
    let hidden = || {
        let series = "punctual_device_transfer_seconds_total{device=\"emulated:0\",hidden=\"yes\"} ";
        let text = controller.metrics().render();
        text.lines().find_map(|line| line.strip_prefix(series)?.parse::<f64>().ok()).unwrap()
    };
    // The first batch has none before it, and the scheduler has to learn that there is something to hide. Only inputs that come behind a
    // batch that runs count as hidden; how long they are depends on the machine, and whether there are some doesn't.
    until("inputs that came while the batch before was computed", || {
        let answers: Vec<_> = (0..32).map(|_| ask(&controller, "net", Some(Duration::from_secs(600)))).collect();
        controller.drive();
        assert!(answers.into_iter().all(|answer| matches!(wait(answer), Reply::Outputs(_))));
        (hidden() > 0.0).then_some(())
    });
}

#[test]
fn what_cannot_be_met_is_refused_with_the_earliest_deadline() {
    let repository = tempfile::tempdir().unwrap();
    write_model(repository.path(), "slow", &emulated(10, 500));
    let controller = start(100, 64);
    let _manager = manage(&controller, repository.path());
    let asked_at = controller.now();
    let answer = ask(&controller, "slow", Some(Duration::from_millis(100)));
    controller.drive();
    let Reply::Refused(Refusal { reason: Reason::DeadlineUnreachable, earliest_at: Some(earliest_at), .. }) =
        wait(answer)
    else {
        panic!("not refused")
    };
    assert!(earliest_at >= asked_at + Duration::from_millis(510), "{earliest_at}");
}

#[test]
fn more_models_than_fit_are_all_served() {
    let repository = tempfile::tempdir().unwrap();
    for index in 0..6 {
        write_model(repository.path(), &format!("net{index}"), &emulated(0, 1));
    }
    // Two of 5 pages each.
    let controller = start(11, 64);
    let _manager = manage(&controller, repository.path());
    for round in 0..12 {
        let answer = ask(&controller, &format!("net{}", round % 6), Some(Duration::from_secs(60)));
        controller.drive();
        assert!(matches!(wait(answer), Reply::Outputs(_)), "round {round}");
    }
}

#[test]
fn a_full_table_refuses_at_once() {
    let repository = tempfile::tempdir().unwrap();
    write_model(repository.path(), "net", &emulated(1, 200));
    let controller = start(100, 2);
    let _manager = manage(&controller, repository.path());
    let answers: Vec<_> = (0..3).map(|_| ask(&controller, "net", None)).collect();
    controller.drive();
    let replies: Vec<Reply> = answers.into_iter().map(wait).collect();
    assert!(matches!(replies[2], Reply::Refused(Refusal { reason: Reason::QueueFull, .. })));
    assert!(matches!(replies[..2], [Reply::Outputs(_), Reply::Outputs(_)]));
}

#[test]
fn broken_models_are_named_and_the_others_go_on() {
    let repository = tempfile::tempdir().unwrap();
    write_model(repository.path(), "good", &emulated(1, 1));
    write_model(repository.path(), "unreadable", "max_batch_size: many");
    write_model(repository.path(), "nothing", "platform: \"emulated\"");
    let controller = start(100, 64);
    let _manager = manage(&controller, repository.path());
    let catalogue = controller.catalogue();
    for name in ["unreadable", "nothing"] {
        let entry = catalogue.models[name].default_version().unwrap();
        let ModelState::Broken(reason) = entry.state() else { panic!("{name} is not broken") };
        assert!(reason.len() > 20, "{name}: {reason}");
    }
    let answer = ask(&controller, "good", Some(Duration::from_secs(60)));
    controller.drive();
    assert!(matches!(wait(answer), Reply::Outputs(_)));
}

#[test]
fn models_come_and_go_while_serving() {
    let repository = tempfile::tempdir().unwrap();
    write_model(repository.path(), "first", &emulated(1, 1));
    let controller = start(100, 64);
    let _manager = manage(&controller, repository.path());
    write_model(repository.path(), "second", &emulated(1, 1));
    let ready = |name: &str| {
        let catalogue = controller.catalogue();
        catalogue.models.get(name).and_then(|model| model.default_version()?.serving()).is_some()
    };
    until("the new model", || ready("second").then_some(()));
    let answer = ask(&controller, "second", Some(Duration::from_secs(60)));
    controller.drive();
    assert!(matches!(wait(answer), Reply::Outputs(_)));
    std::fs::remove_dir_all(repository.path().join("first")).unwrap();
    until("the end of the removed model", || (!controller.catalogue().models.contains_key("first")).then_some(()));
    assert!(ready("second"));
}

#[test]
fn stopping_answers_what_is_queued_and_refuses_what_comes() {
    let repository = tempfile::tempdir().unwrap();
    write_model(repository.path(), "net", &emulated(1, 50));
    let controller = start(100, 64);
    let manager = manage(&controller, repository.path());
    let answer = ask(&controller, "net", Some(Duration::from_secs(60)));
    controller.drive();
    controller.refuse_new();
    let refused = ask(&controller, "net", Some(Duration::from_secs(60)));
    assert!(matches!(wait(refused), Reply::Refused(Refusal { reason: Reason::ShuttingDown, .. })));
    assert!(matches!(wait(answer), Reply::Outputs(_)));
    drop(manager);
    controller.stop();
}

#[test]
fn a_removed_model_leaves_nothing_behind() {
    let controller = start(100, 64);
    let profile = LatencyProfile::linear(Duration::ZERO, Duration::from_millis(1), &[1], Duration::ZERO).unwrap();
    let source = ModelSource {
        name: "net".into(),
        file: "net".into(),
        max_batch: Some(1),
        emulated: Some(Emulation { profile: profile.clone(), weight_bytes: 1 << 20 }),
        ..ModelSource::default()
    };
    let prepared = EmulatedEngine::default().prepare(&source).unwrap();
    let signature = Arc::new(prepared.signature().clone());
    let width = signature.inputs[0].dims[1];
    let new = NewModel {
        name: "net".into(),
        version: 1,
        prepared: Arc::clone(&prepared),
        signature,
        padding: None,
        profile,
        elsewhere: Vec::new(),
        fixed: Duration::ZERO,
        objective: None,
        fairness: scheduler::Fairness::default(),
    };
    let id = controller.add_model(new);
    let (reply, answer) = oneshot::channel();
    let data = Bytes::from(vec![0; width as usize * 4]);
    let inputs = vec![Tensor { datatype: DataType::Fp32, shape: vec![1, width], data }];
    let deadline_at = controller.now() + Duration::from_secs(60);
    controller.submit(Submission {
        model: id,
        inputs,
        rows: 1,
        deadline_at,
        priority: 0,
        application: ApplicationId::DEFAULT,
        size: None,
        trace: None,
        reply,
    });
    controller.drive();
    assert!(matches!(wait(answer), Reply::Outputs(_)));
    controller.remove_model(id);
    until("all to let go of the weights", || (Arc::strong_count(&prepared) == 1).then_some(()));
}

#[test]
fn a_request_that_is_taken_back_is_not_executed() {
    let repository = tempfile::tempdir().unwrap();
    write_model(repository.path(), "net", &emulated(1, 100));
    let controller = start(100, 64);
    let _manager = manage(&controller, repository.path());
    let first = ask(&controller, "net", Some(Duration::from_secs(60)));
    controller.drive();
    let (reply, receiver) = oneshot::channel();
    let catalogue = controller.catalogue();
    let served = catalogue.models["net"].default_version().unwrap().serving().unwrap();
    let submission = Submission {
        model: served.id,
        inputs: Vec::new(),
        rows: 1,
        deadline_at: controller.now() + Duration::from_secs(60),
        priority: 0,
        application: ApplicationId::DEFAULT,
        size: None,
        trace: None,
        reply,
    };
    // Its inputs are missing: executing it would fail, loudly.
    let ticket = controller.submit(submission).unwrap();
    controller.cancel(ticket);
    controller.drive();
    assert!(matches!(wait(receiver), Reply::Refused(_)));
    assert!(matches!(wait(first), Reply::Outputs(_)));
    let failed = "punctual_actions_total{action=\"execution\",device=\"emulated:0\",result=\"failed\"} 0";
    assert!(controller.metrics().render().contains(failed));
}
