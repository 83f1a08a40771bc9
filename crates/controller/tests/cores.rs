//! Cores that divide themselves by what is asked for, with emulated devices and seconds that the test makes up.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

mod common;

use base::{DeviceId, Duration, LatencyProfile, ModelNumber, Timestamp};
use common::{Faults, LARGEST_BATCH, MODEL_PAGES, PAGE, TestServer, until, wait};
use controller::{AutoShares, Reply, ShareFollower};
use engine::Emulation;
use scheduler::{Event, PolicyKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::oneshot;

const CORES: u32 = 4;
/// Seconds between two looks.
const LOOK: f64 = 0.25;

/// A server whose cores divide themselves, with a model that is four times as quick on all of them.
struct CoresServer {
    server: TestServer,
    follower: ShareFollower,
    model: ModelNumber,
    faults: Arc<Faults>,
    is_ready: Arc<AtomicBool>,
}

fn times() -> LatencyProfile {
    let micros = Duration::from_micros;
    LatencyProfile::linear(micros(500), micros(0), &[1, LARGEST_BATCH], micros(100)).unwrap()
}

impl CoresServer {
    fn new(pages: u32) -> Self {
        Self::with_model(pages, |server| server.model_with("model", times()))
    }

    fn with_model(pages: u32, model: impl Fn(&TestServer) -> (ModelNumber, Arc<Faults>)) -> Self {
        let is_ready = Arc::new(AtomicBool::new(true));
        let (server, follower) = TestServer::with_cores(CORES, pages, &is_ready);
        let (model, faults) = model(&server);
        Self { server, follower, model, faults, is_ready }
    }

    /// A row of its model takes so many milliseconds on all cores for itself and so many more on however many, and it
    /// was measured to take so many, narrow and wide, in a moment that says nothing of others.
    fn measured_as((divisible, fixed): (u64, u64), measured: [u64; 2]) -> Self {
        let linear = |row: u64, fixed: u64| {
            let millis = Duration::from_millis;
            LatencyProfile::linear(millis(row), millis(fixed), &[1, LARGEST_BATCH], millis(0)).unwrap()
        };
        let weight_bytes = u64::from(MODEL_PAGES) * PAGE;
        let emulation = Emulation { profile: linear(divisible, fixed), weight_bytes };
        let profiles: Vec<_> = measured.iter().map(|&takes| linear(takes, 0).doubted()).collect();
        Self::with_model(8 * MODEL_PAGES, |server| server.model_known_as("model", emulation.clone(), profiles.clone()))
    }

    /// Asks and looks until it is so. However slow the machine is, it is so at last.
    fn look_until(&mut self, what: &str, seconds: f64, is_so: impl Fn(&AutoShares) -> bool) {
        until(what, || {
            (0..3).for_each(|_| self.ask_alone(self.model));
            assert!(self.follower.look(seconds));
            is_so(&self.auto()).then_some(())
        });
    }

    /// A request that nobody is beside: whoever was answered may ask again at once, whether or not the scheduler has
    /// heard of the answer.
    fn ask_alone(&self, model: ModelNumber) {
        let answer = self.server.submit(model, 1, Timestamp::NEVER).1;
        assert!(matches!(wait(answer), Reply::Outputs(_)));
    }

    /// So many full batches at once, with more time than they need: no policy has a reason to let them wait.
    fn burst(&self, times: usize) -> Vec<oneshot::Receiver<Reply>> {
        let deadline_at = self.server.controller.now() + Duration::from_secs(600);
        let answers = (0..times).map(|_| self.server.hand_over(self.model, LARGEST_BATCH, deadline_at, 0).1).collect();
        self.server.controller.drive();
        answers
    }

    /// Looks so often, with a few requests before each, one after another.
    fn look_alone(&mut self, times: u32) {
        for _ in 0..times {
            (0..3).for_each(|_| self.ask_alone(self.model));
            assert!(self.follower.look(LOOK));
        }
    }

    fn devices(&self) -> u32 {
        // What was told is carried out by whoever drives.
        self.server.controller.drive();
        until("the cell to hear of it", || {
            let devices = self.server.controller.devices();
            (devices == self.auto().gpus[0].len() as u32).then_some(devices)
        })
    }

    fn auto(&self) -> AutoShares {
        self.server.controller.division().unwrap().auto.unwrap()
    }

    fn is_well(&self) {
        until("all slots to be free", || (self.server.controller.in_hand() == 0).then_some(()));
        assert_eq!(self.server.violations(), 0);
    }
}

fn all_are_answered(answers: Vec<oneshot::Receiver<Reply>>) {
    assert!(answers.into_iter().all(|answer| matches!(wait(answer), Reply::Outputs(_))));
}

#[test]
fn one_client_alone_has_all_cores_and_a_burst_has_them_apart_again() {
    let mut cores = CoresServer::new(8 * MODEL_PAGES);
    assert_eq!(cores.devices(), CORES);
    cores.look_alone(11);
    assert_eq!(cores.devices(), CORES, "not before a rest");
    cores.look_alone(1);
    assert_eq!((cores.devices(), cores.auto().changes), (1, 1), "{:?}", cores.auto());
    assert!(cores.auto().why.contains("4.00 times as quick"), "{}", cores.auto().why);
    let metrics = cores.server.controller.metrics().render();
    for line in ["device_share{device=\"emulated:0\"} 1", "device_share{device=\"emulated:3\"} 0"] {
        assert!(metrics.contains(&format!("punctual_{line}")), "{line}");
    }
    cores.look_alone(20);
    assert_eq!(cores.auto().changes, 1);
    let answers = cores.burst(100);
    assert!(cores.follower.look(LOOK));
    assert_eq!((cores.devices(), cores.auto().changes), (CORES, 2), "{:?}", cores.auto());
    assert!(cores.auto().why.contains("meets"), "{}", cores.auto().why);
    all_are_answered(answers);
    cores.is_well();
}

#[test]
fn cores_stay_apart_until_the_engine_is_ready() {
    let mut cores = CoresServer::new(8 * MODEL_PAGES);
    cores.is_ready.store(false, Ordering::Relaxed);
    cores.look_alone(30);
    assert_eq!((cores.devices(), cores.auto().changes), (CORES, 0));
    cores.is_ready.store(true, Ordering::Relaxed);
    cores.look_alone(1);
    assert_eq!((cores.devices(), cores.auto().changes), (1, 1));
    cores.is_well();
}

#[test]
fn models_that_do_not_fit_onto_one_device_keep_cores_apart() {
    let mut cores = CoresServer::new(2 * MODEL_PAGES - 1);
    let (other, _) = cores.server.model_with("other", times());
    for _ in 0..30 {
        cores.ask_alone(other);
        cores.look_alone(1);
    }
    assert_eq!((cores.devices(), cores.auto().changes), (CORES, 0));
    assert!(cores.auto().why.contains("doesn't fit"), "{}", cores.auto().why);
    cores.is_well();
}

fn are_together(auto: &AutoShares) -> bool {
    auto.gpus[0].len() == 1
}

/// A model that was measured while others kept all cores busy, so that they seemed to gain nothing together.
#[test]
fn what_was_measured_to_gain_nothing_on_a_busy_machine_gets_all_cores_after_a_try() {
    let mut cores = CoresServer::measured_as((5, 0), [20, 20]);
    cores.look_alone(20);
    assert_eq!((cores.devices(), cores.auto().changes), (CORES, 0), "{:?}", cores.auto());
    cores.look_until("a try", 2.0, are_together);
    assert!(cores.auto().why.contains("tried"), "{}", cores.auto().why);
    cores.look_until("a gain", LOOK, |auto| are_together(auto) && auto.why.contains("times as quick"));
    assert_eq!(cores.devices(), 1);
    cores.is_well();
}

#[test]
fn what_gains_less_than_was_measured_goes_back_by_itself() {
    let mut cores = CoresServer::measured_as((0, 5), [5, 1]);
    cores.look_until("cores together", LOOK, are_together);
    assert!(cores.auto().why.contains("5.00 times as quick"), "{}", cores.auto().why);
    let gain_nothing = |auto: &AutoShares| !are_together(auto) && auto.why.contains("together they would be");
    cores.look_until("cores apart", LOOK, gain_nothing);
    assert_eq!(cores.devices(), CORES);
    cores.is_well();
}

#[test]
fn a_burst_ends_a_try_at_the_next_look() {
    let mut cores = CoresServer::measured_as((0, 1), [1, 1]);
    cores.look_until("a try", 2.0, are_together);
    let answers = cores.burst(100);
    assert!(cores.follower.look(LOOK));
    assert_eq!((cores.devices(), cores.auto().changes), (CORES, 2), "{:?}", cores.auto());
    all_are_answered(answers);
    cores.is_well();
}

#[test]
fn a_request_that_is_refused_for_want_of_time_ends_a_try_at_the_next_look() {
    let mut cores = CoresServer::measured_as((0, 1), [1, 1]);
    cores.look_until("a try", 2.0, are_together);
    let deadline_at = cores.server.controller.now() + Duration::from_nanos(1);
    let refused = wait(cores.server.submit(cores.model, 1, deadline_at).1);
    assert!(matches!(refused, Reply::Refused(_)));
    assert!(cores.follower.look(LOOK));
    assert_eq!((cores.devices(), cores.auto().changes), (CORES, 2), "{:?}", cores.auto());
    cores.is_well();
}

#[test]
fn what_computes_alike_in_either_division_is_not_tried() {
    let mut cores = CoresServer::measured_as((0, 1), [1, 1]);
    cores.faults.is_indivisible.store(true, Ordering::Relaxed);
    for _ in 0..200 {
        cores.ask_alone(cores.model);
        assert!(cores.follower.look(2.0));
    }
    assert_eq!((cores.devices(), cores.auto().changes), (CORES, 0), "{:?}", cores.auto());
    cores.is_well();
}

#[test]
fn changes_under_load_lose_nobody() {
    let mut cores = CoresServer::new(8 * MODEL_PAGES);
    let mut answers = Vec::new();
    for round in 0..8 {
        // What came is forgotten, and a rest that has become longer is over.
        assert!(cores.follower.look(LOOK) && cores.follower.look(400.0));
        cores.look_alone(if round == 0 { 12 } else { 2 });
        answers.extend(cores.burst(50));
        assert!(cores.follower.look(LOOK));
        answers.extend(cores.burst(10));
        until("all slots to be free", || (cores.server.controller.in_hand() == 0).then_some(()));
    }
    assert!(cores.auto().changes >= 4, "{:?}", cores.auto());
    all_are_answered(answers);
    cores.is_well();
}

#[test]
fn one_device_has_all_cores_before_the_others_have_none_and_shrinks_after_they_are_back() {
    let mut cores = CoresServer::new(8 * MODEL_PAGES);
    cores.look_alone(12);
    let answers = cores.burst(100);
    assert!(cores.follower.look(LOOK));
    all_are_answered(answers);
    let told = recording::Recording::open(&cores.server.stop()).unwrap().map(|step| step.unwrap().event);
    let changes = told.filter_map(|event| match event {
        Event::DeviceChanged { device, kind } => Some((device, kind)),
        // How many devices are for nobody.
        Event::Allotted(all) => {
            let closed = all.iter().filter(|one| one.models.as_ref().is_some_and(Vec::is_empty)).count();
            Some((DeviceId(u32::MAX), closed as u32))
        }
        _ => None,
    });
    let mut changes: Vec<_> = changes.collect();
    changes.dedup();
    let closed = |devices: u32| (DeviceId(u32::MAX), devices);
    let first = |kind: u32| (DeviceId(0), kind);
    assert_eq!(changes, [closed(0), first(1), closed(CORES - 1), closed(0), first(0)]);
}

#[test]
fn cores_need_their_two_divisions() {
    let server = TestServer::new(PolicyKind::Punctual, 2, MODEL_PAGES);
    assert_eq!(server.controller.follow_cores().unwrap_err(), "there are no divisions");
    let (server, _follower) = TestServer::with_shares(1, 1, MODEL_PAGES);
    assert!(server.controller.follow_cores().unwrap_err().contains("divided in two ways"));
    assert!(!server.controller.divides_cores());
}
