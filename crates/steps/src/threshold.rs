//! Which scores are high enough.

use crate::bound::Bound;
use crate::elements::{Element, elements, tensor, with_type};
use crate::{StepError, Work, parameters, specs};
use base::{DataType, TensorSpec};
use engine::Tensor;
use serde::Deserialize;
use std::cmp::Ordering;
use toml::Table;

/// Whether numbers are `above` a value, or `at_least` that; of the last axis only the one at `index`, where it is said.
/// What is no number is never high enough.
#[derive(Debug)]
pub(crate) struct Threshold {
    value: f64,
    or_equal: bool,
    index: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ThresholdParameters {
    above: Option<f64>,
    at_least: Option<f64>,
    index: Option<usize>,
}

impl Threshold {
    pub(crate) fn read(table: &Table) -> Result<Box<dyn Work>, String> {
        let ThresholdParameters { above, at_least, index } = parameters::read(table)?;
        let (value, or_equal) = match (above, at_least) {
            (Some(value), None) => (value, false),
            (None, Some(value)) => (value, true),
            _ => return Err("either above or at_least says what is high enough".into()),
        };
        if value.is_nan() {
            return Err("what scores are compared with is a number".into());
        }
        Ok(Box::new(Self { value, or_equal, index }))
    }

    fn is_high<T: Element>(&self, score: T) -> bool {
        match score.order(T::from_f64(self.value)) {
            // In the scores' own type, in which 0.9 is what a model means by it.
            Ordering::Greater => true,
            Ordering::Equal => self.or_equal,
            Ordering::Less => false,
        }
    }
}

impl Work for Threshold {
    fn input_names(&self) -> &'static [&'static str] {
        &["scores"]
    }

    fn output_names(&self) -> &'static [&'static str] {
        &["mask"]
    }

    fn outputs(&self, inputs: &[TensorSpec]) -> Result<Vec<(DataType, Vec<i64>)>, String> {
        let floats = [DataType::Fp32, DataType::Fp16, DataType::Fp64, DataType::Bf16];
        specs::types(&inputs[0], &floats)?;
        let TensorSpec { name, dims, .. } = &inputs[0];
        let Some(index) = self.index else { return Ok(vec![(DataType::Bool, dims.clone())]) };
        match dims.split_last() {
            Some((&last, before)) if last < 0 || index < last as usize => Ok(vec![(DataType::Bool, before.to_vec())]),
            _ => Err(format!("{name} has the shape {dims:?}, and nothing at index {index} of its last axis")),
        }
    }

    fn run(&self, inputs: &[Tensor], bound: &mut Bound) -> Result<Vec<Tensor>, StepError> {
        let Tensor { datatype, shape, .. } = &inputs[0];
        let (shape, length) = match (self.index, shape.split_last()) {
            (Some(_), Some((&last, before))) => (before.to_vec(), last as usize),
            _ => (shape.clone(), 1),
        };
        let mut mask: Vec<u8> = Vec::new();
        with_type!(*datatype, T => {
            let scores = elements::<T>(&inputs[0], bound)?;
            mask = bound.room(scores.len() / length)?;
            let index = self.index.unwrap_or(0);
            mask.extend(scores.chunks_exact(length).map(|row| u8::from(self.is_high(T::read(row[index])))));
        }, ());
        Ok(vec![tensor(DataType::Bool, shape, mask)])
    }
}
