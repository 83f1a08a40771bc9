//! Measurements of the scheduler, the simulator and the planner, each a subcommand.

pub(crate) mod hull;
pub(crate) mod million;
pub(crate) mod placement;
pub(crate) mod recording_cost;
pub(crate) mod selection;
pub(crate) mod shares;
pub(crate) mod slow_device;
pub(crate) mod throughput;
pub(crate) mod worlds;
