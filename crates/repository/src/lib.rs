//! Triton's model repository on disk: layout, config.pbtxt, changes, cached profiles.
//!
//! ```text
//!  <repository>/<model>/<version>/model.onnx
//!                      /config.pbtxt            optional
//!  <repository>/<endpoint>/endpoint.toml
//! ```
//!
//! `Repository::scan` says what is there now; a `Watcher` says what has changed since. What each part of a
//! configuration means is written in `docs/model-repository.md`.

mod batching;
mod changes;
mod check;
mod complete;
mod config;
mod endpoint;
mod findings;
mod json;
mod kept;
mod manifest;
mod meaning;
#[cfg(feature = "cloud")]
mod mirror;
mod parameters;
mod positions;
mod profiles;
mod read;
mod scan;
mod schema;
mod sequences;
mod source;
mod sources;
#[cfg(feature = "cloud")]
mod store;
mod text;
mod values;
mod warmup;
mod watch;

pub use changes::{Change, Changes};
pub use check::disagreements;
pub use complete::{Known, complete, complete_endpoint, note_precision, platform};
pub use config::{
    ConfigError, Emulation, ModelConfig, ProfileInput, QueuePolicy, Queueing, TensorConfig, VersionPolicy,
    WARMUP_FOLDER, WarmupData, WarmupInput, WarmupSample,
};
pub use endpoint::{
    ENDPOINT_FILE, EndpointKind, MemberName, PipelineConfig, SelectionConfig, StageConfig, StageWork, StepConfig,
};
pub use findings::{BatchFinding, Finding, FindingKey, FindingStore, PrecisionFinding, SizesFinding, TriedPrecision};
pub use manifest::Manifest;
pub use profiles::{ProfileKey, ProfileStore, StoredProfile, machine};
pub use scan::{Broken, Fingerprint, FoundModel, Repository, RepositoryError, ScanEntry, is_model_name};
pub use sequences::{
    INITIAL_STATE_FOLDER, InitialState, SequenceConfig, SequenceControl, SequenceSignal, SequenceState,
};
pub use source::{Bucket, RepositorySource, StoreKind};
pub use sources::{SourceError, Sources, Transfer, WantedModels};
pub use text::TextPosition;
pub use watch::{WatchOptions, Watcher};
