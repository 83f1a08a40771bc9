//! A shard with its books: which requests are in hand, which batches are out, what batches take lately.

use super::message::{ExecutorNews, Grant, News};
use super::queue::Waiting;
use super::shard::{Outbox, Shard, ShardConfig};
use super::table::LatencyTable;
use crate::latency::{self, Latency};
use crate::{ActionStatus, Command, Execution, ModelSpec, Outcome, Rejection, Report, Request};
use base::{ActionId, DeviceId, Duration, ModelId, RequestId, Timestamp};
use std::collections::BTreeMap;

/// Requests without a deadline are planned as if they had this long, and refused when that wasn't enough.
pub const BATCH_WORK_PATIENCE: Duration = Duration::from_secs(1);

/// Hands out the numbers of actions, ascending. With `shards` counters that start at 0 to `shards - 1` and count in steps of
/// `shards`, no number is given out twice.
#[derive(Clone, Copy, Debug)]
pub struct ActionNumbers {
    next: u64,
    step: u64,
}

impl ActionNumbers {
    /// The numbers `first`, `first + step`, and so on.
    pub fn new(first: u64, step: u64) -> Self {
        Self { next: first, step }
    }

    /// The next number.
    pub fn take(&mut self) -> ActionId {
        let action = ActionId(self.next);
        self.next += self.step;
        action
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Queued,
    /// In a batch that was sent.
    Running,
    /// As `Running`, but the client has gone.
    Abandoned,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    request: Request,
    /// The deadline to plan with.
    due_at: Timestamp,
    state: State,
    /// Its batch was on a device that was lost: it may have been executed, so that it can fail but no longer be rejected
    /// (P8).
    stranded: bool,
}

/// A batch that was ordered.
#[derive(Debug)]
struct Running {
    device: DeviceId,
    life: u32,
    model: ModelId,
    batch: u32,
    requests: Vec<RequestId>,
}

#[derive(Debug)]
struct Model {
    latency: Latency,
    batches_out: usize,
    removed: bool,
}

/// All that one model thread does: the shard, and around it what a driver needs. A pure machine.
///
/// Requests, cancellations, reports and grants come in; commands come out, and for the ranker what stands in
/// [`Desk::outbox`] after each call: its announcements and its news. The driver passes them on and clears it.
#[derive(Debug)]
pub struct Desk {
    shard: Shard,
    shards: u32,
    window: latency::Window,
    /// By the driver's slot.
    requests: Vec<Option<Entry>>,
    in_hand: usize,
    models: Vec<Option<Model>>,
    running: BTreeMap<ActionId, Running>,
    out: Outbox,
}

impl Desk {
    /// Number `index` of `shards`, with estimates from the last `window` measurements at that quantile.
    pub fn new(config: ShardConfig, index: u32, shards: u32, window: usize, quantile: f64) -> Self {
        Self {
            shard: Shard::new(config, index, shards),
            shards,
            window: latency::Window { size: window.max(1), quantile },
            requests: Vec::new(),
            in_hand: 0,
            models: Vec::new(),
            running: BTreeMap::new(),
            out: Outbox::default(),
        }
    }

    fn place(&self, model: ModelId) -> usize {
        (model.0 / self.shards) as usize
    }

    fn model(&self, model: ModelId) -> Option<&Model> {
        self.models.get(self.place(model))?.as_ref()
    }

    fn model_mut(&mut self, model: ModelId) -> Option<&mut Model> {
        let place = self.place(model);
        self.models.get_mut(place)?.as_mut()
    }

    fn entry(&mut self, id: RequestId) -> Option<&mut Entry> {
        self.requests.get_mut(id.slot as usize)?.as_mut().filter(|entry| entry.request.id == id)
    }

    /// What is for the ranker.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.out
    }

    /// How many requests are in hand, queued or running.
    pub fn in_hand(&self) -> usize {
        self.in_hand
    }

    /// Whether nothing is queued for a model and no batch of it is out.
    pub fn is_idle(&self, model: ModelId) -> bool {
        self.shard.queued(model) == 0 && self.model(model).is_none_or(|entry| entry.batches_out == 0)
    }

    /// Whether a model's weights are in place.
    pub fn is_active(&self, model: ModelId) -> bool {
        self.shard.is_active(model)
    }

    // ---- facts ----

    /// A model may be asked for; its batches wait until it is activated.
    pub fn add_model(&mut self, spec: &ModelSpec) {
        let place = self.place(spec.model);
        if self.models.len() <= place {
            self.models.resize_with(place + 1, || None);
        }
        assert!(self.models[place].is_none(), "{} was added twice", spec.model);
        let latency = Latency::new(&spec.profile, self.window);
        self.models[place] = Some(Model { latency, batches_out: 0, removed: false });
        self.shard.add_model(spec.model, LatencyTable::new(&spec.profile));
    }

    /// A model is no longer served: what is queued still is, if it can be.
    pub fn remove_model(&mut self, now: Timestamp, model: ModelId, out: &mut Vec<Command>) {
        let Some(entry) = self.model_mut(model) else { return };
        entry.removed = true;
        if !self.shard.is_active(model) {
            self.shard.clear(now, model, &mut self.out);
            self.refuse(Rejection::ModelUnavailable, out);
        }
    }

    /// Whether a model's weights are in place.
    pub fn activate(
        &mut self,
        now: Timestamp,
        model: ModelId,
        active: bool,
        numbers: &mut ActionNumbers,
        out: &mut Vec<Command>,
    ) {
        self.shard.activate(now, model, active, &mut self.out);
        self.carry_out(now, numbers, out);
    }

    /// How many executors there are.
    pub fn set_executors(&mut self, executors: u32) {
        self.shard.set_executors(executors);
    }

    /// A client asks. The driver has checked that somebody could serve it.
    pub fn submitted(&mut self, now: Timestamp, request: Request, numbers: &mut ActionNumbers, out: &mut Vec<Command>) {
        let Some(entry) = self.model_mut(request.model).filter(|entry| !entry.removed) else {
            out.push(rejected(request.id, Rejection::ModelUnavailable));
            return;
        };
        entry.latency.age(now);
        let batch_work = request.deadline_at == Timestamp::NEVER;
        let due_at = if batch_work { now + BATCH_WORK_PATIENCE } else { request.deadline_at };
        let slot = request.id.slot as usize;
        if self.requests.len() <= slot {
            self.requests.resize(slot + 1, None);
        }
        assert!(self.requests[slot].is_none(), "P1: {} was submitted while its slot is in use", request.id);
        let waiting = Waiting { id: request.id, deadline_at: due_at, rows: request.rows };
        match self.shard.submit(now, request.model, waiting, &mut self.out) {
            Err(rejection) => out.push(rejected(request.id, rejection)),
            Ok(()) => {
                self.requests[slot] = Some(Entry { request, due_at, state: State::Queued, stranded: false });
                self.in_hand += 1;
            }
        }
        self.carry_out(now, numbers, out);
    }

    /// A client no longer waits.
    pub fn cancelled(&mut self, now: Timestamp, id: RequestId, numbers: &mut ActionNumbers, out: &mut Vec<Command>) {
        let Some(entry) = self.entry(id) else { return };
        if entry.state != State::Queued {
            entry.state = State::Abandoned;
            return;
        }
        let (model, due_at) = (entry.request.model, entry.due_at);
        let found = self.shard.cancel(now, model, id, due_at, &mut self.out);
        assert!(found, "P1: {id} is queued and nowhere to be found");
        self.finish(id, Outcome::Cancelled, out);
        self.carry_out(now, numbers, out);
    }

    /// An executor is granted.
    pub fn granted(&mut self, now: Timestamp, grant: Grant, numbers: &mut ActionNumbers, out: &mut Vec<Command>) {
        self.shard.granted(now, grant, &mut self.out);
        self.carry_out(now, numbers, out);
    }

    /// A batch is over, one way or another; whether it was one of this desk's.
    pub fn reported(
        &mut self,
        now: Timestamp,
        report: Report,
        numbers: &mut ActionNumbers,
        out: &mut Vec<Command>,
    ) -> bool {
        let Some(running) = self.running.remove(&report.action) else { return false };
        let entry = self.model_mut(running.model).expect("a model with a batch stays");
        entry.batches_out -= 1;
        let ended_at = match report.status {
            ActionStatus::Done { started_at, ended_at, transfers } => {
                let took = ended_at.since(started_at) + transfers.before;
                self.learn(running.model, running.batch, ended_at, (took, transfers.beside));
                ended_at
            }
            ActionStatus::TooLate | ActionStatus::Preempted | ActionStatus::Failed => now,
        };
        let what = ExecutorNews::Ended { at: ended_at };
        self.out.news.push(News { executor: running.device, life: running.life, what });
        for &id in &running.requests {
            match report.status {
                ActionStatus::Done { ended_at, .. } => self.executed(id, ended_at, out),
                ActionStatus::TooLate | ActionStatus::Preempted => self.requeue(now, id, out),
                ActionStatus::Failed => self.finish_running(id, Outcome::Failed, out),
            }
        }
        self.carry_out(now, numbers, out);
        true
    }

    /// A device is gone, and with it what it was doing.
    pub fn device_lost(
        &mut self,
        now: Timestamp,
        device: DeviceId,
        numbers: &mut ActionNumbers,
        out: &mut Vec<Command>,
    ) {
        let lost: Vec<ActionId> =
            self.running.iter().filter(|(_, running)| running.device == device).map(|(&action, _)| action).collect();
        for action in lost {
            let running = self.running.remove(&action).expect("it was found there");
            self.model_mut(running.model).expect("a model with a batch stays").batches_out -= 1;
            for id in running.requests {
                if let Some(entry) = self.entry(id) {
                    entry.stranded = true;
                }
                self.requeue(now, id, out);
            }
        }
        self.carry_out(now, numbers, out);
    }

    /// Time has passed.
    pub fn wake(&mut self, now: Timestamp, numbers: &mut ActionNumbers, out: &mut Vec<Command>) {
        self.shard.wake(now, &mut self.out);
        self.carry_out(now, numbers, out);
    }

    /// When to call `wake` if nothing else happens before.
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        self.shard.next_wakeup()
    }

    // ---- what follows ----

    /// Turns what the shard has to say to workers and clients into commands.
    fn carry_out(&mut self, now: Timestamp, numbers: &mut ActionNumbers, out: &mut Vec<Command>) {
        if !self.out.refused.is_empty() {
            self.refuse(Rejection::Overloaded { earliest_at: now }, out);
        }
        if self.out.batches.is_empty() {
            return;
        }
        let mut batches = std::mem::take(&mut self.out.batches);
        let mut members = std::mem::take(&mut self.out.members);
        let mut rest = &members[..];
        for batch in batches.drain(..) {
            let (requests, others) = rest.split_at(batch.count);
            rest = others;
            for &id in requests {
                let entry = self.entry(id).expect("queued requests are in hand");
                assert_eq!(entry.state, State::Queued, "P1: {id} is to be executed twice");
                entry.state = State::Running;
            }
            let action = numbers.take();
            let model = self.model_mut(batch.model).expect("a model with a queue is there");
            model.batches_out += 1;
            let size = model.latency.class_for(batch.rows).batch;
            let (device, life, model, requests) = (batch.executor, batch.life, batch.model, requests.to_vec());
            self.running.insert(action, Running { device, life, model, batch: size, requests: requests.clone() });
            out.push(Command::Execute(Execution {
                action,
                device,
                model,
                batch: size,
                requests,
                window: batch.window,
                expected: batch.expected,
                expected_done_at: batch.expected_done_at,
            }));
        }
        members.clear();
        (self.out.batches, self.out.members) = (batches, members);
    }

    /// Ends what the shard has given up. Those that can't be met any more are told the earliest deadline that could be.
    fn refuse(&mut self, rejection: Rejection, out: &mut Vec<Command>) {
        let mut refused = std::mem::take(&mut self.out.refused);
        for id in refused.drain(..) {
            let request = self.entry(id).expect("queued requests are in hand").request;
            let rejection = match rejection {
                Rejection::Overloaded { earliest_at } => {
                    let model = self.model(request.model).expect("a model with a queue is there");
                    Rejection::Overloaded {
                        earliest_at: earliest_at + model.latency.class_for(request.rows).expected(),
                    }
                }
                other => other,
            };
            self.finish(id, Outcome::Rejected(rejection), out);
        }
        self.out.refused = refused;
    }

    fn executed(&mut self, id: RequestId, ended_at: Timestamp, out: &mut Vec<Command>) {
        let Some(entry) = self.entry(id) else { return };
        let outcome = if ended_at <= entry.request.deadline_at { Outcome::Done } else { Outcome::Late };
        self.finish_running(id, outcome, out);
    }

    fn finish_running(&mut self, id: RequestId, outcome: Outcome, out: &mut Vec<Command>) {
        let abandoned = self.entry(id).is_some_and(|entry| entry.state == State::Abandoned);
        self.finish(id, if abandoned { Outcome::Cancelled } else { outcome }, out);
    }

    fn finish(&mut self, id: RequestId, outcome: Outcome, out: &mut Vec<Command>) {
        let Some(entry) = self.entry(id) else { return };
        let outcome = match outcome {
            Outcome::Rejected(_) if entry.stranded => Outcome::Failed,
            other => other,
        };
        self.requests[id.slot as usize] = None;
        self.in_hand -= 1;
        out.push(Command::Finish { request: id, outcome });
    }

    /// A request whose batch didn't run, or ran on a device that was lost, goes back into its queue if it can still be in
    /// time.
    fn requeue(&mut self, now: Timestamp, id: RequestId, out: &mut Vec<Command>) {
        let Some(entry) = self.entry(id) else { return };
        if entry.state == State::Abandoned {
            return self.finish(id, Outcome::Cancelled, out);
        }
        entry.state = State::Queued;
        let (request, due_at) = (entry.request, entry.due_at);
        let waiting = Waiting { id, deadline_at: due_at, rows: request.rows };
        let removed = self.model(request.model).is_none_or(|model| model.removed);
        let queued = if removed {
            Err(Rejection::ModelUnavailable)
        } else {
            self.shard.submit(now, request.model, waiting, &mut self.out)
        };
        match queued {
            Ok(()) => {}
            Err(Rejection::DeadlineUnreachable { earliest_at }) => {
                self.finish(id, Outcome::Rejected(Rejection::Overloaded { earliest_at }), out);
            }
            Err(rejection) => self.finish(id, Outcome::Rejected(rejection), out),
        }
    }

    /// Takes a measurement in, and gives the shard the new estimate.
    fn learn(&mut self, model: ModelId, batch: u32, at: Timestamp, (took, beside): (Duration, Duration)) {
        let place = self.place(model);
        let Some(Some(entry)) = self.models.get_mut(place) else { return };
        entry.latency.observe_batch(at, batch, took, beside);
        let (mut above, mut least) = (0, Duration::ZERO);
        for class in entry.latency.classes() {
            // Estimates never descend with the size.
            least = least.max(class.expected());
            if class.batch >= batch {
                self.shard.set_latency(model, above, class.batch, least);
            }
            above = class.batch;
        }
    }
}

fn rejected(request: RequestId, rejection: Rejection) -> Command {
    Command::Finish { request, outcome: Outcome::Rejected(rejection) }
}
