//! Weights outside of a model's file: where they are, and what they are used for.

use bytes::Bytes;
use onnx::{Message, ModelProto, TensorProto};
use ort::sys::ONNXTensorElementDataType as Element;
use std::collections::HashMap;
use std::ffi::CString;

/// A weight that isn't inside its model's file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Weight {
    pub(crate) name: CString,
    pub(crate) dims: Vec<i64>,
    pub(crate) element: Element,
    /// Where it is in the file of weights.
    pub(crate) offset: usize,
    pub(crate) length: usize,
}

/// All weights outside of a model's file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ExternalWeights {
    pub(crate) list: Vec<Weight>,
    /// Bytes of those that convolutions use, which are computed with as they are.
    pub(crate) convolution_bytes: usize,
}

/// The external weights of a model; `None` if they can't be told apart by name (then they can't be supplied by name) or
/// if the file isn't readable.
pub(crate) fn external_weights(file: &[u8]) -> Option<ExternalWeights> {
    let graph = ModelProto::decode(file).ok()?.graph?;
    let mut weights = ExternalWeights::default();
    let mut known = HashMap::new();
    let mut graphs = vec![&graph];
    let mut all = Vec::new();
    while let Some(graph) = graphs.pop() {
        all.push(graph);
        for attribute in graph.nodes.iter().flat_map(|node| &node.attributes) {
            graphs.extend(attribute.graph.iter().chain(&attribute.graphs));
        }
    }
    for tensor in all.iter().flat_map(|graph| &graph.initializers).filter(|tensor| !tensor.external.is_empty()) {
        let weight = weight(tensor)?;
        match known.insert(tensor.name.as_str(), (weight.offset, weight.length)) {
            None => weights.list.push(weight),
            Some(place) if place == (weight.offset, weight.length) => {}
            Some(_) => return None,
        }
    }
    for node in all.iter().flat_map(|graph| &graph.nodes).filter(|node| node.operator.contains("Conv")) {
        for (_, length) in node.inputs.iter().filter_map(|input| known.remove(input.as_str())) {
            weights.convolution_bytes += length;
        }
    }
    Some(weights)
}

/// The names of the files, relative to the model's folder, in which a model keeps weights; `None` if it isn't readable.
pub(crate) fn external_files(file: &Bytes) -> Option<Vec<String>> {
    let model = ModelProto::decode(file.clone()).ok()?;
    // All of a tensor's, if it has several: which one the runtime reads is its own affair.
    let entries = model.tensors().into_iter().flat_map(|tensor| &tensor.external);
    let locations = entries.filter(|entry| entry.key == "location");
    let mut files: Vec<_> = locations.map(|entry| entry.value.clone()).collect();
    files.sort();
    files.dedup();
    Some(files)
}

fn weight(tensor: &TensorProto) -> Option<Weight> {
    Some(Weight {
        name: CString::new(tensor.name.as_str()).ok()?,
        dims: tensor.dims.clone(),
        element: element(tensor.element)?,
        offset: tensor.external("offset").unwrap_or("0").parse().ok()?,
        length: tensor.external("length")?.parse().ok()?,
    })
}

/// The element types that weights outside of the file may have here; others stay with the runtime.
fn element(number: i32) -> Option<Element> {
    let elements = [
        Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
        Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,
        Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8,
        Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16,
        Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16,
        Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
        Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
        Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,
        Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
        Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,
        Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32,
        Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64,
        Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16,
    ];
    elements.into_iter().find(|&element| element as i32 == number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onnx::{AttributeProto, EntryProto, FunctionProto, GraphProto, NodeProto, SparseTensorProto};

    fn external(name: &str, offset: usize) -> TensorProto {
        let entry = |key: &str, value: String| EntryProto { key: key.into(), value };
        TensorProto {
            dims: vec![2],
            element: 1,
            name: name.into(),
            external: vec![
                entry("location", "weights.bin".into()),
                entry("offset", offset.to_string()),
                entry("length", "8".into()),
            ],
            ..TensorProto::default()
        }
    }

    fn model(outer: Vec<TensorProto>, inner: Vec<TensorProto>) -> Vec<u8> {
        let body = GraphProto { initializers: inner, ..GraphProto::default() };
        let branch = AttributeProto { graph: Some(body), ..AttributeProto::default() };
        let choice = NodeProto { operator: "If".into(), attributes: vec![branch], ..NodeProto::default() };
        let conv = NodeProto { inputs: vec!["x".into(), "w".into()], operator: "Conv".into(), ..NodeProto::default() };
        let graph = GraphProto { nodes: vec![choice, conv], initializers: outer, ..GraphProto::default() };
        ModelProto { graph: Some(graph), ..ModelProto::default() }.encode_to_vec()
    }

    /// A tensor in a file of that name, wherever a model may have one.
    #[test]
    fn files_are_found_wherever_a_tensor_may_be() {
        let at = |location: &str| {
            let mut tensor = external("t", 0);
            tensor.external[0].value = location.into();
            tensor
        };
        let sparse = |a: &str, b: &str| SparseTensorProto { values: Some(at(a)), indices: Some(at(b)) };
        let attribute = AttributeProto {
            tensor: Some(at("b")),
            tensors: vec![at("c")],
            sparse_tensor: Some(sparse("d", "e")),
            sparse_tensors: vec![sparse("f", "g")],
            graph: Some(GraphProto { initializers: vec![at("h")], ..GraphProto::default() }),
            graphs: vec![GraphProto { sparse_initializers: vec![sparse("i", "j")], ..GraphProto::default() }],
            ..AttributeProto::default()
        };
        let node = NodeProto { attributes: vec![attribute], ..NodeProto::default() };
        let inside = AttributeProto { tensor: Some(at("k")), ..AttributeProto::default() };
        let function = FunctionProto {
            nodes: vec![NodeProto { attributes: vec![inside], ..NodeProto::default() }],
            ..FunctionProto::default()
        };
        let graph = GraphProto { nodes: vec![node], initializers: vec![at("a")], ..GraphProto::default() };
        let model = ModelProto { graph: Some(graph), functions: vec![function], ..ModelProto::default() };
        assert_eq!(external_files(&model.encode_to_vec().into()).unwrap().concat(), "abcdefghijk");
    }

    #[test]
    fn no_file_hides_behind_another_of_the_same_tensor() {
        let mut tensor = external("w", 0);
        tensor.external.push(EntryProto { key: "location".into(), value: "/etc/passwd".into() });
        assert_eq!(external_files(&model(vec![tensor], Vec::new()).into()).unwrap(), ["/etc/passwd", "weights.bin"]);
    }

    #[test]
    fn weights_of_inner_graphs_are_found_and_convolutions_counted() {
        let weights = external_weights(&model(vec![external("w", 0)], vec![external("v", 64)])).unwrap();
        let found: Vec<_> = weights.list.iter().map(|weight| (weight.name.to_str().unwrap(), weight.offset)).collect();
        assert_eq!(found, [("w", 0), ("v", 64)]);
        assert_eq!(weights.convolution_bytes, 8);
        assert_eq!(
            external_files(&model(vec![external("w", 0)], vec![external("v", 64)]).into()).unwrap(),
            ["weights.bin"]
        );
    }

    #[test]
    fn two_weights_of_one_name_can_not_be_supplied_by_name() {
        assert_eq!(external_weights(&model(vec![external("w", 0)], vec![external("w", 64)])), None);
        let same = external_weights(&model(vec![external("w", 0)], vec![external("w", 0)])).unwrap();
        assert_eq!(same.list.len(), 1);
    }

    #[test]
    fn a_file_that_is_not_onnx_has_no_weights() {
        assert_eq!(external_weights(b"PK\x03\x04 not onnx"), None);
        assert_eq!(external_files(&Bytes::from_static(b"PK\x03\x04 not onnx")), None);
    }
}
