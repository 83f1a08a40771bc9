//! Messages of protobuf that come from outside: looked at before they are read.

use crate::Fault;
use crate::bounds::{check_infer_request, check_load_request};
use crate::proto;
use bytes::Bytes;
use prost::Message;

/// The most that a message may have which carries no tensor and no file.
pub const SMALL_BYTES: usize = 1 << 20;

/// A message that says of its bytes whether they may be read.
pub trait Admit: Message + Default {
    /// Refuses bytes that would take far more memory than they have. Messages that say nothing else are small ones.
    fn admit(message: &[u8]) -> Result<(), Fault> {
        if message.len() <= SMALL_BYTES {
            return Ok(());
        }
        Err(Fault::bad(format!("the message has {} bytes, but a call of this kind takes {SMALL_BYTES}", message.len())))
    }
}

impl Admit for proto::ModelInferRequest {
    fn admit(message: &[u8]) -> Result<(), Fault> {
        check_infer_request(message)
    }
}

impl Admit for proto::RepositoryModelLoadRequest {
    fn admit(message: &[u8]) -> Result<(), Fault> {
        check_load_request(message)
    }
}

macro_rules! admit_small_ones {
    ($($message:ident)*) => { $(impl Admit for proto::$message {})* };
}

admit_small_ones! {
    ServerLiveRequest ServerReadyRequest ModelReadyRequest ServerMetadataRequest ModelMetadataRequest
    ModelConfigRequest ModelStatisticsRequest RepositoryIndexRequest RepositoryModelUnloadRequest
    SystemSharedMemoryStatusRequest SystemSharedMemoryRegisterRequest SystemSharedMemoryUnregisterRequest
    CudaSharedMemoryStatusRequest CudaSharedMemoryRegisterRequest CudaSharedMemoryUnregisterRequest
    TraceSettingRequest LogSettingsRequest
}

/// Reads a message if it is admitted. Its tensors and files are parts of these bytes, not copies.
pub fn read<M: Admit>(message: Bytes) -> Result<M, Fault> {
    M::admit(&message)?;
    M::decode(message).map_err(|error| Fault::bad(format!("the message can't be read: {error}")))
}
