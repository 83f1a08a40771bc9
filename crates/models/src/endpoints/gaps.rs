//! What a pipeline's stages are seen to take that no scheduler knows, and how many calls they make: a scheduler that
//! knows the pipeline is told anew when that changes.

use super::plan::PipelinePlan;
use base::{Duration, ModelNumber};
use controller::{AnnouncedPipeline, PipelineStage};
use scheduler::StageSpec;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, TryLockError};

/// What is new counts for one part in so many.
const NEW: f64 = 8.0;
/// A scheduler is told anew when something is this part more or less than it was told,
const CHANGED: f64 = 0.25;
/// and, of times, more than this.
const WORTH_TELLING: Duration = Duration::from_micros(100);

/// What a stage was seen to take. Threads that meet here may lose one of their observations.
#[derive(Debug)]
pub struct StageMeter {
    nanos: AtomicU64,
    /// The bits of a number.
    calls: AtomicU64,
}

impl StageMeter {
    pub(crate) fn new(calls: f64) -> Self {
        Self { nanos: AtomicU64::new(0), calls: AtomicU64::new(calls.to_bits()) }
    }

    /// It took so long.
    pub fn took(&self, time: Duration) {
        let (before, now) = (self.nanos.load(Ordering::Relaxed), time.as_nanos());
        let next = if before == 0 { now as f64 } else { before as f64 + (now as f64 - before as f64) / NEW };
        self.nanos.store(next as u64, Ordering::Relaxed);
    }

    /// It made so many calls.
    pub fn called(&self, calls: usize) {
        let before = self.calls();
        self.calls.store((before + (calls as f64 - before) / NEW).to_bits(), Ordering::Relaxed);
    }

    fn time(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    fn calls(&self) -> f64 {
        f64::from_bits(self.calls.load(Ordering::Relaxed))
    }
}

/// A pipeline that a scheduler knows.
#[derive(Debug)]
pub struct KnownPipeline {
    /// For each stage of the plan its number there, where a model computes it.
    numbers: Vec<Option<u32>>,
    pub(crate) announced: AnnouncedPipeline,
    /// What the scheduler was told last.
    told: Mutex<Vec<StageSpec<ModelNumber>>>,
}

impl KnownPipeline {
    pub(crate) fn new(
        announced: AnnouncedPipeline,
        told: Vec<StageSpec<ModelNumber>>,
        numbers: Vec<Option<u32>>,
    ) -> Self {
        Self { numbers, announced, told: Mutex::new(told) }
    }

    /// A stage of the plan as the scheduler knows it.
    pub fn stage(&self, number: usize) -> Option<PipelineStage> {
        Some(self.announced.stage((*self.numbers.get(number)?)?))
    }

    /// Tells the scheduler what was seen, if that is something else than it was told. Never waits.
    pub fn tell(&self, plan: &PipelinePlan) {
        let mut told = match self.told.try_lock() {
            Ok(told) => told,
            Err(TryLockError::Poisoned(told)) => told.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let (mut changed, gaps) = (false, gaps(plan, &self.numbers));
        for (number, stage) in
            self.numbers.iter().enumerate().filter_map(|(at, number)| Some((at, (*number)? as usize)))
        {
            let Some(spec) = told.get_mut(stage) else { continue };
            // None at all can't be planned with.
            let (gap, calls) = (gaps[number], plan.stages[number].meter.calls().max(0.01));
            if differs(spec.gap.as_secs_f64(), gap.as_secs_f64())
                && (gap > spec.gap + WORTH_TELLING || spec.gap > gap + WORTH_TELLING)
            {
                (spec.gap, changed) = (gap, true);
            }
            if differs(spec.calls, calls) {
                (spec.calls, changed) = (calls, true);
            }
        }
        if changed {
            self.announced.announce(told.clone());
        }
    }
}

/// For each stage what the longest way behind it takes until the next one that a scheduler knows by a number, or the
/// end.
pub(super) fn gaps(plan: &PipelinePlan, numbers: &[Option<u32>]) -> Vec<Duration> {
    let mut gaps = vec![Duration::ZERO; plan.stages.len()];
    // Those that follow come later in the plan.
    for (number, stage) in plan.stages.iter().enumerate().rev() {
        let behind = |&next: &usize| match numbers.get(next) {
            Some(None) => plan.stages[next].meter.time() + gaps[next],
            _ => Duration::ZERO,
        };
        gaps[number] = stage.next.iter().map(behind).max().unwrap_or(Duration::ZERO);
    }
    gaps
}

fn differs(before: f64, now: f64) -> bool {
    (now - before).abs() > before.abs() * CHANGED
}
