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
    #[prost(message, repeated, tag = "25")]
    functions: Vec<Function>,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(message, repeated, tag = "7")]
    nodes: Vec<Node>,
}

#[derive(Clone, PartialEq, Message)]
struct Graph {
    #[prost(message, repeated, tag = "1")]
    nodes: Vec<Node>,
    #[prost(message, repeated, tag = "5")]
    initializers: Vec<Tensor>,
    #[prost(message, repeated, tag = "15")]
    sparse_initializers: Vec<SparseTensor>,
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
    #[prost(message, repeated, tag = "10")]
    tensors: Vec<Tensor>,
    #[prost(message, repeated, tag = "11")]
    graphs: Vec<Graph>,
    #[prost(message, optional, tag = "22")]
    sparse_tensor: Option<SparseTensor>,
    #[prost(message, repeated, tag = "23")]
    sparse_tensors: Vec<SparseTensor>,
}

#[derive(Clone, PartialEq, Message)]
struct SparseTensor {
    #[prost(message, optional, tag = "1")]
    values: Option<Tensor>,
    #[prost(message, optional, tag = "2")]
    indices: Option<Tensor>,
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

/// The names of the files, relative to the model's folder, in which a model keeps weights; `None` if it isn't readable.
pub(crate) fn external_files(file: &[u8]) -> Option<Vec<String>> {
    let model = Model::decode(file).ok()?;
    let mut tensors = Vec::new();
    model.graph.iter().for_each(|graph| graph.tensors(&mut tensors));
    model.functions.iter().flat_map(|function| &function.nodes).for_each(|node| node.tensors(&mut tensors));
    let entries = tensors.iter().flat_map(|tensor| &tensor.external).filter(|entry| entry.key == "location");
    let mut files: Vec<_> = entries.map(|entry| entry.value.clone()).collect();
    files.sort();
    files.dedup();
    Some(files)
}

impl Graph {
    /// Collects everything that may lie in another file.
    fn tensors<'a>(&'a self, tensors: &mut Vec<&'a Tensor>) {
        tensors.extend(&self.initializers);
        tensors.extend(self.sparse_initializers.iter().flat_map(SparseTensor::tensors));
        self.nodes.iter().for_each(|node| node.tensors(tensors));
    }
}

impl Node {
    fn tensors<'a>(&'a self, tensors: &mut Vec<&'a Tensor>) {
        for attribute in &self.attributes {
            tensors.extend(attribute.tensor.iter().chain(&attribute.tensors));
            let sparse = attribute.sparse_tensor.iter().chain(&attribute.sparse_tensors);
            tensors.extend(sparse.flat_map(SparseTensor::tensors));
            attribute.graph.iter().chain(&attribute.graphs).for_each(|graph| graph.tensors(tensors));
        }
    }
}

impl SparseTensor {
    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.values.iter().chain(&self.indices)
    }
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
        let body = Graph { initializers: inner, ..Graph::default() };
        let branch = Attribute { graph: Some(body), ..Attribute::default() };
        let choice = Node { operator: "If".into(), attributes: vec![branch], ..Node::default() };
        let conv = Node { inputs: vec!["x".into(), "w".into()], operator: "Conv".into(), ..Node::default() };
        let graph = Graph { nodes: vec![choice, conv], initializers: outer, ..Graph::default() };
        Model { graph: Some(graph), ..Model::default() }.encode_to_vec()
    }

    /// A tensor in a file of that name, wherever a model may have one.
    #[test]
    fn files_are_found_wherever_a_tensor_may_be() {
        let at = |location: &str| {
            let mut tensor = external("t", 0);
            tensor.external[0].value = location.into();
            tensor
        };
        let sparse = |a: &str, b: &str| SparseTensor { values: Some(at(a)), indices: Some(at(b)) };
        let attribute = Attribute {
            tensor: Some(at("b")),
            tensors: vec![at("c")],
            sparse_tensor: Some(sparse("d", "e")),
            sparse_tensors: vec![sparse("f", "g")],
            graph: Some(Graph { initializers: vec![at("h")], ..Graph::default() }),
            graphs: vec![Graph { sparse_initializers: vec![sparse("i", "j")], ..Graph::default() }],
        };
        let node = Node { attributes: vec![attribute], ..Node::default() };
        let inside = Attribute { tensor: Some(at("k")), ..Attribute::default() };
        let function = Function { nodes: vec![Node { attributes: vec![inside], ..Node::default() }] };
        let graph = Graph { nodes: vec![node], initializers: vec![at("a")], ..Graph::default() };
        let model = Model { graph: Some(graph), functions: vec![function] };
        assert_eq!(external_files(&model.encode_to_vec()).unwrap().concat(), "abcdefghijk");
    }

    #[test]
    fn weights_of_inner_graphs_are_found_and_convolutions_counted() {
        let weights = external_weights(&model(vec![external("w", 0)], vec![external("v", 64)])).unwrap();
        let found: Vec<_> = weights.list.iter().map(|weight| (weight.name.to_str().unwrap(), weight.offset)).collect();
        assert_eq!(found, [("w", 0), ("v", 64)]);
        assert_eq!(weights.convolution_bytes, 8);
        assert_eq!(external_files(&model(vec![external("w", 0)], vec![external("v", 64)])).unwrap(), ["weights.bin"]);
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
        assert_eq!(external_files(b"PK\x03\x04 not onnx"), None);
    }
}
