//! Pipelines that schedulers know, and their numbers. Whoever plans a pipeline holds it, and so does every request that
//! goes by that plan: schedulers forget it with the last of them, and its number is another's then. So what they keep
//! grows with the pipelines that are there, and not with those that ever were.

use crate::messages::CellMessage;
use crate::{Controller, Inner};
use base::{ModelNumber, PipelineId};
use crossbeam_queue::SegQueue;
use scheduler::{PipelineSpec, PipelineStage, StageSpec};
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

impl AnnouncedPipeline {
    /// One of its stages, by the number that it was announced with.
    pub fn stage(&self, stage: u32) -> PipelineStage {
        PipelineStage { pipeline: self.pipeline, stage }
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
