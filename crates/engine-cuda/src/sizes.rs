//! Which prepared size a batch runs in, and how its tensors are laid into that size and taken out again: pure code.
//!
//! A graph is for one size: so many rows, and a value for each dimension that the model leaves open besides (the length
//! of sequences, the height of images). Fewer rows than the batch leave the rest of it as it was: no row looks at
//! another. Dimensions of which a mask says what counts may be shorter and are filled up with zeros; all others must be
//! exactly those of the graph.

use base::{DataType, ModelSignature, TensorSpec};
use engine::Input;
use std::sync::Arc;

/// So many dimensions with different names a model may leave open, besides the batch.
pub const MAX_OPEN: usize = 8;
/// Inputs and outputs begin at multiples of this, as weights do.
const ALIGNMENT: usize = 256;

/// One dimension of an input or output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// Always so many.
    Fixed(usize),
    /// The rows of the batch.
    Batch,
    /// What the model leaves open besides: the one of that number.
    Open(usize),
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
    /// What open dimensions besides the batch are, by their numbers; 0 for those that aren't there.
    pub open: [usize; MAX_OPEN],
    /// Rows; 1 where there is no batch dimension.
    pub batch: usize,
}

impl Size {
    /// So many rows, and so many open dimensions that are all alike.
    pub fn alike(batch: usize, count: usize, value: usize) -> Self {
        let mut open = [0; MAX_OPEN];
        open[..count].fill(value);
        Self { open, batch }
    }
}

impl Side {
    /// Its dimensions in that size.
    pub fn dims(&self, size: Size) -> Vec<usize> {
        let dim = |extent: &Extent| match *extent {
            Extent::Fixed(dim) => dim,
            Extent::Batch => size.batch,
            Extent::Open(which) => size.open[which],
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
            Extent::Batch | Extent::Open(_) => -1,
        };
        TensorSpec { name: self.name.clone(), datatype: self.datatype, dims: self.extents.iter().map(dim).collect() }
    }

    /// The part of a size that so many rows fill, if rows come first.
    pub fn part(&self, size: Size, rows: usize) -> Size {
        let rows_come_first =
            matches!(self.extents.as_slice(), [Extent::Batch, rest @ ..] if !rest.contains(&Extent::Batch));
        Size { batch: if rows_come_first { rows } else { size.batch }, ..size }
    }

    /// Lays a tensor of one size into the memory of a larger one. Fewer rows are the first ones; what is shorter is
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

/// What the outputs' dimensions are in any size, from what they are in each of some sizes with so many open
/// dimensions. `dims` has, by size, those of each output.
pub fn output_extents(
    sizes: &[Size],
    dims: &[Vec<Vec<usize>>],
    open: usize,
    batched: bool,
) -> Result<Vec<Vec<Extent>>, String> {
    let extent = |output: usize, axis: usize| {
        let all = || sizes.iter().zip(dims).map(|(size, dims)| (*size, dims[output][axis]));
        let first = dims[0][output][axis];
        if batched && axis == 0 && all().all(|(size, dim)| dim == size.batch) {
            return Ok(Extent::Batch);
        }
        if all().all(|(_, dim)| dim == first) {
            return Ok(Extent::Fixed(first));
        }
        if let Some(which) = (0..open).find(|&which| all().all(|(size, dim)| dim == size.open[which])) {
            return Ok(Extent::Open(which));
        }
        if all().all(|(size, dim)| dim == size.batch) {
            return Ok(Extent::Batch);
        }
        let seen: Vec<(Vec<usize>, usize, usize)> =
            all().map(|(size, dim)| (size.open[..open].to_vec(), size.batch, dim)).collect();
        Err(format!(
            "dimension {axis} of output {output} follows neither the batch nor an open dimension: by these and the batch it is {seen:?}"
        ))
    };
    let of_output = |output: usize| (0..dims[0][output].len()).map(|axis| extent(output, axis)).collect();
    (0..dims[0].len()).map(of_output).collect()
}

/// An output as clients see it, from what it is in each of some sizes: what differs is open.
pub fn output_spec(name: &str, datatype: DataType, dims: &[&[usize]], batched: bool) -> TensorSpec {
    let dim = |axis: usize| {
        let mut all = dims.iter().map(|dims| dims.get(axis));
        let first = all.next().flatten();
        match first {
            Some(first) if !(batched && axis == 0) && all.all(|dim| dim == Some(first)) => *first as i64,
            _ => -1,
        }
    };
    let rank = dims.first().map_or(0, |dims| dims.len());
    TensorSpec { name: name.to_owned(), datatype, dims: (0..rank).map(dim).collect() }
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

/// A model in one size: what a batch has to know of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Form {
    /// The size.
    pub size: Size,
    /// In the model's order.
    pub inputs: Arc<[Side]>,
    /// In the model's order.
    pub outputs: Arc<[Side]>,
    /// Where all of them lie.
    pub layout: BufferLayout,
}

impl Form {
    /// A model with these inputs and outputs in that size.
    pub fn new(size: Size, inputs: Arc<[Side]>, outputs: Arc<[Side]>) -> Self {
        let mut bytes = 0;
        let mut place = |side: &Side| {
            let offset = bytes;
            bytes = (offset + side.bytes(size)).next_multiple_of(ALIGNMENT);
            offset
        };
        let (of_inputs, of_outputs) =
            (inputs.iter().map(&mut place).collect(), outputs.iter().map(&mut place).collect());
        Self { size, inputs, outputs, layout: BufferLayout { inputs: of_inputs, outputs: of_outputs, bytes } }
    }
}

fn shapes(inputs: &[Side], size: Size) -> String {
    let all = inputs.iter().map(|side| format!("{} {:?}", side.name, side.dims(size)));
    all.collect::<Vec<_>>().join(", ")
}

/// The extents of an output that is exactly so in one size. The rows of a batch may be fewer.
pub fn exact_extents(dims: &[usize], size: Size, batched: bool) -> Vec<Extent> {
    let extent = |(axis, &dim): (usize, &usize)| match batched && axis == 0 && dim == size.batch {
        true => Extent::Batch,
        false => Extent::Fixed(dim),
    };
    dims.iter().enumerate().map(extent).collect()
}

/// The inputs and outputs of a model, and the sizes that it was prepared for at the start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PreparedSizes {
    /// In the model's order.
    pub inputs: Arc<[Side]>,
    /// What clients see.
    pub outputs: Vec<TensorSpec>,
    /// The outputs in any size, where lengths are filled up.
    pub general: Option<Arc<[Side]>>,
    /// By size, ascending.
    pub prepared: Vec<Arc<Form>>,
    /// Which open dimensions may be filled up.
    pub fills: [bool; MAX_OPEN],
    /// How many open dimensions there are.
    pub open: usize,
    /// Whether the first dimension is a batch.
    pub batched: bool,
    /// Numbers of rows that are prepared, ascending; 1 alone where there is no batch dimension.
    pub batches: Vec<usize>,
}

impl PreparedSizes {
    /// What clients see.
    pub fn signature(&self) -> ModelSignature {
        ModelSignature {
            inputs: self.inputs.iter().map(Side::spec).collect(),
            outputs: self.outputs.clone(),
            max_batch: if self.batched { self.most_rows() as u32 } else { 0 },
        }
    }

    fn most_rows(&self) -> usize {
        self.batches.last().copied().unwrap_or(1)
    }

    /// The size of a batch, if its inputs are as the model takes them.
    pub fn check(&self, inputs: &[Input]) -> Result<Size, String> {
        let shapes: Vec<&[i64]> = inputs.iter().map(|input| &input.shape[..]).collect();
        let own = self.of(&shapes)?;
        for (side, input) in self.inputs.iter().zip(inputs) {
            if side.datatype != input.datatype {
                return Err(format!("input {} is {}, expected {}", side.name, input.datatype, side.datatype));
            }
            let (bytes, found) = (side.bytes(own), input.bytes());
            if bytes != found {
                let (name, shape) = (&side.name, &input.shape);
                return Err(format!("input {name} has {found} bytes, but its shape {shape:?} takes {bytes}"));
            }
        }
        if !(1..=self.most_rows()).contains(&own.batch) {
            return Err(format!("a batch of {} rows, expected 1 to {}", own.batch, self.most_rows()));
        }
        Ok(own)
    }

    /// The size of a batch by the shapes of its inputs.
    pub fn of(&self, shapes: &[&[i64]]) -> Result<Size, String> {
        if shapes.len() != self.inputs.len() {
            return Err(format!("{} inputs were given, the model has {}", shapes.len(), self.inputs.len()));
        }
        let (mut batch, mut open) = (None, [None; MAX_OPEN]);
        for (side, shape) in self.inputs.iter().zip(shapes) {
            let wrong = || format!("input {} has the shape {shape:?}, expected {:?}", side.name, side.spec().dims);
            if shape.len() != side.extents.len() {
                return Err(wrong());
            }
            for (extent, &dim) in side.extents.iter().zip(*shape) {
                let dim = usize::try_from(dim).map_err(|_| wrong())?;
                let fits = match *extent {
                    Extent::Fixed(fixed) => dim == fixed,
                    Extent::Batch => *batch.get_or_insert(dim) == dim,
                    Extent::Open(which) => *open[which].get_or_insert(dim) == dim,
                };
                if !fits {
                    return Err(wrong());
                }
            }
        }
        Ok(Size { open: open.map(Option::unwrap_or_default), batch: batch.unwrap_or(1) })
    }

    /// The position of the size, among those of the start, in which a batch of that size runs, if there is one.
    pub fn find(&self, size: Size) -> Option<usize> {
        let fitting = self.prepared.iter().enumerate().filter(|(_, form)| self.fits(form.size, size));
        fitting.min_by_key(|(_, form)| form.size).map(|(position, _)| position)
    }

    /// The position of the one with the most rows that some rows of such a batch fit into, if all don't.
    pub fn find_fewer(&self, size: Size) -> Option<usize> {
        let one_row = Size { batch: 1, ..size };
        let fitting = self.prepared.iter().enumerate().filter(|(_, form)| self.fits(form.size, one_row));
        fitting.max_by_key(|(_, form)| form.size.batch).map(|(position, _)| position)
    }

    fn fits(&self, has: Size, wanted: Size) -> bool {
        let fits = |which: usize| match self.fills[which] {
            true => has.open[which] >= wanted.open[which],
            false => has.open[which] == wanted.open[which],
        };
        has.batch >= wanted.batch && (0..MAX_OPEN).all(fits)
    }

    /// The size to prepare for a batch of that size: the next number of rows, and in dimensions that may be filled up
    /// the next power of two, so that a few sizes are enough for all lengths.
    pub fn size_for(&self, size: Size) -> Size {
        let batch = self.batches.iter().find(|rows| **rows >= size.batch).copied().unwrap_or(size.batch);
        let mut open = size.open;
        for (value, _) in open.iter_mut().zip(&self.fills).filter(|(_, fills)| **fills) {
            *value = value.next_power_of_two();
        }
        Size { open, batch }
    }

    /// The shapes of the inputs in a size, for people.
    pub fn shapes(&self, size: Size) -> String {
        shapes(&self.inputs, size)
    }

    /// Why a batch of that size doesn't run, where no other sizes are prepared than those of the start.
    pub fn refusal(&self, size: Size) -> String {
        let mut values: Vec<&[usize]> = self.prepared.iter().map(|form| &form.size.open[..self.open]).collect();
        values.dedup();
        let which = if self.fills.contains(&true) { "at most one" } else { "exactly one" };
        format!(
            "{:?} in the open dimensions, expected {which} of {values:?}: prepare others with the parameter sequence_lengths",
            &size.open[..self.open]
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Extent::{Batch, Fixed, Open};

    fn side(extents: &[Extent]) -> Side {
        Side { name: "ids".into(), datatype: DataType::Uint8, extents: extents.to_vec() }
    }

    fn size(batch: usize, open: &[usize]) -> Size {
        let mut all = [0; MAX_OPEN];
        all[..open.len()].copy_from_slice(open);
        Size { open: all, batch }
    }

    fn sizes(fills_up: bool) -> PreparedSizes {
        let mask = Side { name: "attention_mask".into(), ..side(&[Batch, Open(0)]) };
        let inputs: Arc<[Side]> = [side(&[Batch, Open(0), Fixed(2)]), mask].into();
        let form = |size| Arc::new(Form::new(size, Arc::clone(&inputs), [side(&[Batch])].into()));
        let prepared = [8, 16].iter().flat_map(|&length| [1, 4].map(|batch| form(size(batch, &[length])))).collect();
        let mut fills = [false; MAX_OPEN];
        fills[0] = fills_up;
        let outputs = vec![side(&[Batch]).spec()];
        PreparedSizes { inputs, outputs, general: None, prepared, fills, open: 1, batched: true, batches: vec![1, 4] }
    }

    #[test]
    fn a_batch_runs_in_the_next_size() {
        let find = |fills_up, batch, length| sizes(fills_up).find(size(batch, &[length]));
        assert_eq!(find(true, 1, 8), Some(0));
        assert_eq!(find(true, 2, 8), Some(1));
        assert_eq!(find(true, 1, 9), Some(2));
        assert_eq!(find(false, 3, 16), Some(3));
        assert_eq!((find(true, 5, 8), find(false, 1, 9), find(true, 1, 17)), (None, None, None));
        let find_fewer = |batch, length| sizes(false).find_fewer(size(batch, &[length]));
        assert_eq!((find_fewer(6, 8), find_fewer(6, 16), find_fewer(6, 9)), (Some(1), Some(3), None));
        let refusal = |fills_up, length| sizes(fills_up).refusal(size(1, &[length]));
        assert!(refusal(false, 9).starts_with("[9] in the open dimensions, expected exactly one of [[8], [16]]"));
        assert!(refusal(true, 17).contains("expected at most one of [[8], [16]]"));
    }

    #[test]
    fn other_sizes_are_prepared_as_far_as_they_may_be_filled_up() {
        let of = |fills_up, batch, length| sizes(fills_up).size_for(size(batch, &[length]));
        assert_eq!(of(true, 3, 17), size(4, &[32]));
        assert_eq!(of(false, 3, 17), size(4, &[17]));
        for length in 1..200 {
            let sizes = sizes(true);
            assert!(sizes.fits(sizes.size_for(size(2, &[length])), size(2, &[length])), "{length}");
        }
    }

    #[test]
    fn inputs_are_checked() {
        let sizes = sizes(true);
        let input = |shape: &[i64], bytes: usize| Input {
            datatype: DataType::Uint8,
            shape: shape.to_vec(),
            pieces: vec![vec![0; bytes].into()],
        };
        assert_eq!(sizes.check(&[input(&[3, 7, 2], 42), input(&[3, 7], 21)]), Ok(size(3, &[7])));
        let short = sizes.check(&[input(&[3, 7, 2], 42), input(&[3, 7], 20)]).unwrap_err();
        assert_eq!(short, "input attention_mask has 20 bytes, but its shape [3, 7] takes 21");
        let many = sizes.check(&[input(&[5, 1, 2], 10), input(&[5, 1], 5)]).unwrap_err();
        assert_eq!(many, "a batch of 5 rows, expected 1 to 4");
        let typed = Input { datatype: DataType::Int8, ..input(&[3, 7], 21) };
        assert!(sizes.check(&[input(&[3, 7, 2], 42), typed]).unwrap_err().contains("is INT8, expected UINT8"));
    }

    #[test]
    fn shapes_must_agree() {
        let sizes = sizes(true);
        assert_eq!(sizes.of(&[&[3, 7, 2], &[3, 7]]), Ok(size(3, &[7])));
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
            &[Batch, Open(0), Fixed(3)][..],
            &[Batch, Fixed(2), Open(0)],
            &[Batch, Open(0), Open(1)],
            &[Batch, Open(0), Open(0)],
            &[Batch, Fixed(5)],
            &[Open(0), Batch],
        ] {
            let (side, small, large) = (side(extents), size(2, &[3, 2]), size(2, &[5, 7]));
            let from: Vec<u8> = (1..=side.bytes(small) as u8).collect();
            let mut into = vec![99; side.bytes(large)];
            side.lay_in(&from, small, &mut into, large);
            assert_eq!(into.iter().filter(|&&byte| byte != 0).count(), from.len(), "the rest is zeros");
            assert_eq!(side.take_out(&into, large, small, &mut Vec::new()), from, "{extents:?}");
        }
    }

    #[test]
    fn outputs_are_understood_from_examples() {
        let sizes = [(1, [8, 3]), (4, [8, 3]), (4, [16, 3]), (4, [16, 5])].map(|(batch, open)| size(batch, &open));
        let dims = |size: &Size| {
            let ([length, other, ..], batch) = (size.open, size.batch);
            vec![vec![batch, length, 768], vec![batch, 2], vec![other, batch]]
        };
        let all: Vec<_> = sizes.iter().map(dims).collect();
        let expected = [vec![Batch, Open(0), Fixed(768)], vec![Batch, Fixed(2)], vec![Open(1), Batch]];
        assert_eq!(output_extents(&sizes, &all, 2, true).unwrap(), expected);
        // With one size only, the first dimension of a batched model is the batch.
        assert_eq!(output_extents(&sizes[..1], &[vec![vec![1, 10]]], 2, true).unwrap(), [[Batch, Fixed(10)]]);
        let odd: Vec<_> = sizes.iter().map(|size| vec![vec![size.batch * size.open[0]]]).collect();
        assert!(output_extents(&sizes, &odd, 2, true).unwrap_err().contains("neither the batch nor an open dimension"));
    }

    #[test]
    fn clients_see_what_differs_as_open() {
        let spec = |dims: &[&[usize]], batched| output_spec("y", DataType::Fp32, dims, batched).dims;
        assert_eq!(spec(&[&[1, 10, 4], &[1, 20, 4]], true), [-1, -1, 4]);
        assert_eq!(spec(&[&[1, 10, 4], &[1, 20, 4]], false), [1, -1, 4]);
        assert_eq!(spec(&[&[7]], false), [7]);
    }

    #[test]
    fn an_exact_size_still_takes_fewer_rows() {
        let exact = |batched| exact_extents(&[4, 100, 6], size(4, &[320]), batched);
        assert_eq!(exact(true), [Batch, Fixed(100), Fixed(6)]);
        assert_eq!(exact(false), [Fixed(4), Fixed(100), Fixed(6)]);
    }

    #[test]
    fn layouts_are_aligned_and_apart() {
        let form = Form::new(size(4, &[16]), sizes(true).inputs, [side(&[Batch])].into());
        assert_eq!(form.layout, BufferLayout { inputs: vec![0, 256], outputs: vec![512], bytes: 768 });
        assert_eq!(sizes(true).shapes(form.size), "ids [4, 16, 2], attention_mask [4, 16]");
    }

    #[test]
    fn rows_are_filled_up_one_by_one() {
        let mut into = [9; 8];
        let rows = side(&[Batch, Open(0)]);
        rows.lay_in(&[1, 2, 3, 4], size(2, &[2]), &mut into, size(2, &[3]));
        assert_eq!(into, [1, 2, 0, 3, 4, 0, 9, 9]);
        // Fewer rows than the graph has: the first ones.
        rows.lay_in(&[5, 6], size(1, &[2]), &mut into, size(4, &[2]));
        assert_eq!(into[..3], [5, 6, 0]);
    }
}
