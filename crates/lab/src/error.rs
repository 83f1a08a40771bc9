//! What can be wrong with an experiment, as sentences.

use sim::Violation;
use std::path::PathBuf;
use workload::TraceError;

/// Why an experiment can't be run. What a sentence says of its cause is in it, so that the cause isn't said once more
/// behind it.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A file can't be read.
    #[error("{path} can't be read: {reason}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: std::io::Error,
    },
    /// A file can't be written.
    #[error("{path} can't be written: {reason}")]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: std::io::Error,
    },
    /// The file isn't an experiment.
    #[error("{path} is not an experiment: {reason}")]
    Parse {
        /// Which.
        path: PathBuf,
        /// Why, with the line.
        reason: Box<toml::de::Error>,
    },
    /// A trace can't be used.
    #[error("{path}: {reason}")]
    Trace {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: TraceError,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// `punctual simulate` prints an error and all that is behind it.
    #[test]
    fn a_cause_is_said_once() {
        let reason = std::io::Error::from(std::io::ErrorKind::IsADirectory);
        let error = LabError::Read { path: "here".into(), reason };
        assert!(error.to_string().contains("directory"), "{error}");
        assert!(std::error::Error::source(&error).is_none());
    }
}
