//! Elements of tensors as numbers of their type, and back.

use crate::StepError;
use crate::bound::Bound;
use base::DataType;
use bytemuck::Pod;
use bytes::Bytes;
use engine::Tensor;
use half::{bf16, f16};
use std::borrow::Cow;
use std::cmp::Ordering;

/// A type of element that can be computed with.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// How it lies in a tensor.
    type Raw: Pod + Send + Sync;
    fn read(raw: Self::Raw) -> Self;
    fn raw(self) -> Self::Raw;
    fn to_f64(self) -> f64;
    /// Exactly.
    fn number(self) -> Number;
    /// The nearest that the type has; for integers of a real number the whole one towards zero, and 0 for what is no
    /// number.
    fn from_number(number: Number) -> Self;
    fn from_f64(value: f64) -> Self {
        Self::from_number(Number::Real(value))
    }
    /// Which is larger. What is no number is less than all numbers, and equal to itself.
    fn order(self, other: Self) -> Ordering;
}

/// An element of any type.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Number {
    Whole(i128),
    Real(f64),
}

impl Number {
    pub(crate) fn is_zero(self) -> bool {
        match self {
            Self::Whole(whole) => whole == 0,
            Self::Real(real) => real == 0.0,
        }
    }
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Element for $type {
            type Raw = $type;
            fn read(raw: $type) -> Self { raw }
            fn raw(self) -> $type { self }
            fn to_f64(self) -> f64 { self as f64 }
            fn number(self) -> Number { Number::Whole(self.into()) }
            fn from_number(number: Number) -> Self {
                match number {
                    Number::Whole(whole) => whole.clamp(<$type>::MIN.into(), <$type>::MAX.into()) as $type,
                    Number::Real(real) => real as $type,
                }
            }
            fn order(self, other: Self) -> Ordering { self.cmp(&other) }
        }
    )*};
}

integers! { u8 u16 u32 u64 i8 i16 i32 i64 }

macro_rules! floats {
    ($($type:ty, $raw:ty, $read:expr, $write:expr, $to:expr, $from:expr;)*) => {$(
        impl Element for $type {
            type Raw = $raw;
            fn read(raw: $raw) -> Self { $read(raw) }
            fn raw(self) -> $raw { $write(self) }
            fn to_f64(self) -> f64 { $to(self) }
            fn number(self) -> Number { Number::Real($to(self)) }
            fn from_number(number: Number) -> Self {
                match number {
                    Number::Whole(whole) => $from(whole as f64),
                    Number::Real(real) => $from(real),
                }
            }
            fn order(self, other: Self) -> Ordering {
                self.partial_cmp(&other).unwrap_or_else(|| other.is_nan().cmp(&self.is_nan()))
            }
        }
    )*};
}

floats! {
    f32, f32, |raw| raw, |value| value, f64::from, |value| value as f32;
    f64, f64, |raw| raw, |value| value, |value| value, |value| value;
    f16, u16, f16::from_bits, f16::to_bits, f16::to_f64, f16::from_f64;
    bf16, u16, bf16::from_bits, bf16::to_bits, bf16::to_f64, bf16::from_f64;
}

/// Evaluates an expression with a name for the type of a tensor's elements; a second one for `Bytes`, which are no
/// numbers. Truth values are bytes.
macro_rules! with_type {
    ($datatype:expr, $type:ident => $numbers:expr, $bytes:expr) => {{
        use base::DataType as D;
        match $datatype {
            D::Bool | D::Uint8 => {
                type $type = u8;
                $numbers
            }
            D::Uint16 => {
                type $type = u16;
                $numbers
            }
            D::Uint32 => {
                type $type = u32;
                $numbers
            }
            D::Uint64 => {
                type $type = u64;
                $numbers
            }
            D::Int8 => {
                type $type = i8;
                $numbers
            }
            D::Int16 => {
                type $type = i16;
                $numbers
            }
            D::Int32 => {
                type $type = i32;
                $numbers
            }
            D::Int64 => {
                type $type = i64;
                $numbers
            }
            D::Fp16 => {
                type $type = half::f16;
                $numbers
            }
            D::Fp32 => {
                type $type = f32;
                $numbers
            }
            D::Fp64 => {
                type $type = f64;
                $numbers
            }
            D::Bf16 => {
                type $type = half::bf16;
                $numbers
            }
            D::Bytes => $bytes,
        }
    }};
}
pub(crate) use with_type;

/// The elements of a tensor of that type: where they are, if they lie at addresses that the type needs.
pub(crate) fn elements<'a, T: Element>(tensor: &'a Tensor, bound: &mut Bound) -> Result<Cow<'a, [T::Raw]>, StepError> {
    if let Ok(there) = bytemuck::try_cast_slice(&tensor.data) {
        return Ok(Cow::Borrowed(there));
    }
    let size = size_of::<T::Raw>();
    let mut copy = bound.room(tensor.data.len() / size)?;
    copy.extend(tensor.data.chunks_exact(size).map(bytemuck::pod_read_unaligned::<T::Raw>));
    Ok(Cow::Owned(copy))
}

/// A tensor of elements, without a copy.
pub(crate) fn tensor<R: Pod + Send + Sync>(datatype: DataType, shape: Vec<i64>, elements: Vec<R>) -> Tensor {
    Tensor { datatype, shape, data: Bytes::from_owner(Words(elements)) }
}

/// Numbers as the bytes that they are.
struct Words<R>(Vec<R>);

impl<R: Pod> AsRef<[u8]> for Words<R> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// The strings of a tensor of `Bytes`, each of which is a length and so many bytes.
pub(crate) fn strings<'a>(tensor: &'a Tensor, name: &str) -> Result<Vec<&'a [u8]>, StepError> {
    let count = base::element_count(&tensor.shape).unwrap_or(usize::MAX);
    let truncated = || StepError::Inputs(format!("input {name} ends before its {count} strings do"));
    // Each has four bytes at least: a count that the bytes can't have takes no memory.
    if count.checked_mul(4).is_none_or(|bytes| bytes > tensor.data.len()) {
        return Err(truncated());
    }
    let (mut strings, mut rest) = (Vec::with_capacity(count), &tensor.data[..]);
    for _ in 0..count {
        let (length, behind) = rest.split_first_chunk().ok_or_else(truncated)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (string, behind) = behind.split_at_checked(length).ok_or_else(truncated)?;
        strings.push(string);
        rest = behind;
    }
    match rest {
        [] => Ok(strings),
        rest => Err(StepError::Inputs(format!("input {name} has {} bytes behind its {count} strings", rest.len()))),
    }
}

/// Adds a string to those of a tensor of `Bytes`.
pub(crate) fn push_string(data: &mut Vec<u8>, string: &[u8]) {
    data.extend_from_slice(&u32::try_from(string.len()).unwrap_or(u32::MAX).to_le_bytes());
    data.extend_from_slice(string);
}
