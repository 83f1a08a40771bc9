//! An answer into an HTTP body.

use super::write_string;
use crate::room::room;
use crate::{Fault, InferResponse, OutputTensor, ResponseParameter, numbers};
use base::DataType;
use bytes::Bytes;
use std::io::Write;

/// An HTTP body: JSON, then the binary tensors, in the order of the outputs.
#[derive(Debug)]
pub struct Encoded {
    /// The JSON part.
    pub json: Vec<u8>,
    /// The binary tensors; when there are any, the answer needs `Inference-Header-Content-Length`.
    pub binary: Vec<Bytes>,
}

/// Refuses, before anything is computed, an output that could not be written in the form that was asked for.
pub fn check_output(name: &str, datatype: DataType, binary: bool) -> Result<(), Fault> {
    match datatype {
        DataType::Fp16 | DataType::Bf16 if !binary => Err(numbers::no_json_form(name, datatype)),
        _ => Ok(()),
    }
}

/// Writes an answer.
pub fn encode(response: &InferResponse<'_>) -> Result<Encoded, Fault> {
    let mut json = room(estimate(response))?;
    json.extend_from_slice(b"{\"model_name\":");
    write_string(&mut json, response.model_name);
    // A Vec takes every write.
    let _ = write!(json, ",\"model_version\":\"{}\"", response.model_version);
    if !response.id.is_empty() {
        json.extend_from_slice(b",\"id\":");
        write_string(&mut json, response.id);
    }
    write_parameters(&mut json, response.parameters);
    json.extend_from_slice(b",\"outputs\":[");
    let mut binary = Vec::new();
    for (position, output) in response.outputs.iter().enumerate() {
        if position > 0 {
            json.push(b',');
        }
        write_output(&mut json, output, &mut binary)?;
    }
    json.extend_from_slice(b"]}");
    Ok(Encoded { json, binary })
}

fn write_parameters(json: &mut Vec<u8>, parameters: &[(&str, ResponseParameter)]) {
    for (position, (name, value)) in parameters.iter().enumerate() {
        json.extend_from_slice(if position == 0 { b",\"parameters\":{" } else { b"," });
        write_string(json, name);
        json.push(b':');
        match value {
            ResponseParameter::Text(text) => write_string(json, text),
            ResponseParameter::Number(number) => numbers::json(json, number),
            ResponseParameter::Flag(flag) => numbers::json(json, flag),
        }
    }
    if !parameters.is_empty() {
        json.push(b'}');
    }
}

fn write_output(json: &mut Vec<u8>, output: &OutputTensor<'_>, binary: &mut Vec<Bytes>) -> Result<(), Fault> {
    json.extend_from_slice(b"{\"name\":");
    write_string(json, output.name);
    json.extend_from_slice(b",\"datatype\":\"");
    json.extend_from_slice(output.datatype.name().as_bytes());
    json.extend_from_slice(b"\",\"shape\":");
    numbers::json(json, output.shape);
    if let Some(region) = output.region {
        json.extend_from_slice(b",\"parameters\":{\"shared_memory_region\":");
        write_string(json, &region.name);
        if region.offset > 0 {
            let _ = write!(json, ",\"shared_memory_offset\":{}", region.offset);
        }
        // Triton's C++ client looks for the bytes behind the JSON wherever there are parameters: there are none.
        let _ = write!(json, ",\"shared_memory_byte_size\":{},\"binary_data_size\":0}}}}", region.byte_size);
    } else if output.binary {
        let _ = write!(json, ",\"parameters\":{{\"binary_data_size\":{}}}}}", output.data.len());
        binary.push(output.data.clone());
    } else {
        json.extend_from_slice(b",\"data\":");
        numbers::write(json, output.name, output.datatype, &output.data)?;
        json.push(b'}');
    }
    Ok(())
}

/// About how long the JSON will be: a float of single precision takes up to 15 characters with its comma.
fn estimate(response: &InferResponse<'_>) -> usize {
    let outputs = response.outputs.iter().map(|output| {
        let elements = if output.binary { 0 } else { output.data.len() / output.datatype.size().unwrap_or(8) };
        96 + output.name.len() + elements * 15
    });
    96 + response.model_name.len() + response.id.len() + outputs.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;
    use expect_test::expect;

    fn floats(values: &[f32]) -> Bytes {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    fn response<'a>(id: &'a str, binary: bool) -> InferResponse<'a> {
        let output = |name, shape, data, binary| OutputTensor {
            name,
            datatype: DataType::Fp32,
            shape,
            data,
            binary,
            region: None,
        };
        InferResponse {
            model_name: "m",
            model_version: 3,
            id,
            parameters: &[],
            outputs: vec![
                output("y", &[1, 3], floats(&[0.1, 1.0, -1.5e-9]), binary),
                output("z", &[1], floats(&[2.0]), false),
            ],
        }
    }

    #[test]
    fn what_is_said_beside_outputs_stands_before_them() {
        let parameters = [
            ("selected", ResponseParameter::Text("a\"b".into())),
            ("confidence", ResponseParameter::Number(0.5)),
            ("default", ResponseParameter::Flag(true)),
        ];
        let response = InferResponse { parameters: &parameters, outputs: Vec::new(), ..response("7", false) };
        expect![[r#"{"model_name":"m","model_version":"3","id":"7","parameters":{"selected":"a\"b","confidence":0.5,"default":true},"outputs":[]}"#]]
            .assert_eq(std::str::from_utf8(&encode(&response).unwrap().json).unwrap());
    }

    #[test]
    fn floats_have_their_shortest_digits() {
        let encoded = encode(&response("", false)).unwrap();
        expect![[r#"{"model_name":"m","model_version":"3","outputs":[{"name":"y","datatype":"FP32","shape":[1,3],"data":[0.1,1.0,-1.5e-9]},{"name":"z","datatype":"FP32","shape":[1],"data":[2.0]}]}"#]]
            .assert_eq(std::str::from_utf8(&encoded.json).unwrap());
        assert!(encoded.binary.is_empty());
    }

    #[test]
    fn binary_outputs_say_their_size_and_follow() {
        let encoded = encode(&response("7\"", true)).unwrap();
        expect![[r#"{"model_name":"m","model_version":"3","id":"7\"","outputs":[{"name":"y","datatype":"FP32","shape":[1,3],"parameters":{"binary_data_size":12}},{"name":"z","datatype":"FP32","shape":[1],"data":[2.0]}]}"#]]
            .assert_eq(std::str::from_utf8(&encoded.json).unwrap());
        assert_eq!(encoded.binary, [floats(&[0.1, 1.0, -1.5e-9])]);
    }

    #[test]
    fn outputs_in_shared_memory_say_where_they_are() {
        let mut response = response("", true);
        let region = Region { name: "r\"".into(), offset: 8, byte_size: 12 };
        response.outputs.truncate(1);
        response.outputs[0].region = Some(&region);
        let encoded = encode(&response).unwrap();
        expect![[r#"{"model_name":"m","model_version":"3","outputs":[{"name":"y","datatype":"FP32","shape":[1,3],"parameters":{"shared_memory_region":"r\"","shared_memory_offset":8,"shared_memory_byte_size":12,"binary_data_size":0}}]}"#]].assert_eq(std::str::from_utf8(&encoded.json).unwrap());
        assert!(encoded.binary.is_empty());
    }

    #[test]
    fn the_estimate_is_enough_for_any_float() {
        let data = floats(&[f32::MIN; 1000]);
        let output =
            OutputTensor { name: "y", datatype: DataType::Fp32, shape: &[1000], data, binary: false, region: None };
        let response =
            InferResponse { model_name: "m", model_version: 1, id: "", parameters: &[], outputs: vec![output] };
        assert!(encode(&response).unwrap().json.len() <= estimate(&response));
    }

    #[test]
    fn half_precision_needs_binary() {
        assert!(check_output("y", DataType::Fp16, true).is_ok());
        expect![[r#"output "y" is FP16, which JSON has no form for: ask for it with binary_data"#]]
            .assert_eq(&check_output("y", DataType::Fp16, false).unwrap_err().to_string());
    }
}
