//! What the tests share: the engine, the models, and what ONNX Runtime's Python package computed with them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "each test file uses a part of it")]

use base::DataType;
pub use engine::Tensor;
use engine::{Engine, EngineError, Loaded, ModelSource, Prepared};
use engine_ort::{OrtEngine, OrtOptions};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

pub static ENGINE: LazyLock<OrtEngine> = LazyLock::new(|| OrtEngine::new(&OrtOptions::default()).unwrap());

pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// A sample model, or one that was generated for tests.
pub fn model_file(name: &str) -> PathBuf {
    let places = ["models", ".cache/test-models"].map(|folder| root().join(folder).join(name).join("1/model.onnx"));
    let found = places.into_iter().find(|path| path.exists());
    found.unwrap_or_else(|| panic!("there is no model {name}: run scripts/setup tests"))
}

pub fn source(file: PathBuf, cache: Option<&Path>) -> ModelSource {
    ModelSource { name: "test".into(), file, cache: cache.map(Path::to_owned), ..ModelSource::default() }
}

pub fn prepare(name: &str, cache: Option<&Path>) -> Result<Arc<dyn Prepared>, EngineError> {
    ENGINE.prepare(&source(model_file(name), cache))
}

pub fn execute(loaded: &mut dyn Loaded, mut inputs: &[Tensor]) -> Result<Vec<Tensor>, EngineError> {
    let mut outputs = Vec::new();
    engine::execute(loaded, &mut inputs, &mut |index, view| {
        assert_eq!(index, outputs.len());
        let (datatype, shape) = (view.datatype, view.shape.to_vec());
        outputs.push(Tensor { datatype, shape, data: view.data.to_vec().into() });
    })?;
    Ok(outputs)
}

/// Inputs and expected outputs, as `scripts/expected-outputs.py` writes them.
pub struct Case {
    pub model: String,
    pub batch: u32,
    pub inputs: Vec<Tensor>,
    pub outputs: Vec<Tensor>,
}

impl Case {
    pub fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        let mut data = &bytes[8 + length..];
        let mut side = |name: &str| -> Vec<Tensor> {
            let entries = header[name].as_array().unwrap();
            let tensor = |entry: &serde_json::Value| {
                let (tensor, rest) = data.split_at(entry["bytes"].as_u64().unwrap() as usize);
                data = rest;
                Tensor {
                    datatype: DataType::from_name(entry["datatype"].as_str().unwrap()).unwrap(),
                    shape: entry["shape"].as_array().unwrap().iter().map(|dim| dim.as_i64().unwrap()).collect(),
                    data: tensor.to_vec().into(),
                }
            };
            entries.iter().map(tensor).collect()
        };
        let (inputs, outputs) = (side("inputs"), side("outputs"));
        let model = header["model"].as_str().unwrap().to_owned();
        Self { model, batch: header["batch"].as_u64().unwrap() as u32, inputs, outputs }
    }

    /// All cases of a model; at least one.
    pub fn of(model: &str) -> Vec<Self> {
        let folder = root().join(".cache/expected");
        let files = folder.read_dir().into_iter().flatten().map(|file| file.unwrap().path());
        let mut cases: Vec<Self> = files
            .filter(|path| {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                name.strip_prefix(model).is_some_and(|rest| {
                    rest.strip_prefix('-')
                        .and_then(|rest| rest.strip_suffix(".case"))
                        .is_some_and(|batch| batch.parse::<u32>().is_ok())
                })
            })
            .map(|path| Self::read(&path))
            .collect();
        assert!(!cases.is_empty(), "nothing is expected of {model}: run scripts/setup tests");
        cases.sort_by_key(|case| case.batch);
        cases
    }
}

/// Fails unless both are equal, floats within 1e-5 (relative, and absolute near zero).
pub fn assert_close(found: &[Tensor], expected: &[Tensor], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!((found.datatype, &found.shape), (expected.datatype, &expected.shape), "{what}");
        if found.datatype != DataType::Fp32 {
            assert_eq!(found.data, expected.data, "{what}");
            continue;
        }
        let floats = |tensor: &Tensor| -> Vec<f32> {
            tensor.data.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
        };
        for (at, (a, b)) in floats(found).into_iter().zip(floats(expected)).enumerate() {
            assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{what}: element {at} is {a}, expected {b}");
        }
    }
}
