//! Thousands of models on many devices: weights go to as many devices as are needed, not everywhere.

#![allow(clippy::unwrap_used, reason = "a test that finds something else than it expects should stop")]

use base::{ApplicationId, DeviceId, Duration, LatencyProfile, ModelId, RequestId, Timestamp, Transfers};
use scheduler::{ActionStatus, Command, Config, DeviceSpec, Event, ModelSpec, Report, Request, Scheduler};

const DEVICES: u32 = 100;

struct World {
    scheduler: Scheduler,
    now: Timestamp,
    /// Loads that were ordered for each model.
    loads: Vec<u32>,
    asked: u32,
}

impl World {
    fn new(models: u32) -> Self {
        let scheduler = Scheduler::new(Config::default());
        let mut world = Self { scheduler, now: Timestamp::ZERO, loads: vec![0; models as usize], asked: 0 };
        for device in 0..DEVICES {
            world.step(Event::DeviceAdded(DeviceSpec { device: DeviceId(device), pages: models, kind: 0 }));
        }
        let millis = Duration::from_millis;
        let profile = LatencyProfile::linear(millis(1), millis(5), &[1, 2, 4, 8], millis(1)).unwrap();
        for model in 0..models {
            world.step(Event::ModelAdded(ModelSpec {
                model: ModelId(model),
                pages: 1,
                profile: profile.clone(),
                elsewhere: Vec::new(),
                objective: Some(millis(100)),
                fixed: Duration::ZERO,
                fairness: scheduler::Fairness::default(),
            }));
        }
        world
    }

    /// Takes an event in, and lets everything that was ordered end at once.
    fn step(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let mut commands = Vec::new();
            self.scheduler.step(self.now, event, &mut commands);
            for command in commands {
                let action = match command {
                    Command::Load(load) => {
                        self.loads[load.model.index()] += 1;
                        load.action
                    }
                    Command::Execute(execution) => execution.action,
                    Command::Unload(_) | Command::Preempt { .. } | Command::Finish { .. } => continue,
                };
                let (started_at, ended_at) = (self.now, self.now);
                let status = ActionStatus::Done { started_at, ended_at, transfers: Transfers::default() };
                events.push(Event::Reported(Report { action, status }));
            }
        }
    }

    fn ask(&mut self, model: u32) {
        self.asked += 1;
        self.step(Event::Submitted(Request {
            id: RequestId { slot: self.asked, generation: 0 },
            model: ModelId(model),
            deadline_at: self.now + Duration::from_millis(100),
            priority: 0,
            rows: 1,
            application: ApplicationId::DEFAULT,
            size: None,
        }));
        self.now += Duration::from_millis(200);
        self.step(Event::WokeUp);
    }
}

#[test]
fn with_few_models_each_that_is_asked_for_is_loaded_everywhere() {
    let mut world = World::new(20);
    world.ask(7);
    assert_eq!(world.loads[7], DEVICES);
    assert_eq!(world.loads.iter().sum::<u32>(), DEVICES);
}

#[test]
fn ten_thousand_models_are_on_some_devices_each_and_spread_over_all() {
    let mut world = World::new(10_000);
    (0..10).for_each(|model| world.ask(model));
    // 200,000 places for 10,000 models.
    assert!(world.loads[..10].iter().all(|&loads| loads == 20), "{:?}", &world.loads[..10]);
    assert_eq!(world.loads[10..].iter().sum::<u32>(), 0, "nobody asked for these");
    let free = (0..DEVICES).map(|device| world.scheduler.free_pages(DeviceId(device)).unwrap());
    let held: Vec<u32> = free.map(|free| 10_000 - free).collect();
    assert!(held.iter().all(|&held| (1..=3).contains(&held)), "{held:?}");
}
