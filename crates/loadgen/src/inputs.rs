//! Inputs of a model's shape, and the messages that carry them.

use crate::plan::{ClassPlan, LoadPlan};
use base::{DataType, element_count};
use bytes::Bytes;
use serde_json::json;
use wire::proto::infer_parameter::ParameterChoice;
use wire::proto::model_infer_request::InferInputTensor;
use wire::proto::{InferParameter, ModelInferRequest};
use workload::Random;

/// More than this isn't one request.
const MAX_BYTES: usize = 1 << 30;

/// An input as the server describes it: -1 where any size goes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct InputSpec {
    pub name: String,
    pub datatype: DataType,
    pub shape: Vec<i64>,
}

/// An input with its elements, in the protocol's binary form.
#[derive(Clone, PartialEq, Debug)]
pub struct FilledInput {
    pub name: String,
    pub datatype: DataType,
    pub shape: Vec<i64>,
    pub data: Bytes,
}

/// Inputs for one request of that many rows, random where the plan gives no values. Sizes that the model leaves open
/// are the plan's; otherwise the first dimension is the batch if it is open, and other open ones become `length`.
pub fn make_inputs(specs: &[InputSpec], batch: u32, length: i64, plan: &LoadPlan) -> Result<Vec<FilledInput>, String> {
    let mut random = Random::new(plan.seed, 0);
    let sizes = OpenSizes { batch, length, shapes: &plan.shapes };
    specs.iter().map(|spec| make_input(spec, sizes, &plan.values, &mut random)).collect()
}

/// What open dimensions become.
#[derive(Clone, Copy)]
struct OpenSizes<'a> {
    batch: u32,
    length: i64,
    /// The plan's own, by input.
    shapes: &'a [(String, Vec<i64>)],
}

fn make_input(
    spec: &InputSpec,
    sizes: OpenSizes<'_>,
    values: &[(String, f64)],
    random: &mut Random,
) -> Result<FilledInput, String> {
    let InputSpec { name, datatype, .. } = spec;
    let shape = shape_for(spec, sizes)?;
    let size = datatype.size().unwrap_or(12);
    let count = element_count(&shape).filter(|count| count.checked_mul(size).is_some_and(|bytes| bytes <= MAX_BYTES));
    let count = count.ok_or_else(|| format!("input {name:?} with the shape {shape:?} is too large for one request"))?;
    let mut data = Vec::with_capacity(count * size);
    match values.iter().find(|(given, _)| given == name) {
        Some(&(_, value)) => {
            let element = datatype
                .element(value)
                .ok_or_else(|| format!("input {name:?} is {datatype}: --value can't set it to {value}"))?;
            data.extend(element.iter().copied().cycle().take(count * size));
        }
        None => (0..count).for_each(|_| push_random(&mut data, *datatype, random)),
    }
    Ok(FilledInput { name: name.clone(), datatype: *datatype, shape, data: data.into() })
}

fn shape_for(spec: &InputSpec, sizes: OpenSizes<'_>) -> Result<Vec<i64>, String> {
    let OpenSizes { batch, length, shapes } = sizes;
    let name = &spec.name;
    if let Some((_, given)) = shapes.iter().find(|(given, _)| given == name) {
        let fits = given.len() == spec.shape.len()
            && given.iter().zip(&spec.shape).all(|(&given, &wanted)| wanted < 0 || wanted == given);
        if !fits {
            return Err(format!(
                "input {name:?} has the shape {:?} in the model: --shape {given:?} doesn't fit",
                spec.shape
            ));
        }
        return Ok(given.clone());
    }
    if batch > 1 && spec.shape.first().is_none_or(|&first| first >= 0) {
        return Err(format!("input {name:?} has the shape {:?}: no batch of {batch} can be sent", spec.shape));
    }
    let open = |(index, &dim): (usize, &i64)| match dim {
        dim if dim >= 0 => dim,
        _ if index == 0 => i64::from(batch),
        _ => length,
    };
    Ok(spec.shape.iter().enumerate().map(open).collect())
}

/// One element. Numbers with a fraction lie in 0 to 1; whole ones are 0 or 1, which is a valid token, mask or index for
/// nearly every model.
fn push_random(data: &mut Vec<u8>, datatype: DataType, random: &mut Random) {
    let bit = |random: &mut Random| (random.below(2)) as u8;
    match datatype {
        DataType::Fp32 => data.extend_from_slice(&(random.unit() as f32).to_le_bytes()),
        DataType::Fp64 => data.extend_from_slice(&random.unit().to_le_bytes()),
        // From 0.5 up to 1: one exponent, a random fraction.
        DataType::Fp16 => data.extend_from_slice(&(0x3800 | random.below(1 << 10) as u16).to_le_bytes()),
        DataType::Bf16 => data.extend_from_slice(&(0x3f00 | random.below(1 << 7) as u16).to_le_bytes()),
        DataType::Bytes => {
            data.extend_from_slice(&8u32.to_le_bytes());
            data.extend((0..8).map(|_| b'a' + random.below(26) as u8));
        }
        DataType::Bool | DataType::Uint8 | DataType::Int8 => data.push(bit(random)),
        DataType::Uint16 | DataType::Int16 => data.extend_from_slice(&[bit(random), 0]),
        DataType::Uint32 | DataType::Int32 => data.extend_from_slice(&[bit(random), 0, 0, 0]),
        DataType::Uint64 | DataType::Int64 => data.extend_from_slice(&[bit(random), 0, 0, 0, 0, 0, 0, 0]),
    }
}

fn timeout_micros(class: &ClassPlan) -> Option<u64> {
    class.deadline.map(|deadline| deadline.as_nanos().div_ceil(1_000))
}

/// The body of an HTTP request with the tensors as JSON.
pub fn json_body(inputs: &[FilledInput], class: &ClassPlan) -> Result<Bytes, String> {
    let inputs = inputs
        .iter()
        .map(|input| {
            let data = json_elements(input)?;
            Ok(json!({"name": input.name, "shape": input.shape, "datatype": input.datatype.name(), "data": data}))
        })
        .collect::<Result<Vec<_>, String>>()?;
    let body = json!({"parameters": json_parameters(class, false), "inputs": inputs});
    Ok(body.to_string().into())
}

/// The body of an HTTP request with the tensors as bytes, and the length of its JSON header.
pub fn binary_body(inputs: &[FilledInput], class: &ClassPlan) -> (Bytes, usize) {
    let described: Vec<_> = inputs
        .iter()
        .map(|input| {
            let parameters = json!({"binary_data_size": input.data.len()});
            json!({"name": input.name, "shape": input.shape, "datatype": input.datatype.name(), "parameters": parameters})
        })
        .collect();
    let mut body = json!({"parameters": json_parameters(class, true), "inputs": described}).to_string().into_bytes();
    let header = body.len();
    for input in inputs {
        body.extend_from_slice(&input.data);
    }
    (body.into(), header)
}

/// The gRPC message.
pub fn grpc_request(model: &str, inputs: &[FilledInput], class: &ClassPlan) -> ModelInferRequest {
    let parameter = |value: u64| {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(value)) }
    };
    let mut parameters = std::collections::BTreeMap::new();
    if let Some(timeout) = timeout_micros(class) {
        parameters.insert("timeout".to_owned(), parameter(timeout));
    }
    if class.priority > 0 {
        parameters.insert("priority".to_owned(), parameter(u64::from(class.priority)));
    }
    if let Some(name) = &class.application {
        let choice = ParameterChoice::StringParam(name.clone());
        parameters.insert("application".to_owned(), InferParameter { parameter_choice: Some(choice) });
    }
    let described = inputs.iter().map(|input| InferInputTensor {
        name: input.name.clone(),
        datatype: input.datatype.name().to_owned(),
        shape: input.shape.clone(),
        ..Default::default()
    });
    ModelInferRequest {
        model_name: model.to_owned(),
        parameters,
        inputs: described.collect(),
        raw_input_contents: inputs.iter().map(|input| input.data.clone()).collect(),
        ..Default::default()
    }
}

fn json_parameters(class: &ClassPlan, binary: bool) -> serde_json::Value {
    let mut parameters = serde_json::Map::new();
    if let Some(timeout) = timeout_micros(class) {
        parameters.insert("timeout".into(), timeout.into());
    }
    if class.priority > 0 {
        parameters.insert("priority".into(), class.priority.into());
    }
    if let Some(name) = &class.application {
        parameters.insert("application".into(), name.as_str().into());
    }
    if binary {
        parameters.insert("binary_data_output".into(), true.into());
    }
    parameters.into()
}

fn json_elements(input: &FilledInput) -> Result<Vec<serde_json::Value>, String> {
    let data = &input.data;
    let signed = |width: usize| data.chunks_exact(width).map(|element| sign_extended(element).into()).collect();
    let unsigned = |width: usize| data.chunks_exact(width).map(|element| zero_extended(element).into()).collect();
    Ok(match input.datatype {
        DataType::Fp32 => {
            data.as_chunks::<4>().0.iter().map(|&bytes| f64::from(f32::from_le_bytes(bytes)).into()).collect()
        }
        DataType::Fp64 => data.as_chunks::<8>().0.iter().map(|&bytes| f64::from_le_bytes(bytes).into()).collect(),
        DataType::Bytes => {
            data.chunks_exact(12).map(|element| String::from_utf8_lossy(&element[4..]).into_owned().into()).collect()
        }
        DataType::Bool => data.iter().map(|&bit| (bit == 1).into()).collect(),
        DataType::Int8 => signed(1),
        DataType::Int16 => signed(2),
        DataType::Int32 => signed(4),
        DataType::Int64 => signed(8),
        DataType::Uint8 => unsigned(1),
        DataType::Uint16 => unsigned(2),
        DataType::Uint32 => unsigned(4),
        DataType::Uint64 => unsigned(8),
        DataType::Fp16 | DataType::Bf16 => {
            return Err(format!(
                "input {:?} is {}, which JSON can't carry: use --protocol http-binary or grpc",
                input.name, input.datatype
            ));
        }
    })
}

fn zero_extended(element: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[..element.len()].copy_from_slice(element);
    u64::from_le_bytes(wide)
}

fn sign_extended(element: &[u8]) -> i64 {
    let unused = 64 - 8 * element.len() as u32;
    (zero_extended(element) << unused).cast_signed() >> unused
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Loop;
    use base::Duration;

    fn class() -> ClassPlan {
        ClassPlan {
            name: "c".into(),
            models: vec![("m".into(), 1.0)],
            pattern: Loop::Closed { clients: 1, backoff: Duration::from_millis(1) },
            deadline: Some(Duration::from_micros(12_500)),
            batch: 2,
            priority: 3,
            application: Some("search".into()),
            lengths: None,
        }
    }

    fn spec(name: &str, datatype: DataType, shape: &[i64]) -> InputSpec {
        InputSpec { name: name.into(), datatype, shape: shape.to_vec() }
    }

    fn every_type() -> Vec<InputSpec> {
        DataType::ALL.iter().map(|&datatype| spec(datatype.name(), datatype, &[-1, 3])).collect()
    }

    fn random_inputs(
        specs: &[InputSpec],
        batch: u32,
        values: &[(String, f64)],
        random: &mut Random,
    ) -> Result<Vec<FilledInput>, String> {
        let sizes = OpenSizes { batch, length: 1, shapes: &[] };
        specs.iter().map(|spec| make_input(spec, sizes, values, random)).collect()
    }

    #[test]
    fn given_values_fill_their_input_in_every_number_type() {
        let numbers = |spec: &InputSpec| !matches!(spec.datatype, DataType::Fp16 | DataType::Bf16 | DataType::Bytes);
        let specs: Vec<_> = every_type().into_iter().filter(numbers).collect();
        let value = |name: &str| if name.starts_with('U') || name == "BOOL" { 1.0 } else { -3.0 };
        let values: Vec<_> = specs.iter().map(|spec| (spec.name.clone(), value(&spec.name))).collect();
        let inputs = random_inputs(&specs, 1, &values, &mut Random::new(1, 1)).unwrap();
        let body = json_body(&inputs, &class()).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
        for (index, input) in inputs.iter().enumerate() {
            let read = &json["inputs"][index]["data"][2];
            let wanted = value(&input.name);
            let same = read.as_f64() == Some(wanted) || read.as_bool() == Some(wanted == 1.0);
            assert!(same, "{}: {read}", input.name);
        }
        let bytes = spec("b", DataType::Bytes, &[1]);
        let refused = random_inputs(&[bytes], 1, &[("b".into(), 1.0)], &mut Random::new(1, 1));
        assert!(refused.unwrap_err().contains("--value can't set it"));
    }

    /// The bodies are read by the server's own reader, which checks lengths, types and shapes.
    #[test]
    fn the_server_reads_what_is_written_in_every_type() {
        let inputs = random_inputs(&every_type(), 2, &[], &mut Random::new(1, 1)).unwrap();
        let (body, header) = binary_body(&inputs, &class());
        let read = wire::json::decode(&body, Some(header)).unwrap();
        assert_eq!(read.parameters.timeout, Some(Duration::from_micros(12_500)));
        assert_eq!(read.parameters.priority, 3);
        assert_eq!(read.inputs.len(), inputs.len());
        for (read, written) in read.inputs.iter().zip(&inputs) {
            assert_eq!((&read.shape[..], &read.data), (&[2, 3][..], &written.data), "{}", written.name);
        }
        let request = grpc_request("m", &inputs, &class());
        let read = wire::grpc::decode(&request).unwrap();
        assert_eq!(read.application, "search");
        assert_eq!(read.inputs[0].data, inputs[0].data);
        assert_eq!(read.parameters.timeout, Some(Duration::from_micros(12_500)));
    }

    #[test]
    fn json_carries_the_same_elements_as_bytes_do() {
        let specs: Vec<_> = every_type().into_iter().filter(|spec| !spec.name.contains("F16")).collect();
        let specs: Vec<_> = specs.into_iter().filter(|spec| spec.name != "FP16").collect();
        let inputs = random_inputs(&specs, 1, &[], &mut Random::new(5, 1)).unwrap();
        let body = json_body(&inputs, &class()).unwrap();
        let read = wire::json::decode(&body, None).unwrap();
        for (read, written) in read.inputs.iter().zip(&inputs) {
            assert_eq!(read.data, written.data, "{}", written.name);
        }
        let half = random_inputs(&[spec("h", DataType::Fp16, &[1])], 1, &[], &mut Random::new(5, 1)).unwrap();
        assert!(json_body(&half, &class()).unwrap_err().contains("use --protocol http-binary"));
    }

    #[test]
    fn open_dimensions_are_filled_in() {
        let ids = spec("ids", DataType::Int64, &[-1, -1]);
        let shape = |batch, shapes: &[(String, Vec<i64>)]| shape_for(&ids, OpenSizes { batch, length: 7, shapes });
        assert_eq!(shape(4, &[]).unwrap(), [4, 7]);
        assert_eq!(shape(1, &[("ids".into(), vec![1, 128])]).unwrap(), [1, 128]);
        assert!(shape(1, &[("ids".into(), vec![128])]).unwrap_err().contains("doesn't fit"));
        let fixed = spec("x", DataType::Fp32, &[1, 3]);
        let two = OpenSizes { batch: 2, length: 1, shapes: &[] };
        assert!(shape_for(&fixed, two).unwrap_err().contains("no batch of 2"));
        let huge = spec("x", DataType::Fp32, &[i64::MAX, 2]);
        assert!(random_inputs(&[huge], 1, &[], &mut Random::new(1, 1)).unwrap_err().contains("too large"));
    }
}
