//! The few fields of an ONNX file that matter here: where the weights are, and what they are used for.
//!
//! Field numbers are those of the ONNX format; everything else in a file is skipped.

use ort::sys::ONNXTensorElementDataType as Element;
use prost::Message;
use std::collections::HashMap;
use std::ffi::CString;

#[derive(Clone, PartialEq, Message)]
struct Model {
    #[prost(message, optional, tag = "7")]
    graph: Option<Graph>,
}

#[derive(Clone, PartialEq, Message)]
struct Graph {
    #[prost(message, repeated, tag = "1")]
    nodes: Vec<Node>,
    #[prost(message, repeated, tag = "5")]
    initializers: Vec<Tensor>,
}

#[derive(Clone, PartialEq, Message)]
struct Node {
    #[prost(string, repeated, tag = "1")]
    inputs: Vec<String>,
    #[prost(string, tag = "4")]
    operator: String,
    #[prost(message, repeated, tag = "5")]
    attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(message, optional, tag = "5")]
    tensor: Option<Tensor>,
    #[prost(message, optional, tag = "6")]
    graph: Option<Graph>,
    #[prost(message, repeated, tag = "11")]
    graphs: Vec<Graph>,
}

#[derive(Clone, PartialEq, Message)]
struct Tensor {
    #[prost(int64, repeated, tag = "1")]
    dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    element: i32,
    #[prost(string, tag = "8")]
    name: String,
    #[prost(message, repeated, tag = "13")]
    external: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

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
pub(crate) struct Weights {
    pub(crate) list: Vec<Weight>,
    /// Bytes of those that convolutions use, which are computed with as they are.
    pub(crate) convolution_bytes: usize,
}

/// The external weights of a model; `None` if they can't be told apart by name (then they can't be supplied by name) or
/// if the file isn't readable.
pub(crate) fn external_weights(file: &[u8]) -> Option<Weights> {
    let graph = Model::decode(file).ok()?.graph?;
    let mut weights = Weights::default();
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
        let weight = tensor.weight()?;
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

/// The names of the files, relative to the model's folder, in which a model keeps weights.
pub(crate) fn external_files(file: &[u8]) -> Vec<String> {
    fn collect(graph: &Graph, files: &mut Vec<String>) {
        let attributes = || graph.nodes.iter().flat_map(|node| &node.attributes);
        let tensors = graph.initializers.iter().chain(attributes().filter_map(|attribute| attribute.tensor.as_ref()));
        for entry in tensors.flat_map(|tensor| &tensor.external).filter(|entry| entry.key == "location") {
            files.push(entry.value.clone());
        }
        for inner in attributes().flat_map(|attribute| attribute.graph.iter().chain(&attribute.graphs)) {
            collect(inner, files);
        }
    }
    let mut files = Vec::new();
    if let Ok(Model { graph: Some(graph) }) = Model::decode(file) {
        collect(&graph, &mut files);
    }
    files.sort();
    files.dedup();
    files
}

impl Tensor {
    fn weight(&self) -> Option<Weight> {
        let entry = |key: &str| self.external.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str());
        Some(Weight {
            name: CString::new(self.name.as_str()).ok()?,
            dims: self.dims.clone(),
            element: element(self.element)?,
            offset: entry("offset").unwrap_or("0").parse().ok()?,
            length: entry("length")?.parse().ok()?,
        })
    }
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

    fn external(name: &str, offset: usize) -> Tensor {
        let entry = |key: &str, value: String| Entry { key: key.into(), value };
        Tensor {
            dims: vec![2],
            element: 1,
            name: name.into(),
            external: vec![
                entry("location", "weights.bin".into()),
                entry("offset", offset.to_string()),
                entry("length", "8".into()),
            ],
        }
    }

    fn model(outer: Vec<Tensor>, inner: Vec<Tensor>) -> Vec<u8> {
        let body = Graph { nodes: vec![], initializers: inner };
        let branch = Attribute { tensor: None, graph: Some(body), graphs: vec![] };
        let choice = Node { inputs: vec![], operator: "If".into(), attributes: vec![branch] };
        let conv = Node { inputs: vec!["x".into(), "w".into()], operator: "Conv".into(), attributes: vec![] };
        Model { graph: Some(Graph { nodes: vec![choice, conv], initializers: outer }) }.encode_to_vec()
    }

    #[test]
    fn weights_of_inner_graphs_are_found_and_convolutions_counted() {
        let weights = external_weights(&model(vec![external("w", 0)], vec![external("v", 64)])).unwrap();
        let found: Vec<_> = weights.list.iter().map(|weight| (weight.name.to_str().unwrap(), weight.offset)).collect();
        assert_eq!(found, [("w", 0), ("v", 64)]);
        assert_eq!(weights.convolution_bytes, 8);
        assert_eq!(external_files(&model(vec![external("w", 0)], vec![external("v", 64)])), ["weights.bin"]);
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
        assert!(external_files(b"PK\x03\x04 not onnx").is_empty());
    }
}
