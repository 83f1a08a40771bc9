//! Every metric, declared once, and the set-up of logs.
//!
//! `Metrics` owns the registry. Whoever counts keeps a `ModelMetrics` or a `DeviceMetrics`, whose series were looked up
//! once: counting is an atomic operation, without a look-up and without a lock.

mod declare;
mod demand;
pub mod logs;
mod metrics;
mod reason;

pub use declare::{ALL, Declaration, Kind, reference};
pub use demand::DemandTotals;
pub use metrics::{ActionMetrics, DeviceMetrics, ErrorMetrics, Invariant, Metrics, ModelMetrics, Seconds};
pub use reason::Reason;
