//! What `engine-lab` reaches of the inside, to measure and check it piece by piece. No server uses this.
//!
//! | what | which |
//! |---|---|
//! | the device | [`Gpu`], [`Partition`] (a share of it), [`CudaStream`], [`Event`], [`CudaGraph`] |
//! | its memory | [`DeviceMemory`], [`AddressRange`], [`LoadedWeights`] (LOAD and UNLOAD), [`Region`] |
//! | inputs | [`Pinned`], [`Pool`], [`Fetcher`] |
//! | kernels | [`Toolkit`], [`Program`], [`survey`], [`sources`] |

pub use crate::driver::{Address, DriverError, Gpu, Pinned, check};
pub use crate::fetch::{Fetcher, MOST_PIECES, Piece, WaitingPieces};
pub use crate::memory::{AddressRange, DeviceMemory, LoadedWeights, PAGE_BYTES, Region};
pub use crate::pool::Pool;
pub use crate::program::{Effort, Program, Trial, sources, survey};
pub use crate::shares::Partition;
pub use crate::source::KernelSource;
pub use crate::streams::{CudaGraph, CudaStream, Event, Turn, instantiate};
pub use crate::toolkit::{CudaError, Facts, Toolkit};
