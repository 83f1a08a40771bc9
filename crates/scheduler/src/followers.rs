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
use base::{DeviceId, Duration, Timestamp, margins};
use std::collections::VecDeque;

/// What calls that follow others wait for each other, and a device for them, is one part in so many of what their batch
/// takes, or the device has just done, at most.
const WORTH_WAITING: u64 = 16;
/// Below half a call nobody is waited for: of some stages only the mean is known.
const NOBODY: f64 = 0.5;
/// Where the data decides how many calls there are, the last one has come when so long none did.
const QUIET: Duration = Duration::from_micros(20);
/// No more calls than this are kept that came before the report of their batch.
const MOST_EARLY: usize = 1024;
/// The last one counts for one part in so many of what calls lately took to follow.
const LAGS: u64 = 8;

/// A batch that is over, and whom it is known by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchOver {
    /// When it was reported.
    pub at: Timestamp,
    /// When it was over.
    pub ended_at: Timestamp,
    /// What it took.
    pub took: Duration,
    /// The stage of its calls, and how many it had.
    pub stage: u32,
    pub calls: u32,
    /// What the driver does behind them.
    pub gap: Duration,
    /// The device, if calls that follow can run there.
    pub device: Option<DeviceId>,
}

/// What follows a batch that is over.
#[derive(Clone, Debug)]
struct Coming {
    /// How many calls are still to come, by stage.
    calls: Vec<(u32, f64)>,
    /// Whether the data decides how many.
    varies: bool,
    /// The stage that they follow, when it was over, and when the last of them came.
    after: u32,
    since: Timestamp,
    last_at: Option<Timestamp>,
    /// Until when they are waited for, and until when at most: where the data decides, a silence ends it.
    until: Timestamp,
    at_most: Timestamp,
    /// From then on, whoever comes isn't taken for one of them.
    forgotten_at: Timestamp,
    /// The device that is kept for them.
    device: Option<DeviceId>,
}

/// A stage, and how others follow it.
#[derive(Clone, Debug, Default)]
struct Flow {
    /// The one stage before it. Stages behind several begin when all of these are over, which nobody foresees here.
    after: Option<u32>,
    /// Whether it isn't known how many of its calls follow one of the stage before.
    varies: bool,
    /// Its calls in hand.
    in_hand: u32,
    /// When calls of it came before the report of the batch that they follow, as it seems.
    early: VecDeque<Timestamp>,
    /// When its last call came.
    last_at: Timestamp,
    /// How long it lately took from the report of one of its batches to the last call that follows.
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
        let flow = |stage: usize| {
            let before = |(_, before): &(u32, &Vec<u32>)| before.contains(&(stage as u32));
            let mut all = (0..).zip(spec.stages.iter().map(|stage| &stage.next)).filter(before);
            let after = all.next().filter(|_| all.next().is_none()).map(|(index, _)| index);
            let is_one = |after: u32| spec.stages[after as usize].calls == 1.0 && !spec.stages[after as usize].varies;
            let varies = spec.stages[stage].varies || after.is_some_and(|after| !is_one(after));
            Flow { after, varies, ..Flow::default() }
        };
        Self { flows: (0..spec.stages.len()).map(flow).collect(), coming: VecDeque::new() }
    }

    /// Whether stages follow each other as in another pipeline.
    pub fn is_like(&self, other: &Self) -> bool {
        let order = |followers: &Self| followers.flows.iter().map(|flow| (flow.after, flow.varies)).collect::<Vec<_>>();
        order(self) == order(other)
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

    /// How many calls follow so many of a stage, by stage.
    fn of(&self, spec: &PipelineSpec, stage: u32, calls: u32) -> Vec<(u32, f64)> {
        let of = &spec.stages[stage as usize];
        let foreseen = of.next.iter().filter(|&&next| self.flows[next as usize].after == Some(stage));
        let each = |next: u32| spec.stages[next as usize].calls / of.calls;
        foreseen.map(|&next| (next, f64::from(calls) * each(next))).collect()
    }

    /// A batch is over, and others follow. Until when its device is kept for them; who is there already waits for
    /// nobody if all are.
    pub fn expect(&mut self, spec: &PipelineSpec, over: BatchOver) -> Option<Timestamp> {
        self.forget(over.at);
        let BatchOver { at, took, stage, gap, .. } = over;
        let mut calls = self.of(spec, stage, over.calls);
        for (stage, calls) in &mut calls {
            // Who came before the batch was over follows none that is still awaited.
            let early = std::mem::take(&mut self.flows[*stage as usize].early);
            let from = over.ended_at - margins::UNSURE;
            *calls -= early.iter().filter(|&&came_at| came_at >= from).count() as f64;
        }
        calls.retain(|&(_, calls)| calls >= NOBODY);
        if calls.is_empty() {
            return None;
        }
        let varies = calls.iter().any(|&(stage, _)| self.flows[stage as usize].varies);
        let lag = self.flows[stage as usize].lag.unwrap_or(gap);
        // Twice what it takes on average: kept for too short a time, a device is kept for nothing.
        let (wait, most) = (lag * 2 + QUIET, took / WORTH_WAITING);
        let device = over.device.filter(|_| wait <= most);
        // Where the data decides, perhaps nobody comes.
        let waits = if varies && device.is_some() { wait } else { wait.max(most) };
        let (until, last_at) = (at + waits, None);
        let forgotten_at = until + took;
        let (after, since, at_most) = (stage, at, until);
        self.coming.push_back(Coming { calls, varies, after, since, last_at, until, at_most, forgotten_at, device });
        device.map(|_| until)
    }

    /// A call has come. The device that was kept for it and others, and until when it still is.
    pub fn came(&mut self, now: Timestamp, stage: u32) -> Option<(DeviceId, Timestamp)> {
        self.forget(now);
        let flow = &mut self.flows[stage as usize];
        flow.last_at = now;
        let of = |coming: &Coming| coming.calls.iter().position(|&(next, calls)| next == stage && calls >= NOBODY);
        // The last batch first: who never comes would be taken for one of the next ones, and they for others, for ever.
        let found = self.coming.iter().enumerate().rev().find_map(|(index, coming)| Some((index, of(coming)?)));
        let Some((index, place)) = found else {
            if let Some(after) = flow.after
                && self.flows[after as usize].in_hand > 0
            {
                let early = &mut self.flows[stage as usize].early;
                early.push_back(now);
                if early.len() > MOST_EARLY {
                    early.pop_front();
                }
            }
            return None;
        };
        let coming = &mut self.coming[index];
        coming.calls[place].1 -= 1.0;
        coming.last_at = Some(now);
        if coming.varies {
            coming.until = coming.at_most.min(now + QUIET);
            return coming.device.map(|device| (device, coming.until));
        }
        if coming.calls.iter().any(|&(_, calls)| calls >= NOBODY) {
            return None;
        }
        let coming = self.coming.remove(index)?;
        self.learn(&coming);
        coming.device.map(|device| (device, now))
    }

    /// Gives up calls that should have come by now.
    fn forget(&mut self, now: Timestamp) {
        let is_over = |it: &Coming| it.forgotten_at <= now || it.varies && it.last_at.is_some() && it.until <= now;
        while let Some(index) = self.coming.iter().position(is_over) {
            let coming = self.coming.remove(index).expect("it was found there");
            self.learn(&coming);
        }
    }

    fn learn(&mut self, coming: &Coming) {
        let Some(last_at) = coming.last_at else { return };
        let (took, lag) = (last_at.since(coming.since), &mut self.flows[coming.after as usize].lag);
        *lag = Some(lag.map_or(took, |lag| (lag * (LAGS - 1) + took) / LAGS));
    }

    /// When the calls of a stage are there that come together with one that came then, whose batch takes so long.
    pub fn gathered_at(&self, now: Timestamp, stage: u32, (came_at, takes): (Timestamp, Duration)) -> Timestamp {
        let flow = &self.flows[stage as usize];
        let wait = takes / WORTH_WAITING;
        if flow.varies {
            return came_at + wait.min(flow.last_at.since(came_at) + QUIET);
        }
        let awaited = |it: &Coming| it.until > now && it.calls.iter().any(|it| it.0 == stage && it.1 >= NOBODY);
        let are_coming =
            flow.early.back().is_some_and(|&last_at| last_at >= came_at) || self.coming.iter().any(awaited);
        came_at + if are_coming { wait } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::StageSpec;
    use base::{ModelId, PipelineId};
    use std::ops::Range;

    fn at(micros: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_micros(micros)
    }

    /// Stage 0, then 1 with two calls for each and 2 with one, then 3 behind both.
    fn spec() -> PipelineSpec {
        let stage = |next: &[u32], calls| StageSpec {
            model: ModelId(0),
            next: next.to_vec(),
            calls,
            varies: false,
            gap: Duration::ZERO,
        };
        let stages = vec![stage(&[1, 2], 1.0), stage(&[3], 2.0), stage(&[3], 1.0), stage(&[], 1.0)];
        PipelineSpec { pipeline: PipelineId(0), stages }
    }

    fn over(at_us: u64, calls: u32) -> BatchOver {
        let (took, gap, device) = (Duration::from_millis(16), Duration::ZERO, Some(DeviceId(7)));
        BatchOver { at: at(at_us), ended_at: at(at_us), took, stage: 0, calls, gap, device }
    }

    /// When a call that came then, whose batch takes 1.6 ms, waits for no others any more, in microseconds.
    fn gathered_at(followers: &Followers, now: u64, stage: u32, came_at: u64) -> u64 {
        followers.gathered_at(at(now), stage, (at(came_at), Duration::from_micros(1_600))).as_nanos() / 1_000
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
        assert_eq!(followers.expect(&spec(), over(0, 1)), Some(at(1_000)));
        assert_eq!(followers.came(at(1), 1), None);
        assert_eq!(followers.came(at(2), 2), None);
        assert_eq!([1, 2].map(|stage| gathered_at(&followers, 3, stage, 3)), [103, 3]);
        assert_eq!(followers.flows[0].lag, None);
        assert_eq!(followers.came(at(4), 1), Some((DeviceId(7), at(4))));
        assert_eq!(gathered_at(&followers, 4, 1, 4), 4);
        assert_eq!(followers.flows[0].lag, Some(Duration::from_micros(4)));
    }

    #[test]
    fn where_the_data_decides_how_many_come_a_silence_says_that_all_are_there() {
        let mut spec = spec();
        spec.stages[1].varies = true;
        let mut followers = Followers::new(&spec);
        assert_eq!(followers.expect(&spec, over(0, 1)), Some(at(20)), "perhaps nobody comes");
        assert_eq!(followers.came(at(5), 2), Some((DeviceId(7), at(20))));
        assert_eq!(followers.came(at(10), 1), Some((DeviceId(7), at(20))));
        assert_eq!(gathered_at(&followers, 10, 1, 10), 30);
        assert_eq!(followers.came(at(15), 1), Some((DeviceId(7), at(20))));
        assert_eq!(gathered_at(&followers, 15, 1, 10), 35, "one more than usual may come");
        assert_eq!(gathered_at(&followers, 15, 2, 15), 15);
        followers.forget(at(35));
        assert_eq!(followers.flows[0].lag, Some(Duration::from_micros(15)));
    }

    #[test]
    fn no_device_is_kept_for_those_that_take_too_long_to_come() {
        let mut followers = Followers::new(&spec());
        followers.expect(&spec(), over(0, 1));
        let _ = [1, 1, 2].map(|stage| followers.came(at(600), stage));
        assert_eq!(followers.flows[0].lag, Some(Duration::from_micros(600)));
        assert_eq!(followers.expect(&spec(), over(1_000, 1)), None);
        assert_eq!(gathered_at(&followers, 2_100, 2, 2_100), 2_200, "those that come wait for each other all the same");
    }

    #[test]
    fn who_came_before_the_report_is_counted_when_it_is_there() {
        let mut followers = Followers::new(&spec());
        followers.entered(0);
        assert_eq!(followers.came(at(1), 2), None);
        assert_eq!(gathered_at(&followers, 1, 2, 1), 101, "the batch that it follows isn't reported yet");
        followers.left(0);
        followers.expect(&spec(), over(2, 1));
        assert_eq!(gathered_at(&followers, 2, 2, 1), 1);
        assert_eq!(gathered_at(&followers, 2, 1, 2), 102);
    }

    #[test]
    fn who_comes_much_later_is_not_taken_for_one_of_them() {
        let mut followers = Followers::new(&spec());
        followers.expect(&spec(), over(0, 2));
        assert_eq!(gathered_at(&followers, 999, 2, 999), 1_099);
        assert_eq!(gathered_at(&followers, 1_000, 2, 1_000), 1_000, "nobody waits any longer");
        followers.came(at(16_999), 2);
        assert_eq!(followers.coming.len(), 1, "it is one of them, late");
        followers.came(at(17_000), 2);
        assert!(followers.coming.is_empty(), "it isn't");
    }

    /// A batch of four calls is over each millisecond, of 16 devices, and their calls follow within 40 us.
    fn stream(followers: &mut Followers, batches: Range<u64>, missing: impl Fn(u64) -> bool) {
        for batch in batches {
            let since = batch * 1_000;
            (0..4).for_each(|_| followers.entered(0));
            followers.expect(&line(), over(since, 4));
            (0..4).for_each(|_| followers.left(0));
            followers.entered(0);
            let calls = if missing(batch) { 1..4 } else { 1..5 };
            calls.for_each(|call| _ = followers.came(at(since + 10 * call), 1));
            followers.left(0);
        }
    }

    /// Two stages that follow each other.
    fn line() -> PipelineSpec {
        let mut spec = spec();
        spec.stages.truncate(2);
        (spec.stages[0].next, spec.stages[1].next, spec.stages[1].calls) = (vec![1], Vec::new(), 1.0);
        spec
    }

    /// The next batch's calls were taken for those that never came, and so on: more and more were awaited, ever longer.
    #[test]
    fn calls_that_never_come_are_given_up_while_others_do() {
        let mut followers = Followers::new(&line());
        stream(&mut followers, 0..10_000, |batch| batch % 10 == 0);
        assert!(followers.coming.len() < 5, "{} batches are awaited", followers.coming.len());
        assert!(followers.flows[0].lag < Some(Duration::from_micros(200)), "{:?}", followers.flows[0].lag);
        assert!(followers.expect(&line(), over(10_000_000, 4)).is_some());
    }

    /// They counted as those of the next batch, whose calls then counted as those of the one behind it, and so on: no
    /// device was kept any more until nothing was in hand for once.
    #[test]
    fn calls_that_come_much_too_late_are_not_taken_for_those_of_the_next_batch() {
        let mut followers = Followers::new(&line());
        stream(&mut followers, 0..10, |_| false);
        followers.entered(0);
        (0..4).for_each(|_| _ = followers.came(at(9_900), 1));
        stream(&mut followers, 10..11, |_| false);
        assert_eq!(followers.expect(&line(), over(11_000, 4)), Some(at(12_000)), "a device is kept");
        (0..3).for_each(|call| assert_eq!(followers.came(at(11_010 + call), 1), None));
        assert_eq!(followers.came(at(11_013), 1), Some((DeviceId(7), at(11_013))));
    }

    #[test]
    fn a_silence_begins_with_the_last_call_that_came() {
        let mut spec = line();
        spec.stages[1].varies = true;
        let mut followers = Followers::new(&spec);
        followers.flows[0].lag = Some(Duration::from_micros(100));
        assert_eq!(followers.expect(&spec, over(0, 4)), Some(at(220)));
        followers.entered(0);
        assert_eq!(followers.came(at(60), 1), Some((DeviceId(7), at(80))));
        assert_eq!(followers.came(at(75), 1), Some((DeviceId(7), at(95))), "it was no longer kept from 80 on");
        assert_eq!(followers.came(at(90), 1), Some((DeviceId(7), at(110))));
        assert_eq!(gathered_at(&followers, 90, 1, 60), 110);
    }
}
