//! Tensors as rows: one for each call of a stage, and all of them behind one another again.

use base::{DataType, TensorSpec};
use bytes::{Bytes, BytesMut};
use controller::Tensor;
use wire::Fault;

/// How many rows a tensor has: its first dimension.
pub(super) fn rows_of(tensor: &Tensor) -> Result<usize, Fault> {
    let rows = tensor.shape.first().and_then(|&rows| usize::try_from(rows).ok());
    rows.ok_or_else(|| Fault::bad("a tensor without dimensions has no rows to call a stage for each of"))
}

/// The rows of a tensor, without a copy: as batches of one, or without the dimension that counts them.
pub(super) fn split(tensor: &Tensor, as_batches: bool) -> Result<Vec<Tensor>, Fault> {
    let count = rows_of(tensor)?;
    let mut shape: Vec<i64> = tensor.shape[1..].to_vec();
    if as_batches {
        shape.insert(0, 1);
    }
    let row = |data: Bytes| Tensor { datatype: tensor.datatype, shape: shape.clone(), data };
    if tensor.datatype != DataType::Bytes {
        let size = tensor.data.len().checked_div(count).unwrap_or(0);
        return Ok((0..count).map(|number| row(tensor.data.slice(number * size..(number + 1) * size))).collect());
    }
    let elements = base::element_count(&tensor.shape[1..]).unwrap_or(0);
    let mut rows = Vec::with_capacity(count);
    let mut at = 0;
    for _ in 0..count {
        let from = at;
        for _ in 0..elements {
            at = end_of_string(&tensor.data, at)?;
        }
        rows.push(row(tensor.data.slice(from..at)));
    }
    Ok(rows)
}

/// Where a string ends that begins there: its length in four bytes, and the bytes.
fn end_of_string(data: &[u8], at: usize) -> Result<usize, Fault> {
    let length = data.get(at..).and_then(|rest| rest.first_chunk::<4>());
    let end = length.and_then(|length| at.checked_add(4)?.checked_add(u32::from_le_bytes(*length) as usize));
    end.filter(|&end| end <= data.len()).ok_or_else(|| Fault::bad("a tensor of strings is cut off"))
}

/// Numbers, one for each row.
pub(super) fn lengths(tensor: &Tensor) -> impl Iterator<Item = i64> {
    tensor.data.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes))
}

/// Leaves so many of a tensor's last dimension.
pub(super) fn shorten(tensor: &mut Tensor, length: i64) -> Result<(), Fault> {
    let whole = tensor.shape.last().copied().unwrap_or(0);
    if length == whole {
        return Ok(());
    }
    let (Ok(kept), Ok(of), Some(size)) = (usize::try_from(length), usize::try_from(whole), tensor.datatype.size())
    else {
        return Err(no_such_length(length, whole));
    };
    // Of a tensor without elements a dimension may be as large as it likes.
    let (Some(kept), Some(line)) = (kept.checked_mul(size), of.checked_mul(size)) else {
        return Err(no_such_length(length, whole));
    };
    if kept > line {
        return Err(no_such_length(length, whole));
    }
    tensor.data = if tensor.data.len() == line {
        tensor.data.slice(..kept)
    } else {
        let mut data = BytesMut::with_capacity(tensor.data.len() / line * kept);
        tensor.data.chunks_exact(line).for_each(|line| data.extend_from_slice(&line[..kept]));
        data.freeze()
    };
    tensor.shape.last_mut().into_iter().for_each(|last| *last = length);
    Ok(())
}

fn no_such_length(length: i64, whole: i64) -> Fault {
    Fault::bad(format!("a row is to have the length {length}, and there are {whole}"))
}

/// What a row of outputs has that are made as large as the largest in each dimension, and the size of an element.
/// Nothing where they are alike, and where they can't be: strings, and tensors with different numbers of dimensions.
fn largest_row(outputs: &[&Tensor], stacks: bool) -> Option<(Vec<i64>, usize)> {
    let first = outputs.first()?;
    let (dims, size) = (first.shape.len(), first.datatype.size()?);
    let from = usize::from(!stacks).min(dims);
    if outputs.iter().any(|output| output.shape.len() != dims) {
        return None;
    }
    let most = |axis: usize| outputs.iter().map(|output| output.shape[axis]).max().unwrap_or(0);
    let row: Vec<i64> = (from..dims).map(most).collect();
    outputs.iter().any(|output| output.shape[from..] != row).then_some((row, size))
}

/// The bytes of outputs that are filled up; `None` for more than can be counted.
pub(super) fn filled_bytes(outputs: &[&Tensor], stacks: bool) -> Option<usize> {
    let Some((row, size)) = largest_row(outputs, stacks) else {
        return Some(outputs.iter().map(|output| output.data.len()).sum());
    };
    let rows: i64 = match stacks {
        true => i64::try_from(outputs.len()).ok()?,
        false => outputs.iter().try_fold(0_i64, |rows, output| rows.checked_add(*output.shape.first()?))?,
    };
    base::element_count(&std::iter::once(rows).chain(row).collect::<Vec<_>>())?.checked_mul(size)
}

/// Makes outputs of calls as large as the largest in each dimension, with zeros behind what they have. What can't be
/// filled up stays as it is. Whoever calls has looked at what they will take.
pub(super) fn fill_up(outputs: &mut [Tensor], stacks: bool) {
    let Some((row, size)) = largest_row(&outputs.iter().collect::<Vec<_>>(), stacks) else { return };
    for output in outputs {
        let kept = output.shape.len() - row.len();
        let shape: Vec<i64> = output.shape[..kept].iter().chain(&row).copied().collect();
        output.data = filled_up(output, &shape, size);
        output.shape = shape;
    }
}

/// What a tensor has when it is as large as that, one dimension after the other.
fn filled_up(tensor: &Tensor, shape: &[i64], size: usize) -> Bytes {
    let count = |dims: &[i64]| base::element_count(dims).unwrap_or(0);
    let mut data = tensor.data.clone();
    for axis in (0..shape.len()).rev().filter(|&axis| tensor.shape[axis] != shape[axis]) {
        let inner = size * count(&shape[axis + 1..]);
        let (from, to) = (inner * count(&tensor.shape[axis..=axis]), inner * count(&shape[axis..=axis]));
        let lines = count(&tensor.shape[..axis]);
        let mut wide = BytesMut::with_capacity(lines * to);
        for line in 0..lines {
            wide.extend_from_slice(data.get(line * from..(line + 1) * from).unwrap_or_default());
            wide.resize((line + 1) * to, 0);
        }
        data = wide.freeze();
    }
    data
}

/// Outputs of several calls, behind one another.
pub(super) struct Joined {
    stacks: bool,
    datatype: DataType,
    rows: i64,
    /// Of one row.
    shape: Option<Vec<i64>>,
    /// What an output without calls has.
    empty: Vec<i64>,
    data: JoinedData,
}

/// The first is taken as it is.
enum JoinedData {
    One(Bytes),
    Several(BytesMut),
}

impl Joined {
    /// Where outputs of that kind go; with `stacks` each is one row.
    pub(super) fn new(spec: &TensorSpec, stacks: bool) -> Self {
        let empty = spec.dims.iter().skip(usize::from(!stacks)).map(|&dim| dim.max(0)).collect();
        let data = JoinedData::One(Bytes::new());
        Self { stacks, datatype: spec.datatype, rows: 0, shape: None, empty, data }
    }

    /// Adds the output of the next call.
    pub(super) fn add(&mut self, output: Tensor) -> Result<(), Fault> {
        let (rows, shape) = if self.stacks {
            (1, output.shape)
        } else {
            let rows = output.shape.first().copied().unwrap_or(1);
            (rows, output.shape.get(1..).unwrap_or_default().to_vec())
        };
        match &self.shape {
            Some(known) if *known != shape => {
                return Err(Fault::bad(format!(
                    "its calls gave outputs of different shapes, {known:?} and {shape:?}, which can't be joined"
                )));
            }
            Some(_) => {
                if let JoinedData::One(first) = &self.data {
                    self.data = JoinedData::Several(BytesMut::from(first.as_ref()));
                }
                if let JoinedData::Several(data) = &mut self.data {
                    data.extend_from_slice(&output.data);
                }
            }
            None => {
                self.shape = Some(shape);
                self.data = JoinedData::One(output.data);
            }
        }
        self.rows += rows;
        Ok(())
    }

    pub(super) fn finish(self) -> Tensor {
        let row = self.shape.unwrap_or(self.empty);
        let shape = std::iter::once(self.rows).chain(row).collect();
        let data = match self.data {
            JoinedData::One(data) => data,
            JoinedData::Several(data) => data.freeze(),
        };
        Tensor { datatype: self.datatype, shape, data }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(datatype: DataType, shape: &[i64], data: &[u8]) -> Tensor {
        Tensor { datatype, shape: shape.to_vec(), data: Bytes::copy_from_slice(data) }
    }

    #[test]
    fn rows_lie_where_the_tensor_does() {
        let whole = tensor(DataType::Uint8, &[3, 2], b"aabbcc");
        let rows = split(&whole, true).unwrap();
        assert_eq!(rows.iter().map(|row| &row.data[..]).collect::<Vec<_>>(), [b"aa", b"bb", b"cc"]);
        assert_eq!(rows[1].shape, [1, 2]);
        assert_eq!(rows[2].data.as_ptr(), whole.data[4..].as_ptr(), "nothing is copied");
        assert_eq!(split(&whole, false).unwrap()[0].shape, [2]);
        assert!(split(&tensor(DataType::Uint8, &[0, 2], b""), true).unwrap().is_empty());
        assert!(split(&tensor(DataType::Uint8, &[], b"a"), true).is_err());
    }

    #[test]
    fn strings_have_lengths_of_their_own() {
        let data = b"\x01\0\0\0a\x02\0\0\0bb\0\0\0\0";
        let rows = split(&tensor(DataType::Bytes, &[3, 1], data), false).unwrap();
        assert_eq!(rows.iter().map(|row| row.data.len()).collect::<Vec<_>>(), [5, 6, 4]);
        assert!(split(&tensor(DataType::Bytes, &[4, 1], data), false).is_err(), "one more than there is");
        assert!(split(&tensor(DataType::Bytes, &[1, 1], b"\xff\xff\xff\xffa"), false).is_err());
    }

    #[test]
    fn rows_are_shortened_along_their_last_dimension() {
        let shortened = |shape: &[i64], data: &[u8], length| {
            let mut tensor = tensor(DataType::Uint16, shape, data);
            shorten(&mut tensor, length).map(|()| (tensor.shape, tensor.data.to_vec()))
        };
        let pixels = b"aabbccddeeff";
        assert_eq!(shortened(&[1, 2, 3], pixels, 2).unwrap(), (vec![1, 2, 2], b"aabbddee".to_vec()));
        assert_eq!(shortened(&[1, 2, 3], pixels, 0).unwrap(), (vec![1, 2, 0], Vec::new()));
        assert_eq!(shortened(&[1, 2, 3], pixels, 3).unwrap().0, [1, 2, 3]);
        assert_eq!(shortened(&[1, 6], pixels, 1).unwrap(), (vec![1, 1], b"aa".to_vec()));
        for wrong in [4, -1, i64::MAX, i64::MIN] {
            let said = shortened(&[1, 2, 3], pixels, wrong).unwrap_err().message;
            assert_eq!(said, format!("a row is to have the length {wrong}, and there are 3"));
        }
        assert_eq!(shortened(&[1, 0, 1 << 60], b"", 5).unwrap(), (vec![1, 0, 5], Vec::new()));
        let mut empty = tensor(DataType::Fp64, &[1, 0, i64::MAX], b"");
        assert!(shorten(&mut empty, 5).is_err(), "its lines are longer than can be counted");
        let mut one = tensor(DataType::Uint16, &[1, 6], pixels);
        let before = one.data.as_ptr();
        shorten(&mut one, 2).unwrap();
        assert_eq!(one.data.as_ptr(), before, "one line isn't copied");
        assert_eq!(
            lengths(&tensor(DataType::Int64, &[2], &[7, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]))
                .collect::<Vec<_>>(),
            [7, -1]
        );
    }

    #[test]
    fn outputs_are_filled_up_to_the_largest_in_each_dimension() {
        type Given<'a> = (&'a [i64], &'a [u8]);
        let tensors = |given: &[Given<'_>]| -> Vec<Tensor> {
            given.iter().map(|(shape, data)| tensor(DataType::Uint8, shape, data)).collect()
        };
        let bytes = |given: &[Given<'_>], stacks| filled_bytes(&tensors(given).iter().collect::<Vec<_>>(), stacks);
        let filled = |given: &[Given<'_>], stacks| {
            let mut outputs = tensors(given);
            fill_up(&mut outputs, stacks);
            let made: usize = outputs.iter().map(|output| output.data.len()).sum();
            assert_eq!(bytes(given, stacks), Some(made), "what they take is known before they are made");
            outputs
        };
        let given: [Given<'_>; 2] = [(&[1, 2, 1], b"ab"), (&[2, 1, 3], b"cdefgh")];
        let outputs = filled(&given, false);
        assert_eq!((&outputs[0].shape[..], &outputs[0].data[..]), (&[1, 2, 3][..], &b"a\0\0b\0\0"[..]));
        assert_eq!((&outputs[1].shape[..], &outputs[1].data[..]), (&[2, 2, 3][..], &b"cde\0\0\0fgh\0\0\0"[..]));
        let stacked = filled(&[(&[1], b"a"), (&[0], b"")], true);
        assert_eq!((&stacked[1].shape[..], &stacked[1].data[..]), (&[1][..], &b"\0"[..]));
        let narrow_and_wide: [Given<'_>; 2] = [(&[1, 1, 4], b"abcd"), (&[1, 4, 1], b"efgh")];
        assert_eq!(bytes(&narrow_and_wide, false), Some(32), "far more than came");
        let huge = bytes(&[(&[1, i64::MAX, 0], b""), (&[1, 1, 2], b"ab")], false);
        assert_eq!(huge, None, "more than can be counted");
        // What can't be is left to those that join.
        assert_eq!(filled(&[(&[1], b"a"), (&[1, 1], b"b")], true)[0].shape, [1]);
        assert!(filled(&[], false).is_empty());
    }

    #[test]
    fn outputs_are_joined_in_the_order_of_the_calls() {
        let spec = TensorSpec { name: "o".into(), datatype: DataType::Uint8, dims: vec![-1, 2] };
        let joined = |stacks, outputs: &[Tensor]| {
            let mut joined = Joined::new(&spec, stacks);
            outputs.iter().try_for_each(|output| joined.add(output.clone())).map(|()| joined.finish())
        };
        let (a, b) = (tensor(DataType::Uint8, &[1, 2], b"aa"), tensor(DataType::Uint8, &[2, 2], b"bbcc"));
        let both = joined(false, &[a.clone(), b.clone()]).unwrap();
        assert_eq!((&both.shape[..], &both.data[..]), (&[3, 2][..], &b"aabbcc"[..]));
        let stacked = joined(true, &[a.clone(), a.clone()]).unwrap();
        assert_eq!((&stacked.shape[..], &stacked.data[..]), (&[2, 1, 2][..], &b"aaaa"[..]));
        let one = joined(false, std::slice::from_ref(&b)).unwrap();
        assert_eq!(one.data.as_ptr(), b.data.as_ptr(), "one is taken as it is");
        assert_eq!(joined(false, &[]).unwrap().shape, [0, 2]);
        assert!(joined(true, &[a, b]).is_err(), "of different shapes");
    }
}
