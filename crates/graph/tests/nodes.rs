//! The node tests of ONNX itself: what is computed as it should be, and what is refused and why, is a list in `nodes.txt`.
//!
//! `scripts/onnx-node-cases.py` writes them to `.cache/onnx-nodes`; `make test` calls it. After a change, `UPDATE_EXPECT=1 cargo nextest run -p graph --test nodes` writes the list anew, for you to read.

use expect_test::expect_file;
use graph::array::{Array, Data};
use graph::reference::Reference;
use graph::{Model, Options, Precision, compile};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    match std::env::var_os("PUNCTUAL_ONNX_NODES") {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/onnx-nodes"),
    }
}

#[test]
fn every_node_test_has_the_known_outcome() {
    let missing = || format!("{} is not there: scripts/setup-tests.sh writes it", folder().display());
    let files = std::fs::read_dir(folder()).unwrap_or_else(|_| panic!("{}", missing()));
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter_map(|name| Some(name.strip_suffix(".data.onnx")?.to_owned())).collect();
    names.sort();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut list = String::new();
    for name in &names {
        let outcome = catch_unwind(AssertUnwindSafe(|| outcome(name))).unwrap_or_else(|_| "WRONG: it panics".into());
        let kind = outcome.split(':').next().unwrap();
        let kind = ["passes", "refused"].into_iter().find(|&known| known == kind).unwrap_or("wrong");
        *counts.entry(kind).or_default() += 1;
        list += &format!("{name} {outcome}\n");
    }
    let totals: Vec<_> = counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    expect_file!["nodes.txt"].assert_eq(&format!("# {}\n{list}", totals.join(", ")));
    assert_eq!(counts.get("wrong"), None, "what can't be computed rightly must be refused");
}

fn outcome(name: &str) -> String {
    let read = |suffix: &str| Model::read(&folder().join(format!("{name}{suffix}.onnx")));
    let plan = match read("").and_then(|model| compile(&model, &Options::new(1, Precision::F32))) {
        Ok(plan) => plan,
        Err(error) => return format!("refused: {error}"),
    };
    let data = match read(".data") {
        Ok(data) => data,
        Err(error) => return format!("refused: {error}"),
    };
    let named = |name: String| data.constants().find(|(other, _)| *other == name).map(|(_, array)| array);
    let inputs: Vec<_> = (0..plan.inputs.len())
        .map(|position| named(format!("input{position}")).expect("each input has a value"))
        .collect();
    let inputs: Vec<_> = inputs.iter().map(|array| bytes(array)).collect();
    let outputs = Reference::new(&plan).run(&inputs.iter().map(Vec::as_slice).collect::<Vec<_>>());
    for (position, output) in outputs.iter().enumerate() {
        let expected = named(format!("output{position}")).expect("each output has a value");
        let port = &plan.outputs[position];
        if port.dims != expected.dims {
            return format!("WRONG: output {position} is {:?}, not {:?}", port.dims, expected.dims);
        }
        let strides = graph::plan::row_major(&port.dims);
        let found = Array::load(port.dtype, &port.dims, &strides, 0, output);
        if let Some(difference) = difference(&found, expected) {
            return format!("WRONG: output {position}: {difference}");
        }
    }
    "passes".into()
}

fn bytes(array: &Array) -> Vec<u8> {
    let mut bytes = vec![0; array.elements() * array.dtype.size().expect("no strings")];
    array.store_strided(array.dtype, &graph::plan::row_major(&array.dims), 0, &mut bytes);
    bytes
}

/// The tolerances are those of ONNX's own runner, and its absolute one a little wider.
fn difference(found: &Array, expected: &Array) -> Option<String> {
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
