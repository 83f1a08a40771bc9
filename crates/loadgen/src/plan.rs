//! What load to generate, checked.

use crate::connect::{ApiKey, Encryption};
use crate::lengths::Lengths;
use crate::options::Protocol;
use base::Duration;
use std::net::{SocketAddr, ToSocketAddrs};
use workload::Process;

/// A whole run.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// Where the server is.
    pub address: SocketAddr,
    /// What to call it in the `Host` header.
    pub host: String,
    /// How to talk to it.
    pub protocol: Protocol,
    /// How connections are encrypted; `None`: they aren't.
    pub encryption: Option<Encryption>,
    /// The key that every request has with it.
    pub key: Option<ApiKey>,
    /// For how long to send.
    pub duration: Duration,
    /// What is sent in the first part isn't counted.
    pub warmup: Duration,
    /// How long to wait for answers after the last request.
    pub drain: Duration,
    /// Requests that may be under way at once in an open loop; further ones wait, on the clock. Over HTTP each takes a
    /// connection.
    pub connections: usize,
    /// Connections that gRPC requests are spread over.
    pub grpc_connections: usize,
    /// Whether the generator stays awake all the time.
    pub busy_poll: bool,
    /// The same seed gives the same timetable and the same inputs.
    pub seed: u64,
    /// The sizes of inputs that the model leaves open, by input's name.
    pub shapes: Vec<(String, Vec<i64>)>,
    /// The value of every element of an input, by its name; the others are random.
    pub values: Vec<(String, f64)>,
    /// Whether to show a line while it runs.
    pub progress: bool,
    /// The classes of requests, all at once.
    pub classes: Vec<ClassPlan>,
}

/// Requests of one kind.
#[derive(Clone, Debug)]
pub struct ClassPlan {
    /// Its name in the report.
    pub name: String,
    /// The models, each with its share of the requests; shares add up to 1.
    pub models: Vec<(String, f64)>,
    /// When to send.
    pub pattern: Loop,
    /// The deadline, sent as the parameter `timeout`.
    pub deadline: Option<Duration>,
    /// Rows in each request.
    pub batch: u32,
    /// Sent as the parameter `priority` if it isn't 0.
    pub priority: u32,
    /// Sent as the parameter `application`, if it has one.
    pub application: Option<String>,
    /// The sizes that the models leave open, besides the batch and those that the plan gives; without any, they are 1.
    pub lengths: Option<Lengths>,
}

/// When requests are sent.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Loop {
    /// By a timetable, whatever the server does.
    Open {
        /// Requests a second, all models together.
        rate: f64,
        /// How the gaps are distributed.
        process: Process,
        /// When the first is sent.
        from: Duration,
        /// Models join one after another, so far apart, and the rate is spread evenly over those that are there;
        /// without it, all are there from the start, each with its share.
        join_every: Option<Duration>,
    },
    /// By clients that each wait for an answer before they send again.
    Closed {
        /// How many clients.
        clients: u32,
        /// How long a client that was refused waits.
        backoff: Duration,
    },
}

/// What makes no sense about the load that was asked for.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum PlanError {
    /// One value, with what was expected.
    #[error("{0}")]
    Value(String),
    /// A server that may not be ours.
    #[error("{0} isn't this machine: a load test can take a server down; if it is yours, add --allow-remote")]
    Remote(SocketAddr),
}

impl PlanError {
    pub(crate) fn value(reason: impl Into<String>) -> Self {
        Self::Value(reason.into())
    }
}

/// Finds the server. Refuses addresses that aren't loopback ones unless that is allowed.
pub fn resolve(url: &str, allow_remote: bool) -> Result<(SocketAddr, String), PlanError> {
    let host = match url.split_once("://") {
        None => url,
        Some(("http" | "grpc" | "https" | "grpcs", rest)) => rest,
        Some((scheme, _)) => {
            return Err(PlanError::value(format!(
                "{scheme}:// isn't supported: write http://HOST:PORT, https://HOST:PORT or HOST:PORT"
            )));
        }
    };
    let host = host.trim_end_matches('/');
    if host.contains('/') {
        return Err(PlanError::value(format!("the server's address {url:?} has a path: write HOST:PORT only")));
    }
    let resolved = host.to_socket_addrs().map_err(|error| {
        PlanError::value(format!("the server's address {url:?} can't be used ({error}): write HOST:PORT"))
    })?;
    let addresses: Vec<SocketAddr> = resolved.collect();
    // `localhost` may be two addresses, and servers often listen on the IPv4 one only.
    let first = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
    let Some(&address) = first else {
        return Err(PlanError::value(format!("{host:?} has no address")));
    };
    if !allow_remote && !address.ip().is_loopback() {
        return Err(PlanError::Remote(address));
    }
    Ok((address, host.to_owned()))
}

/// Whether an address says that connections are encrypted; `None` where it says nothing of that.
pub fn says_encrypted(url: &str) -> Option<bool> {
    url.split_once("://").map(|(scheme, _)| matches!(scheme, "https" | "grpcs"))
}

/// Writes out ranges in a name: `net-{8..10}` is `net-8`, `net-9`, `net-10`, and `{08..10}` keeps the width.
pub fn expand(pattern: &str) -> Result<Vec<String>, PlanError> {
    let Some((before, rest)) = pattern.split_once('{') else { return Ok(vec![pattern.to_owned()]) };
    let bad =
        || PlanError::value(format!("model {pattern:?} isn't a name or a range: write for instance net-{{0..499}}"));
    let (range, after) = rest.split_once('}').ok_or_else(bad)?;
    let (first, last) = range.split_once("..").ok_or_else(bad)?;
    let number = |text: &str| text.parse::<u32>().map_err(|_| bad());
    let (from, to, width) = (number(first)?, number(last)?, first.len());
    if to < from || to - from >= 100_000 {
        return Err(bad());
    }
    Ok((from..=to).map(|number| format!("{before}{number:0width$}{after}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_loaded_unless_allowed() {
        assert_eq!(resolve("http://127.0.0.1:8000/", false).unwrap().0.port(), 8000);
        assert_eq!(resolve("localhost:8000", false).unwrap().1, "localhost:8000");
        let refused = resolve("192.0.2.1:8000", false).unwrap_err();
        assert!(refused.to_string().contains("192.0.2.1:8000 isn't this machine"), "{refused}");
        assert!(resolve("192.0.2.1:8000", true).is_ok());
        assert_eq!(resolve("https://localhost:1", false).unwrap().1, "localhost:1");
        for bad in ["ftp://localhost:1", "localhost", "localhost:1/v2"] {
            assert!(matches!(resolve(bad, false), Err(PlanError::Value(_))), "{bad}");
        }
    }

    #[test]
    fn ranges_in_names_are_written_out() {
        assert_eq!(expand("a").unwrap(), ["a"]);
        assert_eq!(expand("n-{8..10}x").unwrap(), ["n-8x", "n-9x", "n-10x"]);
        assert_eq!(expand("n{008..010}").unwrap(), ["n008", "n009", "n010"]);
        for bad in ["n{", "n{1}", "n{2..1}", "n{a..b}", "n{0..4000000000}"] {
            assert!(expand(bad).is_err(), "{bad}");
        }
    }
}
