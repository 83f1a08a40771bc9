//! The calls that aren't inference, and the metrics' port. Each call is one function for both protocols.

pub(crate) mod feedback;
pub(crate) mod metrics;
pub(crate) mod repository;
pub(crate) mod scaling;
pub(crate) mod settings;
pub(crate) mod shared_memory;
pub(crate) mod shares;
pub(crate) mod statistics;

use serde::Serialize;

/// A value as JSON, in a line.
fn json(value: &impl Serialize) -> Vec<u8> {
    let mut json = serde_json::to_vec(value).expect("structs of numbers and texts can be written");
    json.push(b'\n');
    json
}
