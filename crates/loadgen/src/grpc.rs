//! The same over gRPC: many requests share a connection.

use crate::inputs::InputSpec;
use crate::stats::Outcome;
use std::net::SocketAddr;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use wire::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use wire::proto::{ModelInferRequest, ModelMetadataRequest};

/// A client; clones share the connection.
#[derive(Clone, Debug)]
pub struct GrpcClient {
    client: GrpcInferenceServiceClient<Channel>,
}

impl GrpcClient {
    /// Opens a connection.
    pub async fn connect(address: SocketAddr) -> Result<Self, String> {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| error.to_string())?;
        let channel = endpoint.tcp_nodelay(true).connect().await;
        let channel = channel.map_err(|error| format!("{address} doesn't answer gRPC ({error}): is the server up?"))?;
        Ok(Self { client: GrpcInferenceServiceClient::new(channel).max_decoding_message_size(usize::MAX) })
    }

    /// What a model takes.
    pub async fn metadata(&mut self, model: &str) -> Result<Vec<InputSpec>, String> {
        let request = ModelMetadataRequest { name: model.to_owned(), version: String::new() };
        let answer = self.client.model_metadata(request).await.map_err(|status| status.message().to_owned())?;
        let inputs = answer.into_inner().inputs.into_iter();
        inputs.map(|input| crate::target::input_spec(input.name, &input.datatype, input.shape)).collect()
    }

    /// Sends a request and says what became of it.
    pub async fn ask(&mut self, request: &ModelInferRequest) -> Outcome {
        match self.client.model_infer(request.clone()).await {
            Ok(_) => Outcome::Success,
            Err(status) => classify(&status),
        }
    }
}

fn classify(status: &Status) -> Outcome {
    let named = status.metadata().get(wire::REASON_METADATA).and_then(|reason| reason.to_str().ok());
    // A source is an error of the connection, not an answer.
    if named.is_none() && std::error::Error::source(status).is_some() {
        return Outcome::Error("connection_lost".into());
    }
    let reason = named.map_or_else(|| format!("grpc_{}", i32::from(status.code())), ToOwned::to_owned);
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted => Outcome::Refused(reason),
        _ => Outcome::Error(reason),
    }
}
