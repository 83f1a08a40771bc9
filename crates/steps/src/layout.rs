//! The order of axes, written as letters: `HWC` to `NCHW`.

use crate::bound::Bound;
use crate::{StepError, Work, parameters, specs};
use base::{DataType, TensorSpec};
use engine::Tensor;
use serde::Deserialize;
use toml::Table;

/// Axes in another order. A letter that is only in `to` is a new axis with one element, one that is only in `from` had
/// one element and is dropped.
#[derive(Debug)]
pub(crate) struct Relayout {
    from: String,
    to: String,
    /// Where each axis of the output is in the input; `None` for new ones.
    sources: Vec<Option<usize>>,
    /// Axes of the input that are dropped.
    dropped: Vec<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LayoutParameters {
    from: String,
    to: String,
}

impl Relayout {
    pub(crate) fn read(table: &Table) -> Result<Box<dyn Work>, String> {
        let LayoutParameters { from, to } = parameters::read(table)?;
        for (key, letters) in [("from", &from), ("to", &to)] {
            let twice = |(position, letter): (usize, char)| letters.chars().take(position).any(|other| other == letter);
            if letters.chars().enumerate().any(twice) || letters.chars().count() > 8 {
                return Err(format!(
                    "{key} is {letters:?}: it is a letter for each axis, none of them twice, 8 at most"
                ));
            }
        }
        let sources: Vec<_> = to.chars().map(|letter| from.chars().position(|other| other == letter)).collect();
        let dropped = (0..from.chars().count()).filter(|position| !sources.contains(&Some(*position))).collect();
        Ok(Box::new(Self { from, to, sources, dropped }))
    }

    fn shape(&self, shape: &[i64]) -> Vec<i64> {
        self.sources.iter().map(|source| source.map_or(1, |position| shape[position])).collect()
    }
}

impl Work for Relayout {
    fn input_names(&self) -> &'static [&'static str] {
        &["tensor"]
    }

    fn output_names(&self) -> &'static [&'static str] {
        &["tensor"]
    }

    fn outputs(&self, inputs: &[TensorSpec]) -> Result<Vec<(DataType, Vec<i64>)>, String> {
        let TensorSpec { name, datatype, dims } = &inputs[0];
        let Self { from, to, .. } = self;
        if dims.len() != from.chars().count() {
            return Err(format!("{name} has the shape {dims:?}, and {from:?} has {} axes", from.chars().count()));
        }
        if let Some(&large) = self.dropped.iter().find(|&&position| !matches!(dims[position], -1 | 1)) {
            let letter = from.chars().nth(large).unwrap_or_default();
            return Err(format!("{name} has the shape {dims:?}: {letter} of {from:?} isn't in {to:?}, and isn't 1"));
        }
        if *datatype == DataType::Bytes && !self.sources.iter().flatten().is_sorted() {
            return Err(format!("{name} is BYTES, whose axes stay in their order"));
        }
        Ok(vec![(*datatype, self.shape(dims))])
    }

    fn run(&self, inputs: &[Tensor], bound: &mut Bound) -> Result<Vec<Tensor>, StepError> {
        let Tensor { datatype, shape, data } = &inputs[0];
        let moved = || self.sources.iter().flatten().filter(|&&position| shape[position] != 1);
        let output = |data| Ok(vec![Tensor { datatype: *datatype, shape: self.shape(shape), data }]);
        if data.is_empty() || moved().is_sorted() {
            return output(data.clone());
        }
        let stride = |position: usize| specs::around(shape, position).2;
        let axes: Vec<(usize, usize)> = moved().map(|&position| (shape[position] as usize, stride(position))).collect();
        let mut out: Vec<u8> = bound.filled(data.len(), 0)?;
        match datatype.size() {
            Some(1) => copy::<1>(data, &mut out, &axes),
            Some(2) => copy::<2>(data, &mut out, &axes),
            Some(4) => copy::<4>(data, &mut out, &axes),
            Some(8) => copy::<8>(data, &mut out, &axes),
            _ => return Err(StepError::Inputs("BYTES, whose axes stay in their order".into())),
        }
        output(out.into())
    }
}

/// Copies elements of `SIZE` bytes in the order of axes, each of which has so many elements, so far apart in the input.
fn copy<const SIZE: usize>(from: &[u8], to: &mut [u8], axes: &[(usize, usize)]) {
    let (from, _) = from.as_chunks::<SIZE>();
    let (to, _) = to.as_chunks_mut::<SIZE>();
    let Some((&(length, stride), before)) = axes.split_last() else { return };
    let mut counts = vec![0; before.len()];
    let mut start = 0;
    for line in to.chunks_exact_mut(length) {
        for (position, element) in line.iter_mut().enumerate() {
            *element = from[start + position * stride];
        }
        // The next line: the last axis counts first.
        for (count, &(length, stride)) in counts.iter_mut().zip(before).rev() {
            *count += 1;
            start += stride;
            if *count < length {
                break;
            }
            start -= length * stride;
            *count = 0;
        }
    }
}
