//! The node tests of ONNX as files: `NAME.onnx`, a model, and `NAME.data.onnx`, its inputs and the outputs that it
//! should have. `scripts/onnx-node-cases.py` writes them.

use crate::array::{Array, Data};
use crate::{GraphError, OnnxModel};
use std::path::Path;

/// Tests that contradict the operator's definition. What computes rightly differs from them.
const CONTESTED: [(&str, &str); 4] = [
    ("test_qlinearmatmul_2D_int8_float16", WRAPS),
    ("test_qlinearmatmul_2D_int8_float32", WRAPS),
    ("test_qlinearmatmul_3D_int8_float16", WRAPS),
    ("test_qlinearmatmul_3D_int8_float32", WRAPS),
];
/// ONNX's own reference lets sums below -128 come out positive.
const WRAPS: &str = "the test lets sums wrap around that the definition saturates";

/// What is wrong with a test that contradicts the operator's definition.
pub fn contested(name: &str) -> Option<&'static str> {
    CONTESTED.iter().find(|(contested, _)| *contested == name).map(|&(_, why)| why)
}

/// The names of the tests in a folder, in order.
pub fn names(folder: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for file in std::fs::read_dir(folder)? {
        let name = file?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".data.onnx").map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// What goes in, and what should come out.
pub struct Values(OnnxModel);

impl Values {
    /// Those of a test in a folder.
    pub fn read(folder: &Path, name: &str) -> Result<Self, GraphError> {
        OnnxModel::read(&folder.join(format!("{name}.data.onnx"))).map(Self)
    }

    /// `input` or `output` of a number.
    pub fn get(&self, kind: &str, number: usize) -> &Array {
        let wanted = format!("{kind}{number}");
        self.0.constants().find(|(name, _)| *name == wanted).expect("each input and output has a value").1
    }
}

/// The elements one after another.
pub fn bytes(array: &Array) -> Vec<u8> {
    let mut bytes = vec![0; array.elements() * array.dtype.size().expect("no strings")];
    array.store_strided(array.dtype, &crate::plan::row_major(&array.dims), 0, &mut bytes);
    bytes
}

/// How something differs from what is expected, if it does. The tolerances are those of ONNX's own runner, and its
/// absolute one a little wider.
pub fn difference(found: &Array, expected: &Array) -> Option<String> {
    if found.dims != expected.dims {
        return Some(format!("it is {:?}, not {:?}", found.dims, expected.dims));
    }
    match (&found.data, &expected.data) {
        (Data::Float(found), Data::Float(expected)) => {
            let close = |a: f32, b: f32| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-5 + 1e-3 * b.abs();
            let (a, b) = found.iter().zip(expected).find(|&(&a, &b)| !close(a, b))?;
            Some(format!("{a} instead of {b}"))
        }
        (Data::Int(found), Data::Int(expected)) => {
            let (a, b) = found.iter().zip(expected).find(|(a, b)| a != b)?;
            Some(format!("{a} instead of {b}"))
        }
        _ => Some("another type".into()),
    }
}
