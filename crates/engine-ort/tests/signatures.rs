//! What the engine says of models: names, types, shapes, batches, weights.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use base::{DataType, ModelSignature, TensorSpec};
use common::{ENGINE, Tensor, execute, model_file, prepare, source};
use engine::Engine;

fn spec(name: &str, datatype: DataType, dims: &[i64]) -> TensorSpec {
    TensorSpec { name: name.into(), datatype, dims: dims.to_vec() }
}

fn signature(model: &str) -> ModelSignature {
    prepare(model, None).unwrap().signature().clone()
}

#[test]
fn names_types_and_shapes_are_the_models() {
    let found = signature("all-minilm-l6-v2");
    let inputs = ["input_ids", "attention_mask", "token_type_ids"].map(|name| spec(name, DataType::Int64, &[-1, -1]));
    assert_eq!(found.inputs, inputs);
    assert_eq!(found.outputs, [spec("sentence_embedding", DataType::Fp32, &[-1, 384])]);
    assert_eq!(found.max_batch, 16);
    let found = signature("silero-vad");
    assert_eq!(found.inputs[2], spec("sr", DataType::Int64, &[]));
    assert_eq!(found.max_batch, 0);
}

#[test]
fn batches_are_found_or_configured() {
    assert_eq!(signature("resnet18").max_batch, 16);
    assert_eq!(signature("fixed").max_batch, 0);
    assert_eq!(signature("mixed_names").max_batch, 0, "first dimensions of two names");
    let configured = |model: &str, max_batch| {
        let mut source = source(model_file(model), None);
        source.max_batch = Some(max_batch);
        ENGINE.prepare(&source).map(|prepared| prepared.signature().max_batch).map_err(|error| error.to_string())
    };
    assert_eq!(configured("mixed_names", 4), Ok(4));
    assert_eq!(configured("mlp", 0), Ok(0));
    let refused = configured("fixed", 4).unwrap_err();
    assert!(refused.contains("max_batch_size is 4, but the first dimension of input input is fixed at 2"), "{refused}");
}

/// It couldn't be served at all, and neither could what scikit-learn's classifiers are exported to by default.
#[test]
fn an_output_that_is_no_tensor_is_left_out_and_the_others_are_served() {
    let prepared = prepare("beside_a_list", None).unwrap();
    assert_eq!(prepared.signature().outputs, [spec("output", DataType::Fp32, &[-1, 3])]);
    assert_eq!(prepared.signature().max_batch, 16);
    let mut loaded = prepared.load(0).unwrap();
    let tensor = |values: [f32; 3]| {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
        Tensor { datatype: DataType::Fp32, shape: vec![1, 3], data: data.into() }
    };
    let outputs = execute(&mut *loaded, &[tensor([1.0, 2.0, 3.0])]).unwrap();
    assert_eq!(outputs, [tensor([-1.0, -2.0, -3.0])]);
}

#[test]
fn every_data_type_of_the_protocol_is_understood() {
    for &datatype in DataType::ALL {
        let found = signature(&format!("identity_{}", datatype.name().to_lowercase()));
        assert_eq!(found.inputs, [spec("input", datatype, &[-1, -1])]);
    }
}

#[test]
fn weights_are_counted() {
    let bytes = |model| prepare(model, None).unwrap().weight_bytes();
    assert!((102_000_000..104_000_000).contains(&bytes("resnet50")), "{}", bytes("resnet50"));
    assert!((10_000_000..11_000_000).contains(&bytes("filler_000")), "{}", bytes("filler_000"));
    assert!(bytes("identity_fp32") < 10_000);
}
