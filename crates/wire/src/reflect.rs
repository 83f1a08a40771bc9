//! Protobuf messages as JSON, from their description: for the calls that nobody makes a thousand times a second.

use crate::proto;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};
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

/// A message as JSON in Triton's form: the protocol's names, numbers as numbers, and everything there, whether set or
/// not.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proto::{ModelConfig, ModelInput};

    #[test]
    fn everything_is_there_by_the_protocols_names() {
        let input = ModelInput { name: "x".into(), data_type: 11, dims: vec![-1, 3], ..Default::default() };
        let config = ModelConfig { name: "m".into(), max_batch_size: 8, input: vec![input], ..Default::default() };
        let text = String::from_utf8(to_json("ModelConfig", &config)).unwrap();
        for part in [
            r#""name":"m","#,
            r#""max_batch_size":8,"#,
            r#""input":[{"name":"x","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[-1,3]"#,
            r#""output":[],"#,
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
