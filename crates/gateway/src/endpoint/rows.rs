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
