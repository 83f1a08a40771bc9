//! Tensors behind one another.

use crate::bound::Bound;
use crate::{StepError, Work, parameters, specs};
use base::{DataType, TensorSpec};
use engine::Tensor;
use serde::Deserialize;
use toml::Table;

/// Joins tensors along an axis that all have.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Concat {
    #[serde(default)]
    axis: i64,
}

impl Concat {
    pub(crate) fn read(table: &Table) -> Result<Box<dyn Work>, String> {
        Ok(Box::new(parameters::read::<Self>(table)?))
    }
}

impl Work for Concat {
    fn input_names(&self) -> &'static [&'static str] {
        &["tensor"]
    }

    fn takes_more(&self) -> bool {
        true
    }

    fn output_names(&self) -> &'static [&'static str] {
        &["tensor"]
    }

    fn outputs(&self, inputs: &[TensorSpec]) -> Result<Vec<(DataType, Vec<i64>)>, String> {
        let first = &inputs[0];
        let axis = specs::axis(first, self.axis)?;
        let mut joined = first.dims.clone();
        for other in &inputs[1..] {
            if other.datatype != first.datatype {
                return Err(format!(
                    "{} is {}, and {} is {}: all must be of one type",
                    first.name, first.datatype, other.name, other.datatype
                ));
            }
            let differs = || {
                let (one, two) = (&first.dims, &other.dims);
                format!(
                    "{} has the shape {one:?}, and {} {two:?}: all but axis {axis} must be the same",
                    first.name, other.name
                )
            };
            if other.dims.len() != joined.len() {
                return Err(differs());
            }
            for (position, (dim, &next)) in joined.iter_mut().zip(&other.dims).enumerate() {
                *dim = match position == axis {
                    true if *dim < 0 || next < 0 => -1,
                    true => dim.checked_add(next).ok_or_else(differs)?,
                    false => specs::same(*dim, next).ok_or_else(differs)?,
                };
            }
        }
        let outer = &joined[..axis];
        if first.datatype == DataType::Bytes && outer.iter().any(|&dim| dim != 1) {
            return Err(format!("{} is BYTES, which are joined along the first axis alone", first.name));
        }
        Ok(vec![(first.datatype, joined)])
    }

    fn run(&self, inputs: &[Tensor], bound: &mut Bound) -> Result<Vec<Tensor>, StepError> {
        let first = &inputs[0];
        let axis = specs::counted(&first.shape, self.axis);
        let mut shape = first.shape.clone();
        shape[axis] = inputs.iter().map(|input| input.shape[axis]).sum();
        let (outer, ..) = specs::around(&shape, axis);
        let total = inputs.iter().try_fold(0usize, |sum, input| sum.checked_add(input.data.len()));
        let mut data: Vec<u8> = bound.room(total.unwrap_or(usize::MAX))?;
        for block in 0..if data.capacity() == 0 { 0 } else { outer } {
            for input in inputs {
                let length = input.data.len() / outer;
                data.extend_from_slice(&input.data[block * length..(block + 1) * length]);
            }
        }
        Ok(vec![Tensor { datatype: first.datatype, shape, data: data.into() }])
    }
}
