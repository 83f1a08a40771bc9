//! What an answer says: the output by which answers are compared, as one code for each of its rows.

use crate::table::Sureness;
use base::DataType;
use half::{bf16, f16};

/// What one row says: a class, a label (bytes as a hash of them), or the bits of a value. Equal codes say the same.
pub type Code = u64;

/// What an output has.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Reads {
    /// Scores: the last dimension has one for each class, and the highest is what the row says.
    Scores,
    /// Labels: each element is one.
    Labels,
    /// Values: each element is one, and those that are `scale` apart have nothing in common.
    Values {
        /// In the values' unit.
        scale: f64,
    },
}

/// By what answers are compared.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Judge {
    /// The output's position in the signature.
    pub output: usize,
    /// What it has.
    pub reads: Reads,
    /// How many classes there are, where that is known.
    pub classes: Option<usize>,
}

/// A tensor to be read, in the protocol's binary form.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// The type of its elements.
    pub datatype: DataType,
    /// Its dimensions.
    pub shape: &'a [i64],
    /// Its elements.
    pub data: &'a [u8],
}

impl Judge {
    /// What each row says, or why that can't be read.
    pub fn read(&self, tensor: &Shown<'_>) -> Result<Vec<Code>, String> {
        match self.reads {
            Reads::Scores => Ok(scores(tensor)?.chunks_exact(last_dim(tensor)?).map(highest).collect()),
            Reads::Labels if tensor.datatype == DataType::Bytes => {
                Ok(texts(tensor)?.into_iter().map(text_code).collect())
            }
            Reads::Labels => labels(tensor),
            Reads::Values { .. } => Ok(scores(tensor)?.into_iter().map(f64::to_bits).collect()),
        }
    }

    /// How far apart two rows are, in `[0, 1]`.
    pub fn distance(&self, left: Code, right: Code) -> f64 {
        match self.reads {
            Reads::Scores | Reads::Labels => f64::from(u8::from(left != right)),
            Reads::Values { scale } => {
                let apart = (f64::from_bits(left) - f64::from_bits(right)).abs() / scale;
                // What isn't a number has nothing in common with anything.
                if apart.is_nan() { 1.0 } else { apart.min(1.0) }
            }
        }
    }

    /// The mean distance over rows; 1 where their numbers differ.
    pub fn mean_distance(&self, left: &[Code], right: &[Code]) -> f64 {
        if left.len() != right.len() || left.is_empty() {
            return 1.0;
        }
        let sum: f64 = left.iter().zip(right).map(|(&left, &right)| self.distance(left, right)).sum();
        sum / left.len() as f64
    }

    /// The code of a label that is a number.
    pub fn number(&self, label: f64) -> Result<Code, String> {
        match self.reads {
            Reads::Values { .. } if label.is_finite() => Ok(label.to_bits()),
            Reads::Values { .. } => Err(format!("the label is {label}: write a finite number")),
            Reads::Scores | Reads::Labels => {
                let whole = label as i64;
                if whole as f64 != label || (matches!(self.reads, Reads::Scores) && whole < 0) {
                    return Err(format!("the label is {label}: write the number of a class"));
                }
                match self.classes {
                    Some(classes) if whole as u64 >= classes as u64 => {
                        Err(format!("the label is {label}, and there are {classes} classes, from 0 on"))
                    }
                    _ => Ok(whole as u64),
                }
            }
        }
    }

    /// The code of a label that is a text.
    pub fn text(&self, label: &[u8]) -> Code {
        text_code(label)
    }
}

/// The class with the highest score; the first of equals. What isn't a number is below all others.
fn highest(scores: &[f64]) -> Code {
    let mut best = (0, f64::NEG_INFINITY);
    for (class, &score) in scores.iter().enumerate() {
        if score > best.1 {
            best = (class, score);
        }
    }
    best.0 as u64
}

/// FNV-1a, mixed: labels are few and short, and who makes two of them collide gets his own feedback wrong.
fn text_code(text: &[u8]) -> Code {
    let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = text.iter().fold(0xcbf2_9ce4_8422_2325, hash);
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The size of the last dimension.
pub(crate) fn last_dim(tensor: &Shown<'_>) -> Result<usize, String> {
    let last = tensor.shape.last().and_then(|&dim| usize::try_from(dim).ok()).filter(|&dim| dim > 0);
    last.ok_or_else(|| format!("scores of the shape {:?} have no classes", tensor.shape))
}

/// All elements as numbers.
pub(crate) fn scores(tensor: &Shown<'_>) -> Result<Vec<f64>, String> {
    let data = tensor.data;
    let halves = || data.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    let numbers: Vec<f64> = match tensor.datatype {
        DataType::Fp32 => data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes).into()).collect(),
        DataType::Fp64 => data.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect(),
        DataType::Fp16 => halves().map(|bits| f16::from_bits(bits).to_f64()).collect(),
        DataType::Bf16 => halves().map(|bits| bf16::from_bits(bits).to_f64()).collect(),
        other => return Err(format!("numbers with a fraction were expected, and the output is {other}")),
    };
    Ok(numbers)
}

/// A number as one element of that type of float.
pub(crate) fn put_score(datatype: DataType, value: f64, data: &mut Vec<u8>) {
    match datatype {
        DataType::Fp64 => data.extend(value.to_le_bytes()),
        DataType::Fp16 => data.extend(f16::from_f64(value).to_le_bytes()),
        DataType::Bf16 => data.extend(bf16::from_f64(value).to_le_bytes()),
        _ => data.extend((value as f32).to_le_bytes()),
    }
}

/// All elements of whole numbers, as they are in 64 bits.
fn labels(tensor: &Shown<'_>) -> Result<Vec<Code>, String> {
    let size = tensor.datatype.size().unwrap_or(1);
    let signed = match tensor.datatype {
        DataType::Bool | DataType::Uint8 | DataType::Uint16 | DataType::Uint32 | DataType::Uint64 => false,
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => true,
        other => return Err(format!("labels were expected, and the output is {other}")),
    };
    let label = |bytes: &[u8]| {
        let negative = signed && bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut wide = [if negative { 0xff } else { 0 }; 8];
        wide[..size].copy_from_slice(bytes);
        u64::from_le_bytes(wide)
    };
    Ok(tensor.data.chunks_exact(size).map(label).collect())
}

/// The elements of strings, without their lengths.
pub(crate) fn texts<'a>(tensor: &Shown<'a>) -> Result<Vec<&'a [u8]>, String> {
    let mut rest = tensor.data;
    let mut found = Vec::new();
    while let Some((length, behind)) = rest.split_first_chunk() {
        let length = u32::from_le_bytes(*length) as usize;
        let Some((text, behind)) = behind.split_at_checked(length) else {
            return Err("an output of strings ends within one of them".to_owned());
        };
        found.push(text);
        rest = behind;
    }
    Ok(found)
}

/// How sure scores are, of the row that is least so; 0 where there are none.
pub fn sureness(tensor: &Shown<'_>, by: Sureness, logits: bool) -> Result<f64, String> {
    let (scores, classes) = (scores(tensor)?, last_dim(tensor)?);
    let row = |row: &[f64]| {
        let highest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut first = (0.0, 0.0);
        let mut sum = 0.0;
        for &score in row {
            let score = if logits { libm::exp(score - highest) } else { score };
            sum += score;
            first = if score > first.0 { (score, first.0) } else { (first.0, first.1.max(score)) };
        }
        let scale = if logits { sum } else { 1.0 };
        let sure = match by {
            Sureness::Top => first.0 / scale,
            Sureness::Margin => (first.0 - first.1) / scale,
        };
        // A row with something in it that isn't a number is sure of nothing.
        if sum.is_finite() && sure.is_finite() { sure.clamp(0.0, 1.0) } else { 0.0 }
    };
    Ok(scores.chunks_exact(classes).map(row).reduce(f64::min).unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn scores_say_the_highest_class_of_each_row() {
        let judge = Judge { output: 0, reads: Reads::Scores, classes: Some(3) };
        let data = floats(&[0.1, 0.7, 0.2, f32::NAN, -1.0, -2.0, 0.5, 0.5, 0.0]);
        let tensor = Shown { datatype: DataType::Fp32, shape: &[3, 3], data: &data };
        assert_eq!(judge.read(&tensor), Ok(vec![1, 1, 0]));
        assert!(judge.read(&Shown { shape: &[3, 0], ..tensor }).is_err());
        assert!(judge.read(&Shown { datatype: DataType::Int32, ..tensor }).is_err());
        let halves: Vec<u8> = [0.25, 0.5, 0.0].iter().flat_map(|&v| f16::from_f64(v).to_le_bytes()).collect();
        assert_eq!(judge.read(&Shown { datatype: DataType::Fp16, shape: &[1, 3], data: &halves }), Ok(vec![1]));
    }

    #[test]
    fn labels_are_equal_in_every_type() {
        let judge = Judge { output: 0, reads: Reads::Labels, classes: None };
        let of = |datatype, data: &[u8]| judge.read(&Shown { datatype, shape: &[-1], data }).unwrap();
        assert_eq!(of(DataType::Int8, &[0xff, 3]), vec![u64::MAX, 3]);
        assert_eq!(of(DataType::Int64, &[0xff; 8]), vec![judge.number(-1.0).unwrap()]);
        assert_eq!(of(DataType::Uint8, &[0xff]), vec![255]);
        let strings = [&[3, 0, 0, 0][..], b"cat", &[0, 0, 0, 0]].concat();
        assert_eq!(of(DataType::Bytes, &strings), vec![judge.text(b"cat"), judge.text(b"")]);
        assert_ne!(judge.text(b"cat"), judge.text(b"dog"));
        assert!(judge.read(&Shown { datatype: DataType::Bytes, shape: &[1], data: &[9, 0, 0, 0, 1] }).is_err());
    }

    #[test]
    fn values_are_as_far_apart_as_their_scale_says() {
        let judge = Judge { output: 0, reads: Reads::Values { scale: 2.0 }, classes: None };
        let apart = |left: f64, right: f64| judge.distance(left.to_bits(), right.to_bits());
        assert_eq!((apart(1.0, 1.0), apart(1.0, 2.0), apart(1.0, 9.0)), (0.0, 0.5, 1.0));
        assert_eq!((apart(f64::NAN, f64::NAN), apart(f64::INFINITY, f64::INFINITY)), (1.0, 1.0));
        assert_eq!(judge.mean_distance(&[0, 0], &[0]), 1.0, "rows that aren't there");
        assert!(judge.number(f64::NAN).is_err() && judge.number(0.5).is_ok());
    }

    #[test]
    fn labels_that_are_no_class_are_refused() {
        let judge = Judge { output: 0, reads: Reads::Scores, classes: Some(3) };
        assert_eq!(judge.number(2.0), Ok(2));
        for wrong in [3.0, -1.0, 0.5, f64::NAN, f64::INFINITY, 1e300] {
            assert!(judge.number(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_row_that_is_least_sure_counts() {
        let data = floats(&[0.9, 0.1, 0.6, 0.4]);
        let tensor = Shown { datatype: DataType::Fp32, shape: &[2, 2], data: &data };
        let near =
            |got: Result<f64, String>, wanted: f64| assert!((got.clone().unwrap() - wanted).abs() < 1e-6, "{got:?}");
        near(sureness(&tensor, Sureness::Top, false), 0.6);
        near(sureness(&tensor, Sureness::Margin, false), 0.2);
        let logits = floats(&[1000.0, 1000.0, 0.0, 0.0]);
        near(sureness(&Shown { data: &logits, ..tensor }, Sureness::Top, true), 0.5);
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let data = floats(&[broken, broken]);
            near(sureness(&Shown { shape: &[1, 2], data: &data, ..tensor }, Sureness::Top, true), 0.0);
        }
        near(sureness(&Shown { shape: &[0, 2], data: &[], ..tensor }, Sureness::Top, false), 0.0);
    }
}
