//! Elements of another type.

use crate::bound::Bound;
use crate::elements::{Element, Number, elements, tensor, with_type};
use crate::{StepError, Work, parameters, specs};
use base::{DataType, TensorSpec};
use engine::Tensor;
use serde::Deserialize;
use toml::Table;

/// Every element as one of another type: the nearest float, or the whole number towards zero and as large as the type
/// has it. What is no number is the integer 0; whatever isn't 0 is true.
#[derive(Debug)]
pub(crate) struct CastTo {
    to: DataType,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CastParameters {
    to: String,
}

impl CastTo {
    pub(crate) fn read(table: &Table) -> Result<Box<dyn Work>, String> {
        let CastParameters { to } = parameters::read(table)?;
        let to = parameters::datatype(&to)?;
        Ok(Box::new(Self { to }))
    }
}

impl Work for CastTo {
    fn input_names(&self) -> &'static [&'static str] {
        &["tensor"]
    }

    fn output_names(&self) -> &'static [&'static str] {
        &["tensor"]
    }

    fn outputs(&self, inputs: &[TensorSpec]) -> Result<Vec<(DataType, Vec<i64>)>, String> {
        specs::numbers(&inputs[0])?;
        Ok(vec![(self.to, inputs[0].dims.clone())])
    }

    fn run(&self, inputs: &[Tensor], bound: &mut Bound) -> Result<Vec<Tensor>, StepError> {
        let [input] = inputs else { return Ok(Vec::new()) };
        if input.datatype == self.to {
            return Ok(vec![input.clone()]);
        }
        let count = input.data.len() / input.datatype.size().unwrap_or(1);
        let output = match self.to {
            DataType::Bool => {
                let mut to: Vec<u8> = bound.room(count)?;
                walk(input, bound, |value| to.push(u8::from(!value.is_zero())))?;
                tensor(self.to, input.shape.clone(), to)
            }
            _ => with_type!(self.to, To => {
                let mut to: Vec<<To as Element>::Raw> = bound.room(count)?;
                walk(input, bound, |value| to.push(To::from_number(value).raw()))?;
                tensor(self.to, input.shape.clone(), to)
            }, return Ok(Vec::new())),
        };
        Ok(vec![output])
    }
}

/// Shows every element, whatever its type is. By reference: one loop for each type to read, not for each pair of types.
fn walk(input: &Tensor, bound: &mut Bound, mut see: impl FnMut(Number)) -> Result<(), StepError> {
    let see: &mut dyn FnMut(Number) = &mut see;
    with_type!(input.datatype, From => {
        elements::<From>(input, bound)?.iter().for_each(|&raw| see(From::read(raw).number()));
    }, ());
    Ok(())
}
