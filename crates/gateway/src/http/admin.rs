//! The calls around inference: small bodies in, JSON or nothing out.

use super::body::RequestBody;
use super::encoding::Encoding;
use super::payload::{Payload, plain};
use super::route::{MemoryCall, ModelCall, Route};
use super::{compressed, text};
use crate::beside::beside;
use crate::connection::Activity;
use crate::shard::Shard;
use crate::{repository_calls, settings, shared_memory, statistics};
use bytes::Bytes;
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use hyper::http::request::Parts;
use hyper::{Method, Response};
use wire::codec::SMALL_BYTES;
use wire::proto::{
    CudaSharedMemoryStatusRequest, CudaSharedMemoryUnregisterRequest, LogSettingsRequest, ModelConfigRequest,
    ModelStatisticsRequest, SystemSharedMemoryStatusRequest, SystemSharedMemoryUnregisterRequest, TraceSettingRequest,
};
use wire::{Fault, Reason, json};

/// Answers one call that is neither inference nor about health nor about metadata.
pub(super) async fn answer(
    shard: &Shard,
    activity: &Activity,
    route: &Route<'_>,
    head: &Parts,
    body: &mut RequestBody,
) -> Result<Response<Payload>, Fault> {
    let encoding = Encoding::of_request(text(&head.headers, &CONTENT_ENCODING)?)?;
    let accepted = Encoding::for_response(text(&head.headers, &ACCEPT_ENCODING)?);
    let asks = head.method != Method::POST;
    let (body, held) = body.read(&shard.shared, &None).await?;
    activity.busy();
    let body = match encoding {
        None => body,
        Some(encoding) => {
            let limit = shard.shared.config.max_body_bytes;
            beside(move || encoding.decompress(&body, limit)).await?
        }
    };
    let json = run(shard, route, asks, body).await?;
    drop(held);
    Ok(json.map_or_else(plain::empty, |json| compressed(Payload::from(json), accepted)))
}

/// What the call answers with, as JSON; `None` where there is nothing to say.
async fn run(shard: &Shard, route: &Route<'_>, asks: bool, body: Bytes) -> Result<Option<Vec<u8>>, Fault> {
    // Only models that are loaded bring something large.
    let loads = matches!(route, Route::RepositoryModel { loads: true, .. });
    if !loads && body.len() > SMALL_BYTES {
        let message = format!("the body has {} bytes, but a call of this kind takes {SMALL_BYTES}", body.len());
        return Err(Fault::new(Reason::BodyTooLarge, message));
    }
    Ok(Some(match route {
        Route::Models => json::model_names(&repository_calls::model_names(shard)?),
        Route::Statistics => json::statistics(&statistics::statistics(shard, &ModelStatisticsRequest::default())?),
        Route::TraceSetting => trace(shard, "", asks, &body)?,
        Route::Logging => {
            let request = if asks { LogSettingsRequest::default() } else { json::read_log_request(&body)? };
            json::log_settings(&settings::log(shard, &request)?)
        }
        Route::RepositoryIndex { repository } => {
            json::index(&repository_calls::index(shard, &json::read_index_request(repository, &body)?)?)
        }
        Route::RepositoryModel { repository, name, loads: true } => {
            let (repository, name) = (repository.to_string(), name.to_string());
            // Files come as base64 in JSON: reading megabytes of it takes milliseconds.
            let request = beside(move || json::read_load_request(&repository, &name, &body)).await?;
            repository_calls::load(shard, request).await?;
            return Ok(None);
        }
        Route::RepositoryModel { repository, name, loads: false } => {
            repository_calls::unload(shard, json::read_unload_request(repository, name, &body)?).await?;
            return Ok(None);
        }
        Route::SharedMemory { cuda: false, region, call } => return system_memory(shard, region, *call, &body),
        Route::SharedMemory { cuda: true, region, call } => return cuda_memory(shard, region, *call, &body),
        Route::Model { name, version, call } => {
            let (name, version) = (name.to_string(), version.to_string());
            match call {
                ModelCall::Config => {
                    json::model_config(&repository_calls::model_config(shard, &ModelConfigRequest { name, version })?)
                }
                ModelCall::Statistics => {
                    json::statistics(&statistics::statistics(shard, &ModelStatisticsRequest { name, version })?)
                }
                ModelCall::TraceSetting => {
                    // Settings are the model's, but a version that is named must be there.
                    shard.models.find(&name, &version)?;
                    trace(shard, &name, asks, &body)?
                }
                ModelCall::Metadata | ModelCall::Ready | ModelCall::Infer => return Err(elsewhere()),
            }
        }
        Route::ServerMetadata | Route::ServerLive | Route::ServerReady | Route::OpenApi => return Err(elsewhere()),
    }))
}

fn trace(shard: &Shard, model: &str, asks: bool, body: &[u8]) -> Result<Vec<u8>, Fault> {
    let request = if asks {
        TraceSettingRequest { model_name: model.to_owned(), ..TraceSettingRequest::default() }
    } else {
        json::read_trace_request(model, body)?
    };
    Ok(json::trace_settings(&settings::trace(shard, &request)?))
}

fn system_memory(shard: &Shard, region: &str, call: MemoryCall, body: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
    let name = region.to_owned();
    match call {
        MemoryCall::Status => {
            let status = shared_memory::system_status(shard, &SystemSharedMemoryStatusRequest { name })?;
            return Ok(Some(json::system_regions(&status)));
        }
        MemoryCall::Register => {
            shared_memory::system_register(shard, &json::read_system_register(region, body)?)?;
        }
        MemoryCall::Unregister => {
            shared_memory::system_unregister(shard, &SystemSharedMemoryUnregisterRequest { name })?;
        }
    }
    Ok(None)
}

fn cuda_memory(shard: &Shard, region: &str, call: MemoryCall, body: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
    let name = region.to_owned();
    match call {
        MemoryCall::Status => {
            let status = shared_memory::cuda_status(shard, &CudaSharedMemoryStatusRequest { name })?;
            return Ok(Some(json::cuda_regions(&status)));
        }
        MemoryCall::Register => {
            shared_memory::cuda_register(shard, &json::read_cuda_register(region, body)?)?;
        }
        MemoryCall::Unregister => {
            shared_memory::cuda_unregister(shard, &CudaSharedMemoryUnregisterRequest { name })?;
        }
    }
    Ok(None)
}

/// What is answered before this is asked.
fn elsewhere() -> Fault {
    Fault::new(Reason::NotFound, "there is no such call")
}
