//! The calls around inference: one small message in, one out.

use super::Encodings;
use super::answer::{OneMessage, messages};
use super::frames::{self, Messages};
use crate::admin::{repository, settings, shared_memory, statistics};
use crate::body::encoding::Encoding;
use crate::body::hold::HeldBytes;
use crate::call::count_unrouted;
use crate::extensions::{SERVER_NAME, SERVER_VERSION, extensions};
use crate::io::IoContext;
use crate::io::clients::Owner;
use crate::rights::{Asked, Author, Deed};
use base::Reason;
use hyper::Response;
use prost::Message;
use std::sync::Arc;
use wire::Fault;
use wire::admit::{self, Admit};
use wire::proto::{
    LogSettingsRequest, ModelMetadataRequest, ModelMetadataResponse, ModelReadyRequest, ModelReadyResponse,
    ServerLiveRequest, ServerLiveResponse, ServerMetadataRequest, ServerMetadataResponse, ServerReadyRequest,
    ServerReadyResponse, TraceSettingRequest,
};

/// Answers one call that isn't inference.
pub(super) async fn answer(
    (context, owner): (&IoContext, &Arc<Owner>),
    asked: Asked<'_>,
    name: &str,
    incoming: Messages,
    encodings: Encodings,
) -> Result<Response<tonic::body::Body>, Fault> {
    // Probes are answered, however much else the client asks.
    let _request = match name {
        "ServerLive" | "ServerReady" => None,
        _ => owner.request(context.controller.now()).inspect_err(|fault| count_unrouted(context, fault))?,
    };
    let frame = run(Unary { context, asked, incoming, encoding: encodings.answer }, name).await?;
    let frame = frames::held(frame, None, owner)?;
    Ok(messages(OneMessage::new(frame), encodings.answer))
}

/// A call of one message, which is read once it is known that there is such a call.
struct Unary<'a> {
    context: &'a IoContext,
    asked: Asked<'a>,
    incoming: Messages,
    encoding: Option<Encoding>,
}

impl Unary<'_> {
    fn admit(&self, deed: Deed) -> Result<Author, Fault> {
        self.context.admit(self.asked, deed)
    }

    /// The message, and what counts it as held while the call is answered.
    async fn read<Q: Admit>(&mut self) -> Result<(Q, Option<HeldBytes>), Fault> {
        let read = async { self.incoming.only().await?.plain().await };
        let request = read.await.and_then(|(message, held)| Ok((admit::read(message)?, held)));
        request.inspect_err(|fault| count_unrouted(self.context, fault))
    }

    fn write(&self, answer: &impl Message) -> Result<Vec<u8>, Fault> {
        frames::write(answer, self.encoding)
    }

    async fn answer<Q: Admit, A: Message>(
        mut self,
        call: impl FnOnce(&Q) -> Result<A, Fault>,
    ) -> Result<Vec<u8>, Fault> {
        let (request, _held) = self.read().await?;
        self.write(&call(&request)?)
    }
}

/// The frame that a call answers with. Every call of the protocol but inference is here.
async fn run(mut call: Unary<'_>, name: &str) -> Result<Vec<u8>, Fault> {
    let context = call.context;
    let author = match deed(name).ok_or_else(|| unknown(context))? {
        // Which of the two it is, the message says; whoever may do neither needn't send it.
        Deed::ReadTrace => call.admit(Deed::ReadTrace).or_else(|_| call.admit(Deed::ChangeTrace))?,
        Deed::ReadLog => call.admit(Deed::ReadLog).or_else(|_| call.admit(Deed::ChangeLog))?,
        deed => call.admit(deed)?,
    };
    match name {
        "ServerLive" => call.answer(|_: &ServerLiveRequest| Ok(ServerLiveResponse { live: context.is_live() })).await,
        "ServerReady" => call.answer(|_: &ServerReadyRequest| Ok(ServerReadyResponse { ready: context.ready() })).await,
        "ServerMetadata" => call.answer(|_: &ServerMetadataRequest| Ok(server_metadata(context))).await,
        "ModelReady" => {
            call.answer(|ModelReadyRequest { name, version }| {
                Ok(ModelReadyResponse { ready: context.models.describe(name, version, |_| ()).is_ok() })
            })
            .await
        }
        "ModelMetadata" => {
            call.answer(|ModelMetadataRequest { name, version }| {
                context.models.describe(name, version, |metadata| ModelMetadataResponse::from(metadata))
            })
            .await
        }
        "ModelConfig" => call.answer(|request| repository::model_config(context, request)).await,
        "ModelStatistics" => call.answer(|request| statistics::statistics(context, request)).await,
        "RepositoryIndex" => call.answer(|request| repository::index(context, request)).await,
        "RepositoryModelLoad" => {
            let (request, _held) = call.read().await?;
            let line = author.does(&request);
            let answer = line.with(repository::load(context, request).await)?;
            call.write(&answer)
        }
        "RepositoryModelUnload" => {
            let (request, _held) = call.read().await?;
            let line = author.does(&request);
            let answer = line.with(repository::unload(context, request).await)?;
            call.write(&answer)
        }
        "SystemSharedMemoryStatus" => call.answer(|request| shared_memory::system_status(context, request)).await,
        "SystemSharedMemoryRegister" => {
            call.answer(|request| author.does(request).with(shared_memory::system_register(context, request))).await
        }
        "SystemSharedMemoryUnregister" => {
            let (request, _held) = call.read().await?;
            let answer = author.does(&request).with(shared_memory::system_unregister(context, &request).await)?;
            call.write(&answer)
        }
        "CudaSharedMemoryStatus" => call.answer(|request| shared_memory::cuda_status(context, request)).await,
        "CudaSharedMemoryRegister" => {
            call.answer(|request| author.does(request).with(shared_memory::cuda_register(context, request))).await
        }
        "CudaSharedMemoryUnregister" => {
            call.answer(|request| author.does(request).with(shared_memory::cuda_unregister(context, request))).await
        }
        "TraceSetting" => {
            let (request, _held): (TraceSettingRequest, _) = call.read().await?;
            if request.settings.is_empty() {
                call.admit(Deed::ReadTrace)?;
                return call.write(&settings::trace(context, &request)?);
            }
            let author = call.admit(Deed::ChangeTrace)?;
            call.write(&author.does(&request).with(settings::trace(context, &request))?)
        }
        "LogSettings" => {
            let (request, _held): (LogSettingsRequest, _) = call.read().await?;
            if request.settings.is_empty() {
                call.admit(Deed::ReadLog)?;
                return call.write(&settings::log(context, &request)?);
            }
            let author = call.admit(Deed::ChangeLog)?;
            call.write(&author.does(&request).with(settings::log(context, &request))?)
        }
        _ => Err(unknown(context)),
    }
}

/// What a call does, as far as its name says it; `None` if there is no such call. Settings are changed by the calls
/// that read them.
fn deed(name: &str) -> Option<Deed> {
    Some(match name {
        "ServerLive" | "ServerReady" | "ModelReady" => Deed::AskHealth,
        "ServerMetadata" | "ModelMetadata" => Deed::ReadMetadata,
        "ModelConfig" => Deed::ReadConfig,
        "ModelStatistics" => Deed::ReadStatistics,
        "RepositoryIndex" => Deed::ReadModels,
        "RepositoryModelLoad" | "RepositoryModelUnload" => Deed::ChangeModels,
        "SystemSharedMemoryStatus" | "CudaSharedMemoryStatus" => Deed::ReadRegions,
        "SystemSharedMemoryRegister"
        | "SystemSharedMemoryUnregister"
        | "CudaSharedMemoryRegister"
        | "CudaSharedMemoryUnregister" => Deed::ChangeRegions,
        "TraceSetting" => Deed::ReadTrace,
        "LogSettings" => Deed::ReadLog,
        _ => return None,
    })
}

fn unknown(context: &IoContext) -> Fault {
    let message = "there is no such call here: this server has those of inference.GRPCInferenceService";
    let fault = Fault::new(Reason::NotFound, message);
    count_unrouted(context, &fault);
    fault
}

fn server_metadata(context: &IoContext) -> ServerMetadataResponse {
    ServerMetadataResponse {
        name: SERVER_NAME.to_owned(),
        version: SERVER_VERSION.to_owned(),
        extensions: extensions(&context.shared.config).into_iter().map(str::to_owned).collect(),
    }
}
