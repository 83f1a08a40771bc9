//! Pipelines: how much of what is left a stage may use, and since when it is known that the whole can't be met.
//!
//! A request for a pipeline comes once for each stage, and each time with the deadline of the whole. What the stages
//! that follow take on the longest way, with nothing else to do, is theirs: before it is the stage's *limit*. What is
//! left beyond what the stage itself takes is *slack*, which is split over it and those that follow. So a stage has a
//! deadline of its own, by which it is queued, batched and matched with devices as any other request.
//!
//! ```text
//!             own deadline            limit
//!  ──┬─────────────┬────────────────────┬──────────────────────┤ deadline of the whole
//!   now  takes, slack    others' slack    what the others take
//! ```
//!
//! With `Split::Load` the deadline is decided again when it can't be met: whoever finds no device by then goes on with
//! all that is left until the limit. It is refused when there is no time for it before its limit: the work that was
//! done for it until then is lost, and no more is done. So that this is rare, first stages are refused in advance where
//! devices are short: as large a part of them as keeps losses at later stages at one in eighty.
//!
//! And stages await each other then (`followers.rs`): calls that follow others start with those that come with them,
//! and the device that a batch leaves is kept for the calls that follow it, which are there a moment later and have the
//! least time.

use crate::Scheduler;
use crate::config::Split;
use crate::event::{Command, Outcome, PipelineSpec, PipelineStage, Rejection, Request, StageSpec};
use crate::followers::{BatchOver, Followers};
use crate::policy::Fact;
use crate::queue::Queued;
use crate::requests::{RequestInHand, State};
use crate::table::grown;
use base::{DeviceId, Duration, ModelId, PipelineId, RequestId, Timestamp, margins};

/// So much of the slack is kept for each stage that follows, times the part of the devices that was busy lately. Of
/// `traffic` on four devices, with twice what its longest way takes, half of it for each stage loses a sixth of the
/// rate, and so does a split that makes batches cheapest as if each stage's requests came one by one; from a tenth to
/// three tenths it is about the same (docs/notes/022-pipelines.md).
const KEPT: f64 = 0.3;
/// And no more than this for all of them together.
const MOST_KEPT: f64 = 0.5;

/// Of the requests that a first stage lets in, this part may be lost at later ones before fewer are let in,
const LOST_LATER: f64 = 0.0125;
/// and by this part fewer with each that is. Smaller steps leave much work to be done for nothing when a load rises;
/// larger ones take chance for change.
const STEP: f64 = 0.02;
/// At least the first part is let in, so that it is seen when times get better. What is above all of them is a reserve:
/// the losses of a moment, about twenty, change nothing.
const LET_IN: (f64, f64) = (0.1, 1.5);
/// Without losses everybody is let in again after so long, also where few come.
const FORGOTTEN: Duration = Duration::from_secs(10);

/// A number that no model has.
const NOBODY: ModelId = ModelId(u32::MAX);

impl PipelineSpec {
    /// Whether its stages are a graph: each before those that follow it, with calls that take place.
    pub fn is_sound(&self) -> bool {
        let count = self.stages.len() as u32;
        let follows = |(index, next): (u32, &[u32])| next.iter().all(|&next| index < next && next < count);
        let calls = self.stages.iter().all(|stage| stage.calls > 0.0 && stage.calls.is_finite());
        calls && (0..).zip(self.stages.iter().map(|stage| stage.next.as_slice())).all(follows)
    }
}

/// What batches of calls go by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CallPlace {
    /// Whether other calls were before it, so that work is lost with it.
    pub follows: bool,
    /// Whether other calls come behind it.
    pub goes_on: bool,
}

/// A pipeline, and how many of its requests are let in.
#[derive(Clone, Debug)]
struct Graph {
    spec: PipelineSpec,
    /// The stage with which every request begins, with one call, where there is one such.
    begins_with: Option<u32>,
    /// Which part of the requests is let in, and what of them is due to be.
    let_in: f64,
    due: f64,
    /// As of when.
    since: Timestamp,
    /// The deadline of the request that was lost last: it is lost once, with however many calls.
    lost_last: Timestamp,
    followers: Followers,
}

impl Graph {
    fn new(spec: PipelineSpec) -> Self {
        let mut first = (0..spec.stages.len() as u32).filter(|&stage| !follows(&spec, stage));
        let alone = first.next().filter(|&stage| first.next().is_none() && spec.stages[stage as usize].calls <= 1.0);
        let begins_with = alone.filter(|_| spec.stages.len() > 1);
        let (since, lost_last, followers) = (Timestamp::ZERO, Timestamp::ZERO, Followers::new(&spec));
        Self { spec, begins_with, let_in: LET_IN.1, due: 0.0, since, lost_last, followers }
    }

    /// A request comes to the first stage; whether it is let in.
    fn lets_in(&mut self, now: Timestamp) -> bool {
        let passed = now.since(std::mem::replace(&mut self.since, now)).as_secs_f64() / FORGOTTEN.as_secs_f64();
        self.due += self.let_in.min(1.0);
        let lets_in = self.due >= 1.0;
        self.due -= f64::from(u8::from(lets_in));
        let gained = passed + if lets_in { STEP * LOST_LATER } else { 0.0 };
        self.let_in = (self.let_in + gained).min(LET_IN.1);
        lets_in
    }

    /// A request with that deadline is lost at a later stage.
    fn lost(&mut self, deadline_at: Timestamp) {
        if std::mem::replace(&mut self.lost_last, deadline_at) != deadline_at {
            self.let_in = (self.let_in * (1.0 - STEP)).max(LET_IN.0);
        }
    }
}

/// Whether other stages come before one.
fn follows(spec: &PipelineSpec, stage: u32) -> bool {
    spec.stages.iter().any(|before| before.next.contains(&stage))
}

/// A stage that is in hand.
#[derive(Clone, Copy, Debug)]
struct StageInHand {
    request: RequestId,
    at: PipelineStage,
    /// When the whole can no longer be met if this stage isn't done.
    limit_at: Timestamp,
    /// Until when it counts as done: what comes next is refused if it is too late.
    done_by: Timestamp,
    /// What the others take, and the driver between them.
    rest: Duration,
    /// What passes between its end and the calls behind it, at most: on the longest way of steps.
    gap: Duration,
    /// What its batch goes by, where that is something else than with requests that are no calls.
    call: Option<CallPlace>,
}

/// All pipelines, and the stages in hand, by slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pipelines {
    graphs: Vec<Option<Graph>>,
    stages: Vec<Option<StageInHand>>,
}

impl Pipelines {
    pub fn add(&mut self, spec: PipelineSpec) {
        assert!(spec.is_sound(), "the stages of {} are no graph", spec.pipeline);
        let pipeline = spec.pipeline.index();
        let there = grown(&mut self.graphs, pipeline);
        let before = there.take();
        let graph = Graph::new(spec);
        *there = Some(match before {
            Some(Graph { let_in, due, since, lost_last, followers, .. }) => {
                let followers = if followers.is_like(&graph.followers) { followers } else { graph.followers };
                Graph { let_in, due, since, lost_last, followers, ..graph }
            }
            None => graph,
        });
    }

    pub fn remove(&mut self, pipeline: PipelineId) {
        if let Some(there) = self.graphs.get_mut(pipeline.index()) {
            *there = None;
        }
    }

    /// The number of a model that is gone is another's from now on: calls that still need it are refused until the
    /// pipeline is announced anew. Those behind it go on.
    pub fn forget_model(&mut self, model: ModelId) {
        let stages = self.graphs.iter_mut().flatten().flat_map(|graph| &mut graph.spec.stages);
        stages.filter(|stage| stage.model == model).for_each(|stage| stage.model = NOBODY);
    }

    fn of(&self, stage: PipelineStage) -> Option<&PipelineSpec> {
        let spec = &self.graphs.get(stage.pipeline.index())?.as_ref()?.spec;
        (stage.stage < spec.stages.len() as u32).then_some(spec)
    }

    /// Whether a request that has come to a stage is let in as far as the stages behind it go.
    fn lets_in(&mut self, now: Timestamp, stage: PipelineStage) -> bool {
        let Some(Some(graph)) = self.graphs.get_mut(stage.pipeline.index()) else { return true };
        graph.begins_with != Some(stage.stage) || graph.lets_in(now)
    }

    /// A request is lost, at a stage of a pipeline perhaps.
    pub fn lost(&mut self, request: RequestId) {
        let Some(&StageInHand { at, limit_at, rest, .. }) = self.get(request) else { return };
        let Some(Some(graph)) = self.graphs.get_mut(at.pipeline.index()) else { return };
        if graph.begins_with.is_some_and(|first| first != at.stage) {
            graph.lost(limit_at + rest);
        }
    }

    /// A request is in hand, at a stage.
    fn enter(&mut self, stage: StageInHand) {
        if let Some(followers) = self.followers_mut(stage.at) {
            followers.entered(stage.at.stage);
        }
        *grown(&mut self.stages, stage.request.slot as usize) = Some(stage);
    }

    /// A request has its outcome.
    pub fn forget(&mut self, request: RequestId) {
        let Some(stage) = self.stages.get_mut(request.slot as usize).and_then(Option::take) else { return };
        if let Some(followers) = self.followers_mut(stage.at) {
            followers.left(stage.at.stage);
        }
    }

    fn followers_mut(&mut self, stage: PipelineStage) -> Option<&mut Followers> {
        let graph = self.graphs.get_mut(stage.pipeline.index())?.as_mut()?;
        ((stage.stage as usize) < graph.spec.stages.len()).then_some(&mut graph.followers)
    }

    /// What a request's batch goes by, if it is a call of a pipeline.
    pub fn call(&self, request: RequestId) -> Option<CallPlace> {
        self.get(request)?.call
    }

    /// When those are there that come together with a call, which follows others and came then; its batch takes so
    /// long.
    pub fn gathered_at(&self, now: Timestamp, call: &Queued, takes: Duration) -> Timestamp {
        let there = self.get(call.id).and_then(|stage| {
            self.of(stage.at)?;
            let followers = &self.graphs[stage.at.pipeline.index()].as_ref()?.followers;
            Some(followers.gathered_at(now, stage.at.stage, (call.arrived_at, takes)))
        });
        there.unwrap_or(call.arrived_at)
    }

    /// A request that is a stage of a pipeline.
    fn get(&self, request: RequestId) -> Option<&StageInHand> {
        self.stages.get(request.slot as usize)?.as_ref().filter(|stage| stage.request == request)
    }
}

/// A stage on the longest way to the end.
#[derive(Clone, Copy, Debug)]
struct Leg {
    /// What one call takes, with nothing else to do.
    takes: Duration,
    /// The same of as many as are usual, in one batch.
    together: Duration,
    /// What passes between its end and the next one's beginning, or the answer.
    gap: Duration,
}

/// What is planned for a stage.
struct StagePlan {
    /// Its own deadline.
    due_at: Timestamp,
    limit_at: Timestamp,
    done_by: Timestamp,
}

impl Scheduler {
    /// A request has come to a stage.
    pub(crate) fn stage_submitted(&mut self, request: Request, stage: PipelineStage, out: &mut Vec<Command>) {
        if request.deadline_at != Timestamp::NEVER {
            self.call_came(stage);
        }
        let Some(legs) = self.legs(&request, stage) else {
            let outcome = Outcome::Rejected(Rejection::ModelUnavailable);
            return out.push(Command::Finish { request: request.id, outcome });
        };
        self.foresee(stage);
        if request.deadline_at == Timestamp::NEVER {
            return self.submitted(request, out);
        }
        let StagePlan { due_at, limit_at, done_by } = self.plan(&request, &legs);
        let (rest, gap) = (request.deadline_at.since(limit_at), legs[0].gap);
        let call = self.call_of(stage, legs.len() > 1);
        self.pipelines.enter(StageInHand { request: request.id, at: stage, limit_at, done_by, rest, gap, call });
        let at_most = Request { deadline_at: limit_at, ..request };
        let own = Request { deadline_at: due_at, ..request };
        self.sequence += 1;
        self.write_down(&own);
        self.share_out();
        self.prepare_for(&own);
        let mut admitted = self.admit(&own).map(|device| (own, device));
        if self.config.split == Split::Load {
            if admitted.is_err() {
                admitted = self.admit(&at_most).map(|device| (at_most, device));
            }
            if !self.pipelines.lets_in(self.now, stage) && admitted.is_ok() {
                admitted = Err(Rejection::Overloaded { earliest_at: self.earliest_after_queue(&request) });
            }
        }
        match admitted {
            Ok((request, device)) => self.enqueue(request, device),
            Err(Rejection::DeadlineUnreachable { .. }) if let Some(device) = self.device_to_try(&at_most) => {
                self.try_alone(at_most, device, out);
            }
            Err(rejection) => {
                self.pipelines.lost(request.id);
                self.pipelines.forget(request.id);
                // It may have been the last one that others waited for.
                if call.is_some_and(|call| call.follows) {
                    self.tell(Fact::Gathered(request.model));
                }
                self.refuse(&own, rejection.later_by(rest), out);
            }
        }
    }

    fn call_of(&self, stage: PipelineStage, goes_on: bool) -> Option<CallPlace> {
        let spec = self.pipelines.of(stage).filter(|_| self.config.split == Split::Load)?;
        Some(CallPlace { follows: follows(spec, stage.stage), goes_on })
    }

    /// A batch was done by then, which had taken so long: calls follow it. Their device is kept for them where some can
    /// run there: whoever waits for a device would have it in their place, and they have the least time. The batches
    /// that are ready then go by when they must start.
    pub(crate) fn await_followers(
        &mut self,
        device: DeviceId,
        (ended_at, took): (Timestamp, Duration),
        requests: &[RequestId],
    ) {
        // Nobody follows in imagination: what comes is what came.
        if !self.learns || requests.iter().all(|&request| self.pipelines.call(request).is_none()) {
            return;
        }
        let mut batches: Vec<(PipelineStage, BatchOver)> = Vec::new();
        for &request in requests {
            let Some(&StageInHand { at: stage, gap, done_by, call, .. }) = self.pipelines.get(request) else {
                continue;
            };
            let is_wanted = self.requests.get(request).is_some_and(|entry| entry.state != State::Abandoned);
            if !call.is_some_and(|call| call.goes_on) || ended_at > done_by || !is_wanted {
                continue;
            }
            match batches.iter_mut().find(|(of, _)| *of == stage) {
                Some((_, over)) => (over.gap, over.calls) = (over.gap.max(gap), over.calls + 1),
                None => {
                    let (at, device) = (self.now, Some(device));
                    let over = BatchOver { at, ended_at, took, stage: stage.stage, calls: 1, gap, device };
                    batches.push((stage, over));
                }
            }
        }
        batches.into_iter().for_each(|(stage, over)| self.await_calls(stage, over));
    }

    fn await_calls(&mut self, stage: PipelineStage, mut over: BatchOver) {
        let Some(Some(Graph { spec, followers, .. })) = self.pipelines.graphs.get_mut(stage.pipeline.index()) else {
            return;
        };
        let Some(StageSpec { next, .. }) = spec.stages.get(stage.stage as usize) else { return };
        let next: Vec<ModelId> = next.iter().map(|&next| spec.stages[next as usize].model).collect();
        let there = |model: &ModelId| self.ledger.models.get(model.index()).and_then(Option::as_ref);
        let is_there = |device: &DeviceId| next.iter().filter_map(there).any(|model| model.is_loaded_on(*device));
        over.device = over.device.filter(is_there);
        match (over.device, followers.expect(spec, over)) {
            (Some(device), Some(until)) => {
                let kept = &mut self.ledger.device_mut(device).kept_until;
                *kept = (*kept).max(until);
                self.kept_until = self.kept_until.max(until);
            }
            // Those that came early may be all: they wait for nobody any more. A model may be gone, or not there yet.
            _ => {
                let there = next.into_iter().filter(|&model| there(&model).is_some()).collect::<Vec<_>>();
                there.into_iter().for_each(|model| self.tell(Fact::Gathered(model)));
            }
        }
    }

    /// A call has come to a stage. Where it was the last one that its device is kept for, the device is free; where the
    /// data decides how many come, it is after a silence.
    fn call_came(&mut self, stage: PipelineStage) {
        if self.config.split != Split::Load || !self.learns {
            return;
        }
        let (now, followers) = (self.now, self.pipelines.followers_mut(stage));
        let Some((device, until)) = followers.and_then(|followers| followers.came(now, stage.stage)) else { return };
        if let Some(Some(there)) = self.ledger.devices.get_mut(device.index())
            && there.kept_until > now
        {
            there.kept_until = until;
            self.kept_until = self.kept_until.max(until);
            self.set_hungry(device);
            if until <= now {
                self.touched.push(device);
            }
        }
    }

    /// Where somebody's time runs out before devices are no longer kept, they aren't any more (P10). That ends with a
    /// timer, which may be late.
    pub(crate) fn keep_from_nobody(&mut self) {
        if self.queues.next_expiry().is_none_or(|at| at > self.kept_until + margins::UNSURE) {
            return;
        }
        self.kept_until = Timestamp::ZERO;
        let kept = |device: &DeviceId| self.ledger.device(*device).kept_until > self.now;
        for device in self.ledger.device_ids().filter(kept).collect::<Vec<_>>() {
            self.ledger.device_mut(device).kept_until = Timestamp::ZERO;
            self.set_hungry(device);
            self.touched.push(device);
        }
    }

    /// The longest way from a stage to the end; `None` where a model on any way isn't served.
    fn legs(&self, request: &Request, stage: PipelineStage) -> Option<Vec<Leg>> {
        let spec = self.pipelines.of(stage)?;
        let way = if self.config.policy.counts_the_way() { self.config.delay.of(1) } else { Duration::ZERO };
        let heard = self.config.delay.control;
        let first = stage.stage as usize;
        // For each stage from the last one on: what it and those behind it take, itself, and who follows on that way.
        let mut ways: Vec<(Duration, Option<Leg>, usize)> = vec![(Duration::ZERO, None, 0); spec.stages.len()];
        for (index, stage) in spec.stages.iter().enumerate().skip(first).rev() {
            let model = if index == first { request.model } else { stage.model };
            let there = self.ledger.models.get(model.index())?.as_ref().filter(|model| !model.removed)?;
            let calls = (libm::ceil(stage.calls) as u32).min(there.estimates.planned().max_batch());
            let of = |rows: u32| way + self.ledger.quickest(there, rows);
            let (takes, together) =
                if index == first { (self.alone(request), Duration::ZERO) } else { (of(1), of(calls)) };
            let (behind, next) =
                stage.next.iter().map(|&next| (ways[next as usize].0, next as usize)).max().unwrap_or_default();
            let gap = if next == 0 { stage.gap } else { stage.gap + heard };
            ways[index] = (takes + gap + behind, Some(Leg { takes, together, gap }), next);
        }
        let mut legs = Vec::with_capacity(spec.stages.len() - first);
        let mut at = first;
        loop {
            legs.push(ways[at].1?);
            at = ways[at].2;
            if at == 0 {
                return Some(legs);
            }
        }
    }

    /// What a stage may use of what is left.
    fn plan(&self, request: &Request, legs: &[Leg]) -> StagePlan {
        let whole_at = request.deadline_at;
        let (own, others) = (legs[0], &legs[1..]);
        let gaps: Duration = legs.iter().map(|leg| leg.gap).sum();
        let takes: Duration = legs.iter().map(|leg| leg.takes).sum();
        let limit_at = whole_at - own.gap - others.iter().map(|leg| leg.takes + leg.gap).sum::<Duration>();
        let done_by = if others.is_empty() { limit_at } else { whole_at };
        let left = whole_at.since(self.now) - gaps;
        let due_at = match self.config.split {
            _ if others.is_empty() => limit_at,
            Split::Equal => self.now + left / legs.len() as u64,
            Split::Profile => self.now + left.mul_f64(own.takes.as_secs_f64() / takes.as_secs_f64().max(1e-9)),
            Split::Load => {
                let needed = own.takes + others.iter().map(|leg| leg.together).sum::<Duration>();
                self.now + own.takes + self.own_slack(legs, left - needed)
            }
        };
        StagePlan { due_at: due_at.min(limit_at), limit_at, done_by }
    }

    /// How much of what nobody needs the first of these stages should have. Its requests come one by one and wait for
    /// company. Those that are done come to the next stage together, as they were batched, and mostly need no more
    /// there than a device, for which they wait the longer the busier devices are.
    fn own_slack(&self, legs: &[Leg], slack: Duration) -> Duration {
        let kept = KEPT * self.ledger.in_use * (legs.len() - 1) as f64;
        slack.mul_f64(1.0 - kept.min(MOST_KEPT))
    }

    /// Later stages will be asked for: weights that are nowhere are loaded while earlier stages run, and those that are
    /// somewhere stay.
    fn foresee(&mut self, stage: PipelineStage) {
        let Some(spec) = self.pipelines.of(stage) else { return };
        let mut coming = vec![false; spec.stages.len()];
        coming[stage.stage as usize] = true;
        let mut models = Vec::new();
        for (index, stage) in spec.stages.iter().enumerate() {
            if coming[index] {
                stage.next.iter().for_each(|&next| coming[next as usize] = true);
                models.extend(stage.next.iter().map(|&next| spec.stages[next as usize].model));
            }
        }
        for model in models {
            if self.ledger.model(model).residency.is_empty() {
                self.expected(model);
            } else if !self.ledger.everything_fits() {
                let devices: Vec<_> = self.ledger.model(model).loaded_devices().collect();
                devices.into_iter().for_each(|device| self.ledger.touch(self.now, model, device));
            }
        }
    }

    /// Until when a request that was executed counts as done.
    pub(crate) fn done_by(&self, request: &Request) -> Timestamp {
        self.pipelines.get(request.id).map_or(request.deadline_at, |stage| stage.done_by)
    }

    /// What the rest of its pipeline takes, for who is told when it could have been answered.
    pub(crate) fn rest_of(&self, request: RequestId) -> Duration {
        self.pipelines.get(request).map_or(Duration::ZERO, |stage| stage.rest)
    }

    /// The deadline that a stage has instead of one that can't be met; `None` where there is no time for it before its
    /// limit.
    pub(crate) fn later_deadline(&self, request: &Request) -> Option<Timestamp> {
        if self.config.split != Split::Load {
            return None;
        }
        let limit_at = self.pipelines.get(request.id)?.limit_at;
        let model = self.ledger.model(request.model);
        let cold = if model.residency.is_empty() { model.estimates.load() } else { Duration::ZERO };
        let possible = limit_at > request.deadline_at && self.now + cold + self.alone(request) <= limit_at;
        possible.then_some(limit_at)
    }

    /// Gives a queued request another deadline.
    pub(crate) fn postpone(&mut self, id: RequestId, deadline_at: Timestamp) {
        let RequestInHand { request, place, arrived_at, .. } =
            *self.requests.get(id).expect("queued requests are in hand");
        let model = request.model;
        self.take_out(model, place);
        let entry = self.requests.get_mut(id).expect("it is in hand");
        entry.request.deadline_at = deadline_at;
        entry.place.deadline_at = deadline_at;
        let place = entry.place;
        let queued = Queued { id, rows: request.rows, arrived_at, kind: self.kind_of(&request) };
        self.queues.insert(&self.ledger, model, place, queued);
        self.tell(Fact::Queued { model, place, queued, again: true });
        if !self.config.policy.matches() {
            self.touch_hungry(model);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(next: &[u32], calls: f64) -> StageSpec {
        StageSpec { model: ModelId(0), next: next.to_vec(), calls, varies: false, gap: Duration::ZERO }
    }

    fn graph(stages: Vec<StageSpec>) -> Graph {
        Graph::new(PipelineSpec { pipeline: PipelineId(0), stages })
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn stages_that_lead_back_or_nowhere_make_no_graph() {
        let sound = |stages| PipelineSpec { pipeline: PipelineId(0), stages }.is_sound();
        assert!(sound(vec![stage(&[1, 2], 1.0), stage(&[2], 0.5), stage(&[], 4.0)]));
        assert!(!sound(vec![stage(&[1], 1.0), stage(&[0], 1.0)]), "a circle");
        assert!(!sound(vec![stage(&[0], 1.0)]), "itself");
        assert!(!sound(vec![stage(&[1], 1.0)]), "nobody");
        assert!(!sound(vec![stage(&[], 0.0)]), "a stage without calls");
    }

    #[test]
    fn only_who_begins_with_one_call_is_refused_for_what_comes_later() {
        assert_eq!(graph(vec![stage(&[1], 1.0), stage(&[], 3.0)]).begins_with, Some(0));
        assert_eq!(graph(vec![stage(&[1], 2.0), stage(&[], 1.0)]).begins_with, None, "its calls would be torn apart");
        assert_eq!(graph(vec![stage(&[], 1.0), stage(&[], 1.0)]).begins_with, None);
        assert_eq!(graph(vec![stage(&[], 1.0)]).begins_with, None, "nothing comes later");
    }

    #[test]
    fn the_losses_of_a_moment_change_nothing() {
        let mut graph = graph(vec![stage(&[1], 1.0), stage(&[], 1.0)]);
        (0..20).for_each(|number| graph.lost(at(number)));
        assert!((0..1_000).all(|_| graph.lets_in(at(0))));
    }

    #[test]
    fn a_request_with_many_calls_is_lost_once() {
        let mut graph = graph(vec![stage(&[1], 1.0), stage(&[], 100.0)]);
        (0..100).for_each(|_| graph.lost(at(5)));
        assert!((0..100).all(|_| graph.lets_in(at(0))), "one of them was lost");
        (0..100).for_each(|number| graph.lost(at(number)));
        assert!(!(0..100).all(|_| graph.lets_in(at(0))), "a hundred were");
    }

    #[test]
    fn where_half_is_too_much_half_is_let_in_and_again_all_when_times_are_better() {
        let mut graph = graph(vec![stage(&[1], 1.0), stage(&[], 1.0)]);
        let (mut let_in, mut lost, mut served) = (0, 0, 0.0_f64);
        for number in 0..40_000_u64 {
            // Later stages have time for every second one that comes.
            served = (served + 0.5).min(2.0);
            if !graph.lets_in(at(number / 4)) {
                continue;
            }
            let counts = u32::from(number >= 20_000);
            let_in += counts;
            if served >= 1.0 {
                served -= 1.0;
            } else {
                lost += counts;
                graph.lost(at(number));
            }
        }
        assert!((9_500..11_000).contains(&let_in), "{let_in} of 20,000");
        assert!(lost * 100 < let_in * 4, "{lost} of {let_in}");
        graph.lets_in(at(20_000));
        assert!((0..100).all(|_| graph.lets_in(at(20_000))));
    }
}
