//! What calls do: which of Triton's APIs they belong to, and which right they need.

use super::keys::Right;
use std::fmt;

/// Triton's divisions of its calls, which it calls APIs over HTTP and protocols over gRPC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Api {
    Health,
    Metadata,
    Inference,
    SharedMemory,
    ModelConfig,
    ModelRepository,
    Statistics,
    Trace,
    Logging,
}

impl Api {
    pub(crate) const ALL: [Self; 9] = [
        Self::Health,
        Self::Metadata,
        Self::Inference,
        Self::SharedMemory,
        Self::ModelConfig,
        Self::ModelRepository,
        Self::Statistics,
        Self::Trace,
        Self::Logging,
    ];

    /// Triton's name for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Health => "health",
            Self::Metadata => "metadata",
            Self::Inference => "inference",
            Self::SharedMemory => "shared-memory",
            Self::ModelConfig => "model-config",
            Self::ModelRepository => "model-repository",
            Self::Statistics => "statistics",
            Self::Trace => "trace",
            Self::Logging => "logging",
        }
    }
}

/// What a call does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Deed {
    AskHealth,
    ReadMetadata,
    Infer,
    ReadConfig,
    ReadStatistics,
    ReadModels,
    ReadRegions,
    ReadTrace,
    ReadLog,
    ReadShares,
    ChangeModels,
    ChangeRegions,
    ChangeTrace,
    ChangeLog,
    ChangeShares,
}

impl Deed {
    /// Which of Triton's divisions it belongs to. How GPUs are divided is for those who say which models there are.
    pub(crate) fn api(self) -> Api {
        match self {
            Self::AskHealth => Api::Health,
            Self::ReadMetadata => Api::Metadata,
            Self::Infer => Api::Inference,
            Self::ReadConfig => Api::ModelConfig,
            Self::ReadStatistics => Api::Statistics,
            Self::ReadModels | Self::ChangeModels | Self::ReadShares | Self::ChangeShares => Api::ModelRepository,
            Self::ReadRegions | Self::ChangeRegions => Api::SharedMemory,
            Self::ReadTrace | Self::ChangeTrace => Api::Trace,
            Self::ReadLog | Self::ChangeLog => Api::Logging,
        }
    }

    /// The right that it needs where keys are asked for. Health is for everybody.
    pub(crate) fn right(self) -> Option<Right> {
        match self {
            Self::AskHealth => None,
            Self::Infer => Some(Right::Infer),
            Self::ReadMetadata
            | Self::ReadConfig
            | Self::ReadStatistics
            | Self::ReadModels
            | Self::ReadRegions
            | Self::ReadTrace
            | Self::ReadLog
            | Self::ReadShares => Some(Right::Read),
            Self::ChangeModels | Self::ChangeRegions | Self::ChangeShares => Some(Right::Control),
            Self::ChangeTrace | Self::ChangeLog => Some(Right::Operate),
        }
    }

    /// Whether it is only for those who were named, wherever others reach the server. Settings of their own open models
    /// and shared memory.
    pub(crate) fn is_for_named(self) -> bool {
        matches!(self, Self::ChangeTrace | Self::ChangeLog | Self::ChangeShares)
    }

    /// Whether the server isn't the same afterwards.
    pub(crate) fn changes(self) -> bool {
        matches!(self.right(), Some(Right::Control | Right::Operate))
    }
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_the_server_needs_more_than_reading_it() {
        let changes = [Deed::ChangeModels, Deed::ChangeRegions, Deed::ChangeTrace, Deed::ChangeLog, Deed::ChangeShares];
        for deed in changes {
            assert!(deed.changes(), "{deed:?}");
            assert!(matches!(deed.right(), Some(Right::Control | Right::Operate)), "{deed:?}");
        }
        for deed in [Deed::ReadModels, Deed::ReadRegions, Deed::ReadTrace, Deed::ReadLog, Deed::ReadShares] {
            assert_eq!((deed.changes(), deed.right()), (false, Some(Right::Read)), "{deed:?}");
        }
        assert_eq!(Deed::AskHealth.right(), None);
    }
}
