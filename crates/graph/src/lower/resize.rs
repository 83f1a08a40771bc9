//! Other sizes of images, in the forms that are rare: along each dimension a table says which elements count how much.

use super::{Lowering, NodeInputs};
use crate::array::{Array, Data};
use crate::error::GraphError;
use crate::evaluate::taps;
use crate::expression::{Instruction, ValueKind};
use crate::ir::{Op, ValueId};
use crate::model::OnnxNode;
use crate::plan::{Activation, Coordinates, ResizeKind};
use base::DataType;

/// One dimension.
struct Along {
    axis: usize,
    scale: f32,
    from: usize,
    to: usize,
    /// Where the part that is shown begins and ends.
    region: Option<[f32; 2]>,
}

/// Which elements count how much for one of the result, and whether it lies beside all of them.
struct Weighed {
    taps: Vec<(usize, f32)>,
    outside: bool,
}

impl Along {
    /// Without a region, and where nothing is smoothed, as everywhere.
    fn plain(&self, at: usize, kind: ResizeKind, coordinates: Coordinates) -> Weighed {
        Weighed { taps: taps(at, self.scale, self.from, self.to, kind, coordinates), outside: false }
    }

    /// The part of the input that is shown, from its first element to its last, linearly.
    fn cropped(&self, at: usize, [start, end]: [f32; 2]) -> Weighed {
        let last = self.from as f32 - 1.0;
        let moved = if self.to > 1 {
            at as f32 * (end - start) * last / (self.scale * self.from as f32 - 1.0)
        } else {
            (end - start) * last / 2.0
        };
        let x = moved + start * last;
        if !(0.0..=last).contains(&x) {
            return Weighed { taps: vec![(0, 1.0)], outside: true };
        }
        let low = x.floor();
        let high = (low + 1.0).min(last);
        Weighed { taps: vec![(low as usize, 1.0 - (x - low)), (high as usize, x - low)], outside: false }
    }

    /// Smoothed as far as the result is smaller.
    fn smoothed(&self, x: f32, kind: ResizeKind, exclude_outside: bool) -> Weighed {
        let scale = self.scale.min(1.0);
        // The one before the position, never at it.
        let low = x.ceil() - 1.0;
        let ratio = x - low;
        let reach = if matches!(kind, ResizeKind::Cubic { .. }) { 2.0 } else { 1.0 };
        let start = (-reach / scale).floor() as i64 + 1;
        let weight = |step: i64| {
            let d = ((step as f32 - ratio) * scale).abs();
            match kind {
                ResizeKind::Cubic { coefficient: a, .. } if d <= 1.0 => ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0,
                ResizeKind::Cubic { coefficient: a, .. } if d < 2.0 => ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a,
                ResizeKind::Cubic { .. } => 0.0,
                _ => (1.0 - d).clamp(0.0, 1.0),
            }
        };
        let last = self.from as f32 - 1.0;
        let all = (start..2 - start).map(|step| (low + step as f32, weight(step)));
        let counted = all.filter(|(at, _)| !exclude_outside || (0.0..=last).contains(at));
        let mut taps: Vec<_> = counted.map(|(at, weight)| (at.clamp(0.0, last) as usize, weight)).collect();
        let sum: f32 = taps.iter().map(|tap| tap.1).sum();
        taps.iter_mut().for_each(|tap| tap.1 /= sum);
        Weighed { taps, outside: false }
    }
}

impl Lowering {
    pub(super) fn resize_by_tables(
        &mut self,
        node: &OnnxNode,
        inputs: NodeInputs<'_>,
        axes: &[usize],
        scale: &[f32],
        to: &[usize],
    ) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        self.check_float(input)?;
        let dims = self.dims(input);
        if dims.contains(&0) || to.contains(&0) {
            return Err(self.bad(format!("{dims:?} can't become {to:?}")));
        }
        let crops = node.text("coordinate_transformation_mode", "") == "tf_crop_and_resize";
        let smooth = node.int("antialias", 0) != 0;
        let (kind, coordinates) = if crops {
            (self.cropped_kind(node)?, Coordinates::Asymmetric)
        } else {
            self.resize_kind(node, node.operator == "Upsample" || self.opset < 11)?
        };
        if smooth && (crops || matches!(kind, ResizeKind::Nearest(_)) || coordinates != Coordinates::HalfPixel) {
            return Err(self.unsupported(" with antialias and other than half pixels"));
        }
        let region = if crops { Some(self.constant(inputs, 1, "region")?.to_floats().into_owned()) } else { None };
        if region.as_ref().is_some_and(|region| region.len() != 2 * axes.len()) {
            return Err(self.bad("its region is not two numbers for each dimension"));
        }
        let exclude_outside = node.int("exclude_outside", 0) != 0;
        let (mut value, mut outside) = (input, Vec::new());
        for (position, &axis) in axes.iter().enumerate() {
            let region = region.as_ref().map(|region| [region[position], region[position + axes.len()]]);
            let along = Along { axis, scale: scale[axis], from: dims[axis], to: to[axis], region };
            if along.from == along.to && along.scale == 1.0 && region.is_none_or(|region| region == [0.0, 1.0]) {
                continue;
            }
            // Smoothing looks at as many as the result is smaller.
            let looks = (4.0 / along.scale.min(1.0)).ceil() as usize;
            self.check_constant(&[along.from, along.to])?;
            self.check_constant(&[looks, along.to])?;
            let one = |at: usize| match along.region {
                Some(region) => along.cropped(at, region),
                None if smooth => along.smoothed((at as f32 + 0.5) / along.scale - 0.5, kind, exclude_outside),
                None => along.plain(at, kind, coordinates),
            };
            let table: Vec<_> = (0..along.to).map(one).collect();
            value = self.weighed(value, &along, &table)?;
            if table.iter().any(|one| one.outside) {
                outside.push((axis, table.iter().map(|one| i64::from(one.outside)).collect::<Vec<_>>()));
            }
        }
        let dtype = self.dtype(value);
        let other = self.scalar(dtype, f64::from(node.float("extrapolation_value", 0.0)));
        for (axis, list) in outside {
            let mut shape = vec![1; dims.len()];
            shape[axis] = list.len();
            let mask = self.graph.constant(Array::new(DataType::Bool, &shape, Data::Int(list)), false);
            value = self.apply(&[mask, other, value], dtype, |expression, of| {
                expression.push(Instruction::Select(of[0], of[1], of[2]), ValueKind::Float)
            })?;
        }
        Ok(value)
    }

    fn cropped_kind(&self, node: &OnnxNode) -> Result<ResizeKind, GraphError> {
        match node.text("mode", "nearest") {
            "linear" => Ok(ResizeKind::Linear),
            other => Err(self.unsupported(&format!(" with the coordinates tf_crop_and_resize and the mode {other}"))),
        }
    }

    /// Sums along one dimension by a table; where each is one element, only a choice.
    fn weighed(&mut self, value: ValueId, along: &Along, table: &[Weighed]) -> Result<ValueId, GraphError> {
        let (mut dims, dtype) = (self.dims(value), self.dtype(value));
        let (axis, rank) = (along.axis, dims.len());
        dims[axis] = along.to;
        if table.iter().all(|one| matches!(one.taps[..], [(_, weight)] if weight == 1.0)) {
            let list = Data::Int(table.iter().map(|one| one.taps[0].0 as i64).collect());
            let list = self.graph.constant(Array::new(DataType::Int32, &[along.to], list), false);
            return Ok(self.emit(Op::Gather { axis, elements: false }, &[value, list], dtype, &dims));
        }
        let mut matrix = vec![0.0; along.from * along.to];
        for (at, one) in table.iter().enumerate() {
            one.taps.iter().for_each(|&(from, weight)| matrix[from * along.to + at] += weight);
        }
        let matrix = Array::new(dtype, &[along.from, along.to], Data::Float(matrix));
        let matrix = self.graph.constant(matrix, false);
        let mut order: Vec<_> = (0..rank).filter(|&other| other != axis).collect();
        order.push(axis);
        let lines = self.transpose(value, &order);
        let count = dims.iter().product::<usize>() / along.to;
        let lines = self.reshape(lines, &[count, along.from]);
        let op = Op::Gemm { alpha: 1.0, bias: false, residual: false, activation: Activation::None };
        let lines = self.emit(op, &[lines, matrix], dtype, &[count, along.to]);
        let turned: Vec<_> = order.iter().map(|&axis| dims[axis]).collect();
        let lines = self.reshape(lines, &turned);
        let mut back: Vec<_> = (0..rank - 1).collect();
        back.insert(axis, rank - 1);
        Ok(self.transpose(lines, &back))
    }
}
