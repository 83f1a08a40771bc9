//! What can be wrong with an experiment, as sentences.

use sim::Violation;
use std::path::PathBuf;
use workload::TraceError;

/// Why an experiment can't be run.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A file can't be read.
    #[error("{path} can't be read: {source}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file can't be written.
    #[error("{path} can't be written: {source}")]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file isn't an experiment.
    #[error("{path} is not an experiment: {source}")]
    Parse {
        /// Which.
        path: PathBuf,
        /// Why, with the line.
        source: Box<toml::de::Error>,
    },
    /// A trace can't be used.
    #[error("{path}: {source}")]
    Trace {
        /// Which.
        path: PathBuf,
        /// Why.
        source: TraceError,
    },
    /// A value makes no sense.
    #[error("{0}")]
    Value(String),
    /// The scheduler broke a promise.
    #[error("policy {policy:?}, seed {seed}: {violation}")]
    Violation {
        /// Under which policy.
        policy: String,
        /// With which seed.
        seed: u64,
        /// Which.
        violation: Violation,
    },
}

impl LabError {
    pub(crate) fn value(message: impl Into<String>) -> Self {
        Self::Value(message.into())
    }
}
