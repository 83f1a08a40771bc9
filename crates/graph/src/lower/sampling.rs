//! Images that are read between their pixels: positions become indices of the pixels around and how much each of them
//! counts, and what is read there is added up.

use super::elementwise::Floats;
use super::{Lowering, NodeInputs};
use crate::array::Array;
use crate::error::GraphError;
use crate::expression::{Binary, Expression, Instruction, Register, Unary, ValueKind};
use crate::ir::{Op, ValueId};
use crate::model::OnnxNode;
use crate::plan::ReduceKind;
use base::DataType;

/// One of the pixels around, along one dimension: its index, and how much it counts.
#[derive(Clone, Copy)]
struct Tap {
    index: ValueId,
    weight: ValueId,
}

/// What is read beside an image.
#[derive(Clone, Copy, PartialEq)]
enum Border {
    Zeros,
    Clamped,
    /// The image again, turned round at these two ends.
    Reflection {
        first: f32,
        last: f32,
    },
}

/// How pixels are put together.
#[derive(Clone, Copy, PartialEq)]
enum Between {
    Nearest,
    Linear,
    Cubic,
}

impl Between {
    /// Which pixels count, from the one before the position on.
    fn steps(self) -> &'static [f32] {
        match self {
            Self::Nearest => &[0.0],
            Self::Linear => &[0.0, 1.0],
            Self::Cubic => &[-1.0, 0.0, 1.0, 2.0],
        }
    }
}

impl Floats<'_> {
    fn less(&mut self, a: Register, b: Register) -> Register {
        self.0.push(Instruction::Binary(Binary::Less, a, b), ValueKind::Bool)
    }

    fn choose(&mut self, condition: Register, a: Register, b: Register) -> Register {
        self.0.push(Instruction::Select(condition, a, b), ValueKind::Float)
    }

    /// Whether it is below the one or above the other.
    fn outside(&mut self, x: Register, first: f32, last: f32) -> Register {
        let (first, last) = (self.number(first), self.number(last));
        let (below, above) = (self.less(x, first), self.less(last, x));
        self.0.push(Instruction::Binary(Binary::Or, below, above), ValueKind::Bool)
    }

    /// Turned round at both ends, as often as it takes.
    fn reflected(&mut self, x: Register, first: f32, last: f32) -> Register {
        let reach = last - first;
        if reach <= 0.0 {
            return self.number(first);
        }
        let from = self.with(Binary::Subtract, x, first);
        let from = self.unary(Unary::Absolute, from);
        let period = self.number(2.0 * reach);
        let from = self.binary(Binary::Remainder, from, period);
        let from = self.with(Binary::Subtract, from, reach);
        let from = self.unary(Unary::Absolute, from);
        let last = self.number(last);
        self.binary(Binary::Subtract, last, from)
    }

    /// What a pixel at that distance counts in a cubic interpolation.
    fn cubic(&mut self, distance: Register) -> Register {
        let a = -0.75;
        let d = self.unary(Unary::Absolute, distance);
        let near = self.with(Binary::Multiply, d, a + 2.0);
        let near = self.with(Binary::Subtract, near, a + 3.0);
        let near = self.binary(Binary::Multiply, near, d);
        let near = self.binary(Binary::Multiply, near, d);
        let near = self.with(Binary::Add, near, 1.0);
        let far = self.with(Binary::Multiply, d, a);
        let far = self.with(Binary::Subtract, far, 5.0 * a);
        let far = self.binary(Binary::Multiply, far, d);
        let far = self.with(Binary::Add, far, 8.0 * a);
        let far = self.binary(Binary::Multiply, far, d);
        let far = self.with(Binary::Subtract, far, 4.0 * a);
        let one = self.number(1.0);
        let beyond = self.less(one, d);
        self.choose(beyond, far, near)
    }

    /// The position that is read for one in pixels, and the pixel so many steps from it: its index as a float, and how
    /// much it counts.
    fn tap(&mut self, x: Register, size: usize, between: Between, border: Border, step: f32) -> (Register, Register) {
        let last = size as f32 - 1.0;
        let mut x = if between == Between::Nearest { self.unary(Unary::Round, x) } else { x };
        x = match border {
            // Cubic interpolation goes on beyond the border, and reads the last pixel there.
            Border::Clamped if between == Between::Cubic => x,
            Border::Zeros => x,
            Border::Clamped => {
                let (clamped, outside) = (self.clip(x, 0.0, last), self.outside(x, -0.5, last + 0.5));
                self.choose(outside, clamped, x)
            }
            Border::Reflection { first, last } => {
                let (reflected, outside) = (self.reflected(x, first, last), self.outside(x, first, last));
                self.choose(outside, reflected, x)
            }
        };
        let low = self.unary(Unary::Floor, x);
        let pixel = self.with(Binary::Add, low, step);
        let mut weight = match between {
            Between::Nearest => self.number(1.0),
            Between::Linear => {
                let distance = self.binary(Binary::Subtract, x, pixel);
                let distance = self.unary(Unary::Absolute, distance);
                let one = self.number(1.0);
                self.binary(Binary::Subtract, one, distance)
            }
            Between::Cubic => {
                let distance = self.binary(Binary::Subtract, x, pixel);
                self.cubic(distance)
            }
        };
        let pixel = match border {
            Border::Zeros => {
                let (nothing, outside) = (self.number(0.0), self.outside(pixel, 0.0, last));
                weight = self.choose(outside, nothing, weight);
                pixel
            }
            Border::Clamped => pixel,
            Border::Reflection { first, last } => {
                let reflected = self.reflected(pixel, first, last);
                self.unary(Unary::Round, reflected)
            }
        };
        (self.clip(pixel, 0.0, last), weight)
    }
}

impl Lowering {
    pub(super) fn sampling_node(
        &mut self,
        node: &OnnxNode,
        inputs: NodeInputs<'_>,
    ) -> Result<Option<Vec<ValueId>>, GraphError> {
        let value = match node.operator.as_str() {
            "GridSample" => self.grid_sample(node, inputs)?,
            "AffineGrid" => self.affine_grid(node, inputs)?,
            "RoiAlign" => self.roi_align(node, inputs)?,
            "DeformConv" => self.deform_conv(node, inputs)?,
            _ => return Ok(None),
        };
        Ok(Some(vec![value]))
    }

    /// A pixel around: `build` makes its index as a float and how much it counts.
    fn tap(
        &mut self,
        of: &[ValueId],
        build: impl Fn(&mut Expression, &[Register]) -> (Register, Register),
    ) -> Result<Tap, GraphError> {
        let index = self.apply(of, DataType::Int32, |expression, of| {
            let (index, _) = build(expression, of);
            expression.push(Instruction::Cast(ValueKind::Int, index), ValueKind::Int)
        })?;
        let weight = self.apply(of, DataType::Fp32, |expression, of| build(expression, of).1)?;
        Ok(Tap { index, weight })
    }

    /// Every choice of one pixel along each dimension: its index in the flat image, and how much it counts.
    fn corners(&mut self, taps: &[Vec<Tap>], sizes: &[usize]) -> Result<Vec<Tap>, GraphError> {
        let mut corners = taps[0].clone();
        for (along, &size) in taps[1..].iter().zip(&sizes[1..]) {
            let mut next = Vec::new();
            let size = self.scalar(DataType::Int32, size as f64);
            for corner in corners {
                let row = self.binary(Binary::Multiply, corner.index, size)?;
                for tap in along {
                    let index = self.binary(Binary::Add, row, tap.index)?;
                    let weight = self.binary(Binary::Multiply, corner.weight, tap.weight)?;
                    next.push(Tap { index, weight });
                }
            }
            corners = next;
        }
        Ok(corners)
    }

    /// What is read of `[.., elements]` at the corners, whose indices can be expanded to `[.., positions]`.
    fn read_at(&mut self, data: ValueId, corners: &[Tap], dims: &[usize]) -> Result<ValueId, GraphError> {
        let dtype = self.dtype(data);
        let mut sum = None;
        for corner in corners {
            let index = self.expand(corner.index, dims);
            let pixel = self.emit(Op::Gather { axis: dims.len() - 1, elements: true }, &[data, index], dtype, dims);
            let weight = self.cast(corner.weight, dtype)?;
            let part = self.binary(Binary::Multiply, pixel, weight)?;
            sum = Some(match sum {
                None => part,
                Some(sum) => self.binary(Binary::Add, sum, part)?,
            });
        }
        sum.ok_or_else(|| self.bad("nothing is read"))
    }

    fn grid_sample(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let (image, grid) = (self.input(inputs, 0)?, self.input(inputs, 1)?);
        self.check_float(image)?;
        self.check_float(grid)?;
        let (dims, wanted) = (self.dims(image), self.dims(grid));
        let rank = dims.len().saturating_sub(2);
        let fits = wanted.len() == dims.len() && wanted.last() == Some(&rank) && wanted[0] == dims[0];
        if !(2..=3).contains(&rank) || !fits || dims.contains(&0) {
            return Err(self.unsupported(&format!(" for {dims:?} and a grid of {wanted:?}")));
        }
        let between = match node.text("mode", "linear") {
            "nearest" => Between::Nearest,
            "linear" | "bilinear" => Between::Linear,
            "cubic" | "bicubic" if rank == 2 => Between::Cubic,
            other => return Err(self.unsupported(&format!(" with the mode {other} for {rank} dimensions"))),
        };
        let (aligned, padding) = (node.int("align_corners", 0) != 0, node.text("padding_mode", "zeros"));
        let count = wanted[1..wanted.len() - 1].iter().product::<usize>();
        let mut taps = Vec::new();
        for (axis, &size) in dims[2..].iter().enumerate() {
            let border = match padding {
                "zeros" => Border::Zeros,
                "border" => Border::Clamped,
                "reflection" if aligned => Border::Reflection { first: 0.0, last: size as f32 - 1.0 },
                "reflection" => Border::Reflection { first: -0.5, last: size as f32 - 0.5 },
                other => return Err(self.bad(format!("padding_mode is {other:?}"))),
            };
            // The grid has columns first.
            let position = self.part(grid, wanted.len() - 1, rank - 1 - axis, 1);
            let position = self.reshape(position, &[dims[0], 1, count]);
            let mut along = Vec::new();
            for &step in between.steps() {
                along.push(self.tap(&[position], |expression, of| {
                    let mut floats = Floats(expression);
                    let x = floats.with(Binary::Add, of[0], 1.0);
                    let x = if aligned {
                        floats.with(Binary::Multiply, x, (size as f32 - 1.0) / 2.0)
                    } else {
                        let x = floats.with(Binary::Multiply, x, size as f32);
                        let x = floats.with(Binary::Subtract, x, 1.0);
                        floats.with(Binary::Multiply, x, 0.5)
                    };
                    floats.tap(x, size, between, border, step)
                })?);
            }
            taps.push(along);
        }
        let corners = self.corners(&taps, &dims[2..])?;
        let flat = self.reshape(image, &[dims[0], dims[1], dims[2..].iter().product()]);
        let value = self.read_at(flat, &corners, &[dims[0], dims[1], count])?;
        Ok(self.reshape(value, &[&dims[..2], &wanted[1..wanted.len() - 1]].concat()))
    }

    /// Positions of an image's pixels, moved by a matrix for each image.
    fn affine_grid(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let theta = self.input(inputs, 0)?;
        let size = self.constant(inputs, 1, "size")?.to_ints().into_owned();
        let dims = self.dims(theta);
        let sizes: Vec<_> = size.iter().skip(2).map(|&size| size.max(0) as usize).collect();
        let rank = sizes.len();
        if !(2..=3).contains(&rank) || dims.len() != 3 || dims[1..] != [rank, rank + 1] || sizes.contains(&0) {
            return Err(self.bad(format!("matrices of {dims:?} for {size:?}")));
        }
        let count = sizes.iter().try_fold(1usize, |count, &size| count.checked_mul(size)).unwrap_or(usize::MAX);
        self.check_constant(&[count, rank + 1])?;
        let aligned = node.int("align_corners", 0) != 0;
        let at = |index: usize, size: usize| match aligned {
            true if size == 1 => -1.0,
            true => 2.0 * index as f32 / (size as f32 - 1.0) - 1.0,
            false => (2.0 * index as f32 + 1.0) / size as f32 - 1.0,
        };
        let mut data = Vec::with_capacity(count * (rank + 1));
        for pixel in 0..count {
            let mut rest = pixel;
            // Columns first.
            for &size in sizes.iter().rev() {
                data.push(at(rest % size, size));
                rest /= size;
            }
            data.push(1.0);
        }
        let dtype = self.dtype(theta);
        let pixels = self.graph.constant(Array::floats(&[1, count, 1, rank + 1], data), false);
        let pixels = self.cast(pixels, dtype)?;
        let theta = self.reshape(theta, &[dims[0], 1, rank, rank + 1]);
        let terms = self.binary(Binary::Multiply, pixels, theta)?;
        let moved = self.reduction(ReduceKind::Sum, terms, &[3]);
        Ok(self.reshape(moved, &[&dims[..1], &sizes[..], &[rank]].concat()))
    }

    /// The pixels around the positions of the samples of each region along one dimension, of which the regions say the
    /// ends.
    fn region_taps(
        &mut self,
        [first, last]: [ValueId; 2],
        (size, bins, samples): (usize, usize, usize),
        scale: f32,
        half_pixel: bool,
    ) -> Result<Vec<Tap>, GraphError> {
        let count = bins * samples;
        let within = |at: usize| (at / samples) as f32 + ((at % samples) as f32 + 0.5) / samples as f32;
        let within = self.graph.constant(Array::floats(&[1, count], (0..count).map(within).collect()), false);
        let build = |expression: &mut Expression, of: &[Register], high: bool| {
            let mut floats = Floats(expression);
            let shift = if half_pixel { 0.5 } else { 0.0 };
            let [first, last] = [of[0], of[1]].map(|end| {
                let end = floats.with(Binary::Multiply, end, scale);
                floats.with(Binary::Subtract, end, shift)
            });
            let mut reach = floats.binary(Binary::Subtract, last, first);
            if !half_pixel {
                reach = floats.with(Binary::Maximum, reach, 1.0);
            }
            let bin = floats.with(Binary::Divide, reach, bins as f32);
            let moved = floats.binary(Binary::Multiply, bin, of[2]);
            let x = floats.binary(Binary::Add, first, moved);
            let outside = floats.outside(x, -1.0, size as f32);
            let x = floats.clip(x, 0.0, size as f32 - 1.0);
            let low = floats.unary(Unary::Floor, x);
            let above = floats.binary(Binary::Subtract, x, low);
            let one = floats.number(1.0);
            let weight = if high { above } else { floats.binary(Binary::Subtract, one, above) };
            let nothing = floats.number(0.0);
            let weight = floats.choose(outside, nothing, weight);
            let index = floats.with(Binary::Add, low, if high { 1.0 } else { 0.0 });
            (floats.with(Binary::Minimum, index, size as f32 - 1.0), weight)
        };
        let of = [first, last, within];
        Ok(vec![
            self.tap(&of, |expression, of| build(expression, of, false))?,
            self.tap(&of, |expression, of| build(expression, of, true))?,
        ])
    }

    fn roi_align(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let [image, regions, batch] = [self.input(inputs, 0)?, self.input(inputs, 1)?, self.input(inputs, 2)?];
        self.check_float(image)?;
        let [n, channels, height, width] = *self.dims(image) else { return Err(self.bad("its input is no image")) };
        let [count, 4] = *self.dims(regions) else { return Err(self.bad("its regions have not four ends")) };
        let number = |name: &str, otherwise: i64| usize::try_from(node.int(name, otherwise)).unwrap_or(0);
        let (rows, columns, samples) =
            (number("output_height", 1), number("output_width", 1), number("sampling_ratio", 0));
        if samples == 0 {
            return Err(self.unsupported(" with as many samples as a region is large"));
        }
        if [n, channels, height, width, rows, columns].contains(&0) || self.graph.dims(batch) != [count] {
            return Err(self.bad("it has no pixels, or not one image for each region"));
        }
        self.check_constant(&[rows, columns, samples, samples])?;
        let named = node
            .text("coordinate_transformation_mode", if self.opset < 16 { "output_half_pixel" } else { "half_pixel" });
        let (half_pixel, scale) = (named == "half_pixel", node.float("spatial_scale", 1.0));
        let ends = |this: &mut Self, first: usize| [first, first + 2].map(|end| this.part(regions, 1, end, 1));
        let (across, down) = (ends(self, 0), ends(self, 1));
        let down = self.region_taps(down, (height, rows, samples), scale, half_pixel)?;
        let across = self.region_taps(across, (width, columns, samples), scale, half_pixel)?;
        let shaped = |this: &mut Self, taps: Vec<Tap>, dims: [usize; 3]| {
            let each =
                |tap: &Tap| Tap { index: this.reshape(tap.index, &dims), weight: this.reshape(tap.weight, &dims) };
            taps.iter().map(each).collect::<Vec<_>>()
        };
        let (tall, wide) = (rows * samples, columns * samples);
        let (down, across) = (shaped(self, down, [count, tall, 1]), shaped(self, across, [count, 1, wide]));
        // Which image: the first dimension of all pixels.
        let batch = self.cast(batch, DataType::Int32)?;
        let batch = self.reshape(batch, &[count, 1, 1]);
        let one = self.scalar(DataType::Fp32, 1.0);
        let corners = self.corners(&[vec![Tap { index: batch, weight: one }], down, across], &[n, height, width])?;
        let pixels = self.transpose(image, &[0, 2, 3, 1]);
        let pixels = self.reshape(pixels, &[n * height * width, channels]);
        let most = match node.text("mode", "avg") {
            "avg" => false,
            "max" => true,
            other => return Err(self.bad(format!("mode is {other:?}"))),
        };
        let dtype = self.dtype(image);
        let mut all = None;
        for corner in corners {
            let dims = [count, tall, wide, channels];
            let read = self.emit(Op::Gather { axis: 0, elements: false }, &[pixels, corner.index], dtype, &dims);
            let weight = self.reshape(corner.weight, &[count, tall, wide, 1]);
            let weight = self.cast(weight, dtype)?;
            let part = self.binary(Binary::Multiply, read, weight)?;
            all = Some(match all {
                None => part,
                Some(all) => self.binary(if most { Binary::Maximum } else { Binary::Add }, all, part)?,
            });
        }
        let all = all.ok_or_else(|| self.bad("nothing is read"))?;
        let bins = self.reshape(all, &[count, rows, samples, columns, samples, channels]);
        let bins = self.reduction(if most { ReduceKind::Max } else { ReduceKind::Mean }, bins, &[2, 4]);
        let bins = self.reshape(bins, &[count, rows, columns, channels]);
        Ok(self.transpose(bins, &[0, 3, 1, 2]))
    }

    /// A convolution whose window has its elements where another input says.
    fn deform_conv(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let [image, weight, offset] = [self.input(inputs, 0)?, self.input(inputs, 1)?, self.input(inputs, 2)?];
        self.check_float(image)?;
        let (dims, weights) = (self.dims(image), self.dims(weight));
        let groups = node.int("group", 1).clamp(1, super::MOST_WINDOW) as usize;
        let shifts = node.int("offset_group", 1).clamp(1, super::MOST_WINDOW) as usize;
        if dims.len() != 4 || weights.len() != 4 {
            return Err(self.unsupported(&format!(" for {} dimensions", dims.len())));
        }
        let fits = weights[1] * groups == dims[1] && weights[0] % groups == 0 && dims[1] % shifts == 0;
        if !fits || dims.contains(&0) || weights.contains(&0) {
            return Err(self.bad(format!("{dims:?} and weights {weights:?} don't go together")));
        }
        let window = self.window(node, &dims[2..], [weights[2], weights[3]], false)?;
        let [rows, columns] = self.moved(&window, &dims[2..], false)?;
        let (taps, places) = (weights[2] * weights[3], rows * columns);
        if self.dims(offset) != [dims[0], shifts * taps * 2, rows, columns] {
            return Err(self.bad(format!("its offsets are {:?}", self.dims(offset))));
        }
        self.check_constant(&[taps, places])?;
        let offset = self.reshape(offset, &[dims[0], shifts, taps, 2, places]);
        let mut along = Vec::new();
        for axis in 0..2 {
            let base = |at: usize| {
                let (tap, place) = (at / places, at % places);
                let (tap, place) =
                    if axis == 0 { (tap / weights[3], place / columns) } else { (tap % weights[3], place % columns) };
                (place * window.strides[axis] + tap * window.dilations[axis]) as f32 - window.pads_before[axis] as f32
            };
            let base = Array::floats(&[1, 1, taps * places], (0..taps * places).map(base).collect());
            let base = self.graph.constant(base, false);
            let shift = self.part(offset, 3, axis, 1);
            let shift = self.reshape(shift, &[dims[0], shifts, taps * places]);
            let shift = self.cast(shift, DataType::Fp32)?;
            let mut list = Vec::new();
            for &step in Between::Linear.steps() {
                list.push(self.tap(&[base, shift], |expression, of| {
                    let mut floats = Floats(expression);
                    let x = floats.binary(Binary::Add, of[0], of[1]);
                    floats.tap(x, dims[axis + 2], Between::Linear, Border::Zeros, step)
                })?);
            }
            along.push(list);
        }
        let mut corners = self.corners(&along, &dims[2..])?;
        for corner in &mut corners {
            let shape = [dims[0], shifts, 1, taps * places];
            *corner = Tap { index: self.reshape(corner.index, &shape), weight: self.reshape(corner.weight, &shape) };
        }
        let (each, size) = (dims[1] / shifts, dims[2] * dims[3]);
        let flat = self.reshape(image, &[dims[0], shifts, each, size]);
        let mut under = self.read_at(flat, &corners, &[dims[0], shifts, each, taps * places])?;
        if let Some(mask) = self.optional(inputs, 4) {
            if self.dims(mask) != [dims[0], shifts * taps, rows, columns] {
                return Err(self.bad(format!("its mask is {:?}", self.dims(mask))));
            }
            let mask = self.reshape(mask, &[dims[0], shifts, 1, taps * places]);
            under = self.binary(Binary::Multiply, under, mask)?;
        }
        let under = self.reshape(under, &[dims[0], dims[1], taps, places]);
        let under = self.transpose(under, &[0, 1, 3, 2]);
        let filters = self.reshape(weight, &[groups, weights[0] / groups, weights[1] * taps]);
        let filters = self.transpose(filters, &[0, 2, 1]);
        let value = self.filtered(under, filters);
        let value = self.with_bias(value, self.optional(inputs, 3))?;
        Ok(self.reshape(value, &[dims[0], weights[0], rows, columns]))
    }
}
