//! Every metric, declared once, and the set-up of logs.

/// The metrics of one model, resolved once so that counting takes no look-up.
#[derive(Clone, Debug)]
pub struct ModelMetrics {}
