//! Some of the rows of a tensor.

use crate::bound::Bound;
use crate::elements::{push_string, strings};
use crate::{StepError, Work, parameters, specs};
use base::{DataType, TensorSpec};
use engine::Tensor;
use serde::Deserialize;
use toml::Table;

/// The rows, along the first axis, of which a mask is true.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SelectRows {}

impl SelectRows {
    pub(crate) fn read(table: &Table) -> Result<Box<dyn Work>, String> {
        Ok(Box::new(parameters::read::<Self>(table)?))
    }
}

impl Work for SelectRows {
    fn input_names(&self) -> &'static [&'static str] {
        &["tensor", "mask"]
    }

    fn output_names(&self) -> &'static [&'static str] {
        &["tensor"]
    }

    fn outputs(&self, inputs: &[TensorSpec]) -> Result<Vec<(DataType, Vec<i64>)>, String> {
        let (input, mask) = (&inputs[0], &inputs[1]);
        specs::types(mask, &[DataType::Bool])?;
        match (&input.dims[..], &mask.dims[..]) {
            (&[rows, ref row @ ..], &[masked]) if specs::same(rows, masked).is_some() => {
                Ok(vec![(input.datatype, [&[-1], row].concat())])
            }
            _ => Err(format!(
                "{} has the shape {:?} and {} {:?}, and [rows, ...] and [rows] are needed",
                input.name, input.dims, mask.name, mask.dims
            )),
        }
    }

    fn run(&self, inputs: &[Tensor], bound: &mut Bound) -> Result<Vec<Tensor>, StepError> {
        let (Tensor { datatype, shape, data }, mask) = (&inputs[0], &inputs[1].data);
        let kept = mask.iter().filter(|&&keep| keep != 0).count();
        let shape = [&[kept as i64], &shape[1..]].concat();
        if kept == mask.len() {
            return Ok(vec![Tensor { datatype: *datatype, shape, data: data.clone() }]);
        }
        let mut out: Vec<u8> = bound.room(data.len())?;
        if *datatype == DataType::Bytes {
            let all = strings(&inputs[0], "tensor")?;
            let rows = all.chunks_exact((all.len() / mask.len()).max(1)).zip(mask.iter());
            let rows = rows.filter(|(_, keep)| **keep != 0).flat_map(|(row, _)| row);
            rows.for_each(|string| push_string(&mut out, string));
        } else {
            let rows = data.chunks_exact((data.len() / mask.len()).max(1)).zip(mask.iter());
            rows.filter(|(_, keep)| **keep != 0).for_each(|(row, _)| out.extend_from_slice(row));
        }
        Ok(vec![Tensor { datatype: *datatype, shape, data: out.into() }])
    }
}
