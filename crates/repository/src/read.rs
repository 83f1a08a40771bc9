//! From the tree of a config.pbtxt to a configuration: field by field, each with its own check.

use crate::config::{ModelConfig, TensorConfig, VersionPolicy};
use crate::meaning::unused;
use crate::text::{Field, Message, Place, Problem, Value};
use crate::values::{Warnings, boolean, each, integer, message, problem, relative_file, text, word};
use crate::{batching, parameters, warmup};
use base::DataType;
use std::collections::BTreeMap;

/// The largest batch size that a configuration may name; larger is a slip, and every size is profiled.
const MAX_BATCH: u32 = 4096;

/// Reads a whole configuration. What is ignored goes into `warnings`.
pub fn config(tree: &Message, model: &str, warnings: Warnings<'_>) -> Result<ModelConfig, Problem> {
    let mut config = ModelConfig::default();
    let mut parameters = BTreeMap::new();
    for field in &tree.fields {
        match field.name.as_str() {
            "name" => check_name(field, model)?,
            "platform" => config.platform = one_of(field, &["onnxruntime_onnx", "emulated"])?,
            "backend" => drop(one_of(field, &["onnxruntime", "emulated"])?),
            "max_batch_size" => config.max_batch = Some(batch_size(field, &field.value, 0)?),
            "input" => tensors(field, &mut config.inputs, warnings)?,
            "output" => tensors(field, &mut config.outputs, warnings)?,
            "version_policy" => config.version_policy = version_policy(field, warnings)?,
            "dynamic_batching" => batching::read(field, &mut config, warnings)?,
            "default_model_filename" => config.file_name = file_name(field)?,
            "parameters" => parameters::read_parameters(field, &mut parameters, warnings)?,
            "model_warmup" => warmup::read(field, &mut config.warmup, warnings)?,
            "sequence_batching" => sequences(field, warnings)?,
            "ensemble_scheduling" | "batch_input" | "batch_output" => return Err(not_served(field)),
            _ => unused("", field, warnings),
        }
    }
    parameters::apply_parameters(&parameters, &mut config, warnings)?;
    config.parameters = parameters.into_iter().map(|(name, (_, text))| (name, text)).collect();
    Ok(config)
}

/// Without these the model would compute something else than it was made for.
fn not_served(field: &Field) -> Problem {
    let why = match field.name.as_str() {
        "ensemble_scheduling" => "models that call other models aren't served here: call them one after another",
        _ => "inputs and outputs that describe the whole batch aren't made here: remove it if the model has none",
    };
    problem(field.place, format!("{} isn't supported: {why}", field.name))
}

/// Sequences whose state or signals the server would have to make up can't be served; others are plain requests.
fn sequences(field: &Field, warnings: Warnings<'_>) -> Result<(), Problem> {
    for inner in &message(field, &field.value)?.fields {
        if matches!(inner.name.as_str(), "control_input" | "state" | "iterative_sequence") {
            return Err(problem(
                inner.place,
                format!(
                    "sequence_batching.{} isn't supported: a model that the server keeps state for isn't served here",
                    inner.name
                ),
            ));
        }
    }
    unused("", field, warnings);
    Ok(())
}

fn check_name(field: &Field, model: &str) -> Result<(), Problem> {
    match text(field, &field.value)? {
        "" => Ok(()),
        name if name == model => Ok(()),
        name => Err(problem(
            field.value.place,
            format!("name is {name:?}, but the folder is called {model:?}: make them equal or leave name out"),
        )),
    }
}

fn one_of(field: &Field, known: &[&str]) -> Result<Option<String>, Problem> {
    match text(field, &field.value)? {
        "" => Ok(None),
        text if known.contains(&text) => Ok(Some(text.to_owned())),
        text => Err(problem(
            field.value.place,
            format!("{} {text:?} isn't supported: use {:?} with an ONNX file", field.name, known[0]),
        )),
    }
}

pub fn batch_size(field: &Field, value: &Value, least: u32) -> Result<u32, Problem> {
    let size = integer(field, value)?;
    checked_batch_size(&field.name, size, least).map_err(|reason| problem(value.place, reason))
}

pub fn checked_batch_size(name: &str, size: i64, least: u32) -> Result<u32, String> {
    let checked = u32::try_from(size).ok().filter(|size| (least..=MAX_BATCH).contains(size));
    checked.ok_or_else(|| format!("{name} is {size}: it must be from {least} to {MAX_BATCH}"))
}

pub fn sorted(mut sizes: Vec<u32>) -> Vec<u32> {
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn tensors(field: &Field, tensors: &mut Vec<TensorConfig>, warnings: Warnings<'_>) -> Result<(), Problem> {
    for value in each(&field.value) {
        tensors.push(tensor(&field.name, message(field, value)?, value.place, warnings)?);
    }
    Ok(())
}

fn tensor(kind: &str, tree: &Message, place: Place, warnings: Warnings<'_>) -> Result<TensorConfig, Problem> {
    let (mut name, mut datatype, mut dims) = (String::new(), None, Vec::new());
    let (mut reshape, mut labels) = (None, None);
    for field in &tree.fields {
        match field.name.as_str() {
            "name" => text(field, &field.value)?.clone_into(&mut name),
            "data_type" => datatype = Some(data_type(&field.value)?),
            "dims" => {
                for value in each(&field.value) {
                    dims.push(dimension(field, value)?);
                }
            }
            "reshape" => reshape = Some(shape(field, warnings)?),
            "label_filename" if kind == "output" => labels = relative_file(field)?,
            "is_shape_tensor" | "allow_ragged_batch" | "is_non_linear_format_io" | "optional" => {
                if boolean(&field.name, &field.value)? {
                    unused(kind, field, warnings);
                }
            }
            _ => unused(kind, field, warnings),
        }
    }
    if name.is_empty() {
        return Err(problem(place, format!("this {kind} has no name: give it the name that it has in the model")));
    }
    let Some(datatype) = datatype else {
        return Err(problem(place, format!("{kind} {name:?} has no data_type: give one, for instance TYPE_FP32")));
    };
    check_reshape(&dims, reshape.as_deref()).map_err(|reason| problem(place, format!("{kind} {name:?} {reason}")))?;
    Ok(TensorConfig { name, datatype, dims, reshape, labels })
}

fn shape(field: &Field, warnings: Warnings<'_>) -> Result<Vec<i64>, Problem> {
    let mut dims = Vec::new();
    for inner in &message(field, &field.value)?.fields {
        match inner.name.as_str() {
            "shape" => {
                for value in each(&inner.value) {
                    dims.push(dimension(inner, value)?);
                }
            }
            _ => unused("reshape", inner, warnings),
        }
    }
    Ok(dims)
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

pub fn dimension(field: &Field, value: &Value) -> Result<i64, Problem> {
    match integer(field, value)? {
        dim if dim < -1 || dim == 0 => {
            Err(problem(value.place, format!("a dimension is {dim}: write a size from 1 up, or -1 for any size")))
        }
        dim => Ok(dim),
    }
}

/// Triton's names are ours with `TYPE_` before them, except for strings. Its numbers are understood too.
pub fn data_type(value: &Value) -> Result<DataType, Problem> {
    const BY_NUMBER: [&str; 15] = [
        "INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32",
        "FP64", "STRING", "BF16",
    ];
    let word = word(value).unwrap_or_default();
    let by_number = word.parse::<usize>().ok().and_then(|number| BY_NUMBER.get(number).copied());
    let name = word.strip_prefix("TYPE_").or(by_number).unwrap_or_default();
    let found = if name == "STRING" { Some(DataType::Bytes) } else { DataType::from_name(name) };
    found.filter(|_| name != "BYTES").ok_or_else(|| {
        let known: Vec<String> = BY_NUMBER[1..].iter().map(|name| format!("TYPE_{name}")).collect();
        problem(value.place, format!("data_type {word:?} isn't known: use one of {}", known.join(", ")))
    })
}

fn version_policy(field: &Field, warnings: Warnings<'_>) -> Result<VersionPolicy, Problem> {
    let mut policy = VersionPolicy::default();
    for choice in &message(field, &field.value)?.fields {
        let inner = message(choice, &choice.value)?;
        match choice.name.as_str() {
            "all" => policy = VersionPolicy::All,
            "latest" => {
                let count = inner.fields.iter().rfind(|field| field.name == "num_versions");
                let count = count.map_or(Ok(1), |field| integer(field, &field.value))?;
                policy = VersionPolicy::Latest(u32::try_from(count).unwrap_or(0).max(1));
            }
            "specific" => policy = VersionPolicy::Specific(specific_versions(choice, inner)?),
            _ => unused("version_policy", choice, warnings),
        }
    }
    Ok(policy)
}

fn specific_versions(choice: &Field, inner: &Message) -> Result<Vec<u64>, Problem> {
    let mut versions = Vec::new();
    for field in inner.fields.iter().filter(|field| field.name == "versions") {
        for value in each(&field.value) {
            let number = integer(field, value)?;
            let version = u64::try_from(number).ok().filter(|&version| version > 0);
            versions.push(version.ok_or_else(|| {
                problem(value.place, format!("version_policy names version {number}: versions are numbers from 1 up"))
            })?);
        }
    }
    versions.sort_unstable();
    versions.dedup();
    if versions.is_empty() {
        return Err(problem(choice.place, "version_policy.specific names no version: list at least one"));
    }
    Ok(versions)
}

fn file_name(field: &Field) -> Result<Option<String>, Problem> {
    let name = text(field, &field.value)?;
    match name {
        "" => Ok(None),
        "." | ".." => Err(problem(field.value.place, format!("default_model_filename is {name:?}, which is no file"))),
        _ if name.contains(['/', '\\', '\0']) => Err(problem(
            field.value.place,
            format!("default_model_filename is {name:?}: it must be a name in the version's folder, not a path"),
        )),
        _ => Ok(Some(name.to_owned())),
    }
}
