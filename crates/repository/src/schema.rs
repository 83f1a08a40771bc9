//! From a configuration's tree to Triton's own message, by the message's description: every field that is known is
//! read, whether it means something here or not, and it is noted where each of them stands.

use crate::meaning::{limits, unused};
use crate::positions::Positions;
use crate::text::{TextField, TextMessage, TextProblem, TextValue, ValueKind};
use crate::values::{Warnings, boolean, each, inner_message, integer, problem, shown, text, word};
use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage, Value,
};
#[cfg(test)]
use std::collections::HashMap;
use wire::proto;

/// Reads a whole configuration. What isn't known and what means nothing here goes into `warnings`.
pub fn read(tree: &TextMessage, warnings: Warnings<'_>) -> Result<(proto::ModelConfig, Positions), TextProblem> {
    let mut reader = SchemaReader { positions: Positions::default(), warnings };
    let read = reader.message(tree, "", wire::reflect::descriptor("ModelConfig"))?;
    Ok((read.transcode_to().expect("a message is what its own description says"), reader.positions))
}

struct SchemaReader<'a> {
    positions: Positions,
    warnings: Warnings<'a>,
}

impl SchemaReader<'_> {
    fn message(
        &mut self,
        tree: &TextMessage,
        path: &str,
        descriptor: MessageDescriptor,
    ) -> Result<DynamicMessage, TextProblem> {
        let mut message = DynamicMessage::new(descriptor);
        for field in &tree.fields {
            let name = &field.name;
            let Some(known) = message.descriptor().get_field_by_name(name) else {
                self.warnings.push(problem(field.position, format!("field `{name}` isn't known and is ignored")));
                continue;
            };
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            self.field(&mut message, &known, field, &path)?;
            self.positions.insert(path, field.position, field.value.position);
            // What is set to nothing says nothing; only `allow_timeout_override: false` forbids something.
            let says_something = message.has_field(&known) || name == "allow_timeout_override";
            if let Some(reason) = unused(message.descriptor().name(), name).filter(|_| says_something) {
                self.warnings.push(problem(field.position, format!("{name} is ignored: {reason}")));
            }
        }
        Ok(message)
    }

    fn field(
        &mut self,
        message: &mut DynamicMessage,
        known: &FieldDescriptor,
        field: &TextField,
        path: &str,
    ) -> Result<(), TextProblem> {
        if known.is_map() {
            return self.map(message, known, field, path);
        }
        if known.is_list() {
            return self.list(message, known, field, path);
        }
        if message.has_field(known) {
            return Err(problem(field.position, format!("`{}` is given twice", field.name)));
        }
        let others = known.containing_oneof();
        if let Some(other) = others.and_then(|oneof| oneof.fields().find(|other| message.has_field(other))) {
            let reason = format!("`{}` and `{}` exclude one another", other.name(), field.name);
            return Err(problem(field.position, reason));
        }
        if matches!(field.value.kind, ValueKind::List(_)) {
            return Err(problem(field.value.position, format!("`{}` has one value, not a list", field.name)));
        }
        let value = self.value(field, &field.value, known, path)?;
        message.set_field(known, value);
        Ok(())
    }

    fn list(
        &mut self,
        message: &mut DynamicMessage,
        known: &FieldDescriptor,
        field: &TextField,
        path: &str,
    ) -> Result<(), TextProblem> {
        for given in each(&field.value) {
            let count = message.get_field(known).as_list().map_or(0, <[Value]>::len);
            let path = format!("{path}[{count}]");
            let value = self.value(field, given, known, &path)?;
            self.positions.insert(path, field.position, given.position);
            let Some(values) = message.get_field_mut(known).as_list_mut() else { unreachable!("it is a list") };
            values.push(value);
        }
        Ok(())
    }

    fn map(
        &mut self,
        message: &mut DynamicMessage,
        known: &FieldDescriptor,
        field: &TextField,
        path: &str,
    ) -> Result<(), TextProblem> {
        let Kind::Message(entry) = known.kind() else { unreachable!("a map's entries are messages") };
        for given in each(&field.value) {
            let tree = inner_message(field, given)?;
            let part = |name: &str| tree.fields.iter().rfind(|part| part.name == name);
            let known_key = entry.map_entry_key_field();
            let key = match part("key") {
                Some(part) => self.value(part, &part.value, &known_key, path)?,
                None => known_key.default_value(),
            };
            let (key, path) = match key {
                Value::String(key) => (MapKey::String(key.clone()), format!("{path}[{key}]")),
                Value::U64(key) => (MapKey::U64(key), format!("{path}[{key}]")),
                other => {
                    return Err(problem(given.position, format!("{other:?} can't be a key of `{}`", field.name)));
                }
            };
            let known_value = entry.map_entry_value_field();
            let value = match part("value") {
                Some(part) => self.value(part, &part.value, &known_value, &path)?,
                None => known_value.default_value(),
            };
            self.positions.insert(path, field.position, given.position);
            let Some(entries) = message.get_field_mut(known).as_map_mut() else { unreachable!("it is a map") };
            entries.insert(key, value);
        }
        Ok(())
    }

    fn value(
        &mut self,
        field: &TextField,
        value: &TextValue,
        known: &FieldDescriptor,
        path: &str,
    ) -> Result<Value, TextProblem> {
        let name = &field.name;
        let whole = |least: i128, most: i128| {
            let (least, most) = limits(known.parent_message().name(), name).unwrap_or((least, most));
            let number = integer(name, value)?;
            if (least..=most).contains(&number) {
                return Ok(number);
            }
            Err(problem(value.position, format!("{name} is {number}: it must be from {least} to {most}")))
        };
        Ok(match known.kind() {
            Kind::String => Value::String(text(field, value)?.to_owned()),
            Kind::Bool => Value::Bool(boolean(name, value)?),
            Kind::Int32 => Value::I32(whole(i32::MIN.into(), i32::MAX.into())? as i32),
            Kind::Int64 => Value::I64(whole(i64::MIN.into(), i64::MAX.into())? as i64),
            Kind::Uint32 => Value::U32(whole(0, u32::MAX.into())? as u32),
            Kind::Uint64 => Value::U64(whole(0, u64::MAX.into())? as u64),
            Kind::Float => Value::F32(real(name, value)? as f32),
            Kind::Double => Value::F64(real(name, value)?),
            Kind::Enum(known) => Value::EnumNumber(choice(name, value, &known)?),
            Kind::Message(known) => Value::Message(self.message(inner_message(field, value)?, path, known)?),
            other => {
                return Err(problem(value.position, format!("`{name}` is of a kind that isn't read here: {other:?}")));
            }
        })
    }
}

fn real(name: &str, value: &TextValue) -> Result<f64, TextProblem> {
    let parse = |word: &str| word.trim_end_matches(['f', 'F']).parse::<f64>().ok().or_else(|| word.parse().ok());
    word(value)
        .and_then(parse)
        .ok_or_else(|| problem(value.position, format!("`{name}` must be a number{}", shown(value))))
}

/// By its name or its number. Protobuf's `TYPE_INVALID` stands for a type that wasn't given, and nobody gives it.
fn choice(name: &str, value: &TextValue, known: &EnumDescriptor) -> Result<i32, TextProblem> {
    let word = word(value).unwrap_or_default();
    let by_number = word.parse().ok().and_then(|number| known.get_value(number));
    let found = known.get_value_by_name(word).or(by_number).filter(|found| found.name() != "TYPE_INVALID");
    found.map(|found| found.number()).ok_or_else(|| {
        let names = known.values().map(|value| value.name().to_owned()).filter(|name| name != "TYPE_INVALID");
        let names: Vec<String> = names.collect();
        problem(value.position, format!("{name} {word:?} isn't known: use one of {}", names.join(", ")))
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
