//! What `engine-lab` reaches of the inside, to measure and check it piece by piece. No server uses this.
//!
//! | what | which |
//! |---|---|
//! | the device | [`Gpu`], [`Partition`] (a share of it), [`Stream`], [`Event`], [`Graph`] |
//! | its memory | [`Memory`], [`Place`], [`Weights`] (LOAD and UNLOAD), [`Region`] |
//! | inputs | [`Pinned`], [`Pool`], [`Fetcher`] |
//! | kernels | [`Toolkit`], [`Program`], [`survey`], [`sources`] |

pub use crate::driver::{Address, Gpu, Pinned, Refused, check};
pub use crate::fetch::{Fetcher, MOST_PIECES, Piece, Waiting};
pub use crate::memory::{Memory, PAGE_BYTES, Place, Region, Weights};
pub use crate::pool::Pool;
pub use crate::program::{Effort, Program, Trial, sources, survey};
pub use crate::shares::Partition;
pub use crate::source::KernelSource;
pub use crate::streams::{Event, Graph, Stream, Turn, instantiate};
pub use crate::toolkit::{Error, Facts, Toolkit};
