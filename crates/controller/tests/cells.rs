//! The live controller with several cells: each has what one has, and none knows of the others.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

mod common;

use base::{ApplicationId, Duration, ModelNumber, Reason, Timestamp};
use common::{LARGEST_BATCH, MODEL_PAGES, TestServer, until, wait};
use controller::{Refusal, Reply, Submission};
use recording::Recording;
use scheduler::{Command, Event, PolicyKind, Request, Scheduler};
use std::path::Path;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

const POLICY: PolicyKind = PolicyKind::Punctual;

fn later(server: &TestServer) -> Timestamp {
    server.controller.now() + Duration::from_secs(600)
}

fn is_answered(reply: &Reply) -> bool {
    matches!(reply, Reply::Outputs(_))
}

/// The batches that a device was ordered to run and did.
fn batches(server: &TestServer, device: u32) -> u32 {
    server.sum(&format!("punctual_actions_total{{action=\"execution\",device=\"emulated:{device}\",result=\"done\"}}"))
}

#[test]
fn every_request_of_every_model_is_answered_whatever_the_number_of_cells() {
    for cells in [1, 2, 3] {
        let server = TestServer::with_cells(cells, POLICY, 3, 8 * MODEL_PAGES);
        let models: Vec<_> = (0..5).map(|index| server.model(&format!("net{index}")).0).collect();
        let mut answers = Vec::new();
        for _ in 0..40 {
            answers.extend(models.iter().map(|&model| server.ask(model)));
        }
        assert_eq!(answers.into_iter().map(wait).filter(is_answered).count(), 200, "{cells} cells");
        until("all slots to be free", || (server.controller.in_hand() == 0).then_some(()));
        assert_eq!(server.violations(), 0);
    }
}

#[test]
fn a_model_runs_on_the_devices_of_its_cell_alone() {
    let server = TestServer::with_cells(2, POLICY, 2, 8 * MODEL_PAGES);
    let (first, second) = (server.model("first").0, server.model("second").0);
    for _ in 0..10 {
        assert!(is_answered(&server.answer(first)));
    }
    until("the last report", || (batches(&server, 0) == 10).then_some(()));
    assert_eq!(batches(&server, 1), 0);
    assert!(is_answered(&server.answer(second)));
    until("its report", || (batches(&server, 1) == 1).then_some(()));
    assert_eq!(batches(&server, 0), 10);
}

#[test]
fn many_threads_ask_all_cells_at_once_and_each_is_answered() {
    let server = TestServer::with_cells(2, POLICY, 4, 8 * MODEL_PAGES);
    let models: Vec<_> = (0..4).map(|index| server.model(&format!("net{index}")).0).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..100 {
                    let reply = server.answer(models[round % models.len()]);
                    assert!(is_answered(&reply), "{reply:?}");
                }
            });
        }
    });
    until("all slots to be free", || (server.controller.in_hand() == 0).then_some(()));
    assert_eq!(server.violations(), 0);
}

#[test]
fn while_one_cell_is_driven_another_thread_drives_the_other() {
    let server = TestServer::with_cells(2, POLICY, 2, 8 * MODEL_PAGES);
    let ((here, faults), (there, _)) = (server.model("here"), server.model("there"));
    faults.holds_the_driver.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| server.answer(here));
        until("the driver to be held", || faults.driver_is_held.load(Ordering::Relaxed).then_some(()));
        // Nobody waits for the one that is held: neither who has news for the other cell, nor who has news for this
        // one.
        let second = server.ask(here);
        assert!(is_answered(&server.answer(there)));
        faults.holds_the_driver.store(false, Ordering::Relaxed);
        assert!(is_answered(&first.join().unwrap()) && is_answered(&wait(second)));
    });
}

#[test]
fn batch_work_and_loads_by_demand_are_there_in_every_cell() {
    // Room for one of two models in each cell.
    let server = TestServer::with_cells(2, POLICY, 2, MODEL_PAGES);
    let models: Vec<_> = (0..4).map(|index| server.model(&format!("net{index}"))).collect();
    for _ in 0..3 {
        for (model, _) in &models {
            let reply = wait(server.submit(*model, 1, Timestamp::NEVER).1);
            assert!(is_answered(&reply), "{reply:?}");
        }
    }
    let loads: Vec<_> = models.iter().map(|(_, faults)| faults.loads.load(Ordering::Relaxed)).collect();
    assert!(loads.iter().all(|&loads| loads > 1), "each pushed its neighbour out: {loads:?}");
}

/// The requests of the first batch that was ordered after one with a priority was handed in.
fn ordered_after_the_urgent_one(recording: &Path) -> Vec<Request> {
    let mut recording = Recording::open(recording).unwrap();
    let mut scheduler = Scheduler::new(recording.header().config.clone());
    let (mut requests, mut urgent) = (Vec::<Request>::new(), false);
    for step in recording.by_ref() {
        let (step, mut commands) = (step.unwrap(), Vec::new());
        if let Event::Submitted(request) = step.event {
            requests.push(request);
            urgent |= request.priority > 0;
        }
        scheduler.step(step.now, step.event, &mut commands);
        let mut orders = commands.into_iter().filter_map(|command| match command {
            Command::Execute(execution) => Some(execution.requests),
            _ => None,
        });
        if let Some(batch) = orders.find(|_| urgent) {
            return requests.into_iter().filter(|request| batch.contains(&request.id)).collect();
        }
    }
    panic!("no batch was ordered");
}

#[test]
fn whoever_names_a_priority_goes_first_in_every_cell() {
    let server = TestServer::with_cells(2, POLICY, 2, 8 * MODEL_PAGES);
    let models = [server.model("first").0, server.model("second").0];
    let mut answers = Vec::new();
    for model in models {
        answers.extend((0..20).map(|_| server.hand_over(model, LARGEST_BATCH, later(&server), 0).1));
        answers.push(server.hand_over(model, LARGEST_BATCH, later(&server), 1).1);
    }
    server.controller.drive();
    assert!(answers.into_iter().map(wait).all(|reply| is_answered(&reply)));
    server.stop();
    for cell in 0..2 {
        let batch = ordered_after_the_urgent_one(&server.recording(cell));
        assert_eq!(batch.iter().map(|request| request.priority).collect::<Vec<_>>(), [1], "cell {cell}");
    }
}

#[test]
fn a_device_that_is_lost_in_one_cell_does_not_touch_the_other() {
    let server = TestServer::with_cells(2, POLICY, 2, 3 * MODEL_PAGES);
    let (here, here_faults) = server.model("here");
    let (bad, bad_faults) = server.model("bad");
    let (_, _) = server.model("also here");
    let (there, there_faults) = server.model("there");
    assert!(is_answered(&server.answer(here)) && is_answered(&server.answer(there)));
    bad_faults.execution_panics.store(true, Ordering::Relaxed);
    let failed = server.answer(bad);
    assert!(
        matches!(&failed, Reply::Refused(Refusal { reason: Reason::ExecutionFailed, why, .. }) if why.contains("panicked"))
    );
    until("the loss", || (server.losses() > 0).then_some(()));
    for _ in 0..20 {
        let reply = server.answer(here);
        assert!(is_answered(&reply), "{reply:?}");
    }
    assert!(is_answered(&server.answer_with_patience(there)));
    until("the device to be back", || (server.controller.devices() == 2).then_some(()));
    let loads = [here_faults, there_faults].map(|faults| faults.loads.load(Ordering::Relaxed));
    assert_eq!((loads, server.losses(), server.violations()), ([1, 2], 1, 0));
    assert_eq!(server.sum("punctual_device_losses_total{device=\"emulated:1\"}"), 1);
}

#[test]
fn a_model_that_no_device_can_hold_is_refused_as_with_one_cell() {
    let refusals = [1, 2].map(|cells| {
        let server = TestServer::with_cells(cells, POLICY, 2, MODEL_PAGES - 1);
        let (model, _) = server.model("large");
        let Reply::Refused(refusal) = server.answer(model) else { panic!("not refused") };
        refusal
    });
    assert_eq!(refusals[0], refusals[1]);
}

#[test]
fn a_model_that_is_not_there_is_refused_in_every_cell() {
    let server = TestServer::with_cells(2, POLICY, 2, 3 * MODEL_PAGES);
    let (first, second) = (server.model("first").0, server.model("second").0);
    server.controller.withdraw(second);
    let beyond = |slots| ModelNumber { slot: first.slot + slots, ..first };
    for unknown in [second, beyond(40), beyond(41)] {
        let reply = server.answer(unknown);
        assert!(
            matches!(reply, Reply::Refused(Refusal { reason: Reason::ModelUnavailable, .. })),
            "{unknown:?}: {reply:?}"
        );
    }
    assert!(is_answered(&server.answer(first)));
}

#[test]
fn a_request_that_is_taken_back_is_found_in_its_cell() {
    let server = TestServer::with_cells(2, POLICY, 2, 3 * MODEL_PAGES);
    for model in [server.model("first").0, server.model("second").0] {
        let (reply, answer) = oneshot::channel();
        // Its inputs are missing: executing it would fail, loudly. It waits for the weights.
        let submission = Submission {
            model,
            inputs: Vec::new(),
            rows: 1,
            deadline_at: later(&server),
            priority: 0,
            application: ApplicationId::DEFAULT,
            size: None,
            trace: None,
            account: None,
            reply,
        };
        let ticket = server.controller.submit(submission).unwrap();
        server.controller.cancel(ticket);
        server.controller.drive();
        let reply = wait(answer);
        assert!(matches!(reply, Reply::Refused(Refusal { reason: Reason::DeadlineMissed, .. })), "{reply:?}");
    }
    until("all slots to be free", || (server.controller.in_hand() == 0).then_some(()));
}

#[test]
fn stopping_gives_each_request_of_each_cell_one_answer() {
    let server = TestServer::with_cells(2, POLICY, 2, 3 * MODEL_PAGES);
    let models = [server.model("first").0, server.model("second").0];
    let answers: Vec<_> = (0..200).map(|index| server.ask(models[index % 2])).collect();
    server.controller.stop();
    for reply in answers.into_iter().map(wait) {
        assert!(
            matches!(reply, Reply::Outputs(_) | Reply::Refused(Refusal { reason: Reason::ShuttingDown, .. })),
            "{reply:?}"
        );
    }
    for model in models {
        assert!(matches!(server.answer(model), Reply::Refused(Refusal { reason: Reason::ShuttingDown, .. })));
    }
}

#[test]
fn each_cell_has_its_own_rule_in_the_metrics() {
    let server = TestServer::with_cells(2, POLICY, 2, 3 * MODEL_PAGES);
    let page = server.controller.metrics().render();
    let rules: Vec<_> = page.lines().filter(|line| line.starts_with("punctual_scheduler_rule")).collect();
    assert_eq!(rules, ["punctual_scheduler_rule{cell=\"0\"} 0", "punctual_scheduler_rule{cell=\"1\"} 0"]);
}
