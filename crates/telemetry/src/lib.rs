//! Every metric, declared once; statistics of models; traces of requests; the set-up of logs.
//!
//! `Metrics` owns the registry. Whoever counts keeps a `ModelMetrics` or a `DeviceMetrics`, whose series were looked up
//! once: counting is an atomic operation, without a look-up and without a lock.

mod declare;
mod demand;
mod log_writer;
pub mod logs;
mod machine;
mod metrics;
mod one_line;
mod statistics;
mod trace;
mod triton;

pub use declare::{ALL, Declaration, MetricKind, TRITON, reference};
pub use demand::{DemandTotals, ModelDemand};
pub use metrics::{
    ActionMetrics, Asker, DeviceMetrics, ErrorMetrics, FeedbackOutcome, Invariant, Metrics, ModelMetrics, Seconds,
    SelectionMetrics, ShadowOutcome, ShareChange,
};
pub use prometheus::IntGauge;
pub use statistics::{BatchTimes, BatchTotals, LARGEST_TOLD_APART, ModelTotals, Spans, Statistics};
pub use trace::{SettingChange, Trace, TraceChange, TraceError, TraceSettings, Tracer, Transport};
