//! An event of the log is one line, whatever is quoted in it: a name or a path that a client made up can't pose as an
//! event of its own.

use std::borrow::Cow;
use std::io::{self, Write};

/// Begins the colours of lines for people. Those in what is quoted are escaped before.
const ESCAPE: u8 = 0x1b;

/// Writes events, each handed over as a whole with the line end behind it.
pub(crate) struct OneLine<W>(pub(crate) W);

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.0.write_all(&one_line(event))?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The event with its control characters written as text, but for the line end.
fn one_line(event: &[u8]) -> Cow<'_, [u8]> {
    let line = event.strip_suffix(b"\n").unwrap_or(event);
    let controls = |byte: &u8| byte.is_ascii_control() && *byte != ESCAPE;
    if !line.iter().any(controls) {
        return Cow::Borrowed(event);
    }
    let mut out = Vec::with_capacity(event.len() + 16);
    for byte in line {
        if controls(byte) {
            out.extend(byte.escape_ascii());
        } else {
            out.push(*byte);
        }
    }
    out.extend_from_slice(&event[line.len()..]);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_line_ends_make_no_line() {
        for (event, expected) in [
            ("INFO it is a\n", "INFO it is a\n"),
            ("\x1b[32m INFO\x1b[0m é\n", "\x1b[32m INFO\x1b[0m é\n"),
            ("INFO a\nERROR b\r\n\0\x7f\n", "INFO a\\nERROR b\\r\\n\\x00\\x7f\n"),
            ("INFO a\nb", "INFO a\\nb"),
            ("\n", "\n"),
            ("", ""),
        ] {
            let mut written = Vec::new();
            OneLine(&mut written).write_all(event.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(written).unwrap(), expected);
        }
    }
}
