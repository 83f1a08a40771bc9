//! An HTTP body into a request.

use crate::elements::{check_elements, count_elements};
use crate::parameters::{JsonParameters, RegionParameters};
use crate::{Fault, InferInput, InferRequest, Parameters, RequestedOutput, SequenceMark, numbers};
use base::{DataType, Duration};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Text that is borrowed wherever it has no escapes (`Option<Cow>` would always copy).
#[derive(Deserialize)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

#[derive(Deserialize)]
struct JsonRequest<'a> {
    #[serde(borrow)]
    id: Option<Text<'a>>,
    #[serde(borrow)]
    parameters: Option<JsonParameters<'a>>,
    #[serde(borrow)]
    inputs: Vec<JsonInput<'a>>,
    #[serde(borrow)]
    outputs: Option<Vec<JsonOutput<'a>>>,
}

#[derive(Deserialize)]
struct JsonInput<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    shape: Vec<i64>,
    #[serde(borrow)]
    datatype: Cow<'a, str>,
    #[serde(borrow)]
    parameters: Option<JsonInputParameters<'a>>,
    // Kept as text until the type is known, which may stand behind it.
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
struct JsonInputParameters<'a> {
    binary_data_size: Option<usize>,
    #[serde(borrow)]
    shared_memory_region: Option<Text<'a>>,
    shared_memory_offset: Option<u64>,
    shared_memory_byte_size: Option<u64>,
}

#[derive(Deserialize)]
struct JsonOutput<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    parameters: Option<JsonOutputParameters<'a>>,
}

#[derive(Deserialize, Default)]
struct JsonOutputParameters<'a> {
    binary_data: Option<bool>,
    classification: Option<u64>,
    #[serde(borrow)]
    shared_memory_region: Option<Text<'a>>,
    shared_memory_offset: Option<u64>,
    shared_memory_byte_size: Option<u64>,
}

/// Reads a request. `json_length` is what `Inference-Header-Content-Length` says: how many bytes of the body are JSON;
/// without it all of them are.
pub fn decode(body: &Bytes, json_length: Option<usize>) -> Result<InferRequest<'_>, Fault> {
    let (json, binary) = match json_length {
        None => (&body[..], None),
        Some(length) => {
            let (json, binary) = body.split_at_checked(length).ok_or_else(|| {
                Fault::bad(format!(
                    "the body has {} bytes, but Inference-Header-Content-Length says that {length} of them are JSON",
                    body.len()
                ))
            })?;
            (json, Some(body.slice_ref(binary)))
        }
    };
    let request: JsonRequest<'_> = serde_json::from_slice(json)
        .map_err(|error| Fault::bad(format!("the request is not what the protocol asks for: {error}")))?;
    assemble(request, binary)
}

fn assemble<'a>(request: JsonRequest<'a>, binary: Option<Bytes>) -> Result<InferRequest<'a>, Fault> {
    let parameters = request.parameters.unwrap_or_default();
    let application = parameters.application.map_or(Cow::Borrowed(""), |application| application.0);
    let sequence = match parameters.sequence_id {
        None => None,
        Some(id) => {
            let flag = |flag: Option<bool>| flag.unwrap_or(false);
            SequenceMark::new(id.name()?, flag(parameters.sequence_start), flag(parameters.sequence_end))
        }
    };
    let parameters = Parameters {
        timeout: parameters.timeout.filter(|&micros| micros > 0).map(Duration::from_micros),
        priority: u32::try_from(parameters.priority.unwrap_or(0)).unwrap_or(u32::MAX),
        binary_outputs: parameters.binary_data_output.unwrap_or(false),
    };
    let mut tail = BinaryTail { rest: binary };
    let inputs = request.inputs.into_iter().map(|input| read_input(input, &mut tail)).collect::<Result<_, _>>()?;
    tail.finish()?;
    let outputs = request.outputs.unwrap_or_default();
    let outputs = outputs.into_iter().map(|output| read_output(output, parameters)).collect::<Result<_, _>>()?;
    let id = request.id.map_or(Cow::Borrowed(""), |id| id.0);
    Ok(InferRequest { id, application, parameters, sequence, inputs, outputs })
}

/// What is behind the JSON: the binary tensors, in the order of the inputs.
struct BinaryTail {
    rest: Option<Bytes>,
}

impl BinaryTail {
    fn take(&mut self, name: &str, size: usize) -> Result<Bytes, Fault> {
        let Some(rest) = &mut self.rest else {
            return Err(Fault::bad(format!(
                "input {name:?} has a binary_data_size, but the header Inference-Header-Content-Length that says where the JSON ends is missing"
            )));
        };
        if rest.len() < size {
            return Err(Fault::bad(format!(
                "the body is shorter than declared: input {name:?} has a binary_data_size of {size}, and {} bytes are left",
                rest.len()
            )));
        }
        Ok(rest.split_to(size))
    }

    fn finish(self) -> Result<(), Fault> {
        match self.rest {
            Some(rest) if !rest.is_empty() => Err(Fault::bad(format!(
                "the body is longer than declared: {} bytes follow the last tensor; is a binary_data_size missing?",
                rest.len()
            ))),
            _ => Ok(()),
        }
    }
}

fn read_input<'a>(input: JsonInput<'a>, tail: &mut BinaryTail) -> Result<InferInput<'a>, Fault> {
    let JsonInput { name, shape, datatype, parameters, data } = input;
    let parameters = parameters.unwrap_or_default();
    let datatype = datatype_from_name(&name, &datatype)?;
    let count = count_elements(&name, &shape)?;
    if let Some(region) = parameters.shared_memory_region {
        if parameters.binary_data_size.is_some() || data.is_some() {
            return Err(Fault::bad(format!("input {name:?} is in shared memory and has data, too: give one of them")));
        }
        let (offset, byte_size) = (parameters.shared_memory_offset, parameters.shared_memory_byte_size);
        let region = Some(RegionParameters { region: region.0, offset, byte_size }.check("input", &name)?);
        return Ok(InferInput { name, datatype, shape, data: Bytes::new(), region });
    }
    let data = match (parameters.binary_data_size, data) {
        (Some(size), None) => {
            let data = tail.take(&name, size)?;
            check_elements(&name, datatype, &shape, &data)?;
            data
        }
        (None, Some(text)) => {
            let data = numbers::read(&name, datatype, count, text.get())?;
            check_count(&name, datatype, &shape, count, &data)?;
            Bytes::from(data)
        }
        (Some(_), Some(_)) => {
            return Err(Fault::bad(format!("input {name:?} has both data and a binary_data_size: give one of them")));
        }
        (None, None) => {
            return Err(Fault::bad(format!(
                "input {name:?} has no data: give data, or the parameter binary_data_size and the bytes behind the JSON"
            )));
        }
    };
    Ok(InferInput { name, datatype, shape, data, region: None })
}

/// The type of that name, or the sentence that says that there is none.
pub(crate) fn datatype_from_name(input: &str, name: &str) -> Result<DataType, Fault> {
    DataType::from_name(name).ok_or_else(|| {
        let known: Vec<&str> = DataType::ALL.iter().map(|datatype| datatype.name()).collect();
        Fault::bad(format!("input {input:?} has the datatype {name:?}, which is none of {}", known.join(", ")))
    })
}

/// Elements that were read one by one are well-formed: only their number may be wrong.
fn check_count(name: &str, datatype: DataType, shape: &[i64], count: usize, data: &[u8]) -> Result<(), Fault> {
    let Some(size) = datatype.size() else { return check_elements(name, datatype, shape, data) };
    let found = data.len() / size;
    if found == count {
        return Ok(());
    }
    Err(Fault::bad(format!("input {name:?} has {found} elements, but its shape {shape:?} takes {count}")))
}

fn read_output(output: JsonOutput<'_>, defaults: Parameters) -> Result<RequestedOutput<'_>, Fault> {
    let JsonOutput { name, parameters } = output;
    let parameters = parameters.unwrap_or_default();
    let region = match parameters.shared_memory_region {
        None => None,
        Some(region) => {
            let (offset, byte_size) = (parameters.shared_memory_offset, parameters.shared_memory_byte_size);
            Some(RegionParameters { region: region.0, offset, byte_size }.check("output", &name)?)
        }
    };
    Ok(RequestedOutput {
        binary: parameters.binary_data.unwrap_or(defaults.binary_outputs),
        classes: u32::try_from(parameters.classification.unwrap_or(0)).unwrap_or(u32::MAX),
        region,
        name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Region, SequenceId};
    use expect_test::expect;
    use proptest::prelude::*;

    fn sentence(json: &str) -> String {
        decode(&Bytes::copy_from_slice(json.as_bytes()), None).unwrap_err().to_string()
    }

    #[test]
    fn sequences_have_numbers_or_texts() {
        let mark = |parameters: &str| {
            let body = format!(r#"{{"parameters":{parameters},"inputs":[]}}"#).into();
            decode(&body, None).map(|request| request.sequence.map(|mark| *mark)).map_err(|fault| fault.to_string())
        };
        let text = SequenceMark { id: SequenceId::Text("a".into()), start: false, end: true };
        assert_eq!(mark(r#"{"sequence_id":"a","sequence_end":true}"#), Ok(Some(text)));
        for none in
            [r#"{"sequence_id":0,"sequence_start":true}"#, r#"{"sequence_id":""}"#, r#"{"sequence_start":true}"#]
        {
            assert_eq!(mark(none), Ok(None), "{none}");
        }
        for (wrong, why) in [
            (r#"{"sequence_id":-1}"#.to_owned(), "isn't negative"),
            (r#"{"sequence_id":1.5}"#.to_owned(), "isn't negative"),
            (format!(r#"{{"sequence_id":"{}"}}"#, "x".repeat(129)), "at most 128 bytes"),
        ] {
            assert!(mark(&wrong).unwrap_err().contains(why), "{wrong}");
        }
    }

    #[test]
    fn a_whole_request() {
        let body = Bytes::from_static(
            br#"{"id":"a","parameters":{"timeout":2500,"priority":1,"sequence_id":7,"sequence_start":true},
                "inputs":[{"data":[[1,2],[3,4]],"name":"x","shape":[2,2],"datatype":"FP32"}],
                "outputs":[{"name":"y","parameters":{"binary_data":true}},{"name":"z"}]}"#,
        );
        let request = decode(&body, None).unwrap();
        assert_eq!(request.id, "a");
        assert_eq!(request.parameters.timeout, Some(Duration::from_micros(2500)));
        assert_eq!(request.parameters.priority, 1);
        let mark = SequenceMark { id: SequenceId::Number(7), start: true, end: false };
        assert_eq!(request.sequence.as_deref(), Some(&mark));
        assert_eq!(request.inputs[0].shape, [2, 2]);
        assert_eq!(&request.inputs[0].data[..8], [0, 0, 128, 63, 0, 0, 0, 64]);
        let outputs: Vec<_> = request.outputs.iter().map(|o| (&*o.name, o.binary)).collect();
        assert_eq!(outputs, [("y", true), ("z", false)]);
        assert!(matches!(request.inputs[0].name, Cow::Borrowed(_)), "names without escapes are not copied");
    }

    #[test]
    fn parameters_of_the_clients_own_are_taken() {
        let body =
            br#"{"parameters":{"a":1,"b":-0.5,"c":"x\"","d":true,"e":null,"triton_enable_empty_final_response":true,
            "timeout":null,"priority":3,"binary_data_output":true,"application":"search"},"inputs":[]}"#;
        let body = Bytes::from_static(body);
        let request = decode(&body, None).unwrap();
        assert_eq!(request.application, "search");
        assert_eq!(request.parameters, Parameters { timeout: None, priority: 3, binary_outputs: true });
    }

    #[test]
    fn tensors_in_shared_memory_and_classes() {
        let body = Bytes::from_static(
            br#"{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","parameters":
                {"shared_memory_region":"in","shared_memory_offset":8,"shared_memory_byte_size":16}}],
                "outputs":[{"name":"y","parameters":{"shared_memory_region":"out","shared_memory_byte_size":4}},
                {"name":"z","parameters":{"classification":3}}]}"#,
        );
        let request = decode(&body, None).unwrap();
        let region = |name: &str, offset, byte_size| Some(Box::new(Region { name: name.into(), offset, byte_size }));
        assert_eq!(request.inputs[0].region, region("in", 8, 16));
        assert_eq!((request.outputs[0].region.clone(), request.outputs[0].classes), (region("out", 0, 4), 0));
        assert_eq!((request.outputs[1].region.clone(), request.outputs[1].classes), (None, 3));
    }

    /// Two binary inputs with one of JSON between them.
    fn mixed() -> (Bytes, usize) {
        let json = br#"{"inputs":[
            {"name":"a","shape":[2],"datatype":"INT16","parameters":{"binary_data_size":4}},
            {"name":"b","shape":[1],"datatype":"UINT8","data":[9]},
            {"name":"c","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":6}}],
            "parameters":{"binary_data_output":true},"outputs":[{"name":"y"}]}"#;
        let mut body = json.to_vec();
        body.extend_from_slice(b"\x01\x00\x02\x00\x02\x00\x00\x00hi");
        (Bytes::from(body), json.len())
    }

    #[test]
    fn binary_tensors_are_slices_of_the_body() {
        let (body, length) = mixed();
        let request = decode(&body, Some(length)).unwrap();
        let data: Vec<&[u8]> = request.inputs.iter().map(|input| &input.data[..]).collect();
        assert_eq!(data, [b"\x01\x00\x02\x00".as_slice(), b"\x09", b"\x02\x00\x00\x00hi"]);
        assert_eq!(request.inputs[0].data.as_ptr(), body[length..].as_ptr(), "not copied");
        assert!(request.outputs[0].binary, "binary_data_output is the outputs' default");
    }

    #[test]
    fn every_truncation_is_an_error() {
        let (body, length) = mixed();
        for end in 0..body.len() {
            assert!(decode(&body.slice(..end), Some(length)).is_err(), "cut at {end}");
            assert!(decode(&body.slice(..end), None).is_err(), "cut at {end}, header forgotten");
        }
    }

    #[test]
    fn lengths_that_disagree() {
        let (body, length) = mixed();
        let said = |body: &Bytes, length| decode(body, length).unwrap_err().to_string();
        expect![[r#"the body is shorter than declared: input "c" has a binary_data_size of 6, and 5 bytes are left"#]]
            .assert_eq(&said(&body.slice(..body.len() - 1), Some(length)));
        let longer = Bytes::from([&body[..], b"!"].concat());
        expect!["the body is longer than declared: 1 bytes follow the last tensor; is a binary_data_size missing?"]
            .assert_eq(&said(&longer, Some(length)));
        expect!["the body has 355 bytes, but Inference-Header-Content-Length says that 9999 of them are JSON"]
            .assert_eq(&said(&body, Some(9999)));
        expect![[r#"input "a" has a binary_data_size, but the header Inference-Header-Content-Length that says where the JSON ends is missing"#]]
            .assert_eq(&said(&body.slice(..length), None));
    }

    #[test]
    fn bad_requests_are_sentences() {
        expect!["the request is not what the protocol asks for: EOF while parsing a value at line 1 column 0"]
            .assert_eq(&sentence(""));
        expect!["the request is not what the protocol asks for: missing field `inputs` at line 1 column 2"]
            .assert_eq(&sentence("{}"));
        expect![[r#"the request is not what the protocol asks for: invalid type: string "soon", expected u64 at line 1 column 32"#]]
            .assert_eq(&sentence(r#"{"parameters":{"timeout": "soon" },"inputs":[]}"#));
        expect!["the request is not what the protocol asks for: invalid value: integer `-5`, expected u64 at line 1 column 28"]
            .assert_eq(&sentence(r#"{"parameters":{"timeout": -5},"inputs":[]}"#));
        expect![[r#"input "x" has the datatype "FLOAT", which is none of BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, FP32, FP64, BF16, BYTES"#]]
            .assert_eq(&sentence(r#"{"inputs":[{"name":"x","shape":[1],"datatype":"FLOAT","data":[1]}]}"#));
        expect![[r#"input "x" has 3 elements, but its shape [2] takes 2"#]]
            .assert_eq(&sentence(r#"{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[1,2,3]}]}"#));
        expect![[r#"input "x" has the dimension -1 in its shape [-1]: none may be negative"#]]
            .assert_eq(&sentence(r#"{"inputs":[{"name":"x","shape":[-1],"datatype":"FP32","data":[1,2,3]}]}"#));
        expect!["the request is not what the protocol asks for: invalid value: integer `18446744073709551615`, expected i64 at line 1 column 52"]
            .assert_eq(&sentence(r#"{"inputs":[{"name":"x","shape":[18446744073709551615],"datatype":"FP32","data":[1]}]}"#));
        expect![[
            r#"input "x" has no data: give data, or the parameter binary_data_size and the bytes behind the JSON"#
        ]]
        .assert_eq(&sentence(r#"{"inputs":[{"name":"x","shape":[1],"datatype":"FP32"}]}"#));
        expect![[r#"input "x" is in shared memory: say how long it is with shared_memory_byte_size"#]].assert_eq(
            &sentence(
                r#"{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","parameters":{"shared_memory_region":"r"}}]}"#,
            ),
        );
        expect![[r#"input "x" is in shared memory and has data, too: give one of them"#]].assert_eq(&sentence(
            r#"{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1],"parameters":{"shared_memory_region":"r"}}]}"#,
        ));
        expect![[r#"the request is not what the protocol asks for: the parameter "triton_magic" begins with "triton_", which is reserved: choose another name at line 1 column 29"#]].assert_eq(&sentence(r#"{"parameters":{"triton_magic":1},"inputs":[]}"#));
        expect!["the request is not what the protocol asks for: invalid type: map, expected a text, a number, true or false at line 1 column 23"].assert_eq(&sentence(r#"{"parameters":{"mine":{"a":1}},"inputs":[]}"#));
    }

    #[test]
    fn a_huge_claim_reserves_nothing() {
        let body = r#"{"inputs":[{"name":"x","shape":[1000000000000],"datatype":"FP64","data":[1]}]}"#;
        expect![[r#"input "x" has 1 elements, but its shape [1000000000000] takes 1000000000000"#]]
            .assert_eq(&sentence(body));
    }

    #[test]
    fn deep_nesting_does_not_recurse() {
        let depth = 200_000;
        let body = format!(
            r#"{{"inputs":[{{"name":"x","shape":[1],"datatype":"FP32","data":{}1{}}}]}}"#,
            "[".repeat(depth),
            "]".repeat(depth)
        );
        let body = Bytes::from(body);
        assert_eq!(decode(&body, None).unwrap().inputs[0].data.len(), 4);
    }

    proptest! {
        /// Whatever comes is an answer or a sentence, never a panic.
        #[test]
        fn noise_never_panics(body in proptest::collection::vec(any::<u8>(), 0..200), length in proptest::option::of(0usize..220)) {
            let _ = decode(&Bytes::from(body), length);
        }

        /// One byte of a good request changed: an answer or a sentence, never a panic.
        #[test]
        fn one_wrong_byte_never_panics(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let (body, length) = mixed();
            let mut body = body.to_vec();
            let at = at.index(body.len());
            body[at] = byte;
            let _ = decode(&Bytes::from(body), Some(length));
        }
    }
}
