//! The io threads: how connections come to them, how they are served and watched, what those of one thread share.

pub(crate) mod accept;
pub(crate) mod clients;
pub(crate) mod connection;
mod context;
pub(crate) mod driver;
mod fair_queue;
pub(crate) mod mailbox;
pub(crate) mod movement;
pub(crate) mod offload;
pub(crate) mod open_stream;
pub(crate) mod shortage;
mod streams;
pub(crate) mod thread;
mod time_bucket;
pub(crate) mod tls;

pub(crate) use context::{IoContext, Readiness, ServerState};
