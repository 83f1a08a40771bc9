//! The description of every route, for tools: `GET /openapi.json`.

use crate::body::payload::{Payload, plain};
use bytes::Bytes;
use hyper::Response;

/// Written by hand, in docs/, and held true by the tests below and by those that send what it allows.
const DOCUMENT: &[u8] = include_bytes!("../../../../docs/openapi.json");

/// Answers with the document.
pub(super) fn answer() -> Response<Payload> {
    plain::json(Bytes::from_static(DOCUMENT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::route::{MemoryCall, ModelCall, Route};
    use base::Reason;
    use serde_json::Value;
    use std::collections::BTreeSet;

    fn document() -> Value {
        serde_json::from_slice(DOCUMENT).unwrap()
    }

    /// The path of a route as the document writes it, with and without its optional parts. Lists every arm: a new route
    /// must be written down here, and then in the document.
    fn patterns(route: &Route<'_>) -> Vec<String> {
        let of = |paths: &[&str]| paths.iter().map(|&path| path.to_owned()).collect();
        match route {
            Route::ServerMetadata => of(&["/v2"]),
            Route::ServerLive => of(&["/v2/health/live", "/livez", "/healthz"]),
            Route::ServerReady => of(&["/v2/health/ready", "/readyz"]),
            Route::OpenApi => of(&["/openapi.json"]),
            Route::Models => of(&["/v2/models"]),
            Route::Statistics => of(&["/v2/models/stats"]),
            Route::TraceSetting => of(&["/v2/trace/setting"]),
            Route::Logging => of(&["/v2/logging"]),
            Route::Shares => of(&["/v2/shares"]),
            Route::RepositoryIndex { .. } => of(&["/v2/repository/index", "/v2/repository/{repository}/index"]),
            Route::RepositoryModel { loads, .. } => {
                let call = if *loads { "load" } else { "unload" };
                let path = |repository| format!("/v2/repository{repository}/models/{{name}}/{call}");
                vec![path(""), path("/{repository}")]
            }
            Route::SharedMemory { cuda, call, .. } => {
                let kind = if *cuda { "cuda" } else { "system" };
                let path = |rest: &str| format!("/v2/{kind}sharedmemory/{rest}");
                match call {
                    MemoryCall::Status => vec![path("status"), path("region/{region}/status")],
                    MemoryCall::Register => vec![path("region/{region}/register")],
                    MemoryCall::Unregister => vec![path("unregister"), path("region/{region}/unregister")],
                }
            }
            Route::Model { call, .. } => {
                let call = match call {
                    ModelCall::Metadata => "",
                    ModelCall::Ready => "/ready",
                    ModelCall::Infer => "/infer",
                    ModelCall::Feedback => "/feedback",
                    ModelCall::Config => "/config",
                    ModelCall::Statistics => "/stats",
                    ModelCall::TraceSetting => "/trace/setting",
                };
                vec![format!("/v2/models/{{model}}{call}"), format!("/v2/models/{{model}}/versions/{{version}}{call}")]
            }
        }
    }

    /// The route of a path of the document.
    fn route_of(pattern: &str) -> Option<Route<'static>> {
        let path: String =
            pattern.split(['{', '}']).enumerate().map(|(n, part)| if n % 2 == 0 { part } else { "1" }).collect();
        Route::of(Box::leak(path.into_boxed_str()))
    }

    #[test]
    fn the_document_has_the_paths_that_there_are_and_their_methods() {
        let document = document();
        let written: BTreeSet<String> = document["paths"].as_object().unwrap().keys().cloned().collect();
        let mut there = BTreeSet::new();
        for pattern in &written {
            let route = route_of(pattern).unwrap_or_else(|| panic!("{pattern} is written, but not there"));
            there.extend(patterns(&route));
            let methods: BTreeSet<String> =
                document["paths"][pattern].as_object().unwrap().keys().map(|method| method.to_uppercase()).collect();
            let allowed: BTreeSet<String> = route.methods().split(", ").map(str::to_owned).collect();
            assert_eq!(methods, allowed, "{pattern}");
        }
        assert_eq!(written, there);
        // One of each kind, so that none can be missing as a whole.
        let kinds: BTreeSet<_> = written
            .iter()
            .filter_map(|pattern| Some(std::mem::discriminant(&route_of(pattern)?)))
            .map(|kind| format!("{kind:?}"))
            .collect();
        assert_eq!(kinds.len(), 13);
    }

    #[test]
    fn it_has_the_reasons_and_statuses_of_the_table() {
        let document = document();
        let words = document["components"]["schemas"]["Error"]["properties"]["reason"]["enum"].as_array().unwrap();
        let words: BTreeSet<&str> = words.iter().filter_map(Value::as_str).collect();
        assert_eq!(words, Reason::told().map(Reason::name).collect());
        let operations =
            document["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap().values());
        let statuses: BTreeSet<u16> = operations
            .flat_map(|operation| operation["responses"].as_object().unwrap().keys())
            .map(|status| status.parse().unwrap())
            .collect();
        // A method that isn't there belongs to no operation.
        for reason in Reason::told().filter(|reason| reason.http_status() != 405) {
            assert!(statuses.contains(&reason.http_status()), "{} is nowhere", reason.http_status());
        }
    }

    #[test]
    fn it_is_of_this_version() {
        assert_eq!(document()["info"]["version"], env!("CARGO_PKG_VERSION"));
    }
}
