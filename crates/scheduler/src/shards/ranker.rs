//! The ranker: owns the executors and the models' candidates, and brings them together (Symphony, section 4.2).

use super::bits::BitTree;
use super::heap::IndexHeap;
use super::message::{Announcement, Candidate, Delay, ExecutorNews, Grant, News};
use base::{DeviceId, Duration, ModelId, Timestamp};

/// Batches that an executor may have at once: one that runs, and one behind it. The second is given when the first should be
/// over; if that is late, nothing more is planned on top of a plan that was wrong.
const MAX_OUTSTANDING: u32 = 2;

/// The ranker, a pure machine.
///
/// Facts come in through [`Ranker::announce`], [`Ranker::news`], [`Ranker::add_executor`] and [`Ranker::lose_executor`]. Then
/// [`Ranker::decide`] gives grants; it also must be called at [`Ranker::next_wakeup`]. After a grant the ranker knows no
/// candidate of that model until its shard, which has seen the grant, announces one; and it doesn't touch the executor
/// until there is news of it.
///
/// Each fact takes O(log M + log G) for M models and G executors, each grant as much. Nothing is allocated once all models
/// and executors were seen.
#[derive(Debug, Default)]
pub struct Ranker {
    delay: Delay,
    models: Vec<Model>,
    /// Models whose candidate may not start yet, by when it may be ordered.
    timers: IndexHeap,
    /// Models whose candidate waits for an executor, by rank.
    ready: IndexHeap,
    executors: Vec<Executor>,
    /// Executors that are expected to be busy, by when they will be free.
    busy: IndexHeap,
    /// Executors that were found free.
    free: BitTree,
}

#[derive(Clone, Copy, Debug, Default)]
struct Model {
    candidate: Option<Candidate>,
    granted: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Executor {
    there: bool,
    /// Counts those that had this number.
    life: u32,
    /// Granted, without news of what became of that.
    away: bool,
    /// Batches that were ordered and haven't ended.
    outstanding: u32,
    free_at: Timestamp,
    /// What the newest batch takes.
    expected: Duration,
}

impl Ranker {
    /// A ranker without executors.
    pub fn new(delay: Delay) -> Self {
        Self { delay, ..Self::default() }
    }

    // ---- facts ----

    /// The newest candidate of a model, or that it has none.
    pub fn announce(&mut self, now: Timestamp, announcement: Announcement) {
        let Announcement { model, grants_seen, candidate } = announcement;
        if self.models.len() <= model.index() {
            self.models.resize(model.index() + 1, Model::default());
        }
        let entry = &mut self.models[model.index()];
        if entry.granted != grants_seen {
            return;
        }
        entry.candidate = candidate;
        let Some(candidate) = candidate else {
            self.timers.remove(model.0);
            self.ready.remove(model.0);
            return;
        };
        let order_at = candidate.exec_at - self.delay.of(candidate.size);
        if order_at <= now {
            self.timers.remove(model.0);
            self.ready.set(model.0, candidate.rank.as_nanos());
        } else {
            self.ready.remove(model.0);
            self.timers.set(model.0, order_at.as_nanos());
        }
    }

    /// An executor is there, and free.
    pub fn add_executor(&mut self, executor: DeviceId, life: u32) {
        if self.executors.len() <= executor.index() {
            self.executors.resize(executor.index() + 1, Executor::default());
            self.free.reserve(self.executors.len());
            self.busy.reserve(self.executors.len());
        }
        self.forget(executor);
        self.executors[executor.index()] = Executor { there: true, life, ..Executor::default() };
        self.free.insert(executor.0);
    }

    /// An executor is gone. Grants of it that are under way find that out themselves.
    pub fn lose_executor(&mut self, executor: DeviceId) {
        if executor.index() < self.executors.len() {
            self.forget(executor);
        }
    }

    fn forget(&mut self, executor: DeviceId) {
        self.executors[executor.index()].there = false;
        self.busy.remove(executor.0);
        self.free.remove(executor.0);
    }

    /// What became of an executor. News of one that is gone is ignored.
    pub fn news(&mut self, news: News) {
        let Some(entry) = self.executors.get_mut(news.executor.index()) else { return };
        if !entry.there || entry.life != news.life {
            return;
        }
        match news.what {
            ExecutorNews::Busy { until, expected } => {
                entry.away = false;
                entry.outstanding += 1;
                entry.free_at = until;
                entry.expected = expected;
            }
            ExecutorNews::Unused { free_at } => {
                entry.away = false;
                entry.free_at = free_at;
            }
            ExecutorNews::Ended { at } => {
                entry.outstanding = entry.outstanding.saturating_sub(1);
                // What waits behind it starts now.
                entry.free_at = if entry.outstanding > 0 { at + entry.expected } else { at };
            }
        }
        self.place(news.executor);
    }

    /// An executor does something else for that long, behind what it was given. It is over when there is news that
    /// something ended.
    pub fn borrow(&mut self, now: Timestamp, executor: DeviceId, expected: Duration) {
        let Some(entry) = self.executors.get_mut(executor.index()).filter(|entry| entry.there) else { return };
        entry.outstanding += 1;
        entry.free_at = entry.free_at.max(now) + expected;
        entry.expected = expected;
        self.place(executor);
    }

    /// Brings an executor to where it belongs.
    fn place(&mut self, executor: DeviceId) {
        let entry = &self.executors[executor.index()];
        if entry.away || entry.outstanding >= MAX_OUTSTANDING {
            self.busy.remove(executor.0);
        } else {
            self.busy.set(executor.0, entry.free_at.as_nanos());
        }
        self.free.remove(executor.0);
    }

    // ---- decisions ----

    /// Brings candidates and executors together. Call it after facts, and at `next_wakeup`.
    pub fn decide(&mut self, now: Timestamp, out: &mut Vec<Grant>) {
        while let Some((at, model)) = self.timers.first()
            && at <= now.as_nanos()
        {
            self.timers.remove(model);
            let candidate = self.models[model as usize].candidate.expect("a model with a timer has a candidate");
            self.ready.set(model, candidate.rank.as_nanos());
        }
        while let Some((_, model)) = self.ready.first() {
            let entry = &mut self.models[model as usize];
            let candidate = entry.candidate.expect("a model that waits has a candidate");
            let start_at = now + self.delay.of(candidate.size);
            if start_at > candidate.latest {
                // Its shard knows, and has something else to offer or to refuse.
                entry.candidate = None;
                self.ready.remove(model);
                continue;
            }
            let Some((executor, free_at)) = self.pick(now, start_at) else { return };
            let entry = &mut self.models[model as usize];
            entry.candidate = None;
            entry.granted = entry.granted.wrapping_add(1);
            self.ready.remove(model);
            let there = &mut self.executors[executor.index()];
            there.away = true;
            out.push(Grant { model: ModelId(model), executor, life: there.life, free_at });
            self.place(executor);
        }
    }

    /// The executor for a batch that could start at `start_at`: of those that are free when an order given now arrives the
    /// lowest-numbered, so that the others stay idle altogether when there is little to do; else the one that is free
    /// first, if that is soon enough.
    fn pick(&mut self, now: Timestamp, start_at: Timestamp) -> Option<(DeviceId, Timestamp)> {
        let found_free = (now + self.delay.control).as_nanos();
        while let Some((free_at, executor)) = self.busy.first()
            && free_at <= found_free
        {
            self.busy.remove(executor);
            self.free.insert(executor);
        }
        let number = match (self.free.first(), self.busy.first()) {
            (Some(number), _) => number,
            (None, Some((free_at, number))) if free_at <= start_at.as_nanos() => number,
            (None, _) => return None,
        };
        Some((DeviceId(number), self.executors[number as usize].free_at))
    }

    /// When to call `decide` if nothing else happens before.
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        let timer = self.timers.first().map(|(at, _)| Timestamp::from_nanos(at));
        let freed = self.ready.first().and_then(|(_, model)| {
            let (free_at, _) = self.busy.first()?;
            let size = self.models[model as usize].candidate.expect("a model that waits has a candidate").size;
            Some(Timestamp::from_nanos(free_at) - self.delay.of(size))
        });
        match (timer, freed) {
            (Some(timer), Some(freed)) => Some(timer.min(freed)),
            (timer, freed) => timer.or(freed),
        }
    }

    /// Whether a candidate waits for an executor.
    pub fn is_waiting(&self) -> bool {
        !self.ready.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    fn candidate(exec_at: u64, rank: u64, latest: u64) -> Candidate {
        Candidate { size: 2, exec_at: at(exec_at), rank: at(rank), latest: at(latest) }
    }

    fn announce(ranker: &mut Ranker, now: u64, model: u32, grants_seen: u32, candidate: Option<Candidate>) {
        ranker.announce(at(now), Announcement { model: ModelId(model), grants_seen, candidate });
    }

    fn news(ranker: &mut Ranker, executor: u32, what: ExecutorNews) {
        ranker.news(News { executor: DeviceId(executor), life: 0, what });
    }

    fn busy(ranker: &mut Ranker, executor: u32, until: u64) {
        news(ranker, executor, ExecutorNews::Busy { until: at(until), expected: Duration::from_nanos(10) });
    }

    fn decide(ranker: &mut Ranker, now: u64) -> Vec<(u32, u32)> {
        let mut out = Vec::new();
        ranker.decide(at(now), &mut out);
        out.iter().map(|grant| (grant.model.0, grant.executor.0)).collect()
    }

    fn ranker(executors: u32) -> Ranker {
        let mut ranker = Ranker::new(Delay::default());
        (0..executors).for_each(|executor| ranker.add_executor(DeviceId(executor), 0));
        ranker
    }

    #[test]
    fn a_candidate_is_granted_when_its_time_has_come_and_not_before() {
        let mut ranker = ranker(2);
        announce(&mut ranker, 0, 7, 0, Some(candidate(100, 120, 150)));
        assert_eq!(decide(&mut ranker, 99), []);
        assert_eq!(ranker.next_wakeup(), Some(at(100)));
        assert_eq!(decide(&mut ranker, 100), [(7, 0)]);
        assert_eq!(ranker.next_wakeup(), None, "the candidate is gone until the shard announces one");
    }

    #[test]
    fn the_lowest_numbered_free_executor_is_taken() {
        let mut ranker = ranker(3);
        for (now, model) in [(10, 0), (11, 1), (12, 2)] {
            announce(&mut ranker, now, model, 0, Some(candidate(0, now, 100)));
            assert_eq!(decide(&mut ranker, now), [(model, model)]);
            busy(&mut ranker, model, now + 20);
        }
        announce(&mut ranker, 13, 3, 0, Some(candidate(0, 50, 100)));
        assert_eq!(decide(&mut ranker, 13), []);
        assert_eq!(ranker.next_wakeup(), Some(at(30)));
        // All three are free by then: the lowest number wins, not the one that was free first.
        assert_eq!(decide(&mut ranker, 40), [(3, 0)]);
    }

    #[test]
    fn those_that_wait_go_by_rank_and_drop_out_when_it_is_too_late() {
        let mut ranker = ranker(1);
        announce(&mut ranker, 0, 0, 0, Some(candidate(0, 5, 50)));
        assert_eq!(decide(&mut ranker, 0), [(0, 0)]);
        busy(&mut ranker, 0, 30);
        announce(&mut ranker, 1, 1, 0, Some(candidate(0, 28, 60)));
        announce(&mut ranker, 1, 2, 0, Some(candidate(0, 20, 29)));
        announce(&mut ranker, 1, 3, 0, Some(candidate(0, 25, 60)));
        assert_eq!(decide(&mut ranker, 1), []);
        assert_eq!(decide(&mut ranker, 30), [(3, 0)]);
        news(&mut ranker, 0, ExecutorNews::Ended { at: at(30) });
        busy(&mut ranker, 0, 40);
        assert_eq!(decide(&mut ranker, 40), [(1, 0)]);
    }

    #[test]
    fn what_was_said_before_a_grant_arrived_does_not_count() {
        let mut ranker = ranker(2);
        announce(&mut ranker, 0, 0, 0, Some(candidate(0, 5, 50)));
        assert_eq!(decide(&mut ranker, 0), [(0, 0)]);
        announce(&mut ranker, 1, 0, 0, Some(candidate(0, 6, 51)));
        assert_eq!(decide(&mut ranker, 1), []);
        announce(&mut ranker, 2, 0, 1, Some(candidate(0, 9, 52)));
        assert_eq!(decide(&mut ranker, 2), [(0, 1)]);
    }

    #[test]
    fn an_executor_is_granted_its_delay_before_it_is_free() {
        let delay = Delay { control: Duration::from_nanos(5), data_per_row: Duration::from_nanos(2) };
        let mut ranker = Ranker::new(delay);
        ranker.add_executor(DeviceId(0), 0);
        announce(&mut ranker, 0, 0, 0, Some(candidate(20, 25, 80)));
        // 20 - 5 - 2 * 2
        assert_eq!(ranker.next_wakeup(), Some(at(11)));
        assert_eq!(decide(&mut ranker, 11), [(0, 0)]);
        busy(&mut ranker, 0, 40);
        announce(&mut ranker, 12, 0, 1, Some(candidate(0, 60, 80)));
        assert_eq!(decide(&mut ranker, 12), []);
        assert_eq!(ranker.next_wakeup(), Some(at(31)));
        assert_eq!(decide(&mut ranker, 31), [(0, 0)]);
    }

    #[test]
    fn an_executor_that_is_late_gets_one_more_and_then_none() {
        let mut ranker = ranker(1);
        let mut grants = 0;
        let mut again = |ranker: &mut Ranker, now| {
            announce(ranker, now, 0, grants, Some(candidate(0, now, now + 5)));
            let granted = decide(ranker, now).len();
            grants += granted as u32;
            granted
        };
        assert_eq!(again(&mut ranker, 0), 1);
        busy(&mut ranker, 0, 10);
        assert_eq!(again(&mut ranker, 10), 1);
        busy(&mut ranker, 0, 20);
        assert_eq!(again(&mut ranker, 20), 0, "neither of the two was reported");
        // The first ends, ten late; the second takes ten from now.
        news(&mut ranker, 0, ExecutorNews::Ended { at: at(21) });
        assert_eq!(again(&mut ranker, 30), 0);
        assert_eq!(ranker.next_wakeup(), Some(at(31)));
        assert_eq!(again(&mut ranker, 31), 1);
    }

    #[test]
    fn a_lost_executor_is_not_granted_and_news_of_it_is_old() {
        let mut ranker = ranker(1);
        announce(&mut ranker, 0, 0, 0, Some(candidate(0, 5, 50)));
        assert_eq!(decide(&mut ranker, 0), [(0, 0)]);
        ranker.lose_executor(DeviceId(0));
        busy(&mut ranker, 0, 10);
        announce(&mut ranker, 1, 0, 1, Some(candidate(0, 5, 50)));
        assert_eq!(decide(&mut ranker, 20), []);
        ranker.add_executor(DeviceId(0), 1);
        busy(&mut ranker, 0, 100);
        assert_eq!(decide(&mut ranker, 21), [(0, 0)], "the news was of its predecessor");
    }
}
