//! Measurements of the scheduler and of the simulator, each a subcommand.

pub(crate) mod hull;
pub(crate) mod million;
pub(crate) mod slow_device;
pub(crate) mod throughput;
pub(crate) mod worlds;
