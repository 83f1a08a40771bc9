//! Endpoints: what is asked like a model and answered by several.
//!
//! ```text
//!  endpoint.toml ─> repository ─> publisher ─> `plan`: do its parts fit? ─> catalogue ─> gateway asks the members
//!                                     ^                                 └─> controller: stages for the scheduler
//!                                     └── again whenever a member comes, goes or changes
//! ```

mod gaps;
mod plan;
mod resolve;
mod selection;
mod selection_store;

pub use gaps::{KnownPipeline, StageMeter};
pub use plan::{FanOut, InputPart, PipelinePlan, PlannedWork, StageInput, StagePlan};

pub(crate) use self::selection::Selections;
pub use self::selection::{SelectionMember, SelectionPlan, SelectionState, ShadowPlace};

use crate::catalogue::CatalogueEntry;
use std::sync::Arc;

/// An endpoint that can be asked.
#[derive(Debug)]
pub struct Endpoint {
    /// The models and endpoints that it asks, as they were when it was planned.
    pub members: Vec<EndpointMember>,
    /// How many endpoints are below one another, with this one.
    pub(crate) depth: usize,
    /// How it makes answers of theirs.
    pub how: EndpointPlan,
}

impl Endpoint {
    /// The models of a pipeline, in the order of stages, by name and version: those that should be in one cell.
    pub(crate) fn models_in_order(&self) -> Vec<(String, u64)> {
        // Members that are asked at once, or one instead of another, needn't be in one cell.
        let EndpointPlan::Pipeline { plan, .. } = &self.how else { return Vec::new() };
        let model = |stage: &StagePlan| {
            let PlannedWork::Member(member) = stage.work else { return None };
            let entry = &self.members.get(member)?.entry;
            entry.serving()?.model().map(|_| (entry.name.clone(), entry.version))
        };
        let mut models: Vec<(String, u64)> = Vec::new();
        for model in plan.stages.iter().filter_map(model) {
            if !models.contains(&model) {
                models.push(model);
            }
        }
        models
    }
}

/// A model, or another endpoint, that an endpoint asks.
#[derive(Debug)]
pub struct EndpointMember {
    /// Whether the endpoint names the version; otherwise it is the one that a request without a version gets.
    pub is_pinned: bool,
    /// What was there when it was planned. It can be asked.
    pub entry: Arc<CatalogueEntry>,
}

/// How an endpoint makes its answers.
#[derive(Debug)]
pub enum EndpointPlan {
    /// By a graph of models.
    Pipeline {
        /// The graph.
        plan: PipelinePlan,
        /// What the scheduler knows of it; `None` where its models are in several cells.
        known: Option<KnownPipeline>,
    },
    /// By selecting among models.
    Selection(Box<SelectionPlan>),
}
