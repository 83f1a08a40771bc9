//! Headers that both protocols have, and reading them.

use hyper::header::{HeaderMap, HeaderName};
use wire::Fault;

/// The end-to-end deadline in microseconds, for clients that can't set the parameter `timeout`.
pub(crate) const TIMEOUT_US: HeaderName = HeaderName::from_static("punctual-timeout-us");
/// Who sends a request, unless the request itself says so.
pub(crate) const APPLICATION: HeaderName = HeaderName::from_static("punctual-application");

/// What a header says; empty where it isn't there.
pub(crate) fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<&'h str, Fault> {
    let Some(value) = headers.get(name) else { return Ok("") };
    value.to_str().map_err(|_| Fault::bad(format!("the header {name} is {value:?}: it must be plain text")))
}
