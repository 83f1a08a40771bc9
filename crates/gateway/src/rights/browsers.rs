//! Pages in browsers: which of them may ask this server, and which may change something there.
//!
//! A page from anywhere can have the browser of somebody on this machine send requests to a server here. The browser
//! says whose page it is (`Origin`), unless the page gave the server a name of its own (DNS rebinding): then `Host` is
//! that name. Clients that are no browsers send no `Origin`, and the `Host` that they were told to ask.

use super::gate::Asked;
use crate::Config;
use crate::body::payload::Payload;
use crate::io::accept::Protocol;
use base::Reason;
use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, HOST, HeaderMap,
    HeaderValue, ORIGIN, VARY,
};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use std::net::IpAddr;
use wire::Fault;

/// What a page may read of an answer beyond what every page may.
const EXPOSED: HeaderValue = HeaderValue::from_static("inference-header-content-length, retry-after");
/// For how many seconds a browser remembers what it was allowed.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
const VARIES: HeaderValue = HeaderValue::from_static("Origin");

/// The origins of pages whose scripts may ask the server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Origins {
    named: Vec<String>,
    any: bool,
}

impl Origins {
    /// Reads `scheme://host[:port]`, or `*` for all. A text that is neither is told in a sentence.
    pub fn read(texts: &[String]) -> Result<Self, String> {
        let mut origins = Self::default();
        for text in texts {
            match text.as_str() {
                "*" => origins.any = true,
                text if is_origin(text) => origins.named.push(text.to_owned()),
                text => {
                    return Err(format!("{text:?} is no origin: write it as https://example.org:8443, or * for all"));
                }
            }
        }
        Ok(origins)
    }

    fn names(&self, origin: &str) -> bool {
        self.named.iter().any(|named| named.eq_ignore_ascii_case(origin))
    }

    /// Whether one of them is on that host.
    fn are_on(&self, host: &str) -> bool {
        self.named.iter().any(|named| authority(named).is_some_and(|named| named.eq_ignore_ascii_case(host)))
    }

    fn is_empty(&self) -> bool {
        self.named.is_empty() && !self.any
    }
}

fn is_origin(text: &str) -> bool {
    let plain = |text: &str| !text.is_empty() && !text.contains(['/', '?', '#', '@', ' ']);
    text.split_once("://").is_some_and(|(scheme, rest)| plain(scheme) && plain(rest))
}

/// What is behind the scheme of an origin.
fn authority(origin: &str) -> Option<&str> {
    origin.split_once("://").map(|(_, authority)| authority)
}

/// What pages may do here.
pub(crate) struct Browsers {
    /// Whether only this machine's own users reach the server, under names of this machine.
    local: bool,
    origins: Origins,
}

impl Browsers {
    pub(crate) fn new(config: &Config) -> Self {
        Self { local: config.is_local(), origins: config.cors_origins.clone() }
    }

    /// Refuses a call that changes something, if the page of somebody else could be behind it.
    pub(crate) fn may_change(&self, asked: Asked<'_>) -> Result<(), Fault> {
        let host = match asked.uri.authority() {
            Some(authority) => Some(authority.as_str()),
            None => asked.headers.get(HOST).and_then(|host| host.to_str().ok()),
        };
        // Browsers speak no gRPC without encryption, and its clients may name hosts as they like.
        let named = self.local && asked.protocol == Protocol::Http;
        if let Some(host) = host.filter(|host| named && !is_loopback(host) && !self.origins.are_on(host)) {
            return Err(forbidden(format!(
                "the request is for {host:?}, but only this machine reaches the server, and anybody may give it such a name: ask for \
                 localhost, or start the server with --cors-origin http://{host}"
            )));
        }
        let Some(origin) = asked.headers.get(ORIGIN) else { return Ok(()) };
        let origin = origin.to_str().unwrap_or_default();
        let own = authority(origin).zip(host).is_some_and(|(page, host)| page.eq_ignore_ascii_case(host));
        if own || self.origins.names(origin) {
            return Ok(());
        }
        Err(forbidden(format!(
            "a page of {origin:?} may change nothing here: start the server with --cors-origin and its origin to allow it"
        )))
    }

    /// The answer to a browser that asks whether a page may ask something; `None` if that isn't what is asked, or it
    /// may not.
    pub(crate) fn preflight(&self, head: &Parts, methods: &'static str) -> Option<Response<Payload>> {
        if head.method != Method::OPTIONS || self.shown_to(&head.headers).is_none() {
            return None;
        }
        let mut response = Response::new(Payload::default());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(methods));
        headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        if let Some(asked) = head.headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
        }
        Some(response)
    }

    /// Lets the page that asked see the answer, if it is one of those that may ask.
    pub(crate) fn show(&self, asked: &HeaderMap, response: &mut Response<Payload>) {
        if let Some(origin) = self.shown_to(asked) {
            let headers = response.headers_mut();
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
            headers.insert(VARY, VARIES);
        }
    }

    fn shown_to<'h>(&self, asked: &'h HeaderMap) -> Option<&'h HeaderValue> {
        if self.origins.is_empty() {
            return None;
        }
        asked
            .get(ORIGIN)
            .filter(|origin| self.origins.any || origin.to_str().is_ok_and(|text| self.origins.names(text)))
    }
}

fn forbidden(message: String) -> Fault {
    Fault::new(Reason::Forbidden, message)
}

/// Whether a host, with or without a port, is this machine by a name that nobody else can give.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    match name.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => {
            let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
            name == "localhost" || name.ends_with(".localhost")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn browsers(exposed: bool, origins: &[&str]) -> Browsers {
        let texts: Vec<String> = origins.iter().map(|&origin| origin.to_owned()).collect();
        let local = Some(([127, 0, 0, 1], 0).into());
        let config = Config { http: local, grpc: local, metrics: None, exposed, ..Config::default() };
        Browsers::new(&Config { cors_origins: Origins::read(&texts).unwrap(), ..config })
    }

    fn head(method: Method, host: &str, origin: Option<&str>) -> Parts {
        let mut request = Request::builder().method(method).uri("/v2/logging").header(HOST, host);
        if let Some(origin) = origin {
            request = request.header(ORIGIN, origin);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn changes(browsers: &Browsers, host: &str, origin: Option<&str>) -> bool {
        browsers.may_change(Asked::new(Protocol::Http, &head(Method::POST, host, origin), None)).is_ok()
    }

    #[test]
    fn a_page_from_elsewhere_changes_nothing() {
        let local = browsers(false, &[]);
        for host in ["localhost:8000", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST", "a.localhost.:1", "127.8.9.1"] {
            assert!(changes(&local, host, None), "{host}");
            assert!(changes(&local, host, Some(&format!("http://{host}"))), "{host}'s own page");
            for foreign in
                ["http://evil.example", "null", "", "http://localhost:3000", "https://127.0.0.1.evil.example"]
            {
                assert!(!changes(&local, host, Some(foreign)), "{foreign}");
            }
        }
        let named = browsers(false, &["http://localhost:3000"]);
        assert!(changes(&named, "localhost:8000", Some("http://LOCALHOST:3000")));
        assert!(!changes(&named, "localhost:8000", Some("http://localhost:3001")));
        assert!(!changes(&browsers(false, &["*"]), "localhost:8000", Some("http://evil.example")), "* is for asking");
    }

    #[test]
    fn a_name_that_somebody_else_gave_changes_nothing() {
        for host in ["evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", ":8000"] {
            assert!(!changes(&browsers(false, &[]), host, None), "{host}");
            assert!(!changes(&browsers(false, &[]), host, Some(&format!("http://{host}"))), "{host}");
        }
        assert!(changes(&browsers(false, &["http://host.internal:8000"]), "host.internal:8000", None), "it was named");
        assert!(
            changes(&browsers(true, &[]), "models.example", None),
            "others reach it by names that aren't known here"
        );
        assert!(!changes(&browsers(true, &[]), "models.example", Some("http://evil.example")));
    }

    #[test]
    fn pages_that_were_named_see_answers() {
        let seen = |browsers: &Browsers, origin: &str| {
            let head = head(Method::OPTIONS, "localhost:8000", Some(origin));
            let mut answer = Response::new(Payload::default());
            browsers.show(&head.headers, &mut answer);
            let preflight = browsers.preflight(&head, "GET, POST");
            assert_eq!(preflight.is_some(), answer.headers().contains_key(ACCESS_CONTROL_ALLOW_ORIGIN));
            preflight.is_some()
        };
        assert!(!seen(&browsers(false, &[]), "http://a"));
        assert!(seen(&browsers(false, &["http://a", "http://b"]), "http://b"));
        assert!(!seen(&browsers(false, &["http://a"]), "http://b"));
        assert!(seen(&browsers(false, &["*"]), "http://b"));
        let get = head(Method::GET, "localhost", Some("http://a"));
        assert!(browsers(false, &["*"]).preflight(&get, "POST").is_none());
    }

    #[test]
    fn what_is_no_origin_is_a_sentence() {
        for wrong in ["", "null", "example.org", "http://", "http://a/", "http://a b", "http://u@a"] {
            assert!(Origins::read(&[wrong.to_owned()]).unwrap_err().contains("is no origin"), "{wrong}");
        }
    }
}
