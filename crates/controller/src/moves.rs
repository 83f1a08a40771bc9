//! Models move from a cell that is short to one that has room, on the thread that brings models up: loads and unloads by clients never meet a move.
//!
//! ```text
//!  asked for in the old cell ─────────────────────────────────┐ published ─> asked for in the new cell
//!    measured ─> chosen ─> added to the new cell, loaded there ┘ └─> the old cell sends on what still comes, finishes what it has, withdraws the model
//! ```
//!
//! The new cell has the weights before requests come, on as many devices as the model keeps busy. To clients it is one model all the time, with one set of statistics.

use crate::api::{CatalogueEntry, ModelState};
use crate::core::Message;
use crate::shelf::{InService, Shelf, Version};
use crate::{Controller, NewModel};
use base::{Duration, ModelId, Timestamp};
use planner::cells::{Balancer, Counted, Move, MoveConfig, Placed, Room};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, mpsc};
use telemetry::ModelDemand;

/// How often it is looked whether a cell is short.
const EVERY: Duration = Duration::from_secs(5);
/// How often it is looked whether weights are loaded, while a model moves.
const WHILE_LOADING: Duration = Duration::from_millis(50);
/// After so long a model goes with the devices that it has there, or stays if it has none.
const PATIENCE: Duration = Duration::from_secs(30);

/// A model by its name and version.
type Key = (String, u64);

/// Which models should be in which cell.
pub(crate) struct Moves {
    balancer: Balancer<Key>,
    under_way: Option<UnderWay>,
    look_at: Timestamp,
}

/// A model that is in two cells.
struct UnderWay {
    chosen: Move<Key>,
    old: ModelId,
    new: ModelId,
    since: Timestamp,
    /// On how many devices it was at the last look.
    loaded: usize,
}

impl Moves {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self { balancer: Balancer::new(MoveConfig::default()), under_way: None, look_at: now }
    }
}

impl Shelf {
    /// How long to wait for the next look at the cells; `None` where there is only one.
    pub(crate) fn until_balanced(&self) -> Option<Duration> {
        Some(self.moves.as_ref()?.look_at.since(self.bring_up.controller.now()))
    }

    /// Looks whether a model should move, or goes on with one that moves.
    pub(crate) fn balance(&mut self) {
        self.balance_at(self.bring_up.controller.now());
    }

    fn balance_at(&mut self, now: Timestamp) {
        let Some(mut moves) = self.moves.take() else { return };
        moves.under_way = match moves.under_way.take() {
            Some(under_way) => self.go_on(&mut moves, now, under_way),
            None => self.look(&mut moves, now),
        };
        moves.look_at = now + if moves.under_way.is_some() { WHILE_LOADING } else { EVERY };
        self.moves = Some(moves);
    }

    /// Chooses a model and brings it into another cell, if one should be there.
    fn look(&self, moves: &mut Moves, now: Timestamp) -> Option<UnderWay> {
        let controller = &self.bring_up.controller;
        let placed = |(key, version): (&Key, &Version)| Some((key.clone(), controller.placed(version)?));
        moves.balancer.observe(now, self.versions.iter().filter_map(placed));
        let chosen = moves.balancer.choose(now, &controller.rooms())?;
        let InService { id: old, again, .. } = self.versions.get(&chosen.model)?.service.as_ref()?;
        let new = controller.copy_model(chosen.to, again.clone()?);
        Some(UnderWay { chosen, old: *old, new, since: now, loaded: 0 })
    }

    /// Switches over to the new cell once the weights are there; what remains to be done.
    fn go_on(&mut self, moves: &mut Moves, now: Timestamp, under_way: UnderWay) -> Option<UnderWay> {
        let UnderWay { chosen, old, new, since, loaded: before } = &under_way;
        let controller = &self.bring_up.controller;
        let ((name, version), waited) = (&chosen.model, now.since(*since) >= PATIENCE);
        let service = self.versions.get(&chosen.model).and_then(|version| version.service.as_ref());
        if service.is_none_or(|service| service.id != *old) {
            // A client unloaded or replaced it meanwhile.
            controller.remove_model(*new);
            return None;
        }
        match controller.loaded_on(*new) {
            loaded if loaded >= controller.needed(chosen.asked, *new) || (waited && loaded > 0) => {
                self.switch(chosen, *old, *new);
                moves.balancer.moved(now, &chosen.model);
                None
            }
            _ if waited => {
                tracing::warn!(
                    model = name,
                    version,
                    "stays in its cell: its weights can't be loaded in the other; {chosen}"
                );
                controller.remove_model(*new);
                moves.balancer.moved(now, &chosen.model);
                None
            }
            // One load after another, until there are enough: each is for one device.
            loaded => {
                if loaded > *before {
                    controller.expect_model(*new);
                }
                Some(UnderWay { loaded, ..under_way })
            }
        }
    }

    /// The model is asked for in the new cell from now on.
    fn switch(&mut self, chosen: &Move<Key>, old: ModelId, new: ModelId) {
        let (name, number) = &chosen.model;
        let Some(version) = self.versions.get_mut(&chosen.model) else { return };
        let (Some(served), Some(service)) = (version.entry.serving(), version.service.as_mut()) else { return };
        let served = crate::ServedModel { id: new, ..served.clone() };
        service.id = new;
        version.entry = Arc::new(CatalogueEntry::settled(name, *number, ModelState::Ready(served)));
        self.publish();
        let controller = &self.bring_up.controller;
        controller.let_depart(old, new);
        controller.metrics().moved_model(chosen.from, chosen.to);
        tracing::info!(model = name, version = number, "moved to another cell: {chosen}");
    }
}

impl Controller {
    /// How many cells there are.
    pub(crate) fn cells(&self) -> usize {
        self.inner.cells.len()
    }

    /// What each cell has.
    fn rooms(&self) -> Vec<Room> {
        let devices = self.inner.cells.iter().map(|cell| cell.devices.load(Ordering::Relaxed));
        self.inner.rooms.lock().unwrap_or_else(PoisonError::into_inner).now(devices)
    }

    /// Where a version is and what was counted for it, if it may move.
    fn placed(&self, version: &Version) -> Option<Placed> {
        let InService { id, again, .. } = version.service.as_ref()?;
        let wants = self.wants(again.as_ref()?);
        let ModelDemand { ended, bad, computed, busy } = version.entry.serving()?.metrics.demand();
        let counted = Counted { ended, bad, computed, busy };
        Some(Placed { cell: self.inner.home(*id).0, pages: wants.pages, work: wants.work, counted })
    }

    /// Brings a model that is served elsewhere into that cell, and has its weights loaded there.
    fn copy_model(&self, cell: usize, model: NewModel) -> ModelId {
        let wants = self.wants(&model);
        let number = self.inner.rooms.lock().unwrap_or_else(PoisonError::into_inner).add_to(cell, wants);
        self.bring_in(number, wants, model);
        self.expect_model(number);
        number
    }

    /// Has a model's weights loaded on one more device of its cell, if there is room.
    fn expect_model(&self, number: ModelId) {
        let (cell, model) = self.inner.home(number);
        self.inner.put(cell, Message::ExpectModel(model));
        self.drive();
    }

    /// On how many devices of its cell a model should be that keeps so many busy.
    fn needed(&self, asked: f64, model: ModelId) -> usize {
        (asked.ceil() as usize).clamp(1, self.devices_of(model).max(1) as usize)
    }

    /// On how many devices a model's weights are. Waits for whoever drives its cell.
    fn loaded_on(&self, number: ModelId) -> usize {
        let (cell, model) = self.inner.home(number);
        let (reply, answer) = mpsc::channel();
        self.inner.put(cell, Message::CountLoaded { model, reply });
        self.drive();
        // Nobody answers when the server goes down.
        answer.recv().unwrap_or(0)
    }

    /// Withdraws a model under its old number: who still asks for that is sent on to the new one.
    fn let_depart(&self, old: ModelId, new: ModelId) {
        self.inner.rooms.lock().unwrap_or_else(PoisonError::into_inner).remove(old);
        let (cell, model) = self.inner.home(old);
        self.inner.put(cell, Message::DepartModel { model, to: new });
        self.drive();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bring_up::BringUp;
    use crate::{
        ControlMode, ControllerConfig, DeviceConfig, ManagerConfig, Refusal, Reply, Submission, Tensor, Ticket,
    };
    use base::{ApplicationId, DataType, Reason};
    use bytes::Bytes;
    use engine::EmulatedEngine;
    use repository::{Change, Repository, Sources};
    use telemetry::{BatchTimes, Metrics};
    use tokio::sync::oneshot;

    const PAGE: u64 = 1 << 20;
    const WIDTH: u32 = 3;
    /// A full batch: no policy has a reason to let it wait.
    const ROWS: u32 = 8;

    /// A server with one emulated device in each cell and the models `a`, `b` and `c`. With two cells, `b` is alone in the second.
    struct Bench {
        shelf: Shelf,
        now: Timestamp,
        folder: tempfile::TempDir,
    }

    impl Bench {
        /// Batches take so many milliseconds and loads so many; there is room for so many models on a device.
        fn new(cells: u32, batch_ms: u32, load_ms: u32, room: u32) -> Self {
            Self::with_devices(cells, cells, (batch_ms, load_ms), room)
        }

        fn with_devices(cells: u32, devices: u32, (batch_ms, load_ms): (u32, u32), room: u32) -> Self {
            let folder = tempfile::tempdir().unwrap();
            ["a", "b", "c"].iter().for_each(|name| write_model(&folder, name, batch_ms, load_ms));
            let device = |index| DeviceConfig {
                name: format!("emulated:{index}"),
                index,
                pages: 5 * room,
                pin: None,
                kind: 0,
                only_waits: true,
            };
            let config = ControllerConfig {
                scheduler: scheduler::Config::default(),
                max_requests: 1024,
                page_bytes: PAGE,
                cells: crate::deal((0..devices).map(device).collect(), 1, cells).unwrap(),
                online_profile_share: 0.0,
            };
            let controller = Controller::start(config, Metrics::new()).unwrap();
            let engine = Arc::new(EmulatedEngine::new(WIDTH));
            let config = ManagerConfig { control: ControlMode::None, ..ManagerConfig::new(folder.path(), engine) };
            let sources = Arc::new(Sources::open(&config.sources, None).unwrap());
            let repository = Repository::open(sources.roots()).unwrap();
            let now = controller.now();
            let mut shelf = Shelf::new(BringUp::new(controller, config, Arc::default()), repository, sources);
            shelf.start(mpsc::channel().0).unwrap();
            Self { shelf, now, folder }
        }

        fn controller(&self) -> &Controller {
            &self.shelf.bring_up.controller
        }

        fn served(&self, name: &str) -> crate::ServedModel {
            let catalogue = self.controller().catalogue();
            catalogue.models[name].default_version().unwrap().serving().unwrap().clone()
        }

        fn cell_of(&self, name: &str) -> usize {
            self.controller().inner.home(self.served(name).id).0
        }

        /// So many seconds pass, and the cells are looked at.
        fn look_after(&mut self, seconds: u64) {
            self.now += Duration::from_secs(seconds);
            self.shelf.balance_at(self.now);
        }

        fn moves(&self) -> bool {
            self.shelf.moves.as_ref().unwrap().under_way.is_some()
        }

        /// A minute in which `a` and `c` ask for more than their device has, and a look at what was counted: one of them is to move, the first as they are equal.
        fn begin(&mut self) {
            self.begin_with(28_000, 20_000);
        }

        /// The same with so many requests of each that were answered and refused, a millisecond each.
        fn begin_with(&mut self, answered: u64, refused: u64) {
            self.look_after(0);
            for name in ["a", "c"] {
                count(&self.served(name), answered, refused);
            }
            self.look_after(60);
            assert!(self.moves());
        }

        /// Looks until the weights are where they should be and the move is over.
        fn end(&mut self) {
            until("the end of the move", || {
                self.look_after(0);
                !self.moves()
            });
        }

        fn submit(&self, model: ModelId) -> (Option<Ticket>, oneshot::Receiver<Reply>) {
            let (reply, answer) = oneshot::channel();
            let data = Bytes::from(vec![0; (ROWS * WIDTH) as usize * 4]);
            let inputs = vec![Tensor { datatype: DataType::Fp32, shape: vec![ROWS.into(), WIDTH.into()], data }];
            let deadline_at = self.controller().now() + Duration::from_secs(600);
            let (application, size, trace) = (ApplicationId::DEFAULT, None, None);
            let (rows, priority) = (ROWS, 0);
            let submission = Submission { model, inputs, rows, deadline_at, priority, application, size, trace, reply };
            (self.controller().submit(submission), answer)
        }

        fn ask(&self, model: ModelId, times: usize) -> Vec<oneshot::Receiver<Reply>> {
            let answers = (0..times).map(|_| self.submit(model).1).collect();
            self.controller().drive();
            answers
        }

        /// The devices that have a model's weights.
        fn resident(&self, name: &str) -> Vec<String> {
            let totals = self.served(name).metrics.totals();
            totals.resident.into_iter().map(|(device, _)| device).collect()
        }

        fn shows(&self, line: &str) -> bool {
            self.controller().metrics().render().lines().any(|shown| shown == line)
        }

        /// Every request is over, and no invariant was broken.
        fn is_well(&self) -> bool {
            until("all slots to be free", || self.controller().in_hand() == 0);
            let text = self.controller().metrics().render();
            let mut violations = text.lines().filter(|line| line.starts_with("punctual_invariant_violations_total{"));
            violations.all(|line| line.ends_with(" 0"))
        }
    }

    impl Drop for Bench {
        fn drop(&mut self) {
            self.controller().stop();
        }
    }

    fn write_model(folder: &tempfile::TempDir, name: &str, batch_ms: u32, load_ms: u32) {
        let config = format!(
            "platform: \"emulated\" max_batch_size: 8
             parameters {{ key: \"emulated_latency\" value {{ string_value: \"alpha_ms=0,beta_ms={batch_ms},load_ms={load_ms}\" }} }}
             parameters {{ key: \"weights_mb\" value {{ string_value: \"5\" }} }}"
        );
        std::fs::create_dir_all(folder.path().join(name).join("1")).unwrap();
        std::fs::write(folder.path().join(name).join("config.pbtxt"), config).unwrap();
    }

    /// What gateways and executors count when so many requests are answered, each of which takes 1 ms, and so many are refused.
    fn count(served: &crate::ServedModel, answered: u64, refused: u64) {
        (0..answered).for_each(|_| served.metrics.answered(Duration::ZERO));
        (0..refused).for_each(|_| served.metrics.ended(Reason::Overloaded, Duration::ZERO));
        let at = Timestamp::ZERO;
        let times = BatchTimes { started_at: at, gathered_at: at, computed_at: at, ended_at: at };
        served.metrics.statistics().computed(answered, 1, Duration::ZERO, &times);
        served.metrics.executed(1, Duration::from_millis(answered));
    }

    fn until(what: &str, mut look: impl FnMut() -> bool) {
        let patience = std::time::Instant::now() + std::time::Duration::from_secs(120);
        while !look() {
            assert!(std::time::Instant::now() < patience, "waited for {what}");
            std::thread::yield_now();
        }
    }

    fn all_answered(answers: Vec<oneshot::Receiver<Reply>>) {
        for answer in answers {
            let reply = answer.blocking_recv().expect("every request gets an answer (P1)");
            assert!(matches!(reply, Reply::Outputs(_)), "{reply:?}");
        }
    }

    #[test]
    fn of_two_hot_models_in_one_cell_one_moves_and_every_request_is_answered() {
        let mut bench = Bench::new(2, 5, 1, 4);
        let old = ["a", "b", "c"].map(|name| bench.served(name).id);
        assert_eq!(["a", "b", "c"].map(|name| bench.cell_of(name)), [0, 1, 0]);
        let mut answers = bench.ask(old[0], 100);
        answers.extend(bench.ask(old[2], 100));
        bench.begin();
        answers.extend(bench.ask(old[0], 100));
        assert_eq!(bench.served("a").id, old[0], "it is asked for where it is until its weights are there");
        bench.end();
        assert_eq!(["a", "b", "c"].map(|name| bench.cell_of(name)), [1, 1, 0]);
        assert!(bench.resident("a").contains(&"emulated:1".to_owned()), "its weights came before its requests");
        // Whoever looked it up before asks by its old number, others by its new one.
        answers.extend(bench.ask(old[0], 100));
        answers.extend(bench.ask(bench.served("a").id, 100));
        all_answered(answers);
        assert!(bench.is_well());
        until("the old cell to give it up", || bench.resident("a") == ["emulated:1"]);
        assert!(bench.shows("punctual_cell_moves_total{from=\"0\",to=\"1\"} 1"));
        all_answered(bench.ask(old[0], 10));
    }

    #[test]
    fn a_model_that_needs_two_devices_is_on_both_before_it_moves() {
        // Room for one model on each device, so that nothing is loaded where nobody asks for it.
        let mut bench = Bench::with_devices(2, 4, (5, 1), 1);
        bench.begin_with(56_000, 40_000);
        bench.end();
        assert_eq!(bench.cell_of("a"), 1);
        let mut there = bench.resident("a");
        there.sort();
        assert_eq!(there, ["emulated:2", "emulated:3"], "without waiting for half a minute");
    }

    #[test]
    fn to_clients_a_model_that_moved_is_the_same() {
        let mut bench = Bench::new(2, 1, 1, 4);
        let before = bench.served("a");
        bench.begin();
        bench.end();
        all_answered(bench.ask(bench.served("a").id, 7));
        let after = bench.served("a");
        assert!(Arc::ptr_eq(&before.config, &after.config) && Arc::ptr_eq(&before.signature, &after.signature));
        until("the last report", || after.metrics.demand().computed == 28_007);
        assert_eq!(before.metrics.demand(), after.metrics.demand(), "what was counted before counts on");
        assert!(bench.shows("punctual_models{state=\"ready\"} 3"));
        assert_eq!(bench.controller().catalogue().models.len(), 3);
    }

    #[test]
    fn what_is_queued_for_weights_that_are_nowhere_is_not_refused() {
        // Room for one model on each device: while `c` runs for long, `a` waits for its place.
        let mut bench = Bench::new(2, 500, 1, 1);
        let [a, c] = ["a", "c"].map(|name| bench.served(name).id);
        bench.begin();
        let mut answers = bench.ask(c, 2);
        until("the first batch", || bench.resident("c") == ["emulated:0"]);
        answers.extend(bench.ask(a, 3));
        bench.end();
        assert_eq!(bench.cell_of("a"), 1);
        all_answered(answers);
        assert!(bench.is_well());
    }

    #[test]
    fn a_request_that_was_sent_on_is_taken_back_where_it_is() {
        let mut bench = Bench::new(2, 500, 1, 4);
        let old = bench.served("a").id;
        bench.begin();
        bench.end();
        // The device is busy with a batch, behind which the next one waits.
        let busy = bench.ask(bench.served("a").id, 1);
        let (ticket, answer) = bench.submit(old);
        bench.controller().cancel(ticket.unwrap());
        bench.controller().drive();
        let reply = answer.blocking_recv().unwrap();
        assert!(matches!(reply, Reply::Refused(Refusal { reason: Reason::DeadlineMissed, .. })), "{reply:?}");
        all_answered(busy);
        assert!(bench.is_well());
    }

    #[test]
    fn a_model_that_is_unloaded_while_it_moves_is_gone_from_both_cells() {
        let mut bench = Bench::new(2, 1, 1, 4);
        let before = bench.served("a");
        let answers = bench.ask(before.id, 10);
        bench.begin();
        all_answered(answers);
        bench.shelf.apply(vec![Change::Removed { name: "a".into(), version: Some(1) }]);
        bench.end();
        assert!(!bench.controller().catalogue().models.contains_key("a"));
        let reply = bench.ask(before.id, 1).remove(0).blocking_recv().unwrap();
        assert!(matches!(reply, Reply::Refused(Refusal { reason: Reason::ModelUnavailable, .. })), "{reply:?}");
        until("its weights to be gone", || before.metrics.totals().resident.is_empty());
        all_answered(bench.ask(bench.served("b").id, 5));
        assert!(bench.is_well() && !bench.shows("punctual_cell_moves_total{from=\"0\",to=\"1\"} 1"));
    }

    #[test]
    fn a_model_that_is_replaced_while_it_moves_stays_what_it_was_replaced_by() {
        let mut bench = Bench::new(2, 1, 1, 4);
        let before = bench.served("a").id;
        let answers = bench.ask(before, 10);
        bench.begin();
        all_answered(answers);
        write_model(&bench.folder, "a", 2, 1);
        let mut repository = Repository::open([bench.folder.path()]).unwrap();
        let changed = repository.scan_one("a", None).into_iter().map(Change::Changed).collect();
        bench.shelf.apply(changed);
        let replaced = bench.served("a").id;
        assert_ne!(replaced, before);
        bench.end();
        assert_eq!(bench.served("a").id, replaced);
        all_answered(bench.ask(replaced, 10));
        assert!(bench.is_well() && !bench.shows("punctual_cell_moves_total{from=\"0\",to=\"1\"} 1"));
    }

    #[test]
    fn a_model_whose_weights_do_not_come_stays_and_rests() {
        let mut bench = Bench::new(2, 1, 60_000, 4);
        let before = bench.served("a").id;
        bench.begin();
        bench.look_after(29);
        assert!(bench.moves(), "there is time left");
        bench.look_after(1);
        assert!(!bench.moves());
        assert_eq!(bench.served("a").id, before);
        for name in ["a", "c"] {
            count(&bench.served(name), 28_000, 20_000);
        }
        bench.look_after(60);
        let next = bench.shelf.moves.as_ref().unwrap().under_way.as_ref().map(|next| next.chosen.model.0.clone());
        assert_eq!(next.as_deref(), Some("c"), "the other one may go");
        // To end the server would take as long as the loads.
        std::fs::remove_dir_all(bench.folder.path()).unwrap();
        std::mem::forget(bench);
    }

    #[test]
    fn with_one_cell_nobody_looks() {
        let mut bench = Bench::new(1, 1, 1, 4);
        assert_eq!(bench.shelf.until_balanced(), None);
        assert!(bench.shelf.versions.values().all(|version| version.service.as_ref().unwrap().again.is_none()));
        bench.look_after(60);
        assert!(bench.shelf.moves.is_none());
    }
}
