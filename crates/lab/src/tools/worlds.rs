//! Random worlds, as many as wanted.

use base::Timestamp;
use lab::oracle::{CalmWorld, Judgement};
use lab::worlds::RandomWorld;
use scheduler::{PolicyKind, Scheduler};
use sim::{Observation, Observer, Violation};
use std::collections::{BTreeMap, VecDeque};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(crate) struct WorldsArgs {
    /// How many.
    #[arg(default_value_t = 1_000)]
    count: u64,
    /// From which seed on.
    #[arg(default_value_t = 0)]
    first_seed: u64,
    /// This policy in all of them, instead of the one that is drawn.
    #[arg(value_parser = policy)]
    policy: Option<PolicyKind>,
}

#[derive(clap::Args)]
pub(crate) struct OracleArgs {
    /// How many.
    #[arg(default_value_t = 100)]
    count: u64,
    /// From which seed on.
    #[arg(default_value_t = 0)]
    first_seed: u64,
    /// Show every world.
    #[arg(long)]
    all: bool,
}

#[derive(clap::Args)]
pub(crate) struct WorldArgs {
    /// Its seed.
    seed: u64,
    /// This policy instead of the one that is drawn.
    #[arg(long, value_parser = policy)]
    policy: Option<PolicyKind>,
    /// Only what was told and ordered with all of these words in it (`m3`, `d0`).
    words: Vec<String>,
}

fn policy(name: &str) -> Result<PolicyKind, String> {
    PolicyKind::from_name(name).ok_or_else(|| {
        let known: Vec<&str> = PolicyKind::ALL.iter().map(|policy| policy.name()).collect();
        format!("unknown policy: known are {}", known.join(", "))
    })
}

/// Prints how far it is, each seed whose world breaks a promise, and the first such world.
pub(crate) fn run(args: &WorldsArgs) -> ExitCode {
    let (count, first) = (args.count, args.first_seed);
    // What panics is reported with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    let began = Instant::now();
    let mut broken: BTreeMap<(&str, String), Vec<u64>> = BTreeMap::new();
    let mut tried = 0;
    for (done, seed) in (first..first + count).enumerate() {
        tried += 1;
        let world = drawn(seed, args.policy);
        if let Err(what) = in_time(&world) {
            if broken.is_empty() {
                println!("the first: {world:#?}\n");
            }
            println!("seed {seed} ({}): {what}", world.policy.name());
            let kind = what.split([' ', ':']).next().unwrap_or_default().to_string();
            broken.entry((world.policy.name(), kind)).or_default().push(seed);
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
    if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn drawn(seed: u64, policy: Option<PolicyKind>) -> RandomWorld {
    let world = RandomWorld::draw(seed);
    RandomWorld { policy: policy.unwrap_or(world.policy), ..world }
}

/// A world takes a tenth of a second; one that takes this long never ends.
const PATIENCE: Duration = Duration::from_secs(60);
const HANGS: &str = "hangs";

/// Runs a world, for a time.
fn in_time(world: &RandomWorld) -> Result<(), String> {
    let (tell, told) = mpsc::channel();
    let world = world.clone();
    std::thread::spawn(move || tell.send(world.run()));
    told.recv_timeout(PATIENCE).unwrap_or_else(|_| Err(HANGS.into()))
}

/// Shows where `punctual` is worse than its rivals.
pub(crate) fn compare(args: &OracleArgs) {
    let (count, first) = (args.count, args.first_seed);
    let began = Instant::now();
    println!("{}", Judgement::HEADER);
    let mut failed = 0;
    for (done, seed) in (first..first + count).enumerate() {
        let judgement = CalmWorld::draw(seed).judge();
        failed += u32::from(!judgement.holds());
        if args.all || !judgement.holds() {
            println!("{judgement}");
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

/// Shows the last things that were told and ordered in one world.
pub(crate) fn show(args: &WorldArgs) {
    let world = drawn(args.seed, args.policy);
    println!("{world:#?}\n");
    let setup = world.setup();
    let mut log = Log { words: &args.words, lines: VecDeque::new() };
    let run = sim::run_with(&setup, world.traffic(&setup), Scheduler::new(setup.scheduler.clone()), &mut log);
    log.lines.iter().for_each(|line| println!("{line}"));
    match run {
        Ok(run) => {
            let total = run.meter.total();
            println!("\nnothing is broken: {} requests, {} good, {} bad", total.sent, total.good, total.bad());
        }
        Err(violation) => println!("\n{violation}"),
    }
}
