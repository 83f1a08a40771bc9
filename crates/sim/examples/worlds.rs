//! Random worlds, as many as wanted: `cargo run --release -p sim --example worlds -- 10000 [first_seed] [policy]`.
//!
//! Prints how far it is, each seed whose world breaks a promise, and the first such world. `worlds oracle 1000 [first_seed]`
//! compares `punctual` with its rivals instead, and shows where it is worse; with `all`, every world. `worlds log SEED [policy] [words]` shows what happened in one world before it
//! broke: the last things that were told and ordered, of those that contain all of the words (`m3`, `d0`).

#![allow(clippy::print_stdout, reason = "a command")]

#[path = "../tests/common/oracle.rs"]
mod oracle;
#[path = "../tests/common/worlds.rs"]
mod worlds;

use base::Timestamp;
use scheduler::{PolicyKind, Scheduler};
use sim::{Observation, Observer, Violation};
use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc;
use std::time::{Duration, Instant};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: u64| words.get(index).and_then(|word| word.parse().ok()).unwrap_or(default);
    if words.first().is_some_and(|word| word == "oracle") {
        return compare(number(1, 100), number(2, 0), words.iter().any(|word| word == "all"));
    }
    if words.first().is_some_and(|word| word == "log") {
        return log(
            number(1, 0),
            words.get(2).and_then(|name| PolicyKind::from_name(name)),
            words.get(3..).unwrap_or(&[]),
        );
    }
    let policy = words.get(2).and_then(|name| PolicyKind::from_name(name));
    try_all(number(0, 1_000), number(1, 0), policy);
}

fn try_all(count: u64, first: u64, policy: Option<PolicyKind>) {
    // What panics is reported with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    let began = Instant::now();
    let mut broken: BTreeMap<(&str, String), Vec<u64>> = BTreeMap::new();
    let mut tried = 0;
    for (done, seed) in (first..first + count).enumerate() {
        tried += 1;
        let mut plan = worlds::Plan::draw(seed);
        plan.policy = policy.unwrap_or(plan.policy);
        if let Err(what) = in_time(&plan) {
            if broken.is_empty() {
                println!("the first: {plan:#?}\n");
            }
            println!("seed {seed} ({}): {what}", plan.policy.name());
            let kind = what.split([' ', ':']).next().unwrap_or_default().to_string();
            broken.entry((plan.policy.name(), kind)).or_default().push(seed);
            if what == HANGS {
                println!("a world that hangs can't be stopped: go on from seed {}", seed + 1);
                break;
            }
        }
        if (done + 1).is_multiple_of(500) {
            println!("{} worlds, {:.0} s", done + 1, began.elapsed().as_secs_f64());
        }
    }
    println!("\n{} worlds from seed {first} in {:.1} s", tried, began.elapsed().as_secs_f64());
    for ((policy, kind), seeds) in &broken {
        println!("{policy:10} {kind:9} {:5} worlds, the first of them {:?}", seeds.len(), &seeds[..seeds.len().min(8)]);
    }
    if !broken.is_empty() {
        std::process::exit(1);
    }
}

/// A world takes a tenth of a second; one that takes this long never ends.
const PATIENCE: Duration = Duration::from_secs(60);
const HANGS: &str = "hangs";

/// Runs a world, for a time.
fn in_time(plan: &worlds::Plan) -> Result<(), String> {
    let (tell, told) = mpsc::channel();
    let plan = plan.clone();
    std::thread::spawn(move || tell.send(plan.run()));
    told.recv_timeout(PATIENCE).unwrap_or_else(|_| Err(HANGS.into()))
}

fn compare(count: u64, first: u64, all: bool) {
    let began = Instant::now();
    println!("{}", oracle::Verdict::HEADER);
    let mut failed = 0;
    for (done, seed) in (first..first + count).enumerate() {
        let verdict = oracle::Plan::draw(seed).judge();
        failed += u32::from(!verdict.holds());
        if all || !verdict.holds() {
            println!("{verdict}");
        }
        if (done + 1).is_multiple_of(20) {
            println!("{} worlds, {:.0} s", done + 1, began.elapsed().as_secs_f64());
        }
    }
    println!("\n{failed} of {count} worlds from seed {first} fail, {:.1} s", began.elapsed().as_secs_f64());
}

/// How much of the end of a log is shown.
const SHOWN: usize = 60;

/// Keeps the end of what happens.
struct Log<'a> {
    words: &'a [String],
    lines: VecDeque<String>,
}

impl Observer for Log<'_> {
    fn observe(&mut self, at: Timestamp, seen: &Observation<'_>) -> Result<(), Violation> {
        let line = format!("{at} {seen:?}");
        if self.words.iter().all(|word| line.contains(word)) {
            self.lines.push_back(line);
        }
        if self.lines.len() > SHOWN {
            self.lines.pop_front();
        }
        Ok(())
    }
}

fn log(seed: u64, policy: Option<PolicyKind>, words: &[String]) {
    let mut plan = worlds::Plan::draw(seed);
    plan.policy = policy.unwrap_or(plan.policy);
    println!("{plan:#?}\n");
    let setup = plan.setup();
    let mut log = Log { words, lines: VecDeque::new() };
    let run = sim::run_with(&setup, plan.traffic(&setup), Scheduler::new(setup.scheduler.clone()), &mut log);
    log.lines.iter().for_each(|line| println!("{line}"));
    match run {
        Ok(run) => println!("\nnothing is broken: {:?}", run.meter.total()),
        Err(violation) => println!("\n{violation}"),
    }
}
