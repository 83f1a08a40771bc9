//! The elements of tensors as numbers that can be compared.

use base::DataType;

/// The largest difference between two elements; infinite where one of them is no number and the other is.
pub fn distance(one: &[f64], other: &[f64]) -> f64 {
    let between = |(a, b): (&f64, &f64)| match a == b || (a.is_nan() && b.is_nan()) {
        true => 0.0,
        false => Some((a - b).abs()).filter(|difference| !difference.is_nan()).unwrap_or(f64::INFINITY),
    };
    if one.len() != other.len() {
        return f64::INFINITY;
    }
    one.iter().zip(other).map(between).fold(0.0, f64::max)
}

/// Whether a type has fractions.
pub fn is_real(datatype: DataType) -> bool {
    matches!(datatype, DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64)
}

/// The elements of a tensor; `None` where they can only be equal or not.
pub fn numbers(datatype: DataType, data: &[u8]) -> Option<Vec<f64>> {
    macro_rules! of {
        ($type:ty, $to_real:expr) => {{
            let number = |bytes: &[u8]| bytes.try_into().map(<$type>::from_le_bytes).unwrap_or_default();
            data.chunks_exact(size_of::<$type>()).map(number).map($to_real).collect()
        }};
    }
    let halves = |to_real: fn(u16) -> f64| {
        data.chunks_exact(2).map(|bytes| to_real(u16::from_le_bytes([bytes[0], bytes[1]]))).collect()
    };
    Some(match datatype {
        DataType::Bool | DataType::Bytes => return None,
        DataType::Uint8 => of!(u8, f64::from),
        DataType::Uint16 => of!(u16, f64::from),
        DataType::Uint32 => of!(u32, f64::from),
        DataType::Uint64 => of!(u64, |whole| whole as f64),
        DataType::Int8 => of!(i8, f64::from),
        DataType::Int16 => of!(i16, f64::from),
        DataType::Int32 => of!(i32, f64::from),
        DataType::Int64 => of!(i64, |whole| whole as f64),
        DataType::Fp32 => of!(f32, f64::from),
        DataType::Fp64 => of!(f64, |real| real),
        DataType::Bf16 => halves(|bits| f64::from(f32::from_bits(u32::from(bits) << 16))),
        DataType::Fp16 => halves(half),
    })
}

/// IEEE half precision.
fn half(bits: u16) -> f64 {
    let (sign, exponent, fraction) = (bits >> 15, i32::from(bits >> 10 & 31), f64::from(bits & 1023) / 1024.0);
    let value = match exponent {
        0 => fraction * 2f64.powi(-14),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction) * 2f64.powi(exponent - 15),
    };
    if sign == 1 { -value } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_equals_itself() {
        let values = [f64::NAN, f64::INFINITY, -1.0];
        assert_eq!(distance(&values, &values), 0.0);
        assert_eq!(distance(&[f64::INFINITY], &[f64::NEG_INFINITY]), f64::INFINITY);
        assert_eq!(distance(&[1.0], &[1.0, 2.0]), f64::INFINITY);
    }

    #[test]
    fn elements_of_all_types_become_numbers() {
        for (bits, value) in
            [(0x3c00, 1.0), (0xc000, -2.0), (0x0001, 2f64.powi(-24)), (0x7bff, 65504.0), (0xfc00, f64::NEG_INFINITY)]
        {
            assert_eq!(half(bits), value);
        }
        assert!(half(0x7e00).is_nan());
        for &datatype in DataType::ALL {
            let one = datatype.element(1.0).filter(|_| datatype != DataType::Bool);
            if let Some(one) = one {
                assert_eq!(numbers(datatype, &one), Some(vec![1.0]), "{datatype}");
            }
        }
        assert_eq!(numbers(DataType::Bytes, b""), None);
    }
}
