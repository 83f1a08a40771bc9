//! Inputs that nobody sent, to run a model with: what its configuration gives of them, and the rest made up.

use crate::warmup;
use base::{DataType, ModelSignature, TensorSpec, element_count};
use bytes::Bytes;
use engine::{HostMemory, Tensor, by_chance};
use repository::{FoundModel, ProfileInput, WarmupSample};
use std::collections::{BTreeMap, HashSet};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

/// Larger inputs than this are neither made up nor read from files, and batches with such ones aren't made.
pub(crate) const MAX_INPUT_BYTES: usize = 256 << 20;
/// What dimensions of any size are tried with, in this order, until the model accepts one. Small ones go first: a size
/// that nobody asks for must not take long, and what is planned with it at first shouldn't be far too much.
const TRIED_SIZES: [i64; 7] = [16, 64, 1, 32, 128, 224, 512];
/// More shapes than this aren't tried.
const MOST_TRIES: usize = 100;

/// What inputs are made of.
#[derive(Clone, Copy, Debug)]
pub struct Samples<'a> {
    /// What models don't say themselves, by input.
    given: &'a BTreeMap<String, ProfileInput>,
    /// Requests that the model is warmed up with.
    warmup: &'a [WarmupSample],
    /// The model's folder.
    folder: &'a Path,
    /// Where requests are received: measurements are for inputs that lie there, too.
    memory: Option<&'a dyn HostMemory>,
}

/// One way to make inputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sample {
    /// As the model is warmed up with, by its position.
    Warmup(usize),
    /// Made up.
    MadeUp(OpenSizes),
}

/// What open dimensions are made to be, where nothing is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OpenSizes {
    /// The first one of an input, where it isn't a batch, and the others.
    First(i64, i64),
    /// The one of that number, counted over all inputs; the others are 1.
    Only(usize, i64),
}

impl<'a> Samples<'a> {
    /// Those of a model whose requests are received in that memory.
    pub fn of(found: &'a FoundModel, memory: Option<&'a dyn HostMemory>) -> Self {
        Self { given: &found.config.profile_inputs, warmup: &found.config.warmup, folder: &found.folder, memory }
    }

    /// Those of a model of which nothing is said.
    #[cfg(test)]
    pub(crate) fn none() -> Samples<'static> {
        static NOTHING: BTreeMap<String, ProfileInput> = BTreeMap::new();
        Samples { given: &NOTHING, warmup: &[], folder: Path::new(""), memory: None }
    }

    /// Whether they fit the model: what is given has as many dimensions as the model.
    pub(crate) fn check(self, signature: &ModelSignature) -> Result<(), String> {
        let from = usize::from(signature.max_batch > 0);
        for spec in &signature.inputs {
            if let Some(dims) = self.given.get(&spec.name).and_then(|given| given.dims.as_ref())
                && dims.len() + from != spec.dims.len()
            {
                let (name, wanted) = (&spec.name, spec.dims.len().saturating_sub(from));
                return Err(format!("profile_inputs gives {name} {} dimensions, but it has {wanted}", dims.len()));
            }
        }
        Ok(())
    }

    /// All that can be tried: what somebody gave first.
    pub(crate) fn all(self, signature: &ModelSignature) -> Vec<Sample> {
        let warmup = (0..self.warmup.len()).map(Sample::Warmup);
        warmup.chain(self.open_sizes(signature).into_iter().map(Sample::MadeUp)).collect()
    }

    /// What to try for open dimensions, each shape once. A first dimension that isn't a batch is tried with 1: it may
    /// be one all the same, or grow what a request takes like one. Then come a few rows. Where rows are counted
    /// elsewhere too, as in the states of recurrent networks, one dimension alone may be a length. At last, all sizes
    /// are alike.
    pub(crate) fn open_sizes(self, signature: &ModelSignature) -> Vec<OpenSizes> {
        let dims = signature.inputs.iter().flat_map(|spec| &spec.dims);
        let open = dims.filter(|&&dim| dim < 0).count();
        let with_rows = |rows: i64| TRIED_SIZES.into_iter().map(move |size| OpenSizes::First(rows, size));
        let lengths = TRIED_SIZES.into_iter().flat_map(|size| (0..open).map(move |which| OpenSizes::Only(which, size)));
        let alike = TRIED_SIZES.into_iter().map(|size| OpenSizes::First(size, size));
        let all = [1, 2, 4].into_iter().flat_map(with_rows).chain(lengths).chain(alike);
        let mut seen = HashSet::new();
        let shapes = |sizes: OpenSizes| -> Vec<Vec<i64>> {
            signature.inputs.iter().map(|spec| self.shape(spec, signature, 1, sizes)).collect()
        };
        all.filter(|sizes| seen.insert(shapes(*sizes))).take(MOST_TRIES).collect()
    }

    /// The inputs of a batch of so many rows.
    pub(crate) fn inputs(
        self,
        signature: &ModelSignature,
        batch: u32,
        sample: Sample,
    ) -> Result<Arc<[Tensor]>, String> {
        match sample {
            Sample::Warmup(position) => self.warmup_inputs(signature, batch, &self.warmup[position]),
            Sample::MadeUp(sizes) => self.made_up_inputs(signature, batch, sizes),
        }
    }

    /// All elements of an input are alike.
    fn made_up_inputs(self, signature: &ModelSignature, batch: u32, sizes: OpenSizes) -> Result<Arc<[Tensor]>, String> {
        let make = |spec: &TensorSpec| {
            let shape = self.shape(spec, signature, batch, sizes);
            let element = element(spec.datatype, self.given_value(spec));
            let count = check_size(spec, &shape, element.len())?;
            let data = self.received(element.repeat(count));
            Ok(Tensor { datatype: spec.datatype, shape, data })
        };
        signature.inputs.iter().map(make).collect()
    }

    /// The rows of a sample, from the first on again where there are too few.
    fn warmup_inputs(
        self,
        signature: &ModelSignature,
        batch: u32,
        sample: &WarmupSample,
    ) -> Result<Arc<[Tensor]>, String> {
        let inputs = warmup::inputs(sample, signature, self.folder)?;
        if signature.max_batch == 0 || batch == sample.batch {
            return Ok(inputs);
        }
        let with_rows = |input: &Tensor| {
            let rows = rows_of(input);
            let data = rows.iter().cycle().take(batch as usize).flat_map(|row| row.iter().copied()).collect();
            let shape = std::iter::once(i64::from(batch)).chain(input.shape.iter().skip(1).copied()).collect();
            Tensor { datatype: input.datatype, shape, data: self.received(data) }
        };
        Ok(inputs.iter().map(with_rows).collect())
    }

    /// The inputs of a batch whose rows differ: those of each seed, always the same ones. Whole numbers are from that
    /// range.
    pub(crate) fn rows(
        self,
        signature: &ModelSignature,
        sizes: OpenSizes,
        whole: &RangeInclusive<u64>,
        seeds: &[u64],
    ) -> Result<Arc<[Tensor]>, String> {
        let make = |(position, spec): (u64, &TensorSpec)| {
            let shape = self.shape(spec, signature, seeds.len() as u32, sizes);
            let count = check_size(spec, &shape, spec.datatype.size().unwrap_or(5))? / seeds.len();
            let row = |seed: &u64| match self.given_value(spec) {
                Some(value) => element(spec.datatype, Some(value)).repeat(count),
                None => by_chance(spec.datatype, count, seed.wrapping_add(position << 32), whole),
            };
            let data = self.received(seeds.iter().flat_map(row).collect());
            Ok(Tensor { datatype: spec.datatype, shape, data })
        };
        (0..).zip(&signature.inputs).map(make).collect()
    }

    /// What made-up inputs depend on besides the model: nothing, or what is given for it.
    pub(crate) fn describe(self) -> String {
        let each = self.given.iter().map(|(name, input)| format!(", {name} {:?} {:?}", input.dims, input.value));
        let warmup = self.warmup.iter().flat_map(|sample| &sample.inputs);
        let warmup = warmup.map(|(name, input)| format!(", warmup {name} {:?} {:?}", input.dims, input.data));
        each.chain(warmup).collect()
    }

    fn given_value(self, spec: &TensorSpec) -> Option<f64> {
        self.given.get(&spec.name).and_then(|given| given.value)
    }

    /// Dimensions that somebody gave for an input, without the batch dimension where there is one.
    fn given_dims(self, spec: &TensorSpec) -> impl Iterator<Item = &'a [i64]> {
        let given = self.given.get(&spec.name).and_then(|given| given.dims.as_deref());
        let name = spec.name.clone();
        given.into_iter().chain(self.warmup.iter().filter_map(move |sample| Some(&sample.inputs.get(&name)?.dims[..])))
    }

    /// Whether somebody gave a size for the first dimension of an input: then it isn't a batch.
    pub(crate) fn give_first_dimension(self, signature: &ModelSignature) -> bool {
        signature.inputs.iter().any(|spec| self.given_dims(spec).any(|dims| dims.len() == spec.dims.len()))
    }

    fn shape(self, spec: &TensorSpec, signature: &ModelSignature, batch: u32, sizes: OpenSizes) -> Vec<i64> {
        let batched = signature.max_batch > 0;
        let mut shape = spec.dims.clone();
        let from = usize::from(batched).min(shape.len());
        let inputs_before = signature.inputs.iter().take_while(|other| other.name != spec.name);
        let open_before = inputs_before.flat_map(|other| &other.dims).filter(|&&dim| dim < 0).count();
        // A single open dimension is a length rather than rows.
        let has_rows = !batched && shape.len() > 1;
        let open = shape.iter_mut().enumerate().filter(|(_, dim)| **dim < 0);
        for (number, (axis, dim)) in (open_before..).zip(open) {
            *dim = match sizes {
                OpenSizes::First(first, _) if axis == 0 && has_rows => first,
                OpenSizes::First(_, others) => others,
                OpenSizes::Only(which, size) => {
                    if which == number {
                        size
                    } else {
                        1
                    }
                }
            };
        }
        if let Some(dims) = self.given_dims(spec).find(|dims| dims.len() + from == shape.len()) {
            shape[from..].copy_from_slice(dims);
        }
        if batched && let Some(first) = shape.first_mut() {
            *first = i64::from(batch);
        }
        shape
    }

    /// The same bytes where requests are received.
    fn received(self, data: Vec<u8>) -> Bytes {
        if let Some(mut buffer) = self.memory.and_then(|memory| memory.take(data.len()))
            && buffer.append(&data)
        {
            return Bytes::from_owner(buffer);
        }
        data.into()
    }
}

/// The bytes of each row.
pub(crate) fn rows_of(input: &Tensor) -> Vec<&[u8]> {
    let count = input.shape.first().map_or(1, |&rows| rows.max(1) as usize);
    if input.datatype.size().is_some() {
        return input.data.chunks((input.data.len() / count).max(1)).collect();
    }
    let elements = input.shape.iter().skip(1).product::<i64>().max(1) as usize;
    let mut rest = &input.data[..];
    let mut row = || {
        let whole = rest;
        for _ in 0..elements {
            let (length, behind) = rest.split_first_chunk::<4>()?;
            rest = behind.get(u32::from_le_bytes(*length) as usize..)?;
        }
        Some(&whole[..whole.len() - rest.len()])
    };
    (0..count).map_while(|_| row()).collect()
}

/// The number of elements of an input, if it isn't too large to be made up.
fn check_size(spec: &TensorSpec, shape: &[i64], element_bytes: usize) -> Result<usize, String> {
    let fits = |count: &usize| count.checked_mul(element_bytes).is_some_and(|bytes| bytes <= MAX_INPUT_BYTES);
    element_count(shape).filter(fits).ok_or_else(|| {
        let name = &spec.name;
        format!(
            "input {name} would have the shape {shape:?}, which is too large to measure the model with: give a smaller one \
             with the parameter profile_inputs"
        )
    })
}

/// One element. Where no value is given: ones are valid tokens, flags, lengths and numbers in strings; zeros as lengths
/// often aren't.
fn element(datatype: DataType, value: Option<f64>) -> Vec<u8> {
    let real = value.unwrap_or(0.5);
    let whole = value.unwrap_or(1.0) as i64;
    match datatype {
        DataType::Fp32 => (real as f32).to_le_bytes().to_vec(),
        DataType::Fp64 => real.to_le_bytes().to_vec(),
        DataType::Fp16 | DataType::Bf16 => vec![0; 2],
        DataType::Bool => vec![u8::from(whole != 0)],
        DataType::Bytes => vec![1, 0, 0, 0, b'1'],
        DataType::Int8 | DataType::Uint8 => whole.to_le_bytes()[..1].to_vec(),
        DataType::Int16 | DataType::Uint16 => whole.to_le_bytes()[..2].to_vec(),
        DataType::Int32 | DataType::Uint32 => whole.to_le_bytes()[..4].to_vec(),
        DataType::Int64 | DataType::Uint64 => whole.to_le_bytes().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use repository::{WarmupData, WarmupInput};

    const SIZES: OpenSizes = OpenSizes::First(1, 16);
    const MADE_UP: Sample = Sample::MadeUp(SIZES);

    fn of(given: &BTreeMap<String, ProfileInput>) -> Samples<'_> {
        Samples { given, warmup: &[], folder: Path::new(""), memory: None }
    }

    fn signature(dims: &[i64], max_batch: u32) -> ModelSignature {
        let spec = TensorSpec { name: "input".into(), datatype: DataType::Fp32, dims: dims.to_vec() };
        ModelSignature { inputs: vec![spec], outputs: Vec::new(), max_batch }
    }

    fn given(dims: &[i64]) -> BTreeMap<String, ProfileInput> {
        let input = ProfileInput { dims: Some(dims.to_vec()), value: Some(2.0) };
        BTreeMap::from([("input".to_owned(), input)])
    }

    #[test]
    fn inputs_that_no_memory_holds_are_refused() {
        let given = BTreeMap::new();
        let samples = of(&given);
        for dims in [[-1, i64::MAX, i64::MAX], [-1, 1, 1 << 40], [-1, 1, 1 << 28]] {
            let refused = samples.inputs(&signature(&dims, 8), 4, MADE_UP).err().unwrap();
            assert!(refused.contains("too large"), "{refused}");
        }
    }

    #[test]
    fn inputs_follow_the_batch_and_the_given_shapes() {
        let signature = signature(&[-1, 3, -1], 8);
        let nothing = BTreeMap::new();
        let samples = of(&nothing);
        let input = samples.inputs(&signature, 4, MADE_UP).unwrap()[0].clone();
        assert_eq!((input.shape, input.data.len()), (vec![4, 3, 16], 4 * 3 * 16 * 4));
        let whole = given(&[3, 5]);
        let samples = of(&whole);
        let input = samples.inputs(&signature, 2, MADE_UP).unwrap()[0].clone();
        assert_eq!((input.shape, &input.data[..4]), (vec![2, 3, 5], &2f32.to_le_bytes()[..]));
        assert_eq!(samples.check(&signature), Ok(()));
        let short = given(&[3]);
        let refused = of(&short).check(&signature).unwrap_err();
        assert_eq!(refused, "profile_inputs gives input 1 dimensions, but it has 2");
    }

    #[test]
    fn a_model_that_does_not_batch_is_not_measured_with_dozens_of_rows() {
        let nothing = BTreeMap::new();
        let samples = of(&nothing);
        let shapes = |dims: &[i64]| -> Vec<Vec<i64>> {
            let signature = signature(dims, 0);
            let sizes = samples.open_sizes(&signature);
            sizes
                .iter()
                .map(|sizes| samples.inputs(&signature, 1, Sample::MadeUp(*sizes)).unwrap()[0].shape.clone())
                .collect()
        };
        assert_eq!(shapes(&[-1, 224, 3])[..4], [[1, 224, 3], [2, 224, 3], [4, 224, 3], [16, 224, 3]]);
        assert_eq!(samples.open_sizes(&signature(&[-1; 40], 0)).len(), MOST_TRIES);
        assert_eq!(shapes(&[-1, -1])[..3], [[1, 16], [1, 64], [1, 1]]);
        assert_eq!(shapes(&[-1])[..2], [[16], [64]]);
        assert_eq!(shapes(&[2, 3]), [[2, 3]]);
    }

    #[test]
    fn a_recurrent_network_is_tried_with_one_row_in_its_states_too() {
        let nothing = BTreeMap::new();
        let mut signature = signature(&[-1, -1], 0);
        let state = TensorSpec { name: "h".into(), dims: vec![2, -1, 64], ..signature.inputs[0].clone() };
        signature.inputs.push(state);
        let sizes = of(&nothing).open_sizes(&signature);
        let shapes = sizes.iter().map(|sizes| {
            let inputs = of(&nothing).inputs(&signature, 1, Sample::MadeUp(*sizes)).unwrap();
            [inputs[0].shape.clone(), inputs[1].shape.clone()]
        });
        let shapes: Vec<_> = shapes.collect();
        let at =
            |shape: [&[i64]; 2]| shapes.iter().position(|other| other[0] == shape[0] && other[1] == shape[1]).unwrap();
        assert!(at([&[1, 64], &[2, 1, 64]]) < at([&[16, 16], &[2, 16, 64]]));
    }

    #[test]
    fn rows_of_different_seeds_differ_and_those_of_one_are_the_same_in_every_batch() {
        let nothing = BTreeMap::new();
        let samples = of(&nothing);
        for &datatype in DataType::ALL {
            let mut signature = signature(&[-1, 40], 8);
            signature.inputs[0].datatype = datatype;
            let rows = |seeds: &[u64]| samples.rows(&signature, SIZES, &(0..=1), seeds).unwrap()[0].clone();
            let (first, second, both) = (rows(&[1]), rows(&[2]), rows(&[2, 1]));
            assert_ne!(first.data, second.data, "{datatype}");
            assert_eq!(both.data[..], [&second.data[..], &first.data[..]].concat(), "{datatype}");
            assert_eq!((both.shape, first.data.len()), (vec![2, 40], 40 * datatype.size().unwrap_or(5)));
        }
        let halves = by_chance(DataType::Fp32, 100, 0, &(0..=99));
        let values = halves.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
        assert!(values.clone().all(|value| (0.0..1.0).contains(&value)) && values.clone().any(|value| value > 0.5));
    }

    #[test]
    fn what_a_model_is_warmed_up_with_is_measured_first() {
        let input = |dims: &[i64], datatype| WarmupInput { datatype, dims: dims.to_vec(), data: WarmupData::Random };
        let sample = |dims: &[i64], datatype| WarmupSample {
            name: "usual".into(),
            batch: 2,
            count: 1,
            inputs: BTreeMap::from([("input".to_owned(), input(dims, datatype))]),
        };
        let mut signature = signature(&[-1, 3, -1], 8);
        for datatype in [DataType::Fp32, DataType::Bytes] {
            signature.inputs[0].datatype = datatype;
            let (warmup, nothing) = ([sample(&[3, 7], datatype)], BTreeMap::new());
            let samples = Samples { warmup: &warmup, ..of(&nothing) };
            assert_eq!(samples.all(&signature)[0], Sample::Warmup(0));
            let rows = |batch| samples.inputs(&signature, batch, Sample::Warmup(0)).unwrap()[0].clone();
            let (one, two, three) = (rows(1), rows(2), rows(3));
            assert_eq!((&one.shape, &three.shape), (&vec![1, 3, 7], &vec![3, 3, 7]));
            assert!(two.data.starts_with(&one.data) && two.data.len() == 2 * one.data.len());
            assert_eq!(three.data[..], [&two.data[..], &one.data[..]].concat());
            // Its shape holds where elements are made up, too.
            assert_eq!(samples.inputs(&signature, 1, MADE_UP).unwrap()[0].shape, [1, 3, 7]);
            assert!(!samples.give_first_dimension(&signature));
        }
    }
}
