//! Which of the protocol's calls a path means.

use percent_encoding::percent_decode_str;
use std::borrow::Cow;

/// A call of the protocol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Route<'a> {
    /// `GET v2`
    ServerMetadata,
    /// `GET v2/health/live`
    ServerLive,
    /// `GET v2/health/ready`
    ServerReady,
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
}

impl<'a> Route<'a> {
    /// The call that a path means; `None` when it means none.
    pub(crate) fn of(path: &'a str) -> Option<Self> {
        let rest = path.strip_prefix("/v2")?;
        match rest {
            "" => return Some(Self::ServerMetadata),
            "/health/live" => return Some(Self::ServerLive),
            "/health/ready" => return Some(Self::ServerReady),
            _ => {}
        }
        let mut parts = rest.strip_prefix("/models/")?.split('/');
        let name = text(parts.next().filter(|name| !name.is_empty())?)?;
        let (version, call) = match (parts.next(), parts.next(), parts.next()) {
            (Some("versions"), Some(version), call) if !version.is_empty() => (text(version)?, call),
            (call, None, None) => (Cow::Borrowed(""), call),
            _ => return None,
        };
        if parts.next().is_some() {
            return None;
        }
        let call = match call {
            None => ModelCall::Metadata,
            Some("ready") => ModelCall::Ready,
            Some("infer") => ModelCall::Infer,
            Some(_) => return None,
        };
        Some(Self::Model { name, version, call })
    }

    /// The method with which it is called.
    pub(crate) fn method(&self) -> &'static str {
        match self {
            Self::Model { call: ModelCall::Infer, .. } => "POST",
            _ => "GET",
        }
    }
}

fn text(part: &str) -> Option<Cow<'_, str>> {
    percent_decode_str(part).decode_utf8().ok()
}

/// The sentence for a path that means nothing.
pub(crate) fn unknown(path: &str) -> String {
    let shorter = path.trim_end_matches('/');
    if shorter.len() < path.len() && Route::of(shorter).is_some() {
        return format!("there is no {path:?} here: leave out the slash at its end");
    }
    format!(
        "there is no {path:?} here: the paths are /v2, /v2/health/live, /v2/health/ready and \
         /v2/models/NAME[/versions/VERSION][/ready or /infer]"
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
        assert_eq!(Route::of("/v2/models/m"), model("m", "", ModelCall::Metadata));
        assert_eq!(Route::of("/v2/models/m/ready"), model("m", "", ModelCall::Ready));
        assert_eq!(Route::of("/v2/models/m/infer"), model("m", "", ModelCall::Infer));
        assert_eq!(Route::of("/v2/models/m/versions/3"), model("m", "3", ModelCall::Metadata));
        assert_eq!(Route::of("/v2/models/m/versions/3/ready"), model("m", "3", ModelCall::Ready));
        assert_eq!(Route::of("/v2/models/a%20b%2Fc/versions/x/infer"), model("a b/c", "x", ModelCall::Infer));
        for nothing in [
            "/",
            "/v1",
            "/v2/",
            "/v2x",
            "/v2/health",
            "/v2/models",
            "/v2/models/",
            "/v2/models//infer",
            "/v2/models/m/",
            "/v2/models/m/versions",
            "/v2/models/m/versions/",
            "/v2/models/m/versions/1/",
            "/v2/models/m/infer/x",
            "/v2/models/m/versions/1/infer/x",
            "/v2/models/m/config",
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
        expect![[r#"there is no "/" here: the paths are /v2, /v2/health/live, /v2/health/ready and /v2/models/NAME[/versions/VERSION][/ready or /infer]"#]]
            .assert_eq(&unknown("/"));
    }
}
