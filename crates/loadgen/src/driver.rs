//! Sends the requests: timetables and clients on one thread.

use crate::LoadError;
use crate::lengths::Lengths;
use crate::pace::Pacer;
use crate::plan::{ClassPlan, LoadPlan, Loop};
use crate::progress::ProgressLine;
use crate::report::LoadReport;
use crate::stats::{RequestOutcome, RequestTimes, Stats};
use crate::target::{Target, Transports};
use base::Duration;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;
use std::time::Instant;
use tokio::sync::Notify;
use tokio::task::spawn_local;
use workload::{OpenLoop, Process, Random, RateCurve, Stream};

/// A client whose connection fails waits this long: a server that is down isn't asked a million times.
const RECONNECT: Duration = Duration::from_millis(10);
/// Requests of one class that may wait in the generator (P9); beyond it they count as errors.
const MAX_WAITING: usize = 1 << 20;
/// After so many requests without a pause the timetable lets the others run.
const BURST: u32 = 32;

/// What all tasks of a run share.
pub struct LoadRun {
    started_at: Instant,
    warmup: Duration,
    /// One for each class.
    pub stats: RefCell<Vec<Stats>>,
    /// Requests without an answer, and timetables that haven't ended.
    under_way: Cell<u64>,
    all_answered: Notify,
    /// No client sends again. Timetables end by themselves: what was due before the end is sent, late or not.
    stopping: Cell<bool>,
    /// Timetables end too.
    interrupted: Cell<bool>,
}

/// Generates the load and waits for the answers.
pub async fn drive(plan: &LoadPlan, stop: impl Future<Output = ()>) -> Result<LoadReport, LoadError> {
    let mut stop = std::pin::pin!(stop);
    let transports = Rc::new(Transports::open(plan).await?);
    let targets = tokio::select! {
        targets = transports.targets(plan) => targets?,
        () = &mut stop => return Err(LoadError::Target("stopped before the first request".into())),
    };
    let run = Rc::new(LoadRun {
        started_at: Instant::now(),
        warmup: plan.warmup,
        stats: RefCell::new(plan.classes.iter().map(|class| Stats::new(class.deadline)).collect()),
        under_way: Cell::new(0),
        all_answered: Notify::new(),
        stopping: Cell::new(false),
        interrupted: Cell::new(false),
    });
    for (index, targets) in targets.into_iter().enumerate() {
        let variants = plan.classes[index].lengths.map_or(1, Lengths::variants);
        let (run, transports) = (run.clone(), transports.clone());
        let class = ClassTasks { index, run, targets: targets.into(), variants, transports };
        class.start(&plan.classes[index], plan)?;
    }
    if plan.busy_poll {
        // Looks at the sockets in each round; ends with the run's thread.
        spawn_local(async {
            loop {
                tokio::task::yield_now().await;
            }
        });
    }
    let progress = plan.progress.then(|| ProgressLine::start(run.clone(), plan.duration));
    let mut interrupted = tokio::select! {
        () = tokio::time::sleep_until((run.started_at + plan.duration.into()).into()) => false,
        () = &mut stop => true,
    };
    run.stopping.set(true);
    run.interrupted.set(interrupted);
    let seconds = run.now().min(plan.duration) - plan.warmup;
    if !interrupted {
        tokio::select! {
            () = run.drained() => {}
            () = tokio::time::sleep(plan.drain.into()) => {}
            () = &mut stop => interrupted = true,
        }
    }
    drop(progress);
    let answered = run.now();
    let stats = run.stats.borrow();
    Ok(LoadReport::new(plan, &stats, seconds, answered, interrupted))
}

impl LoadRun {
    /// Time since the start.
    pub fn now(&self) -> Duration {
        self.started_at.elapsed().into()
    }

    /// A request is due.
    fn begin(&self, class: usize, intended: Duration) {
        self.enter();
        if intended >= self.warmup {
            self.stats.borrow_mut()[class].sent += 1;
        }
    }

    /// A request is over.
    fn end(&self, class: usize, intended: Duration, sent: Duration, outcome: &RequestOutcome) {
        let times = RequestTimes { intended, sent, answered: self.now() };
        if intended >= self.warmup {
            self.stats.borrow_mut()[class].record(times, outcome);
        }
        self.leave();
    }

    fn enter(&self) {
        self.under_way.set(self.under_way.get() + 1);
    }

    fn leave(&self) {
        self.under_way.set(self.under_way.get() - 1);
        if self.under_way.get() == 0 {
            self.all_answered.notify_one();
        }
    }

    async fn drained(&self) {
        while self.under_way.get() > 0 {
            self.all_answered.notified().await;
        }
    }
}

/// What the tasks of one class share.
#[derive(Clone)]
struct ClassTasks {
    index: usize,
    run: Rc<LoadRun>,
    /// For each model, as many as there are lengths.
    targets: Rc<[Target]>,
    variants: u32,
    transports: Rc<Transports>,
}

impl ClassTasks {
    /// Any of a model's requests.
    fn any_of(&self, model: usize, random: &mut Random) -> usize {
        let variant = if self.variants > 1 { random.below(self.variants) } else { 0 };
        model * self.variants as usize + variant as usize
    }

    fn start(&self, class: &ClassPlan, plan: &LoadPlan) -> Result<(), LoadError> {
        let timer = || Pacer::new().map_err(|error| LoadError::System { what: "a timer can't be made", error });
        // Each class has its own random numbers, so that adding one leaves the others as they were.
        let seed = plan.seed.wrapping_mul(1_000_003).wrapping_add(self.index as u64);
        match class.pattern {
            Loop::Open { rate, process, from, join_every } => {
                let streams = streams(class, rate, process, from, join_every);
                let timetable = Timetable {
                    class: self.clone(),
                    pacer: timer()?,
                    arrivals: OpenLoop::new(streams, seed),
                    random: Random::new(seed, u64::MAX),
                    end: plan.duration,
                    connections: plan.connections,
                };
                let run = self.run.clone();
                run.enter();
                spawn_local(async move {
                    timetable.follow().await;
                    run.leave();
                });
            }
            Loop::Closed { clients, backoff } => {
                let mut below = 0.0;
                let cumulative: Rc<[f64]> = class
                    .models
                    .iter()
                    .map(|(_, share)| {
                        below += share;
                        below
                    })
                    .collect();
                for client in 0..clients {
                    let random = Random::new(seed, u64::from(client));
                    let client = Client {
                        class: self.clone(),
                        pacer: timer()?,
                        cumulative: cumulative.clone(),
                        random,
                        backoff,
                    };
                    spawn_local(client.ask_again_and_again());
                }
            }
        }
        Ok(())
    }
}

fn streams(
    class: &ClassPlan,
    rate: f64,
    process: Process,
    from: Duration,
    join_every: Option<Duration>,
) -> impl Iterator<Item = Stream> {
    let curve = match join_every {
        None => RateCurve::steps([(from, rate)]),
        Some(every) => RateCurve::spread(rate, class.models.len() as u32, from, every),
    };
    class.models.iter().enumerate().map(move |(model, &(_, share))| Stream {
        model: model as u32,
        process,
        curve: curve.clone(),
        // Of a rate that is spread already.
        share: if join_every.is_some() { 1.0 } else { share },
        starts_at: from + join_every.unwrap_or_default() * model as u64,
    })
}

// ---- open loop -----------------------------------------------------------------------------------------------------

/// Hands out requests when they are due.
struct Timetable {
    class: ClassTasks,
    pacer: Pacer,
    arrivals: OpenLoop,
    /// Chooses among a model's requests.
    random: Random,
    end: Duration,
    connections: usize,
}

/// Requests that are due, and the senders that wait for them.
#[derive(Default)]
struct DueQueue {
    due: RefCell<VecDeque<DueRequest>>,
    news: Notify,
    idle: Cell<usize>,
    connecting: Cell<usize>,
    senders: Cell<usize>,
}

#[derive(Clone, Copy)]
struct DueRequest {
    intended: Duration,
    target: usize,
}

impl Timetable {
    async fn follow(mut self) {
        let ClassTasks { index, run, .. } = &self.class;
        let waiting = Rc::new(DueQueue::default());
        let mut burst = 0;
        for arrival in self.arrivals {
            if arrival.offset >= self.end {
                break;
            }
            if arrival.offset > run.now() {
                burst = 0;
                if self.pacer.until(run.started_at + arrival.offset.into()).await.is_err() {
                    break;
                }
            } else if burst == BURST {
                burst = 0;
                tokio::task::yield_now().await;
            } else {
                burst += 1;
            }
            if run.interrupted.get() {
                break;
            }
            run.begin(*index, arrival.offset);
            if waiting.due.borrow().len() >= MAX_WAITING {
                run.end(*index, arrival.offset, run.now(), &RequestOutcome::Error("not_sent".into()));
                continue;
            }
            let target = self.class.any_of(arrival.model as usize, &mut self.random);
            waiting.due.borrow_mut().push_back(DueRequest { intended: arrival.offset, target });
            let coming = waiting.idle.get() + waiting.connecting.get();
            if waiting.due.borrow().len() > coming && waiting.senders.get() < self.connections {
                waiting.senders.set(waiting.senders.get() + 1);
                spawn_local(send_what_is_due(self.class.clone(), waiting.clone()));
            }
            // The sender that waited last has the warmest connection.
            waiting.news.notify_last();
        }
    }
}

/// One sender: takes what is due, sends it, waits for the answer.
async fn send_what_is_due(class: ClassTasks, waiting: Rc<DueQueue>) {
    let mut transport = class.transports.make();
    waiting.connecting.set(waiting.connecting.get() + 1);
    transport.warm_up().await;
    waiting.connecting.set(waiting.connecting.get() - 1);
    loop {
        let next = waiting.due.borrow_mut().pop_front();
        let Some(due) = next else {
            waiting.idle.set(waiting.idle.get() + 1);
            waiting.news.notified().await;
            waiting.idle.set(waiting.idle.get() - 1);
            continue;
        };
        let sent = class.run.now();
        let outcome = transport.ask(&class.targets[due.target]).await;
        class.run.end(class.index, due.intended, sent, &outcome);
    }
}

// ---- closed loop ---------------------------------------------------------------------------------------------------

struct Client {
    class: ClassTasks,
    pacer: Pacer,
    /// The models' shares, summed up.
    cumulative: Rc<[f64]>,
    random: Random,
    backoff: Duration,
}

impl Client {
    async fn ask_again_and_again(mut self) {
        let ClassTasks { index, run, targets, transports, .. } = self.class.clone();
        let mut transport = transports.make();
        while !run.stopping.get() {
            let model = self.pick();
            let target = self.class.any_of(model, &mut self.random);
            let intended = run.now();
            run.begin(index, intended);
            let outcome = transport.ask(&targets[target]).await;
            run.end(index, intended, intended, &outcome);
            let pause = match outcome {
                RequestOutcome::Success => continue,
                RequestOutcome::Refused(_) => self.backoff,
                RequestOutcome::Error(_) => RECONNECT,
            };
            if self.pacer.until(Instant::now() + pause.into()).await.is_err() {
                return;
            }
        }
    }

    fn pick(&mut self) -> usize {
        let point = self.random.unit();
        self.cumulative.partition_point(|&below| below <= point).min(self.cumulative.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_join_one_after_another_at_an_equal_rate() {
        let models = (0..4).map(|number| (format!("m{number}"), 0.25)).collect();
        let (from, every) = (Duration::from_secs(1), Duration::from_secs(10));
        let pattern = Loop::Open { rate: 100.0, process: Process::Uniform, from, join_every: Some(every) };
        let (deadline, application, lengths) = (None, None, None);
        let class =
            ClassPlan { name: "major".into(), models, pattern, deadline, batch: 1, priority: 0, application, lengths };
        let arrivals = OpenLoop::new(streams(&class, 100.0, Process::Uniform, from, Some(every)), 1);
        let all: Vec<_> = arrivals.take_while(|arrival| arrival.offset < Duration::from_secs(41)).collect();
        for second in 1..41u64 {
            let of = |model: u32| {
                let now = |offset: Duration| {
                    offset >= Duration::from_secs(second) && offset < Duration::from_secs(second + 1)
                };
                all.iter().filter(|arrival| arrival.model == model && now(arrival.offset)).count() as f64
            };
            let there = (second - 1) / 10 + 1;
            for model in 0..4u32 {
                let wanted = if u64::from(model) < there { 100.0 / there as f64 } else { 0.0 };
                assert!((of(model) - wanted).abs() <= 1.0, "model {model} in second {second}: {}", of(model));
            }
        }
        assert!(all.iter().all(|arrival| arrival.offset >= from));
    }
}
