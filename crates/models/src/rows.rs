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
use engine::{Tensor, distance, is_real, numbers};
use std::ops::RangeInclusive;

/// What differs by no more than this part of an output's largest element is rounding: kernels for more rows add up in
/// another order.
const ROUNDING: f64 = 1e-4;
/// What differs by no more than this part of what rows of different inputs differ by isn't due to other rows either:
/// networks that are quantised while they run find their scales for all rows of a batch together.
const APART: f64 = 0.05;
/// What whole numbers are made of, in this order until the model accepts them: tokens and flags, tokens and lengths,
/// lengths alone.
pub(crate) const WHOLE: [RangeInclusive<u64>; 3] = [0..=1, 1..=2, 1..=1];

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
        (counts(first.datatype) || off > ROUNDING * largest && off > APART * apart)
            .then(|| format!("output {} by {off:.3}, where rows differ by {apart:.3}", spec.name))
    })
}

/// Whether its numbers are positions, numbers of rows and the like, which are right or wrong: a detector says of each
/// box which row it is of, and that is 0 in every row alone.
fn counts(datatype: DataType) -> bool {
    !is_real(datatype) && datatype.size().is_some_and(|bytes| bytes >= 4)
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

    /// Each row has exactly one box, so that the shapes are those of a batch.
    #[test]
    fn a_box_that_names_its_row_isnt_a_row() {
        let boxes = |rows: &[[i64; 3]]| {
            let data: Vec<u8> = rows.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
            Tensor { datatype: DataType::Int64, shape: vec![rows.len() as i64, 3], data: data.into() }
        };
        let spec = TensorSpec { name: "chosen".into(), datatype: DataType::Int64, dims: vec![-1, 3] };
        let alone = [vec![boxes(&[[0, 0, 5_000]])], vec![boxes(&[[0, 0, 77]])]];
        let found = |together| differ(std::slice::from_ref(&spec), &alone, &[0, 1], &[boxes(together)]);
        assert_eq!(
            found(&[[0, 0, 5_000], [1, 0, 77]]).unwrap(),
            "output chosen by 1.000, where rows differ by 4923.000"
        );
        assert_eq!(found(&[[0, 0, 5_000], [0, 0, 77]]), None);
    }
}
