//! The calls around inference: small bodies in, JSON or nothing out.

use super::compressed;
use super::receive::RequestBody;
use super::route::{MemoryCall, ModelCall, Route};
use crate::admin::{feedback, repository, settings, shared_memory, shares, statistics};
use crate::body::encoding::Encoding;
use crate::body::hold::HeldBytes;
use crate::body::payload::{Payload, plain};
use crate::headers::text;
use crate::io::IoContext;
use crate::io::clients::Owner;
use crate::io::connection::Activity;
use crate::io::offload::offload;
use crate::rights::{Author, SharesChange};
use base::Reason;
use bytes::Bytes;
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use hyper::http::request::Parts;
use hyper::{Method, Response};
use std::sync::Arc;
use wire::admit::SMALL_BYTES;
use wire::proto::{
    CudaSharedMemoryStatusRequest, CudaSharedMemoryUnregisterRequest, LogSettingsRequest, ModelConfigRequest,
    ModelStatisticsRequest, SystemSharedMemoryStatusRequest, SystemSharedMemoryUnregisterRequest, TraceSettingRequest,
};
use wire::{Fault, json};

/// Answers one call that is neither inference nor about health nor about metadata.
pub(super) async fn answer(
    context: &IoContext,
    (activity, owner): (&Activity, &Arc<Owner>),
    author: &Author,
    route: &Route<'_>,
    head: &Parts,
    body: &mut RequestBody,
) -> Result<Response<Payload>, Fault> {
    let encoding = Encoding::of_request("Content-Encoding", text(&head.headers, &CONTENT_ENCODING)?)?;
    let accepted = Encoding::for_response(text(&head.headers, &ACCEPT_ENCODING)?);
    let asks = head.method != Method::POST;
    let _request = owner.request(context.controller.now())?;
    let (body, held) = body.read(owner, &None).await?;
    activity.busy();
    let (body, held) = match encoding {
        None => (body, held),
        Some(encoding) => {
            let mut held = held.unwrap_or_else(|| HeldBytes::new(owner));
            offload(owner, body.len(), move || Ok((held.inflate(encoding, &body)?, Some(held)))).await?
        }
    };
    let Some(json) = run((context, owner), author, route, asks, body).await? else { return Ok(plain::empty()) };
    let (head, payload) = compressed(Payload::from(json), accepted).into_parts();
    Ok(Response::from_parts(head, payload.held(held, owner)?))
}

/// What the call answers with, as JSON; `None` where there is nothing to say.
async fn run(
    (context, owner): (&IoContext, &Arc<Owner>),
    author: &Author,
    route: &Route<'_>,
    asks: bool,
    body: Bytes,
) -> Result<Option<Vec<u8>>, Fault> {
    // Only models that are loaded bring something large.
    let loads = matches!(route, Route::RepositoryModel { loads: true, .. });
    if !loads && body.len() > SMALL_BYTES {
        let message = format!("the body has {} bytes, but a call of this kind takes {SMALL_BYTES}", body.len());
        return Err(Fault::new(Reason::BodyTooLarge, message));
    }
    Ok(Some(match route {
        Route::Models => json::model_names(&repository::model_names(context)?),
        Route::Statistics => json::statistics(&statistics::statistics(context, &ModelStatisticsRequest::default())?),
        Route::TraceSetting => trace(context, author, "", asks, &body)?,
        Route::Logging => {
            let request = if asks { LogSettingsRequest::default() } else { json::read_log_request(&body)? };
            let outcome = settings::log(context, &request);
            json::log_settings(&if asks { outcome } else { author.does(&request).with(outcome) }?)
        }
        Route::Shares => {
            if !asks {
                author.does(&SharesChange(&body)).with(shares::change(&context.controller, &body))?;
            }
            shares::json(&context.controller)
        }
        Route::RepositoryIndex { repository } => {
            json::index(&repository::index(context, &json::read_index_request(repository, &body)?)?)
        }
        Route::RepositoryModel { repository, name, loads: true } => {
            let (repository, name, bytes) = (repository.to_string(), name.to_string(), body.len());
            // Files come as base64 in JSON: reading megabytes of it takes milliseconds.
            let read = move || json::read_load_request(&repository, &name, &body);
            let request = offload(owner, bytes, read).await?;
            let line = author.does(&request);
            line.with(repository::load(context, request).await)?;
            return Ok(None);
        }
        Route::RepositoryModel { repository, name, loads: false } => {
            let request = json::read_unload_request(repository, name, &body)?;
            let line = author.does(&request);
            line.with(repository::unload(context, request).await)?;
            return Ok(None);
        }
        Route::SharedMemory { cuda: false, region, call } => {
            return system_memory(context, author, region, *call, &body).await;
        }
        Route::SharedMemory { cuda: true, region, call } => {
            return cuda_memory(context, author, region, *call, &body);
        }
        Route::Model { name, version, call: ModelCall::Feedback } => {
            context.gate.may_ask(&author.caller, name)?;
            feedback::feedback(context, owner, (name, version), &body)?
        }
        Route::Model { name, version, call } => {
            let (name, version) = (name.to_string(), version.to_string());
            match call {
                ModelCall::Config => {
                    json::model_config(&repository::model_config(context, &ModelConfigRequest { name, version })?)
                }
                ModelCall::Statistics => {
                    json::statistics(&statistics::statistics(context, &ModelStatisticsRequest { name, version })?)
                }
                ModelCall::TraceSetting => {
                    // Settings are the model's, but a version that is named must be there.
                    context.models.find(&name, &version)?;
                    trace(context, author, &name, asks, &body)?
                }
                ModelCall::Metadata | ModelCall::Ready | ModelCall::Infer | ModelCall::Feedback => {
                    return Err(elsewhere());
                }
            }
        }
        Route::ServerMetadata | Route::ServerLive | Route::ServerReady | Route::OpenApi => return Err(elsewhere()),
    }))
}

fn trace(context: &IoContext, author: &Author, model: &str, asks: bool, body: &[u8]) -> Result<Vec<u8>, Fault> {
    let request = if asks {
        TraceSettingRequest { model_name: model.to_owned(), ..TraceSettingRequest::default() }
    } else {
        json::read_trace_request(model, body)?
    };
    let outcome = settings::trace(context, &request);
    let outcome = if asks { outcome } else { author.does(&request).with(outcome) };
    Ok(json::trace_settings(&outcome?))
}

async fn system_memory(
    context: &IoContext,
    author: &Author,
    region: &str,
    call: MemoryCall,
    body: &[u8],
) -> Result<Option<Vec<u8>>, Fault> {
    let name = region.to_owned();
    match call {
        MemoryCall::Status => {
            let status = shared_memory::system_status(context, &SystemSharedMemoryStatusRequest { name })?;
            return Ok(Some(json::system_regions(&status)));
        }
        MemoryCall::Register => {
            let request = json::read_system_register(region, body)?;
            author.does(&request).with(shared_memory::system_register(context, &request))?;
        }
        MemoryCall::Unregister => {
            let request = SystemSharedMemoryUnregisterRequest { name };
            author.does(&request).with(shared_memory::system_unregister(context, &request).await)?;
        }
    }
    Ok(None)
}

fn cuda_memory(
    context: &IoContext,
    author: &Author,
    region: &str,
    call: MemoryCall,
    body: &[u8],
) -> Result<Option<Vec<u8>>, Fault> {
    let name = region.to_owned();
    match call {
        MemoryCall::Status => {
            let status = shared_memory::cuda_status(context, &CudaSharedMemoryStatusRequest { name })?;
            return Ok(Some(json::cuda_regions(&status)));
        }
        MemoryCall::Register => {
            let request = json::read_cuda_register(region, body)?;
            author.does(&request).with(shared_memory::cuda_register(context, &request))?;
        }
        MemoryCall::Unregister => {
            let request = CudaSharedMemoryUnregisterRequest { name };
            author.does(&request).with(shared_memory::cuda_unregister(context, &request))?;
        }
    }
    Ok(None)
}

/// What is answered before this is asked.
fn elsewhere() -> Fault {
    Fault::new(Reason::NotFound, "there is no such call")
}
