//! The queued requests of one model: those with a deadline by urgency level and deadline, batch work by level and age.

use crate::batch_times::{BatchTimes, Class};
use crate::config::Delay;
use crate::slack::BatchWorkLimit;
use base::{Duration, RequestId, Timestamp};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// A queued request, as far as forming a batch needs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Queued {
    pub id: RequestId,
    pub rows: u32,
    pub arrived_at: Timestamp,
    /// Which requests of its model it is like (`Spread`).
    pub kind: u32,
}

/// The place of a request in the queue. `sequence` is unique and ascends with the arrivals.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Place {
    pub priority: u32,
    pub deadline_at: Timestamp,
    pub sequence: u64,
}

/// By deadline, then by arrival.
type Level = BTreeMap<(Timestamp, u64), Queued>;

/// When a device has time for a batch: when it is free, and not before an order that leaves now has come with the
/// batch's inputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Opening {
    pub free_at: Timestamp,
    pub now: Timestamp,
    pub delay: Delay,
}

impl Opening {
    /// When a batch of so many rows could start.
    pub fn with(self, rows: u32) -> Timestamp {
        self.free_at.max(self.now + self.delay.of(rows))
    }

    /// The largest size that pays and would be done by then with the rows that there are; 0 when none is.
    fn largest_by(self, times: &BatchTimes, deadline_at: Timestamp, rows: u32) -> u32 {
        let largest = times.largest_within(deadline_at.since(self.with(1)));
        if self.delay.per_row == Duration::ZERO {
            return largest;
        }
        let in_time = |class: &&Class| {
            class.batch <= largest
                && class.pays
                && self.with(class.batch.min(rows)) + class.least_quantile() <= deadline_at
        };
        times.classes().iter().rev().find(in_time).map_or(0, |class| class.batch)
    }
}

#[cfg(test)]
impl From<Timestamp> for Opening {
    fn from(free_at: Timestamp) -> Self {
        Self { free_at, now: free_at, delay: Delay::default() }
    }
}

/// A batch that could be formed: which size, when it must start at the latest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Candidate {
    /// Index of the batch size among the model's.
    pub class: usize,
    /// What it is expected to take.
    pub expected: Duration,
    /// The earliest deadline among its requests less what it takes: when it must start.
    pub latest: Timestamp,
}

impl Candidate {
    /// Of the sizes that hold these rows, the smallest that is in time: a request that no longer fitted may have left a
    /// larger one nearly empty, and a larger one may be known to take less.
    fn holding(
        members: &[Queued],
        times: &BatchTimes,
        opening: Option<Opening>,
        earliest_deadline_at: Timestamp,
    ) -> Option<Self> {
        let rows: u32 = members.iter().map(|member| member.rows).sum();
        let start_at = opening.map_or(Timestamp::ZERO, |opening| opening.with(rows));
        let first = times.classes().partition_point(|class| class.batch < rows);
        let sizes = times.classes().iter().enumerate().skip(first);
        let of = |(class, size): (usize, &Class)| {
            let expected = size.quantile();
            (start_at + expected <= earliest_deadline_at).then(|| Self {
                class,
                expected,
                latest: earliest_deadline_at - expected,
            })
        };
        sizes.map(of).find_map(std::convert::identity)
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ModelQueue {
    /// Requests with a deadline. Nearly always one level.
    levels: Vec<(u32, Level)>,
    /// Requests without one, by priority and arrival.
    background: BTreeMap<(u32, u64), Queued>,
    rows: u64,
    len: usize,
    /// How many requests have more than one row: while there are none, counting rows is counting requests.
    with_many_rows: usize,
}

impl ModelQueue {
    pub fn len(&self) -> usize {
        self.len + self.background.len()
    }

    /// Rows of the requests with a deadline.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Whether a request with a deadline is queued.
    pub fn has_urgent(&self) -> bool {
        self.len > 0
    }

    pub fn insert(&mut self, place: Place, queued: Queued) {
        if place.deadline_at == Timestamp::NEVER {
            self.background.insert((place.priority, place.sequence), queued);
            return;
        }
        let index = match self.levels.binary_search_by_key(&place.priority, |level| level.0) {
            Ok(index) => index,
            Err(index) => {
                self.levels.insert(index, (place.priority, Level::new()));
                index
            }
        };
        self.levels[index].1.insert((place.deadline_at, place.sequence), queued);
        self.len += 1;
        self.rows += u64::from(queued.rows);
        self.with_many_rows += usize::from(queued.rows > 1);
    }

    /// Takes a request out; `None` when it isn't there.
    pub fn remove(&mut self, place: Place) -> Option<Queued> {
        if place.deadline_at == Timestamp::NEVER {
            return self.background.remove(&(place.priority, place.sequence));
        }
        let index = self.levels.binary_search_by_key(&place.priority, |level| level.0).ok()?;
        let queued = self.levels[index].1.remove(&(place.deadline_at, place.sequence))?;
        if self.levels[index].1.is_empty() && self.levels.len() > 1 {
            self.levels.remove(index);
        }
        self.len -= 1;
        self.rows -= u64::from(queued.rows);
        self.with_many_rows -= usize::from(queued.rows > 1);
        Some(queued)
    }

    /// The earliest deadline in the queue.
    pub fn first_deadline(&self) -> Option<Timestamp> {
        self.levels.iter().filter_map(|(_, level)| Some(level.first_key_value()?.0.0)).min()
    }

    /// The last deadline in the queue.
    pub fn last_deadline(&self) -> Option<Timestamp> {
        self.levels.iter().filter_map(|(_, level)| Some(level.last_key_value()?.0.0)).max()
    }

    /// The request with the earliest deadline.
    pub fn first(&self) -> Option<(Timestamp, Queued)> {
        let firsts = self.levels.iter().filter_map(|(_, level)| level.first_key_value());
        firsts.min_by_key(|(key, _)| **key).map(|(key, queued)| (key.0, *queued))
    }

    /// The requests with a deadline, the most urgent first.
    pub fn by_urgency(&self) -> impl Iterator<Item = (Timestamp, Queued)> {
        self.levels.iter().flat_map(|(_, level)| level).map(|(key, &queued)| (key.0, queued))
    }

    /// The next instant from `from` on that is the last one at which a device that takes what `times` says can begin
    /// with one of the requests: in its own size, and if that is over, in a larger one that takes less.
    ///
    /// O(log n), or O(n) where requests have several rows.
    pub fn last_chance(&self, times: &BatchTimes, delay: Delay, from: Timestamp) -> Option<Timestamp> {
        let leads = |rows: u32| {
            let class = times.class_for(rows);
            [class.quantile(), class.least_quantile()].map(|takes| takes + delay.of(rows))
        };
        if self.with_many_rows > 0 {
            let chances = self.by_urgency().flat_map(|(at, queued)| leads(queued.rows).map(|lead| at - lead));
            return chances.filter(|&at| at >= from).min();
        }
        let first = |level: &Level, lead| level.range((from + lead, 0)..).next().map(|(key, _)| key.0 - lead);
        let levels = self.levels.iter().flat_map(|(_, level)| leads(1).map(|lead| first(level, lead)));
        levels.flatten().min()
    }

    /// No batch of this queue needs to start earlier than this, wherever and whenever it is formed: the key under which
    /// the model waits in a device's list until it is looked at closely.
    pub fn lower_bound(&self, times: &BatchTimes) -> Option<Timestamp> {
        let rows = u32::try_from(self.rows).unwrap_or(u32::MAX);
        Some(self.first_deadline()? - times.class_for(rows).least_quantile())
    }

    /// The batch that Clockwork's rules choose for an opening (appendix B): of the batch sizes for which there
    /// are enough requests that would still be in time, the largest; filled with the most urgent of these requests.
    /// Requests with too early a deadline are passed over ("possibly at the expense of dropping an unfortunately timed
    /// earlier request").
    ///
    /// O(B * (log n + b)) for B batch sizes up to b and n queued requests. The members are left in `members`.
    pub fn candidate(&self, times: &BatchTimes, opening: Opening, members: &mut Vec<Queued>) -> Option<Candidate> {
        for (index, class) in times.classes().iter().enumerate().rev() {
            if self.with_many_rows == 0 && (self.rows < u64::from(class.batch) || !class.pays) {
                continue;
            }
            let smaller = if index == 0 { 0 } else { times.classes()[index - 1].batch };
            let expected = class.least_quantile();
            if let Some(earliest) = self.gather(opening.with(class.batch) + expected, class, smaller, members) {
                return Candidate::holding(members, times, Some(opening), earliest);
            }
        }
        // Each size was counted with the inputs of as many rows as it holds. Requests of several rows may be in time in
        // one that they don't fill, because fewer inputs are sent.
        let sends_less = self.with_many_rows > 0 && opening.delay.per_row > Duration::ZERO;
        if sends_less { self.gather_each(times, opening, u32::MAX, members) } else { None }
    }

    /// Fills a batch with the most urgent requests whose deadline is `due_at` or later.
    fn gather(&self, due_at: Timestamp, class: &Class, smaller: u32, members: &mut Vec<Queued>) -> Option<Timestamp> {
        let in_time = self.levels.iter().flat_map(|(_, level)| level.range((due_at, 0)..));
        fill(in_time.map(|(key, &queued)| (key.0, queued)), class, smaller, members)
    }

    /// The batch for an opening that begins with the first request: as many as it has time for. Where that is
    /// less than `floor` rows and more are queued, the first requests are left out, into `skipped`, as far as that
    /// makes the batch larger. Requests that can't be met at all are left where they are.
    ///
    /// O(b + s log n) for a batch of b with s requests left out.
    pub fn window(
        &self,
        times: &BatchTimes,
        opening: Opening,
        floor: u32,
        members: &mut Vec<Queued>,
        skipped: &mut Vec<RequestId>,
    ) -> Option<Candidate> {
        self.window_within(times, opening, floor..=u32::MAX, members, skipped)
    }

    /// As `window`, with a largest size as well.
    pub fn window_within(
        &self,
        times: &BatchTimes,
        opening: Opening,
        size: RangeInclusive<u32>,
        members: &mut Vec<Queued>,
        skipped: &mut Vec<RequestId>,
    ) -> Option<Candidate> {
        let (floor, most) = (*size.start(), *size.end());
        skipped.clear();
        if self.levels.len() > 1 || self.with_many_rows > 0 {
            return self.gather_each(times, opening, most, members);
        }
        let (_, level) = self.levels.first()?;
        let first = (opening.with(1) + times.smallest(), 0);
        // Which request to begin with, and how many rows that gives.
        let mut best: Option<((Timestamp, u64), u32)> = None;
        let mut left = if level.first_key_value()?.0 < &first { level.range(first..).count() } else { level.len() };
        for (&key, _) in level.range(first..) {
            // One is in time with the quickest size, whether that pays or not.
            let queued = u32::try_from(left).unwrap_or(u32::MAX);
            let rows = opening.largest_by(times, key.0, queued).max(1).min(queued).min(most);
            if best.is_none_or(|(_, most)| rows > most) {
                best = Some((key, rows));
            }
            left -= 1;
            if rows >= floor || best.is_some_and(|(_, most)| left <= most as usize) {
                break;
            }
        }
        let (begin, rows) = best?;
        skipped.extend(level.range(first..begin).map(|(_, queued)| queued.id));
        members.clear();
        members.extend(level.range(begin..).take(rows as usize).map(|(_, &queued)| queued));
        Candidate::holding(members, times, Some(opening), begin.0)
    }

    /// The first requests, up to so many rows (and at least one), whatever their deadlines. It may start until the
    /// first of these has passed. O(b).
    pub fn front(&self, times: &BatchTimes, most: u32, members: &mut Vec<Queued>) -> Option<Candidate> {
        members.clear();
        let (mut earliest, mut rows) = (Timestamp::NEVER, 0);
        for (&(deadline_at, _), &queued) in self.levels.iter().flat_map(|(_, level)| level) {
            if rows + queued.rows > most && !members.is_empty() {
                break;
            }
            (earliest, rows) = (earliest.min(deadline_at), rows + queued.rows);
            members.push(queued);
        }
        let candidate = Candidate::holding(members, times, None, Timestamp::NEVER)?;
        (!members.is_empty()).then_some(Candidate { latest: earliest, ..candidate })
    }

    /// In the order of urgency, each request that leaves the batch in time for all of its members.
    fn gather_each(
        &self,
        times: &BatchTimes,
        opening: Opening,
        most: u32,
        members: &mut Vec<Queued>,
    ) -> Option<Candidate> {
        members.clear();
        let (mut earliest, mut rows) = (Timestamp::NEVER, 0);
        let most = times.best_batch().min(most).max(self.first()?.1.rows);
        for (&(deadline_at, _), &queued) in self.levels.iter().flat_map(|(_, level)| level) {
            let with = rows + queued.rows;
            let due = earliest.min(deadline_at);
            if with > most && !members.is_empty() {
                break;
            }
            if opening.with(with) + times.class_for(with).least_quantile() <= due {
                (earliest, rows) = (due, with);
                members.push(queued);
            }
        }
        if members.is_empty() { None } else { Candidate::holding(members, times, Some(opening), earliest) }
    }

    /// How much batch work is queued.
    pub fn background_len(&self) -> usize {
        self.background.len()
    }

    /// The first of the batch work.
    pub fn first_background(&self) -> Option<u64> {
        self.background.first_key_value().map(|((_, sequence), _)| *sequence)
    }

    /// Since when the first of the batch work waits.
    pub fn background_since(&self) -> Option<Timestamp> {
        self.background.first_key_value().map(|(_, queued)| queued.arrived_at)
    }

    /// The batch of batch work with the most rows for its time, of those that take no longer than the first of it may;
    /// of equal ones the largest. It needn't fill its size: seven requests are better run as one batch of eight than as
    /// four, two and one. Members are left in `members`. O(b + B).
    pub fn background_candidate(
        &self,
        times: &BatchTimes,
        limit: BatchWorkLimit,
        members: &mut Vec<Queued>,
    ) -> Option<Candidate> {
        let limit = limit.since(self.background_since()?);
        members.clear();
        let mut waiting = self.background.values().peekable();
        let (mut rows, mut best) = (0, (0.0, 0));
        for class in times.classes() {
            while let Some(&&next) = waiting.peek().filter(|next| rows + next.rows <= class.batch) {
                rows += next.rows;
                members.push(next);
                waiting.next();
            }
            let speed = f64::from(rows) / class.busy_median().as_nanos().max(1) as f64;
            if class.least_quantile() <= limit && rows > 0 && speed >= best.0 {
                best = (speed, members.len());
            }
            if best.1 == members.len() && waiting.peek().is_none() {
                break;
            }
        }
        members.truncate(best.1);
        if members.is_empty() {
            return None;
        }
        Candidate::holding(members, times, None, Timestamp::NEVER)
    }

    /// Every queued request. Only for removing a whole model.
    pub fn ids(&self) -> Vec<RequestId> {
        let urgent = self.levels.iter().flat_map(|(_, level)| level.values());
        urgent.chain(self.background.values()).map(|queued| queued.id).collect()
    }
}

/// Fills a batch of one size in the given order. Gives the earliest deadline among its members, or `None` when
/// the batch would do as well with the next `smaller` size.
fn fill(
    requests: impl Iterator<Item = (Timestamp, Queued)>,
    class: &Class,
    smaller: u32,
    members: &mut Vec<Queued>,
) -> Option<Timestamp> {
    let batch = class.batch;
    members.clear();
    let mut earliest = Timestamp::NEVER;
    let mut filled = 0;
    let mut enough = false;
    for (deadline_at, queued) in requests {
        enough |= filled + queued.rows >= batch;
        if filled + queued.rows > batch {
            // A larger one that comes first must not keep out one that fits, least of all where nothing is in the
            // batch.
            if members.is_empty() { continue } else { break }
        }
        filled += queued.rows;
        earliest = earliest.min(deadline_at);
        members.push(queued);
        if filled == batch {
            break;
        }
    }
    // A request of 3 rows alone fills no size of 1, 2, 4, but needs the 4.
    let needs_this_size = members.first().is_some_and(|first| first.rows > smaller);
    (!members.is_empty() && ((enough && class.pays) || needs_this_size)).then_some(earliest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rolling::History;
    use base::LatencyProfile;
    use proptest::prelude::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(millis)
    }

    /// l(b) = b + 5 ms at 1, 2, 4, 8.
    fn times() -> BatchTimes {
        let profile = LatencyProfile::linear(
            Duration::from_millis(1),
            Duration::from_millis(5),
            &[1, 2, 4, 8],
            Duration::from_millis(10),
        );
        BatchTimes::new(&profile.unwrap(), History { size: 10, quantile: 0.99 })
    }

    fn queue(requests: &[(u64, u32)]) -> ModelQueue {
        let mut queue = ModelQueue::default();
        for (slot, &(deadline, rows)) in requests.iter().enumerate() {
            let slot = slot as u32;
            let place = Place { priority: 1, deadline_at: at(deadline), sequence: u64::from(slot) };
            queue.insert(place, Queued { id: RequestId { slot, generation: 0 }, rows, arrived_at: at(0), kind: 0 });
        }
        queue
    }

    fn choose(requests: &[(u64, u32)], start: u64) -> Option<(u32, Vec<u32>, Timestamp)> {
        let times = times();
        let mut members = Vec::new();
        let candidate = queue(requests).candidate(&times, at(start).into(), &mut members)?;
        let slots = members.iter().map(|member| member.id.slot).collect();
        Some((times.classes()[candidate.class].batch, slots, candidate.latest))
    }

    #[test]
    fn inputs_that_are_not_sent_do_not_make_a_batch_late() {
        // Three rows in a batch of four, 9 ms: with 1 ms for each row that is sent they are done at 12 ms, with four
        // at 13.
        let delay = Delay { per_row: Duration::from_millis(1), ..Delay::default() };
        let opening = Opening { free_at: at(0), now: at(0), delay };
        let (mut members, mut skipped) = (Vec::new(), Vec::new());
        let candidate = queue(&[(12, 1), (20, 1), (21, 1)]).window(&times(), opening, 3, &mut members, &mut skipped);
        assert_eq!((candidate.unwrap().latest, members.len(), skipped.len()), (at(3), 3, 0));
    }

    #[test]
    fn inputs_that_are_not_sent_do_not_make_a_request_of_several_rows_late() {
        // With three rows' inputs it is done at 12 ms, with the four that its size holds at 13.
        let delay = Delay { per_row: Duration::from_millis(1), ..Delay::default() };
        let opening = Opening { free_at: at(0), now: at(0), delay };
        let mut members = Vec::new();
        let mut choose = |requests: &[(u64, u32)]| {
            let candidate = queue(requests).candidate(&times(), opening, &mut members)?;
            Some((candidate.latest, members.iter().map(|member| member.id.slot).collect::<Vec<_>>()))
        };
        assert_eq!(choose(&[(12, 3)]), Some((at(3), vec![0])));
        assert_eq!(choose(&[(11, 3), (12, 3), (12, 3)]), Some((at(3), vec![1])));
        assert_eq!(choose(&[(11, 3)]), None);
    }

    #[test]
    fn takes_the_largest_size_that_is_full() {
        assert_eq!(choose(&[(20, 1), (21, 1), (22, 1)], 0), Some((2, vec![0, 1], at(13))));
        assert_eq!(choose(&[(20, 1), (21, 1), (22, 1), (23, 1)], 0), Some((4, vec![0, 1, 2, 3], at(11))));
    }

    #[test]
    fn passes_over_an_early_request_for_a_larger_batch() {
        // At 4 ms a batch of 4 takes until 13 ms: too late for request 0, which alone would have been in time.
        let requests = [(12, 1), (20, 1), (20, 1), (20, 1), (20, 1)];
        assert_eq!(choose(&requests, 4), Some((4, vec![1, 2, 3, 4], at(11))));
    }

    #[test]
    fn a_smaller_size_when_too_few_are_in_time_for_a_larger_one() {
        assert_eq!(choose(&[(12, 1), (12, 1), (40, 1), (40, 1)], 5), Some((2, vec![0, 1], at(5))));
        assert_eq!(choose(&[(12, 1)], 7), None);
    }

    #[test]
    fn requests_of_several_rows_take_the_size_that_holds_them() {
        assert_eq!(choose(&[(30, 3)], 0), Some((4, vec![0], at(21))));
        assert_eq!(choose(&[(30, 3), (31, 3)], 0), Some((4, vec![0], at(21))));
        assert_eq!(choose(&[(30, 3), (31, 3), (32, 3)], 0), Some((8, vec![0, 1], at(17))));
        assert_eq!(choose(&[(30, 8)], 0), Some((8, vec![0], at(17))));
    }

    #[test]
    fn batch_work_takes_the_size_with_the_most_rows_for_its_time() {
        let rows = |rows: &[u32], limit: u64| {
            let mut queue = ModelQueue::default();
            for (slot, &rows) in (0..).zip(rows) {
                let place = Place { priority: 1, deadline_at: Timestamp::NEVER, sequence: u64::from(slot) };
                queue.insert(place, Queued { id: RequestId { slot, generation: 0 }, rows, arrived_at: at(0), kind: 0 });
            }
            let limit = BatchWorkLimit::of(Duration::from_millis(limit));
            let mut members = Vec::new();
            let candidate = queue.background_candidate(&times(), limit, &mut members)?;
            Some((times().classes()[candidate.class].batch, members.len()))
        };
        // Seven rows in 13 ms, not four in 9 ms.
        assert_eq!(rows(&[1; 7], 100), Some((8, 7)));
        // Five rows in 13 ms are fewer for their time than four in 9 ms.
        assert_eq!(rows(&[1; 5], 100), Some((4, 4)));
        assert_eq!(rows(&[1; 20], 100), Some((8, 8)));
        assert_eq!(rows(&[1; 20], 9), Some((4, 4)));
        assert_eq!(rows(&[1; 20], 5), None);
        // What doesn't fit the smaller sizes takes the one that holds it.
        assert_eq!(rows(&[3, 1, 8], 100), Some((4, 2)));
        assert_eq!(rows(&[8, 1], 100), Some((8, 1)));
    }

    #[test]
    fn lower_levels_go_first() {
        let mut queue = queue(&[(20, 1), (21, 1)]);
        let urgent = Place { priority: 0, deadline_at: at(50), sequence: 9 };
        queue.insert(urgent, Queued { id: RequestId { slot: 9, generation: 0 }, rows: 1, arrived_at: at(0), kind: 0 });
        let mut members = Vec::new();
        queue.candidate(&times(), at(0).into(), &mut members).unwrap();
        assert_eq!(members.iter().map(|m| m.id.slot).collect::<Vec<_>>(), [9, 0]);
        queue.remove(urgent).unwrap();
        assert_eq!(queue.remove(urgent), None);
        assert_eq!(queue.first_deadline(), Some(at(20)));
    }

    proptest! {
        /// The device lists rely on it: looking closely, at any time, never finds an earlier `latest` than the bound.
        #[test]
        fn the_lower_bound_is_one(
            requests in proptest::collection::vec((0u64..100, 1u32..=8), 1..30),
            start in 0u64..60,
        ) {
            let queue = queue(&requests);
            let times = times();
            if let Some(candidate) = queue.candidate(&times, at(start).into(), &mut Vec::new()) {
                prop_assert!(queue.lower_bound(&times).unwrap() <= candidate.latest);
                prop_assert!(at(start) <= candidate.latest);
            }
        }
    }
}
