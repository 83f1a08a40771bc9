//! How messages travel in gRPC: protobuf, looked at before it is read.

use crate::Fault;
use crate::bounds::{check_infer_request, check_load_request};
use crate::proto;
use bytes::{Buf, Bytes};
use prost::Message;
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{DecodeBuf, Decoder};

/// The most that a message may have which carries no tensor and no file.
pub const SMALL_BYTES: usize = 1 << 20;

/// A message that says of its bytes whether they may be read.
pub trait Admit: Message + Default + 'static {
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

macro_rules! admit_as_they_are {
    ($($message:ident)*) => {
        $(impl Admit for proto::$message {
            fn admit(_: &[u8]) -> Result<(), Fault> {
                Ok(())
            }
        })*
    };
}

// Answers, which only clients read.
admit_as_they_are! {
    ServerLiveResponse ServerReadyResponse ModelReadyResponse ServerMetadataResponse ModelMetadataResponse
    ModelInferResponse ModelStreamInferResponse ModelConfigResponse ModelStatisticsResponse RepositoryIndexResponse
    RepositoryModelLoadResponse RepositoryModelUnloadResponse SystemSharedMemoryStatusResponse
    SystemSharedMemoryRegisterResponse SystemSharedMemoryUnregisterResponse CudaSharedMemoryStatusResponse
    CudaSharedMemoryRegisterResponse CudaSharedMemoryUnregisterResponse TraceSettingResponse LogSettingsResponse
}

/// Writes messages of type `T` and reads messages of type `U`. The generated code names it.
#[derive(Debug)]
pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Message + 'static, U: Admit> tonic::codec::Codec for Codec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = tonic_prost::ProstEncoder<T>;
    type Decoder = CheckedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        tonic_prost::ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        CheckedDecoder(PhantomData)
    }
}

/// Reads messages that are admitted.
#[derive(Debug)]
pub struct CheckedDecoder<U>(PhantomData<U>);

impl<U: Admit> Decoder for CheckedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        if buf.chunk().len() == buf.remaining() {
            U::admit(buf.chunk()).map_err(refuse)?;
            return U::decode(buf).map(Some).map_err(refuse);
        }
        // The library gives messages in one piece; should it ever stop to, they are joined here.
        read(buf.copy_to_bytes(buf.remaining())).map(Some)
    }
}

/// Reads a message if it is admitted. What can be is a part of these bytes, not a copy.
pub fn read<U: Admit>(message: Bytes) -> Result<U, Status> {
    U::admit(&message).map_err(refuse)?;
    U::decode(message).map_err(refuse)
}

/// Without a reason of its own: the server gives every refusal of this kind the same one, and counts it.
fn refuse(error: impl std::fmt::Display) -> Status {
    Status::invalid_argument(error.to_string())
}
