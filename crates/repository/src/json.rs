//! A configuration that comes as JSON, as clients send it with a load, as the same tree that a text gives.

use crate::text::{TextField, TextMessage, TextPosition, TextProblem, TextValue, ValueKind};
use crate::values::problem;
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use serde_json::Value as Json;

/// Reads a whole configuration.
pub fn parse(text: &str) -> Result<TextMessage, TextProblem> {
    let json: Json = serde_json::from_str(text)
        .map_err(|error| problem(TextPosition::NOWHERE, format!("the configuration isn't JSON: {error}")))?;
    let Json::Object(_) = json else {
        return Err(problem(
            TextPosition::NOWHERE,
            "the configuration must be a JSON object, as in {\"max_batch_size\": 8}",
        ));
    };
    let value = message(&json, &wire::reflect::descriptor("ModelConfig"));
    match value.kind {
        ValueKind::Message(message) => Ok(message),
        _ => unreachable!("an object gives a message"),
    }
}

fn value(kind: ValueKind) -> TextValue {
    TextValue { position: TextPosition::NOWHERE, kind }
}

fn field(name: &str, value: TextValue) -> TextField {
    TextField { name: name.to_owned(), position: TextPosition::NOWHERE, value }
}

fn message(json: &Json, descriptor: &MessageDescriptor) -> TextValue {
    let Json::Object(entries) = json else { return scalar(json, false) };
    let mut fields = Vec::new();
    for (name, json) in entries.iter().filter(|(_, json)| !json.is_null()) {
        let known = descriptor.get_field_by_name(name).or_else(|| descriptor.get_field_by_json_name(name));
        let name = known.as_ref().map_or(name.as_str(), |known| known.name());
        fields.push(field(name, known.as_ref().map_or_else(|| scalar(json, false), |known| of_field(json, known))));
    }
    value(ValueKind::Message(TextMessage { fields }))
}

fn of_field(json: &Json, known: &FieldDescriptor) -> TextValue {
    match (json, known.kind()) {
        (Json::Object(entries), Kind::Message(entry)) if known.is_map() => {
            let entries = entries.iter().map(|(key, json)| {
                let key = match entry.map_entry_key_field().kind() {
                    Kind::String => ValueKind::Text(key.clone()),
                    _ => ValueKind::Word(key.clone()),
                };
                let inner = one(json, &entry.map_entry_value_field());
                let fields = vec![field("key", value(key)), field("value", inner)];
                value(ValueKind::Message(TextMessage { fields }))
            });
            value(ValueKind::List(entries.collect()))
        }
        (Json::Array(values), _) => value(ValueKind::List(values.iter().map(|json| one(json, known)).collect())),
        _ => one(json, known),
    }
}

fn one(json: &Json, known: &FieldDescriptor) -> TextValue {
    match known.kind() {
        Kind::Message(descriptor) => message(json, &descriptor),
        Kind::String => scalar(json, false),
        // Names of enums come in quotes, and so do numbers of 64 bits.
        _ => scalar(json, true),
    }
}

fn scalar(json: &Json, texts_are_words: bool) -> TextValue {
    value(match json {
        Json::String(text) if texts_are_words => ValueKind::Word(text.clone()),
        Json::String(text) => ValueKind::Text(text.clone()),
        Json::Array(values) => ValueKind::List(values.iter().map(|json| scalar(json, texts_are_words)).collect()),
        Json::Object(_) => ValueKind::Message(TextMessage::default()),
        Json::Null | Json::Bool(_) | Json::Number(_) => ValueKind::Word(json.to_string()),
    })
}
