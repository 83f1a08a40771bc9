//! Numbers of models are given again: a model that has the number of one that is gone has nothing else of it, and what
//! a scheduler keeps grows with the models that are there, not with those that ever were.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

use base::{
    ActionId, ApplicationId, DeviceId, Duration, LatencyProfile, ModelId, PipelineId, RequestId, Timestamp, Transfers,
};
use scheduler::{
    ActionStatus, Allotment, Command, Config, DeviceSpec, Event, Fairness, ModelSpec, Outcome, PipelineSpec,
    PipelineStage, PolicyKind, Rejection, Report, Request, Scheduler, StageSpec,
};

const STAYS: ModelId = ModelId(0);
const COMES_AND_GOES: ModelId = ModelId(1);
const MILLI: Duration = Duration::from_millis(1);

/// A scheduler whose orders are carried out as it expects them to be.
struct World {
    scheduler: Scheduler,
    now: Timestamp,
    requests: u32,
    /// What was ordered, and when it is over.
    under_way: Vec<(Timestamp, ActionId)>,
    outcomes: Vec<Outcome>,
    batches: Vec<(ModelId, u32)>,
}

impl World {
    fn new(policy: PolicyKind) -> Self {
        let config = Config { policy, batch_delay: Duration::ZERO, ..Config::default() };
        let mut world = Self {
            scheduler: Scheduler::new(config),
            now: Timestamp::ZERO,
            requests: 0,
            under_way: Vec::new(),
            outcomes: Vec::new(),
            batches: Vec::new(),
        };
        for device in (0..2).map(DeviceId) {
            world.tell(Event::DeviceAdded(DeviceSpec { device, pages: 10, kind: 0 }));
        }
        world
    }

    fn tell(&mut self, event: Event) {
        let mut commands = Vec::new();
        self.scheduler.step(self.now, event, &mut commands);
        for command in commands {
            match command {
                Command::Execute(execution) => {
                    self.under_way.push((self.now + execution.expected, execution.action));
                    self.batches.push((execution.model, execution.batch));
                }
                Command::Load(load) => self.under_way.push((self.now + load.expected, load.action)),
                Command::Finish { outcome, .. } => self.outcomes.push(outcome),
                Command::Unload(_) | Command::Preempt { .. } => {}
            }
        }
    }

    fn add(&mut self, model: ModelId, each: Duration, sizes: &[u32]) {
        self.tell(Event::ModelAdded(ModelSpec {
            model,
            pages: 1,
            profile: LatencyProfile::linear(each, MILLI, sizes, MILLI).unwrap(),
            elsewhere: Vec::new(),
            objective: None,
            fixed: Duration::ZERO,
            fairness: Fairness::default(),
        }));
    }

    fn request(&mut self, model: ModelId, deadline_at: Timestamp) -> Request {
        self.requests += 1;
        // More slots than are ever in hand at once, so that none is given while it is.
        let id = RequestId { slot: self.requests % 64, generation: self.requests / 64 };
        Request { id, model, deadline_at, priority: 0, rows: 1, application: ApplicationId::DEFAULT, size: None }
    }

    fn ask(&mut self, model: ModelId, within: Duration) {
        let request = self.request(model, self.now + within);
        self.tell(Event::Submitted(request));
    }

    fn ask_for_batch_work(&mut self, model: ModelId) {
        let request = self.request(model, Timestamp::NEVER);
        self.tell(Event::Submitted(request));
    }

    /// Lets everything end that is in hand or under way.
    fn run(&mut self) {
        for _ in 0..10_000 {
            self.under_way.sort_unstable();
            let ends = self.under_way.first().map(|&(at, _)| at);
            let wakes = self.scheduler.next_wakeup().map(|(at, _)| at).filter(|_| self.scheduler.in_hand() > 0);
            let Some(at) = ends.into_iter().chain(wakes).min() else { return };
            let started_at = self.now;
            self.now = self.now.max(at);
            if ends.is_some_and(|ends| ends <= at) {
                let (ended_at, action) = self.under_way.remove(0);
                let status = ActionStatus::Done { started_at, ended_at, transfers: Transfers::default() };
                self.tell(Event::Reported(Report { action, status }));
            } else {
                self.tell(Event::WokeUp);
            }
        }
        panic!("it doesn't come to an end: {:?}", self.scheduler);
    }

    /// Lets what was ordered end now.
    fn end(&mut self) {
        for (_, action) in std::mem::take(&mut self.under_way) {
            let transfers = Transfers::default();
            let status = ActionStatus::Done { started_at: self.now, ended_at: self.now, transfers };
            self.tell(Event::Reported(Report { action, status }));
        }
    }

    fn remove(&mut self, model: ModelId) {
        self.tell(Event::ModelRemoved(model));
        self.run();
        assert!(self.scheduler.left_nothing(model), "{:?}", self.scheduler);
    }
}

const QUICK: (Duration, &[u32]) = (MILLI, &[1, 2, 4]);
const SLOW: (Duration, &[u32]) = (Duration::from_millis(5), &[1, 3]);

#[test]
fn what_a_scheduler_keeps_does_not_grow_with_the_models_that_ever_were() {
    for &policy in PolicyKind::ALL {
        let mut world = World::new(policy);
        world.add(STAYS, MILLI, &[1, 2, 4]);
        let mut size = 0;
        for round in 0..2_000 {
            let (each, sizes) = if round % 2 == 0 { QUICK } else { SLOW };
            world.add(COMES_AND_GOES, each, sizes);
            for _ in 0..3 {
                world.ask(COMES_AND_GOES, Duration::from_millis(500));
                world.ask(STAYS, Duration::from_millis(500));
            }
            world.ask_for_batch_work(COMES_AND_GOES);
            // Mostly it is asked for until it goes, sometimes it goes while it is asked for.
            if round % 3 > 0 {
                world.run();
                assert!(world.outcomes.iter().all(|&outcome| outcome == Outcome::Done), "{policy:?}: {round}");
            }
            world.remove(COMES_AND_GOES);
            let known = |&(model, batch): &(ModelId, u32)| model != COMES_AND_GOES || sizes.contains(&batch);
            assert!(world.batches.iter().all(known), "{policy:?}: {:?}, of {sizes:?}", world.batches);
            assert_eq!(world.scheduler.in_hand(), 0, "{policy:?}");
            world.outcomes.clear();
            world.batches.clear();
            // All that is kept, in words. What is learnt of a model has a bound that is reached by then.
            match round {
                500 => size = format!("{:?}", world.scheduler).len(),
                1_999 => {
                    let now = format!("{:?}", world.scheduler).len();
                    assert!(now < size + size / 10, "{policy:?}: {size} letters after 500 models, {now} after 2,000");
                }
                _ => {}
            }
        }
    }
}

#[test]
#[should_panic(expected = "m1 was added twice")]
fn a_number_is_not_given_while_something_is_left() {
    let mut world = World::new(PolicyKind::Punctual);
    world.add(STAYS, MILLI, &[1]);
    world.add(COMES_AND_GOES, MILLI, &[1]);
    world.ask(COMES_AND_GOES, Duration::from_secs(1));
    world.tell(Event::ModelRemoved(COMES_AND_GOES));
    assert!(!world.scheduler.left_nothing(COMES_AND_GOES));
    world.add(COMES_AND_GOES, MILLI, &[1]);
}

/// The server ended when a model went whose weights were parked and in use: its number was given back before they were
/// unloaded.
#[test]
fn something_is_left_of_a_model_whose_parked_weights_are_in_use_or_on_their_way() {
    for is_loaded in [true, false] {
        let mut world = World::new(PolicyKind::Punctual);
        world.add(STAYS, MILLI, &[1]);
        world.add(COMES_AND_GOES, MILLI, &[1]);
        if is_loaded {
            world.ask(COMES_AND_GOES, Duration::from_secs(1));
            world.run();
        }
        world.ask(COMES_AND_GOES, Duration::from_secs(1));
        assert!(!world.under_way.is_empty(), "a batch, or a load");
        let only_the_other = |device| Allotment { device, models: Some(vec![STAYS]) };
        world.tell(Event::Allotted((0..2).map(DeviceId).map(only_the_other).collect()));
        world.tell(Event::ModelRemoved(COMES_AND_GOES));
        assert!(!world.scheduler.left_nothing(COMES_AND_GOES), "loaded: {is_loaded}");
        world.run();
        assert!(world.scheduler.left_nothing(COMES_AND_GOES), "loaded: {is_loaded}");
        world.add(COMES_AND_GOES, MILLI, &[1]);
    }
}

/// Batch work has no deadline by which it would be refused: it waited for ever, and so did the model's number.
#[test]
fn what_is_queued_for_a_removed_model_is_refused_when_it_may_run_nowhere() {
    let mut world = World::new(PolicyKind::Punctual);
    world.add(STAYS, MILLI, &[1]);
    world.add(COMES_AND_GOES, MILLI, &[1]);
    (0..20).for_each(|_| world.ask_for_batch_work(COMES_AND_GOES));
    world.tell(Event::ModelRemoved(COMES_AND_GOES));
    assert_eq!(world.scheduler.in_hand(), 20, "they are served where its weights will be");
    let only_the_other = |device| Allotment { device, models: Some(vec![STAYS]) };
    world.tell(Event::Allotted((0..2).map(DeviceId).map(only_the_other).collect()));
    world.run();
    assert!(world.scheduler.left_nothing(COMES_AND_GOES), "{:?}", world.scheduler);
    assert_eq!(world.outcomes.len(), 20);
}

#[test]
fn a_pipeline_of_a_model_that_is_gone_is_not_one_of_the_model_that_has_its_number() {
    let mut world = World::new(PolicyKind::Punctual);
    world.add(STAYS, MILLI, &[1]);
    world.add(COMES_AND_GOES, MILLI, &[1]);
    let pipeline = PipelineId(0);
    let stage = |model, next| StageSpec { model, next, calls: 1.0, varies: false, gap: Duration::ZERO };
    let stages = vec![stage(STAYS, vec![1]), stage(COMES_AND_GOES, Vec::new())];
    let announced = Event::PipelineAdded(PipelineSpec { pipeline, stages });
    let ask = |world: &mut World| {
        let request = world.request(STAYS, world.now + Duration::from_secs(1));
        world.tell(Event::StageSubmitted(request, PipelineStage { pipeline, stage: 0 }));
        world.run();
        std::mem::take(&mut world.outcomes)
    };
    world.tell(announced.clone());
    assert_eq!(ask(&mut world), [Outcome::Done]);
    world.remove(COMES_AND_GOES);
    world.add(COMES_AND_GOES, MILLI * 5, &[1]);
    assert_eq!(ask(&mut world), [Outcome::Rejected(Rejection::ModelUnavailable)]);
    world.tell(announced);
    assert_eq!(ask(&mut world), [Outcome::Done]);
}

/// The server ended when a batch did whose calls would have been followed by others of a model that was gone, or wasn't
/// there yet where the graph was announced anew (seed 7700387).
#[test]
fn a_batch_may_end_when_the_model_of_the_next_stage_is_not_there() {
    for is_gone in [true, false] {
        let mut world = World::new(PolicyKind::Punctual);
        world.add(STAYS, MILLI, &[1]);
        world.add(COMES_AND_GOES, MILLI, &[1]);
        let pipeline = PipelineId(0);
        let stage = |model, next| StageSpec { model, next, calls: 1.0, varies: false, gap: Duration::ZERO };
        let announced = |second| {
            let stages = vec![stage(STAYS, vec![1]), stage(second, Vec::new())];
            Event::PipelineAdded(PipelineSpec { pipeline, stages })
        };
        world.tell(announced(COMES_AND_GOES));
        let request = world.request(STAYS, world.now + Duration::from_secs(1));
        world.tell(Event::StageSubmitted(request, PipelineStage { pipeline, stage: 0 }));
        if is_gone {
            world.tell(Event::ModelRemoved(COMES_AND_GOES));
            world.end();
            world.add(COMES_AND_GOES, MILLI, &[1]);
        } else {
            world.tell(announced(ModelId(2)));
        }
        world.run();
        assert_eq!(world.outcomes, [Outcome::Done], "gone: {is_gone}");
    }
}

#[test]
fn calls_that_no_longer_need_a_model_go_on_when_its_number_is_given_again() {
    let mut world = World::new(PolicyKind::Punctual);
    world.add(STAYS, MILLI, &[1]);
    world.add(COMES_AND_GOES, MILLI, &[1]);
    let pipeline = PipelineId(0);
    let stage = |model, next| StageSpec { model, next, calls: 1.0, varies: false, gap: Duration::ZERO };
    let stages = vec![stage(COMES_AND_GOES, vec![1]), stage(STAYS, Vec::new())];
    world.tell(Event::PipelineAdded(PipelineSpec { pipeline, stages }));
    for (stage, model) in [COMES_AND_GOES, STAYS].into_iter().enumerate() {
        let request = world.request(model, world.now + Duration::from_secs(1));
        world.tell(Event::StageSubmitted(request, PipelineStage { pipeline, stage: stage as u32 }));
        world.run();
        assert_eq!(std::mem::take(&mut world.outcomes), [Outcome::Done], "stage {stage}");
        if stage == 0 {
            world.remove(COMES_AND_GOES);
            world.add(COMES_AND_GOES, MILLI * 5, &[1]);
        }
    }
}

#[test]
fn what_a_scheduler_keeps_does_not_grow_with_the_pipelines_that_ever_were() {
    let mut world = World::new(PolicyKind::Punctual);
    world.add(STAYS, MILLI, &[1, 2, 4]);
    let stage = |next| StageSpec { model: STAYS, next, calls: 1.0, varies: false, gap: Duration::ZERO };
    let mut size = 0;
    for round in 0..2_000 {
        // Another one may still be there, so that the next has another number.
        let pipeline = PipelineId(round % 2);
        let stages = vec![stage(vec![1]), stage(Vec::new())];
        world.tell(Event::PipelineAdded(PipelineSpec { pipeline, stages }));
        for stage in 0..2 {
            let request = world.request(STAYS, world.now + Duration::from_millis(500));
            world.tell(Event::StageSubmitted(request, PipelineStage { pipeline, stage }));
            world.run();
        }
        world.tell(Event::PipelineRemoved(pipeline));
        assert_eq!(std::mem::take(&mut world.outcomes), [Outcome::Done; 2], "{round}");
        let request = world.request(STAYS, world.now + Duration::from_millis(500));
        world.tell(Event::StageSubmitted(request, PipelineStage { pipeline, stage: 0 }));
        let gone = Outcome::Rejected(Rejection::ModelUnavailable);
        assert_eq!(std::mem::take(&mut world.outcomes), [gone], "{round}: it is gone");
        match round {
            500 => size = format!("{:?}", world.scheduler).len(),
            1_999 => {
                let now = format!("{:?}", world.scheduler).len();
                assert!(now < size + size / 10, "{size} letters after 500 pipelines, {now} after 2,000");
            }
            _ => {}
        }
    }
}
