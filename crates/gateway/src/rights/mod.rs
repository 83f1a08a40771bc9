//! Who may do what: pages in browsers, Triton's restricted APIs, keys; and who did what.
//!
//! A call is looked at once its head is there, before anything of its body is read.

mod audit;
mod browsers;
mod deeds;
mod files;
mod gate;
mod keys;
mod restricted;

pub(crate) use audit::{Author, SharesChange};
pub use browsers::Origins;
pub(crate) use deeds::Deed;
pub(crate) use files::{WatchedFiles, watch_files};
pub(crate) use gate::{Asked, AskedOn, Gate, Rules};
pub use keys::NewKey;
pub(crate) use keys::{Caller, KeyMemo};
pub use restricted::Restrictions;
