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
