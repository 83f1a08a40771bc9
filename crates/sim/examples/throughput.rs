//! How many events a second the scheduler takes on one core, and how the cost of one grows with the number of models,
//! devices and queued requests.
//!
//! `cargo run --release -p sim --example throughput [-- MODELS DEVICES QUEUED EVENTS]`
//!
//! The devices are modelled as exact: each action takes what was expected. Clients are closed: each request that ends is
//! followed by the next, for a model by a fixed pseudo-random sequence, so that the number of queued requests stays.
//! Only the time inside the scheduler counts.

use base::{ActionId, DeviceId, Duration, LatencyProfile, ModelId, RequestId, Timestamp, Transfers};
use scheduler::{ActionStatus, Command, Config, DeviceSpec, Event, ModelSpec, Outcome, Report, Request, Scheduler};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

struct Harness {
    scheduler: Scheduler,
    models: u32,
    now: Timestamp,
    /// When each action ends: (end, action, start).
    agenda: BinaryHeap<Reverse<(Timestamp, ActionId, Timestamp)>>,
    free_at: Vec<[Timestamp; 2]>,
    finished: Vec<RequestId>,
    commands: Vec<Command>,
    random: u64,
    events: u64,
    refused: u64,
    inside: std::time::Duration,
}

impl Harness {
    fn new(models: u32, devices: u32) -> Self {
        let mut harness = Self {
            scheduler: Scheduler::new(Config::default()),
            models,
            now: Timestamp::ZERO,
            agenda: BinaryHeap::new(),
            free_at: vec![[Timestamp::ZERO; 2]; devices as usize],
            finished: Vec::new(),
            commands: Vec::new(),
            random: 0x9e37_79b9_7f4a_7c15,
            events: 0,
            refused: 0,
            inside: std::time::Duration::ZERO,
        };
        for device in 0..devices {
            harness.step(Event::DeviceAdded(DeviceSpec { device: DeviceId(device), pages: 4 * models, kind: 0 }));
        }
        // ResNet50 of Clockwork's table: about 0.87 b + 1.9 ms, 8.3 ms to load.
        let span = Duration::from_micros;
        let profile = LatencyProfile::linear(span(870), span(1900), &[1, 2, 4, 8, 16], span(8330));
        for model in 0..models {
            let profile = profile.clone().expect("the sizes ascend");
            let spec = ModelSpec {
                model: ModelId(model),
                pages: 1,
                profile,
                elsewhere: Vec::new(),
                objective: None,
                fixed: Duration::ZERO,
                fairness: scheduler::Fairness::default(),
            };
            harness.step(Event::ModelAdded(spec));
        }
        harness
    }

    fn step(&mut self, event: Event) {
        let mut commands = std::mem::take(&mut self.commands);
        let start = Instant::now();
        self.scheduler.step(self.now, event, &mut commands);
        self.inside += start.elapsed();
        self.events += 1;
        for command in commands.drain(..) {
            match command {
                Command::Execute(e) => self.run(e.device, 0, e.action, e.expected),
                Command::Load(load) => self.run(load.device, 1, load.action, load.expected),
                Command::Unload(_) | Command::Preempt { .. } => {}
                Command::Finish { request, outcome } => {
                    self.refused += u64::from(outcome != Outcome::Done);
                    self.finished.push(request);
                }
            }
        }
        self.commands = commands;
    }

    fn run(&mut self, device: DeviceId, executor: usize, action: ActionId, takes: Duration) {
        let free_at = &mut self.free_at[device.index()][executor];
        let start = self.now.max(*free_at);
        *free_at = start + takes;
        self.agenda.push(Reverse((*free_at, action, start)));
    }

    fn submit(&mut self, slot: u32, generation: u32) {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let pick = (self.random >> 33) as u32;
        let request = Request {
            id: RequestId { slot, generation },
            model: ModelId(pick % self.models),
            deadline_at: self.now + Duration::from_secs(50) + Duration::from_nanos(u64::from(pick)),
            priority: 0,
            rows: 1,
            application: base::ApplicationId::DEFAULT,
            size: None,
        };
        self.step(Event::Submitted(request));
    }

    /// Runs until that many more events have been taken in; gives the seconds that the scheduler needed for each.
    fn measure(&mut self, events: u64) -> f64 {
        let (first, inside) = (self.events, self.inside);
        while self.events - first < events {
            if let Some(id) = self.finished.pop() {
                self.submit(id.slot, id.generation + 1);
                continue;
            }
            let Some(Reverse((at, action, started_at))) = self.agenda.pop() else { break };
            if let Some((wakeup, _)) = self.scheduler.next_wakeup()
                && wakeup < at
                && wakeup > self.now
            {
                self.now = wakeup;
                self.agenda.push(Reverse((at, action, started_at)));
                self.step(Event::WokeUp);
                continue;
            }
            self.now = self.now.max(at);
            let status = ActionStatus::Done { started_at, ended_at: at, transfers: Transfers::default() };
            self.step(Event::Reported(Report { action, status }));
        }
        (self.inside - inside).as_secs_f64() / (self.events - first) as f64
    }
}

fn run(models: u32, devices: u32, queued: u32, events: u64) {
    let mut harness = Harness::new(models, devices);
    for slot in 0..queued {
        harness.submit(slot, 0);
    }
    // The first loads and the first turn of the queue are not counted.
    harness.measure(events.min(2 * u64::from(queued) + 10_000));
    let per_event = harness.measure(events);
    println!(
        "{models:>7} {devices:>8} {queued:>8} {:>10.0} {:>8.0} {:>8}",
        1.0 / per_event,
        per_event * 1e9,
        harness.refused
    );
}

fn main() {
    let arguments: Vec<u64> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    println!(" models  devices   queued   events/s ns/event  refused");
    if let [models, devices, queued, events] = arguments[..] {
        return run(models as u32, devices as u32, queued as u32, events);
    }
    let events = 1_000_000;
    run(1_000, 100, 100_000, events);
    for models in [10, 100, 1_000, 10_000] {
        run(models, 100, 100_000, events);
    }
    for queued in [100, 1_000, 10_000, 100_000, 1_000_000] {
        run(1_000, 100, queued, events);
    }
    for devices in [1, 10, 100, 1_000] {
        run(1_000, devices, 100_000, events);
    }
}
