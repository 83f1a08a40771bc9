//! Rehearsals: the same requests on imagined devices, once for each rule.
//!
//! Whether a batch should start at once or wait, and whom to give up when not all can be met, depends on models,
//! devices and arrivals in ways that no rule of ours gets right everywhere. But a scheduler that is a pure machine can
//! be run beside itself.
//!
//! ```text
//!  requests are lost ──> a span begins: the machine is copied as it is, busy devices and queues and all,
//!                        and what comes is written down
//!                    ──> the span is full: the driver takes it and rehearses it wherever it likes
//!                    ──> Event::Adopted: how many each rule would have lost; the best is taken on
//! ```
//!
//! All rules see the same arrivals from the same beginning, so that their losses can be compared without waiting for
//! chance to even out. A request pays nothing for it but being written down, and only while requests are lost. What
//! happens only in reality (stalls, failures, cancelled requests) isn't rehearsed; so reality has the last word: a rule
//! under which much more is lost than was imagined is left at once, and not taken on again soon.

use crate::batch_rule::BatchRule;
use crate::event::{ActionStatus, Command, Event, Execution, Load, Outcome, Report, Request};
use crate::policy::Fact;
use crate::table::grown;
use crate::{Rehearsed, Scheduler};
use base::{ActionId, DeviceId, Duration, ModelId, OrderStart, RequestId, Timestamp, Transfers};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// A span is full with so many requests and after so many objectives, but in no case has it more of either than the
/// second.
const REQUESTS: (usize, usize) = (4_500, 40_000);
const OBJECTIVES: u64 = 8;
const LONGEST: Duration = Duration::from_secs(5);
/// So many requests may be rehearsed before others have come: of those that come, one in so many adds one more, and so
/// many a second in any case.
const CREDIT: f64 = 80_000.0;
const SHARE: f64 = 1.0 / 16.0;
const EACH_SECOND: f64 = 1_000.0;
/// The first so many objectives of a span don't count, up to a third of it, nor those of a trial: at first a rule lives
/// on what the one before left it. Nor do requests that came less than an objective before its end: nobody comes after
/// them, which flatters whoever puts off.
const WARM_UP: u64 = 5;
/// A copy of the machine takes time in proportion to where models are; with more places than this nothing is rehearsed.
const MOST_PLACES: usize = 100_000;
/// Losses in rehearsals count for a third after so many more requests, or so much time.
const MEMORY: f64 = 30_000.0;
const MEMORY_TIME: f64 = 900.0;
/// A rule is left for one that lost fewer by this, and by this part of the root of its losses, which is their noise.
const MARGIN: f64 = 1.0;
const NOISE: f64 = 0.5;
/// The usual rule is the safest. It is left only where it really loses this part of all requests, and for one that
/// would lose fewer by the second.
const WORTHWHILE: f64 = 0.003;
const GAIN: f64 = 0.001;
/// The noise where times depend on the input: what is imagined is then drawn by chance.
const UNEVEN_NOISE: f64 = 1.5;
/// With fewer real losses than this lately there is nothing to be gained, and the usual rule answers soonest.
const NOTHING: f64 = 0.5;
/// Real losses lately at which a span begins.
const SOMETHING: f64 = 2.0;
/// "Lately": real losses count for a third after so many seconds, but the last so many requests are remembered as long
/// as rehearsals are: where few come, thirty seconds say nothing of one loss in a hundred.
const LATELY: Memory = Memory { seconds: 30.0, requests: 1_000.0 };
/// The moment by which a rule proves itself: with fewer requests it tells nothing, so that it lasts longer where few
/// come.
const MOMENT: Memory = Memory { seconds: 0.5, requests: 300.0 };
/// A rule has failed when this part of all requests is lost, so many times what was imagined, and so many times what
/// the usual one lost in its worst moment lately: in a burst every rule loses more than on average.
const FAILED: f64 = 0.1;
const TIMES_IMAGINED: f64 = 3.0;
const TIMES_WORST: f64 = 1.5;
/// For so long it isn't taken on again.
const BANNED: Duration = Duration::from_secs(60);
/// Requests are let in by turns while no more is lost than so many times what is lost with everybody let in; once it
/// was more, from the second on.
const TURNS_LOSE: (f64, f64) = (1.15, 1.1);
/// And while what they answer is no less than this part of what is then answered; once it was less, than the second.
/// Where half is lost, a tenth more of that is a tenth fewer answers.
const TURNS_ANSWER: (f64, f64) = (0.91, 0.93);

/// What is known of a rule.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// How many requests it lost in rehearsals, lately.
    lost: f64,
    banned_until: Timestamp,
}

/// Losses count for a third after so many seconds, unless so few requests have come since.
#[derive(Clone, Copy, Debug)]
struct Memory {
    seconds: f64,
    requests: f64,
}

/// Real losses, with what is older counting for less.
#[derive(Clone, Copy, Debug, Default)]
struct Losses {
    at: Timestamp,
    lost: f64,
    all: f64,
}

impl Losses {
    fn note(&mut self, now: Timestamp, memory: Memory, lost: bool) {
        self.forget(now, memory);
        self.all += 1.0;
        self.lost += f64::from(u8::from(lost));
    }

    fn forget(&mut self, now: Timestamp, memory: Memory) {
        // At most a thousand steps of a thousandth of the memory, so that nothing is forgotten for each request.
        let step = memory.seconds / 1e3;
        let passed = now.since(self.at).as_secs_f64();
        if passed >= step {
            let least = memory.requests / self.all.max(memory.requests) * libm::exp(-passed / MEMORY_TIME);
            let kept = libm::exp(-passed / memory.seconds).max(least);
            (self.at, self.lost, self.all) = (now, self.lost * kept, self.all * kept);
        }
    }
}

/// The largest part of the requests that was lost in a moment, with what is older counting for less.
#[derive(Clone, Copy, Debug, Default)]
struct Worst {
    at: Timestamp,
    part: f64,
}

impl Worst {
    /// Takes what is lost now in, if it counts, and tells the largest.
    fn follow(&mut self, now: Timestamp, part: Option<f64>) -> f64 {
        let passed = now.since(self.at).as_secs_f64();
        if passed >= LATELY.seconds / 1e3 {
            (self.at, self.part) = (now, self.part * libm::exp(-passed / LATELY.seconds));
        }
        self.part = self.part.max(part.unwrap_or(0.0));
        self.part
    }
}

#[derive(Debug, Default)]
enum Stage {
    /// Nothing is rehearsed.
    #[default]
    Idle,
    /// A span is being written down.
    Writing(Box<Span>),
    /// A span is full, and until it is taken, here.
    Full(Option<Box<Span>>),
}

/// Which rule is in force, and why.
#[derive(Debug, Default)]
pub(crate) struct Rehearsals {
    stage: Stage,
    records: [Record; BatchRule::CHOICE.len()],
    /// How many requests were rehearsed, lately.
    rehearsed: f64,
    admission: Admission,
    current: usize,
    /// The part of the requests that the current rule was imagined to lose.
    imagined: f64,
    credit: f64,
    credit_at: Timestamp,
    lately: Losses,
    /// Since the current rule was taken on and what the one before left is over.
    trial: Losses,
    trial_from: Timestamp,
    /// What the usual rule lost in its worst moment.
    worst: Worst,
    /// Whether devices were short, and whether everybody was let in, when the span began.
    short: bool,
    open: bool,
    /// The longest that a request of the last span had.
    objective: Duration,
    /// Whether some model's times depend on the input.
    pub uneven: bool,
}

impl Rehearsals {
    pub fn new() -> Self {
        Self { credit: CREDIT, ..Self::default() }
    }

    /// The position of the rule in force among those that can be.
    pub fn current(&self) -> usize {
        self.current
    }

    /// A request with a deadline had its end. Tells which rule to have from now on, if it is another one.
    pub fn settled(&mut self, now: Timestamp, lost: bool) -> Option<BatchRule> {
        self.lately.note(now, LATELY, lost);
        if now >= self.trial_from {
            self.trial.note(now, MOMENT, lost);
        }
        let Losses { lost, all, .. } = self.trial;
        let mut bearable = FAILED.max(TIMES_IMAGINED * self.imagined);
        if all >= MOMENT.requests {
            bearable = bearable.max(TIMES_WORST * self.worst.follow(now, (self.current == 0).then_some(lost / all)));
        }
        if self.current != 0 && all >= MOMENT.requests && lost > all * bearable {
            self.records[self.current].banned_until = now + BANNED;
            return self.take_on(now, 0);
        }
        if self.current != 0 && self.lately.lost < NOTHING {
            return self.take_on(now, 0);
        }
        None
    }

    fn take_on(&mut self, now: Timestamp, next: usize) -> Option<BatchRule> {
        if next == self.current {
            return None;
        }
        self.current = next;
        self.trial_from = now + self.objective * WARM_UP;
        self.trial = Losses { at: self.trial_from, ..Losses::default() };
        Some(BatchRule::CHOICE[next])
    }

    /// Whether a span should begin with the request that comes now.
    pub fn wants(&mut self, now: Timestamp) -> bool {
        let rested = EACH_SECOND * now.since(self.credit_at).as_secs_f64();
        self.credit_at = now;
        self.credit = (self.credit + SHARE + rested).min(CREDIT);
        self.lately.forget(now, LATELY);
        matches!(self.stage, Stage::Idle) && self.lately.lost >= SOMETHING && self.credit >= REQUESTS.0 as f64
    }

    pub fn begin(&mut self, now: Timestamp, machine: Scheduler) {
        (self.short, self.open) = (machine.shares.is_short(), machine.shares.is_open());
        let span = Span { machine, began_at: now, arrivals: Vec::new(), objective: Duration::ZERO };
        self.stage = Stage::Writing(Box::new(span));
    }

    /// The number of a model that is gone is another's from now on: what comes for it isn't for the machine that was
    /// copied.
    pub fn break_off(&mut self) {
        if matches!(self.stage, Stage::Writing(_)) {
            self.stage = Stage::Idle;
        }
    }

    /// Writes a request down, if a span is open.
    pub fn came(&mut self, now: Timestamp, request: &Request) {
        let Stage::Writing(span) = &mut self.stage else { return };
        span.arrivals.push((now, *request));
        span.objective = span.objective.max(request.deadline_at.since(now));
        self.objective = span.objective;
        let (count, passed) = (span.arrivals.len(), now.since(span.began_at));
        let enough = count >= REQUESTS.0 && passed >= span.objective * OBJECTIVES;
        if enough || count >= REQUESTS.1 || passed >= LONGEST {
            self.credit -= count as f64;
            let Stage::Writing(span) = std::mem::replace(&mut self.stage, Stage::Idle) else { return };
            self.stage = Stage::Full(Some(span));
        }
    }

    /// The span that waits to be rehearsed. Whether it was taken makes no difference to what is decided.
    pub fn take(&mut self) -> Option<Box<Span>> {
        if let Stage::Full(span) = &mut self.stage { span.take() } else { None }
    }

    /// What became of a span. Tells which rule to have from now on, if it is another one.
    pub fn adopt(&mut self, now: Timestamp, rehearsed: &Rehearsed) -> Option<BatchRule> {
        if !matches!(self.stage, Stage::Full(_)) || rehearsed.lost.len() != self.records.len() + 1 {
            return None;
        }
        let Stage::Full(_) = std::mem::replace(&mut self.stage, Stage::Idle) else { return None };
        let all = f64::from(rehearsed.requests).max(1.0);
        let kept = libm::exp(-all / MEMORY - rehearsed.lasted.as_secs_f64() / MEMORY_TIME);
        for (record, &lost) in self.records.iter_mut().zip(&rehearsed.lost) {
            record.lost = record.lost * kept + f64::from(lost);
        }
        self.rehearsed = self.rehearsed * kept + all;
        let allowed = |index: &usize| *index == 0 || self.records[*index].banned_until <= now;
        let lost = |index: usize| self.records[index].lost;
        // The first of equal ones: the usual one.
        let best = (0..self.records.len()).filter(allowed).min_by(|&a, &b| lost(a).total_cmp(&lost(b)))?;
        let noise = if self.uneven { UNEVEN_NOISE } else { NOISE };
        let gained = lost(self.current) - lost(best);
        let worthwhile =
            self.current != 0 || (gained > GAIN * self.rehearsed && self.lately.lost > WORTHWHILE * self.lately.all);
        let better = worthwhile && gained > MARGIN + noise * lost(best).sqrt();
        let next = if better { best } else { self.current };
        self.imagined = f64::from(rehearsed.lost[next]) / all;
        self.take_on(now, next)
    }
}

impl Rehearsals {
    /// Whether everybody should be let in, or not, if that span tells.
    fn should_open(&mut self, rehearsed: &Rehearsed) -> Option<bool> {
        let open = self.open;
        let (with_turns, with_everybody) =
            if open { (self.records.len(), self.current) } else { (self.current, self.records.len()) };
        let answered = |index: usize| rehearsed.answered.get(index).unwrap_or(&Duration::ZERO).as_secs_f64();
        let kept = libm::exp(-f64::from(rehearsed.requests) / MEMORY);
        let Admission { asked, worth, turns, everybody } = self.admission;
        self.admission = Admission {
            asked: asked * kept + f64::from(rehearsed.requests),
            worth: worth * kept + rehearsed.worth.as_secs_f64(),
            turns: turns * kept + answered(with_turns),
            everybody: everybody * kept + answered(with_everybody),
        };
        let opens = self.admission.should_open(open);
        // Where devices weren't short yet turns made no difference, and say nothing for themselves.
        (opens || self.short).then_some(opens)
    }
}

/// What was asked for in rehearsals lately, and what of it was answered, in seconds of devices: what the rows take in
/// the largest batches that their objective allows. Counted one by one, few answers that take long would be let go for
/// many that take little; and at what rows cost in batches of the size that they really have, who is asked for seldom
/// would be worth more than who is asked for often, and shares would be kept that cost most of the answers.
#[derive(Clone, Copy, Debug, Default)]
struct Admission {
    /// How many requests.
    asked: f64,
    /// What all of them are worth.
    worth: f64,
    /// What those are worth that were answered with turns ...
    turns: f64,
    /// ... and with everybody let in.
    everybody: f64,
}

impl Admission {
    /// Whether turns lose so much more, or answer so much less, that everybody should be let in, or stay so.
    fn should_open(self, open: bool) -> bool {
        let Self { asked, worth, turns, everybody } = self;
        let each = (worth / asked.max(1.0)).max(f64::MIN_POSITIVE);
        let (turns_lose, everybody_loses) = (worth - turns, (worth - everybody).max(0.0));
        let noise = (MARGIN + NOISE * (everybody_loses / each).sqrt()) * each;
        let (most, least) = if open { (TURNS_LOSE.1, TURNS_ANSWER.1) } else { (TURNS_LOSE.0, TURNS_ANSWER.0) };
        turns_lose > most * everybody_loses + noise || turns + noise < least * everybody
    }
}

/// What came in a while, and the machine as it was before: all that a rehearsal needs.
#[derive(Debug)]
pub struct Span {
    machine: Scheduler,
    began_at: Timestamp,
    arrivals: Vec<(Timestamp, Request)>,
    objective: Duration,
}

impl Span {
    /// Runs the requests once with each rule, and once with the one in force and everybody let in, or not if everybody
    /// is. A pure function that may take a while: the scheduler's driver calls it where nobody waits for it, and tells
    /// the scheduler the result as [`Event::Adopted`].
    pub fn rehearse(&self) -> Rehearsed {
        let rule = |&rule| Rehearsal::new(self, |machine| machine.tell(Fact::Adopted(rule)));
        let rules = BatchRule::CHOICE.iter().map(rule);
        let otherwise = Rehearsal::new(self, |machine| machine.shares.set_open(!machine.shares.is_open()));
        let ends: Vec<Rehearsal> = rules.chain([otherwise]).map(|rehearsal| rehearsal.run(&self.arrivals)).collect();
        let counted = self.counted();
        let came = || self.arrivals.iter().filter(|(at, _)| counted.contains(at)).map(|(_, request)| request);
        let lost = ends.iter().map(|end| end.lost).collect();
        // With the same costs for all: they are to be compared.
        let costs = ends[0].scheduler.costs();
        let cost = |request: &Request| costs.get(request.model.index()).copied().unwrap_or(0.0);
        let worth = came().map(|request| f64::from(request.rows) * cost(request)).sum();
        let (requests, worth) = (came().count() as u32, Duration::from_secs_f64(worth));
        let answered = ends.iter().map(|end| end.worth(&costs)).collect();
        Rehearsed { requests, lasted: self.lasted(), lost, worth, answered }
    }

    fn lasted(&self) -> Duration {
        self.arrivals.last().map_or(self.began_at, |(at, _)| *at).since(self.began_at)
    }

    /// When those came that count.
    fn counted(&self) -> Range<Timestamp> {
        let (lasted, third) = (self.lasted(), self.lasted() / 3);
        let begin = self.began_at + (self.objective * WARM_UP).min(third);
        begin..self.began_at + lasted - self.objective.min(third)
    }

    /// How many requests are run, all rules together.
    pub fn work(&self) -> usize {
        self.arrivals.len() * BatchRule::CHOICE.len()
    }
}

impl Scheduler {
    /// Notes that a request with a deadline was answered in time, or not.
    pub(crate) fn note_settled(&mut self, in_time: bool) {
        if let Some(rule) = self.rehearsals.as_mut().and_then(|rehearsals| rehearsals.settled(self.now, !in_time)) {
            self.tell(Fact::Adopted(rule));
        }
    }

    /// Writes a request down for a rehearsal, if there is one.
    pub(crate) fn write_down(&mut self, request: &Request) {
        let urgent = request.deadline_at != Timestamp::NEVER;
        let Some(rehearsals) = self.rehearsals.as_mut().filter(|_| urgent) else { return };
        let begins = rehearsals.wants(self.now) && self.ledger.places() <= MOST_PLACES;
        let copy = begins.then(|| self.imagined());
        let Some(rehearsals) = &mut self.rehearsals else { return };
        copy.into_iter().for_each(|copy| rehearsals.begin(self.now, copy));
        rehearsals.came(self.now, request);
    }

    /// What should be rehearsed, when there is something: call it after steps, rehearse the span where nobody waits for
    /// it, and tell the result as [`Event::Adopted`].
    pub fn take_span(&mut self) -> Option<Box<Span>> {
        self.rehearsals.as_mut()?.take()
    }

    /// Which of its rules `punctual` has now, by number; 0 is the usual one.
    pub fn rule(&self) -> usize {
        self.rehearsals.as_ref().map_or(0, Rehearsals::current)
    }

    pub(crate) fn adopted(&mut self, rehearsed: &Rehearsed) {
        let Some(rehearsals) = &mut self.rehearsals else { return };
        if self.shares.is_short()
            && let Some(open) = rehearsals.should_open(rehearsed)
        {
            self.shares.set_open(open);
        }
        if let Some(rule) = rehearsals.adopt(self.now, rehearsed) {
            self.tell(Fact::Adopted(rule));
        }
    }

    /// A copy that knows what this one knows and learns nothing.
    fn imagined(&self) -> Self {
        Self {
            config: self.config.clone(),
            ledger: self.ledger.clone(),
            requests: self.requests.clone(),
            pipelines: self.pipelines.clone(),
            queues: self.queues.clone(),
            policy: self.policy.copy(),
            rehearsals: None,
            planner: self.planner.clone(),
            slack: self.slack.clone(),
            shares: self.shares.clone(),
            lead: self.lead,
            hungry: self.hungry.clone(),
            hungry_at: self.hungry_at.clone(),
            kept_until: self.kept_until,
            touched: Vec::new(),
            batch_work_at: self.batch_work_at,
            try_at: self.try_at,
            sequence: self.sequence,
            now: self.now,
            learns: false,
        }
    }
}

/// Devices with transfers take one part in so many longer in imagination: orders that come a little late, transfers
/// that are hidden in part. At the limit a rosy picture is a bad adviser: what loses nothing in it, because everything
/// fits, loses a third in reality, where it doesn't.
const UNSEEN: u64 = 64;

/// Something that an imagined device does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct UnderWay {
    /// When the end is heard of, and when it is.
    heard_at: Timestamp,
    ends_at: Timestamp,
    action: ActionId,
    device: DeviceId,
    /// `None` for what comes too late.
    started_at: Option<Timestamp>,
    transfers: Transfers,
}

/// Until when an imagined device executes and loads.
#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    exec: Timestamp,
    load: Timestamp,
}

#[derive(Debug)]
struct Rehearsal {
    scheduler: Scheduler,
    /// What a report takes to come back.
    way: Duration,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    devices: Vec<Busy>,
    /// Requests have slots of their own, behind those that were in hand at the beginning.
    free_slots: Vec<u32>,
    /// When the request in each slot came, for which model, and how many rows it has.
    came: Vec<(Timestamp, ModelId, u32)>,
    counted: Range<Timestamp>,
    lost: u32,
    /// Rows of each model that were answered.
    answered: Vec<u64>,
    commands: Vec<Command>,
}

impl Rehearsal {
    fn new(span: &Span, change: impl FnOnce(&mut Scheduler)) -> Self {
        let mut scheduler = span.machine.imagined();
        change(&mut scheduler);
        let mut rehearsal = Self {
            way: scheduler.config.delay.control,
            under_way: BinaryHeap::new(),
            devices: Vec::new(),
            free_slots: Vec::new(),
            came: vec![(Timestamp::ZERO, ModelId(0), 0); scheduler.requests.slots() as usize],
            counted: span.counted(),
            lost: 0,
            answered: Vec::new(),
            commands: Vec::new(),
            scheduler,
        };
        rehearsal.go_on();
        rehearsal
    }

    /// What was under way at the beginning ends when it was expected to.
    fn go_on(&mut self) {
        let now = self.scheduler.now;
        let ids: Vec<DeviceId> = self.scheduler.ledger.device_ids().collect();
        for device in ids {
            let there = self.scheduler.ledger.device(device);
            let busy = Busy { exec: there.exec.start_at(now), load: there.load.start_at(now) };
            let ends: Vec<_> = there.exec.ends(now).chain(there.load.ends(now)).collect();
            *self.busy(device) = busy;
            for (action, ends_at) in ends {
                let started_at = Some(now.min(ends_at));
                let heard_at = ends_at + self.way;
                let transfers = Transfers::default();
                self.under_way.push(Reverse(UnderWay { heard_at, ends_at, action, device, started_at, transfers }));
            }
        }
    }

    /// Runs these requests to their end.
    fn run(mut self, arrivals: &[(Timestamp, Request)]) -> Self {
        for &(now, request) in arrivals {
            self.advance(now);
            let came = (now, request.model, request.rows);
            let slot = self.free_slots.pop().unwrap_or_else(|| {
                self.came.push(came);
                self.came.len() as u32 - 1
            });
            self.came[slot as usize] = came;
            let id = RequestId { slot, generation: 0 };
            self.step(now, Event::Submitted(Request { id, ..request }));
        }
        let last = arrivals.iter().map(|(_, request)| request.deadline_at).max();
        self.advance(last.unwrap_or(self.scheduler.now) + Duration::from_secs(1));
        self
    }

    /// The device time that what was answered is worth, at so many seconds for a row of each model.
    fn worth(&self, costs: &[f64]) -> Duration {
        let rows = self.answered.iter().map(|&rows| rows as f64);
        Duration::from_secs_f64(rows.zip(costs).map(|(rows, cost)| rows * cost).sum())
    }

    /// Lets everything happen that happens until now.
    fn advance(&mut self, now: Timestamp) {
        loop {
            let first = self.under_way.peek().map(|Reverse(first)| *first);
            let wakeup = self.scheduler.next_wakeup().map(|(at, _)| at);
            match first {
                Some(over) if over.heard_at <= now && wakeup.is_none_or(|at| over.heard_at <= at) => {
                    self.under_way.pop();
                    self.ended(over);
                }
                _ => match wakeup.filter(|&at| at <= now) {
                    Some(at) => self.step(at.max(self.scheduler.now), Event::WokeUp),
                    None => return,
                },
            }
        }
    }

    fn ended(&mut self, over: UnderWay) {
        let UnderWay { heard_at, ends_at, action, device, started_at, transfers } = over;
        if action >= ActionId::DRIVERS {
            return self.step(heard_at, Event::Returned { device, action });
        }
        let done = |started_at| ActionStatus::Done { started_at, ended_at: ends_at, transfers };
        let status = started_at.map_or(ActionStatus::TooLate, done);
        self.step(heard_at, Event::Reported(Report { action, status }));
    }

    fn step(&mut self, now: Timestamp, event: Event) {
        let mut commands = std::mem::take(&mut self.commands);
        self.scheduler.step(now, event, &mut commands);
        for command in commands.drain(..) {
            match command {
                Command::Execute(order) => self.execute(now, &order),
                Command::Load(order) => self.load(now, &order),
                Command::Finish { request, outcome } => {
                    self.free_slots.push(request.slot);
                    let (came_at, model, rows) = self.came[request.slot as usize];
                    let done = outcome == Outcome::Done;
                    if self.counted.contains(&came_at) {
                        self.lost += u32::from(!done);
                        *grown(&mut self.answered, model.index()) += if done { u64::from(rows) } else { 0 };
                    }
                }
                // `punctual` breaks nothing off.
                Command::Unload(_) | Command::Preempt { .. } => {}
            }
        }
        self.commands = commands;
    }

    fn execute(&mut self, now: Timestamp, order: &Execution) {
        let (takes, overlap) = self.takes(order);
        let ready_at = now + self.scheduler.config.delay.of(order.requests.len() as u32);
        let busy = &mut self.busy(order.device).exec;
        let start = OrderStart::new(order.window, ready_at, *busy);
        let transfers = start.transfers(overlap);
        // What is too late takes a moment, so that it can't go on for ever at one instant.
        let takes = if start.in_time { takes - transfers.before } else { Duration::from_micros(1) };
        *busy = start.at + takes;
        let ends_at = *busy;
        self.push(order.action, order.device, (start.in_time.then_some(start.at), ends_at), transfers);
    }

    /// No load is too late in imagination.
    fn load(&mut self, now: Timestamp, order: &Load) {
        let ready_at = now + self.way;
        let busy = &mut self.busy(order.device).load;
        let start_at = OrderStart::new(order.window, ready_at, *busy).at;
        *busy = start_at + order.expected;
        let ends_at = *busy;
        self.push(order.action, order.device, (Some(start_at), ends_at), Transfers::default());
    }

    fn push(
        &mut self,
        action: ActionId,
        device: DeviceId,
        (started_at, ends_at): (Option<Timestamp>, Timestamp),
        transfers: Transfers,
    ) {
        let heard_at = ends_at + self.way;
        self.under_way.push(Reverse(UnderWay { heard_at, ends_at, action, device, started_at, transfers }));
    }

    /// What a batch takes in imagination: what is usual, or what its longest request may; and what of it may run beside
    /// others.
    fn takes(&self, order: &Execution) -> (Duration, Duration) {
        let model = self.scheduler.ledger.model(order.model);
        let Some(spread) = model.estimates.distribution() else {
            let class = self.scheduler.ledger.times(order.model, order.device).class_for(order.batch);
            let overlap = class.overlap();
            let unseen = if overlap > Duration::ZERO { class.mean() / UNSEEN } else { Duration::ZERO };
            return (class.mean() + unseen, overlap);
        };
        let work = |id: &RequestId| {
            let entry = self.scheduler.requests.get(*id)?;
            // The same in every rehearsal: the same request, at the same instant.
            let chance =
                (entry.arrived_at.as_nanos().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1_u64 << 53) as f64;
            Some(spread.kind(self.scheduler.kind_of(&entry.request)).work.quantile(chance))
        };
        let longest = order.requests.iter().filter_map(work).fold(1.0, f64::max);
        let class = model.estimates.planned().classes().partition_point(|class| class.batch < order.batch);
        (spread.time(class, longest), Duration::ZERO)
    }

    fn busy(&mut self, device: DeviceId) -> &mut Busy {
        grown(&mut self.devices, device.index())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, PolicyKind};
    use crate::event::{DeviceSpec, Fairness, ModelSpec};
    use base::{ApplicationId, LatencyProfile, ModelId};

    fn at(micros: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_micros(micros)
    }

    fn rehearsed(lost: [u32; BatchRule::CHOICE.len()]) -> Rehearsed {
        otherwise(lost, lost[0])
    }

    /// With so many lost if everybody is let in, or not.
    fn otherwise(lost: [u32; BatchRule::CHOICE.len()], otherwise: u32) -> Rehearsed {
        let lost: Vec<u32> = lost.into_iter().chain([otherwise]).collect();
        let answered = lost.iter().map(|&lost| Duration::from_millis(u64::from(1_000 - lost))).collect();
        let second = Duration::from_secs(1);
        Rehearsed { requests: 1_000, lasted: second, lost, worth: second, answered }
    }

    /// With a span that waits for its result, and many real losses: one in a hundred requests.
    fn waiting(now: Timestamp) -> Rehearsals {
        let mut rehearsals = Rehearsals::new();
        (1..=10_000_u32).for_each(|n| _ = rehearsals.settled(now, n.is_multiple_of(100)));
        rehearsals.stage = Stage::Full(None);
        rehearsals
    }

    #[test]
    fn the_rule_that_would_have_lost_the_fewest_is_taken_on() {
        let mut rehearsals = waiting(at(0));
        let rule = rehearsals.adopt(at(1), &rehearsed([100, 80, 100, 100, 20, 100, 100, 100]));
        assert_eq!(rule, Some(BatchRule::CHOICE[4]));
        assert_eq!(rehearsals.adopt(at(2), &rehearsed([0; 8])), None, "nothing was asked for");
    }

    #[test]
    fn a_little_less_is_no_reason_to_leave_the_usual_rule() {
        let mut rehearsals = waiting(at(0));
        assert_eq!(rehearsals.adopt(at(1), &rehearsed([12, 10, 10, 10, 10, 10, 10, 10])), None);
    }

    #[test]
    fn a_rule_that_fails_in_reality_is_left_at_once_and_not_taken_on_again_soon() {
        let mut rehearsals = waiting(at(0));
        let good = rehearsed([100, 80, 100, 100, 0, 100, 100, 100]);
        assert_eq!(rehearsals.adopt(at(1), &good), Some(BatchRule::CHOICE[4]));
        let left = (0..1_000).find_map(|n: u32| rehearsals.settled(at(1 + u64::from(n)), n.is_multiple_of(3)));
        assert_eq!(left, Some(BatchRule::USUAL));
        rehearsals.stage = Stage::Full(None);
        assert_eq!(rehearsals.adopt(at(2_000), &good), Some(BatchRule::CHOICE[1]), "the next best");
    }

    #[test]
    fn a_rule_is_not_judged_by_what_the_one_before_left_it() {
        let mut rehearsals = waiting(at(0));
        rehearsals.objective = Duration::from_millis(10);
        let good = rehearsed([100, 80, 100, 100, 0, 100, 100, 100]);
        assert_eq!(rehearsals.adopt(at(1), &good), Some(BatchRule::CHOICE[4]));
        let lost = |rehearsals: &mut Rehearsals, micros| rehearsals.settled(at(micros), true);
        assert_eq!((1..50_000).find_map(|micros| lost(&mut rehearsals, micros)), None, "five objectives");
        assert_eq!((50_001..51_000).find_map(|micros| lost(&mut rehearsals, micros)), Some(BatchRule::USUAL));
    }

    #[test]
    fn everybody_is_let_in_where_turns_lose_more() {
        let mut rehearsals = Rehearsals { short: true, ..Rehearsals::new() };
        let mut tell = |open, lost, otherwise_lost| {
            rehearsals.open = open;
            rehearsals.should_open(&otherwise([lost; 8], otherwise_lost))
        };
        assert_eq!(tell(false, 110, 100), Some(false), "a little more is the price of knowing at once");
        assert_eq!(tell(false, 200, 100), Some(true));
        assert_eq!(tell(true, 100, 130), Some(true));
        let mut tries = (0..40).map(|_| tell(true, 100, 100));
        assert!(tries.any(|open| open == Some(false)), "until they no longer do");
    }

    /// Where nine of ten are lost either way, losses are alike however few are answered.
    #[test]
    fn everybody_is_let_in_where_turns_answer_fewer_though_they_lose_hardly_more() {
        let mut rehearsals = Rehearsals { short: true, ..Rehearsals::new() };
        let mut tell = |lost, otherwise_lost| rehearsals.should_open(&otherwise([lost; 8], otherwise_lost));
        assert_eq!(tell(905, 900), Some(false), "95 answers where everybody let in has 100");
        assert_eq!(tell(950, 900), Some(true), "50 where it has 100");
    }

    /// Who keeps a share for a model that needs ten times as long for each answer has fewer answers, and was let go for
    /// that.
    #[test]
    fn turns_stay_where_they_answer_fewer_that_take_longer() {
        let mut rehearsals = Rehearsals { short: true, ..Rehearsals::new() };
        let told = Rehearsed { answered: vec![Duration::from_millis(100); 9], ..otherwise([950; 8], 900) };
        assert_eq!(rehearsals.should_open(&told), Some(false), "50 where it has 100, and all devices do as much");
        let told = Rehearsed { answered: vec![Duration::from_millis(500); 9], ..otherwise([650; 8], 450) };
        assert_eq!(rehearsals.should_open(&told), Some(false), "350 where it has 550");
    }

    #[test]
    fn a_span_before_devices_were_short_says_nothing_for_turns() {
        let mut rehearsals = Rehearsals { open: true, ..Rehearsals::new() };
        assert_eq!(rehearsals.should_open(&otherwise([100; 8], 100)), None);
        assert_eq!(rehearsals.should_open(&otherwise([100; 8], 500)), Some(true));
    }

    #[test]
    fn a_burst_that_the_usual_rule_would_lose_too_is_no_failure() {
        let burst = |rehearsals: &mut Rehearsals, from| {
            (from..from + 1_000).find_map(|n: u64| rehearsals.settled(at(n), n.is_multiple_of(4)))
        };
        let mut rehearsals = waiting(at(0));
        assert_eq!(burst(&mut rehearsals, 9_000_000), None, "under the usual rule");
        let good = rehearsed([100, 80, 100, 100, 20, 100, 100, 100]);
        assert_eq!(rehearsals.adopt(at(9_001_001), &good), Some(BatchRule::CHOICE[4]));
        assert_eq!(burst(&mut rehearsals, 9_001_001), None);
        let collapse = (9_002_001..9_004_000).find_map(|micros| rehearsals.settled(at(micros), true));
        assert_eq!(collapse, Some(BatchRule::USUAL));
    }

    #[test]
    fn where_few_requests_come_a_better_rule_is_kept_from_one_burst_to_the_next() {
        // Five requests a second; ten in a row of every thousand are lost, half as many with another rule.
        let mut rehearsals = Rehearsals::new();
        let mut now = at(0);
        let mut changes = Vec::new();
        for span in 0..400 {
            let burst = span % 40 == 39;
            for n in 0..25 {
                now += Duration::from_millis(200);
                changes.extend(rehearsals.settled(now, burst && n < 10));
            }
            rehearsals.stage = Stage::Full(None);
            let lost = if burst { [10, 10, 10, 10, 5, 10, 10, 10, 10] } else { [0; 9] };
            let (lasted, lost) = (Duration::from_secs(5), lost.to_vec());
            let told = Rehearsed { requests: 25, lasted, lost, worth: Duration::ZERO, answered: Vec::new() };
            changes.extend(rehearsals.adopt(now, &told));
        }
        assert_eq!(changes, [BatchRule::CHOICE[4]]);
    }

    #[test]
    fn a_burst_in_a_thin_stream_is_no_failure() {
        let mut rehearsals = waiting(at(0));
        let good = rehearsed([100, 80, 100, 100, 20, 100, 100, 100]);
        assert_eq!(rehearsals.adopt(at(1), &good), Some(BatchRule::CHOICE[4]));
        let mut now = at(2);
        let mut settle = |count: u32, apart, lost: u32| {
            (0..count).find_map(|n| {
                now += Duration::from_micros(apart);
                rehearsals.settled(now, n < lost)
            })
        };
        assert_eq!(settle(900, 8_000, 0), None);
        assert_eq!(settle(150, 2_000, 25), None, "one in six of those of a third of a second");
        assert_eq!(settle(1_000, 2_000, 500), Some(BatchRule::USUAL), "half of many is one");
    }

    /// One device, one model with l(b) = 1 + 10 ms that is asked for too much; the first span that is full.
    fn overloaded() -> (Scheduler, Box<Span>) {
        let config = Config { policy: PolicyKind::Punctual, predict_admission: false, ..Config::default() };
        let mut scheduler = Scheduler::new(config);
        let (alpha, beta) = (Duration::from_millis(1), Duration::from_millis(10));
        let profile = LatencyProfile::linear(alpha, beta, &[1, 2, 4, 8], Duration::ZERO).unwrap();
        let (model, pages, fixed) = (ModelId(0), 0, Duration::ZERO);
        let spec = ModelSpec {
            model,
            pages,
            profile,
            elsewhere: Vec::new(),
            objective: None,
            fixed,
            fairness: Fairness::default(),
        };
        let mut out = Vec::new();
        let device = DeviceSpec { device: DeviceId(0), pages: 1, kind: 0 };
        scheduler.step(at(0), Event::DeviceAdded(device), &mut out);
        scheduler.step(at(0), Event::ModelAdded(spec), &mut out);
        // Nothing is ever reported: what is asked for is lost.
        for slot in 0..100_000 {
            let now = at(500 * u64::from(slot));
            let id = RequestId { slot, generation: 0 };
            let (priority, rows, application, size) = (0, 1, ApplicationId::DEFAULT, None);
            let deadline_at = now + Duration::from_millis(30);
            let request = Request { id, model, deadline_at, priority, rows, application, size };
            scheduler.step(now, Event::Submitted(request), &mut out);
            if let Some(span) = scheduler.take_span() {
                return (scheduler, span);
            }
        }
        panic!("no span in 50 s");
    }

    #[test]
    fn a_span_is_rehearsed_alike_wherever_it_is() {
        let (mut scheduler, span) = overloaded();
        let result = span.rehearse();
        assert_eq!(result, span.rehearse());
        assert!(result.requests > 1_000 && result.lost.iter().all(|&lost| lost > 0), "{result:?}");
        assert!(scheduler.take_span().is_none(), "one at a time");
        scheduler.step(scheduler.now, Event::Adopted(result), &mut Vec::new());
    }

    #[test]
    fn without_losses_nothing_is_copied_or_written_down() {
        let mut rehearsals = Rehearsals::new();
        for micros in 0..10_000 {
            assert!(!rehearsals.wants(at(micros)));
            assert_eq!(rehearsals.settled(at(micros), false), None);
        }
    }
}
