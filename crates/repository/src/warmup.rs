//! `model_warmup`: requests that are run before a model is ready.

use crate::config::{WarmupData, WarmupInput, WarmupSample};
use crate::meaning::unused;
use crate::read::{data_type, dimension};
use crate::text::{Field, Message, Place, Problem};
use crate::values::{Warnings, boolean, count, each, message, problem, relative_file, text};

/// Runs of one sample: more is a slip, and each takes time before the model is ready.
const MAX_COUNT: u64 = 10_000;
const MAX_BATCH: u64 = 4096;

pub fn read(field: &Field, samples: &mut Vec<WarmupSample>, warnings: Warnings<'_>) -> Result<(), Problem> {
    for value in each(&field.value) {
        samples.push(sample(message(field, value)?, warnings)?);
    }
    Ok(())
}

fn sample(tree: &Message, warnings: Warnings<'_>) -> Result<WarmupSample, Problem> {
    let mut sample = WarmupSample { count: 1, batch: 1, ..WarmupSample::default() };
    for field in &tree.fields {
        match field.name.as_str() {
            "name" => text(field, &field.value)?.clone_into(&mut sample.name),
            "batch_size" => sample.batch = (count(field, MAX_BATCH)? as u32).max(1),
            "count" => sample.count = (count(field, MAX_COUNT)? as u32).max(1),
            "inputs" => {
                for entry in each(&field.value) {
                    let (name, input) = input(message(field, entry)?, entry.place, warnings)?;
                    sample.inputs.insert(name, input);
                }
            }
            _ => unused("model_warmup", field, warnings),
        }
    }
    Ok(sample)
}

fn input(entry: &Message, place: Place, warnings: Warnings<'_>) -> Result<(String, WarmupInput), Problem> {
    let (mut name, mut datatype, mut dims, mut data) = (String::new(), None, Vec::new(), None);
    for part in &entry.fields {
        match part.name.as_str() {
            "key" => text(part, &part.value)?.clone_into(&mut name),
            "value" => {
                for field in &message(part, &part.value)?.fields {
                    match field.name.as_str() {
                        "data_type" => datatype = Some(data_type(&field.value)?),
                        "dims" => {
                            for value in each(&field.value) {
                                dims.push(dimension(field, value)?);
                            }
                        }
                        "zero_data" if boolean(&field.name, &field.value)? => data = Some(WarmupData::Zero),
                        "random_data" if boolean(&field.name, &field.value)? => data = Some(WarmupData::Random),
                        "zero_data" | "random_data" => {}
                        "input_data_file" => data = relative_file(field)?.map(WarmupData::File),
                        _ => unused("model_warmup.inputs", field, warnings),
                    }
                }
            }
            _ => unused("model_warmup.inputs", part, warnings),
        }
    }
    let missing = |what: &str| problem(place, format!("input {name:?} of model_warmup {what}"));
    if name.is_empty() {
        return Err(problem(place, "an input of model_warmup has no key: write the input's name there"));
    }
    if dims.iter().any(|&dim| dim < 0) {
        return Err(missing("has a dimension of -1: a request has sizes"));
    }
    let datatype = datatype.ok_or_else(|| missing("has no data_type"))?;
    let data = data.ok_or_else(|| missing("has no data: give zero_data, random_data or input_data_file"))?;
    Ok((name, WarmupInput { datatype, dims, data }))
}
