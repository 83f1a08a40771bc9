//! Models in service: which of the repository's models may be asked, and everything between their files and the
//! controller.
//!
//! ```text
//!  repository's changes ─┐                ┌─> bring_up: prepare, measure, warm up ─> Controller::publish
//!  clients' orders ──────┼─> publisher ───┤
//!  a look at the cells ──┤  (one thread)  ├─> Controller::withdraw
//!  improve: with time ───┤                └─> catalogue ─> gateway threads
//!  resize: as traffic is ┤
//!  live: as inputs are ──┘
//! ```
//!
//! A model is *published* and *withdrawn* here; whether its weights are *loaded* onto a device is the scheduler's
//! decision alone. To clients both are the same word, because Triton's protocol has one: a `load` of theirs publishes,
//! an `unload` withdraws.

mod balance;
mod batch_dimension;
mod bring_up;
mod catalogue;
mod control;
mod elements;
mod endpoints;
mod improve;
mod live;
mod manager;
mod poller;
mod precision;
mod profiler;
mod progress;
mod publisher;
mod queueing;
mod registry;
mod reshape;
mod resize;
mod rows;
mod runner;
mod samples;
mod sequences;
mod sizes;
mod uploads;
mod warmup;

pub use bring_up::model_source;
pub use catalogue::{AnsweredBy, Catalogue, CatalogueEntry, ModelState, ModelVersions, PublishedModel, ServedModel};
pub use control::{ControlError, ControlMode, ModelControl, PublishOrder};
pub use endpoints::{
    Endpoint, EndpointMember, EndpointPlan, FanOut, InputPart, KnownPipeline, PipelinePlan, PlannedWork,
    SelectionMember, SelectionPlan, SelectionState, ShadowPlace, StageInput, StageMeter, StagePlan,
};
pub use manager::{Manager, ManagerConfig, READY_SOON, StartProgress};
pub use precision::{PrecisionWishes, with_precision_alone};
pub use profiler::{ProfilingEffort, Runs, measure_alone};
pub use queueing::{Admitted, QueueLimits, QueuePlace};
pub use registry::Registry;
pub use repository::SequenceSignal;
pub use samples::Samples;
pub use sequences::{ControlRule, SequenceRules, StateRule};
