//! Whether a request fits its model: names, types, shapes, rows. Its tensors are consistent in themselves already.

use crate::classify;
use base::{ModelSignature, TensorSpec, element_count};
use controller::Tensor;
use wire::{Fault, InferInput, InferRequest, Region, RequestedOutput};

/// A request that fits its model.
#[derive(Debug, PartialEq)]
pub(crate) struct Checked {
    /// In the signature's order.
    pub(crate) inputs: Vec<Tensor>,
    /// Rows of the batch dimension; 1 where the model has none.
    pub(crate) rows: u32,
    /// How large it is: the elements in a row of the largest input of which the model leaves the size open; `None`
    /// where it leaves none open.
    pub(crate) size: Option<u32>,
    /// The outputs that are wanted.
    pub(crate) outputs: Vec<WantedOutput>,
}

/// An output that is wanted, and how.
#[derive(Debug, PartialEq)]
pub(crate) struct WantedOutput {
    /// Its position in the signature.
    pub(crate) position: usize,
    /// Whether as bytes.
    pub(crate) binary: bool,
    /// How many of its highest values are wanted instead of all; 0 for all.
    pub(crate) classes: u32,
    /// Where it is to be written to instead of into the answer.
    pub(crate) region: Option<Box<Region>>,
}

/// Checks inputs and requested outputs against what the model takes and gives: also that no input whose size it leaves
/// open has more than `max_elements`. The inputs are moved out of the request.
pub(crate) fn check(
    signature: &ModelSignature,
    max_elements: u64,
    request: &mut InferRequest<'_>,
) -> Result<Checked, Fault> {
    let outputs = wanted_outputs(signature, std::mem::take(&mut request.outputs), request.parameters.binary_outputs)?;
    let Fitting { inputs, rows, size } = fit(signature, max_elements, request.inputs.drain(..))?;
    Ok(Checked { inputs, rows, size, outputs })
}

/// Inputs that fit their model.
#[derive(Debug)]
pub(crate) struct Fitting {
    /// In the signature's order.
    pub(crate) inputs: Vec<Tensor>,
    /// As in [`Checked`].
    pub(crate) rows: u32,
    /// As in [`Checked`].
    pub(crate) size: Option<u32>,
}

/// Checks inputs against what the model takes.
pub(crate) fn fit<'i>(
    signature: &ModelSignature,
    max_elements: u64,
    given: impl Iterator<Item = InferInput<'i>>,
) -> Result<Fitting, Fault> {
    let mut slots: Vec<Option<Tensor>> = signature.inputs.iter().map(|_| None).collect();
    let mut rows: Option<u32> = None;
    let mut size: Option<u32> = None;
    for input in given {
        let position = position_of(&signature.inputs, &input.name).ok_or_else(|| {
            Fault::bad(format!("the model has no input {:?}: it takes {}", input.name, names(&signature.inputs)))
        })?;
        let spec = &signature.inputs[position];
        let count = check_input(spec, signature.max_batch, &input)?;
        if *rows.get_or_insert(count) != count {
            return Err(Fault::bad(format!(
                "input {:?} has {count} rows, but another input has {}: the first dimension is the batch, the same in all inputs",
                input.name,
                rows.unwrap_or(count)
            )));
        }
        if spec.is_open(signature.max_batch) {
            check_size(&input, max_elements)?;
            size = size.max(Some(row_size(signature.max_batch, &input.shape)));
        }
        let shape = if spec.dims.is_empty() { Vec::new() } else { input.shape };
        let tensor = Tensor { datatype: input.datatype, shape, data: input.data };
        if slots[position].replace(tensor).is_some() {
            return Err(Fault::bad(format!("input {:?} is given twice", input.name)));
        }
    }
    if let Some(missing) = slots.iter().position(Option::is_none) {
        return Err(Fault::bad(format!("input {:?} is missing", signature.inputs[missing].name)));
    }
    Ok(Fitting { inputs: slots.into_iter().flatten().collect(), rows: rows.unwrap_or(1), size })
}

/// Adds what a request leaves out and the model has values for; in the signature's order.
pub(crate) fn add_defaults(signature: &ModelSignature, defaults: &[Option<Tensor>], inputs: &mut Vec<InferInput<'_>>) {
    for (spec, default) in signature.inputs.iter().zip(defaults) {
        if let Some(Tensor { datatype, shape, data }) = default.clone()
            && inputs.iter().all(|input| input.name != spec.name)
        {
            inputs.push(InferInput { name: spec.name.clone().into(), datatype, shape, data, region: None });
        }
    }
}

/// The elements in a row of an input that fits its specification.
fn row_size(max_batch: u32, shape: &[i64]) -> u32 {
    let elements = element_count(&shape[usize::from(max_batch > 0)..]);
    elements.and_then(|count| u32::try_from(count).ok()).unwrap_or(u32::MAX)
}

/// What computing takes grows with the input, many times over: an open dimension must not take all memory.
fn check_size(input: &InferInput<'_>, max_elements: u64) -> Result<(), Fault> {
    let elements = element_count(&input.shape).and_then(|count| u64::try_from(count).ok());
    if elements.is_some_and(|elements| elements <= max_elements) {
        return Ok(());
    }
    Err(Fault::bad(format!(
        "input {:?} has the shape {:?}, more elements than the {max_elements} that the model takes in one request: send less, or set the parameter max_elements in its configuration",
        input.name, input.shape
    )))
}

/// The rows of an input that fits its specification.
fn check_input(spec: &TensorSpec, max_batch: u32, input: &InferInput<'_>) -> Result<u32, Fault> {
    let name = &spec.name;
    if input.datatype != spec.datatype {
        return Err(Fault::bad(format!("input {name:?} is {}, but the model takes {}", input.datatype, spec.datatype)));
    }
    let batched = max_batch > 0;
    let fits = |(position, (&given, &wanted)): (usize, (&i64, &i64))| {
        wanted < 0 || given == wanted || (batched && position == 0)
    };
    // Triton knows no tensors without dimensions: its clients send one element.
    let is_scalar = spec.dims.is_empty() && input.shape.iter().all(|&dim| dim == 1);
    let is_alike = input.shape.len() == spec.dims.len() && input.shape.iter().zip(&spec.dims).enumerate().all(fits);
    if !is_alike && !is_scalar {
        return Err(Fault::bad(format!(
            "input {name:?} has the shape {:?}, but the model takes {}",
            input.shape,
            shape_sentence(spec, max_batch)
        )));
    }
    if !batched {
        return Ok(1);
    }
    let rows = input.shape.first().copied().unwrap_or(0);
    match u32::try_from(rows) {
        Ok(rows) if (1..=max_batch).contains(&rows) => Ok(rows),
        _ => Err(Fault::bad(format!(
            "input {name:?} has {rows} rows, but the model takes 1 to {max_batch} in one request"
        ))),
    }
}

fn shape_sentence(spec: &TensorSpec, max_batch: u32) -> String {
    let dim = |(position, &dim): (usize, &i64)| match dim {
        _ if max_batch > 0 && position == 0 => format!("1 to {max_batch}"),
        dim if dim < 0 => "any".to_owned(),
        dim => dim.to_string(),
    };
    let dims: Vec<String> = spec.dims.iter().enumerate().map(dim).collect();
    format!("[{}]", dims.join(", "))
}

fn wanted_outputs(
    signature: &ModelSignature,
    requested: Vec<RequestedOutput<'_>>,
    binary: bool,
) -> Result<Vec<WantedOutput>, Fault> {
    let mut wanted: Vec<WantedOutput> = Vec::with_capacity(signature.outputs.len());
    if requested.is_empty() {
        let plain = |position| WantedOutput { position, binary, classes: 0, region: None };
        wanted.extend((0..signature.outputs.len()).map(plain));
    }
    for output in requested {
        let position = position_of(&signature.outputs, &output.name).ok_or_else(|| {
            Fault::bad(format!("the model has no output {:?}: it gives {}", output.name, names(&signature.outputs)))
        })?;
        if wanted.iter().any(|other| other.position == position) {
            return Err(Fault::bad(format!("output {:?} is asked for twice", output.name)));
        }
        let RequestedOutput { binary, classes, region, .. } = output;
        wanted.push(WantedOutput { position, binary, classes, region });
    }
    for wanted in &wanted {
        check_form(&signature.outputs[wanted.position], wanted)?;
    }
    Ok(wanted)
}

/// Whether an output has the form in which it is wanted.
fn check_form(spec: &TensorSpec, wanted: &WantedOutput) -> Result<(), Fault> {
    if wanted.classes == 0 {
        return wire::json::check_output(&spec.name, spec.datatype, wanted.binary || wanted.region.is_some());
    }
    if wanted.region.is_some() {
        return Err(Fault::bad(format!(
            "output {:?} is wanted as a classification, which comes with the answer: ask for it without shared memory",
            spec.name
        )));
    }
    classify::check_type(&spec.name, spec.datatype)
}

fn position_of(specs: &[TensorSpec], name: &str) -> Option<usize> {
    specs.iter().position(|spec| spec.name == name)
}

fn names(specs: &[TensorSpec]) -> String {
    let names: Vec<String> = specs.iter().map(|spec| format!("{:?}", spec.name)).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::DataType;
    use bytes::Bytes;
    use expect_test::expect;
    use wire::Parameters;

    fn spec(name: &str, datatype: DataType, dims: &[i64]) -> TensorSpec {
        TensorSpec { name: name.into(), datatype, dims: dims.into() }
    }

    fn signature(max_batch: u32) -> ModelSignature {
        ModelSignature {
            inputs: vec![spec("a", DataType::Fp32, &[-1, 2]), spec("b", DataType::Int64, &[-1, -1])],
            outputs: vec![spec("y", DataType::Fp32, &[-1]), spec("half", DataType::Fp16, &[-1])],
            max_batch,
        }
    }

    fn input(name: &'static str, datatype: DataType, shape: &[i64]) -> InferInput<'static> {
        let bytes = shape.iter().product::<i64>() as usize * datatype.size().unwrap();
        InferInput { name: name.into(), datatype, shape: shape.into(), data: Bytes::from(vec![0; bytes]), region: None }
    }

    fn output(name: &'static str) -> RequestedOutput<'static> {
        RequestedOutput { name: name.into(), binary: true, classes: 0, region: None }
    }

    fn plain(position: usize) -> WantedOutput {
        WantedOutput { position, binary: true, classes: 0, region: None }
    }

    fn request(inputs: Vec<InferInput<'static>>, outputs: &[&'static str]) -> InferRequest<'static> {
        let outputs = outputs.iter().map(|&name| output(name)).collect();
        InferRequest {
            id: "".into(),
            application: "".into(),
            parameters: Parameters { binary_outputs: true, ..Parameters::default() },
            sequence: None,
            own: Vec::new(),
            inputs,
            outputs,
        }
    }

    fn sentence(max_batch: u32, inputs: Vec<InferInput<'static>>, outputs: &[&'static str]) -> String {
        refused(&signature(max_batch), request(inputs, outputs))
    }

    fn refused(signature: &ModelSignature, mut request: InferRequest<'_>) -> String {
        check(signature, u64::MAX, &mut request).unwrap_err().to_string()
    }

    #[test]
    fn inputs_are_put_in_the_models_order() {
        let inputs = vec![input("b", DataType::Int64, &[3, 5]), input("a", DataType::Fp32, &[3, 2])];
        let checked = check(&signature(4), u64::MAX, &mut request(inputs, &["half"])).unwrap();
        assert_eq!((checked.rows, checked.size), (3, Some(5)), "only what is open says how large it is");
        assert_eq!(checked.inputs.iter().map(|t| t.datatype).collect::<Vec<_>>(), [DataType::Fp32, DataType::Int64]);
        assert_eq!(checked.outputs, [plain(1)]);
    }

    #[test]
    fn without_a_batch_dimension_rows_are_one() {
        let inputs = vec![input("b", DataType::Int64, &[9, 5]), input("a", DataType::Fp32, &[3, 2])];
        let checked = check(&signature(0), u64::MAX, &mut request(inputs, &[])).unwrap();
        assert_eq!((checked.rows, checked.size), (1, Some(45)));
        assert_eq!(checked.outputs, [plain(0), plain(1)]);
    }

    #[test]
    fn what_has_a_value_may_be_left_out() {
        let tensor = |byte| Tensor { datatype: DataType::Int64, shape: vec![1, 1], data: vec![byte; 8].into() };
        let defaults = [None, Some(tensor(7))];
        let b = |inputs| {
            let mut request = request(inputs, &[]);
            add_defaults(&signature(0), &defaults, &mut request.inputs);
            check(&signature(0), u64::MAX, &mut request)
                .map(|checked| checked.inputs[1].data[0])
                .map_err(|fault| fault.to_string())
        };
        let a = || input("a", DataType::Fp32, &[1, 2]);
        assert_eq!(b(vec![a()]), Ok(7));
        assert_eq!(b(vec![a(), input("b", DataType::Int64, &[1, 1])]), Ok(0), "what is given counts");
        assert_eq!(b(vec![]), Err("input \"a\" is missing".into()));
    }

    #[test]
    fn a_scalar_may_come_as_one_element() {
        let signature = ModelSignature { inputs: vec![spec("x", DataType::Fp32, &[])], outputs: vec![], max_batch: 0 };
        for shape in [&[][..], &[1], &[1, 1]] {
            let checked =
                check(&signature, u64::MAX, &mut request(vec![input("x", DataType::Fp32, shape)], &[])).unwrap();
            assert_eq!(checked.inputs[0].shape, [0; 0], "the model has it without dimensions");
        }
        let two = check(&signature, u64::MAX, &mut request(vec![input("x", DataType::Fp32, &[2])], &[])).unwrap_err();
        expect![[r#"input "x" has the shape [2], but the model takes []"#]].assert_eq(&two.to_string());
    }

    #[test]
    fn sizes_are_known_where_the_model_leaves_them_open() {
        let size = |dims: &[i64], max_batch, shape: &[i64]| {
            let (inputs, outputs) = (vec![spec("x", DataType::Uint8, dims)], Vec::new());
            let asked = &mut request(vec![input("x", DataType::Uint8, shape)], &[]);
            check(&ModelSignature { inputs, outputs, max_batch }, u64::MAX, asked).unwrap().size
        };
        assert_eq!(size(&[-1, 3, 24, 24], 8, &[2, 3, 24, 24]), None);
        assert_eq!(size(&[-1, 3, -1, -1], 8, &[2, 3, 10, 5]), Some(150));
        assert_eq!(size(&[-1, 4], 0, &[7, 4]), Some(28), "without a batch dimension the first one counts");
        assert_eq!(size(&[3, 4], 0, &[3, 4]), None);
        assert_eq!(size(&[-1], 8, &[2]), None);
        assert_eq!(row_size(8, &[1, i64::MAX, 1 << 20]), u32::MAX);
    }

    #[test]
    fn an_open_dimension_has_a_bound() {
        let said = |max_batch, max_elements, b: &[i64]| {
            let a = input("a", DataType::Fp32, &[b[0], 2]);
            let inputs = vec![a, InferInput { data: Bytes::new(), ..input("b", DataType::Int64, &[0, 0]) }];
            let mut asked = request(inputs, &[]);
            asked.inputs[1].shape = b.to_vec();
            check(&signature(max_batch), max_elements, &mut asked).err().map(|fault| fault.to_string())
        };
        assert_eq!(said(4, 15, &[3, 5]), None);
        expect![[r#"input "b" has the shape [3, 5], more elements than the 14 that the model takes in one request: send less, or set the parameter max_elements in its configuration"#]]
            .assert_eq(&said(4, 14, &[3, 5]).unwrap());
        assert_eq!(said(4, 3, &[3, 1]), None, "an input of a fixed size is as large as its rows make it");
        assert!(said(4, u64::MAX, &[4, i64::MAX]).is_some(), "a number of elements that no type holds");
    }

    #[test]
    fn what_does_not_fit_is_a_sentence() {
        let a = |shape: &[i64]| input("a", DataType::Fp32, shape);
        let b = |shape: &[i64]| input("b", DataType::Int64, shape);
        expect![[r#"the model has no input "c": it takes "a", "b""#]].assert_eq(&sentence(
            4,
            vec![input("c", DataType::Fp32, &[1])],
            &[],
        ));
        expect![[r#"input "b" is missing"#]].assert_eq(&sentence(4, vec![a(&[1, 2])], &[]));
        expect![[r#"input "a" is given twice"#]].assert_eq(&sentence(4, vec![a(&[1, 2]), a(&[1, 2])], &[]));
        expect![[r#"input "a" is FP64, but the model takes FP32"#]].assert_eq(&sentence(
            4,
            vec![input("a", DataType::Fp64, &[1, 2])],
            &[],
        ));
        expect![[r#"input "a" has the shape [1, 3], but the model takes [1 to 4, 2]"#]].assert_eq(&sentence(
            4,
            vec![a(&[1, 3])],
            &[],
        ));
        expect![[r#"input "a" has the shape [2], but the model takes [any, 2]"#]].assert_eq(&sentence(
            0,
            vec![a(&[2])],
            &[],
        ));
        expect![[r#"input "a" has 5 rows, but the model takes 1 to 4 in one request"#]].assert_eq(&sentence(
            4,
            vec![a(&[5, 2])],
            &[],
        ));
        expect![[r#"input "a" has 0 rows, but the model takes 1 to 4 in one request"#]].assert_eq(&sentence(
            4,
            vec![a(&[0, 2])],
            &[],
        ));
        expect![[
            r#"input "b" has 2 rows, but another input has 1: the first dimension is the batch, the same in all inputs"#
        ]]
        .assert_eq(&sentence(4, vec![a(&[1, 2]), b(&[2, 1])], &[]));
        expect![[r#"the model has no output "z": it gives "y", "half""#]].assert_eq(&sentence(4, vec![], &["z"]));
        expect![[r#"output "y" is asked for twice"#]].assert_eq(&sentence(4, vec![], &["y", "y"]));
    }

    #[test]
    fn classifications_have_numbers_and_come_with_the_answer() {
        let mut asked = request(vec![], &["half"]);
        asked.outputs[0].classes = 2;
        expect![[r#"output "half" is FP16, which can't be classified: ask for the tensor"#]]
            .assert_eq(&refused(&signature(4), asked));
        let mut asked = request(vec![], &["y"]);
        asked.outputs[0].classes = 2;
        asked.outputs[0].region = Some(Box::new(Region { name: "r".into(), offset: 0, byte_size: 1 }));
        expect![[
            r#"output "y" is wanted as a classification, which comes with the answer: ask for it without shared memory"#
        ]]
        .assert_eq(&refused(&signature(4), asked));
    }

    #[test]
    fn half_precision_as_json_is_refused_before_anything_is_computed() {
        let mut asked = request(vec![], &["half"]);
        asked.outputs[0].binary = false;
        expect![[r#"output "half" is FP16, which JSON has no form for: ask for it with binary_data"#]]
            .assert_eq(&refused(&signature(4), asked));
    }
}
