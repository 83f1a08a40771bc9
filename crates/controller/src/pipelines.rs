//! Pipelines that schedulers know, and their numbers. Whoever plans a pipeline holds it, and so does every request that
//! goes by that plan: schedulers forget it with the last of them, and its number is another's then. So what they keep
//! grows with the pipelines that are there, and not with those that ever were.

use crate::messages::CellMessage;
use crate::{Controller, Inner};
use base::{ModelNumber, PipelineId, Timestamp};
use crossbeam_queue::SegQueue;
use scheduler::{PipelineSpec, StageSpec};
use std::sync::Weak;
use std::sync::atomic::{AtomicU32, Ordering};

/// Which numbers pipelines may have.
#[derive(Debug, Default)]
pub(crate) struct PipelineNumbers {
    /// Those of pipelines that are gone.
    left: SegQueue<PipelineId>,
    /// From here on none was ever given.
    fresh: AtomicU32,
}

impl PipelineNumbers {
    fn take(&self) -> PipelineId {
        self.left.pop().unwrap_or_else(|| PipelineId(self.fresh.fetch_add(1, Ordering::Relaxed)))
    }
}

/// A pipeline that a scheduler knows until this is dropped.
#[derive(Debug)]
pub struct AnnouncedPipeline {
    pipeline: PipelineId,
    inner: Weak<Inner>,
}

/// A stage for the calls of one request. What plans leave of its time for the answer's way is decided once for all of
/// them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PipelineStage {
    pub(crate) stage: scheduler::PipelineStage,
    /// When it was asked for: the stage, or the whole if that is said.
    pub(crate) asked_at: Timestamp,
}

impl PipelineStage {
    /// For a request that came then: its stages leave as much for the answer's way as the first one did.
    #[must_use]
    pub fn of_whole(self, arrived_at: Timestamp) -> Self {
        Self { asked_at: arrived_at, ..self }
    }
}

impl AnnouncedPipeline {
    /// By which schedulers know it.
    pub fn number(&self) -> PipelineId {
        self.pipeline
    }

    /// One of its stages, by the number that it was announced with, for all calls that a request makes there from now
    /// on.
    pub fn stage(&self, stage: u32) -> PipelineStage {
        let asked_at = self.inner.upgrade().map_or(Timestamp::ZERO, |inner| inner.clock.now());
        PipelineStage { stage: scheduler::PipelineStage { pipeline: self.pipeline, stage }, asked_at }
    }

    /// Says of which stages it is made from now on. Whether one scheduler has all of their models: otherwise none hears
    /// of it. Two that are said at once may be heard in either order.
    pub fn announce(&self, stages: Vec<StageSpec<ModelNumber>>) -> bool {
        let Some(inner) = self.inner.upgrade() else { return false };
        let Some((cell, _)) = stages.first().map(|stage| inner.home(stage.model)) else { return false };
        let local = |model| Some(inner.home(model)).filter(|home| home.0 == cell).map(|home| home.1);
        let Some(spec) = (PipelineSpec { pipeline: self.pipeline, stages }).with_models(local) else { return false };
        inner.put(cell, CellMessage::Announce(spec));
        inner.drive();
        true
    }
}

impl Drop for AnnouncedPipeline {
    fn drop(&mut self) {
        let Some(inner) = self.inner.upgrade() else { return };
        // All cells: its models may have been in another one before.
        (0..inner.cells.len()).for_each(|cell| inner.put(cell, CellMessage::ForgetPipeline(self.pipeline)));
        // Behind these messages: who has the number next is announced behind them.
        inner.pipelines.left.push(self.pipeline);
        inner.drive();
    }
}

impl Controller {
    /// Tells a scheduler of a pipeline with these stages; `None` where no scheduler has all of its models: its calls
    /// are requests like any other then.
    pub fn announce(&self, stages: Vec<StageSpec<ModelNumber>>) -> Option<AnnouncedPipeline> {
        let pipeline = self.inner.pipelines.take();
        let announced = AnnouncedPipeline { pipeline, inner: Weak::clone(&self.inner.myself) };
        announced.announce(stages).then_some(announced)
    }
}
