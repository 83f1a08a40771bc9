//! Requests that several models answer as one: stages follow each other, calls share a batch, what is lost is lost at
//! once.

#![allow(clippy::unwrap_used, reason = "a test that finds something else than it expects should stop")]

mod common;

use base::{Duration, ModelId, PipelineId, Timestamp};
use common::{model, world};
use scheduler::{Config, Event, PipelineSpec, Scheduler, StageSpec};
use sim::checkers::WholesEndOnce;
use sim::{Invariant, Observation, Observer, PipelineSetup, Setup, Tally, Traffic, Violation};
use workload::Arrival;

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn stage(model: u32, next: &[u32], calls: u32, gap_ms: u64) -> (StageSpec, Vec<u32>) {
    let (next, gap) = (next.to_vec(), millis(gap_ms));
    (StageSpec { model: ModelId(model), next, calls: f64::from(calls), varies: false, gap }, vec![calls])
}

/// A world of two models, of which each call takes 2.5 ms alone, with one pipeline.
fn pipeline(stages: &[(StageSpec, Vec<u32>)], slo_ms: u64, timeouts: Option<&[u64]>) -> Setup {
    let mut setup = world(vec![model(0, None), model(1, None)], 2, 14, 1);
    setup.scheduler = Config::default();
    setup.pipelines = vec![PipelineSetup {
        spec: PipelineSpec { pipeline: PipelineId(0), stages: stages.iter().map(|(stage, _)| stage.clone()).collect() },
        slo: Some(millis(slo_ms)),
        calls: stages.iter().map(|(_, calls)| calls.clone()).collect(),
        timeouts: timeouts.map(|timeouts| timeouts.iter().map(|&ms| millis(ms)).collect()),
        group: 0,
    }];
    setup
}

/// What the scheduler is told of, and in how many batches it runs.
#[derive(Default)]
struct Seen {
    stages: Vec<u32>,
    cancelled: usize,
    batches: Vec<usize>,
}

impl Observer for Seen {
    fn observe(&mut self, _at: Timestamp, seen: &Observation<'_>) -> Result<(), Violation> {
        match seen {
            Observation::Told(Event::StageSubmitted(_, at)) => self.stages.push(at.stage),
            Observation::Told(Event::Cancelled(_)) => self.cancelled += 1,
            Observation::ExecutionStarted(execution) => self.batches.push(execution.requests.len()),
            _ => {}
        }
        Ok(())
    }
}

/// Requests for the pipeline at these times, after one at 0 that loads the weights and isn't counted.
fn run(mut setup: Setup, at: &[u64]) -> (Tally, Seen) {
    setup.warmup = millis(100);
    let arrival = |at: u64| Arrival { offset: millis(at), model: setup.models.len() as u32 };
    let arrivals: Vec<Arrival> = at.iter().map(|&at| arrival(at)).collect();
    let traffic = Traffic { open: Some(Box::new(arrivals.into_iter())), closed: None };
    let mut seen = Seen::default();
    let result = sim::run_with(&setup, traffic, Scheduler::new(setup.scheduler.clone()), &mut seen).unwrap();
    (result.meter.total(), seen)
}

#[test]
fn stages_follow_each_other_and_what_is_between_takes_its_time() {
    let (total, seen) = run(pipeline(&[stage(0, &[1], 1, 3), stage(1, &[], 1, 1)], 100, None), &[0, 500]);
    assert_eq!((total.sent, total.good), (1, 1));
    let took = total.latency.max().as_millis_f64();
    assert!((took - (2.5 + 3.0 + 2.5 + 1.0)).abs() < 0.02, "{took}");
    assert_eq!(seen.stages, [0, 1, 0, 1]);
    assert_eq!((total.work, total.wasted), (millis(5), Duration::ZERO));
}

#[test]
fn calls_of_one_stage_share_a_batch_and_the_next_one_waits_for_all() {
    let (total, seen) = run(pipeline(&[stage(0, &[1], 4, 0), stage(1, &[], 1, 0)], 100, None), &[0, 500]);
    assert_eq!(total.good, 1);
    assert_eq!(seen.stages, [0, 0, 0, 0, 1, 0, 0, 0, 0, 1]);
    assert!(seen.batches.contains(&3) || seen.batches.contains(&4), "{:?}", seen.batches);
}

#[test]
fn work_for_a_request_that_a_later_stage_loses_is_wasted() {
    // Each stage is sent with a time-out, and the second has less than a call takes.
    let stages = [stage(0, &[1], 1, 0), stage(1, &[], 1, 0)];
    let (total, _) = run(pipeline(&stages, 100, Some(&[50, 1])), &[0, 500]);
    assert_eq!((total.good, total.refusals()), (0, 1));
    assert_eq!((total.work, total.wasted), (Duration::from_micros(2_500), Duration::from_micros(2_500)));
}

#[test]
fn a_request_that_cannot_be_met_does_no_work() {
    let (total, seen) = run(pipeline(&[stage(0, &[1], 1, 0), stage(1, &[], 1, 0)], 4, None), &[0, 500]);
    assert_eq!((total.good, total.refusals(), total.work), (0, 1, Duration::ZERO));
    assert_eq!(seen.stages, [0, 0], "nobody asks for a second stage");
}

#[test]
fn when_one_call_is_lost_the_others_are_cancelled_or_never_sent() {
    // The first stage's call waits for its weights; the second's has no time, and ends both. The third is never sent.
    let stages = [stage(0, &[], 1, 0), stage(1, &[], 1, 0), stage(1, &[], 1, 0)];
    let (total, seen) = run(pipeline(&stages, 100, Some(&[90, 1, 90])), &[200]);
    assert_eq!((total.good, total.refusals(), total.work), (0, 1, Duration::ZERO));
    assert_eq!((seen.cancelled, seen.batches.len()), (1, 0));
}

#[test]
fn a_stage_without_calls_is_over_at_once() {
    let mut setup = pipeline(&[stage(0, &[1], 1, 0), stage(1, &[], 1, 0)], 100, None);
    setup.pipelines[0].calls[1] = vec![0];
    let (total, seen) = run(setup, &[0, 500]);
    assert_eq!((total.good, seen.stages), (1, vec![0, 0]));
}

#[test]
fn whole_requests_end_once_and_in_time() {
    let at = |millis| Timestamp::ZERO + Duration::from_millis(millis);
    let sent = Observation::WholeSent { whole: 7, deadline_at: at(10) };
    let ended = |millis: u64| Observation::WholeEnded { whole: 7, good_at: Some(at(millis)) };
    let broken = |seen: &[Observation<'_>]| {
        let mut checker = WholesEndOnce::default();
        seen.iter().find_map(|seen| checker.observe(at(5), seen).err()).map(|violation| violation.invariant())
    };
    assert_eq!(broken(&[sent, ended(10), Observation::Over]), None);
    assert_eq!(broken(&[sent, ended(11)]), Some(Invariant::P2));
    assert_eq!(broken(&[sent, ended(9), ended(9)]), Some(Invariant::P1));
    assert_eq!(broken(&[sent, Observation::Over]), Some(Invariant::P1));
}
