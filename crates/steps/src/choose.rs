//! The highest of many values: where they are, and what they are.

use crate::bound::Bound;
use crate::elements::{Element, elements, tensor, with_type};
use crate::{StepError, Work, parameters, specs};
use base::{DataType, TensorSpec};
use engine::Tensor;
use serde::Deserialize;
use toml::Table;

/// Where along an axis the highest value is, the first of equal ones: ONNX's `ArgMax`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Argmax {
    #[serde(default = "parameters::last")]
    axis: i64,
    /// Whether the axis stays, with one element.
    #[serde(default)]
    keep_axis: bool,
}

impl Argmax {
    pub(crate) fn read(table: &Table) -> Result<Box<dyn Work>, String> {
        Ok(Box::new(parameters::read::<Self>(table)?))
    }

    fn shape(&self, shape: &[i64], axis: usize) -> Vec<i64> {
        let mut shape = shape.to_vec();
        if self.keep_axis {
            shape[axis] = 1;
        } else {
            shape.remove(axis);
        }
        shape
    }
}

impl Work for Argmax {
    fn input_names(&self) -> &'static [&'static str] {
        &["scores"]
    }

    fn output_names(&self) -> &'static [&'static str] {
        &["indices"]
    }

    fn outputs(&self, inputs: &[TensorSpec]) -> Result<Vec<(DataType, Vec<i64>)>, String> {
        specs::numbers(&inputs[0])?;
        let axis = specs::axis(&inputs[0], self.axis)?;
        if inputs[0].dims[axis] == 0 {
            return Err(format!(
                "{} has no elements along axis {axis}, and none of them is the highest",
                inputs[0].name
            ));
        }
        Ok(vec![(DataType::Int64, self.shape(&inputs[0].dims, axis))])
    }

    fn run(&self, inputs: &[Tensor], bound: &mut Bound) -> Result<Vec<Tensor>, StepError> {
        let input = &inputs[0];
        let axis = specs::counted(&input.shape, self.axis);
        let (outer, length, inner) = specs::around(&input.shape, axis);
        let indices = with_type!(input.datatype, T => {
            let values = elements::<T>(input, bound)?;
            let mut indices = bound.room(if values.is_empty() { 0 } else { outer * inner })?;
            for start in specs::lines(values.len(), outer, length, inner) {
                let value = |position: usize| T::read(values[start + position * inner]);
                let highest = (1..length).fold(0, |best, next| if value(next).order(value(best)).is_gt() { next } else { best });
                indices.push(highest as i64);
            }
            indices
        }, return Ok(Vec::new()));
        Ok(vec![tensor(DataType::Int64, self.shape(&input.shape, axis), indices)])
    }
}

/// The `k` highest values along an axis and where they were, highest first, the first of equal ones first: ONNX's
/// `TopK`. Along an axis that is shorter than `k`, all of them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopChoices {
    k: i64,
    #[serde(default = "parameters::last")]
    axis: i64,
}

impl TopChoices {
    pub(crate) fn read(table: &Table) -> Result<Box<dyn Work>, String> {
        let made: Self = parameters::read(table)?;
        match made.k {
            ..1 => Err(format!("k is {}, and at least 1 is needed", made.k)),
            _ => Ok(Box::new(made)),
        }
    }

    fn shape(&self, shape: &[i64], axis: usize) -> Vec<i64> {
        let mut shape = shape.to_vec();
        // How many there are isn't known of an open axis: it may be shorter.
        shape[axis] = shape[axis].min(self.k);
        shape
    }
}

impl Work for TopChoices {
    fn input_names(&self) -> &'static [&'static str] {
        &["scores"]
    }

    fn output_names(&self) -> &'static [&'static str] {
        &["values", "indices"]
    }

    fn outputs(&self, inputs: &[TensorSpec]) -> Result<Vec<(DataType, Vec<i64>)>, String> {
        specs::numbers(&inputs[0])?;
        let axis = specs::axis(&inputs[0], self.axis)?;
        let shape = self.shape(&inputs[0].dims, axis);
        Ok(vec![(inputs[0].datatype, shape.clone()), (DataType::Int64, shape)])
    }

    fn run(&self, inputs: &[Tensor], bound: &mut Bound) -> Result<Vec<Tensor>, StepError> {
        let input = &inputs[0];
        let axis = specs::counted(&input.shape, self.axis);
        let (outer, length, inner) = specs::around(&input.shape, axis);
        let shape = self.shape(&input.shape, axis);
        let k = shape[axis] as usize;
        with_type!(input.datatype, T => {
            let values = elements::<T>(input, bound)?;
            let count = if values.is_empty() { 0 } else { outer * k * inner };
            let mut best = bound.filled(count, T::from_f64(0.0).raw())?;
            let mut indices = bound.filled(count, 0i64)?;
            let mut order: Vec<usize> = bound.room(if values.is_empty() { 0 } else { length })?;
            for (line, start) in specs::lines(values.len(), outer, length, inner).enumerate() {
                let value = |position: usize| T::read(values[start + position * inner]);
                let by_value = |&one: &usize, &other: &usize| value(other).order(value(one)).then(one.cmp(&other));
                order.clear();
                order.extend(0..length);
                if k < length {
                    order.select_nth_unstable_by(k, by_value);
                    order.truncate(k);
                }
                order.sort_unstable_by(by_value);
                let first = line / inner * k * inner + line % inner;
                for (rank, &position) in order.iter().enumerate() {
                    best[first + rank * inner] = values[start + position * inner];
                    indices[first + rank * inner] = position as i64;
                }
            }
            Ok(vec![tensor(input.datatype, shape.clone(), best), tensor(DataType::Int64, shape, indices)])
        }, Ok(Vec::new()))
    }
}
