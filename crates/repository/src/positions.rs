//! Where the fields of a configuration stand in its text, beside the message that they are read into.

use crate::text::{TextPosition, TextProblem};
use crate::values::problem;
use std::collections::BTreeMap;

/// By path, as in `input[1].dims[0]` and `parameters[precision].string_value`. What isn't there wasn't written.
#[derive(Default)]
pub struct Positions(BTreeMap<String, FieldPosition>);

struct FieldPosition {
    name: TextPosition,
    value: TextPosition,
}

impl Positions {
    pub fn insert(&mut self, path: String, name: TextPosition, value: TextPosition) {
        self.0.insert(path, FieldPosition { name, value });
    }

    pub fn is_written(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }

    /// Something is wrong with the field of that path.
    pub fn wrong_field(&self, path: &str, reason: impl Into<String>) -> TextProblem {
        problem(self.0.get(path).map_or(TextPosition::NOWHERE, |position| position.name), reason)
    }

    /// Something is wrong with what the field of that path is set to.
    pub fn wrong_value(&self, path: &str, reason: impl Into<String>) -> TextProblem {
        problem(self.value(path), reason)
    }

    /// Where the value of that path begins.
    pub fn value(&self, path: &str) -> TextPosition {
        self.0.get(path).map_or(TextPosition::NOWHERE, |position| position.value)
    }
}
