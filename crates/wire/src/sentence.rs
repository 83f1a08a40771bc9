//! Keeping sentences short: they quote what clients sent, which may have megabytes.

use std::borrow::Cow;

/// How much of a text or a shape is quoted.
const QUOTED_BYTES: usize = 100;
/// The longest sentence.
const SENTENCE_BYTES: usize = 4096;
/// The longest sentence over gRPC, where it travels in a header, which clients take only so much of.
const HEADER_BYTES: usize = 1024;

/// The same sentence with long quotations shortened, and cut if it is still long.
pub(crate) fn shortened(sentence: Cow<'static, str>) -> Cow<'static, str> {
    if sentence.len() <= QUOTED_BYTES {
        return sentence;
    }
    cut(Cow::Owned(shorten_quotations(&sentence)), SENTENCE_BYTES)
}

/// The same sentence, short enough for a header.
pub(crate) fn for_header(sentence: Cow<'static, str>) -> Cow<'static, str> {
    cut(sentence, HEADER_BYTES)
}

fn cut(sentence: Cow<'static, str>, limit: usize) -> Cow<'static, str> {
    if sentence.len() <= limit {
        return sentence;
    }
    Cow::Owned(format!("{}...", &sentence[..sentence.floor_char_boundary(limit - 3)]))
}

/// Texts stand in quotation marks, as `{:?}` writes them, and shapes in brackets.
fn shorten_quotations(sentence: &str) -> String {
    let mut out = String::with_capacity(sentence.len().min(SENTENCE_BYTES));
    let mut rest = sentence;
    while let Some(start) = rest.find(['"', '[']) {
        let (before, quotation) = rest.split_at(start);
        out.push_str(before);
        // What isn't closed is no quotation.
        let Some(end) = end_of(quotation) else {
            rest = quotation;
            break;
        };
        if end > QUOTED_BYTES + 2 {
            out.push_str(&quotation[..quotation.floor_char_boundary(QUOTED_BYTES + 1)]);
            out.push_str("...");
            out.push_str(&quotation[end - 1..end]);
        } else {
            out.push_str(&quotation[..end]);
        }
        rest = &quotation[end..];
    }
    out.push_str(rest);
    out
}

/// The position behind the mark that closes the quotation with which the text begins.
fn end_of(quotation: &str) -> Option<usize> {
    if quotation.starts_with('[') {
        return quotation.find(']').map(|at| at + 1);
    }
    let mut escaped = false;
    let close = quotation.bytes().skip(1).position(|byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    });
    close.map(|at| at + 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn long_quotations_are_shortened_and_the_rest_stays() {
        let (name, shape) = ("\"é".repeat(5000), vec![1; 5000]);
        let said = shortened(format!("input {name:?} has the shape {shape:?}, but {:?} takes [2, 3]: no", "m").into());
        expect![[r#"input "\"é\"é\"é\"é\"é\"é\"é\"é\"é\"é\"é\"é\"é\"é\"é\"é\"é\"é\"é\"é\"é\"é\"é\"é\"é..." has the shape [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1...], but "m" takes [2, 3]: no"#]]
            .assert_eq(&said);
        let short = format!("there is no model {:?}: {}", "x".repeat(100), "this server has others, many of them");
        assert_eq!(shortened(short.clone().into()), short);
    }

    #[test]
    fn what_has_no_quotations_is_cut() {
        let open = format!("it \"said {}", "é".repeat(5000));
        let cut = shortened(open.into());
        assert!(
            cut.len() <= SENTENCE_BYTES && cut.len() > SENTENCE_BYTES - 5 && cut.ends_with("é..."),
            "{}",
            cut.len()
        );
        assert!(for_header(cut).len() <= HEADER_BYTES);
    }
}
