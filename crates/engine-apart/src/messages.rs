//! What the server and the process of an engine say to one another.
//!
//! ```text
//!  | length, 4 bytes | message |      over the socket: what is seldom
//! ```
//!
//! Whoever reads on the server's side believes nothing of it: lengths are bounded, and [`crate::checks`] looks at the
//! rest.

use base::{DataType, ModelSignature, TensorSpec};
use engine::EngineError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Signatures are small, and so are most values that inputs have where nobody gives them.
const MAX_MESSAGE_BYTES: u32 = 64 << 20;
/// A sentence has no more characters.
const MAX_SENTENCE: usize = 2000;

/// What the inner engine is opened with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct InnerOptions {
    /// The runtime's library; `None` looks for it.
    pub library: Option<PathBuf>,
    /// Threads for one execution.
    pub threads: u16,
    /// What executions of one device may take together.
    pub workspace_bytes: u64,
}

/// The first thing that a process is told.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Beginning {
    pub(crate) options: InnerOptions,
    /// Whose end is its own.
    pub(crate) parent: i32,
    pub(crate) allowed: AllowedPaths,
}

/// What a process may open.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct AllowedPaths {
    /// For reading, with all that is below.
    pub(crate) read: Vec<PathBuf>,
    /// For writing, too.
    pub(crate) write: Vec<PathBuf>,
}

/// The parts of a [`engine::ModelSource`] that engines for the host's cores look at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ModelFiles {
    pub(crate) name: String,
    pub(crate) file: PathBuf,
    pub(crate) cache: Option<PathBuf>,
    pub(crate) max_batch: Option<u32>,
    pub(crate) shapes: BTreeMap<String, Vec<i64>>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToEngine {
    Begin(Beginning),
    /// Another region, whose descriptor comes along.
    Region,
    /// Answered by [`FromEngine::Prepared`].
    Prepare(ModelFiles),
    /// The same, and the model can be run by that number from then on.
    Load {
        handle: u32,
        prepared: u64,
        files: ModelFiles,
    },
    Unload {
        handle: u32,
    },
    /// Nobody will load it any more.
    Forget {
        prepared: u64,
    },
    /// End the batch of that number, if it is still computed.
    BreakOff {
        batch: u64,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromEngine {
    /// It can be used.
    Ready {
        /// What the runtime says of itself.
        about: String,
        /// What it may not do any more, and what the kernel couldn't take from it.
        rights: String,
    },
    Prepared(Box<PreparedModel>),
    Refused(Failure),
}

/// What is said of a model that was prepared.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PreparedModel {
    pub(crate) inputs: Vec<SaidPort>,
    pub(crate) outputs: Vec<SaidPort>,
    pub(crate) max_batch: u32,
    pub(crate) weight_bytes: u64,
    pub(crate) takes_any_batch: bool,
    pub(crate) defaults: Vec<Option<OwnedTensor>>,
}

/// An input or output of a model.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SaidPort {
    pub(crate) name: String,
    pub(crate) datatype: u8,
    pub(crate) dims: Vec<i64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OwnedTensor {
    pub(crate) datatype: u8,
    pub(crate) shape: Vec<i64>,
    pub(crate) data: Vec<u8>,
}

/// What a batch is computed from; in the region.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum BatchOrder {
    Compute {
        /// For [`ToEngine::BreakOff`].
        batch: u64,
        handle: u32,
        inputs: Vec<PlacedTensor>,
        /// From there on there is room for outputs.
        end: u64,
    },
    /// Hand out once more what there was no room for.
    HandOut,
}

/// What became of it; in the region.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum BatchAnswer {
    Computed(Vec<PlacedTensor>),
    /// The outputs need so many bytes.
    TooSmall(u64),
    Failed(Failure),
}

/// A tensor in the region.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PlacedTensor {
    pub(crate) datatype: u8,
    pub(crate) shape: Vec<i64>,
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

/// An [`EngineError`] on its way.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Failure {
    BadModel(String),
    Load(String),
    Execute(String),
    Unfit(String),
    NotYet(String),
    BrokenOff,
    Unavailable(String),
}

impl Failure {
    pub(crate) fn of(error: EngineError) -> Self {
        match error {
            EngineError::BadModel { reason, .. } => Self::BadModel(reason),
            EngineError::Io { error, .. } => Self::BadModel(error.to_string()),
            EngineError::Load(reason) => Self::Load(reason),
            EngineError::Execute(reason) | EngineError::Lost { reason, .. } => Self::Execute(reason),
            EngineError::Unfit(reason) => Self::Unfit(reason),
            EngineError::NotYet(reason) => Self::NotYet(reason),
            EngineError::BrokenOff => Self::BrokenOff,
            EngineError::Unavailable { reason, .. } => Self::Unavailable(reason),
        }
    }

    /// As an error about that file.
    pub(crate) fn about(self, file: &Path, runtime: &'static str) -> EngineError {
        match self {
            Self::BadModel(reason) => EngineError::bad_model(file, sentence(&reason)),
            Self::Load(reason) => EngineError::Load(sentence(&reason)),
            Self::Execute(reason) => EngineError::Execute(sentence(&reason)),
            Self::Unfit(reason) => EngineError::Unfit(sentence(&reason)),
            Self::NotYet(reason) => EngineError::NotYet(sentence(&reason)),
            Self::BrokenOff => EngineError::BrokenOff,
            Self::Unavailable(reason) => EngineError::Unavailable { runtime, reason: sentence(&reason) },
        }
    }
}

/// A text of somebody else, as long as a sentence may be.
pub(crate) fn sentence(text: &str) -> String {
    text.chars().take(MAX_SENTENCE).collect()
}

/// A type by its place in the protocol's list.
pub(crate) fn number_of(datatype: DataType) -> u8 {
    let place = DataType::ALL.iter().position(|known| *known == datatype);
    place.map_or(u8::MAX, |place| place as u8)
}

pub(crate) fn datatype_of(number: u8) -> Option<DataType> {
    DataType::ALL.get(usize::from(number)).copied()
}

pub(crate) fn ports_of(specs: &[TensorSpec]) -> Vec<SaidPort> {
    let port = |spec: &TensorSpec| SaidPort {
        name: spec.name.clone(),
        datatype: number_of(spec.datatype),
        dims: spec.dims.clone(),
    };
    specs.iter().map(port).collect()
}

impl PreparedModel {
    pub(crate) fn of(prepared: &dyn engine::Prepared) -> Self {
        let ModelSignature { inputs, outputs, max_batch } = prepared.signature();
        let tensor = |tensor: engine::Tensor| OwnedTensor {
            datatype: number_of(tensor.datatype),
            shape: tensor.shape,
            data: tensor.data.to_vec(),
        };
        Self {
            inputs: ports_of(inputs),
            outputs: ports_of(outputs),
            max_batch: *max_batch,
            weight_bytes: prepared.weight_bytes(),
            takes_any_batch: prepared.takes_any_batch(),
            defaults: prepared.defaults().into_iter().map(|default| default.map(tensor)).collect(),
        }
    }
}

/// A message with its length before it.
pub(crate) fn framed(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len() - 4).ok().filter(|length| *length <= MAX_MESSAGE_BYTES);
    let length = length.ok_or_else(|| io::Error::other("a message is too long"))?;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    Ok(bytes)
}

/// The next message; nothing where no more will come. Memory is taken as bytes come, not as they are announced.
pub(crate) fn next<M: DeserializeOwned>(reader: &mut impl Read) -> io::Result<Option<M>> {
    let mut length = [0; 4];
    match reader.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        outcome => outcome?,
    }
    let length = u32::from_le_bytes(length);
    if length > MAX_MESSAGE_BYTES {
        return Err(io::Error::other(format!("a message of {length} bytes is announced")));
    }
    let mut bytes = Vec::new();
    reader.take(length.into()).read_to_end(&mut bytes)?;
    if bytes.len() != length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    postcard::from_bytes(&bytes).map(Some).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_as_they_went() {
        let bytes = [framed(&ToEngine::Unload { handle: 7 }).unwrap(), framed(&ToEngine::Region).unwrap()].concat();
        let mut reader = &bytes[..];
        assert!(matches!(next(&mut reader), Ok(Some(ToEngine::Unload { handle: 7 }))));
        assert!(matches!(next(&mut reader), Ok(Some(ToEngine::Region))));
        assert!(matches!(next::<ToEngine>(&mut reader), Ok(None)));
    }

    #[test]
    fn what_is_cut_too_long_or_no_message_is_an_error() {
        let whole = framed(&FromEngine::Refused(Failure::Load("x".repeat(100)))).unwrap();
        assert!(next::<FromEngine>(&mut &whole[..whole.len() - 1]).is_err());
        assert!(next::<FromEngine>(&mut &[255; 8][..]).is_err());
        assert!(next::<FromEngine>(&mut &[1, 0, 0, 0, 200][..]).is_err());
    }

    #[test]
    fn every_type_has_a_number() {
        for &datatype in DataType::ALL {
            assert_eq!(datatype_of(number_of(datatype)), Some(datatype));
        }
        assert_eq!(datatype_of(u8::MAX), None);
    }

    #[test]
    fn errors_keep_their_meaning_and_say_the_servers_name_of_the_file() {
        let file = Path::new("/models/net/1/model.onnx");
        let there = EngineError::bad_model(Path::new("/tmp/link"), "it is empty");
        assert_eq!(Failure::of(there).about(file, "r").to_string(), "/models/net/1/model.onnx: it is empty");
        assert!(matches!(Failure::of(EngineError::BrokenOff).about(file, "r"), EngineError::BrokenOff));
        let long = Failure::Unfit("é".repeat(9000)).about(file, "r").to_string();
        assert_eq!(long.chars().count(), MAX_SENTENCE);
    }
}
