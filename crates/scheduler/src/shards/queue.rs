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
#[derive(Clone, Debug)]
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

#[cfg(test)]
mod tests {
    use super::*;
    use base::LatencyProfile;
    use proptest::prelude::*;

    const DELAY: Delay = Delay { control: Duration::from_micros(20), data_per_row: Duration::from_micros(3) };

    fn queue() -> ModelQueue {
        let micros = Duration::from_micros;
        let profile = LatencyProfile::linear(micros(100), micros(500), &[1, 2, 3, 4, 6, 8], Duration::ZERO).unwrap();
        ModelQueue::new(ModelId(0), LatencyTable::new(&profile), 100)
    }

    fn request(slot: u32, deadline_at: Timestamp, rows: u32) -> Waiting {
        Waiting { id: RequestId { slot, generation: 0 }, deadline_at, rows }
    }

    fn at(micros: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_micros(micros)
    }

    /// The most of the first that can start together now, by trying all.
    fn most(queue: &ModelQueue, now: Timestamp) -> usize {
        let fits = |&count: &usize| {
            let rows: u32 = queue.ring.iter().take(count).map(|request| request.rows).sum();
            now + DELAY.of(rows) + queue.table.of(rows) <= queue.ring[0].deadline_at
        };
        (1..=queue.ring.len()).take_while(fits).last().unwrap_or(0)
    }

    #[derive(Clone, Debug)]
    enum Change {
        Push { slo_us: u64, rows: u32 },
        Remove(usize),
        Gather,
        Take,
    }

    fn changes() -> impl Strategy<Value = Vec<(u64, Change)>> {
        let push = |rows| (700..4_000u64, rows).prop_map(|(slo_us, rows)| Change::Push { slo_us, rows });
        let change = prop_oneof![
            4 => push(1..2u32),
            1 => push(1..4u32),
            1 => (0..20usize).prop_map(Change::Remove),
            1 => Just(Change::Gather),
            1 => Just(Change::Take),
        ];
        prop::collection::vec((0..300u64, change), 0..200)
    }

    proptest! {
        #[test]
        fn a_batch_that_grew_is_the_batch_that_would_be_formed(changes in changes()) {
            let mut queue = queue();
            let (mut now, mut refused, mut taken) = (at(0), Vec::new(), Vec::new());
            let mut inside = 0;
            for (slot, (gap_us, change)) in changes.into_iter().enumerate() {
                now += Duration::from_micros(gap_us);
                match change {
                    Change::Push { slo_us, rows } => {
                        let request = request(slot as u32, now + Duration::from_micros(slo_us), rows);
                        if !queue.can_be_met(now, DELAY, request) {
                            continue;
                        }
                        inside += 1;
                        let change = queue.push(now, DELAY, request);
                        let mut anew = queue.clone();
                        anew.gather(now, Timestamp::ZERO, DELAY, Gathering::HeadFirst, &mut refused);
                        if change == super::Change::Grown {
                            prop_assert_eq!(queue.candidate, anew.candidate);
                            prop_assert_eq!(queue.members, anew.members);
                        }
                        if change == super::Change::Gather {
                            inside -= refused.len();
                            queue = anew;
                        }
                        refused.clear();
                    }
                    Change::Remove(index) => {
                        let Some(&request) = queue.ring.get(index) else { continue };
                        prop_assert!(queue.remove(request.id, request.deadline_at));
                        prop_assert!(!queue.remove(request.id, request.deadline_at));
                        inside -= 1;
                        queue.gather(now, Timestamp::ZERO, DELAY, Gathering::HeadFirst, &mut refused);
                        inside -= refused.drain(..).count();
                    }
                    Change::Gather => {
                        queue.gather(now, Timestamp::ZERO, DELAY, Gathering::HeadFirst, &mut refused);
                        inside -= refused.drain(..).count();
                        let expected = if queue.ring.is_empty() { 0 } else { most(&queue, now) };
                        prop_assert_eq!(queue.members, expected);
                    }
                    Change::Take => {
                        let members = queue.members;
                        queue.take(&mut taken);
                        prop_assert_eq!(taken.drain(..).count(), members);
                        inside -= members;
                        queue.gather(now, Timestamp::ZERO, DELAY, Gathering::HeadFirst, &mut refused);
                        inside -= refused.drain(..).count();
                    }
                }
                prop_assert_eq!(queue.len(), inside);
                prop_assert!(queue.ring.iter().is_sorted_by_key(|request| request.deadline_at));
                let more = queue.ring.iter().filter(|request| request.rows > 1).count();
                prop_assert_eq!(queue.with_more_rows, more);
                let rows: u32 = queue.ring.iter().take(queue.members).map(|request| request.rows).sum();
                prop_assert_eq!(queue.rows, rows);
                prop_assert_eq!(queue.candidate.is_some(), queue.members > 0);
            }
        }
    }

    #[test]
    fn the_candidate_is_the_schedulable_window() {
        let mut queue = queue();
        let no_delay = Delay::default();
        for slot in 0..3 {
            queue.push(at(0), no_delay, request(slot, at(2_000 + u64::from(slot)), 1));
        }
        // l(1) = 600, l(3) = 800, l(4) = 900.
        let window = Candidate { size: 3, exec_at: at(1_100), rank: at(1_200), latest: at(1_400) };
        assert_eq!(queue.candidate, Some(window));
        assert_eq!(queue.gather_again_at(no_delay, Gathering::HeadFirst), Some(at(1_400) + Duration::from_nanos(1)));
        for slot in 3..8 {
            queue.push(at(0), no_delay, request(slot, at(2_010), 1));
        }
        assert_eq!(queue.candidate.map(|full| (full.size, full.exec_at)), Some((8, Timestamp::ZERO)), "at once");
    }

    #[test]
    fn a_head_that_pins_its_batch_below_the_target_is_given_up() {
        let no_delay = Delay::default();
        let filled = |target| {
            let mut queue = queue();
            queue.target = target;
            queue.push(at(0), no_delay, request(0, at(1_000), 1));
            for slot in 1..8 {
                queue.push(at(0), no_delay, request(slot, at(2_000), 1));
            }
            queue
        };
        // At 250 there is time for l(2) = 700 until the head's deadline, and for l(7) = 1,300 until the others'.
        let members = |mut queue: ModelQueue, gathering| {
            let mut refused = Vec::new();
            queue.gather(at(250), Timestamp::ZERO, no_delay, gathering, &mut refused);
            (queue.members, refused.len())
        };
        assert_eq!(members(filled(4), Gathering::HeadFirst), (2, 0));
        assert_eq!(members(filled(4), Gathering::TargetSize), (7, 1));
        assert_eq!(members(filled(2), Gathering::TargetSize), (2, 0), "two are what the rate asks for");
    }

    #[test]
    fn the_target_follows_the_rate_and_the_executors() {
        let target = |per_ms: u64, objective_us, executors| {
            let mut queue = queue();
            for index in 0..per_ms * 200 {
                let now = at(index * 1_000 / per_ms);
                queue.push(now, Delay::default(), request(0, now + Duration::from_micros(objective_us), 1));
                if queue.len() > 100 {
                    queue.clear(&mut Vec::new());
                }
            }
            queue.retarget(at(200_000), executors);
            queue.target
        };
        // 2,000 us - l(b) long requests gather.
        assert_eq!(target(1, 2_000, 8), 1);
        assert_eq!(target(5, 2_000, 8), 4, "5 a ms for 1.1 ms are 5.5; the next size up is 6");
        assert_eq!(target(100, 2_000, 8), 8);
        // l(b) (1 + 1/n) <= 1,000.
        assert_eq!(target(100, 1_000, 1_000), 4);
        assert_eq!(target(100, 1_000, 4), 3);
        assert_eq!(target(100, 1_000, 1), 0);
    }
}
