//! Reads protobuf's text format into a tree, without a schema, and knows where everything stands.
//!
//! Written by hand because the parser of `prost-reflect` stops at fields that it doesn't know, wants a colon before the
//! list in `input [ ... ]` (which nearly every config.pbtxt leaves out), and doesn't say where an error is.

use std::fmt;

/// A position in a text, both counted from 1; columns count characters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TextPosition {
    /// The line.
    pub line: usize,
    /// The character in the line.
    pub column: usize,
}

impl TextPosition {
    /// Of something that wasn't written as text.
    pub(crate) const NOWHERE: Self = Self { line: 0, column: 0 };

    /// The position in that file, as editors understand it.
    pub(crate) fn in_file(self, file: &std::path::Path) -> String {
        if self == Self::NOWHERE { file.display().to_string() } else { format!("{}:{self}", file.display()) }
    }
}

impl fmt::Display for TextPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// What is wrong with a text, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TextProblem {
    /// Where.
    pub position: TextPosition,
    /// What is wrong there.
    pub reason: String,
}

/// The fields of a message, in the order in which they are written; repeated ones come several times.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TextMessage {
    pub fields: Vec<TextField>,
}

/// One field.
#[derive(Clone, PartialEq, Debug)]
pub struct TextField {
    pub name: String,
    pub position: TextPosition,
    pub value: TextValue,
}

/// What a field is set to.
#[derive(Clone, PartialEq, Debug)]
pub struct TextValue {
    pub position: TextPosition,
    pub kind: ValueKind,
}

/// The kinds of value that can be told apart without a schema.
#[derive(Clone, PartialEq, Debug)]
pub enum ValueKind {
    /// A quoted string, escapes resolved.
    Text(String),
    /// A number or a name, as written, with its sign.
    Word(String),
    Message(TextMessage),
    List(Vec<TextValue>),
}

/// Messages inside messages, at most: the recursion's bound.
const MAX_DEPTH: usize = 64;

/// Reads a whole text.
pub fn parse(text: &str) -> Result<TextMessage, TextProblem> {
    Parser { rest: text, position: TextPosition { line: 1, column: 1 }, depth: 0 }.fields(None)
}

struct Parser<'a> {
    rest: &'a str,
    position: TextPosition,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn problem<T>(&self, reason: impl Into<String>) -> Result<T, TextProblem> {
        Err(TextProblem { position: self.position, reason: reason.into() })
    }

    fn expected<T>(&self, what: &str) -> Result<T, TextProblem> {
        match self.rest.chars().next() {
            Some(found) => self.problem(format!("expected {what}, but found {found:?}")),
            None => self.problem(format!("expected {what}, but the file ends here")),
        }
    }

    /// Takes that many bytes off the rest.
    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        for c in taken.chars() {
            if c == '\n' {
                self.position = TextPosition { line: self.position.line + 1, column: 1 };
            } else {
                self.position.column += 1;
            }
        }
        self.rest = rest;
        taken
    }

    /// The next character behind white space and comments, which are taken.
    fn peek(&mut self) -> Option<char> {
        loop {
            let blank = self.rest.len() - self.rest.trim_start().len();
            self.take(blank);
            if !self.rest.starts_with('#') {
                return self.rest.chars().next();
            }
            self.take(self.rest.find('\n').unwrap_or(self.rest.len()));
        }
    }

    /// Takes the next character if it is one of these.
    fn accept(&mut self, wanted: &[char]) -> Option<char> {
        let next = self.peek().filter(|c| wanted.contains(c))?;
        self.take(next.len_utf8());
        Some(next)
    }

    /// Fields up to the closing bracket, which is taken, or up to the end of the text.
    fn fields(&mut self, close: Option<char>) -> Result<TextMessage, TextProblem> {
        let mut message = TextMessage::default();
        loop {
            match self.peek() {
                None if close.is_none() => return Ok(message),
                Some(next) if Some(next) == close => {
                    self.take(1);
                    return Ok(message);
                }
                _ => {}
            }
            message.fields.push(self.field(close)?);
            self.accept(&[',', ';']);
        }
    }

    fn field(&mut self, close: Option<char>) -> Result<TextField, TextProblem> {
        let position = self.position;
        let name = match self.word() {
            Some(name) if !name.starts_with(|c: char| c.is_ascii_digit()) => name.to_owned(),
            _ => return self.expected(&close.map_or("a field's name".into(), |c| format!("a field's name or {c:?}"))),
        };
        let has_colon = self.accept(&[':']).is_some();
        // Only messages, and lists of them, may stand behind a name without a colon.
        if !has_colon && !matches!(self.peek(), Some('{' | '<' | '[')) {
            return self.expected(&format!("':' behind {name:?}"));
        }
        Ok(TextField { name, position, value: self.value(true)? })
    }

    /// A run of the characters that names and numbers are made of; `None` if there is none.
    fn word(&mut self) -> Option<&'a str> {
        self.peek();
        let is_in = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
        let mut end = self.rest.find(|c| !is_in(c)).unwrap_or(self.rest.len());
        // The sign of an exponent, as in 1.5e-3.
        let number = self.rest.starts_with(|c: char| c.is_ascii_digit() || c == '.');
        if number && self.rest[..end].ends_with(['e', 'E']) && self.rest[end..].starts_with(['+', '-']) {
            let tail = &self.rest[end + 1..];
            end += 1 + tail.find(|c| !is_in(c)).unwrap_or(tail.len());
        }
        (end > 0).then(|| self.take(end))
    }

    fn value(&mut self, list_allowed: bool) -> Result<TextValue, TextProblem> {
        let next = self.peek();
        let position = self.position;
        let kind = match next {
            Some('{' | '<') => ValueKind::Message(self.message()?),
            Some('[') if list_allowed => ValueKind::List(self.list()?),
            Some('"' | '\'') => ValueKind::Text(self.text()?),
            _ => {
                let sign = if self.accept(&['-']).is_some() { "-" } else { "" };
                match self.word() {
                    Some(word) => ValueKind::Word(format!("{sign}{word}")),
                    None => return self.expected("a value"),
                }
            }
        };
        Ok(TextValue { position, kind })
    }

    fn message(&mut self) -> Result<TextMessage, TextProblem> {
        if self.depth == MAX_DEPTH {
            return self.problem(format!("messages are nested more than {MAX_DEPTH} deep"));
        }
        let close = if self.accept(&['{']).is_some() { '}' } else { '>' };
        if close == '>' {
            self.accept(&['<']);
        }
        self.depth += 1;
        let message = self.fields(Some(close))?;
        self.depth -= 1;
        Ok(message)
    }

    fn list(&mut self) -> Result<Vec<TextValue>, TextProblem> {
        self.accept(&['[']);
        let mut values = Vec::new();
        if self.accept(&[']']).is_some() {
            return Ok(values);
        }
        loop {
            values.push(self.value(false)?);
            match self.accept(&[',', ']']) {
                Some(']') => return Ok(values),
                Some(_) => {}
                None => return self.expected("',' or ']'"),
            }
        }
    }

    /// One or more quoted strings behind one another, which are one value.
    fn text(&mut self) -> Result<String, TextProblem> {
        let start = self.position;
        let mut bytes = Vec::new();
        while let Some(quote) = self.accept(&['"', '\'']) {
            self.quoted(quote, &mut bytes)?;
        }
        String::from_utf8(bytes)
            .map_err(|_| TextProblem { position: start, reason: "the string's escapes give no valid UTF-8".into() })
    }

    fn quoted(&mut self, quote: char, bytes: &mut Vec<u8>) -> Result<(), TextProblem> {
        loop {
            let Some(next) = self.rest.chars().next().filter(|&c| c != '\n') else {
                return self.problem(format!("the string isn't closed: {quote} is missing"));
            };
            match next {
                '\\' => self.escape(bytes)?,
                _ if next == quote => {
                    self.take(1);
                    return Ok(());
                }
                _ => bytes.extend_from_slice(self.take(next.len_utf8()).as_bytes()),
            }
        }
    }

    fn escape(&mut self, bytes: &mut Vec<u8>) -> Result<(), TextProblem> {
        let start = self.position;
        self.take(1);
        let Some(letter) = self.rest.chars().next() else {
            return self.problem("the string isn't closed");
        };
        if letter.is_digit(8) {
            let value = self.digits(8, 3).expect("the first one is there");
            bytes.push((value & 0xff) as u8);
            return Ok(());
        }
        self.take(letter.len_utf8());
        let bad = |reason: &str| Err(TextProblem { position: start, reason: format!("'\\{letter}' {reason}") });
        let simple = match letter {
            'n' => b'\n',
            'r' => b'\r',
            't' => b'\t',
            'a' => 7,
            'b' => 8,
            'v' => 11,
            'f' => 12,
            '\\' | '"' | '\'' | '?' => letter as u8,
            'x' | 'X' => match self.digits(16, 2) {
                Some(value) => (value & 0xff) as u8,
                None => return bad("needs hexadecimal digits"),
            },
            'u' | 'U' => {
                let count = if letter == 'u' { 4 } else { 8 };
                let Some(character) = self.digits(16, count).and_then(char::from_u32) else {
                    return bad("doesn't give a character");
                };
                bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => return bad("isn't a known escape"),
        };
        bytes.push(simple);
        Ok(())
    }

    /// Takes up to `most` digits; `None` if there is none.
    fn digits(&mut self, radix: u32, most: usize) -> Option<u32> {
        let count = self.rest.bytes().take(most).take_while(|&b| char::from(b).is_digit(radix)).count();
        u32::from_str_radix(self.take(count), radix).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn show(message: &TextMessage) -> String {
        let shown = message.fields.iter().map(|field| format!("{}={}", field.name, show_value(&field.value)));
        shown.collect::<Vec<_>>().join(" ")
    }

    fn show_value(value: &TextValue) -> String {
        match &value.kind {
            ValueKind::Text(text) => format!("{text:?}"),
            ValueKind::Word(word) => word.clone(),
            ValueKind::Message(message) => format!("{{{}}}", show(message)),
            ValueKind::List(values) => format!("[{}]", values.iter().map(show_value).collect::<Vec<_>>().join(" ")),
        }
    }

    fn error(text: &str) -> String {
        let problem = parse(text).unwrap_err();
        format!("{}: {}", problem.position, problem.reason)
    }

    #[test]
    fn every_way_to_write_a_value_is_read() {
        for (text, tree) in [
            ("", ""),
            ("a: 1 b: -2; c: x, d: 1.5e-3", "a=1 b=-2 c=x d=1.5e-3"),
            ("a { b: 1 } c: { d: 2 } e < f: 3 >", "a={b=1} c={d=2} e={f=3}"),
            ("a [ { b: 1 }, { b: 2 } ] c: [ 1, -2 ] d: []", "a=[{b=1} {b=2}] c=[1 -2] d=[]"),
            ("a: \"x\" 'y' # comment: {\n b:1", "a=\"xy\" b=1"),
            (r#"a: "\n\x41\101é\"""#, r#"a="\nAAé\"""#),
            ("a: inf a: 0x1F a: - 3", "a=inf a=0x1F a=-3"),
        ] {
            assert_eq!(parse(text).map(|message| show(&message)), Ok(tree.to_owned()), "{text}");
        }
    }

    #[test]
    fn problems_say_where_and_what() {
        for (text, wanted) in [
            ("a: 1\nb 2", "2:3: expected ':' behind \"b\", but found '2'"),
            ("a [ { b: 1 }\n", "2:1: expected ',' or ']', but the file ends here"),
            ("a { b: }", "1:8: expected a value, but found '}'"),
            ("a { ] }", "1:5: expected a field's name or '}', but found ']'"),
            ("ä: \"é\" }", "1:8: expected a field's name, but found '}'"),
            ("a: \"x\nb: 1", "1:6: the string isn't closed: \" is missing"),
            (r#"a: "\q""#, r"1:5: '\q' isn't a known escape"),
            (r#"a: "\ud800""#, r"1:5: '\u' doesn't give a character"),
            (r#"a: "\377""#, "1:4: the string's escapes give no valid UTF-8"),
        ] {
            assert_eq!(error(text), wanted, "{text}");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        assert!(parse(&format!("{}{}", "a{".repeat(64), "}".repeat(64))).is_ok());
        assert_eq!(error(&"a{".repeat(100_000)), "1:130: messages are nested more than 64 deep");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in r#"(name|input|[{}<>\[\]:,;.#"'\\ \n0-9a-zä-]){0,40}"#) {
            let _ = parse(&text);
        }
    }
}
