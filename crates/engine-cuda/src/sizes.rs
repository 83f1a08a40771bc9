//! Which prepared size a batch runs in, and how its tensors are laid into that size and taken out again: pure code.
//!
//! A graph is for one batch and one length (of sequences, say). Fewer rows than the batch leave the rest of it as it
//! was: no row looks at another. Shorter sequences are filled up with zeros, which is right only where a mask says what
//! counts; a model without one runs in exactly the lengths that were prepared.

use base::{DataType, ModelSignature, TensorSpec};

/// Inputs and outputs begin at multiples of this, as weights do.
const ALIGNMENT: usize = 256;

/// One dimension of an input or output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// Always so many.
    Fixed(usize),
    /// The rows of the batch.
    Batch,
    /// What the model leaves open besides.
    Length,
}

/// An input or output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Side {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub datatype: DataType,
    /// Its dimensions.
    pub extents: Vec<Extent>,
}

/// What one graph is made for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size {
    /// What open dimensions besides the batch are; 0 where there are none.
    pub length: usize,
    /// Rows; 1 where there is no batch dimension.
    pub batch: usize,
}

impl Side {
    /// Its dimensions in that size.
    pub fn dims(&self, size: Size) -> Vec<usize> {
        let dim = |extent: &Extent| match *extent {
            Extent::Fixed(dim) => dim,
            Extent::Batch => size.batch,
            Extent::Length => size.length,
        };
        self.extents.iter().map(dim).collect()
    }

    /// Its bytes in that size.
    pub fn bytes(&self, size: Size) -> usize {
        self.dims(size).iter().product::<usize>() * self.element_bytes()
    }

    fn element_bytes(&self) -> usize {
        self.datatype.size().expect("strings are refused when a model is prepared")
    }

    /// What clients see.
    pub fn spec(&self) -> TensorSpec {
        let dim = |extent: &Extent| match *extent {
            Extent::Fixed(dim) => dim as i64,
            Extent::Batch | Extent::Length => -1,
        };
        TensorSpec { name: self.name.clone(), datatype: self.datatype, dims: self.extents.iter().map(dim).collect() }
    }

    /// The part of a size that so many rows fill, if rows come first.
    pub fn part(&self, size: Size, rows: usize) -> Size {
        let rows_come_first =
            matches!(self.extents.as_slice(), [Extent::Batch, rest @ ..] if !rest.contains(&Extent::Batch));
        Size { batch: if rows_come_first { rows } else { size.batch }, ..size }
    }

    /// Lays a tensor of one size into the memory of a larger one. Fewer rows are the first ones; a shorter length is
    /// filled up with zeros.
    pub fn lay_in(&self, from: &[u8], small: Size, into: &mut [u8], large: Size) {
        let large = self.part(large, small.batch);
        if small == large {
            into[..from.len()].copy_from_slice(from);
            return;
        }
        into[..self.bytes(large)].fill(0);
        let (small, large) = (self.dims(small), self.dims(large));
        runs(&small, &large, self.element_bytes(), |at, place, length| {
            into[place..place + length].copy_from_slice(&from[at..at + length]);
        });
    }

    /// Takes a tensor of one size out of the memory of a larger one: what is already there, or copied into `spare`.
    pub fn take_out<'a>(&self, from: &'a [u8], large: Size, small: Size, spare: &'a mut Vec<u8>) -> &'a [u8] {
        let bytes = self.bytes(small);
        let large = self.part(large, small.batch);
        if small == large {
            return &from[..bytes];
        }
        spare.resize(bytes, 0);
        let (small, large) = (self.dims(small), self.dims(large));
        runs(&small, &large, self.element_bytes(), |at, place, length| {
            spare[at..at + length].copy_from_slice(&from[place..place + length]);
        });
        spare
    }
}

/// Every stretch of a row-major tensor that lies as well in one that is larger in some dimensions: where it begins in
/// the small one, where in the large one, and its length, in bytes.
fn runs(small: &[usize], large: &[usize], element_bytes: usize, mut run: impl FnMut(usize, usize, usize)) {
    // From the last dimension that differs on, a stretch is whole.
    let split = small.iter().zip(large).rposition(|(small, large)| small != large).unwrap_or(0);
    let length = small[split..].iter().product::<usize>() * element_bytes;
    let count: usize = small[..split].iter().product();
    if length == 0 {
        return;
    }
    for index in 0..count {
        let (mut rest, mut place, mut stride) = (index, 0, large[split..].iter().product::<usize>());
        for axis in (0..split).rev() {
            place += rest % small[axis] * stride;
            rest /= small[axis];
            stride *= large[axis];
        }
        run(index * length, place * element_bytes, length);
    }
}

/// What the outputs' dimensions are, from what they are in each of some sizes. `dims` has, by size, those of each
/// output.
pub fn output_extents(sizes: &[Size], dims: &[Vec<Vec<usize>>], batched: bool) -> Result<Vec<Vec<Extent>>, String> {
    let extent = |output: usize, axis: usize| {
        let all = || sizes.iter().zip(dims).map(|(size, dims)| (*size, dims[output][axis]));
        let first = dims[0][output][axis];
        if batched && axis == 0 && all().all(|(size, dim)| dim == size.batch) {
            return Ok(Extent::Batch);
        }
        if all().all(|(_, dim)| dim == first) {
            return Ok(Extent::Fixed(first));
        }
        if all().all(|(size, dim)| dim == size.length) {
            return Ok(Extent::Length);
        }
        if all().all(|(size, dim)| dim == size.batch) {
            return Ok(Extent::Batch);
        }
        let seen: Vec<usize> = all().map(|(_, dim)| dim).collect();
        Err(format!(
            "dimension {axis} of output {output} is {seen:?} for the sizes {sizes:?}, which is neither the batch nor the length"
        ))
    };
    let of_output = |output: usize| (0..dims[0][output].len()).map(|axis| extent(output, axis)).collect();
    (0..dims[0].len()).map(of_output).collect()
}

/// Where inputs and outputs lie in one buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BufferLayout {
    /// Offsets of the inputs.
    pub inputs: Vec<usize>,
    /// Offsets of the outputs.
    pub outputs: Vec<usize>,
    /// The end of the last.
    pub bytes: usize,
}

/// The inputs and outputs of a model, and the sizes that it was prepared for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PreparedSizes {
    /// In the model's order.
    pub inputs: Vec<Side>,
    /// In the model's order.
    pub outputs: Vec<Side>,
    /// Ascending.
    pub prepared: Vec<Size>,
    /// Whether shorter lengths may be filled up.
    pub fills_up: bool,
    /// Whether the first dimension is a batch.
    pub batched: bool,
}

impl PreparedSizes {
    /// What clients see.
    pub fn signature(&self) -> ModelSignature {
        let largest = self.prepared.iter().map(|size| size.batch).max().unwrap_or(1);
        ModelSignature {
            inputs: self.inputs.iter().map(Side::spec).collect(),
            outputs: self.outputs.iter().map(Side::spec).collect(),
            max_batch: if self.batched { largest as u32 } else { 0 },
        }
    }

    /// Where everything lies in that size.
    pub fn layout(&self, size: Size) -> BufferLayout {
        let mut bytes = 0;
        let mut place = |side: &Side| {
            let offset = bytes;
            bytes = (offset + side.bytes(size)).next_multiple_of(ALIGNMENT);
            offset
        };
        let inputs = self.inputs.iter().map(&mut place).collect();
        let outputs = self.outputs.iter().map(&mut place).collect();
        BufferLayout { inputs, outputs, bytes }
    }

    /// The size of a batch by the shapes of its inputs.
    pub fn of(&self, shapes: &[&[i64]]) -> Result<Size, String> {
        if shapes.len() != self.inputs.len() {
            return Err(format!("{} inputs were given, the model has {}", shapes.len(), self.inputs.len()));
        }
        let (mut batch, mut length) = (None, None);
        for (side, shape) in self.inputs.iter().zip(shapes) {
            let wrong = || format!("input {} has the shape {shape:?}, expected {:?}", side.name, side.spec().dims);
            if shape.len() != side.extents.len() {
                return Err(wrong());
            }
            for (extent, &dim) in side.extents.iter().zip(*shape) {
                let dim = usize::try_from(dim).map_err(|_| wrong())?;
                let fits = match extent {
                    Extent::Fixed(fixed) => dim == *fixed,
                    Extent::Batch => *batch.get_or_insert(dim) == dim,
                    Extent::Length => *length.get_or_insert(dim) == dim,
                };
                if !fits {
                    return Err(wrong());
                }
            }
        }
        Ok(Size { length: length.unwrap_or(0), batch: batch.unwrap_or(1) })
    }

    /// The position of the prepared size in which a batch of that size runs.
    pub fn find(&self, size: Size) -> Result<usize, String> {
        let length_fits = |has: usize| if self.fills_up { has >= size.length } else { has == size.length };
        let fitting =
            self.prepared.iter().enumerate().filter(|(_, has)| has.batch >= size.batch && length_fits(has.length));
        let best = fitting.min_by_key(|(_, has)| **has).filter(|_| size.batch > 0);
        best.map(|(position, _)| position).ok_or_else(|| self.refusal(size))
    }

    fn refusal(&self, size: Size) -> String {
        let most = self.prepared.iter().map(|size| size.batch).max().unwrap_or(1);
        if !(1..=most).contains(&size.batch) {
            return format!("a batch of {} rows, expected 1 to {most}", size.batch);
        }
        let mut lengths: Vec<usize> = self.prepared.iter().map(|size| size.length).collect();
        lengths.dedup();
        let which = if self.fills_up { "at most one" } else { "exactly one" };
        format!(
            "a length of {} in the open dimensions, expected {which} of {lengths:?}: prepare others with the parameter sequence_lengths",
            size.length
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Extent::{Batch, Fixed, Length};

    fn side(extents: &[Extent]) -> Side {
        Side { name: "ids".into(), datatype: DataType::Uint8, extents: extents.to_vec() }
    }

    fn sizes(fills_up: bool) -> PreparedSizes {
        let prepared = [8, 16].iter().flat_map(|&length| [1, 4].map(|batch| Size { length, batch })).collect();
        let mask = Side { name: "attention_mask".into(), ..side(&[Batch, Length]) };
        PreparedSizes {
            inputs: vec![side(&[Batch, Length, Fixed(2)]), mask],
            outputs: vec![side(&[Batch])],
            prepared,
            fills_up,
            batched: true,
        }
    }

    #[test]
    fn a_batch_runs_in_the_next_size() {
        let find = |fills_up, batch, length| sizes(fills_up).find(Size { length, batch });
        assert_eq!(find(true, 1, 8), Ok(0));
        assert_eq!(find(true, 2, 8), Ok(1));
        assert_eq!(find(true, 1, 9), Ok(2));
        assert_eq!(find(false, 3, 16), Ok(3));
        assert_eq!(find(true, 5, 8), Err("a batch of 5 rows, expected 1 to 4".into()));
        assert!(find(false, 1, 9).unwrap_err().contains("expected exactly one of [8, 16]"));
        assert!(find(true, 1, 17).unwrap_err().contains("expected at most one of [8, 16]"));
    }

    #[test]
    fn shapes_must_agree() {
        let sizes = sizes(true);
        assert_eq!(sizes.of(&[&[3, 7, 2], &[3, 7]]), Ok(Size { length: 7, batch: 3 }));
        for wrong in [
            [&[3, 7, 2][..], &[3, 6]],
            [&[3, 7, 2], &[2, 7]],
            [&[3, 7, 3], &[3, 7]],
            [&[3, 7], &[3, 7]],
            [&[-1, 7, 2], &[3, 7]],
        ] {
            assert!(sizes.of(&wrong).is_err(), "{wrong:?}");
        }
        assert!(sizes.of(&[&[1, 8, 2]]).unwrap_err().contains("the model has 2"));
    }

    #[test]
    fn what_is_laid_in_comes_out_again() {
        for extents in [
            &[Batch, Length, Fixed(3)][..],
            &[Batch, Fixed(2), Length],
            &[Batch, Length, Length],
            &[Batch, Fixed(5)],
            &[Length, Batch],
        ] {
            let (side, small, large) = (side(extents), Size { batch: 2, length: 3 }, Size { batch: 2, length: 5 });
            let from: Vec<u8> = (1..=side.bytes(small) as u8).collect();
            let mut into = vec![99; side.bytes(large)];
            side.lay_in(&from, small, &mut into, large);
            assert_eq!(into.iter().filter(|&&byte| byte != 0).count(), from.len(), "the rest is zeros");
            assert_eq!(side.take_out(&into, large, small, &mut Vec::new()), from, "{extents:?}");
        }
    }

    #[test]
    fn outputs_are_understood_from_examples() {
        let sizes = [(1, 8), (4, 8), (4, 16)].map(|(batch, length)| Size { length, batch });
        let dims = |length: usize, batch: usize| vec![vec![batch, length, 768], vec![batch, 2], vec![length, batch]];
        let all: Vec<_> = sizes.iter().map(|size| dims(size.length, size.batch)).collect();
        let expected = [vec![Batch, Length, Fixed(768)], vec![Batch, Fixed(2)], vec![Length, Batch]];
        assert_eq!(output_extents(&sizes, &all, true).unwrap(), expected);
        // With one size only, the first dimension of a batched model is the batch.
        assert_eq!(output_extents(&sizes[..1], &[vec![vec![1, 10]]], true).unwrap(), [[Batch, Fixed(10)]]);
        let odd: Vec<_> = sizes.iter().map(|size| vec![vec![size.batch * size.length]]).collect();
        assert!(output_extents(&sizes, &odd, true).unwrap_err().contains("neither the batch nor the length"));
    }

    #[test]
    fn layouts_are_aligned_and_apart() {
        let layout = sizes(true).layout(Size { batch: 4, length: 16 });
        assert_eq!(layout, BufferLayout { inputs: vec![0, 256], outputs: vec![512], bytes: 768 });
    }

    #[test]
    fn rows_are_filled_up_one_by_one() {
        let mut into = [9; 8];
        side(&[Batch, Length]).lay_in(
            &[1, 2, 3, 4],
            Size { batch: 2, length: 2 },
            &mut into,
            Size { batch: 2, length: 3 },
        );
        assert_eq!(into, [1, 2, 0, 3, 4, 0, 9, 9]);
        // Fewer rows than the graph has: the first ones.
        side(&[Batch, Length]).lay_in(&[5, 6], Size { batch: 1, length: 2 }, &mut into, Size { batch: 4, length: 2 });
        assert_eq!(into[..3], [5, 6, 0]);
    }
}
