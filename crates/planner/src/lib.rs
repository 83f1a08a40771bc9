//! The slow loop: which models share which devices, which cell each of them is in, and how many devices are needed.
//!
//! The scheduler decides every few microseconds; what is here decides every few minutes, and changes what the scheduler
//! has to decide with. The first two follow Symphony (section 3.5 and appendix A).
//!
//! - [`advice`]: are there enough devices? Fed with what was counted; pure, no clock.
//! - `placement` (feature of the same name): which models share a part of the cluster. A mixed integer program, given
//!   to a solver for a bounded time. The solver takes minutes to build, so that it is only there for those who ask for
//!   it.
//! - [`cells`]: which model should go to another cell, because its own is short. Fed with what was counted; pure, no
//!   clock.
//! - [`shares`]: how GPUs are divided, and which models run in which share (Gpulet, section 4). Pure.

pub mod advice;
pub mod cells;
#[cfg(feature = "placement")]
pub mod placement;
pub mod shares;
