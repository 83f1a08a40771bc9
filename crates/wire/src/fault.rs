//! A refusal on either protocol: a body of JSON, or a status with metadata.

use crate::sentence::{for_header, shortened};
use base::{Duration, Reason};
use std::borrow::Cow;
use tonic::metadata::{AsciiMetadataValue, MetadataMap, MetadataValue};

/// The gRPC metadata that carries the machine-readable reason.
pub const REASON_METADATA: &str = "punctual-reason";
/// The gRPC metadata that carries the earliest deadline that could have been met, in microseconds from the arrival.
pub const EARLIEST_METADATA: &str = "punctual-earliest-deadline-us";

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
    /// After how long it is worth trying again, where more is known than the reason says.
    pub retry_after: Option<Duration>,
}

impl Fault {
    /// A fault without a known earliest deadline. What the message quotes is shortened.
    pub fn new(reason: Reason, message: impl Into<Cow<'static, str>>) -> Self {
        Self { reason, message: shortened(message.into()), earliest: None, retry_after: None }
    }

    /// The request isn't what the protocol or the model asks for.
    pub fn bad(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Reason::BadInput, message)
    }

    /// The same fault with the earliest deadline that could have been met.
    pub fn with_earliest(self, earliest: Duration) -> Self {
        Self { earliest: Some(earliest), ..self }
    }

    /// After how many seconds it is worth trying again (`Retry-After`), where that helps.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        let known = self.retry_after.map(|span| span.as_nanos().div_ceil(1_000_000_000));
        known.or(self.reason.retry_after_seconds().map(u64::from))
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

fn code(reason: Reason) -> tonic::Code {
    tonic::Code::from_i32(reason.grpc_code() as i32)
}

impl From<Fault> for tonic::Status {
    fn from(fault: Fault) -> Self {
        let mut metadata = MetadataMap::new();
        metadata.insert(REASON_METADATA, AsciiMetadataValue::from_static(fault.reason.name()));
        if let Some(earliest) = fault.earliest {
            metadata.insert(EARLIEST_METADATA, MetadataValue::from(micros_rounded_up(earliest)));
        }
        Self::with_metadata(code(fault.reason), for_header(fault.message), metadata)
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
        let row = |reason: Reason| {
            let retry = reason.retry_after_seconds().map_or(String::new(), |s| format!(" retry after {s} s"));
            format!("| `{}` | {} | {:?} |{retry} |", reason.name(), reason.http_status(), code(reason))
        };
        assert_eq!(written, Reason::told().map(row).collect::<Vec<_>>());
    }

    #[test]
    fn codes_are_the_ones_that_the_table_names() {
        for reason in Reason::ALL {
            assert_eq!(format!("{:?}", code(reason)), format!("{:?}", reason.grpc_code()));
        }
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
