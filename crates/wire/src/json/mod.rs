//! The protocol over HTTP: JSON, with tensors in it or as bytes behind it.

mod admin;
mod decode;
mod encode;
mod metadata;

pub use admin::*;
pub use decode::decode;
pub use encode::{Encoded, check_output, encode};
pub use metadata::{ModelMetadata, model_metadata, server_metadata};

pub(crate) use decode::{Text, datatype_from_name};

/// Appends a JSON string, quotes included.
pub(crate) fn write_string(out: &mut Vec<u8>, text: &str) {
    crate::numbers::json(out, text);
}
