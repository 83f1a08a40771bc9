//! The nouns that every other crate speaks in: ids, instants, spans, windows, batch latencies, reasons for
//! refusals. Depends on nothing.

mod ids;
pub mod margins;
mod profile;
mod reason;
mod start;
mod tensor;
mod time;

pub use ids::{ActionId, ApplicationId, DeviceId, ModelId, ModelNumber, PipelineId, RequestId};
pub use profile::{
    BatchLatency, LatencyProfile, ProfileError, Transfers, USUAL_MAX_BATCH, dense_batch_sizes, usual_batch_sizes,
};
pub use reason::{GrpcCode, Reason};
pub use start::OrderStart;
pub use tensor::{DataType, ModelSignature, Precision, PrecisionChoice, TensorSpec, element_count};
pub use time::{Duration, Timestamp, Window};
