//! A part of a picture, as a picture of another size.

use super::Extent;
use crate::StepError;
use crate::bound::Bound;
use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::{F32, U8, U8x3, U8x4};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};
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
pub(super) struct ImagePart {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl ImagePart {
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
        part: ImagePart,
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
        // Channels are equals: none says how much of the others is seen.
        let options = ResizeOptions::new().resize_alg(algorithm).use_alpha(false).crop(
            part.left,
            part.top,
            part.width,
            part.height,
        );
        match (depth, from.channels) {
            (Depth::Byte, 1) => resize::<U8>((from, pixels), (to, out), &options),
            (Depth::Byte, 3) => resize::<U8x3>((from, pixels), (to, out), &options),
            (Depth::Byte, 4) => resize::<U8x4>((from, pixels), (to, out), &options),
            (Depth::Float, 1) => resize::<F32>((from, pixels), (to, out), &options),
            (depth, channels) => {
                // One after another: each type of pixel would be compiled with all of its filters.
                let size = depth.bytes();
                let plane = |extent: &Extent| Extent { channels: 1, ..*extent };
                let (from, to) = (plane(from), plane(to));
                let mut source = Plane::new(&from, depth, bound)?;
                let mut target = Plane::new(&to, depth, bound)?;
                for channel in 0..channels {
                    let at = channel * size..(channel + 1) * size;
                    let elements = source.bytes().chunks_exact_mut(size).zip(pixels.chunks_exact(channels * size));
                    elements.for_each(|(element, pixel)| element.copy_from_slice(&pixel[at.clone()]));
                    match depth {
                        Depth::Byte => resize::<U8>((&from, source.bytes()), (&to, target.bytes()), &options)?,
                        Depth::Float => resize::<F32>((&from, source.bytes()), (&to, target.bytes()), &options)?,
                    }
                    let elements = target.bytes().chunks_exact(size).zip(out.chunks_exact_mut(channels * size));
                    elements.for_each(|(element, pixel)| pixel[at.clone()].copy_from_slice(element));
                }
                Ok(())
            }
        }
    }
}

/// One channel of a picture, where floats can lie.
struct Plane {
    words: Vec<f32>,
    bytes: usize,
}

impl Plane {
    fn new(extent: &Extent, depth: Depth, bound: &mut Bound) -> Result<Self, StepError> {
        let bytes = extent.elements().and_then(|elements| elements.checked_mul(depth.bytes())).unwrap_or(usize::MAX);
        Ok(Self { words: bound.filled(bytes.div_ceil(4), 0.0)?, bytes })
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.bytes]
    }
}

fn resize<P: PixelTrait>(
    (from, pixels): (&Extent, &[u8]),
    (to, out): (&Extent, &mut [u8]),
    options: &ResizeOptions,
) -> Result<(), StepError> {
    let refused = |error: &dyn std::fmt::Display| StepError::Inputs(format!("the picture can't be resized: {error}"));
    let source = TypedImageRef::<P>::from_buffer(from.width as u32, from.height as u32, pixels);
    let target = TypedImage::<P>::from_buffer(to.width as u32, to.height as u32, out);
    let source = source.map_err(|error| refused(&error))?;
    let mut target = target.map_err(|error| refused(&error))?;
    Resizer::new().resize_typed(&source, &mut target, options).map_err(|error| refused(&error))
}

/// The pixels in the middles of what pixels cover. Not with the library's own: its index is one too large where a part
/// is so small that the sum of its edge and its half is rounded up.
fn nearest((from, pixels): (&Extent, &[u8]), part: ImagePart, (to, out): (&Extent, &mut [u8]), depth: Depth) {
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
