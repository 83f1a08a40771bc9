//! Inputs that a model has values for: initializers that are inputs of the graph, too.
//!
//! They are constants to the runtime, which computes ahead with them, unless the configuration lists them as inputs.
//! Then requests may give them, and where they don't, the value in the file counts. Files of a version of the format
//! below 4 list all of their weights as inputs; the runtime takes those for constants whatever is asked for, so that
//! such a file is told to be of version 4, with only those inputs that are meant.

use crate::signature::{self, Port};
use base::{DataType, TensorSpec};
use bytes::Bytes;
use engine::Tensor;
use onnx::{GraphProto, Message, ModelProto, TensorProto, ValueInfoProto};
use std::collections::BTreeMap;
use std::ffi::CString;

/// A model's optional inputs, in the order of the graph, with what they are where nobody gives them.
#[derive(Default)]
pub(crate) struct OptionalInputs {
    pub(crate) list: Vec<(Port, Tensor)>,
}

/// The optional inputs among those that a configuration lists, and the file that takes them.
pub(crate) fn find(file: Bytes, listed: &BTreeMap<String, Vec<i64>>) -> (Bytes, OptionalInputs) {
    if listed.is_empty() {
        return (file, OptionalInputs::default());
    }
    let graph = ModelProto::decode(file.clone()).ok().and_then(|model| model.graph).unwrap_or_default();
    let list: Vec<_> = graph
        .inputs
        .iter()
        .filter(|input| listed.contains_key(&input.name))
        .filter_map(|input| read(&graph, input))
        .collect();
    if list.is_empty() {
        return (file, OptionalInputs::default());
    }
    let is_optional = |name: &str| list.iter().any(|(port, _)| port.spec.name == name);
    match onnx::with_defaults(&file, &is_optional) {
        Ok(changed) => (changed.into(), OptionalInputs { list }),
        // It isn't readable, as whoever prepares it will say.
        Err(_) => (file, OptionalInputs::default()),
    }
}

/// An input that has a value in the file, if its elements can be read.
fn read(graph: &GraphProto, input: &ValueInfoProto) -> Option<(Port, Tensor)> {
    let initial = graph.initializers.iter().find(|tensor| tensor.name == input.name)?;
    let datatype = signature::data_type(initial.element)?;
    let data = elements(initial, datatype).filter(|_| initial.external.is_empty())?;
    let count = base::element_count(&initial.dims)?;
    let fits = datatype.size().and_then(|size| size.checked_mul(count)) == Some(data.len());
    let dims = declared(input).unwrap_or_else(|| initial.dims.clone());
    let spec = TensorSpec { name: input.name.clone(), datatype, dims };
    let port = Port::new(CString::new(input.name.as_str()).ok()?, spec);
    fits.then(|| (port, Tensor { datatype, shape: initial.dims.clone(), data }))
}

/// The dimensions that the graph gives an input, -1 where it leaves them open.
fn declared(input: &ValueInfoProto) -> Option<Vec<i64>> {
    let shape = input.kind.as_ref()?.tensor.as_ref()?.shape.as_ref()?;
    Some(shape.dims.iter().map(|dim| dim.value.unwrap_or(-1)).collect())
}

/// A tensor's elements as requests bring them: the file has them like that, or number by number. Strings aren't read.
fn elements(tensor: &TensorProto, datatype: DataType) -> Option<Bytes> {
    if !tensor.raw.is_empty() {
        return Some(tensor.raw.clone());
    }
    let narrowed =
        |width: usize| tensor.int32s.iter().flat_map(|value| value.to_le_bytes()[..width].to_vec()).collect();
    let bytes: Vec<u8> = match datatype {
        DataType::Bytes => return None,
        DataType::Fp32 => tensor.floats.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DataType::Fp64 => tensor.doubles.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DataType::Int64 => tensor.int64s.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DataType::Uint64 => tensor.uint64s.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DataType::Uint32 => tensor.uint64s.iter().flat_map(|&value| (value as u32).to_le_bytes()).collect(),
        DataType::Int32 => narrowed(4),
        DataType::Int16 | DataType::Uint16 | DataType::Fp16 | DataType::Bf16 => narrowed(2),
        DataType::Int8 | DataType::Uint8 | DataType::Bool => narrowed(1),
    };
    Some(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_whatever_form_the_file_has_them_in() {
        let of = |tensor: TensorProto, datatype| elements(&tensor, datatype).unwrap().to_vec();
        let raw = TensorProto { raw: Bytes::from_static(&[1, 2]), ..TensorProto::default() };
        assert_eq!(of(raw, DataType::Fp16), [1, 2]);
        let floats = TensorProto { floats: vec![1.5], ..TensorProto::default() };
        assert_eq!(of(floats, DataType::Fp32), 1.5f32.to_le_bytes());
        let small = TensorProto { int32s: vec![-2, 3], ..TensorProto::default() };
        assert_eq!(of(small.clone(), DataType::Int8), [254, 3]);
        assert_eq!(of(small, DataType::Int16), [254, 255, 3, 0]);
        let unsigned = TensorProto { uint64s: vec![7], ..TensorProto::default() };
        assert_eq!(of(unsigned, DataType::Uint32), [7, 0, 0, 0]);
        assert!(elements(&TensorProto::default(), DataType::Bytes).is_none());
    }
}
