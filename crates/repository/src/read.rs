//! From the tree of a config.pbtxt to a configuration: field by field, each with its own check.

use crate::config::{Emulation, ModelConfig, ProfileInput, TensorConfig, VersionPolicy};
use crate::text::{Field, Message, Place, Problem, Value, ValueKind};
use base::{DataType, Duration};
use std::collections::BTreeMap;

/// The largest batch size that a configuration may name; larger is a slip, and every size is profiled.
const MAX_BATCH: u32 = 4096;

/// The parameters that mean something to Punctual.
const LATENCY_OBJECTIVE_MS: &str = "latency_objective_ms";
const BATCH_SIZES: &str = "batch_sizes";
const EMULATED_LATENCY: &str = "emulated_latency";
const WEIGHTS_MB: &str = "weights_mb";
const PROFILE_INPUTS: &str = "profile_inputs";

type Warnings<'a> = &'a mut Vec<Problem>;

fn problem(place: Place, reason: impl Into<String>) -> Problem {
    Problem { place, reason: reason.into() }
}

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
            "dynamic_batching" => config.preferred_batch_sizes = dynamic_batching(field, warnings)?,
            "default_model_filename" => config.file_name = file_name(field)?,
            "parameters" => read_parameters(field, &mut parameters, warnings)?,
            "instance_group" => warnings.push(problem(
                field.place,
                "instance_group is ignored: `--devices` says where models run, and every device serves all of them",
            )),
            _ => unknown(field, warnings),
        }
    }
    apply_parameters(&parameters, &mut config, warnings)?;
    config.parameters = parameters.into_iter().map(|(name, (_, text))| (name, text)).collect();
    Ok(config)
}

fn unknown(field: &Field, warnings: Warnings<'_>) {
    warnings.push(problem(field.place, format!("field `{}` isn't supported and is ignored", field.name)));
}

// ---- values --------------------------------------------------------------------------------------------------------

/// The values of a field that may be repeated: those of a list, or the one.
fn each(value: &Value) -> &[Value] {
    match &value.kind {
        ValueKind::List(values) => values,
        _ => std::slice::from_ref(value),
    }
}

fn text<'a>(field: &Field, value: &'a Value) -> Result<&'a str, Problem> {
    match &value.kind {
        ValueKind::Text(text) => Ok(text),
        _ => Err(problem(value.place, format!("`{}` must be a string: put it into quotes", field.name))),
    }
}

fn message<'a>(field: &Field, value: &'a Value) -> Result<&'a Message, Problem> {
    match &value.kind {
        ValueKind::Message(message) => Ok(message),
        _ => Err(problem(value.place, format!("`{}` must be a message: {{ ... }}", field.name))),
    }
}

fn word(value: &Value) -> Option<&str> {
    match &value.kind {
        ValueKind::Word(word) => Some(word),
        _ => None,
    }
}

/// A whole number: decimal, hexadecimal (0x1F) or octal (017).
fn integer(field: &Field, value: &Value) -> Result<i64, Problem> {
    let parse = |word: &str| {
        let (sign, digits) = word.strip_prefix('-').map_or(("", word), |digits| ("-", digits));
        let (digits, radix) = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
            Some(digits) => (digits, 16),
            None if digits.len() > 1 && digits.starts_with('0') => (&digits[1..], 8),
            None => (digits, 10),
        };
        i64::from_str_radix(&format!("{sign}{digits}"), radix).ok()
    };
    let shown = word(value).map_or(String::new(), |word| format!(", not {word}"));
    word(value)
        .and_then(parse)
        .ok_or_else(|| problem(value.place, format!("`{}` must be a whole number{shown}", field.name)))
}

// ---- fields --------------------------------------------------------------------------------------------------------

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

fn batch_size(field: &Field, value: &Value, least: u32) -> Result<u32, Problem> {
    let size = integer(field, value)?;
    checked_batch_size(&field.name, size, least).map_err(|reason| problem(value.place, reason))
}

fn checked_batch_size(name: &str, size: i64, least: u32) -> Result<u32, String> {
    let checked = u32::try_from(size).ok().filter(|size| (least..=MAX_BATCH).contains(size));
    checked.ok_or_else(|| format!("{name} is {size}: it must be from {least} to {MAX_BATCH}"))
}

fn sorted(mut sizes: Vec<u32>) -> Vec<u32> {
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
    let (mut name, mut datatype, mut dims, mut reshaped) = (String::new(), None, Vec::new(), false);
    for field in &tree.fields {
        match field.name.as_str() {
            "name" => text(field, &field.value)?.clone_into(&mut name),
            "data_type" => datatype = Some(data_type(&field.value)?),
            "dims" => {
                for value in each(&field.value) {
                    dims.push(dimension(field, value)?);
                }
            }
            "reshape" => {
                reshaped = true;
                let reason = format!("reshape of {kind} {name:?} is ignored: requests use the model's own shape");
                warnings.push(problem(field.place, reason));
            }
            _ => unknown(field, warnings),
        }
    }
    if name.is_empty() {
        return Err(problem(place, format!("this {kind} has no name: give it the name that it has in the model")));
    }
    let Some(datatype) = datatype else {
        return Err(problem(place, format!("{kind} {name:?} has no data_type: give one, for instance TYPE_FP32")));
    };
    Ok(TensorConfig { name, datatype, dims, reshaped })
}

fn dimension(field: &Field, value: &Value) -> Result<i64, Problem> {
    match integer(field, value)? {
        dim if dim < -1 || dim == 0 => {
            Err(problem(value.place, format!("a dimension is {dim}: write a size from 1 up, or -1 for any size")))
        }
        dim => Ok(dim),
    }
}

/// Triton's names are ours with `TYPE_` before them, except for strings. Its numbers are understood too.
fn data_type(value: &Value) -> Result<DataType, Problem> {
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
            _ => unknown(choice, warnings),
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

fn dynamic_batching(field: &Field, warnings: Warnings<'_>) -> Result<Vec<u32>, Problem> {
    let mut sizes = Vec::new();
    for field in &message(field, &field.value)?.fields {
        match field.name.as_str() {
            "preferred_batch_size" => {
                for value in each(&field.value) {
                    sizes.push(batch_size(field, value, 1)?);
                }
            }
            "max_queue_delay_microseconds" => warnings.push(problem(
                field.place,
                "max_queue_delay_microseconds is ignored: deadlines decide how long a batch may wait",
            )),
            _ => unknown(field, warnings),
        }
    }
    Ok(sorted(sizes))
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

// ---- parameters ----------------------------------------------------------------------------------------------------

/// By name: the text, and where it stands.
type Parameters = BTreeMap<String, (Place, String)>;

fn read_parameters(field: &Field, parameters: &mut Parameters, warnings: Warnings<'_>) -> Result<(), Problem> {
    for entry in each(&field.value) {
        let (mut key, mut value) = (None, (entry.place, String::new()));
        for part in &message(field, entry)?.fields {
            match part.name.as_str() {
                "key" => key = Some(text(part, &part.value)?.to_owned()),
                "value" => {
                    for inner in &message(part, &part.value)?.fields {
                        match inner.name.as_str() {
                            "string_value" => value = (inner.value.place, text(inner, &inner.value)?.to_owned()),
                            _ => unknown(inner, warnings),
                        }
                    }
                }
                _ => unknown(part, warnings),
            }
        }
        let Some(key) = key else {
            return Err(problem(
                entry.place,
                "this parameter has no key: write parameters { key: \"NAME\" value { string_value: \"VALUE\" } }",
            ));
        };
        parameters.insert(key, value);
    }
    Ok(())
}

fn apply_parameters(parameters: &Parameters, config: &mut ModelConfig, warnings: Warnings<'_>) -> Result<(), Problem> {
    for (name, (place, text)) in parameters {
        let done = match name.as_str() {
            LATENCY_OBJECTIVE_MS => number(name, text, 0.001)
                .map(|millis| config.latency_objective = Some(Duration::from_millis_f64(millis))),
            BATCH_SIZES => batch_sizes(text).map(|sizes| config.batch_sizes = Some(sizes)),
            EMULATED_LATENCY => emulation(text).map(|emulation| config.emulation = Some(emulation)),
            WEIGHTS_MB => Ok(()),
            PROFILE_INPUTS => profile_inputs(text).map(|inputs| config.profile_inputs = inputs),
            _ => {
                warnings.push(problem(*place, format!("parameter `{name}` isn't known and is ignored")));
                Ok(())
            }
        };
        done.map_err(|reason| problem(*place, reason))?;
    }
    if let Some((place, text)) = parameters.get(WEIGHTS_MB) {
        let megabytes = number(WEIGHTS_MB, text, 0.0).map_err(|reason| problem(*place, reason))?;
        match &mut config.emulation {
            Some(emulation) => emulation.weight_bytes = (megabytes * 1e6).round() as u64,
            None => warnings.push(problem(*place, "parameter `weights_mb` is ignored without `emulated_latency`")),
        }
    }
    Ok(())
}

/// `input=1x576,rate=@16000`: an input's name, its dimensions, behind an @ the value of its elements.
fn profile_inputs(text: &str) -> Result<BTreeMap<String, ProfileInput>, String> {
    let input = |part: &str| {
        let (name, rest) = part.split_once('=')?;
        let (dims, value) = rest.split_once('@').map_or((rest, None), |(dims, value)| (dims, Some(value)));
        let dim = |dim: &str| dim.trim().parse::<i64>().ok().filter(|&dim| dim > 0);
        let dims = match dims.trim() {
            "" => None,
            dims => Some(dims.split('x').map(dim).collect::<Option<Vec<_>>>()?),
        };
        let value = match value {
            None => None,
            Some(value) => Some(value.trim().parse::<f64>().ok().filter(|value| value.is_finite())?),
        };
        (dims.is_some() || value.is_some()).then(|| (name.trim().to_owned(), ProfileInput { dims, value }))
    };
    let wrong = |part: &str| {
        format!(
            "parameter `{PROFILE_INPUTS}` has {part:?}: write an input's name with its dimensions or, behind an @, the value of its elements, as in \"input=1x576,rate=@16000\""
        )
    };
    text.split(',').map(|part| input(part).ok_or_else(|| wrong(part.trim()))).collect()
}

fn batch_sizes(text: &str) -> Result<Vec<u32>, String> {
    let size = |part: &str| {
        let part = part.trim();
        let number = part.parse::<i64>().map_err(|_| {
            format!("parameter `{BATCH_SIZES}` has {part:?}: write sizes with commas between, as in \"1,2,4,8,16\"")
        })?;
        checked_batch_size(&format!("a size in parameter `{BATCH_SIZES}`"), number, 1)
    };
    Ok(sorted(text.split(',').map(size).collect::<Result<Vec<_>, _>>()?))
}

/// A number of milliseconds or megabytes: at least `least`, and not beyond reason.
fn number(parameter: &str, text: &str, least: f64) -> Result<f64, String> {
    let parsed = text.trim().parse::<f64>().ok().filter(|value| (least..1e12).contains(value));
    parsed.ok_or_else(|| format!("parameter `{parameter}` is {text:?}: write a number from {least} up, as in \"25\""))
}

fn emulation(text: &str) -> Result<Emulation, String> {
    let (mut alpha, mut beta, mut load) = (None, None, None);
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let slot = match key.trim() {
            "alpha_ms" => &mut alpha,
            "beta_ms" => &mut beta,
            "load_ms" => &mut load,
            key => {
                return Err(format!(
                    "parameter `{EMULATED_LATENCY}` has {key:?}: write alpha_ms, beta_ms and maybe load_ms, as in \
                     \"alpha_ms=1.0,beta_ms=5.0\""
                ));
            }
        };
        *slot = Some(Duration::from_millis_f64(number(EMULATED_LATENCY, value, 0.0)?));
    }
    let (Some(alpha), Some(beta)) = (alpha, beta) else {
        return Err(format!("parameter `{EMULATED_LATENCY}` is {text:?}: it needs both alpha_ms and beta_ms"));
    };
    Ok(Emulation { alpha, beta, load: load.unwrap_or(Duration::ZERO), weight_bytes: 0 })
}
