//! Triton's model repository on disk: layout, config.pbtxt, changes, cached profiles.
//!
//! ```text
//!  <repository>/<model>/<version>/model.onnx
//!                      /config.pbtxt            optional
//! ```
//!
//! `Repository::scan` says what is there now; a `Watcher` says what has changed since. What each part of a configuration
//! means is written in `docs/model-repository.md`.

mod changes;
mod check;
mod config;
mod profiles;
mod read;
mod scan;
mod text;
mod watch;

pub use changes::{Change, Changes};
pub use check::disagreements;
pub use config::{ConfigError, Emulation, ModelConfig, ProfileInput, TensorConfig, VersionPolicy};
pub use profiles::{ProfileKey, ProfileStore, StoredProfile, content_hash, machine};
pub use scan::{Broken, Entry, Fingerprint, Found, Repository, RepositoryError};
pub use text::Place;
pub use watch::{WatchOptions, Watcher};
