//! A model that runs as many rounds of a loop as it is told. Of 2^62 no machine sees the end.

#![allow(dead_code, reason = "each test needs a part of it")]

use onnx::{
    AttributeProto, DimensionProto, GraphProto, Message, ModelProto, NodeProto, OpsetProto, ShapeProto, TensorProto,
    TensorTypeProto, TypeProto, ValueInfoProto,
};

/// More rounds than there is time.
pub const ENDLESS: i64 = 1 << 62;

const FLOAT: i32 = 1;
const INT64: i32 = 7;
const BOOL: i32 = 9;
/// The kind of an attribute that is a graph.
const GRAPH: i32 = 5;

/// What a round does.
#[derive(Clone, Copy, PartialEq)]
pub enum Round {
    /// It adds 1.
    Adds,
    /// Nothing at all: the runtime has no node before which it looks whether it should stop.
    Nothing,
}

/// The file. Input `rounds`, INT64, of one element, unless so many are fixed: then `start` is all it takes, one FP32;
/// output `sum`.
pub fn model(fixed: Option<i64>, round: Round) -> Vec<u8> {
    let (nodes, [goes, sum]) = match round {
        Round::Adds => {
            let nodes = vec![node("Identity", &["go"], &["goes"]), node("Add", &["sum_in", "one"], &["sum_out"])];
            (nodes, ["goes", "sum_out"])
        }
        Round::Nothing => (Vec::new(), ["go", "sum_in"]),
    };
    let body = GraphProto {
        name: "round".into(),
        initializers: if nodes.is_empty() { Vec::new() } else { vec![number("one", 1.0)] },
        nodes,
        inputs: vec![port("round", INT64, &[]), port("go", BOOL, &[]), port("sum_in", FLOAT, &[1])],
        outputs: vec![port(goes, BOOL, &[]), port(sum, FLOAT, &[1])],
        ..GraphProto::default()
    };
    let body = AttributeProto { name: "body".into(), graph: Some(body), kind: GRAPH, ..AttributeProto::default() };
    let rounds = |count: i64| TensorProto {
        name: "rounds".into(),
        dims: vec![1],
        element: INT64,
        int64s: vec![count],
        ..TensorProto::default()
    };
    let (inputs, initializers) = match fixed {
        Some(count) => (vec![port("start", FLOAT, &[1])], vec![rounds(count)]),
        None => (vec![port("rounds", INT64, &[1])], vec![number("start", 0.0)]),
    };
    let graph = GraphProto {
        name: "rounds".into(),
        nodes: vec![NodeProto { attributes: vec![body], ..node("Loop", &["rounds", "", "start"], &["sum"]) }],
        initializers,
        inputs,
        outputs: vec![port("sum", FLOAT, &[1])],
        ..GraphProto::default()
    };
    let opsets = vec![OpsetProto { domain: String::new(), version: 17 }];
    ModelProto { ir_version: 8, graph: Some(graph), opsets, ..ModelProto::default() }.encode_to_vec()
}

fn node(operator: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    NodeProto { operator: operator.into(), inputs: names(inputs), outputs: names(outputs), ..NodeProto::default() }
}

fn number(name: &str, value: f32) -> TensorProto {
    TensorProto { name: name.into(), dims: vec![1], element: FLOAT, floats: vec![value], ..TensorProto::default() }
}

fn port(name: &str, element: i32, dims: &[i64]) -> ValueInfoProto {
    let dims = dims.iter().map(|&size| DimensionProto { value: Some(size), ..DimensionProto::default() }).collect();
    let tensor = TensorTypeProto { element, shape: Some(ShapeProto { dims }) };
    ValueInfoProto { name: name.into(), kind: Some(TypeProto { tensor: Some(tensor) }) }
}
