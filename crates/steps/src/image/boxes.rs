//! Parts of a picture that data decides: what a detector found, for what looks at each.

use super::resize::check_side;
use super::sample::{Depth, Filter, Part, Sampling};
use super::warp::{Perspective, Place};
use super::{Extent, count, pictures};
use crate::bound::Bound;
use crate::elements::{Element, elements, tensor, with_type};
use crate::{StepError, Work, parameters, specs};
use base::{DataType, TensorSpec};
use engine::Tensor;
use serde::Deserialize;
use std::borrow::Cow;
use toml::Table;

/// One picture and boxes in it become as many pictures of one size. A box is two corners, or four of a quadrilateral
/// (upper left, upper right, lower right, lower left), which is warped to a rectangle. What is outside of the picture
/// is cut off; of a box with nothing of the picture in it comes a picture of `fill`.
#[derive(Debug)]
pub(crate) struct CropBoxes {
    height: usize,
    width: usize,
    sampling: Sampling,
    order: Corners,
    normalised: bool,
    keep_aspect: bool,
    turn_tall: Option<f64>,
    fill: f32,
}

/// Which coordinate of a corner comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Corners {
    #[default]
    Xyxy,
    Yxyx,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BoxesParameters {
    size: [i64; 2],
    #[serde(default)]
    filter: Filter,
    #[serde(default = "parameters::yes")]
    antialias: bool,
    /// Of two corners; of four it is always x, y.
    #[serde(default)]
    order: Corners,
    /// Whether coordinates are parts of the picture's sides, 0 to 1, instead of pixels.
    #[serde(default)]
    normalised: bool,
    /// Whether the width follows from the height of `size`, up to its width; what is left of it is `fill`.
    #[serde(default)]
    keep_aspect: bool,
    /// A quadrilateral that is so many times as tall as wide is turned to the left.
    turn_tall: Option<f64>,
    #[serde(default)]
    fill: f32,
}

impl CropBoxes {
    pub(crate) fn read(table: &Table) -> Result<Box<dyn Work>, String> {
        let BoxesParameters { size, filter, antialias, order, normalised, keep_aspect, turn_tall, fill } =
            parameters::read(table)?;
        let (height, width) = (check_side("size", size[0])? as usize, check_side("size", size[1])? as usize);
        let sampling = Sampling { filter, antialias };
        if turn_tall.is_some_and(|ratio| ratio.is_nan() || ratio < 1.0) {
            return Err("turn_tall is a ratio of height to width, 1 at least".into());
        }
        Ok(Box::new(Self { height, width, sampling, order, normalised, keep_aspect, turn_tall, fill }))
    }

    /// How wide a part becomes.
    fn width(&self, part_height: f64, part_width: f64) -> usize {
        if !self.keep_aspect {
            return self.width;
        }
        ((self.height as f64 * part_width / part_height).ceil() as usize).clamp(1, self.width)
    }

    /// The part of a picture within two corners; `None` where nothing of it is.
    fn part(&self, corners: &[f64], extent: &Extent) -> Option<Part> {
        let (x1, y1, x2, y2) = match self.order {
            Corners::Xyxy => (corners[0], corners[1], corners[2], corners[3]),
            Corners::Yxyx => (corners[1], corners[0], corners[3], corners[2]),
        };
        if ![x1, y1, x2, y2].iter().all(|value| value.is_finite()) {
            return None;
        }
        let (height, width) = (extent.height as f64, extent.width as f64);
        let (x_scale, y_scale) = if self.normalised { (width, height) } else { (1.0, 1.0) };
        let along = |one: f64, two: f64, scale: f64, most: f64| {
            let (from, to) = ((one.min(two) * scale).clamp(0.0, most), (one.max(two) * scale).clamp(0.0, most));
            // Less than this of a pixel is nothing: what is computed with its reciprocal stays small.
            (to - from >= 1e-3).then_some((from, to - from))
        };
        let (left, width) = along(x1, x2, x_scale, width)?;
        let (top, height) = along(y1, y2, y_scale, height)?;
        Some(Part { left, top, width, height })
    }

    /// Four corners, within the picture.
    fn quadrilateral(&self, corners: &[f64], extent: &Extent) -> Option<[Place; 4]> {
        if !corners.iter().all(|value| value.is_finite()) {
            return None;
        }
        let (height, width) = (extent.height as f64, extent.width as f64);
        let (x_scale, y_scale) = if self.normalised { (width, height) } else { (1.0, 1.0) };
        let corner = |at: usize| {
            [(corners[2 * at] * x_scale).clamp(0.0, width), (corners[2 * at + 1] * y_scale).clamp(0.0, height)]
        };
        Some([corner(0), corner(1), corner(2), corner(3)])
    }

    /// A quadrilateral as the rectangle that it was, as large as it is; `None` where it has no pixel.
    fn warped<F: Copy>(
        &self,
        corners: &[Place; 4],
        (extent, pixels): (&Extent, &[F]),
        bound: &mut Bound,
        (read, write): (impl Fn(F) -> f32, impl Fn(f32) -> F),
    ) -> Result<Option<(Extent, Vec<F>)>, StepError> {
        let length =
            |one: usize, two: usize| (corners[one][0] - corners[two][0]).hypot(corners[one][1] - corners[two][1]);
        let (width, height) = (length(0, 1).max(length(2, 3)) as usize, length(0, 3).max(length(1, 2)) as usize);
        let map = (width > 0 && height > 0).then(|| Perspective::new(corners, width as f64, height as f64)).flatten();
        let Some(map) = map else { return Ok(None) };
        let natural = Extent { height, width, channels: extent.channels };
        let count = natural.elements().unwrap_or(usize::MAX);
        bound.work(count.saturating_mul(16))?;
        let mut out = bound.filled(count, write(0.0))?;
        map.fill((extent, pixels), (&natural, &mut out), (read, write));
        match self.turn_tall {
            Some(ratio) if height as f64 / width as f64 >= ratio => turned(natural, &out, bound).map(Some),
            _ => Ok(Some((natural, out))),
        }
    }

    fn all<F: Copy + bytemuck::Pod>(
        &self,
        (extent, pixels): (&Extent, &[F]),
        boxes: &Boxes,
        depth: Depth,
        bound: &mut Bound,
        (read, write): (impl Fn(F) -> f32 + Copy, impl Fn(f32) -> F + Copy),
    ) -> Result<Vec<F>, StepError> {
        let each = self.height * self.width * extent.channels;
        let mut out = bound.filled(each.saturating_mul(boxes.count), write(self.fill))?;
        for (corners, out) in boxes.values.chunks_exact(boxes.numbers).zip(out.chunks_exact_mut(each)) {
            if boxes.numbers == 4 {
                let Some(part) = self.part(corners, extent) else { continue };
                self.place((extent, pixels), part, out, depth, bound)?;
            } else {
                let Some(corners) = self.quadrilateral(corners, extent) else { continue };
                // What a quadrilateral takes is given back; only what it works is counted.
                let mut rest = bound.rest();
                let Some((natural, warped)) = self.warped(&corners, (extent, pixels), &mut rest, (read, write))? else {
                    continue;
                };
                self.place((&natural, &warped), Part::whole(&natural), out, depth, &mut rest)?;
                bound.worked(&rest);
            }
        }
        Ok(out)
    }

    /// Puts a part of a picture into its place.
    fn place<F: Copy + bytemuck::Pod>(
        &self,
        (extent, pixels): (&Extent, &[F]),
        part: Part,
        out: &mut [F],
        depth: Depth,
        bound: &mut Bound,
    ) -> Result<(), StepError> {
        let width = self.width(part.height, part.width);
        let (to, channels) = (Extent { height: self.height, width, channels: extent.channels }, extent.channels);
        bound.work((part.width * part.height) as usize * channels + to.elements().unwrap_or(usize::MAX))?;
        let mut rest = bound.rest();
        let pixels = bytemuck::cast_slice(pixels);
        if width == self.width {
            return self.sampling.sample(
                (extent, pixels),
                part,
                (&to, bytemuck::cast_slice_mut(out)),
                depth,
                &mut rest,
            );
        }
        let mut narrow = rest.filled(to.elements().unwrap_or(usize::MAX), F::zeroed())?;
        let bytes = bytemuck::cast_slice_mut(&mut narrow);
        self.sampling.sample((extent, pixels), part, (&to, bytes), depth, &mut rest)?;
        for (line, out) in narrow.chunks_exact(width * channels).zip(out.chunks_exact_mut(self.width * channels)) {
            out[..line.len()].copy_from_slice(line);
        }
        Ok(())
    }
}

/// A picture that is turned to the left.
fn turned<F: Copy>(extent: Extent, pixels: &[F], bound: &mut Bound) -> Result<(Extent, Vec<F>), StepError> {
    let Extent { height, width, channels } = extent;
    let mut out = bound.room(pixels.len())?;
    for column in (0..width).rev() {
        for row in 0..height {
            let at = (row * width + column) * channels;
            out.extend_from_slice(&pixels[at..at + channels]);
        }
    }
    Ok((Extent { height: width, width: height, channels }, out))
}

/// Boxes as numbers.
struct Boxes {
    values: Vec<f64>,
    /// Of each: 4 or 8.
    numbers: usize,
    count: usize,
}

impl Boxes {
    fn read(tensor: &Tensor, bound: &mut Bound) -> Result<Self, StepError> {
        let values = with_type!(tensor.datatype, T => {
            let raw: Cow<'_, [<T as Element>::Raw]> = elements::<T>(tensor, bound)?;
            let mut values = bound.room(raw.len())?;
            values.extend(raw.iter().map(|&raw| T::read(raw).to_f64()));
            values
        }, Vec::new());
        let numbers = if tensor.shape.len() == 3 { 8 } else { 4 };
        Ok(Self { values, numbers, count: tensor.shape[0] as usize })
    }
}

impl Work for CropBoxes {
    fn input_names(&self) -> &'static [&'static str] {
        &["image", "boxes"]
    }

    fn output_names(&self) -> &'static [&'static str] {
        &["images"]
    }

    fn outputs(&self, inputs: &[TensorSpec]) -> Result<Vec<(DataType, Vec<i64>)>, String> {
        let (image, boxes) = (&inputs[0], &inputs[1]);
        pictures(image)?;
        if image.dims.len() == 4 && !matches!(image.dims[0], -1 | 1) {
            return Err(format!("{} has the shape {:?}, and boxes are of one picture", image.name, image.dims));
        }
        let types = [DataType::Fp32, DataType::Fp64, DataType::Fp16, DataType::Int32, DataType::Int64];
        specs::types(boxes, &types)?;
        let count = match boxes.dims[..] {
            [count, -1 | 4] | [count, -1 | 4, -1 | 2] => count,
            _ => {
                return Err(format!(
                    "{} has the shape {:?}, and boxes are [boxes, 4], or [boxes, 4, 2] for four corners",
                    boxes.name, boxes.dims
                ));
            }
        };
        let channels = image.dims[image.dims.len() - 1];
        Ok(vec![(image.datatype, vec![count, self.height as i64, self.width as i64, channels])])
    }

    fn run(&self, inputs: &[Tensor], bound: &mut Bound) -> Result<Vec<Tensor>, StepError> {
        let (image, boxes) = (&inputs[0], Boxes::read(&inputs[1], bound)?);
        if count(image) != 1 {
            return Err(StepError::Inputs("boxes are of one picture".into()));
        }
        let (extent, depth) = (Extent::of(image), Depth::of(image.datatype));
        let shape = [boxes.count, self.height, self.width, extent.channels].map(|dim| dim as i64).to_vec();
        Ok(vec![match depth {
            Depth::Byte => {
                let ways = (f32::from, |value: f32| value.round_ties_even() as u8);
                let out = self.all((&extent, &image.data[..]), &boxes, depth, bound, ways)?;
                tensor(image.datatype, shape, out)
            }
            Depth::Float => {
                let floats = elements::<f32>(image, bound)?;
                let same = |value: f32| value;
                tensor(image.datatype, shape, self.all((&extent, &floats[..]), &boxes, depth, bound, (same, same))?)
            }
        }])
    }
}
