//! Kernels that go over many elements for each result: reductions, softmax, layer normalisation, the largest of a row.
//!
//! A row is what one result (or one softmax) is made of. Several threads share a row; each block has several rows. Where a row's elements are neighbours in
//! memory, so are the threads of a row; where neighbouring rows are, so are their threads.

use super::expression::{THREADS, class_name, number};
use super::index::{Class, Space, element, load, store};
use super::launch::{Parameters, Recipe};
use crate::toolkit::Source;
use graph::plan::{LayerNorm, Reduce, ReduceKind, Softmax, Tensor, TopK};

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

    fn recipe(&self, tensors: &[&Tensor], declarations: &str, body: &str) -> Recipe {
        let slots = self.slots();
        let (lane, slot, pitch) = if self.along {
            (format!("threadIdx.x % {}u", self.lanes), format!("threadIdx.x / {}u", self.lanes), 1)
        } else {
            (format!("threadIdx.x / {slots}u"), format!("threadIdx.x % {slots}u"), slots)
        };
        let parameters: Vec<_> = tensors
            .iter()
            .enumerate()
            .map(|(i, tensor)| format!("{}* __restrict__ p{i}", element(tensor.dtype)))
            .collect();
        let text = format!(
            "#define LANES {lanes}\n#define PITCH {pitch}\n{declarations}\
             extern \"C\" __global__ void __launch_bounds__({THREADS}) step({parameters}) {{\n    after_the_kernel_before();\n\
             \x20   const u32 lane = {lane}, row = blockIdx.x * {slots}u + {slot};\n    const bool alive = row < {rows}u;\n\
             {coordinates}{body}}}\n",
            lanes = self.lanes,
            parameters = parameters.join(", "),
            rows = self.outer.count(),
            coordinates = self.outer.coordinates("y", "row"),
        );
        Recipe {
            name: "generated".to_owned(),
            source: Source { text, defines: Vec::new(), entry: "step" },
            grid: [self.outer.count().div_ceil(slots) as u32, 1, 1],
            block: THREADS as u32,
            shared_bytes: 0,
            cluster: 1,
            parameters: Parameters::of(tensors),
        }
    }

    /// A loop over the elements of this thread's share of the row.
    fn each(&self, body: &str) -> String {
        format!(
            "    if (alive) for (u32 i = lane; i < {}u; i += LANES) {{\n{}{body}    }}\n",
            self.inner.count(),
            self.inner.coordinates("x", "i")
        )
    }

    /// C for the element of a tensor in such a loop.
    fn at(&self, tensor: usize) -> String {
        format!("p{tensor}[{} + {}]", self.outer.offset(tensor, "y"), self.inner.offset(tensor, "x"))
    }
}

/// C that combines what the threads of a row have; every one of them gets the result.
fn combine(of: &str, expression: &str) -> String {
    format!(
        "__device__ __forceinline__ {of} together({of} a, u32 lane) {{\n    __shared__ {of} all[{THREADS}];\n    __syncthreads();\n    all[threadIdx.x] = a;\n\
         #pragma unroll\n    for (u32 half = LANES / 2; half > 0; half /= 2) {{\n        __syncthreads();\n        if (lane < half) {{\n\
         \x20           const {of} a = all[threadIdx.x], b = all[threadIdx.x + half * PITCH];\n            all[threadIdx.x] = {expression};\n        }}\n    }}\n\
         \x20   __syncthreads();\n    return all[threadIdx.x - lane * PITCH];\n}}\n"
    )
}

pub(crate) fn reduce(step: &Reduce) -> Recipe {
    let tensors = [&step.input, &step.output];
    let rows = Rows::new(&tensors, |axis| step.axes.contains(&axis));
    let class = Class::of(step.input.dtype);
    let value = load(step.input.dtype, &rows.at(0));
    let out = format!("p1[{}]", rows.outer.offset(1, "y"));
    if let ReduceKind::ArgMax { last } | ReduceKind::ArgMin { last } = step.kind {
        let largest = matches!(step.kind, ReduceKind::ArgMax { .. });
        let (better, tie) = (if largest { ">" } else { "<" }, if last { ">" } else { "<" });
        let name = class.name();
        let declarations = format!("struct Found {{ {name} x; i64 at; }};\n")
            + &combine(
                "Found",
                &format!("b.at >= 0 && (a.at < 0 || b.x {better} a.x || (b.x == a.x && b.at {tie} a.at)) ? b : a"),
            );
        let body = "    Found best;\n    best.x = 0; best.at = -1;\n".to_owned()
            + &rows.each(&format!(
                "        const {name} v = {value};\n        if (best.at < 0 || v {better} best.x || (v == best.x && (i64)i {tie} best.at)) {{ best.x = v; best.at = i; }}\n"
            ))
            + &format!("    best = together(best, lane);\n    if (alive && lane == 0) {out} = {};\n", store(step.output.dtype, "best.at"));
        return rows.recipe(&tensors, &declarations, &body);
    }
    let float = class == Class::Float;
    let name = if float { "float" } else { "i64" };
    let (first, fold, join, end) = match step.kind {
        ReduceKind::Sum | ReduceKind::ArgMax { .. } | ReduceKind::ArgMin { .. } => {
            ("0", "s += v", "a + b", "s".to_owned())
        }
        ReduceKind::Mean => ("0", "s += v", "a + b", format!("s / ({name}){}", rows.inner.count())),
        ReduceKind::SumOfSquares => ("0", "s += v * v", "a + b", "s".to_owned()),
        ReduceKind::Norm => ("0", "s += v * v", "a + b", format!("({name})sqrtf((float)s)")),
        ReduceKind::SumOfAbsolutes => ("0", "s += v < 0 ? -v : v", "a + b", "s".to_owned()),
        ReduceKind::Product => ("1", "s *= v", "a * b", "s".to_owned()),
        ReduceKind::Max if float => {
            ("-INFINITE", "s = v > s || v != v ? v : s", "a > b || a != a ? a : b", "s".to_owned())
        }
        ReduceKind::Min if float => {
            ("INFINITE", "s = v < s || v != v ? v : s", "a < b || a != a ? a : b", "s".to_owned())
        }
        ReduceKind::Max => ("(i64)(1ull << 63)", "s = v > s ? v : s", "a > b ? a : b", "s".to_owned()),
        ReduceKind::Min => ("(i64)(~0ull >> 1)", "s = v < s ? v : s", "a < b ? a : b", "s".to_owned()),
    };
    let body = format!("    {name} s = {first};\n")
        + &rows.each(&format!("        const {name} v = {value};\n        {fold};\n"))
        + &format!(
            "    s = together(s, lane);\n    if (alive && lane == 0) {out} = {};\n",
            store(step.output.dtype, &end)
        );
    rows.recipe(&tensors, &combine(name, join), &body)
}

pub(crate) fn softmax(step: &Softmax) -> Recipe {
    let tensors = [&step.input, &step.output];
    let rows = Rows::new(&tensors, |axis| axis == step.axis);
    let value = load(step.input.dtype, &rows.at(0));
    // The largest and the sum of the exponentials under it, in one pass.
    let declarations = "struct Sum { float most, sum; };\n\
         __device__ __forceinline__ Sum joined(Sum a, Sum b) {\n    Sum c;\n    c.most = fmaxf(a.most, b.most);\n\
         \x20   c.sum = (a.sum > 0.0f ? a.sum * __expf(a.most - c.most) : 0.0f) + (b.sum > 0.0f ? b.sum * __expf(b.most - c.most) : 0.0f);\n    return c;\n}\n"
        .to_owned()
        + &combine("Sum", "joined(a, b)");
    let result = if step.log { "v - s.most - logf(s.sum)" } else { "__expf(v - s.most) / s.sum" };
    let body = "    Sum s;\n    s.most = -INFINITE; s.sum = 0.0f;\n".to_owned()
        + &rows.each(&format!(
            "        Sum one;\n        one.most = {value}; one.sum = 1.0f;\n        s = joined(s, one);\n"
        ))
        + "    s = together(s, lane);\n"
        + &rows.each(&format!(
            "        const float v = {value};\n        {} = {};\n",
            rows.at(1),
            store(step.output.dtype, result)
        ));
    rows.recipe(&tensors, &declarations, &body)
}

pub(crate) fn layer_norm(step: &LayerNorm) -> Recipe {
    let mut tensors = vec![&step.input, &step.output];
    tensors.extend(&step.scale);
    tensors.extend(&step.shift);
    let rows = Rows::new(&tensors, |axis| axis >= step.axis);
    let count = rows.inner.count();
    let value = load(step.input.dtype, &rows.at(0));
    let scale = step.scale.as_ref().map_or("1.0f".to_owned(), |scale| load(scale.dtype, &rows.at(2)));
    let shift = step
        .shift
        .as_ref()
        .map_or("0.0f".to_owned(), |shift| load(shift.dtype, &rows.at(2 + usize::from(step.scale.is_some()))));
    let mean = if step.root_mean_square {
        "    const float mean = 0.0f;\n".to_owned()
    } else {
        "    float s = 0.0f;\n".to_owned()
            + &rows.each(&format!("        s += {value};\n"))
            + &format!("    const float mean = together(s, lane) / {count}.0f;\n")
    };
    let body = mean
        + "    float q = 0.0f;\n"
        + &rows.each(&format!("        const float v = {value} - mean;\n        q += v * v;\n"))
        + &format!("    const float factor = rsqrtf(together(q, lane) / {count}.0f + {});\n", number(step.epsilon))
        + &rows.each(&format!(
            "        const float v = ({value} - mean) * factor * {scale} + {shift};\n        {} = {};\n",
            rows.at(1),
            store(step.output.dtype, "v")
        ));
    rows.recipe(&tensors, &combine("float", "a + b"), &body)
}

/// Each round finds the best of those that are worse than the last one found.
pub(crate) fn top_k(step: &TopK) -> Recipe {
    // The input's strides lead; outputs have `k` in place of the row's length, so that only their strides count.
    let tensors = [&step.input, &step.values, &step.indices];
    let mut rows = Rows::new(&tensors, |axis| axis == step.axis);
    (rows.lanes, rows.along) = (THREADS, true);
    let k = step.values.dims[step.axis];
    let name = class_name(step.input.dtype);
    let better = if step.largest { ">" } else { "<" };
    let declarations = format!("struct Found {{ {name} x; i64 at; }};\n")
        + &combine(
            "Found",
            &format!("b.at >= 0 && (a.at < 0 || b.x {better} a.x || (b.x == a.x && b.at < a.at)) ? b : a"),
        );
    let value = load(step.input.dtype, &rows.at(0));
    let out = |tensor: usize| {
        format!("p{tensor}[{} + (i64)k * {}]", rows.outer.offset(tensor, "y"), tensors[tensor].strides[step.axis])
    };
    let body = format!("    Found last;\n    last.x = 0; last.at = -1;\n    for (u32 k = 0; k < {k}u; k++) {{\n    Found best;\n    best.x = 0; best.at = -1;\n")
        + &rows.each(&format!(
            "        const {name} v = {value};\n        const bool left = k == 0 || last.x {better} v || (v == last.x && (i64)i > last.at);\n\
             \x20       if (left && (best.at < 0 || v {better} best.x)) {{ best.x = v; best.at = i; }}\n"
        ))
        + &format!(
            "    last = together(best, lane);\n    if (alive && lane == 0) {{ {} = {}; {} = {}; }}\n    }}\n",
            out(1),
            store(step.values.dtype, "last.x"),
            out(2),
            store(step.indices.dtype, "last.at")
        );
    rows.recipe(&tensors, &declarations, &body)
}
