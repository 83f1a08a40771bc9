//! What the server and its models are, as JSON and as protobuf.

use super::write_string;
use crate::{numbers, proto};
use base::{ModelSignature, TensorSpec};
use proto::model_metadata_response::TensorMetadata;

/// What a model is, for clients that ask.
#[derive(Clone, Debug)]
pub struct ModelMetadata<'a> {
    /// The model's name.
    pub name: &'a str,
    /// The versions that can be asked, ascending.
    pub versions: Vec<u64>,
    /// Triton's name for the kind of model.
    pub platform: &'a str,
    /// What it takes and gives.
    pub signature: &'a ModelSignature,
}

/// The body that says who the server is.
pub fn server_metadata(name: &str, version: &str, extensions: &[&str]) -> Vec<u8> {
    let mut json = b"{\"name\":".to_vec();
    write_string(&mut json, name);
    json.extend_from_slice(b",\"version\":");
    write_string(&mut json, version);
    json.extend_from_slice(b",\"extensions\":");
    numbers::json(&mut json, extensions);
    json.push(b'}');
    json
}

/// The body that says what a model takes and gives.
pub fn model_metadata(metadata: &ModelMetadata<'_>) -> Vec<u8> {
    let mut json = b"{\"name\":".to_vec();
    write_string(&mut json, metadata.name);
    json.extend_from_slice(b",\"versions\":");
    let versions: Vec<String> = metadata.versions.iter().map(u64::to_string).collect();
    numbers::json(&mut json, &versions);
    json.extend_from_slice(b",\"platform\":");
    write_string(&mut json, metadata.platform);
    json.extend_from_slice(b",\"inputs\":");
    write_specs(&mut json, &metadata.signature.inputs);
    json.extend_from_slice(b",\"outputs\":");
    write_specs(&mut json, &metadata.signature.outputs);
    json.push(b'}');
    json
}

fn write_specs(json: &mut Vec<u8>, specs: &[TensorSpec]) {
    json.push(b'[');
    for (position, spec) in specs.iter().enumerate() {
        if position > 0 {
            json.push(b',');
        }
        json.extend_from_slice(b"{\"name\":");
        write_string(json, &spec.name);
        json.extend_from_slice(b",\"datatype\":\"");
        json.extend_from_slice(spec.datatype.name().as_bytes());
        json.extend_from_slice(b"\",\"shape\":");
        numbers::json(json, &spec.dims);
        json.push(b'}');
    }
    json.push(b']');
}

impl From<ModelMetadata<'_>> for proto::ModelMetadataResponse {
    fn from(metadata: ModelMetadata<'_>) -> Self {
        let specs = |specs: &[TensorSpec]| {
            let spec = |spec: &TensorSpec| TensorMetadata {
                name: spec.name.clone(),
                datatype: spec.datatype.name().to_owned(),
                shape: spec.dims.clone(),
            };
            specs.iter().map(spec).collect()
        };
        Self {
            name: metadata.name.to_owned(),
            versions: metadata.versions.iter().map(u64::to_string).collect(),
            platform: metadata.platform.to_owned(),
            inputs: specs(&metadata.signature.inputs),
            outputs: specs(&metadata.signature.outputs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::DataType;
    use expect_test::expect;

    #[test]
    fn both_bodies() {
        expect![[r#"{"name":"punctual","version":"0.1.0","extensions":["binary_tensor_data"]}"#]]
            .assert_eq(&String::from_utf8(server_metadata("punctual", "0.1.0", &["binary_tensor_data"])).unwrap());
        let spec =
            |name: &str, dims: &[i64]| TensorSpec { name: name.into(), datatype: DataType::Fp32, dims: dims.into() };
        let signature =
            ModelSignature { inputs: vec![spec("x", &[-1, 4])], outputs: vec![spec("y", &[-1])], max_batch: 8 };
        let metadata =
            ModelMetadata { name: "m", versions: vec![1, 2], platform: "onnxruntime_onnx", signature: &signature };
        expect![[r#"{"name":"m","versions":["1","2"],"platform":"onnxruntime_onnx","inputs":[{"name":"x","datatype":"FP32","shape":[-1,4]}],"outputs":[{"name":"y","datatype":"FP32","shape":[-1]}]}"#]]
            .assert_eq(&String::from_utf8(model_metadata(&metadata)).unwrap());
        let message = proto::ModelMetadataResponse::from(metadata);
        assert_eq!((message.versions, message.inputs[0].shape.clone()), (vec!["1".into(), "2".into()], vec![-1, 4]));
    }
}
