//! The audit: a line of the log for each call that would change the server. Who, from where, what, and what came of it.

use super::keys::Caller;
use base::{Reason, Timestamp};
use controller::SeldomLine;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use telemetry::logs::AUDIT;
use wire::Fault;
use wire::proto::{
    CudaSharedMemoryRegisterRequest, CudaSharedMemoryUnregisterRequest, LogSettingsRequest, RepositoryModelLoadRequest,
    RepositoryModelUnloadRequest, SystemSharedMemoryRegisterRequest, SystemSharedMemoryUnregisterRequest,
    TraceSettingRequest, log_settings_request,
};

/// What somebody wants to be changed, in words.
pub(crate) trait Change {
    fn words(&self) -> String;
}

impl Change for RepositoryModelLoadRequest {
    fn words(&self) -> String {
        let with: Vec<&str> = self.parameters.keys().map(String::as_str).collect();
        let with = if with.is_empty() { String::new() } else { format!(" with {}", with.join(", ")) };
        format!("load model {:?}{with}", self.model_name)
    }
}

impl Change for RepositoryModelUnloadRequest {
    fn words(&self) -> String {
        format!("unload model {:?}", self.model_name)
    }
}

impl Change for SystemSharedMemoryRegisterRequest {
    fn words(&self) -> String {
        format!("register shared memory {:?} of {:?}", self.name, self.key)
    }
}

impl Change for SystemSharedMemoryUnregisterRequest {
    fn words(&self) -> String {
        unregister("shared memory", &self.name)
    }
}

impl Change for CudaSharedMemoryRegisterRequest {
    fn words(&self) -> String {
        format!("register CUDA shared memory {:?}", self.name)
    }
}

impl Change for CudaSharedMemoryUnregisterRequest {
    fn words(&self) -> String {
        unregister("CUDA shared memory", &self.name)
    }
}

fn unregister(what: &str, name: &str) -> String {
    if name.is_empty() { format!("unregister all {what}") } else { format!("unregister {what} {name:?}") }
}

impl Change for TraceSettingRequest {
    fn words(&self) -> String {
        let mut words = match self.model_name.as_str() {
            "" => "set traces:".to_owned(),
            name => format!("set traces of model {name:?}:"),
        };
        for (name, setting) in &self.settings {
            write!(words, " {name}={}", setting.value.join(",")).expect("writing to a string doesn't fail");
        }
        words
    }
}

impl Change for LogSettingsRequest {
    fn words(&self) -> String {
        use log_settings_request::setting_value::ParameterChoice as Choice;
        let mut words = "set the log:".to_owned();
        for (name, setting) in &self.settings {
            let value = match &setting.parameter_choice {
                None => String::new(),
                Some(Choice::BoolParam(on)) => on.to_string(),
                Some(Choice::Uint32Param(number)) => number.to_string(),
                Some(Choice::StringParam(text)) => text.clone(),
            };
            write!(words, " {name}={value}").expect("writing to a string doesn't fail");
        }
        words
    }
}

/// How GPUs are to be divided, as the body says it.
pub(crate) struct SharesChange<'b>(pub(crate) &'b [u8]);

impl Change for SharesChange<'_> {
    fn words(&self) -> String {
        format!("divide GPUs: {}", String::from_utf8_lossy(self.0))
    }
}

/// Who wants something to be changed, and from where.
#[derive(Clone, Debug, Default)]
pub(crate) struct Author {
    pub(crate) caller: Caller,
    pub(crate) peer: Option<SocketAddr>,
}

impl Author {
    /// Begins a line on what is about to be done.
    pub(crate) fn does(&self, change: &impl Change) -> AuditLine<'_> {
        AuditLine { author: self, what: change.words() }
    }
}

/// A line that is written when the outcome is known.
pub(crate) struct AuditLine<'a> {
    author: &'a Author,
    what: String,
}

impl AuditLine<'_> {
    /// Writes the line, and hands the outcome on.
    pub(crate) fn with<T>(self, outcome: Result<T, Fault>) -> Result<T, Fault> {
        write_line(self.author, &self.what, outcome.as_ref().err().map(|fault| fault.reason), 0);
        outcome
    }
}

/// Writes a line.
pub(super) fn write_line(Author { caller, peer }: &Author, what: &str, refused: Option<Reason>, left_out: u64) {
    let from = peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string());
    let result = refused.map_or("done", Reason::name);
    let what = shortened(what);
    match left_out {
        0 => tracing::info!(target: AUDIT, who = %caller, from, result, "audit: {what}"),
        left_out => tracing::info!(target: AUDIT, who = %caller, from, result, left_out, "audit: {what}"),
    }
}

/// The most of what a client wrote that a line quotes.
const QUOTED_BYTES: usize = 512;

fn shortened(what: &str) -> &str {
    &what[..what.floor_char_boundary(QUOTED_BYTES)]
}

/// Calls that the gate refused. Anybody can cause them as often as they like: there is a line in a while.
#[derive(Default)]
pub(crate) struct RefusedCalls {
    line: Mutex<SeldomLine>,
}

impl RefusedCalls {
    /// Notes that a call to that path was refused, by somebody who isn't known.
    pub(crate) fn add(&self, now: Timestamp, peer: Option<SocketAddr>, path: &str, reason: Reason) {
        let left_out = self.line.lock().unwrap_or_else(PoisonError::into_inner).add(now, 1);
        if let Some(left_out) = left_out {
            write_line(&Author { caller: Caller::Anybody, peer }, path, Some(reason), left_out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::proto::{ModelRepositoryParameter, trace_setting_request};

    #[test]
    fn changes_are_said_in_words() {
        let mut load = RepositoryModelLoadRequest { model_name: "a\nb".into(), ..Default::default() };
        assert_eq!(load.words(), r#"load model "a\nb""#);
        load.parameters.insert("file:1/model.onnx".into(), ModelRepositoryParameter::default());
        assert_eq!(load.words(), r#"load model "a\nb" with file:1/model.onnx"#);
        let all = SystemSharedMemoryUnregisterRequest::default();
        assert_eq!(all.words(), "unregister all shared memory");
        let mut trace = TraceSettingRequest { model_name: "m".into(), ..Default::default() };
        let value = trace_setting_request::SettingValue { value: vec!["1".into()] };
        trace.settings.insert("trace_rate".into(), value);
        assert_eq!(trace.words(), r#"set traces of model "m": trace_rate=1"#);
        assert_eq!(shortened(&"é".repeat(1000)).len(), QUOTED_BYTES);
    }
}
