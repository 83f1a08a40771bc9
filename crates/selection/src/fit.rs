//! Whether members fit each other and the endpoint's file, and what the endpoint takes and gives.

use crate::judge::{Judge, Reads, put_score};
use crate::table::{CombineBy, DefaultElement, JudgedTable, PolicyTable};
use base::{DataType, ModelSignature, TensorSpec, element_count};
use std::collections::BTreeMap;

/// What follows from the members.
#[derive(Clone, PartialEq, Debug)]
pub struct Fit {
    /// What the endpoint takes and gives.
    pub signature: ModelSignature,
    /// By what answers are compared; `None` where the members' outputs don't say and nobody needs it.
    pub judge: Option<Judge>,
}

/// What an endpoint takes and gives, or what is wrong, a sentence each. `signatures` are those of the members in the
/// table's order.
pub fn fits(table: &PolicyTable, signatures: &[(&str, &ModelSignature)]) -> Result<Fit, Vec<String>> {
    let Some(((first, signature), others)) = signatures.split_first() else {
        return Err(vec!["the endpoint has no members".to_owned()]);
    };
    let mut joined = (*signature).clone();
    let mut mistakes = Vec::new();
    for (name, other) in others {
        let whose = Pair { first, name };
        whose.join("input", &mut joined.inputs, &other.inputs, &mut mistakes);
        whose.join("output", &mut joined.outputs, &other.outputs, &mut mistakes);
        if (joined.max_batch == 0) != (other.max_batch == 0) {
            let (with, without) = if joined.max_batch == 0 { (name, first) } else { (first, name) };
            mistakes.push(format!(
                "{with:?} computes batches and {without:?} doesn't (max_batch_size is 0): members must be alike"
            ));
        }
        joined.max_batch = joined.max_batch.min(other.max_batch);
    }
    let judge = judge(table, &joined).unwrap_or_else(|sentence| {
        mistakes.push(sentence);
        None
    });
    if mistakes.is_empty() { Ok(Fit { signature: joined, judge }) } else { Err(mistakes) }
}

struct Pair<'a> {
    first: &'a str,
    name: &'a str,
}

impl Pair<'_> {
    /// Narrows what all have in common by what one more has.
    fn join(&self, kind: &str, joined: &mut [TensorSpec], other: &[TensorSpec], mistakes: &mut Vec<String>) {
        let Self { first, name } = self;
        for spec in joined.iter_mut() {
            let Some(theirs) = other.iter().find(|theirs| theirs.name == spec.name) else {
                mistakes.push(format!(
                    "{name:?} has no {kind} {:?}, which {first:?} has: members must have the same",
                    spec.name
                ));
                continue;
            };
            if theirs.datatype != spec.datatype {
                let (ours, theirs) = (spec.datatype, theirs.datatype);
                mistakes.push(format!(
                    "{kind} {:?} is {ours} in {first:?} and {theirs} in {name:?}: members must have the same type",
                    spec.name
                ));
            }
            match common(&spec.dims, &theirs.dims) {
                Some(dims) => spec.dims = dims,
                None => mistakes.push(format!(
                    "{kind} {:?} has the shape {:?} in {first:?} and {:?} in {name:?}: members must have the same",
                    spec.name, spec.dims, theirs.dims
                )),
            }
        }
        for theirs in other.iter().filter(|theirs| !joined.iter().any(|spec| spec.name == theirs.name)) {
            mistakes.push(format!(
                "{first:?} has no {kind} {:?}, which {name:?} has: members must have the same",
                theirs.name
            ));
        }
    }
}

/// The dimensions that both take; `None` where there are none.
fn common(left: &[i64], right: &[i64]) -> Option<Vec<i64>> {
    let dim = |(&left, &right): (&i64, &i64)| match (left, right) {
        (-1, dim) | (dim, -1) => Some(dim),
        (left, right) => (left == right).then_some(left),
    };
    (left.len() == right.len()).then(|| left.iter().zip(right).map(dim).collect()).flatten()
}

/// By what answers are compared. Where the table needs none and the outputs don't say, there is none.
fn judge(table: &PolicyTable, signature: &ModelSignature) -> Result<Option<Judge>, String> {
    let nothing = JudgedTable::default();
    let written = table.judged().unwrap_or(&nothing);
    let found = judged(written, signature).and_then(|judge| suits(table, &judge, signature).map(|()| judge));
    let needed = matches!(table, PolicyTable::Exp4(_) | PolicyTable::Ensemble(_) | PolicyTable::Cascade(_));
    match found {
        Ok(judge) => Ok(Some(judge)),
        Err(sentence) if needed || *written != nothing => Err(sentence),
        Err(_) => Ok(None),
    }
}

fn judged(written: &JudgedTable, signature: &ModelSignature) -> Result<Judge, String> {
    let outputs = &signature.outputs;
    let names: Vec<&str> = outputs.iter().map(|output| &*output.name).collect();
    let output = match &written.output {
        Some(name) => names.iter().position(|known| known == name).ok_or_else(|| {
            format!("judged.output is {name:?}, which members don't have: they have {}", names.join(", "))
        })?,
        None if outputs.len() == 1 => 0,
        None => {
            let names = names.join(", ");
            return Err(format!(
                "members have the outputs {names}: say by which answers are compared, as in judged = {{ output = \"{}\" }}",
                outputs.first().map_or("", |output| &output.name)
            ));
        }
    };
    let spec = &outputs[output];
    let is_float = matches!(spec.datatype, DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64);
    let own = spec.dims.iter().skip(usize::from(signature.max_batch > 0));
    let last = own.last().copied();
    let reads = match (written.reads.as_deref(), is_float, last) {
        (Some(reads), ..) => reads,
        (None, false, _) => "labels",
        (None, true, Some(2..)) => "scores",
        (None, true, _) => {
            return Err(format!(
                "output {:?} could be scores or values: say which, as in judged = {{ reads = \"scores\" }}, or values with a scale",
                spec.name
            ));
        }
    };
    let (name, datatype) = (&spec.name, spec.datatype);
    let reads = match reads {
        "labels" if is_float => {
            return Err(format!(
                "output {name:?} is {datatype}, and labels are whole numbers or strings: judged.reads should be \"scores\" or \"values\""
            ));
        }
        "labels" => Reads::Labels,
        other if !is_float => {
            return Err(format!(
                "output {name:?} is {datatype}, and {other} are numbers with a fraction: judged.reads should be \"labels\""
            ));
        }
        "scores" if last.is_none() => {
            return Err(format!(
                "output {name:?} has one number, which can't be scores of classes: judged.reads should be \"values\""
            ));
        }
        "scores" => Reads::Scores,
        _ => match written.scale {
            Some(scale) => Reads::Values { scale },
            None => {
                return Err(format!(
                    "values of {name:?} need a scale: how far apart two must be to have nothing in common, as in judged = {{ reads = \"values\", scale = 10 }}"
                ));
            }
        },
    };
    let classes = match reads {
        Reads::Scores => last.and_then(|last| usize::try_from(last).ok()).filter(|&last| last > 0),
        Reads::Labels | Reads::Values { .. } => None,
    };
    Ok(Judge { output, reads, classes })
}

fn suits(table: &PolicyTable, judge: &Judge, signature: &ModelSignature) -> Result<(), String> {
    let name = &signature.outputs[judge.output].name;
    match (table.combine(), judge.reads) {
        (Some(CombineBy::Vote), Reads::Values { .. }) => {
            Err(format!("values can't be voted on, and {name:?} has values: write combine = \"average\""))
        }
        (Some(CombineBy::Average), Reads::Labels) => {
            Err(format!("labels have no average, and {name:?} has labels: write combine = \"vote\""))
        }
        (None, Reads::Labels | Reads::Values { .. }) if matches!(table, PolicyTable::Cascade(_)) => {
            Err(format!("a cascade goes by scores, and {name:?} has none: name an output that does in judged.output"))
        }
        _ => Ok(()),
    }
}

/// One row of an output: its dimensions without the batch's, and its elements.
pub type OutputRow = (Vec<i64>, Vec<u8>);

/// One row of each output, in the signature's order, as the file has them; or what is wrong, a sentence each.
pub fn default_outputs(
    signature: &ModelSignature,
    written: &BTreeMap<String, Vec<DefaultElement>>,
) -> Result<Vec<OutputRow>, Vec<String>> {
    let mut mistakes = Vec::new();
    let known = |name: &String| signature.outputs.iter().any(|spec| spec.name == *name);
    for name in written.keys().filter(|name| !known(name)) {
        mistakes.push(format!("the default has an output {name:?}, which members don't have"));
    }
    let mut rows = Vec::new();
    for spec in &signature.outputs {
        match written
            .get(&spec.name)
            .ok_or("is missing".to_owned())
            .and_then(|values| row(spec, signature.max_batch, values))
        {
            Ok(row) => rows.push(row),
            Err(why) => mistakes.push(format!("the default of output {:?} {why}", spec.name)),
        }
    }
    if mistakes.is_empty() { Ok(rows) } else { Err(mistakes) }
}

fn row(spec: &TensorSpec, max_batch: u32, values: &[DefaultElement]) -> Result<OutputRow, String> {
    let mut dims: Vec<i64> = spec.dims.iter().copied().skip(usize::from(max_batch > 0)).collect();
    // An output with one open dimension is as long as what is written.
    let open: Vec<usize> = (0..dims.len()).filter(|&dim| dims[dim] < 0).collect();
    if let [open] = open[..] {
        dims[open] = 1;
        let others = element_count(&dims).unwrap_or(0).max(1);
        dims[open] = i64::try_from(values.len() / others).unwrap_or(0);
    }
    let wanted = element_count(&dims).ok_or("can't be given: more than one of its dimensions is open")?;
    if values.len() != wanted {
        return Err(format!("has {} values: one row has {wanted}", values.len()));
    }
    let mut data = Vec::new();
    for value in values {
        let wrong = || format!("has {value:?}, which isn't {}", spec.datatype);
        let number = match value {
            DefaultElement::Flag(flag) if spec.datatype == DataType::Bool => f64::from(u8::from(*flag)),
            DefaultElement::Whole(whole) if *whole as f64 as i64 == *whole => *whole as f64,
            DefaultElement::Number(number) => *number,
            DefaultElement::Text(text) if spec.datatype == DataType::Bytes => {
                data.extend((text.len() as u32).to_le_bytes());
                data.extend(text.as_bytes());
                continue;
            }
            DefaultElement::Flag(_) | DefaultElement::Whole(_) | DefaultElement::Text(_) => return Err(wrong()),
        };
        match spec.datatype {
            DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 => {
                put_score(spec.datatype, number, &mut data);
            }
            datatype => data.extend(datatype.element(number).ok_or_else(wrong)?),
        }
    }
    Ok((dims, data))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn spec(name: &str, datatype: DataType, dims: &[i64]) -> TensorSpec {
        TensorSpec { name: name.into(), datatype, dims: dims.into() }
    }

    fn classifier(classes: i64) -> ModelSignature {
        ModelSignature {
            inputs: vec![spec("image", DataType::Fp32, &[-1, 3, 8, 8])],
            outputs: vec![spec("scores", DataType::Fp32, &[-1, classes])],
            max_batch: 8,
        }
    }

    fn table(text: &str) -> PolicyTable {
        let mut file: toml::Table = toml::from_str(text).unwrap();
        let Some(toml::Value::String(kind)) = file.remove("kind") else { panic!("{text}") };
        PolicyTable::read(&kind, file).unwrap().unwrap()
    }

    fn ensemble(more: &str) -> PolicyTable {
        table(&format!("kind = \"ensemble\"\nmembers = [{{ model = \"a\" }}, {{ model = \"b\" }}]\n{more}"))
    }

    #[track_caller]
    fn wrong(table: &PolicyTable, signatures: [&ModelSignature; 2], expected: Expect) {
        let named: Vec<_> = ["a", "b"].into_iter().zip(signatures).collect();
        expected.assert_eq(&fits(table, &named).expect_err("it doesn't fit").join("\n"));
    }

    #[test]
    fn members_that_fit_make_one_signature() {
        let (mut left, mut right) = (classifier(10), classifier(-1));
        left.inputs[0].dims[2] = -1;
        right.max_batch = 4;
        let fit = fits(&ensemble(""), &[("a", &left), ("b", &right)]).unwrap();
        assert_eq!(fit.signature, ModelSignature { max_batch: 4, ..classifier(10) });
        assert_eq!(fit.judge, Some(Judge { output: 0, reads: Reads::Scores, classes: Some(10) }));
    }

    #[test]
    fn members_that_differ_are_said_to() {
        let mut other = classifier(100);
        other.inputs[0].name = "picture".into();
        other.max_batch = 0;
        wrong(
            &ensemble(""),
            [&classifier(10), &other],
            expect![[r#"
            "b" has no input "image", which "a" has: members must have the same
            "a" has no input "picture", which "b" has: members must have the same
            output "scores" has the shape [-1, 10] in "a" and [-1, 100] in "b": members must have the same
            "a" computes batches and "b" doesn't (max_batch_size is 0): members must be alike"#]],
        );
        let mut other = classifier(10);
        other.outputs[0].datatype = DataType::Int64;
        wrong(
            &ensemble(""),
            [&classifier(10), &other],
            expect![[r#"output "scores" is FP32 in "a" and INT64 in "b": members must have the same type"#]],
        );
    }

    #[test]
    fn what_answers_are_compared_by_is_said_or_seen() {
        let (mut two, mut labels, mut value) = (classifier(10), classifier(10), classifier(10));
        two.outputs.push(spec("box", DataType::Fp32, &[-1, 4]));
        labels.outputs[0] = spec("label", DataType::Bytes, &[-1, 1]);
        value.outputs[0] = spec("price", DataType::Fp32, &[-1, 1]);
        wrong(
            &ensemble(""),
            [&two, &two],
            expect![[
                r#"members have the outputs scores, box: say by which answers are compared, as in judged = { output = "scores" }"#
            ]],
        );
        wrong(
            &ensemble("judged = { output = \"boxes\" }"),
            [&two, &two],
            expect![[r#"judged.output is "boxes", which members don't have: they have scores, box"#]],
        );
        wrong(
            &ensemble("combine = \"average\""),
            [&labels, &labels],
            expect![[r#"labels have no average, and "label" has labels: write combine = "vote""#]],
        );
        wrong(
            &ensemble("judged = { reads = \"scores\" }"),
            [&labels, &labels],
            expect![[
                r#"output "label" is BYTES, and scores are numbers with a fraction: judged.reads should be "labels""#
            ]],
        );
        wrong(
            &ensemble(""),
            [&value, &value],
            expect![[
                r#"output "price" could be scores or values: say which, as in judged = { reads = "scores" }, or values with a scale"#
            ]],
        );
        wrong(
            &ensemble("judged = { reads = \"values\" }"),
            [&value, &value],
            expect![[
                r#"values of "price" need a scale: how far apart two must be to have nothing in common, as in judged = { reads = "values", scale = 10 }"#
            ]],
        );
        wrong(
            &ensemble("judged = { reads = \"values\", scale = 3 }"),
            [&value, &value],
            expect![[r#"values can't be voted on, and "price" has values: write combine = "average""#]],
        );
        wrong(
            &ensemble("judged = { reads = \"labels\" }"),
            [&value, &value],
            expect![[
                r#"output "price" is FP32, and labels are whole numbers or strings: judged.reads should be "scores" or "values""#
            ]],
        );
        let cascade = table("kind = \"cascade\"\nstages = [{ model = \"a\", enough = 0.5 }, { model = \"b\" }]");
        wrong(
            &cascade,
            [&labels, &labels],
            expect![[r#"a cascade goes by scores, and "label" has none: name an output that does in judged.output"#]],
        );
        let exp3 = table("kind = \"exp3\"\nmembers = [\"a\", \"b\"]");
        assert_eq!(fits(&exp3, &[("a", &two), ("b", &two)]).unwrap().judge, None, "losses do without");
    }

    #[test]
    fn defaults_are_one_row_of_every_output() {
        let mut signature = classifier(3);
        signature.outputs.push(spec("label", DataType::Bytes, &[-1, 1]));
        signature.outputs.push(spec("lengths", DataType::Int32, &[-1, -1]));
        let read = |text: &str| default_outputs(&signature, &toml::from_str(text).unwrap());
        let rows = read("scores = [1, 0.5, 0]\nlabel = [\"none\"]\nlengths = []").unwrap();
        assert_eq!(rows[0], (vec![3], [1.0_f32, 0.5, 0.0].iter().flat_map(|v| v.to_le_bytes()).collect()));
        assert_eq!(rows[1], (vec![1], b"\x04\0\0\0none".to_vec()));
        assert_eq!(rows[2], (vec![0], vec![]));
        let mistakes = read("scores = [1, 2]\nlabel = [3]\nother = [1]").unwrap_err();
        expect![[r#"
            the default has an output "other", which members don't have
            the default of output "scores" has 2 values: one row has 3
            the default of output "label" has Whole(3), which isn't BYTES
            the default of output "lengths" is missing"#]]
        .assert_eq(&mistakes.join("\n"));
    }
}
