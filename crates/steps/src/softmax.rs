//! Scores as probabilities.

use crate::bound::Bound;
use crate::elements::{Element, elements, tensor, with_type};
use crate::{StepError, Work, parameters, specs};
use base::{DataType, TensorSpec};
use engine::Tensor;
use serde::Deserialize;
use toml::Table;

/// Exponentials of the values along an axis, divided by their sum: ONNX's `Softmax`. A row with something in it that is
/// no number has nothing else.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SoftmaxOver {
    #[serde(default = "parameters::last")]
    axis: i64,
}

impl SoftmaxOver {
    pub(crate) fn read(table: &Table) -> Result<Box<dyn Work>, String> {
        Ok(Box::new(parameters::read::<Self>(table)?))
    }
}

impl Work for SoftmaxOver {
    fn input_names(&self) -> &'static [&'static str] {
        &["scores"]
    }

    fn output_names(&self) -> &'static [&'static str] {
        &["probabilities"]
    }

    fn outputs(&self, inputs: &[TensorSpec]) -> Result<Vec<(DataType, Vec<i64>)>, String> {
        specs::types(&inputs[0], &[DataType::Fp32, DataType::Fp16, DataType::Fp64, DataType::Bf16])?;
        specs::axis(&inputs[0], self.axis)?;
        Ok(vec![(inputs[0].datatype, inputs[0].dims.clone())])
    }

    fn run(&self, inputs: &[Tensor], bound: &mut Bound) -> Result<Vec<Tensor>, StepError> {
        let input = &inputs[0];
        let (outer, length, inner) = specs::around(&input.shape, specs::counted(&input.shape, self.axis));
        let output = with_type!(input.datatype, T => {
            let scores = elements::<T>(input, bound)?;
            let mut out = bound.filled(scores.len(), T::from_f64(0.0).raw())?;
            for start in specs::lines(scores.len(), outer, length, inner) {
                let along = |position: usize| start + position * inner;
                let value = |position| T::read(scores[along(position)]).to_f64();
                let highest = (0..length).map(value).fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = (0..length).map(|position| (value(position) - highest).exp()).sum();
                for position in 0..length {
                    out[along(position)] = T::from_f64((value(position) - highest).exp() / sum).raw();
                }
            }
            tensor(input.datatype, input.shape.clone(), out)
        }, return Ok(Vec::new()));
        Ok(vec![output])
    }
}
