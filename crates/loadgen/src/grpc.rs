//! The same over gRPC: many requests share a connection.
//!
//! Prepared messages go straight to the HTTP/2 connection. A generated client would encode each request anew and hand
//! it from task to task, and the generator, not the server, would be what a run measures.

use crate::connect::{ApiKey, Encryption, ServerStream};
use crate::inputs::InputSpec;
use crate::stats::RequestOutcome;
use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, TE};
use hyper::{Request, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use percent_encoding::percent_decode_str;
use prost::Message;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use tonic::Code;
use wire::proto::{ModelInferRequest, ModelMetadataRequest, ModelMetadataResponse};

/// Before each message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
/// The server may send that much ahead: answers never wait for our permission.
const WINDOW_BYTES: u32 = 64 << 20;

/// A call as it goes over the line.
#[derive(Clone, Debug)]
pub struct GrpcRequest {
    uri: Uri,
    key: Option<HeaderValue>,
    body: Bytes,
}

/// The server, as calls name it.
#[derive(Clone, Debug)]
pub struct GrpcEndpoint {
    /// Where it is.
    pub address: SocketAddr,
    /// How connections to it are encrypted.
    pub encryption: Option<Encryption>,
    /// The key that every call has with it.
    pub key: Option<ApiKey>,
}

impl GrpcRequest {
    /// A request to compute.
    pub fn infer(server: &GrpcEndpoint, request: &ModelInferRequest) -> Self {
        Self::new(server, "ModelInfer", request)
    }

    fn new(GrpcEndpoint { address, encryption, key }: &GrpcEndpoint, method: &str, message: &impl Message) -> Self {
        let scheme = if encryption.is_some() { "https" } else { "http" };
        let key = key.as_ref().map(|key| HeaderValue::from_str(&key.header()).expect("keys are plain letters"));
        let uri = format!("{scheme}://{address}/inference.GRPCInferenceService/{method}");
        let length = message.encoded_len();
        let mut body = BytesMut::with_capacity(PREFIX_BYTES + length);
        body.put_u8(0);
        body.put_u32(u32::try_from(length).expect("a message is shorter than 4 GiB"));
        message.encode(&mut body).expect("there is room for it");
        Self { uri: uri.parse().expect("an address and a method make a URI"), key, body: body.freeze() }
    }

    fn to_http(&self) -> Request<Full<Bytes>> {
        let mut request = Request::post(self.uri.clone()).body(Full::new(self.body.clone())).expect("it has a URI");
        let headers = request.headers_mut();
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        if let Some(key) = &self.key {
            headers.insert(AUTHORIZATION, key.clone());
        }
        request
    }
}

/// A client; clones share the connection, which is opened again when it was lost.
#[derive(Clone, Debug)]
pub struct GrpcClient {
    server: Rc<GrpcEndpoint>,
    connection: Rc<RefCell<SendRequest<Full<Bytes>>>>,
}

/// How a call failed.
#[derive(PartialEq, Eq, Debug)]
enum GrpcFailure {
    /// The server can't be reached.
    Connect,
    /// There was no whole answer.
    Lost,
    /// The server's answer.
    Status { code: Code, reason: Option<String>, message: String },
}

impl GrpcClient {
    /// Opens a connection.
    pub async fn connect(server: &Rc<GrpcEndpoint>) -> Result<Self, String> {
        let connection = open(server).await;
        let address = server.address;
        let connection =
            connection.map_err(|error| format!("{address} doesn't answer gRPC ({error}): is the server up?"))?;
        Ok(Self { server: server.clone(), connection: Rc::new(RefCell::new(connection)) })
    }

    /// What a model takes.
    pub async fn metadata(&mut self, model: &str) -> Result<Vec<InputSpec>, String> {
        let request = ModelMetadataRequest { name: model.to_owned(), version: String::new() };
        let answer = self.call(&GrpcRequest::new(&self.server, "ModelMetadata", &request), true).await;
        let answer = answer.map_err(|failure| match failure {
            GrpcFailure::Connect | GrpcFailure::Lost => "the connection was lost".to_owned(),
            GrpcFailure::Status { message, .. } => message,
        })?;
        let message = answer.get(PREFIX_BYTES..).unwrap_or_default();
        let answer = ModelMetadataResponse::decode(message)
            .map_err(|error| format!("the server's description can't be read: {error}"))?;
        let inputs = answer.inputs.into_iter();
        inputs.map(|input| crate::target::input_spec(input.name, &input.datatype, input.shape)).collect()
    }

    /// Sends a request and says what became of it.
    pub async fn ask(&mut self, request: &GrpcRequest) -> RequestOutcome {
        match self.call(request, false).await {
            Ok(_) => RequestOutcome::Success,
            Err(failure) => classify(failure),
        }
    }

    /// The answer's message with its prefix, if it is wanted.
    async fn call(&mut self, request: &GrpcRequest, wants_body: bool) -> Result<Vec<u8>, GrpcFailure> {
        if self.connection.borrow().is_closed() {
            let opened = open(&self.server).await.map_err(|_| GrpcFailure::Connect)?;
            self.connection.replace(opened);
        }
        let mut connection = self.connection.borrow().clone();
        connection.ready().await.map_err(|_| GrpcFailure::Lost)?;
        let answer = connection.send_request(request.to_http()).await.map_err(|_| GrpcFailure::Lost)?;
        let (head, mut body) = answer.into_parts();
        let mut kept = Vec::new();
        let trailers = read(&mut body, wants_body.then_some(&mut kept)).await?;
        // An answer without a message has everything in its head.
        finished(trailers.as_ref().unwrap_or(&head.headers))?;
        Ok(kept)
    }
}

async fn open(server: &GrpcEndpoint) -> Result<SendRequest<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
    let stream = ServerStream::open(server.address, server.encryption.as_ref()).await?;
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .handshake(TokioIo::new(stream))
        .await?;
    // Why it ended shows in the calls that were on it.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

/// Reads an answer to its end, and gives its trailers.
async fn read(body: &mut Incoming, mut kept: Option<&mut Vec<u8>>) -> Result<Option<HeaderMap>, GrpcFailure> {
    let mut trailers = None;
    while let Some(frame) = body.frame().await {
        match frame.map_err(|_| GrpcFailure::Lost)?.into_data() {
            Ok(data) => {
                if let Some(kept) = &mut kept {
                    kept.extend_from_slice(&data);
                }
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    Ok(trailers)
}

/// What the end of an answer says.
fn finished(trailers: &HeaderMap) -> Result<(), GrpcFailure> {
    let text = |name: &str| trailers.get(name).and_then(|value| value.to_str().ok()).map(ToOwned::to_owned);
    let status = trailers.get("grpc-status").ok_or(GrpcFailure::Lost)?;
    match Code::from_bytes(status.as_bytes()) {
        Code::Ok => Ok(()),
        code => {
            // What isn't plain in a header is percent-encoded there.
            let message = text("grpc-message").unwrap_or_default();
            let message = percent_decode_str(&message).decode_utf8_lossy().into_owned();
            Err(GrpcFailure::Status { code, reason: text(wire::REASON_METADATA), message })
        }
    }
}

fn classify(failure: GrpcFailure) -> RequestOutcome {
    let (code, reason) = match failure {
        GrpcFailure::Connect => return RequestOutcome::Error("connect_failed".into()),
        GrpcFailure::Lost => return RequestOutcome::Error("connection_lost".into()),
        GrpcFailure::Status { code, reason, .. } => (code, reason),
    };
    let reason = reason.unwrap_or_else(|| format!("grpc_{}", i32::from(code)));
    match code {
        Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted => RequestOutcome::Refused(reason),
        _ => RequestOutcome::Error(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trailers(of: &[(&'static str, &'static str)]) -> HeaderMap {
        of.iter().map(|&(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_message_is_behind_its_length() {
        let request = ModelMetadataRequest { name: "m".into(), version: String::new() };
        let server = GrpcEndpoint { address: "127.0.0.1:8001".parse().unwrap(), encryption: None, key: None };
        let call = GrpcRequest::new(&server, "ModelMetadata", &request);
        assert_eq!(call.uri, "http://127.0.0.1:8001/inference.GRPCInferenceService/ModelMetadata");
        assert_eq!(call.body[..PREFIX_BYTES], [0, 0, 0, 0, 3]);
        assert_eq!(ModelMetadataRequest::decode(&call.body[PREFIX_BYTES..]).unwrap(), request);
    }

    #[test]
    fn what_a_server_says_is_told_from_a_lost_connection() {
        assert_eq!(finished(&trailers(&[("grpc-status", "0")])), Ok(()));
        assert_eq!(finished(&trailers(&[])), Err(GrpcFailure::Lost));
        let outcome = |of| classify(finished(&trailers(of)).unwrap_err());
        assert_eq!(outcome(&[("grpc-status", "4")]), RequestOutcome::Refused("grpc_4".into()));
        assert_eq!(outcome(&[("grpc-status", "3")]), RequestOutcome::Error("grpc_3".into()));
        let named = [("grpc-status", "14"), (wire::REASON_METADATA, "deadline_unreachable")];
        assert_eq!(outcome(&named), RequestOutcome::Refused("deadline_unreachable".into()));
        assert_eq!(outcome(&[]), RequestOutcome::Error("connection_lost".into()));
        let said = finished(&trailers(&[("grpc-status", "16"), ("grpc-message", "no%20key")]));
        assert!(matches!(&said, Err(GrpcFailure::Status { message, .. }) if message == "no key"), "{said:?}");
    }
}
