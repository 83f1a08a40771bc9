//! Which inputs of a graph have a default, changed in the bytes of a file: what nobody declares here stays as it is.

use crate::{GraphProto, Message, ModelProto, ValueInfoProto};
use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field};
use std::collections::HashSet;

/// From this version of the format on an input with an initializer has a default; before, all initializers are inputs.
const WITH_DEFAULTS: i64 = 4;
const IR_VERSION: u32 = 1;
const GRAPH: u32 = 7;
const INPUT: u32 = 11;

/// The file in which, of the initializers that are inputs, those of these names are inputs with a default, and the
/// others are constants.
pub fn with_defaults(file: &[u8], has_default: &dyn Fn(&str) -> bool) -> Result<Vec<u8>, DecodeError> {
    let model = ModelProto::decode(file)?;
    let mut changed = Vec::with_capacity(file.len() + 16);
    let mut rest = file;
    while !rest.is_empty() {
        let field = next_field(&mut rest)?;
        match (field.tag, field.content, &model.graph) {
            (GRAPH, Some(content), Some(graph)) => {
                let content = with_inputs(content, graph, has_default)?;
                encode_key(GRAPH, WireType::LengthDelimited, &mut changed);
                encode_varint(content.len() as u64, &mut changed);
                changed.extend_from_slice(&content);
            }
            _ => changed.extend_from_slice(field.whole),
        }
    }
    Ok(with_ir_version(changed, model.ir_version))
}

/// A file of that version as one in which initializers needn't be inputs.
pub(crate) fn with_ir_version(mut file: Vec<u8>, version: i64) -> Vec<u8> {
    if version < WITH_DEFAULTS {
        // Of a number that is there several times the last one counts.
        encode_key(IR_VERSION, WireType::Varint, &mut file);
        encode_varint(WITH_DEFAULTS as u64, &mut file);
    }
    file
}

/// A graph's bytes without the inputs that are constants.
fn with_inputs(content: &[u8], graph: &GraphProto, has_default: &dyn Fn(&str) -> bool) -> Result<Vec<u8>, DecodeError> {
    let known: HashSet<&str> = graph.initializers.iter().map(|tensor| tensor.name.as_str()).collect();
    let mut changed = Vec::with_capacity(content.len());
    let mut rest = content;
    while !rest.is_empty() {
        let field = next_field(&mut rest)?;
        let name = match (field.tag, field.content) {
            (INPUT, Some(content)) => Some(ValueInfoProto::decode(content)?.name),
            _ => None,
        };
        if !name.is_some_and(|name| known.contains(name.as_str()) && !has_default(&name)) {
            changed.extend_from_slice(field.whole);
        }
    }
    Ok(changed)
}

/// One field of a message.
pub(crate) struct Field<'a> {
    pub(crate) tag: u32,
    /// With its key.
    pub(crate) whole: &'a [u8],
    /// Of a field with a length.
    pub(crate) content: Option<&'a [u8]>,
}

/// Takes the next field off a message.
pub(crate) fn next_field<'a>(message: &mut &'a [u8]) -> Result<Field<'a>, DecodeError> {
    let from_key = *message;
    let (tag, kind) = decode_key(message)?;
    let mut value = *message;
    skip_field(kind, tag, message, DecodeContext::default())?;
    let whole = &from_key[..from_key.len() - message.len()];
    let content = match kind {
        WireType::LengthDelimited => {
            decode_varint(&mut value)?;
            Some(&value[..value.len() - message.len()])
        }
        _ => None,
    };
    Ok(Field { tag, whole, content })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpsetProto, TensorProto};

    fn file(ir_version: i64) -> Vec<u8> {
        let input = |name: &str| ValueInfoProto { name: name.into(), kind: None };
        let weight = |name: &str| TensorProto { name: name.into(), ..TensorProto::default() };
        let graph = GraphProto {
            inputs: ["x", "w", "scale"].map(input).into(),
            initializers: ["w", "scale"].map(weight).into(),
            ..GraphProto::default()
        };
        let opsets = vec![OpsetProto { version: 8, ..OpsetProto::default() }];
        ModelProto { ir_version, graph: Some(graph), opsets, ..ModelProto::default() }.encode_to_vec()
    }

    #[test]
    fn only_the_meant_inputs_have_defaults() {
        for (version, then) in [(3, 4), (8, 8)] {
            let mut file = file(version);
            // A field that isn't declared here: the producer's name.
            file.extend_from_slice(b"\x12\x02me");
            let changed = with_defaults(&file, &|name| name == "scale").unwrap();
            assert!(changed.windows(4).any(|part| part == b"\x12\x02me"));
            let model = ModelProto::decode(&changed[..]).unwrap();
            let graph = model.graph.unwrap();
            let names: Vec<_> = graph.inputs.iter().map(|input| input.name.as_str()).collect();
            assert_eq!((model.ir_version, &names[..]), (then, &["x", "scale"][..]));
            assert_eq!((graph.initializers.len(), model.opsets[0].version), (2, 8));
        }
        assert!(with_defaults(&file(3)[..9], &|_| true).is_err(), "a part of a file");
    }
}
