//! The highest values of an output as texts, `value:index` or `value:index:label`, instead of the output itself.

use base::{DataType, Reason};
use bytes::Bytes;
use controller::Tensor;
use std::cmp::Ordering;
use std::fmt::Display;
use wire::{Fault, push_string};

/// Refuses, before anything is computed, outputs that have no highest values.
pub(crate) fn check_type(name: &str, datatype: DataType) -> Result<(), Fault> {
    match datatype {
        DataType::Bool | DataType::Fp16 | DataType::Bf16 | DataType::Bytes => {
            Err(Fault::bad(format!("output {name:?} is {datatype}, which can't be classified: ask for the tensor")))
        }
        _ => Ok(()),
    }
}

/// The `classes` highest values of each row, highest first; of equal ones the first comes first. Where the model has no
/// batch dimension the whole tensor is one row.
pub(crate) fn classify(tensor: &Tensor, classes: u32, batched: bool, labels: &[String]) -> Result<Tensor, Fault> {
    let rows = if batched { tensor.shape.first().copied().unwrap_or(1) } else { 1 };
    let row_count = usize::try_from(rows).unwrap_or(0).max(1);
    let size = tensor.datatype.size().unwrap_or(1);
    let elements = tensor.data.len() / size / row_count;
    let wanted = usize::try_from(classes).unwrap_or(usize::MAX).min(elements);
    let mut data = Vec::with_capacity(row_count * wanted * 16);
    for row in tensor.data.chunks_exact((elements * size).max(1)) {
        write_row(&mut data, tensor.datatype, row, wanted, labels)?;
    }
    let wanted = i64::try_from(wanted).unwrap_or(i64::MAX);
    let shape = if batched { vec![rows, wanted] } else { vec![wanted] };
    Ok(Tensor { datatype: DataType::Bytes, shape, data: Bytes::from(data) })
}

fn write_row(out: &mut Vec<u8>, datatype: DataType, row: &[u8], wanted: usize, labels: &[String]) -> Result<(), Fault> {
    macro_rules! of {
        ($type:ty, $order:expr, $text:expr) => {{
            let read = |chunk: &[u8]| <$type>::from_le_bytes(chunk.try_into().expect("chunks have the element's size"));
            let values: Vec<$type> = row.chunks_exact(size_of::<$type>()).map(read).collect();
            write_highest(out, &values, wanted, labels, $order, $text)
        }};
    }
    // Floats with six digits behind the point, as C writes them.
    match datatype {
        DataType::Uint8 => of!(u8, u8::cmp, u8::to_string),
        DataType::Uint16 => of!(u16, u16::cmp, u16::to_string),
        DataType::Uint32 => of!(u32, u32::cmp, u32::to_string),
        DataType::Uint64 => of!(u64, u64::cmp, u64::to_string),
        DataType::Int8 => of!(i8, i8::cmp, i8::to_string),
        DataType::Int16 => of!(i16, i16::cmp, i16::to_string),
        DataType::Int32 => of!(i32, i32::cmp, i32::to_string),
        DataType::Int64 => of!(i64, i64::cmp, i64::to_string),
        DataType::Fp32 => of!(f32, f32::total_cmp, six_digits),
        DataType::Fp64 => of!(f64, f64::total_cmp, six_digits),
        DataType::Bool | DataType::Fp16 | DataType::Bf16 | DataType::Bytes => check_type("", datatype),
    }
}

fn six_digits(value: &impl Display) -> String {
    format!("{value:.6}")
}

fn write_highest<T>(
    out: &mut Vec<u8>,
    values: &[T],
    wanted: usize,
    labels: &[String],
    order: impl Fn(&T, &T) -> Ordering,
    text: impl Fn(&T) -> String,
) -> Result<(), Fault> {
    let mut positions: Vec<usize> = (0..values.len()).collect();
    let descending = |&a: &usize, &b: &usize| order(&values[b], &values[a]).then(a.cmp(&b));
    if wanted < positions.len() {
        positions.select_nth_unstable_by(wanted, descending);
        positions.truncate(wanted);
    }
    positions.sort_unstable_by(descending);
    for position in positions {
        let mut element = format!("{}:{position}", text(&values[position]));
        if let Some(label) = labels.get(position) {
            element.push(':');
            element.push_str(label);
        }
        push_string(out, element.as_bytes())
            .map_err(|_| Fault::new(Reason::ExecutionFailed, "a label has more than 4 GiB"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(tensor: &Tensor) -> Vec<String> {
        let (mut data, mut texts) = (&tensor.data[..], Vec::new());
        while let Some((length, rest)) = data.split_first_chunk::<4>() {
            let (text, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
            texts.push(String::from_utf8(text.into()).unwrap());
            data = rest;
        }
        texts
    }

    fn floats(values: &[f32], shape: &[i64]) -> Tensor {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor { datatype: DataType::Fp32, shape: shape.into(), data }
    }

    #[test]
    fn the_highest_of_each_row() {
        let tensor = floats(&[0.5, 2.0, 2.0, -1.0, 0.25, 9.0], &[2, 3]);
        let two = classify(&tensor, 2, true, &[]).unwrap();
        assert_eq!((two.datatype, &two.shape[..]), (DataType::Bytes, &[2, 2][..]));
        assert_eq!(texts(&two), ["2.000000:1", "2.000000:2", "9.000000:2", "0.250000:1"]);
        let all = classify(&tensor, 100, false, &["a".into(), "b".into()]).unwrap();
        assert_eq!(all.shape, [6]);
        assert_eq!(texts(&all)[..3], ["9.000000:5", "2.000000:1:b", "2.000000:2"], "labels end before the values do");
    }

    #[test]
    fn whole_numbers_and_nothing_at_all() {
        let data = [3i64, -7, 5].iter().flat_map(|value| value.to_le_bytes()).collect();
        let tensor = Tensor { datatype: DataType::Int64, shape: vec![1, 3], data };
        assert_eq!(texts(&classify(&tensor, 1, true, &[]).unwrap()), ["5:2"]);
        let empty = classify(&floats(&[], &[1, 0]), 3, true, &[]).unwrap();
        assert_eq!((&empty.shape[..], empty.data.len()), (&[1, 0][..], 0));
        let odd = classify(&floats(&[f32::NAN, f32::NEG_INFINITY, 0.0], &[3]), 3, false, &[]).unwrap();
        assert_eq!(texts(&odd).len(), 3);
    }
}
