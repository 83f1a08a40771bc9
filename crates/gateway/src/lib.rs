//! The front end: HTTP and gRPC in, requests to the controller, answers out.
//!
//! ```text
//!  acceptor ──connections, round robin──> io thread 0..n, each one tokio runtime of its own
//!                                           connection tasks: read, decode, check, submit ──┐
//!                                           driver task: Controller::drive, once a round <──┘
//!                                           connection tasks: reply, encode, write
//! ```
//!
//! A thread that finds several requests in its sockets hands all of them over before the driver task looks at them
//! once: requests that arrive together are planned together, and nobody is woken for each of them.
//!
//! `http` and `grpc` turn bytes into requests and answers into bytes; `call` is the way of a request on either
//! protocol. `io` has the threads and connections below them, `body` the bytes of bodies, `admin` every call that isn't
//! inference, `rights` who may do what, `cache` answers that are kept, `endpoint` answers that several models make.

mod admin;
mod applications;
mod body;
mod cache;
mod call;
mod check;
mod classify;
mod config;
mod endpoint;
mod extensions;
mod grpc;
mod headers;
mod http;
mod io;
mod models;
mod regions;
mod rights;
mod server;

pub use config::{ClientLimits, Config};
pub use rights::{NewKey, Origins, Restrictions};
pub use server::{Gateway, GatewayError};
pub use tls::TlsFiles;
