//! Values of constants and of the reference executor: row-major, floats in 32 bits, integers and bools in 64.

use base::DataType;
use half::{bf16, f16};

/// Elements behind one another, in the order of the dimensions.
#[derive(Clone, PartialEq, Debug)]
pub struct Array {
    /// The type that the model gives it.
    pub dtype: DataType,
    /// Its dimensions.
    pub dims: Vec<usize>,
    /// The elements.
    pub data: Data,
}

/// The elements of an array.
#[derive(Clone, PartialEq, Debug)]
pub enum Data {
    /// Of all types of floats. What a double has more than a single is lost.
    Float(Vec<f32>),
    /// Of all types of integers, and bools as 0 and 1.
    Int(Vec<i64>),
}

/// Whether elements of that type are floats.
pub fn is_float(dtype: DataType) -> bool {
    matches!(dtype, DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64)
}

impl Array {
    /// Of 32-bit floats.
    pub fn floats(dims: &[usize], data: Vec<f32>) -> Self {
        Self::new(DataType::Fp32, dims, Data::Float(data))
    }

    /// Of 64-bit integers.
    pub fn ints(dims: &[usize], data: Vec<i64>) -> Self {
        Self::new(DataType::Int64, dims, Data::Int(data))
    }

    /// Of what there is.
    pub fn new(dtype: DataType, dims: &[usize], data: Data) -> Self {
        let array = Self { dtype, dims: dims.to_vec(), data };
        assert_eq!(array.len(), array.elements(), "as many elements as the dimensions {dims:?} say");
        assert_eq!(matches!(array.data, Data::Float(_)), is_float(dtype), "elements of their type");
        array
    }

    /// All the same.
    pub fn filled(dtype: DataType, dims: &[usize], value: f64) -> Self {
        let count = dims.iter().product();
        let data =
            if is_float(dtype) { Data::Float(vec![value as f32; count]) } else { Data::Int(vec![value as i64; count]) };
        Self::new(dtype, dims, data)
    }

    /// How many elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    fn len(&self) -> usize {
        match &self.data {
            Data::Float(data) => data.len(),
            Data::Int(data) => data.len(),
        }
    }

    /// Its elements as floats.
    pub fn to_floats(&self) -> std::borrow::Cow<'_, [f32]> {
        match &self.data {
            Data::Float(data) => data.into(),
            Data::Int(data) => data.iter().map(|&value| value as f32).collect::<Vec<_>>().into(),
        }
    }

    /// Its elements as integers.
    pub fn to_ints(&self) -> std::borrow::Cow<'_, [i64]> {
        match &self.data {
            Data::Float(data) => data.iter().map(|&value| value as i64).collect::<Vec<_>>().into(),
            Data::Int(data) => data.into(),
        }
    }

    /// The one element, if it has one.
    pub fn scalar(&self) -> Option<f64> {
        match &self.data {
            Data::Float(data) if data.len() == 1 => Some(f64::from(data[0])),
            Data::Int(data) if data.len() == 1 => Some(data[0] as f64),
            _ => None,
        }
    }

    /// The same elements with other dimensions.
    pub fn reshaped(&self, dims: &[usize]) -> Self {
        Self::new(self.dtype, dims, self.data.clone())
    }

    /// The elements at the positions that a strided walk visits: one pass for transposes, slices and expansion.
    pub fn view(&self, dims: &[usize], strides: &[isize], offset: usize) -> Self {
        let positions = Positions::new(dims, strides, offset);
        let data = match &self.data {
            Data::Float(data) => Data::Float(positions.map(|at| data[at]).collect()),
            Data::Int(data) => Data::Int(positions.map(|at| data[at]).collect()),
        };
        Self::new(self.dtype, dims, data)
    }

    /// Reads elements out of memory.
    pub fn load(dtype: DataType, dims: &[usize], strides: &[isize], offset: usize, memory: &[u8]) -> Self {
        let size = crate::weights::element_bytes(dtype);
        let count: usize = dims.iter().product();
        if dtype == DataType::Fp32 && lies_in_order(dims, strides) && count > 0 {
            let numbers = memory[offset..offset + count * size].chunks_exact(size);
            return Self::new(dtype, dims, Data::Float(numbers.map(|bytes| load_float(dtype, bytes)).collect()));
        }
        let positions = Positions::new(dims, strides, 0);
        let at = |position: usize| {
            // A backward stride wraps around and comes back when the offset is added.
            let start = offset.wrapping_add(position.wrapping_mul(size));
            &memory[start..start + size]
        };
        let data = if is_float(dtype) {
            Data::Float(positions.map(|position| load_float(dtype, at(position))).collect())
        } else {
            Data::Int(positions.map(|position| load_int(dtype, at(position))).collect())
        };
        Self::new(dtype, dims, data)
    }

    /// Writes all elements of a constant with their dimensions in that order, behind one another, as that type. Numbers
    /// that a half can't hold become the largest that it can: `-3.4e38` in a mask is meant to be finite.
    pub fn store(&self, dtype: DataType, order: &[usize], memory: &mut [u8]) {
        let strides = crate::plan::strides_in_order(&self.dims, order);
        match &self.data {
            Data::Float(data) if dtype == DataType::Fp16 => {
                let data = data.iter().map(|&value| within_half(value)).collect();
                Self::new(self.dtype, &self.dims, Data::Float(data)).store_strided(dtype, &strides, 0, memory);
            }
            _ => self.store_strided(dtype, &strides, 0, memory),
        }
    }

    /// Writes all elements with those strides, as that type.
    pub fn store_strided(&self, dtype: DataType, strides: &[isize], offset: usize, memory: &mut [u8]) {
        let size = crate::weights::element_bytes(dtype);
        if let Data::Float(data) = &self.data
            && is_float(dtype)
        {
            return store_floats(dtype, data, (&self.dims, strides), offset, memory);
        }
        let positions = Positions::new(&self.dims, strides, 0);
        for (index, position) in positions.enumerate() {
            let start = offset.wrapping_add(position.wrapping_mul(size));
            let to = &mut memory[start..start + size];
            match &self.data {
                Data::Float(data) => store_int(
                    dtype,
                    if dtype == DataType::Bool { i64::from(data[index] != 0.0) } else { data[index] as i64 },
                    to,
                ),
                Data::Int(data) if is_float(dtype) => store_float(dtype, data[index] as f32, to),
                Data::Int(data) => store_int(dtype, data[index], to),
            }
        }
    }
}

/// A finite number as one that a half can hold.
pub(crate) fn within_half(value: f32) -> f32 {
    let most = f16::MAX.to_f32();
    if value.is_finite() { value.clamp(-most, most) } else { value }
}

/// A float of any type.
pub(crate) fn load_float(dtype: DataType, bytes: &[u8]) -> f32 {
    match dtype {
        DataType::Fp16 => f16::from_le_bytes(bytes.try_into().expect("two bytes")).to_f32(),
        DataType::Bf16 => bf16::from_le_bytes(bytes.try_into().expect("two bytes")).to_f32(),
        DataType::Fp32 => f32::from_le_bytes(bytes.try_into().expect("four bytes")),
        DataType::Fp64 => f64::from_le_bytes(bytes.try_into().expect("eight bytes")) as f32,
        _ => unreachable!("floats only"),
    }
}

/// An integer of any type, or a bool.
pub(crate) fn load_int(dtype: DataType, bytes: &[u8]) -> i64 {
    match dtype {
        DataType::Bool => i64::from(bytes[0] != 0),
        DataType::Uint8 => i64::from(bytes[0]),
        DataType::Int8 => i64::from(bytes[0] as i8),
        DataType::Uint16 => i64::from(u16::from_le_bytes(bytes.try_into().expect("two bytes"))),
        DataType::Int16 => i64::from(i16::from_le_bytes(bytes.try_into().expect("two bytes"))),
        DataType::Uint32 => i64::from(u32::from_le_bytes(bytes.try_into().expect("four bytes"))),
        DataType::Int32 => i64::from(i32::from_le_bytes(bytes.try_into().expect("four bytes"))),
        DataType::Uint64 | DataType::Int64 => i64::from_le_bytes(bytes.try_into().expect("eight bytes")),
        _ => unreachable!("integers only"),
    }
}

/// Whether elements lie behind one another in the order of the dimensions.
fn lies_in_order(dims: &[usize], strides: &[isize]) -> bool {
    let mut expected = 1;
    dims.iter().zip(strides).rev().all(|(&dim, &stride)| {
        let fits = dim == 1 || stride == expected;
        expected *= dim as isize;
        fits
    })
}

/// Writes floats, a row of the last dimension at a time: weights are most of what a model is.
fn store_floats(
    dtype: DataType,
    data: &[f32],
    (dims, strides): (&[usize], &[isize]),
    offset: usize,
    memory: &mut [u8],
) {
    let size = crate::weights::element_bytes(dtype);
    let axes: Vec<usize> = (0..dims.len()).filter(|&axis| dims[axis] != 1).collect();
    let (dims, strides): (Vec<usize>, Vec<isize>) = axes.iter().map(|&axis| (dims[axis], strides[axis])).unzip();
    let (&length, outer) = dims.split_last().unwrap_or((&1, &[]));
    let (&step, outer_strides) = strides.split_last().unwrap_or((&1, &[]));
    if length == 0 {
        return;
    }
    for (row, begin) in data.chunks(length).zip(Positions::new(outer, outer_strides, 0)) {
        let mut at = begin;
        for &value in row {
            let start = offset.wrapping_add(at.wrapping_mul(size));
            store_float(dtype, value, &mut memory[start..start + size]);
            at = at.wrapping_add_signed(step);
        }
    }
}

fn store_float(dtype: DataType, value: f32, to: &mut [u8]) {
    match dtype {
        DataType::Fp16 => to.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        DataType::Bf16 => to.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        DataType::Fp32 => to.copy_from_slice(&value.to_le_bytes()),
        DataType::Fp64 => to.copy_from_slice(&f64::from(value).to_le_bytes()),
        _ => unreachable!("floats only"),
    }
}

fn store_int(dtype: DataType, value: i64, to: &mut [u8]) {
    if dtype == DataType::Bool {
        to[0] = u8::from(value != 0);
    } else {
        let size = to.len();
        to.copy_from_slice(&value.to_le_bytes()[..size]);
    }
}

/// The positions of a strided walk, in the order of the dimensions. Arithmetic wraps, for strides below 0.
pub struct Positions {
    dims: Vec<usize>,
    strides: Vec<isize>,
    index: Vec<usize>,
    at: usize,
    left: usize,
}

impl Positions {
    /// Begins at `start`.
    pub fn new(dims: &[usize], strides: &[isize], start: usize) -> Self {
        let left = dims.iter().product();
        Self { dims: dims.to_vec(), strides: strides.to_vec(), index: vec![0; dims.len()], at: start, left }
    }
}

impl Iterator for Positions {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let here = self.at;
        for axis in (0..self.dims.len()).rev() {
            self.index[axis] += 1;
            self.at = self.at.wrapping_add_signed(self.strides[axis]);
            if self.index[axis] < self.dims[axis] {
                break;
            }
            self.at = self.at.wrapping_sub((self.dims[axis] as isize).wrapping_mul(self.strides[axis]) as usize);
            self.index[axis] = 0;
        }
        Some(here)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Positions {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::strides_in_order;

    #[test]
    fn floats_lie_where_a_walk_over_all_of_them_comes_to() {
        let shapes: [&[usize]; 6] = [&[], &[1], &[5], &[2, 3, 1, 4], &[3, 1, 2, 2], &[2, 0, 3]];
        for dims in shapes {
            let count: usize = dims.iter().product();
            let data: Vec<f32> = (0..count).map(|value| value as f32 - 2.5).collect();
            let array = Array::floats(dims, data.clone());
            let turned: Vec<usize> = (0..dims.len()).rev().collect();
            for order in [(0..dims.len()).collect(), turned] {
                let strides = strides_in_order(dims, &order);
                for dtype in [DataType::Fp32, DataType::Fp16, DataType::Fp64] {
                    let size = crate::weights::element_bytes(dtype);
                    let mut expected = vec![0; count * size];
                    for (value, at) in data.iter().zip(Positions::new(dims, &strides, 0)) {
                        store_float(dtype, *value, &mut expected[at * size..][..size]);
                    }
                    let mut memory = vec![0; count * size];
                    array.store(dtype, &order, &mut memory);
                    assert_eq!(memory, expected, "{dims:?} {order:?} {dtype}");
                    let read = Array::load(dtype, dims, &strides, 0, &memory);
                    assert_eq!(read.to_floats(), array.to_floats(), "{dims:?} {order:?} {dtype}");
                }
            }
        }
        // Backwards, behind other bytes.
        let (mut memory, backwards) = (vec![0; 12], Array::floats(&[2], vec![1.0, 2.0]));
        backwards.store_strided(DataType::Fp32, &[-1], 8, &mut memory);
        assert_eq!(memory, [0.0f32, 2.0, 1.0].map(f32::to_le_bytes).concat());
        assert_eq!(Array::load(DataType::Fp32, &[2], &[-1], 8, &memory).to_floats(), backwards.to_floats());
    }
}
