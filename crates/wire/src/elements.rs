//! Whether bytes are the tensor that they claim to be.

use crate::Fault;
use base::{DataType, element_count};

/// The number of elements of an input's shape, or the sentence that says which dimension is wrong.
pub(crate) fn count_elements(name: &str, shape: &[i64]) -> Result<usize, Fault> {
    if let Some(dim) = shape.iter().find(|&&dim| dim < 0) {
        return Err(Fault::bad(format!(
            "input {name:?} has the dimension {dim} in its shape {shape:?}: none may be negative"
        )));
    }
    element_count(shape).ok_or_else(|| {
        Fault::bad(format!("input {name:?} has the shape {shape:?}, whose number of elements overflows"))
    })
}

/// Checks that the bytes of an input are exactly the elements that its shape says: the number of them, the lengths
/// inside `BYTES`, and that each `BOOL` is 0 or 1.
pub fn check_elements(name: &str, datatype: DataType, shape: &[i64], data: &[u8]) -> Result<(), Fault> {
    let count = count_elements(name, shape)?;
    match datatype.size() {
        Some(size) => check_fixed(name, datatype, shape, count.checked_mul(size), data),
        None => check_strings(name, shape, count, data),
    }
}

fn check_fixed(
    name: &str,
    datatype: DataType,
    shape: &[i64],
    expected: Option<usize>,
    data: &[u8],
) -> Result<(), Fault> {
    if expected != Some(data.len()) {
        let expected = expected.map_or_else(|| "more bytes than there can be".to_owned(), |n| format!("{n} bytes"));
        return Err(Fault::bad(format!(
            "input {name:?} has {} bytes, but its shape {shape:?} of {datatype} takes {expected}",
            data.len()
        )));
    }
    if datatype == DataType::Bool
        && let Some(byte) = data.iter().find(|&&byte| byte > 1)
    {
        return Err(Fault::bad(format!("input {name:?} of BOOL has the byte {byte}: each element is 0 or 1")));
    }
    Ok(())
}

fn check_strings(name: &str, shape: &[i64], count: usize, data: &[u8]) -> Result<(), Fault> {
    let mut found = 0usize;
    for element in strings(data) {
        match element {
            Ok(_) => found += 1,
            Err(TruncatedElement) => {
                return Err(Fault::bad(format!(
                    "input {name:?} of BYTES ends inside element {found}: each is a 4-byte little-endian length and that many bytes"
                )));
            }
        }
    }
    if found == count {
        return Ok(());
    }
    Err(Fault::bad(format!("input {name:?} has {found} elements, but its shape {shape:?} takes {count}")))
}

/// The bytes end inside an element.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TruncatedElement;

/// The elements of a `BYTES` tensor. Stops after the first one that is cut.
pub(crate) fn strings(mut data: &[u8]) -> impl Iterator<Item = Result<&[u8], TruncatedElement>> {
    std::iter::from_fn(move || {
        if data.is_empty() {
            return None;
        }
        let element = data.split_first_chunk::<4>().and_then(|(length, rest)| {
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            rest.split_at_checked(length)
        });
        match element {
            Some((element, rest)) => {
                data = rest;
                Some(Ok(element))
            }
            None => {
                data = &[];
                Some(Err(TruncatedElement))
            }
        }
    })
}

/// Appends one element of a `BYTES` tensor.
pub fn push_string(out: &mut Vec<u8>, element: &[u8]) -> Result<(), TooLong> {
    let length = u32::try_from(element.len()).map_err(|_| TooLong)?;
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(element);
    Ok(())
}

/// An element of 4 GiB or more, whose length the binary form can't say.
#[derive(Debug, PartialEq, Eq)]
pub struct TooLong;

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn sentence(datatype: DataType, shape: &[i64], data: &[u8]) -> String {
        check_elements("x", datatype, shape, data).map_or_else(|fault| fault.to_string(), |()| "fine".to_owned())
    }

    #[test]
    fn sizes_are_exact() {
        expect!["fine"].assert_eq(&sentence(DataType::Fp32, &[2, 2], &[0; 16]));
        expect!["fine"].assert_eq(&sentence(DataType::Fp32, &[0, 2], &[]));
        expect![[r#"input "x" has 15 bytes, but its shape [2, 2] of FP32 takes 16 bytes"#]].assert_eq(&sentence(
            DataType::Fp32,
            &[2, 2],
            &[0; 15],
        ));
        expect![[r#"input "x" has 17 bytes, but its shape [2, 2] of FP32 takes 16 bytes"#]].assert_eq(&sentence(
            DataType::Fp32,
            &[2, 2],
            &[0; 17],
        ));
    }

    #[test]
    fn shapes_that_cannot_be_are_named() {
        expect![[r#"input "x" has the dimension -2 in its shape [4, -2]: none may be negative"#]].assert_eq(&sentence(
            DataType::Fp32,
            &[4, -2],
            &[],
        ));
        expect![[r#"input "x" has the shape [9223372036854775807, 3], whose number of elements overflows"#]]
            .assert_eq(&sentence(DataType::Fp32, &[i64::MAX, 3], &[]));
        expect![[
            r#"input "x" has 0 bytes, but its shape [9223372036854775807] of FP64 takes more bytes than there can be"#
        ]]
        .assert_eq(&sentence(DataType::Fp64, &[i64::MAX], &[]));
    }

    #[test]
    fn booleans_are_zero_or_one() {
        expect!["fine"].assert_eq(&sentence(DataType::Bool, &[2], &[0, 1]));
        expect![[r#"input "x" of BOOL has the byte 7: each element is 0 or 1"#]].assert_eq(&sentence(
            DataType::Bool,
            &[2],
            &[0, 7],
        ));
    }

    #[test]
    fn strings_are_walked() {
        let data = b"\x02\0\0\0ab\0\0\0\0\x01\0\0\0c";
        expect!["fine"].assert_eq(&sentence(DataType::Bytes, &[3], data));
        expect![[r#"input "x" has 3 elements, but its shape [2] takes 2"#]].assert_eq(&sentence(
            DataType::Bytes,
            &[2],
            data,
        ));
        for cut in [1, 3, 5, 8, 14] {
            let said = sentence(DataType::Bytes, &[3], &data[..cut]);
            assert!(said.contains("ends inside element"), "{cut}: {said}");
        }
        expect![[
            r#"input "x" of BYTES ends inside element 0: each is a 4-byte little-endian length and that many bytes"#
        ]]
        .assert_eq(&sentence(DataType::Bytes, &[1], &[0xff, 0xff, 0xff, 0xff, 1]));
    }
}
