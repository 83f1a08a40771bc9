//! What a small file may make its reader hold.

use graph::{OnnxModel, Options, Precision, compile};
use onnx::*;

fn number(name: &str, dims: &[i64], value: i64) -> TensorProto {
    TensorProto { name: name.into(), dims: dims.to_vec(), element: 7, int64s: vec![value], ..TensorProto::default() }
}

fn node(operator: &str, inputs: &[&str], output: &str, attributes: Vec<AttributeProto>) -> NodeProto {
    NodeProto {
        operator: operator.into(),
        inputs: inputs.iter().map(ToString::to_string).collect(),
        outputs: vec![output.into()],
        attributes,
        ..NodeProto::default()
    }
}

fn one(name: &str) -> ValueInfoProto {
    let shape = Some(ShapeProto { dims: vec![DimensionProto { value: Some(1), name: None }] });
    let tensor = Some(TensorTypeProto { element: 1, shape });
    ValueInfoProto { name: name.into(), kind: Some(TypeProto { tensor }) }
}

/// Found by libFuzzer: a file of 205 bytes took two gigabytes to read. Each node made twice the constant of the one
/// before, and all were computed ahead.
#[test]
fn a_few_nodes_do_not_make_gigabytes_of_constants_out_of_one_number() {
    let count = 1 << 22;
    let to_float = AttributeProto { name: "to".into(), int: 1, kind: 2, ..AttributeProto::default() };
    let mut nodes = vec![
        node("Range", &["start", "limit", "step"], "range", vec![]),
        node("Cast", &["range"], "t0", vec![to_float]),
    ];
    for round in 0..5 {
        nodes.push(node("Tile", &[&format!("t{round}"), "twice"], &format!("t{}", round + 1), vec![]));
    }
    nodes.push(node("Add", &["x", "t5"], "sum", vec![]));
    nodes.push(node("ReduceMax", &["sum"], "y", vec![]));
    let initializers =
        vec![number("start", &[], 0), number("limit", &[], count), number("step", &[], 1), number("twice", &[1], 2)];
    let graph =
        GraphProto { nodes, initializers, inputs: vec![one("x")], outputs: vec![one("y")], ..GraphProto::default() };
    let opsets = vec![OpsetProto { domain: String::new(), version: 21 }];
    let file = ModelProto { graph: Some(graph), opsets, ..ModelProto::default() }.encode_to_vec();
    let model = OnnxModel::decode(&file, None).expect("a model that is read");
    let plan = compile(&model, &Options::new(1, Precision::F32)).expect("a model that is planned");
    // All 2^27 elements would be half a gigabyte; 2^25 may be computed ahead.
    let held = plan.weights.len() + plan.constants.len();
    assert!(held <= 4 << 25, "{held} bytes of constants out of a file of {}", file.len());
}
