//! Rehearsals: the same requests on imagined devices, once for each temper.
//!
//! Whether a batch should start at once or wait, and whom to give up when not all can be met, depends on models, devices and
//! arrivals in ways that no rule of ours gets right everywhere. But a scheduler that is a pure machine can be run beside
//! itself. Each rehearsal is a scheduler with one temper that is told of every model, device and request; its orders are
//! carried out in imagination, exactly as expected. All see the same arrivals, so that their losses can be compared without
//! waiting for chance to even out. The real scheduler takes on the temper that loses the fewest.
//!
//! What happens only in reality (cancelled requests, failures, batch work, measurements on borrowed devices) isn't rehearsed.
//!
//! A request costs as much in each rehearsal as it does in reality. So no more than 10,000 a second are rehearsed: at higher
//! rates half a second or so of every five.

use crate::Scheduler;
use crate::config::Config;
use crate::event::{ActionStatus, Command, Event, Execution, Measured, Outcome, Report, Request};
use crate::ledger::Ledger;
use crate::temper::Temper;
use base::{ActionId, DeviceId, Duration, RequestId, Timestamp, Transfers};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Losses lose one part in so many at each step: what is half a minute old counts for a third.
const STEP: Duration = Duration::from_millis(250);
const MEMORY: f64 = 1.0 - 1.0 / 120.0;
/// A temper is left for one that lost fewer by this, and by this part of the root of its losses, which is their noise.
const MARGIN: f64 = 1.0;
const NOISE: f64 = 0.5;
/// The same where times depend on the input: what is imagined is then drawn by chance.
const UNEVEN_NOISE: f64 = 1.5;
/// With fewer losses than this all tempers are as good, and the usual one answers soonest.
const NOTHING: f64 = 0.5;
/// Out of so much time, so many requests are rehearsed.
const SPAN: Duration = Duration::from_secs(5);
const REHEARSED: u32 = 50_000;
/// After a pause all imagined devices are idle: the losses of the first requests say little, and don't count.
const WARM_UP: u32 = 5_000;

#[derive(Debug)]
pub(crate) struct Rehearsals {
    /// One for each of `Temper::CHOICE`.
    runs: Vec<Rehearsal>,
    current: usize,
    /// How many steps of forgetting were made.
    steps: u64,
    /// When the span began (or will), how many requests were rehearsed in it, and how many of them were warming up.
    since: Timestamp,
    rehearsed: u32,
    warm_up: u32,
    /// Whether some model's times depend on the input.
    uneven: bool,
    /// The request that came last, and when: it isn't rehearsed before reality has decided about it.
    waiting: Option<(Timestamp, Request)>,
}

impl Rehearsals {
    pub fn new(config: &Config) -> Self {
        let runs = Temper::CHOICE.iter().map(|&temper| Rehearsal::new(config, temper)).collect();
        Self {
            runs,
            current: 0,
            steps: 0,
            since: Timestamp::ZERO,
            rehearsed: 0,
            warm_up: 0,
            uneven: false,
            waiting: None,
        }
    }

    /// Takes note of a fact. A request is rehearsed by the next [`Rehearsals::catch_up`].
    pub fn follow(&mut self, now: Timestamp, event: &Event, real: &Ledger) {
        match event {
            Event::Submitted(request) if request.deadline_at != Timestamp::NEVER && now >= self.since => {
                self.waiting = Some((now, *request));
            }
            Event::ModelAdded(_)
            | Event::ModelRemoved(_)
            | Event::DeviceAdded(_)
            | Event::DeviceLost(_)
            | Event::DeviceChanged { .. } => {
                for run in &mut self.runs {
                    run.advance(now, real);
                    run.step(now, event.clone(), real);
                }
            }
            _ => {}
        }
    }

    /// Rehearses the request that waits for it. Tells which temper to have from now on, if it is another one.
    pub fn catch_up(&mut self, real: &Ledger) -> Option<Temper> {
        let (now, request) = self.waiting.take()?;
        for run in &mut self.runs {
            run.submit(now, request, real);
        }
        self.rehearsed += 1;
        self.forget(now);
        self.next_span(now);
        self.choose()
    }

    /// Every rehearsal learns the same of how requests differ.
    pub fn measured(&mut self, measured: &Measured, dynamic: bool) {
        self.uneven |= dynamic;
        for run in &mut self.runs {
            run.scheduler.measured(measured);
        }
    }

    /// Ends the span when it is over or enough were rehearsed in it.
    fn next_span(&mut self, now: Timestamp) {
        let ends_at = self.since + SPAN;
        if now < ends_at && self.rehearsed < REHEARSED {
            return;
        }
        self.warm_up = if now < ends_at { WARM_UP } else { 0 };
        self.since = ends_at.max(now);
        self.rehearsed = 0;
    }

    /// Lets what was lost long ago count for less, and what is lost while warming up for nothing.
    fn forget(&mut self, now: Timestamp) {
        let steps = now.as_nanos() / STEP.as_nanos();
        let kept = (self.steps..steps.min(self.steps + 10_000)).fold(1.0, |kept, _| kept * MEMORY);
        self.steps = steps;
        let counts = self.rehearsed > self.warm_up;
        for run in &mut self.runs {
            let lost = std::mem::take(&mut run.lost_now);
            run.lost = run.lost * kept + if counts { lost } else { 0.0 };
        }
    }

    fn choose(&mut self) -> Option<Temper> {
        let lost = |index: usize| self.runs[index].lost;
        // The first of equal ones: the usual one.
        let best = (0..self.runs.len()).min_by(|&a, &b| lost(a).total_cmp(&lost(b)))?;
        let noise = if self.uneven { UNEVEN_NOISE } else { NOISE };
        let better = lost(self.current) > lost(best) + MARGIN + noise * lost(best).sqrt();
        let next = if lost(0) < NOTHING {
            0
        } else if better {
            best
        } else {
            self.current
        };
        (std::mem::replace(&mut self.current, next) != next).then_some(Temper::CHOICE[next])
    }
}

/// Devices with transfers take one part in so many longer in imagination: orders that come a little late, transfers that are hidden in part. At the limit a
/// rosy picture is a bad adviser: what loses nothing in it, because everything fits, loses a third in reality, where it doesn't.
const UNSEEN: u64 = 64;

/// Something that an imagined device does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct UnderWay {
    ends_at: Timestamp,
    action: ActionId,
    /// `None` for what comes too late.
    started_at: Option<Timestamp>,
    /// What was done before its start, and what could have been.
    transfers: (Duration, Duration),
}

/// Until when an imagined device executes and loads.
#[derive(Clone, Copy, Debug)]
struct Busy {
    exec: Timestamp,
    load: Timestamp,
}

#[derive(Debug)]
struct Rehearsal {
    scheduler: Box<Scheduler>,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    devices: Vec<Busy>,
    /// Requests have slots of their own: they live longer or shorter than in reality.
    free_slots: Vec<u32>,
    slots: u32,
    /// How many requests were lost lately, and how many since the last look.
    lost: f64,
    lost_now: f64,
    commands: Vec<Command>,
}

impl Rehearsal {
    fn new(config: &Config, temper: Temper) -> Self {
        Self {
            scheduler: Box::new(Scheduler::with_temper(config.clone(), temper)),
            under_way: BinaryHeap::new(),
            devices: Vec::new(),
            free_slots: Vec::new(),
            slots: 0,
            lost: 0.0,
            lost_now: 0.0,
            commands: Vec::new(),
        }
    }

    fn submit(&mut self, now: Timestamp, request: Request, real: &Ledger) {
        self.advance(now, real);
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots += 1;
            self.slots - 1
        });
        let id = RequestId { slot, generation: 0 };
        self.step(now, Event::Submitted(Request { id, ..request }), real);
    }

    /// Lets everything happen that happens until now.
    fn advance(&mut self, now: Timestamp, real: &Ledger) {
        loop {
            let ended = self.under_way.peek().map(|Reverse(first)| *first);
            let wakeup = self.scheduler.next_wakeup().map(|(at, _)| at);
            match ended {
                Some(UnderWay { ends_at, action, started_at, transfers: (before, beside) })
                    if ends_at <= now && wakeup.is_none_or(|at| ends_at <= at) =>
                {
                    self.under_way.pop();
                    let transfers = Transfers { before, beside };
                    let done = |started_at| ActionStatus::Done { started_at, ended_at: ends_at, transfers };
                    let status = started_at.map_or(ActionStatus::TooLate, done);
                    self.step(ends_at, Event::Reported(Report { action, status }), real);
                }
                _ => match wakeup.filter(|&at| at <= now) {
                    Some(at) => self.step(at, Event::WokeUp, real),
                    None => return,
                },
            }
        }
    }

    fn step(&mut self, now: Timestamp, event: Event, real: &Ledger) {
        let mut commands = std::mem::take(&mut self.commands);
        self.scheduler.step(now, event, &mut commands);
        for command in commands.drain(..) {
            match command {
                Command::Execute(order) => {
                    let (takes, beside) = self.takes(&order, real);
                    let busy = &mut self.busy(order.device).exec;
                    let start_at = order.window.earliest.max(now).max(*busy);
                    let in_time = start_at <= order.window.latest;
                    // Inputs come while the batch waits for others.
                    let transfers = (beside.min(start_at.since(now)), beside);
                    let ends_at = if in_time { start_at + (takes - transfers.0) } else { start_at };
                    *busy = ends_at;
                    let started_at = in_time.then_some(start_at);
                    let action = order.action;
                    self.under_way.push(Reverse(UnderWay { ends_at, action, started_at, transfers }));
                }
                Command::Load(order) => {
                    let busy = &mut self.busy(order.device).load;
                    let start_at = order.window.earliest.max(now).max(*busy);
                    let ends_at = start_at + order.expected;
                    *busy = ends_at;
                    let (action, started_at, transfers) = (order.action, Some(start_at), Default::default());
                    self.under_way.push(Reverse(UnderWay { ends_at, action, started_at, transfers }));
                }
                Command::Finish { request, outcome } => {
                    self.free_slots.push(request.slot);
                    self.lost_now += f64::from(u8::from(outcome != Outcome::Done));
                }
                // Windowed policies break nothing off.
                Command::Unload(_) | Command::Preempt { .. } => {}
            }
        }
        self.commands = commands;
    }

    /// What a batch takes in imagination: what is usual, or what its longest request may; and what of it may run beside others.
    fn takes(&self, order: &Execution, real: &Ledger) -> (Duration, Duration) {
        let model = real.model(order.model);
        let Some(spread) = model.spread.as_ref().filter(|spread| spread.is_dynamic()) else {
            // A device that is gone in reality may still be there in imagination.
            let kind = real.devices.get(order.device.index()).and_then(Option::as_ref).map_or(0, |device| device.kind);
            let class = model.latency_on(kind).class_for(order.batch);
            let beside = class.beside();
            let unseen = if beside > Duration::ZERO { class.whole() / UNSEEN } else { Duration::ZERO };
            return (class.whole() + unseen, beside);
        };
        let work = |id: &RequestId| {
            let entry = self.scheduler.requests.get(*id)?;
            // The same in every rehearsal: the same request, at the same instant.
            let chance =
                (entry.arrived_at.as_nanos().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1_u64 << 53) as f64;
            Some(spread.kind(self.scheduler.kind_of(&entry.request)).work.quantile(chance))
        };
        let longest = order.requests.iter().filter_map(work).fold(1.0, f64::max);
        let class = model.latency.classes().partition_point(|class| class.batch < order.batch);
        (spread.time(class, longest), Duration::ZERO)
    }

    fn busy(&mut self, device: DeviceId) -> &mut Busy {
        if self.devices.len() <= device.index() {
            self.devices.resize(device.index() + 1, Busy { exec: Timestamp::ZERO, load: Timestamp::ZERO });
        }
        &mut self.devices[device.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PolicyKind;
    use crate::event::{DeviceSpec, ModelSpec};
    use crate::temper::Start;
    use base::{ApplicationId, LatencyProfile, ModelId};

    /// A scheduler with one device and one model that takes `alpha` for each row and `beta` for each batch.
    fn scheduler(alpha: u64, beta: u64) -> Scheduler {
        let config = Config {
            policy: PolicyKind::Punctual,
            schedule_ahead: Duration::ZERO,
            predict_admission: false,
            ..Config::default()
        };
        let mut scheduler = Scheduler::new(config);
        let sizes: Vec<u32> = (1..=32).collect();
        let profile = LatencyProfile::linear(
            Duration::from_micros(alpha),
            Duration::from_micros(beta),
            &sizes,
            Duration::from_micros(1),
        );
        let spec = ModelSpec {
            model: ModelId(0),
            pages: 1,
            profile: profile.unwrap(),
            elsewhere: Vec::new(),
            objective: None,
            fixed: Duration::ZERO,
        };
        let mut out = Vec::new();
        scheduler.step(
            Timestamp::ZERO,
            Event::DeviceAdded(DeviceSpec { device: DeviceId(0), pages: 1, kind: 0 }),
            &mut out,
        );
        scheduler.step(Timestamp::ZERO, Event::ModelAdded(spec), &mut out);
        scheduler
    }

    /// A request every `gap` with this long to live, all in microseconds. What the real devices do doesn't matter here.
    fn rehearse(scheduler: &mut Scheduler, count: u32, gap: u64, objective: u64) {
        rehearse_gaps(scheduler, std::iter::repeat_n(gap, count as usize), objective);
    }

    fn rehearse_gaps(scheduler: &mut Scheduler, gaps: impl Iterator<Item = u64>, objective: u64) {
        let mut now = scheduler.now;
        for (slot, gap) in (0..).zip(gaps) {
            now += Duration::from_micros(gap);
            let id = RequestId { slot, generation: 0 };
            let deadline_at = now + Duration::from_micros(objective);
            let request = Request {
                id,
                model: ModelId(0),
                deadline_at,
                priority: 0,
                rows: 1,
                application: ApplicationId::DEFAULT,
                size: None,
            };
            let Scheduler { rehearsals, ledger, .. } = scheduler;
            let rehearsals = rehearsals.as_mut().unwrap();
            rehearsals.follow(now, &Event::Submitted(request), ledger);
            rehearsals.catch_up(ledger);
            scheduler.now = now;
        }
    }

    fn lost(scheduler: &Scheduler) -> Vec<f64> {
        scheduler.rehearsals.as_ref().unwrap().runs.iter().map(|run| run.lost.round()).collect()
    }

    fn temper(scheduler: &Scheduler) -> Temper {
        Temper::CHOICE[scheduler.rehearsals.as_ref().unwrap().current]
    }

    #[test]
    fn the_temper_that_loses_the_fewest_is_taken_on() {
        // One device and weak batching: whoever lets it stand still until the last moment, loses.
        let mut scheduler = scheduler(4_700, 2_000);
        // From 0.2 to 25.6 ms, in an order without order.
        let gaps = (0..2_000_u64).map(|index| 200 << (((index * index * 2_654_435_761) >> 20) & 7));
        rehearse_gaps(&mut scheduler, gaps, 34_000);
        let lost = lost(&scheduler);
        let late = Temper::CHOICE.iter().position(|temper| temper.start == Start::Late).unwrap();
        assert!(lost[late] > 1.3 * lost[0].max(1.0), "{lost:?}");
        assert_ne!(temper(&scheduler).start, Start::Late);
        // The one that is in use is within the margin of the best.
        let current = scheduler.rehearsals.as_ref().unwrap().current;
        let best = lost.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(lost[current] <= best + MARGIN + NOISE * best.sqrt() + 1.0, "{lost:?}");
    }

    #[test]
    fn when_nothing_is_lost_any_more_it_is_as_usual() {
        let mut scheduler = scheduler(1_000, 10_000);
        scheduler.rehearsals.as_mut().unwrap().current = 4;
        scheduler.rehearsals.as_mut().unwrap().runs[0].lost = 100.0;
        // Half a minute is remembered for some minutes.
        rehearse(&mut scheduler, 10, 1_000_000, 50_000);
        assert_eq!(temper(&scheduler).start, Start::Late);
        rehearse(&mut scheduler, 300, 1_000_000, 50_000);
        assert_eq!(temper(&scheduler), Temper::USUAL);
        assert_eq!(lost(&scheduler), [0.0; 5]);
    }

    #[test]
    fn a_dense_stream_is_rehearsed_for_a_part_of_the_time() {
        let mut scheduler = scheduler(1, 10);
        rehearse(&mut scheduler, REHEARSED - 1, 20, 1_000);
        let rehearsals = scheduler.rehearsals.as_ref().unwrap();
        assert_eq!((rehearsals.rehearsed, rehearsals.since), (REHEARSED - 1, Timestamp::ZERO));
        // A second has passed; the next span begins after five.
        rehearse(&mut scheduler, 10_000, 20, 1_000);
        let rehearsals = scheduler.rehearsals.as_ref().unwrap();
        assert_eq!((rehearsals.rehearsed, rehearsals.since), (0, Timestamp::ZERO + SPAN));
        assert_eq!(rehearsals.warm_up, WARM_UP);
    }
}
