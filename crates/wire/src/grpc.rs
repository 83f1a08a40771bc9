//! The protocol over gRPC: protobuf messages into requests and answers into protobuf messages.

use crate::elements::{check_elements, count_elements, push_string};
use crate::infer::MOST_OWN;
use crate::json::datatype_from_name;
use crate::parameters::{KNOWN, RegionParameters, check_name};
use crate::proto::infer_parameter::ParameterChoice;
use crate::proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use crate::proto::model_infer_response::InferOutputTensor;
use crate::proto::{InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse};
use crate::room::room;
use crate::{
    Fault, InferInput, InferRequest, InferResponse, Parameters, Region, RequestedOutput, ResponseParameter, SequenceId,
    SequenceMark,
};
use base::{DataType, Duration};
use bytes::Bytes;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The parameter that says that a tensor lies in shared memory.
const REGION: &str = "shared_memory_region";
/// The parameter that names a request's sequence.
const SEQUENCE_ID: &str = "sequence_id";

/// Reads a request. Tensors that came as `raw_input_contents` are shared with the message, not copied.
pub fn decode(message: &ModelInferRequest) -> Result<InferRequest<'_>, Fault> {
    let raw = &message.raw_input_contents;
    // What lies in shared memory has no entry.
    let here = message.inputs.iter().filter(|input| !input.parameters.contains_key(REGION)).count();
    if !raw.is_empty() && raw.len() != here {
        return Err(Fault::bad(format!(
            "there are {here} inputs, but {} entries of raw_input_contents: give one for each, or none",
            raw.len()
        )));
    }
    let mut raw = raw.iter();
    let inputs = message.inputs.iter().map(|input| read_input(input, &mut raw)).collect::<Result<_, _>>()?;
    Ok(InferRequest {
        id: Cow::Borrowed(&message.id),
        application: Cow::Borrowed(read_application(&message.parameters)?),
        parameters: read_parameters(&message.parameters)?,
        sequence: read_sequence(&message.parameters)?,
        own: message.parameters.iter().filter_map(read_own).take(MOST_OWN).collect(),
        inputs,
        outputs: message.outputs.iter().map(read_output).collect::<Result<_, _>>()?,
    })
}

fn read_parameters(map: &BTreeMap<String, InferParameter>) -> Result<Parameters, Fault> {
    for name in map.keys() {
        check_name(name)?;
    }
    let timeout = whole_number(map, "timeout")?.filter(|&micros| micros > 0).map(Duration::from_micros);
    let priority = u32::try_from(whole_number(map, "priority")?.unwrap_or(0)).unwrap_or(u32::MAX);
    Ok(Parameters { timeout, priority, binary_outputs: true })
}

/// The sequence that a request names, if it does.
fn read_sequence(map: &BTreeMap<String, InferParameter>) -> Result<Option<Box<SequenceMark>>, Fault> {
    if !map.contains_key(SEQUENCE_ID) {
        return Ok(None);
    }
    let id = match map.get(SEQUENCE_ID).and_then(|parameter| parameter.parameter_choice.as_ref()) {
        Some(ParameterChoice::StringParam(text)) => SequenceId::text(text)?,
        _ => whole_number(map, SEQUENCE_ID)?.and_then(SequenceId::number),
    };
    let flag = |name: &str| match map.get(name).and_then(|parameter| parameter.parameter_choice.as_ref()) {
        None => Ok(false),
        Some(ParameterChoice::BoolParam(value)) => Ok(*value),
        Some(_) => Err(Fault::bad(format!("the parameter {name} must be true or false"))),
    };
    Ok(SequenceMark::new(id, flag("sequence_start")?, flag("sequence_end")?))
}

/// A parameter of the client's own, as a text.
fn read_own<'a>((name, value): (&'a String, &'a InferParameter)) -> Option<(Cow<'a, str>, Cow<'a, str>)> {
    if KNOWN.contains(&name.as_str()) {
        return None;
    }
    let value = match value.parameter_choice.as_ref()? {
        ParameterChoice::StringParam(text) => Cow::Borrowed(text.as_str()),
        ParameterChoice::BoolParam(flag) => Cow::Owned(flag.to_string()),
        ParameterChoice::Int64Param(number) => Cow::Owned(number.to_string()),
        ParameterChoice::Uint64Param(number) => Cow::Owned(number.to_string()),
        ParameterChoice::DoubleParam(number) => Cow::Owned(number.to_string()),
    };
    Some((Cow::Borrowed(name), value))
}

fn read_application(map: &BTreeMap<String, InferParameter>) -> Result<&str, Fault> {
    match map.get("application").and_then(|parameter| parameter.parameter_choice.as_ref()) {
        None => Ok(""),
        Some(ParameterChoice::StringParam(name)) => Ok(name),
        Some(_) => Err(Fault::bad("the parameter application must be a text: the name of the application")),
    }
}

fn whole_number(map: &BTreeMap<String, InferParameter>, name: &str) -> Result<Option<u64>, Fault> {
    let Some(InferParameter { parameter_choice: Some(choice) }) = map.get(name) else { return Ok(None) };
    let shown = match choice {
        ParameterChoice::Uint64Param(value) => return Ok(Some(*value)),
        ParameterChoice::Int64Param(value) => match u64::try_from(*value) {
            Ok(value) => return Ok(Some(value)),
            Err(_) => value.to_string(),
        },
        ParameterChoice::StringParam(value) => match value.parse() {
            Ok(value) => return Ok(Some(value)),
            Err(_) => format!("{value:?}"),
        },
        ParameterChoice::BoolParam(value) => value.to_string(),
        ParameterChoice::DoubleParam(value) => value.to_string(),
    };
    Err(Fault::bad(format!("the parameter {name} is {shown}: it must be a whole number that isn't negative")))
}

fn read_input<'a>(input: &'a InferInputTensor, raw: &mut std::slice::Iter<'_, Bytes>) -> Result<InferInput<'a>, Fault> {
    let name = &input.name;
    let datatype = datatype_from_name(name, &input.datatype)?;
    if let Some(region) = read_region("input", name, &input.parameters)? {
        if input.contents.is_some() {
            return Err(Fault::bad(format!(
                "input {name:?} is in shared memory and has contents, too: give one of them"
            )));
        }
        count_elements(name, &input.shape)?;
        let (name, shape) = (Cow::Borrowed(name.as_str()), input.shape.clone());
        return Ok(InferInput { name, datatype, shape, data: Bytes::new(), region: Some(region) });
    }
    let data = match (raw.next(), &input.contents) {
        (Some(_), Some(_)) => {
            return Err(Fault::bad(format!(
                "input {name:?} has both contents and raw_input_contents: give one of them"
            )));
        }
        (Some(raw), None) => raw.clone(),
        (None, Some(contents)) => read_contents(name, datatype, contents)?,
        // Protobuf doesn't send what is empty: a tensor without elements has no contents.
        (None, None) if count_elements(name, &input.shape)? == 0 => Bytes::new(),
        (None, None) => {
            return Err(Fault::bad(format!("input {name:?} has no data: give raw_input_contents or its contents")));
        }
    };
    check_elements(name, datatype, &input.shape, &data)?;
    Ok(InferInput { name: Cow::Borrowed(name), datatype, shape: input.shape.clone(), data, region: None })
}

/// Where a tensor lies in shared memory, if it does.
fn read_region(
    what: &str,
    name: &str,
    parameters: &BTreeMap<String, InferParameter>,
) -> Result<Option<Box<Region>>, Fault> {
    let Some(parameter) = parameters.get(REGION) else { return Ok(None) };
    let Some(ParameterChoice::StringParam(region)) = &parameter.parameter_choice else {
        return Err(Fault::bad(format!("the parameter {REGION} of {what} {name:?} must be a text")));
    };
    let offset = whole_number(parameters, "shared_memory_offset")?;
    let byte_size = whole_number(parameters, "shared_memory_byte_size")?;
    RegionParameters { region: Cow::Borrowed(region), offset, byte_size }.check(what, name).map(Some)
}

fn read_contents(name: &str, datatype: DataType, contents: &InferTensorContents) -> Result<Bytes, Fault> {
    let InferTensorContents {
        bool_contents,
        int_contents,
        int64_contents,
        uint_contents,
        uint64_contents,
        fp32_contents,
        fp64_contents,
        bytes_contents,
    } = contents;
    let narrow = |value: &dyn std::fmt::Display| {
        Fault::bad(format!(
            "the contents of input {name:?} have the element {value}, which is not a value of {datatype}"
        ))
    };
    match datatype {
        DataType::Bool => Ok(bool_contents.iter().map(|&value| u8::from(value)).collect()),
        DataType::Int8 => pack(int_contents, |&v| i8::try_from(v).map(i8::to_le_bytes).map_err(|_| narrow(&v))),
        DataType::Int16 => pack(int_contents, |&v| i16::try_from(v).map(i16::to_le_bytes).map_err(|_| narrow(&v))),
        DataType::Int32 => pack(int_contents, |&v| Ok(v.to_le_bytes())),
        DataType::Int64 => pack(int64_contents, |&v| Ok(v.to_le_bytes())),
        DataType::Uint8 => pack(uint_contents, |&v| u8::try_from(v).map(u8::to_le_bytes).map_err(|_| narrow(&v))),
        DataType::Uint16 => pack(uint_contents, |&v| u16::try_from(v).map(u16::to_le_bytes).map_err(|_| narrow(&v))),
        DataType::Uint32 => pack(uint_contents, |&v| Ok(v.to_le_bytes())),
        DataType::Uint64 => pack(uint64_contents, |&v| Ok(v.to_le_bytes())),
        DataType::Fp32 => pack(fp32_contents, |&v| Ok(v.to_le_bytes())),
        DataType::Fp64 => pack(fp64_contents, |&v| Ok(v.to_le_bytes())),
        DataType::Bytes => {
            let mut data = room(bytes_contents.iter().map(|element| 4 + element.len()).sum())?;
            for element in bytes_contents {
                push_string(&mut data, element)
                    .map_err(|_| Fault::bad(format!("input {name:?} has an element of more than 4 GiB")))?;
            }
            Ok(Bytes::from(data))
        }
        DataType::Fp16 | DataType::Bf16 => Err(Fault::bad(format!(
            "input {name:?} is {datatype}, which contents have no field for: send it in raw_input_contents"
        ))),
    }
}

fn pack<T, const N: usize>(values: &[T], bytes: impl Fn(&T) -> Result<[u8; N], Fault>) -> Result<Bytes, Fault> {
    let mut data = room(values.len() * N)?;
    for value in values {
        data.extend_from_slice(&bytes(value)?);
    }
    Ok(Bytes::from(data))
}

fn read_output(output: &InferRequestedOutputTensor) -> Result<RequestedOutput<'_>, Fault> {
    let classes = whole_number(&output.parameters, "classification")?.unwrap_or(0);
    Ok(RequestedOutput {
        name: Cow::Borrowed(&output.name),
        binary: true,
        classes: u32::try_from(classes).unwrap_or(u32::MAX),
        region: read_region("output", &output.name, &output.parameters)?,
    })
}

/// What an answer says of an output in shared memory.
fn region_parameters(region: &Region) -> BTreeMap<String, InferParameter> {
    let number = |value: u64| ParameterChoice::Int64Param(i64::try_from(value).unwrap_or(i64::MAX));
    let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
    let mut parameters = BTreeMap::new();
    parameters.insert(REGION.to_owned(), parameter(ParameterChoice::StringParam(region.name.clone())));
    parameters.insert("shared_memory_byte_size".to_owned(), parameter(number(region.byte_size)));
    if region.offset > 0 {
        parameters.insert("shared_memory_offset".to_owned(), parameter(number(region.offset)));
    }
    parameters
}

fn write_parameter((name, value): &(&str, ResponseParameter)) -> (String, InferParameter) {
    let choice = match value {
        ResponseParameter::Text(text) => ParameterChoice::StringParam(text.clone()),
        ResponseParameter::Number(number) => ParameterChoice::DoubleParam(*number),
        ResponseParameter::Flag(flag) => ParameterChoice::BoolParam(*flag),
    };
    ((*name).to_owned(), InferParameter { parameter_choice: Some(choice) })
}

/// Writes an answer, all tensors as `raw_output_contents`; the entry of one that is in shared memory is empty.
pub fn encode(response: InferResponse<'_>) -> ModelInferResponse {
    let mut outputs = Vec::with_capacity(response.outputs.len());
    let mut raw_output_contents = Vec::with_capacity(response.outputs.len());
    for output in response.outputs {
        outputs.push(InferOutputTensor {
            name: output.name.to_owned(),
            datatype: output.datatype.name().to_owned(),
            shape: output.shape.to_vec(),
            parameters: output.region.map_or_else(BTreeMap::new, region_parameters),
            contents: None,
        });
        raw_output_contents.push(output.data);
    }
    ModelInferResponse {
        model_name: response.model_name.to_owned(),
        model_version: response.model_version.to_string(),
        id: response.id.to_owned(),
        parameters: response.parameters.iter().map(write_parameter).collect(),
        outputs,
        raw_output_contents,
    }
}

/// The span that a `grpc-timeout` header says; `None` when it is malformed, which the protocol says to ignore.
pub fn timeout(header: &str) -> Option<Duration> {
    let (digits, unit) = header.split_at_checked(header.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(value.saturating_mul(3600))),
        "M" => Some(Duration::from_secs(value.saturating_mul(60))),
        "S" => Some(Duration::from_secs(value)),
        "m" => Some(Duration::from_millis(value)),
        "u" => Some(Duration::from_micros(value)),
        "n" => Some(Duration::from_nanos(value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OutputTensor;
    use expect_test::expect;
    use proptest::prelude::*;
    use prost::Message;

    fn input(name: &str, datatype: &str, shape: &[i64], contents: Option<InferTensorContents>) -> InferInputTensor {
        InferInputTensor {
            name: name.into(),
            datatype: datatype.into(),
            shape: shape.into(),
            parameters: BTreeMap::new(),
            contents,
        }
    }

    fn request(inputs: Vec<InferInputTensor>, raw: &[&'static [u8]]) -> ModelInferRequest {
        ModelInferRequest {
            model_name: "m".into(),
            inputs,
            raw_input_contents: raw.iter().map(|data| Bytes::from_static(data)).collect(),
            ..Default::default()
        }
    }

    fn parameter(choice: ParameterChoice) -> InferParameter {
        InferParameter { parameter_choice: Some(choice) }
    }

    fn sentence(message: &ModelInferRequest) -> String {
        decode(message).unwrap_err().to_string()
    }

    #[test]
    fn raw_tensors_are_shared() {
        let message = request(vec![input("x", "INT16", &[2], None)], &[b"\x01\0\x02\0"]);
        let decoded = decode(&message).unwrap();
        assert_eq!(decoded.inputs[0].data.as_ptr(), message.raw_input_contents[0].as_ptr());
        assert_eq!(decoded.inputs[0].datatype, DataType::Int16);
    }

    #[test]
    fn contents_of_every_type() {
        let c = InferTensorContents {
            bool_contents: vec![true, false],
            int_contents: vec![-1, 2],
            int64_contents: vec![-1, 2],
            uint_contents: vec![1, 2],
            uint64_contents: vec![1, 2],
            fp32_contents: vec![1.0, 2.0],
            fp64_contents: vec![1.0, 2.0],
            bytes_contents: vec![Bytes::from_static(b"a"), Bytes::new()],
        };
        for &datatype in DataType::ALL {
            let message = request(vec![input("x", datatype.name(), &[2], Some(c.clone()))], &[]);
            match datatype {
                DataType::Fp16 | DataType::Bf16 => assert!(sentence(&message).contains("raw_input_contents")),
                DataType::Bytes => assert_eq!(&decode(&message).unwrap().inputs[0].data[..], b"\x01\0\0\0a\0\0\0\0"),
                _ => assert_eq!(decode(&message).unwrap().inputs[0].data.len(), 2 * datatype.size().unwrap()),
            }
        }
        let message = request(
            vec![input("x", "INT8", &[1], Some(InferTensorContents { int_contents: vec![200], ..Default::default() }))],
            &[],
        );
        expect![[r#"the contents of input "x" have the element 200, which is not a value of INT8"#]]
            .assert_eq(&sentence(&message));
    }

    #[test]
    fn bad_requests_are_sentences() {
        expect!["there are 1 inputs, but 2 entries of raw_input_contents: give one for each, or none"]
            .assert_eq(&sentence(&request(vec![input("x", "INT8", &[1], None)], &[b"a", b"b"])));
        expect![[r#"input "x" has 2 bytes, but its shape [1] of INT8 takes 1 bytes"#]]
            .assert_eq(&sentence(&request(vec![input("x", "INT8", &[1], None)], &[b"ab"])));
        expect![[r#"input "x" has no data: give raw_input_contents or its contents"#]]
            .assert_eq(&sentence(&request(vec![input("x", "INT8", &[1], None)], &[])));
        expect![[r#"input "x" has the dimension -1 in its shape [-1]: none may be negative"#]]
            .assert_eq(&sentence(&request(vec![input("x", "INT8", &[-1], None)], &[b"a"])));
        let mut message = request(vec![], &[]);
        message.parameters.insert("timeout".into(), parameter(ParameterChoice::Int64Param(-3)));
        expect!["the parameter timeout is -3: it must be a whole number that isn't negative"]
            .assert_eq(&sentence(&message));
        let mut message = request(vec![], &[]);
        message.parameters.insert("triton_magic".into(), parameter(ParameterChoice::BoolParam(true)));
        expect![[r#"the parameter "triton_magic" begins with "triton_", which is reserved: choose another name"#]]
            .assert_eq(&sentence(&message));
    }

    #[test]
    fn parameters_come_in_any_of_their_types() {
        let mut message = request(vec![], &[]);
        message.parameters.insert("timeout".into(), parameter(ParameterChoice::Int64Param(1500)));
        message.parameters.insert("priority".into(), parameter(ParameterChoice::Uint64Param(2)));
        message.parameters.insert("sequence_id".into(), parameter(ParameterChoice::StringParam("s".into())));
        message.parameters.insert("sequence_start".into(), parameter(ParameterChoice::BoolParam(true)));
        let decoded = decode(&message).unwrap();
        let Parameters { timeout, priority, .. } = decoded.parameters;
        assert_eq!((timeout, priority), (Some(Duration::from_micros(1500)), 2));
        let mark = SequenceMark { id: SequenceId::Text("s".into()), start: true, end: false };
        assert_eq!(decoded.sequence.as_deref(), Some(&mark));
        message.parameters.insert("sequence_id".into(), parameter(ParameterChoice::Int64Param(3)));
        assert_eq!(decode(&message).unwrap().sequence.map(|mark| mark.id), Some(SequenceId::Number(3)));
        message.parameters.insert("sequence_id".into(), parameter(ParameterChoice::Int64Param(0)));
        assert_eq!(decode(&message).unwrap().sequence, None);
        message.parameters.insert("sequence_id".into(), parameter(ParameterChoice::Int64Param(-1)));
        assert!(sentence(&message).contains("isn't negative"));
        message.parameters.insert("sequence_id".into(), parameter(ParameterChoice::Uint64Param(1)));
        message.parameters.insert("sequence_start".into(), parameter(ParameterChoice::Int64Param(1)));
        assert!(sentence(&message).contains("must be true or false"));
    }

    #[test]
    fn tensors_in_shared_memory_have_no_raw_entry() {
        let mut message = request(vec![input("x", "INT8", &[1], None), input("y", "INT8", &[1], None)], &[b"a"]);
        let place = &mut message.inputs[0].parameters;
        place.insert("shared_memory_region".into(), parameter(ParameterChoice::StringParam("r".into())));
        expect![[r#"input "x" is in shared memory: say how long it is with shared_memory_byte_size"#]]
            .assert_eq(&sentence(&message));
        let place = &mut message.inputs[0].parameters;
        place.insert("shared_memory_byte_size".into(), parameter(ParameterChoice::Int64Param(1)));
        let decoded = decode(&message).unwrap();
        assert_eq!(decoded.inputs[0].region, Some(Box::new(Region { name: "r".into(), offset: 0, byte_size: 1 })));
        assert_eq!(&decoded.inputs[1].data[..], b"a");
        message.inputs[0].contents = Some(InferTensorContents::default());
        expect![[r#"input "x" is in shared memory and has contents, too: give one of them"#]]
            .assert_eq(&sentence(&message));
    }

    #[test]
    fn answers_are_raw() {
        let data = Bytes::from_static(b"\x01\0");
        let output = OutputTensor {
            name: "y",
            datatype: DataType::Int16,
            shape: &[1],
            data: data.clone(),
            binary: true,
            region: None,
        };
        let parameters =
            [("confidence", ResponseParameter::Number(0.5)), ("selected", ResponseParameter::Text("a".into()))];
        let (model_name, model_version, id) = ("m", 4, "i");
        let outputs = vec![output];
        let message = encode(InferResponse { model_name, model_version, id, parameters: &parameters, outputs });
        let said = |name: &str| message.parameters[name].parameter_choice.clone();
        assert_eq!(said("confidence"), Some(ParameterChoice::DoubleParam(0.5)));
        assert_eq!(said("selected"), Some(ParameterChoice::StringParam("a".into())));
        assert_eq!((message.model_version.as_str(), message.id.as_str()), ("4", "i"));
        assert_eq!(message.outputs[0].datatype, "INT16");
        assert_eq!(message.raw_output_contents, [data]);
    }

    #[test]
    fn timeouts_in_every_unit() {
        let nanos = |header| timeout(header).map(Duration::as_nanos);
        assert_eq!(nanos("3S"), Some(3_000_000_000));
        assert_eq!(nanos("250m"), Some(250_000_000));
        assert_eq!(nanos("99999999n"), Some(99_999_999));
        assert_eq!(nanos("1H"), Some(3_600_000_000_000));
        for malformed in ["", "S", "1", "1x", "123456789S", "-1S", "1µ", "é"] {
            assert_eq!(nanos(malformed), None, "{malformed}");
        }
    }

    #[test]
    fn every_truncation_of_a_message_is_an_error() {
        let message = request(vec![input("x", "INT16", &[2], None)], &[b"\x01\0\x02\0"]).encode_to_vec();
        for end in 0..message.len() {
            let outcome = ModelInferRequest::decode(&message[..end]);
            let refused = outcome.as_ref().map_or(true, |cut| decode(cut).is_err() || cut.inputs.is_empty());
            assert!(refused, "cut at {end} gave {outcome:?}");
        }
    }

    proptest! {
        #[test]
        fn noise_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(message) = ModelInferRequest::decode(&bytes[..]) {
                let _ = decode(&message);
            }
        }
    }
}
