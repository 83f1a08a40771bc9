//! What makes figures from a file. A result is only taken over while nothing in this folder has changed: what merely
//! shows results belongs into `show`.

mod bound;
pub(crate) mod campaign;
pub mod experiment;
mod latency_files;
mod models;
mod pipelines;
mod ready_point;
mod resolve;
mod search;
pub mod shares;
pub(crate) mod store;
mod summary;
pub(crate) mod sweep;
mod times;
mod traffic;
mod variant;
mod verdict;
