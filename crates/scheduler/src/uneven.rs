//! Which requests of one model go together where their times differ: `punctual`'s answer.
//!
//! A batch takes as long as its longest request, so that a long one among short ones costs them all. So requests of
//! similar kinds are put together. For each kind as the longest, and each batch size, there is one candidate: the most
//! urgent requests of this kind and shorter ones that are likely to be in time. Of all these the best is taken, by what
//! is best at the time (`Aim`).

use crate::batch_times::BatchTimes;
use crate::distribution::power;
use crate::queue::{Candidate, ModelQueue, Queued};
use crate::spread::Spread;
use base::{Duration, Timestamp};

/// Requests whose chance to be in time is lower don't join a batch. Each of these makes a candidate: when there are
/// more requests than can be met, those that are sure to be in time are better company than the most urgent.
const CHANCES: [f64; 3] = [0.5, 0.8, 0.95];
/// How many of the most urgent requests are looked at.
const SEARCH: usize = 256;
/// Requests whose work is at least this part of the longest kind's are as likely to be the longest.
const AS_LONG: f64 = 0.7;

/// What a batch should be best at.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Aim {
    /// Requests that are in time for each second of the device, the first request among them.
    First,
    /// Requests that are in time for each second of the device, whoever they are.
    Most,
    /// Work that is done in time for each second of the device: long requests count for as much as the short ones that
    /// they take the place of, so that nobody is left for later who will cost more then.
    Saving,
    /// Requests in the batch; of equal ones as `Most`.
    Largest,
    /// Requests that would be lost by waiting for one more batch, for each second of the device.
    Urgent,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    deadline_at: Timestamp,
    queued: Queued,
    /// Its kind's mean work.
    work: f64,
}

/// Scratch space for forming batches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uneven {
    waiting: Vec<Waiting>,
    /// The kinds that wait, the shortest first.
    kinds: Vec<(f64, u32)>,
    /// The sizes to try: those that pay, and those that somebody needs.
    classes: Vec<usize>,
    chosen: Vec<usize>,
    /// How many of each kind are in the candidate.
    mix: Vec<(u32, u32)>,
}

/// Of one candidate: what it is worth, and what it is.
#[derive(Clone, Copy, Debug)]
struct Found {
    worth: f64,
    class: usize,
    takes: Duration,
    earliest: Timestamp,
}

impl Uneven {
    /// The best batch that starts at `start_at`. Its members are left in `members`. O(kinds * sizes * SEARCH).
    pub fn form(
        &mut self,
        (times, spread): (&BatchTimes, &Spread),
        queue: &ModelQueue,
        start_at: Timestamp,
        aim: Aim,
        members: &mut Vec<Queued>,
    ) -> Option<Candidate> {
        self.waiting.clear();
        self.kinds.clear();
        for (deadline_at, queued) in queue.by_urgency().take(SEARCH) {
            let work = spread.kind(queued.kind).mean;
            self.waiting.push(Waiting { deadline_at, queued, work });
            if !self.kinds.iter().any(|&(_, kind)| kind == queued.kind) {
                self.kinds.push((work, queued.kind));
            }
        }
        self.kinds.sort_by(|a, b| a.0.total_cmp(&b.0));
        // What another batch in between would take: one of the usual size.
        let delay = times.class_for(1).busy_mean();
        let mut best: Option<Found> = None;
        // A request of many rows goes into a size that holds it, whether that pays or not.
        let holds = |rows: u32| times.classes().partition_point(|class| class.batch < rows);
        let needed = |class: usize| self.waiting.iter().any(|waiting| holds(waiting.queued.rows) == class);
        self.classes.clear();
        self.classes.extend((0..times.classes().len()).filter(|&class| times.classes()[class].pays || needed(class)));
        let count = self.classes.len();
        for (index, at) in (0..self.kinds.len()).flat_map(|index| (0..count).map(move |at| (index, at))) {
            let (longest, class) = (self.kinds[index], self.classes[at]);
            for chance in CHANCES {
                let with = (longest, class, chance);
                let Some(found) = self.candidate((times, spread), start_at, with, (aim, delay)) else {
                    continue;
                };
                if best.is_none_or(|best| found.worth > best.worth) {
                    best = Some(found);
                    members.clear();
                    members.extend(self.chosen.iter().map(|&index| self.waiting[index].queued));
                }
            }
        }
        let Found { class, takes, earliest, .. } = best?;
        // The smallest size that holds it: a request that didn't fit may have left a larger one nearly empty.
        let rows: u32 = members.iter().map(|member| member.rows).sum();
        let class = class.min(times.classes().partition_point(|class| class.batch < rows));
        Some(Candidate { class, expected: takes, latest: earliest })
    }

    /// The most urgent requests of at most that much work that are likely to be in time together.
    fn candidate(
        &mut self,
        (times, spread): (&BatchTimes, &Spread),
        start_at: Timestamp,
        (longest, class, chance): ((f64, u32), usize, f64),
        (aim, delay): (Aim, Duration),
    ) -> Option<Found> {
        let batch = times.classes()[class].batch;
        let smaller = if class == 0 { 0 } else { times.classes()[class - 1].batch };
        // In so many of all cases as long as the longest of a full batch.
        let count = f64::from(batch.min(self.waiting.len() as u32));
        let takes = spread.time(class, spread.kind(longest.1).work.quantile(libm::pow(chance, 1.0 / count)));
        self.chosen.clear();
        let mut rows = 0;
        for (index, waiting) in self.waiting.iter().enumerate() {
            let too_late = start_at + takes > waiting.deadline_at;
            if waiting.work > longest.0 || rows + waiting.queued.rows > batch || too_late {
                continue;
            }
            rows += waiting.queued.rows;
            self.chosen.push(index);
            if rows == batch {
                break;
            }
        }
        if rows <= smaller
            || (aim == Aim::First && self.chosen.first() != self.first_possible(spread, start_at).as_ref())
        {
            return None;
        }
        self.count_kinds();
        let as_long = self.chosen.iter().filter(|&&index| self.waiting[index].work >= AS_LONG * longest.0).count();
        let mean = spread.time(class, spread.kind(longest.1).largest(as_long as u32));
        let mut worth = 0.0;
        let mut earliest = Timestamp::NEVER;
        for &index in &self.chosen {
            let waiting = &self.waiting[index];
            earliest = earliest.min(waiting.deadline_at);
            let now = self.in_time(spread, class, waiting.deadline_at.since(start_at));
            worth += match aim {
                Aim::First | Aim::Most | Aim::Largest => now,
                Aim::Saving => now * spread.time(0, waiting.work).as_nanos() as f64,
                Aim::Urgent => {
                    // What it could do alone after another batch.
                    let left = waiting.deadline_at.since(start_at + delay);
                    let later = spread.kind(waiting.queued.kind).work.within(spread.work_within(0, left));
                    (now - later).max(0.0) + 0.02 * now
                }
            };
        }
        let worth = worth / mean.as_nanos().max(1) as f64;
        // Rates are far below one in a nanosecond.
        let worth = if aim == Aim::Largest { f64::from(rows) + worth.min(0.5) } else { worth };
        Some(Found { worth, class, takes: mean, earliest })
    }

    /// The first request that could be in time alone.
    fn first_possible(&self, spread: &Spread, start_at: Timestamp) -> Option<usize> {
        self.waiting.iter().position(|waiting| {
            let work = spread.work_within(0, waiting.deadline_at.since(start_at));
            spread.kind(waiting.queued.kind).work.within(work) >= CHANCES[0]
        })
    }

    fn count_kinds(&mut self) {
        self.mix.clear();
        for &index in &self.chosen {
            let kind = self.waiting[index].queued.kind;
            match self.mix.iter_mut().find(|(there, _)| *there == kind) {
                Some((_, count)) => *count += 1,
                None => self.mix.push((kind, 1)),
            }
        }
    }

    /// The chance that the candidate takes no longer than that.
    fn in_time(&self, spread: &Spread, class: usize, span: Duration) -> f64 {
        let work = spread.work_within(class, span);
        self.mix.iter().map(|&(kind, count)| power(spread.kind(kind).work.within(work), count)).product()
    }
}
