//! The entries of `parameters`: those that mean something to Punctual, read and checked.

use crate::config::{Emulation, ModelConfig, ProfileInput};
use crate::meaning::unused;
use crate::read::{checked_batch_size, sorted};
use crate::text::{Field, Place, Problem};
use crate::values::{Warnings, each, message, problem, text};
use base::{Duration, Precision};
use std::collections::BTreeMap;

/// The parameters that mean something to Punctual.
const LATENCY_OBJECTIVE_MS: &str = "latency_objective_ms";
const BATCH_SIZES: &str = "batch_sizes";
const EMULATED_LATENCY: &str = "emulated_latency";
const WEIGHTS_MB: &str = "weights_mb";
const PROFILE_INPUTS: &str = "profile_inputs";
const SEQUENCE_LENGTHS: &str = "sequence_lengths";
const PRECISION: &str = "precision";
const PADDING: &str = "padding";
const FAIR_WEIGHT: &str = "fair_weight";
const FAIR_FLOOR: &str = "fair_floor";

/// By name: the text, and where it stands.
pub type Parameters = BTreeMap<String, (Place, String)>;

pub fn read_parameters(field: &Field, parameters: &mut Parameters, warnings: Warnings<'_>) -> Result<(), Problem> {
    for entry in each(&field.value) {
        let (mut key, mut value) = (None, (entry.place, String::new()));
        for part in &message(field, entry)?.fields {
            match part.name.as_str() {
                "key" => key = Some(text(part, &part.value)?.to_owned()),
                "value" => {
                    for inner in &message(part, &part.value)?.fields {
                        match inner.name.as_str() {
                            "string_value" => value = (inner.value.place, text(inner, &inner.value)?.to_owned()),
                            _ => unused("parameters.value", inner, warnings),
                        }
                    }
                }
                _ => unused("parameters", part, warnings),
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

pub fn apply_parameters(
    parameters: &Parameters,
    config: &mut ModelConfig,
    warnings: Warnings<'_>,
) -> Result<(), Problem> {
    for (name, (place, text)) in parameters {
        let done = match name.as_str() {
            LATENCY_OBJECTIVE_MS => number(name, text, 0.001)
                .map(|millis| config.latency_objective = Some(Duration::from_millis_f64(millis))),
            BATCH_SIZES => sizes(BATCH_SIZES, text).map(|sizes| config.batch_sizes = Some(sizes)),
            SEQUENCE_LENGTHS => sizes(SEQUENCE_LENGTHS, text).map(|sizes| config.lengths = sizes),
            PRECISION => precision(text).map(|precision| config.precision = Some(precision)),
            EMULATED_LATENCY => emulation(text).map(|emulation| config.emulation = Some(emulation)),
            WEIGHTS_MB => Ok(()),
            PROFILE_INPUTS => profile_inputs(text).map(|inputs| config.profile_inputs = inputs),
            FAIR_WEIGHT => number(name, text, 0.001).map(|weight| config.fair_weight = Some(weight)),
            FAIR_FLOOR => part(name, text).map(|floor| config.fair_floor = Some(floor)),
            PADDING => padding(text).map(|padding| config.padding = padding),
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
        checked_batch_size(&format!("a size in parameter `{parameter}`"), number, 1)
    };
    Ok(sorted(text.split(',').map(size).collect::<Result<Vec<_>, _>>()?))
}

fn precision(text: &str) -> Result<Precision, String> {
    let known = Precision::from_name(text.trim());
    known.ok_or_else(|| format!("parameter `{PRECISION}` is {text:?}: write fp32, tf32 or fp16"))
}

/// A number of milliseconds or megabytes: at least `least`, and not beyond reason.
fn number(parameter: &str, text: &str, least: f64) -> Result<f64, String> {
    let parsed = text.trim().parse::<f64>().ok().filter(|value| (least..1e12).contains(value));
    parsed.ok_or_else(|| format!("parameter `{parameter}` is {text:?}: write a number from {least} up, as in \"25\""))
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
