//! A bare HTTP/1.1 client for prepared requests: one connection, one request at a time, nothing allocated on the way.

use crate::connect::{ApiKey, Encryption, ServerStream};
use crate::stats::RequestOutcome;
use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use serde::Deserialize;
use std::borrow::Cow;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// A response's head must fit into this.
const HEAD_BYTES: usize = 16 << 10;
/// A body that is to be read may be this long.
const MAX_KEPT_BYTES: usize = 16 << 20;

/// A request as it goes over the line.
#[derive(Clone, Debug)]
pub struct HttpRequest {
    pub head: Bytes,
    /// Shared between models that take the same inputs.
    pub body: Bytes,
}

impl HttpRequest {
    /// A request to compute. `header_length` is that of the JSON header before binary tensors.
    pub fn infer(host: &str, key: Option<&ApiKey>, model: &str, body: Bytes, header_length: Option<usize>) -> Self {
        let length = body.len();
        let mut head = format!("POST /v2/models/{}/infer HTTP/1.1\r\nHost: {host}\r\n", encode(model));
        head += &authorization(key);
        match header_length {
            Some(header) => {
                head += "Content-Type: application/octet-stream\r\n";
                head += &format!("Inference-Header-Content-Length: {header}\r\n");
            }
            None => head += "Content-Type: application/json\r\n",
        }
        head += &format!("Content-Length: {length}\r\n\r\n");
        Self { head: head.into(), body }
    }

    /// A request for what a model takes.
    pub fn metadata(host: &str, key: Option<&ApiKey>, model: &str) -> Self {
        let key = authorization(key);
        let head = format!("GET /v2/models/{} HTTP/1.1\r\nHost: {host}\r\n{key}\r\n", encode(model));
        Self { head: head.into(), body: Bytes::new() }
    }
}

/// The line of a head that has the key, if there is one.
fn authorization(key: Option<&ApiKey>) -> String {
    key.map_or_else(String::new, |key| format!("Authorization: {}\r\n", key.header()))
}

/// All that isn't plain in a path.
const NOT_PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

fn encode(name: &str) -> PercentEncode<'_> {
    utf8_percent_encode(name, NOT_PLAIN)
}

/// A connection that is opened when needed and again when it was lost.
#[derive(Debug)]
pub struct HttpConnection {
    address: SocketAddr,
    encryption: Option<Encryption>,
    stream: Option<ServerStream>,
    buffer: Vec<u8>,
}

/// What came back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HttpAnswer<'a> {
    pub status: u16,
    /// Empty for a success unless it was asked for.
    pub body: &'a [u8],
}

/// What a response's head says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ResponseHead {
    status: u16,
    length: usize,
    body: usize,
    close: bool,
}

impl HttpConnection {
    pub fn new(address: SocketAddr, encryption: Option<Encryption>) -> Self {
        Self { address, encryption, stream: None, buffer: vec![0; HEAD_BYTES] }
    }

    /// Opens the connection ahead of its first request.
    pub async fn connect(&mut self) -> io::Result<()> {
        self.stream = Some(ServerStream::open(self.address, self.encryption.as_ref()).await?);
        Ok(())
    }

    /// Sends a request and says what became of it.
    pub async fn ask(&mut self, request: &HttpRequest) -> RequestOutcome {
        match self.exchange(request, false).await {
            Ok(answer) => classify(answer),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => RequestOutcome::Error("bad_response".into()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                RequestOutcome::Error("connect_failed".into())
            }
            Err(_) => RequestOutcome::Error("connection_lost".into()),
        }
    }

    /// Sends a request and reads the answer, with its body if it isn't a success or if it is wanted.
    pub async fn exchange(&mut self, request: &HttpRequest, wants_body: bool) -> io::Result<HttpAnswer<'_>> {
        let reused = self.stream.is_some();
        let head = match self.try_exchange(request, wants_body).await {
            // The server may close an idle connection at any time; that isn't the request's fault.
            Err(error) if reused && error.kind() == io::ErrorKind::ConnectionReset => {
                self.try_exchange(request, wants_body).await?
            }
            other => other?,
        };
        let kept = wants_body || head.status != 200;
        let body = if kept { &self.buffer[head.body..head.body + head.length] } else { &[] };
        Ok(HttpAnswer { status: head.status, body })
    }

    async fn try_exchange(&mut self, request: &HttpRequest, wants_body: bool) -> io::Result<ResponseHead> {
        if self.stream.is_none() {
            self.connect().await?;
        }
        let mut stream = self.stream.take().expect("it was just opened if it was not there");
        send(&mut stream, request).await.map_err(|_| lost())?;
        let head = receive(&mut stream, &mut self.buffer, wants_body).await?;
        if !head.close {
            self.stream = Some(stream);
        }
        Ok(head)
    }
}

/// Nothing was answered: the request can be sent again.
fn lost() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the connection was closed before an answer")
}

fn bad(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

async fn send(stream: &mut ServerStream, request: &HttpRequest) -> io::Result<()> {
    let (head, body) = (&request.head[..], &request.body[..]);
    let mut sent = 0;
    while sent < head.len() {
        let slices = [IoSlice::new(&head[sent..]), IoSlice::new(body)];
        match stream.write_vectored(&slices).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => sent += count,
        }
    }
    stream.write_all(&body[sent - head.len()..]).await?;
    // What is encrypted may wait in a buffer.
    stream.flush().await
}

async fn receive(stream: &mut ServerStream, buffer: &mut Vec<u8>, wants_body: bool) -> io::Result<ResponseHead> {
    let mut filled = 0;
    let head = loop {
        if filled == buffer.len() {
            return Err(bad("the head of the response is too long"));
        }
        match stream.read(&mut buffer[filled..]).await {
            Ok(0) | Err(_) if filled == 0 => return Err(lost()),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) => return Err(error),
        }
        if let Some(head) = parse_head(&buffer[..filled])? {
            break head;
        }
    };
    let total = head.body.saturating_add(head.length);
    if filled > total {
        return Err(bad("the response is longer than it says"));
    }
    if wants_body || head.status != 200 {
        if total > MAX_KEPT_BYTES {
            return Err(bad("the response is too long"));
        }
        if total > buffer.len() {
            buffer.resize(total, 0);
        }
        stream.read_exact(&mut buffer[filled..total]).await?;
        return Ok(head);
    }
    let mut left = total - filled;
    while left > 0 {
        let room = left.min(buffer.len());
        match stream.read(&mut buffer[..room]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => left -= count,
        }
    }
    Ok(head)
}

/// `None`: the head isn't all there.
fn parse_head(bytes: &[u8]) -> io::Result<Option<ResponseHead>> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let body = match response.parse(bytes) {
        Ok(httparse::Status::Complete(body)) => body,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(bad("the response isn't HTTP/1.1")),
    };
    let (mut length, mut close) = (None, false);
    for header in response.headers.iter() {
        if header.name.eq_ignore_ascii_case("content-length") {
            length = std::str::from_utf8(header.value).ok().and_then(|text| text.trim().parse().ok());
        } else if header.name.eq_ignore_ascii_case("connection") {
            close = header.value.eq_ignore_ascii_case(b"close");
        }
    }
    let status = response.code.ok_or_else(|| bad("the response has no status"))?;
    let length = length.ok_or_else(|| bad("the response has no Content-Length"))?;
    Ok(Some(ResponseHead { status, length, body, close }))
}

fn classify(answer: HttpAnswer<'_>) -> RequestOutcome {
    #[derive(Deserialize)]
    struct Body<'a> {
        #[serde(borrow)]
        reason: Option<Cow<'a, str>>,
    }
    if answer.status == 200 {
        return RequestOutcome::Success;
    }
    let named = serde_json::from_slice::<Body<'_>>(answer.body).ok().and_then(|body| body.reason);
    let reason = named.map_or_else(|| format!("http_{}", answer.status), Cow::into_owned);
    match answer.status {
        503 | 504 | 429 => RequestOutcome::Refused(reason),
        _ => RequestOutcome::Error(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_in_any_case_and_in_pieces() {
        let text = b"HTTP/1.1 503 Service Unavailable\r\ncontent-LENGTH: 7\r\nConnection: Close\r\n\r\n{\"a\":1}";
        let head = parse_head(text).unwrap().unwrap();
        assert_eq!((head.status, head.length, head.close), (503, 7, true));
        assert_eq!(&text[head.body..], b"{\"a\":1}");
        assert_eq!(parse_head(&text[..40]).unwrap(), None);
        assert!(parse_head(b"SMTP hello\r\n\r\n").is_err());
        assert!(parse_head(b"HTTP/1.1 200 OK\r\n\r\n").is_err(), "no length: not supported");
    }

    #[test]
    fn refusals_and_errors_are_told_apart_by_status_and_named_by_the_body() {
        let ask = |status, body: &str| classify(HttpAnswer { status, body: body.as_bytes() });
        assert_eq!(ask(200, ""), RequestOutcome::Success);
        assert_eq!(ask(503, r#"{"error":"x","reason":"overloaded"}"#), RequestOutcome::Refused("overloaded".into()));
        assert_eq!(ask(504, "<html>"), RequestOutcome::Refused("http_504".into()));
        assert_eq!(ask(400, r#"{"error":"x","reason":"bad_input"}"#), RequestOutcome::Error("bad_input".into()));
    }

    #[test]
    fn names_are_encoded_for_the_path() {
        assert_eq!(encode("a-b_c.1").to_string(), "a-b_c.1");
        assert_eq!(encode("a b/é").to_string(), "a%20b%2F%C3%A9");
    }
}
