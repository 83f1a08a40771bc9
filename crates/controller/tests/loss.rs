//! The live controller with an engine that panics on demand: whoever asks gets an answer, and the others go on.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

mod common;

use base::Reason;
use common::{MODEL_PAGES, TestServer, until, wait};
use controller::{Refusal, Reply};
use scheduler::PolicyKind;
use std::sync::atomic::Ordering;

fn is_failure(reply: &Reply, text: &str) -> bool {
    matches!(reply, Reply::Refused(Refusal { reason: Reason::ExecutionFailed, why, .. }) if why.contains(text))
}

#[test]
fn after_a_panic_the_device_is_started_anew_and_serves_the_others_whatever_the_policy() {
    for &policy in PolicyKind::ALL {
        let server = TestServer::new(policy, 1, 3 * MODEL_PAGES);
        let (good, good_faults) = server.model("good");
        let (bad, bad_faults) = server.model("bad");
        assert!(matches!(server.answer(good), Reply::Outputs(_)), "{policy:?}");
        bad_faults.execution_panics.store(true, Ordering::Relaxed);
        let failed = server.answer(bad);
        assert!(is_failure(&failed, "the engine panicked: an execution that was told to"), "{policy:?}: {failed:?}");
        until("the loss", || (server.losses() > 0).then_some(()));
        let again = server.answer_with_patience(good);
        assert!(matches!(again, Reply::Outputs(_)), "{policy:?}: {again:?}");
        assert_eq!(good_faults.loads.load(Ordering::Relaxed), 2, "{policy:?}: its weights were loaded anew");
        assert_eq!((server.losses(), server.controller.devices()), (1, 1), "{policy:?}");
    }
}

#[test]
fn what_cant_be_computed_yet_is_refused_as_that_and_computed_later() {
    let server = TestServer::new(PolicyKind::Punctual, 1, 3 * MODEL_PAGES);
    let (model, faults) = server.model("open");
    faults.not_yet.store(true, Ordering::Relaxed);
    let reply = server.answer(model);
    let Reply::Refused(Refusal { reason, why, .. }) = &reply else { panic!("{reply:?}") };
    assert_eq!((*reason, why.as_str()), (Reason::ModelLoading, "it is being prepared"));
    faults.not_yet.store(false, Ordering::Relaxed);
    assert!(matches!(server.answer(model), Reply::Outputs(_)));
    assert_eq!((server.losses(), server.violations()), (0, 0));
}

#[test]
fn inputs_that_a_model_cant_compute_are_the_clients_mistake() {
    let server = TestServer::new(PolicyKind::Punctual, 1, 3 * MODEL_PAGES);
    let (model, faults) = server.model("picky");
    faults.unfit.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        let reply = server.answer(model);
        let Reply::Refused(Refusal { reason, why, .. }) = &reply else { panic!("{reply:?}") };
        assert_eq!((*reason, why.as_str()), (Reason::BadInput, "5 x 3 by 4 x 2 has no product"));
    }
    faults.unfit.store(false, Ordering::Relaxed);
    assert!(matches!(server.answer(model), Reply::Outputs(_)), "nobody else has to wait for it");
    assert_eq!((server.losses(), server.violations()), (0, 0));
}

#[test]
fn the_other_device_takes_over_what_the_broken_one_was_given() {
    let server = TestServer::new(PolicyKind::Punctual, 2, 3 * MODEL_PAGES);
    let (good, _) = server.model("good");
    let (bad, bad_faults) = server.model("bad");
    bad_faults.execution_panics.store(true, Ordering::Relaxed);
    let mut answers: Vec<_> = (0..100).map(|_| server.ask(good)).collect();
    let failed = server.ask(bad);
    answers.extend((0..100).map(|_| server.ask(good)));
    let failed = wait(failed);
    assert!(is_failure(&failed, "panicked"), "{failed:?}");
    for answer in answers {
        let reply = wait(answer);
        assert!(matches!(reply, Reply::Outputs(_)), "{reply:?}");
    }
    until("all slots to be free", || (server.controller.in_hand() == 0).then_some(()));
    until("the device to be back", || (server.controller.devices() == 2).then_some(()));
    assert_eq!((server.losses(), server.violations()), (1, 0));
}

#[test]
fn a_device_that_was_gone_before_a_batch_began_costs_its_requests_nothing() {
    for devices in [1, 2] {
        let server = TestServer::new(PolicyKind::Punctual, devices, 3 * MODEL_PAGES);
        let (model, faults) = server.model("model");
        assert!(matches!(server.answer(model), Reply::Outputs(_)));
        faults.is_gone.store(true, Ordering::Relaxed);
        let reply = server.answer(model);
        assert!(matches!(reply, Reply::Outputs(_)), "{devices} devices: {reply:?}");
        until("the device to be back", || (server.controller.devices() == devices).then_some(()));
        until("all slots to be free", || (server.controller.in_hand() == 0).then_some(()));
        assert_eq!((server.losses(), server.violations()), (1, 0));
    }
}

#[test]
fn a_model_rests_if_its_batch_has_cost_the_device_and_not_if_somebody_else_has() {
    for blameless in [false, true] {
        let server = TestServer::new(PolicyKind::Punctual, 1, 3 * MODEL_PAGES);
        let (model, faults) = server.model("model");
        faults.blameless.store(blameless, Ordering::Relaxed);
        // Each time in a row it would rest for twice as long: after ten of them for half a minute.
        for _ in 0..if blameless { 20 } else { 1 } {
            faults.loses.store(true, Ordering::Relaxed);
            let failed = server.answer_with_patience(model);
            assert!(is_failure(&failed, "the device was lost: its process has ended"), "{failed:?}");
            until("the device to be back", || (server.controller.devices() == 1).then_some(()));
        }
        if blameless {
            let reply = server.answer_with_patience(model);
            assert!(matches!(reply, Reply::Outputs(_)), "{reply:?}");
        } else {
            // It may have rested enough when the device is back: then it costs the device again, and rests for longer.
            until("the model to rest", || {
                faults.loses.store(true, Ordering::Relaxed);
                is_failure(&server.answer_with_patience(model), "it is tried again in").then_some(())
            });
        }
        assert_eq!(server.violations(), 0);
    }
}

#[test]
fn a_load_that_takes_its_device_along_is_tried_again_when_that_is_back() {
    let server = TestServer::new(PolicyKind::Punctual, 1, 3 * MODEL_PAGES);
    let (model, faults) = server.model("model");
    faults.load_loses.store(true, Ordering::Relaxed);
    let failed = server.answer(model);
    assert!(is_failure(&failed, "the model could not be loaded: the device was lost: its process has ended"));
    until("the model to be served", || matches!(server.answer(model), Reply::Outputs(_)).then_some(()));
    assert_eq!((server.losses(), server.violations()), (1, 0));
}

#[test]
fn a_panic_while_loading_loses_the_device_too() {
    let server = TestServer::new(PolicyKind::Punctual, 1, 3 * MODEL_PAGES);
    let (good, _) = server.model("good");
    let (bad, bad_faults) = server.model("bad");
    assert!(matches!(server.answer(good), Reply::Outputs(_)));
    bad_faults.load_panics.store(true, Ordering::Relaxed);
    let failed = server.answer(bad);
    assert!(
        is_failure(&failed, "the model could not be loaded: the engine panicked: a load that was told to"),
        "{failed:?}"
    );
    until("the loss", || (server.losses() > 0).then_some(()));
    assert!(matches!(server.answer_with_patience(good), Reply::Outputs(_)));
    // What was wrong is over: the model is tried again, and served.
    bad_faults.load_panics.store(false, Ordering::Relaxed);
    until("the model to be served", || matches!(server.answer(bad), Reply::Outputs(_)).then_some(()));
}

#[test]
fn a_panic_while_unloading_loses_the_device_too() {
    // Room for one of the two.
    let server = TestServer::new(PolicyKind::Punctual, 1, MODEL_PAGES);
    let (first, first_faults) = server.model("first");
    let (second, _) = server.model("second");
    assert!(matches!(server.answer(first), Reply::Outputs(_)));
    first_faults.unload_panics.store(true, Ordering::Relaxed);
    until("the other model", || matches!(server.answer_with_patience(second), Reply::Outputs(_)).then_some(()));
    until("the loss", || (server.losses() > 0).then_some(()));
    until("the device to be back", || (server.controller.devices() == 1).then_some(()));
    first_faults.unload_panics.store(false, Ordering::Relaxed);
    assert!(matches!(server.answer_with_patience(first), Reply::Outputs(_)));
    assert!(matches!(server.answer_with_patience(second), Reply::Outputs(_)));
    assert_eq!(server.losses(), 1);
    assert_eq!(server.violations(), 0);
}

#[test]
fn where_all_fit_a_load_that_fails_is_not_tried_again_at_once() {
    let server = TestServer::new(PolicyKind::Punctual, 1, 3 * MODEL_PAGES);
    let (good, _) = server.model("good");
    let (bad, bad_faults) = server.model("bad");
    bad_faults.load_fails.store(true, Ordering::Relaxed);
    assert!(is_failure(&server.answer(bad), "torn"));
    for _ in 0..50 {
        assert!(matches!(server.answer(good), Reply::Outputs(_)));
    }
    let tried = bad_faults.loads.load(Ordering::Relaxed);
    assert!((1..=12).contains(&tried), "{tried} tries");
    // Without anybody asking for it, the model is loaded when that is possible: it was asked for, and there is room.
    bad_faults.load_fails.store(false, Ordering::Relaxed);
    until("another try", || (bad_faults.loads.load(Ordering::Relaxed) > tried).then_some(()));
    until("the model to be served", || matches!(server.answer(bad), Reply::Outputs(_)).then_some(()));
}

#[test]
fn a_model_that_is_loaded_on_one_device_is_served_there_while_it_cannot_be_loaded_on_another() {
    let server = TestServer::new(PolicyKind::Punctual, 2, MODEL_PAGES);
    let (model, faults) = server.model("model");
    faults.load_fails_elsewhere.store(true, Ordering::Relaxed);
    for _ in 0..50 {
        let reply = server.answer(model);
        assert!(matches!(reply, Reply::Outputs(_)), "{reply:?}");
    }
    assert!(faults.loads.load(Ordering::Relaxed) > 1, "the other device was tried");
}

#[test]
fn a_model_that_cannot_be_loaded_does_not_push_others_out_with_every_request() {
    // Room for one of the two.
    let server = TestServer::new(PolicyKind::Punctual, 1, MODEL_PAGES);
    let (good, good_faults) = server.model("good");
    let (bad, bad_faults) = server.model("bad");
    bad_faults.load_fails.store(true, Ordering::Relaxed);
    for _ in 0..50 {
        let failed = server.answer(bad);
        assert!(is_failure(&failed, "the model could not be loaded: load failed: the weights are torn"), "{failed:?}");
        assert!(matches!(server.answer(good), Reply::Outputs(_)));
    }
    // Each try is twice as long after the one before: the twelfth would be more than three minutes after the first.
    let (tried, reloaded) = (bad_faults.loads.load(Ordering::Relaxed), good_faults.loads.load(Ordering::Relaxed));
    assert!((1..=12).contains(&tried), "{tried} tries");
    assert!(reloaded <= tried + 1, "{reloaded} loads of the other one");
    assert_eq!(server.losses(), 0, "a load that fails in an orderly way is no reason to give up a device");
    // It is refused with the reason while it rests, and served when it can be.
    bad_faults.load_fails.store(false, Ordering::Relaxed);
    until("the model to be served", || matches!(server.answer(bad), Reply::Outputs(_)).then_some(()));
}
