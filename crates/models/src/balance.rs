//! Chooses models that move from a cell that is short to one that has room, and switches them over.
//!
//! ```text
//!  asked for in the old cell ──────────────────────────────────┐ catalogue ─> asked for in the new cell
//!    measured ─> chosen ─> published in the new cell, loaded ──┘ └─> the old cell sends on what still comes, finishes
//!                                                                    what it has, withdraws the model
//! ```
//!
//! The new cell has the weights before requests come, on as many devices as the model keeps busy. To clients it is one
//! model all the time, with one set of statistics. All of it happens on the thread that publishes models, so that a
//! move never meets a client's order.

use crate::catalogue::{AnsweredBy, CatalogueEntry, ModelState, PublishedModel, ServedModel};
use crate::publisher::{ModelKey, PublishedVersion, Publisher, Version};
use base::{Duration, ModelNumber, Timestamp};
use controller::Controller;
use planner::cells::{Balancer, Move, MoveConfig, Placed};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How often it is looked whether a cell is short.
const EVERY: Duration = Duration::from_secs(5);
/// How often it is looked whether weights are loaded, while a model moves.
const WHILE_LOADING: Duration = Duration::from_millis(50);
/// After so long a model goes with the devices that it has there, or stays if it has none.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which models should be in which cell.
pub(crate) struct Moves {
    balancer: Balancer<ModelKey>,
    under_way: Option<MoveUnderWay>,
    /// Models that were brought to others of their pipeline, or couldn't be: each is once, as two pipelines may want it
    /// in two cells.
    brought: BTreeSet<ModelKey>,
    look_at: Timestamp,
}

/// A model that is in two cells.
struct MoveUnderWay {
    chosen: Move<ModelKey>,
    old: ModelNumber,
    new: ModelNumber,
    since: Timestamp,
    /// On how many devices it was at the last look.
    loaded: usize,
}

impl Moves {
    pub(crate) fn new(now: Timestamp) -> Self {
        let balancer = Balancer::new(MoveConfig::default());
        Self { balancer, under_way: None, brought: BTreeSet::new(), look_at: now }
    }
}

impl Publisher {
    /// When to look at the cells next; `None` where there is only one.
    pub(crate) fn balance_next_at(&self) -> Option<Timestamp> {
        Some(self.moves.as_ref()?.look_at)
    }

    /// Looks whether a model should move, or goes on with one that moves.
    pub(crate) fn balance_at(&mut self, now: Timestamp) {
        let Some(mut moves) = self.moves.take() else { return };
        moves.under_way = match moves.under_way.take() {
            Some(under_way) => self.go_on(&mut moves, now, under_way),
            None => self.choose(&mut moves, now),
        };
        moves.look_at = now + if moves.under_way.is_some() { WHILE_LOADING } else { EVERY };
        self.moves = Some(moves);
    }

    /// Chooses a model and brings it into another cell, if one should be there.
    fn choose(&self, moves: &mut Moves, now: Timestamp) -> Option<MoveUnderWay> {
        let controller = &self.bring_up.controller;
        let placed = |(key, version): (&ModelKey, &Version)| Some((key.clone(), placed(controller, version)?));
        moves.balancer.observe(now, self.versions.iter().filter_map(placed));
        let chosen = match self.bring_together(moves) {
            Some(chosen) => chosen,
            None => {
                let chosen = moves.balancer.choose(now, &controller.rooms())?;
                if self.is_with_others(&chosen.model) {
                    // A scheduler that knows a whole pipeline is worth more than even cells; others may go instead.
                    moves.balancer.moved(now, &chosen.model);
                    return None;
                }
                chosen
            }
        };
        let PublishedVersion { model, prepared, .. } = self.versions.get(&chosen.model)?.published()?;
        let new = controller.publish_in(chosen.to, Arc::clone(&model.record), Arc::clone(prepared));
        Some(MoveUnderWay { chosen, old: model.id, new, since: now, loaded: 0 })
    }

    /// A model that isn't in the cell in which the first one of its pipeline is.
    fn bring_together(&self, moves: &mut Moves) -> Option<Move<ModelKey>> {
        let cell = |key: &ModelKey| Some(placed(&self.bring_up.controller, self.versions.get(key)?)?.cell);
        for models in self.pipelines_models() {
            let Some(to) = models.first().and_then(cell) else { continue };
            let other = models.into_iter().filter(|key| !moves.brought.contains(key)).find_map(|key| {
                let from = cell(&key).filter(|&from| from != to)?;
                Some((key, from))
            });
            if let Some((model, from)) = other {
                tracing::info!(model = model.0, "goes to cell {to}, where the others of its pipeline are");
                moves.brought.insert(model.clone());
                return Some(Move { model, from, to, asked: 0.0, before: [0.0; 2], after: [0.0; 2], bad: 0.0 });
            }
        }
        None
    }

    /// Whether a model is one of several of a pipeline.
    fn is_with_others(&self, key: &ModelKey) -> bool {
        self.pipelines_models().any(|models| models.len() > 1 && models.contains(key))
    }

    /// The models of each pipeline that can be asked, in the order of its stages.
    fn pipelines_models(&self) -> impl Iterator<Item = Vec<ModelKey>> {
        self.versions.values().filter_map(|version| match &version.entry.serving()?.by {
            AnsweredBy::Endpoint(endpoint) => Some(endpoint.models_in_order()),
            AnsweredBy::Model(_) => None,
        })
    }

    /// Switches over to the new cell once the weights are there; what remains to be done.
    fn go_on(&mut self, moves: &mut Moves, now: Timestamp, under_way: MoveUnderWay) -> Option<MoveUnderWay> {
        let MoveUnderWay { chosen, old, new, since, loaded: before } = &under_way;
        let controller = &self.bring_up.controller;
        let ((name, version), waited) = (&chosen.model, now.since(*since) >= PATIENCE);
        let model = self.versions.get(&chosen.model).and_then(|version| version.entry.serving()?.model());
        if model.is_none_or(|model| model.id != *old) {
            // It was withdrawn or replaced meanwhile.
            controller.withdraw(*new);
            return None;
        }
        match controller.loaded_on(*new) {
            loaded if loaded >= controller.devices_needed(chosen.asked, *new) || (waited && loaded > 0) => {
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
                controller.withdraw(*new);
                moves.balancer.moved(now, &chosen.model);
                None
            }
            // One load after another, until there are enough: each is for one device.
            loaded => {
                if loaded > *before {
                    controller.load_on_one_more(*new);
                }
                Some(MoveUnderWay { loaded, ..under_way })
            }
        }
    }

    /// The model is asked for in the new cell from now on.
    fn switch(&mut self, chosen: &Move<ModelKey>, old: ModelNumber, new: ModelNumber) {
        let (name, number) = &chosen.model;
        let Some(version) = self.versions.get_mut(&chosen.model) else { return };
        let Some(served) = version.entry.serving() else { return };
        let Some(model) = served.model() else { return };
        let by = AnsweredBy::Model(PublishedModel { id: new, ..model.clone() });
        let served = ServedModel { by, ..served.clone() };
        version.entry = Arc::new(CatalogueEntry::settled(name, *number, ModelState::Ready(served)));
        self.update_catalogue();
        let controller = &self.bring_up.controller;
        controller.depart(old, new);
        controller.metrics().moved_model(chosen.from, chosen.to);
        tracing::info!(model = name, version = number, "moved to another cell: {chosen}");
    }
}

/// Where a version is and what was counted for it, if it can be asked.
fn placed(controller: &Controller, version: &Version) -> Option<Placed> {
    let PublishedVersion { model, prepared, .. } = version.published()?;
    Some(controller.placed(model.id, &model.record, &**prepared))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bring_up::BringUp;
    use crate::{ControlMode, ManagerConfig, Registry};
    use base::{ApplicationId, DataType, Reason};
    use bytes::Bytes;
    use controller::{
        ControllerConfig, DeviceConfig, ExecutionLimits, Refusal, Reply, Submission, Tensor, Ticket, deal,
    };
    use engine::EmulatedEngine;
    use repository::{Change, Repository, Sources};
    use std::sync::mpsc;
    use telemetry::{BatchTimes, Metrics};
    use tokio::sync::oneshot;

    const PAGE: u64 = 1 << 20;
    const WIDTH: u32 = 3;
    /// A full batch: no policy has a reason to let it wait.
    const ROWS: u32 = 8;

    /// A server with one emulated device in each cell and the models `a`, `b` and `c`. With two cells, `b` is alone in
    /// the second.
    struct TestServer {
        publisher: Publisher,
        now: Timestamp,
        folder: tempfile::TempDir,
    }

    impl TestServer {
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
                cells: deal((0..devices).map(device).collect(), 1, cells).unwrap(),
                online_profile_share: 0.0,
                limits: ExecutionLimits::default(),
            };
            let controller = Controller::start(config, Metrics::new()).unwrap();
            let engine = Arc::new(EmulatedEngine::new(WIDTH));
            let config = ManagerConfig { control: ControlMode::None, ..ManagerConfig::new(folder.path(), engine) };
            let sources = Arc::new(Sources::open(&config.sources, None).unwrap());
            let repository = Repository::open(sources.roots()).unwrap();
            let now = controller.now();
            let bring_up = BringUp::new(controller, config, Arc::default());
            let mut publisher = Publisher::new(bring_up, Registry::default(), repository, sources);
            publisher.start(mpsc::channel().0).unwrap();
            Self { publisher, now, folder }
        }

        fn controller(&self) -> &Controller {
            &self.publisher.bring_up.controller
        }

        fn served(&self, name: &str) -> ServedModel {
            let catalogue = self.publisher.registry.catalogue();
            catalogue.models[name].default_version().unwrap().serving().unwrap().clone()
        }

        fn id(&self, name: &str) -> ModelNumber {
            self.served(name).model().unwrap().id
        }

        /// Publishes the endpoint `both`, which asks `a` and then `b`.
        fn add_pipeline(&mut self) {
            let stages: String = [("a", "input", "t"), ("b", "t", "y")]
                .map(|(model, from, to)| {
                    format!("[[stage]]\nmodel = \"{model}\"\ninputs.input = \"{from}\"\noutputs.output = \"{to}\"\n")
                })
                .concat();
            let text = format!("kind = \"pipeline\"\ninputs = [\"input\"]\noutputs = [\"y\"]\n{stages}");
            std::fs::create_dir_all(self.folder.path().join("both")).unwrap();
            std::fs::write(self.folder.path().join("both/endpoint.toml"), text).unwrap();
            let mut repository = Repository::open([self.folder.path()]).unwrap();
            let [found] = &repository.scan_one("both", None)[..] else { panic!("there is one version") };
            self.publisher.apply(vec![Change::Added(found.clone())]);
        }

        /// By which number its scheduler knows `both`, if one does.
        fn pipeline_number(&self) -> Option<u32> {
            match self.served("both").by {
                AnsweredBy::Endpoint(endpoint) => match &endpoint.how {
                    crate::EndpointPlan::Pipeline { known: Some(known), .. } => Some(known.announced.number().0),
                    _ => None,
                },
                AnsweredBy::Model(_) => panic!("it is an endpoint"),
            }
        }

        fn cell_of(&self, name: &str) -> usize {
            placed(self.controller(), &self.publisher.versions[&(name.to_owned(), 1)]).unwrap().cell
        }

        /// So many seconds pass, and the cells are looked at.
        fn look_after(&mut self, seconds: u64) {
            self.now += Duration::from_secs(seconds);
            self.publisher.balance_at(self.now);
        }

        fn moves(&self) -> bool {
            self.publisher.moves.as_ref().unwrap().under_way.is_some()
        }

        /// A minute in which `a` and `c` ask for more than their device has, and a look at what was counted: one of
        /// them is to move, the first as they are equal.
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

        fn submit(&self, model: ModelNumber) -> (Option<Ticket>, oneshot::Receiver<Reply>) {
            let (reply, answer) = oneshot::channel();
            let data = Bytes::from(vec![0; (ROWS * WIDTH) as usize * 4]);
            let inputs = vec![Tensor { datatype: DataType::Fp32, shape: vec![ROWS.into(), WIDTH.into()], data }];
            let deadline_at = self.controller().now() + Duration::from_secs(600);
            let (application, size, trace, account) = (ApplicationId::DEFAULT, None, None, None);
            let (rows, priority) = (ROWS, 0);
            let submission =
                Submission { model, inputs, rows, deadline_at, priority, application, size, trace, account, reply };
            (self.controller().submit(submission), answer)
        }

        fn ask(&self, model: ModelNumber, times: usize) -> Vec<oneshot::Receiver<Reply>> {
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
            let counted = text.lines().filter(|line| line.starts_with("punctual_invariant_violations_total{"));
            let violations: Vec<&str> = counted.filter(|line| !line.ends_with(" 0")).collect();
            assert_eq!(violations, [""; 0]);
            true
        }
    }

    impl Drop for TestServer {
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

    /// What gateways and executors count when so many requests are answered, each of which takes 1 ms, and so many are
    /// refused.
    fn count(served: &ServedModel, answered: u64, refused: u64) {
        (0..answered).for_each(|_| served.metrics.answered(telemetry::Asker::Client, Duration::ZERO));
        (0..refused).for_each(|_| served.metrics.ended(telemetry::Asker::Client, Reason::Overloaded, Duration::ZERO));
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
    fn models_of_a_pipeline_are_brought_together_and_stay_so() {
        // `b` is alone in the second cell.
        let mut server = TestServer::new(2, 1, 0, 3);
        server.add_pipeline();
        let is_known = |server: &TestServer| server.pipeline_number().is_some();
        assert_ne!(server.cell_of("a"), server.cell_of("b"));
        assert!(!is_known(&server), "no scheduler has both");
        server.look_after(0);
        assert!(server.moves());
        server.end();
        assert_eq!(server.cell_of("a"), server.cell_of("b"));
        assert!(is_known(&server));
        // Now all three are in one cell, which is short: `c` goes, and not one of the two.
        count(&server.served("a"), 28_000, 20_000);
        count(&server.served("c"), 28_000, 20_000);
        for _ in 0..4 {
            server.look_after(60);
            server.end();
        }
        assert_eq!(server.cell_of("a"), server.cell_of("b"));
        assert!(server.is_well());
    }

    #[test]
    fn a_pipeline_that_comes_and_goes_has_the_number_of_those_that_are_gone() {
        let mut server = TestServer::new(1, 1, 0, 3);
        for _ in 0..20 {
            server.add_pipeline();
            assert_eq!(server.pipeline_number(), Some(0));
            let under_way = server.served("both");
            let version = Some(server.publisher.versions.keys().find(|key| key.0 == "both").unwrap().1);
            server.publisher.apply(vec![Change::Removed { name: "both".into(), version }]);
            server.add_pipeline();
            assert_eq!(server.pipeline_number(), Some(1), "requests go by the old one");
            drop(under_way);
            server.publisher.apply(vec![Change::Removed { name: "both".into(), version }]);
        }
        assert!(server.is_well());
    }

    #[test]
    fn of_two_hot_models_in_one_cell_one_moves_and_every_request_is_answered() {
        let mut server = TestServer::new(2, 5, 1, 4);
        let old = ["a", "b", "c"].map(|name| server.id(name));
        assert_eq!(["a", "b", "c"].map(|name| server.cell_of(name)), [0, 1, 0]);
        let mut answers = server.ask(old[0], 100);
        answers.extend(server.ask(old[2], 100));
        server.begin();
        answers.extend(server.ask(old[0], 100));
        assert_eq!(server.id("a"), old[0], "it is asked for where it is until its weights are there");
        server.end();
        assert_eq!(["a", "b", "c"].map(|name| server.cell_of(name)), [1, 1, 0]);
        assert!(server.resident("a").contains(&"emulated:1".to_owned()), "its weights came before its requests");
        // Whoever looked it up before asks by its old number, others by its new one.
        answers.extend(server.ask(old[0], 100));
        answers.extend(server.ask(server.id("a"), 100));
        all_answered(answers);
        assert!(server.is_well());
        until("the old cell to give it up", || server.resident("a") == ["emulated:1"]);
        assert!(server.shows("punctual_cell_moves_total{from=\"0\",to=\"1\"} 1"));
        all_answered(server.ask(old[0], 10));
    }

    #[test]
    fn a_model_that_needs_two_devices_is_on_both_before_it_moves() {
        // Room for one model on each device, so that nothing is loaded where nobody asks for it.
        let mut server = TestServer::with_devices(2, 4, (5, 1), 1);
        server.begin_with(56_000, 40_000);
        server.end();
        assert_eq!(server.cell_of("a"), 1);
        let mut there = server.resident("a");
        there.sort();
        assert_eq!(there, ["emulated:2", "emulated:3"], "without waiting for half a minute");
    }

    #[test]
    fn to_clients_a_model_that_moved_is_the_same() {
        let mut server = TestServer::new(2, 1, 1, 4);
        let before = server.served("a");
        server.begin();
        server.end();
        all_answered(server.ask(server.id("a"), 7));
        let after = server.served("a");
        let record = |served: &ServedModel| Arc::clone(&served.model().unwrap().record);
        assert!(Arc::ptr_eq(&before.config, &after.config) && Arc::ptr_eq(&record(&before), &record(&after)));
        until("what is counted now to be added to what was", || before.metrics.demand().computed == 28_007);
        assert!(server.shows("punctual_models{state=\"ready\"} 3"));
        assert_eq!(server.publisher.registry.catalogue().models.len(), 3);
    }

    #[test]
    fn what_is_queued_for_weights_that_are_nowhere_is_not_refused() {
        // Room for one model on each device: while `c` runs for long, `a` waits for its place.
        let mut server = TestServer::new(2, 500, 1, 1);
        let [a, c] = ["a", "c"].map(|name| server.id(name));
        server.begin();
        let mut answers = server.ask(c, 2);
        until("the first batch", || server.resident("c") == ["emulated:0"]);
        answers.extend(server.ask(a, 3));
        server.end();
        assert_eq!(server.cell_of("a"), 1);
        all_answered(answers);
        assert!(server.is_well());
    }

    #[test]
    fn a_request_that_was_sent_on_is_taken_back_where_it_is() {
        let mut server = TestServer::new(2, 500, 1, 4);
        let old = server.id("a");
        server.begin();
        server.end();
        // The device is busy with a batch, behind which the next one waits.
        let busy = server.ask(server.id("a"), 1);
        let (ticket, answer) = server.submit(old);
        server.controller().cancel(ticket.unwrap());
        server.controller().drive();
        let reply = answer.blocking_recv().unwrap();
        assert!(matches!(reply, Reply::Refused(Refusal { reason: Reason::DeadlineMissed, .. })), "{reply:?}");
        all_answered(busy);
        assert!(server.is_well());
    }

    #[test]
    fn a_model_that_is_withdrawn_while_it_moves_is_gone_from_both_cells() {
        // Its weights come later than the change: with them there it has moved.
        let mut server = TestServer::new(2, 1, 500, 4);
        let before = server.served("a");
        let answers = server.ask(before.model().unwrap().id, 10);
        server.begin();
        all_answered(answers);
        server.publisher.apply(vec![Change::Removed { name: "a".into(), version: Some(1) }]);
        server.end();
        assert!(!server.publisher.registry.catalogue().models.contains_key("a"));
        let reply = server.ask(before.model().unwrap().id, 1).remove(0).blocking_recv().unwrap();
        assert!(matches!(reply, Reply::Refused(Refusal { reason: Reason::ModelUnavailable, .. })), "{reply:?}");
        until("its weights to be gone", || before.metrics.totals().resident.is_empty());
        all_answered(server.ask(server.id("b"), 5));
        assert!(server.is_well() && !server.shows("punctual_cell_moves_total{from=\"0\",to=\"1\"} 1"));
    }

    #[test]
    fn a_model_that_is_replaced_while_it_moves_stays_what_it_was_replaced_by() {
        // Its weights come later than the change: with them there it has moved.
        let mut server = TestServer::new(2, 1, 500, 4);
        let before = server.id("a");
        let answers = server.ask(before, 10);
        server.begin();
        all_answered(answers);
        write_model(&server.folder, "a", 2, 1);
        let mut repository = Repository::open([server.folder.path()]).unwrap();
        let changed = repository.scan_one("a", None).into_iter().map(Change::Changed).collect();
        server.publisher.apply(changed);
        let replaced = server.id("a");
        assert_ne!(replaced, before);
        server.end();
        assert_eq!(server.id("a"), replaced);
        all_answered(server.ask(replaced, 10));
        assert!(server.is_well() && !server.shows("punctual_cell_moves_total{from=\"0\",to=\"1\"} 1"));
    }

    #[test]
    fn a_model_whose_weights_do_not_come_stays_and_rests() {
        let mut server = TestServer::new(2, 1, 60_000, 4);
        let before = server.id("a");
        server.begin();
        server.look_after(29);
        assert!(server.moves(), "there is time left");
        server.look_after(1);
        assert!(!server.moves());
        assert_eq!(server.id("a"), before);
        for name in ["a", "c"] {
            count(&server.served(name), 28_000, 20_000);
        }
        server.look_after(60);
        let next = server.publisher.moves.as_ref().unwrap().under_way.as_ref().map(|next| next.chosen.model.0.clone());
        assert_eq!(next.as_deref(), Some("c"), "the other one may go");
        // To end the server would take as long as the loads.
        std::fs::remove_dir_all(server.folder.path()).unwrap();
        std::mem::forget(server);
    }

    #[test]
    fn with_one_cell_nobody_looks() {
        let mut server = TestServer::new(1, 1, 1, 4);
        assert_eq!(server.publisher.until_look(), None);
        server.look_after(60);
        assert!(server.publisher.moves.is_none());
    }
}
