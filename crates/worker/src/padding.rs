//! Requests of different lengths in one batch: inputs are filled up to the longest, outputs cut back.
//!
//! Only right for models that mask what they are told to ignore, so only done where the configuration asks for it.
//!
//! ```text
//!  request a   1 2 3          1 2 3 0 0          y y y . .     y y y
//!  request b   4 5 6 7 8  ──> 4 5 6 7 8 ──> f ──> y y y y y ──> y y y y y
//!              gather, fill           engine       split, cut
//! ```

use crate::Tensor;
use crate::batch::BatchItem;
use base::{DataType, ModelSignature, TensorSpec};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How a model's inputs are filled up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Padding {
    /// For each input.
    fills: Vec<Fill>,
    /// Lengths that batches are filled up to, ascending; a longer one stays as it is.
    buckets: Vec<i64>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Fill {
    /// The dimensions of any size, besides the batch.
    axes: Vec<usize>,
    /// What it is filled up with; `None` where all requests of a batch must have the same sizes.
    element: Option<Vec<u8>>,
}

impl Padding {
    /// From the value that each input is filled up with, by its name, and the lengths to fill up to. Says what is wrong
    /// with them for that model.
    pub fn new(signature: &ModelSignature, fills: &BTreeMap<String, f64>, buckets: &[u32]) -> Result<Self, String> {
        if signature.max_batch == 0 {
            return Err("padding needs a batch dimension, and the model has none: set max_batch_size".into());
        }
        if let Some(name) = fills.keys().find(|name| signature.inputs.iter().all(|spec| spec.name != **name)) {
            let known: Vec<&str> = signature.inputs.iter().map(|spec| spec.name.as_str()).collect();
            return Err(format!("padding names the input {name:?}, but the model's are {}", known.join(", ")));
        }
        let open = |spec: &TensorSpec| spec.dims.iter().skip(1).any(|&dim| dim < 0);
        if let Some(spec) = signature.outputs.iter().find(|spec| spec.datatype == DataType::Bytes && open(spec)) {
            return Err(format!(
                "output {:?} has strings in a dimension of any size, which padding can't cut back: leave padding out",
                spec.name
            ));
        }
        let fill = |spec: &TensorSpec| Fill::new(spec, fills.get(&spec.name).copied());
        let fills = signature.inputs.iter().map(fill).collect::<Result<_, _>>()?;
        let mut buckets: Vec<i64> = buckets.iter().map(|&length| i64::from(length)).collect();
        buckets.sort_unstable();
        Ok(Self { fills, buckets })
    }

    /// Whether two requests can be in one batch.
    pub(crate) fn joins(&self, a: &[Tensor], b: &[Tensor]) -> bool {
        a.len() == b.len()
            && a.iter().zip(b).zip(&self.fills).all(|((a, b), fill)| {
                let differs = |axis: &usize| fill.element.is_some() && fill.axes.contains(axis);
                let same = |axis: usize| a.shape[axis] == b.shape[axis] || differs(&axis);
                a.shape.len() == b.shape.len() && (1..a.shape.len()).all(same)
            })
    }

    /// What a dimension of an input is filled up to in a batch in which it is so long at most.
    pub(crate) fn filled_length(&self, index: usize, axis: usize, longest: i64) -> i64 {
        let fill = &self.fills[index];
        let fills = fill.element.is_some() && fill.axes.contains(&axis);
        let bucket = self.buckets.iter().copied().find(|&bucket| bucket >= longest);
        bucket.filter(|_| fills).unwrap_or(longest)
    }

    /// What these requests are filled up to, `None` if there is nothing to fill. Fails where it couldn't be told which
    /// part of an output is whose: two inputs of a request have other lengths, but the same once they are filled up.
    pub(crate) fn of<I: BatchItem>(self: &Arc<Self>, items: &[I]) -> Result<Option<Filled>, String> {
        let mut shapes = Vec::with_capacity(self.fills.len());
        let mut lengths: Vec<Vec<(i64, i64)>> = vec![Vec::new(); items.len()];
        let mut changes = false;
        for (index, fill) in self.fills.iter().enumerate() {
            let mut shape = items[0].inputs()[index].shape.clone();
            for &axis in &fill.axes {
                let length = |item: &I| item.inputs()[index].shape[axis];
                let filled = self.filled_length(index, axis, items.iter().map(length).max().unwrap_or(0));
                for (item, lengths) in items.iter().zip(&mut lengths) {
                    let own = length(item);
                    changes |= own != filled;
                    if lengths.iter().any(|&(other, its)| other == filled && its != own) {
                        return Err(format!("inputs of different lengths would all have the length {filled}"));
                    }
                    lengths.push((filled, own));
                }
                shape[axis] = filled;
            }
            shapes.push(shape);
        }
        Ok(changes.then(|| Filled { padding: Arc::clone(self), shapes, lengths }))
    }
}

impl Fill {
    fn new(spec: &TensorSpec, value: Option<f64>) -> Result<Self, String> {
        let TensorSpec { name, datatype, dims } = spec;
        let axes: Vec<usize> = (1..dims.len()).filter(|&axis| dims[axis] < 0).collect();
        let Some(value) = value else { return Ok(Self { axes, element: None }) };
        if axes.is_empty() {
            return Err(format!(
                "padding names the input {name:?}, whose shape {dims:?} leaves nothing open to fill up"
            ));
        }
        let element = datatype.element(value);
        let element = element.ok_or_else(|| {
            format!("padding fills input {name:?} with {value}, which is not a value of {datatype} that can be written")
        })?;
        Ok(Self { axes, element: Some(element) })
    }
}

/// Requests that are filled up to the same shapes.
pub(crate) struct Filled {
    padding: Arc<Padding>,
    /// Of each input. The first dimension is one request's.
    pub shapes: Vec<Vec<i64>>,
    /// Of each request: a length once it is filled up, and the request's own.
    lengths: Vec<Vec<(i64, i64)>>,
}

impl Filled {
    /// Puts one request's rows of an input into their place in the batch.
    pub fn place(&self, index: usize, tensor: &Tensor, place: &mut [u8]) {
        if let Some(element) = &self.padding.fills[index].element
            && tensor.data.len() < place.len()
        {
            match element[..] {
                [first, ref rest @ ..] if rest.iter().all(|&byte| byte == first) => place.fill(first),
                _ => place.chunks_exact_mut(element.len()).for_each(|chunk| chunk.copy_from_slice(element)),
            }
        }
        let (rows, wanted) = (tensor.shape[0] as usize, &self.shapes[index][1..]);
        if tensor.shape[1..] == *wanted {
            place.copy_from_slice(&tensor.data);
        } else if !tensor.data.is_empty() {
            let (step, larger_step) = (tensor.data.len() / rows, place.len() / rows);
            for (row, place) in tensor.data.chunks_exact(step).zip(place.chunks_exact_mut(larger_step)) {
                copy_into(row, &tensor.shape[1..], place, wanted);
            }
        }
    }

    /// The shape of a request's part of an output that has that shape for the whole batch.
    pub fn cut_shape(&self, item: usize, rows: u32, spec: &TensorSpec, shape: &[i64]) -> Result<Vec<i64>, String> {
        let cut = |(axis, &length): (usize, &i64)| match spec.dims.get(axis) {
            _ if axis == 0 => Ok(i64::from(rows)),
            Some(&dim) if dim < 0 => {
                let own = self.lengths[item].iter().find(|&&(filled, _)| filled == length);
                own.map(|&(_, own)| own).ok_or_else(|| {
                    format!(
                        "output {:?} has the shape {shape:?} for inputs that were filled up, and none of them has the length {length}: \
                         it can't be cut back; leave the parameter padding out",
                        spec.name
                    )
                })
            }
            _ => Ok(length),
        };
        shape.iter().enumerate().map(cut).collect()
    }
}

/// Copies a tensor into the corner of a larger one of as many dimensions, row-major.
fn copy_into(from: &[u8], shape: &[i64], into: &mut [u8], larger: &[i64]) {
    if from.is_empty() {
        return;
    }
    if shape.get(1..) == larger.get(1..) {
        return into[..from.len()].copy_from_slice(from);
    }
    let (step, larger_step) = (from.len() / shape[0] as usize, into.len() / larger[0] as usize);
    for (from, into) in from.chunks_exact(step).zip(into.chunks_exact_mut(larger_step)) {
        copy_into(from, &shape[1..], into, &larger[1..]);
    }
}

/// Appends the corner of a tensor that a smaller one of as many dimensions takes, row-major.
pub(crate) fn copy_out(from: &[u8], shape: &[i64], smaller: &[i64], into: &mut Vec<u8>) {
    let (Some(&length), Some(&wanted)) = (shape.first(), smaller.first()) else {
        return into.extend_from_slice(from);
    };
    if length == 0 || wanted == 0 {
        return;
    }
    let step = from.len() / length as usize;
    if shape[1..] == smaller[1..] {
        return into.extend_from_slice(&from[..step * wanted as usize]);
    }
    for from in from.chunks_exact(step).take(wanted as usize) {
        copy_out(from, &shape[1..], &smaller[1..], into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, datatype: DataType, dims: &[i64]) -> TensorSpec {
        TensorSpec { name: name.into(), datatype, dims: dims.into() }
    }

    fn said(max_batch: u32, output: TensorSpec, fills: &[(&str, f64)]) -> String {
        let inputs = vec![spec("ids", DataType::Uint8, &[-1, -1]), spec("fixed", DataType::Fp32, &[-1, 4])];
        let signature = ModelSignature { inputs, outputs: vec![output], max_batch };
        let fills = fills.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        Padding::new(&signature, &fills, &[]).unwrap_err()
    }

    #[test]
    fn what_a_model_can_not_be_filled_up_with_is_a_sentence() {
        let output = || spec("y", DataType::Fp32, &[-1, -1]);
        for (said, part) in [
            (said(0, output(), &[("ids", 0.0)]), "the model has none: set max_batch_size"),
            (said(4, output(), &[("idz", 0.0)]), "the input \"idz\", but the model's are ids, fixed"),
            (said(4, output(), &[("fixed", 0.0)]), "whose shape [-1, 4] leaves nothing open"),
            (said(4, output(), &[("ids", 256.0)]), "with 256, which is not a value of UINT8"),
            (said(4, output(), &[("ids", 0.5)]), "with 0.5, which is not a value of UINT8"),
            (said(4, spec("y", DataType::Bytes, &[-1, -1]), &[("ids", 0.0)]), "output \"y\" has strings"),
        ] {
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn corners_go_in_and_come_out_again_in_any_dimension() {
        for (shape, larger) in [
            (vec![2, 3], vec![2, 5]),
            (vec![1, 2, 3], vec![1, 4, 3]),
            (vec![2, 3, 2, 2], vec![2, 3, 4, 3]),
            (vec![3, 2], vec![3, 2]),
            (vec![2, 0, 3], vec![2, 2, 3]),
        ] {
            let count = |shape: &[i64]| shape.iter().product::<i64>() as usize;
            let data: Vec<u8> = (0..2 * count(&shape)).map(|at| at as u8 + 1).collect();
            let mut large = vec![0; 2 * count(&larger)];
            copy_into(&data, &shape, &mut large, &larger);
            assert_eq!(large.iter().filter(|&&byte| byte != 0).count(), data.len());
            let mut back = Vec::new();
            copy_out(&large, &larger, &shape, &mut back);
            assert_eq!(back, data, "{shape:?} in {larger:?}");
        }
    }
}
