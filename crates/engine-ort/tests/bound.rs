//! The workspace has a bound: an execution beyond it fails, and the process lives on.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use base::DataType;
use common::{Tensor, execute, model_file, source};
use engine::Engine;
use engine_ort::{OrtEngine, OrtOptions};

fn picture(side: i64) -> Tensor {
    let data = vec![0; 12 * (side * side) as usize].into();
    Tensor { datatype: DataType::Fp32, shape: vec![1, 3, side, side], data }
}

#[test]
fn an_execution_beyond_the_workspace_fails_and_the_next_one_is_computed() {
    let engine = OrtEngine::new(&OrtOptions { workspace_bytes: 200 << 20, ..OrtOptions::default() }).unwrap();
    let prepared = engine.prepare(&source(model_file("rapidocr-det"), None)).unwrap();
    let mut loaded = prepared.load(0).unwrap();
    let expected = execute(&mut *loaded, &[picture(320)]).unwrap();
    let refused = execute(&mut *loaded, &[picture(2048)]).unwrap_err().to_string();
    assert!(refused.contains("memory"), "{refused}");
    assert_eq!(execute(&mut *loaded, &[picture(320)]).unwrap(), expected);
}
