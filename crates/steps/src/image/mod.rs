//! Pictures: tensors `[height, width, channels]`, or several of one size, `[pictures, height, width, channels]`.

pub(crate) mod boxes;
pub(crate) mod crop;
pub(crate) mod decode;
mod jpeg;
pub(crate) mod normalise;
mod png;
pub(crate) mod resize;
mod sample;
mod warp;

use base::{DataType, TensorSpec};
use engine::Tensor;

/// The longest side of a picture, in pixels: what a JPEG file can say.
const LONGEST_SIDE: i64 = 65_535;

/// How large pictures are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Extent {
    height: usize,
    width: usize,
    channels: usize,
}

impl Extent {
    /// Of one of the pictures in a tensor that [`pictures`] let pass.
    fn of(tensor: &Tensor) -> Self {
        let rank = tensor.shape.len();
        let side = |from_end: usize| tensor.shape[rank - from_end] as usize;
        Self { height: side(3), width: side(2), channels: side(1) }
    }

    /// Elements of one; `None` where no memory has so many.
    fn elements(&self) -> Option<usize> {
        self.height.checked_mul(self.width)?.checked_mul(self.channels)
    }
}

/// How many pictures are in a tensor that [`pictures`] let pass.
fn count(tensor: &Tensor) -> usize {
    if tensor.shape.len() == 4 { tensor.shape[0] as usize } else { 1 }
}

/// That a tensor has pictures: bytes or floats, with sides that pictures can have.
fn pictures(spec: &TensorSpec) -> Result<(), String> {
    crate::specs::types(spec, &[DataType::Uint8, DataType::Fp32])?;
    let TensorSpec { name, dims, .. } = spec;
    let (sides, channels) = match dims[..] {
        [height, width, channels] | [_, height, width, channels] => ([height, width], channels),
        _ => {
            return Err(format!(
                "{name} has the shape {dims:?}, and a picture has [height, width, channels] or [pictures, height, width, channels]"
            ));
        }
    };
    if sides.iter().any(|&side| side == 0 || side > LONGEST_SIDE) {
        return Err(format!("{name} has the shape {dims:?}: sides of pictures are 1 to {LONGEST_SIDE} pixels"));
    }
    if !matches!(channels, -1 | 1..=4) {
        return Err(format!("{name} has the shape {dims:?}: pictures have 1 to 4 channels, the last axis"));
    }
    Ok(())
}

/// The shape of pictures with other sides.
fn with_sides(dims: &[i64], height: i64, width: i64) -> Vec<i64> {
    let mut dims = dims.to_vec();
    let rank = dims.len();
    (dims[rank - 3], dims[rank - 2]) = (height, width);
    dims
}
