//! Types and shapes with open dimensions: what steps need of them.

use base::{DataType, TensorSpec};

/// The position of an axis that may be counted from the end: -1 is the last.
pub(crate) fn axis(spec: &TensorSpec, axis: i64) -> Result<usize, String> {
    let rank = spec.dims.len() as i64;
    let position = if axis < 0 { axis + rank } else { axis };
    let name = &spec.name;
    usize::try_from(position).ok().filter(|_| position < rank).ok_or_else(|| {
        format!("{name} has {rank} dimensions, so that there is no axis {axis}: it is -{rank} to {}", rank - 1)
    })
}

/// That a tensor has elements that can be computed with.
pub(crate) fn numbers(spec: &TensorSpec) -> Result<(), String> {
    match spec.datatype {
        DataType::Bytes => Err(format!("{} is BYTES, and numbers are needed", spec.name)),
        _ => Ok(()),
    }
}

/// That a tensor is of one of those types.
pub(crate) fn types(spec: &TensorSpec, types: &[DataType]) -> Result<(), String> {
    let names = || types.iter().map(|datatype| datatype.name()).collect::<Vec<_>>().join(" or ");
    let TensorSpec { name, datatype, .. } = spec;
    types.contains(datatype).then_some(()).ok_or_else(|| format!("{name} is {datatype}, and {} is needed", names()))
}

/// A shape as (elements before an axis, elements of the axis, elements behind it); all known. In a tensor without
/// elements each of them may be any number.
pub(crate) fn around(shape: &[i64], axis: usize) -> (usize, usize, usize) {
    let product = |dims: &[i64]| dims.iter().fold(1usize, |product, &dim| product.saturating_mul(dim as usize));
    (product(&shape[..axis]), shape[axis] as usize, product(&shape[axis + 1..]))
}

/// A dimension of two tensors that must be the same: what is known of it.
pub(crate) fn same(one: i64, other: i64) -> Option<i64> {
    if one < 0 || one == other { Some(other) } else { (other < 0).then_some(one) }
}

/// The position of an axis that is there, and that may be counted from the end.
pub(crate) fn counted(shape: &[i64], axis: i64) -> usize {
    (if axis < 0 { axis + shape.len() as i64 } else { axis }) as usize
}

/// Where the lines along an axis start, for what [`around`] says of it, in a tensor of so many elements: none where
/// there are none, whatever the other dimensions are.
pub(crate) fn lines(elements: usize, outer: usize, length: usize, inner: usize) -> impl Iterator<Item = usize> {
    let blocks = if elements == 0 { 0 } else { outer };
    (0..blocks).flat_map(move |block| (0..inner).map(move |at| block * length * inner + at))
}
