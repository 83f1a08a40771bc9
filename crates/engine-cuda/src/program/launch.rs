//! One launch of a kernel of ours: its size and its parameters, with addresses that are filled in when it is enqueued.

use crate::source::KernelSource;
use crate::toolkit::{CudaError, Kernel, Toolkit, check};
use cudarc::driver::sys as driver;
use graph::plan::{Tensor, TensorPlace};
use std::ffi::c_void;

/// Where something of a plan lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Address {
    pub(crate) place: TensorPlace,
    pub(crate) offset: usize,
}

impl From<&Tensor> for Address {
    fn from(tensor: &Tensor) -> Self {
        Self { place: tensor.place, offset: tensor.offset }
    }
}

/// The memory that a program runs on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramMemory<'a> {
    pub(crate) weights: driver::CUdeviceptr,
    pub(crate) constants: driver::CUdeviceptr,
    pub(crate) workspace: driver::CUdeviceptr,
    /// For what libraries want besides: the tail of the workspace.
    pub(crate) scratch: driver::CUdeviceptr,
    pub(crate) inputs: &'a [driver::CUdeviceptr],
    pub(crate) outputs: &'a [driver::CUdeviceptr],
}

impl ProgramMemory<'_> {
    pub(crate) fn at(&self, address: Address) -> driver::CUdeviceptr {
        let base = match address.place {
            TensorPlace::Weights => self.weights,
            TensorPlace::Constants => self.constants,
            TensorPlace::Workspace => self.workspace,
            TensorPlace::Input(i) => self.inputs[i],
            TensorPlace::Output(i) => self.outputs[i],
        };
        base + address.offset as u64
    }
}

/// The parameters of a kernel as bytes, with holes for addresses.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct LaunchParameters {
    bytes: Vec<u8>,
    /// Where each parameter begins.
    begins: Vec<usize>,
    /// Which eight bytes are an address.
    addresses: Vec<(usize, Address)>,
}

impl LaunchParameters {
    /// Only addresses, one for each parameter.
    pub(crate) fn of(tensors: &[&Tensor]) -> Self {
        let mut parameters = Self::default();
        for tensor in tensors {
            parameters.begins.push(parameters.bytes.len());
            parameters.address((*tensor).into());
        }
        parameters
    }

    /// The same, and behind them how many threads or rows there are: not a part of the source, so that batches of all
    /// sizes share a kernel.
    pub(crate) fn counted(tensors: &[&Tensor], count: usize) -> Self {
        let mut parameters = Self::of(tensors);
        parameters.begin();
        parameters.int(count as i32);
        parameters
    }

    /// Begins a parameter; what is pushed until the next one are its fields.
    pub(crate) fn begin(&mut self) {
        self.begins.push(self.bytes.len());
    }

    pub(crate) fn address(&mut self, address: Address) {
        self.addresses.push((self.bytes.len(), address));
        self.long(0);
    }

    pub(crate) fn long(&mut self, value: i64) {
        self.bytes.extend(value.to_ne_bytes());
    }

    pub(crate) fn int(&mut self, value: i32) {
        self.bytes.extend(value.to_ne_bytes());
    }

    pub(crate) fn float(&mut self, value: f32) {
        self.bytes.extend(value.to_ne_bytes());
    }

    /// The bytes with all addresses.
    pub(crate) fn filled(&self, memory: &ProgramMemory<'_>) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for &(at, address) in &self.addresses {
            bytes[at..at + 8].copy_from_slice(&memory.at(address).to_ne_bytes());
        }
        bytes
    }

    /// Where each parameter begins in them.
    pub(crate) fn pointers(&self, bytes: &mut [u8]) -> Vec<*mut c_void> {
        self.begins.iter().map(|&at| bytes[at..].as_mut_ptr().cast()).collect()
    }
}

/// How a kernel of ours is made and launched: everything but the compiled code.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Recipe {
    /// The candidate's name.
    pub(crate) name: String,
    pub(crate) source: KernelSource,
    pub(crate) grid: [u32; 3],
    pub(crate) block: u32,
    pub(crate) shared_bytes: usize,
    /// Blocks along z that share their memory; 1 for none.
    pub(crate) cluster: u32,
    pub(crate) parameters: LaunchParameters,
}

/// A kernel that can be enqueued.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    kernel: Kernel,
    grid: [u32; 3],
    block: u32,
    shared_bytes: u32,
    cluster: u32,
    early: bool,
    parameters: LaunchParameters,
}

impl Launch {
    pub(crate) fn new(toolkit: &Toolkit, recipe: Recipe) -> Result<Self, CudaError> {
        let kernel = toolkit.kernel(&recipe.source)?;
        if recipe.shared_bytes > 48 << 10 {
            toolkit.allow_shared(kernel, recipe.shared_bytes)?;
        }
        Ok(Self {
            kernel,
            grid: recipe.grid,
            block: recipe.block,
            shared_bytes: recipe.shared_bytes as u32,
            cluster: recipe.cluster,
            early: toolkit.facts().capability >= 90,
            parameters: recipe.parameters,
        })
    }

    /// Where devices can, a kernel is set up while the one before still runs; it waits itself
    /// (`after_the_kernel_before`).
    pub(crate) fn enqueue(&self, stream: driver::CUstream, memory: &ProgramMemory<'_>) -> Result<(), CudaError> {
        use driver::CUlaunchAttributeID as Id;
        let mut bytes = self.parameters.filled(memory);
        let mut pointers = self.parameters.pointers(&mut bytes);
        let mut attributes = Vec::with_capacity(2);
        // SAFETY: an attribute's value is a union of plain numbers, for which all zeros is valid.
        let mut attribute = |id, set: &dyn Fn(&mut driver::CUlaunchAttributeValue)| unsafe {
            let mut value: driver::CUlaunchAttributeValue = std::mem::zeroed();
            set(&mut value);
            attributes.push(driver::CUlaunchAttribute { id, pad: [0; 4], value });
        };
        if self.early {
            attribute(Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, &|value| {
                value.programmaticStreamSerializationAllowed = 1;
            });
        }
        if self.cluster > 1 {
            attribute(Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &|value| {
                value.clusterDim = driver::CUlaunchAttributeValue_union__bindgen_ty_1 { x: 1, y: 1, z: self.cluster };
            });
        }
        let config = driver::CUlaunchConfig {
            gridDimX: self.grid[0],
            gridDimY: self.grid[1],
            gridDimZ: self.grid[2],
            blockDimX: self.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared_bytes,
            hStream: stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        // SAFETY: the driver copies configuration and parameters before it returns; a `CUkernel` may stand for a
        // `CUfunction`; the addresses are those of the memory that the caller vouches for.
        let status = unsafe {
            driver::cuLaunchKernelEx(
                &raw const config,
                self.kernel.0.cast(),
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check("cuLaunchKernelEx", status)
    }
}
