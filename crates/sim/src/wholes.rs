//! Requests for pipelines: which stages are under way, what comes next, and how the whole ends.

use crate::PipelineSetup;
use crate::meter::RequestEnding;
use crate::observe::Observation;
use base::{Duration, RequestId, Timestamp};
use scheduler::PipelineStage;
use std::collections::BTreeMap;
use workload::Random;

/// The number of the stream of how many calls stages make.
const CALLS: u64 = 6 << 40;

/// One request for a pipeline.
#[derive(Clone, Debug)]
pub(crate) struct WholeRequest {
    pub(crate) pipeline: usize,
    pub(crate) client: Option<u32>,
    pub(crate) sent_at: Timestamp,
    /// When the client must have its answer.
    pub(crate) deadline_at: Timestamp,
    /// For each stage, how many before it aren't over, and how many of its own calls aren't.
    waits_for: Vec<u32>,
    calls_left: Vec<u32>,
    stages_left: usize,
    /// Its calls that are in hand.
    calls: Vec<RequestId>,
    /// How it ended, and when the client has its answer.
    pub(crate) ending: Option<(RequestEnding, Timestamp)>,
    /// When the last batch with a call of it ended.
    pub(crate) executed_at: Option<Timestamp>,
    /// Device time that was spent on it.
    pub(crate) work: Duration,
}

/// What follows from the end of a call.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct AfterCall {
    /// These stages begin, after so much time.
    pub(crate) next: Vec<(Duration, u32)>,
    /// These calls are of no use any more.
    pub(crate) cancel: Vec<RequestId>,
    /// All stages are over, the last one so long before the answer.
    pub(crate) done: Option<Duration>,
}

#[derive(Debug)]
pub(crate) struct Wholes {
    pub(crate) setups: Vec<PipelineSetup>,
    living: BTreeMap<u64, WholeRequest>,
    sent: u64,
    random: Random,
    /// What observers haven't seen yet.
    news: Vec<Observation<'static>>,
}

impl Wholes {
    pub(crate) fn new(setups: &[PipelineSetup], seed: u64) -> Self {
        Self {
            setups: setups.to_vec(),
            living: BTreeMap::new(),
            sent: 0,
            random: Random::new(seed, CALLS),
            news: Vec::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.living.is_empty()
    }

    pub(crate) fn get(&self, whole: u64) -> Option<&WholeRequest> {
        self.living.get(&whole)
    }

    /// A client asks for a pipeline: the number of the request, and the stages that begin.
    pub(crate) fn begin(
        &mut self,
        (pipeline, client): (usize, Option<u32>),
        sent_at: Timestamp,
        deadline_at: Timestamp,
    ) -> (u64, Vec<u32>) {
        let stages = &self.setups[pipeline].spec.stages;
        let mut waits_for = vec![0; stages.len()];
        stages.iter().flat_map(|stage| &stage.next).for_each(|&next| waits_for[next as usize] += 1);
        let first = (0..stages.len() as u32).filter(|&stage| waits_for[stage as usize] == 0).collect();
        let whole = WholeRequest {
            pipeline,
            client,
            sent_at,
            deadline_at,
            calls_left: vec![0; stages.len()],
            stages_left: stages.len(),
            waits_for,
            calls: Vec::new(),
            ending: None,
            executed_at: None,
            work: Duration::ZERO,
        };
        self.sent += 1;
        self.news.push(Observation::WholeSent { whole: self.sent, deadline_at });
        self.living.insert(self.sent, whole);
        (self.sent, first)
    }

    /// How many calls a stage that begins makes; none where the whole has ended meanwhile.
    pub(crate) fn calls(&mut self, whole: u64, stage: u32) -> Option<u32> {
        let there = self.living.get_mut(&whole).filter(|there| there.ending.is_none())?;
        let choice = &self.setups[there.pipeline].calls[stage as usize];
        let calls = choice[self.random.below(choice.len() as u32) as usize];
        there.calls_left[stage as usize] = calls;
        Some(calls)
    }

    pub(crate) fn called(&mut self, whole: u64, request: RequestId) {
        if let Some(there) = self.living.get_mut(&whole) {
            there.calls.push(request);
        }
    }

    /// A batch with a call of it ran, of which so much was for it.
    pub(crate) fn worked(&mut self, whole: u64, work: Duration, ended_at: Timestamp) {
        if let Some(there) = self.living.get_mut(&whole) {
            there.work += work;
            there.executed_at = Some(ended_at);
        }
    }

    /// A call is over, as it should be or not.
    pub(crate) fn call_ended(&mut self, whole: u64, (stage, request): (u32, RequestId), done: bool) -> AfterCall {
        let Some(there) = self.living.get_mut(&whole) else { return AfterCall::default() };
        there.calls.retain(|&other| other != request);
        if there.ending.is_some() {
            return AfterCall::default();
        }
        if !done {
            return AfterCall { cancel: there.calls.clone(), ..AfterCall::default() };
        }
        there.calls_left[stage as usize] -= 1;
        if there.calls_left[stage as usize] > 0 { AfterCall::default() } else { self.stage_ended(whole, stage) }
    }

    /// All calls of a stage are over.
    pub(crate) fn stage_ended(&mut self, whole: u64, stage: u32) -> AfterCall {
        let Some(there) = self.living.get_mut(&whole) else { return AfterCall::default() };
        let spec = &self.setups[there.pipeline].spec.stages[stage as usize];
        there.stages_left -= 1;
        let mut after = AfterCall::default();
        for &next in &spec.next {
            there.waits_for[next as usize] -= 1;
            if there.waits_for[next as usize] == 0 {
                after.next.push((spec.gap, next));
            }
        }
        after.done = (there.stages_left == 0).then_some(spec.gap);
        after
    }

    /// The whole has its outcome.
    pub(crate) fn end(&mut self, whole: u64, ending: RequestEnding, answered_at: Timestamp) {
        if let Some(there) = self.living.get_mut(&whole) {
            there.ending = Some((ending, answered_at));
        }
        let good_at = (ending == RequestEnding::Good).then_some(answered_at);
        self.news.push(Observation::WholeEnded { whole, good_at });
    }

    /// What has happened since it was last asked.
    pub(crate) fn take_news(&mut self) -> Vec<Observation<'static>> {
        std::mem::take(&mut self.news)
    }

    /// Calls of it that are in hand.
    pub(crate) fn in_hand(&self, whole: u64) -> Vec<RequestId> {
        self.living.get(&whole).map(|there| there.calls.clone()).unwrap_or_default()
    }

    /// It, if it has ended and no call of it is in hand any more.
    pub(crate) fn take_ended(&mut self, whole: u64) -> Option<WholeRequest> {
        let over = self.living.get(&whole)?.ending.is_some() && self.living[&whole].calls.is_empty();
        if over { self.living.remove(&whole) } else { None }
    }

    pub(crate) fn stage(pipeline: usize, stage: u32) -> PipelineStage {
        PipelineStage { pipeline: base::PipelineId(pipeline as u32), stage }
    }
}
