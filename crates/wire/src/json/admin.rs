//! The calls around inference as JSON: bodies into the messages that gRPC has for them, and answers into bodies.

use crate::bounds::{MAX_PARTS, too_many_parameters};
use crate::proto::model_repository_parameter::ParameterChoice;
use crate::proto::{
    CudaSharedMemoryRegisterRequest, CudaSharedMemoryStatusResponse, LogSettingsRequest, LogSettingsResponse,
    ModelConfigResponse, ModelRepositoryParameter, ModelStatisticsResponse, RepositoryIndexRequest,
    RepositoryIndexResponse, RepositoryModelLoadRequest, RepositoryModelUnloadRequest,
    SystemSharedMemoryRegisterRequest, SystemSharedMemoryStatusResponse, TraceSettingRequest, TraceSettingResponse,
    log_settings_request, log_settings_response, trace_setting_request,
};
use crate::{Fault, numbers, reflect};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Reads a body; an empty one is an empty object.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Fault> {
    let body = if body.trim_ascii().is_empty() { b"{}" } else { body.trim_ascii() };
    // The reader would take a list of values for an object whose names it knows.
    if !body.starts_with(b"{") {
        return Err(Fault::bad("the request is not what the protocol asks for: an object is expected"));
    }
    serde_json::from_slice(body)
        .map_err(|error| Fault::bad(format!("the request is not what the protocol asks for: {error}")))
}

fn text(value: &Value) -> Vec<u8> {
    let mut json = Vec::new();
    numbers::json(&mut json, value);
    json
}

/// `POST v2/repository/index`.
pub fn read_index_request(repository: &str, body: &[u8]) -> Result<RepositoryIndexRequest, Fault> {
    #[derive(Deserialize)]
    struct Body {
        #[serde(default)]
        ready: bool,
    }
    let Body { ready } = read(body)?;
    Ok(RepositoryIndexRequest { repository_name: repository.to_owned(), ready })
}

/// The models of the repository.
pub fn index(response: &RepositoryIndexResponse) -> Vec<u8> {
    let mut models = Vec::with_capacity(response.models.len());
    for model in &response.models {
        let mut entry = Map::new();
        entry.insert("name".into(), model.name.clone().into());
        for (key, value) in [("version", &model.version), ("state", &model.state), ("reason", &model.reason)] {
            if !value.is_empty() {
                entry.insert(key.into(), value.clone().into());
            }
        }
        models.push(Value::Object(entry));
    }
    text(&Value::Array(models))
}

/// The names of the models, in KServe's form.
pub fn model_names(names: &[String]) -> Vec<u8> {
    let mut json = b"{\"models\":".to_vec();
    numbers::json(&mut json, names);
    json.push(b'}');
    json
}

#[derive(Deserialize)]
struct RepositoryBody {
    #[serde(default)]
    parameters: BTreeMap<String, Value>,
}

/// `POST v2/repository/models/NAME/load`. Files come as base64.
pub fn read_load_request(repository: &str, model: &str, body: &[u8]) -> Result<RepositoryModelLoadRequest, Fault> {
    Ok(RepositoryModelLoadRequest {
        repository_name: repository.to_owned(),
        model_name: model.to_owned(),
        parameters: repository_parameters(body)?,
    })
}

/// `POST v2/repository/models/NAME/unload`.
pub fn read_unload_request(repository: &str, model: &str, body: &[u8]) -> Result<RepositoryModelUnloadRequest, Fault> {
    Ok(RepositoryModelUnloadRequest {
        repository_name: repository.to_owned(),
        model_name: model.to_owned(),
        parameters: repository_parameters(body)?,
    })
}

fn repository_parameters(body: &[u8]) -> Result<BTreeMap<String, ModelRepositoryParameter>, Fault> {
    let RepositoryBody { parameters } = read(body)?;
    if parameters.len() > MAX_PARTS {
        return Err(too_many_parameters());
    }
    let read = |(name, value): (String, Value)| {
        let choice = match value {
            Value::String(text) if name.starts_with("file:") => ParameterChoice::BytesParam(from_base64(&name, &text)?),
            Value::String(text) => ParameterChoice::StringParam(text),
            Value::Bool(value) => ParameterChoice::BoolParam(value),
            Value::Number(number) if number.is_i64() => ParameterChoice::Int64Param(number.as_i64().unwrap_or(0)),
            other => {
                return Err(Fault::bad(format!(
                    "the parameter {name:?} is {other}: a text, a whole number, true or false is expected"
                )));
            }
        };
        Ok((name, ModelRepositoryParameter { parameter_choice: Some(choice) }))
    };
    parameters.into_iter().map(read).collect()
}

fn from_base64(name: &str, text: &str) -> Result<Bytes, Fault> {
    let content = STANDARD.decode(text);
    content.map(Bytes::from).map_err(|error| Fault::bad(format!("the parameter {name:?} is not valid base64: {error}")))
}

/// A model's configuration.
pub fn model_config(response: &ModelConfigResponse) -> Vec<u8> {
    reflect::to_json("ModelConfig", &response.config.clone().unwrap_or_default())
}

/// What models did.
pub fn statistics(response: &ModelStatisticsResponse) -> Vec<u8> {
    reflect::to_json("ModelStatisticsResponse", response)
}

/// `POST v2[/models/NAME]/trace/setting`. A value is a text, several texts, or `null` for the default.
pub fn read_trace_request(model: &str, body: &[u8]) -> Result<TraceSettingRequest, Fault> {
    let settings: BTreeMap<String, Value> = read(body)?;
    let settings = settings.into_iter().map(|(name, value)| {
        let value = match value {
            Value::Null => Vec::new(),
            Value::Array(values) => {
                values.iter().map(|value| scalar(&name, value)).collect::<Result<Vec<_>, Fault>>()?
            }
            value => vec![scalar(&name, &value)?],
        };
        Ok((name, trace_setting_request::SettingValue { value }))
    });
    Ok(TraceSettingRequest { settings: settings.collect::<Result<_, Fault>>()?, model_name: model.to_owned() })
}

fn scalar(name: &str, value: &Value) -> Result<String, Fault> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        other => Err(Fault::bad(format!("the setting {name:?} is {other}: a text is expected"))),
    }
}

/// What is traced. Levels are a list; the others are texts.
pub fn trace_settings(response: &TraceSettingResponse) -> Vec<u8> {
    let settings = response.settings.iter().map(|(name, setting)| {
        let value = match &setting.value[..] {
            [one] if name != "trace_level" => json!(one),
            several => json!(several),
        };
        (name.clone(), value)
    });
    text(&Value::Object(settings.collect()))
}

/// `POST v2/shares`: how GPUs are to be divided.
pub fn read_shares_request(body: &[u8]) -> Result<Vec<f64>, Fault> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Wanted {
        shares: Vec<f64>,
    }
    Ok(read::<Wanted>(body)?.shares)
}

/// `POST v2/logging`.
pub fn read_log_request(body: &[u8]) -> Result<LogSettingsRequest, Fault> {
    use log_settings_request::SettingValue;
    use log_settings_request::setting_value::ParameterChoice as Choice;
    let settings: BTreeMap<String, Value> = read(body)?;
    let settings = settings.into_iter().map(|(name, value)| {
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        let choice = match (value, number) {
            (Value::Bool(value), _) => Choice::BoolParam(value),
            (Value::String(text), _) => Choice::StringParam(text),
            (_, Some(number)) => Choice::Uint32Param(number),
            (other, None) => {
                return Err(Fault::bad(format!(
                    "the setting {name:?} is {other}: a text, a number, true or false is expected"
                )));
            }
        };
        Ok((name, SettingValue { parameter_choice: Some(choice) }))
    });
    Ok(LogSettingsRequest { settings: settings.collect::<Result<_, Fault>>()? })
}

/// What is logged.
pub fn log_settings(response: &LogSettingsResponse) -> Vec<u8> {
    use log_settings_response::setting_value::ParameterChoice as Choice;
    let settings = response.settings.iter().map(|(name, setting)| {
        let value = match &setting.parameter_choice {
            Some(Choice::BoolParam(value)) => json!(value),
            Some(Choice::Uint32Param(value)) => json!(value),
            Some(Choice::StringParam(value)) => json!(value),
            None => Value::Null,
        };
        (name.clone(), value)
    });
    text(&Value::Object(settings.collect()))
}

/// `POST v2/systemsharedmemory/region/NAME/register`.
pub fn read_system_register(name: &str, body: &[u8]) -> Result<SystemSharedMemoryRegisterRequest, Fault> {
    #[derive(Deserialize)]
    struct Body {
        key: String,
        #[serde(default)]
        offset: u64,
        byte_size: u64,
    }
    let Body { key, offset, byte_size } = read(body)?;
    Ok(SystemSharedMemoryRegisterRequest { name: name.to_owned(), key, offset, byte_size })
}

/// The regions of system memory that are shared.
pub fn system_regions(response: &SystemSharedMemoryStatusResponse) -> Vec<u8> {
    let region = |region: &crate::proto::system_shared_memory_status_response::RegionStatus| json!({"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.byte_size});
    text(&Value::Array(response.regions.values().map(region).collect()))
}

/// `POST v2/cudasharedmemory/region/NAME/register`.
pub fn read_cuda_register(name: &str, body: &[u8]) -> Result<CudaSharedMemoryRegisterRequest, Fault> {
    #[derive(Deserialize)]
    struct Handle {
        b64: String,
    }
    #[derive(Deserialize)]
    struct Body {
        raw_handle: Handle,
        device_id: i64,
        byte_size: u64,
    }
    let Body { raw_handle, device_id, byte_size } = read(body)?;
    let raw_handle = from_base64("raw_handle", &raw_handle.b64)?;
    Ok(CudaSharedMemoryRegisterRequest { name: name.to_owned(), raw_handle, device_id, byte_size })
}

/// The regions of device memory that are shared.
pub fn cuda_regions(response: &CudaSharedMemoryStatusResponse) -> Vec<u8> {
    let region = |region: &crate::proto::cuda_shared_memory_status_response::RegionStatus| json!({"name": region.name, "device_id": region.device_id, "byte_size": region.byte_size});
    text(&Value::Array(response.regions.values().map(region).collect()))
}
