//! Numbers of models are given again, each time as of another generation: what a server keeps doesn't grow with the
//! models that ever were, and who asks by an old number is refused, whoever has its slot now. So are those of
//! pipelines.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

mod common;

use base::{Duration, ModelNumber, Reason};
use common::{MODEL_PAGES, TestServer, until, wait};
use controller::{Refusal, Reply};
use scheduler::{PolicyKind, StageSpec};

fn is_answered(reply: &Reply) -> bool {
    matches!(reply, Reply::Outputs(_))
}

fn is_unknown(reply: &Reply) -> bool {
    matches!(reply, Reply::Refused(Refusal { reason: Reason::ModelUnavailable, .. }))
}

#[test]
fn models_that_come_and_go_two_thousand_times_take_a_few_slots() {
    let server = TestServer::with_cells(2, PolicyKind::Punctual, 2, 4 * MODEL_PAGES);
    let (stays, _) = server.model("stays");
    let mut before = None;
    let mut slots = 0;
    for round in 0..2_000 {
        let (model, _) = server.model("comes and goes");
        slots = slots.max(model.slot + 1);
        // Its device has done then what it was told of those before it.
        assert!(is_answered(&server.answer(model)), "{round}");
        if round % 100 == 0 {
            assert!(is_answered(&server.answer(stays)), "{round}");
            before.into_iter().for_each(|old| assert!(is_unknown(&server.answer(old)), "{old:?}"));
        }
        server.controller.withdraw(model);
        before = Some(model);
        // A client may say twice that it goes: its number is given back once.
        server.controller.withdraw(model);
        // Whoever drives has heard of it when this is answered. Weights may be there for as long as the batch isn't
        // reported whose answer has come.
        let _ = server.controller.loaded_on(model);
    }
    // One that is still being loaded elsewhere when it goes keeps its slot for that long.
    assert!(slots <= 100, "{slots} slots for two models at once");
    assert!(is_answered(&server.answer(stays)));
    assert_eq!(server.violations(), 0);
}

#[test]
fn who_asks_by_the_number_of_a_model_that_is_gone_does_not_reach_the_one_that_has_its_slot() {
    let server = TestServer::new(PolicyKind::Punctual, 1, 4 * MODEL_PAGES);
    let (old, _) = server.model("old");
    assert!(is_answered(&server.answer(old)));
    server.controller.withdraw(old);
    let new = until("the slot to be given again", || {
        let (model, _) = server.model("new");
        (model.slot == old.slot).then_some(model)
    });
    assert_eq!(new.generation, old.generation + 1);
    assert!(is_unknown(&server.answer(old)));
    assert_eq!(server.controller.loaded_on(old), 0);
    assert!(is_answered(&server.answer(new)));
    assert!(server.controller.loaded_on(new) > 0);
    server.controller.withdraw(old);
    server.controller.load_on_one_more(old);
    assert!(is_answered(&server.answer(new)), "what is said of the old one isn't about the new one");
    let replay = sim::replay(&server.stop(), &mut |_, _| {}).unwrap();
    assert!(replay.is_good(), "{replay:#?}");
}

fn two_stages(model: ModelNumber) -> Vec<StageSpec<ModelNumber>> {
    [vec![1], Vec::new()].map(|next| StageSpec { model, next, calls: 1.0, varies: false, gap: Duration::ZERO }).to_vec()
}

#[test]
fn pipelines_that_come_and_go_two_thousand_times_have_two_numbers() {
    let server = TestServer::with_cells(2, PolicyKind::Punctual, 2, 4 * MODEL_PAGES);
    let (model, _) = server.model("net");
    let stays = server.controller.announce(two_stages(model)).unwrap();
    for round in 0..2_000 {
        let pipeline = server.controller.announce(two_stages(model)).unwrap();
        assert_eq!(pipeline.number().0, 1 - stays.number().0, "{round}");
    }
    assert!(is_answered(&wait(server.ask_stage(model, stays.stage(0)))), "it is as it was");
}

#[test]
fn schedulers_forget_a_pipeline_that_nobody_holds() {
    let server = TestServer::new(PolicyKind::Punctual, 1, 4 * MODEL_PAGES);
    let (model, _) = server.model("net");
    let pipeline = server.controller.announce(two_stages(model)).unwrap();
    let last = pipeline.stage(1);
    assert!(is_answered(&wait(server.ask_stage(model, last))));
    drop(pipeline);
    assert!(is_unknown(&wait(server.ask_stage(model, last))));
}

/// A request of an old plan, which tells what its stages took, made all others of that plan unknown.
#[test]
fn a_pipeline_that_is_announced_without_one_of_its_models_stays_as_it_is_known() {
    let server = TestServer::new(PolicyKind::Punctual, 1, 4 * MODEL_PAGES);
    let [(goes, _), (stays, _)] = ["goes", "stays"].map(|name| server.model(name));
    let stage = |model, next| StageSpec { model, next, calls: 1.0, varies: false, gap: Duration::ZERO };
    let stages = vec![stage(goes, vec![1]), stage(stays, Vec::new())];
    let pipeline = server.controller.announce(stages.clone()).unwrap();
    assert!(is_answered(&wait(server.ask_stage(goes, pipeline.stage(0)))));
    server.controller.withdraw(goes);
    until("the slot to be given again", || (server.model("new").0.slot == goes.slot).then_some(()));
    assert!(is_answered(&wait(server.ask_stage(stays, pipeline.stage(1)))));
    pipeline.announce(stages);
    assert!(is_answered(&wait(server.ask_stage(stays, pipeline.stage(1)))));
}

/// Models are made better while they serve, which gives them another number. Requests of the plan before were refused
/// at the stage they had come to, as if the model of a later one were gone.
#[test]
fn requests_of_a_plan_go_on_when_a_model_of_it_is_replaced_and_replaced_again() {
    let server = TestServer::new(PolicyKind::Punctual, 1, 8 * MODEL_PAGES);
    let [first, later, better, best] = ["first", "later", "better", "best"].map(|name| server.model(name).0);
    let stage = |model, next| StageSpec { model, next, calls: 1.0, varies: false, gap: Duration::ZERO };
    let stages = vec![stage(first, vec![1]), stage(later, Vec::new())];
    let pipeline = server.controller.announce(stages.clone()).unwrap();
    let goes_on = || {
        assert!(is_answered(&wait(server.ask_stage(first, pipeline.stage(0)))));
        assert!(is_answered(&wait(server.ask_stage(later, pipeline.stage(1)))), "by the number that the plan has");
    };
    goes_on();
    for (old, new) in [(later, better), (better, best)] {
        server.controller.depart(old, new);
        until("the old one to be gone", || (server.controller.loaded_on(old) == 0).then_some(()));
        goes_on();
    }
    // Requests of the plan before tell what they saw.
    pipeline.announce(stages);
    goes_on();
    let replay = sim::replay(&server.stop(), &mut |_, _| {}).unwrap();
    assert!(replay.is_good(), "{replay:#?}");
}
