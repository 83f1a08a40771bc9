//! What a scheduler was told, in a file: every `(now, event)` of a live server, so that an incident can be run again.
//!
//! [`Recorder`] is the driver's side. It never waits: what it is given it packs into chunks, and a thread of its own
//! writes them. [`Recording`] reads such a file. Both are about the same bytes, which [`mod@format`] describes.
//!
//! ```text
//!  driver ── (now, event), commands ──> chunk ──bounded channel──> writer ──> file ──> Recording ──> replay
//! ```
//!
//! **Invariant:** a recording has no hole. Where not everything can be kept (the file has reached its limit, the disk
//! is too slow), it ends, and says so.

pub mod format;
mod reader;
mod recorder;

pub use format::{End, Ending, Header};
pub use reader::{Recording, RecordingError, Step};
pub use recorder::{Limits, Recorder};
