//! The calls around inference: one small message in, one out.

use super::Encodings;
use super::answer::{OneMessage, messages};
use super::frames::{self, Messages};
use crate::admin::{repository, settings, shared_memory, statistics};
use crate::body::encoding::Encoding;
use crate::call::count_unrouted;
use crate::extensions::{SERVER_NAME, SERVER_VERSION, extensions};
use crate::io::IoContext;
use base::Reason;
use bytes::Bytes;
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
    mut incoming: Messages,
    encodings: Encodings,
) -> Result<Response<tonic::body::Body>, Fault> {
    let read = async { incoming.only().await?.plain().await };
    let (message, _held) = read.await.inspect_err(|fault| count_unrouted(context, fault))?;
    let frame = run(Unary { context, message, encoding: encodings.answer }, name).await?;
    Ok(messages(OneMessage::new(frame), encodings.answer))
}

/// A call of one message.
struct Unary<'a> {
    context: &'a IoContext,
    message: Bytes,
    encoding: Option<Encoding>,
}

impl Unary<'_> {
    fn read<Q: Admit>(&self) -> Result<Q, Fault> {
        admit::read(self.message.clone()).inspect_err(|fault| count_unrouted(self.context, fault))
    }

    fn write(&self, answer: &impl Message) -> Result<Vec<u8>, Fault> {
        frames::write(answer, self.encoding)
    }

    fn answer<Q: Admit, A: Message>(&self, call: impl FnOnce(&Q) -> Result<A, Fault>) -> Result<Vec<u8>, Fault> {
        self.write(&call(&self.read()?)?)
    }
}

/// The frame that a call answers with. Every call of the protocol but inference is here.
async fn run(call: Unary<'_>, name: &str) -> Result<Vec<u8>, Fault> {
    let context = call.context;
    match name {
        "ServerLive" => call.answer(|_: &ServerLiveRequest| Ok(ServerLiveResponse { live: true })),
        "ServerReady" => call.answer(|_: &ServerReadyRequest| Ok(ServerReadyResponse { ready: context.ready() })),
        "ServerMetadata" => call.answer(|_: &ServerMetadataRequest| Ok(server_metadata(context))),
        "ModelReady" => call.answer(|ModelReadyRequest { name, version }| {
            Ok(ModelReadyResponse { ready: context.models.describe(name, version, |_| ()).is_ok() })
        }),
        "ModelMetadata" => call.answer(|ModelMetadataRequest { name, version }| {
            context.models.describe(name, version, |metadata| ModelMetadataResponse::from(metadata))
        }),
        "ModelConfig" => call.answer(|request| repository::model_config(context, request)),
        "ModelStatistics" => call.answer(|request| statistics::statistics(context, request)),
        "RepositoryIndex" => call.answer(|request| repository::index(context, request)),
        "RepositoryModelLoad" => call.write(&repository::load(context, call.read()?).await?),
        "RepositoryModelUnload" => call.write(&repository::unload(context, call.read()?).await?),
        "SystemSharedMemoryStatus" => call.answer(|request| shared_memory::system_status(context, request)),
        "SystemSharedMemoryRegister" => call.answer(|request| shared_memory::system_register(context, request)),
        "SystemSharedMemoryUnregister" => call.answer(|request| shared_memory::system_unregister(context, request)),
        "CudaSharedMemoryStatus" => call.answer(|request| shared_memory::cuda_status(context, request)),
        "CudaSharedMemoryRegister" => call.answer(|request| shared_memory::cuda_register(context, request)),
        "CudaSharedMemoryUnregister" => call.answer(|request| shared_memory::cuda_unregister(context, request)),
        "TraceSetting" => call.answer(|request| settings::trace(context, request)),
        "LogSettings" => call.answer(|request| settings::log(context, request)),
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
