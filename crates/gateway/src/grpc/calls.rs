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
use base::Reason;
use hyper::Response;
use prost::Message;
use wire::Fault;
use wire::admit::{self, Admit};
use wire::proto::{
    ModelMetadataRequest, ModelMetadataResponse, ModelReadyRequest, ModelReadyResponse, ServerLiveRequest,
    ServerLiveResponse, ServerMetadataRequest, ServerMetadataResponse, ServerReadyRequest, ServerReadyResponse,
};

/// Answers one call that isn't inference.
pub(super) async fn answer(
    context: &IoContext,
    name: &str,
    incoming: Messages,
    encodings: Encodings,
) -> Result<Response<tonic::body::Body>, Fault> {
    let frame = run(Unary { context, incoming, encoding: encodings.answer }, name).await?;
    Ok(messages(OneMessage::new(frame), encodings.answer))
}

/// A call of one message, which is read once it is known that there is such a call.
struct Unary<'a> {
    context: &'a IoContext,
    incoming: Messages,
    encoding: Option<Encoding>,
}

impl Unary<'_> {
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
    match name {
        "ServerLive" => call.answer(|_: &ServerLiveRequest| Ok(ServerLiveResponse { live: true })).await,
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
            let answer = repository::load(context, request).await?;
            call.write(&answer)
        }
        "RepositoryModelUnload" => {
            let (request, _held) = call.read().await?;
            let answer = repository::unload(context, request).await?;
            call.write(&answer)
        }
        "SystemSharedMemoryStatus" => call.answer(|request| shared_memory::system_status(context, request)).await,
        "SystemSharedMemoryRegister" => call.answer(|request| shared_memory::system_register(context, request)).await,
        "SystemSharedMemoryUnregister" => {
            let (request, _held) = call.read().await?;
            let answer = shared_memory::system_unregister(context, &request).await?;
            call.write(&answer)
        }
        "CudaSharedMemoryStatus" => call.answer(|request| shared_memory::cuda_status(context, request)).await,
        "CudaSharedMemoryRegister" => call.answer(|request| shared_memory::cuda_register(context, request)).await,
        "CudaSharedMemoryUnregister" => call.answer(|request| shared_memory::cuda_unregister(context, request)).await,
        "TraceSetting" => call.answer(|request| settings::trace(context, request)).await,
        "LogSettings" => call.answer(|request| settings::log(context, request)).await,
        _ => {
            let message = "there is no such call here: this server has those of inference.GRPCInferenceService";
            let fault = Fault::new(Reason::NotFound, message);
            count_unrouted(context, &fault);
            Err(fault)
        }
    }
}

fn server_metadata(context: &IoContext) -> ServerMetadataResponse {
    ServerMetadataResponse {
        name: SERVER_NAME.to_owned(),
        version: SERVER_VERSION.to_owned(),
        extensions: extensions(&context.shared.config).into_iter().map(str::to_owned).collect(),
    }
}
