//! Signals: windows, Fourier transforms as products with a table of waves, filters of hearing.

use super::{Lowering, NodeInputs};
use crate::array::{Array, Data, is_float};
use crate::error::GraphError;
use crate::expression::Binary;
use crate::ir::{Op, ValueId};
use crate::model::{OnnxNode, element};
use crate::plan::Activation;
use base::DataType;
use std::f64::consts::{PI, TAU};

impl Lowering {
    pub(super) fn signal_node(
        &mut self,
        node: &OnnxNode,
        inputs: NodeInputs<'_>,
    ) -> Result<Option<Vec<ValueId>>, GraphError> {
        let value = match node.operator.as_str() {
            "HannWindow" => self.window_function(node, inputs, [0.5, 0.5, 0.0])?,
            "HammingWindow" => self.window_function(node, inputs, [25.0 / 46.0, 21.0 / 46.0, 0.0])?,
            "BlackmanWindow" => self.window_function(node, inputs, [0.42, 0.5, 0.08])?,
            "DFT" => self.dft_node(node, inputs)?,
            "STFT" => self.stft(node, inputs)?,
            "MelWeightMatrix" => self.mel_weights(node, inputs)?,
            _ => return Ok(None),
        };
        Ok(Some(vec![value]))
    }

    fn output_type(&self, node: &OnnxNode) -> Result<DataType, GraphError> {
        let dtype = element(node.int("output_datatype", 1) as i32)?;
        if is_float(dtype) { Ok(dtype) } else { Err(self.unsupported(&format!(" of {dtype}"))) }
    }

    /// A count that an input says.
    fn count(&self, inputs: NodeInputs<'_>, position: usize, what: &str) -> Result<usize, GraphError> {
        let count = self.constant(inputs, position, what)?.to_ints().first().copied().unwrap_or(-1);
        let count = usize::try_from(count).map_err(|_| self.bad(format!("its {what} is {count}")))?;
        self.check_constant(&[count])?;
        Ok(count)
    }

    /// `a - b cos(x) + c cos(2 x)` over one turn.
    fn window_function(
        &mut self,
        node: &OnnxNode,
        inputs: NodeInputs<'_>,
        [a, b, c]: [f64; 3],
    ) -> Result<ValueId, GraphError> {
        let size = self.count(inputs, 0, "size")?;
        let turn = if node.int("periodic", 1) != 0 { size } else { size.max(2) - 1 };
        let at = |index: usize| {
            let x = TAU * index as f64 / turn as f64;
            (a - b * x.cos() + c * (2.0 * x).cos()) as f32
        };
        let dtype = self.output_type(node)?;
        Ok(self.add_constant(Array::new(dtype, &[size], Data::Float((0..size).map(at).collect()))))
    }

    fn dft_node(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let input = self.input(inputs, 0)?;
        let rank = self.graph.dims(input).len();
        let axis = match self.integers(inputs, 2, "dimension")? {
            Some(axis) => axis.first().copied().unwrap_or(-2),
            None => node.int("axis", if self.opset < 20 { 1 } else { -2 }),
        };
        let axis = self.axis(axis, rank)?;
        let length = match self.optional(inputs, 1) {
            Some(_) => self.count(inputs, 1, "length")?,
            None => self.graph.dims(input)[axis],
        };
        let (inverse, onesided) = (node.int("inverse", 0) != 0, node.int("onesided", 0) != 0);
        if inverse && onesided {
            return Err(self.unsupported(" of one side, inverse"));
        }
        self.dft(input, axis, length, inverse, onesided)
    }

    /// Real and imaginary parts are the last dimension, of which the second may be left out.
    fn dft(
        &mut self,
        input: ValueId,
        axis: usize,
        length: usize,
        inverse: bool,
        onesided: bool,
    ) -> Result<ValueId, GraphError> {
        self.check_float(input)?;
        let (dims, dtype) = (self.dims(input), self.dtype(input));
        let (rank, size) = (dims.len(), dims[axis]);
        let parts = dims[rank - 1];
        if axis + 1 == rank || !(1..=2).contains(&parts) || length == 0 || size == 0 {
            return Err(self.bad(format!("{dims:?} has no signal along dimension {axis}")));
        }
        let results = if onesided { length / 2 + 1 } else { length };
        self.check_constant(&[parts * size, 2 * results])?;
        let waves = waves(size, parts, length, results, inverse);
        let waves = self.graph.constant(Array::new(dtype, &[parts * size, results * 2], Data::Float(waves)), false);
        // Others, the parts, the signal.
        let mut order: Vec<_> = (0..rank).filter(|&other| other != axis).collect();
        order.push(axis);
        let lines = self.transpose(input, &order);
        let count = dims.iter().product::<usize>() / (size * parts);
        let lines = self.reshape(lines, &[count, parts * size]);
        let op = Op::Gemm { alpha: 1.0, bias: false, residual: false, activation: Activation::None };
        let value = self.emit(op, &[lines, waves], dtype, &[count, results * 2]);
        let others: Vec<_> = order[..rank - 2].iter().map(|&axis| dims[axis]).collect();
        let value = self.reshape(value, &[&others[..], &[results, 2]].concat());
        // The signal back to where it was.
        let mut back: Vec<_> = (0..rank - 2).collect();
        back.insert(axis, rank - 2);
        back.push(rank - 1);
        Ok(self.transpose(value, &back))
    }

    fn stft(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let signal = self.input(inputs, 0)?;
        let dtype = self.dtype(signal);
        let [batch, size, parts] = *self.dims(signal) else { return Err(self.bad("its signal has not 3 dimensions")) };
        let step = self.count(inputs, 1, "step")?;
        let window = self.optional(inputs, 2);
        let length = match (self.optional(inputs, 3), window) {
            (Some(_), _) => self.count(inputs, 3, "length")?,
            (None, Some(window)) => self.graph.dims(window).first().copied().unwrap_or(0),
            (None, None) => size,
        };
        let onesided = node.int("onesided", 1) != 0;
        if step == 0 || length == 0 || length > size || (onesided && parts == 2) {
            return Err(self.bad(format!("frames of {length} every {step} of {size}, with {parts} parts")));
        }
        let frames = 1 + (size - length) / step;
        self.check_constant(&[frames, length])?;
        let list = (0..frames * length).map(|at| (at / length * step + at % length) as i64).collect();
        let list = self.graph.constant(Array::new(DataType::Int32, &[frames, length], Data::Int(list)), false);
        let dims = [batch, frames, length, parts];
        let mut value = self.emit(Op::Gather { axis: 1, elements: false }, &[signal, list], dtype, &dims);
        if let Some(window) = window {
            if self.graph.dims(window) != [length] {
                return Err(self.bad(format!("its window is not of {length}")));
            }
            let window = self.reshape(window, &[length, 1]);
            value = self.binary(Binary::Multiply, value, window)?;
        }
        self.dft(value, 2, length, false, onesided)
    }

    /// As the operator's definition has it.
    fn mel_weights(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let (bins, length) = (self.count(inputs, 0, "number of bins")?, self.count(inputs, 1, "length")?);
        let number = |position: usize, what: &str| -> Result<f64, GraphError> {
            Ok(self.constant(inputs, position, what)?.scalar().unwrap_or(0.0))
        };
        let (rate, low, high) = (number(2, "rate")?, number(3, "lower edge")?, number(4, "upper edge")?);
        let dtype = self.output_type(node)?;
        let rows = length / 2 + 1;
        self.check_constant(&[rows, bins])?;
        let mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
        let (first, step) = (mel(low), (mel(high) - mel(low)) / (bins + 2) as f64);
        let edge = |index: usize| {
            let hertz = 700.0 * (10f64.powf((first + index as f64 * step) / 2595.0) - 1.0);
            ((length + 1) as f64 * hertz / rate).floor()
        };
        let edges: Vec<_> = (0..bins + 2).map(edge).collect();
        if edges.iter().any(|&edge| !(0.0..rows as f64).contains(&edge)) {
            return Err(self.bad(format!("its edges are outside of {rows} frequencies")));
        }
        let mut data = vec![0.0; rows * bins];
        for bin in 0..bins {
            let [lower, center, upper] = [0, 1, 2].map(|next| edges[bin + next] as usize);
            for row in lower..=center {
                let rise = if center == lower { 1.0 } else { (row - lower) as f32 / (center - lower) as f32 };
                data[row * bins + bin] = rise;
            }
            for row in center..upper {
                data[row * bins + bin] = (upper - row) as f32 / (upper - center) as f32;
            }
        }
        Ok(self.add_constant(Array::new(dtype, &[rows, bins], Data::Float(data))))
    }
}

/// `[parts * size, results * 2]`: what each part of each element adds to both parts of each result. Elements behind the
/// length count nothing.
fn waves(size: usize, parts: usize, length: usize, results: usize, inverse: bool) -> Vec<f32> {
    let mut data = Vec::with_capacity(parts * size * results * 2);
    let (sign, factor) = if inverse { (1.0, 1.0 / length as f64) } else { (-1.0, 1.0) };
    for row in 0..parts * size {
        let (imaginary, at) = (row / size == 1, row % size);
        let factor = if at < length { factor } else { 0.0 };
        for result in 0..results {
            let angle = sign * 2.0 * PI * ((at * result) % length) as f64 / length as f64;
            let (sin, cos) = angle.sin_cos();
            let both = if imaginary { [-sin, cos] } else { [cos, sin] };
            data.extend(both.map(|part| (part * factor) as f32));
        }
    }
    data
}
