//! Parts of a picture that data decides: what a detector found, for what looks at each.

use super::normalise::Normalise;
use super::resize::check_side;
use super::sample::{Depth, Filter, ImagePart, Sampling};
use super::warp::{Corner, Perspective};
use super::{Extent, count, pictures};
use crate::bound::Bound;
use crate::elements::{Element, elements, tensor, with_type};
use crate::{StepError, Work, parameters, specs};
use base::{DataType, TensorSpec};
use bytes::Bytes;
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
    half_turns: bool,
    width_at_most: Option<usize>,
    group: Option<usize>,
    normalise: Option<Normalise>,
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
    /// Whether a third input says which pictures are turned upside down.
    #[serde(default)]
    half_turns: bool,
    /// With `keep_aspect`: pictures are as wide as the widest of them needs, from the width of `size` up to this.
    width_at_most: Option<i64>,
    /// With `width_at_most`: not all of them, but so many whose proportions are next to one another are as wide as the
    /// widest of these; an output says how wide each is.
    group: Option<usize>,
    /// What else would be a step behind; `fill` is what is filled in then.
    normalise: Option<Table>,
    #[serde(default)]
    fill: f32,
}

impl CropBoxes {
    pub(crate) fn read(table: &Table) -> Result<Box<dyn Work>, String> {
        let written: BoxesParameters = parameters::read(table)?;
        let BoxesParameters { size, filter, antialias, order, normalised, keep_aspect, turn_tall, .. } = written;
        let (height, width) = (check_side("size", size[0])? as usize, check_side("size", size[1])? as usize);
        let sampling = Sampling { filter, antialias };
        if turn_tall.is_some_and(|ratio| ratio.is_nan() || ratio < 1.0) {
            return Err("turn_tall is a ratio of height to width, 1 at least".into());
        }
        let width_at_most = written.width_at_most.map(|most| check_side("width_at_most", most)).transpose()?;
        let width_at_most = width_at_most.map(|most| most as usize);
        if width_at_most.is_some_and(|most| most < width || !keep_aspect) {
            return Err("width_at_most goes with keep_aspect, and is no less than the width of size".into());
        }
        if written.group.is_some_and(|size| size == 0 || width_at_most.is_none()) {
            return Err("group goes with width_at_most, and is a number of pictures, 1 at least".into());
        }
        let normalise = written.normalise.as_ref().map(Normalise::new).transpose();
        let normalise = normalise.map_err(|sentence| format!("normalise: {sentence}"))?;
        if normalise.as_ref().is_some_and(|normalise| normalise.datatype() != DataType::Fp32) {
            return Err("normalise: datatype is FP32 here; a step cast makes others of it".into());
        }
        let (half_turns, group, fill) = (written.half_turns, written.group, written.fill);
        Ok(Box::new(Self {
            height,
            width,
            sampling,
            order,
            normalised,
            keep_aspect,
            turn_tall,
            half_turns,
            width_at_most,
            group,
            normalise,
            fill,
        }))
    }

    /// How wide a part becomes where pictures have that width.
    fn width(&self, part: &ImagePart, width: usize) -> usize {
        if !self.keep_aspect {
            return width;
        }
        ((self.height as f64 * (part.width / part.height)).ceil() as usize).clamp(1, width)
    }

    /// How wide each picture becomes.
    fn widths(&self, boxes: &Boxes, extent: &Extent, bound: &mut Bound) -> Result<Vec<usize>, StepError> {
        let mut widths = bound.filled(boxes.count, self.width)?;
        let Some(most) = self.width_at_most else { return Ok(widths) };
        let mut by_ratio: Vec<(f64, usize)> = bound.room(boxes.count)?;
        by_ratio.extend(boxes.values.chunks_exact(boxes.numbers).map(|box_| self.ratio(box_, extent)).zip(0..));
        by_ratio.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        for group in by_ratio.chunks(self.group.unwrap_or(usize::MAX)) {
            let widest = group.last().map_or(0.0, |(ratio, _)| *ratio);
            let width = ((self.height as f64 * widest) as usize).clamp(self.width, most);
            group.iter().for_each(|&(_, number)| widths[number] = width);
        }
        Ok(widths)
    }

    /// How many times as wide as high what is in a box becomes; 0 where that is nothing.
    fn ratio(&self, corners: &[f64], extent: &Extent) -> f64 {
        let part = match corners.len() {
            4 => self.part(corners, extent),
            _ => self.quadrilateral(corners, extent).map(|corners| self.upright(&corners)),
        };
        part.filter(|part| part.height > 0.0).map_or(0.0, |part| part.width / part.height)
    }

    /// How large a quadrilateral is, when it was turned.
    fn upright(&self, corners: &[Corner; 4]) -> ImagePart {
        let (height, width) = natural(corners);
        let (height, width) = if self.is_tall(height, width) { (width, height) } else { (height, width) };
        ImagePart::whole(&Extent { height, width, channels: 1 })
    }

    fn is_tall(&self, height: usize, width: usize) -> bool {
        self.turn_tall.is_some_and(|ratio| height as f64 / width as f64 >= ratio)
    }

    /// The part of a picture within two corners; `None` where nothing of it is.
    fn part(&self, corners: &[f64], extent: &Extent) -> Option<ImagePart> {
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
        Some(ImagePart { left, top, width, height })
    }

    /// Four corners, within the picture.
    fn quadrilateral(&self, corners: &[f64], extent: &Extent) -> Option<[Corner; 4]> {
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
        corners: &[Corner; 4],
        (extent, pixels): (&Extent, &[F]),
        bound: &mut Bound,
        (read, write): (impl Fn(F) -> f32, impl Fn(f32) -> F),
    ) -> Result<Option<(Extent, Vec<F>)>, StepError> {
        let (height, width) = natural(corners);
        let map = (width > 0 && height > 0).then(|| Perspective::new(corners, width as f64, height as f64)).flatten();
        let Some(map) = map else { return Ok(None) };
        let size = Extent { height, width, channels: extent.channels };
        let count = size.elements().unwrap_or(usize::MAX);
        bound.work(count.saturating_mul(16))?;
        let mut out = bound.filled(count, write(0.0))?;
        map.fill((extent, pixels), (&size, &mut out), (read, write));
        if self.is_tall(height, width) { turned(size, &out, bound).map(Some) } else { Ok(Some((size, out))) }
    }

    /// All pictures, each put into its place: `put` is given a picture that is as wide as it is.
    fn all<F: Copy + bytemuck::Pod, O: Copy>(
        &self,
        (extent, pixels): (&Extent, &[F]),
        boxes: &Boxes,
        (to, widths, out): (&Extent, &[usize], &mut [O]),
        bound: &mut Bound,
        (read, write): (impl Fn(F) -> f32 + Copy, impl Fn(f32) -> F + Copy),
        put: impl Fn((&Extent, &[F]), &mut [O]),
    ) -> Result<(), StepError> {
        let each = to.elements().unwrap_or(usize::MAX);
        let outputs = boxes.values.chunks_exact(boxes.numbers).zip(out.chunks_exact_mut(each)).zip(widths);
        for (number, ((corners, out), &width)) in outputs.enumerate() {
            // What a picture takes is given back; only what it works is counted.
            let mut rest = bound.rest();
            let made = if boxes.numbers == 4 {
                let Some(part) = self.part(corners, extent) else { continue };
                self.sampled((extent, pixels), part, width, &mut rest)?
            } else {
                let Some(corners) = self.quadrilateral(corners, extent) else { continue };
                let Some((natural, mut warped)) = self.warped(&corners, (extent, pixels), &mut rest, (read, write))?
                else {
                    continue;
                };
                if boxes.turned(number) {
                    upside_down(&mut warped, extent.channels);
                }
                self.sampled((&natural, &warped), ImagePart::whole(&natural), width, &mut rest)?
            };
            let (narrow, mut pixels) = made;
            if boxes.numbers == 4 && boxes.turned(number) {
                upside_down(&mut pixels, extent.channels);
            }
            put((&narrow, &pixels), out);
            bound.worked(&rest);
        }
        Ok(())
    }

    /// A part of a picture, as high as all of them.
    fn sampled<F: Copy + bytemuck::Pod>(
        &self,
        (extent, pixels): (&Extent, &[F]),
        part: ImagePart,
        width: usize,
        bound: &mut Bound,
    ) -> Result<(Extent, Vec<F>), StepError> {
        let to = Extent { height: self.height, width: self.width(&part, width), channels: extent.channels };
        let elements = to.elements().unwrap_or(usize::MAX);
        bound.work(((part.width * part.height) as usize).saturating_mul(to.channels).saturating_add(elements))?;
        let mut out = bound.filled(elements, F::zeroed())?;
        let depth = if size_of::<F>() == 1 { Depth::Byte } else { Depth::Float };
        let bytes = bytemuck::cast_slice_mut(&mut out);
        self.sampling.sample((extent, bytemuck::cast_slice(pixels)), part, (&to, bytes), depth, bound)?;
        Ok((to, out))
    }

    /// The output for pictures of one type.
    fn output<F: Copy + bytemuck::Pod + Send + Sync>(
        &self,
        (image, extent, pixels): (&Tensor, &Extent, &[F]),
        boxes: &Boxes,
        bound: &mut Bound,
        (read, write): (impl Fn(F) -> f32 + Copy, impl Fn(f32) -> F + Copy),
    ) -> Result<Vec<Tensor>, StepError> {
        let widths = self.widths(boxes, extent, bound)?;
        let widest = widths.iter().copied().max().unwrap_or(self.width);
        let to = Extent { height: self.height, width: widest, ..*extent };
        let shape = [boxes.count, to.height, to.width, to.channels].map(|dim| dim as i64);
        let elements = to.elements().unwrap_or(usize::MAX).saturating_mul(boxes.count);
        if let Some(normalise) = &self.normalise {
            let mut out = bound.filled(elements, self.fill)?;
            let put = |from: (&Extent, &[F]), out: &mut [f32]| normalise.put(from, (&to, out), read);
            self.all((extent, pixels), boxes, (&to, &widths, &mut out), bound, (read, write), put)?;
            let images = tensor(DataType::Fp32, normalise.shape(&shape), out);
            return self.with_widths(images, &widths, bound);
        }
        let mut out = bound.filled(elements, write(self.fill))?;
        let put = |(narrow, pixels): (&Extent, &[F]), out: &mut [F]| {
            let channels = narrow.channels;
            let lines = pixels.chunks_exact(narrow.width * channels).zip(out.chunks_exact_mut(to.width * channels));
            lines.for_each(|(line, out)| out[..line.len()].copy_from_slice(line));
        };
        self.all((extent, pixels), boxes, (&to, &widths, &mut out), bound, (read, write), put)?;
        self.with_widths(tensor(image.datatype, shape.to_vec(), out), &widths, bound)
    }

    /// Pictures, and how wide each is where they differ.
    fn with_widths(&self, images: Tensor, widths: &[usize], bound: &mut Bound) -> Result<Vec<Tensor>, StepError> {
        if self.group.is_none() {
            return Ok(vec![images]);
        }
        let mut numbers: Vec<i64> = bound.room(widths.len())?;
        numbers.extend(widths.iter().map(|&width| width as i64));
        Ok(vec![images, tensor(DataType::Int64, vec![widths.len() as i64], numbers)])
    }
}

/// Height and width of what a quadrilateral was.
fn natural(corners: &[Corner; 4]) -> (usize, usize) {
    let length = |one: usize, two: usize| (corners[one][0] - corners[two][0]).hypot(corners[one][1] - corners[two][1]);
    (length(0, 3).max(length(1, 2)) as usize, length(0, 1).max(length(2, 3)) as usize)
}

/// Turns a picture upside down.
fn upside_down<F>(pixels: &mut [F], channels: usize) {
    pixels.reverse();
    pixels.chunks_exact_mut(channels).for_each(<[F]>::reverse);
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
    /// Which of them are turned upside down; empty where none is.
    turned: Bytes,
}

impl Boxes {
    fn turned(&self, number: usize) -> bool {
        self.turned.get(number).is_some_and(|&turned| turned != 0)
    }

    fn read(tensor: &Tensor, turned: Option<&Tensor>, bound: &mut Bound) -> Result<Self, StepError> {
        let values = with_type!(tensor.datatype, T => {
            let raw: Cow<'_, [<T as Element>::Raw]> = elements::<T>(tensor, bound)?;
            let mut values = bound.room(raw.len())?;
            values.extend(raw.iter().map(|&raw| T::read(raw).to_f64()));
            values
        }, Vec::new());
        let numbers = if tensor.shape.len() == 3 { 8 } else { 4 };
        let count = tensor.shape[0] as usize;
        let turned = turned.map_or(Bytes::new(), |turned| turned.data.clone());
        Ok(Self { values, numbers, count, turned })
    }
}

impl Work for CropBoxes {
    fn input_names(&self) -> &'static [&'static str] {
        if self.half_turns { &["image", "boxes", "turned"] } else { &["image", "boxes"] }
    }

    fn output_names(&self) -> &'static [&'static str] {
        if self.group.is_some() { &["images", "widths"] } else { &["images"] }
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
        if let Some(turned) = inputs.get(2) {
            specs::types(turned, &[DataType::Bool])?;
            let fits = matches!(turned.dims[..], [turned] if specs::same(turned, count).is_some());
            if !fits {
                let (name, dims) = (&turned.name, &turned.dims);
                return Err(format!("{name} has the shape {dims:?}, and [boxes] is needed: {count} of them"));
            }
        }
        let channels = image.dims[image.dims.len() - 1];
        let width = if self.width_at_most.is_some() { -1 } else { self.width as i64 };
        let dims = vec![count, self.height as i64, width, channels];
        let images = match &self.normalise {
            Some(normalise) => {
                normalise.check_channels(image)?;
                (DataType::Fp32, normalise.shape(&dims))
            }
            None => (image.datatype, dims),
        };
        let widths = self.group.map(|_| (DataType::Int64, vec![count]));
        Ok(std::iter::once(images).chain(widths).collect())
    }

    fn run(&self, inputs: &[Tensor], bound: &mut Bound) -> Result<Vec<Tensor>, StepError> {
        let (image, boxes) = (&inputs[0], Boxes::read(&inputs[1], inputs.get(2), bound)?);
        if count(image) != 1 {
            return Err(StepError::Inputs("boxes are of one picture".into()));
        }
        let extent = Extent::of(image);
        match Depth::of(image.datatype) {
            Depth::Byte => {
                let ways = (f32::from, |value: f32| value.round_ties_even() as u8);
                self.output((image, &extent, &image.data[..]), &boxes, bound, ways)
            }
            Depth::Float => {
                let floats = elements::<f32>(image, bound)?;
                let same = |value: f32| value;
                self.output((image, &extent, &floats[..]), &boxes, bound, (same, same))
            }
        }
    }
}
