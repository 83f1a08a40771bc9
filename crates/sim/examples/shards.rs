//! How many requests a second one model shard and the ranker take on two cores, alone: no network, no controller.
//!
//! `cargo run --release -p sim --example shards` searches the highest rate for 1 to 1,000 models and 8 to 4,096
//! executors. `-- MODELS EXECUTORS` does so for one combination, `-- MODELS EXECUTORS RATE` runs one rate.
//! `-- --once MODELS EXECUTORS REQUESTS` runs everything in one thread in virtual time, for
//! `valgrind --tool=callgrind --toggle-collect='*measured*'`.
//!
//! Open loop: the arrivals (Poisson, models equally popular) are drawn before the run, each with the moment at which it should
//! come. The shard's thread takes them in when their moment has come. A rate counts only if
//! - no request was taken in more than 2 ms late,
//! - the run lasted at least 2 s and ended when all queues were empty and all executors done,
//! - at least 99 % of all requests were executed before their deadlines.
//!
//! Both threads spin, so that whatever else wants a core takes it from them, for a tick of the system's clock at a time, which
//! alone is too late. How long they waited for a core in a run is printed with it. A rate gets six tries; the best one
//! counts. On a machine that others use, `chrt -f 1` before the command and `--breathe` behind it help: the threads take their
//! cores when they want them, but sleep for a tenth of each millisecond, so that others aren't shut out (else the system
//! would step in, for 50 ms at a time).
//!
//! The executors are emulated in the shard's thread: a batch takes what the profile says, and its end is reported to the
//! ranker. The profile has the shape of ResNet50's in the paper (beta = 4.817 alpha), with batches of at most 16, scaled so that
//! all executors together could do 12 million requests a second. The objective is 25 ms, or four times what a batch
//! of 16 takes where that is more.

use base::{DeviceId, Duration, LatencyProfile, ModelId, RequestId, Timestamp};
use crossbeam_queue::ArrayQueue;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use scheduler::shards::{
    Batch, Delay, ExecutorNews, Grant, LatencyTable, Mailboxes, News, Outbox, Ranker, Shard, ShardConfig, Waiting,
};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const CAPACITY: f64 = 12e6;
const MAX_BATCH: u32 = 16;
const BETA_OVER_ALPHA: f64 = 5.072 / 1.053;
const SECONDS: f64 = 2.1;
const MAX_LATE: u64 = 2_000_000;
const MIN_SERVED: f64 = 0.99;
/// No neighbour makes a run that late.
const HOPELESS_MS: f64 = 30.0;
/// A turn of the threads at 2 million requests a second, about.
const STEP: Duration = Duration::from_micros(4);
/// Requests that are taken in between two looks at the clock.
const AT_ONCE: usize = 32;

/// What is asked of the two machines.
#[derive(Clone, Copy)]
struct Plan {
    models: u32,
    executors: u32,
    /// Whether the threads sleep for a tenth of the time.
    breathe: bool,
}

/// When a thread sleeps next.
struct Breath {
    wanted: bool,
    next_at: Timestamp,
}

impl Breath {
    fn take(&mut self, now: Timestamp) {
        if self.wanted && now >= self.next_at {
            std::thread::sleep(std::time::Duration::from_micros(100));
            self.next_at = now + Duration::from_millis(1);
        }
    }
}

impl Plan {
    fn largest_batch(self) -> Duration {
        Duration::from_secs_f64(f64::from(MAX_BATCH) * f64::from(self.executors) / CAPACITY)
    }

    fn table(self) -> LatencyTable {
        let alpha = self.largest_batch().as_secs_f64() / (f64::from(MAX_BATCH) + BETA_OVER_ALPHA);
        let (alpha, beta) = (Duration::from_secs_f64(alpha), Duration::from_secs_f64(alpha * BETA_OVER_ALPHA));
        let sizes: Vec<u32> = (1..=MAX_BATCH).collect();
        let profile = LatencyProfile::linear(alpha, beta, &sizes, Duration::ZERO).expect("the sizes ascend");
        LatencyTable::new(&profile)
    }

    fn slo(self) -> Duration {
        Duration::from_millis(25).max(self.largest_batch() * 4)
    }

    fn shard(self) -> Shard {
        let mut shard = Shard::new(ShardConfig::default(), 0, 1);
        shard.set_executors(self.executors);
        let table = self.table();
        for model in 0..self.models {
            shard.add_model(ModelId(model), table.clone());
            shard.activate(Timestamp::ZERO, ModelId(model), true, &mut Outbox::default());
        }
        shard
    }

    fn ranker(self) -> Ranker {
        let mut ranker = Ranker::new(Delay::default());
        (0..self.executors).for_each(|executor| ranker.add_executor(DeviceId(executor), 0));
        ranker
    }

    fn breath(self) -> Breath {
        Breath { wanted: self.breathe, next_at: Timestamp::ZERO }
    }

    fn links(self) -> Links {
        // Each executor is granted once at a time, and has at most three things to say before the ranker looks.
        Links {
            mailboxes: Mailboxes::new(0, 1, self.models),
            grants: ArrayQueue::new(self.executors as usize),
            news: ArrayQueue::new(4 * self.executors as usize),
        }
    }
}

/// What joins the two machines.
struct Links {
    mailboxes: Mailboxes,
    grants: ArrayQueue<Grant>,
    news: ArrayQueue<News>,
}

/// Requests with the moment at which each should come, in order.
struct Schedule {
    at: Vec<u64>,
    model: Vec<u32>,
}

impl Schedule {
    fn poisson(models: u32, rate: f64, count: usize) -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let mut now = 0.0;
        let (mut at, mut model) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for _ in 0..count {
            now -= (1.0 - random()).ln() / rate;
            at.push((now * 1e9) as u64);
            model.push((random() * f64::from(models)) as u32);
        }
        Self { at, model }
    }
}

/// The executors: each takes exactly what was expected, one batch after the other.
struct Emulated {
    busy_until: Vec<Timestamp>,
    ends: BinaryHeap<Reverse<(Timestamp, DeviceId)>>,
    in_time: u64,
    batches: u64,
    refused: u64,
    /// Keeps the compiler from leaving out what an order would have to carry.
    checksum: u64,
}

impl Emulated {
    fn new(plan: Plan) -> Self {
        Self {
            busy_until: vec![Timestamp::ZERO; plan.executors as usize],
            ends: BinaryHeap::with_capacity(4 * plan.executors as usize),
            in_time: 0,
            batches: 0,
            refused: 0,
            checksum: 0,
        }
    }

    fn execute(&mut self, now: Timestamp, batch: &Batch, members: &[RequestId]) {
        let busy_until = &mut self.busy_until[batch.executor.index()];
        let start_at = now.max(batch.window.earliest).max(*busy_until);
        self.batches += 1;
        self.checksum += members.iter().map(|id| u64::from(id.slot)).sum::<u64>();
        // A worker would give back what is past its window.
        let takes = if start_at <= batch.window.latest {
            self.in_time += members.len() as u64;
            batch.expected
        } else {
            Duration::ZERO
        };
        *busy_until = start_at + takes;
        self.ends.push(Reverse((*busy_until, batch.executor)));
    }

    /// What has ended by now.
    fn ended(&mut self, now: Timestamp) -> Option<News> {
        let &Reverse((at, executor)) = self.ends.peek()?;
        (at <= now).then(|| {
            self.ends.pop();
            News { executor, life: 0, what: ExecutorNews::Ended { at } }
        })
    }
}

/// The shard's side: takes requests in, carries out what the shard says.
struct ShardSide<'a> {
    shard: Shard,
    links: &'a Links,
    schedule: &'a Schedule,
    slo: Duration,
    next: usize,
    out: Outbox,
    emulated: Emulated,
    latest: u64,
    too_late: u64,
}

impl<'a> ShardSide<'a> {
    fn new(plan: Plan, links: &'a Links, schedule: &'a Schedule) -> Self {
        let (shard, slo, emulated) = (plan.shard(), plan.slo(), Emulated::new(plan));
        Self { shard, links, schedule, slo, next: 0, out: Outbox::default(), emulated, latest: 0, too_late: 0 }
    }

    /// Everything that is due by now, but not more requests than should pass between two looks at the clock.
    fn turn(&mut self, now: Timestamp) {
        let nanos = now.as_nanos();
        let due = self.schedule.at[self.next..].iter().take(AT_ONCE).take_while(|&&at| at <= nanos).count();
        for index in self.next..self.next + due {
            let at = self.schedule.at[index];
            self.latest = self.latest.max(nanos - at);
            self.too_late += u64::from(nanos - at > MAX_LATE);
            let deadline_at = Timestamp::from_nanos(at) + self.slo;
            let id = RequestId { slot: index as u32, generation: 0 };
            let request = Waiting { id, deadline_at, rows: 1 };
            let queued = self.shard.submit(now, ModelId(self.schedule.model[index]), request, &mut self.out);
            self.emulated.refused += u64::from(queued.is_err());
        }
        self.next += due;
        while let Some(grant) = self.links.grants.pop() {
            self.shard.granted(now, grant, &mut self.out);
        }
        if self.shard.next_wakeup().is_some_and(|at| at <= now) {
            self.shard.wake(now, &mut self.out);
        }
        self.carry_out(now);
    }

    fn carry_out(&mut self, now: Timestamp) {
        while let Some(news) = self.emulated.ended(now) {
            self.links.news.push(news).expect("an executor has few things to say");
        }
        if self.out.is_empty() {
            return;
        }
        let mut members = &self.out.members[..];
        for batch in &self.out.batches {
            let (of_batch, rest) = members.split_at(batch.count);
            members = rest;
            self.emulated.execute(now, batch, of_batch);
        }
        for &news in &self.out.news {
            self.links.news.push(news).expect("an executor has few things to say");
        }
        for &announcement in &self.out.announcements {
            self.links.mailboxes.post(announcement);
        }
        self.emulated.refused += self.out.refused.len() as u64;
        self.out.clear();
    }

    fn is_over(&self) -> bool {
        self.next == self.schedule.at.len()
            && self.shard.next_wakeup().is_none()
            && self.emulated.ends.is_empty()
            && self.links.grants.is_empty()
    }
}

/// The ranker's side.
struct RankerSide<'a> {
    ranker: Ranker,
    links: &'a Links,
    grants: Vec<Grant>,
    granted: u64,
}

impl<'a> RankerSide<'a> {
    fn new(plan: Plan, links: &'a Links) -> Self {
        Self { ranker: plan.ranker(), links, grants: Vec::new(), granted: 0 }
    }

    /// Whether there was something to do.
    fn turn(&mut self, now: Timestamp) -> bool {
        let mut news = false;
        while let Some(what) = self.links.news.pop() {
            self.ranker.news(what);
            news = true;
        }
        if self.links.mailboxes.is_new() {
            let ranker = &mut self.ranker;
            self.links.mailboxes.collect(|announcement| ranker.announce(now, announcement));
            news = true;
        }
        if !news && self.ranker.next_wakeup().is_none_or(|at| at > now) {
            return false;
        }
        self.ranker.decide(now, &mut self.grants);
        for grant in self.grants.drain(..) {
            self.granted += 1;
            self.links.grants.push(grant).expect("an executor is granted once at a time");
        }
        true
    }
}

/// Binds the calling thread to one of the allowed cores, where the system lets it.
fn pin(position: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let Some(core) = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).nth(position) else { return };
    let mut set = CpuSet::new();
    set.set(core);
    let _ = sched_setaffinity(None, &set);
}

/// How long the calling thread was ready to run and didn't, so far (Linux).
fn waited() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split_whitespace().nth(1).and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or(0.0) / 1e6
}

/// What a run showed.
struct Shown {
    valid: bool,
    served: f64,
    latest_ms: f64,
    mean_batch: f64,
    /// In how many of its turns the ranker had something to do.
    ranker_busy: f64,
    /// How long the threads waited for their cores.
    waited_ms: f64,
}

fn run(plan: Plan, rate: f64) -> Shown {
    let schedule = Schedule::poisson(plan.models, rate, (rate * SECONDS) as usize);
    let links = plan.links();
    let over = AtomicBool::new(false);
    let start = Instant::now() + std::time::Duration::from_millis(50);
    let clock = || Timestamp::from_nanos(start.elapsed().as_nanos() as u64);
    let ranker = || {
        pin(0);
        let mut side = RankerSide::new(plan, &links);
        let (mut turns, mut busy) = (0u64, 0u64);
        let (before, mut breath) = (waited(), plan.breath());
        while !over.load(Ordering::Relaxed) {
            let now = clock();
            breath.take(now);
            turns += 1;
            busy += u64::from(side.turn(now));
        }
        (busy as f64 / turns as f64, waited() - before)
    };
    let shard = || {
        pin(1);
        let mut side = ShardSide::new(plan, &links, &schedule);
        let (before, mut breath) = (waited(), plan.breath());
        while !side.is_over() {
            let now = clock();
            side.turn(now);
            breath.take(now);
        }
        over.store(true, Ordering::Relaxed);
        (side.emulated, side.too_late, side.latest, waited() - before)
    };
    let (ranker, shard) = std::thread::scope(|scope| {
        let (ranker, shard) = (scope.spawn(ranker), scope.spawn(shard));
        (ranker.join().expect("the ranker ends well"), shard.join().expect("the shard ends well"))
    });
    let seconds = clock().as_nanos() as f64 / 1e9;
    let (ranker_busy, ranker_waited) = ranker;
    let (emulated, too_late, latest, shard_waited) = shard;
    let all = schedule.at.len() as u64;
    assert!(emulated.in_time + emulated.refused <= all, "each request ends once");
    let served = emulated.in_time as f64 / all as f64;
    Shown {
        valid: too_late == 0 && served >= MIN_SERVED && seconds >= 2.0,
        served,
        latest_ms: latest as f64 / 1e6,
        mean_batch: emulated.in_time as f64 / emulated.batches as f64,
        ranker_busy,
        waited_ms: ranker_waited + shard_waited,
    }
}

/// Runs a rate until it is valid, at most so many times: what else happens on the machine makes some runs late. A rate that is
/// too high shows in the first.
fn attempt(plan: Plan, rate: f64, times: usize) -> Shown {
    let mut shown = run(plan, rate);
    for _ in 1..times {
        if shown.valid || shown.served < MIN_SERVED || shown.latest_ms > HOPELESS_MS {
            break;
        }
        shown = run(plan, rate);
    }
    shown
}

fn print(plan: Plan, rate: f64, shown: &Shown) {
    println!(
        "{:>7} {:>9} {:>10.0} {:>7.2}% {:>8.3} {:>8.1} {:>6.0}% {:>8.1} {}",
        plan.models,
        plan.executors,
        rate,
        shown.served * 100.0,
        shown.latest_ms,
        shown.mean_batch,
        shown.ranker_busy * 100.0,
        shown.waited_ms,
        if shown.valid { "" } else { "not valid" }
    );
}

/// The highest valid rate, to a quarter.
fn search(plan: Plan) {
    let (mut low, mut high, mut rate) = (0.0, CAPACITY, 2e6);
    let mut best = None;
    while high - low > high / 4.0 {
        let shown = attempt(plan, rate, 6);
        if shown.valid {
            low = rate;
            best = Some(shown);
        } else {
            high = rate;
        }
        rate = if low == 0.0 { high / 2.0 } else { (low + high).min(4.0 * low) / 2.0 };
        if high < 100e3 {
            break;
        }
    }
    match best {
        Some(shown) => print(plan, low, &shown),
        None => println!("{:>7} {:>9} no rate was valid", plan.models, plan.executors),
    }
}

/// Both sides in one thread, in virtual time that goes on by `STEP` with each turn; what callgrind is told to look at.
#[inline(never)]
fn measured(shard: &mut ShardSide<'_>, ranker: &mut RankerSide<'_>) {
    let mut now = Timestamp::ZERO;
    while !shard.is_over() {
        shard.turn(now);
        ranker.turn(now);
        now += STEP;
    }
}

fn once(plan: Plan, requests: usize) {
    let schedule = Schedule::poisson(plan.models, 2e6, requests);
    let links = plan.links();
    let mut shard = ShardSide::new(plan, &links, &schedule);
    let mut ranker = RankerSide::new(plan, &links);
    measured(&mut shard, &mut ranker);
    let emulated = &shard.emulated;
    println!(
        "{} models, {} executors: {requests} requests, {} in time, in {} batches",
        plan.models, plan.executors, emulated.in_time, emulated.batches
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<u64> = arguments.iter().filter_map(|argument| argument.parse().ok()).collect();
    let is_given = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let breathe = is_given("--breathe");
    let plan = |models: u64, executors: u64| Plan { models: models as u32, executors: executors as u32, breathe };
    if is_given("--once") {
        let [models, executors, requests] = numbers[..] else {
            return eprintln!("--once needs three numbers: MODELS EXECUTORS REQUESTS");
        };
        return once(plan(models, executors), requests as usize);
    }
    println!(" models executors requests/s   served late(ms)    batch  ranker wait(ms)");
    match numbers[..] {
        [models, executors, rate] => {
            let plan = plan(models, executors);
            print(plan, rate as f64, &run(plan, rate as f64));
        }
        [models, executors] => search(plan(models, executors)),
        _ => {
            for models in [1, 10, 100, 1_000] {
                for executors in [8, 64, 1_024, 4_096] {
                    search(plan(models, executors));
                }
            }
        }
    }
}
