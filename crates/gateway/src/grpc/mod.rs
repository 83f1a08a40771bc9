//! The protocol over gRPC.

mod frames;
mod standard;
mod stream_infer;

use crate::body::encoding::Encoding;
use crate::body::payload::Payload;
use crate::call::{Call, Head, metric_reason};
use crate::extensions::{SERVER_NAME, SERVER_VERSION, extensions};
use crate::headers::{APPLICATION, text};
use crate::io::connection::Activity;

use crate::admin::{repository, settings, shared_memory, statistics};
use crate::io::IoContext;
use crate::io::open_stream::{OpenStream, StreamBody};
use base::{ApplicationId, Duration, Timestamp};
use bytes::Bytes;
use frames::Messages;
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderValue};
use standard::Standard;
use std::convert::Infallible;
use std::sync::Arc;
use stream_infer::{Answers, Source};
use tonic::codec::CompressionEncoding;
use tonic::codegen::{Service, http};
use tonic::{Code, Request, Response, Status, Streaming, async_trait};
use wire::proto::grpc_inference_service_server::{GrpcInferenceService, GrpcInferenceServiceServer};
use wire::proto::*;
use wire::{Fault, REASON_METADATA, Reason, codec, grpc};

/// Where requests are made.
const INFER_PATH: &str = "/inference.GRPCInferenceService/ModelInfer";
/// Where streams are asked for.
const STREAM_PATH: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// The calls, on one io thread.
pub(crate) struct Calls {
    context: Arc<IoContext>,
}

/// When a request's head was there; travels with it through the generated code.
#[derive(Clone, Copy)]
struct Arrived(Timestamp);

/// A call's message where devices read by themselves. It travels beside an empty one: the generated code would copy it elsewhere.
#[derive(Clone)]
struct Content(Bytes);

/// The service of one io thread: answers plainly to requests that came plainly, compressed to compressed ones. (Most
/// clients say that they accept compression whether they want it or not, and it costs more than it saves here.)
#[derive(Clone)]
pub(crate) struct GrpcServer {
    context: Arc<IoContext>,
    plain: GrpcInferenceServiceServer<Calls>,
    gzip: GrpcInferenceServiceServer<Calls>,
    deflate: GrpcInferenceServiceServer<Calls>,
    standard: Standard,
}

impl GrpcServer {
    pub(crate) fn new(context: Arc<IoContext>) -> Self {
        let limit = context.shared.config.max_body_bytes;
        let plain = GrpcInferenceServiceServer::new(Calls { context: Arc::clone(&context) })
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Deflate)
            .max_decoding_message_size(limit)
            .max_encoding_message_size(usize::MAX);
        let gzip = plain.clone().send_compressed(CompressionEncoding::Gzip);
        let deflate = plain.clone().send_compressed(CompressionEncoding::Deflate);
        let standard = Standard::new(&context.shared);
        Self { context, plain, gzip, deflate, standard }
    }

    /// Answers one request.
    pub(crate) async fn answer(
        &self,
        activity: &Arc<Activity>,
        mut request: http::Request<Incoming>,
    ) -> Result<http::Response<StreamBody<tonic::body::Body>>, Infallible> {
        let arrived = Arrived(self.context.controller.now());
        let open = OpenStream::new(&self.context, activity);
        if let Some(handler) = self.standard.of(request.uri().path()) {
            return Ok(handler(request).await?.map(|body| StreamBody::new(body, open)));
        }
        request.extensions_mut().insert(arrived);
        let (service, encoding) = match request.headers().get("grpc-encoding").map(HeaderValue::as_bytes) {
            Some(b"gzip") => (&self.gzip, Some(Encoding::Gzip)),
            Some(b"deflate") => (&self.deflate, Some(Encoding::Deflate)),
            _ => (&self.plain, None),
        };
        let (mut head, incoming) = request.into_parts();
        let message = if head.uri.path() == STREAM_PATH {
            // Its messages are read one by one, by the call itself.
            let messages = Messages::new(Arc::clone(&self.context.shared), incoming, encoding);
            head.extensions.insert(Source::new(messages));
            Ok((Payload::default(), None))
        } else {
            frames::read(&self.context.shared, incoming, encoding).await
        };
        let response = match message {
            Ok((mut message, _held)) => {
                if head.uri.path() == INFER_PATH
                    && let Some(content) = frames::content_at_host(&self.context.shared, &message)
                {
                    head.extensions.insert(Content(content));
                    message = frames::empty();
                }
                let mut response = service.clone().call(http::Request::from_parts(head, message)).await?;
                self.translate(response.headers_mut());
                response
            }
            Err(fault) => {
                self.context.shared.metrics.unrouted(metric_reason(fault.reason));
                Status::from(fault).into_http()
            }
        };
        Ok(response.map(|body| StreamBody::new(body, open)))
    }

    /// Refusals that the gRPC library made by itself get the codes and reasons of the table. They are the ones that carry
    /// no reason yet.
    fn translate(&self, headers: &mut HeaderMap) {
        let Some(status) = Status::from_header_map(headers) else { return };
        if headers.contains_key(REASON_METADATA) {
            return;
        }
        let reason = match status.code() {
            Code::OutOfRange | Code::ResourceExhausted => Reason::BodyTooLarge,
            Code::Internal | Code::InvalidArgument => Reason::BadInput,
            Code::Unimplemented => Reason::NotFound,
            _ => return,
        };
        let message = match reason {
            Reason::BodyTooLarge => format!(
                "the message is larger than {} bytes, the most that this server takes: send less in one request",
                self.context.shared.config.max_body_bytes
            ),
            Reason::NotFound if status.message().is_empty() => {
                "there is no such call here: this server has those of inference.GRPCInferenceService".to_owned()
            }
            _ => status.message().to_owned(),
        };
        self.context.shared.metrics.unrouted(metric_reason(reason));
        // Values that a header can't hold would have been refused when the status was made.
        let _ = Status::from(Fault::new(reason, message)).add_header(headers);
    }
}

#[async_trait]
impl GrpcInferenceService for Calls {
    async fn server_live(&self, _: Request<ServerLiveRequest>) -> Result<Response<ServerLiveResponse>, Status> {
        Ok(Response::new(ServerLiveResponse { live: true }))
    }

    async fn server_ready(&self, _: Request<ServerReadyRequest>) -> Result<Response<ServerReadyResponse>, Status> {
        Ok(Response::new(ServerReadyResponse { ready: self.context.ready() }))
    }

    async fn model_ready(&self, request: Request<ModelReadyRequest>) -> Result<Response<ModelReadyResponse>, Status> {
        let ModelReadyRequest { name, version } = request.get_ref();
        let ready = self.context.models.describe(name, version, |_| ()).is_ok();
        Ok(Response::new(ModelReadyResponse { ready }))
    }

    async fn server_metadata(
        &self,
        _: Request<ServerMetadataRequest>,
    ) -> Result<Response<ServerMetadataResponse>, Status> {
        Ok(Response::new(ServerMetadataResponse {
            name: SERVER_NAME.to_owned(),
            version: SERVER_VERSION.to_owned(),
            extensions: extensions(&self.context.shared.config).into_iter().map(str::to_owned).collect(),
        }))
    }

    async fn model_metadata(
        &self,
        request: Request<ModelMetadataRequest>,
    ) -> Result<Response<ModelMetadataResponse>, Status> {
        let ModelMetadataRequest { name, version } = request.get_ref();
        Ok(Response::new(self.context.models.describe(name, version, |metadata| metadata.into())?))
    }

    async fn model_infer(&self, request: Request<ModelInferRequest>) -> Result<Response<ModelInferResponse>, Status> {
        let arrived_at = arrived(&self.context, request.extensions());
        let head = head(&self.context, request.metadata().as_ref());
        let content = request.extensions().get::<Content>().map(|content| content.0.clone());
        let message = content.map_or_else(|| Ok(request.into_inner()), codec::read)?;
        let mut call = Call::begin(&self.context, &message.model_name, &message.model_version, arrived_at)?;
        let outcome = match head.and_then(|head| Ok((head, grpc::decode(&message)?))) {
            Ok((head, request)) => call.run(request, head, false, |response| Ok(grpc::encode(response))).await,
            Err(fault) => Err(fault),
        };
        Ok(Response::new(call.end(outcome)?))
    }

    type ModelStreamInferStream = Answers;

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<ModelInferRequest>>,
    ) -> Result<Response<Answers>, Status> {
        let arrived_at = arrived(&self.context, request.extensions());
        Ok(Response::new(stream_infer::answer(&self.context, &request, arrived_at)?))
    }

    async fn model_config(
        &self,
        request: Request<ModelConfigRequest>,
    ) -> Result<Response<ModelConfigResponse>, Status> {
        Ok(Response::new(repository::model_config(&self.context, request.get_ref())?))
    }

    async fn model_statistics(
        &self,
        request: Request<ModelStatisticsRequest>,
    ) -> Result<Response<ModelStatisticsResponse>, Status> {
        Ok(Response::new(statistics::statistics(&self.context, request.get_ref())?))
    }

    async fn repository_index(
        &self,
        request: Request<RepositoryIndexRequest>,
    ) -> Result<Response<RepositoryIndexResponse>, Status> {
        Ok(Response::new(repository::index(&self.context, request.get_ref())?))
    }

    async fn repository_model_load(
        &self,
        request: Request<RepositoryModelLoadRequest>,
    ) -> Result<Response<RepositoryModelLoadResponse>, Status> {
        Ok(Response::new(repository::load(&self.context, request.into_inner()).await?))
    }

    async fn repository_model_unload(
        &self,
        request: Request<RepositoryModelUnloadRequest>,
    ) -> Result<Response<RepositoryModelUnloadResponse>, Status> {
        Ok(Response::new(repository::unload(&self.context, request.into_inner()).await?))
    }

    async fn system_shared_memory_status(
        &self,
        request: Request<SystemSharedMemoryStatusRequest>,
    ) -> Result<Response<SystemSharedMemoryStatusResponse>, Status> {
        Ok(Response::new(shared_memory::system_status(&self.context, request.get_ref())?))
    }

    async fn system_shared_memory_register(
        &self,
        request: Request<SystemSharedMemoryRegisterRequest>,
    ) -> Result<Response<SystemSharedMemoryRegisterResponse>, Status> {
        Ok(Response::new(shared_memory::system_register(&self.context, request.get_ref())?))
    }

    async fn system_shared_memory_unregister(
        &self,
        request: Request<SystemSharedMemoryUnregisterRequest>,
    ) -> Result<Response<SystemSharedMemoryUnregisterResponse>, Status> {
        Ok(Response::new(shared_memory::system_unregister(&self.context, request.get_ref())?))
    }

    async fn cuda_shared_memory_status(
        &self,
        request: Request<CudaSharedMemoryStatusRequest>,
    ) -> Result<Response<CudaSharedMemoryStatusResponse>, Status> {
        Ok(Response::new(shared_memory::cuda_status(&self.context, request.get_ref())?))
    }

    async fn cuda_shared_memory_register(
        &self,
        request: Request<CudaSharedMemoryRegisterRequest>,
    ) -> Result<Response<CudaSharedMemoryRegisterResponse>, Status> {
        Ok(Response::new(shared_memory::cuda_register(&self.context, request.get_ref())?))
    }

    async fn cuda_shared_memory_unregister(
        &self,
        request: Request<CudaSharedMemoryUnregisterRequest>,
    ) -> Result<Response<CudaSharedMemoryUnregisterResponse>, Status> {
        Ok(Response::new(shared_memory::cuda_unregister(&self.context, request.get_ref())?))
    }

    async fn trace_setting(
        &self,
        request: Request<TraceSettingRequest>,
    ) -> Result<Response<TraceSettingResponse>, Status> {
        Ok(Response::new(settings::trace(&self.context, request.get_ref())?))
    }

    async fn log_settings(
        &self,
        request: Request<LogSettingsRequest>,
    ) -> Result<Response<LogSettingsResponse>, Status> {
        Ok(Response::new(settings::log(&self.context, request.get_ref())?))
    }
}

/// When a call's head was there.
fn arrived(context: &IoContext, extensions: &http::Extensions) -> Timestamp {
    extensions.get::<Arrived>().map_or_else(|| context.controller.now(), |arrived| arrived.0)
}

/// What a call's headers say: the smaller of gRPC's own deadline and that of the header that HTTP has too, and who sends it.
fn head(context: &IoContext, headers: &HeaderMap) -> Result<Head, Fault> {
    let limit = call_deadline(headers).into_iter().chain(header_deadline(headers)).min();
    Ok(Head { limit, application: application(context, headers)? })
}

/// Who sends a call's requests, unless they say so themselves.
pub(crate) fn application(context: &IoContext, headers: &HeaderMap) -> Result<ApplicationId, Fault> {
    context.shared.applications.of(text(headers, &APPLICATION)?)
}

/// gRPC's own deadline, which is the whole call's.
pub(crate) fn call_deadline(headers: &HeaderMap) -> Option<Duration> {
    headers.get("grpc-timeout").and_then(|value| value.to_str().ok()).and_then(grpc::timeout)
}

/// The deadline in the header that HTTP has too, which is each request's.
pub(crate) fn header_deadline(headers: &HeaderMap) -> Option<Duration> {
    let micros = headers.get("punctual-timeout-us").and_then(|value| value.to_str().ok()?.trim().parse().ok());
    micros.filter(|&micros| micros > 0).map(Duration::from_micros)
}
