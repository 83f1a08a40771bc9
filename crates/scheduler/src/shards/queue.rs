//! The queue of one model, and the batch that it would run next.

use super::Gathering;
use super::message::{Candidate, Delay};
use super::table::LatencyTable;
use base::{Duration, ModelId, RequestId, Timestamp};
use std::collections::VecDeque;

/// How often the target of a batch's size is thought over.
const RATE_WINDOW: Duration = Duration::from_millis(100);

/// A request that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Which.
    pub id: RequestId,
    /// When it must be done.
    pub deadline_at: Timestamp,
    /// Rows of the batch dimension.
    pub rows: u32,
}

/// Requests by deadline, and how many of the first are in the batch at hand.
#[derive(Debug)]
pub(super) struct ModelQueue {
    pub model: ModelId,
    pub table: LatencyTable,
    /// By deadline, equal deadlines in the order in which they came. Deadlines mostly ascend, so that most go to the back.
    ring: VecDeque<Waiting>,
    /// How many of those queued have more than one row. While there are none, counting rows is counting requests.
    with_more_rows: usize,
    /// The batch: so many of the first.
    members: usize,
    /// And their rows.
    rows: u32,
    /// How much of its time a batch may wait for company, in percent.
    wait_percent: u64,
    /// Until when the batch at hand may.
    wait_until: Timestamp,
    /// The batch as the ranker sees it.
    pub candidate: Option<Candidate>,
    /// What the ranker was told last.
    pub announced: Option<Candidate>,
    /// Since when it knows of a batch.
    pub announced_at: Timestamp,
    /// How many grants have arrived.
    pub grants_seen: u32,
    /// Whether batches may run: the weights are in place.
    pub active: bool,
    /// The size below which the head of the queue is given up, where the rule says so. 0 until the rate is known.
    target: u32,
    arrivals: u32,
    arrivals_since: Timestamp,
    /// How long the newest request had.
    objective: Duration,
}

impl ModelQueue {
    pub fn new(model: ModelId, table: LatencyTable, wait_percent: u64) -> Self {
        Self {
            model,
            table,
            ring: VecDeque::new(),
            with_more_rows: 0,
            members: 0,
            rows: 0,
            wait_percent,
            wait_until: Timestamp::ZERO,
            candidate: None,
            announced: None,
            announced_at: Timestamp::ZERO,
            grants_seen: 0,
            active: true,
            target: 0,
            arrivals: 0,
            arrivals_since: Timestamp::ZERO,
            objective: Duration::ZERO,
        }
    }

    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// The requests of the batch at hand.
    pub fn members(&self) -> usize {
        self.members
    }

    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Whether a request could still be in time if it were alone.
    #[inline]
    pub fn can_be_met(&self, now: Timestamp, delay: Delay, request: Waiting) -> bool {
        now + delay.of(request.rows) + self.table.of(request.rows) <= request.deadline_at
    }

    /// Queues a request; whether the batch may have changed. O(1) for one whose deadline is the last.
    #[inline]
    pub fn push(&mut self, now: Timestamp, delay: Delay, request: Waiting) -> Change {
        self.arrivals += 1;
        self.objective = request.deadline_at.since(now);
        self.with_more_rows += usize::from(request.rows > 1);
        let last = self.ring.back().map_or(Timestamp::ZERO, |last| last.deadline_at);
        if request.deadline_at < last {
            let place = self.ring.partition_point(|other| other.deadline_at <= request.deadline_at);
            self.ring.insert(place, request);
            let beside = place > self.members || (place == self.members && self.members > 0 && self.is_full());
            return if beside { Change::None } else { Change::Gather };
        }
        self.ring.push_back(request);
        if self.members + 1 < self.ring.len() {
            return Change::None;
        }
        let rows = self.rows + request.rows;
        let first_at = self.ring[0].deadline_at;
        if now + delay.of(rows) + self.table.of(rows) > first_at {
            return Change::None;
        }
        if self.members == 0 {
            self.begin(now, first_at);
        }
        self.members += 1;
        self.rows = rows;
        self.make_candidate();
        Change::Grown
    }

    fn is_full(&self) -> bool {
        self.rows >= self.table.max_rows()
    }

    /// There is a batch from now on.
    fn begin(&mut self, now: Timestamp, first_at: Timestamp) {
        self.wait_until = now + first_at.since(now) * self.wait_percent / 100;
    }

    fn make_candidate(&mut self) {
        let first = self.ring[0];
        let before = |rows| first.deadline_at - self.table.of(rows);
        self.candidate = Some(Candidate {
            size: self.rows,
            exec_at: before(self.rows + 1).min(self.wait_until),
            latest: before(first.rows),
            rank: before(self.rows),
        });
    }

    /// Forms the batch anew, for an executor that is free at `free_at`. Those that can't be in time are taken out and
    /// appended to `refused`; so are those that keep the batch below its target, where the rule says so.
    pub fn gather(
        &mut self,
        now: Timestamp,
        free_at: Timestamp,
        delay: Delay,
        gathering: Gathering,
        refused: &mut Vec<RequestId>,
    ) {
        loop {
            let Some(&first) = self.ring.front() else {
                (self.members, self.rows, self.candidate) = (0, 0, None);
                return;
            };
            self.count(now, free_at, delay, first.deadline_at);
            let hopeless = self.members == 0;
            // Without the head, the next batch could at best take all of the others.
            let pinned = match gathering {
                Gathering::HeadFirst => false,
                Gathering::TargetSize => self.members + 1 < self.ring.len() && self.rows < self.target,
            };
            if !hopeless && !pinned {
                if self.candidate.is_none() {
                    self.begin(now, first.deadline_at);
                }
                return self.make_candidate();
            }
            self.ring.pop_front();
            self.with_more_rows -= usize::from(first.rows > 1);
            refused.push(first.id);
        }
    }

    /// Counts how many of the first can start together and be done by `first_at`.
    fn count(&mut self, now: Timestamp, free_at: Timestamp, delay: Delay, first_at: Timestamp) {
        let fits = |rows, span| free_at.max(now + delay.of(rows)) + span <= first_at;
        if self.with_more_rows == 0 {
            let most = u32::try_from(self.ring.len()).unwrap_or(u32::MAX);
            self.rows = self.table.most(most, fits);
            self.members = self.rows as usize;
            return;
        }
        (self.members, self.rows) = (0, 0);
        for request in &self.ring {
            let rows = self.rows + request.rows;
            if rows > self.table.max_rows() || !fits(rows, self.table.of(rows)) {
                break;
            }
            self.rows = rows;
            self.members += 1;
        }
    }

    /// When the batch at hand must have started: its first request's deadline less what it takes.
    pub fn start_by(&self) -> Timestamp {
        self.ring.front().map_or(Timestamp::ZERO, |first| first.deadline_at - self.table.of(self.rows))
    }

    /// Takes the batch out of the queue.
    pub fn take(&mut self, out: &mut Vec<RequestId>) {
        for request in self.ring.drain(..self.members) {
            self.with_more_rows -= usize::from(request.rows > 1);
            out.push(request.id);
        }
        (self.members, self.rows, self.candidate) = (0, 0, None);
    }

    /// Takes a request out, wherever it stands; whether it was there.
    pub fn remove(&mut self, id: RequestId, deadline_at: Timestamp) -> bool {
        let start = self.ring.partition_point(|other| other.deadline_at < deadline_at);
        let same = self.ring.iter().skip(start).take_while(|other| other.deadline_at == deadline_at);
        let Some(offset) = same.into_iter().position(|other| other.id == id) else { return false };
        let request = self.ring.remove(start + offset).expect("it was found there");
        self.with_more_rows -= usize::from(request.rows > 1);
        true
    }

    /// Takes everything out.
    pub fn clear(&mut self, out: &mut Vec<RequestId>) {
        out.extend(self.ring.drain(..).map(|request| request.id));
        (self.members, self.rows, self.candidate, self.with_more_rows) = (0, 0, None, 0);
    }

    /// When the batch should be formed anew if nothing happens before: when its first request can't be met any more; and,
    /// where batches have a target, when so many no longer fit.
    pub fn gather_again_at(&self, delay: Delay, gathering: Gathering) -> Option<Timestamp> {
        let first = self.ring.front()?;
        let size = match gathering {
            Gathering::TargetSize if self.rows >= self.target && self.target > first.rows => self.target,
            Gathering::TargetSize | Gathering::HeadFirst => first.rows,
        };
        Some(first.deadline_at - self.table.of(size) - delay.of(size) + Duration::from_nanos(1))
    }

    /// Thinks the target over: the largest batch that requests gather for while there is time, and that so many executors
    /// could run in turn, each started when the one before it is an n-th done (Symphony, equation 1).
    pub fn retarget(&mut self, now: Timestamp, executors: u32) {
        let elapsed = now.since(self.arrivals_since);
        if elapsed < RATE_WINDOW {
            return;
        }
        let rate = f64::from(self.arrivals) / elapsed.as_secs_f64();
        let objective = self.objective;
        let in_turn = |span: Duration| span + span / u64::from(executors.max(1)) <= objective;
        let gathered = |rows: u32, span| rate * (objective - span).as_secs_f64() >= f64::from(rows);
        self.target = self.table.most(u32::MAX, |rows, span| in_turn(span) && gathered(rows, span));
        (self.arrivals, self.arrivals_since) = (0, now);
    }
}

/// What queueing a request did to the batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// Nothing.
    None,
    /// It has one more, and its candidate is up to date.
    Grown,
    /// It must be formed anew.
    Gather,
}
