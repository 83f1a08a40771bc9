//! Every model computes what ONNX Runtime's Python package computes, on every way to a session.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Case, Tensor, assert_close, execute, model_file, prepare};

/// Fresh, from the cache, and after being unloaded: the same results.
fn check(model: &str) {
    let cache = tempfile::tempdir().unwrap();
    let cases = Case::of(model);
    for way in ["fresh", "from the cache", "without cache"] {
        let prepared = prepare(model, (way != "without cache").then(|| cache.path())).unwrap();
        for cycle in 0..2 {
            let mut loaded = prepared.load(0).unwrap();
            for case in &cases {
                let what = format!("{model}, batch {}, {way}, load {cycle}", case.batch);
                assert_close(&execute(&mut *loaded, &case.inputs).unwrap(), &case.outputs, &what);
            }
        }
    }
    // The runtime can't read the optimised form of this one: two branches have weights of one name.
    let kept = usize::from(model != "silero-vad");
    assert_eq!(cache.path().read_dir().unwrap().count(), kept, "files kept for {model}");
}

macro_rules! same_as_python {
    ($($test:ident: $model:literal;)*) => {
        $(#[test]
        fn $test() {
            check($model);
        })*
    };
}

same_as_python! {
    magika: "magika";
    silero_vad: "silero-vad";
    rapidocr_det: "rapidocr-det";
    rapidocr_cls: "rapidocr-cls";
    all_minilm_l6_v2: "all-minilm-l6-v2";
    resnet18: "resnet18";
    resnet50: "resnet50";
    mobilenetv2: "mobilenetv2";
    mlp: "mlp";
    filler: "filler_000";
    add: "add";
    fixed: "fixed";
    scalar: "scalar";
    nonzero: "nonzero";
    mixed_names: "mixed_names";
    doubled: "doubled";
    identity_bool: "identity_bool";
    identity_uint8: "identity_uint8";
    identity_uint16: "identity_uint16";
    identity_uint32: "identity_uint32";
    identity_uint64: "identity_uint64";
    identity_int8: "identity_int8";
    identity_int16: "identity_int16";
    identity_int32: "identity_int32";
    identity_int64: "identity_int64";
    identity_fp16: "identity_fp16";
    identity_fp32: "identity_fp32";
    identity_fp64: "identity_fp64";
    identity_bytes: "identity_bytes";
}

/// numpy has no such type, so there is nothing to compare with but the input.
#[test]
fn identity_bf16() {
    let tensor = Tensor {
        datatype: base::DataType::Bf16,
        shape: vec![2, 2],
        data: vec![0x80, 0x3f, 0x00, 0xc0, 1, 2, 3, 4].into(),
    };
    let mut loaded = prepare("identity_bf16", None).unwrap().load(0).unwrap();
    assert_eq!(execute(&mut *loaded, std::slice::from_ref(&tensor)).unwrap(), [tensor]);
}

/// Rows don't depend on their neighbours, whatever the batch size: what the scheduler relies on.
#[test]
fn every_batch_size_gives_the_same_rows() {
    for model in ["mlp", "magika", "filler_000"] {
        let cases = Case::of(model);
        let all = cases.iter().find(|case| case.batch == 16).unwrap();
        let mut loaded = prepare(model, None).unwrap().load(0).unwrap();
        let rows = |tensors: &[Tensor], count: usize| -> Vec<Tensor> {
            let cut = |tensor: &Tensor| {
                let mut tensor = tensor.clone();
                tensor.data.truncate(tensor.data.len() / 16 * count);
                tensor.shape[0] = count as i64;
                tensor
            };
            tensors.iter().map(cut).collect()
        };
        for count in 1..=16 {
            let outputs = execute(&mut *loaded, &rows(&all.inputs, count)).unwrap();
            assert_close(&outputs, &rows(&all.outputs, count), &format!("{model}, {count} rows"));
        }
    }
}

/// A block of a request's body may start anywhere.
#[test]
fn inputs_need_not_be_aligned() {
    let case = Case::of("identity_int64").remove(0);
    let mut loaded = prepare("identity_int64", None).unwrap().load(0).unwrap();
    for start in 0..=3 {
        let mut bytes = vec![0u8; start];
        bytes.extend_from_slice(&case.inputs[0].data);
        let mut input = Tensor { data: bytes.into(), ..case.inputs[0].clone() };
        input.data = input.data.slice(start..);
        let found = execute(&mut *loaded, &[input]).unwrap();
        assert_eq!(found, case.inputs);
    }
}

#[test]
fn the_sample_models_are_where_they_should_be() {
    assert!(model_file("magika").ends_with("models/magika/1/model.onnx"));
}
