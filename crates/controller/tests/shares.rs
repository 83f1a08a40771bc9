//! GPUs that divide themselves by what is asked for, with emulated devices and seconds that the test makes up.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

mod common;

use base::{DeviceId, Duration, LatencyProfile, ModelNumber};
use common::{Faults, MODEL_PAGES, TestServer, until, wait};
use controller::{AutoShares, Divisions, Reply, ShareFollower};
use engine::EmulatedEngine;
use scheduler::{Event, PolicyKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

const PAGES: u32 = 8 * MODEL_PAGES;
const LARGEST: u32 = 8;

/// Batches of `b` rows that take `alpha * b + beta` us on a whole device.
fn linear(alpha: u64, beta: u64) -> LatencyProfile {
    let micros = Duration::from_micros;
    LatencyProfile::linear(micros(alpha), micros(beta), &[1, 2, 4, LARGEST], micros(100)).unwrap()
}

/// A server whose GPUs divide themselves: one model in a hurry beside two that take long.
struct SharedServer {
    server: TestServer,
    follower: ShareFollower,
    quick: (ModelNumber, Arc<Faults>),
    large: [ModelNumber; 2],
}

impl SharedServer {
    fn new(cells: u32, gpus: u32) -> Self {
        let (server, follower) = TestServer::with_shares(cells, gpus, PAGES);
        let quick = server.model_with("quick", linear(50, 500));
        let large = ["large", "larger"].map(|name| server.model_with(name, linear(5_000, 20_000)).0);
        Self { server, follower, quick, large }
    }

    /// So many requests of one row, each with so many milliseconds, which nobody looks at until the next is driven.
    fn ask(&self, model: ModelNumber, times: usize, millis: u64) -> Vec<oneshot::Receiver<Reply>> {
        let deadline_at = self.server.controller.now() + Duration::from_millis(millis);
        let answers = (0..times).map(|_| self.server.hand_over(model, 1, deadline_at, 0).1).collect();
        self.server.controller.drive();
        answers
    }

    /// What needs shares, as if it had come within a second: everybody's answers.
    fn mixed(&self) -> Vec<oneshot::Receiver<Reply>> {
        let quick = self.ask(self.quick.0, 100, 5);
        quick.into_iter().chain(self.large.iter().flat_map(|&model| self.ask(model, 40, 300))).collect()
    }

    /// Looks at what came, as if a second had passed.
    fn look(&mut self) {
        assert!(self.follower.look(1.0));
    }

    /// Asks as long as it takes until GPUs are divided; all answers.
    fn divide(&mut self) -> Vec<oneshot::Receiver<Reply>> {
        let mut answers = Vec::new();
        until("another division", || {
            answers.extend(self.mixed());
            self.look();
            (self.auto().changes > 0).then_some(())
        });
        answers
    }

    fn auto(&self) -> AutoShares {
        self.server.controller.division().unwrap().auto.unwrap()
    }

    /// The shares of each GPU in percent, with those who may run there; `*` is everybody.
    fn shown(&self) -> Vec<Vec<String>> {
        let place = |place: controller::SharePlace| {
            let models = place.models.map_or_else(|| "*".to_owned(), |models| models.join(" "));
            format!("{:.0} {models}", 100.0 * place.share)
        };
        self.auto().gpus.into_iter().map(|places| places.into_iter().map(place).collect()).collect()
    }

    /// Somebody who has time is answered.
    fn serves(&self, model: ModelNumber) -> bool {
        matches!(wait(self.ask_for_batch(model)), Reply::Outputs(_))
    }

    /// Asks for a full batch: there is no reason to let it wait.
    fn ask_for_batch(&self, model: ModelNumber) -> oneshot::Receiver<Reply> {
        self.server.submit(model, LARGEST, self.server.controller.now() + Duration::from_secs(600)).1
    }

    fn is_well(&self) {
        until("all slots to be free", || (self.server.controller.in_hand() == 0).then_some(()));
        assert_eq!(self.server.violations(), 0);
    }
}

fn all_have_an_outcome(answers: Vec<oneshot::Receiver<Reply>>) {
    answers.into_iter().for_each(|answer| drop(wait(answer)));
}

#[test]
fn a_model_in_a_hurry_beside_large_ones_gets_a_share_of_its_own() {
    let mut shared = SharedServer::new(1, 1);
    assert_eq!((shared.shown(), shared.auto().changes), (vec![vec!["100 *".to_owned()]], 0));
    assert_eq!(shared.server.controller.devices(), 1, "a place for which there is no share isn't a device");
    let answers = shared.divide();
    assert_eq!(shared.shown(), [["20 quick", "80 large larger"]], "{:?}", shared.auto());
    assert_eq!(shared.server.controller.devices(), 2);
    assert!(shared.auto().why.contains("shares pay"), "{}", shared.auto().why);
    all_have_an_outcome(answers);
    for model in [shared.quick.0, shared.large[0], shared.large[1]] {
        assert!(shared.serves(model));
    }
    let metrics = shared.server.controller.metrics().render();
    for line in ["device_share{device=\"emulated:0\"} 0.2", "share_changes_total{what=\"division\"} 1"] {
        assert!(metrics.contains(&format!("punctual_{line}")), "{line}");
    }
    shared.is_well();
}

#[test]
fn one_busy_model_has_whole_gpus() {
    let mut shared = SharedServer::new(1, 2);
    for _ in 0..6 {
        all_have_an_outcome(shared.ask(shared.large[0], 200, 300));
        shared.look();
    }
    assert_eq!(shared.shown(), [["100 *"], ["100 *"]]);
    assert_eq!(shared.auto().changes, 0);
    shared.is_well();
}

#[test]
fn gpus_are_whole_again_when_shares_do_not_pay_any_more() {
    let mut shared = SharedServer::new(1, 1);
    let mut answers = shared.divide();
    until("whole GPUs", || {
        answers.extend(shared.ask(shared.large[0], 2, 300));
        assert!(shared.follower.look(60.0));
        (shared.auto().changes > 1).then_some(())
    });
    assert_eq!(shared.shown(), [["100 *"]]);
    assert_eq!(shared.server.controller.devices(), 1);
    all_have_an_outcome(answers);
    assert!(shared.serves(shared.quick.0) && shared.serves(shared.large[1]));
    shared.is_well();
}

#[test]
fn each_cell_divides_its_own_gpus() {
    // The quick one and the last are in the first cell, the other large one is in the second.
    let mut shared = SharedServer::new(2, 2);
    let mut answers = Vec::new();
    until("another division", || {
        answers.extend(shared.ask(shared.quick.0, 100, 5).into_iter().chain(shared.ask(shared.large[1], 80, 300)));
        shared.look();
        (shared.auto().changes > 0).then_some(())
    });
    assert_eq!(shared.shown(), [vec!["20 quick", "80 larger"], vec!["100 *"]]);
    all_have_an_outcome(answers);
    assert!(shared.serves(shared.quick.0) && shared.serves(shared.large[0]) && shared.serves(shared.large[1]));
    shared.is_well();
}

#[test]
fn a_model_that_is_published_while_gpus_are_divided_is_answered_before_the_next_plan() {
    let mut shared = SharedServer::new(1, 1);
    let answers = shared.divide();
    let (late, _) = shared.server.model_with("late", linear(50, 500));
    assert!(shared.serves(late));
    all_have_an_outcome(answers);
    shared.is_well();
}

#[test]
fn a_model_with_the_number_of_one_that_is_gone_does_not_inherit_its_place() {
    let mut shared = SharedServer::new(1, 1);
    all_have_an_outcome(shared.divide());
    shared.server.controller.withdraw(shared.quick.0);
    let next = until("its number", || {
        let (next, _) = shared.server.model_with("next", linear(5_000, 20_000));
        if next.slot == shared.quick.0.slot {
            return Some(next);
        }
        shared.server.controller.withdraw(next);
        None
    });
    // It has the large share, too.
    until("its weights in both shares", || {
        all_have_an_outcome(shared.ask(next, 40, 300));
        (shared.server.controller.loaded_on(next) == 2).then_some(())
    });
    shared.is_well();
}

#[test]
fn who_could_run_on_a_lost_device_alone_runs_elsewhere_until_it_is_back() {
    let mut shared = SharedServer::new(1, 1);
    all_have_an_outcome(shared.divide());
    let (quick, faults) = (shared.quick.0, Arc::clone(&shared.quick.1));
    assert!(shared.serves(quick));
    // It doesn't come back before its weights are freed.
    [&faults.holds_unloads, &faults.blameless, &faults.loses]
        .iter()
        .for_each(|fault| fault.store(true, Ordering::Relaxed));
    let lost = shared.ask_for_batch(quick);
    until("the loss", || (shared.server.controller.devices() == 1).then_some(()));
    for _ in 0..3 {
        assert!(shared.serves(quick), "the large share is there for it");
    }
    drop(wait(lost));
    assert_eq!((shared.server.losses(), shared.server.controller.devices()), (1, 1));
    faults.holds_unloads.store(false, Ordering::Relaxed);
    until("the device to be back", || (shared.server.controller.devices() == 2).then_some(()));
    assert!(shared.serves(quick) && shared.serves(shared.large[0]));
    assert_eq!(shared.shown(), [["20 quick", "80 large larger"]]);
    shared.is_well();
}

#[test]
fn changes_under_load_leave_nobody_without_an_outcome() {
    let mut shared = SharedServer::new(1, 2);
    let mut answers = Vec::new();
    for round in 0..60 {
        // Minutes in which little is asked for are enough to forget what was.
        let (asked, seconds) = match round / 10 % 2 {
            0 => (shared.mixed().into_iter().chain(shared.mixed()).collect(), 1.0),
            _ => (shared.ask(shared.large[0], 4, 300), 60.0),
        };
        answers.extend(asked);
        assert!(shared.follower.look(seconds));
        if round % 7 == 0 {
            let (passing, _) = shared.server.model_with("passing", linear(50, 500));
            answers.extend(shared.ask(passing, 5, 300));
            shared.server.controller.withdraw(passing);
        }
    }
    assert!(shared.auto().changes > 2, "{:?}", shared.auto());
    all_have_an_outcome(answers);
    assert!(shared.serves(shared.quick.0) && shared.serves(shared.large[1]));
    shared.is_well();
}

#[test]
fn a_server_that_goes_down_while_it_divides_its_gpus_answers_everybody() {
    let mut shared = SharedServer::new(1, 1);
    let mut answers = shared.divide();
    let controller = shared.server.controller.clone();
    let stop = std::thread::spawn(move || controller.stop());
    while shared.follower.look(1.0) {
        answers.extend(shared.mixed());
    }
    stop.join().unwrap();
    all_have_an_outcome(answers);
    assert!(!shared.follower.look(1.0));
}

#[test]
fn nobody_else_divides_what_the_server_divides() {
    let (server, _follower) = TestServer::with_shares(1, 1, PAGES);
    let refused = server.controller.divide(&[0.5, 0.5]).unwrap_err();
    assert!(refused.contains("--shares auto"), "{refused}");
    let division = server.controller.division().unwrap();
    assert_eq!((division.shares, division.possible.len()), (None, 4));
}

#[test]
fn gpus_without_places_for_shares_cannot_divide_themselves() {
    let server = TestServer::new(PolicyKind::Punctual, 1, PAGES);
    assert_eq!(server.controller.follow_shares(None).unwrap_err(), "there are no divisions");
    let engine = Arc::new(EmulatedEngine::default());
    server.controller.set_divisions(Divisions::new(engine, vec![vec![1.0]], vec![vec![0]]));
    let refused = server.controller.follow_shares(None).unwrap_err();
    assert_eq!(refused, "not all divisions that plans use were prepared");
}

#[test]
fn a_model_moves_after_its_next_share_is_there_and_before_its_last_one_shrinks() {
    let mut shared = SharedServer::new(1, 1);
    all_have_an_outcome(shared.divide());
    let told = recording::Recording::open(&shared.server.stop()).unwrap().map(|step| step.unwrap().event);
    let changes = told.filter_map(|event| match event {
        Event::DeviceChanged { device, kind } => Some(format!("{device} is of kind {kind}")),
        Event::Allotted(allotments) => Some(format!("{} devices for some", allotments.len())),
        _ => None,
    });
    let mut changes: Vec<String> = changes.collect();
    changes.dedup();
    // Whole at first; then the large share is there, models go to it, and what was whole is small.
    let place = |device: u32, kind: u32| format!("{} is of kind {kind}", DeviceId(device));
    let allotted = "2 devices for some".to_owned();
    let expected = [place(0, 5), allotted.clone(), place(1, 4), allotted, place(0, 0)];
    assert_eq!(changes[..5], expected, "{changes:?}");
}

#[test]
fn what_devices_idle_between_batches_is_measured_and_plans_count_it() {
    // A thousand seconds: less is measured on any machine.
    let (server, mut follower) = TestServer::with_shares_and_gap(1, 1, PAGES, Some(1_000.0));
    let model = server.model_with("quick", linear(50, 500)).0;
    let mut millis = || {
        assert!(follower.look(1.0));
        let why = server.controller.division().unwrap().auto.unwrap().why;
        let (_, gap) = why.rsplit_once(", with ").unwrap_or_else(|| panic!("{why}"));
        gap.strip_suffix(" ms between batches").unwrap().parse::<f64>().unwrap()
    };
    let ask = |batches: usize| {
        let deadline_at = server.controller.now() + Duration::from_secs(600);
        let asked: Vec<_> = (0..batches).map(|_| server.submit(model, LARGEST, deadline_at).1).collect();
        asked.into_iter().for_each(|answer| drop(wait(answer)));
    };
    ask(1);
    assert_eq!(millis(), 1e6, "there was no batch before it");
    ask(100);
    assert!(millis() < 0.9e6);
}
