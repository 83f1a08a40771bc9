//! Shards and ranker: the paper's example, the same decisions in one thread and in several, and what is refused.

#![allow(clippy::unwrap_used, reason = "a test that finds something else than it expects should stop")]

use base::{ActionId, ApplicationId, DeviceId, Duration, LatencyProfile, ModelId, RequestId, Timestamp, Transfers};
use expect_test::expect;
use scheduler::shards::{
    ActionNumbers, Delay, Desk, Gathering, Grant, Mailboxes, News, Ranker, ShardConfig, Sharded, ShardedConfig,
};
use scheduler::{ActionStatus, Command, DeviceSpec, Event, ModelSpec, Outcome, Report, Request};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

trait Machine {
    fn step(&mut self, now: Timestamp, event: Event, out: &mut Vec<Command>);
    fn next_wakeup(&self) -> Option<Timestamp>;
}

impl Machine for Sharded {
    fn step(&mut self, now: Timestamp, event: Event, out: &mut Vec<Command>) {
        Self::step(self, now, event, out);
    }

    fn next_wakeup(&self) -> Option<Timestamp> {
        Self::next_wakeup(self).map(|(at, _)| at)
    }
}

/// What a turn of the ranker's thread is given and gives back.
type Turn = (Timestamp, Vec<News>);
type Answer = (Vec<Grant>, Option<Timestamp>);

/// Desks here, the ranker in a thread of its own, mailboxes in between; each waits for the other, so that every message is
/// delivered before the next event.
struct Mailed {
    desks: Vec<Desk>,
    numbers: ActionNumbers,
    mailboxes: Arc<Vec<Mailboxes>>,
    turn: Option<SyncSender<Turn>>,
    answers: Receiver<Answer>,
    ranker_at: Option<Timestamp>,
    owners: BTreeMap<RequestId, usize>,
    ranker: Option<std::thread::JoinHandle<()>>,
}

impl Mailed {
    fn new(shards: u32, shard: ShardConfig, executors: u32, models: &[ModelSpec]) -> Self {
        let mut desks: Vec<Desk> = (0..shards).map(|index| Desk::new(shard, index, shards, 10, 0.99)).collect();
        let mut numbers = ActionNumbers::new(0, 1);
        let mailbox = |index| Mailboxes::new(index, shards, models.len() as u32);
        let mailboxes: Arc<Vec<Mailboxes>> = Arc::new((0..shards).map(mailbox).collect());
        let mut out = Vec::new();
        desks.iter_mut().for_each(|desk| desk.set_executors(executors));
        for spec in models {
            let desk = &mut desks[(spec.model.0 % shards) as usize];
            desk.add_model(spec);
            desk.activate(Timestamp::ZERO, spec.model, true, &mut numbers, &mut out);
        }
        let (turn, turns) = sync_channel::<Turn>(0);
        let (answer, answers) = sync_channel::<Answer>(0);
        let collect_from = Arc::clone(&mailboxes);
        let ranker = std::thread::spawn(move || {
            let mut ranker = Ranker::new(shard.delay);
            (0..executors).for_each(|executor| ranker.add_executor(DeviceId(executor), executor));
            for (now, news) in turns {
                news.into_iter().for_each(|news| ranker.news(news));
                collect_from.iter().for_each(|boxes| boxes.collect(|news| ranker.announce(now, news)));
                let mut grants = Vec::new();
                ranker.decide(now, &mut grants);
                answer.send((grants, ranker.next_wakeup())).unwrap();
            }
        });
        let (turn, owners, ranker) = (Some(turn), BTreeMap::new(), Some(ranker));
        Self { desks, numbers, mailboxes, turn, answers, ranker_at: None, owners, ranker }
    }

    fn settle(&mut self, now: Timestamp, out: &mut Vec<Command>) {
        for desk in &mut self.desks {
            if desk.next_wakeup().is_some_and(|at| at <= now) {
                desk.wake(now, &mut self.numbers, out);
            }
        }
        loop {
            let mut news = Vec::new();
            for (desk, mailboxes) in self.desks.iter_mut().zip(self.mailboxes.iter()) {
                news.append(&mut desk.outbox().news);
                desk.outbox().announcements.drain(..).for_each(|announcement| mailboxes.post(announcement));
            }
            self.turn.as_ref().unwrap().send((now, news)).unwrap();
            let (grants, ranker_at) = self.answers.recv().unwrap();
            self.ranker_at = ranker_at;
            if grants.is_empty() {
                return;
            }
            for grant in grants {
                let shards = self.desks.len() as u32;
                let desk = &mut self.desks[(grant.model.0 % shards) as usize];
                desk.granted(now, grant, &mut self.numbers, out);
            }
        }
    }
}

impl Drop for Mailed {
    fn drop(&mut self) {
        drop(self.turn.take());
        self.ranker.take().unwrap().join().unwrap();
    }
}

impl Machine for Mailed {
    fn step(&mut self, now: Timestamp, event: Event, out: &mut Vec<Command>) {
        match event {
            Event::Submitted(request) => {
                let owner = request.model.index() % self.desks.len();
                self.owners.insert(request.id, owner);
                self.desks[owner].submitted(now, request, &mut self.numbers, out);
            }
            Event::Cancelled(id) => self.desks[self.owners[&id]].cancelled(now, id, &mut self.numbers, out),
            Event::Reported(report) => {
                let numbers = &mut self.numbers;
                assert!(self.desks.iter_mut().any(|desk| desk.reported(now, report, numbers, out)));
            }
            Event::WokeUp => {}
            other => panic!("this test doesn't tell of {other:?}"),
        }
        self.settle(now, out);
    }

    fn next_wakeup(&self) -> Option<Timestamp> {
        self.desks.iter().filter_map(Desk::next_wakeup).chain(self.ranker_at).min()
    }
}

/// A request of a scenario: its number, when it comes, for which model, by when it must be done, and when its client goes, if it does.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    number: u32,
    at: Timestamp,
    model: u32,
    slo: Duration,
    cancel_at: Option<Timestamp>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Due {
    Ended { action: ActionId, started_at: Timestamp },
    Cancel(usize),
    Arrival(usize),
}

/// Drives a machine in virtual time with executors that take exactly what was expected; gives a line for each batch and for
/// each request that wasn't done in time.
fn drive(machine: &mut dyn Machine, executors: u32, arrivals: &[Arrival]) -> String {
    let mut log = String::new();
    let mut agenda = BinaryHeap::new();
    for (index, arrival) in arrivals.iter().enumerate() {
        agenda.push(Reverse((arrival.at, Due::Arrival(index))));
        agenda.extend(arrival.cancel_at.map(|at| Reverse((at, Due::Cancel(index)))));
    }
    let mut busy_until = vec![Timestamp::ZERO; executors as usize];
    let mut out = Vec::new();
    let id = |index: usize| RequestId { slot: arrivals[index].number, generation: 0 };
    let ms = |at: Timestamp| at.as_nanos() as f64 / 1e6;
    loop {
        let wakeup = machine.next_wakeup();
        let due = agenda.peek().map(|Reverse((at, _))| *at);
        let (now, event) = match (due, wakeup) {
            (Some(due), wakeup) if wakeup.is_none_or(|at| due <= at) => {
                let Reverse((now, due)) = agenda.pop().unwrap();
                let event = match due {
                    Due::Arrival(index) => {
                        let Arrival { at, model, slo, .. } = arrivals[index];
                        let (id, model, deadline_at) = (id(index), ModelId(model), at + slo);
                        Event::Submitted(Request {
                            id,
                            model,
                            deadline_at,
                            priority: 0,
                            rows: 1,
                            application: ApplicationId::DEFAULT,
                            size: None,
                        })
                    }
                    Due::Cancel(index) => Event::Cancelled(id(index)),
                    Due::Ended { action, started_at } => {
                        let status = ActionStatus::Done { started_at, ended_at: now, transfers: Transfers::default() };
                        Event::Reported(Report { action, status })
                    }
                };
                (now, event)
            }
            (_, Some(at)) => (at, Event::WokeUp),
            (_, None) => return log,
        };
        machine.step(now, event, &mut out);
        for command in out.drain(..) {
            match command {
                Command::Execute(batch) => {
                    let busy = &mut busy_until[batch.device.index()];
                    let started_at = now.max(batch.window.earliest).max(*busy);
                    assert!(batch.window.contains(started_at), "{batch:?} can't start at {started_at}");
                    *busy = started_at + batch.expected;
                    let names: Vec<String> = batch.requests.iter().map(|id| format!("R{}", id.slot)).collect();
                    let names = match &names[..] {
                        [first, .., last] => format!("{first} to {last}"),
                        [only] => only.clone(),
                        [] => panic!("{batch:?} is empty"),
                    };
                    let (device, model, count) = (batch.device, batch.model, batch.requests.len());
                    let at = ms(started_at);
                    writeln!(log, "{at:<6}{device} {model} {count:>2}: {names}").unwrap();
                    agenda.push(Reverse((*busy, Due::Ended { action: batch.action, started_at })));
                }
                Command::Load(_) | Command::Unload(_) | Command::Preempt { .. } => {
                    panic!("{command:?} after the start")
                }
                Command::Finish { outcome: Outcome::Done, .. } => {}
                Command::Finish { request, outcome } => {
                    let name = match outcome {
                        Outcome::Rejected(_) => "refused".to_owned(),
                        other => format!("{other:?}").to_lowercase(),
                    };
                    writeln!(log, "{:<6}R{} {name}", ms(now), request.slot).unwrap();
                }
            }
        }
    }
}

fn spec(model: u32, alpha: Duration, beta: Duration, max_batch: u32) -> ModelSpec {
    let sizes: Vec<u32> = (1..=max_batch).collect();
    let profile = LatencyProfile::linear(alpha, beta, &sizes, Duration::ZERO).unwrap();
    ModelSpec {
        model: ModelId(model),
        pages: 1,
        profile,
        elsewhere: Vec::new(),
        objective: None,
        fixed: Duration::ZERO,
        fairness: scheduler::Fairness::default(),
    }
}

fn sharded(shards: u32, shard: ShardConfig, executors: u32, models: &[ModelSpec]) -> Sharded {
    let mut machine = Sharded::new(ShardedConfig { shards, shard, ..ShardedConfig::default() });
    let mut out = Vec::new();
    for spec in models {
        machine.step(Timestamp::ZERO, Event::ModelAdded(spec.clone()), &mut out);
    }
    for device in 0..executors {
        let spec = DeviceSpec { device: DeviceId(device), pages: models.len() as u32, kind: 0 };
        machine.step(Timestamp::ZERO, Event::DeviceAdded(spec), &mut out);
    }
    for command in std::mem::take(&mut out) {
        let Command::Load(load) = command else { panic!("{command:?} before any request") };
        let status = ActionStatus::Done {
            started_at: Timestamp::ZERO,
            ended_at: Timestamp::ZERO,
            transfers: Transfers::default(),
        };
        machine.step(Timestamp::ZERO, Event::Reported(Report { action: load.action, status }), &mut out);
    }
    assert_eq!(out, []);
    machine
}

/// Section 3.3: l(b) = b + 5, an objective of 12, three executors, a request every 0.75, of which three are missing.
#[test]
fn three_missing_requests_and_the_staggered_pattern_is_regained() {
    let models = [spec(0, Duration::from_millis(1), Duration::from_millis(5), 32)];
    let mut machine = sharded(1, ShardConfig::default(), 3, &models);
    let arrivals: Vec<Arrival> = (0..60u64)
        .filter(|index| !(12..15).contains(index))
        .map(|index| Arrival {
            number: index as u32 + 1,
            at: Timestamp::ZERO + Duration::from_micros(750) * index,
            model: 0,
            slo: Duration::from_millis(12),
            cancel_at: None,
        })
        .collect();
    let log = drive(&mut machine, 3, &arrivals);
    let expected = expect![[r#"
        2.25  d0 m0  4: R1 to R4
        5.25  d1 m0  4: R5 to R8
        8.25  d2 m0  4: R9 to R12
        13.5  d0 m0  4: R16 to R19
        16.5  d1 m0  4: R20 to R23
        19.5  d2 m0  4: R24 to R27
        22.5  d0 m0  4: R28 to R31
        25.5  d1 m0  4: R32 to R35
        28.5  d2 m0  4: R36 to R39
        31.5  d0 m0  4: R40 to R43
        34.5  d1 m0  4: R44 to R47
        37.5  d2 m0  4: R48 to R51
        40.5  d0 m0  4: R52 to R55
        43.5  d1 m0  4: R56 to R59
        49.25 d2 m0  1: R60
    "#]];
    expected.assert_eq(&log);
}

/// Repeatable arrivals of every kind: bursts, two lengths of objectives, clients that go away.
fn random_arrivals(count: usize, models: u32, mean_gap_us: u64, seed: u64) -> Vec<Arrival> {
    let mut state = seed;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut at = Timestamp::ZERO;
    (1..=count as u32)
        .map(|number| {
            let gap = if random(4) == 0 { 0 } else { random(mean_gap_us * 8 / 3) };
            at += Duration::from_micros(gap);
            let slo = Duration::from_micros(if random(5) == 0 { 9_000 } else { 15_000 + random(3) });
            let cancel_at = (random(20) == 0).then(|| at + Duration::from_micros(random(12_000)));
            Arrival { number, at, model: random(u64::from(models)) as u32, slo, cancel_at }
        })
        .collect()
}

fn profiles(models: u32) -> Vec<ModelSpec> {
    let spec = |model: u32| {
        let alpha = Duration::from_micros(200 + 100 * u64::from(model % 4));
        spec(model, alpha, Duration::from_micros(1_500), 16)
    };
    (0..models).map(spec).collect()
}

fn config(gathering: Gathering, announce_ahead: Duration) -> ShardConfig {
    let delay = Delay { control: Duration::from_micros(30), data_per_row: Duration::from_micros(5) };
    ShardConfig { delay, gathering, announce_ahead, ..ShardConfig::default() }
}

#[test]
fn threads_with_mailboxes_decide_as_one_thread_does() {
    let models = profiles(6);
    for gathering in [Gathering::HeadFirst, Gathering::TargetSize] {
        for (shards, gap_us, seed) in [(1, 700, 1), (1, 150, 2), (1, 90, 3), (1, 40, 4), (3, 120, 5)] {
            let shard = config(gathering, Duration::ZERO);
            let arrivals = random_arrivals(2_000, 6, gap_us, seed);
            let one = drive(&mut sharded(shards, shard, 4, &models), 4, &arrivals);
            let several = drive(&mut Mailed::new(shards, shard, 4, &models), 4, &arrivals);
            assert!(one.lines().count() > 100, "something happens: {one}");
            assert!(one == several, "{gathering:?}, seed {seed}: the decisions differ");
        }
    }
}

#[test]
fn when_the_ranker_hears_of_a_batch_does_not_change_what_is_decided() {
    let models = profiles(5);
    for (gap_us, seed) in [(700, 1), (150, 2), (90, 3)] {
        let arrivals = random_arrivals(2_000, 5, gap_us, seed);
        let run = |ahead| drive(&mut sharded(2, config(Gathering::HeadFirst, ahead), 3, &models), 3, &arrivals);
        let at_the_moment = run(Duration::ZERO);
        assert!(run(Duration::from_micros(500)) == at_the_moment, "half a millisecond ahead, seed {seed}");
        assert!(run(Duration::from_secs(1)) == at_the_moment, "with every request, seed {seed}");
    }
}

#[test]
fn the_number_of_shards_does_not_change_what_is_decided() {
    let models = profiles(7);
    let arrivals = random_arrivals(2_000, 7, 120, 9);
    let run =
        |shards| drive(&mut sharded(shards, config(Gathering::HeadFirst, Duration::ZERO), 4, &models), 4, &arrivals);
    let one = run(1);
    for shards in [2, 3, 7, 11] {
        assert!(run(shards) == one, "{shards} shards");
    }
}

#[test]
fn giving_up_the_head_keeps_batches_large_under_overload() {
    let models = profiles(1);
    // 16 in 4.7 ms on each of two: 6,800 a second at best; 20,000 come.
    let arrivals: Vec<Arrival> = (0..20_000u64)
        .map(|index| {
            let at = Timestamp::ZERO + Duration::from_micros(50) * index;
            Arrival { number: index as u32, at, model: 0, slo: Duration::from_millis(8), cancel_at: None }
        })
        .collect();
    let served = |gathering| {
        let log = drive(&mut sharded(1, config(gathering, Duration::ZERO), 2, &models), 2, &arrivals);
        arrivals.len() - log.lines().filter(|line| line.ends_with("refused")).count()
    };
    let (head_first, target) = (served(Gathering::HeadFirst), served(Gathering::TargetSize));
    assert!(target > head_first * 11 / 10, "{target} against {head_first}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut machine = Sharded::new(ShardedConfig::default());
    let mut out = Vec::new();
    let now = Timestamp::ZERO;
    let model = |model, pages| ModelSpec { pages, ..spec(model, Duration::from_millis(1), Duration::ZERO, 4) };
    let ask = |machine: &mut Sharded, slot, model| {
        let deadline_at = now + Duration::from_secs(1);
        let id = RequestId { slot, generation: 0 };
        let mut out = Vec::new();
        let request = Request {
            id,
            model: ModelId(model),
            deadline_at,
            priority: 0,
            rows: 1,
            application: ApplicationId::DEFAULT,
            size: None,
        };
        machine.step(now, Event::Submitted(request), &mut out);
        format!("{out:?}")
    };
    machine.step(now, Event::ModelAdded(model(0, 3)), &mut out);
    assert!(ask(&mut machine, 0, 0).contains("NoDevice"), "there is no device");
    machine.step(now, Event::DeviceAdded(DeviceSpec { device: DeviceId(0), pages: 2, kind: 0 }), &mut out);
    assert!(ask(&mut machine, 0, 0).contains("NoDevice"), "the only device is too small");
    assert_eq!(out, [], "and nothing is loaded there");
    machine.step(now, Event::DeviceAdded(DeviceSpec { device: DeviceId(1), pages: 4, kind: 0 }), &mut out);
    assert!(matches!(out[..], [Command::Load(load)] if load.device == DeviceId(1)), "{out:?}");
    assert_eq!(ask(&mut machine, 0, 0), "[]", "it waits for the weights");
    machine.step(now, Event::ModelAdded(model(1, 2)), &mut out);
    assert!(ask(&mut machine, 1, 1).contains("ModelUnavailable"), "one page is left");
    machine.step(now, Event::ModelAdded(model(2, 1)), &mut out);
    assert_eq!(out.len(), 2, "{out:?}");
    assert_eq!(machine.free_pages(DeviceId(1)), Some(0));
    // The first goes: what waited for it is refused, and when its weights have come and gone there is room for the second.
    let loads = std::mem::take(&mut out);
    machine.step(now, Event::ModelRemoved(ModelId(0)), &mut out);
    assert!(format!("{out:?}").contains("ModelUnavailable"), "{out:?}");
    out.clear();
    for load in loads {
        let Command::Load(load) = load else { panic!("{load:?}") };
        let status = ActionStatus::Done { started_at: now, ended_at: now, transfers: Transfers::default() };
        machine.step(now, Event::Reported(Report { action: load.action, status }), &mut out);
    }
    let [Command::Unload(gone), Command::Load(comes)] = out[..] else { panic!("{out:?}") };
    assert_eq!((gone.model, comes.model), (ModelId(0), ModelId(1)));
    assert_eq!(ask(&mut machine, 1, 1), "[]", "it waits for the weights");
}
