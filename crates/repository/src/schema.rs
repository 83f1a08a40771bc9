//! From a configuration's tree to Triton's own message, by the message's description: every field that is known is read,
//! whether it means something here or not.

use crate::text::{Field, Message, Problem, Value, ValueKind};
use crate::values::{Warnings, boolean, each, problem, shown, wide_integer, word};
use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage, Value as Proto,
};
#[cfg(test)]
use std::collections::HashMap;
use wire::proto;

/// Reads a whole configuration. Fields that aren't known go into `warnings`.
pub fn read(tree: &Message, warnings: Warnings<'_>) -> Result<proto::ModelConfig, Problem> {
    let read = message(tree, wire::reflect::descriptor("ModelConfig"), warnings)?;
    Ok(read.transcode_to().expect("a message is what its own description says"))
}

fn message(tree: &Message, descriptor: MessageDescriptor, warnings: Warnings<'_>) -> Result<DynamicMessage, Problem> {
    let mut message = DynamicMessage::new(descriptor);
    for field in &tree.fields {
        match message.descriptor().get_field_by_name(&field.name) {
            Some(known) => set(&mut message, &known, field, warnings)?,
            None => {
                warnings.push(problem(field.place, format!("field `{}` isn't known and is ignored", field.name)));
            }
        }
    }
    Ok(message)
}

fn set(
    message: &mut DynamicMessage,
    known: &FieldDescriptor,
    field: &Field,
    warnings: Warnings<'_>,
) -> Result<(), Problem> {
    if known.is_map() {
        let Kind::Message(entry) = known.kind() else { unreachable!("a map's entries are messages") };
        let (key, value) = (entry.map_entry_key_field(), entry.map_entry_value_field());
        for given in each(&field.value) {
            let (key, value) = map_entry(field, given, &key, &value, warnings)?;
            let Some(entries) = message.get_field_mut(known).as_map_mut() else { unreachable!("it is a map") };
            entries.insert(key, value);
        }
        return Ok(());
    }
    if known.is_list() {
        for given in each(&field.value) {
            let value = single(field, given, known, warnings)?;
            let Some(values) = message.get_field_mut(known).as_list_mut() else { unreachable!("it is a list") };
            values.push(value);
        }
        return Ok(());
    }
    if message.has_field(known) {
        return Err(problem(field.place, format!("`{}` is given twice", field.name)));
    }
    let others = known.containing_oneof();
    if let Some(other) = others.and_then(|oneof| oneof.fields().find(|other| message.has_field(other))) {
        return Err(problem(field.place, format!("`{}` and `{}` exclude one another", other.name(), field.name)));
    }
    if matches!(field.value.kind, ValueKind::List(_)) {
        return Err(problem(field.value.place, format!("`{}` has one value, not a list", field.name)));
    }
    let value = single(field, &field.value, known, warnings)?;
    message.set_field(known, value);
    Ok(())
}

fn map_entry(
    field: &Field,
    given: &Value,
    key: &FieldDescriptor,
    value: &FieldDescriptor,
    warnings: Warnings<'_>,
) -> Result<(MapKey, Proto), Problem> {
    let tree = crate::values::message(field, given)?;
    let part = |name: &str| tree.fields.iter().rfind(|part| part.name == name);
    let key = match part("key") {
        Some(part) => single(part, &part.value, key, warnings)?,
        None => key.default_value(),
    };
    let value = match part("value") {
        Some(part) => single(part, &part.value, value, warnings)?,
        None => value.default_value(),
    };
    let key = match key {
        Proto::String(key) => MapKey::String(key),
        Proto::U64(key) => MapKey::U64(key),
        other => return Err(problem(given.place, format!("{other:?} can't be a key of `{}`", field.name))),
    };
    Ok((key, value))
}

fn single(field: &Field, value: &Value, known: &FieldDescriptor, warnings: Warnings<'_>) -> Result<Proto, Problem> {
    let name = &field.name;
    let whole = |least: i128, most: i128| {
        let number = wide_integer(name, value)?;
        if (least..=most).contains(&number) {
            return Ok(number);
        }
        Err(problem(value.place, format!("{name} is {number}: it must be from {least} to {most}")))
    };
    Ok(match known.kind() {
        Kind::String => Proto::String(crate::values::text(field, value)?.to_owned()),
        Kind::Bool => Proto::Bool(boolean(name, value)?),
        Kind::Int32 => Proto::I32(whole(i32::MIN.into(), i32::MAX.into())? as i32),
        Kind::Int64 => Proto::I64(whole(i64::MIN.into(), i64::MAX.into())? as i64),
        Kind::Uint32 => Proto::U32(whole(0, u32::MAX.into())? as u32),
        Kind::Uint64 => Proto::U64(whole(0, u64::MAX.into())? as u64),
        Kind::Float => Proto::F32(real(name, value)? as f32),
        Kind::Double => Proto::F64(real(name, value)?),
        Kind::Enum(known) => Proto::EnumNumber(choice(name, value, &known)?),
        Kind::Message(known) => Proto::Message(message(crate::values::message(field, value)?, known, warnings)?),
        other => return Err(problem(value.place, format!("`{name}` is of a kind that isn't read here: {other:?}"))),
    })
}

fn real(name: &str, value: &Value) -> Result<f64, Problem> {
    let parse = |word: &str| word.trim_end_matches(['f', 'F']).parse::<f64>().ok().or_else(|| word.parse().ok());
    word(value)
        .and_then(parse)
        .ok_or_else(|| problem(value.place, format!("`{name}` must be a number{}", shown(value))))
}

fn choice(name: &str, value: &Value, known: &EnumDescriptor) -> Result<i32, Problem> {
    let word = word(value).unwrap_or_default();
    let by_number = word.parse().ok().and_then(|number| known.get_value(number));
    known.get_value_by_name(word).or(by_number).map(|found| found.number()).ok_or_else(|| {
        let names: Vec<String> = known.values().map(|value| value.name().to_owned()).collect();
        problem(value.place, format!("`{name}` must be one of {}{}", names.join(", "), shown(value)))
    })
}

/// Every field of the configuration, those of nested messages included, as `message.field` below `ModelConfig`.
#[cfg(test)]
pub fn all_fields() -> Vec<(String, String)> {
    fn walk(within: &MessageDescriptor, seen: &mut HashMap<String, ()>, found: &mut Vec<(String, String)>) {
        if seen.insert(within.full_name().to_owned(), ()).is_some() {
            return;
        }
        for field in within.fields() {
            if !within.is_map_entry() {
                found.push((within.name().to_owned(), field.name().to_owned()));
            }
            if let Kind::Message(inner) = field.kind() {
                walk(&inner, seen, found);
            }
        }
    }
    let mut found = Vec::new();
    walk(&wire::reflect::descriptor("ModelConfig"), &mut HashMap::new(), &mut found);
    found
}
