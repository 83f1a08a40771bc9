//! Every parser, told whatever comes.
//!
//! A target takes any bytes, and panics if the parser breaks a promise: that it returns at all, and what it promises of
//! what it returns. `make fuzz` runs libFuzzer on each, which looks for bytes that reach new code; every `make test`
//! runs each on its corpus and on changed copies of it. What was found once is in the corpus, under a name that says
//! what it was.
//!
//! ```text
//!  messages.rs   what clients send, once it is a message: JSON, protobuf, tensors
//!  files.rs      what operators leave in folders: models, configurations, kept profiles, recordings, experiments
//!  steps.rs      what built-in steps of pipelines are given: pictures, texts, parameters
//!  server.rs     what clients send, byte by byte, to a whole server
//! ```

mod files;
mod messages;
mod server;
mod steps;

use std::path::PathBuf;

/// A parser under test.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Names its folder in the corpus.
    pub name: &'static str,
    /// What it parses.
    pub about: &'static str,
    /// Panics if these bytes break a promise.
    pub check: fn(&[u8]),
    /// Whether a run goes through sockets or files, and takes a hundred times as long.
    pub slow: bool,
}

const fn target(name: &'static str, about: &'static str, check: fn(&[u8])) -> Target {
    Target { name, about, check, slow: false }
}

const fn slow(name: &'static str, about: &'static str, check: fn(&[u8])) -> Target {
    Target { name, about, check, slow: true }
}

/// All of them.
pub const TARGETS: [Target; 19] = [
    target("json-infer", "an inference request over HTTP: JSON, with tensors behind it", messages::json_infer),
    target("json-control", "bodies of all calls over HTTP that change or ask for settings", messages::json_control),
    target("raw-infer", "a body that is a tensor and nothing else", messages::raw_infer),
    target("protobuf-infer", "an inference request over gRPC", messages::protobuf_infer),
    target("protobuf-control", "the other messages over gRPC", messages::protobuf_control),
    target("config-pbtxt", "a model's config.pbtxt", files::config_pbtxt),
    target("endpoint", "an endpoint.toml", files::endpoint),
    target("config-json", "a model's configuration as JSON, as a load may bring it", files::config_json),
    target("onnx-graph", "a model, planned for a GPU", files::onnx_graph),
    target("ort-cache", "an optimised model in the cache", files::ort_cache),
    slow("profile", "a kept profile", files::profile),
    target("recording", "a recording of the scheduler's events", files::recording),
    target("experiment", "an experiment, and traces of requests", files::experiment),
    target("steps-image", "a JPEG or PNG file, decoded by a pipeline's step", steps::image),
    target("steps-text", "a text, as tokens", steps::tokens),
    target("steps-text-boxes", "a detector's map, from which boxes of text are made and cut out", steps::text_boxes),
    target("steps-parameters", "what an operator writes of a step", steps::parameters),
    slow("http", "all that comes over an HTTP connection", server::http),
    slow("grpc", "all that comes in a gRPC call", server::grpc),
];

/// The target of that name.
pub fn find(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}

/// Where a target's seeds are.
pub fn corpus(target: &Target) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}
