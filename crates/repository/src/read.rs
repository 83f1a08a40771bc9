//! From Triton's message to our own configuration: field by field, each with its own check.

use crate::complete::data_type;
use crate::config::{ModelConfig, TensorConfig, VersionPolicy};
use crate::positions::Positions;
use crate::text::TextProblem;
use crate::values::{Warnings, relative_file};
use crate::{batching, endpoint, parameters, warmup};
use base::DataType;
use wire::proto::{self, ModelInput, ModelOutput, ModelVersionPolicy, model_config};

/// Reads a whole configuration. What is ignored goes into `warnings`.
pub fn config(
    written: proto::ModelConfig,
    positions: &Positions,
    model: &str,
    warnings: Warnings<'_>,
) -> Result<ModelConfig, TextProblem> {
    check_name(&written.name, positions, model)?;
    check_served(&written, positions)?;
    let endpoint = endpoint::ensemble(&written, positions)?;
    one_of("backend", &written.backend, &["onnxruntime", "emulated"], positions)?;
    let max_batch = u32::try_from(written.max_batch_size).unwrap_or(0);
    let mut config = ModelConfig {
        platform: one_of(
            "platform",
            &written.platform,
            &["onnxruntime_onnx", "emulated", endpoint::ENSEMBLE],
            positions,
        )?,
        max_batch: positions.is_written("max_batch_size").then_some(max_batch),
        inputs: tensors("input", written.input.iter().map(as_output), positions)?,
        outputs: tensors("output", written.output.iter().cloned(), positions)?,
        version_policy: version_policy(written.version_policy.as_ref(), positions)?,
        file_name: file_name(&written.default_model_filename, positions)?,
        warmup: warmup::read(&written.model_warmup, positions)?,
        endpoint,
        ..ModelConfig::default()
    };
    if let Some(model_config::SchedulingChoice::DynamicBatching(batching)) = &written.scheduling_choice {
        batching::read(batching, positions, &mut config, warnings)?;
    }
    parameters::read(&written.parameters, positions, &mut config, warnings)?;
    config.response_cache = response_cache(&written, positions, warnings);
    config.written = written;
    Ok(config)
}

/// With these the model would have to be given or asked for something that a request doesn't say.
fn check_served(written: &proto::ModelConfig, positions: &Positions) -> Result<(), TextProblem> {
    use model_config::SchedulingChoice::SequenceBatching;
    const WHOLE_BATCH: &str =
        "inputs and outputs that describe the whole batch aren't made here: remove it if the model has none";
    const STATE: &str = "a model that the server keeps state for isn't served here";
    let choice = written.scheduling_choice.as_ref();
    let sequences = choice.and_then(|choice| if let SequenceBatching(found) = choice { Some(found) } else { None });
    for (path, is_asked_for, why) in [
        ("batch_input", !written.batch_input.is_empty(), WHOLE_BATCH),
        ("batch_output", !written.batch_output.is_empty(), WHOLE_BATCH),
        ("sequence_batching.control_input", sequences.is_some_and(|found| !found.control_input.is_empty()), STATE),
        ("sequence_batching.state", sequences.is_some_and(|found| !found.state.is_empty()), STATE),
        ("sequence_batching.iterative_sequence", sequences.is_some_and(|found| found.iterative_sequence), STATE),
    ] {
        if is_asked_for {
            return Err(positions.wrong_field(path, format!("{path} isn't supported: {why}")));
        }
    }
    Ok(())
}

/// Whether answers are kept. As in Triton, those of a model that is asked in sequences aren't.
fn response_cache(written: &proto::ModelConfig, positions: &Positions, warnings: Warnings<'_>) -> bool {
    let is_wanted = written.response_cache.as_ref().is_some_and(|cache| cache.enable);
    let has_sequences = matches!(written.scheduling_choice, Some(model_config::SchedulingChoice::SequenceBatching(_)));
    if is_wanted && has_sequences {
        let reason = "response_cache is ignored: a model with sequence_batching has every request computed";
        warnings.push(positions.wrong_field("response_cache", reason));
    }
    is_wanted && !has_sequences
}

fn check_name(name: &str, positions: &Positions, model: &str) -> Result<(), TextProblem> {
    if name.is_empty() || name == model {
        return Ok(());
    }
    let reason = format!("name is {name:?}, but the folder is called {model:?}: make them equal or leave name out");
    Err(positions.wrong_value("name", reason))
}

fn one_of(field: &str, text: &str, known: &[&str], positions: &Positions) -> Result<Option<String>, TextProblem> {
    if text.is_empty() || known.contains(&text) {
        return Ok(Some(text.to_owned()).filter(|text| !text.is_empty()));
    }
    let reason = format!("{field} {text:?} isn't supported: use {:?} with an ONNX file", known[0]);
    Err(positions.wrong_value(field, reason))
}

/// An input says what an output says, but for labels.
fn as_output(input: &ModelInput) -> ModelOutput {
    let ModelInput { name, data_type, dims, reshape, .. } = input.clone();
    ModelOutput { name, data_type, dims, reshape, ..ModelOutput::default() }
}

fn tensors(
    field: &str,
    written: impl Iterator<Item = ModelOutput>,
    positions: &Positions,
) -> Result<Vec<TensorConfig>, TextProblem> {
    written.enumerate().map(|(index, tensor)| read_tensor(field, index, tensor, positions)).collect()
}

fn read_tensor(
    field: &str,
    index: usize,
    written: ModelOutput,
    positions: &Positions,
) -> Result<TensorConfig, TextProblem> {
    let path = format!("{field}[{index}]");
    let ModelOutput { name, dims, reshape, .. } = written;
    let reshape = reshape.map(|reshape| reshape.shape);
    check_dims(&format!("{path}.dims"), &dims, positions)?;
    check_dims(&format!("{path}.reshape.shape"), reshape.as_deref().unwrap_or_default(), positions)?;
    let labels = relative_file(&format!("{path}.label_filename"), &written.label_filename, positions)?;
    if name.is_empty() {
        let reason = format!("this {field} has no name: give it the name that it has in the model");
        return Err(positions.wrong_value(&path, reason));
    }
    let Some(datatype) = read_data_type(written.data_type) else {
        let reason = format!("{field} {name:?} has no data_type: give one, for instance TYPE_FP32");
        return Err(positions.wrong_value(&path, reason));
    };
    check_reshape(&dims, reshape.as_deref())
        .map_err(|reason| positions.wrong_value(&path, format!("{field} {name:?} {reason}")))?;
    Ok(TensorConfig { name, datatype, dims, reshape, labels })
}

/// Both shapes must have the same elements, and sizes that are left open must be as many in both.
fn check_reshape(dims: &[i64], reshape: Option<&[i64]>) -> Result<(), String> {
    let Some(reshape) = reshape else { return Ok(()) };
    let open = |dims: &[i64]| dims.iter().filter(|&&dim| dim < 0).count();
    let fixed = |dims: &[i64]| base::element_count(&dims.iter().map(|dim| dim.abs()).collect::<Vec<_>>());
    if open(dims) == open(reshape) && fixed(dims) == fixed(reshape) {
        return Ok(());
    }
    Err(format!(
        "has dims {dims:?}, which can't be reshaped to {reshape:?}: both must have the same number of elements"
    ))
}

pub fn check_dims(path: &str, dims: &[i64], positions: &Positions) -> Result<(), TextProblem> {
    match dims.iter().position(|&dim| dim < -1 || dim == 0) {
        None => Ok(()),
        Some(wrong) => Err(positions.wrong_value(
            &format!("{path}[{wrong}]"),
            format!("a dimension is {}: write a size from 1 up, or -1 for any size", dims[wrong]),
        )),
    }
}

/// The type of Triton's number for it; `None` where none was given.
pub fn read_data_type(number: i32) -> Option<DataType> {
    DataType::ALL.iter().copied().find(|&known| data_type(known) as i32 == number)
}

pub fn sorted(mut sizes: Vec<u32>) -> Vec<u32> {
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn version_policy(written: Option<&ModelVersionPolicy>, positions: &Positions) -> Result<VersionPolicy, TextProblem> {
    use proto::model_version_policy::PolicyChoice;
    match written.and_then(|policy| policy.policy_choice.as_ref()) {
        None => Ok(VersionPolicy::default()),
        Some(PolicyChoice::All(_)) => Ok(VersionPolicy::All),
        Some(PolicyChoice::Latest(latest)) => Ok(VersionPolicy::Latest(latest.num_versions.max(1))),
        Some(PolicyChoice::Specific(specific)) => specific_versions(&specific.versions, positions),
    }
}

fn specific_versions(written: &[i64], positions: &Positions) -> Result<VersionPolicy, TextProblem> {
    const PATH: &str = "version_policy.specific";
    let checked = written.iter().enumerate().map(|(index, &number)| {
        u64::try_from(number).ok().filter(|&version| version > 0).ok_or_else(|| {
            let reason = format!("version_policy names version {number}: versions are numbers from 1 up");
            positions.wrong_value(&format!("{PATH}.versions[{index}]"), reason)
        })
    });
    let mut versions: Vec<u64> = checked.collect::<Result<_, _>>()?;
    versions.sort_unstable();
    versions.dedup();
    if versions.is_empty() {
        return Err(positions.wrong_field(PATH, "version_policy.specific names no version: list at least one"));
    }
    Ok(VersionPolicy::Specific(versions))
}

fn file_name(name: &str, positions: &Positions) -> Result<Option<String>, TextProblem> {
    let why = match name {
        "" => return Ok(None),
        "." | ".." => ", which is no file",
        _ if name.contains(['/', '\\', '\0']) => ": it must be a name in the version's folder, not a path",
        _ => return Ok(Some(name.to_owned())),
    };
    let field = "default_model_filename";
    Err(positions.wrong_value(field, format!("{field} is {name:?}{why}")))
}
