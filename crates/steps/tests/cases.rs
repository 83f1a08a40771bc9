//! Steps beside what Pillow, OpenCV, ONNX Runtime and tokenizers make of the same inputs (`scripts/step-cases.py`).

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use base::{DataType, TensorSpec};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use engine::Tensor;
use serde::Deserialize;
use std::io::Read as _;
use std::path::Path;
use steps::TensorStep;

#[derive(Deserialize)]
struct Cases {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    step: String,
    parameters: toml::Table,
    inputs: Vec<Encoded>,
    outputs: Vec<Encoded>,
    most: f64,
    mean: f64,
}

#[derive(Deserialize)]
struct Encoded {
    datatype: String,
    shape: Vec<i64>,
    data: String,
}

impl Encoded {
    fn tensor(&self) -> Tensor {
        let data = BASE64_STANDARD.decode(&self.data).unwrap().into();
        Tensor { datatype: DataType::from_name(&self.datatype).unwrap(), shape: self.shape.clone(), data }
    }
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases"))
}

fn cases() -> Vec<Case> {
    let mut text = String::new();
    let file = std::fs::File::open(folder().join("cases.json.gz")).unwrap();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
    serde_json::from_str::<Cases>(&text).unwrap().cases
}

/// What is wrong with a tensor, if it isn't what is expected.
fn difference(found: &Tensor, expected: &Tensor, most: f64, mean: f64) -> Option<String> {
    if (found.datatype, &found.shape) != (expected.datatype, &expected.shape) {
        let (datatype, shape) = (found.datatype, &found.shape);
        return Some(format!("{datatype} {shape:?} instead of {} {:?}", expected.datatype, expected.shape));
    }
    if most == 0.0 || !engine::is_real(found.datatype) && found.datatype != DataType::Uint8 {
        return (found.data != expected.data).then(|| "other bytes".into());
    }
    let numbers = |tensor: &Tensor| engine::numbers(tensor.datatype, &tensor.data).unwrap();
    let apart: Vec<f64> =
        numbers(found).iter().zip(numbers(expected)).map(|(one, other)| (one - other).abs()).collect();
    let furthest = apart.iter().copied().fold(0.0, f64::max);
    let average = apart.iter().sum::<f64>() / apart.len() as f64;
    (furthest > most || average > mean).then(|| format!("up to {furthest} apart, {average} on average"))
}

fn step(case: &Case) -> TensorStep {
    TensorStep::new(&case.step, &case.parameters, folder()).unwrap_or_else(|error| panic!("{}: {error}", case.name))
}

fn wanted(case: &Case) -> bool {
    cfg!(feature = "tokenizers") || case.step != "tokenize"
}

#[test]
fn steps_give_what_others_give() {
    let mut wrong = Vec::new();
    for case in cases().iter().filter(|case| wanted(case)) {
        let inputs: Vec<Tensor> = case.inputs.iter().map(Encoded::tensor).collect();
        let outputs = step(case).run(&inputs, 1 << 28).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        assert_eq!(outputs.len(), case.outputs.len(), "{}", case.name);
        for (found, expected) in outputs.iter().zip(&case.outputs) {
            if let Some(said) = difference(found, &expected.tensor(), case.most, case.mean) {
                wrong.push(format!("{}: {said}", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What a step says of shapes is true of what it gives, whichever of the dimensions are known.
#[test]
fn shapes_are_as_announced() {
    for case in cases().iter().filter(|case| wanted(case)) {
        let made = step(case);
        let inputs: Vec<Tensor> = case.inputs.iter().map(Encoded::tensor).collect();
        let outputs = made.run(&inputs, 1 << 28).unwrap();
        for open in 0..16u32 {
            let spec = |(name, tensor): (&&str, &Tensor)| {
                let dim = |(at, &dim): (usize, &i64)| if open >> at & 1 == 1 { -1 } else { dim };
                let dims = tensor.shape.iter().enumerate().map(dim).collect();
                TensorSpec { name: (*name).into(), datatype: tensor.datatype, dims }
            };
            let names = made.input_names().iter().chain(std::iter::repeat(made.input_names().last().unwrap()));
            let specs: Vec<TensorSpec> = names.zip(&inputs).map(spec).collect();
            let announced = match made.outputs(&specs) {
                Ok(announced) => announced,
                // Strings can't be joined in the middle, which only the shape says.
                Err(_) if case.name == "join texts" => continue,
                Err(error) => panic!("{} with {specs:?}: {error}", case.name),
            };
            assert_eq!(announced.len(), outputs.len());
            for (announced, output) in announced.iter().zip(&outputs) {
                assert_eq!(announced.datatype, output.datatype, "{}", case.name);
                let fits = announced.dims.len() == output.shape.len()
                    && announced.dims.iter().zip(&output.shape).all(|(&said, &is)| said < 0 || said == is);
                assert!(fits, "{}: {:?} was announced for {:?}", case.name, announced.dims, output.shape);
            }
        }
    }
}

/// With less memory than it needs, a step says so, and with all that it may take it takes no more.
#[test]
fn less_memory_is_a_sentence() {
    for case in cases().iter().filter(|case| wanted(case)) {
        let made = step(case);
        let inputs: Vec<Tensor> = case.inputs.iter().map(Encoded::tensor).collect();
        let large: usize = made.run(&inputs, 1 << 28).unwrap().iter().map(|output| output.data.len()).sum();
        let without_copy = made.run(&inputs, 0).is_ok();
        if !without_copy {
            let error = made.run(&inputs, large - 1).expect_err(&case.name);
            assert!(matches!(error, steps::StepError::TooLarge(_)), "{}: {error}", case.name);
        }
    }
}
