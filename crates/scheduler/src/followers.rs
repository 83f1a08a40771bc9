//! Calls that follow others: how many of them are about to come, and which device is kept for them.
//!
//! When a batch of calls is over it is known how many calls follow, and at which stages. The driver takes a moment to
//! make them, some tens of microseconds between its threads, and they come one by one. Who starts with the first of
//! them tears apart what was one batch; so does who gives their device to somebody else.
//!
//! ```text
//!  the batch ends    it is reported      calls follow     the last one is there, or it has taken too long
//!  ──────┬─────────────────┬───────────────┬──┬──┬──┬───────────────────┬───
//!                          │ the device is kept, and who is there waits │
//! ```
//!
//! A call may come before the report of the batch that it follows: both are under way at once.

use crate::event::PipelineSpec;
use base::{DeviceId, Duration, Timestamp};
use std::collections::VecDeque;

/// Below half a call nobody is waited for: where data decides how many there are, only their mean is known.
const NOBODY: f64 = 0.5;

/// The last one counts for one part in so many of what calls lately took to follow.
const LAGS: u64 = 8;

/// What follows a batch that is over.
#[derive(Clone, Debug)]
pub(crate) struct Coming {
    /// How many calls are still to come, by stage.
    pub calls: Vec<(u32, f64)>,
    /// The stage that they follow, and when it was reported.
    pub after: u32,
    pub since: Timestamp,
    /// Until when they are waited for.
    pub until: Timestamp,
    /// From then on, whoever comes isn't taken for one of them.
    pub forgotten_at: Timestamp,
    /// The device that is kept for them.
    pub device: Option<DeviceId>,
}

/// A stage, and how others follow it.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// The one stage before it. Stages behind several begin when all of these are over, which nobody foresees here.
    after: Option<u32>,
    /// Its calls in hand.
    in_hand: u32,
    /// Its calls that came before the report of the batch that they follow.
    early: u32,
    /// How long it lately took from the report of a batch to the last call that follows it.
    lag: Option<Duration>,
}

/// The calls of one pipeline that are about to come.
#[derive(Clone, Debug)]
pub(crate) struct Followers {
    flows: Vec<Flow>,
    /// In the order in which batches were over.
    coming: VecDeque<Coming>,
}

impl Followers {
    pub fn new(spec: &PipelineSpec) -> Self {
        let after = |stage: usize| {
            let before = |(_, before): &(u32, &Vec<u32>)| before.contains(&(stage as u32));
            let mut all = (0..).zip(spec.stages.iter().map(|stage| &stage.next)).filter(before);
            all.next().filter(|_| all.next().is_none()).map(|(index, _)| index)
        };
        let flow = |stage| Flow { after: after(stage), ..Flow::default() };
        Self { flows: (0..spec.stages.len()).map(flow).collect(), coming: VecDeque::new() }
    }

    /// How many calls follow so many of a stage, by stage.
    pub fn of(&self, spec: &PipelineSpec, stage: u32, calls: u32) -> Vec<(u32, f64)> {
        let of = &spec.stages[stage as usize];
        let foreseen = of.next.iter().filter(|&&next| self.flows[next as usize].after == Some(stage));
        let each = |next: u32| spec.stages[next as usize].calls / of.calls;
        foreseen.map(|&next| (next, f64::from(calls) * each(next))).collect()
    }

    /// Whether stages follow each other as in another pipeline.
    pub fn is_like(&self, other: &Self) -> bool {
        let after = |followers: &Self| followers.flows.iter().map(|flow| flow.after).collect::<Vec<_>>();
        after(self) == after(other)
    }

    /// Gives up calls that should have come long ago.
    fn forget(&mut self, now: Timestamp) {
        self.coming.retain(|coming| coming.forgotten_at > now);
    }

    /// A call is in hand.
    pub fn entered(&mut self, stage: u32) {
        self.flows[stage as usize].in_hand += 1;
    }

    /// A call has its outcome.
    pub fn left(&mut self, stage: u32) {
        let flow = &mut self.flows[stage as usize];
        flow.in_hand = flow.in_hand.saturating_sub(1);
    }

    /// A batch is over and others follow; whether they are still to come. Some may be there already.
    pub fn expect(&mut self, now: Timestamp, mut coming: Coming) -> bool {
        self.forget(now);
        for (stage, calls) in &mut coming.calls {
            let early = &mut self.flows[*stage as usize].early;
            *calls -= f64::from(std::mem::take(early));
        }
        coming.calls.retain(|&(_, calls)| calls >= NOBODY);
        let some = !coming.calls.is_empty();
        if some {
            self.coming.push_back(coming);
        }
        some
    }

    /// A call has come; the device that is kept for nobody any more.
    pub fn came(&mut self, now: Timestamp, stage: u32) -> Option<DeviceId> {
        self.forget(now);
        let of = |coming: &mut Coming| coming.calls.iter().position(|&(next, _)| next == stage);
        let found = self.coming.iter_mut().enumerate().find_map(|(index, coming)| Some((index, of(coming)?)));
        let Some((index, place)) = found else {
            let after = self.flows[stage as usize].after;
            if after.is_some_and(|after| self.flows[after as usize].in_hand > 0) {
                self.flows[stage as usize].early += 1;
            }
            return None;
        };
        let coming = &mut self.coming[index];
        coming.calls[place].1 -= 1.0;
        if coming.calls[place].1 < NOBODY {
            coming.calls.swap_remove(place);
        }
        if !coming.calls.is_empty() {
            return None;
        }
        let Coming { after, since, device, .. } = self.coming.remove(index)?;
        let lag = &mut self.flows[after as usize].lag;
        let took = now.since(since);
        *lag = Some(lag.map_or(took, |lag| (lag * (LAGS - 1) + took) / LAGS));
        device
    }

    /// How long it takes until the last call is there that follows a stage, if that was seen.
    pub fn lag(&self, stage: u32) -> Option<Duration> {
        self.flows[stage as usize].lag
    }

    /// Whether calls of a stage are about to come.
    pub fn are_coming(&self, now: Timestamp, stage: u32) -> bool {
        let awaited = |coming: &Coming| coming.until > now && coming.calls.iter().any(|&(next, _)| next == stage);
        self.flows[stage as usize].early > 0 || self.coming.iter().any(awaited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::StageSpec;
    use base::{ModelId, PipelineId};

    fn at(micros: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_micros(micros)
    }

    /// Stage 0, then 1 with two calls for each and 2 with one, then 3 behind both.
    fn spec() -> PipelineSpec {
        let stage =
            |next: &[u32], calls| StageSpec { model: ModelId(0), next: next.to_vec(), calls, gap: Duration::ZERO };
        let stages = vec![stage(&[1, 2], 1.0), stage(&[3], 2.0), stage(&[3], 1.0), stage(&[], 1.0)];
        PipelineSpec { pipeline: PipelineId(0), stages }
    }

    fn coming(calls: Vec<(u32, f64)>) -> Coming {
        let (since, until, forgotten_at) = (at(0), at(100), at(1_000));
        Coming { calls, after: 0, since, until, forgotten_at, device: Some(DeviceId(7)) }
    }

    #[test]
    fn so_many_follow_as_stages_call_and_none_where_others_must_be_over_first() {
        let followers = Followers::new(&spec());
        assert_eq!(followers.of(&spec(), 0, 3), [(1, 6.0), (2, 3.0)]);
        assert_eq!(followers.of(&spec(), 1, 4), []);
    }

    #[test]
    fn a_device_is_kept_until_the_last_of_all_stages_has_come() {
        let mut followers = Followers::new(&spec());
        let calls = followers.of(&spec(), 0, 1);
        assert!(followers.expect(at(0), coming(calls)));
        assert_eq!(followers.came(at(1), 1), None);
        assert_eq!(followers.came(at(2), 2), None);
        assert!(followers.are_coming(at(3), 1) && !followers.are_coming(at(3), 2));
        assert_eq!(followers.lag(0), None);
        assert_eq!(followers.came(at(3), 1), Some(DeviceId(7)));
        assert!(!followers.are_coming(at(3), 1));
        assert_eq!(followers.lag(0), Some(Duration::from_micros(3)));
    }

    #[test]
    fn who_came_before_the_report_is_counted_when_it_is_there() {
        let mut followers = Followers::new(&spec());
        followers.entered(0);
        assert_eq!(followers.came(at(1), 2), None);
        assert!(followers.are_coming(at(1), 2), "the batch that it follows isn't reported yet");
        followers.left(0);
        assert!(!followers.expect(at(0), coming(vec![(2, 1.0)])));
        assert!(!followers.are_coming(at(2), 2));
    }

    #[test]
    fn who_comes_much_later_is_not_taken_for_one_of_them() {
        let mut followers = Followers::new(&spec());
        assert!(followers.expect(at(0), coming(vec![(2, 2.0)])));
        assert!(!followers.are_coming(at(100), 2), "nobody waits any longer");
        assert_eq!(followers.came(at(200), 2), None, "it is one of them, late");
        assert_eq!(followers.came(at(1_000), 2), None, "it isn't");
        assert!(followers.coming.is_empty());
    }
}
