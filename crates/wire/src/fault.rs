//! Every way of saying no, and the one table that says what it is on each protocol.

use crate::sentence::{for_header, shortened};
use base::Duration;
use std::borrow::Cow;
use tonic::metadata::{AsciiMetadataValue, MetadataMap, MetadataValue};

/// The gRPC metadata that carries the machine-readable reason.
pub const REASON_METADATA: &str = "punctual-reason";
/// The gRPC metadata that carries the earliest deadline that could have been met, in microseconds from the arrival.
pub const EARLIEST_METADATA: &str = "punctual-earliest-deadline-us";

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $http:literal, $grpc:ident, $retry:expr;)*) => {
        /// Why there is no answer, for machines. Names are stable: scripts and dashboards rely on them.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Reason {
            $($(#[$doc])* $variant,)*
        }

        impl Reason {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name that clients see.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The HTTP status.
            pub const fn http_status(self) -> u16 {
                match self { $(Self::$variant => $http,)* }
            }

            /// The gRPC code.
            pub const fn grpc_code(self) -> tonic::Code {
                match self { $(Self::$variant => tonic::Code::$grpc,)* }
            }

            /// After how many seconds it is worth trying again (`Retry-After`), where that helps.
            pub const fn retry_after_seconds(self) -> Option<u32> {
                match self { $(Self::$variant => $retry,)* }
            }
        }
    };
}

reasons! {
    /// The request isn't what the protocol or the model asks for.
    BadInput = "bad_input", 400, InvalidArgument, None;
    /// There is no such path.
    NotFound = "not_found", 404, Unimplemented, None;
    /// The path is there, but not with this method.
    MethodNotAllowed = "method_not_allowed", 405, Unimplemented, None;
    /// The protocol has it, but this server doesn't, or isn't allowed to.
    Unsupported = "unsupported", 400, Unimplemented, None;
    /// There is no such region of shared memory.
    RegionNotFound = "region_not_found", 404, NotFound, None;
    /// What is to be made is there already.
    AlreadyExists = "already_exists", 409, AlreadyExists, None;
    /// The body is larger than the server takes.
    BodyTooLarge = "body_too_large", 413, ResourceExhausted, None;
    /// The body is compressed in a way that the server doesn't know.
    UnsupportedEncoding = "unsupported_encoding", 415, Unimplemented, None;
    /// The server has no such model or version.
    ModelNotFound = "model_not_found", 404, NotFound, None;
    /// The model is being prepared.
    ModelLoading = "model_loading", 503, Unavailable, Some(1);
    /// The model's file or configuration can't be used.
    ModelBroken = "model_broken", 503, Unavailable, None;
    /// A client wanted a model to be loaded, which can't be.
    LoadFailed = "load_failed", 400, FailedPrecondition, None;
    /// The model isn't loaded, or was taken away while the request waited.
    ModelUnavailable = "model_unavailable", 404, NotFound, None;
    /// Even an idle server could not answer in time.
    DeadlineUnreachable = "deadline_unreachable", 504, DeadlineExceeded, None;
    /// It was planned, but no answer came in time.
    DeadlineMissed = "deadline_missed", 504, DeadlineExceeded, None;
    /// Others are ahead, and behind them the answer would come too late.
    Overloaded = "overloaded", 503, Unavailable, Some(1);
    /// A queue has reached its bound.
    QueueFull = "queue_full", 503, Unavailable, Some(1);
    /// There is no device to compute on.
    NoDevice = "no_device", 503, Unavailable, Some(5);
    /// The server is going down.
    ShuttingDown = "shutting_down", 503, Unavailable, Some(5);
    /// The server isn't ready yet.
    NotReady = "not_ready", 503, Unavailable, Some(1);
    /// The server has as many connections as it takes.
    TooManyConnections = "too_many_connections", 503, Unavailable, Some(1);
    /// The engine could not compute it.
    ExecutionFailed = "execution_failed", 500, Internal, None;
}

/// Why there is no answer: a reason for machines and a sentence for people.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// For machines.
    pub reason: Reason,
    /// For people: which value, what was expected, what to do.
    pub message: Cow<'static, str>,
    /// The earliest deadline that could have been met, counted from the request's arrival, where known.
    pub earliest: Option<Duration>,
}

impl Fault {
    /// A fault without a known earliest deadline. What the message quotes is shortened.
    pub fn new(reason: Reason, message: impl Into<Cow<'static, str>>) -> Self {
        Self { reason, message: shortened(message.into()), earliest: None }
    }

    /// The request isn't what the protocol or the model asks for.
    pub fn bad(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Reason::BadInput, message)
    }

    /// The same fault with the earliest deadline that could have been met.
    pub fn with_earliest(self, earliest: Duration) -> Self {
        Self { earliest: Some(earliest), ..self }
    }

    /// The body of an HTTP answer: `{"error": ..., "reason": ..., "earliest_deadline_us": ...}`.
    pub fn to_json(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(96 + self.message.len());
        body.extend_from_slice(b"{\"error\":");
        crate::json::write_string(&mut body, &self.message);
        body.extend_from_slice(b",\"reason\":\"");
        body.extend_from_slice(self.reason.name().as_bytes());
        body.push(b'"');
        if let Some(earliest) = self.earliest {
            body.extend_from_slice(b",\"earliest_deadline_us\":");
            body.extend_from_slice(micros_rounded_up(earliest).to_string().as_bytes());
        }
        body.push(b'}');
        body
    }
}

/// Whole microseconds, rounded up: a deadline of that many would have been met.
fn micros_rounded_up(span: Duration) -> u64 {
    span.as_nanos().div_ceil(1_000)
}

impl From<Fault> for tonic::Status {
    fn from(fault: Fault) -> Self {
        let mut metadata = MetadataMap::new();
        metadata.insert(REASON_METADATA, AsciiMetadataValue::from_static(fault.reason.name()));
        if let Some(earliest) = fault.earliest {
            metadata.insert(EARLIEST_METADATA, MetadataValue::from(micros_rounded_up(earliest)));
        }
        Self::with_metadata(fault.reason.grpc_code(), for_header(fault.message), metadata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    /// What clients rely on stands in the reference, and a change here must be a change there.
    #[test]
    fn the_reference_has_the_same_table() {
        let page = include_str!("../../../docs/protocol.md");
        let written: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
        let row = |reason: &Reason| {
            let retry = reason.retry_after_seconds().map_or(String::new(), |s| format!(" retry after {s} s"));
            format!("| `{}` | {} | {:?} |{retry} |", reason.name(), reason.http_status(), reason.grpc_code())
        };
        assert_eq!(written, Reason::ALL.iter().map(row).collect::<Vec<_>>());
    }

    #[test]
    fn the_body_is_json_and_names_the_earliest_deadline_when_known() {
        let fault = Fault::bad("input \"a\" is missing\n");
        expect![[r#"{"error":"input \"a\" is missing\n","reason":"bad_input"}"#]]
            .assert_eq(&String::from_utf8(fault.to_json()).unwrap());
        let fault = Fault::new(Reason::Overloaded, "busy").with_earliest(Duration::from_nanos(1_234_001));
        expect![[r#"{"error":"busy","reason":"overloaded","earliest_deadline_us":1235}"#]]
            .assert_eq(&String::from_utf8(fault.to_json()).unwrap());
    }

    #[test]
    fn grpc_carries_the_same_facts_as_metadata() {
        let fault = Fault::new(Reason::DeadlineUnreachable, "too soon").with_earliest(Duration::from_micros(7));
        let status = tonic::Status::from(fault);
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
        assert_eq!(status.message(), "too soon");
        assert_eq!(status.metadata().get(REASON_METADATA).unwrap(), "deadline_unreachable");
        assert_eq!(status.metadata().get(EARLIEST_METADATA).unwrap(), "7");
    }
}
