//! Every kernel of ours, from the very source that is compiled for GPUs, on a CPU: against the reference, step by step.
//!
//! A compiler for C++ makes a library of them, with `on_cpu.h` in place of what only a device can do.

use super::launch::{ProgramMemory, Recipe};
use super::survey::compare;
use super::tests::facts;
use super::{StepCandidates, uniform};
use crate::source::{KernelSource, PRELUDE};
use graph::cases::nodes::{Values, bytes, names};
use graph::cases::steps::{self, StepCase};
use graph::plan::{
    Activation, Conv, DataType, Gemm, IntegerConv, Precision, Step, Tensor, TensorPlace, Window, channels_last,
    row_major,
};
use graph::reference::{self, Reference};
use graph::{OnnxModel, Options, Plan, compile};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

const SHIM: &str = include_str!("../kernels/on_cpu.h");
/// As many compilers run at a time.
const PARTS: usize = 2;

type Call = unsafe extern "C" fn(*mut *mut c_void);
type Launch = unsafe extern "C" fn(Call, *const u32, u32, u32, usize, *mut *mut c_void);

/// Sources that were compiled for this machine.
struct Kernels {
    /// Which library each is in, and its number.
    known: BTreeMap<KernelSource, usize>,
    libraries: Vec<libloading::Library>,
}

impl Kernels {
    fn compile(sources: &BTreeSet<KernelSource>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut texts = vec![format!("{SHIM}\n{PRELUDE}\n"); PARTS];
        for (number, source) in sources.iter().enumerate() {
            texts[number % PARTS] += &translated(source, number);
        }
        let file = |part: usize, kind: &str| folder.path().join(format!("part{part}.{kind}"));
        let compilers: Vec<_> = texts
            .iter()
            .enumerate()
            .map(|(part, text)| {
                std::fs::write(file(part, "cpp"), text).unwrap();
                let mut compiler = Command::new("c++");
                compiler.args(["-std=c++20", "-O1", "-w", "-fno-strict-aliasing", "-shared", "-fPIC", "-o"]);
                compiler.arg(file(part, "so")).arg(file(part, "cpp")).spawn().expect("a compiler for C++ is there")
            })
            .collect();
        for mut compiler in compilers {
            assert!(compiler.wait().unwrap().success(), "the kernels are compiled for the CPU");
        }
        // SAFETY: nothing happens when they are loaded.
        let load = |part| unsafe { libloading::Library::new(file(part, "so")) }.unwrap();
        let known = sources.iter().cloned().zip(0..).collect();
        Self { known, libraries: (0..PARTS).map(load).collect() }
    }

    /// Executes a kernel. The addresses are those of host memory.
    fn run(&self, recipe: &Recipe, memory: &ProgramMemory<'_>) {
        let number = self.known[&recipe.source];
        let library = &self.libraries[number % PARTS];
        let mut bytes = recipe.parameters.filled(memory);
        let mut pointers = recipe.parameters.pointers(&mut bytes);
        // SAFETY: the names are those of functions of these types; memory is as large as the plan says.
        unsafe {
            let launch = library.get::<Launch>(b"launch").unwrap();
            let kernel = library.get::<Call>(format!("call{number}").as_bytes()).unwrap();
            launch(
                *kernel,
                recipe.grid.as_ptr(),
                recipe.block,
                recipe.cluster,
                recipe.shared_bytes,
                pointers.as_mut_ptr(),
            );
        }
    }
}

/// A source in a namespace of its own, and a function to call it by.
fn translated(source: &KernelSource, number: usize) -> String {
    let mut text = format!("namespace kernel{number} {{\n{}", source.defines.text());
    let body = source.text.replace("extern \"C\" ", "");
    for line in body.lines() {
        match line.trim().strip_prefix("extern __shared__ ") {
            Some(array) => {
                // Of one size for all kernels, behind a pointer.
                let (kind, name) = array.trim_end_matches("[];").rsplit_once(' ').unwrap();
                let kind = kind.rsplit(' ').next().unwrap();
                let _ = writeln!(text, "    {kind}* {name} = ({kind}*)on_cpu_shared;");
            }
            None => {
                let _ = writeln!(text, "{line}");
            }
        }
    }
    text += "}\n";
    let defined = body.lines().filter_map(|line| line.trim().strip_prefix("#define "));
    let names = defined.map(|rest| rest.split([' ', '(']).next().unwrap());
    let names: BTreeSet<&str> = names.chain(source.defines.names()).collect();
    names.iter().for_each(|name| text += &format!("#undef {name}\n"));
    text + &format!("extern \"C\" void call{number}(void** p) {{ call(kernel{number}::{}, p); }}\n", source.entry)
}

/// Host memory that is aligned as the device's.
struct Buffer(Vec<u8>);

impl Buffer {
    const ALIGNED: usize = 256;

    fn new(content: &[u8]) -> Self {
        let mut buffer = Self(vec![0xff; content.len() + 2 * Self::ALIGNED]);
        let start = buffer.start();
        buffer.0[start..start + content.len()].copy_from_slice(content);
        buffer
    }

    fn start(&self) -> usize {
        self.0.as_ptr().align_offset(Self::ALIGNED)
    }

    fn address(&self) -> u64 {
        self.0[self.start()..].as_ptr() as u64
    }

    fn content(&self, length: usize) -> Vec<u8> {
        self.0[self.start()..self.start() + length].to_vec()
    }
}

/// Executes a kernel on a copy of memory, and returns what it is then.
fn executed(
    kernels: &Kernels,
    recipe: &Recipe,
    plan: &Plan,
    before: &reference::ReferenceMemory,
) -> reference::ReferenceMemory {
    let all = |parts: &mut dyn Iterator<Item = &[u8]>| parts.map(Buffer::new).collect::<Vec<_>>();
    let (weights, constants) = (Buffer::new(&before.weights), Buffer::new(&plan.constants));
    let workspace = Buffer::new(&before.workspace);
    let inputs = all(&mut before.inputs.iter().map(|input| &input[..]));
    let outputs = all(&mut before.outputs.iter().map(|output| &output[..]));
    let addresses = |buffers: &[Buffer]| buffers.iter().map(Buffer::address).collect::<Vec<_>>();
    let (inputs_at, outputs_at) = (addresses(&inputs), addresses(&outputs));
    let memory = ProgramMemory {
        weights: weights.address(),
        constants: constants.address(),
        workspace: workspace.address(),
        scratch: 0,
        inputs: &inputs_at,
        outputs: &outputs_at,
    };
    kernels.run(recipe, &memory);
    let same = |buffer: &Buffer, content: &[u8]| buffer.content(content.len()) == content;
    assert!(same(&weights, &before.weights) && same(&constants, &plan.constants), "weights stay as they are");
    let mut inputs = inputs.iter().zip(&before.inputs);
    assert!(inputs.all(|(buffer, content)| same(buffer, content)), "inputs stay as they are");
    let mut after = before.clone();
    after.workspace = workspace.content(before.workspace.len());
    after.outputs =
        outputs.iter().zip(&before.outputs).map(|(buffer, content)| buffer.content(content.len())).collect();
    after
}

/// Compares kernels of every step of some plans with the reference: all of them, or so many of each, not always the
/// same. There are more than so many of them.
fn assert_right(plans: &[(String, Plan, Vec<Vec<u8>>)], most: usize, at_least: usize) {
    let mut wanted: Vec<Vec<StepCandidates>> =
        plans.iter().map(|(_, plan, _)| StepCandidates::all(plan, &facts()).unwrap()).collect();
    for (number, wanted) in wanted.iter_mut().flatten().enumerate() {
        let count = wanted.recipes.len();
        wanted.recipes.rotate_left(if most < count { number % count } else { 0 });
        wanted.recipes.truncate(most);
    }
    let recipes = wanted.iter().flatten().flat_map(|wanted| &wanted.recipes);
    let kernels = Kernels::compile(&recipes.map(|recipe| recipe.source.clone()).collect());
    let (mut count, mut wrong) = (0, Vec::new());
    for ((name, plan, inputs), wanted) in plans.iter().zip(&wanted) {
        // Twice as much as on a GPU: the reference adds one number after another, which is less exact than what kernels
        // do.
        let tolerance = 2.0 * steps::tolerance(plan.precision);
        let mut reference = Reference::new(plan);
        reference.begin(&inputs.iter().map(Vec::as_slice).collect::<Vec<_>>());
        for (at, (wanted, step)) in wanted.iter().zip(&plan.steps).enumerate() {
            let before = reference.memory().clone();
            reference.step(at);
            for recipe in &wanted.recipes {
                let after = executed(&kernels, recipe, plan, &before);
                let (error, _, strayed) = compare(plan, step, after, reference.memory());
                count += 1;
                if error > tolerance || strayed {
                    wrong.push(format!(
                        "{name}: {} {}: error {error:.1e}, strayed {strayed}",
                        step.kind(),
                        recipe.name
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {count} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count > at_least, "{count}");
}

/// A case's plan, and numbers for it.
fn with_inputs(case: &StepCase) -> (String, Plan, Vec<Vec<u8>>) {
    let plan = steps::plan_of(case);
    let inputs = plan.inputs.iter().zip(1..).map(|(port, seed)| steps::random_input(port, uniform(seed))).collect();
    (case.what.clone(), plan, inputs)
}

/// Any convolution: windows, layouts, what is fused.
fn any_convolution(seed: u64) -> StepCase {
    let mut next = uniform(7919 * seed);
    let mut pick = |most: usize| (((next() + 0.5) * most as f32) as usize).min(most - 1);
    let precision = [Precision::F16, Precision::Tf32, Precision::F32][pick(3)];
    let kind = if precision == Precision::F16 { DataType::Fp16 } else { DataType::Fp32 };
    let two = |pick: &mut dyn FnMut(usize) -> usize, most: usize| [pick(most), pick(most)];
    let window = Window {
        kernel: two(&mut pick, 4).map(|x| x + 1),
        strides: two(&mut pick, 3).map(|x| x + 1),
        dilations: two(&mut pick, 2).map(|x| x + 1),
        pads_before: two(&mut pick, 3),
        pads_after: two(&mut pick, 3),
    };
    let groups = [1, 1, 2, 4][pick(4)];
    let channels = groups * [1, 2, 3, 4, 8, 20][pick(6)];
    let out = if pick(4) == 0 { channels } else { groups * [1, 3, 8, 10, 24][pick(5)] };
    let groups = if out == channels && pick(2) == 0 { channels } else { groups };
    let reach = |axis: usize| (window.kernel[axis] - 1) * window.dilations[axis] + 1;
    let size = |axis: usize, extra: usize| {
        (reach(axis) + extra).saturating_sub(window.pads_before[axis] + window.pads_after[axis]).max(1)
    };
    let dims = [1 + pick(2), channels, size(0, pick(6)), size(1, pick(9))];
    let result = |axis: usize| {
        (dims[axis + 2] + window.pads_before[axis] + window.pads_after[axis] - reach(axis)) / window.strides[axis] + 1
    };
    let out_dims = [dims[0], out, result(0), result(1)];
    let weight = [out, channels / groups, window.kernel[0], window.kernel[1]];
    let lies = |dims: &[usize], first: bool| if first { row_major(dims) } else { channels_last(dims) };
    let tensor = |dims: &[usize], strides: Vec<isize>, place| Tensor {
        dtype: kind,
        dims: dims.to_vec(),
        strides,
        place,
        offset: 0,
    };
    let first = pick(5) == 0;
    let activations = [
        Activation::None,
        Activation::Relu,
        Activation::Silu,
        Activation::Clip { low: -0.25, high: 0.5 },
        Activation::LeakyRelu { slope: 0.1 },
        Activation::HardSigmoid { alpha: 0.2, beta: 0.5 },
    ];
    let depthwise = weight[1] == 1;
    let step = Conv {
        input: tensor(&dims, lies(&dims, first), TensorPlace::Input(0)),
        weight: tensor(
            &weight,
            if depthwise && pick(2) == 0 {
                graph::plan::strides_in_order(&weight, &[2, 3, 1, 0])
            } else {
                lies(&weight, first)
            },
            TensorPlace::Input(1),
        ),
        bias: (pick(4) > 0).then(|| tensor(&[out], vec![1], TensorPlace::Input(2))),
        residual: None,
        output: tensor(&out_dims, lies(&out_dims, first), TensorPlace::Output(0)),
        window,
        groups,
        activation: activations[pick(activations.len())],
    };
    let what = format!(
        "{seed}: {precision:?} {dims:?} -> {out_dims:?} by {weight:?} groups {groups} first {first} {window:?} {:?}",
        step.activation
    );
    StepCase { what, precision, step: Step::Conv(step) }
}

/// Any product: shapes, batches that are repeated, factors that are turned, what is fused.
fn any_product(seed: u64) -> StepCase {
    let mut next = uniform(104_729 * seed);
    let mut pick = |most: usize| (((next() + 0.5) * most as f32) as usize).min(most - 1);
    let precision = [Precision::F16, Precision::Tf32, Precision::F32][pick(3)];
    let kind = if precision == Precision::F16 { DataType::Fp16 } else { DataType::Fp32 };
    let batch: Vec<usize> = [vec![], vec![3], vec![2, 3]][pick(3)].clone();
    let sizes = [1, 2, 5, 8, 16, 20, 33, 40];
    let (m, k, n) = (sizes[pick(8)], sizes[pick(8)], sizes[pick(8)]);
    let mut factor = |rows: usize, columns: usize, place: TensorPlace| {
        let dims = [&batch[..], &[rows, columns]].concat();
        let rank = dims.len();
        let mut strides = if pick(3) == 0 {
            let mut strides = row_major(&[&batch[..], &[columns, rows]].concat());
            strides.swap(rank - 1, rank - 2);
            strides
        } else {
            row_major(&dims)
        };
        if !batch.is_empty() && pick(3) == 0 {
            // The same for all of the batch.
            strides[..rank - 2].fill(0);
        }
        Tensor { dtype: kind, dims, strides, place, offset: 0 }
    };
    let (a, b) = (factor(m, k, TensorPlace::Input(0)), factor(k, n, TensorPlace::Input(1)));
    let dims = [&batch[..], &[m, n]].concat();
    let output = Tensor { dtype: kind, strides: row_major(&dims), dims, place: TensorPlace::Output(0), offset: 0 };
    let activations = [Activation::None, Activation::Relu, Activation::Tanh, Activation::HardSwish];
    let bias = (pick(2) == 0).then(|| Tensor {
        dtype: kind,
        dims: vec![n],
        strides: vec![1],
        place: TensorPlace::Input(2),
        offset: 0,
    });
    let position = 2 + usize::from(bias.is_some());
    let residual = (pick(3) == 0).then(|| Tensor { place: TensorPlace::Input(position), ..output.clone() });
    let alpha = [1.0, 0.125][pick(2)];
    let step = Gemm { a, b, bias, residual, output, alpha, activation: activations[pick(activations.len())] };
    let what = format!("{seed}: {precision:?} {step:?}");
    StepCase { what, precision, step: Step::Gemm(step) }
}

/// Any convolution of integers: types, windows, groups, more than one tile of places and channels, a zero point.
fn any_integer_convolution(seed: u64) -> StepCase {
    let mut next = uniform(15_485_863 * seed);
    let mut pick = |most: usize| (((next() + 0.5) * most as f32) as usize).min(most - 1);
    let types = [DataType::Int8, DataType::Uint8, DataType::Int16];
    let (from, by) = (types[pick(3)], types[pick(3)]);
    let groups = [1, 1, 2][pick(3)];
    let (channels, out) = (groups * [1, 3, 20, 70][pick(4)], groups * [1, 8, 65][pick(3)]);
    let (kernel, stride, pad) = (1 + pick(3), 1 + pick(2), pick(2));
    let size = kernel + [0, 3, 9][pick(3)];
    let result = (size + 2 * pad - kernel) / stride + 1;
    let tensor = |dtype, dims: &[usize], place| Tensor {
        dtype,
        dims: dims.to_vec(),
        strides: channels_last(dims),
        place,
        offset: 0,
    };
    let zero = (from != DataType::Int16 && pick(2) == 0).then(|| Tensor {
        dtype: from,
        dims: Vec::new(),
        strides: Vec::new(),
        place: TensorPlace::Input(2),
        offset: 0,
    });
    let step = IntegerConv {
        input: tensor(from, &[2, channels, size, size], TensorPlace::Input(0)),
        weight: tensor(by, &[out, channels / groups, kernel, kernel], TensorPlace::Input(1)),
        zero,
        output: tensor(DataType::Int32, &[2, out, result, result], TensorPlace::Output(0)),
        window: Window {
            kernel: [kernel; 2],
            strides: [stride; 2],
            dilations: [1; 2],
            pads_before: [pad; 2],
            pads_after: [pad; 2],
        },
        groups,
    };
    let what = format!("{seed}: {step:?}");
    StepCase { what, precision: Precision::F32, step: Step::IntegerConv(step) }
}

#[test]
fn kernels_compute_any_convolution_of_integers_as_the_reference_does() {
    let cases = (1..=25).map(|seed| with_inputs(&any_integer_convolution(seed)));
    // All numbers of a byte, so that sums are large and signs matter.
    let wide = |(what, plan, inputs): (String, Plan, Vec<Vec<u8>>)| {
        let mut random = uniform(11);
        let inputs = inputs.iter().map(|bytes| bytes.iter().map(|_| (random() * 256.0) as i8 as u8).collect());
        (what, plan, inputs.collect())
    };
    assert_right(&cases.map(wide).collect::<Vec<_>>(), usize::MAX, 30);
}

#[test]
fn kernels_compute_any_product_as_the_reference_does() {
    let plans: Vec<_> = (1..=100).map(|seed| with_inputs(&any_product(seed))).collect();
    assert_right(&plans, 2, 100);
}

#[test]
fn kernels_compute_any_convolution_as_the_reference_does() {
    let plans: Vec<_> = (1..=100).map(|seed| with_inputs(&any_convolution(seed))).collect();
    assert_right(&plans, 2, 100);
}

#[test]
fn kernels_compute_products_convolutions_and_attention_as_the_reference_does() {
    use steps::{activated, attention, conv, gemm, interleaved, padded_behind, pool};
    let mut all = Vec::new();
    for precision in [Precision::F16, Precision::Tf32, Precision::F32] {
        all.push(conv(precision, 1, 3, 11, 20, 3, 2, 1, false));
        all.push(conv(precision, 2, 24, 6, 40, 3, 1, 1, true));
        all.push(conv(precision, 1, 40, 5, 72, 1, 1, 1, true));
        all.push(conv(precision, 1, 160, 3, 48, 3, 1, 1, false));
        all.push(conv(precision, 2, 32, 5, 32, 3, 1, 8, false));
        all.push(conv(precision, 2, 24, 7, 24, 3, 2, 24, false));
        all.push(interleaved(conv(precision, 2, 16, 5, 24, 3, 1, 1, false)));
        all.push(padded_behind(conv(precision, 1, 8, 8, 16, 3, 2, 1, false)));
        all.push(activated(conv(precision, 1, 16, 4, 24, 1, 1, 1, false), Activation::Silu));
        all.push(gemm(precision, &[], 5, 96, 50, true, Activation::None));
        all.push(gemm(precision, &[], 33, 40, 72, false, Activation::Gelu));
        all.push(gemm(precision, &[3], 17, 24, 20, true, Activation::None));
        all.push(attention(precision, 2, 2, 77, 32, true));
        all.push(attention(precision, 1, 2, 33, 128, true));
        all.push(attention(precision, 1, 1, 20, 20, false));
        all.push(pool(precision));
    }
    let plans: Vec<_> = all.iter().map(with_inputs).collect();
    assert_right(&plans, usize::MAX, 150);
}

#[test]
fn kernels_compute_onnx_node_tests_as_the_reference_does() {
    assert_nodes_right("PUNCTUAL_ONNX_NODES", "onnx-nodes", usize::MAX, 3_000);
}

#[test]
fn kernels_compute_other_cases_of_operators_as_the_reference_does() {
    assert_nodes_right("PUNCTUAL_OPERATOR_CASES", "operator-cases", 1, 1_000);
}

/// The same for the plans of all models in a folder, with their own inputs.
fn assert_nodes_right(variable: &str, usual: &str, most: usize, at_least: usize) {
    let folder = match std::env::var_os(variable) {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache").join(usual),
    };
    let mut plans = Vec::new();
    for name in names(&folder).expect("scripts/setup tests writes them") {
        let Ok(model) = OnnxModel::read(&folder.join(format!("{name}.onnx"))) else { continue };
        let Ok(values) = Values::read(&folder, &name) else { continue };
        for precision in [Precision::F32, Precision::F16] {
            let Ok(plan) = compile(&model, &Options::new(1, precision)) else { continue };
            let inputs = (0..plan.inputs.len()).map(|number| bytes(values.get("input", number))).collect();
            plans.push((format!("{name} {precision:?}"), plan, inputs));
        }
    }
    assert_right(&plans, most, at_least);
}
