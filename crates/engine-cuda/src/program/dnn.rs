//! Convolutions by cuDNN's graphs: convolution, bias, residual and activation as one operation, by the engines that its
//! heuristics propose.

use super::launch::{Address, ProgramMemory};
use crate::toolkit::{CudaError, DnnHandle, check_dnn};
use cudarc::cudnn::sys as dnn;
use cudarc::driver::sys::CUstream;
use dnn::cudnnBackendAttributeName_t as Name;
use dnn::cudnnBackendAttributeType_t as Type;
use dnn::cudnnBackendDescriptorType_t as Kind;
use dnn::cudnnPointwiseMode_t as Mode;
use graph::plan::{Activation, Conv, DataType, Tensor, channels_last};
use std::ffi::c_void;
use std::sync::Arc;

/// Plans that want more scratch memory than this aren't tried.
const WORKSPACE_BYTES: usize = 64 << 20;

/// What all tensors are aligned to that it is given.
const BYTE_ALIGNMENT: usize = 16;

/// A description of cuDNN's, destroyed with it.
struct Descriptor(dnn::cudnnBackendDescriptor_t);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: it was created and is nobody else's.
        unsafe { dnn::cudnnBackendDestroyDescriptor(self.0) };
    }
}

impl Descriptor {
    fn new(kind: Kind) -> Result<Self, CudaError> {
        let mut descriptor = std::ptr::null_mut();
        // SAFETY: the pointer is to a live variable.
        check_dnn("cudnnBackendCreateDescriptor", unsafe {
            dnn::cudnnBackendCreateDescriptor(kind, &raw mut descriptor)
        })?;
        Ok(Self(descriptor))
    }

    fn set<T>(&self, name: Name, kind: Type, values: &[T]) -> Result<(), CudaError> {
        // SAFETY: the array is alive and as long as is said; `kind` is that of its elements.
        check_dnn("cudnnBackendSetAttribute", unsafe {
            dnn::cudnnBackendSetAttribute(self.0, name, kind, values.len() as i64, values.as_ptr().cast())
        })
    }

    fn set_descriptors(&self, name: Name, descriptors: &[&Self]) -> Result<(), CudaError> {
        let raw: Vec<_> = descriptors.iter().map(|descriptor| descriptor.0).collect();
        self.set(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw)
    }

    fn finalize(&self) -> Result<(), CudaError> {
        // SAFETY: it is alive.
        check_dnn("cudnnBackendFinalize", unsafe { dnn::cudnnBackendFinalize(self.0) })
    }
}

/// A convolution with a chosen engine, in one place of a plan.
pub(crate) struct Convolution {
    pub(crate) engine: Arc<Engine>,
    addresses: Vec<Address>,
}

/// A way to compute a convolution, wherever its tensors lie: steps of equal signature share it.
pub(crate) struct Engine {
    pub(crate) name: String,
    pub(crate) workspace_bytes: usize,
    // The order is that of dropping: the plan before what it was made of.
    plan: Descriptor,
    /// None where it was read.
    _described: Option<Arc<Described>>,
    handle: Arc<DnnHandle>,
}

/// What a plan was made from; kept, because cuDNN doesn't say that it copies it.
struct Described {
    _parts: Vec<Descriptor>,
    graph: Descriptor,
}

// SAFETY: made by one thread, then used by one thread at a time.
unsafe impl Send for Engine {}
// SAFETY: as above.
unsafe impl Sync for Engine {}
// SAFETY: only ever read after it was made.
unsafe impl Send for Described {}
// SAFETY: as above.
unsafe impl Sync for Described {}

fn data_type(tensor: &Tensor) -> Option<dnn::cudnnDataType_t> {
    match tensor.dtype {
        DataType::Fp16 => Some(dnn::cudnnDataType_t::CUDNN_DATA_HALF),
        DataType::Fp32 => Some(dnn::cudnnDataType_t::CUDNN_DATA_FLOAT),
        _ => None,
    }
}

fn mode(activation: Activation) -> Option<(Mode, f64, f64)> {
    Some(match activation {
        Activation::Relu => (Mode::CUDNN_POINTWISE_RELU_FWD, 0.0, f64::MAX),
        Activation::Clip { low: 0.0, high } => (Mode::CUDNN_POINTWISE_RELU_FWD, 0.0, f64::from(high)),
        Activation::Silu => (Mode::CUDNN_POINTWISE_SWISH_FWD, 0.0, 0.0),
        Activation::Sigmoid => (Mode::CUDNN_POINTWISE_SIGMOID_FWD, 0.0, 0.0),
        Activation::Tanh => (Mode::CUDNN_POINTWISE_TANH_FWD, 0.0, 0.0),
        Activation::Gelu => (Mode::CUDNN_POINTWISE_GELU_FWD, 0.0, 0.0),
        Activation::GeluTanh => (Mode::CUDNN_POINTWISE_GELU_APPROX_TANH_FWD, 0.0, 0.0),
        _ => return None,
    })
}

/// Operations are added one after another; between two of them is a tensor that isn't in memory.
struct Builder {
    parts: Vec<Descriptor>,
    operations: Vec<usize>,
    next: i64,
    in_memory: i64,
}

impl Builder {
    /// The product itself, before what is fused with it. All but the window are numbers of tensors.
    fn convolution(&mut self, window: Descriptor, x: usize, w: usize, y: usize) -> Result<(), CudaError> {
        let operation = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR)?;
        operation.set_descriptors(Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, &[&window])?;
        operation.set_descriptors(Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, &[&self.parts[x]])?;
        operation.set_descriptors(Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, &[&self.parts[w]])?;
        operation.set_descriptors(Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, &[&self.parts[y]])?;
        operation.set(Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, Type::CUDNN_TYPE_FLOAT, &[1.0f32])?;
        operation.set(Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, Type::CUDNN_TYPE_FLOAT, &[0.0f32])?;
        operation.finalize()?;
        self.keep(window);
        let at = self.keep(operation);
        self.operations.push(at);
        Ok(())
    }

    /// All operations as one graph.
    fn graph(self, handle: dnn::cudnnHandle_t) -> Result<Arc<Described>, CudaError> {
        let graph = Descriptor::new(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        let operations: Vec<_> = self.operations.iter().map(|&at| &self.parts[at]).collect();
        graph.set_descriptors(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, &operations)?;
        graph.set(Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, Type::CUDNN_TYPE_HANDLE, &[handle])?;
        graph.finalize()?;
        Ok(Arc::new(Described { _parts: self.parts, graph }))
    }

    fn keep(&mut self, descriptor: Descriptor) -> usize {
        self.parts.push(descriptor);
        self.parts.len() - 1
    }

    fn tensor(
        &mut self,
        dims: &[i64],
        strides: &[i64],
        kind: dnn::cudnnDataType_t,
        in_memory: bool,
    ) -> Result<usize, CudaError> {
        let tensor = Descriptor::new(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[kind])?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, Type::CUDNN_TYPE_INT64, dims)?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_STRIDES, Type::CUDNN_TYPE_INT64, strides)?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, Type::CUDNN_TYPE_INT64, &[BYTE_ALIGNMENT as i64])?;
        if in_memory {
            // In the order of `addresses`.
            self.in_memory += 1;
            tensor.set(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, Type::CUDNN_TYPE_INT64, &[self.in_memory])?;
        } else {
            tensor.set(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, Type::CUDNN_TYPE_INT64, &[self.next])?;
            tensor.set(Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, Type::CUDNN_TYPE_BOOLEAN, &[true])?;
            self.next += 1;
        }
        tensor.finalize()?;
        Ok(self.keep(tensor))
    }

    fn pointwise(
        &mut self,
        (mode, low, high): (Mode, f64, f64),
        x: usize,
        b: Option<usize>,
        y: usize,
    ) -> Result<(), CudaError> {
        let description = Descriptor::new(Kind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?;
        description.set(Name::CUDNN_ATTR_POINTWISE_MODE, Type::CUDNN_TYPE_POINTWISE_MODE, &[mode])?;
        description.set(
            Name::CUDNN_ATTR_POINTWISE_MATH_PREC,
            Type::CUDNN_TYPE_DATA_TYPE,
            &[dnn::cudnnDataType_t::CUDNN_DATA_FLOAT],
        )?;
        if mode == Mode::CUDNN_POINTWISE_RELU_FWD && high < f64::MAX {
            description.set(Name::CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, Type::CUDNN_TYPE_DOUBLE, &[low])?;
            description.set(Name::CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, Type::CUDNN_TYPE_DOUBLE, &[high])?;
        }
        description.finalize()?;
        let operation = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?;
        operation.set_descriptors(Name::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &[&description])?;
        operation.set_descriptors(Name::CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &[&self.parts[x]])?;
        if let Some(b) = b {
            operation.set_descriptors(Name::CUDNN_ATTR_OPERATION_POINTWISE_BDESC, &[&self.parts[b]])?;
        }
        operation.set_descriptors(Name::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &[&self.parts[y]])?;
        operation.finalize()?;
        self.keep(description);
        let at = self.keep(operation);
        self.operations.push(at);
        Ok(())
    }
}

fn longs(values: &[usize]) -> Vec<i64> {
    values.iter().map(|&value| value as i64).collect()
}

/// Whether channels are neighbours in memory, those of a pixel or of a filter's tap. cuDNN takes other strides, too,
/// and computes something else.
fn is_channels_last(tensor: &Tensor) -> bool {
    tensor.dims[1] == 1 || tensor.strides[1] == 1
}

/// Whether a filter lies as cuDNN expects it: by output, tap and channel. Depthwise ones of ours lie by tap and output.
fn is_by_output(weight: &Tensor) -> bool {
    let expected = channels_last(&weight.dims);
    weight
        .dims
        .iter()
        .zip(weight.strides.iter().zip(&expected))
        .all(|(&dim, (stride, expected))| dim == 1 || stride == expected)
}

/// Whether a convolution's tensors lie as cuDNN expects them. All are said to be aligned to 16 bytes; parts of a
/// concatenation needn't be.
pub(super) fn takes(step: &Conv) -> bool {
    let images = [Some(&step.input), step.residual.as_ref(), Some(&step.output)];
    let others = [Some(&step.weight), step.bias.as_ref()];
    images.into_iter().chain(others).flatten().all(|tensor| tensor.offset.is_multiple_of(BYTE_ALIGNMENT))
        && images.into_iter().flatten().all(is_channels_last)
        && is_by_output(&step.weight)
}

/// Strides as cuDNN likes them: those of dimensions with one element are what they would be if there were more.
fn strides(tensor: &Tensor) -> Vec<i64> {
    let channels = |axis: usize| axis == 1 && tensor.dims[1] == 1;
    tensor
        .strides
        .iter()
        .enumerate()
        .map(|(axis, &stride)| if channels(axis) { 1 } else { stride.max(1) as i64 })
        .collect()
}

fn describe(handle: dnn::cudnnHandle_t, step: &Conv) -> Result<Option<Arc<Described>>, CudaError> {
    let float = dnn::cudnnDataType_t::CUDNN_DATA_FLOAT;
    let (Some(in_type), Some(weight_type), Some(out_type)) =
        (data_type(&step.input), data_type(&step.weight), data_type(&step.output))
    else {
        return Ok(None);
    };
    if !takes(step) {
        return Ok(None);
    }
    let last = match step.activation {
        Activation::None => None,
        activation => match mode(activation) {
            Some(mode) => Some(mode),
            None => return Ok(None),
        },
    };
    let mut builder = Builder { parts: Vec::new(), operations: Vec::new(), next: 1000, in_memory: 0 };
    let window = window_of(step)?;
    let dims = longs(&step.output.dims);
    let x = builder.tensor(&longs(&step.input.dims), &strides(&step.input), in_type, true)?;
    let w = builder.tensor(&longs(&step.weight.dims), &strides(&step.weight), weight_type, true)?;
    let out = |builder: &mut Builder, left: usize| {
        if left == 0 {
            builder.tensor(&dims, &strides(&step.output), out_type, true)
        } else {
            builder.tensor(&dims, &strides(&step.output), float, false)
        }
    };
    let mut left =
        usize::from(step.bias.is_some()) + usize::from(step.residual.is_some()) + usize::from(last.is_some());
    let mut y = out(&mut builder, left)?;
    builder.convolution(window, x, w, y)?;
    let add = (Mode::CUDNN_POINTWISE_ADD, 0.0, 0.0);
    if let Some(bias) = &step.bias {
        let Some(kind) = data_type(bias) else { return Ok(None) };
        let channels = bias.dims[0] as i64;
        let b = builder.tensor(&[1, channels, 1, 1], &[channels, 1, channels, channels], kind, true)?;
        left -= 1;
        let next = out(&mut builder, left)?;
        builder.pointwise(add, y, Some(b), next)?;
        y = next;
    }
    if let Some(residual) = &step.residual {
        let Some(kind) = data_type(residual) else { return Ok(None) };
        let b = builder.tensor(&dims, &strides(residual), kind, true)?;
        left -= 1;
        let next = out(&mut builder, left)?;
        builder.pointwise(add, y, Some(b), next)?;
        y = next;
    }
    if let Some(last) = last {
        let next = out(&mut builder, 0)?;
        builder.pointwise(last, y, None, next)?;
    }
    builder.graph(handle).map(Some)
}

/// How a convolution's window moves.
fn window_of(step: &Conv) -> Result<Descriptor, CudaError> {
    let float = dnn::cudnnDataType_t::CUDNN_DATA_FLOAT;
    let window = Descriptor::new(Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?;
    window.set(Name::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[float])?;
    window.set(
        Name::CUDNN_ATTR_CONVOLUTION_CONV_MODE,
        Type::CUDNN_TYPE_CONVOLUTION_MODE,
        &[dnn::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION],
    )?;
    window.set(Name::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, Type::CUDNN_TYPE_INT64, &[2i64])?;
    for (name, values) in [
        (Name::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, step.window.pads_before),
        (Name::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, step.window.pads_after),
        (Name::CUDNN_ATTR_CONVOLUTION_DILATIONS, step.window.dilations),
        (Name::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, step.window.strides),
    ] {
        window.set(name, Type::CUDNN_TYPE_INT64, &longs(&values))?;
    }
    window.finalize()?;
    Ok(window)
}

/// What the heuristics propose, best guess first: as many engine configurations as asked for.
fn configurations(
    described: &Described,
    mode: dnn::cudnnBackendHeurMode_t,
    most: usize,
) -> Result<Vec<Descriptor>, CudaError> {
    let heuristics = Descriptor::new(Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
    heuristics.set_descriptors(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[&described.graph])?;
    heuristics.set(Name::CUDNN_ATTR_ENGINEHEUR_MODE, Type::CUDNN_TYPE_HEUR_MODE, &[mode])?;
    heuristics.finalize()?;
    let configurations: Vec<Descriptor> =
        (0..most).map(|_| Descriptor::new(Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)).collect::<Result<_, _>>()?;
    let mut raw: Vec<_> = configurations.iter().map(|configuration| configuration.0).collect();
    let mut count = 0;
    // SAFETY: the array has as many created descriptions as is said.
    check_dnn("cudnnBackendGetAttribute", unsafe {
        dnn::cudnnBackendGetAttribute(
            heuristics.0,
            Name::CUDNN_ATTR_ENGINEHEUR_RESULTS,
            Type::CUDNN_TYPE_BACKEND_DESCRIPTOR,
            most as i64,
            &raw mut count,
            raw.as_mut_ptr().cast(),
        )
    })?;
    Ok(configurations.into_iter().take(count.max(0) as usize).collect())
}

/// The convolutions that cuDNN proposes: those of its first heuristic, at most `most`; with `only`, the one of that
/// name. None where it can't.
pub(crate) fn candidates(
    owned: &Arc<DnnHandle>,
    step: &Conv,
    most: usize,
    only: Option<&str>,
) -> Result<Vec<Engine>, CudaError> {
    let held = owned.lock();
    let handle = *held;
    let Some(described) = describe(handle, step)? else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    let Ok(configurations) = configurations(&described, dnn::cudnnBackendHeurMode_t::CUDNN_HEUR_MODE_A, most) else {
        return Ok(all);
    };
    for (rank, configuration) in configurations.iter().enumerate() {
        let name = format!("cudnn {rank}");
        if only.is_some_and(|only| only != name) {
            continue;
        }
        // An engine that refuses is no error: others compute it.
        let Ok((plan, workspace_bytes)) = plan(handle, configuration) else { continue };
        if workspace_bytes <= WORKSPACE_BYTES {
            let (handle, _described) = (Arc::clone(owned), Some(Arc::clone(&described)));
            all.push(Engine { name, workspace_bytes, plan, _described, handle });
        }
    }
    Ok(all)
}

impl Engine {
    /// The plan as text, with the code that was compiled for it.
    pub(crate) fn to_text(&self) -> Result<Vec<u8>, CudaError> {
        let name = Name::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION;
        let get = |most: i64, into: *mut c_void| {
            let mut count = 0;
            // SAFETY: the plan is alive, and there is room for as many bytes as is said.
            check_dnn("cudnnBackendGetAttribute", unsafe {
                dnn::cudnnBackendGetAttribute(self.plan.0, name, Type::CUDNN_TYPE_CHAR, most, &raw mut count, into)
            })
            .map(|()| count.max(0) as usize)
        };
        let _alone = self.handle.lock();
        let mut text = vec![0u8; get(0, std::ptr::null_mut())?];
        let count = get(text.len() as i64, text.as_mut_ptr().cast())?;
        text.truncate(count);
        Ok(text)
    }

    /// The same engine from that text, which came from the same device and libraries.
    pub(crate) fn from_text(owned: &Arc<DnnHandle>, name: &str, text: &[u8]) -> Result<Self, CudaError> {
        let handle = owned.lock();
        let plan = Descriptor::new(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        plan.set(Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, Type::CUDNN_TYPE_HANDLE, &[*handle])?;
        plan.set(Name::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, Type::CUDNN_TYPE_CHAR, text)?;
        plan.finalize()?;
        let workspace_bytes = workspace_bytes(&plan)?;
        Ok(Self { name: name.to_owned(), workspace_bytes, plan, _described: None, handle: Arc::clone(owned) })
    }
}

fn plan(handle: dnn::cudnnHandle_t, configuration: &Descriptor) -> Result<(Descriptor, usize), CudaError> {
    let plan = Descriptor::new(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
    plan.set(Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, Type::CUDNN_TYPE_HANDLE, &[handle])?;
    plan.set_descriptors(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[configuration])?;
    plan.finalize()?;
    let workspace_bytes = workspace_bytes(&plan)?;
    Ok((plan, workspace_bytes))
}

/// What scratch memory a plan wants.
fn workspace_bytes(plan: &Descriptor) -> Result<usize, CudaError> {
    let (mut bytes, mut count) = (0i64, 0);
    // SAFETY: the pointer is to one live number.
    check_dnn("cudnnBackendGetAttribute", unsafe {
        dnn::cudnnBackendGetAttribute(
            plan.0,
            Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
            Type::CUDNN_TYPE_INT64,
            1,
            &raw mut count,
            (&raw mut bytes).cast(),
        )
    })?;
    Ok(bytes.max(0) as usize)
}

impl Convolution {
    pub(crate) fn new(engine: Arc<Engine>, step: &Conv) -> Self {
        let mut tensors = vec![&step.input, &step.weight];
        tensors.extend(step.bias.iter().chain(&step.residual));
        tensors.push(&step.output);
        Self { engine, addresses: tensors.into_iter().map(Address::from).collect() }
    }

    pub(crate) fn enqueue(&self, stream: CUstream, memory: &ProgramMemory<'_>) -> Result<(), CudaError> {
        let pack = Descriptor::new(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        let numbers: Vec<i64> = (1..=self.addresses.len() as i64).collect();
        let pointers: Vec<*mut c_void> = self.addresses.iter().map(|&at| memory.at(at) as *mut c_void).collect();
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, Type::CUDNN_TYPE_INT64, &numbers)?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, Type::CUDNN_TYPE_VOID_PTR, &pointers)?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, Type::CUDNN_TYPE_VOID_PTR, &[memory.scratch as *mut c_void])?;
        pack.finalize()?;
        // A handle has one stream at a time, and programs of several threads may share engines and so their handles.
        let handle = self.engine.handle.lock();
        // SAFETY: the plan and the pack are alive; addresses are those of the memory that the caller vouches for.
        unsafe {
            check_dnn("cudnnSetStream", dnn::cudnnSetStream(*handle, stream.cast()))?;
            check_dnn("cudnnBackendExecute", dnn::cudnnBackendExecute(*handle, self.engine.plan.0, pack.0))
        }
    }
}
