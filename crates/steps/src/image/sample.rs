//! A part of a picture, as a picture of another size.

use super::Extent;
use crate::StepError;
use crate::bound::Bound;
use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use serde::Deserialize;

/// How pixels come of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Filter {
    Nearest,
    /// The mean of what a pixel covers.
    Area,
    #[default]
    Bilinear,
    Bicubic,
    Lanczos,
}

/// How pictures become smaller or larger.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampling {
    pub(super) filter: Filter,
    /// Whether smaller pictures are made of all pixels of the larger one, as Pillow does, or of those around each
    /// place, as OpenCV does.
    pub(super) antialias: bool,
}

/// A part of a picture, in pixels from its upper left corner.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Part {
    pub(super) fn whole(extent: &Extent) -> Self {
        Self { left: 0.0, top: 0.0, width: extent.width as f64, height: extent.height as f64 }
    }
}

/// Bytes of an element in pictures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Depth {
    Byte,
    Float,
}

impl Depth {
    pub(super) fn of(datatype: base::DataType) -> Self {
        if datatype == base::DataType::Fp32 { Self::Float } else { Self::Byte }
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Byte => 1,
            Self::Float => 4,
        }
    }
}

impl Sampling {
    fn algorithm(&self) -> (ResizeAlg, f64) {
        let (filter, support) = match self.filter {
            Filter::Nearest | Filter::Area => (FilterType::Box, 0.5),
            Filter::Bilinear => (FilterType::Bilinear, 1.0),
            Filter::Bicubic => (FilterType::CatmullRom, 2.0),
            Filter::Lanczos => (FilterType::Lanczos3, 3.0),
        };
        let adapts = self.antialias || self.filter == Filter::Area;
        (if adapts { ResizeAlg::Convolution(filter) } else { ResizeAlg::Interpolation(filter) }, support)
    }

    /// Fills `out` with a part of a picture. Both lie where floats can lie, if they have floats; the part is within the
    /// picture.
    pub(super) fn sample(
        &self,
        (from, pixels): (&Extent, &[u8]),
        part: Part,
        (to, out): (&Extent, &mut [u8]),
        depth: Depth,
        bound: &mut Bound,
    ) -> Result<(), StepError> {
        if self.filter == Filter::Nearest {
            nearest((from, pixels), part, (to, out), depth);
            return Ok(());
        }
        let (algorithm, support) = self.algorithm();
        // Rows that were made narrower or wider, before columns are made shorter or longer; and coefficients, two
        // numbers for each pixel that another is made of.
        let reach = |from: f64, to: usize| 2.0 * (support * (from / to as f64).max(1.0)).ceil() + 1.0;
        let rows = (part.height + reach(part.height, to.height)).min(from.height as f64) as usize + 1;
        let rows = rows.saturating_mul(to.width).saturating_mul(to.channels * depth.bytes());
        let weights = |from: f64, to: usize| to as f64 * reach(from, to);
        let weights = weights(part.width, to.width) + weights(part.height, to.height);
        bound.count(rows.checked_add((weights * 16.0) as usize))?;
        let pixel = match (depth, from.channels) {
            (Depth::Byte, 1) => PixelType::U8,
            (Depth::Byte, 2) => PixelType::U8x2,
            (Depth::Byte, 3) => PixelType::U8x3,
            (Depth::Byte, _) => PixelType::U8x4,
            (Depth::Float, 1) => PixelType::F32,
            (Depth::Float, 2) => PixelType::F32x2,
            (Depth::Float, 3) => PixelType::F32x3,
            (Depth::Float, _) => PixelType::F32x4,
        };
        let refused =
            |error: &dyn std::fmt::Display| StepError::Inputs(format!("the picture can't be resized: {error}"));
        let source =
            ImageRef::new(from.width as u32, from.height as u32, pixels, pixel).map_err(|error| refused(&error))?;
        let mut target =
            Image::from_slice_u8(to.width as u32, to.height as u32, out, pixel).map_err(|error| refused(&error))?;
        // Channels are equals: none says how much of the others is seen.
        let options = ResizeOptions::new().resize_alg(algorithm).use_alpha(false).crop(
            part.left,
            part.top,
            part.width,
            part.height,
        );
        Resizer::new().resize(&source, &mut target, &options).map_err(|error| refused(&error))
    }
}

/// The pixels in the middles of what pixels cover. Not with the library's own: its index is one too large where a part
/// is so small that the sum of its edge and its half is rounded up.
fn nearest((from, pixels): (&Extent, &[u8]), part: Part, (to, out): (&Extent, &mut [u8]), depth: Depth) {
    let size = from.channels * depth.bytes();
    let place = |start: f64, length: f64, steps: usize, step: usize, most: usize| {
        ((start + length / steps as f64 * (step as f64 + 0.5)) as usize).min(most - 1)
    };
    for (row, line) in out.chunks_exact_mut(to.width * size).enumerate() {
        let y = place(part.top, part.height, to.height, row, from.height);
        let source = &pixels[y * from.width * size..(y + 1) * from.width * size];
        for (column, pixel) in line.chunks_exact_mut(size).enumerate() {
            let x = place(part.left, part.width, to.width, column, from.width);
            pixel.copy_from_slice(&source[x * size..(x + 1) * size]);
        }
    }
}
