//! A request and its answer, as both protocols say them.

use crate::Fault;
use base::{DataType, Duration};
use bytes::Bytes;
use std::borrow::Cow;
use std::fmt;

/// A request to compute. Texts are borrowed from the message; tensors are slices of it where they came as bytes.
#[derive(Clone, PartialEq, Debug)]
pub struct InferRequest<'a> {
    /// The client's name for it; empty when it gave none.
    pub id: Cow<'a, str>,
    /// The application that it belongs to; empty when it didn't say.
    pub application: Cow<'a, str>,
    /// What the client asks beside the tensors.
    pub parameters: Parameters,
    /// The sequence that it belongs to, if it names one. In a box: most name none.
    pub sequence: Option<Box<SequenceMark>>,
    /// The inputs, in the client's order. Each is consistent in itself: its bytes are exactly what its shape says,
    /// unless they lie in a region and aren't here yet.
    pub inputs: Vec<InferInput<'a>>,
    /// The outputs that are wanted; none means all.
    pub outputs: Vec<RequestedOutput<'a>>,
}

impl InferRequest<'_> {
    /// The same request with texts of its own, for when it must outlive the message.
    pub fn into_owned(self) -> InferRequest<'static> {
        let own = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        let input = |input: InferInput<'_>| InferInput {
            name: own(input.name),
            datatype: input.datatype,
            shape: input.shape,
            data: input.data,
            region: input.region,
        };
        let output = |output: RequestedOutput<'_>| RequestedOutput {
            name: own(output.name),
            binary: output.binary,
            classes: output.classes,
            region: output.region,
        };
        InferRequest {
            id: own(self.id),
            application: own(self.application),
            parameters: self.parameters,
            sequence: self.sequence,
            inputs: self.inputs.into_iter().map(input).collect(),
            outputs: self.outputs.into_iter().map(output).collect(),
        }
    }
}

/// Which sequence a request belongs to, and what it is in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SequenceMark {
    /// The client's name for the sequence.
    pub id: SequenceId,
    /// Whether it is the first.
    pub start: bool,
    /// Whether it is the last.
    pub end: bool,
}

/// A client's name for a sequence. A number and a text are never the same.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum SequenceId {
    /// Not 0, which is no name.
    Number(u64),
    /// Not empty.
    Text(String),
}

impl SequenceId {
    /// The longest text, in bytes: as Triton has it.
    pub const LONGEST: usize = 128;

    /// The name that a number is; 0 is none.
    pub(crate) fn number(number: u64) -> Option<Self> {
        (number != 0).then_some(Self::Number(number))
    }

    /// The name that a text is; an empty one is none.
    pub(crate) fn text(text: &str) -> Result<Option<Self>, Fault> {
        match text.len() {
            0 => Ok(None),
            1..=Self::LONGEST => Ok(Some(Self::Text(text.to_owned()))),
            length => Err(Fault::bad(format!(
                "the parameter sequence_id has {length} bytes: it is a number or a text of at most {} bytes",
                Self::LONGEST
            ))),
        }
    }
}

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

impl SequenceMark {
    /// What a request says of its sequence. Without a name, it says nothing.
    pub(crate) fn new(id: Option<SequenceId>, start: bool, end: bool) -> Option<Box<Self>> {
        id.map(|id| Box::new(Self { id, start, end }))
    }
}

/// What a client may ask beside the tensors. Parameters of the client's own are taken and ignored.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Parameters {
    /// The end-to-end deadline, counted from the arrival.
    pub timeout: Option<Duration>,
    /// As in Triton: 1 is the most urgent, 0 the default level.
    pub priority: u32,
    /// Whether outputs that say nothing else are wanted as bytes (HTTP only).
    pub binary_outputs: bool,
}

/// An input tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct InferInput<'a> {
    /// Its name in the model.
    pub name: Cow<'a, str>,
    /// Its element type.
    pub datatype: DataType,
    /// Its dimensions; none is negative, and their product fits.
    pub shape: Vec<i64>,
    /// Its elements in the protocol's binary form; nothing while they lie in a region.
    pub data: Bytes,
    /// Where its elements lie, if they didn't come with the request.
    pub region: Option<Box<Region>>,
}

/// A part of a region of memory that the client shares with the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    /// The name under which the region was registered.
    pub name: String,
    /// Where the part begins in the region.
    pub offset: u64,
    /// How long it is.
    pub byte_size: u64,
}

/// An output that the client wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestedOutput<'a> {
    /// Its name in the model.
    pub name: Cow<'a, str>,
    /// Whether it is wanted as bytes rather than as JSON (HTTP only).
    pub binary: bool,
    /// How many of the highest values are wanted, as texts, instead of the tensor; 0 for the tensor.
    pub classes: u32,
    /// Where it is to be written to, instead of into the answer.
    pub region: Option<Box<Region>>,
}

/// An answer, ready to be written.
#[derive(Clone, PartialEq, Debug)]
pub struct InferResponse<'a> {
    /// The model's name.
    pub model_name: &'a str,
    /// The version that computed it.
    pub model_version: u64,
    /// The request's id; empty when it had none.
    pub id: &'a str,
    /// The outputs, in the order in which they were asked for.
    pub outputs: Vec<OutputTensor<'a>>,
}

/// An output tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct OutputTensor<'a> {
    /// Its name in the model.
    pub name: &'a str,
    /// Its element type.
    pub datatype: DataType,
    /// Its dimensions.
    pub shape: &'a [i64],
    /// Its elements in the protocol's binary form.
    pub data: Bytes,
    /// Whether it is written as bytes rather than as JSON (HTTP only).
    pub binary: bool,
    /// Where the elements were written to, with their size; the answer then has none.
    pub region: Option<&'a Region>,
}
