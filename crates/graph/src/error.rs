//! Why a model can't be planned.

use std::path::PathBuf;

/// Each says what was wrong with which value, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
    /// A file can't be read.
    #[error("{}: {error}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The file isn't what it should be.
    #[error("it is not a readable ONNX file: {0}")]
    NotOnnx(String),
    /// An operator, or a use of one, that isn't there.
    #[error("operator {operator} of node {node:?} is not supported{why}: serve this model on a CPU device")]
    Unsupported {
        /// Which operator.
        operator: String,
        /// Which node.
        node: String,
        /// Empty, or what about it, with a leading blank.
        why: String,
    },
    /// A node that contradicts itself or its inputs.
    #[error("node {node:?} ({operator}): {reason}")]
    BadNode {
        /// Which operator.
        operator: String,
        /// Which node.
        node: String,
        /// What is wrong.
        reason: String,
    },
    /// A dimension that nobody gave a value.
    #[error(
        "dimension {position} ({name:?}) of input {input:?} is open: give its size under that name, or as {input}:{position}"
    )]
    OpenDimension {
        /// The input.
        input: String,
        /// Which of its dimensions.
        position: usize,
        /// Its name in the model, maybe empty.
        name: String,
    },
    /// A batch that the model doesn't take.
    #[error("input {input:?} has a fixed batch of {fixed}, not {asked}: export the model with an open first dimension")]
    FixedBatch {
        /// The input.
        input: String,
        /// What it takes.
        fixed: usize,
        /// What was asked for.
        asked: usize,
    },
}

impl GraphError {
    /// What isn't there, and where: one of a model's nodes may be left out for it.
    pub(crate) fn missing(&self) -> String {
        match self {
            Self::Unsupported { operator, node, why } => format!("{operator} {node:?}{why}"),
            other => other.to_string(),
        }
    }
}
