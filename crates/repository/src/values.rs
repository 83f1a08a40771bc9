//! Single values of a configuration's tree, each with the sentence that says what it should have been.

use crate::text::{Field, Message, Place, Problem, Value, ValueKind};
use std::path::{Component, Path};

/// What was ignored, and where.
pub type Warnings<'a> = &'a mut Vec<Problem>;

pub fn problem(place: Place, reason: impl Into<String>) -> Problem {
    Problem { place, reason: reason.into() }
}

/// The values of a field that may be repeated: those of a list, or the one.
pub fn each(value: &Value) -> &[Value] {
    match &value.kind {
        ValueKind::List(values) => values,
        _ => std::slice::from_ref(value),
    }
}

pub fn text<'a>(field: &Field, value: &'a Value) -> Result<&'a str, Problem> {
    match &value.kind {
        ValueKind::Text(text) => Ok(text),
        _ => Err(problem(value.place, format!("`{}` must be a string: put it into quotes", field.name))),
    }
}

pub fn message<'a>(field: &Field, value: &'a Value) -> Result<&'a Message, Problem> {
    match &value.kind {
        ValueKind::Message(message) => Ok(message),
        _ => Err(problem(value.place, format!("`{}` must be a message: {{ ... }}", field.name))),
    }
}

pub fn word(value: &Value) -> Option<&str> {
    match &value.kind {
        ValueKind::Word(word) => Some(word),
        _ => None,
    }
}

/// `, not X` where X is something that can be shown.
pub fn shown(value: &Value) -> String {
    match &value.kind {
        ValueKind::Word(word) => format!(", not {word}"),
        ValueKind::Text(text) => format!(", not {text:?}"),
        ValueKind::Message(_) | ValueKind::List(_) => String::new(),
    }
}

/// A whole number: decimal, hexadecimal (0x1F) or octal (017).
pub fn wide_integer(name: &str, value: &Value) -> Result<i128, Problem> {
    let parse = |word: &str| {
        let (sign, digits) = word.strip_prefix('-').map_or(("", word), |digits| ("-", digits));
        let (digits, radix) = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
            Some(digits) => (digits, 16),
            None if digits.len() > 1 && digits.starts_with('0') => (&digits[1..], 8),
            None => (digits, 10),
        };
        let plain = digits.starts_with(|c: char| c.is_digit(radix));
        i128::from_str_radix(&format!("{sign}{digits}"), radix).ok().filter(|_| plain)
    };
    word(value)
        .and_then(parse)
        .ok_or_else(|| problem(value.place, format!("`{name}` must be a whole number{}", shown(value))))
}

pub fn integer(field: &Field, value: &Value) -> Result<i64, Problem> {
    let wide = wide_integer(&field.name, value)?;
    i64::try_from(wide)
        .map_err(|_| problem(value.place, format!("`{}` is {wide}, which doesn't fit 64 bits", field.name)))
}

/// A number from 0 up to `most`.
pub fn count(field: &Field, most: u64) -> Result<u64, Problem> {
    let number = wide_integer(&field.name, &field.value)?;
    u64::try_from(number)
        .ok()
        .filter(|&number| number <= most)
        .ok_or_else(|| problem(field.value.place, format!("{} is {number}: it must be from 0 to {most}", field.name)))
}

pub fn boolean(name: &str, value: &Value) -> Result<bool, Problem> {
    match word(value) {
        Some("true" | "True" | "t" | "1") => Ok(true),
        Some("false" | "False" | "f" | "0") => Ok(false),
        _ => Err(problem(value.place, format!("`{name}` must be true or false{}", shown(value)))),
    }
}

/// The name of a file below the model's folder.
pub fn relative_file(field: &Field) -> Result<Option<String>, Problem> {
    let name = text(field, &field.value)?;
    let stays_inside = |name: &str| {
        !name.contains(['\\', '\0']) && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
    };
    match name {
        "" => Ok(None),
        name if stays_inside(name) => Ok(Some(name.to_owned())),
        name => Err(problem(
            field.value.place,
            format!("{} is {name:?}: it must be a file in the model's folder", field.name),
        )),
    }
}
