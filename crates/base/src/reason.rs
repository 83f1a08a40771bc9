//! Every reason for which there is no answer, and the one table that says what it is to whom.

use std::fmt;

/// The gRPC codes that refusals have, with their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "gRPC's documentation says what each is")]
pub enum GrpcCode {
    Cancelled = 1,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

macro_rules! reasons {
    (
        |$model:ident, $version:ident, $why:ident|
        $(
            $variant:ident, $name:literal, $http:literal, $grpc:ident, $retry:expr,
            $label:ident, $outcome:literal, $triton:literal, $shortage:literal,
            $help:literal $(=> $sentence:literal)?;
        )*
    ) => {
        /// Why there is no answer. Names are part of the protocol: clients, scripts and dashboards rely on them.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Reason {
            $(#[doc = $help] $variant,)*
        }

        impl Reason {
            /// All of them.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant,)*];

            /// The name that clients see.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The HTTP status.
            pub const fn http_status(self) -> u16 {
                match self { $(Self::$variant => $http,)* }
            }

            /// The gRPC code.
            pub const fn grpc_code(self) -> GrpcCode {
                match self { $(Self::$variant => GrpcCode::$grpc,)* }
            }

            /// After how many seconds it is worth trying again (`Retry-After`), where that helps.
            pub const fn retry_after_seconds(self) -> Option<u32> {
                match self { $(Self::$variant => $retry,)* }
            }

            /// The reason under which metrics count it: they count coarser than error bodies speak.
            pub const fn label(self) -> Self {
                match self { $(Self::$variant => Self::$label,)* }
            }

            /// Which outcome it belongs to: `refused`, `failed` or `cancelled`.
            pub const fn outcome(self) -> &'static str {
                match self { $(Self::$variant => $outcome,)* }
            }

            /// Triton's word for it in metrics.
            pub const fn triton(self) -> &'static str {
                match self { $(Self::$variant => $triton,)* }
            }

            /// Whether more devices could have helped.
            pub const fn is_shortage(self) -> bool {
                match self { $(Self::$variant => $shortage,)* }
            }

            /// What it means, for people.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$variant => $help,)* }
            }

            /// What a client reads whose request for this version of a model was taken and not answered: `why` is what
            /// the engine said. `None` where whoever refuses knows more than the reason does.
            pub fn sentence(self, $model: &str, $version: u64, $why: &str) -> Option<String> {
                match self { $(Self::$variant => reasons!(@sentence $($sentence)?),)* }
            }
        }
    };
    (@sentence) => { None };
    (@sentence $sentence:literal) => { Some(format!($sentence)) };
}

// The columns: the name, HTTP's status, gRPC's code, `Retry-After`; in metrics the label, the outcome, Triton's word,
// whether more devices could have helped. Below them the meaning, and the sentence where it is fixed.
reasons! {
    |model, version, why|

    BadInput, "bad_input", 400, InvalidArgument, None, BadInput, "refused", "OTHER", false,
        "The request can't be understood or doesn't fit the model."
        => "model {model:?} can't compute these inputs: {why}";
    NotFound, "not_found", 404, Unimplemented, None, BadInput, "refused", "OTHER", false,
        "There is no such path.";
    MethodNotAllowed, "method_not_allowed", 405, Unimplemented, None, BadInput, "refused", "OTHER", false,
        "The path is there, but not with this method.";
    Unsupported, "unsupported", 400, Unimplemented, None, BadInput, "refused", "OTHER", false,
        "The protocol has it, but this server doesn't, or isn't allowed to.";
    Unauthenticated, "unauthenticated", 401, Unauthenticated, None, Unauthenticated, "refused", "OTHER", false,
        "The server asks for a key, and this is none of its keys.";
    Forbidden, "forbidden", 403, PermissionDenied, None, Forbidden, "refused", "OTHER", false,
        "Whoever asks has no right to it.";
    RegionNotFound, "region_not_found", 404, NotFound, None, BadInput, "refused", "OTHER", false,
        "There is no such region of shared memory.";
    AlreadyExists, "already_exists", 409, AlreadyExists, None, BadInput, "refused", "OTHER", false,
        "What is to be made is there already.";
    BodyTooLarge, "body_too_large", 413, ResourceExhausted, None, BadInput, "refused", "OTHER", false,
        "The body is larger than the server takes.";
    UnsupportedEncoding, "unsupported_encoding", 415, Unimplemented, None, BadInput, "refused", "OTHER", false,
        "The body is compressed in a way that the server doesn't know.";
    ModelNotFound, "model_not_found", 404, NotFound, None, ModelUnavailable, "refused", "OTHER", false,
        "The server has no such model or version.";
    ModelLoading, "model_loading", 503, Unavailable, Some(1), ModelUnavailable, "refused", "OTHER", false,
        "The model is being prepared."
        => "model {model:?} can't compute this yet: {why}";
    ModelBroken, "model_broken", 503, Unavailable, None, ModelUnavailable, "refused", "OTHER", false,
        "The model's file or configuration can't be used.";
    LoadFailed, "load_failed", 400, FailedPrecondition, None, ModelUnavailable, "refused", "OTHER", false,
        "A client wanted a model to be loaded, which can't be.";
    ModelUnavailable, "model_unavailable", 404, NotFound, None, ModelUnavailable, "refused", "OTHER", false,
        "The model isn't served, not yet ready, or no longer there."
        => "version {version} of model {model:?} is no longer served";
    DeadlineUnreachable, "deadline_unreachable", 504, DeadlineExceeded, None, DeadlineUnreachable, "refused", "REJECTED", false,
        "Even with nothing else to do the answer would have come too late."
        => "model {model:?} can't answer by the deadline, even with nothing else to do: allow it more time";
    DeadlineMissed, "deadline_missed", 504, DeadlineExceeded, None, DeadlineMissed, "refused", "REJECTED", true,
        "It was planned, but its outputs were not there by the deadline."
        => "the answer of model {model:?} was not there by the deadline";
    Overloaded, "overloaded", 503, Unavailable, Some(1), Overloaded, "refused", "REJECTED", true,
        "Others are ahead, and behind them the answer would come too late."
        => "model {model:?} can't answer by the deadline, because other requests are ahead: try again later or allow it more time";
    QueueFull, "queue_full", 503, Unavailable, Some(1), QueueFull, "refused", "REJECTED", true,
        "A queue or the table of requests has reached its bound."
        => "too many requests are waiting for model {model:?}: try again later";
    NoDevice, "no_device", 503, Unavailable, Some(5), NoDevice, "refused", "REJECTED", true,
        "There is no device to run it on."
        => "there is no device to run model {model:?} on";
    ShuttingDown, "shutting_down", 503, Unavailable, Some(5), ShuttingDown, "refused", "REJECTED", false,
        "The server is going down."
        => "the server is going down";
    NotReady, "not_ready", 503, Unavailable, Some(1), ShuttingDown, "refused", "REJECTED", false,
        "The server isn't ready yet.";
    NotLive, "not_live", 503, Unavailable, None, ShuttingDown, "refused", "REJECTED", false,
        "Something that everybody waits for stands still.";
    TooManyConnections, "too_many_connections", 503, Unavailable, Some(1), QueueFull, "refused", "REJECTED", true,
        "The server has as many connections as it takes.";
    ClientLimit, "client_limit", 429, ResourceExhausted, Some(1), ClientLimit, "refused", "REJECTED", false,
        "The client has as much of the server as one client may have.";
    ExecutionFailed, "execution_failed", 500, Internal, None, ExecutionFailed, "failed", "BACKEND", false,
        "The engine could not compute it."
        => "model {model:?} could not be computed: {why}";
    BrokenOff, "broken_off", 500, Internal, None, ExecutionFailed, "failed", "BACKEND", false,
        "It was computed for longer than the server allows, and broken off."
        => "model {model:?} was broken off: {why}";
    Cancelled, "cancelled", 499, Cancelled, None, Cancelled, "cancelled", "CANCELED", false,
        "The client went away.";
}

impl Reason {
    /// Those that clients are told: all but that they went away.
    pub fn told() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|&reason| reason != Self::Cancelled)
    }

    /// Those under which metrics count.
    pub fn labels() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|&reason| reason == reason.label())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_name_stands_for_two_reasons() {
        assert_eq!(Reason::ALL.map(Reason::name).into_iter().collect::<BTreeSet<_>>().len(), Reason::ALL.len());
    }

    /// Reasons that share a label share a series, which has one outcome and one of Triton's words.
    #[test]
    fn what_metrics_say_of_a_reason_they_say_of_its_label() {
        let said = |reason: Reason| (reason.label(), reason.outcome(), reason.triton(), reason.is_shortage());
        for reason in Reason::ALL {
            assert_eq!(said(reason), said(reason.label()), "{reason}");
        }
    }

    #[test]
    fn sentences_name_the_model_and_what_the_engine_said() {
        let sentence = |reason: Reason| reason.sentence("a \"b\"", 7, "no memory");
        assert_eq!(
            sentence(Reason::ExecutionFailed).as_deref(),
            Some(r#"model "a \"b\"" could not be computed: no memory"#)
        );
        assert_eq!(
            sentence(Reason::ModelUnavailable).as_deref(),
            Some(r#"version 7 of model "a \"b\"" is no longer served"#)
        );
        assert_eq!(
            sentence(Reason::BadInput).as_deref(),
            Some(r#"model "a \"b\"" can't compute these inputs: no memory"#)
        );
        assert_eq!(sentence(Reason::NotFound), None);
    }
}
