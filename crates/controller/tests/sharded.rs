//! The live controller with model shards and the ranker in threads of their own, on emulated devices.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

use base::{ApplicationId, DataType, Duration, LatencyProfile, ModelId, Timestamp};
use bytes::Bytes;
use controller::{
    Controller, ControllerConfig, DeviceConfig, Manager, ManagerConfig, ModelState, NewModel, Refusal, Reply, Spread,
    Submission, Tensor,
};
use engine::{EmulatedEngine, Emulation, Engine, ModelSource, Prepared};
use std::path::Path;
use std::sync::Arc;
use telemetry::Metrics;
use tokio::sync::oneshot;

const PAGE: u64 = 1 << 20;

fn start(shards: u32, devices: u32, pages: u32) -> Controller {
    let device = |index| DeviceConfig { name: format!("emulated:{index}"), index, pages, pin: None, kind: 0 };
    let config = ControllerConfig {
        online_profile_share: 0.0,
        scheduler: scheduler::Config::clockwork(),
        max_requests: 4096,
        page_bytes: PAGE,
        devices: (0..devices).map(device).collect(),
    };
    Controller::start_sharded(config, Spread { shards, pin: None }, Metrics::new()).unwrap()
}

/// A model of one page whose batches of up to 8 take `0.5 ms * b + 1 ms`.
fn add_model(controller: &Controller, name: &str) -> (ModelId, Arc<dyn Prepared>) {
    let sizes: Vec<u32> = (1..=8).collect();
    let micros = Duration::from_micros;
    let profile = LatencyProfile::linear(micros(500), micros(1_000), &sizes, micros(100)).unwrap();
    let source = ModelSource {
        name: name.into(),
        file: name.into(),
        max_batch: Some(8),
        emulated: Some(Emulation { profile: profile.clone(), weight_bytes: PAGE }),
        ..ModelSource::default()
    };
    let prepared = EmulatedEngine::default().prepare(&source).unwrap();
    let signature = Arc::new(prepared.signature().clone());
    let model = NewModel {
        name: name.into(),
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
    (controller.add_model(model), prepared)
}

fn ask(
    controller: &Controller,
    model: ModelId,
    prepared: &dyn Prepared,
    deadline_at: Timestamp,
) -> oneshot::Receiver<Reply> {
    let (reply, receiver) = oneshot::channel();
    let width = prepared.signature().inputs[0].dims[1];
    let data = Bytes::from(vec![0; width as usize * 4]);
    let inputs = vec![Tensor { datatype: DataType::Fp32, shape: vec![1, width], data }];
    controller.submit(Submission {
        model,
        inputs,
        rows: 1,
        deadline_at,
        priority: 0,
        application: ApplicationId::DEFAULT,
        size: None,
        trace: None,
        reply,
    });
    receiver
}

fn wait(receiver: oneshot::Receiver<Reply>) -> Reply {
    receiver.blocking_recv().expect("every request gets an answer (P1)")
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !condition() {
        assert!(std::time::Instant::now() < patience, "{what}: not within a minute");
        std::thread::yield_now();
    }
}

#[test]
fn every_request_of_every_model_is_answered_once_whatever_the_number_of_shards() {
    for shards in [1, 2, 3] {
        let controller = start(shards, 3, 8);
        let models: Vec<_> = (0..5).map(|index| add_model(&controller, &format!("net{index}"))).collect();
        let mut answers = Vec::new();
        for round in 0..40 {
            for (model, prepared) in &models {
                let deadline_at = controller.now() + Duration::from_secs(if round % 2 == 0 { 2 } else { 60 });
                answers.push(ask(&controller, *model, &**prepared, deadline_at));
            }
            controller.drive();
        }
        let outputs = answers.into_iter().map(wait).filter(|reply| matches!(reply, Reply::Outputs(_))).count();
        assert_eq!(outputs, 200, "{shards} shards");
        until("all slots are free again", || controller.in_hand() == 0);
        let page = controller.metrics().render();
        let violations = page.lines().filter(|line| line.starts_with("punctual_invariant_violations_total"));
        assert!(violations.clone().all(|line| line.ends_with(" 0")), "{:?}", violations.collect::<Vec<_>>());
        controller.stop();
    }
}

#[test]
fn batches_form_while_requests_wait() {
    let controller = start(1, 1, 8);
    let (model, prepared) = add_model(&controller, "net");
    let deadline_at = controller.now() + Duration::from_secs(2);
    let answers: Vec<_> = (0..64).map(|_| ask(&controller, model, &*prepared, deadline_at)).collect();
    controller.drive();
    assert!(answers.into_iter().map(wait).all(|reply| matches!(reply, Reply::Outputs(_))));
    until("all slots are free again", || controller.in_hand() == 0);
    let page = controller.metrics().render();
    let done = page.lines().find(|line| {
        line.starts_with("punctual_actions_total{action=\"execution\"") && line.contains("result=\"done\"")
    });
    let batches: f64 = done.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(batches <= 16.0, "64 requests that came together took {batches} batches of up to 8");
}

#[test]
fn what_cannot_be_met_is_refused_with_the_earliest_deadline() {
    let controller = start(2, 2, 8);
    let (model, prepared) = add_model(&controller, "net");
    let asked_at = controller.now();
    let answer = ask(&controller, model, &*prepared, asked_at + Duration::from_micros(900));
    controller.drive();
    let Reply::Refused(Refusal::DeadlineUnreachable { earliest_at }) = wait(answer) else { panic!("not refused") };
    assert!(earliest_at >= asked_at + Duration::from_micros(1_500), "{earliest_at}");
    let (other, _) = add_model(&controller, "other");
    let unknown = ModelId(other.0 + 5);
    let answer = ask(&controller, unknown, &*prepared, asked_at + Duration::from_secs(60));
    controller.drive();
    assert!(matches!(wait(answer), Reply::Refused(Refusal::ModelUnavailable)));
}

#[test]
fn a_request_that_is_taken_back_is_not_executed() {
    let controller = start(1, 1, 8);
    let (model, _) = add_model(&controller, "net");
    let (reply, receiver) = oneshot::channel();
    let deadline_at = controller.now() + Duration::from_secs(60);
    // Its inputs are missing: executing it would fail, loudly.
    let submission = Submission {
        model,
        inputs: Vec::new(),
        rows: 1,
        deadline_at,
        priority: 0,
        application: ApplicationId::DEFAULT,
        size: None,
        trace: None,
        reply,
    };
    let ticket = controller.submit(submission).unwrap();
    controller.cancel(ticket);
    controller.drive();
    assert!(matches!(wait(receiver), Reply::Refused(Refusal::DeadlineMissed)));
    until("the slot is free again", || controller.in_hand() == 0);
}

#[test]
fn a_removed_model_leaves_nothing_behind_and_makes_room() {
    let controller = start(2, 2, 1);
    let (first, prepared) = add_model(&controller, "first");
    let soon = |controller: &Controller| controller.now() + Duration::from_millis(500);
    let answer = ask(&controller, first, &*prepared, soon(&controller));
    controller.drive();
    assert!(matches!(wait(answer), Reply::Outputs(_)));
    controller.remove_model(first);
    // One page on each device: the second model fits when the first has gone.
    let (second, other) = add_model(&controller, "second");
    until("the second is served", || {
        let answer = ask(&controller, second, &*other, soon(&controller));
        controller.drive();
        matches!(wait(answer), Reply::Outputs(_))
    });
    until("nobody holds the weights of the first", || Arc::strong_count(&prepared) == 1);
    let answer = ask(&controller, first, &*prepared, soon(&controller));
    controller.drive();
    assert!(matches!(wait(answer), Reply::Refused(Refusal::ModelUnavailable)));
}

#[test]
fn stopping_answers_what_is_queued() {
    let controller = start(2, 1, 8);
    let (model, prepared) = add_model(&controller, "net");
    let deadline_at = controller.now() + Duration::from_secs(600);
    // Eight are a full batch and run at once; the ninth waits for company.
    let answers: Vec<_> = (0..9).map(|_| ask(&controller, model, &*prepared, deadline_at)).collect();
    controller.drive();
    until("the batch is done", || controller.in_hand() == 1);
    controller.stop();
    let replies: Vec<Reply> = answers.into_iter().map(wait).collect();
    assert!(matches!(replies[8], Reply::Refused(Refusal::ShuttingDown)));
    assert!(replies[..8].iter().all(|reply| matches!(reply, Reply::Outputs(_))));
    let refused = ask(&controller, model, &*prepared, deadline_at);
    assert!(matches!(wait(refused), Reply::Refused(Refusal::ShuttingDown)));
}

fn write_model(repository: &Path, name: &str) {
    let config = "platform: \"emulated\" max_batch_size: 8
         parameters { key: \"emulated_latency\" value { string_value: \"alpha_ms=1,beta_ms=1,load_ms=1\" } }
         parameters { key: \"weights_mb\" value { string_value: \"5\" } }";
    std::fs::create_dir_all(repository.join(name).join("1")).unwrap();
    std::fs::write(repository.join(name).join("config.pbtxt"), config).unwrap();
}

#[test]
fn models_that_do_not_fit_are_named_with_what_to_do() {
    let repository = tempfile::tempdir().unwrap();
    (0..3).for_each(|index| write_model(repository.path(), &format!("net{index}")));
    // Two of 5 pages each.
    let controller = start(1, 2, 11);
    let config = ManagerConfig::new(repository.path().to_owned(), Arc::new(EmulatedEngine::default()));
    let manager = Manager::start(controller.clone(), config).unwrap();
    manager.wait_until_started();
    let catalogue = controller.catalogue();
    let broken: Vec<&String> = catalogue
        .models
        .values()
        .filter_map(|model| match &model.default_version().unwrap().state {
            ModelState::Broken(reason) => Some(reason),
            ModelState::Loading | ModelState::Ready(_) | ModelState::Unloaded(_) => None,
        })
        .collect();
    assert_eq!(broken.len(), 1, "{broken:?}");
    assert!(broken[0].contains("5 pages, 1 of 11") && broken[0].contains("--device-memory"), "{broken:?}");
}
