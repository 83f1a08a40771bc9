//! Protobuf messages as JSON and back, from their description: for the calls that nobody makes a thousand times a second.

use crate::{Fault, proto};
use base::Reason;
use prost::Message;
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions};
use std::sync::LazyLock;

static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(proto::DESCRIPTION).expect("the build wrote the description"));

/// The description of all messages.
pub fn descriptors() -> &'static DescriptorPool {
    &POOL
}

/// A message of the protocol, by the name that it has there.
pub fn descriptor(name: &str) -> MessageDescriptor {
    POOL.get_message_by_name(&format!("inference.{name}")).expect("the protocol has every message that is asked for")
}

/// A message as JSON in Triton's form: the protocol's names, numbers as numbers, and everything there, whether set or not.
pub fn to_json(name: &str, message: &impl Message) -> Vec<u8> {
    let mut dynamic = DynamicMessage::new(descriptor(name));
    dynamic.transcode_from(message).expect("a message is what its own description says");
    let options =
        SerializeOptions::new().stringify_64_bit_integers(false).use_proto_field_name(true).skip_default_fields(false);
    let mut json = Vec::new();
    dynamic
        .serialize_with_options(&mut serde_json::Serializer::new(&mut json), &options)
        .expect("messages are written into memory, and their keys are texts or numbers");
    json
}

/// A message from JSON. What the description doesn't have is refused.
pub fn from_json<M: Message + Default>(name: &str, json: &[u8]) -> Result<M, Fault> {
    let bad = |error: &dyn std::fmt::Display| Fault::bad(format!("the JSON is not a {name}: {error}"));
    let mut reader = serde_json::Deserializer::from_slice(json);
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    let dynamic = DynamicMessage::deserialize_with_options(descriptor(name), &mut reader, &options)
        .map_err(|error| bad(&error))?;
    reader.end().map_err(|error| bad(&error))?;
    dynamic.transcode_to().map_err(|error| Fault::new(Reason::BadInput, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use proto::{ModelConfig, ModelInput};

    #[test]
    fn there_and_back() {
        let input = ModelInput { name: "x".into(), data_type: 11, dims: vec![-1, 3], ..Default::default() };
        let config = ModelConfig { name: "m".into(), max_batch_size: 8, input: vec![input], ..Default::default() };
        let json = to_json("ModelConfig", &config);
        let text = String::from_utf8(json.clone()).unwrap();
        assert!(
            text.contains(r#""input":[{"name":"x","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[-1,3]"#),
            "{text}"
        );
        assert_eq!(from_json::<ModelConfig>("ModelConfig", &json).unwrap(), config);
    }

    #[test]
    fn what_is_not_there_is_refused() {
        expect!["the JSON is not a ModelConfig: unrecognized field name 'nmae' at line 1 column 7"]
            .assert_eq(&from_json::<ModelConfig>("ModelConfig", br#"{"nmae": "m"}"#).unwrap_err().to_string());
    }
}
