//! How many requests a second the scheduler takes on one core, with the policy and the settings of `punctual serve`,
//! and how that grows with cells.
//!
//! ```text
//! cargo run --release -p lab -- throughput                          the table of docs/benchmarks.md
//! cargo run --release -p lab -- throughput MODELS DEVICES [CELLS]   one line of it
//! cargo run --release -p lab -- throughput --cells N MODELS DEVICES ROUNDS
//! cargo run --release -p lab -- throughput --once MODELS DEVICES RATE REQUESTS
//! ```
//!
//! `--cells` divides what there is into N cells, each with its part of the models and devices and a thread of its own,
//! and says how many times the requests of one cell that has everything they take. Each round measures both, in the
//! other order than the round before: what disturbs the machine disturbs both. Two ratios are given, each the median of
//! the rounds: of the rates that held, for which the machine must have nothing else to do, and of the processor time
//! that a request takes.
//!
//! The last one is for `valgrind --tool=callgrind --toggle-collect='*measured*'`: what is collected is the scheduler's
//! alone.
//!
//! Requests come in an open loop (Poisson, models equally popular), in virtual time; devices take exactly what is
//! expected. The time that each step really takes is measured, and added up as if one core had to keep up: a step
//! begins when it is due or when the one before is over, whatever is later. A rate counts if 999 of 1,000 requests are
//! taken in less than 2 ms late and 99 % are answered in time.
//!
//! The profile has the shape of ResNet50's in Symphony's table 2 (beta = 4.817 alpha), with batches of at most 16 in
//! the sizes that the server measures by default, scaled so that the rate keeps devices busy for 80 % of the time in
//! batches of what comes for a model in 12.5 ms. The objective is 25 ms, or four times what a batch of 16 takes where
//! that is more.

use base::{
    ActionId, DeviceId, Duration, LatencyProfile, ModelId, OrderStart, RequestId, Timestamp, Transfers, Window,
};
use lab::LabError;
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
    /// The part of the run's time in which its thread had a core.
    had_core: f64,
}

impl CellRun {
    fn holds(&self) -> bool {
        self.late as f64 <= LATE_PART * self.requests as f64 && self.served as f64 >= MIN_SERVED * self.requests as f64
    }

    /// Seconds for a request.
    fn each(&self) -> f64 {
        self.inside.as_secs_f64() / self.requests.max(1) as f64
    }

    /// The same without the time in which others had the core: they take it at any instant, inside of the scheduler or
    /// not.
    fn processor_time(&self) -> f64 {
        self.each() * self.had_core
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
                self.run(execution.device, 0, (execution.action, execution.window), execution.expected);
            }
            Command::Load(load) => {
                self.measured.loads += u64::from(self.counted);
                self.run(load.device, 1, (load.action, load.window), load.expected);
            }
            Command::Unload(_) | Command::Preempt { .. } => {}
            Command::Finish { request, outcome } => {
                self.measured.served += u64::from(self.counted && outcome == Outcome::Done);
                self.free_slots.push(RequestId { generation: request.generation + 1, ..request });
            }
        }
    }

    /// Runs an order, too late or not: devices here take exactly what is expected.
    fn run(&mut self, device: DeviceId, executor: usize, (action, window): (ActionId, Window), takes: Duration) {
        let free_at = &mut self.free_at[device.index()][executor];
        let start = OrderStart::new(window, self.now, *free_at).at;
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
        let (began, had_before) = (Instant::now(), time_on_a_core());
        self.send_all();
        let (took, had) = (began.elapsed().as_secs_f64(), time_on_a_core() - had_before);
        // Where nobody counts it, it counts as all.
        self.measured.had_core = if had > 0.0 { (had / took).min(1.0) } else { 1.0 };
        self.measured
    }

    fn send_all(&mut self) {
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
    }
}

/// Seconds for which this thread had a core since it began; 0 where the system doesn't say.
fn time_on_a_core() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

/// The highest rate that holds, a twentieth exact, and what came out there in the slowest cell; 0 where none holds.
fn search(models: u32, devices: u32, cells: u32) -> (f64, CellRun) {
    let measure = |rate| {
        let runs = in_cells(LoadPlan { models, devices, rate, requests: REQUESTS }, cells);
        let holds = runs.iter().all(CellRun::holds);
        (holds, runs.into_iter().max_by(|a, b| a.each().total_cmp(&b.each())).unwrap_or_default())
    };
    let mut slowest = measure(100_000.0).1;
    let mut rate = 0.9 / slowest.each();
    for _ in 0..12 {
        let holds;
        (holds, slowest) = measure(rate);
        if holds {
            return (rate, slowest);
        }
        rate = (0.9 / slowest.each()).min(rate * 0.95);
    }
    (0.0, slowest)
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

/// What N cells take beside one cell that has everything, in rounds that measure both.
fn compare(cells: u32, models: u32, devices: u32, rounds: u32) {
    println!(
        "| round | 1 cell, requests/s | processor ns/request | {cells} cells, requests/s | processor ns/request | ratio of rates | of processor time |"
    );
    println!("|---|---|---|---|---|---|---|");
    let ratios: Vec<[f64; 2]> = (1..=rounds).map(|number| round(number, cells, models, devices)).collect();
    let [rates, times] = [0, 1].map(|which| ratios.iter().map(|both| both[which]).collect::<Vec<f64>>());
    println!("\n{}", in_words(cells, "by the rates that held", rates));
    println!("{}", in_words(cells, "by the processor time of a request", times));
}

/// Measures both, one cell first in odd rounds; how many times as much the cells take, by rates and by processor time.
fn round(number: u32, cells: u32, models: u32, devices: u32) -> [f64; 2] {
    let one = || search(models, devices, 1);
    let several = || search(models / cells, devices / cells, cells);
    let ((one, of_one), (each, of_each)) = if number % 2 == 1 {
        let one = one();
        (one, several())
    } else {
        let several = several();
        (one(), several)
    };
    let all = each * f64::from(cells);
    let (one_takes, each_takes) = (of_one.processor_time(), of_each.processor_time());
    let (rates, times) = (all / one, f64::from(cells) * one_takes / each_takes);
    let nanos = |seconds: f64| seconds * 1e9;
    println!(
        "| {number} | {one:.0} | {:.0} | {all:.0} | {:.0} | {rates:.2} | {times:.2} |",
        nanos(one_takes),
        nanos(each_takes)
    );
    [rates, times]
}

/// The median of the rounds' ratios, of those that there are.
fn in_words(cells: u32, by: &str, mut ratios: Vec<f64>) -> String {
    ratios.retain(|ratio| ratio.is_finite() && *ratio > 0.0);
    ratios.sort_by(f64::total_cmp);
    match ratios[..] {
        [] => format!("No figure {by}: the machine has too much else to do."),
        [only] => format!("{cells} cells take {only:.2} times what one takes, {by}, in one round."),
        [least, .., most] => {
            let (count, middle) = (ratios.len(), ratios.len() / 2);
            let median = (ratios[(count - 1) / 2] + ratios[middle]) / 2.0;
            format!(
                "{cells} cells take {median:.2} times what one takes, {by}: the median of {count} rounds, {least:.2} to {most:.2}."
            )
        }
    }
}

#[derive(clap::Args)]
pub(crate) struct ThroughputArgs {
    /// Compare so many cells with one that has everything: MODELS DEVICES ROUNDS.
    #[arg(long, value_name = "N", conflicts_with = "once")]
    cells: Option<u32>,
    /// One run at a fixed rate, to be counted by callgrind: MODELS DEVICES RATE REQUESTS.
    #[arg(long)]
    once: bool,
    /// One line of the table: MODELS DEVICES [CELLS]. Without numbers the whole table.
    #[arg(value_name = "NUMBER")]
    numbers: Vec<u32>,
}

/// What is asked for.
#[derive(PartialEq, Debug)]
enum Task {
    /// Everything that docs/benchmarks.md has.
    All,
    /// One line of the table.
    Line {
        models: u32,
        devices: u32,
        cells: u32,
    },
    Compare {
        cells: u32,
        models: u32,
        devices: u32,
        rounds: u32,
    },
    Once {
        models: u32,
        devices: u32,
        rate: u32,
        requests: u32,
    },
}

impl ThroughputArgs {
    fn task(&self) -> Result<Task, LabError> {
        if self.numbers.contains(&0) || self.cells == Some(0) {
            return Err(LabError::Value("0 is none of these: every number must be at least 1".into()));
        }
        match (self.cells, self.once, &self.numbers[..]) {
            (Some(cells), _, &[models, devices, _]) if models % cells > 0 || devices % cells > 0 => {
                Err(LabError::Value(format!(
                    "{models} models and {devices} devices can't be divided evenly into {cells} cells: give multiples of {cells}"
                )))
            }
            (Some(cells), _, &[models, devices, rounds]) => Ok(Task::Compare { cells, models, devices, rounds }),
            (None, true, &[models, devices, rate, requests]) => Ok(Task::Once { models, devices, rate, requests }),
            (None, false, []) => Ok(Task::All),
            (None, false, &[models, devices]) => Ok(Task::Line { models, devices, cells: 1 }),
            (None, false, &[models, devices, cells]) => Ok(Task::Line { models, devices, cells }),
            (_, _, numbers) => Err(LabError::Value(format!(
                "{} numbers: give MODELS DEVICES [CELLS], --cells N MODELS DEVICES ROUNDS, or --once MODELS DEVICES RATE REQUESTS",
                numbers.len()
            ))),
        }
    }
}

pub(crate) fn run(args: &ThroughputArgs) -> Result<(), LabError> {
    let task = args.task()?;
    println!("{}\n", conditions());
    match task {
        Task::All => {
            table(&[(1, 8, 1), (100, 100, 1), (1_000, 1_000, 1), (10_000, 1_000, 1)]);
            println!();
            compare(2, 100, 100, 3);
        }
        Task::Line { models, devices, cells } => table(&[(models, devices, cells)]),
        Task::Compare { cells, models, devices, rounds } => compare(cells, models, devices, rounds),
        Task::Once { models, devices, rate, requests } => {
            once(LoadPlan { models, devices, rate: f64::from(rate), requests: u64::from(requests) });
        }
    }
    Ok(())
}

/// What is measured, and on what.
fn conditions() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    format!(
        "Policy {}, built with the profile {}; {cores} cores of {}, load average {}.",
        Config::default().policy.name(),
        env!("LAB_PROFILE"),
        processor(&read("/proc/cpuinfo")),
        read("/proc/loadavg").split(' ').next().filter(|load| !load.is_empty()).unwrap_or("unknown"),
    )
}

/// The processor's name in the text of `/proc/cpuinfo`.
fn processor(cpuinfo: &str) -> &str {
    let named = cpuinfo.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == "model name");
    named.map_or("an unknown processor", |(_, name)| name.trim())
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: ThroughputArgs,
    }

    /// What a command line asks for, or what is wrong with it.
    fn task(line: &str) -> Result<Task, String> {
        let words = std::iter::once("throughput").chain(line.split_whitespace());
        let program = Program::try_parse_from(words).map_err(|error| error.to_string())?;
        program.args.task().map_err(|error| error.to_string())
    }

    #[test]
    fn every_form_is_understood() {
        assert_eq!(task(""), Ok(Task::All));
        assert_eq!(task("10 20"), Ok(Task::Line { models: 10, devices: 20, cells: 1 }));
        assert_eq!(task("10 20 2"), Ok(Task::Line { models: 10, devices: 20, cells: 2 }));
        let compare = Task::Compare { cells: 2, models: 10, devices: 20, rounds: 3 };
        assert_eq!(task("--cells 2 10 20 3"), Ok(compare));
        let once = Task::Once { models: 10, devices: 20, rate: 100, requests: 1_000 };
        assert_eq!(task("--once 10 20 100 1000"), Ok(once));
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let complaint = |line: &str| task(line).unwrap_err();
        assert!(complaint("10").starts_with("1 numbers: give MODELS DEVICES [CELLS]"));
        assert!(complaint("--cells 2 10 20").starts_with("2 numbers: give "));
        assert!(complaint("--once 10 20 100").starts_with("3 numbers: give "));
        assert!(complaint("--cells 0 10 20 3").starts_with("0 is none of these"));
        assert!(complaint("10 0").starts_with("0 is none of these"));
        assert!(
            complaint("--cells 3 10 20 3").starts_with("10 models and 20 devices can't be divided evenly into 3 cells")
        );
        assert!(complaint("--cells 3 9 20 3").starts_with("9 models and 20 devices can't be divided"));
        assert!(complaint("--cells 2 --once 10 20 3").contains("cannot be used with"));
        assert!(complaint("ten 20").contains("invalid value"));
    }

    #[test]
    fn a_comparison_is_the_median_of_the_rounds_that_have_a_figure() {
        let words = |ratios: &[f64]| in_words(2, "by rates", ratios.to_vec());
        assert_eq!(words(&[f64::NAN, 0.0]), "No figure by rates: the machine has too much else to do.");
        assert_eq!(words(&[f64::INFINITY, 1.5]), "2 cells take 1.50 times what one takes, by rates, in one round.");
        let three = "2 cells take 1.70 times what one takes, by rates: the median of 3 rounds, 1.50 to 1.90.";
        assert_eq!(words(&[1.9, 1.5, 1.7]), three);
        assert!(words(&[2.0, 2.2]).contains("2.10 times"));
    }

    #[test]
    fn time_that_others_had_is_no_processor_time() {
        let run = CellRun { requests: 10, inside: Duration::from_micros(40), had_core: 0.25, ..CellRun::default() };
        assert!((run.each() - 4e-6).abs() < 1e-12 && (run.processor_time() - 1e-6).abs() < 1e-12);
        let plan = LoadPlan { models: 1, devices: 1, rate: 1_000.0, requests: 10 };
        let had_core = Harness::new(plan, 0).run_all().had_core;
        assert!(had_core > 0.0 && had_core <= 1.0, "{had_core}");
    }

    #[test]
    fn a_report_says_what_it_was_measured_on() {
        assert_eq!(processor("processor\t: 0\nmodel name\t: A B: C\n"), "A B: C");
        assert_eq!(processor(""), "an unknown processor");
        let words = conditions();
        assert!(words.starts_with("Policy punctual, built with the profile "), "{words}");
        assert!(!words.contains("profile unknown"), "{words}");
    }
}
