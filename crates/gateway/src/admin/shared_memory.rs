//! The calls about memory that clients share with the server.
//!
//! The regions themselves, and how tensors get in and out of them, are in `regions.rs`.

use crate::io::IoContext;
use crate::regions::no_shared_memory;
use base::Reason;
use wire::Fault;
use wire::proto::{
    CudaSharedMemoryRegisterRequest, CudaSharedMemoryRegisterResponse, CudaSharedMemoryStatusRequest,
    CudaSharedMemoryStatusResponse, CudaSharedMemoryUnregisterRequest, CudaSharedMemoryUnregisterResponse,
    SystemSharedMemoryRegisterRequest, SystemSharedMemoryRegisterResponse, SystemSharedMemoryStatusRequest,
    SystemSharedMemoryStatusResponse, SystemSharedMemoryUnregisterRequest, SystemSharedMemoryUnregisterResponse,
};

/// `SystemSharedMemoryStatus`, `GET v2/systemsharedmemory[/region/NAME]/status`.
pub(crate) fn system_status(
    context: &IoContext,
    request: &SystemSharedMemoryStatusRequest,
) -> Result<SystemSharedMemoryStatusResponse, Fault> {
    let regions = context.shared.regions.status(&request.name);
    if regions.is_empty() && !request.name.is_empty() {
        return Err(unknown(&request.name));
    }
    Ok(SystemSharedMemoryStatusResponse { regions })
}

/// `SystemSharedMemoryRegister`, `POST v2/systemsharedmemory/region/NAME/register`.
pub(crate) fn system_register(
    context: &IoContext,
    request: &SystemSharedMemoryRegisterRequest,
) -> Result<SystemSharedMemoryRegisterResponse, Fault> {
    if !context.shared.config.shared_memory {
        return Err(no_shared_memory());
    }
    context.shared.regions.register(request)?;
    Ok(SystemSharedMemoryRegisterResponse {})
}

/// `SystemSharedMemoryUnregister`, `POST v2/systemsharedmemory[/region/NAME]/unregister`. What isn't there needs no
/// unregistering: clients begin with it to be sure. The answer waits for the requests that use the region.
pub(crate) async fn system_unregister(
    context: &IoContext,
    request: &SystemSharedMemoryUnregisterRequest,
) -> Result<SystemSharedMemoryUnregisterResponse, Fault> {
    context.shared.regions.unregister(&request.name).await;
    Ok(SystemSharedMemoryUnregisterResponse {})
}

/// `CudaSharedMemoryStatus`, `GET v2/cudasharedmemory[/region/NAME]/status`. There is none.
pub(crate) fn cuda_status(
    _shard: &IoContext,
    request: &CudaSharedMemoryStatusRequest,
) -> Result<CudaSharedMemoryStatusResponse, Fault> {
    if request.name.is_empty() { Ok(CudaSharedMemoryStatusResponse::default()) } else { Err(unknown(&request.name)) }
}

/// `CudaSharedMemoryRegister`, `POST v2/cudasharedmemory/region/NAME/register`.
pub(crate) fn cuda_register(
    _shard: &IoContext,
    _request: &CudaSharedMemoryRegisterRequest,
) -> Result<CudaSharedMemoryRegisterResponse, Fault> {
    let message = "CUDA shared memory is unsupported, because this server reads no tensors from the memory of a client's GPU: use \
                   system shared memory, or send tensors in the request";
    Err(Fault::new(Reason::Unsupported, message))
}

/// `CudaSharedMemoryUnregister`, `POST v2/cudasharedmemory[/region/NAME]/unregister`. Nothing is ever registered.
pub(crate) fn cuda_unregister(
    _shard: &IoContext,
    _request: &CudaSharedMemoryUnregisterRequest,
) -> Result<CudaSharedMemoryUnregisterResponse, Fault> {
    Ok(CudaSharedMemoryUnregisterResponse {})
}

fn unknown(name: &str) -> Fault {
    Fault::new(Reason::RegionNotFound, format!("there is no shared memory region {name:?}: register it first"))
}
