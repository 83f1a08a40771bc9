//! A model shard: owns the queues of some models and makes their candidates (Symphony's model thread).

use super::heap::IndexHeap;
use super::message::{Announcement, Delay, ExecutorNews, Grant, News};
use super::queue::{Change, ModelQueue, Waiting};
use super::table::LatencyTable;
use crate::Rejection;
use base::{DeviceId, Duration, ModelId, RequestId, Timestamp, Window};

/// How a batch is put together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Gathering {
    /// From the head of the queue, as many as can be done by the head's deadline; the head is given up when it can't be met
    /// any more (Symphony, section 3.2).
    HeadFirst,
    /// The same, but where batches have to wait for executors the head is given up as soon as it keeps a batch below the size
    /// that the observed rate asks for, if others would make it larger (Nexus' sliding window). Once executors are short, the other rule runs ever smaller
    /// batches and so makes them shorter still; this one loses a few requests and keeps its pace.
    #[default]
    TargetSize,
}

/// The settings of a shard.
#[derive(Clone, Copy, Debug)]
pub struct ShardConfig {
    /// What it takes until an ordered batch can start.
    pub delay: Delay,
    /// How batches are put together.
    pub gathering: Gathering,
    /// How long before a batch may be ordered the ranker hears of it. Zero suffices: until then the batch grows with each
    /// request, and nobody needs to know. With more, a shard that is busy at that moment isn't missed.
    pub announce_ahead: Duration,
    /// How much of the time that its first request has a batch may wait for company, in percent. 100 is the paper's rule: to
    /// the last moment. Where deadlines are much farther away than a batch takes, that leaves everybody's work to the same
    /// moment, with no time left for whoever comes second.
    pub wait_percent: u64,
    /// How many requests may be queued for one model (P9).
    pub max_queued_per_model: usize,
}

impl Default for ShardConfig {
    fn default() -> Self {
        Self {
            delay: Delay::default(),
            gathering: Gathering::TargetSize,
            announce_ahead: Duration::ZERO,
            wait_percent: 75,
            max_queued_per_model: 1 << 20,
        }
    }
}

/// A batch that a shard orders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch {
    /// Which model.
    pub model: ModelId,
    /// On which executor.
    pub executor: DeviceId,
    /// Which of those that had this number.
    pub life: u32,
    /// Rows of all its requests.
    pub rows: u32,
    /// How many requests: the next so many of [`Outbox::members`].
    pub count: usize,
    /// When it may start.
    pub window: Window,
    /// What it is expected to take.
    pub expected: Duration,
    /// When it is expected to be done.
    pub expected_done_at: Timestamp,
}

/// What a shard has to say. The driver empties it and gives it back, so that nothing is allocated.
#[derive(Debug, Default)]
pub struct Outbox {
    /// For the ranker; of several about one model the last counts.
    pub announcements: Vec<Announcement>,
    /// For the ranker, in order.
    pub news: Vec<News>,
    /// For the executors.
    pub batches: Vec<Batch>,
    /// The requests of all batches, one batch after the other.
    pub members: Vec<RequestId>,
    /// Requests that can no longer be in time.
    pub refused: Vec<RequestId>,
}

impl Outbox {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.announcements.is_empty() && self.news.is_empty() && self.batches.is_empty() && self.refused.is_empty()
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.announcements.clear();
        self.news.clear();
        self.batches.clear();
        self.members.clear();
        self.refused.clear();
    }
}

/// A shard, a pure machine. Of n shards, number i owns the models whose id leaves i when divided by n.
///
/// It must be told of requests, cancellations and grants, and be woken at [`Shard::next_wakeup`]. A request takes O(1), and
/// O(log M) where it moves its model's timer among those of M models; a grant O(b + log M) for b requests. Nothing is
/// allocated once queues and outbox have grown to what they need.
///
/// The ranker hears of a batch when it may be ordered, and of changes after that. That is once for each batch, not once for
/// each request: before its frontrun moment a batch grows and nobody could do anything with it; after, nobody can join.
#[derive(Debug)]
pub struct Shard {
    config: ShardConfig,
    index: u32,
    shards: u32,
    executors: u32,
    models: Vec<Option<ModelQueue>>,
    /// When to look at a model, by its place in `models`.
    timers: IndexHeap,
}

impl Shard {
    /// Number `index` of `shards`, without models.
    pub fn new(config: ShardConfig, index: u32, shards: u32) -> Self {
        assert!(index < shards, "shard {index} of {shards}: they are counted from 0");
        Self { config, index, shards, executors: 0, models: Vec::new(), timers: IndexHeap::default() }
    }

    /// The shard of a model, of so many.
    pub fn of(model: ModelId, shards: u32) -> u32 {
        model.0 % shards
    }

    #[inline]
    fn place(&self, model: ModelId) -> usize {
        debug_assert_eq!(Self::of(model, self.shards), self.index, "{model} belongs to another shard");
        (model.0 / self.shards) as usize
    }

    fn queue(&self, model: ModelId) -> Option<&ModelQueue> {
        self.models.get(self.place(model))?.as_ref()
    }

    // ---- facts ----

    /// A model whose batches may run when `activate` says so.
    pub fn add_model(&mut self, model: ModelId, table: LatencyTable) {
        let place = self.place(model);
        if self.models.len() <= place {
            self.models.resize_with(place + 1, || None);
            self.timers.reserve(place + 1);
        }
        assert!(self.models[place].is_none(), "{model} was added twice");
        let mut queue = ModelQueue::new(model, table, self.config.wait_percent);
        queue.active = false;
        self.models[place] = Some(queue);
    }

    /// Whether a model's batches may run: its weights are on all executors.
    pub fn activate(&mut self, now: Timestamp, model: ModelId, active: bool, out: &mut Outbox) {
        let place = self.place(model);
        let Some(Some(queue)) = self.models.get_mut(place) else { return };
        queue.active = active;
        self.gather(now, place, Timestamp::ZERO, false, out);
        self.publish(now, place, out);
    }

    /// How many executors there are, for the batch sizes that are aimed at.
    pub fn set_executors(&mut self, executors: u32) {
        self.executors = executors;
    }

    /// A batch size of a model takes so long from now on; sizes above `above` have the same.
    pub fn set_latency(&mut self, model: ModelId, above: u32, batch: u32, span: Duration) {
        let place = self.place(model);
        if let Some(Some(queue)) = self.models.get_mut(place) {
            queue.table.set(above, batch, span);
        }
    }

    /// A request comes. It is queued, or refused at once with the reason.
    #[inline]
    pub fn submit(
        &mut self,
        now: Timestamp,
        model: ModelId,
        request: Waiting,
        out: &mut Outbox,
    ) -> Result<(), Rejection> {
        let place = self.place(model);
        let Some(Some(queue)) = self.models.get_mut(place) else { return Err(Rejection::ModelUnavailable) };
        if !queue.can_be_met(now, self.config.delay, request) {
            let earliest_at = now + self.config.delay.of(request.rows) + queue.table.of(request.rows);
            return Err(Rejection::DeadlineUnreachable { earliest_at });
        }
        if queue.len() >= self.config.max_queued_per_model {
            return Err(Rejection::QueueFull);
        }
        match queue.push(now, self.config.delay, request) {
            Change::None => {}
            Change::Grown => self.publish(now, place, out),
            Change::Gather => {
                self.gather(now, place, Timestamp::ZERO, false, out);
                self.publish(now, place, out);
            }
        }
        Ok(())
    }

    /// A client no longer waits; whether its request was queued here. It isn't any more.
    pub fn cancel(
        &mut self,
        now: Timestamp,
        model: ModelId,
        id: RequestId,
        deadline_at: Timestamp,
        out: &mut Outbox,
    ) -> bool {
        let place = self.place(model);
        let Some(Some(queue)) = self.models.get_mut(place) else { return false };
        let found = queue.remove(id, deadline_at);
        if found {
            self.gather(now, place, Timestamp::ZERO, false, out);
            self.publish(now, place, out);
        }
        found
    }

    /// A model is given up: all that is queued for it is appended to `refused`.
    pub fn clear(&mut self, now: Timestamp, model: ModelId, out: &mut Outbox) {
        let place = self.place(model);
        if let Some(Some(queue)) = self.models.get_mut(place) {
            queue.clear(&mut out.refused);
            self.publish(now, place, out);
        }
    }

    /// An executor is given to a model. The batch is formed now, for the moment when the executor is free. When there is none
    /// any more, or none whose time has come, the executor goes back.
    pub fn granted(&mut self, now: Timestamp, grant: Grant, out: &mut Outbox) {
        let Grant { model, executor, life, free_at } = grant;
        let place = self.place(model);
        let Some(Some(queue)) = self.models.get_mut(place) else {
            out.news.push(News { executor, life, what: ExecutorNews::Unused { free_at } });
            return;
        };
        queue.grants_seen = queue.grants_seen.wrapping_add(1);
        let announced = queue.announced.take();
        // Whether the batch had to wait for the executor. One that was free all the time shows that there are enough: then
        // nobody is given up to save its time.
        let delay = self.config.delay.of(announced.map_or(0, |candidate| candidate.size));
        let short = free_at > queue.announced_at + delay;
        queue.retarget(now, self.executors);
        self.gather(now, place, free_at, short, out);
        let what = self.order(now, place, grant, out).unwrap_or(ExecutorNews::Unused { free_at });
        out.news.push(News { executor, life, what });
        self.gather(now, place, Timestamp::ZERO, short, out);
        self.publish(now, place, out);
    }

    fn order(&mut self, now: Timestamp, place: usize, grant: Grant, out: &mut Outbox) -> Option<ExecutorNews> {
        let queue = self.models[place].as_mut().expect("a granted model is there");
        let candidate = queue.candidate.filter(|_| queue.active)?;
        let start_at = grant.free_at.max(now + self.config.delay.of(candidate.size));
        if candidate.exec_at > start_at {
            return None;
        }
        let expected = queue.table.of(candidate.size);
        let until = start_at + expected;
        out.batches.push(Batch {
            model: grant.model,
            executor: grant.executor,
            life: grant.life,
            rows: queue.rows(),
            count: queue.members(),
            window: Window { earliest: now, latest: queue.start_by() },
            expected,
            expected_done_at: until,
        });
        queue.take(&mut out.members);
        Some(ExecutorNews::Busy { until, expected })
    }

    /// Time has passed: forms batches anew that have become impossible, and announces those whose time has come.
    pub fn wake(&mut self, now: Timestamp, out: &mut Outbox) {
        while let Some((at, place)) = self.timers.first()
            && at <= now.as_nanos()
        {
            let queue = self.models[place as usize].as_ref().expect("a model with a timer is there");
            let short = queue.announced.is_some();
            self.gather(now, place as usize, Timestamp::ZERO, short, out);
            self.publish(now, place as usize, out);
        }
    }

    /// When to call `wake` if nothing else happens before.
    #[inline]
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        self.timers.first().map(|(at, _)| Timestamp::from_nanos(at))
    }

    /// How many requests are queued for a model.
    pub fn queued(&self, model: ModelId) -> usize {
        self.queue(model).map_or(0, ModelQueue::len)
    }

    /// Whether a model's batches may run.
    pub fn is_active(&self, model: ModelId) -> bool {
        self.queue(model).is_some_and(|queue| queue.active)
    }

    // ---- candidates ----

    /// Forms a model's batch anew; `short` says that executors are.
    fn gather(&mut self, now: Timestamp, place: usize, free_at: Timestamp, short: bool, out: &mut Outbox) {
        let queue = self.models[place].as_mut().expect("only models that are there are looked at");
        let gathering = if short { self.config.gathering } else { Gathering::HeadFirst };
        queue.gather(now, free_at, self.config.delay, gathering, &mut out.refused);
    }

    /// Tells the ranker what it should know by now, and sets the timer for the rest.
    #[inline]
    fn publish(&mut self, now: Timestamp, place: usize, out: &mut Outbox) {
        let queue = self.models[place].as_mut().expect("only models that are there are looked at");
        let ShardConfig { delay, announce_ahead, gathering, .. } = self.config;
        let tell_at = queue.candidate.map_or(Timestamp::NEVER, |candidate| {
            if queue.active { candidate.exec_at - delay.of(candidate.size) - announce_ahead } else { Timestamp::NEVER }
        });
        let wanted = if tell_at <= now { queue.candidate } else { None };
        if queue.announced != wanted {
            if queue.announced.is_none() {
                queue.announced_at = now;
            }
            queue.announced = wanted;
            let (model, grants_seen) = (queue.model, queue.grants_seen);
            out.announcements.push(Announcement { model, grants_seen, candidate: wanted });
        }
        let look_at = match wanted {
            None if queue.candidate.is_some() && queue.active => Some(tell_at),
            Some(_) | None => queue.gather_again_at(delay, gathering),
        };
        match look_at {
            // What can't be met any more was taken out just now.
            Some(at) => self.timers.set(place as u32, at.max(now + Duration::from_nanos(1)).as_nanos()),
            None => self.timers.remove(place as u32),
        }
    }
}
