//! ONNX files: the messages of the format, as far as somebody reads them.
//!
//! Field numbers are those of the format; what isn't declared is skipped. A file that is decoded from [`Bytes`] isn't
//! copied: weights inside it stay where they are.
#![allow(
    missing_docs,
    reason = "fields are called as in the format, or nearly so; its own documentation says what they mean"
)]

mod defaults;
mod part;

use bytes::Bytes;
pub use defaults::with_defaults;
pub use part::{ModelPart, part};
pub use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    pub opsets: Vec<OpsetProto>,
    #[prost(message, repeated, tag = "25")]
    pub functions: Vec<FunctionProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct OpsetProto {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(int64, tag = "2")]
    pub version: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct FunctionProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, repeated, tag = "4")]
    pub inputs: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    pub outputs: Vec<String>,
    #[prost(message, repeated, tag = "7")]
    pub nodes: Vec<NodeProto>,
    #[prost(string, tag = "10")]
    pub domain: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<NodeProto>,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(message, repeated, tag = "5")]
    pub initializers: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub inputs: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    pub outputs: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "15")]
    pub sparse_initializers: Vec<SparseTensorProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    pub inputs: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub outputs: Vec<String>,
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub operator: String,
    #[prost(message, repeated, tag = "5")]
    pub attributes: Vec<AttributeProto>,
    #[prost(string, tag = "7")]
    pub domain: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(float, tag = "2")]
    pub float: f32,
    #[prost(int64, tag = "3")]
    pub int: i64,
    #[prost(bytes = "vec", tag = "4")]
    pub string: Vec<u8>,
    #[prost(message, optional, tag = "5")]
    pub tensor: Option<TensorProto>,
    #[prost(message, optional, tag = "6")]
    pub graph: Option<GraphProto>,
    #[prost(float, repeated, tag = "7")]
    pub floats: Vec<f32>,
    #[prost(int64, repeated, tag = "8")]
    pub ints: Vec<i64>,
    #[prost(bytes = "vec", repeated, tag = "9")]
    pub strings: Vec<Vec<u8>>,
    #[prost(message, repeated, tag = "10")]
    pub tensors: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub graphs: Vec<GraphProto>,
    #[prost(int32, tag = "20")]
    pub kind: i32,
    #[prost(message, optional, tag = "22")]
    pub sparse_tensor: Option<SparseTensorProto>,
    #[prost(message, repeated, tag = "23")]
    pub sparse_tensors: Vec<SparseTensorProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SparseTensorProto {
    #[prost(message, optional, tag = "1")]
    pub values: Option<TensorProto>,
    #[prost(message, optional, tag = "2")]
    pub indices: Option<TensorProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    #[prost(int64, repeated, tag = "1")]
    pub dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub element: i32,
    #[prost(float, repeated, tag = "4")]
    pub floats: Vec<f32>,
    #[prost(int32, repeated, tag = "5")]
    pub int32s: Vec<i32>,
    #[prost(int64, repeated, tag = "7")]
    pub int64s: Vec<i64>,
    #[prost(string, tag = "8")]
    pub name: String,
    #[prost(bytes = "bytes", tag = "9")]
    pub raw: Bytes,
    #[prost(double, repeated, tag = "10")]
    pub doubles: Vec<f64>,
    #[prost(uint64, repeated, tag = "11")]
    pub uint64s: Vec<u64>,
    #[prost(message, repeated, tag = "13")]
    pub external: Vec<EntryProto>,
    #[prost(int32, tag = "14")]
    pub location: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct EntryProto {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ValueInfoProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub kind: Option<TypeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    #[prost(message, optional, tag = "1")]
    pub tensor: Option<TensorTypeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TensorTypeProto {
    #[prost(int32, tag = "1")]
    pub element: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<ShapeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ShapeProto {
    #[prost(message, repeated, tag = "1")]
    pub dims: Vec<DimensionProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DimensionProto {
    #[prost(int64, optional, tag = "1")]
    pub value: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
}

impl ModelProto {
    /// Everything that may lie in another file, wherever in the model it is.
    pub fn tensors(&self) -> Vec<&TensorProto> {
        let mut tensors = Vec::new();
        self.graph.iter().for_each(|graph| graph.collect(&mut tensors));
        self.functions.iter().flat_map(|function| &function.nodes).for_each(|node| node.collect(&mut tensors));
        tensors
    }
}

impl GraphProto {
    fn collect<'a>(&'a self, tensors: &mut Vec<&'a TensorProto>) {
        tensors.extend(&self.initializers);
        tensors.extend(self.sparse_initializers.iter().flat_map(SparseTensorProto::tensors));
        self.nodes.iter().for_each(|node| node.collect(tensors));
    }
}

impl NodeProto {
    fn collect<'a>(&'a self, tensors: &mut Vec<&'a TensorProto>) {
        for attribute in &self.attributes {
            tensors.extend(attribute.tensor.iter().chain(&attribute.tensors));
            let sparse = attribute.sparse_tensor.iter().chain(&attribute.sparse_tensors);
            tensors.extend(sparse.flat_map(SparseTensorProto::tensors));
            attribute.graph.iter().chain(&attribute.graphs).for_each(|graph| graph.collect(tensors));
        }
    }
}

impl SparseTensorProto {
    fn tensors(&self) -> impl Iterator<Item = &TensorProto> {
        self.values.iter().chain(&self.indices)
    }
}

impl TensorProto {
    /// What the file says of where the tensor is: `location`, `offset`, `length`.
    pub fn external(&self, key: &str) -> Option<&str> {
        self.external.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_not_copied() {
        let weight = TensorProto { raw: vec![7; 1 << 16].into(), ..TensorProto::default() };
        let graph = GraphProto { initializers: vec![weight], ..GraphProto::default() };
        let file = Bytes::from(ModelProto { graph: Some(graph), ..ModelProto::default() }.encode_to_vec());
        let model = ModelProto::decode(file.clone()).unwrap();
        let raw = &model.tensors()[0].raw;
        assert_eq!(raw[..], [7; 1 << 16]);
        assert!(file.as_ptr_range().contains(&raw.as_ptr()));
    }
}
