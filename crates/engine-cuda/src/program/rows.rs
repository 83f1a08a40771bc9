//! Kernels that go over many elements for each result: reductions, softmax, layer normalisation, the largest of a row.
//!
//! A row is what one result (or one softmax) is made of. Several threads share a row; each block has several rows.
//! Where a row's elements are neighbours in memory, so are the threads of a row; where neighbouring rows are, so are
//! their threads.

use super::expression::{THREADS, class_name, number};
use super::index::{Space, ValueClass, read_as, written_as};
use super::launch::{LaunchParameters, Recipe};
use crate::source::{Defines, KernelSource};
use graph::plan::{LayerNorm, Reduce, ReduceKind, Softmax, Tensor, TopK};

const REDUCE: &str = concat!(include_str!("../kernels/rows.cu"), include_str!("../kernels/reduce.cu"));
const POSITION: &str = concat!(
    include_str!("../kernels/best.cu"),
    include_str!("../kernels/rows.cu"),
    include_str!("../kernels/position.cu")
);
const TOP_K: &str = concat!(
    include_str!("../kernels/best.cu"),
    include_str!("../kernels/rows.cu"),
    include_str!("../kernels/top_k.cu")
);
const SOFTMAX: &str = concat!(
    include_str!("../kernels/exponentials.cu"),
    include_str!("../kernels/rows.cu"),
    include_str!("../kernels/softmax.cu")
);
const LAYER_NORM: &str = concat!(include_str!("../kernels/rows.cu"), include_str!("../kernels/layer_norm.cu"));

/// How a tensor is cut into rows.
struct Rows {
    outer: Space,
    inner: Space,
    /// Threads of a row: a power of two.
    lanes: usize,
    /// Whether threads of a row are neighbours.
    along: bool,
}

impl Rows {
    /// `tensors[0]` leads; every tensor has all dimensions. `within` says which of them a row goes over.
    fn new(tensors: &[&Tensor], within: impl Fn(usize) -> bool) -> Self {
        let dims = &tensors[0].dims;
        let pick = |inside: bool| {
            let axes: Vec<usize> = (0..dims.len()).filter(|&axis| within(axis) == inside).collect();
            let chosen: Vec<usize> = axes.iter().map(|&axis| dims[axis]).collect();
            let strides: Vec<Vec<isize>> =
                tensors.iter().map(|tensor| axes.iter().map(|&axis| tensor.strides[axis]).collect()).collect();
            Space::new(&chosen, &strides.iter().map(Vec::as_slice).collect::<Vec<_>>(), 0)
        };
        let (outer, inner) = (pick(false), pick(true));
        let nearest = |space: &Space| {
            space.strides[0].iter().filter(|&&stride| stride != 0).map(|stride| stride.unsigned_abs()).min()
        };
        let along = nearest(&inner).unwrap_or(usize::MAX) <= nearest(&outer).unwrap_or(usize::MAX);
        let most = inner.count().div_ceil(if along { 4 } else { 2 }).next_power_of_two().min(THREADS);
        // Enough threads to fill a device, but no more lanes than that needs where a row's elements aren't neighbours.
        let lanes =
            if along { most } else { most.min((1usize << 17).div_ceil(outer.count()).next_power_of_two()).min(16) };
        Self { outer, inner, lanes, along }
    }

    fn slots(&self) -> usize {
        THREADS / self.lanes
    }

    fn recipe(&self, tensors: &[&Tensor], text: &'static str, defines: Defines) -> Recipe {
        Recipe {
            name: "generated".to_owned(),
            source: KernelSource { text, defines, entry: "step" },
            grid: [self.outer.count().div_ceil(self.slots()) as u32, 1, 1],
            block: THREADS as u32,
            shared_bytes: 0,
            cluster: 1,
            parameters: LaunchParameters::counted(tensors, self.outer.count()),
        }
    }

    /// What `rows.cu` is given, but what is combined.
    fn defines(&self) -> Defines {
        let mut defines = Defines::default();
        defines
            .add("THREADS", THREADS)
            .add("LANES", self.lanes)
            .add("SLOTS", self.slots())
            .add("ALONG", i32::from(self.along))
            .add("LENGTH", self.inner.count())
            .add("ROW_COORDINATES", self.outer.coordinates("y", "row"))
            .add("COORDINATES", self.inner.coordinates("x", "i"));
        defines
    }

    /// C for the place of a tensor's element in a loop over a row.
    fn at(&self, tensor: usize) -> String {
        format!("{} + {}", self.at_row(tensor), self.inner.offset(tensor, "x"))
    }

    /// C for the place of a tensor's element that a row has one of.
    fn at_row(&self, tensor: usize) -> String {
        self.outer.offset(tensor, "y")
    }
}

/// How elements are put together to one: the first value, what an element does to it, what two such values make, what
/// becomes of the last.
struct Fold {
    first: &'static str,
    fold: &'static str,
    join: &'static str,
    result: String,
}

impl Fold {
    /// `name` is the type that is computed with, `length` that of a row.
    fn of(kind: ReduceKind, float: bool, name: &str, length: usize) -> Self {
        let fold = |first, fold, join| Self { first, fold, join, result: "s".to_owned() };
        let sum = |each| fold("0", each, "a + b");
        match kind {
            ReduceKind::Sum | ReduceKind::ArgMax { .. } | ReduceKind::ArgMin { .. } => sum("s += v"),
            ReduceKind::Mean => Self { result: format!("s / ({name}){length}"), ..sum("s += v") },
            ReduceKind::SumOfSquares => sum("s += v * v"),
            ReduceKind::Norm => Self { result: format!("({name})sqrtf((float)s)"), ..sum("s += v * v") },
            ReduceKind::SumOfAbsolutes => sum("s += v < 0 ? -v : v"),
            ReduceKind::Product => fold("1", "s *= v", "a * b"),
            ReduceKind::Max if float => fold("-INFINITE", "s = v > s || v != v ? v : s", "a > b || a != a ? a : b"),
            ReduceKind::Min if float => fold("INFINITE", "s = v < s || v != v ? v : s", "a < b || a != a ? a : b"),
            ReduceKind::Max => fold("(i64)(1ull << 63)", "s = v > s ? v : s", "a > b ? a : b"),
            ReduceKind::Min => fold("(i64)(~0ull >> 1)", "s = v < s ? v : s", "a < b ? a : b"),
        }
    }
}

pub(crate) fn reduce(step: &Reduce) -> Recipe {
    let tensors = [&step.input, &step.output];
    let rows = Rows::new(&tensors, |axis| step.axes.contains(&axis));
    let mut defines = rows.defines();
    read_as(&mut defines, "IN", "LOAD", step.input.dtype);
    written_as(&mut defines, "OUT", "STORE", step.output.dtype);
    defines.add("IN_AT", rows.at(0)).add("OUT_AT", rows.at_row(1));
    let class = ValueClass::of(step.input.dtype);
    if let ReduceKind::ArgMax { last } | ReduceKind::ArgMin { last } = step.kind {
        let largest = matches!(step.kind, ReduceKind::ArgMax { .. });
        add_order(&mut defines, class.name(), largest, last);
        return rows.recipe(&tensors, POSITION, defines);
    }
    let float = class == ValueClass::Float;
    let name = if float { "float" } else { "i64" };
    let Fold { first, fold, join, result } = Fold::of(step.kind, float, name, rows.inner.count());
    defines
        .add("COMBINED", name)
        .add("JOINED(a, b)", join)
        .add("FIRST", first)
        .add("FOLD(s, v)", fold)
        .add("RESULT(s)", result);
    rows.recipe(&tensors, REDUCE, defines)
}

/// What `best.cu` is given.
fn add_order(defines: &mut Defines, value: &str, largest: bool, last: bool) {
    let order = |greater: bool| if greater { "a > b" } else { "a < b" };
    defines.add("VALUE", value).add("BETTER(a, b)", order(largest)).add("EARLIER(a, b)", order(last));
}

pub(crate) fn softmax(step: &Softmax) -> Recipe {
    let tensors = [&step.input, &step.output];
    let rows = Rows::new(&tensors, |axis| axis == step.axis);
    let mut defines = rows.defines();
    read_as(&mut defines, "IN", "LOAD", step.input.dtype);
    written_as(&mut defines, "OUT", "STORE", step.output.dtype);
    defines.add("IN_AT", rows.at(0)).add("OUT_AT", rows.at(1)).add("LOGARITHM", i32::from(step.log));
    rows.recipe(&tensors, SOFTMAX, defines)
}

pub(crate) fn layer_norm(step: &LayerNorm) -> Recipe {
    let mut tensors = vec![&step.input, &step.output];
    tensors.extend(&step.scale);
    tensors.extend(&step.shift);
    let rows = Rows::new(&tensors, |axis| axis >= step.axis);
    let mut defines = rows.defines();
    read_as(&mut defines, "IN", "LOAD", step.input.dtype);
    written_as(&mut defines, "OUT", "STORE", step.output.dtype);
    defines
        .add("IN_AT", rows.at(0))
        .add("OUT_AT", rows.at(1))
        .add("COMBINED", "float")
        .add("JOINED(a, b)", "a + b")
        .add("EPSILON", number(step.epsilon))
        .add("ROOT_MEAN_SQUARE", i32::from(step.root_mean_square))
        .add("HAS_SCALE", i32::from(step.scale.is_some()))
        .add("HAS_SHIFT", i32::from(step.shift.is_some()));
    if let Some(scale) = &step.scale {
        read_as(&mut defines, "SCALE", "LOAD_SCALE", scale.dtype);
        defines.add("SCALE_AT", rows.at(2));
    }
    if let Some(shift) = &step.shift {
        read_as(&mut defines, "SHIFT", "LOAD_SHIFT", shift.dtype);
        defines.add("SHIFT_AT", rows.at(2 + usize::from(step.scale.is_some())));
    }
    rows.recipe(&tensors, LAYER_NORM, defines)
}

pub(crate) fn top_k(step: &TopK) -> Recipe {
    // The input's strides lead; outputs have `k` in place of the row's length, so that only their strides count.
    let tensors = [&step.input, &step.values, &step.indices];
    let mut rows = Rows::new(&tensors, |axis| axis == step.axis);
    (rows.lanes, rows.along) = (THREADS, true);
    let mut defines = rows.defines();
    add_order(&mut defines, class_name(step.input.dtype), step.largest, false);
    read_as(&mut defines, "IN", "LOAD", step.input.dtype);
    written_as(&mut defines, "VALUE_OUT", "STORE_VALUE", step.values.dtype);
    written_as(&mut defines, "INDEX_OUT", "STORE_INDEX", step.indices.dtype);
    defines
        .add("K", step.values.dims[step.axis])
        .add("IN_AT", rows.at(0))
        .add("VALUES_AT", rows.at_row(1))
        .add("VALUES_STRIDE", step.values.strides[step.axis])
        .add("INDICES_AT", rows.at_row(2))
        .add("INDICES_STRIDE", step.indices.strides[step.axis]);
    rows.recipe(&tensors, TOP_K, defines)
}
