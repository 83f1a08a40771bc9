//! `model_warmup`: requests that are run before a model is ready.

use crate::config::{WarmupData, WarmupInput, WarmupSample};
use crate::positions::Positions;
use crate::read::{check_dims, read_data_type};
use crate::text::TextProblem;
use crate::values::relative_file;
use wire::proto::ModelWarmup;
use wire::proto::model_warmup::Input;
use wire::proto::model_warmup::input::InputDataType;

pub fn read(written: &[ModelWarmup], positions: &Positions) -> Result<Vec<WarmupSample>, TextProblem> {
    written.iter().enumerate().map(|(index, sample)| read_sample(index, sample, positions)).collect()
}

fn read_sample(index: usize, written: &ModelWarmup, positions: &Positions) -> Result<WarmupSample, TextProblem> {
    let inputs = written.inputs.iter().map(|(name, input)| {
        let read = read_input(&format!("model_warmup[{index}].inputs[{name}]"), name, input, positions)?;
        Ok((name.clone(), read))
    });
    Ok(WarmupSample {
        name: written.name.clone(),
        batch: written.batch_size.max(1),
        count: written.count.max(1),
        inputs: inputs.collect::<Result<_, TextProblem>>()?,
    })
}

fn read_input(path: &str, name: &str, written: &Input, positions: &Positions) -> Result<WarmupInput, TextProblem> {
    let wrong = |what: &str| positions.wrong_value(path, format!("input {name:?} of model_warmup {what}"));
    if name.is_empty() {
        let reason = "an input of model_warmup has no key: write the input's name there";
        return Err(positions.wrong_value(path, reason));
    }
    check_dims(&format!("{path}.dims"), &written.dims, positions)?;
    if written.dims.iter().any(|&dim| dim < 0) {
        return Err(wrong("has a dimension of -1: a request has sizes"));
    }
    let datatype = read_data_type(written.data_type).ok_or_else(|| wrong("has no data_type"))?;
    let data = match &written.input_data_type {
        // Which of them is written counts, and not what is written there, as in Triton.
        Some(InputDataType::ZeroData(_)) => Some(WarmupData::Zero),
        Some(InputDataType::RandomData(_)) => Some(WarmupData::Random),
        Some(InputDataType::InputDataFile(file)) => {
            relative_file(&format!("{path}.input_data_file"), file, positions)?.map(WarmupData::File)
        }
        None => None,
    };
    let data = data.ok_or_else(|| wrong("has no data: give zero_data, random_data or input_data_file"))?;
    Ok(WarmupInput { datatype, dims: written.dims.clone(), data })
}
