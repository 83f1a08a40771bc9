//! Tensors of strings: the protocol's form (4 bytes of length, then the bytes) to the runtime's and back.

use crate::runtime::{Runtime, RuntimeError, no_memory};
use crate::session::SessionTensor;
use ort::sys;
use std::ptr;

/// The strings of a tensor in the protocol's form, which must be exactly `count`.
pub(crate) fn split(mut data: &[u8], count: usize) -> Result<Vec<&[u8]>, String> {
    // Each takes at least the 4 bytes of its length: a count that can't be met isn't reserved for.
    let mut strings = Vec::with_capacity(count.min(data.len() / 4));
    while let Some((length, rest)) = data.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        let Some((string, rest)) = rest.split_at_checked(length) else {
            return Err(format!("string {} says {length} bytes, but {} follow", strings.len(), rest.len()));
        };
        strings.push(string);
        data = rest;
    }
    if !data.is_empty() {
        return Err(format!("{} bytes follow the last string", data.len()));
    }
    if strings.len() != count {
        return Err(format!("the data has {} strings, but the shape has {count}", strings.len()));
    }
    Ok(strings)
}

/// A value that holds a copy of the strings.
pub(crate) fn to_value(
    runtime: &'static Runtime,
    dims: &[i64],
    strings: &[&[u8]],
) -> Result<SessionTensor, RuntimeError> {
    let value = SessionTensor::strings(runtime, dims)?;
    for (index, string) in strings.iter().enumerate() {
        let mut place = ptr::null_mut();
        // SAFETY: the index is below the number of elements; the callee hands out room for exactly that many bytes.
        unsafe {
            let resize = runtime.api.GetResizedStringTensorElementBuffer;
            runtime.check(resize(value.raw, index, string.len(), &mut place))?;
            ptr::copy_nonoverlapping(string.as_ptr(), place.cast(), string.len());
        }
    }
    Ok(value)
}

/// Writes the `count` strings of a value in the protocol's form.
///
/// # Safety
/// `value` must be a live tensor of that many strings.
pub(crate) unsafe fn from_value(
    runtime: &Runtime,
    value: *const sys::OrtValue,
    count: usize,
    out: &mut Vec<u8>,
) -> Result<(), RuntimeError> {
    let mut length = 0;
    // SAFETY: the value is live, says the caller.
    runtime.check(unsafe { (runtime.api.GetStringTensorDataLength)(value, &mut length) })?;
    let mut text = zeros::<u8>(length)?;
    let mut starts = zeros::<usize>(count)?;
    // SAFETY: both buffers have the lengths that are given.
    runtime.check(unsafe {
        let get = runtime.api.GetStringTensorContent;
        get(value, text.as_mut_ptr().cast(), length, starts.as_mut_ptr(), count)
    })?;
    out.clear();
    out.try_reserve(length + 4 * count).map_err(|_| no_memory(length))?;
    for (index, &start) in starts.iter().enumerate() {
        let end = starts.get(index + 1).copied().unwrap_or(length);
        let string = &text[start..end];
        let length = u32::try_from(string.len()).map_err(|_| {
            RuntimeError(format!("an output string has {} bytes, more than the protocol can say", string.len()))
        })?;
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(string);
    }
    Ok(())
}

/// So many zeros, if there is memory for them.
fn zeros<T: Clone + Default>(count: usize) -> Result<Vec<T>, RuntimeError> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(count).map_err(|_| no_memory(count * size_of::<T>()))?;
    zeros.resize(count, T::default());
    Ok(zeros)
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn strings_are_split_by_their_lengths() {
        assert_eq!(split(b"\x02\0\0\0ab\0\0\0\0", 2).unwrap(), [b"ab".as_slice(), b""]);
        assert!(split(b"", 0).unwrap().is_empty());
    }

    #[test]
    fn bad_lengths_are_sentences() {
        let refused = |data: &[u8], count| split(data, count).unwrap_err();
        assert_eq!(refused(b"\x03\0\0\0ab", 1), "string 0 says 3 bytes, but 2 follow");
        assert_eq!(refused(b"\0\0\0\0\x01", 1), "1 bytes follow the last string");
        assert_eq!(
            refused(b"\0\0\0\0", usize::MAX),
            format!("the data has 1 strings, but the shape has {}", usize::MAX)
        );
        assert_eq!(refused(b"\xff\xff\xff\xff", 1), "string 0 says 4294967295 bytes, but 0 follow");
    }
}
