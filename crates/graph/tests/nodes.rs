//! The node tests of ONNX itself: what is computed as it should be, and what is refused and why, is a list in
//! `nodes.txt`. And cases of operators that these leave out, with what ONNX Runtime computes.
//!
//! `scripts/onnx-node-cases.py` writes the first to `.cache/onnx-nodes`, `scripts/operator-cases.py` the second to
//! `.cache/operator-cases`; `make test` calls both. After a change, `UPDATE_EXPECT=1 cargo nextest run -p graph --test
//! nodes` writes the list anew, for you to read.

use expect_test::expect_file;
use graph::array::Array;
use graph::cases::nodes::{Values, bytes, contested, difference, names};
use graph::reference::Reference;
use graph::{OnnxModel, Options, Precision, compile};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// The folder of some cases, and their names.
fn cases(variable: &str, usual: &str) -> (PathBuf, Vec<String>) {
    let folder = match std::env::var_os(variable) {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache").join(usual),
    };
    let missing = |_| panic!("{} is not there: scripts/setup tests writes it", folder.display());
    let names = names(&folder).unwrap_or_else(missing);
    (folder, names)
}

#[test]
fn every_node_test_has_the_known_outcome() {
    let (folder, names) = cases("PUNCTUAL_ONNX_NODES", "onnx-nodes");
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut list = String::new();
    for name in &names {
        let outcome = catch_unwind(AssertUnwindSafe(|| outcome(&folder, name)));
        let outcome = outcome.unwrap_or_else(|_| "WRONG: it panics".into());
        let outcome = match contested(name) {
            Some(why) if outcome.starts_with("WRONG: output") => format!("differs: {why}"),
            Some(_) => format!("WRONG: it is listed as contested, but is: {outcome}"),
            None => outcome,
        };
        let kind = outcome.split(':').next().unwrap();
        let kind = ["differs", "passes", "refused"].into_iter().find(|&known| known == kind).unwrap_or("wrong");
        *counts.entry(kind).or_default() += 1;
        list += &format!("{name} {outcome}\n");
    }
    let totals: Vec<_> = counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    expect_file!["nodes.txt"].assert_eq(&format!("# {}\n{list}", totals.join(", ")));
    assert_eq!(counts.get("wrong"), None, "what can't be computed rightly must be refused");
}

#[test]
fn operators_compute_what_onnx_runtime_does() {
    let (folder, names) = cases("PUNCTUAL_OPERATOR_CASES", "operator-cases");
    let outcomes = names.iter().map(|name| (name, outcome(&folder, name)));
    let others: Vec<_> = outcomes.filter(|(_, outcome)| outcome != "passes").collect();
    assert!(others.is_empty() && names.len() > 100, "{} of {}: {others:#?}", others.len(), names.len());
}

fn outcome(folder: &Path, name: &str) -> String {
    let model = OnnxModel::read(&folder.join(format!("{name}.onnx")));
    let plan = match model.and_then(|model| compile(&model, &Options::new(1, Precision::F32))) {
        Ok(plan) => plan,
        Err(error) => return format!("refused: {error}"),
    };
    let values = match Values::read(folder, name) {
        Ok(values) => values,
        Err(error) => return format!("refused: {error}"),
    };
    let inputs: Vec<_> = (0..plan.inputs.len()).map(|number| bytes(values.get("input", number))).collect();
    let outputs = Reference::new(&plan).run(&inputs.iter().map(Vec::as_slice).collect::<Vec<_>>());
    for (number, (output, port)) in outputs.iter().zip(&plan.outputs).enumerate() {
        let strides = graph::plan::row_major(&port.dims);
        let found = Array::load(port.dtype, &port.dims, &strides, 0, output);
        if let Some(difference) = difference(&found, values.get("output", number)) {
            return format!("WRONG: output {number}: {difference}");
        }
    }
    "passes".into()
}
