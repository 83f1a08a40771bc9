//! The live controller with emulated devices, which take the time that a profile says and no more of the machine.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

mod common;

use base::{ApplicationId, DataType, Duration, LatencyProfile, ModelNumber, Reason, Timestamp};
use bytes::Bytes;
use common::{record_of, until, wait};
use controller::{
    Controller, ControllerConfig, DeviceConfig, ExecutionLimits, Refusal, Reply, Submission, Tensor, Ticket,
};
use engine::{EmulatedEngine, Emulation, Engine, ModelSource, Prepared};
use std::sync::Arc;
use telemetry::Metrics;
use tokio::sync::oneshot;

const PAGE: u64 = 1 << 20;
const WIDTH: u32 = 3;

fn start(pages: u32, max_requests: u32) -> Controller {
    let scheduler = scheduler::Config { schedule_ahead: Duration::ZERO, ..scheduler::Config::clockwork() };
    let cells =
        vec![vec![DeviceConfig { name: "emulated:0".into(), index: 0, pages, pin: None, kind: 0, only_waits: true }]];
    Controller::start(
        ControllerConfig {
            scheduler,
            max_requests,
            page_bytes: PAGE,
            cells,
            online_profile_share: 1.0,
            limits: ExecutionLimits::default(),
        },
        Metrics::new(),
    )
    .unwrap()
}

/// Times of batches of `b` rows that take `alpha * b + beta` ms.
fn linear(alpha: u64, beta: u64) -> LatencyProfile {
    let millis = Duration::from_millis;
    LatencyProfile::linear(millis(alpha), millis(beta), &[1, 2, 4, 8], millis(1)).unwrap()
}

/// Publishes a model of five pages; its weights, too.
fn publish(controller: &Controller, name: &str, profile: LatencyProfile) -> (ModelNumber, Arc<dyn Prepared>) {
    let source = ModelSource {
        name: name.into(),
        file: name.into(),
        max_batch: Some(8),
        emulated: Some(Emulation { profile: profile.clone(), weight_bytes: 5 * PAGE }),
        ..ModelSource::default()
    };
    let prepared = EmulatedEngine::new(WIDTH).prepare(&source).unwrap();
    let record = record_of(&*prepared, name, profile, controller.metrics());
    (controller.publish(record, Arc::clone(&prepared)), prepared)
}

/// Hands over a request of one row with these inputs.
fn submit(
    controller: &Controller,
    model: ModelNumber,
    inputs: Vec<Tensor>,
    within: Option<Duration>,
) -> (Option<Ticket>, oneshot::Receiver<Reply>) {
    let (reply, answer) = oneshot::channel();
    let ticket = controller.submit(Submission {
        model,
        inputs,
        rows: 1,
        deadline_at: within.map_or(Timestamp::NEVER, |span| controller.now() + span),
        priority: 0,
        application: ApplicationId::DEFAULT,
        size: None,
        trace: None,
        account: None,
        reply,
    });
    (ticket, answer)
}

/// A request of one row of the right width.
fn ask(controller: &Controller, model: ModelNumber, within: Option<Duration>) -> oneshot::Receiver<Reply> {
    let data = Bytes::from(vec![0; WIDTH as usize * 4]);
    let inputs = vec![Tensor { datatype: DataType::Fp32, shape: vec![1, i64::from(WIDTH)], data }];
    submit(controller, model, inputs, within).1
}

#[test]
fn answers_come_back_and_slots_are_free_again() {
    let controller = start(100, 64);
    let (net, _) = publish(&controller, "net", linear(1, 1));
    let answers: Vec<_> = (0..20).map(|_| ask(&controller, net, Some(Duration::from_secs(60)))).collect();
    controller.drive();
    for answer in answers {
        let Reply::Outputs(outputs) = wait(answer) else { panic!("refused") };
        assert_eq!(outputs[0].shape[0], 1);
    }
    until("all slots to be free", || (controller.in_hand() == 0).then_some(()));
}

#[test]
fn inputs_come_while_the_batch_before_is_computed() {
    let controller = start(100, 1024);
    let (net, _) = publish(&controller, "net", linear(5, 20).with_transfers(Duration::from_millis(3)));
    let hidden = || {
        let series = "punctual_device_transfer_seconds_total{device=\"emulated:0\",hidden=\"yes\"} ";
        let text = controller.metrics().render();
        text.lines().find_map(|line| line.strip_prefix(series)?.parse::<f64>().ok()).unwrap()
    };
    // The first batch has none before it, and the scheduler has to learn that there is something to hide. Only inputs
    // that come behind a batch that runs count as hidden; how long they are depends on the machine, and whether there
    // are some doesn't.
    until("inputs that came while the batch before was computed", || {
        let answers: Vec<_> = (0..32).map(|_| ask(&controller, net, Some(Duration::from_secs(600)))).collect();
        controller.drive();
        assert!(answers.into_iter().all(|answer| matches!(wait(answer), Reply::Outputs(_))));
        (hidden() > 0.0).then_some(())
    });
}

#[test]
fn what_cannot_be_met_is_refused_with_the_earliest_deadline() {
    let controller = start(100, 64);
    let (slow, _) = publish(&controller, "slow", linear(10, 500));
    let asked_at = controller.now();
    let answer = ask(&controller, slow, Some(Duration::from_millis(100)));
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
    // Two of 5 pages each.
    let controller = start(11, 64);
    let models: Vec<ModelNumber> =
        (0..6).map(|index| publish(&controller, &format!("net{index}"), linear(0, 1)).0).collect();
    for round in 0..12 {
        let answer = ask(&controller, models[round % 6], Some(Duration::from_secs(60)));
        controller.drive();
        assert!(matches!(wait(answer), Reply::Outputs(_)), "round {round}");
    }
}

#[test]
fn a_full_table_refuses_at_once() {
    let controller = start(100, 2);
    let (net, _) = publish(&controller, "net", linear(1, 200));
    let answers: Vec<_> = (0..3).map(|_| ask(&controller, net, None)).collect();
    controller.drive();
    let replies: Vec<Reply> = answers.into_iter().map(wait).collect();
    assert!(matches!(replies[2], Reply::Refused(Refusal { reason: Reason::QueueFull, .. })));
    assert!(matches!(replies[..2], [Reply::Outputs(_), Reply::Outputs(_)]));
}

#[test]
fn stopping_answers_what_is_queued_and_refuses_what_comes() {
    let controller = start(100, 64);
    let (net, _) = publish(&controller, "net", linear(1, 50));
    let answer = ask(&controller, net, Some(Duration::from_secs(60)));
    controller.drive();
    controller.refuse_new();
    let refused = ask(&controller, net, Some(Duration::from_secs(60)));
    assert!(matches!(wait(refused), Reply::Refused(Refusal { reason: Reason::ShuttingDown, .. })));
    assert!(matches!(wait(answer), Reply::Outputs(_)));
    controller.stop();
}

#[test]
fn a_withdrawn_model_leaves_nothing_behind() {
    let controller = start(100, 64);
    let (net, prepared) = publish(&controller, "net", linear(0, 1));
    let answer = ask(&controller, net, Some(Duration::from_secs(60)));
    controller.drive();
    assert!(matches!(wait(answer), Reply::Outputs(_)));
    controller.withdraw(net);
    until("all to let go of the weights", || (Arc::strong_count(&prepared) == 1).then_some(()));
}

#[test]
fn a_request_that_is_taken_back_is_not_executed() {
    let controller = start(100, 64);
    let (net, _) = publish(&controller, "net", linear(1, 100));
    let first = ask(&controller, net, Some(Duration::from_secs(60)));
    controller.drive();
    // Its inputs are missing: executing it would fail, loudly.
    let (ticket, taken_back) = submit(&controller, net, Vec::new(), Some(Duration::from_secs(60)));
    controller.cancel(ticket.unwrap());
    controller.drive();
    assert!(matches!(wait(taken_back), Reply::Refused(_)));
    assert!(matches!(wait(first), Reply::Outputs(_)));
    let failed = "punctual_actions_total{action=\"execution\",device=\"emulated:0\",result=\"failed\"} 0";
    assert!(controller.metrics().render().contains(failed));
}
