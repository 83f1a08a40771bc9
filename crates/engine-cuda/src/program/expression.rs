//! Element-wise expressions as C.

use super::index::{Space, ValueClass, element, load, store};
use super::launch::{LaunchParameters, Recipe};
use crate::source::{Defines, KernelSource};
use graph::expression::{Binary, Instruction, Unary, ValueKind};
use graph::plan::{Activation, Copy, DataType, Elementwise, Fill, Tensor};
use std::fmt::Write;

const ELEMENTWISE: &str = include_str!("../kernels/elementwise.cu");
const ACTIVATION: &str = include_str!("../kernels/activation.cu");

/// Threads of a block of these kernels, and of those over rows and images.
pub(crate) const THREADS: usize = 256;

/// A kernel whose threads each compute one element, or one pack of neighbours.
pub(crate) fn elementwise(step: &Elementwise) -> Recipe {
    let mut body = String::new();
    for (at, instruction) in step.expression.instructions.iter().enumerate() {
        let code = instruction_code(instruction, &step.expression.kinds, &step.inputs);
        let _ = writeln!(body, "const {} r{at} = {code};", kind_name(step.expression.kinds[at]));
    }
    let result = format!("r{}", step.expression.instructions.len() - 1);
    map(&step.inputs.iter().collect::<Vec<_>>(), &step.output, &body, &result)
}

/// The same for a copy, which may convert.
pub(crate) fn copy(step: &Copy) -> Recipe {
    map(&[&step.input], &step.output, "", &load(step.input.dtype, "e0"))
}

/// The same for one value everywhere.
pub(crate) fn fill(step: &Fill) -> Recipe {
    map(&[], &step.output, "", &number(step.value))
}

/// An activation where a library has left what it applies to.
pub(crate) fn activation(at: &Tensor, activation: Activation) -> Recipe {
    let space = Space::of(&[at], 0);
    let pack = space.pack(&[at]);
    let (kind, low, high) = activation_code(activation);
    let mut defines = packs(&space, pack);
    defines
        .add("ELEMENT", element(at.dtype))
        .add("LOAD(x)", load(at.dtype, "x"))
        .add("STORE(x)", store(at.dtype, "x"))
        .add("AT", space.offset(0, "x"))
        .add("ACTIVATION", kind)
        .add("LOW", number(low))
        .add("HIGH", number(high));
    recipe(ACTIVATION, defines, space.count() / pack, &[at])
}

/// One element of the output, or a pack of them, from those of the inputs: `instructions` make values of the elements
/// `e0`, `e1`, ..., `result` is the last.
fn map(inputs: &[&Tensor], output: &Tensor, instructions: &str, result: &str) -> Recipe {
    let mut tensors = inputs.to_vec();
    tensors.push(output);
    let lead = tensors.len() - 1;
    let space = Space::of(&tensors, lead);
    let pack = space.pack(&tensors);
    let last = space.dims.len() - 1;
    let (mut parameters, mut reads, mut elements) = (String::new(), String::new(), String::new());
    for (i, input) in inputs.iter().enumerate() {
        let (name, at) = (element(input.dtype), space.offset(i, "x"));
        let _ = write!(parameters, "const {name}* __restrict__ i{i}, ");
        if pack > 1 && space.strides[i][last] == 1 {
            let _ = writeln!(reads, "const Pack<{name}, {pack}> p{i} = *(const Pack<{name}, {pack}>*)(i{i} + {at});");
            let _ = writeln!(elements, "const {name} e{i} = p{i}.at[v];");
        } else {
            let _ = writeln!(reads, "const {name} p{i} = i{i}[{at}];");
            let _ = writeln!(elements, "const {name} e{i} = p{i};");
        }
    }
    let out = element(output.dtype);
    let mut defines = packs(&space, pack);
    defines
        .add("OUT", out)
        .add("PARAMETERS", format!("{parameters}{out}* __restrict__ o, const u32 count"))
        .add("READS", reads)
        .add("ELEMENTS", elements)
        .add("INSTRUCTIONS", instructions)
        .add("RESULT", store(output.dtype, result))
        .add("OUT_AT", space.offset(lead, "x"));
    recipe(ELEMENTWISE, defines, space.count() / pack, &tensors)
}

/// What kernels are given whose threads each have one pack.
fn packs(space: &Space, pack: usize) -> Defines {
    let mut defines = Defines::default();
    defines.add("THREADS", THREADS).add("PACK", pack).add("COORDINATES", space.coordinates("x", "first"));
    defines
}

/// A kernel for that many threads.
fn recipe(text: &'static str, defines: Defines, threads: usize, tensors: &[&Tensor]) -> Recipe {
    Recipe {
        name: "generated".to_owned(),
        source: KernelSource { text, defines, entry: "step" },
        grid: [threads.div_ceil(THREADS) as u32, 1, 1],
        block: THREADS as u32,
        shared_bytes: 0,
        cluster: 1,
        parameters: LaunchParameters::counted(tensors, threads),
    }
}

fn kind_name(kind: ValueKind) -> &'static str {
    match kind {
        ValueKind::Float => "float",
        ValueKind::Int => "i64",
        ValueKind::Bool => "bool",
    }
}

/// A float as C reads it back to the same bits.
pub(crate) fn number(value: f32) -> String {
    if value.is_finite() { format!("{value:e}f") } else { format!("__int_as_float({:#x})", value.to_bits()) }
}

fn instruction_code(instruction: &Instruction, kinds: &[ValueKind], inputs: &[Tensor]) -> String {
    match *instruction {
        Instruction::Input(i) => load(inputs[i].dtype, &format!("e{i}")),
        Instruction::Float(value) => number(value),
        Instruction::Int(value) => format!("(i64){value}ll"),
        Instruction::Bool(value) => value.to_string(),
        Instruction::Unary(function, of) => unary(function, &format!("r{of}"), kinds[of]),
        Instruction::Binary(function, a, b) => binary(function, &format!("r{a}"), &format!("r{b}"), kinds[a]),
        Instruction::Select(condition, a, b) => format!("r{condition} ? r{a} : r{b}"),
        Instruction::Cast(ValueKind::Bool, of) => format!("r{of} != 0"),
        Instruction::Cast(kind, of) => format!("({})r{of}", kind_name(kind)),
        Instruction::Wrap { bits, signed, of } => {
            let name = match (bits, signed) {
                (8, true) => "signed char",
                (8, false) => "u8",
                (16, true) => "short",
                (16, false) => "unsigned short",
                (_, true) => "int",
                (_, false) => "u32",
            };
            format!("(i64)({name})r{of}")
        }
    }
}

fn unary(function: Unary, x: &str, kind: ValueKind) -> String {
    let float = kind == ValueKind::Float;
    match function {
        Unary::Negate => format!("-{x}"),
        Unary::Absolute if float => format!("fabsf({x})"),
        Unary::Absolute => format!("({x} < 0 ? -{x} : {x})"),
        Unary::Sign => format!("({})(({x} > 0) - ({x} < 0))", kind_name(kind)),
        Unary::Reciprocal => format!("1.0f / {x}"),
        Unary::SquareRoot => format!("sqrtf({x})"),
        Unary::Exp => format!("expf({x})"),
        Unary::Log => format!("logf({x})"),
        Unary::Sin => format!("sinf({x})"),
        Unary::Cos => format!("cosf({x})"),
        Unary::Tan => format!("tanf({x})"),
        Unary::Asin => format!("asinf({x})"),
        Unary::Acos => format!("acosf({x})"),
        Unary::Atan => format!("atanf({x})"),
        Unary::Sinh => format!("sinhf({x})"),
        Unary::Cosh => format!("coshf({x})"),
        Unary::Asinh => format!("asinhf({x})"),
        Unary::Acosh => format!("acoshf({x})"),
        Unary::Atanh => format!("atanhf({x})"),
        Unary::Tanh => format!("tanhf({x})"),
        Unary::Erf => format!("erff({x})"),
        Unary::Sigmoid => format!("sigmoid({x})"),
        Unary::Floor => format!("floorf({x})"),
        Unary::Ceil => format!("ceilf({x})"),
        Unary::Round => format!("rintf({x})"),
        Unary::IsNan => format!("{x} != {x}"),
        Unary::IsInfinite => format!("fabsf({x}) == INFINITE"),
        Unary::Not => format!("!{x}"),
    }
}

fn binary(function: Binary, a: &str, b: &str, kind: ValueKind) -> String {
    let float = kind == ValueKind::Float;
    let chosen = |less: &str| {
        if float {
            format!("({a} != {a} || {b} != {b}) ? {a} + {b} : ({a} {less} {b} ? {a} : {b})")
        } else {
            format!("{a} {less} {b} ? {a} : {b}")
        }
    };
    match function {
        Binary::Add => format!("{a} + {b}"),
        Binary::Subtract => format!("{a} - {b}"),
        Binary::Multiply => format!("{a} * {b}"),
        Binary::Divide if float => format!("{a} / {b}"),
        Binary::Divide => format!("{b} == 0 ? 0 : {a} / {b}"),
        Binary::Modulo if float => format!("{a} - floorf({a} / {b}) * {b}"),
        Binary::Modulo => format!("{b} == 0 ? 0 : ({a} % {b} + {b}) % {b}"),
        Binary::Remainder if float => format!("fmodf({a}, {b})"),
        Binary::Remainder => format!("{b} == 0 ? 0 : {a} % {b}"),
        Binary::Power if float => format!("powf({a}, {b})"),
        Binary::Power => format!("(i64)llrint(pow((double){a}, (double){b}))"),
        Binary::Minimum => chosen("<"),
        Binary::Maximum => chosen(">"),
        Binary::Equal => format!("{a} == {b}"),
        Binary::Less => format!("{a} < {b}"),
        Binary::LessOrEqual => format!("{a} <= {b}"),
        Binary::Greater => format!("{a} > {b}"),
        Binary::GreaterOrEqual => format!("{a} >= {b}"),
        Binary::And if kind == ValueKind::Int => format!("{a} & {b}"),
        Binary::Or if kind == ValueKind::Int => format!("{a} | {b}"),
        Binary::Xor if kind == ValueKind::Int => format!("{a} ^ {b}"),
        Binary::And => format!("{a} && {b}"),
        Binary::Or => format!("{a} || {b}"),
        Binary::Xor => format!("{a} != {b}"),
        Binary::ShiftLeft => format!("(u64){b} < 64 ? (i64)((u64){a} << {b}) : 0"),
        Binary::ShiftRight => format!("(u64){b} < 64 ? (i64)((u64){a} >> {b}) : 0"),
    }
}

/// An activation's number in `prelude.cu`, and its two numbers; `None` where that doesn't know it.
pub(crate) fn activation_code(activation: Activation) -> (i32, f32, f32) {
    match activation {
        Activation::None => (0, 0.0, 0.0),
        Activation::Relu => (1, 0.0, 0.0),
        Activation::Clip { low, high } => (2, low, high),
        Activation::Sigmoid => (3, 0.0, 0.0),
        Activation::Silu => (4, 0.0, 0.0),
        Activation::HardSwish => (5, 0.0, 0.0),
        Activation::Gelu => (6, 0.0, 0.0),
        Activation::GeluTanh => (7, 0.0, 0.0),
        Activation::Tanh => (8, 0.0, 0.0),
        Activation::HardSigmoid { alpha, beta } => (9, alpha, beta),
        Activation::LeakyRelu { slope } => (10, slope, 0.0),
        Activation::Mish => (11, 0.0, 0.0),
    }
}

/// The class that a type is computed in, for those who write code by it.
pub(crate) fn class_name(dtype: DataType) -> &'static str {
    ValueClass::of(dtype).name()
}
