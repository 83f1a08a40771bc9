//! How many requests a second the scheduler takes on one core, with the policy and the settings of `punctual serve`, and how
//! that grows with cells.
//!
//! ```text
//! cargo run --release -p lab -- throughput                          the table of docs/benchmarks.md
//! cargo run --release -p lab -- throughput MODELS DEVICES [CELLS]   one line of it
//! cargo run --release -p lab -- throughput --cells N MODELS DEVICES TIMES
//! cargo run --release -p lab -- throughput --once MODELS DEVICES RATE REQUESTS
//! ```
//!
//! `--cells` divides what there is into N cells, each with its part of the models and devices and a thread of its own, and
//! says how many times the requests of one cell that has everything they take. So many times, the one and the others in
//! turn: what disturbs the machine disturbs both.
//!
//! The last one is for `valgrind --tool=callgrind --toggle-collect='*measured*'`: what is collected is the scheduler's alone.
//!
//! Requests come in an open loop (Poisson, models equally popular), in virtual time; devices take exactly what is expected. The time
//! that each step really takes is measured, and added up as if one core had to keep up: a step begins when it is due or when the
//! one before is over, whatever is later. A rate counts if 999 of 1,000 requests are taken in less than 2 ms late and 99 % are
//! answered in time.
//!
//! The profile has the shape of ResNet50's in Symphony's table 2 (beta = 4.817 alpha), with batches of at most 16 in the sizes that the server
//! measures by default, scaled so that the rate keeps devices busy for 80 % of the time in batches of what comes for a model in 12.5 ms. The
//! objective is 25 ms, or four times what a batch of 16 takes where that is more.

use base::{ActionId, DeviceId, Duration, LatencyProfile, ModelId, RequestId, Timestamp, Transfers};
use scheduler::{ActionStatus, Command, Config, DeviceSpec, Event, ModelSpec, Outcome, Report, Request, Scheduler};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

const MAX_BATCH: u32 = 16;
const SIZES: [u32; 5] = [1, 2, 4, 8, 16];
const BETA_OVER_ALPHA: f64 = 5.072 / 1.053;
const BUSY: f64 = 0.8;
/// Batches are as large as what comes for a model in so many seconds: half of the shortest objective.
const GATHERED: f64 = 0.0125;
const MAX_LATE: Duration = Duration::from_millis(2);
const LATE_PART: f64 = 0.001;
const MIN_SERVED: f64 = 0.99;
/// Requests of a run, less what it begins with.
const REQUESTS: u64 = 400_000;
/// The first part of a run isn't counted: weights are loaded, and the arrivals of each model are learnt.
const WARM_UP: u64 = 100_000;

#[derive(Clone, Copy)]
struct LoadPlan {
    models: u32,
    devices: u32,
    rate: f64,
    requests: u64,
}

/// What came out of a run.
#[derive(Clone, Copy, Default)]
struct CellRun {
    requests: u64,
    served: u64,
    late: u64,
    latest: Duration,
    batches: u64,
    rows: u64,
    /// Weights that were loaded meanwhile.
    loads: u64,
    inside: Duration,
}

impl CellRun {
    fn holds(&self) -> bool {
        self.late as f64 <= LATE_PART * self.requests as f64 && self.served as f64 >= MIN_SERVED * self.requests as f64
    }

    fn each(&self) -> f64 {
        self.inside.as_secs_f64() / self.requests.max(1) as f64
    }
}

impl LoadPlan {
    /// What a row takes beyond its batch's fixed cost, in seconds.
    fn alpha(self) -> f64 {
        let gathered = self.rate / f64::from(self.models) * GATHERED;
        let batch = gathered.clamp(1.0, f64::from(MAX_BATCH));
        batch * f64::from(self.devices) * BUSY / self.rate / (batch + BETA_OVER_ALPHA)
    }

    fn objective(self) -> Duration {
        let largest = self.alpha() * (f64::from(MAX_BATCH) + BETA_OVER_ALPHA);
        Duration::from_millis(25).max(Duration::from_secs_f64(4.0 * largest))
    }

    fn spec(self, model: u32) -> ModelSpec {
        let alpha = self.alpha();
        let (alpha, beta) = (Duration::from_secs_f64(alpha), Duration::from_secs_f64(alpha * BETA_OVER_ALPHA));
        let profile = LatencyProfile::linear(alpha, beta, &SIZES, Duration::from_micros(10)).expect("the sizes ascend");
        ModelSpec {
            model: ModelId(model),
            pages: 1,
            profile,
            elsewhere: Vec::new(),
            objective: Some(self.objective()),
            fixed: Duration::ZERO,
            fairness: scheduler::Fairness::default(),
        }
    }
}

struct Harness {
    scheduler: Scheduler,
    plan: LoadPlan,
    now: Timestamp,
    /// When the core has done everything that was due so far.
    core_free_at: Timestamp,
    /// When each action ends: (end, action, start).
    agenda: BinaryHeap<Reverse<(Timestamp, ActionId, Timestamp)>>,
    free_at: Vec<[Timestamp; 2]>,
    free_slots: Vec<RequestId>,
    slots: u32,
    commands: Vec<Command>,
    random: u64,
    counted: bool,
    measured: CellRun,
}

impl Harness {
    fn new(plan: LoadPlan, seed: u64) -> Self {
        let mut harness = Self {
            scheduler: Scheduler::new(Config::default()),
            plan,
            now: Timestamp::ZERO,
            core_free_at: Timestamp::ZERO,
            agenda: BinaryHeap::new(),
            free_at: vec![[Timestamp::ZERO; 2]; plan.devices as usize],
            free_slots: Vec::new(),
            slots: 0,
            commands: Vec::new(),
            random: 0x9e37_79b9_7f4a_7c15 ^ seed,
            counted: false,
            measured: CellRun::default(),
        };
        for device in 0..plan.devices {
            harness.step(Event::DeviceAdded(DeviceSpec { device: DeviceId(device), pages: plan.models, kind: 0 }));
        }
        for model in 0..plan.models {
            harness.step(Event::ModelAdded(plan.spec(model)));
        }
        harness
    }

    /// 32 bits by chance, the same in each run.
    fn draw(&mut self) -> u32 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 32) as u32
    }

    /// A number in (0, 1).
    fn chance(&mut self) -> f64 {
        (f64::from(self.draw()) + 0.5) / 2_f64.powi(32)
    }

    /// What callgrind is told to collect.
    #[inline(never)]
    fn measured(&mut self, event: Event, commands: &mut Vec<Command>) -> Option<Timestamp> {
        self.scheduler.step(self.now, event, commands);
        self.scheduler.next_wakeup().map(|(at, _)| at)
    }

    /// Lets the scheduler take an event in; when it wants to be woken.
    fn step(&mut self, event: Event) -> Option<Timestamp> {
        let mut commands = std::mem::take(&mut self.commands);
        let submitted = matches!(event, Event::Submitted(_));
        let start = Instant::now();
        let wakeup = self.measured(event, &mut commands);
        let took = Duration::from_nanos(start.elapsed().as_nanos() as u64);
        let begins_at = self.now.max(self.core_free_at);
        self.core_free_at = begins_at + took;
        if self.counted {
            let late = begins_at.since(self.now);
            self.measured.inside += took;
            self.measured.latest = self.measured.latest.max(late);
            self.measured.late += u64::from(submitted && late > MAX_LATE);
        }
        for command in commands.drain(..) {
            self.carry_out(command);
        }
        self.commands = commands;
        wakeup
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Execute(execution) => {
                if self.counted {
                    self.measured.batches += 1;
                    self.measured.rows += execution.requests.len() as u64;
                }
                self.run(execution.device, 0, execution.action, execution.expected);
            }
            Command::Load(load) => {
                self.measured.loads += u64::from(self.counted);
                self.run(load.device, 1, load.action, load.expected);
            }
            Command::Unload(_) | Command::Preempt { .. } => {}
            Command::Finish { request, outcome } => {
                self.measured.served += u64::from(self.counted && outcome == Outcome::Done);
                self.free_slots.push(RequestId { generation: request.generation + 1, ..request });
            }
        }
    }

    fn run(&mut self, device: DeviceId, executor: usize, action: ActionId, takes: Duration) {
        let free_at = &mut self.free_at[device.index()][executor];
        let start = self.now.max(*free_at);
        *free_at = start + takes;
        self.agenda.push(Reverse((*free_at, action, start)));
    }

    fn submit(&mut self) -> Option<Timestamp> {
        let model = ModelId(self.draw() % self.plan.models);
        let id = self.free_slots.pop().unwrap_or_else(|| {
            self.slots += 1;
            RequestId { slot: self.slots - 1, generation: 0 }
        });
        let request = Request {
            id,
            model,
            deadline_at: self.now + self.plan.objective(),
            priority: 0,
            rows: 1,
            application: base::ApplicationId::DEFAULT,
            size: None,
        };
        self.measured.requests += u64::from(self.counted);
        self.step(Event::Submitted(request))
    }

    fn run_all(&mut self) -> CellRun {
        let gap = 1.0 / self.plan.rate;
        let mut next_at = self.now;
        let (mut sent, mut wakeup) = (0, None);
        while sent < self.plan.requests + WARM_UP {
            let ends_at = self.agenda.peek().map_or(Timestamp::NEVER, |&Reverse((at, ..))| at);
            let wakes_at = wakeup.unwrap_or(Timestamp::NEVER).max(self.now);
            if next_at <= ends_at && next_at <= wakes_at {
                self.now = next_at;
                next_at += Duration::from_secs_f64(-gap * self.chance().ln());
                sent += 1;
                if sent == WARM_UP + 1 {
                    // What loading the weights at the start took is over.
                    self.core_free_at = self.now;
                    self.counted = true;
                }
                wakeup = self.submit();
            } else if ends_at <= wakes_at {
                let Reverse((ended_at, action, started_at)) = self.agenda.pop().expect("it was looked at");
                self.now = ended_at;
                let status = ActionStatus::Done { started_at, ended_at, transfers: Transfers::default() };
                wakeup = self.step(Event::Reported(Report { action, status }));
            } else {
                self.now = wakes_at;
                wakeup = self.step(Event::WokeUp);
            }
        }
        self.measured
    }
}

/// The highest rate that holds, a twentieth exact, and what came out there.
fn search(models: u32, devices: u32, cells: u32) -> (f64, CellRun) {
    let plan = |rate| LoadPlan { models, devices, rate, requests: REQUESTS };
    let mut rate = 0.9 / in_cells(plan(100_000.0), cells)[0].each();
    for _ in 0..12 {
        let measured = in_cells(plan(rate), cells);
        if measured.iter().all(CellRun::holds) {
            return (rate, measured[0]);
        }
        let slowest = measured.iter().map(CellRun::each).fold(0.0, f64::max);
        rate = (0.9 / slowest).min(rate * 0.95);
    }
    (0.0, CellRun::default())
}

/// The same in so many threads at once, each with models and devices of its own.
fn in_cells(plan: LoadPlan, cells: u32) -> Vec<CellRun> {
    let run = |cell: u32| Harness::new(plan, u64::from(cell)).run_all();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cells).map(|cell| scope.spawn(move || run(cell))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no invariant is broken")).collect()
    })
}

fn line(models: u32, devices: u32, cells: u32) {
    let began = Instant::now();
    let (rate, measured) = search(models, devices, cells);
    println!(
        "| {models} | {devices} | {cells} | {:.0} | {:.0} | {:.1} | {:.2} | {:.2} % | {:.0} s |",
        rate * f64::from(cells),
        measured.each() * 1e9,
        measured.rows as f64 / measured.batches.max(1) as f64,
        measured.latest.as_secs_f64() * 1e3,
        100.0 * measured.served as f64 / measured.requests.max(1) as f64,
        began.elapsed().as_secs_f64(),
    );
}

/// Compares cells with one that has everything, so many times.
fn compare(cells: u32, models: u32, devices: u32, times: u32) {
    println!("| run | 1 cell, requests/s | {cells} cells, requests/s | ratio |\n|---|---|---|---|");
    let mut ratios: Vec<f64> = (1..=times)
        .map(|run| {
            let one = search(models, devices, 1).0;
            let all = search(models / cells, devices / cells, cells).0 * f64::from(cells);
            println!("| {run} | {one:.0} | {all:.0} | {:.2} |", all / one);
            all / one
        })
        .collect();
    ratios.retain(|ratio| ratio.is_finite());
    ratios.sort_by(f64::total_cmp);
    match ratios.get(ratios.len() / 2) {
        Some(median) => {
            println!("\n{cells} cells take {median:.2} times what one takes: the median of {}", ratios.len());
        }
        None => println!("\nno rate held: the machine has too much else to do"),
    }
}

#[derive(clap::Args)]
pub(crate) struct ThroughputArgs {
    /// Compare so many cells with one that has everything: MODELS DEVICES TIMES.
    #[arg(long, value_name = "N", conflicts_with = "once")]
    cells: Option<u32>,
    /// One run at a fixed rate, to be counted by callgrind: MODELS DEVICES RATE REQUESTS.
    #[arg(long)]
    once: bool,
    /// One line of the table: MODELS DEVICES [CELLS]. Without numbers the whole table.
    #[arg(value_name = "NUMBER")]
    numbers: Vec<u32>,
}

pub(crate) fn run(args: &ThroughputArgs) -> Result<(), lab::LabError> {
    match (args.cells, args.once, &args.numbers[..]) {
        (Some(cells), _, &[models, devices, times]) => compare(cells.max(1), models, devices, times),
        (None, true, &[models, devices, rate, requests]) => {
            once(LoadPlan { models, devices, rate: f64::from(rate), requests: u64::from(requests) });
        }
        (None, false, []) => table(&[(1, 8, 1), (100, 100, 1), (1_000, 1_000, 1), (10_000, 1_000, 1), (100, 100, 2)]),
        (None, false, &[models, devices]) => table(&[(models, devices, 1)]),
        (None, false, &[models, devices, cells]) => table(&[(models, devices, cells)]),
        (_, _, numbers) => {
            let message = format!(
                "{} numbers: give MODELS DEVICES [CELLS], --cells N MODELS DEVICES TIMES, or --once MODELS DEVICES RATE REQUESTS",
                numbers.len()
            );
            return Err(lab::LabError::Value(message));
        }
    }
    Ok(())
}

fn once(plan: LoadPlan) {
    let measured = Harness::new(plan, 0).run_all();
    let (each, batch) = (measured.each() * 1e9, measured.rows as f64 / measured.batches.max(1) as f64);
    let CellRun { requests, served, loads, .. } = measured;
    println!("{requests} requests, {each:.0} ns each, batches of {batch:.1}, {served} in time, {loads} loads");
}

/// A line for each: models, devices, cells.
fn table(lines: &[(u32, u32, u32)]) {
    println!("| models | devices | cells | requests/s | ns/request | mean batch | latest, ms | in time | search |");
    println!("|---|---|---|---|---|---|---|---|---|");
    lines.iter().for_each(|&(models, devices, cells)| line(models, devices, cells));
}
