//! The front end: HTTP and gRPC in, requests to the controller, answers out.
//!
//! ```text
//!  acceptor ──connections, round robin──> io thread 0..n, each one tokio runtime of its own
//!                                           connection tasks: read, decode, check, submit ──┐
//!                                           driver task: Controller::drive, once a round <──┘
//!                                           connection tasks: reply, encode, write
//! ```
//!
//! A thread that finds several requests in its sockets hands all of them over before the driver task looks at them once:
//! requests that arrive together are planned together, and nobody is woken for each of them.

mod accept;
mod applications;
mod beside;
mod call;
mod check;
mod classify;
mod config;
mod connection;
mod driver;
mod extensions;
mod gather;
mod grpc;
mod hold;
mod http;
mod mailbox;
mod message;
mod metrics;
mod models;
mod regions;
mod repository_calls;
mod scaling;
mod server;
mod settings;
mod shard;
mod shared_memory;
mod shares;
mod standard;
mod statistics;
mod stream;
mod stream_infer;
mod thread;

pub use config::Config;
pub use server::{Gateway, GatewayError};
