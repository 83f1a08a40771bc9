//! The entries of `parameters`: those that mean something to Punctual, read and checked.

use crate::config::{Emulation, ModelConfig, ProfileInput};
use crate::meaning::MAX_BATCH;
use crate::positions::Positions;
use crate::read::sorted;
use crate::text::{TextPosition, TextProblem};
use crate::values::{Warnings, problem};
use base::{Duration, PrecisionChoice};
use std::collections::BTreeMap;
use wire::proto::ModelParameter;

/// The parameters that mean something to Punctual.
const LATENCY_OBJECTIVE_MS: &str = "latency_objective_ms";
const BATCH_SIZES: &str = "batch_sizes";
/// In the configuration that clients see: why the first dimension is a batch or isn't.
pub const BATCH_DIMENSION: &str = "batch_dimension";
const EMULATED_LATENCY: &str = "emulated_latency";
const WEIGHTS_MB: &str = "weights_mb";
const PROFILE_INPUTS: &str = "profile_inputs";
const SEQUENCE_LENGTHS: &str = "sequence_lengths";
const PRECISION: &str = "precision";
const PRECISION_ERROR: &str = "precision_error";
/// In the configuration that clients see: what the model is computed in, and how far it is off.
pub const COMPUTED_IN: &str = "computed_in";
/// In the configuration that clients see: what of the model the host's cores compute behind a GPU.
pub const END_ON_HOST: &str = "end_on_host";
const PADDING: &str = "padding";
const MAX_ELEMENTS: &str = "max_elements";
const MAX_SHAPES: &str = "max_shapes";
const FAIR_WEIGHT: &str = "fair_weight";
const FAIR_FLOOR: &str = "fair_floor";

/// Reads all of them into `config`.
pub fn read(
    written: &BTreeMap<String, ModelParameter>,
    positions: &Positions,
    config: &mut ModelConfig,
    warnings: Warnings<'_>,
) -> Result<(), TextProblem> {
    for (name, ModelParameter { string_value: text }) in written {
        let position = position(name, positions);
        if !read_one(name, text, config).map_err(|reason| problem(position, reason))? {
            warnings.push(problem(position, format!("parameter `{name}` isn't known and is ignored")));
        }
    }
    if let Some(ModelParameter { string_value: text }) = written.get(WEIGHTS_MB) {
        let position = position(WEIGHTS_MB, positions);
        let megabytes = number(WEIGHTS_MB, text, 0.0).map_err(|reason| problem(position, reason))?;
        match &mut config.emulation {
            Some(emulation) => emulation.weight_bytes = (megabytes * 1e6).round() as u64,
            None => warnings.push(problem(position, "parameter `weights_mb` is ignored without `emulated_latency`")),
        }
    }
    Ok(())
}

/// Where its text stands; where the whole parameter does if it has no text or no name.
fn position(name: &str, positions: &Positions) -> TextPosition {
    let (entry, text) = (format!("parameters[{name}]"), format!("parameters[{name}].string_value"));
    positions.value(if !name.is_empty() && positions.is_written(&text) { &text } else { &entry })
}

/// Reads one of them into `config`; `false` if it isn't known.
fn read_one(name: &str, text: &str, config: &mut ModelConfig) -> Result<bool, String> {
    match name {
        LATENCY_OBJECTIVE_MS => {
            config.latency_objective = Some(Duration::from_millis_f64(number(name, text, 0.001)?));
        }
        BATCH_SIZES => config.batch_sizes = Some(sizes(BATCH_SIZES, text)?),
        SEQUENCE_LENGTHS => config.lengths = sizes(SEQUENCE_LENGTHS, text)?,
        PRECISION => config.precision = Some(precision(text)?),
        PRECISION_ERROR => config.precision_error = Some(part(name, text)?),
        EMULATED_LATENCY => config.emulation = Some(emulation(text)?),
        // Read when it is known whether there is something to emulate.
        WEIGHTS_MB => {}
        // Of a configuration that the server has shown.
        BATCH_DIMENSION | COMPUTED_IN | END_ON_HOST => {}
        PROFILE_INPUTS => config.profile_inputs = profile_inputs(text)?,
        FAIR_WEIGHT => config.fair_weight = Some(number(name, text, 0.001)?),
        FAIR_FLOOR => config.fair_floor = Some(part(name, text)?),
        PADDING => config.padding = padding(text)?,
        MAX_ELEMENTS => config.max_elements = Some(count(name, text)?),
        MAX_SHAPES => config.max_shapes = Some(u32::try_from(count(name, text)?).unwrap_or(u32::MAX)),
        "" => {
            let example = r#"parameters { key: "NAME" value { string_value: "VALUE" } }"#;
            return Err(format!("this parameter has no key: write {example}"));
        }
        _ => return Ok(false),
    }
    Ok(true)
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

/// `input_ids=0,attention_mask=0`: an input's name, and the value that it is filled up with.
fn padding(text: &str) -> Result<BTreeMap<String, f64>, String> {
    let input = |part: &str| {
        let (name, value) = part.split_once('=')?;
        let value = value.trim().parse::<f64>().ok().filter(|value| !value.is_nan())?;
        Some((name.trim().to_owned(), value))
    };
    let wrong = |part: &str| {
        format!(
            "parameter `{PADDING}` has {part:?}: write each input's name with the value that it is filled up with, as in \"input_ids=0,attention_mask=0\""
        )
    };
    text.split(',').map(|part| input(part).ok_or_else(|| wrong(part.trim()))).collect()
}

/// `1,2,4`: sizes with commas between, in any order.
fn sizes(parameter: &str, text: &str) -> Result<Vec<u32>, String> {
    let size = |part: &str| {
        let part = part.trim();
        let number = part.parse::<i64>().map_err(|_| {
            format!("parameter `{parameter}` has {part:?}: write sizes with commas between, as in \"1,2,4,8,16\"")
        })?;
        u32::try_from(number)
            .ok()
            .filter(|size| (1..=MAX_BATCH).contains(size))
            .ok_or_else(|| format!("a size in parameter `{parameter}` is {number}: it must be from 1 to {MAX_BATCH}"))
    };
    Ok(sorted(text.split(',').map(size).collect::<Result<Vec<_>, _>>()?))
}

fn precision(text: &str) -> Result<PrecisionChoice, String> {
    let known = PrecisionChoice::from_name(text.trim());
    known.ok_or_else(|| format!("parameter `{PRECISION}` is {text:?}: write {}", PrecisionChoice::NAMES))
}

/// A number of milliseconds or megabytes: at least `least`, and not beyond reason.
fn number(parameter: &str, text: &str, least: f64) -> Result<f64, String> {
    let parsed = text.trim().parse::<f64>().ok().filter(|value| (least..1e12).contains(value));
    parsed.ok_or_else(|| format!("parameter `{parameter}` is {text:?}: write a number from {least} up, as in \"25\""))
}

/// A whole number from 1 up.
fn count(parameter: &str, text: &str) -> Result<u64, String> {
    let parsed = text.trim().parse::<u64>().ok().filter(|&count| count > 0);
    parsed
        .ok_or_else(|| format!("parameter `{parameter}` is {text:?}: write a whole number from 1 up, as in \"65536\""))
}

/// A part of a whole, from 0 to 1.
fn part(parameter: &str, text: &str) -> Result<f64, String> {
    let parsed = text.trim().parse::<f64>().ok().filter(|value| (0.0..=1.0).contains(value));
    parsed.ok_or_else(|| format!("parameter `{parameter}` is {text:?}: write a number from 0 to 1, as in \"0.1\""))
}

fn emulation(text: &str) -> Result<Emulation, String> {
    let (mut alpha, mut beta, mut load, mut transfer) = (None, None, None, None);
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let slot = match key.trim() {
            "alpha_ms" => &mut alpha,
            "beta_ms" => &mut beta,
            "load_ms" => &mut load,
            "transfer_ms" => &mut transfer,
            key => {
                return Err(format!(
                    "parameter `{EMULATED_LATENCY}` has {key:?}: write alpha_ms, beta_ms and maybe load_ms and transfer_ms, as in \
                     \"alpha_ms=1.0,beta_ms=5.0\""
                ));
            }
        };
        *slot = Some(Duration::from_millis_f64(number(EMULATED_LATENCY, value, 0.0)?));
    }
    let (Some(alpha), Some(beta)) = (alpha, beta) else {
        return Err(format!("parameter `{EMULATED_LATENCY}` is {text:?}: it needs both alpha_ms and beta_ms"));
    };
    let [load, transfer] = [load, transfer].map(|span| span.unwrap_or(Duration::ZERO));
    Ok(Emulation { alpha, beta, load, transfer, weight_bytes: 0 })
}
