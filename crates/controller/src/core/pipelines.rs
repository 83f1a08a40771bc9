//! Pipelines as the cell's scheduler knows them. Requests go by the plan that was there when they came. When a model of
//! that plan gets a successor meanwhile, the scheduler is told of it: else it would find the model gone, and refuse
//! every request that needs it later.

use super::Core;
use crate::Inner;
use base::{ModelNumber, PipelineId, Timestamp};
use scheduler::{Event, PipelineSpec};
use std::collections::BTreeMap;

/// What the scheduler was told last, with the numbers of the models that it has.
pub(super) type ToldPipelines = BTreeMap<PipelineId, PipelineSpec<ModelNumber>>;

impl Core {
    /// Tells the scheduler of a pipeline. Without one of its models it stays as it is known: requests that no longer
    /// need that one go on.
    pub(super) fn announce_pipeline(&mut self, inner: &Inner, now: Timestamp, spec: PipelineSpec<ModelNumber>) {
        let Some(spec) = spec.with_models(|model| self.latest(inner, model)) else { return };
        let told = spec.clone().with_models(|model| Some(model.id())).expect("each number has an id");
        self.pipelines.insert(spec.pipeline, spec);
        self.step(inner, now, Event::PipelineAdded(told));
    }

    /// Nobody goes by a pipeline any more.
    pub(super) fn forget_pipeline(&mut self, inner: &Inner, now: Timestamp, pipeline: PipelineId) {
        self.pipelines.remove(&pipeline);
        self.step(inner, now, Event::PipelineRemoved(pipeline));
    }

    /// A model has a successor: so have the stages that it computes.
    pub(super) fn succeed_in_pipelines(&mut self, inner: &Inner, now: Timestamp, model: ModelNumber) {
        let needs = |spec: &&PipelineSpec<ModelNumber>| spec.stages.iter().any(|stage| stage.model == model);
        let specs: Vec<PipelineSpec<ModelNumber>> = self.pipelines.values().filter(needs).cloned().collect();
        specs.into_iter().for_each(|spec| self.announce_pipeline(inner, now, spec));
    }

    /// A model's number in this cell, or that of its last successor; `None` if that isn't here.
    fn latest(&self, inner: &Inner, mut model: ModelNumber) -> Option<ModelNumber> {
        while let Some((cell, successor)) = self.departures.successor(inner, model) {
            if cell != self.cell {
                return None;
            }
            model = successor;
        }
        self.there(model).map(|_| model)
    }
}
