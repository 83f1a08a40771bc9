//! JSON arrays into the protocol's binary form, and back, without a tree of values in between.
//!
//! Reading walks text that is already known to be valid JSON, so brackets and commas need no second look: elements are
//! taken in the order in which they stand, flat or nested. Numbers are read into the target type at once, which rounds
//! once (reading a double and narrowing it would round twice).

use crate::Fault;
use crate::elements::{push_string, strings};
use crate::room::room;
use base::DataType;
use std::io::Write;

/// Reads the elements of `text`, a valid JSON value, as the elements of an input. `count` is what the shape says; it
/// only sizes the buffer here.
pub(crate) fn read(name: &str, datatype: DataType, count: usize, text: &str) -> Result<Vec<u8>, Fault> {
    if !text.starts_with('[') {
        return Err(Fault::bad(format!("the data of input {name:?} must be an array, flat or nested")));
    }
    // An element takes at least two characters with its comma: a shape that claims more reserves no more than that.
    let count = count.min(text.len() / 2);
    let mut out = room(count * datatype.size().unwrap_or(16))?;
    let outcome = match datatype {
        DataType::Bool => scan(text, &mut out, |token, out| push(out, boolean(token)?.to_le_bytes())),
        DataType::Uint8 => scan(text, &mut out, |token, out| push(out, token.parse::<u8>().ok()?.to_le_bytes())),
        DataType::Uint16 => scan(text, &mut out, |token, out| push(out, token.parse::<u16>().ok()?.to_le_bytes())),
        DataType::Uint32 => scan(text, &mut out, |token, out| push(out, token.parse::<u32>().ok()?.to_le_bytes())),
        DataType::Uint64 => scan(text, &mut out, |token, out| push(out, token.parse::<u64>().ok()?.to_le_bytes())),
        DataType::Int8 => scan(text, &mut out, |token, out| push(out, token.parse::<i8>().ok()?.to_le_bytes())),
        DataType::Int16 => scan(text, &mut out, |token, out| push(out, token.parse::<i16>().ok()?.to_le_bytes())),
        DataType::Int32 => scan(text, &mut out, |token, out| push(out, token.parse::<i32>().ok()?.to_le_bytes())),
        DataType::Int64 => scan(text, &mut out, |token, out| push(out, token.parse::<i64>().ok()?.to_le_bytes())),
        DataType::Fp32 => scan(text, &mut out, |token, out| {
            let value = token.parse::<f32>().ok().filter(|value| value.is_finite())?;
            push(out, value.to_le_bytes())
        }),
        DataType::Fp64 => scan(text, &mut out, |token, out| {
            let value = token.parse::<f64>().ok().filter(|value| value.is_finite())?;
            push(out, value.to_le_bytes())
        }),
        DataType::Bytes => scan(text, &mut out, push_json_string),
        DataType::Fp16 | DataType::Bf16 => {
            return Err(Fault::bad(format!(
                "input {name:?} is {datatype}, which JSON has no form for: send it as binary data"
            )));
        }
    };
    outcome.map_err(|token| {
        let shown: String = token.chars().take(40).collect();
        Fault::bad(format!("the data of input {name:?} has the element {shown}, which is not a value of {datatype}"))
    })?;
    Ok(out)
}

fn push<const N: usize>(out: &mut Vec<u8>, bytes: [u8; N]) -> Option<()> {
    out.extend_from_slice(&bytes);
    Some(())
}

fn boolean(token: &str) -> Option<u8> {
    match token {
        "true" | "1" => Some(1),
        "false" | "0" => Some(0),
        _ => None,
    }
}

fn push_json_string(token: &str, out: &mut Vec<u8>) -> Option<()> {
    let inner = token.strip_prefix('"')?.strip_suffix('"')?;
    if !inner.contains('\\') {
        return push_string(out, inner.as_bytes()).ok();
    }
    push_string(out, serde_json::from_str::<String>(token).ok()?.as_bytes()).ok()
}

/// Gives each element of the array to `take`; the first that it refuses is the error.
fn scan<'a>(text: &'a str, out: &mut Vec<u8>, take: impl Fn(&str, &mut Vec<u8>) -> Option<()>) -> Result<(), &'a str> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let end = match byte {
            b'[' | b']' | b',' | b' ' | b'\n' | b'\r' | b'\t' => {
                at += 1;
                continue;
            }
            b'"' => string_end(bytes, at),
            // An object is refused by every type; how far it goes doesn't matter then.
            _ => bytes[at..]
                .iter()
                .position(|b| matches!(b, b',' | b']' | b' ' | b'\n' | b'\r' | b'\t'))
                .map_or(bytes.len(), |n| at + n),
        };
        let token = text.get(at..end).unwrap_or("");
        take(token, out).ok_or(token)?;
        at = end;
    }
    Ok(())
}

/// The position behind the closing quote of the string that starts at `start`.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Appends the elements of an output as a flat JSON array. Floats are written with the fewest digits that read back to
/// the same value; what JSON can't say (infinities, not-a-number) is `null`.
pub(crate) fn write(out: &mut Vec<u8>, name: &str, datatype: DataType, data: &[u8]) -> Result<(), Fault> {
    match datatype {
        DataType::Bool => join(out, data.iter(), |out, &byte| json(out, &(byte != 0))),
        DataType::Uint8 => join(out, data.iter(), json),
        DataType::Int8 => join(out, data.iter(), |out, &byte| json(out, &i8::from_le_bytes([byte]))),
        DataType::Uint16 => join(out, data.as_chunks().0.iter(), |out, b| json(out, &u16::from_le_bytes(*b))),
        DataType::Uint32 => join(out, data.as_chunks().0.iter(), |out, b| json(out, &u32::from_le_bytes(*b))),
        DataType::Uint64 => join(out, data.as_chunks().0.iter(), |out, b| json(out, &u64::from_le_bytes(*b))),
        DataType::Int16 => join(out, data.as_chunks().0.iter(), |out, b| json(out, &i16::from_le_bytes(*b))),
        DataType::Int32 => join(out, data.as_chunks().0.iter(), |out, b| json(out, &i32::from_le_bytes(*b))),
        DataType::Int64 => join(out, data.as_chunks().0.iter(), |out, b| json(out, &i64::from_le_bytes(*b))),
        DataType::Fp32 => join(out, data.as_chunks().0.iter(), |out, b| json(out, &f32::from_le_bytes(*b))),
        DataType::Fp64 => join(out, data.as_chunks().0.iter(), |out, b| json(out, &f64::from_le_bytes(*b))),
        DataType::Bytes => return write_strings(out, name, data),
        DataType::Fp16 | DataType::Bf16 => return Err(no_json_form(name, datatype)),
    }
    Ok(())
}

/// The refusal of an output that can't be written as JSON.
pub(crate) fn no_json_form(name: &str, datatype: DataType) -> Fault {
    Fault::bad(format!("output {name:?} is {datatype}, which JSON has no form for: ask for it with binary_data"))
}

fn write_strings(out: &mut Vec<u8>, name: &str, data: &[u8]) -> Result<(), Fault> {
    out.push(b'[');
    for (position, element) in strings(data).enumerate() {
        if position > 0 {
            out.push(b',');
        }
        let text = element.ok().and_then(|element| std::str::from_utf8(element).ok()).ok_or_else(|| {
            Fault::bad(format!(
                "element {position} of output {name:?} is not UTF-8, which JSON has no form for: ask for it with binary_data"
            ))
        })?;
        json(out, text);
    }
    out.push(b']');
    Ok(())
}

fn join<T>(out: &mut Vec<u8>, elements: impl Iterator<Item = T>, write: impl Fn(&mut Vec<u8>, T)) {
    out.push(b'[');
    for (position, element) in elements.enumerate() {
        if position > 0 {
            out.push(b',');
        }
        write(out, element);
    }
    out.push(b']');
}

/// Appends one value as JSON.
pub(crate) fn json<T: serde::Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out.by_ref(), value)
        .expect("numbers and strings always have a JSON form, and a Vec takes it");
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use proptest::prelude::*;

    fn read_ok(datatype: DataType, text: &str) -> Vec<u8> {
        read("x", datatype, 100, text).unwrap()
    }

    fn sentence(datatype: DataType, text: &str) -> String {
        read("x", datatype, 100, text).unwrap_err().to_string()
    }

    #[test]
    fn flat_and_nested_are_the_same() {
        let flat = read_ok(DataType::Int16, "[1,-2,3,4]");
        assert_eq!(flat, [1, 0, 0xfe, 0xff, 3, 0, 4, 0]);
        assert_eq!(read_ok(DataType::Int16, " [ [1 , -2],\n[3,4] ] ".trim()), flat);
    }

    #[test]
    fn every_type_has_its_refusals() {
        expect![[r#"the data of input "x" has the element 256, which is not a value of UINT8"#]]
            .assert_eq(&sentence(DataType::Uint8, "[1,256]"));
        expect![[r#"the data of input "x" has the element 1.5, which is not a value of INT32"#]]
            .assert_eq(&sentence(DataType::Int32, "[1.5]"));
        expect![[r#"the data of input "x" has the element 1e39, which is not a value of FP32"#]]
            .assert_eq(&sentence(DataType::Fp32, "[1e39]"));
        expect![[r#"the data of input "x" has the element null, which is not a value of FP64"#]]
            .assert_eq(&sentence(DataType::Fp64, "[null]"));
        expect![[r#"the data of input "x" has the element {"a":1}, which is not a value of FP64"#]]
            .assert_eq(&sentence(DataType::Fp64, "[{\"a\":1}]"));
        expect![[r#"the data of input "x" has the element "a", which is not a value of FP32"#]]
            .assert_eq(&sentence(DataType::Fp32, "[\"a\"]"));
        expect![[r#"the data of input "x" has the element 5, which is not a value of BYTES"#]]
            .assert_eq(&sentence(DataType::Bytes, "[5]"));
        expect![[r#"the data of input "x" has the element 2, which is not a value of BOOL"#]]
            .assert_eq(&sentence(DataType::Bool, "[2]"));
        expect![[r#"input "x" is FP16, which JSON has no form for: send it as binary data"#]]
            .assert_eq(&sentence(DataType::Fp16, "[2]"));
        expect![[r#"the data of input "x" must be an array, flat or nested"#]]
            .assert_eq(&sentence(DataType::Fp32, "\"[1]\""));
    }

    #[test]
    fn strings_keep_their_escapes_and_their_brackets() {
        let data = read_ok(DataType::Bytes, r#"["a,]b","\"\\\u00e9",""]"#);
        let elements: Vec<&[u8]> = strings(&data).map(Result::unwrap).collect();
        assert_eq!(elements, [b"a,]b".as_slice(), "\"\\é".as_bytes(), b""]);
        let mut text = Vec::new();
        write(&mut text, "y", DataType::Bytes, &data).unwrap();
        expect![[r#"["a,]b","\"\\é",""]"#]].assert_eq(std::str::from_utf8(&text).unwrap());
    }

    #[test]
    fn outputs_that_json_cannot_say() {
        let mut text = Vec::new();
        let data: Vec<u8> = [1.5f32, f32::NAN, f32::INFINITY].iter().flat_map(|v| v.to_le_bytes()).collect();
        write(&mut text, "y", DataType::Fp32, &data).unwrap();
        expect!["[1.5,null,null]"].assert_eq(std::str::from_utf8(&text).unwrap());
        expect![[r#"output "y" is BF16, which JSON has no form for: ask for it with binary_data"#]]
            .assert_eq(&write(&mut text, "y", DataType::Bf16, &[0, 0]).unwrap_err().to_string());
        expect![[r#"element 0 of output "y" is not UTF-8, which JSON has no form for: ask for it with binary_data"#]]
            .assert_eq(&write(&mut text, "y", DataType::Bytes, b"\x01\0\0\0\xff").unwrap_err().to_string());
    }

    /// Any bytes of a type, written and read again, are the same bytes.
    fn round_trip(datatype: DataType, data: &[u8]) -> Result<(), TestCaseError> {
        let mut text = Vec::new();
        write(&mut text, "y", datatype, data).unwrap();
        let text = String::from_utf8(text).unwrap();
        serde_json::from_str::<serde::de::IgnoredAny>(&text).unwrap();
        prop_assert_eq!(read("x", datatype, data.len(), &text).unwrap(), data);
        Ok(())
    }

    proptest! {
        #[test]
        fn integers_survive(data in proptest::collection::vec(any::<u64>(), 0..20)) {
            let data: Vec<u8> = data.iter().flat_map(|v| v.to_le_bytes()).collect();
            for datatype in [
                DataType::Uint8, DataType::Uint16, DataType::Uint32, DataType::Uint64,
                DataType::Int8, DataType::Int16, DataType::Int32, DataType::Int64,
            ] {
                round_trip(datatype, &data)?;
            }
        }

        #[test]
        fn floats_survive(data in proptest::collection::vec(any::<u64>(), 0..20)) {
            let doubles: Vec<u8> = data.iter().map(|&v| f64::from_bits(v)).filter(|v| v.is_finite()).flat_map(f64::to_le_bytes).collect();
            round_trip(DataType::Fp64, &doubles)?;
            let singles: Vec<u8> = data.iter().map(|&v| f32::from_bits(v as u32)).filter(|v| v.is_finite()).flat_map(f32::to_le_bytes).collect();
            round_trip(DataType::Fp32, &singles)?;
        }

        #[test]
        fn strings_survive(elements in proptest::collection::vec(".*", 0..8)) {
            let mut data = Vec::new();
            for element in &elements {
                push_string(&mut data, element.as_bytes()).unwrap();
            }
            round_trip(DataType::Bytes, &data)?;
        }
    }
}
