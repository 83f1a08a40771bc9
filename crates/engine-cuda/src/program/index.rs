//! How generated kernels count: from the number of a thread to the places of its elements, with every size known when
//! the kernel is compiled.

use crate::source::Defines;
use graph::plan::{DataType, Tensor};
use std::fmt::Write;

/// Dimensions that several tensors have in common, each with its own strides.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Space {
    pub(crate) dims: Vec<usize>,
    /// For each tensor, for each dimension.
    pub(crate) strides: Vec<Vec<isize>>,
}

impl Space {
    /// The dimensions in the order in which the tensor `lead` lies, so that neighbouring threads touch neighbouring
    /// elements of it; those that lie behind one another in all tensors become one.
    pub(crate) fn new(dims: &[usize], strides: &[&[isize]], lead: usize) -> Self {
        let mut axes: Vec<usize> = (0..dims.len()).filter(|&axis| dims[axis] != 1).collect();
        axes.sort_by_key(|&axis| std::cmp::Reverse(strides[lead][axis].unsigned_abs()));
        let mut space = Self { dims: Vec::new(), strides: vec![Vec::new(); strides.len()] };
        for axis in axes {
            let merges = !space.dims.is_empty()
                && strides
                    .iter()
                    .zip(&space.strides)
                    .all(|(new, old)| *old.last().expect("has one") == new[axis] * dims[axis] as isize);
            if merges {
                *space.dims.last_mut().expect("has one") *= dims[axis];
                for (old, new) in space.strides.iter_mut().zip(strides) {
                    *old.last_mut().expect("has one") = new[axis];
                }
            } else {
                space.dims.push(dims[axis]);
                for (old, new) in space.strides.iter_mut().zip(strides) {
                    old.push(new[axis]);
                }
            }
        }
        if space.dims.is_empty() {
            space.dims.push(1);
            space.strides.iter_mut().for_each(|strides| strides.push(0));
        }
        space
    }

    /// Of whole tensors.
    pub(crate) fn of(tensors: &[&Tensor], lead: usize) -> Self {
        let strides: Vec<_> = tensors.iter().map(|tensor| tensor.strides.as_slice()).collect();
        Self::new(&tensors[lead].dims, &strides, lead)
    }

    pub(crate) fn count(&self) -> usize {
        self.dims.iter().product()
    }

    /// How many elements a thread can take at once: they must be neighbours (or the same one) in every tensor, and lie
    /// where a wide access may begin.
    pub(crate) fn pack(&self, tensors: &[&Tensor]) -> usize {
        let last = self.dims.len() - 1;
        let fits = |pack: usize| {
            self.dims[last].is_multiple_of(pack)
                && tensors.iter().zip(&self.strides).all(|(tensor, strides)| {
                    let size = tensor.element_bytes();
                    let wide = strides[last] == 1
                        && pack * size <= 16
                        && tensor.offset.is_multiple_of(pack * size)
                        && strides[..last].iter().all(|stride| stride.unsigned_abs().is_multiple_of(pack));
                    strides[last] == 0 || wide
                })
        };
        [8, 4, 2].into_iter().find(|&pack| fits(pack)).unwrap_or(1)
    }

    /// C that splits the number in `from` into coordinates `{name}0`, `{name}1`, ...
    pub(crate) fn coordinates(&self, name: &str, from: &str) -> String {
        let mut code = String::new();
        let mut below = 1;
        for (axis, &dim) in self.dims.iter().enumerate().rev() {
            let divided = if below == 1 { from.to_owned() } else { format!("{from} / {below}u") };
            let coordinate = if axis == 0 { divided } else { format!("({divided}) % {dim}u") };
            let _ = writeln!(code, "const u32 {name}{axis} = {coordinate};");
            below *= dim;
        }
        code
    }

    /// C for the place of the element at those coordinates in one of the tensors.
    pub(crate) fn offset(&self, tensor: usize, name: &str) -> String {
        let terms: Vec<_> = (self.strides[tensor].iter().enumerate())
            .filter(|&(_, &stride)| stride != 0)
            .map(|(axis, stride)| format!("(i64){name}{axis} * {stride}"))
            .collect();
        if terms.is_empty() { "0".to_owned() } else { terms.join(" + ") }
    }
}

/// What a value is while it is computed with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ValueClass {
    Float,
    Int,
    Bool,
}

impl ValueClass {
    pub(crate) fn of(dtype: DataType) -> Self {
        match dtype {
            DataType::Fp16 | DataType::Fp32 | DataType::Fp64 | DataType::Bf16 => Self::Float,
            DataType::Bool => Self::Bool,
            _ => Self::Int,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Int => "i64",
            Self::Bool => "bool",
        }
    }
}

/// C's name of an element in memory.
pub(crate) fn element(dtype: DataType) -> &'static str {
    match dtype {
        DataType::Bool | DataType::Uint8 | DataType::Bytes => "u8",
        DataType::Int8 => "signed char",
        DataType::Uint16 | DataType::Bf16 => "unsigned short",
        DataType::Int16 => "short",
        DataType::Uint32 => "u32",
        DataType::Int32 => "int",
        DataType::Uint64 => "u64",
        DataType::Int64 => "i64",
        DataType::Fp16 => "half_bits",
        DataType::Fp32 => "float",
        DataType::Fp64 => "double",
    }
}

/// C that makes a value of an element.
pub(crate) fn load(dtype: DataType, code: &str) -> String {
    match dtype {
        DataType::Fp16 => format!("from_half({code})"),
        DataType::Bf16 => format!("__uint_as_float((u32)({code}) << 16)"),
        DataType::Fp32 => code.to_owned(),
        DataType::Fp64 => format!("(float)({code})"),
        DataType::Bool => format!("({code} != 0)"),
        _ => format!("(i64)({code})"),
    }
}

/// C that makes an element of a value.
pub(crate) fn store(dtype: DataType, code: &str) -> String {
    match dtype {
        DataType::Fp16 => format!("to_half((float)({code}))"),
        DataType::Bf16 => format!("bf16_bits((float)({code}))"),
        DataType::Bool => format!("(({code}) != 0 ? 1 : 0)"),
        _ => format!("({})({code})", element(dtype)),
    }
}

/// Defines the type of elements that are read, and the macro that makes a value of one.
pub(crate) fn read_as(defines: &mut Defines, name: &str, load_name: &str, dtype: DataType) {
    defines.add(name, element(dtype)).add(&format!("{load_name}(x)"), load(dtype, "x"));
}

/// Defines the type of elements that are written, and the macro that makes one of a value.
pub(crate) fn written_as(defines: &mut Defines, name: &str, store_name: &str, dtype: DataType) {
    defines.add(name, element(dtype)).add(&format!("{store_name}(x)"), store(dtype, "x"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::plan::{TensorPlace, channels_last, row_major};

    fn tensor(dims: &[usize], strides: Vec<isize>) -> Tensor {
        Tensor { dtype: DataType::Fp16, dims: dims.to_vec(), strides, place: TensorPlace::Workspace, offset: 0 }
    }

    #[test]
    fn dimensions_that_lie_behind_one_another_become_one() {
        let dims = [2, 8, 3, 5];
        let image = tensor(&dims, channels_last(&dims));
        assert_eq!(Space::of(&[&image, &image], 0).dims, [240]);
        let bias = tensor(&dims, vec![0, 1, 0, 0]);
        let space = Space::of(&[&image, &bias], 0);
        assert_eq!((space.dims.clone(), space.strides.clone()), (vec![30, 8], vec![vec![8, 1], vec![0, 1]]));
        assert_eq!(space.pack(&[&image, &bias]), 8);
        let rows = tensor(&dims, row_major(&dims));
        let space = Space::of(&[&image, &rows], 0);
        assert_eq!((space.dims.clone(), space.pack(&[&image, &rows])), (vec![2, 15, 8], 1));
    }

    #[test]
    fn scalars_have_one_element() {
        let scalar = tensor(&[], vec![]);
        let space = Space::of(&[&scalar], 0);
        assert_eq!((space.count(), space.offset(0, "x")), (1, "0".to_owned()));
    }
}
