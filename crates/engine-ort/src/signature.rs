//! What a session takes and gives, and whether its first dimension is a batch.

use crate::runtime::{Runtime, RuntimeError};
use crate::session::Session;
use base::{DataType, ModelSignature, TensorSpec, USUAL_MAX_BATCH};
use ort::sys::{self, ONNXTensorElementDataType as Element};
use std::ffi::{CStr, CString};
use std::ptr;

/// One input or output as the runtime describes it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Port {
    pub(crate) name: CString,
    pub(crate) spec: TensorSpec,
    /// The name of the first dimension, empty where it has none.
    first_dimension: String,
}

impl Port {
    /// One that has no name for its first dimension.
    pub(crate) fn new(name: CString, spec: TensorSpec) -> Self {
        Self { name, spec, first_dimension: String::new() }
    }
}

/// All inputs and outputs of a model, in its order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ports {
    pub(crate) inputs: Vec<Port>,
    pub(crate) outputs: Vec<Port>,
    /// Outputs that can't be served, because they aren't tensors: classifiers of scikit-learn give a list of maps
    /// beside the label.
    pub(crate) left_out: Vec<String>,
}

impl Ports {
    /// Asks a session.
    pub(crate) fn of(session: &Session) -> Result<Self, RuntimeError> {
        let api = session.runtime.api;
        let inputs = (api.SessionGetInputCount, api.SessionGetInputName, api.SessionGetInputTypeInfo);
        let outputs = (api.SessionGetOutputCount, api.SessionGetOutputName, api.SessionGetOutputTypeInfo);
        let (inputs, not_tensors) = ports(session, "input", inputs)?;
        if let Some(name) = not_tensors.first() {
            return Err(RuntimeError(format!("input {name} is {NO_TENSOR}: only tensors can be served")));
        }
        let (outputs, left_out) = ports(session, "output", outputs)?;
        if let (Some(name), []) = (left_out.first(), &outputs[..]) {
            return Err(RuntimeError(format!("output {name} is {NO_TENSOR}, and there is no other: {HOW}")));
        }
        Ok(Self { inputs, outputs, left_out })
    }

    /// Says what clients can't get.
    pub(crate) fn warn_of_left_out(&self, model: &str) {
        for output in &self.left_out {
            tracing::warn!(model, output, "this output is {NO_TENSOR}, and clients don't get it: {HOW}");
        }
    }

    /// The signature, with the largest batch that the configuration asks for (`None`: it says nothing).
    pub(crate) fn signature(&self, configured: Option<u32>) -> Result<ModelSignature, String> {
        let specs = |ports: &[Port]| ports.iter().map(|port| port.spec.clone()).collect();
        let mut found = ModelSignature { inputs: specs(&self.inputs), outputs: specs(&self.outputs), max_batch: 0 };
        found.max_batch = match (configured, found.without_batch()) {
            (Some(0), _) => 0,
            (Some(wanted), None) => wanted,
            (Some(wanted), Some(why)) => {
                return Err(format!(
                    "max_batch_size is {wanted}, but {why}: set max_batch_size to 0, or export the model with a dynamic \
                     first dimension"
                ));
            }
            (None, None) if self.has_one_name() => USUAL_MAX_BATCH,
            (None, _) => 0,
        };
        Ok(found)
    }

    /// Whether all first dimensions that have a name have the same one. It is a guess: whoever runs the model sees
    /// whether it is true.
    fn has_one_name(&self) -> bool {
        let ports = self.inputs.iter().chain(&self.outputs);
        let mut names = ports.map(|port| port.first_dimension.as_str()).filter(|name| !name.is_empty());
        let first = names.next();
        !self.inputs.is_empty() && names.all(|name| Some(name) == first)
    }
}

/// What isn't a tensor, and how a model is made that gives one.
const NO_TENSOR: &str = "a sequence, a map or optional";
const HOW: &str = "only tensors can be served; of scikit-learn's classifiers they are exported with zipmap=False";

type Count = unsafe extern "system" fn(*const sys::OrtSession, *mut usize) -> sys::OrtStatusPtr;
type Name = unsafe extern "system" fn(
    *const sys::OrtSession,
    usize,
    *mut sys::OrtAllocator,
    *mut *mut core::ffi::c_char,
) -> sys::OrtStatusPtr;
type Type = unsafe extern "system" fn(*const sys::OrtSession, usize, *mut *mut sys::OrtTypeInfo) -> sys::OrtStatusPtr;

/// Inputs or outputs, and the names of those that aren't tensors.
fn ports(
    session: &Session,
    kind: &str,
    (count, name, info): (Count, Name, Type),
) -> Result<(Vec<Port>, Vec<String>), RuntimeError> {
    let runtime = session.runtime;
    let mut length = 0;
    // SAFETY: the session is live and the out-pointer valid.
    runtime.check(unsafe { count(session.raw, &mut length) })?;
    let (mut found, mut not_tensors) = (Vec::with_capacity(length), Vec::new());
    for index in 0..length {
        let mut text = ptr::null_mut();
        let mut described = ptr::null_mut();
        // SAFETY: the index is within the count; the name is copied, then given back to the allocator it came from; the
        // description is freed after it was read.
        let (name, port) = unsafe {
            runtime.check(name(session.raw, index, runtime.allocator, &mut text))?;
            let name = CStr::from_ptr(text).to_owned();
            runtime.check((runtime.api.AllocatorFree)(runtime.allocator, text.cast()))?;
            runtime.check(info(session.raw, index, &mut described))?;
            let port = port(runtime, (kind, &name), described);
            (runtime.api.ReleaseTypeInfo)(described);
            (name, port)
        };
        match port? {
            Some(port) => found.push(port),
            None => not_tensors.push(name.to_string_lossy().into_owned()),
        }
    }
    Ok((found, not_tensors))
}

/// One input or output; nothing if it isn't a tensor.
///
/// # Safety
/// `info` must be live.
unsafe fn port(
    runtime: &Runtime,
    (kind, name): (&str, &CStr),
    info: *const sys::OrtTypeInfo,
) -> Result<Option<Port>, RuntimeError> {
    let api = runtime.api;
    let shown = name.to_string_lossy().into_owned();
    let mut tensor = ptr::null();
    let mut element = 0_i32;
    let mut rank = 0;
    // SAFETY: the tensor's description belongs to `info`; all out-pointers are valid, and the element is a number as
    // far as the runtime is concerned (a newer one may know types that the enum doesn't).
    unsafe {
        runtime.check((api.CastTypeInfoToTensorInfo)(info, &mut tensor))?;
        if tensor.is_null() {
            return Ok(None);
        }
        runtime.check((api.GetTensorElementType)(tensor, (&raw mut element).cast()))?;
        runtime.check((api.GetDimensionsCount)(tensor, &mut rank))?;
    }
    let mut dims = vec![0; rank];
    let mut symbols = vec![ptr::null(); rank];
    // SAFETY: both arrays have the length that is given; the names belong to `info` and are copied below.
    unsafe {
        runtime.check((api.GetDimensions)(tensor, dims.as_mut_ptr(), rank))?;
        runtime.check((api.GetSymbolicDimensions)(tensor, symbols.as_mut_ptr(), rank))?;
    }
    let first_dimension = match symbols.first() {
        // SAFETY: a C string that lives as long as `info`.
        Some(&symbol) if !symbol.is_null() => unsafe { CStr::from_ptr(symbol) }.to_string_lossy().into_owned(),
        _ => String::new(),
    };
    let datatype = data_type(element).ok_or_else(|| {
        RuntimeError(format!(
            "{kind} {shown} has elements that the protocol has no type for (number {element} in ONNX)"
        ))
    })?;
    Ok(Some(Port { name: name.to_owned(), spec: TensorSpec { name: shown, datatype, dims }, first_dimension }))
}

/// The runtime's element types and the protocol's.
const TYPES: [(Element, DataType); 14] = [
    (Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, DataType::Bool),
    (Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, DataType::Uint8),
    (Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16, DataType::Uint16),
    (Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32, DataType::Uint32),
    (Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64, DataType::Uint64),
    (Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, DataType::Int8),
    (Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16, DataType::Int16),
    (Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, DataType::Int32),
    (Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, DataType::Int64),
    (Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, DataType::Fp16),
    (Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, DataType::Fp32),
    (Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, DataType::Fp64),
    (Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, DataType::Bf16),
    (Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, DataType::Bytes),
];

/// The protocol's type for the runtime's number, if it has one.
pub(crate) fn data_type(element: i32) -> Option<DataType> {
    TYPES.iter().find(|pair| pair.0 as i32 == element).map(|pair| pair.1)
}

pub(crate) fn element(datatype: DataType) -> Element {
    let pair = TYPES.iter().find(|pair| pair.1 == datatype);
    pair.expect("the table has every type of the protocol").0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, first_dimension: &str, dims: &[i64]) -> Port {
        Port {
            name: CString::new(name).unwrap(),
            spec: TensorSpec { name: name.into(), datatype: DataType::Fp32, dims: dims.to_vec() },
            first_dimension: first_dimension.into(),
        }
    }

    fn max_batch(input: Port, output: Port, configured: Option<u32>) -> Result<u32, String> {
        Ports { inputs: vec![input], outputs: vec![output], left_out: Vec::new() }
            .signature(configured)
            .map(|signature| signature.max_batch)
    }

    #[test]
    fn a_free_first_dimension_of_one_name_is_a_batch() {
        assert_eq!(max_batch(port("a", "N", &[-1, 3]), port("b", "N", &[-1]), None), Ok(16));
        assert_eq!(max_batch(port("a", "N", &[-1, 3]), port("b", "", &[-1]), None), Ok(16));
        assert_eq!(max_batch(port("a", "N", &[-1, 3]), port("b", "M", &[-1]), None), Ok(0));
        assert_eq!(max_batch(port("a", "N", &[-1, 3]), port("b", "", &[1, -1]), None), Ok(0));
        assert_eq!(max_batch(port("a", "", &[]), port("b", "", &[]), None), Ok(0));
    }

    #[test]
    fn the_configuration_decides_where_the_model_allows_it() {
        assert_eq!(max_batch(port("a", "N", &[-1, 3]), port("b", "M", &[-1]), Some(8)), Ok(8));
        assert_eq!(max_batch(port("a", "N", &[-1, 3]), port("b", "N", &[-1]), Some(0)), Ok(0));
        assert_eq!(
            max_batch(port("a", "", &[2, 3]), port("b", "N", &[-1]), Some(8)).unwrap_err(),
            "max_batch_size is 8, but the first dimension of input a is fixed at 2: set max_batch_size to 0, or export the \
             model with a dynamic first dimension"
        );
        assert!(max_batch(port("a", "", &[]), port("b", "N", &[-1]), Some(8)).unwrap_err().contains("is a scalar"));
    }

    #[test]
    fn every_type_of_the_protocol_has_one_of_the_runtime() {
        for &datatype in DataType::ALL {
            assert_eq!(data_type(element(datatype) as i32), Some(datatype));
        }
        let others = [Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED as i32, -1, 1000, i32::MIN, i32::MAX];
        assert!(others.into_iter().all(|number| data_type(number).is_none()));
    }
}
