//! What a batch is computed from: each engine asks for it in the form that it needs.

use crate::EngineError;
use base::DataType;
use bytes::Bytes;

/// The inputs of a batch, in the signature's order: the rows of all its requests, behind one another.
pub trait Inputs {
    /// For engines that compute where the inputs are: calls `compute` with each in one piece. Brings rows together that
    /// are apart.
    fn in_one_piece(&mut self, compute: &mut Compute<'_>) -> Result<(), EngineError>;

    /// For engines that bring them to a device: each in the pieces that requests came with. Fails where they have to be
    /// copied and there is no memory for that.
    fn in_pieces(&mut self) -> Result<Vec<Input>, EngineError>;
}

/// What an engine does with inputs in one piece.
pub type Compute<'a> = dyn FnMut(&[TensorView<'_>]) -> Result<(), EngineError> + 'a;

/// An input in several pieces, which the engine may keep for as long as the device needs them.
#[derive(Clone, Debug)]
pub struct Input {
    /// Element type.
    pub datatype: DataType,
    /// Dimensions of the whole, all known.
    pub shape: Vec<i64>,
    /// The elements, in their order; a row is in one piece.
    pub pieces: Vec<Bytes>,
}

impl Input {
    /// How long it is, in bytes.
    pub fn bytes(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }
}

/// A tensor in somebody else's memory: row-major, little-endian, as the protocol's binary form (elements of `Bytes` are
/// a 4-byte length and the bytes).
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Element type.
    pub datatype: DataType,
    /// Dimensions, all known.
    pub shape: &'a [i64],
    /// The elements.
    pub data: &'a [u8],
}

impl TensorView<'_> {
    /// The same with its own bytes.
    pub fn to_tensor(self) -> Tensor {
        Tensor { datatype: self.datatype, shape: self.shape.to_vec(), data: self.data.to_vec().into() }
    }
}

/// A tensor with its own bytes, in the same form.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Element type.
    pub datatype: DataType,
    /// Dimensions, all known.
    pub shape: Vec<i64>,
    /// The elements. Cheap to clone and to slice.
    pub data: Bytes,
}

impl Tensor {
    /// The same in its memory.
    pub fn view(&self) -> TensorView<'_> {
        TensorView { datatype: self.datatype, shape: &self.shape, data: &self.data }
    }
}

/// A batch that is one request.
impl Inputs for &[Tensor] {
    fn in_one_piece(&mut self, compute: &mut Compute<'_>) -> Result<(), EngineError> {
        match *self {
            // Most models: nothing is allocated.
            [input] => compute(&[input.view()]),
            inputs => compute(&inputs.iter().map(Tensor::view).collect::<Vec<_>>()),
        }
    }

    fn in_pieces(&mut self) -> Result<Vec<Input>, EngineError> {
        let input = |Tensor { datatype, shape, data }: &Tensor| Input {
            datatype: *datatype,
            shape: shape.clone(),
            pieces: vec![data.clone()],
        };
        Ok(self.iter().map(input).collect())
    }
}
