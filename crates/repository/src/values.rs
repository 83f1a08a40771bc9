//! Single values of a configuration, each with the sentence that says what it should have been.

use crate::positions::Positions;
use crate::text::{TextField, TextMessage, TextPosition, TextProblem, TextValue, ValueKind};
use std::path::{Component, Path};

/// What was ignored, and where.
pub type Warnings<'a> = &'a mut Vec<TextProblem>;

pub fn problem(position: TextPosition, reason: impl Into<String>) -> TextProblem {
    TextProblem { position, reason: reason.into() }
}

/// The values of a field that may be repeated: those of a list, or the one.
pub fn each(value: &TextValue) -> &[TextValue] {
    match &value.kind {
        ValueKind::List(values) => values,
        _ => std::slice::from_ref(value),
    }
}

pub fn text<'a>(field: &TextField, value: &'a TextValue) -> Result<&'a str, TextProblem> {
    match &value.kind {
        ValueKind::Text(text) => Ok(text),
        _ => Err(problem(value.position, format!("`{}` must be a string: put it into quotes", field.name))),
    }
}

pub fn inner_message<'a>(field: &TextField, value: &'a TextValue) -> Result<&'a TextMessage, TextProblem> {
    match &value.kind {
        ValueKind::Message(message) => Ok(message),
        _ => Err(problem(value.position, format!("`{}` must be a message: {{ ... }}", field.name))),
    }
}

pub fn word(value: &TextValue) -> Option<&str> {
    match &value.kind {
        ValueKind::Word(word) => Some(word),
        _ => None,
    }
}

/// `, not X` where X is something that can be shown.
pub fn shown(value: &TextValue) -> String {
    match &value.kind {
        ValueKind::Word(word) => format!(", not {word}"),
        ValueKind::Text(text) => format!(", not {text:?}"),
        ValueKind::Message(_) | ValueKind::List(_) => String::new(),
    }
}

/// A whole number: decimal, hexadecimal (0x1F) or octal (017).
pub fn integer(name: &str, value: &TextValue) -> Result<i128, TextProblem> {
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
        .ok_or_else(|| problem(value.position, format!("`{name}` must be a whole number{}", shown(value))))
}

pub fn boolean(name: &str, value: &TextValue) -> Result<bool, TextProblem> {
    match word(value) {
        Some("true" | "True" | "t" | "1") => Ok(true),
        Some("false" | "False" | "f" | "0") => Ok(false),
        _ => Err(problem(value.position, format!("`{name}` must be true or false{}", shown(value)))),
    }
}

/// The name of a file below the model's folder, from the field of that path.
pub fn relative_file(path: &str, name: &str, positions: &Positions) -> Result<Option<String>, TextProblem> {
    let stays_inside = |name: &str| {
        !name.contains(['\\', '\0']) && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
    };
    if name.is_empty() || stays_inside(name) {
        return Ok(Some(name.to_owned()).filter(|name| !name.is_empty()));
    }
    let field = path.rsplit('.').next().unwrap_or(path);
    Err(positions.wrong_value(path, format!("{field} is {name:?}: it must be a file in the model's folder")))
}
