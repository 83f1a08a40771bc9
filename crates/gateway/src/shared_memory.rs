//! Regions of memory that clients share with the server, and tensors in them.

use crate::shard::Shard;
use wire::proto::{
    CudaSharedMemoryRegisterRequest, CudaSharedMemoryRegisterResponse, CudaSharedMemoryStatusRequest,
    CudaSharedMemoryStatusResponse, CudaSharedMemoryUnregisterRequest, CudaSharedMemoryUnregisterResponse,
    SystemSharedMemoryRegisterRequest, SystemSharedMemoryRegisterResponse, SystemSharedMemoryStatusRequest,
    SystemSharedMemoryStatusResponse, SystemSharedMemoryUnregisterRequest, SystemSharedMemoryUnregisterResponse,
};
use wire::{Fault, Reason};

/// `SystemSharedMemoryStatus`, `GET v2/systemsharedmemory[/region/NAME]/status`.
pub(crate) fn system_status(
    _shard: &Shard,
    _request: &SystemSharedMemoryStatusRequest,
) -> Result<SystemSharedMemoryStatusResponse, Fault> {
    Err(no_system_memory())
}

/// `SystemSharedMemoryRegister`, `POST v2/systemsharedmemory/region/NAME/register`.
pub(crate) fn system_register(
    _shard: &Shard,
    _request: &SystemSharedMemoryRegisterRequest,
) -> Result<SystemSharedMemoryRegisterResponse, Fault> {
    Err(no_system_memory())
}

/// `SystemSharedMemoryUnregister`, `POST v2/systemsharedmemory[/region/NAME]/unregister`.
pub(crate) fn system_unregister(
    _shard: &Shard,
    _request: &SystemSharedMemoryUnregisterRequest,
) -> Result<SystemSharedMemoryUnregisterResponse, Fault> {
    Err(no_system_memory())
}

/// `CudaSharedMemoryStatus`, `GET v2/cudasharedmemory[/region/NAME]/status`.
pub(crate) fn cuda_status(
    _shard: &Shard,
    _request: &CudaSharedMemoryStatusRequest,
) -> Result<CudaSharedMemoryStatusResponse, Fault> {
    Err(no_cuda_memory())
}

/// `CudaSharedMemoryRegister`, `POST v2/cudasharedmemory/region/NAME/register`.
pub(crate) fn cuda_register(
    _shard: &Shard,
    _request: &CudaSharedMemoryRegisterRequest,
) -> Result<CudaSharedMemoryRegisterResponse, Fault> {
    Err(no_cuda_memory())
}

/// `CudaSharedMemoryUnregister`, `POST v2/cudasharedmemory[/region/NAME]/unregister`.
pub(crate) fn cuda_unregister(
    _shard: &Shard,
    _request: &CudaSharedMemoryUnregisterRequest,
) -> Result<CudaSharedMemoryUnregisterResponse, Fault> {
    Err(no_cuda_memory())
}

fn no_system_memory() -> Fault {
    Fault::new(Reason::Unsupported, "system shared memory isn't there yet: send tensors in the body")
}

fn no_cuda_memory() -> Fault {
    let message = "CUDA shared memory is unsupported: this server has no CUDA engine; use system shared memory, or send \
                   tensors in the body";
    Fault::new(Reason::Unsupported, message)
}
