//! Which of the protocol's calls a path means.

use crate::rights::Deed;
use hyper::Method;
use percent_encoding::percent_decode_str;
use std::borrow::Cow;

/// A call of the protocol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Route<'a> {
    /// `GET v2`
    ServerMetadata,
    /// `GET v2/health/live`, and as Kubernetes calls it: `GET livez` and `GET healthz`
    ServerLive,
    /// `GET v2/health/ready`, and as Kubernetes calls it: `GET readyz`
    ServerReady,
    /// `GET openapi.json`
    OpenApi,
    /// `GET v2/models`
    Models,
    /// `GET v2/models/stats`
    Statistics,
    /// `GET` or `POST v2/trace/setting`
    TraceSetting,
    /// `GET` or `POST v2/logging`
    Logging,
    /// `GET` or `POST v2/shares`
    Shares,
    /// `POST v2/repository[/REPOSITORY]/index`
    RepositoryIndex {
        /// The repository; empty for all.
        repository: Cow<'a, str>,
    },
    /// `POST v2/repository[/REPOSITORY]/models/NAME/load` or `unload`
    RepositoryModel {
        /// The repository; empty for any.
        repository: Cow<'a, str>,
        /// The model's name.
        name: Cow<'a, str>,
        /// Whether it is to be loaded or unloaded.
        loads: bool,
    },
    /// `v2/systemsharedmemory` or `v2/cudasharedmemory`, and `[/region/NAME]` and one of the calls
    SharedMemory {
        /// Whether it is the memory of CUDA devices.
        cuda: bool,
        /// The region's name; empty for all.
        region: Cow<'a, str>,
        /// Which call.
        call: MemoryCall,
    },
    /// A call to a model.
    Model {
        /// Its name.
        name: Cow<'a, str>,
        /// The version; empty for the default one.
        version: Cow<'a, str>,
        /// Which call.
        call: ModelCall,
    },
}

/// A call to a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ModelCall {
    /// `GET v2/models/NAME[/versions/V]`
    Metadata,
    /// `GET v2/models/NAME[/versions/V]/ready`
    Ready,
    /// `POST v2/models/NAME[/versions/V]/infer`
    Infer,
    /// `POST v2/models/NAME[/versions/V]/feedback`
    Feedback,
    /// `GET v2/models/NAME[/versions/V]/config`
    Config,
    /// `GET v2/models/NAME[/versions/V]/stats`
    Statistics,
    /// `GET` or `POST v2/models/NAME[/versions/V]/trace/setting`
    TraceSetting,
}

/// A call to shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemoryCall {
    /// `GET .../status`
    Status,
    /// `POST .../region/NAME/register`
    Register,
    /// `POST .../unregister`
    Unregister,
}

impl<'a> Route<'a> {
    /// The call that a path means; `None` when it means none.
    pub(crate) fn of(path: &'a str) -> Option<Self> {
        match path {
            "/livez" | "/healthz" => return Some(Self::ServerLive),
            "/readyz" => return Some(Self::ServerReady),
            "/openapi.json" => return Some(Self::OpenApi),
            _ => {}
        }
        let rest = path.strip_prefix("/v2")?;
        match rest {
            "" => return Some(Self::ServerMetadata),
            "/health/live" => return Some(Self::ServerLive),
            "/health/ready" => return Some(Self::ServerReady),
            "/models" => return Some(Self::Models),
            "/models/stats" => return Some(Self::Statistics),
            "/trace/setting" => return Some(Self::TraceSetting),
            "/logging" => return Some(Self::Logging),
            "/shares" => return Some(Self::Shares),
            _ => {}
        }
        if let Some(rest) = rest.strip_prefix("/models/") {
            return Self::of_model(rest);
        }
        if let Some(rest) = rest.strip_prefix("/repository/") {
            return Self::of_repository(rest);
        }
        let (cuda, rest) = match rest.strip_prefix("/systemsharedmemory/") {
            Some(rest) => (false, rest),
            None => (true, rest.strip_prefix("/cudasharedmemory/")?),
        };
        Self::of_memory(cuda, rest)
    }

    fn of_model(rest: &'a str) -> Option<Self> {
        let (name, rest) = first(rest);
        let name = text(name)?;
        let (version, rest) = match rest.and_then(|rest| rest.strip_prefix("versions/")) {
            Some(rest) => {
                let (version, rest) = first(rest);
                (text(version)?, rest)
            }
            None => (Cow::Borrowed(""), rest),
        };
        let call = match rest {
            None => ModelCall::Metadata,
            Some("ready") => ModelCall::Ready,
            Some("infer") => ModelCall::Infer,
            Some("feedback") => ModelCall::Feedback,
            Some("config") => ModelCall::Config,
            Some("stats") => ModelCall::Statistics,
            Some("trace/setting") => ModelCall::TraceSetting,
            Some(_) => return None,
        };
        Some(Self::Model { name, version, call })
    }

    fn of_repository(rest: &'a str) -> Option<Self> {
        let parts: Vec<&str> = rest.split('/').collect();
        let call = |repository, name, call| {
            let loads = match call {
                "load" => true,
                "unload" => false,
                _ => return None,
            };
            Some(Self::RepositoryModel { repository, name: text(name)?, loads })
        };
        match parts[..] {
            ["index"] => Some(Self::RepositoryIndex { repository: Cow::Borrowed("") }),
            [repository, "index"] => Some(Self::RepositoryIndex { repository: text(repository)? }),
            ["models", name, what] => call(Cow::Borrowed(""), name, what),
            [repository, "models", name, what] => call(text(repository)?, name, what),
            _ => None,
        }
    }

    fn of_memory(cuda: bool, rest: &'a str) -> Option<Self> {
        let (region, call) = match rest.strip_prefix("region/") {
            Some(rest) => {
                let (region, call) = rest.split_once('/')?;
                (text(region)?, call)
            }
            None => (Cow::Borrowed(""), rest),
        };
        let call = match call {
            "status" => MemoryCall::Status,
            "register" if !region.is_empty() => MemoryCall::Register,
            "unregister" => MemoryCall::Unregister,
            _ => return None,
        };
        Some(Self::SharedMemory { cuda, region, call })
    }

    /// What it does, called with this method; `None` if that is for everybody.
    pub(crate) fn deed(&self, method: &Method) -> Option<Deed> {
        let either = |asks, changes| if *method == Method::POST { changes } else { asks };
        Some(match self {
            Self::OpenApi => return None,
            Self::ServerLive | Self::ServerReady | Self::Model { call: ModelCall::Ready, .. } => Deed::AskHealth,
            Self::ServerMetadata | Self::Model { call: ModelCall::Metadata, .. } => Deed::ReadMetadata,
            Self::Model { call: ModelCall::Infer | ModelCall::Feedback, .. } => Deed::Infer,
            Self::Model { call: ModelCall::Config, .. } => Deed::ReadConfig,
            Self::Statistics | Self::Model { call: ModelCall::Statistics, .. } => Deed::ReadStatistics,
            Self::Models | Self::RepositoryIndex { .. } => Deed::ReadModels,
            Self::RepositoryModel { .. } => Deed::ChangeModels,
            Self::TraceSetting | Self::Model { call: ModelCall::TraceSetting, .. } => {
                either(Deed::ReadTrace, Deed::ChangeTrace)
            }
            Self::Logging => either(Deed::ReadLog, Deed::ChangeLog),
            Self::Shares => either(Deed::ReadShares, Deed::ChangeShares),
            Self::SharedMemory { call: MemoryCall::Status, .. } => Deed::ReadRegions,
            Self::SharedMemory { call: MemoryCall::Register | MemoryCall::Unregister, .. } => Deed::ChangeRegions,
        })
    }

    /// The methods with which it is called, as `Allow` lists them.
    pub(crate) fn methods(&self) -> &'static str {
        match self {
            Self::Model { call: ModelCall::Infer | ModelCall::Feedback, .. }
            | Self::RepositoryIndex { .. }
            | Self::RepositoryModel { .. }
            | Self::SharedMemory { call: MemoryCall::Register | MemoryCall::Unregister, .. } => "POST",
            Self::Model { call: ModelCall::TraceSetting, .. } | Self::TraceSetting | Self::Logging | Self::Shares => {
                "GET, POST"
            }
            _ => "GET",
        }
    }
}

/// What is before the first slash, and what is behind it if there is one.
fn first(path: &str) -> (&str, Option<&str>) {
    path.split_once('/').map_or((path, None), |(first, rest)| (first, Some(rest)))
}

/// A part of a path as it is meant; not an empty one.
fn text(part: &str) -> Option<Cow<'_, str>> {
    if part.is_empty() {
        return None;
    }
    percent_decode_str(part).decode_utf8().ok()
}

/// The sentence for a path that means nothing.
pub(crate) fn unknown(path: &str) -> String {
    let shorter = path.trim_end_matches('/');
    if shorter.len() < path.len() && Route::of(shorter).is_some() {
        return format!("there is no {path:?} here: leave out the slash at its end");
    }
    format!(
        "there is no {path:?} here: there are /v2, /v2/health/live, /v2/health/ready, \
         /v2/models/NAME[/versions/VERSION][/ready or /infer], and those of /openapi.json"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn model(name: &'static str, version: &'static str, call: ModelCall) -> Option<Route<'static>> {
        Some(Route::Model { name: name.into(), version: version.into(), call })
    }

    #[test]
    fn paths() {
        assert_eq!(Route::of("/v2"), Some(Route::ServerMetadata));
        assert_eq!(Route::of("/v2/health/live"), Some(Route::ServerLive));
        assert_eq!(Route::of("/v2/health/ready"), Some(Route::ServerReady));
        assert_eq!(Route::of("/livez"), Some(Route::ServerLive));
        assert_eq!(Route::of("/healthz"), Some(Route::ServerLive));
        assert_eq!(Route::of("/readyz"), Some(Route::ServerReady));
        assert_eq!(Route::of("/openapi.json"), Some(Route::OpenApi));
        assert_eq!(Route::of("/v2/models/m"), model("m", "", ModelCall::Metadata));
        assert_eq!(Route::of("/v2/models/m/ready"), model("m", "", ModelCall::Ready));
        assert_eq!(Route::of("/v2/models/m/infer"), model("m", "", ModelCall::Infer));
        assert_eq!(Route::of("/v2/models/m/versions/3"), model("m", "3", ModelCall::Metadata));
        assert_eq!(Route::of("/v2/models/m/versions/3/ready"), model("m", "3", ModelCall::Ready));
        assert_eq!(Route::of("/v2/models/a%20b%2Fc/versions/x/infer"), model("a b/c", "x", ModelCall::Infer));
        assert_eq!(Route::of("/v2/models"), Some(Route::Models));
        assert_eq!(Route::of("/v2/models/stats"), Some(Route::Statistics));
        assert_eq!(Route::of("/v2/trace/setting"), Some(Route::TraceSetting));
        assert_eq!(Route::of("/v2/logging"), Some(Route::Logging));
        assert_eq!(Route::of("/v2/shares"), Some(Route::Shares));
        assert_eq!(Route::of("/v2/models/m/config"), model("m", "", ModelCall::Config));
        assert_eq!(Route::of("/v2/models/m/versions/3/stats"), model("m", "3", ModelCall::Statistics));
        assert_eq!(Route::of("/v2/models/m/trace/setting"), model("m", "", ModelCall::TraceSetting));
        let index = |repository: &'static str| Some(Route::RepositoryIndex { repository: repository.into() });
        assert_eq!(Route::of("/v2/repository/index"), index(""));
        assert_eq!(Route::of("/v2/repository/a%2Fb/index"), index("a/b"));
        let change = |repository: &'static str, name: &'static str, loads| {
            Some(Route::RepositoryModel { repository: repository.into(), name: name.into(), loads })
        };
        assert_eq!(Route::of("/v2/repository/models/m/load"), change("", "m", true));
        assert_eq!(Route::of("/v2/repository/r/models/m/unload"), change("r", "m", false));
        let memory = |cuda, region: &'static str, call| Some(Route::SharedMemory { cuda, region: region.into(), call });
        assert_eq!(Route::of("/v2/systemsharedmemory/status"), memory(false, "", MemoryCall::Status));
        assert_eq!(Route::of("/v2/systemsharedmemory/region/a/status"), memory(false, "a", MemoryCall::Status));
        assert_eq!(Route::of("/v2/cudasharedmemory/region/a/register"), memory(true, "a", MemoryCall::Register));
        assert_eq!(Route::of("/v2/cudasharedmemory/unregister"), memory(true, "", MemoryCall::Unregister));
        for nothing in [
            "/",
            "/v1",
            "/v2/",
            "/v2x",
            "/v2/health",
            "/v2/models/",
            "/v2/models//infer",
            "/v2/models/m/",
            "/v2/models/m/versions",
            "/v2/models/m/versions/",
            "/v2/models/m/versions/1/",
            "/v2/models/m/infer/x",
            "/v2/models/m/versions/1/infer/x",
            "/v2/models/m/trace",
            "/v2/models/m/versions/1/trace/setting/",
            "/v2/models/m/config/x",
            "/v2/repository",
            "/v2/repository/",
            "/v2/repository//index",
            "/v2/repository/models/m",
            "/v2/repository/models//load",
            "/v2/repository/models/m/reload",
            "/v2/repository/r/models/m/load/x",
            "/v2/systemsharedmemory",
            "/v2/systemsharedmemory/register",
            "/v2/systemsharedmemory/region/register",
            "/v2/systemsharedmemory/region//register",
            "/v2/cudasharedmemory/region/a/status/",
            "/v2/models/%ff/infer",
            "",
        ] {
            assert_eq!(Route::of(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn nothing_is_a_sentence() {
        expect![[r#"there is no "/v2/health/live/" here: leave out the slash at its end"#]]
            .assert_eq(&unknown("/v2/health/live/"));
        expect![[r#"there is no "/" here: there are /v2, /v2/health/live, /v2/health/ready, /v2/models/NAME[/versions/VERSION][/ready or /infer], and those of /openapi.json"#]]
            .assert_eq(&unknown("/"));
    }
}
