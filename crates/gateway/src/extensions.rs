//! Who the server is: its name, its version, and the protocol's extensions that it has.

use crate::Config;

/// The server's name, in metadata.
pub(crate) const SERVER_NAME: &str = "punctual";
/// The server's version, in metadata.
pub(crate) const SERVER_VERSION: &str = env!("CARGO_PKG_VERSION");

/// The protocol's extensions that are there, by Triton's names for them.
pub(crate) fn extensions(config: &Config) -> Vec<&'static str> {
    let mut extensions = vec![
        "binary_tensor_data",
        "classification",
        "logging",
        "model_configuration",
        "model_repository",
        "model_repository(unload_dependents)",
        "parameters",
        "schedule_policy",
        "sequence",
        "statistics",
        "trace",
    ];
    if config.shared_memory {
        extensions.push("system_shared_memory");
    }
    extensions
}
