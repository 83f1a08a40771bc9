//! Whether a model's first dimension is a batch, by evidence: rows computed together equal rows computed alone.
//!
//! ```text
//!  alone      a        b
//!  together   a b      b a b       each row in the first, a middle and the last place, behind other rows
//! ```
//!
//! A recurrent network over `time x features`, attention over the first dimension and a softmax along it look like
//! batches from outside, whatever their dimensions are called; here they differ. It is four executions of seven rows in
//! all.

use crate::runner::{Compute, RunError};
use crate::samples::{OpenSizes, Samples};
use base::{DataType, ModelSignature, TensorSpec};
use engine::Tensor;
use std::ops::RangeInclusive;

/// What differs by no more than this part of an output's largest element is rounding: kernels for more rows add up in
/// another order.
const ROUNDING: f64 = 1e-4;
/// What differs by no more than this part of what rows of different inputs differ by isn't due to other rows either:
/// networks that are quantised while they run find their scales for all rows of a batch together.
const APART: f64 = 0.05;
/// What whole numbers are made of, in this order until the model accepts them: tokens and flags, tokens and lengths,
/// lengths alone.
const WHOLE: [RangeInclusive<u64>; 3] = [0..=1, 1..=2, 1..=1];

/// What running rows together and alone has shown.
#[derive(Debug, PartialEq)]
pub(crate) enum Evidence {
    /// Rows don't depend on one another.
    Batch(String),
    /// They do, or several can't be computed at once.
    NoBatch(String),
    /// Nothing.
    Unknown(String),
}

/// Runs a model whose first dimensions are all open. An error says that nothing can be run on the device any more.
pub(crate) fn compare(
    runner: &mut dyn Compute,
    signature: &ModelSignature,
    samples: Samples<'_>,
) -> Result<Evidence, String> {
    let has_whole = signature.inputs.iter().any(|spec| !is_real(spec.datatype) && spec.datatype.size().is_some());
    for open in samples.open_sizes(signature) {
        for whole in &WHOLE[..if has_whole { WHOLE.len() } else { 1 }] {
            let mut rows = Rows { runner, signature, samples, open, whole };
            match rows.compare() {
                Ok(evidence) => return Ok(evidence),
                Err(RunError::Refused(_)) => {}
                Err(RunError::Gone(reason)) => return Err(reason),
            }
        }
    }
    Ok(Evidence::Unknown("no input was found that the model accepts".into()))
}

/// Rows of one kind.
struct Rows<'a> {
    runner: &'a mut dyn Compute,
    signature: &'a ModelSignature,
    samples: Samples<'a>,
    open: OpenSizes,
    whole: &'a RangeInclusive<u64>,
}

impl Rows<'_> {
    /// Refused: the model doesn't accept such a row.
    fn compare(&mut self) -> Result<Evidence, RunError> {
        let alone = [self.compute(&[0])?, self.compute(&[1])?];
        for order in [&[0, 1][..], &[1, 0, 1]] {
            let together = match self.compute(order) {
                Ok(outputs) => outputs,
                Err(RunError::Refused(reason)) => {
                    return Ok(Evidence::NoBatch(format!("the model refuses {} rows: {reason}", order.len())));
                }
                Err(gone) => return Err(gone),
            };
            if let Some(difference) = differ(&self.signature.outputs, &alone, order, &together) {
                return self.explain(&alone, difference);
            }
        }
        Ok(Evidence::Batch("rows computed together equal rows computed alone".into()))
    }

    fn compute(&mut self, order: &[usize]) -> Result<Vec<Tensor>, RunError> {
        let seeds: Vec<u64> = order.iter().map(|&row| row as u64 + 1).collect();
        let inputs = self.samples.rows(self.signature, self.open, self.whole, &seeds).map_err(RunError::Refused)?;
        self.runner.compute(&inputs)
    }

    /// A model whose results are left to chance says nothing of rows.
    fn explain(&mut self, alone: &[Vec<Tensor>; 2], difference: String) -> Result<Evidence, RunError> {
        let again = self.compute(&[0])?;
        Ok(match differ(&self.signature.outputs, alone, &[0], &again) {
            None => Evidence::NoBatch(format!("rows computed together differ from rows computed alone: {difference}")),
            Some(_) => Evidence::Unknown("the model's outputs differ from run to run".into()),
        })
    }
}

/// In what the rows of a batch, which are those in that order, differ from rows that were computed alone.
fn differ(specs: &[TensorSpec], alone: &[Vec<Tensor>; 2], order: &[usize], together: &[Tensor]) -> Option<String> {
    specs.iter().zip(together).enumerate().find_map(|(position, (spec, found))| {
        let output = |row: usize| alone[row].get(position);
        let rows: Vec<&Tensor> = order.iter().filter_map(|&row| output(row)).collect();
        let first = *rows.first()?;
        let expected: Vec<i64> =
            std::iter::once(rows.len() as i64).chain(first.shape.iter().skip(1).copied()).collect();
        if found.shape != expected || rows.iter().any(|row| row.shape.first() != Some(&1)) {
            return Some(format!("output {} has the shape {:?}, not {expected:?}", spec.name, found.shape));
        }
        let expected = rows.iter().flat_map(|row| row.data.iter().copied()).collect::<Vec<u8>>();
        if expected == found.data {
            return None;
        }
        let (Some(expected), Some(found)) = (numbers(first.datatype, &expected), numbers(first.datatype, &found.data))
        else {
            return Some(format!("output {}", spec.name));
        };
        let apart = match (output(0), output(1)) {
            (Some(one), Some(other)) => {
                let of = |tensor: &Tensor| numbers(tensor.datatype, &tensor.data).unwrap_or_default();
                distance(&of(one), &of(other))
            }
            _ => 0.0,
        };
        let largest =
            expected.iter().filter(|value| value.is_finite()).fold(0.0, |most: f64, value| most.max(value.abs()));
        let off = distance(&expected, &found);
        (off > ROUNDING * largest && off > APART * apart)
            .then(|| format!("output {} by {off:.3}, where rows differ by {apart:.3}", spec.name))
    })
}

/// The largest difference between two elements; infinite where one of them is no number and the other is.
fn distance(one: &[f64], other: &[f64]) -> f64 {
    let between = |(a, b): (&f64, &f64)| match a == b || (a.is_nan() && b.is_nan()) {
        true => 0.0,
        false => Some((a - b).abs()).filter(|difference| !difference.is_nan()).unwrap_or(f64::INFINITY),
    };
    if one.len() != other.len() {
        return f64::INFINITY;
    }
    one.iter().zip(other).map(between).fold(0.0, f64::max)
}

fn is_real(datatype: DataType) -> bool {
    matches!(datatype, DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64)
}

/// The elements of a tensor; `None` where they can only be equal or not.
fn numbers(datatype: DataType, data: &[u8]) -> Option<Vec<f64>> {
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

    fn tensor(rows: &[[f32; 2]]) -> Tensor {
        let data: Vec<u8> = rows.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
        Tensor { datatype: DataType::Fp32, shape: vec![rows.len() as i64, 2], data: data.into() }
    }

    fn compare(together: &[[f32; 2]]) -> Option<String> {
        let spec = TensorSpec { name: "y".into(), datatype: DataType::Fp32, dims: vec![-1, 2] };
        let alone = [vec![tensor(&[[1.0, 2.0]])], vec![tensor(&[[1.1, -2.0]])]];
        differ(&[spec], &alone, &[0, 1], &[tensor(together)])
    }

    #[test]
    fn rows_may_differ_by_rounding_and_not_by_more() {
        assert_eq!(compare(&[[1.0, 2.0], [1.1, -2.0]]), None);
        assert_eq!(compare(&[[1.0, 2.0001], [1.1, -2.0]]), None, "rounding");
        assert_eq!(compare(&[[1.0, 2.1], [1.1, -2.0]]), None, "little beside what rows differ by");
        assert_eq!(compare(&[[1.0, 2.5], [1.1, -2.0]]).unwrap(), "output y by 0.500, where rows differ by 4.000");
        assert_eq!(compare(&[[1.0, f32::NAN], [1.1, -2.0]]).unwrap(), "output y by inf, where rows differ by 4.000");
        assert_eq!(compare(&[[1.0, 2.0]]).unwrap(), "output y has the shape [1, 2], not [2, 2]");
    }

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
