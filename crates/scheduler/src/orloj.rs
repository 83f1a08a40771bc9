//! Orloj's choice of batches (sections 3.2 and 4): for every batch size a queue of the requests that would still be in
//! time in such a batch, ordered by what would be lost by not taking them now.
//!
//! A request's score is the expected cost of being delayed, for as long as an exponential distribution says, over the
//! expected time of its batch (equations 1 and 2). For a histogram of batch times it is `alpha * e^(bt) + beta`, where
//! alpha and beta change only at *milestones*: when the time that is left falls below the next edge of a bin. So each
//! queue is a hull of points (alpha, beta), and the best request at an instant is the best point at the slope `e^(bt)`.
//!
//! ```text
//!   score of one bin        ╱│
//!                        ╱   │ ╲
//!                  ───╱      │    ╲___ 0
//!                          D - l2  D - l1
//! ```
//!
//! Time is counted from a base that is moved before `e^(bt)` grows too large; then every point is worked out anew.
//!
//! Where the text is open: the batch size is the largest that enough requests are in time for (its algorithm; its text
//! speaks of the earliest deadline), but not one in which a request takes as long as in a smaller one; a request in a
//! batch is estimated among others as usual (section 4.3); of several models, the one with the earliest deadline is
//! served first.

use crate::config::Config;
use crate::distribution::Piece;
use crate::hull::{Hull, Point};
use crate::ledger::Model;
use crate::policy::{Batch, Fact, Policy, View};
use crate::queue::{Candidate, Opening, Place, Queued};
use crate::table::anew;
use base::{DeviceId, Duration, ModelId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// The base is moved when `bt` is this large: `e^(bt)` and its inverse are then still far from the ends of floating
/// point.
const LARGEST_EXPONENT: f64 = 100.0;

/// A request in the queue of one batch size.
#[derive(Clone, Copy, Debug)]
struct OrlojStanding {
    point: Point,
    /// When it must be looked at again.
    milestone: Timestamp,
}

#[derive(Clone, Debug)]
struct Member {
    deadline_at: Timestamp,
    queued: Queued,
    /// For each batch size, `None` where it is too late for it.
    standings: Vec<Option<OrlojStanding>>,
}

/// The requests that may be in a batch of one size.
#[derive(Clone, Debug, Default)]
struct SizeQueue {
    hull: Hull,
    by_deadline: BTreeSet<(Timestamp, u64)>,
    rows: u64,
}

#[derive(Clone, Debug, Default)]
struct OrlojModel {
    /// Queued requests with a deadline, by their place's sequence.
    members: BTreeMap<u64, Member>,
    by_deadline: BTreeSet<(Timestamp, u64)>,
    /// Those that no queue has seen yet.
    fresh: Vec<u64>,
    sizes: Vec<SizeQueue>,
    /// When which request must be looked at again in which size's queue.
    milestones: BTreeSet<(Timestamp, u64, usize)>,
    /// Where time is counted from.
    base: Timestamp,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Orloj {
    /// The rate of the anticipated delay, per nanosecond.
    rate: f64,
    models: Vec<OrlojModel>,
    /// Models with queued requests that have a deadline.
    active: BTreeSet<ModelId>,
    members: Vec<Queued>,
}

impl Orloj {
    pub fn new(config: &Config) -> Self {
        Self { rate: config.anticipated_delay / 1e6, ..Self::default() }
    }
}

/// What a batch of some size takes for a request of some kind.
fn batch_time(model: &Model, kind: u32, class: usize) -> (Duration, &[Piece]) {
    match model.estimates.distribution() {
        Some(spread) => {
            let time = spread.batch_time(kind, class);
            (time.mean, &time.pieces)
        }
        None => (model.estimates.planned().classes()[class].least_quantile(), &[]),
    }
}

/// The score of a request as a point, and when it changes next, if it is later than `now`. Nanoseconds count from
/// `base`.
fn score(rate: f64, takes: Duration, pieces: &[Piece], due: f64, now: f64) -> (f64, f64, f64) {
    let mean = takes.as_nanos() as f64;
    let certain = [Piece { from: mean, to: mean * 1.02 + 1.0, part: 1.0 }];
    let (mut x, mut y, mut next) = (0.0, 0.0, f64::INFINITY);
    for piece in if pieces.is_empty() { &certain } else { pieces } {
        let height = piece.part / (mean * rate).max(f64::MIN_POSITIVE);
        let at = |span: f64| libm::exp(rate * (span - due));
        if now < due - piece.to {
            x += height * (at(piece.to) - at(piece.from));
            next = next.min(due - piece.to);
        } else if now < due - piece.from {
            y += height;
            x -= height * at(piece.from);
            next = next.min(due - piece.from);
        }
    }
    (x, y, next)
}

impl OrlojModel {
    /// Brings scores and queues up to date.
    fn settle(&mut self, model: &Model, rate: f64, now: Timestamp) {
        let classes = model.estimates.planned().classes().len();
        if self.sizes.len() < classes {
            self.sizes.resize_with(classes, SizeQueue::default);
        }
        if rate * now.since(self.base).as_nanos() as f64 > LARGEST_EXPONENT {
            self.base = now;
            let all: Vec<u64> = self.members.keys().copied().collect();
            let seen = all.into_iter().filter(|sequence| !self.members[sequence].standings.is_empty());
            for sequence in seen.collect::<Vec<_>>() {
                (0..classes).for_each(|class| self.rescore(model, rate, sequence, class, now));
            }
        }
        for sequence in std::mem::take(&mut self.fresh) {
            // It may have left and come back.
            let Some(member) = self.members.get_mut(&sequence).filter(|member| member.standings.is_empty()) else {
                continue;
            };
            member.standings = vec![None; classes];
            let (deadline_at, rows) = (member.deadline_at, member.queued.rows);
            for class in 0..classes {
                if model.estimates.planned().classes()[class].batch < rows {
                    continue;
                }
                self.sizes[class].by_deadline.insert((deadline_at, sequence));
                self.sizes[class].rows += u64::from(rows);
                self.stand(model, rate, sequence, class, now);
            }
        }
        while let Some(&(at, sequence, class)) = self.milestones.first() {
            if at > now {
                break;
            }
            self.rescore(model, rate, sequence, class, now);
        }
    }

    /// Works the score of a request in one size's queue out anew, if it is there.
    fn rescore(&mut self, model: &Model, rate: f64, sequence: u64, class: usize, now: Timestamp) {
        let Some(member) = self.members.get_mut(&sequence) else { return };
        let Some(standing) = member.standings[class].take() else { return };
        self.sizes[class].hull.remove(standing.point);
        self.milestones.remove(&(standing.milestone, sequence, class));
        self.stand(model, rate, sequence, class, now);
    }

    /// Puts a request into one size's hull, or takes it out of that size's queue if it is too late for it.
    fn stand(&mut self, model: &Model, rate: f64, sequence: u64, class: usize, now: Timestamp) {
        let Some(member) = self.members.get_mut(&sequence) else { return };
        let (takes, pieces) = batch_time(model, member.queued.kind, class);
        let drop_at = member.deadline_at - takes;
        let size = &mut self.sizes[class];
        if now > drop_at {
            size.by_deadline.remove(&(member.deadline_at, sequence));
            size.rows -= u64::from(member.queued.rows);
            return;
        }
        let since = |at: Timestamp| at.since(self.base).as_nanos() as f64;
        let (x, y, next) = score(rate, takes, pieces, since(member.deadline_at), since(now));
        let change_at =
            if next.is_finite() { self.base + Duration::from_nanos(next as u64 + 1) } else { Timestamp::NEVER };
        // One past: at the very last instant it is still in time.
        let milestone = change_at.max(now + Duration::from_nanos(1)).min(drop_at + Duration::from_nanos(1));
        let point = Point { x, y, id: sequence };
        size.hull.insert(point);
        self.milestones.insert((milestone, sequence, class));
        member.standings[class] = Some(OrlojStanding { point, milestone });
    }

    fn insert(&mut self, place: Place, queued: Queued) {
        let member = Member { deadline_at: place.deadline_at, queued, standings: Vec::new() };
        self.members.insert(place.sequence, member);
        self.by_deadline.insert((place.deadline_at, place.sequence));
        self.fresh.push(place.sequence);
    }

    fn remove(&mut self, Place { deadline_at, sequence, .. }: Place) {
        let Some(member) = self.members.remove(&sequence) else { return };
        self.by_deadline.remove(&(deadline_at, sequence));
        for (class, standing) in member.standings.iter().enumerate() {
            let Some(standing) = standing else { continue };
            let size = &mut self.sizes[class];
            size.hull.remove(standing.point);
            size.by_deadline.remove(&(deadline_at, sequence));
            size.rows -= u64::from(member.queued.rows);
            self.milestones.remove(&(standing.milestone, sequence, class));
        }
    }

    /// The size of the next batch: of those that enough requests are in time for, the one whose first deadline is last;
    /// of equal ones the largest.
    fn size(&self, model: &Model) -> Option<usize> {
        let classes = model.estimates.planned().classes();
        let full = |class: &usize| {
            let size = &self.sizes[*class];
            // A request of 3 rows alone fills no size of 1, 2, 4, but needs the 4.
            let least = if *class == 0 { 1 } else { u64::from(classes[*class - 1].batch) + 1 };
            let enough = if *class == 0 { least } else { u64::from(classes[*class].batch) };
            !size.by_deadline.is_empty() && (size.rows >= enough && classes[*class].pays || self.needs(*class, least))
        };
        let first = |class: &usize| (self.sizes[*class].by_deadline.first().map(|(at, _)| *at), classes[*class].batch);
        (0..classes.len()).filter(full).max_by_key(first)
    }

    /// Whether the first request of a size's queue fits into no smaller one.
    fn needs(&self, class: usize, least: u64) -> bool {
        let first = self.sizes[class].by_deadline.first().and_then(|(_, sequence)| self.members.get(sequence));
        first.is_some_and(|member| class > 0 && u64::from(member.queued.rows) >= least)
    }

    /// Takes the best requests for a size out of its hull. The caller removes them from everything else.
    fn pop(&mut self, class: usize, batch: u32, slope: f64, members: &mut Vec<Queued>) -> Timestamp {
        members.clear();
        let (mut rows, mut earliest) = (0, Timestamp::NEVER);
        while let Some(best) = self.sizes[class].hull.best(slope) {
            let Some(member) = self.members.get(&best.id) else { break };
            if rows + member.queued.rows > batch {
                break;
            }
            rows += member.queued.rows;
            earliest = earliest.min(member.deadline_at);
            members.push(member.queued);
            self.sizes[class].hull.remove(best);
        }
        earliest
    }
}

impl Policy for Orloj {
    fn learn(&mut self, _view: &View<'_>, fact: Fact) {
        match fact {
            Fact::ModelAdded(model) => _ = anew(&mut self.models, model.index()),
            Fact::Queued { model, place, queued, .. } if place.deadline_at != Timestamp::NEVER => {
                self.models[model.index()].insert(place, queued);
                self.active.insert(model);
            }
            Fact::Dequeued(model, place) => {
                let entry = &mut self.models[model.index()];
                entry.remove(place);
                if entry.members.is_empty() {
                    self.active.remove(&model);
                }
            }
            _ => {}
        }
    }

    fn next_batch(&mut self, view: &View<'_>, device: DeviceId, opening: Opening) -> Option<Batch> {
        let start_at = opening.free_at;
        let here = self.active.iter().filter(|&&model| view.queues.holds(device, model));
        let first = |model: &ModelId| self.models[model.index()].by_deadline.first().map(|(at, _)| *at);
        let mut waiting: Vec<(Option<Timestamp>, ModelId)> = here.map(|model| (first(model), *model)).collect();
        waiting.sort_unstable();
        for (_, model) in waiting {
            let there = view.ledger.model(model);
            let entry = &mut self.models[model.index()];
            entry.settle(there, self.rate, start_at);
            let Some(class) = entry.size(there) else { continue };
            let slope = libm::exp(self.rate * start_at.since(entry.base).as_nanos() as f64);
            let size = &there.estimates.planned().classes()[class];
            let latest = entry.pop(class, size.batch, slope, &mut self.members);
            if self.members.is_empty() {
                continue;
            }
            let candidate = Candidate { class, expected: size.busy_mean(), latest };
            return Some(Batch::of(model, candidate, &self.members));
        }
        None
    }
}
